"""Structures in the Protein Data Bank's format of fixed columns."""

from pathlib import Path

from mdgraph.errors import FileError
from mdgraph.io.residues import Model, NamedAtom, systems_from_models
from mdgraph.system import System


def parse_pdb(path: Path, text: str) -> list[System]:
    """Reads every model of a PDB file, each with the last CRYST1 record before it.

    Args:
        path: names the file in errors.
        text: its content.

    Raises:
        FileError: a record is damaged, or there is no atom.
        InputError: an element that is neither given nor told by a name, or atoms that make no
            `System`.
    """
    models: list[Model] = []
    within_model = False
    cell: tuple[float, ...] | None = None
    space_group = ""
    chains = 0
    for number, line in enumerate(text.splitlines(), start=1):
        record = line[:6].rstrip()
        try:
            if record in ("ATOM", "HETATM"):
                if not within_model:
                    models.append(Model(cell, []))
                    within_model = True
                models[-1].atoms.append(_atom(line, chains))
            elif record == "CRYST1":
                cell = _cell(line)
                space_group = line[55:66].strip()
        except ValueError as error:
            raise FileError(
                f"Cannot read {path}: line {number} is damaged or truncated ({error}); "
                "put back the original."
            ) from error
        if record == "TER":
            chains += 1
        elif record in ("MODEL", "ENDMDL", "END"):
            within_model = False
    return systems_from_models(path, models, space_group)


def _atom(line: str, chains: int) -> NamedAtom:
    if len(line) < 54:
        raise ValueError("it ends before its coordinates do")
    return NamedAtom(
        serial=line[6:11].strip(),
        name=line[12:16].strip(),
        element=line[76:78].strip(),
        residue_name=line[17:21].strip(),
        residue=(str(chains), line[21:27]),
        conformer=line[16].strip(),
        position=(float(line[30:38]), float(line[38:46]), float(line[46:54])),
    )


def _cell(line: str) -> tuple[float, ...]:
    lengths = (float(line[start : start + 9]) for start in (6, 15, 24))
    angles = (float(line[start : start + 7]) for start in (33, 40, 47))
    return (*lengths, *angles)
