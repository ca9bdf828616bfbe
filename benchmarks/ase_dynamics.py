"""Times a step of dynamics driven in four ways: by the engine, and from ASE.

    python benchmarks/ase_dynamics.py [--atoms 648] [--checkpoint FILE] [--torchmdnet]

Velocity Verlet of periodic water, by random weights as in `speed.py` or by a checkpoint. An
observer looks at energy, temperature and forces every `--interval` steps. Times are of a
step, host included, medians of rounds in which all take their turns; "relative" is to the
engine alone:

- engine: `Simulation.run`, nobody looks;
- driver: `mdgraph.drivers.ase.VelocityVerlet` with the observer;
- calculator: `ase.md.verlet.VelocityVerlet` on MDGraphCalculator with the observer;
- torchmdnet: the same on TorchMD-Net's own calculator, with `--torchmdnet`, where this
  Python has torchmd-net; it needs `--checkpoint` of a TensorNet of TorchMD-Net.

Two lines more: what one look costs, and what a call of MDGraphCalculator costs above the
replay of its graph (on a CPU, above its update).
"""

import argparse
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import ase.md.verlet
import numpy as np
import torch
from ase import Atoms, units
from cases import hardware, random_potential, run_script, water

from mdgraph import __version__, load
from mdgraph.devices import device_named
from mdgraph.drivers.ase import MDGraphCalculator, VelocityVerlet
from mdgraph.engine import Simulation
from mdgraph.engine import VelocityVerlet as EngineVerlet
from mdgraph.engine.calculation import as_evaluator
from mdgraph.gpu.graphs import captured
from mdgraph.io.structures import from_ase, to_ase
from mdgraph.precision import PRECISIONS, precision_named
from mdgraph.runs.bench import Repeated, milliseconds, repeating

TIMESTEP = 1e-6  # fs; random weights hold no liquid together, so the atoms stay where they are
ROUNDS = 5
INTERVALS = {"cuda": 10, "cpu": 1}  # in one run


class Runs:
    """One potential and one structure, driven in several ways."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.device = device_named(options.device)
        model = (
            load(options.checkpoint) if options.checkpoint else random_potential(options.channels)
        )
        self.evaluator = as_evaluator(model, precision_named(options.precision), self.device)
        self.share = options.seconds / ROUNDS
        self.settings: dict[str, Any] = {"device": self.device, "precision": options.precision}

    def atoms(self, calculator: Any = None) -> Atoms:
        atoms = to_ase(water(self.options.atoms))
        atoms.info["charge"] = 0.0  # TorchMD-Net's calculator asks for it
        atoms.calc = calculator
        return atoms

    def calculator(self) -> MDGraphCalculator:
        return MDGraphCalculator(self.evaluator, check=False, **self.settings)

    def engine(self) -> Repeated:
        system = from_ase(self.atoms())
        integrator = EngineVerlet(TIMESTEP)
        return Simulation(system, self.evaluator, integrator, check=False, **self.settings).run

    def driver(self) -> Repeated:
        return self.watched(VelocityVerlet, self.calculator())

    def alone(self) -> Repeated:
        return self.watched(ase.md.verlet.VelocityVerlet, self.calculator())

    def torchmdnet(self) -> Repeated:
        from torchmdnet.calculators import TMDNETCalculator

        calculator = TMDNETCalculator(str(self.options.checkpoint), device=str(self.device))
        return self.watched(ase.md.verlet.VelocityVerlet, calculator)

    def watched(self, kind: Any, calculator: Any) -> Repeated:
        atoms = self.atoms(calculator)
        dynamics = kind(atoms, TIMESTEP * units.fs)
        dynamics.attach(lambda: look(atoms), interval=self.options.interval)
        return dynamics.run

    def steps(self, ways: dict[str, Repeated]) -> dict[str, float]:
        """ms of a step of each."""
        number = self.options.interval * INTERVALS[self.device.type]
        times: dict[str, list[float]] = {name: [] for name in ways}
        for run in ways.values():
            run(number)  # prepares and captures
        for _ in range(ROUNDS):
            for name, run in ways.items():
                # Whole runs, so that each has its share of looks.
                runs = repeating(partial(run, number))
                times[name].append(milliseconds(runs, self.device, self.share) / number)
        return {name: float(np.median(some)) for name, some in times.items()}

    def look(self) -> float:
        """ms to bring the atoms up to the engine and to read them."""
        atoms = self.atoms(self.calculator())
        dynamics = VelocityVerlet(atoms, TIMESTEP * units.fs)
        dynamics.attach(lambda: look(atoms))
        return milliseconds(repeating(lambda: next(dynamics.irun(0))), self.device, self.share)

    def overhead(self) -> float:
        """ms of a call of the calculator above what computes."""
        atoms, calculator = self.atoms(), self.calculator()
        calculator.get_forces(atoms)

        def call() -> None:
            calculator.reset()
            calculator.get_forces(atoms)

        called = milliseconds(repeating(call), self.device, self.share)
        calculation, _ = calculator._buffers.place(atoms)
        graph = captured(calculation.update_, self.device) if self.device.type == "cuda" else None
        update = graph.replay if graph else calculation.update_
        return called - milliseconds(repeating(update), self.device, self.share)


def look(atoms: Atoms) -> None:
    atoms.get_potential_energy()
    atoms.get_temperature()
    atoms.get_forces()


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--atoms", type=int, default=648, help="of water")
    parser.add_argument("--checkpoint", type=Path, help="file, instead of random weights")
    parser.add_argument("--channels", type=int, default=128, help="of random weights")
    parser.add_argument("--torchmdnet", action="store_true", help="time its calculator too")
    parser.add_argument("--interval", type=int, default=100, help="steps from look to look")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each number, roughly")
    parser.add_argument("--precision", default="mixed", choices=PRECISIONS)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    if options.torchmdnet and options.checkpoint is None:
        parser.error("--torchmdnet needs --checkpoint FILE")
    runs = Runs(options)
    print(f"{hardware(runs.device)}, {date.today().isoformat()}")
    print(f"mdgraph {__version__}, torch {torch.__version__}, ase {ase.__version__}")
    print(f"{options.atoms} atoms, {options.precision}, a look every {options.interval} steps")
    ways = {"engine": runs.engine(), "driver": runs.driver(), "calculator": runs.alone()}
    if options.torchmdnet:
        ways["torchmdnet"] = runs.torchmdnet()
    print(f"{'':<12}{'step ms':>10}{'relative':>10}")
    times = runs.steps(ways)
    for name, step in times.items():
        print(f"{name:<12}{step:>10.4f}{step / times['engine']:>10.3f}", flush=True)
    print(f"one look: {runs.look():.3f} ms")
    print(f"a call of the calculator above its computation: {runs.overhead():.3f} ms")


if __name__ == "__main__":
    run_script(main)
