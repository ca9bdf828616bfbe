"""Do energies and forces belong together? A finite difference between alike frames tells.

Along a short way from one frame to another of the same atoms, E2 - E1 is close to
-(F1 + F2) . (x2 - x1) / 2, exactly so where the energy is quadratic. The slope between the two
is 1 where units and signs are right, and a familiar number where they are not.
"""

from collections import defaultdict
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mdgraph.data.dataset import Dataset
from mdgraph.data.units import ENERGY, LENGTH

_FRAMES: Final = 500
"""Of one kind that are looked at."""

_PAIRS: Final = 50
"""The shortest ways are taken; along longer ones the energy is not quadratic."""

_CERTAIN: Final = 0.9
"""Correlation above which the slope means something."""


@dataclass(frozen=True)
class Consistency:
    """What the finite differences gave.

    Attributes:
        slope: of energy differences over the work of the forces.
        correlation: between them; below 0.9 the slope means nothing.
        pairs: how many differences were taken.
        suspicion: what would explain a slope that is not 1, or empty.
    """

    slope: float
    correlation: float
    pairs: int
    suspicion: str = ""

    @property
    def certain(self) -> bool:
        """Whether the frames were alike enough to tell."""
        return self.pairs >= 5 and abs(self.correlation) > _CERTAIN


def energy_force_consistency(dataset: Dataset) -> Consistency:
    """Compares the most alike frames of the same atoms in the same order."""
    kinds: dict[bytes, list[int]] = defaultdict(list)
    for index, frame in enumerate(dataset.frames()):
        assert frame.forces is not None
        if len(frame) > 1 and np.isfinite(frame.energy) and np.isfinite(frame.forces).all():
            cell = frame.cell.round(6).tobytes() if frame.pbc.any() else b""
            kinds[frame.numbers.tobytes() + frame.pbc.tobytes() + cell].append(index)
    found = [np.zeros((0, 3))]
    for members in kinds.values():
        step = max(1, len(members) // _FRAMES)
        found.append(_differences(dataset, members[::step][:_FRAMES]))
    ways = np.concatenate(found)
    ways = ways[ways[:, 0] > 1e-4]
    _, energy, work = ways[np.argsort(ways[:, 0])[:_PAIRS]].T
    if len(work) < 2 or not energy.any() or not work.any():
        return Consistency(np.nan, 0.0, len(work))
    correlation = float((energy * work).sum() / np.sqrt((energy**2).sum() * (work**2).sum()))
    slope = float(np.sign(correlation) * np.sqrt((energy**2).sum() / (work**2).sum()))
    return Consistency(slope, correlation, len(work), _suspicion(slope))


def _differences(dataset: Dataset, members: list[int]) -> NDArray[np.float64]:
    """Of each pair the length of the way (A), the energy difference and the work (eV)."""
    frames = list(dataset.frames(members))
    positions = np.array([frame.positions for frame in frames])
    forces = np.array([frame.forces for frame in frames])
    energy = np.array([frame.energy for frame in frames])
    inverse = np.linalg.inv(frames[0].cell) if frames[0].pbc.all() else None
    ways = [np.zeros((0, 3))]
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
        ways.append(np.stack([length, energy[last] - energy[:last], work], axis=1))
    return np.concatenate(ways)


def _turns(moved: NDArray[np.float64], fixed: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rotations (M, 3, 3) that bring rows of (M, N, 3) nearest to (N, 3).

    Kabsch, DOI 10.1107/S0567739476001873.
    """
    left, _, right = np.linalg.svd(moved.transpose(0, 2, 1) @ fixed)
    left[..., -1] *= np.sign(np.linalg.det(left @ right))[:, None]
    return left @ right


def _suspicion(slope: float) -> str:
    if 0.8 < slope < 1.25:
        return ""
    if -1.25 < slope < -0.8:
        return "the forces have the wrong sign (are they gradients?)"
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
        return best
    return "energies and forces are not in the same units, or not of the same calculation"
