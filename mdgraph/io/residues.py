"""Atoms that a file names within residues: their elements, conformers and models.

Readers disagree on atoms without an element. ASE takes the hydrogen HG of a serine for
mercury, OpenMM the bromine BR of a ligand for boron and drops the second of two atoms of one
name in a residue. Here an element that a name does not settle is an error, and every atom
counts.
"""

import logging
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from ase.geometry import cellpar_to_cell

from mdgraph.elements import NUMBERS
from mdgraph.errors import FileError, InputError, name_some
from mdgraph.system import System

_logger = logging.getLogger(__name__)

_AMINO_ACIDS: Final = (
    "ALA ARG ASN ASP CYS GLN GLU GLY HIS ILE LEU LYS MET PHE PRO SER THR TRP TYR VAL "
    "ASH CYM CYX GLH HID HIE HIP HSD HSE HSP LYN ACE NH2 NMA NME"
)
_NUCLEOTIDES: Final = "A C G I U DA DC DG DI DT DU ADE CYT GUA THY URA"
_WATERS: Final = "HOH H2O SOL SPC TIP TIP3 TP3 WAT"
_STANDARD_RESIDUES: Final = frozenset(f"{_AMINO_ACIDS} {_NUCLEOTIDES} {_WATERS}".split())
_STANDARD_ELEMENTS: Final = frozenset("HCNOPS")
_HALOGENS: Final = frozenset(("CL", "BR"))
_HEAVIEST_IN_A_NAME: Final = NUMBERS["Bi"]
"""Names such as CM mean a carbon, never one of the heavy radioactive elements."""

_DUMMY_EDGE: Final = 1.0
"""A; cells with edges up to this one mean that there is none."""


@dataclass(frozen=True)
class NamedAtom:
    """One atom record.

    Attributes:
        serial: what the file calls it.
        name: within its residue, such as CA.
        element: symbol as the file gives it; empty where it does not.
        residue_name: such as SER.
        residue: what tells the place of its residue from all others.
        conformer: letter of an alternate location; empty where there is only one.
        position: A.
    """

    serial: str
    name: str
    element: str
    residue_name: str
    residue: tuple[str, ...]
    conformer: str
    position: tuple[float, float, float]


@dataclass(frozen=True)
class Model:
    """The atoms of one model and its cell: three lengths in A, three angles in degrees."""

    cell: tuple[float, ...] | None
    atoms: list[NamedAtom]


def systems_from_models(path: Path, models: Sequence[Model], space_group: str) -> list[System]:
    """Makes a system of each model, of the first conformer of each residue.

    Raises:
        FileError: there is no atom.
        InputError: an element that is neither given nor told by a name, or atoms that make no
            `System`.
    """
    if not models:
        raise FileError(f"Cannot read {path}: it holds no atoms; put back the original.")
    if space_group not in ("", "1", "P 1", "P1"):
        _logger.warning("%s: copies by symmetry (%s) are not made", path, space_group)
    systems = []
    for model in models:
        atoms = _one_conformer(model.atoms)
        if len(atoms) < len(model.atoms):
            dropped = len(model.atoms) - len(atoms)
            _logger.warning("%s: %d alternate locations are not used", path, dropped)
        cell, periodic = np.zeros((3, 3)), False
        if model.cell is not None and min(model.cell[:3]) > _DUMMY_EDGE:
            cell, periodic = cellpar_to_cell(model.cell), True
        try:
            systems.append(
                System(
                    numbers=np.array(_atomic_numbers(atoms)),
                    positions=np.array([atom.position for atom in atoms]),
                    cell=cell,
                    pbc=np.full(3, periodic),
                )
            )
        except InputError as error:
            raise InputError(f"{path}: {error}") from error
    return systems


def _one_conformer(atoms: Sequence[NamedAtom]) -> list[NamedAtom]:
    first: dict[tuple[str, ...], str] = {}
    return [
        atom
        for atom in atoms
        if not atom.conformer or atom.conformer == first.setdefault(atom.residue, atom.conformer)
    ]


def _atomic_numbers(atoms: Sequence[NamedAtom]) -> list[int]:
    sizes = Counter((atom.residue, atom.residue_name) for atom in atoms)
    symbols = [
        atom.element.capitalize()
        if atom.element.capitalize() in NUMBERS
        else _symbol_from_name(atom, alone=sizes[atom.residue, atom.residue_name] == 1)
        for atom in atoms
    ]
    unknown = [atom for atom, symbol in zip(atoms, symbols, strict=True) if symbol is None]
    if unknown:
        names = [f"{atom.serial} ({atom.name} of {atom.residue_name})" for atom in unknown]
        raise InputError(
            f"No element is given for atoms {name_some(names)}, and their names do not settle "
            "it; fill the element column (77-78 in PDB, type_symbol in mmCIF), and remove "
            "virtual sites."
        )
    return [NUMBERS[symbol] for symbol in symbols if symbol is not None]


def _symbol_from_name(atom: NamedAtom, alone: bool) -> str | None:
    """The element that an atom's name stands for, None where it could be two.

    Args:
        atom: an atom without an element.
        alone: whether it is the only atom of its residue, as ions are.
    """
    match = re.match(r"\d*([A-Za-z]+)", atom.name)
    if match is None:
        return None
    letters = match[1].upper()
    first, two = letters[0], letters[:2]
    if atom.residue_name in _STANDARD_RESIDUES and first in _STANDARD_ELEMENTS:
        return first
    if alone:
        return letters.capitalize() if letters.capitalize() in NUMBERS else None
    if two in _HALOGENS:
        return two.capitalize()
    if first == "H" and two != "HG":
        return first
    if len(two) == 2 and NUMBERS.get(two.capitalize(), np.inf) <= _HEAVIEST_IN_A_NAME:
        return None
    return first if first in NUMBERS else None
