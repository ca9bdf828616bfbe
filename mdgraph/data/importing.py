"""Imports labelled frames from ASE formats, numpy archives and HDF5 (SPICE, ANI-1x, TorchMD-Net).

Archives and HDF5 files consist of tables: N atomic numbers, and arrays of M frames. An archive is
one table. In HDF5 every group with numbers and positions is a table, and its name is the group of
its frames.
"""

import contextlib
import hashlib
import logging
import math
import zipfile
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import ase.db
import h5py
import numpy as np
from ase import Atoms
from numpy.typing import NDArray
from tqdm import tqdm

from mdgraph.data.dataset import FORMAT, LabelledFrame, Provenance
from mdgraph.data.keys import (
    NONE,
    MissingLabels,
    Request,
    Units,
    check_labels,
    choose_key,
    is_virial,
    looks_like,
)
from mdgraph.errors import FileError, InputError, name_some, printable
from mdgraph.io.files import disk_failure, disk_failures, largest_unpacked, readable_file
from mdgraph.io.hdf5 import members, open_to_read, read_failures
from mdgraph.io.structures import CHARGE_KEYS, SINGLETS, read_atoms, unreadable
from mdgraph.units import NUMBERS as NUMBERS_OF_SYMBOLS

logger = logging.getLogger(__name__)

_STRESSES: Final = ((6,), (9,), (3, 3))

_GEOMETRY: Final = {"numbers", "positions", "masses", "momenta", "tags", "initial_charges"}


def read_structures(path: Path, request: Request) -> tuple[dict[str, str], Iterator[LabelledFrame]]:
    """Reads a file of ASE: returns the key of each label, and the frames.

    Raises:
        FileError: the file cannot be read.
        InputError: a label is missing or ambiguous.
    """
    frames = _read(path)
    values = [_values(atoms) for atoms in frames]
    names = {name for labels in values for name in labels}
    keys: dict[str, str] = {}

    def same(first: str, second: str) -> bool:
        pairs = [
            (labels[first], labels[second])
            for labels in values
            if first in labels and second in labels
        ]
        # Names that never occur in the same frame may have different meanings.
        return bool(pairs) and all(_equal(*pair) for pair in pairs)

    def choose(label: str) -> None:
        candidates = {
            name
            for labels in values
            for name, value in labels.items()
            if looks_like(label, name) and _fits(label, value)
        }
        key = choose_key(label, names, getattr(request.keys, label), candidates, same, path.name)
        if key is not None:
            keys[label] = key

    for label in ("energy", "forces", "stress"):
        choose(label)
    keys |= _optional_keys(path, {"group": ("config_type",)}, names, request)
    if "charge" not in keys and request.keys.charge != NONE:
        choose("charge")
    check_labels(path.name, keys, names, request, max(map(len, frames)))
    sums = {
        round(float(np.sum(charges)), 2)
        for atoms, labels in zip(frames, values, strict=True)
        for charges in (atoms.get_initial_charges(), labels.get("charges", 0.0))
    } - {0.0}
    if "charge" not in keys and request.keys.charge != NONE and any(map(_is_whole, sums)):
        logger.warning(
            "%s: charges of atoms add up to %s e and are not read; give the total charge as "
            "'charge' beside the energy, or say that there is none with --charge-key none",
            path.name,
            name_some(sorted(sums), 4),
        )
    for name in names.intersection(SINGLETS):
        spins = sorted({str(labels[name]) for labels in values if name in labels})
        if len(spins) > 1:
            logger.warning(
                "%s: frames have the spins %s in '%s', which are not read: no potential can tell "
                "them apart; give frames of one spin",
                path.name,
                name_some(spins, 4),
                name,
            )
    return keys, _labelled_frames(path, frames, values, keys, request)


def _optional_keys(
    path: Path, usual: Mapping[str, Sequence[str]], names: Collection[str], request: Request
) -> dict[str, str]:
    """The key of each optional label: the user's, or the first usual name that the file has.

    Args:
        path: the file.
        usual: names of labels, beside those of a charge.
        names: in the file.
        request: the user's keys.

    Raises:
        InputError: the file lacks the user's key.
    """
    keys: dict[str, str] = {}
    usual = {"charge": CHARGE_KEYS, **usual}
    for label in ("charge", "group", "dipole", "weight"):
        key = getattr(request.keys, label)
        if key is None:
            key = next((name for name in usual.get(label, ()) if name in names), None)
        if key not in (None, NONE):
            if key not in names:
                raise InputError(f"{path.name} has no '{key}'; check --{label}-key.")
            keys[label] = key
    return keys


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
    """Rows of an ASE database; `info` holds their key-value pairs."""
    readable_file(path, "a database")
    frames = []
    try:
        with ase.db.connect(path) as database:
            for row in database.select():
                atoms = row.toatoms()
                atoms.info |= dict(row.key_value_pairs)
                frames.append(atoms)
    except Exception as error:  # the database raises errors of any class
        raise unreadable(path, error, "a database of ASE") from error
    return frames


def _values(atoms: Atoms) -> dict[str, Any]:
    arrays = {name: value for name, value in atoms.arrays.items() if name not in _GEOMETRY}
    results = {} if atoms.calc is None else atoms.calc.results
    return {**atoms.info, **arrays, **results}


def _fits(label: str, value: Any) -> bool:
    shape = np.shape(value)
    if not np.issubdtype(np.asarray(value).dtype, np.number):
        return False
    if label == "charge":
        return shape in ((), (1,)) and _is_whole(value) and bool(np.any(value))
    if label == "energy":
        return shape in ((), (1,))
    # The shape of forces is checked later, with the frame.
    return len(shape) == 2 if label == "forces" else shape in _STRESSES


def _is_whole(value: Any) -> bool:
    """Whether numbers are whole, as total charges are."""
    return bool(np.all(np.abs(value - np.round(value)) < 1e-3))


def _equal(first: Any, second: Any) -> bool:
    return np.shape(first) == np.shape(second) and np.allclose(first, second, 1e-10, 0.0)


def _labelled_frames(
    path: Path,
    frames: list[Atoms],
    values: list[dict[str, Any]],
    keys: dict[str, str],
    request: Request,
) -> Iterator[LabelledFrame]:
    units, gaps = request.units, MissingLabels(path.name, request.missing)
    length = units.length_factor
    for number, (atoms, labels) in enumerate(zip(frames, values, strict=True)):
        energy = _number(labels, keys, "energy", path, number) * units.energy_factor
        cell = np.array(atoms.cell) * length
        forces = None
        if keys.get("forces") in labels:
            name = keys["forces"]
            forces = _label_array(labels[name], "forces", path, number)
            forces = _force_sign(name) * forces * units.force_factor
        elif len(atoms) == 1:
            forces = np.zeros((1, 3))  # on a single atom and its images none acts
        if not gaps.keeps(number, _missing_label(keys, energy, forces)):
            continue
        stress = None
        if keys.get("stress") in labels:
            name = keys["stress"]
            stress = units.stress_of(name, _label_array(labels[name], "stress", path, number), cell)
        dipole = None
        if keys.get("dipole") in labels:
            dipole = (
                _label_array(labels[keys["dipole"]], "dipole", path, number) * units.dipole_factor
            )
        charge = _number(labels, keys, "charge", path, number)
        weight, weights = 1.0, None
        if np.ndim(labels.get(keys.get("weight", ""), 1.0)):
            weights = _label_array(labels[keys["weight"]], "weight", path, number)
        elif "weight" in keys:
            weight = _number(labels, keys, "weight", path, number)
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
            group=str(labels.get(keys.get("group", ""), path.name.partition(".")[0])),
        )
    gaps.log()


def _force_sign(name: str) -> float:
    """-1 for the name of a gradient, else 1."""
    return -1.0 if "gradient" in name.lower() else 1.0


def _missing_label(
    keys: Collection[str], energy: float, forces: NDArray[np.float64] | None
) -> str | None:
    """The label among `keys` that a frame lacks, or None."""
    if "forces" in keys and (forces is None or not np.isfinite(forces).all()):
        return "forces"
    return "energy" if "energy" in keys and not np.isfinite(energy) else None


def _number(
    values: dict[str, Any], keys: dict[str, str], label: str, path: Path, number: int
) -> float:
    value = values.get(keys.get(label, ""), np.nan)
    try:
        return float(np.asarray(value).item())
    except (TypeError, ValueError):
        raise InputError(
            f"Frame {number} of {path.name} has the {label} {value!r}, which is not a number; "
            f"repair it, or choose another name with --{label}-key."
        ) from None


def _label_array(value: Any, label: str, path: Path, number: int) -> NDArray[np.float64]:
    """Numbers of a label; other shapes than that of a stress are checked with the frame."""
    array = np.asarray(value)
    if array.dtype.kind not in "fiu" or (label == "stress" and array.shape not in _STRESSES):
        raise InputError(
            f"Frame {number} of {path.name} has {label} of shape {array.shape} and type "
            f"{array.dtype}; choose another name with --{label}-key."
        )
    return array.astype(float)


NUMBERS: Final = ("atomic_numbers", "nuclear_charges", "numbers", "types", "species", "z", "Z")
POSITIONS: Final = ("positions", "coordinates", "conformations", "coords", "pos", "R")
_CELL: Final = ("cell", "lattice", "box")
_PBC: Final = "pbc"

Table = Mapping[str, Any]


def first_of(names: tuple[str, ...], table: Table) -> str | None:
    """The first of the names that is in a table."""
    return next((name for name in names if name in table), None)


def frames_of_table(
    path: Path,
    group: str,
    table: Table,
    keys: dict[str, str],
    request: Request,
    warned: set[str],
) -> Iterator[tuple[LabelledFrame, str | None]]:
    """Yields the frames of a table, each with the name of a missing label or None.

    Args:
        path: the file.
        group: group of the frames if the table has no groups.
        table: arrays by name.
        keys: name of each label in the table.
        request: units.
        warned: names of arrays whose stated unit is unknown, so that one warning is enough.

    Raises:
        InputError: an array has the wrong shape, or states another unit.
    """
    units = request.units
    where = f"{path.name}, {group}" if group else path.name
    numbers_name, positions_name = first_of(NUMBERS, table), first_of(POSITIONS, table)
    cell_name = first_of(_CELL, table)
    for label, names in (("positions", POSITIONS), ("cell", _CELL)):
        _check_one_alone(where, label, names, table)
    assert numbers_name is not None
    assert positions_name is not None
    stress_name = keys.get("stress", "")
    for name, label in (
        (positions_name, "length"),
        (cell_name or "", "length"),
        (keys.get("energy", ""), "energy"),
        (keys.get("forces", ""), "force"),
        (stress_name, "energy" if is_virial(stress_name) else "stress"),
        (keys.get("dipole", ""), "dipole"),
    ):
        if name in table:
            _check_stated_unit(where, name, table, label, units, warned)
    positions = _real(where, positions_name, table[positions_name])
    positions = positions[None] if positions.ndim == 2 else positions
    stored_numbers = _atomic_numbers(where, numbers_name, table[numbers_name])
    numbers = np.where(np.abs(stored_numbers) < 1e6, stored_numbers, 0.0).astype(np.int64)
    if (numbers != stored_numbers).any():
        raise InputError(
            f"{where} has {numbers_name} that are not atomic numbers; repair the file."
        )
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
    pbc = np.repeat((cells != 0.0).any(axis=(1, 2)), 3).reshape(frames, 3)
    if _PBC in table:
        pbc = pbc & _periodic_directions(where, table[_PBC], frames)
    labels = {
        label: _rows(where, label, name, table[name], frames, atoms)
        for label, name in keys.items()
        if name in table
    }
    sign = _force_sign(keys.get("forces", ""))
    for row in range(frames):
        energy = float(labels["energy"][row]) if "energy" in labels else np.nan
        forces = None
        if "forces" in labels:
            forces = sign * labels["forces"][row].astype(float) * units.force_factor
        stress = None
        if "stress" in labels:
            stress = units.stress_of(keys["stress"], labels["stress"][row], cells[row])
        dipole = None
        if "dipole" in labels:
            dipole = labels["dipole"][row].astype(float) * units.dipole_factor
        weight, weights = 1.0, None
        if "weight" in labels:
            row_weights = labels["weight"][row].astype(float)
            weight, weights = (1.0, row_weights) if row_weights.ndim else (float(row_weights), None)
        yield (
            LabelledFrame(
                numbers=numbers[row],
                positions=positions[row] * units.length_factor,
                cell=cells[row],
                pbc=pbc[row],
                energy=energy * units.energy_factor,
                forces=forces,
                stress=stress,
                dipole=dipole,
                charge=float(labels["charge"][row]) if "charge" in labels else 0.0,
                weight=weight,
                force_weights=weights,
                group=str(labels["group"][row]) if "group" in labels else group,
            ),
            _missing_label(keys, energy, forces),
        )


def _check_one_alone(where: str, label: str, names: Collection[str], table: Table) -> None:
    """Raises InputError if arrays of one meaning and shape hold different numbers."""
    there = [name for name in names if isinstance(table.get(name), np.ndarray | h5py.Dataset)]
    for name in there[1:]:
        arrays = [np.asarray(table[key]) for key in (there[0], name)]
        numeric = all(array.dtype.kind in "fiu" for array in arrays)
        if numeric and arrays[0].shape == arrays[1].shape and not _equal(*arrays):
            raise InputError(
                f"{where} may have its {label} in {there[0]} or in {name}, which differ; write a "
                "file with one of them."
            )


def _cells(where: str, name: str, value: Any, frames: int) -> NDArray[np.float64]:
    """Cells (frames, 3, 3) from lattice vectors or edge lengths, of each frame or of all frames."""
    cells = _real(where, name, value)
    if cells.shape in ((3,), (frames, 3)) and cells.shape != (3, 3):
        cells = cells[..., None] * np.eye(3)
    if cells.shape not in ((3, 3), (frames, 3, 3)):
        raise InputError(f"{where} has {name} of shape {cells.shape}; repair the file.")
    return np.broadcast_to(cells, (frames, 3, 3))


def _periodic_directions(where: str, value: Any, frames: int) -> NDArray[np.bool_]:
    """(frames, 3) bool, of flags of each frame or of all frames."""
    flags = np.asarray([]) if isinstance(value, h5py.Group) else np.asarray(value)
    fits = flags.shape in ((), (3,), (frames, 3))
    if not fits or flags.dtype.kind not in "biuf" or not np.isin(flags, (0, 1)).all():
        raise InputError(
            f"{where} has {_PBC} of shape {flags.shape} and type {flags.dtype}; give three of 0 "
            "and 1, of each frame or of all."
        )
    return np.broadcast_to(flags == 1, (frames, 3))


def _rows(where: str, label: str, name: str, value: Any, frames: int, atoms: int) -> NDArray[Any]:
    """A label of each frame; a value that is equal for all frames may occur once."""
    if isinstance(value, h5py.Group):
        raise InputError(
            f"{where} has {label} in {name}, which is a group and no array; choose another name "
            f"with --{label}-key."
        )
    rows = np.asarray(_texts(value) if _is_text(value) else value)
    shapes = {
        "forces": ((atoms, 3),),
        "stress": ((3, 3), (6,), (9,)),
        "dipole": ((3,),),
        "weight": ((), (atoms,)),
    }
    row_shapes = shapes.get(label, ((),))
    if label not in shapes and rows.shape == (frames, 1):
        rows = rows[:, 0]
    if rows.shape in row_shapes and (frames == 1 or label in ("charge", "group")):
        rows = np.broadcast_to(rows, (frames, *rows.shape))
    numeric = label == "group" or rows.dtype.kind in "fiu"
    if rows.shape[:1] != (frames,) or rows.shape[1:] not in row_shapes or not numeric:
        raise InputError(
            f"{where} has {label} in {name}, of shape {rows.shape} and type {rows.dtype} beside "
            f"{frames} frames of {atoms} atoms; choose another name with --{label}-key."
        )
    return rows


def _atomic_numbers(where: str, name: str, value: Any) -> NDArray[np.float64]:
    """Atomic numbers, or those of symbols; raises InputError for anything else."""
    if not _is_text(value):
        return _real(where, name, value)
    symbols = _texts(value)
    unknown = sorted(set(symbols.ravel().tolist()) - set(NUMBERS_OF_SYMBOLS))
    if unknown:
        raise InputError(
            f"{where} has {name} '{printable(unknown[0], 20)}', which is not an element; repair "
            "the file."
        )
    return np.vectorize(NUMBERS_OF_SYMBOLS.get, otypes=[float])(symbols)


def _real(where: str, name: str, value: Any) -> NDArray[np.float64]:
    """Converts real numbers to float64; raises InputError for anything else."""
    array = np.asarray(value) if not isinstance(value, h5py.Group) else np.zeros(0, dtype=object)
    if array.dtype.kind not in "fiu":
        description = "a group" if isinstance(value, h5py.Group) else f"of type {array.dtype}"
        raise InputError(
            f"{where} has {name} that is {description} and holds no real numbers; repair the file."
        )
    return array.astype(np.float64)


def _is_text(value: Any) -> bool:
    if isinstance(value, h5py.Dataset):
        return h5py.check_string_dtype(value.dtype) is not None
    return isinstance(value, np.ndarray) and value.dtype.kind in "SU"


def _texts(value: Any) -> NDArray[Any]:
    """Text of HDF5 or of an archive as str."""
    if isinstance(value, h5py.Dataset):
        return np.asarray(value.asstr()[...])
    return np.char.decode(value) if value.dtype.kind == "S" else value


def _check_stated_unit(
    where: str, name: str, table: Table, label: str, units: Units, warned: set[str]
) -> None:
    """Raises InputError if the file states another unit than `units`; warns of an unknown one.

    HDF5 states it as an attribute of the array, sGDML in arrays `e_unit` and `r_unit` of a table.
    """
    attribute = getattr(table[name], "attrs", {}).get("units")
    names = {"energy": ("e_unit",), "length": ("r_unit",), "force": ("e_unit", "r_unit")}
    stated = [table[key] for key in names.get(label, ()) if key in table]
    texts = [_texts(part) for part in stated if _is_text(part) and part.size == 1]
    if attribute is None and texts and len(texts) == len(names[label]):
        attribute = "/".join(str(text.item()) for text in texts)
    if attribute is None:
        return
    text = attribute.decode() if isinstance(attribute, bytes) else str(attribute)
    field = "forces" if label == "force" else label
    factor = f"{label}_factor"
    try:
        file_factor = getattr(Units(**{field: text}), factor)
    except InputError:
        if name not in warned:
            warned.add(name)
            logger.warning(
                "%s states that its %s are in '%s', which is not a unit that is known here; they "
                "are read as %s, and --%s-unit takes another unit",
                where,
                name,
                printable(text, 30),
                units.description()[field],
                label,
            )
        return
    if abs(file_factor / getattr(units, factor) - 1.0) > 1e-6:
        unit = units.description()[field]
        raise InputError(
            f"{where} states that its {name} are in {text}, not in {unit}; give "
            f"--{label}-unit {text}."
        )


def read_archive(path: Path, request: Request) -> tuple[dict[str, str], Iterator[LabelledFrame]]:
    """Reads an .npz: returns the key of each label, and the frames; see `read_structures`."""
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
    except Exception as error:  # a damaged file can raise any error
        raise FileError(
            f"Cannot read {path}: it is not a complete archive of numpy's "
            f"({printable(error, 200)}); save it again with numpy.savez."
        ) from error
    if first_of(NUMBERS, table) is None or first_of(POSITIONS, table) is None:
        raise InputError(
            f"{path.name} has {name_some(list(table), 12)}; it needs atomic numbers "
            f"({', '.join(NUMBERS)}) and positions ({', '.join(POSITIONS)})."
        )

    def tables() -> Generator[tuple[str, Table], None, None]:
        yield path.stem, table

    keys = _choose_keys(path, tables, request)
    return keys, _table_frames(path, tables, keys, request)


def _parts(path: Path, archive: zipfile.ZipFile) -> list[zipfile.ZipInfo]:
    """Entries of an archive; raises FileError if their unpacked size is too large."""
    parts = archive.infolist()
    unpacked_size = sum(part.file_size for part in parts)
    if unpacked_size > largest_unpacked(path):
        raise FileError(
            f"Cannot read {path}: it says that it unpacks to {unpacked_size:,} bytes, more than "
            "arrays of numbers do; save it again with numpy.savez."
        )
    return parts


def _npz_array(path: Path, archive: zipfile.ZipFile, part: zipfile.ZipInfo) -> NDArray[Any]:
    """Reads one array, after checking that its size matches its header.

    Raises:
        FileError: it holds Python objects, or its header states another size.
        ValueError, OSError: it is not an array.
    """
    with archive.open(part) as file:
        version = np.lib.format.read_magic(file)
        read_header = np.lib.format.read_array_header_1_0
        if version != (1, 0):
            read_header = np.lib.format.read_array_header_2_0
        shape, fortran_order, dtype = read_header(file)
        if dtype.hasobject:
            raise FileError(
                f"Cannot read {path}: its {part.filename} holds Python objects, which may run "
                "code; save plain arrays."
            )
        size = math.prod(shape) * dtype.itemsize
        if min(shape, default=0) < 0 or size > part.file_size:
            raise FileError(
                f"Cannot read {path}: its {part.filename} says that it has {size:,} bytes and has "
                f"{part.file_size:,}; save it again with numpy.savez."
            )
        array = np.frombuffer(file.read(size), dtype=dtype)
        file.read()  # the archive checks its checksum at the end
    return array.reshape(shape, order="F" if fortran_order else "C")


def read_hdf5(path: Path, request: Request) -> tuple[dict[str, str], Iterator[LabelledFrame]]:
    """Reads an .h5: returns the key of each label, and the frames; see `read_structures`."""

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
    keys = _choose_keys(path, tables, request)
    return keys, _table_frames(path, tables, keys, request)


def _tables_of(
    group: h5py.Group, name: str, path: Path, addresses: set[Any], parents: tuple[Any, ...] = ()
) -> Iterator[tuple[str, Table]]:
    """Yields the groups that are tables, each once; raises InputError for links in a circle."""
    address = h5py.h5o.get_info(group.id).addr
    if address in parents:
        raise InputError(
            f"{path.name} has a link '{name}' that leads back to a group which holds it; remove it."
        )
    if address in addresses:
        return
    addresses.add(address)
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
    incomplete = first_of(POSITIONS, table) or (None if groups else first_of(NUMBERS, table))
    if incomplete is not None:
        raise InputError(
            f"{path.name} has {incomplete} in '{name or '/'}' without the other of atomic numbers "
            f"({', '.join(NUMBERS)}) and positions ({', '.join(POSITIONS)}); give it both, or "
            "remove it."
        )
    for key in groups:
        member = table[key]
        if isinstance(member, h5py.Group):
            yield from _tables_of(
                member, f"{name}/{key}" if name else key, path, addresses, (*parents, address)
            )


def _choose_keys(
    path: Path, tables: Callable[[], Generator[tuple[str, Table], None, None]], request: Request
) -> dict[str, str]:
    """The key of each label; raises InputError if a label is missing or ambiguous."""
    all_names: set[str] = set()
    largest = 0
    candidates: dict[str, set[str]] = {"energy": set(), "forces": set(), "stress": set()}
    charges: set[str] = set()
    # Arrays of other frames or atoms than the positions, which `_rows` refuses with their shape.
    unlike: dict[str, set[str]] = {"energy": set(), "forces": set()}
    for _, table in tables():
        frames, atoms = _count(table)
        largest = max(largest, atoms)
        for name in table:
            all_names.add(name)
            if name in (*NUMBERS, *POSITIONS) or not hasattr(table[name], "shape"):
                continue
            shape = table[name].shape
            if looks_like("charge", name) and shape in ((), (1,), (frames,), (frames, 1)):
                values = np.asarray(table[name])
                if values.dtype.kind in "fiu" and _is_whole(values) and values.any():
                    charges.add(name)
            for label, names in candidates.items():
                ranks = {"energy": (0, 1), "forces": (2,), "stress": (1, 2)}[label]
                # The values of a single frame may lack the axis of frames.
                rows = [shape[1:]] if shape[:1] == (frames,) else []
                rows += [shape] if frames == 1 else []
                fits = any(
                    len(row) in ranks and (label != "energy" or row in ((), (1,))) for row in rows
                )
                # `_rows` checks the shape of an array with the name of the label.
                if name == label or (fits and looks_like(label, name)):
                    names.add(name)
                elif label in unlike and len(shape) - 1 in ranks and looks_like(label, name):
                    unlike[label].add(name)
    keys: dict[str, str] = {}
    for label, names in candidates.items():
        requested_key = getattr(request.keys, label)
        fitting = names or unlike.get(label, set())
        key = choose_key(label, all_names, requested_key, fitting, None, path.name)
        if key is not None:
            keys[label] = key
    check_labels(path.name, keys, all_names, request, largest)
    keys |= _optional_keys(path, {}, all_names, request)
    if "charge" not in keys:
        charge = choose_key("charge", all_names, request.keys.charge, charges, None, path.name)
        keys |= {} if charge is None else {"charge": charge}
    return keys


def _count(table: Table) -> tuple[int, int]:
    """Number of frames, and of atoms per frame."""
    name = first_of(POSITIONS, table)
    assert name is not None
    shape = table[name].shape
    if len(shape) < 2:
        return 0, 0  # `frames_of_table` raises the error
    return (1 if len(shape) == 2 else int(shape[0])), int(shape[-2])


def _table_frames(
    path: Path,
    tables: Callable[[], Generator[tuple[str, Table], None, None]],
    keys: dict[str, str],
    request: Request,
) -> Iterator[LabelledFrame]:
    gaps, number = MissingLabels(path.name, request.missing), 0
    warned: set[str] = set()
    with contextlib.closing(tables()) as source:
        for name, table in source:
            for frame, missing_label in frames_of_table(path, name, table, keys, request, warned):
                if gaps.keeps(number, missing_label):
                    yield frame
                number += 1
    gaps.log()


def import_file(
    path: Path, request: Request, *, level_of_theory: str = "", licence: str = ""
) -> tuple[Iterator[LabelledFrame], Provenance]:
    """Reads labelled frames of a file and their provenance.

    Args:
        path: extended XYZ or another format of ASE, an ASE database (.db), a numpy archive
            (.npz), or HDF5 (.h5, .hdf5) in the layout of SPICE, ANI-1x or TorchMD-Net.
        request: keys, units, and the treatment of frames without labels.
        level_of_theory: level of theory of the labels, for the provenance.
        licence: licence of the data, for the provenance.

    Raises:
        FileError: the file cannot be read.
        InputError: a label is missing or ambiguous, or a unit is unknown.
    """
    units = request.units.description()
    reader, importer = read_structures, "ase"
    if path.suffix in (".h5", ".hdf5"):
        reader, importer = read_hdf5, "hdf5"
    elif path.suffix == ".npz":
        reader, importer = read_archive, "npz"
    with disk_failures(path, "read"), path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    keys, frames = reader(path, request)
    provenance = Provenance(path.name, digest, importer, keys, units, level_of_theory, licence)
    return frames, provenance
