"""A tiny set to train on: copper and oxygen clusters and crystals by effective medium theory."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from ase import Atoms
from ase.build import bulk
from ase.calculators.emt import EMT
from safetensors.torch import load_file
from torch import Tensor

from mdgraph.data import LabelledFrame, Provenance, open_dataset, write_dataset
from mdgraph.data.splits import random_split, write_split
from mdgraph.runs.training import read_training
from mdgraph.train.config import TrainConfig


def labelled(atoms: Atoms, group: str = "") -> LabelledFrame:
    atoms.calc = EMT()
    periodic = bool(atoms.pbc.all())
    return LabelledFrame(
        numbers=atoms.numbers.astype(np.int64),
        positions=atoms.positions,
        cell=np.array(atoms.cell),
        pbc=np.array(atoms.pbc),
        energy=atoms.get_potential_energy(),
        forces=atoms.get_forces(),
        stress=atoms.get_stress(voigt=False) if periodic else None,
        group=group,
    )


def clusters(frames: int, seed: int = 0) -> list[LabelledFrame]:
    """Cu4O and Cu5, in turn, rattled by 0.15 A."""
    generator = np.random.default_rng(seed)
    places = 2.4 * np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1], [0.6, 0.6, -0.6]])
    found = []
    for number in range(frames):
        symbols = "Cu5" if number % 2 else "Cu4O"
        atoms = Atoms(symbols, places + generator.normal(scale=0.15, size=places.shape))
        found.append(labelled(atoms, symbols))
    return found


def crystals(frames: int, seed: int = 1) -> list[LabelledFrame]:
    """Strained and rattled copper, two to four atoms."""
    generator = np.random.default_rng(seed)
    found = []
    for number in range(frames):
        atoms = (
            bulk("Cu", "fcc", a=3.6, cubic=True) if number % 2 else bulk("Cu", a=3.6) * (2, 1, 1)
        )
        strain = np.eye(3) + generator.normal(scale=0.02, size=(3, 3))
        atoms.set_cell(np.array(atoms.cell) @ strain, scale_atoms=True)
        atoms.positions += generator.normal(scale=0.1, size=atoms.positions.shape)
        found.append(labelled(atoms, "crystal"))
    return found


NETWORK = {
    "channels": 16,
    "layers": 1,
    "cutoff": 4.0,
    "radial_basis": {"number": 8},
    "readout": {"hidden": [16]},
}


def prepare(folder: Path, frames: list[LabelledFrame], **changes: Any) -> Path:
    """Writes a data set, a split and a configuration; returns the last."""
    data, split = folder / "set.h5", folder / "split.json"
    if not data.exists():
        write_dataset(data, [(frames, Provenance("made.xyz", "0" * 64, licence="MIT"))])
        with open_dataset(data) as dataset:
            write_split(random_split(dataset, 0.25, 0, seed=0), split)
    settings = {
        "data": str(data),
        "split": str(split),
        "out": str(folder / "out"),
        "potential": NETWORK,
        "batch": 4,
        "steps": 20,
        "validations": 2,
        "learning_rate": 5e-3,
        "average": 0.9,
        "device": "cpu",
    } | changes
    path = folder / f"{Path(settings['out']).name}.yaml"
    settings = {name: value for name, value in settings.items() if value is not None}
    path.write_text(yaml.safe_dump(settings), encoding="utf-8")
    return path


def settings(path: Path, **changes: Any) -> TrainConfig:
    """The configuration of a file, changed."""
    return read_training(path, changes)


def weights_of(folder: Path) -> dict[str, Tensor]:
    """Those of a trained potential, by name, as they are written."""
    return load_file(folder / "model.safetensors")


def assert_same(first: Path, second: Path) -> None:
    """Two trained potentials have the same bits."""
    one, other = weights_of(first), weights_of(second)
    assert one.keys() == other.keys()
    assert all(torch.equal(value, other[name]) for name, value in one.items())


def assert_near(first: Path, second: Path) -> None:
    """Two trained potentials are the same but for the order of sums."""
    one, two = weights_of(first), weights_of(second)
    for name, value in one.items():
        torch.testing.assert_close(two[name].double(), value.double(), rtol=1e-6, atol=1e-6)
