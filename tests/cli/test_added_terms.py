"""`--add` and `terms:` of commands, and what is refused before anything is written."""

import csv
import json
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
from mdgraph.runs.commands.app import app
from mdgraph.runs.config import MDConfig
from mdgraph.runs.setup import record_fields

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


def test_a_run_switches_from_one_network_to_another(folder: Path) -> None:
    """By texts and by mappings of YAML: the ends are the energies of each, and resumed alike."""
    other = network(**TENSORNET | {"channels": 4, "cutoff": 3.0})
    save(other, folder / "other.safetensors")
    ways = ["--add", "1:0*self", "--add", "0:1*potential:other.safetensors"]
    common = ["md", "start.extxyz", *BASE, "--timestep-fs", "0.1", "--seed", "3"]
    common += ["--ramp-steps", "8", "--log-interval", "4"]
    run(*common, *ways, "--steps", "12", "--out", "texts")
    (folder / "run.yaml").write_text(
        "terms:\n- {term: self, weight: [1, 0]}\n"
        "- {term: 'potential:other.safetensors', weight: [0, 1]}\n"
    )
    assert "Weights change" in run(*common, "--config", "run.yaml", "--steps", "4", "--out", "yaml")
    run("md", "--resume", "--out", "yaml", "--steps", "12")
    logs = [(folder / name / "log.csv").read_text() for name in ("texts", "yaml")]
    rows, resumed = (list(csv.DictReader(text.splitlines())) for text in logs)
    whole = load(folder / "base.safetensors"), load(folder / "other.safetensors")
    for potential, system, row in zip(
        whole, ("start.extxyz", "texts/end.extxyz"), (rows[0], rows[-1]), strict=True
    ):
        at = Calculation([read_system(folder / system)], potential, device="cpu")
        at.compute()
        own = float(row["potential_energy_eV"])
        assert own == pytest.approx(float(at.state.energy), abs=1e-5)
    assert [row["other_weight"] for row in rows] == ["0", "0.5", "1", "1"]
    assert float(rows[-1]["switching_work_eV"]) != 0.0
    for own, row in zip(rows, resumed, strict=True):
        assert {**own, "ns_per_day": ""} == {**row, "ns_per_day": ""}
    save(network(**TENSORNET | {"channels": 5}), folder / "other.safetensors", overwrite=True)
    assert "among the terms is not the one" in run(
        "md", "--resume", "--out", "yaml", "--steps", "16"
    )


def test_relax_and_minimise_reach_the_minimum_of_the_sum(folder: Path) -> None:
    for words in (("relax", "--steps", "5"), ("minimise", "--steps", "5")):
        assert "error" not in run(words[0], "start.extxyz", *BASE, *ADDED, *words[1:])
    assert read(folder / "relaxed.extxyz").get_potential_energy() < energy(folder)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--add", "zbl"], "The term zbl needs a cutoff in A; write it as in zbl@3."),
        (["--add", "zbl@2", "--add", "zbl@2"], "--add is ['zbl@2', 'zbl@2']; the term zbl@2 comes"),
        (["--add", "2*self", "--add", "self"], "The term self is given twice; give the potential"),
        (["--add", "potential:none.ckpt"], "none.ckpt"),
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


def test_a_term_is_switched_on_and_the_run_says_so(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """By a mapping in YAML; work is in the log and run.json, and a resumed run goes on with it."""
    (folder / "run.yaml").write_text(
        "terms: [{term: zbl@2, weight: [0, 2]}, 'bonds:0-1=2/1.1']\n"
        "log_interval: 5\ntrajectory_interval: 5\nramp_steps: 10\ntimestep_fs: 0.1\n"
    )
    with caplog.at_level("WARNING"):
        run("md", "start.extxyz", *BASE, "--config", "run.yaml", "--steps", "20", "--out", "one")
    said = "change in 10 steps (zbl@2 from 0 to 2): until then the run is not at equilibrium"
    assert said in caplog.text
    run("md", "start.extxyz", *BASE, "--config", "run.yaml", "--steps", "7", "--out", "two")
    run("md", "--resume", "--out", "two", "--steps", "20")
    rows, again = (
        list(csv.DictReader((folder / name / "log.csv").read_text().splitlines()))
        for name in ("one", "two")
    )
    names = ("zbl_2_weight", "zbl_2_dU_dw_eV", "switching_work_eV")
    assert [float(row[names[0]]) for row in rows] == [0.0, 1.0, 2.0, 2.0, 2.0]
    work = [float(row[names[2]]) for row in rows]
    assert work[0] == 0.0
    assert 0.0 < work[1] < work[2] == work[3]
    for row in rows:
        weighted = float(row[names[0]]) * float(row[names[1]])
        assert float(row["zbl_2_energy_eV"]) == pytest.approx(weighted, rel=1e-9, abs=1e-12)
    for name in (*names, "potential_energy_eV"):
        assert [row[name] for row in rows] == [row[name] for row in again]
    record = json.loads((folder / "one" / "run.json").read_text())
    assert record["switching"] == {
        "equilibrium": False,
        "steps": 10,
        "terms": [{"term": "zbl@2", "weight": [0.0, 2.0]}],
        "step": 20,
        "work_eV": [pytest.approx(work[-1], rel=1e-9)],
    }
    assert record["configuration"]["terms"] == ["0:2*zbl@2", "bonds:0-1=2/1.1"]
    run("analyse", "one", "--out", "page")
    assert "(zbl@2) until 0.001 ps, so that nothing is at equilibrium before" in caplog.text


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["eval", "start.extxyz", "--add", "0:1*zbl@2"], "changes along a run of dynamics"),
        (["md", "start.extxyz", "--add", "0:1*zbl@2", "--domains", "2"], "go with domains"),
        (["md", "start.extxyz", "--add", "0:x*zbl@2"], "it is 'x'"),
        (["md", "start.extxyz", "--ramp-steps", "5"], "ramp-steps needs a ramp"),
    ],
)
def test_weights_that_cannot_change_are_refused(
    folder: Path, words: list[str], sentence: str
) -> None:
    before = sorted(folder.iterdir())
    assert sentence in run(*words, "--potential", "base.safetensors")
    assert sorted(folder.iterdir()) == before


def test_weights_that_leave_no_force_are_told(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = sorted(folder.iterdir())
    for words in (["--add", "0*self"], ["--add", "0*self", "--add", "0*zbl@2"]):
        assert "All weights of the sum are 0" in run("md", "start.extxyz", *BASE, *words)
    assert sorted(folder.iterdir()) == before
    common = ["md", "start.extxyz", *BASE, "--steps", "0", "--no-check"]
    run(*common, "--add", "-1*potential:base.safetensors", "--out", "none")
    assert "leaves no force on any atom" in caplog.text
    caplog.clear()
    run(*common, "--add", "0*self", "--add", "zbl@2", "--out", "alone")
    assert "base has the weight 0 and does not act" in caplog.text
    assert "leaves no force on any atom" not in caplog.text


def test_an_added_potential_that_lacks_elements_is_named(folder: Path) -> None:
    save(network(**TENSORNET | {"species": (1,)}), folder / "other.safetensors")
    text = run("md", "start.extxyz", *BASE, "--add", "potential:other.safetensors")
    assert "The added term" in text
    assert "it was made for H, so leave it out, or add one that knows them." in text


def test_a_blank_behind_a_path_is_no_part_of_it(folder: Path) -> None:
    text = "0.5*potential:base.safetensors "
    config = MDConfig(potential="base.safetensors", terms=[text], structure=["start.extxyz"])
    assert record_fields(config)["terms"] == (f"0.5*potential:{folder / 'base.safetensors'}",)
