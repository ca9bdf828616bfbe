"""A trajectory format in one file: JSON lines, which no file of mdgraph knows."""

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest

from mdgraph.errors import FileError, InputError
from mdgraph.io.files import AppendedFile, refuse_existing
from mdgraph.io.formats import (
    FORMATS,
    Frame,
    TrajectoryFormat,
    TrajectoryReader,
    TrajectoryWriter,
    read_trajectory,
    register,
)
from mdgraph.system import System


class LinesWriter(TrajectoryWriter):
    """One line for the atoms, and one for each frame."""

    def __init__(self, file: AppendedFile, system: System, last_step: int | None) -> None:
        super().__init__(file.path, system, last_step)
        self._file = file

    @classmethod
    def create(cls, path: Path, system: System) -> Self:
        refuse_existing(path)
        file = AppendedFile(path, 0)
        atoms = {name: getattr(system, name).tolist() for name in ("numbers", "masses", "pbc")}
        file.append(f"{json.dumps(atoms)}\n".encode())
        return cls(file, system, None)

    @classmethod
    @contextlib.contextmanager
    def resuming(
        cls, path: Path, last_step: int, system: System, *, keeps_open: bool = True
    ) -> Iterator[tuple[Callable[[], Self], TrajectoryReader]]:
        with LinesReader(path) as reader:
            reader.check_holds(system)
            kept = [line for line in reader.frames if json.loads(line)["step"] <= last_step]
            size = len(reader.head) + sum(map(len, kept))

            def resume() -> Self:
                file = AppendedFile(path, size)
                return cls(file, system, json.loads(kept[-1])["step"] if kept else None)

            yield resume, reader

    def _write(self, frame: Frame) -> None:
        values = {
            name: value.tolist() if isinstance(value, np.ndarray) else value
            for name, value in vars(frame).items()
        }
        self._file.append(f"{json.dumps(values)}\n".encode())

    def sync(self) -> None:
        self._file.sync()

    def close(self) -> None:
        self._file.close()


class LinesReader(TrajectoryReader):
    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self.head, *self.frames = path.read_bytes().splitlines(keepends=True)
        except (OSError, ValueError) as error:
            raise FileError(f"{path} cannot be read; give a trajectory.") from error
        atoms = {name: np.array(value) for name, value in json.loads(self.head).items()}
        self.numbers, self.masses, self.pbc = (atoms[n] for n in ("numbers", "masses", "pbc"))
        self.steps = np.array([json.loads(line)["step"] for line in self.frames], dtype=np.int64)

    def _read(self, index: int) -> Frame:
        values = json.loads(self.frames[index])
        arrays = {name: np.array(v) if isinstance(v, list) else v for name, v in values.items()}
        return Frame(**arrays)

    def close(self) -> None:
        pass


@pytest.fixture
def lines() -> Iterator[str]:
    """The word of the format, which is known while a test runs."""
    register(TrajectoryFormat("lines", (".jsonl",), LinesWriter, LinesReader))
    yield "lines"
    del FORMATS["lines"]


def test_a_run_writes_resumes_and_is_read(
    lines: str,
    tmp_path: Path,
    tiny_potential: Path,
    water_file: Path,
    mdgraph_command: Callable[..., Any],
) -> None:
    common = [water_file, "--potential", tiny_potential, "--trajectory-interval", 2]
    common += ["--checkpoint-interval", 4, "--log-interval", 2]
    whole, parted, usual = (tmp_path / name for name in ("whole", "parted", "usual"))
    for folder, steps, word in ((whole, 12, lines), (parted, 6, lines), (usual, 12, "h5md")):
        options = ["--trajectory", word, "--steps", steps, "--out", folder]
        done = mdgraph_command("md", *common, *options)
        assert done.status == 0, done.err
    with (parted / "trajectory.jsonl").open("ab") as file:  # of a step after the checkpoint
        file.write((whole / "trajectory.jsonl").read_bytes().splitlines(keepends=True)[-1])
    done = mdgraph_command("md", "--resume", "--steps", 12, "--out", parted)
    assert done.status == 0, done.err
    written = (whole / "trajectory.jsonl").read_bytes()
    assert (parted / "trajectory.jsonl").read_bytes() == written
    with (
        read_trajectory(whole / "trajectory.jsonl") as own,
        read_trajectory(usual / "trajectory.h5md") as other,
    ):
        np.testing.assert_array_equal(own.steps, [0, 2, 4, 6, 8, 10, 12])
        for first, second in zip(own, other, strict=True):
            np.testing.assert_array_equal(first.positions, second.positions)
            np.testing.assert_allclose(first.forces, second.forces, rtol=4e-16, atol=0)


def test_its_frames_are_structures(
    lines: str,
    tmp_path: Path,
    tiny_potential: Path,
    water_file: Path,
    mdgraph_command: Callable[..., Any],
) -> None:
    run = ["--potential", tiny_potential, "--trajectory", lines, "--trajectory-interval", 2]
    out = tmp_path / "run"
    done = mdgraph_command("md", water_file, *run, "--steps", 4, "--out", out)
    assert done.status == 0, done.err
    energies = tmp_path / "energies.extxyz"
    frames = out / "trajectory.jsonl"
    done = mdgraph_command("eval", frames, "--potential", tiny_potential, "--out", energies)
    assert done.status == 0, done.err
    assert "3 frames written" in done.out


def test_words_and_suffixes_are_taken_once(
    lines: str, tmp_path: Path, water_file: Path, mdgraph_command: Callable[..., Any]
) -> None:
    with pytest.raises(InputError, match=r"a trajectory format with \.h5 already; choose another"):
        register(TrajectoryFormat("mine", (".h5",), LinesWriter, LinesReader))
    done = mdgraph_command("md", water_file, "--trajectory", "dcd", "--out", tmp_path / "run")
    assert done.status == 1
    assert done.err.endswith("--trajectory is dcd; it should be 'h5md', 'extxyz' or 'lines'.\n")
    assert not (tmp_path / "run").exists()
