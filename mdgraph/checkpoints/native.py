"""mdgraph's own file: tensors and configuration together in one safetensors file."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import torch
from pydantic import ValidationError
from torch import Tensor

from mdgraph.arguments import checked
from mdgraph.checkpoints.settings import invalid_config
from mdgraph.checkpoints.tensors import Tensors
from mdgraph.errors import CheckpointError, InputError
from mdgraph.io.files import (
    disk_failures,
    path_given,
    readable_file,
    refuse_existing,
    write_atomically,
)
from mdgraph.io.tensor_files import TensorFileError, begins_as_tensors, read_tensors, serialized
from mdgraph.models import TensorNetConfig, TensorNetPotential
from mdgraph.models.configuration import SCHEMA_VERSION

FILE_NAME: Final = "model.safetensors"
"""What the file is called within the folder of a potential."""

LARGEST_BYTES: Final = 4 << 30
"""Of a file with weights: a thousand times what those of today have."""

_KEY: Final = "mdgraph"


def is_native(path: Path) -> bool:
    """Whether a file begins as safetensors files do: a length, then JSON."""
    readable_file(path, "a potential", LARGEST_BYTES)
    with disk_failures(path, "read"), path.open("rb") as file:
        start = file.read(9)
    return begins_as_tensors(start)


@checked
def save(potential: TensorNetPotential, path: str | Path, *, overwrite: bool = False) -> None:
    """Writes a potential to one file, whole or not at all.

    Tensors are stored in float32 where that loses nothing and in float64 elsewhere; the
    configuration goes into the file's metadata as JSON. Copies from the device.

    Args:
        potential: any.
        path: the file to appear.
        overwrite: whether a file that exists is replaced.

    Raises:
        InputError: the name does not end in .safetensors.
        FileError: the file exists, or the disk refused.
    """
    path = path_given(path, "The file of a potential")
    if path.suffix != ".safetensors":
        raise InputError(
            f"A potential is written as safetensors, not as '{path.name}'; "
            "give a name that ends in .safetensors."
        )
    refuse_existing(path, overwrite=overwrite)
    tensors = {name: _smallest(value) for name, value in potential.state_dict().items()}
    metadata = {_KEY: potential.config.model_dump_json()}
    content = serialized(tensors, metadata)
    write_atomically(path, lambda temporary: temporary.write_bytes(content), new=not overwrite)


def _smallest(value: Tensor) -> Tensor:
    value = value.detach().cpu().contiguous()
    single = value.to(torch.float32)
    return single if torch.equal(single.to(value.dtype), value) else value


def read_native(path: Path) -> TensorNetPotential:
    """Reads what `save` wrote.

    Raises:
        FileError: the file cannot be read.
        CheckpointError: it is damaged, holds something else, or a newer mdgraph wrote it.
    """
    try:
        tensors, metadata = read_tensors(path, "a potential", LARGEST_BYTES)
    except TensorFileError as error:
        raise CheckpointError(f"{path} {error}; copy or download it again.") from error
    if _KEY not in metadata:
        raise CheckpointError(
            f"{path} holds tensors but no configuration of mdgraph; "
            "give the checkpoint it was made from."
        )
    config = _config(path, metadata[_KEY])
    source = Tensors(tensors, path)
    # A description takes no memory that the file does not fill. Building it on torch's device
    # "meta" first would tell that as well, and take 5 s and 150 MB for torch's compiler.
    if _fewest_weights(config) > sum(tensor.numel() for tensor in tensors.values()):
        raise CheckpointError(
            f"{path} has wrong shapes in its weights, which are fewer than the network that it "
            "describes has; copy or download it again."
        )
    potential = TensorNetPotential(config)
    shapes = {name: value.shape for name, value in potential.state_dict().items()}
    found = {name: source.take(name, *shape) for name, shape in shapes.items()}
    source.finish()
    potential.load_state_dict(found)
    return potential


def _fewest_weights(config: TensorNetConfig) -> int:
    """Of a network of that description, from its largest matrices."""
    sizes = [config.channels, *config.readout.hidden]
    largest = max(
        config.layers * config.channels,
        config.radial_basis.number,
        len(config.species),
        config.charge_channels,
    )
    readout = sum(one * next_one for one, next_one in pairwise(sizes))
    return max(config.channels * largest, readout)


def _config(path: Path, text: str) -> TensorNetConfig:
    try:
        fields: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{path} holds a configuration that is not JSON; copy or download it again."
        ) from error
    version = fields.get("schema_version") if isinstance(fields, dict) else None
    if isinstance(version, int) and version > SCHEMA_VERSION:
        raise CheckpointError(
            f"{path} was written by a newer mdgraph (schema {version}, this one reads "
            f"{SCHEMA_VERSION}); upgrade mdgraph."
        )
    try:
        return TensorNetConfig.model_validate(fields)
    except ValidationError as error:
        raise invalid_config(path, error) from error
