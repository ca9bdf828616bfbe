"""Faults planted in fused evaluations: what changes a force is refused, by both ways of the check.

The scripts of tests/support/ that plant them measure more of them; here runs a sample.
"""

import math
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from repository import SUPPORT

Script = Callable[[str], ModuleType]

INPUTS = (
    ("plain", "slot dropped, median", "all"),
    ("plain", "last tile stale", "clusters"),
    ("batch", "image shifted, nearest", "clusters"),
    ("tensornet2", "pairs across a face dropped", "clusters"),
    ("tensornet2", "charge of an atom wrong", "clusters"),
    ("plain", "A and S swapped in a layer", "all"),
    ("plain", "embedding's zone misplaced by one", "all"),
)

MUTANTS = (
    ("plain", "embedding", "add_up", "factor: listed.neighbor[i, slot] * edges.slots"),
    ("plain", "embedding", "find_edges", "factor: 4 * edge"),
    ("repulsive", "pairwise", "add_repulsion", "index: constants[3]"),
    ("tensornet2", "pairwise", "_coulomb", "sign: -math.expm1"),
    ("tensornet2", "tensornet2", "find_windows", "sum: start + edges.counts[i]"),
    ("tensornet2", "tensornet2", "gather_by_neighbors", "factor: atom * row"),
)


@cache
def bench(module: ModuleType, subject: str, path: str) -> Any:
    return module.Bench(subject, path, "cpu", "compiled", "mixed")


def judged(module: ModuleType, subject: str, path: str, fault: Any) -> tuple[str, Any]:
    record = bench(module, subject, path).measured(fault)
    record |= {"precision": "mixed", "path": path, "subject": subject, "fault": fault.key}
    return module.verdict(record), record


@pytest.mark.parametrize(("subject", "name", "path"), INPUTS)
@pytest.mark.usefixtures("one_thread")
def test_faults_of_inputs_are_refused(script: Script, subject: str, name: str, path: str) -> None:
    module = script("planted_faults")
    verdict, record = judged(module, subject, path, module.Fault(name))
    assert verdict == "refused", module.line(record)


@pytest.mark.parametrize(("subject", "module", "function", "start"), MUTANTS)
@pytest.mark.usefixtures("one_thread")
def test_mutants_of_kernels_are_refused(
    script: Script, subject: str, module: str, function: str, start: str
) -> None:
    planted, mutants = script("planted_faults"), script("kernel_mutants")
    planted.import_kernels("compiled")
    found = mutants.mutants_of(f"mdgraph.fused.cpu.{module}", [function])
    mutant = next(one for one in found if one.text.startswith(start))
    verdict, record = judged(planted, subject, "all", planted.Fault(str(mutant), mutant))
    assert verdict == "refused", planted.line(record)


@pytest.mark.usefixtures("one_thread")
def test_a_mutant_does_not_last(script: Script) -> None:
    planted, mutants = script("planted_faults"), script("kernel_mutants")
    rows = import_module("mdgraph.fused.cpu.embedding")
    before = vars(rows).copy()
    folder = Path(str(rows.__file__)).parent
    files = {path: path.stat().st_mtime for path in folder.rglob("*.nb*")}
    here = bench(planted, "plain", "all")
    sound = here.sound
    (mutant, *_) = mutants.mutants_of(rows.__name__, ["add_systems"])
    with mutants.mutated(mutant):
        assert vars(rows)["add_systems"] is not before["add_systems"]
        assert vars(rows)["find_edges"] is before["find_edges"]
        here.calculation(here.fused())
    assert vars(rows) == before
    assert {path: path.stat().st_mtime for path in folder.rglob("*.nb*")} == files
    again = planted.Results.of(here.calculation(here.fused()))
    assert all(
        value == 0.0 for name, value in planted.effect(sound, again).items() if name != "scale"
    )


def test_verdicts_follow_effect_and_bounds(script: Script) -> None:
    module = script("planted_faults")
    figures = {
        "force_rms": 0.0,
        "force_worst": 0.0,
        "worst_scale": 2.0,
        "force_scale": 2.0,
        "force_atom": 0,
        "energy": 0.0,
        "energy_worst": 0.0,
        "energy_atom": 0,
        "virial": 0.0,
        "atoms": 9,
        "systems": 1,
        "how": "all",
        "works": [],
    }

    def verdict(force: float, found: float) -> str:
        effect = {"force": force, "scale": 2.0}
        return str(
            module.verdict(
                {"precision": "mixed", "cutoff": 5.0, "path": "all", "fault": "", "effect": effect}
                | {"found": figures | {"force_worst": found}}
            )
        )

    assert verdict(3e-3, 3e-3) == "refused"
    assert verdict(3e-3, 0.0) == "MISSED"
    assert verdict(1e-3, 0.0) == "silent, small"
    assert verdict(math.nan, math.nan) == "refused"
    assert verdict(0.0, 0.0) == "silent, none"
    assert verdict(0.0, 1.0) == "refused, small"


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("backend", ["compiled", "triton"])
def test_no_planted_fault_is_missed(tmp_path: Path, backend: str) -> None:
    out = tmp_path / "faults.jsonl"
    script = SUPPORT / "planted_faults.py"
    only = ["--only", "mutants"] if backend == "triton" else []
    made = run(script, "--out", out, "--backend", backend, *only)
    assert made.returncode == 0, made.stderr
    judged = run(script, "--summary", out)
    assert judged.returncode == 0, judged.stdout[-4000:]
