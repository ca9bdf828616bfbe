"""Files of potentials and domains in safetensors."""

import hashlib
import json
import logging
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

import torch
from pydantic import ValidationError
from torch import Tensor

from mdgraph.arguments import checked
from mdgraph.checkpoints.convert import Tensors, invalid_config
from mdgraph.checkpoints.location import locate
from mdgraph.errors import CheckpointError, InputError
from mdgraph.io.files import (
    disk_failures,
    path_argument,
    readable_file,
    refuse_existing,
    write_atomically,
)
from mdgraph.io.tensor_files import TensorFileError, begins_as_tensors, read_tensors, serialize
from mdgraph.models import Domain, PotentialModule, architecture_named
from mdgraph.models.architectures import OLDEST
from mdgraph.models.config import SCHEMA_VERSION, PotentialConfig
from mdgraph.shipped import FILE_NAME
from mdgraph.units import SYMBOLS

logger = logging.getLogger(__name__)

LARGEST_BYTES: Final = 4 << 30
"""Largest accepted file with weights; today's are a thousand times smaller."""

_KEY: Final = "mdgraph"


def is_native(path: Path) -> bool:
    """Whether a file begins like a safetensors file: a length, then JSON."""
    readable_file(path, "a potential", LARGEST_BYTES)
    with disk_failures(path, "read"), path.open("rb") as file:
        start = file.read(9)
    return begins_as_tensors(start)


@checked
def save(potential: PotentialModule, path: str | Path, *, overwrite: bool = False) -> None:
    """Writes a potential to one file, completely or not at all.

    Tensors are stored in float32 if that is exact, else in float64. The configuration is stored
    as JSON in the metadata of the file. Copies tensors to the CPU.

    Args:
        potential: any potential.
        path: the file to write.
        overwrite: whether it may replace an existing file.

    Raises:
        InputError: the name does not end in .safetensors.
        FileError: the file exists, or the disk refused.
    """
    path = path_argument(path, "The file of a potential")
    if path.suffix != ".safetensors":
        raise InputError(
            f"A potential is written as safetensors, not as '{path.name}'; "
            "give a name that ends in .safetensors."
        )
    refuse_existing(path, overwrite=overwrite)
    tensors = {name: _smallest(value) for name, value in potential.state_dict().items()}
    metadata = {_KEY: potential.config.model_dump_json()}
    content = serialize(tensors, metadata)
    write_atomically(path, content, new=not overwrite)


def _smallest(value: Tensor) -> Tensor:
    value = value.detach().cpu().contiguous()
    single = value.to(torch.float32)
    return single if torch.equal(single.to(value.dtype), value) else value


def read_native(path: Path) -> PotentialModule:
    """Reads a file of `save`.

    Raises:
        FileError: the file cannot be read.
        CheckpointError: the file is damaged, has other content, or is from a newer mdgraph.
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
    # A small file must not allocate a large network. Building it on torch's device "meta" would
    # detect that too, but loads torch's compiler: 5 s and 150 MB.
    if config.fewest_weights > sum(tensor.numel() for tensor in tensors.values()):
        raise CheckpointError(
            f"{path} has wrong shapes in its weights, which are fewer than the network that it "
            "describes has; copy or download it again."
        )
    potential = architecture_named(config.architecture).build(config)
    shapes = {name: value.shape for name, value in potential.state_dict().items()}
    weights = {name: source.take(name, *shape) for name, shape in shapes.items()}
    source.finish()
    potential.load_state_dict(weights)
    return potential


def _config(path: Path, text: str) -> PotentialConfig:
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
    word = fields.get("architecture", OLDEST) if isinstance(fields, dict) else OLDEST
    try:
        architecture = architecture_named(word)
    except InputError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    try:
        return architecture.config.model_validate(fields)
    except ValidationError as error:
        raise invalid_config(path, error) from error


DOMAIN_FILE: Final = "domain.safetensors"
"""Name of the file in the folder of a potential."""

_DOMAIN_KEY: Final = "mdgraph-domain"
_WEIGHTS: Final = "weights-sha256"
_FORMAT: Final = "1"


@checked
def save_domain(domain: Domain, folder: Path, *, overwrite: bool = False) -> None:
    """Writes a domain to the folder of its potential.

    Stores the SHA-256 of the weights, to which the domain belongs. Floating-point tensors are
    stored in float32.

    Raises:
        FileError: the folder has no weights, there is a domain and `overwrite` is False, or the
            disk refused.
    """
    tensors = {field.name: getattr(domain, field.name) for field in fields(domain)}
    tensors = {
        name: value.float() if value.is_floating_point() else value
        for name, value in tensors.items()
    }
    content = serialize(tensors, {_DOMAIN_KEY: _FORMAT, _WEIGHTS: file_sha256(folder / FILE_NAME)})
    target = folder / DOMAIN_FILE
    refuse_existing(target, overwrite=overwrite)
    write_atomically(target, content, new=not overwrite)


@checked
def load_domain(path_or_name: str | Path) -> Domain | None:
    """Reads the domain beside the weights of a potential; None if there is none.

    A domain that belongs to other weights is ignored with a warning.

    Raises:
        CheckpointError: the file is damaged, or is from a newer mdgraph.
        FileError: the file cannot be read.
    """
    path_argument(path_or_name, "A potential")
    path = locate(path_or_name).path
    folder = path.parent if path.name == FILE_NAME else path
    path = folder / DOMAIN_FILE
    if not path.is_file() or not (folder / FILE_NAME).is_file():
        return None
    try:
        tensors, metadata = read_tensors(path, "a domain", LARGEST_BYTES)
    except TensorFileError as error:
        raise CheckpointError(f"{path} {error}; {_AGAIN}.") from error
    if metadata.get(_DOMAIN_KEY) != _FORMAT:
        raise CheckpointError(f"{path} is of a kind that this mdgraph does not read; {_AGAIN}.")
    if not _fits(tensors):
        raise CheckpointError(f"{path} does not hold a domain; {_AGAIN}.")
    if metadata.get(_WEIGHTS) != file_sha256(folder / FILE_NAME):
        logger.warning("%s belongs to other weights and is left out; %s.", path, _AGAIN)
        return None
    return Domain(
        **{
            field.name: tensors[field.name].to(
                torch.int64 if field.name == "species" else torch.float64
            )
            for field in fields(Domain)
        }
    )


def _fits(tensors: Mapping[str, Tensor]) -> bool:
    """Whether all fields of `Domain` are present, in its shapes."""
    shapes = {name: tuple(value.shape) for name, value in tensors.items()}
    elements, widths = shapes.get("species", ()), shapes.get("mean", ())
    if len(elements) != 1 or len(widths) != 2:
        return False
    expected = {
        "species": elements,
        "neighbors": (*elements, 4),
        "shortest": elements * 2,
        "forces": (*elements, 2),
        "mean": (*elements, widths[1]),
        "factor": (widths[1] + 1,) * 2,
        "sigma": (*elements, 2),
    }
    species = tensors["species"].tolist()
    are_elements = all(0 < number < len(SYMBOLS) for number in species)
    return expected == {name: shapes.get(name) for name in expected} and are_elements


_AGAIN: Final = "measure it again with 'mdgraph domain'"


def file_sha256(path: Path) -> str:
    """Checksum of a file; raises FileError if it cannot be read."""
    with disk_failures(path, "read"), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
