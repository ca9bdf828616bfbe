"""Buffers: calculations that one Atoms after the other passes through."""

import logging
import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import torch
from ase import Atoms

from mdgraph.drivers.ase.seen import INFO
from mdgraph.engine import Calculation
from mdgraph.engine.potentials import uses_charge
from mdgraph.engine.results import Answer
from mdgraph.errors import InputError
from mdgraph.evaluators import Evaluator
from mdgraph.graphs import GraphPool
from mdgraph.io.atoms import from_ase
from mdgraph.precision import Precision
from mdgraph.system import System, total_charge

logger = logging.getLogger(__name__)

ATOMS: Final = 4096
"""Atoms of all structures that are kept, unless one alone has more: as many as a batch of
structures has on CUDA, for which a device has memory as a rule."""


class Buffers:
    """Holds atoms on the device, in lists and buffers that last while atoms and cell move.

    Those of several structures are kept, told apart by species in their order, pbc and charge;
    the least recently used go. Copies begin without any: two cannot share them, and a captured
    graph cannot be copied.

    Attributes:
        evaluator, device, precision: see Calculation.
        charge: total charge, e; overrides what systems carry, unless it is None.
    """

    def __init__(
        self, evaluator: Evaluator, device: torch.device, precision: Precision, charge: float | None
    ) -> None:
        self.evaluator = evaluator
        self.device = device
        self.precision = precision
        self.charge = charge
        self._known: tuple[bytes | str, ...] | None = None
        self._volume = 0.0
        self._said_neutral = False
        self._returned = False  # whether the one in use was, and has not been looked at since
        self._empty()

    def __getstate__(self) -> dict[str, Any]:
        left = ("_made", "_kept")
        return {name: value for name, value in self.__dict__.items() if name not in left}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._empty()

    def _empty(self) -> None:
        self._made: Calculation | None = None  # the one in use
        self._kept: GraphPool[Calculation] = GraphPool(room=ATOMS)

    def holding(self, atoms: Atoms) -> tuple[Calculation, float]:
        """A calculation at these atoms, not yet evaluated, and the volume of their cell, A^3.

        Raises:
            InputError: atoms that the potential or `System` refuses.
        """
        cell = None
        info = [repr(atoms.info.get(name)) for name in INFO]
        known = (atoms.numbers.tobytes(), atoms.pbc.tobytes(), atoms.cell.array.tobytes(), *info)
        made = self._made
        # Most calls move atoms and nothing else, which then need no other check.
        if made is None or known != self._known or not np.isfinite(atoms.positions).all():
            self._known = None
            system = from_ase(atoms)
            # A calculation that was out of use has a cell of then.
            made, cell = self._for(system), system.cell
            self._volume = system.volume
        made.place(atoms.positions, cell)
        self._known = known
        return made, self._volume

    def evaluated(
        self, atoms: Atoms, meanwhile: Callable[[], None]
    ) -> tuple[Calculation, Answer, float]:
        """What `holding` gives, and what comes of it; others make room where memory is short.

        Args:
            atoms: to evaluate.
            meanwhile: what the host does while the device evaluates.

        Raises:
            InputError: atoms that the potential or `System` refuses.
            torch.OutOfMemoryError: the device cannot hold these alone.
        """
        try:
            return self._evaluated(atoms, meanwhile)
        except torch.OutOfMemoryError:
            pass  # what it holds is free only after this block
        self._empty()
        return self._evaluated(atoms, meanwhile)

    def _evaluated(
        self, atoms: Atoms, meanwhile: Callable[[], None]
    ) -> tuple[Calculation, Answer, float]:
        made, volume = self.holding(atoms)
        answer = made.computed(graphed=self.device.type == "cuda", meanwhile=meanwhile)
        if self._returned:
            made.check_coincident()  # as where it is made
            self._returned = False
        return made, answer, volume

    def given_up_for(self, systems: Sequence[System]) -> list[System]:
        """Frees the memory for others, since both may not fit.

        Returns:
            The systems with the charges that count.

        Raises:
            InputError: systems that the potential refuses.
        """
        found = [self._charged(system) for system in systems]
        self._empty()
        return found

    def _for(self, system: System) -> Calculation:
        """A calculation that such a system fits in, made where none with its tables is kept."""
        charged = self._charged(system)
        wanted = (system.numbers.tobytes(), system.pbc.tobytes(), charged.charge)
        before, known = self._made, wanted in self._kept
        self._made = None  # or it would outlast its place among those that are kept
        made = self._kept.get(wanted, lambda: self._calculation(charged), len(system))
        if made is not before:
            self._returned = known
        if self._returned:
            made.check([charged])
        self._made = made
        return made

    def _calculation(self, system: System) -> Calculation:
        # The memory of the last graph stays reserved for the next, which it may be too large for.
        shared = self._kept.memory if len(system) <= ATOMS else None
        return Calculation(
            [system],
            self.evaluator,
            device=self.device,
            precision=self.precision,
            graphs=shared,
        )

    def _charged(self, system: System) -> System:
        """With the charge that counts; see `given_up_for`."""
        self._check(system)
        return system.replace(charge=total_charge(system, self.charge))

    def _check(self, system: System) -> None:
        if system.pbc.any() and math.inf in self.evaluator.cutoffs:
            raise InputError(
                "The potential's Coulomb energy runs over all pairs, which have no end in a "
                "periodic system; give coulomb_cutoff=12.0 for a reaction field."
            )
        unsaid = self.charge is None and system.charge is None
        if unsaid and not self._said_neutral and uses_charge(self.evaluator):
            logger.info("No charge is given; the total charge is taken as 0.")
            self._said_neutral = True
