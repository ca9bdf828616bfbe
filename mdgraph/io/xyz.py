"""XYZ and extended XYZ of any program: this module locates the frames, ASE parses their columns.

ASE does not check the number of atoms that a frame declares, stops silently at a blank line, and
does not name the line of an error. This module counts the lines first and then parses the
requested frames only.
"""

import io
import itertools
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
from ase import Atoms
from ase.io import extxyz

from mdgraph.errors import FileError, InputError, printable
from mdgraph.io.files import (
    COMPRESSIONS,
    LARGEST_TEXT,
    UTF8_MARK,
    as_text,
    disk_failures,
    read_decompressed,
    readable_file,
)
from mdgraph.units import NUMBERS

_logger = logging.getLogger(__name__)

_COUNT: Final = re.compile(rb"\s*\+?(\d{1,15})\s*")
_LONGEST_LINE: Final = 1 << 24
"""Bytes; the longest lines are headers of frames with lists of numbers."""
_LEAST_LINE: Final = 2
"""Bytes of the shortest line of an atom, with its end."""
_VECTORS: Final = 3
"""Most lines with cell vectors after the atoms."""
_SIMPLE: Final = "species:S:1:pos:R:3"
"""Columns of a frame without Properties."""
_MOST_COLUMNS: Final = 10_000
_DECIMALS: Final = 6
_TAIL: Final = re.compile(r"\.(\d+)\Z")
"""Decimals at the end of a line. If all lines have the same number of them, six or more, and the
last line of the file has fewer and no line end, the file was cut."""


@dataclass(frozen=True)
class _FrameLocation:
    """Where a frame is in the file.

    Attributes:
        number: number of the frame, from 0.
        line: line number of its number of atoms, from 1.
        start: offset in bytes.
        size: bytes.
        atoms: number of atoms.
    """

    number: int
    line: int
    start: int
    size: int
    atoms: int


def read_xyz(path: Path, index: int | slice) -> Iterator[tuple[int, Atoms]]:
    """Yields frames of an XYZ file with their numbers.

    Args:
        path: the file; it may be compressed (`.gz`, `.bz2`, `.xz`).
        index: the frames to read; missing frames are no error.

    Raises:
        FileError: the file is not valid XYZ; the error names the line.
    """
    frames = index if isinstance(index, slice) else slice(index, index + 1 or None)
    with closing(_open(path)) as file, disk_failures(path, "read"):
        locations = _locate_frames(path, file)
        counts_from_start = all(end is None or end >= 0 for end in (frames.start, frames.stop))
        if counts_from_start and (frames.step or 1) > 0:
            # Later frames are not read.
            selection = list(itertools.islice(locations, frames.start, frames.stop, frames.step))
        else:
            selection = list(locations)[frames]
        for location in selection:
            file.seek(location.start)
            content = file.read(location.size)
            yield location.number, _parse_frame(path, location, content, ends_file=not file.read(1))


def count_frames(path: Path) -> int:
    """Number of frames in an XYZ file, without reading them; raises FileError as `read_xyz`."""
    with closing(_open(path)) as file, disk_failures(path, "read"):
        return sum(1 for _ in _locate_frames(path, file))


def _open(path: Path) -> IO[bytes]:
    readable_file(path, "a structure")
    if path.suffix.lower() in COMPRESSIONS:
        return io.BytesIO(read_decompressed(path, "a structure", LARGEST_TEXT))
    with disk_failures(path, "read"):
        return path.open("rb")


def _locate_frames(path: Path, file: IO[bytes]) -> Iterator[_FrameLocation]:
    """Yields the location of each frame, by the numbers of atoms."""
    size = file.seek(0, io.SEEK_END)
    if size == 0:
        raise FileError(f"Cannot read {path}: it is empty; give a file with atoms.")
    file.seek(0)
    if file.read(len(UTF8_MARK)) != UTF8_MARK:
        file.seek(0)
    line, blank = 0, 0
    for number in itertools.count():
        start = file.tell()
        while (count_line := _line(path, file, line)) and not count_line.strip():
            line, blank, start = line + 1, line + 1, file.tell()
        if not count_line:
            return
        count = _COUNT.fullmatch(count_line)
        if count is None and number and blank == line:
            _logger.warning("%s: what follows line %d is not read", path, blank)
            return
        if count is None:
            raise _count_error(path, line + 1, count_line, number)
        atoms = int(count[1])
        if atoms == 0:
            raise InputError(f"{path}: line {line + 1}: frame {number} has no atoms; remove it.")
        if atoms * _LEAST_LINE > size:
            raise _line_error(
                path, line + 1, f"{atoms:,} atoms are declared, and the file has {size:,} bytes"
            )
        line, atoms_line = line + 1, line + 1
        for row in range(-1, atoms):
            text = _line(path, file, line)
            line += 1
            if row >= 0 and not text.strip():
                fault = "is blank" if text else "is missing, the file ends before it"
                raise _line_error(
                    path,
                    line,
                    f"the line of atom {row + 1} of the {atoms:,} atoms declared in line "
                    f"{atoms_line} {fault}",
                )
        end = file.tell()
        for _ in range(_VECTORS):
            if not _line(path, file, line).lstrip().startswith(b"VEC"):
                break
            line, end = line + 1, file.tell()
        file.seek(end)
        yield _FrameLocation(number, atoms_line, start, end - start, atoms)


def _line(path: Path, file: IO[bytes], lines_before: int) -> bytes:
    """The next line; empty at the end of the file."""
    text = file.readline(_LONGEST_LINE)
    if len(text) == _LONGEST_LINE:
        raise _line_error(path, lines_before + 1, f"it is longer than {_LONGEST_LINE:,} bytes")
    return text


def _count_error(path: Path, line: int, text: bytes, frame: int) -> FileError:
    """The error for a frame that does not begin with its number of atoms."""
    excerpt = printable(as_text(path, text[:60]).rstrip("\r\n"))
    if frame:
        return _line_error(
            path,
            line,
            f"'{excerpt}' stands where frame {frame} would begin with its number of atoms, so "
            f"frame {frame - 1} declares too few",
        )
    return _line_error(
        path,
        line,
        f"'{excerpt}' stands where XYZ begins with the number of atoms; a file of another format "
        "needs the suffix of that",
    )


def _line_error(path: Path, line: int, fault: str) -> FileError:
    return FileError(f"Cannot read {path}: line {line}: {fault}; repair the line.")


def _parse_frame(path: Path, location: _FrameLocation, content: bytes, *, ends_file: bool) -> Atoms:
    """Parses one frame."""
    text = as_text(path, content)
    lines = re.split("\r\n|\n", text)
    header, rows = lines[1].strip(), lines[2 : 2 + location.atoms]
    if ends_file and not text.endswith("\n") and _is_cut(rows):
        raise _line_error(path, location.line + 1 + len(rows), "the file ends within a number")
    try:
        names = [name for name, _ in _columns(header)]
        if "positions" not in names or not {"symbols", "numbers"}.intersection(names):
            raise ValueError("Properties name no species, or no pos")
        atoms: Atoms = next(extxyz.read_xyz(io.StringIO("\n".join([*lines, ""])), slice(0, 1)))
    except Exception as error:  # ASE's reader raises errors of any class
        message = (
            str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        )
        row, fault = _fault(header, rows) or (-1, message)
        raise _line_error(path, location.line + 2 + row, printable(fault, 300)) from error
    return atoms


def _is_cut(rows: Sequence[str]) -> bool:
    """Whether the last line has fewer decimals than all others."""
    ends = [_TAIL.search(row) for row in rows]
    *others, last = [len(end[1]) if end else 0 for end in ends]
    return len(set(others)) == 1 and len(others) > 1 and others[0] >= _DECIMALS and last < others[0]


def _columns(header: str) -> list[tuple[str, Callable[[str], object]]]:
    """ASE's name of each column of a frame, and the function that converts its text.

    Raises:
        ValueError: the header does not describe the columns.
    """
    properties = _header_entries(header).get("Properties", _SIMPLE)
    counts = [int(count) for count in str(properties).split(":")[2::3]]
    if not 0 < sum(counts) <= _MOST_COLUMNS or min(counts) < 1:
        raise ValueError(f"Properties have {sum(counts):,} columns")
    layout, names, _, convert = extxyz.parse_properties(properties)
    columns = [layout[name][0] for name in names for _ in range(layout[name][1])]
    return list(zip(columns, convert, strict=True))


def _header_entries(header: str) -> dict[str, Any]:
    """Keys and values in the header line of a frame."""
    entries: dict[str, Any] = extxyz.key_val_str_to_dict(header) if header else {}
    return entries


def _fault(header: str, rows: Sequence[str]) -> tuple[int, str] | None:
    """Index of the atom with the first fault, -1 for the header, and a description of the fault."""
    try:
        columns = _columns(header)
        lattice = _header_entries(header).get("Lattice")
    except Exception as error:  # noqa: BLE001  # ASE's reader raises errors of any class
        return -1, f"it does not describe a frame ({error})"
    if lattice is not None and np.shape(lattice) != (3, 3):
        return -1, "Lattice has not nine numbers"
    for number, row in enumerate(rows):
        values = row.split()
        if len(values) < len(columns):
            return number, f"it has {len(values)} of {len(columns)} columns ('{row.strip()}')"
        for (name, convert), value in zip(columns, values, strict=False):
            if name == "symbols" and value.capitalize() not in NUMBERS:
                return number, f"'{value}' is no element"
            try:
                convert(value)
            except (KeyError, ValueError):
                return number, f"'{value}' is no number"
    return None
