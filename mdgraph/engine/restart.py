"""Restart files: a run continues from one with the same bits."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch

from mdgraph.engine.simulation import Simulation
from mdgraph.errors import FileError, InputError
from mdgraph.io.files import write_atomically
from mdgraph.io.tensor_files import TensorFileError, read_tensors, serialize
from mdgraph.state import OFFSETS

VERSION = 2

_RECORD: Final = "mdgraph.restart"

_RENAMED: Final = {
    "relaxation_fs": "tau_fs",
    "cell_relaxation_fs": "tau_p_fs",
    "integrator.schedule.relaxation": "integrator.schedule.tau",
    "integrator.schedule.cell_relaxation": "integrator.schedule.tau_p",
}
"""Integrator settings and tensors in files of 0.1.0, by their names today."""


def save_restart(simulation: Simulation, path: str | Path) -> None:
    """Writes a restart file atomically, replacing an older one; syncs.

    The file holds the positions and cells of the last build of each neighbor list. Building from
    these again gives the same rows, so the next rebuild happens at the same step.

    Raises:
        FileError: the file cannot be written; an older one stays intact.
    """
    # Potentials of one cutoff have one list and one tensor of planes, which a file holds twice.
    planes = {name: value.clone() for name, value in _division(simulation).items()}
    tensors = _tensors(simulation) | planes
    for name in ("numbers", "masses", "fixed", "pbc", "charge"):
        tensors[name] = getattr(simulation.state, name)
    record = {
        "version": VERSION,
        "step": simulation.step,
        "clock": simulation.clock,
        "degrees_of_freedom": simulation.degrees_of_freedom,
        **_settings(simulation),
    }
    content = serialize(tensors, {_RECORD: json.dumps(record)})
    write_atomically(path, content)


def load_restart_(simulation: Simulation, path: str | Path) -> None:
    """Sets a simulation to the stored state; syncs.

    The simulation must have the same system, potential and settings. If it was made without a
    skin, it takes the skin of the file.

    Raises:
        FileError: not a restart file, or a damaged one.
        InputError: the file belongs to another system, precision, skin or other settings.
    """
    path = Path(path)
    tensors, record = _read(path)
    state = simulation.state
    names = ["numbers", "masses", "fixed", "pbc", "charge"]
    for name in names if simulation.integrator.cell_varies else [*names, "cell"]:
        if name not in tensors or not torch.equal(tensors[name], getattr(state, name).cpu()):
            raise InputError(
                f"{path} belongs to another system: its {name} differ; "
                "resume with the structure it had."
            )
    skin = record.get("skin", simulation.calculation.skin)
    if not simulation.skin_given and skin != simulation.calculation.skin:
        simulation.set_skin(skin)
    record.setdefault("inner_steps", simulation.together)  # which older files do not tell
    for name, value in _settings(simulation).items():
        if record.get(name) != value:
            raise InputError(
                f"{path} was written with {name} {record.get(name)}, now it is {value}; "
                "resume with the settings it had."
            )
    if "offset" not in tensors:
        # The file is older than position offsets.
        for name in OFFSETS if state.dtype != torch.float64 else ():
            tensors[name] = torch.zeros_like(getattr(state, name), device="cpu")
    if "heat" in simulation.integrator.tensors() and "integrator.heat" not in tensors:
        # The file is older than the heat of Langevin dynamics, which then counts from here on.
        heat = simulation.integrator.tensors()["heat"]
        tensors["integrator.heat"] = torch.zeros_like(heat, device="cpu")
    for name, value in _bias_tensors(simulation).items():
        # Older files do not hold the numbers of springs, which did not change then.
        if name.endswith((".centre", ".stiffness")):
            tensors.setdefault(f"biases.{name}", value.cpu())
    _check_contents(path, simulation, tensors)
    state.seed.copy_(tensors["seed"])
    for name, value in _constants(simulation).items():
        value.copy_(tensors[name])
    for name, value in _division(simulation).items():
        stored = tensors.get(name)
        # A file of another division, or without one, leaves that of this simulation.
        if stored is not None and stored.shape == value.shape:
            value.copy_(stored)
    references = [
        tuple(tensors[f"list{number}.{name}"].to(state.device) for name in ("positions", "cell"))
        for number in range(len(simulation.calculation.lists))
    ]
    own = {name: tensors[f"integrator.{name}"] for name in simulation.integrator.tensors()}
    snapshot = {
        "step": record["step"],
        "clock": record["clock"],
        "state": tensors,
        "integrator": own,
        "evaluator": {
            name: tensors[f"evaluator.{name}"]
            for name in simulation.calculation.evaluator.tensors(state)
        },
        "online": {name: tensors[f"online.{name}"] for name in simulation.online.tensors()},
        "biases": {name: tensors[f"biases.{name}"] for name in _bias_tensors(simulation)},
        "lists": references,
    }
    simulation.resume(snapshot, record["degrees_of_freedom"])


def restart_step(path: str | Path) -> int:
    """The number of steps done in a restart file; raises FileError, see `load_restart_`."""
    return int(_read(Path(path))[1]["step"])


def _check_contents(
    path: Path, simulation: Simulation, tensors: Mapping[str, torch.Tensor]
) -> None:
    """Raises FileError unless all tensors that are needed exist, fit and are finite."""
    for name, value in _tensors(simulation).items():
        stored = tensors.get(name)
        if stored is None or stored.shape != value.shape or stored.dtype != value.dtype:
            raise _damaged(path)
    for name in ("positions", "velocities", "cell"):
        if not bool(tensors[name].isfinite().all()):
            raise _damaged(path)


def _damaged(path: Path) -> FileError:
    return FileError(f"{path} is damaged; give checkpoint.safetensors as the run wrote it.")


def _tensors(simulation: Simulation) -> dict[str, torch.Tensor]:
    """Tensors that a step changes, and the seed, by their names in the file."""
    state = simulation.state
    tensors = {**state.tensors(), "seed": state.seed, **_constants(simulation)}
    for prefix, own in (("integrator", simulation.integrator), ("online", simulation.online)):
        tensors |= {f"{prefix}.{name}": value for name, value in own.tensors().items()}
    tensors |= {f"biases.{name}": value for name, value in _bias_tensors(simulation).items()}
    own_tensors = simulation.calculation.evaluator.tensors(state)
    tensors |= {f"evaluator.{name}": value for name, value in own_tensors.items()}
    for number, neighbors in enumerate(simulation.calculation.lists):
        positions, cell = neighbors.reference()
        tensors |= {f"list{number}.positions": positions, f"list{number}.cell": cell}
    return tensors


def _constants(simulation: Simulation) -> dict[str, torch.Tensor]:
    """Tensors of restraints and biases that no step changes, by their names in the file."""
    springs, biases = simulation.calculation.springs, simulation.calculation.biases
    own = {} if springs is None else springs.tensors()
    tensors = {f"restraints.{name}": value for name, value in own.items()}
    own = {} if biases is None else biases.constants()
    return tensors | {f"biases.{name}": value for name, value in own.items()}


def _division(simulation: Simulation) -> dict[str, torch.Tensor]:
    """Tensors that say how the work is divided, by their names in the file."""
    own = simulation.calculation.evaluator.division(simulation.state)
    return {f"division.{name}": value for name, value in own.items()}


def _bias_tensors(simulation: Simulation) -> dict[str, torch.Tensor]:
    """Tensors of the biases that a step changes, by their names in snapshots."""
    biases = simulation.calculation.biases
    return {} if biases is None else biases.tensors()


def _settings(simulation: Simulation) -> dict[str, Any]:
    """Settings that a resumed simulation must share, as JSON values."""
    calculation = simulation.calculation
    springs, biases = calculation.springs, calculation.biases
    return {
        "precision": calculation.precision.name,
        "skin": calculation.skin,
        "cutoffs": [neighbors.cutoff for neighbors in calculation.lists],
        "systems": list(calculation.state.grouping.sizes),
        "integrator": simulation.integrator.settings(),
        "restraints": None if springs is None else springs.restraints.settings(),
        "biases": None if biases is None else biases.settings(),
        "remove_momentum": simulation.remove_momentum,
        "inner_steps": simulation.together,
        "online": simulation.online.settings(),
    }


def _read(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    try:
        tensors, metadata = read_tensors(path, "a restart file")
        record = dict(json.loads(metadata[_RECORD]))
        version = record["version"]
    except TensorFileError as error:
        raise FileError(f"{path} {error}; give checkpoint.safetensors of a run folder.") from error
    except (KeyError, TypeError, ValueError, RecursionError):
        raise FileError(
            f"{path} is not a restart file of mdgraph; give checkpoint.safetensors of a run folder."
        ) from None
    if version != VERSION:
        raise FileError(
            f"{path} has restart version {version}, this mdgraph reads {VERSION}; "
            "resume with the version that wrote it."
        )
    try:
        counts = int(record["step"]), *map(int, record["degrees_of_freedom"])
        times = list(map(float, record["clock"]))
        record["integrator"] = _current_names(dict(record["integrator"]))
    except (KeyError, TypeError, ValueError):
        raise _damaged(path) from None
    if min(counts) < 0 or len(times) != 3 or not all(map(math.isfinite, times)):
        raise _damaged(path)
    return _current_names(tensors), record


def _current_names(values: Mapping[str, Any]) -> dict[str, Any]:
    return {_RENAMED.get(name, name): value for name, value in values.items()}
