"""HDF5 files that survive kills and full disks.

The library's single-writer multiple-reader mode orders its writes, so that a file is readable
at every moment: while it grows and after its writer was killed. In the ordinary mode a killed
writer leaves a file that never opens again. That mode allows no new objects; they are made
in the ordinary mode first.
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
"""More than what the library reserves behind the last byte that it has written."""

_ERRORS: Final = (OSError, RuntimeError)
"""What h5py raises where the library fails."""

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
"""What it raises, beside these, on bytes that no writer wrote."""

_LARGEST_RATIO: Final = 1100
"""Bytes of an array for each that is stored of it: zlib reaches 1,032 where all are the same."""

_SMALL: Final = 1 << 24
"""Bytes that an array may have though none are stored, as the library fills it in."""


def file_image(fill: Callable[[h5py.File], None]) -> bytes:
    """The bytes of a small file, in the oldest format that has the mode.

    Made in memory: in the ordinary mode the library cannot let go of a file on a full disk.
    """
    name = "image"  # nothing of this name appears
    file = h5py.File(name, "w", "core", ("v110", "v110"), backing_store=False)
    try:
        fill(file)
        file.flush()
        image: bytes = file.id.get_file_image()
    finally:
        close(file)
    return image


def close(file: h5py.File) -> None:
    """Closes a file of which no object is kept; closing twice is harmless.

    `File.close` looks at every HDF5 object of the process: with 1,000 files open it takes 20 ms.
    """
    if file.id.valid:
        file.id._close()


def open_to_append(path: Path, name: Path | None = None) -> h5py.File:
    """Opens a file to grow its datasets while others read.

    One call opens it and sets the mode, so there is no moment in which a kill spoils the file.

    Args:
        path: the file.
        name: by which an error calls one that is made to take its place, and that is locked.

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
    """Opens a file that is finished, being written, or left by a killed writer.

    Raises:
        FileError: the file is absent, truncated or no HDF5 file.
    """
    readable_file(path, "an HDF5 file")
    with disk_failures(path, "read"), path.open("rb") as file:
        superblock = file.read(48)
        size = os.fstat(file.fileno()).st_size
    being_written = superblock[8:9] == b"\x03" and superblock[11:12] != b"\x00"
    # The library finds a finished file truncated, but waits for the writer of an unfinished one.
    if being_written and size + _UNWRITTEN_BYTES < int.from_bytes(superblock[28:36], "little"):
        raise FileError(f"Cannot read {path}: it is truncated; copy it once more.")
    with read_failures(path):
        return h5py.File(path, "r", swmr=being_written)


def members(group: h5py.Group, path: Path) -> dict[str, h5py.Group | h5py.Dataset]:
    """What lies in a group, by name; all of it in this file, and of sizes that can be true.

    Raises:
        FileError: a link leads out of the file or nowhere, or see `check_stored`.
    """
    objects: dict[str, h5py.Group | h5py.Dataset] = {}
    for name in group:
        link = group.get(name, getlink=True)
        if isinstance(link, h5py.ExternalLink):
            raise FileError(
                f"{path} has its {_place(group, name)} in another file, {link.filename}; put all "
                "into one file, as h5copy does."
            )
        member = group.get(name)
        if member is None:
            raise FileError(
                f"{path} has a link {_place(group, name)} that leads nowhere; write the file again."
            )
        if isinstance(member, h5py.Dataset):
            check_stored(member, path)
        if isinstance(member, h5py.Group | h5py.Dataset):
            objects[str(name)] = member
    return objects


def check_stored(dataset: h5py.Dataset | h5py.Group, path: Path) -> None:
    """Refuses an array that is not in the file, or that says it is larger than it can be.

    Where parts of an array were never written, or lie in files that are gone, the library gives
    zeros without a word.

    Raises:
        FileError: it is virtual, stored outside, or larger than what is stored of it can hold.
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
    stored = dataset.id.get_storage_size()
    largest = dataset.size * dataset.dtype.itemsize
    if dataset.chunks is not None:
        largest = max(largest, math.prod(dataset.chunks) * dataset.dtype.itemsize)
    if largest > max(_SMALL, _LARGEST_RATIO * stored):
        raise FileError(
            f"{path} says that its {name} has {largest:,} bytes, of which {stored:,} are stored; "
            "it is damaged, or parts of it were never written, so write it again."
        )


def _place(group: h5py.Group, name: str) -> str:
    return f"{(group.name or '').rstrip('/')}/{name}"


@contextlib.contextmanager
def written_whole(path: Path, *, new: bool) -> Iterator[tuple[h5py.File, Callable[[], None]]]:
    """A file to be written from here to the end of the block, in the ordinary mode.

    The function beside it raises what the end of the block would; much data asks it now and then.

    Args:
        path: of a file that is thrown away where the block fails, as by `write_atomically`.
        new: whether it is empty at first.

    Raises:
        OSError: the disk refused, at the end of the block.
    """
    with _UnreportedFile(path, "w+b" if new else "r+b") as output:
        try:
            with h5py.File(output, "w" if new else "r+") as file:
                yield file, output.check
        except _ERRORS:
            output.check()
            raise
        output.check()


class _UnreportedFile(io.FileIO):
    """Takes all bytes, and those that the disk refuses go nowhere.

    The library keeps refused ones, fails again at every attempt to close and brings the process
    down at its end, so it is not told.

    Attributes:
        refused: what the disk said.
    """

    refused: OSError | None = None

    def check(self) -> None:
        """Raises what the disk said."""
        if self.refused is not None:
            raise self.refused

    def write(self, data: Any) -> int:
        left = memoryview(data).cast("B")
        size = len(left)
        try:
            while left and self.refused is None:
                left = left[super().write(left) :]
        except OSError as error:
            self.refused = error
        return size

    def truncate(self, size: int | None = None) -> int:
        try:
            return super().truncate(size)
        except OSError as error:
            self.refused = error
            return size or 0


def put_row(dataset: h5py.Dataset, index: int, value: Any) -> None:
    """Grows a dataset to `index + 1` rows, writes the last one and hands it to the system.

    Indexing the dataset instead would take three times as long. Flushing the file instead
    would go on to its superblock where the data could not be written.
    """
    row = np.asarray(value, dtype=dataset.dtype, order="C")
    dataset.id.set_extent((index + 1, *row.shape))
    place = dataset.id.get_space()
    place.select_hyperslab((index, *[0] * row.ndim), (1, *row.shape))
    dataset.id.write(h5py.h5s.create_simple((1, *row.shape)), place, row)
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
    """Turns an error of the library inside the block into a `FileError`, and lets go of the file.

    The library keeps what the disk refused, fails again at every attempt to close and brings
    the process down at its end. Once its descriptor leads nowhere the file closes in peace,
    and what is on the disk is what a kill would have left.
    """
    try:
        yield
    except _ERRORS as error:
        nowhere = os.open(os.devnull, os.O_RDWR)
        os.dup2(nowhere, file.id.get_vfd_handle())
        os.close(nowhere)
        file.close()
        raise _failure(path, "write", error) from error


def _failure(path: Path, verb: str, error: Exception) -> FileError:
    """The sentence for an error of the library, which tells `errno` in its text alone."""
    if isinstance(error, FileError):
        return error
    if isinstance(error, OSError) and error.errno is not None:
        return disk_failure(path, verb, error)
    if number := re.search(r"errno = (\d+)", str(error)):
        return disk_failure(path, verb, OSError(int(number[1]), os.strerror(int(number[1]))))
    return FileError(f"Cannot {verb} {path}: it is damaged, cut short or no HDF5 file; check it.")
