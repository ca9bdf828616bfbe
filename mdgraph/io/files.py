"""Files that appear whole or not at all, files that only grow, and what a disk refuses."""

import contextlib
import errno
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Self

from mdgraph.errors import FileError

_REASONS: Final = {
    errno.ENOENT: "there is no such file or folder; check the name",
    errno.EEXIST: "it exists already; give another name or remove it",
    errno.EISDIR: "it is a folder; give the name of a file",
    errno.ENOTDIR: "a part of its path is not a folder; check the name",
    errno.EACCES: "permission is denied; choose a place that is open to you",
    errno.EPERM: "the operation is not permitted; choose a place that is open to you",
    errno.EROFS: "the file system is read-only; choose another place",
    errno.ENOSPC: "the disk is full; free some space",
    errno.EDQUOT: "the disk quota is used up; free some space",
    errno.EFBIG: "the file would exceed the largest size allowed; raise the limit",
}


def disk_failure(path: Path, verb: str, error: OSError) -> FileError:
    """One sentence for what the operating system said about a path."""
    reason = _REASONS.get(error.errno or 0, error.strerror or str(error))
    return FileError(f"Cannot {verb} {path}: {reason}.")


@contextlib.contextmanager
def disk_failures(path: Path, verb: str) -> Iterator[None]:
    """Turns an `OSError` inside the block into a `FileError` about `path`."""
    try:
        yield
    except FileError:
        raise
    except OSError as error:
        raise disk_failure(path, verb, error) from error


def refuse_existing(path: Path) -> None:
    """Keeps a new file from replacing an old one.

    Raises:
        FileError: the path exists.
    """
    if path.exists():
        raise disk_failure(path, "write", FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST)))


def write_atomically(path: str | Path, write: Callable[[Path], object]) -> None:
    """Makes a file appear whole, replacing an older one, or not at all.

    Args:
        path: the file to appear; a symbolic link keeps pointing to it.
        write: writes the content to the path it is given, which lies in the same folder
            and has the same suffix.

    Raises:
        FileError: the disk refused, or a device or pipe has that name; what was there is
            untouched and nothing is left over.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not (target.is_file() or target.is_dir()):
        # Under an account that may do so, a rename would put a file in the device's place.
        raise FileError(f"Cannot write {path}: it is no ordinary file; give another name.")
    temporary = target.with_name(f".{target.stem}.{secrets.token_hex(4)}{target.suffix}")
    with disk_failures(Path(path), "write"):
        try:
            write(temporary)
            sync_file(temporary)
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
        sync_file(target.parent)


def sync_file(path: Path) -> None:
    """Waits until a file, or the entries of a folder, would survive a loss of power."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class AppendedFile:
    """A file that grows by whole records: a record that cannot be written leaves no trace.

    Records reach the operating system at once, so they survive the death of the process;
    `sync` makes them survive a loss of power.

    Attributes:
        path: where the file is.
    """

    def __init__(self, path: Path, size: int) -> None:
        """Opens a file and cuts it to its first bytes; to none, it is created where there is none.

        Raises:
            FileError: the disk refused, or the file is shorter or absent.
        """
        self.path = path
        self._size = size
        with disk_failures(path, "write"):
            new = 0 if size else os.O_CREAT
            self._descriptor = os.open(path, os.O_WRONLY | new, 0o666)
            if os.fstat(self._descriptor).st_size < size:
                self.close()
                raise FileError(f"{path} lacks what was written last; put back the original.")
            os.ftruncate(self._descriptor, size)

    def append(self, record: bytes) -> None:
        """Writes one record whole.

        Raises:
            FileError: the disk refused; the file ends with the record before.
        """
        start = self._size
        with disk_failures(self.path, "write"):
            try:
                remaining = memoryview(record)
                while remaining:
                    written = os.pwrite(self._descriptor, remaining, self._size)
                    self._size += written
                    remaining = remaining[written:]
                start = self._size
            finally:
                # Also when a signal's exception interrupts a long record.
                if self._size != start:
                    os.ftruncate(self._descriptor, start)
                    self._size = start

    def sync(self) -> None:
        """Waits until all records would survive a loss of power."""
        with disk_failures(self.path, "write"):
            os.fsync(self._descriptor)

    def close(self) -> None:
        """Closes the file; closing twice is harmless."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            with disk_failures(self.path, "write"):
                os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
