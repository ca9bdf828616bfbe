"""Checks of a data set: units, energy outliers, net forces, and a numerical summary.

Along a short way from one frame to another of the same atoms, E2 - E1 is close to
-(F1 + F2) . (x2 - x1) / 2, exactly so where the energy is quadratic. The slope between the two
is 1 where units and signs are right, and a familiar number where they are not. What is not
quadratic grows with the cube of the way: it blurs the slope and makes it smaller.
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
from mdgraph.data.similarity import Alike, AlikeFrames, SuccessiveFrames, families, short_pairs
from mdgraph.data.splits import Split
from mdgraph.errors import name_some
from mdgraph.units import SYMBOLS

Array = NDArray[np.float64]

_TINY: Final = 1e-300

_FRAMES: Final = 500
"""Of one kind that are looked at."""

_PAIRS: Final = 50
"""The shortest ways are taken; along longer ones the energy is not quadratic."""

_LONGEST: Final = 0.6
"""A, root mean square over the atoms; longer ways lead elsewhere."""

_FLOOR: Final = 0.05
"""A; differences count by 1 / (this squared + length squared), so that long ways, which blur the
slope, do not outweigh short ones, nor do rounded energies of nearly equal frames."""

_MIN_PAIRS: Final = 10
"""Pairs that a judgement needs."""

_MIN_CORRELATION: Final = 0.5
_ERRORS: Final = 4.0
"""Correlation, and how many of its standard errors it must be, for a slope to mean something.

Of 2400 parts, of 10 to 400 frames, of eleven published sets all that passed had a slope of the
right sign: from 0.31 to 1.25, and from 0.71 to 1.19 where they were sharp as below.
"""

_SHARP: Final = 0.9
_SHARP_ERROR: Final = 0.05
"""Correlation above and error below which a slope tells units of length as well."""

_RIGHT: Final = (0.57, 1.4)
_RIGHT_BLURRED: Final = (0.15, 2.0)
"""Slopes that nothing is wrong with, sharp or not; two units of energy are 13 or more apart."""


@dataclass(frozen=True)
class Consistency:
    """How well energies agree with forces, from finite differences between frames.

    Attributes:
        slope: of energy differences over the work of the forces.
        correlation: between them.
        error: of the correlation, one standard deviation.
        pairs: how many differences were taken.
        suspicion: what would explain a slope that is not 1, or empty; no more than a guess
            where it is not certain.
    """

    slope: float
    correlation: float
    error: float
    pairs: int
    suspicion: str = ""

    @property
    def certain(self) -> bool:
        """Whether the frames were alike enough to tell."""
        least = max(_MIN_CORRELATION, _ERRORS * self.error)
        if self.pairs < _MIN_PAIRS or abs(self.correlation) < least:
            return False
        near = _RIGHT_BLURRED[0] < self.slope < _RIGHT_BLURRED[1]
        return _sharp(self.correlation, self.error) or not near or not self.suspicion


def energy_force_consistency(dataset: Dataset) -> Consistency:
    """Compares energy differences with the work of the forces, between the most similar frames.

    The frames of a pair have the same atoms in the same order.
    """
    kinds: dict[bytes, list[int]] = defaultdict(list)
    for index, frame in enumerate(dataset.frames()):
        assert frame.forces is not None
        if len(frame) > 1 and np.isfinite(frame.energy) and np.isfinite(frame.forces).all():
            cell = frame.cell.round(6).tobytes() if frame.pbc.any() else b""
            kinds[frame.numbers.tobytes() + frame.pbc.tobytes() + cell].append(index)
    result = [np.zeros((0, 5))]
    for members in kinds.values():
        step = max(1, len(members) // _FRAMES)
        result.append(_differences(dataset, members[::step][:_FRAMES]))
    ways = np.concatenate(result)
    ways = ways[(ways[:, 0] > 1e-4) & (ways[:, 0] < _LONGEST)]
    length, energy, work, first, last = ways[np.argsort(ways[:, 0])[:_PAIRS]].T
    if len(work) < 2 or not energy.any() or not work.any():
        return Consistency(np.nan, 0.0, 0.0, len(work))
    weight = 1.0 / (_FLOOR**2 + length**2)
    products = _products(weight * energy, weight * work)
    correlation, slope = (float(value) for value in _fit(products.sum(0)))
    error = _error(products, first, last)
    sharp = _sharp(correlation, error)
    suspicion = _suspicion(slope, sharp) if abs(correlation) > _MIN_CORRELATION else ""
    return Consistency(slope, correlation, error, len(work), suspicion)


def _products(energy: Array, work: Array) -> Array:
    """(P, 3) whose sums a fit needs."""
    return np.stack([energy * work, energy**2, work**2], axis=1)


def _fit(sums: Array) -> tuple[Array, Array]:
    """Correlation and slope from sums (..., 3); neither of the two is free of noise."""
    both, energy, work = np.moveaxis(sums, -1, 0)
    slope = np.sqrt(energy / np.maximum(work, _TINY))
    return both / np.sqrt(np.maximum(energy * work, _TINY)), np.sign(both) * slope


def _error(products: Array, first: Array, last: Array) -> float:
    """Of the correlation, by leaving out each frame in turn: the pairs share frames."""
    frames = np.unique(np.append(first, last))[:, None]
    without = products.sum(0) - ((frames == first) | (frames == last)) @ products
    return float(np.std(_fit(without)[0]) * np.sqrt(len(frames) - 1))


def _differences(dataset: Dataset, members: list[int]) -> Array:
    """Of each pair the length of the way (A), the energy difference, the work (eV), the frames."""
    frames = list(dataset.frames(members))
    positions = np.array([frame.positions for frame in frames])
    forces = np.array([frame.forces for frame in frames])
    energy = np.array([frame.energy for frame in frames])
    inverse = np.linalg.inv(frames[0].cell) if frames[0].pbc.all() else None
    ways = [np.zeros((0, 5))]
    for last in range(1, len(frames)):
        earlier, pull = positions[:last], forces[:last]
        if inverse is not None:
            shift = positions[last] - earlier
            shift = shift - np.round(shift @ inverse) @ frames[0].cell
            shift -= shift.mean(1, keepdims=True)
        else:
            centred = positions[last] - positions[last].mean(0)
            earlier = earlier - earlier.mean(1, keepdims=True)
            turn = _turns(earlier, centred)
            shift, pull = centred - earlier @ turn, pull @ turn
        length = np.sqrt((shift**2).sum(-1).mean(-1))
        work = -0.5 * ((forces[last] + pull) * shift).sum((1, 2))
        names = np.array(members[:last]), np.full(last, members[last])
        ways.append(np.stack([length, energy[last] - energy[:last], work, *names], axis=1))
    return np.concatenate(ways)


def _turns(moved: Array, fixed: Array) -> Array:
    """Rotations (M, 3, 3) that bring rows of (M, N, 3) nearest to (N, 3).

    Kabsch, DOI 10.1107/S0567739476001873.
    """
    left, _, right = np.linalg.svd(moved.transpose(0, 2, 1) @ fixed)
    left[..., -1] *= np.sign(np.linalg.det(left @ right))[:, None]
    return left @ right


def _sharp(correlation: float, error: float) -> bool:
    return abs(correlation) > _SHARP and error < _SHARP_ERROR


def _suspicion(slope: float, sharp: bool) -> str:
    low, high = _RIGHT if sharp or slope > 0.0 else _RIGHT_BLURRED
    turned = "the forces have the wrong sign (are they gradients?)" if slope < 0.0 else ""
    if low < abs(slope) < high:
        return turned
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
        return f"{turned}, and {best}" if turned else best
    return "energies and forces are not in the same units, or not of the same calculation"


_MIN_SPREAD: Final = 0.5
"""eV an atom; what is less apart may be of one calculation."""

_APART: Final = 2.0
"""eV an atom between two heaps of frames of one kind; a solid and its liquid differ by less."""

_GAP: Final = 10.0
"""Of the gap between two heaps of energies over the widths of both."""

_HEAP: Final = 5
"""Frames whose energies have a width."""

Index = NDArray[np.int64]
Halves = tuple[Index, Index]


def energy_outliers(dataset: Dataset) -> Iterator[str]:
    """Energies that neither composition nor configuration explains, as sentences."""
    known = np.flatnonzero(np.isfinite(dataset.energy) & (dataset.atoms > 1))
    if len(known) < 2 * _HEAP:
        return
    counts = compositions(dataset)[1]
    heaps = _heaps(dataset, known, counts)
    yield from _two_heaps(dataset, heaps)
    if not heaps:
        # Where there are two, least squares lie between them, far from both.
        yield from _far_from_references(dataset, known, counts)
    yield from _between_sources(dataset, known, counts)


def _heaps(dataset: Dataset, known: Index, counts: Index) -> list[Halves]:
    """Low and high frames of each kind of frame whose energies have a gap, the fullest first."""
    kinds: dict[tuple[object, ...], list[int]] = defaultdict(list)
    for index in known:
        bits = counts[index].tobytes(), dataset.pbc[index].tobytes(), float(dataset.charge[index])
        kinds[(*bits, int(dataset.group[index]), int(dataset.source[index]))].append(int(index))
    heaps: list[Halves] = []
    for members in kinds.values():
        frames = np.array(members)
        energies = dataset.energy[frames] / dataset.atoms[frames]
        order = np.argsort(energies)
        frames, energies = frames[order], energies[order]
        if len(frames) < 2 * _HEAP:
            continue
        cut = 1 + int(np.argmax(np.diff(energies)))
        width = float(np.std(energies[:cut]) + np.std(energies[cut:]))
        apart = float(energies[cut] - energies[cut - 1])
        if min(cut, len(frames) - cut) > 1 and apart > max(_APART, _GAP * width):
            heaps.append((np.sort(frames[:cut]), np.sort(frames[cut:])))
    return sorted(heaps, key=lambda halves: -min(map(len, halves)))


def _two_heaps(dataset: Dataset, heaps: list[Halves]) -> Iterator[str]:
    if not heaps:
        return
    low, high = heaps[0]
    symbols = [SYMBOLS[number] for number in dataset.frame(int(low[0])).numbers]
    name = Formula.from_list(symbols).format("hill")
    places = [float(np.median(dataset.energy[one] / dataset.atoms[one])) for one in heaps[0]]
    others = f", and those of {len(heaps) - 1} other kinds" if len(heaps) > 1 else ""
    yield (
        f"Energies of {name} lie in two heaps{others}: {len(low)} frames ({name_some(low, 4)}) "
        f"at {places[0]:.6g} eV an atom, {len(high)} ({name_some(high, 4)}) at "
        f"{places[1]:.6g}{_unit(*places)}; import each with its own unit, or leave one out."
    )


def _far_from_references(dataset: Dataset, known: Index, counts: Index) -> Iterator[str]:
    _, predicted = fit_references(counts[known], dataset.energy[known])
    residual = (dataset.energy[known] - predicted) / dataset.atoms[known]
    away = np.abs(residual - np.median(residual))
    limit = max(_MIN_SPREAD, 20.0 * 1.4826 * float(np.median(away)))
    frames = known[away > limit]
    if len(frames):
        yield (
            f"{len(frames)} frame{'s lie' if len(frames) > 1 else ' lies'} more than {limit:.3g} "
            f"eV an atom off what their composition makes likely ({name_some(frames)}); their "
            "energies may come from another level of theory or unit."
        )


def _between_sources(dataset: Dataset, known: Index, counts: Index) -> Iterator[str]:
    """The same composition in two sources must have the same origin of energies."""
    means: dict[bytes, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for index in known:
        energy = float(dataset.energy[index] / dataset.atoms[index])
        means[counts[index].tobytes()][int(dataset.source[index])].append(energy)
    for per_source in means.values():
        if len(per_source) < 2:
            continue
        centre = {source: float(np.median(values)) for source, values in per_source.items()}
        low, high = min(centre, key=centre.__getitem__), max(centre, key=centre.__getitem__)
        width = max(float(np.std(values)) for values in per_source.values())
        if centre[high] - centre[low] > max(0.2, 10.0 * width):
            files = [dataset.sources[source].file for source in (low, high)]
            yield (
                f"Frames of one composition differ by {centre[high] - centre[low]:.3g} eV an atom "
                f"between {files[0]} and {files[1]}{_unit(centre[low], centre[high])}: the files "
                "have different reference energies or units."
            )
            return


def _unit(first: float, second: float) -> str:
    """The unit in which one energy has the number that the other has in eV, if there is one."""
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
        frames: how many.
        atoms: fewest, median and most atoms of a frame.
        elements: atoms of each element.
        groups: frames of each group.
        periodic: frames with at least one periodic direction.
        labelled: frames with an energy, finite forces, a stress, a dipole.
        energies: (M,) eV an atom.
        forces: sizes of the forces on all atoms, eV/A.
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
        """For a person."""
        low, middle, high = self.atoms
        size = f"{low}" if low == high else f"{low} to {high}, median {middle}"
        labelled = ", ".join(f"{count} with {name}" for name, count in self.labelled.items())
        lines = [
            f"frames:    {self.frames} ({labelled}; {self.periodic} periodic)",
            f"atoms:     {size} a frame",
            "elements:  " + ", ".join(f"{name} {n}" for name, n in self.elements.items()),
            "groups:    " + _some(self.groups),
        ]
        known = self.energies[np.isfinite(self.energies)]
        if len(known):
            lines.append(
                f"energy:    {known.mean():.6g} eV an atom, spread {1e3 * known.std():.4g} meV "
                "an atom"
            )
        if len(self.forces):
            root = float(np.sqrt((self.forces**2).mean() / 3.0))
            lines.append(
                f"forces:    {root:.4g} eV/A root mean square a component, largest "
                f"{self.forces.max():.4g} eV/A"
            )
        return lines


def _some(groups: dict[str, int]) -> str:
    shown = [f"{name or 'unnamed'} {count}" for name, count in list(groups.items())[:8]]
    return ", ".join(shown) + (f" and {len(groups) - 8} more" if len(groups) > 8 else "")


def summarize(dataset: Dataset) -> Summary:
    """Counts frames, elements, groups and labels of a data set; reads all frames once."""
    elements, counts = compositions(dataset)
    sizes, whole = [np.zeros(0)], 0
    for start in range(0, len(dataset), 1000):
        stop = min(start + 1000, len(dataset))
        forces = np.linalg.norm(dataset.column("forces", start, stop), axis=1)
        sizes.append(forces[np.isfinite(forces)])
        owner = np.repeat(np.arange(stop - start), dataset.atoms[start:stop])
        whole += stop - start - len(np.unique(owner[~np.isfinite(forces)]))
    names = Counter(dataset.groups[group] for group in dataset.group)
    ordered = np.sort(dataset.atoms)
    return Summary(
        frames=len(dataset),
        atoms=(int(ordered[0]), int(ordered[len(ordered) // 2]), int(ordered[-1])),
        elements={
            SYMBOLS[number]: int(count)
            for number, count in zip(elements, counts.sum(0), strict=True)
        },
        groups=dict(names.most_common()),
        periodic=int(dataset.pbc.any(1).sum()),
        labelled={
            "energy": int(np.isfinite(dataset.energy).sum()),
            "forces": whole,
            "stress": int(np.isfinite(dataset.stress).all((1, 2)).sum()),
            "dipole": int(np.isfinite(dataset.dipole).all(1).sum()),
        },
        energies=dataset.energy / dataset.atoms,
        forces=np.concatenate(sizes),
    )


_TOO_CLOSE: Final = 0.55
"""Of the sum of two covalent radii; the shortest bonds have 0.75."""

_OUTLYING_FORCE: Final = 5.0
"""Largest force of a frame over the 90th percentile of all frames' largest."""

_LARGE_FORCE: Final = 10.0
"""eV/A, root mean square component; molecules and solids at 300 to 1000 K have 0.3 to 2."""

_FORCE_UNITS: Final = ("kcal/mol/A", "kJ/mol/A", "kJ/mol/nm", "meV/A")


@dataclass(frozen=True)
class Finding:
    """What a check reports, as one sentence.

    Attributes:
        wrong: whether training on the data as they are would be a mistake.
        text: the sentence, which names the frames.
    """

    wrong: bool
    text: str


def check_dataset(
    dataset: Dataset, split: Split | None = None, near: float = 0.01
) -> list[Finding]:
    """Looks for mistakes in a data set; reads all frames several times.

    Returns an empty list where there are none.

    Args:
        dataset: the data.
        split: frames that are the same in two of its parts are reported as leakage.
        near: A; frames count as the same where random displacements of this size an atom
            would make as much of a difference.
    """
    checks = (
        _labels(dataset),
        _forces(dataset),
        _distances(dataset),
        (Finding(True, text) for text in energy_outliers(dataset)),
        _units(dataset),
        _duplicates(dataset, split, near),
    )
    return [one for check in tqdm(checks, "checks", leave=False, disable=None) for one in check]


def _labels(dataset: Dataset) -> Iterator[Finding]:
    bare = np.flatnonzero(~np.isfinite(dataset.energy))
    if len(bare):
        yield Finding(False, f"No energy is in {_counted(len(bare))} ({name_some(bare)}).")


def _forces(dataset: Dataset) -> Iterator[Finding]:
    largest, net, size, bare = [], [], [], []
    for index, frame in enumerate(dataset.frames()):
        assert frame.forces is not None
        if not np.isfinite(frame.forces).all():
            bare.append(index)
            largest.append(0.0)
            continue
        largest.append(float(np.linalg.norm(frame.forces, axis=1).max()))
        net.append(float(np.linalg.norm(frame.forces.sum(0))) / len(frame))
        size.append(float(np.sqrt((frame.forces**2).sum(1).mean())))
    if bare:
        yield Finding(False, f"No forces are in {_counted(len(bare))} ({name_some(bare)}).")
    usual = float(np.percentile(largest, 90.0))
    outliers = [index for index, value in enumerate(largest) if value > _OUTLYING_FORCE * usual]
    if outliers and usual > 0.0:
        yield Finding(
            True,
            f"A force beyond {_OUTLYING_FORCE * usual:.3g} eV/A, five times what nine of ten "
            f"frames stay below, is in {_counted(len(outliers))} ({name_some(outliers)}).",
        )
    component = float(np.median(size)) / np.sqrt(3.0) if size else 0.0
    if component > _LARGE_FORCE:
        unit = min(_FORCE_UNITS, key=lambda name: abs(np.log(component * _factor(name))))
        yield Finding(
            False,
            f"Half of the frames have forces beyond {component:.3g} eV/A, root mean square a "
            f"component, and near equilibrium few have {_LARGE_FORCE:g}; they may be in {unit}, "
            f"which would make it {component * _factor(unit):.2g} eV/A (convert with "
            "--energy-unit or --force-unit).",
        )
    if net:
        mean, typical = float(np.mean(net)), float(np.mean(size))
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
    reach = 2.0 * float(np.max(covalent_radii[np.unique(dataset.numbers())]))
    for index, frame in enumerate(dataset.frames()):
        first, second, distance = short_pairs(frame, reach)
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
        first, second, distance = short_pairs(frame, reach)
        pair = close[0][1]
        names = [SYMBOLS[frame.numbers[one[pair]]] for one in (first, second)]
        yield Finding(
            True,
            f"Atoms are too close in {_counted(len(frames))} ({name_some(frames)}), such as "
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
    found = energy_force_consistency(dataset)
    slope = (
        f"energy differences are {found.slope:.3g} times the work of the forces (of "
        f"{found.pairs} pairs of alike frames, with a correlation of {found.correlation:.2g})"
    )
    if not found.certain:
        guess = f"; perhaps {found.suspicion}" if found.suspicion else ""
        alike = f": {slope}{guess}" if found.correlation else ""
        yield Finding(
            False,
            "Whether energies and forces are in the same units and of the right sign cannot be "
            "told, as too few frames that have both, and the same atoms and cell, are alike"
            f"{alike}.",
        )
    elif found.suspicion:
        yield Finding(True, f"{slope[0].upper()}{slope[1:]}: {found.suspicion}.")


def _duplicates(dataset: Dataset, split: Split | None, near: float) -> Iterator[Finding]:
    chosen = [] if split is None else list(split.parts())
    parts = np.full(len(dataset), len(chosen))  # the last one is of frames in no part
    for number, (_, frames) in enumerate(chosen):
        parts[frames] = number
    copies, successive = AlikeFrames(parts, near), SuccessiveFrames(parts)
    for family in families(dataset):
        copies.add(family)
        if chosen:
            successive.add(family)
    within = Alike()
    for (low, high), alike in copies.pairs().items():
        if low == high or high == len(chosen):
            within = within.joined(alike)
            continue
        names = [chosen[part][0] for part in (low, high)]
        same = _same(alike, f" of {names[0]} and {names[1]}", near)
        text = f"{same}: errors on {names[1]} will look better than they are."
        yield Finding(True, text)
    if within.pairs:
        yield Finding(False, f"{_same(within, '', near)}.")
    for number, (name, _) in enumerate(chosen[1:], 1):
        held = successive.of_part(number)
        if held.leak:
            yield Finding(True, held.sentence(name))


def _same(alike: Alike, parts: str, near: float) -> str:
    pairs = (
        f"1 pair of frames{parts} is"
        if alike.pairs == 1
        else f"{alike.pairs} pairs of frames{parts} are"
    )
    return f"{pairs} the same within {near:g} A an atom ({alike.named()})"


def _counted(count: int) -> str:
    return f"{count} frame{'s' * (count != 1)}"
