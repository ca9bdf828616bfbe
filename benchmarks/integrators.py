"""Times what a step costs beside its evaluation: microseconds, for every integrator.

    python benchmarks/integrators.py [--atoms 24 648 ...] [--replicas 128] [--device cuda]

Steps of the atoms of water, in replicas of each size, without any forces, 32 in a CUDA
graph; the median of five means over many replays. "kinetic" is the kinetic energy of each
system, "momentum" the removal of its momentum, "looked" a step of velocity Verlet with all
averages recorded.
"""

import argparse
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from cases import run_script, water

from mdgraph.devices import device_named
from mdgraph.engine import (
    Averages,
    Calculation,
    Integrator,
    LangevinMiddle,
    MartynaTobiasKlein,
    NoseHooverChains,
    StochasticCellRescaling,
    StochasticVelocityRescaling,
    VelocityVerlet,
)
from mdgraph.engine.kinetics import kinetic_energy, remove_momentum_
from mdgraph.evaluators import Evaluator
from mdgraph.gpu.graphs import captured
from mdgraph.neighbors import NeighborList
from mdgraph.state import State

SIZES = (24, 165, 648, 3000, 12288, 98304)
STEPS = 32
BATCHES = 5

INTEGRATORS: dict[str, Callable[[], Integrator]] = {
    "verlet": lambda: VelocityVerlet(0.5),
    "langevin": lambda: LangevinMiddle(0.5, 300.0),
    "rescaling": lambda: StochasticVelocityRescaling(0.5, 300.0),
    "nose-hoover": lambda: NoseHooverChains(0.5, 300.0),
    "cell": lambda: StochasticCellRescaling(0.5, 300.0, 0.0),
    "mtk": lambda: MartynaTobiasKlein(0.5, 300.0, 0.0),
}


class Nothing(Evaluator):
    """An Evaluator without forces."""

    cutoffs: tuple[float, ...] = ()

    def evaluate_(self, state: State, lists: list[NeighborList]) -> None:
        pass


def steps(integrator: Integrator, state: State) -> Callable[[], None]:
    integrator.allocate(state)
    integrator.prepare_(0)
    return lambda: integrator.step_(state, lambda: None)


def recorded(calculation: Calculation) -> Callable[[], None]:
    integrator, averages = VelocityVerlet(0.5), Averages()
    step = steps(integrator, calculation.state)
    averages.attach(calculation, integrator)

    def both() -> None:
        step()
        averages.record_()

    return both


def microseconds(function: Callable[[], None], device: torch.device, seconds: float) -> float:
    """Of one call, from graphs of several where there are graphs."""

    def several() -> None:
        for _ in range(STEPS):
            function()

    graph = captured(several, device) if device.type == "cuda" else None
    launch = several if graph is None else graph.replay

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    def timed(calls: int) -> float:
        wait()
        start = time.perf_counter()
        for _ in range(calls):
            launch()
        wait()
        return time.perf_counter() - start

    calls = max(1, int(seconds / max(timed(1), 1e-6)))
    return sorted(timed(calls) for _ in range(BATCHES))[BATCHES // 2] / calls / STEPS * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--atoms", type=int, nargs="+", default=SIZES)
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seconds", type=float, default=0.05, help="of a measurement")
    arguments = parser.parse_args()
    device = device_named(arguments.device)
    columns = [*INTEGRATORS, "kinetic", "momentum", "looked"]
    print(f"{'atoms':>7}", *[f"{name:>11}" for name in columns], flush=True)
    for atoms in arguments.atoms:
        # A barostat wants a cell, which clusters have none of.
        box = water(atoms).replace(cell=100.0 * np.eye(3), pbc=np.full(3, True))
        calculation = Calculation([box] * arguments.replicas, Nothing(), device=device)
        state = calculation.state
        state.degrees.fill_(3.0 * atoms - 3.0)
        # Warm enough for thermostats, and at a pace at which nothing goes far.
        state.velocities.copy_(1e-3 * torch.randn_like(state.velocities))
        jobs: list[Callable[[], object]] = [steps(make(), state) for make in INTEGRATORS.values()]
        jobs += [partial(kinetic_energy, state), partial(remove_momentum_, state)]
        jobs.append(recorded(calculation))
        times = [microseconds(job, device, arguments.seconds) for job in jobs]
        print(f"{atoms:7d}", *[f"{value:11.2f}" for value in times], flush=True)


if __name__ == "__main__":
    run_script(main)
