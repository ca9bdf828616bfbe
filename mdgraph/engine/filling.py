"""What makes batches of different structures look alike: their shape, and what fills it up."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

from mdgraph.neighbors.geometry import Lattice
from mdgraph.state import Room
from mdgraph.system import System

_APART: Final = 3.0
"""Distance between lone atoms, in cutoffs."""

_SMALLEST: Final = 16
"""Atoms of the first rung of largest systems; each further one has twice as many."""


@dataclass(frozen=True)
class Kind:
    """What structures of a batch have in common.

    Attributes:
        pbc: periodic directions.
        shell: images that a list looks at, each way around the nearest one.
    """

    pbc: tuple[bool, ...]
    shell: int


@dataclass(frozen=True)
class Shape:
    """What decides the shapes of buffers and the plan of the lists.

    Attributes:
        kind: of its structures.
        atoms, systems: of a batch, its filling included.
        room: for its systems.
    """

    kind: Kind
    atoms: int
    systems: int
    room: Room

    def fits(self, systems: int, atoms: int) -> bool:
        """Whether filling makes so many structures with so many atoms a whole batch."""
        filling, left = self.systems - systems, self.atoms - atoms
        return 0 < filling <= left <= filling * self.room.largest


def kinds(systems: Sequence[System], cutoffs: Sequence[float]) -> dict[Kind, list[int]]:
    """Places of the structures of each kind, for lists of these cutoffs (A)."""
    if not systems:
        return {}
    cells = torch.from_numpy(np.stack([system.cell for system in systems]))
    pbc = torch.from_numpy(np.stack([system.pbc for system in systems]))
    reach = Lattice.of(cells, pbc, _longest(cutoffs)).reach.amax(-1)
    # The plan of a list has this margin, too.
    shells = (1.02 * reach + 0.5).floor().to(torch.int64).tolist()
    found: dict[Kind, list[int]] = {}
    for place, (directions, shell) in enumerate(zip(pbc.tolist(), shells, strict=True)):
        found.setdefault(Kind(tuple(directions), shell), []).append(place)
    return found


def common_shape(kind: Kind, systems: Sequence[System], atoms: int) -> Shape | None:
    """The shape of batches of these structures of one kind.

    Args:
        kind: theirs.
        systems: structures; those with more than half of the atoms do not count.
        atoms: of a batch.

    Returns:
        None where no second batch would use the buffers, or a batch is too small to be filled.
    """
    sizes = [len(system) for system in systems if 2 * len(system) <= atoms]
    if sum(sizes) <= atoms or atoms < _SMALLEST:
        return None
    elements = sorted(set(np.concatenate([one.numbers for one in systems]).tolist()))
    largest = _SMALLEST
    while largest < max(sizes):
        largest *= 2
    count = math.ceil(atoms * len(sizes) / sum(sizes)) + atoms // largest + 1
    return Shape(kind, atoms, min(count, atoms // 4), Room(largest, tuple(elements)))


def packed(
    systems: Sequence[System], places: Sequence[int], atoms: int, shape: Shape | None = None
) -> Iterator[tuple[list[int], Shape | None]]:
    """Places in batches, with their shape; a structure too large for others is one of its own.

    Args:
        systems: structures.
        places: of those of one kind.
        atoms: of a batch.
        shape: that batches must fit; None makes them as large as they happen to be, of
            structures of like sizes, since lists are searched up to the largest of a batch.
    """
    if shape is None:
        places = sorted(places, key=lambda place: len(systems[place]))
    batch: list[int] = []
    held = 0
    for place in places:
        size = len(systems[place])
        if 2 * size > atoms:
            yield [place], None
            continue
        full = held + size > atoms
        if shape is not None:
            full = not shape.fits(len(batch) + 1, held + size)
        if batch and full:
            yield batch, shape
            batch, held = [], 0
        batch.append(place)
        held += size
    if batch:
        yield batch, shape


def filling(shape: Shape, systems: Sequence[System], cutoffs: Sequence[float]) -> list[System]:
    """Systems of lone atoms, of the first structure's element, that make a batch whole."""
    count, left = shape.systems - len(systems), shape.atoms - sum(map(len, systems))
    apart = _APART * (_longest(cutoffs) or 1.0)
    found = []
    for place in range(count):
        size = left // count + (place < left % count)
        positions = np.zeros((size, 3))
        positions[:, 0] = apart * np.arange(size)
        cell = np.diag([apart * size, apart, apart])
        numbers = np.full(size, systems[0].numbers[0])
        found.append(System(numbers, positions, cell=cell, pbc=np.array(shape.kind.pbc)))
    return found


def _longest(cutoffs: Sequence[float]) -> float:
    """A; of the cutoffs that are finite, or 0."""
    return max((cutoff for cutoff in cutoffs if math.isfinite(cutoff)), default=0.0)
