"""MDGraphCalculator: an ASE calculator with constraints and reusable evaluation buffers."""

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from ase import Atoms
from ase.calculators.calculator import (
    Calculator,
    Parameters,
    PropertyNotImplementedError,
    all_changes,
    equal,
)
from ase.constraints import FixAtoms, FixCom
from numpy.typing import NDArray

from mdgraph.arguments import checked
from mdgraph.checkpoints import load
from mdgraph.devices import device_named
from mdgraph.drivers.lock import EVALUATION_LOCK
from mdgraph.engine import FIRE, Calculation, Integrator, Simulation
from mdgraph.engine.calculation import (
    EvaluationResult,
    HostOutputs,
    as_evaluator,
    check_charge,
    uses_charge,
)
from mdgraph.engine.relaxation import Relaxed, relax
from mdgraph.errors import InputError, StressUndefinedError, name_some
from mdgraph.evaluators import Evaluator
from mdgraph.fused.verification import self_check
from mdgraph.gpu.graphs import GraphPool
from mdgraph.io.structures import from_ase
from mdgraph.models import Potential, TensorNetPotential
from mdgraph.precision import Precision, precision_named
from mdgraph.system import System, total_charge

_VOIGT: Final = (0, 4, 8, 5, 2, 1)
"""Places of xx, yy, zz, yz, xz, xy in a matrix, row by row."""


class NoStressError(StressUndefinedError, PropertyNotImplementedError):
    """Stress asked for where the cell has no volume; ASE knows it as not implemented."""


def results_of(calculation: Calculation, answer: HostOutputs, volume: float) -> dict[str, Any]:
    """Copies of what was computed for one system, by ASE's names.

    Args:
        calculation: of one system.
        answer: what it gave.
        volume: A^3; without one there is no stress.

    Raises:
        InputError: energies or forces that are not finite.
    """
    (result,) = answer.results(1)
    if not answer.finite:
        calculation.check_coincident()
        bad = np.flatnonzero(
            ~np.isfinite(result.forces).all(axis=1) | ~np.isfinite(result.energies)
        )
        raise InputError(
            f"The energies or forces of atoms {name_some(bad.tolist())} are not finite; check the "
            "structure and that the potential knows such ones."
        )
    return named(result, volume)


def named(result: EvaluationResult, volume: float) -> dict[str, Any]:
    """A result by ASE's names, with stress where there is a volume (A^3)."""
    found: dict[str, Any] = {
        "energy": result.energy,
        "free_energy": result.energy,
        "energies": result.energies,
        "forces": result.forces,
    }
    if volume > 0.0:
        virial = 0.5 * (result.virial + result.virial.T)
        found["stress"] = virial.take(_VOIGT) / -volume
    return found


def volume_of(atoms: Atoms) -> float:
    """A^3; 0 where the three cell vectors do not span one, NaN where they are not finite."""
    cell = atoms.cell.array
    spans = np.isfinite(cell).all() and np.linalg.matrix_rank(cell) == 3
    return abs(float(np.linalg.det(cell))) if spans else 0.0 * float(cell.sum())


FROM_CHECKPOINT: Final = "from checkpoint"


def named_potential(potential: Any, coulomb_cutoff: float | str | None) -> tuple[str, Any]:
    """The potential or evaluator, and a name for it.

    Args:
        potential: path, name of a shipped potential, Potential or Evaluator.
        coulomb_cutoff: A, or None for all pairs; FROM_CHECKPOINT leaves it as it is.

    Raises:
        FileError: the potential cannot be read.
        CheckpointError: it is not a potential.
        InputError: a cutoff that cannot be, or for a potential that sets its own.
    """
    name, loaded = type(potential).__name__, potential
    if isinstance(potential, str | Path):
        name, loaded = str(potential), load(potential)
    if not isinstance(coulomb_cutoff, str):
        if not isinstance(loaded, TensorNetPotential):
            raise InputError(
                f"A Coulomb cutoff is given, but {type(loaded).__name__} sets its own; "
                "leave the cutoff out."
            )
        loaded = loaded.with_coulomb_cutoff(coulomb_cutoff)
    elif coulomb_cutoff != FROM_CHECKPOINT:
        raise InputError(
            f"Unknown coulomb_cutoff '{coulomb_cutoff}'; give a number of A, None for all "
            f"pairs, or '{FROM_CHECKPOINT}'."
        )
    return name, loaded


@dataclass(frozen=True)
class Constraints:
    """What stays where it is.

    Attributes:
        fixed: indices of atoms.
        centre: whether the centre of mass does.
    """

    fixed: tuple[int, ...] = ()
    centre: bool = False


def held_by(atoms: Atoms) -> Constraints:
    """Reads the constraints of the atoms.

    Raises:
        InputError: other ones than FixAtoms and FixCom, or both together.
    """
    fixed: set[int] = set()
    centre, unknown = False, []
    for constraint in atoms.constraints:
        # Not isinstance: a subclass holds something else.
        if type(constraint) is FixAtoms:
            fixed.update(np.arange(len(atoms))[constraint.index].tolist())
        elif type(constraint) is FixCom:
            centre = True
        else:
            unknown.append(type(constraint).__name__)
    if unknown:
        raise InputError(
            f"mdgraph cannot keep the constraints {name_some(sorted(set(unknown)))}; it knows "
            "FixAtoms and FixCom. Remove them, or move the atoms by ASE's own classes with "
            "MDGraphCalculator."
        )
    if centre and fixed:
        raise InputError(
            "Fixed atoms hold the centre of mass already; take FixCom or FixAtoms, not both."
        )
    return Constraints(tuple(sorted(fixed)), centre)


Array = NDArray[np.float64]

INFO: Final = ("charge", "spin", "spin_multiplicity")
"""What `from_ase` reads of `atoms.info`, and ASE does not compare."""


@dataclass(frozen=True)
class AtomsSnapshot:
    """Copies of what moves, and whatever else buffers are made for.

    Attributes:
        positions: (N, 3) A.
        momenta: (N, 3), in ASE's unit.
        cell: (3, 3) A.
        rest: numbers, periodic directions, masses, constraints, charge and spin.
    """

    positions: Array
    momenta: Array
    cell: Array
    rest: tuple[Any, ...]

    @classmethod
    def of(cls, atoms: Atoms, held: Constraints) -> "AtomsSnapshot":
        """Copies what the atoms hold."""
        info = [repr(atoms.info.get(name)) for name in INFO]
        rest = (atoms.numbers.tobytes(), atoms.pbc.tobytes(), atoms.get_masses().tobytes(), held)
        return cls(
            atoms.get_positions(), atoms.get_momenta(), atoms.cell.array.copy(), (*rest, *info)
        )

    def moved_since(self, before: "AtomsSnapshot") -> list[str]:
        """Which of positions, momenta and cell are others than before."""
        return [
            name
            for name in ("positions", "momenta", "cell")
            if not np.array_equal(getattr(before, name), getattr(self, name))
        ]


def differing(before: Atoms, now: Atoms) -> list[str]:
    """Names what a calculator depends on and is another; twenty times as fast as ASE does."""
    arrays = [
        name
        for name in ("positions", "numbers", "cell", "pbc")
        if not np.array_equal(getattr(before, name), getattr(now, name))
    ]
    return arrays + [key for key in INFO if not equal(before.info.get(key), now.info.get(key))]


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
    ) -> tuple[Calculation, HostOutputs, float]:
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
    ) -> tuple[Calculation, HostOutputs, float]:
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


class MDGraphCalculator(Calculator):
    """Energy, forces and stress of ASE's Atoms.

    Energies are in eV, forces in eV/A; the stress (1/V) dE/d(strain) in eV/A^3 is positive
    under tension and ordered xx, yy, zz, yz, xz, xy. It exists wherever the three cell
    vectors span a volume, periodic or not. Every array is a copy.

    Neighbor lists and device buffers are kept while atoms and cell move, and made where
    species, pbc, charge or the number of atoms are others than before. Those of up to 12
    structures with 4,096 atoms together are kept, for atoms that come back; a larger one is
    kept alone. On CUDA the second evaluation of each captures lists, energy and forces as one
    graph, which later ones replay. Each evaluation reads the device.

    The total charge is the argument's, else `atoms.info['charge']`, else 0. Copies of a
    calculator make buffers of their own.
    """

    # ASE declares both as attributes of instances.
    implemented_properties = ["energy", "free_energy", "forces", "energies", "stress"]  # noqa: RUF012
    ignored_changes = {"initial_charges", "initial_magmoms"}  # noqa: RUF012

    @checked
    def __init__(
        self,
        potential: str | Path | Potential | Evaluator,
        device: str | torch.device = "auto",
        precision: str | Precision = "mixed",
        charge: float | None = None,
        coulomb_cutoff: float | str | None = FROM_CHECKPOINT,
        evaluator: str = "auto",
        check: bool = True,
    ) -> None:
        """Loads the potential and checks the options.

        Args:
            potential: path, name of a shipped potential, Potential or Evaluator.
            device: `auto`, `cpu`, `cuda` or `cuda:N`.
            precision: `mixed`, `single`, `double` or `fast`; see `PRECISIONS`. `fast` rounds
                forces on CUDA, so total energy drifts in dynamics without a bath, of which a
                calculator cannot know to warn.
            charge: total charge, e; overrides `atoms.info['charge']`.
            coulomb_cutoff: A, of the reaction field of a potential with Coulomb energy;
                None sums all pairs of a molecule.
            evaluator: see Calculation.
            check: compare a fast evaluator with the reference on the first atoms that come,
                in about 5 s.

        Raises:
            FileError: the potential cannot be read.
            CheckpointError: it is not a potential.
            InputError: an option that cannot be, or does not suit the potential.
        """
        super().__init__()
        self._precision = precision_named(precision)
        self._device = device_named(device)
        name, loaded = named_potential(potential, coulomb_cutoff)
        self._evaluator = as_evaluator(loaded, self._precision, self._device, evaluator)
        self._unchecked = check
        if charge is not None:
            check_charge(self._evaluator, charge)
        self._buffers = Buffers(self._evaluator, self._device, self._precision, charge)
        # ASE's trajectories and databases keep this beside the results.
        self.parameters = Parameters(
            potential=name,
            device=str(self._device),
            precision=self._precision.name,
            charge=charge,
            coulomb_cutoff=coulomb_cutoff,
            evaluator=evaluator,
        )

    def __getstate__(self) -> dict[str, Any]:
        # Buffers cannot serve two calculators.
        return {**self.__dict__, "_buffers": copy(self._buffers)}

    def set(self, **options: Any) -> dict[str, Any]:
        """Refuses: options take effect where the potential is prepared, in the constructor."""
        if options:
            raise InputError(
                f"A calculator keeps its options, so {name_some(sorted(options))} cannot be set; "
                "make another MDGraphCalculator."
            )
        return {}

    def check_state(self, atoms: Atoms, tol: float = 1e-15) -> list[str]:
        """Names what changed since the last calculation, charge and spin in `info` included.

        Args:
            atoms: of now.
            tol: has no effect; any other number is a change.
        """
        return list(all_changes) if self.atoms is None else differing(self.atoms, atoms)

    def calculate(
        self,
        atoms: Atoms | None = None,
        properties: Sequence[str] = ("energy",),
        system_changes: Sequence[str] = tuple(all_changes),
    ) -> None:
        """Fills `results` with all properties that the atoms have.

        Raises:
            InputError: atoms that the potential or `System` refuses, two atoms at one place.
            StressUndefinedError: stress asked for without a cell of three dimensions.
            SelfCheckError: the fast evaluator does not agree with the reference.
        """
        atoms = self.atoms if atoms is None else atoms
        if atoms is None:
            raise InputError("The calculator has no atoms yet; set atoms.calc to it.")
        if "stress" in properties and volume_of(atoms) == 0.0:
            raise NoStressError(
                "Stress is undefined, because the cell has no three independent vectors; "
                "give the atoms a cell or ask for energy and forces alone."
            )
        self.results = {}
        with EVALUATION_LOCK:
            # ASE copies the atoms, which takes as long as a small graph.
            copying = partial(super().calculate, atoms, properties, system_changes)
            calculation, answer, volume = self._buffers.evaluated(atoms, copying)
            results = results_of(calculation, answer, volume)
            if self._unchecked:
                state, lists = calculation.state, calculation.lists
                self_check(self._evaluator, state, lists, self._precision)
                self._unchecked = False
        self.results = results

    def simulation(
        self, systems: Sequence[System], integrator: Integrator, **options: Any
    ) -> Simulation:
        """A simulation by the same potential, on the same device; it evaluates the start.

        Buffers of the calculator itself are given up, because both may not fit.

        Args:
            systems: what to simulate; see `from_ase`.
            integrator: what advances them.
            options: see Simulation.

        Raises:
            InputError: systems that the potential refuses, options that cannot be.
            SelfCheckError: the fast evaluator does not agree with the reference.
        """
        with EVALUATION_LOCK:
            found = Simulation(
                self._buffers.given_up_for(systems),
                self._evaluator,
                integrator,
                device=self._device,
                precision=self._precision,
                check=self._unchecked,
                **options,
            )
        self._unchecked = False
        return found

    def relaxed(
        self,
        systems: Sequence[System],
        names: Sequence[str],
        fire: FIRE,
        steps: int,
        **options: Any,
    ) -> Iterator[tuple[int, Relaxed]]:
        """Minima by the same potential, on the same device; see `mdgraph.engine.relaxation`.

        Buffers of the calculator itself are given up, because both may not fit.
        """
        found = relax(
            self._buffers.given_up_for(systems),
            names,
            self._evaluator,
            fire,
            steps,
            device=self._device,
            precision=self._precision,
            check=self._unchecked,
            **options,
        )
        for place, one in found:
            self._unchecked = False
            yield place, one

    def hold(self, atoms: Atoms, results: dict[str, Any]) -> None:
        """Takes what a simulation computed for these atoms, so that nothing is evaluated."""
        self.atoms = atoms.copy()
        self.results = results
