"""Recipes for new data: what a data set holds, and a commented train.yaml that suits it.

The comments are the docstrings of the fields of `TrainConfig`, so each key is explained once.
"""

import inspect
import logging
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from mdgraph.checkpoints import load
from mdgraph.data import Dataset, LabelledFrame, Provenance, Split, open_dataset, write_dataset
from mdgraph.data.bonding import Kind, count_kinds
from mdgraph.data.dataset import DatasetSummary, summarize
from mdgraph.data.splits import Index, together_split, trajectories, write_split
from mdgraph.errors import InputError, name_some, printable
from mdgraph.io.commented_yaml import comment, commented_keys
from mdgraph.io.files import disk_failures, refuse_existing, replacing
from mdgraph.io.structures import write_structure
from mdgraph.models import check_coulomb_range
from mdgraph.train.baseline import check_frames, read_baseline
from mdgraph.train.config import LossConfig, TrainConfig
from mdgraph.train.references import isolated_atoms
from mdgraph.train.setup import trainable
from mdgraph.train.tables import has_stress

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Recipe:
    """Settings of a training for one kind of data.

    Attributes:
        description: what the data are, and where the settings come from.
        settings: values of `TrainConfig`, nested as in the YAML file.
    """

    description: str
    settings: Mapping[str, Any]


_MUON: Final = {
    "optimizer": "muon",
    "betas": [0.995, 0.999],
    "learning_rate": 1.5e-3,
    "final_learning_rate": 1e-6,
    "weight_decay": 1e-2,
    "average": 0.999,
    "keep": "last",
}
_FORCES: Final = {"kind": "norm", "weight": 1}
_HUBER: Final = {"kind": "huber", "delta": 0.01, "weight": 20}


def _network(
    channels: int, radial_basis: Mapping[str, Any], hidden: int, cutoff: float = 5.0
) -> dict[str, Any]:
    return {
        "channels": channels,
        "layers": 2,
        "cutoff": cutoff,
        "radial_basis": dict(radial_basis),
        "readout": {"hidden": [hidden]},
    }


RECIPES: Final[dict[str, Recipe]] = {
    "molecule": Recipe(
        "Molecules in vacuum. The settings are those of the shipped acac-pbe and 3bpa-wb97x, with "
        "8 frames a step and a constant weight of energies.",
        {
            "potential": _network(128, {"number": 12}, 64),
            "loss": {
                "energy": {"weight": 20},
                "forces": _FORCES,
                "perturbation": {"weight": 0.3},
            },
            "batch": 8,
            "steps": 25000,
            **_MUON,
        },
    ),
    "liquid": Recipe(
        "Molecules in periodic cells, as in a liquid. The settings are those that the shipped "
        "water-pbe0 began with.",
        {
            "potential": _network(64, {"number": 12}, 32),
            "initialization": "normalized",
            "loss": {
                "energy": {"weight": 20},
                "forces": _FORCES,
                "perturbation": {"weight": 0.3},
            },
            "batch": 4,
            "steps": 10000,
            **_MUON,
        },
    ),
    "crystal": Recipe(
        "Crystals, surfaces or melts. Cutoff, radial functions and length (a step for three atoms "
        "of the data, 3,000 to 20,000) erred least in forces on trajectories of Mo and Ni, and by "
        "3 % more than the least on Ge and Li. Within 5 A, with 8 gaussians, dynamics are faster.",
        {
            "potential": _network(64, {"kind": "gaussian", "number": 16}, 64, cutoff=6.0),
            "loss": {"energy": _HUBER, "forces": _FORCES},
            "batch": 4,
            "steps": 3000,
            **_MUON,
            "betas": [0.99, 0.999],
            "muon_edges": True,
            "learning_rate": 3e-3,
        },
    ),
    "mixed": Recipe(
        "Frames of several kinds. No shipped potential has such data: the settings lie between "
        "those of molecules and crystals, and were not tuned.",
        {
            "potential": _network(128, {"number": 12}, 64),
            "loss": {"energy": _HUBER, "forces": _FORCES},
            "batch_atoms": 335,
            "steps": 25000,
            **_MUON,
        },
    ),
}
"""By kind of data."""

_ATOMS_A_STEP: Final = {"crystal": 3}
"""Atoms of the data for a step, by kind. 0.29 to 0.40 steps an atom were measured on four metals;
more fit the noise of melts of Mo, fewer leave Ni."""

_MOST_STEPS: Final = 20000
"""Where the data give the length, whose least is that of the recipe."""

_FINE_TUNED: Final = ("crystal",)
"""Kinds of data for which a prior is fine-tuned. On molybdenum that erred by 111 meV/A where a
difference erred by 145; of other kinds the difference is learned."""

_FINE_TUNING: Final = {
    "elements": "data",
    "loss": {"energy": {"weight": 100}, "forces": _FORCES},
    "steps": 3000,
}
"""Settings that fine-tune; with 10,000 steps held-out forces of Mo and Ge were no better or worse.
"""

_DIFFERENCE: Final = {"learning_rate": 2e-3, "betas": [0.99, 0.999]}
"""Settings that learn a difference, of any kind."""

_DIFFERENCE_OF_MOLECULES: Final = {"batch": 16, "steps": 12000}
"""As tried on 3BPA, acetylacetone, aspirin and ethanol: with 48 channels and 4,000 steps of 8 the
errors of energies are almost twice as large."""

_STRESS_WEIGHT: Final = 1000
"""With it an error of 1 GPa counts as much as 44 meV an atom with an energy weight of 20."""

_MOST_GROUPS: Final = 12
"""Groups whose share of held-out frames is printed."""


@dataclass(frozen=True, eq=False)
class NewTraining:
    """What `prepare_training` wrote.

    Attributes:
        lines: what the data hold, what is held out, and the recipe, for a person.
        temperatures: K, from the names of groups and files, ascending.
        config, data, split, start: the files; `start` is the last frame of several atoms.
        potential: the folder that the training will write.
    """

    lines: list[str]
    temperatures: list[int]
    config: Path
    data: Path
    split: Path
    start: Path
    potential: Path


def prepare_training(
    parts: Iterable[tuple[Iterable[LabelledFrame], Provenance]],
    name: str,
    config: Path,
    *,
    kind: str | None = None,
    prior: str | None = None,
    validation: float = 0.1,
    seed: int = 0,
    overwrite: bool = False,
) -> NewTraining:
    """Writes a data set, its split, a structure to start from and a train.yaml; all or none.

    Args:
        parts: the frames of each source, and where they are from.
        name: of the data set; its files lie beside the YAML file.
        config: the YAML file.
        kind: a key of `RECIPES`; None looks at the bonds of up to 20 frames.
        prior: potential to build on, by path or name: fine-tuned for crystals, else the baseline.
        validation: share of the frames to hold out if below 1, else their number.
        seed: key of the choice of held-out frames.
        overwrite: whether files that exist are replaced.

    Raises:
        InputError: labels are missing, the frames are too few, or the prior cannot be trained or
            does not know what they hold.
        FileError: a file exists, cannot be read, or the disk refused.
    """
    data, split_file = config.with_name(f"{name}.h5"), config.with_name(f"{name}-split.json")
    start, potential = (config.with_name(f"{name}-{end}") for end in ("start.extxyz", "potential"))
    paths = data, split_file, start, config
    for path in paths:
        refuse_existing(path, overwrite=overwrite, option=True)
    potential_before = None if prior is None else load(prior)
    with ExitStack() as stack:
        files = [stack.enter_context(replacing(path, new=not overwrite)) for path in paths]
        (own_data, _), (own_split, _), (own_start, _), (own_config, _) = files
        write_dataset(own_data, parts, overwrite=True)
        with open_dataset(own_data) as dataset:
            dataset.path = data  # error messages name the final file
            summary = summarize(dataset)
            _check_labels(summary)
            atoms = int(dataset.atoms.sum())
            trajectory = trajectories(dataset)
            split = together_split(dataset, trajectory, validation, seed)
            stresses = _fitted_stresses(dataset, split.train)
            counts = count_kinds(dataset)
            kind = kind or _common_kind(counts)
            names = [*dataset.groups, *(source.file for source in dataset.sources)]
            temperatures, charges = temperatures_in(names), _charges(dataset)
            lines = [
                *summary.lines(),
                f"kind:      {kind} (frames looked at: "
                + ", ".join(f"{count} {name}" for name, count in counts.most_common())
                + ")",
                *_label_lines(dataset, summary, stresses, temperatures, charges),
                *_share_lines(dataset, split, trajectory),
                f"recipe:    {RECIPES[kind].description}",
            ]
            if potential_before is not None:
                if kind in _FINE_TUNED:
                    trainable(potential_before, str(prior))
                    check_coulomb_range(potential_before.cutoffs, bool(dataset.pbc.any()))
                else:
                    check_frames(dataset, read_baseline((str(prior),)))
                lines.append(f"prior:     {prior}, {_prior_text(kind)}")
            last = dataset.frame(int(np.flatnonzero(dataset.atoms > 1)[-1]))
        with disk_failures(start, "write"):
            write_structure(own_start, last.system())
        write_split(split, own_split, overwrite=True)
        settings = {
            "data": str(data),
            "split": str(split_file),
            "out": str(potential),
            "references": "auto",
            "seed": 0,
            **_settings(
                kind,
                start_from=prior if kind in _FINE_TUNED else None,
                baseline=None if kind in _FINE_TUNED else prior,
                charged=charges != [0],
                stress=stresses,
                atoms=atoms,
            ),
        }
        with disk_failures(config, "write"):
            own_config.write_text(training_text(lines, settings), encoding="utf-8")
        with ExitStack() as undo:
            for (_, finish), path in zip(files, paths, strict=True):
                finish()
                if not overwrite:
                    undo.callback(path.unlink, missing_ok=True)
            undo.pop_all()
    return NewTraining(lines, temperatures, config, data, split_file, start, potential)


def _check_labels(summary: DatasetSummary) -> None:
    """Raises InputError for a set without energies or forces."""
    for label in ("energy", "forces"):
        if not summary.labelled[label]:
            raise InputError(
                f"No frame has {label}; name the label in the file with --{label}-key, or give "
                "frames that have it."
            )


def _common_kind(counts: Counter[Kind]) -> str:
    """The kind of nine in ten frames, else mixed."""
    kind, count = counts.most_common(1)[0]
    return kind if count >= 0.9 * counts.total() else "mixed"


def temperatures_in(names: Iterable[str]) -> list[int]:
    """K, ascending, that names of groups or files tell, such as train_300K."""
    text = " ".join(names).replace("_", " ")
    return sorted({int(number) for number in re.findall(r"(?<!\d)(\d{2,5}) ?K\b", text)})


def _charges(dataset: Dataset) -> list[int]:
    """Total charges of frames of several atoms, e."""
    return sorted({round(charge) for charge in dataset.charge[dataset.atoms > 1].tolist()})


def _fitted_stresses(dataset: Dataset, frames: Index | None = None) -> int:
    """How many of some frames, or of all, have a stress that a training can fit."""
    if not np.isfinite(dataset.stress).any():
        return 0
    return sum(map(has_stress, dataset.frames(frames)))


def _label_lines(
    dataset: Dataset,
    summary: DatasetSummary,
    stresses: int,
    temperatures: list[int],
    charges: list[int],
) -> Iterator[str]:
    """What names and labels say, for a person."""
    if temperatures:
        names = ", ".join(map(str, temperatures))
        yield f"at:        {names} K, by the names of groups and files"
    missing = sorted(set(summary.elements) - set(isolated_atoms(dataset)))
    yield "isolated:  " + (
        f"no isolated atom of {', '.join(missing)}, so reference energies are fitted"
        if missing
        else "isolated atoms of all elements give the reference energies"
    )
    if count := summary.labelled["stress"]:
        fitted = "it is fitted" if stresses else "none of them is periodic and trained on"
        yield f"stress:    {count} frames have it, and {fitted}"
    if charges != [0]:
        everywhere = " in all frames" if len(charges) == 1 else ""
        yield (
            f"charge:    {', '.join(map(str, charges))} e{everywhere}; the total charge enters the "
            "energy"
        )


def _share_lines(dataset: Dataset, split: Split, trajectory: Index) -> Iterator[str]:
    """The share held out, in all and by group, for a person."""
    several = dataset.atoms > 1
    frames = Counter(dataset.group[several].tolist())
    validation = Counter(dataset.group[split.validation].tolist())
    part, count = validation.total(), frames.total()
    yield f"held out:  {part} of {count} frames ({part / count:.0%}), {split.method}"
    for group, count in frames.most_common(_MOST_GROUPS):
        part = validation[group]
        yield f"  {dataset.groups[group] or 'unnamed'}: {part} of {count} ({part / count:.0%})"
    if len(frames) > _MOST_GROUPS:
        yield f"  and {len(frames) - _MOST_GROUPS} more groups"
    validation_trajectories = set(trajectory[split.validation].tolist())
    lengths = Counter(trajectory[several].tolist())
    long = [
        length
        for number, length in lengths.most_common()
        if number not in validation_trajectories and length > validation.total()
    ]
    if long:
        yield (
            f"  trajectories of {name_some(long)} frames are too long to be held out, so errors on "
            "held-out frames say nothing about them"
        )


def _settings(
    kind: str,
    *,
    start_from: str | None = None,
    baseline: str | tuple[str, ...] | None = None,
    charged: bool,
    stress: int,
    atoms: int,
) -> dict[str, Any]:
    """Values of `TrainConfig` for a kind of data, without its paths.

    Args:
        kind: a key of `RECIPES`.
        start_from: potential to fine-tune.
        baseline: potential whose difference to the labels is learned.
        charged: whether frames have a total charge. Where all have the same it tells none of them
            apart, but a potential that knows no charges would refuse them.
        stress: how many frames have a stress.
        atoms: of all frames.
    """
    settings = deepcopy(dict(RECIPES[kind].settings))
    if kind in _ATOMS_A_STEP:
        steps = round(atoms / _ATOMS_A_STEP[kind], -2)
        settings["steps"] = int(min(max(settings["steps"], steps), _MOST_STEPS))
    if charged:
        settings["potential"]["charge_factor"] = True
    if start_from is not None:
        settings |= {"start_from": start_from, "optimizer": "adamw", "learning_rate": 3e-4}
        if kind in _FINE_TUNED:
            settings |= deepcopy(_FINE_TUNING)
        for key in ("potential", "initialization", "betas", "muon_edges"):
            settings.pop(key, None)
    elif baseline is not None:
        settings |= {"baseline": baseline} | deepcopy(_DIFFERENCE)
        if kind == "molecule":
            settings |= _DIFFERENCE_OF_MOLECULES
        settings["loss"].pop("perturbation", None)  # the baseline keeps atoms apart
    if stress:
        settings["loss"]["stress"] = {"weight": _STRESS_WEIGHT}
    return settings


def with_recipe(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values of a train.yaml that gives no length, with the recipe for its data where it is silent.

    Args:
        values: of the file; its data set is opened.

    Raises:
        FileError: the data set cannot be read.
    """
    if "data" not in values:
        return dict(values)  # which is told where values are checked
    with open_dataset(str(values["data"])) as dataset:
        kind = _common_kind(count_kinds(dataset))
        stress = _fitted_stresses(dataset)
        charged = _charges(dataset) != [0]
        atoms = int(dataset.atoms.sum())
    settings = _settings(
        kind,
        start_from=values.get("start_from"),
        baseline=values.get("baseline"),
        charged=charged,
        stress=stress,
        atoms=atoms,
    )
    if values.get("optimizer", settings["optimizer"]) != settings["optimizer"]:
        for key in ("betas", "learning_rate", "weight_decay", "muon_edges"):
            settings.pop(key, None)
    if "batch_atoms" in values or "batch_edges" in values:
        settings.pop("batch", None)
    elif "batch" in values:
        settings.pop("batch_atoms", None)
    logger.info("No length is given, so what is left out is that of the recipe for %s data.", kind)
    own = dict(values)
    if isinstance(loss := own.get("loss"), Mapping):
        own["loss"] = LossConfig.current_names(loss)
    return _fill_in(own, settings)


def _fill_in(values: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Values, and settings where there is none, mapping by mapping."""
    result = {**settings, **values}
    for key, inner in settings.items():
        if isinstance(inner, Mapping) and isinstance(values.get(key), Mapping):
            result[key] = _fill_in(values[key], inner)
    return result


def _prior_text(kind: str) -> str:
    if kind in _FINE_TUNED:
        return "to fine-tune with AdamW for few steps, as more of them fit noise"
    return "a baseline: the network learns what it leaves of the labels, and the sum is written"


def training_text(head: Iterable[str], settings: Mapping[str, Any]) -> str:
    """A train.yaml in which each key has the docstring of its field as a comment.

    Args:
        head: lines of the comment at the top.
        settings: values of `TrainConfig`, nested.
    """
    lines = [line for text in head for line in comment(printable(text))]
    lines += ["#", *comment(inspect.cleandoc(TrainConfig.__doc__ or ""))]
    order = list(TrainConfig.model_fields)
    settings = dict(sorted(settings.items(), key=lambda item: order.index(item[0])))
    lines += commented_keys(TrainConfig, settings)
    return "\n".join(lines) + "\n"
