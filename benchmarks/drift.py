"""Drift of the energy at constant energy, from several starts of a box of water.

    python benchmarks/drift.py [--precision mixed] [--ps 1000] [--state FILE] [--minutes 9] ...

All starts advance as one batch of the shipped potential, each from velocities and a bath of
its own (stochastic velocity rescaling at 300 K); then the bath goes, and what is sampled is
the conserved energy, averaged on the device over every step of an interval. The slope of
such means over time, by least squares, is printed over kT and the degrees of freedom.

Two standard errors stand beside it: of the mean over the starts, from their scatter, and of
the fit, from the residuals of blocks of means. The bound is |slope| + 2 SE with the larger.

With --state a run goes on where the command before stopped, or was killed, to the same bits,
so that a nanosecond can be gathered in sessions of some minutes; the files are FILE, and
FILE.bath or after the bath FILE.free, written every half minute, and a row of what is known by
then is printed. Give the same options each time; --ps may grow.

`double` evaluates the network itself, unless --evaluator fused asks for its tables in float64.
"""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from cases import Table, device_argument, hardware, repeated, run_script
from numpy.typing import NDArray

from mdgraph.checkpoints import shipped_potentials
from mdgraph.engine import Averages, Simulation, StochasticVelocityRescaling, VelocityVerlet
from mdgraph.engine.restart import load_restart_, save_restart
from mdgraph.errors import InputError
from mdgraph.fused.evaluator import EVALUATORS
from mdgraph.io.files import write_atomically
from mdgraph.io.structures import read_system
from mdgraph.precision import PRECISIONS
from mdgraph.system import System
from mdgraph.units import BOLTZMANN

TABLE = Table(
    (
        ("precision", "precision", ""),
        ("atoms", "atoms", ","),
        ("starts", "starts", ""),
        ("ps each", "ps", ".4g"),
        ("dt fs", "timestep_fs", "g"),
        ("T K", "temperature_K", ".1f"),
        ("slope", "slope", ".2e"),
        ("SE starts", "starts_error", ".1e"),
        ("SE blocks", "blocks_error", ".1e"),
        ("|slope|+2SE", "bound", ".1e"),
    ),
    width=13,
)
"""The last four in kT/ns a degree of freedom."""

FEWEST_BLOCKS = 4
MOST_BLOCKS = 32

POTENTIAL = "water-pbe0"

SAVED = 30.0
"""s from one save, and one row, to the next."""


def box(options: argparse.Namespace) -> System:
    """The shipped start, repeated along the axes, at rest."""
    start = read_system(shipped_potentials()[POTENTIAL] / "start.extxyz")
    return repeated(start, options.repeat)


def split(simulation: Simulation, starts: int) -> tuple[Any, Any]:
    state = simulation.state
    return tuple(
        np.split(tensor.cpu().double().numpy(), starts)
        for tensor in (state.positions, state.velocities)
    )


@dataclass(frozen=True)
class Drift:
    """kT/ns a degree of freedom."""

    slope: float
    starts_error: float
    blocks_error: float

    @property
    def bound(self) -> float:
        return abs(self.slope) + 2.0 * float(np.fmax(self.starts_error, self.blocks_error))


def drift(time: NDArray[np.float64], energy: NDArray[np.float64]) -> Drift:
    """Slopes of (samples, starts) energies over time; in the units of energy over time."""
    slopes = np.polyfit(time, energy - energy[0], 1)[0]
    starts = len(slopes)
    scatter = slopes.std(ddof=1) / np.sqrt(starts) if starts > 1 else np.nan
    blocks = min(MOST_BLOCKS, len(time))
    errors = np.full(starts, np.nan)
    if blocks >= FEWEST_BLOCKS:
        size = len(time) // blocks
        used = size * blocks
        times = time[:used].reshape(blocks, size).mean(1)
        means = (energy - energy[0])[:used].reshape(blocks, size, starts).mean(1)
        slope, start = np.polyfit(times, means, 1)
        rest = means - start - slope * times[:, None]
        spread = ((times - times.mean()) ** 2).sum()
        errors = np.sqrt((rest**2).sum(0) / (blocks - 2) / spread)
    return Drift(float(slopes.mean()), float(scatter), float(np.sqrt((errors**2).sum()) / starts))


@dataclass
class Samples:
    """Means over intervals: time of their middle, fs, energy, eV, and temperature, K."""

    time: list[float]
    energy: list[list[float]]
    temperature: list[list[float]]

    def cut(self, time: float) -> None:
        """Forgets what a restart file does not know of."""
        kept = int(np.searchsorted(self.time, time))
        for values in (self.time, self.energy, self.temperature):
            del values[kept:]


class Gathering:
    """The simulation of the moment, its samples and its files."""

    def __init__(self, options: argparse.Namespace, show: Callable[[dict[str, Any]], None]) -> None:
        """Reads what the session before left; each half minute a row is shown."""
        self.options, self._show = options, show
        self.systems = [box(options)] * options.starts
        self.samples = Samples([], [], [])
        self.bath, self.free, self.record = _files(options.state)
        self.asked = {
            name: getattr(options, name)
            for name in (
                *("precision", "evaluator", "starts", "timestep", "temperature"),
                *("every", "seed", "repeat", "bath_ps"),
            )
        }
        self.simulation: Simulation | None = None
        if self.record is not None and self.record.exists():
            self._read(self.record)

    def _read(self, record: Path) -> None:
        kept = json.loads(record.read_text(encoding="utf-8"))
        if any(kept["asked"].get(name, value) != value for name, value in self.asked.items()):
            raise InputError(f"{record} was made with {kept['asked']}; give these options again.")
        self.samples = Samples(**kept["samples"])

    def run(self) -> bool:
        """Goes as far as asked for or as time allows; whether it is at the end."""
        deadline = time.monotonic() + 60.0 * self.options.minutes
        if not self._exists(self.free):
            bath = StochasticVelocityRescaling(
                self.options.timestep, self.options.temperature, tau=100.0
            )
            warm = self._simulation(bath, self.bath)
            if not self._advance(warm, self._steps(self.options.bath_ps), deadline, self.bath):
                return False
            self.systems = [
                system.replace(positions=positions, velocities=velocities)
                for system, positions, velocities in zip(
                    self.systems, *split(warm, self.options.starts), strict=True
                )
            ]
        free = self._simulation(VelocityVerlet(self.options.timestep), self.free)
        self.simulation = free
        self.samples.cut(free.time)
        if self.free is not None and not self.free.exists():
            save_restart(free, self.free)
        if self.bath is not None:
            self.bath.unlink(missing_ok=True)  # whose work is done
        return self._advance(free, self._steps(self.options.ps), deadline, self.free)

    @staticmethod
    def _exists(path: Path | None) -> bool:
        return path is not None and path.exists()

    def _steps(self, picoseconds: float) -> int:
        """A multiple of the interval."""
        every = self.options.every
        return max(1, round(1e3 * picoseconds / self.options.timestep / every)) * every

    def _simulation(self, integrator: Any, path: Path | None) -> Simulation:
        sampled = isinstance(integrator, VelocityVerlet)
        simulation = Simulation(
            self.systems,
            POTENTIAL,
            integrator,
            device=self.options.device,
            precision=self.options.precision,
            evaluator=self.options.evaluator,
            temperature=None if sampled else self.options.temperature,
            seed=self.options.seed,
            observe=[Averages(["conserved_energy", "temperature"])] if sampled else [],
            check=not (sampled or self._exists(path)),
        )
        if self._exists(path):
            assert path is not None
            load_restart_(simulation, path)
        return simulation

    def _advance(
        self, simulation: Simulation, last: int, deadline: float, path: Path | None
    ) -> bool:
        simulation.choose(last - simulation.step)
        saved = time.monotonic()
        while simulation.step < last and time.monotonic() < deadline:
            simulation.run(self.options.every)
            for averages in simulation.online:
                self._sample(simulation, averages)
            if time.monotonic() - saved > SAVED:
                self._save(simulation, path)
                self.show()
                saved = time.monotonic()
        self._save(simulation, path)
        return simulation.step >= last

    def _sample(self, simulation: Simulation, averages: Averages) -> None:
        mean = averages.result().blocked.mean
        averages.reset()
        middle = simulation.time - 0.5 * self.options.every * simulation.timestep
        self.samples.time.append(middle)
        self.samples.energy.append(mean[:, 0].tolist())
        self.samples.temperature.append(mean[:, 1].tolist())

    def _save(self, simulation: Simulation, path: Path | None) -> None:
        """Samples first: what the restart file does not know of is cut off again."""
        if path is None or self.record is None:
            return
        text = json.dumps({"asked": self.asked, "samples": vars(self.samples)})
        write_atomically(self.record, text)
        save_restart(simulation, path)

    def show(self) -> None:
        """Shows a row, once the bath is done; None stands for what is not known."""
        if self.simulation is not None:
            row = self._row().items()
            self._show({key: None if value != value else value for key, value in row})

    def _row(self) -> dict[str, Any]:
        """What was found so far."""
        assert self.simulation is not None
        degrees = np.array(self.simulation.degrees_of_freedom, dtype=float)
        unit = BOLTZMANN * self.options.temperature * degrees
        row: dict[str, Any] = {
            "hardware": hardware(self.options.device),
            "precision": self.options.precision,
            "atoms": len(self.systems[0]),
            "starts": self.options.starts,
            "ps": 1e-3 * self.simulation.time,
            "timestep_fs": self.options.timestep,
        }
        if len(self.samples.time) < 2:
            return row
        energy = np.array(self.samples.energy) / unit
        result = drift(1e-6 * np.array(self.samples.time), energy)
        return row | {
            "temperature_K": float(np.mean(self.samples.temperature)),
            "slope": result.slope,
            "starts_error": result.starts_error,
            "blocks_error": result.blocks_error,
            "bound": result.bound,
        }


def _files(state: Path | None) -> tuple[Path | None, Path | None, Path | None]:
    if state is None:
        return None, None, None
    return state.with_name(f"{state.name}.bath"), state.with_name(f"{state.name}.free"), state


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--precision", default="mixed", choices=PRECISIONS)
    parser.add_argument("--evaluator", default="auto", choices=EVALUATORS)
    parser.add_argument("--ps", type=float, default=1000.0, help="of each start")
    parser.add_argument("--bath-ps", type=float, default=10.0, help="before, with a bath")
    parser.add_argument("--starts", type=int, default=4)
    parser.add_argument("--repeat", type=int, nargs=3, default=[1, 1, 1], help="of 64 molecules")
    parser.add_argument("--timestep", type=float, default=0.5, help="fs")
    parser.add_argument("--temperature", type=float, default=300.0, help="K")
    parser.add_argument("--every", type=int, default=1000, help="steps averaged in a sample")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="then it stops")
    parser.add_argument("--state", type=Path, help="where it goes on")
    parser.add_argument("--device", type=device_argument, default="auto")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def main() -> None:
    """Prints rows of the table, the last one of all that was gathered."""
    options = arguments()

    def show(row: dict[str, Any]) -> None:
        print(json.dumps(row) if options.json else TABLE.text(row), flush=True)

    gathering = Gathering(options, show)
    if not options.json:
        print(f"{hardware(options.device)}; slopes in kT/ns a degree of freedom, kT of the bath")
        print(TABLE.titles(), flush=True)
    done = gathering.run()
    if gathering.simulation is None:
        print("Still in the bath; give the same command again.")
        return
    gathering.show()
    if not (done or options.json):
        print("Not at the end yet; give the same command again.")


if __name__ == "__main__":
    run_script(main)
