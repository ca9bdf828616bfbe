"""The picture of a run, drawn from what lies in its folder."""

import numpy as np

from mdgraph.analysis.pictures import PairDistribution, run_figure
from mdgraph.analysis.rdf import (
    most_common_heavy_element,
    radial_distribution,
    smallest_height,
)
from mdgraph.elements import SYMBOLS
from mdgraph.io.files import write_atomically
from mdgraph.io.frames import TrajectoryReader
from mdgraph.io.log import read_log
from mdgraph.io.trajectories import read_trajectory
from mdgraph.runs.configuration import MDConfig
from mdgraph.runs.directory import RunDirectory
from mdgraph.runs.ensembles import ends
from mdgraph.runs.potential import Source
from mdgraph.runs.record import formula
from mdgraph.system import System

_MOST_FRAMES = 1000
_MOST_PAIRS = 3e7
"""Looked at, over all frames: a few seconds."""


def draw_picture(
    folder: RunDirectory, configuration: MDConfig, system: System, source: Source
) -> None:
    """Writes picture.png: temperature, energies and, in a crystal or liquid, g(r).

    Raises:
        FileError: the log or the trajectory cannot be read, or the disk refused.
    """
    log = read_log(folder.log)
    picoseconds = 1e-3 * configuration.total_steps * configuration.timestep_fs
    bath = configuration.ensemble != "nve"
    start, end = ends(configuration.temperature_K)
    kelvin = log["temperature_K"]
    with read_trajectory(folder.trajectory(configuration.trajectory)) as trajectory:
        figure = run_figure(
            log,
            title=f"{source.name}: {picoseconds:.4g} ps simulated {_conditions(configuration)}",
            subtitle=f"{formula(system)}, time step {configuration.timestep_fs:g} fs, "
            f"mean temperature {kelvin.mean():.0f} K",
            atoms=len(system),
            bath_temperature=start if bath and start == end else None,
            pairs=_distribution(trajectory, system, source),
        )
    write_atomically(folder.picture, figure.savefig)


def _conditions(configuration: MDConfig) -> str:
    if configuration.ensemble == "nve":
        return "at constant energy"

    def words(value: float | str, unit: str) -> str:
        start, end = ends(value)
        return f"{start:g} {unit}" if start == end else f"{start:g} to {end:g} {unit}"

    text = f"at {words(configuration.temperature_K, 'K')}"
    if configuration.pressure_bar is not None:
        text += f" and {words(configuration.pressure_bar, 'bar')}"
    return text


def _distribution(
    trajectory: TrajectoryReader, system: System, source: Source
) -> PairDistribution | None:
    """Of the most common heavy element with itself; None without three periodic directions."""
    number = most_common_heavy_element(system.numbers)
    atoms = np.flatnonzero(system.numbers == number)
    if not system.pbc.all() or len(atoms) < 2:
        return None
    affordable = min(_MOST_FRAMES, int(_MOST_PAIRS / len(atoms) ** 2))
    count = max(1, min(len(trajectory), affordable))
    chosen = np.unique(np.linspace(0, len(trajectory) - 1, count).astype(int))
    # A cell that shrinks bounds the range for all.
    reach = min(0.5 * smallest_height(trajectory[int(index)].cell) for index in chosen)
    frames = (trajectory[int(index)] for index in chosen)
    pair = f"{SYMBOLS[number]}-{SYMBOLS[number]}"
    simulated = radial_distribution(
        ((frame.positions, frame.cell) for frame in frames), atoms, atoms, maximum=reach
    )
    return PairDistribution(pair, simulated, source.training_distribution(pair))
