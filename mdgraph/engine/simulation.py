"""Simulation: runs dynamics as replays of captured steps, and calls reporters."""

import logging
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Any, Protocol

import torch

from mdgraph.arguments import checked
from mdgraph.biases import Bias, CollectiveVariable
from mdgraph.decomposition import divided_parts, in_domains, join_ranks, may_be_whole
from mdgraph.devices import device_named
from mdgraph.engine.autotune import (
    TuningOptions,
    choose_division,
    choose_execution,
    choose_skin,
    log_mechanism,
    stopwatch,
)
from mdgraph.engine.calculation import Calculation, as_evaluator
from mdgraph.engine.dynamics import StepDynamics
from mdgraph.engine.integrators import Integrator
from mdgraph.engine.kinetics import remove_momentum_
from mdgraph.engine.multiple_time_steps import (
    INNER_STEPS_ALONE,
    checked_multiple,
    steps_together,
    two_potentials,
)
from mdgraph.engine.observables import OnlineObservable
from mdgraph.engine.reporting import HostSnapshot, Recorder, Thermo, delivery, thermo_rows
from mdgraph.engine.restraints import PositionRestraints
from mdgraph.engine.run_loop import RunLoop, failure, temperature_limit
from mdgraph.engine.step_graphs import LONGEST
from mdgraph.engine.velocities import Conserved, draw_velocities_, fixed_atoms
from mdgraph.errors import InputError, name_some, printable
from mdgraph.evaluators import Evaluator
from mdgraph.fused.verification import log_unmeasured, self_check
from mdgraph.models import Potential
from mdgraph.precision import Precision, precision_named
from mdgraph.selection import select_in_all
from mdgraph.system import System

logger = logging.getLogger(__name__)


def warn_of_drift(evaluator: Evaluator, precision: Precision, integrator: Integrator) -> None:
    """Logs a warning if forces are rounded and no bath takes up the heat.

    Args:
        evaluator: of the forces; at precision `fast` only Triton's kernels round.
        precision: of the evaluator.
        integrator: with its buffers; does not sync.
    """
    bath = "temperature" in integrator.parameters or integrator.cell_varies
    if evaluator.rounds and not bath and integrator.conserved_energy() is not None:
        logger.warning(
            "Precision %s rounds forces, which are then not the exact derivative of an energy, "
            "so the total energy drifts at constant energy; choose mixed.",
            precision.name,
        )


def _systems(structures: Any) -> list[System]:
    """Systems from a System, ASE's Atoms, or a list of either.

    Raises:
        InputError: something else, or Atoms with constraints other than FixAtoms.
    """
    # A caller with Atoms has imported ASE already; others do not wait for its import.
    atoms_class = getattr(sys.modules.get("ase"), "Atoms", ())
    single = isinstance(structures, (System, atoms_class))
    if not single and not isinstance(structures, Iterable):
        structures = [structures]
    systems = []
    for structure in [structures] if single else structures:
        system = structure
        if isinstance(structure, atoms_class):
            from mdgraph.io.structures import from_ase, other_constraints

            if names := other_constraints(structure):
                raise InputError(
                    f"The Atoms have the constraints {name_some(names)}, and a Simulation keeps "
                    "FixAtoms alone; remove them by atoms.set_constraint(), or use the dynamics of "
                    "mdgraph.drivers.ase for FixCom."
                )
            system = from_ase(structure)
        if not isinstance(system, System):
            raise InputError(
                "A simulation needs a System or ASE's Atoms, or a list of them; "
                f"{type(system).__name__} is none."
            )
        systems.append(system)
    return systems


def in_bath(biases: Sequence[Any], integrator: Integrator) -> list[Any]:
    """Biases at the temperature of the bath, where there is one; see `Bias.in_bath`."""
    bath = integrator.parameters.get("temperature")
    if bath is None:
        return list(biases)
    return [bias.in_bath(bath.start) if isinstance(bias, Bias) else bias for bias in biases]


def _check_weights(potential: Any) -> None:
    """Raises InputError if weights of terms change, for two time steps and domains."""
    whole = getattr(potential, "potential", None) or potential
    if getattr(whole, "ramps", None) is not None:
        raise InputError(
            "The weights of its terms change along the run of this potential, which goes neither "
            "with an inner potential nor with domains; leave these out, or give constant weights."
        )


CHUNK = {"cpu": 10, "cuda": 128}
"""Steps a chunk: the host checks the run, and an interrupt acts, at the end of each."""

WORTHWHILE = 500
"""Shortest run (steps) for which tuning pays off."""


class Reporter(Protocol):
    """Called every `interval` steps, counted from the start of the trajectory."""

    interval: int

    def report(self, simulation: "Simulation") -> None:
        """Reads the simulation, at a step that is done and good; may sync."""
        ...


class Simulation(StepDynamics):
    """Molecular dynamics of one or several systems.

    `run` goes from one report to the next; `RunLoop` takes the steps between them in chunks,
    and `StepGraphs` runs a chunk as CUDA graphs or eagerly. A neighbor list that overflows is
    grown and its chunk repeated, to the same bits that an ample list gives. If forces stop being
    finite, the temperature passes its limit or a cell collapses, the run stops at the last good
    state and names the step and the atoms. Only integrators of varying cells move the cell;
    `set` changes it between runs, and what is written into `state.cell` does not.

    Attributes, beside those of StepDynamics:
        skin_given: whether the skin is the caller's; else it may be measured.
        chunk: steps between two checks by the host.
        maximum_temperature: K, beyond which a run stops.
        reporters: called at their intervals, while the GPU waits; append to it.
        hill_reporters: called before these; they add the hills of walkers on several ranks, and
            `mdgraph.engine.replicas.replica_simulation` fills them.
        recorders: get host snapshots at their intervals, while the GPU goes on; append to it.
    """

    @checked
    def __init__(
        self,
        system: Any,
        potential: str | Path | Potential | Evaluator,
        integrator: Integrator,
        *,
        device: str | torch.device = "auto",
        precision: str | Precision = "mixed",
        charge: float | None = None,
        seed: int = 0,
        temperature: float | Sequence[float] | None = None,
        exact_temperature: bool = False,
        skin: float | None = None,
        graph: str = "auto",
        steps_per_replay: int | None = None,
        chunk: int | None = None,
        maximum_temperature: float | None = None,
        evaluator: str = "auto",
        check: bool | None = True,
        fixed: Sequence[int] | str = (),
        restraints: PositionRestraints | None = None,
        variables: Mapping[str, CollectiveVariable] | None = None,
        biases: Sequence[Bias] = (),
        remove_momentum: int = 0,
        observe: Sequence[OnlineObservable] = (),
        inner_potential: str | Path | Potential | Evaluator | None = None,
        inner_steps: int | None = None,
        domains: int | str | Sequence[int] | None = None,
    ) -> None:
        """Prepares everything and evaluates the start. Reads the device.

        Args:
            system: a System or ASE's Atoms, or a list of them; velocities are kept. Atoms
                bring cell, periodic directions, masses, velocities where they have momenta, and
                the charge of `info` and the atoms that their `FixAtoms` holds.
            potential: path, name of a shipped potential, Potential or Evaluator.
            integrator: what advances the state; a copy of it.
            device: `auto`, `cpu`, `cuda` or `cuda:N`.
            precision: `mixed`, `single`, `double` or `fast`; see `PRECISIONS`.
            charge: total charge, e; overrides that of the systems.
            seed: seed of all random numbers.
            temperature: K of initial velocities of systems that have none, or one for each
                system; by default that of the bath, or 0 K without a bath.
            exact_temperature: scale initial velocities to exactly that temperature.
            skin: A, of the neighbor lists; None chooses, on CUDA by measurement.
            graph: `auto` captures steps on CUDA if that is faster, `on` always, `off` runs eagerly;
                `on` refuses a device without graphs.
            steps_per_replay: most steps in a graph, a power of two; None chooses.
            chunk: steps between two checks by the host; None chooses.
            maximum_temperature: K beyond which the run stops; None takes 10,000 K, or
                twenty times the bath.
            evaluator: see Calculation.
            check: compare a fast evaluator with the reference at the start, in about 5 s; False
                skips it and says so, None (already checked) skips it silently.
            fixed: atoms that do not move: indices among the atoms of all systems, or a
                selection such as `element O and prop z < 5` in the initial structure of each.
            restraints: springs on atoms.
            variables: collective variables by name; see `mdgraph.biases`.
            biases: on these variables. Hills and moves take place once a step; well-tempered
                metadynamics takes the temperature of the bath at the start.
            remove_momentum: steps from one removal of the momentum of each system to the
                next; 0 never removes it.
            observe: observables that every step records on the device, each for one simulation.
            inner_potential: a small potential, near to `potential`, that drives the steps between
                every `inner_steps`-th one (reversible RESPA, see MultipleTimeStepEvaluator). The
                integrator's time step is that of the small one, and all intervals and numbers of
                steps are multiples of `inner_steps`.
            inner_steps: 2, 3, 4, 6, 8, 12, 16, 24 or 32; None takes the most whose outer step is
                at most 2 fs, or 3 fs with hydrogens of 3 amu.
            domains: divide one system among so many domains, or among a grid of them along the
                cell vectors, such as (2, 1, 1). Under torchrun each rank has one, on its own GPU,
                and moves its atoms; the others do not come back from here, but serve rank 0 and
                exit with it. GPUs divide a small system among a number of domains only where that
                is faster than one of them, see `choose`; a grid is taken as it is.

        Raises:
            InputError: an invalid argument.
            SelfCheckError: the fast evaluator does not agree with the reference.
        """
        if domains is not None:
            join_ranks()
        self._may_be_whole = leaves_device = False
        systems = _systems(system)
        if not isinstance(integrator, Integrator):
            name = integrator.__name__ if isinstance(integrator, type) else repr(integrator)
            raise InputError(
                f"{printable(name, 100)} is not an integrator; give one such as "
                "LangevinMiddle(0.5, 300.0), with its parameters."
            )
        if charge is not None:
            systems = [system.replace(charge=charge) for system in systems]
        if inner_potential is not None or domains is not None:
            _check_weights(potential)
        if inner_potential is None and inner_steps is not None:
            raise InputError(INNER_STEPS_ALONE)
        if inner_potential is not None:
            potential = two_potentials(
                systems,
                (potential, inner_potential),
                inner_steps,
                integrator,
                precision_named(precision),
                device_named(device),
                evaluator,
            )
            evaluator = "auto"
        if domains is not None:
            precision, device = precision_named(precision), device_named(device)
            whole = as_evaluator(potential, precision, device, evaluator)
            potential, evaluator = in_domains(whole, systems, domains), "auto"
            self._may_be_whole = may_be_whole(potential, domains)
            needs_all_atoms = restraints is not None or variables is not None or len(biases) > 0
            needs_all_atoms |= any(getattr(record, "within_steps", True) for record in observe)
            for part in divided_parts(potential):
                part.keeps_all = needs_all_atoms or part.exchange.alone
                leaves_device = not part.keeps_all and not self._may_be_whole
        calculation = Calculation(
            systems,
            potential,
            device=device,
            precision=precision,
            skin=skin,
            cell_varies=integrator.cell_varies,
            seed=seed,
            evaluator=evaluator,
            restraints=restraints,
            variables=variables,
            biases=in_bath(biases, integrator),
            leaves_device=leaves_device,
        )
        if isinstance(fixed, str):
            fixed = select_in_all(fixed, systems)
        calculation.state.fix_(fixed)
        device_type = calculation.device.type
        self._tuning = TuningOptions.of(device_type, skin, graph, steps_per_replay)
        self.skin_given = skin is not None
        together = steps_together(calculation.evaluator)
        if chunk is None:
            chunk = math.ceil(CHUNK[device_type] / together) * together
        self.chunk = checked_multiple(chunk, 1, "The chunk", together)
        self.reporters: list[Reporter] = []
        self.hill_reporters: list[Reporter] = []
        self.recorders: list[Recorder] = []
        self._stop = False
        self._requested_steps = 0
        remove_momentum = checked_multiple(
            remove_momentum, 0, "The interval of the removal of momentum", together
        )
        bath = integrator.parameters.get("temperature")
        self.maximum_temperature = temperature_limit(maximum_temperature, bath)
        if temperature is None:
            temperature = bath.start if bath else 0.0
        steady = integrator.conserves_momentum
        conserved = Conserved(steady or remove_momentum > 0, steady, calculation.restrained())
        if remove_momentum and not all(conserved.momenta(fixed_atoms(calculation.state))):
            raise InputError(
                "The momentum of systems with fixed or restrained atoms cannot be removed; "
                "leave them loose, or the momentum alone."
            )
        has_velocities = [system.velocities is not None for system in systems]
        draw_velocities_(
            calculation.state, temperature, exact_temperature, conserved, has_velocities
        )
        if remove_momentum:
            remove_momentum_(calculation.state)
        super().__init__(calculation, copy(integrator), conserved, remove_momentum, observe)
        self.step_graphs.graphed = device_type == "cuda" and graph != "off"
        self.step_graphs.longest = steps_per_replay or LONGEST
        self._run_loop = RunLoop(self, self.maximum_temperature)
        if not self._run_loop.check().good:
            raise failure(calculation, 0, self.maximum_temperature)
        self.online.poll(-1, 0)
        if self.skin_given:
            log_mechanism(calculation.lists)
        warn_of_drift(calculation.evaluator, calculation.precision, self.integrator)
        if check:
            self._check_evaluator()
        elif check is False:
            log_unmeasured(calculation.precision)

    def _check_evaluator(self) -> None:
        """Checks the potential alone, without restraints and biases; leaves the results."""
        calculation = self.calculation
        evaluator, state, lists = calculation.evaluator, calculation.state, calculation.lists
        if calculation.springs is None and calculation.biases is None:
            self_check(evaluator, state, lists, calculation.precision)
            return
        results = [state.energies, state.energy, state.forces, state.virial]
        if evaluator.forces(state) is not state.forces:
            results.append(evaluator.forces(state))
        kept = [result.clone() for result in results]
        evaluator.evaluate_(state, lists)
        self_check(evaluator, state, lists, calculation.precision)
        for result, value in zip(results, kept, strict=True):
            result.copy_(value)

    @property
    def graphed(self) -> bool:
        """Whether steps are replays of captured graphs."""
        return self.step_graphs.graphed

    def stop(self) -> None:
        """Makes `run` return after the current chunk; safe in a signal handler."""
        self._stop = True

    def observables(self) -> Thermo:
        """Energies, temperature, pressure and volume of the present state; syncs."""
        return Thermo.of(self, self.step, self.time, thermo_rows(self).cpu())

    def view(self) -> HostSnapshot:
        """A copy of the present state on the host; syncs."""
        view = HostSnapshot(self)
        view.copy_()
        view.wait()
        return view

    @checked
    def run(self, steps: int) -> int:
        """Advances the simulation.

        Args:
            steps: number of steps.

        Returns:
            Steps done: fewer than asked for only after `stop`.

        Raises:
            InputError: a number of steps that is negative or not whole.
            SimulationError: non-finite forces, a runaway temperature or a cell that collapses;
                the state is the last good one.
        """
        steps = checked_multiple(steps, 0, "The run", self.together)
        for interval in self._intervals():
            checked_multiple(interval, 1, "The interval of a reporter or recorder", self.together)
        self._stop = False
        self._requested_steps += steps
        self.choose(self._requested_steps)
        first, last = self.step, self.step + steps
        while self.step < last and not self._stop:
            reports = [(self.step // interval + 1) * interval for interval in self._intervals()]
            end = min([last, self.step + self.chunk, *reports])
            self._run_loop.advance(end, delivery(self.recorders, end))
            called = [*self.hill_reporters, *self.reporters]
            due = [reporter for reporter in called if self.step % reporter.interval == 0]
            if due:
                self._run_loop.finish()
            for reporter in due:
                reporter.report(self)
        self._run_loop.finish()
        return self.step - first

    def _intervals(self) -> list[int]:
        """Steps at whose multiples a chunk ends."""
        return [
            *(recorder.interval for recorder in self.recorders),
            *(reporter.interval for reporter in [*self.hill_reporters, *self.reporters]),
            *(record.every for record in self.online if record.between_chunks),
        ]

    def _divide_(self, divides: bool) -> None:
        for part in divided_parts(self.calculation.evaluator):
            part.divide_(self.state, divides)

    @checked
    def choose(self, steps: int, intervals: Iterable[int] = ()) -> None:
        """Measures the fastest skin and execution mode on CUDA, if a run is long enough.

        Also whether a small system is faster undivided, where a number of domains was given.

        Each `run` begins with it. It measures once, when 500 steps or more have been requested,
        and takes some seconds. Graphs are no longer than the shortest interval of a reporter.

        Args:
            steps: requested in all runs so far and the next one.
            intervals: of reporters that will be attached.
        """
        if steps < WORTHWHILE:
            return
        options, self._tuning = self._tuning, TuningOptions()
        timer = stopwatch(self.calculation.device)
        if options.division and self._may_be_whole:
            choose_division(self, timer, self._divide_)
        if options.skin and not self.skin_given:
            choose_skin(self, timer)
        if options.execution:
            together = min([self.chunk, *intervals, *self._intervals()])
            choose_execution(self, timer, together, options.eager)
