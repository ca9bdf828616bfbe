"""Squeezed lattices: energies beyond the pressures that a teacher is believed at.

Few data hold crystals at hundreds of GPa, and potentials trained without them fall or pull there. A
crystal at rest is scanned by the teacher, and its pressure from rest to the believed end is fitted
by Vinet's equation of state (DOI 10.1103/PhysRevB.35.1945),

    P = 3 B (1 - x) / x^2 exp(eta (1 - x)),    x = (V / V0)^(1/3),

as a straight line ln(P x^2 / (1 - x)) over 1 - x. Below that end the curve goes on from the
teacher's own energy and pressure, so that both are continuous, and pressure rises all the way.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from mdgraph.data import LabelledFrame
from mdgraph.distil.config import SamplingConfig
from mdgraph.engine.batches import evaluate_with
from mdgraph.evaluators import Evaluator
from mdgraph.system import System

logger = logging.getLogger(__name__)

Array = NDArray[np.float64]

GROUP: Final = "squeezed"
"""Of these frames in a data set."""

_RESTING: Final = 0.05
"""eV/A; atoms of a lattice with smaller forces at all its scales are held by symmetry."""

_SCAN: Final = np.linspace(0.94, 1.06, 25)
"""Lattice constants over those of a structure, among which it must be at rest."""

_FITTED: Final = 13
"""Lattice constants from the believed end to just below rest that Vinet's curve is fitted to."""

_ALIKE: Final = 1e-3
"""eV an atom, and share of the volume, within which as many atoms at rest are the same lattice."""

_ETA: Final = (1.5, 6.0)
"""Limits of Vinet's exponent: B' from 2 to 5, the slope of the bulk modulus by pressure, which is
about 4 in most solids. A teacher's curve may bend much more and would then be driven too far."""


@dataclass(frozen=True, eq=False)
class Compression:
    """A lattice and what continues its energies.

    Attributes:
        crystal: at rest.
        believed: lattice constant over that at rest at which the teacher ends.
        energy: eV there.
        pressure: eV/A^3 there.
        eta: Vinet's exponent, 3/2 (B' - 1).
    """

    crystal: System
    believed: float
    energy: float
    pressure: float
    eta: float

    def pressures(self, x: Array) -> Array:
        """eV/A^3 at lattice constants over that at rest, of Vinet's form."""
        joint = self.believed
        scale = self.pressure * joint**2 / (1.0 - joint)
        return scale * (1.0 - x) / x**2 * np.exp(self.eta * (joint - x))

    def energies(self, x: Array) -> Array:
        """eV; the integral of the pressure from the believed end, by Gauss and Legendre."""
        nodes, weights = np.polynomial.legendre.leggauss(24)
        half = 0.5 * (self.believed - x)[:, None]
        places = x[:, None] + half * (1.0 + nodes)
        # dV = 3 V0 x^2 dx.
        work = (weights * half * self.pressures(places) * places**2).sum(1)
        return np.asarray(self.energy + 3.0 * self.crystal.volume * work)


def squeezed(
    starts: Sequence[System],
    teachers: Sequence[Evaluator],
    config: SamplingConfig,
    device: torch.device,
    seed: int,
) -> list[LabelledFrame]:
    """Lattices below the believed end, with energies and, as symmetry has them, no forces.

    Args:
        starts: structures; those periodic in all directions, near rest, whose atoms feel no forces
            there nor under pressure are squeezed, each lattice once.
        teachers: their mean is continued.
        config: of the sampling.
        device: where teachers run.
        seed: of the lattice constants.
    """
    if not config.squeezed:
        return []
    lattices = list(_compressions(starts, teachers, config, device))
    if not lattices:
        logger.warning("No structure is a lattice at rest that could be squeezed.")
        return []
    low, high = config.squeezed_to, config.believed_to
    rng = np.random.default_rng([seed, len(GROUP)])
    frames: list[LabelledFrame] = []
    for number, lattice in enumerate(lattices):
        count = config.squeezed // len(lattices) + (number < config.squeezed % len(lattices))
        # Evenly over the range, so that no gap is left to guess.
        scales = low + (high - low) * (np.arange(count) + rng.uniform(size=count)) / max(1, count)
        for scale, energy in zip(scales, lattice.energies(scales), strict=True):
            frame = _frame(lattice.crystal, float(scale), float(energy))
            frames.append(replace(frame, weight=config.squeezed_weight))
    logger.info("%d lattices are squeezed to %g of their lattice constants.", len(lattices), low)
    return frames


def _frame(crystal: System, scale: float, energy: float) -> LabelledFrame:
    return LabelledFrame(
        crystal.numbers,
        crystal.positions * scale,
        crystal.cell * scale,
        crystal.pbc,
        energy=energy,
        forces=np.zeros_like(crystal.positions),
        charge=crystal.charge or 0.0,
        group=GROUP,
    )


def _compressions(
    starts: Sequence[System],
    teachers: Sequence[Evaluator],
    config: SamplingConfig,
    device: torch.device,
) -> Iterator[Compression]:
    """Lattices among structures, each once, with what continues them."""
    known: list[tuple[bytes, float, float]] = []
    for system in _lattices(starts, teachers, device):
        energies, _, forces = _scanned(system, _SCAN, teachers, device)
        least = int(energies.argmin())
        if forces.max() > _RESTING or least in (0, len(_SCAN) - 1):
            continue
        rest = float(_SCAN[least] + _vertex(energies[least - 1 : least + 2], _SCAN))
        crystal = _scaled(system, rest)
        atoms, formula = len(system), np.sort(system.numbers).tobytes()
        energy, volume = float(energies[least]) / atoms, crystal.volume / atoms
        if any(
            formula == other and abs(energy - e) < _ALIKE and abs(volume / v - 1.0) < _ALIKE
            for other, e, v in known
        ):
            continue
        known.append((formula, energy, volume))
        compression = _compression(crystal, teachers, config.believed_to, device)
        if compression is not None:
            yield compression


def _compression(
    crystal: System, teachers: Sequence[Evaluator], believed: float, device: torch.device
) -> Compression | None:
    """Vinet's curve of a crystal at rest; None where the teacher does not stiffen to its end."""
    x = np.linspace(believed, 1.0 - 0.25 * (1.0 - believed), _FITTED)
    energies, pressures, forces = _scanned(crystal, x, teachers, device)
    if forces.max() > _RESTING:
        return None
    if (pressures <= 0.0).any() or (np.diff(pressures) >= 0.0).any():
        logger.info("A lattice softens before %g of its lattice constant.", believed)
        return None
    line = np.log(pressures * x**2 / (1.0 - x))
    eta = float(np.polynomial.Polynomial.fit(1.0 - x, line, 1).convert().coef[1])
    eta = min(max(eta, _ETA[0]), _ETA[1])
    return Compression(crystal, believed, float(energies[0]), float(pressures[0]), eta)


def _lattices(
    starts: Sequence[System], teachers: Sequence[Evaluator], device: torch.device
) -> list[System]:
    """Structures that are periodic in all directions and without forces."""
    periodic = [system.replace(velocities=None) for system in starts if system.pbc.all()]
    if not periodic:
        return []
    forces = _evaluated(periodic, teachers[:1], device)[2]
    return [system for system, force in zip(periodic, forces, strict=True) if force < _RESTING]


def _scanned(
    system: System, scales: Array, teachers: Sequence[Evaluator], device: torch.device
) -> tuple[Array, Array, Array]:
    return _evaluated([_scaled(system, float(scale)) for scale in scales], teachers, device)


def _evaluated(
    systems: Sequence[System], teachers: Sequence[Evaluator], device: torch.device
) -> tuple[Array, Array, Array]:
    """Energies in eV, pressures in eV/A^3 and largest forces in eV/A, (S,) means of teachers."""
    values = [
        [
            (
                result.energy,
                float(np.trace(result.virial)) / 3.0 / system.volume,
                float(np.abs(result.forces).max()),
            )
            for system, result in zip(
                systems, evaluate_with(teacher, device)(systems, "a lattice"), strict=True
            )
        ]
        for teacher in teachers
    ]
    energies, pressures, forces = np.mean(values, axis=0).T
    return energies, pressures, forces


def _scaled(system: System, scale: float) -> System:
    return system.replace(positions=system.positions * scale, cell=system.cell * scale)


def _vertex(energies: Array, scales: Array) -> float:
    """Where the parabola through three energies is least, from the middle one on."""
    left, middle, right = energies
    curvature = left - 2.0 * middle + right
    step = float(scales[1] - scales[0])
    return 0.5 * step * float(left - right) / float(curvature) if curvature > 0.0 else 0.0
