"""H5MD trajectories in OVITO, which finds this reader by the entry point `OVITO.FileReader`.

OVITO imports this module before it opens a file of any format, so torch is imported only when a
trajectory of mdgraph is read.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
from ovito.data import DataCollection
from ovito.io import FileReaderInterface

from mdgraph.errors import FileError
from mdgraph.io import hdf5

_SIGNATURE: Final = b"\x89HDF\r\n\x1a\n"
"""Beginning of an HDF5 file."""

_PROPERTIES: Final = {"positions": "Position", "velocities": "Velocity", "forces": "Force"}
"""OVITO's name of each vector of a frame."""

_ATTRIBUTES: Final = {
    "time_fs": "Time (fs)",
    "energy": "Potential energy (eV)",
    "kinetic_energy": "Kinetic energy (eV)",
    "temperature": "Temperature (K)",
}
"""Global attributes; one that the file does not know is left out."""


class H5MDFileReader(FileReaderInterface):
    """Gives OVITO elements, masses, positions, velocities, forces and cell of each frame.

    Lengths are in A, velocities in A/fs, forces in eV/A. Positions are as the run left them, not
    put back into the cell.
    """

    @staticmethod
    def detect(filename: str) -> bool:
        """Whether mdgraph wrote the file."""
        try:
            with Path(filename).open("rb") as content:
                if content.read(len(_SIGNATURE)) != _SIGNATURE:
                    return False
            with hdf5.open_to_read(Path(filename)) as file:
                return bool(file["h5md/creator"].attrs["name"] == "mdgraph")
        except (FileError, LookupError, OSError):
            return False

    def scan(self, filename: str, register_frame: Callable[..., None]) -> None:
        """Tells OVITO the index and the step of every frame.

        Raises:
            FileError: the file cannot be read.
        """
        from mdgraph.io.h5md import H5MDReader

        with H5MDReader(Path(filename)) as trajectory:
            for index, step in enumerate(trajectory.steps.tolist()):
                register_frame(frame_info=index, label=step)

    def parse(self, data: DataCollection, filename: str, frame_info: Any, **_: Any) -> None:
        """Fills OVITO's collection with one frame.

        Raises:
            FileError: the file cannot be read, or holds no frame.
        """
        from ase.geometry import complete_cell

        from mdgraph.io.h5md import H5MDReader
        from mdgraph.units import SYMBOLS

        with H5MDReader(Path(filename)) as trajectory:
            if not len(trajectory):
                raise FileError(f"{filename} holds no frame yet; open it once the run has begun.")
            frame = trajectory[frame_info or 0]
            numbers, masses, pbc = trajectory.numbers, trajectory.masses, trajectory.pbc
        if frame.cell.any():
            matrix = np.zeros((3, 4))  # lattice vectors as columns, then the origin
            matrix[:, :3] = complete_cell(frame.cell).T
            data.create_cell(matrix, pbc=tuple(map(bool, pbc)))
        particles = data.create_particles(count=len(numbers))
        for name, ovito_name in _PROPERTIES.items():
            vectors = getattr(frame, name)
            if vectors is not None and not np.isnan(vectors).any():
                particles.create_property(ovito_name, data=vectors)
        particles.create_property("Mass", data=masses)
        types = particles.create_property("Particle Type", data=numbers)
        for number in np.unique(numbers).tolist():
            types.add_type_id(number, particles, name=SYMBOLS[number])
        data.attributes["Timestep"] = frame.step
        for name, ovito_name in _ATTRIBUTES.items():
            value = getattr(frame, name)
            if not np.isnan(value):
                data.attributes[ovito_name] = value
