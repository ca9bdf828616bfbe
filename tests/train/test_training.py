"""Training learns, by the command and the document, in captured steps as in eager ones."""

import json
import re
import shlex
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
import pytest
import torch
import yaml
from ase import Atoms
from ase.calculators.emt import EMT
from recording import RecordedGraph
from repository import ROOT
from training_sets import NETWORK, assert_same, clusters, crystals, prepare, settings, weights_of

from mdgraph.checkpoints import load, save
from mdgraph.data import open_dataset
from mdgraph.drivers.ase import MDGraphCalculator
from mdgraph.train import step as step_module
from mdgraph.train.loop import train
from mdgraph.validate import dynamics_checks


def test_a_small_set_is_learned_and_runs(
    tmp_path: Path, mdgraph_command: Callable[..., Any], drawn_pictures: None
) -> None:
    """From a data set by the command to a calculator with the errors that the table states.

    Forces of an untrained network are off by their own size; 200 steps leave less than a quarter.
    """
    frames = clusters(60)
    path = prepare(tmp_path, frames, steps=200, validations=5, average=0.95, name="copper")
    done = mdgraph_command("train", path)
    assert done.status == 0, done.err
    folder = tmp_path / "out"
    metrics = json.loads((folder / "metrics.json").read_text())
    with open_dataset(tmp_path / "set.h5") as dataset:
        split = json.loads((folder / "split.json").read_text())
        held = [dataset.frame(index) for index in split["validation"]]
    size = np.sqrt(np.mean(np.concatenate([f.forces for f in held]) ** 2))
    rmse = metrics["validation"]["force_rmse_meV_per_A"]
    assert rmse < 0.25 * 1e3 * size
    spread = np.std([frame.energy / len(frame) for frame in held])
    assert metrics["validation"]["energy_rmse_meV_per_atom"] < 0.25 * 1e3 * spread
    assert set(metrics["validation"]["by_group"]) == {"Cu4O", "Cu5"}

    # What it did from the start on, where no terminal shows a bar.
    phases = (
        "is read",
        "Neighbor lists of 60 frames are built",
        "for reference energies",
        "The loss before the first step",
        "Steps begin: 0 of 200",
        "Step 40 of 200: held out",
    )
    places = [done.err.index(phase) for phase in phases]
    assert places == sorted(places)

    calculator = MDGraphCalculator(folder, device="cpu", precision="double")
    wrong = []
    for frame in held:
        atoms = Atoms(frame.numbers, frame.positions, calculator=calculator)
        wrong.append(atoms.get_forces() - frame.forces)
    assert 1e3 * np.sqrt(np.mean(np.concatenate(wrong) ** 2)) == pytest.approx(rmse, rel=1e-3)

    log = np.genfromtxt(folder / "log.csv", delimiter=",", names=True)
    assert log["step"].tolist() == [40, 80, 120, 160, 200]
    assert log["train_force_rmse_meV_per_A"][-1] < 0.5 * log["train_force_rmse_meV_per_A"][0]
    report = (folder / "report.html").read_text()
    assert report.count("data:image/png") == 3
    assert re.search(r"<title>copper: TensorNet for O, Cu, trained on \d+ frames</title>", report)
    assert f"{rmse:.4g}" in report
    card = (folder / "card.md").read_text()
    assert "# copper" in card
    assert "MIT" in card
    config = load(folder).config
    assert (config.name, config.licence, len(config.training_hash)) == ("copper", "MIT", 64)


@pytest.mark.usefixtures("without_report")
def test_stress_is_learned_from_crystals_of_two_sizes(tmp_path: Path) -> None:
    loss = {"stress": {"weight": 1000.0}, "energy": {"weight": 5.0}}
    path = prepare(tmp_path, crystals(24), steps=100, batch=6, shapes=1, loss=loss)
    metrics = train(settings(path), quiet=True).metrics
    before = train(settings(path, out=str(tmp_path / "untrained"), steps=1), quiet=True).metrics
    name = "stress_rmse_meV_per_A3"
    assert metrics["validation"][name] < 0.4 * before["validation"][name]
    # The card says whether the loss had stresses, not whether the data have.
    train(settings(path, out=str(tmp_path / "other"), steps=1, loss={}), quiet=True)
    cards = [(tmp_path / one / "card.md").read_text() for one in ("out", "other")]
    assert ["no stresses were trained on" in card for card in cards] == [False, True]


@pytest.mark.usefixtures("without_report")
def test_a_recorded_step_is_the_eager_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A stand-in for a CUDA graph: static memory, no reads; one graph for each shape."""
    path = prepare(tmp_path, [*clusters(12), *crystals(8)], shapes=3, steps=10)
    train(settings(path), quiet=True)
    graphs = []

    def captured(function: Callable[[], None], device: torch.device, pool: Any) -> RecordedGraph:
        for _ in range(3):
            function()
        graphs.append(RecordedGraph(function))
        return graphs[-1]

    monkeypatch.setattr(step_module, "can_capture", lambda device: True)
    monkeypatch.setattr(step_module, "captured", captured)
    train(settings(path, out=str(tmp_path / "captured")), quiet=True)
    assert len(graphs) > 1
    assert_same(tmp_path / "out", tmp_path / "captured")

    class Twice:
        """A graph that does not do what its function does."""

        pool = None

        def __init__(self, function: Callable[[], None]) -> None:
            self.replay = lambda: [function() for _ in range(2)]

    monkeypatch.setattr(step_module, "captured", lambda function, device, pool: Twice(function))
    train(settings(path, out=str(tmp_path / "wrong")), quiet=True)
    assert "all steps of its shape run eagerly" in caplog.text
    assert_same(tmp_path / "out", tmp_path / "wrong")
    monkeypatch.setattr(step_module, "captured", lambda function, device, pool: None)
    train(settings(path, out=str(tmp_path / "fallback")), quiet=True)
    assert_same(tmp_path / "out", tmp_path / "fallback")


@pytest.mark.usefixtures("without_report")
def test_saved_potentials_of_both_precisions_load(tmp_path: Path) -> None:
    path = prepare(tmp_path, clusters(8), steps=4, precision="double")
    train(settings(path), quiet=True)
    assert weights_of(tmp_path / "out")["network.linear.weight"].dtype == torch.float64
    save(load(tmp_path / "out"), tmp_path / "again.safetensors")


@pytest.mark.usefixtures("without_report")
def test_a_newcomer_follows_the_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mdgraph_command: Callable[..., Any]
) -> None:
    """Every command and the configuration of docs/training.md, made small, one after the other."""
    text = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    by_hand = text.partition("## By hand")[2]
    commands = re.findall(r"^mdgraph (.*)$", by_hand.split("```")[1], re.MULTILINE)
    written = yaml.safe_load(by_hand.split("```yaml")[1].split("```")[0])
    small = {"potential": NETWORK, "epochs": 3, "validations": 2, "device": "cpu"}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(dynamics_checks, "MINUTES", (1 / 60, 1 / 60))
    Path("train.yaml").write_text(yaml.safe_dump(written | small), encoding="utf-8")
    frames = [Atoms(frame.numbers, frame.positions, calculator=EMT()) for frame in clusters(20)]
    for atoms in frames:
        atoms.get_forces()
    ase.io.write("frames.xyz", frames, format="extxyz")
    ase.io.write("start.xyz", frames[0], format="extxyz")
    names = [command.split()[0] for command in commands]
    assert names == ["data", "data", "data", "train", "validate", "md"]
    for command in commands:
        short = command.replace("--time-ps 100", "--steps 3 --evaluator reference --device cpu")
        judged = command.startswith("validate")  # and found wanting, after three epochs
        short += " --quick --judge none --device cpu" * judged
        done = mdgraph_command(*shlex.split(short))
        assert done.status == 0 or (judged and done.status == 1), done.err
    assert Path("mdgraph-validation/validation.json").exists()
    assert Path("potentials/mine/model.safetensors").exists()


def test_the_benchmark_times_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare(tmp_path, clusters(8))
    options = ["--batch", "2", "--channels", "8", "--layers", "1", "--steps", "3"]
    options += ["--eager", "--device", "cpu", "--precision", "mixed", "tf32"]
    monkeypatch.setattr(sys, "argv", ["training.py", str(tmp_path / "set.h5"), *options])
    import_module("training").main()
    rows = list(map(json.loads, capsys.readouterr().out.splitlines()))
    expected = [("mixed", True), ("mixed", False), ("tf32", True), ("tf32", False)]
    assert [(row["precision"], row["eager"]) for row in rows] == expected
    for found in rows:
        per_second = 2 * 1e3 / found["ms_per_step"]
        assert found["samples_per_second"] == pytest.approx(per_second, rel=1e-2)
