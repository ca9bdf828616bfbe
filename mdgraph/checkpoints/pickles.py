"""Reads files of `torch.save` from other programs without running code from them."""

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

# Module names differ between NumPy 1 and 2, and between Python releases around 3.13.
_NUMPY_MODULES: Final = ("numpy._core.multiarray", "numpy.core.multiarray")
_PATH_MODULES: Final = ("pathlib", "pathlib._local")
_SCALAR_CODES: Final = "?bhilqBHILQefdgFDGSUMm"

_LARGEST_RATIO: Final = 20
"""Largest accepted ratio of unpacked to packed size; `torch.save` does not compress."""

_MOST_PARTS: Final = 100_000
"""Most parts of an archive; each tensor is one part."""

# torch has one list of allowed classes per process.
_LOCK: Final = threading.Lock()


def _scalars() -> _Allowed:
    """Functions and classes that rebuild NumPy scalars of all dtypes."""
    scalar: Any = np.float64(0.0).__reduce__()[0]
    functions = [(scalar, f"{module}.scalar") for module in _NUMPY_MODULES]
    dtypes = {type(np.dtype(code)) for code in _SCALAR_CODES}
    classes = [(dtype, f"numpy.dtypes.{dtype.__name__}") for dtype in dtypes]
    return [*functions, (np.dtype, "numpy.dtype"), *classes]


def _arrays() -> _Allowed:
    rebuild: Any = np.zeros(1).__reduce__()[0]
    functions = [(rebuild, f"{module}._reconstruct") for module in _NUMPY_MODULES]
    return [*functions, (np.ndarray, "numpy.ndarray")]


def _paths() -> _Allowed:
    """Pure path classes in place of all path classes, as paths may be of another system."""
    flavours = (("Posix", pathlib.PurePosixPath), ("Windows", pathlib.PureWindowsPath))
    return [
        (pure, f"{module}.{prefix}{flavour}Path")
        for module in _PATH_MODULES
        for flavour, pure in flavours
        for prefix in ("", "Pure")
    ]


@contextmanager
def _allow_only(allowed: _Allowed) -> Iterator[None]:
    """Replaces the list of allowed classes of the process during the block."""
    with _LOCK:
        previous = serialization.get_safe_globals()
        serialization.clear_safe_globals()
        serialization.add_safe_globals(allowed)
        try:
            yield
        finally:
            serialization.clear_safe_globals()
            serialization.add_safe_globals(previous)


def read_pickle(path: Path, arrays: bool = False) -> Any:
    """Reads a file of `torch.save`; tensors are on the CPU.

    Besides tensors and plain Python values, the file may hold argparse.Namespace, pathlib's paths
    (they become pure paths) and NumPy scalars. Nothing else is called.

    Args:
        path: the file.
        arrays: whether NumPy arrays are allowed.

    Raises:
        FileError: the file cannot be read.
        CheckpointError: the file is not from `torch.save`, is damaged, or holds other classes.
    """
    with disk_failures(path, "read"):
        _check_archive(path)
        allowed = [(argparse.Namespace, "argparse.Namespace"), *_paths(), *_scalars()]
        with _allow_only([*allowed, *_arrays()] if arrays else allowed):
            # Given a path, torch would choose another reader for the suffix .safetensors.
            try:
                with path.open("rb") as file:
                    foreign = serialization.get_unsafe_globals_in_checkpoint(file)
                    file.seek(0)
                    if not foreign:
                        return torch.load(file, map_location="cpu", weights_only=True)
            except OSError:
                raise
            # On a damaged file the unpickler raises errors of any class.
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
    """Raises CheckpointError if a file is not an undamaged archive of `torch.save`."""
    readable_file(path, "a potential", LARGEST_BYTES)
    with path.open("rb") as file:
        start = file.read(4)
    if not start:
        raise CheckpointError(f"{path} is empty; copy or download the checkpoint again.")
    try:
        with zipfile.ZipFile(path) as archive:
            parts = archive.infolist()
            names = [part.filename for part in parts]
            unpacked_size = sum(part.file_size for part in parts)
            is_bounded = unpacked_size <= _LARGEST_RATIO * path.stat().st_size + (1 << 20)
            damaged_part = archive.testzip() if is_bounded and len(parts) <= _MOST_PARTS else None
    # On a damaged file the library raises errors of any class.
    except Exception as error:
        if start == b"PK\x03\x04":
            raise CheckpointError(
                f"{path} is truncated or damaged; copy or download the checkpoint again."
            ) from error
        raise CheckpointError(
            f"{path} is not a checkpoint: neither an archive of torch.save nor a safetensors "
            "file; give a TorchMD-Net .ckpt, a MatGL folder or a potential of mdgraph."
        ) from error
    if not is_bounded or len(parts) > _MOST_PARTS:
        raise CheckpointError(
            f"{path} is an archive of {len(parts)} parts that says it unpacks to "
            f"{unpacked_size:,} bytes, which no checkpoint does; give the file that training wrote."
        )
    if damaged_part is not None:
        raise CheckpointError(
            f"{path} is damaged in its part {damaged_part}; copy or download the checkpoint again."
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
