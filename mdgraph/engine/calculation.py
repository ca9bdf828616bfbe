"""Calculation: a state with its lists and evaluator, brought up to date together."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from mdgraph.arguments import checked
from mdgraph.devices import device_named
from mdgraph.engine.coincidence import check_duplicates, check_pairs
from mdgraph.engine.lengths import check_lengths, check_lengths_of
from mdgraph.engine.placement import Array
from mdgraph.engine.potentials import as_evaluator, check_charge
from mdgraph.engine.restraints import PositionRestraints, Springs
from mdgraph.engine.results import Answer
from mdgraph.engine.updates import Updates
from mdgraph.errors import CapacityError, InputError
from mdgraph.graphs import GraphMemory
from mdgraph.models import check_species
from mdgraph.neighbors import NeighborList
from mdgraph.neighbors.list import hold_all
from mdgraph.neighbors.skins import checked_skin, default_skin
from mdgraph.precision import Precision, precision_named
from mdgraph.state import Room, State
from mdgraph.system import System, total_charge


class Calculation:
    """Energy, forces and virial of one or several systems at the positions of the moment.

    Attributes:
        state: the buffers.
        lists: one neighbor list for each range of the evaluator.
        evaluator: what computes.
        springs: restraints on the device, or None.
    """

    @checked
    def __init__(
        self,
        systems: Sequence[System],
        potential: Any,
        *,
        device: str | torch.device = "auto",
        precision: str | Precision = "mixed",
        skin: float | None = None,
        cell_varies: bool = True,
        seed: int = 0,
        evaluator: str = "auto",
        restraints: PositionRestraints | None = None,
        room: Room | None = None,
        graphs: GraphMemory | None = None,
    ) -> None:
        """Allocates and checks; nothing is evaluated yet. Reads the device.

        Args:
            systems: what to compute.
            potential: path, shipped name, Potential or Evaluator.
            device: `auto`, `cpu`, `cuda` or `cuda:N`.
            precision: `mixed`, `single`, `double` or `fast`; see `PRECISIONS`.
            skin: A; None chooses.
            cell_varies: whether cells change between updates.
            seed: key of random numbers; each system of the batch has its own.
            evaluator: `auto`, `fused` or `reference`.
            restraints: springs on atoms, added to what the evaluator writes.
            room: for systems that take the places of these.
            graphs: captures evaluations; None captures them in memory of its own.

        Raises:
            InputError: unknown species, a charge the potential cannot take, two atoms at
                the same place, lengths that are no A, a device that is not there.
        """
        self.precision = precision_named(precision)
        self.device = device_named(device)
        self.evaluator = as_evaluator(potential, self.precision, self.device, evaluator)
        systems = list(systems)
        if not systems or not all(isinstance(one, System) for one in systems):
            raise InputError("A calculation needs systems; give a list of at least one System.")
        self.check(systems)
        self.skin = checked_skin(default_skin(self.device) if skin is None else skin)
        self.state = State(systems, self.device, self.precision.state, seed, room)
        self.lists = [
            NeighborList(self.state, cutoff, self.skin, cell_varies=cell_varies)
            for cutoff in self.evaluator.cutoffs
        ]
        self.springs = None if restraints is None else Springs(restraints, self.state)
        self._updates = Updates(self.state, self.lists, graphs)
        self._updated = False
        self.check_coincident()

    def check(self, systems: list[System]) -> None:
        """Raises InputError for systems that cannot be computed; see above."""
        model = getattr(self.evaluator, "potential", None)
        for system in systems:
            check_species(getattr(model, "species", None), system.numbers.tolist())
            check_charge(self.evaluator, total_charge(system))
            check_duplicates(system)
            if self.evaluator.cutoffs:  # of what does not interact, anything may be
                check_lengths(system)

    def assign_(self, systems: list[System]) -> None:
        """Puts other systems into the same buffers; a captured graph stays good.

        Two atoms at one place are found by `check_coincident` after `compute`. Restraints
        stay those of the first systems. Reads the device.

        Raises:
            InputError: systems that the potential refuses, or without room; see `State`.
        """
        self.check(systems)
        self._updates.unplace()
        self.state.assign_(systems)
        for one in self.lists:
            one.renew_(self.state.positions, self.state.cell)

    def place(self, positions: Array, cell: Array | None = None, unit: float = 1.0) -> None:
        """Says where the atoms of one system are, for `compute` and `computed` from now on.

        Written on the host alone, from where each evaluation takes it.

        Args:
            positions: (N, 3).
            cell: (3, 3), or None to leave it.
            unit: of both, in A.

        Raises:
            RuntimeError: on CUDA, in a process that was forked too late.
        """
        self._updates.place(positions, cell, unit)

    def update_(self) -> None:
        """Lists, then energy, forces and virial; static shapes, does not sync on CUDA."""
        for one in self.lists:
            one.update_(self.state.positions, self.state.cell, joined=False)
        self.evaluator.evaluate_(self.state, self.lists)
        for one in self.lists:
            one.join()
        if self.springs is not None:
            self.springs.add_(self.state)

    def restrained(self) -> list[bool]:
        """Whether restraints hold a system in place; reads the device."""
        if self.springs is None:
            return [False] * self.state.grouping.systems
        return self.springs.restrained(self.state)

    def sticky(self) -> Tensor:
        """(lists, 3) int64: what `complete` looks at, on the device."""
        if not self.lists:
            return torch.zeros(0, 3, dtype=torch.int64, device=self.device)
        return torch.stack([one.sticky() for one in self.lists])

    def complete(self) -> bool:
        """Whether every pair found its slot since the last growth; reads the device once."""
        if len(self.lists) < 2:
            return all(one.status().complete for one in self.lists)
        return hold_all(self.lists, self.sticky().tolist())

    def grow(self) -> None:
        """Enlarges every list that overflowed. Buffers change: capture graphs again."""
        self._updates.forget()
        for one in self.lists:
            if not one.status().complete:
                one.grow()

    def set_skin(self, skin: float) -> None:
        """Gives every list another skin, A. Buffers change: capture graphs again.

        Raises:
            InputError: a skin that cannot be.
        """
        self.skin = checked_skin(skin)
        self._updates.forget()
        for one in self.lists:
            one.set_skin(skin)

    def plan_anew(self) -> None:
        """Makes lists that take cells to rest for those of the moment; reads the device.

        Buffers change: capture graphs again.
        """
        self._updates.forget()
        for one in self.lists:
            one.reference_positions.copy_(self.state.positions)
            one.reference_cell.copy_(self.state.cell)
            one.set_skin(self.skin)

    def compute(self, *, graphed: bool = False) -> None:
        """Updates, and grows and repeats until no list overflows. Reads the device.

        Args:
            graphed: replay all of it as one CUDA graph. The first evaluation after an
                allocation runs eagerly, so that a single energy pays for no capture; where
                a capture fails, all run eagerly.

        Raises:
            InputError: a list overflows because lengths are no A; see `check_lengths`.
            CapacityError: a list overflows however often it is grown.
        """
        self._repeat(graphed, self.complete)

    def computed(
        self, *, graphed: bool = False, meanwhile: Callable[[], None] = lambda: None
    ) -> Answer:
        """Does what `compute` does, and brings the results; reads the device once.

        Args:
            graphed: see `compute`.
            meanwhile: what the host does while the device evaluates.
        """
        answer = self._updates.bring()

        def wait() -> bool:
            meanwhile()
            return answer.wait()

        self._repeat(graphed, wait)
        return answer

    def answer(self) -> Answer:
        """What the state holds now, whoever evaluated it; reads the device once."""
        answer = self._updates.answer()
        answer.copy_()
        answer.wait()
        return answer

    def _repeat(self, graphed: bool, complete: Callable[[], bool]) -> None:
        for _ in range(8):
            self._updates.launch_(self.update_, graphed and self._updated)
            self._updated = complete()
            if self._updated:
                return
            check_lengths_of(self.state)
            self.grow()
        raise CapacityError(
            "The neighbor list could not be made large enough; "
            "check that the atoms are not on top of each other."
        )

    def check_coincident(self) -> None:
        """Raises InputError where two atoms, or an atom and an image, are at one place."""
        for one in self.lists[:1]:
            check_pairs(self.state, one)
