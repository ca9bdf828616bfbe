"""What a training starts from: the data, their split, and a potential with references."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mdgraph.checkpoints import load
from mdgraph.data import Dataset, LabelledFrame, Split, read_split
from mdgraph.data.splits import random_split
from mdgraph.elements import SYMBOLS
from mdgraph.errors import InputError, name_some
from mdgraph.host_memory import available_host_memory, check_fits
from mdgraph.models import TensorNetConfig, TensorNetPotential
from mdgraph.train.configuration import TrainConfig
from mdgraph.train.course import training_hash
from mdgraph.train.labels import has_dipole, has_stress
from mdgraph.train.progress import Checkpoint
from mdgraph.train.references import isolated_atoms, single_atoms
from mdgraph.train.transfer import with_elements

logger = logging.getLogger(__name__)

_BYTES_A_PARAMETER: Final = 48
"""Itself, its gradient, two of an optimiser, the mean and a copy to go back to, in float64."""

_FIXED: Final = "fixed."
"""Begins the names, in a checkpoint, of what a training leaves as it is."""


@dataclass(frozen=True, eq=False)
class Parts:
    """Frames by what they are for, ascending; frames of single atoms may be left out."""

    train: NDArray[np.int64]
    validation: NDArray[np.int64]
    test: NDArray[np.int64]

    @property
    def every(self) -> NDArray[np.int64]:
        """All of them, ascending."""
        return np.sort(np.concatenate([self.train, self.validation, self.test]))


def chosen_split(config: TrainConfig, dataset: Dataset) -> Split:
    """The split of the configuration, or a tenth at random."""
    if config.split is not None:
        return read_split(config.split, dataset)
    return random_split(dataset, 0.1, 0.0, config.seed)


def chosen_parts(dataset: Dataset, split: Split, fixed_references: bool) -> Parts:
    """Frames of each part; isolated atoms that gave the references are fitted no more."""
    single = np.zeros(0, dtype=np.int64)
    if fixed_references and isolated_atoms(dataset):
        single = single_atoms(dataset)
    parts = [np.setdiff1d(part, single) for part in (split.train, split.validation, split.test)]
    for name, part in zip(("train", "validation"), parts, strict=False):
        if not len(part):
            raise InputError(f"Without isolated atoms no frame is left for {name}; split again.")
    return Parts(*parts)


def new_potential(config: TrainConfig, dataset: Dataset, name: str) -> TensorNetPotential:
    """A potential with random weights, or the one to go on from, in float64 on the CPU."""
    numbers = [int(number) for number in np.unique(dataset.numbers())]
    about = {
        "name": name,
        "level_of_theory": config.level_of_theory
        or _agreed([source.level_of_theory for source in dataset.sources]),
        "licence": config.licence or _agreed([source.licence for source in dataset.sources]),
        "training_hash": training_hash(config, dataset),
    }
    if config.start_from is not None:
        potential, said = with_elements(load(config.start_from), numbers)
        if said:
            logger.warning("%s", said)
        potential.config = potential.config.model_copy(update=about)
        return potential
    if any(one.kind == "torchmdnet_network" for one in config.potential.repulsion):
        raise InputError(
            "potential.repulsion: the ranges of torchmdnet_network come with a checkpoint alone; "
            "take matgl or torchmdnet_prior, or start_from a checkpoint."
        )
    network = TensorNetConfig(species=tuple(numbers), **config.potential.model_dump(), **about)
    with torch.device("meta"):
        count = TensorNetPotential(network).parameter_count
    check_fits(
        _BYTES_A_PARAMETER * count,
        available_host_memory(),
        f"A network of {count:,} parameters",
        "take fewer channels or layers",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        potential = TensorNetPotential(network)
        if config.initialization == "normalized":
            _normalize_(potential)
        return potential


def _normalize_(potential: TensorNetPotential) -> None:
    for module in potential.modules():
        if isinstance(module, torch.nn.Linear):
            torch.nn.init.normal_(module.weight, std=module.in_features**-0.5)
            if module.bias is not None:
                torch.nn.init.zeros_(module.bias)


def begun_potential(checkpoint: Checkpoint) -> TensorNetPotential:
    """The potential of a training under way, in float64 on the CPU; trained weights are random."""
    potential = TensorNetPotential(checkpoint.network)
    fixed = {
        name.removeprefix(_FIXED): value
        for name, value in checkpoint.tensors.items()
        if name.startswith(_FIXED)
    }
    potential.load_state_dict(fixed, strict=False)
    return potential


def fixed_tensors(
    potential: TensorNetPotential, trained: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """What a checkpoint holds of a potential beside the weights that are trained."""
    return {
        f"{_FIXED}{name}": value
        for name, value in potential.state_dict().items()
        if name not in trained
    }


def check_labels(
    config: TrainConfig, potential: TensorNetPotential, dataset: Dataset, parts: Parts
) -> None:
    """Raises InputError where the loss asks for what charges, labels or lists cannot give."""
    loss = config.loss
    if any(loss.dipole.weight) and potential.config.architecture != "tensornet2":
        raise InputError(
            "loss.dipole needs charges, which TensorNet has not; take architecture tensornet2, or "
            "leave the dipole out."
        )

    def lacks(name: str) -> bool:
        return not any(map(_LABELS[name], dataset.frames(parts.train)))

    asked = {name: held for name, held in _LABELS.items() if any(getattr(loss, name).weight)}
    kinds = {"dipole": "neutral training frame without", "stress": "training frame with"}
    for name, kind in kinds.items():
        if name in asked and lacks(name):
            raise InputError(
                f"loss.{name}: no {kind} a cell has a {name}; import them with --{name}-key, or "
                f"leave the {name} out."
            )
    if any(loss.displaced.weight):
        largest, cutoff = loss.displaced.largest, potential.cutoffs[0]
        if largest > 0.5 * cutoff:
            raise InputError(
                f"loss.displaced.largest is {largest:g} A, and pairs are those within the cutoff "
                f"of {cutoff:g} A before a move; give at most half of that."
            )
        if lacks("energy"):
            raise InputError(
                "loss.displaced: no training frame has an energy, and frames count by its weight; "
                "import energies with --energy-key, or leave displaced out."
            )
    for name, label in (("energy", "an energy"), ("forces", "forces")):
        if name in asked and lacks(name):
            logger.warning(
                "No training frame has %s, so loss.%s counts for nothing; import them with "
                "--%s-key, if there are any.",
                *(label, name, name),
            )
    for part, frames in (("training", parts.train), ("validation", parts.validation)):
        weighty = (frame for frame in dataset.frames(frames) if frame.weight > 0.0)
        if not any(held(frame) for frame in weighty for held in asked.values()):
            raise InputError(
                f"No {part} frame has a label of what the loss asks for; import more, split "
                "again, or change the loss."
            )


_LABELS: Final[dict[str, Callable[[LabelledFrame], bool]]] = {
    "energy": lambda frame: bool(np.isfinite(frame.energy)),
    "forces": lambda frame: frame.forces is not None and bool(np.isfinite(frame.forces).any()),
    "stress": has_stress,
    "dipole": has_dipole,
}


def _agreed(texts: list[str]) -> str:
    return "; ".join(dict.fromkeys(text for text in texts if text))


def at_training_precision(potential: TensorNetPotential, config: TrainConfig) -> None:
    """Casts the network, in place; references, scale and sums stay float64."""
    if config.precision != "double":
        for module in (potential.network, potential.readout, potential.coulomb):
            if module is not None:
                module.float()
        for trained in potential.repulsions.parameters():
            trained.data = trained.data.float()


def trained_weights(potential: TensorNetPotential, freeze: tuple[str, ...]) -> dict[str, Tensor]:
    """Weights by name, without those that are frozen.

    Raises:
        InputError: a name that begins no weight's, or nothing is left.
    """
    every = dict(potential.named_parameters())

    def begins(name: str, start: str) -> bool:
        plain = name.removeprefix("network.")
        return any(one == start or one.startswith(f"{start}.") for one in (name, plain))

    for start in freeze:
        if not any(begins(name, start) for name in every):
            known = sorted({".".join(name.split(".")[:3]) for name in every})
            raise InputError(
                f"freeze: no weight begins with '{start}'; there are {name_some(known, 20)}."
            )
    kept: dict[str, Tensor] = {
        name: value
        for name, value in every.items()
        if not any(begins(name, start) for start in freeze)
    }
    for name, value in every.items():
        value.requires_grad_(name in kept)
    if not kept:
        raise InputError("freeze leaves no weight to train; name fewer.")
    return kept


def describe_start(dataset: Dataset, parts: Parts, potential: TensorNetPotential) -> str:
    """One sentence about what is trained on what."""
    elements = " ".join(SYMBOLS[number] for number in np.unique(dataset.numbers()))
    sizes = f"{len(parts.train)} frames for training, {len(parts.validation)} for validation"
    if len(parts.test):
        sizes += f", {len(parts.test)} for test"
    return f"{potential.parameter_count} parameters, elements {elements}; {sizes}."
