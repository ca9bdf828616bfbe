"""Batches: structures of any size evaluated together, padded to a few shapes."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

from mdgraph.engine.calculation import Calculation, EvaluationResult
from mdgraph.errors import CapacityError, InputError
from mdgraph.evaluators import Evaluator
from mdgraph.fused.evaluator import FusedTensorNet
from mdgraph.gpu.graphs import GraphPool
from mdgraph.memory import Workload, available_memory, estimated_memory, fused_memory
from mdgraph.models import PotentialModule
from mdgraph.neighbors.geometry import Lattice
from mdgraph.precision import Precision
from mdgraph.state import BatchCapacity
from mdgraph.system import System

_APART: Final = 3.0
"""Distance between lone atoms, in cutoffs."""

_SMALLEST: Final = 16
"""Atoms of the first rung of largest systems; each further one has twice as many."""


@dataclass(frozen=True)
class BatchKey:
    """What structures of a batch have in common.

    Attributes:
        pbc: periodic directions.
        shell: images that a list looks at, each way around the nearest one.
    """

    pbc: tuple[bool, ...]
    shell: int


@dataclass(frozen=True)
class BatchShape:
    """What decides the shapes of buffers and the plan of the lists.

    Attributes:
        kind: of its structures.
        atoms, systems: of a batch, its filling included.
        room: for its systems.
    """

    kind: BatchKey
    atoms: int
    systems: int
    room: BatchCapacity

    def fits(self, systems: int, atoms: int) -> bool:
        """Whether filling makes so many structures with so many atoms a whole batch."""
        filling, left = self.systems - systems, self.atoms - atoms
        return 0 < filling <= left <= filling * self.room.largest


def kinds(systems: Sequence[System], cutoffs: Sequence[float]) -> dict[BatchKey, list[int]]:
    """Places of the structures of each kind, for lists of these cutoffs (A)."""
    if not systems:
        return {}
    cells = torch.from_numpy(np.stack([system.cell for system in systems]))
    pbc = torch.from_numpy(np.stack([system.pbc for system in systems]))
    reach = Lattice.of(cells, pbc, _longest(cutoffs)).reach.amax(-1)
    # The plan of a list has this margin, too.
    shells = (1.02 * reach + 0.5).floor().to(torch.int64).tolist()
    found: dict[BatchKey, list[int]] = {}
    for place, (directions, shell) in enumerate(zip(pbc.tolist(), shells, strict=True)):
        found.setdefault(BatchKey(tuple(directions), shell), []).append(place)
    return found


def common_shape(kind: BatchKey, systems: Sequence[System], atoms: int) -> BatchShape | None:
    """The shape of batches of these structures of one kind.

    Args:
        kind: theirs.
        systems: structures; those with more than half of the atoms do not count.
        atoms: of a batch.

    Returns:
        None where no second batch would use the buffers, or a batch is too small to be filled.
    """
    sizes = [len(system) for system in systems if 2 * len(system) <= atoms]
    if sum(sizes) <= atoms or atoms < _SMALLEST:
        return None
    elements = sorted(set(np.concatenate([one.numbers for one in systems]).tolist()))
    largest = _SMALLEST
    while largest < max(sizes):
        largest *= 2
    count = math.ceil(atoms * len(sizes) / sum(sizes)) + atoms // largest + 1
    return BatchShape(kind, atoms, min(count, atoms // 4), BatchCapacity(largest, tuple(elements)))


def packed(
    systems: Sequence[System], places: Sequence[int], atoms: int, shape: BatchShape | None = None
) -> Iterator[tuple[list[int], BatchShape | None]]:
    """Places in batches, with their shape; a structure too large for others is one of its own.

    Args:
        systems: structures.
        places: of those of one kind.
        atoms: of a batch.
        shape: that batches must fit; None makes them as large as they happen to be, of
            structures of like sizes, since lists are searched up to the largest of a batch.
    """
    if shape is None:
        places = sorted(places, key=lambda place: len(systems[place]))
    batch: list[int] = []
    held = 0
    for place in places:
        size = len(systems[place])
        if 2 * size > atoms:
            yield [place], None
            continue
        full = held + size > atoms
        if shape is not None:
            full = not shape.fits(len(batch) + 1, held + size)
        if batch and full:
            yield batch, shape
            batch, held = [], 0
        batch.append(place)
        held += size
    if batch:
        yield batch, shape


def filling(shape: BatchShape, systems: Sequence[System], cutoffs: Sequence[float]) -> list[System]:
    """Systems of lone atoms, of the first structure's element, that make a batch whole."""
    count, left = shape.systems - len(systems), shape.atoms - sum(map(len, systems))
    apart = _APART * (_longest(cutoffs) or 1.0)
    found = []
    for place in range(count):
        size = left // count + (place < left % count)
        positions = np.zeros((size, 3))
        positions[:, 0] = apart * np.arange(size)
        cell = np.diag([apart * size, apart, apart])
        numbers = np.full(size, systems[0].numbers[0])
        found.append(System(numbers, positions, cell=cell, pbc=np.array(shape.kind.pbc)))
    return found


def _longest(cutoffs: Sequence[float]) -> float:
    """A; of the cutoffs that are finite, or 0."""
    return max((cutoff for cutoff in cutoffs if math.isfinite(cutoff)), default=0.0)


ATOMS: Final = {"cpu": 512, "cuda": 4096}
"""Atoms of a batch: what keeps a device busy."""

_DENSITY: Final = 0.1
"""Atoms in 1 A^3, of a structure as dense as they come."""

_MOST_NEIGHBORS: Final = 1000


class Batches:
    """Evaluates structures in batches of one shape, whatever their sizes.

    Structures with the same periodic directions, and whose lists look at as many images, share
    batches. With graphs each kind has buffers for a fixed number of atoms and systems, which one
    structure after the other passes through; what is left of them is filled with systems of
    lone atoms, which nobody reads and which nothing interacts with. Structures of which there
    are too few for that, or which are too large, and all of them without graphs, make batches
    as large as they happen to be.

    Energies and forces are those of a Calculation of one structure but for the last bits, since
    the number of atoms decides how matrix products are summed. Within a shape they have the
    same bits whatever stands beside a structure.

    Attributes:
        graphs: the buffers, by shape; None without.
        batches: how many there were so far.
    """

    def __init__(
        self,
        evaluator: Evaluator,
        device: torch.device,
        precision: Precision,
        *,
        graphs: GraphPool[Calculation] | None = None,
        atoms: int | None = None,
    ) -> None:
        """Allocates nothing yet.

        Args:
            evaluator: what computes.
            device: where.
            precision: of the state.
            graphs: keeps, and captures into its memory; without it, CUDA gets one.
            atoms: in a batch; None chooses, by the memory that is left.
        """
        self._evaluator = evaluator
        self._device = device
        self._precision = precision
        self._atoms = affordable_atoms(evaluator, device, precision) if atoms is None else atoms
        if graphs is None and device.type == "cuda":
            graphs = GraphPool()
        self.graphs = graphs
        self.batches = 0
        self._kinds: set[BatchKey] = set()

    def evaluate(
        self, systems: Sequence[System], names: Sequence[str]
    ) -> Iterator[tuple[int, EvaluationResult]]:
        """Yields places among the systems and what was found there, in an order of its own.

        Args:
            systems: structures.
            names: of them, for errors.

        Raises:
            InputError, CapacityError: a structure that cannot be evaluated, by its name.
        """
        for kind, places in kinds(systems, self._evaluator.cutoffs).items():
            shape = None
            if self.graphs is not None:
                shape = common_shape(kind, [systems[place] for place in places], self._atoms)
            self._kinds.add(kind)
            for batch, same in packed(systems, places, self._atoms, shape):
                here = [systems[place] for place in batch]
                self.batches += 1
                results: Iterable[EvaluationResult]
                try:
                    results = self._computed(here, same)
                except (InputError, CapacityError):
                    # One of them cannot be: it says so itself.
                    results = self._alone(here, [names[place] for place in batch])
                yield from zip(batch, results, strict=True)

    @property
    def kinds(self) -> int:
        """How many kinds of structures there were so far."""
        return len(self._kinds)

    def summary(self, structures: int) -> str:
        """So many structures of so many kinds, for the log."""
        kinds = f"{self.kinds} kind{'s' if self.kinds != 1 else ''}"
        batches = f"{self.batches:,} batch{'es' if self.batches != 1 else ''}"
        text = f"{structures:,} structure{'s' if structures != 1 else ''} in {batches} of {kinds}"
        if self.graphs is None:
            return text
        return f"{text}, {self.graphs.memory.captures} graphs captured"

    def _computed(self, systems: list[System], shape: BatchShape | None) -> list[EvaluationResult]:
        if self.graphs is None or shape is None:
            return self._calculation(systems).computed().results(len(systems))
        filled = systems + filling(shape, systems, self._evaluator.cutoffs)
        known = shape in self.graphs
        calculation = self.graphs.get(shape, lambda: self._evaluated(filled, shape.room))
        if not known:
            return calculation.answer().results(len(systems))
        calculation.assign_(filled)
        answer = calculation.computed(graphed=True)
        calculation.check_coincident()
        return answer.results(len(systems))

    def _evaluated(self, systems: list[System], room: BatchCapacity) -> Calculation:
        # Evaluators allocate at the first evaluation, for which other shapes may have to go.
        calculation = self._calculation(systems, room)
        calculation.compute()
        return calculation

    def _calculation(self, systems: list[System], room: BatchCapacity | None = None) -> Calculation:
        return Calculation(
            systems,
            self._evaluator,
            device=self._device,
            precision=self._precision,
            skin=0.0,
            room=room,
            graphs=None if self.graphs is None else self.graphs.memory,
        )

    def _alone(self, systems: Sequence[System], names: Sequence[str]) -> Iterator[EvaluationResult]:
        for system, name in zip(systems, names, strict=True):
            try:
                yield self._calculation([system]).computed().results(1)[0]
            except (InputError, CapacityError) as error:
                raise type(error)(f"{name}: {error}") from error


def affordable_atoms(evaluator: Evaluator, device: torch.device, precision: Precision) -> int:
    """Atoms of a batch that keep a device busy and take a quarter of its memory at most."""
    potential = evaluator.potential
    if not isinstance(potential, PotentialModule):
        return ATOMS[device.type]
    volumes = [4.0 / 3.0 * math.pi * cutoff**3 for cutoff in potential.cutoffs]
    slots = [int(min(_DENSITY * volume, _MOST_NEIGHBORS)) for volume in volumes]
    work = Workload(potential, 1, slots, precision, device)
    if isinstance(evaluator, FusedTensorNet):
        an_atom = fused_memory(work)
    else:
        an_atom = estimated_memory(work)
    return min(ATOMS[device.type], available_memory(device) // (4 * an_atom))
