"""Molecules in SDF and MOL (V2000), with their total charges.

ASE reads the first record of a file alone, and no charge.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from ase.data import atomic_masses

from mdgraph.errors import FileError, InputError, printable
from mdgraph.system import System
from mdgraph.units import NUMBERS

_RECORD_END: Final = "$$$$"
_HEAD: Final = 4
"""Lines before those of atoms; the last one has their number."""
_CHARGES: Final = {"1": 3, "2": 2, "3": 1, "5": -1, "6": -2, "7": -3}
"""Charges of the codes in lines of atoms."""
_DOUBLET: Final = "4"
_HEAVY_HYDROGEN: Final = {"D": 2, "T": 3}
_COUNT: Final = re.compile(r"\s*\d+\s*")


def parse_sdf(path: Path, text: str) -> list[System]:
    """Reads every record of an SDF or MOL file; a molecule has no cell.

    Args:
        path: the file, for errors.
        text: its content.

    Raises:
        FileError: a record is damaged or not V2000, or there is no atom.
        InputError: an atom is of no element, a record is a drawing or has unpaired electrons, or
            the atoms are no valid `System`.
    """
    systems = []
    for number, (first, lines) in enumerate(_records(text)):
        where = f"{path}, frame {number}" if number else str(path)
        try:
            systems.append(_system(lines))
        except _DamageError as error:
            line = printable(lines[error.line] if error.line < len(lines) else "", 90)
            raise FileError(
                f"Cannot read {path}: line {first + error.line + 1} ('{line}') {error}."
            ) from error
        except InputError as error:
            raise InputError(f"{where}: {error}") from error
    if not systems:
        raise FileError(f"Cannot read {path}: it is empty; give a file with atoms.")
    return systems


class _DamageError(ValueError):
    """What is wrong with a line of a record, which counts from 0."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(reason)
        self.line = line


def _records(text: str) -> Iterator[tuple[int, list[str]]]:
    """The first line of each record, from 0, and its lines."""
    lines = text.splitlines()
    start = 0
    for end, line in enumerate([*lines, _RECORD_END]):
        if line.startswith(_RECORD_END):
            record = lines[start:end]
            if any(map(str.strip, record)):
                yield start, record
            start = end + 1


def _system(lines: Sequence[str]) -> System:
    """The molecule of a record; raises _DamageError and InputError."""
    head = lines[_HEAD - 1] if len(lines) >= _HEAD else ""
    if "V3000" in head:
        raise _DamageError(_HEAD - 1, "is of V3000; write the file as V2000 or extended XYZ")
    if _COUNT.fullmatch(head[:3]) is None:
        raise _DamageError(_HEAD - 1, "is to tell in its first three columns how many atoms follow")
    if lines[1][20:22] == "2D":
        raise InputError("The molecule is a drawing (2D); give one with coordinates in space.")
    count = int(head[:3])
    numbers, positions, codes, masses = [], [], [], []
    for place in range(_HEAD, _HEAD + count):
        try:
            position, symbol, code = _atom(lines[place])
        except (ValueError, IndexError):
            reason = f"holds no coordinates of atom {place - _HEAD + 1}; copy the file again"
            raise _DamageError(place, reason) from None
        positions.append(position)
        codes.append(code)
        nucleus = "H" if symbol in _HEAVY_HYDROGEN else symbol
        if nucleus not in NUMBERS:
            raise InputError(
                f"Atom {place - _HEAD} is '{printable(symbol, 10)}', which is not an element; "
                "repair the file."
            )
        numbers.append(NUMBERS[nucleus])
        masses.append(float(_HEAVY_HYDROGEN.get(symbol, atomic_masses[numbers[-1]])))
    properties = list(_properties(lines[_HEAD + count :], first=_HEAD + count))
    charges = [value for kind, _, value in properties if kind in ("CHG", "RAD")]
    charge = sum(value for kind, _, value in properties if kind == "CHG")
    unpaired = any(kind == "RAD" and value > 1 for kind, _, value in properties)
    if not charges:  # which replace those of atoms
        charge = sum(_CHARGES.get(code, 0) for code in codes)
        unpaired = _DOUBLET in codes
    if unpaired:
        raise InputError(
            "The molecule has unpaired electrons, and the potentials know singlets alone; give a "
            "closed-shell molecule."
        )
    for kind, atom, value in properties:
        if kind == "ISO" and 1 <= atom <= count:
            masses[atom - 1] = float(value)
    return System(
        numbers=np.array(numbers, dtype=np.int64),
        positions=np.array(positions, dtype=np.float64).reshape(-1, 3),
        masses=np.array(masses),
        charge=float(charge),
    )


def _atom(line: str) -> tuple[tuple[float, ...], str, str]:
    """Position, symbol and code of the charge; raises ValueError or IndexError."""
    columns = [line[start : start + 10] for start in (0, 10, 20)]
    symbol, code = line[31:34].strip(), line[36:39].strip()
    try:
        return tuple(map(float, columns)), symbol, code
    except ValueError:  # columns of other widths, which ASE reads too
        words = [*line.split(), "", ""]
        return tuple(map(float, words[:3])), words[3], words[5]


def _properties(lines: Sequence[str], first: int) -> Iterator[tuple[str, int, int]]:
    """Kind, atom from 1 and value of each entry of the property block; raises _DamageError."""
    for place, line in enumerate(lines, start=first):
        if line.startswith("M  END"):
            return
        if line[:6] not in ("M  CHG", "M  RAD", "M  ISO"):
            continue
        words = line[6:].split()
        try:
            values = [int(word) for word in words[1:]]
            if len(values) != 2 * int(words[0]):
                raise ValueError(line)
        except (ValueError, IndexError):
            raise _DamageError(place, "is not a list of atoms and values; repair it") from None
        for atom, value in zip(values[::2], values[1::2], strict=True):
            yield line[3:6], atom, value
