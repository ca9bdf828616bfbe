"""Batches: structures of any size, evaluated many at once."""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import torch

from mdgraph.engine.calculation import Calculation
from mdgraph.engine.filling import Kind, Shape, common_shape, filling, kinds, packed
from mdgraph.engine.results import Result
from mdgraph.errors import CapacityError, InputError
from mdgraph.evaluators import Evaluator
from mdgraph.fused.evaluator import FusedTensorNet
from mdgraph.graphs import GraphPool
from mdgraph.memory import Workload, available_memory, estimated_memory, fused_memory
from mdgraph.models import TensorNetPotential
from mdgraph.precision import Precision
from mdgraph.state import Room
from mdgraph.system import System

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
        self._kinds: set[Kind] = set()

    def evaluate(
        self, systems: Sequence[System], names: Sequence[str]
    ) -> Iterator[tuple[int, Result]]:
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
                results: Iterable[Result]
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

    def _computed(self, systems: list[System], shape: Shape | None) -> list[Result]:
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

    def _evaluated(self, systems: list[System], room: Room) -> Calculation:
        # Evaluators allocate at the first evaluation, for which other shapes may have to go.
        calculation = self._calculation(systems, room)
        calculation.compute()
        return calculation

    def _calculation(self, systems: list[System], room: Room | None = None) -> Calculation:
        return Calculation(
            systems,
            self._evaluator,
            device=self._device,
            precision=self._precision,
            skin=0.0,
            room=room,
            graphs=None if self.graphs is None else self.graphs.memory,
        )

    def _alone(self, systems: Sequence[System], names: Sequence[str]) -> Iterator[Result]:
        for system, name in zip(systems, names, strict=True):
            try:
                yield self._calculation([system]).computed().results(1)[0]
            except (InputError, CapacityError) as error:
                raise type(error)(f"{name}: {error}") from error


def affordable_atoms(evaluator: Evaluator, device: torch.device, precision: Precision) -> int:
    """Atoms of a batch that keep a device busy and take a quarter of its memory at most."""
    potential = getattr(evaluator, "potential", None)
    if not isinstance(potential, TensorNetPotential):
        return ATOMS[device.type]
    volumes = [4.0 / 3.0 * math.pi * cutoff**3 for cutoff in potential.cutoffs]
    slots = [int(min(_DENSITY * volume, _MOST_NEIGHBORS)) for volume in volumes]
    work = Workload(potential, 1, slots, precision, device)
    if isinstance(evaluator, FusedTensorNet):
        an_atom = fused_memory(work)
    else:
        an_atom = estimated_memory(work)
    return min(ATOMS[device.type], available_memory(device) // (4 * an_atom))
