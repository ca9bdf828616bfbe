"""What domains cost: milliseconds of an evaluation, a cut and a step, beside the undivided system.

    python benchmarks/domain_speed.py --repeat 5x5x5 8x8x8 --domains 1 2 4 --device cuda
    torchrun --nproc-per-node 2 benchmarks/domain_speed.py --repeat 8x8x8 --domains 2 --device cuda
    torchrun --nproc-per-node 2 benchmarks/domain_speed.py --repeat 18x17x17 --domains 2 \
        --steps 100 --warm-up 10 --replay 1 --trajectory 50
    torchrun --nproc-per-node 2 benchmarks/domain_speed.py --repeat 8x8x8 --domains 2 --silent
    python benchmarks/domain_speed.py --repeat 8x8x8 --domains 2 4 64 --predict 23.6

Water that mdgraph ships, repeated along its axes. An evaluation is energy, forces and virial with
lists that are there, a CUDA graph on a GPU; on several ranks a step of atoms that rest. A cut is
what follows a build of the lists, in one process: which atom is in which row of a domain, and the
rows. With `--steps` steps of Langevin dynamics of 0.5 fs at 300 K are timed, as a run takes them:
with the skin that it finds fastest, builds and cuts included. Under torchrun each rank evaluates a
domain, else all are in one process and on one device, which shows what decomposition itself costs
before any link does. With `--trajectory` as many steps are timed again while every so many of them
is written to an H5MD file as `mdgraph md` does it. Memory is what torch has allocated on the GPU of
rank 0 at most; each of several ranks tells its own, and how many atoms it has: on a GPU that
number, on a CPU the bytes of all tensors between two chunks. With `--eager` evaluations and steps
are no CUDA graphs. With `--silent` ranks pack the features of each exchange and send none, so
forces are wrong: what an evaluation takes less is what waits for messages. With `--predict` nothing
is timed: evaluations on so many GPUs are predicted from that on one, see `predicted_ms`, and memory
of a rank beside features: its lists, the state and bins of its region, and on the host of rank 0
the state of all atoms.
"""

import argparse
import gc
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch
from cases import (
    Table,
    conditions,
    counts_named,
    device_argument,
    print_heading,
    print_row,
    random_potential,
    repeated,
    run_script,
)

from mdgraph.checkpoints import load, shipped_potentials
from mdgraph.decomposition import divided_parts, exchange, grid_of, in_domains, join_ranks
from mdgraph.decomposition.bricks import BrickGrid, widths_of
from mdgraph.decomposition.exchange import MessageLink
from mdgraph.decomposition.own_atoms import MARGIN
from mdgraph.decomposition.subdomain import SubdomainCapacity
from mdgraph.engine import Calculation, LangevinMiddle, Simulation, VelocityVerlet, own_steps
from mdgraph.engine.autotune import Timer, stopwatch
from mdgraph.engine.integrators import Integrator
from mdgraph.engine.own_steps import OwnSteps, StepRequest
from mdgraph.engine.run_loop import RunLoop
from mdgraph.engine.simulation import WORTHWHILE
from mdgraph.engine.step_graphs import LONGEST
from mdgraph.fused.evaluator import chosen_evaluator
from mdgraph.gpu.graphs import captured
from mdgraph.io.h5md import H5MDWriter
from mdgraph.io.structures import read_system
from mdgraph.models import Potential
from mdgraph.precision import PRECISIONS, precision_named
from mdgraph.runs.reporters import TrajectoryRecorder
from mdgraph.state import State
from mdgraph.system import System

BANDWIDTH = 229e9
"""Bytes a second that a swap of 32 MB between two H200s reaches by NCCL in a graph, with NV18."""

LATENCY_MS = 0.0104
"""Of a swap of 4 KB there."""

COPY_MS = 2.9e-5
"""What a copied atom costs besides its features' way: half of what two domains in one process take
more than none at a million atoms, less that at 24,000, over the copies they have more, when domains
were evaluated one after the other and copies before anything else."""

FIXED_MS = 0.22
"""Of an evaluation on one GPU, however few the atoms: 0.93 ms at 3,000 and 5.87 at 24,000."""

SLOTS = 120
"""Of a row of the shipped water's list."""

ATOM_BYTES = 330.0
"""Of an atom of a region: state, places of the list, bins, owner."""

HOST_BYTES = 138.0 + 24.0 + 2 * 104.0
"""Of any atom, on the host of rank 0: state, what lists were built from, two copies to go back to.
"""


def predicted_ms(
    system: System, cutoff: float, channels: int, layers: int, count: int, one_ms: float
) -> tuple[str, float]:
    """Grid, and predicted time of an evaluation on so many GPUs.

    t_n = FIXED + (t_1 - FIXED) p / n + c COPY_MS + (1 - h) 2 L 36 F c / BANDWIDTH
        + (52 c + 2 N) / BANDWIDTH + (2 L + 2) m LATENCY

    with c copies a domain, atoms within the range of the lists of its brick, p - 1 the part of own
    rows that is padding, h the part of own atoms further from other bricks than that range, which
    are evaluated while features are on their way, and m the neighbors of a brick. Positions of
    copies come and forces on them go, every 32 steps all that there is of them comes, and every 128
    the state of all goes to all and back.
    """
    widths = widths_of(State([system]))
    grid = BrickGrid.chosen(count, widths, cutoff)
    volume = float(np.prod(widths))
    copies = len(system) / volume * grid.copied(widths, cutoff)
    cut = [width / parts for width, parts in zip(widths, grid.shape, strict=True) if parts > 1]
    hidden = float(np.prod([max(0.0, 1.0 - 2.0 * cutoff / width) for width in cut]))
    neighbors = sum(min(parts - 1, 2) for parts in grid.shape)
    way = 2 * layers * 1e3 * 36 * channels * copies / BANDWIDTH
    shared = 1e3 * (52 * copies + 2 * len(system)) / BANDWIDTH
    messages = (2 * layers + 2) * neighbors
    rows = [len(system) / count / 3.0 * part for part in (1.0, 2.0)]  # oxygen and hydrogen
    room = SubdomainCapacity.of([*map(int, rows), 0], 2, 1, None)
    own = FIXED_MS + (one_ms - FIXED_MS) / count * room.owned / sum(rows)
    spent = own + COPY_MS * copies + (1.0 - hidden) * way + shared + messages * LATENCY_MS
    return str(grid), spent


def rank_gb(system: System, reach: float, skin: float, grid: BrickGrid) -> dict[str, float]:
    """What a rank has beside features, GB: rows of lists, its region; and the host of rank 0."""
    atoms, widths = len(system), widths_of(State([system]))

    def rows(distance: float) -> float:
        near = atoms * grid.share(widths, 1.02 * distance)
        return min(float(atoms), near + 0.05 * (near + 40.0 * near**0.5))

    return {
        "lists_gb": 12e-9 * SLOTS * rows(reach + MARGIN),
        "region_gb": 1e-9 * ATOM_BYTES * rows(reach + skin + MARGIN),
        "host_gb": 1e-9 * HOST_BYTES * atoms,
    }


PREDICTIONS = Table(
    (
        ("atoms", "atoms", ""),
        ("GPUs", "domains", ""),
        ("grid", "grid", ""),
        ("E+F ms", "evaluation_ms", ".3f"),
        ("efficiency", "efficiency", ".3f"),
        ("lists GB", "lists_gb", ".3f"),
        ("region GB", "region_gb", ".3f"),
        ("host GB", "host_gb", ".3f"),
    ),
    width=12,
)

TABLE = Table(
    (
        ("atoms", "atoms", ""),
        ("domains", "domains", ""),
        ("E+F ms", "evaluation_ms", ".3f"),
        ("over one", "over", ".3f"),
        ("cut ms", "cut_ms", ".1f"),
        ("step ms", "step_ms", ".3f"),
        ("skin A", "skin_A", ".2g"),
        ("written", "written_ms", ".3f"),
        ("GiB", "memory_gib", ".2f"),
    ),
    width=10,
)


def seconds(work: Callable[[], None], count: int, timer: Timer) -> float:
    """Mean time of one of so many calls."""

    def all_of_them() -> None:
        for _ in range(count):
            work()

    return timer(all_of_them) / count


def graph_of(work: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """The work as a CUDA graph; as it is where none can be captured."""
    graph = captured(work, device)
    return work if graph is None else graph.replay


def measured(system: System, domains: int, options: argparse.Namespace) -> dict[str, float]:
    """Times of one system in so many domains."""
    device, precision = options.device, precision_named(options.precision)
    named = options.potential is not None
    potential = load(options.potential) if named else random_potential(options.channels)
    evaluator = chosen_evaluator(potential, precision, device)
    if domains > 1:
        evaluator = in_domains(evaluator, [system], domains)
    if not all(part.exchange.alone for part in divided_parts(evaluator)):
        del evaluator
        return on_ranks(system, potential, domains, options)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    calculation = Calculation(
        [system], evaluator, device=device, precision=precision, skin=options.skin
    )
    say({"atoms": len(system), "neighbors_a_row": calculation.lists[0].capacity})
    state, lists = calculation.state, calculation.lists

    def evaluate() -> None:
        evaluator.evaluate_(state, lists)

    def build() -> None:
        for one in lists:
            one.rebuild_(state.positions, state.cell)

    def both() -> None:
        build()
        evaluate()

    evaluate()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    say({"domains": domains})
    graphed = device.type == "cuda" and not options.eager
    work = [graph_of(one, device) if graphed else one for one in (evaluate, build, both)]
    for one in work:
        one()
    timer = stopwatch(device)
    evaluation, building, together = (seconds(one, options.count, timer) for one in work)
    found = {"evaluation_ms": 1e3 * evaluation}
    say(found)
    if domains > 1:
        found["cut_ms"] = 1e3 * (together - building - evaluation)
    if device.type == "cuda":
        found["memory_gib"] = torch.cuda.max_memory_allocated(device) / 2**30
    if options.steps:
        del calculation, state, lists, evaluator, work, one
        found |= of_steps(system, potential, domains, options)
        if device.type == "cuda":
            found["memory_gib"] = torch.cuda.max_memory_allocated(device) / 2**30
    return found


def on_ranks(
    system: System, potential: Potential, domains: int, options: argparse.Namespace
) -> dict[str, float]:
    """Times on several ranks."""
    device = options.device
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    resting = simulation_of(system, potential, VelocityVerlet(1e-6), domains, options, given=True)
    resting.run(2 * LONGEST)
    count = max(options.count, resting.chunk)  # as what the ends of a chunk take is a part of it
    run = partial(resting.run, count)
    found = {"evaluation_ms": 1e3 * stopwatch(device)(run) / count}
    say({"atoms": len(system), "domains": domains, **found})
    del resting, run
    gc.collect()  # frees its memory before another one takes as much
    if options.steps:
        found |= of_steps(system, potential, domains, options)
    if device.type == "cuda":
        found["memory_gib"] = torch.cuda.max_memory_allocated(device) / 2**30
    return found


def simulation_of(
    system: System,
    potential: Potential,
    integrator: Integrator,
    domains: int,
    options: argparse.Namespace,
    *,
    given: bool,
) -> Simulation:
    """A simulation by the options, skin and steps a graph as given or left open."""
    return Simulation(
        system,
        potential,
        integrator,
        skin=options.skin if given else None,
        steps_per_replay=options.replay,
        device=options.device,
        precision=options.precision,
        domains=str(grid_of(domains, system, max(potential.cutoffs))) if domains > 1 else None,
        graph="off" if options.eager else "auto",
        check=None,
    )


def of_steps(
    system: System, potential: Potential, domains: int, options: argparse.Namespace
) -> dict[str, float]:
    """Time of a step of dynamics, without and with frames, and the skin of its lists."""
    given, integrator = options.replay is not None, LangevinMiddle(0.5, 300.0, 1.0)
    simulation = simulation_of(system, potential, integrator, domains, options, given=given)
    say({"steps_a_graph": options.replay or 0})
    if not given:
        simulation.choose(WORTHWHILE)
    simulation.run(options.warm_up)
    timer = stopwatch(options.device)
    run = partial(simulation.run, options.steps)
    found = {"step_ms": 1e3 * timer(run) / options.steps, "skin_A": simulation.calculation.skin}
    say(found)
    if options.trajectory:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trajectory.h5md"
            with H5MDWriter.create(path, system) as writer:
                simulation.recorders.append(TrajectoryRecorder([writer], options.trajectory))
                found["written_ms"] = 1e3 * timer(run) / options.steps
            frames = options.steps // options.trajectory
            say({"frames": frames, "file_mib": path.stat().st_size / 2**20})
    return found


def say(found: dict[str, float]) -> None:
    """Tells what is known of a row that takes long, and when, in case that it is never done."""
    numbers = ", ".join(f"{name} {value:.4g}" for name, value in found.items())
    print(f"# {time.perf_counter() - _BEGAN:.1f} s: {numbers}", file=sys.stderr, flush=True)


_BEGAN = time.perf_counter()


class SilentLink(MessageLink):
    """Packs what an exchange of a rank sends, and sends nothing."""

    def _exchange_(self, own: torch.Tensor) -> None:
        for rows in self._domain.send.values():
            own.index_select(0, rows)


class TellingSteps(OwnSteps):
    """Steps of a rank, which says what memory it has, after the first call, the second, the fourth.

    And so on, as it takes time.
    """

    _calls = 0

    def _advance_(self, request: StepRequest, whole: Integrator | None) -> None:
        super()._advance_(request, whole)
        TellingSteps._calls += 1
        if TellingSteps._calls & (TellingSteps._calls - 1):
            return
        device = self._calculation.device
        on_gpu = device.type == "cuda"
        held = torch.cuda.max_memory_allocated(device) if on_gpu else tensor_bytes(self)
        rank, own = self._exchange.rank.rank, int(self.atoms.used.sum())
        say({"rank": rank, "own": own, "region": len(self._region.atoms), "mib": held / 2**20})


def device_tensors(steps: OwnSteps) -> list[torch.Tensor]:
    """Those of this process but what rank 0 has of all atoms, which on a GPU lies on the host."""
    gc.collect()
    whole, own = steps._source, steps._calculation
    left_out: list[object] = []
    if whole is not own:
        left_out = [*vars(whole.state).values(), *vars(whole.state.grouping).values()]
        left_out += [*whole.evaluator.tensors(whole.state).values()]
        left_out += [item.reference_positions for item in whole.lists]
        loops = [thing for thing in gc.get_objects() if isinstance(thing, RunLoop)]
        left_out += [loop._starts for loop in loops]  # copies to go back to
    storages = {one.untyped_storage().data_ptr() for one in tensors_in(left_out)}
    return [
        thing
        for thing in gc.get_objects()
        if isinstance(thing, torch.Tensor) and thing.untyped_storage().data_ptr() not in storages
    ]


def tensors_in(tree: object) -> Iterator[torch.Tensor]:
    """All tensors in lists, tuples and dictionaries."""
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, (dict, list, tuple)):
        for part in tree.values() if isinstance(tree, dict) else tree:
            yield from tensors_in(part)


def tensor_bytes(steps: OwnSteps) -> int:
    """Of `device_tensors`."""
    storages = [one.untyped_storage() for one in device_tensors(steps)]
    return sum({one.data_ptr(): one.nbytes() for one in storages}.values())


def predict(unit: System, options: argparse.Namespace) -> None:
    """Prints what is predicted for each system and number of GPUs."""
    config = random_potential(options.channels).config
    reach = config.cutoff + options.skin
    print_heading(PREDICTIONS, {}, options.json)
    for counts in options.repeat:
        system = repeated(unit, counts)
        for count in options.domains:
            sizes = config.channels, config.layers
            grid, time = predicted_ms(system, reach, *sizes, count, options.predict)
            row = {"atoms": len(system), "domains": count, "grid": grid, "evaluation_ms": time}
            row["efficiency"] = options.predict / (count * time)
            shape = BrickGrid.chosen(count, widths_of(State([system])), reach)
            row |= rank_gb(system, reach, options.skin, shape)
            print_row(PREDICTIONS, row, {}, options.json)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--potential", help="name or path, instead of random weights")
    parser.add_argument("--channels", type=int, default=128, help="of random weights, two layers")
    parser.add_argument(
        "--repeat", type=counts_named, nargs="*", default=[[2, 2, 2]], help="box of 192 atoms"
    )
    parser.add_argument("--domains", type=int, nargs="*", default=[1, 2], help="numbers of them")
    parser.add_argument("--count", type=int, default=20, help="evaluations")
    parser.add_argument("--steps", type=int, default=0, help="of dynamics that are timed")
    parser.add_argument("--warm-up", type=int, default=500, help="steps before these")
    parser.add_argument(
        "--replay", type=int, help="steps a graph, with --skin, instead of what is found fastest"
    )
    parser.add_argument("--trajectory", type=int, default=0, help="steps between frames")
    parser.add_argument("--skin", type=float, default=0.5, help="A, of the lists")
    parser.add_argument("--precision", default="mixed", choices=PRECISIONS)
    parser.add_argument("--device", type=device_argument, default="auto")
    parser.add_argument("--eager", action="store_true", help="no CUDA graph of an evaluation")
    parser.add_argument("--silent", action="store_true", help="no messages; --steps must be 0")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--predict", type=float, metavar="MS", help="E+F on one GPU, ms; no timing")
    options = parser.parse_args()
    if options.silent and options.steps:
        parser.error("steps need messages; leave out --silent, or --steps")
    if options.silent:
        exchange.MessageLink = SilentLink  # type: ignore[attr-defined]
    own_steps.OwnSteps = TellingSteps  # type: ignore[misc]
    if options.predict is None:
        join_ranks()  # the others serve from here on
    unit = read_system(shipped_potentials()["water-pbe0"] / "start.extxyz").replace(velocities=None)
    if options.predict is not None:
        predict(unit, options)
        return
    common = conditions(options.device, options.precision)
    print_heading(TABLE, common, options.json)
    for counts in options.repeat:
        system = repeated(unit, counts)
        whole = None
        for domains in options.domains:
            row = measured(system, domains, options)
            whole = whole or (row["evaluation_ms"] if domains == 1 else None)
            if whole:
                row["over"] = row["evaluation_ms"] / whole
            row = {"atoms": len(system), "domains": domains} | row
            print_row(TABLE, row, common, options.json)


if __name__ == "__main__":
    run_script(main)
