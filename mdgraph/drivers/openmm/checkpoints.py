"""Checkpoints of a Context: restart files of the engine, as bytes."""

import tempfile
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load

from mdgraph.drivers.openmm.boxes import Array
from mdgraph.drivers.openmm.making import host
from mdgraph.engine import Simulation
from mdgraph.engine.restart import load_restart_, save_restart
from mdgraph.errors import FileError, InputError
from mdgraph.state import places_of


def checkpoint(engine: Simulation) -> bytes:
    """Everything from which a run goes on with the same bits; reads the device."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint"
        save_restart(engine, path)
        return path.read_bytes()


def start_of(content: bytes, atoms: int) -> tuple[Array, Array]:
    """Positions (N, 3) and cell (3, 3) of a checkpoint, A.

    Raises:
        FileError: not a checkpoint of mdgraph.
        InputError: it holds another number of atoms.
    """
    try:
        tensors = load(content)
        first = torch.zeros(len(tensors["positions"]), dtype=torch.int64)
        positions, cell = host(places_of(tensors, first)), host(tensors["cell"][0])
    except (SafetensorError, KeyError, IndexError, TypeError, ValueError, RuntimeError):
        raise FileError(
            "This is no checkpoint of mdgraph, as those of other Contexts are none; give one "
            "that this kind of Simulation wrote, or a State."
        ) from None
    if len(positions) != atoms:
        raise InputError(
            f"The checkpoint holds {len(positions)} atoms, the topology {atoms}; resume with the "
            "system it was made of."
        )
    return positions, cell


def resume_(engine: Simulation, content: bytes) -> None:
    """Continues an engine of the same system; raises as `load_restart_`."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "checkpoint"
        path.write_bytes(content)
        try:
            load_restart_(engine, path)
        except (FileError, InputError) as error:
            raise type(error)(str(error).replace(str(path), "The checkpoint")) from None
