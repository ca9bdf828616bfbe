"""Similarity of frames: duplicates, leakage between splits, and temporal leakage.

The descriptor of a frame consists of smooth histograms of pair distances, one for each pair of
elements. A trial displacement of all atoms measures how much the descriptor changes per A of
random displacement, so distances between descriptors convert to A.

The distance to the nearest frame does not show temporal leakage: it depends on the number of
frames and of degrees of freedom. It is 0.5 to 0.8 of the median distance for independent frames
of published data sets, and 0.4 to 0.6 for dynamics at 3 fs. The index of the nearest frame does:
for independent frames it is random, in a trajectory it is just before or after the frame, also in
a file with many trajectories.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Final

import numpy as np
from ase.neighborlist import primitive_neighbor_list
from numpy.typing import NDArray

from mdgraph.data.dataset import Dataset, LabelledFrame, compositions
from mdgraph.system import System, compact_cell, completed_cell
from mdgraph.units import COVALENT_RADII

CUTOFF: Final = 5.0
"""A, cutoff of the pair distances in a descriptor."""

NEAR: Final = 0.01
"""A per atom; frames at a smaller distance are equal."""

_STRAIN: Final = 5e-3
"""Relative difference of scalar products of cell vectors between different cells."""

_SAME_SITES: Final = 0.5
"""A per atom; atoms of one crystal in the same order are nearer to each other."""

_WIDTH: Final = 0.1
_CENTRES: Final = np.arange(0.5, CUTOFF + _WIDTH, _WIDTH)
_TRIAL: Final = 0.01
"""A, root mean square of the trial displacement over the atoms."""

_FINE: Final = 0.005
"""A, spacing of the grid to which distances are interpolated."""

_POINTS: Final = np.arange(0.0, CUTOFF + 2.0 * _FINE, _FINE)
_BUMPS: Final = np.exp(-0.5 * ((_POINTS[:, None] - _CENTRES) / _WIDTH) ** 2)

_ROWS: Final = 512

_DENSE: Final = 1000
"""Most atoms for a search of all pairs; in small cells, whose pairs have several images, fewer."""


def short_pairs(
    frame: LabelledFrame | System, cutoff: float
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
    """First atoms, second atoms and distances (A) of all directed pairs within the cutoff."""
    cell = completed_cell(frame.cell, frame.pbc)
    inverse = np.linalg.inv(cell)
    heights = 1.0 / np.linalg.norm(inverse, axis=0)
    # Rounding finds the nearest image; those within the cutoff are so many cells from it.
    reach = np.where(frame.pbc, np.ceil(cutoff / heights + 0.5) - 1.0, 0.0)
    images = np.prod(2.0 * reach + 1.0)
    if len(frame) ** 2 * images > _DENSE**2:
        first, second, distance = primitive_neighbor_list(
            "ijd", frame.pbc, cell, frame.positions, cutoff
        )
        return first, second, distance
    first, second = np.triu_indices(len(frame), 1)
    shift = frame.positions[second] - frame.positions[first]
    if frame.pbc.any():
        shift -= (np.round(shift @ inverse) * frame.pbc) @ cell
    steps = np.array(list(product(*(np.arange(-most, most + 1.0) for most in reach))))
    shift = (shift[:, None] + steps @ cell).reshape(-1, 3)
    first, second = np.repeat(first, len(steps)), np.repeat(second, len(steps))
    # Each atom also has images of its own.
    own = np.repeat(np.arange(len(frame)), len(steps) - 1)
    own_distance = np.tile(np.linalg.norm(steps[steps.any(1)] @ cell, axis=1), len(frame))
    distance = np.sqrt(np.einsum("ij,ij->i", shift, shift))
    near, own_near = distance < cutoff, own_distance < cutoff
    first, second, distance = first[near], second[near], distance[near]
    own, own_distance = own[own_near], own_distance[own_near]
    return (
        np.concatenate([first, second, own]),
        np.concatenate([second, first, own]),
        np.concatenate([distance, distance, own_distance]),
    )


def pair_vectors(
    frame: LabelledFrame | System, cutoff: float
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """Every pair of atoms nearer than a cutoff, in both directions, with images of its own.

    Args:
        frame: N atoms.
        cutoff: A.

    Returns:
        First and second atom (P,), distances (P,) A and the vectors (P, 3) from first to second.
    """
    first, second, distance, vectors = primitive_neighbor_list(
        "ijdD", frame.pbc, completed_cell(frame.cell, frame.pbc), frame.positions, cutoff
    )
    return first, second, distance, vectors


_TOO_CLOSE: Final = 0.55
"""Ratio to the sum of two covalent radii; the shortest bonds have 0.75."""

_COMPRESSED: Final = 0.3
"""Ratio of the cube root of an atom's volume to its diameter; crystals have 0.8 and more, and
lengths in nm a tenth of that."""


@dataclass(frozen=True, eq=False)
class Contacts:
    """The shortest distance of each frame, relative to the sum of two covalent radii.

    Attributes:
        ratios: (M,) shortest ratio, NaN where no atoms are near.
        close: frame, two atoms, their distance (A), and the force (eV/A) that parts them, of frames
            with atoms closer than bonds.
    """

    ratios: NDArray[np.float64]
    close: list[tuple[int, tuple[int, int], float, float]]

    @property
    def relative(self) -> NDArray[np.float64]:
        """(M,) ratios over that of most frames; NaN where no atoms are near."""
        known = self.ratios[np.isfinite(self.ratios)]
        return self.ratios / np.median(known) if len(known) else self.ratios

    @property
    def is_in_nm(self) -> bool:
        """Whether lengths look like nm."""
        known = self.ratios[np.isfinite(self.ratios)]
        return bool(len(known) and np.median(known) < _TOO_CLOSE)

    @classmethod
    def of(cls, dataset: Dataset) -> "Contacts":
        """Reads all frames once."""
        ratios, close = np.full(len(dataset), np.nan), []
        cutoff = 2.0 * float(np.max(COVALENT_RADII[np.unique(dataset.numbers())]))
        for index, frame in enumerate(dataset.frames()):
            radii = COVALENT_RADII[frame.numbers]
            if frame.pbc.all():
                spacing = np.cbrt(abs(np.linalg.det(frame.cell)) / len(frame)) / (
                    2.0 * radii.mean()
                )
                if spacing < _COMPRESSED:  # the search would find millions of pairs
                    ratios[index] = spacing
                    continue
            first, second, distance = short_pairs(frame, cutoff)
            if len(distance) == 0:
                continue
            ratio = distance / (radii[first] + radii[second])
            pair = int(ratio.argmin())
            ratios[index] = ratio[pair]
            if ratio[pair] < _TOO_CLOSE:
                atoms = int(first[pair]), int(second[pair])
                close.append((index, atoms, float(distance[pair]), _repulsion(frame, *atoms)))
        return cls(ratios, close)


def has_contact(frame: LabelledFrame | System, ratio: float) -> bool:
    """Whether any two atoms are nearer than so much of the sum of their covalent radii."""
    radii = COVALENT_RADII[frame.numbers]
    first, second, distance = short_pairs(frame, 2.0 * ratio * float(radii.max()))
    return bool((distance < ratio * (radii[first] + radii[second])).any())


def _repulsion(frame: LabelledFrame, first: int, second: int) -> float:
    """Half the force (eV/A) by which two atoms are pushed apart; NaN without forces."""
    assert frame.forces is not None
    shift = frame.positions[second] - frame.positions[first]
    if frame.pbc.any():
        cell = compact_cell(completed_cell(frame.cell, frame.pbc), frame.pbc)
        shift -= (np.round(shift @ np.linalg.inv(cell)) * frame.pbc) @ cell
    force = 0.5 * (frame.forces[second] - frame.forces[first]) @ shift
    return float(force / max(float(np.linalg.norm(shift)), 1e-6))


def describe_frame(frame: LabelledFrame, elements: Sequence[int]) -> NDArray[np.float32]:
    """The descriptor (D,) of a frame; `elements` are all elements of the frames to compare.

    It has a histogram of pair distances for each pair of elements, divided by the atoms.
    """
    first, second, distance = short_pairs(frame, CUTOFF)
    row_of_element = {number: row for row, number in enumerate(elements)}
    rows = np.array([row_of_element[int(number)] for number in frame.numbers])
    lower, higher = np.sort([rows[first], rows[second]], axis=0)
    element_pair = lower * len(elements) + higher
    window = 0.5 * (1.0 + np.cos(np.pi * distance / CUTOFF))
    points = np.floor(distance / _FINE).astype(np.int64)
    fraction = distance / _FINE - points
    size = len(elements) ** 2 * len(_POINTS)
    counts = np.zeros(size)
    for step, weight in ((0, 1.0 - fraction), (1, fraction)):
        counts += np.bincount(element_pair * len(_POINTS) + points + step, window * weight, size)
    histograms = counts.reshape(-1, len(_POINTS)) @ _BUMPS
    return (histograms.ravel() / len(frame)).astype(np.float32)


def response(frame: LabelledFrame, elements: Sequence[int], seed: int = 0) -> float:
    """Change of the descriptor per A of random displacement of every atom."""
    shift = np.random.default_rng(seed).normal(size=(len(frame), 3))
    shift *= _TRIAL / np.sqrt((shift**2).sum(1).mean())
    displaced_frame = LabelledFrame(frame.numbers, frame.positions + shift, frame.cell, frame.pbc)
    change = describe_frame(displaced_frame, elements) - describe_frame(frame, elements)
    return float(np.linalg.norm(change)) / _TRIAL


def close_pairs(
    descriptors: NDArray[np.float32], cutoff: float
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Yields pairs of rows (lower, higher) closer than `cutoff`, each pair once, in parts."""
    squares = (descriptors.astype(np.float64) ** 2).sum(1)
    for start in range(0, len(descriptors), _ROWS):
        part = descriptors[start : start + _ROWS].astype(np.float64)
        products = part @ descriptors[start:].T.astype(np.float64)
        squared_distances = squares[start : start + _ROWS, None] + squares[start:] - 2.0 * products
        # The tolerance covers the cancellation error of about 1e-16 of the squares.
        rows, columns = np.nonzero(
            np.triu(squared_distances <= cutoff**2 + 1e-14 * squares[start:], 1)
        )
        yield start + rows, start + columns


def _distances(descriptors: NDArray[np.float32], row: int) -> NDArray[np.float64]:
    """Distances (K,) of all descriptors to one of them."""
    difference = descriptors - descriptors[row]
    return np.sqrt(np.einsum("ij,ij->i", difference, difference)).astype(np.float64)


Index = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class CompositionGroup:
    """F frames of one composition and charge, two or more, with K distinct geometries.

    Attributes:
        members: (F,) frame numbers, ascending.
        geometry: (F,) number of the geometry of each member; numbers have no order.
        representatives: (K,) index in `members` of the first frame of each geometry, ascending.
        descriptors: (K, D) descriptors of the representatives, see `describe_frame`.
        response: change of the descriptor per A of random displacement, see `response`.
        cells: (K, 3, 3) A, cell of each geometry, zero where not periodic.
        axes: (K, 3, 3) A, these cells; the normal of a slab stands for its third vector.
        fractions: (K, N, 3) positions in units of `axes`; (K, 0, 3) unless all are crystals or all
            are slabs along the same directions.
        pbc: (3,) periodic directions of crystals and slabs.
    """

    members: Index
    geometry: Index
    representatives: Index
    descriptors: NDArray[np.float32]
    response: float
    cells: NDArray[np.float64]
    axes: NDArray[np.float64]
    fractions: NDArray[np.float64]
    pbc: NDArray[np.bool_]

    def are_strains(self, first: Index, second: Index) -> NDArray[np.bool_]:
        """Which pairs of geometries (R,), (R,) have different cells, if they are equal frames.

        Such are the strains of a crystal along equivalent axes.
        """
        products = self.cells @ self.cells.transpose(0, 2, 1)
        difference = np.abs(products[first] - products[second]).max((1, 2))
        return difference > _STRAIN * np.abs(products[first]).max((1, 2))

    def are_displaced(self, first: Index, second: Index, near: float) -> NDArray[np.bool_]:
        """Which pairs of geometries (R,), (R,) are one crystal or slab, differently displaced.

        The histograms of small independent displacements can be more alike than their positions.
        """
        result = np.zeros(len(first), dtype=bool)
        for start in range(0, len(first) * bool(self.fractions.size), _ROWS):
            rows = slice(start, start + _ROWS)
            shift = self.fractions[first[rows]] - self.fractions[second[rows]]
            shift -= np.where(self.pbc, np.round(shift), 0.0)
            shift = shift @ self.axes[first[rows]]
            shift -= shift.mean(1, keepdims=True)
            distance = np.sqrt((shift**2).sum(2).mean(1))
            result[rows] = (2.0 * near < distance) & (distance < _SAME_SITES)
        return result


def composition_groups(dataset: Dataset) -> Iterator[CompositionGroup]:
    """Yields all groups of frames with the same composition and charge; reads all frames.

    If all members are copies of one frame, the descriptors have no columns.
    """
    digests = np.array([_digest(frame) for frame in dataset.frames()], dtype=object)
    elements, counts = compositions(dataset)
    members_by_key: dict[tuple[bytes, float], list[int]] = defaultdict(list)
    for index, row in enumerate(counts):
        members_by_key[row.tobytes(), float(dataset.charge[index])].append(index)
    for frames in members_by_key.values():
        if len(frames) < 2:
            continue
        members = np.array(frames)
        _, first_copies, geometry = np.unique(
            digests[members], return_index=True, return_inverse=True
        )
        representatives = np.sort(first_copies)  # ascending, as the frames are read in this order
        descriptors, change = np.zeros((len(representatives), 0), dtype=np.float32), 1.0
        cells = np.zeros((len(representatives), 3, 3))
        axes, fractions, pbc = cells.copy(), [], np.zeros(3, dtype=bool)
        if len(representatives) > 1:
            group_elements = elements[counts[members[0]] > 0].tolist()
            rows = []
            for number, frame in enumerate(dataset.frames(members[representatives])):
                rows.append(describe_frame(frame, group_elements))
                cells[number] = np.where(frame.pbc[:, None], frame.cell, 0.0)
                pbc = pbc if number else frame.pbc
                if frame.pbc.sum() >= 2 and np.array_equal(frame.pbc, pbc):
                    axes[number] = completed_cell(frame.cell, frame.pbc)
                    fractions.append(frame.positions @ np.linalg.inv(axes[number]))
            descriptors = np.array(rows)
            change = response(dataset.frame(int(members[0])), group_elements)
        if len(fractions) < len(representatives):  # not all of them are crystals, or slabs
            fractions = [np.zeros((0, 3))] * len(representatives)
        yield CompositionGroup(
            members,
            geometry,
            representatives,
            descriptors,
            change,
            cells,
            axes,
            np.array(fractions),
            pbc,
        )


def _digest(frame: LabelledFrame) -> bytes:
    digest = hashlib.blake2b(frame.numbers.tobytes(), digest_size=16)
    digest.update(frame.positions.tobytes())
    digest.update(frame.pbc.tobytes())
    if frame.pbc.any():
        digest.update(frame.cell.tobytes())
    return digest.digest()


_EXAMPLES: Final = 4


@dataclass
class EqualPairs:
    """Pairs of equal frames.

    Attributes:
        pairs: number of pairs.
        examples: frame numbers of the first pairs.
    """

    pairs: int = 0
    examples: list[tuple[int, int]] = field(default_factory=list)

    def join(self, other: "EqualPairs") -> "EqualPairs":
        """The pairs of both."""
        return EqualPairs(self.pairs + other.pairs, (self.examples + other.examples)[:_EXAMPLES])

    def examples_text(self) -> str:
        """The examples and the number of further pairs, for a sentence."""
        texts = ", ".join(f"{first} and {second}" for first, second in self.examples)
        remaining = self.pairs - len(self.examples)
        return f"{texts} and {remaining} more" if remaining else texts


class EqualFrames:
    """Counts pairs of equal frames between parts of a data set, one composition at a time."""

    def __init__(self, parts: Index, near: float) -> None:
        """Starts without pairs.

        Args:
            parts: (M,) part of each frame, from 0.
            near: A; two frames are equal if they differ no more than by random displacements of
                this size per atom.
        """
        self._parts, self._near = parts, near
        self._pairs: dict[tuple[int, int, bool], EqualPairs] = {}

    def add(self, group: CompositionGroup) -> None:
        """Counts the pairs of a composition."""
        copies = _Copies(group.members, self._parts, group.geometry)
        geometries = np.arange(len(group.representatives))
        copies.count_pairs(self._pairs, geometries, geometries, is_strain=False)
        geometry = group.geometry[group.representatives]
        for first, second in close_pairs(group.descriptors, self._near * group.response):
            kept = ~group.are_displaced(first, second, self._near)
            lower, higher = first[kept], second[kept]
            are_strains = group.are_strains(lower, higher)
            for is_strain in (False, True):
                rows = are_strains == is_strain
                copies.count_pairs(
                    self._pairs, geometry[lower[rows]], geometry[higher[rows]], is_strain
                )

    def pairs(self) -> dict[tuple[int, int, bool], EqualPairs]:
        """Pairs by their two parts, the lower part first, and whether they are of two cells.

        Only parts with pairs are listed.
        """
        return {parts: equal for parts, equal in sorted(self._pairs.items()) if equal.pairs}


class _Copies:
    """Number, first and last frame of each geometry in each part, for one composition."""

    def __init__(self, members: Index, parts: Index, geometry: Index) -> None:
        self._shape = int(geometry.max()) + 1, int(parts.max()) + 1
        self._counts = np.zeros(self._shape, dtype=np.int64)
        self._first, self._last = self._counts.copy(), self._counts.copy()
        cells = geometry, parts[members]
        np.add.at(self._counts, cells, 1)
        self._last[cells] = members
        self._first[geometry[::-1], parts[members[::-1]]] = members[::-1]

    def count_pairs(
        self,
        pairs_by_parts: dict[tuple[int, int, bool], EqualPairs],
        first: Index,
        second: Index,
        is_strain: bool,
    ) -> None:
        """Adds the pairs of frames with the geometries `first` (R,) and `second` (R,).

        Both are the same array, or differ in every row.
        """
        same = np.array_equal(first, second)
        for part in range(self._shape[1]):
            for second_part in range(part if same else 0, self._shape[1]):
                pairs = self._counts[first, part] * self._counts[second, second_part]
                if same and part == second_part:
                    pairs = self._counts[first, part] * (self._counts[first, part] - 1) // 2
                parts = min(part, second_part), max(part, second_part), is_strain
                equal = pairs_by_parts.setdefault(parts, EqualPairs())
                equal.pairs += int(pairs.sum())
                for row in np.flatnonzero(pairs)[: _EXAMPLES - len(equal.examples)]:
                    pair = self._first[first[row], part], self._last[second[row], second_part]
                    equal.examples.append((int(min(pair)), int(max(pair))))


_PLACES: Final = 2
"""Frames before and after a frame that are neighbors in time."""

_SAMPLE: Final = 512
"""Most frames of a composition that are examined, drawn at random."""

_EXCESS: Final = 0.2
"""Share of frames, in excess of chance, whose nearest frame is a neighbor in time.

It is at most 0.1 for 100 independent frames of published molecules and water, and at least 0.4 for
100 frames of dynamics of water, ethanol and acetylacetone at 3 fs.
"""

_ERRORS: Final = 5.0
"""Smallest excess of the share, in standard deviations of chance."""


@dataclass
class PartLeakage:
    """Temporal leakage from the training frames to one part.

    Attributes:
        frames: number of examined frames.
        neighbors: number of frames whose nearest training frame is a neighbor in time.
        chance: expected number of these for frames in random order.
        nearest: A, median distance to the nearest training frame.
        typical: A, median distance to all training frames.
        leak: whether the frames are of a trajectory that the split cuts too finely.
    """

    frames: int
    neighbors: int
    chance: float
    nearest: float
    typical: float
    leak: bool

    def sentence(self, name: str) -> str:
        """A sentence about a leak; `name` is that of the part."""
        return (
            f"Of {self.frames} frames of {name}, {self.neighbors} have their nearest training "
            f"frame within {_PLACES} places of them in the file ({self.chance:.1f} by chance), as "
            "in a run of dynamics; their median distance to the nearest training frame is "
            f"{self.nearest:.2g} A an atom, to any training frame {self.typical:.2g}: errors on "
            f"{name} will look better than they are; split with --method blocks (long runs), "
            "together, group or file; of one short run no split is better, so add other frames."
        )


class TemporalLeakage:
    """Compares each frame with the nearest ones, one composition at a time; part 0 trains."""

    def __init__(self, parts: Index) -> None:
        """Starts without frames; `parts` (M,) is the part of each frame."""
        self._parts = parts
        self._nearest_frames: list[NDArray[np.float64]] = []
        self._nearest_training_frames: list[NDArray[np.float64]] = []

    def add(self, group: CompositionGroup) -> None:
        """Adds the frames of a composition; of exact copies only the first."""
        parts = self._parts[group.members[group.representatives]]
        count = len(parts)
        if count < 2 * _PLACES + 2:
            return
        rows = np.random.default_rng(0).permutation(count)[:_SAMPLE]
        for row in np.sort(rows):
            distance = _distances(group.descriptors, int(row)) / group.response
            others = np.arange(count) != row
            self._nearest_frames.append(_nearest(distance, int(row), others))
            training = others & (parts == 0)
            if parts[row] and training.any():
                nearest = _nearest(distance, int(row), training)
                typical = np.median(distance[training])
                self._nearest_training_frames.append(np.array([*nearest, typical, parts[row]]))

    def of_part(self, part: int) -> PartLeakage:
        """The leakage from the training frames to a part."""
        table = np.array(self._nearest_training_frames).reshape(-1, 5)
        table = table[table[:, 4] == part]
        if not len(table):
            return PartLeakage(0, 0, 0.0, np.nan, np.nan, False)
        neighbors, chance = table[:, 0].sum(), table[:, 1].sum()
        leak = self._is_trajectory() and neighbors - chance > _EXCESS * len(table)
        nearest, typical = np.median(table[:, 2:4], axis=0)
        return PartLeakage(len(table), int(neighbors), chance, nearest, typical, bool(leak))

    def _is_trajectory(self) -> bool:
        """Whether neighbors in time are similar, over all parts."""
        neighbors, chance, _ = np.array(self._nearest_frames).T
        error = np.sqrt((chance * (1.0 - chance)).sum())
        excess = (neighbors - chance).sum()
        return bool(excess > max(_EXCESS * len(neighbors), _ERRORS * error))


def _nearest(
    distance: NDArray[np.float64], row: int, candidates: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Whether the nearest candidate is a neighbor in time, the chance of that, and its distance."""
    are_neighbors = np.abs(np.flatnonzero(candidates) - row) <= _PLACES
    nearest = int(np.argmin(distance[candidates]))
    return np.array([are_neighbors[nearest], are_neighbors.mean(), distance[candidates][nearest]])
