"""What goes wrong at full size alone: a fast evaluator against itself, on all atoms of a state."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import torch
from torch import Tensor

from mdgraph.evaluators import Evaluator
from mdgraph.fused.agreement import SHIFT, STRAIN, Agreement
from mdgraph.fused.clusters import reordered
from mdgraph.neighbors import NeighborList
from mdgraph.state import State

_TRUNCATED: Final = 5e-6
"""eV/atom of missing work that rounding may explain."""

_PARTS: Final = (4.0, 16.0, 64.0, 256.0, 1024.0)
"""How many times shorter steps are that tell what Simpson's rule leaves out."""

_ALIKE: Final = 0.3
"""By how much of one the works of a wrong force differ between steps."""


def with_full_size(
    agreement: Agreement, fast: Evaluator, state: State, lists: Sequence[NeighborList]
) -> Agreement:
    """Counts in how an evaluator contradicts itself on a whole state; reads the device.

    Takes three evaluations, or up to thirteen. One has all atoms at other places of the buffers,
    lists and cell, and in other images of it, and must give each the energy and force that it
    had. Two more, on a line along which atoms move and cells are strained, must change the
    energy by the work that forces and virial do on the way. And energies of atoms must add up
    to their system's.

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
    return replace(
        found,
        energy=float(np.maximum(found.energy, float(total))),
        works=_missing_works(fast, other, others),
    )


def _missing_works(
    fast: Evaluator, state: State, lists: Sequence[NeighborList]
) -> tuple[tuple[float, float], ...]:
    """What energies change otherwise than forces and virial say; moves the state.

    Along x(s) = (x + s u)(1 + s e) and h(s) = h (1 + s e), the energy falls by
    F u (1 + s e) + W : e / (1 + s e) for each s, and Simpson's rule sums that from 0 to 2.

    The work of a wrong force falls with u and e, and what Simpson's rule leaves out with the
    fifth power: 2.5e-7 eV/atom at most on stiff random networks, but far more where atoms nearly
    touch. So where much is missing, shorter steps tell which it is. Each is multiplied by how
    many times it is shorter: of a wrong force three then are alike.

    Returns:
        By how many times steps were shorter, and eV/atom that were missing, times that; where
        three were alike, the first of them alone.
    """
    start = _Start(state)
    works: list[Tensor] = []
    sizes: list[tuple[float, float]] = []
    for part in (1.0, *_PARTS):
        works.append(part * start.missing_work(fast, state, lists, 1.0 / part))
        sizes.append((part, float(works[-1].abs().sum()) / state.grouping.atoms))
        if sizes[-1][1] <= _TRUNCATED:
            break
        if len(works) > 2 and _alike(*works[-3:-1]) and _alike(*works[-2:]):
            return (sizes[-3],)
    return tuple(sizes)


def _alike(longer: Tensor, shorter: Tensor) -> bool:
    return bool((longer - shorter).abs().sum() <= _ALIKE * shorter.abs().sum())


class _Start:
    """A state before it is moved, as `_missing_works` does.

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
    ) -> Tensor:
        """(S,) eV, of each system, by two steps of a size."""
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
        return state.energy - self.energy + work


def _direction(atoms: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Shifts (N, 3) A of atoms and the strain (3, 3) of all cells; random but repeatable."""
    rng = np.random.default_rng(0)
    shift = np.sqrt(3) * SHIFT * rng.uniform(-1.0, 1.0, (atoms, 3))
    strain = STRAIN * rng.uniform(0.5, 1.0, (3, 3))
    return torch.tensor(shift, device=device), torch.tensor((strain + strain.T) / 2, device=device)
