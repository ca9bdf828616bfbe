"""What the host learns of an evaluation, by one read of the device."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mdgraph.neighbors import NeighborList
from mdgraph.neighbors.list import hold_all
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
    the device idle in between. On CUDA the buffers of the host are pinned.

    Attributes:
        energy: (S,) float64, eV; as all that follows, of the last copies, and gone with the next.
        virial: (S, 3, 3) float64, eV.
        energies: (N,) float64, eV.
        forces: (N, 3) in the type of the state, eV/A.
    """

    def __init__(self, state: State, lists: Sequence[NeighborList]) -> None:
        """Allocates on the host.

        Args:
            state: what is read.
            lists: those it was evaluated with.
        """
        self._state, self._lists = state, lists
        self._on_gpu = state.device.type == "cuda"
        self._results = [self._here(one) for one in state.results]
        self._counts = [self._here(one.sticky()) for one in lists]
        self.energy = self._view(state.energy)
        self.virial = self._view(state.virial)
        self.energies = self._view(state.energies)
        self.forces = self._view(state.forces)

    def _here(self, there: Tensor) -> Tensor:
        return torch.zeros_like(there, device="cpu", pin_memory=self._on_gpu)

    def _view(self, there: Tensor) -> NDArray[Any]:
        """The copy of a tensor that is one of the state's results, or part of one."""
        begins = [one.untyped_storage().data_ptr() for one in self._state.results]
        here = self._results[begins.index(there.untyped_storage().data_ptr())]
        shape, strides, start = there.shape, there.stride(), there.storage_offset()
        return here.as_strided(shape, strides, start).numpy()

    def copy_(self) -> None:
        """Launches the copies, as a graph may; does not sync."""
        counts = [one.sticky() for one in self._lists]
        there, here = [*self._state.results, *counts], [*self._results, *self._counts]
        for target, source in zip(here, there, strict=True):
            target.copy_(source, non_blocking=True)

    def wait(self) -> bool:
        """Whether every pair found its slot; syncs once, with the current stream alone."""
        if self._on_gpu:
            # The state's own device may have no index, and then means whichever is current.
            torch.cuda.current_stream(self._state.results[0].device).synchronize()
        return hold_all(self._lists, [counted.tolist() for counted in self._counts])

    @property
    def finite(self) -> bool:
        """Whether all that was read is."""
        return all(math.isfinite(one.sum(dtype=torch.float64)) for one in self._results)

    def results(self, count: int) -> list[Result]:
        """Copies for the first systems."""
        sizes = self._state.grouping.sizes[:count]
        return [
            Result(
                float(self.energy[place]),
                self.energies[end - size : end].copy(),
                self.forces[end - size : end].astype(np.float64),
                self.virial[place].copy(),
            )
            for place, (end, size) in enumerate(zip(accumulate(sizes), sizes, strict=True))
        ]
