"""NeighborList: a full list with one row an atom, in buffers of fixed capacity."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from mdgraph.errors import InputError
from mdgraph.neighbors.geometry import complete_cell, heights, inverse, periodic_vectors
from mdgraph.neighbors.pairs import PairBlock, Pairs
from mdgraph.neighbors.search import PADDING, CellList, EveryPair, Frame, Search
from mdgraph.precision import full_float32
from mdgraph.state import State

MARGIN = 1.15
"""Capacity allocated over what was found: density fluctuations of a liquid."""


@dataclass(frozen=True)
class ListStatus:
    """What the host reads of a list between chunks.

    Attributes:
        found: largest number of neighbors of any atom since the last growth.
        capacity: slots a row.
        occupancy: most atoms in one bin of the cell list.
        bin_capacity: atoms a bin has room for.
        insufficient: the cell shrank beyond what the search was planned for.
    """

    found: int
    capacity: int
    occupancy: int
    bin_capacity: int
    insufficient: bool

    @property
    def complete(self) -> bool:
        """Whether every pair found its slot."""
        return (
            self.found <= self.capacity
            and self.occupancy <= self.bin_capacity
            and not self.insufficient
        )


class NeighborList:
    """All directed pairs closer than cutoff + skin, with fixed capacity K.

    Rows are ordered by (neighbor, image) and each slot knows the slot of the reverse pair in
    its neighbor's row. The list is a pure function of the reference positions and cell.
    `update_` has static shapes and reads nothing back, so it can be captured in a CUDA
    graph; on a CPU it skips the work when the list is still complete. Neighbors beyond K
    are dropped, never written out of bounds, and their true number stays in `status()`
    until the list is grown.

    Attributes:
        cutoff: A; infinity lists every pair of a system without periodic directions.
        skin: A; pairs up to cutoff + skin are kept so that the list outlives some steps.
        index: (N, K) int32, neighbor of each slot; an empty slot holds its own atom.
        image: (N, K) int32, number of the lattice translation of each slot.
        reverse: (N, K) int32, slot of the reverse pair in the neighbor's row.
        count: (N,) int32, number of slots in use.
        wrap: (N, 3), lattice translation that took each atom into the cell at the build.
        reference_positions, reference_cell: what the list was built from.
        rebuilds: () int64, number of builds.
    """

    def __init__(
        self,
        state: State,
        cutoff: float,
        skin: float = 0.0,
        capacity: int | None = None,
        cell_varies: bool = True,
    ) -> None:
        """Allocates for the state at hand and builds; reads the device.

        Args:
            state: positions and cells to build from.
            cutoff: A.
            skin: A.
            capacity: slots a row, rounded up to whole blocks; found by a first search if None.
            cell_varies: whether later updates look at the cell again. A simulation at
                constant volume saves that.

        Raises:
            InputError: infinite cutoff with a periodic direction.
        """
        if math.isinf(cutoff) and bool(state.pbc.any()):
            raise InputError(
                "All pairs cannot be listed in a periodic system; give a finite cutoff."
            )
        self.cutoff = cutoff
        self.skin = 0.0 if math.isinf(cutoff) else skin
        self.grouping = state.grouping
        self.pbc = state.pbc
        self._cell_varies = cell_varies
        self._range = cutoff + self.skin
        self.block = _block_width(state.grouping.atoms, cutoff, state.device.type)
        device = state.device
        self._found = torch.zeros((), dtype=torch.int64, device=device)
        self._occupancy = torch.zeros((), dtype=torch.int64, device=device)
        self._insufficient = torch.zeros((), dtype=torch.bool, device=device)
        self._reach = torch.zeros(state.cell.shape[:2], dtype=state.dtype, device=device)
        # Where empty slots point: beyond the cutoff, and not to zero distance.
        beyond = 1.0 if math.isinf(cutoff) else 2.0 * cutoff
        self._far = torch.tensor([beyond, 0.0, 0.0], dtype=state.dtype, device=device)
        self.rebuilds = torch.zeros((), dtype=torch.int64, device=device)
        self._allocate(capacity or self.block, state.positions, state.cell)
        if capacity is None:
            self.grow()

    @full_float32()
    def _allocate(self, capacity: int, positions: Tensor, cell: Tensor) -> None:
        blocks = max(1, math.ceil(capacity / self.block))
        self.capacity = blocks * self.block
        atoms, device = self.grouping.atoms, positions.device
        shape = (atoms, self.capacity)
        self.index = torch.zeros(shape, dtype=torch.int32, device=device)
        self.image = torch.zeros(shape, dtype=torch.int32, device=device)
        self.reverse = torch.zeros(shape, dtype=torch.int32, device=device)
        self.count = torch.zeros(atoms, dtype=torch.int32, device=device)
        self.wrap = torch.zeros_like(positions)
        self.reference_positions = positions.clone()
        self.reference_cell = cell.clone()
        self._geometry = self._cell_geometry(cell)
        self._search = self._plan(positions)
        # Planned for; what is found from here on counts anew, in the bins of this plan.
        self._found.zero_()
        self._occupancy.zero_()
        self._reach.zero_()
        self._translations = self._image_vectors(cell)
        self.rebuild_(positions, cell)

    def _plan(self, positions: Tensor) -> Search:
        """Chooses the search with fewer candidates; reads the device."""
        inverse_cell, reach = self._geometry
        if self._cell_varies:
            # A run that has gone astray may have seen absurd cells; they are not planned for.
            reach = torch.maximum(reach * 1.02, torch.minimum(self._reach, 2.0 * reach))
        every = EveryPair(self.grouping, reach, positions.device)
        if math.isinf(self._range):
            return every
        fractional, _ = self._wrapped(positions, inverse_cell)
        # Translations play no part in planning.
        frame = Frame(positions, fractional, reach, positions.new_zeros(()))
        plan = CellList(self.grouping, frame, self._range, 1)
        occupancy = max(plan.largest_bin(frame), int(self._occupancy))
        cells = CellList(self.grouping, frame, self._range, math.ceil(1.3 * occupancy) + 1)
        return cells if cells.candidates < every.candidates else every

    def _cell_geometry(self, cell: Tensor) -> tuple[Tensor, Tensor]:
        inverse_cell = inverse(complete_cell(cell, self.pbc))
        reach = torch.where(self.pbc, self._range / heights(inverse_cell), 0.0)
        return inverse_cell, reach

    def _image_vectors(self, cell: Tensor) -> Tensor:
        offsets = self._search.images.offsets.to(cell.dtype)
        return offsets @ periodic_vectors(cell, self.pbc)

    def _wrapped(self, positions: Tensor, inverse_cell: Tensor) -> tuple[Tensor, Tensor]:
        """Fractional coordinates in the cell, and the whole numbers taken off."""
        group = self.grouping
        fractional = (positions[:, None] @ inverse_cell[group.index])[:, 0]
        whole = torch.where(self.pbc[group.index], fractional.floor(), 0.0)
        return fractional - whole, whole

    @full_float32()
    def rebuild_(self, positions: Tensor, cell: Tensor) -> None:
        """Builds from these positions and cells, whatever the list held; does not sync."""
        self._store(*self._build(positions, cell))
        self.rebuilds += 1

    def _build(self, positions: Tensor, cell: Tensor) -> tuple[Tensor, ...]:
        group, search = self.grouping, self._search
        if self._cell_varies:
            inverse_cell, reach = self._cell_geometry(cell)
            translations = self._image_vectors(cell)
            torch.fmax(self._reach, reach, out=self._reach)
        else:
            inverse_cell, reach = self._geometry
            translations = self._translations
        fractional, whole = self._wrapped(positions, inverse_cell)
        shift = (whole[:, None] @ periodic_vectors(cell, self.pbc)[group.index])[:, 0]
        frame = Frame(positions - shift, fractional, reach, translations)
        found = search.find(frame, self._range, self.capacity)
        if self._cell_varies:
            self._insufficient |= search.insufficient(frame)
        torch.maximum(self._found, found.count.max(), out=self._found)
        torch.maximum(self._occupancy, found.occupancy, out=self._occupancy)

        images = len(search.images)
        atoms = torch.arange(group.atoms, device=positions.device)[:, None]
        slots = torch.arange(self.capacity, device=positions.device)
        used = found.keys != PADDING
        neighbor = torch.where(used, found.keys // images, atoms)
        image = torch.where(used, found.keys % images, search.images.zero)
        # All keys in one ascending sequence; the reverse pair is found by bisection.
        pairs = group.atoms * images
        sequence = atoms * (pairs + 1) + found.keys.clamp(max=pairs)
        wanted = neighbor * (pairs + 1) + atoms * images + (2 * search.images.zero - image)
        place = torch.searchsorted(sequence.flatten(), wanted.flatten()).view_as(wanted)
        reverse = (place - neighbor * self.capacity).clamp(0, self.capacity - 1)
        reverse = torch.where(used, reverse, slots)
        count = found.count.clamp(max=self.capacity)
        return neighbor, image, reverse, count, whole, positions, cell

    def _store(self, *built: Tensor) -> None:
        for buffer, value in zip(self._buffers(), built, strict=True):
            buffer.copy_(value)

    def _buffers(self) -> tuple[Tensor, ...]:
        return (
            self.index,
            self.image,
            self.reverse,
            self.count,
            self.wrap,
            self.reference_positions,
            self.reference_cell,
        )

    @full_float32()
    def update_(self, positions: Tensor, cell: Tensor) -> None:
        """Brings the list up to date; static shapes, capturable, does not sync on CUDA.

        Args:
            positions: (N, 3) A, unwrapped.
            cell: (S, 3, 3) A.
        """
        if math.isinf(self._range):
            return
        if self.skin == 0.0:
            self.rebuild_(positions, cell)
            return
        due = self._due(positions, cell)
        if positions.device.type == "cpu":
            if bool(due):
                self.rebuild_(positions, cell)
            return
        for buffer, value in zip(self._buffers(), self._build(positions, cell), strict=True):
            buffer.copy_(torch.where(due, value.to(buffer.dtype), buffer))
        self.rebuilds += due

    def _due(self, positions: Tensor, cell: Tensor) -> Tensor:
        """() bool: the list may have become incomplete.

        With F = h0^-1 h (cell at the build, cell now) and u_i = x_i - x_i0 F it is complete
        while 2 max|u_i| <= sigma_min(F) (cutoff + skin) - cutoff: a pair now within the
        cutoff was within the list's range when it was built. The smallest singular value is
        bounded from below by 1 - |F - 1|_F, which is exact for a cell at rest.
        """
        system = self.grouping.index
        if self._cell_varies:
            then = complete_cell(self.reference_cell, self.pbc)
            now = complete_cell(cell, self.pbc)
            deformation = inverse(then) @ now
            identity = torch.eye(3, dtype=cell.dtype, device=cell.device)
            smallest = 1.0 - torch.linalg.vector_norm(deformation - identity, dim=(-2, -1))
            carried = (self.reference_positions[:, None] @ deformation[system])[:, 0]
            allowed = smallest * self._range - self.cutoff
        else:
            carried = self.reference_positions
            allowed = torch.full_like(cell[:, 0, 0], self.skin)
        moved = torch.linalg.vector_norm(positions - carried, dim=-1)
        # Not `moved > allowed`: a position that is not a number must count as moved.
        return ~(2.0 * moved <= allowed[system]).all()

    @full_float32()
    def pairs(self, positions: Tensor, cell: Tensor) -> Pairs:
        """Pair vectors of all slots, as leaves that ask for gradients; does not sync.

        Args:
            positions: (N, 3) A, those of the last update.
            cell: (S, 3, 3) A.
        """
        group = self.grouping
        lattice = periodic_vectors(cell, self.pbc)
        wrapped = positions - (self.wrap[:, None] @ lattice[group.index])[:, 0]
        translations = self._image_vectors(cell) if self._cell_varies else self._translations
        first = (group.index * len(self._search.images))[:, None]
        translations = translations.flatten(0, 1)
        slots = torch.arange(self.capacity, device=positions.device)
        used = slots < self.count[:, None]
        blocks = []
        for start in range(0, self.capacity, self.block):
            part = slice(start, start + self.block)
            index = self.index[:, part].contiguous()
            # Difference first, as in the search: both directions of a pair round alike.
            vectors = wrapped.index_select(0, index.flatten()).view(*index.shape, 3)
            vectors = vectors - wrapped[:, None]
            image = (self.image[:, part] + first).flatten()
            vectors = vectors + translations.index_select(0, image).view_as(vectors)
            valid = used[:, part].contiguous()
            vectors = torch.where(valid[..., None], vectors, self._far)
            blocks.append(PairBlock(vectors.detach().requires_grad_(), index, valid))
        reverse = (self.index * self.capacity + self.reverse).flatten()
        return Pairs(tuple(blocks), self.index, self.count, reverse, self.cutoff)

    def status(self) -> ListStatus:
        """Reads the sticky numbers; syncs."""
        return self.status_of(*self.sticky().tolist())

    def status_of(self, found: int, occupancy: int, insufficient: int) -> ListStatus:
        """The status that a copy of `sticky` tells; no device read."""
        bin_capacity = getattr(self._search, "bin_capacity", 0)
        return ListStatus(found, self.capacity, occupancy, bin_capacity, bool(insufficient))

    def sticky(self) -> Tensor:
        """(3,) int64 on the device, for a reader that gathers several lists in one copy."""
        return torch.stack([self._found, self._occupancy, self._insufficient.to(torch.int64)])

    def grow(self) -> None:
        """Allocates what was found plus a margin and builds from the same reference.

        Buffers are replaced, so graphs that hold them must be captured again. Reads the device.
        """
        for _ in range(8):
            status = self.status()
            wanted = math.ceil(status.found * MARGIN) + 1
            if math.isinf(self._range):
                wanted = status.found
            self._insufficient.zero_()
            self._allocate(wanted, self.reference_positions, self.reference_cell)
            if self.status().complete:
                return
        raise AssertionError("a list grown to what was found cannot overflow again")

    def reference(self) -> tuple[Tensor, Tensor]:
        """Copies of reference positions and cell, from which `rebuild_` gives the same list."""
        return self.reference_positions.clone(), self.reference_cell.clone()


def _block_width(atoms: int, cutoff: float, device: str) -> int:
    """Slots a block: wide ones leave fewer kernels, narrow ones less padding.

    It must not depend on the capacity, which would then change the bits.
    """
    if cutoff > 8.0:
        return 128
    if atoms <= 64:
        return 32
    return 40 if device == "cuda" else 16
