"""Where a potential lies: a shipped name, a path, or an address on the Hugging Face Hub."""

import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tqdm import tqdm

from mdgraph.errors import FileError, InputError, name_some, printable, similar_names
from mdgraph.shipped import FILE_NAME, shipped_potentials

logger = logging.getLogger(__name__)

HUB: Final = "hf://"
"""Beginning of an address on the Hub."""

_ADDRESS: Final = re.compile(
    r"(?P<repository>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w.-]+))?(?P<path>(?:/[^/\\*?\[\]]+)*)/?"
)

_MATGL_FILES: Final = ("model.json", "model.pt", "state.pt")

_FOLDER_FILES: Final = (
    FILE_NAME,
    "domain.safetensors",
    "metrics.json",
    "start.extxyz",
    "labels.extxyz",
    *_MATGL_FILES,
)
"""All that mdgraph reads of the folder of a potential, and so all that it downloads."""


@dataclass(frozen=True)
class Location:
    """A potential that was looked up, but not read.

    Attributes:
        path: its file or folder on this machine.
        name: its shipped name, or its address on the Hub with the commit; None for a path.
    """

    path: Path
    name: str | None = None

    @property
    def reference(self) -> str:
        """Name, address or absolute path, which loads it again from any working directory."""
        return self.name or str(self.path.resolve())

    @property
    def weights(self) -> Path:
        """The file of weights if there is one in mdgraph's format, else the file or folder."""
        native = self.path / FILE_NAME
        return native if native.exists() else self.path

    def files(self) -> list[Path]:
        """The files that its checksum is made of."""
        weights = self.weights
        if not weights.is_dir():
            return [weights]
        if self.name is not None:  # the cache of the Hub may hold more, or less, elsewhere
            return [weights / name for name in _MATGL_FILES if (weights / name).exists()]
        return sorted(path for path in weights.iterdir() if path.is_file())


def locate(path_or_name: str | Path) -> Location:
    """Looks a potential up, and downloads one on the Hub unless its commit is in the Hub's cache.

    Args:
        path_or_name: see `load`. A name takes precedence over a file of the same name, but for a
            Path.

    Raises:
        FileError: there is no such user, or no such potential on the Hub; it cannot be downloaded.
        InputError: a malformed address on the Hub, or huggingface_hub is not installed.
    """
    folder = shipped_potentials().get(str(path_or_name))
    is_path = isinstance(path_or_name, Path) and path_or_name.exists()
    if folder is not None and not is_path:
        return Location(folder, str(path_or_name))
    if isinstance(path_or_name, str) and path_or_name.startswith(HUB):
        return _from_hub(path_or_name)
    try:
        return Location(Path(path_or_name).expanduser())
    except RuntimeError as error:
        raise unknown_potential(str(path_or_name)) from error


_SIMILAR: Final = 0.6
"""Least similarity of a shipped potential that is proposed for an unknown name."""


def pinned(path_or_name: str) -> str:
    """The address with the present commit of a potential on the Hub; all others as they are.

    Raises:
        FileError, InputError: see `locate`.
    """
    is_hub = path_or_name.startswith(HUB)
    return locate(path_or_name).reference if is_hub else path_or_name


def unknown_potential(name: str) -> FileError:
    """The error for a path or name of which there is nothing."""
    shipped = list(shipped_potentials())
    is_path = "/" in name or bool(Path(name).suffix)
    near = [] if is_path else similar_names(name, shipped, _SIMILAR)
    advice = f" perhaps {' or '.join(near[:2])} is meant;" if near else ""
    if shipped:
        advice += f" potentials that come with mdgraph: {name_some(shipped)};"
    return FileError(
        f"There is no file or folder '{printable(name, 300)}' and no potential of that name;"
        f"{advice} check the path or the name."
    )


def _from_hub(address: str) -> Location:
    """Downloads the files that mdgraph reads of an address, and nothing else."""
    shown = printable(address, 300)
    match = _ADDRESS.fullmatch(address.removeprefix(HUB))
    inside = [] if match is None else match["path"].split("/")[1:]
    if match is None or {".", ".."} & {*inside, *match["repository"].split("/")}:
        raise InputError(
            f"'{shown}' is not an address on the Hugging Face Hub; write {HUB}OWNER/NAME, "
            f"{HUB}OWNER/NAME/FILE or {HUB}OWNER/NAME@REVISION/FILE."
        )
    repository, revision = match["repository"], match["revision"]
    # Domain and start of a potential lie beside its weights.
    folder = inside[:-1] if inside and inside[-1] == FILE_NAME else inside
    files = ["/".join([*folder, name]) for name in _FOLDER_FILES]
    snapshot = _download(shown, repository, revision, ["/".join(inside), *files])
    name = "/".join([f"{HUB}{repository}@{snapshot.name}", *inside])
    path = snapshot.joinpath(*inside)
    if not path.exists() or (not inside and not any(path.iterdir())):
        raise FileError(
            f"There is no potential {'/'.join(inside) or FILE_NAME} in {repository} on the Hugging "
            f"Face Hub at commit {snapshot.name[:12]}; check the name of the file or folder."
        )
    if revision != snapshot.name:
        logger.info("%s is taken from commit %s: %s", shown, snapshot.name[:12], name)
    return Location(path, name)


class _NoBar(tqdm):  # type: ignore[type-arg]
    """A progress bar that is not drawn: potentials are small."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        options.pop("name", None)
        super().__init__(*arguments, **(options | {"disable": True}))


def _download(shown: str, repository: str, revision: str | None, patterns: list[str]) -> Path:
    """The folder of a commit, whose name is the commit, in the cache of huggingface_hub."""
    try:
        import huggingface_hub
        from huggingface_hub import errors
    except ImportError as error:
        raise InputError(
            f"{shown} is on the Hugging Face Hub, and the package that downloads from there is not "
            "installed; install it with: pip install 'mdgraph[hub]'"
        ) from error
    try:
        folder = huggingface_hub.snapshot_download(
            repository,
            revision=revision,
            allow_patterns=[pattern for pattern in patterns if pattern],
            tqdm_class=_NoBar,
        )
    except errors.RevisionNotFoundError as error:
        raise FileError(
            f"{repository} on the Hugging Face Hub has no revision {revision}; give a commit, tag "
            "or branch that it has."
        ) from error
    except errors.GatedRepoError as error:
        raise FileError(
            f"{repository} on the Hugging Face Hub is open only to those who ask on its page; ask "
            "there, then log in with: hf auth login"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise FileError(
            f"There is no {repository} on the Hugging Face Hub that you may read; check the name, "
            "or log in with: hf auth login"
        ) from error
    except errors.LocalEntryNotFoundError as error:
        raise FileError(
            f"{shown} was not downloaded before and the Hugging Face Hub cannot be reached; "
            f"download it where there is a network, as by 'mdgraph inspect {shown}', or copy the "
            "files and give their path."
        ) from error
    except (OSError, ValueError, errors.HfHubHTTPError.__mro__[1]) as error:
        reason = printable(str(error).strip().partition("\n")[0].rstrip("."), 300)
        raise FileError(f"{shown} cannot be downloaded ({reason}); try again.") from error
    return Path(folder)
