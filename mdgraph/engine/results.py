"""What the host learns of an evaluation, by one read of the device."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mdgraph.neighbors import NeighborList
from mdgraph.state import State

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Result:
    """What a potential says about a structure, on the host.

    Attributes:
        energy: eV.
        energies: (N,) float64, eV, shares of the atoms.
        forces: (N, 3) float64, eV/A.
        virial: (3, 3) float64, eV.
        info: what else is known of the structure, by its name in files.
        arrays: (N,) what else is known of its atoms, likewise.
    """

    energy: float
    energies: Array
    forces: Array
    virial: Array
    info: Mapping[str, float] = field(default_factory=dict)
    arrays: Mapping[str, Array] = field(default_factory=dict)


class Answer:
    """Copies of a state's results and of what its lists counted, which arrive together.

    A host that waits for the device twice, first for the lists and then for the forces, leaves
    the device idle in between. On CUDA the buffer of the host is pinned.

    Attributes:
        energy: (S,) float64, eV; as all that follows, of the last `read`, and gone with the next.
        virial: (S, 3, 3) float64, eV.
        energies: (N,) float64, eV.
        forces: (N, 3) float64, eV/A.
    """

    def __init__(self, state: State, lists: Sequence[NeighborList]) -> None:
        """Allocates, 8 bytes a number on either side.

        Args:
            state: what is read.
            lists: those it was evaluated with.
        """
        self._state, self._lists = state, lists
        sizes = [one.numel() for one in self._sources()]
        on_gpu = state.device.type == "cuda"
        there = torch.zeros(sum(sizes), dtype=torch.float64, device=state.device)
        self._here = torch.zeros(sum(sizes), dtype=torch.float64, pin_memory=on_gpu)
        self._there, self._places = there, there.split(sizes)
        counts, self.energy, virial, self.energies, forces = (
            one.numpy() for one in self._here.split([3 * len(lists), *sizes[len(lists) :]])
        )
        self._counts = counts.reshape(-1, 3)
        self.virial, self.forces = virial.reshape(-1, 3, 3), forces.reshape(-1, 3)

    def _sources(self) -> list[Tensor]:
        state = self._state
        found = [state.energy, state.virial, state.energies, state.forces]
        return [one.sticky() for one in self._lists] + found

    def read(self) -> bool:
        """Whether every pair found its slot; syncs once, with the current stream alone."""
        # Launched while the device still evaluates, so these cost the host nothing.
        for place, source in zip(self._places, self._sources(), strict=True):
            place.copy_(source.flatten())
        self._here.copy_(self._there, non_blocking=True)
        if self._there.is_cuda:
            torch.cuda.current_stream(self._there.device).synchronize()
        seen = zip(self._lists, self._counts.astype(np.int64).tolist(), strict=True)
        return all(one.status_of(*counts).complete for one, counts in seen)

    @property
    def finite(self) -> bool:
        """Whether all that was read is."""
        return bool(np.isfinite(self._here.sum().item()))

    def results(self, count: int) -> list[Result]:
        """Copies for the first systems."""
        sizes = self._state.grouping.sizes[:count]
        return [
            Result(
                float(self.energy[place]),
                self.energies[end - size : end].copy(),
                self.forces[end - size : end].copy(),
                self.virial[place].copy(),
            )
            for place, (end, size) in enumerate(zip(accumulate(sizes), sizes, strict=True))
        ]
