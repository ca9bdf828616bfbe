"""Writes safetensors files with a checksum of their content, and checks it when it reads them."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from mdgraph.io.files import disk_failures, readable_file

CHECKSUM: Final = "mdgraph-sha256"
"""Metadata key of the checksum; files of earlier releases have no checksum."""


class TensorFileError(Exception):
    """A file is damaged; the message is a sentence without its subject, the path."""


def begins_as_tensors(start: bytes) -> bool:
    """Whether the first bytes, at least nine, are those of safetensors: a length, then JSON."""
    return len(start) >= 9 and start[8:9] == b"{" and start[:4] != b"PK\x03\x04"


def serialize(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    """The bytes of a file, equal for equal content; copies tensors to the CPU."""
    host = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    # `save_file` of the library hides errors of the disk.
    content = save(host, {**metadata, CHECKSUM: _checksum(host, metadata)})
    # The library writes metadata in an order that varies between processes.
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + content[end:]


def read_tensors(
    path: Path, description: str, largest_bytes: int | None = None
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """All tensors of a file, on the CPU, and its metadata without the checksum.

    Args:
        path: the file.
        description: see `readable_file`.
        largest_bytes: see `readable_file`.

    Raises:
        FileError: the file cannot be read.
        TensorFileError: it is not a complete safetensors file, or its checksum is wrong.
    """
    readable_file(path, description, largest_bytes)
    with disk_failures(path, "read"):
        try:
            with safe_open(path, framework="pt") as file:
                metadata = dict(file.metadata() or {})
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        # The other classes are for invalid Unicode, and for dtypes that torch lacks.
        except (SafetensorError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise TensorFileError("is not a whole safetensors file") from error
    checksum = metadata.pop(CHECKSUM, None)
    if checksum is not None and checksum != _checksum(tensors, metadata):
        raise TensorFileError("changed since it was written: its checksum does not hold")
    return tensors, metadata


def _checksum(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    """SHA-256 of metadata, names, dtypes, shapes and numbers, sorted by name."""
    digest = hashlib.sha256()
    for key, text in sorted(metadata.items()):
        digest.update(repr((key, text)).encode())
    for name, value in sorted(tensors.items()):
        digest.update(repr((name, str(value.dtype), tuple(value.shape))).encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
