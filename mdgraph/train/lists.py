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
    quiet: bool = False,
) -> list[tuple[FrameList, ...]]:
    """Lists of the frames, one for each cutoff; reads the device.

    Raises:
        InputError: a frame that makes no system.
    """
    found: list[tuple[FrameList, ...]] = []
    bar = tqdm(total=len(frames), desc="neighbor lists", leave=False, disable=quiet or None)
    part: list[System] = []
    for place, index in enumerate(frames):
        part.append(_system(dataset.frame(int(index)), int(index), dataset))
        full = sum(map(len, part)) + dataset.atoms[frames[min(place + 1, len(frames) - 1)]] > _ATOMS
        if full or place + 1 == len(frames):
            found += _lists_of(part, cutoffs, device)
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
    systems: list[System], cutoffs: tuple[float, ...], device: torch.device
) -> list[tuple[FrameList, ...]]:
    state = State(systems, device)
    starts = state.grouping.start.tolist()
    by_cutoff = []
    for cutoff in cutoffs:
        one = NeighborList(state, cutoff)
        pairs = one.pairs(state.positions, state.cell)
        vectors = torch.cat([block.detach() for block in pairs.vectors], 1).cpu()
        index, reverse, count = one.index.cpu(), one.reverse.cpu(), one.count.cpu()
        lists = []
        for start, system in zip(starts, systems, strict=True):
            rows = slice(start, start + len(system))
            used = max(1, int(count[rows].max()))
            lists.append(
                FrameList(
                    vectors[rows, :used].clone(),
                    index[rows, :used] - start,
                    reverse[rows, :used].clone(),
                    count[rows].clone(),
                )
            )
        by_cutoff.append(lists)
    return list(zip(*by_cutoff, strict=True))
