"""Grid and sizes of kernels that look at one atom and channel at a time."""

from typing import Any

import triton

from mdgraph.fused.cuda.bound import Bound


def elementwise(bound: Bound) -> tuple[int, int]:
    """Grid of a kernel that looks at one atom and channel at a time."""
    s = bound.shapes
    return triton.cdiv(bound.atoms, s.rows), triton.cdiv(bound.channels, s.across)


def sizes(bound: Bound) -> dict[str, Any]:
    """What every launch of such a kernel takes."""
    s = bound.shapes
    return {
        "F": bound.channels,
        "A": s.rows,
        "BF": s.across,
        "num_warps": s.warps,
        **bound.launch,
    }
