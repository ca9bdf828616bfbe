"""Times structures of many sizes: in batches that share graphs, and one at a time.

    python benchmarks/evaluate.py [--structures 1000] [--device cuda] [--precision mixed]

Drops and boxes of water of 10 to 200 atoms, in turn, with the random weights.
"In batches" is the second pass over the structures and "first pass" the one that compiles,
allocates and captures; "alone" makes a Calculation for each, as does a script that knows no
better, of the first `--alone` structures. Memory is all that torch held at most. Times are of
structures in memory, checked and copied both ways, without files.
"""

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch
from cases import hardware, random_potential, run_script

from mdgraph.devices import device_named
from mdgraph.engine import Calculation
from mdgraph.engine.batches import Batches
from mdgraph.engine.calculation import as_evaluator
from mdgraph.precision import PRECISIONS, precision_named
from mdgraph.system import System

SMALLEST, LARGEST = 10, 200
VOLUME = 10.0  # A^3 an atom


def structures(count: int, seed: int = 0) -> list[System]:
    """Jittered grids of oxygen and hydrogen, every second one periodic."""
    generator = np.random.default_rng(seed)
    systems = []
    for number, size in enumerate(generator.integers(SMALLEST, LARGEST + 1, count).tolist()):
        points = int(np.ceil(size ** (1 / 3) - 1e-9))
        edge = (size * VOLUME) ** (1 / 3)
        taken = np.arange(size) * points**3 // size
        grid = np.stack(np.unravel_index(taken, [points] * 3), axis=-1)
        positions = (grid + 0.5) * edge / points + generator.normal(scale=0.1, size=(size, 3))
        periodic = number % 2 == 1
        systems.append(
            System(
                numbers=np.resize([8, 1, 1], size),
                positions=positions,
                cell=np.eye(3) * edge if periodic else np.zeros((3, 3)),
                pbc=periodic,
            )
        )
    return systems


def main() -> None:
    """Prints one line a way."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--structures", type=int, default=1000)
    parser.add_argument("--alone", type=int, default=100, help="structures evaluated one at a time")
    parser.add_argument("--atoms", type=int, help="in a batch")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="mixed", choices=PRECISIONS)
    options = parser.parse_args()
    device, precision = device_named(options.device), precision_named(options.precision)
    evaluator = as_evaluator(random_potential(), precision, device)
    systems = structures(options.structures)
    names = [str(number) for number in range(len(systems))]
    atoms = sum(map(len, systems)) / len(systems)
    print(f"{hardware(device)}, torch {torch.__version__}, {precision.name}")
    print(f"{len(systems):,} structures, {atoms:.0f} atoms on average", flush=True)
    some = systems[: options.alone]

    def alone() -> None:
        for system in some:
            calculation = Calculation(
                [system], evaluator, device=device, precision=precision, skin=0.0
            )
            calculation.compute()
            calculation.state.forces.cpu()

    batches = Batches(evaluator, device, precision, atoms=options.atoms)

    def together() -> None:
        for _ in batches.evaluate(systems, names):
            pass

    def timed(name: str, run: Callable[[], None], count: int) -> None:
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        begin = time.perf_counter()
        run()
        each = 1e3 * (time.perf_counter() - begin) / count
        memory = ""
        if device.type == "cuda":
            memory = f"{torch.cuda.max_memory_reserved(device) / 1e9:10.2f} GB"
        print(f"{name:<12}{each:10.3f} ms a structure{memory}", flush=True)

    alone()
    timed("alone", alone, len(some))
    torch.cuda.empty_cache()
    timed("first pass", together, len(systems))
    summary = batches.summary(len(systems))
    timed("in batches", together, len(systems))
    print(summary)


if __name__ == "__main__":
    run_script(main)
