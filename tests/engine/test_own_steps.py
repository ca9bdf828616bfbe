"""Steps that ranks take together, each of its own atoms: beside those of one process."""

import json
import os
import pickle
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ase.build import bulk
from ase.io import read
from prepared import prepared_ranks

from mdgraph.biases import Distance, Metadynamics
from mdgraph.decomposition.exchange import ProcessExchange
from mdgraph.engine import (
    FIRE,
    Averages,
    LangevinMiddle,
    MartynaTobiasKlein,
    MeanSquaredDisplacement,
    NoseHooverChains,
    PositionRestraints,
    RadialDistributions,
    Simulation,
    StochasticCellRescaling,
    StochasticVelocityRescaling,
    VelocityVerlet,
)
from mdgraph.io.structures import read_system

ROOT = Path(__file__).resolve().parents[2]

RUN = """
from mdgraph.checkpoints import load
from mdgraph.engine import Simulation
from mdgraph.models.sum import SumPotential
def simulation(system, options, **more):
    options = {"seed": 4, "temperature": 400.0, "check": None, "chunk": 8, **options, **more}
    large = options.pop("large", False) or options["device"] != "cpu"
    potential = "water-pbe0" if large else "water-pbe0-small"
    if options.pop("sum", False):
        terms = [(load(name), 0.5) for name in (potential, "water-pbe0-small")]
        potential = SumPotential.of(terms)
    return Simulation(system, potential, options.pop("integrator"), **options)
def end(run):
    found = dict(run.state.tensors())
    for number, record in enumerate(run.online):
        found |= {f"{number}.{name}": value for name, value in record.tensors().items()}
    if run.calculation.biases is not None:
        found |= run.calculation.biases.tensors()
    found["forces of the potential"] = run.calculation.evaluator.forces(run.state)
    return {name: value.tolist() for name, value in found.items()}
"""

RANKS = (
    RUN
    + """
import json, logging, os, pickle, random, sys, time
from torch import distributed
from mdgraph.decomposition import evaluator as evaluators
from mdgraph.decomposition import handover, own_atoms, region
from mdgraph.engine import step_graphs
from mdgraph.engine.restart import load_restart_, save_restart
from mdgraph.io.structures import read_system
out, domains, room, device = sys.argv[1:]
own_atoms._MORE, evaluators.MARGIN = {
    "ample": (0.05, 6.0), "tight": (0.0, 0.05), "narrow": (0.05, 0.05), "late": (0.05, 6.0)
}[room]
region._MORE = handover._MORE = 0.0 if room == "tight" else 0.05
if room == "late":
    delay, send = random.Random(int(os.environ["RANK"])), distributed.batch_isend_irecv
    distributed.batch_isend_irecv = lambda them: time.sleep(0.004 * delay.random()) or send(them)
lines, found = [], {}
log = logging.getLogger("mdgraph.engine.run_loop")
log.setLevel(logging.INFO)
log.addFilter(lambda record: lines.append(record.getMessage()) or False)
system = read_system(f"{out}/start.extxyz")
more = {"domains": domains, "device": device}
runs = pickle.load(open(f"{out}/options", "rb"))
# So chunks have two stretches, or one; for all runs, as other ranks serve from the first one on.
step_graphs.BLOCK = max(options.get("chunk", 4) for options in runs.values())
for name, options in runs.items():
    run = simulation(system, options, **more)
    run.run(max(16, run.chunk))
    found[name] = {"end": end(run), "together": run._own_steps is not None}
    if room == "ample":
        save_restart(run, f"{out}/restart.safetensors")
        run.run(8)
        found[name]["through"] = end(run)
        again = simulation(system, pickle.load(open(f"{out}/options", "rb"))[name], **more)
        for planes in again.calculation.evaluator.division(again.state).values():
            planes.add_(0.05)  # as if they had been put by other positions
        load_restart_(again, f"{out}/restart.safetensors")
        again.run(8)
        found[name]["again"] = end(again)
found["lines"] = lines
json.dump(found, open(f"{out}/{room}.json", "w"))
"""
)


def cases(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Options of simulations; new ones at each call, as observables are of one alone.

    On a CPU a potential of two layers takes four times as long as the small one, so few have it.
    """
    noise = {"integrator": LangevinMiddle(0.5, 400.0, 5.0)}
    flow = {"remove_momentum": 7}
    well = Metadynamics("d", sigma=0.2, height=0.05, every=4, minimum=0.0, maximum=14.0)
    inner = {"inner_potential": "water-pbe0-small", "inner_steps": 4}
    cell = StochasticCellRescaling(0.5, 400.0, 1e-3, cell_dof="semiisotropic")
    every = {
        "nve": {"integrator": VelocityVerlet(0.5), **flow},
        "langevin": noise | {"large": True},
        # One stretch of steps, in which atoms go far.
        "hot": {"integrator": LangevinMiddle(0.5, 2000.0, 5.0), "chunk": 32, "temperature": 2000.0},
        "no skin": {
            "integrator": LangevinMiddle(0.5, 2000.0, 5.0), "chunk": 32, "temperature": 2000.0,
            "skin": 0.0,
        },
        "bussi": {
            "integrator": StochasticVelocityRescaling(0.5, 400.0, 50.0), **flow,
            "observe": [Averages(["conserved_energy"])],
        },
        "nose-hoover": {"integrator": NoseHooverChains(0.5, 400.0), **flow},
        "rescaled cell": {"integrator": cell, **flow},
        "klein": {"integrator": MartynaTobiasKlein(0.5, 400.0, 1e-3), **flow},
        "two potentials": {
            "integrator": MartynaTobiasKlein(0.5, 400.0, 1e-3), **inner, "large": True
        },
        "sum": noise | {"sum": True, "large": True},
        "single": noise | {"precision": "single"},
        "fixed": noise | {"fixed": [0, 5, 300]},
        "restraints": noise | {"restraints": PositionRestraints([0, 100, 300], 2.0)},
        "metadynamics": noise | {"variables": {"d": Distance([0, 200])}, "biases": [well]},
        "minimum": {"integrator": FIRE(0.01)},
        "observables": noise
        | {
            "observe": [
                Averages(every=1), RadialDistributions(every=2), MeanSquaredDisplacement(4, every=2)
            ]
        },
    }  # fmt: skip
    return {name: every[name] for name in names}


ENSEMBLES = ("nve", "langevin", "bussi", "nose-hoover", "rescaled cell", "klein")
OTHERS = ("two potentials", "sum", "single", "fixed", "restraints", "metadynamics", "minimum",
          "observables")  # fmt: skip


def ends(
    processes: Any, folder: Path, names: Iterable[str], domains: str, device: str, *rooms: str
) -> dict[str, Any]:
    """What ranks found, and `one` process."""
    atoms = read(ROOT / "potentials" / "water-pbe0" / "start.extxyz").repeat((2, 1, 1))
    atoms.positions += np.random.default_rng(0).normal(scale=0.03, size=(len(atoms), 3))
    atoms.write(folder / "start.extxyz")
    (folder / "ranks.py").write_text(RANKS, encoding="utf-8")
    (folder / "options").write_bytes(pickle.dumps(cases(names)))
    count = int(np.prod([int(part) for part in domains.split("x")]))
    env, pipe, found = os.environ | {"PYTHONPATH": str(ROOT)}, subprocess.PIPE, {}
    for room in rooms:
        words = ["ranks.py", folder, domains, room, device]
        ranks = prepared_ranks(processes, words, count, env=env, cwd=folder, stderr=pipe)
        said = "".join(rank.communicate()[1] for rank in ranks)
        assert [rank.returncode for rank in ranks] == [0] * count, said
        found[room] = json.loads((folder / f"{room}.json").read_text(encoding="utf-8"))
    scope: dict[str, Any] = {}
    exec(RUN, scope)
    found["one"] = {}
    for name, options in cases(names).items():
        one: Simulation = scope["simulation"](
            read_system(folder / "start.extxyz"), options, device=device
        )
        one.run(max(16, one.chunk))
        assert one._own_steps is None
        assert all(found[room][name]["together"] for room in rooms)
        found["one"][name] = {"end": scope["end"](one)}
    return found


def assert_near(first: dict[str, Any], second: dict[str, Any], error: float) -> None:
    for name, value in first.items():
        # The first sample of averages, from which they count, is a number of large energies.
        bounds = {"rtol": 1e-9, "atol": error}
        if name in ("positions", "velocities", "cell", "forces of the potential") or error < 1e-6:
            np.testing.assert_allclose(second[name], value, err_msg=name, **bounds)


@pytest.mark.parametrize(
    ("names", "domains"),
    [
        (("hot", "no skin"), "4x1x1"),
        (ENSEMBLES[1::3], "2"),
        (ENSEMBLES[::3], "2x2x1"),
        (OTHERS[::2], "2"),
        (OTHERS[1::2], "3"),
        pytest.param(ENSEMBLES[2::3], "3", marks=pytest.mark.slow),
    ],
)
def test_ranks_that_step_their_own_atoms_go_the_way_of_one(
    processes: Any, tmp_path: Path, names: tuple[str, ...], domains: str
) -> None:
    """To the same bits with late messages, too little room, too narrow a margin, or from a file."""
    more = {"hot": ["narrow"], "langevin": ["late"]}
    rooms = ["tight", *more.get(names[0], [])]
    found = ends(processes, tmp_path, names, domains, "cpu", "ample", *rooms)
    ample = found["ample"]
    for name in names:
        error = {"single": 1e-3, "hot": 1e-7, "no skin": 1e-7}.get(name, 1e-8)
        assert_near(found["one"][name]["end"], ample[name]["end"], error)
        for room in rooms:
            assert ample[name]["end"] == found[room][name]["end"], (name, room)
        assert ample[name]["through"] == ample[name]["again"], name
    assert not ample["lines"]
    for room in rooms:
        outgrew = any("outgrew buffers" in line for line in found[room]["lines"])
        assert outgrew == (room != "late")


@pytest.mark.gpu(2)
@pytest.mark.parametrize(
    ("names", "rooms"),
    [
        (OTHERS, ["ample"]),
        (ENSEMBLES[1::2], ["ample", "tight"]),
        (("hot",), ["ample", "tight"]),
    ],
)
def test_two_gpus_step_their_own_atoms(
    processes: Any, tmp_path: Path, names: tuple[str, ...], rooms: list[str]
) -> None:
    """There products round in other orders."""
    found = ends(processes, tmp_path, names, "2", "cuda", *rooms)
    for name in names:
        error = {"single": 1e-3, "hot": 1e-3}.get(name, 1e-5)
        for room in rooms:
            assert_near(found["one"][name]["end"], found[room][name]["end"], error)
        assert_near(found["ample"][name]["through"], found["ample"][name]["again"], error)
    if "tight" in rooms:
        assert any("outgrew buffers" in line for line in found["tight"]["lines"])


def test_the_host_launches_messages_a_stretch_ahead_at_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One between GPUs has its time from when it is launched, not from when its turn comes."""
    done: list[str] = []

    class Event:
        def __init__(self) -> None:
            self.number = sum(line.startswith("record") for line in done) + 1

        def record(self, stream: object) -> None:
            done.append(f"record {self.number} {stream}")

        def synchronize(self) -> None:
            done.append(f"wait {self.number}")

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"of {device}")
    exchange = ProcessExchange.__new__(ProcessExchange)
    exchange._paced = None
    exchange.keep_pace_(torch.device("cpu"))
    for _ in range(3):
        exchange.keep_pace_(torch.device("cuda", 1))
    assert done == [
        "record 1 of cuda:1", "wait 1", "record 2 of cuda:1", "wait 2", "record 3 of cuda:1"
    ]  # fmt: skip


FLOW = """
import json, logging, sys
from mdgraph.decomposition import evaluator as evaluators
from mdgraph.decomposition import handover, own_atoms, region
from mdgraph.engine import step_graphs
from mdgraph.engine import Simulation, VelocityVerlet
from mdgraph.io.structures import read_system
out, room, device, chunks = sys.argv[1:]
own_atoms._MORE, evaluators.MARGIN = {"ample": (0.5, 8.0), "tight": (0.0, 1.0)}[room]
region._MORE = handover._MORE = 0.0 if room == "tight" else 0.05
step_graphs.BLOCK = 2  # atoms go from rank to rank within a chunk
lines = []
log = logging.getLogger("mdgraph.engine.run_loop")
log.setLevel(logging.INFO)
log.addFilter(lambda record: lines.append(record.getMessage()) or False)
run = Simulation(read_system(f"{out}/start.extxyz"), "copper-pbe", VelocityVerlet(2.0), seed=1,
    device=device, temperature=300.0, maximum_temperature=1e9, skin=0.4, chunk=4,
    domains="2x1x1", check=None)
run.state.velocities[:, 0] += 0.3
moved, owner, most, planes = 0, None, 0, set()
for _ in range(int(chunks)):
    run.run(4)
    (at,), state = run.calculation.evaluator.division(run.state).values(), run.state
    grid = run.calculation.evaluator.grid
    now = grid.owners(state.positions, state.cell, state.pbc, at).cpu()
    moved += 0 if owner is None else int((now != owner).sum())
    owner, most = now, max(most, int(now.bincount(minlength=2).max()))
    planes.add(float(at))
grown = run._own_steps._region.generation
json.dump({"moved": moved, "most": most, "planes": len(planes), "lines": lines, "grown": grown,
    "places": run.state.positions.tolist()}, open(f"{out}/{room}.json", "w"))
"""


@pytest.mark.parametrize(
    ("device", "chunks", "moved"),
    [
        ("cpu", 16, 200),
        pytest.param("cpu", 80, 1000, marks=pytest.mark.slow),
        pytest.param("cuda", 80, 1000, marks=pytest.mark.gpu(2)),
    ],
)
def test_planes_follow_atoms_that_gather(
    processes: Any, tmp_path: Path, device: str, chunks: int, moved: int
) -> None:
    """A crystal flows through its cell, half of which is empty: no rank gets all of it.

    So atoms change their ranks by hundreds, to the same bits on a CPU however little room is there.
    """
    atoms = bulk("Cu", "fcc", 3.64, cubic=True) * (14, 2, 2)
    atoms.cell[0, 0] *= 2.0
    atoms.positions += np.random.default_rng(0).normal(scale=0.05, size=atoms.positions.shape)
    atoms.write(tmp_path / "start.extxyz")
    (tmp_path / "flow.py").write_text(FLOW, encoding="utf-8")
    env, pipe, found = os.environ | {"PYTHONPATH": str(ROOT)}, subprocess.PIPE, {}
    for room in ("ample", "tight"):
        words = ["flow.py", tmp_path, room, device, chunks]
        ranks = prepared_ranks(processes, words, 2, env=env, cwd=tmp_path, stderr=pipe)
        said = "".join(rank.communicate()[1] for rank in ranks)
        assert [rank.returncode for rank in ranks] == [0, 0], said
        found[room] = json.loads((tmp_path / f"{room}.json").read_text(encoding="utf-8"))
        assert found[room]["moved"] > moved
        assert found[room]["planes"] > 2
        assert found[room]["most"] < 0.7 * len(atoms)
    assert len(found["tight"]["lines"]) > len(found["ample"]["lines"])
    assert found["tight"]["grown"] > found["ample"]["grown"]  # regions, too
    error = 0.0 if device == "cpu" else 1e-4
    np.testing.assert_allclose(
        found["tight"]["places"], found["ample"]["places"], rtol=0.0, atol=error
    )
    one = Simulation(
        read_system(tmp_path / "start.extxyz"), "copper-pbe", VelocityVerlet(2.0), seed=1,
        device=device, temperature=300.0, maximum_temperature=1e9, skin=0.4, chunk=4, check=None,
    )  # fmt: skip
    one.state.velocities[:, 0] += 0.3
    one.run(4 * chunks)
    places = one.state.positions.cpu()
    # Sums in other orders round features of `mixed` differently some day.
    error = max(1e-9 if chunks < 20 else 1e-6, error)
    np.testing.assert_allclose(found["ample"]["places"], places, rtol=0.0, atol=error)
