"""Potentials as Forces of OpenMM store them: by place and hash, never by weights."""

import functools
import hashlib
from dataclasses import dataclass
from pathlib import Path

from mdgraph.checkpoints import load
from mdgraph.checkpoints.native import FILE_NAME
from mdgraph.checkpoints.registry import shipped_potentials
from mdgraph.devices import device_named
from mdgraph.engine.potentials import as_evaluator
from mdgraph.errors import FileError, InputError
from mdgraph.evaluators import Evaluator
from mdgraph.precision import precision_named


@dataclass(frozen=True)
class Model:
    """A potential and how it is evaluated.

    Attributes:
        source: name of a shipped potential, or absolute path.
        digest: SHA-256 of its files.
        device, precision, evaluator: see `mdgraph.engine.Calculation`.
        coulomb_cutoff: see `MDGraphCalculator`.
        check: whether a fast evaluator is compared with the reference.
    """

    source: str
    digest: str
    device: str
    precision: str
    evaluator: str
    coulomb_cutoff: float | str | None
    check: bool


def model_named(
    path: str,
    device: str,
    precision: str,
    evaluator: str,
    coulomb_cutoff: float | str | None,
    check: bool,
) -> Model:
    """Finds a potential and hashes it.

    Raises:
        FileError: there is none.
        InputError: no such device or precision.
    """
    device_named(device)
    word = precision_named(precision).name
    source = path if path in shipped_potentials() else str(Path(path).expanduser().resolve())
    digest = _digest(source)
    return Model(source, digest, str(device), word, evaluator, coulomb_cutoff, check)


# Few, as each holds its weights and tables for as long as the process lives.
@functools.lru_cache(maxsize=4)
def evaluator_of(model: Model) -> Evaluator:
    """The evaluator of a model, shared by all Forces of the process.

    Raises:
        FileError: the files are no longer there, or are others.
        CheckpointError: they hold no potential.
    """
    digest = _digest(model.source)
    if digest != model.digest:
        raise FileError(
            f"{model.source} is not the potential that this System was made with: its hash is "
            f"{digest[:12]}, not {model.digest[:12]}; put back the file or make the System anew."
        )
    potential = load(model.source)
    if not isinstance(model.coulomb_cutoff, str):
        potential = potential.with_coulomb_cutoff(model.coulomb_cutoff)
    device = device_named(model.device)
    return as_evaluator(potential, precision_named(model.precision), device, model.evaluator)


def _digest(source: str) -> str:
    shipped = shipped_potentials().get(source)
    path = Path(source) if shipped is None else shipped / FILE_NAME
    if (path / FILE_NAME).exists():
        path /= FILE_NAME
    files = sorted(one for one in path.iterdir() if one.is_file()) if path.is_dir() else [path]
    found = hashlib.sha256()
    try:
        for file in files:
            with file.open("rb") as content:
                found.update(hashlib.file_digest(content, "sha256").digest())
    except OSError:
        load(source)  # which says it in the words that everybody else hears
        raise InputError(f"{source} cannot be read; check it.") from None
    return found.hexdigest()
