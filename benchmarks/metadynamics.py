"""Errors of the free energies of metadynamics: of many walkers, and beside OpenMM's own.

    python benchmarks/metadynamics.py walkers [--walkers 1 64] [--repeats 5] [--device cuda]
    python benchmarks/metadynamics.py openmm [--repeats 3] [--pair] [--quick]
    python benchmarks/metadynamics.py exact [--repeats 3] [--walkers 256] [--device cuda]

`walkers`: a particle in a double well of 5 kT, whose free energy is known. Runs go on until the
RMS error of the sum of hills, where F is below 8 kT, is under the target and stays there in the
next look, or until their number of hills; the same number for one walker as for many. What is
shown is the number of hills and the wall time until then; kernels are compiled and graphs captured
before.

`openmm`: the same well by OpenMM's `app.Metadynamics` on its Reference platform with as many hills
of equal numbers, both against the exact answer; all repeats of mdgraph are one batch. With
`--pair` both fill the distance of two free atoms, which a Morse potential and a spring hold, OpenMM
through openmm-ml with the forces of mdgraph; the exact answer has the - 2 kT ln r of a free pair.

`exact`: 256 walkers, or more with lower hills, in the double well, and in a valley of two variables
that crosses a barrier of 4 kT aslant. Both free energies are known, and compared where they are
below 8 kT: with minus the sum of hills at the points of the grid, and with the samples of the steps
of hills, reweighted and in bins as `mdgraph free-energy` does it. Shown is the RMS error of each
repeat and, of samples, what their own error bars say. `--seed` begins the repeats at another one,
so that several processes make them.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from cases import Table, conditions, device_argument, print_heading, print_row, run_script
from numpy.typing import NDArray

from mdgraph import load
from mdgraph.analysis.free_energies import (
    ProfileGrid,
    WeightedSeries,
    profile_of_weights,
    weighted_profile,
)
from mdgraph.analysis.metadynamics import HillSum, log_weights
from mdgraph.biases import Distance, Metadynamics, Position
from mdgraph.checkpoints import save
from mdgraph.engine import HostSnapshot, LangevinMiddle, Simulation
from mdgraph.engine.step_graphs import LONGEST
from mdgraph.evaluators import Evaluator
from mdgraph.models import TensorNetConfig, TensorNetPotential, with_terms
from mdgraph.neighbors import NeighborList
from mdgraph.state import State
from mdgraph.system import System
from mdgraph.units import BOLTZMANN, KILOJOULE_PER_MOLE

Array = NDArray[np.float64]

PAIR_DEPTH, PAIR_WIDTH, PAIR_LENGTH = 0.1034, 1.2, 3.8
PAIR_SPRING, PAIR_REST = 0.06, 5.0
PAIR_TERMS = (
    f"morse:Ar={PAIR_DEPTH}/{PAIR_WIDTH}/{PAIR_LENGTH}@12",
    f"bonds:0-1={PAIR_SPRING}/{PAIR_REST}",
)
"""Some 4 kT of binding in eV, 1/A and A, and what keeps the atoms within 9 A."""

KELVIN = 300.0
KT = BOLTZMANN * KELVIN
STIFFNESS = 0.2
HIGHEST = 8.0
"""kT, up to which free energies are compared."""

TABLE = Table(
    (
        ("who", "who", ""),
        ("walkers", "walkers", ""),
        ("seed", "seed", ""),
        ("hills", "hills", ",.0f"),
        ("steps", "steps", ",.0f"),
        ("seconds", "seconds", ".2f"),
        ("RMS error kT", "error_kT", ".3f"),
        ("its bars", "bars_kT", ".3f"),
    ),
    width=19,
)


class Wells(Evaluator):
    """One particle a system, U = h (x^2 - 1)^2 + a/2 (y - b x)^2 + k/2 z^2."""

    cutoffs: tuple[float, ...] = ()

    def __init__(self, barrier: float, stiffness: float = STIFFNESS, slant: float = 0.0) -> None:
        self._barrier, self._stiffness, self._slant = barrier, stiffness, slant

    def evaluate_(self, state: State, lists: Sequence[NeighborList]) -> None:
        x, y, z = state.positions.unbind(-1)
        beside = y - self._slant * x
        pull = self._stiffness * beside
        slope = 4.0 * self._barrier * x * (x**2 - 1.0) - self._slant * pull
        state.forces.copy_(-torch.stack([slope, pull, STIFFNESS * z], -1))
        across = 0.5 * (pull * beside + STIFFNESS * z**2)
        state.energies.copy_(self._barrier * (x**2 - 1.0) ** 2 + across)
        state.energy.copy_(state.grouping.sum(state.energies))
        state.virial.zero_()


def rms_error(values: Array, exact: Array) -> float:
    """RMS difference in kT of two free energies, but for a constant, where the second is low."""
    low = exact - exact.min() < HIGHEST
    return float((values - exact)[low].std())


def hills_of(options: argparse.Namespace) -> dict[str, Any]:
    """What both programs know of hills on x."""
    return {
        "sigma": 0.1,
        "height": options.height * KT,
        "every": options.every,
        "bias_factor": 8.0,
        "minimum": -2.5,
        "maximum": 2.5,
    }


def well_of(
    options: argparse.Namespace, walkers: int, seed: int, *, shared: bool = True
) -> Simulation:
    """Walkers that share their hills on x, or do not, half of them in each well."""
    systems = [
        System(numbers=[18], positions=[[(-1.0) ** number, 0, 0]], masses=[1.0])
        for number in range(walkers)
    ]
    return Simulation(
        systems,
        Wells(options.barrier * KT),
        LangevinMiddle(5.0, KELVIN, friction=5.0),
        device=options.device,
        check=False,
        seed=seed,
        variables={"x": Position(0, "x")},
        biases=[Metadynamics("x", shared=shared, **hills_of(options))],
    )


def profile_of(simulation: Simulation) -> list[Array]:
    """The variable, and the free energy of each grid by the sum of hills in kT; syncs."""
    biases = simulation.calculation.biases
    assert biases is not None
    hills = biases.metadynamics()["metadynamics"]
    return [hills.grid.axis(0), *(-hills.factor * hills.potential() / KT)]


def until_good(options: argparse.Namespace, walkers: int, seed: int) -> dict[str, Any]:
    """A run up to the target, or up to all hills."""
    simulation = well_of(options, walkers, seed)
    simulation.choose(options.hills * options.every // walkers)
    with simulation.unchanged():
        simulation.run(2 * LONGEST - 1)  # compiles, and captures graphs of all lengths
    looks = max(options.every, options.hills * options.every // walkers // options.looks)
    looks = -(-looks // options.every) * options.every
    last = options.hills * options.every // walkers
    good: tuple[int, float] | None = None
    seconds, error = 0.0, float("nan")
    while simulation.step < last:
        begin = time.perf_counter()
        simulation.run(min(looks, last - simulation.step))
        seconds += time.perf_counter() - begin
        x, values = profile_of(simulation)
        error = rms_error(values, options.barrier * (x**2 - 1.0) ** 2)
        if error > options.target:
            good = None
        elif good is None:
            good = simulation.step, seconds
        else:
            break
    steps, taken = (simulation.step, seconds) if good is None else good
    return {
        "who": "mdgraph" if good else "mdgraph, not there",
        "walkers": str(walkers),
        "seed": str(seed),
        "hills": walkers * (steps // options.every),
        "steps": steps,
        "seconds": taken,
        "error_kT": error,
        "reached": good is not None,
    }


def compare_walkers(options: argparse.Namespace, show: Callable[[dict[str, Any]], None]) -> None:
    """Rows of all runs, and a sentence with the ratios of their medians."""
    medians: dict[int, float] = {}
    for walkers in options.walkers:
        rows = [until_good(options, walkers, seed) for seed in range(options.repeats)]
        for row in rows:
            show(row)
        if all(row["reached"] for row in rows):
            medians[walkers] = statistics.median(row["seconds"] for row in rows)
    if options.json:
        return
    first, *others = options.walkers
    for walkers in others:
        if first in medians and walkers in medians:
            share = medians[walkers] / medians[first]
            print(f"{walkers} walkers take {share:.3f} of the wall time of {first} (medians).")
        else:
            print(f"Not all runs of {first} and {walkers} walkers reached {options.target:g} kT.")


def openmm_profile(
    system: Any, variable: Any, positions: Any, options: argparse.Namespace, step_fs: float
) -> tuple[Array, float]:
    """The free energy on the grid of a variable in kT by OpenMM, and the seconds it took."""
    import openmm
    from openmm import app, unit

    sampler = app.Metadynamics(
        system,
        [variable],
        KELVIN * unit.kelvin,
        8.0,
        options.height * KT / KILOJOULE_PER_MOLE,
        options.every,
    )
    friction = 5.0 / unit.picosecond
    integrator = openmm.LangevinMiddleIntegrator(
        KELVIN * unit.kelvin, friction, step_fs * unit.femtosecond
    )
    integrator.setRandomNumberSeed(options.seed + 1)
    topology = app.Topology()
    residue = topology.addResidue("X", topology.addChain())
    for number in range(system.getNumParticles()):
        topology.addAtom(str(number), None, residue)
    platform = openmm.Platform.getPlatformByName("Reference")
    simulation = app.Simulation(topology, system, integrator, platform)
    simulation.context.setPositions(positions)
    simulation.context.setVelocitiesToTemperature(KELVIN * unit.kelvin, options.seed + 1)
    begin = time.perf_counter()
    sampler.step(simulation, options.hills * options.every)
    seconds = time.perf_counter() - begin
    profile = sampler.getFreeEnergy().value_in_unit(unit.kilojoule_per_mole)
    return np.asarray(profile) * KILOJOULE_PER_MOLE / KT, seconds


def openmm_well(options: argparse.Namespace) -> dict[str, Any]:
    """The double well by OpenMM."""
    import openmm
    from openmm import app, unit

    system = openmm.System()
    system.addParticle(1.0)
    kj = 1.0 / KILOJOULE_PER_MOLE
    well = openmm.CustomExternalForce("h*((10*x)^2-1)^2 + 50*k*(y^2+z^2)")
    well.addGlobalParameter("h", options.barrier * KT * kj)
    well.addGlobalParameter("k", STIFFNESS * kj)
    well.addParticle(0)
    system.addForce(well)
    place = openmm.CustomExternalForce("x")
    place.addParticle(0)
    variable = app.BiasVariable(place, -0.25, 0.25, 0.01, False, 251)
    positions = np.array([[0.1, 0.0, 0.0]]) * unit.nanometer
    values, seconds = openmm_profile(system, variable, positions, options, 5.0)
    x = np.linspace(-2.5, 2.5, 251)
    return _row("OpenMM", options, rms_error(values, options.barrier * (x**2 - 1.0) ** 2), seconds)


def mdgraph_wells(options: argparse.Namespace) -> list[dict[str, Any]]:
    """The double well by mdgraph, all repeats in one batch, each with hills of its own."""
    simulation = well_of(options, options.repeats, 0, shared=False)
    begin = time.perf_counter()
    simulation.run(options.hills * options.every)
    seconds = time.perf_counter() - begin
    x, *profiles = profile_of(simulation)
    rows = []
    for options.seed, values in enumerate(profiles):
        error = rms_error(values, options.barrier * (x**2 - 1.0) ** 2)
        rows.append(_row("mdgraph", options, error, seconds))
    return rows


@dataclass(frozen=True)
class Model:
    """A potential of one variable or two, in kT.

    Attributes:
        barrier: of the double well along x.
        stiffness: a of `Wells`, over A^2.
        slant: b of `Wells`.
        sigma: widths of the hills, A.
        limits: of x and y on the grid, A.
        height: of the first hills of 256 walkers; of more, so much lower.
        hills: of all walkers, unless their number is given.
    """

    barrier: float
    stiffness: float
    slant: float
    sigma: tuple[float, ...]
    limits: tuple[float, ...]
    height: float
    hills: int

    def energy(self, *places: Array) -> Array:
        """U in kT at x, or at x and y."""
        along = self.barrier * (places[0] ** 2 - 1.0) ** 2
        if len(places) == 1:
            return along
        return along + 0.5 * self.stiffness * (places[1] - self.slant * places[0]) ** 2


MODELS = {
    "double well": Model(5.0, STIFFNESS / KT, 0.0, (0.1,), (3.0,), 0.02, 500_000),
    "valley": Model(4.0, 4.0, 0.5, (0.15, 0.2), (3.0, 7.0), 0.05, 1_500_000),
}
WALKERS = 256
GAMMA = 5.0
"""Walkers come to where F is some 13 kT times as high, and no further."""
START = 0.1
"""Share of the samples that is left out, as `mdgraph free-energy` does."""


class Samples:
    """Variables, and the bias in kT, of all walkers; a Recorder."""

    def __init__(self, interval: int) -> None:
        self.interval = interval
        self.rows: list[Array] = []

    def record(self, snapshot: HostSnapshot) -> None:
        """See Recorder."""
        columns = snapshot.observables.biases.values()
        self.rows.append(np.stack([column.numpy() for column in columns], 1))


def exact_rows(
    options: argparse.Namespace, name: str, walkers: int, seed: int
) -> list[dict[str, Any]]:
    """Errors of the sum of hills and of reweighted samples of a run of walkers."""
    model = MODELS[name]
    model = replace(model, height=model.height * WALKERS / walkers)
    names = ("x", "y")[: len(model.sigma)]
    bias = Metadynamics(
        names,
        sigma=model.sigma,
        height=model.height * KT,
        every=options.every,
        minimum=[-limit for limit in model.limits],
        maximum=model.limits,
        bias_factor=GAMMA,
        shared=True,
    )
    sides = [(-1.0) ** number for number in range(walkers)]
    simulation = Simulation(
        [System(numbers=[18], positions=[[x, model.slant * x, 0]], masses=[1.0]) for x in sides],
        Wells(model.barrier * KT, model.stiffness * KT, model.slant),
        LangevinMiddle(2.5, KELVIN, friction=5.0),
        device=options.device,
        check=False,
        seed=seed,
        variables={one: Position(0, one) for one in names},
        biases=[bias],
    )
    samples = Samples(options.every)
    simulation.recorders.append(samples)
    begin = time.perf_counter()
    simulation.run((options.hills or model.hills) // walkers * options.every)
    seconds = time.perf_counter() - begin
    biases = simulation.calculation.biases
    assert biases is not None
    hills = biases.metadynamics()["metadynamics"]
    mesh = np.meshgrid(*map(hills.grid.axis, range(len(names))), indexing="ij")
    summed = rms_error(-hills.factor * hills.potential()[0] / KT, model.energy(*mesh))
    reweighted, bars = reweighted_error(model, names, np.stack(samples.rows), hills.factor)
    common = {
        "walkers": f"{name}, {walkers}",
        "seed": str(seed),
        "hills": walkers * (simulation.step // options.every),
        "steps": simulation.step,
        "seconds": seconds,
    }
    return [
        {"who": "sum of hills", **common, "error_kT": summed},
        {"who": "reweighted", **common, "error_kT": reweighted, "bars_kT": bars},
    ]


def reweighted_error(
    model: Model, names: tuple[str, ...], rows: Array, factor: float
) -> tuple[float, float]:
    """RMS error of the profile of samples in kT, and the RMS of its error bars.

    Args:
        model: that they are of.
        names: of the variables.
        rows: (T, W, n + 1), variables and bias (eV) at the steps of hills, before these.
        factor: of the heights.
    """
    values, bias = rows[..., :-1], rows[..., -1] / KT
    times = np.arange(1.0, len(rows) + 1.0)
    centers = values.reshape(-1, len(names))
    heights = factor * model.height * np.exp(-bias / (GAMMA - 1.0)).ravel()
    hills = HillSum(
        names,
        (None,) * len(names),
        np.repeat(times + 0.5, values.shape[1]),
        centers,
        np.broadcast_to(np.array(model.sigma), centers.shape),
        heights,
        GAMMA,
    )
    count = 200 if len(names) == 1 else 60
    axes = [
        np.linspace(column.min() - width, column.max() + width, count)
        for column, width in zip(centers.T, model.sigma, strict=True)
    ]
    points = np.stack([axis.ravel() for axis in np.meshgrid(*axes, indexing="ij")], 1)
    offsets = hills.offsets(points, 1.0)
    first = int(START * len(rows))
    series = [
        WeightedSeries(
            values[first:, walker],
            log_weights(offsets, bias[first:, walker], times[first:], 1.0),
            values[first:, walker],
        )
        for walker in range(values.shape[1])
    ]
    edges = (np.linspace(-1.6, 1.6, 65), np.linspace(-2.5, 2.5, 51))[: len(names)]
    grid = ProfileGrid(names, edges, (None,) * len(names))
    profile = weighted_profile(series, grid, 1.0, resamples=30)
    inner = [
        (ends[:-1, None] + (ends[1] - ends[0]) * (np.arange(20) + 0.5) / 20).ravel()
        for ends in edges
    ]
    density = np.exp(-model.energy(*np.meshgrid(*inner, indexing="ij")))
    for axis, bins in enumerate(grid.shape):
        shape = (*density.shape[:axis], bins, 20, *density.shape[axis + 1 :])
        density = density.reshape(shape).sum(axis + 1)
    exact = profile_of_weights(density.ravel(), grid, 1.0)
    low = exact - exact.min() < HIGHEST
    bars = float(np.sqrt(np.mean(profile.error()[low] ** 2)))
    return rms_error(profile.values, exact), bars


def _row(who: str, options: argparse.Namespace, error: float, seconds: float) -> dict[str, Any]:
    steps = options.hills * options.every
    return {"who": who, "walkers": "1", "seed": str(options.seed), "hills": options.hills,
            "steps": steps, "seconds": seconds, "error_kT": error}  # fmt: skip


def pair_potential(folder: Path) -> Path:
    """A file of a network to which terms are added; the atoms are always beyond its cutoff."""
    settings = {"species": (18,), "channels": 4, "layers": 1, "cutoff": 2.0}
    path = folder / "beyond.safetensors"
    save(TensorNetPotential(TensorNetConfig.model_validate(settings)), path)
    return path


def exact_pair(distance: Array) -> Array:
    """F(r) in kT of two free atoms, which are on a sphere of 4 pi r^2."""
    morse = PAIR_DEPTH * ((1.0 - np.exp(-PAIR_WIDTH * (distance - PAIR_LENGTH))) ** 2 - 1.0)
    spring = 0.5 * PAIR_SPRING * (distance - PAIR_REST) ** 2
    return (morse + spring) / KT - 2.0 * np.log(distance)


def pairs_by_both(options: argparse.Namespace) -> list[dict[str, Any]]:
    """The distance of two atoms by both, OpenMM through openmm-ml, beside the exact answer."""
    from openmm import CustomBondForce, app, unit
    from openmmml import MLPotential

    low, high, points, step_fs = 2.5, 9.5, 141, 10.0
    positions = np.array([[0.0, 0.0, 0.0], [PAIR_LENGTH, 0.0, 0.0]])
    atom = app.element.Element.getBySymbol("Ar")
    topology = app.Topology()
    residue = topology.addResidue("X", topology.addChain())
    for _ in positions:
        topology.addAtom("Ar", atom, residue)
    with TemporaryDirectory() as folder:
        path = pair_potential(Path(folder))
        simulation = Simulation(
            System(numbers=[18, 18], positions=positions),
            with_terms(load(path), PAIR_TERMS),
            LangevinMiddle(step_fs, KELVIN, friction=5.0),
            device=options.device,
            check=False,
            seed=options.seed,
            variables={"r": Distance([0, 1])},
            biases=[
                Metadynamics(
                    "r",
                    sigma=0.2,
                    height=options.height * KT,
                    every=options.every,
                    bias_factor=8.0,
                    minimum=low,
                    maximum=high,
                    points=points,
                )
            ],
        )
        model = MLPotential("mdgraph", modelPath=str(path))
        system = model.createSystem(topology, terms=list(PAIR_TERMS))
    begin = time.perf_counter()
    simulation.run(options.hills * options.every)
    own_seconds = time.perf_counter() - begin
    distances, own = profile_of(simulation)
    distance = CustomBondForce("r")
    distance.addBond(0, 1)
    variable = app.BiasVariable(distance, 0.1 * low, 0.1 * high, 0.02, False, points)
    start = positions * unit.angstrom
    theirs, seconds = openmm_profile(system, variable, start, options, step_fs)
    exact = exact_pair(distances)
    rows = [
        _row("mdgraph", options, rms_error(own, exact), own_seconds),
        _row("openmm-ml", options, rms_error(theirs, exact), seconds),
    ]
    return rows + [_row("difference", options, _difference(theirs, own, exact), 0.0)]


def _difference(first: Array, second: Array, exact: Array) -> float:
    """RMS difference in kT of two profiles, but for a constant, where F is low."""
    return rms_error(first - second + exact, exact)


def show_means(rows: Sequence[dict[str, Any]], options: argparse.Namespace) -> None:
    """Prints the mean of the errors of repeats and its standard error."""
    for who in dict.fromkeys(row["who"] for row in rows):
        errors = np.array([row["error_kT"] for row in rows if row["who"] == who])
        if not options.json and len(errors) > 1:
            error = errors.std(ddof=1) / len(errors) ** 0.5
            print(f"{who}: {errors.mean():.3f} +- {error:.3f} kT")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["walkers", "openmm", "exact"])
    parser.add_argument("--walkers", type=int, nargs="+", help="of exact one number, 256")
    parser.add_argument("--model", choices=MODELS, help="of exact; all without it")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0, help="of the first repeat, exact and openmm")
    parser.add_argument("--hills", type=int, help="most hills of all walkers")
    parser.add_argument("--every", type=int, help="steps between hills of a walker")
    parser.add_argument("--height", type=float, default=0.02, help="kT, of the first hills")
    parser.add_argument("--barrier", type=float, default=5.0, help="kT, of the double well")
    parser.add_argument("--target", type=float, default=0.2, help="kT, RMS error to reach")
    parser.add_argument("--looks", type=int, default=400, help="at the error, in a whole run")
    parser.add_argument("--pair", action="store_true", help="two atoms by openmm-ml, no well")
    parser.add_argument("--quick", action="store_true", help="few hills, to see that it runs")
    parser.add_argument("--device", type=device_argument, default="cpu")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.quick:
        options.hills, options.repeats, options.every = 40, 1, 5
        if options.what == "exact":
            options.hills *= WALKERS
    exact = options.what == "exact"
    options.walkers = options.walkers or ([WALKERS] if exact else [1, 64])
    options.every = options.every or (10 if exact else 25)
    options.hills = options.hills or (None if exact else 200_000)
    common = conditions(options.device, "mixed")
    print_heading(TABLE, common, options.json)

    def show(row: dict[str, Any]) -> None:
        print_row(TABLE, row, common, options.json)

    if options.what == "walkers":
        compare_walkers(options, show)
        return
    if exact:
        rows = []
        for name in [options.model] if options.model else MODELS:
            for seed in range(options.seed, options.seed + options.repeats):
                for row in exact_rows(options, name, options.walkers[0], seed):
                    show(row)
                    rows.append(row | {"who": f"{name}, {row['who']}"})
        show_means(rows, options)
        return
    rows = [] if options.pair else mdgraph_wells(options)
    for seed in range(options.seed, options.seed + options.repeats):
        options.seed = seed
        rows += pairs_by_both(options) if options.pair else [openmm_well(options)]
    for row in rows:
        show(row)
    show_means(rows, options)


if __name__ == "__main__":
    run_script(main)
