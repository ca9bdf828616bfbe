"""Random structures on their way to minima, which lead into the holes of a potential.

A student knows what its teacher was run on. Relaxed from random structures it finds whatever lies
below, also where no dynamics went: pairs of atoms at half a bond in an open cell, or atoms that
leave a surface for nothing. Random crystals have whole formula units of the structures at hand,
clusters are the same without a cell. Where no structure is periodic, molecules are torn apart: all
atoms at random places, all displaced, one put beside another, or a hydrogen bonded to another atom,
which makes tautomers. Sides of molecules may be turned about several bonds at once, too.
The further potential that labels them, which is to know such structures, is brought to the level
of the teachers on the structure that lies lowest.
"""

import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from mdgraph.data import LabelledFrame
from mdgraph.data.random_structures import (
    moved_atom,
    random_cluster,
    random_crystal,
    scattered_molecule,
    tautomer,
)
from mdgraph.data.similarity import has_contact
from mdgraph.distil.config import SamplingConfig
from mdgraph.distil.sampling import (
    Labelling,
    Sample,
    labelled_frame,
    partly_relaxed,
    relaxed_for,
    turn_several,
    with_weight,
)
from mdgraph.engine.batches import evaluate_with
from mdgraph.evaluators import Evaluator
from mdgraph.system import System
from mdgraph.validate.crystals import HOLE

logger = logging.getLogger(__name__)

CRYSTALS: Final = "random"
CLUSTERS: Final = "clusters"
TORN: Final = "torn apart"
SCATTERED: Final = "scattered"
MOVED: Final = "atom elsewhere"
TAUTOMERS: Final = "tautomers"
TURNED: Final = "turned at once"
"""Groups of these frames in a data set: of crystals, and of molecules."""

_ATOMS: Final = 8
"""Most atoms of a structure, or one formula unit."""

_VOLUME: Final = (0.5, 2.5)
"""Range of the volume an atom over that of the crystal at rest, evenly in its logarithm."""

_CLOSEST: Final = 0.5
"""Of the sum of two covalent radii, nearer than most that a search begins with: holes lie where
atoms are nearer than bonds, behind walls that keep those out that come from afar."""

_CLUSTERS: Final = 1.0 / 3.0
"""Share of the structures that are clusters."""

_MOLECULES: Final = {TORN: 0.25, SCATTERED: 0.25, MOVED: 0.25, TAUTOMERS: 0.25}
"""Shares of the structures where none is periodic."""

_DRAWS: Final = {SCATTERED: scattered_molecule, MOVED: moved_atom, TAUTOMERS: tautomer}

_ROOM: Final = 3.0, 12.0
_NEAREST: Final = 0.4
"""A^3 an atom of a molecule whose atoms are at random places, and of the sum of two covalent radii:
molecules are looked into more closely than crystals."""

_AT_REST: Final = 64
"""Molecules that are brought to rest before they are turned, each of them more than once."""

_HELD_OUT: Final = 8
"""Each structure of so many is held out, with its whole way."""

_STAGES: Final = 0, 5, 20, 60, 300
"""Steps after which a structure on its way is taken."""

_DENSEST: Final = 0.6
"""Of the volume an atom at rest. In crystals that are denser broad potentials fall (see
docs/validation.md), and repulsion or `sampling.squeezed` is there for them."""

_HIGHEST: Final = 12.0
"""eV an atom above the crystal at rest; free atoms have up to 9."""

_KNOWN: Final = 0.1
"""eV an atom. Structures so little above the crystal at rest, of which the teachers say the same,
are crystals that they know better, and are left out."""

_KNOWN_MOLECULE: Final = 3.0, 0.3
"""eV, as above of a whole molecule: above rest, and apart from the teachers. A tautomer that they
have wrong lies an electronvolt or two from where it belongs."""


_DOUBT: Final = 0.3
"""eV an atom. Frames on which teachers and the potential that labels random structures differ by
more lie where nobody knows which is right, and contradict random structures near them."""


@dataclass(frozen=True, eq=False)
class Lowest:
    """The structure of a composition that lies lowest.

    Attributes:
        system: the structure.
        formula: atomic numbers of one formula unit of a crystal, or of a molecule.
        energy: eV an atom, of the potential that labels random structures.
        shift: eV an atom from there to the teachers.
    """

    system: System
    formula: NDArray[np.int64]
    energy: float
    shift: float

    @property
    def volume(self) -> float:
        """A^3 an atom of a crystal."""
        return self.system.volume / len(self.system)


def lowest_structures(
    starts: Sequence[System],
    teachers: Sequence[Evaluator],
    labels: Evaluator,
    device: torch.device,
) -> list[Lowest]:
    """The lowest structure of each composition, of crystals, or of molecules where there are none.

    Args:
        starts: structures; those that are periodic in some directions alone do not count.
        teachers: their mean decides.
        labels: labels random structures.
        device: where all this runs.
    """
    known = [system for system in starts if system.pbc.all()]
    known = known or [system for system in starts if not system.pbc.any()]
    if not known:
        return []
    sizes = np.array([len(system) for system in known])
    energies = np.mean([_energies(known, one, device) for one in teachers], axis=0) / sizes
    lowest: dict[tuple[int, ...], int] = {}
    for place, system in enumerate(known):
        periodic = bool(system.pbc.all())
        formula = _formula(system.numbers) if periodic else _composition(system)
        if energies[place] < energies[lowest.setdefault(formula, place)]:
            lowest[formula] = place
    places = list(lowest.values())
    others = _energies([known[place] for place in places], labels, device) / sizes[places]
    return [
        Lowest(known[place], np.array(formula), float(other), float(energies[place] - other))
        for (formula, place), other in zip(lowest.items(), others, strict=True)
    ]


@dataclass(frozen=True, eq=False)
class Round:
    """What makes and labels the random structures and turned molecules of a round.

    Attributes:
        driver: relaxes them.
        teachers: their mean is the level of the energies.
        labels: labels random structures, and tells where the teachers have turned ones wrong.
        config: of the sampling.
        device: where all this runs.
        seed: of starts, structures, bonds and angles.
    """

    driver: Evaluator
    teachers: Sequence[Evaluator]
    labels: Evaluator
    config: SamplingConfig
    device: torch.device
    seed: int

    def taught(self, systems: Sequence[System]) -> NDArray[np.float64]:
        """(S,) eV, mean of the teachers."""
        energies = [_energies(systems, teacher, self.device) for teacher in self.teachers]
        mean: NDArray[np.float64] = np.mean(energies, axis=0)
        return mean


def random_structures(lowest: Sequence[Lowest], this_round: Round) -> Labelling:
    """Random crystals and clusters, or molecules, some way and all the way to the driver's minima.

    Args:
        lowest: see `lowest_structures`; they say what a random one is made of.
        this_round: the round.
    """
    config = this_round.config
    if not config.random:
        return Labelling([], 0)
    if not lowest:
        logger.warning("No structure is periodic in all directions or none, so none is random.")
        return Labelling([], 0)
    count = math.ceil(config.random / len(_STAGES))
    clusters = math.ceil(_CLUSTERS * count)
    counts = {CLUSTERS: clusters, CRYSTALS: count - clusters}
    if not lowest[0].system.pbc.all():
        counts = {kind: math.ceil(share * count) for kind, share in _MOLECULES.items()}
    rng = np.random.default_rng([this_round.seed, len(CRYSTALS)])
    samples, origins = [], []
    for kind, number in counts.items():
        drawn = [_structure(lowest, rng, kind) for _ in range(number)]
        for place, system in _ways(
            [system for system, _ in drawn], this_round.driver, this_round.device
        ):
            samples.append(Sample(system, kind, place % _HELD_OUT == 0))
            origins.append(drawn[place][1])
    return _labelled(samples, origins, this_round)


def without_contradictions(
    labelling: Labelling,
    lowest: Sequence[Lowest],
    random_teacher: Evaluator | None,
    device: torch.device,
) -> Labelling:
    """Leaves out frames on which the potential that labels random structures differs by far.

    Args:
        labelling: by the teachers.
        lowest: see `lowest_structures`; frames of molecules stay.
        random_teacher: labels random structures; None leaves nothing out.
        device: where all this runs.
    """
    if random_teacher is None or not labelling.frames:
        return labelling
    crystals = [rest for rest in lowest if rest.system.pbc.all()]
    shifts = {tuple(rest.formula.tolist()): rest.shift for rest in crystals}
    frames = labelling.frames
    energies = _energies([frame.system() for frame in frames], random_teacher, device)
    kept = [
        place
        for place, (frame, energy) in enumerate(zip(frames, energies, strict=True))
        if (shift := shifts.get(_formula(frame.numbers))) is None
        or abs(frame.energy - energy - shift * len(frame)) <= _DOUBT * len(frame)
    ]
    return replace(
        labelling,
        frames=[frames[place] for place in kept],
        training=sum(place < labelling.training for place in kept),
        unlabelled=labelling.unlabelled + len(frames) - len(kept),
    )


def turned_molecules(starts: Sequence[System], this_round: Round) -> Labelling:
    """Molecules with sides turned about several bonds, of starts as they are and of those at rest.

    The label is the energy of the teachers, or the nearest to it that is within
    `config.turned_within` of `labels`, whose mean difference on what was turned is taken off, and
    the forces are the gradient of that.

    Args:
        starts: structures; those with a cell, or without two bonds to turn about, do not count.
        this_round: the round.
    """
    config, driver, device = this_round.config, this_round.driver, this_round.device
    if not config.turned:
        return Labelling([], 0)
    rng = np.random.default_rng([this_round.seed, len(TURNED)])
    able = [system for system in starts if turn_several(system, rng) is not None]
    if not able:
        logger.warning("No structure is a molecule with two bonds to turn about, so none is.")
        return Labelling([], 0)
    sources = [able[index] for index in rng.integers(len(able), size=config.turned)]
    at_rest = [s for _, s in relaxed_for(sources[:_AT_REST], driver, device, _STAGES[-1])]
    sources[1::2] = list(islice(cycle(at_rest or sources), len(sources) // 2))
    levels = _levels(sources, this_round)
    rigid: list[Sample] = []
    relaxing: list[Sample] = []
    for place, source in enumerate(sources):
        copy = turn_several(source, rng)
        if copy is not None:
            sample = Sample(copy.replace(velocities=None), TURNED, place % _HELD_OUT == 0)
            (relaxing if rng.uniform() < config.relaxed else rigid).append(sample)
    samples = [
        sample
        for sample in (*rigid, *partly_relaxed(relaxing, driver, device))
        if not has_contact(sample.system, config.shortest_distance)
    ]
    systems = [sample.system for sample in samples]
    by_teacher = [
        evaluate_with(one, device)(systems, "a turned molecule") for one in this_round.teachers
    ]
    others = evaluate_with(this_round.labels, device)(systems, "a turned molecule")
    training: list[LabelledFrame] = []
    held_out: list[LabelledFrame] = []
    for place, (sample, other) in enumerate(zip(samples, others, strict=True)):
        lowest, shift = levels[_composition(sample.system)]
        # What is not a number is not sound.
        sound = other.energy - lowest <= config.largest_energy * len(sample.system)
        if not (sound and np.abs(other.forces).max() <= config.largest_force):
            continue
        frame = labelled_frame(sample, [results[place] for results in by_teacher])
        middle = other.energy + shift
        # Not a number is far, too.
        if not abs(frame.energy - middle) <= config.turned_within:
            side = np.sign(np.nan_to_num(frame.energy - middle))
            energy = middle + float(side) * config.turned_within
            frame = replace(labelled_frame(sample, [other]), energy=energy)
        frames = held_out if sample.held_out else training
        frames.append(with_weight(frame, config.turned_weight))
    left = config.turned - len(training) - len(held_out)
    return Labelling(training + held_out, len(training), extreme=left)


def _levels(
    systems: Sequence[System], this_round: Round
) -> dict[tuple[int, ...], tuple[float, float]]:
    """Lowest energy by `labels` and the mean from there to the teachers, eV, by composition."""
    taught = this_round.taught(systems)
    others = _energies(systems, this_round.labels, this_round.device)
    places: dict[tuple[int, ...], list[int]] = {}
    for place, system in enumerate(systems):
        places.setdefault(_composition(system), []).append(place)
    return {
        composition: (float(others[rows].min()), float((taught[rows] - others[rows]).mean()))
        for composition, rows in places.items()
    }


def _composition(system: System) -> tuple[int, ...]:
    """Atomic numbers, ascending."""
    return tuple(sorted(system.numbers.tolist()))


def _formula(numbers: NDArray[np.int64]) -> tuple[int, ...]:
    """Atomic numbers of one formula unit, ascending."""
    elements, counts = np.unique(numbers, return_counts=True)
    return tuple(np.repeat(elements, counts // np.gcd.reduce(counts)).tolist())


def _energies(
    systems: Sequence[System], evaluator: Evaluator, device: torch.device
) -> NDArray[np.float64]:
    """(S,) eV."""
    results = evaluate_with(evaluator, device)(systems, "a structure")
    return np.array([result.energy for result in results])


def _structure(
    rests: Sequence[Lowest], rng: np.random.Generator, kind: str
) -> tuple[System, Lowest]:
    rest = rests[int(rng.integers(len(rests)))]
    if kind == TORN:
        room = float(rng.uniform(*_ROOM))
        return random_cluster(rest.system.numbers, room, rng, _NEAREST), rest
    if kind in _DRAWS:
        return _DRAWS[kind](rest.system, rng, _NEAREST), rest
    units = int(rng.integers(1, max(1, _ATOMS // len(rest.formula)) + 1))
    numbers = np.tile(rest.formula, units)
    volume = rest.volume * float(np.exp(rng.uniform(*np.log(_VOLUME))))
    draw = random_cluster if kind == CLUSTERS else random_crystal
    return draw(numbers, volume, rng, _CLOSEST), rest


def _ways(
    systems: Sequence[System], driver: Evaluator, device: torch.device
) -> Iterator[tuple[int, System]]:
    """Places of structures, and what becomes of them at each stage."""
    there = list(enumerate(systems))
    before = 0
    for steps in _STAGES:
        if steps:
            moved = relaxed_for([s for _, s in there], driver, device, steps - before, cell=True)
            there = [(there[place][0], system) for place, system in moved]
        before = steps
        yield from there


def _labelled(samples: Sequence[Sample], origins: Sequence[Lowest], this_round: Round) -> Labelling:
    """Labels what is neither too dense, too near, beyond the limits nor known to the teachers."""
    config = this_round.config
    kept = [
        place
        for place, sample in enumerate(samples)
        if not has_contact(sample.system, config.shortest_distance)
        and not (
            sample.system.pbc.all()
            and sample.system.volume < _DENSEST * origins[place].volume * len(sample.system)
        )
    ]
    systems = [samples[place].system for place in kept]
    results = evaluate_with(this_round.labels, this_round.device)(systems, "a random structure")
    taught = this_round.taught(systems)
    training: list[LabelledFrame] = []
    held_out: list[LabelledFrame] = []
    holes = 0
    for place, result, energy in zip(kept, results, taught, strict=True):
        sample, rest = samples[place], origins[place]
        above = result.energy / len(sample.system) - rest.energy
        holes += above < -HOLE
        by_teachers = energy / len(sample.system) - rest.energy - rest.shift
        near, alike = _KNOWN, _KNOWN
        if not rest.system.pbc.all():
            near, alike = (limit / len(sample.system) for limit in _KNOWN_MOLECULE)
        if above < near and abs(by_teachers - above) < alike:
            continue
        # What is not a number is not sound.
        if -HOLE <= above <= _HIGHEST and np.abs(result.forces).max() <= config.largest_force:
            frame = labelled_frame(sample, [result])
            shift = rest.shift + config.random_shift
            frame = replace(frame, energy=frame.energy + shift * len(frame))
            frames = held_out if sample.held_out else training
            frames.append(with_weight(frame, config.random_weight))
    if holes:
        logger.warning(
            "%d random structures lie more than %g eV an atom below the crystal at rest by the "
            "labels themselves, and are left out.",
            holes,
            HOLE,
        )
    left = len(samples) - len(training) - len(held_out)
    return Labelling(training + held_out, len(training), extreme=left)
