"""Tables: the frames of one shape, padded, from which batches are gathered."""

from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from mdgraph.data import Dataset
from mdgraph.train.lists import FrameList
from mdgraph.train.shapes import Shape


@dataclass(frozen=True, eq=False)
class Table:
    """M frames of N atoms, K slots; atoms that only pad have `present` 0 and no neighbors.

    Attributes:
        cutoffs: A, of the lists.
        kinds: (M, N) int64, place of each atom's element in the data set's.
        atoms: (M,) int64, atoms that are present.
        present: (M, N) float64, 1 or 0.
        charge: (M,) float64, e.
        volume: (M,) float64, A^3; 1 where there is none.
        energy, forces, stress: (M,), (M, N, 3), (M, 3, 3) float64; 0 where not known.
        energy_weight, force_weight, stress_weight: (M,), (M, N), (M,) float64; 0 likewise.
        vectors: of each list (M, N, K, 3) float64, A; beyond the cutoff in empty slots.
        index: of each list (M, N, K) int32; an empty slot holds its own atom.
        reverse: of each list (M, N K) int32, flat slot within the frame.
        count: of each list (M, N) int32.
    """

    cutoffs: tuple[float, ...]
    kinds: Tensor
    atoms: Tensor
    present: Tensor
    charge: Tensor
    volume: Tensor
    energy: Tensor
    forces: Tensor
    stress: Tensor
    energy_weight: Tensor
    force_weight: Tensor
    stress_weight: Tensor
    vectors: tuple[Tensor, ...]
    index: tuple[Tensor, ...]
    reverse: tuple[Tensor, ...]
    count: tuple[Tensor, ...]

    def __len__(self) -> int:
        return len(self.energy)

    @property
    def size(self) -> int:
        """Atoms N of a frame, padding included."""
        return self.kinds.shape[1]

    @property
    def bytes(self) -> int:
        """Memory of all tensors."""
        return sum(one.numel() * one.element_size() for one in self.tensors())

    def tensors(self) -> list[Tensor]:
        """All of them, in a fixed order."""
        found: list[Tensor] = []
        for field in fields(self)[1:]:
            value = getattr(self, field.name)
            found += value if isinstance(value, tuple) else [value]
        return found

    def mapped(self, change: Any) -> Self:
        """A table with every tensor changed by a function."""
        changed: dict[str, Any] = {}
        for field in fields(self)[1:]:
            value = getattr(self, field.name)
            whole = isinstance(value, tuple)
            changed[field.name] = tuple(map(change, value)) if whole else change(value)
        return type(self)(self.cutoffs, **changed)

    def rows(self, frames: Tensor) -> Self:
        """The table of some of its frames; does not sync."""
        return self.mapped(lambda tensor: tensor.index_select(0, frames))


def make_table(
    dataset: Dataset,
    shape: Shape,
    lists: list[tuple[FrameList, ...]],
    elements: list[int],
    cutoffs: tuple[float, ...],
    element_weights: dict[int, float],
) -> Table:
    """Pads the frames of a shape, on the host.

    Args:
        dataset: labels.
        shape: which frames, and their padded size.
        lists: pairs of those frames.
        elements: atomic numbers in the data set, ascending.
        cutoffs: A.
        element_weights: weight of forces by atomic number, where it is not 1.
    """
    count, atoms = len(shape.frames), shape.atoms
    place = np.zeros(max(elements) + 1, dtype=np.int64)
    place[elements] = np.arange(len(elements))
    weights = np.ones(max(elements) + 1)
    for number, weight in element_weights.items():
        if number < len(weights):
            weights[number] = weight

    def zeros(*size: int, kind: torch.dtype = torch.float64) -> Tensor:
        return torch.zeros(count, *size, dtype=kind)

    table = Table(
        cutoffs=cutoffs,
        kinds=zeros(atoms, kind=torch.int64),
        atoms=zeros(kind=torch.int64),
        present=zeros(atoms),
        charge=zeros(),
        volume=zeros() + 1.0,
        energy=zeros(),
        forces=zeros(atoms, 3),
        stress=zeros(3, 3),
        energy_weight=zeros(),
        force_weight=zeros(atoms),
        stress_weight=zeros(),
        vectors=tuple(
            _beyond(count, atoms, k, r) for k, r in zip(shape.slots, cutoffs, strict=True)
        ),
        index=tuple(
            torch.arange(atoms, dtype=torch.int32)[None, :, None].repeat(count, 1, slots)
            for slots in shape.slots
        ),
        reverse=tuple(
            torch.arange(atoms * slots, dtype=torch.int32).repeat(count, 1) for slots in shape.slots
        ),
        count=tuple(zeros(atoms, kind=torch.int32) for _ in shape.slots),
    )
    for row, (index, own) in enumerate(zip(shape.frames, lists, strict=True)):
        frame = dataset.frame(int(index))
        n = len(frame)
        table.kinds[row, :n] = torch.from_numpy(place[frame.numbers])
        table.atoms[row] = n
        table.present[row, :n] = 1.0
        table.charge[row] = frame.charge
        if np.isfinite(frame.energy):
            table.energy[row] = frame.energy
            table.energy_weight[row] = frame.weight
        assert frame.forces is not None
        known = np.asarray(np.isfinite(frame.forces).all(1))
        table.forces[row, :n] = torch.from_numpy(np.where(known[:, None], frame.forces, 0.0))
        table.force_weight[row, :n] = torch.from_numpy(
            frame.weight * known * weights[frame.numbers]
        )
        if frame.pbc.any() and np.linalg.matrix_rank(frame.cell) == 3:
            table.volume[row] = abs(np.linalg.det(frame.cell))
            if frame.stress is not None and np.isfinite(frame.stress).all():
                table.stress[row] = torch.from_numpy(0.5 * (frame.stress + frame.stress.T))
                table.stress_weight[row] = frame.weight
        for number, one in enumerate(own):
            k, slots = one.index.shape[1], shape.slots[number]
            used = torch.arange(k) < one.count[:, None]
            table.vectors[number][row, :n, :k] = one.vectors
            table.index[number][row, :n, :k] = one.index
            flat = one.index * slots + one.reverse
            own_slot = table.reverse[number][row].view(atoms, slots)[:n, :k]
            own_slot.copy_(torch.where(used, flat, own_slot))
            table.count[number][row, :n] = one.count
    return table


def _beyond(frames: int, atoms: int, slots: int, cutoff: float) -> Tensor:
    vectors = torch.zeros(frames, atoms, slots, 3, dtype=torch.float64)
    vectors[..., 0] = 2.0 * cutoff if np.isfinite(cutoff) else 1.0
    return vectors
