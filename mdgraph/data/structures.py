"""Frames from whatever ASE reads: extended XYZ with any key names, ASE's databases, and more."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import ase.db
import numpy as np
from ase import Atoms
from numpy.typing import NDArray
from tqdm import tqdm

from mdgraph.data.frames import LabelledFrame
from mdgraph.data.keys import NONE, Gaps, Request, check_labels, choose, looks_like
from mdgraph.errors import FileError, InputError
from mdgraph.io.files import readable_file
from mdgraph.io.structures import read_atoms, unreadable

_STRESSES: Final = ((6,), (9,), (3, 3))

_GEOMETRY: Final = {"numbers", "positions", "masses", "momenta", "tags", "initial_charges"}


def read_structures(path: Path, request: Request) -> tuple[dict[str, str], Iterator[LabelledFrame]]:
    """The keys that were chosen, and the frames.

    Raises:
        FileError: the file cannot be read.
        InputError: a label is missing or ambiguous.
    """
    frames = _read(path)
    values = [_values(atoms) for atoms in frames]
    known = {name for one in values for name in one}
    chosen: dict[str, str] = {}
    for label in ("energy", "forces", "stress"):
        candidates = {
            name
            for atoms, one in zip(frames, values, strict=True)
            for name, value in one.items()
            if looks_like(label, name) and _fits(label, value, len(atoms))
        }

        def same(first: str, second: str) -> bool:
            both = [(one[first], one[second]) for one in values if first in one and second in one]
            # Names that never meet in a frame may mean different things.
            return bool(both) and all(_equal(*pair) for pair in both)

        key = choose(label, known, getattr(request.keys, label), candidates, same, path.name)
        if key is not None:
            chosen[label] = key
    check_labels(path.name, chosen, known, request.keys, max(map(len, frames)))
    defaults = {"charge": "charge", "group": "config_type", "dipole": None, "weight": None}
    for label, default in defaults.items():
        key = getattr(request.keys, label)
        if key not in (None, NONE) and key not in known:
            raise InputError(f"{path.name} has no '{key}'; check --{label}-key.")
        key = key or (default if default in known else None)
        if key not in (None, NONE):
            chosen[label] = key
    return chosen, _labelled_frames(path, frames, values, chosen, request)


def _read(path: Path) -> list[Atoms]:
    if path.suffix == ".db":
        frames = _ase_frames(path)
    else:
        source = (atoms for _, atoms in read_atoms(path))
        frames = list(tqdm(source, f"reading {path.name}", leave=False, disable=None))
    if not frames:
        raise FileError(f"Cannot read {path}: it holds no frame; give a file with some.")
    return frames


def _ase_frames(path: Path) -> list[Atoms]:
    """Rows of a database of ASE, with what the columns of each say."""
    readable_file(path, "a database")
    frames = []
    try:
        with ase.db.connect(path) as database:
            for row in database.select():
                atoms = row.toatoms()
                atoms.info |= dict(row.key_value_pairs)
                frames.append(atoms)
    except Exception as error:  # the database has errors of its own
        raise unreadable(path, error, "a database of ASE") from error
    return frames


def _values(atoms: Atoms) -> dict[str, Any]:
    arrays = {name: value for name, value in atoms.arrays.items() if name not in _GEOMETRY}
    results = {} if atoms.calc is None else atoms.calc.results
    return {**atoms.info, **arrays, **results}


def _fits(label: str, value: Any, atoms: int) -> bool:
    shape = np.shape(value)
    if not np.issubdtype(np.asarray(value).dtype, np.number):
        return False
    if label == "energy":
        return shape in ((), (1,))
    # A file that names an array forces means it, whatever its shape; the frame's check says so.
    return len(shape) == 2 if label == "forces" else shape in _STRESSES


def _equal(first: Any, second: Any) -> bool:
    return np.shape(first) == np.shape(second) and np.allclose(first, second, 1e-10, 0.0)


def _labelled_frames(
    path: Path,
    frames: list[Atoms],
    values: list[dict[str, Any]],
    chosen: dict[str, str],
    request: Request,
) -> Iterator[LabelledFrame]:
    units, gaps = request.units, Gaps(path.name, request.missing)
    length = units.length_factor
    for number, (atoms, one) in enumerate(zip(frames, values, strict=True)):
        energy = _number(one, chosen, "energy", path, number) * units.energy_factor
        cell = np.array(atoms.cell) * length
        forces = None
        if chosen.get("forces") in one:
            name = chosen["forces"]
            sign = -1.0 if "gradient" in name.lower() else 1.0
            forces = sign * _label_array(one[name], "forces", path, number) * units.force_factor
        elif len(atoms) == 1 and not atoms.pbc.any():
            forces = np.zeros((1, 3))  # nothing acts on a single atom
        lacking = "energy" if "energy" in chosen and not np.isfinite(energy) else None
        if "forces" in chosen and (forces is None or not np.isfinite(forces).all()):
            lacking = "forces"
        if not gaps.keeps(number, lacking):
            continue
        stress = None
        if chosen.get("stress") in one:
            name = chosen["stress"]
            stress = units.stress_of(name, _label_array(one[name], "stress", path, number), cell)
        dipole = None
        if chosen.get("dipole") in one:
            dipole = (
                _label_array(one[chosen["dipole"]], "dipole", path, number) * units.dipole_factor
            )
        charge = _number(one, chosen, "charge", path, number)
        weight, weights = 1.0, None
        if np.ndim(one.get(chosen.get("weight", ""), 1.0)):
            weights = _label_array(one[chosen["weight"]], "weight", path, number)
        elif "weight" in chosen:
            weight = _number(one, chosen, "weight", path, number)
        yield LabelledFrame(
            numbers=atoms.numbers.astype(np.int64),
            positions=atoms.positions * length,
            cell=cell,
            pbc=np.array(atoms.pbc),
            energy=energy,
            forces=forces,
            stress=stress,
            dipole=dipole,
            charge=0.0 if np.isnan(charge) else charge,
            weight=weight,
            force_weights=weights,
            group=str(one.get(chosen.get("group", ""), path.name.partition(".")[0])),
        )
    gaps.say()


def _number(
    values: dict[str, Any], chosen: dict[str, str], label: str, path: Path, number: int
) -> float:
    value = values.get(chosen.get(label, ""), np.nan)
    try:
        return float(np.asarray(value).item())
    except (TypeError, ValueError):
        raise InputError(
            f"Frame {number} of {path.name} has the {label} {value!r}, which is no number; "
            f"repair it, or choose another name with --{label}-key."
        ) from None


def _label_array(value: Any, label: str, path: Path, number: int) -> NDArray[np.float64]:
    """Numbers of a label; the frame's check looks at the shapes that are not looked at here."""
    found = np.asarray(value)
    if found.dtype.kind not in "fiu" or (label == "stress" and found.shape not in _STRESSES):
        raise InputError(
            f"Frame {number} of {path.name} has {label} of shape {found.shape} and type "
            f"{found.dtype}; choose another name with --{label}-key."
        )
    return found.astype(float)
