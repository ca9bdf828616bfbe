"""A pipeline over frames: reading, batching, evaluating, writing.

    reading -> batching -> evaluating on a device -> writing, in order
    reading -> links to devices and ranks that batch, evaluate and format -> writing, in order

One process evaluates on one device, and where several share a stream, the process that reads and
writes leaves evaluating to others: what drives a GPU takes most of what Python does in a process.
With workers, which are other processes, these parse and format, a thread of each takes the place of
batching, and another process reads. Frames travel in blocks. No more blocks are between reading and
writing than keep all devices and workers busy, so memory does not depend on the number of frames.
An error stays at its place in the order: what was read before it is written, and then it ends all
stages.
"""

import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol, TypeVar

from tqdm import tqdm

from mdgraph.runs.streams.blocks import FrameBlock, ResultBlock, SystemBlock, TextBlock
from mdgraph.runs.streams.workers import Worker, run_here

logger = logging.getLogger(__name__)

_LOOK: Final = 0.2
"""s after which a stage that waits looks whether all has ended, and lets signals come."""

_TURN: Final = 5e-4
"""s that a thread may run on while a device's waits to go on, a tenth of what Python gives it."""

_PATIENCE: Final = 5.0
"""s that other threads have for what they do once all has ended."""

_LINES: Final = 60.0
"""s between two lines of progress where there is no terminal."""

_LINKED: Final = 5
"""Blocks that a link has at a time, one for each of its stages: two travel, there and back, one is
parsed, one evaluated, one formatted. With two in all its device waits half of its time. There is
one more for every second worker, as several parse and format while a GPU evaluates one block."""

_DONE: Final = 8
"""Blocks for each link that may be done before a slower one has done its own."""


class Link(Protocol):
    """A process that evaluates blocks: of a device here, or another rank.

    Attributes:
        name: of it.
        workers: processes that it has to parse and format.
    """

    name: str
    workers: int

    def send(self, block: FrameBlock) -> None:
        """Gives it a block; raises MDGraphError where it is gone."""

    def receive(self) -> TextBlock:
        """Waits for the oldest of its blocks; raises MDGraphError where it is gone."""

    def end(self, *, failed: bool) -> None:
        """Says that no block follows, and whether those under way are of no use."""


class PipelineStopped(Exception):  # noqa: N818
    """Another stage ended the pipeline."""


class StageClock:
    """The share of its time, from its first block to its last, that a stage waits for others."""

    def __init__(self) -> None:
        self._begin = self._end = self._waited = self._pending = 0.0

    def wait(self, seconds: float) -> None:
        """Adds to the time waited, if another block comes."""
        self._pending += seconds

    def work(self) -> None:
        """Begins with a block."""
        now = time.perf_counter()
        if self._begin:
            self._waited += self._pending
        else:
            self._begin = now
        self._pending, self._end = 0.0, now

    def done(self) -> None:
        """Ends with a block."""
        self._end = time.perf_counter()

    @property
    def seconds(self) -> float:
        """Time from the first block to the last, s."""
        return max(self._end - self._begin, 1e-9)

    @property
    def share(self) -> float:
        """From 0 to 1."""
        return self._waited / self.seconds


Item = TypeVar("Item")

Convert = Callable[[Callable[[Any], Any], Any], Any]
"""Calls a function of a block, here or in another process."""


@dataclass(frozen=True)
class DeviceStages:
    """What is done to blocks with one device; the functions raise nothing but what ends everything.

    Attributes:
        name: of the device.
        parse: makes systems of frames.
        evaluate: makes results of systems; calls its second argument now and then, which raises
            once another stage has failed.
        text: formats results.
        workers: processes that parse and format; with none a thread here does.
        seconds: s in which a GPU computed so far, by its own clock; 0 where nobody looks.
    """

    name: str
    parse: Callable[[FrameBlock, Convert], SystemBlock]
    evaluate: Callable[[SystemBlock, Callable[[], None]], ResultBlock]
    text: Callable[[ResultBlock, Convert], TextBlock]
    workers: Sequence[Worker] = ()
    seconds: Callable[[], float] = lambda: 0.0


class Pipeline:
    """Stages that pass blocks on, each in a thread; the device has the calling one.

    Attributes:
        clocks: of each stage, by its name.
    """

    def __init__(
        self,
        write: Callable[[TextBlock], None],
        device: DeviceStages | None = None,
        links: Sequence[Link] = (),
    ) -> None:
        """Starts nothing yet.

        Args:
            write: takes blocks in order; raises their failures.
            device: what evaluates here; without it links do.
            links: to what evaluates in other processes; none beside a device.
        """
        self._write, self._device, self._links = write, device, links
        self._workers: dict[str, Worker] = {}
        names = ["reading", "writing"]
        if device is not None:
            workers = enumerate(device.workers)
            self._workers = {f"worker {number}": worker for number, worker in workers}
            names[1:1] = *(self._workers or ("batching",)), device.name
        self.clocks = {name: StageClock() for name in names}
        self._waiting_there: dict[str, float] = {}
        self._computing_there: dict[str, float] = {}
        self._ahead = len(self._workers) + 2
        self._linked = {link.name: _LINKED + link.workers // 2 for link in links}
        self._limit = 2 * self._ahead
        if links:
            self._limit = sum(self._linked.values()) + _DONE * len(links)
        self._changed = threading.Condition()
        self._raw: deque[FrameBlock] = deque()
        self._order: deque[int] = deque()
        self._systems: dict[int, SystemBlock] = {}
        self._unformatted: deque[ResultBlock] = deque()
        self._results: dict[int, ResultBlock | TextBlock] = {}
        self._under_way: dict[str, deque[int]] = {link.name: deque() for link in links}
        self._read = self._written = 0
        self._all_read = False
        self._failure: BaseException | None = None

    def run(
        self,
        read: Callable[[Callable[[FrameBlock], None]], None],
        end_reading: Callable[[], None] = lambda: None,
    ) -> None:
        """Runs all stages until every block is written.

        Args:
            read: calls its argument with every block.
            end_reading: makes `read` return or raise, where another stage has failed.

        Raises:
            MDGraphError: of the first frame in order that cannot be read, evaluated or written.
        """
        device = self._device
        converters: list[tuple[str, Worker | None]] = [*self._workers.items()]
        if device is not None and not converters:
            converters = [("batching", None)]
        threads = [
            self._thread(self._read_blocks, read),
            *(self._thread(self._convert_blocks, *item, device) for item in converters),
            self._thread(self._write_blocks),
            *(self._thread(self._receive_blocks, link) for link in self._links),
        ]
        senders = [self._thread(self._send_blocks, link) for link in self._links]
        interval = sys.getswitchinterval()
        sys.setswitchinterval(_TURN)
        try:
            for thread in (*threads, *senders):
                thread.start()
            if device is not None:
                self._evaluate_blocks(device)
            self._wait(None, self._is_written)
        except PipelineStopped:
            pass
        except BaseException as error:
            self._fail(error)
            raise
        finally:
            sys.setswitchinterval(interval)
            end = time.monotonic() + _PATIENCE

            def join(stage: threading.Thread) -> None:
                stage.join(max(0.0, end - time.monotonic()))

            with ExitStack() as stack:  # the last comes first; all come, whichever of them fails
                for thread in threads:
                    stack.callback(join, thread)
                for worker in self._workers.values():
                    stack.callback(worker.close)
                stack.callback(end_reading)
                for link in self._links:
                    stack.callback(link.end, failed=self._failure is not None)
                for thread in senders:
                    stack.callback(join, thread)
        if self._failure is not None:
            raise self._failure

    def check(self) -> None:
        """Raises PipelineStopped once another stage has failed."""
        if self._failure is not None:
            raise PipelineStopped

    def _is_written(self) -> bool:
        return self._all_read and self._written == self._read

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            if self._failure is None:
                self._failure = error
            self._changed.notify_all()

    def _thread(self, body: Callable[..., None], *arguments: Any) -> threading.Thread:
        return threading.Thread(target=self._run_guarded, args=(body, arguments), daemon=True)

    def _run_guarded(self, body: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        try:
            body(*arguments)
        except PipelineStopped:
            pass
        except BaseException as error:  # noqa: BLE001  # raised again in the calling thread
            self._fail(error)

    def _wait(self, stage: str | None, ready: Callable[[], bool]) -> None:
        """Waits for a condition, on the clock of a stage; raises PipelineStopped."""
        began = time.perf_counter()
        with self._changed:
            while not ready():
                self.check()
                self._changed.wait(_LOOK)
        self.check()
        if stage is not None:
            self.clocks[stage].wait(time.perf_counter() - began)

    @contextmanager
    def _at_work(self, stage: str) -> Any:
        clock = self.clocks[stage]
        clock.work()
        yield
        clock.done()

    def _put(self, change: Callable[[], None]) -> None:
        with self._changed:
            change()
            self._changed.notify_all()

    def _next_item(
        self,
        stage: str | None,
        ready: Callable[[], bool],
        take: Callable[[], Item],
        ended: Callable[[], bool],
    ) -> Item | None:
        """What `take` gives once it is ready; None at the end."""
        while True:
            self._wait(stage, lambda: ready() or ended())
            with self._changed:
                if ready():
                    item = take()
                    self._changed.notify_all()
                    return item
                if ended():
                    return None

    def _read_blocks(self, read: Callable[[Callable[[FrameBlock], None]], None]) -> None:
        clock = self.clocks["reading"]

        def put(block: FrameBlock) -> None:
            clock.done()
            self._wait("reading", lambda: self._read - self._written < self._limit)
            own = replace(block, number=self._read)  # which others that sent it count anew
            self._read += 1
            self._put(lambda: self._raw.append(own))
            clock.work()

        clock.work()
        read(put)

        def end() -> None:
            self._all_read = True

        self._put(end)

    def _convert_blocks(self, name: str, worker: Worker | None, device: DeviceStages) -> None:
        """Parses blocks, and formats results if a worker does that."""

        def ready() -> bool:
            return (
                bool(self._unformatted)
                or (bool(self._raw) and len(self._order) < self._ahead)
                or self._is_written()
            )

        while True:
            self._wait(name, ready)
            raw, results = None, None
            with self._changed:
                if self._unformatted:  # first, as these make room for others
                    results = self._unformatted.popleft()
                elif self._raw and ready():
                    raw = self._raw.popleft()
                    self._order.append(raw.number)
                elif self._is_written():
                    return
                self._changed.notify_all()
            if raw is not None:
                with self._at_work(name):
                    systems = device.parse(raw, _converter(worker, raw.number))
                self._put(lambda systems=systems: self._keep_systems(systems))  # type: ignore[misc]
            elif results is not None:
                with self._at_work(name):
                    text = device.text(results, _converter(worker, results.number))
                self._put(lambda text=text: self._keep(text))  # type: ignore[misc]

    def _keep_systems(self, block: SystemBlock) -> None:
        self._systems[block.number] = block

    def _evaluate_blocks(self, device: DeviceStages) -> None:
        """Takes blocks in order, as those before decide the shapes of batches."""

        def ready() -> bool:
            return bool(self._order) and self._order[0] in self._systems

        def ended() -> bool:
            return self._all_read and not self._raw and not self._order

        def take() -> SystemBlock:
            return self._systems.pop(self._order.popleft())

        while (block := self._next_item(device.name, ready, take, ended)) is not None:
            with self._at_work(device.name):
                results = device.evaluate(block, self.check)
            self._put(lambda results=results: self._keep_results(results))  # type: ignore[misc]

    def _keep_results(self, block: ResultBlock) -> None:
        if self._workers:
            self._unformatted.append(block)
        else:
            self._keep(block)

    def _keep(self, block: ResultBlock | TextBlock) -> None:
        self._results[block.number] = block

    def _send_blocks(self, link: Link) -> None:
        """Gives a link blocks while it has the fewest of those that have room."""

        def ready() -> bool:
            counts = {name: len(numbers) for name, numbers in self._under_way.items()}
            free = {name: count for name, count in counts.items() if count < self._linked[name]}
            fewest = min(free.values(), default=0)
            return bool(self._raw) and free.get(link.name) == fewest

        def take() -> FrameBlock:
            block = self._raw.popleft()
            self._under_way[link.name].append(block.number)
            return block

        def ended() -> bool:
            return self._all_read and not self._raw

        while (block := self._next_item(None, ready, take, ended)) is not None:
            link.send(block)

    def _receive_blocks(self, link: Link) -> None:
        while True:
            self._wait(None, lambda: bool(self._under_way[link.name]) or self._is_written())
            if self._is_written():
                return
            block = link.receive()
            self._waiting_there |= block.waiting
            self._computing_there |= block.computing
            self._put(lambda block=block: self._keep_linked(link, block))  # type: ignore[misc]

    def _keep_linked(self, link: Link, block: TextBlock) -> None:
        """Keeps a block under the number that it has here; a link gives them back in order."""
        self._keep(replace(block, number=self._under_way[link.name].popleft()))

    def _write_blocks(self) -> None:
        while True:
            self._wait("writing", lambda: self._written in self._results or self._is_written())
            if self._is_written():
                return
            block = self._results.pop(self._written)
            with self._at_work("writing"):
                if isinstance(block, ResultBlock):
                    assert self._device is not None
                    block = self._device.text(block, run_here)
                self._write(block)
            self._put(self._count_written)

    def _count_written(self) -> None:
        self._written += 1

    def waiting_devices(self) -> dict[str, float]:
        """Share of its time that each device waits for others, by name."""
        if self._device is None:
            return dict(sorted(self._waiting_there.items()))
        return {self._device.name: self.clocks[self._device.name].share}

    def computing(self) -> dict[str, float]:
        """Share of the time that each GPU computes, by name."""
        if self._device is None or not (seconds := self._device.seconds()):
            return self._computing_there
        return {self._device.name: seconds / self.clocks[self._device.name].seconds}

    def waiting(self) -> dict[str, float]:
        """Share of its time that each stage waits for others, by name."""
        working = [self.clocks[name].share for name in self._workers]
        parsing = {f"{len(working)} workers": sum(working) / len(working)} if working else {}
        if "batching" in self.clocks:
            parsing = {"batching": self.clocks["batching"].share}
        reading, writing = self.clocks["reading"].share, self.clocks["writing"].share
        return {"reading": reading, **parsing, **self.waiting_devices(), "writing": writing}


def _converter(worker: Worker | None, number: int) -> Convert:
    """What converts the frames of a block: the first one here, so that few start no process."""
    return run_here if worker is None or number == 0 else worker.convert


class StreamProgress:
    """Frames, frames a second and who waits: a bar on a terminal, else a line a minute."""

    def __init__(self, title: str, previous: int) -> None:
        """Shows an empty bar.

        Args:
            title: of the bar.
            previous: frames that are written before.
        """
        self._title, self.frames = title, 0
        self._began = self._line = time.monotonic()
        self._bar = tqdm(
            initial=previous, desc=title, unit="frame", disable=None, dynamic_ncols=True
        )

    def update(
        self, frames: int, waiting: Mapping[str, float], computing: Mapping[str, float]
    ) -> None:
        """Adds frames that are written; see `sentence`."""
        self.frames += frames
        if self._bar.disable:
            if time.monotonic() - self._line >= _LINES:
                self._line = time.monotonic()
                logger.info("%s", self.sentence(waiting, computing))
            return
        self._bar.set_postfix_str(f"waiting: {shares_text(waiting)}", refresh=False)
        self._bar.update(frames)

    def sentence(self, waiting: Mapping[str, float], computing: Mapping[str, float]) -> str:
        """Speed and shares in words.

        Args:
            waiting: share of its time that each stage waits for others.
            computing: share of the time that each GPU replays graphs, by its own clock.
        """
        speed = self.frames / max(time.monotonic() - self._began, 1e-9)
        text = (
            f"{self._title}: {self.frames:,} frames, {speed:,.4g} a second; share of its time that "
            f"each stage waits for others: {shares_text(waiting)}"
        )
        return text + (f"; GPUs compute in graphs: {shares_text(computing)}" if computing else "")

    def close(self) -> None:
        """Leaves the bar as it stands."""
        self._bar.close()


def shares_text(shares: Mapping[str, float]) -> str:
    """Stages with their shares, for people to read."""
    return ", ".join(f"{name} {100.0 * share:.0f} %" for name, share in shares.items())
