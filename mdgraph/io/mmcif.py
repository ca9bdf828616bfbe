"""Structures in PDBx/mmCIF, the Protein Data Bank's format of named columns."""

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from mdgraph.errors import FileError, printable
from mdgraph.io.residues import Model, NamedAtom, systems_from_models
from mdgraph.system import System

_TOKEN: Final = re.compile(r"""'(.*?)'(?=\s|$)|"(.*?)"(?=\s|$)|#.*|(\S+)""")
_KEYWORD: Final = re.compile(r"_|data_|loop_|save_|global_|stop_", re.IGNORECASE)
_MMCIF_NUMBER: Final = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?(\(\d+\))?")
"""Also with an uncertainty, as 10.024(3)."""
_ABSENT: Final = frozenset("?.")


def parse_mmcif(path: Path, text: str) -> list[System]:
    """Reads every model of the first block of an mmCIF file that holds atoms.

    Args:
        path: names the file in errors.
        text: its content.

    Raises:
        FileError: the file is damaged, or there is no atom.
        InputError: an element that is neither given nor told by a name, or atoms that make no
            `System`.
    """
    try:
        columns = _columns(text)
        models = _models(columns)
    except ValueError as error:
        reason = printable(error.args[0], 300)
        raise FileError(f"Cannot read {path}: {reason}; check its content.") from error
    space_group = columns.get("_symmetry.space_group_name_h-m", [""])[0]
    return systems_from_models(path, models, "" if space_group in _ABSENT else space_group)


def _models(columns: dict[str, list[str]]) -> list[Model]:
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
        *map(coordinates, "xyz"),
        strict=True,
    )
    cell = _mmcif_cell(columns)
    models: dict[str, Model] = {}
    for model, serial, name, element, residue_name, residue, conformer, x, y, z in rows:
        models.setdefault(model, Model(cell, [])).atoms.append(
            NamedAtom(serial, name, element, residue_name, residue, conformer, (x, y, z))
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
    """A number without the uncertainty behind it."""
    return float(text.partition("(")[0])


def _columns(text: str) -> dict[str, list[str]]:
    """The values of each tag, tags in lower case, of the first block that holds atoms."""
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
    """Lines and words of the file, and whether each is a value: not a tag and not a keyword."""
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
