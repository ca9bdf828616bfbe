"""Train, validation and test splits, and the recovered time order of shuffled trajectories.

A split is a JSON file that knows the hash of its data set, so that a file changed since is
noticed.

Neighbors in time are alike, so frames held out at random have near copies among those trained
on. Blocks of the recovered order do not.
"""

import itertools
import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, Strict, TypeAdapter

from mdgraph.arguments import checked, whole_number
from mdgraph.data.dataset import Dataset, compositions
from mdgraph.data.similarity import NEAR, CompositionGroup, close_pairs, composition_groups
from mdgraph.errors import FileError, InputError, name_some
from mdgraph.io.files import read_file, write_atomically
from mdgraph.system import compact_cell
from mdgraph.units import SYMBOLS

Array = NDArray[np.float64]


def distances(positions: Array, cell: Array | None) -> Array:
    """(M, M) root mean square displacement between frames, A.

    Args:
        positions: (M, N, 3) A, of the same atoms.
        cell: (3, 3) A whose nearest images count, or None.
    """
    cell = None if cell is None else compact_cell(cell)
    inverse = None if cell is None else np.linalg.inv(cell)
    result = np.zeros((len(positions), len(positions)))
    for row, frame in zip(result, positions, strict=True):
        shift = positions - frame
        if inverse is not None:
            shift -= np.round(shift @ inverse) @ cell
        row[:] = np.sqrt((shift**2).sum(-1).mean(-1))
    return result


def time_order(distance: Array) -> NDArray[np.int64]:
    """Order in time of the frames of one diffusing trajectory, up to its direction.

    Along a random walk squared distances grow with time, so the first principal coordinate
    runs along it; turning stretches of that path round while it gets shorter mends the rest.
    """
    count = len(distance)
    centred = np.eye(count) - 1.0 / count
    order = np.argsort(np.linalg.eigh(-0.5 * centred @ distance**2 @ centred)[1][:, -1])
    shorter = True
    while shorter:
        shorter = False
        for start in range(count - 1):
            stops = np.arange(start + 1, count)
            first, lasts = order[start], order[stops]
            change = np.zeros(len(stops))
            if start > 0:
                before = order[start - 1]
                change += distance[before, lasts] - distance[before, first]
            nexts = order[stops[:-1] + 1]
            change[:-1] += distance[first, nexts] - distance[lasts[:-1], nexts]
            best = change.argmin()
            if change[best] < -1e-9:
                stretch = slice(start, stops[best] + 1)
                order[stretch] = order[stretch][::-1].copy()
                shorter = True
    return order


def recovered_order(dataset: Dataset) -> NDArray[np.int64]:
    """Frames of a data set in the order of time.

    Raises:
        InputError: they are not the same atoms in one cell.
    """
    first = dataset.frame(0)
    positions = []
    for index, frame in enumerate(dataset.frames()):
        same = np.array_equal(frame.numbers, first.numbers)
        if not (same and np.allclose(frame.cell, first.cell) and (frame.pbc == first.pbc).all()):
            raise InputError(
                f"Frame {index} of {dataset.path.name} has other atoms or another cell than the "
                "first, so there is no order to recover; split by another method."
            )
        positions.append(frame.positions)
    cell = first.cell if first.pbc.all() else None
    return time_order(distances(np.array(positions), cell))


FORMAT: Final = 1
PARTS: Final = ("train", "validation", "test")

_REMEDY: Final = "make the split again"
"""Where the data changed."""

Index = NDArray[np.int64]

_INDEX: Final = TypeAdapter(list[Annotated[int, Strict(), Field(ge=0, lt=2**62)]])

_LARGEST_BYTES: Final = 1 << 30
"""Of a split: a hundred million frames."""


@dataclass(frozen=True, eq=False)
class Split:
    """Frames of each part, ascending.

    Attributes:
        train, validation, test: frame numbers.
        method: how they were chosen, in words.
        sha256: of the data set.
    """

    train: Index
    validation: Index
    test: Index
    method: str
    sha256: str

    def parts(self) -> Iterator[tuple[str, Index]]:
        """The parts by name, without empty ones."""
        for name in PARTS:
            chosen: Index = getattr(self, name)
            if len(chosen):
                yield name, chosen

    def check(self, dataset: Dataset, remedy: str = _REMEDY) -> None:
        """Holds it against its data set.

        Args:
            dataset: the frames.
            remedy: what to do where they changed.

        Raises:
            InputError: the data changed since, a part needed for training is empty, a frame is
                named twice or is not there, or an element of validation or test is in no
                training frame.
        """
        if dataset.sha256() != self.sha256:
            raise InputError(f"{dataset.path} changed since the split was made; {remedy}.")
        for name in ("train", "validation"):
            if not len(getattr(self, name)):
                raise InputError(f"The split leaves no frame for {name}; give it some.")
        every = np.concatenate([self.train, self.validation, self.test])
        if len(np.unique(every)) != len(every) or every.max() >= len(dataset) or every.min() < 0:
            raise InputError(
                "The split names a frame twice or one that is not there; make it again."
            )
        known = _elements(dataset, self.train)
        for name, chosen in self.parts():
            unseen = _elements(dataset, chosen) - known
            if unseen:
                names = [SYMBOLS[number] for number in sorted(unseen)]
                raise InputError(
                    f"{name_some(names)} is in frames of {name} and in none of train; split by "
                    "another method, or leave these frames out."
                )


def _elements(dataset: Dataset, chosen: Index) -> set[int]:
    numbers = dataset.numbers()
    present = np.zeros(len(SYMBOLS), dtype=bool)
    for frame in chosen:
        present[numbers[dataset.start[frame] : dataset.start[frame + 1]]] = True
    return set(np.flatnonzero(present).tolist())


@checked
def random_split(dataset: Dataset, validation: float, test: float, seed: int) -> Split:
    """Frames at random; below 1, `validation` and `test` are shares of all, else numbers.

    Single atoms, of which references come, are trained on.
    """
    order = _generator(seed).permutation(len(dataset))
    if (several := dataset.atoms[order] > 1).any():
        order = order[several]
    validated, tested = _count(validation, len(order)), _count(test, len(order))
    method = f"random, seed {seed}"
    return _split(dataset, order[:validated], order[validated : validated + tested], method)


@checked
def group_split(dataset: Dataset, validation: float, test: float, seed: int) -> Split:
    """Whole groups (molecules, configuration types) at random, until a part has its share."""
    order = _generator(seed).permutation(len(dataset.groups))
    sizes = np.bincount(dataset.group, minlength=len(dataset.groups))
    counts = [_count(part, len(dataset)) for part in (validation, test)]
    parts: list[list[int]] = [[], []]
    for group in order:
        for part, most in zip(parts, counts, strict=True):
            if sizes[part].sum() < most:
                part.append(int(group))
                break
    validated, kept = (np.flatnonzero(np.isin(dataset.group, part)) for part in parts)
    return _split(dataset, validated, kept, f"by group, seed {seed}")


@checked
def block_split(dataset: Dataset, validation: float, blocks: int, shuffled: bool = False) -> Split:
    """Contiguous stretches of one trajectory, evenly spaced; if shuffled, its order is found."""
    blocks = whole_number(blocks, "The number of blocks", 1, len(dataset) + 1)
    in_validation = _stretches(len(dataset), _count(validation, len(dataset)), blocks)
    order = recovered_order(dataset) if shuffled else np.arange(len(dataset))
    method = f"{blocks} blocks contiguous in {'recovered' if shuffled else 'the given'} order"
    return _split(dataset, order[in_validation], np.zeros(0, dtype=np.int64), method)


def _stretches(count: int, part: int, blocks: int) -> NDArray[np.bool_]:
    """(count,) where `blocks` evenly spaced stretches, of `part` places together, are True."""
    size = max(1, round(part / blocks))
    inside = np.zeros(count, dtype=bool)
    for block in range(blocks):
        start = round((block + 0.5) * count / blocks - size / 2)
        inside[max(0, start) : start + size] = True
    return inside


_BLOCKS: Final = 4
_FRAMES_PER_BLOCK: Final = 4
"""The frames held out of one trajectory form this many blocks, if each block gets this many."""

_MOST_ORDERED: Final = 1000
"""Most frames whose order in time is recovered; time and memory grow with their square."""


@checked
def together_split(dataset: Dataset, trajectory: Index, validation: float, seed: int) -> Split:
    """Holds out frames that belong together as a whole; no part is for test.

    Whole groups are held out if some are small enough for the share. Otherwise each group gives
    its share: whole trajectories if some are short enough, else stretches of each trajectory in
    the order of the file. If all frames are one periodic trajectory, its order in time is
    recovered first. Copies of a frame go where the first of them goes, whatever their groups.
    Single atoms are trained on, and so is the last group with an element.

    Args:
        dataset: the frames.
        trajectory: (M,) number of the trajectory of each frame, as `trajectories` gives.
        validation: share of the frames to hold out if below 1, else their number.
        seed: key of the choice.

    Raises:
        InputError: fewer than two frames of several atoms differ, or a part gets no frame.
    """
    copies = _copies(dataset)
    is_first = np.zeros(len(dataset), dtype=bool)
    is_first[np.unique(copies, return_index=True)[1]] = True
    several = np.flatnonzero((dataset.atoms > 1) & is_first)
    if len(several) < 2:
        raise InputError(
            f"{len(several)} of the {len(dataset)} frames have two atoms or more, copies not "
            "counted; give two such frames at least, one to train on and one to hold out."
        )
    count = _count(validation, len(several))
    nothing = np.zeros(0, dtype=np.int64)
    selection = _whole_groups(dataset, several, dataset.group, count, seed)
    if 2 * len(selection) >= count > 0:
        selection = np.flatnonzero(np.isin(copies, copies[selection]))
        return _split(dataset, selection, nothing, f"whole groups, seed {seed}")
    order = "the order of the file"
    periodic_trajectory = len(np.unique(trajectory)) == 1 and bool(dataset.pbc.any(1).all())
    if periodic_trajectory and len(dataset) <= _MOST_ORDERED:
        several, order = recovered_order(dataset), "the recovered order"
        several = several[is_first[several]]
    methods: dict[str, list[Index]] = {}
    for group in np.unique(dataset.group[several]):
        own = several[dataset.group[several] == group]
        part = round(count * len(own) / len(several))
        selection = _whole_groups(dataset, own, trajectory, part, seed)
        method = f"whole trajectories, seed {seed}"
        if 2 * len(selection) < part:
            selection = _stretches_of_each(own, trajectory[own], part)
            method = f"stretches of trajectories in {order}"
        if len(selection):
            methods.setdefault(method, []).append(selection)
    if not methods and count:
        methods = {"the last frame": [several[-1:]]}
    chosen = np.concatenate([nothing, *itertools.chain.from_iterable(methods.values())])
    selection = np.flatnonzero(np.isin(copies, copies[chosen]))
    return _split(dataset, selection, nothing, " and ".join(sorted(methods)))


def _copies(dataset: Dataset) -> Index:
    """(M,) number of the structure of each frame, the same for frames that repeat one."""
    numbers: dict[tuple[object, ...], int] = {}
    result = np.zeros(len(dataset), dtype=np.int64)
    for index, frame in enumerate(dataset.frames()):
        cell = np.where(frame.pbc[:, None], frame.cell, 0.0).round(4) + 0.0
        places = frame.positions.round(4) + 0.0
        key = frame.numbers.tobytes(), frame.charge, places.tobytes(), cell.tobytes()
        result[index] = numbers.setdefault(key, len(numbers))
    return result


def _stretches_of_each(frames: Index, trajectory: Index, part: int) -> Index:
    """About `part` of some frames (F,) in their order, from each trajectory (F,) its share."""
    parts = [np.zeros(0, dtype=np.int64)]
    for number in np.unique(trajectory):
        own = frames[trajectory == number]
        share = min(round(part * len(own) / len(frames)), len(own) - 1)
        if share > 0:
            blocks = _BLOCKS if share >= _BLOCKS * _FRAMES_PER_BLOCK else 1
            parts.append(own[_stretches(len(own), share, blocks)])
    return np.concatenate(parts)


def trajectories(dataset: Dataset) -> Index:
    """(M,) number of the trajectory of each frame; reads all frames a few times.

    Frames of one group share a number if they have the same atoms in the same cell, or are alike
    within 0.01 A an atom, as equivalent strains of one crystal are, or if other frames link them.
    """
    numbers: dict[tuple[object, ...], int] = {}
    result = np.zeros(len(dataset), dtype=np.int64)
    for index, frame in enumerate(dataset.frames()):
        cell = np.where(frame.pbc[:, None], frame.cell, 0.0).round(3) + 0.0
        key = int(dataset.group[index]), frame.numbers.tobytes(), cell.tobytes()
        result[index] = numbers.setdefault(key, len(numbers))
    parents = list(range(len(numbers)))

    def root(number: int) -> int:
        while parents[number] != number:
            parents[number] = number = parents[parents[number]]
        return number

    for group in composition_groups(dataset):
        for first, second in _equal_frames(group):
            if dataset.group[first] == dataset.group[second]:
                parents[root(int(result[first]))] = root(int(result[second]))
    return np.array([root(number) for number in result.tolist()], dtype=np.int64)


def _equal_frames(group: CompositionGroup) -> Iterator[tuple[int, int]]:
    """Yields pairs of equal frames that connect all equal frames of a composition."""
    distinct = group.members[group.representatives]
    frame_of_geometry = dict(
        zip(group.geometry[group.representatives].tolist(), distinct, strict=True)
    )
    for member, geometry in zip(group.members, group.geometry.tolist(), strict=True):
        yield member, frame_of_geometry[geometry]
    for rows, columns in close_pairs(group.descriptors, NEAR * group.response):
        yield from zip(distinct[rows], distinct[columns], strict=True)


def _whole_groups(dataset: Dataset, frames: Index, members: Index, count: int, seed: int) -> Index:
    """Frames of groups drawn at random: about `count`, at most half as many more, or too few.

    Args:
        dataset: the frames' composition.
        frames: (F,) frames to choose from.
        members: (M,) group of each frame of the data set.
        count: how many to choose.
        seed: key of the choice.
    """
    present = compositions(dataset)[1] > 0
    sizes = np.bincount(members[frames], minlength=members.max() + 1)
    holders = np.zeros((len(sizes), present.shape[1]), dtype=bool)
    for element in range(present.shape[1]):
        holders[members[frames[present[frames, element]]], element] = True
    left, groups, total = holders.sum(0), [], 0
    for group in _generator(seed).permutation(len(sizes)):
        fits = 0 < sizes[group] <= 1.5 * count - total
        if total < count and fits and (left[holders[group]] > 1).all():
            groups.append(group)
            left, total = left - holders[group], total + sizes[group]
    return frames[np.isin(members[frames], groups)]


@checked
def file_split(
    dataset: Dataset,
    validation: float,
    test: float,
    validation_files: Collection[str],
    test_files: Collection[str],
    seed: int,
) -> Split:
    """All frames of the named files; where a part names none, a random share of the rest."""
    if not validation_files and not test_files:
        raise InputError(
            "The method file holds out all frames of some files, and none is named; name them with "
            "--validation-file or --test-file."
        )
    names = [source.file for source in dataset.sources]
    parts = []
    for files in (validation_files, test_files):
        absent = [name for name in files if name not in names]
        if absent:
            raise InputError(
                f"No frame came from {name_some(absent)}; the files are {name_some(names)}."
            )
        chosen = [number for number, name in enumerate(names) if name in files]
        parts.append(np.flatnonzero(np.isin(dataset.source, chosen)))
    rest = np.setdiff1d(np.arange(len(dataset)), np.concatenate(parts))
    if not len(rest):
        raise InputError("All frames came from the named files, so none is left; name fewer.")
    rest = _generator(seed).permutation(rest)
    for place, share in enumerate((validation, test)):
        if not (validation_files, test_files)[place]:
            size = _count(share, len(rest))
            parts[place], rest = rest[:size], rest[size:]
    return _split(dataset, parts[0], parts[1], f"by file, seed {seed}")


@checked
def fold_splits(dataset: Dataset, folds: int, test: float, seed: int) -> list[Split]:
    """Every frame but those of test is held out in one of `folds` splits."""
    folds = whole_number(folds, "The number of folds", 2, len(dataset) + 1)
    order = _generator(seed).permutation(len(dataset))
    kept = _count(test, len(dataset))
    parts = np.array_split(order[kept:], folds)
    return [
        _split(dataset, part, order[:kept], f"fold {number} of {folds}, seed {seed}")
        for number, part in enumerate(parts, 1)
    ]


def _count(part: float, frames: int) -> int:
    """Frames of a part, one at least where it is to have any.

    Raises:
        InputError: it is neither a share nor a whole number of frames that there are.
    """
    if not 0.0 <= part <= frames or (part >= 1.0 and part % 1.0):
        raise InputError(
            f"A part of a split is {part:g} of {frames} frames; give a share below 1, or a whole "
            "number of frames."
        )
    return max(round(part * frames), part > 0.0) if part < 1.0 else round(part)


def _generator(seed: int) -> np.random.Generator:
    return np.random.default_rng(whole_number(seed, "The seed"))


def _split(dataset: Dataset, validation: Index, test: Index, method: str) -> Split:
    rest = np.setdiff1d(np.arange(len(dataset)), np.concatenate([validation, test]))
    split = Split(rest, np.sort(validation), np.sort(test), method, dataset.sha256())
    split.check(dataset)
    return split


@checked
def write_split(split: Split, path: str | Path, *, overwrite: bool = False) -> None:
    """Writes a split whole; raises FileError where the disk refuses, or one may not be replaced."""
    record: dict[str, Any] = {"format": FORMAT}
    for field in fields(split):
        value = getattr(split, field.name)
        record[field.name] = value.tolist() if isinstance(value, np.ndarray) else value
    text = json.dumps(record) + "\n"
    write_atomically(path, text, new=not overwrite)


@checked
def read_split(path: str | Path, dataset: Dataset, remedy: str = _REMEDY) -> Split:
    """Reads a split and checks it.

    Args:
        path: of the file.
        dataset: that it splits.
        remedy: see `Split.check`.

    Raises:
        FileError: the file is absent or damaged.
        InputError: see `Split.check`.
    """
    path = Path(path)
    text = read_file(path, "a split", _LARGEST_BYTES).decode(errors="replace")
    try:
        record = json.loads(text)
        parts = {
            name: np.array(_INDEX.validate_python(record[name]), dtype=np.int64) for name in PARTS
        }
        split = Split(**parts, method=str(record["method"]), sha256=str(record["sha256"]))
        version = int(record["format"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise FileError(f"{path} is not a split, or a damaged one; make it again.") from error
    if version > FORMAT:
        raise FileError(f"{path} was written by a newer mdgraph; upgrade mdgraph.")
    split.check(dataset, remedy)
    return split
