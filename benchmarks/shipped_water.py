"""The shipped water as these benchmarks run it: its potential, boxes, and lengths of runs."""

import argparse
from typing import Any

import numpy as np

from mdgraph.checkpoints import shipped_potentials
from mdgraph.engine import Simulation
from mdgraph.io.structures import read_system
from mdgraph.system import System

POTENTIAL = "water-pbe0"


def box(options: argparse.Namespace) -> System:
    """The shipped start, repeated along the axes, at rest."""
    one = read_system(shipped_potentials()[POTENTIAL] / "start.extxyz")
    counts = options.repeat
    shifts = np.stack(np.meshgrid(*map(np.arange, counts), indexing="ij"), -1).reshape(-1, 3)
    return System(
        numbers=np.tile(one.numbers, len(shifts)),
        positions=(one.positions + (shifts @ one.cell)[:, None]).reshape(-1, 3),
        cell=one.cell * np.array(counts)[:, None],
        pbc=one.pbc,
    )


def split(simulation: Simulation, starts: int) -> tuple[Any, Any]:
    state = simulation.state
    return tuple(
        np.split(tensor.cpu().double().numpy(), starts)
        for tensor in (state.positions, state.velocities)
    )


def steps(picoseconds: float, options: argparse.Namespace, least: int = 1) -> int:
    return max(least, round(1e3 * picoseconds / options.timestep))
