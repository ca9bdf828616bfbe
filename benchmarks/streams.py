"""Times `mdgraph eval` of a stream: frames a second, and how long each stage waits for others.

    python benchmarks/streams.py [--frames 100000] [--atoms 100] [--devices all] [--ranks 1 2]

Writes jittered boxes of water to a file, and evaluates them by the command itself, once for each
number of ranks; ranks of a CPU have one thread each. "In memory" evaluates the frames of one block
over and over without files, which is what the devices of one rank can do at most. Times begin after
the potential is loaded and contain the compilation; give enough frames.
"""

import argparse
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from cases import hardware, run_script

from mdgraph.checkpoints import load
from mdgraph.devices import device_named
from mdgraph.engine.batches import Batches
from mdgraph.engine.calculation import as_evaluator
from mdgraph.precision import precision_named
from mdgraph.system import System

VOLUME = 10.0  # A^3 an atom
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


def main() -> None:
    """Prints one line for each number of ranks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--frames", type=int, default=100_000)
    parser.add_argument("--atoms", type=int, default=100)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--devices", help="of each rank, such as all; without it, --device")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1])
    parser.add_argument("--potential", default="water-pbe0")
    parser.add_argument("--seconds", type=float, default=10.0, help="for the time in memory")
    options = parser.parse_args()
    device = device_named(options.device)
    torch.set_num_threads(1)
    systems = boxes(min(options.frames, 64), options.atoms)
    print(f"{hardware(device)}, torch {torch.__version__}, {options.potential}")
    print(f"{options.frames:,} frames of {options.atoms} atoms", flush=True)
    print(f"in memory {in_memory(options, systems):10.4g} frames a second", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        frames, out = Path(folder) / "frames.extxyz", Path(folder) / "results.extxyz"
        write(frames, systems, options.frames)
        words = ["-m", "mdgraph", "eval", str(frames), "--potential", options.potential]
        words += ["--no-check", "--overwrite", "--out", str(out), "--device", options.device]
        words += ["--devices", options.devices] if options.devices else []
        first = 0.0
        for ranks in options.ranks:
            launcher = ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
            launcher += ["--standalone"]
            done = subprocess.run(
                [sys.executable, *launcher * (ranks > 1), *words],
                env=os.environ | {"OMP_NUM_THREADS": "1"},
                capture_output=True,
                text=True,
                check=False,
            )
            said = _SENTENCE.search(done.stderr)
            if said is None:
                raise SystemExit(done.stderr)
            speed = float(said[2].replace(",", ""))
            first = first or speed
            memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
            print(
                f"{ranks} rank{'s' * (ranks > 1)}{'':<3}{speed:10.4g} frames a second, "
                f"{speed / first:.2f} of the first; waiting: {said[3]}; at most {memory:.0f} MB "
                "a process",
                flush=True,
            )


if __name__ == "__main__":
    run_script(main)
