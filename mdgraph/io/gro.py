"""Structures in GRO, of GROMACS, whose atoms have names and no elements.

ASE takes the first letters of a name for the element, so the ions NA and CL become nitrogen and
carbon, and a virtual site MW tungsten. Here elements are those of `mdgraph.io.pdb`, which also asks
for the residue and refuses what is ambiguous.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mdgraph.errors import FileError, InputError, printable
from mdgraph.io.pdb import NamedAtom, PDBModel, systems_from_models
from mdgraph.system import System

_NAMES_END: Final = 20
_NANOMETER: Final = 10.0
"""A."""
_NM_PER_PS: Final = 0.01
"""A/fs."""
_NUMBER: Final = re.compile(r"\s*[+-]?\d+\.\d+\s*")
_BOX: Final = ((0, 0), (1, 1), (2, 2), (0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1))
"""Vector and axis of each number of a box."""


def parse_gro(path: Path, text: str) -> list[System]:
    """Reads every frame of a GRO file, with its velocities.

    Args:
        path: the file, for errors.
        text: its content.

    Raises:
        FileError: a line is damaged, frames are cut, or there is no atom.
        InputError: the element of an atom is unknown, or the atoms are no valid `System`.
    """
    lines = text.rstrip().splitlines()
    systems: list[System] = []
    start = 0
    while start < len(lines):
        count = lines[start + 1].strip() if start + 1 < len(lines) else ""
        end = start + 2 + (int(count) if count.isdecimal() and len(count) < 10 else 0)
        if end == start + 2 or end >= len(lines):
            raise FileError(
                f"Cannot read {path}: line {start + 2} ('{printable(count, 30)}') is to tell how "
                "many lines of atoms follow, before that of the box; copy the file again."
            )
        systems.append(_system(path, len(systems), lines[start + 2 : end + 1], start + 3))
        start = end + 1
    if not systems:
        raise FileError(f"Cannot read {path}: it is empty; give a file with atoms.")
    return systems


def _system(path: Path, frame: int, lines: Sequence[str], first: int) -> System:
    """The system of lines of atoms and that of the box; `first` counts lines from 1."""
    atoms: list[NamedAtom] = []
    velocities: list[tuple[float, ...]] = []
    residues = 0
    for number, line in enumerate(lines[:-1], start=first):
        try:
            values = _vectors(line)
        except ValueError as error:
            raise FileError(
                f"Cannot read {path}: line {number} is damaged ('{printable(line, 90)}'): {error}; "
                "repair the line."
            ) from error
        residue_number, residue_name = line[:5].strip(), line[5:10].strip()
        if not atoms or (atoms[-1].residue_number, atoms[-1].residue_name) != (
            residue_number,
            residue_name,
        ):
            residues += 1  # numbers begin anew after 99,999
        x, y, z = (_NANOMETER * value for value in values[:3])
        velocities.append(tuple(_NM_PER_PS * value for value in values[3:6]))
        atoms.append(
            NamedAtom(
                serial=str(len(atoms) + 1),
                name=line[10:15].strip(),
                element="",
                residue_name=residue_name,
                residue=(str(residues),),
                chain="",
                residue_number=residue_number,
                conformer="",
                position=(x, y, z),
            )
        )
    try:
        cell = _box(lines[-1])
    except ValueError:
        raise FileError(
            f"Cannot read {path}: line {first + len(atoms)} ('{printable(lines[-1], 90)}') is to "
            "be a box of three or nine numbers in nm; copy the file again."
        ) from None
    cure = "give the structure as PDB or mmCIF with elements, and remove virtual sites"
    (system,) = systems_from_models(path, [PDBModel(None, atoms)], "", cure=cure)
    complete = all(len(velocity) == 3 for velocity in velocities)
    try:
        return system.replace(
            cell=cell,
            pbc=np.full(3, cell.any()),
            velocities=np.array(velocities) if complete else None,
        )
    except InputError as error:
        raise InputError(f"{path}, frame {frame}: {error}") from error


def _vectors(line: str) -> list[float]:
    """Position in nm and, if there is one, velocity in nm/ps; columns are as wide as decimals say.

    Raises:
        ValueError: they are no numbers.
    """
    text = line[_NAMES_END:].rstrip()
    points = [place for place, letter in enumerate(text) if letter == "."]
    if len(points) < 3:
        raise ValueError("it ends before its coordinates do")
    width = points[1] - points[0]
    columns = [text[start : start + width] for start in range(0, len(text), width)]
    if len(columns) not in (3, 6) or not all(map(_NUMBER.fullmatch, columns)):
        raise ValueError(f"columns from {_NAMES_END + 1} on hold no three or six numbers")
    return [float(column) for column in columns]


def _box(line: str) -> NDArray[np.float64]:
    """(3, 3) float64 A; raises ValueError."""
    values = [float(word) for word in line.split()]
    if len(values) not in (3, 9) or not np.isfinite(values).all():
        raise ValueError(line)
    cell: NDArray[np.float64] = np.zeros((3, 3))
    for (vector, axis), value in zip(_BOX, values, strict=False):
        cell[vector, axis] = _NANOMETER * value
    return cell
