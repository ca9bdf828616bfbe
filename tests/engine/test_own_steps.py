"""Steps that ranks take together, each of its own atoms: beside those of one process."""

import json
import os
import pickle
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ase.io import read
from prepared import prepared_ranks

from mdgraph.engine import (
    Integrator,
    LangevinMiddle,
    MartynaTobiasKlein,
    NoseHooverChains,
    Simulation,
    StochasticCellRescaling,
    StochasticVelocityRescaling,
    VelocityVerlet,
)
from mdgraph.io.structures import read_system

ROOT = Path(__file__).resolve().parents[2]

ENSEMBLES: dict[str, Integrator] = {
    "nve": VelocityVerlet(0.5),
    "langevin": LangevinMiddle(0.5, 400.0, 5.0),
    "bussi": StochasticVelocityRescaling(0.5, 400.0, 50.0),
    "nose-hoover": NoseHooverChains(0.5, 400.0),
    "rescaled cell": StochasticCellRescaling(0.5, 400.0, 1e-3, cell_dof="semiisotropic"),
    "klein": MartynaTobiasKlein(0.5, 400.0, 1e-3),
}

RANKS = """
import json, logging, pickle, sys
from mdgraph.decomposition import evaluator as evaluators
from mdgraph.decomposition import own_atoms
from mdgraph.engine import Simulation
from mdgraph.engine.restart import load_restart_, save_restart
from mdgraph.io.structures import read_system
out, domains, options = sys.argv[1], sys.argv[2], pickle.load(open("options", "rb"))
tight = sys.argv[3] == "tight"
if tight:
    own_atoms._MORE, evaluators.MARGIN = 0.0, 0.05
lines = []
log = logging.getLogger("mdgraph.engine.run_loop")
log.setLevel(logging.INFO)
log.addFilter(lambda record: lines.append(record.getMessage()) or False)
def simulation():
    return Simulation(read_system(f"{out}/start.extxyz"), "water-pbe0", domains=domains, **options)
def end(run):
    return {name: value.tolist() for name, value in run.state.tensors().items()}
run = simulation()
for _ in range(3):
    run.run(8)
found = {"end": end(run), "together": run._own_steps is not None, "lines": lines}
found["margin"] = run.calculation.evaluator.margin
if not tight:
    save_restart(run, f"{out}/restart.safetensors")
    run.run(8)
    found["through"] = end(run)
    again = simulation()
    load_restart_(again, f"{out}/restart.safetensors")
    again.run(8)
    found["again"] = end(again)
json.dump(found, open(f"{out}/{sys.argv[3]}.json", "w"))
"""


def options(kind: str, device: str) -> dict[str, Any]:
    removal = 0 if kind == "langevin" else 7
    return {
        "integrator": ENSEMBLES[kind], "seed": 4, "temperature": 400.0, "device": device,
        "check": None, "remove_momentum": removal, "chunk": 8,
    }  # fmt: skip


def ends(processes: Any, folder: Path, kind: str, domains: str, device: str) -> Any:
    """What ranks found, and the end of one process."""
    atoms = read(ROOT / "potentials" / "water-pbe0" / "start.extxyz").repeat((2, 1, 1))
    atoms.positions += np.random.default_rng(0).normal(scale=0.03, size=(len(atoms), 3))
    atoms.write(folder / "start.extxyz")
    (folder / "ranks.py").write_text(RANKS, encoding="utf-8")
    (folder / "options").write_bytes(pickle.dumps(options(kind, device)))
    count = int(np.prod([int(part) for part in domains.split("x")]))
    env, pipe, found = os.environ | {"PYTHONPATH": str(ROOT)}, subprocess.PIPE, {}
    for room in ("ample", "tight"):
        words = ["ranks.py", folder, domains, room]
        ranks = prepared_ranks(processes, words, count, env=env, cwd=folder, stderr=pipe)
        said = "".join(rank.communicate()[1] for rank in ranks)
        assert [rank.returncode for rank in ranks] == [0] * count, said
        found[room] = json.loads((folder / f"{room}.json").read_text(encoding="utf-8"))
        assert found[room]["together"]
    one = Simulation(read_system(folder / "start.extxyz"), "water-pbe0", **options(kind, device))
    for _ in range(3):
        one.run(8)
    assert one._own_steps is None
    return found | {"one": {name: value.tolist() for name, value in one.state.tensors().items()}}


@pytest.mark.parametrize(
    ("kind", "domains"),
    [
        ("langevin", "2"),
        ("nve", "3"),
        ("bussi", "2x2x1"),
        ("rescaled cell", "2"),
        pytest.param("nose-hoover", "2", marks=pytest.mark.slow),
        pytest.param("klein", "4", marks=pytest.mark.slow),
    ],
)
def test_ranks_that_step_their_own_atoms_go_the_way_of_one(
    processes: Any, tmp_path: Path, kind: str, domains: str
) -> None:
    """To the same bits where atoms leave the margin or outgrow their room, or a file goes on."""
    found = ends(processes, tmp_path, kind, domains, "cpu")
    for name, value in found["one"].items():
        np.testing.assert_allclose(found["ample"]["end"][name], value, rtol=1e-11, atol=1e-9)
    assert found["ample"]["end"] == found["tight"]["end"]
    assert found["ample"]["through"] == found["ample"]["again"]
    assert found["ample"]["margin"] == 2.0
    assert found["tight"]["margin"] > 0.05
    assert any("outgrew buffers" in line for line in found["tight"]["lines"])


@pytest.mark.gpu(2)
@pytest.mark.parametrize("kind", ENSEMBLES)
def test_two_gpus_step_their_own_atoms(processes: Any, tmp_path: Path, kind: str) -> None:
    """There products round in other orders."""
    found = ends(processes, tmp_path, kind, "2", "cuda")
    ample, tight = found["ample"], found["tight"]
    pairs = (ample["end"], found["one"]), (ample["end"], tight["end"])
    for first, second in (*pairs, (ample["through"], ample["again"])):
        for name in ("positions", "velocities", "cell"):
            np.testing.assert_allclose(first[name], second[name], atol=1e-5)
    assert tight["margin"] > 0.05
