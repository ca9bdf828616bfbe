"""Faults planted in fused evaluations: what each changes, and whether the self-check refuses it.

    python tests/support/planted_faults.py --out FILE.jsonl [--mutants N] [--seed S]
        [--backend triton] [--device cuda] [--workers N] [--seconds S]
    python tests/support/planted_faults.py --summary FILE.jsonl

Of two kinds: faults in what goes in and comes out, see `input_faults`, and kernels with one
operator changed, see `kernel_mutants`. On structures rattled by 0.05 A, and by both ways of the
check: all atoms, and clusters of 32 with the check at full size. A fault that changes the force
on an atom by more than 1e-3 eV/A and 1e-3 of the RMS force must be refused. Each runs in a
process of its own, as some end it. A second start skips what the file holds; a file is judged
by the bounds of today.
"""

import argparse
import json
import math
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

# Asked through CUDA, it would keep processes that are forked from using it.
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")

import numpy as np
import torch
from ase.build import bulk
from input_faults import AROUND, BUILT_IN, CHARGE, INVISIBLE, PARTS_OF_TABLE, Faulty, planted
from kernel_mutants import Mutant, chosen, mutated
from random_networks import random_network
from self_check import Oracle, figures, records, refusal, warning

from mdgraph import load
from mdgraph.engine import Calculation
from mdgraph.errors import MDGraphError
from mdgraph.fused.agreement import Agreement
from mdgraph.fused.evaluator import FusedTensorNet
from mdgraph.fused.verification import rounding_errors, verify
from mdgraph.models import TensorNetPotential
from mdgraph.runs.bench import water
from mdgraph.system import System

PATHS: Final = {"all": math.inf, "clusters": 0.0}
"""Seconds given to each."""

LIMIT: Final = 1e-3
"""eV/A, and of the RMS force component: what must be refused."""

RATTLE: Final = 0.05
"""A."""

_SMALL: Final[dict[str, Any]] = {
    "species": (8, 1, 6),
    "channels": 8,
    "layers": 2,
    "cutoff": 3.4,
    "radial_basis": {"number": 6},
    "readout": {"hidden": (8,)},
    "self_interaction": True,
}

NETWORKS: Final[dict[str, dict[str, Any]]] = {
    "plain": _SMALL,
    "charged": _SMALL | {"charge_factor": True, "readout": {"kind": "gated", "hidden": (6, 5)}},
    "batch": _SMALL,
    "repulsive": _SMALL | {"repulsion": ({"kind": "torchmdnet_prior", "cutoff": 3.0},)},
    "tensornet2": _SMALL
    | {"architecture": "tensornet2", "charge_channels": 2, "coulomb": {"cutoff": 5.2}},
}
"""Small networks with random weights; all else is a shipped potential by name."""

_SCALE: Final = 20.0
"""Of networks with random weights: forces of some eV/A."""

SUBJECTS: Final = ("water-pbe0", "copper-pbe", *NETWORKS)


def systems_of(subject: str, path: str, device: str, backend: str) -> list[System]:
    """Rattled by 0.05 A; larger where clusters are cut from them.

    On CUDA so large that kernels take the blocks that they do of many atoms, and tiny where
    an interpreter runs them.
    """
    large, tiny = path == "clusters", backend == "triton" and device == "cpu"
    many = 2400 if device == "cuda" else 96
    if subject == "copper-pbe":
        atoms = bulk("Cu", "fcc", a=3.63, cubic=True).repeat(3 if large else 2)
        systems = [System(atoms.numbers, atoms.positions, cell=atoms.cell[:], pbc=True)]
    elif subject == "batch":
        systems = [water(24), water(9, periodic=False), water(many - 36 if large else 12)]
    else:
        systems = [water(6 if tiny else many if large else 24)]
    rng = np.random.default_rng(3)
    for number, system in enumerate(systems):
        moved = system.positions + rng.normal(scale=RATTLE, size=system.positions.shape)
        systems[number] = system.replace(positions=moved)
        if subject in NETWORKS:
            numbers = system.numbers.copy()
            numbers[::7] = 6
            charge = 1.0 if subject in ("charged", "tensornet2") else None
            systems[number] = systems[number].replace(numbers=numbers, charge=charge)
    return systems


@dataclass(frozen=True)
class Results:
    """Of one evaluation, on the host."""

    forces: torch.Tensor
    energies: torch.Tensor
    energy: torch.Tensor
    virial: torch.Tensor

    @classmethod
    def of(cls, at: Calculation) -> "Results":
        state = at.state
        parts = (state.forces, state.energies, state.energy, state.virial)
        return cls(*(part.double().cpu().clone() for part in parts))


class Bench:
    """A potential on a structure, sound; and what faults make of it."""

    def __init__(self, subject: str, path: str, device: str, backend: str, precision: str) -> None:
        self.subject, self.path = subject, path
        self.device, self.backend, self.precision = torch.device(device), backend, precision

    @cached_property
    def potential(self) -> TensorNetPotential:
        known = self.subject in NETWORKS
        return random_network(_SCALE, NETWORKS[self.subject]) if known else load(self.subject)

    @cached_property
    def oracle(self) -> Oracle:
        return Oracle(self.potential.at_precision(torch.float64).to(self.device))

    @cached_property
    def sound(self) -> Results:
        """Of the evaluator without a fault; the reference on all that the check needs is kept."""
        at = self.calculation(self.fused())
        results = Results.of(at)
        self.found = verify(at.evaluator, self.oracle, at.state, at.lists, seconds=self.seconds)
        return results

    @cached_property
    def rounding(self) -> Agreement:
        """What the reference in float32 errs by on the atoms that are compared."""
        at = self.calculation(self.fused())
        return rounding_errors(self.oracle, at.state, at.lists, seconds=self.seconds)

    @property
    def seconds(self) -> float:
        return PATHS[self.path]

    def fused(self) -> FusedTensorNet:
        backend: Any = self.backend
        return FusedTensorNet(self.potential, self.precision, self.device, backend)

    def calculation(self, evaluator: Any) -> Calculation:
        systems = systems_of(self.subject, self.path, self.device.type, self.backend)
        at = Calculation(systems, evaluator, device=self.device, precision=self.precision)
        at.compute()
        return at

    def measured(self, fault: "Fault") -> dict[str, Any]:
        """Effect and figures of the check."""
        sound, _ = self.sound, self.rounding
        context: Any = nullcontext()
        if fault.mutant is not None:
            context = mutated(fault.mutant)
        elif fault.name in BUILT_IN:
            context = planted(fault.name)
        with context:
            evaluator: Any = self.fused()
            if fault.name in AROUND:
                evaluator = Faulty(evaluator, AROUND[fault.name], fault.everywhere)
            at = self.calculation(evaluator)
            results = Results.of(at)
            found = verify(evaluator, self.oracle, at.state, at.lists, seconds=self.seconds)
            # What is not cleared is right the first time alone.
            at.compute()
            again = Results.of(at)
        effects = effect(sound, results), effect(sound, again)
        return {
            "effect": {name: float(np.fmax(*(e[name] for e in effects))) for name in effects[0]},
            "sound": figures(self.found),
            "rounding": figures(self.rounding),
            "cutoff": self.potential.config.cutoff,
            "found": figures(found),
        }


def effect(sound: Results, faulty: Results) -> dict[str, float]:
    """Largest change of an atom's force, eV/A, and what else changes."""
    atoms = len(sound.forces)
    scale = float(sound.forces.square().mean().sqrt())
    force = float(torch.linalg.vector_norm(faulty.forces - sound.forces, dim=-1).max())
    return {
        "force": force,
        "force_over_rms": force / scale,
        "scale": scale,
        "energy": float((faulty.energy - sound.energy).abs().sum()) / atoms,
        "energy_worst": float((faulty.energies - sound.energies).abs().max()),
        "virial": float((faulty.virial - sound.virial).abs().max()) / atoms,
    }


@dataclass(frozen=True)
class Fault:
    """What is planted: a fault around evaluations, one built in, or a mutant."""

    name: str
    mutant: Mutant | None = None
    everywhere: bool = True

    @property
    def key(self) -> str:
        return self.name if self.everywhere else f"{self.name}, here alone"


CPU: Final = "mdgraph.fused.cpu."
_ATOMS: Final = tuple(CPU + name for name in ("embedding", "interaction", "math", "products"))
_CHARGES: Final = tuple(
    CPU + name for name in ("charges", "pairwise", "tensornet2", "edge_network")
)
CUDA: Final = "mdgraph.fused.cuda."
_CUDA_ATOMS: Final = (
    *(CUDA + name for name in ("edges", "embedding", "messages", "readout", "products", "device")),
    "mdgraph.models.kernels.algebra",
)
_CUDA_CHARGES: Final = tuple(CUDA + name for name in ("charges", "coulomb", "edge_network"))

POOLS: Final = {
    "compiled": (
        ("water-pbe0", _ATOMS, 0.6),
        ("tensornet2", _CHARGES, 0.25),
        ("repulsive", (CPU + "pairwise",), 0.08),
        ("charged", (CPU + "interaction",), 0.07),
    ),
    "triton": (
        ("plain", _CUDA_ATOMS, 0.6),
        ("tensornet2", _CUDA_CHARGES, 0.25),
        ("repulsive", (CUDA + "repulsion",), 0.08),
        ("charged", (CUDA + "readout", CUDA + "messages"), 0.07),
    ),
}
"""Modules that mutants are made of, the subject that runs them, and their share."""


def faults(options: argparse.Namespace) -> Iterator[tuple[str, Fault]]:
    """With the subject of each."""
    if not options.only or "input" in options.only:
        for subject in ("plain", "tensornet2") if options.backend == "triton" else SUBJECTS:
            for name in BUILT_IN if subject in ("water-pbe0", "tensornet2", "plain") else ():
                if concerns(name, subject) and (name != CHARGE or options.backend == "compiled"):
                    yield subject, Fault(name)
            for name in AROUND:
                if concerns(name, subject):
                    yield subject, Fault(name)
                    yield subject, Fault(name, everywhere=False)
    if not options.only or "mutants" in options.only:
        for subject, modules, share in POOLS[options.backend]:
            import_kernels(options.backend)
            for mutant in chosen(modules, round(share * options.mutants), options.seed):
                yield subject, Fault(str(mutant), mutant)


def concerns(name: str, subject: str) -> bool:
    """Whether there is anything to go wrong."""
    if name == CHARGE:
        return subject == "tensornet2"
    if name == PARTS_OF_TABLE:
        return subject != "tensornet2"
    if "charge" in name:
        return subject in ("charged", "tensornet2")
    return subject == "batch" or "systems" not in name


def paths(options: argparse.Namespace) -> list[str]:
    """An interpreter is too slow for clusters."""
    slow = options.backend == "triton" and options.device == "cpu"
    return ["all"] if slow else list(PATHS)


def import_kernels(backend: str) -> None:
    """All modules of kernels, so that a mutant finds who calls it."""
    if backend == "triton":
        import mdgraph.fused.cuda.network
    else:
        import mdgraph.fused.cpu.network  # noqa: F401


def worker(connection: Any, bench: Bench, fault: Fault) -> None:
    """In a process of its own."""
    import_kernels(bench.backend)
    torch.set_num_threads(1)
    try:
        connection.send(bench.measured(fault))
    except (MDGraphError, ArithmeticError, LookupError, RuntimeError, TypeError, ValueError) as e:
        connection.send({"raised": f"{type(e).__name__}: {str(e).strip()[:300]}"})


def outcome(bench: Bench, fault: Fault, limit: float) -> dict[str, Any]:
    """What came of it, whatever happened to the process."""
    method = "fork" if bench.device.type == "cpu" else "forkserver"
    context = multiprocessing.get_context(method)
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=worker, args=(theirs, bench, fault))
    process.start()
    theirs.close()
    record: dict[str, Any] = {"raised": f"no end within {limit:.0f} s"}
    try:
        if ours.poll(limit):
            record = ours.recv()
    except EOFError:
        record = {"raised": "the process ended"}
    process.kill()
    process.join()
    return record


def run(options: argparse.Namespace) -> int:
    """Adds to the file until there is nothing left or the time is over."""
    known = {record["key"] for record in records(options.out)} if options.out.exists() else set()
    benches: dict[tuple[str, str], Bench] = {}
    end = time.monotonic() + options.seconds

    def recorded(subject: str, fault: Fault, path: str, key: str) -> dict[str, Any] | None:
        start = time.monotonic()
        if start > end:
            return None
        return {
            "key": key,
            "subject": subject,
            "fault": fault.key,
            "kind": "mutant" if fault.mutant else "input",
            "precision": options.precision,
            "path": path,
            **outcome(benches[subject, path], fault, options.limit),
            "seconds": round(time.monotonic() - start, 1),
        }

    tasks = []
    for subject, fault in faults(options):
        for path in paths(options):
            settings = (options.device, options.backend, options.precision)
            key = "|".join([subject, fault.key, path, *settings])
            if key in known:
                continue
            tasks.append((subject, fault, path, key))
            if (subject, path) not in benches:
                benches[subject, path] = bench = Bench(subject, path, *settings)
                if options.device == "cpu":
                    _ = (
                        bench.sound,
                        bench.rounding,
                    )  # once, for all processes that are forked from here
    with ThreadPoolExecutor(options.workers) as pool, options.out.open("a") as file:
        for record in pool.map(lambda task: recorded(*task), tasks):
            if record is not None:
                file.write(json.dumps(record) + "\n")
                file.flush()
                print(line(record), flush=True)
    return 0


VERDICTS: Final = (
    "MISSED",
    "SOUND REFUSED",
    "invisible",
    "silent, none",
    "silent, small",
    "warned, small",
    "refused, small",
    "refused",
    "broke",
)
"""Of a fault. Small ones change no force so much that they had to be refused; what broke ended
the process or raised an error before it could be measured."""


def verdict(record: dict[str, Any]) -> str:
    """Missed, refused, or why nothing had to be."""
    if "found" not in record:
        return "broke"
    if "sound" in record and refusal(record | {"found": record["sound"]}) is not None:
        return "SOUND REFUSED"
    refused = refusal(record) is not None
    size = record["effect"]["force"]
    if not size <= max(LIMIT, LIMIT * record["effect"]["scale"]):
        known = record["path"] == "clusters" and record["fault"] in INVISIBLE
        return "refused" if refused else "invisible" if known else "MISSED"
    if refused:
        return "refused, small"
    if warning(record) is not None:
        return "warned, small"
    return "silent, small" if size > 1e-6 else "silent, none"


def line(record: dict[str, Any]) -> str:
    head = f"{verdict(record):<15}{record['path']:<9}{record['subject']:<11}"
    if "found" not in record:
        return f"{head}{'':<48}{record['fault']}  ({record['raised'][:80]})"
    e, f = record["effect"], record["found"]
    work = f["works"][0][1] if f["works"] else 0.0
    cells = (
        f"{e['force']:8.1e}{e['force_over_rms']:8.1e}{e['energy_worst']:8.1e}{e['virial']:8.1e} |"
        f"{f['force_rms']:8.1e}{f['force_worst']:8.1e}{f['energy_worst']:8.1e}"
        f"{f['virial']:8.1e}{work:8.1e}"
    )
    return f"{head}{cells}  {record['fault']}"


def summarize(options: argparse.Namespace) -> int:
    """All faults, those that were missed first."""
    found = [record for path in options.summary for record in records(path)]
    print("verdict, path, subject, effect: force, /RMS, energy of an atom, virial | found: RMS,")
    print("worst, energy of an atom, virial, work  fault")
    for record in sorted(found, key=lambda one: VERDICTS.index(verdict(one))):
        print(line(record))
    counts = {name: sum(verdict(one) == name for one in found) for name in VERDICTS}
    print(", ".join(f"{number} {name}" for name, number in counts.items()))
    return int(counts["MISSED"] + counts["SOUND REFUSED"] > 0)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="lines are added to this file")
    parser.add_argument("--summary", type=Path, nargs="+", help="judge these files, run nothing")
    parser.add_argument("--mutants", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0, help="of the choice of mutants")
    parser.add_argument("--only", nargs="+", choices=("input", "mutants"))
    parser.add_argument("--backend", choices=("compiled", "triton"), default="compiled")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--precision", default="mixed")
    parser.add_argument("--workers", type=int, default=1, help="faults at a time")
    parser.add_argument("--limit", type=float, default=300.0, help="s, for one fault")
    parser.add_argument("--seconds", type=float, default=math.inf, help="when to stop")
    options = parser.parse_args()
    if (options.out is None) == (options.summary is None):
        parser.error("give either --out or --summary")
    if options.backend == "triton" and options.device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"
    return options


def main() -> int:
    """Runs, or judges what was run."""
    options = arguments()
    return summarize(options) if options.summary else run(options)


if __name__ == "__main__":
    sys.exit(main())
