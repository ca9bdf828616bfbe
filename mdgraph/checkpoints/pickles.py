"""Files that other programs wrote by `torch.save`, read without running anything from them."""

import argparse
import pathlib
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import serialization

from mdgraph.checkpoints.native import LARGEST_BYTES
from mdgraph.errors import CheckpointError, name_some, printable
from mdgraph.io.files import disk_failures, readable_file

_Allowed = list[Callable[..., Any] | tuple[Callable[..., Any], str]]

# NumPy 1 and 2, and Python before, in and after 3.13, name the same things differently.
_NUMPY_MODULES: Final = ("numpy._core.multiarray", "numpy.core.multiarray")
_PATH_MODULES: Final = ("pathlib", "pathlib._local")
_SCALAR_CODES: Final = "?bhilqBHILQefdgFDGSUMm"

_LARGEST_RATIO: Final = 20
"""Bytes that an archive may hold for each of its own: `torch.save` does not compress."""

_MOST_PARTS: Final = 100_000
"""Of an archive: one a tensor."""

# The list of allowed classes is one for the process, so loads take turns.
_TURN: Final = threading.Lock()


def _scalars() -> _Allowed:
    """What rebuilds a NumPy scalar: the function, the dtype and its class for each kind."""
    scalar: Any = np.float64(0.0).__reduce__()[0]
    functions = [(scalar, f"{module}.scalar") for module in _NUMPY_MODULES]
    kinds = {type(np.dtype(code)) for code in _SCALAR_CODES}
    classes = [(kind, f"numpy.dtypes.{kind.__name__}") for kind in kinds]
    return [*functions, (np.dtype, "numpy.dtype"), *classes]


def _arrays() -> _Allowed:
    rebuild: Any = np.zeros(1).__reduce__()[0]
    functions = [(rebuild, f"{module}._reconstruct") for module in _NUMPY_MODULES]
    return [*functions, (np.ndarray, "numpy.ndarray")]


def _paths() -> _Allowed:
    """A path of another operating system has no class here, so all become pure ones."""
    flavours = (("Posix", pathlib.PurePosixPath), ("Windows", pathlib.PureWindowsPath))
    return [
        (pure, f"{module}.{prefix}{flavour}Path")
        for module in _PATH_MODULES
        for flavour, pure in flavours
        for prefix in ("", "Pure")
    ]


@contextmanager
def _only(allowed: _Allowed) -> Iterator[None]:
    """Replaces the process's list of allowed classes, and puts it back afterwards."""
    with _TURN:
        before = serialization.get_safe_globals()
        serialization.clear_safe_globals()
        serialization.add_safe_globals(allowed)
        try:
            yield
        finally:
            serialization.clear_safe_globals()
            serialization.add_safe_globals(before)


def read_pickle(path: Path, arrays: bool = False) -> Any:
    """Reads a file of `torch.save`, onto the CPU.

    Besides tensors and plain Python values it may hold argparse.Namespace, pathlib's paths
    (which become pure paths) and NumPy scalars; nothing else is ever called.

    Args:
        path: the file.
        arrays: whether NumPy arrays are allowed as well.

    Raises:
        FileError: the file cannot be read.
        CheckpointError: it is not such a file, is damaged, or holds other classes.
    """
    with disk_failures(path, "read"):
        _check_archive(path)
        allowed = [(argparse.Namespace, "argparse.Namespace"), *_paths(), *_scalars()]
        with _only([*allowed, *_arrays()] if arrays else allowed):
            # By name torch would choose another reader for what is called .safetensors.
            try:
                with path.open("rb") as file:
                    foreign = serialization.get_unsafe_globals_in_checkpoint(file)
                    file.seek(0)
                    if not foreign:
                        return torch.load(file, map_location="cpu", weights_only=True)
            except OSError:
                raise
            # Bytes that no writer wrote may end in any error of the unpickler's.
            except Exception as error:
                reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
                raise CheckpointError(
                    f"{path} is a torch file that cannot be read safely "
                    f"({printable(reason, 300)}); load it with the program that "
                    "wrote it and save only its state_dict and plain hyper-parameters."
                ) from error
    raise CheckpointError(
        f"{path} holds {name_some(sorted(foreign))}, which is refused because loading it could "
        "run code; load the file with the program that wrote it and save it again without."
    )


def _check_archive(path: Path) -> None:
    """Raises CheckpointError for everything but an undamaged archive of `torch.save`."""
    readable_file(path, "a potential", LARGEST_BYTES)
    with path.open("rb") as file:
        start = file.read(4)
    if not start:
        raise CheckpointError(f"{path} is empty; copy or download the checkpoint again.")
    try:
        with zipfile.ZipFile(path) as archive:
            parts = archive.infolist()
            names = [part.filename for part in parts]
            unpacked = sum(part.file_size for part in parts)
            bounded = unpacked <= _LARGEST_RATIO * path.stat().st_size + (1 << 20)
            damaged = archive.testzip() if bounded and len(parts) <= _MOST_PARTS else None
    # Bytes that no writer wrote may end in any error of the library's.
    except Exception as error:
        if start == b"PK\x03\x04":
            raise CheckpointError(
                f"{path} is truncated or damaged; copy or download the checkpoint again."
            ) from error
        raise CheckpointError(
            f"{path} is not a checkpoint: neither an archive of torch.save nor a safetensors "
            "file; give a TorchMD-Net .ckpt, a MatGL folder or a potential of mdgraph."
        ) from error
    if not bounded or len(parts) > _MOST_PARTS:
        raise CheckpointError(
            f"{path} is an archive of {len(parts)} parts that says it unpacks to "
            f"{unpacked:,} bytes, which no checkpoint does; give the file that training wrote."
        )
    if damaged is not None:
        raise CheckpointError(
            f"{path} is damaged in its part {damaged}; copy or download the checkpoint again."
        )
    if any(Path(name).name == "constants.pkl" for name in names):
        raise CheckpointError(
            f"{path} is a TorchScript program, not a checkpoint; give the .ckpt it was made from."
        )
    if not any(Path(name).name == "data.pkl" for name in names):
        raise CheckpointError(
            f"{path} is a zip archive of other files ({name_some(names, 3)}); "
            "unpack it and give one checkpoint from it."
        )
