"""Frames from arrays: numpy archives, and the HDF5 layouts of SPICE, ANI-1x and TorchMD-Net.

All have one shape: N atomic numbers, and arrays of M frames beside them. An archive is one
such table; in HDF5 every group that holds numbers and positions is one, and gives its name to
its frames.
"""

import contextlib
import math
import zipfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, Final

import h5py
import numpy as np
from numpy.typing import NDArray

from mdgraph.data.dataset import FORMAT
from mdgraph.data.frames import LabelledFrame
from mdgraph.data.keys import NONE, Gaps, Request, check_labels, choose, looks_like
from mdgraph.data.table_frames import NUMBERS, POSITIONS, Table, first_of, frames_of_table
from mdgraph.errors import FileError, InputError, name_some, printable
from mdgraph.io.files import LARGEST_RATIO, disk_failure, readable_file
from mdgraph.io.hdf5 import members, open_to_read, read_failures

_SMALL: Final = 1 << 28
"""Bytes that an archive may hold whatever its own size."""


def read_archive(path: Path, request: Request) -> tuple[dict[str, str], Iterator[LabelledFrame]]:
    """The keys chosen and the frames of an .npz; raises as `read_structures` does."""
    readable_file(path, "an archive of arrays")
    try:
        with zipfile.ZipFile(path) as archive:
            table = {
                part.filename.removesuffix(".npy"): _npz_array(path, archive, part)
                for part in _parts(path, archive)
            }
    except (FileError, OSError) as error:
        if isinstance(error, FileError):
            raise
        raise disk_failure(path, "read", error) from error
    except Exception as error:  # bytes that no writer wrote may end in any error
        raise FileError(
            f"Cannot read {path}: it is no whole archive of numpy's ({printable(error, 200)}); "
            "save it again with numpy.savez."
        ) from error
    if first_of(NUMBERS, table) is None or first_of(POSITIONS, table) is None:
        raise InputError(
            f"{path.name} has {name_some(list(table), 12)}; it needs atomic numbers "
            f"({', '.join(NUMBERS)}) and positions ({', '.join(POSITIONS)})."
        )

    def tables() -> Generator[tuple[str, Table], None, None]:
        yield path.stem, table

    chosen = _choose(path, tables, request)
    return chosen, _table_frames(path, tables, chosen, request)


def _parts(path: Path, archive: zipfile.ZipFile) -> list[zipfile.ZipInfo]:
    """Entries of an archive; raises FileError where they unpack to more than can be true."""
    parts = archive.infolist()
    bound = max(_SMALL, LARGEST_RATIO * path.stat().st_size)
    unpacked = sum(part.file_size for part in parts)
    if unpacked > bound:
        raise FileError(
            f"Cannot read {path}: it says that it unpacks to {unpacked:,} bytes, more than arrays "
            "of numbers do; save it again with numpy.savez."
        )
    return parts


def _npz_array(path: Path, archive: zipfile.ZipFile, part: zipfile.ZipInfo) -> NDArray[Any]:
    """One array, of which the size is known before it is taken.

    Raises:
        FileError: it holds Python objects, or its size is another than it says.
        ValueError, OSError: it is none.
    """
    with archive.open(part) as file:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0
        if version != (1, 0):
            read = np.lib.format.read_array_header_2_0
        shape, by_columns, kind = read(file)
        if kind.hasobject:
            raise FileError(
                f"Cannot read {path}: its {part.filename} holds Python objects, which may run "
                "code; save plain arrays."
            )
        size = math.prod(shape) * kind.itemsize
        if min(shape, default=0) < 0 or size > part.file_size:
            raise FileError(
                f"Cannot read {path}: its {part.filename} says that it has {size:,} bytes and has "
                f"{part.file_size:,}; save it again with numpy.savez."
            )
        found = np.frombuffer(file.read(size), dtype=kind)
        file.read()  # the archive compares its checksum at the end alone
    return found.reshape(shape, order="F" if by_columns else "C")


def read_hdf5(path: Path, request: Request) -> tuple[dict[str, str], Iterator[LabelledFrame]]:
    """The keys chosen and the frames of an .h5; raises as `read_structures` does."""

    def tables() -> Generator[tuple[str, Table], None, None]:
        with open_to_read(path) as file, read_failures(path):
            if str(file.attrs.get("format")) == FORMAT:
                raise InputError(f"{path.name} is a data set already; give the files it came from.")
            yield from _tables_of(file, "", path, set())

    if next(tables(), None) is None:
        raise InputError(
            f"{path.name} has no group with atomic numbers ({', '.join(NUMBERS)}) and positions "
            f"({', '.join(POSITIONS)}); convert it to extended XYZ or .npz."
        )
    chosen = _choose(path, tables, request)
    return chosen, _table_frames(path, tables, chosen, request)


def _tables_of(
    group: h5py.Group, name: str, path: Path, known: set[Any], above: tuple[Any, ...] = ()
) -> Iterator[tuple[str, Table]]:
    """Groups that are tables, each once: links may lead back to where they came from."""
    address = h5py.h5o.get_info(group.id).addr
    if address in above:
        raise InputError(
            f"{path.name} has a link '{name}' that leads back to a group which holds it; remove it."
        )
    if address in known:
        return
    known.add(address)
    table = members(group, path)
    if first_of(NUMBERS, table) is not None and first_of(POSITIONS, table) is not None:
        for key in (first_of(NUMBERS, table), first_of(POSITIONS, table)):
            if not isinstance(table[key or ""], h5py.Dataset):
                raise InputError(
                    f"{path.name} has a group where the {key} of '{name}' are to be; write arrays."
                )
        yield name, table
        return
    groups = [key for key, member in table.items() if isinstance(member, h5py.Group)]
    half = first_of(POSITIONS, table) or (None if groups else first_of(NUMBERS, table))
    if half is not None:
        raise InputError(
            f"{path.name} has {half} in '{name or '/'}' without the other of atomic numbers "
            f"({', '.join(NUMBERS)}) and positions ({', '.join(POSITIONS)}); give it both, or "
            "remove it."
        )
    for key in groups:
        member = table[key]
        if isinstance(member, h5py.Group):
            yield from _tables_of(
                member, f"{name}/{key}" if name else key, path, known, (*above, address)
            )


def _choose(
    path: Path, tables: Callable[[], Generator[tuple[str, Table], None, None]], request: Request
) -> dict[str, str]:
    known: set[str] = set()
    largest = 0
    candidates: dict[str, set[str]] = {"energy": set(), "forces": set(), "stress": set()}
    for _, table in tables():
        frames, atoms = _count(table)
        largest = max(largest, atoms)
        for name in table:
            known.add(name)
            if name in (*NUMBERS, *POSITIONS) or not hasattr(table[name], "shape"):
                continue
            shape = table[name].shape
            for label, found in candidates.items():
                rank = {"energy": (1, 2), "forces": (3,), "stress": (2, 3)}[label]
                fits = len(shape) in rank and shape[0] == frames
                fits = fits and (label != "energy" or shape[1:] in ((), (1,)))
                # An array with the very name of a label means it; `_rows` looks at its shape.
                if name == label or (fits and looks_like(label, name)):
                    found.add(name)
    chosen: dict[str, str] = {}
    for label, found in candidates.items():
        wanted = getattr(request.keys, label)
        key = choose(label, known, wanted, found, lambda _, __: False, path.name)
        if key is not None:
            chosen[label] = key
    check_labels(path.name, chosen, known, request.keys, largest)
    defaults = {"charge": "charge", "dipole": None, "group": None, "weight": None}
    for label, default in defaults.items():
        key = getattr(request.keys, label) or (default if default in known else None)
        if key not in (None, NONE):
            if key not in known:
                raise InputError(f"{path.name} has no '{key}'; check --{label}-key.")
            chosen[label] = key
    return chosen


def _count(table: Table) -> tuple[int, int]:
    """Frames, and atoms of each."""
    name = first_of(POSITIONS, table)
    assert name is not None
    shape = table[name].shape
    if len(shape) < 2:
        return 0, 0  # its reader says what is wrong
    return (1 if len(shape) == 2 else int(shape[0])), int(shape[-2])


def _table_frames(
    path: Path,
    tables: Callable[[], Generator[tuple[str, Table], None, None]],
    chosen: dict[str, str],
    request: Request,
) -> Iterator[LabelledFrame]:
    gaps, number = Gaps(path.name, request.missing), 0
    with contextlib.closing(tables()) as source:
        for name, table in source:
            for frame, lacking in frames_of_table(path, name, table, chosen, request):
                if gaps.keeps(number, lacking):
                    yield frame
                number += 1
    gaps.say()
