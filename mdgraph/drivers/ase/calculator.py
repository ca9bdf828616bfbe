"""Calculators of ASE: MDGraphCalculator, whose buffers are reused, and committees of several."""

import logging
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
from mdgraph.drivers.arguments import FROM_CHECKPOINT, with_coulomb_cutoff, without_domains
from mdgraph.drivers.lock import EVALUATION_LOCK
from mdgraph.engine import FIRE, Calculation, Integrator, Simulation
from mdgraph.engine.calculation import (
    EvaluationResult,
    HostOutputs,
    as_evaluator,
    check_charge,
)
from mdgraph.engine.relaxation import Relaxed, relax
from mdgraph.engine.uncertainty import ENERGY_SPREAD, FORCE_SPREAD, spread
from mdgraph.errors import InputError, StressUndefinedError, name_some
from mdgraph.evaluators import Evaluator
from mdgraph.fused.verification import self_check
from mdgraph.gpu.graphs import GraphPool
from mdgraph.io.structures import CHARGE_KEYS, SINGLETS, fixed_atoms, from_ase
from mdgraph.models import Potential, check_coulomb_range
from mdgraph.precision import Precision, precision_named
from mdgraph.system import System, total_charge

logger = logging.getLogger(__name__)

Array = NDArray[np.float64]

_VOIGT: Final = (0, 4, 8, 5, 2, 1)
"""Places of xx, yy, zz, yz, xz, xy in a matrix, row by row."""

_INFO: Final = (*CHARGE_KEYS, *SINGLETS)
"""Entries of `atoms.info` that `from_ase` reads and ASE does not compare."""

_BUFFERED_ATOMS: Final = 4096
"""Most atoms of all buffered structures together, unless one structure has more. A batch of
structures has as many on CUDA, and a device has memory for one as a rule."""


class NoStressError(StressUndefinedError, PropertyNotImplementedError):
    """The stress of a cell without a volume; ASE takes it for a property not implemented."""


def checked_results(
    calculation: Calculation, outputs: HostOutputs, volume: float
) -> dict[str, Any]:
    """Copies of the results of one system, by ASE's names and in ASE's units.

    Args:
        calculation: of one system.
        outputs: of its last evaluation.
        volume: A^3; 0 leaves the stress out.

    Raises:
        InputError: energies or forces that are not finite, two atoms at one place.
    """
    (result,) = outputs.results(1)
    if not outputs.finite:
        calculation.check_coincident()
        bad = np.flatnonzero(
            ~np.isfinite(result.forces).all(axis=1) | ~np.isfinite(result.energies)
        )
        raise InputError(
            f"The energies or forces of atoms {name_some(bad.tolist())} are not finite; check the "
            "structure and that the potential knows such ones."
        )
    return ase_results(result, volume)


def ase_results(result: EvaluationResult, volume: float) -> dict[str, Any]:
    """A result by ASE's names, with the stress if the volume (A^3) is not 0."""
    results: dict[str, Any] = {
        "energy": result.energy,
        "free_energy": result.energy,
        "energies": result.energies,
        "forces": result.forces,
    }
    if volume > 0.0:
        virial = 0.5 * (result.virial + result.virial.T)
        results["stress"] = virial.take(_VOIGT) / -volume
    return results


def volume_of(atoms: Atoms) -> float:
    """A^3; 0 where the three cell vectors do not span one, NaN where they are not finite."""
    cell = atoms.cell.array
    spans = np.isfinite(cell).all() and np.linalg.matrix_rank(cell) == 3
    return abs(float(np.linalg.det(cell))) if spans else 0.0 * float(cell.sum())


@dataclass(frozen=True)
class Constraints:
    """ASE's constraints as the engine applies them.

    Attributes:
        fixed: indices of the atoms that do not move.
        centre: whether the centre of mass does not move.
    """

    fixed: tuple[int, ...] = ()
    centre: bool = False

    @classmethod
    def of(cls, atoms: Atoms) -> "Constraints":
        """Reads the constraints of the atoms.

        Raises:
            InputError: constraints other than FixAtoms and FixCom, or both together.
        """
        mask = fixed_atoms(atoms)
        fixed = () if mask is None else tuple(np.flatnonzero(mask).tolist())
        # Not isinstance: a subclass constrains something else.
        kinds = {type(constraint) for constraint in atoms.constraints}
        centre = FixCom in kinds
        unknown = {kind.__name__ for kind in kinds - {FixAtoms, FixCom}}
        if unknown:
            raise InputError(
                f"mdgraph cannot keep the constraints {name_some(sorted(unknown))}; it knows "
                "FixAtoms and FixCom. Remove them, or move the atoms by ASE's own classes with "
                "MDGraphCalculator."
            )
        if centre and fixed:
            raise InputError(
                "Fixed atoms hold the centre of mass already; take FixCom or FixAtoms, not both."
            )
        return cls(fixed, centre)


@dataclass(frozen=True)
class AtomsSnapshot:
    """Copies of what a simulation depends on in ASE's Atoms.

    Attributes:
        positions: (N, 3) A.
        momenta: (N, 3), in ASE's unit.
        cell: (3, 3) A.
        rest: numbers, periodic directions, masses, constraints, charge and spin; a change of
            any of them needs a new simulation.
    """

    positions: Array
    momenta: Array
    cell: Array
    rest: tuple[Any, ...]

    @classmethod
    def of(cls, atoms: Atoms, constraints: Constraints) -> "AtomsSnapshot":
        """Copies the atoms' arrays."""
        arrays = (atoms.numbers.tobytes(), atoms.pbc.tobytes(), atoms.get_masses().tobytes())
        return cls(
            atoms.get_positions(),
            atoms.get_momenta(),
            atoms.cell.array.copy(),
            (*arrays, constraints, *_info_texts(atoms)),
        )

    def changes_since(self, before: "AtomsSnapshot") -> list[str]:
        """Which of `positions`, `momenta` and `cell` differ."""
        return [
            name
            for name in ("positions", "momenta", "cell")
            if not np.array_equal(getattr(before, name), getattr(self, name))
        ]


def _info_texts(atoms: Atoms) -> list[str]:
    return [repr(atoms.info.get(name)) for name in _INFO]


class Buffers:
    """Calculations of one calculator: lists and buffers on the device, reused while atoms move.

    Structures are told apart by their species in order, pbc and charge. Several are kept, and
    the least recently used are dropped first. A copy starts empty: buffers cannot be shared, and
    a captured graph cannot be copied.

    Attributes:
        evaluator, device, precision: see Calculation.
        charge: total charge, e; overrides the charge of a system, unless it is None.
    """

    def __init__(
        self, evaluator: Evaluator, device: torch.device, precision: Precision, charge: float | None
    ) -> None:
        self.evaluator = evaluator
        self.device = device
        self.precision = precision
        self.charge = charge
        self._key: tuple[bytes | str, ...] | None = None  # of the last atoms, their cell included
        self._volume = 0.0
        self._neutral_logged = False
        self._recheck = False  # the calculation was out of use, and its pairs are not checked
        self._empty()

    def __getstate__(self) -> dict[str, Any]:
        dropped = ("_current", "_pool")
        return {name: value for name, value in self.__dict__.items() if name not in dropped}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._empty()

    def _empty(self) -> None:
        self._current: Calculation | None = None
        self._pool: GraphPool[Calculation] = GraphPool(room=_BUFFERED_ATOMS)

    def place(self, atoms: Atoms) -> tuple[Calculation, float]:
        """A calculation at these atoms, not yet evaluated, and the volume of their cell, A^3.

        Raises:
            InputError: atoms that the potential or `System` refuses.
        """
        cell = None
        arrays = (atoms.numbers.tobytes(), atoms.pbc.tobytes(), atoms.cell.array.tobytes())
        key = (*arrays, *_info_texts(atoms))
        calculation = self._current
        # Most calls move atoms and nothing else, which then need no other check.
        if calculation is None or key != self._key or not np.isfinite(atoms.positions).all():
            self._key = None
            system = from_ase(atoms)
            # The cell in the buffers may be older than the one in the key.
            calculation, cell = self._for(system), system.cell
            self._volume = system.volume
        calculation.place(atoms.positions, cell)
        self._key = key
        return calculation, self._volume

    def evaluate(
        self, atoms: Atoms, meanwhile: Callable[[], None]
    ) -> tuple[Calculation, HostOutputs, float]:
        """A calculation, its results and the volume, A^3; syncs.

        Where memory is short, all other buffers are dropped and the evaluation is repeated.

        Args:
            atoms: to evaluate.
            meanwhile: what the host does while the device evaluates.

        Raises:
            InputError: atoms that the potential or `System` refuses.
            torch.OutOfMemoryError: the device cannot hold these atoms alone.
        """
        try:
            return self._evaluate(atoms, meanwhile)
        except torch.OutOfMemoryError:
            pass  # the memory that the exception holds is free only after this block
        self._empty()
        return self._evaluate(atoms, meanwhile)

    def _evaluate(
        self, atoms: Atoms, meanwhile: Callable[[], None]
    ) -> tuple[Calculation, HostOutputs, float]:
        calculation, volume = self.place(atoms)
        outputs = calculation.computed(graphed=self.device.type == "cuda", meanwhile=meanwhile)
        if self._recheck:
            calculation.check_coincident()  # as in the constructor
            self._recheck = False
        return calculation, outputs, volume

    def release_for(self, systems: Sequence[System]) -> list[System]:
        """Drops all buffers, because a simulation of the systems may need their memory.

        Returns:
            The systems, with the charge that overrides theirs.

        Raises:
            InputError: systems that the potential refuses.
        """
        charged = [self._with_total_charge(system) for system in systems]
        self._empty()
        return charged

    def _for(self, system: System) -> Calculation:
        """A kept calculation that fits the system, or a new one."""
        charged = self._with_total_charge(system)
        key = (system.numbers.tobytes(), system.pbc.tobytes(), charged.charge)
        before, known = self._current, key in self._pool
        self._current = None  # a reference here would keep what the pool drops
        calculation = self._pool.get(key, lambda: self._calculation(charged), len(system))
        if calculation is not before:
            self._recheck = known
        if self._recheck:
            calculation.check([charged])
        self._current = calculation
        return calculation

    def _calculation(self, system: System) -> Calculation:
        # Shared graph memory stays reserved, so a structure too large for the pool has its own.
        shared = self._pool.memory if len(system) <= _BUFFERED_ATOMS else None
        return Calculation(
            [system],
            self.evaluator,
            device=self.device,
            precision=self.precision,
            graphs=shared,
        )

    def _with_total_charge(self, system: System) -> System:
        """The system with its total charge; see `release_for`."""
        advice = "coulomb_cutoff=12.0 for a reaction field"
        check_coulomb_range(self.evaluator.cutoffs, bool(system.pbc.any()), advice)
        unset = self.charge is None and system.charge is None
        if unset and not self._neutral_logged and self.evaluator.uses_charge:
            logger.info("No charge is given; the total charge is taken as 0.")
            self._neutral_logged = True
        return system.replace(charge=total_charge(system, self.charge))


class MDGraphCalculator(Calculator):
    """Energy, forces and stress of ASE's Atoms.

    Energies are in eV, forces in eV/A; the stress (1/V) dE/d(strain) in eV/A^3 is positive
    under tension and ordered xx, yy, zz, yz, xz, xy. It exists wherever the three cell
    vectors span a volume, periodic or not. Every array is a copy.

    Neighbor lists and device buffers are reused while atoms and cell move; other species, pbc,
    charge or number of atoms need new ones. The calculator keeps the buffers of up to 12
    structures with 4,096 atoms together, or of one larger structure. On CUDA the second
    evaluation of a structure captures lists, energy and forces as one graph, which later ones
    replay. Each evaluation syncs.

    The total charge is the argument `charge`, else `atoms.info['charge']`, else 0. A copy of a
    calculator has buffers of its own.
    """

    # ASE declares both as attributes of instances.
    implemented_properties = ["energy", "free_energy", "forces", "energies", "stress"]  # noqa: RUF012
    ignored_changes = {"initial_charges", "initial_magmoms"}  # noqa: RUF012

    @without_domains
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
                forces on CUDA, so the total energy of dynamics without a thermostat drifts; a
                calculator does not know the dynamics and gives no warning.
            charge: total charge, e; overrides `atoms.info['charge']`.
            coulomb_cutoff: A, of the reaction field of a potential with Coulomb energy; None
                sums all pairs of a molecule; FROM_CHECKPOINT keeps the potential's own.
            evaluator: see Calculation.
            check: compare a fast evaluator with the reference on the first atoms, in about
                5 s.

        Raises:
            FileError: the potential cannot be read.
            CheckpointError: it is not a potential.
            InputError: an invalid option, or one that does not suit the potential.
        """
        super().__init__()
        self._precision = precision_named(precision)
        self._device = device_named(device)
        name = type(potential).__name__
        if isinstance(potential, str | Path):
            name, potential = str(potential), load(potential)
        loaded = with_coulomb_cutoff(potential, coulomb_cutoff)
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
        """Refuses every option with InputError: the constructor alone takes them."""
        if options:
            raise InputError(
                f"A calculator keeps its options, so {name_some(sorted(options))} cannot be set; "
                "make another MDGraphCalculator."
            )
        return {}

    def check_state(self, atoms: Atoms, tol: float = 1e-15) -> list[str]:
        """Names what changed since the last calculation, charge and spin in `info` included.

        It takes a twentieth of the time of ASE's own.

        Args:
            atoms: to compare with those of the last calculation.
            tol: has no effect; every difference is a change.
        """
        before = self.atoms
        if before is None:
            return list(all_changes)
        arrays = [
            name
            for name in ("positions", "numbers", "cell", "pbc")
            if not np.array_equal(getattr(before, name), getattr(atoms, name))
        ]
        return arrays + [
            name for name in _INFO if not equal(before.info.get(name), atoms.info.get(name))
        ]

    def calculate(
        self,
        atoms: Atoms | None = None,
        properties: Sequence[str] = ("energy",),
        system_changes: Sequence[str] = tuple(all_changes),
    ) -> None:
        """Fills `results` with every property that the atoms have, whatever is asked; syncs.

        Raises:
            InputError: atoms that the potential or `System` refuses, two atoms at one place.
            NoStressError: the stress is asked of a cell without a volume.
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
            calculation, outputs, volume = self._buffers.evaluate(atoms, copying)
            results = checked_results(calculation, outputs, volume)
            if self._unchecked:
                state, lists = calculation.state, calculation.lists
                self_check(self._evaluator, state, lists, self._precision)
                self._unchecked = False
        self.results = results

    def simulation(
        self, systems: Sequence[System], integrator: Integrator, **options: Any
    ) -> Simulation:
        """A simulation with the same potential on the same device; it evaluates the start.

        The calculator drops its own buffers, because both may not fit into memory.

        Args:
            systems: what to simulate; see `from_ase`.
            integrator: advances them.
            options: see Simulation.

        Raises:
            InputError: systems that the potential refuses, invalid options.
            SelfCheckError: the fast evaluator does not agree with the reference.
        """
        with EVALUATION_LOCK:
            simulation = Simulation(
                self._buffers.release_for(systems),
                self._evaluator,
                integrator,
                **self._calculation_options(),
                **options,
            )
        self._unchecked = False
        return simulation

    def relax_systems(
        self,
        systems: Sequence[System],
        names: Sequence[str],
        fire: FIRE,
        steps: int,
        **options: Any,
    ) -> Iterator[tuple[int, Relaxed]]:
        """Relaxes with the same potential on the same device; see `mdgraph.engine.relaxation`.

        The calculator drops its own buffers, because both may not fit into memory.
        """
        minima = relax(
            self._buffers.release_for(systems),
            names,
            self._evaluator,
            fire,
            steps,
            **self._calculation_options(),
            **options,
        )
        for place, minimum in minima:
            self._unchecked = False
            yield place, minimum

    def _calculation_options(self) -> dict[str, Any]:
        return {"device": self._device, "precision": self._precision, "check": self._unchecked}

    def store(self, atoms: Atoms, results: dict[str, Any]) -> None:
        """Takes the results of a simulation for these atoms, so that it need not evaluate."""
        self.atoms = atoms.copy()
        self.results = results


class CommitteeCalculator(Calculator):
    """Results of MDGraphCalculator, as means over several potentials (the members).

    `results` also has `energy_std` (eV), the standard deviation among the members, and
    `forces_std` (N,) (eV/A), the root mean square distance of their forces from the mean. Each
    member has buffers of its own, and each evaluation syncs once for each member.
    """

    # ASE declares both as attributes of instances.
    implemented_properties = [  # noqa: RUF012
        *MDGraphCalculator.implemented_properties,
        ENERGY_SPREAD,
        FORCE_SPREAD,
    ]
    ignored_changes = MDGraphCalculator.ignored_changes

    @checked
    def __init__(
        self, potentials: Sequence[str | Path | Potential | Evaluator], **options: Any
    ) -> None:
        """Loads the members.

        Args:
            potentials: two or more; see MDGraphCalculator.
            options: of every member; see MDGraphCalculator.

        Raises:
            FileError, CheckpointError, InputError: see MDGraphCalculator.
            InputError: fewer than two potentials.
        """
        super().__init__()
        potentials = list(potentials)
        if len(potentials) < 2:
            raise InputError(
                f"A committee has at least two members, and {len(potentials)} is given."
            )
        self.members = [MDGraphCalculator(potential, **options) for potential in potentials]

    def check_state(self, atoms: Atoms, tol: float = 1e-15) -> list[str]:
        """See MDGraphCalculator."""
        return self.members[0].check_state(atoms, tol)

    def calculate(
        self,
        atoms: Atoms | None = None,
        properties: Sequence[str] = ("energy",),
        system_changes: Sequence[str] = tuple(all_changes),
    ) -> None:
        """Fills `results`; raises the errors of MDGraphCalculator."""
        super().calculate(atoms, properties, system_changes)
        for member in self.members:
            member.calculate(self.atoms, properties, system_changes)
        results = [member.results for member in self.members]
        energies, forces = ([result[name] for result in results] for name in ("energy", "forces"))
        self.results = {
            name: np.mean([result[name] for result in results], axis=0) for name in results[0]
        }
        self.results[ENERGY_SPREAD], self.results[FORCE_SPREAD] = spread(energies, forces)
