"""The benchmarks run, and measure what they say."""

import argparse
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.neighborlist import neighbor_list
from prepared import Ended, run_prepared
from pretended_gpus import pretend_gpus
from repository import BENCHMARKS

from mdgraph.engine.autotune import SKINS
from mdgraph.engine.calculation import as_evaluator
from mdgraph.engine.replicas.ranks import ALONE
from mdgraph.precision import precision_named
from mdgraph.system import System

Run = Callable[..., Ended]


@pytest.fixture
def run(processes: Any, tmp_path: Path) -> Run:
    """Runs a script in a process of its own, whose threads and modules are no test's."""

    def run(script: str, *arguments: object) -> Ended:
        words = [BENCHMARKS / script, *arguments]
        return run_prepared(processes, words, tmp_path)

    return run


@pytest.fixture
def printed_lines(printed: Callable[..., str], one_thread: None) -> Callable[..., list[str]]:
    """What a script prints that runs in this process, on the CPU."""
    return lambda name, *arguments: printed(name, *arguments, "--device", "cpu").splitlines()


@pytest.fixture
def structures() -> ModuleType:
    return import_module("cases")


def neighbors(system: System, cutoff: float) -> float:
    atoms = Atoms(system.numbers, system.positions, cell=system.cell, pbc=system.pbc)
    return len(neighbor_list("i", atoms, cutoff)) / len(system)


def test_speed_times_and_checks(printed_lines: Callable[..., list[str]]) -> None:
    lines = printed_lines("speed", "--atoms", 24, 30, "--seconds", 0.01, "--json")
    rows = [json.loads(line) for line in lines]
    assert [row["atoms"] for row in rows] == [24, 30]
    for row in rows:
        assert row["compared"] == row["atoms"]
        assert 0.0 < row["force_error_rms"] <= row["force_error_worst"] < 1e-4
        assert 0.1 < row["step_ms"] / row["evaluation_ms"] < 10.0
    cluster, box = (row["stress_error"] for row in rows)
    assert cluster is None
    assert 0.0 < box < 1e-6


def test_integrators_prints_a_table(
    printed_lines: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_module("integrators"), "STEPS", 2)
    lines = printed_lines("integrators", "--atoms", 24, "--replicas", 2, "--seconds", 1e-3)
    titles, row = (line.split() for line in lines)
    assert len(titles) == len(row)
    assert all(float(number) > 0.0 for number in row)


def test_replicas_prints_a_table(printed_lines: Callable[..., list[str]]) -> None:
    sizes = ["--replicas", 1, 3, "--channels", 8, "--steps", 2, "--exchange", 2]
    rows = [json.loads(line) for line in printed_lines("replicas", *sizes, "--json")]
    assert [row["replicas"] for row in rows] == [1, 3]
    for row in rows:
        assert row["skin_A"] == 0.3
        assert row["ns_per_day_all"] == pytest.approx(row["replicas"] * row["ns_per_day_each"])


def test_replicas_build_lists_when_they_are_due(monkeypatch: pytest.MonkeyPatch) -> None:
    replicas = import_module("replicas")
    monkeypatch.setattr(replicas, "STRETCHES", 1)
    options = argparse.Namespace(
        atoms=24,
        channels=8,
        exchange=10,
        steps=21,
        precision="mixed",
        device=torch.device("cpu"),
    )
    intervals = {}
    for options.skin in (0.0, 0.6):
        row = replicas.measured(2, ALONE, options)
        assert row["skin_A"] == options.skin
        intervals[options.skin] = row["steps_a_list"]
    assert intervals[0.0] == 1.0
    # At 300 to 450 K the fastest of 32 hydrogens flies 0.3 A in some ten steps.
    assert 3.0 < intervals[0.6] < 20.0


def test_metadynamics_of_both_programs_errs_alike(printed: Callable[..., str]) -> None:
    """Hills too few to fill anything, which differ from the exact answer by the same."""
    lines = printed("metadynamics", "openmm", "--quick", "--json").splitlines()
    own, theirs = map(json.loads, lines)
    assert (own["who"], theirs["who"]) == ("mdgraph", "OpenMM")
    assert own["error_kT"] == pytest.approx(theirs["error_kT"], rel=0.02)
    text = printed("metadynamics", "walkers", "--quick", "--walkers", 1, 4, "--target", 5)
    rows = [line.split() for line in text.splitlines()[2:4]]
    assert [row[:2] for row in rows] == [["mdgraph", "1"], ["mdgraph", "4"]]
    assert "4 walkers take" in text
    lines = printed("metadynamics", "exact", "--quick", "--json").splitlines()
    summed, reweighted, *_ = map(json.loads, lines)
    assert summed["error_kT"] < 0.3
    assert reweighted["error_kT"] < min(0.3, 3.0 * reweighted["bars_kT"])


def test_openmm_overhead_prints_a_table(run: Run) -> None:
    sizes = ["--atoms", 24, "--channels", 8, "--steps", 10]
    for _ in range(3):  # what else the machine does can make a median several times as long
        done = run("openmm_overhead.py", *sizes, "--seconds", 0.2, "--device", "cpu", "--json")
        assert done.returncode == 0, done.stderr
        row = json.loads(done.stdout)
        # Medians of ten steps, timed one after the other: a busy machine makes either half as long.
        likely = 0.2 < row["ratio"] < 5.0 and row["openmmml_ms"] > 0.5 * row["graph_ms"] > 0.0
        if likely:
            break
    assert likely, row


def test_steps_prints_a_table(printed_lines: Callable[..., list[str]]) -> None:
    _, _, *rows = printed_lines("steps", "--atoms", 24)
    assert [row.split()[1] for row in rows] == ["NVE", "Langevin"]
    for row in rows:
        numbers = [float(cell) for cell in row.split()[2:] if cell != "-"]
        # A skin, single steps, steps without a skin, and such whose list is never due.
        assert len(numbers) == 4
        assert all(number >= 0.0 for number in numbers)


def test_speed_prints_a_table(printed_lines: Callable[..., list[str]]) -> None:
    options = ["--evaluator", "reference", "--precision", "double"]
    lines = printed_lines("speed", "--atoms", 24, "--seconds", 0.01, *options)
    _, titles, potential, row = lines
    assert potential.endswith("reference evaluator")
    assert len(titles) == len(row)
    errors = row.split()[7:10]
    assert all(float(error) < 1e-10 for error in errors)


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        (
            "speed",
            ["--atoms", 25, "--device", "cpu"],
            "and 25 is not a multiple of that; ask for 24.",
        ),
        ("steps", ["--device", "cuda:x"], "Unknown device 'cuda:x'; choose cpu, cuda or cuda:N."),
    ],
)
def test_wrong_input_ends_in_one_sentence(
    name: str,
    options: list[object],
    sentence: str,
    structures: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *map(str, options)])
    with pytest.raises(SystemExit) as ended:
        structures.run_script(import_module(name).main)
    assert ended.value.code == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(f"{name}.py: error: ")
    assert last.endswith(sentence)


def test_a_signal_ends_a_script_once_the_gpu_is_done(
    structures: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[int] = []
    pretend_gpus(monkeypatch, 1, [0], waits.append)
    with pytest.raises(SystemExit) as ended:
        structures.run_script(lambda: signal.raise_signal(signal.SIGTERM))
    assert (ended.value.code, waits) == (143, [0])


def test_domains_stand_beside_the_undivided_run(
    printed: Callable[..., str], one_thread: None
) -> None:
    options = ("--nve-ps", 0.02, "--npt-ps", 0.01, "--bath-ps", 0.002, "--json")
    rows = [json.loads(line) for line in printed("domains", *options).splitlines()]
    assert [(row["run"], row["domains"]) for row in rows] == [
        ("nve", "1"), ("nve", "1x1x2"), ("npt", "1"), ("npt", "1x1x2"),
    ]  # fmt: skip
    assert rows[0]["temperature"] == pytest.approx(rows[1]["temperature"], rel=1e-6)
    assert rows[2]["temperature"] != rows[3]["temperature"]  # of other random numbers
    assert all(row["temperature_error"] >= 0.0 for row in rows[:2])


def test_streams_times_the_command(run: Run) -> None:
    done = run("streams.py", "--frames", 4, "--atoms", 12, "--seconds", 0.01, "--device", "cpu")
    assert done.returncode == 0, done.stderr
    *_, speeds, _, memory, ranks = done.stdout.splitlines()
    assert "parsing" in speeds
    assert memory.startswith("in memory")
    assert ranks.split()[3] == "1.00"
    assert "reading" in ranks


def test_all_scripts_end_errors_in_one_sentence() -> None:
    for path in BENCHMARKS.glob("*.py"):
        _, begun, end = path.read_text(encoding="utf-8").partition('if __name__ == "__main__":\n')
        assert not begun or end == "    run_script(main)\n", path.name


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_all_structures_can_be_made(
    kind: str, structures: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    speed = import_module("speed")
    # A large box is made of 3,000 atoms instead, and as many as its size is off whole molecules.
    water = structures.water
    monkeypatch.setattr(speed, "water", lambda atoms: water(min(atoms, 3000 + atoms % 3)))
    monkeypatch.setattr(speed, "load", lambda path: None)
    options = argparse.Namespace(
        atoms=speed.SIZES[kind],
        million=True,
        aceff=Path("aceff.ckpt"),
        aceff_structures=[],
        coulomb_cutoff=None,
        matpes=Path("matpes"),
    )
    boxes, solutions, crystals = (made for _, _, made in speed.groups(options))
    assert len(boxes) == len(speed.SIZES[kind]) + 1
    assert [len(one.system) for one in solutions] == pytest.approx(speed.STAND_IN_SIZES, rel=0.01)
    assert {one.peer for one in crystals} == set(speed.MATGL.values())
    field = SimpleNamespace(with_coulomb_cutoff=lambda cutoff: f"reaction field of {cutoff} A")
    monkeypatch.setattr(speed, "load", lambda path: field)
    options.coulomb_cutoff, options.atoms, options.million = 12.0, [], False
    assert next(used for _, used, _ in speed.groups(options)) == "reaction field of 12.0 A"


def test_structures_have_the_density_of_the_real_ones(structures: ModuleType) -> None:
    assert neighbors(structures.water(648), 5.0) == pytest.approx(54.0, abs=2.0)
    assert neighbors(structures.salt(2), 5.0) == pytest.approx(26.0, abs=2.0)
    assert neighbors(structures.solution(2268), 5.0) == pytest.approx(54.0, abs=2.0)


def test_structures_have_the_requested_number_of_atoms(structures: ModuleType) -> None:
    for atoms in (24, 165):
        for make in (structures.water, structures.solution):
            cluster = make(atoms)
            assert len(cluster) == atoms
            assert not cluster.pbc.any()
            assert neighbors(cluster, 0.7) == 0.0
    assert set(structures.solution(24).numbers) == {1, 6, 7, 8}
    assert np.array_equal(structures.salt(2).pbc, [True] * 3)
    assert len(structures.salt(2)) == 64


def test_comparison_says_that_the_peer_is_missing(run: Run, tmp_path: Path) -> None:
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


class PeerInAHarmonicWell:
    """Stands for TorchMD-Net, whose positions are no numbers in a cell of zeros."""

    def ask(self, structure: dict[str, list[float]] | None) -> dict[str, Any]:
        if structure is None:
            return {"seconds": 1e-3}
        positions = np.array(structure["positions"])
        if structure["cell"] is not None:
            with np.errstate(all="ignore"):
                positions = positions % np.diag(structure["cell"])
        return {"seconds": 1e-3, "forces": (-positions).tolist()}


@pytest.mark.parametrize("atoms", [24, 30])
def test_comparison_of_clusters_and_boxes_has_numbers(
    structures: ModuleType, script: Callable[[str], ModuleType], atoms: int
) -> None:
    potential = structures.random_potential(8)
    cells = script("compare_cpu").compared(
        PeerInAHarmonicWell(),
        lambda: as_evaluator(potential, precision_named("double"), torch.device("cpu"), "auto"),
        structures.water(atoms),
        argparse.Namespace(precision="double", rounds=1),
    )
    assert np.isfinite(float(cells.split()[-1]))


def test_dynamics_from_ase_are_timed(run: Run) -> None:
    options = ["--atoms", 24, "--channels", 8, "--interval", 2, "--device", "cpu"]
    done = run("ase_dynamics.py", *options, "--seconds", 0.05)
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()[4:7]]
    assert [row[0] for row in rows] == ["engine", "driver", "calculator"]
    for _, step, relative in rows:
        assert float(relative) == pytest.approx(float(step) / float(rows[0][1]), abs=0.01)
    assert "one look: " in done.stdout


@pytest.mark.gpu
def test_replicas_take_the_skin_that_is_fastest() -> None:
    options = ["--replicas", "1", "8", "--exchange", "10", "--steps", "40", "--json"]
    done = subprocess.run(
        [sys.executable, BENCHMARKS / "replicas.py", *options, "--device", "cuda"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for row in map(json.loads, done.stdout.splitlines()):
        assert row["skin_A"] in SKINS
        assert 1.0 <= row["steps_a_list"] <= 40.0
        assert (row["steps_a_list"] > 1.0) == (row["skin_A"] > 0.0)
        assert row["memory_MB"] > 0.0
