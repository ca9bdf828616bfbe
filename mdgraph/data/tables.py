"""Frames from arrays: numpy archives, and the HDF5 layouts of SPICE, ANI-1x and TorchMD-Net.

All have one shape: N atomic numbers, and arrays of M frames beside them. An archive is one
such table; in HDF5 every group that holds numbers and positions is one, and gives its name to
its frames.
"""

import contextlib
import zipfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import h5py
import numpy as np

from mdgraph.data.dataset import FORMAT
from mdgraph.data.frames import LabelledFrame
from mdgraph.data.keys import NONE, Gaps, Request, check_labels, choose, looks_like
from mdgraph.data.table_frames import NUMBERS, POSITIONS, Table, first_of, frames_of_table
from mdgraph.errors import FileError, InputError, name_some
from mdgraph.io.files import disk_failures
from mdgraph.io.hdf5 import open_to_read, read_failures


def read_archive(path: Path, request: Request) -> tuple[dict[str, str], Iterator[LabelledFrame]]:
    """The keys chosen and the frames of an .npz; raises as `read_structures` does."""
    with disk_failures(path, "read"):
        try:
            with np.load(path, allow_pickle=False) as file:
                table = {name: file[name] for name in file.files}
        except (ValueError, EOFError, zipfile.BadZipFile) as error:
            raise FileError(
                f"Cannot read {path}: it is damaged, or holds Python objects ({error}); save "
                "plain arrays."
            ) from error
    if first_of(NUMBERS, table) is None or first_of(POSITIONS, table) is None:
        raise InputError(
            f"{path.name} has {name_some(list(table), 12)}; it needs atomic numbers "
            f"({', '.join(NUMBERS)}) and positions ({', '.join(POSITIONS)})."
        )

    def tables() -> Generator[tuple[str, Table], None, None]:
        yield path.stem, table

    chosen = _choose(path, tables, request)
    return chosen, _frames(path, tables, chosen, request)


def read_hdf5(path: Path, request: Request) -> tuple[dict[str, str], Iterator[LabelledFrame]]:
    """The keys chosen and the frames of an .h5; raises as `read_structures` does."""

    def tables() -> Generator[tuple[str, Table], None, None]:
        with open_to_read(path) as file, read_failures(path):
            if file.attrs.get("format") == FORMAT:
                raise InputError(f"{path.name} is a data set already; give the files it came from.")
            yield from _tables_of(file, "")

    if next(tables(), None) is None:
        raise InputError(
            f"{path.name} has no group with atomic numbers ({', '.join(NUMBERS)}) and positions "
            f"({', '.join(POSITIONS)}); convert it to extended XYZ or .npz."
        )
    chosen = _choose(path, tables, request)
    return chosen, _frames(path, tables, chosen, request)


def _tables_of(group: h5py.Group, name: str) -> Iterator[tuple[str, Table]]:
    if first_of(NUMBERS, group) is not None and first_of(POSITIONS, group) is not None:
        yield name, group
        return
    for key, member in group.items():
        if isinstance(member, h5py.Group):
            yield from _tables_of(member, f"{name}/{key}" if name else key)


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
    return (1 if len(shape) == 2 else int(shape[0])), (int(shape[-2]) if len(shape) > 1 else 0)


def _frames(
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
