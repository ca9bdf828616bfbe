"""Batches: structures of any size evaluated together, padded to a few shapes."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

import numpy as np
import torch

from mdgraph.engine.calculation import Calculation, EvaluationResult, as_evaluator
from mdgraph.errors import CapacityError, InputError
from mdgraph.evaluators import AutogradEvaluator, Evaluator, SumEvaluator
from mdgraph.gpu.graphs import GraphPool
from mdgraph.memory import Workload, available_memory, estimated_memory, fused_memory
from mdgraph.models import PotentialModule, architecture_named
from mdgraph.neighbors.geometry import Lattice
from mdgraph.precision import Precision, precision_named
from mdgraph.state import BatchCapacity, PreparedSystems
from mdgraph.system import System, SystemArrays, are_among

_APART: Final = 3.0
"""Distance between padding atoms, in cutoffs."""

_SMALLEST: Final = 16
"""Smallest capacity for the largest system of a batch, atoms; others are this times 2^n."""


@dataclass(frozen=True)
class BatchKey:
    """Properties that the structures of a batch share.

    Attributes:
        pbc: periodic directions.
        shell: images on each side of the nearest one that a list searches.
    """

    pbc: tuple[bool, ...]
    shell: int


@dataclass(frozen=True)
class BatchShape:
    """Sizes of the buffers of a batch, which also decide how its lists search.

    Attributes:
        key: of its structures.
        atoms, systems: of a batch, padding included.
        room: capacity for its systems.
    """

    key: BatchKey
    atoms: int
    systems: int
    room: BatchCapacity

    def fits(self, systems: int, atoms: int) -> bool:
        """Whether padding can fill up a batch of this many structures and atoms."""
        padding, padding_atoms = self.systems - systems, self.atoms - atoms
        return 0 < padding <= padding_atoms <= padding * self.room.largest

    def holds(self, systems: SystemArrays) -> bool:
        """Whether batches of structures fit that are no more than twice as small as intended.

        Structures with more than half of the atoms do not count.
        """
        sizes = systems.sizes[2 * systems.sizes <= self.atoms]
        return bool(
            sizes.max(initial=0) <= self.room.largest
            and are_among(systems.numbers, self.room.elements)
            and self.atoms * len(sizes) <= 2 * self.systems * sizes.sum()
        )

    def enlarged(self, other: "BatchShape") -> "BatchShape":
        """A shape for the structures of both."""
        elements = sorted({*self.room.elements, *other.room.elements})
        largest = max(self.room.largest, other.room.largest)
        return replace(self, room=BatchCapacity(largest, tuple(elements)))


def by_key(systems: Sequence[System], cutoffs: Sequence[float]) -> dict[BatchKey, list[int]]:
    """Indices of the structures with each key, for lists of these cutoffs (A)."""
    if not systems:
        return {}
    arrays = SystemArrays.of(systems)
    cells, pbc = torch.tensor(arrays.cells), torch.tensor(arrays.pbc)
    reach = Lattice.of(cells, pbc, _longest(cutoffs)).reach.amax(-1)
    # The plan of a list has this margin, too.
    shells = (1.02 * reach + 0.5).floor().to(torch.int64).numpy()
    rows = np.column_stack([arrays.pbc, shells])
    kinds, firsts, kind = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    return {
        BatchKey(tuple(map(bool, kinds[number, :3])), int(kinds[number, 3])): np.flatnonzero(
            kind.ravel() == number
        ).tolist()
        for number in np.argsort(firsts)
    }


def common_shape(key: BatchKey, systems: SystemArrays, atoms: int) -> BatchShape | None:
    """The shape of batches of structures that share a key.

    Args:
        key: theirs.
        systems: structures; those with more than half of the atoms do not count.
        atoms: of a batch.

    Returns:
        None where no second batch would use the buffers, or a batch is too small to be filled.
    """
    sizes = [size for size in systems.sizes.tolist() if 2 * size <= atoms]
    if sum(sizes) <= atoms or atoms < _SMALLEST:
        return None
    elements = np.unique(systems.numbers).tolist()
    largest = _SMALLEST
    while largest < max(sizes):
        largest *= 2
    count = math.ceil(atoms * len(sizes) / sum(sizes)) + atoms // largest + 1
    return BatchShape(key, atoms, min(count, atoms // 4), BatchCapacity(largest, tuple(elements)))


def packed(
    systems: Sequence[System], places: Sequence[int], atoms: int, shape: BatchShape | None = None
) -> Iterator[tuple[list[int], BatchShape | None]]:
    """Yields batches of indices with their shape; a large structure makes its own batch.

    Args:
        systems: structures.
        places: indices of those that share a key.
        atoms: of a batch.
        shape: of the buffers; None makes batches of any shape, from structures of similar
            sizes, because the search of lists scales with the largest one of a batch.
    """
    sizes = SystemArrays.of(systems).sizes.tolist() if systems else []
    if shape is None:
        places = sorted(places, key=lambda place: sizes[place])
    batch: list[int] = []
    filled = 0
    for place in places:
        size = sizes[place]
        if 2 * size > atoms:
            yield [place], None
            continue
        full = filled + size > atoms
        if shape is not None:
            full = not shape.fits(len(batch) + 1, filled + size)
        if batch and full:
            yield batch, shape
            batch, filled = [], 0
        batch.append(place)
        filled += size
    if batch:
        yield batch, shape


def padding(shape: BatchShape, systems: SystemArrays, cutoffs: Sequence[float]) -> SystemArrays:
    """Non-interacting padding atoms, of the first structure's element, that fill up a batch."""
    count, atoms = shape.systems - len(systems), shape.atoms - len(systems.numbers)
    spacing = _APART * (_longest(cutoffs) or 1.0)
    return _spread_out(count, atoms, int(systems.numbers[0]), spacing, shape.key.pbc)


@lru_cache(maxsize=8)
def _spread_out(
    count: int, atoms: int, element: int, spacing: float, pbc: tuple[bool, ...]
) -> SystemArrays:
    """So many systems with so many atoms together, which are the same from batch to batch."""
    padding_systems = []
    for place in range(count):
        size = atoms // count + (place < atoms % count)
        positions = np.zeros((size, 3))
        positions[:, 0] = spacing * np.arange(size)
        cell = np.diag([spacing * size, spacing, spacing])
        numbers = np.full(size, element)
        padding_systems.append(System(numbers, positions, cell=cell, pbc=np.array(pbc)))
    return SystemArrays.of(padding_systems)


def _longest(cutoffs: Sequence[float]) -> float:
    """A; of the cutoffs that are finite, or 0."""
    return max((cutoff for cutoff in cutoffs if math.isfinite(cutoff)), default=0.0)


ATOMS: Final = {"cpu": 512, "cuda": 4096}
"""Atoms of a batch that keep a device busy."""

_DENSITY: Final = 0.1
"""Atoms in 1 A^3 of a dense structure."""

_MOST_NEIGHBORS: Final = 1000


@dataclass
class _Batch:
    """Structures that are evaluated together.

    Attributes:
        places: of them among all.
        systems: the structures.
        shape: of the buffers, or None.
        prepared: for these, once that is done.
    """

    places: list[int]
    systems: SystemArrays
    shape: BatchShape | None
    prepared: PreparedSystems | None = None


class Batches:
    """Evaluates structures of any size in batches of few shapes.

    Structures with the same `BatchKey` share batches. With graphs, each such group has buffers
    for a fixed number of atoms and systems; non-interacting padding atoms, ignored on output, fill
    the rest. Groups too small for that, structures too large for it, and all structures without
    graphs make batches of any shape.

    Energies and forces agree with a Calculation of one structure except for the last bits, because
    the number of atoms decides the order of sums in matrix products. Within a shape the bits do
    not depend on the other structures of the batch.

    Attributes:
        graphs: the buffers, by shape; None without graphs.
        batches: number of batches so far.
        device_seconds: s in which a GPU computed those that graphs evaluate, by its own clock.
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
            evaluator: of all batches.
            device: where they run.
            precision: of the state.
            graphs: pool of buffers and graphs; None makes one on CUDA.
            atoms: of a batch; None chooses by the free memory.
        """
        self._evaluator = evaluator
        self._device = device
        self._precision = precision
        self._atoms = affordable_atoms(evaluator, device, precision) if atoms is None else atoms
        if graphs is None and device.type == "cuda":
            graphs = GraphPool()
        self.graphs = graphs
        self.batches = 0
        self.device_seconds = 0.0
        self._events: list[torch.cuda.Event] = []
        self._keys: set[BatchKey] = set()
        self._shapes: dict[BatchKey, BatchShape] = {}

    def evaluate(
        self, systems: Sequence[System], names: Sequence[str]
    ) -> Iterator[tuple[int, EvaluationResult]]:
        """Yields indices of systems with their results, batch by batch, not in the order given.

        Args:
            systems: structures.
            names: of them, for errors.

        Raises:
            InputError, CapacityError: a structure that cannot be evaluated, by its name.
        """
        if not systems:
            return
        batches = self._batches(SystemArrays.of(systems))
        batch = next(batches, None)
        while batch is not None:
            following = next(batches, None)
            self.batches += 1
            results: Iterable[EvaluationResult]
            try:
                results = self._compute_batch(batch, following)
            except (InputError, CapacityError):
                # One by one, so that the error names the structure.
                results = self._alone(batch.systems, [names[place] for place in batch.places])
            yield from zip(batch.places, results, strict=True)
            batch = following

    def _batches(self, systems: SystemArrays) -> "Iterator[_Batch]":
        for key, places in by_key(systems, self._evaluator.cutoffs).items():
            shape = None
            if self.graphs is not None:
                shape = self._shape(key, systems.take(places))
            self._keys.add(key)
            for batch, batch_shape in packed(systems, places, self._atoms, shape):
                yield _Batch(batch, systems.take(batch), batch_shape)

    def _shape(self, key: BatchKey, systems: SystemArrays) -> BatchShape | None:
        """The shape of earlier structures with this key where these fit, so that graphs stay."""
        shape = self._shapes.get(key)
        if shape is not None and shape.holds(systems):
            return shape
        new = common_shape(key, systems, self._atoms)
        if new is None:
            return None
        if shape is not None:
            new = new.enlarged(shape)
        self._shapes[key] = new
        return new

    @property
    def kinds(self) -> int:
        """Number of groups of structures so far, which differ in periodic directions or images."""
        return len(self._keys)

    def summary(self, structures: int) -> str:
        """Numbers of structures, batches and kinds in words, for the log."""
        kinds = f"{self.kinds} kind{'s' if self.kinds != 1 else ''}"
        batches = f"{self.batches:,} batch{'es' if self.batches != 1 else ''}"
        text = f"{structures:,} structure{'s' if structures != 1 else ''} in {batches} of {kinds}"
        if self.graphs is None:
            return text
        return f"{text}, {self.graphs.memory.captures} graphs captured"

    def _compute_batch(self, batch: "_Batch", following: "_Batch | None") -> list[EvaluationResult]:
        """Evaluates a batch; the host prepares the following one while a GPU does that."""
        systems, shape = batch.systems, batch.shape
        if self.graphs is None or shape is None:
            return self._calculation(systems).computed().results(len(systems))
        cutoffs = self._evaluator.cutoffs
        rest = padding(shape, systems, cutoffs)
        reuse = shape in self.graphs
        calculation = self.graphs.get(
            shape, lambda: self._new_calculation(systems.followed_by(rest), shape.room)
        )
        if not reuse:
            return calculation.answer().results(len(systems))
        calculation.take_(batch.prepared or calculation.prepared(systems, rest))
        begin, end = self._timed()
        begin()

        def meanwhile() -> None:
            end()
            if following is None or following.shape != shape or following.prepared is not None:
                return
            with suppress(InputError):  # which is raised again in its turn
                more = padding(shape, following.systems, cutoffs)
                following.prepared = calculation.prepared(following.systems, more)

        outputs = calculation.computed(graphed=True, meanwhile=meanwhile)
        self._add_time()
        calculation.check_close(systems, outputs)
        return outputs.results(len(systems))

    def _timed(self) -> tuple[Callable[[], None], Callable[[], None]]:
        """What marks the begin and the end of a batch on a GPU."""
        if self._device.type != "cuda":
            return (lambda: None), (lambda: None)
        if not self._events:
            self._events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        begin, end = self._events
        return begin.record, end.record

    def _add_time(self) -> None:
        """Adds what a batch took that has ended."""
        if self._events:
            begin, end = self._events
            self.device_seconds += 1e-3 * begin.elapsed_time(end)

    def _new_calculation(self, systems: SystemArrays, room: BatchCapacity) -> Calculation:
        # Evaluators allocate in the first evaluation; the pool may drop other shapes for it.
        calculation = self._calculation(systems, room)
        calculation.compute()
        return calculation

    def _calculation(
        self, systems: Sequence[System], room: BatchCapacity | None = None
    ) -> Calculation:
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
    if not isinstance(evaluator.potential, PotentialModule):
        return ATOMS[device.type]
    an_atom = max(1, _memory_of_an_atom(evaluator, device, precision))
    return min(ATOMS[device.type], available_memory(device) // (4 * an_atom))


def _memory_of_an_atom(evaluator: Evaluator, device: torch.device, precision: Precision) -> int:
    """Bytes, within a batch."""
    if isinstance(evaluator, SumEvaluator):
        return sum(_memory_of_an_atom(term, device, precision) for term in evaluator.terms)
    potential = evaluator.potential
    assert isinstance(potential, PotentialModule)
    volumes = [4.0 / 3.0 * math.pi * cutoff**3 for cutoff in potential.cutoffs]
    slots = [int(min(_DENSITY * volume, _MOST_NEIGHBORS)) for volume in volumes]
    work = Workload(potential, 1, slots, precision, device)
    form = architecture_named(potential.config.architecture).fused
    fused = form is not None and not isinstance(evaluator, AutogradEvaluator)
    return fused_memory(work) if fused else estimated_memory(work)


Evaluate = Callable[[Sequence[System], str], list[EvaluationResult]]
"""Returns the results of structures in their order; errors call the structures by the name."""


def evaluate_with(potential: Any, device: torch.device, precision: str = "mixed") -> Evaluate:
    """A function that evaluates structures in batches.

    Args:
        potential: path, shipped name, potential or evaluator.
        device: of the evaluation.
        precision: see `mdgraph.precision`.
    """
    rounding = precision_named(precision)
    batches = Batches(as_evaluator(potential, rounding, device, "auto"), device, rounding)

    def results(systems: Sequence[System], name: str) -> list[EvaluationResult]:
        by_place = dict(batches.evaluate(systems, [name] * len(systems)))
        return [by_place[place] for place in range(len(systems))]

    return results
