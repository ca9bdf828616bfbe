"""What runs say they need of memory, beside what they take.

    python benchmarks/memory.py [--device cuda] [--reference FOLDER] [--atoms 24 192 3000 24000]
        [--only SUBSTRING] [--workers 4]

Each row is a run of two steps in a process of its own. Taken is, on a CPU, the growth of the
largest resident memory (VmHWM) after all imports; on CUDA the most that torch reserved. The
announcement of the run is held against that; 30 % either way are allowed. With --reference, a
folder with `matgl/` and `torchmdnet/`, the checkpoints there take part too.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

import ase.io
import torch
from ase import Atoms
from ase.build import bulk, molecule
from cases import device_argument, hardware, run_script, water

ALLOWED = 0.3

WORKER = """
import ctypes, json, logging, sys
# Where this is allowed, no page leaves the memory once it was touched: beside other work the kernel
# takes pages of libraries back, and what came after them would seem to take less.
ctypes.CDLL(None).mlockall(1 | 2 | 4)  # what is there, what will be, each when it is touched
import ase.io, h5py, matplotlib.figure, numba, torch
import mdgraph.cli, mdgraph.runs.summary, mdgraph.runs.md as dynamics
from mdgraph.runs.config import MDConfig

options = json.loads(sys.argv[1])
if options["device"] == "cpu":
    import mdgraph.fused.cpu.network
else:
    import mdgraph.fused.cuda.network
    torch.cuda.init()
logger = logging.getLogger("mdgraph")
logger.setLevel(logging.INFO)
logger.addHandler(logging.StreamHandler(sys.stderr))

def resident():
    # Not ru_maxrss, which a process inherits from the one that started it.
    with open("/proc/self/status") as status:
        return 1024 * int(next(line for line in status if line.startswith("VmHWM")).split()[1])

before = resident()
dynamics.start(MDConfig(**options))
if options["device"] == "cpu":
    print(resident() - before)
else:
    print(torch.cuda.max_memory_reserved())
"""


@dataclass(frozen=True)
class Case:
    """A run: its name, its structure, and options beside these."""

    name: str
    atoms: Atoms
    options: dict[str, object] = field(default_factory=dict)


def box(size: int) -> Atoms:
    """Water, or a cluster where `cases.py` has one."""
    system = water(size)
    return Atoms(system.numbers, system.positions, cell=system.cell, pbc=system.pbc)


def cases(sizes: list[int], reference: Path | None) -> list[Case]:
    """Small ones first; every potential, evaluator and precision."""
    copper, silicon = (
        bulk("Cu", "fcc", a=3.635, cubic=True),
        bulk("Si", "diamond", a=5.47, cubic=True),
    )
    rows = [
        Case("ethanol-pbe", molecule("CH3CH2OH"), {"potential": "ethanol-pbe"}),
        Case("aspirin-pbe", molecule("C6H6"), {"potential": "aspirin-pbe"}),
        Case("acac-pbe", molecule("CH3COCH3"), {"potential": "acac-pbe"}),
        Case("3bpa-wb97x", molecule("C5H5N"), {"potential": "3bpa-wb97x"}),
        *(Case("copper-pbe", copper.repeat(n), {"potential": "copper-pbe"}) for n in (1, 3, 8)),
        *(Case("silicon-pbe", silicon.repeat(n), {"potential": "silicon-pbe"}) for n in (1, 3, 8)),
        *(Case("water", box(size)) for size in sizes),
        Case("no check", box(24), {"check": False}),
        Case("no check", box(3000), {"check": False}),
        Case("16 replicas", box(24), {"replicas": 16}),
    ]
    for precision, evaluator in (
        ("mixed", "reference"),
        ("single", "auto"),
        ("double", "reference"),
        ("double", "fused"),
        ("fast", "auto"),
    ):
        options = {"precision": precision, "evaluator": evaluator}
        rows += [Case(f"{precision}, {evaluator}", box(size), dict(options)) for size in (24, 648)]
    if reference is not None:
        torchmd, matgl = reference / "torchmdnet", reference / "matgl"
        salt = bulk("NaCl", "rocksalt", a=5.64, cubic=True)
        matpes = {"potential": str(matgl / "TensorNet-MatPES-PBE-v2025.1-PES")}
        rows += [Case("MatPES-PBE", salt.repeat(n), matpes) for n in (1, 2, 5)]
        for name in ("aceff-1.1", "aceff-2.0"):
            options = {"potential": str(torchmd / f"{name}.ckpt")}
            if name == "aceff-2.0":
                options["coulomb_cutoff_A"] = "10"
            rows += [Case(name, box(size), dict(options)) for size in (24, 648, 3000)]
    return rows


def measured(case: Case, device: str) -> tuple[int, int]:
    """Bytes announced and taken."""
    with tempfile.TemporaryDirectory() as folder:
        structure = Path(folder) / "start.xyz"
        ase.io.write(structure, case.atoms)
        options = {"structure": str(structure), "out": f"{folder}/run", "steps": 2}
        worker = [
            sys.executable,
            "-c",
            WORKER,
            json.dumps(options | {"device": device} | case.options),
        ]
        environment = {"OMP_NUM_THREADS": "2"} | os.environ
        done = subprocess.run(
            worker, capture_output=True, text=True, check=False, cwd=folder, env=environment
        )
    announcement = re.search(r"About ([\d,]+) MB of memory are needed", done.stderr)
    if done.returncode or not announcement:
        raise SystemExit(f"{case.name}, {len(case.atoms)} atoms:\n{done.stderr}")
    return 10**6 * int(announcement[1].replace(",", "")), int(done.stdout.split()[-1])


def main() -> int:
    """Prints the table; 1 where an announcement is off by more than is allowed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", type=device_argument, default="auto")
    parser.add_argument("--reference", type=Path)
    parser.add_argument("--atoms", type=int, nargs="+", default=[24, 192, 648, 3000, 24000])
    parser.add_argument("--only", default="", help="part of the names of rows")
    parser.add_argument("--workers", type=int, default=1, help="runs at a time")
    options = parser.parse_args()
    device: torch.device = options.device
    print(f"{hardware(device)}, torch {torch.__version__}, {date.today().isoformat()}")
    print(f"{'':<24}{'atoms':>8}{'said, MB':>12}{'taken, MB':>12}{'ratio':>8}")
    missed = 0
    rows = cases(options.atoms, options.reference and options.reference.resolve())
    rows = [case for case in rows if options.only in case.name]
    pool = ThreadPoolExecutor(options.workers)
    memory = pool.map(lambda case: measured(case, str(device)), rows)
    for case, (announced, taken) in zip(rows, memory, strict=True):
        off = abs(announced / taken - 1.0) > ALLOWED
        missed += off
        print(
            f"{case.name:<24}{len(case.atoms):>8,}{announced / 1e6:>12,.0f}{taken / 1e6:>12,.0f}"
            f"{announced / taken:>8.2f}{'  off' if off else ''}",
            flush=True,
        )
    return int(missed > 0)


if __name__ == "__main__":
    run_script(main)
