"""Labels of the level itself: which structures they judge, and what they must not hide."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from bonded_toy import BondedToy, gaussian, structure
from repository import ROOT

from mdgraph.data.dataset import LabelledFrame
from mdgraph.data.importing import import_file
from mdgraph.data.keys import Keys, Request
from mdgraph.io.structures import read_system
from mdgraph.system import System
from mdgraph.validate import random_checks
from mdgraph.validate.judge import JUDGE_NAME, Judge
from mdgraph.validate.labels import SAME, Judged, distances_to, labels_check, nearest_frames
from mdgraph.validate.molecule_checks import (
    RELAXED_STEPS,
    MoleculeProbe,
    judge_scan,
    molecule_checks,
)
from mdgraph.validate.scans import Molecule, Scan, all_scans
from mdgraph.validate.verdicts import Check, Verdict
from mdgraph.validate.vibrations import brought_to_rest

CPU = torch.device("cpu")

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random_checks, "MOLECULES", (2, 2))


METHANOL = structure()
C_O = gaussian(0, 1, 1.5, 1.85)
"""1.5 eV on the bond C-O pulled to 1.3 times its length."""


def frame(system: System, energy: float = 0.0) -> LabelledFrame:
    charge = float(system.charge or 0.0)
    return LabelledFrame(system.numbers, system.positions, energy=energy, charge=charge)


def labelled(checks: Sequence[Check], by: Callable[[Sequence[System]], np.ndarray]):
    """All structures that checks want labelled, with energies that are counted from elsewhere."""
    systems = list({name: one for c in checks for name, one in c.structures.items()}.values())
    return [frame(one, e - 999.0) for one, e in zip(systems, by(systems), strict=True)]


def checks_of(potential: BondedToy, judge: Judge | None, labels=()) -> dict[str, Check]:
    return {
        check.name.removesuffix(" of CH4O"): check
        for check in molecule_checks(
            [METHANOL], potential, CPU, judge=judge, labels=labels, quick=True
        )
    }


# which structures


def turned(positions: np.ndarray, mirrored: bool) -> np.ndarray:
    matrix, _ = np.linalg.qr(np.random.default_rng(3).normal(size=(3, 3)))
    sign = -1.0 if mirrored else 1.0
    return positions @ (sign * np.linalg.det(matrix) * matrix) + [1.0, -2.0, 3.0]


@pytest.mark.parametrize("mirrored", [False, True])
def test_a_structure_is_known_wherever_it_lies(mirrored: bool) -> None:
    places = METHANOL.positions
    moved = places.copy()
    moved[3] += [0.0, 0.0, 0.5 * SAME]
    far = places.copy()
    far[3] += [0.0, 0.0, 4.0 * SAME]
    copies = np.array([turned(one, mirrored) for one in (places, moved, far)])
    distances = distances_to(copies, places, METHANOL.numbers)
    assert distances[0] < 1e-9
    assert 0.2 * SAME < distances[1] < 0.5 * SAME
    assert distances[2] > SAME


@pytest.mark.parametrize("mirrored", [False, True])
def test_hydrogens_of_a_group_may_have_changed_places(mirrored: bool) -> None:
    """And no other atoms: C and O are not alike."""
    ethanol = structure("CH3CH2OH")
    groups = Molecule(ethanol).neighbors
    methyl = next(  # the only carbon with three hydrogens
        [atom for atom in atoms if ethanol.numbers[atom] == 1]
        for atoms in groups
        if (ethanol.numbers[atoms] == 1).sum() == 3
    )
    order = np.arange(9)
    order[methyl] = np.roll(methyl, 1)
    copy = turned(ethanol.positions[order], mirrored)
    assert distances_to(copy[None], ethanol.positions, ethanol.numbers)[0] < 1e-6
    order = np.arange(9)
    order[[0, 1]] = order[[1, 0]]
    copy = turned(ethanol.positions[order], mirrored)
    assert distances_to(copy[None], ethanol.positions, ethanol.numbers)[0] > SAME


def test_other_atoms_charges_and_cells_are_other_structures() -> None:
    order = np.array([1, 0, 2, 3, 4, 5])
    others = [
        METHANOL.replace(charge=1.0),
        System(METHANOL.numbers[order], METHANOL.positions[order]),
        METHANOL.replace(cell=np.eye(3) * 9.0, pbc=[True] * 3),
    ]
    places = nearest_frames([METHANOL, *others, structure("H2O")], [frame(METHANOL)])
    assert places.tolist() == [0, -1, -1, -1, -1]


def test_no_label_is_of_two_points_of_a_scan() -> None:
    """Points of all scans but those of the structure at rest are further apart."""
    for scan in all_scans(Molecule(METHANOL), quick=False, seed=0):
        positions = np.array([system.positions for system in scan.systems])
        for place, own in enumerate(positions):
            others = np.delete(positions, place, axis=0)
            distances = distances_to(others, own, scan.systems[0].numbers)
            # Mirrored forms of a symmetric molecule are the same structure.
            assert ((distances > SAME) | (distances < 1e-3)).all(), scan.name


@pytest.mark.parametrize(
    "path", sorted(ROOT.glob("potentials/*/labels.extxyz")), ids=lambda path: path.parent.name
)
def test_labels_that_ship_hold_the_minimum_of_their_potential(path: Path) -> None:
    """Else they would judge nothing. Its start relaxes to it, mirrored and with hydrogens moved."""
    labels = list(import_file(path, Request(Keys(forces="none"), missing="keep"))[0])
    probe = MoleculeProbe(path.parent, CPU)
    (relaxed,) = probe.relax([read_system(path.parent / "start.extxyz")], RELAXED_STEPS)
    system, _, _ = brought_to_rest(relaxed.system, probe.evaluate)
    assert nearest_frames([system], labels)[0] >= 0


# what they say


@pytest.fixture(scope="module")
def blamed() -> tuple[dict[str, Check], list[LabelledFrame]]:
    """A sound potential that a judge with a wall too few calls wrong, and labels of what it is."""
    toy, judge = BondedToy(METHANOL), BondedToy(METHANOL, lambda d: -C_O(d)).judge
    checks = checks_of(toy, judge)
    return checks, labelled(list(checks.values()), toy.judge)


def test_a_label_judges_where_the_judge_errs(blamed) -> None:
    """And the line says by whom it was judged, and how far the judge lies from labels."""
    before, labels = blamed
    judge = BondedToy(METHANOL, lambda d: -C_O(d)).judge
    assert before["bonds"].verdict is Verdict.WRONG
    assert f"above {JUDGE_NAME}, C0-O1 at 1.3 lengths" in before["bonds"].sentence
    after = checks_of(BondedToy(METHANOL), judge, labels)
    assert after["bonds"].verdict is Verdict.OK
    count = sum("bonds" in name for name in before["bonds"].structures)
    assert f"{count} of 45 structures have labels, at most 0.00 eV off" in after["bonds"].sentence
    assert f"{JUDGE_NAME} 1.5" in after["bonds"].sentence
    assert "structures" not in after["bonds"].as_json()
    assert "label" in next(iter(after["bonds"].panels.values())).y or any(
        "label" in curves.y for curves in after["bonds"].panels.values()
    )


def test_a_label_judges_what_the_judge_calls_ok(blamed) -> None:
    """The potential and the judge lack the same wall, or have the same one."""
    _, labels = blamed
    for sign, side in ((1.0, "above"), (-1.0, "below")):
        faulty = BondedToy(METHANOL, lambda d, sign=sign: sign * C_O(d))
        assert checks_of(faulty, faulty.judge)["bonds"].verdict is not Verdict.WRONG
        check = checks_of(faulty, faulty.judge, labels)["bonds"]
        assert check.verdict is Verdict.WRONG
        assert f"{side} its label, C0-O1 at 1.3 lengths" in check.sentence


@pytest.mark.parametrize(
    ("fault", "family", "verdict"),
    [
        (gaussian(0, 1, -4.0, 1.75), "bonds", Verdict.WRONG),
        (gaussian(1, 3, -3.0, 1.35), "bonds", Verdict.WRONG),
        (gaussian(1, 2, 4.0, 2.25, 0.15), "angles", Verdict.WRONG),
    ],
)
def test_faults_are_caught_beside_labels(blamed, fault, family: str, verdict: Verdict) -> None:
    """On a labelled bond, on one without labels, and on an angle."""
    _, labels = blamed
    sound = BondedToy(METHANOL)
    check = checks_of(BondedToy(METHANOL, fault), sound.judge, labels)[family]
    assert check.verdict is verdict, check.sentence


def test_labels_without_the_minimum_judge_nothing(blamed) -> None:
    before, labels = blamed
    judge = BondedToy(METHANOL, lambda d: -C_O(d)).judge
    minimum = nearest_frames([before["bonds"].structures["minimum of CH4O"]], labels)[0]
    rest = labels[:minimum] + labels[minimum + 1 :]
    after = checks_of(BondedToy(METHANOL), judge, rest)
    assert after["labels"].verdict is Verdict.LOOK
    assert "of the minimum, from which energies are counted" in after["labels"].sentence
    assert after["bonds"].sentence == before["bonds"].sentence


def test_without_a_judge_labels_judge_what_they_cover(blamed) -> None:
    """Not the rest of the family, of which nobody says anything."""
    _, labels = blamed
    check = checks_of(BondedToy(METHANOL, C_O), None, labels)["bonds"]
    assert check.verdict is Verdict.WRONG
    assert "above its label" in check.sentence
    check = checks_of(BondedToy(METHANOL), None, labels)["bonds"]
    assert check.verdict is Verdict.LOOK
    assert "nothing judged" in check.sentence


def test_a_step_from_judge_to_label_hides_no_fall() -> None:
    """Of a bond's energy, where the judge does not fall and one label lies lower than the judge."""
    energy = np.array([1.0, 0.3, 0.0, 0.6, 0.4, 0.7])
    x = np.array([0.7, 0.85, 1.0, 1.2, 1.4, 1.6])
    scan = Scan("bonds", "C0-O1", x, [METHANOL] * 6, np.full(6, True), "length")
    judge = np.array([1.0, 0.3, 0.0, 0.6, 0.65, 0.7])
    errors = np.array([np.nan, np.nan, 0.0, np.nan, 0.0, np.nan])
    result = judge_scan(scan, energy, Judged.of(energy, judge, errors))
    assert (result.verdict, "falls by" in result.reason) == (Verdict.LOOK, True)
    every = judge_scan(scan, energy, Judged.of(energy, judge, np.zeros(6)))
    assert every.verdict is Verdict.OK


# whether they may


def thermal(count: int) -> list[System]:
    random = np.random.default_rng(0)
    return [
        METHANOL.replace(positions=METHANOL.positions + random.normal(scale=0.05, size=(6, 3)))
        for _ in range(count)
    ]


def test_labels_of_another_level_judge_nothing() -> None:
    """Frames of the data tell it, after their mean."""
    systems = thermal(6)
    energies = BondedToy(METHANOL).judge(systems)
    data = [frame(one, energy) for one, energy in zip(systems, energies, strict=True)]
    same = [frame(one, energy + 2.0) for one, energy in zip(systems[:4], energies, strict=False)]
    check, kept = labels_check("labels.extxyz", same, data, [])
    assert (check.verdict, len(kept)) == (Verdict.OK, 4)
    other = [frame(one, 1.2 * energy) for one, energy in zip(systems[:4], energies, strict=False)]
    check, kept = labels_check("labels.extxyz", other, data, [])
    assert (check.verdict, kept) == (Verdict.LOOK, [])
    assert "another level" in check.sentence
    check, kept = labels_check("labels.extxyz", same, data[4:], [])
    assert (check.verdict, len(kept)) == (Verdict.LOOK, 4)
    assert "nothing tells their level" in check.sentence


def test_nobody_is_judged_by_what_it_was_trained_on() -> None:
    systems = thermal(6)
    energies = BondedToy(METHANOL).judge(systems)
    data = [frame(one, energy) for one, energy in zip(systems, energies, strict=True)]
    check, kept = labels_check("labels.extxyz", data, data[:3], data[3:])
    assert len(kept) == 3
    assert "3 of them trained on, which judge nothing" in check.sentence
