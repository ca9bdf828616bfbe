"""Where frames of a stream come from, and what reads them into blocks; none is kept.

Extended XYZ from standard input or a file, H5MD trajectories and data sets are read frame by frame,
the first two also while they grow. Files of other formats are read whole.

Blocks are made here or in a process that does nothing else. That process imports no torch and packs
the frames of a block once; whoever parses them unpacks them, and all others hand on bytes. It reads
the standard input that it inherits. It ends with the process that started it, however that ends,
and leaves signals to that one.
"""

import io
import os
import pickle
import select
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from mdgraph.data.dataset import is_dataset, open_dataset
from mdgraph.errors import InputError, MDGraphError, prefix_errors
from mdgraph.io.files import COMPRESSIONS, disk_failures, readable_file
from mdgraph.io.formats import format_of, read_trajectory
from mdgraph.io.structures import is_xyz, read_systems, split_frame
from mdgraph.io.xyz import BufferedLines, frame_texts, open_xyz
from mdgraph.runs.streams.blocks import FrameBlock, PackedFrames, RawFrame, with_plain_failure
from mdgraph.runs.streams.workers import Answers, StreamProcess, unexpected_error
from mdgraph.system import System

STANDARD_INPUT: Final = "-"
"""What stands for standard input among the names of files."""

_POLL: Final = 0.2
"""s between two looks for more input; a source that gives nothing for so long is idle."""

_PART: Final = 1 << 18
"""Bytes that are read at a time."""

_SMALL: Final = 1 << 22
"""Bytes that a thread reads in less than 0.1 s: some 70,000 atoms as extended XYZ."""

_SERVE: Final = "from mdgraph.runs.streams.sources import serve; serve()"


@dataclass(frozen=True)
class StreamSource:
    """Files in a row, some of which may still grow.

    Attributes:
        paths: structure files; `-` is standard input.
        wait_s: s to wait at the end of a growing file for more of it.
    """

    paths: Sequence[str]
    wait_s: float = 0.0

    def check_files(self) -> None:
        """Raises FileError where one of the files cannot be read."""
        for name in self.paths:
            if name != STANDARD_INPUT:
                readable_file(split_frame(name)[0], "a structure")

    def is_small(self) -> bool:
        """Whether all is in plain files that are read in no time, and that nobody waits for."""
        names = [split_frame(name)[0] for name in self.paths if name != STANDARD_INPUT]
        if self.wait_s or len(names) < len(self.paths):
            return False
        if any(path.suffix.lower() in COMPRESSIONS for path in names):
            return False
        return sum(path.stat().st_size for path in names if path.exists()) <= _SMALL

    def frames(self, idle: Callable[[], None], check: Callable[[], None]) -> Iterator[RawFrame]:
        """Yields all frames in order.

        Args:
            idle: called when a source gives nothing for a while.
            check: called while a source is waited for; an exception of it ends the reading.

        Raises:
            MDGraphError: a file cannot be read, or a frame is broken; the message names both.
        """
        for path in self.paths:
            if path == STANDARD_INPUT:
                lines = GrowingLines(0, self.wait_s, idle, check)
                yield from _of_xyz(Path("standard input"), lines)
            else:
                yield from self._of_file(path, idle, check)

    def _of_file(
        self, name: str, idle: Callable[[], None], check: Callable[[], None]
    ) -> Iterator[RawFrame]:
        path, frame = split_frame(name)
        trajectory = format_of(path)
        if frame is not None:
            yield from _of_systems(name, read_systems(name))
        elif trajectory is not None and not trajectory.read_by_ase:
            if trajectory.word == "h5md" and is_dataset(path):
                yield from _of_dataset(path)
            else:
                yield from self._of_trajectory(path, idle, check)
        elif self.wait_s and path.suffix.lower() in (".xyz", ".extxyz"):
            readable_file(path, "a structure")
            with disk_failures(path, "read"), path.open("rb") as file:
                yield from _of_xyz(path, GrowingLines(file.fileno(), self.wait_s, idle, check))
        elif is_xyz(path):
            with closing(open_xyz(path)) as file, disk_failures(path, "read"):
                size = file.seek(0, io.SEEK_END)  # what a compressed one unpacks to
                file.seek(0)
                lines = BufferedLines(lambda: file.read(_PART))
                yield from _of_xyz(path, lines, None if self.wait_s else size)
        else:
            yield from _of_systems(name, read_systems(name))

    def _of_trajectory(
        self, path: Path, idle: Callable[[], None], check: Callable[[], None]
    ) -> Iterator[RawFrame]:
        count, grew = 0, time.monotonic()
        while True:
            with read_trajectory(path) as reader:
                for number in range(count, len(reader)):
                    name = f"{path}, frame {number}"
                    with prefix_errors(name):
                        system = reader.system(number)
                    yield RawFrame(name, len(system), system)
                if len(reader) > count:
                    count, grew = len(reader), time.monotonic()
            if time.monotonic() - grew >= self.wait_s:
                return
            idle()
            check()
            time.sleep(_POLL)


def _of_xyz(path: Path, lines: BufferedLines, size: int | None = None) -> Iterator[RawFrame]:
    for text in frame_texts(path, lines, size):
        yield RawFrame(f"{path}, frame {text.number}", text.atoms, text)


def _of_systems(name: str, systems: Sequence[System]) -> Iterator[RawFrame]:
    for number, system in enumerate(systems):
        yield RawFrame(f"{name}, frame {number}", len(system), system)


def _of_dataset(path: Path) -> Iterator[RawFrame]:
    with open_dataset(path) as dataset:
        for number, frame in enumerate(dataset.frames()):
            name = f"{path}, frame {number}"
            with prefix_errors(name):
                system = frame.system()
            yield RawFrame(name, len(system), system)


class GrowingLines(BufferedLines):
    """Lines of a pipe, a terminal or a growing file."""

    def __init__(
        self,
        descriptor: int,
        wait_s: float,
        idle: Callable[[], None],
        check: Callable[[], None],
    ) -> None:
        """Reads nothing yet.

        Args:
            descriptor: of the open file.
            wait_s: s to wait at the end of a file; the end of a pipe is its end.
            idle: called once when nothing came for a while.
            check: called while waiting; an exception of it ends the wait.
        """
        super().__init__(self._next_part)
        self._descriptor = descriptor
        self._wait = wait_s if stat.S_ISREG(os.fstat(descriptor).st_mode) else 0.0
        self._idle, self._check = idle, check

    def _next_part(self) -> bytes:
        """The next bytes, empty at the end."""
        began, was_idle = time.monotonic(), False
        while True:
            self._check()
            if select.select([self._descriptor], [], [], _POLL)[0]:
                part = os.read(self._descriptor, _PART)
                waited = time.monotonic() - began
                if part or waited >= self._wait:
                    return part
                time.sleep(min(_POLL, self._wait))
            if not was_idle:
                self._idle()
                was_idle = True


class BlockReader:
    """Divides the frames of a source into blocks.

    Blocks end by the numbers of atoms alone, so that a stream that is read again has the same ones;
    only where a source gives nothing for a while, those that are there go on.

    Attributes:
        frames: number of frames so far.
    """

    def __init__(
        self, source: StreamSource, atoms: int, results: int, check: Callable[[], None]
    ) -> None:
        """Reads nothing yet.

        Args:
            source: of the frames.
            atoms: of a block, at least.
            results: frames that are written already; blocks before the last of them are left out.
            check: see `StreamSource.frames`.
        """
        self._source, self._atoms, self._results, self._check = source, atoms, results, check
        self._put: Callable[[FrameBlock], None]
        self._block: list[RawFrame] = []
        self._filled = self._number = self.frames = 0

    def read(self, put: Callable[[FrameBlock], None]) -> None:
        """Calls `put` with every block; why there are no more is the failure of the last one."""
        self._put, failure = put, None
        try:
            for frame in self._source.frames(self._flush, self._check):
                self._block.append(frame)
                self._filled += frame.atoms
                if self._filled >= self._atoms:
                    self._flush()
        except MDGraphError as error:
            failure = error
        self._flush()
        if failure is None and self.frames < self._results:
            failure = InputError(
                f"The input has {self.frames:,} frames, and results of {self._results:,} are "
                "written already; give the input that they are of."
            )
        if failure is None and self.frames == 0:
            failure = InputError("The input holds no frames; give some.")
        if failure is not None:
            put(FrameBlock(self._number, self.frames, [], failure))

    def _flush(self) -> None:
        block, first = self._block, self.frames
        self.frames += len(block)
        self._block, self._filled = [], 0
        if not block or self.frames < self._results:
            return
        self._put(FrameBlock(self._number, first, block))
        self._number += 1

    def close(self) -> None:
        """Nothing is to be ended here."""


class ReaderProcess(StreamProcess):
    """A process that reads; see BlockReader."""

    called = "The process that reads frames"
    advice = "--resume"

    def __init__(self, source: StreamSource, atoms: int, results: int) -> None:
        """Starts it; it imports modules, and reads from `read` on, no more than a block ahead.

        Args:
            source: of the frames.
            atoms: of a block, at least.
            results: see BlockReader.
        """
        super().__init__()
        own, control = os.pipe()
        # Ctrl-C comes to the process that started it alone, but only its session has the terminal.
        typed = STANDARD_INPUT in source.paths and os.isatty(0)
        stdin = None if STANDARD_INPUT in source.paths else subprocess.DEVNULL
        try:
            words = ("-c", _SERVE, str(own))
            self._start(*words, stdin=stdin, pass_fds=[own], start_new_session=not typed)
        finally:
            os.close(own)
        self._calls = os.fdopen(control, "wb")
        self._arguments = source, atoms, results

    def read(self, put: Callable[[FrameBlock], None]) -> None:
        """See BlockReader.

        Raises:
            MDGraphError: the process is gone, also before it has begun.
            RuntimeError: anything that is no error of the input.
        """
        self._send(self._arguments)
        while (block := self._receive()) is not None:
            put(block)


def open_reader(
    source: StreamSource,
    atoms: int,
    results: int,
    check: Callable[[], None],
    *,
    has_workers: bool,
) -> BlockReader | ReaderProcess:
    """What reads a stream: a process where workers parse, but of small files, which start none.

    Args:
        source: of the frames.
        atoms: of a block, at least.
        results: see BlockReader.
        check: likewise.
        has_workers: whether other processes parse.
    """
    if has_workers and not source.is_small():
        return ReaderProcess(source, atoms, results)
    return BlockReader(source, atoms, results, check)


def serve() -> None:
    """Reads for the process that started this one, until one of them ends."""
    answers = Answers()
    control = os.fdopen(int(sys.argv[1]), "rb")
    source, atoms, results = pickle.load(control)

    def end_with_starter() -> None:
        control.read()  # nothing comes but the end
        os._exit(0)

    threading.Thread(target=end_with_starter, daemon=True).start()

    def put(block: FrameBlock) -> None:
        answers.give(with_plain_failure(replace(block, frames=PackedFrames.of(block.frames))))

    try:
        BlockReader(source, atoms, results, lambda: None).read(put)
        answers.give(None)
    except BrokenPipeError:
        pass
    except Exception as error:  # noqa: BLE001  # raised again where it was started
        answers.give(unexpected_error(error, "the process that reads frames"))
    os._exit(0)
