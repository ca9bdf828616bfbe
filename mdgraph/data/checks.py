"""Checks of a data set: units, energy outliers, net forces, and a numerical summary.

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
from ase.data import covalent_radii
from ase.formula import Formula
from numpy.typing import NDArray
from tqdm import tqdm

from mdgraph.data.dataset import Dataset, compositions, fit_references
from mdgraph.data.keys import ENERGY, LENGTH, Units
from mdgraph.data.similarity import (
    NEAR,
    EqualFrames,
    EqualPairs,
    TemporalLeakage,
    composition_groups,
    short_pairs,
)
from mdgraph.data.splits import Split
from mdgraph.errors import name_some
from mdgraph.units import SYMBOLS

Array = NDArray[np.float64]

_TINY: Final = 1e-300

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


def energy_force_consistency(dataset: Dataset) -> Consistency:
    """Compares energy differences with the work of the forces between the most similar frames.

    The frames of a pair have the same atoms in the same order.
    """
    members_by_key: dict[bytes, list[int]] = defaultdict(list)
    for index, frame in enumerate(dataset.frames()):
        assert frame.forces is not None
        if len(frame) > 1 and np.isfinite(frame.energy) and np.isfinite(frame.forces).all():
            cell = frame.cell.round(6).tobytes() if frame.pbc.any() else b""
            members_by_key[frame.numbers.tobytes() + frame.pbc.tobytes() + cell].append(index)
    tables = [np.zeros((0, 5))]
    for members in members_by_key.values():
        step = max(1, len(members) // _FRAMES)
        tables.append(_differences(dataset, members[::step][:_FRAMES]))
    differences = np.concatenate(tables)
    differences = differences[(differences[:, 0] > 1e-4) & (differences[:, 0] < _LONGEST)]
    length, energy, work, first, last = differences[np.argsort(differences[:, 0])[:_PAIRS]].T
    if len(work) < 2 or not energy.any() or not work.any():
        return Consistency(np.nan, 0.0, 0.0, len(work))
    weight = 1.0 / (_FLOOR**2 + length**2)
    products = _products(weight * energy, weight * work)
    correlation, slope = (float(value) for value in _fit(products.sum(0)))
    error = _error(products, first, last)
    is_precise = _is_precise(correlation, error)
    suspicion = _suspicion(slope, is_precise) if abs(correlation) > _MIN_CORRELATION else ""
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
    """For each pair: distance (A), energy difference (eV), work (eV) and the two frames."""
    frames = list(dataset.frames(members))
    positions = np.array([frame.positions for frame in frames])
    forces = np.array([frame.forces for frame in frames])
    energy = np.array([frame.energy for frame in frames])
    inverse = np.linalg.inv(frames[0].cell) if frames[0].pbc.all() else None
    tables = [np.zeros((0, 5))]
    for last in range(1, len(frames)):
        earlier, earlier_forces = positions[:last], forces[:last]
        if inverse is not None:
            shift = positions[last] - earlier
            shift = shift - np.round(shift @ inverse) @ frames[0].cell
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


def _suspicion(slope: float, is_precise: bool) -> str:
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
    best = min(candidates, key=lambda name: abs(size - abs(np.log(candidates[name]))))
    if abs(size - abs(np.log(candidates[best]))) < 0.2:
        return f"{sign_error}, and {best}" if sign_error else best
    return "energies and forces are not in the same units, or not of the same calculation"


_MIN_SPREAD: Final = 0.5
"""eV per atom; smaller deviations can occur within one level of theory."""

_APART: Final = 2.0
"""eV per atom between two heaps of energies; a solid and its liquid differ by less."""

_GAP: Final = 10.0
"""Smallest ratio of the gap between two heaps of energies to the sum of their widths."""

_HEAP: Final = 5
"""Half of the fewest frames among which two heaps are searched."""

Index = NDArray[np.int64]
Halves = tuple[Index, Index]


def energy_outliers(dataset: Dataset) -> Iterator[str]:
    """Yields sentences about energies that composition and configuration do not explain."""
    frames = np.flatnonzero(np.isfinite(dataset.energy) & (dataset.atoms > 1))
    if len(frames) < 2 * _HEAP:
        return
    counts = compositions(dataset)[1]
    heaps = _heaps(dataset, frames, counts)
    yield from _two_heaps(dataset, heaps)
    if not heaps:
        # With two heaps, the least-squares fit lies between them and far from both.
        yield from _far_from_references(dataset, frames, counts)
    yield from _between_sources(dataset, frames, counts)


def _heaps(dataset: Dataset, known_frames: Index, counts: Index) -> list[Halves]:
    """Low and high frames of each set of similar frames with a gap in energy, largest set first."""
    members_by_key: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for index in known_frames:
        key = counts[index].tobytes(), dataset.pbc[index].tobytes(), float(dataset.charge[index])
        members_by_key[(*key, int(dataset.group[index]), int(dataset.source[index]))].append(
            int(index)
        )
    heaps: list[Halves] = []
    for members in members_by_key.values():
        frames = np.array(members)
        energies = dataset.energy[frames] / dataset.atoms[frames]
        order = np.argsort(energies)
        frames, energies = frames[order], energies[order]
        if len(frames) < 2 * _HEAP:
            continue
        cut = 1 + int(np.argmax(np.diff(energies)))
        width = float(np.std(energies[:cut]) + np.std(energies[cut:]))
        gap = float(energies[cut] - energies[cut - 1])
        if min(cut, len(frames) - cut) > 1 and gap > max(_APART, _GAP * width):
            heaps.append((np.sort(frames[:cut]), np.sort(frames[cut:])))
    return sorted(heaps, key=lambda halves: -min(map(len, halves)))


def _two_heaps(dataset: Dataset, heaps: list[Halves]) -> Iterator[str]:
    if not heaps:
        return
    low, high = heaps[0]
    symbols = [SYMBOLS[number] for number in dataset.frame(int(low[0])).numbers]
    name = Formula.from_list(symbols).format("hill")
    medians = [float(np.median(dataset.energy[half] / dataset.atoms[half])) for half in heaps[0]]
    others = f", and those of {len(heaps) - 1} other kinds" if len(heaps) > 1 else ""
    yield (
        f"Energies of {name} lie in two heaps{others}: {len(low)} frames ({name_some(low, 4)}) "
        f"at {medians[0]:.6g} eV an atom, {len(high)} ({name_some(high, 4)}) at "
        f"{medians[1]:.6g}{_unit(*medians)}; import each with its own unit, or leave one out."
    )


def _far_from_references(dataset: Dataset, known_frames: Index, counts: Index) -> Iterator[str]:
    _, predicted = fit_references(counts[known_frames], dataset.energy[known_frames])
    residual = (dataset.energy[known_frames] - predicted) / dataset.atoms[known_frames]
    deviation = np.abs(residual - np.median(residual))
    limit = max(_MIN_SPREAD, 20.0 * 1.4826 * float(np.median(deviation)))
    frames = known_frames[deviation > limit]
    if len(frames):
        yield (
            f"{len(frames)} frame{'s lie' if len(frames) > 1 else ' lies'} more than {limit:.3g} "
            f"eV an atom off what their composition makes likely ({name_some(frames)}); their "
            "energies may come from another level of theory or unit."
        )


def _between_sources(dataset: Dataset, known_frames: Index, counts: Index) -> Iterator[str]:
    """Reports sources whose energies of the same composition have different origins."""
    means: dict[bytes, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for index in known_frames:
        energy = float(dataset.energy[index] / dataset.atoms[index])
        means[counts[index].tobytes()][int(dataset.source[index])].append(energy)
    for per_source in means.values():
        if len(per_source) < 2:
            continue
        medians = {source: float(np.median(values)) for source, values in per_source.items()}
        low, high = min(medians, key=medians.__getitem__), max(medians, key=medians.__getitem__)
        width = max(float(np.std(values)) for values in per_source.values())
        if medians[high] - medians[low] > max(0.2, 10.0 * width):
            files = [dataset.sources[source].file for source in (low, high)]
            yield (
                f"Frames of one composition differ by {medians[high] - medians[low]:.3g} eV an "
                f"atom between {files[0]} and {files[1]}{_unit(medians[low], medians[high])}: "
                "the files have different reference energies or units."
            )
            return


def _unit(first: float, second: float) -> str:
    """The end of a sentence that names the unit if two energies differ by its factor, or empty."""
    small, large = sorted((abs(first), abs(second)))
    for name, factor in ENERGY.items():
        ratio = max(factor, 1.0 / factor)
        if factor != 1.0 and small > 0.0 and abs(large / small / ratio - 1.0) < 0.02:
            return f", in the ratio of {name} and eV"
    return ""


@dataclass(frozen=True, eq=False)
class Summary:
    """Numbers and distributions of a data set.

    Attributes:
        frames: number of frames.
        atoms: smallest, median and largest number of atoms of a frame.
        elements: number of atoms of each element.
        groups: number of frames of each group.
        periodic: number of frames with at least one periodic direction.
        labelled: number of frames with an energy, finite forces, a stress, a dipole.
        energies: (M,) eV per atom.
        forces: norms of the forces on all atoms, eV/A.
    """

    frames: int
    atoms: tuple[int, int, int]
    elements: dict[str, int]
    groups: dict[str, int]
    periodic: int
    labelled: dict[str, int]
    energies: NDArray[np.float64]
    forces: NDArray[np.float64]

    def lines(self) -> list[str]:
        """Lines of text for printing."""
        low, middle, high = self.atoms
        size = f"{low}" if low == high else f"{low} to {high}, median {middle}"
        labelled = ", ".join(f"{count} with {name}" for name, count in self.labelled.items())
        lines = [
            f"frames:    {self.frames} ({labelled}; {self.periodic} periodic)",
            f"atoms:     {size} a frame",
            "elements:  " + ", ".join(f"{name} {n}" for name, n in self.elements.items()),
            "groups:    " + _first_groups(self.groups),
        ]
        energies = self.energies[np.isfinite(self.energies)]
        if len(energies):
            lines.append(
                f"energy:    {energies.mean():.6g} eV an atom, spread {1e3 * energies.std():.4g} "
                "meV an atom"
            )
        if len(self.forces):
            rms = float(np.sqrt((self.forces**2).mean() / 3.0))
            lines.append(
                f"forces:    {rms:.4g} eV/A root mean square a component, largest "
                f"{self.forces.max():.4g} eV/A"
            )
        return lines


def _first_groups(groups: dict[str, int]) -> str:
    texts = [f"{name or 'unnamed'} {count}" for name, count in list(groups.items())[:8]]
    return ", ".join(texts) + (f" and {len(groups) - 8} more" if len(groups) > 8 else "")


def summarize(dataset: Dataset) -> Summary:
    """Counts frames, elements, groups and labels of a data set; reads all frames once."""
    elements, counts = compositions(dataset)
    sizes, with_forces = [np.zeros(0)], 0
    for start in range(0, len(dataset), 1000):
        stop = min(start + 1000, len(dataset))
        forces = np.linalg.norm(dataset.column("forces", start, stop), axis=1)
        sizes.append(forces[np.isfinite(forces)])
        owner = np.repeat(np.arange(stop - start), dataset.atoms[start:stop])
        with_forces += stop - start - len(np.unique(owner[~np.isfinite(forces)]))
    names = Counter(dataset.groups[group] for group in dataset.group)
    sorted_atoms = np.sort(dataset.atoms)
    return Summary(
        frames=len(dataset),
        atoms=(
            int(sorted_atoms[0]),
            int(sorted_atoms[len(sorted_atoms) // 2]),
            int(sorted_atoms[-1]),
        ),
        elements={
            SYMBOLS[number]: int(count)
            for number, count in zip(elements, counts.sum(0), strict=True)
        },
        groups=dict(names.most_common()),
        periodic=int(dataset.pbc.any(1).sum()),
        labelled={
            "energy": int(np.isfinite(dataset.energy).sum()),
            "forces": with_forces,
            "stress": int(np.isfinite(dataset.stress).all((1, 2)).sum()),
            "dipole": int(np.isfinite(dataset.dipole).all(1).sum()),
        },
        energies=dataset.energy / dataset.atoms,
        forces=np.concatenate(sizes),
    )


_TOO_CLOSE: Final = 0.55
"""Ratio to the sum of two covalent radii; the shortest bonds have 0.75."""

_OUTLYING_FORCE: Final = 5.0
"""Ratio of a frame's largest force to the 90th percentile of this over all frames."""

_LARGE_FORCE: Final = 10.0
"""eV/A, root mean square component; molecules and solids at 300 to 1000 K have 0.3 to 2."""

_FORCE_UNITS: Final = ("kcal/mol/A", "kJ/mol/A", "kJ/mol/nm", "meV/A")


@dataclass(frozen=True)
class Finding:
    """The result of a check.

    Attributes:
        wrong: whether the data should not be used for training as they are.
        text: a sentence that names the frames.
    """

    wrong: bool
    text: str


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
    checks = (
        _labels(dataset),
        _forces(dataset),
        _distances(dataset),
        (Finding(True, text) for text in energy_outliers(dataset)),
        _units(dataset),
        _duplicates(dataset, split, near),
    )
    return [
        finding for check in tqdm(checks, "checks", leave=False, disable=None) for finding in check
    ]


def _labels(dataset: Dataset) -> Iterator[Finding]:
    unlabelled = np.flatnonzero(~np.isfinite(dataset.energy))
    if len(unlabelled):
        yield Finding(
            False, f"No energy is in {_frame_count(len(unlabelled))} ({name_some(unlabelled)})."
        )


def _forces(dataset: Dataset) -> Iterator[Finding]:
    largest, net_forces, sizes, unlabelled = [], [], [], []
    for index, frame in enumerate(dataset.frames()):
        assert frame.forces is not None
        if not np.isfinite(frame.forces).all():
            unlabelled.append(index)
            largest.append(0.0)
            continue
        largest.append(float(np.linalg.norm(frame.forces, axis=1).max()))
        net_forces.append(float(np.linalg.norm(frame.forces.sum(0))) / len(frame))
        sizes.append(float(np.sqrt((frame.forces**2).sum(1).mean())))
    if unlabelled:
        yield Finding(
            False, f"No forces are in {_frame_count(len(unlabelled))} ({name_some(unlabelled)})."
        )
    percentile = float(np.percentile(largest, 90.0))
    outliers = [
        index for index, value in enumerate(largest) if value > _OUTLYING_FORCE * percentile
    ]
    if outliers and percentile > 0.0:
        yield Finding(
            True,
            f"A force beyond {_OUTLYING_FORCE * percentile:.3g} eV/A, five times what nine of ten "
            f"frames stay below, is in {_frame_count(len(outliers))} ({name_some(outliers)}).",
        )
    component = float(np.median(sizes)) / np.sqrt(3.0) if sizes else 0.0
    if component > _LARGE_FORCE:
        unit = min(_FORCE_UNITS, key=lambda name: abs(np.log(component * _factor(name))))
        yield Finding(
            False,
            f"Half of the frames have forces beyond {component:.3g} eV/A, root mean square a "
            f"component, and near equilibrium few have {_LARGE_FORCE:g}; they may be in {unit}, "
            f"which would make it {component * _factor(unit):.2g} eV/A (convert with "
            "--energy-unit or --force-unit).",
        )
    if net_forces:
        mean, typical = float(np.mean(net_forces)), float(np.mean(sizes))
        if mean > 1e-3 and mean > 1e-3 * typical:
            yield Finding(
                mean > 0.05 * typical,
                f"Forces do not add up to zero: the net force is {1e3 * mean:.3g} meV/A an atom, "
                f"which no potential can fit (forces are {1e3 * typical:.3g} meV/A).",
            )


def _factor(force_unit: str) -> float:
    return Units(forces=force_unit).force_factor


def _distances(dataset: Dataset) -> Iterator[Finding]:
    close, shortest = [], []
    cutoff = 2.0 * float(np.max(covalent_radii[np.unique(dataset.numbers())]))
    for index, frame in enumerate(dataset.frames()):
        first, second, distance = short_pairs(frame, cutoff)
        if len(distance) == 0:
            continue
        radii = covalent_radii[frame.numbers]
        ratio = distance / (radii[first] + radii[second])
        shortest.append(float(ratio.min()))
        if ratio.min() < _TOO_CLOSE:
            close.append((index, int(ratio.argmin())))
    frames = [index for index, _ in close]
    if frames and len(frames) < 0.5 * len(dataset):
        frame = dataset.frame(frames[0])
        first, second, distance = short_pairs(frame, cutoff)
        pair = close[0][1]
        names = [SYMBOLS[frame.numbers[atoms[pair]]] for atoms in (first, second)]
        yield Finding(
            True,
            f"Atoms are too close in {_frame_count(len(frames))} ({name_some(frames)}), such as "
            f"{names[0]} and {names[1]} at {distance[pair]:.3g} A in frame {frames[0]}.",
        )
    if shortest and np.median(shortest) < _TOO_CLOSE:
        yield Finding(
            True,
            f"In half of the frames atoms are at {np.median(shortest):.2g} of a bond length; "
            "lengths may be in nm (convert with --length-unit nm).",
        )
    molecular = [value for value in shortest if value < 1.0 / _TOO_CLOSE]
    if len(molecular) < 0.5 * len(dataset) or (molecular and np.median(molecular) > 1.5):
        yield Finding(
            False,
            "In most frames no two atoms are as near as a bond; lengths may be in bohr "
            "(convert with --length-unit bohr), or the atoms are far apart on purpose.",
        )


def _units(dataset: Dataset) -> Iterator[Finding]:
    consistency = energy_force_consistency(dataset)
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
            f"{details}.",
        )
    elif consistency.suspicion:
        yield Finding(True, f"{slope[0].upper()}{slope[1:]}: {consistency.suspicion}.")


def _duplicates(dataset: Dataset, split: Split | None, near: float) -> Iterator[Finding]:
    split_parts = [] if split is None else list(split.parts())
    parts = np.full(len(dataset), len(split_parts))  # the last number marks frames in no part
    for number, (_, frames) in enumerate(split_parts):
        parts[frames] = number
    equal_frames, temporal_leakage = EqualFrames(parts, near), TemporalLeakage(parts)
    for group in composition_groups(dataset):
        equal_frames.add(group)
        if split_parts:
            temporal_leakage.add(group)
    same_part_pairs = EqualPairs()
    for (low, high), equal_pairs in equal_frames.pairs().items():
        if low == high or high == len(split_parts):
            same_part_pairs = same_part_pairs.join(equal_pairs)
            continue
        names = [split_parts[part][0] for part in (low, high)]
        description = _same(equal_pairs, f" of {names[0]} and {names[1]}", near)
        text = f"{description}: errors on {names[1]} will look better than they are."
        yield Finding(True, text)
    if same_part_pairs.pairs:
        yield Finding(False, f"{_same(same_part_pairs, '', near)}.")
    for number, (name, _) in enumerate(split_parts[1:], 1):
        part_leakage = temporal_leakage.of_part(number)
        if part_leakage.leak:
            yield Finding(True, part_leakage.sentence(name))


def _same(equal_pairs: EqualPairs, parts: str, near: float) -> str:
    pairs = (
        f"1 pair of frames{parts} is"
        if equal_pairs.pairs == 1
        else f"{equal_pairs.pairs} pairs of frames{parts} are"
    )
    return f"{pairs} the same within {near:g} A an atom ({equal_pairs.examples_text()})"


def _frame_count(count: int) -> str:
    return f"{count} frame{'s' * (count != 1)}"
