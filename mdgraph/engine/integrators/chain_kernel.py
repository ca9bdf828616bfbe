"""One Triton kernel for what `Chains.advance_` does in some hundred operations of torch."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import triton
import triton.language as tl
from torch import Tensor

from mdgraph.neighbors.launching import launching_on

_BLOCK = 32


@triton.jit
def _first(v, friction, push, half, quarter):
    """A variable under half a part of a step, with the friction of the one after it."""
    decay = tl.exp(-quarter * friction)
    return (v * decay + half * push) * decay


@triton.jit
def _chain_kernel(
    ratio_in,
    degrees_in,
    tau_in,
    time_in,
    weights_in,
    positions,
    velocities,
    scale_out,
    count,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Chains of three variables, one lane each."""
    lane = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    wanted = lane < count
    ratio = tl.load(ratio_in + lane, mask=wanted, other=1.0)
    degrees = tl.load(degrees_in + lane, mask=wanted, other=1.0)
    tau = tl.load(tau_in + lane, mask=wanted, other=1.0)
    time = tl.load(time_in + lane, mask=wanted, other=0.0)
    rate = 1.0 / (tau * tau)
    v0 = tl.load(velocities + lane, mask=wanted, other=0.0)
    v1 = tl.load(velocities + count + lane, mask=wanted, other=0.0)
    v2 = tl.load(velocities + 2 * count + lane, mask=wanted, other=0.0)
    x0 = tl.load(positions + lane, mask=wanted, other=0.0)
    x1 = tl.load(positions + count + lane, mask=wanted, other=0.0)
    x2 = tl.load(positions + 2 * count + lane, mask=wanted, other=0.0)
    scale = time * 0.0 + 1.0
    for number in range(PARTS):
        part = tl.load(weights_in + number) * time
        half = 0.5 * part
        quarter = 0.25 * part
        v2 = v2 + half * (v1 * v1 - rate)
        v1 = _first(v1, v2, degrees * v0 * v0 - rate, half, quarter)
        v0 = _first(v0, v1, (ratio * scale * scale - 1.0) * rate, half, quarter)
        scale = scale * tl.exp(-part * v0)
        x0 += part * v0
        x1 += part * v1
        x2 += part * v2
        v0 = _first(v0, v1, (ratio * scale * scale - 1.0) * rate, half, quarter)
        v1 = _first(v1, v2, degrees * v0 * v0 - rate, half, quarter)
        v2 = v2 + half * (v1 * v1 - rate)
    tl.store(velocities + lane, v0, mask=wanted)
    tl.store(velocities + count + lane, v1, mask=wanted)
    tl.store(velocities + 2 * count + lane, v2, mask=wanted)
    tl.store(positions + lane, x0, mask=wanted)
    tl.store(positions + count + lane, x1, mask=wanted)
    tl.store(positions + 2 * count + lane, x2, mask=wanted)
    tl.store(scale_out + lane, scale, mask=wanted)


def advance_(
    numbers: tuple[Tensor, Tensor, Tensor, Tensor],
    weights: Tensor,
    positions: Tensor,
    velocities: Tensor,
) -> Tensor:
    """Moves chains of three variables; returns the factors for the momenta. Does not sync.

    Args:
        numbers: ratio, degrees, tau and time of `Chains.advance_`, (C,) float64.
        weights: (parts,) float64 of a step.
        positions: (3, C) float64, changed in place.
        velocities: (3, C) float64, changed in place.
    """
    count = positions.shape[1]
    scale = velocities.new_empty(count)
    with launching_on(positions.device):
        _chain_kernel[(triton.cdiv(count, _BLOCK),)](
            *(number.contiguous() for number in numbers),
            weights,
            positions,
            velocities,
            scale,
            count,
            PARTS=len(weights),
            BLOCK=_BLOCK,
            num_warps=1,
        )
    return scale
