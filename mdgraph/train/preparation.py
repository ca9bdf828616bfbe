"""Everything a training needs before its first step."""

import logging
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mdgraph.data import Dataset, Split, open_dataset, read_split, write_split
from mdgraph.devices import device_named
from mdgraph.errors import InputError
from mdgraph.models import TensorNetPotential
from mdgraph.train.configuration import TrainConfig
from mdgraph.train.evaluation import energies_of
from mdgraph.train.frames import FrameStore
from mdgraph.train.processes import Processes, join_processes
from mdgraph.train.progress import CHECKPOINT, SPLIT, Checkpoint, read_checkpoint
from mdgraph.train.references import (
    add_residual,
    chosen_references,
    force_scale,
    set_references,
    single_atoms,
)
from mdgraph.train.start import (
    Parts,
    at_training_precision,
    begun_potential,
    check_labels,
    chosen_parts,
    chosen_split,
    describe_start,
    new_potential,
    trained_weights,
)

logger = logging.getLogger(__name__)

_FITTED = 2000
"""Frames that reference energies are fitted on, at most."""

_FEW = 0.1
"""Share of the atoms with neighbors below which something is wrong."""


@dataclass(frozen=True, eq=False)
class Prepared:
    """Data and potential on the device, with references and scale set; what it goes on from."""

    config: TrainConfig
    folder: Path
    processes: Processes
    dataset: Dataset
    parts: Parts
    potential: TensorNetPotential
    weights: dict[str, Tensor]
    store: FrameStore
    begun: Checkpoint | None

    def fit_references(self, given: dict[str, float] | None = None, *, anew: bool = True) -> str:
        """Sets reference energies, or with `anew` False mends them; says how."""
        frames, fitted = self.parts.train, self.parts.train
        if len(frames) > _FITTED:
            chosen = np.random.default_rng(self.config.seed).choice(frames, _FITTED, False)
            fitted = np.sort(chosen)

        def energies(wanted: NDArray[np.int64]) -> NDArray[np.float64]:
            return energies_of(self.potential, self.store, wanted)

        if anew:
            return set_references(self.potential, self.dataset, fitted, given, energies)
        return add_residual(self.potential, self.dataset, fitted, energies)


def _check_neighbors(store: FrameStore, frames: NDArray[np.int64]) -> None:
    """Warns where next to no atom of these frames has a neighbor; reads the device."""
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


def _keep_split(split: Split, path: Path, dataset: Dataset) -> None:
    """Writes the split beside the potential; raises InputError where another one is there."""
    if path.exists():
        before = [one.tolist() for _, one in read_split(path, dataset).parts()]
        if before != [one.tolist() for _, one in split.parts()]:
            raise InputError(
                f"{path} holds another split than the training is to have; name it with split, or "
                "give another folder."
            )
        return
    write_split(split, path)


def prepare(config: TrainConfig, resume: bool, quiet: bool) -> Prepared:
    """Reads, builds lists, fits references; a new training writes its start into its folder.

    Raises:
        FileError, InputError, CheckpointError: the data, split or potential cannot be used.
    """
    folder, device = Path(config.out), device_named(config.device)
    processes = join_processes(device)
    if device.type == "cuda" and processes.count > 1:
        device = device_named(f"cuda:{processes.local}")
        torch.cuda.set_device(device)
    begun = read_checkpoint(folder / CHECKPOINT) if resume else None
    shares = begun.progress.shares if begun else processes.count
    dataset = open_dataset(config.data)
    if resume:
        remedy = "put back what it was, or start anew in another folder"
        split = read_split(folder / SPLIT, dataset, remedy)
    else:
        split = chosen_split(config, dataset)
    given = chosen_references(config, dataset)
    parts = chosen_parts(dataset, split, given is not None)
    name = config.name or folder.resolve().name
    potential = begun_potential(begun) if begun else new_potential(config, dataset, name)
    check_labels(config, potential, dataset, parts)
    at_training_precision(potential, config)
    potential.to(device)
    weights = trained_weights(potential, config.freeze)
    store = FrameStore(
        dataset,
        parts.every,
        parts.train,
        potential,
        config,
        least=shares,
        quiet=quiet or not processes.first,
    )
    found = Prepared(config, folder, processes, dataset, parts, potential, weights, store, begun)
    if processes.first:
        _check_neighbors(store, np.setdiff1d(parts.train, single_atoms(dataset)))
    said = [describe_start(dataset, parts, potential)]
    if not resume:
        if config.start_from is None:
            potential.scale.fill_(force_scale(dataset, parts.train))
        if config.references != "none":
            said.append(found.fit_references(given))
        if processes.first:
            folder.mkdir(parents=True, exist_ok=True)
            _keep_split(split, folder / SPLIT, dataset)
    if processes.first:
        for sentence in said:
            logger.info("%s", sentence)
    return found
