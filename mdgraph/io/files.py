"""Files that are fit to be read, that appear whole or not at all, that only grow.

What comes from outside is read through `readable_file`, `read_file` or `read_decompressed`: a
pipe, a device and a file beyond all bounds end in a sentence before a byte of them is read.
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

_KINDS: Final = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)
"""What a path can be instead of a file."""

_LONGEST_NAME: Final = 500
"""Characters of a path within a sentence."""

COMPRESSIONS: Final[dict[str, Callable[[Path], Any]]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
}
"""What opens a compressed file, by its suffix."""

LARGEST_RATIO: Final = 200
"""Bytes that a sound archive holds for each of its own: text of numbers has 2 to 50."""

LARGEST_TEXT: Final = 1 << 32
"""Bytes of a text that is read as a whole."""

UTF8_MARK: Final = b"\xef\xbb\xbf"
"""What some editors put before text in UTF-8."""

_PART: Final = 1 << 22
"""Bytes that are read at a time."""

_SMALL: Final = 1 << 28
"""Bytes that an archive may hold whatever its own size."""


def path_given(value: object, what: str) -> Path:
    """The path that an argument is; raises InputError for what is neither a text nor a path."""
    if not isinstance(value, str | os.PathLike):
        raise InputError(
            f"{what} is named by a text or a pathlib.Path, not by {type(value).__name__}."
        )
    return Path(value)


def readable_file(path: str | Path, what: str, largest_bytes: int | None = None) -> Path:
    """The path of a regular file that may be read and is not too large.

    It never waits: neither for the other end of a pipe nor for a device.

    Args:
        path: what the user named.
        what: with its article, what the file is to be, for the sentence: `a structure`.
        largest_bytes: its bound, or None where its reader takes any size in parts.

    Raises:
        FileError: there is no such file, it is a folder, pipe, socket or device, it may not be
            read, it is too large, or no file can have that name.
    """
    _open(path, what, largest_bytes).close()
    return Path(path)


def read_file(path: str | Path, what: str, largest_bytes: int) -> bytes:
    """The content of a file, after the checks of `readable_file`; raises as that does."""
    with _open(path, what, largest_bytes) as file, disk_failures(Path(path), "read"):
        content = _read_up_to(file, largest_bytes + 1)
    if len(content) > largest_bytes:
        raise _too_large(path, what, largest_bytes)
    return content


def read_decompressed(path: str | Path, what: str, largest_bytes: int) -> bytes:
    """The content of a file that may be compressed, as its suffix says; both sizes are bounded.

    Raises:
        FileError: as `readable_file`, or the archive is damaged or holds too much.
    """
    path = readable_file(path, what, largest_bytes)
    opened = COMPRESSIONS.get(path.suffix.lower())
    if opened is None:
        return read_file(path, what, largest_bytes)
    bound = min(largest_bytes, max(_SMALL, LARGEST_RATIO * path.stat().st_size))
    try:
        with opened(path) as file:
            content = _read_up_to(file, bound + 1)
    except (EOFError, OSError, lzma.LZMAError, zlib.error) as error:
        kind = path.suffix.lower()[1:]
        raise FileError(
            f"Cannot read {_named(path)}: it is no whole {kind} archive ({error}); "
            "compress the file once more, or copy it again."
        ) from error
    if len(content) > bound:
        raise FileError(
            f"Cannot read {_named(path)}: it unpacks to more than {_size(bound)}, which is more "
            f"than {what} holds; unpack it and see what is in it."
        )
    return content


def as_text(path: str | Path, content: bytes) -> str:
    """The text of a file: UTF-8, or where it is not, Latin-1, of which every byte is a character.

    Raises:
        FileError: it is of another encoding, or no text.
    """
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise FileError(f"Cannot read {_named(path)}: its text is UTF-16; save it as UTF-8.")
    if b"\0" in content:
        line = content.count(b"\n", 0, content.index(b"\0")) + 1
        raise FileError(
            f"Cannot read {_named(path)}: line {line} holds bytes of zero, so it is no text; check "
            "what the file is."
        )
    content = content.removeprefix(UTF8_MARK)
    try:
        return content.decode()
    except UnicodeDecodeError:
        return content.decode("latin-1")


def _read_up_to(file: IO[bytes], size: int) -> bytes:
    """Some bytes, in parts: asked for all at once, the library takes memory for all of them.

    What a file says of its length is not gone by: those of the kernel say that they are empty.
    """
    parts: list[bytes] = []
    while size > 0 and (part := file.read(min(size, _PART))):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _open(path: str | Path, what: str, largest_bytes: int | None) -> IO[bytes]:
    """Opens a file after the checks of `readable_file`."""
    path = Path(path)
    try:
        about = path.stat()
        for is_kind, kind in _KINDS:
            if is_kind(about.st_mode):
                raise FileError(
                    f"Cannot read {_named(path)}: it is {kind}, no file; give the name of a file "
                    f"that holds {what}."
                )
        if largest_bytes is not None and about.st_size > largest_bytes:
            raise _too_large(path, what, largest_bytes, about.st_size)
        # Another program may put a pipe there in between.
        return os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")
    except FileError:
        raise
    except OSError as error:
        raise disk_failure(path, "read", error) from error
    except ValueError as error:  # a NUL, or characters that the file system cannot write
        raise FileError(
            f"Cannot read {_named(path)}: no file can have that name; check it."
        ) from error


def _too_large(path: str | Path, what: str, bound: int, size: int | None = None) -> FileError:
    has = "more" if size is None else _size(size)
    return FileError(
        f"Cannot read {_named(path)}: it has {has}, where {what} has at most {_size(bound)}; give "
        "the right file, or one that holds less."
    )


def _size(number: int) -> str:
    """Bytes as text."""
    for unit, bytes_a_unit in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if number >= bytes_a_unit:
            value = number / bytes_a_unit
            return f"{value:,.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"
    return f"{number} bytes"


def _named(path: str | Path) -> str:
    return printable(path, _LONGEST_NAME)


def disk_failure(path: Path, verb: str, error: OSError) -> FileError:
    """One sentence for what the operating system said about a path."""
    reason = _REASONS.get(error.errno or 0, error.strerror or str(error))
    return FileError(f"Cannot {verb} {_named(path)}: {reason}.")


@contextlib.contextmanager
def disk_failures(path: Path, verb: str) -> Iterator[None]:
    """Turns an `OSError` inside the block into a `FileError` about `path`."""
    try:
        yield
    except FileError:
        raise
    except OSError as error:
        raise disk_failure(path, verb, error) from error


def refuse_existing(path: Path, *, overwrite: bool = False, option: bool = False) -> None:
    """Keeps a new file from replacing an old one.

    Args:
        path: the file to come.
        overwrite: whether it may.
        option: whether the sentence names `--overwrite`.

    Raises:
        FileError: the path exists and it may not.
    """
    with disk_failures(path, "write"):
        if overwrite or not path.exists():
            return
    if option and not path.is_dir() and not path.is_file():
        raise FileError(f"Cannot write {path}: it is no ordinary file; give another name.")
    if option and path.is_file():
        raise FileError(
            f"{path} exists already; replace it with --overwrite, or give another name."
        )
    raise disk_failure(path, "write", FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST)))


@contextlib.contextmanager
def replacing(path: str | Path, *, new: bool = False) -> Iterator[tuple[Path, Callable[[], None]]]:
    """A file to be written in the place of another one, which stays until the very end.

    The file has a hidden name and is locked while it is written. What a killed process left
    under such a name is removed by the next one that writes the same file.

    Args:
        path: the file to appear; a symbolic link keeps pointing to it.
        new: whether it must not replace another one.

    Yields:
        The path to write to, which lies in the same folder and has the same suffix and nothing
        in it, and a function that puts it in its place once it is written.

    Raises:
        FileError: the disk refused, or a device or pipe has that name; what was there is
            untouched and nothing is left over.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not (target.is_file() or target.is_dir()):
        # Under an account that may do so, a rename would put a file in the device's place.
        raise FileError(f"Cannot write {path}: it is no ordinary file; give another name.")
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
        finally:
            temporary.unlink(missing_ok=True)
            os.close(descriptor)


def write_atomically(
    path: str | Path, write: Callable[[Path], object], *, new: bool = False
) -> None:
    """Makes a file appear whole, replacing an older one unless it is to be `new`, or not at all.

    Args:
        path: the file to appear; a symbolic link keeps pointing to it.
        write: writes the content to the path it is given, see `replacing`.
        new: whether it must not replace another one.

    Raises:
        FileError: see `replacing`.
    """
    with replacing(path, new=new) as (temporary, finish):
        write(temporary)
        finish()


def remove_abandoned(folder: Path, target: Path | None = None) -> None:
    """Removes what killed processes left of files that they were writing.

    Args:
        folder: in which it looks; one that cannot be read is left alone.
        target: the file that they were writing; None stands for any.
    """
    wanted = None if target is None else _hidden(target)
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            paths = _HIDDEN.fullmatch(path.name)
            if paths is None or wanted not in (None, (paths[1], paths[2])):
                continue
            with contextlib.suppress(OSError):
                descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
                try:
                    # A living process holds the lock; where there are no locks, nothing goes.
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    path.unlink()
                finally:
                    os.close(descriptor)


_HIDDEN: Final = re.compile(r"\.(.*)\.mdgraph-[0-9a-f]{8}(\.[^.]*)?", re.DOTALL)
"""Names of files that are being written: the beginning of the target's name, and its suffix."""


def _hidden(target: Path) -> tuple[str, str | None]:
    """The parts of a hidden name that tell its target; long ones are cut, as names are limited."""
    suffix = target.suffix if len(os.fsencode(target.suffix)) <= 32 else ""
    return os.fsdecode(os.fsencode(target.stem)[:128]), suffix or None


def _locked_file(target: Path) -> tuple[Path, int]:
    """An empty file beside the target, and a descriptor that holds its lock until it is closed."""
    stem, suffix = _hidden(target)
    while True:
        path = target.with_name(f".{stem}.mdgraph-{secrets.token_hex(4)}{suffix or ''}")
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        with contextlib.suppress(OSError):  # where the file system has no locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            return path, descriptor
        os.close(descriptor)  # taken for an abandoned one before it was locked


def _move_new(temporary: Path, target: Path) -> None:
    """Gives a file its name unless another one has it."""
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
    """Refuses a file of a run that lacks what the run wrote before a checkpoint.

    Args:
        path: the file.
        steps: those of its records up to the checkpoint.
        last_step: of the checkpoint.
        interval: steps from one record to the next; the first one is of step 0.

    Raises:
        FileError: a record is missing, or there is one that the run did not write.
    """
    expected = range(0, last_step + 1, interval)
    if len(steps) == len(expected) and all(map(operator.eq, steps, expected)):
        return
    missing = next((step for step in expected if step not in set(steps)), None)
    what = "steps that this run did not write" if missing is None else f"no step {missing}"
    raise FileError(
        f"{path} has {what}, and the checkpoint beside it is of step {last_step}; put back the "
        "file that belongs to this run."
    )


class AppendedFile:
    """A file that grows by whole records: a record that cannot be written leaves no trace.

    Records reach the operating system at once, so they survive the death of the process;
    `sync` makes them survive a loss of power.

    Attributes:
        path: where the file is.
        is_cut: whether it ends with what stays.
    """

    def __init__(self, path: Path, size: int, *, cut: bool = True) -> None:
        """Opens a file and cuts it to its first bytes; to none, it is created where there is none.

        Args:
            path: the file.
            size: bytes that stay.
            cut: whether it is cut at once; else `cut` does it, before the first record.

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
        """Drops what comes after the bytes that stay; raises FileError where the disk refuses."""
        with disk_failures(self.path, "write"):
            os.ftruncate(self._descriptor, self._size)
        self.is_cut = True
        return self

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
