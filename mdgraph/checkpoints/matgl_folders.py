"""What a folder that MatGL saved says of its model, beside the weights."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mdgraph.checkpoints.pickles import read_pickle
from mdgraph.checkpoints.settings import Settings
from mdgraph.errors import CheckpointError
from mdgraph.io.files import disk_failures


@dataclass(frozen=True)
class Saved:
    """What a folder says of its model.

    Attributes:
        network: arguments of TensorNet.
        potential: arguments of the Potential around it; empty where there is none.
        version: of TensorNet's conventions; None where the folder does not say.
    """

    network: Mapping[str, Any]
    potential: Mapping[str, Any]
    version: int | None


def read_saved(folder: Path) -> Saved:
    """Reads model.pt and model.json, whichever are there.

    Raises:
        FileError: a file cannot be read.
        CheckpointError: they describe no TensorNet.
    """
    description: Any = {}
    if (folder / "model.json").exists():
        with disk_failures(folder / "model.json", "read"):
            text = (folder / "model.json").read_bytes()
        try:
            description = json.loads(text)
        except ValueError as error:
            raise CheckpointError(
                f"{folder / 'model.json'} is not JSON; copy or download the folder again."
            ) from error
    if (folder / "model.pt").exists():
        arguments = read_pickle(folder / "model.pt", arrays=True)
    elif isinstance(description, Mapping):
        arguments = description.get("kwargs")
    if not isinstance(description, Mapping) or not isinstance(arguments, Mapping):
        raise CheckpointError(
            f"{folder} does not say what its weights belong to: neither model.pt nor model.json "
            "holds a model's arguments; save the model again with MatGL."
        )
    inner = arguments.get("model")
    if isinstance(inner, Mapping):
        network, potential, named = inner.get("init_args"), arguments, inner
    else:
        network, potential, named = arguments, {}, description
    kind = named.get("@class", "TensorNet")
    if kind != "TensorNet" or not isinstance(network, Mapping):
        raise CheckpointError(
            f"{folder} holds MatGL's {kind}, which is not a TensorNet; "
            "use a TensorNet or run it with MatGL."
        )
    version: int | None = None
    if "@model_version" in named:
        version = Settings(named, folder).integer("@model_version")
    elif named:
        version = 1
    return Saved(network, potential, version)
