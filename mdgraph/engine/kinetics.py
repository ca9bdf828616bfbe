"""Kinetic energy, degrees of freedom, temperature, and initial velocities."""

from dataclasses import dataclass

import torch
from torch import Tensor

from mdgraph.engine.integrators import checked_temperature
from mdgraph.engine.random import VELOCITIES, gaussians
from mdgraph.state import State
from mdgraph.units import ACCELERATION, BOLTZMANN, KINETIC_ENERGY


def kinetic_energy(state: State) -> Tensor:
    """Kinetic energy (S,) float64 in eV of the velocities at hand; does not sync."""
    per_atom = state.masses.double() * state.velocities.double().square().sum(-1)
    return 0.5 * KINETIC_ENERGY * state.grouping.sum(per_atom)


@dataclass(frozen=True)
class DegreesOfFreedom:
    """How many quadratic terms of the kinetic energy a system has.

    Attributes:
        count: N_f of each system.
        text: the sum in words, for the log.
    """

    count: tuple[int, ...]
    text: str


def degrees_of_freedom(state: State, conserves_momentum: bool) -> DegreesOfFreedom:
    """Counts 3N - 3 for a centre of mass at rest - 3 for a molecule that does not rotate.

    A centre of mass counts as at rest where the integrator conserves momentum and the
    velocities have none; rotation likewise for systems without periodic directions (2
    instead of 3 for a linear molecule). Syncs.
    """
    counts, texts = [], []
    start = 0
    for number, size in enumerate(state.grouping.sizes):
        part = slice(start, start + size)
        masses = state.masses[part].double().cpu()
        velocities = state.velocities[part].double().cpu()
        positions = state.positions[part].double().cpu()
        start += size
        count, text = 3 * size, f"3 x {size}"
        rounding = 1e-8 if state.dtype == torch.float64 else 1e-4
        still = conserves_momentum and _at_rest(masses, velocities, rounding)
        if still:
            count, text = count - 3, f"{text} - 3 (centre of mass at rest)"
        isolated = not bool(state.pbc[number].any())
        if still and isolated and size > 1:
            arms, _, rank = _rotation(masses, positions)
            spin = torch.linalg.cross(arms, masses[:, None] * velocities).sum(0)
            scale = (masses[:, None] * arms.abs() * velocities.abs()).sum() + 1e-30
            if float(spin.abs().max() / scale) < rounding:
                count, text = count - rank, f"{text} - {rank} (no rotation)"
        counts.append(max(count, 0))
        texts.append(f"{text} = {max(count, 0)}")
    return DegreesOfFreedom(tuple(counts), "; ".join(dict.fromkeys(texts)))


def temperature(energy: Tensor, degrees: Tensor) -> Tensor:
    """Temperature (S,) in K from kinetic energy (S,) eV; 0 without degrees of freedom."""
    return torch.where(degrees > 0, 2.0 * energy / (BOLTZMANN * degrees.clamp(min=1.0)), 0.0)


def draw_velocities_(
    state: State, kelvin: float, exact: bool = False, conserves_momentum: bool = True
) -> None:
    """Draws Maxwell-Boltzmann velocities and removes what should not move.

    The momentum of each system is removed, and the angular momentum of systems without
    periodic directions. The numbers depend on the state's seed alone. Syncs.

    Args:
        state: velocities are overwritten.
        kelvin: temperature.
        exact: scale to exactly this temperature.
        conserves_momentum: of the integrator; decides what `exact` counts, as in
            `degrees_of_freedom`.

    Raises:
        InputError: negative or non-finite temperature.
    """
    kelvin = checked_temperature(kelvin)
    index = state.grouping.index
    zero = torch.zeros((), dtype=torch.int64, device=state.device)
    noise = gaussians(state.seed, zero, state.replica[index], state.atom, VELOCITIES)
    width = torch.sqrt(BOLTZMANN * kelvin * ACCELERATION / state.masses.double())
    drawn = (width[:, None] * noise).cpu()
    start = 0
    for number, size in enumerate(state.grouping.sizes):
        part = slice(start, start + size)
        masses = state.masses[part].double().cpu()
        positions = state.positions[part].double().cpu()
        velocities = drawn[part]
        velocities -= (masses[:, None] * velocities).sum(0) / masses.sum()
        if size > 1 and not bool(state.pbc[number].any()):
            arms, moment, _ = _rotation(masses, positions)
            spin = torch.linalg.cross(arms, masses[:, None] * velocities).sum(0)
            rate = torch.linalg.pinv(moment, hermitian=True, rtol=1e-6) @ spin
            velocities -= torch.linalg.cross(rate.expand_as(arms), arms)
        start += size
    state.velocities.copy_(drawn)
    if exact:
        degrees = degrees_of_freedom(state, conserves_momentum)
        counts = torch.tensor(degrees.count, dtype=torch.float64, device=state.device)
        now = temperature(kinetic_energy(state), counts)
        factor = torch.where(now > 0, torch.sqrt(kelvin / now), 1.0)
        state.velocities *= factor[index][:, None].to(state.dtype)


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
