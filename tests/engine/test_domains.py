"""One system in several domains: of one process, and of two ranks that torchrun starts."""

import json
import os
import signal
import subprocess
import sys
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ase.build import bulk, fcc111
from ase.io import read
from prepared import prepared_ranks

from mdgraph.checkpoints import load
from mdgraph.decomposition import DecomposedEvaluator, divided_parts, may_be_whole
from mdgraph.decomposition.bricks import BrickGrid, widths_of
from mdgraph.decomposition.exchange import LocalExchange
from mdgraph.engine import (
    Integrator,
    LangevinMiddle,
    RadialDistributions,
    Simulation,
    StochasticCellRescaling,
    VelocityVerlet,
)
from mdgraph.engine.autotune import choose_division
from mdgraph.engine.restart import load_restart_, save_restart
from mdgraph.errors import InputError
from mdgraph.fused.evaluator import FusedTensorNet
from mdgraph.io.structures import from_ase, read_system, to_ase
from mdgraph.neighbors import NeighborList
from mdgraph.state import State
from mdgraph.system import System

ROOT = Path(__file__).resolve().parents[2]
SHAPES = ((2, 1, 1), (3, 1, 1), (2, 2, 1), (2, 2, 2))


def rattled(system: System) -> System:
    moves = np.random.default_rng(0).normal(scale=0.05, size=system.positions.shape)
    return system.replace(positions=system.positions + moves, velocities=None)


def water(repeats: tuple[int, int, int] = (2, 1, 1)) -> System:
    atoms = read(ROOT / "potentials" / "water-pbe0" / "start.extxyz")
    return rattled(from_ase(atoms.repeat(repeats)))


def slab() -> System:
    return rattled(from_ase(fcc111("Cu", (6, 6, 6), a=3.64, vacuum=12.0, orthogonal=True)))


def skewed() -> System:
    atoms = bulk("Si", "diamond", 5.46) * (6, 6, 6)
    return rattled(from_ase(atoms))


def narrow() -> System:
    """Copper of 2.5 cutoffs along the axis that is cut: each neighbor by two images."""
    return rattled(from_ase(bulk("Cu", "fcc", 3.64, cubic=True) * (4, 2, 2)))


CASES = {
    "water": ("water-pbe0", water, SHAPES),
    "slab": ("copper-pbe", slab, ((2, 1, 1), (2, 2, 1))),
    "skewed cell": ("silicon-pbe", skewed, ((2, 1, 1), (3, 1, 1), (2, 2, 2))),
    "narrow cell": ("copper-pbe", narrow, ((2, 1, 1),)),
}


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def whole_and_divided(
    name: str, system: System, shape: tuple[int, int, int], precision: str, device: str
) -> tuple[State, State]:
    evaluator = FusedTensorNet(load(name), precision, device)
    states = []
    for divided in (False, True):
        state = State([system], device)
        lists = [NeighborList(state, cutoff, 0.3) for cutoff in evaluator.cutoffs]
        if divided:
            grid = BrickGrid.fitting(shape, widths_of(state), max(evaluator.cutoffs))
            DecomposedEvaluator(evaluator, len(system), grid).evaluate_(state, lists)
        else:
            evaluator.evaluate_(state, lists)
        states.append(state)
    return states[0], states[1]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("precision", "error"), [("mixed", 1e-6), ("double", 1e-12)])
def test_domains_have_the_forces_of_the_whole(
    case: str, precision: str, error: float, device: str
) -> None:
    name, make, shapes = CASES[case]
    system = make()
    for shape in shapes:
        whole, divided = whole_and_divided(name, system, shape, precision, device)
        rms = whole.forces.square().mean().sqrt()
        missed = divided.forces - whole.forces
        assert missed.square().mean().sqrt() < error * rms
        # On a GPU atoms lie in other tiles of a product, whose sums in float32 differ.
        assert missed.abs().max() < (error if device == "cpu" else 10.0 * error) * rms
        # There an energy of float32 may be the next number to it, 1.2e-7 away.
        bound = 1e-12 if device == "cpu" or precision == "double" else 2e-7
        torch.testing.assert_close(divided.energies, whole.energies, rtol=bound, atol=0.0)
        assert (divided.virial - whole.virial).abs().max() < error * len(system)
        assert rms > 0.05


@pytest.mark.parametrize("device", DEVICES)
def test_domains_side_by_side_have_the_bits_of_one_after_the_other(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = []
    for rows in (0, 1_000_000):
        monkeypatch.setattr("mdgraph.decomposition.divided_system._SMALL", rows)
        states.append(whole_and_divided("water-pbe0", water(), (3, 1, 1), "mixed", device)[1])
    for name in ("energies", "forces", "virial"):
        assert torch.equal(getattr(states[0], name), getattr(states[1], name))


def test_bricks_that_a_run_has_made_narrow_have_the_forces_of_the_whole() -> None:
    """A cell may shrink after the start: neighbors then lie beyond the next brick."""
    system = water((1, 1, 1))
    evaluator = FusedTensorNet(load("water-pbe0"), "double")
    whole, divided = State([system]), State([system])
    for state, grid in ((whole, None), (divided, BrickGrid((6, 1, 1)))):
        lists = [NeighborList(state, cutoff, 0.3) for cutoff in evaluator.cutoffs]
        part = evaluator if grid is None else DecomposedEvaluator(evaluator, len(system), grid)
        part.evaluate_(state, lists)
    assert widths_of(whole)[0] / 6 < 0.5 * max(evaluator.cutoffs)
    rms = whole.forces.square().mean().sqrt()
    assert (divided.forces - whole.forces).abs().max() < 1e-12 * rms


def test_a_solvated_peptide_by_aceff(reference_folder: Path, structures_folder: Path) -> None:
    """AceFF-1.1 on 2,269 atoms, in eight domains."""
    system = read_system(structures_folder / "alanine_dipeptide_water_2269.pdb")
    path = reference_folder / "torchmdnet" / "aceff-1.1.ckpt"
    evaluator = FusedTensorNet(load(path), "mixed")
    states = []
    for shape in ((1, 1, 1), (2, 2, 2)):
        state = State([system])
        lists = [NeighborList(state, cutoff, 0.3) for cutoff in evaluator.cutoffs]
        DecomposedEvaluator(evaluator, len(system), BrickGrid(shape)).evaluate_(state, lists)
        states.append(state.forces.clone())
    whole = State([system])
    evaluator.evaluate_(whole, [NeighborList(whole, cut, 0.3) for cut in evaluator.cutoffs])
    rms = whole.forces.square().mean().sqrt()
    for forces in states:
        assert (forces - whole.forces).abs().max() < 1e-6 * rms


@pytest.mark.gpu
def test_a_solvated_protein_by_aceff_on_a_gpu(
    reference_folder: Path, structures_folder: Path
) -> None:
    """AceFF-1.1 on 23,558 atoms of DHFR in water, in two, four and eight domains."""
    system = read_system(structures_folder / "dhfr_water_23558.pdb")
    path = reference_folder / "torchmdnet" / "aceff-1.1.ckpt"
    for precision, error in (("mixed", 1e-6), ("double", 1e-12)):
        evaluator = FusedTensorNet(load(path), precision, "cuda")
        whole = State([system], "cuda")
        evaluator.evaluate_(whole, [NeighborList(whole, cut, 0.3) for cut in evaluator.cutoffs])
        rms = whole.forces.square().mean().sqrt()
        for shape in ((2, 1, 1), (2, 2, 1), (2, 2, 2)):
            state = State([system], "cuda")
            lists = [NeighborList(state, cutoff, 0.3) for cutoff in evaluator.cutoffs]
            DecomposedEvaluator(evaluator, len(system), BrickGrid(shape)).evaluate_(state, lists)
            missed = state.forces - whole.forces
            assert missed.square().mean().sqrt() < error * rms


def test_every_brick_holds_as_many_atoms_at_any_density() -> None:
    system = slab()
    state = State([system])
    grid, place = BrickGrid((2, 2, 2)), (state.positions, state.cell, state.pbc)
    owners = grid.owners(*place, grid.planes(*place))
    assert set(owners.bincount().tolist()) == {len(system) // 8}


@pytest.mark.parametrize("device", DEVICES)
def test_planes_move_where_a_brick_has_too_many_atoms_or_too_few(device: str) -> None:
    """And neither for fewer than that nor twice at the same places."""
    grid, draw = BrickGrid((2, 2, 2)), np.random.default_rng(0)
    start = draw.uniform(0.0, 10.0, (800, 3))
    cell, pbc = torch.eye(3, dtype=torch.float64)[None] * 10.0, torch.ones(1, 3, dtype=torch.bool)
    rest = cell.to(device), pbc.to(device)
    places = torch.as_tensor(start, device=device)
    planes = grid.planes(places, *rest)
    last = grid.owners(places, *rest, planes) == 7
    others = torch.as_tensor(draw.uniform(0.0, 10.0, (800, 3)), device=device)
    for gone, moves in ((10, False), (70, True)):
        chosen = last & (last.cumsum(0) <= gone)
        now = torch.where(chosen[:, None], others, places)
        new = grid.balanced(now, *rest, planes)
        assert torch.equal(new, planes) != moves
        if moves:
            assert set(grid.owners(now, *rest, new).bincount().tolist()) == {100}
        assert torch.equal(grid.balanced(now, *rest, new), new)


@pytest.mark.parametrize("device", DEVICES)
def test_a_run_in_domains_keeps_its_energy_and_path(device: str) -> None:
    """Lists are rebuilt, and bricks cut anew, several times, as at 2,000 K atoms move far."""
    system = water((1, 1, 1))
    ends = []
    for domains in (None, "2x1x1"):
        simulation = Simulation(
            system, "water-pbe0", VelocityVerlet(0.5), seed=3, device=device, skin=0.3,
            temperature=2000.0, domains=domains, check=None,
        )  # fmt: skip
        simulation.run(60)
        assert int(simulation.calculation.lists[0].rebuilds) > 3
        energy = simulation.observables().conserved_energy.item()
        ends.append((energy, simulation.state.positions.clone()))
    assert abs(ends[0][0] - ends[1][0]) < 1e-4  # of 68 eV of kinetic energy
    assert (ends[0][1] - ends[1][1]).abs().max() < 1e-4


def hot(repeats: int) -> Simulation:
    """Water at 2,000 K, in two domains, whose atoms meet others every few steps."""
    return Simulation(
        water((repeats, 1, 1)), "water-pbe0", LangevinMiddle(0.5, 2000.0, 5.0), seed=3,
        device="cpu", skin=0.3, temperature=2000.0, domains="2x1x1", check=None,
    )  # fmt: skip


def test_overflows_in_domains_leave_the_same_bits() -> None:
    ample, tight = hot(1), hot(1)
    ample.run(24)
    (rows,) = tight.calculation.lists
    growths = 0
    while tight.step < 24:
        rows._allocate(rows.block, *rows.reference())
        small = rows.capacity
        tight.run(6)
        growths += rows.capacity > small
    assert growths > 2
    for name, value in ample.state.tensors().items():
        assert torch.equal(value, tight.state.tensors()[name]), name


def test_domains_that_outgrow_their_buffers_leave_the_same_bits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without room to spare a cut with one more copy than ever before needs new buffers."""
    ends, capacities = [], []
    for more in (1.0, 0.0):
        monkeypatch.setattr("mdgraph.decomposition.subdomain._MORE_OTHERS", more)
        monkeypatch.setattr("mdgraph.decomposition.subdomain._MORE_OWN", more)
        simulation = hot(3)
        evaluator = simulation.calculation.evaluator
        seen = set()
        for _ in range(6):
            simulation.run(4)
            seen |= {part.capacity for part in simulation.state.workspaces[evaluator].domains}
        capacities.append(len(seen))
        ends.append({name: value.clone() for name, value in simulation.state.tensors().items()})
    assert capacities[0] == 2
    assert capacities[1] > 4
    for name, value in ends[0].items():
        assert torch.equal(value, ends[1][name]), name


def test_planes_of_a_restart_file_stay_where_they_were(tmp_path: Path) -> None:
    """A run that goes on has the same bits, though its planes would lie elsewhere by now."""
    through, first = hot(1), hot(1)
    through.run(30)
    first.run(15)
    save_restart(first, tmp_path / "restart.safetensors")
    second = hot(1)
    (planes,) = second.calculation.evaluator.division(second.state).values()
    (kept,) = first.calculation.evaluator.division(first.state).values()
    planes.add_(0.05)  # as if they had been put by other positions
    load_restart_(second, tmp_path / "restart.safetensors")
    assert torch.equal(planes, kept)
    second.run(15)
    for name, value in through.state.tensors().items():
        assert torch.equal(value, second.state.tensors()[name]), name


def test_a_system_is_whole_where_that_is_faster(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "mdgraph")
    simulation, apart = (
        Simulation(
            narrow(), "copper-pbe", VelocityVerlet(0.5), temperature=300.0, seed=2, device="cpu",
            domains=domains, check=None,
        )
        for domains in ("2x1x1", None)
    )  # fmt: skip
    (part,) = divided_parts(simulation.calculation.evaluator)

    def choose(whole: float, divided: float) -> None:
        def timer(work: Callable[[], None]) -> float:
            work()
            return divided if part.divides else whole

        choose_division(simulation, timer, simulation._divide_)
        assert part.divides == (divided < whole)
        assert bool(part.division(simulation.state)) == part.divides
        assert f"A step takes {1e3 * whole / 8:g} ms on one GPU" in caplog.text
        for one in (simulation, apart):
            one.run(4)
        assert (part.whole in simulation.state.workspaces) != part.divides
        forces = simulation.state.forces, apart.state.forces
        torch.testing.assert_close(*forces, rtol=0.0, atol=1e-5)

    choose(1.0, 2.0)
    choose(4.0, 2.0)


def test_a_try_that_does_not_fit_into_one_leaves_no_memory_there() -> None:
    simulation = Simulation(
        narrow(), "copper-pbe", VelocityVerlet(0.5), device="cpu", domains="2x1x1", check=None
    )
    (part,) = divided_parts(simulation.calculation.evaluator)
    forces, left = simulation.state.forces.clone(), []

    def timer(work: Callable[[], None]) -> float:
        work()
        held = [simulation.state.workspaces[user] for user in (part.whole, part.whole._network)]
        left.extend(map(weakref.ref, held))
        raise torch.OutOfMemoryError

    choose_division(simulation, timer, simulation._divide_)
    assert part.divides
    assert [reference() for reference in left] == [None, None]
    simulation.evaluate_again()
    torch.testing.assert_close(simulation.state.forces, forces, rtol=0.0, atol=1e-12)


def test_a_number_of_domains_may_be_left_and_a_grid_not() -> None:
    evaluator = FusedTensorNet(load("copper-pbe"), "double", "cpu")
    exchange = LocalExchange(2)
    exchange.alone = False
    for atoms, domains, left in [
        (100, 2, True), (100, "2", True), (100, "2x1x1", False), (100, (2, 1, 1), False),
        (100_000, 2, False),
    ]:  # fmt: skip
        divided = DecomposedEvaluator(evaluator, atoms, BrickGrid((2, 1, 1)), exchange)
        assert may_be_whole(divided, domains) == left
    assert not may_be_whole(DecomposedEvaluator(evaluator, 100, BrickGrid((2, 1, 1))), 2)
    assert not may_be_whole(evaluator, 2)


@pytest.mark.parametrize("device", DEVICES)
def test_noise_is_the_same_in_any_number_of_domains(device: str) -> None:
    ends = []
    for domains in (1, 2):
        simulation = Simulation(
            water(), "water-pbe0", LangevinMiddle(0.5, 300.0, 5.0), seed=3, device=device,
            domains=domains, check=None,
        )  # fmt: skip
        simulation.run(10)
        ends.append(simulation.state.positions.clone())
    # Rounding in float32, which tiles of other atoms change on a GPU, has ten steps to grow.
    assert (ends[0] - ends[1]).abs().max() < (1e-6 if device == "cpu" else 1e-5)


@pytest.mark.parametrize(
    ("systems", "potential", "domains", "message"),
    [
        (1, "water-pbe0", 64, "64 domains are asked for, and this system holds"),
        (1, "water-pbe0", "9x1x1", "are as narrow as"),
        (1, "water-pbe0", "2x1", "give a number such as 2, or a grid such as 2x1x1"),
        (1, "water-pbe0", "two", "give a number such as 2, or a grid such as 2x1x1"),
        (1, "water-pbe0", 0, "give a number such as 2, or a grid such as 2x1x1"),
        (2, "water-pbe0", 2, "Domains divide one system"),
    ],
)
def test_what_cannot_be_divided_is_refused_in_a_sentence(
    systems: int, potential: str, domains: object, message: str
) -> None:
    with pytest.raises(InputError) as found:
        Simulation(
            [water((1, 1, 1))] * systems, potential, VelocityVerlet(0.5), device="cpu",
            domains=domains,
        )  # fmt: skip
    assert message in str(found.value)
    assert "\n" not in str(found.value)


def test_the_reference_evaluator_is_refused() -> None:
    with pytest.raises(InputError, match="Domains need the fused form"):
        Simulation(
            water((1, 1, 1)), "water-pbe0", VelocityVerlet(0.5), device="cpu", domains=2,
            evaluator="reference",
        )  # fmt: skip


def test_tensornet2_is_refused_with_the_reason(reference_folder: Path) -> None:
    path = reference_folder / "torchmdnet" / "aceff-2.0.ckpt"
    with pytest.raises(InputError, match="its charges depend on all atoms"):
        Simulation(water((1, 1, 1)), path, VelocityVerlet(0.5), device="cpu", domains=2)


SCRIPT = """
import atexit, json, os, sys, time
from pathlib import Path
def write_threads():
    names = [path.read_text().strip() for path in Path("/proc/self/task").glob("*/comm")]
    Path(f"{out}/threads-{rank}.json").write_text(json.dumps(names))
atexit.register(write_threads)  # called last
from mdgraph.engine import *
from mdgraph.engine.autotune import choose_division
from mdgraph.io.structures import read_system
from mdgraph.errors import LostRankError
out, steps = sys.argv[1], int(sys.argv[2])
rank = os.environ.get("RANK", "0")
open(f"{out}/pid-{rank}", "w").write(str(os.getpid()))
kind, device = sys.argv[3:5]
ensemble = VelocityVerlet(0.5)
if kind == "npt":
    ensemble = StochasticCellRescaling(0.5, 300.0, 1e-4, cell_dof="semiisotropic")
simulation = Simulation(read_system(f"{out}/start.extxyz"), "water-pbe0", ensemble,
    seed=1, device=device, domains=2 if "RANK" in os.environ else None, check=None)
others = []
for _ in range(steps // 10):
    simulation.run(10)
    if kind == "npt" and rank == "0" and "RANK" in os.environ:
        # Another one of rank 0, between whose steps the first goes on.
        others.append(Simulation(read_system(f"{out}/start.extxyz"), "water-pbe0",
            VelocityVerlet(0.5), temperature=500.0, device=device, domains=2, check=None))
        if len(others) == 2:  # which goes on undivided
            choose_division(others[1], lambda work: (work(), 1.0)[1], others[1]._divide_)
        for other in others:
            other.run(1)
    open(f"{out}/step", "w").write(str(simulation.step))
json.dump([simulation.state.positions.tolist(), rank], open(f"{out}/end-{rank}.json", "w"))
"""


def started(words: list[str], folder: Path) -> "subprocess.Popen[str]":
    kept = {key: value for key, value in os.environ.items() if key != "RANK"}
    environment = kept | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    environment["PYTHONPATH"] += os.pathsep + os.environ.get("PYTHONPATH", "")
    return subprocess.Popen(
        [sys.executable, *words],
        cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def torchrun(
    folder: Path, steps: int, kind: str = "nve", device: str = "cpu"
) -> "subprocess.Popen[str]":
    (folder / "script.py").write_text(SCRIPT, encoding="utf-8")
    words = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    return started([*words, "script.py", str(folder), str(steps), kind, device], folder)


def alone(
    folder: Path, steps: int, kind: str = "nve", device: str = "cpu"
) -> "subprocess.Popen[str]":
    return started(["script.py", str(folder), str(steps), kind, device], folder)


def begin(folder: Path) -> None:
    atoms = read(ROOT / "potentials" / "water-pbe0" / "start.extxyz")
    atoms.write(folder / "start.extxyz")


@pytest.mark.parametrize("kind", [pytest.param("nve", marks=pytest.mark.slow), "npt"])
def test_two_ranks_go_the_way_of_one(processes: Any, tmp_path: Path, kind: str) -> None:
    begin(tmp_path)
    if kind == "nve":
        process = torchrun(tmp_path, 30, kind)
        said, _ = process.communicate(timeout=240)
        assert process.returncode == 0, said
    else:
        (tmp_path / "script.py").write_text(SCRIPT, encoding="utf-8")
        words = ["script.py", tmp_path, 30, kind, "cpu"]
        pipe, env = subprocess.PIPE, os.environ | {"PYTHONPATH": str(ROOT)}
        both = prepared_ranks(processes, words, 2, env=env, cwd=tmp_path, stderr=pipe)
        said = "".join(rank.communicate()[1] for rank in both)
        assert [rank.returncode for rank in both] == [0, 0], said
    assert not (tmp_path / "end-1.json").exists()  # it served, and went on to nothing
    for rank in range(2):
        # A thread that frees a tensor while Python ends aborts the process.
        threads = json.loads((tmp_path / f"threads-{rank}.json").read_text(encoding="utf-8"))
        assert not [name for name in threads if "gloo" in name], threads
    together, _ = json.loads((tmp_path / "end-0.json").read_text(encoding="utf-8"))
    ensemble: Integrator = VelocityVerlet(0.5)
    if kind == "npt":
        ensemble = StochasticCellRescaling(0.5, 300.0, 1e-4, cell_dof="semiisotropic")
    apart = Simulation(
        read_system(tmp_path / "start.extxyz"),
        "water-pbe0",
        ensemble,
        seed=1,
        device="cpu",
        check=None,
    )
    for _ in range(3):
        apart.run(10)
    np.testing.assert_allclose(together, apart.state.positions, atol=1e-6)


ROWS = """
import json, logging, sys
from mdgraph.engine import RadialDistributions, Simulation, VelocityVerlet
from mdgraph.io.structures import read_system
from mdgraph.neighbors import list as neighbor_list
out, neighbor_list._MORE_ROWS = sys.argv[1], 0.0
lines, seen = [], set()
log = logging.getLogger("mdgraph.engine.run_loop")
log.setLevel(logging.INFO)
log.addFilter(lambda record: lines.append(record.getMessage()) or False)
run = Simulation(read_system(f"{out}/start.extxyz"), "copper-pbe", VelocityVerlet(2.0), seed=1,
    device=sys.argv[2], temperature=4000.0, maximum_temperature=1e6, skin=0.0, chunk=4,
    domains="2x1x1", check=None, observe=[RadialDistributions(every=8)])
run.state.velocities[:, 0] -= 0.06  # layers flow through the planes
for _ in range(11):
    seen |= {(len(item.index), len(item.count)) for item in run.calculation.lists}
    run.run(4 if run.step < 40 else 0)
found = run.online[0].result().value[0]
json.dump({"places": run.state.positions.tolist(), "rows": sorted(seen), "lines": lines,
    "distribution": found.tolist()}, open(f"{out}/rows.json", "w"))
"""


@pytest.mark.parametrize(
    "device",
    [
        "cpu",
        pytest.param(
            "cuda",
            marks=pytest.mark.gpu(2),
        ),
    ],
)
def test_ranks_have_rows_for_the_atoms_near_them_alone(
    processes: Any, tmp_path: Path, device: str
) -> None:
    """Where rows without room to spare are too few, steps are repeated: places are those of one
    process, which has rows of all atoms; so are distances, of which rank 0 sees all."""
    start = rattled(from_ase(bulk("Cu", "fcc", 3.64, cubic=True) * (28, 2, 2)))
    to_ase(start).write(tmp_path / "start.extxyz")
    (tmp_path / "rows.py").write_text(ROWS, encoding="utf-8")
    words, env = ["rows.py", tmp_path, device], os.environ | {"PYTHONPATH": str(ROOT)}
    both = prepared_ranks(processes, words, 2, env=env, cwd=tmp_path, stderr=subprocess.PIPE)
    said = "".join(rank.communicate()[1] for rank in both)
    assert [rank.returncode for rank in both] == [0, 0], said
    found = json.loads((tmp_path / "rows.json").read_text(encoding="utf-8"))
    own = [rows for rows, atoms in found["rows"] if rows < atoms]
    assert len(own) == len(found["rows"]) > 1, found
    assert any("neighbor list overflowed" in line for line in found["lines"]), found["lines"]
    assert any("outgrew buffers" in line for line in found["lines"])  # of rank 1
    together = Simulation(
        read_system(tmp_path / "start.extxyz"), "copper-pbe", VelocityVerlet(2.0), seed=1,
        device=device, temperature=4000.0, skin=0.0, chunk=4, maximum_temperature=1e6,
        domains="2x1x1", check=None, observe=[RadialDistributions(every=8)],
    )  # fmt: skip
    together.state.velocities[:, 0] -= 0.06
    together.run(40)
    # Ranks own atoms by where these are at the start of a stretch, not at the last build. On GPUs
    # products round in other orders, and a few distances fall into the next bin.
    error = 1e-13 if device == "cpu" else 1e-4
    np.testing.assert_allclose(found["places"], together.state.positions.cpu(), rtol=0, atol=error)
    expected = together.online[0].result().value[0]
    np.testing.assert_allclose(found["distribution"], expected, atol=1e3 * error)


FORCES = """
import json, sys
from mdgraph.checkpoints import load
from mdgraph.decomposition import in_domains, join_ranks
from mdgraph.fused.evaluator import FusedTensorNet
from mdgraph.io.structures import read_system
from mdgraph.neighbors import NeighborList
from mdgraph.state import State
join_ranks()
out, count, potential = sys.argv[1], int(sys.argv[2]), sys.argv[3]
system, missed = read_system(f"{out}/start.extxyz"), []
for precision in ("mixed", "double"):
    found = []
    for domains in (1, count):
        evaluator = FusedTensorNet(load(potential), precision, "cpu")
        evaluator = in_domains(evaluator, [system], domains) if domains > 1 else evaluator
        state = State([system], "cpu", evaluator.precision.state)
        evaluator.evaluate_(state, [NeighborList(state, cut, 0.3) for cut in evaluator.cutoffs])
        found.append(state.forces.double().clone())
    rms = found[0].square().mean().sqrt()
    missed.append(float((found[1] - found[0]).square().mean().sqrt() / rms))
json.dump(missed, open(f"{out}/missed.json", "w"))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("count", "case"),
    [
        *((count, "water") for count in (2, 3, 4, 8)),
        *((count, "slab") for count in (2, 4)),
        *((count, "skewed cell") for count in (2, 3, 8)),
        (2, "narrow cell"),
        *((count, "protein") for count in (2, 4, 8)),
    ],
)
def test_ranks_have_the_forces_of_one(
    tmp_path: Path, reference_folder: Path, structures_folder: Path, count: int, case: str
) -> None:
    """The protein is DHFR, in water, of 23,558 atoms by AceFF-1.1."""
    if case == "protein":
        potential = str(reference_folder / "torchmdnet" / "aceff-1.1.ckpt")
        system = read_system(structures_folder / "dhfr_water_23558.pdb")
    else:
        potential, make, _ = CASES[case]
        system = make()
    to_ase(system).write(tmp_path / "start.extxyz")
    (tmp_path / "forces.py").write_text(FORCES, encoding="utf-8")
    words = ["-m", "torch.distributed.run", "--nproc-per-node", str(count), "--standalone"]
    process = started([*words, "forces.py", str(tmp_path), str(count), potential], tmp_path)
    said, _ = process.communicate(timeout=240)
    assert process.returncode == 0, said
    mixed, double = json.loads((tmp_path / "missed.json").read_text(encoding="utf-8"))
    assert mixed < 1e-6
    assert double < 1e-12


@pytest.mark.slow  # tests/runs/test_run_domains.py loses a rank of a command
def test_a_lost_rank_ends_the_other(tmp_path: Path) -> None:
    begin(tmp_path)
    process = torchrun(tmp_path, 100_000)
    deadline = time.monotonic() + 120
    while not (tmp_path / "step").exists() and time.monotonic() < deadline:
        time.sleep(0.2)
    os.kill(int((tmp_path / "pid-1").read_text(encoding="utf-8")), signal.SIGKILL)
    began = time.monotonic()
    said, _ = process.communicate(timeout=90)
    assert time.monotonic() - began < 60
    assert process.returncode != 0
    first = int((tmp_path / "pid-0").read_text(encoding="utf-8"))
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)
    assert "Rank 0 of 2 lost another one" in said or "SIGTERM" in said or "signal" in said


@pytest.mark.gpu
def test_steps_in_domains_are_graphs_with_the_bits_of_eager_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Cuts, and buffers that are outgrown, included."""
    monkeypatch.setattr("mdgraph.decomposition.subdomain._MORE_OTHERS", 0.0)
    monkeypatch.setattr("mdgraph.decomposition.subdomain._MORE_OWN", 0.0)
    ends = []
    for graph in ("on", "off"):
        simulation = Simulation(
            water((3, 1, 1)), "water-pbe0", LangevinMiddle(0.5, 2000.0, 5.0), seed=3,
            device="cuda", skin=0.3, temperature=2000.0, domains="2x1x1", check=None, graph=graph,
            steps_per_replay=8,
        )  # fmt: skip
        assert simulation.step_graphs.graphed == (graph == "on")
        simulation.run(64)
        assert int(simulation.calculation.lists[0].rebuilds) > 3
        ends.append({name: value.clone() for name, value in simulation.state.tensors().items()})
    for name, value in ends[0].items():
        torch.testing.assert_close(value, ends[1][name], rtol=0.0, atol=1e-4)


@pytest.mark.gpu(2)
@pytest.mark.parametrize("kind", ["nve", "npt"])
def test_two_gpus_go_the_way_of_one(tmp_path: Path, kind: str) -> None:
    begin(tmp_path)
    ends = []
    for launch in (torchrun, alone):
        process = launch(tmp_path, 30, kind, "cuda")
        said, _ = process.communicate(timeout=240)
        assert process.returncode == 0, said
        places, _ = json.loads((tmp_path / "end-0.json").read_text(encoding="utf-8"))
        ends.append(places)
    np.testing.assert_allclose(ends[0], ends[1], atol=1e-5)


STORM = """
import json, os, sys
from mdgraph.engine import Simulation, VelocityVerlet
from mdgraph.io.structures import read_system
out, count, device = sys.argv[1], int(sys.argv[2]), sys.argv[3]
ample, storm = [
    Simulation(read_system(f"{out}/start.extxyz"), "water-pbe0", VelocityVerlet(0.5), seed=1,
        device=device, skin=0.0, chunk=4, graph="off", domains=2, check=None)
    for _ in range(2)
]
overflows = 0
for _ in range(count):
    for item in storm.calculation.lists:
        item._allocate(item.block, item.reference_positions, item.reference_cell)
        overflows += not item.status().complete
    storm.step_graphs.forget()
    storm.run(4)
ample.run(4 * count)
builds = int(ample.calculation.lists[0].rebuilds)
apart = (ample.state.positions - storm.state.positions).abs().max()
json.dump([overflows, builds, float(apart)], open(f"{out}/storm.json", "w"))
"""


@pytest.mark.parametrize(
    ("device", "count"),
    [
        pytest.param("cpu", 200, marks=pytest.mark.slow),
        pytest.param(
            "cuda",
            200,
            marks=pytest.mark.gpu(2),
        ),
    ],
)
def test_lists_that_overflow_and_cuts_at_each_step_change_no_bit(
    tmp_path: Path, device: str, count: int
) -> None:
    """On two ranks, beside lists with ample room; on GPUs products round in other orders."""
    begin(tmp_path)
    (tmp_path / "storm.py").write_text(STORM, encoding="utf-8")
    words = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    process = started([*words, "storm.py", str(tmp_path), str(count), device], tmp_path)
    said, _ = process.communicate(timeout=240)
    assert process.returncode == 0, said
    overflows, builds, apart = json.loads((tmp_path / "storm.json").read_text(encoding="utf-8"))
    assert overflows == count
    assert builds >= 4 * count
    assert apart <= (0.0 if device == "cpu" else 1e-5)
