"""Kinetic energy, temperature and pressure of a state."""

import torch
from torch import Tensor

from mdgraph.engine import kernels
from mdgraph.state import State
from mdgraph.units import BOLTZMANN, KINETIC_ENERGY


def kinetic_energy(state: State, velocities: Tensor | None = None) -> Tensor:
    """Kinetic energy (S,) float64 in eV; does not sync.

    Args:
        state: its masses count.
        velocities: (N, 3) A/fs; those of the state unless given.
    """
    velocities = state.velocities if velocities is None else velocities
    if kernels.run_on(state.device):
        from mdgraph.engine.kernels import sums

        return sums.kinetic_energy(state, velocities)
    per_atom = state.masses.double() * velocities.double().square().sum(-1)
    return 0.5 * KINETIC_ENERGY * state.grouping.sum(per_atom)


def kinetic_tensor(state: State) -> Tensor:
    """Sum of m v (x) v over atoms, (S, 3, 3) float64 in eV; its trace is 2K. Does not sync."""
    if kernels.run_on(state.device):
        from mdgraph.engine.kernels import sums

        return sums.kinetic_tensor(state)
    velocities = state.velocities.double()
    weighted = state.masses.double()[:, None] * velocities
    return KINETIC_ENERGY * state.grouping.sum(weighted[:, :, None] * velocities[:, None])


def volume(state: State) -> Tensor:
    """Volume (S,) float64 in A^3; 0 where three vectors do not span one. Does not sync."""
    first, second, third = state.cell.double().unbind(-2)
    return (torch.linalg.cross(first, second) * third).sum(-1).abs()


def pressure(state: State, kinetic: Tensor) -> Tensor:
    """P = (2K + trace W) / 3V, (S,) float64 in eV/A^3; NaN without a volume. Does not sync.

    Args:
        state: its virial and cell count.
        kinetic: K, (S,) eV.
    """
    space = volume(state)
    twice = 2.0 * kinetic + state.virial.diagonal(dim1=-2, dim2=-1).sum(-1)
    return torch.where(space > 0.0, twice / (3.0 * space), torch.nan)


def remove_momentum_(state: State, wanted: Tensor | None = None) -> None:
    """Takes the velocity of its centre of mass off each system; does not sync.

    Args:
        state: its velocities are changed.
        wanted: () bool on the device, whether to do anything; it is done unless given.
    """
    wanted = torch.ones((), dtype=torch.bool, device=state.device) if wanted is None else wanted
    if kernels.run_on(state.device):
        from mdgraph.engine.kernels import sums

        sums.remove_momentum_(state, wanted)
        return
    masses = state.masses.double()[:, None]
    momentum = state.grouping.sum(masses * state.velocities.double())
    drift = momentum / state.grouping.sum(masses)
    state.velocities -= state.grouping.spread(drift * wanted).to(state.dtype)


def temperature(energy: Tensor, degrees: Tensor) -> Tensor:
    """Temperature (S,) in K from kinetic energy (S,) eV; 0 without degrees of freedom."""
    return torch.where(degrees > 0, 2.0 * energy / (BOLTZMANN * degrees.clamp(min=1.0)), 0.0)
