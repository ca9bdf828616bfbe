"""What run.json says beside the configuration: what was found, chosen and installed."""

import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any, Literal

import torch

from mdgraph import __version__
from mdgraph.engine import Simulation
from mdgraph.evaluators import AutogradEvaluator, Evaluator
from mdgraph.runs.potential import Source
from mdgraph.system import System
from mdgraph.units import SYMBOLS

_PACKAGES = ("torch", "numpy", "ase", "h5py", "safetensors")


def formula(system: System) -> str:
    """Elements and how many atoms of each, such as H128 O64."""
    counts = Counter(system.numbers.tolist())
    return " ".join(f"{SYMBOLS[number]}{counts[number]}" for number in sorted(counts))


def evaluator_name(evaluator: Evaluator) -> Literal["fused", "reference"]:
    """The word by which `--evaluator` chooses it."""
    return "reference" if isinstance(evaluator, AutogradEvaluator) else "fused"


def environment(device: torch.device) -> dict[str, Any]:
    """Versions and hardware that the bits of a run depend on."""
    graphics = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    return {
        "mdgraph": __version__,
        "python": platform.python_version(),
        **{name: version(name) for name in _PACKAGES},
        "cuda": torch.version.cuda if graphics else None,
        "gpu": graphics,
        "processor": platform.machine(),
        "threads": torch.get_num_threads(),
    }


def measured_before(record: Mapping[str, Any] | None, device: torch.device) -> dict[str, Any]:
    """Options of Simulation by which a run goes on as it was measured when it began.

    Args:
        record: of that run, or None for one that begins.
        device: where it goes on; its choices are those of another one only between GPUs.
    """
    if record is None or device.type != "cuda" or record["environment"]["gpu"] is None:
        return {}
    chosen = record["chosen"]
    if not chosen["captured_as_cuda_graph"]:
        return {"graph": "off"}
    # Runs of earlier versions had graphs of one step.
    return {"graph": "on", "steps_per_replay": chosen.get("steps_per_replay", 1)}


def charge_of(record: Mapping[str, Any], number: int) -> float:
    """Charge of a replica of a run, or of its one system, e."""
    about = record["structure"]
    return float(about.get("replicas", [about])[number]["charge_e"])


def description(
    simulation: Simulation, systems: Sequence[System], source: Source, replicas: bool
) -> dict[str, Any]:
    """What a run found in its structures and potential, and what was chosen for it."""
    calculation = simulation.calculation
    found = [
        {
            "atoms": len(system),
            "formula": formula(system),
            "charge_e": system.charge,
            "pbc": system.pbc.tolist(),
            "cell_A": system.cell.tolist(),
        }
        for system in systems
    ]
    return {
        "structure": {"replicas": found} if replicas else found[0],
        "potential": source.description(),
        "chosen": {
            "degrees_of_freedom": simulation.degrees_text,
            "integrator": simulation.integrator.settings(),
            "neighbor_capacities": [one.capacity for one in calculation.lists],
            "cutoffs_A": list(calculation.evaluator.cutoffs),
            "skin_A": calculation.skin,
            "chunk": simulation.chunk,
            "captured_as_cuda_graph": simulation.graphed,
            "steps_per_replay": simulation.step_graphs.longest if simulation.graphed else None,
        },
        "environment": environment(calculation.device),
    }
