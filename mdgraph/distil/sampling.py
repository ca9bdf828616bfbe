"""Frames of a round: dynamics at several temperatures, moved copies, labels of the teachers."""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import tqdm

from mdgraph.data import LabelledFrame
from mdgraph.data.bonding import bond_lengths, bonded
from mdgraph.data.similarity import has_contact, pair_vectors
from mdgraph.distil.config import SamplingConfig
from mdgraph.engine import FIRE, LangevinMiddle, Simulation
from mdgraph.engine.batches import evaluate_with
from mdgraph.engine.calculation import EvaluationResult
from mdgraph.engine.relaxation import relax
from mdgraph.errors import MDGraphError
from mdgraph.evaluators import Evaluator
from mdgraph.models import Atoms, PotentialModule
from mdgraph.neighbors import NeighborList
from mdgraph.precision import full_float32, precision_named
from mdgraph.state import State
from mdgraph.system import System
from mdgraph.units import BOND_FACTOR

logger = logging.getLogger(__name__)

_NEAR: Final = 0.01
"""A; frames are near-copies if random displacements of this size would make as much of a
difference to the features of the last layer."""

_ATOMS: Final = 2000
"""Atoms whose features are computed at a time."""

_RELAXATION: Final = 5, 20, 60
"""Steps of FIRE, of a third of the relaxed frames each."""

_BATCH: Final = 64
"""Structures that are relaxed at a time."""

_WARMUP: Final = 5
"""Intervals of dynamics before the first frame."""
Array = NDArray[np.float64]
Move = Callable[[System, np.random.Generator, SamplingConfig], System | None]
"""A copy of a system with atoms moved; None where the move cannot be made."""

Bridge = tuple[int, int, NDArray[np.int64]]
"""A bond that is in no ring: an atom, the atom at its smaller end, that end's atoms."""

_CLOSEST = 0.7
"""Of the sum of two covalent radii; moves never bring atoms nearer than the shorter of this and
their distance before."""


_REACH = 3.5
"""A, to atoms that a hydrogen is drawn towards or must not meet."""

_DRAWN = 48
"""Atoms of a system to each of its hydrogens that are drawn."""

_DRAWS = 8
"""Of angles, after which a molecule whose turned sides always meet is given up."""


def displace(system: System, rng: np.random.Generator, config: SamplingConfig) -> System:
    """All atoms moved at random."""
    moves = rng.normal(scale=config.displacement, size=system.positions.shape)
    return system.replace(positions=system.positions + moves)


def strain(system: System, rng: np.random.Generator, config: SamplingConfig) -> System | None:
    """The cell changed at random, with the atoms in it."""
    if not system.pbc.all():
        return None
    size = config.strain
    stretch = np.eye(3) * (1.0 + rng.uniform(-size, size)) + np.diag(
        rng.uniform(-size / 3, size / 3, 3)
    )
    shear = rng.uniform(-size / 3, size / 3, (3, 3))
    deformation = stretch + 0.5 * (shear + shear.T) * (1.0 - np.eye(3))
    return system.replace(positions=system.positions @ deformation, cell=system.cell @ deformation)


def stretch(system: System, rng: np.random.Generator, config: SamplingConfig) -> System | None:
    """One bond of a molecule longer or shorter, with all that hangs on its smaller end."""
    bond = _random_bridge(system, rng)
    if bond is None:
        return None
    first, second, part = bond
    way = system.positions[second] - system.positions[first]
    positions = system.positions.copy()
    positions[part] += (rng.uniform(*config.stretch) - 1.0) * way
    return _kept_apart(system, positions)


def turn(system: System, rng: np.random.Generator, config: SamplingConfig) -> System | None:
    """A part of a molecule turned about the bond that holds it, by any angle."""
    bond = _random_bridge(system, rng, least=2)
    if bond is None:
        return None
    first, second, part = bond
    axis = system.positions[second] - system.positions[first]
    return _rotated(system, part, second, axis, rng.uniform(0.0, 2.0 * np.pi))


def bend(system: System, rng: np.random.Generator, config: SamplingConfig) -> System | None:
    """A part of a molecule swung about the atom that holds it, which changes its angles."""
    bond = _random_bridge(system, rng)
    if bond is None:
        return None
    first, second, part = bond
    axis = np.cross(system.positions[second] - system.positions[first], rng.normal(size=3))
    angle = np.radians(config.bend)
    return _rotated(system, part, first, axis, rng.uniform(-angle, angle))


def turn_several(system: System, rng: np.random.Generator) -> System | None:
    """Parts of a molecule turned about two or more bonds at once, by any angles.

    Half of the copies are turned about two bonds, a quarter about three, and so on. Nothing else
    changes. None where there are no two such bonds, or turned parts always meet.
    """
    bonds = list(_bridges(system, rng, least=2))
    if len(bonds) < 2:
        return None
    for _ in range(_DRAWS):
        positions = system.positions
        for place in rng.permutation(len(bonds))[: 1 + rng.geometric(0.5)]:
            first, second, part = bonds[place]
            axis = positions[second] - positions[first]
            positions = _rotation(positions, part, second, axis, rng.uniform(0.0, 2.0 * np.pi))
        copy = _kept_apart(system, positions)
        if copy is not None:
            return copy
    return None


def _rotated(
    system: System, part: NDArray[np.int64], centre: int, axis: Array, angle: float
) -> System | None:
    """Atoms of a part rotated about an axis through an atom; None if any come too near."""
    return _kept_apart(system, _rotation(system.positions, part, centre, axis, angle))


def _rotation(
    positions: Array, part: NDArray[np.int64], centre: int, axis: Array, angle: float
) -> Array:
    """Positions with a part rotated about an axis through an atom.

    Rodrigues' formula: a cos(angle) + (k x a) sin(angle) + k (k a) (1 - cos(angle)).
    """
    axis = axis / np.linalg.norm(axis)
    arms = positions[part] - positions[centre]
    along = (arms @ axis)[:, None] * axis
    rotated = along + np.cos(angle) * (arms - along) + np.sin(angle) * np.cross(axis, arms)
    places = positions.copy()
    places[part] = positions[centre] + rotated
    return places


def collide(system: System, rng: np.random.Generator, config: SamplingConfig) -> System | None:
    """Two atoms without a bond pushed towards each other, each by up to 0.5 A."""
    if len(system) < 3 or system.pbc.any():
        return None
    distance = np.linalg.norm(system.positions[:, None] - system.positions, axis=2)
    pairs = np.argwhere(
        np.triu((distance > 1.5) & (distance < 3.5) & ~bonded(system.numbers, system.positions), 1)
    )
    if not len(pairs):
        return None
    first, second = pairs[rng.integers(len(pairs))]
    way = system.positions[second] - system.positions[first]
    step = rng.uniform(0.1, 0.5) * way / np.linalg.norm(way)
    positions = system.positions.copy()
    positions[first] += step
    positions[second] -= step
    return _kept_apart(system, positions)


def meet(system: System, rng: np.random.Generator, config: SamplingConfig) -> System | None:
    """Two copies of a molecule, one of them turned, whose nearest atoms are 1.2 to 4 A apart."""
    if system.pbc.any() or system.charge:
        return None
    middle = system.positions.mean(axis=0)
    rotation, upper = np.linalg.qr(rng.normal(size=(3, 3)))
    rotation *= np.sign(np.diag(upper))
    rotation[:, 0] *= np.sign(np.linalg.det(rotation))
    other = (system.positions - middle) @ rotation.T + middle
    way = rng.normal(size=3)
    way /= np.linalg.norm(way)
    apart = rng.uniform(1.2, 4.0)
    near, far = 0.0, 2.0 * np.linalg.norm(system.positions - middle, axis=1).max() + apart
    for _ in range(40):
        distance = 0.5 * (near + far)
        gap = np.linalg.norm(system.positions[:, None] - (other + distance * way), axis=2).min()
        near, far = (distance, far) if gap < apart else (near, distance)
    numbers = np.concatenate([system.numbers, system.numbers])
    positions = np.concatenate([system.positions, other + far * way])
    between = np.linalg.norm(system.positions[:, None] - positions[len(system) :], axis=2)
    closest = _CLOSEST * bond_lengths(numbers)[: len(system), len(system) :]
    return System(numbers, positions) if (between >= closest).all() else None


def draw(system: System, rng: np.random.Generator, config: SamplingConfig) -> System | None:
    """Hydrogens nearer to the atoms that hold them or further away, in a cell or without one.

    Half of them along the bond, half towards the next heavy atom, as a proton would leave; one of
    `_DRAWN` atoms, none within reach of another.
    """
    first, second, distance, way = pair_vectors(system, _REACH)
    least = _CLOSEST * bond_lengths(system.numbers)
    positions, free = system.positions.copy(), system.numbers == 1
    most = max(1, len(system) // _DRAWN)
    drawn = 0
    for atom in rng.permutation(np.flatnonzero(free)):
        around = np.flatnonzero(first == atom)
        around = around[np.argsort(distance[around], kind="stable")]
        holding = around[system.numbers[second[around]] != 1]
        if drawn == most or not free[atom] or not len(holding):
            continue
        own, length = way[holding[0]], distance[holding[0]]
        if length > BOND_FACTOR * least[atom, second[holding[0]]] / _CLOSEST:
            continue
        other = way[holding[1]] if len(holding) > 1 and rng.uniform() < 0.5 else 0.0
        along = (other - own) / np.linalg.norm(other - own)
        change = own + rng.uniform(*config.stretch) * length * along
        after = np.linalg.norm(way[around] - change, axis=1)
        if (after < np.minimum(least[atom, second[around]], distance[around]) - 1e-9).any():
            continue
        positions[atom] += change
        free[second[around]] = free[atom] = False
        drawn += 1
    return system.replace(positions=positions) if drawn else None


MOVES: Final[dict[str, Move]] = {
    "displaced": displace,
    "stretched": stretch,
    "turned": turn,
    "bent": bend,
    "collided": collide,
    "strained": strain,
}
"""By the name that frames of each have in a data set."""


def move_atoms(
    system: System, rng: np.random.Generator, config: SamplingConfig
) -> tuple[System, str]:
    """A copy of a system with atoms moved in a random way, and the name of the way."""
    if rng.uniform() < config.pairs and (pair := meet(system, rng, config)) is not None:
        return pair, "met"
    for name in rng.permutation(list(MOVES)):
        copy = MOVES[name](system, rng, config)
        if copy is not None:
            return copy.replace(velocities=None), str(name)
    raise AssertionError("every structure can be displaced")


def _random_bridge(system: System, rng: np.random.Generator, least: int = 1) -> Bridge | None:
    """The first of `_bridges`, if there is one."""
    return next(_bridges(system, rng, least), None)


def _bridges(system: System, rng: np.random.Generator, least: int) -> Iterator[Bridge]:
    """Bonds that are in no ring, in random order.

    Args:
        system: without periodic directions; of others there is none.
        rng: shuffles.
        least: atoms of the smaller end.
    """
    if system.pbc.any():
        return
    bonds = bonded(system.numbers, system.positions)
    pairs = np.argwhere(np.triu(bonds))
    for number in rng.permutation(len(pairs)):
        first, second = (int(atom) for atom in pairs[number])
        part = _reachable(bonds, second, first)
        if part is None:
            continue
        other = _reachable(bonds, first, second)
        assert other is not None
        if len(other) < len(part):
            first, second, part = second, first, other
        if len(part) >= least:
            yield first, second, part


def _reachable(bonds: NDArray[np.bool_], start: int, cut: int) -> NDArray[np.int64] | None:
    """Atoms that bonds lead to from one end of the bond to `cut`; None if `cut` is among them."""
    visited = np.zeros(len(bonds), dtype=bool)
    visited[start] = True
    frontier = [start]
    while frontier:
        atom = frontier.pop()
        for neighbor in np.flatnonzero(bonds[atom] & ~visited):
            if atom == start and neighbor == cut:
                continue
            if neighbor == cut:
                return None
            visited[neighbor] = True
            frontier.append(int(neighbor))
    return np.flatnonzero(visited)


def _kept_apart(system: System, positions: Array) -> System | None:
    """The system at these positions, unless atoms come too near."""
    before = np.linalg.norm(system.positions[:, None] - system.positions, axis=2)
    after = np.linalg.norm(positions[:, None] - positions, axis=2)
    least = np.minimum(_CLOSEST * bond_lengths(system.numbers), before)
    np.fill_diagonal(least, 0.0)
    return system.replace(positions=positions) if (after >= least - 1e-9).all() else None


@dataclass(frozen=True, eq=False)
class Sample:
    """A structure that is to be labelled.

    Attributes:
        system: atoms and cell.
        kind: how it was made.
        held_out: whether its whole trajectory is held out.
    """

    system: System
    kind: str
    held_out: bool


def sampled(
    starts: Sequence[System],
    evaluator: Evaluator,
    config: SamplingConfig,
    device: torch.device,
    seed: int,
) -> list[Sample]:
    """Frames of dynamics and moved copies of them.

    Args:
        starts: structures, from which each trajectory takes one at random.
        evaluator: drives the dynamics.
        config: of the sampling.
        device: where they run.
        seed: of all random numbers.
    """
    rng = np.random.default_rng(seed)
    number = len(config.temperatures) * config.trajectories
    unmoved = 1.0 - config.moved - config.drawn
    dynamic = round(config.frames * unmoved)
    each = max(1, round(dynamic / number))
    samples: list[Sample] = []
    for place, temperature in enumerate(
        tqdm(config.temperatures, "dynamics", leave=False, disable=None)
    ):
        chosen = [starts[index] for index in rng.integers(len(starts), size=config.trajectories)]
        systems = [system.replace(velocities=None) for system in chosen]
        samples += _dynamics(
            systems, evaluator, config, temperature, each, device, seed * 1000 + place
        )
    copies = round(len(samples) * config.moved / unmoved)
    moved: list[Sample] = []
    relaxing: list[Sample] = []
    sources = rng.integers(len(samples), size=copies)
    for index in sources:
        copy, kind = move_atoms(samples[index].system, rng, config)
        if rng.uniform() < config.relaxed:
            relaxing.append(Sample(copy, "relaxed", samples[index].held_out))
        else:
            moved.append(Sample(copy, kind, samples[index].held_out))
    for index in rng.integers(len(samples), size=round(len(samples) * config.drawn / unmoved)):
        drawn = draw(samples[index].system, rng, config)
        if drawn is not None:
            moved.append(Sample(drawn.replace(velocities=None), "drawn", samples[index].held_out))
    return [*samples, *moved, *partly_relaxed(relaxing, evaluator, device)]


def partly_relaxed(
    samples: Sequence[Sample], evaluator: Evaluator, device: torch.device
) -> Iterator[Sample]:
    """Samples on their way to a minimum, some a few steps along it and others more."""
    for number, steps in enumerate(_RELAXATION):
        some = samples[number :: len(_RELAXATION)]
        systems = [sample.system for sample in some]
        for place, system in relaxed_for(systems, evaluator, device, steps):
            yield replace(some[place], system=system)


def relaxed_for(
    systems: Sequence[System],
    evaluator: Evaluator,
    device: torch.device,
    steps: int,
    cell: bool = False,
) -> Iterator[tuple[int, System]]:
    """Places of systems, and the systems after some steps of FIRE.

    Those of a batch in which forces are not finite, or a cell collapses, are left out.

    Args:
        systems: structures.
        evaluator: of the forces.
        device: where they relax.
        steps: at most.
        cell: whether cells of systems that are periodic in all directions relax too.
    """
    for first in range(0, len(systems), _BATCH):
        batch = systems[first : first + _BATCH]
        full = "full" if cell and all(system.pbc.all() for system in batch) else None
        try:
            for place, relaxed in relax(
                batch,
                [f"sample {first + number}" for number in range(len(batch))],
                evaluator,
                FIRE(1e-3, cell_dof=full),
                steps,
                device=device,
                precision=precision_named("mixed"),
                partial=True,
            ):
                yield first + place, relaxed.system
        except MDGraphError as error:
            logger.info("Moved frames cannot be relaxed: %s", error)


def _dynamics(
    systems: Sequence[System],
    evaluator: Evaluator,
    config: SamplingConfig,
    temperature: float,
    frames: int,
    device: torch.device,
    seed: int,
) -> Iterator[Sample]:
    """Frames of one trajectory for each system; the last trajectory is held out.

    Dynamics that end with an error leave the frames before it.
    """
    interval = max(1, round(config.interval / config.timestep))
    try:
        simulation = Simulation(
            systems,
            evaluator,
            LangevinMiddle(config.timestep, temperature, config.friction),
            device=device,
            seed=seed % 2**32,
            check=None,
        )
        simulation.run(_WARMUP * interval)
        for _ in range(frames):
            simulation.run(interval)
            places = simulation.state.places().double().cpu().split(simulation.state.grouping.sizes)
            cells = simulation.state.cell.double().cpu().numpy()
            for number, (system, positions) in enumerate(zip(systems, places, strict=True)):
                yield Sample(
                    system.replace(positions=positions.numpy(), cell=cells[number]),
                    f"{temperature:g} K",
                    number == len(systems) - 1,
                )
    except MDGraphError as error:
        logger.warning("Dynamics at %g K ended early: %s", temperature, error)


@dataclass(frozen=True)
class Labelling:
    """What became of the samples of a round.

    Attributes:
        frames: labelled, training frames first.
        training: how many of them are for training.
        unlabelled: samples on which the teachers disagree.
        extreme: samples with forces, energies or distances beyond the limits.
        copies: samples that are near-copies of others.
    """

    frames: list[LabelledFrame]
    training: int
    unlabelled: int = 0
    extreme: int = 0
    copies: int = 0

    @property
    def held_out(self) -> int:
        """How many frames are not for training."""
        return len(self.frames) - self.training

    def joined(self, other: "Labelling") -> "Labelling":
        """With the frames of another one."""
        training = self.frames[: self.training] + other.frames[: other.training]
        held_out = self.frames[self.training :] + other.frames[other.training :]
        return Labelling(
            training + held_out,
            len(training),
            self.unlabelled + other.unlabelled,
            self.extreme + other.extreme,
            self.copies + other.copies,
        )


def labelled(
    samples: Sequence[Sample],
    teachers: Sequence[Evaluator],
    features: PotentialModule | None,
    config: SamplingConfig,
    device: torch.device,
) -> Labelling:
    """Labels samples by the mean of the teachers.

    Args:
        samples: structures.
        teachers: evaluators.
        features: the potential whose last layer tells near-copies; None keeps them.
        config: of the sampling.
        device: where teachers run.
    """
    number, shortest = len(samples), config.shortest_distance
    samples = [sample for sample in samples if not has_contact(sample.system, shortest)]
    near = number - len(samples)
    kept = _distinct(samples, features, device)
    systems = [samples[index].system for index in kept]
    results = [evaluate_with(teacher, device)(systems, "a sample") for teacher in teachers]
    forces = np.array([[np.abs(result.forces).max() for result in own] for own in results])
    energies = np.array([[result.energy for result in own] for own in results])
    # What is not a number is not sound.
    sound = (forces <= config.largest_force).all(axis=0) & np.isfinite(energies).all(axis=0)
    agreed = sound & (energies.max(axis=0) - energies.min(axis=0) <= config.disagreement)
    # Where teachers disagree one may have a hole, above which all else would look extreme.
    lowest = _lowest(systems, energies[0], agreed)
    training: list[LabelledFrame] = []
    held_out: list[LabelledFrame] = []
    for place in np.flatnonzero(agreed).tolist():
        system, sample = systems[place], samples[kept[place]]
        above = (energies[0, place] - lowest[_composition(system)]) / len(system)
        if above <= config.largest_energy:
            frames = held_out if sample.held_out else training
            frames.append(labelled_frame(sample, [own[place] for own in results]))
    unlabelled = int(sound.sum() - agreed.sum())
    extreme = near + len(kept) - unlabelled - len(training) - len(held_out)
    return Labelling(
        training + held_out, len(training), unlabelled, extreme, len(samples) - len(kept)
    )


def _composition(system: System) -> bytes:
    return np.sort(system.numbers).tobytes()


def _lowest(
    systems: Sequence[System], energies: NDArray[np.float64], counts: NDArray[np.bool_]
) -> dict[bytes, float]:
    """Lowest energy (eV) of each composition, among the systems that count."""
    lowest: dict[bytes, float] = {}
    for place in np.flatnonzero(counts).tolist():
        key, energy = _composition(systems[place]), float(energies[place])
        lowest[key] = min(energy, lowest.get(key, energy))
    return lowest


def labelled_frame(sample: Sample, results: Sequence[EvaluationResult]) -> LabelledFrame:
    """A sample with the mean of some results."""
    system = sample.system
    virial = np.mean([result.virial for result in results], axis=0)
    return LabelledFrame(
        system.numbers,
        system.positions,
        system.cell,
        system.pbc,
        energy=float(np.mean([result.energy for result in results])),
        forces=np.mean([result.forces for result in results], axis=0),
        stress=-virial / system.volume if system.pbc.all() else None,
        charge=system.charge or 0.0,
        group=sample.kind,
    )


def _distinct(
    samples: Sequence[Sample], potential: PotentialModule | None, device: torch.device
) -> list[int]:
    """Samples without near-copies of earlier ones of the same composition."""
    if potential is None or not potential.has_latent or not samples:
        return list(range(len(samples)))
    systems = [sample.system for sample in samples]
    features = _features(systems, potential, device)
    rng = np.random.default_rng(0)
    few = systems[:: max(1, len(systems) // 20)]
    own = SamplingConfig(displacement=_NEAR)
    shaken = _features([displace(system, rng, own) for system in few], potential, device)
    steps = np.linalg.norm(shaken - features[:: max(1, len(systems) // 20)], axis=1)
    nearest = float(np.median(steps))
    compositions: dict[bytes, list[int]] = {}
    kept: list[int] = []
    for index, system in enumerate(systems):
        before = compositions.setdefault(_composition(system), [])
        away = np.linalg.norm(features[before] - features[index], axis=1)
        if not len(away) or float(away.min()) > nearest:
            before.append(index)
            kept.append(index)
    return kept


def _features(
    systems: Sequence[System], potential: PotentialModule, device: torch.device
) -> NDArray[np.float64]:
    """Mean over atoms, by element, of what the last layer sees of each structure (M, E H)."""
    model = potential.at_precision(torch.float32).to(device)
    species = torch.tensor(sorted(potential.species), device=device)
    rows: list[torch.Tensor] = []
    start = 0
    while start < len(systems):
        stop, atoms = start + 1, len(systems[start])
        while (
            stop < len(systems)
            and atoms + len(systems[stop]) <= _ATOMS
            and np.array_equal(systems[stop].pbc, systems[start].pbc)
        ):
            atoms += len(systems[stop])
            stop += 1
        state = State(systems[start:stop], device)
        group = state.grouping
        batch = Atoms(state.numbers, state.elements, state.kinds, state.charge, group)
        with torch.no_grad(), full_float32():
            pairs = tuple(
                NeighborList(state, cutoff, cell_varies=False).pairs(state.positions, state.cell)
                for cutoff in model.cutoffs
            )
            latent = model.latent(batch, pairs).double()
        element = torch.nn.functional.one_hot(
            torch.searchsorted(species, state.numbers), len(species)
        ).double()
        by_element = torch.einsum("ne,nh->neh", element, latent).flatten(1)
        rows.append((group.sum(by_element) / group.counts[:, None]).cpu())
        start = stop
    features: NDArray[np.float64] = torch.cat(rows).numpy()
    return features


def with_weight(frame: LabelledFrame, weight: float) -> LabelledFrame:
    """A frame that counts so many times as much in the loss."""
    return replace(frame, weight=weight * frame.weight)
