"""RunDirectory: the folder of a run, and what lies in it."""

import contextlib
import errno
import fcntl
import json
import logging
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from mdgraph.errors import FileError, InputError
from mdgraph.io.files import disk_failures, sync_file, write_atomically

logger = logging.getLogger(__name__)

FORMAT: Final = 1
"""Of run.json; raised when its meaning changes."""

_PARTS: Final = ("configuration", "structure", "potential", "chosen", "environment")
"""Of run.json, beside its format."""


class RunDirectory:
    """The folder of one run.

    Attributes:
        path: the folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def record(self) -> Path:
        """run.json: everything chosen or defaulted."""
        return self.path / "run.json"

    @property
    def start(self) -> Path:
        """The structure that the run began from, one frame of extended XYZ."""
        return self.path / "start.extxyz"

    @property
    def end(self) -> Path:
        """Where a run that is complete ended, one frame of extended XYZ."""
        return self.path / "end.extxyz"

    @property
    def checkpoint(self) -> Path:
        """The restart file."""
        return self.path / "checkpoint.safetensors"

    @property
    def checkpoint_before(self) -> Path:
        """The restart file before that one, where other ranks may have got no further."""
        return self.path / "checkpoint.before.safetensors"

    @property
    def log(self) -> Path:
        """The log, CSV."""
        return self.path / "log.csv"

    @property
    def uncertainty(self) -> Path:
        """How far the run could be trusted, CSV."""
        return self.path / "uncertainty.csv"

    @property
    def picture(self) -> Path:
        """The picture drawn at the end."""
        return self.path / "picture.png"

    @property
    def exchanges(self) -> Path:
        """Where replicas stand on their ladder of temperatures, CSV."""
        return self.path / "exchanges.csv"

    def replica(self, number: int) -> "RunDirectory":
        """The folder of one of several replicas."""
        return RunDirectory(self.path / f"replica-{number}")

    def trajectory(self, kind: str) -> Path:
        """The trajectory in a format, `h5md` or `extxyz`."""
        return self.path / {"h5md": "trajectory.h5", "extxyz": "trajectory.extxyz"}[kind]

    def write_record(self, record: dict[str, dict[str, Any]]) -> None:
        """Writes run.json whole; raises FileError where the disk refuses."""
        text = json.dumps({"format": FORMAT, **record}, indent=2) + "\n"
        write_atomically(self.record, lambda path: path.write_text(text, encoding="utf-8"))

    def read_record(self) -> dict[str, dict[str, Any]]:
        """Reads run.json.

        Raises:
            FileError: there is none, or it is damaged or of another version.
        """
        if not self.record.exists():
            raise FileError(
                f"{self.path} holds no run to resume: there is no run.json in it; "
                "give the folder of a run with --out."
            )
        with disk_failures(self.record, "read"):
            text = self.record.read_text(encoding="utf-8", errors="replace")
        try:
            record = dict(json.loads(text))
            if record["format"] != FORMAT:
                raise FileError(
                    f"{self.record} has format {record['format']}, and this mdgraph reads "
                    f"{FORMAT}; resume with the version that wrote it."
                )
            return {key: dict(record[key]) for key in _PARTS}
        except (ValueError, KeyError, TypeError) as error:
            raise FileError(f"{self.record} is damaged; put back the original.") from error

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps other processes from running in the folder; the lock dies with the process.

        Raises:
            InputError: another process runs in it.
        """
        with disk_failures(self.path, "open"):
            descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(descriptor)
            raise InputError(
                f"Another process is running in {self.path}; wait for it or stop it."
            ) from error
        except OSError:
            logger.debug("%s: the file system has no locks", self.path)
        try:
            yield
        finally:
            os.close(descriptor)


def refuse_used(path: Path) -> None:
    """Keeps a new run from touching what is in a folder.

    Raises:
        InputError: the folder holds a run or other files.
        FileError: the path is no folder, or cannot be read.
    """
    if not path.exists():
        return
    with disk_failures(path, "use"):
        used = any(path.iterdir())
    if RunDirectory(path).record.exists():
        raise InputError(
            f"{path} holds a run already; go on with it with --resume, or give another "
            "folder with --out."
        )
    if used:
        raise InputError(f"{path} holds other files; give a new or empty folder with --out.")


def create(path: Path, fill: Callable[[RunDirectory], None]) -> RunDirectory:
    """Makes the folder of a new run appear with everything in it, or not at all.

    Args:
        path: a new or empty folder.
        fill: writes the files into the folder it is given, which lies beside `path`.

    Raises:
        InputError, FileError: see `refuse_used`; or the disk refused.
    """
    refuse_used(path)
    target = Path(os.path.realpath(path))
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    with disk_failures(path, "write"):
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            temporary.mkdir()
            fill(RunDirectory(temporary))
            sync_file(temporary)
            try:
                temporary.rename(target)
            except OSError as error:
                if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                    refuse_used(path)
                raise
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        sync_file(target.parent)
    return RunDirectory(path)
