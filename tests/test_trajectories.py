"""Trajectories hold exactly their frames: while written, after kills, full disks and resumes."""

import dataclasses
import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import ase.io
import h5py
import numpy as np
import pytest
from ase import units

from mdgraph.errors import FileError, InputError
from mdgraph.io.structures import read_system
from mdgraph.io.trajectories import (
    Frame,
    TrajectoryReader,
    create_trajectory,
    read_trajectory,
    resume_trajectory,
)
from mdgraph.system import System

ROOT = Path(__file__).resolve().parent.parent
SUFFIXES = [".h5", ".extxyz"]
both_formats = pytest.mark.parametrize("suffix", SUFFIXES)


def water(periodic: bool = True) -> System:
    return System(
        numbers=np.array([8, 1, 1, 8, 1, 1]),
        positions=np.arange(18.0).reshape(6, 3),
        cell=np.array([[9.0, 0, 0], [1.0, 9.5, 0], [0.3, 0.2, 10.0]]) * periodic,
        pbc=np.array([True, True, False]) & periodic,
        masses=np.array([15.999, 2.01410177812, 1.008, 15.999, 1.008, 1.008]),
    )


def frame(step: int, system: System | None = None, stress: bool = True) -> Frame:
    """A frame that is a function of its step, with awkward digits."""
    system = system or water()
    random = np.random.default_rng(step)
    shape = (len(system), 3)
    return Frame(
        step=step,
        time_fs=step * 0.1,
        positions=random.normal(scale=1e3, size=shape),
        velocities=random.normal(scale=1e-2, size=shape),
        forces=random.normal(size=shape) * 10.0 ** random.integers(-200, 5, size=shape),
        energy=-29944.0 - step / 3,
        kinetic_energy=step / 7,
        temperature=300.0 + step / 9,
        cell=system.cell * (1 + step * 1e-4),
        stress=random.normal(size=(3, 3)) if stress and system.volume > 0 else None,
    )


def assert_same(found: Frame, expected: Frame) -> None:
    for field in dataclasses.fields(Frame):
        have, want = getattr(found, field.name), getattr(expected, field.name)
        if field.name == "velocities":
            np.testing.assert_allclose(have, want, rtol=1e-14, atol=0)
        elif want is None:
            assert have is None
        else:
            np.testing.assert_array_equal(have, want, err_msg=field.name)


def assert_holds(path: Path, steps: list[int]) -> None:
    with read_trajectory(path) as reader:
        assert reader.steps.tolist() == steps
        for found in reader:
            assert_same(found, frame(found.step))


def write(path: Path, steps: range) -> Path:
    with create_trajectory(path, water()) as writer:
        for step in steps:
            writer.append(frame(step))
    return path


class TestFrames:
    @pytest.mark.parametrize("suffix", [".h5", ".h5md", ".hdf5", ".xyz", ".extxyz", ".H5"])
    def test_come_back_to_the_last_bit(self, tmp_path: Path, suffix: str) -> None:
        path = write(tmp_path / f"run{suffix}", range(0, 500, 100))
        assert_holds(path, [0, 100, 200, 300, 400])
        with read_trajectory(path) as reader:
            assert len(reader) == 5
            assert_same(reader[-1], frame(400))
            assert_same(reader[1], frame(100))
            np.testing.assert_array_equal(reader.numbers, water().numbers)
            np.testing.assert_array_equal(reader.masses, water().masses)
            np.testing.assert_array_equal(reader.pbc, water().pbc)
            for index in (5, -6):
                with pytest.raises(IndexError, match="5 frames"):
                    reader[index]

    @both_formats
    def test_of_a_molecule_have_neither_cell_nor_stress(self, tmp_path: Path, suffix: str) -> None:
        system = water(periodic=False)
        path = tmp_path / f"run{suffix}"
        with create_trajectory(path, system) as writer:
            writer.append(frame(1, system))
            with pytest.raises(InputError, match="no volume"):
                writer.append(dataclasses.replace(frame(2, system), stress=np.eye(3)))
        with read_trajectory(path) as reader:
            assert len(reader) == 1
            assert_same(reader[0], frame(1, system))

    @both_formats
    def test_may_lack_the_stress(self, tmp_path: Path, suffix: str) -> None:
        with create_trajectory(tmp_path / f"run{suffix}", water()) as writer:
            writer.append(frame(0, stress=False))
            writer.append(frame(1))
        with read_trajectory(tmp_path / f"run{suffix}") as reader:
            assert reader[0].stress is None
            assert_same(reader[1], frame(1))

    @both_formats
    def test_become_systems(self, tmp_path: Path, suffix: str) -> None:
        path = write(tmp_path / f"run{suffix}", range(3))
        system = read_system(path)
        np.testing.assert_array_equal(system.numbers, water().numbers)
        np.testing.assert_array_equal(system.masses, water().masses)
        np.testing.assert_array_equal(system.positions, frame(2).positions)
        np.testing.assert_array_equal(system.cell, frame(2).cell)
        assert system.velocities is not None
        np.testing.assert_allclose(system.velocities, frame(2).velocities, rtol=1e-14)

    @both_formats
    @pytest.mark.parametrize("step", [5, 4])
    def test_come_in_the_order_of_their_steps(self, tmp_path: Path, suffix: str, step: int) -> None:
        with create_trajectory(tmp_path / f"run{suffix}", water()) as writer:
            writer.append(frame(5))
            with pytest.raises(InputError, match="holds step 5 already"):
                writer.append(frame(step))
        assert_holds(tmp_path / f"run{suffix}", [5])

    @both_formats
    @pytest.mark.parametrize("name", ["positions", "velocities", "forces", "cell", "stress"])
    def test_of_another_shape_are_refused(self, tmp_path: Path, suffix: str, name: str) -> None:
        wrong = dataclasses.replace(frame(1), **{name: np.zeros((1, 3))})
        with create_trajectory(tmp_path / f"run{suffix}", water()) as writer:
            with pytest.raises(InputError, match=rf"{name} .* \(1, 3\)"):
                writer.append(wrong)
            writer.append(frame(2))
        assert_holds(tmp_path / f"run{suffix}", [2])


class TestWhileWritten:
    @both_formats
    def test_another_process_reads_all_frames(self, tmp_path: Path, suffix: str) -> None:
        code = (
            "import sys\n"
            "from mdgraph.io.trajectories import read_trajectory\n"
            "with read_trajectory(sys.argv[1]) as reader:\n"
            "    print(*reader.steps, float(reader[-1].positions.sum()).hex())\n"
        )
        path = tmp_path / f"run{suffix}"
        with create_trajectory(path, water()) as writer:
            for step in range(3):
                writer.append(frame(step))
            command = [sys.executable, "-c", code, str(path)]
            output = subprocess.check_output(command, cwd=ROOT, text=True).split()
            writer.append(frame(3))
        assert output == ["0", "1", "2", float(frame(2).positions.sum()).hex()]

    @pytest.mark.parametrize("library", ["latest", "earliest"])
    def test_plain_h5py_reads_along(self, tmp_path: Path, library: str) -> None:
        path = tmp_path / "run.h5"
        with create_trajectory(path, water()) as writer:
            writer.append(frame(0))
            with h5py.File(path, "r", swmr=True, libver=library) as file:
                positions = file["particles/all/position/value"]
                assert len(positions) == 1
                writer.append(frame(1))
                positions.refresh()
                np.testing.assert_array_equal(positions[1], frame(1).positions)

    @both_formats
    def test_a_reader_keeps_its_frames(self, tmp_path: Path, suffix: str) -> None:
        path = tmp_path / f"run{suffix}"
        with create_trajectory(path, water()) as writer:
            assert_holds(path, [])
            writer.append(frame(0))
            with read_trajectory(path) as reader:
                writer.append(frame(1))
                assert len(reader) == 1
                assert_same(reader[0], frame(0))
            assert_holds(path, [0, 1])
            writer.sync()


WRITE_UNTIL_KILLED = """
import sys
sys.path.insert(0, "tests")
from test_trajectories import create_trajectory, frame, water
with create_trajectory(sys.argv[1], water()) as writer:
    for step in range(10**9):
        writer.append(frame(step))
        print(step, flush=True)
"""

WRITE_UNTIL_FULL = """
import os, resource, sys
sys.path.insert(0, "tests")
from test_trajectories import FileError, create_trajectory, frame, water
writer = create_trajectory(sys.argv[1], water())
try:
    for step in range(10**9):
        writer.append(frame(step))
        if step == 20:
            size = os.path.getsize(sys.argv[1]) + 20_000
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
except FileError as error:
    writer.close()
    print(step, error)
"""


REFUSE_TO_GROW = """
import resource, sys
sys.path.insert(0, "tests")
from test_trajectories import FileError, create_trajectory, resume_trajectory, water
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]),) * 2)
try:
    if sys.argv[2] == "create":
        create_trajectory(sys.argv[1], water())
    else:
        resume_trajectory(sys.argv[1], 10**9, water())
except FileError as error:
    print(error)
"""


class TestFaults:
    @both_formats
    @pytest.mark.parametrize("frames", [1, 50])
    def test_a_killed_run_leaves_all_its_frames_and_goes_on(
        self, tmp_path: Path, suffix: str, frames: int
    ) -> None:
        path = tmp_path / f"run{suffix}"
        command = [sys.executable, "-c", WRITE_UNTIL_KILLED, str(path)]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as run:
            assert run.stdout is not None
            for _ in range(frames):
                written = int(run.stdout.readline())
            os.kill(run.pid, signal.SIGKILL)
        assert run.returncode == -signal.SIGKILL
        with read_trajectory(path) as reader:
            found = len(reader)
        assert found > written
        assert_holds(path, list(range(found)))
        with resume_trajectory(path, written, water()) as writer:
            assert writer.last_step == written
            writer.append(frame(written + 1))
        assert_holds(path, list(range(written + 2)))

    @both_formats
    def test_a_full_disk_ends_in_a_sentence_and_leaves_the_frames(
        self, tmp_path: Path, suffix: str
    ) -> None:
        path = tmp_path / f"run{suffix}"
        command = [sys.executable, "-c", WRITE_UNTIL_FULL, str(path)]
        run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert run.stderr == ""
        assert run.returncode == 0
        failed, _, sentence = run.stdout.strip().partition(" ")
        assert sentence.startswith(f"Cannot write {path}: the file would exceed")
        assert int(failed) > 21
        assert_holds(path, list(range(int(failed))))
        with resume_trajectory(path, int(failed) - 2, water()) as writer:
            writer.append(frame(int(failed) - 1))
        assert_holds(path, list(range(int(failed))))

    @pytest.mark.parametrize(
        ("act", "limit"), [("create", 0), ("create", 9000), ("resume", 9000), ("resume", 40_000)]
    )
    def test_a_disk_full_from_the_start_leaves_what_was(
        self, tmp_path: Path, act: str, limit: int
    ) -> None:
        path = tmp_path / "run.h5"
        before = write(path, range(50)).read_bytes() if act == "resume" else None
        command = [sys.executable, "-c", REFUSE_TO_GROW, str(path), act, str(limit)]
        run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert run.stderr == ""
        assert run.returncode == 0
        assert run.stdout.startswith(f"Cannot write {path}: the file would exceed")
        assert [path.read_bytes() for path in tmp_path.iterdir()] == [before] * (before is not None)

    def test_every_cut_of_an_extended_xyz_file_leaves_the_whole_frames(
        self, tmp_path: Path
    ) -> None:
        whole = write(tmp_path / "run.xyz", range(3)).read_bytes()
        ends = [write(tmp_path / f"{n}.xyz", range(n)).stat().st_size for n in range(4)]
        path = tmp_path / "cut.xyz"
        for size in [*range(ends[1], ends[2], 7), *ends, ends[2] - 1, ends[2] + 1]:
            path.write_bytes(whole[:size])
            complete = sum(size >= end for end in ends[1:])
            with read_trajectory(path) as reader:
                assert reader.steps.tolist() == list(range(complete)), size
                if complete:
                    assert_same(reader[-1], frame(complete - 1))

    @pytest.mark.parametrize("committed", [False, True])
    def test_half_a_frame_in_hdf5_does_not_count(self, tmp_path: Path, committed: bool) -> None:
        path = write(tmp_path / "run.h5", range(3))
        with h5py.File(path, "r+") as file:
            file["particles/all/position/value"].resize(4, axis=0)
            if committed:  # a length that reached the disk before the number did
                file["particles/all/position/step"].resize(4, axis=0)
        assert_holds(path, [0, 1, 2])
        with resume_trajectory(path, 99, water()) as writer:
            writer.append(frame(3))
        assert_holds(path, [0, 1, 2, 3])

    @pytest.mark.parametrize("fraction", [0.0, 0.01, 0.5, 0.9])
    def test_a_truncated_hdf5_file_is_an_error(self, tmp_path: Path, fraction: float) -> None:
        path = write(tmp_path / "run.h5", range(200))
        content = path.read_bytes()
        path.write_bytes(content[: int(len(content) * fraction)])
        with pytest.raises(FileError, match=r"Cannot read .*run\.h5: it is damaged"):
            read_trajectory(path)

    @pytest.mark.parametrize("fraction", [0.1, 0.5, 0.9])
    def test_a_truncated_file_of_a_killed_run_is_an_error(
        self, tmp_path: Path, fraction: float
    ) -> None:
        with create_trajectory(tmp_path / "run.h5", water()) as writer:
            for step in range(100):
                writer.append(frame(step))
            content = writer.path.read_bytes()
        path = tmp_path / "killed.h5"
        path.write_bytes(content)
        assert_holds(path, list(range(100)))
        path.write_bytes(content[: int(len(content) * fraction)])
        with pytest.raises(FileError, match=r"killed\.h5: it is truncated"):
            read_trajectory(path)

    @both_formats
    def test_an_interrupted_frame_is_written_anew(self, tmp_path: Path, suffix: str) -> None:
        class Interrupting(float):
            def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray:
                raise KeyboardInterrupt

            def __float__(self) -> float:
                raise KeyboardInterrupt

        path = tmp_path / f"run{suffix}"
        with create_trajectory(path, water()) as writer:
            writer.append(frame(0))
            with pytest.raises(KeyboardInterrupt):
                writer.append(dataclasses.replace(frame(1), temperature=Interrupting(300.0)))
            assert_holds(path, [0])
            writer.append(frame(1))
        assert_holds(path, [0, 1])


class TestResume:
    @both_formats
    @pytest.mark.parametrize("last_step", [-1, 0, 20, 35, 40, 1000])
    def test_gives_the_frames_of_an_uninterrupted_run(
        self, tmp_path: Path, suffix: str, last_step: int
    ) -> None:
        path = write(tmp_path / f"run{suffix}", range(0, 50, 10))
        kept = [step for step in range(0, 50, 10) if step <= last_step]
        with resume_trajectory(path, last_step, water()) as writer:
            assert writer.last_step == (kept[-1] if kept else None)
            assert_holds(path, kept)
            for step in range(kept[-1] + 10 if kept else 0, 80, 10):
                writer.append(frame(step))
        assert_holds(path, list(range(0, 80, 10)))
        assert list(tmp_path.iterdir()) == [path]

    def test_gives_the_same_bytes_of_extended_xyz(self, tmp_path: Path) -> None:
        whole = write(tmp_path / "whole.xyz", range(9)).read_bytes()
        path = write(tmp_path / "run.xyz", range(7))
        with resume_trajectory(path, 4, water()) as writer:
            for step in range(5, 9):
                writer.append(frame(step))
        assert path.read_bytes() == whole

    @both_formats
    def test_of_a_run_without_frames(self, tmp_path: Path, suffix: str) -> None:
        path = write(tmp_path / f"run{suffix}", range(0))
        with resume_trajectory(path, 0, water()) as writer:
            writer.append(frame(1))
        assert_holds(path, [1])

    @both_formats
    @pytest.mark.parametrize(
        "change",
        [
            {"numbers": np.array([8, 1, 1, 8, 1, 6])},
            {"masses": np.array([15.999, 1.008, 1.008, 15.999, 1.008, 1.008])},
            {"pbc": np.array([True, True, True])},
        ],
    )
    def test_refuses_another_system(
        self, tmp_path: Path, suffix: str, change: dict[str, np.ndarray]
    ) -> None:
        path = write(tmp_path / f"run{suffix}", range(3))
        before = path.read_bytes()
        with pytest.raises(FileError, match="another system"):
            resume_trajectory(path, 1, water().replace(**change))
        assert path.read_bytes() == before

    def test_on_a_full_disk_changes_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = write(tmp_path / "run.h5", range(3))
        before = path.read_bytes()

        def refuse(descriptor: int) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(os, "fsync", refuse)
        with pytest.raises(FileError, match="the disk is full"):
            resume_trajectory(path, 1, water())
        assert path.read_bytes() == before
        assert list(tmp_path.iterdir()) == [path]

    @both_formats
    def test_of_nothing_is_an_error(self, tmp_path: Path, suffix: str) -> None:
        with pytest.raises(FileError, match="no such file"):
            resume_trajectory(tmp_path / f"run{suffix}", 1, water())
        assert list(tmp_path.iterdir()) == []


class TestRefusals:
    def test_a_suffix_of_no_format(self, tmp_path: Path) -> None:
        for name in ("run.dcd", "run"):
            with pytest.raises(InputError, match=r"\.h5md.*\.extxyz"):
                create_trajectory(tmp_path / name, water())
            with pytest.raises(InputError, match="suffix"):
                read_trajectory(tmp_path / name)

    @both_formats
    def test_an_existing_file_is_not_replaced(self, tmp_path: Path, suffix: str) -> None:
        path = write(tmp_path / f"run{suffix}", range(3))
        with pytest.raises(FileError, match="it exists already"):
            create_trajectory(path, water())
        assert_holds(path, [0, 1, 2])

    @both_formats
    def test_places_where_no_file_can_be(self, tmp_path: Path, suffix: str) -> None:
        folder = tmp_path / f"folder{suffix}"
        folder.mkdir()
        (tmp_path / "file").write_bytes(b"")
        for act, place, reason in (
            (read_trajectory, folder, "it is a folder"),
            (read_trajectory, tmp_path / f"absent{suffix}", "no such file"),
            (create, tmp_path / f"absent/run{suffix}", "no such file or folder"),
            (create, tmp_path / f"file/run{suffix}", "not a folder"),
        ):
            with pytest.raises(FileError, match=reason):
                act(place)

    def test_files_of_other_programs(self, tmp_path: Path) -> None:
        foreign = tmp_path / "foreign.extxyz"
        ase.io.write(foreign, ase.Atoms("He", positions=[[0, 0, 0]]))
        with pytest.raises(FileError, match=r"Frame 0 of .*was not written by mdgraph"):
            read_trajectory(foreign)
        plain = tmp_path / "plain.h5"
        with h5py.File(plain, "w", libver="v110") as file:
            file["numbers"] = [1, 2]
        with pytest.raises(FileError, match="no trajectory that this version"):
            read_trajectory(plain)

    def test_a_damaged_frame_is_named(self, tmp_path: Path) -> None:
        path = write(tmp_path / "run.xyz", range(3))
        lines = path.read_bytes().split(b"\n")
        lines[8 + 4] = b"H 1 2 3 rust"
        path.write_bytes(b"\n".join(lines))
        with read_trajectory(path) as reader:
            assert_same(reader[0], frame(0))
            with pytest.raises(FileError, match=r"Frame 1 of .*run\.xyz is damaged"):
                reader[1]


def create(path: Path) -> TrajectoryReader:
    create_trajectory(path, water()).close()
    return read_trajectory(path)


class TestOtherReaders:
    def test_ase_reads_extended_xyz(self, tmp_path: Path) -> None:
        path = write(tmp_path / "run.extxyz", range(3))
        atoms = ase.io.read(path, index=1)
        expected = frame(1)
        np.testing.assert_array_equal(atoms.numbers, water().numbers)
        np.testing.assert_array_equal(atoms.get_masses(), water().masses)
        np.testing.assert_array_equal(atoms.positions, expected.positions)
        np.testing.assert_array_equal(atoms.cell.array, expected.cell)
        np.testing.assert_array_equal(atoms.pbc, water().pbc)
        np.testing.assert_allclose(
            atoms.get_velocities(), expected.velocities / units.fs, rtol=1e-14
        )
        np.testing.assert_array_equal(atoms.get_forces(), expected.forces)
        assert atoms.get_potential_energy() == expected.energy
        assert expected.stress is not None
        symmetric = (expected.stress[[1, 0, 0], [2, 2, 1]], expected.stress[[2, 2, 1], [1, 0, 0]])
        np.testing.assert_array_equal(atoms.get_stress()[:3], np.diag(expected.stress))
        assert (atoms.get_stress()[3:] == symmetric).all(axis=1).any()
        assert atoms.info["step"] == 1
        assert atoms.info["time_fs"] == expected.time_fs
        assert atoms.info["temperature"] == expected.temperature

    def test_any_hdf5_program_reads_the_layout_of_h5md(self, tmp_path: Path) -> None:
        path = write(tmp_path / "run.h5", range(0, 30, 10))
        with h5py.File(path, "r") as file:
            assert file["h5md"].attrs["version"].tolist() == [1, 1]
            assert file["h5md/creator"].attrs["name"] == "mdgraph"
            assert "name" in file["h5md/author"].attrs
            particles = file["particles/all"]
            assert particles["species"][:].tolist() == [8, 1, 1, 8, 1, 1]
            assert particles["box"].attrs["dimension"] == 3
            boundary = particles["box"].attrs["boundary"].tolist()
            assert boundary == [b"periodic", b"periodic", b"none"]
            assert "unwrapped" in particles["position"].attrs["wrapping"]
            assert "image" not in particles
            for name, unit in {
                "particles/all/position": "Angstrom",
                "particles/all/velocity": "Angstrom fs-1",
                "particles/all/force": "eV Angstrom-1",
                "particles/all/box/edges": "Angstrom",
                "observables/potential_energy": "eV",
                "observables/kinetic_energy": "eV",
                "observables/temperature": "K",
                "observables/stress": "eV Angstrom-3",
            }.items():
                element = file[name]
                assert element["value"].attrs["unit"] == unit
                assert element["value"].shape[0] == 3
                assert element["step"][:].tolist() == [0, 10, 20]
                assert element["time"].attrs["unit"] == "fs"
                assert element["step"] == file["particles/all/position/step"]
            np.testing.assert_array_equal(particles["position/value"][2], frame(20).positions)
