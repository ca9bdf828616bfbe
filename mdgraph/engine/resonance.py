"""How two potentials differ at the frequencies of bonds, which limits their outer step."""

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from mdgraph.devices import device_named
from mdgraph.engine.calculation import Calculation, as_evaluator
from mdgraph.engine.integrators import VelocityVerlet
from mdgraph.engine.simulation import Simulation
from mdgraph.precision import precision_named
from mdgraph.system import System
from mdgraph.units import SPEED_OF_LIGHT, SYMBOLS

Array = NDArray[np.float64]

LOWEST: Final = 2000.0
"""1/cm; bonds to hydrogen, and few others, vibrate faster."""

TIME: Final = 200.0
"""fs of the steps that are looked at: 170/cm between two wavenumbers."""

INTERVAL: Final = 2.0
"""fs between samples, at most: up to 8,300/cm, where no bond vibrates."""

_MOST: Final = 0.8
"""Share of the power above `LOWEST` that counts; the window spreads a line by a sixth each way."""

_NONE: Final = 1e-3
"""A smaller share of the forces above `LOWEST` drives nothing."""

_SAFE: Final = 0.9
"""Share of the longest step from which on a step is warned of: a fifth of the power lies at
frequencies above those it was taken from, and water with 4.2 fs ran away at 4.0
(docs/multiple_time_steps.md)."""


@dataclass(frozen=True, eq=False)
class ForceDifference:
    """Power of the forces of a large potential, and of their difference to a small one.

    Attributes:
        elements: E symbols.
        wavenumber: (K,) float64, 1/cm, from 0 on.
        difference: (E, K) float64, eV^2/A^2; sums to the mean square of F_large - F_small less
            its mean, a mean over the atoms of the element.
        large: (E, K) of F_large likewise.
    """

    elements: tuple[str, ...]
    wavenumber: Array
    difference: Array
    large: Array

    def rms(self) -> Array:
        """Root mean square (E,) of the difference above `LOWEST`, eV/A."""
        return self._above(self.difference)

    def shares(self) -> Array:
        """`rms` over that of the large potential's forces (E,); 0 without forces there."""
        whole = self._above(self.large)
        return np.divide(self.rms(), whole, out=np.zeros_like(whole), where=whole > 0.0)

    def highest(self) -> Array:
        """Wavenumber (E,), 1/cm, below which four fifths of the power above `LOWEST` lie."""
        fast = self.wavenumber >= LOWEST
        ends = self.wavenumber[fast] + 0.5 * self.wavenumber[1]
        sums = np.cumsum(self.difference[:, fast] + np.finfo(float).tiny, axis=1)
        return np.array([np.interp(_MOST * own[-1], own, ends) for own in sums])

    def longest_steps(self) -> Array:
        """Outer steps (E,), fs, from which on most impulses resonate; infinite without any.

        An oscillator of force constant k, of which the impulses are the part dk, gains energy
        where half of its period is from 1 to 1 / (1 - dk/k) outer steps.
        """
        halves = 0.5 / (SPEED_OF_LIGHT * self.highest())
        share = self.shares().clip(max=1.0)
        return np.where(share < _NONE, np.inf, halves * (1.0 - share))

    def text(self, outer_step: float) -> tuple[bool, str]:
        """Whether an outer step, fs, is within a tenth of resonance, and a sentence about it."""
        limits, shares, rms, highest = (
            *(self.longest_steps(), self.shares()),
            *(self.rms(), self.highest()),
        )
        parts = [
            f"{symbol} by {rms[number]:.2g} eV/A ({100.0 * shares[number]:.2g} % of those there)"
            for number, symbol in enumerate(self.elements)
            if shares[number] >= _NONE
        ]
        if not parts:
            return False, (
                f"Above {LOWEST:,.0f} /cm the forces of the two potentials do not differ by "
                f"{100.0 * _NONE:g} %, so nothing there limits the outer step."
            )
        first = int(limits.argmin())
        resonates = outer_step >= _SAFE * limits[first]
        advice = "; take fewer inner_steps or a shorter time step" if resonates else ""
        return resonates, (
            f"Above {LOWEST:,.0f} /cm the forces of the two potentials differ on "
            f"{', on '.join(parts)}. Those on {self.elements[first]} reach {highest[first]:,.0f} "
            f"/cm, where outer steps from {limits[first]:.2g} fs on gain energy by resonance, and "
            f"the fastest bonds from {_SAFE * limits[first]:.2g} fs on; this one is "
            f"{outer_step:g} fs{advice}."
        )

    def _above(self, power: Array) -> Array:
        sums: Array = power[:, self.wavenumber >= LOWEST].sum(axis=1)
        return np.sqrt(sums)


def samples_of(timestep: float) -> tuple[int, int]:
    """Samples that `force_difference` takes, 32 at least, and steps from one to the next."""
    every = max(1, int(INTERVAL / timestep * (1.0 + 1e-9)))
    return max(32, math.ceil(TIME / (every * timestep))), every


def force_difference(
    system: System,
    potential: Any,
    inner_potential: Any,
    timestep: float,
    *,
    temperature: float = 300.0,
    device: str | torch.device = "auto",
    precision: str = "mixed",
    evaluator: str = "auto",
    **options: Any,
) -> ForceDifference:
    """Compares two potentials along a short run at constant energy by the small one; syncs.

    Velocities do not enter: samples of both forces on every atom are transformed, with a Hann
    window, and the squares are averaged over the atoms of an element.

    Args:
        system: velocities are kept where it has some.
        potential: the large one: a path, a name, a Potential or an Evaluator.
        inner_potential: the small one.
        timestep: fs, of the small potential.
        temperature: K, of velocities that are drawn.
        device: see Simulation.
        precision: see Simulation.
        evaluator: see Simulation.
        options: see Simulation.

    Raises:
        InputError: see Simulation.
        SimulationError: the small potential does not hold the system at this time step.
    """
    precision_of, place = precision_named(precision), device_named(device)
    large, small = (
        as_evaluator(one, precision_of, place, evaluator) for one in (potential, inner_potential)
    )
    options = {"check": None, "skin": 0.3} | options
    common: dict[str, Any] = {"device": place, "precision": precision_of}
    run = Simulation(
        system, small, VelocityVerlet(timestep), temperature=temperature, **common, **options
    )
    other = Calculation([system], large, cell_varies=False, **common)
    count, every = samples_of(timestep)
    forces = np.zeros((2, count, len(system), 3))
    for number in range(count):
        other.state.place_(run.state.places())
        other.compute(graphed=place.type == "cuda")
        of_large = other.state.forces.double()
        forces[0, number] = (of_large - run.state.forces.double()).cpu().numpy()
        forces[1, number] = of_large.cpu().numpy()
        run.run(every)
    wavenumber = np.fft.rfftfreq(count, every * timestep).astype(np.float64) / SPEED_OF_LIGHT
    elements = np.unique(system.numbers)
    powers = [_power(series) for series in forces]
    by_element = [
        np.stack([power[:, system.numbers == element].mean(axis=1) for element in elements])
        for power in powers
    ]
    return ForceDifference(tuple(SYMBOLS[n] for n in elements), wavenumber, *by_element)


def _power(series: Array) -> Array:
    """Power (K, N) of vectors (T, N, 3) without their means; sums to the mean square."""
    count = len(series)
    window = np.sin(np.pi * (np.arange(count) + 0.5) / count) ** 2
    varying = (series - series.mean(axis=0)) * window[:, None, None]
    power: Array = (np.abs(np.fft.rfft(varying, axis=0)) ** 2).sum(axis=-1)
    power[1 : (count + 1) // 2] *= 2.0  # negative frequencies
    return power / (count * (window**2).sum())


def worth_measuring(outer_steps: int, timestep: float) -> bool:
    """Whether the samples take less than a twentieth of the evaluations of a run."""
    return outer_steps >= 20 * samples_of(timestep)[0]
