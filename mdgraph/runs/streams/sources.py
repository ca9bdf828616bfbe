"""Where frames of a stream come from: one after another, and none is kept.

Extended XYZ from standard input or a file, H5MD trajectories and data sets are read frame by frame,
the first two also while they grow. Files of other formats are read whole.
"""

import io
import os
import select
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mdgraph.data.dataset import is_dataset, open_dataset
from mdgraph.errors import prefix_errors
from mdgraph.io.files import COMPRESSIONS, disk_failures, readable_file
from mdgraph.io.formats import format_of, read_trajectory
from mdgraph.io.structures import is_xyz, read_systems, split_frame
from mdgraph.io.xyz import BufferedLines, FrameText, frame_texts, open_xyz
from mdgraph.system import System

STANDARD_INPUT: Final = "-"
"""What stands for standard input among the names of files."""

_POLL: Final = 0.2
"""s between two looks for more input; a source that gives nothing for so long is idle."""

_PART: Final = 1 << 18
"""Bytes that are read at a time."""

_SMALL: Final = 1 << 22
"""Bytes that a thread reads in less than 0.1 s: some 70,000 atoms as extended XYZ."""


@dataclass(frozen=True, eq=False)
class RawFrame:
    """A frame that is not parsed yet.

    Attributes:
        name: file and frame, for errors.
        atoms: number of atoms.
        content: its text, or a system where the file has no text.
    """

    name: str
    atoms: int
    content: FrameText | System

    def __reduce__(self) -> Any:  # a third of the time of pickling a dict
        return RawFrame, (self.name, self.atoms, self.content)


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
