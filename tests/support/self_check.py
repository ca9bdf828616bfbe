"""What the self-check measures on sound structures, none of which it may refuse.

    python tests/support/self_check.py --out FILE.jsonl [--part 1/4] [--sample N] [--seconds S]
        [--device cuda] [--precision mixed fast] [--group crystals] [--potential copper-pbe]
    python tests/support/self_check.py --summary FILE.jsonl

Each line of the file is one case: a potential, a structure, a precision and how the check
compares, `all` atoms, in `clusters` of 32 atoms with the check at full size, or, of larger
structures, as by `default`. Beside the figures of the check stand those of the reference in
`mixed`: what rounding alone does. A second start skips what the file holds. Cases come in
turns from all groups, by the time that each has taken, so that any beginning is a broad one.
A file is judged by the bounds of today, whatever those were when it was written.
"""

import argparse
import dataclasses
import hashlib
import json
import os
import sys
import time
from collections import OrderedDict, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from sound_structures import SHARED, structures

from mdgraph import load
from mdgraph.devices import device_named
from mdgraph.engine import Calculation
from mdgraph.errors import MDGraphError
from mdgraph.evaluators import AutogradEvaluator
from mdgraph.fused.agreement import SMALLEST_FORCE, TOLERANCES, Agreement
from mdgraph.fused.evaluator import FusedTensorNet
from mdgraph.fused.verification import SECONDS, rounding_errors, verify
from mdgraph.models import TensorNetPotential
from mdgraph.neighbors import NeighborList
from mdgraph.precision import PRECISIONS
from mdgraph.shipped import shipped_potentials
from mdgraph.state import State, systems_of
from mdgraph.system import System

ORDER: Final = ("mixed", "single", "double", "fast")
FEW: Final = 120
"""Atoms; more of them are compared as by default alone."""

PATHS: Final = {"all": float("inf"), "clusters": 0.0, "default": SECONDS}
"""Seconds given to each."""

FRAMES: Final = {"copper-pbe": "copper frames", "silicon-pbe": "silicon frames"}


def potential_named(name: str) -> TensorNetPotential:
    """A shipped potential, or a reference checkpoint; `@12` after it is a Coulomb cutoff."""
    name, _, cutoff = name.partition("@")
    if name in shipped_potentials():
        return load(name)
    (path,) = [path for path in SHARED.glob(f"reference/*/{name}") if path.suffix != ".npz"]
    potential = load(path)
    return potential.with_coulomb_cutoff(float(cutoff)) if cutoff else potential


def names_of_potentials() -> list[str]:
    """All that are at hand."""
    found = list(shipped_potentials())
    for path in sorted(SHARED.glob("reference/*/*")):
        if path.suffix == ".ckpt" or path.is_dir():
            found.append(path.name)
            if path.name == "aceff-2.0.ckpt":
                found.append(f"{path.name}@12")
    return found


class Oracle(AutogradEvaluator):
    """The reference, which remembers what it computed last and computes nothing twice."""

    kept: Final = 6

    def __init__(self, potential: TensorNetPotential) -> None:
        super().__init__(potential)
        self._known: OrderedDict[str, list[torch.Tensor]] = OrderedDict()

    def evaluate_(self, state: State, lists: Sequence[NeighborList]) -> None:
        digest = hashlib.sha256()
        for system in systems_of(state):
            for part in (system.numbers, system.positions, system.cell, system.pbc):
                digest.update(np.ascontiguousarray(part).tobytes())
        key = digest.hexdigest()
        results = [state.forces, state.energies, state.energy, state.virial]
        if key in self._known:
            for result, known in zip(results, self._known[key], strict=True):
                result.copy_(known)
            self._known.move_to_end(key)
        else:
            super().evaluate_(state, lists)
            self._known[key] = [result.clone() for result in results]
            while len(self._known) > self.kept:
                self._known.popitem(last=False)


class Evaluators:
    """Those of one potential on a device."""

    def __init__(self, name: str, device: torch.device) -> None:
        self.potential = potential_named(name)
        self.device = device
        self.oracle = Oracle(self.potential.at_precision(torch.float64).to(device))
        self._fast: dict[str, FusedTensorNet] = {}

    def fast(self, precision: str) -> FusedTensorNet:
        if precision not in self._fast:
            self._fast[precision] = FusedTensorNet(self.potential, precision, self.device)
        return self._fast[precision]


def figures(agreement: Agreement) -> dict[str, Any]:
    return {
        name: value
        for name, value in dataclasses.asdict(agreement).items()
        if isinstance(value, int | float | str | tuple)
    }


def checked(evaluators: Evaluators, system: System, precision: str, path: str) -> dict[str, Any]:
    """The figures of a case."""
    begin = time.perf_counter()
    fast, oracle = evaluators.fast(precision), evaluators.oracle
    at = Calculation([system], fast, device=evaluators.device, precision=precision)
    at.compute()
    middle = time.perf_counter()
    found = verify(fast, oracle, at.state, at.lists, seconds=PATHS[path])
    end = time.perf_counter()
    force = torch.linalg.vector_norm(at.state.forces.double(), dim=-1)
    record: dict[str, Any] = {
        "size": len(system),
        "cutoff": fast.potential.config.cutoff,
        "force_max": float(force.max()),
        "evaluated_s": round(middle - begin, 3),
        "check_s": round(end - middle, 3),
        "found": figures(found),
    }
    share = TOLERANCES[precision].warning
    if precision == "mixed" or found.beyond(PRECISIONS[precision], share) is not None:
        rounding = rounding_errors(oracle, at.state, at.lists, seconds=PATHS[path])
        record["rounding"] = figures(rounding)
    return record


def refusal(record: dict[str, Any], share: float = 1.0) -> str | None:
    """What the check of today says of recorded figures, where it refuses them (or warns)."""
    fields = {field.name for field in dataclasses.fields(Agreement)}

    def agreement(part: dict[str, Any]) -> Agreement:
        least = {"worst_scale": max(part["force_scale"], SMALLEST_FORCE)}
        return Agreement(**least | {name: part[name] for name in part if name in fields})

    rounding = agreement(record["rounding"]) if "rounding" in record else None
    return agreement(record["found"]).beyond(PRECISIONS[record["precision"]], share, rounding)


def warning(record: dict[str, Any]) -> str | None:
    """What it warns of."""
    return refusal(record, TOLERANCES[record["precision"]].warning)


def cases(
    name: str, group: str, potential: TensorNetPotential, options: argparse.Namespace
) -> Iterator[tuple[str, System, str, str]]:
    """Structure by structure, in a mixed order that never changes."""
    found = list(structures(group, potential))
    order = list(range(len(found)))
    if group != "files":
        seed = int(hashlib.sha256(f"{name} {group}".encode()).hexdigest()[:8], 16)
        np.random.default_rng(seed).shuffle(order)
    for place in order[: options.sample]:
        structure, system = found[place]
        if len(system) > options.atoms:
            continue
        for path in ("all", "clusters") if len(system) <= FEW else ("default",):
            for precision in options.precision:
                yield structure, system, precision, path


def groups_of(name: str) -> list[str]:
    found = ["dimers", "molecules", "files"]
    if name in FRAMES:
        found.insert(0, FRAMES[name])
    if "MatPES" in name or name in FRAMES:
        found.insert(0, "crystals")
    return found


class Turns:
    """Cases of all groups, next of the one that has taken least time."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._evaluators: dict[str, Evaluators] = {}
        self._queues = {
            (name, group): None
            for name in options.potential or names_of_potentials()
            for group in groups_of(name)
            if not options.group or group in options.group
        }
        self._cases: dict[tuple[str, str], Iterator[Any]] = {}
        self._taken = dict.fromkeys(self._queues, 0.0)

    def evaluators(self, name: str) -> Evaluators:
        if name not in self._evaluators:
            self._evaluators[name] = Evaluators(name, self._options.device)
        return self._evaluators[name]

    def __iter__(self) -> Iterator[tuple[str, str, Any]]:
        while self._taken:
            queue = min(self._taken, key=lambda one: self._taken[one])
            begin = time.perf_counter()
            if queue not in self._cases:
                potential = self.evaluators(queue[0]).potential
                self._cases[queue] = cases(*queue, potential, self._options)
            try:
                case = next(self._cases[queue])
            except StopIteration:
                del self._taken[queue]
                continue
            yield (*queue, case)
            self._taken[queue] += time.perf_counter() - begin


def run(options: argparse.Namespace) -> int:
    """Adds to the file until there is nothing left or the time is over."""
    known = {record["key"] for record in records(options.out)} if options.out.exists() else set()
    part, parts = (int(number) for number in options.part.split("/"))
    begin, done, refused = time.monotonic(), 0, 0
    turns = Turns(options)
    if options.out.exists() and not options.out.read_bytes().endswith(b"\n"):
        with options.out.open("a", encoding="utf-8") as file:
            file.write("\n")  # a line that was begun
    with options.out.open("a", encoding="utf-8") as file:
        for name, group, (structure, system, precision, path) in turns:
            key = f"{name}|{group}|{structure}|{precision}|{path}|{options.device.type}"
            # By structure, so that what a part computes serves all its precisions.
            share = int(hashlib.sha256(f"{name}{group}{structure}".encode()).hexdigest()[:8], 16)
            if share % parts != part - 1 or key in known:
                continue
            if time.monotonic() - begin > options.seconds:
                print("The time is over.")
                break
            record: dict[str, Any] = {
                "key": key,
                "potential": name,
                "group": group,
                "structure": structure,
                "precision": precision,
                "path": path,
                "device": options.device.type,
            }
            try:
                record |= checked(turns.evaluators(name), system, precision, path)
                record["refused"] = refusal(record)
            except MDGraphError as error:
                record["failed"] = f"{type(error).__name__}: {error}"
            file.write(json.dumps(record) + "\n")
            file.flush()
            done += 1
            if record.get("refused") or record.get("failed"):
                refused += 1
                print(f"{key}: {record.get('refused') or record['failed']}", flush=True)
    print(f"{done} cases in {time.monotonic() - begin:.0f} s, {refused} refused or failed.")
    return int(refused > 0)


def records(path: Path) -> list[dict[str, Any]]:
    """What a file holds; a last line that is not whole is left out."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


COLUMNS: Final = (
    ("rms", lambda r: r["found"]["force_rms"]),
    ("rms/F", lambda r: r["found"]["force_rms"] / max(r["found"]["force_scale"], 1e-3)),
    ("worst", lambda r: r["found"]["force_worst"]),
    ("worst/F", lambda r: r["found"]["force_worst"] / max(r["found"]["force_scale"], 1e-3)),
    ("energy", lambda r: r["found"]["energy"]),
    ("e_atom", lambda r: r["found"]["energy_worst"]),
    ("virial", lambda r: r["found"]["virial"]),
    ("work", lambda r: min([work for _, work in r["found"]["works"]], default=0.0)),
    ("rnd rms", lambda r: r["rounding"]["force_rms"] if "rounding" in r else 0.0),
    ("rnd worst", lambda r: r["rounding"]["force_worst"] if "rounding" in r else 0.0),
    ("rnd e_at", lambda r: r["rounding"]["energy_worst"] if "rounding" in r else 0.0),
)


def summarize(options: argparse.Namespace) -> int:
    """Largest figures by potential, group, precision and path, and all that is refused today."""
    tables: dict[tuple[str, ...], list[dict[str, Any]]] = defaultdict(list)
    refused, failed, warned = [], [], []
    for path in options.summary:
        for record in records(path):
            if "found" not in record:
                failed.append(f"{record['key']}: {record['failed']}")
                continue
            extreme = " (over 50 eV/A)" if record["force_max"] > 50 else ""
            row = (record["potential"], record["group"] + extreme, record["precision"])
            tables[(*row, record["path"], record["device"])].append(record)
            if sentence := refusal(record):
                refused.append((record, sentence))
            elif sentence := warning(record):
                warned.append((record, sentence))
    widths = f"{'potential':<34}{'group':<26}{'precision':<10}{'path':<9}{'':<5}{'n':>5}{'ref.':>5}"
    print(widths + "".join(f"{name:>10}" for name, _ in COLUMNS))
    keys = {record["key"] for record, _ in refused}
    for row, members in sorted(tables.items()):
        number = sum(record["key"] in keys for record in members)
        cells = "".join(f"{max(column(one) for one in members):>10.1e}" for _, column in COLUMNS)
        name, group, precision, path, device = row
        head = f"{name[:33]:<34}{group:<26}{precision:<10}{path:<9}{device:<5}"
        print(f"{head}{len(members):>5}{number:>5}{cells}")
    total = sum(map(len, tables.values()))
    print(
        f"\n{total} cases, {len(refused)} refused, {len(warned)} warned of, {len(failed)} failed."
    )
    for record, sentence in warned:
        print(f"warned   {record['key']}  F={record['found']['force_scale']:.2e}: {sentence}")
    for record, sentence in refused:
        print(f"refused  {record['key']}  F={record['found']['force_scale']:.2e}: {sentence}")
    for sentence in failed:
        print("failed  ", sentence)
    return int(bool(refused or failed))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="lines are added to this file")
    parser.add_argument("--summary", type=Path, nargs="+", help="judge these files, run nothing")
    parser.add_argument("--part", default="1/1", help="i/n: one of n equal shares")
    parser.add_argument("--sample", type=int, help="structures of each group")
    parser.add_argument("--atoms", type=int, default=3000, help="largest structure")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="when to stop")
    parser.add_argument("--device", type=device_named, default="auto")
    parser.add_argument("--precision", nargs="+", choices=ORDER, default=list(ORDER))
    parser.add_argument("--potential", nargs="+")
    parser.add_argument("--group", nargs="+")
    options = parser.parse_args()
    if (options.out is None) == (options.summary is None):
        parser.error("give either --out or --summary")
    return options


def main() -> int:
    """Runs, or judges what was run."""
    options = arguments()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    return summarize(options) if options.summary else run(options)


if __name__ == "__main__":
    sys.exit(main())
