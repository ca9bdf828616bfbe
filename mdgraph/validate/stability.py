"""Stability of dynamics under a potential: many starts run as one batch, and k of n hold.

The starts are checked at regular intervals. A start fails if

- its bonds differ from the first ones at two checks in a row, since a stretched bond may return;
- a distance is below 0.7 of the shortest one of these elements in training;
- its forces are not finite or its temperature runs away; the other starts go on without it;
- its mean temperature, after the warm-up, is more than 5 standard errors off the bath, or more
  than chance explains where few blocks tell that error.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor

from mdgraph.engine import LangevinMiddle, Reporter, Simulation
from mdgraph.engine.observables import OnlineObservable
from mdgraph.errors import SimulationError
from mdgraph.evaluators import Evaluator
from mdgraph.models import Potential
from mdgraph.system import System
from mdgraph.validate.bonds import BondGraph

CLOSEST: Final = 0.7
"""Smallest ratio of a distance to the shortest one in training that is no failure."""

MOST_BLOCKS: Final = 20
FEWEST_BLOCKS: Final = 4
"""Blocks of the time of each start; fewer give no standard error of the temperature."""

SIGMAS: Final = 5.0
"""Standard errors that a mean temperature may be off the bath, at least."""

CHANCE: Final = 1e-4
"""That a sound start is further off than allowed. A standard error from few blocks is itself
uncertain: of two sound starts with five blocks each, one in 500 lies beyond 5 of them."""

MEMORIES: Final = 5.0
"""Times 1 / friction, after which the energy of an oscillator is independent of its start."""

_FEWEST_LOOKS: Final = 2
"""Checks before the wall time counts: fewer find no broken bond."""

_LOOKS: Final = 50
"""Checks in one call of the simulation; one where the wall time is limited."""


@dataclass(frozen=True, kw_only=True)
class StabilityOptions:
    """Settings of the runs of all starts.

    Attributes:
        temperature: K, of the bath.
        ps: length of each run.
        bath_ps: length of its warm-up, before means are taken.
        timestep: fs.
        friction: 1/ps.
        every_fs: time between two checks.
        precision: see `mdgraph.precision`.
        seed: of velocities and noise.
        minutes: wall time of steps after which the runs stop.
    """

    temperature: float = 300.0
    ps: float = 1000.0
    bath_ps: float = 10.0
    timestep: float = 0.5
    friction: float = 1.0
    every_fs: float = 100.0
    precision: str = "mixed"
    seed: int = 0
    minutes: float = math.inf

    @property
    def independent_looks(self) -> int:
        """Checks after which a temperature is independent."""
        return math.ceil(1e3 * MEMORIES / self.friction / self.every_fs)


@dataclass
class Start:
    """Record of one start.

    Attributes:
        kelvin: temperature at each check after the warm-up, K.
        closest: smallest ratio of a distance to the shortest in training.
        failures: the first time of each kind of failure, ps.
        evaporated: molecules apart from all others at the last check; this is no failure.
    """

    kelvin: list[float] = field(default_factory=list)
    closest: float = math.inf
    failures: dict[str, float] = field(default_factory=dict)
    evaporated: int = 0


class StabilityMonitor:
    """Reporter that checks the starts that still run.

    Attributes:
        interval: steps between two checks.
        starts: records of all starts.
        running: numbers of the starts in the simulation.
        elapsed: ps of simulations before this one.
    """

    def __init__(
        self, bonds: BondGraph, simulation: Simulation, interval: int, bath_ps: float
    ) -> None:
        """Records the bonds of the first positions, which must stay.

        Args:
            bonds: of one start.
            simulation: of all starts.
            interval: steps between two checks.
            bath_ps: time before temperatures count.
        """
        self.interval, self._bonds, self._bath_ps = interval, bonds, bath_ps
        self.starts = [Start() for _ in range(simulation.state.grouping.systems)]
        self.running = list(range(len(self.starts)))
        self.elapsed = 0.0
        distances = bonds.distances(_positions(simulation))
        self._first = bonds.graph(distances)
        bonds.evaporated(distances)
        self._differs = [False] * len(self.starts)

    def report(self, simulation: Simulation) -> None:
        """Reads the device; see `mdgraph.engine.Reporter`."""
        distances = self._bonds.distances(_positions(simulation))
        closest = self._bonds.closeness(distances).tolist()
        graph = self._bonds.graph(distances)
        differs = (graph != self._first[self.running]).flatten(1).any(1).tolist()
        evaporated = self._bonds.evaporated(distances).tolist()
        kelvin = simulation.observables().temperature.tolist()
        now = self.elapsed + 1e-3 * simulation.time
        for place, number in enumerate(self.running):
            start = self.starts[number]
            start.closest = min(start.closest, closest[place])
            start.evaporated = evaporated[place]
            if closest[place] < CLOSEST:
                start.failures.setdefault("contact", now)
            if differs[place] and self._differs[number]:
                start.failures.setdefault("bonds", now)
            self._differs[number] = differs[place]
            if now > self._bath_ps:
                start.kelvin.append(kelvin[place])

    def drop(self, places: set[int], simulation: Simulation) -> None:
        """Records that the starts at these places in the simulation stop; the others go on."""
        self.elapsed += 1e-3 * simulation.time
        for place in places:
            self.starts[self.running[place]].failures.setdefault("stopped", self.elapsed)
        self.running = [n for place, n in enumerate(self.running) if place not in places]


def _positions(simulation: Simulation) -> Tensor:
    """(S, N, 3) A."""
    state = simulation.state
    return state.positions.view(state.grouping.systems, -1, 3)


@dataclass(frozen=True)
class StabilityResult:
    """Outcome of all starts.

    Attributes:
        ps: length of the runs that did not stop.
        starts: records of all starts.
        deviations: of mean temperatures, in standard errors; NaN with too few blocks.
        ends: last structures, with velocities, of the starts that did not stop.
    """

    ps: float
    starts: list[Start]
    deviations: list[float]
    ends: list[System]

    @property
    def stable(self) -> int:
        """Starts without a failure."""
        return sum(not start.failures for start in self.starts)


def stability(
    systems: Sequence[System],
    potential: str | Path | Potential | Evaluator,
    bonds: BondGraph,
    options: StabilityOptions,
    device: torch.device,
    check: bool | None = True,
    observe: Sequence[OnlineObservable] = (),
    reporters: Sequence[Reporter] = (),
) -> StabilityResult:
    """Runs Langevin dynamics of all starts to the end, or as far as time allows.

    Args:
        systems: starts of the same atoms.
        potential: path, shipped name, Potential or Evaluator.
        bonds: of one start, on the device.
        options: settings of the runs.
        device: of the runs.
        check: compare a fast evaluator with the reference first, see Simulation.
        observe: what is recorded until a start stops.
        reporters: called as long.
    """
    every = max(1, round(options.every_fs / options.timestep))
    looks = _LOOKS if math.isinf(options.minutes) else 1
    simulation = _simulation(systems, potential, options, device, check=check, observe=observe)
    monitor = StabilityMonitor(bonds, simulation, every, options.bath_ps)
    steps = max(every, round(1e3 * options.ps / options.timestep / every) * every)
    done = 0
    simulation.choose(steps)
    # Kernels are compiled by now, which may take longer than all runs.
    deadline = time.monotonic() + 60.0 * options.minutes
    simulation.reporters += [monitor, *reporters]
    while done < steps and monitor.running:
        if done >= _FEWEST_LOOKS * every and time.monotonic() >= deadline:
            break
        begin = simulation.step
        try:
            simulation.run(min(every * looks, steps - done))
        except SimulationError as error:
            atoms = len(systems[0])
            places = {error.atoms[0] // atoms} if error.atoms else set(range(len(monitor.running)))
            rest = _others(simulation, systems[0], places)
            done += simulation.step - begin
            monitor.drop(places, simulation)
            if rest:
                seed = options.seed + done
                simulation = _simulation(
                    rest, potential, options, device, seed, False if check else check
                )
                simulation.reporters.append(monitor)
            continue
        done += simulation.step - begin
    ps = 1e-3 * done * options.timestep
    deviations = temperature_deviations(
        monitor.starts, options.temperature, options.independent_looks
    )
    largest = largest_deviation(monitor.starts, options.independent_looks)
    for start, deviation in zip(monitor.starts, deviations, strict=True):
        if abs(deviation) > largest:
            start.failures["temperature"] = ps
    ends = _others(simulation, systems[0], set()) if monitor.running else []
    return StabilityResult(ps, monitor.starts, deviations, ends)


def _others(simulation: Simulation, system: System, places: set[int]) -> list[System]:
    """All starts but those at some places, with their current positions and velocities."""
    state, atoms = simulation.state, len(system)
    parts = zip(state.positions.split(atoms), state.velocities.split(atoms), strict=True)
    return [
        system.replace(positions=x.double().cpu().numpy(), velocities=v.double().cpu().numpy())
        for place, (x, v) in enumerate(parts)
        if place not in places
    ]


def _simulation(
    systems: Sequence[System],
    potential: str | Path | Potential | Evaluator,
    options: StabilityOptions,
    device: torch.device,
    seed: int | None = None,
    check: bool | None = True,
    observe: Sequence[OnlineObservable] = (),
) -> Simulation:
    return Simulation(
        list(systems),
        potential,
        LangevinMiddle(options.timestep, options.temperature, options.friction),
        device=device,
        precision=options.precision,
        seed=options.seed if seed is None else seed,
        check=check,
        observe=observe,
    )


def temperature_deviations(
    starts: Sequence[Start], temperature: float, independent: int
) -> list[float]:
    """Deviation of each mean temperature in standard errors, NaN with too few blocks.

    The error of a mean is that of the means of blocks, pooled over the starts.

    Args:
        starts: with their temperatures, K.
        temperature: K, of the bath.
        independent: checks after which a temperature is independent; blocks are at least as long.
    """
    means, spreads = [], []
    for start, blocks in zip(starts, _numbers_of_blocks(starts, independent), strict=True):
        if not blocks:
            means.append(math.nan)
            continue
        size = len(start.kelvin) // blocks
        values = np.reshape(start.kelvin[: size * blocks], (blocks, size)).mean(1)
        means.append(float(values.mean()))
        spreads.append(values.var(ddof=1) / blocks)
    error = math.sqrt(float(np.mean(spreads))) if spreads else math.nan
    return [(mean - temperature) / error for mean in means]


def largest_deviation(starts: Sequence[Start], independent: int) -> float:
    """Standard errors that mean temperatures may be off: `SIGMAS`, or more of few blocks.

    Means over their estimated error follow Student's distribution with as many degrees of freedom
    as there are blocks, less one for each start; of it all but `CHANCE` lies within.

    Args:
        starts: see `temperature_deviations`.
        independent: see `temperature_deviations`.
    """
    from scipy.special import stdtrit

    blocks = [number for number in _numbers_of_blocks(starts, independent) if number]
    freedom = sum(blocks) - len(blocks)
    return max(SIGMAS, float(stdtrit(freedom, 1.0 - 0.5 * CHANCE))) if freedom else math.inf


def _numbers_of_blocks(starts: Sequence[Start], independent: int) -> list[int]:
    """Of each start; 0 for too few."""
    numbers = [min(MOST_BLOCKS, len(start.kelvin) // independent) for start in starts]
    return [number if number >= FEWEST_BLOCKS else 0 for number in numbers]
