"""Prepares a training: data, split, references, and a potential that may be transferred."""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mdgraph.checkpoints import load
from mdgraph.data import Dataset, LabelledFrame, Split, open_dataset, read_split, write_split
from mdgraph.data.splits import random_split
from mdgraph.devices import device_named
from mdgraph.errors import InputError, name_some
from mdgraph.host_memory import available_host_memory, check_fits
from mdgraph.models import (
    PotentialModule,
    TensorNetPotential,
    check_coulomb_range,
)
from mdgraph.models.potential import FINITE_COULOMB
from mdgraph.train.baseline import (
    DIFFERENCE_FILE,
    Baseline,
    open_differences,
    read_baseline,
    write_differences,
)
from mdgraph.train.batches import FrameStore
from mdgraph.train.config import TrainConfig
from mdgraph.train.distributed import Processes, join_processes
from mdgraph.train.evaluation import energies_of
from mdgraph.train.progress import CHECKPOINT, SPLIT, Checkpoint, read_checkpoint, training_hash
from mdgraph.train.references import (
    add_residual,
    force_scale,
    isolated_atoms,
    reference_energies,
    set_references,
    single_atoms,
)
from mdgraph.train.tables import has_dipole, has_stress
from mdgraph.units import SYMBOLS

logger = logging.getLogger(__name__)

_NOBLE: Final = (0, 2, 10, 18, 36, 54, 86, 118)


def with_elements(
    potential: TensorNetPotential, numbers: Iterable[int]
) -> tuple[TensorNetPotential, str]:
    """A copy with these elements, and a sentence about new ones; the potential itself without any.

    A new element starts as a copy of the nearest known one, by group and period together, with a
    reference energy of 0. Energies of structures without new elements do not change.

    Args:
        potential: trained.
        numbers: atomic numbers.
    """
    known = potential.species
    new = sorted(set(numbers) - set(known))
    if not new:
        return potential, ""
    donors = [min(known, key=lambda old: _distance(number, old)) for number in new]
    places = [known.index(donor) for donor in donors]
    extended = potential.config.model_copy(update={"species": (*known, *new)})
    wider = TensorNetPotential(extended)
    state = potential.state_dict()
    for name in potential.species_tables:
        added = state[name][places]
        state[name] = torch.cat([state[name], added if added.ndim > 1 else 0.0 * added])
    wider.load_state_dict(state)
    pairs = ", ".join(
        f"{SYMBOLS[number]} as {SYMBOLS[donor]}" for number, donor in zip(new, donors, strict=True)
    )
    return wider, f"New to the potential, elements begin as the nearest that it knows: {pairs}."


def with_only(potential: TensorNetPotential, numbers: Iterable[int]) -> TensorNetPotential:
    """A copy without the other elements; energies of structures of these stay the same bits.

    Args:
        potential: that knows these elements; itself if it knows no others.
        numbers: atomic numbers.
    """
    chosen = set(numbers)
    places = [row for row, number in enumerate(potential.species) if number in chosen]
    if len(places) == len(potential.species):
        return potential
    species = tuple(potential.species[row] for row in places)
    narrower = type(potential)(potential.config.model_copy(update={"species": species}))
    state = potential.state_dict()
    for name in potential.species_tables:
        state[name] = state[name][places]
    narrower.load_state_dict(state)
    return narrower


def _distance(first: int, second: int) -> tuple[int, int, int]:
    """Distance in groups and periods; at equal distance an element of the same group is nearer."""
    (group, period), (column, row) = _place(first), _place(second)
    across = abs(group - column)
    return across + abs(period - row), across, abs(first - second)


def _place(number: int) -> tuple[int, int]:
    """Group and period of an element; lanthanides and actinides stand in group 3."""
    period = next(row for row, last in enumerate(_NOBLE) if number <= last)
    place, length = number - _NOBLE[period - 1], _NOBLE[period] - _NOBLE[period - 1]
    if place > 2:
        place = max(3, place - length + 18) if length > 18 else place + 18 - length
    elif number == 2:
        place = 18
    return place, period


_BYTES_A_PARAMETER: Final = 48
"""Itself, its gradient, two of an optimizer, the mean and a copy for a rollback, in float64."""

_FIXED: Final = "fixed."
"""Prefix, in a checkpoint, of the names of weights that are not trained."""


@dataclass(frozen=True, eq=False)
class Parts:
    """Frames of each part, ascending; frames of single atoms may be left out."""

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


def make_parts(dataset: Dataset, split: Split, fixed_references: bool) -> Parts:
    """Frames of each part; isolated atoms that gave the references are left out."""
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
        or _distinct_texts([source.level_of_theory for source in dataset.sources]),
        "licence": config.licence
        or _distinct_texts([source.licence for source in dataset.sources]),
        "training_hash": training_hash(config, dataset),
    }
    if config.start_from is not None:
        potential, sentence = with_elements(
            trainable(load(config.start_from), f"start_from: {config.start_from}"), numbers
        )
        if sentence:
            logger.warning("%s", sentence)
        if config.elements == "data":
            potential = with_only(potential, numbers)
        potential.config = potential.config.model_copy(update=about)
        return potential
    if any(term.kind == "torchmdnet_network" for term in config.potential.repulsion):
        raise InputError(
            "potential.repulsion: the ranges of torchmdnet_network come with a checkpoint alone; "
            "take matgl or torchmdnet_prior, or start_from a checkpoint."
        )
    network = config.potential.of(numbers, **about)
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


def potential_of_checkpoint(checkpoint: Checkpoint) -> TensorNetPotential:
    """The potential of a checkpoint, in float64 on the CPU; trained weights are still random."""
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
    """Weights and buffers for a checkpoint that are not trained."""
    return {
        f"{_FIXED}{name}": value
        for name, value in potential.state_dict().items()
        if name not in trained
    }


def check_labels(
    config: TrainConfig, potential: TensorNetPotential, dataset: Dataset, parts: Parts
) -> None:
    """Raises InputError if a term of the loss lacks charges, labels, pairs or atoms."""
    loss = config.loss
    absent = set(loss.elements) - {SYMBOLS[number] for number in np.unique(dataset.numbers())}
    if absent:
        raise InputError(
            f"loss.elements weighs {name_some(sorted(absent))}, and no frame has such atoms; "
            "correct the symbol, or leave it out."
        )
    if any(loss.dipole.weight) and not potential.predicts_charges:
        raise InputError(
            "loss.dipole needs charges, which TensorNet has not; take architecture tensornet2, or "
            "leave the dipole out."
        )

    def lacks(name: str) -> bool:
        return not any(map(_LABELS[name], dataset.frames(parts.train)))

    labels = {name: has for name, has in _LABELS.items() if any(getattr(loss, name).weight)}
    carriers = {"dipole": "neutral training frame without", "stress": "training frame with"}
    for name, carrier in carriers.items():
        if name in labels and lacks(name):
            raise InputError(
                f"loss.{name}: no {carrier} a cell has a {name}; import them with --{name}-key, or "
                f"leave the {name} out."
            )
    if any(loss.perturbation.weight):
        largest, cutoff = loss.perturbation.max_displacement, potential.cutoffs[0]
        if largest > 0.5 * cutoff:
            raise InputError(
                f"loss.perturbation.max_displacement is {largest:g} A, and pairs are those within "
                f"the cutoff of {cutoff:g} A before a move; give at most half of that."
            )
        if config.keep == "best":
            logger.warning(
                "keep: best chooses by validation, which does not see loss.perturbation, so it may "
                "keep an early step that this term has hardly changed; give keep: last."
            )
        if lacks("energy"):
            raise InputError(
                "loss.perturbation: no training frame has an energy, and frames count by its "
                "weight; import energies with --energy-key, or leave perturbation out."
            )
    for name, label in (("energy", "an energy"), ("forces", "forces")):
        if name in labels and lacks(name):
            logger.warning(
                "No training frame has %s, so loss.%s counts for nothing; import them with "
                "--%s-key, if there are any.",
                *(label, name, name),
            )
    for part, frames in (("training", parts.train), ("validation", parts.validation)):
        weighty = (frame for frame in dataset.frames(frames) if frame.weight > 0.0)
        if not any(has(frame) for frame in weighty for has in labels.values()):
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


def trainable(potential: PotentialModule, name: str) -> TensorNetPotential:
    """The potential; raises InputError where its architecture cannot be trained here."""
    if not isinstance(potential, TensorNetPotential):
        raise InputError(
            f"{name} is of the architecture {potential.config.architecture}, which is not trained "
            "by mdgraph; give a TensorNet or a TensorNet2."
        )
    return potential


def _distinct_texts(texts: list[str]) -> str:
    return "; ".join(dict.fromkeys(text for text in texts if text))


def at_training_precision(potential: TensorNetPotential, config: TrainConfig) -> None:
    """Casts the network, in place; references, scale and sums stay float64."""
    if config.precision != "double":
        potential.cast_(torch.float32)
        for trained in potential.repulsions.parameters():
            trained.data = trained.data.float()


def trainable_weights(potential: TensorNetPotential, freeze: tuple[str, ...]) -> dict[str, Tensor]:
    """Trained weights by name, without those that are frozen.

    Raises:
        InputError: no weight has such a prefix, or all are frozen.
    """
    every = dict(potential.named_parameters())

    def begins(name: str, start: str) -> bool:
        plain = name.removeprefix("network.")
        return any(word == start or word.startswith(f"{start}.") for word in (name, plain))

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
    """One sentence about the network and the frames."""
    elements = " ".join(SYMBOLS[number] for number in np.unique(dataset.numbers()))
    sizes = f"{len(parts.train)} frames for training, {len(parts.validation)} for validation"
    if len(parts.test):
        sizes += f", {len(parts.test)} for test"
    return f"{potential.parameter_count} parameters, elements {elements}; {sizes}."


_FITTED = 2000
"""Most frames that reference energies are fitted to."""

_FEW = 0.1
"""Smallest share of atoms with neighbors that causes no warning."""


@dataclass(frozen=True, eq=False)
class PreparedTraining:
    """Data and potential on the device, with references and scale, and a checkpoint if resumed.

    Attributes:
        dataset: what is fitted: the labels, or what the baselines leave of them.
        labels: the data set of the configuration.
        baseline: taken off the labels, if the configuration has one.
        potential: that is trained.
    """

    config: TrainConfig
    folder: Path
    processes: Processes
    dataset: Dataset
    parts: Parts
    potential: TensorNetPotential
    weights: dict[str, Tensor]
    store: FrameStore
    checkpoint: Checkpoint | None
    labels: Dataset
    baseline: Baseline | None

    @property
    def name(self) -> str:
        """Of the potential that is written."""
        return _name(self.config)

    def whole(self) -> PotentialModule:
        """What the training gives: the potential, or the sum of it and the baselines."""
        if self.baseline is None:
            return self.potential
        return self.baseline.plus(self.potential, self.name)

    def fit_references(self, by_element: dict[str, float] | None = None) -> str:
        """Sets reference energies, or without any fits them; returns a sentence about it."""
        frames = self.parts.train
        if len(frames) > _FITTED:
            random = np.random.default_rng(self.config.seed)
            frames = np.sort(random.choice(frames, _FITTED, False))
        energies = partial(energies_of, self.potential, self.store)
        if by_element is None:
            return add_residual(self.potential, self.dataset, frames, energies)
        return set_references(self.potential, self.dataset, frames, by_element, energies)


def _check_neighbors(store: FrameStore, frames: NDArray[np.int64]) -> None:
    """Warns if hardly any atom of these frames has a neighbor; reads the device."""
    atoms = near = 0
    for shape, table in enumerate(store.tables):
        rows = torch.from_numpy(store.rows_of(shape, frames)).to(table.atoms.device)
        atoms += int(table.atoms[rows].sum())
        near += int((table.count[0][rows] > 0).sum())
    if near < _FEW * atoms:
        logger.warning(
            "Of %d atoms in training frames %d have a neighbor within %g A, so there is next to "
            "nothing to learn; take a larger cutoff, or if positions are not in A convert the "
            "data again with --length-unit.",
            *(atoms, near, store.tables[0].cutoffs[0]),
        )


def _check_charges(config: TrainConfig, dataset: Dataset, frames: NDArray[np.int64]) -> None:
    """Warns of total charges of these frames, of which a network takes no notice."""
    charges = dataset.charge[frames]
    charges = charges[charges != 0.0]
    if not len(charges):
        return
    cure = "take charge_factor: true into potential"
    if config.start_from is not None:
        cure = "start_from a potential that knows charges"
    logger.warning(
        "%d frames have a total charge (%s e), of which the network takes no notice, and what "
        "comes out refuses such structures; %s, or import the frames without charges "
        "(--charge-key none).",
        *(len(charges), name_some([f"{charge:g}" for charge in np.unique(charges)]), cure),
    )


def _keep_split(split: Split, path: Path, dataset: Dataset) -> None:
    """Writes the split beside the potential; raises InputError if another one is there."""
    if path.exists():
        before = [part.tolist() for _, part in read_split(path, dataset).parts()]
        if before != [part.tolist() for _, part in split.parts()]:
            raise InputError(
                f"{path} holds another split than the training is to have; name it with split, or "
                "give another folder."
            )
        return
    write_split(split, path)


def _name(config: TrainConfig) -> str:
    return config.name or Path(config.out).resolve().name


def _differences(
    folder: Path,
    labels: Dataset,
    baseline: Baseline,
    device: torch.device,
    processes: Processes,
) -> Dataset:
    """The data set of differences in the folder, which the first process writes if need be."""
    path = folder / DIFFERENCE_FILE
    if processes.first and not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        write_differences(path, labels, baseline, device)
    processes.all_true(True, device)  # wait until it is there
    return open_differences(path, labels, baseline)


def prepare(config: TrainConfig, resume: bool, quiet: bool) -> PreparedTraining:
    """Reads data, builds lists, fits references; a new training writes its split into its folder.

    Raises:
        FileError, InputError, CheckpointError: the data, split or potential cannot be used.
    """
    folder, device = Path(config.out), device_named(config.device)
    processes = join_processes(device)
    if device.type == "cuda" and processes.count > 1:
        device = device_named(f"cuda:{processes.local}")
        torch.cuda.set_device(device)
    checkpoint = read_checkpoint(folder / CHECKPOINT) if resume else None
    shares = checkpoint.progress.shares if checkpoint else processes.count
    labels = dataset = open_dataset(config.data)
    if resume:
        remedy = "put back what it was, or start anew in another folder"
        split = read_split(folder / SPLIT, dataset, remedy)
    else:
        split = chosen_split(config, dataset)
    baseline = read_baseline(config.baseline) if config.baseline else None
    if baseline is not None:
        dataset = _differences(folder, labels, baseline, device, processes)
    references = reference_energies(config, dataset)
    parts = make_parts(labels, split, references is not None or baseline is not None)
    name = _name(config) if baseline is None else "difference"
    potential = (
        potential_of_checkpoint(checkpoint) if checkpoint else new_potential(config, dataset, name)
    )
    check_labels(config, potential, dataset, parts)
    own = "a cutoff, as in potential.coulomb: {cutoff: 10}"
    advice = own if config.start_from is None else FINITE_COULOMB
    check_coulomb_range(potential.cutoffs, bool(dataset.pbc.any()), advice)
    at_training_precision(potential, config)
    potential.to(device)
    weights = trainable_weights(potential, config.freeze)
    if processes.first:
        logger.info("Neighbor lists of %d frames are built.", len(parts.every))
    store = FrameStore(
        dataset,
        parts.every,
        parts.train,
        potential,
        config,
        least=shares,
        quiet=quiet or not processes.first,
    )
    prepared = PreparedTraining(
        *(config, folder, processes, dataset, parts, potential, weights, store, checkpoint),
        labels,
        baseline,
    )
    if processes.first:
        several = np.setdiff1d(parts.train, single_atoms(dataset))
        _check_neighbors(store, several)
        if not (potential.uses_charge or (baseline is not None and baseline.potential.uses_charge)):
            _check_charges(config, dataset, several)
    sentences = [describe_start(dataset, parts, potential)]
    if not resume:
        if config.start_from is None:
            potential.scale.fill_(force_scale(dataset, parts.train))
        if config.references != "none":
            if processes.first:
                logger.info("The network is evaluated once, for reference energies.")
            sentences.append(prepared.fit_references(references))
        if processes.first:
            folder.mkdir(parents=True, exist_ok=True)
            _keep_split(split, folder / SPLIT, dataset)
    if processes.first:
        for sentence in sentences:
            logger.info("%s", sentence)
    return prepared
