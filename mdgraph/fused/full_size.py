"""What goes wrong at full size alone: a fast evaluator against itself, on all atoms of a state."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import torch
from torch import Tensor

from mdgraph.evaluators import Evaluator
from mdgraph.fused.agreement import Agreement
from mdgraph.fused.clusters import reordered
from mdgraph.neighbors import NeighborList
from mdgraph.state import State

_SHIFT: Final = 0.005
"""A, RMS of a coordinate's change in one of two steps. Two do 3 meV of work an atom against
20 eV/A^2, a thousand times what float32 energies may be rounded by; what Simpson's rule leaves
out grows with the fifth power, and was 2.5e-7 eV/atom at most on stiff random networks."""

_TRUNCATED: Final = 5e-6
"""eV/atom of missing work that rounding may explain."""

_PARTS: Final = (4.0, 16.0, 64.0, 256.0)
"""How many times shorter steps are that tell what Simpson's rule leaves out."""

_STRAIN: Final = 2e-3
"""Largest strain of a step. Cells grow, so that searches planned for them stay good."""


def with_full_size(
    agreement: Agreement, fast: Evaluator, state: State, lists: Sequence[NeighborList]
) -> Agreement:
    """Counts in how an evaluator contradicts itself on a whole state; reads the device.

    Takes three evaluations, or up to eleven. One has all atoms at other places of the buffers,
    lists and cell, and in other images of it, and must give each the energy and force that it
    had. Two more, on
    a line along which atoms move and cells are strained, must change the energy by the work
    that forces and virial do on the way. And energies of atoms must add up to their system's.

    Args:
        agreement: what the comparison with the reference found.
        fast: what wrote the state.
        state: its workspaces go, as there may not be room for two; all else stays.
        lists: those of the state; others are made with their skins and capacities.
    """
    systems, origin = reordered(state)
    state.workspaces.clear()
    other = State(systems, state.device, state.dtype)
    others = [NeighborList(other, one.cutoff, one.skin, one.capacity) for one in lists]
    fast.evaluate_(other, others)
    index = torch.from_numpy(origin).to(state.device)
    force = (other.forces - state.forces[index], state.forces[index])
    energy = (other.energies - state.energies[index]).abs()
    virial = (other.virial - state.virial).abs().amax((-2, -1)) / state.grouping.counts
    found = agreement.including(origin, energy, force, virial)
    total = (state.energy - state.grouping.sum(state.energies)).abs().sum() / len(index)
    work, parts = _missing_work(fast, other, others)
    return replace(
        found,
        energy=float(np.maximum(found.energy, float(total))),
        work=work,
        work_rounding=parts,
    )


def _missing_work(
    fast: Evaluator, state: State, lists: Sequence[NeighborList]
) -> tuple[float, float]:
    """eV/atom by which energies change otherwise than forces and virial say; moves the state.

    Along x(s) = (x + s u)(1 + s e) and h(s) = h (1 + s e), the energy falls by
    F u (1 + s e) + W : e / (1 + s e) for each s, and Simpson's rule sums that from 0 to 2.
    Systems count without their signs.

    What Simpson's rule leaves out falls with the fifth power of u and e, and the work of a
    wrong force with the first. So where much is missing, steps of a quarter tell which it is:
    what the rule leaves out falls, times the part, and what a force misses stays as it is while
    steps get shorter twice.

    Returns:
        The work, and how many times the rounding of energies counts in it.
    """
    start = _Start(state)

    def missing(part: float) -> float:
        return part * start.missing_work(fast, state, lists, 1.0 / part)

    works = [missing(1.0)]
    if works[0] <= _TRUNCATED:
        return works[0], 1.0
    works += [missing(part) for part in _PARTS]
    stays = [
        not min(works[place + 1 : place + 3], default=math.inf) < 0.5 * work
        for place, work in enumerate(works)
    ]
    place = stays.index(True)
    return works[place], (1.0, *_PARTS)[place]


class _Start:
    """A state before it is moved, as `_missing_work` does.

    Attributes:
        positions, cell: of the state.
        forces, virial, energy: what the evaluator wrote there.
    """

    def __init__(self, state: State) -> None:
        self.positions, self.cell, self.forces, self.virial, self.energy = (
            one.to(torch.float64, copy=True)
            for one in (state.positions, state.cell, state.forces, state.virial, state.energy)
        )

    def missing_work(
        self, fast: Evaluator, state: State, lists: Sequence[NeighborList], size: float
    ) -> float:
        """eV/atom, by two steps of a size."""
        group = state.grouping
        shift, strain = (size * part for part in _direction(group.atoms, state.device))
        work = torch.zeros_like(self.energy)
        forces, virial = self.forces, self.virial
        for step, weight in enumerate((1 / 3, 4 / 3, 1 / 3)):
            deformation = torch.eye(3, dtype=torch.float64, device=state.device) + step * strain
            if step:
                state.positions.copy_((self.positions + step * shift) @ deformation)
                state.cell.copy_(self.cell @ deformation)
                for one in lists:
                    one.update_(state.positions, state.cell)
                    if not one.status().complete:
                        one.grow()
                fast.evaluate_(state, lists)
                forces, virial = state.forces.double(), state.virial
            by_forces = (forces * (shift @ deformation)).sum(-1)
            rate = torch.linalg.solve(deformation, strain)
            work += weight * (group.sum(by_forces) + (virial * rate).sum((-2, -1)))
        return float((state.energy - self.energy + work).abs().sum()) / group.atoms


def _direction(atoms: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Shifts (N, 3) A of atoms and the strain (3, 3) of all cells; random but repeatable."""
    rng = np.random.default_rng(0)
    shift = np.sqrt(3) * _SHIFT * rng.uniform(-1.0, 1.0, (atoms, 3))
    strain = _STRAIN * rng.uniform(0.5, 1.0, (3, 3))
    return torch.tensor(shift, device=device), torch.tensor((strain + strain.T) / 2, device=device)
