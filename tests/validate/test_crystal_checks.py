"""Checks of crystals: what is known of toys is found, sound ones pass, and faults are caught."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.calculators.emt import EMT
from numpy.typing import NDArray
from random_networks import random_network
from toys import LennardJones

from mdgraph.checkpoints import load
from mdgraph.data import LabelledFrame
from mdgraph.evaluators import AutogradEvaluator, Evaluator
from mdgraph.models.ops.messages import sum_slots
from mdgraph.neighbors import NeighborList
from mdgraph.state import State
from mdgraph.system import System
from mdgraph.validate import crystal_checks as crystal_module
from mdgraph.validate import random_checks as random_module
from mdgraph.validate.crystal_checks import (
    _derivatives_check,
    _elastic_check,
    _fault_check,
    _vacancy_check,
    crystal_checks,
    judge_lattice,
)
from mdgraph.validate.crystals import (
    DIP,
    HOLE,
    CrystalProbe,
    Phase,
    crystal_compounds,
    crystal_elements,
    elastic_tensor,
    ideal_crystal,
    lattice_curve,
    phases_at_rest,
    phonon_frequencies,
    slab,
)
from mdgraph.validate.verdicts import Verdict

CPU = torch.device("cpu")
EPSILON, SIGMA, REACH = 0.0104, 3.4, 8.5


class EffectiveMedium(Evaluator):
    """ASE's EMT, which knows copper; it has exact forces and stresses."""

    cutoffs: tuple[float, ...] = ()

    def __init__(self) -> None:
        self._systems: dict[tuple[int, int], Atoms] = {}

    def evaluate_(self, state: State, lists: Sequence[NeighborList]) -> None:
        """See Evaluator; each system is evaluated by ASE, whose lists have a skin."""
        start = 0
        for place, size in enumerate(state.grouping.sizes):
            part = slice(start, start + size)
            start += size
            pbc = np.broadcast_to(state.pbc.numpy(), (len(state.grouping.sizes), 3))[place]
            atoms = self._systems.get((place, size))
            if atoms is None:
                atoms = Atoms(size * ["X"], calculator=EMT(asap_cutoff=False))
                self._systems[place, size] = atoms
            atoms.numbers = state.numbers[part].numpy()
            atoms.positions = state.places()[part].numpy()
            atoms.set_cell(state.cell[place].numpy())
            atoms.pbc = pbc
            state.energies[part] = torch.tensor(atoms.get_potential_energies())
            state.forces[part] = torch.tensor(atoms.get_forces()).to(state.dtype)
            state.energy[place] = atoms.get_potential_energy()
            if pbc.all():
                virial = -atoms.get_stress(voigt=False) * atoms.get_volume()
                state.virial[place] = torch.tensor(virial)


class Altered(AutogradEvaluator):
    """Lennard-Jones whose forces, or else stresses, are too large by a factor."""

    def __init__(self, forces: float = 1.0, stresses: float = 1.0) -> None:
        super().__init__(LennardJones(EPSILON, SIGMA, REACH))
        self.factors = forces, stresses

    def evaluate_(self, state: State, lists: Sequence[NeighborList]) -> None:
        """See Evaluator."""
        super().evaluate_(state, lists)
        state.forces *= self.factors[0]
        state.virial *= self.factors[1]


@cache
def lennard_jones() -> CrystalProbe:
    """A probe of argon."""
    return CrystalProbe(LennardJones(EPSILON, SIGMA, REACH), CPU, "double")


@cache
def argon() -> Phase:
    """Face-centred cubic argon at rest."""
    return phases_at_rest("Ar", lennard_jones())["fcc"]


def test_phases_of_lennard_jones_have_their_known_distances_and_order() -> None:
    """Without a cutoff fcc has 1.0902 sigma and -8.61 epsilon, hcp 0.9e-4 of that less."""
    probe = CrystalProbe(LennardJones(EPSILON, SIGMA, 17.0), CPU, "double")
    phases = phases_at_rest("Ar", probe)
    crystal = phases["fcc"].crystal
    distance = np.linalg.norm(crystal.cell[0])
    assert distance / SIGMA == pytest.approx(1.0902, abs=2e-3)
    assert phases["fcc"].energy / EPSILON == pytest.approx(-8.61, rel=0.04)
    assert phases["bcc"].energy > phases["fcc"].energy
    assert phases["hcp"].energy == pytest.approx(phases["fcc"].energy, rel=1e-3)
    assert phases["diamond"].energy > phases["sc"].energy > phases["bcc"].energy


def test_elastic_constants_of_pairs_obey_cauchy_and_bcc_gives_way() -> None:
    """C12 = C44 for pair forces at rest where every atom is a center of inversion."""
    tensor = elastic_tensor(argon().crystal, lennard_jones())
    assert tensor == pytest.approx(tensor.T, abs=0.02)
    assert tensor[0, 1] == pytest.approx(tensor[3, 3], rel=0.01)
    assert tensor[0, 0] > tensor[0, 1] > 0.0
    bcc = phases_at_rest("Ar", lennard_jones())["bcc"]
    assert _elastic_check("Ar", argon(), lennard_jones()).verdict is Verdict.OK
    assert _elastic_check("Ar", bcc, lennard_jones()).verdict is Verdict.WRONG


@pytest.mark.parametrize("phase", ["fcc", "hcp"])
def test_phonons_are_those_of_the_whole_supercell(phase: str) -> None:
    """All frequencies of the grid together are the eigenvalues of the supercell's Hessian."""
    probe = lennard_jones()
    crystal = phases_at_rest("Ar", probe)[phase].crystal
    frequencies = phonon_frequencies(crystal, probe, 2)
    atoms = Atoms(crystal.numbers, crystal.positions, cell=crystal.cell, pbc=True).repeat(2)
    whole = System(atoms.numbers, atoms.positions, cell=atoms.cell.array, pbc=atoms.pbc)
    all_at_once = phonon_frequencies(whole, probe, 1)
    found = np.sort(frequencies.ravel() * np.abs(frequencies.ravel()))
    expected = np.sort(all_at_once.ravel() * np.abs(all_at_once.ravel()))
    assert found == pytest.approx(expected, abs=1e-3)
    assert np.abs(frequencies[0, 0, 0, :3]).max() < 1e-3
    # Neutrons see 2.0 THz in argon at the zone boundary.
    assert 1.7 < frequencies.max() < 2.3


def test_a_vacancy_of_pairs_costs_its_bonds_and_a_fault_next_to_nothing() -> None:
    """Pairs that lose an atom lose the cohesive energy, and a little less once they relax."""
    check = _vacancy_check("Ar", argon(), lennard_jones())
    assert check.numbers["vacancy_eV"] == pytest.approx(-argon().energy, rel=0.05)
    assert check.verdict is Verdict.OK
    fault = _fault_check("Ar", argon(), lennard_jones())
    assert abs(fault.numbers["stacking_fault_mJ_per_m2"]) < 1.0 < fault.numbers["barrier_mJ_per_m2"]


@pytest.mark.parametrize(("element", "phase"), [("Cu", "fcc"), ("Si", "diamond"), ("Mo", "bcc")])
@pytest.mark.parametrize("indices", [(1, 0, 0), (1, 1, 0), (1, 1, 1)])
def test_slabs_are_thick_and_break_few_bonds(
    element: str, phase: str, indices: tuple[int, int, int]
) -> None:
    """Bonds between nearest atoms that the cut breaks, for each atom of the surface cell."""
    distance = 2.5
    system = slab(ideal_crystal(element, phase, distance, cubic=True), indices)
    assert 9.99 < np.ptp(system.positions[:, 2]) < 15.0
    atoms = Atoms(system.numbers, system.positions, cell=system.cell, pbc=system.pbc)
    vectors = atoms.repeat((3, 3, 1))
    near = vectors.get_all_distances(mic=True) < 1.1 * distance
    np.fill_diagonal(near, False)
    neighbors = {"fcc": 12, "diamond": 4, "bcc": 8}[phase]
    area = np.linalg.norm(np.cross(system.cell[0], system.cell[1]))
    broken = (neighbors - near.sum(1)).sum() / 9 / (2.0 * area) * distance**2
    expected = {
        ("fcc", (1, 0, 0)): 4.0,
        ("fcc", (1, 1, 0)): 6 / 2**0.5,
        ("fcc", (1, 1, 1)): 6 / 3**0.5,
        ("diamond", (1, 0, 0)): 3 / 4 * 2.0 / 2,
        ("diamond", (1, 1, 0)): 0.5303,
        ("diamond", (1, 1, 1)): 0.4330,
        ("bcc", (1, 0, 0)): 3.0,
        ("bcc", (1, 1, 0)): 1.5 * 2**0.5,
        ("bcc", (1, 1, 1)): 3.0 * 3**0.5 / 2,
    }
    assert broken == pytest.approx(expected[phase, indices], rel=0.01)


SCALES = np.arange(58, 126) / 100.0


def stiff() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """A sound curve: energies of Rose's form (eV) and pressures (GPa) that only rise."""
    away = (SCALES - 1.0) * 6.0
    energies = 3.5 - 3.5 * (1.0 + away + 0.05 * away**3) * np.exp(-away)
    return energies, -np.gradient(energies, SCALES) / SCALES**2


def judged(energies: NDArray[np.float64], pressures: NDArray[np.float64]) -> Verdict:
    """Verdict on a curve without a judge."""
    return judge_lattice(SCALES, energies, pressures)[0]


def test_a_sound_curve_passes_and_planted_faults_are_caught() -> None:
    """Holes, dips, pulls and softening where each counts."""
    energies, pressures = stiff()
    assert judged(energies, pressures) is Verdict.OK

    def gaussian(centre: float, height: float) -> NDArray[np.float64]:
        return np.asarray(height * np.exp(-0.5 * ((SCALES - centre) / 0.015) ** 2))

    assert judged(energies - gaussian(1.06, 0.5 + HOLE), pressures) is Verdict.WRONG
    assert judged(energies - gaussian(1.2, 0.5), pressures) is Verdict.WRONG
    assert judged(energies - gaussian(1.15, 0.32), pressures) is Verdict.LOOK
    assert judged(energies - gaussian(1.24, 0.5 * DIP[0]), pressures) is Verdict.OK
    assert judged(energies, np.where(SCALES < 0.7, -1.0, pressures)) is Verdict.WRONG
    # Below 0.84 the energy says nothing as long as it stays above rest.
    assert judged(energies + gaussian(0.7, 0.5), pressures) is Verdict.OK
    softer = np.where(SCALES < 0.7, 0.9, 1.0) * pressures[SCALES == 0.7]
    assert judged(energies, np.where(SCALES < 0.7, softer, pressures)) is Verdict.WRONG
    assert judged(np.where(SCALES < 0.6, np.nan, energies), pressures) is Verdict.WRONG


def test_of_phases_that_no_data_hold_only_holes_are_wrong() -> None:
    """A pressure that pulls makes a person look."""
    energies, pressures = stiff()
    pulling = np.where(SCALES < 0.7, -1.0, pressures)
    assert judge_lattice(SCALES, energies, pulling, strict=False)[0] is Verdict.LOOK
    sunk = np.where(SCALES < 0.7, -0.5, energies)
    assert judge_lattice(SCALES, sunk, pulling, strict=False)[0] is Verdict.WRONG


def test_a_judge_sees_walls_and_excuses_holes() -> None:
    """A wall is what the judge does not have, up to 3 eV of the judge."""
    energies, pressures = stiff()
    assert judge_lattice(SCALES, energies, pressures, energies)[0] is Verdict.OK
    high = energies + np.where((SCALES > 1.1) & (SCALES < 1.13), 0.8, 0.0)
    verdict, sentence = judge_lattice(SCALES, high, pressures, energies)
    assert verdict is Verdict.WRONG
    assert "above the judge" in sentence
    sunk = np.where(SCALES < 0.9, -0.5, energies)
    assert "below" in judge_lattice(SCALES, sunk, pressures, energies)[1]
    assert "below the crystal" not in judge_lattice(SCALES, sunk, pressures, sunk)[1]


@pytest.mark.parametrize(
    ("forces", "stresses", "verdict"),
    [(1.0, 1.0, Verdict.OK), (1.1, 1.0, Verdict.WRONG), (1.0, 1.1, Verdict.WRONG)],
)
def test_forces_and_stresses_that_are_no_derivatives_are_wrong(
    forces: float, stresses: float, verdict: Verdict
) -> None:
    """Of one tenth too much."""
    probe = CrystalProbe(Altered(forces, stresses), CPU, "double")
    assert _derivatives_check("Ar", argon(), probe).verdict is verdict


class Bumpy(LennardJones):
    """Pairs of a crystal as dense and strong as copper, with a Gaussian at a stretched distance.

    The Gaussian is so high for each of the twelve pairs of an atom that it has eV an atom.
    """

    def __init__(self, height: float, distance: float = 2.8, width: float = 0.05) -> None:
        super().__init__(0.41, 2.338, 6.5)
        self.height, self.distance, self.width = height, distance, width

    def forward(self, atoms, pairs):
        """Lennard-Jones and the Gaussian."""
        total = super().forward(atoms, pairs)
        for block in pairs[0].blocks:
            distance = torch.linalg.vector_norm(block.vectors, dim=-1)
            away = (distance - self.distance) / self.width
            bump = self.height / 12.0 * torch.exp(-0.5 * away**2)
            total = total + sum_slots(torch.where(block.valid, bump, 0.0)).double()
        return total


@pytest.mark.parametrize(
    ("height", "verdict"), [(0.0, Verdict.OK), (0.5, Verdict.WRONG), (-0.5, Verdict.WRONG)]
)
def test_an_added_gaussian_of_half_an_electronvolt_is_wrong(
    height: float, verdict: Verdict
) -> None:
    """At 1.1 times the distance at rest, on top of some 3 eV an atom."""
    probe = CrystalProbe(Bumpy(height), CPU, "double")
    crystal = ideal_crystal("Cu", "fcc", 2.553)
    scales, energies, pressures = lattice_curve(crystal, probe)
    zero = energies[scales == 1.0][0]
    assert judge_lattice(scales, energies - zero, pressures)[0] is verdict


@pytest.mark.parametrize(("height", "verdict"), [(0.0, Verdict.OK), (0.5, Verdict.WRONG)])
def test_a_dip_of_the_pressure_between_two_hundredths_is_wrong(
    height: float, verdict: Verdict
) -> None:
    """Around 0.785 of the distance at rest, which 0.78 and 0.79 do not feel."""
    probe = CrystalProbe(Bumpy(height, 0.7865 * 2.553, 0.001 * 2.553), CPU, "double")
    scales, energies, pressures = lattice_curve(ideal_crystal("Cu", "fcc", 2.553), probe)
    zero = energies[scales == 1.0][0]
    assert judge_lattice(scales, energies - zero, pressures)[0] is verdict


def test_random_weights_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """They hold no crystal of copper, or a wrong one."""
    monkeypatch.setattr(random_module, "CRYSTALS", (12, 3))
    settings = {"species": (29,), "channels": 8, "layers": 1, "cutoff": 4.0}
    potential = random_network(5.0, settings | {"radial_basis": {"number": 6}})
    evaluator = AutogradEvaluator(potential.double())
    checks = list(crystal_checks(evaluator, ["Cu"], device=CPU, precision="double"))
    assert Verdict.WRONG in {check.verdict for check in checks}


def test_copper_by_effective_medium_theory_is_sound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is wrong with it, and it has the elastic constants and defects of copper."""
    monkeypatch.setattr(crystal_module, "WAVE_VECTORS", 2)
    monkeypatch.setattr(random_module, "CRYSTALS", (4, 3))
    monkeypatch.setattr(random_module, "CLUSTERS", (1, 5))
    checks = list(crystal_checks(EffectiveMedium(), ["Cu"], device=CPU, precision="double"))
    assert not [check.name for check in checks if check.verdict is Verdict.WRONG]
    names = [check.name for check in checks]
    assert len(set(names)) == len(names) == 15
    numbers = {key: value for check in checks for key, value in check.numbers.items()}
    assert numbers["lattice_constant_A"] == pytest.approx(3.59, abs=0.01)
    assert numbers["bulk_modulus_GPa"] == pytest.approx(134.0, abs=3.0)
    assert all(check.as_json()["sentence"].endswith(".") for check in checks)


def test_the_shipped_silicon_stiffens_when_squeezed() -> None:
    """Vinet's equation of state, which it was trained on where its teachers fall."""
    probe = CrystalProbe(AutogradEvaluator(load("silicon-pbe")), CPU, "mixed")
    crystal = ideal_crystal("Si", "diamond", 5.469 * 3**0.5 / 4.0)
    rest = probe.energies([crystal])[0]
    scales, energies, pressures = lattice_curve(crystal, probe)
    whole, squeezed = slice(None), scales < 1.05
    for part, verdict in ((whole, {Verdict.OK, Verdict.LOOK}), (squeezed, {Verdict.OK})):
        judged = judge_lattice(scales[part], energies[part] - rest, pressures[part])
        assert judged[0] in verdict, judged[1]
    assert pressures[0] > 5.0 * pressures[scales == 0.84][0]


def test_a_potential_without_a_crystal_is_wrong() -> None:
    """Atoms that only repel each other have no lattice constant."""

    class Repulsion(LennardJones):
        def forward(self, atoms, pairs):
            return -super().forward(atoms, pairs)

    checks = list(crystal_checks(Repulsion(EPSILON, SIGMA, REACH), ["Ar"], device=CPU))
    assert [check.verdict for check in checks] == [Verdict.WRONG]
    assert "least" in checks[0].sentence


def test_a_compound_is_relaxed_squeezed_and_strained() -> None:
    """An ordered crystal of two elements that do not differ is as sound as one of argon."""
    crystal = ideal_crystal("Ar", "fcc", 3.9, cubic=True)
    numbers = np.array([18, 18, 18, 36])
    frames = [LabelledFrame(numbers, crystal.positions, crystal.cell, crystal.pbc, energy=-0.1)]
    frames.append(LabelledFrame(numbers, 2 * crystal.positions, 2 * crystal.cell, crystal.pbc))
    compounds = crystal_compounds(frames)
    assert [compound.cell[0, 0] for compound in compounds] == [crystal.cell[0, 0]]
    potential = LennardJones(EPSILON, SIGMA, REACH)
    options = {"device": CPU, "precision": "double"}
    checks = list(crystal_checks(potential, [], compounds=compounds, **options))
    assert [check.verdict for check in checks] == [Verdict.OK] * 3
    assert checks[0].name == "lattice of Ar3Kr in a crystal of the data"
    bulk_modulus = elastic_tensor(argon().crystal, lennard_jones())[:3, :3].mean()
    assert checks[2].numbers["bulk_modulus_GPa"] == pytest.approx(bulk_modulus, rel=0.01)


def test_elements_with_crystals_of_their_own_are_probed() -> None:
    """A molecule or a compound gives none."""
    copper = ideal_crystal("Cu", "fcc", 2.5)
    salt = System([11, 17], [[0, 0, 0], [2.8, 0, 0]], cell=5.6 * np.eye(3), pbc=np.full(3, True))
    molecule = System([8, 8], [[0, 0, 0], [1.2, 0, 0]])
    silicon = replace(ideal_crystal("Si", "diamond", 2.35))
    nitrogen = System([7, 7], [[0, 0, 0], [1.1, 0, 0]], cell=3.0 * np.eye(3), pbc=np.full(3, True))
    assert crystal_elements([copper, salt, molecule, silicon, nitrogen]) == ["Si", "Cu"]
