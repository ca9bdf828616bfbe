"""HDF5 files that survive kills and full disks.

In the single-writer multiple-reader (SWMR) mode the library orders its writes, so a file is
readable while it grows and after its writer was killed. In the ordinary mode a killed writer
leaves a file that cannot be opened again. SWMR mode does not allow new objects, so they are
created in the ordinary mode first.
"""

import contextlib
import io
import math
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import h5py
import numpy as np

from mdgraph.errors import FileError, MDGraphError
from mdgraph.io.files import disk_failure, disk_failures, readable_file

_UNWRITTEN_BYTES: Final = 1 << 13
"""Bytes; the library reserves fewer behind the last byte that it has written."""

_ERRORS: Final = (OSError, RuntimeError)
"""Errors that h5py raises if the library fails."""

_READ_ERRORS: Final = (
    *_ERRORS,
    LookupError,
    ValueError,
    TypeError,
    AttributeError,
    AssertionError,
    ArithmeticError,
    MemoryError,
)
"""Errors that h5py raises on damaged files."""

_LARGEST_RATIO: Final = 1100
"""Largest accepted compression ratio: zlib reaches 1,032 if all bytes are the same."""

_SMALL: Final = 1 << 24
"""Size in bytes that an array may have at any ratio, as the library fills in missing chunks."""


def file_image(fill: Callable[[h5py.File], None]) -> bytes:
    """The bytes of a small file, in the oldest format with SWMR mode.

    It is made in memory, as the library cannot close a file in the ordinary mode on a full disk.
    """
    name = "image"  # no file of this name is written
    file = h5py.File(name, "w", "core", ("v110", "v110"), backing_store=False)
    try:
        fill(file)
        file.flush()
        image: bytes = file.id.get_file_image()
    finally:
        close(file)
    return image


def close(file: h5py.File) -> None:
    """Closes a file that has no open objects; closing twice is harmless.

    `File.close` visits every HDF5 object of the process: with 1,000 open files it takes 20 ms.
    """
    if file.id.valid:
        file.id._close()


def open_to_append(path: Path, name: Path | None = None) -> h5py.File:
    """Opens a file in SWMR mode to append to its datasets while others read.

    One call opens the file and sets the mode, so a kill at any moment leaves a readable file.

    Args:
        path: the file.
        name: set for a temporary file of `replacing`: the path that errors name. HDF5 does not
            lock such a file, as `replacing` does.

    Raises:
        FileError: the file is damaged, or the disk refused.
    """
    access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    access.set_libver_bounds(h5py.h5f.LIBVER_V110, h5py.h5f.LIBVER_V110)
    if name is not None:
        access.set_file_locking(False, True)
    flags = h5py.h5f.ACC_RDWR | h5py.h5f.ACC_SWMR_WRITE
    try:
        return h5py.File(h5py.h5f.open(os.fsencode(path), flags, access))
    except _ERRORS as error:
        raise _failure(name or path, "write", error) from error


def open_to_read(path: Path) -> h5py.File:
    """Opens a file that is complete, being written, or left by a killed writer.

    Raises:
        FileError: the file is absent, truncated or not an HDF5 file.
    """
    readable_file(path, "an HDF5 file")
    with disk_failures(path, "read"), path.open("rb") as file:
        superblock = file.read(48)
        size = os.fstat(file.fileno()).st_size
    being_written = superblock[8:9] == b"\x03" and superblock[11:12] != b"\x00"
    # The library detects that a complete file is truncated, but not one being written.
    if being_written and size + _UNWRITTEN_BYTES < int.from_bytes(superblock[28:36], "little"):
        raise FileError(f"Cannot read {path}: it is truncated; copy it once more.")
    with read_failures(path):
        return h5py.File(path, "r", swmr=being_written)


def members(group: h5py.Group, path: Path) -> dict[str, h5py.Group | h5py.Dataset]:
    """The groups and datasets of a group by name; checks that they are stored in this file.

    Raises:
        FileError: a link leads out of the file or nowhere; see also `check_stored`.
    """
    objects: dict[str, h5py.Group | h5py.Dataset] = {}
    for name in group:
        link = group.get(name, getlink=True)
        if isinstance(link, h5py.ExternalLink):
            raise FileError(
                f"{path} has its {_object_path(group, name)} in another file, {link.filename}; put "
                "all into one file, as h5copy does."
            )
        member = group.get(name)
        if member is None:
            raise FileError(
                f"{path} has a link {_object_path(group, name)} that leads nowhere; write the file "
                "again."
            )
        if isinstance(member, h5py.Dataset):
            check_stored(member, path)
        if isinstance(member, h5py.Group | h5py.Dataset):
            objects[str(name)] = member
    return objects


def check_stored(dataset: h5py.Dataset | h5py.Group, path: Path) -> None:
    """Checks that an array is stored in the file and not larger than its stored bytes can hold.

    The library silently returns zeros for parts that were never written or that are in missing
    files.

    Raises:
        FileError: the array is virtual, in another file, or larger than its stored bytes allow.
    """
    if not isinstance(dataset, h5py.Dataset):
        raise FileError(f"{path} has no array where {dataset.name} is; write the file again.")
    name = dataset.name
    if dataset.is_virtual or dataset.external:
        raise FileError(
            f"{path} has the numbers of {name} in other files; put all into one file, as h5repack "
            "does."
        )
    if dataset.shape is None:
        raise FileError(f"{path} has a {name} without numbers; write the file again.")
    stored_bytes = dataset.id.get_storage_size()
    largest = dataset.size * dataset.dtype.itemsize
    if dataset.chunks is not None:
        largest = max(largest, math.prod(dataset.chunks) * dataset.dtype.itemsize)
    if largest > max(_SMALL, _LARGEST_RATIO * stored_bytes):
        raise FileError(
            f"{path} says that its {name} has {largest:,} bytes, of which {stored_bytes:,} are "
            "stored; it is damaged, or parts of it were never written, so write it again."
        )


def _object_path(group: h5py.Group, name: str) -> str:
    return f"{(group.name or '').rstrip('/')}/{name}"


@contextlib.contextmanager
def open_to_write(path: Path, *, new: bool) -> Iterator[tuple[h5py.File, Callable[[], None]]]:
    """Opens a file for the block in the ordinary mode.

    Args:
        path: a temporary file, which the caller removes if the block fails.
        new: whether to create the file.

    Yields:
        The file, and a function that raises the error of the disk, if there is one. Call it
        between parts of large data to stop early.

    Raises:
        OSError: the disk refused; raised at the end of the block.
    """
    with _SilentFile(path, "w+b" if new else "r+b") as output:
        try:
            with h5py.File(output, "w" if new else "r+") as file:
                yield file, output.check
        except _ERRORS:
            output.check()
            raise
        output.check()


class _SilentFile(io.FileIO):
    """A file that stores the first error of the disk instead of raising it.

    If a write fails, the library keeps the data, fails again at every attempt to close the file
    and crashes the process at exit. It must not see the error.

    Attributes:
        error: the error of the disk, or None.
    """

    error: OSError | None = None

    def check(self) -> None:
        """Raises the error of the disk, if there is one."""
        if self.error is not None:
            raise self.error

    def write(self, data: Any) -> int:
        remaining = memoryview(data).cast("B")
        size = len(remaining)
        try:
            while remaining and self.error is None:
                remaining = remaining[super().write(remaining) :]
        except OSError as error:
            self.error = error
        return size

    def truncate(self, size: int | None = None) -> int:
        try:
            return super().truncate(size)
        except OSError as error:
            self.error = error
            return size or 0


def put_row(dataset: h5py.Dataset, index: int, value: Any) -> None:
    """Grows a dataset to `index + 1` rows, writes the last one and flushes the dataset.

    Indexing the dataset takes three times as long. Flushing the file would write its superblock
    even if the data could not be written.
    """
    row = np.asarray(value, dtype=dataset.dtype, order="C")
    dataset.id.set_extent((index + 1, *row.shape))
    space = dataset.id.get_space()
    space.select_hyperslab((index, *[0] * row.ndim), (1, *row.shape))
    dataset.id.write(h5py.h5s.create_simple((1, *row.shape)), space, row)
    dataset.flush()


@contextlib.contextmanager
def read_failures(path: Path) -> Iterator[None]:
    """Turns an error of the library inside the block into a `FileError` about `path`."""
    try:
        yield
    except MDGraphError:
        raise
    except _READ_ERRORS as error:
        raise _failure(path, "read", error) from error


@contextlib.contextmanager
def write_failures(path: Path, file: h5py.File) -> Iterator[None]:
    """Turns an error of the library inside the block into a `FileError`, and closes the file.

    If a write fails, the library keeps the data, fails again at every attempt to close the file
    and crashes the process at exit. So the descriptor is redirected to the null device before
    the file is closed. The file on the disk is then as after a kill.
    """
    try:
        yield
    except _ERRORS as error:
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, file.id.get_vfd_handle())
        os.close(null)
        file.close()
        raise _failure(path, "write", error) from error


def _failure(path: Path, verb: str, error: Exception) -> FileError:
    """The FileError for an error of the library, which may state `errno` in its text only."""
    if isinstance(error, FileError):
        return error
    if isinstance(error, OSError) and error.errno is not None:
        return disk_failure(path, verb, error)
    if number := re.search(r"errno = (\d+)", str(error)):
        return disk_failure(path, verb, OSError(int(number[1]), os.strerror(int(number[1]))))
    return FileError(f"Cannot {verb} {path}: it is damaged, cut short or no HDF5 file; check it.")
