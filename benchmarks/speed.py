"""Times a molecular-dynamics step and energy + forces on water, one JSON line a row.

    python benchmarks/speed.py [--device cuda] [--atoms 24 165 648 ...] [--channels 128] ...

Clusters of 24 and 165 atoms, periodic boxes of liquid density beyond (about 54 neighbors
within 5 A). The model has TorchMD-Net's sizes (128 channels, 2 layers, 32 functions, 5 A)
and random weights: the cost does not depend on them. Every row carries the error of its
forces against float64 on the same positions.
"""

import argparse
import gc
import json
import platform
import time
from collections.abc import Callable
from datetime import date
from functools import partial

import numpy as np
import torch

from mdgraph import __version__
from mdgraph.engine import Calculation, LangevinMiddle, Simulation
from mdgraph.graphs import CapturedGraph
from mdgraph.models import RadialBasisConfig, ReadoutConfig, TensorNetConfig, TensorNetPotential
from mdgraph.system import System

MOLECULE = np.array([[0.0, 0.0, 0.0], [0.757, 0.586, 0.0], [-0.757, 0.586, 0.0]])
VOLUME_PER_MOLECULE = 29.9  # A^3, liquid water at 300 K
CLUSTERS = (24, 165)
TIMESTEP = 1e-6  # fs; random weights hold no liquid together, so the atoms stay where they are


def water(atoms: int, seed: int = 1) -> System:
    """Randomly turned molecules on a jittered grid; periodic unless a cluster was asked for."""
    generator = np.random.default_rng(seed)
    molecules = atoms // 3
    edge = (molecules * VOLUME_PER_MOLECULE) ** (1 / 3)
    points = int(np.ceil(molecules ** (1 / 3) - 1e-9))
    grid = np.stack(np.meshgrid(*[np.arange(points)] * 3, indexing="ij"), axis=-1)
    centres = (grid.reshape(-1, 3)[:molecules] + 0.5) * edge / points
    centres = centres + generator.normal(scale=0.05, size=centres.shape)
    turns, _ = np.linalg.qr(generator.normal(size=(molecules, 3, 3)))
    positions = centres[:, None] + MOLECULE @ turns
    periodic = atoms not in CLUSTERS
    return System(
        numbers=np.tile([8, 1, 1], molecules),
        positions=positions.reshape(-1, 3),
        cell=np.eye(3) * edge if periodic else np.zeros((3, 3)),
        pbc=np.full(3, periodic),
    )


def potential(channels: int, layers: int) -> TensorNetPotential:
    """TorchMD-Net's architecture with random weights."""
    torch.manual_seed(1)
    config = TensorNetConfig(
        species=(1, 8),
        channels=channels,
        layers=layers,
        cutoff=5.0,
        radial_basis=RadialBasisConfig(number=32),
        readout=ReadoutConfig(hidden=(max(1, channels // 2),)),
        self_interaction=True,
        charge_factor=True,
    )
    return TensorNetPotential(config)


def milliseconds(function: Callable[[], object], calls: int, seconds: float) -> float:
    """Median time of one of `calls` that `function` makes, host and device, after a warm-up."""
    times: list[float] = []
    function()
    start = time.perf_counter()
    while len(times) < 3 or time.perf_counter() - start < seconds:
        begin = time.perf_counter()
        function()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - begin) / calls)
    return float(np.median(times))


def repeat(function: Callable[[], object], times: int) -> None:
    for _ in range(times):
        function()


def force_errors(calculation: Calculation, exact: Calculation) -> dict[str, float]:
    """Worst and RMS force error over the RMS force, against float64."""
    difference = calculation.state.forces.double() - exact.state.forces
    scale = float(exact.state.forces.square().mean().sqrt())
    return {
        "force_error_worst": float(difference.abs().max()) / scale,
        "force_error_rms": float(difference.square().mean().sqrt()) / scale,
    }


def hardware(device: torch.device) -> str:
    """Name of what ran."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads"


def row(atoms: int, model: TensorNetPotential, options: argparse.Namespace) -> dict[str, object]:
    """Builds, times and checks one size."""
    device = torch.device(options.device)
    system = water(atoms)
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    simulation = Simulation(
        system,
        model,
        LangevinMiddle(TIMESTEP, 300.0, 1.0),
        device=device,
        precision=options.precision,
        graph="auto" if options.graph else "off",
        chunk=96,
    )
    calculation = simulation.calculation
    # Whole chunks: the noise of a block of steps, snapshots and looks of the host count too.
    steps = 96 if device.type == "cuda" else 4
    step = milliseconds(lambda: simulation.run(steps), steps, options.seconds)
    update: Callable[[], object] = calculation.update_
    if simulation.graphed:
        update = CapturedGraph(calculation.update_, device).replay
    repeated = partial(repeat, update, steps)
    energy_forces = milliseconds(repeated, steps, options.seconds)
    result: dict[str, object] = {
        "atoms": atoms,
        "neighbors": round(float(calculation.lists[0].count.double().mean()), 1),
        "capacity": calculation.lists[0].capacity,
        "step_ms": round(step, 4),
        "energy_forces_ms": round(energy_forces, 4),
    }
    if device.type == "cuda":
        result["peak_GB"] = round(torch.cuda.max_memory_allocated() / 1e9, 3)
    calculation.compute()
    if atoms <= options.check:
        positions = calculation.state.positions.double().cpu().numpy()
        exact = Calculation(
            [system.replace(positions=positions)], model, device=device, precision="double"
        )
        exact.compute()
        result |= force_errors(calculation, exact)
    return result


def main() -> None:
    """Prints one JSON line a size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--atoms", type=int, nargs="+", default=[24, 165, 648, 3000])
    parser.add_argument("--channels", type=int, default=128)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--precision", default="mixed")
    parser.add_argument("--no-graph", dest="graph", action="store_false")
    parser.add_argument("--seconds", type=float, default=2.0, help="time spent on one number")
    parser.add_argument("--check", type=int, default=3000, help="largest size held to float64")
    options = parser.parse_args()
    model = potential(options.channels, options.layers)
    common = {
        "hardware": hardware(torch.device(options.device)),
        "torch": torch.__version__,
        "mdgraph": __version__,
        "date": date.today().isoformat(),
        "channels": options.channels,
        "layers": options.layers,
        "precision": options.precision,
        "graph": options.graph and options.device.startswith("cuda"),
    }
    for atoms in options.atoms:
        try:
            print(json.dumps(row(atoms, model, options) | common), flush=True)
        except torch.cuda.OutOfMemoryError:
            print(json.dumps({"atoms": atoms, "error": "out of memory"} | common), flush=True)


if __name__ == "__main__":
    main()
