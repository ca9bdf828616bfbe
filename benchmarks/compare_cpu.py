"""Times TorchMD-Net and mdgraph on the CPU, in one run, in turns, with the same weights.

    python benchmarks/compare_cpu.py --peer-python PATH [--threads 2] [--atoms 192 648]

Energy and forces of periodic water by TorchMD-Net's TensorNet (128 channels, 2 layers, 32
functions, 5 A, random weights), which runs by the interpreter of its own environment in
float32 with its Warp kernels. mdgraph reads the checkpoint written there. Both build their
list at each call; "with skin" is mdgraph as dynamics runs it, with the list kept while it is
complete. Medians, and in brackets the least. The force difference, over the RMS force
component, tells that both computed the same; most of it is the rounding of the peer.
"""

import argparse
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cases import processor, run_script, water

from mdgraph import __version__, load
from mdgraph.engine import Calculation
from mdgraph.engine.calculation import as_evaluator
from mdgraph.fused.evaluator import EVALUATORS
from mdgraph.precision import PRECISIONS, precision_named
from mdgraph.runs.folder import evaluator_name
from mdgraph.system import System

MODEL = {
    "model": "tensornet",
    "embedding_dimension": 128,
    "num_layers": 2,
    "num_rbf": 32,
    "rbf_type": "expnorm",
    "trainable_rbf": False,
    "activation": "silu",
    "cutoff_lower": 0.0,
    "cutoff_upper": 5.0,
    "max_z": 128,
    "max_num_neighbors": 80,
    "equivariance_invariance_group": "O(3)",
    "derivative": True,
    "atom_filter": -1,
    "prior_model": None,
    "output_model": "Scalar",
    "reduce_op": "add",
    "precision": 32,
}

WORKER = """
import json, os, sys, time
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what libraries print goes elsewhere
job = json.loads(sys.stdin.readline())
import torch
from importlib.metadata import version
from torchmdnet.models.model import create_model

def answer(**values):
    print(json.dumps(values), file=answers, flush=True)

torch.set_num_threads(job["threads"])
torch.manual_seed(1)
model = create_model(job["model"]).eval().requires_grad_(False)
weights = {"model." + name: tensor for name, tensor in model.state_dict().items()}
torch.save({"state_dict": weights, "hyper_parameters": job["model"]}, job["checkpoint"])
packages = ("torchmd-net", "torch", "warp-lang", "numpy")
answer(versions={name: version(name) for name in packages})
for line in sys.stdin:
    structure = json.loads(line)
    if structure:
        numbers = torch.tensor(structure["numbers"])
        positions = torch.tensor(structure["positions"])
        # Dividing by a cell of zeros would make positions no numbers.
        box = torch.tensor(structure["cell"]) if structure["cell"] else None
    begin = time.perf_counter()
    energy, forces = model(numbers, positions, box=box)
    seconds = time.perf_counter() - begin
    answer(seconds=seconds, energy=energy.item(), forces=forces.tolist() if structure else None)
"""

PAUSE = 0.5
"""s; threads of the one that has finished may wait busily for a while."""


class Peer:
    """TorchMD-Net in a process of its own."""

    def __init__(self, python: str, threads: int, checkpoint: Path) -> None:
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115
        self._process = subprocess.Popen(
            [python, "-c", WORKER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)},
        )
        job = {"model": MODEL, "threads": threads, "checkpoint": str(checkpoint)}
        self.versions: dict[str, str] = self.ask(job)["versions"]

    def ask(self, question: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        answer = ""
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        if not answer:
            self._errors.seek(0)
            raise SystemExit(f"TorchMD-Net stopped:\n{self._errors.read()}")
        reply: dict[str, Any] = json.loads(answer)
        return reply

    def close(self) -> None:
        self._process.communicate()
        self._errors.close()


def seconds(function: Callable[[], object]) -> float:
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin


def compared(peer: Peer, evaluator: Any, system: System, options: argparse.Namespace) -> str:
    """One line of the table."""
    keywords: dict[str, Any] = {"device": "cpu", "precision": options.precision}
    with_skin, built = (
        Calculation([system], evaluator(), cell_varies=False, skin=skin, **keywords)
        for skin in (None, 0.0)
    )
    built.compute()
    with_skin.compute()
    structure = {
        "numbers": system.numbers.tolist(),
        "positions": system.positions.tolist(),
        "cell": system.cell.tolist() if system.pbc.any() else None,
    }
    forces = np.array(peer.ask(structure)["forces"])
    if not np.isfinite(forces).all():
        raise SystemExit(f"TorchMD-Net's forces on {len(system)} atoms are no finite numbers.")
    times = []
    for _ in range(options.rounds):
        time.sleep(PAUSE)
        row = [peer.ask(None)["seconds"]]
        for calculation in (built, with_skin):
            time.sleep(PAUSE)
            row.append(float(np.median([seconds(calculation.update_) for _ in range(5)])))
        times.append(row)
    medians, least = 1e3 * np.median(times, 0), 1e3 * np.min(times, 0)
    cells = [f"{median:.1f} ({best:.1f})" for median, best in zip(medians, least, strict=True)]
    scale = np.sqrt(np.square(forces).mean())
    difference = np.abs(built.state.forces.numpy() - forces).max() / scale
    return (
        f"{len(system):>6,}{cells[0]:>22}{cells[1]:>22}{cells[2]:>22}"
        f"{medians[0] / medians[1]:>8.1f}{difference:>12.1e}"
    )


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer-python", required=True, help="interpreter that has torchmd-net")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--atoms", type=int, nargs="+", default=[192, 648])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--precision", default="mixed", choices=PRECISIONS)
    parser.add_argument("--evaluator", default="auto", choices=EVALUATORS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder) / "peer.ckpt"
        peer = Peer(options.peer_python, options.threads, checkpoint)
        potential = load(checkpoint)
    cpu, precision = torch.device("cpu"), precision_named(options.precision)

    def evaluator() -> Any:
        return as_evaluator(potential, precision, cpu, options.evaluator)

    load_before = os.getloadavg()[0]
    print(f"{processor()}, {options.threads} threads, {date.today().isoformat()}")
    print(", ".join(f"{name} {value}" for name, value in peer.versions.items()))
    print(
        f"mdgraph {__version__}, torch {torch.__version__}, {options.precision}, "
        f"{evaluator_name(evaluator())} evaluator"
    )
    print(
        f"{'atoms':>6}{'TorchMD-Net ms':>22}{'mdgraph ms':>22}{'with skin ms':>22}"
        f"{'ratio':>8}{'dF worst':>12}"
    )
    for atoms in options.atoms:
        print(compared(peer, evaluator, water(atoms), options), flush=True)
    peer.close()
    print(f"load average: {load_before:.1f} at the start, {os.getloadavg()[0]:.1f} at the end")


if __name__ == "__main__":
    run_script(main)
