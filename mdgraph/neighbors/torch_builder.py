"""TorchBuilder: builds a neighbor list with torch, on any device."""

from dataclasses import dataclass, fields
from typing import ClassVar, Final

import torch
from torch import Tensor

from mdgraph.neighbors.geometry import (
    Lattice,
    complete_cell,
    fractional_coordinates,
    inverse,
    translations,
)
from mdgraph.neighbors.search import PADDING, Search, WrappedFrame
from mdgraph.state import Grouping


@dataclass(frozen=True)
class ListRows:
    """Buffers that a build writes, of N atoms; `NeighborList` documents them."""

    index: Tensor
    image: Tensor
    reverse: Tensor
    count: Tensor
    wrap: Tensor
    order: Tensor
    reference_positions: Tensor
    reference_cell: Tensor

    @classmethod
    def allocate(
        cls,
        capacity: int,
        positions: Tensor,
        cell: Tensor,
        rows: int | None = None,
        *,
        own_reference: bool = True,
    ) -> "ListRows":
        """Empty rows for these atoms, or as many as are given; does not sync.

        The reference is a copy, unless these buffers themselves shall be it.
        """
        device, atoms = positions.device, len(positions)
        rows = atoms if rows is None else rows

        def integers(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int32, device=device)

        return cls(
            index=integers(rows, capacity),
            image=integers(rows, capacity),
            reverse=integers(rows, capacity),
            count=integers(atoms),
            wrap=torch.zeros_like(positions),
            order=torch.arange(atoms, dtype=torch.int32, device=device),
            reference_positions=positions.clone() if own_reference else positions,
            reference_cell=cell.clone() if own_reference else cell,
        )

    def tensors(self) -> tuple[Tensor, ...]:
        """All buffers, in the order of the attributes."""
        return tuple(getattr(self, field.name) for field in fields(self))

    @property
    def capacity(self) -> int:
        """K, slots of a row."""
        return self.index.shape[1]


@dataclass(frozen=True)
class Counters:
    """Counters over all builds.

    Attributes:
        sticky: (4,) int64, largest number of neighbors, largest number of atoms in a bin,
            whether the cell shrank beyond the plan, and largest number of rows near a brick;
            reset when the list grows.
        reach: (S, 3), largest reach of any build, in the dtype of the state.
        rebuilds: () int64, number of builds.
    """

    sticky: Tensor
    reach: Tensor
    rebuilds: Tensor

    @classmethod
    def allocate(cls, cell: Tensor) -> "Counters":
        """Zeros on the device of cell (S, 3, 3)."""
        return cls(
            sticky=torch.zeros(4, dtype=torch.int64, device=cell.device),
            reach=torch.zeros_like(cell[:, 0]),
            rebuilds=torch.zeros((), dtype=torch.int64, device=cell.device),
        )


@dataclass(frozen=True)
class Brick:
    """A part of a cell between planes.

    Attributes:
        planes: (P,) T, in fractional coordinates, in A where a direction is not periodic; a buffer.
        ends: numbers of the planes at both ends along each cell vector; None at those of the cell.
        margin: A, by which its atoms may have left it.
    """

    planes: Tensor
    ends: tuple[tuple[int | None, int | None], ...]
    margin: float = 0.0

    def is_near(
        self, fractional: Tensor, inverse_cell: Tensor, pbc: Tensor, reach: float
    ) -> Tensor:
        """(N,) bool, which atoms may be within a range of its atoms; does not sync.

        Args:
            fractional: (N, 3), wrapped along periodic directions.
            inverse_cell: (1, 3, 3) 1/A, of the complete cell.
            pbc: (1, 3) bool.
            reach: A, along each cell vector.
        """
        reach += self.margin
        near = torch.ones_like(fractional[:, 0], dtype=torch.bool)
        # A little more than the range, as rounding may put atoms elsewhere.
        more = _MORE * reach * torch.linalg.vector_norm(inverse_cell[0], dim=0)
        for axis, (low, high) in enumerate(self.ends):
            if low is None and high is None:
                continue
            value, periodic = fractional[:, axis], pbc[0, axis]
            start, end = (
                torch.where(periodic, 0.0, -torch.inf),
                torch.where(periodic, 1.0, torch.inf),
            )
            below = (start if low is None else self.planes[low]) - more[axis]
            above = (end if high is None else self.planes[high]) + more[axis]
            outside = (value < below) | (value > above)  # false for what is not a number
            across = (value + 1.0 <= above) | (value - 1.0 >= below)
            near &= ~outside | (periodic & across)
        return near


_MORE: Final = 1.02


@dataclass(frozen=True)
class RowLimit:
    """That atoms near a brick alone have rows.

    Attributes:
        brick: whose planes are read at each build.
        row: (N,) int32, row of each atom, below zero for those that have none; a build writes it.
    """

    brick: Brick
    row: Tensor


@dataclass(frozen=True)
class BuildTask:
    """Inputs and outputs of a builder.

    Attributes:
        rows, counters: buffers that a build writes.
        grouping, pbc: the systems; pbc is (S, 3) bool.
        cutoff, skin: A.
        cell_varies: whether a build reads the cells again.
        lattice: of the cells at planning, for the range of the list.
        search: the plan.
        limit: which atoms have rows; None where all have, each the row of its number.
        one_way: whether reverse slots may be left to `reverse_`.
    """

    rows: ListRows
    counters: Counters
    grouping: Grouping
    pbc: Tensor
    cutoff: float
    skin: float
    cell_varies: bool
    lattice: Lattice
    search: Search
    limit: RowLimit | None = None
    one_way: bool = False

    @property
    def range(self) -> float:
        """A; pairs closer than this are listed."""
        return self.cutoff + self.skin


class TorchBuilder:
    """Builds by the search of the plan; the reference for the kernels."""

    bin_cost: ClassVar[int] = 1
    takes_limits: ClassVar[bool] = False
    mechanism: ClassVar[str] = "torch where the host finds them due"

    def __init__(self, task: BuildTask) -> None:
        self._task = task

    def build_(self, positions: Tensor, cell: Tensor) -> None:
        """See Builder."""
        self._store(self._rows(positions, cell))
        self._task.counters.rebuilds.add_(1)

    def update_(self, positions: Tensor, cell: Tensor, due: Tensor | None = None) -> None:
        """See Builder."""
        if self._task.skin == 0.0:
            self.build_(positions, cell)
            return
        if due is None:
            due = self._due(positions, cell)
        due = due.view(()) != 0
        if positions.device.type == "cpu":
            if bool(due):
                self.build_(positions, cell)
            return
        new_rows, rows = self._rows(positions, cell).tensors(), self._task.rows.tensors()
        pairs = zip(new_rows, rows, strict=True)
        self._store(ListRows(*[torch.where(due, new.to(old.dtype), old) for new, old in pairs]))
        self._task.counters.rebuilds.add_(due)

    def look_(
        self, due: Tensor, positions: Tensor, cell: Tensor, atoms: Tensor, used: Tensor
    ) -> None:
        """See Builder."""
        due.logical_or_(self._due(positions, cell, atoms, used))

    def follow_(self, positions: Tensor, cell: Tensor, anyway: Tensor) -> None:
        """See Builder; syncs."""
        rows = self._task.rows
        if bool(anyway) or not (
            torch.equal(positions, rows.reference_positions)
            and torch.equal(cell, rows.reference_cell)
        ):
            self.build_(positions, cell)

    def build_all_(self, rows: ListRows) -> None:
        """See Builder."""
        raise AssertionError("no row is left out")

    def join(self) -> None:
        """See Builder; does nothing, as all work runs in order."""

    def reverse_(self) -> None:
        """See Builder; does nothing, as they are there."""

    def _store(self, rows: ListRows) -> None:
        for buffer, value in zip(self._task.rows.tensors(), rows.tensors(), strict=True):
            buffer.copy_(value)

    def _wrapped(self, positions: Tensor, cell: Tensor) -> tuple[WrappedFrame, Tensor]:
        """What is searched, and the whole cells, (N, 3), by which atoms were moved for that.

        A varying cell is compared with what the plan allows.
        """
        task, search, counters = self._task, self._task.search, self._task.counters
        lattice, system = task.lattice, task.grouping.index
        if task.cell_varies:
            lattice = Lattice.of(cell, task.pbc, task.range)
            torch.fmax(counters.reach, lattice.reach, out=counters.reach)
            counters.sticky[2].clamp_(min=(lattice.reach > search.allowed).any())
        fractional, whole = fractional_coordinates(positions, lattice.inverse, task.pbc, system)
        shift = (whole[:, None] @ lattice.vectors[system])[:, 0]
        images = translations(search.images.offsets, lattice.vectors)
        return WrappedFrame(positions - shift, fractional, lattice.reach, images), whole

    def _rows(self, positions: Tensor, cell: Tensor) -> ListRows:
        task, search, counters = self._task, self._task.search, self._task.counters
        group, capacity = task.grouping, task.rows.capacity
        frame, whole = self._wrapped(positions, cell)
        result = search.find(frame, task.range, capacity)
        counters.sticky[0].clamp_(min=result.count.max())
        counters.sticky[1].clamp_(min=result.occupancy)

        count = len(search.images)
        atoms = torch.arange(group.atoms, device=positions.device)[:, None]
        slots = torch.arange(capacity, device=positions.device)
        used = result.keys != PADDING
        neighbor = torch.where(used, result.keys // count, atoms)
        image = torch.where(used, result.keys % count, search.images.zero)
        # All keys form one ascending sequence, in which bisection finds the reverse pair.
        pairs = group.atoms * count
        sequence = atoms * (pairs + 1) + result.keys.clamp(max=pairs)
        reverse_key = neighbor * (pairs + 1) + atoms * count + (2 * search.images.zero - image)
        place = torch.searchsorted(sequence.flatten(), reverse_key.flatten()).view_as(reverse_key)
        reverse = (place - neighbor * capacity).clamp(0, capacity - 1)
        return ListRows(
            index=neighbor,
            image=image,
            reverse=torch.where(used, reverse, slots),
            count=result.count.clamp(max=capacity),
            wrap=whole,
            order=result.order,
            reference_positions=positions,
            reference_cell=cell,
        )

    def _due(
        self,
        positions: Tensor,
        cell: Tensor,
        atoms: Tensor | None = None,
        used: Tensor | None = None,
    ) -> Tensor:
        """() bool, whether the list may be incomplete, by all atoms or by some.

        With F = h0^-1 h (h0 the cell at the last build, h the current one) and
        u_i = x_i - x_i0 F the list is complete while
        2 max|u_i| <= sigma_min(F) (cutoff + skin) - cutoff: then a pair within the cutoff was
        within the range of the list at the build. 1 - |F - 1|_F is a lower bound of the
        smallest singular value, exact for a constant cell.
        """
        task, rows = self._task, self._task.rows
        system, places = task.grouping.index, rows.reference_positions
        if atoms is not None:
            system, places = system[atoms], places[atoms]
        if task.cell_varies:
            reference = complete_cell(rows.reference_cell, task.pbc)
            deformation = inverse(reference) @ complete_cell(cell, task.pbc)
            identity = torch.eye(3, dtype=cell.dtype, device=cell.device)
            smallest = 1.0 - torch.linalg.vector_norm(deformation - identity, dim=(-2, -1))
            expected = (places[:, None] @ deformation[system])[:, 0]
            allowed = smallest * task.range - task.cutoff
        else:
            expected = places
            allowed = torch.full_like(cell[:, 0, 0], task.skin)
        displacement = torch.linalg.vector_norm(positions - expected, dim=-1)
        # Not `displacement > allowed`, which is false for NaN: a NaN position makes a build due.
        still = 2.0 * displacement <= allowed[system]
        return ~(still if used is None else still | ~used).all()
