"""Replica exchange, its record, and replicas on one or several ranks."""

import math
from collections.abc import Mapping, Sequence
from copy import copy
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from mdgraph.biases import Bias, CollectiveVariable
from mdgraph.biases.applied import check_variables, hold_systems
from mdgraph.biases.bias import check_names
from mdgraph.devices import ProcessRank
from mdgraph.engine.integrators import Integrator
from mdgraph.engine.random import EXCHANGE, uniforms
from mdgraph.engine.restraints import PositionRestraints, Springs
from mdgraph.engine.schedules import Schedule, checked_steps
from mdgraph.engine.simulation import Simulation, in_bath
from mdgraph.engine.velocities import Conserved, draw_velocities_
from mdgraph.errors import InputError, name_some, printable
from mdgraph.io.log import read_log
from mdgraph.selection import select_in_all
from mdgraph.state import State
from mdgraph.system import System
from mdgraph.units import BOLTZMANN

if TYPE_CHECKING:
    from mdgraph.io.log import LogWriter


def attempted_pairs(states: int, attempt: int) -> list[int]:
    """The lower state of each pair that an attempt tries: even and odd pairs in turn.

    Two states have one pair, which every attempt tries.
    """
    return list(range(attempt % 2 if states > 2 else 0, states - 1, 2))


class ExchangeRecord:
    """Attempts and acceptances of each pair of neighbors, and round trips of each replica.

    Attributes:
        attempted: number of attempts for each pair (n, n + 1) of the ladder.
        accepted: number of accepted attempts for each pair.
        round_trips: of each replica, from the bottom of the ladder to its top and back.
    """

    def __init__(self, replicas: int, interval: int) -> None:
        """An empty record.

        Args:
            replicas: number of replicas.
            interval: steps from one exchange to the next.
        """
        self._interval = interval
        self.attempted = [0] * (replicas - 1)
        self.accepted = [0] * (replicas - 1)
        self.round_trips = [0] * replicas
        self._states: list[int] = []
        self._was_at_bottom = [False] * replicas
        self._was_at_top = [False] * replicas

    @classmethod
    def read(cls, path: str | Path, interval: int) -> "ExchangeRecord":
        """Reads the record from a log of exchanges, whose first row is the initial state.

        Raises:
            FileError: the file cannot be read or is not a log.
        """
        table = read_log(path)
        steps = table.pop("step").tolist()
        rows = [[int(state) for state in row] for row in zip(*table.values(), strict=True)]
        record = cls(len(table), interval)
        for number, (step, row) in enumerate(zip(steps, rows, strict=True)):
            if number == 0:
                record.begin(row)
            else:
                record.add(step, row)
        return record

    def begin(self, states: Sequence[int]) -> None:
        """Sets the initial state of each replica."""
        self._states = list(states)
        self._visit()

    def add(self, step: int, states: Sequence[int]) -> None:
        """Adds the state of each replica after the exchanges of one step."""
        replica_at = {state: replica for replica, state in enumerate(states)}
        for low in attempted_pairs(len(states), step // self._interval):
            self.attempted[low] += 1
            self.accepted[low] += self._states[replica_at[low]] == low + 1
        self._states = list(states)
        self._visit()

    def _visit(self) -> None:
        last = len(self._states) - 1
        for replica, state in enumerate(self._states):
            if state == 0:
                self.round_trips[replica] += self._was_at_top[replica]
                self._was_at_bottom[replica], self._was_at_top[replica] = True, False
            elif state == last:
                self._was_at_top[replica] = self._was_at_bottom[replica]

    def rates(self) -> list[float]:
        """Acceptance rate of each pair; NaN without attempts."""
        return [
            accepted / attempts if attempts else float("nan")
            for accepted, attempts in zip(self.accepted, self.attempted, strict=True)
        ]


class Ranks(ProcessRank):
    """The rank of this process in a job whose ranks share the replicas."""

    @classmethod
    def join(cls, timeout: float = 1800.0) -> "Ranks":
        """Joins the job that torchrun's environment variables name; one rank without them.

        Ranks exchange a few numbers a replica, from which the host decides. They use gloo, also
        on GPUs, because it notices at once that a rank died.

        Args:
            timeout: s, how long to wait for another rank.

        Raises:
            InputError: see `ProcessRank.joined`.
        """
        return cls.joined("gloo", timeout)

    def shares(self, replicas: int) -> list[range]:
        """Divides the replicas over the ranks, in order and as evenly as possible.

        Raises:
            InputError: there are fewer replicas than ranks.
        """
        if replicas < self.count:
            raise InputError(
                f"There are {replicas} replicas for {self.count} ranks; start no more ranks "
                "than there are replicas."
            )
        ends = [replicas * rank // self.count for rank in range(self.count + 1)]
        return [range(*pair) for pair in pairwise(ends)]

    def share(self, replicas: int) -> range:
        """Replicas of this rank; raises InputError as `shares` does."""
        return self.shares(replicas)[self.rank]

    def numbers(self, number: int) -> list[int]:
        """Gathers a number from each rank; blocks until all ranks have called it.

        Args:
            number: of this rank.

        Raises:
            LostRankError: a rank is gone.
        """
        numbers: list[int] = self.gather(torch.tensor([[number]]), [1] * self.count)[0].tolist()
        return numbers

    def gather(self, own: Tensor, counts: Sequence[int]) -> Tensor:
        """Concatenates the columns of all ranks; blocks until all ranks have called it.

        Args:
            own: (M, S) on the host, a column for each replica of this rank.
            counts: number of replicas S of each rank.

        Returns:
            (M, R) on the host, in the order of ranks.

        Raises:
            LostRankError: another rank ended.
        """
        if self.count == 1:
            return own
        from torch import distributed

        on_gpu = distributed.get_backend() == "nccl"
        device = torch.device("cuda", self.local) if on_gpu else own.device
        padded = own.new_zeros(len(own), max(counts), device=device)
        padded[:, : own.shape[1]] = own
        parts = [torch.empty_like(padded) for _ in counts]
        with self.naming_lost(
            "; the last checkpoints of all are whole, so start them again from there."
        ):
            distributed.all_gather(parts, padded)
        return torch.cat(
            [part[:, :count].cpu() for part, count in zip(parts, counts, strict=True)], dim=1
        )


ALONE: Final = Ranks()
"""A single process with all replicas."""


def replica_simulation(
    systems: Sequence[System],
    potential: Any,
    integrator: Integrator,
    ranks: Ranks = ALONE,
    *,
    seed: int = 0,
    temperature: float | Sequence[float] | None = None,
    exact_temperature: bool = False,
    fixed: Sequence[int] | str = (),
    restraints: PositionRestraints | None = None,
    variables: Mapping[str, CollectiveVariable] | None = None,
    biases: Sequence[Bias] = (),
    **options: Any,
) -> Simulation:
    """Makes the simulation of this rank's replicas, with random numbers as in a single process.

    Args:
        systems: all replicas, equal or different.
        potential: see Simulation.
        integrator: of all replicas; a parameter is one number, or one for each replica.
        ranks: the ranks that share the replicas.
        seed: key of all random numbers.
        temperature: K, of initial velocities; default: that of the bath.
        exact_temperature: scale initial velocities to exactly that temperature.
        fixed: see Simulation; indices count the atoms of all replicas.
        restraints: see Simulation; indices count the atoms of all replicas.
        variables: see Simulation; indices count the atoms of each replica.
        biases: see Simulation; rows of numbers are those of all replicas.
        options: see Simulation.

    Raises:
        InputError: see Simulation; or fewer replicas than ranks.
    """
    share = ranks.share(len(systems))
    begins = [0, *accumulate(map(len, systems))]
    atoms = range(begins[share.start], begins[share.stop])
    if isinstance(fixed, str):
        fixed = select_in_all(fixed, systems)
    if restraints is not None:
        restraints = restraints.applied_to(systems)
    fixed, restraints = _within(atoms, begins[-1], fixed, restraints)
    local_integrator = copy(integrator)
    local_integrator.parameters = {
        name: _part(schedule, share) for name, schedule in integrator.parameters.items()
    }
    if temperature is None:
        bath = local_integrator.parameters.get("temperature")
        kelvin: float | Sequence[float] = bath.start if bath else 0.0
    else:
        kelvin = _part(Schedule("temperature", temperature), share).start
    own = [systems[number] for number in share]
    # Velocities are drawn on the host, so they do not depend on the number of ranks.
    state = State(own, "cpu", torch.float64, seed)
    state.replica += share.start
    state.fix_(fixed)
    steady = local_integrator.conserves_momentum
    springs = [False] * len(own)
    if restraints is not None:
        springs = Springs(restraints, state).restrained(state)
    held = [False] * len(own)
    if variables is not None or len(biases):
        variables = {} if variables is None else variables
        check_variables(variables)
        check_names(biases, variables)
        biases = [bias.of_systems(share, len(systems)) for bias in in_bath(biases, integrator)]
        held = hold_systems(variables, biases, own)
    has_spring = [spring or hold for spring, hold in zip(springs, held, strict=True)]
    conserved = Conserved(steady or options.get("remove_momentum", 0) > 0, steady, has_spring)
    keep = [system.velocities is not None for system in own]
    draw_velocities_(state, kelvin, exact_temperature, conserved, keep)
    velocities = state.velocities.split(state.grouping.sizes)
    own = [system.replace(velocities=v.numpy()) for system, v in zip(own, velocities, strict=True)]
    simulation = Simulation(
        own,
        potential,
        local_integrator,
        seed=seed,
        fixed=fixed,
        restraints=restraints,
        variables=variables,
        biases=biases,
        **options,
    )
    if share.start:
        simulation.state.replica += share.start
        simulation.integrator.allocate(simulation.state)
    return simulation


def _within(
    atoms: range, count: int, fixed: Sequence[int], restraints: PositionRestraints | None
) -> tuple[list[int], PositionRestraints | None]:
    """Fixed atoms and restraints of one rank; raises InputError for an atom that does not exist."""
    indices = [*fixed, *([] if restraints is None else restraints.indices)]
    wrong = [atom for atom in indices if not 0 <= atom < count]
    if wrong:
        raise InputError(
            f"There are no atoms {name_some(wrong)} to fix or restrain; all replicas together "
            f"have the atoms from 0 to {count - 1}."
        )
    own = [atom - atoms.start for atom in fixed if atom in atoms]
    return own, None if restraints is None else restraints.within(atoms)


def _part(schedule: Schedule, share: range) -> Schedule:
    """The schedule of one rank's replicas."""
    part = copy(schedule)
    for name in ("start", "end"):
        numbers = getattr(schedule, name)
        setattr(part, name, numbers if len(numbers) == 1 else numbers[share.start : share.stop])
    return part


class ReplicaExchange:
    """Exchanges temperatures between replicas; must be the first reporter of a simulation.

    Every `interval` steps, replicas at neighboring temperatures of the ladder, the pairs (0, 1),
    (2, 3) ... and (1, 2), (3, 4) ... in turn, swap them with the probability

    min(1, exp((1/kT_a - 1/kT_b) (U_a - U_b))),

    which preserves the canonical ensemble at every temperature. Velocities are then scaled by
    sqrt(T_new / T_old). Nose-Hoover chains do not change: their masses are proportional to kT,
    so the distribution of their velocities is the same at all temperatures.

    =========  =======================================
    T_a, T_b   temperatures of two replicas, K
    U_a, U_b   their potential energies, eV, restraints included
    =========  =======================================

    The random number of a decision is a function of (seed, step, pair), and restart files hold
    the current temperatures with the integrator, so a resumed run has the same bits. With several
    ranks, each rank sees all energies and takes the same decisions. Results are bitwise those of
    a single process if the forces on a system do not depend on the batch; the matrix products of
    networks do, in their rounding.

    The conserved energy jumps when a temperature changes.

    DOI 10.1016/S0009-2614(99)01123-9; with thermostats' own variables 10.1143/JPSJ.79.074003.

    Attributes:
        interval: steps from one exchange to the next.
        temperatures: K, of the ladder, ascending.
        states: (R,) int64, index on the ladder of each replica, over all ranks.
        record: attempts and acceptances since this object was made.
        leaving: reason why all ranks stop, see `stop`; 0 until all ranks know it.
    """

    def __init__(
        self,
        simulation: Simulation,
        interval: int,
        ranks: Ranks = ALONE,
        log: "LogWriter | None" = None,
    ) -> None:
        """Takes the ladder from the integrator; syncs and blocks until all ranks are here.

        Args:
            simulation: replicas of one system, each with its own temperature; with several
                ranks, this rank's part from `replica_simulation`.
            interval: steps.
            ranks: the ranks that share the replicas.
            log: gets a row of `states` after each exchange.

        Raises:
            InputError: an ensemble without a thermostat or with a barostat, temperatures that
                are ramps or equal, replicas of different systems, biases that change along the
                run, or an interval below 1.
            LostRankError: see Ranks.gather.
        """
        self.interval = checked_steps(interval, 1, "The interval of exchanges")
        self._simulation, self._ranks, self._log = simulation, ranks, log
        bath = _bath_temperatures(simulation.integrator)
        systems = simulation.state.grouping.systems
        if len(bath) not in (1, systems):
            raise InputError(f"There are {len(bath)} temperatures for {systems} replicas.")
        _check_replicas(simulation.state)
        biases = simulation.calculation.biases
        if biases is not None and biases.moving:
            raise InputError(
                "Exchanges swap temperatures of replicas that know the same energy, and the bias "
                f"{printable(biases.moving[0], 100)} changes it; leave one of them out."
            )
        self.leaving = self._stop_reason = 0
        own = torch.tensor(bath, dtype=torch.float64).expand(systems)
        counts = ranks.gather(torch.tensor([[systems]]), [1] * ranks.count)[0]
        self._counts: list[int] = counts.tolist()
        self._first = sum(self._counts[: ranks.rank])
        kelvins = ranks.gather(own[None], self._counts)[0]
        self.temperatures = tuple(sorted(kelvins.tolist()))
        if len(set(self.temperatures)) < max(2, len(kelvins)):
            raise InputError(
                "An exchange needs replicas at different temperatures; give each its own."
            )
        self._kelvins = torch.tensor(self.temperatures, dtype=torch.float64)
        self.states = self._gather()[1]
        self.record = ExchangeRecord(len(self.states), self.interval)
        self.record.begin(self.states.tolist())

    def stop(self, reason: int = 1) -> None:
        """Stops the runs of all ranks at the next exchange; safe in a signal handler.

        Args:
            reason: a number above 0, which `leaving` then has on every rank.
        """
        # `report` tells the other ranks, so all stop after the same exchange.
        self._stop_reason = reason

    def report(self, simulation: Simulation) -> None:
        """One round of exchanges; syncs and blocks until all ranks are here.

        Raises:
            LostRankError: see Ranks.gather.
        """
        energies, states, self.leaving = self._gather()
        step, seed = simulation.step, int(simulation.state.seed)
        after = exchange_states(states, energies, self._kelvins, seed, step, step // self.interval)
        self._apply(states, after)
        self.states = after
        self.record.add(step, after.tolist())
        if self._log is not None:
            row = {f"replica_{number}": state for number, state in enumerate(after.tolist())}
            self._log.append({"step": step, **row})
        if self.leaving:
            simulation.stop()

    def _gather(self) -> tuple[Tensor, Tensor, int]:
        """Energies and states of all replicas, and the reason to stop of any rank, else 0."""
        simulation = self._simulation
        kelvins = simulation.integrator.values()["temperature"]
        own = torch.stack([simulation.state.energy, kelvins]).cpu()
        reason = torch.full_like(own[:1], float(self._stop_reason))
        columns = self._ranks.gather(torch.cat([own, reason]), self._counts)
        # Temperatures are copied and never computed, so each equals one of the ladder bitwise.
        states = torch.searchsorted(self._kelvins, columns[1])
        if not torch.equal(self._kelvins[states.clamp(max=len(self._kelvins) - 1)], columns[1]):
            raise InputError(
                "The temperatures of the replicas are not those of the ladder; leave them to "
                "the exchange."
            )
        return columns[0], states, int(columns[2].max())

    def _apply(self, before: Tensor, after: Tensor) -> None:
        """Sets temperatures and scales velocities of this rank's replicas."""
        own = slice(self._first, self._first + self._counts[self._ranks.rank])
        if torch.equal(before[own], after[own]):
            return
        old, new = self._kelvins[before[own]], self._kelvins[after[own]]
        self._simulation.set(temperature=new.tolist())
        state = self._simulation.state
        state.velocities *= state.of_atoms(torch.sqrt(new / old).to(state.device))


def exchange_states(
    states: Tensor, energies: Tensor, kelvins: Tensor, seed: int, step: int, attempt: int
) -> Tensor:
    """States of the replicas after one round of exchanges, (R,) int64; a pure host function.

    Args:
        states: (R,) int64, index on the ladder of each replica before.
        energies: (R,) float64, eV, potential energy of each replica.
        kelvins: (R,) float64, K, temperatures of the ladder.
        seed: key of the random numbers.
        step: step of the simulation.
        attempt: number of the round, which selects the pairs.
    """
    replica_at = torch.argsort(states).tolist()
    pairs = torch.tensor(attempted_pairs(len(states), attempt), dtype=torch.int64)
    key = (torch.tensor(seed), torch.tensor(step), pairs, torch.zeros_like(pairs))
    thresholds = uniforms(*key, EXCHANGE)[:, 0].tolist()
    beta = (1.0 / (BOLTZMANN * kelvins)).tolist()
    energy, after = energies.tolist(), states.tolist()
    for low, uniform in zip(pairs.tolist(), thresholds, strict=True):
        cold, hot = replica_at[low], replica_at[low + 1]
        gain = (beta[low] - beta[low + 1]) * (energy[cold] - energy[hot])
        if gain >= 0.0 or uniform < math.exp(gain):
            after[cold], after[hot] = low + 1, low
    return torch.tensor(after)


def _bath_temperatures(integrator: Integrator) -> tuple[float, ...]:
    schedule = integrator.parameters.get("temperature")
    if schedule is None:
        raise InputError(
            f"{integrator.name} has no bath whose temperature could be exchanged; choose "
            "Langevin dynamics, velocity rescaling or Nose-Hoover chains."
        )
    if integrator.cell_varies:
        raise InputError(
            f"{integrator.name} varies the cell, and exchanges are made at constant volume; choose "
            "Langevin dynamics, velocity rescaling or Nose-Hoover chains."
        )
    if schedule.steps:
        raise InputError("The temperatures of replicas that are exchanged cannot be ramps.")
    if min(schedule.start) <= 0.0:
        raise InputError("The temperatures of replicas that are exchanged must lie above 0 K.")
    return schedule.start


def _check_replicas(state: State) -> None:
    """Raises InputError unless all systems have the same atoms, cell and charge."""
    sizes = state.grouping.sizes
    rows = [values.split(sizes) for values in (state.numbers, state.masses, state.fixed)]
    rows += [state.cell.unbind(), state.charge.unbind()]
    if any(not torch.equal(row[0], value) for row in rows for value in row[1:]):
        raise InputError(
            "Only replicas of one system can exchange temperatures; give each the same atoms, "
            "cell and charge."
        )
