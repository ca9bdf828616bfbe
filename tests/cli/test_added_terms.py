"""`--add` and `terms:` of commands, and what is refused before anything is written."""

import csv
from pathlib import Path

import pytest
from ase.io import read, write
from random_networks import TENSORNET, molecule, network
from typer.testing import CliRunner

from mdgraph import load
from mdgraph.checkpoints import save
from mdgraph.engine import Calculation
from mdgraph.io.structures import read_system, to_ase
from mdgraph.models import with_terms
from mdgraph.runs.commands import app

TERMS = ["0.5*zbl@2", "bonds:0-1=2/1.1"]
ADDED = [word for text in TERMS for word in ("--add", text)]
BASE = ["--potential", "base.safetensors", "--device", "cpu"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    save(network(**TENSORNET), tmp_path / "base.safetensors")
    write(tmp_path / "start.extxyz", to_ase(molecule(12)))
    return tmp_path


def run(*words: str) -> str:
    """The output of a command, with the sentence of its error."""
    result = CliRunner().invoke(app, words)
    return result.output + ("" if result.exception is None else str(result.exception))


def energy(folder: Path) -> float:
    whole = with_terms(load(folder / "base.safetensors"), TERMS)
    at = Calculation([read_system(folder / "start.extxyz")], whole, device="cpu")
    at.compute()
    return float(at.state.energy)


def test_eval_adds_terms_and_a_file_of_the_sum_gives_the_same(folder: Path) -> None:
    run("eval", "start.extxyz", *BASE, *ADDED)
    run("convert", "base.safetensors", "sum.safetensors", *ADDED)
    run("eval", "start.extxyz", "--potential", "sum.safetensors", "--out", "sum.extxyz")
    for name in ("results.extxyz", "sum.extxyz"):
        assert read(folder / name).get_potential_energy() == pytest.approx(energy(folder), abs=1e-6)
    assert "0.5 times zbl@2: ZBL repulsion" in run("inspect", "sum.safetensors")
    assert "0.5 times zbl@2: ZBL repulsion" in run("inspect", "base.safetensors", *ADDED)


def test_md_logs_each_term_and_resumes(folder: Path) -> None:
    (folder / "run.yaml").write_text(f"terms: {TERMS}\nlog_interval: 5\n")
    run(
        "md", "start.extxyz", *BASE, "--config", "run.yaml", "--steps", "10", "--timestep-fs", "0.1"
    )
    run("md", "--resume", "--out", "mdgraph-run", "--steps", "20")
    refused = run("md", "--resume", "--out", "mdgraph-run", "--add", "zbl@3", "--add", "zbl@1")
    assert "--resume takes --add from run.json" in refused
    assert "--add zbl@3 --add zbl@1 --out NEW" in refused
    text = (folder / "mdgraph-run" / "log.csv").read_text()
    rows = list(csv.DictReader(text.splitlines()))
    assert [row["step"] for row in rows] == ["0", "5", "10", "15", "20"]
    for row in rows:
        names = ("base_energy_eV", "zbl_2_energy_eV", "bonds_0-1_2_1.1_energy_eV")
        parts = sum(float(row[name]) for name in names)
        assert parts == pytest.approx(float(row["potential_energy_eV"]), abs=1e-8)


def test_relax_and_minimise_reach_the_minimum_of_the_sum(folder: Path) -> None:
    for words in (("relax", "--steps", "5"), ("minimise", "--steps", "5")):
        assert "error" not in run(words[0], "start.extxyz", *BASE, *ADDED, *words[1:])
    assert read(folder / "relaxed.extxyz").get_potential_energy() < energy(folder)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--add", "zbl"], "The term zbl needs a cutoff in A; write it as in zbl@3."),
        (["--add", "zbl@2", "--add", "zbl@2"], "--add is ['zbl@2', 'zbl@2']; the term zbl@2 comes"),
        (["--add", "bonds:0-12=1/1"], "The bonds 0-12 of the term are not between two atoms"),
    ],
)
def test_a_bad_term_is_refused_before_anything_is_written(
    folder: Path, words: list[str], sentence: str
) -> None:
    before = sorted(folder.iterdir())
    for command in ("md", "eval", "minimise"):
        assert sentence in run(command, "start.extxyz", *BASE, *words)
        assert sorted(folder.iterdir()) == before
