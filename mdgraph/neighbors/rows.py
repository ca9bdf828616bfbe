"""The buffers of a neighbor list, and the task of filling them."""

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from mdgraph.grouping import Grouping
from mdgraph.neighbors.geometry import Lattice
from mdgraph.neighbors.search import Search


@dataclass(frozen=True)
class Rows:
    """What a build writes, N rows of K slots; see `NeighborList` for the meaning."""

    index: Tensor
    image: Tensor
    reverse: Tensor
    count: Tensor
    wrap: Tensor
    order: Tensor
    reference_positions: Tensor
    reference_cell: Tensor

    @classmethod
    def allocate(cls, capacity: int, positions: Tensor, cell: Tensor) -> "Rows":
        """Empty rows for these atoms; does not sync."""
        device, atoms = positions.device, len(positions)

        def whole(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int32, device=device)

        return cls(
            index=whole(atoms, capacity),
            image=whole(atoms, capacity),
            reverse=whole(atoms, capacity),
            count=whole(atoms),
            wrap=torch.zeros_like(positions),
            order=torch.arange(atoms, dtype=torch.int32, device=device),
            reference_positions=positions.clone(),
            reference_cell=cell.clone(),
        )

    def tensors(self) -> tuple[Tensor, ...]:
        """All buffers, in the order of the attributes."""
        return tuple(getattr(self, field.name) for field in fields(self))

    @property
    def capacity(self) -> int:
        """Slots a row."""
        return self.index.shape[1]


@dataclass(frozen=True)
class Counters:
    """Numbers that outlive the rows.

    Attributes:
        sticky: (3,) int64, largest count found, most atoms in a bin, whether the cell
            shrank beyond the plan; kept until the list grows.
        reach: (S, 3), largest reach of any build, in the state type.
        rebuilds: () int64, number of builds.
    """

    sticky: Tensor
    reach: Tensor
    rebuilds: Tensor

    @classmethod
    def allocate(cls, cell: Tensor) -> "Counters":
        """Zeros on the device of cell (S, 3, 3)."""
        return cls(
            sticky=torch.zeros(3, dtype=torch.int64, device=cell.device),
            reach=torch.zeros_like(cell[:, 0]),
            rebuilds=torch.zeros((), dtype=torch.int64, device=cell.device),
        )


@dataclass(frozen=True)
class Task:
    """What a builder fills, and from what.

    Attributes:
        rows, counters: written.
        grouping, pbc: the systems; pbc is (S, 3) bool.
        cutoff, skin: A.
        cell_varies: whether a build looks at the cell again.
        lattice: of the cells at the time of planning, with the list's range.
        search: the plan.
    """

    rows: Rows
    counters: Counters
    grouping: Grouping
    pbc: Tensor
    cutoff: float
    skin: float
    cell_varies: bool
    lattice: Lattice
    search: Search

    @property
    def range(self) -> float:
        """A; pairs closer than this are listed."""
        return self.cutoff + self.skin
