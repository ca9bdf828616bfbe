"""Observables of frames that exist: trajectories go through the same code as steps of a run."""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mdgraph.engine.calculation import Calculation
from mdgraph.engine.integrators import VelocityVerlet
from mdgraph.engine.observables.averages import UNITS, AveragesResult, BlockAverages
from mdgraph.engine.observables.base import OnlineObservable, OnlineObservables
from mdgraph.evaluators import Evaluator
from mdgraph.io.trajectories import Frame
from mdgraph.neighbors import NeighborList, PairBlock, Pairs
from mdgraph.state import State
from mdgraph.system import System

_MOST_ATOMS: Final = 1000
"""Beyond, vectors between all atoms take too much memory, and a list of bins is as fast."""


class _NoForces(Evaluator):
    """Leaves energies and forces alone, which frames bring."""

    def evaluate_(self, state: State, lists: Sequence[NeighborList]) -> None:
        """See Evaluator; leaves the state as it is."""


class _FramePairs(NeighborList):
    """All pairs of a frame within a range.

    Consecutive frames lie far apart, so nothing of a list serves the next frame. Where the range is
    at most half of the cell, and atoms are few, the nearest image of each pair is taken at once,
    which is 20 times faster than a search through all images.
    """

    def __init__(self, state: State, cutoff: float) -> None:
        """Builds the list of the current positions."""
        super().__init__(state, cutoff)
        self._periodic = bool(state.pbc.all())
        self._by_images = False

    def update_(self, positions: Tensor, cell: Tensor, *, joined: bool = True) -> None:
        """See NeighborList."""
        self._by_images = len(positions) <= _MOST_ATOMS and self._periodic
        if self._by_images:
            inverse = torch.linalg.inv(cell[0])
            height = 1.0 / torch.linalg.vector_norm(inverse, dim=0).max()
            self._by_images = self.cutoff <= 0.5 * float(height)
        if not self._by_images:
            super().update_(positions, cell, joined=joined)

    def pairs(self, positions: Tensor, cell: Tensor) -> Pairs:
        """See NeighborList; rows of all atoms if nearest images are taken."""
        if not self._by_images:
            return super().pairs(positions, cell)
        vectors = positions[None] - positions[:, None]
        vectors = vectors - (vectors @ torch.linalg.inv(cell[0])).round() @ cell[0]
        atoms = len(positions)
        index = torch.arange(atoms).expand(atoms, atoms)
        valid = index != torch.arange(atoms)[:, None]
        count = valid.sum(1)
        return Pairs((PairBlock(vectors, index, valid),), index, count, index.T, self.cutoff)


class FrameReplay:
    """Gives evenly spaced frames to observables as if a run were at them, on a CPU in float64.

    A frame is the state after `interval` more steps, so observables with that interval record each
    frame and return what they would have recorded within the run, up to the rounding of frames.

    Attributes:
        calculation: holds the state and the neighbor lists of the current frame.
    """

    def __init__(
        self,
        system: System,
        observables: Sequence[OnlineObservable],
        *,
        interval: int,
        timestep: float,
        cutoff: float | None = None,
        anchored: bool = False,
    ) -> None:
        """Attaches the observables.

        Args:
            system: the atoms, at any frame.
            observables: with `every` equal to `interval`.
            interval: steps from one frame to the next.
            timestep: fs.
            cutoff: A, of the neighbor list that distributions count from; None for no list.
            anchored: whether atoms were fixed or restrained. Displacements and velocities are then
                not relative to the centre of mass.

        Raises:
            InputError: the system is not one that an observable can record.
        """
        self.calculation = Calculation([system], _NoForces(), device="cpu", precision="double")
        state = self.calculation.state
        if cutoff is not None:
            self.calculation.lists = [_FramePairs(state, cutoff)]
        state.fixed.fill_(anchored)
        integrator = VelocityVerlet(timestep)
        integrator.allocate(state)
        self._observables = OnlineObservables(observables, self.calculation, integrator)
        self._interval = interval

    def add(self, frame: Frame) -> None:
        """Records one frame; its atoms are those of the system."""
        self.record(frame.positions, frame.cell, frame.velocities)

    def record(
        self,
        positions: NDArray[np.float64],
        cell: NDArray[np.float64],
        velocities: NDArray[np.float64] | None = None,
    ) -> None:
        """Records positions (N, 3) in A, a cell (3, 3) in A and velocities (N, 3) in A/fs."""
        state = self.calculation.state
        state.positions.copy_(torch.from_numpy(positions))
        if velocities is not None:
            state.velocities.copy_(torch.from_numpy(velocities))
        state.cell[0] = torch.from_numpy(cell)
        state.step += self._interval
        if self.calculation.lists:
            self.calculation.compute()
        self._observables.record_()


class NumberAverages:
    """Averages of numbers that frames hold, with the errors from blocks of `Averages`."""

    def __init__(self, quantities: Sequence[str], *, every: int = 1) -> None:
        """Allocates.

        Args:
            quantities: names from `UNITS` of `mdgraph.engine.observables.averages`.
            every: steps from one frame to the next, for the result.
        """
        self.quantities = tuple(quantities)
        assert set(self.quantities) <= set(UNITS)
        self._every = every
        self._blocks = BlockAverages((1, len(self.quantities)), torch.device("cpu"))
        self._samples = torch.zeros((), dtype=torch.int64)
        self._due = torch.ones((), dtype=torch.bool)

    def add(self, values: Mapping[str, float]) -> None:
        """Adds the numbers of one frame by their names, in the units of `UNITS`."""
        row = [[values[name] for name in self.quantities]]
        self._blocks.add_(torch.tensor(row, dtype=torch.float64), self._samples, self._due)
        self._samples += 1

    def result(self) -> AveragesResult:
        """Means and errors of all frames so far, at least one."""
        samples = int(self._samples)
        return AveragesResult(
            samples=samples,
            every=self._every,
            quantities=self.quantities,
            blocked=self._blocks.read(samples),
        )
