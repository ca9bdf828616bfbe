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
from numpy.typing import NDArray

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
        raise FileError(
            f"Cannot read {path}: it holds no atoms, as no line of it is an atom of PDB or mmCIF; "
            "check what the file is."
        )
    if space_group not in ("", "1", "P 1", "P1"):
        _logger.warning("%s: copies by symmetry (%s) are not made", path, space_group)
    systems = []
    for number, model in enumerate(models):
        where = f"{path}, frame {number}" if number else str(path)
        atoms = _one_conformer(model.atoms)
        if len(atoms) < len(model.atoms):
            dropped = len(model.atoms) - len(atoms)
            _logger.warning("%s: %d alternate locations are not used", path, dropped)
        try:
            cell = _cell_vectors(model.cell)
            systems.append(
                System(
                    numbers=np.array(_atomic_numbers(atoms)),
                    positions=np.array([atom.position for atom in atoms]),
                    cell=cell,
                    pbc=np.full(3, cell.any()),
                )
            )
        except InputError as error:
            raise InputError(f"{where}: {error}") from error
    return systems


def _cell_vectors(parameters: tuple[float, ...] | None) -> NDArray[np.float64]:
    """(3, 3) float64, A, of three lengths and three angles; zeros where these mean no cell."""
    none: NDArray[np.float64] = np.zeros((3, 3))
    if parameters is None:
        return none
    lengths, angles = np.array(parameters[:3]), np.array(parameters[3:])
    if ((lengths >= 0.0) & (lengths <= _DUMMY_EDGE)).all():
        return none
    if not (lengths > _DUMMY_EDGE).all() or not np.isfinite(lengths).all():
        raise InputError(
            f"The cell has the lengths {_joined(lengths)} A; give three above {_DUMMY_EDGE:g}, or "
            f"{_DUMMY_EDGE:g} or 0 for each where there is no cell."
        )
    alpha, beta, gamma = angles
    possible = angles.min() > 0.0 and max(alpha, beta, gamma) < min(180.0, angles.sum() / 2)
    if not possible or angles.sum() >= 360.0:
        raise InputError(
            f"The cell has the angles {_joined(angles)} degrees, which no three vectors have: each "
            "is less than the sum of the others, and all together less than 360; repair the cell."
        )
    vectors: NDArray[np.float64] = cellpar_to_cell(parameters)
    return vectors


def _joined(numbers: NDArray[np.float64]) -> str:
    return ", ".join(f"{number:g}" for number in numbers)


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
