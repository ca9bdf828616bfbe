"""Looks at starts of one structure while they run, and what their temperatures tell."""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from bonds import Bonds

from mdgraph.engine import Simulation

CLOSEST = 0.7
"""Of the shortest distance in training."""

MOST_BLOCKS = 20
FEWEST_BLOCKS = 4
"""Of the time of each start; too few tell no temperature."""


@dataclass
class Start:
    """One of the copies.

    Attributes:
        kelvin: at each look after the bath.
        closest: smallest ratio of a distance to the shortest in training.
        failures: what went wrong first, by kind, with the time in ps.
    """

    kelvin: list[float] = field(default_factory=list)
    closest: float = math.inf
    failures: dict[str, float] = field(default_factory=dict)


class Watch:
    """Looks at the starts that are still running; see Reporter."""

    def __init__(self, bonds: Bonds, simulation: Simulation, interval: int, bath: float) -> None:
        self.interval, self._bonds, self._bath = interval, bonds, bath
        self.starts = [Start() for _ in range(simulation.state.grouping.systems)]
        self.running = list(range(len(self.starts)))
        self.passed = 0.0
        self._first = bonds.graph(bonds.distances(self._positions(simulation)))
        self._changed = [False] * len(self.starts)

    @staticmethod
    def _positions(simulation: Simulation) -> Any:
        state = simulation.state
        return state.positions.view(state.grouping.systems, -1, 3)

    def report(self, simulation: Simulation) -> None:
        """Reads the device."""
        distances = self._bonds.distances(self._positions(simulation))
        closest = self._bonds.closeness(distances).tolist()
        graph = self._bonds.graph(distances)
        changed = (graph != self._first[self.running]).flatten(1).any(1).tolist()
        kelvin = simulation.observables().temperature.tolist()
        now = self.passed + 1e-3 * simulation.time
        for place, number in enumerate(self.running):
            start = self.starts[number]
            start.closest = min(start.closest, closest[place])
            if closest[place] < CLOSEST:
                start.failures.setdefault("contact", now)
            if changed[place] and self._changed[number]:
                start.failures.setdefault("bonds", now)
            self._changed[number] = changed[place]
            if now > self._bath:
                start.kelvin.append(kelvin[place])

    def lose(self, places: set[int], simulation: Simulation) -> None:
        """Goes on without the starts at these places of the simulation."""
        self.passed += 1e-3 * simulation.time
        for place in places:
            self.starts[self.running[place]].failures.setdefault("stopped", self.passed)
        self.running = [n for place, n in enumerate(self.running) if place not in places]


def judge_temperatures(starts: list[Start], bath: float, independent: int) -> list[float]:
    """Deviation of each mean temperature in standard errors, NaN where none can be told.

    The error of a mean is that of the means of blocks, pooled over the starts.

    Args:
        starts: with their temperatures, K.
        bath: K.
        independent: looks after which a temperature has forgotten itself; blocks are no shorter.
    """
    means, spreads = [], []
    for start in starts:
        blocks = min(MOST_BLOCKS, len(start.kelvin) // independent)
        if blocks < FEWEST_BLOCKS:
            means.append(math.nan)
            continue
        size = len(start.kelvin) // blocks
        told = np.reshape(start.kelvin[: size * blocks], (blocks, size)).mean(1)
        means.append(float(told.mean()))
        spreads.append(told.var(ddof=1) / blocks)
    error = math.sqrt(float(np.mean(spreads))) if spreads else math.nan
    return [(mean - bath) / error for mean in means]


def wilson(successes: int, trials: int, normal: float = 1.96) -> tuple[float, float]:
    """Interval of a share."""
    share, square = successes / trials, normal**2
    middle = (share + 0.5 * square / trials) / (1.0 + square / trials)
    spread = math.sqrt(share * (1.0 - share) / trials + 0.25 * square / trials**2)
    half = normal * spread / (1.0 + square / trials)
    return max(0.0, middle - half), min(1.0, middle + half)
