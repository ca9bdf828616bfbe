"""The potential that mdgraph ships: its physics, and that its papers tell the truth about it."""

import contextlib
import gzip
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from mdgraph.checkpoints import load, shipped_potentials
from mdgraph.data import Dataset
from mdgraph.data.ordering import distances
from mdgraph.engine import Calculation, Simulation, VelocityVerlet
from mdgraph.io.structures import read_system
from mdgraph.runs.training import read_training
from mdgraph.system import System
from mdgraph.train.course import training_hash

ROOT = Path(__file__).resolve().parent.parent
NAME = "water-pbe0"
FOLDER = ROOT / "potentials" / NAME
METRICS = json.loads((FOLDER / "metrics.json").read_text(encoding="utf-8"))
CARD = (FOLDER / "card.md").read_text(encoding="utf-8")
RECIPE = FOLDER / "train.yaml"
SETTINGS = read_training(RECIPE, {})
GOAL = 15.0
"""meV/A, of the forces on held-out frames."""


def calculation(system: System, precision: str = "double", skin: float = 0.0) -> Calculation:
    """Brought up to date."""
    result = Calculation([system], NAME, device="cpu", precision=precision, skin=skin)
    result.compute()
    return result


@pytest.fixture(scope="module")
def liquid() -> System:
    """64 molecules at 300 K."""
    return read_system(FOLDER / "start.extxyz")


@pytest.fixture(scope="module")
def sample() -> System:
    """27 molecules at 300 K."""
    return read_system(ROOT / "data" / "water27.extxyz")


@pytest.fixture(scope="module")
def bonds(liquid: System) -> NDArray[np.int64]:
    """(64, 3) atoms of each molecule: oxygen, then its two hydrogens."""
    oxygen, hydrogen = (np.flatnonzero(liquid.numbers == number) for number in (8, 1))
    distance = np.linalg.norm(apart(liquid, oxygen[:, None], hydrogen), axis=-1)
    return np.column_stack([oxygen, hydrogen[np.argsort(distance, axis=1)[:, :2]]])


def apart(system: System, first: Any, second: Any) -> NDArray[np.float64]:
    """Vectors from the first atoms to the nearest images of the second in a cube."""
    edge = system.cell[0, 0]
    assert (system.cell == edge * np.eye(3)).all()
    vectors = system.positions[second] - system.positions[first]
    return vectors - edge * np.round(vectors / edge)


def cluster(liquid: System, bonds: NDArray[np.int64], molecules: int) -> System:
    """A molecule of the liquid with its nearest, whole and without a cell."""
    centre = bonds[0, 0]
    near = bonds[np.argsort(np.linalg.norm(apart(liquid, centre, bonds[:, 0]), axis=1))[:molecules]]
    oxygen = apart(liquid, centre, near[:, 0])
    hydrogen = oxygen[:, None] + apart(liquid, near[:, :1], near[:, 1:])
    positions = np.concatenate([oxygen[:, None], hydrogen], axis=1).reshape(-1, 3)
    return System(np.tile([8, 1, 1], molecules), positions)


# Derivatives


def slope(energy: Callable[[float], float], step: float) -> float:
    """Central difference of fourth order."""
    near, far = energy(step) - energy(-step), energy(2 * step) - energy(-2 * step)
    return (8.0 * near - far) / (12.0 * step)


def test_forces_are_differences_of_the_energy(sample: System) -> None:
    """The energies of atoms are compared before they are added up, which spares their digits."""
    here = calculation(sample, skin=0.5)
    state = here.state
    start, energies, forces = (x.clone() for x in (state.positions, state.energies, state.forces))
    typical = float(forces.square().mean().sqrt())
    rng = np.random.default_rng(5)
    assert sample.numbers[60:62].tolist() == [8, 1]
    for atom in (60, 61):
        way = torch.tensor(rng.normal(size=3))
        way /= way.norm()

        def along(step: float, atom: int = atom, way: torch.Tensor = way) -> float:
            state.positions.copy_(start)
            state.positions[atom] += step * way
            here.compute()
            return float((state.energies - energies).sum())

        # A short step: the second derivative of the window jumps where a pair crosses the cutoff.
        assert abs(slope(along, 1e-4) + float(forces[atom] @ way)) < 1e-7 * typical


def test_the_virial_is_the_difference_of_the_energy(sample: System) -> None:
    before = calculation(sample).state
    virial = before.virial[0].numpy()
    way = np.random.default_rng(6).normal(size=(3, 3))
    way = 0.5 * (way + way.T) / np.linalg.norm(way)

    def along(step: float) -> float:
        strain = np.eye(3) + step * way
        strained = sample.replace(positions=sample.positions @ strain, cell=sample.cell @ strain)
        return float((calculation(strained).state.energies - before.energies).sum())

    difference = slope(along, 1e-4) + float((virial * way).sum())
    assert abs(difference) < 1e-7 * np.abs(virial).max()


# Symmetries


def rotation(seed: int) -> NDArray[np.float64]:
    """A random rotation."""
    matrix = np.linalg.qr(np.random.default_rng(seed).normal(size=(3, 3)))[0]
    return matrix * np.sign(np.linalg.det(matrix))


@dataclass(frozen=True)
class Change:
    """Of a system, and how energy, forces and virial must answer.

    Attributes:
        of_system: what is done.
        energy: factor.
        matrix: that turns vectors v into v @ matrix.
        order: atom of the original for each atom of the result.
    """

    of_system: Callable[[System], System]
    energy: float = 1.0
    matrix: NDArray[np.float64] = field(default_factory=lambda: np.eye(3))
    order: Callable[[int], NDArray[np.int64]] = np.arange


def turned(matrix: NDArray[np.float64]) -> Change:
    return Change(
        lambda system: system.replace(
            positions=system.positions @ matrix, cell=system.cell @ matrix
        ),
        matrix=matrix,
    )


def shuffled(atoms: int) -> NDArray[np.int64]:
    return np.random.default_rng(8).permutation(atoms)


def reordered(system: System) -> System:
    order = shuffled(len(system))
    return system.replace(
        numbers=system.numbers[order],
        positions=system.positions[order],
        masses=system.masses[order],
    )


def doubled(system: System) -> System:
    return system.replace(
        numbers=np.tile(system.numbers, 2),
        positions=np.concatenate([system.positions, system.positions + system.cell[0]]),
        cell=system.cell * np.array([[2.0], [1.0], [1.0]]),
        masses=np.tile(system.masses, 2),
    )


CHANGES = {
    "rotation": turned(rotation(7)),
    "inversion": turned(-np.eye(3)),
    "translation": Change(
        lambda system: system.replace(positions=system.positions + np.array([31.0, -7.3, 0.4]))
    ),
    "permutation": Change(reordered, order=shuffled),
    "two cells": Change(doubled, energy=2.0, order=lambda atoms: np.tile(np.arange(atoms), 2)),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_symmetries(sample: System, change: Change) -> None:
    before = calculation(sample.replace(velocities=None)).state
    after = calculation(change.of_system(sample.replace(velocities=None))).state
    turn = torch.tensor(change.matrix)
    order = torch.tensor(change.order(len(sample)))
    torch.testing.assert_close(
        after.energies, before.energies[order], rtol=0, atol=1e-9, msg="energies"
    )
    torch.testing.assert_close(
        after.forces, before.forces[order] @ turn, rtol=0, atol=1e-9, msg="forces"
    )
    torch.testing.assert_close(
        after.virial[0], change.energy * turn.T @ before.virial[0] @ turn, rtol=0, atol=1e-7
    )
    assert float(after.energy) == pytest.approx(change.energy * float(before.energy), abs=1e-8)


# Chemistry


def test_the_start_is_water(liquid: System, bonds: NDArray[np.int64]) -> None:
    assert sorted(bonds.ravel()) == list(range(192))
    arms = apart(liquid, bonds[:, :1], bonds[:, 1:])
    length = np.linalg.norm(arms, axis=-1)
    angle = np.degrees(np.arccos((arms[:, 0] * arms[:, 1]).sum(-1) / length.prod(-1)))
    assert length.min() > 0.85
    assert length.max() < 1.2
    assert length.mean() == pytest.approx(0.98, abs=0.02)
    assert angle.mean() == pytest.approx(105.0, abs=3.0)
    amu_in_g, a_in_cm = 1.66054e-24, 1e-8
    assert liquid.masses.sum() * amu_in_g / (liquid.volume * a_in_cm**3) == pytest.approx(
        1.0, abs=0.02
    )


def test_bonds_resist_like_those_of_liquid_water(liquid: System, bonds: NDArray[np.int64]) -> None:
    """An O-H stretch at 3,200 to 3,700 1/cm has a force constant of 36 to 48 eV/A^2."""
    for oxygen, hydrogen, _ in bonds[::16]:
        arm = apart(liquid, oxygen, hydrogen)
        way = arm / np.linalg.norm(arm)
        pull = []
        for length in (0.93, 1.03):
            positions = liquid.positions.copy()
            positions[hydrogen] = positions[oxygen] + length * way
            forces = calculation(liquid.replace(positions=positions)).state.forces.numpy()
            pull.append(float(forces[hydrogen] @ way))
        assert pull[0] > 0.0 > pull[1]
        assert 36.0 < (pull[0] - pull[1]) / 0.1 < 48.0


# Dynamics


def molecules_in_motion(liquid: System, bonds: NDArray[np.int64], timestep: float) -> Simulation:
    """Two molecules, bound to each other, at constant energy; by the tables, as users run it."""
    return Simulation(
        cluster(liquid, bonds, 2),
        NAME,
        VelocityVerlet(timestep),
        device="cpu",
        precision="double",
        evaluator="fused",
        temperature=100.0,
        exact_temperature=True,
        seed=1,
    )


def test_energy_is_conserved_to_second_order(liquid: System, bonds: NDArray[np.int64]) -> None:
    class EveryFemtosecond:
        def __init__(self, timestep: float) -> None:
            self.interval = round(1.0 / timestep)
            self.energies: list[float] = []

        def report(self, simulation: Simulation) -> None:
            seen = simulation.observables()
            self.energies.append(float(seen.potential_energy + seen.kinetic_energy))

    spread = []
    for timestep in (0.5, 0.25):
        simulation = molecules_in_motion(liquid, bonds, timestep)
        look = EveryFemtosecond(timestep)
        simulation.reporters.append(look)
        simulation.run(round(100.0 / timestep))
        assert len(look.energies) == 100
        spread.append(np.std(look.energies))
    assert spread[0] / spread[1] == pytest.approx(4.0, abs=0.3)


def test_time_can_be_reversed(liquid: System, bonds: NDArray[np.int64]) -> None:
    simulation = molecules_in_motion(liquid, bonds, 1.0)
    start = simulation.state.positions.clone()
    simulation.run(1000)
    assert simulation.time == 1000.0
    assert float((simulation.state.positions - start).abs().max()) > 0.5
    simulation.state.velocities.neg_()
    simulation.run(1000)
    assert float((simulation.state.positions - start).abs().max()) < 1e-8


# Papers


def test_the_goal_is_met() -> None:
    assert METRICS["validation"]["force_rmse_meV_per_A"] <= GOAL
    assert METRICS["validation_far_half"]["force_rmse_meV_per_A"] <= GOAL


def test_the_weights_belong_to_the_settings_and_the_data() -> None:
    potential = load(NAME)
    assert potential.config.name == NAME
    assert potential.config.training_hash == METRICS["training_hash"]
    assert potential.parameter_count == METRICS["parameters"]
    for key, asked in SETTINGS.potential.model_dump().items():
        assert potential.config.model_dump()[key] == asked, key
    assert (SETTINGS.steps, SETTINGS.seed) == (METRICS["steps"], METRICS["seed"])


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
    for (_, *cells), part in zip(rows("## Errors"), parts, strict=True):
        for cell, column in zip(cells, columns, strict=True):
            digits = len(cell.partition(".")[2])
            assert float(cell) == round(METRICS[part][column], digits), (part, column)


def test_the_card_describes_the_training() -> None:
    facts = dict(rows(f"# {NAME}"))
    asked = SETTINGS.potential
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
        f"{METRICS['steps']:,} steps of {SETTINGS.batch} frames",
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


def test_the_card_names_files_that_are_there() -> None:
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
        state = calculation(system, "mixed").state
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


def test_held_out_frames_are_far_from_those_trained_on(training_frames: TrainingFrames) -> None:
    distance = distances(training_frames.positions, training_frames.first.cell)
    validation = METRICS["validation_frames"]
    train = np.setdiff1d(np.arange(len(distance)), validation)
    nearest = np.median(distance[np.ix_(validation, train)].min(axis=1))
    told = METRICS["nearest_training_frame_rmsd_A"]["median"]
    assert nearest == pytest.approx(told, abs=1e-3)
    np.fill_diagonal(distance, np.inf)
    assert nearest > 2 * np.median(distance.min(axis=1))


# Places


def test_a_clone_has_it() -> None:
    assert shipped_potentials()[NAME] == FOLDER
    assert load(NAME).config == load(FOLDER).config


def test_a_wheel_has_it(tmp_path: Path) -> None:
    """The tree that pyproject.toml describes, away from the repository."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    for pattern in wheel["include"]:
        for path in ROOT.glob(pattern.removeprefix("/")):
            place = path.relative_to(ROOT).as_posix()
            for old, new in wheel["sources"].items():
                place = re.sub(f"^{re.escape(old)}(?=/)", new, place)
            target = tmp_path / "site" / place
            if path.is_dir():
                shutil.copytree(path, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, target)
    folder = tmp_path / "site" / "mdgraph" / "potentials" / NAME
    wanted = {"model.safetensors", "start.extxyz", "metrics.json", "card.md", "train.yaml"}
    wanted |= {"domain.safetensors"}
    assert wanted <= {path.name for path in folder.iterdir()}
    found = subprocess.run(
        [sys.executable, "-m", "mdgraph", "potentials"],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path / "site")},
    )
    assert f"\n{NAME}: H O, " in found.stdout
    assert str(folder / "card.md") in found.stdout
