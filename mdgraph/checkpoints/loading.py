"""Loads potentials by path or name, and describes what they contain."""

import hashlib
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mdgraph.arguments import checked
from mdgraph.checkpoints.convert import Layout
from mdgraph.checkpoints.location import locate, unknown_potential
from mdgraph.checkpoints.matgl import read_matgl
from mdgraph.checkpoints.native import file_sha256, is_native, read_native, save
from mdgraph.checkpoints.torchmdnet import read_torchmdnet
from mdgraph.errors import CheckpointError, InputError, name_some
from mdgraph.io.files import disk_failure, path_argument, refuse_existing
from mdgraph.models import PotentialModule, architecture_named, with_terms
from mdgraph.models.terms import LOADERS
from mdgraph.shipped import FILE_NAME
from mdgraph.units import SYMBOLS


@checked
def load(path_or_name: str | Path, *, layout: Layout = "auto") -> PotentialModule:
    """Reads a potential; runs no code from the file.

    Args:
        path_or_name: a TorchMD-Net .ckpt, a MatGL folder, a .safetensors file of mdgraph or
            the folder that holds it, the name of a potential that comes with mdgraph, or
            "hf://OWNER/NAME@REVISION/FILE" on the Hugging Face Hub, where REVISION is a commit, tag
            or branch and, like FILE, may be left out. A name takes precedence over a file of the
            same name; "./NAME" means the file.
        layout: whether TorchMD-Net or MatGL before 3.0, or from 3.0 on, wrote the weights;
            "auto" decides by the content of the file.

    Returns:
        The potential in float64 on the CPU. `config.assumptions` lists what the file left open.

    Raises:
        FileError: the file does not exist, or cannot be downloaded or read.
        CheckpointError: the file is not a supported potential.
    """
    if not isinstance(layout, str) or layout not in ("auto", "before-3.0", "3.0"):
        raise InputError(f"Unknown layout '{layout}'; choose auto, before-3.0 or 3.0.")
    if not isinstance(path_or_name, str | os.PathLike):
        raise InputError(
            f"A potential is loaded by its path or name, not by {type(path_or_name).__name__}; "
            "give a text or a pathlib.Path."
        )
    potential = _read(path_or_name, layout)
    flaw = potential.flaw()
    if flaw is not None:
        raise CheckpointError(f"{path_or_name} {flaw}")
    return potential


def potential_sha256(path_or_name: str | Path) -> str:
    """Checksum of the file that `load` reads, or of the checksums of all files of its folder.

    Raises:
        FileError: it cannot be read.
    """
    location = locate(path_or_name)
    sums = [file_sha256(path) for path in location.files()]
    if not location.weights.is_dir():
        return sums[0]
    return hashlib.sha256("".join(sums).encode()).hexdigest()


def _term(name: str) -> tuple[PotentialModule, str]:
    """A potential that is a term of another one, with a name, and the checksum of its file."""
    potential, path = load(name), locate(name)
    if not potential.config.name:
        own = potential.config.model_copy(update={"name": Path(path.reference).stem})
        potential.config = own
    return potential, potential_sha256(name)


LOADERS.append(_term)


def _read(path_or_name: str | Path, layout: Layout) -> PotentialModule:
    if not str(path_or_name):
        raise unknown_potential("")
    path = locate(path_or_name).path
    try:
        is_folder = stat.S_ISDIR(path.stat().st_mode)
    except (ValueError, FileNotFoundError, NotADirectoryError) as error:
        raise unknown_potential(str(path_or_name)) from error
    except OSError as error:
        raise disk_failure(Path(path_or_name), "read", error) from error
    return _read_folder(path, layout) if is_folder else _read_file(path, layout)


def _read_file(path: Path, layout: Layout) -> PotentialModule:
    """Reads a file in the format of its content; the suffix does not matter."""
    if is_native(path):
        return read_native(path)
    if path.name in ("state.pt", "model.pt", "model.json"):
        raise CheckpointError(f"{path} is one file of a MatGL folder; give the folder.")
    return read_torchmdnet(path, layout)


@checked
def convert(
    source: str | Path,
    target: str | Path,
    *,
    layout: Layout = "auto",
    terms: str | Sequence[str] = (),
    force: bool = False,
    coulomb_cutoff: float | None = None,
    overwrite: bool = False,
) -> None:
    """Reads a potential in any supported format and writes it as one .safetensors file.

    Args:
        source: see `load`.
        target: the file to write.
        layout: see `load`.
        terms: what is added to it, see `mdgraph.models.with_terms`.
        force: see there.
        coulomb_cutoff: A, of a reaction field instead of the potential's own Coulomb energy.
        overwrite: whether it may replace an existing file.

    Raises:
        InputError: the target's name does not end in .safetensors, the potential has no Coulomb
            energy, or see `with_terms`.
        FileError: the target exists or the disk refused.
        CheckpointError: see `load`.
    """
    refuse_existing(path_argument(target, "The file of a potential"), overwrite=overwrite)
    potential = load(source, layout=layout)
    if coulomb_cutoff is not None:
        potential = potential.with_coulomb_cutoff(coulomb_cutoff)
    potential = with_terms(potential, terms, force=force)
    save(potential, target, overwrite=overwrite)


def _read_folder(folder: Path, layout: Layout) -> PotentialModule:
    if (folder / FILE_NAME).exists():
        return _read_file(folder / FILE_NAME, layout)
    if (folder / "state.pt").exists():
        return read_matgl(folder, layout)
    if (folder / "train.yaml").exists():
        began = (folder / "checkpoint.safetensors").exists()
        content = "a training that is not finished" if began else "the recipe of one"
        raise CheckpointError(
            f"{folder} holds no potential yet but {content}, which "
            f"'mdgraph train {folder / 'train.yaml'}{' --resume' * began}' "
            f"{'continues with' if began else 'trains'}."
        )
    if inner := sorted(path.parent for path in folder.glob(f"*/{FILE_NAME}")):
        raise CheckpointError(
            f"{folder} holds no potential but {'folders of' if inner[1:] else 'the folder of'} "
            f"{len(inner)}; give {'one of them' if inner[1:] else 'that'}: {name_some(inner)}."
        )
    raise CheckpointError(
        f"{folder} holds no potential: neither {FILE_NAME} nor MatGL's state.pt is in it; "
        "give the folder or file that has the weights."
    )


@checked
def describe(potential: PotentialModule | str | Path, *, layout: Layout = "auto") -> dict[str, Any]:
    """Everything about a potential except its weights, as values for JSON.

    Args:
        potential: a potential, or its path or name as for `load`.
        layout: see `load`.

    Raises:
        FileError, CheckpointError: see `load`.
    """
    if not isinstance(potential, PotentialModule):
        potential = load(potential, layout=layout)
    config = potential.config
    return {
        "name": config.name,
        "origin": config.origin,
        "architecture": architecture_named(config.architecture).title,
        **potential.details(),
        "species": [SYMBOLS[number] for number in config.species],
        "units": {"energy": config.energy_unit, "length": config.length_unit},
        "level_of_theory": config.level_of_theory or "not stated",
        "dispersion": potential.stated_dispersion or "none stated",
        "licence": config.licence or "not stated",
        "training_hash": config.training_hash or "not stated",
        "schema_version": config.schema_version,
        "assumed": list(config.assumptions),
    }
