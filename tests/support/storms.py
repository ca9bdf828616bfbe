"""Simulations whose lists overflow, or whose forces fail, at chosen steps."""

from collections.abc import Sequence
from types import SimpleNamespace

import torch
from toys import HarmonicWells, argon

from mdgraph.engine import LangevinMiddle, Simulation, VelocityVerlet
from mdgraph.engine.run_loop import RunLoop
from mdgraph.neighbors import NeighborList
from mdgraph.state import State


def deep(run: Simulation, depth: int = 2) -> Simulation:
    """Launches several chunks before it reads the first, as on CUDA."""
    run._run_loop = RunLoop(run, run.maximum_temperature, depth)
    return run


class OverflowingList:
    """Stands for a list: steps on its plan make it overflow, each of them once.

    Until it is grown, what it lists is wrong.
    """

    cutoff = skin = 0.0

    def __init__(self, state: State, plan: Sequence[int]) -> None:
        self.reference_positions = state.positions.clone()
        self.reference_cell = state.cell.clone()
        self.rebuilds = torch.zeros((), dtype=torch.int64)
        self.growths = 0
        self._state = state
        self._sticky = torch.zeros(4, dtype=torch.int64)
        self._plan = set(plan)

    def sticky(self) -> torch.Tensor:
        return self._sticky

    def status_of(self, found: int, *others: int) -> SimpleNamespace:
        return SimpleNamespace(complete=not found, insufficient=False)

    def status(self) -> SimpleNamespace:
        return self.status_of(*self._sticky.tolist())

    def update_(self, positions: torch.Tensor, cell: torch.Tensor, *, joined: bool = True) -> None:
        step = int(self._state.step) + 1
        if step in self._plan and not self._sticky[0]:
            self._plan.remove(step)
            self._sticky[0] = 1

    def rebuild_(self, positions: torch.Tensor, cell: torch.Tensor) -> None:
        self.rebuilds += 1

    def join(self) -> None:
        pass

    def grow(self) -> None:
        self._sticky.zero_()
        self.growths += 1


class ListedWells(HarmonicWells):
    """Wells that turn into hills while a list is not complete."""

    def evaluate_(self, state: State, lists: Sequence[NeighborList]) -> None:
        super().evaluate_(state, lists)
        for one in lists:
            state.forces.mul_(1 - 3 * one.sticky()[0])


def storm(plan: Sequence[int], chunk: int, depth: int) -> Simulation:
    system = argon(1)
    wells = ListedWells(torch.tensor(system.positions), 0.5)
    options = {"device": "cpu", "chunk": chunk, "temperature": 300.0}
    run = Simulation(system, wells, VelocityVerlet(2.0), **options)  # type: ignore[arg-type]
    run.calculation.lists.append(OverflowingList(run.state, plan))  # type: ignore[arg-type]
    return deep(run, depth)


def broken(at: int, depth: int) -> Simulation:
    """Forces that are no numbers from a step on."""

    class Broken(HarmonicWells):
        def evaluate_(self, state: State, lists: Sequence[NeighborList]) -> None:
            super().evaluate_(state, lists)
            bad = torch.where(state.step == at - 1, torch.nan, state.forces[2])
            state.forces[2] = bad

    system = argon(1)
    wells = Broken(torch.tensor(system.positions), 1.0)
    run = Simulation(system, wells, LangevinMiddle(1.0, 300.0), device="cpu", chunk=5)
    return deep(run, depth)
