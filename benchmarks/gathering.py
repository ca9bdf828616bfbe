"""Runs at constant energy, gathered in sessions: what is sampled, and the files between them."""

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from conditions import hardware
from shipped_water import POTENTIAL, box, split
from slopes import drift

from mdgraph.engine import Averages, Simulation, StochasticVelocityRescaling, VelocityVerlet
from mdgraph.engine.restart import load_restart_, save_restart
from mdgraph.errors import InputError
from mdgraph.io.files import write_atomically
from mdgraph.units import BOLTZMANN

SAVED = 30.0
"""s from one save, and one row, to the next."""


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
                self.options.timestep, self.options.temperature, relaxation=100.0
            )
            warm = self._simulation(bath, self.bath)
            if not self._advance(warm, self._steps(self.options.bath_ps), deadline, self.bath):
                return False
            self.systems = [
                one.replace(positions=positions, velocities=velocities)
                for one, positions, velocities in zip(
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
        write_atomically(self.record, lambda place: place.write_text(text, encoding="utf-8"))
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
        found = drift(1e-6 * np.array(self.samples.time), energy)
        return row | {
            "temperature_K": float(np.mean(self.samples.temperature)),
            "slope": found.slope,
            "starts_error": found.starts_error,
            "blocks_error": found.blocks_error,
            "bound": found.bound,
        }


def _files(state: Path | None) -> tuple[Path | None, Path | None, Path | None]:
    if state is None:
        return None, None, None
    return state.with_name(f"{state.name}.bath"), state.with_name(f"{state.name}.free"), state
