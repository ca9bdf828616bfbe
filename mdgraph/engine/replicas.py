"""Replicas in one batch, replica exchange with its record, and replicas spread over ranks."""

import math
from collections.abc import Sequence
from copy import copy
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from mdgraph.devices import ProcessRank
from mdgraph.engine.integrators import Integrator
from mdgraph.engine.random import EXCHANGE, uniforms
from mdgraph.engine.restraints import PositionRestraints, Springs
from mdgraph.engine.schedules import Schedule, checked_steps
from mdgraph.engine.simulation import Simulation
from mdgraph.engine.velocities import Conserved, draw_velocities_
from mdgraph.errors import InputError, MDGraphError, name_some
from mdgraph.io.log import read_log
from mdgraph.state import State
from mdgraph.system import System
from mdgraph.units import BOLTZMANN

if TYPE_CHECKING:
    from mdgraph.io.log import LogWriter


def attempted_pairs(states: int, attempt: int) -> list[int]:
    """The lower place of each pair that an attempt is made for: even ones, odd ones in turn.

    Of two states, which have one pair, every attempt is made for that one.
    """
    return list(range(attempt % 2 if states > 2 else 0, states - 1, 2))


class ExchangeRecord:
    """Attempts and acceptances of each pair of neighbors, and round trips of each replica.

    Attributes:
        attempted: for each pair (n, n + 1) of the ladder, how often.
        accepted: how often of these.
        round_trips: of each replica, from the bottom of the ladder to its top and back.
    """

    def __init__(self, replicas: int, interval: int) -> None:
        """Empty.

        Args:
            replicas: how many.
            interval: steps from one exchange to the next.
        """
        self._interval = interval
        self.attempted = [0] * (replicas - 1)
        self.accepted = [0] * (replicas - 1)
        self.round_trips = [0] * replicas
        self._states: list[int] = []
        self._seen_bottom = [False] * replicas
        self._seen_top = [False] * replicas

    @classmethod
    def read(cls, path: str | Path, interval: int) -> "ExchangeRecord":
        """That of a log of exchanges, whose first row is the start.

        Raises:
            FileError: the file cannot be read or is no log.
        """
        table = read_log(path)
        steps = table.pop("step").tolist()
        rows = [[int(state) for state in row] for row in zip(*table.values(), strict=True)]
        record = cls(len(table), interval)
        for place, (step, row) in enumerate(zip(steps, rows, strict=True)):
            if place == 0:
                record.begin(row)
            else:
                record.add(step, row)
        return record

    def begin(self, states: Sequence[int]) -> None:
        """Takes the places from which replicas start."""
        self._states = list(states)
        self._visit()

    def add(self, step: int, states: Sequence[int]) -> None:
        """Takes the places after the exchanges of one step."""
        place = {state: replica for replica, state in enumerate(states)}
        for low in attempted_pairs(len(states), step // self._interval):
            self.attempted[low] += 1
            self.accepted[low] += self._states[place[low]] == low + 1
        self._states = list(states)
        self._visit()

    def _visit(self) -> None:
        last = len(self._states) - 1
        for replica, state in enumerate(self._states):
            if state == 0:
                self.round_trips[replica] += self._seen_top[replica]
                self._seen_bottom[replica], self._seen_top[replica] = True, False
            elif state == last:
                self._seen_top[replica] = self._seen_bottom[replica]

    def rates(self) -> list[float]:
        """Share of attempts that were accepted, of each pair; NaN where there were none."""
        return [
            done / tried if tried else float("nan")
            for done, tried in zip(self.accepted, self.attempted, strict=True)
        ]


class LostRankError(MDGraphError):
    """Another rank of a job is gone, or answers no more."""


class Ranks(ProcessRank):
    """The place of this process among those of a job that share replicas."""

    @classmethod
    def join(cls, timeout: float = 1800.0) -> "Ranks":
        """Joins the job that torchrun's variables name; alone without them.

        What ranks tell each other is a few numbers a replica, from which the host decides,
        so they do it by gloo, on GPUs too: it notices at once that a rank died, where a GPU
        would wait for it.

        Args:
            timeout: s, that a rank is waited for.

        Raises:
            InputError: see `ProcessRank.joined`.
        """
        return cls.joined("gloo", timeout)

    def shares(self, replicas: int) -> list[range]:
        """Replicas of every rank, one after the other and as even as can be.

        Raises:
            InputError: fewer replicas than ranks.
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
        """The numbers that all ranks give; every rank waits here for all others.

        Args:
            number: of this rank.

        Raises:
            LostRankError: a rank is gone.
        """
        numbers: list[int] = self.gather(torch.tensor([[number]]), [1] * self.count)[0].tolist()
        return numbers

    def gather(self, own: Tensor, counts: Sequence[int]) -> Tensor:
        """Joins the columns of all ranks; every rank waits here for all others.

        Args:
            own: (M, S) on the host, a column for each replica of this rank.
            counts: S of every rank.

        Returns:
            (M, R) on the host, in the order of ranks.

        Raises:
            LostRankError: a rank is gone.
        """
        if self.count == 1:
            return own
        from torch import distributed

        on_gpu = distributed.get_backend() == "nccl"
        device = torch.device("cuda", self.local) if on_gpu else own.device
        padded = own.new_zeros(len(own), max(counts), device=device)
        padded[:, : own.shape[1]] = own
        parts = [torch.empty_like(padded) for _ in counts]
        try:
            distributed.all_gather(parts, padded)
        except RuntimeError as error:
            raise LostRankError(
                f"Rank {self.rank} of {self.count} lost another one; the last checkpoints of "
                "all are whole, so start them again from there."
            ) from error
        return torch.cat(
            [part[:, :count].cpu() for part, count in zip(parts, counts, strict=True)], dim=1
        )


ALONE: Final = Ranks()
"""One process with all replicas."""


def replica_simulation(
    systems: Sequence[System],
    potential: Any,
    integrator: Integrator,
    ranks: Ranks = ALONE,
    *,
    seed: int = 0,
    temperature: float | Sequence[float] | None = None,
    exact_temperature: bool = False,
    fixed: Sequence[int] = (),
    restraints: PositionRestraints | None = None,
    **options: Any,
) -> Simulation:
    """The share of this rank of a batch of replicas, with the random numbers it has in the whole.

    Args:
        systems: all replicas, the same or different ones.
        potential: see Simulation.
        integrator: of all replicas; a parameter is one number, or one for each of them.
        ranks: who else has replicas.
        seed: key of all random numbers.
        temperature: K of initial velocities; the bath's unless given.
        exact_temperature: scale initial velocities to exactly that temperature.
        fixed: see Simulation; atoms are counted among those of all replicas.
        restraints: see Simulation; likewise.
        options: see Simulation.

    Raises:
        InputError: see Simulation; fewer replicas than ranks.
    """
    share = ranks.share(len(systems))
    begins = [0, *accumulate(map(len, systems))]
    atoms = range(begins[share.start], begins[share.stop])
    fixed, restraints = _within(atoms, begins[-1], fixed, restraints)
    mine = copy(integrator)
    mine.parameters = {name: _part(one, share) for name, one in integrator.parameters.items()}
    if temperature is None:
        bath = mine.parameters.get("temperature")
        kelvin: float | Sequence[float] = bath.start if bath else 0.0
    else:
        kelvin = _part(Schedule("temperature", temperature), share).start
    own = [systems[number] for number in share]
    # Drawn on the host, so that they do not depend on how many ranks there are.
    state = State(own, "cpu", torch.float64, seed)
    state.replica += share.start
    state.fix_(fixed)
    steady = mine.conserves_momentum
    held = () if restraints is None else Springs(restraints, state).restrained(state)
    conserved = Conserved(steady or options.get("remove_momentum", 0) > 0, steady, held)
    keep = [one.velocities is not None for one in own]
    draw_velocities_(state, kelvin, exact_temperature, conserved, keep)
    velocities = state.velocities.split(state.grouping.sizes)
    own = [one.replace(velocities=v.numpy()) for one, v in zip(own, velocities, strict=True)]
    simulation = Simulation(
        own, potential, mine, seed=seed, fixed=fixed, restraints=restraints, **options
    )
    if share.start:
        simulation.state.replica += share.start
        simulation.integrator.allocate(simulation.state)
    return simulation


def _within(
    atoms: range, count: int, fixed: Sequence[int], restraints: PositionRestraints | None
) -> tuple[list[int], PositionRestraints | None]:
    """What holds the atoms of one rank; raises InputError for an atom that no rank has."""
    named = [*fixed, *(() if restraints is None else restraints.atoms)]
    wrong = [atom for atom in named if not 0 <= atom < count]
    if wrong:
        raise InputError(
            f"There are no atoms {name_some(wrong)} to fix or restrain; all replicas together "
            f"have the atoms from 0 to {count - 1}."
        )
    own = [atom - atoms.start for atom in fixed if atom in atoms]
    return own, None if restraints is None else restraints.within(atoms)


def _part(schedule: Schedule, share: range) -> Schedule:
    """A schedule of the replicas of one rank."""
    part = copy(schedule)
    for name in ("start", "end"):
        numbers = getattr(schedule, name)
        setattr(part, name, numbers if len(numbers) == 1 else numbers[share.start : share.stop])
    return part


class ReplicaExchange:
    """Exchanges temperatures between neighbors of a ladder; the first reporter of a simulation.

    Every `interval` steps, replicas at neighboring temperatures, the pairs (0, 1), (2, 3) ...
    and (1, 2), (3, 4) ... in turn, trade them with the probability

    min(1, exp((1/kT_a - 1/kT_b) (U_a - U_b))),

    which leaves every temperature its canonical ensemble. Velocities then grow by
    sqrt(T_new / T_old). Chains of Nose-Hoover thermostats stay as they are: with masses in
    proportion to kT, the distribution of their velocities is the same at all temperatures.

    =========  =======================================
    T_a, T_b   temperatures of two replicas, K
    U_a, U_b   their potential energies, eV, restraints included
    =========  =======================================

    The random number of a decision is a function of (seed, step, pair), and the temperatures
    of the moment are those of the integrator, which restart files hold; so a run goes on from
    one with the same bits. Replicas may be spread over ranks: each sees all energies and
    takes the same decisions. With forces of which each system's own atoms alone decide the
    bits, ranks give those of one process; the networks' matrix products round by the batch.

    A conserved energy jumps where a temperature changes.

    DOI 10.1016/S0009-2614(99)01123-9; with thermostats' own variables 10.1143/JPSJ.79.074003.

    Attributes:
        interval: steps from one exchange to the next.
        temperatures: of the ladder, ascending, K.
        states: place on the ladder of every replica, of all ranks.
        record: what was tried and accepted since this was made.
        leaving: why the runs of all ranks return, see `stop`; 0 until all know of it.
    """

    def __init__(
        self,
        simulation: Simulation,
        interval: int,
        ranks: Ranks = ALONE,
        log: "LogWriter | None" = None,
    ) -> None:
        """Reads the ladder off the simulation's integrator; waits for all ranks.

        Args:
            simulation: replicas of one system, each with a temperature of its own; a share of
                them where there are several ranks, see
                `mdgraph.engine.replicas`.
            interval: steps.
            ranks: who else has replicas.
            log: takes a row of `states` after each exchange.

        Raises:
            InputError: an ensemble without a bath or with a barostat, temperatures that
                are on a ramp or equal, replicas of different systems, no steps.
            LostRankError: see Ranks.gather.
        """
        self.interval = checked_steps(interval, 1, "The interval of exchanges")
        self._simulation, self._ranks, self._log = simulation, ranks, log
        given = _given_temperatures(simulation.integrator)
        systems = simulation.state.grouping.systems
        if len(given) not in (1, systems):
            raise InputError(f"There are {len(given)} temperatures for {systems} replicas.")
        _check_replicas(simulation.state)
        self.leaving = self._asked = 0
        own = torch.tensor(given, dtype=torch.float64).expand(systems)
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
        self.states = self._gathered()[1]
        self.record = ExchangeRecord(len(self.states), self.interval)
        self.record.begin(self.states.tolist())

    def stop(self, reason: int = 1) -> None:
        """Asks the runs of all ranks to return at the next exchange; safe in a signal handler.

        Args:
            reason: a number above 0 that every rank then finds in `leaving`.
        """
        # What was asked for after ranks met waits for the next time, when all hear of it.
        self._asked = reason

    def report(self, simulation: Simulation) -> None:
        """One round of exchanges; reads the device and waits for all ranks.

        Raises:
            LostRankError: see Ranks.gather.
        """
        energies, states, self.leaving = self._gathered()
        step, seed = simulation.step, int(simulation.state.seed)
        after = exchanged(states, energies, self._kelvins, seed, step, step // self.interval)
        self._take(states, after)
        self.states = after
        self.record.add(step, after.tolist())
        if self._log is not None:
            row = {f"replica_{number}": state for number, state in enumerate(after.tolist())}
            self._log.append({"step": step, **row})
        if self.leaving:
            simulation.stop()

    def _gathered(self) -> tuple[Tensor, Tensor, int]:
        """Energies and places on the ladder of all replicas, and why a rank would stop, else 0."""
        simulation = self._simulation
        kelvins = simulation.integrator.values()["temperature"]
        own = torch.stack([simulation.state.energy, kelvins]).cpu()
        reason = torch.full_like(own[:1], float(self._asked))
        every = self._ranks.gather(torch.cat([own, reason]), self._counts)
        # Temperatures are copied, never computed, so each is one of the ladder to the bit.
        states = torch.searchsorted(self._kelvins, every[1])
        if not torch.equal(self._kelvins[states.clamp(max=len(self._kelvins) - 1)], every[1]):
            raise InputError(
                "The temperatures of the replicas are not those of the ladder; leave them to "
                "the exchange."
            )
        return every[0], states, int(every[2].max())

    def _take(self, before: Tensor, after: Tensor) -> None:
        """Gives the replicas of this rank their temperatures and velocities."""
        own = slice(self._first, self._first + self._counts[self._ranks.rank])
        if torch.equal(before[own], after[own]):
            return
        old, new = self._kelvins[before[own]], self._kelvins[after[own]]
        self._simulation.set(temperature=new.tolist())
        state = self._simulation.state
        state.velocities *= state.of_atoms(torch.sqrt(new / old).to(state.device))


def exchanged(
    states: Tensor, energies: Tensor, kelvins: Tensor, seed: int, step: int, attempt: int
) -> Tensor:
    """Places on the ladder after one round of exchanges; a pure function, on the host.

    Args:
        states: (R,) int64, place of each replica before.
        energies: (R,) float64, eV, potential energy of each replica.
        kelvins: (R,) float64, K, the ladder.
        seed: key of the random numbers.
        step: of the simulation.
        attempt: number of the round, which decides the pairs.
    """
    replica_at = torch.argsort(states).tolist()
    pairs = torch.tensor(attempted_pairs(len(states), attempt), dtype=torch.int64)
    key = (torch.tensor(seed), torch.tensor(step), pairs, torch.zeros_like(pairs))
    drawn = uniforms(*key, EXCHANGE)[:, 0].tolist()
    beta = (1.0 / (BOLTZMANN * kelvins)).tolist()
    energy, after = energies.tolist(), states.tolist()
    for low, uniform in zip(pairs.tolist(), drawn, strict=True):
        cold, hot = replica_at[low], replica_at[low + 1]
        gain = (beta[low] - beta[low + 1]) * (energy[cold] - energy[hot])
        if gain >= 0.0 or uniform < math.exp(gain):
            after[cold], after[hot] = low + 1, low
    return torch.tensor(after)


def _given_temperatures(integrator: Integrator) -> tuple[float, ...]:
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
    rows = [one.split(sizes) for one in (state.numbers, state.masses, state.fixed)]
    rows += [state.cell.unbind(), state.charge.unbind()]
    if any(not torch.equal(row[0], other) for row in rows for other in row[1:]):
        raise InputError(
            "Only replicas of one system can exchange temperatures; give each the same atoms, "
            "cell and charge."
        )
