"""Trajectories after kills, full disks and resumes."""

import dataclasses
import errno
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from prepared import PreparedProcess, ended
from written_frames import assert_holds, assert_same, both_formats, frame, water, write

from mdgraph.errors import FileError
from mdgraph.io.formats import create_trajectory, read_trajectory, resume_trajectory

WRITE_UNTIL_KILLED = """
import sys
from written_frames import create_trajectory, frame, water
with create_trajectory(sys.argv[1], water()) as writer:
    for step in range(10**9):
        writer.append(frame(step))
        print(step, flush=True)
"""

WRITE_UNTIL_FULL = """
import os, resource, sys
from mdgraph.errors import FileError
from written_frames import create_trajectory, frame, water
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
from mdgraph.errors import FileError
from mdgraph.io.formats import create_trajectory, resume_trajectory
from written_frames import water
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
        self, processes: Any, tmp_path: Path, suffix: str, frames: int
    ) -> None:
        path = tmp_path / f"run{suffix}"
        words = ["-c", WRITE_UNTIL_KILLED, path]
        with PreparedProcess(processes, words, stdout=subprocess.PIPE) as run:
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
        self, processes: Any, tmp_path: Path, suffix: str
    ) -> None:
        path = tmp_path / f"run{suffix}"
        run = ended(processes, ["-c", WRITE_UNTIL_FULL, path])
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
        self, processes: Any, tmp_path: Path, act: str, limit: int
    ) -> None:
        path = tmp_path / "run.h5"
        before = write(path, range(50)).read_bytes() if act == "resume" else None
        run = ended(processes, ["-c", REFUSE_TO_GROW, path, act, limit])
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
