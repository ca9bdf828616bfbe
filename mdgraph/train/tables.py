"""Frames of a training, padded to a few shapes, with neighbor lists made once.

A frame of n atoms with at most k neighbors becomes N atoms of K slots. Frames of one shape are
batched together.

The system moves parts of such a file in and out as they are used, and removes it with the
process, however that ends.
"""

import logging
import math
import os
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from tqdm import tqdm

from mdgraph.data import Dataset, LabelledFrame
from mdgraph.errors import InputError
from mdgraph.io.files import disk_failures
from mdgraph.neighbors import NeighborList
from mdgraph.state import State
from mdgraph.system import System


def has_dipole(frame: LabelledFrame) -> bool:
    """Whether it has one that means something, wherever the origin is."""
    known = frame.dipole is not None and bool(np.isfinite(frame.dipole).all())
    return known and frame.charge == 0.0 and not frame.pbc.any()


def has_stress(frame: LabelledFrame) -> bool:
    """Whether it has one, and a volume that it belongs to."""
    known = frame.stress is not None and bool(np.isfinite(frame.stress).all())
    return known and bool(frame.pbc.any()) and np.linalg.matrix_rank(frame.cell) == 3


_WASTE: Final = 1.15
"""Atoms or slots that a shape may have over those of its smallest frame, before merging."""

_SLOTS: Final = 8
"""Slots come in multiples of this."""

_LAUNCHES: Final = 8192
"""Atoms and slots of a step whose arithmetic takes as long as its launches: a smaller one gains
nothing, as on an H200, where 860 kernels take 2.9 ms up to there."""

_MEMORY: Final = 0.05
"""Weight of atoms and slots where their arithmetic costs nothing."""


@dataclass(frozen=True, eq=False)
class PaddedShape:
    """Frames padded alike.

    Attributes:
        atoms: N.
        slots: K of each list.
        frames: their numbers in the data set, ascending.
    """

    atoms: int
    slots: tuple[int, ...]
    frames: NDArray[np.int64]


@dataclass
class _Draft:
    """A shape that may still be merged.

    Attributes:
        atoms, slots: of the shape.
        parts: rows of its frames.
        frames, trained: how many there are, and how many of them are trained on.
    """

    atoms: int
    slots: tuple[int, ...]
    parts: list[NDArray[np.int64]]
    frames: int
    trained: int

    def cost(self, frames_a_step: Callable[[int, int], int]) -> float:
        """Atoms and slots of all steps that take the frames once, and a little for their memory."""
        size = min(self.frames, frames_a_step(self.atoms, self.slots[0]))
        padded = size * self.atoms * (1 + self.slots[0])
        return self.frames / size * (max(_LAUNCHES, padded) + _MEMORY * padded)

    def joined(self, other: "_Draft") -> "_Draft":
        """Both in one."""
        return _Draft(
            max(self.atoms, other.atoms),
            tuple(max(pair) for pair in zip(self.slots, other.slots, strict=True)),
            self.parts + other.parts,
            self.frames + other.frames,
            self.trained + other.trained,
        )


def plan_shapes(
    frames: NDArray[np.int64],
    atoms: NDArray[np.int64],
    slots: NDArray[np.int64],
    most: int,
    *,
    exact: bool,
    counted: NDArray[np.int64],
    frames_a_step: Callable[[int, int], int],
    least: int = 1,
) -> list[PaddedShape]:
    """Groups frames by size.

    Groups that do not fill a step are merged where that saves more steps than it pads.

    Args:
        frames: (M,) their numbers.
        atoms: (M,) atoms of each.
        slots: (M, L) most neighbors of an atom of each, list by list.
        most: shapes at the end, unless `exact`.
        exact: whether atoms may not be padded: sums over a system would see them.
        counted: frames of which each shape must have `least`, those trained on.
        frames_a_step: how many frames of so many atoms, and slots of the first list, a step takes.
        least: see `counted`.
    """
    slots = -(-np.maximum(slots, 1) // _SLOTS) * _SLOTS
    drafts = []
    for chosen in _ladder(atoms, np.arange(len(atoms)), 1.0 if exact else _WASTE):
        for rows in _ladder(slots[:, 0], chosen, np.inf if exact else _WASTE):
            longest = tuple(int(value) for value in slots[rows].max(0))
            trained = int(np.isin(frames[rows], counted).sum())
            drafts.append(_Draft(int(atoms[rows].max()), longest, [rows], len(rows), trained))
    while not exact and len(drafts) > 1:
        poor = [draft for draft in drafts if 0 < draft.trained < least]
        costs = [
            (
                one.joined(other).cost(frames_a_step)
                - one.cost(frames_a_step)
                - other.cost(frames_a_step),
                i,
                j,
            )
            for i, one in enumerate(drafts)
            for j, other in enumerate(drafts)
            if i != j and (not poor or one is poor[0])
        ]
        added, i, j = min(costs)
        if len(drafts) <= most and not poor and added >= 0:
            break
        merged = drafts[i].joined(drafts[j])
        drafts = [draft for k, draft in enumerate(drafts) if k not in (i, j)] + [merged]
    shapes = [
        PaddedShape(draft.atoms, draft.slots, np.sort(frames[np.concatenate(draft.parts)]))
        for draft in drafts
    ]
    return sorted(shapes, key=lambda shape: (shape.atoms, shape.slots))


def _ladder(
    sizes: NDArray[np.int64], chosen: NDArray[np.int64], waste: float
) -> list[NDArray[np.int64]]:
    """Rows grouped so that sizes within a group differ by the factor `waste` at most."""
    left, groups = chosen, []
    while len(left):
        near = sizes[left] * waste >= sizes[left].max()
        groups.append(left[near])
        left = left[~near]
    return groups


logger = logging.getLogger(__name__)

_BLOCK: Final = 1 << 26
"""Bytes taken at a time. Small tensors share a block, which goes back to the system as a whole:
what is smaller than 32 MB stays with the allocator."""

_ALIGNED: Final = 64
"""Bytes that every tensor begins at a multiple of."""


class Storage:
    """Hands out tensors: in memory until a budget is spent, then in the file.

    Attributes:
        filed: bytes that lie in the file.
    """

    def __init__(self, folder: Path, budget: int) -> None:
        """Opens nothing yet.

        Args:
            folder: for the file; it, or one above it, exists.
            budget: bytes of memory.
        """
        self.filed = 0
        self._left = budget
        self._folder = next(one for one in (folder, *folder.absolute().parents) if one.is_dir())
        self._block: NDArray[np.uint8] = np.zeros(0, dtype=np.uint8)

    def zeros(self, shape: tuple[int, ...], kind: torch.dtype) -> Tensor:
        """A tensor of zeros, untouched: it takes memory as it is written.

        Raises:
            FileError: the disk refuses.
        """
        size = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
        room = -(-size // _ALIGNED) * _ALIGNED
        if room > len(self._block):
            self._block = self._new_block(max(room, _BLOCK))
        taken, self._block = self._block[:room], self._block[room:]
        return torch.from_numpy(taken[:size]).view(kind).view(shape)

    def copied(self, tensor: Tensor) -> Tensor:
        """A copy of a tensor on the host."""
        return self.zeros(tuple(tensor.shape), tensor.dtype).copy_(tensor)

    def _new_block(self, size: int) -> NDArray[np.uint8]:
        if size <= self._left:
            self._left -= size
            return np.zeros(size, dtype=np.uint8)
        if not self.filed:
            logger.info(
                "The frames take more than the memory they may have; the rest of them lies in a "
                "file in %s until the training ends.",
                self._folder,
            )
        self.filed += size
        with (
            disk_failures(self._folder, "write"),
            tempfile.TemporaryFile(dir=self._folder) as file,
        ):
            os.posix_fallocate(file.fileno(), 0, size)
            return np.memmap(file, np.uint8, "r+", shape=(size,))


_ATOMS: Final = 4096
"""Atoms searched at a time."""


@dataclass(frozen=True, eq=False)
class FrameList:
    """The pairs of one frame of n atoms, k of the fullest, on the host.

    Attributes:
        vectors: (n, k, 3) float64 A, from the atom to its neighbor.
        index: (n, k) int32, the neighbor.
        reverse: (n, k) int32, slot of the reverse pair in the neighbor's row.
        count: (n,) int32, slots in use.
    """

    vectors: Tensor
    index: Tensor
    reverse: Tensor
    count: Tensor


def frame_lists(
    dataset: Dataset,
    frames: NDArray[np.int64],
    cutoffs: tuple[float, ...],
    device: torch.device,
    storage: Storage,
    quiet: bool = False,
) -> list[tuple[FrameList, ...]]:
    """Lists of the frames, one for each cutoff, kept in `storage`; reads the device.

    Raises:
        InputError: a frame that makes no system.
        FileError: the disk has no room for what memory has none for.
    """
    found: list[tuple[FrameList, ...]] = []
    bar = tqdm(total=len(frames), desc="neighbor lists", leave=False, disable=quiet or None)
    part: list[System] = []
    capacities: list[int | None] = [None] * len(cutoffs)
    for place, (index, frame) in enumerate(zip(frames, dataset.frames(frames), strict=True)):
        part.append(_system(frame, int(index), dataset))
        full = sum(map(len, part)) + dataset.atoms[frames[min(place + 1, len(frames) - 1)]] > _ATOMS
        if full or place + 1 == len(frames):
            found += _lists_of(part, cutoffs, device, capacities, storage)
            bar.update(len(part))
            part = []
    bar.close()
    return found


def _system(frame: LabelledFrame, index: int, dataset: Dataset) -> System:
    try:
        return System(frame.numbers, frame.positions, frame.cell, frame.pbc, charge=frame.charge)
    except InputError as error:
        raise InputError(f"Frame {index} of {dataset.path.name}: {error}") from error


def _lists_of(
    systems: list[System],
    cutoffs: tuple[float, ...],
    device: torch.device,
    capacities: list[int | None],
    storage: Storage,
) -> list[tuple[FrameList, ...]]:
    """Lists of some frames; `capacities` are those that the last frames took, and become theirs."""
    state = State(systems, device)
    starts = state.grouping.start.tolist()
    by_cutoff = []
    for number, cutoff in enumerate(cutoffs):
        one = NeighborList(state, cutoff, capacity=capacities[number])
        if not one.status().complete:
            one.grow()
        capacities[number] = one.capacity
        pairs = one.pairs(state.positions, state.cell)
        count = storage.copied(one.count)
        most = max(1, int(count.max()))
        every = torch.cat([block.detach() for block in pairs.vectors], 1)
        # Straight into their place: what is copied in between would leave holes in the memory.
        vectors, index, reverse = (
            storage.copied(whole[:, :most]) for whole in (every, one.index, one.reverse)
        )
        lists = []
        for start, system in zip(starts, systems, strict=True):
            rows = slice(start, start + len(system))
            used = max(1, int(count[rows].max()))
            index[rows] -= start
            own = (vectors[rows, :used], index[rows, :used], reverse[rows, :used], count[rows])
            lists.append(FrameList(*own))
        by_cutoff.append(lists)
    return list(zip(*by_cutoff, strict=True))


_MOST: Final = 1 << 15
"""Slots that an int16 numbers."""


def kind_of_number(slots: int) -> torch.dtype:
    """The smallest type that numbers so many slots."""
    return torch.int16 if slots <= _MOST else torch.int32


def padded_list(
    one: FrameList, atoms: int, slots: int, cutoff: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A list with its cutoff (A) as a frame of N atoms and K slots has it.

    Returns:
        vectors (N, K, 3) float64 A, index (N, K), reverse (N K,) and count (N,) int32, as `Table`
        explains them.
    """
    n, k = one.index.shape
    vectors = torch.zeros(atoms, slots, 3, dtype=torch.float64)
    vectors[..., 0] = 2.0 * cutoff if math.isfinite(cutoff) else 1.0
    index = torch.arange(atoms, dtype=torch.int32)[:, None].repeat(1, slots)
    reverse = torch.arange(atoms * slots, dtype=torch.int32).view(atoms, slots)
    count = torch.zeros(atoms, dtype=torch.int32)
    vectors[:n, :k], index[:n, :k], count[:n] = one.vectors, one.index, one.count
    used = torch.arange(k) < one.count[:, None]
    reverse[:n, :k] = torch.where(used, one.index * slots + one.reverse, reverse[:n, :k])
    return vectors, index, reverse.flatten(), count


def numbered_pairs(reverse: Tensor) -> tuple[Tensor, Tensor]:
    """The pairs of a frame, in the order of their first slots.

    Args:
        reverse: (N K,) int32; an empty slot is its own reverse.

    Returns:
        The first slots (P,) of all pairs, and the pair (N K,) of each slot, 0 for an empty one.
    """
    slot = torch.arange(len(reverse), dtype=torch.int32)
    first = slot[slot < reverse]
    pair, number = torch.arange(len(first), dtype=torch.int32), torch.zeros_like(slot)
    number[first] = number[reverse[first]] = pair
    return first, number


_PAIRS: Final = 8
"""Pairs come in multiples of this."""


@dataclass(frozen=True, eq=False)
class Table:
    """M frames of N atoms, K slots; atoms that only pad have `present` 0 and no neighbors.

    Attributes:
        cutoffs: A, of the lists.
        kinds: (M, N) int64, place of each atom's element in the data set's.
        atoms: (M,) int64, atoms that are present.
        present: (M, N) float64, 1 or 0.
        charge: (M,) float64, e.
        volume: (M,) float64, A^3; 1 where there is none.
        positions: (M, N, 3) float64, A, from the centre; 0 for padding.
        energy, forces, stress, dipole: (M,), (M, N, 3), (M, 3, 3), (M, 3) float64; 0 where not
            known.
        energy_weight, force_weight, stress_weight, dipole_weight: (M,), (M, N), (M,), (M,)
            float64; 0 likewise. The dipole of a charged or periodic frame is not known.
        vectors: of each list (M, N, K, 3) A, in the type of the network: differences are taken in
            float64, and what it rounds them to is all that is kept; beyond the cutoff in empty
            slots.
        index: of each list (M, N, K) int16, or int32 where a frame's slots are too many to be
            numbered so, as are the next but counts; an empty slot holds its own atom.
        reverse: of each list (M, N K), flat slot within the frame.
        count: of each list (M, N) int32.
        pairs: (M,) int32, of the first list; of the network's pairs each is two slots of it.
        one: (M, P), a slot of each pair, whose reverse is the other; 0 beyond `pairs`.
        number: (M, N K), the pair of each slot; 0 for an empty one.
    """

    cutoffs: tuple[float, ...]
    kinds: Tensor
    atoms: Tensor
    present: Tensor
    charge: Tensor
    volume: Tensor
    positions: Tensor
    energy: Tensor
    forces: Tensor
    stress: Tensor
    dipole: Tensor
    energy_weight: Tensor
    force_weight: Tensor
    stress_weight: Tensor
    dipole_weight: Tensor
    vectors: tuple[Tensor, ...]
    index: tuple[Tensor, ...]
    reverse: tuple[Tensor, ...]
    count: tuple[Tensor, ...]
    pairs: Tensor
    one: Tensor
    number: Tensor

    def __len__(self) -> int:
        return len(self.energy)

    @property
    def size(self) -> int:
        """Atoms N of a frame, padding included."""
        return self.kinds.shape[1]

    @property
    def bytes(self) -> int:
        """Memory of all tensors."""
        return sum(one.numel() * one.element_size() for one in self.tensors())

    def tensors(self) -> list[Tensor]:
        """All of them, in a fixed order."""
        found: list[Tensor] = []
        for field in fields(self)[1:]:
            value = getattr(self, field.name)
            found += value if isinstance(value, tuple) else [value]
        return found

    def mapped(self, change: Any) -> Self:
        """A table with every tensor changed by a function."""
        changed: dict[str, Any] = {}
        for field in fields(self)[1:]:
            value = getattr(self, field.name)
            whole = isinstance(value, tuple)
            changed[field.name] = tuple(map(change, value)) if whole else change(value)
        return type(self)(self.cutoffs, **changed)

    def rows(self, frames: Tensor) -> Self:
        """The table of some of its frames; does not sync."""
        return self.mapped(lambda tensor: tensor.index_select(0, frames))


def make_table(
    dataset: Dataset,
    shape: PaddedShape,
    lists: Iterable[tuple[FrameList, ...]],
    elements: list[int],
    cutoffs: tuple[float, ...],
    element_weights: dict[int, float],
    most_pairs: int,
    storage: Storage,
    kind_of_vectors: torch.dtype,
) -> Table:
    """Pads the frames of a shape, on the host.

    Args:
        dataset: labels.
        shape: which frames, and their padded size.
        lists: pairs of those frames.
        elements: atomic numbers in the data set, ascending.
        cutoffs: A.
        element_weights: weight of forces by atomic number, where it is not 1.
        most_pairs: pairs that the first list of a frame holds at most.
        storage: where the table is to lie.
        kind_of_vectors: type that the network computes in.
    """
    count, atoms = len(shape.frames), shape.atoms
    place = np.zeros(max(elements) + 1, dtype=np.int64)
    place[elements] = np.arange(len(elements))
    weights = np.ones(max(elements) + 1)
    for number, weight in element_weights.items():
        if number < len(weights):
            weights[number] = weight

    def zeros(*size: int, kind: torch.dtype = torch.float64) -> Tensor:
        return storage.zeros((count, *size), kind)

    kinds = [kind_of_number(atoms * slots) for slots in shape.slots]
    table = Table(
        cutoffs=cutoffs,
        kinds=zeros(atoms, kind=torch.int64),
        atoms=zeros(kind=torch.int64),
        present=zeros(atoms),
        charge=zeros(),
        volume=zeros().fill_(1.0),
        energy=zeros(),
        forces=zeros(atoms, 3),
        positions=zeros(atoms, 3),
        stress=zeros(3, 3),
        dipole=zeros(3),
        energy_weight=zeros(),
        force_weight=zeros(atoms),
        stress_weight=zeros(),
        dipole_weight=zeros(),
        vectors=tuple(zeros(atoms, slots, 3, kind=kind_of_vectors) for slots in shape.slots),
        index=tuple(zeros(atoms, k, kind=kind) for k, kind in zip(shape.slots, kinds, strict=True)),
        reverse=tuple(
            zeros(atoms * k, kind=kind) for k, kind in zip(shape.slots, kinds, strict=True)
        ),
        count=tuple(zeros(atoms, kind=torch.int32) for _ in shape.slots),
        pairs=zeros(kind=torch.int32),
        one=zeros(-(-max(1, most_pairs) // _PAIRS) * _PAIRS, kind=kinds[0]),
        number=zeros(atoms * shape.slots[0], kind=kinds[0]),
    )
    frames = dataset.frames(shape.frames)
    for row, (frame, own) in enumerate(zip(frames, lists, strict=True)):
        n = len(frame)
        table.kinds[row, :n] = torch.from_numpy(place[frame.numbers])
        table.atoms[row] = n
        table.present[row, :n] = 1.0
        table.charge[row] = frame.charge
        centred = frame.positions - frame.positions.mean(0)
        table.positions[row, :n] = torch.from_numpy(centred)
        if has_dipole(frame):
            table.dipole[row] = torch.from_numpy(frame.dipole)
            table.dipole_weight[row] = frame.weight
        if np.isfinite(frame.energy):
            table.energy[row] = frame.energy
            table.energy_weight[row] = frame.weight
        assert frame.forces is not None
        assert frame.force_weights is not None
        known = np.asarray(np.isfinite(frame.forces).all(1))
        table.forces[row, :n] = torch.from_numpy(np.where(known[:, None], frame.forces, 0.0))
        table.force_weight[row, :n] = torch.from_numpy(
            frame.weight * known * weights[frame.numbers] * frame.force_weights
        )
        if frame.pbc.any() and np.linalg.matrix_rank(frame.cell) == 3:
            table.volume[row] = abs(np.linalg.det(frame.cell))
        if has_stress(frame):
            assert frame.stress is not None
            table.stress[row] = torch.from_numpy(0.5 * (frame.stress + frame.stress.T))
            table.stress_weight[row] = frame.weight
        columns = table.vectors, table.index, table.reverse, table.count
        for number, (one, slots, cutoff) in enumerate(zip(own, shape.slots, cutoffs, strict=True)):
            for column, values in zip(columns, padded_list(one, atoms, slots, cutoff), strict=True):
                column[number][row] = values
        first, table.number[row] = numbered_pairs(table.reverse[0][row].int())
        table.pairs[row] = len(first)
        table.one[row, : len(first)] = first
    return table
