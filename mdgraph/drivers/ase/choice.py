"""Which calculator, and so which potential, moves some atoms."""

from typing import Any

from ase import Atoms

from mdgraph.drivers.ase.calculator import MDGraphCalculator
from mdgraph.errors import InputError


def calculator_of(atoms: Atoms) -> MDGraphCalculator:
    """The calculator of the atoms; raises InputError where it is not one of mdgraph's."""
    if not isinstance(atoms.calc, MDGraphCalculator):
        have = "no calculator" if atoms.calc is None else f"{type(atoms.calc).__name__}"
        raise InputError(
            f"The atoms have {have}, and these dynamics run on mdgraph's potentials alone; set "
            "atoms.calc to an MDGraphCalculator, or give potential=."
        )
    return atoms.calc


def give_potential(atoms: Atoms, potential: Any) -> None:
    """Sets a calculator by what `potential=` names; raises InputError where one is there."""
    if potential is None:
        return
    if atoms.calc is not None:
        raise InputError(
            f"The atoms have {type(atoms.calc).__name__} as their calculator, and potential= "
            "names another one; leave one of them out."
        )
    atoms.calc = MDGraphCalculator(potential)
