"""Physics of water in domains beside the undivided run: drift, temperature, pressure, g(r).

    python benchmarks/domains.py [--nve-ps 2] [--npt-ps 4] [--domains 1x1x2]
    torchrun --nproc-per-node 2 benchmarks/domains.py --device cuda --repeat 2x2x4 --nve-ps 20 \
        --npt-ps 0 --sample 200

Both run the shipped water at 300 K in `mixed`, from one state, after a bath of a picosecond, and
are looked at every `--sample` steps, so nothing looks at all atoms in between and ranks hand them
over. At constant energy the slope of the conserved energy is printed with its standard error, by
least squares and blocks of means. Errors of means are of the scatter over ten parts of a run: parts
of a run that has not yet forgotten its start tell too small errors. "g_OO" is the RMS over
distances of the difference between the radial distributions of both runs, its error what the parts
let expect. `--double-steps 2000` compares positions themselves, in `double`. Under torchrun each
rank evaluates a domain, and rank 0 the undivided system; else all domains are evaluated in one
process, with the arithmetic that ranks have.
"""

import argparse
from collections.abc import Sequence

import numpy as np
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
from numpy.typing import ArrayLike, NDArray

from mdgraph.analysis.rdf import radial_distribution, smallest_height
from mdgraph.checkpoints import shipped_potentials
from mdgraph.decomposition import join_ranks
from mdgraph.engine import (
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
QUANTITIES = ("temperature", "pressure", "volume")
PARTS, SAMPLES = 10, 8
"""Parts of a run, and samples from one g_OO to the next."""
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
        ("g_OO", "distribution", ".4f"),
        ("SE", "distribution_error", ".4f"),
    ),
    width=10,
)
"""Drifts are of the conserved energy, in ueV an atom and ps."""


def begun(
    system: System, integrator: Integrator, domains: str, seed: int, options: argparse.Namespace
) -> Simulation:
    return Simulation(
        system, POTENTIAL, integrator, seed=seed, temperature=options.kelvin, device=options.device,
        domains=None if domains == "1" else domains, check=None,
    )  # fmt: skip


def measured(
    run: Simulation, ps: float, sample: int, maximum: float
) -> tuple[dict[str, float], NDArray[np.float64]]:
    """Runs for a time: what is printed of it, and g_OO up to a distance in parts of it (P, B)."""
    oxygen = np.flatnonzero(run.state.numbers.cpu().numpy() == 8)
    times, energies, samples, distributions = [], [], [], []
    for number in range(round(1e3 * ps / TIMESTEP) // sample):
        run.run(sample)
        view, now = run.view(), run.observables()
        times.append(1e-3 * run.time)
        energies.append(now.conserved_energy.item())
        samples.append([now.temperature.item(), now.pressure.item() / BAR, now.volume.item()])
        if number % SAMPLES == 0:
            frame = view.positions.numpy(), view.cell[0].numpy()
            found = radial_distribution([frame], oxygen, oxygen, maximum=maximum)
            distributions.append(found.value)
    row: dict[str, float] = {}
    if np.isfinite(energies).all():
        atoms = len(run.state.numbers)
        slope = drift(np.array(times), 1e6 * np.array(energies)[:, None] / atoms)
        row = {"drift": slope.slope, "drift_error": slope.blocks_error}
    parts = in_parts(samples)
    errors = parts.std(0, ddof=1) / len(parts) ** 0.5 if len(parts) > 1 else 0.0 * parts[0]
    for name, mean, error in zip(QUANTITIES, np.mean(samples, 0), errors, strict=True):
        row |= {name: mean, f"{name}_error": error}
    return row, in_parts(distributions)


def in_parts(samples: Sequence[ArrayLike]) -> NDArray[np.float64]:
    """Means over parts of a run, (P, ...)."""
    parts = np.array_split(np.asarray(samples, dtype=np.float64), min(PARTS, len(samples)))
    return np.array([part.mean(0) for part in parts])


def difference(one: NDArray[np.float64], other: NDArray[np.float64]) -> dict[str, float]:
    """RMS of the difference between distributions (P, B), and what scatter lets expect."""
    if min(len(one), len(other)) < 2:
        return {}
    rms = np.sqrt(((one.mean(0) - other.mean(0)) ** 2).mean())
    variances = [parts.var(0, ddof=1) / len(parts) for parts in (one, other)]
    return {
        "distribution": float(rms),
        "distribution_error": float(np.sqrt(sum(variances).mean())),
    }


def same_way(system: System, options: argparse.Namespace) -> None:
    """Says how far positions in `double` are apart after steps at constant energy of both."""
    both = [
        Simulation(
            system, POTENTIAL, VelocityVerlet(TIMESTEP), device=options.device, domains=domains,
            check=None, precision="double", evaluator="fused",
        )
        for domains in (None, options.domains)
    ]  # fmt: skip
    for part in range(1, 5):
        step = options.double_steps * part // 4
        for run in both:
            run.run(step - run.step)
        one, other = (run.state.positions for run in both)
        apart = float((one - other).abs().max())
        moved = float(np.abs(one.cpu().numpy() - system.positions).max())
        builds = [int(run.calculation.lists[0].rebuilds) for run in both]
        print(
            f"{step:,} steps in double: positions differ by at most {apart:.1e} A, atoms "
            f"have moved by up to {moved:.2f} A, lists were built {builds[0]} "
            f"and {builds[1]} times",
            flush=True,
        )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nve-ps", type=float, default=2.0, help="at constant energy")
    parser.add_argument("--npt-ps", type=float, default=4.0, help="at constant pressure")
    parser.add_argument("--bath-ps", type=float, default=1.0, help="before both")
    parser.add_argument("--kelvin", type=float, default=300.0, help="above, water forgets sooner")
    parser.add_argument("--domains", default="1x1x2", help="grid")
    parser.add_argument("--device", type=device_argument, default="cpu")
    parser.add_argument("--repeat", type=counts_named, default=[1, 1, 1], help="box of 192 atoms")
    parser.add_argument("--sample", type=int, default=10, help="steps between energies")
    parser.add_argument("--double-steps", type=int, default=0, help="that both do, to compare")
    parser.add_argument("--seed", type=int, default=1, help="of the bath")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    shortest = 1e-3 * TIMESTEP * options.sample
    if any(0.0 < ps < shortest for ps in (options.nve_ps, options.npt_ps)):
        parser.error("--nve-ps or --npt-ps is shorter than --sample steps; take longer runs.")
    return options


def main() -> None:
    """Prints a row for each run."""
    options = arguments()
    join_ranks()  # the others serve from here on
    common = {"hardware": hardware(options.device), "precision": "mixed"}
    print_heading(TABLE, common, options.json)
    start = read_system(shipped_potentials()[POTENTIAL] / "start.extxyz")
    start = repeated(start, options.repeat)
    thermostat = StochasticVelocityRescaling(TIMESTEP, options.kelvin, tau=50.0)
    bath = begun(start, thermostat, "1", options.seed, options)
    bath.run(round(1e3 * options.bath_ps / TIMESTEP))
    view = bath.view()
    system = start.replace(
        positions=view.positions.numpy().copy(), velocities=view.velocities.numpy().copy()
    )
    if options.double_steps:
        same_way(system, options)
    maximum = 0.45 * smallest_height(system.cell)
    runs = (
        ("nve", options.nve_ps, lambda: VelocityVerlet(TIMESTEP)),
        ("npt", options.npt_ps, lambda: StochasticCellRescaling(TIMESTEP, options.kelvin, BAR)),
    )
    for name, ps, integrator in runs:
        whole = None
        for seed, domains in enumerate(("1", options.domains)):
            if ps > 0.0:
                run = begun(system, integrator(), domains, seed, options)
                found, parts = measured(run, ps, options.sample, maximum)
                row = {"run": name, "domains": domains, "ps": ps} | found
                row |= {} if whole is None else difference(whole, parts)
                whole = parts
                print_row(TABLE, row, common, options.json)


if __name__ == "__main__":
    run_script(main)
