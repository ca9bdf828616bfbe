"""Bonds, molecules, residues and names of atoms, and the PDB file by which other programs get them.

Structures of PDB, mmCIF and GRO files bring their names and residues. For others, molecules follow
from covalent radii: a residue is a molecule.
"""

import itertools
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

import numpy as np
from ase.geometry import cell_to_cellpar, find_mic
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import breadth_first_order, connected_components
from scipy.spatial import cKDTree

from mdgraph.io.files import disk_failures
from mdgraph.io.pdb import STANDARD_RESIDUES, WATERS
from mdgraph.system import System, Topology, completed_cell
from mdgraph.units import BOND_FACTOR, COVALENT_RADII, SYMBOLS

_CATIONS: Final = [3, 11, 19, 37, 55, 12, 20, 38, 56]
"""Li, Na, K, Rb, Cs, Mg, Ca, Sr, Ba: as ions they lie within the sum of radii of their neighbors,
so here they have no bonds."""

_MOST_SERIALS: Final = 99_999
"""Atoms beyond have no serial number of their own in PDB, so there are no bonds by serial."""


def find_bonds(system: System) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Pairs of atoms nearer than `BOND_FACTOR` times the sum of their covalent radii.

    Returns:
        (B, 2) int64, the atoms of each bond, the lower index first; and (B, 3) int64, lattice
        vectors to add to the second atom. The alkali and alkaline earth metals have no bonds.
    """
    cell, pbc = completed_cell(system.cell, system.pbc), system.pbc
    inverse = np.linalg.inv(cell)
    radii = np.where(np.isin(system.numbers, _CATIONS), 0.0, COVALENT_RADII[system.numbers])
    cutoff = 2.0 * BOND_FACTOR * radii.max()
    margins = cutoff * np.linalg.norm(inverse, axis=0)  # in fractional coordinates
    fractional = system.positions @ inverse
    wraps = np.where(pbc, np.floor(fractional), 0.0).astype(np.int64)
    fractional -= wraps
    images, atoms = [fractional], [np.arange(len(system))]
    shifts = [np.zeros((len(system), 3), dtype=np.int64)]
    counts = np.where(pbc, np.ceil(margins), 0).astype(int)
    for image in itertools.product(*(range(-count, count + 1) for count in counts)):
        if not any(image):
            continue
        moved = fractional + image
        near = np.flatnonzero(((moved > -margins) & (moved < 1.0 + margins) | ~pbc).all(axis=1))
        images.append(moved[near])
        atoms.append(near)
        shifts.append(np.broadcast_to(np.array(image), (len(near), 3)))
    places = np.concatenate(images) @ cell
    atom, shift = np.concatenate(atoms), np.concatenate(shifts)
    pairs = cKDTree(places).query_pairs(cutoff, output_type="ndarray")
    pairs = pairs[pairs[:, 0] < len(system)]  # the image of an atom comes after all atoms
    distances = np.linalg.norm(places[pairs[:, 0]] - places[pairs[:, 1]], axis=1)
    first, second = atom[pairs].T
    bonded = distances < BOND_FACTOR * (radii[first] + radii[second])
    bonded &= (radii[first] > 0.0) & (radii[second] > 0.0) & (first <= second)
    first, second, pairs = first[bonded], second[bonded], pairs[bonded]
    steps = shift[pairs[:, 1]] - wraps[second] + wraps[first]
    return np.stack([first, second], axis=1), steps


@dataclass(frozen=True, eq=False)
class Bonds:
    """Bonds of a structure.

    Attributes:
        pairs: (B, 2) int64, the atoms of each bond.
        shifts: (B, 3) int64, lattice vectors to add to the second atom.
        from_radii: whether covalent radii decided which atoms are bonded.
    """

    pairs: NDArray[np.int64]
    shifts: NDArray[np.int64]
    from_radii: bool

    @classmethod
    def of(cls, system: System) -> "Bonds":
        """The bonds of the topology, or those by covalent radii if it has none."""
        topology = system.topology
        if topology is None or not len(topology.bonds):
            return cls(*find_bonds(system), from_radii=True)
        pairs = topology.bonds
        shifts = nearest_shifts(system.positions, pairs, system.cell, system.pbc)
        return cls(pairs, shifts, from_radii=False)

    @property
    def origin(self) -> str:
        """Where they come from, as a sentence ends."""
        if self.from_radii:
            return (
                f"atoms nearer than {BOND_FACTOR} times the sum of their covalent radii in frame 0"
            )
        return "the CONECT records of topology.pdb"


@dataclass(frozen=True, eq=False)
class Molecules:
    """Molecules of a structure, which can be put together in other frames of it.

    Attributes:
        labels: (N,) int64, the molecule of each atom, counted in the order of their first atoms.
        finite: (M,) bool, whether a molecule ends before its own periodic image. Crystals and
            other networks through the cell do not, so they cannot be made whole.
        bonds: by which the molecules hang together.
    """

    labels: NDArray[np.int64]
    finite: NDArray[np.bool_]
    bonds: Bonds
    _parents: NDArray[np.int64]
    _children: NDArray[np.int64]
    _levels: list[int]

    @classmethod
    def of(cls, system: System) -> "Molecules":
        """The molecules by the bonds of the topology, or by covalent radii if it has none."""
        known = Bonds.of(system)
        bonds, shifts = known.pairs, known.shifts
        count = len(system)
        # A node beyond the atoms leads to the first atom of each molecule.
        ones, ends = np.ones(len(bonds)), (bonds[:, 0], bonds[:, 1])
        graph = coo_array((ones, ends), shape=(count, count))
        roots, labels = _first_atoms(graph)
        rows = np.concatenate([bonds[:, 0], np.full(len(roots), count)])
        columns = np.concatenate([bonds[:, 1], roots])
        rooted = coo_array((np.ones(len(rows)), (rows, columns)), shape=(count + 1, count + 1))
        order, before = breadth_first_order(rooted.tocsr(), count, directed=False)
        place = np.empty(count + 1, dtype=np.int64)
        place[order] = np.arange(count + 1)
        levels = [1, 1 + len(roots)]
        places_before = place[before[order[1:]]]
        while levels[-1] <= count:
            levels.append(1 + int(np.searchsorted(places_before, levels[-1])))
        children = order[levels[1] :].astype(np.int64)
        molecules = cls(
            labels,
            np.ones(len(roots), dtype=bool),
            known,
            before[children].astype(np.int64),
            children,
            [level - levels[1] for level in levels[1:]],
        )
        offsets = molecules._offsets(system.positions, system.cell, system.pbc)
        broken = (offsets[bonds[:, 1]] != offsets[bonds[:, 0]] + shifts).any(axis=1)
        molecules.finite[labels[bonds[broken, 0]]] = False
        return molecules

    def _offsets(
        self, positions: NDArray[np.float64], cell: NDArray[np.float64], pbc: NDArray[np.bool_]
    ) -> NDArray[np.int64]:
        """(N, 3) int64, lattice vectors to add to each atom."""
        edges = np.stack([self._parents, self._children], axis=1)
        steps = nearest_shifts(positions, edges, cell, pbc)
        offsets = np.zeros((len(self.labels), 3), dtype=np.int64)
        if steps.any():
            for start, end in itertools.pairwise(self._levels):
                children = self._children[start:end]
                offsets[children] = offsets[self._parents[start:end]] + steps[start:end]
        return offsets

    def whole(
        self, positions: NDArray[np.float64], cell: NDArray[np.float64], pbc: NDArray[np.bool_]
    ) -> NDArray[np.float64]:
        """Positions (N, 3) in A with each finite molecule in one piece, around its first atom."""
        offsets = self._offsets(positions, cell, pbc)
        offsets[~self.finite[self.labels]] = 0
        return positions + offsets @ cell

    def wrap(
        self, positions: NDArray[np.float64], cell: NDArray[np.float64], pbc: NDArray[np.bool_]
    ) -> NDArray[np.float64]:
        """Positions (N, 3) in A with the centre of each finite molecule in the cell.

        The atoms of other molecules are put into the cell one by one.
        """
        sizes = np.bincount(self.labels)
        sums = [np.bincount(self.labels, weights=axis) for axis in positions.T]
        centers = (np.array(sums) / sizes).T[self.labels]
        single = ~self.finite[self.labels]
        centers[single] = positions[single]
        return positions + (wrap_positions(centers, cell, pbc) - centers)


def _first_atoms(graph: coo_array) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The first atom of each molecule, and the molecule (N,) of each atom."""
    _, labels = connected_components(graph, directed=False)
    _, roots, inverse = np.unique(labels, return_index=True, return_inverse=True)
    order = np.argsort(roots)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return roots[order], rank[inverse]


def nearest_shifts(
    positions: NDArray[np.float64],
    pairs: NDArray[np.int64],
    cell: NDArray[np.float64],
    pbc: NDArray[np.bool_],
) -> NDArray[np.int64]:
    """Lattice vectors (B, 3) that bring the second atom of each pair next to the first."""
    vectors = positions[pairs[:, 1]] - positions[pairs[:, 0]]
    if not pbc.any() or not len(pairs):
        return np.zeros(vectors.shape, dtype=np.int64)
    full = completed_cell(cell, pbc)
    nearest = find_mic(vectors, full, pbc)[0]
    shifts: NDArray[np.int64] = np.rint((nearest - vectors) @ np.linalg.inv(full)).astype(np.int64)
    return shifts


def wrap_positions(
    positions: NDArray[np.float64], cell: NDArray[np.float64], pbc: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Positions (N, 3) in A, put into the cell along its periodic directions."""
    if not pbc.any():
        return positions
    full = completed_cell(cell, pbc)
    fractional = positions @ np.linalg.inv(full)
    return positions - np.where(pbc, np.floor(fractional), 0.0) @ full


def topology_of(system: System) -> Topology:
    """The topology of a structure; without one, a residue for each molecule.

    Water is HOH, a single atom has the name of its element, and other molecules and networks are
    UNL. Bonds by covalent radii are not part of it.
    """
    if system.topology is not None:
        return system.topology
    labels = Molecules.of(system).labels
    counts = np.zeros((labels.max() + 1, len(SYMBOLS)), dtype=np.int32)
    np.add.at(counts, (labels, system.numbers), 1)
    sizes = counts.sum(axis=1)
    water = (sizes == 3) & (counts[:, 1] == 2) & (counts[:, 8] == 1)
    residue_names = np.where(water, "HOH", "UNL")[labels]
    single = sizes[labels] == 1
    symbols = np.array(system.symbols)
    residue_names[single] = np.char.upper(symbols[single])
    numbers: Counter[tuple[int, int]] = Counter()
    names = []
    for label, number in zip(labels.tolist(), system.numbers.tolist(), strict=True):
        numbers[label, number] += 1
        symbol = SYMBOLS[number]
        name = symbol if counts[label, number] == 1 else f"{symbol}{numbers[label, number]}"
        names.append(name.upper() if len(name) <= 4 else symbol.upper())
    return Topology(
        names=np.array(names),
        residue_names=residue_names,
        residues=(labels + 1).astype(str),
        chains=np.full(len(system), "A"),
    )


def write_pdb(path: Path, system: System) -> None:
    """Writes names, residues, elements, positions and bonds of a structure.

    Bonds are those that a PDB file gave; there are none above 99,999 atoms. Serial numbers above
    99,999 and residue numbers above 9,999 start again from 0, as other programs write them.

    Raises:
        FileError: the disk refused.
    """
    text = _pdb_text(system)
    with disk_failures(path, "write"):
        path.write_text(text, encoding="utf-8")


@lru_cache(maxsize=1)
def _pdb_text(system: System) -> str:
    """The content of the file, cached for replicas of one system."""
    topology = topology_of(system)
    lines = []
    if system.pbc.all():
        *lengths, alpha, beta, gamma = cell_to_cellpar(system.cell)
        edges = "".join(_column(length, 9, 3) for length in lengths)
        lines.append(f"CRYST1{edges}{alpha:7.2f}{beta:7.2f}{gamma:7.2f} P 1           1")
    rows = zip(
        topology.names.tolist(),
        topology.residue_names.tolist(),
        topology.chains.tolist(),
        topology.residues.tolist(),
        system.symbols,
        system.positions.tolist(),
        strict=True,
    )
    for serial, (name, residue_name, chain, residue, symbol, position) in enumerate(rows, 1):
        standard = residue_name in STANDARD_RESIDUES and residue_name not in WATERS
        indent = " " * (len(name) < 4 and len(symbol) == 1)  # the element ends in column 14
        places = "".join(_column(coordinate, 8, 3) for coordinate in position)
        lines.append(
            f"{'ATOM' if standard else 'HETATM':6}{serial % 100_000:5} {indent + name:<4.4} "
            f"{residue_name:>3.4}".ljust(21)
            + f"{chain:1.1}{_residue_column(residue)}   {places}"
            f"  1.00  0.00          {symbol.upper():>2}"
        )
    if len(system) <= _MOST_SERIALS:
        lines += [f"CONECT{first + 1:5}{second + 1:5}" for first, second in topology.bonds.tolist()]
    return "\n".join([*lines, "END", ""])


def _residue_column(residue: str) -> str:
    """A residue number with its insertion code in five columns."""
    number, code = (residue[:-1], residue[-1]) if residue[-1:].isalpha() else (residue, " ")
    if len(number) > 4:
        number = str(int(number) % 10_000) if number.isdecimal() else number[-4:]
    return f"{number:>4}{code}"


def _column(number: float, width: int, digits: int) -> str:
    """A number in a column, with fewer digits if it is too long for it."""
    largest = 10.0 ** (width - 1) - 1.0
    number = min(max(number, -largest), largest)
    texts = (f"{number:{width}.{kept}f}" for kept in range(digits, -1, -1))
    return next(text for text in texts if len(text) == width)
