"""Reading of a stream: blocks of frames, made here or in a process that does nothing else.

That process imports no torch and packs the frames of a block once; whoever parses them unpacks
them, and all others hand on bytes. It reads the standard input that it inherits. It ends with the
process that started it, however that ends, and leaves signals to that one.
"""

import logging
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, Final

from mdgraph.errors import InputError, MDGraphError
from mdgraph.processes import SAME_MODULES, module_path
from mdgraph.runs.streams.blocks import FrameBlock, PackedFrames
from mdgraph.runs.streams.sources import STANDARD_INPUT, RawFrame, StreamSource
from mdgraph.runs.streams.workers import KeptMessages, say_once, send, widen
from mdgraph.signals import SIGNALS

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


class ReaderProcess:
    """A process that reads; see BlockReader."""

    def __init__(self, source: StreamSource, atoms: int, results: int) -> None:
        """Starts it; it imports modules, and reads from `read` on, no more than a block ahead.

        Args:
            source: of the frames.
            atoms: of a block, at least.
            results: see BlockReader.
        """
        own, control = os.pipe()
        # Ctrl-C comes to the process that started it alone, but only its session has the terminal.
        typed = STANDARD_INPUT in source.paths and os.isatty(0)
        try:
            self._process = subprocess.Popen(
                [sys.executable, *SAME_MODULES, "-c", _SERVE, str(own)],
                stdin=None if STANDARD_INPUT in source.paths else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                pass_fds=[own],
                env=os.environ | {"PYTHONPATH": module_path(), "OMP_NUM_THREADS": "1"},
                start_new_session=not typed,
            )
        finally:
            os.close(own)
        widen(self._process.stdout)
        self._control = os.fdopen(control, "wb")
        self._arguments = source, atoms, results

    def read(self, put: Callable[[FrameBlock], None]) -> None:
        """See BlockReader.

        Raises:
            MDGraphError: the process is gone, also before it has begun.
            RuntimeError: anything that is no error of the input.
        """
        assert self._process.stdout is not None
        with self._naming_end():
            send(self._control, self._arguments)
        while True:
            with self._naming_end():
                message, logged = pickle.load(self._process.stdout)
            for text in logged:
                say_once(*text)
            if isinstance(message, BaseException):
                raise message
            if message is None:
                return
            put(message)

    @contextmanager
    def _naming_end(self) -> Iterator[None]:
        """Raises MDGraphError where a message fails in the block, as the process is gone."""
        try:
            yield
        except (OSError, EOFError, pickle.UnpicklingError) as error:
            raise MDGraphError(
                f"The process that reads frames ended (status {self._process.wait()}), as it "
                "does where memory is short; what is written is whole, so go on with --resume."
            ) from error

    def close(self) -> None:
        """Ends the process at once; of no effect on one that is gone."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._control, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):  # of arguments that it did not take any more
                    pipe.close()


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
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    control = os.fdopen(int(sys.argv[1]), "rb")
    source, atoms, results = pickle.load(control)

    def end_with_starter() -> None:
        control.read()  # nothing comes but the end
        os._exit(0)

    threading.Thread(target=end_with_starter, daemon=True).start()
    blocks = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what any library prints is no block
    messages = KeptMessages()
    logging.getLogger().addHandler(messages)

    def put(message: Any) -> None:
        logged, messages.texts = messages.texts, []
        send(blocks, (message, logged))

    def put_block(block: FrameBlock) -> None:
        failure = None if block.failure is None else MDGraphError(str(block.failure))
        put(replace(block, frames=PackedFrames.of(block.frames), failure=failure))

    try:
        BlockReader(source, atoms, results, lambda: None).read(put_block)
        put(None)
    except BrokenPipeError:
        pass
    except Exception as error:  # noqa: BLE001  # raised again where it was started
        put(RuntimeError(f"{type(error).__name__} in the process that reads frames: {error}"))
    os._exit(0)
