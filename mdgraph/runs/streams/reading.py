"""Reading of a stream: blocks of frames, made here or in a process that does nothing else.

That process imports no torch and packs the frames of a block once; whoever parses them unpacks
them, and all others hand on bytes. It reads the standard input that it inherits. It ends with the
process that started it, however that ends, and leaves signals to that one.
"""

import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from mdgraph.errors import InputError, MDGraphError
from mdgraph.runs.streams.blocks import FrameBlock, PackedFrames, with_plain_failure
from mdgraph.runs.streams.sources import STANDARD_INPUT, RawFrame, StreamSource
from mdgraph.runs.streams.workers import Answers, StreamProcess, unexpected

_SERVE: Final = "from mdgraph.runs.streams.reading import serve; serve()"


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
        answers.give(unexpected(error, "the process that reads frames"))
    os._exit(0)
