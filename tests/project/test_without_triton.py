"""The package imports, and runs on a CPU, where Triton is not installed."""

import subprocess
import sys

import mdgraph

BLOCKED = """
import sys
from importlib.machinery import PathFinder

find_spec = PathFinder.find_spec


def without(name, path=None, target=None):
    return None if name.partition(".")[0] == "triton" else find_spec(name, path, target)


PathFinder.find_spec = without
"""

ALL_MODULES = """
import importlib
import pathlib

import openmmml  # which imports the plugin itself

package = pathlib.Path(sys.argv[1])
failed = set()
for path in sorted(package.rglob("*.py")):
    name = ".".join(path.relative_to(package.parent).with_suffix("").parts)
    if path.name in ("__main__.py", "__init__.py"):
        continue
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (name, error.name) == ("mdgraph.io.ovito", "ovito"):
            continue  # which OVITO imports
        assert error.name == "triton", (name, error)
        failed.add(name)
print(*sorted(failed))
"""

RUN = """
import numpy as np
from mdgraph import LangevinMiddle, Simulation, System, load

system = System(
    numbers=np.array([8, 1, 1]),
    positions=np.array([[0.0, 0.0, 0.0], [0.96, 0.0, 0.0], [-0.24, 0.93, 0.0]]),
    cell=np.zeros((3, 3)),
    pbc=np.zeros(3, dtype=bool),
)
for evaluator in ("fused", "reference"):
    integrator = LangevinMiddle(0.5, 300.0, 1.0)
    simulation = Simulation(
        [system], load("water-pbe0"), integrator, device="cpu", evaluator=evaluator
    )
    simulation.run(5)
    assert np.isfinite(float(simulation.state.energy[0]))
print("ran")
"""


def without_triton(code: str, *arguments: str) -> str:
    command = [sys.executable, "-W", "ignore", "-c", BLOCKED + code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_simulations_run_and_only_modules_of_kernels_need_triton() -> None:
    """In one process, which imports all modules after the run."""
    ran, failed = without_triton(RUN + ALL_MODULES, mdgraph.__path__[0]).split("\n", 1)
    assert ran == "ran"
    kernels = (
        "fused.cuda",
        "biases.kernels",
        "decomposition.cutting_kernels",
        "decomposition.own_kernels",
        "engine.kernels",
        "models.kernels",
        "neighbors.triton_",
        "gpu.triton_jit",
        "gpu.vectors",
    )
    missing = failed.split()
    assert missing
    assert [
        name for name in missing if not name.startswith(tuple(f"mdgraph.{k}" for k in kernels))
    ] == []
