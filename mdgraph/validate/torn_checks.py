"""Molecules with atoms out of place, relaxed: what scans of one coordinate do not find.

A scan leaves a molecule what it is. A search for isomers, a collision or hot dynamics does not, and
a potential may have at ordinary distances between wrong neighbors, or at distances that no atoms
have, an energy far below any molecule. Relaxed from there it says so itself.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mdgraph.data.bonding import bond_lengths
from mdgraph.data.random_structures import (
    moved_atom,
    random_cluster,
    scattered_molecule,
    tautomer,
)
from mdgraph.engine.relaxation import Relaxed
from mdgraph.errors import MDGraphError
from mdgraph.system import System
from mdgraph.validate.judge import JUDGE_NAME, Judge, Wall, far_from, farthest_of
from mdgraph.validate.verdicts import Check, Curves, Verdict

Array = NDArray[np.float64]
Draw = Callable[[np.random.Generator], System]
Relax = Callable[[Sequence[System], int, float], Sequence[Relaxed]]

CLOSEST: Final = 0.3
"""Of the sum of two covalent radii: no atoms are nearer when they are drawn."""

ROOM: Final = (3.0, 12.0)
"""A^3 an atom whose place is random."""

STRUCTURES: Final = (72, 12)
"""Structures of each kind, and with `--quick`. Where a potential knows nothing, most of them end in
holes: of acac-pbe, as it shipped until 2026-11-27, all 60 with random places and 18 of 60 with one
atom moved."""

STEPS: Final = (120, 60)
FORCE: Final = 0.05
"""Steps of FIRE, and with `--quick`, and eV/A, after which a structure counts as it is: what lies
below the molecule at rest is a hole, whether its bottom is reached or not."""

PART: Final = 36
"""Structures that are relaxed at a time."""

TOUCHING: Final = 0.65
"""Of the sum of two covalent radii. No bond is so short (N2 and CO have 0.77 and 0.79), so an
energy below rest is wrong there whatever a judge says."""

SURE: Final = 0.3
"""eV an atom below rest that are wrong without a judge; so much explosives may have. Less may be an
isomer."""

_SEED: Final = 11


def torn_checks(
    title: str,
    system: System,
    rest: tuple[float, float],
    relax: Relax,
    judge: Judge | None,
    hole: float,
    wall: Wall,
    quick: bool,
) -> Iterator[Check]:
    """Yields a check of molecules with one atom elsewhere and one of molecules torn apart; syncs.

    Args:
        title: formula of the molecule.
        system: at rest.
        rest: eV, of the lowest structure known, by the potential and by the judge.
        relax: structures at rest, from these, so many steps and this force at most.
        judge: see `Judge`; None leaves to physics what it can judge.
        hole: eV below rest of a hole.
        wall: see `Wall`.
        quick: fewer structures and steps.
    """
    count = STRUCTURES[quick]
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
        rng = np.random.default_rng(_SEED)
        starts = [draws[place % len(draws)](rng) for place in range(count)]
        starts = [start.replace(charge=system.charge) for start in starts]
        yield _check(f"{name} in {title}", starts, rest, relax, judge, hole, wall, STEPS[quick])


def _check(
    name: str,
    starts: Sequence[System],
    rest: tuple[float, float],
    relax: Relax,
    judge: Judge | None,
    hole: float,
    wall: Wall,
    steps: int,
) -> Check:
    """Relaxes structures of one kind, and judges where they end."""
    ends: list[System] = []
    values: list[float] = []
    for first in range(0, len(starts), PART):
        try:
            for one in relax(starts[first : first + PART], steps, FORCE):
                ends.append(one.system)
                values.append(one.result.energy)
        except MDGraphError as error:
            return Check(name, Verdict.WRONG, f"Some cannot be relaxed: {error}")
    energies = np.array(values) - rest[0]
    if not np.isfinite(energies).all():
        return Check(name, Verdict.WRONG, "Energies are not finite where some of them end.")
    contacts = np.array([_contact(system) for system in ends])
    judged = judge(ends) - rest[1] if judge is not None else np.full(len(ends), np.nan)
    # Another isomer may lie as low, and so does the judge there, but for its error.
    below = (energies < -hole) & ~(judged < energies + wall[0])
    sure = (
        below
        if judge is not None
        else below & ((contacts < TOUCHING) | (energies < -SURE * len(starts[0])))
    )
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
    curves = _curves(energies, judged)
    about = f"{-energies[lowest]:.2f} eV below rest"
    if below.any():
        by = f", where {JUDGE_NAME} has it {judged[lowest]:.2f} eV above"
        about += by if math.isfinite(judged[lowest]) else ""
        count = int(sure.sum()) or int(below.sum())
        text = f"{count} of {len(ends)} end in a hole, one {about}."
        return Check(name, Verdict.WRONG if sure.any() else Verdict.LOOK, text, numbers, curves)
    if far.any():
        place, side = farthest_of(far, apart, energies, judged)
        text = (
            f"{far.sum()} of {len(ends)} end far from {JUDGE_NAME}, one {apart[place]:.2f} eV "
            f"{side} it at {judged[place]:.2f} eV."
        )
        return Check(name, Verdict.LOOK, text, numbers, curves)
    text = f"{len(ends)} end without a hole, "
    if energies[lowest] < -hole:
        text += f"one {about}, as {JUDGE_NAME} has it but for {wall[0]:g} eV."
    else:
        text += f"the lowest {max(0.0, energies[lowest]):.2f} eV above rest."
    return Check(name, Verdict.OK, text, numbers, curves)


def _contact(system: System) -> float:
    """The nearest two atoms, over the sum of their covalent radii."""
    apart = np.linalg.norm(system.positions[:, None] - system.positions, axis=2)
    shares = apart / bond_lengths(system.numbers)
    return float(shares[np.triu_indices(len(system), 1)].min())


def _curves(energies: Array, judged: Array) -> Curves:
    """Energies in ascending order."""
    order = energies.argsort()
    lines = {"potential": energies[order]}
    if np.isfinite(judged).any():
        lines[JUDGE_NAME] = judged[order]
    x = np.arange(1, len(order) + 1, dtype=np.float64)
    return Curves(x, lines, "structure", "energy above rest (eV)")
