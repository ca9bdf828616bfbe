"""Frames of replicas of one system, and what they tell: displacements, diffusion, dihedrals."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from multiple_time_steps import Array

from mdgraph.biases.geometry import dihedrals
from mdgraph.engine import Simulation
from mdgraph.errors import InputError
from mdgraph.state import systems_of
from mdgraph.system import System
from mdgraph.units import BOLTZMANN, KINETIC_ENERGY


@dataclass
class Frames:
    """A Reporter of atoms of S equal systems, relative to the centre, and of temperatures."""

    interval: int
    atoms: Sequence[int]
    start: int = 0
    places: list[Array] = field(default_factory=list)
    kelvin: list[Array] = field(default_factory=list)
    held: Array | None = None
    change: Array | None = None

    def keep(self, alive: Array) -> None:
        """Forgets all systems but these."""
        self.places = [own[alive] for own in self.places]
        self.kelvin = [own[alive] for own in self.kelvin]

    def of_all(self, values: Array) -> list[float | None]:
        """Values of the systems that held, in the places of all; None of others."""
        if self.held is None:
            return list(values.tolist())
        known = dict(zip(np.flatnonzero(self.held).tolist(), values.tolist(), strict=True))
        return [known.get(place) for place in range(len(self.held))]

    def report(self, simulation: Simulation) -> None:
        """See Reporter."""
        if simulation.step <= self.start:
            return
        state = simulation.state
        systems = len(state.cell)
        places = state.places().view(systems, -1, 3)
        masses = state.masses.double().view(systems, -1, 1)
        places = places - (masses * places).sum(1, keepdim=True) / masses.sum(1, keepdim=True)
        self.places.append(places[:, list(self.atoms)].cpu().numpy())
        squares = masses * state.velocities.double().view(systems, -1, 3).square()
        kelvin = KINETIC_ENERGY / BOLTZMANN * squares.sum((1, 2)) / state.degrees
        self.kelvin.append(kelvin.cpu().numpy())


def displacements(places: Array, most: int) -> Array:
    """Mean squared displacements (L, S), A^2, of frames (F, S, n, 3) at lags of 1 to L frames."""
    lags = range(1, min(most, len(places) - 1) + 1)
    squares = [((places[lag:] - places[:-lag]) ** 2).sum(-1).mean((0, 2)) for lag in lags]
    return np.array(squares)


def diffusion_of(squares: Array, spacing: float, lags: Sequence[float]) -> Array:
    """D (S,), A^2/ps, of mean squared displacements at lags that are `spacing` ps apart."""
    times = spacing * np.arange(1, len(squares) + 1)
    inside = (times >= lags[0]) & (times <= lags[1])
    if inside.sum() < 2:
        raise InputError(f"Frames of {times[-1]:g} ps have no two lags between {lags} ps.")
    slopes: Array = np.polyfit(times[inside], squares[inside], 1)[0] / 6.0
    return slopes


def angles_of(places: Array) -> Array:
    """Dihedrals (F, S), degrees, of points (F, S, 4, 3)."""
    vectors = torch.tensor(np.diff(places, axis=2))
    values: Array = np.degrees(dihedrals(vectors)[0].numpy())
    return values


def moving(simulation: Simulation) -> list[System]:
    """The systems as they are, with velocities."""
    state = simulation.state
    velocities = state.velocities.double().cpu().split(state.grouping.sizes)
    return [
        system.replace(velocities=own.numpy())
        for system, own in zip(systems_of(state), velocities, strict=True)
    ]


def total_energies(simulation: Simulation) -> Array:
    """eV (S,), of S equal systems."""
    state = simulation.state
    squares = state.masses.double()[:, None] * state.velocities.double().square()
    kinetic = 0.5 * KINETIC_ENERGY * squares.view(len(state.cell), -1).sum(1)
    energies: Array = (state.energy.double() + kinetic).cpu().numpy()
    return energies
