"""Initial velocities, degrees of freedom, and hydrogen mass repartitioning."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import torch
from torch import Tensor

from mdgraph.arguments import checked
from mdgraph.engine.kinetics import kinetic_energy, temperature
from mdgraph.engine.random import VELOCITIES, gaussians
from mdgraph.engine.schedules import Schedule
from mdgraph.errors import InputError, name_some
from mdgraph.neighbors import NeighborList
from mdgraph.state import State
from mdgraph.system import System
from mdgraph.units import ACCELERATION, BOLTZMANN


@dataclass(frozen=True)
class DegreesOfFreedom:
    """Degrees of freedom of each system, which its temperature is computed with.

    Attributes:
        count: N_f of each system.
        text: how N_f was counted, for the log.
    """

    count: tuple[int, ...]
    text: str


@dataclass(frozen=True)
class Conserved:
    """Momenta that the dynamics conserve in systems without fixed or restrained atoms.

    Attributes:
        momentum: whether total momentum is conserved.
        rotation: whether the angular momentum of a molecule without periodic directions is.
        restrained: for each system, whether restraints act in it; empty for no restraints.
    """

    momentum: bool
    rotation: bool
    restrained: Sequence[bool] = ()

    def momenta(self, fixed: Sequence[int]) -> list[bool]:
        """Whether momentum is conserved in each system, by its number of fixed atoms."""
        restrained = self.restrained or [False] * len(fixed)
        return [
            self.momentum and not (springs or count)
            for springs, count in zip(restrained, fixed, strict=True)
        ]


FREE: Final = Conserved(momentum=True, rotation=True)
"""Dynamics without a bath and without restraints."""


def degrees_of_freedom(state: State, conserved: Conserved) -> DegreesOfFreedom:
    """Counts 3 (N - fixed), less 3 for a centre of mass at rest, less 3 for no rotation.

    The centre of mass is at rest if its momentum is zero and conserved. A system without
    periodic directions does not rotate if its angular momentum is, which is 2 instead of 3 for
    two atoms. More atoms on a line bend from the first step on, and their angular momentum about
    that line, which is zero on it, stays so. Syncs.
    """
    counts, texts = [], []
    rounding = 1e-8 if state.dtype == torch.float64 else 1e-4
    columns = [
        getattr(state, name).double().cpu() for name in ("masses", "velocities", "positions")
    ]
    rows = zip(*[tensor.split(state.grouping.sizes) for tensor in columns], strict=True)
    fixed, periodic = fixed_atoms(state), state.pbc.any(1).tolist()
    momentum_conserved = conserved.momenta(fixed)
    for number, (masses, velocities, positions) in enumerate(rows):
        size = len(masses)
        count, text = 3 * (size - fixed[number]), f"3 x {size}"
        if fixed[number]:
            text = f"3 x ({size} - {fixed[number]} fixed)"
        at_rest = momentum_conserved[number] and _at_rest(masses, velocities, rounding)
        if at_rest:
            count, text = count - 3, f"{text} - 3 (centre of mass at rest)"
        isolated = not periodic[number]
        if at_rest and conserved.rotation and isolated and size > 1:
            arms, _, _ = _rotation(masses, positions)
            spin = torch.linalg.cross(arms, masses[:, None] * velocities).sum(0)
            scale = (masses[:, None] * arms.abs() * velocities.abs()).sum() + 1e-30
            if float(spin.abs().max() / scale) < rounding:
                rank = min(size, 3)
                count, text = count - rank, f"{text} - {rank} (no rotation)"
        counts.append(max(count, 0))
        texts.append(f"{text} = {max(count, 0)}")
    return DegreesOfFreedom(tuple(counts), "; ".join(dict.fromkeys(texts)))


def draw_velocities_(
    state: State,
    kelvin: float | Sequence[float],
    exact: bool = False,
    conserved: Conserved = FREE,
    keep: Sequence[bool] = (),
) -> None:
    """Draws Maxwell-Boltzmann velocities without momentum.

    The momentum of each system is removed, and the angular momentum of systems without
    periodic directions, unless the system has fixed atoms, which stay at rest, or restrained
    ones. The random numbers depend only on the state's seed. Syncs.

    Args:
        state: velocities are overwritten.
        kelvin: temperature, or one for each system.
        exact: scale to exactly this temperature.
        conserved: by the dynamics; `exact` counts degrees of freedom by it.
        keep: for each system, whether it keeps its velocities; empty for none.

    Raises:
        InputError: negative or non-finite temperature.
    """
    index = state.grouping.index
    kelvins = Schedule("temperature", kelvin).tensor(state.grouping.systems)[0].to(state.device)
    zero = torch.zeros((), dtype=torch.int64, device=state.device)
    noise = gaussians(state.seed, zero, state.replica[index], state.atom, VELOCITIES)
    width = torch.sqrt(BOLTZMANN * ACCELERATION * kelvins[index] * state.inverse_masses.double())
    draws = (width[:, None] * noise).cpu()
    columns = [state.masses.double().cpu(), draws, state.positions.double().cpu()]
    rows = zip(*[tensor.split(state.grouping.sizes) for tensor in columns], strict=True)
    free = replace(conserved, momentum=True).momenta(fixed_atoms(state))
    periodic = state.pbc.any(1).tolist()
    for number, (masses, own, positions) in enumerate(rows):
        if not free[number]:
            continue
        own.sub_((masses[:, None] * own).sum(0) / masses.sum())
        if len(masses) > 1 and not periodic[number]:
            arms, moment, rank = _rotation(masses, positions)
            spin = torch.linalg.cross(arms, masses[:, None] * own).sum(0)
            rate = torch.linalg.pinv(moment, hermitian=True, rtol=1e-6) @ spin
            own.sub_(torch.linalg.cross(rate.expand_as(arms), arms))
            if rank < min(len(masses), 3):  # on a line, of which one more velocity is left
                own.mul_(((3 * len(masses) - 6) / (3 * len(masses) - 5)) ** 0.5)
    mask = torch.tensor(list(keep) or [False] * state.grouping.systems, device=state.device)[index]
    before = state.velocities.clone()
    state.velocities.copy_(draws)
    if exact:
        degrees = degrees_of_freedom(state, conserved)
        counts = torch.tensor(degrees.count, dtype=torch.float64, device=state.device)
        kelvins_now = temperature(kinetic_energy(state), counts)
        factor = torch.where(kelvins_now > 0, torch.sqrt(kelvins / kelvins_now), 1.0)
        state.velocities *= factor[index][:, None].to(state.dtype)
    state.velocities.copy_(torch.where(mask[:, None], before, state.velocities))


def fixed_atoms(state: State) -> list[int]:
    """How many atoms of each system are fixed; syncs."""
    count: list[int] = state.grouping.sum(state.fixed.to(torch.int64)).tolist()
    return count


def _at_rest(masses: Tensor, velocities: Tensor, rounding: float) -> bool:
    momentum = (masses[:, None] * velocities).sum(0).abs().max()
    return bool(momentum <= rounding * (masses[:, None] * velocities.abs()).sum() + 1e-30)


def _rotation(masses: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, int]:
    """Arms from the centre of mass, tensor of inertia, and its rank (2 if linear)."""
    arms = positions - (masses[:, None] * positions).sum(0) / masses.sum()
    weighted = masses[:, None, None] * arms[:, :, None] * arms[:, None]
    second = weighted.sum(0)
    moment = torch.eye(3, dtype=second.dtype) * second.trace() - second
    values = torch.linalg.eigvalsh(moment)
    return arms, moment, int((values > 1e-6 * values.max()).sum())


_BOND: Final = 1.7
"""A, longest bond of a hydrogen to a heavy atom."""

_LEAST: Final = 1.0
"""amu, smallest mass that is left to a heavy atom."""


@checked
def repartitioned(system: System, hydrogen_mass: float = 3.024) -> System:
    """A copy in which every hydrogen is heavier, by mass of the nearest heavy atom.

    The total mass and every average over positions stay the same; vibrations of hydrogen slow
    down by about the square root of the ratio of masses. DOI 10.1021/ct5010406.

    Args:
        system: its hydrogens that have this mass or more stay as they are.
        hydrogen_mass: amu.

    Raises:
        InputError: a hydrogen with no heavy atom within 1.7 A, or a heavy atom that would
            keep less than 1 amu.
    """
    if not (np.isfinite(hydrogen_mass) and hydrogen_mass > 0.0):
        raise InputError(f"The mass of hydrogen is {hydrogen_mass} amu; give one above zero.")
    light = np.flatnonzero((system.numbers == 1) & (system.masses < hydrogen_mass))
    state = State([system])
    blocks = NeighborList(state, _BOND).pairs(state.positions, state.cell).blocks
    index = torch.cat([block.index for block in blocks], dim=1).numpy()
    vectors = torch.cat([block.vectors.detach() for block in blocks], dim=1)
    valid = torch.cat([block.valid for block in blocks], dim=1).numpy()
    distance = torch.linalg.vector_norm(vectors, dim=-1).numpy()
    bonded = valid & (system.numbers[index] != 1)
    distance = np.where(bonded, distance, np.inf)[light]
    alone = light[~np.isfinite(distance).any(axis=1)]
    if len(alone):
        raise InputError(
            f"Hydrogens {name_some(alone.tolist())} have no heavy atom within {_BOND} A to take "
            "mass from; keep the masses, or repair the structure."
        )
    heavy = index[light, distance.argmin(axis=1)]
    masses = system.masses.copy()
    np.subtract.at(masses, heavy, hydrogen_mass - masses[light])
    masses[light] = hydrogen_mass
    poor = np.unique(heavy[masses[heavy] < _LEAST])
    if len(poor):
        raise InputError(
            f"Atoms {name_some(poor.tolist())} would keep less than {_LEAST} amu; "
            "give hydrogen a smaller mass."
        )
    return system.replace(masses=masses)
