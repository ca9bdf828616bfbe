"""Replica exchange: replicas of a system trade the temperatures of their baths."""

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mdgraph.engine.exchange_record import ExchangeRecord, attempted_pairs
from mdgraph.engine.integrators import Integrator
from mdgraph.engine.parameters import checked_steps
from mdgraph.engine.random import EXCHANGE, uniforms
from mdgraph.engine.ranks import ALONE, Ranks
from mdgraph.engine.simulation import Simulation
from mdgraph.errors import InputError
from mdgraph.state import State
from mdgraph.units import BOLTZMANN

if TYPE_CHECKING:
    from mdgraph.io.log import LogWriter


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
    schedule = integrator.given.get("temperature")
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
