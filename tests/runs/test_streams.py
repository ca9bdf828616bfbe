"""eval and relax of streams: bounded, in order, resumable, over devices and ranks; bad input."""

import gzip
import itertools
import os
import queue
import random
import re
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
import pytest
from prepared import PreparedProcess, prepared_ranks
from repository import ROOT

from mdgraph.data import LabelledFrame, Provenance, write_dataset
from mdgraph.errors import FileError, InputError, LostRankError, MDGraphError, prefix_errors
from mdgraph.io.formats import create_trajectory
from mdgraph.io.structures import from_xyz, read_system
from mdgraph.io.trajectories import Frame
from mdgraph.io.xyz import BufferedLines, FrameText, frame_texts
from mdgraph.runs.streams.blocks import (
    FrameBlock,
    PackedFrames,
    RawFrame,
    ResultBlock,
    SystemBlock,
    TextBlock,
)
from mdgraph.runs.streams.links import StreamRanks
from mdgraph.runs.streams.pipeline import Convert, DeviceStages, Pipeline, StreamProgress
from mdgraph.runs.streams.sources import (
    BlockReader,
    GrowingLines,
    ReaderProcess,
    StreamSource,
    open_reader,
)
from mdgraph.runs.streams.workers import Worker, default_workers, parse_block, run_here
from mdgraph.system import System, SystemArrays, total_charge

Command = Callable[..., Any]
FRAMES = 1100
"""Of 6 atoms: three blocks."""


@pytest.fixture(scope="module")
def frames_file(tmp_path_factory: pytest.TempPathFactory, water_file: Path) -> Path:
    generator = np.random.default_rng(0)
    water = ase.io.read(water_file)
    frames = []
    for _ in range(FRAMES):
        frames.append(water.copy())
        frames[-1].positions += generator.normal(scale=0.05, size=(6, 3))
    path = tmp_path_factory.mktemp("frames") / "frames.extxyz"
    ase.io.write(path, frames)
    return path


@pytest.fixture
def arguments(tiny_potential: Path, tmp_path: Path) -> list[Any]:
    common = ["--potential", tiny_potential, "--device", "cpu", "--no-check"]
    return [*common, "--out", tmp_path / "e.extxyz"]


@pytest.fixture(scope="module")
def whole(
    processes: Any,
    frames_file: Path,
    tiny_potential: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> bytes:
    """Results that nothing interrupted."""
    out = tmp_path_factory.mktemp("whole") / "e.extxyz"
    words = ["eval", frames_file, "--potential", tiny_potential, "--no-check", "--out", out]
    assert begun(processes, *words).wait() == 0
    return out.read_bytes()


def environment() -> dict[str, str]:
    own = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return {**os.environ, **own}


def begun(processes: Any, *words: object, **streams: Any) -> PreparedProcess:
    """The command in a process of its own."""
    return PreparedProcess(processes, ["-m", "mdgraph", *words], env=environment(), **streams)


def lines_of(path: Path, frame: int) -> tuple[list[str], int]:
    """The lines of a file of frames of six atoms, and the place of a frame among them."""
    return path.read_text().splitlines(keepends=True), 8 * frame


# Resuming


@pytest.mark.usefixtures("one_thread")
def test_a_cut_file_goes_on_to_the_same_bytes(
    mdgraph_command: Command,
    arguments: list[Any],
    frames_file: Path,
    whole: bytes,
    tmp_path: Path,
) -> None:
    """Cut within a frame, a line or a block, at its end, and where nothing is left."""
    out = tmp_path / "e.extxyz"
    generator = random.Random(3)
    sizes = [generator.randrange(len(whole)) for _ in range(2)]
    for size in (*sizes, len(whole), 0):
        out.write_bytes(whole[:size])
        done = mdgraph_command("eval", frames_file, *arguments, "--resume")
        assert done.status == 0, done.err
        held = whole[:size].count(b"Lattice") - (not whole[:size].endswith(b"\n")) if size else 0
        assert f"after the {held} that it held" in done.out or held <= 0
        assert out.read_bytes() == whole


def test_a_killed_command_goes_on_to_the_same_bytes(
    processes: Any, arguments: list[Any], frames_file: Path, whole: bytes, tmp_path: Path
) -> None:
    out = tmp_path / "e.extxyz"
    words = ["eval", frames_file, *arguments, "--resume"]  # which starts without a file
    process = begun(processes, *words)
    while not out.exists() and process.poll() is None:
        time.sleep(0.01)
    process.kill()
    process.wait()
    kept = out.read_bytes()
    assert whole.startswith(kept)
    assert begun(processes, *words).wait() == 0
    assert out.read_bytes() == whole


@pytest.mark.usefixtures("one_thread")
def test_resuming_refuses_what_does_not_belong(
    mdgraph_command: Command,
    arguments: list[Any],
    frames_file: Path,
    whole: bytes,
    tmp_path: Path,
) -> None:
    out = tmp_path / "e.extxyz"
    lines, at = lines_of(frames_file, 1)
    other = tmp_path / "other.extxyz"
    two = b"".join(line for line in whole.splitlines(keepends=True)[:16])
    energy = whole.splitlines()[9].split(b"energy=")[1].split()[0]
    cases: list[tuple[list[str], bytes, str]] = [
        (["".join(lines[:at])], two, "The input has 1 frames, and results of 2 are written"),
        (["".join(lines[at:])], two, "the last of them has other positions or another cell"),
        (["".join(lines)], two.replace(energy, b"17.5"), "has an energy of 17.5 eV, where it is"),
        (["".join(lines)], b"years of work\n" * 3, "holds other things than results of mdgraph"),
    ]
    for (text,), content, sentence in cases:
        other.write_text(text)
        out.write_bytes(content)
        done = mdgraph_command("eval", other, *arguments, "--resume")
        assert (done.status, done.out) == (1, "")
        assert sentence in done.err
        assert out.read_bytes() == content
    done = mdgraph_command("eval", frames_file, *arguments, "--resume", "--overwrite")
    assert "give one" in done.err
    assert mdgraph_command("eval", out, *arguments, "--overwrite").err.endswith(
        "which is read; give another name.\n"
    )


@pytest.mark.usefixtures("one_thread")
def test_relax_resumes(
    mdgraph_command: Command, arguments: list[Any], frames_file: Path, tmp_path: Path
) -> None:
    lines, at = lines_of(frames_file, 5)
    few = tmp_path / "few.extxyz"
    few.write_text("".join(lines[:at]))
    options = ["relax", few, *arguments, "--steps", "3"]
    assert mdgraph_command(*options).status == 0
    out = tmp_path / "e.extxyz"
    expected = out.read_bytes()
    out.write_bytes(expected[: len(expected) // 2])
    done = mdgraph_command(*options, "--resume")
    assert done.status == 0, done.err
    assert "0 of 3 minima found" in done.out
    assert out.read_bytes() == expected


# Bad input


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("H nonsense 1 1\n", "frame 700, line 5604: 'nonsense' is not a number"),
        ("H nan 1 1\n", "frame 700: The positions of atom 1 are not finite"),
        ("F 1.9 1 1\n", "frame 700: The potential does not know F (atoms 1)"),
        ("", "frame 700, line 5608: it has 1 of 4 columns ('6')"),
    ],
)
def test_a_broken_frame_is_named_and_those_before_it_are_written(
    mdgraph_command: Command,
    arguments: list[Any],
    frames_file: Path,
    whole: bytes,
    tmp_path: Path,
    line: str,
    sentence: str,
) -> None:
    lines, at = lines_of(frames_file, 700)
    lines[at + 3] = line
    broken = tmp_path / "broken.extxyz"
    broken.write_text("".join(lines))
    done = mdgraph_command("eval", broken, *arguments)
    assert done.status == 1
    (error,) = (text for text in done.err.splitlines() if "error" in text)
    assert sentence in error
    written = ase.io.read(tmp_path / "e.extxyz", ":")
    assert len(written) == 700
    if "700:" not in sentence:
        return
    # Repaired, it goes on; frames beside a broken one were summed in another order.
    done = mdgraph_command("eval", frames_file, *arguments, "--resume")
    assert done.status == 0, done.err
    energies = [atoms.get_potential_energy() for atoms in ase.io.read(tmp_path / "e.extxyz", ":")]
    path = tmp_path / "whole.extxyz"
    path.write_bytes(whole)
    expected = [atoms.get_potential_energy() for atoms in ase.io.read(path, ":")]
    np.testing.assert_allclose(energies, expected, atol=1e-5)


def test_devices_that_are_none(
    mdgraph_command: Command,
    arguments: list[Any],
    water_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for devices, ranks, sentence in (
        ("toaster,cpu", "1", "Unknown device 'toaster'"),
        ("cpu,all", "1", "it should be all, or names such as cuda:0,cuda:1"),
        ("all", "2", "torchrun started several ranks on this one"),
    ):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
        done = mdgraph_command("eval", water_file, *arguments, "--devices", devices)
        assert done.status == 1
        assert sentence in done.err
    assert not (tmp_path / "e.extxyz").exists()


def test_input_that_cannot_be_read_ends_all_before_the_first_frame(
    mdgraph_command: Command, arguments: list[Any], water_file: Path, tmp_path: Path
) -> None:
    for words, sentence in (
        ([water_file, tmp_path / "none.xyz"], "none.xyz: there is no such file"),
        ([water_file, tmp_path], "folder"),
        (["-", water_file, "-"], "- is standard input, which can be read once"),
    ):
        done = mdgraph_command("eval", *words, *arguments)
        assert done.status == 1
        assert sentence in done.err
    assert not (tmp_path / "e.extxyz").exists()


# Workers


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("devices", ["cpu", "cpu,cpu"])
def test_workers_write_what_one_process_writes(
    mdgraph_command: Command,
    arguments: list[Any],
    frames_file: Path,
    whole: bytes,
    tmp_path: Path,
    devices: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also after a kill, and in a folder with a file of the user that is named as a module.

    Processes of devices import PyTorch, so they go on after a kill alone.
    """
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ase.py").write_text("raise RuntimeError('a file of the user')")
    out = tmp_path / "e.extxyz"
    words = ["eval", frames_file, *arguments, "--devices", devices, "--workers", "2", "--resume"]
    for held in (2 * len(whole) // 3, 0)[: 1 + (devices == "cpu")]:
        out.write_bytes(whole[:held])
        done = mdgraph_command(*words)
        assert done.status == 0, done.err
        assert "reading " in done.err
        assert ("2 workers " in done.err) == (devices == "cpu")  # else each process has one
        assert "batching" not in done.err
        assert out.read_bytes() == whole


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("H nonsense 1 1\n", "frame 700, line 5604: 'nonsense' is not a number"),
        ("H nan 1 1\n", "frame 700: The positions of atom 1 are not finite"),
        ("F 1.9 1 1\n", "frame 700: The potential does not know F (atoms 1)"),
    ],
)
def test_errors_of_workers_are_those_of_one_process(
    mdgraph_command: Command,
    arguments: list[Any],
    frames_file: Path,
    tmp_path: Path,
    line: str,
    sentence: str,
) -> None:
    """Near the start of a block, as the frames of it before are then evaluated one by one."""
    lines, at = lines_of(frames_file, 700)
    lines[at + 3] = line
    broken = tmp_path / "broken.extxyz"
    broken.write_text("".join(lines))
    done = mdgraph_command("eval", broken, *arguments, "--workers", "2")
    assert done.status == 1
    (error,) = (text for text in done.err.splitlines() if "error" in text)
    assert sentence in error
    assert (tmp_path / "e.extxyz").read_bytes().count(b"Lattice") == 700


def helpers_of(process: int, module: str) -> list[int]:
    """Numbers of the processes of a module that a process started and that still run.

    Args:
        process: its number.
        module: of `mdgraph.runs`.
    """
    words = ["ps", "-ww", "-o", "pid=,args=", "--ppid", str(process)]
    listed = subprocess.run(words, capture_output=True, text=True, check=False).stdout
    begin = f"mdgraph.runs.{module} import"
    return [int(row.split()[0]) for row in listed.splitlines() if begin in row]


def is_running(process: int) -> bool:
    listed = subprocess.run(
        ["ps", "-o", "stat=", "-p", str(process)], capture_output=True, text=True, check=False
    ).stdout.strip()
    return bool(listed) and not listed.startswith("Z")


def assert_helpers_end(
    command: Callable[..., PreparedProcess],
    frame: bytes,
    out: Path,
    module: str,
    ending: signal.Signals | None,
    said_of_killed: str,
) -> None:
    """Ends a command that reads a pipe, or the two helpers that it has of a module.

    Args:
        command: begins it, with its standard input.
        frame: that it gets until both helpers run and results are there.
        out: what it writes.
        module: see `helpers_of`; those of the process that reads end too.
        ending: signal to the command; None kills the helpers.
        said_of_killed: a pattern of what it says then.
    """
    feeder, fed = os.pipe()
    process = command(stdin=feeder, stderr=subprocess.PIPE)
    os.close(feeder)
    end = time.monotonic() + 120.0
    with os.fdopen(fed, "wb", buffering=0) as pipe:
        helpers: list[int] = []
        while len(helpers) < 2 or not out.exists() or out.read_bytes().count(b"Lattice") < 4:
            assert time.monotonic() < end
            pipe.write(frame)
            time.sleep(0.4)
            helpers = helpers_of(process.pid, module)
        assert len(helpers) == 2
        readers = helpers_of(process.pid, "streams.sources")
        assert len(readers) == (module == "streams.workers")
        if ending is None:
            for helper in helpers:  # either of which may get the next frames
                os.kill(helper, signal.SIGKILL)
            pipe.write(frame)
        else:
            process.send_signal(ending)
        _, said = process.communicate(timeout=60.0)
    if ending is None:
        assert process.returncode == 1
        assert re.search(said_of_killed, said)
    elif ending != signal.SIGKILL:
        assert process.returncode == 128 + ending
    while any(is_running(helper) for helper in (*helpers, *readers)):
        assert time.monotonic() < end
        time.sleep(0.05)
    assert len(ase.io.read(out, ":")) >= 4


@pytest.fixture
def one_frame(frames_file: Path) -> bytes:
    return b"".join(frames_file.read_bytes().splitlines(keepends=True)[:8])


@pytest.mark.parametrize(
    "ending",
    [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM, signal.SIGKILL, None],
)
def test_no_worker_outlives_the_command(
    processes: Any,
    arguments: list[Any],
    one_frame: bytes,
    tmp_path: Path,
    ending: signal.Signals | None,
) -> None:
    """Nor does the command a worker that was killed; what is written then is whole."""
    command = partial(begun, processes, "eval", "-", *arguments, "--workers", "2")
    said = r"A process that reads and formats frames ended \(status -9\)"
    assert_helpers_end(command, one_frame, tmp_path / "e.extxyz", "streams.workers", ending, said)


def test_a_process_reads_what_a_thread_reads(frames_file: Path, tmp_path: Path) -> None:
    """The same blocks, packed, also without those that are written, and the same failure."""
    lines, at = lines_of(frames_file, 30)
    broken = tmp_path / "broken.extxyz"
    broken.write_text("".join([*lines[:at], "7\n", *lines[at + 1 :]]))

    def blocks_by(reader: BlockReader | ReaderProcess) -> list[FrameBlock]:
        blocks: list[FrameBlock] = []
        try:
            reader.read(blocks.append)
        finally:
            reader.close()
            reader.close()
        return blocks

    for paths, held in (([str(frames_file), str(broken)], 700), ([str(broken)], 0)):
        source = StreamSource(paths)
        here = blocks_by(BlockReader(source, 4096, held, nothing))
        there = blocks_by(ReaderProcess(source, 4096, held))
        assert [str(block.failure) for block in there] == [str(block.failure) for block in here]
        assert here[-1].failure is not None
        for one, other in zip(here, there, strict=True):
            assert (one.number, one.first) == (other.number, other.first)
            assert isinstance(other.frames, PackedFrames)
            assert [frame.name for frame in one.frames] == [frame.name for frame in other.frames]
            assert [vars(frame.content) for frame in one.frames] == [
                vars(frame.content) for frame in other.frames
            ]


def test_a_reader_that_is_gone_is_named() -> None:
    """Which reads a pipe to which nothing comes."""
    own, (empty, fed) = os.dup(0), os.pipe()
    os.dup2(empty, 0)
    try:
        reader = ReaderProcess(StreamSource(["-"]), 4096, 0)
    finally:
        os.dup2(own, 0)
    threading.Timer(1.0, reader._process.kill).start()
    try:
        with pytest.raises(MDGraphError, match=r"reads frames ended \(status -9\)"):
            reader.read(lambda block: None)
    finally:
        reader.close()
        for end in (own, empty, fed):
            os.close(end)


def test_a_reader_that_does_not_begin_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where memory is short for what it imports: it never takes what it is to read."""

    class Gone(subprocess.Popen[bytes]):
        def __init__(self, words: list[str], **options: Any) -> None:
            super().__init__([sys.executable, "-c", "raise SystemExit(3)"], **options)
            self.wait()

    monkeypatch.setattr(subprocess, "Popen", Gone)
    reader = ReaderProcess(StreamSource(["-"]), 4096, 0)
    try:
        with pytest.raises(MDGraphError, match=r"reads frames ended \(status 3\)"):
            reader.read(lambda block: None)
    finally:
        reader.close()


def test_few_frames_start_no_reader(
    frames_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though there are workers; those of a pipe, or that grow or are compressed, may be many."""

    class Started(Exception):  # noqa: N818
        pass

    def start(*arguments: Any, **options: Any) -> Any:
        raise Started

    monkeypatch.setattr(subprocess, "Popen", start)

    def reads_here(*paths: Path | str, wait_s: float = 0.0, has_workers: bool = True) -> bool:
        source = StreamSource([str(path) for path in paths], wait_s)
        try:
            open_reader(source, 4096, 0, nothing, has_workers=has_workers)
        except Started:
            return False
        return True

    packed, large = tmp_path / "packed.xyz.gz", tmp_path / "large.xyz"
    packed.write_bytes(gzip.compress(frames_file.read_bytes()))
    with large.open("wb") as file:
        file.truncate(5_000_000)
    assert reads_here(frames_file, frames_file)
    assert reads_here(f"{frames_file}@7")
    assert not reads_here("-")
    assert not reads_here(packed)
    assert not reads_here(frames_file, large)
    assert not reads_here(frames_file, wait_s=1.0)
    assert reads_here("-", packed, large, has_workers=False)


def test_few_frames_start_no_worker(frames_file: Path) -> None:
    """Those of one block; its worker is never called."""
    calls: list[int] = []

    class Counted(Worker):
        def convert(self, *call: Any) -> Any:
            calls.append(len(call[1].frames))
            return run_here(*call)

    def convert_systems(block: FrameBlock, convert: Convert) -> SystemBlock:
        return convert(lambda block: parse(block, convert), block)

    for count in (10, 25):
        device = stages(evaluator(lambda number: 0.0), [Counted()], parse=convert_systems)
        pipeline = Pipeline(lambda block: None, device)
        pipeline.run(BlockReader(Frames(count), 10, 0, pipeline.check).read)
        assert calls == {10: [], 25: [10, 5]}[count]


def test_workers_without_a_word_are_for_gpus_and_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(16))
    assert default_workers(["cpu"]) == 0
    assert default_workers(["cuda"]) == 6
    assert default_workers(["cuda"] * 8) == 7
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert default_workers(["cuda"]) == 2
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(4))
    assert default_workers(["cuda"]) == 0


POINT = "Properties=species:S:1:pos:R:3"
CUBE = f'Lattice="5 0 0 0 5 0 0 0 5" {POINT}'


@pytest.mark.parametrize("charge", [None, 0.0, 1.0])
def test_frames_parsed_together_are_those_one_by_one(charge: float | None) -> None:
    """Beside one that must be looked at, or that is refused, too."""
    common = [f'{CUBE} pbc="T T T" charge=1.0\nH 0 0 0', f'{POINT} pbc="F F F"\nH 1 2 3']
    others = [
        f'{CUBE} pbc="T F T"\nH 1 2 3',
        f"{POINT}:masses:R:1\nH 1 2 3 2.5",
        f"{POINT}:momenta:R:3\nH 1 2 3 1 1 1",
        "\nH 1 2 3",
        f"{POINT} charge=9\nH 1 2 3",
        f"{POINT} charge=1e999\nH 1 2 3",
        f"{POINT}\nH 1e9 2 3",
        f"{POINT}\nH 1e999 2 3",
        f"{POINT}\nH x 2 3",
        f'Lattice="5 0 0 5 0 0 0 0 5" {POINT} pbc="T T T"\nH 1 2 3',
        f'Lattice="5 0 0 0 0 0 0 0 5" {POINT} pbc="T T T"\nH 1 2 3',
        *(
            f'Lattice="{far} 0 0 0 5 0 0 0 5" {POINT} pbc="T T T"\nH 1 2 3'
            for far in ("1e9", "1e200", "1e999")
        ),
    ]
    for texts in (common, *([*common, other, *common] for other in others)):
        frames = []
        for number, text in enumerate(texts):
            content = f"1\n{text}\n".encode()
            frame = FrameText(Path("f.xyz"), number, 1 + 3 * number, 0, 1, content)
            frames.append(RawFrame(f"frame {number}", 1, frame))
        parsed = parse_block(FrameBlock(0, 0, frames), charge)
        expected: list[System] = []
        failure = None
        try:
            for frame in frames:
                with prefix_errors(frame.name):
                    system = from_xyz(frame.content)
                    expected.append(system.replace(charge=total_charge(system, charge)))
        except MDGraphError as error:
            failure = error
        assert str(parsed.failure) == str(failure)
        assert (failure is not None) == (texts is not common and texts[2] in others[4:])
        assert parsed.names == [frame.name for frame in frames[: len(expected)]]
        for found, wanted in zip(parsed.systems, expected, strict=True):
            for name, value in vars(wanted).items():
                np.testing.assert_array_equal(getattr(found, name), value, err_msg=name)
        volumes = SystemArrays.of(parsed.systems).volumes
        assert volumes.tolist() == [system.volume for system in expected]


def block_of(*frames: RawFrame) -> FrameBlock:
    return FrameBlock(0, 0, PackedFrames.of(frames))


def test_what_a_worker_logs_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """By the process that asked; and what it raises comes back with its words."""
    held = b"1\nProperties=species:S:1:pos:R:3:move_mask:L:1\nH 0 0 0 F\n"
    text = FrameText(Path("held.xyz"), 0, 1, 0, 1, held)
    block = block_of(RawFrame("held", 1, text))
    workers = [Worker(), Worker()]
    try:
        for worker in workers:
            done = worker.convert(parse_block, block)
            assert [system.fixed.tolist() for system in done.systems] == [[True]]
        assert caplog.text.count("its constraints are not used") == 1
        with pytest.raises(RuntimeError, match="AttributeError in a process that converts frames"):
            workers[0].convert(parse_block, block_of(None))  # type: ignore[arg-type]
        assert workers[0].convert(parse_block, block).failure is None
    finally:
        for worker in workers:
            worker.close()


def test_a_worker_that_is_gone_is_named_and_can_be_closed() -> None:
    """Also with a call in the buffer of its pipe, or one larger than that."""
    worker = Worker()
    assert worker.convert(parse_block, block_of(RawFrame("frame", 1, SYSTEM))).failure is None
    process = worker._process
    assert process is not None
    process.kill()
    process.wait()
    for size in (10**6, 1):
        block = block_of(RawFrame("frame" * size, 1, SYSTEM))
        with pytest.raises(MDGraphError, match=r"frames ended \(status -9\)"):
            worker.convert(parse_block, block)
    worker.close()


def test_workers_import_no_torch() -> None:
    code = "import sys, mdgraph.runs.streams.sources; print('torch' in sys.modules)"
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, env=environment(), capture_output=True, check=True)
    assert done.stdout == b"False\n"


# Several devices and ranks


def ranks_of(processes: Any, *words: object, stdin: int) -> list[PreparedProcess]:
    """The command on two ranks."""
    return prepared_ranks(
        processes,
        ["-m", "mdgraph", *words],
        2,
        env=environment(),
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@pytest.mark.usefixtures("one_thread")
def test_devices_share_a_stream(
    mdgraph_command: Command, arguments: list[Any], frames_file: Path, whole: bytes, tmp_path: Path
) -> None:
    done = mdgraph_command("eval", frames_file, *arguments, "--devices", "cpu,cpu")
    assert done.status == 0, done.err
    assert "cpu (0) " in done.err
    assert "cpu (1) " in done.err
    assert (tmp_path / "e.extxyz").read_bytes() == whole


def test_devices_that_cannot_begin_say_why(
    mdgraph_command: Command, arguments: list[Any], frames_file: Path, tmp_path: Path
) -> None:
    """In the sentence of one device."""
    words = ["eval", frames_file, *arguments, "--potential", tmp_path / "none.ckpt"]
    errors = []
    for devices in ("cpu", "cpu,cpu"):
        done = mdgraph_command(*words, "--devices", devices)
        assert done.status == 1
        errors.append(done.err.splitlines()[-1])
    assert "none.ckpt" in errors[0]
    assert errors[0] == errors[1]
    assert not (tmp_path / "e.extxyz").exists()


@pytest.mark.usefixtures("one_thread")
def test_devices_name_a_broken_frame(
    mdgraph_command: Command, arguments: list[Any], frames_file: Path, tmp_path: Path
) -> None:
    """And those before it are written, whichever device gets it."""
    lines, at = lines_of(frames_file, 700)
    lines[at + 3] = "F 1.9 1 1\n"
    broken = tmp_path / "broken.extxyz"
    broken.write_text("".join(lines))
    done = mdgraph_command("eval", broken, *arguments, "--devices", "cpu,cpu")
    assert done.status == 1
    sentence = "frame 700: The potential does not know F (atoms 1)"
    assert sentence in done.err.splitlines()[-1]
    assert (tmp_path / "e.extxyz").read_bytes().count(b"Lattice") == 700


@pytest.mark.parametrize(
    "ending", [pytest.param(signal.SIGTERM, marks=pytest.mark.slow), signal.SIGKILL, None]
)
def test_no_device_outlives_the_command(
    processes: Any,
    arguments: list[Any],
    one_frame: bytes,
    tmp_path: Path,
    ending: signal.Signals | None,
) -> None:
    """Nor does the command those of devices that were killed; what is written is whole."""
    command = partial(begun, processes, "eval", "-", *arguments, "--devices", "cpu,cpu")
    said = r"The process that evaluates on cpu \([01]\) ended \(status -9\)"
    assert_helpers_end(command, one_frame, tmp_path / "e.extxyz", "evaluation", ending, said)


def test_workers_start_before_the_potential_is_loaded(
    mdgraph_command: Command,
    arguments: list[Any],
    frames_file: Path,
    whole: bytes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where there are many frames, so that a device does not wait for their imports."""
    from mdgraph.runs import evaluation
    from mdgraph.runs.streams import sources

    started: list[Worker] = []
    before: list[int] = []
    start, load = Worker.start, evaluation.read_potential

    def counted(worker: Worker) -> None:
        started.append(worker)
        start(worker)

    def loaded(configuration: Any) -> Any:
        before.append(len(started))
        return load(configuration)

    monkeypatch.setattr(Worker, "start", counted)
    monkeypatch.setattr(evaluation, "read_potential", loaded)
    for small in (1 << 22, 0):
        monkeypatch.setattr(sources, "_SMALL", small)
        words = ["eval", frames_file, *arguments, "--workers", "2", "--overwrite"]
        assert mdgraph_command(*words).status == 0
        assert (tmp_path / "e.extxyz").read_bytes() == whole
        started.clear()
    assert before == [0, 2]


def test_two_ranks_write_what_one_writes(
    processes: Any, arguments: list[Any], frames_file: Path, whole: bytes, tmp_path: Path
) -> None:
    with frames_file.open("rb") as file:
        both = ranks_of(processes, "eval", "-", *arguments, stdin=file.fileno())
        ends = [rank.communicate() for rank in both]
    assert [rank.returncode for rank in both] == [0, 0], ends
    assert ends[0][0] == f"{FRAMES} frames written to {tmp_path / 'e.extxyz'}\n"
    assert ends[1][0] == ""
    assert "rank 1 cpu" in ends[0][1]
    assert (tmp_path / "e.extxyz").read_bytes() == whole


@pytest.mark.slow  # as torchrun starts them; the others start ranks themselves
def test_torchrun_ends_with_the_status_of_rank_0(
    arguments: list[Any], frames_file: Path, tmp_path: Path
) -> None:
    lines, at = lines_of(frames_file, 700)
    broken = tmp_path / "broken.extxyz"
    for last, status in (("H 0.1 1.0 1.0\n", 0), ("H nonsense 1 1\n", 1)):
        broken.write_text("".join([*lines[: at + 3], last, *lines[at + 4 :]]))
        words = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
        words += ["-m", "mdgraph", "eval", broken, *arguments, "--overwrite"]
        done = subprocess.run(
            [sys.executable, *map(str, words)], env=environment(), capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        assert done.returncode == status, done.stderr
        assert ("mdgraph: error" in done.stderr) == bool(status)


def test_all_ranks_end_with_one_sentence(
    processes: Any, arguments: list[Any], frames_file: Path, tmp_path: Path
) -> None:
    lines, at = lines_of(frames_file, 700)
    lines[at + 3] = "H nonsense 1 1\n"
    broken = tmp_path / "broken.extxyz"
    broken.write_text("".join(lines))
    with broken.open("rb") as file:
        both = ranks_of(processes, "eval", broken, *arguments, stdin=file.fileno())
        said = "".join(rank.communicate()[1] for rank in both)
    assert [rank.returncode for rank in both] == [1, 0]
    (error,) = (line for line in said.splitlines() if line.startswith("mdgraph: error"))
    assert "frame 700, line 5604: 'nonsense' is not a number" in error
    assert (tmp_path / "e.extxyz").read_bytes().count(b"Lattice") == 700


def test_a_lost_rank_ends_the_others(
    processes: Any, arguments: list[Any], frames_file: Path, tmp_path: Path
) -> None:
    """Whose results are whole."""
    feeder, fed = os.pipe()
    process, lost = ranks_of(processes, "eval", "-", *arguments, stdin=feeder)
    os.close(feeder)
    frame = "".join(frames_file.read_text().splitlines(keepends=True)[:8]).encode()
    out, end = tmp_path / "e.extxyz", time.monotonic() + 120.0
    with os.fdopen(fed, "wb", buffering=0) as pipe:
        while not (out.exists() and out.read_bytes().count(b"Lattice") > 4):
            assert time.monotonic() < end
            pipe.write(frame)
            time.sleep(0.5)
        lost.kill()
        lost.communicate()
        began = time.monotonic()
        try:
            # Faster than rank 0 evaluates: it learns of the loss by a block for the other one.
            while process.poll() is None and time.monotonic() < began + 60.0:
                pipe.write(frame)
                time.sleep(0.002)
        except BrokenPipeError:
            pass
        _, said = process.communicate(timeout=60.0)
    assert process.returncode == 1
    assert "Rank 0 of 2 lost another one" in said
    assert len(ase.io.read(out, ":")) > 4


# Streams


def test_results_come_before_the_stream_ends(
    processes: Any, arguments: list[Any], frames_file: Path, tmp_path: Path
) -> None:
    """Each frame is fed once the one before it is evaluated."""
    out = tmp_path / "e.extxyz"
    lines = frames_file.read_bytes().splitlines(keepends=True)
    feeder, fed = os.pipe()
    process = begun(processes, "eval", "-", *arguments, stdin=feeder)
    os.close(feeder)
    with os.fdopen(fed, "wb", buffering=0) as pipe:
        for number in range(3):
            pipe.write(b"".join(lines[8 * number : 8 * number + 8]))
            end = time.monotonic() + 60.0
            while not out.exists() or out.read_bytes().count(b"Lattice") <= number:
                assert time.monotonic() < end
                time.sleep(0.05)
    assert process.wait() == 0
    assert len(ase.io.read(out, ":")) == 3


class Feeder(threading.Thread):
    """Appends to a file after a while, and again."""

    def __init__(self, actions: list[Callable[[], None]]) -> None:
        super().__init__()
        self._actions = actions

    def run(self) -> None:
        for act in self._actions:
            time.sleep(0.5)
            act()


def nothing() -> None:
    """Neither idle nor ended."""


def names_of(source: StreamSource) -> Iterator[str]:
    return (frame.name.partition(", ")[2] for frame in source.frames(nothing, nothing))


def test_a_growing_file_is_waited_for(frames_file: Path, tmp_path: Path) -> None:
    """Also within a line; without waiting, what is there is cut."""
    text = b"".join(frames_file.read_bytes().splitlines(keepends=True)[:24])
    path = tmp_path / "growing.xyz"
    path.write_bytes(text[:100])
    with pytest.raises(FileError, match="line 4: the line of atom 2"):
        list(names_of(StreamSource([str(path)])))

    def more(start: int, end: int) -> Callable[[], None]:
        def append() -> None:
            with path.open("ab") as file:
                file.write(text[start:end])

        return append

    feeder = Feeder([more(100, 500), more(500, len(text))])
    feeder.start()
    assert list(names_of(StreamSource([str(path)], 2.0))) == [f"frame {n}" for n in range(3)]
    feeder.join()


def test_a_growing_trajectory_is_waited_for(water_file: Path, tmp_path: Path) -> None:
    system = read_system(water_file)
    path = tmp_path / "trajectory.h5md"
    empty = np.zeros_like(system.positions)
    with create_trajectory(path, system) as writer:

        def append(step: int) -> None:
            writer.append(
                Frame(step, step, system.positions + step, empty, empty, 0.0, 0.0, 0.0, system.cell)
            )

        append(0)
        feeder = Feeder([lambda: append(1), lambda: append(2)])
        feeder.start()
        source = StreamSource([str(path)], 2.0)
        found = list(source.frames(nothing, nothing))
        feeder.join()
    systems = [frame.content for frame in found]
    assert [float(system.positions[0, 0]) for system in systems] == [1.0, 2.0, 3.0]
    assert len(list(names_of(StreamSource([str(path)])))) == 3


@pytest.mark.usefixtures("one_thread")
def test_a_data_set_is_evaluated(
    mdgraph_command: Command, arguments: list[Any], water_file: Path, tmp_path: Path
) -> None:
    water = read_system(water_file)
    frames = [LabelledFrame(water.numbers, water.positions, water.cell, water.pbc)] * 3
    write_dataset(tmp_path / "set.h5", [(frames, Provenance("here"))])
    done = mdgraph_command("eval", tmp_path / "set.h5", *arguments)
    assert done.status == 0, done.err
    assert len(ase.io.read(tmp_path / "e.extxyz", ":")) == 3


def test_lines_of_a_pipe_are_those_of_a_file() -> None:
    text = b"\xef\xbb\xbfone\r\ntwo\n\n" + b"x" * 300 + b"\nlast"
    for piece in (1, 7, len(text)):
        reading, writing = os.pipe()

        def feed(piece: int = piece, writing: int = writing) -> None:
            for start in range(0, len(text), piece):
                os.write(writing, text[start : start + piece])
            os.close(writing)

        feeder = threading.Thread(target=feed)
        feeder.start()
        lines = GrowingLines(reading, 5.0, nothing, nothing)
        found = []
        while line := lines.readline(100):
            found.append(line)
        feeder.join()
        os.close(reading)
        assert b"".join(found) == text
        assert found[:3] == [b"\xef\xbb\xbfone\r\n", b"two\n", b"\n"]
        assert [len(line) for line in found[3:]] == [100, 100, 100, 1, 4]


def test_lines_taken_together_are_those_one_by_one() -> None:
    """Wherever parts end; not beyond the end, and none of which one is blank."""
    text = b"2\none\n H 0\n\tO 1\r\n1\n\xff\nH\n \t\n\nlast"
    lines = text.splitlines(keepends=True)

    def buffered(size: int) -> BufferedLines:
        parts = iter([text[start : start + size] for start in range(0, len(text), size)])
        return BufferedLines(lambda: next(parts, b""))

    for size, first, count in itertools.product((1, 5, len(text)), range(10), range(1, 10)):
        taken = buffered(size)
        for _ in range(first):
            taken.readline(100)
        expected = list(
            itertools.takewhile(
                lambda line: line.strip() and line.endswith(b"\n"), lines[first : first + count]
            )
        )
        parts: list[bytes] = []
        number = 0
        while number < count:
            more, part = taken.take(count - number)
            assert part.count(b"\n") == more
            if more == 0:
                break
            parts.append(part)
            number += more
        assert b"".join(parts) == b"".join(expected), (size, first, count)
        assert number == len(expected)
        rest = lines[first + number :]
        assert taken.readline(100) == (rest[0] if rest else b"")


def test_a_large_frame_of_a_pipe_takes_linear_time() -> None:
    """Though it comes in many parts, and is longer than the longest line."""
    rows = 4096 * b"H 0.0 0.0 0.0\n"
    text = b"%d\nProperties=species:S:1:pos:R:3\n" % (4096 * 350) + 350 * rows
    parts = iter([text[start : start + 4096] for start in range(0, len(text), 4096)])
    began = time.thread_time()
    (frame,) = frame_texts(Path("pipe"), BufferedLines(lambda: next(parts, b"")))
    assert time.thread_time() - began < 4.0  # 0.1; a copy of all at each part takes a minute
    assert frame.content == text


def test_numbers_of_atoms_that_no_pipe_has() -> None:
    """They end at once where nothing could hold them, and else with the first frame that lacks."""
    given = 0

    def endless() -> bytes:
        nonlocal given
        given += 1
        return b"1000000000000\n\n" if given == 1 else 1000 * b"H 0 0 0\n"

    with pytest.raises(FileError, match=r"line 1: 1,000,000,000,000 atoms are declared, more than"):
        next(frame_texts(Path("pipe"), BufferedLines(endless)))
    assert given == 1
    parts = iter([b"1000000000\n\nH 0 0 0\n", b"H 0 0 0"])
    with pytest.raises(FileError, match=r"line 5: the line of atom 3 of .* is missing"):
        next(frame_texts(Path("pipe"), BufferedLines(lambda: next(parts, b""))))


def test_a_line_without_an_end_is_not_waited_for() -> None:
    """Which a row may be, too; no more of it is kept than the longest line."""
    given = 0

    def endless() -> bytes:
        nonlocal given
        given += 1
        return b"2\n\nH 0 0 0\n" if given == 1 else (1 << 20) * b"x"

    with pytest.raises(FileError, match="line 4: it is longer than 16,777,216 bytes"):
        next(frame_texts(Path("pipe"), BufferedLines(endless)))
    assert given <= 18


def test_a_compressed_frame_may_have_more_atoms_than_bytes(tmp_path: Path) -> None:
    """Its bound is what it unpacks to."""
    path = tmp_path / "crystal.xyz.gz"
    path.write_bytes(gzip.compress(b"5000\n\n" + 5000 * b"H 0 0 0\n"))
    assert path.stat().st_size < 5000
    (frame,) = StreamSource([str(path)]).frames(nothing, nothing)
    assert frame.atoms == 5000
    path.write_bytes(gzip.compress(b"50000\n\n" + 5000 * b"H 0 0 0\n"))
    with pytest.raises(FileError, match="50,000 atoms are declared, and the file has 40,007 bytes"):
        next(StreamSource([str(path)]).frames(nothing, nothing))


def test_frames_are_taken_before_what_follows_them() -> None:
    """No line beyond a frame is read, which might not come for long."""

    class Lines:
        def __init__(self) -> None:
            self.rest = [b"1\n", b"Properties=species:S:1:pos:R:3\n", b"H 0 0 0\n"]

        def readline(self, size: int, /) -> bytes:
            return self.rest.pop(0)

    texts = frame_texts(Path("stream"), Lines())
    assert next(texts).atoms == 1
    with pytest.raises(IndexError):
        next(texts)


# The pipeline alone


SYSTEM = System(numbers=[1], positions=np.zeros((1, 3)))


class Frames(StreamSource):
    """Frames of one atom from memory, so many of them; the source is slow or fails at one."""

    def __init__(self, count: int, fails: int = -1) -> None:
        object.__setattr__(self, "count", count)
        object.__setattr__(self, "fails", fails)

    def frames(self, idle: Callable[[], None], check: Callable[[], None]) -> Iterator[RawFrame]:
        for number in range(self.count):  # type: ignore[attr-defined]
            if number == self.fails:  # type: ignore[attr-defined]
                raise FileError(f"frame {number} is broken")
            yield RawFrame(f"frame {number}", 1, SYSTEM)


def parse(block: FrameBlock, convert: Convert) -> SystemBlock:
    systems = [frame.content for frame in block.frames]
    names = [frame.name for frame in block.frames]
    return SystemBlock(block.number, block.first, names, systems, block.failure)


def named(block: FrameBlock | ResultBlock, names: Sequence[str]) -> TextBlock:
    """A block whose frames are written as lines with their names."""
    ends = [*accumulate(len(name) + 1 for name in names)]
    content = "".join(f"{name}\n" for name in names).encode()
    return TextBlock(block.number, block.first, content, ends, failure=block.failure)


def texts_of(block: TextBlock) -> list[bytes]:
    return block.content.splitlines()


def text(block: ResultBlock, convert: Convert) -> TextBlock:
    return named(block, block.names)


Evaluate = Callable[[SystemBlock, Callable[[], None]], ResultBlock]


def evaluator(seconds: Callable[[int], float]) -> Evaluate:
    def evaluate(block: SystemBlock, check: Callable[[], None]) -> ResultBlock:
        time.sleep(seconds(block.number))
        return ResultBlock(
            block.number, block.first, block.names, block.systems, None, failure=block.failure
        )

    return evaluate


def stages(evaluate: Evaluate, workers: Sequence[Any] = (), **others: Any) -> DeviceStages:
    """Of a device `a`."""
    functions: dict[str, Any] = {"parse": parse, "text": text} | others
    return DeviceStages(name="a", evaluate=evaluate, workers=workers, **functions)


@pytest.mark.parametrize("slow", ["evaluating", "writing"])
def test_few_of_many_frames_are_there_at_a_time(slow: str) -> None:
    """Of 20,000, whoever is slow, and in order."""
    written: list[bytes] = []
    most = 0

    def write(block: TextBlock) -> None:
        nonlocal most
        most = max(most, reader.frames - len(written))
        written.extend(texts_of(block))
        time.sleep(0.002 * (slow == "writing"))

    uneven = evaluator(lambda number: 0.01 * (number % 3) * (slow == "evaluating"))
    pipeline = Pipeline(write, stages(uneven))
    reader = BlockReader(Frames(20_000), 100, 0, pipeline.check)
    pipeline.run(reader.read)
    assert written == [b"frame %d" % number for number in range(20_000)]
    assert most <= 800
    waiting = pipeline.waiting()
    assert list(waiting) == ["reading", "batching", "a", "writing"]
    assert waiting["reading"] > 0.5
    assert (waiting["writing"] < 0.5) == (slow == "writing")


class QuickRank:
    """Another rank that has each block done at once; see Link."""

    name, workers = "rank 1", 0

    def __init__(self) -> None:
        self.blocks: queue.Queue[FrameBlock] = queue.Queue()
        self.done, self.many, self.most = 0, threading.Event(), 0

    def send(self, block: FrameBlock) -> None:
        self.blocks.put(block)

    def receive(self) -> TextBlock:
        self.most = max(self.most, self.blocks.qsize())
        block = self.blocks.get()
        self.done += 1
        if self.done == 15:
            self.many.set()
        text = named(block, [frame.name for frame in block.frames])
        return replace(text, waiting={"rank 1 cuda": 0.25}, computing={"rank 1 cuda": 0.5})

    def end(self, *, failed: bool) -> None:
        assert not failed


class WorkerHere:
    """Converts in this process; see Worker."""

    def convert(self, conversion: Callable[[Any], Any], frames: Any) -> Any:
        return conversion(frames)

    def close(self) -> None:
        pass


class SlowDevice(QuickRank):
    """Its first block comes back when the other has done many."""

    name = "cuda"

    def __init__(self, other: QuickRank) -> None:
        super().__init__()
        self.other, self.held_up = other, False

    def receive(self) -> TextBlock:
        self.held_up |= not self.other.many.wait(10.0)
        return replace(super().receive(), waiting={"cuda": 0.0}, computing={})


def test_a_slow_device_leaves_blocks_to_quicker_ranks() -> None:
    """It keeps few itself, though all are written in order."""
    rank, written = QuickRank(), []
    device = SlowDevice(rank)
    pipeline = Pipeline(lambda block: written.extend(texts_of(block)), links=[device, rank])
    pipeline.run(BlockReader(Frames(400), 10, 0, pipeline.check).read)
    assert written == [b"frame %d" % number for number in range(400)]
    assert not device.held_up
    assert list(pipeline.waiting()) == ["reading", "cuda", "rank 1 cuda", "writing"]
    assert pipeline.waiting()["rank 1 cuda"] == 0.25
    assert pipeline.computing() == {"rank 1 cuda": 0.5}
    progress = StreamProgress("eval", 0)
    said = progress.sentence({"reading": 0.9}, pipeline.computing())
    assert said.endswith("reading 90 %; GPUs compute in graphs: rank 1 cuda 50 %")
    progress.close()


class BusyRank(QuickRank):
    """One whose blocks come back when it has others to receive, parse, evaluate and format."""

    def receive(self) -> TextBlock:
        end = time.monotonic() + 2.0
        while self.done < 30 and self.blocks.qsize() < 4 and time.monotonic() < end:
            time.sleep(0.001)
        return super().receive()


def test_a_rank_has_a_block_for_each_of_its_stages() -> None:
    """And one more for every second worker."""
    for workers in (0, 6):
        rank = BusyRank()
        rank.workers = workers
        pipeline = Pipeline(lambda block: None, links=[rank])
        pipeline.run(BlockReader(Frames(400), 10, 0, pipeline.check).read)
        assert 4 <= rank.most <= 5 + workers // 2


def test_a_rank_that_is_lost_at_the_end_leaves_no_process() -> None:
    """Other ranks and the reader are ended all the same."""
    ends: list[str] = []

    class LostRank(QuickRank):
        def end(self, *, failed: bool) -> None:
            ends.append(self.name)
            raise LostRankError("Rank 0 of 3 lost another one.")

    ranks = [LostRank(), LostRank()]
    ranks[1].name = "rank 2"
    pipeline = Pipeline(lambda block: None, links=ranks)
    before = threading.active_count()
    with pytest.raises(LostRankError, match="lost another one"):
        pipeline.run(
            BlockReader(Frames(100), 10, 0, pipeline.check).read, lambda: ends.append("reader")
        )
    assert sorted(ends) == ["rank 1", "rank 2", "reader"]
    assert threading.active_count() == before


def test_a_reader_that_cannot_be_ended_leaves_no_worker() -> None:
    ends: list[str] = []

    class ClosedWorker(WorkerHere):
        def close(self) -> None:
            ends.append("worker")

    def end_reading() -> None:
        raise ZeroDivisionError

    pipeline = Pipeline(
        lambda block: None,
        stages(evaluator(lambda number: 0.0), [ClosedWorker(), ClosedWorker()]),
    )
    with pytest.raises(ZeroDivisionError):
        pipeline.run(BlockReader(Frames(100), 10, 0, pipeline.check).read, end_reading)
    assert ends == ["worker", "worker"]


def test_messages_of_ranks_are_memory_that_can_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else PyTorch warns, and no thread may set aside warnings, which are those of all threads."""
    import torch
    from torch import distributed

    messages: list[bytes] = []
    filters = [*warnings.filters]

    def from_numpy(array: Any) -> Any:
        assert array.flags.writeable
        return torch.tensor(array)

    def send(tensor: Any, other: int) -> None:
        assert warnings.filters == filters
        messages.append(bytes(tensor.numpy()))

    monkeypatch.setattr(torch, "from_numpy", from_numpy)
    monkeypatch.setattr(distributed, "send", send)
    frames = PackedFrames(b"packed", 1)
    for block in (FrameBlock(0, 0, frames), TextBlock(0, 0, bytearray(b"packed"), [6])):
        messages.clear()
        StreamRanks(0, 2).send(block, 1)
        *_, content = messages
        assert content == b"packed"
        assert len(messages) == 4


def test_an_error_keeps_its_place() -> None:
    """Though a later block fails first, the first in order is raised, after what came before."""
    written: list[bytes] = []

    def write(block: TextBlock) -> None:
        written.extend(texts_of(block))
        if block.failure is not None:
            raise block.failure

    class BrokenRank(QuickRank):
        def receive(self) -> TextBlock:
            block = super().receive()
            time.sleep(0.1 * (block.number == 2))
            failure = InputError(f"block {block.number}") if block.number in (2, 3) else None
            return replace(block, failure=failure)

    ranks = [BrokenRank(), BrokenRank()]
    ranks[1].name = "rank 2"
    for rank in ranks:
        rank.end = lambda failed: None  # type: ignore[method-assign,assignment]
    pipeline = Pipeline(write, links=ranks)
    with pytest.raises(InputError, match="block 2"):
        pipeline.run(BlockReader(Frames(1000), 10, 0, pipeline.check).read)
    assert len(written) == 30


def test_a_broken_source_ends_after_what_it_gave() -> None:
    written: list[bytes] = []

    def write(block: TextBlock) -> None:
        written.extend(texts_of(block))
        if block.failure is not None:
            raise block.failure

    pipeline = Pipeline(write, stages(evaluator(lambda number: 0.0)))
    with pytest.raises(FileError, match="frame 25 is broken"):
        pipeline.run(BlockReader(Frames(100, fails=25), 10, 0, pipeline.check).read)
    assert len(written) == 25


@pytest.mark.parametrize("stage", ["parse", "evaluate", "text", "write"])
def test_a_fault_in_any_stage_ends_all(stage: str) -> None:
    """What is no error of the input is raised where the pipeline was started."""

    def fault(*block: Any) -> Any:
        raise ZeroDivisionError(stage)

    functions: dict[str, Any] = {"write": lambda block: None}
    functions["evaluate"] = evaluator(lambda number: 0.0)
    functions[stage] = fault
    before = threading.active_count()
    pipeline = Pipeline(functions.pop("write"), stages(**functions))
    with pytest.raises(ZeroDivisionError, match=stage):
        pipeline.run(BlockReader(Frames(10_000), 10, 0, pipeline.check).read)
    assert threading.active_count() == before


def test_blocks_are_the_same_when_read_again() -> None:
    """Those before the last frame that is there are left out."""

    def blocks(held: int) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        reader = BlockReader(Frames(95), 10, held, nothing)
        reader.read(lambda block: found.append((block.first, len(block.frames))))
        return found

    everything = blocks(0)
    assert everything == [(start, min(10, 95 - start)) for start in range(0, 95, 10)]
    for held, first in ((1, 0), (10, 0), (11, 1), (95, 9)):
        assert blocks(held) == everything[first:]
