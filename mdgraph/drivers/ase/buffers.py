"""Buffers: a calculation that one Atoms after the other passes through."""

import logging
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from ase import Atoms

from mdgraph.drivers.ase.seen import INFO
from mdgraph.engine import Calculation
from mdgraph.engine.potentials import uses_charge
from mdgraph.errors import InputError
from mdgraph.evaluators import Evaluator
from mdgraph.io.atoms import from_ase
from mdgraph.precision import Precision
from mdgraph.system import System, total_charge

logger = logging.getLogger(__name__)


class Buffers:
    """Holds atoms on the device, in lists and buffers that last while atoms and cell move.

    They are made anew when species, pbc, charge or the number of atoms change. Copies begin
    without any: two cannot share them, and a captured graph cannot be copied.

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
        self._made: Calculation | None = None
        self._built_for: tuple[bytes, bytes, float] | None = None
        self._known: tuple[bytes | str, ...] | None = None
        self._volume = 0.0
        self._said_neutral = False

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_made": None}

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
            made, cell = self._for(system), system.cell
            self._volume = system.volume
        made.place(atoms.positions, cell)
        self._known = known
        return made, self._volume

    def given_up_for(self, systems: Sequence[System]) -> list[System]:
        """Frees the memory for others, since both may not fit.

        Returns:
            The systems with the charges that count.

        Raises:
            InputError: systems that the potential refuses.
        """
        for system in systems:
            self._check(system)
        self._made = None
        return [one.replace(charge=total_charge(one, self.charge)) for one in systems]

    def _for(self, system: System) -> Calculation:
        """A calculation that such a system fits in, made anew where shapes or tables change."""
        wanted = (system.numbers.tobytes(), system.pbc.tobytes(), total_charge(system, self.charge))
        if self._made is not None and wanted == self._built_for:
            return self._made
        systems = self.given_up_for([system])
        self._made = Calculation(
            systems, self.evaluator, device=self.device, precision=self.precision
        )
        self._built_for = wanted
        return self._made

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
