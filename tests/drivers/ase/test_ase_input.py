"""What the calculator of ASE refuses, and how it says so."""

import math
from typing import Any

import numpy as np
import pytest
from ase import Atoms
from ase.build import molecule
from ase.calculators.calculator import PropertyNotImplementedError
from ase_atoms import CountedCalculation, calculator, charged
from toys import LennardJones

from mdgraph.errors import InputError, MDGraphError, StressUndefinedError, UnknownSpeciesError

pytestmark = pytest.mark.usefixtures("one_thread")


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
        (Atoms("H", info={"charge": 1}), "takes no total charge"),
        (Atoms("H", info={"charge": "plus"}), "not a number"),
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
        ({"charge": 1}, "takes no total charge"),
        ({"potential": charged(), "charge": math.nan}, "charge is nan; it must be a number"),
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
    cell: Any, counted: type[CountedCalculation]
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
