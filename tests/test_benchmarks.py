"""The benchmarks run, and measure what they say."""

import json
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from ase import Atoms
from ase.neighborlist import neighbor_list

from mdgraph.system import System

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"


def run(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, BENCHMARKS / script, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
    )


@pytest.fixture
def structures(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return import_module("structures")


def neighbors(system: System, cutoff: float) -> float:
    atoms = Atoms(system.numbers, system.positions, cell=system.cell, pbc=system.pbc)
    return len(neighbor_list("i", atoms, cutoff)) / len(system)


def test_speed_times_and_checks() -> None:
    done = run("speed.py", "--atoms", 24, 30, "--seconds", 0.01, "--json", "--device", "cpu")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["atoms"] for row in rows] == [24, 30]
    for row in rows:
        assert row["compared"] == row["atoms"]
        assert 0.0 < row["force_error_rms"] <= row["force_error_worst"] < 1e-4
        assert 0.1 < row["step_ms"] / row["evaluation_ms"] < 10.0


def test_speed_prints_a_table() -> None:
    options = ["--evaluator", "reference", "--precision", "double", "--device", "cpu"]
    done = run("speed.py", "--atoms", 24, "--seconds", 0.01, *options)
    assert done.returncode == 0, done.stderr
    _, titles, potential, row = done.stdout.splitlines()
    assert potential.endswith("reference evaluator")
    assert len(titles) == len(row)
    errors = row.split()[7:10]
    assert all(float(error) < 1e-10 for error in errors)


def test_structures_have_the_density_of_the_real_ones(structures: ModuleType) -> None:
    assert neighbors(structures.water(648), 5.0) == pytest.approx(54.0, abs=2.0)
    assert neighbors(structures.salt(2), 5.0) == pytest.approx(26.0, abs=2.0)
    assert neighbors(structures.solution(2268), 5.0) == pytest.approx(54.0, abs=2.0)


def test_structures_have_the_atoms_asked_for(structures: ModuleType) -> None:
    for atoms in (24, 165):
        for make in (structures.water, structures.solution):
            cluster = make(atoms)
            assert len(cluster) == atoms
            assert not cluster.pbc.any()
            assert neighbors(cluster, 0.7) == 0.0
    assert set(structures.solution(24).numbers) == {1, 6, 7, 8}
    assert np.array_equal(structures.salt(2).pbc, [True] * 3)
    assert len(structures.salt(2)) == 64


def test_comparison_says_that_the_peer_is_missing(tmp_path: Path) -> None:
    (tmp_path / "torchmdnet.py").write_text("raise ImportError('not this one')", encoding="utf-8")
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\nPYTHONPATH="{tmp_path}" exec "{sys.executable}" "$@"\n', encoding="utf-8"
    )
    python.chmod(0o755)
    done = run("compare_cpu.py", "--peer-python", python)
    assert done.returncode == 1
    assert "TorchMD-Net stopped" in done.stderr
    assert "not this one" in done.stderr


def test_the_profile_of_kernels_says_what_it_needs() -> None:
    done = run("kernels.py", "--atoms", 24)
    assert done.returncode == 1
    assert "no CUDA device" in done.stderr


@pytest.mark.gpu
def test_the_profile_of_kernels_names_them() -> None:
    script = BENCHMARKS / "kernels.py"
    done = subprocess.run(
        [sys.executable, script, "--atoms", "24"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "message_adjoint_kernel" in done.stdout
