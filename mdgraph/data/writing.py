"""Writes data sets: chunked, compressed, appendable.

Files appear whole or not at all: an append works on a copy that then takes the place of the
file.
"""

import itertools
import json
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from mdgraph.arguments import checked, shown
from mdgraph.data.dataset import (
    ATOM_COLUMNS,
    FORMAT,
    FRAME_COLUMNS,
    PART,
    VERSION,
    open_dataset,
)
from mdgraph.data.frames import LabelledFrame, Provenance
from mdgraph.errors import InputError
from mdgraph.io.files import refuse_existing, write_atomically
from mdgraph.io.hdf5 import written_whole


@checked
def write_dataset(
    path: str | Path,
    parts: Iterable[tuple[Iterable[LabelledFrame], Provenance]],
    *,
    append: bool = False,
    overwrite: bool = False,
) -> int:
    """Writes the frames of one or several sources; returns how many.

    Args:
        path: a new file, or with `append` one to which the frames are added.
        parts: the frames of each source, which are checked one by one, and where they are from.
        append: whether the file exists already.
        overwrite: whether a file that exists is replaced.

    Raises:
        InputError: a frame that cannot be, or none at all.
        FileError: the file exists, or with `append` is no data set; the disk refused.
    """
    path = Path(path)
    if append:
        open_dataset(path).close()
    else:
        refuse_existing(path, overwrite=overwrite)
    written = 0

    def write(temporary: Path) -> None:
        nonlocal written
        if append:
            shutil.copyfile(path, temporary)
        with written_whole(temporary, new=not append) as (file, check):
            if not append:
                _lay_out(file)
            elif "force_weights" not in file["atoms"]:
                _make_column(file, "atoms", "force_weights", len(file["atoms"]["numbers"]))
            written = sum(_append(file, *_frames_and_origin(part), check) for part in parts)

    write_atomically(path, write, new=not (append or overwrite))
    return written


def _frames_and_origin(part: Any) -> tuple[Iterable[LabelledFrame], Provenance]:
    """Raises InputError for what is no pair of frames and their provenance."""
    pair = isinstance(part, tuple | list) and len(part) == 2
    if not pair or not isinstance(part[0], Iterable) or not isinstance(part[1], Provenance):
        raise InputError(
            f"A part of a data set is {shown(part)}; give its LabelledFrames and its Provenance."
        )
    return part[0], part[1]


def _lay_out(file: h5py.File) -> None:
    file.attrs.update(
        {"format": FORMAT, "version": VERSION, "energy_unit": "eV", "length_unit": "A"}
    )
    for part, columns in (("atoms", ATOM_COLUMNS), ("frames", FRAME_COLUMNS)):
        for name in columns:
            _make_column(file, part, name)
    for name in ("groups", "sources"):
        file.create_dataset(name, (0,), h5py.string_dtype(), maxshape=(None,), chunks=(256,))


def _make_column(file: h5py.File, part: str, name: str, length: int = 0) -> None:
    kind, shape = (ATOM_COLUMNS if part == "atoms" else FRAME_COLUMNS)[name]
    file.create_dataset(
        f"{part}/{name}",
        (length, *shape),
        kind,
        maxshape=(None, *shape),
        chunks=(4096 if part == "atoms" else 256, *shape),
        compression="gzip",
        shuffle=True,
        fillvalue=1 if name == "force_weights" else 0,
    )


def _append(
    file: h5py.File,
    frames: Iterable[LabelledFrame],
    provenance: Provenance,
    check: Callable[[], None],
) -> int:
    groups = [str(name) for name in file["groups"].asstr()[...]]
    known = {name: number for number, name in enumerate(groups)}
    source, written = len(file["sources"]), 0
    bar = tqdm(frames, f"writing {provenance.file}", unit="frame", leave=False, disable=None)
    iterator = iter(bar)
    while part := list(itertools.islice(iterator, PART)):
        for number, frame in enumerate(part, written):
            frame.check(f"Frame {number} of {provenance.file}")
            known.setdefault(frame.group, len(known))
        _extend(file["atoms"]["numbers"], np.concatenate([one.numbers for one in part]))
        _extend(file["atoms"]["positions"], np.concatenate([one.positions for one in part]))
        forces = [_or_nan(one.forces, (len(one), 3)) for one in part]
        _extend(file["atoms"]["forces"], np.concatenate(forces))
        weights = [np.ones(len(one)) if (w := one.force_weights) is None else w for one in part]
        _extend(file["atoms"]["force_weights"], np.concatenate(weights))
        columns: dict[str, list[Any]] = {
            "atoms": [len(one) for one in part],
            "stress": [_or_nan(one.stress, (3, 3)) for one in part],
            "dipole": [_or_nan(one.dipole, (3,)) for one in part],
            "group": [known[one.group] for one in part],
            "source": [source] * len(part),
        }
        for name in ("cell", "pbc", "charge", "energy", "weight"):
            columns[name] = [getattr(one, name) for one in part]
        for name, values in columns.items():
            _extend(file["frames"][name], np.array(values))
        written += len(part)
        check()
    if not written:
        raise InputError(f"{provenance.file} gives no frame; check the file and its keys.")
    _extend(file["groups"], np.array(list(known)[len(groups) :], dtype=object))
    text = json.dumps(provenance.description())
    _extend(file["sources"], np.array([text], dtype=object))
    return written


def _or_nan(value: NDArray[Any] | None, shape: tuple[int, ...]) -> NDArray[np.float64]:
    return np.full(shape, np.nan) if value is None else value


def _extend(dataset: h5py.Dataset, rows: NDArray[Any]) -> None:
    if len(rows):
        before = len(dataset)
        dataset.resize(before + len(rows), axis=0)
        dataset[before:] = rows
