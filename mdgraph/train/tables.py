"""Tables: the frames of one shape, padded, from which batches are gathered."""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any, Final, Self

import numpy as np
import torch
from torch import Tensor

from mdgraph.data import Dataset
from mdgraph.train.labels import has_dipole, has_stress
from mdgraph.train.lists import FrameList
from mdgraph.train.padding import kind_of_number, numbered_pairs, padded_list
from mdgraph.train.shapes import Shape
from mdgraph.train.storage import Storage

_PAIRS: Final = 8
"""Pairs come in multiples of this."""


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
        positions: (M, N, 3) float64, A, from the centre; 0 for padding.
        energy, forces, stress, dipole: (M,), (M, N, 3), (M, 3, 3), (M, 3) float64; 0 where not
            known.
        energy_weight, force_weight, stress_weight, dipole_weight: (M,), (M, N), (M,), (M,)
            float64; 0 likewise. The dipole of a charged or periodic frame is not known.
        vectors: of each list (M, N, K, 3) A, in the type of the network: differences are taken in
            float64, and what it rounds them to is all that is kept; beyond the cutoff in empty
            slots.
        index: of each list (M, N, K) int16, or int32 where a frame's slots are too many to be
            numbered so, as are the next but counts; an empty slot holds its own atom.
        reverse: of each list (M, N K), flat slot within the frame.
        count: of each list (M, N) int32.
        pairs: (M,) int32, of the first list; of the network's pairs each is two slots of it.
        one: (M, P), a slot of each pair, whose reverse is the other; 0 beyond `pairs`.
        number: (M, N K), the pair of each slot; 0 for an empty one.
    """

    cutoffs: tuple[float, ...]
    kinds: Tensor
    atoms: Tensor
    present: Tensor
    charge: Tensor
    volume: Tensor
    positions: Tensor
    energy: Tensor
    forces: Tensor
    stress: Tensor
    dipole: Tensor
    energy_weight: Tensor
    force_weight: Tensor
    stress_weight: Tensor
    dipole_weight: Tensor
    vectors: tuple[Tensor, ...]
    index: tuple[Tensor, ...]
    reverse: tuple[Tensor, ...]
    count: tuple[Tensor, ...]
    pairs: Tensor
    one: Tensor
    number: Tensor

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
    lists: Iterable[tuple[FrameList, ...]],
    elements: list[int],
    cutoffs: tuple[float, ...],
    element_weights: dict[int, float],
    most_pairs: int,
    storage: Storage,
    kind_of_vectors: torch.dtype,
) -> Table:
    """Pads the frames of a shape, on the host.

    Args:
        dataset: labels.
        shape: which frames, and their padded size.
        lists: pairs of those frames.
        elements: atomic numbers in the data set, ascending.
        cutoffs: A.
        element_weights: weight of forces by atomic number, where it is not 1.
        most_pairs: pairs that the first list of a frame holds at most.
        storage: where the table is to lie.
        kind_of_vectors: type that the network computes in.
    """
    count, atoms = len(shape.frames), shape.atoms
    place = np.zeros(max(elements) + 1, dtype=np.int64)
    place[elements] = np.arange(len(elements))
    weights = np.ones(max(elements) + 1)
    for number, weight in element_weights.items():
        if number < len(weights):
            weights[number] = weight

    def zeros(*size: int, kind: torch.dtype = torch.float64) -> Tensor:
        return storage.zeros((count, *size), kind)

    kinds = [kind_of_number(atoms * slots) for slots in shape.slots]
    table = Table(
        cutoffs=cutoffs,
        kinds=zeros(atoms, kind=torch.int64),
        atoms=zeros(kind=torch.int64),
        present=zeros(atoms),
        charge=zeros(),
        volume=zeros().fill_(1.0),
        energy=zeros(),
        forces=zeros(atoms, 3),
        positions=zeros(atoms, 3),
        stress=zeros(3, 3),
        dipole=zeros(3),
        energy_weight=zeros(),
        force_weight=zeros(atoms),
        stress_weight=zeros(),
        dipole_weight=zeros(),
        vectors=tuple(zeros(atoms, slots, 3, kind=kind_of_vectors) for slots in shape.slots),
        index=tuple(zeros(atoms, k, kind=kind) for k, kind in zip(shape.slots, kinds, strict=True)),
        reverse=tuple(
            zeros(atoms * k, kind=kind) for k, kind in zip(shape.slots, kinds, strict=True)
        ),
        count=tuple(zeros(atoms, kind=torch.int32) for _ in shape.slots),
        pairs=zeros(kind=torch.int32),
        one=zeros(-(-max(1, most_pairs) // _PAIRS) * _PAIRS, kind=kinds[0]),
        number=zeros(atoms * shape.slots[0], kind=kinds[0]),
    )
    frames = dataset.frames(shape.frames)
    for row, (frame, own) in enumerate(zip(frames, lists, strict=True)):
        n = len(frame)
        table.kinds[row, :n] = torch.from_numpy(place[frame.numbers])
        table.atoms[row] = n
        table.present[row, :n] = 1.0
        table.charge[row] = frame.charge
        centred = frame.positions - frame.positions.mean(0)
        table.positions[row, :n] = torch.from_numpy(centred)
        if has_dipole(frame):
            table.dipole[row] = torch.from_numpy(frame.dipole)
            table.dipole_weight[row] = frame.weight
        if np.isfinite(frame.energy):
            table.energy[row] = frame.energy
            table.energy_weight[row] = frame.weight
        assert frame.forces is not None
        assert frame.force_weights is not None
        known = np.asarray(np.isfinite(frame.forces).all(1))
        table.forces[row, :n] = torch.from_numpy(np.where(known[:, None], frame.forces, 0.0))
        table.force_weight[row, :n] = torch.from_numpy(
            frame.weight * known * weights[frame.numbers] * frame.force_weights
        )
        if frame.pbc.any() and np.linalg.matrix_rank(frame.cell) == 3:
            table.volume[row] = abs(np.linalg.det(frame.cell))
        if has_stress(frame):
            assert frame.stress is not None
            table.stress[row] = torch.from_numpy(0.5 * (frame.stress + frame.stress.T))
            table.stress_weight[row] = frame.weight
        columns = table.vectors, table.index, table.reverse, table.count
        for number, (one, slots, cutoff) in enumerate(zip(own, shape.slots, cutoffs, strict=True)):
            for column, values in zip(columns, padded_list(one, atoms, slots, cutoff), strict=True):
                column[number][row] = values
        first, table.number[row] = numbered_pairs(table.reverse[0][row].int())
        table.pairs[row] = len(first)
        table.one[row, : len(first)] = first
    return table
