"""Structure and diffusion of the shipped water, with error bars, against its training frames.

    python benchmarks/liquid.py [--starts 5] [--ps 100] [--frames train.extxyz.gz] [--picture FILE]

All starts advance as one batch, each with velocities and a bath of its own (stochastic
velocity rescaling). After the warm-up g_OO is counted on the device, up to the cutoff of the
potential, in blocks; its standard error is the larger of those from the scatter of all
blocks and from that of the starts. Training frames come from `metrics.json` of the potential,
without errors, or from --frames, where the scatter of groups of frames makes them: too small
ones, as frames that follow each other in time count as independent.

Then the bath goes, and the oxygens' mean squared displacement is recorded at constant energy,
one run a start: D is a sixth of its slope between two lags, in a box of this size (no
correction). With --ase ASE's velocity Verlet runs from the same starts, with mdgraph as its
calculator.

With --state what is known is kept in a file, after g_OO, after the runs at constant energy and
after each run of ASE, and a command that was stopped goes on after the last of them. Give the
same options each time; --ase may come later.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
from ase import units
from ase.md.verlet import VelocityVerlet as ASEVelocityVerlet
from conditions import hardware
from drift import POTENTIAL, box, split
from numpy.typing import NDArray

from mdgraph.analysis.rdf import radial_distribution
from mdgraph.analysis.style import BLUE, LINE, ORANGE, blank_figure, dress
from mdgraph.checkpoints import shipped_potentials
from mdgraph.devices import device_named
from mdgraph.drivers.ase import MDGraphCalculator
from mdgraph.engine import (
    MeanSquaredDisplacement,
    RadialDistributions,
    Simulation,
    StochasticVelocityRescaling,
    VelocityVerlet,
)
from mdgraph.errors import InputError
from mdgraph.io.atoms import to_ase
from mdgraph.io.files import write_atomically
from mdgraph.precision import PRECISIONS
from mdgraph.system import System

Array = NDArray[np.float64]

MAXIMUM, BINS = 5.0, 100
"""A and bins of g_OO; those of metrics.json are as wide."""

GROUPS = 10
"""Of training frames."""

CM2_PER_S = 1e4
"""1e-5 cm^2/s in an A^2/fs."""


class Parts:
    """Parts of the answer, each kept in a file as soon as it is known."""

    def __init__(self, options: argparse.Namespace) -> None:
        free = ("state", "ase", "frames", "picture", "json", "device")
        self._path = options.state
        self._asked = {name: one for name, one in vars(options).items() if name not in free}
        self._found: dict[str, Any] = {}
        if self._path is not None and self._path.exists():
            kept = json.loads(self._path.read_text(encoding="utf-8"))
            if kept["asked"] != self._asked:
                raise InputError(
                    f"{self._path} was made with {kept['asked']}; give these options again."
                )
            self._found = kept["found"]

    def get(self, name: str, find: Callable[[], Any]) -> Any:
        """The part of that name; `find` makes it of lists and numbers where it is not known."""
        if name not in self._found:
            begin = time.perf_counter()
            self._found[name] = find()
            taken = time.perf_counter() - begin
            print(f"{name}: {taken:.1f} s", file=sys.stderr, flush=True)
            if self._path is not None:
                text = json.dumps({"asked": self._asked, "found": self._found})
                write_atomically(self._path, lambda path: path.write_text(text, encoding="utf-8"))
        return self._found[name]


def steps(picoseconds: float, options: argparse.Namespace, least: int = 1) -> int:
    return max(least, round(1e3 * picoseconds / options.timestep))


def mean_and_error(blocks: Array) -> tuple[Array, Array]:
    """Over (blocks, starts, ...), with the larger of both standard errors; NaN for one value."""
    mean = blocks.mean((0, 1))
    every = blocks.reshape(-1, *blocks.shape[2:])
    starts = blocks.mean(0)
    errors = [_error(every), _error(starts)]
    return mean, np.fmax(*errors)


def _error(values: Array) -> Array:
    if len(values) < 2:
        return np.full(values.shape[1:], np.nan)
    return np.asarray(values.std(0, ddof=1) / np.sqrt(len(values)))


def distances() -> Array:
    return (np.arange(BINS) + 0.5) * MAXIMUM / BINS


def simulated(options: argparse.Namespace) -> dict[str, Any]:
    """(blocks, starts, bins) g_OO, and positions and velocities that all starts ended with."""
    bath = StochasticVelocityRescaling(options.timestep, options.temperature)
    distribution = RadialDistributions(MAXIMUM, bins=BINS, every=options.every)
    simulation = Simulation(
        [box(options)] * options.starts,
        POTENTIAL,
        bath,
        device=options.device,
        precision=options.precision,
        temperature=options.temperature,
        seed=options.seed,
        observe=[distribution],
    )
    simulation.choose(steps(options.ps, options))
    simulation.run(steps(options.bath_ps, options))
    found = []
    for _ in range(options.blocks):
        distribution.reset()
        simulation.run(steps(options.ps / options.blocks, options, options.every))
        result = distribution.result()
        found.append(result.value[:, result.pairs.index("O-O")])
    positions, velocities = np.array(split(simulation, options.starts)).tolist()
    blocks = np.array(found).tolist()
    return {"blocks": blocks, "positions": positions, "velocities": velocities}


def trained(options: argparse.Namespace) -> tuple[Array, Array]:
    """g_OO of the training frames and its standard error, NaN where frames are not at hand."""
    if options.frames is None:
        path = shipped_potentials()[POTENTIAL] / "metrics.json"
        known = json.loads(path.read_text(encoding="utf-8"))["training_rdf"]
        value = np.interp(distances(), known["r_A"], known["oo"])
        return value, np.full(BINS, np.nan)
    frames = ase.io.read(options.frames, index=":")
    groups = [frames[first::GROUPS] for first in range(min(GROUPS, len(frames)))]
    oxygens = np.flatnonzero(frames[0].numbers == 8)
    found = [
        radial_distribution(
            ((one.positions, one.cell.array) for one in group),
            oxygens,
            oxygens,
            maximum=MAXIMUM,
            width=MAXIMUM / BINS,
        ).value
        for group in groups
    ]
    return np.mean(found, axis=0), _error(np.array(found))


def diffusion(systems: list[System], options: argparse.Namespace) -> dict[str, list[float]]:
    """1e-5 cm^2/s of the oxygens of each start, and the mean temperature of each, K."""
    total = steps(options.nve_ps, options, 2 * options.lags)
    every = lag(options)
    recorded = MeanSquaredDisplacement(options.lags, every=every)
    simulation = Simulation(
        systems,
        POTENTIAL,
        VelocityVerlet(options.timestep),
        device=options.device,
        precision=options.precision,
        observe=[recorded],
        check=False,
    )
    kelvin = []
    simulation.choose(total)
    for _ in range(total // (every * options.lags) or 1):
        simulation.run(every * options.lags)
        kelvin.append(simulation.observables().temperature.numpy())
    result = recorded.result()
    span = result.lag[-1]
    slope = result.diffusion(options.fit[0] * span, options.fit[1] * span)
    found = CM2_PER_S * slope[:, result.elements.index("O")]
    return {"diffusion": found.tolist(), "kelvin": np.mean(kelvin, axis=0).tolist()}


def lag(options: argparse.Namespace) -> int:
    """Steps from one lag to the next."""
    return max(1, steps(options.window_ps, options) // options.lags)


def ase_diffusion(system: System, calculator: Any, options: argparse.Namespace) -> float:
    """The same of one start by ASE, all of its frames as origins."""
    every = lag(options)
    total = steps(options.nve_ps, options, 2 * options.lags)
    atoms = to_ase(system)
    atoms.calc = calculator
    oxygens = atoms.numbers == 8
    places = []

    def look() -> None:
        places.append(atoms.positions[oxygens] - atoms.get_center_of_mass())

    dynamics = ASEVelocityVerlet(atoms, timestep=options.timestep * units.fs)
    dynamics.attach(look, interval=every)
    dynamics.run(total)
    path = np.array(places)
    lags = np.arange(min(options.lags, len(path)))
    squares = [((path[k:] - path[: len(path) - k]) ** 2).sum(-1).mean() for k in lags]
    fs = lags * every * options.timestep
    inside = (fs >= options.fit[0] * fs[-1]) & (fs <= options.fit[1] * fs[-1])
    slopes = np.gradient(np.array(squares), fs) / 6.0
    return float(CM2_PER_S * slopes[inside].mean())


def features(distance: Array, value: Array) -> Iterator[tuple[str, int]]:
    """Bins of the first peak, and of the first minimum beyond it."""
    peak = int(np.argmax(value * (distance < 3.5)))
    beyond = (distance > distance[peak]) & (distance < 4.0)
    yield "first peak", peak
    yield "first minimum", int(np.argmin(np.where(beyond, value, np.inf)))


def report(options: argparse.Namespace) -> dict[str, Any]:
    """Everything measured."""
    parts = Parts(options)
    training, training_error = trained(options)
    found = parts.get("g_OO", lambda: simulated(options))
    value, error = mean_and_error(np.array(found["blocks"]))
    ends = [
        box(options).replace(positions=positions, velocities=velocities)
        for positions, velocities in zip(found["positions"], found["velocities"], strict=True)
    ]
    free = parts.get("constant energy", lambda: diffusion(ends, options))
    by_ase = []
    if options.ase:
        calculator = MDGraphCalculator(
            POTENTIAL, device=str(options.device), precision=options.precision, check=False
        )
        for number, end in enumerate(ends):
            run = partial(ase_diffusion, end, calculator, options)
            by_ase.append(parts.get(f"ASE {number}", run))
    return {
        "hardware": hardware(options.device),
        "precision": options.precision,
        "atoms": len(ends[0]),
        "starts": options.starts,
        "blocks": options.blocks,
        "ps": options.ps,
        "temperature_K": options.temperature,
        "distance_A": distances().tolist(),
        "g_OO": value.tolist(),
        "g_OO_error": error.tolist(),
        "training": training.tolist(),
        "training_error": training_error.tolist(),
        "diffusion_1e-5_cm2_per_s": free["diffusion"],
        "nve_temperature_K": free["kelvin"],
        "ase_diffusion_1e-5_cm2_per_s": by_ase,
    }


def text(found: dict[str, Any]) -> str:
    """For people: g_OO at every other bin, its first extrema, and the diffusion."""
    r, g, error, training, other = (
        np.array(found[key])
        for key in ("distance_A", "g_OO", "g_OO_error", "training", "training_error")
    )
    with np.errstate(invalid="ignore", divide="ignore"):
        z = (g - training) / np.sqrt(error**2 + np.nan_to_num(other) ** 2)
    starts = f"{found['starts']} starts of {found['atoms']} atoms"
    lines = [
        f"{found['hardware']}, {found['precision']}: {found['ps']:g} ps of {starts}",
        f"g_OO at {found['temperature_K']:g} K",
        f"{'r A':>8}{'g_OO':>9}{'SE':>9}{'training':>10}{'SE':>9}{'z':>7}",
        *(
            f"{r[place]:>8.3f}{g[place]:>9.3f}{error[place]:>9.3f}"
            f"{training[place]:>10.3f}{other[place]:>9.3f}{z[place]:>7.1f}"
            for place in range(int(2.3 / MAXIMUM * BINS), BINS, 2)
        ),
    ]
    for name, place in features(r, g):
        lines.append(f"{name} at {r[place]:.2f} A: {g[place]:.3f} +- {error[place]:.3f}")
    for name, place in features(r, training):
        lines.append(f"{name} in training at {r[place]:.2f} A: {training[place]:.3f}")
    both = {
        name: np.array(found[f"{key}diffusion_1e-5_cm2_per_s"])
        for key, name in (("", "mdgraph"), ("ase_", "ASE"))
    }
    for name, runs in both.items():
        if len(runs):
            lines.append(
                f"D of {len(runs)} runs at constant energy, {name}: {runs.mean():.3f} +- "
                f"{float(_error(runs)):.3f} e-5 cm^2/s"
            )
    if min(map(len, both.values())) > 1:
        gap = both["mdgraph"].mean() - both["ASE"].mean()
        spread = np.hypot(*map(_error, both.values()))
        lines.append(f"They differ by {abs(gap) / spread:.1f} standard errors")
    return "\n".join(lines)


def draw(found: dict[str, Any], path: Path) -> None:
    """g_OO with two standard errors on each side."""
    figure = blank_figure(
        7.0,
        5.2,
        f"{POTENTIAL} at {found['temperature_K']:g} K",
        f"{found['starts']} starts of {found['ps']:g} ps; bands are two standard errors",
    )
    axes = figure.add_subplot()
    r = np.array(found["distance_A"])
    for key, name, colour in (("training", "training frames", ORANGE), ("g_OO", "mdgraph", BLUE)):
        value, error = np.array(found[key]), np.nan_to_num(np.array(found[f"{key}_error"]))
        axes.plot(r, value, color=colour, label=name, **LINE)
        axes.fill_between(r, value - 2 * error, value + 2 * error, color=colour, alpha=0.25, lw=0)
    axes.set_xlim(2.0, MAXIMUM)
    axes.set_xlabel("O-O distance (Å)")
    axes.set_ylabel("g(r)")
    axes.legend(frameon=False)
    dress(axes)
    figure.savefig(path)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--precision", default="mixed", choices=PRECISIONS)
    parser.add_argument("--starts", type=int, default=5)
    parser.add_argument("--repeat", type=int, nargs=3, default=[1, 1, 1], help="of 64 molecules")
    parser.add_argument("--temperature", type=float, default=300.0, help="K")
    parser.add_argument("--timestep", type=float, default=0.5, help="fs")
    parser.add_argument("--bath-ps", type=float, default=10.0, help="of warm-up")
    parser.add_argument("--ps", type=float, default=100.0, help="of each start, for g_OO")
    parser.add_argument("--blocks", type=int, default=10, help="of each start")
    parser.add_argument("--every", type=int, default=20, help="steps from one sample to the next")
    parser.add_argument("--nve-ps", type=float, default=50.0, help="of each start, for D")
    parser.add_argument("--window-ps", type=float, default=10.0, help="longest lag")
    parser.add_argument("--lags", type=int, default=100, help="up to it")
    parser.add_argument("--fit", type=float, nargs=2, default=[0.2, 0.9], help="shares of it")
    parser.add_argument("--frames", type=Path, help="training frames, else metrics.json")
    parser.add_argument("--ase", action="store_true", help="diffusion by ASE too")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", type=device_named, default="auto")
    parser.add_argument("--state", type=Path, help="where it goes on")
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def main() -> None:
    """Prints the table."""
    options = arguments()
    found = report(options)
    if options.picture is not None:
        draw(found, options.picture)
    print(json.dumps(found) if options.json else text(found))


if __name__ == "__main__":
    main()
