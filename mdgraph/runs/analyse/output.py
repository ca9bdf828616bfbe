"""Folders of results: complete once they appear, and never written over without being asked."""

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mdgraph.errors import FileError, name_some
from mdgraph.io.files import disk_failures, sync_file


def refuse_folder(out: Path, results: str, *, overwrite: bool) -> None:
    """Refuses a folder with other files than earlier results.

    Args:
        out: the folder, which need not exist.
        results: name of the file that marks earlier results.
        overwrite: whether these may be replaced.

    Raises:
        FileError: the folder may not be written.
    """
    with disk_failures(out, "write"):
        if not out.exists():
            return
        if not out.is_dir():
            raise FileError(f"{out} is a file; give the name of a new folder with --out.")
        if not any(out.iterdir()):
            return
        if not (out / results).is_file():
            raise FileError(
                f"{out} holds other files than an analysis; give a new folder with --out."
            )
    if not overwrite:
        raise FileError(
            f"{out} holds an analysis already; replace it with --overwrite, or give another folder "
            "with --out."
        )


def switching_warning(folder: Path, record: Mapping[str, Any]) -> str | None:
    """A sentence about a run whose weights of terms change; None for others.

    Args:
        folder: of the run.
        record: what its run.json holds.
    """
    about = record.get("switching")
    if not about:
        return None
    end = 1e-3 * about["steps"] * record["configuration"]["timestep_fs"]
    return (
        f"{folder} changes weights of terms ({name_some([one['term'] for one in about['terms']])}) "
        f"until {end:.6g} ps, so that nothing is at equilibrium before; leave that part out."
    )


@contextmanager
def new_results(out: Path, results: str, *, overwrite: bool) -> Iterator[Path]:
    """A temporary folder beside `out`, which takes its place at the end of the block.

    Args:
        out: see `refuse_folder`.
        results: name of the file that marks earlier results.
        overwrite: whether these are replaced.
    """
    target = Path(os.path.realpath(out))
    with disk_failures(out, "write"):
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
        try:
            temporary.chmod(0o777 & ~_umask())
            yield temporary
            for path in temporary.iterdir():
                sync_file(path)
            refuse_folder(out, results, overwrite=overwrite)
            if target.exists():
                before = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
                target.rename(before / target.name)
                temporary.rename(target)
                shutil.rmtree(before)
            else:
                temporary.rename(target)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
