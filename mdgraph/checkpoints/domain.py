"""The domain of a potential, in a file beside its weights."""

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from mdgraph.arguments import checked
from mdgraph.checkpoints.native import FILE_NAME, LARGEST_BYTES
from mdgraph.checkpoints.registry import shipped_potentials
from mdgraph.elements import SYMBOLS
from mdgraph.errors import CheckpointError
from mdgraph.io.files import disk_failures, path_given, refuse_existing, write_atomically
from mdgraph.io.tensor_files import TensorFileError, read_tensors, serialized
from mdgraph.models import Domain

logger = logging.getLogger(__name__)

DOMAIN_FILE: Final = "domain.safetensors"
"""What the file is called within the folder of a potential."""

_DOMAIN_KEY: Final = "mdgraph-domain"
_WEIGHTS: Final = "weights-sha256"
_FORMAT: Final = "1"


@checked
def save_domain(domain: Domain, folder: Path, *, overwrite: bool = False) -> None:
    """Writes a domain beside the weights in a folder, which it is tied to; float32 but species.

    Raises:
        FileError: there are no weights, or there is a domain which may not be replaced, or the
            disk refused.
    """
    tensors = {field.name: getattr(domain, field.name) for field in fields(domain)}
    tensors = {
        name: value.float() if value.is_floating_point() else value
        for name, value in tensors.items()
    }
    content = serialized(tensors, {_DOMAIN_KEY: _FORMAT, _WEIGHTS: _sha256(folder / FILE_NAME)})
    target = folder / DOMAIN_FILE
    refuse_existing(target, overwrite=overwrite)
    write_atomically(target, lambda path: path.write_bytes(content), new=not overwrite)


@checked
def load_domain(path_or_name: str | Path) -> Domain | None:
    """Reads what lies beside the weights that `load` reads from there; None where nothing does.

    A domain of other weights is left out with a warning.

    Raises:
        CheckpointError: the file is damaged, or a newer mdgraph wrote it.
        FileError: it cannot be read.
    """
    path_given(path_or_name, "A potential")
    shipped = shipped_potentials()
    if str(path_or_name) in shipped and not isinstance(path_or_name, Path):
        folder = shipped[path_or_name]
    else:
        path = Path(path_or_name).expanduser()
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
    if metadata.get(_WEIGHTS) != _sha256(folder / FILE_NAME):
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
    """Whether each field is there, in the shape that `Domain` says."""
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
    known = all(0 < number < len(SYMBOLS) for number in species)
    return expected == {name: shapes.get(name) for name in expected} and known


_AGAIN: Final = "measure it again with 'mdgraph domain'"


def _sha256(path: Path) -> str:
    with disk_failures(path, "read"), path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
