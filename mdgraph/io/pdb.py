"""Structures in the Protein Data Bank's format of fixed columns."""

import re
from pathlib import Path
from typing import Final

from mdgraph.errors import FileError, printable
from mdgraph.io.residues import Model, NamedAtom, systems_from_models
from mdgraph.system import System

_ATOMS: Final = ("ATOM", "HETATM")
_PDB_NUMBER: Final = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*")
_MISPLACED: Final = re.compile(r"\s*(ATOM|HETATM)\s*\d", re.IGNORECASE)
_LAST_COLUMN: Final = 78
"""Behind the element; what follows is filled in where there is something to say."""
_COORDINATES_END: Final = 54


def parse_pdb(path: Path, text: str) -> list[System]:
    """Reads every model of a PDB file, each with the last CRYST1 record before it.

    Args:
        path: names the file in errors.
        text: its content.

    Raises:
        FileError: a record is damaged, the file ends within one, or there is no atom.
        InputError: an element that is neither given nor told by a name, or atoms that make no
            `System`.
    """
    models: list[Model] = []
    within_model, opened, closed = False, False, False
    cell: tuple[float, ...] | None = None
    space_group = ""
    chains = 0
    lines = text.splitlines()
    for number, line in enumerate(lines, start=1):
        record = line[:6].rstrip()
        # Some programs write serial numbers beyond 99,999 one column too far to the left.
        if re.match(r"ATOM[ \d]{2}", line):
            record = "ATOM"
        try:
            if record in _ATOMS:
                if not within_model:
                    models.append(Model(cell, []))
                    within_model = True
                models[-1].atoms.append(_atom(line, chains))
            elif record == "CRYST1":
                cell = _pdb_cell(line)
                space_group = line[55:66].strip()
            elif _MISPLACED.match(line):
                raise ValueError("a record begins in the first column, in capital letters")
        except ValueError as error:
            raise FileError(
                f"Cannot read {path}: line {number} is damaged ('{printable(line, 90)}'): {error}; "
                "repair the line."
            ) from error
        if record == "TER":
            chains += 1
        elif record in ("MODEL", "ENDMDL", "END"):
            within_model = False
            opened, closed = record == "MODEL", closed or record == "ENDMDL"
    if lines and not text.endswith(("\n", "\r")) and _is_cut(lines):
        raise FileError(
            f"Cannot read {path}: it ends within line {len(lines)} ('{printable(lines[-1], 90)}'); "
            "copy the file again, or complete the line."
        )
    if opened and closed:
        raise FileError(
            f"Cannot read {path}: its last model does not end, as those before it do, with ENDMDL; "
            "copy the file again, or add the line."
        )
    return systems_from_models(path, models, space_group)


def _is_cut(lines: list[str]) -> bool:
    """Whether the last line, which does not end, lacks what the lines before it have."""
    *others, last = (line.rstrip() for line in lines)
    if last and any(name.startswith(last) for name in _ATOMS):
        return True
    widths = [len(line) for line in others if line.startswith(_ATOMS)]
    if not last.startswith(_ATOMS) or not widths:
        return False
    return len(last) < min(_LAST_COLUMN, *widths)


def _atom(line: str, chains: int) -> NamedAtom:
    if "\t" in line:
        raise ValueError("it holds tabs, and its columns are counted in characters")
    if len(line) < _COORDINATES_END:
        raise ValueError("it ends before its coordinates do")
    return NamedAtom(
        serial=line[6:11].strip(),
        name=line[12:16].strip(),
        element=line[76:78].strip(),
        residue_name=line[17:21].strip(),
        residue=(str(chains), line[21:27]),
        conformer=line[16].strip(),
        position=(_number(line, 30, 38), _number(line, 38, 46), _number(line, 46, 54)),
    )


def _pdb_cell(line: str) -> tuple[float, ...]:
    lengths = (_number(line, start, start + 9) for start in (6, 15, 24))
    angles = (_number(line, start, start + 7) for start in (33, 40, 47))
    return (*lengths, *angles)


def _number(line: str, start: int, end: int) -> float:
    text = line[start:end]
    if _PDB_NUMBER.fullmatch(text) is None:
        raise ValueError(f"columns {start + 1}-{end} hold '{text}', no number")
    return float(text)
