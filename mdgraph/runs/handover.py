"""From one run to the next: where every system ended, as what follows takes it."""

import numpy as np

from mdgraph.io.trajectories import read_trajectory
from mdgraph.runs.configuration import MDConfig, RunConfig
from mdgraph.runs.directory import RunDirectory
from mdgraph.runs.ensembles import MIDDLE
from mdgraph.runs.record import charge_of
from mdgraph.runs.selection import selected_atoms
from mdgraph.system import System
from mdgraph.units import ACCELERATION


def ends_of(folder: RunDirectory, before: RunConfig, after: RunConfig) -> list[System]:
    """Where every system of a finished run ended, with velocities of the time that counts after.

    Velocities of some ensembles belong to the middle of a step, half a step before the
    positions, those of others to the positions. What goes on is the same path if
    v <- v + (tau - tau') f / m, with tau and tau' half a time step where velocities belong to
    the middle, else 0, of the run before and the one after. At 0.5 fs this is 0.7 % of the
    temperature of water, 3 % of that of an O-H stretch.

    Args:
        folder: of the finished run.
        before: its configuration.
        after: that of the run to come.

    Raises:
        FileError: an end cannot be read.
    """
    record = folder.read_record()
    replicas = record["configuration"].get("replicas")
    parts = [folder] if replicas is None else [folder.replica(one) for one in range(replicas)]
    lag = _lag(before) - _lag(after)
    ends = []
    for number, part in enumerate(parts):
        with read_trajectory(part.end) as trajectory:
            system, forces = trajectory.system(0), trajectory[0].forces
        velocities = system.velocities
        if lag and velocities is not None and velocities.any():
            kick = lag * ACCELERATION * forces / system.masses[:, None]
            if before.fix is not None:
                kick[selected_atoms(before.fix, system)] = 0.0
            system = system.replace(velocities=np.add(velocities, kick))
        ends.append(system.replace(charge=charge_of(record, number)))
    return ends


def _lag(configuration: RunConfig) -> float:
    """fs, by which positions are ahead of velocities."""
    if not isinstance(configuration, MDConfig) or configuration.ensemble not in MIDDLE:
        return 0.0
    return 0.5 * configuration.timestep_fs
