"""Physics of water in domains beside the undivided run: drift, temperature, pressure, density.

    python benchmarks/domains.py [--nve-ps 2] [--npt-ps 4] [--domains 2]
    torchrun --nproc-per-node 2 benchmarks/domains.py --device cuda --repeat 2x2x4 --nve-ps 20 \
        --npt-ps 0 --sample 200

Both run the shipped water at 300 K in `mixed`, after a bath of a picosecond that they share. At
constant energy the slope of the conserved energy is printed with its standard error, by least
squares and blocks of means; at constant pressure the means with their blocked errors. Under
torchrun each rank evaluates a domain, and rank 0 the undivided system; else all domains are
evaluated in one process, with the arithmetic that ranks have.
"""

import argparse

import numpy as np
import torch
from cases import (
    Table,
    counts_named,
    device_argument,
    hardware,
    print_heading,
    print_row,
    repeated,
    run_script,
)
from drift import drift

from mdgraph.checkpoints import shipped_potentials
from mdgraph.decomposition import join_ranks
from mdgraph.engine import (
    Averages,
    Integrator,
    Simulation,
    StochasticCellRescaling,
    StochasticVelocityRescaling,
    VelocityVerlet,
)
from mdgraph.io.structures import read_system
from mdgraph.system import System
from mdgraph.units import BAR

POTENTIAL = "water-pbe0"
TIMESTEP = 0.5
TABLE = Table(
    (
        ("run", "run", ""),
        ("domains", "domains", ""),
        ("ps", "ps", "g"),
        ("drift", "drift", ".2f"),
        ("SE", "drift_error", ".2f"),
        ("T K", "temperature", ".1f"),
        ("SE", "temperature_error", ".1f"),
        ("p bar", "pressure", ".0f"),
        ("SE", "pressure_error", ".0f"),
        ("V A^3", "volume", ".1f"),
        ("SE", "volume_error", ".1f"),
    ),
    width=10,
)
"""Drifts are of the conserved energy, in ueV an atom and ps."""


def begun(
    system: System, integrator: Integrator, domains: str, seed: int, device: torch.device
) -> Simulation:
    """A run at 300 K with averages of every step."""
    return Simulation(
        system, POTENTIAL, integrator, seed=seed, temperature=300.0, device=device,
        domains=None if domains == "1" else domains, check=None, observe=[Averages()],
    )  # fmt: skip


def measured(run: Simulation, ps: float, sample: int) -> dict[str, float]:
    """Runs for a time, and what is printed of it."""
    times, energies = [], []
    for _ in range(round(1e3 * ps / TIMESTEP) // sample):
        run.run(sample)
        times.append(1e-3 * run.time)
        energies.append(run.observables().conserved_energy.item())
    atoms = run.state.grouping.atoms
    row: dict[str, float] = {}
    if np.isfinite(energies).all():
        slope = drift(np.array(times), 1e6 * np.array(energies)[:, None] / atoms)
        row = {"drift": slope.slope, "drift_error": slope.blocks_error}
    averages = run.online[0].result()
    for quantity, unit in (("temperature", 1.0), ("pressure", BAR), ("volume", 1.0)):
        mean, error = averages.of(quantity)
        row |= {quantity: mean / unit, f"{quantity}_error": error / unit}
    return row


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nve-ps", type=float, default=2.0, help="at constant energy")
    parser.add_argument("--npt-ps", type=float, default=4.0, help="at constant pressure")
    parser.add_argument("--bath-ps", type=float, default=1.0, help="before both")
    parser.add_argument("--domains", default="2", help="number or grid")
    parser.add_argument("--device", type=device_argument, default="cpu")
    parser.add_argument("--repeat", type=counts_named, default=[1, 1, 1], help="box of 192 atoms")
    parser.add_argument("--sample", type=int, default=10, help="steps between energies")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def main() -> None:
    """Prints a row for each run."""
    options = arguments()
    join_ranks()  # the others serve from here on
    common = {"hardware": hardware(options.device), "precision": "mixed"}
    print_heading(TABLE, common, options.json)
    start = read_system(shipped_potentials()[POTENTIAL] / "start.extxyz")
    start = repeated(start, options.repeat)
    thermostat = StochasticVelocityRescaling(TIMESTEP, 300.0, tau=50.0)
    bath = begun(start, thermostat, "1", 1, options.device)
    bath.run(round(1e3 * options.bath_ps / TIMESTEP))
    view = bath.view()
    system = start.replace(
        positions=view.positions.numpy().copy(), velocities=view.velocities.numpy().copy()
    )
    runs = (
        ("nve", options.nve_ps, lambda: VelocityVerlet(TIMESTEP)),
        ("npt", options.npt_ps, lambda: StochasticCellRescaling(TIMESTEP, 300.0, 1.0 * BAR)),
    )
    for name, ps, integrator in runs:
        for seed, domains in enumerate(("1", options.domains)):
            if ps > 0.0:
                run = begun(system, integrator(), domains, seed, options.device)
                row = {"run": name, "domains": domains, "ps": ps}
                row |= measured(run, ps, options.sample)
                print_row(TABLE, row, common, options.json)


if __name__ == "__main__":
    run_script(main)
