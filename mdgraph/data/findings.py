"""What is wrong with a data set, in sentences."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from ase.data import covalent_radii
from tqdm import tqdm

from mdgraph.data.consistency import energy_force_consistency
from mdgraph.data.dataset import Dataset
from mdgraph.data.duplicates import Alike, AlikeFrames
from mdgraph.data.families import families
from mdgraph.data.likeness import short_pairs
from mdgraph.data.origins import strange_energies
from mdgraph.data.splits import Split
from mdgraph.data.succession import SuccessiveFrames
from mdgraph.data.units import Units
from mdgraph.elements import SYMBOLS
from mdgraph.errors import name_some

_TOO_CLOSE: Final = 0.55
"""Of the sum of two covalent radii; the shortest bonds have 0.75."""

_OUTLYING_FORCE: Final = 5.0
"""Largest force of a frame over the 90th percentile of all frames' largest."""

_LARGE_FORCE: Final = 10.0
"""eV/A, root mean square component; molecules and solids at 300 to 1000 K have 0.3 to 2."""

_FORCE_UNITS: Final = ("kcal/mol/A", "kJ/mol/A", "kJ/mol/nm", "meV/A")


@dataclass(frozen=True)
class Finding:
    """One sentence.

    Attributes:
        wrong: whether training on the data as they are would be a mistake.
        text: what was found, in which frames.
    """

    wrong: bool
    text: str


def check_dataset(
    dataset: Dataset, split: Split | None = None, near: float = 0.01
) -> list[Finding]:
    """Everything that was found; an empty list is good news.

    Args:
        dataset: the data.
        split: where given, likeness between its parts is leakage.
        near: A; frames count as the same where random displacements of this size an atom
            would make as much of a difference.
    """
    checks = (
        _labels(dataset),
        _forces(dataset),
        _distances(dataset),
        (Finding(True, text) for text in strange_energies(dataset)),
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
