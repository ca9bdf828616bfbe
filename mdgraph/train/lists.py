"""Neighbor lists of every frame of a data set, made once."""

from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from tqdm import tqdm

from mdgraph.data import Dataset, LabelledFrame
from mdgraph.errors import InputError
from mdgraph.neighbors import NeighborList
from mdgraph.state import State
from mdgraph.system import System
from mdgraph.train.storage import Storage

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
