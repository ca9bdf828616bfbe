"""A frame of a trajectory, and the interfaces of trajectory writers and readers."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mdgraph.errors import FileError, InputError
from mdgraph.system import System


@dataclass(frozen=True, eq=False)
class Frame:
    """The state of one system at one step.

    Attributes:
        step: number of integration steps done.
        time_fs: simulated time, fs.
        positions: (N, 3) float64, A, unwrapped.
        velocities: (N, 3) float64, A/fs; None if the file has none.
        forces: (N, 3) float64, eV/A. Forces and the numbers below are NaN if the file has none.
        energy: potential energy, eV.
        kinetic_energy: eV.
        temperature: K, from the kinetic energy and the degrees of freedom of the run.
        cell: (3, 3) float64, A, one lattice vector per row; zeros if there is no cell.
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

    def select(self, atoms: ArrayLike) -> "Frame":
        """The frame of some atoms, by their indices; energies and stress stay those of all."""
        indices = np.asarray(atoms, dtype=np.int64)
        return replace(
            self,
            positions=self.positions[indices],
            velocities=None if self.velocities is None else self.velocities[indices],
            forces=self.forces[indices],
        )


VECTORS: Final = ("positions", "velocities", "forces")
"""Fields of a frame with a vector for each atom."""


@dataclass(frozen=True)
class FrameContents:
    """What the frames of a file hold of each atom.

    Attributes:
        fields: some of `VECTORS`, positions among them.
        single: whether these are float32 instead of float64.
    """

    fields: tuple[str, ...] = VECTORS
    single: bool = False


WHOLE: Final = FrameContents()
"""All vectors in float64, as every format writes them."""


class TrajectoryWriter(ABC):
    """Appends frames to a file; each frame survives the death of the process.

    Attributes:
        path: the file.
        last_step: step of the last frame in the file, None while there is none.
        contents: what the frames hold of each atom.
    """

    def __init__(
        self,
        path: Path,
        system: System,
        last_step: int | None,
        contents: FrameContents = WHOLE,
    ) -> None:
        self.path = path
        self.last_step = last_step
        self.contents = contents
        per_atom = dict.fromkeys(VECTORS, (len(system), 3))
        self._shapes = per_atom | {"cell": (3, 3), "stress": (3, 3)}
        self._takes_stress = system.volume > 0

    @classmethod
    @abstractmethod
    def create(cls, path: Path, system: System) -> Self:
        """Creates a file without frames; raises FileError if the file exists."""

    @classmethod
    @abstractmethod
    def resuming(
        cls, path: Path, last_step: int, system: System, *, keeps_open: bool = True
    ) -> AbstractContextManager[tuple[Callable[[], Self], "TrajectoryReader"]]:
        """Runs the checks of `resume` without changing the file.

        Yields:
            A function that returns the writer of the resumed file, and a reader of the file.

        Raises:
            FileError: see `resume`.
        """

    @classmethod
    def resume(cls, path: Path, last_step: int, system: System) -> Self:
        """Removes the frames after `last_step` and opens the file; raises FileError."""
        with cls.resuming(path, last_step, system) as (resume, _):
            return resume()

    def append(self, frame: Frame) -> None:
        """Writes one frame.

        Raises:
            InputError: an array has the wrong shape, the step is not after the last one, or
                there is a stress though the cell has no volume.
            FileError: the disk refused; earlier frames stay readable.
        """
        for name, shape in self._shapes.items():
            value = getattr(frame, name)
            if value is None and name == "velocities" and name in self.contents.fields:
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
        """Writes one frame; `append` has checked it."""

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
    """The frames that are complete when the file is opened; the file may still be growing.

    Attributes:
        path: the file.
        numbers: (N,) int64, atomic numbers.
        masses: (N,) float64, amu.
        pbc: (3,) bool, periodic directions.
        steps: (frames,) int64, the step of each frame.
        has_constraints: whether the file says that some atoms cannot move freely.
    """

    path: Path
    numbers: NDArray[np.int64]
    masses: NDArray[np.float64]
    pbc: NDArray[np.bool_]
    steps: NDArray[np.int64]
    has_constraints: bool = False

    def __len__(self) -> int:
        return len(self.steps)

    def __getitem__(self, index: int) -> Frame:
        """Reads one frame; negative indices count from the end.

        Raises:
            IndexError: there is no such frame.
            FileError: the file cannot be read, or a position or the cell is not finite.
        """
        if not -len(self) <= index < len(self):
            raise IndexError(f"{self.path} holds {len(self)} frames, none at {index}.")
        index %= len(self)
        frame = self._read(index)
        if not (np.isfinite(frame.positions).all() and np.isfinite(frame.cell).all()):
            raise FileError(
                f"{self.path}: frame {index} has positions or a cell that are not finite; copy the "
                "file again, or leave that frame out."
            )
        return frame

    def __iter__(self) -> Iterator[Frame]:
        return (self[index] for index in range(len(self)))

    @abstractmethod
    def _read(self, index: int) -> Frame:
        """Reads a frame by its index, from 0."""

    @abstractmethod
    def close(self) -> None:
        """Closes the file; closing twice is harmless."""

    def system(self, index: int = -1) -> System:
        """The system at one frame, with its velocities."""
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
        """Checks that the trajectory belongs to a system.

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
