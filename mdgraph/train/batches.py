"""Batches of B frames of one shape, what a potential predicts for them, and where they come from.

All frames lie as padded tables on the device, where they fit, or on the host. Which of them make up
each step is a pure function of the seed and the step.
"""

import logging
import os
import queue
import threading
import time
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from tqdm import tqdm

from mdgraph.data import Dataset
from mdgraph.errors import InputError, name_some
from mdgraph.memory import available_memory
from mdgraph.models import Atoms, TrainablePotential
from mdgraph.models.ops.messages import forces_and_virials
from mdgraph.neighbors import PairBlock, Pairs
from mdgraph.neighbors.pairs import Undirected
from mdgraph.state import Grouping
from mdgraph.train.config import TrainConfig
from mdgraph.train.distributed import Processes
from mdgraph.train.progress import Progress
from mdgraph.train.tables import Storage, Table, frame_lists, make_table, plan_shapes
from mdgraph.units import NUMBERS

logger = logging.getLogger(__name__)

_SHARE: Final = 0.5
"""Share of the device's free memory that frames may take, and of the host's."""

_AHEAD: Final = 3
"""Batches prepared before they are needed."""

_ATOMS: Final = {"cpu": 512, "cuda": 2048}
"""Most atoms in a batch that is only evaluated, by device."""

_STEPS: Final = 4
"""Such a batch is at most this many times that of a step, whose memory it then takes, since a step
keeps intermediate results for two derivatives."""


@dataclass(frozen=True)
class Inputs:
    """Labels of the frames of a batch, and inputs of a potential.

    Attributes:
        labels: of the frames.
        atoms: of all frames, padding included.
        pairs: for each cutoff, the pairs of all frames.
    """

    labels: Table
    atoms: Atoms
    pairs: tuple[Pairs, ...]


@dataclass(frozen=True)
class Prediction:
    """What a potential predicts for B frames.

    Attributes:
        energy: (B,) float64 eV.
        forces: (B, N, 3) float64 eV/A; 0 on padding.
        stress: (B, 3, 3) float64 eV/A^3, symmetric; meaningless without a volume.
        dipole: (B, 3) float64 e A, of the partial charges; 0 where there are none.
    """

    energy: Tensor
    forces: Tensor
    stress: Tensor
    dipole: Tensor


class Batch:
    """Static buffers for B frames of a table, those that `frames` names.

    Attributes:
        table: holds the frames.
        frames: (B,) int64, rows of the table.
        random: (B, 1 + N, 3) float64, perturb each frame, see `losses.draw_numbers`.
        share: of the frames of a full step. If a shape has too few frames for one, its steps count
            for less, so that every frame counts the same.
    """

    def __init__(self, table: Table, size: int, elements: Tensor) -> None:
        device = elements.device
        self.table = table
        self.share = 1.0
        self.frames = torch.zeros(size, dtype=torch.int64, device=device)
        self.random = torch.zeros(size, 1 + table.size, 3, dtype=torch.float64, device=device)
        self._elements = elements
        self._grouping = Grouping([table.size] * size, device)
        self._first = torch.arange(size, dtype=torch.int32, device=device)[:, None, None]

    def __len__(self) -> int:
        return len(self.frames)

    def inputs(self) -> Inputs:
        """Labels of the frames, and inputs of a potential; capturable, does not sync."""
        rows = self.table.rows(self.frames)
        # What is divided among the atoms of a system leaves out padding.
        self._grouping.counts.copy_(rows.atoms)
        pairs = tuple(self._pairs(rows, number) for number in range(len(rows.cutoffs)))
        kinds = rows.kinds.flatten()
        elements = self._elements.index_select(0, kinds)
        atoms = Atoms(elements, self._elements, kinds, rows.charge, self._grouping)
        return Inputs(rows, atoms, pairs)

    def predict(
        self, potential: TrainablePotential, differentiable: bool
    ) -> tuple[Prediction, Inputs]:
        """Prediction and inputs of the frames; static shapes, capturable, does not sync.

        Args:
            potential: any TensorNet.
            differentiable: whether a loss of forces will be differentiated.
        """
        inputs = self.inputs()
        rows, pairs, size = inputs.labels, inputs.pairs, len(self)
        energies, charges = potential.energies_and_charges(inputs.atoms, pairs)
        energy = self._summed(energies, inputs)
        leaves = [listed.vectors[0] for listed in pairs]
        # Another thread would multiply matrices in workspaces of its own.
        with torch.autograd.set_multithreading_enabled(False):
            gradients = torch.autograd.grad(
                energy.sum(),
                leaves,
                create_graph=differentiable,
                allow_unused=True,
                materialize_grads=True,
            )
        forces, virials = forces_and_virials(pairs[0], gradients[:1])
        for further, gradient in zip(pairs[1:], gradients[1:], strict=True):
            force, virial = forces_and_virials(further, [gradient])
            forces, virials = forces + force, virials + virial
        virial = virials.view(size, -1, 3, 3).sum(1)
        stress = -0.5 * (virial + virial.transpose(1, 2)) / rows.volume[:, None, None]
        dipole = torch.zeros_like(rows.dipole)
        if charges is not None:
            dipole = (charges.view(size, -1, 1) * rows.positions).sum(1)
        return Prediction(energy, forces.view(size, -1, 3), stress, dipole), inputs

    def energy(self, potential: TrainablePotential, inputs: Inputs) -> Tensor:
        """(B,) float64 eV of the frames alone, with static shapes; does not sync."""
        return self._summed(potential(inputs.atoms, inputs.pairs), inputs)

    def _summed(self, energies: Tensor, inputs: Inputs) -> Tensor:
        """(B,) sums over the atoms that are no padding."""
        return (energies.view(len(self), -1) * inputs.labels.present).sum(1)

    def perturbed_energy(
        self, potential: TrainablePotential, inputs: Inputs, displacement: Tensor
    ) -> Tensor:
        """(B,) float64 eV of displaced atoms, with the lists of the frames as they are; capturable.

        Pairs that come near from beyond the cutoff are left out, so displacements must be short.

        Args:
            potential: any TensorNet.
            inputs: of the frames, from `predict`.
            displacement: (B, N, 3) A.
        """
        vectors = displacement.flatten(0, 1)
        pairs = tuple(_displace(listed, vectors) for listed in inputs.pairs)
        energies, _ = potential.energies_and_charges(inputs.atoms, pairs)
        return self._summed(energies, inputs)

    def _pairs(self, rows: Table, number: int) -> Pairs:
        atoms, slots = rows.index[number].shape[1:]
        index = (rows.index[number] + self._first * atoms).view(-1, slots)
        reverse = (rows.reverse[number][:, None] + self._first * (atoms * slots)).flatten()
        count = rows.count[number].flatten()
        valid = torch.arange(slots, device=index.device) < count[:, None]
        vectors = rows.vectors[number].view(-1, slots, 3).double()
        block = PairBlock(vectors.requires_grad_(), index, valid)
        undirected = self._undirected(rows, reverse) if number == 0 else None
        return Pairs((block,), index, count, reverse, rows.cutoffs[number], undirected)

    def _undirected(self, rows: Table, reverse: Tensor) -> Undirected:
        first, slots = self._first[:, :, 0], rows.number.shape[1]
        most = rows.forward.shape[1]
        forward = (rows.forward + first * slots).flatten()
        number = (rows.number + first * most).view(rows.index[0].shape).flatten(0, 1)
        valid = torch.arange(most, device=forward.device) < rows.pairs[:, None]
        return Undirected(forward, reverse.index_select(0, forward), valid.flatten(), number)


def _displace(pairs: Pairs, displacement: Tensor) -> Pairs:
    """Pairs of atoms displaced by (B N, 3) A."""
    (block,) = pairs.blocks
    shift = displacement[block.index] - displacement[:, None]
    vectors = block.vectors.detach() + block.valid[..., None] * shift
    return replace(pairs, blocks=(replace(block, vectors=vectors),))


class FrameStore:
    """Frames by shape.

    Attributes:
        shapes: of the tables.
        tables: one for each shape, on the device or, if they do not fit, on the host.
        resident: whether they are on the device.
        elements: (E,) int64, atomic numbers in the data, ascending.
        waited: seconds that steps waited for frames.
    """

    def __init__(
        self,
        dataset: Dataset,
        frames: NDArray[np.int64],
        trained: NDArray[np.int64],
        potential: TrainablePotential,
        config: TrainConfig,
        *,
        least: int = 1,
        quiet: bool = False,
    ) -> None:
        device = potential.scale.device
        present = np.unique(dataset.numbers())
        self.elements = torch.from_numpy(present.astype(np.int64)).to(device)
        cutoffs = potential.cutoffs
        room = available_memory(torch.device("cpu")) // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        storage = Storage(Path(config.out), int(_SHARE * room))
        lists = frame_lists(dataset, frames, cutoffs, device, storage, quiet)
        longest = np.array([[pairs.index.shape[1] for pairs in own] for own in lists])
        number = np.array([int(own[0].count.sum()) // 2 for own in lists])
        exact = potential.predicts_charges
        atoms = dataset.atoms[frames]
        self._frames_a_step = config.frames_a_step
        self.shapes = plan_shapes(
            frames,
            atoms,
            longest,
            config.shapes,
            exact=exact,
            counted=trained,
            # Of all processes, so that shapes do not depend on how a batch is shared out.
            frames_a_step=lambda atoms, slots: least * config.frames_a_step(atoms, slots),
            least=least,
        )
        remaining = dict(zip(frames.tolist(), lists, strict=True))
        del lists
        weights = {NUMBERS[name]: value for name, value in config.loss.elements.items()}
        self.tables = [
            make_table(
                dataset,
                shape,
                (remaining.pop(frame) for frame in shape.frames.tolist()),
                present.tolist(),
                cutoffs,
                weights,
                int(number[np.isin(frames, shape.frames)].max()),
                storage,
                potential.network_dtype,
            )
            for shape in self.shapes
        ]
        size = sum(table.bytes for table in self.tables)
        self.resident = config.resident is not False
        if device.type == "cuda" and config.resident is None:
            self.resident = size < _SHARE * torch.cuda.mem_get_info(device)[0]
        if self.resident:
            self.tables = [
                table.map_tensors(lambda tensor: tensor.to(device)) for table in self.tables
            ]
        where = f"on {device}" if self.resident else "on the host, copied batch by batch"
        logger.info(
            "%d frame%s of %d shape%s take %.3g MB, %s",
            len(frames),
            "s" * (len(frames) != 1),
            len(self.shapes),
            "s" * (len(self.shapes) != 1),
            size / 1e6,
            where,
        )
        self.waited = 0.0
        self._quiet = quiet
        self._device = device

    def rows_of(self, shape: int, frames: NDArray[np.int64]) -> NDArray[np.int64]:
        """Rows of a shape's table that hold any of these frames."""
        return np.flatnonzero(np.isin(self.shapes[shape].frames, frames))

    def batch(self, shape: int, size: int) -> Batch:
        """Static buffers for `size` frames of a shape."""
        table = self.tables[shape]
        if not self.resident:
            rows = torch.zeros(size, dtype=torch.int64)
            table = table.rows(rows).map_tensors(lambda tensor: tensor.to(self._device))
        batch = Batch(table, size, self.elements)
        if not self.resident:
            batch.frames.copy_(torch.arange(size))
        return batch

    def fill_(self, batch: Batch, shape: int, rows: NDArray[np.int64] | Table) -> None:
        """Puts frames, or a copy that `stream` prepared, into a batch; does not sync."""
        if isinstance(rows, Table):
            for own, value in zip(batch.table.tensors(), rows.tensors(), strict=True):
                own.copy_(value, non_blocking=True)
        elif self.resident:
            index = torch.from_numpy(np.ascontiguousarray(rows))
            batch.frames.copy_(index, non_blocking=True)
        else:
            self.fill_(batch, shape, self._prepared(shape, rows))

    def _prepared(self, shape: int, rows: NDArray[np.int64]) -> Table:
        table = self.tables[shape].rows(torch.from_numpy(rows))
        return table.map_tensors(Tensor.pin_memory) if self._device.type == "cuda" else table

    def stream(
        self, batches: Iterable[tuple[int, NDArray[np.int64]]]
    ) -> Generator[tuple[int, NDArray[np.int64] | Table], None, None]:
        """Shape and rows of each batch; a thread prepares batches that come from the host."""
        if self.resident:
            yield from batches
            return
        ready: queue.Queue[tuple[int, Table] | BaseException | None] = queue.Queue(_AHEAD)
        stopped = threading.Event()

        def put(item: tuple[int, Table] | BaseException | None) -> None:
            while not stopped.is_set():
                try:
                    ready.put(item, timeout=0.1)
                except queue.Full:
                    continue
                return

        def prepare() -> None:
            try:
                for shape, rows in batches:
                    put((shape, self._prepared(shape, rows)))
                    if stopped.is_set():
                        return
                put(None)
            except BaseException as error:  # noqa: BLE001 - raised again by the reader
                put(error)

        thread = threading.Thread(target=prepare, daemon=True)
        thread.start()
        try:
            while True:
                start = time.perf_counter()
                item = ready.get()
                self.waited += time.perf_counter() - start
                if item is None:
                    return
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            stopped.set()
            thread.join()

    def batches_of(self, frames: NDArray[np.int64]) -> Iterator[tuple[NDArray[np.int64], Batch]]:
        """Batches that hold all of these frames once, with their places among them.

        The last batch of a shape is filled up with copies of its first frame.
        """
        order = np.argsort(frames, kind="stable")
        disable = self._quiet or None
        bar = tqdm(total=len(frames), desc="scoring", leave=False, disable=disable, delay=5.0)
        for shape, plan in enumerate(self.shapes):
            rows = self.rows_of(shape, frames)
            if not len(rows):
                continue
            places = order[np.searchsorted(frames[order], plan.frames[rows])]
            most = _ATOMS[self._device.type] // plan.atoms
            most = min(most, _STEPS * self._frames_a_step(plan.atoms, plan.slots[0]))
            size = max(1, min(len(rows), most))
            batch = self.batch(shape, size)
            for start in range(0, len(rows), size):
                part = rows[start : start + size]
                padded = np.concatenate([part, np.full(size - len(part), rows[0])])
                self.fill_(batch, shape, padded)
                yield places[start : start + size], batch
                bar.update(len(part))
        bar.close()


@dataclass(frozen=True, eq=False)
class Sampler:
    """Epochs of batches of one shape each; frames that fill no batch are left to later epochs.

    Attributes:
        rows: for each shape, rows of its table that are training frames.
        sizes: for each shape, frames in a batch of all processes together.
        seed: of all shuffling.
    """

    rows: tuple[NDArray[np.int64], ...]
    sizes: tuple[int, ...]
    seed: int

    @property
    def steps_per_epoch(self) -> int:
        """Batches in an epoch."""
        return sum(len(rows) // size for rows, size in zip(self.rows, self.sizes, strict=True))

    def epoch(self, number: int) -> list[tuple[int, NDArray[np.int64]]]:
        """Shape and rows of each batch of an epoch."""
        generator = np.random.default_rng([self.seed, number])
        batches = []
        for shape, (rows, size) in enumerate(zip(self.rows, self.sizes, strict=True)):
            order = generator.permutation(rows)
            batches += [
                (shape, order[start : start + size])
                for start in range(0, len(rows) // size * size, size)
            ]
        return [batches[place] for place in generator.permutation(len(batches))]


class BatchPlan:
    """Batches of each shape, as large as memory allows.

    Attributes:
        batches: static buffers, one for each shape.
        sampler: of the batches of all processes together.
    """

    def __init__(
        self,
        store: FrameStore,
        trained: NDArray[np.int64],
        config: TrainConfig,
        processes: Processes,
        progress: Progress,
    ) -> None:
        """Allocates the buffers.

        Args:
            store: holds the frames.
            trained: training frames.
            config: `batch`, or `batch_atoms` and `batch_edges`, each for one share of the common
                batch.
            processes: they take equal parts of it.
            progress: number of shares, which any number of processes may compute, and of
                halvings of the batch.

        Raises:
            InputError: there are more processes than frames of any shape, or a common batch
                cannot be shared out evenly.
        """
        self._processes = processes
        shares, halvings = progress.shares, progress.halvings
        rows = tuple(store.rows_of(shape, trained) for shape in range(len(store.shapes)))
        sizes: list[int] = []
        self.batches: list[Batch] = []
        for shape, own in zip(store.shapes, rows, strict=True):
            frames = config.frames_a_step(shape.atoms, shape.slots[0])
            common = max(1, min(frames, len(own) // shares)) * shares
            common = max(1, common >> halvings)
            if not len(own):
                common = processes.count
            elif common % processes.count:
                raise InputError(
                    f"The common batch has {common} frames, as the training was begun by "
                    f"{shares} processes; {processes.count} cannot share them evenly, so resume "
                    "with a number that divides them."
                )
            sizes.append(common)
            self.batches.append(store.batch(len(self.batches), common // processes.count))
            self.batches[-1].share = common / max(1, frames * shares >> halvings)
        self.sampler = Sampler(rows, tuple(sizes), config.seed)
        places = zip(rows, self.sampler.sizes, strict=True)
        unused = sum(len(own) for own, size in places if len(own) < size)
        if unused and processes.first:
            logger.warning(
                "%d frames are not trained on: too few others have their size for %d processes.",
                unused,
                processes.count,
            )
        if not self.sampler.steps_per_epoch:
            raise InputError(
                f"{processes.count} processes have fewer frames of each shape than they are; "
                "start fewer."
            )
        lines = [
            f"{size} of {shape.atoms} x {shape.slots[0]}"
            for shape, own, size in zip(store.shapes, rows, sizes, strict=True)
            if len(own) >= size
        ]
        logger.info("Frames a step, each of atoms x neighbors with padding: %s.", name_some(lines))

    @property
    def largest(self) -> int:
        """Frames in the largest batch of this process."""
        return max(map(len, self.batches))

    def upcoming(self, step: int) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """Shape and own rows of every batch from a step on, without end."""
        rank, count = self._processes.rank, self._processes.count
        epoch, skipped = divmod(step, self.sampler.steps_per_epoch)
        while True:
            for shape, rows in self.sampler.epoch(epoch)[skipped:]:
                size = len(rows) // count
                yield shape, rows[rank * size : (rank + 1) * size]
            epoch, skipped = epoch + 1, 0
