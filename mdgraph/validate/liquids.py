"""Structure and diffusion of a liquid, with error bars; drops, slabs and molecules cut from one."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from mdgraph.analysis.rdf import radial_distribution
from mdgraph.engine import (
    MeanSquaredDisplacement,
    RadialDistributions,
    Simulation,
    StochasticVelocityRescaling,
    VelocityVerlet,
)
from mdgraph.errors import InputError
from mdgraph.system import System
from mdgraph.validate.bonds import BondGraph, first_atoms

Array = NDArray[np.float64]

MAXIMUM: Final = 5.0
BINS: Final = 100
"""A and bins of g(r)."""

GROUPS: Final = 10
"""Groups of training frames, whose scatter gives the standard error."""

CM2_PER_S: Final = 1e4
"""1e-5 cm^2/s in an A^2/fs."""

DROP: Final = 20
"""Most molecules of a drop."""

_SLAB_HEIGHT: Final = 3
"""Height of a slab's cell, in cells of the liquid."""


@dataclass(frozen=True, kw_only=True)
class LiquidOptions:
    """Settings of the runs of all starts.

    Attributes:
        temperature: K, of the bath.
        timestep: fs.
        bath_ps: length of the warm-up.
        ps: length of each run for g(r).
        blocks: parts of each run, each with a g(r) of its own.
        every: steps from one sample to the next.
        nve_ps: length of each run at constant energy, for D.
        window_ps: longest lag.
        lags: number of lags.
        fit: shares of the window between which the slope is fitted.
        precision: see `mdgraph.precision`.
        seed: of velocities and noise.
    """

    temperature: float = 300.0
    timestep: float = 0.5
    bath_ps: float = 10.0
    ps: float = 100.0
    blocks: int = 10
    every: int = 20
    nve_ps: float = 50.0
    window_ps: float = 10.0
    lags: int = 100
    fit: tuple[float, float] = (0.2, 0.9)
    precision: str = "mixed"
    seed: int = 0

    def steps(self, picoseconds: float, least: int = 1) -> int:
        """Steps in a time, at least `least`."""
        return max(least, round(1e3 * picoseconds / self.timestep))


def bin_distances() -> Array:
    """(100,) A, middle of each bin of g(r)."""
    return (np.arange(BINS) + 0.5) * MAXIMUM / BINS


def standard_error(values: Array) -> Array:
    """Standard error of the mean over the first axis; NaN for a single value."""
    if len(values) < 2:
        return np.full(values.shape[1:], np.nan)
    return np.asarray(values.std(0, ddof=1) / np.sqrt(len(values)))


def mean_and_error(blocks: Array) -> tuple[Array, Array]:
    """Mean over (blocks, starts, ...), and the larger of the standard errors of all and of starts.

    The error of a single value is NaN.
    """
    mean = blocks.mean((0, 1))
    every = blocks.reshape(-1, *blocks.shape[2:])
    return mean, np.fmax(standard_error(every), standard_error(blocks.mean(0)))


def pair_distributions(
    systems: Sequence[System],
    potential: str,
    pair: str,
    options: LiquidOptions,
    device: torch.device,
) -> tuple[Array, list[System]]:
    """(blocks, starts, 100) g(r) of a pair such as O-O, and the last structures.

    All starts advance as one batch, each with velocities and a bath of its own (stochastic
    velocity rescaling). The cutoff of the potential must be at least 5 A.

    Args:
        systems: starts of the same atoms.
        potential: path or shipped name.
        pair: two elements, the lighter one first.
        options: settings of the runs.
        device: of the runs.
    """
    distribution = RadialDistributions(MAXIMUM, bins=BINS, every=options.every)
    simulation = Simulation(
        list(systems),
        potential,
        StochasticVelocityRescaling(options.timestep, options.temperature),
        device=device,
        precision=options.precision,
        temperature=options.temperature,
        seed=options.seed,
        observe=[distribution],
    )
    simulation.choose(options.steps(options.ps))
    simulation.run(options.steps(options.bath_ps))
    blocks = []
    for _ in range(options.blocks):
        distribution.reset()
        simulation.run(options.steps(options.ps / options.blocks, options.every))
        result = distribution.result()
        blocks.append(result.value[:, result.pairs.index(pair)])
    positions, velocities = (
        np.split(tensor.cpu().double().numpy(), len(systems))
        for tensor in (simulation.state.positions, simulation.state.velocities)
    )
    ends = [
        system.replace(positions=x, velocities=v)
        for system, x, v in zip(systems, positions, velocities, strict=True)
    ]
    return np.array(blocks), ends


def frame_distribution(frames: Sequence[System], element: int) -> tuple[Array, Array]:
    """(100,) g(r) of one element over frames of the same atoms, and its standard error.

    The error comes from the scatter of groups of frames, which are taken for independent; of
    consecutive frames it is too small.
    """
    groups = [frames[first::GROUPS] for first in range(min(GROUPS, len(frames)))]
    atoms = np.flatnonzero(frames[0].numbers == element)
    values = np.array(
        [
            radial_distribution(
                ((frame.positions, frame.cell) for frame in group),
                atoms,
                atoms,
                maximum=MAXIMUM,
                width=MAXIMUM / BINS,
            ).value
            for group in groups
        ]
    )
    return values.mean(0), standard_error(values)


def first_peak_and_minimum(value: Array) -> tuple[int, int]:
    """Bins of the first peak of g(r), below 3.5 A, and of the minimum beyond it, below 4 A."""
    distance = bin_distances()
    peak = int(np.argmax(value * (distance < 3.5)))
    beyond = (distance > distance[peak]) & (distance < 4.0)
    return peak, int(np.argmin(np.where(beyond, value, np.inf)))


def diffusion(
    systems: Sequence[System],
    potential: str,
    element: str,
    options: LiquidOptions,
    device: torch.device,
) -> tuple[Array, Array]:
    """(S,) 1e-5 cm^2/s of an element in each start, and (S,) their mean temperatures, K.

    A sixth of the slope of the mean squared displacement at constant energy between two lags, in a
    box of this size, without a correction for it.

    Args:
        systems: starts with velocities.
        potential: path or shipped name.
        element: symbol.
        options: settings of the runs.
        device: of the runs.
    """
    total = options.steps(options.nve_ps, 2 * options.lags)
    every = max(1, options.steps(options.window_ps) // options.lags)
    displacement = MeanSquaredDisplacement(options.lags, every=every)
    simulation = Simulation(
        list(systems),
        potential,
        VelocityVerlet(options.timestep),
        device=device,
        precision=options.precision,
        observe=[displacement],
        check=False,
    )
    kelvin = []
    simulation.choose(total)
    for _ in range(total // (every * options.lags) or 1):
        simulation.run(every * options.lags)
        kelvin.append(simulation.observables().temperature.numpy())
    result = displacement.result()
    span = result.lag[-1]
    slope = result.diffusion(options.fit[0] * span, options.fit[1] * span)
    return CM2_PER_S * slope[:, result.elements.index(element)], np.mean(kelvin, axis=0)


def cut(liquid: System, shape: str) -> System:
    """A drop, slab or molecule without velocities; molecules are made whole.

    A drop is the first molecule with the nearest others, a slab lies in a cell three times as high,
    and a molecule is the first one alone. None of them occurs in the training set of a liquid.

    Args:
        liquid: of whole molecules, periodic in all directions and neutral.
        shape: `drop`, `slab` or `molecule`.

    Raises:
        InputError: the liquid is charged, has an open side or no separate molecules.
    """
    from mdgraph.drivers.openmm.topology import make_whole

    if not liquid.pbc.all():
        raise InputError("The liquid has an open side; give one that is periodic in all three.")
    if liquid.charge:
        raise InputError("The liquid is charged, and nothing tells where; give a neutral one.")
    positions = torch.tensor(liquid.positions)[None]
    graph = BondGraph(liquid, np.zeros((119, 119)), positions.device)
    bonds = (graph.distances(positions)[0] < graph.reach).numpy()
    first = first_atoms(bonds)
    if not first.any():
        raise InputError("All atoms of a frame hang together; give a liquid of molecules.")
    places = make_whole(liquid.positions, liquid.cell, np.argwhere(np.triu(bonds)))
    places = places - np.floor(places[first] @ np.linalg.inv(liquid.cell)) @ liquid.cell
    if shape == "slab":
        high = liquid.cell * [[1], [1], [_SLAB_HEIGHT]]
        return liquid.replace(positions=places, cell=high, velocities=None)
    if shape == "molecule":
        return System(liquid.numbers[first == 0], places[first == 0])
    apart = places[first] - places[0]
    places = places - np.round(apart @ np.linalg.inv(liquid.cell)) @ liquid.cell
    distance = np.linalg.norm(places[first] - places[0], axis=1)
    molecules, order = np.unique(first), np.unique(first, return_index=True)[1]
    nearest = molecules[np.argsort(distance[order], kind="stable")[:DROP]]
    kept = np.isin(first, nearest)
    return System(liquid.numbers[kept], places[kept])
