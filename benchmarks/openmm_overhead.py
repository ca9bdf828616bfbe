"""Times steps that OpenMM asks for beside what the engine needs for them.

    python benchmarks/openmm_overhead.py [--atoms 24 2268 24000] [--seconds 2] [--json]

One line a structure of water (see cases.py), with TorchMD-Net's sizes (128 channels, 2
layers) and random weights, in float32 (`mixed`). Milliseconds, host included, medians:

engine      a Langevin step of `mdgraph.engine.Simulation`
Simulation  the same step by `mdgraph.drivers.openmm.Simulation`, in calls of 1,000 steps, at the
            end of each of which a reporter takes positions and energies ("ratio": over the engine)
graph       lists, energy and forces alone: one replay on CUDA
openmm-ml   a step of LangevinMiddleIntegrator on OpenMM's fastest platform, the potential as
            MLPotential("mdgraph") ("over graph": what it takes beyond the graph and an empty step;
            "callback": how much of that a PythonForce takes which returns zeros)

"choices" are skins and lengths of graphs that measurement chose, of the engine and of Simulation.
"""

import argparse
import json
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import openmm
from cases import random_potential, run_script, water
from openmm import app, unit
from openmmml import MLPotential

from mdgraph.checkpoints import save
from mdgraph.devices import device_named
from mdgraph.drivers.openmm import Simulation as Driven
from mdgraph.engine import Calculation, LangevinMiddle, Simulation
from mdgraph.gpu.graphs import CapturedGraph
from mdgraph.runs.bench import milliseconds, repeating
from mdgraph.system import System

TIMESTEP = 1e-6  # fs; random weights hold no liquid together, so the atoms stay where they are
SIZES = {"cuda": [24, 648, 2268, 24000], "cpu": [24, 192]}


def topology_of(system: System) -> app.Topology:
    topology = app.Topology()
    chain = topology.addChain()
    for _ in range(0, len(system), 3):
        residue = topology.addResidue("HOH", chain)
        atoms = [
            topology.addAtom(name, app.element.get_by_symbol(name[0]), residue)
            for name in ("O", "H1", "H2")
        ]
        topology.addBond(atoms[0], atoms[1])
        topology.addBond(atoms[0], atoms[2])
    if system.pbc.any():
        topology.setPeriodicBoxVectors([openmm.Vec3(*row) for row in system.cell] * unit.angstrom)
    return topology


def integrator() -> openmm.LangevinMiddleIntegrator:
    return openmm.LangevinMiddleIntegrator(300.0, 1.0, TIMESTEP * unit.femtoseconds)


class Look:
    """A reporter that takes what a trajectory and a log take, and writes nothing."""

    def describeNextReport(self, simulation: Any) -> dict[str, Any]:  # noqa: N802
        return {"steps": 1000 - simulation.currentStep % 1000, "include": ["positions", "energy"]}

    def report(self, simulation: Any, state: Any) -> None:
        state.getPositions(asNumpy=True), state.getPotentialEnergy()


def platform(device: str) -> openmm.Platform:
    names = [
        openmm.Platform.getPlatform(n).getName() for n in range(openmm.Platform.getNumPlatforms())
    ]
    preferred = ["CUDA", "CPU"] if device == "cuda" else ["CPU"]
    return openmm.Platform.getPlatformByName(next(name for name in preferred if name in names))


def choice(simulation: Simulation) -> str:
    return f"{simulation.calculation.skin:g} A {simulation.step_graphs.longest}"


class Zeros:
    """A callback that computes nothing."""

    def __init__(self, atoms: int) -> None:
        self._forces = np.zeros((atoms, 3))

    def __call__(self, state: openmm.State) -> tuple[float, np.ndarray]:
        state.getPositions(asNumpy=True)
        return 0.0, self._forces


def without_potential(system: openmm.System) -> tuple[openmm.System, openmm.System]:
    """The particles alone, and with a callback that computes nothing."""
    systems = openmm.System(), openmm.System()
    for other in systems:
        for index in range(system.getNumParticles()):
            other.addParticle(system.getParticleMass(index))
    callback = openmm.PythonForce(Zeros(system.getNumParticles()))
    callback.setUsesPeriodicBoundaryConditions(system.usesPeriodicBoundaryConditions())
    systems[1].setDefaultPeriodicBoxVectors(*system.getDefaultPeriodicBoxVectors())
    systems[1].addForce(callback)
    return systems


def row(atoms: int, potential: Path, device: str, steps: int, seconds: float) -> dict[str, Any]:
    system = water(atoms)
    topology = topology_of(system)
    positions = system.positions * unit.angstrom
    options: dict[str, Any] = {"device": device, "check": False}

    native = Simulation(
        system.replace(velocities=np.zeros((len(system), 3))),
        potential,
        LangevinMiddle(TIMESTEP, 300.0, 1.0),
        **options,
    )
    times = partial(milliseconds, device=native.calculation.device, seconds=seconds)
    # Each call begins elsewhere in a block of steps, so that the second captures graphs too.
    native.run(steps)
    engine = times(repeating(partial(native.run, steps))) / steps
    driven = Driven(topology, potential, integrator(), **options)
    driven.context.setPositions(positions)
    driven.reporters.append(Look())
    driven.step(steps)
    shown = times(repeating(partial(driven.step, steps))) / steps

    calculation = Calculation([system], potential, device=device)
    calculation.compute()
    captured = CapturedGraph(calculation.update_, calculation.device) if device == "cuda" else None
    graph = times(repeating(captured.replay if captured else calculation.update_))

    ml = MLPotential("mdgraph", modelPath=str(potential))
    mixed = ml.createSystem(topology, removeCMMotion=False, **options)
    empty, zeros = without_potential(mixed)
    step_ms = {}
    for name, bare in (("openmm-ml", mixed), ("callback", zeros), ("empty", empty)):
        context = openmm.Context(bare, integrator(), platform(device))
        context.setPositions(positions)
        step_ms[name] = times(repeating(partial(context.getIntegrator().step, 10))) / 10
        used = context.getPlatform().getName()
    return {
        "atoms": atoms,
        "engine_ms": engine,
        "simulation_ms": shown,
        "ratio": shown / engine,
        "graph_ms": graph,
        "openmmml_ms": step_ms["openmm-ml"],
        "empty_ms": step_ms["empty"],
        "over_graph_ms": step_ms["openmm-ml"] - step_ms["empty"] - graph,
        "callback_ms": step_ms["callback"] - step_ms["empty"],
        "platform": used,
        "choices": [choice(native), choice(driven.engine)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--atoms", type=int, nargs="+", help="sizes of the structures")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--channels", type=int, default=128)
    parser.add_argument("--steps", type=int, default=1000, help="in one call")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each number")
    parser.add_argument("--json", action="store_true", help="one line of JSON a structure")
    options = parser.parse_args()
    device = device_named(options.device).type

    with tempfile.TemporaryDirectory() as folder:
        potential = Path(folder) / "potential.safetensors"
        save(random_potential(options.channels), potential)
        titles = "atoms  engine  Simulation  ratio   graph  openmm-ml  over graph  callback"
        if not options.json:
            print(f"{titles}  platform  choices")
        for atoms in options.atoms or SIZES[device]:
            result = row(atoms, potential, device, options.steps, options.seconds)
            if options.json:
                print(json.dumps(result))
                continue
            print(
                f"{atoms:5d} {result['engine_ms']:7.3f} {result['simulation_ms']:11.3f} "
                f"{result['ratio']:6.3f} {result['graph_ms']:7.3f} {result['openmmml_ms']:10.3f} "
                f"{result['over_graph_ms']:11.3f} {result['callback_ms']:9.3f}  "
                f"{result['platform']:8}  {', '.join(result['choices'])}",
                flush=True,
            )


if __name__ == "__main__":
    run_script(main)
