"""The script that draws, labels and adds molecules with atoms moved."""

from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import ase.io
import numpy as np
import pytest
import torch
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator
from repository import ROOT

from mdgraph.data import (
    LabelledFrame,
    Provenance,
    Split,
    open_dataset,
    read_split,
    write_dataset,
)
from mdgraph.data.bonding import bonded
from mdgraph.data.splits import write_split
from mdgraph.errors import InputError
from mdgraph.io.structures import from_ase

START = ROOT / "potentials/ethanol-pbe/start.extxyz"


@pytest.fixture
def module(script: Callable[[str], ModuleType]) -> ModuleType:
    return script("moved_labels")


@pytest.fixture
def frames() -> list[Atoms]:
    """Eight frames near rest, in the order of atoms that the script has."""
    rest: Any = ase.io.read(START)
    random = np.random.default_rng(1)
    moves = random.normal(scale=0.03, size=(8, 9, 3))
    return [Atoms(rest.numbers, rest.positions + move) for move in moves]


@pytest.fixture
def data(tmp_path: Path, frames: list[Atoms]) -> tuple[Path, Path]:
    """A set of two sources, and its split."""
    labelled = [
        LabelledFrame(one.numbers, one.positions, energy=-4200.0 - n, forces=np.zeros((9, 3)))
        for n, one in enumerate(frames)
    ]
    path = tmp_path / "set.h5"
    sources = [Provenance(name, level_of_theory="PBE/def2-SVP") for name in ("one", "two")]
    write_dataset(path, [(iter(labelled[:5]), sources[0]), (iter(labelled[5:]), sources[1])])
    with open_dataset(path) as dataset:
        parts = (np.arange(6), np.array([6]), np.array([7]))
        write_split(Split(*parts, "by hand", dataset.sha256()), tmp_path / "set.json")
    return path, tmp_path / "set.json"


def test_ethanol_is_moved_as_the_script_says(
    module: ModuleType, tmp_path: Path, data: tuple[Path, Path], frames: list[Atoms]
) -> None:
    path = tmp_path / "moved.xyz"
    options = ["draw", "ethanol", *map(str, data), str(START), str(path)]
    module.main([*options, "--frames", "200", "--published", "3"])
    moved: Any = ase.io.read(path, ":")
    assert [one.info["kind"] for one in moved[:4]] == ["published"] * 3 + ["hydrogen"]
    np.testing.assert_allclose(moved[1].positions, frames[2].positions, atol=1e-7)
    assert moved[1].info["published_eV"] == pytest.approx(-4202.0)
    rest: Any = ase.io.read(START)
    bonds = np.array(module.ETHANOL_BONDS)
    lengths = {
        kind: np.array(
            [
                [one.get_distance(*bond) / rest.get_distance(*bond) for bond in bonds]
                for one in moved
                if one.info["kind"] == kind
            ]
        )
        for kind in ("hydrogen", "two hydrogens", "from rest")
    }
    far = np.abs(lengths["hydrogen"] - 1.0) > 0.2  # frames themselves differ by a tenth at most
    assert far.sum(1).max() == 1
    assert (np.abs(lengths["two hydrogens"] - 1.0) > 0.2).sum(1).max() == 2
    assert lengths["from rest"].max() > 2.0
    share = far[:, -1].sum() / far.sum()
    assert 0.2 < share < 0.5  # O-H, of 1 / 3 where each of six had a sixth
    heavy = [one for one in moved if one.info["kind"] == "heavy"]
    for one in heavy:
        away = abs(one.get_distance(0, 1) / rest.get_distance(0, 1) - 1.0)
        away = max(away, abs(one.get_distance(0, 2) / rest.get_distance(0, 2) - 1.0))
        assert away < 0.7
    for one in moved[3:]:
        near = one.get_all_distances()[3:, 3:]
        assert near[~np.eye(6, dtype=bool)].min() >= module.NEAREST_HYDROGENS


def test_sides_of_any_molecule_are_turned_at_once(
    module: ModuleType, tmp_path: Path, data: tuple[Path, Path]
) -> None:
    path = tmp_path / "moved.xyz"
    options = ["draw", "turned", *map(str, data), str(START), str(path), "--published", "2"]
    module.main([*options, "--frames", "10", "--potential", "ethanol-pbe"])
    moved: Any = ase.io.read(path, ":")
    assert [one.info["kind"] for one in moved] == ["published"] * 2 + ["turned at once"] * 10
    rest: Any = ase.io.read(START)
    probe = module.MoleculeProbe("ethanol-pbe", torch.device("cpu"))
    systems = [from_ase(one) for one in (rest, *moved[2:])]
    energies = np.array([result.energy for result in probe.evaluate(systems, "x")])
    above = energies[1:] - energies[0]
    assert (above > module.TURNED_ABOVE[0]).all()
    assert (above < module.TURNED_ABOVE[1]).all()
    bonds = bonded(rest.numbers, rest.positions)
    for one in moved[2:]:
        # A frame's bonds are those of rest but for its vibrations.
        np.testing.assert_array_equal(bonded(one.numbers, one.positions)[bonds], True)


def test_labels_have_dispersion_where_it_is_wanted(
    module: ModuleType, tmp_path: Path, frames: list[Atoms], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tad_dftd3")
    for number, one in enumerate(frames):
        one.info["kind"] = str(number)
    ase.io.write(tmp_path / "moved.xyz", frames[:2], format="extxyz")
    monkeypatch.setattr(module, "labels_of", lambda atoms, grid: (-4200.0, np.zeros((9, 3))))
    for name, options in (("plain", []), ("d3", ["--d3"])):
        words = ["label", str(tmp_path / "moved.xyz"), str(tmp_path / f"{name}.extxyz"), *options]
        module.main(words)
    plain, d3 = (ase.io.read(tmp_path / f"{name}.extxyz", ":") for name in ("plain", "d3"))
    assert [one.get_potential_energy() for one in plain] == [-4200.0] * 2
    for one in d3:
        assert -0.3 < one.get_potential_energy() + 4200.0 < -0.02
        assert 0.001 < np.abs(one.get_forces()).max() < 0.2
        np.testing.assert_allclose(one.get_forces().sum(axis=0), 0.0, atol=1e-4)
    # More frames go on in a file of the same kind alone.
    ase.io.write(tmp_path / "moved.xyz", frames[:3], format="extxyz")
    for name, options in (("plain", ["--d3"]), ("d3", [])):
        path = tmp_path / f"{name}.extxyz"
        before = path.read_bytes()
        words = ["label", str(tmp_path / "moved.xyz"), str(path)]
        with pytest.raises(InputError, match=r"with(out)? --d3; label into another file"):
            module.main([*words, *options])
        assert path.read_bytes() == before
        module.main([*words, *([] if options else ["--d3"])])
        assert len(ase.io.read(path, ":")) == 3
    files = [str(tmp_path / f"{name}.extxyz") for name in ("plain", "d3")]
    with pytest.raises(InputError, match="Some of these labels have D3"):
        module.main(["add", "none.h5", "none.json", *files])


def test_labels_are_shifted_copied_and_held_out(
    module: ModuleType, tmp_path: Path, data: tuple[Path, Path], frames: list[Atoms]
) -> None:
    written = []
    for number in range(24):
        atoms = frames[number % 8].copy()
        atoms.info["kind"] = "published" if number < 3 else "hydrogen"
        if number < 3:
            atoms.info["published_eV"] = -4200.0
        above = 20.0 if number == 20 else 0.01 * number
        atoms.calc = SinglePointCalculator(
            atoms, energy=-4200.0 + (0.002 if number < 3 else above), forces=np.zeros((9, 3))
        )
        written.append(atoms)
    ase.io.write(tmp_path / "moved.extxyz", written, format="extxyz")
    words = ["add", *map(str, data), str(tmp_path / "moved.extxyz"), "--copies", "3"]
    module.main([*words, "--weight", "2.5"])
    with open_dataset(tmp_path / "set-moved.h5") as dataset:
        split = read_split(tmp_path / "set-moved.json", dataset)
        assert [source.file for source in dataset.sources] == ["one", "two", "moved.extxyz"]
        assert len(dataset) == 8 + 3 * 18 + 2  # of 20 that are not too high two are held out
        np.testing.assert_array_equal(split.train, [*range(6), *range(8, 8 + 54)])
        np.testing.assert_array_equal(split.validation, [6, 62, 63])
        np.testing.assert_array_equal(split.test, [7])
        all_frames: list[Any] = list(dataset.frames(np.arange(len(dataset))))
    assert [frame.weight for frame in all_frames] == [1.0] * 8 + [2.5] * 56
    energies = np.array([frame.energy for frame in all_frames])
    assert energies[:8] == pytest.approx(-4200.0 - np.arange(8))
    assert energies[8] == pytest.approx(-4200.0 + 0.03 - 0.002, abs=1e-6)
    assert energies[8:26] == pytest.approx(energies[26:44])
    assert {frame.group for frame in all_frames[8:]} == {"moved, hydrogen"}
