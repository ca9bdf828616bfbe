"""Energies that cannot be of one calculation: other units, levels of theory, origins."""

from collections import defaultdict
from collections.abc import Iterator
from typing import Final

import numpy as np
from ase.formula import Formula
from numpy.typing import NDArray

from mdgraph.data.composition import compositions, fit_references
from mdgraph.data.dataset import Dataset
from mdgraph.data.units import ENERGY
from mdgraph.elements import SYMBOLS
from mdgraph.errors import name_some

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


def strange_energies(dataset: Dataset) -> Iterator[str]:
    """What energies say that neither composition nor configuration explains, in sentences."""
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
    found: list[Halves] = []
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
            found.append((np.sort(frames[:cut]), np.sort(frames[cut:])))
    return sorted(found, key=lambda halves: -min(map(len, halves)))


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
