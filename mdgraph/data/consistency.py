"""Do energies and forces belong together? A finite difference between alike frames tells.

Along a short way from one frame to another of the same atoms, E2 - E1 is close to
-(F1 + F2) . (x2 - x1) / 2, exactly so where the energy is quadratic. The slope between the two
is 1 where units and signs are right, and a familiar number where they are not. What is not
quadratic grows with the cube of the way: it blurs the slope and makes it smaller.
"""

from collections import defaultdict
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mdgraph.data.dataset import Dataset
from mdgraph.data.units import ENERGY, LENGTH

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

_TOLD: Final = 0.5
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
    """What the finite differences gave.

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
        if self.pairs < _MIN_PAIRS or abs(self.correlation) < max(_TOLD, _ERRORS * self.error):
            return False
        near = _RIGHT_BLURRED[0] < self.slope < _RIGHT_BLURRED[1]
        return _sharp(self.correlation, self.error) or not near or not self.suspicion


def energy_force_consistency(dataset: Dataset) -> Consistency:
    """Compares the most alike frames of the same atoms in the same order."""
    kinds: dict[bytes, list[int]] = defaultdict(list)
    for index, frame in enumerate(dataset.frames()):
        assert frame.forces is not None
        if len(frame) > 1 and np.isfinite(frame.energy) and np.isfinite(frame.forces).all():
            cell = frame.cell.round(6).tobytes() if frame.pbc.any() else b""
            kinds[frame.numbers.tobytes() + frame.pbc.tobytes() + cell].append(index)
    found = [np.zeros((0, 5))]
    for members in kinds.values():
        step = max(1, len(members) // _FRAMES)
        found.append(_differences(dataset, members[::step][:_FRAMES]))
    ways = np.concatenate(found)
    ways = ways[(ways[:, 0] > 1e-4) & (ways[:, 0] < _LONGEST)]
    length, energy, work, first, last = ways[np.argsort(ways[:, 0])[:_PAIRS]].T
    if len(work) < 2 or not energy.any() or not work.any():
        return Consistency(np.nan, 0.0, 0.0, len(work))
    weight = 1.0 / (_FLOOR**2 + length**2)
    products = _products(weight * energy, weight * work)
    correlation, slope = (float(value) for value in _fit(products.sum(0)))
    error = _error(products, first, last)
    sharp = _sharp(correlation, error)
    suspicion = _suspicion(slope, sharp) if abs(correlation) > _TOLD else ""
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
