"""Frames from arrays: numpy archives, and the HDF5 layouts of SPICE, ANI-1x and TorchMD-Net.

All have one shape: N atomic numbers, and arrays of M frames beside them. An archive is one
such table; in HDF5 every group that holds numbers and positions is one, and gives its name to
its frames.
"""

import contextlib
import zipfile
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import h5py
import numpy as np
from numpy.typing import NDArray

from mdgraph.data.frames import LabelledFrame
from mdgraph.data.keys import NONE, Gaps, Request, choose, looks_like, no_energy
from mdgraph.data.units import ENERGY, LENGTH, unit_named
from mdgraph.errors import FileError, InputError, name_some
from mdgraph.io.files import disk_failures
from mdgraph.io.hdf5 import open_to_read, read_failures

_NUMBERS: Final = ("atomic_numbers", "nuclear_charges", "numbers", "types", "species", "z", "Z")
_POSITIONS: Final = ("positions", "coordinates", "conformations", "coords", "pos", "R")
_CELL: Final = ("cell", "lattice", "box")

Table = Mapping[str, Any]


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
    if _first(_NUMBERS, table) is None or _first(_POSITIONS, table) is None:
        raise InputError(
            f"{path.name} has {name_some(list(table), 12)}; it needs atomic numbers "
            f"({', '.join(_NUMBERS)}) and positions ({', '.join(_POSITIONS)})."
        )

    def tables() -> Generator[tuple[str, Table], None, None]:
        yield path.stem, table

    chosen = _choose(path, tables, request)
    return chosen, _frames(path, tables, chosen, request)


def read_hdf5(path: Path, request: Request) -> tuple[dict[str, str], Iterator[LabelledFrame]]:
    """The keys chosen and the frames of an .h5; raises as `read_structures` does."""

    def tables() -> Generator[tuple[str, Table], None, None]:
        with open_to_read(path) as file, read_failures(path):
            yield from _tables_of(file, "")

    if next(tables(), None) is None:
        raise InputError(
            f"{path.name} has no group with atomic numbers ({', '.join(_NUMBERS)}) and positions "
            f"({', '.join(_POSITIONS)}); convert it to extended XYZ or .npz."
        )
    chosen = _choose(path, tables, request)
    return chosen, _frames(path, tables, chosen, request)


def _tables_of(group: h5py.Group, name: str) -> Iterator[tuple[str, Table]]:
    if _first(_NUMBERS, group) is not None and _first(_POSITIONS, group) is not None:
        yield name, group
        return
    for key, member in group.items():
        if isinstance(member, h5py.Group):
            yield from _tables_of(member, f"{name}/{key}" if name else key)


def _first(names: tuple[str, ...], table: Table) -> str | None:
    return next((name for name in names if name in table), None)


def _choose(
    path: Path, tables: Callable[[], Generator[tuple[str, Table], None, None]], request: Request
) -> dict[str, str]:
    known: set[str] = set()
    candidates: dict[str, set[str]] = {"energy": set(), "forces": set(), "stress": set()}
    for _, table in tables():
        frames = _count(table)
        for name in table:
            known.add(name)
            if name in (*_NUMBERS, *_POSITIONS) or not hasattr(table[name], "shape"):
                continue
            shape = table[name].shape
            for label, found in candidates.items():
                rank = {"energy": (1, 2), "forces": (3,), "stress": (2, 3)}[label]
                fits = len(shape) in rank and shape[0] == frames
                fits = fits and (label != "energy" or shape[1:] in ((), (1,)))
                if fits and looks_like(label, name):
                    found.add(name)
    chosen: dict[str, str] = {}
    for label, found in candidates.items():
        wanted = getattr(request.keys, label)
        key = choose(label, known, wanted, found, lambda _, __: False, path.name)
        if key is not None:
            chosen[label] = key
    if "energy" not in chosen and request.keys.energy != NONE:
        raise no_energy(path.name, known)
    for label in ("charge", "dipole", "group"):
        key = getattr(request.keys, label)
        if key not in (None, NONE):
            if key not in known:
                raise InputError(f"{path.name} has no '{key}'; check --{label}-key.")
            chosen[label] = key
    return chosen


def _count(table: Table) -> int:
    name = _first(_POSITIONS, table)
    assert name is not None
    shape = table[name].shape
    return 1 if len(shape) == 2 else int(shape[0])


def _frames(
    path: Path,
    tables: Callable[[], Generator[tuple[str, Table], None, None]],
    chosen: dict[str, str],
    request: Request,
) -> Iterator[LabelledFrame]:
    gaps, number = Gaps(path.name, request.missing), 0
    with contextlib.closing(tables()) as source:
        for name, table in source:
            for frame, lacking in _of_table(path, name, table, chosen, request):
                if gaps.keeps(number, lacking):
                    yield frame
                number += 1
    gaps.say()


def _of_table(
    path: Path, group: str, table: Table, chosen: dict[str, str], request: Request
) -> Iterator[tuple[LabelledFrame, str | None]]:
    units = request.units
    where = f"{path.name}, {group}" if group else path.name
    numbers_name, positions_name = _first(_NUMBERS, table), _first(_POSITIONS, table)
    cell_name = _first(_CELL, table)
    assert numbers_name is not None
    assert positions_name is not None
    for name, label in ((positions_name, "length"), (chosen.get("energy", ""), "energy")):
        if name in table:
            _check_stated_unit(where, name, table[name], label, getattr(units, label))
    positions = np.asarray(table[positions_name], dtype=float)
    positions = positions[None] if positions.ndim == 2 else positions
    frames, atoms = positions.shape[:2]
    numbers = np.asarray(table[numbers_name]).astype(np.int64)
    if numbers.shape not in ((atoms,), (frames, atoms)):
        raise InputError(
            f"{where} has {numbers_name} of shape {numbers.shape} beside {positions_name} of "
            f"shape {positions.shape}; repair the file."
        )
    numbers = np.broadcast_to(numbers, (frames, atoms))
    cells = np.zeros((frames, 3, 3))
    if cell_name is not None:
        cells = np.broadcast_to(np.asarray(table[cell_name], dtype=float), (frames, 3, 3))
    found: dict[str, NDArray[Any]] = {}
    for label, name in chosen.items():
        if name not in table:
            continue
        value = np.asarray(table[name].asstr()[...] if _is_text(table[name]) else table[name])
        if value.shape[:1] != (frames,):
            value = np.broadcast_to(value, (frames, *value.shape))
        found[label] = value
    sign = -1.0 if "gradient" in chosen.get("forces", "").lower() else 1.0
    for row in range(frames):
        energy = float(np.ravel(found["energy"][row])[0]) if "energy" in found else np.nan
        forces = None
        if "forces" in found:
            forces = sign * found["forces"][row].astype(float) * units.force_factor
        stress = None
        if "stress" in found:
            stress = found["stress"][row].astype(float).reshape(3, 3) * units.stress_factor
        dipole = None
        if "dipole" in found:
            dipole = found["dipole"][row].astype(float) * units.length_factor
        lacking = "energy" if "energy" in chosen and not np.isfinite(energy) else None
        if "forces" in chosen and (forces is None or not np.isfinite(forces).all()):
            lacking = "forces"
        periodic = bool(cells[row].any())
        yield (
            LabelledFrame(
                numbers=numbers[row],
                positions=positions[row] * units.length_factor,
                cell=cells[row] * units.length_factor,
                pbc=np.full(3, periodic),
                energy=energy * units.energy_factor,
                forces=forces,
                stress=stress,
                dipole=dipole,
                charge=float(found["charge"][row]) if "charge" in found else 0.0,
                group=str(found["group"][row]) if "group" in found else group,
            ),
            lacking,
        )


def _is_text(value: Any) -> bool:
    return isinstance(value, h5py.Dataset) and h5py.check_string_dtype(value.dtype) is not None


def _check_stated_unit(where: str, name: str, value: Any, label: str, given: str) -> None:
    """Refuses numbers that the file itself says are in another unit than was asked for."""
    stated = getattr(value, "attrs", {}).get("units")
    if stated is None:
        return
    text = stated.decode() if isinstance(stated, bytes) else str(stated)
    table = LENGTH if label == "length" else ENERGY
    try:
        stated_unit = unit_named(text, table)
    except InputError:
        return
    if stated_unit != unit_named(given, table):
        raise InputError(
            f"{where} states that its {name} are in {text}, not in {given}; give "
            f"--{label}-unit {stated_unit}."
        )
