"""A frame of a trajectory, and what every trajectory format can do with frames."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from mdgraph.errors import FileError, InputError
from mdgraph.system import System


@dataclass(frozen=True, eq=False)
class Frame:
    """The state of one system at one step.

    Attributes:
        step: number of integration steps done.
        time_fs: simulated time, fs.
        positions: (N, 3) float64, A, unwrapped.
        velocities: (N, 3) float64, A/fs; None where a file holds none.
        forces: (N, 3) float64, eV/A; these and the numbers below are NaN where a file holds none.
        energy: potential energy, eV.
        kinetic_energy: eV.
        temperature: K, from the kinetic energy and the degrees of freedom of the run.
        cell: (3, 3) float64, A, one lattice vector a row; zeros where there is none.
        stress: (3, 3) float64, eV/A^3, tension positive, or None.
    """

    step: int
    time_fs: float
    positions: NDArray[np.float64]
    velocities: NDArray[np.float64] | None
    forces: NDArray[np.float64]
    energy: float
    kinetic_energy: float
    temperature: float
    cell: NDArray[np.float64]
    stress: NDArray[np.float64] | None = None


class TrajectoryWriter(ABC):
    """Appends frames to a file; each frame survives the death of the process.

    Attributes:
        path: the file.
        last_step: step of the last frame in the file, None while there is none.
    """

    def __init__(self, path: Path, system: System, last_step: int | None) -> None:
        self.path = path
        self.last_step = last_step
        per_atom = dict.fromkeys(("positions", "velocities", "forces"), (len(system), 3))
        self._shapes = per_atom | {"cell": (3, 3), "stress": (3, 3)}
        self._takes_stress = system.volume > 0

    @classmethod
    @abstractmethod
    def create(cls, path: Path, system: System) -> Self:
        """Creates a file without frames; raises FileError where there is one already."""

    @classmethod
    @abstractmethod
    def resuming(
        cls, path: Path, last_step: int, system: System, *, keeps_open: bool = True
    ) -> AbstractContextManager[tuple[Callable[[], Self], "TrajectoryReader"]]:
        """Checks all that `resume` needs; the file changes when the function is called.

        Yields:
            What resumes, and the file as it is.

        Raises:
            FileError: see `resume`.
        """

    @classmethod
    def resume(cls, path: Path, last_step: int, system: System) -> Self:
        """Opens a file after dropping what comes after `last_step`; raises FileError."""
        with cls.resuming(path, last_step, system) as (resume, _):
            return resume()

    def append(self, frame: Frame) -> None:
        """Writes one frame.

        Raises:
            InputError: arrays of the wrong shape, a step that is not after the last one,
                or a stress for a system whose cell has no volume.
            FileError: the disk refused; the frames before stay readable.
        """
        for name, shape in self._shapes.items():
            value = getattr(frame, name)
            if value is None and name == "velocities":
                raise InputError(f"A frame for {self.path} has no velocities; give them.")
            if value is not None and value.shape != shape:
                raise InputError(
                    f"The {name} of a frame for {self.path} have shape {value.shape}; give {shape}."
                )
        if self.last_step is not None and frame.step <= self.last_step:
            raise InputError(
                f"{self.path} holds step {self.last_step} already and takes no step "
                f"{frame.step} after it; append frames in the order of their steps."
            )
        if frame.stress is not None and not self._takes_stress:
            raise InputError(
                f"The cell of the system in {self.path} has no volume, so its frames have no "
                "stress; leave it out."
            )
        self._write(frame)
        self.last_step = frame.step

    @abstractmethod
    def _write(self, frame: Frame) -> None:
        """Writes one frame that was checked."""

    @abstractmethod
    def sync(self) -> None:
        """Waits until all frames would survive a loss of power."""

    @abstractmethod
    def close(self) -> None:
        """Closes the file; closing twice is harmless."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class TrajectoryReader(ABC):
    """The complete frames that a file holds when it is opened, also while it is written.

    Attributes:
        path: the file.
        numbers: (N,) int64, atomic numbers.
        masses: (N,) float64, amu.
        pbc: (3,) bool, periodic directions.
        steps: (frames,) int64, the step of each frame.
    """

    path: Path
    numbers: NDArray[np.int64]
    masses: NDArray[np.float64]
    pbc: NDArray[np.bool_]
    steps: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.steps)

    def __getitem__(self, index: int) -> Frame:
        """Reads one frame; negative indices count from the end.

        Raises:
            IndexError: no such frame.
            FileError: the file cannot be read.
        """
        if not -len(self) <= index < len(self):
            raise IndexError(f"{self.path} holds {len(self)} frames, none at {index}.")
        return self._read(index % len(self))

    def __iter__(self) -> Iterator[Frame]:
        return (self._read(index) for index in range(len(self)))

    @abstractmethod
    def _read(self, index: int) -> Frame:
        """Reads the frame at an index from 0."""

    @abstractmethod
    def close(self) -> None:
        """Closes the file; closing twice is harmless."""

    def system(self, index: int = -1) -> System:
        """The system as it is in one frame, with its velocities."""
        frame = self[index]
        return System(
            numbers=self.numbers,
            positions=frame.positions,
            cell=frame.cell,
            pbc=self.pbc,
            masses=self.masses,
            velocities=frame.velocities,
        )

    def check_holds(self, system: System) -> None:
        """Refuses to go on with the trajectory of another system.

        Raises:
            FileError: atoms, masses or periodic directions differ.
        """
        same = (
            np.array_equal(self.numbers, system.numbers)
            and np.array_equal(self.masses, system.masses)
            and np.array_equal(self.pbc, system.pbc)
        )
        if not same:
            raise FileError(
                f"{self.path} is the trajectory of another system; put back the file that "
                "belongs to this run."
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
