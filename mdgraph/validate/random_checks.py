"""Checks by random structure search: what a potential makes of crystals and molecules of any kind.

Squeezed and stretched lattices are orderly, and a scan of one coordinate leaves a molecule what it
is. Random crystals, clusters and molecules with atoms out of place are not, and relaxed they find
holes between all lattices and isomers, if there are any: a potential may have at ordinary distances
between wrong neighbors, or at distances that no atoms have, an energy far below any structure. One
that was trained on crystals alone may let atoms leave them for nothing, which free clusters and the
energy of cohesion show.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
from ase import Atoms
from numpy.typing import NDArray

from mdgraph.data.bonding import bond_lengths
from mdgraph.data.random_structures import (
    moved_atom,
    random_cluster,
    random_crystal,
    scattered_molecule,
    tautomer,
)
from mdgraph.data.similarity import short_pairs
from mdgraph.engine.relaxation import Relaxed
from mdgraph.errors import MDGraphError
from mdgraph.system import System
from mdgraph.units import COVALENT_RADII
from mdgraph.validate.crystals import DIP, HOLE, WALL, CrystalProbe, Phase
from mdgraph.validate.judge import JUDGE_NAME, Judge, Wall, far_from, farthest_of
from mdgraph.validate.labels import Judged, Labels, Rest, labels_text
from mdgraph.validate.verdicts import Check, Curves, Verdict

Array = NDArray[np.float64]
Draw = Callable[[np.random.Generator], System]
Relax = Callable[[Sequence[System], int, float], Sequence[Relaxed]]

CRYSTALS: Final = (600, 4)
"""Random crystals, and the most atoms of one. Holes are few: of silicon-pbe, as it shipped until
2026-11-27, some three in 600 that begin with two to four atoms, and fewer of larger ones."""

CLUSTERS: Final = (4, 8)
"""Clusters of each size from two atoms on, and the most atoms of one."""

MOLECULES: Final = (72, 12)
"""Molecules of each kind, and with `--quick`. Where a potential knows nothing, most of them end in
holes: of acac-pbe, as it shipped until 2026-11-27, all 60 with random places and 18 of 60 with one
atom moved."""

VOLUME: Final = (0.7, 1.6)
"""Volume an atom of crystals and clusters over that of the reference phase."""

ROOM: Final = (3.0, 12.0)
"""A^3 an atom of a molecule whose place is random."""

CLOSEST: Final = 0.3
"""Of the sum of two covalent radii: no atoms of a molecule are nearer when they are drawn."""

FORCE: Final = 0.05
STEPS: Final = (120, 60)
"""eV/A and steps of FIRE, of molecules fewer with `--quick`, after which a structure counts as it
is: what lies below the structure at rest is a hole, whether its bottom is reached or not."""

PART: Final = 60
MOLECULES_PART: Final = 36
"""Crystals or clusters, and molecules, that are relaxed at a time."""

TOUCHING: Final = 0.65
"""Of the sum of two covalent radii. No bond is so short (N2 and CO have 0.77 and 0.79), so an
energy of a molecule below rest is wrong there whatever a judge says."""

SURE: Final = 0.3
"""eV an atom of a molecule below rest that are wrong without a judge; so much explosives may have.
Less may be an isomer."""

_SEED: Final = 7
_MOLECULES_SEED: Final = 11


def random_crystal_checks(
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
    yield _crystal_check(f"random crystals of {symbol}", crystals, reference, probe, judge)
    each, most = CLUSTERS
    sizes = [1, *(n for n in range(2, most + 1) for _ in range(each))]
    clusters = [random_cluster([number] * n, volume * rng.uniform(*VOLUME), rng) for n in sizes]
    yield _crystal_check(f"clusters of {symbol}", clusters, reference, probe, judge)


def _crystal_check(
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
    return Check(name, verdict, sentence, numbers, _lowest_curves(sizes, energies, judged))


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


def _lowest_curves(sizes: NDArray[np.int64], energies: Array, judged: Array | None) -> Curves:
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
            yield from probe.relax(part, FORCE, STEPS[0], cell, partial=True)
        except MDGraphError:
            yield from [None] * len(part)
            return


def _nearest(system: System) -> float:
    """A between the nearest atoms; infinite where they are farther apart than any bond."""
    reach = 4.0 * float(COVALENT_RADII[system.numbers].max())
    distances = short_pairs(system, reach)[2]
    return float(distances.min(initial=np.inf))


def random_molecule_checks(
    title: str,
    system: System,
    rest: Rest,
    needed: Mapping[str, System],
    relax: Relax,
    judge: Judge | None,
    labels: Labels,
    hole: float,
    wall: Wall,
    quick: bool,
) -> Iterator[Check]:
    """Yields a check of molecules with one atom elsewhere and one of molecules torn apart; syncs.

    Args:
        title: formula of the molecule.
        system: at rest.
        rest: of the lowest structure known.
        needed: structures that labels must hold too, by name.
        relax: structures at rest, from these, so many steps and this force at most.
        judge: see `Judge`; None leaves to physics what it can judge.
        labels: judge before it.
        hole: eV below rest of a hole.
        wall: see `Wall`.
        quick: fewer structures and steps.
    """
    count = MOLECULES[quick]
    ways: dict[str, Sequence[Draw]] = {
        "atoms moved": [
            lambda rng: moved_atom(system, rng, CLOSEST),
            lambda rng: tautomer(system, rng, CLOSEST),
        ],
        "atoms scattered": [
            lambda rng: scattered_molecule(system, rng, CLOSEST),
            lambda rng: random_cluster(system.numbers, rng.uniform(*ROOM), rng, CLOSEST),
        ],
    }
    for name, draws in ways.items():
        rng = np.random.default_rng(_MOLECULES_SEED)
        starts = [draws[place % len(draws)](rng) for place in range(count)]
        starts = [start.replace(charge=system.charge) for start in starts]
        check = _molecule_check(
            f"{name} in {title}", starts, rest, relax, judge, labels, hole, wall, STEPS[quick]
        )
        yield replace(check, structures={**needed, **check.structures} if check.structures else {})


def _molecule_check(
    name: str,
    starts: Sequence[System],
    rest: Rest,
    relax: Relax,
    judge: Judge | None,
    labels: Labels,
    hole: float,
    wall: Wall,
    steps: int,
) -> Check:
    """Relaxes structures of one kind, and judges where they end."""
    ends: list[System] = []
    values: list[float] = []
    for first in range(0, len(starts), MOLECULES_PART):
        try:
            for one in relax(starts[first : first + MOLECULES_PART], steps, FORCE):
                ends.append(one.system)
                values.append(one.result.energy)
        except MDGraphError as error:
            return Check(name, Verdict.WRONG, f"Some cannot be relaxed: {error}")
    energies = np.array(values) - rest.energy
    if not np.isfinite(energies).all():
        return Check(name, Verdict.WRONG, "Energies are not finite where some of them end.")
    contacts = np.array([_contact(system) for system in ends])
    other = judge(ends) - rest.judge if judge is not None else np.full(len(ends), np.nan)
    by = Judged.of(energies, other, labels.errors(ends) - rest.error)
    judged = by.energy
    # Another isomer may lie as low, and so does the judge there, but for its error.
    below = (energies < -hole) & ~(judged < energies + wall[0])
    known = np.isfinite(judged) | (contacts < TOUCHING) | (energies < -SURE * len(starts[0]))
    sure = below & known
    far, apart = far_from(judged, energies, wall)
    far &= ~below
    lowest = int(energies.argmin())
    numbers = {
        "structures": len(ends),
        "holes": int(below.sum()),
        "lowest_eV": round(float(energies[lowest]), 3),
        "lowest_nearest_of_radii": round(float(contacts[lowest]), 3),
        "median_eV": round(float(np.median(energies)), 3),
    }
    curves = _ordered_curves(energies, by.judge)
    wanted = {
        f"{name}: structure {n}": ends[n] for n in np.flatnonzero((below | far) & ~by.labelled)
    }
    labelled = labels_text(energies, by)
    if below.any():
        lowest = int(np.where(sure if sure.any() else below, energies, np.inf).argmin())
    about = f"{-energies[lowest]:.2f} eV below rest"
    if below.any():
        other_about = f", where {by.name(lowest)} has it {judged[lowest]:.2f} eV above"
        about += other_about if math.isfinite(judged[lowest]) else ""
        count = int(sure.sum()) or int(below.sum())
        verdict = Verdict.WRONG if sure.any() else Verdict.LOOK
        text = f"{count} of {len(ends)} end in a hole, one {about}.{labelled}"
        return Check(name, verdict, text, numbers, curves, structures=wanted)
    if far.any():
        place, side = farthest_of(far, apart, energies, judged)
        text = (
            f"{far.sum()} of {len(ends)} end far from {by.name(place)}, one {apart[place]:.2f} eV "
            f"{side} it at {judged[place]:.2f} eV.{labelled}"
        )
        return Check(name, Verdict.LOOK, text, numbers, curves, structures=wanted)
    text = f"{len(ends)} end without a hole, "
    if energies[lowest] < -hole:
        text += f"one {about}, as {by.name(lowest)} has it but for {wall[0]:g} eV."
    else:
        text += f"the lowest {max(0.0, energies[lowest]):.2f} eV above rest."
    return Check(name, Verdict.OK, f"{text}{labelled}", numbers, curves)


def _contact(system: System) -> float:
    """The nearest two atoms, over the sum of their covalent radii."""
    apart = np.linalg.norm(system.positions[:, None] - system.positions, axis=2)
    shares = apart / bond_lengths(system.numbers)
    return float(shares[np.triu_indices(len(system), 1)].min())


def _ordered_curves(energies: Array, judged: Array) -> Curves:
    """Energies in ascending order."""
    order = energies.argsort()
    lines = {"potential": energies[order]}
    if np.isfinite(judged).any():
        lines[JUDGE_NAME] = judged[order]
    x = np.arange(1, len(order) + 1, dtype=np.float64)
    return Curves(x, lines, "structure", "energy above rest (eV)")
