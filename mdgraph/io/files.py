"""Checked reading, atomic writing and appending of files.

Input files are read through `readable_file`, `read_file` or `read_decompressed`. Pipes, devices
and files that are too large raise an error before anything is read.
"""

import bz2
import contextlib
import errno
import fcntl
import gzip
import lzma
import operator
import os
import re
import secrets
import stat
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Final, Self

from mdgraph.errors import FileError, InputError, printable

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
    errno.ENAMETOOLONG: "its name, or a part of its path, is too long; choose a shorter one",
    errno.ELOOP: "its symbolic links go round in a circle; give the file itself",
    errno.EFBIG: "the file would exceed the largest size allowed; raise the limit",
}

_OTHER_TYPES: Final = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)
"""Types of paths that are not regular files, with their names in errors."""

_LONGEST_NAME: Final = 500
"""Most characters of a path in an error."""

COMPRESSIONS: Final[dict[str, Callable[[Path], Any]]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
}
"""Function that opens a compressed file, by suffix."""

_MARKS: Final = {".gz": b"\x1f\x8b", ".bz2": b"BZh9", ".xz": b"\xfd7zXZ\0"}
"""First bytes of compressed files."""

_LARGEST_RATIO: Final = 200
"""Largest accepted ratio of unpacked to packed size; text of numbers has 2 to 50."""

LARGEST_TEXT: Final = 1 << 32
"""Largest accepted text file, bytes."""

UTF8_MARK: Final = b"\xef\xbb\xbf"
"""Mark that some editors put before text in UTF-8."""

_PART: Final = 1 << 22
"""Bytes read at a time."""

_SMALL: Final = 1 << 28
"""Unpacked size that is accepted at any ratio, bytes."""


def path_argument(value: object, name: str) -> Path:
    """Converts an argument to a path; raises InputError if it is neither a text nor a path."""
    if not isinstance(value, str | os.PathLike):
        raise InputError(
            f"{name} is named by a text or a pathlib.Path, not by {type(value).__name__}."
        )
    return Path(value)


def readable_file(path: str | Path, description: str, largest_bytes: int | None = None) -> Path:
    """Checks that a path is a regular, readable file that is not too large, and returns it.

    Never waits for a pipe or a device.

    Args:
        path: the file.
        description: words for the expected file with their article, for errors: `a structure`.
        largest_bytes: largest accepted size; None for no limit.

    Raises:
        FileError: the file does not exist, is a folder, pipe, socket or device, is not
            readable, is too large, or has an invalid name.
    """
    _open(path, description, largest_bytes).close()
    return Path(path)


def read_file(path: str | Path, description: str, largest_bytes: int) -> bytes:
    """The content of a file; checks and errors are those of `readable_file`."""
    with _open(path, description, largest_bytes) as file, disk_failures(Path(path), "read"):
        content = _read_up_to(file, largest_bytes + 1)
    if len(content) > largest_bytes:
        raise _too_large(path, description, largest_bytes)
    return content


def largest_unpacked(path: Path) -> int:
    """Bytes that a packed file may unpack to."""
    return max(_SMALL, _LARGEST_RATIO * path.stat().st_size)


def read_decompressed(path: str | Path, description: str, largest_bytes: int) -> bytes:
    """The content of a file, decompressed if its suffix is one of `COMPRESSIONS`.

    `largest_bytes` limits the size of the file and of its content.

    Raises:
        FileError: see `readable_file`; or the archive is damaged or unpacks to too much.
    """
    path = readable_file(path, description, largest_bytes)
    open_compressed = COMPRESSIONS.get(path.suffix.lower())
    if open_compressed is None:
        return read_file(path, description, largest_bytes)
    bound = min(largest_bytes, largest_unpacked(path))
    try:
        with open_compressed(path) as file:
            content = _read_up_to(file, bound + 1)
    except (EOFError, OSError, lzma.LZMAError, zlib.error) as error:
        compression = path.suffix.lower()[1:]
        raise FileError(
            f"Cannot read {_text(path)}: it is not a complete {compression} archive ({error}); "
            "compress the file once more, or copy it again."
        ) from error
    if len(content) > bound:
        raise FileError(
            f"Cannot read {_text(path)}: it unpacks to more than {_size(bound)}, which is more "
            f"than {description} holds; unpack it and see what is in it."
        )
    return content


def as_text(path: str | Path, content: bytes) -> str:
    """Decodes a file as UTF-8, or as Latin-1 if it is not valid UTF-8.

    Raises:
        FileError: the content is UTF-16, compressed, or not a text.
    """
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise FileError(f"Cannot read {_text(path)}: its text is UTF-16; save it as UTF-8.")
    for suffix, mark in _MARKS.items():
        if content.startswith(mark):
            raise FileError(
                f"Cannot read {_text(path)}: it is compressed; unpack it, or end the name of the "
                f"file in {suffix}."
            )
    if b"\0" in content:
        line = content.count(b"\n", 0, content.index(b"\0")) + 1
        raise FileError(
            f"Cannot read {_text(path)}: line {line} holds bytes of zero, so it is not text; check "
            "what the file is."
        )
    content = content.removeprefix(UTF8_MARK)
    try:
        return content.decode()
    except UnicodeDecodeError:
        return content.decode("latin-1")


def _read_up_to(file: IO[bytes], size: int) -> bytes:
    """Reads at most `size` bytes, in parts, as one large `read` allocates the full size at once.

    The size of the file is not used: files of the kernel, as in /proc, report zero.
    """
    parts: list[bytes] = []
    while size > 0 and (part := file.read(min(size, _PART))):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _open(path: str | Path, description: str, largest_bytes: int | None) -> IO[bytes]:
    """Opens a file after the checks of `readable_file`."""
    path = Path(path)
    try:
        status = path.stat()
        for has_type, type_name in _OTHER_TYPES:
            if has_type(status.st_mode):
                raise FileError(
                    f"Cannot read {_text(path)}: it is {type_name}, no file; give the name of a "
                    f"file that holds {description}."
                )
        if largest_bytes is not None and status.st_size > largest_bytes:
            raise _too_large(path, description, largest_bytes, status.st_size)
        # O_NONBLOCK: after `stat` another program may replace the file by a pipe.
        return os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    except FileError:
        raise
    except OSError as error:
        raise disk_failure(path, "read", error) from error
    except ValueError as error:  # a NUL, or characters that the file system cannot store
        raise FileError(
            f"Cannot read {_text(path)}: no file can have that name; check it."
        ) from error


def _too_large(
    path: str | Path, description: str, bound: int, size: int | None = None
) -> FileError:
    actual = "more" if size is None else _size(size)
    return FileError(
        f"Cannot read {_text(path)}: it has {actual}, where {description} has at most "
        f"{_size(bound)}; give the right file, or one that holds less."
    )


def _size(number: int) -> str:
    """A size in bytes as text, such as `1.5 MB`."""
    for unit, bytes_a_unit in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if number >= bytes_a_unit:
            value = number / bytes_a_unit
            return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"
    return f"{number} bytes"


def _text(path: str | Path) -> str:
    return printable(path, _LONGEST_NAME)


def disk_failure(path: Path, verb: str, error: OSError) -> FileError:
    """The FileError for an error of the operating system about a path."""
    reason = _REASONS.get(error.errno or 0, error.strerror or str(error))
    return FileError(f"Cannot {verb} {_text(path)}: {reason}.")


@contextlib.contextmanager
def disk_failures(path: Path, verb: str) -> Iterator[None]:
    """Turns an `OSError` inside the block into a `FileError` about `path`."""
    try:
        yield
    except FileError:
        raise
    except OSError as error:
        raise disk_failure(path, verb, error) from error


def refuse_existing(
    path: Path, *, overwrite: bool = False, option: bool = False, resumable: bool = False
) -> None:
    """Checks that a path is free, or may be overwritten.

    Args:
        path: the file to write.
        overwrite: whether it may replace an existing file.
        option: whether the error names `--overwrite`.
        resumable: whether it names `--resume` before that.

    Raises:
        FileError: the path exists and may not be replaced.
    """
    _refuse_standard_output(path)
    with disk_failures(path, "write"):
        if overwrite or not path.exists():
            return
    if option and not path.is_dir() and not path.is_file():
        raise FileError(f"Cannot write {path}: it is not a regular file; give another name.")
    if option and path.is_file():
        first = "continue where it ends with --resume, " if resumable else ""
        raise FileError(
            f"{path} exists already; {first}replace it with --overwrite, or give another name."
        )
    raise disk_failure(path, "write", FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST)))


def _refuse_standard_output(path: Path) -> None:
    """Raises FileError for `-`, which elsewhere means standard output."""
    if str(path) == "-":
        raise FileError("Nothing is written to standard output, which is '-'; give a name.")


def check_folder(path: Path) -> None:
    """Checks that a folder can be made and written to, or can be if it exists; makes nothing.

    Raises:
        FileError: it cannot.
    """
    _refuse_standard_output(path)
    with disk_failures(path, "use"):
        ancestors = (path, *path.absolute().parents)
        place = next(ancestor for ancestor in ancestors if ancestor.exists())
        if not place.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        if not os.access(place, os.W_OK | os.X_OK):
            read_only = os.statvfs(place).f_flag & os.ST_RDONLY
            number = errno.EROFS if read_only else errno.EACCES
            raise OSError(number, os.strerror(number))


@contextlib.contextmanager
def replacing(path: str | Path, *, new: bool = False) -> Iterator[tuple[Path, Callable[[], None]]]:
    """Writes a temporary file, which then replaces `path` in one step.

    The temporary file has a hidden name and is locked. If the process is killed, the next writer
    of the same file removes it.

    Args:
        path: the file to write; a symbolic link keeps pointing to it.
        new: whether an existing file is an error.

    Yields:
        The path of the temporary file, which is empty and has the same folder and suffix as
        `path`, and a function that moves the written file to `path`.

    Raises:
        FileError: the disk refused, or the path is a device or a pipe; an existing file is
            unchanged and the temporary file is removed. An error of what writes the temporary file
            names `path`.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not (target.is_file() or target.is_dir()):
        # With enough permissions, the rename would replace the device.
        raise FileError(f"Cannot write {path}: it is not a regular file; give another name.")
    with disk_failures(Path(path), "write"):
        remove_abandoned(target.parent, target)
        temporary, descriptor = _locked_file(target)

        def finish() -> None:
            with disk_failures(Path(path), "write"):
                sync_file(temporary)
                if new:
                    _move_new(temporary, target)
                else:
                    temporary.replace(target)
                with contextlib.suppress(OSError):
                    fcntl.flock(descriptor, fcntl.LOCK_UN)
                with contextlib.suppress(PermissionError):
                    sync_file(target.parent)

        try:
            yield temporary, finish
        except FileError as error:
            if str(temporary) not in str(error):
                raise
            raise type(error)(str(error).replace(str(temporary), str(path))) from error
        finally:
            temporary.unlink(missing_ok=True)
            os.close(descriptor)


Content = str | bytes | memoryview | Callable[[Path], object]
"""A text, which is written as UTF-8; bytes; or a function that writes to a path."""


def write_atomically(path: str | Path, content: Content, *, new: bool = False) -> None:
    """Writes a file completely or not at all.

    Args:
        path: the file to write; a symbolic link keeps pointing to it.
        content: of the file; a function gets the path of the temporary file.
        new: whether an existing file is an error.

    Raises:
        FileError: see `replacing`.
    """
    with replacing(path, new=new) as (temporary, finish):
        if isinstance(content, str):
            temporary.write_text(content, encoding="utf-8")
        elif isinstance(content, bytes | memoryview):
            temporary.write_bytes(content)
        else:
            content(temporary)
        finish()


def remove_abandoned(folder: Path, target: Path | None = None) -> None:
    """Removes temporary files that killed processes left behind.

    Args:
        folder: the folder to search; ignored if it cannot be read.
        target: remove only temporary files of this file; None for all files.
    """
    target_parts = None if target is None else _hidden(target)
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            match = _HIDDEN.fullmatch(path.name)
            if match is None or target_parts not in (None, (match[1], match[2])):
                continue
            with contextlib.suppress(OSError):
                descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
                try:
                    # A running process holds the lock. Without locks, nothing is removed.
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    path.unlink()
                finally:
                    os.close(descriptor)


_HIDDEN: Final = re.compile(r"\.(.*)\.mdgraph-[0-9a-f]{8}(\.[^.]*)?", re.DOTALL)
"""Names of temporary files: the start of the target's stem, and its suffix."""


def _hidden(target: Path) -> tuple[str, str | None]:
    """Stem and suffix of a temporary name, shortened to the length that a name may have."""
    suffix = target.suffix if len(os.fsencode(target.suffix)) <= 32 else ""
    return os.fsdecode(os.fsencode(target.stem)[:128]), suffix or None


def _locked_file(target: Path) -> tuple[Path, int]:
    """A new temporary file for the target, and the descriptor that holds its lock."""
    stem, suffix = _hidden(target)
    while True:
        path = target.with_name(f".{stem}.mdgraph-{secrets.token_hex(4)}{suffix or ''}")
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        with contextlib.suppress(OSError):  # where the file system has no locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            return path, descriptor
        os.close(descriptor)  # another process removed it before it was locked


def _move_new(temporary: Path, target: Path) -> None:
    """Renames a file; raises FileExistsError if the target exists."""
    try:
        os.link(temporary, target)
    except FileExistsError:
        raise
    except OSError:  # where the file system has no links
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST)) from None
        temporary.replace(target)


def sync_file(path: Path) -> None:
    """Waits until a file, or the entries of a folder, would survive a loss of power."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_steps(path: Path, steps: Sequence[float], last_step: int, interval: int) -> None:
    """Checks that a file holds every record that its run wrote before a checkpoint.

    Args:
        path: the file.
        steps: steps of its records up to the checkpoint.
        last_step: step of the checkpoint.
        interval: steps between records; the first record has step 0.

    Raises:
        FileError: a record is missing, or the run did not write one of them.
    """
    expected = range(0, last_step + 1, interval)
    if len(steps) == len(expected) and all(map(operator.eq, steps, expected)):
        return
    missing_step = next((step for step in expected if step not in set(steps)), None)
    fault = (
        "steps that this run did not write" if missing_step is None else f"no step {missing_step}"
    )
    raise FileError(
        f"{path} has {fault}, and the checkpoint beside it is of step {last_step}; put back the "
        "file that belongs to this run."
    )


class AppendedFile:
    """A file that grows by complete records; a failed write leaves no partial record.

    Records reach the operating system at once, so they survive the death of the process;
    `sync` makes them survive a loss of power.

    Attributes:
        path: where the file is.
        is_cut: whether the bytes after `size` are removed.
    """

    def __init__(self, path: Path, size: int, *, cut: bool = True) -> None:
        """Opens a file and truncates it to `size` bytes; size 0 creates a missing file.

        Args:
            path: the file.
            size: bytes to keep.
            cut: whether to truncate now; otherwise call `cut` before the first record.

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
            self.is_cut = False
            if cut:
                self.cut()

    def cut(self) -> Self:
        """Removes the bytes after `size`; raises FileError if the disk refuses."""
        with disk_failures(self.path, "write"):
            os.ftruncate(self._descriptor, self._size)
        self.is_cut = True
        return self

    def append(self, record: bytes | memoryview) -> None:
        """Writes one record.

        Raises:
            FileError: the disk refused; the file ends with the record before.
        """
        start = self._size
        with disk_failures(self.path, "write"):
            try:
                remaining = memoryview(record)
                while remaining:
                    count = os.pwrite(self._descriptor, remaining, self._size)
                    self._size += count
                    remaining = remaining[count:]
                start = self._size
            finally:
                # Runs also when a signal's exception interrupts a long record.
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


class TableWriter:
    """Appends rows to a file; each row survives the death of the process.

    Attributes:
        path: the file.
    """

    def __init__(self, file: AppendedFile) -> None:
        self.path = file.path
        self._file = file

    def sync(self) -> None:
        """Waits until all rows would survive a loss of power."""
        self._file.sync()

    def close(self) -> None:
        """Closes the file; closing twice is harmless."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
