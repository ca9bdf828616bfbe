"""Times relaxations of many structures: all at once, and one after the other by ASE.

    python benchmarks/relaxations.py [--structures 1000] [--sample 10] [--fmax 0.05]

The structures are copies of one, each atom displaced at random by fixed seeds, under the shipped
potential for water. Milliseconds are of a structure, kernels compiled before; `relax` captures a
graph for each batch meanwhile, and ASE finds its own:

- relax: `mdgraph.drivers.ase.optimize` of all of them, in batches;
- ASE: `ase.optimize.FIRE` on one MDGraphCalculator, of the first `--sample`.

"rest" is the share of structures whose forces are within fmax after `--steps` steps at most.
"""

import argparse
import logging
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path

import ase.optimize
import numpy as np
import torch
from ase import Atoms
from cases import device_argument, hardware, run_script

from mdgraph import __version__, load
from mdgraph.drivers.ase import MDGraphCalculator, relax
from mdgraph.engine.batches import affordable_atoms, by_key, packed
from mdgraph.engine.calculation import as_evaluator
from mdgraph.io.structures import from_ase, read_system, to_ase
from mdgraph.precision import PRECISIONS, precision_named

WATER = Path(__file__).resolve().parent.parent / "data" / "water27.extxyz"
STRUCTURES = {"cuda": 1000, "cpu": 8}


class Relaxations:
    """One potential, and copies of a structure that both ways begin from."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.device = options.device
        self.precision = precision_named(options.precision)
        self.evaluator = as_evaluator(load(options.potential), self.precision, self.device)
        self.calculator = MDGraphCalculator(
            self.evaluator, device=self.device, precision=self.precision, check=False
        )
        self.number = options.structures or STRUCTURES[self.device.type]

    def copies(self, number: int) -> list[Atoms]:
        start = to_ase(read_system(self.options.structure))
        copies = [start.copy() for _ in range(number)]
        for seed, atoms in enumerate(copies):
            atoms.rattle(self.options.displacement, seed=seed)
        return copies

    def batches(self) -> int:
        """How many `relax` makes of all structures."""
        systems = [from_ase(atoms) for atoms in self.copies(self.number)]
        most = affordable_atoms(self.evaluator, self.device, self.precision)
        alike = by_key(systems, self.evaluator.cutoffs).values()
        return sum(len(list(packed(systems, places, most))) for places in alike)

    def together(self, structures: list[Atoms], steps: int) -> list[bool]:
        fmax = self.options.fmax
        return relax(structures, self.calculator, fmax=fmax, steps=steps).tolist()

    def in_turn(self, structures: list[Atoms], steps: int) -> list[bool]:
        rests = []
        for atoms in structures:
            atoms.calc = self.calculator
            fire = ase.optimize.FIRE(atoms, logfile=None)
            rests.append(bool(fire.run(fmax=self.options.fmax, steps=steps)))
        return rests

    def timed(
        self, way: Callable[[list[Atoms], int], list[bool]], number: int, batches: int
    ) -> tuple[float, float]:
        """ms of a structure, and the share that rests."""
        way(self.copies(-(-number // batches)), 2)  # compiles for as many atoms
        structures = self.copies(number)
        begin = time.perf_counter()
        rests = way(structures, self.options.steps)
        return 1e3 * (time.perf_counter() - begin) / number, float(np.mean(rests))


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--structures", type=int, help="1000 on CUDA, 8 on a CPU")
    parser.add_argument("--sample", type=int, default=10, help="of them, for ASE")
    parser.add_argument("--structure", type=Path, default=WATER, help="file of their start")
    parser.add_argument("--potential", default="water-pbe0", help="file or shipped name")
    parser.add_argument("--displacement", type=float, default=0.1, help="A, standard deviation")
    parser.add_argument("--fmax", type=float, default=0.05, help="eV/A")
    parser.add_argument("--steps", type=int, default=500, help="of a structure at most")
    parser.add_argument("--precision", default="mixed", choices=PRECISIONS)
    parser.add_argument("--device", type=device_argument, default="auto")
    options = parser.parse_args()
    logging.getLogger("mdgraph").setLevel(logging.ERROR)  # the table says how many rest
    runs = Relaxations(options)
    sample, batches = min(options.sample, runs.number), runs.batches()
    print(f"{hardware(runs.device)}, {date.today().isoformat()}")
    print(f"mdgraph {__version__}, torch {torch.__version__}, ase {ase.__version__}")
    atoms = len(runs.copies(1)[0])
    print(f"{atoms} atoms a structure, {options.precision}, fmax {options.fmax:g} eV/A")
    print(f"{'':<8}{'structures':>12}{'batches':>9}{'ms each':>10}{'rest':>7}")
    each, rest = runs.timed(runs.together, runs.number, batches)
    print(f"{'relax':<8}{runs.number:>12}{batches:>9}{each:>10.1f}{rest:>7.0%}", flush=True)
    alone, rest = runs.timed(runs.in_turn, sample, sample)
    print(f"{'ASE':<8}{sample:>12}{'-':>9}{alone:>10.1f}{rest:>7.0%}")
    print(f"ASE takes {alone / each:.2f} times as long a structure")


if __name__ == "__main__":
    run_script(main)
