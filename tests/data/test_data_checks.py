"""Checks find leakage, wrong units and faults of single frames, and nothing in good data."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, molecule
from ase.calculators.emt import EMT
from ase.calculators.singlepoint import SinglePointCalculator
from ase.neighborlist import primitive_neighbor_list
from copper_frames import HARTREE, copper, labelled, written
from scipy.spatial.transform import Rotation

from mdgraph.data import LabelledFrame, Provenance, open_dataset, write_dataset
from mdgraph.data.checks import check_dataset, energy_force_consistency, similar_pairs
from mdgraph.data.keys import ENERGY
from mdgraph.data.similarity import short_pairs
from mdgraph.data.splits import random_split


def trajectory(count: int = 40, scale: float = 0.03) -> list[Atoms]:
    return copper(2 * count, seed=3, size=scale)[0::2]


def findings(tmp_path: Path, frames: list[LabelledFrame], **options: Any) -> list[str]:
    (tmp_path / "set.h5").unlink(missing_ok=True)
    with written(tmp_path / "set.h5", frames) as dataset:
        split = random_split(dataset, 0.25, 0, seed=0) if options.get("split") else None
        return [one.text for one in check_dataset(dataset, split) if one.wrong]


def test_good_data_pass(tmp_path: Path) -> None:
    assert findings(tmp_path, [labelled(one) for one in trajectory()], split=True) == []


def test_forces_that_were_not_computed_are_seen(tmp_path: Path) -> None:
    """Zeros in some frames, or in all."""
    frames = [labelled(one) for one in trajectory()]
    for some in (frames[3:5], frames):
        empty = [replace(one, forces=np.zeros_like(one.forces)) for one in some]
        mixed = [*frames[:3], *empty, *frames[5:]] if len(some) == 2 else empty
        (found,) = [text for text in findings(tmp_path, mixed) if "exactly zero" in text]
        assert found.startswith(f"All forces are exactly zero in {len(some)} frames without a")
    pair = replace(frames[0], numbers=frames[0].numbers[:2], positions=frames[0].positions[:2])
    crystal = replace(frames[0], cell=20.0 * np.eye(3), pbc=np.ones(3, dtype=bool))
    held = [replace(one, forces=np.zeros((len(one.numbers), 3))) for one in (pair, crystal)]
    assert not [text for text in findings(tmp_path, frames + held) if "exactly zero" in text]


def test_leakage_is_seen_through_rotation_and_order(tmp_path: Path) -> None:
    frames = trajectory()
    with written(tmp_path / "set.h5", [labelled(one) for one in frames]) as dataset:
        split = random_split(dataset, 0.25, 0, seed=0)
    leak, source = int(split.validation[0]), int(split.train[0])
    turn = Rotation.random(random_state=1).as_matrix()
    order = [3, 1, 0, 2, 4]
    turned = Atoms(frames[source].numbers[order], (frames[source].positions @ turn.T)[order] + 3.0)
    forces = (frames[source].get_forces() @ turn.T)[order]
    energy = frames[source].get_potential_energy()
    turned.calc = SinglePointCalculator(turned, energy=energy, forces=forces)
    frames[leak] = turned
    (found,) = findings(tmp_path, [labelled(one) for one in frames], split=True)
    assert "of train and validation is the same" in found
    assert f"{min(leak, source)} and {max(leak, source)}" in found


def test_copies_are_counted_in_every_part(tmp_path: Path) -> None:
    """Eight frames, each five times over, and one more 0.002 A from another."""
    eight = [labelled(one) for one in trajectory(8)]
    moved = eight[3].positions + 0.002 * np.random.default_rng(0).normal(size=(5, 3))
    frames = [*(eight * 5), LabelledFrame(**(vars(eight[3]) | {"positions": moved}))]
    with written(tmp_path / "set.h5", frames) as dataset:
        (alone,) = [one.text for one in check_dataset(dataset) if "the same" in one.text]
        assert alone.startswith(f"{8 * 10 + 5} pairs of frames are the same")
        split = random_split(dataset, 10, 0, seed=0)
        found = [one for one in check_dataset(dataset, split) if "the same" in one.text]
    held, kept = (np.append(np.arange(40) % 8, 3)[part] for part in (split.validation, split.train))
    leaks = int((held[:, None] == kept).sum())
    assert [one.wrong for one in found] == [True, False]
    assert found[0].text.startswith(f"{leaks} pairs of frames of train and validation")
    assert found[1].text.startswith(f"{85 - leaks} pairs of frames are the same")
    first, second = map(int, found[0].text.partition("(")[2].split(",")[0].split(" and "))
    assert first % 8 == second % 8
    assert (first in split.validation) != (second in split.validation)


@pytest.mark.parametrize("pbc", [(True, True, True), (True, False, True), (False, False, False)])
def test_short_pairs_are_those_of_another_search(pbc: tuple[bool, bool, bool]) -> None:
    """A skewed cell, atoms far outside of it, and reaches with one image and with several."""
    generator = np.random.default_rng(2)
    cell = np.array([[9.0, 0.0, 0.0], [2.5, 8.5, 0.0], [-3.0, 2.0, 9.5]])
    width = 20.0 if all(pbc) else 10.0
    positions = generator.uniform(-width, width, size=(40, 3))
    frame = LabelledFrame(np.full(40, 29), positions, cell, np.array(pbc))
    for reach in (3.9, 6.0, 14.0):
        found = np.sort(np.array(short_pairs(frame, reach)).T, axis=0)
        whole = np.where(np.array(pbc)[:, None], cell, 40.0 * np.eye(3))
        other = primitive_neighbor_list("ijd", pbc, whole, positions, reach)
        assert len(found) > 10
        np.testing.assert_allclose(found, np.sort(np.array(other).T, axis=0), atol=1e-9)


@pytest.mark.parametrize(
    ("factor", "sign", "said"),
    [(HARTREE, 1.0, "hartree"), (1.0, -1.0, "wrong sign"), (0.0433641042374, 1.0, "kcal/mol")],
)
def test_forces_in_other_units_are_suspected(
    tmp_path: Path, factor: float, sign: float, said: str
) -> None:
    frames = [labelled(one, forces=sign * one.get_forces() / factor) for one in trajectory()]
    with written(tmp_path / "set.h5", frames) as dataset:
        found = energy_force_consistency(dataset, similar_pairs(dataset))
    assert found.certain
    assert abs(found.slope) == pytest.approx(factor, rel=0.1)
    assert said in found.suspicion


@pytest.mark.parametrize(
    ("factor", "said"),
    [
        (1.0, ""),
        (-1.0, "Stresses of 20 frames fall where cells of the same atoms grow"),
        (160.2, "root mean square a component, which is"),
        (-1602.0, "fall where cells of the same atoms grow"),
    ],
)
def test_stresses_of_another_unit_or_sign_are_suspected(
    tmp_path: Path, factor: float, said: str
) -> None:
    random = np.random.default_rng(4)
    frames = []
    for _ in range(20):
        crystal = bulk("Cu", a=3.6, cubic=True)
        strain = np.eye(3) + random.normal(scale=0.03, size=(3, 3))
        crystal.set_cell(np.array(crystal.cell) @ strain, scale_atoms=True)
        crystal.positions += random.normal(scale=0.05, size=(4, 3))
        crystal.calc = EMT()
        stress = factor * crystal.get_stress(voigt=False)
        cell, pbc = np.array(crystal.cell), np.ones(3, dtype=bool)
        frames.append(replace(labelled(crystal), cell=cell, pbc=pbc, stress=stress))
    with written(tmp_path / "set.h5", frames) as dataset:
        texts = [one.text for one in check_dataset(dataset) if "tress" in one.text]
    assert bool(texts) is bool(said)
    assert any(said in text for text in texts) or not said


def test_faults_of_single_frames_are_named(tmp_path: Path) -> None:
    frames = [labelled(one) for one in trajectory()]
    atoms = trajectory()[7]
    close, far, force = (
        atoms.positions.copy(),
        atoms.get_potential_energy() + 50.0,
        atoms.get_forces(),
    )
    close[1] = close[0] + [0.6, 0.0, 0.0]
    force[0, 0] += 100.0
    force[1, 0] -= 100.0
    for change, said in (
        ({"positions": close}, "too close in 1 frame (7)"),
        ({"energy": far}, "eV an atom off"),
        ({"forces": force}, "(7)"),
    ):
        assert any(
            said in text
            for text in findings(tmp_path, [*frames[:7], labelled(atoms, **change), *frames[8:]])
        )
    shifted = [labelled(one, forces=one.get_forces() + 0.3) for one in trajectory()]
    assert any("net force" in text for text in findings(tmp_path, shifted))


@pytest.mark.parametrize("fault", ["axes", "atoms", "one frame", "cell", "", "linear"])
def test_forces_that_turn_a_molecule_are_seen(tmp_path: Path, fault: str) -> None:
    """Axes or atoms in another order than those of the positions, and a cell that was lost."""
    frames = [labelled(one) for one in trajectory()]
    swapped = [replace(one, forces=one.forces[:, [1, 2, 0]]) for one in frames]
    if fault == "axes":
        frames = swapped
    elif fault == "atoms":
        frames = [replace(one, forces=np.roll(one.forces, 1, axis=0)) for one in frames]
    elif fault == "one frame":
        frames[7] = swapped[7]
    elif fault == "cell":
        crystal = bulk("Cu", cubic=True) * (2, 2, 1)
        crystal.calc = EMT()
        frames = []
        for seed in range(12):
            rattled = crystal.copy()
            rattled.rattle(0.1, seed=seed)
            rattled.calc = EMT()
            forces = rattled.get_forces()
            energy = rattled.get_potential_energy()
            rattled.pbc = False
            frames.append(labelled(rattled, energy=energy, forces=forces))
    elif fault == "linear":
        generator = np.random.default_rng(0)
        frames = []
        for length in generator.uniform(1.1, 1.3, 20):
            atoms = Atoms("OCO", [[0, 0, -length], [0, 0, 0], [0, 0, length]])
            force = 100.0 * (1.2 - length) * np.array([[0, 0, -1.0], [0, 0, 0], [0, 0, 1.0]])
            turn = Rotation.random(random_state=generator).as_matrix()
            atoms.positions = (atoms.positions @ turn.T).round(6)
            energy = 100.0 * (length - 1.2) ** 2
            frames.append(
                LabelledFrame(
                    atoms.numbers,
                    atoms.positions,
                    np.zeros((3, 3)),
                    atoms.pbc,
                    energy=energy,
                    forces=force @ turn.T,
                )
            )
    found = [text for text in findings(tmp_path, frames) if "turn whole molecules" in text]
    assert len(found) == (fault not in ("", "linear"))
    if fault == "one frame":
        assert "in frame 7 (" in found[0]


@pytest.mark.parametrize(("units", "said"), [(1.0, ""), (HARTREE, ", in the ratio of hartree and")])
@pytest.mark.parametrize("files", [1, 2])
def test_energies_in_two_units_are_seen(
    tmp_path: Path, units: float, said: str, files: int
) -> None:
    """Total energies, some of them in hartree: a difference of hundreds of eV an atom."""
    frames = copper(40, seed=3, size=0.05)
    totals = [one.get_potential_energy() - 1000.0 * len(one) for one in frames]
    first = [labelled(one, energy=e / units) for one, e in zip(frames[:16], totals, strict=False)]
    rest = [labelled(one, energy=e) for one, e in zip(frames[16:], totals[16:], strict=True)]
    parts = [first + rest] if files == 1 else [first, rest]
    write_dataset(
        tmp_path / "set.h5", [(part, Provenance(f"{n}.xyz")) for n, part in enumerate(parts)]
    )
    with open_dataset(tmp_path / "set.h5") as dataset:
        texts = " ".join(one.text for one in check_dataset(dataset) if one.wrong)
    if not said:
        assert texts == ""
        return
    assert said in texts
    assert ("lie in two heaps" in texts) == (files == 1)
    assert ("between 1.xyz and 0.xyz" in texts) == (files == 2)


def test_frames_of_two_charges_are_neither_copies_nor_leaks(tmp_path: Path) -> None:
    """Vertical ionisation: the same places, neutral and charged, 5 eV apart."""
    neutral = [labelled(one) for one in trajectory()]
    charged = [replace(one, charge=1.0, energy=one.energy + 5.0) for one in neutral]
    with written(tmp_path / "set.h5", neutral + charged) as dataset:
        split = random_split(dataset, 0.25, 0, seed=0)
        assert check_dataset(dataset, split) == []
        assert energy_force_consistency(dataset, similar_pairs(dataset)).certain


def test_copies_whose_energies_differ_are_wrong(tmp_path: Path) -> None:
    """A singlet and a triplet, of which the data set does not know."""
    frames = [labelled(one) for one in trajectory()]
    assert findings(tmp_path, [*frames, replace(frames[3])]) == []
    triplets = [replace(frames[place], energy=frames[place].energy + 0.5) for place in (3, 7)]
    (found,) = findings(tmp_path, [*frames, *triplets])
    assert "same places differ by up to 0.1 eV an atom (3 and 40, 7 and 41)" in found
    assert "spin" in found


@pytest.mark.parametrize("unit", ["eV", "kcal/mol", "kJ/mol"])
def test_total_energies_tell_their_unit(tmp_path: Path, unit: str) -> None:
    """Ethanol of -154.7 hartree, energies and forces in one unit, as archives of MD17 have it."""
    ethanol = molecule("CH3CH2OH")
    frames = [
        LabelledFrame(
            ethanol.numbers.astype(np.int64),
            ethanol.positions,
            energy=-154.7 * HARTREE / ENERGY[unit],
            forces=np.zeros((9, 3)),
        )
    ]
    found = [text for text in findings(tmp_path, frames) if "electrons" in text]
    assert found == [] if unit == "eV" else f"they are in {unit}" in found[0]
