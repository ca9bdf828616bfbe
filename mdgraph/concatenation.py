"""Systems of a batch, one after the other, as tensors on the host."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from mdgraph.system import System, total_charge


def concatenated(systems: Sequence[System], dtype: torch.dtype) -> dict[str, Tensor]:
    """What systems hold, by the names that `State` has for it.

    Args:
        systems: at least one; without velocities they are at rest.
        dtype: of what is real.
    """

    def parts(name: str, kind: torch.dtype) -> list[Tensor]:
        return [torch.tensor(getattr(system, name), dtype=kind) for system in systems]

    velocities = [
        np.zeros((len(one), 3)) if one.velocities is None else one.velocities for one in systems
    ]
    charges = [total_charge(system) for system in systems]
    return {
        "numbers": torch.cat(parts("numbers", torch.int64)),
        "masses": torch.cat(parts("masses", dtype)),
        "positions": torch.cat(parts("positions", dtype)),
        "velocities": torch.tensor(np.concatenate(velocities), dtype=dtype),
        "cell": torch.stack(parts("cell", dtype)),
        "pbc": torch.stack(parts("pbc", torch.bool)),
        "charge": torch.tensor(charges, dtype=dtype),
        "atom": torch.cat([torch.arange(len(system)) for system in systems]),
    }
