"""Frames as ASE's Atoms, and H5MD trajectories for `ase.io.read`, which finds them by their suffix.

ASE imports this module with `ase.io`, by the entry point of the group `ase.ioformats`. What
takes long to import, such as torch, is imported when a file is read.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from ase.utils.plugins import ExternalIOFormat

if TYPE_CHECKING:
    from ase import Atoms

    from mdgraph.io.trajectories import Frame, TrajectoryReader
    from mdgraph.system import System

H5MD: Final = ExternalIOFormat(
    desc="H5MD trajectory of mdgraph", code="+S", module="mdgraph.io.ase_format", ext="h5md"
)
"""The entry point."""


def read_h5md(filename: str, index: slice) -> "Iterator[Atoms]":
    """Frames of a trajectory; ASE calls this.

    Args:
        filename: the file.
        index: the frames.

    Raises:
        FileError: the file cannot be read.
    """
    from mdgraph.io.h5md import H5MDReader

    with H5MDReader(Path(filename)) as trajectory:
        for frame in range(len(trajectory))[index]:
            yield atoms_of(trajectory, trajectory[frame])


def atoms_of(system: "System | TrajectoryReader", frame: "Frame") -> "Atoms":
    """The atoms at a frame, with the velocities, energy, forces and stress that it has.

    `info` has `step`, `time_fs`, and where known `kinetic_energy` (eV) and `temperature` (K).
    """
    from ase import Atoms, units
    from ase.calculators.singlepoint import SinglePointCalculator
    from ase.stress import full_3x3_to_voigt_6_stress

    atoms = Atoms(
        numbers=system.numbers,
        positions=frame.positions,
        masses=system.masses,
        cell=frame.cell,
        pbc=system.pbc,
        info={"step": frame.step, "time_fs": frame.time_fs},
    )
    if frame.velocities is not None:
        atoms.set_velocities(frame.velocities / units.fs)
    for name in ("kinetic_energy", "temperature"):
        if not np.isnan(getattr(frame, name)):
            atoms.info[name] = getattr(frame, name)
    results: dict[str, Any] = {}
    if not np.isnan(frame.energy):
        results["energy"] = frame.energy
    if not np.isnan(frame.forces).any():
        results["forces"] = frame.forces
    if frame.stress is not None:
        results["stress"] = full_3x3_to_voigt_6_stress(frame.stress)
    if results:
        atoms.calc = SinglePointCalculator(atoms, **results)
    return atoms
