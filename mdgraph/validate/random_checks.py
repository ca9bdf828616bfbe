"""Checks by random structure search: what a potential makes of crystals and clusters of any kind.

Squeezed and stretched lattices are orderly. Random ones are not, and relaxed with their cells they
find holes between all lattices, if there are any. A potential that was trained on crystals alone
may let atoms leave them for nothing, which free clusters and the energy of cohesion show.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from ase import Atoms
from numpy.typing import NDArray

from mdgraph.data.random_structures import random_cluster, random_crystal
from mdgraph.data.similarity import short_pairs
from mdgraph.engine.relaxation import Relaxed
from mdgraph.errors import MDGraphError
from mdgraph.system import System
from mdgraph.units import COVALENT_RADII
from mdgraph.validate.crystals import DIP, HOLE, WALL, CrystalProbe, Phase
from mdgraph.validate.judge import far_from, farthest_of
from mdgraph.validate.verdicts import Check, Curves, Verdict

Array = NDArray[np.float64]

CRYSTALS: Final = (600, 4)
"""Random crystals, and the most atoms of one. Holes are few: of silicon-pbe, as it shipped until
2026-11-27, some three in 600 that begin with two to four atoms, and fewer of larger ones."""

CLUSTERS: Final = (4, 8)
"""Clusters of each size from two atoms on, and the most atoms of one."""

VOLUME: Final = (0.7, 1.6)
"""Volume an atom over that of the reference phase."""

FORCE: Final = 0.05
STEPS: Final = 120
"""eV/A and steps after which a structure counts as it is: what lies below the crystal at rest is a
hole, whether its bottom is reached or not."""

PART: Final = 60
"""Structures that are relaxed at a time."""

_SEED: Final = 7


def random_checks(
    symbol: str,
    reference: Phase,
    probe: CrystalProbe,
    judge: tuple[CrystalProbe, float] | None = None,
) -> Iterator[Check]:
    """Yields the checks of random crystals and of clusters; syncs.

    Args:
        symbol: of the element.
        reference: the crystal whose energy is zero.
        probe: of the potential.
        judge: of another potential, and its energy of the reference phase, eV an atom.
    """
    number = int(Atoms(symbol).numbers[0])
    volume = reference.crystal.volume / len(reference.crystal)
    rng = np.random.default_rng(_SEED)
    count, most = CRYSTALS
    sizes = [2 + place % (most - 1) for place in range(count)]
    crystals = [random_crystal([number] * n, volume * rng.uniform(*VOLUME), rng) for n in sizes]
    yield _check(f"random crystals of {symbol}", crystals, reference, probe, judge)
    each, most = CLUSTERS
    sizes = [1, *(n for n in range(2, most + 1) for _ in range(each))]
    clusters = [random_cluster([number] * n, volume * rng.uniform(*VOLUME), rng) for n in sizes]
    yield _check(f"clusters of {symbol}", clusters, reference, probe, judge)


def _check(
    name: str,
    systems: Sequence[System],
    reference: Phase,
    probe: CrystalProbe,
    judge: tuple[CrystalProbe, float] | None,
) -> Check:
    """Relaxes structures of one kind, all periodic or none, and judges where they end."""
    periodic = bool(systems[0].pbc.all())
    relaxed = list(_relaxed(systems, probe, "full" if periodic else None))
    ended = [one for one in relaxed if one is not None and np.isfinite(one.result.energy)]
    lost = len(relaxed) - len(ended)
    if not ended:
        text = "Forces are not finite, or a cell collapses, among the first of them."
        return Check(name, Verdict.WRONG, text)
    sizes = np.array([len(one.system) for one in ended])
    energies = np.array([one.result.energy for one in ended]) / sizes - reference.energy
    distances = np.array([_nearest(one.system) for one in ended])
    judged = None
    if judge is not None:
        judged = judge[0].energies([one.system for one in ended]) - judge[1]
    lowest = int(energies.argmin())
    at_rest = sum(one.converged for one in ended)
    numbers = {
        "structures": len(systems),
        "at_rest": at_rest,
        "lowest_eV": round(float(energies[lowest]), 4),
        "lowest_has_atoms": int(sizes[lowest]),
        "lowest_nearest_A": round(float(distances[lowest]), 3),
        "nearest_A": round(float(distances.min()), 3),
    }
    faults = _faults(energies, sizes, distances, judged, reference.name)
    if lost:
        faults.append(
            f"one among {lost} ends with forces that are not finite or a cell that collapses, and "
            f"{len(systems) - len(relaxed)} were left out then"
        )
    least = max(0.0, float(energies[lowest]))
    sentence = (
        f"{len(systems)} of {sizes.min()} to {sizes.max()} atoms end {least:.2f} eV an atom above "
        f"{reference.name} and higher, no atoms nearer than {distances.min():.2f} A."
    )
    verdict = Verdict.OK
    if faults:
        verdict, text = Verdict.WRONG, "; ".join(faults)
        sentence = f"Of {len(systems)}, {text}."
    elif energies[lowest] < -DIP[0]:
        verdict = Verdict.LOOK
        sentence = (
            f"One of {sizes[lowest]} atoms, {distances[lowest]:.2f} A apart, lies "
            f"{-energies[lowest]:.3f} eV an atom below {reference.name}."
        )
    return Check(name, verdict, sentence, numbers, _curves(sizes, energies, judged))


def _faults(
    energies: Array,
    sizes: NDArray[np.int64],
    distances: Array,
    judged: Array | None,
    crystal: str,
) -> list[str]:
    """Holes, and where there is a judge what lies far from it, in words."""
    faults = []
    holes = energies < -HOLE
    if judged is not None:
        holes &= ~(judged < -HOLE)
        far, away = far_from(judged, energies, WALL)
        far &= ~holes
        if far.any():
            place, side = farthest_of(far, away, energies, judged)
            faults.append(
                f"{far.sum()} lie far from the judge, one of {sizes[place]} atoms "
                f"{away[place]:.2f} eV an atom {side} it"
            )
    if holes.any():
        place = int(np.argmin(np.where(holes, energies, np.inf)))
        faults.append(
            f"{holes.sum()} end in a hole, one of {sizes[place]} atoms, {distances[place]:.2f} A "
            f"apart, {-energies[place]:.2f} eV an atom below {crystal}"
        )
    return faults


def _curves(sizes: NDArray[np.int64], energies: Array, judged: Array | None) -> Curves:
    """The lowest energy of each size."""
    every = np.unique(sizes)
    lowest = [np.flatnonzero(sizes == n)[energies[sizes == n].argmin()] for n in every]
    lines = {"lowest": energies[lowest]} | ({} if judged is None else {"judge": judged[lowest]})
    return Curves(every.astype(np.float64), lines, "atoms", "energy (eV/atom)")


def _relaxed(
    systems: Sequence[System], probe: CrystalProbe, cell: str | None
) -> Iterator[Relaxed | None]:
    """Where structures end, in their order; None for those of the first part that ends in an error.

    Nothing is relaxed after it: one by one the others would take minutes, and change nothing.
    """
    for first in range(0, len(systems), PART):
        part = systems[first : first + PART]
        try:
            yield from probe.relax(part, FORCE, STEPS, cell, partial=True)
        except MDGraphError:
            yield from [None] * len(part)
            return


def _nearest(system: System) -> float:
    """A between the nearest atoms; infinite where they are farther apart than any bond."""
    reach = 4.0 * float(COVALENT_RADII[system.numbers].max())
    distances = short_pairs(system, reach)[2]
    return float(distances.min(initial=np.inf))
