"""Frames of one table: N atomic numbers, and arrays of M frames beside them."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import h5py
import numpy as np
from numpy.typing import NDArray

from mdgraph.data.frames import LabelledFrame
from mdgraph.data.keys import Request
from mdgraph.data.units import Units
from mdgraph.errors import InputError

NUMBERS: Final = ("atomic_numbers", "nuclear_charges", "numbers", "types", "species", "z", "Z")
POSITIONS: Final = ("positions", "coordinates", "conformations", "coords", "pos", "R")
_CELL: Final = ("cell", "lattice", "box")

Table = Mapping[str, Any]


def first_of(names: tuple[str, ...], table: Table) -> str | None:
    """The first of some names that a table has."""
    return next((name for name in names if name in table), None)


def frames_of_table(
    path: Path, group: str, table: Table, chosen: dict[str, str], request: Request
) -> Iterator[tuple[LabelledFrame, str | None]]:
    """Frames of a table, each with the label that it lacks or None.

    Args:
        path: of the file.
        group: of the frames, where the table names none.
        table: arrays by name.
        chosen: names of labels.
        request: units.

    Raises:
        InputError: an array has another shape than its frames need, or states another unit.
    """
    units = request.units
    where = f"{path.name}, {group}" if group else path.name
    numbers_name, positions_name = first_of(NUMBERS, table), first_of(POSITIONS, table)
    cell_name = first_of(_CELL, table)
    assert numbers_name is not None
    assert positions_name is not None
    for name, label in (
        (positions_name, "length"),
        (chosen.get("energy", ""), "energy"),
        (chosen.get("forces", ""), "force"),
        (chosen.get("dipole", ""), "dipole"),
    ):
        if name in table:
            _check_stated_unit(where, name, table[name], label, units)
    positions = _real(where, positions_name, table[positions_name])
    positions = positions[None] if positions.ndim == 2 else positions
    stated = _real(where, numbers_name, table[numbers_name])
    numbers = np.where(np.abs(stated) < 1e6, stated, 0.0).astype(np.int64)
    if (numbers != stated).any():
        raise InputError(f"{where} has {numbers_name} that are no atomic numbers; repair the file.")
    if positions.ndim != 3 or numbers.shape not in (positions.shape[1:2], positions.shape[:2]):
        raise InputError(
            f"{where} has {numbers_name} of shape {numbers.shape} beside {positions_name} of "
            f"shape {positions.shape}; repair the file."
        )
    frames, atoms = positions.shape[:2]
    numbers = np.broadcast_to(numbers, (frames, atoms))
    cells = np.zeros((frames, 3, 3))
    if cell_name is not None:
        cells = units.length_factor * _cells(where, cell_name, table[cell_name], frames)
    found = {
        label: _rows(where, label, name, table[name], frames, atoms)
        for label, name in chosen.items()
        if name in table
    }
    sign = -1.0 if "gradient" in chosen.get("forces", "").lower() else 1.0
    for row in range(frames):
        energy = float(found["energy"][row]) if "energy" in found else np.nan
        forces = None
        if "forces" in found:
            forces = sign * found["forces"][row].astype(float) * units.force_factor
        stress = None
        if "stress" in found:
            stress = units.stress_of(chosen["stress"], found["stress"][row], cells[row])
        dipole = None
        if "dipole" in found:
            dipole = found["dipole"][row].astype(float) * units.dipole_factor
        weight, weights = 1.0, None
        if "weight" in found:
            own = found["weight"][row].astype(float)
            weight, weights = (1.0, own) if own.ndim else (float(own), None)
        lacking = "energy" if "energy" in chosen and not np.isfinite(energy) else None
        if "forces" in chosen and (forces is None or not np.isfinite(forces).all()):
            lacking = "forces"
        yield (
            LabelledFrame(
                numbers=numbers[row],
                positions=positions[row] * units.length_factor,
                cell=cells[row],
                pbc=np.full(3, bool(cells[row].any())),
                energy=energy * units.energy_factor,
                forces=forces,
                stress=stress,
                dipole=dipole,
                charge=float(found["charge"][row]) if "charge" in found else 0.0,
                weight=weight,
                force_weights=weights,
                group=str(found["group"][row]) if "group" in found else group,
            ),
            lacking,
        )


def _cells(where: str, name: str, value: Any, frames: int) -> NDArray[np.float64]:
    """(frames, 3, 3) of lattice vectors or edges, of each frame or of all."""
    cells = _real(where, name, value)
    if cells.shape in ((3,), (frames, 3)) and cells.shape != (3, 3):
        cells = cells[..., None] * np.eye(3)
    if cells.shape not in ((3, 3), (frames, 3, 3)):
        raise InputError(f"{where} has {name} of shape {cells.shape}; repair the file.")
    return np.broadcast_to(cells, (frames, 3, 3))


def _rows(where: str, label: str, name: str, value: Any, frames: int, atoms: int) -> NDArray[Any]:
    """A label of each frame; what is the same for all may be given once."""
    if isinstance(value, h5py.Group):
        raise InputError(
            f"{where} has {label} in {name}, which is a group and no array; choose another name "
            f"with --{label}-key."
        )
    found = np.asarray(value.asstr()[...] if _is_text(value) else value)
    shapes = {
        "forces": ((atoms, 3),),
        "stress": ((3, 3), (6,), (9,)),
        "dipole": ((3,),),
        "weight": ((), (atoms,)),
    }
    own = shapes.get(label, ((),))
    if label not in shapes and found.shape == (frames, 1):
        found = found[:, 0]
    if found.shape in own and (frames == 1 or label in ("charge", "group")):
        found = np.broadcast_to(found, (frames, *found.shape))
    numeric = label == "group" or found.dtype.kind in "fiu"
    if found.shape[:1] != (frames,) or found.shape[1:] not in own or not numeric:
        raise InputError(
            f"{where} has {label} in {name}, of shape {found.shape} and type {found.dtype} beside "
            f"{frames} frames of {atoms} atoms; choose another name with --{label}-key."
        )
    return found


def _real(where: str, name: str, value: Any) -> NDArray[np.float64]:
    """An array of real numbers as float64; raises InputError for any other."""
    found = np.asarray(value) if not isinstance(value, h5py.Group) else np.zeros(0, dtype=object)
    if found.dtype.kind not in "fiu":
        kind = "a group" if isinstance(value, h5py.Group) else f"of type {found.dtype}"
        raise InputError(
            f"{where} has {name} that is {kind} and holds no real numbers; repair the file."
        )
    return found.astype(np.float64)


def _is_text(value: Any) -> bool:
    return isinstance(value, h5py.Dataset) and h5py.check_string_dtype(value.dtype) is not None


def _check_stated_unit(where: str, name: str, value: Any, label: str, units: Units) -> None:
    """Refuses numbers that the file itself says are in another unit than was asked for."""
    stated = getattr(value, "attrs", {}).get("units")
    if stated is None:
        return
    text = stated.decode() if isinstance(stated, bytes) else str(stated)
    field = "forces" if label == "force" else label
    factor = f"{label}_factor"
    try:
        there = getattr(Units(**{field: text}), factor)
    except InputError:
        return
    if abs(there / getattr(units, factor) - 1.0) > 1e-6:
        given = units.description()[field]
        raise InputError(
            f"{where} states that its {name} are in {text}, not in {given}; give "
            f"--{label}-unit {text}."
        )
