"""Structures from any file that ASE reads, from PDB and mmCIF."""

import bz2
import gzip
import logging
import lzma
import warnings
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final, TypeVar

import ase.io
from ase.io.formats import UnknownFileTypeError, filetype, get_ioformat

from mdgraph.errors import FileError, InputError
from mdgraph.io.atoms import from_ase
from mdgraph.io.files import disk_failures
from mdgraph.io.mmcif import parse_mmcif
from mdgraph.io.pdb import parse_pdb
from mdgraph.io.trajectories import H5MD_SUFFIXES, read_trajectory
from mdgraph.system import System

_Frame = TypeVar("_Frame")
_logger = logging.getLogger(__name__)

_PDB_SUFFIXES: Final = (".pdb", ".ent")
_MMCIF_SUFFIXES: Final = (".mmcif", ".pdbx")
_DECOMPRESS: Final = {".gz": gzip.decompress, ".bz2": bz2.decompress, ".xz": lzma.decompress}

PARSER_ERRORS: Final = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    EOFError,
    ImportError,
    LookupError,
    OSError,
    RuntimeError,
    StopIteration,
    SyntaxError,
    TypeError,
    ValueError,
    lzma.LZMAError,
    zlib.error,
)
"""What the readers of ASE raise on files that are not what they seem."""


def read_systems(path: str | Path, index: int | slice | str = ":") -> list[System]:
    """Reads the frames of a structure file.

    PDB and mmCIF are read here, because ASE takes the names of their atoms for elements
    where the element column is empty, and reads no atom after a MODEL record. Trajectories
    in H5MD are those that mdgraph writes; everything else goes through ASE.

    Args:
        path: the file; it may be compressed (`.gz`, `.bz2`, `.xz`).
        index: which frames, as `ase.io.read` takes it: an integer, a slice or its text.

    Raises:
        FileError: the file is absent, empty, truncated or not readable.
        InputError: it holds no such frame, an element is not given, the spin is not a
            singlet, or the content makes no `System`.
    """
    path = Path(path)
    chosen = _parse_index(index) if isinstance(index, str) else index
    if path.suffix.lower() in H5MD_SUFFIXES:
        with read_trajectory(path) as trajectory:
            frames = _select(path, range(len(trajectory)), chosen)
            return [trajectory.system(frame) for frame in frames]
    suffix = _suffixes(path)[0]
    if suffix in _PDB_SUFFIXES:
        return _select(path, parse_pdb(path, _text(path)), chosen)
    if suffix in _MMCIF_SUFFIXES or (suffix == ".cif" and "_atom_site.Cartn_x" in _text(path)):
        return _select(path, parse_mmcif(path, _text(path)), chosen)
    return _read_with_ase(path, chosen)


def read_system(path: str | Path, index: int = -1) -> System:
    """Reads one frame of a structure file, the last one by default; see `read_systems`."""
    return read_systems(path, index)[0]


def _parse_index(text: str) -> int | slice:
    try:
        parts = [int(part) if part.strip() else None for part in text.split(":")]
    except ValueError:
        parts = []
    if len(parts) == 1 and parts[0] is not None:
        return parts[0]
    if len(parts) not in (2, 3):
        raise InputError(
            f"The frame index '{text}' is neither an integer nor a slice; give one like '-1' "
            "or '0:100:10'."
        )
    return slice(*parts)


def _suffixes(path: Path) -> tuple[str, str]:
    """Suffix of the format and suffix of the compression, in lower case."""
    last = path.suffix.lower()
    return (Path(path.stem).suffix.lower(), last) if last in _DECOMPRESS else (last, "")


def _text(path: Path) -> str:
    with disk_failures(path, "read"):
        content = path.read_bytes()
    try:
        content = _DECOMPRESS.get(_suffixes(path)[1], bytes)(content)
    except (EOFError, OSError, lzma.LZMAError, zlib.error) as error:
        raise unreadable(path, error) from error
    # Only remarks hold other characters.
    return content.decode("ascii", errors="replace")


def _read_with_ase(path: Path, index: int | slice) -> list[System]:
    with disk_failures(path, "read"), path.open("rb") as file:
        if not file.read(1):
            raise FileError(f"Cannot read {path}: it is empty; put back the original.")
    wanted = index if isinstance(index, slice) else slice(index, index + 1 or None)
    name = str(path.absolute())  # ASE gives a meaning to some relative names
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            kind = get_ioformat(filetype(name))
            # Formats of one frame take no other index.
            wanted = slice(None) if kind.single else wanted
            frames = list(ase.io.iread(name, wanted, kind.name, do_not_split_by_at_sign=True))
        except UnknownFileTypeError as error:
            raise FileError(
                f"Cannot read {path}: ASE knows no format by this name or content; convert it, "
                "for example to extended XYZ."
            ) from error
        except PARSER_ERRORS as error:
            raise unreadable(path, error) from error
    for message in dict.fromkeys(str(warning.message) for warning in caught):
        _logger.warning("%s: %s", path, message)
    systems = []
    for atoms in _select(path, frames, index) if kind.single else frames:
        try:
            systems.append(from_ase(atoms))
        except InputError as error:
            raise InputError(f"{path}: {error}") from error
    if any(atoms.constraints for atoms in frames):
        _logger.warning("%s: its constraints are not used", path)
    if not systems:
        raise _no_frame(path, index)
    return systems


def unreadable(path: Path, error: Exception) -> FileError:
    """The error for a file on which a parser failed."""
    reason = " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")
    return FileError(
        f"Cannot read {path}: it is damaged, truncated or not what its name says "
        f"({reason}); put back the original."
    )


def _select(path: Path, frames: Sequence[_Frame], index: int | slice) -> list[_Frame]:
    if isinstance(index, slice):
        selected = list(frames[index])
    else:
        selected = [frames[index]] if -len(frames) <= index < len(frames) else []
    if not selected:
        raise _no_frame(path, index)
    return selected


def _no_frame(path: Path, index: int | slice) -> InputError:
    if isinstance(index, slice):
        parts = (index.start, index.stop, *([] if index.step is None else [index.step]))
        text = ":".join("" if part is None else str(part) for part in parts)
    else:
        text = str(index)
    return InputError(f"{path} holds no frame at index {text}; give one within the file.")
