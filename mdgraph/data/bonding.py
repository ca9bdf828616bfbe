"""Whether a frame is a molecule, several molecules in a periodic cell, or a solid, by its bonds."""

from collections import Counter
from collections.abc import Iterator
from typing import Final, Literal

import numpy as np
from ase.neighborlist import primitive_neighbor_list
from numpy.typing import NDArray

from mdgraph.data.dataset import Dataset, LabelledFrame, evenly_spaced
from mdgraph.system import completed_cell
from mdgraph.units import BOND_FACTOR, COVALENT_RADII

Kind = Literal["molecule", "liquid", "crystal"]
"""A molecule or cluster alone, several molecules in a periodic cell, or anything periodic whose
bonds lead from one cell into the next: crystals, surfaces, metallic and covalent melts."""

_FRAMES: Final = 20
"""Most frames of a data set that are looked at."""


def count_kinds(dataset: Dataset) -> Counter[Kind]:
    """Kinds of up to 20 frames of several atoms, evenly spaced."""
    several = np.flatnonzero(dataset.atoms > 1)
    return Counter(map(kind_of, dataset.frames(evenly_spaced(several.tolist(), _FRAMES))))


def kind_of(frame: LabelledFrame) -> Kind:
    """The kind of a frame, by its cell and bonds.

    A liquid has more than half of its atoms in molecules of two atoms or more.
    """
    if not frame.pbc.any():
        return "molecule"
    clusters = list(_clusters(frame))
    if clusters == [(len(frame), True)]:
        return "molecule"
    in_molecules = sum(size for size, finite in clusters if finite and size > 1)
    return "liquid" if 2 * in_molecules > len(frame) else "crystal"


def bond_lengths(numbers: NDArray[np.int64]) -> NDArray[np.float64]:
    """Sums of the covalent radii (A) of each pair of atoms (N, N), by atomic numbers (N,)."""
    radii = COVALENT_RADII[numbers]
    lengths: NDArray[np.float64] = radii[:, None] + radii
    return lengths


def bonded(numbers: NDArray[np.int64], positions: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which atoms (N, N) without a cell are joined by a bond, at positions (N, 3) in A."""
    distance = np.linalg.norm(positions[:, None] - positions, axis=2)
    bonds: NDArray[np.bool_] = distance < BOND_FACTOR * bond_lengths(numbers)
    np.fill_diagonal(bonds, False)
    return bonds


def _clusters(frame: LabelledFrame) -> Iterator[tuple[int, bool]]:
    """Atoms of each cluster joined by bonds, and whether it ends before its own periodic image."""
    radii = COVALENT_RADII[frame.numbers]
    lattice, reach = completed_cell(frame.cell, frame.pbc), 2.0 * BOND_FACTOR * radii.max()
    first, second, distance, shift = primitive_neighbor_list(
        "ijdS", frame.pbc, lattice, frame.positions, reach
    )
    near = distance < BOND_FACTOR * (radii[first] + radii[second])
    bonds: list[list[tuple[int, tuple[int, ...]]]] = [[] for _ in range(len(frame))]
    for atom, other, cell in zip(first[near], second[near], shift[near], strict=True):
        bonds[atom].append((int(other), tuple(cell.tolist())))
    cell_of: dict[int, tuple[int, ...]] = {}
    for start in range(len(frame)):
        if start in cell_of:
            continue
        before, finite = len(cell_of), True
        cell_of[start] = (0, 0, 0)
        stack = [start]
        while stack:
            atom = stack.pop()
            for other, step in bonds[atom]:
                cell = tuple(a + b for a, b in zip(cell_of[atom], step, strict=True))
                if other not in cell_of:
                    cell_of[other] = cell
                    stack.append(other)
                finite &= cell_of[other] == cell
        yield len(cell_of) - before, finite
