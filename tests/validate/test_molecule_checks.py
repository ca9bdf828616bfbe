"""Checks of molecules: scans move what they say, a sound toy passes, planted faults are caught."""

import re
from collections.abc import Iterable, Sequence

import numpy as np
import pytest
import torch
from bonded_toy import BondedToy, gaussian, structure

from mdgraph.engine.batches import evaluate_with
from mdgraph.errors import InputError
from mdgraph.system import System, hill_formula
from mdgraph.validate import random_checks
from mdgraph.validate.judge import gfn2, judge_check
from mdgraph.validate.labels import Judged
from mdgraph.validate.molecule_checks import (
    FALL,
    HOLE,
    JUDGED_BELOW,
    WALL,
    judge_scan,
    molecule_checks,
)
from mdgraph.validate.scans import (
    Molecule,
    Scan,
    angle_scans,
    bond_scans,
    dimer_scans,
    hydrogen_scans,
    pair_scans,
    torsion_scans,
    transfer_scans,
)
from mdgraph.validate.verdicts import Check, Verdict
from mdgraph.validate.vibrations import brought_to_rest, normal_modes

CPU = torch.device("cpu")

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random_checks, "MOLECULES", (8, 4))


def by_name(checks: Iterable[Check]) -> dict[str, Check]:
    return {check.name: check for check in checks}


# scans


def lengths(system: System, bonds: Iterable[tuple[int, int]]) -> np.ndarray:
    return np.array([np.linalg.norm(system.positions[a] - system.positions[b]) for a, b in bonds])


def test_a_stretched_bond_is_the_only_one_that_changes() -> None:
    """Of a chain; its length is the factor times that at rest."""
    molecule = Molecule(structure("CH3CH2OH"))
    rest = lengths(molecule.system, molecule.bonds)
    scans = bond_scans(molecule, quick=True)
    assert len(scans) == len(molecule.bonds) == 8
    for place, scan in enumerate(scans):
        for factor, copy in zip(scan.x, scan.systems, strict=True):
            expected = np.ones(8)
            expected[place] = factor
            np.testing.assert_allclose(lengths(copy, molecule.bonds) / rest, expected)
        assert (scan.x[0], scan.x[-1]) == (0.7, 1.6)
        assert scan.judged.all()
    whole = bond_scans(molecule, quick=False)[0]
    assert whole.x[-1] == 2.5
    assert whole.x[whole.judged].max() == 1.6


def test_a_bond_in_a_ring_is_stretched_over_the_ring() -> None:
    """Its own length changes as said, and hydrogens keep theirs."""
    molecule = Molecule(structure("C6H6"))
    ring = [bond for bond in molecule.bonds if molecule.system.numbers[list(bond)].min() == 6]
    others = [bond for bond in molecule.bonds if bond not in ring]
    assert len(ring) == 6
    for bond, scan in zip(molecule.bonds, bond_scans(molecule, quick=False), strict=True):
        copy = scan.systems[-1]
        rest = lengths(molecule.system, [bond])
        np.testing.assert_allclose(lengths(copy, [bond]), 2.5 * rest)
        if bond in ring:
            np.testing.assert_allclose(lengths(copy, others), lengths(molecule.system, others))


def angle(system: System, first: int, middle: int, last: int) -> float:
    arms = system.positions[[first, last]] - system.positions[middle]
    return float(np.degrees(np.arccos(arms[0] @ arms[1] / np.prod(np.linalg.norm(arms, axis=1)))))


def test_angles_open_by_what_is_said_and_bonds_stay() -> None:
    molecule = Molecule(structure("CH3OH"))
    rest = lengths(molecule.system, molecule.bonds)
    for scan in angle_scans(molecule, quick=True):
        atoms = [int(label.lstrip("CHO")) for label in scan.name.split("-")]
        before = angle(molecule.system, *atoms)
        for bend, copy in zip(scan.x, scan.systems, strict=True):
            assert angle(copy, *atoms) == pytest.approx(before + bend)
            np.testing.assert_allclose(lengths(copy, molecule.bonds), rest)


def test_methyls_and_amines_are_turns_and_other_bonds_torsions() -> None:
    """None of them changes a bond, and a whole turn comes back."""
    molecule = Molecule(structure("CH3CH2OH"))
    scans = torsion_scans(molecule, quick=False)
    assert sorted(scan.family for scan in scans) == ["torsions", "turns"]
    amine = torsion_scans(Molecule(structure("CH3CH2NH2")), quick=True)
    assert sorted(scan.name[-5:] for scan in amine) == ["(CH3)", "(NH2)"]
    for scan in scans:
        for copy in scan.systems:
            rest = lengths(molecule.system, molecule.bonds)
            np.testing.assert_allclose(lengths(copy, molecule.bonds), rest)


def test_pairs_of_turns_change_no_bond_and_share_the_structures() -> None:
    """Among pairs of bonds; a molecule with one bond to turn about has none."""
    molecule = Molecule(structure("CH3CH2OCH3"))
    rest = lengths(molecule.system, molecule.bonds)
    scans = pair_scans(molecule, quick=True, seed=0)
    assert len(scans) == 3
    assert [len(scan.systems) for scan in scans] == [10, 10, 10]
    for scan in scans:
        assert re.fullmatch(r"\S+ by \d+ ° and \S+ by \d+ °", scan.where(3))
        assert scan.judged.all()
        for copy in scan.systems:
            np.testing.assert_allclose(lengths(copy, molecule.bonds), rest)
    assert sum(len(scan.systems) for scan in pair_scans(molecule, quick=False, seed=0)) == 180
    assert pair_scans(Molecule(structure("CH3OH")), quick=True, seed=0) == []


def test_a_hydrogen_goes_over_to_the_other_oxygen() -> None:
    """Of a hydrogen bond alone, straight, to where its new bond is as long as the old one."""
    numbers = np.array([8, 1, 8, 1, 1])
    places = [[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [2.6, 0.0, 0.0], [2.9, 0.9, 0.0], [2.9, -0.9, 0.0]]
    molecule = Molecule(System(numbers, np.array(places)))
    (scan,) = transfer_scans(molecule, quick=True)
    assert (scan.name, len(scan.x)) == ("O0-H1-O2", 6)
    ends = [scan.systems[place].positions[1, 0] for place in (0, -1)]
    assert ends == pytest.approx([1.0, 1.6])
    for system in scan.systems:
        np.testing.assert_array_equal(np.delete(system.positions, 1, 0), np.delete(places, 1, 0))
    far = System(numbers, np.array(places) + np.array([[0], [0], [1], [1], [1]]) * [0.8, 0.0, 0.0])
    assert transfer_scans(Molecule(far), quick=True) == []
    assert transfer_scans(Molecule(structure("H2O2")), quick=True) == []  # no hydrogen bond


def test_hydrogens_and_dimers_come_as_near_as_said() -> None:
    molecule = Molecule(structure("CH3CH2OH"))
    scans = hydrogen_scans(molecule, quick=False)
    assert scans
    for scan in scans:
        pair = tuple(int(label[1:]) for label in scan.name.split("-"))
        for length, copy in zip(scan.x, scan.systems, strict=True):
            assert lengths(copy, [pair])[0] == pytest.approx(length)
    for scan in dimer_scans(molecule, quick=False, seed=1):
        for distance, copy in zip(scan.x, scan.systems, strict=True):
            first, second = np.split(copy.positions, 2)
            nearest = np.linalg.norm(first[:, None] - second, axis=-1).min()
            assert nearest == pytest.approx(distance)


# verdicts


def scan_of(count: int, family: str = "torsions") -> Scan:
    x = np.linspace(0.7, 1.6, count)
    x[np.abs(x - 1.0).argmin()] = 1.0
    system = System([1], [[0.0, 0.0, 0.0]])
    return Scan(family, "path", x, [system] * count, np.full(count, True), "x (Å)")


def by_judge(energy: np.ndarray, judge: np.ndarray) -> Judged:
    """Of a judge alone."""
    return Judged.of(energy, judge, np.full(len(energy), np.nan))


@pytest.mark.parametrize(
    ("family", "potential", "judge", "verdict", "word"),
    [
        ("torsions", [0.0, 0.5, 1.0], [0.0, 0.5, 1.0], Verdict.OK, ""),
        ("torsions", [0.0, -HOLE - 0.01, 1.0], [0.0, -0.2, 1.0], Verdict.WRONG, "hole"),
        ("torsions", [0.0, -HOLE - 0.01, 1.0], [0.0, -0.35, 1.0], Verdict.OK, ""),
        ("torsions", [0.0, 0.8 + WALL, 1.0], [0.0, 0.7, 1.0], Verdict.WRONG, "wall"),
        ("torsions", [0.0, 3.9, 1.0], [0.0, 2.5, 1.0], Verdict.WRONG, "wall"),
        ("torsions", [0.0, 9.0, 1.0], [0.0, JUDGED_BELOW, 1.0], Verdict.OK, ""),
        ("torsions", [0.0, 1.4, 1.0], [0.0, 9.0, 1.0], Verdict.WRONG, "pass"),
        ("torsions", [0.0, 1.0, 1.0], [0.0, 0.6, 1.0], Verdict.LOOK, "from"),
        ("torsions", [0.0, -1.0, 1.0], [np.nan] * 3, Verdict.LOOK, "below the minimum"),
        ("bonds", [0.5, 0.0, -1.0], [np.nan] * 3, Verdict.WRONG, "hole"),
        ("bonds", [0.5, 0.0, np.nan], [np.nan] * 3, Verdict.WRONG, "not finite"),
    ],
)
def test_limits(
    family: str, potential: list[float], judge: list[float], verdict: Verdict, word: str
) -> None:
    """On both sides of each."""
    energies = np.array(potential)
    result = judge_scan(scan_of(3, family), energies, by_judge(energies, np.array(judge)))
    assert result.verdict is verdict
    assert word in result.reason


def test_a_second_minimum_of_a_bond_is_a_look() -> None:
    """Where the judge has none."""
    energy = np.array([1.0, 0.3, 0.0, 0.6, 0.6 - FALL - 0.01, 0.7])
    scan = scan_of(6, "bonds")
    scan.x[:] = [0.7, 0.85, 1.0, 1.2, 1.4, 1.6]
    unjudged = by_judge(energy, np.full(6, np.nan))
    assert judge_scan(scan, energy, unjudged).verdict is Verdict.LOOK
    assert judge_scan(scan, energy, by_judge(energy, energy)).verdict is Verdict.OK


# whole molecules


def test_a_sound_toy_passes_everywhere() -> None:
    system = structure()
    toy = BondedToy(system)
    checks = by_name(molecule_checks([system], toy, CPU, judge=toy.judge))
    assert {check.verdict for check in checks.values()} == {Verdict.OK}, checks
    families = {re.sub(" (of|in) CH4O", "", name) for name in checks}
    assert families == {
        *("minimum", "vibrations", "bonds", "angles", "turns", "hydrogens", "dimers"),
        *("relaxed torsions", "modes", "atoms moved", "atoms scattered"),
    }
    assert len(checks["vibrations of CH4O"].numbers["frequencies_per_cm"]) == 12
    assert checks["bonds of CH4O"].panels


def test_without_a_judge_most_is_a_look() -> None:
    system = structure()
    checks = by_name(molecule_checks([system], BondedToy(system), CPU, judge=None, quick=True))
    assert checks["vibrations of CH4O"].verdict is Verdict.OK
    assert checks["bonds of CH4O"].verdict is Verdict.LOOK
    assert "nothing judged" in checks["bonds of CH4O"].sentence


@pytest.mark.parametrize(
    ("fault", "family", "verdicts"),
    [
        (gaussian(0, 1, -0.5, 1.75), "bonds", {Verdict.LOOK, Verdict.WRONG}),
        (gaussian(0, 1, 0.55, 1.7), "bonds", {Verdict.LOOK, Verdict.WRONG}),
        (gaussian(0, 1, -4.0, 1.75), "bonds", {Verdict.WRONG}),
        (gaussian(1, 2, 1.0, 2.25, 0.15), "angles", {Verdict.LOOK, Verdict.WRONG}),
    ],
)
def test_an_added_gaussian_is_seen(fault, family: str, verdicts: set[Verdict]) -> None:
    """Of half an eV and more, on the bond C-O and on the distance of a hydrogen from O."""
    system = structure()
    assert system.symbols[0] == "C"
    assert system.symbols[1] == "O"
    checks = by_name(
        molecule_checks(
            [system], BondedToy(system, fault), CPU, judge=BondedToy(system).judge, quick=True
        )
    )
    assert checks[f"{family} of CH4O"].verdict in verdicts, checks[f"{family} of CH4O"].sentence


def test_a_wall_that_two_turns_meet_together_is_wrong() -> None:
    """Of a hydrogen of CH3 and that of O, which no scan of one bond brings so near."""
    system = structure("CH3CH2OH")
    molecule = Molecule(system)
    single, both = (
        np.array([one.positions for scan in scans for one in scan.systems])
        for scans in (torsion_scans(molecule, False), pair_scans(molecule, True, 0))
    )
    (hydroxyl,) = (
        atom for atom in range(9) if system.numbers[molecule.neighbors[atom]].tolist() == [8]
    )
    apart = [np.linalg.norm(p - p[:, [hydroxyl]], axis=2).min(axis=0) for p in (single, both)]
    gain = np.where(system.numbers == 1, apart[0] - apart[1], 0.0)
    other = int(gain.argmax())
    assert gain[other] > 0.1
    fault = gaussian(hydroxyl, other, 4.0, apart[1][other] - 0.05, 0.4 * gain[other])
    judge = BondedToy(system).judge
    toy = BondedToy(system, fault)
    checks = by_name(molecule_checks([system], toy, CPU, judge=judge, quick=True))
    assert checks["pairs of turns of C2H6O"].verdict is Verdict.WRONG
    assert "wall" in checks["pairs of turns of C2H6O"].sentence
    for family in ("torsions", "turns"):
        assert checks[f"{family} of C2H6O"].verdict is Verdict.OK


@pytest.mark.parametrize("judged", [True, False])
def test_a_hole_between_atoms_out_of_place_is_wrong(judged: bool) -> None:
    """Hydrogens 0.4 A apart, as no scan has them, on a potential that is sound elsewhere."""
    system = structure()
    hydrogens = np.flatnonzero(system.numbers == 1)

    def fault(distances: torch.Tensor) -> torch.Tensor:
        apart = distances[hydrogens][:, hydrogens] + 9.0 * torch.eye(len(hydrogens))
        return -300.0 * torch.exp(-0.5 * ((apart - 0.35) / 0.15) ** 2).sum()

    judge = BondedToy(system).judge if judged else None
    found = by_name(molecule_checks([system], BondedToy(system, fault), CPU, judge=judge))
    assert found["hydrogens of CH4O"].verdict is not Verdict.WRONG
    assert found["atoms scattered in CH4O"].verdict is Verdict.WRONG
    assert "in a hole" in found["atoms scattered in CH4O"].sentence
    assert ("GFN2-xTB" in found["atoms scattered in CH4O"].sentence) == judged


def test_pairs_are_judged_by_what_binds_them() -> None:
    """By the turned form, where potential and judge differ most, each pair would lie far off."""
    system = structure()
    hydroxyl, methyl = 3, 4
    assert system.symbols[hydroxyl] == system.symbols[methyl] == "H"
    turned = gaussian(hydroxyl, methyl, -0.25, 2.8)
    toy = BondedToy(system, turned)

    def judge(systems: Sequence[System]) -> np.ndarray:
        return BondedToy(system).judge(systems) - 4.0 * (toy.judge(systems) - plain(systems))

    plain = BondedToy(system).judge
    found = by_name(molecule_checks([system], toy, CPU, judge=judge))
    assert found["turns of CH4O"].verdict is Verdict.WRONG
    assert found["dimers of CH4O"].verdict is Verdict.OK


def test_random_weights_are_wrong(tiny_potential) -> None:
    system = structure("H2O")
    judge = BondedToy(system).judge
    checks = list(molecule_checks([system], tiny_potential, CPU, judge=judge, quick=True))
    assert Verdict.WRONG in {check.verdict for check in checks}


def test_a_diatomic_vibrates_as_its_spring() -> None:
    """A Morse bond of 4 eV and 1.8/A: k = 2 D a^2."""
    system = structure("CO").replace(positions=[[0.0, 0.0, 0.0], [0.0, 0.0, 1.15]])

    class Morse(BondedToy):
        def __init__(self) -> None:
            self._size = 2
            self._factor = 1.0

        def energy(self, positions):
            length = (positions[0] - positions[1]).norm()
            return 4.0 * (1.0 - torch.exp(-1.8 * (length - 1.13))) ** 2

    rest, force, hessian = brought_to_rest(system, evaluate_with(Morse(), CPU, "double"))
    assert force < 1e-3
    assert lengths(rest, [(0, 1)])[0] == pytest.approx(1.13, abs=1e-4)
    stiffness, mass = 2.0 * 4.0 * 1.8**2, np.prod(system.masses) / system.masses.sum()
    # sqrt(eV/A^2/amu) is 521.47 per cm.
    (mode,), (displacement,) = normal_modes(rest, hessian)
    assert mode == pytest.approx(521.47 * np.sqrt(stiffness / mass), rel=2e-3)
    # Both atoms move apart, by what takes 1 eV if the spring is harmonic.
    change = float(np.linalg.norm(displacement[1] - displacement[0]))
    assert 0.5 * stiffness * change**2 == pytest.approx(1.0, rel=3e-3)
    np.testing.assert_allclose(rest.masses @ displacement, 0.0, atol=1e-9)


def test_formulas_begin_with_carbon_and_hydrogen() -> None:
    assert hill_formula(structure("CH3CH2OH").numbers.tolist()) == "C2H6O"


# the judge


def test_a_judge_that_misses_the_labels_judges_nothing() -> None:
    system = structure()
    random = np.random.default_rng(0)
    frames = [
        system.replace(positions=system.positions + random.normal(scale=0.05, size=(6, 3)))
        for _ in range(8)
    ]
    toy = BondedToy(system)
    labels = toy.judge(frames)
    check = judge_check(frames, labels, toy.judge)
    assert check is not None
    assert check.verdict is Verdict.OK
    other = judge_check(frames, labels[::-1] * 3.0, toy.judge)
    assert other is not None
    assert other.verdict is Verdict.LOOK
    assert judge_check(frames[:1], labels[:1], toy.judge) is None


def test_gfn2_knows_water() -> None:
    """It has -5.07 hartree, and takes 2 to 3 eV to stretch O-H by 60 %."""
    pytest.importorskip("tblite", reason="the judge GFN2-xTB needs tblite")
    water = structure("H2O")
    scan = bond_scans(Molecule(water), quick=True)[0]
    energies = gfn2()([scan.systems[place] for place in np.flatnonzero(scan.judged)])
    at = scan.x[scan.judged]
    assert energies.min() / 27.2114 == pytest.approx(-5.0705, abs=2e-3)
    assert 1.5 < energies[at == 1.6][0] - energies[at == 1.0][0] < 4.0
    periodic = water.replace(cell=np.eye(3) * 9.0, pbc=[True] * 3)
    assert np.isnan(gfn2()([periodic])).all()


def test_a_missing_tblite_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "tblite.interface", None)
    with pytest.raises(InputError, match="needs the package tblite"):
        gfn2()
