"""The examples run, and the documents say nothing that does not work."""

import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
import pytest
import typer.main
import yaml
from ase.io.trajectory import Trajectory
from followed_pages import blocks
from prepared import run_prepared
from repository import ROOT

from mdgraph.cli import app
from mdgraph.drivers.ase import MDGraphCalculator
from mdgraph.io.structures import read_systems

EXAMPLES = ROOT / "examples"
SAMPLE = ROOT / "data" / "water27.extxyz"
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("data/*.md")])

Python = Callable[..., str]


@pytest.fixture
def python(processes: Any, tmp_path: Path) -> Python:
    """Runs a script or module in an empty folder, where warnings are errors; returns its output."""

    def run(*arguments: object) -> str:
        done = run_prepared(processes, arguments, tmp_path)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture
def mdgraph(
    mdgraph_command: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    checked_once: None,
) -> Python:
    """Runs a command in that folder, in this process; returns its output."""
    monkeypatch.chdir(tmp_path)

    def run(*words: object) -> str:
        done = mdgraph_command(*words)
        assert done.status == 0, done.err
        return str(done.out)

    return run


# Examples


def test_every_example_is_run_below() -> None:
    text = Path(__file__).read_text(encoding="utf-8")
    for path in EXAMPLES.iterdir():
        if path.is_file():
            assert f'EXAMPLES / "{path.name}"' in text


def test_dynamics_from_python(tmp_path: Path) -> None:
    """In a process of its own, in which imports do not warn either."""
    words = [sys.executable, "-W", "error", EXAMPLES / "run_md.py", "--steps", "20"]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [float(line.split()[0]) for line in lines] == [5.0, 10.0]
    assert all(100.0 < float(line.split()[2]) < 500.0 for line in lines)


def test_observables_are_recorded(python: Python, tmp_path: Path) -> None:
    printed = python(EXAMPLES / "observe_water.py", "--steps", 40)
    assert printed.startswith("averages, 40 samples")
    for name in ("averages", "rdf", "msd", "vacf"):
        assert (tmp_path / f"{name}.png").stat().st_size > 1000
        assert (tmp_path / f"{name}.csv").stat().st_size > 100


def test_ase_relaxes_and_heats(python: Python, tmp_path: Path) -> None:
    printed = python(EXAMPLES / "01_water_ase.py", "--edge", 2, "--steps", 100)
    assert "FIRE:" in printed
    mean = re.search(r"mean of the second half: (\d+) K", printed)
    assert mean
    assert 100 < int(mean[1]) < 900
    with Trajectory(tmp_path / "water.traj") as trajectory:
        assert len(trajectory) == 3
        first = trajectory[0]
    assert np.linalg.norm(first.get_forces(), axis=1).max() < 0.05


def test_ase_runs_a_checkpoint_of_the_user(
    python: Python, tmp_path: Path, tiny_potential: Path, water_file: Path
) -> None:
    script = EXAMPLES / "04_own_checkpoint.py"
    printed = python(script, tiny_potential, water_file, "--steps", 40, "--temperature", 30)
    drift = re.search(r"OH2OH2: drift (\S+) meV an atom and ps, noise (\S+) meV", printed)
    assert drift
    assert 0.0 < float(drift[2]) < 5.0
    assert (tmp_path / "energy.png").stat().st_size > 1000


def test_ase_expands_a_metal(python: Python, tmp_path: Path, reference_folder: Path) -> None:
    potential = reference_folder / "matgl" / "TensorNet-MatPES-PBE-v2025.1-PES"
    printed = python(EXAMPLES / "05_metal_npt.py", potential, "--cells", 1, "--steps", 20)
    constant = re.search(r"Cu: (\S+) A at rest", printed)
    assert constant
    assert float(constant[1]) == pytest.approx(3.61, abs=0.05)
    assert "linear expansion" in printed
    assert (tmp_path / "lattice.png").stat().st_size > 1000


def test_ase_relaxes_many(python: Python, tmp_path: Path) -> None:
    options = ["--structures", 2, "--every", 5, "--steps", 10]
    printed = python(EXAMPLES / "06_relax_many.py", *options)
    assert "of 2 structures rest" in printed
    assert int(re.search(r"liquid is (\d+) meV", printed)[1]) > 10
    assert (tmp_path / "minima.png").stat().st_size > 1000


def test_replicas_exchange_temperatures(python: Python, tmp_path: Path) -> None:
    script = EXAMPLES / "07_replica_exchange.py"
    printed = python(script, "--replicas", 2, "--steps", 8, "--exchange", 2)
    assert "of 4 exchanges were accepted" in printed
    assert "k a molecule" in printed
    assert (tmp_path / "ladder.png").stat().st_size > 1000


def test_walkers_fill_a_torsion_with_hills(python: Python, tmp_path: Path) -> None:
    script = EXAMPLES / "10_metadynamics.py"
    printed = python(script, "--walkers", 2, "--steps", 20, "--every", 5)
    assert printed.startswith("8 hills of 2 walkers.")
    assert (tmp_path / "torsion.png").stat().st_size > 1000


def test_windows_are_joined_to_a_free_energy(python: Python, tmp_path: Path) -> None:
    script = EXAMPLES / "11_umbrella_sampling.py"
    few = ["--windows", 3, "--first", -75, "--last", -45, "--steps", 60, "--every", 2]
    printed = python(script, *few, "--exchange", 10)
    assert printed.startswith("72 samples in 3 windows; exchanges: ")
    assert (tmp_path / "umbrellas.png").stat().st_size > 1000


def test_pulling_a_torsion_takes_work(python: Python, tmp_path: Path) -> None:
    script = EXAMPLES / "12_steered_torsion.py"
    printed = python(script, "--molecules", 2, "--steps", 160, "--settle", 20)
    mean = re.search(r"mean work: (-?\d+) \+- \d+ meV", printed)
    free_energy = re.search(r"exponential mean: (-?\d+) meV", printed)
    assert mean
    assert free_energy
    assert int(free_energy[1]) <= int(mean[1]) + 1
    assert (tmp_path / "work.png").stat().st_size > 1000


def test_dispersion_and_a_wall_are_terms(python: Python, tmp_path: Path) -> None:
    printed = python(EXAMPLES / "13_dispersion_and_wall.py", "--steps", 20, "--every", 5)
    dispersion = re.search(r"d3bj:pbe@12: (\S+) eV", printed)
    assert dispersion
    assert -0.5 < float(dispersion[1]) < -0.02
    assert "eV of work have switched the wall on" in printed
    assert (tmp_path / "terms.png").stat().st_size > 1000


def test_an_ensemble_of_ones_own(python: Python, tmp_path: Path) -> None:
    script = EXAMPLES / "09_own_ensemble.py"
    kelvin = re.search(r"20.0 fs, (\d+) K", python(script, "--steps", 40))
    assert kelvin
    assert 100 < int(kelvin[1]) < 500
    options = ["--ensemble", "nvt-andersen", "--steps", 2, "--out", "run"]
    assert "(2 of 2 steps)" in python(script, "md", SAMPLE, *options)
    recorded = json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))
    assert recorded["configuration"]["collision_rate_per_ps"] == 1.0


def test_water_from_openmm(python: Python, tmp_path: Path) -> None:
    printed = python(EXAMPLES / "02_water_openmm.py", "--steps", 40)
    assert 200.0 < float(printed.split()[-2]) < 450.0
    times = np.genfromtxt(tmp_path / "water.csv", delimiter=",")[:, 0]
    np.testing.assert_allclose(times[[0, -1]], [0.001, 0.02])
    for name in ("water.dcd", "water.chk"):
        assert (tmp_path / name).stat().st_size > 1000


def test_the_mixed_system_of_openmmml_runs(python: Python) -> None:
    printed = python(EXAMPLES / "03_mixed_system.py", "--steps", 30)
    assert abs(float(printed.split()[-2])) < 50.0


def test_an_export_agrees_with_the_engine(python: Python, tmp_path: Path) -> None:
    printed = python(EXAMPLES / "08_export_torchforce.py")
    assert float(printed.split()[-2]) < 0.1
    assert (tmp_path / "water.pt").stat().st_size > 1000


def test_a_run_from_a_file(mdgraph: Python, tmp_path: Path) -> None:
    example = EXAMPLES / "water_md.yaml"
    # A log of a single row would have no picture.
    printed = mdgraph("md", "--config", example, "--steps", 2, "--log-interval", 2)
    assert "(2 of 2 steps)" in printed
    written = yaml.safe_load(example.read_text(encoding="utf-8"))
    folder = tmp_path / written["out"]
    assert (folder / "picture.png").exists()
    recorded = json.loads((folder / "run.json").read_text(encoding="utf-8"))["configuration"]
    assert (written.pop("time_ps"), written.pop("log_interval")) == (20, 20)
    del written["out"]
    assert {key: recorded[key] for key in written} == written


def test_a_protocol_from_a_file(mdgraph: Python, tmp_path: Path) -> None:
    example = (EXAMPLES / "water_protocol.yaml").read_text(encoding="utf-8")
    (explained,) = blocks(ROOT / "docs" / "ensembles.md", "yaml")
    assert yaml.safe_load(explained) == yaml.safe_load(example)
    short = re.sub(r"time_ps: \d+|steps: 200", "steps: 2", example)
    (tmp_path / "short.yaml").write_text(short, encoding="utf-8")
    assert "All stages are finished" in mdgraph("protocol", "short.yaml")
    folders = sorted(path.name for path in (tmp_path / "mdgraph-protocol").iterdir())
    stages = ["01-minimise", "02-heat", "03-equilibrate", "04-produce"]
    assert folders == [*stages, "protocol.json"]


def test_maps_of_two_torsions_from_files(
    python: Python, mdgraph: Python, tmp_path: Path, reference_folder: Path
) -> None:
    """As the page on free energies has it, but short: walkers, and windows that begin at theirs."""
    folder = EXAMPLES / "free_energies"
    (tmp_path / "aceff-1.1.ckpt").symlink_to(reference_folder / "torchmdnet" / "aceff-1.1.ckpt")
    text = (folder / "filling.yaml").read_text(encoding="utf-8")
    short = re.sub(r"time_ps: \d+", "steps: 4", text).replace("replicas: 256", "replicas: 2")
    short = re.sub(r"(every|_interval): \d+", r"\1: 2", short)
    (tmp_path / "short.yaml").write_text(short, encoding="utf-8")
    structure = folder / "alanine.extxyz"
    printed = mdgraph("md", structure, "--config", "short.yaml", "--out", "meta")
    assert "(4 of 4 steps)" in printed
    assert len((tmp_path / "meta" / "HILLS").read_text().splitlines()) == 7 + 4
    printed = python(folder / "windows.py", "meta", "--windows", 2, 2, "--time-ps", 0.004)
    far = re.match(r"4 windows; the farthest start is (\d+) degrees", printed)
    assert far
    assert 100 < int(far[1]) < 256
    options = ["--every-frame", "--config", "windows.yaml", "--colvar-interval", 1]
    printed = mdgraph("md", "starts.extxyz", *options, "--out", "windows")
    assert "(2 of 2 steps)" in printed
    recorded = json.loads((tmp_path / "windows" / "run.json").read_text(encoding="utf-8"))
    assert recorded["configuration"]["biases"][0]["centre"][1] == pytest.approx([-np.pi, 0.0])


def test_a_hydrogen_between_two_oxygens_from_a_file(mdgraph: Python, tmp_path: Path) -> None:
    text = (EXAMPLES / "free_energies" / "transfer.yaml").read_text(encoding="utf-8")
    short = re.sub(r"time_ps: \d+", "steps: 4", text).replace("replicas: 64", "replicas: 2")
    short = re.sub(r"(every|_interval): \d+", r"\1: 2", short)
    (tmp_path / "short.yaml").write_text(short, encoding="utf-8")
    printed = mdgraph("md", "--config", "short.yaml", "--out", "transfer")
    assert "(4 of 4 steps)" in printed
    (row,) = np.loadtxt(tmp_path / "transfer" / "replica-0" / "COLVAR")[:1]
    assert row[3] == pytest.approx(row[1] - row[2])


def test_the_unbiased_run_differs_by_its_bias_alone() -> None:
    read = [
        yaml.safe_load((EXAMPLES / "free_energies" / f"{name}.yaml").read_text(encoding="utf-8"))
        for name in ("metadynamics", "unbiased")
    ]
    del read[0]["biases"]
    assert [one.pop("time_ps") for one in read] == [400, 120]
    assert read[0] == read[1]


# Documents


FOLLOWED = {"start.md", "multiple_time_steps.md"}
"""Pages that tests of their own run from top to end, as those of tutorials are."""


def test_python_of_the_documents_runs(python: Python, tmp_path: Path) -> None:
    """As a reader in the clone would; one process for all, which share no names."""
    (tmp_path / "data").symlink_to(ROOT / "data")
    (tmp_path / "potentials").symlink_to(ROOT / "potentials")
    every = [path for path in DOCUMENTS if blocks(path, "python")]
    pages = [
        path for path in every if path.name not in FOLLOWED and path.parent.name != "tutorials"
    ]
    snippets = {page: blocks(page, "python") for page in pages}
    assert sum(map(len, snippets.values())) >= 7
    script = "\n".join(f"exec({one!r}, {{}})" for some in snippets.values() for one in some)
    printed = python("-c", script)
    assert len(printed.splitlines()) > len(pages)
    assert "nan" not in printed


def commands() -> list[str]:
    """Every line of the documents that calls mdgraph."""
    return [
        re.sub(r".*\bmdgraph ", "", line)
        for path in DOCUMENTS
        for language in ("", "bash")
        for block in blocks(path, language)
        for line in block.splitlines()
        if re.match(r"(.*/)?mdgraph ", line.rpartition("&& ")[2])
    ]


@pytest.mark.parametrize("command", commands())
def test_commands_of_the_documents_exist(command: str) -> None:
    name, *arguments = shlex.split(command.partition(" > ")[0])  # the rest is the shell's
    group = typer.main.get_command(app)
    group.commands[name].make_context(name, arguments)


def test_the_documents_have_commands_to_test() -> None:
    assert {command.split()[0] for command in commands()} >= {
        "md",
        "eval",
        "inspect",
        "convert",
        "potentials",
    }


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_documents_name_existing_files(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in link]
    quoted = re.findall(r"`((?:docs|examples|benchmarks|data|potentials|tests)/[\w./-]+)`", text)
    for target in (path.parent / link for link in links):
        assert target.exists(), target
    for target in (ROOT / name for name in quoted):
        assert target.exists(), target


def test_the_readme_names_documents_and_examples() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for wanted in (
        "docs/architecture.md",
        "docs/ensembles.md",
        "docs/errors.md",
        "docs/usage.md",
        "docs/units.md",
        "docs/benchmarks.md",
        "data/README.md",
        *(f"examples/{path.name}" for path in EXAMPLES.iterdir() if path.is_file()),
    ):
        assert wanted in text


# Samples


def test_samples_have_the_hashes_of_their_readme() -> None:
    text = (ROOT / "data" / "README.md").read_text(encoding="utf-8")
    listed = dict(re.findall(r"^\| `([\w.]+)` \|.*\| `([0-9a-f]{64})` \|$", text, re.MULTILINE))
    files = [path for path in (ROOT / "data").iterdir() if path.name != "README.md"]
    assert listed == {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_the_sample_is_water_by_the_shipped_potential() -> None:
    frames = ase.io.read(SAMPLE, ":")
    calculator = MDGraphCalculator("water-pbe0", device="cpu", precision="double")
    assert len(read_systems(SAMPLE)) == len(frames) == 9
    for atoms in frames[::4]:
        assert atoms.symbols.formula.count() == {"H": 54, "O": 27}
        assert atoms.pbc.all()
        copy = atoms.copy()
        copy.calc = calculator
        assert copy.get_potential_energy() == pytest.approx(atoms.get_potential_energy(), abs=1e-6)
        np.testing.assert_allclose(copy.get_forces(), atoms.get_forces(), atol=1e-6)
