"""g_OO of the shipped water and of its training frames, with errors."""

import argparse
import json
from typing import Any

import ase.io
import numpy as np
from numpy.typing import NDArray
from shipped_water import POTENTIAL, box, split, steps

from mdgraph.analysis.rdf import radial_distribution
from mdgraph.checkpoints import shipped_potentials
from mdgraph.engine import RadialDistributions, Simulation, StochasticVelocityRescaling

Array = NDArray[np.float64]

MAXIMUM, BINS = 5.0, 100
"""A and bins of g_OO; those of metrics.json are as wide."""

GROUPS = 10
"""Of training frames."""


def mean_and_error(blocks: Array) -> tuple[Array, Array]:
    """Over (blocks, starts, ...), with the larger of both standard errors; NaN for one value."""
    mean = blocks.mean((0, 1))
    every = blocks.reshape(-1, *blocks.shape[2:])
    starts = blocks.mean(0)
    errors = [standard_error(every), standard_error(starts)]
    return mean, np.fmax(*errors)


def standard_error(values: Array) -> Array:
    if len(values) < 2:
        return np.full(values.shape[1:], np.nan)
    return np.asarray(values.std(0, ddof=1) / np.sqrt(len(values)))


def distances() -> Array:
    return (np.arange(BINS) + 0.5) * MAXIMUM / BINS


def simulated(options: argparse.Namespace) -> dict[str, Any]:
    """(blocks, starts, bins) g_OO, and positions and velocities that all starts ended with."""
    bath = StochasticVelocityRescaling(options.timestep, options.temperature)
    distribution = RadialDistributions(MAXIMUM, bins=BINS, every=options.every)
    simulation = Simulation(
        [box(options)] * options.starts,
        POTENTIAL,
        bath,
        device=options.device,
        precision=options.precision,
        temperature=options.temperature,
        seed=options.seed,
        observe=[distribution],
    )
    simulation.choose(steps(options.ps, options))
    simulation.run(steps(options.bath_ps, options))
    found = []
    for _ in range(options.blocks):
        distribution.reset()
        simulation.run(steps(options.ps / options.blocks, options, options.every))
        result = distribution.result()
        found.append(result.value[:, result.pairs.index("O-O")])
    positions, velocities = np.array(split(simulation, options.starts)).tolist()
    blocks = np.array(found).tolist()
    return {"blocks": blocks, "positions": positions, "velocities": velocities}


def trained(options: argparse.Namespace) -> tuple[Array, Array]:
    """g_OO of the training frames and its standard error, NaN where frames are not at hand."""
    if options.frames is None:
        path = shipped_potentials()[POTENTIAL] / "metrics.json"
        known = json.loads(path.read_text(encoding="utf-8"))["training_rdf"]
        value = np.interp(distances(), known["r_A"], known["oo"])
        return value, np.full(BINS, np.nan)
    frames = ase.io.read(options.frames, index=":")
    groups = [frames[first::GROUPS] for first in range(min(GROUPS, len(frames)))]
    oxygens = np.flatnonzero(frames[0].numbers == 8)
    found = [
        radial_distribution(
            ((one.positions, one.cell.array) for one in group),
            oxygens,
            oxygens,
            maximum=MAXIMUM,
            width=MAXIMUM / BINS,
        ).value
        for group in groups
    ]
    return np.mean(found, axis=0), standard_error(np.array(found))
