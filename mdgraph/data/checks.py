"""Checks of a data set: units, energy outliers, net forces, short distances, duplicates.

For two frames of the same atoms at a short distance, E2 - E1 is close to the work of the forces
-(F1 + F2) . (x2 - x1) / 2; for a quadratic energy both are equal. The slope of energy differences
over work is 1 if units and signs are right, else often a known conversion factor. Anharmonic
terms grow with the cube of the distance: they add noise and reduce the slope.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from ase.formula import Formula
from numpy.typing import NDArray
from tqdm import tqdm

from mdgraph.data.dataset import Dataset, compositions, fit_references
from mdgraph.data.keys import ENERGY, LENGTH, PRESSURE, Units
from mdgraph.data.similarity import (
    NEAR,
    CompositionGroup,
    Contacts,
    EqualFrames,
    EqualPairs,
    TemporalLeakage,
    composition_groups,
)
from mdgraph.data.splits import Split
from mdgraph.errors import name_some
from mdgraph.system import compact_cell
from mdgraph.units import SYMBOLS

Array = NDArray[np.float64]

_TINY: Final = 1e-300


@dataclass(frozen=True)
class Finding:
    """The result of a check.

    Attributes:
        wrong: whether the data should not be used for training as they are.
        text: a sentence that names the frames.
    """

    wrong: bool
    text: str


_FRAMES: Final = 500
"""Most frames of the same atoms and cell that are compared."""

_PAIRS: Final = 50
"""Most pairs of frames in the fit, the closest ones; farther ones are too anharmonic."""

_LONGEST: Final = 0.6
"""A, largest distance of a pair of frames, root mean square over the atoms."""

_FLOOR: Final = 0.05
"""A; the weight of a pair is 1 / (this squared + distance squared). It limits the influence of
distant pairs, which are anharmonic, and of nearly equal frames, whose energies are rounded."""

_MIN_PAIRS: Final = 10
"""Fewest pairs for a verdict."""

_MIN_CORRELATION: Final = 0.5
_ERRORS: Final = 4.0
"""Smallest correlation, and its smallest ratio to its standard error, for a reliable slope.

In 2400 subsets of 10 to 400 frames of eleven published data sets, all reliable slopes had the
right sign: they were 0.31 to 1.25, and 0.71 to 1.19 if precise (see below).
"""

_PRECISE: Final = 0.9
_PRECISE_ERROR: Final = 0.05
"""Correlation above and error below which a slope is precise: it also shows length units."""

_RIGHT: Final = (0.57, 1.4)
_RIGHT_NOISY: Final = (0.15, 2.0)
"""Correct slopes, precise or not; two energy units differ by a factor of 13 or more."""


@dataclass(frozen=True)
class Consistency:
    """Agreement of energies and forces, from differences between frames.

    Attributes:
        slope: slope of energy differences over the work of the forces.
        correlation: their correlation.
        error: standard error of the correlation.
        pairs: number of pairs of frames.
        suspicion: a cause of a slope that is not 1, or empty; a guess unless `certain`.
    """

    slope: float
    correlation: float
    error: float
    pairs: int
    suspicion: str = ""

    @property
    def certain(self) -> bool:
        """Whether the frames are similar enough for a verdict."""
        least = max(_MIN_CORRELATION, _ERRORS * self.error)
        if self.pairs < _MIN_PAIRS or abs(self.correlation) < least:
            return False
        near = _RIGHT_NOISY[0] < self.slope < _RIGHT_NOISY[1]
        return _is_precise(self.correlation, self.error) or not near or not self.suspicion


def similar_pairs(dataset: Dataset) -> Array:
    """Pairs (P, 5) of frames with the same atoms in the same order, the same cell and charge.

    Columns: distance (A), energy difference (eV), work of the forces (eV), the two frames.
    """
    members_by_key: dict[tuple[bytes, float], list[int]] = defaultdict(list)
    for index, frame in enumerate(dataset.frames()):
        assert frame.forces is not None
        if len(frame) > 1 and np.isfinite(frame.energy) and np.isfinite(frame.forces).all():
            cell = frame.cell.round(6).tobytes() if frame.pbc.any() else b""
            atoms = frame.numbers.tobytes() + frame.pbc.tobytes() + cell
            members_by_key[atoms, float(frame.charge)].append(index)
    tables = [np.zeros((0, 5))]
    for members in members_by_key.values():
        step = max(1, len(members) // _FRAMES)
        tables.append(_differences(dataset, members[::step][:_FRAMES]))
    pairs = np.concatenate(tables)
    return pairs[(pairs[:, 0] > 1e-4) & (pairs[:, 0] < _LONGEST)]


def _closest(pairs: Array) -> Array:
    return pairs[np.argsort(pairs[:, 0])[:_PAIRS]]


def energy_force_consistency(dataset: Dataset, pairs: Array) -> Consistency:
    """Compares energy differences with the work of the forces between the most similar frames.

    Args:
        dataset: the frames.
        pairs: as `similar_pairs` gives them; those of two sources are left out.
    """
    sources = dataset.source[pairs[:, 3:].astype(np.int64)]
    length, energy, work, first, last = _closest(pairs[sources[:, 0] == sources[:, 1]]).T
    if len(work) < 2 or not energy.any() or not work.any():
        return Consistency(np.nan, 0.0, 0.0, len(work))
    weight = 1.0 / (_FLOOR**2 + length**2)
    products = _products(weight * energy, weight * work)
    correlation, slope = (float(value) for value in _fit(products.sum(0)))
    error = _error(products, first, last)
    is_precise = _is_precise(correlation, error)
    atoms = dataset.atoms[first.astype(np.int64)]
    of_whole = _fit(_products(weight * energy * atoms, weight * work).sum(0))
    suspicion = ""
    if abs(correlation) > _MIN_CORRELATION:
        suspicion = _suspicion(slope, is_precise, float(of_whole[1]))
    return Consistency(slope, correlation, error, len(work), suspicion)


def _products(energy: Array, work: Array) -> Array:
    """Products (P, 3) whose sums determine the fit."""
    return np.stack([energy * work, energy**2, work**2], axis=1)


def _fit(sums: Array) -> tuple[Array, Array]:
    """Correlation and slope from sums (..., 3); energies and work both have noise."""
    cross, energy, work = np.moveaxis(sums, -1, 0)
    slope = np.sqrt(energy / np.maximum(work, _TINY))
    return cross / np.sqrt(np.maximum(energy * work, _TINY)), np.sign(cross) * slope


def _error(products: Array, first: Array, last: Array) -> float:
    """Standard error of the correlation by the jackknife over frames, as pairs share frames."""
    frames = np.unique(np.append(first, last))[:, None]
    without = products.sum(0) - ((frames == first) | (frames == last)) @ products
    return float(np.std(_fit(without)[0]) * np.sqrt(len(frames) - 1))


def _differences(dataset: Dataset, members: list[int]) -> Array:
    """The table of `similar_pairs` for some frames."""
    frames = list(dataset.frames(members))
    positions = np.array([frame.positions for frame in frames])
    forces = np.array([frame.forces for frame in frames])
    energy = np.array([frame.energy for frame in frames])
    cell = compact_cell(frames[0].cell) if frames[0].pbc.all() else None
    inverse = None if cell is None else np.linalg.inv(cell)
    tables = [np.zeros((0, 5))]
    for last in range(1, len(frames)):
        earlier, earlier_forces = positions[:last], forces[:last]
        if inverse is not None:
            shift = positions[last] - earlier
            shift = shift - np.round(shift @ inverse) @ cell
            shift -= shift.mean(1, keepdims=True)
        else:
            centred = positions[last] - positions[last].mean(0)
            earlier = earlier - earlier.mean(1, keepdims=True)
            rotation = _rotations(earlier, centred)
            shift, earlier_forces = centred - earlier @ rotation, earlier_forces @ rotation
        length = np.sqrt((shift**2).sum(-1).mean(-1))
        work = -0.5 * ((forces[last] + earlier_forces) * shift).sum((1, 2))
        pair_frames = np.array(members[:last]), np.full(last, members[last])
        tables.append(np.stack([length, energy[last] - energy[:last], work, *pair_frames], axis=1))
    return np.concatenate(tables)


def _rotations(mobile: Array, target: Array) -> Array:
    """Rotations (M, 3, 3) that best superimpose (M, N, 3) on (N, 3).

    Kabsch, DOI 10.1107/S0567739476001873.
    """
    left, _, right = np.linalg.svd(mobile.transpose(0, 2, 1) @ target)
    left[..., -1] *= np.sign(np.linalg.det(left @ right))[:, None]
    return left @ right


def _is_precise(correlation: float, error: float) -> bool:
    return abs(correlation) > _PRECISE and error < _PRECISE_ERROR


def _suspicion(slope: float, is_precise: bool, slope_of_whole: float) -> str:
    """A cause of the slope, or empty; `slope_of_whole` is that of energies times atoms."""
    low, high = _RIGHT if is_precise or slope > 0.0 else _RIGHT_NOISY
    sign_error = "the forces have the wrong sign (are they gradients?)" if slope < 0.0 else ""
    if low < abs(slope) < high:
        return sign_error
    candidates = {
        f"energies and forces differ by the factor of {name} to eV": factor
        for name, factor in ENERGY.items()
        if factor != 1.0
    }
    candidates |= {
        f"lengths within the forces differ by the factor of {name} to A": factor
        for name, factor in LENGTH.items()
        if factor != 1.0
    }
    candidates["forces are in hartree/bohr and energies in eV"] = ENERGY["hartree"] / LENGTH["bohr"]
    size = abs(np.log(abs(slope)))
    far = {name: abs(size - abs(np.log(factor))) for name, factor in candidates.items()}
    causes = [name for name in far if far[name] == min(far.values()) and far[name] < 0.2]
    if abs(np.log(abs(slope_of_whole))) < 0.2:
        causes.insert(0, "energies are those of one atom, and have to be those of the frame")
    if causes:
        return ", and ".join(filter(None, (sign_error, ", or ".join(causes))))
    return "energies and forces are not in the same units, or not of the same calculation"


_CONTRADICTION: Final = 1e-3
"""eV per atom between frames at the same places; converged calculations repeat a tenth of it."""

_MIN_SPREAD: Final = 0.5
"""eV per atom; smaller deviations can occur within one level of theory."""

_APART: Final = 2.0
"""eV per atom between two heaps of energies; a solid and its liquid differ by less."""

_APART_IN_FILES: Final = 0.2
"""eV per atom between the heaps of two files; two phases of a solid may differ by as much."""

_GAP: Final = 10.0
"""Smallest ratio of the gap between two heaps of energies to the sum of their widths."""

_HEAP: Final = 5
"""Half of the fewest frames among which two heaps are searched."""

_ORIGIN: Final = 0.02
"""eV per atom, smallest difference of origin between the similar frames of two sources."""

_USUAL_LENGTHS: Final = 0.1
"""Frames whose shortest distances, relative to bonds, differ by less are comparable."""

Index = NDArray[np.int64]


def energy_outliers(dataset: Dataset, pairs: Array, contacts: Contacts) -> Iterator[Finding]:
    """Yields findings about energies that composition and configuration do not explain.

    Args:
        dataset: the frames.
        pairs: as `similar_pairs` gives them.
        contacts: their shortest distances.
    """
    frames = np.flatnonzero(np.isfinite(dataset.energy) & (dataset.atoms > 1))
    if len(frames) < 2 * _HEAP:
        return
    counts = compositions(dataset)[1]
    if heaps := list(_heaps(dataset, frames[~(contacts.relative[frames] < _COLLIDING)], counts)):
        yield (finding := _two_heaps(dataset, max(heaps, key=lambda pair: min(map(len, pair)))))
        if finding.wrong:  # The least-squares fit would lie between the heaps and far from both.
            return
    yield from _origins(dataset, pairs)
    yield from _far_from_references(dataset, frames, counts, contacts)


def _heaps(dataset: Dataset, frames: Index, counts: Index) -> Iterator[tuple[Index, Index]]:
    """Yields low and high frames of each composition whose energies have a gap."""
    members_by_key: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for index in frames.tolist():
        key = counts[index].tobytes(), dataset.pbc[index].tobytes(), float(dataset.charge[index])
        members_by_key[key].append(index)
    for unordered in map(np.array, members_by_key.values()):
        if len(unordered) < 2 * _HEAP:
            continue
        members = unordered[np.argsort(dataset.energy[unordered] / dataset.atoms[unordered])]
        energies = dataset.energy[members] / dataset.atoms[members]
        cut = 1 + int(np.argmax(np.diff(energies)))
        width = float(np.std(energies[:cut]) + np.std(energies[cut:]))
        gap = float(energies[cut] - energies[cut - 1])
        low, high = np.sort(members[:cut]), np.sort(members[cut:])
        is_of_files = not np.isin(dataset.source[low], dataset.source[high]).any()
        least = _APART_IN_FILES if is_of_files else _APART
        if min(len(low), len(high)) > 1 and gap > max(least, _GAP * width):
            yield low, high


def _two_heaps(dataset: Dataset, heaps: tuple[Index, Index]) -> Finding:
    low, high = (float(np.median(dataset.energy[half] / dataset.atoms[half])) for half in heaps)
    files = [
        [dataset.sources[source].file for source in np.unique(dataset.source[half])]
        for half in heaps
    ]
    if set(files[0]).isdisjoint(files[1]):
        text = (
            f"Frames of one composition differ by {high - low:.3g} eV an atom between "
            f"{name_some(files[0])} and {name_some(files[1])}{_unit(low, high)}: the files have "
            "different reference energies or units, or phases"
        )
    else:
        symbols = [SYMBOLS[number] for number in dataset.frame(int(heaps[0][0])).numbers]
        sizes = [f"{len(half)} ({name_some(half, 4)})" for half in heaps]
        text = (
            f"Energies of {Formula.from_list(symbols).format('hill')} lie in two heaps: frames "
            f"{sizes[0]} at {low:.6g} eV an atom, {sizes[1]} at {high:.6g}{_unit(low, high)}"
        )
    return Finding(high - low > _APART, f"{text}; import each with its own unit, or leave one out.")


def _origins(dataset: Dataset, pairs: Array) -> Iterator[Finding]:
    """Reports a source whose energies differ from those of similar frames of other sources."""
    sources = dataset.source[pairs[:, 3:].astype(np.int64)]
    for number, source in enumerate(dataset.sources):
        rows = (sources == number).sum(1) == 1
        _, energy, work, first, last = _closest(pairs[rows]).T
        if len(work) < _MIN_PAIRS:
            continue
        first, last = first.astype(np.int64), last.astype(np.int64)
        sign = np.where(dataset.source[last] == number, 1.0, -1.0)
        offset = sign * (energy - work) / dataset.atoms[first]
        difference = float(np.median(offset))
        noise = float(np.median(np.abs(offset - difference)))
        if abs(difference) > max(_ORIGIN, 3.0 * noise):
            other = dataset.source[last[0] if sign[0] < 0.0 else first[0]]
            yield Finding(
                True,
                f"Energies of similar frames differ by {abs(difference):.3g} eV an atom between "
                f"{source.file} and {dataset.sources[other].file}, which the forces do not "
                "explain: the files have different reference energies or levels of theory; shift "
                "one of them, or leave it out.",
            )
            return


def _far_from_references(
    dataset: Dataset, known_frames: Index, counts: Index, contacts: Contacts
) -> Iterator[Finding]:
    _, predicted = fit_references(counts[known_frames], dataset.energy[known_frames])
    residual = (dataset.energy[known_frames] - predicted) / dataset.atoms[known_frames]
    residual -= np.median(residual)
    limit = max(_MIN_SPREAD, 20.0 * 1.4826 * float(np.median(np.abs(residual))))
    is_far = np.abs(residual) > limit
    near, far = known_frames[~is_far], known_frames[is_far]
    common = Counter(row.tobytes() for row in counts[near])
    is_rare = np.array([common[row.tobytes()] < _HEAP for row in counts[far]], dtype=bool)
    is_usual_length = np.abs(contacts.relative[far] - 1.0) < _USUAL_LENGTHS
    is_wrong = (residual[is_far] < 0.0) | (~is_rare & is_usual_length)
    for wrong, advice in (
        (True, "their energies may be of another level of theory or unit; leave them out"),
        (False, "usual for a few clusters, torn, squeezed or colliding atoms; else leave them out"),
    ):
        frames = far[is_wrong == wrong]
        if len(frames):
            yield Finding(
                wrong,
                f"{len(frames)} frame{'s lie' if len(frames) > 1 else ' lies'} more than "
                f"{limit:.3g} eV an atom off what their composition makes likely "
                f"({name_some(frames)}); {advice}.",
            )


def _unit(first: float, second: float) -> str:
    """The end of a sentence that names the unit if two energies differ by its factor, or empty."""
    small, large = sorted((abs(first), abs(second)))
    for name, factor in ENERGY.items():
        ratio = max(factor, 1.0 / factor)
        if factor != 1.0 and small > 0.0 and abs(large / small / ratio - 1.0) < 0.02:
            return f", in the ratio of {name} and eV"
    return ""


_FAR_APART: Final = 1.8
"""Ratio of a distance to the sum of two covalent radii beyond which atoms are not bonded."""

_OUTLYING_FORCE: Final = 5.0
"""Ratio of a frame's largest force to the 90th percentile of this over all frames; at most 2.3 in
published sets of metals, molecules and water."""

_FEW: Final = 0.02
"""Share of the frames with outlying forces; more are a kind of configuration, such as melts
beside still crystals."""

_COLLIDING: Final = 0.8
"""Shortest distance, relative to that of most frames, at which large forces are usual."""

_COLLISION: Final = 10.0
"""eV/A; two atoms that push each other apart by this are close on purpose."""

_NET_FORCE: Final = 0.05
"""Largest net force an atom, and largest force that turns a molecule, relative to the forces."""

_LARGE_FORCE: Final = 10.0
"""eV/A, root mean square component; molecules and solids at 300 to 1000 K have 0.3 to 2."""

_LARGE_STRESS: Final = 0.6
"""eV/A^3, root mean square component, which is 96 GPa; crystals strained by some percent have 0.1
to 20 GPa."""

_FALLING: Final = -0.8
"""Correlation of stress and volume below which the sign is reversed: cells that are stretched pull,
and what pushes the more, the larger it is, flies apart."""

_FEWEST_CELLS: Final = 8
_BREATHING: Final = 0.01
"""Frames of the same atoms, and the relative spread of their volumes, from which signs are told."""

_ALL_ELECTRONS: Final = 0.05
"""Relative difference between energies of all electrons, of atoms and by methods."""

_FORCE_UNITS: Final = ("kcal/mol/A", "kJ/mol/A", "kJ/mol/nm", "meV/A")


def check_dataset(
    dataset: Dataset, split: Split | None = None, near: float = NEAR
) -> list[Finding]:
    """Searches a data set for mistakes; reads all frames several times.

    Returns an empty list if there are none.

    Args:
        dataset: the data.
        split: equal frames in two parts of the split are reported as leakage.
        near: A; two frames are equal if they differ no more than by random displacements of this
            size per atom.
    """
    contacts = Contacts.of(dataset)
    checks = [_labels(dataset), _forces(dataset, contacts), _stresses(dataset)]
    checks.append(_distances(dataset, contacts))
    if not contacts.is_in_nm:  # else the further checks are slow and say nothing
        pairs = similar_pairs(dataset)
        energies = energy_outliers(dataset, pairs, contacts)
        checks += [energies, _units(dataset, pairs), _duplicates(dataset, split, near)]
    return [
        finding for check in tqdm(checks, "checks", leave=False, disable=None) for finding in check
    ]


def _labels(dataset: Dataset) -> Iterator[Finding]:
    unlabelled = np.flatnonzero(~np.isfinite(dataset.energy))
    if len(unlabelled):
        yield Finding(
            False,
            f"No energy is in {_frame_count(len(unlabelled))} ({name_some(unlabelled)}), which "
            "train forces alone; convert with --missing drop to leave them out.",
        )
    elements, counts = compositions(dataset)
    known = np.isfinite(dataset.energy)
    ratios = dataset.energy[known] / (counts[known] @ _energy_of_all_electrons(elements))
    ratio = float(np.median(ratios)) if known.any() else 0.0
    for unit, factor in ENERGY.items():
        if factor < 0.5 and abs(ratio * factor - 1.0) < _ALL_ELECTRONS:
            yield Finding(
                True,
                f"Energies are {ratio:.4g} times those of all electrons of the atoms, so they are "
                f"in {unit}; convert again with --energy-unit {unit}.",
            )


def _energy_of_all_electrons(numbers: Index) -> Array:
    """Energies (E,) of free atoms in eV, without relativity, within 1 % from carbon on.

    Thomas and Fermi's with the terms of Scott and Schwinger, DOI 10.1103/PhysRevA.24.2353.
    """
    charges = numbers.astype(np.float64)
    hartree = -0.768745 * charges ** (7 / 3) + 0.5 * charges**2 - 0.2699 * charges ** (5 / 3)
    return ENERGY["hartree"] * hartree


def _forces(dataset: Dataset, contacts: Contacts) -> Iterator[Finding]:
    largest, net_forces, sizes, known, unlabelled = [], [], [], [], []
    still, turning, isolated = [], [], []
    for index, frame in enumerate(dataset.frames()):
        assert frame.forces is not None
        if not np.isfinite(frame.forces).all():
            unlabelled.append(index)
            largest.append(0.0)
            continue
        largest.append(float(np.linalg.norm(frame.forces, axis=1).max()))
        known.append(index)
        # Symmetry may hold all atoms of a crystal, and a pair may be far apart.
        if largest[-1] == 0.0 and len(frame) > 2 and not frame.pbc.any():
            still.append(index)
        net_forces.append(float(np.linalg.norm(frame.forces.sum(0))) / len(frame))
        sizes.append(float(np.sqrt((frame.forces**2).sum(1).mean())))
        if not frame.pbc.any():
            turning.append(_turning_force(frame.positions, frame.forces))
            isolated.append(index)
    if unlabelled:
        yield Finding(
            False,
            f"No forces are in {_frame_count(len(unlabelled))} ({name_some(unlabelled)}), which "
            "train energies alone; convert with --missing drop to leave them out.",
        )
    if still:
        yield Finding(
            True,
            f"All forces are exactly zero in {_frame_count(len(still))} without a periodic cell "
            f"({name_some(still)}), as of labels that were not computed; compute them, leave these "
            "frames out, or write NaN and convert with --missing keep.",
        )
    percentile = float(np.percentile(largest, 90.0))
    limit = _OUTLYING_FORCE * percentile
    outliers = np.flatnonzero(np.array(largest) > limit)
    if len(outliers) and percentile > 0.0:
        is_few = len(outliers) <= max(1.0, _FEW * len(dataset))
        wrong = is_few and bool((~(contacts.relative[outliers] < _COLLIDING)).any())
        advice = "" if wrong else "usual for melts or collisions among still frames, else "
        yield Finding(
            wrong,
            f"A force beyond {limit:.3g} eV/A, five times what nine of ten frames stay below, is "
            f"in {_frame_count(len(outliers))} ({name_some(outliers)}); {advice}compute these "
            "frames again, or leave them out.",
        )
    component = float(np.median(sizes)) / np.sqrt(3.0) if sizes else 0.0
    if component > _LARGE_FORCE:
        # Sizes of forces tell units of a factor of four no better.
        units = sorted(_FORCE_UNITS, key=lambda name: abs(np.log(component * _factor(name))))
        likely = [units[0], *(n for n in units[1:] if 0.2 < component * _factor(n) < 5.0)]
        sizes_in_units = " or ".join(f"{component * _factor(name):.2g}" for name in likely)
        yield Finding(
            False,
            f"Half of the frames have forces beyond {component:.3g} eV/A, root mean square a "
            f"component, and near equilibrium few have {_LARGE_FORCE:g}; they may be in "
            f"{' or '.join(likely)}, which would make it {sizes_in_units} eV/A (convert with "
            "--energy-unit or --force-unit).",
        )
    mean, worst, is_single = _excess(net_forces, sizes)
    typical = float(np.mean(sizes)) if sizes else 0.0
    if mean > 1e-3 and (mean > 1e-3 * typical or is_single):
        yield Finding(
            mean > _NET_FORCE * typical or is_single,
            f"Forces do not add up to zero: the net force is {1e3 * mean:.3g} meV/A an atom, "
            f"which no potential can fit (forces are {1e3 * typical:.3g} meV/A), most in frame "
            f"{known[worst]}; compute such frames again with forces on all atoms, or leave "
            "them out.",
        )
        return
    mean, worst, is_single = _excess(turning, sizes)
    if mean > _NET_FORCE * typical or is_single:
        yield Finding(
            True,
            f"Forces turn whole molecules, by {1e3 * turning[worst]:.3g} meV/A in frame "
            f"{isolated[worst]} (forces are {1e3 * typical:.3g} meV/A), which no potential can "
            "fit; they are of another orientation or order of the atoms than the positions, or "
            "of a crystal whose cell is missing, so convert both as one calculation printed them.",
        )


def _excess(parts: list[float], sizes: list[float]) -> tuple[float, int, bool]:
    """Mean of parts of forces that ought to vanish, place of the largest, whether it stands out."""
    if not parts:
        return 0.0, 0, False
    worst = int(np.argmax(parts))
    limit = max(_NET_FORCE * float(np.mean(sizes)), 100.0 * float(np.median(parts)))
    return float(np.mean(parts)), worst, parts[worst] > limit


def _turning_force(positions: Array, forces: Array) -> float:
    """Root mean square of the part of forces (N, 3) that turns all atoms as one rigid body."""
    arms = positions - positions.mean(axis=0)
    inertia = np.square(arms).sum() * np.eye(3) - arms.T @ arms
    # Nothing turns about the axis of a linear molecule.
    inverse = np.linalg.pinv(inertia, rcond=1e-6, hermitian=True)
    parts = np.cross(inverse @ np.cross(arms, forces).sum(axis=0), arms)
    return float(np.sqrt(np.square(parts).sum(axis=1).mean()))


def _stresses(dataset: Dataset) -> Iterator[Finding]:
    """Stresses that look like another unit, or like pressures."""
    sizes: list[float] = []
    cells: dict[bytes, list[tuple[float, float]]] = {}
    for frame in dataset.frames():
        volume = abs(float(np.linalg.det(frame.cell)))
        if frame.stress is None or not volume or not np.isfinite(frame.stress).all():
            continue
        sizes.append(float(np.sqrt((frame.stress**2).mean())))
        key = np.sort(frame.numbers).tobytes()
        cells.setdefault(key, []).append((volume, float(np.trace(frame.stress)) / 3.0))
    size = float(np.median(sizes)) if sizes else 0.0
    if size > _LARGE_STRESS:
        yield Finding(
            False,
            f"Half of the frames have stresses beyond {size:.3g} eV/A^3, root mean square a "
            f"component, which is {size / PRESSURE['GPa']:.3g} GPa; they may be in GPa or kbar "
            "(convert with --stress-unit).",
        )
    falling = 0
    for rows in cells.values():
        volumes, stresses = np.array(rows).T
        spread = volumes.std() > _BREATHING * volumes.mean() and stresses.std() > 0.0
        if len(rows) >= _FEWEST_CELLS and spread:
            falling += len(rows) * bool(np.corrcoef(volumes, stresses)[0, 1] < _FALLING)
    if falling:
        yield Finding(
            True,
            f"Stresses of {_frame_count(falling)} fall where cells of the same atoms grow, as "
            "pressures do, and tension is positive here; multiply them by -1 in the file, or leave "
            "them out with --stress-key none.",
        )


def _factor(force_unit: str) -> float:
    return Units(forces=force_unit).force_factor


def _distances(dataset: Dataset, contacts: Contacts) -> Iterator[Finding]:
    for wrong in () if contacts.is_in_nm else (True, False):
        close = [contact for contact in contacts.close if (contact[3] >= _COLLISION) != wrong]
        if not close:
            continue
        index, atoms, distance, force = close[0]
        names = [SYMBOLS[dataset.frame(index).numbers[atom]] for atom in atoms]
        advice = (
            "the forces do not push them apart, so positions or labels are wrong; leave them out"
            if wrong
            else f"usual for collisions, as forces of {force:.3g} eV/A push them apart, else leave "
            "them out"
        )
        yield Finding(
            wrong,
            f"Atoms are too close in {_frame_count(len(close))} "
            f"({name_some([contact[0] for contact in close])}), such as {names[0]} and {names[1]} "
            f"at {distance:.3g} A in frame {index}; {advice}.",
        )
    shortest = contacts.ratios[np.isfinite(contacts.ratios)]
    if contacts.is_in_nm:
        yield Finding(
            True,
            f"In half of the frames atoms are at {np.median(shortest):.2g} of a bond length; "
            "lengths may be in nm (convert with --length-unit nm).",
        )
    molecular = shortest[shortest < _FAR_APART]
    if len(molecular) < 0.5 * len(dataset) or np.median(molecular) > 1.5:
        yield Finding(
            False,
            "In most frames no two atoms are as near as a bond; lengths may be in bohr "
            "(convert with --length-unit bohr); usual for noble gases and single atoms.",
        )


def _units(dataset: Dataset, pairs: Array) -> Iterator[Finding]:
    consistency = energy_force_consistency(dataset, pairs)
    slope = (
        f"energy differences are {consistency.slope:.3g} times the work of the forces (of "
        f"{consistency.pairs} pairs of alike frames, with a correlation of "
        f"{consistency.correlation:.2g})"
    )
    if not consistency.certain:
        guess = f"; perhaps {consistency.suspicion}" if consistency.suspicion else ""
        details = f": {slope}{guess}" if consistency.correlation else ""
        yield Finding(
            False,
            "Whether energies and forces are in the same units and of the right sign cannot be "
            "told, as too few frames that have both, and the same atoms and cell, are alike"
            f"{details}; see that the units given to data convert are those of the files.",
        )
    elif consistency.suspicion:
        yield Finding(
            True,
            f"{slope[0].upper()}{slope[1:]}: {consistency.suspicion}; convert "
            "again with the units and keys of the file, such as --energy-unit or --force-unit.",
        )


def _duplicates(dataset: Dataset, split: Split | None, near: float) -> Iterator[Finding]:
    split_parts = [] if split is None else list(split.parts())
    parts = np.full(len(dataset), len(split_parts))  # the last number marks frames in no part
    for number, (_, frames) in enumerate(split_parts):
        parts[frames] = number
    equal_frames, temporal_leakage = EqualFrames(parts, near), TemporalLeakage(parts)
    contradictions: list[tuple[float, int, int]] = []
    for group in composition_groups(dataset):
        contradictions += _contradictions(dataset, group)
        equal_frames.add(group)
        if split_parts:
            temporal_leakage.add(group)
    if contradictions:
        names = [f"{low} and {high}" for low, high in sorted(pair[1:] for pair in contradictions)]
        yield Finding(
            True,
            f"Energies of frames with the same atoms at the same places differ by up to "
            f"{max(contradictions)[0]:.3g} eV an atom ({name_some(names, 4)}), which no potential "
            "can fit: they are of several spins, which are not read, of other units or levels of "
            "theory, or did not converge; leave all but one of each out.",
        )
    same_part_pairs = EqualPairs()
    for (low, high, is_strain), equal_pairs in equal_frames.pairs().items():
        if is_strain and (low == high or high == len(split_parts)):
            continue
        if low == high or high == len(split_parts):
            same_part_pairs = same_part_pairs.join(equal_pairs)
            continue
        names = [split_parts[part][0] for part in (low, high)]
        description = _same(equal_pairs, f" of {names[0]} and {names[1]}", near)
        cause = (
            ", as strains along equivalent axes of one crystal: usual, but best held out together "
            "(data split --method together)"
            if is_strain
            else f": errors on {names[1]} will look better than they are; leave the copies out, or "
            "hold them out together (data split --method together)"
        )
        yield Finding(not is_strain, f"{description}{cause}.")
    if same_part_pairs.pairs:
        text = "leave one of each out, unless they are neighbors in a trajectory"
        yield Finding(False, f"{_same(same_part_pairs, '', near)}; {text}.")
    for number, (name, _) in enumerate(split_parts[1:], 1):
        part_leakage = temporal_leakage.of_part(number)
        if part_leakage.leak:
            yield Finding(True, part_leakage.sentence(name))


def _contradictions(dataset: Dataset, group: CompositionGroup) -> Iterator[tuple[float, int, int]]:
    """Difference (eV an atom) and frames of lowest and highest energy, of copies that differ."""
    energies = dataset.energy[group.members] / dataset.atoms[group.members]
    order = np.lexsort((energies, group.geometry))
    order = order[np.isfinite(energies[order])]
    starts = np.flatnonzero(np.diff(group.geometry[order], prepend=-1))
    for copies in np.split(order, starts[1:]):
        if len(copies) and energies[copies[-1]] - energies[copies[0]] > _CONTRADICTION:
            low, high = np.sort(group.members[copies[[0, -1]]]).tolist()
            yield float(energies[copies[-1]] - energies[copies[0]]), low, high


def _same(equal_pairs: EqualPairs, parts: str, near: float) -> str:
    pairs = (
        f"1 pair of frames{parts} is"
        if equal_pairs.pairs == 1
        else f"{equal_pairs.pairs} pairs of frames{parts} are"
    )
    return f"{pairs} the same within {near:g} A an atom ({equal_pairs.examples_text()})"


def _frame_count(count: int) -> str:
    return f"{count} frame{'s' * (count != 1)}"
