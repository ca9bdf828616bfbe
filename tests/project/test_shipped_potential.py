"""What is told of the potential that mdgraph ships: its card, its metrics, its recipe."""

import contextlib
import gzip
import hashlib
import json
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from repository import ROOT

from mdgraph.checkpoints import load, shipped_potentials
from mdgraph.data import Dataset
from mdgraph.data.splits import distances
from mdgraph.engine import Calculation
from mdgraph.runs.training import read_training
from mdgraph.system import System
from mdgraph.train.progress import training_hash

NAME = "water-pbe0"
FOLDER = ROOT / "potentials" / NAME
METRICS = json.loads((FOLDER / "metrics.json").read_text(encoding="utf-8"))
CARD = (FOLDER / "card.md").read_text(encoding="utf-8")
RECIPE = FOLDER / "references.yaml"
SETTINGS = read_training(RECIPE, {})
CHAIN = ("train", "molecules", "liquid", "references")
"""Recipes, each of which goes on from the one before."""
NETWORK = read_training(FOLDER / "train.yaml", {}).potential
GOAL = 15.0
"""meV/A, of the forces on held-out frames."""


# Papers


def test_the_force_error_is_below_the_goal() -> None:
    assert METRICS["validation"]["force_rmse_meV_per_A"] <= GOAL
    assert METRICS["validation_far_half"]["force_rmse_meV_per_A"] <= GOAL


def test_the_weights_belong_to_the_settings_and_the_data() -> None:
    potential = load(NAME)
    assert potential.config.name == NAME
    assert potential.config.training_hash == METRICS["training_hash"]
    assert potential.parameter_count == METRICS["parameters"]
    for key, asked in NETWORK.model_dump().items():
        assert potential.config.model_dump()[key] == asked, key
    assert (SETTINGS.steps, SETTINGS.seed) == (METRICS["steps"], METRICS["seed"])


def test_recipes_go_on_from_each_other() -> None:
    before = None
    for name in CHAIN:
        settings = read_training(FOLDER / f"{name}.yaml", {})
        assert settings.start_from == before
        assert settings.keep == "last"
        before = settings.out
    weights = sum(read_training(FOLDER / f"{name}.yaml", {}).steps or 0 for name in CHAIN[:-1])
    assert weights == 10_000 + 6_500 + 12_176
    assert "10,000, 6,500 and 12,176 steps" in CARD


def recipe() -> list[list[str]]:
    """Words of the commands in the head of the settings: of `data convert`, then `data split`."""
    lines = re.findall(r"^#   mdgraph (data .+)$", RECIPE.read_text("utf-8"), re.MULTILINE)
    commands = [shlex.split(line) for line in lines][:2]
    assert [words[1] for words in commands] == ["convert", "split"]
    return commands


def rows(heading: str) -> list[list[str]]:
    """Cells of the first table under a heading of the card, its own heading row left out."""
    _, _, text = CARD.partition(heading)
    table = re.search(r"(?:^\|.*\n)+", text, re.MULTILINE)
    assert table is not None
    lines = table[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_the_card_has_the_errors_of_the_metrics() -> None:
    parts = ("validation", "validation_far_half", "train")
    columns = (
        "frames",
        "force_rmse_meV_per_A",
        "force_mae_meV_per_A",
        "force_rmse_H_meV_per_A",
        "force_rmse_O_meV_per_A",
        "energy_rmse_meV_per_atom",
    )
    for (_, *cells), part in zip(rows("## Errors by element"), parts, strict=True):
        for cell, column in zip(cells, columns, strict=True):
            digits = len(cell.partition(".")[2])
            assert float(cell) == round(METRICS[part][column], digits), (part, column)


def test_the_card_describes_the_training() -> None:
    facts = dict(rows(f"# {NAME}"))
    asked = NETWORK
    assert facts["model"].startswith(
        f"TensorNet, {asked.layers} layers, {asked.channels} channels, "
        f"{asked.radial_basis.number} radial functions, cutoff {asked.cutoff:g} A; "
        f"{METRICS['parameters']:,} parameters"
    )
    assert facts["elements"] == "H, O"
    about = load(NAME).config
    assert facts["licence"].startswith(about.licence)
    assert facts["level of theory"].startswith(about.level_of_theory)
    frames = METRICS["train"]["frames"] + METRICS["validation"]["frames"]
    assert facts["data"].startswith(f"{frames} frames of 64 molecules")
    device = METRICS["hardware"].removeprefix("NVIDIA ")
    torch_version = ".".join(METRICS["torch"].split(".")[:2])
    for words in (
        f"{METRICS['steps']:,} step{'s' * (METRICS['steps'] != 1)} of {SETTINGS.batch} frames",
        f"{METRICS['seconds'] / 60:.1f} minutes",
        device,
        f"torch {torch_version}",
    ):
        assert words in facts["trained by"]
    (_, split) = recipe()
    blocks, held_out = (int(split[split.index(word) + 1]) for word in ("--blocks", "--validation"))
    assert held_out == METRICS["validation"]["frames"]
    assert f"blocks of {held_out // blocks} consecutive frames were held out" in CARD
    nearest = METRICS["nearest_training_frame_rmsd_A"]["median"]
    assert f"{nearest:.2f} A (median RMSD) from the nearest training frame" in CARD


def test_the_card_names_existing_files() -> None:
    named = re.findall(r"\]\(([^)]+)\)|`([\w-]+\.\w+)`", CARD)
    assert len(named) >= 5
    for link, quoted in named:
        assert (FOLDER / (link or quoted)).is_file(), link or quoted


# Data


@dataclass(frozen=True)
class TrainingFrames:
    """All frames of the data set: positions (M, N, 3) A and forces (M, N, 3) eV/A."""

    first: System
    positions: NDArray[np.float64]
    forces: NDArray[np.float64]
    energies: NDArray[np.float64]


@pytest.fixture(scope="module")
def training_frames(datasets_folder: Path) -> TrainingFrames:
    """Read here and not by the training script, which may be wrong."""
    content = (datasets_folder / "water_pbe0" / "train.extxyz.gz").read_bytes()
    told = re.search(r"sha256 ([0-9a-f]{12,})", CARD)
    assert told is not None
    assert hashlib.sha256(content).hexdigest().startswith(told[1])
    text = gzip.decompress(content).decode()
    lines = text.splitlines()
    atoms = int(lines[0])
    frames = [lines[start : start + atoms + 2] for start in range(0, len(lines), atoms + 2)]
    cells = {re.search(r'Lattice="([^"]*)"', frame[1])[1] for frame in frames}
    (cell,) = cells
    numbers = [{"O": 8, "H": 1}[line.split()[0]] for line in frames[0][2:]]
    values = np.array([[line.split()[1:7] for line in frame[2:]] for frame in frames], dtype=float)
    energies = [re.search(r"energy=(\S+)", frame[1])[1] for frame in frames]
    first = System(
        numbers,
        values[0, :, :3],
        cell=np.array(cell.split(), dtype=float).reshape(3, 3),
        pbc=True,
    )
    return TrainingFrames(first, values[..., :3], values[..., 3:], np.array(energies, dtype=float))


def test_errors_on_held_out_frames_are_those_of_the_metrics(
    training_frames: TrainingFrames,
) -> None:
    """On every eighth of them, in the default precision."""
    force_errors, energy_errors = [], []
    for frame in METRICS["validation_frames"][::8]:
        system = training_frames.first.replace(positions=training_frames.positions[frame])
        calculation = Calculation([system], NAME, device="cpu", precision="mixed")
        calculation.compute()
        state = calculation.state
        difference = state.forces.numpy() - training_frames.forces[frame]
        force_errors.append(1e3 * np.sqrt((difference**2).mean()))
        wrong = float(state.energy) - training_frames.energies[frame]
        energy_errors.append(1e3 * wrong / len(system))
    assert max(force_errors) < GOAL
    wanted = METRICS["validation"]
    assert np.mean(force_errors) == pytest.approx(wanted["force_rmse_meV_per_A"], abs=1.5)
    assert np.sqrt(np.square(energy_errors).mean()) < 2 * wanted["energy_rmse_meV_per_atom"]


def test_the_recipe_makes_its_data_and_its_split(
    tmp_path: Path, datasets_folder: Path, mdgraph_command: Callable[..., Any]
) -> None:
    """The numbers it was trained on, and the frames that it never saw."""
    (tmp_path / "water_pbe0").symlink_to(datasets_folder / "water_pbe0")
    with contextlib.chdir(tmp_path):
        for words in recipe():
            done = mdgraph_command(*words)
            assert done.status == 0, done.err
    with contextlib.closing(Dataset(tmp_path / SETTINGS.data)) as dataset:
        assert dataset.sha256() == METRICS["data_sha256"]
        assert training_hash(SETTINGS, dataset) == METRICS["training_hash"]
    split = json.loads((tmp_path / str(SETTINGS.split)).read_text(encoding="utf-8"))
    assert split["validation"] == METRICS["validation_frames"]


def test_held_out_frames_are_far_from_training_frames(training_frames: TrainingFrames) -> None:
    distance = distances(training_frames.positions, training_frames.first.cell)
    validation = METRICS["validation_frames"]
    train = np.setdiff1d(np.arange(len(distance)), validation)
    nearest = np.median(distance[np.ix_(validation, train)].min(axis=1))
    told = METRICS["nearest_training_frame_rmsd_A"]["median"]
    assert nearest == pytest.approx(told, abs=1e-3)
    np.fill_diagonal(distance, np.inf)
    assert nearest > 2 * np.median(distance.min(axis=1))


# Places


def test_a_clone_contains_the_potential() -> None:
    assert shipped_potentials()[NAME] == FOLDER
    assert load(NAME).config == load(FOLDER).config
