"""NeighborList: a full list with one row an atom, in buffers of fixed capacity.

Also here: its plan (which search, how far beyond the cutoff), its builders, its status on the
host, and its pair vectors in blocks of slots.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

import torch
from torch import Tensor

from mdgraph.errors import InputError
from mdgraph.gpu.launch import HAS_TRITON
from mdgraph.host_memory import available_host_memory, check_fits
from mdgraph.host_tensors import on_host
from mdgraph.neighbors.geometry import (
    Lattice,
    fractional_coordinates,
    periodic_vectors,
    translations,
)
from mdgraph.neighbors.pairs import PairBlock, Pairs
from mdgraph.neighbors.search import CellList, EveryPair, Search, WrappedFrame
from mdgraph.neighbors.torch_builder import (
    Brick,
    BuildTask,
    Counters,
    ListRows,
    RowLimit,
    TorchBuilder,
)
from mdgraph.precision import full_float32
from mdgraph.state import State


def block_width(atoms: int, cutoff: float, device: str) -> int:
    """Slots a block: wide ones leave fewer kernels, narrow ones less padding.

    It must not depend on the capacity, which would then change the bits.
    """
    if cutoff > 8.0:
        return 128
    if atoms <= 64:
        return 32
    return 40 if device == "cuda" else 16


def pair_blocks(
    rows: "NeighborRows", width: int, wrapped: Tensor, images: Tensor, first: Tensor, far: Tensor
) -> tuple[PairBlock, ...]:
    """The blocks of all slots, their vectors as leaves that ask for gradients; does not sync.

    Args:
        rows: of all atoms.
        width: slots a block.
        wrapped: (N, 3) A, positions with what was taken off at the build taken off again.
        images: (S images, 3) A, translations of all systems.
        first: (N, 1), place of the first translation of each atom's system.
        far: (3,) A, vector of an empty slot.
    """
    slots = torch.arange(rows.capacity, device=wrapped.device)
    used = slots < rows.count[:, None]
    blocks = []
    for start in range(0, rows.capacity, width):
        part = slice(start, start + width)
        index = rows.index[:, part].contiguous()
        # Difference first, as in the search: both directions of a pair round alike.
        vectors = wrapped.index_select(0, index.flatten()).view(*index.shape, 3)
        vectors = vectors - wrapped[:, None]
        image = (rows.image[:, part] + first).flatten()
        vectors = vectors + images.index_select(0, image).view_as(vectors)
        valid = used[:, part].contiguous()
        vectors = torch.where(valid[..., None], vectors, far)
        blocks.append(PairBlock(vectors.detach().requires_grad_(), index, valid))
    return tuple(blocks)


class Planner:
    """Chooses the search of one list: every pair, or bins."""

    def __init__(self, state: State, counters: Counters, cell_varies: bool) -> None:
        """Stores the systems; does not sync.

        Args:
            state: that of the list.
            counters: that builds of the list write.
            cell_varies: whether later builds look at the cell again.
        """
        self._grouping, self._pbc = state.grouping, state.pbc
        self._counters = counters
        self._cell_varies = cell_varies
        # Systems that take the places of these must find the same plan good enough.
        self._widest = None if state.room is None else torch.zeros_like(state.cell[0, 0, 0])

    def plan(self, positions: Tensor, lattice: Lattice, list_range: float, bin_cost: int) -> Search:
        """The search that costs less; reads the device.

        Args:
            positions: (N, 3) A.
            lattice: of the cells.
            list_range: A; infinite where every pair of a molecule is listed.
            bin_cost: of a candidate in a bin over one of every pair.
        """
        reach = lattice.reach
        if self._cell_varies:
            # A run that went wrong may have had absurd cells, which no plan should cover.
            reach = torch.maximum(reach * 1.02, torch.minimum(self._counters.reach, 2.0 * reach))
        if self._widest is not None:
            self._widest = torch.maximum(self._widest, reach.amax())
            reach = torch.where(reach > 0.0, self._widest, 0.0)
        every = EveryPair(self._grouping, reach, positions.device)
        if math.isinf(list_range) or self._widest is not None:
            return every
        fractional, _ = fractional_coordinates(
            positions, lattice.inverse, self._pbc, self._grouping.index
        )
        # Translations play no part in planning.
        frame = WrappedFrame(positions, fractional, reach, positions.new_zeros(()))
        occupancy = int(self._counters.sticky[1])
        cells = CellList(self._grouping, frame, list_range, occupancy)
        return cells if bin_cost * cells.candidates < every.candidates else every


class NeighborRows(Protocol):
    """What a fused network reads of a list; see NeighborList for the attributes.

    A NeighborList has rows of all atoms; a domain has those of its own atoms, and of others what
    leads to these.
    """

    @property
    def index(self) -> Tensor:
        """(N, K) int32, neighbor of each slot."""
        ...

    @property
    def image(self) -> Tensor:
        """(N, K), translation of each slot."""
        ...

    @property
    def reverse(self) -> Tensor:
        """(N, K) int32, slot of the reverse pair in the row of the neighbor."""
        ...

    @property
    def count(self) -> Tensor:
        """(N,) int32, slots in use."""
        ...

    @property
    def wrap(self) -> Tensor:
        """(N, 3), cells by which each atom is wrapped."""
        ...

    @property
    def offsets(self) -> Tensor:
        """Translations, in cells."""
        ...

    @property
    def order(self) -> Tensor:
        """(N,) int32, rows that are evaluated, neighbors near to each other."""
        ...

    @property
    def interior(self) -> int:
        """Rows, first in `order`, that have no neighbors among atoms of other domains."""
        ...

    @property
    def capacity(self) -> int:
        """Slots of a row."""
        ...

    def join(self) -> None:
        """See Builder."""
        ...


@dataclass(frozen=True)
class StoredRows:
    """NeighborRows of n atoms, whose reverse slots are there."""

    index: Tensor
    image: Tensor
    reverse: Tensor
    count: Tensor
    wrap: Tensor
    offsets: Tensor
    order: Tensor
    interior: int
    capacity: int

    def join(self) -> None:
        """See NeighborRows."""


class Builder(Protocol):
    """Fills the rows of a task.

    Attributes:
        bin_cost: what a candidate of the cell list costs, in candidates of every pair.
        takes_limits: whether it leaves out rows of a task with a limit, by the cell list.
        mechanism: how builds are left out that are not due, for the log.
    """

    bin_cost: ClassVar[int]
    takes_limits: ClassVar[bool]
    mechanism: ClassVar[str]

    def __init__(self, task: BuildTask) -> None: ...

    def build_(self, positions: Tensor, cell: Tensor) -> None:
        """Builds, whatever the rows hold; static shapes, does not sync."""
        ...

    def update_(self, positions: Tensor, cell: Tensor, due: Tensor | None = None) -> None:
        """Builds where the rows may have become incomplete, or where a flag says so.

        Static shapes; capturable and without sync on CUDA.

        Args:
            positions: see NeighborList.
            cell: likewise.
            due: (1,) int32, the flag that `look_` of all ranks has set; None without others.
        """
        ...

    def look_(
        self, due: Tensor, positions: Tensor, cell: Tensor, atoms: Tensor, used: Tensor
    ) -> None:
        """See NeighborList."""
        ...

    def follow_(self, positions: Tensor, cell: Tensor, anyway: Tensor) -> None:
        """Builds where the rows were built from others, or anyway; static shapes, as `update_`."""
        ...

    def build_all_(self, rows: ListRows) -> None:
        """Writes rows of all atoms, where the last build has left some out.

        Static shapes; capturable and without sync on CUDA.
        """
        ...

    def join(self) -> None:
        """Makes what follows wait for the reverse slots, and for rows of a list with limits."""
        ...

    def reverse_(self) -> None:
        """Finds the reverse slots of all rows, of a list in which builds may leave them out."""
        ...


def builder_class(device: torch.device) -> type[Builder]:
    """Kernels on CUDA, where Triton is installed, and on a CPU; torch operations elsewhere."""
    if device.type == "cuda" and HAS_TRITON:
        from mdgraph.neighbors.triton_builder import KernelBuilder

        return KernelBuilder
    if device.type == "cpu":
        from mdgraph.neighbors.compiled_builder import CompiledBuilder

        return CompiledBuilder
    return TorchBuilder


@dataclass(frozen=True)
class ListStatus:
    """Counters of a list, as the host reads them between chunks.

    Attributes:
        most_neighbors: of any atom since the last growth.
        capacity: slots a row.
        occupancy: most atoms in one bin of the cell list; 0 on CUDA, where bins cannot
            overflow.
        bin_capacity: atoms a bin has room for.
        insufficient: the cell shrank beyond what the search was planned for.
        rows: most atoms that lay near the brick; 0 without one.
        row_capacity: rows that there are.
    """

    most_neighbors: int
    capacity: int
    occupancy: int
    bin_capacity: int
    insufficient: bool
    rows: int
    row_capacity: int

    @property
    def complete(self) -> bool:
        """Whether every pair found its slot."""
        return (
            self.most_neighbors <= self.capacity
            and self.occupancy <= self.bin_capacity
            and self.rows <= self.row_capacity
            and not self.insufficient
        )


_LARGEST: Final = 1e4
"""A; no machine holds the pairs of a list that looks farther."""


def checked_skin(skin: float) -> float:
    """The skin as a float, A; raises InputError for a negative or absurd one."""
    if not isinstance(skin, Real) or not 0.0 <= skin <= _LARGEST:
        raise InputError(f"The skin is {skin} A; it must be a number from 0 to {_LARGEST:g}.")
    return float(skin)


def default_skin(device: torch.device) -> float:
    """A; on a GPU the list is cheaper than the padding of a skin, on a CPU it is not."""
    return 0.0 if device.type == "cuda" else 0.3


_SLOT: Final = 12
"""Bytes a slot, of three numbers of 32 bits."""

MARGIN = 1.15
"""Capacity over the largest number of neighbors: room for density fluctuations of a liquid."""

_RESTING: Final = ("_builder", "index", "image", "reverse", "count", "wrap", "order", "row")
"""What a list frees that rests, see `NeighborList.rest_`."""

_MORE_ROWS: Final = 0.05
"""Part of rows for the atoms near a brick; see `with_room`."""


def with_room(count: int, part: float) -> int:
    """So many atoms and those by which their number may grow: a part of n + 40 sqrt(n)."""
    return count + math.ceil(part * (count + 40.0 * count**0.5))


class NeighborList:
    """All directed pairs closer than cutoff + skin, with fixed capacity K.

    Rows are ordered by (neighbor, image) and each slot knows the slot of the reverse pair in
    its neighbor's row. The list is a pure function of the reference positions and cell.
    `update_` has static shapes and reads nothing back, so it can be captured in a CUDA
    graph; while the list is still complete it skips the work, on CUDA kernel by kernel.
    Neighbors beyond K are dropped, never written out of bounds, and their true number stays
    in `status()` until the list is grown.

    Attributes:
        cutoff: A; infinity lists every pair of a system without periodic directions.
        skin: A; pairs up to cutoff + skin are kept so that the list outlives some steps.
        capacity: K, slots a row; a multiple of `block`.
        index: (R, K) int32, neighbor of each slot; an empty slot holds its own atom. Without a
            brick R is N, and each atom has the row of its number.
        image: (R, K) int32, number of the lattice translation of each slot.
        reverse: (R, K) int32, slot of the reverse pair in the neighbor's row.
        row: (N,) int32, row of each atom, below zero for one that has none; None where all have.
        count: (N,) int32, number of slots in use.
        wrap: (N, 3), lattice translation that took each atom into the cell at the build.
        order: (N,) int32, atoms in the order in which kernels should visit them for
            locality; never changes a result.
        offsets: (images, 3) int64, lattice translation of each image number.
        reference_positions, reference_cell: what the list was built from.
        rebuilds: () int64, number of builds.
        brick: near which atoms must lie to have a row, see `limit_`; or None.
        cell_varies: whether updates look at the cell again.
        due: (1,) int32, makes updates build where it is not zero, see `look_`; None where they find
            that themselves.
    """

    interior: ClassVar[int] = 0
    due: Tensor | None = None
    _left_device = False

    def __init__(
        self,
        state: State,
        cutoff: float,
        skin: float = 0.0,
        capacity: int | None = None,
        cell_varies: bool = True,
        brick: Brick | None = None,
        one_way: bool = False,
    ) -> None:
        """Allocates for the state at hand and builds; reads the device.

        Args:
            state: positions and cells to build from.
            cutoff: A.
            skin: A.
            capacity: slots a row, rounded up to whole blocks; found by a first search if None.
            cell_varies: whether later updates look at the cell again. A simulation at
                constant volume saves that.
            brick: see `limit_`.
            one_way: whether builds may leave out the reverse slots, which `pairs` finds then.

        Raises:
            InputError: infinite cutoff with a periodic direction.
        """
        if math.isinf(cutoff) and bool(state.pbc.any()):
            raise InputError(
                "All pairs cannot be listed in a periodic system; give a finite cutoff."
            )
        self.cutoff = cutoff
        self.skin = 0.0 if math.isinf(cutoff) else skin
        self.cell_varies, self._one_way = cell_varies, one_way
        self._range = cutoff + self.skin
        self.brick = brick
        self._take_atoms(state)
        # Where empty slots point: beyond the cutoff, and not to zero distance.
        beyond = 1.0 if math.isinf(cutoff) else 2.0 * cutoff
        self._far = torch.tensor([beyond, 0.0, 0.0], dtype=state.dtype, device=state.device)
        self._allocate(capacity or self.block, state.positions, state.cell)
        if capacity is None:
            self.grow()

    def _take_atoms(self, state: State) -> None:
        """Is of the atoms of a state from here on; `_allocate` comes after it."""
        self.grouping, self.pbc = state.grouping, state.pbc
        self.block = block_width(state.grouping.atoms, self.cutoff, state.device.type)
        self._counters = Counters.allocate(state.cell)
        self._planner = Planner(state, self._counters, self.cell_varies)
        self.rebuilds, self._row_room = self._counters.rebuilds, 0

    @full_float32()
    def _allocate(self, capacity: int, positions: Tensor, cell: Tensor) -> None:
        blocks = max(1, math.ceil(capacity / self.block))
        self.capacity = blocks * self.block
        builder = builder_class(positions.device)
        lattice = Lattice.of(cell, self.pbc, self._range)
        self._search = self._planner.plan(positions, lattice, self._range, builder.bin_cost)
        self._limited = (
            self.brick is not None and builder.takes_limits and isinstance(self._search, CellList)
        )
        if self.brick is not None and self._limited:
            self._row_room = self._rows_near(self.brick, positions, lattice)
        self.reference_positions, self.reference_cell = positions.clone(), cell.clone()
        self._left_device = False
        self.offsets = self._search.images.offsets
        # Planned for; what is found from here on counts anew, in the bins of this plan.
        self._counters.sticky.zero_()
        self._counters.reach.zero_()
        self._lattice = lattice
        self._translations = translations(self.offsets, lattice.vectors)
        self._fill_()
        self.rebuild_(positions, cell)

    def _fill_(self) -> None:
        """Allocates rows, and what builds them, by the plan; does not sync."""
        positions, cell, limit = self.reference_positions, self.reference_cell, None
        if self.brick is not None and self._limited:
            limit = RowLimit(self.brick, torch.full_like(positions[:, 0], -1, dtype=torch.int32))
        self.row = None if limit is None else limit.row
        room = None if limit is None else self._row_room
        rows = ListRows.allocate(self.capacity, positions, cell, room, own_reference=False)
        self.index, self.image, self.reverse = rows.index, rows.image, rows.reverse
        self.count, self.wrap, self.order = rows.count, rows.wrap, rows.order
        self._row_count = len(rows.index)
        task = BuildTask(
            rows, self._counters, self.grouping, self.pbc, self.cutoff, self.skin,
            self.cell_varies, self._lattice, self._search, limit, self._one_way,
        )  # fmt: skip
        self._builder = builder_class(positions.device)(task)

    def rest_(self, *, leaves_device: bool = False) -> None:
        """Frees all but counters, offsets and reference; reading rows builds them again.

        Does not sync.

        Args:
            leaves_device: whether the reference moves to memory of the host, if it is elsewhere.
        """
        self.join()
        if leaves_device and not self._left_device:
            self.reference_positions = on_host(self.reference_positions)
            self._search.leave_device_()
        self._left_device = leaves_device
        for name in _RESTING:
            vars(self).pop(name, None)

    @property
    def rests(self) -> bool:
        """Whether the rows are freed; see `rest_`."""
        return "_builder" not in vars(self)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Allocates and builds again what `rest_` freed."""
            if name not in _RESTING or "_lattice" not in vars(self):
                raise AttributeError(name)
            with torch.no_grad(), full_float32():
                self._fill_()
                self._builder.build_(self.reference_positions, self.reference_cell)
                self.rebuilds.sub_(1)
                self._builder.join()
            return vars(self)[name]

    def _rows_near(self, brick: Brick, positions: Tensor, lattice: Lattice) -> int:
        """Rows for the atoms near a brick, as many as there were if these suffice; syncs."""
        fractional, _ = fractional_coordinates(
            positions, lattice.inverse, self.pbc, self.grouping.index
        )
        # Steps that come after an overflow are repeated, and may have led anywhere.
        met = min(int(self.sticky()[3]), 2 * self._row_room)
        near = brick.is_near(fractional, lattice.inverse, self.pbc, self._range)
        count = max(int(near.sum()), met)
        if count <= self._row_room:
            return self._row_room
        return max(1, min(with_room(count, _MORE_ROWS), len(positions)))

    @full_float32()
    def rebuild_(self, positions: Tensor, cell: Tensor) -> None:
        """Builds the list from these positions and cells; does not sync."""
        if self.rests:
            self.reference_positions.copy_(positions)
            self.reference_cell.copy_(cell)
            self.rebuilds.add_(1)
            return
        self._builder.build_(positions, cell)
        self.join()

    @full_float32()
    def update_(self, positions: Tensor, cell: Tensor, *, joined: bool = True) -> None:
        """Brings the list up to date; static shapes, capturable, does not sync on CUDA.

        Args:
            positions: (N, 3) A, unwrapped.
            cell: (S, 3, 3) A.
            joined: whether later work may read `reverse` at once. If not, call `join` before that,
                as on CUDA the reverse slots are filled in parallel; of a list with limits only the
                reference may be read before `join`.
        """
        if not math.isinf(self._range):
            self._builder.update_(positions, cell, self.due)
        if joined:
            self.join()

    @full_float32()
    def look_(
        self, due: Tensor, positions: Tensor, cell: Tensor, atoms: Tensor, used: Tensor
    ) -> None:
        """Sets `due` if some atoms have moved so far that the list may be incomplete.

        Static shapes, capturable, does not sync on CUDA. The next update must take the same cells.

        Args:
            due: (1,) int32, set to one if so.
            positions: (n, 3) A, of the atoms to check.
            cell: (S, 3, 3) A.
            atoms: (n,) int64, their indices.
            used: (n,) bool, false for rows without an atom.
        """
        if self.skin > 0.0:
            self._builder.look_(due, positions, cell, atoms, used)

    @full_float32()
    def follow_(self, positions: Tensor, cell: Tensor, anyway: Tensor) -> None:
        """Builds from the reference of another list, unless it was built from that already.

        Static shapes, capturable, does not sync on CUDA.

        Args:
            positions: (N, 3) A, reference of the other list.
            cell: (S, 3, 3) A, likewise.
            anyway: () bool, whether to build in any case.
        """
        self._builder.follow_(positions, cell, anyway)
        self.join()

    def renew_(self, state: State, positions: Tensor, cell: Tensor) -> None:
        """Replaces the atoms by those of another state, whose number may differ; keeps its brick.

        Buffers are replaced, as in `grow`. Reads the device.

        Args:
            state: of the system that they are part of.
            positions: (n, 3) A, to build from.
            cell: (1, 3, 3) A, likewise.
        """
        self.join()
        self._take_atoms(state)
        self._allocate(self.capacity, positions, cell)

    @full_float32()
    def limit_(self, brick: Brick | None) -> None:
        """Keeps rows only for atoms near a brick, and builds them from the same reference.

        These are at least the atoms of the brick and all atoms within the range of one of them.
        Other atoms have a count of zero; `whole` gives their rows. Torch's builder, and a search of
        every pair, keep rows of all atoms. Buffers are replaced, as in `grow`, unless the brick is
        the same. Reads the device.

        Args:
            brick: of the one system; its planes are read at each build. None gives all atoms rows.
        """
        own = self.brick
        if own is brick or (
            own is not None
            and brick is not None
            and (own.planes is brick.planes and own.ends == brick.ends)
            and own.margin == brick.margin
        ):
            return
        self.join()
        self.brick, self._row_room = brick, 0
        self._allocate(self.capacity, self.reference_positions, self.reference_cell)

    @full_float32()
    def whole(self) -> NeighborRows:
        """Rows of all atoms: its own, or new buffers if some atoms have no row; does not sync.

        Static shapes, capturable; the new buffers live as long as the result.
        """
        if self.row is None:
            return self
        self.join()
        rows = ListRows.allocate(self.capacity, self.reference_positions, self.reference_cell)
        self._builder.build_all_(rows)
        return StoredRows(
            rows.index, rows.image, rows.reverse, rows.count, self.wrap, self.offsets, rows.order,
            self.interior, self.capacity,
        )  # fmt: skip

    def rows_of(self, atoms: Tensor) -> Tensor:
        """Row of each atom (n,) int64; for an atom without one, some row with a count of zero."""
        return atoms if self.row is None else self.row[atoms].to(torch.int64).clamp(min=0)

    @property
    def is_built_anew(self) -> bool:
        """Whether every update builds the list."""
        return self.skin == 0.0 and not math.isinf(self._range)

    def join(self) -> None:
        """Makes later work wait for the reverse slots; does not sync."""
        if not self.rests:
            self._builder.join()

    @full_float32()
    def pairs(self, positions: Tensor, cell: Tensor) -> Pairs:
        """Pair vectors of all slots, as leaves that ask for gradients; does not sync.

        Args:
            positions: (N, 3) A, those of the last update.
            cell: (S, 3, 3) A.
        """
        self.join()
        if self._one_way:
            self._builder.reverse_()
        rows = self.whole()
        reverse = (rows.index * self.capacity + rows.reverse).flatten()
        blocks = self._blocks(rows, positions, cell)
        return Pairs(blocks, rows.index, rows.count, reverse, self.cutoff)

    @full_float32()
    def blocks(self, positions: Tensor, cell: Tensor) -> tuple[PairBlock, ...]:
        """Those of `pairs`, without the reverse slots that a list one way would have to find."""
        self.join()
        return self._blocks(self.whole(), positions, cell)

    def _blocks(self, rows: NeighborRows, positions: Tensor, cell: Tensor) -> tuple[PairBlock, ...]:
        group, lattice = self.grouping, periodic_vectors(cell, self.pbc)
        wrapped = positions - (self.wrap[:, None] @ lattice[group.index])[:, 0]
        images = translations(self.offsets, lattice) if self.cell_varies else self._translations
        first = (group.index * len(self.offsets))[:, None]
        return pair_blocks(rows, self.block, wrapped, images.flatten(0, 1), first, self._far)

    def status(self) -> ListStatus:
        """Reads the sticky numbers; syncs."""
        self.join()
        return self.status_of(*self.sticky().tolist())

    def status_of(
        self, most_neighbors: int, occupancy: int, insufficient: int, rows: int
    ) -> ListStatus:
        """The status that a copy of `sticky` tells; no device read."""
        return ListStatus(
            most_neighbors, self.capacity, occupancy, self._bin_capacity, bool(insufficient),
            rows, self._row_count,
        )  # fmt: skip

    def overflowed(self) -> Tensor:
        """() bool on the device, whether the status is not complete; does not sync."""
        most, occupancy, insufficient, rows = self.sticky().unbind()
        over = (most > self.capacity) | (occupancy > self._bin_capacity) | (insufficient != 0)
        return over | (rows > self._row_count)

    @property
    def _bin_capacity(self) -> int:
        capacity: int = getattr(self._search, "bin_capacity", 0)
        return capacity

    def sticky(self) -> Tensor:
        """(4,) int64 on the device, for a reader that gathers several lists in one copy."""
        return self._counters.sticky

    def grow(self) -> None:
        """Allocates for the most neighbors and rows that were met, with margins, and builds again.

        Buffers are replaced, so graphs that hold them must be captured again. Reads the device.
        """
        self.join()
        for _ in range(8):
            status = self.status()
            capacity = math.ceil(status.most_neighbors * MARGIN) + 1
            if math.isinf(self._range):
                capacity = status.most_neighbors
            if self.pbc.device.type == "cpu":  # elsewhere the allocator itself says so
                atoms = len(self.reference_positions)
                rows = self._row_room if self._limited else atoms
                check_fits(
                    _SLOT * rows * capacity,
                    available_host_memory(),
                    f"The list of {capacity:,} neighbors within {self._range:g} A of "
                    f"{atoms:,} atoms",
                    "give a shorter cutoff or skin, or fewer atoms",
                )
            self._allocate(capacity, self.reference_positions, self.reference_cell)
            if self.status().complete:
                return
        raise AssertionError("a list grown to what was found cannot overflow again")

    def set_skin(self, skin: float) -> None:
        """Takes another skin (A) and builds from the same reference.

        Buffers are replaced, as in `grow`. Reads the device.
        """
        self.join()
        self.skin = 0.0 if math.isinf(self.cutoff) else skin
        self._range = self.cutoff + self.skin
        self._counters.sticky.zero_()
        self._counters.reach.zero_()
        self._row_room = 0
        self._allocate(self.block, self.reference_positions, self.reference_cell)
        self.grow()

    @property
    def mechanism(self) -> str:
        """How builds are left out that are not due, for the log."""
        return self._builder.mechanism

    def reference(self) -> tuple[Tensor, Tensor]:
        """Copies of reference positions and cell, from which `rebuild_` gives the same list."""
        return self.reference_positions.clone(), self.reference_cell.clone()


def hold_all(lists: Sequence[NeighborList], counted: Iterable[Sequence[int]]) -> bool:
    """Whether every pair found its slot, from host copies of `sticky` of each list."""
    return all(item.status_of(*row).complete for item, row in zip(lists, counted, strict=True))
