"""What a folder that MatGL saved says of its model, beside the weights."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mdgraph.checkpoints.pickles import read_pickle
from mdgraph.checkpoints.settings import Settings
from mdgraph.errors import CheckpointError, printable
from mdgraph.io.files import read_file

_LARGEST_BYTES: Final = 1 << 25
"""Of model.json."""


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


def _compare(folder: Path, key: str, used: Any, told: Any) -> None:
    """Raises CheckpointError where model.json says another thing than model.pt.

    MatGL writes both from the same arguments; what JSON cannot hold is text there.
    """
    if isinstance(used, Mapping) and isinstance(told, Mapping):
        for name in used.keys() & told.keys():
            _compare(folder, f"{key}.{name}" if key else str(name), used[name], told[name])
        return
    if isinstance(used, list | tuple) and isinstance(told, list):
        if len(used) == len(told):
            for pair in zip(used, told, strict=True):
                _compare(folder, key, *pair)
            return
    elif not (_is_plain(used) and _is_plain(told)) or used == told:
        return
    raise CheckpointError(
        f"{folder} says two things of {printable(key, 200)}: model.pt and model.json differ; "
        "they are of different models, so copy the folder again, or save the model again with "
        "MatGL."
    )


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | str)


def read_saved(folder: Path) -> Saved:
    """Reads model.pt and model.json, whichever are there.

    Raises:
        FileError: a file cannot be read.
        CheckpointError: they describe no TensorNet.
    """
    description: Any = {}
    if (folder / "model.json").exists():
        text = read_file(folder / "model.json", "a description of MatGL's", _LARGEST_BYTES)
        try:
            description = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise CheckpointError(
                f"{folder / 'model.json'} is not JSON; copy or download the folder again."
            ) from error
    if (folder / "model.pt").exists():
        arguments = read_pickle(folder / "model.pt", arrays=True)
        if isinstance(description, Mapping) and (told := description.get("kwargs")) is not None:
            _compare(folder, "", arguments, told)
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
            f"{folder} holds MatGL's {printable(kind, 100)}, which is not a TensorNet; "
            "use a TensorNet or run it with MatGL."
        )
    version: int | None = None
    if "@model_version" in named:
        version = Settings(named, folder).integer("@model_version")
    elif named:
        version = 1
    return Saved(network, potential, version)
