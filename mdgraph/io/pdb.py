"""Structures in PDB, PDBx/mmCIF and GRO, with the elements of named atoms.

Readers disagree on atoms without an element. ASE reads the hydrogen HG of a serine as mercury, and
of GRO, which has no elements, the ions NA and CL as nitrogen and carbon and a virtual site MW as
tungsten.
OpenMM reads the bromine BR of a ligand as boron, and drops the second of two atoms with the same
name in a residue. This module raises an error if a name is ambiguous, and keeps every atom.
"""

import itertools
import logging
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from ase.geometry import cellpar_to_cell
from numpy.typing import NDArray

from mdgraph.errors import FileError, InputError, name_some, printable
from mdgraph.system import System, Topology
from mdgraph.units import HEAVY_HYDROGEN, NANOMETRE, NANOMETRE_PER_PICOSECOND, NUMBERS

_logger = logging.getLogger(__name__)

_AMINO_ACIDS: Final = (
    "ALA ARG ASN ASP CYS GLN GLU GLY HIS ILE LEU LYS MET PHE PRO SER THR TRP TYR VAL "
    "ASH CYM CYX GLH HID HIE HIP HSD HSE HSP LYN ACE NH2 NMA NME"
)
_NUCLEOTIDES: Final = "A C G I U DA DC DG DI DT DU ADE CYT GUA THY URA"
WATERS: Final = frozenset(["HOH", "H2O", "SOL", "SPC", "TIP", "TIP3", "TP3", "WAT"])
STANDARD_RESIDUES: Final = frozenset(f"{_AMINO_ACIDS} {_NUCLEOTIDES}".split()) | WATERS
"""Residues whose atoms are named by the element with which the name begins."""
_STANDARD_ELEMENTS: Final = frozenset("HCNOPS")
_HALOGENS: Final = frozenset(("CL", "BR"))
_HEAVIEST_IN_A_NAME: Final = NUMBERS["Bi"]
"""Names such as CM mean carbon; heavier elements than this one are never meant."""

_IONS_OF_CHARMM: Final = {
    "SOD": "Na",
    "POT": "K",
    "LIT": "Li",
    "CES": "Cs",
    "RUB": "Rb",
    "CAL": "Ca",
    "CLA": "Cl",
}

_CURE: Final = (
    "fill the element column (77-78 in PDB, type_symbol in mmCIF), and remove virtual sites"
)

_DUMMY_EDGE: Final = 1.0
"""A; shorter cell edges, and edges of this length, mean that there is no cell."""


@dataclass(frozen=True)
class NamedAtom:
    """One atom record.

    Attributes:
        serial: serial number in the file.
        name: name within its residue, such as CA.
        element: symbol as in the file; empty if the file has none.
        residue_name: such as SER.
        residue: key that identifies the residue in the file.
        chain: letters of its chain; empty if the file has none.
        residue_number: number of the residue as text, with its insertion code.
        conformer: letter of an alternate location; empty if there is only one.
        position: A.
        formal_charge: as in the file, such as 2+, 1- or -1; empty if the file has none.
    """

    serial: str
    name: str
    element: str
    residue_name: str
    residue: tuple[str, ...]
    chain: str
    residue_number: str
    conformer: str
    position: tuple[float, float, float]
    formal_charge: str = ""


@dataclass(frozen=True)
class PDBModel:
    """Atoms and cell of one model; the cell has three lengths in A and three angles in degrees."""

    cell: tuple[float, ...] | None
    atoms: list[NamedAtom]


def systems_from_models(
    path: Path,
    models: Sequence[PDBModel],
    space_group: str,
    bonds: Sequence[tuple[str, str]] = (),
    *,
    cure: str = _CURE,
) -> list[System]:
    """Makes a system of each model; of each residue it takes the first conformer.

    Args:
        path: the file, for errors.
        models: atoms of the file.
        space_group: of the cell; copies by symmetry are not made.
        bonds: pairs of serial numbers.
        cure: what to do where names do not settle elements, as the end of a sentence.

    Raises:
        FileError: there is no atom.
        InputError: the element of an atom is unknown, or the atoms are no valid `System`.
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
        atoms = _first_conformers(model.atoms)
        if len(atoms) < len(model.atoms):
            count = len(model.atoms) - len(atoms)
            _logger.warning("%s: %d alternate locations are not used", path, count)
        if number == 0 and (charge := sum(map(_formal_charge, atoms))):
            _logger.warning(
                "%s: formal charges in it add up to %+d e, which is not used, as such files leave "
                "many out; give the charge of all atoms with --charge",
                path,
                charge,
            )
        try:
            cell = _cell_vectors(model.cell)
            systems.append(
                System(
                    numbers=np.array(_atomic_numbers(atoms, cure)),
                    positions=np.array([atom.position for atom in atoms]),
                    cell=cell,
                    pbc=np.full(3, cell.any()),
                    topology=_topology(atoms, bonds),
                )
            )
        except InputError as error:
            raise InputError(f"{where}: {error}") from error
    return systems


def _formal_charge(atom: NamedAtom) -> int:
    if re.fullmatch(r"[+-]?\d[+-]?", atom.formal_charge) is None:
        return 0
    size = int(atom.formal_charge.strip("+-"))
    return -size if "-" in atom.formal_charge else size


def _topology(atoms: Sequence[NamedAtom], bonds: Sequence[tuple[str, str]]) -> Topology:
    """Names and residues of atoms; their bonds if each atom has a serial number of its own."""
    index = {atom.serial: number for number, atom in enumerate(atoms)}
    unique = len(index) == len(atoms)
    ends = [
        (index[first], index[second])
        for first, second in bonds
        if unique and first in index and second in index
    ]
    pairs = {(min(pair), max(pair)) for pair in ends if pair[0] != pair[1]}
    return Topology(
        names=np.array([atom.name for atom in atoms]),
        residue_names=np.array([atom.residue_name for atom in atoms]),
        residues=np.array([atom.residue_number for atom in atoms]),
        chains=np.array([atom.chain for atom in atoms]),
        bonds=np.array(sorted(pairs), dtype=np.int64),
    )


def _cell_vectors(parameters: tuple[float, ...] | None) -> NDArray[np.float64]:
    """(3, 3) float64, A, from three lengths and three angles; zeros if there is no cell."""
    zeros: NDArray[np.float64] = np.zeros((3, 3))
    if parameters is None:
        return zeros
    lengths, angles = np.array(parameters[:3]), np.array(parameters[3:])
    if ((lengths >= 0.0) & (lengths <= _DUMMY_EDGE)).all():
        return zeros
    if not (lengths > _DUMMY_EDGE).all() or not np.isfinite(lengths).all():
        raise InputError(
            f"The cell has the lengths {_join(lengths)} A; give three above {_DUMMY_EDGE:g}, or "
            f"{_DUMMY_EDGE:g} or 0 for each where there is no cell."
        )
    alpha, beta, gamma = angles
    possible = angles.min() > 0.0 and max(alpha, beta, gamma) < min(180.0, angles.sum() / 2)
    if not possible or angles.sum() >= 360.0:
        raise InputError(
            f"The cell has the angles {_join(angles)} degrees, which no three vectors have: each "
            "is less than the sum of the others, and all together less than 360; repair the cell."
        )
    vectors: NDArray[np.float64] = cellpar_to_cell(parameters)
    return vectors


def _join(numbers: NDArray[np.float64]) -> str:
    return ", ".join(f"{number:g}" for number in numbers)


def _first_conformers(atoms: Sequence[NamedAtom]) -> list[NamedAtom]:
    first_letter: dict[tuple[str, ...], str] = {}
    return [
        atom
        for atom in atoms
        if not atom.conformer
        or atom.conformer == first_letter.setdefault(atom.residue, atom.conformer)
    ]


def _atomic_numbers(atoms: Sequence[NamedAtom], cure: str) -> list[int]:
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
        if all(atom.element.upper() in HEAVY_HYDROGEN for atom in unknown):
            raise InputError(
                f"Atoms {name_some(names)} are isotopes of hydrogen; write H as their element, or "
                "an extended XYZ file with H and a column masses:R:1 for their masses."
            )
        raise InputError(
            f"No element is given for atoms {name_some(names)}, and their names do not settle "
            f"it; {cure}."
        )
    return [NUMBERS[symbol] for symbol in symbols if symbol is not None]


def _symbol_from_name(atom: NamedAtom, alone: bool) -> str | None:
    """The element that an atom's name means; None if the name is ambiguous.

    Args:
        atom: an atom without an element.
        alone: whether it is the only atom of its residue, like an ion.
    """
    match = re.match(r"\d*([A-Za-z]+)", atom.name)
    if match is None:
        return None
    letters = match[1].upper()
    first, first_two = letters[0], letters[:2]
    if atom.residue_name in STANDARD_RESIDUES and first in _STANDARD_ELEMENTS:
        return first
    if alone:
        symbol = _IONS_OF_CHARMM.get(letters, letters.capitalize())
        return symbol if symbol in NUMBERS else None
    if first_two in _HALOGENS:
        return first_two.capitalize()
    if first == "H" and first_two != "HG":
        return first
    if len(first_two) == 2 and NUMBERS.get(first_two.capitalize(), np.inf) <= _HEAVIEST_IN_A_NAME:
        return None
    return first if first in NUMBERS else None


_ATOMS: Final = ("ATOM", "HETATM")
_PDB_NUMBER: Final = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*")
_MISPLACED: Final = re.compile(r"\s*(ATOM|HETATM)\s*\d", re.IGNORECASE)
_LAST_COLUMN: Final = 78
"""Last column of the element; later columns are optional."""
_COORDINATES_END: Final = 54


def parse_pdb(path: Path, text: str) -> list[System]:
    """Reads every model of a PDB file, each with the last CRYST1 record before it.

    Args:
        path: the file, for errors.
        text: its content.

    Raises:
        FileError: a record is damaged or incomplete, or there is no atom.
        InputError: the element of an atom is unknown, or the atoms are no valid `System`.
    """
    models: list[PDBModel] = []
    within_model, has_open_model, has_endmdl = False, False, False
    cell: tuple[float, ...] | None = None
    space_group = ""
    chains = 0
    bonds: list[tuple[str, str]] = []
    lines = text.splitlines()
    for number, line in enumerate(lines, start=1):
        record = line[:6].rstrip()
        # Some programs write serial numbers above 99,999 one column too far to the left.
        if re.match(r"ATOM[ \d]{2}", line):
            record = "ATOM"
        try:
            if record in _ATOMS:
                if not within_model:
                    models.append(PDBModel(cell, []))
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
        elif record == "CONECT":
            serials = [line[start : start + 5].strip() for start in range(6, 31, 5)]
            bonds += [(serials[0], serial) for serial in serials[1:] if serial]
        elif record in ("MODEL", "ENDMDL", "END"):
            within_model = False
            has_open_model = record == "MODEL"
            has_endmdl = has_endmdl or record == "ENDMDL"
    if lines and not text.endswith(("\n", "\r")) and _is_cut(lines):
        raise FileError(
            f"Cannot read {path}: it ends within line {len(lines)} ('{printable(lines[-1], 90)}'); "
            "copy the file again, or complete the line."
        )
    if has_open_model and has_endmdl:
        raise FileError(
            f"Cannot read {path}: its last model does not end, as those before it do, with ENDMDL; "
            "copy the file again, or add the line."
        )
    return systems_from_models(path, models, space_group, bonds)


def _is_cut(lines: list[str]) -> bool:
    """Whether the last line, which has no line end, is shorter than all other atom lines."""
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
    charge = line[78:80].strip()
    return NamedAtom(
        serial=line[6:11].strip(),
        name=line[12:16].strip(),
        element=line[76:78].strip(),
        residue_name=line[17:21].strip(),
        residue=(str(chains), line[21:27]),
        chain=line[21].strip(),
        residue_number=line[22:27].strip(),
        conformer=line[16].strip(),
        position=(_number(line, 30, 38), _number(line, 38, 46), _number(line, 46, 54)),
        # Old files have a number of the line there, without a sign.
        formal_charge=charge if "+" in charge or "-" in charge else "",
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


_TOKEN: Final = re.compile(r"""'(.*?)'(?=\s|$)|"(.*?)"(?=\s|$)|#.*|(\S+)""")
_KEYWORD: Final = re.compile(r"_|data_|loop_|save_|global_|stop_", re.IGNORECASE)
_MMCIF_NUMBER: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?(\(\d+\))?")
"""A number, optionally with an uncertainty, as 10.024(3)."""
_ABSENT: Final = frozenset("?.")


def parse_mmcif(path: Path, text: str) -> list[System]:
    """Reads every model of the first block of an mmCIF file that holds atoms.

    Args:
        path: the file, for errors.
        text: its content.

    Raises:
        FileError: the file is damaged, or there is no atom.
        InputError: the element of an atom is unknown, or the atoms are no valid `System`.
    """
    try:
        columns = _columns(text)
        models = _models(columns)
    except ValueError as error:
        reason = printable(error.args[0], 300)
        raise FileError(f"Cannot read {path}: {reason}; check its content.") from error
    space_group = columns.get("_symmetry.space_group_name_h-m", [""])[0]
    return systems_from_models(path, models, "" if space_group in _ABSENT else space_group)


def _models(columns: dict[str, list[str]]) -> list[PDBModel]:
    count = len(columns.get("_atom_site.cartn_x", []))

    def column(*names: str) -> list[str]:
        for name in names:
            if f"_atom_site.{name}" in columns:
                values = columns[f"_atom_site.{name}"]
                if len(values) != count:
                    raise ValueError(
                        f"_atom_site.{name} has {len(values)} values for {count} atoms"
                    )
                return ["" if value in _ABSENT else value for value in values]
        return [""] * count

    serials = column("id")

    def coordinates(axis: str) -> list[float]:
        if count and f"_atom_site.cartn_{axis}" not in columns:
            raise ValueError(f"its atoms have no _atom_site.Cartn_{axis}")
        texts = column(f"cartn_{axis}")
        for serial, text in zip(serials, texts, strict=True):
            if _MMCIF_NUMBER.fullmatch(text) is None:
                raise ValueError(
                    f"atom {serial} has the _atom_site.Cartn_{axis} '{text}', no number"
                )
        return [_value(text) for text in texts]

    rows = zip(
        column("pdbx_pdb_model_num"),
        serials,
        column("auth_atom_id", "label_atom_id"),
        column("type_symbol"),
        column("auth_comp_id", "label_comp_id"),
        zip(
            column("label_asym_id"),
            column("auth_asym_id"),
            column("label_seq_id"),
            column("auth_seq_id"),
            column("pdbx_pdb_ins_code"),
            strict=True,
        ),
        column("label_alt_id"),
        column("pdbx_formal_charge"),
        *map(coordinates, "xyz"),
        strict=True,
    )
    cell = _mmcif_cell(columns)
    models: dict[str, PDBModel] = {}
    for model, serial, name, element, residue_name, residue, *last in rows:
        label_chain, chain, label_number, number, insertion = residue
        conformer, charge, x, y, z = last
        models.setdefault(model, PDBModel(cell, [])).atoms.append(
            NamedAtom(
                serial=serial,
                name=name,
                element=element,
                residue_name=residue_name,
                residue=residue,
                chain=chain or label_chain,
                residue_number=(number or label_number) + insertion,
                conformer=conformer,
                position=(x, y, z),
                formal_charge=charge,
            )
        )
    return list(models.values())


def _mmcif_cell(columns: dict[str, list[str]]) -> tuple[float, ...] | None:
    names = [f"length_{edge}" for edge in "abc"]
    names += [f"angle_{angle}" for angle in ("alpha", "beta", "gamma")]
    values = [columns.get(f"_cell.{name}", ["?"])[0] for name in names]
    if set(values) <= _ABSENT:
        return None
    for name, value in zip(names, values, strict=True):
        if _MMCIF_NUMBER.fullmatch(value) is None:
            raise ValueError(f"_cell.{name} is '{value}', no number")
    return tuple(map(_value, values))


def _value(text: str) -> float:
    """A number without its uncertainty."""
    return float(text.partition("(")[0])


def _columns(text: str) -> dict[str, list[str]]:
    """Values by tag, in lower case, up to the end of the first block with atoms."""
    columns: dict[str, list[str]] = {}
    tags: list[str] = []
    values: list[str] = []
    reading_tags = loop = False
    for line, token, is_value in itertools.chain(_tokens(text), [(0, "data_", False)]):
        if is_value:
            if not tags or (values and not loop):
                raise ValueError(f"line {line}: '{token[:30]}' belongs to no tag")
            values.append(token)
            reading_tags = False
        elif token.startswith("_") and reading_tags:
            tags.append(token.lower())
        else:
            _store(columns, tags, values)
            tags, values = [], []
            keyword = token.lower()
            if keyword.startswith("data_") and "_atom_site.cartn_x" in columns:
                break
            reading_tags = loop = keyword == "loop_"
            if token.startswith("_"):
                tags = [keyword]
    return columns


def _store(columns: dict[str, list[str]], tags: list[str], values: list[str]) -> None:
    if tags and (not values or len(values) % len(tags)):
        raise ValueError(f"the values of {tags[0]} end within a row, the file may be cut")
    columns.update({tag: values[start :: len(tags)] for start, tag in enumerate(tags)})


def _tokens(text: str) -> Iterator[tuple[int, str, bool]]:
    """Yields line number, word, and whether the word is a value, not a tag or a keyword."""
    lines = enumerate(text.splitlines(), start=1)
    for number, line in lines:
        if line.startswith(";"):
            block = [line[1:]]
            for _, rest in lines:
                if rest.startswith(";"):
                    break
                block.append(rest)
            else:
                raise ValueError(f"the text field that begins in line {number} does not end")
            yield number, "\n".join(block), True
            continue
        for match in _TOKEN.finditer(line):
            single, double, bare = match.groups()
            if bare is not None:
                yield number, bare, _KEYWORD.match(bare) is None
            elif single is not None or double is not None:
                yield number, single if double is None else double, True


_NAMES_END: Final = 20
_GRO_NUMBER: Final = re.compile(r"\s*[+-]?\d+\.\d+\s*")
_GRO_BOX: Final = ((0, 0), (1, 1), (2, 2), (0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1))
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
        systems.append(_gro_system(path, len(systems), lines[start + 2 : end + 1], start + 3))
        start = end + 1
    if not systems:
        raise FileError(f"Cannot read {path}: it is empty; give a file with atoms.")
    return systems


def _gro_system(path: Path, frame: int, lines: Sequence[str], first: int) -> System:
    """The system of lines of atoms and that of the box; `first` counts lines from 1."""
    atoms: list[NamedAtom] = []
    velocities: list[tuple[float, ...]] = []
    residues = 0
    for number, line in enumerate(lines[:-1], start=first):
        try:
            values = _gro_vectors(line)
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
        x, y, z = (NANOMETRE * value for value in values[:3])
        velocities.append(tuple(NANOMETRE_PER_PICOSECOND * value for value in values[3:6]))
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
        cell = _gro_box(lines[-1])
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


def _gro_vectors(line: str) -> list[float]:
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
    if len(columns) not in (3, 6) or not all(map(_GRO_NUMBER.fullmatch, columns)):
        raise ValueError(f"columns from {_NAMES_END + 1} on hold no three or six numbers")
    return [float(column) for column in columns]


def _gro_box(line: str) -> NDArray[np.float64]:
    """(3, 3) float64 A; raises ValueError."""
    values = [float(word) for word in line.split()]
    if len(values) not in (3, 9) or not np.isfinite(values).all():
        raise ValueError(line)
    cell: NDArray[np.float64] = np.zeros((3, 3))
    for (vector, axis), value in zip(_GRO_BOX, values, strict=False):
        cell[vector, axis] = NANOMETRE * value
    return cell
