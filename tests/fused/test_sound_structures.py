"""Sound structures of every kind, none of which the self-check may refuse.

The script of tests/support/ that measures all of them runs on a sample here, and on more where
tests marked slow are asked for.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from repository import SUPPORT

Script = Callable[[str], ModuleType]

SAMPLE = (
    ("copper-pbe", "crystals", "Cu fcc perfect", "mixed"),
    ("copper-pbe", "crystals", "Cu fcc rattled 0.01", "mixed"),
    ("copper-pbe", "crystals", "Cu fcc rattled 0.2", "single"),
    ("copper-pbe", "crystals", "Cu fcc strained", "fast"),
    ("copper-pbe", "crystals", "Cu fcc slab", "mixed"),
    ("copper-pbe", "dimers", "Cu alone", "mixed"),
    ("silicon-pbe", "crystals", "Si diamond rattled 0.05", "mixed"),
    ("ethanol-pbe", "molecules", "CH3CH2OH", "mixed"),
    ("acac-pbe", "dimers", "C-O at 0.9 A", "mixed"),
    ("acac-pbe", "dimers", "C-C at 4.0 A", "mixed"),
)


@cache
def evaluators(module: ModuleType, name: str) -> Any:
    return module.Evaluators(name, module.torch.device("cpu"))


@pytest.mark.parametrize(("potential", "group", "name", "precision"), SAMPLE)
@pytest.mark.parametrize("path", ["all", "clusters"])
@pytest.mark.usefixtures("one_thread")
def test_sound_structures_pass(
    script: Script, potential: str, group: str, name: str, precision: str, path: str
) -> None:
    module = script("self_check")
    here = evaluators(module, potential)
    system = dict(module.structures(group, here.potential))[name]
    record = module.checked(here, system, precision, path) | {"precision": precision}
    assert module.refusal(record) is None
    assert record["found"]["how"] == "all" or path == "clusters"
    if precision == "mixed":
        assert record["rounding"]["atoms"] % record["found"]["atoms"] == 0


def test_a_second_start_measures_the_remaining_cases(
    script: Script, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    module = script("self_check")
    out = tmp_path / "cases.jsonl"
    options = ["--potential", "copper-pbe", "--group", "dimers", "--precision", "mixed"]
    options += ["--device", "cpu", "--out", str(out), "--sample"]

    def keys(*more: str) -> list[str]:
        monkeypatch.setattr(sys, "argv", ["self_check.py", *options, *more])
        module.main()
        return [record["key"] for record in module.records(out)]

    first = keys("1")
    with out.open("a") as file:
        file.write('{"key": "cop')  # as a process leaves it that is ended
    second = keys("2")
    assert len(first) == 2
    assert second[:2] == first
    assert len(second) == len(set(second)) == 4
    halves = [keys("3", "--part", f"{part}/2") for part in (1, 2)]
    assert len(halves[-1]) == len(set(halves[-1])) == 6


def test_the_peptide_has_bonds_as_they_are(script: Script) -> None:
    atoms = script("sound_structures").peptide(3)
    assert atoms.get_chemical_formula() == "C12H22N4O4"
    distances = atoms.get_all_distances() + 9.0 * np.eye(len(atoms))
    hydrogen = atoms.numbers == 1
    assert ((distances < 1.3) & hydrogen[:, None]).sum(1)[hydrogen].tolist() == [1] * 22
    assert 1.0 < distances.min() < 1.02


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("precision", ["mixed", "single", "double", "fast"])
@pytest.mark.usefixtures("reference_folder", "datasets_folder", "structures_folder")
def test_no_sound_structure_is_refused(tmp_path: Path, precision: str) -> None:
    out = tmp_path / "cases.jsonl"
    options = ["--out", out, "--sample", 10, "--atoms", 200, "--precision", precision]
    made = subprocess.run(
        [sys.executable, SUPPORT / "self_check.py", *map(str, options), "--device", "cpu"],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert made.returncode == 0, made.stdout[-4000:] + made.stderr
