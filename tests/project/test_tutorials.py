"""The pages for newcomers run as they stand, but for fewer steps."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ase.io
import pytest
from followed_pages import fenced_blocks, follow
from repository import ROOT

from mdgraph.validate import dynamics_checks

pytestmark = pytest.mark.usefixtures("checked_once")

DOCS = ROOT / "docs"
Command = Callable[..., Any]


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def test_every_tutorial_is_followed_below_or_a_notebook() -> None:
    text = Path(__file__).read_text(encoding="utf-8")
    for path in (DOCS / "tutorials").glob("*.md"):
        page = path.read_text(encoding="utf-8")
        followed = f'DOCS / "tutorials" / "{path.name}"' in text
        script = "literalinclude} ../../examples/" in page  # which tests of the examples run
        assert followed or script or "kernelspec" in page, path


def test_five_minutes(tmp_path: Path, mdgraph_command: Command) -> None:
    shorter = {
        "```bash\nmdgraph md\n": "```bash\nmdgraph md --steps 20 --log-interval 10\n",
        "--extend-ps 0.1": "--extend-ps 0.005",
        "--steps 200": "--steps 10",
        "--steps 20 --out from": "--steps 2 --out from",
        "analyse mdgraph-run": "analyse mdgraph-run --only energies,rdf",
    }
    follow(DOCS / "start.md", tmp_path, mdgraph_command, shorter)
    assert {path.name for path in Path("mdgraph-run").iterdir()} >= {"picture.png", "log.csv"}
    assert Path("mdgraph-analysis/report.html").stat().st_size > 1000
    assert len(ase.io.read("hot/end.extxyz")) == 192
    assert Path("oxygens.dcd.pdb").read_text(encoding="utf-8").count(" O ") == 64


@pytest.mark.usefixtures("without_report")
def test_a_potential_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mdgraph_command: Command
) -> None:
    monkeypatch.setattr(dynamics_checks, "MINUTES", (1 / 60, 1 / 60))
    shorter = {
        "--time-ps 5": "--steps 800 --trajectory-interval 10",
        "channels: 32": "channels: 4",
        "--steps 600": "--steps 3 --device cpu",
        "--time-ps 1 ": "--steps 10 ",
    }
    path = DOCS / "tutorials" / "training.md"
    follow(path, tmp_path, mdgraph_command, shorter, failing="validate")
    metrics = json.loads(Path("frames-potential/metrics.json").read_text(encoding="utf-8"))
    assert metrics["validation"]
    assert Path("mdgraph-validation/validation.html").exists()
    assert len(ase.io.read("own/trajectory.h5md", ":")) > 1


def test_replicas(tmp_path: Path, mdgraph_command: Command, capsys: Any) -> None:
    shorter = {
        "replicas.yaml --out": "replicas.yaml --time-ps 0.004 --exchange 2 "
        "--trajectory-interval 2 --log-interval 2 --out"
    }
    follow(DOCS / "tutorials" / "replicas.md", tmp_path, mdgraph_command, shorter)
    # As many frames as a single run at 300 K has: one a recorded step.
    frames = len(ase.io.read("replicas/replica-0/trajectory.h5md", ":"))
    assert f"{frames} frames at 300 K" in capsys.readouterr().out
    options = fenced_blocks((DOCS / "tutorials" / "replicas.md").read_text(encoding="utf-8"))
    (shown,) = (content for _, content in options if content.startswith("potential:"))
    assert shown in (ROOT / "examples" / "ladder" / "replicas.yaml").read_text(encoding="utf-8")


def test_a_checkpoint_of_a_molecule_in_water(
    tmp_path: Path, mdgraph_command: Command, reference_folder: Path
) -> None:
    Path("aceff-1.1.ckpt").symlink_to(reference_folder / "torchmdnet" / "aceff-1.1.ckpt")
    shorter = {
        ".repeat(2)": "",
        "steps: 200": "steps: 2",
        "time_ps: 5": "steps: 2",
        "time_ps: 20": "steps: 2",
        "--time-ps 100": "--steps 4 --log-interval 2 --trajectory-interval 2",
    }
    follow(DOCS / "tutorials" / "aceff.md", tmp_path, mdgraph_command, shorter)
    assert len(ase.io.read("ligand.dcd.pdb")) == 21
    assert Path("run-analysis/density.csv").exists()


def test_a_crystal_under_pressure(
    tmp_path: Path, mdgraph_command: Command, reference_folder: Path, capsys: Any
) -> None:
    name = "TensorNet-MatPES-PBE-v2025.1-PES"
    Path(name).symlink_to(reference_folder / "matgl" / name)
    shorter = {
        ".repeat(2)": "",
        "** (1 / 3) / 2": "** (1 / 3)",
        "--time-ps 20": "--steps 10 --log-interval 5 --trajectory-interval 5",
    }
    follow(DOCS / "tutorials" / "crystal.md", tmp_path, mdgraph_command, shorter)
    with Path("npt/averages.csv").open(encoding="utf-8") as lines:
        assert list(csv.reader(lines))
