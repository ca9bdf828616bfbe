"""Ranks that share the replicas of a run: the simulation of each, and what all do together."""

from collections.abc import Mapping, Sequence
from copy import copy
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from mdgraph.biases import Bias, CollectiveVariable
from mdgraph.biases.applied import check_variables, hold_systems
from mdgraph.biases.bias import check_names
from mdgraph.devices import ProcessRank
from mdgraph.engine.integrators import Integrator
from mdgraph.engine.restart import load_restart_
from mdgraph.engine.restraints import PositionRestraints, Springs
from mdgraph.engine.schedules import Schedule
from mdgraph.engine.simulation import Simulation, in_bath
from mdgraph.engine.velocities import Conserved, draw_velocities_
from mdgraph.errors import FileError, InputError, name_some
from mdgraph.selection import select_in_all
from mdgraph.state import State
from mdgraph.system import System


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


class RanksReporter:
    """Base of reporters at which all ranks meet, so that they can stop together.

    Attributes:
        interval: steps from one meeting to the next.
        leaving: reason why all ranks stop, see `stop`; 0 until all ranks know it.
    """

    def __init__(self, interval: int, systems: int, ranks: Ranks) -> None:
        """Counts the replicas; blocks until all ranks are here.

        Args:
            interval: steps.
            systems: replicas of this rank.
            ranks: the ranks that share the replicas.

        Raises:
            LostRankError: see Ranks.gather.
        """
        self.interval = interval
        self.leaving = self._stop_reason = 0
        self._ranks, self._counts = ranks, ranks.numbers(systems)
        self._first = sum(self._counts[: ranks.rank])

    def stop(self, reason: int = 1) -> None:
        """Stops the runs of all ranks at the next meeting; safe in a signal handler.

        Args:
            reason: a number above 0, which `leaving` then has on every rank.
        """
        # The meeting tells the other ranks, so all stop after the same one.
        self._stop_reason = reason

    def _meet(self, own: Tensor) -> tuple[Tensor, int]:
        """Gathers columns of all replicas, and the reason to stop of any rank, else 0.

        Args:
            own: (M, S) float64 on the host, of this rank's replicas.

        Returns:
            (M, R) on the host, and the reason.

        Raises:
            LostRankError: see Ranks.gather.
        """
        reason = torch.full_like(own[:1], float(self._stop_reason))
        columns = self._ranks.gather(torch.cat([own, reason]), self._counts)
        return columns[:-1], int(columns[-1].max())

    @property
    def _own(self) -> slice:
        """The replicas of this rank among all."""
        return slice(self._first, self._first + self._counts[self._ranks.rank])


class SharedHills(RanksReporter):
    """Adds the hills of the walkers of all ranks, before reporters are called.

    At the steps of hills, where a graph ends and the host has checked the steps before, ranks
    gather values and energies of all walkers, in the order of ranks. Each of them then adds the
    hills of all to its own grid by the same sum as a single process, so the grids of all ranks
    have the same bits, on hardware of one kind. Nothing of this is within a step, so there is
    nothing to undo where a neighbor list overflows.

    Attributes:
        interval: steps from one hill to the next.
        leaving: reason why all ranks stop, see `stop`; 0 until all ranks know it.
    """

    def __init__(self, simulation: Simulation, name: str, ranks: Ranks) -> None:
        """Counts the walkers; blocks until all ranks are here.

        Args:
            simulation: this rank's part of `replica_simulation`.
            name: of the bias.
            ranks: the ranks that share the walkers.

        Raises:
            LostRankError: see Ranks.gather.
        """
        biases = simulation.calculation.biases
        assert biases is not None
        self._biases, self._name = biases, name
        self._hills = biases.metadynamics()[name]
        super().__init__(self._hills.every, len(self._hills.energy), ranks)

    def report(self, simulation: Simulation) -> None:
        """Adds the hills of this step; syncs and blocks until all ranks are here.

        Raises:
            LostRankError: see Ranks.gather.
        """
        hills = self._hills
        own = torch.cat([hills.own(self._biases.values).T, hills.energy[None]]).cpu()
        columns, self.leaving = self._meet(own)
        values, energies = columns.to(hills.energy.device).split([len(columns) - 1, 1])
        self._biases.add_hills_(self._name, values.contiguous(), energies[0])
        if self.leaving:
            simulation.stop()


def shared_hills(simulation: Simulation, ranks: Ranks) -> list[SharedHills]:
    """A reporter for each bias whose walkers are on several ranks, the most frequent hills first.

    Blocks until all ranks are here; raises LostRankError as `Ranks.gather` does.
    """
    biases = simulation.calculation.biases
    known = {} if biases is None else biases.metadynamics()
    apart = sorted((hills.every, name) for name, hills in known.items() if hills.apart)
    return [SharedHills(simulation, name, ranks) for _, name in apart]


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
        biases: see Simulation; rows of numbers are those of all replicas. Walkers that share their
            hills may be on several ranks: `SharedHills` of the simulation's `hill_reporters` add
            them.
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
    simulation.hill_reporters += shared_hills(simulation, ranks)
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


def load_common_restart_(simulation: Simulation, before: Path, ranks: Ranks) -> bool:
    """Loads the last restart file whose step all ranks have; blocks until all ranks are here.

    The last restart file of this rank is loaded already. Ranks are never more than a meeting (an
    exchange, or hills that they share) apart, checkpoints are at least as far apart, and all ranks
    meet before the last one, so all ranks have one of the last two steps in common.

    Args:
        simulation: of this rank.
        before: its last restart file but one.
        ranks: that share the replicas.

    Returns:
        Whether a later file exists, which the caller drops.

    Raises:
        FileError: there is no such file; see `load_restart_`.
        LostRankError: see Ranks.gather.
    """
    ahead = simulation.step > min(ranks.numbers(simulation.step))
    ahead = ahead and before.exists()
    if ahead:
        load_restart_(simulation, before)
    if len(set(ranks.numbers(simulation.step))) > 1:
        raise FileError(
            f"{before.parent} and the folders beside it have no checkpoint of the same step; put "
            "back the files of one run."
        )
    return ahead
