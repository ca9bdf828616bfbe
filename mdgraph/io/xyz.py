"""XYZ and extended XYZ of any program: this module locates the frames, ASE parses their columns.

ASE does not check the number of atoms that a frame declares, stops silently at a blank line, and
does not name the line of an error. This module counts the lines first and then parses the
requested frames only.
"""

import io
import itertools
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, Final, Protocol

import numpy as np
from ase import Atoms
from ase.io import extxyz
from numpy.typing import NDArray
from pydantic_core import from_json, to_json

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
from mdgraph.units import HEAVY_HYDROGEN, NUMBERS, SYMBOLS

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
_ATOMIC_NUMBER: Final = re.compile(r"\A\s*(\d{1,3})(?=\s)")
"""Before positions, where other programs write it for a symbol."""
_SPELLINGS: Final = {
    b"Lattice=": re.compile(rb'(?i)(?<!\S)lattice=(?="(?:\s*[-+.\de]+){9}\s*")'),
    b"Properties=": re.compile(rb"(?i)(?<!\S)properties=(?=\w+:[rsil]:\d)"),
    b"pbc=": re.compile(rb'(?i)(?<!\S)pbc=(?="?[tf01])'),
}
"""Keys of a header, which GPUMD and others write with small or capital letters alike."""
_MOST_COLUMNS: Final = 10_000
_DECIMALS: Final = 6
_TAIL: Final = re.compile(r"\.(\d+)\Z")
"""Decimals at the end of a line. If all lines have the same number of them, six or more, and the
last line of the file has fewer and no line end, the file was cut."""


@dataclass(frozen=True)
class FrameText:
    """A frame of an XYZ file that is not parsed yet.

    Attributes:
        path: the file, or a name of what is read, for errors.
        number: number of the frame, from 0.
        line: line number of its number of atoms, from 1.
        start: offset in bytes.
        atoms: number of atoms.
        content: its lines; empty where only its place is wanted.
    """

    path: Path
    number: int
    line: int
    start: int
    atoms: int
    content: bytes

    def __reduce__(self) -> Any:  # a third of the time of pickling a dict
        place = (self.path, self.number, self.line, self.start)
        return FrameText, (*place, self.atoms, self.content)


def read_xyz(path: Path, index: int | slice) -> Iterator[tuple[int, Atoms]]:
    """Yields frames of an XYZ file with their numbers.

    Args:
        path: the file; it may be compressed (`.gz`, `.bz2`, `.xz`).
        index: the frames to read; missing frames are no error.

    Raises:
        FileError: the file is not valid XYZ; the error names the line.
    """
    frames = index if isinstance(index, slice) else slice(index, index + 1 or None)
    with closing(open_xyz(path)) as file, disk_failures(path, "read"):
        locations = (replace(text, content=b"") for text in _sized_frame_texts(path, file))
        counts_from_start = all(end is None or end >= 0 for end in (frames.start, frames.stop))
        if counts_from_start and (frames.step or 1) > 0:
            # Later frames are not read.
            selection = list(itertools.islice(locations, frames.start, frames.stop, frames.step))
        else:
            selection = list(locations)[frames]
        for location in selection:
            file.seek(location.start)
            (text,) = itertools.islice(frame_texts(path, file), 1)
            yield location.number, parse_frame(replace(location, content=text.content))


def count_frames(path: Path) -> int:
    """Number of frames in an XYZ file, without parsing them; raises FileError as `read_xyz`."""
    with closing(open_xyz(path)) as file, disk_failures(path, "read"):
        return sum(1 for _ in _sized_frame_texts(path, file))


def open_xyz(path: Path) -> IO[bytes]:
    """Opens a file for `frame_texts`; a compressed one is unpacked in memory.

    Raises:
        FileError: see `readable_file` and `read_decompressed`.
    """
    readable_file(path, "a structure")
    if path.suffix.lower() in COMPRESSIONS:
        return io.BytesIO(read_decompressed(path, "a structure", LARGEST_TEXT))
    with disk_failures(path, "read"):
        return path.open("rb")


def _sized_frame_texts(path: Path, file: IO[bytes]) -> Iterator[FrameText]:
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    return frame_texts(path, file, size)


class Lines(Protocol):
    """What gives lines of bytes, as files do; an empty one at the end."""

    def readline(self, size: int, /) -> bytes:
        """The next line, or its first `size` bytes."""
        ...


class BufferedLines:
    """Lines of what is read in parts; many that follow each other are taken at once.

    A line counts once its end is there, or nothing more comes. No more is kept than the last part
    and the beginning of a line before it.
    """

    def __init__(self, read: Callable[[], bytes]) -> None:
        """Reads nothing yet.

        Args:
            read: gives the next bytes, empty at the end.
        """
        self._read = read
        self._buffer, self._start = b"", 0
        self._ends: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        # Of lines before each end, how many begin as blank ones do.
        self._may_be_blank: NDArray[np.int64] = np.zeros(1, dtype=np.int64)
        self._next = 0  # place among the ends of that of the line that comes
        self._has_ended = False

    def readline(self, size: int, /) -> bytes:
        """The next line, its first `size` bytes, or what is left at the end; empty after that."""
        if self._next == len(self._ends):
            self._fill(size)
        has_end = self._next < len(self._ends)
        end = int(self._ends[self._next]) if has_end else len(self._buffer)
        if end - self._start > size:
            end = self._start + size
        elif has_end:
            self._next += 1
        line = self._buffer[self._start : end]
        self._start = end
        return line

    def take(self, count: int) -> tuple[int, bytes]:
        """The next lines that are in memory, at most so many, up to the first that is blank.

        Waits for a line where none is in memory whole, and for no other; so a caller that wants
        more calls again, and keeps the lines itself.

        Returns:
            How many lines, and their bytes, less than 16 MiB. None are taken where the next one is
            blank, very long or without an end, which `readline` tells.
        """
        if self._next == len(self._ends):
            self._fill(_LONGEST_LINE)
        last = min(self._next + count, len(self._ends))
        if len(self._buffer) - self._start >= _LONGEST_LINE:
            last = min(last, int(np.searchsorted(self._ends, self._start + _LONGEST_LINE)))
        if last == self._next:
            return 0, b""
        end = int(self._ends[last - 1])
        if self._may_be_blank[last] > self._may_be_blank[self._next]:
            lines = self._buffer[self._start : end].split(b"\n")[:-1]
            blank = next((place for place, line in enumerate(lines) if not line.strip()), None)
            if blank == 0:
                return 0, b""
            if blank is not None:
                last = self._next + blank
                end = int(self._ends[last - 1])
        content = self._buffer[self._start : end]
        number = last - self._next
        self._start, self._next = end, last
        return number, content

    def _fill(self, size: int) -> None:
        """Reads on until a line is whole, so many bytes of it are there, or nothing more comes."""
        while self._next == len(self._ends) and len(self._buffer) - self._start < size:
            part = b"" if self._has_ended else self._read()
            if not part:
                self._has_ended = True
                return
            rest = self._buffer[self._start :]
            ends = np.flatnonzero(np.frombuffer(part, dtype=np.uint8) == ord("\n")) + 1
            self._ends = ends + len(rest)
            self._buffer, self._start, self._next = rest + part, 0, 0
            starts = np.concatenate([[0], self._ends[:-1]])[: len(ends)]
            characters = np.frombuffer(self._buffer, dtype=np.uint8)
            begin_blank = characters[starts] <= ord(" ")
            self._may_be_blank = np.concatenate([[0], begin_blank.cumsum()])


class _NumberedLines:
    """Lines that know how many there were, and take one back.

    Attributes:
        number: lines so far.
        offset: bytes so far.
    """

    def __init__(self, path: Path, file: Lines) -> None:
        self._path, self._file = path, file
        self.number = self.offset = 0
        self._next: bytes | None = None

    def take(self) -> bytes:
        """The next line; empty at the end."""
        line = self._file.readline(_LONGEST_LINE) if self._next is None else self._next
        self._next = None
        if self.offset == 0 and line.startswith(UTF8_MARK):
            self.offset, line = len(UTF8_MARK), line[len(UTF8_MARK) :]
        if len(line) == _LONGEST_LINE:
            fault = f"it is longer than {_LONGEST_LINE:,} bytes"
            raise _line_error(self._path, self.number + 1, fault)
        self.number += 1
        self.offset += len(line)
        return line

    def take_rows(self, count: int) -> tuple[int, bytes]:
        """The next lines, up to the first that is blank, absent or too long for `take`.

        Returns:
            How many there are, and all of them.
        """
        if self._next is not None:
            return 0, b""
        together = self._file.take if isinstance(self._file, BufferedLines) else None
        parts: list[bytes] = []
        rows = 0
        while rows < count:
            lines, part = together(count - rows) if together is not None else (0, b"")
            if lines == 0:
                lines, part = 1, self._file.readline(_LONGEST_LINE)
                if len(part) == _LONGEST_LINE or not part.strip():
                    self._next = part
                    break
            parts.append(part)
            rows += lines
        content = b"".join(parts)
        self.number += rows
        self.offset += len(content)
        return rows, content

    def give_back(self, line: bytes) -> None:
        """Makes a line the next one again."""
        self._next = line
        self.number -= 1
        self.offset -= len(line)


def frame_texts(path: Path, file: Lines, size: int | None = None) -> Iterator[FrameText]:
    """Yields the frames of XYZ by their numbers of atoms; reads no line beyond a frame.

    Only after a frame without Properties a line more is read, as vectors of its cell may follow.

    Args:
        path: of the file, for errors.
        file: its lines; it need not have an end yet.
        size: of the file in bytes, which bounds the number of atoms; None if it is not known, and
            then the size of the largest text that is read from a file does.

    Raises:
        FileError: it is empty or not valid XYZ; the error names the frame and the line.
        InputError: a frame has no atoms.
    """
    lines, blank = _NumberedLines(path, file), 0
    for number in itertools.count():
        while (count_line := lines.take()) and not count_line.strip():
            blank = lines.number
        if not count_line:
            if lines.number == 1:
                raise FileError(f"Cannot read {path}: it is empty; give a file with atoms.")
            return
        first, start = lines.number, lines.offset - len(count_line)
        count = _COUNT.fullmatch(count_line)
        if count is None and number and blank == first - 1:
            _logger.warning("%s: what follows line %d is not read", path, blank)
            return
        if count is None:
            raise _count_error(path, first, count_line, number)
        atoms = int(count[1])
        if atoms == 0:
            raise InputError(f"{path}: line {first}: frame {number} has no atoms; remove it.")
        if size is not None and atoms * _LEAST_LINE > size:
            raise _line_error(
                path,
                first,
                f"{atoms:,} atoms are declared, and the file has {size:,} bytes",
                number,
            )
        if size is None and atoms * _LEAST_LINE > LARGEST_TEXT:  # of a pipe this would keep all
            raise _line_error(
                path,
                first,
                f"{atoms:,} atoms are declared, more than {LARGEST_TEXT:,} bytes can hold",
                number,
            )
        header = _respelled(lines.take())
        rows, text = lines.take_rows(atoms)
        content = [count_line, header, text]
        for row in range(rows, atoms):
            text = lines.take()
            if not text.strip():
                fault = "is blank" if text else "is missing, the file ends before it"
                raise _line_error(
                    path,
                    lines.number,
                    f"the line of atom {row + 1} of the {atoms:,} atoms declared in line "
                    f"{first} {fault}",
                    number,
                )
            content.append(text)
        for _ in range(0 if b"Properties=" in header else _VECTORS):
            text = lines.take()
            if not text.lstrip().startswith(b"VEC"):
                lines.give_back(text)
                break
            content.append(text)
        yield FrameText(path, number, first, start, atoms, b"".join(content))


def _respelled(header: bytes) -> bytes:
    """A header with its keys as extended XYZ spells them; else a cell would not be seen."""
    for key, other in _SPELLINGS.items():
        if key not in header:
            header = other.sub(key, header, count=1)
    return header


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


def _line_error(path: Path, line: int, fault: str, frame: int = 0) -> FileError:
    where = f"frame {frame}, line {line}" if frame else f"line {line}"
    return FileError(f"Cannot read {path}: {where}: {fault}; repair the line.")


def parse_frame(frame: FrameText) -> Atoms:
    """Parses one frame.

    Raises:
        FileError: a line is no valid XYZ, or the file was cut within it.
    """
    path = frame.path
    text = as_text(path, frame.content)
    lines = re.split("\r\n|\n", text)
    header, rows = lines[1].strip(), lines[2 : 2 + frame.atoms]
    # Only the last line of a file lacks its end.
    if not text.endswith("\n") and _is_cut(rows):
        fault = "the file ends within a number"
        raise _line_error(path, frame.line + 1 + len(rows), fault, frame.number)
    if "Properties=" not in header:
        rows = lines[2 : 2 + frame.atoms] = [_ATOMIC_NUMBER.sub(_symbol, row) for row in rows]
    if header.startswith("# CELL"):
        fault = "it is a header of i-PI, whose cell and units are not read (write extended XYZ)"
        raise _line_error(path, frame.line + 1, fault, frame.number)
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
        line = frame.line + 2 + row
        raise _line_error(path, line, printable(fault, 300), frame.number) from error
    return atoms


def _symbol(match: re.Match[str]) -> str:
    number = int(match[1])
    return SYMBOLS[number] if 0 < number < len(SYMBOLS) else match[0]


@dataclass(frozen=True, eq=False)
class PlainFrame:
    """What a `System` takes of a frame of the usual kind.

    Attributes:
        numbers: (N,) int64, atomic numbers.
        columns: (N, n) float64 of the columns below, by their names; positions are `pos`.
        cell: (3, 3) float64, A; zeros where there is none.
        pbc: (3,) bool.
        charge: e, or None.
    """

    numbers: NDArray[np.int64]
    columns: Mapping[str, NDArray[np.float64]]
    cell: NDArray[np.float64]
    pbc: NDArray[np.bool_]
    charge: float | None


def parse_plain_frame(frame: FrameText) -> PlainFrame | None:
    """What `parse_frame` finds, some ten times as fast; None for frames that need that one.

    These have no lattice of nine numbers, other columns than a species and real numbers, an unusual
    header, or a fault.
    """
    header, _, rows = frame.content.partition(b"\n")[2].partition(b"\n")
    if not rows.endswith(b"\n") or _PLAIN_HEADER.fullmatch(header) is None:
        return None
    matches = _PLAIN_ENTRY.findall(header)
    entries = {key: quoted or bare for key, quoted, bare in matches}
    widths = _plain_columns(entries.get(b"Properties", b""))
    periodic = _PERIODIC.get(entries.get(b"pbc", b"T T T" if b"Lattice" in entries else b"F F F"))
    charge, cell = _numbers_of(entries, b"charge", 1), _numbers_of(entries, b"Lattice", 9)
    stress = _numbers_of(entries, b"stress", 9)
    if widths is None or periodic is None or charge is None or cell is None or stress is None:
        return None
    if len(matches) > len(entries) or not _UNUSUAL_ENTRIES.isdisjoint(entries):
        return None
    texts = rows.split()
    width = 1 + sum(widths.values())
    if len(texts) != frame.atoms * width:
        return None
    # A row of another length would put a species among the numbers of the next one, or not begin
    # with its own.
    species = texts[::width]
    numbers = _numbers_of_species(b" ".join(species))
    begins = map(bytes.startswith, map(bytes.lstrip, rows.split(b"\n")), species)
    del texts[::width]
    values = parse_decimals(texts)
    if numbers is None or values is None or not all(begins):
        return None
    table = values.reshape(frame.atoms, width - 1)
    ends = itertools.accumulate(widths.values())
    columns = {
        name: table[:, end - count : end]
        for (name, count), end in zip(widths.items(), ends, strict=True)
    }
    return PlainFrame(
        numbers,
        columns,
        cell.reshape(3, 3) if len(cell) else np.zeros((3, 3)),
        np.array(periodic),
        float(charge[0]) if len(charge) else None,
    )


_PLAIN_ENTRY: Final = re.compile(rb"""([A-Za-z_][\w.-]*)=(?:"([^"'\\]*)"|([^\s"'\\{}\[\]=]+))""")
_PLAIN_HEADER: Final = re.compile(rb"(?:\s*%b(?=\s|\Z))+\s*" % _PLAIN_ENTRY.pattern)
_PERIODIC: Final = {
    " ".join("FT"[flag] for flag in flags).encode(): flags
    for flags in itertools.product((False, True), repeat=3)
}
_UNUSUAL_ENTRIES: Final = {b"total_charge", b"spin", b"spin_multiplicity", b"multiplicity"} | {
    name.encode()
    for name in {*extxyz.per_config_properties, *extxyz.SPECIAL_3_3_KEYS}
    - {"energy", "free_energy", "stress", "Lattice"}
}
"""Entries of a header that mean more, or that ASE checks."""

_UNUSUAL_COLUMNS: Final = {"species", "symbols", "Z", "numbers", "positions", "move_mask"}
_WIDTHS: Final = {"pos": 3, "masses": 1, "momenta": 3}


@lru_cache(maxsize=16)
def _plain_columns(properties: bytes) -> dict[str, int] | None:
    """Numbers of columns by their names, after one of species; None for other layouts."""
    match = re.fullmatch(r"species:S:1((?::\w+:R:\d{1,3})+)", properties.decode("latin-1"))
    if match is None:
        return None
    parts = match[1].split(":")[1:]
    names, counts = parts[::3], [int(count) for count in parts[2::3]]
    widths = dict(zip(names, counts, strict=True))
    usual = len(widths) == len(names) and "pos" in widths and min(counts) > 0
    if not usual or not _UNUSUAL_COLUMNS.isdisjoint(names):
        return None
    if any(widths.get(name, width) != width for name, width in _WIDTHS.items()):
        return None
    known = {extxyz.REV_PROPERTY_NAME_MAP.get(name, name) for name in names}
    return widths if len(known) == len(names) and "initial_charges" not in known else None


@lru_cache(maxsize=64)
def _numbers_of_species(species: bytes) -> NDArray[np.int64] | None:
    """(N,) int64, read-only; None where one is not written as usual."""
    try:
        numbers = np.array([NUMBERS[symbol] for symbol in species.decode("ascii").split(" ")])
    except (KeyError, UnicodeDecodeError):
        return None
    numbers.flags.writeable = False
    return numbers


def _numbers_of(
    entries: Mapping[bytes, bytes], name: bytes, count: int
) -> NDArray[np.float64] | None:
    """Numbers of an entry, none of an absent one; None if it has others than so many."""
    if name not in entries:
        return np.zeros(0)
    numbers = parse_decimals(entries[name].split())
    return numbers if numbers is not None and len(numbers) == count else None


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
                if (mass := HEAVY_HYDROGEN.get(value.upper())) is not None:
                    advice = f"write H, and masses such as {mass} in a column masses:R:1"
                    return number, f"'{value}' is an isotope of hydrogen ({advice})"
                return number, f"'{value}' is not an element"
            try:
                convert(value)
            except (KeyError, ValueError):
                return number, f"'{value}' is not a number"
    return None


# Many decimal numbers at once: pydantic's JSON is ten times as fast as `float` and `repr` one by
# one, with the same results, the nearest float64 of a text and the shortest text of a float64.

_OTHER_BYTES: Final = bytes(set(range(256)) - set(b"0123456789+-.eE"))
_SMALLEST, _LARGEST = 1e-4, 1e16
"""JSON writes exponents from other sizes on than Python does, beyond these."""


def parse_decimals(texts: Sequence[bytes]) -> NDArray[np.float64] | None:
    """The numbers, (n,) float64; None if one of them is no plain decimal number."""
    joined = b",".join(texts)
    plain = len(joined.translate(None, _OTHER_BYTES)) == len(joined) - len(texts) + 1
    if not plain or not texts:
        return None
    try:
        numbers = from_json(b"[%b]" % joined)  # of integers also, beyond all bounds
        return np.array(numbers, dtype=np.float64)
    except (ValueError, OverflowError):
        pass
    try:  # JSON has no leading zeros and signs, and no point without digits on both sides
        return np.array([float(text) for text in texts])
    except ValueError:
        return None


def format_decimals(values: NDArray[np.float64]) -> list[bytes]:
    """`repr` of each number of an array of any shape, in order."""
    flat = values.ravel()
    numbers = flat.tolist()
    texts = to_json(numbers)[1:-1].split(b",")
    size = np.abs(flat)
    usual = (size >= _SMALLEST) & (size < _LARGEST)
    for index in np.flatnonzero(~usual).tolist():
        texts[index] = repr(numbers[index]).encode()
    return texts
