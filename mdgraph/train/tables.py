"""Frames of a training, padded to a few shapes, with neighbor lists made once.

A frame of n atoms with at most k neighbors becomes N atoms of K slots. Frames of one shape are
batched together.

Tables that do not fit into memory lie in a nameless file. The system loads parts of it as they are
used, and removes it when the process ends.
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

logger = logging.getLogger(__name__)


def has_dipole(frame: LabelledFrame) -> bool:
    """Whether a frame has a dipole that does not depend on the origin."""
    known = frame.dipole is not None and bool(np.isfinite(frame.dipole).all())
    return known and frame.charge == 0.0 and not frame.pbc.any()


def has_stress(frame: LabelledFrame) -> bool:
    """Whether a frame has a stress and a volume."""
    known = frame.stress is not None and bool(np.isfinite(frame.stress).all())
    return known and _has_volume(frame)


def _has_volume(frame: LabelledFrame) -> bool:
    return bool(frame.pbc.any()) and np.linalg.matrix_rank(frame.cell) == 3


_WASTE: Final = 1.15
"""Largest ratio of atoms or slots of a shape to those of its smallest frame, before merging."""

_SLOTS: Final = 8
"""Numbers of slots are multiples of this."""

_LAUNCHES: Final = 8192
"""Atoms and slots of a step below which it takes no less time, since launches dominate: on an H200
860 kernels take 2.9 ms."""

_MEMORY: Final = 0.05
"""Cost of the memory of an atom or slot, relative to its arithmetic."""


@dataclass(frozen=True, eq=False)
class PaddedShape:
    """Frames padded to the same size.

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
    """A shape before merging.

    Attributes:
        atoms, slots: of the shape.
        parts: rows of its frames.
        frames, trained: numbers of its frames, and of those that are training frames.
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

    def merge(self, other: "_Draft") -> "_Draft":
        """The shape of both together."""
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

    Groups that do not fill a step are merged if that saves more than its padding costs.

    Args:
        frames: (M,) their numbers.
        atoms: (M,) atoms of each.
        slots: (M, L) most neighbors of an atom of each, list by list.
        most: shapes at the end, unless `exact`.
        exact: whether frames must not be padded with atoms, as sums over a system would include
            them.
        counted: frames of which each shape must have `least`: training frames.
        frames_a_step: frames in a step, by atoms and slots of the first list of a frame.
        least: see `counted`.
    """
    slots = -(-np.maximum(slots, 1) // _SLOTS) * _SLOTS
    drafts = []
    for group in _groups(atoms, np.arange(len(atoms)), 1.0 if exact else _WASTE):
        for rows in _groups(slots[:, 0], group, np.inf if exact else _WASTE):
            longest = tuple(int(value) for value in slots[rows].max(0))
            trained = int(np.isin(frames[rows], counted).sum())
            drafts.append(_Draft(int(atoms[rows].max()), longest, [rows], len(rows), trained))
    while not exact and len(drafts) > 1:
        poor = [draft for draft in drafts if 0 < draft.trained < least]
        costs = [
            (
                draft.merge(other).cost(frames_a_step)
                - draft.cost(frames_a_step)
                - other.cost(frames_a_step),
                i,
                j,
            )
            for i, draft in enumerate(drafts)
            for j, other in enumerate(drafts)
            if i != j and (not poor or draft is poor[0])
        ]
        added, i, j = min(costs)
        if len(drafts) <= most and not poor and added >= 0:
            break
        merged = drafts[i].merge(drafts[j])
        drafts = [draft for k, draft in enumerate(drafts) if k not in (i, j)] + [merged]
    shapes = [
        PaddedShape(draft.atoms, draft.slots, np.sort(frames[np.concatenate(draft.parts)]))
        for draft in drafts
    ]
    return sorted(shapes, key=lambda shape: (shape.atoms, shape.slots))


def _groups(
    sizes: NDArray[np.int64], rows: NDArray[np.int64], waste: float
) -> list[NDArray[np.int64]]:
    """Rows grouped so that sizes within a group differ by the factor `waste` at most."""
    groups = []
    while len(rows):
        near = sizes[rows] * waste >= sizes[rows].max()
        groups.append(rows[near])
        rows = rows[~near]
    return groups


_BLOCK: Final = 1 << 26
"""Bytes of a block. Small tensors share one, so that their memory returns to the system as a whole;
the C library keeps what is smaller than 32 MB."""

_ALIGNED: Final = 64
"""Bytes; every tensor begins at a multiple of it."""


class Storage:
    """Allocates tensors: in memory until a budget is spent, then in a file.

    Attributes:
        filed: bytes in the file.
    """

    def __init__(self, folder: Path, budget: int) -> None:
        """Opens no file yet.

        Args:
            folder: of the file; it or one of its parents exists.
            budget: bytes of memory.
        """
        self.filed = 0
        self._left = budget
        self._folder = next(path for path in (folder, *folder.absolute().parents) if path.is_dir())
        self._block: NDArray[np.uint8] = np.zeros(0, dtype=np.uint8)

    def zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """A tensor of zeros, which takes memory as it is written.

        Raises:
            FileError: the disk has no room.
        """
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        room = -(-size // _ALIGNED) * _ALIGNED
        if room > len(self._block):
            self._block = self._new_block(max(room, _BLOCK))
        piece, self._block = self._block[:room], self._block[room:]
        return torch.from_numpy(piece[:size]).view(dtype).view(shape)

    def copy_to_host(self, tensor: Tensor) -> Tensor:
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
"""Atoms whose neighbors are searched at a time."""


@dataclass(frozen=True, eq=False)
class FrameList:
    """Pairs of one frame of n atoms with at most k neighbors, on the host.

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
        InputError: a frame is no valid system.
        FileError: the disk has no room for what does not fit into memory.
    """
    lists: list[tuple[FrameList, ...]] = []
    bar = tqdm(total=len(frames), desc="neighbor lists", leave=False, disable=quiet or None)
    part: list[System] = []
    capacities: list[int | None] = [None] * len(cutoffs)
    for place, (index, frame) in enumerate(zip(frames, dataset.frames(frames), strict=True)):
        part.append(_system(frame, int(index), dataset))
        full = sum(map(len, part)) + dataset.atoms[frames[min(place + 1, len(frames) - 1)]] > _ATOMS
        if full or place + 1 == len(frames):
            lists += _lists_of(part, cutoffs, device, capacities, storage)
            bar.update(len(part))
            part = []
    bar.close()
    return lists


def _system(frame: LabelledFrame, index: int, dataset: Dataset) -> System:
    try:
        return frame.system()
    except InputError as error:
        raise InputError(f"Frame {index} of {dataset.path.name}: {error}") from error


def _lists_of(
    systems: list[System],
    cutoffs: tuple[float, ...],
    device: torch.device,
    capacities: list[int | None],
    storage: Storage,
) -> list[tuple[FrameList, ...]]:
    """Lists of some frames; starts from `capacities`, the last ones used, and updates them."""
    state = State(systems, device)
    starts = state.grouping.start.tolist()
    by_cutoff = []
    for number, cutoff in enumerate(cutoffs):
        neighbors = NeighborList(state, cutoff, capacity=capacities[number])
        if not neighbors.status().complete:
            neighbors.grow()
        capacities[number] = neighbors.capacity
        pairs = neighbors.pairs(state.positions, state.cell)
        count = storage.copy_to_host(neighbors.count)
        most = max(1, int(count.max()))
        every = torch.cat([block.detach() for block in pairs.vectors], 1)
        # Copied into their place at once, since temporary copies would fragment memory.
        vectors, index, reverse = (
            storage.copy_to_host(whole[:, :most])
            for whole in (every, neighbors.index, neighbors.reverse)
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
"""Slots that an int16 can number."""


def slot_dtype(slots: int) -> torch.dtype:
    """The smallest integer type that numbers so many slots."""
    return torch.int16 if slots <= _MOST else torch.int32


def pad_list(
    frame: FrameList, atoms: int, slots: int, cutoff: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A list with its cutoff (A), padded to N atoms and K slots.

    Returns:
        vectors (N, K, 3) float64 A, index (N, K), reverse (N K,) and count (N,) int32; see
        `Table`.
    """
    n, k = frame.index.shape
    vectors = torch.zeros(atoms, slots, 3, dtype=torch.float64)
    vectors[..., 0] = 2.0 * cutoff if math.isfinite(cutoff) else 1.0
    index = torch.arange(atoms, dtype=torch.int32)[:, None].repeat(1, slots)
    reverse = torch.arange(atoms * slots, dtype=torch.int32).view(atoms, slots)
    count = torch.zeros(atoms, dtype=torch.int32)
    vectors[:n, :k], index[:n, :k], count[:n] = frame.vectors, frame.index, frame.count
    used = torch.arange(k) < frame.count[:, None]
    reverse[:n, :k] = torch.where(used, frame.index * slots + frame.reverse, reverse[:n, :k])
    return vectors, index, reverse.flatten(), count


def number_pairs(reverse: Tensor) -> tuple[Tensor, Tensor]:
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
"""Numbers of pairs are multiples of this."""


@dataclass(frozen=True, eq=False)
class Table:
    """M frames of N atoms and K slots; padding atoms have `present` 0 and no neighbors.

    Attributes:
        cutoffs: A, of the lists.
        kinds: (M, N) int64, index of each atom's element among those of the data set.
        atoms: (M,) int64, numbers of atoms without padding.
        present: (M, N) float64, 1 or 0.
        charge: (M,) float64, e.
        volume: (M,) float64, A^3; 1 where there is none.
        positions: (M, N, 3) float64, A, from the centre; 0 for padding.
        energy, forces, stress, dipole: (M,), (M, N, 3), (M, 3, 3), (M, 3) float64; 0 if unknown.
        energy_weight, force_weight, stress_weight, dipole_weight: (M,), (M, N), (M,), (M,)
            float64; 0 if unknown, as is the dipole of a charged or periodic frame.
        vectors: of each list (M, N, K, 3) A, in the dtype of the network: differences are taken in
            float64 and then rounded; beyond the cutoff in empty slots.
        index: of each list (M, N, K) int16, or int32 if a frame has too many slots, as the
            following except counts; an empty slot holds its own atom.
        reverse: of each list (M, N K), flat slot within the frame.
        count: of each list (M, N) int32.
        pairs: (M,) int32, numbers of pairs of the first list, each of which is two of its slots.
        forward: (M, P), a slot of each pair, whose reverse is the other; 0 beyond `pairs`.
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
    forward: Tensor
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
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors())

    def tensors(self) -> list[Tensor]:
        """All of them, in a fixed order."""
        tensors: list[Tensor] = []
        for field in fields(self)[1:]:
            value = getattr(self, field.name)
            tensors += value if isinstance(value, tuple) else [value]
        return tensors

    def map_tensors(self, change: Any) -> Self:
        """A table with every tensor changed by a function."""
        changed: dict[str, Any] = {}
        for field in fields(self)[1:]:
            value = getattr(self, field.name)
            whole = isinstance(value, tuple)
            changed[field.name] = tuple(map(change, value)) if whole else change(value)
        return type(self)(self.cutoffs, **changed)

    def rows(self, frames: Tensor) -> Self:
        """The table of some of its frames; does not sync."""
        return self.map_tensors(lambda tensor: tensor.index_select(0, frames))


def make_table(
    dataset: Dataset,
    shape: PaddedShape,
    lists: Iterable[tuple[FrameList, ...]],
    elements: list[int],
    cutoffs: tuple[float, ...],
    element_weights: dict[int, float],
    most_pairs: int,
    storage: Storage,
    vector_dtype: torch.dtype,
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
        storage: allocates the table.
        vector_dtype: that the network computes in.
    """
    count, atoms = len(shape.frames), shape.atoms
    place = np.zeros(max(elements) + 1, dtype=np.int64)
    place[elements] = np.arange(len(elements))
    weights = np.ones(max(elements) + 1)
    for number, weight in element_weights.items():
        if number < len(weights):
            weights[number] = weight

    def zeros(*size: int, dtype: torch.dtype = torch.float64) -> Tensor:
        return storage.zeros((count, *size), dtype)

    dtypes = [slot_dtype(atoms * slots) for slots in shape.slots]
    table = Table(
        cutoffs=cutoffs,
        kinds=zeros(atoms, dtype=torch.int64),
        atoms=zeros(dtype=torch.int64),
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
        vectors=tuple(zeros(atoms, slots, 3, dtype=vector_dtype) for slots in shape.slots),
        index=tuple(
            zeros(atoms, k, dtype=dtype) for k, dtype in zip(shape.slots, dtypes, strict=True)
        ),
        reverse=tuple(
            zeros(atoms * k, dtype=dtype) for k, dtype in zip(shape.slots, dtypes, strict=True)
        ),
        count=tuple(zeros(atoms, dtype=torch.int32) for _ in shape.slots),
        pairs=zeros(dtype=torch.int32),
        forward=zeros(-(-max(1, most_pairs) // _PAIRS) * _PAIRS, dtype=dtypes[0]),
        number=zeros(atoms * shape.slots[0], dtype=dtypes[0]),
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
        if _has_volume(frame):
            table.volume[row] = abs(np.linalg.det(frame.cell))
        if has_stress(frame):
            assert frame.stress is not None
            table.stress[row] = torch.from_numpy(0.5 * (frame.stress + frame.stress.T))
            table.stress_weight[row] = frame.weight
        columns = table.vectors, table.index, table.reverse, table.count
        for number, (pairs, slots, cutoff) in enumerate(
            zip(own, shape.slots, cutoffs, strict=True)
        ):
            padded = pad_list(pairs, atoms, slots, cutoff)
            for column, values in zip(columns, padded, strict=True):
                column[number][row] = values
        first, table.number[row] = number_pairs(table.reverse[0][row].int())
        table.pairs[row] = len(first)
        table.forward[row, : len(first)] = first
    return table
