"""PotentialForce: what a PythonForce calls, on any thread, for energy and forces."""

import contextlib
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch

from mdgraph.devices import shared_stream
from mdgraph.drivers.openmm.boxes import Array
from mdgraph.drivers.openmm.lengths import check_unit
from mdgraph.drivers.openmm.units import FORCE, KILOJOULE_PER_MOLE, NANOMETRE
from mdgraph.drivers.openmmml.models import Model, evaluator_of
from mdgraph.drivers.turns import EVALUATING
from mdgraph.engine import Calculation
from mdgraph.engine.potentials import check_charge
from mdgraph.errors import InputError
from mdgraph.evaluators import Evaluator
from mdgraph.fused.verification import self_check
from mdgraph.models import check_species
from mdgraph.system import System

_CHECKED: Final[set[Model]] = set()


class PotentialForce:
    """Energy and forces of a potential; give it to `openmm.PythonForce`.

    Lists, energy and forces are one captured graph on CUDA. Where a list overflows it is
    grown and the evaluation repeated before anything goes back to OpenMM. Stored in XML or
    copied, it is the place and hash of the potential, and makes buffers of its own.
    """

    def __init__(
        self,
        model: Model,
        numbers: Sequence[int],
        periodic: bool,
        charge: float,
        bonds: Sequence[tuple[int, int]] = (),
    ) -> None:
        """Keeps its arguments; OpenMM reads XML through here, and dies of an error in that.

        Args:
            model: the potential.
            numbers: atomic numbers of the particles.
            periodic: whether the box of the Context counts.
            charge: total charge, e.
            bonds: pairs of these particles, by which the first call notices a forgotten unit;
                stored with the rest, some 16 bytes of XML each.
        """
        self._arguments = (model, tuple(numbers), periodic, charge, tuple(bonds))
        self._begun: tuple[Calculation, Any] | None = None

    def evaluator(self) -> Evaluator:
        """The potential's, checked against the atoms.

        Raises:
            FileError, CheckpointError: see `evaluator_of`.
            InputError: atoms or a charge that the potential does not take.
        """
        model, numbers, periodic, charge, _ = self._arguments
        evaluator = evaluator_of(model)
        known = getattr(getattr(evaluator, "potential", None), "species", None)
        check_species(known, list(numbers))
        check_charge(evaluator, charge)
        if periodic and np.inf in evaluator.cutoffs:
            raise InputError(
                "The potential's Coulomb energy runs over all pairs, which have no end in a "
                "periodic system; give coulombCutoff=1.2*unit.nanometers for a reaction field."
            )
        return evaluator

    def __reduce__(self) -> Any:
        return type(self), self._arguments

    def __call__(self, state: Any) -> tuple[float, Array]:
        """Energy in kJ/mol and forces (N, 3) in kJ/mol/nm; reads the device.

        Args:
            state: a State with positions, and a box where the force is periodic.

        Raises:
            InputError: positions or results that are not finite, two atoms at one place; in the
                first call, positions or a box that came without their unit.
        """
        positions = state.getPositions(asNumpy=True)._value
        box = state.getPeriodicBoxVectors(asNumpy=True)._value if self._arguments[2] else None
        if not np.isfinite(positions).all():
            raise InputError("The positions are not finite; take a shorter time step.")
        with EVALUATING:
            calculation, stream = self._begun or self._begin(positions, box)
            with stream:
                calculation.place(positions, box, NANOMETRE)
                answer = calculation.computed(graphed=calculation.device.type == "cuda")
                energy = float(answer.energy[0]) / KILOJOULE_PER_MOLE
                # An array of its own: OpenMM copies it when other threads may already call again.
                forces: Array = np.divide(answer.forces, FORCE, dtype=np.float64)
                if not answer.finite:
                    calculation.check_coincident()
                    raise InputError("Energy or forces are not finite; check the structure.")
                self._check(calculation)
        return energy, forces

    def _begin(self, positions: Array, box: Array | None) -> tuple[Calculation, Any]:
        """Makes lists and buffers for atoms where they are now."""
        model, numbers, periodic, charge, bonds = self._arguments
        stream: Any = contextlib.nullcontext()
        system = System(
            numbers=np.array(numbers),
            positions=positions * NANOMETRE,
            cell=np.zeros((3, 3)) if box is None else box * NANOMETRE,
            pbc=np.full(3, periodic),
            charge=charge,
        )
        check_unit(system, np.array(bonds, dtype=np.int64).reshape(-1, 2))
        calculation = Calculation(
            [system], self.evaluator(), device=model.device, precision=model.precision
        )
        if calculation.device.type == "cuda":
            # Buffers were filled on the stream that was current, for which the other waits not.
            torch.cuda.synchronize(calculation.device)
            stream = torch.cuda.stream(shared_stream(calculation.device, "force"))
        self._begun = calculation, stream
        return self._begun

    def _check(self, calculation: Calculation) -> None:
        """Once for each model in a process."""
        model = self._arguments[0]
        if model.check and model not in _CHECKED:
            own = calculation
            self_check(own.evaluator, own.state, own.lists, own.precision)
            _CHECKED.add(model)
