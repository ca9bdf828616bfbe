"""ASE's trajectories, `.traj`, as `mdgraph trajectory` and ASE itself write them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from ase import Atoms, units
from ase.io.trajectory import Trajectory
from ase.stress import voigt_6_to_full_3x3_stress

from mdgraph.errors import FileError, InputError
from mdgraph.io.files import readable_file
from mdgraph.io.trajectories import Frame, TrajectoryReader


class ASETrajectoryReader(TrajectoryReader):
    """Reads `.traj` files.

    A frame has a step and a time if its `info` has them, as in files that mdgraph wrote. Of other
    files, frames count as steps, and the caller gives the time between them.

    Attributes:
        has_constraints: whether ASE's constraints act on atoms.
    """

    def __init__(self, path: Path, frame_interval_fs: float | None = None) -> None:
        """Opens a file.

        Args:
            path: the file.
            frame_interval_fs: fs between frames of a file without times.

        Raises:
            InputError: the file has no times and none are given, or both are.
            FileError: the file cannot be read.
        """
        self.path = path
        self._interval = frame_interval_fs
        readable_file(path, "a trajectory")
        with self._failures():
            self._file: Any = Trajectory(str(path.absolute()), "r")
        try:
            with self._failures():
                self._read_header()
            self._check_interval()
        except (FileError, InputError):
            self.close()
            raise

    def _read_header(self) -> None:
        count = len(self._file)
        first = self._file[0] if count else Atoms()
        self.numbers = first.numbers.astype(np.int64)
        self.masses, self.pbc = first.get_masses(), first.pbc.copy()
        self.has_constraints = bool(first.constraints)
        self._has_times = "time_fs" in first.info
        self.steps = np.arange(count)
        if self._has_times:
            infos = (self._file.backend[index].get("info") for index in range(count))
            self.steps = np.array([int(info["step"]) for info in infos], dtype=np.int64)

    def _check_interval(self) -> None:
        if len(self) and self._has_times and self._interval is not None:
            raise InputError(f"{self.path} has times of its own; leave out --frame-interval-fs.")
        if len(self) > 1 and not self._has_times and self._interval is None:
            raise InputError(
                f"{self.path} says nothing of time; give the time between its frames, such as "
                "--frame-interval-fs 10."
            )

    def _read(self, index: int) -> Frame:
        with self._failures(index):
            atoms: Atoms = self._file[index]
            if not np.array_equal(atoms.numbers, self.numbers) or (atoms.pbc != self.pbc).any():
                raise ValueError("it has other atoms or periodic directions than the first")
            return self._frame(index, atoms)

    def _frame(self, index: int, atoms: Atoms) -> Frame:
        # What constraints take from forces is part of the forces.
        results: dict[str, Any] = {} if atoms.calc is None else atoms.calc.results
        moves, info, nothing = atoms.has("momenta"), atoms.info, float("nan")
        kinetic_energy = atoms.get_kinetic_energy() if moves else nothing
        temperature = atoms.get_temperature() if moves else nothing
        stress = results.get("stress")
        if stress is not None and np.shape(stress) == (6,):
            stress = voigt_6_to_full_3x3_stress(stress)
        time = float(info["time_fs"]) if self._has_times else index * (self._interval or 0.0)
        return Frame(
            step=int(self.steps[index]),
            time_fs=time,
            positions=atoms.positions,
            velocities=atoms.get_velocities() * units.fs if moves else None,
            forces=np.array(results.get("forces", np.full((len(atoms), 3), nothing))),
            energy=float(results.get("energy", nothing)),
            kinetic_energy=float(info.get("kinetic_energy", kinetic_energy)),
            temperature=float(info.get("temperature", temperature)),
            cell=np.array(atoms.cell),
            stress=stress,
        )

    @contextmanager
    def _failures(self, index: int | None = None) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # ASE's reader raises errors of any class
            part = f"frame {index} of {self.path}" if index is not None else str(self.path)
            raise FileError(
                f"Cannot read {part} as a trajectory of ASE ({error}); copy the file again."
            ) from error

    def close(self) -> None:
        """Closes the file; closing twice is harmless."""
        self._file.close()
