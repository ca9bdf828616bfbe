"""Exchanges of temperatures and umbrellas between replicas, and their record."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mdgraph.biases.bias import spring_energies
from mdgraph.engine.integrators import Integrator
from mdgraph.engine.random import EXCHANGE, uniforms
from mdgraph.engine.replicas.ranks import ALONE, Ranks, RanksReporter
from mdgraph.engine.schedules import checked_steps
from mdgraph.engine.simulation import Simulation
from mdgraph.errors import InputError, printable
from mdgraph.io.log import read_log
from mdgraph.state import State
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

    def text(self) -> str:
        """A sentence with the rates of exchanges between neighbors on the ladder."""
        rates = [rate for rate in self.rates() if rate == rate]
        if not rates:
            return "No exchange was tried."
        trips = sum(self.round_trips)
        return (
            f"Of {sum(self.attempted)} exchanges {sum(self.accepted)} were accepted, "
            f"{min(rates):.0%} to {max(rates):.0%} of each pair; "
            f"{trips} round trip{'s' * (trips != 1)}."
        )

    def numbers(self) -> dict[str, Any]:
        """Attempts, acceptances and rates of each pair, and round trips of each replica."""
        return {
            "attempted": self.attempted,
            "accepted": self.accepted,
            "rates": self.rates(),
            "round_trips": self.round_trips,
        }


class StateExchange(RanksReporter):
    """Base of exchanges between replicas; must be the first reporter of a simulation.

    Every `interval` steps, replicas in neighboring states of the ladder, the pairs (0, 1),
    (2, 3) ... and (1, 2), (3, 4) ... in turn, swap their states by Metropolis' rule. The random
    number of a decision is a function of (seed, step, pair). With several ranks, each rank sees
    all numbers and takes the same decisions.

    Attributes:
        interval: steps from one exchange to the next.
        states: (R,) int64, index on the ladder of each replica, over all ranks.
        record: attempts and acceptances since this object was made.
        leaving: reason why all ranks stop, see `stop`; 0 until all ranks know it.
    """

    states: Tensor
    record: ExchangeRecord

    def __init__(
        self,
        simulation: Simulation,
        interval: int,
        ranks: Ranks = ALONE,
        log: "LogWriter | None" = None,
    ) -> None:
        """Checks and counts the replicas; syncs and blocks until all ranks are here.

        Args:
            simulation: replicas of one system; with several ranks, this rank's part from
                `replica_simulation`.
            interval: steps.
            ranks: the ranks that share the replicas.
            log: gets a row of `states` after each exchange.

        Raises:
            InputError: an ensemble without a thermostat or with a barostat, temperatures that
                are ramps, replicas of different systems, biases or weights of terms that change
                along the run, or an interval below 1.
            LostRankError: see Ranks.gather.
        """
        interval = checked_steps(interval, 1, "The interval of exchanges")
        self._simulation, self._log = simulation, log
        bath = _bath_temperatures(simulation.integrator)
        systems = simulation.state.grouping.systems
        if len(bath) not in (1, systems):
            raise InputError(f"There are {len(bath)} temperatures for {systems} replicas.")
        _check_replicas(simulation.state)
        biases = simulation.calculation.biases
        if biases is not None and biases.moving:
            raise InputError(
                "Exchanges are between replicas that know the same energy, and the bias "
                f"{printable(biases.moving[0], 100)} changes it; leave one of them out."
            )
        if simulation.calculation.evaluator.switching(simulation.state):
            raise InputError(
                "Exchanges are between replicas that know the same energy, and weights of terms "
                "change it along the run; give constant weights, or leave the exchange out."
            )
        super().__init__(interval, systems, ranks)
        own = torch.tensor(bath, dtype=torch.float64).expand(systems)
        self._baths = ranks.gather(own[None], self._counts)[0]

    def _begin(self) -> None:
        """Finds the states of the replicas, and begins the record."""
        self.states = self._gather()[1]
        self.record = ExchangeRecord(len(self.states), self.interval)
        self.record.begin(self.states.tolist())

    def report(self, simulation: Simulation) -> None:
        """One round of exchanges; syncs and blocks until all ranks are here.

        Raises:
            LostRankError: see Ranks.gather.
        """
        columns, states, self.leaving = self._gather()
        step, seed = simulation.step, int(simulation.state.seed)
        attempt = step // self.interval
        pairs = attempted_pairs(len(states), attempt)
        replica_at = torch.argsort(states)
        low = torch.tensor(pairs, dtype=torch.int64)
        gains = self._gains(columns, low, replica_at[low], replica_at[low + 1])
        after = swapped(states, pairs, gains, seed, step)
        self._apply(states, after)
        self.states = after
        self.record.add(step, after.tolist())
        if self._log is not None:
            row = {f"replica_{number}": state for number, state in enumerate(after.tolist())}
            self._log.append({"step": step, **row})
        if self.leaving:
            simulation.stop()

    def _gather(self) -> tuple[Tensor, Tensor, int]:
        """Columns and states of all replicas, and the reason to stop of any rank, else 0."""
        columns, reason = self._meet(self._own_columns())
        return columns, self._states_of(columns), reason

    def _own_columns(self) -> Tensor:
        """What decisions need of this rank's replicas, (M, S) float64 on the host; syncs."""
        raise NotImplementedError

    def _states_of(self, columns: Tensor) -> Tensor:
        """States (R,) int64 of the replicas by the columns (M, R) of all."""
        raise NotImplementedError

    def _gains(self, columns: Tensor, low: Tensor, first: Tensor, second: Tensor) -> list[float]:
        """Logarithm of the probability ratio of each pair after a swap and before.

        Args:
            columns: (M, R) of all replicas.
            low: (P,) int64, lower state of each pair.
            first: (P,) int64, replicas in these states.
            second: (P,) int64, replicas in the states above.
        """
        raise NotImplementedError

    def _apply(self, before: Tensor, after: Tensor) -> None:
        """Gives this rank's replicas their new states."""
        raise NotImplementedError


class ReplicaExchange(StateExchange):
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
            simulation: see StateExchange; each replica with its own temperature.
            interval: steps.
            ranks: the ranks that share the replicas.
            log: gets a row of `states` after each exchange.

        Raises:
            InputError: see StateExchange; or temperatures that are equal.
            LostRankError: see Ranks.gather.
        """
        super().__init__(simulation, interval, ranks, log)
        self.temperatures = tuple(sorted(self._baths.tolist()))
        if len(set(self.temperatures)) < max(2, len(self._baths)):
            raise InputError(
                "An exchange needs replicas at different temperatures; give each its own."
            )
        self._kelvins = torch.tensor(self.temperatures, dtype=torch.float64)
        self._begin()

    def _own_columns(self) -> Tensor:
        kelvins = self._simulation.integrator.values()["temperature"]
        return torch.stack([self._simulation.state.energy, kelvins]).cpu()

    def _states_of(self, columns: Tensor) -> Tensor:
        # Temperatures are copied and never computed, so each equals one of the ladder bitwise.
        states = torch.searchsorted(self._kelvins, columns[1])
        if not torch.equal(self._kelvins[states.clamp(max=len(self._kelvins) - 1)], columns[1]):
            raise InputError(
                "The temperatures of the replicas are not those of the ladder; leave them to "
                "the exchange."
            )
        return states

    def _gains(self, columns: Tensor, low: Tensor, first: Tensor, second: Tensor) -> list[float]:
        return temperature_gains(columns[0], self._kelvins, low, first, second)

    def _apply(self, before: Tensor, after: Tensor) -> None:
        """Sets temperatures and scales velocities of this rank's replicas."""
        own = self._own
        if torch.equal(before[own], after[own]):
            return
        old, new = self._kelvins[before[own]], self._kelvins[after[own]]
        self._simulation.set(temperature=new.tolist())
        state = self._simulation.state
        state.velocities *= state.of_atoms(torch.sqrt(new / old).to(state.device))


class UmbrellaExchange(StateExchange):
    """Exchanges umbrellas between replicas; must be the first reporter of a simulation.

    The windows are the centres and stiffnesses of all harmonic biases, one window for each
    replica in the beginning; all replicas have one temperature. Every `interval` steps, replicas
    in neighboring windows, the pairs (0, 1), (2, 3) ... and (1, 2), (3, 4) ... in turn, swap them
    with the probability

    min(1, exp(-(U_i(x_b) + U_j(x_a) - U_i(x_a) - U_j(x_b)) / kT)),

    which preserves the canonical ensemble of every window. Velocities do not change.

    ========  =======================================
    i, j      windows of two replicas
    x_a, x_b  their configurations, a in window i, b in window j
    U_i       energy of the harmonic biases of window i, eV
    ========  =======================================

    Replicas keep their configurations and get another umbrella, as they get another temperature
    in `ReplicaExchange`: trajectories are those of walkers. Restart files hold the current centres
    with the biases, so a resumed run has the same bits, and decisions do not depend on the number
    of ranks. After a swap forces are evaluated again, and the conserved energy jumps.

    DOI 10.1063/1.481671 (their replicas differ in umbrellas as here; 10.1063/1.1472510 in
    general).

    Attributes:
        interval: steps from one exchange to the next.
        windows: (M, R) float64, centres and stiffnesses of all windows, in the order of replicas
            at the start.
        states: (R,) int64, window of each replica, over all ranks.
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
        """Takes the windows from the biases; syncs and blocks until all ranks are here.

        Args:
            simulation: see StateExchange; its harmonic biases with numbers for each replica.
            interval: steps.
            ranks: the ranks that share the replicas.
            log: gets a row of `states` after each exchange.

        Raises:
            InputError: see StateExchange; or temperatures that differ, or windows that do not.
            LostRankError: see Ranks.gather.
        """
        super().__init__(simulation, interval, ranks, log)
        if len(set(self._baths.tolist())) > 1:
            raise InputError(
                "Replicas that exchange umbrellas have one temperature; give one, or exchange "
                "temperatures by ReplicaExchange."
            )
        self._per_kt = 1.0 / (BOLTZMANN * float(self._baths[0]))
        biases = simulation.calculation.biases
        self._springs = [] if biases is None else biases.springs()
        own = [spring.given for spring in self._springs]
        rows = torch.cat(own) if own else torch.zeros(0, len(simulation.state.energy))
        self.windows = ranks.gather(rows, self._counts)
        if len({*map(tuple, self.windows.T.tolist())}) < max(2, len(self._baths)):
            raise InputError(
                "An exchange of umbrellas needs replicas with different ones; give a harmonic "
                "bias another centre or stiffness for each."
            )
        self._begin()

    def by_window(self, own: Tensor) -> Tensor:
        """Sorts what replicas have by their windows; blocks until all ranks are here.

        Args:
            own: (M, S) on the host, a column for each replica of this rank.

        Returns:
            (M, S) on the host, a column for each window with the numbers of this rank's replicas.

        Raises:
            LostRankError: see Ranks.gather.
        """
        columns = self._ranks.gather(own, self._counts)
        return columns[:, torch.argsort(self.states)[self._own]]

    def _own_columns(self) -> Tensor:
        biases = self._simulation.calculation.biases
        assert biases is not None
        rows = [spring.own(biases.values).T for spring in self._springs]
        rows += [spring.numbers() for spring in self._springs]
        return torch.cat(rows).cpu()

    def _states_of(self, columns: Tensor) -> Tensor:
        # Numbers are copied and never computed, so each equals those of a window bitwise.
        place = {
            numbers: state for state, numbers in enumerate(map(tuple, self.windows.T.tolist()))
        }
        own = columns[len(columns) - len(self.windows) :]
        states = [place.get(tuple(numbers), -1) for numbers in own.T.tolist()]
        if sorted(states) != list(range(len(states))):
            raise InputError(
                "The umbrellas of the replicas are not those of the start; leave them to the "
                "exchange."
            )
        return torch.tensor(states)

    def _energies(self, columns: Tensor, windows: Tensor, replicas: Tensor) -> Tensor:
        """Energies (P,) eV of the biases of windows at the configurations of replicas."""
        total = torch.zeros(len(windows), dtype=torch.float64)
        value = number = 0
        for spring in self._springs:
            count = len(spring.columns)
            values = columns[value : value + count, replicas].T
            centre, stiffness = self.windows[number : number + 2 * count, windows].split(count)
            total += spring_energies(values - centre.T, stiffness.T, spring.period.cpu())
            value, number = value + count, number + 2 * count
        return total

    def _gains(self, columns: Tensor, low: Tensor, first: Tensor, second: Tensor) -> list[float]:
        return umbrella_gains(partial(self._energies, columns), self._per_kt, low, first, second)

    def _apply(self, before: Tensor, after: Tensor) -> None:
        """Gives this rank's replicas their umbrellas, and evaluates the forces of these."""
        own = self._own
        if torch.equal(before[own], after[own]):
            return
        rows = self.windows[:, after[own]]
        for spring, numbers in zip(
            self._springs, rows.split([len(spring.given) for spring in self._springs]), strict=True
        ):
            spring.set_numbers_(numbers)
        self._simulation.evaluate_again()


def temperature_gains(
    energies: Tensor, kelvins: Tensor, low: Tensor, first: Tensor, second: Tensor
) -> list[float]:
    """(1/kT_a - 1/kT_b) (U_a - U_b) of each pair; a pure host function.

    Args:
        energies: (R,) float64, eV, potential energy of each replica.
        kelvins: (R,) float64, K, temperatures of the ladder.
        low: (P,) int64, lower state of each pair.
        first: (P,) int64, replicas in these states.
        second: (P,) int64, replicas in the states above.
    """
    beta = (1.0 / (BOLTZMANN * kelvins)).tolist()
    energy = energies.tolist()
    return [
        (beta[state] - beta[state + 1]) * (energy[cold] - energy[hot])
        for state, cold, hot in zip(low.tolist(), first.tolist(), second.tolist(), strict=True)
    ]


def umbrella_gains(
    energies: Callable[[Tensor, Tensor], Tensor],
    per_kt: float,
    low: Tensor,
    first: Tensor,
    second: Tensor,
) -> list[float]:
    """-(U_i(x_b) + U_j(x_a) - U_i(x_a) - U_j(x_b)) / kT of each pair; a pure host function.

    Args:
        energies: of windows (P,) at the configurations of replicas (P,), eV.
        per_kt: 1/kT, 1/eV.
        low: (P,) int64, windows i; j is the next one.
        first: (P,) int64, replicas a in these windows.
        second: (P,) int64, replicas b in the windows j.
    """
    after = energies(low, second) + energies(low + 1, first)
    before = energies(low, first) + energies(low + 1, second)
    gains: list[float] = (per_kt * (before - after)).tolist()
    return gains


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
    pairs = attempted_pairs(len(states), attempt)
    replica_at, low = torch.argsort(states), torch.tensor(pairs, dtype=torch.int64)
    gains = temperature_gains(energies, kelvins, low, replica_at[low], replica_at[low + 1])
    return swapped(states, pairs, gains, seed, step)


def swapped(
    states: Tensor, pairs: Sequence[int], gains: Sequence[float], seed: int, step: int
) -> Tensor:
    """States (R,) int64 after swaps with the probabilities min(1, exp(gain)).

    Args:
        states: (R,) int64, before.
        pairs: lower state of each pair.
        gains: of each pair.
        seed: key of the random numbers.
        step: step of the simulation.
    """
    low = torch.tensor(pairs, dtype=torch.int64)
    key = (torch.tensor(seed), torch.tensor(step), low, torch.zeros_like(low))
    thresholds = uniforms(*key, EXCHANGE)[:, 0].tolist()
    replica_at, after = torch.argsort(states).tolist(), states.tolist()
    for state, gain, uniform in zip(pairs, gains, thresholds, strict=True):
        if gain >= 0.0 or uniform < math.exp(gain):
            after[replica_at[state]], after[replica_at[state + 1]] = state + 1, state
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
            "Only replicas of one system can exchange; give each the same atoms, cell and charge."
        )
