"""Files that other programs wrote by `torch.save`, read without running anything from them."""

import argparse
import pathlib
import pickle
import threading
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import serialization

from mdgraph.errors import CheckpointError, name_some
from mdgraph.io.files import disk_failures

_Allowed = list[Callable[..., Any] | tuple[Callable[..., Any], str]]

# NumPy 1 and 2, and Python before, in and after 3.13, name the same things differently.
_NUMPY_MODULES: Final = ("numpy._core.multiarray", "numpy.core.multiarray")
_PATH_MODULES: Final = ("pathlib", "pathlib._local")
_SCALAR_CODES: Final = "?bhilqBHILQefdgFDGSUMm"

# What the readers raise on bytes that no writer wrote.
_DAMAGE: Final = (zipfile.BadZipFile, EOFError, RuntimeError, UnicodeDecodeError, zlib.error)
_UNREADABLE: Final = (
    pickle.UnpicklingError,
    EOFError,
    RuntimeError,
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
)

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
            try:
                foreign = serialization.get_unsafe_globals_in_checkpoint(path)
                if not foreign:
                    return torch.load(path, map_location="cpu", weights_only=True)
            except _UNREADABLE as error:
                raise CheckpointError(
                    f"{path} is a torch file that cannot be read safely "
                    f"({str(error).splitlines()[0].rstrip('.')}); load it with the program that "
                    "wrote it and save only its state_dict and plain hyper-parameters."
                ) from error
    raise CheckpointError(
        f"{path} holds {name_some(sorted(foreign))}, which is refused because loading it could "
        "run code; load the file with the program that wrote it and save it again without."
    )


def _check_archive(path: Path) -> None:
    """Raises CheckpointError for everything but an undamaged archive of `torch.save`."""
    with path.open("rb") as file:
        start = file.read(4)
    if not start:
        raise CheckpointError(f"{path} is empty; copy or download the checkpoint again.")
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            damaged = archive.testzip()
    except _DAMAGE as error:
        if start == b"PK\x03\x04":
            raise CheckpointError(
                f"{path} is truncated or damaged; copy or download the checkpoint again."
            ) from error
        raise CheckpointError(
            f"{path} is not a checkpoint: neither an archive of torch.save nor a safetensors "
            "file; give a TorchMD-Net .ckpt, a MatGL folder or a potential of mdgraph."
        ) from error
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
