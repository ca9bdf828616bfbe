"""The calculator under ASE's own tools: units, signs, changes of the atoms, dynamics, bands."""

import copy
import logging
import math
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
import pytest
import torch
from ase import Atoms, units
from ase.build import bulk, fcc111, molecule
from ase.calculators.calculator import PropertyNotImplementedError
from ase.calculators.fd import calculate_numerical_forces, calculate_numerical_stress
from ase.filters import FrechetCellFilter, UnitCellFilter
from ase.io.trajectory import Trajectory
from ase.md.verlet import VelocityVerlet
from ase.mep import NEB
from ase.optimize import BFGS, FIRE
from ase.phonons import Phonons
from toys import LennardJones

import mdgraph.drivers.ase.calculator
import mdgraph.graphs.capture
from mdgraph.drivers.ase import MDGraphCalculator
from mdgraph.engine import Calculation
from mdgraph.errors import InputError, MDGraphError, StressUndefinedError, UnknownSpeciesError
from mdgraph.io.structures import from_ase
from mdgraph.models import (
    CoulombConfig,
    RadialBasisConfig,
    ReadoutConfig,
    RepulsionConfig,
    TensorNetConfig,
    TensorNetPotential,
)

CUTOFF = 3.0


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """For systems this small, threads of torch only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def tensornet(**changes: Any) -> TensorNetPotential:
    """Random weights, steep enough for forces of some tenths of an eV/A, and hard cores."""
    torch.manual_seed(0)
    settings: dict[str, Any] = {
        "species": (1, 6, 8, 14, 29),
        "channels": 8,
        "layers": 1,
        "cutoff": CUTOFF,
        "radial_basis": RadialBasisConfig(number=6),
        "readout": ReadoutConfig(hidden=(8,)),
        "repulsion": (RepulsionConfig(kind="matgl", cutoff=CUTOFF),),
    }
    potential = TensorNetPotential(TensorNetConfig(**(settings | changes)))
    potential.scale.fill_(20.0)
    return potential


def charged(cutoff: float | None = None) -> TensorNetPotential:
    """A random TensorNet2 with Coulomb energy, over all pairs unless a cutoff is given."""
    coulomb = CoulombConfig(cutoff=cutoff)
    return tensornet(architecture="tensornet2", charge_channels=2, coulomb=coulomb)


def calculator(potential: Any = None, **options: Any) -> MDGraphCalculator:
    potential = tensornet() if potential is None else potential
    return MDGraphCalculator(potential, **({"device": "cpu", "precision": "double"} | options))


def ethanol() -> Atoms:
    return molecule("CH3CH2OH")


def silicon() -> Atoms:
    """A strained, rattled primitive cell, smaller than the cutoff."""
    atoms = bulk("Si", a=5.0)
    atoms.set_cell(atoms.cell.array @ [[1.02, 0.03, 0.0], [0.0, 0.99, 0.05], [0.0, 0.0, 1.0]])
    atoms.positions[1] += [0.9, 1.4, 1.1]
    return atoms


def slab() -> Atoms:
    atoms = fcc111("Cu", (2, 1, 2), a=3.6, vacuum=4.0)
    atoms.rattle(0.1, seed=1)
    return atoms


def left_handed() -> Atoms:
    atoms = silicon()
    atoms.set_cell(atoms.cell.array[[1, 0, 2]])
    return atoms


def boxed_molecule() -> Atoms:
    """Not periodic, but its cell spans a volume."""
    atoms = molecule("H2O", cell=np.diag([5.0, 6.0, 7.0]))
    atoms.rattle(0.1, seed=2)
    return atoms


# Numbers


@pytest.mark.parametrize("make", [ethanol, silicon, slab, left_handed, boxed_molecule])
def test_forces_and_stress_are_derivatives_of_the_energy(make: Callable[[], Atoms]) -> None:
    atoms = make()
    atoms.calc = calculator()
    forces = atoms.get_forces()
    assert np.abs(forces).max() > 5e-3
    numerical = calculate_numerical_forces(atoms, eps=1e-4, iatoms=[0, 1])
    np.testing.assert_allclose(forces[:2], numerical, atol=1e-6)
    if make is ethanol:
        return
    stress = atoms.get_stress()
    assert np.abs(stress).max() > 1e-4
    np.testing.assert_allclose(stress, calculate_numerical_stress(atoms, eps=1e-4), atol=1e-7)


def test_a_stretched_crystal_is_under_tension() -> None:
    crystal = bulk("Ar", a=5.0)
    crystal.calc = calculator(LennardJones(0.0104, 3.4, 6.0))
    assert crystal.get_stress()[:3].max() < -1e-3
    crystal.set_cell(crystal.cell * 1.16, scale_atoms=True)
    assert crystal.get_stress()[:3].min() > 1e-4


def test_energies_add_up_and_arrays_are_copies() -> None:
    atoms = silicon()
    atoms.calc = calculator()
    energy = atoms.get_potential_energy()
    assert type(energy) is float
    assert atoms.get_potential_energy(force_consistent=True) == energy
    assert atoms.get_potential_energies().sum() == pytest.approx(energy, abs=1e-12)
    before = {name: atoms.calc.get_property(name) for name in ("energies", "forces", "stress")}
    raw = {name: atoms.calc.results[name] for name in before}
    kept = {name: array.copy() for name, array in raw.items()}
    atoms.rattle(0.1, seed=3)
    atoms.get_forces()
    for name, array in before.items():
        assert array.dtype == np.float64
        np.testing.assert_array_equal(raw[name], kept[name])
        assert not np.array_equal(array, atoms.calc.results[name])


@pytest.mark.parametrize(("precision", "tolerance"), [("mixed", 2e-6), ("single", 1e-5)])
def test_precisions_agree(precision: str, tolerance: float) -> None:
    atoms = ethanol()
    exact = calculator().get_potential_energy(atoms)
    rounded = calculator(precision=precision).get_potential_energy(atoms)
    assert 0.0 < abs(rounded - exact) / len(atoms) < 20.0 * tolerance


@pytest.mark.parametrize(
    ("checkpoint", "case", "options"),
    [
        ("torchmdnet/aceff-2.0.ckpt", "aceff-2.0-allpairs__toluene", {"coulomb_cutoff": None}),
        ("torchmdnet/aceff-2.0.ckpt", "aceff-2.0-rf12__toluene", {"coulomb_cutoff": 12.0}),
        ("torchmdnet/o3-2l.ckpt", "o3-2l__toluene", {}),
        ("matgl/mgl-gauss-o3", "mgl-gauss-o3__si2_primitive", {}),
    ],
)
def test_published_numbers(
    reference_folder: Path, checkpoint: str, case: str, options: dict[str, Any]
) -> None:
    path = reference_folder / checkpoint
    expected = np.load(path.parent / f"{case}.npz")
    atoms = Atoms(
        expected["numbers"], expected["positions"], cell=expected["cell"], pbc=expected["pbc"]
    )
    if "charge" in expected:
        atoms.info["charge"] = expected["charge"]
    atoms.calc = calculator(path, **options)
    assert abs(atoms.get_potential_energy() - expected["energy"]) < 1e-7 * len(atoms)
    scale = np.sqrt(np.square(expected["forces"]).sum(1).mean())
    np.testing.assert_allclose(atoms.get_forces(), expected["forces"], atol=1e-6 * scale)
    if atoms.pbc.all():
        stress = atoms.get_stress(voigt=False)
        np.testing.assert_allclose(stress, expected["stress"], atol=1e-7)


# Changes of the atoms


class Counted(Calculation):
    made = 0

    def __init__(self, *arguments: Any, **options: Any) -> None:
        Counted.made += 1
        super().__init__(*arguments, **options)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> type[Counted]:
    Counted.made = 0
    monkeypatch.setattr(mdgraph.drivers.ase.calculator, "Calculation", Counted)
    return Counted


def test_buffers_are_made_once_while_atoms_and_cell_move(counted: type[Counted]) -> None:
    atoms = silicon()
    atoms.calc = calculator()
    for step in range(4):
        atoms.rattle(0.2, seed=step)
        atoms.set_cell(atoms.cell * 0.95)
        assert atoms.get_potential_energy() == pytest.approx(
            calculator().get_potential_energy(atoms), abs=1e-10
        )
    assert counted.made == 5  # four of them in the fresh calculators


@pytest.mark.parametrize(("array", "words"), [("positions", "atom 1"), ("cell", "row 1")])
def test_numbers_that_stop_being_finite_are_refused(array: str, words: str) -> None:
    atoms = silicon()
    atoms.calc = calculator()
    energy = atoms.get_potential_energy()
    numbers = getattr(atoms, array)
    kept = numbers[1, 2]
    numbers[1, 2] = np.nan
    for look in (atoms.get_forces, atoms.get_stress):
        with pytest.raises(InputError, match=f"{array} of {words} are not finite"):
            look()
    numbers[1, 2] = kept
    assert atoms.get_potential_energy() == energy


def test_a_cell_that_shrinks_far_finds_all_its_neighbors(counted: type[Counted]) -> None:
    atoms = bulk("Ar", a=8.0, cubic=True)
    atoms.calc = calculator(LennardJones(0.0104, 3.4, 6.0))
    atoms.get_potential_energy()
    atoms.set_cell(atoms.cell * 0.55, scale_atoms=True)
    energy = atoms.get_potential_energy()
    assert counted.made == 1
    fresh = calculator(LennardJones(0.0104, 3.4, 6.0)).get_potential_energy(atoms)
    assert energy == pytest.approx(fresh, rel=1e-12)


def turn_pbc_off(atoms: Atoms) -> None:
    atoms.pbc = [True, False, True]


def strain(atoms: Atoms) -> None:
    atoms.set_cell(atoms.cell * 1.05)


def exchange_species(atoms: Atoms) -> None:
    atoms.numbers[1] = 6


def add_atom(atoms: Atoms) -> None:
    atoms.extend(Atoms("H", [atoms.positions[0] + [1.6, 0.3, 0.2]]))


def remove_atom(atoms: Atoms) -> None:
    del atoms[1]


def set_charge(atoms: Atoms) -> None:
    atoms.info["charge"] = 1


@pytest.mark.parametrize(
    "change", [turn_pbc_off, strain, exchange_species, add_atom, remove_atom, set_charge]
)
def test_every_change_is_seen(change: Callable[[Atoms], None]) -> None:
    potential = charged(cutoff=4.0)
    atoms = silicon()
    atoms.calc = calculator(potential)
    before = atoms.get_potential_energy()
    change(atoms)
    assert atoms.calc.calculation_required(atoms, ["energy"])
    after = atoms.get_potential_energy()
    assert after == pytest.approx(calculator(potential).get_potential_energy(atoms), abs=1e-10)
    assert abs(after - before) > 1e-5
    assert atoms.get_forces().shape == (len(atoms), 3)
    assert not atoms.calc.calculation_required(atoms, ["energy", "forces", "stress"])


# Charge, spin, Coulomb energy


def test_charge_of_argument_wins_over_info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="mdgraph.drivers.ase")
    atoms, potential = ethanol(), charged()
    neutral = calculator(potential)
    energy = neutral.get_potential_energy(atoms)
    atoms.rattle(0.1, seed=1)
    neutral.get_potential_energy(atoms)
    assert caplog.text.count("No charge is given") == 1
    atoms = ethanol()
    assert calculator(potential, charge=0).get_potential_energy(atoms) == energy
    cation = calculator(potential, charge=1).get_potential_energy(atoms)
    assert abs(cation - energy) > 1e-4
    atoms.info["charge"] = 1
    assert neutral.get_potential_energy(atoms) == cation
    assert calculator(potential, charge=0).get_potential_energy(atoms) == energy
    assert caplog.text.count("No charge is given") == 1
    neutral.get_potential_energy(molecule("H2O"))
    calculator(tensornet()).get_potential_energy(molecule("H2O"))
    assert caplog.text.count("No charge is given") == 1


def test_spin_in_info_is_seen_and_refused() -> None:
    atoms = ethanol()
    atoms.calc = calculator()
    atoms.get_potential_energy()
    atoms.info["spin_multiplicity"] = 3
    with pytest.raises(InputError, match="singlet"):
        atoms.get_potential_energy()


def test_coulomb_cutoff_changes_the_range_and_nothing_else() -> None:
    potential, atoms = charged(), ethanol()
    weights = copy.deepcopy(potential.state_dict())
    energies = [
        calculator(potential, coulomb_cutoff=cutoff).get_potential_energy(atoms)
        for cutoff in ("from checkpoint", None, 12.0, 6.0)
    ]
    assert energies[0] == energies[1]
    assert len(set(energies[1:])) == 3
    assert potential.config.coulomb == CoulombConfig(cutoff=None)
    for name, tensor in potential.state_dict().items():
        assert torch.equal(tensor, weights[name])
    # The reaction field tends to the plain sum as its sphere grows.
    wide = calculator(potential, coulomb_cutoff=1e4).get_potential_energy(atoms)
    assert abs(wide - energies[1]) < 1e-2 * abs(energies[2] - energies[1])


# Bad input


def water_with_nan() -> Atoms:
    atoms = molecule("H2O")
    atoms.positions[1, 2] = math.nan
    return atoms


@pytest.mark.parametrize(
    ("atoms", "message"),
    [
        (water_with_nan(), "positions of atom 1 are not finite"),
        (Atoms(), "no atoms"),
        (molecule("SH2"), "does not know S"),
        (Atoms("H2", [[0, 0, 0], [0, 0, 1e-5]]), "Atoms 0 and 1 are at the same place"),
        (Atoms("H2", [[0, 0, 0], [0, 0, 5]], cell=[5, 5, 5], pbc=True), "same place"),
        (Atoms("H", cell=[[1, 0, 0], [1, 0, 0], [0, 0, 1]], pbc=True), "singular"),
        (Atoms("H", info={"charge": 1}), "knows no charges"),
        (Atoms("H", info={"charge": "plus"}), "no number"),
    ],
)
def test_bad_atoms_end_in_one_sentence_and_leave_the_calculator_usable(
    atoms: Atoms, message: str
) -> None:
    good = molecule("H2O")
    one = calculator()
    energy = one.get_potential_energy(good)
    for _ in range(2):
        with pytest.raises(InputError, match=message) as caught:
            one.get_potential_energy(atoms)
        assert "\n" not in str(caught.value)
    assert one.get_potential_energy(good) == energy


def test_no_result_outlives_a_failure() -> None:
    one = calculator()
    one.calculate(molecule("H2O"))
    with pytest.raises(UnknownSpeciesError):
        one.calculate(molecule("SH2"))
    assert one.results == {}


def test_atoms_that_become_bad_are_named() -> None:
    atoms = molecule("H2O")
    atoms.calc = calculator()
    atoms.get_forces()
    atoms.positions[2] = atoms.positions[0]
    with pytest.raises(InputError, match="Atoms 0 and 2 are at the same place"):
        atoms.get_forces()
    atoms.positions[2] = math.inf
    with pytest.raises(InputError, match="atom 2 are not finite"):
        atoms.get_forces()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"potential": "no/such/potential.ckpt"}, "potential.ckpt"),
        ({"device": "tpu"}, "device 'tpu'"),
        ({"precision": "half"}, "Unknown precision 'half'"),
        ({"charge": 1}, "knows no charges"),
        ({"potential": charged(), "charge": math.nan}, "finite"),
        ({"coulomb_cutoff": 12.0}, "no Coulomb energy"),
        ({"coulomb_cutoff": None}, "no Coulomb energy"),
        ({"potential": LennardJones(1.0, 3.0, 6.0), "coulomb_cutoff": 9.0}, "LennardJones"),
        ({"potential": charged(), "coulomb_cutoff": -1.0}, "positive number of A"),
        ({"potential": charged(), "coulomb_cutoff": math.inf}, "positive number of A"),
        ({"potential": charged(), "coulomb_cutoff": "all"}, "Unknown coulomb_cutoff 'all'"),
    ],
)
def test_bad_options_are_refused_at_once(options: dict[str, Any], message: str) -> None:
    with pytest.raises(MDGraphError, match=message) as caught:
        calculator(**options)
    assert "\n" not in str(caught.value)


def test_all_pairs_are_refused_in_a_periodic_system() -> None:
    atoms = molecule("H2O", cell=[6, 6, 6], pbc=True)
    with pytest.raises(InputError, match=r"coulomb_cutoff=12\.0"):
        calculator(charged()).get_potential_energy(atoms)
    reaction_field = calculator(charged(), coulomb_cutoff=5.0)
    assert math.isfinite(reaction_field.get_potential_energy(atoms))


@pytest.mark.parametrize("cell", [None, [5, 5, 0], [[3, 0, 0], [0, 3, 0], [1, 1, 0]]])
def test_stress_without_a_volume_is_refused_and_the_rest_works(
    cell: Any, counted: type[Counted]
) -> None:
    atoms = molecule("H2O", cell=cell)
    atoms.calc = calculator()
    for _ in range(2):
        with pytest.raises(StressUndefinedError, match="Stress is undefined"):
            atoms.get_stress()
    assert counted.made == 0
    forces = atoms.get_forces()
    with pytest.raises(PropertyNotImplementedError):
        atoms.get_stress()
    np.testing.assert_array_equal(atoms.calc.results["forces"], forces)
    assert atoms.calc.get_property("stress", atoms, allow_calculation=False) is None


def test_options_cannot_change_silently() -> None:
    one = calculator(charged())
    with pytest.raises(InputError, match="charge cannot be set"):
        one.set(charge=1)
    with pytest.raises(InputError, match="no atoms yet"):
        one.get_potential_energy()


# ASE's tools


@pytest.mark.parametrize("optimizer", [BFGS, FIRE])
def test_optimizers_reach_a_minimum(optimizer: Any) -> None:
    atoms = molecule("H2O")
    atoms.calc = calculator()
    before = atoms.get_potential_energy()
    assert optimizer(atoms, logfile=None).run(fmax=0.01, steps=200)
    assert atoms.get_potential_energy() < before - 0.01


def lattice_vectors(edge: float, reach: int = 3) -> np.ndarray:
    """All vectors between atoms of a face-centred cubic crystal within some cells."""
    basis = 0.5 * edge * np.array([[0, 1, 1], [1, 0, 1], [1, 1, 0]])
    steps = np.stack(np.meshgrid(*[np.arange(-reach, reach + 1)] * 3), -1).reshape(-1, 3)
    return steps[np.any(steps != 0, axis=1)] @ basis


def lennard_jones(distance: np.ndarray, order: int) -> np.ndarray:
    """Derivative of this order of the pair energy whose force is shifted to zero at 6 A."""
    a, b = 4.0 * 0.0104 * 3.4**12, 4.0 * 0.0104 * 3.4**6
    slope = -12.0 * a / 6.0**13 + 6.0 * b / 6.0**7
    shift = a / 6.0**12 - b / 6.0**6
    value = (
        a / distance**12 - b / distance**6 - shift - slope * (distance - 6.0),
        -12.0 * a / distance**13 + 6.0 * b / distance**7 - slope,
        156.0 * a / distance**14 - 42.0 * b / distance**8,
    )[order]
    return np.where(distance < 6.0, value, 0.0)


def equilibrium_edge() -> float:
    """Where the lattice sum's derivative by the edge vanishes, by bisection."""
    low, high = 5.0, 6.0
    for _ in range(60):
        edge = 0.5 * (low + high)
        distance = np.linalg.norm(lattice_vectors(edge), axis=1)
        if (lennard_jones(distance, 1) * distance).sum() < 0.0:
            low = edge
        else:
            high = edge
    return edge


def sheared_argon(edge: float) -> Atoms:
    crystal = bulk("Ar", a=edge)
    crystal.set_cell(crystal.cell.array @ [[1.0, 0.03, 0.0], [0.0, 1.02, 0.0], [0.0, 0.0, 0.98]])
    crystal.calc = calculator(LennardJones(0.0104, 3.4, 6.0))
    return crystal


def test_cell_filter_finds_the_lattice_constant() -> None:
    crystal = sheared_argon(5.5)
    assert BFGS(UnitCellFilter(crystal), logfile=None).run(fmax=1e-4, steps=60)
    np.testing.assert_allclose(crystal.get_stress(), 0.0, atol=1e-5)
    assert crystal.get_volume() == pytest.approx(equilibrium_edge() ** 3 / 4.0, rel=1e-3)
    np.testing.assert_allclose(crystal.cell.angles(), 60.0, atol=0.1)


def test_frechet_filter_goes_downhill_on_cell_and_positions() -> None:
    # Its matrix logarithms take longer than the energies, so a few steps must do.
    crystal = sheared_argon(5.5)
    start, volume = crystal.get_potential_energy(), crystal.get_volume()
    BFGS(FrechetCellFilter(crystal), logfile=None).run(fmax=1e-4, steps=3)
    assert crystal.get_potential_energy() < start - 1e-4
    assert crystal.get_volume() < volume


def test_phonons_agree_with_the_dynamical_matrix(tmp_path: Path) -> None:
    edge = 5.3
    crystal = bulk("Ar", a=edge)
    phonons = Phonons(
        crystal,
        calculator(LennardJones(0.0104, 3.4, 6.0)),
        supercell=(2, 2, 2),
        delta=1e-3,
        name=str(tmp_path / "phonons"),
    )
    phonons.run()
    phonons.read(acoustic=True)
    zone_boundary = np.array([0.5, 0.5, 0.0])
    found = phonons.band_structure([[0.0, 0.0, 0.0], zone_boundary])
    np.testing.assert_allclose(found[0], 0.0, atol=1e-5)

    vectors = lattice_vectors(edge)
    distance = np.linalg.norm(vectors, axis=1)
    along = vectors[:, :, None] * vectors[:, None, :] / distance[:, None, None] ** 2
    bent = lennard_jones(distance, 1) / distance
    stiff = lennard_jones(distance, 2)
    constants = stiff[:, None, None] * along + bent[:, None, None] * (np.eye(3) - along)
    wave = zone_boundary @ crystal.cell.reciprocal() * 2.0 * np.pi
    matrix = ((1.0 - np.cos(vectors @ wave))[:, None, None] * constants).sum(0)
    squared = np.linalg.eigvalsh(matrix) / crystal.get_masses()[0]
    expected = np.sqrt(squared) * units._hbar * 1e10 / np.sqrt(units._e * units._amu)
    np.testing.assert_allclose(np.sort(found[1]), expected, rtol=1e-3)


def test_dynamics_conserve_energy_better_with_shorter_steps() -> None:
    errors = []
    start = ethanol()
    start.set_momenta(np.random.default_rng(1).normal(size=(len(start), 3), scale=0.3))
    for timestep, steps in ((0.5, 40), (0.25, 80)):
        atoms = start.copy()
        atoms.calc = calculator()
        totals: list[float] = []
        dynamics = VelocityVerlet(atoms, timestep=timestep * units.fs)
        dynamics.attach(lambda a=atoms, t=totals: t.append(a.get_total_energy()))
        dynamics.run(steps)
        errors.append(np.ptp(totals))
    assert errors[0] < 0.02
    assert errors[0] / errors[1] == pytest.approx(4.0, rel=0.2)


def band(atoms: Atoms) -> list[Atoms]:
    """Five images in which a hydrogen turns about."""
    images = [atoms.copy() for _ in range(5)]
    images[-1].positions[-1] += [0.3, 0.5, -0.4]
    return images


def test_bands_with_own_and_shared_calculators_and_in_threads_agree() -> None:
    potential = tensornet()
    forces = []
    for own, options in (
        (True, {}),
        (False, {"allow_shared_calculator": True}),
        (True, {"parallel": True}),
    ):
        images = band(ethanol())
        shared = calculator(potential)
        for image in images:
            image.calc = calculator(potential) if own else shared
        elastic = NEB(images, k=0.1, method="improvedtangent", **options)
        elastic.interpolate()
        forces.append(elastic.get_forces())
        single = calculator(potential).get_potential_energy(images[2])
        assert elastic.energies[2] == pytest.approx(single, abs=1e-10)
    np.testing.assert_allclose(forces[1], forces[0], atol=1e-9)
    np.testing.assert_allclose(forces[2], forces[0], atol=1e-9)
    assert np.abs(forces[0]).max() > 0.05


def test_results_go_through_trajectories_and_files(tmp_path: Path) -> None:
    atoms = silicon()
    atoms.calc = calculator()
    energy = atoms.get_potential_energy()
    with Trajectory(tmp_path / "one.traj", "w", atoms) as trajectory:
        trajectory.write()
    ase.io.write(tmp_path / "one.extxyz", atoms)
    for name in ("one.traj", "one.extxyz"):
        read = ase.io.read(tmp_path / name)
        assert read.get_potential_energy() == pytest.approx(energy, abs=1e-7)
        np.testing.assert_allclose(read.get_stress(), atoms.get_stress(), atol=1e-7)


@pytest.mark.parametrize(
    "duplicate", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))]
)
def test_copies_of_a_used_calculator_are_independent(
    duplicate: Callable[[MDGraphCalculator], MDGraphCalculator], counted: type[Counted]
) -> None:
    first, second = ethanol(), ethanol()
    first.calc = calculator()
    energy = first.get_potential_energy()
    second.calc = duplicate(first.calc)
    second.rattle(0.1, seed=2)
    second.get_potential_energy()
    assert counted.made == 2
    alone = calculator().get_potential_energy(second)
    assert second.get_potential_energy() == pytest.approx(alone, abs=1e-10)
    assert first.get_potential_energy() == energy
    first.rattle(0.05, seed=1)
    alone = calculator().get_potential_energy(first)
    assert first.get_potential_energy() == pytest.approx(alone, abs=1e-10)


# The process around it


def process_settings() -> tuple[Any, ...]:
    return (
        torch.get_default_dtype(),
        torch.get_num_threads(),
        torch.is_grad_enabled(),
        torch.are_deterministic_algorithms_enabled(),
        torch.backends.cuda.matmul.fp32_precision,
        torch.backends.mkldnn.matmul.fp32_precision,
        torch.random.initial_seed(),
        torch.random.get_rng_state().sum().item(),
    )


class Occupied(LennardJones):
    """Notes how many threads evaluate at once."""

    def __init__(self) -> None:
        super().__init__(0.0104, 3.4, 6.0)
        self.inside = 0
        self.most = 0

    def forward(self, atoms: Any, pairs: Any) -> torch.Tensor:
        self.inside += 1
        self.most = max(self.most, self.inside)
        time.sleep(0.01)
        energies = super().forward(atoms, pairs)
        self.inside -= 1
        return energies


def test_threads_do_not_disturb_each_other_nor_the_process() -> None:
    potential = Occupied()
    starts = [bulk("Ar", a=edge) for edge in (5.0, 5.2, 5.4, 5.6)]
    expected = [calculator(potential).get_potential_energy(atoms) for atoms in starts]
    calculators = [calculator(potential) for _ in starts]
    found: dict[int, list[float]] = {number: [] for number in range(len(starts))}

    def work(number: int) -> None:
        for _ in range(4):
            calculators[number].reset()
            found[number].append(calculators[number].get_potential_energy(starts[number]))

    before = process_settings()
    threads = [threading.Thread(target=work, args=(number,)) for number in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert potential.most == 1
    assert process_settings() == before
    for number, energy in enumerate(expected):
        assert found[number] == [energy] * 4


# Graphs


class ReplayedOnHost:
    """Stands for a captured graph where there is no CUDA."""

    captures = 0
    replays = 0

    def __init__(self, function: Callable[[], None], device: torch.device) -> None:
        ReplayedOnHost.captures += 1
        self._function = function

    def replay(self) -> None:
        ReplayedOnHost.replays += 1
        self._function()


def test_graph_is_captured_at_the_second_update_and_again_after_growth(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mdgraph.graphs.capture, "CapturedGraph", ReplayedOnHost)
    monkeypatch.setattr(ReplayedOnHost, "captures", 0)
    monkeypatch.setattr(ReplayedOnHost, "replays", 0)
    sparse = from_ase(bulk("Ar", a=8.0, cubic=True))
    options: dict[str, Any] = {"device": "cpu", "precision": "double"}
    graphed = Calculation([sparse], LennardJones(0.0104, 3.4, 6.0), **options)
    seen = []
    for factor in (1.0, 1.0, 1.0, 0.55, 0.55, 0.55):
        graphed.state.positions.copy_(torch.tensor(sparse.positions * factor))
        graphed.state.cell.copy_(torch.tensor(sparse.cell * factor)[None])
        graphed.compute(graphed=True)
        seen.append((ReplayedOnHost.captures, ReplayedOnHost.replays))
        dense = sparse.replace(positions=sparse.positions * factor, cell=sparse.cell * factor)
        plain = Calculation([dense], LennardJones(0.0104, 3.4, 6.0), **options)
        plain.compute()
        torch.testing.assert_close(graphed.state.energy, plain.state.energy, rtol=1e-12, atol=0)
    # The fourth overflows in its replay, is grown and done eagerly.
    assert seen == [(0, 0), (1, 1), (1, 2), (1, 3), (2, 4), (2, 5)]


def test_where_no_graph_can_be_captured_updates_run_eagerly(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(function: Callable[[], None], device: torch.device) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(mdgraph.graphs.capture, "CapturedGraph", refuse)
    calculation = Calculation([from_ase(ethanol())], tensornet(), device="cpu")
    calculation.compute()
    energy = calculation.state.energy.clone()
    for _ in range(3):
        calculation.state.energy.zero_()
        calculation.compute(graphed=True)
        assert torch.equal(calculation.state.energy, energy)
    assert caplog.text.count("runs eagerly") == 1


@pytest.mark.gpu
def test_replayed_updates_agree_with_the_host() -> None:
    atoms = bulk("Si", a=5.0, cubic=True) * (2, 2, 2)
    there, here = calculator(device="cuda"), calculator()
    for step in range(6):
        atoms.rattle(0.1, seed=step)
        if step == 4:
            atoms.set_cell(atoms.cell * 0.8, scale_atoms=True)
        for name in ("energy", "forces", "stress"):
            found, expected = (one.get_property(name, atoms) for one in (there, here))
            np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)
    # The captured graph stays behind.
    duplicate = copy.deepcopy(there)
    atoms.rattle(0.1, seed=6)
    energy = duplicate.get_potential_energy(atoms)
    assert energy == pytest.approx(there.get_potential_energy(atoms), abs=1e-9)
