"""Diffusion of the oxygens of the shipped water, by the engine and by ASE."""

import argparse
from typing import Any

import numpy as np
from ase import units
from ase.md.verlet import VelocityVerlet as ASEVelocityVerlet
from shipped_water import POTENTIAL, steps

from mdgraph.engine import MeanSquaredDisplacement, Simulation, VelocityVerlet
from mdgraph.io.atoms import to_ase
from mdgraph.system import System

CM2_PER_S = 1e4
"""1e-5 cm^2/s in an A^2/fs."""


def diffusion(systems: list[System], options: argparse.Namespace) -> dict[str, list[float]]:
    """1e-5 cm^2/s of the oxygens of each start, and the mean temperature of each, K."""
    total = steps(options.nve_ps, options, 2 * options.lags)
    every = lag(options)
    recorded = MeanSquaredDisplacement(options.lags, every=every)
    simulation = Simulation(
        systems,
        POTENTIAL,
        VelocityVerlet(options.timestep),
        device=options.device,
        precision=options.precision,
        observe=[recorded],
        check=False,
    )
    kelvin = []
    simulation.choose(total)
    for _ in range(total // (every * options.lags) or 1):
        simulation.run(every * options.lags)
        kelvin.append(simulation.observables().temperature.numpy())
    result = recorded.result()
    span = result.lag[-1]
    slope = result.diffusion(options.fit[0] * span, options.fit[1] * span)
    found = CM2_PER_S * slope[:, result.elements.index("O")]
    return {"diffusion": found.tolist(), "kelvin": np.mean(kelvin, axis=0).tolist()}


def lag(options: argparse.Namespace) -> int:
    """Steps from one lag to the next."""
    return max(1, steps(options.window_ps, options) // options.lags)


def ase_diffusion(system: System, calculator: Any, options: argparse.Namespace) -> float:
    """The same of one start by ASE, all of its frames as origins."""
    every = lag(options)
    total = steps(options.nve_ps, options, 2 * options.lags)
    atoms = to_ase(system)
    atoms.calc = calculator
    oxygens = atoms.numbers == 8
    places = []

    def look() -> None:
        places.append(atoms.positions[oxygens] - atoms.get_center_of_mass())

    dynamics = ASEVelocityVerlet(atoms, timestep=options.timestep * units.fs)
    dynamics.attach(look, interval=every)
    dynamics.run(total)
    path = np.array(places)
    lags = np.arange(min(options.lags, len(path)))
    squares = [((path[k:] - path[: len(path) - k]) ** 2).sum(-1).mean() for k in lags]
    fs = lags * every * options.timestep
    inside = (fs >= options.fit[0] * fs[-1]) & (fs <= options.fit[1] * fs[-1])
    slopes = np.gradient(np.array(squares), fs) / 6.0
    return float(CM2_PER_S * slopes[inside].mean())
