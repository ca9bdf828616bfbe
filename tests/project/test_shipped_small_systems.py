"""The potentials beside water-pbe0 that mdgraph ships: papers, weights and errors agree."""

import contextlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import ase.io
import numpy as np
import pytest
import torch
import yaml
from ase import Atoms
from ase.build import bulk
from repository import ROOT

from mdgraph.checkpoints import load, shipped_potentials
from mdgraph.data import Dataset
from mdgraph.distil.config import DistilConfig
from mdgraph.drivers.ase import MDGraphCalculator
from mdgraph.engine.batches import Batches
from mdgraph.engine.calculation import as_evaluator
from mdgraph.precision import precision_named
from mdgraph.runs.training import read_training
from mdgraph.system import System
from mdgraph.train.config import NetworkConfig, TrainConfig
from mdgraph.train.progress import training_hash

WANTED = {
    "3bpa-wb97x": (3.0, 11.2),
    "acac-pbe": (0.6, 4.3),
    "aspirin-pbe": (1.75, 5.9),
    "copper-pbe": (0.46, 8.0),
    "ethanol-pbe": (0.23, 1.5),
    "silicon-pbe": (2.0, 60.0),
    "water-pbe0-small": (0.2, 20.0),
}
LIQUID = "water-pbe0-small"
"""Starts from the liquid of its teacher, which is no minimum."""


@dataclass(frozen=True)
class Shipped:
    """A potential and its papers."""

    name: str
    folder: Path
    metrics: dict[str, Any]
    card: str

    @property
    def settings(self) -> TrainConfig:
        """Of the training, or of the student's."""
        if "recipe" in self.metrics or "distilled" not in self.metrics:
            return read_training(self.folder / self.metrics.get("recipe", "train.yaml"), {})
        return self._distillation("distil.yaml")

    @property
    def network(self) -> NetworkConfig:
        """Of the student, or of that which it goes on from."""
        there = (self.folder / "first.yaml").is_file()
        if there or (self.folder / "distil.yaml").is_file():
            return self._distillation("first.yaml" if there else "distil.yaml").potential
        return self.settings.potential

    def _distillation(self, name: str) -> DistilConfig:
        text = (self.folder / name).read_text(encoding="utf-8")
        return DistilConfig.model_validate(yaml.safe_load(text))

    @property
    def held_out(self) -> str:
        return "test" if "test" in self.metrics else "validation"


@pytest.fixture(params=WANTED)
def shipped(request: pytest.FixtureRequest) -> Shipped:
    folder = ROOT / "potentials" / request.param
    metrics = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    return Shipped(request.param, folder, metrics, (folder / "card.md").read_text(encoding="utf-8"))


def test_a_clone_contains_the_potential_and_the_files_of_its_card(shipped: Shipped) -> None:
    assert shipped_potentials()[shipped.name] == shipped.folder
    named = re.findall(r"`([\w-]+\.\w+)`", shipped.card)
    assert len(named) >= 3
    assert all((shipped.folder / name).is_file() for name in named)


def test_the_errors_are_below_the_goal(shipped: Shipped) -> None:
    """By the means that the error table is made of."""
    row = shipped.metrics["rows"]["as it is"]
    assert row["part"] == shipped.held_out
    for (measure, one), most in zip(row["errors"].items(), WANTED[shipped.name], strict=True):
        assert shipped.metrics[shipped.held_out][measure] <= most
        assert one["mean"] <= most
    assert tuple(shipped.metrics["wanted"]) == WANTED[shipped.name]


@pytest.mark.parametrize("shipped", sorted({*WANTED} - {LIQUID}), indirect=True)
def test_the_start_is_a_minimum(shipped: Shipped) -> None:
    calculator = MDGraphCalculator(shipped.folder, device="cpu", check=False)
    start = ase.io.read(shipped.folder / "start.extxyz")
    assert isinstance(start, Atoms)
    start.calc = calculator
    assert np.abs(start.get_forces()).max() < 0.02
    if start.pbc.all():
        assert np.abs(start.get_stress()).max() < 1e-3  # eV/A^3, 1.6 kbar


def test_the_weights_belong_to_the_settings(shipped: Shipped) -> None:
    potential = load(shipped.name)
    settings = shipped.settings
    assert potential.config.training_hash == shipped.metrics["training_hash"]
    assert potential.parameter_count == shipped.metrics["parameters"]
    for key, asked in shipped.network.model_dump().items():
        has = potential.config.model_dump()[key]
        if key == "repulsion":  # without that of near atoms, which was added afterwards
            has = tuple(part for part in has if part["kind"] != "contact")
        assert has == asked, key
    assert (settings.steps, settings.seed) == (shipped.metrics["steps"], shipped.metrics["seed"])


def test_errors_on_held_out_frames_are_those_of_the_metrics(
    shipped: Shipped,
    tmp_path: Path,
    datasets_folder: Path,
    script: Callable[[str], ModuleType],
    mdgraph_command: Callable[..., Any],
) -> None:
    """Of data and split that the recipe's own commands make, on a CPU, in the default precision."""
    recipes = script("error_tables")
    recipe = recipes.read_recipe(shipped.name)
    for folder in datasets_folder.iterdir():
        (tmp_path / folder.name).symlink_to(folder)
    with contextlib.chdir(tmp_path):
        for command in (["convert", *recipe.convert], ["split", *recipe.split]):
            done = mdgraph_command("data", *command)
            assert done.status == 0, done.err
    data, parts = (tmp_path / name for name in recipe.split[:2])
    split = json.loads(parts.read_text(encoding="utf-8"))
    assert split == json.loads((shipped.folder / "split.json").read_text(encoding="utf-8"))
    with contextlib.closing(Dataset(data)) as dataset:
        assert dataset.sha256() == shipped.metrics["data_sha256"]
        if "distilled" not in shipped.metrics:
            assert training_hash(shipped.settings, dataset) == shipped.metrics["training_hash"]
        frames = list(dataset.frames(split[shipped.held_out]))
    device, precision = torch.device("cpu"), precision_named("mixed")
    evaluator = as_evaluator(load(shipped.name), precision, device, "auto")
    found = Batches(evaluator, device, precision).evaluate(
        [System(one.numbers, one.positions, cell=one.cell, pbc=one.pbc) for one in frames],
        ["frame"] * len(frames),
    )
    energies, forces = [], []
    for place, result in found:
        frame = frames[place]
        energies.append((result.energy - frame.energy) / len(frame))
        forces.append((result.forces - frame.forces).ravel())
    every = 1e3 * np.concatenate(forces)
    wanted = shipped.metrics[shipped.held_out]
    assert len(energies) == wanted["frames"]
    assert np.sqrt(np.square(every).mean()) == pytest.approx(
        wanted["force_rmse_meV_per_A"], rel=1e-3
    )
    assert np.abs(every).mean() == pytest.approx(wanted["force_mae_meV_per_A"], rel=1e-3)
    rms = 1e3 * np.sqrt(np.square(energies).mean())
    assert rms == pytest.approx(wanted["energy_rmse_meV_per_atom"], rel=0.02)


@pytest.mark.parametrize(
    ("name", "crystal"),
    [
        ("copper-pbe", bulk("Cu", "fcc", a=3.63, cubic=True).repeat(2)),
        ("silicon-pbe", bulk("Si", "diamond", a=5.47, cubic=True)),
    ],
)
def test_a_perfect_crystal_passes_the_self_check(name: str, crystal: Atoms) -> None:
    """Its atoms all round alike, which no mean takes away."""
    crystal.calc = MDGraphCalculator(name, device="cpu")
    exact = MDGraphCalculator(name, device="cpu", precision="double", check=False)
    np.testing.assert_allclose(crystal.get_stress(), exact.get_stress(crystal), atol=3e-6)
