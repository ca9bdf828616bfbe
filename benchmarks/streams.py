"""Times `mdgraph eval` of a stream: frames a second, and how long each stage waits for others.

    python benchmarks/streams.py [--frames 100000] [--atoms 100] [--devices all] [--ranks 1 2]
        [--workers 4]

Writes jittered boxes of water to a file, and evaluates them by the command itself, once for each
number of ranks; ranks of a CPU have one thread each. The last columns are the share of its time
that each stage waits for others; that of a device is what reading and writing cost it. "In memory"
evaluates the frames of one block over and over without files, which is what the first device can do
at most. Times begin after the potential is loaded and contain the compilation and the captures of
the first batches, some seconds of a GPU; "second half" is the speed from when half of the results
are in the file, that of a long stream.
"""

import argparse
import itertools
import math
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cases import hardware, run_script

from mdgraph.checkpoints import load
from mdgraph.devices import device_named
from mdgraph.engine.batches import Batches
from mdgraph.engine.calculation import as_evaluator
from mdgraph.precision import precision_named
from mdgraph.runs.streams.blocks import FrameBlock, PackedFrames, ResultArrays, ResultBlock
from mdgraph.runs.streams.sources import StreamSource
from mdgraph.runs.streams.workers import format_block, parse_block
from mdgraph.system import System

VOLUME = 10.0  # A^3 an atom
_CONVERTED = 500
_SENTENCE = re.compile(r"eval: ([\d,]+) frames, ([\d,.e+]+) a second; .*?: (.*)\.")


def boxes(count: int, atoms: int, seed: int = 0) -> list[System]:
    """Jittered grids of oxygen and hydrogen in periodic boxes."""
    generator = np.random.default_rng(seed)
    points = int(np.ceil(atoms ** (1 / 3) - 1e-9))
    edge = (atoms * VOLUME) ** (1 / 3)
    taken = np.arange(atoms) * points**3 // atoms
    grid = (np.stack(np.unravel_index(taken, [points] * 3), axis=-1) + 0.5) * edge / points
    return [
        System(
            numbers=np.resize([8, 1, 1], atoms),
            positions=grid + generator.normal(scale=0.1, size=(atoms, 3)),
            cell=np.eye(3) * edge,
            pbc=True,
        )
        for _ in range(count)
    ]


def write(path: Path, systems: list[System], count: int) -> None:
    """Writes so many frames to an extended XYZ file, the systems in turn."""
    texts = []
    for system in systems:
        cell = " ".join(map(repr, system.cell.ravel().tolist()))
        head = f'Lattice="{cell}" Properties=species:S:1:pos:R:3 pbc="T T T"'
        rows = [
            f"{symbol} {x!r} {y!r} {z!r}"
            for symbol, (x, y, z) in zip(system.symbols, system.positions.tolist(), strict=True)
        ]
        texts.append("\n".join([str(len(system)), head, *rows, ""]))
    with path.open("w") as file:
        for number in range(count):
            file.write(texts[number % len(texts)])


def conversions(path: Path, atoms: int) -> dict[str, float]:
    """Frames a second that one core finds in a file and packs, parses, and formats."""
    speeds: dict[str, float] = {}

    def timed(stage: str, count: int, act: Callable[[], Any]) -> Any:
        began = time.perf_counter()
        done = act()
        speeds[stage] = count / (time.perf_counter() - began)
        return done

    source = StreamSource([str(path)]).frames(lambda: None, lambda: None)

    def packed() -> FrameBlock:
        return FrameBlock(0, 0, PackedFrames.of([*itertools.islice(source, _CONVERTED)]))

    block = packed()  # after which what a file needs once is done
    count = len(block.frames)
    began = time.perf_counter()
    read = sum(len(packed().frames) for _ in range(4))
    speeds["reading"] = read / (time.perf_counter() - began)
    parsed = timed("parsing", count, lambda: parse_block(block))
    noise = np.random.default_rng(0)
    results = ResultArrays(
        ends=[atoms * (place + 1) for place in range(count)],
        energy=noise.normal(size=count),
        energies=noise.normal(size=count * atoms),
        forces=noise.normal(size=(count * atoms, 3)),
        virial=noise.normal(size=(count, 3, 3)),
    )
    evaluated = ResultBlock(0, 0, parsed.names, parsed.systems, results)
    timed("formatting", count, lambda: format_block(evaluated))
    return speeds


def in_memory(options: argparse.Namespace, systems: list[System]) -> float:
    """Frames a second of batches without files, after a first pass."""
    device, precision = device_named(options.device), precision_named("mixed")
    batches = Batches(as_evaluator(load(options.potential), precision, device), device, precision)
    names = [str(number) for number in range(len(systems))]
    passes, began = 0, 0.0
    while passes < 2 or time.perf_counter() - began < options.seconds:
        if passes == 1:
            began = time.perf_counter()
        for _ in batches.evaluate(systems, names):
            pass
        passes += 1
    return (passes - 1) * len(systems) / (time.perf_counter() - began)


class SecondHalf:
    """Frames a second from when half of the bytes of a file are written, as its size tells."""

    def __init__(self, path: Path, frames: int) -> None:
        self._path, self._frames = path, frames
        self._sizes: list[tuple[float, int]] = []

    def watch(self, process: "subprocess.Popen[str]") -> None:
        """Looks at the file until the process has ended, and once more then."""
        ended = False
        while not ended:
            ended = process.poll() is not None
            if self._path.exists():
                size = self._path.stat().st_size
                if not self._sizes or size > self._sizes[-1][1]:
                    self._sizes.append((time.perf_counter(), size))
            time.sleep(0.02)

    def speed(self) -> float:
        """Frames a second; not a number where too few were written to tell."""
        whole = self._path.stat().st_size
        middle = next(at for at in self._sizes if at[1] >= whole / 2)
        last = self._sizes[-1]
        if last == middle:
            return math.nan
        return self._frames * (last[1] - middle[1]) / whole / (last[0] - middle[0])


def main() -> None:
    """Prints one row for each number of ranks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--frames", type=int, default=100_000)
    parser.add_argument("--atoms", type=int, default=100)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--devices", help="of one process, such as all; without it, --device")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1])
    parser.add_argument("--workers", type=int, help="processes that parse and format")
    parser.add_argument("--potential", default="water-pbe0")
    parser.add_argument("--seconds", type=float, default=10.0, help="for the time in memory")
    options = parser.parse_args()
    device = device_named(options.device)
    torch.set_num_threads(1)
    systems = boxes(min(options.frames, 64), options.atoms)
    print(f"{hardware(device)}, torch {torch.__version__}, {options.potential}")
    print(f"{options.frames:,} frames of {options.atoms} atoms", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        frames, out = Path(folder) / "frames.extxyz", Path(folder) / "results.extxyz"
        write(frames, systems, options.frames)
        speeds = conversions(frames, options.atoms)
        one_core = ", ".join(f"{name} {speed:,.0f}" for name, speed in speeds.items())
        print(f"frames a second of one core: {one_core}", flush=True)
        most = in_memory(options, systems)
        print(
            f"{'':<12}{'frames/s':>12}{'of first':>10}{'second half':>12}{'of first':>10}"
            f"{'of memory':>10}{'MB':>8}  waiting"
        )
        print(f"{'in memory':<12}{'':>22}{most:12.4g}", flush=True)
        words = ["-m", "mdgraph", "eval", str(frames), "--potential", options.potential]
        words += ["--no-check", "--overwrite", "--out", str(out), "--device", options.device]
        words += [] if options.workers is None else ["--workers", str(options.workers)]
        first = [0.0, 0.0]
        for ranks in options.ranks:
            launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
            launcher += ["--standalone"]
            # Under torchrun each rank takes the device of its number.
            one = ["--devices", options.devices] if options.devices and ranks == 1 else []
            half = SecondHalf(out, options.frames)
            out.unlink(missing_ok=True)
            with (Path(folder) / "said.txt").open("w+") as said_file:
                process = subprocess.Popen(
                    [sys.executable, *launcher * (ranks > 1), *words, *one],
                    env=os.environ | {"OMP_NUM_THREADS": "1"},
                    stdout=subprocess.DEVNULL,
                    stderr=said_file,
                    text=True,
                )
                half.watch(process)
                said_file.seek(0)
                text = said_file.read()
            said = _SENTENCE.search(text)
            if said is None:
                raise SystemExit(text)
            speeds_here = [float(said[2].replace(",", "")), half.speed()]
            first = [one or other for one, other in zip(first, speeds_here, strict=True)]
            memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
            name = f"{ranks} rank{'s' * (ranks > 1)}"
            columns = "".join(
                f"{speed:12.4g}{speed / one:10.2f}"
                for speed, one in zip(speeds_here, first, strict=True)
            )
            print(
                f"{name:<12}{columns}{speeds_here[1] / most:10.2f}{memory:8.0f}  {said[3]}",
                flush=True,
            )


if __name__ == "__main__":
    run_script(main)
