"""The calculator of ASE: units, signs, precision, and changes of the atoms that it must see."""

import copy
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk, fcc111, molecule
from ase.calculators.fd import calculate_numerical_forces, calculate_numerical_stress
from ase_atoms import CountedCalculation, calculator, charged, ethanol, silicon, tensornet
from toys import LennardJones

from mdgraph.errors import InputError
from mdgraph.models import CoulombConfig

pytestmark = pytest.mark.usefixtures("one_thread")


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
def test_energies_and_forces_match_published_numbers(
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


def test_buffers_are_made_once_while_atoms_and_cell_move(counted: type[CountedCalculation]) -> None:
    atoms = silicon()
    atoms.calc = calculator()
    for step in range(4):
        atoms.rattle(0.2, seed=step)
        atoms.set_cell(atoms.cell * 0.95)
        assert atoms.get_potential_energy() == pytest.approx(
            calculator().get_potential_energy(atoms), abs=1e-10
        )
    assert counted.made == 5  # four of them in the fresh calculators


@pytest.mark.parametrize(
    ("array", "words"), [("positions", "The positions of atom 1 are"), ("cell", "Cell vector 1 is")]
)
def test_numbers_that_stop_being_finite_are_refused(array: str, words: str) -> None:
    atoms = silicon()
    atoms.calc = calculator()
    energy = atoms.get_potential_energy()
    numbers = getattr(atoms, array)
    kept = numbers[1, 2]
    numbers[1, 2] = np.nan
    for look in (atoms.get_forces, atoms.get_stress):
        with pytest.raises(InputError, match=f"{words} not finite"):
            look()
    numbers[1, 2] = kept
    assert atoms.get_potential_energy() == energy


def test_a_cell_that_shrinks_far_finds_all_its_neighbors(counted: type[CountedCalculation]) -> None:
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
def test_every_change_of_the_atoms_is_recomputed(change: Callable[[Atoms], None]) -> None:
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


def test_a_spin_in_info_is_refused() -> None:
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
