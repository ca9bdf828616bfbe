"""KernelBuilder: fills a list with a handful of Triton kernels.

Three kernels make a build by every pair (wrap, rows, reverse slots), five one by the cell
list (wrap and count, starts of bins, atoms into bins, rows, reverse slots). One more comes
before them where cells vary, and two where a skin decides whether they do anything.
"""

from typing import Any, ClassVar

import torch
import triton
from torch import Tensor

from mdgraph.neighbors import frame_kernels, lattice_kernels, row_kernels
from mdgraph.neighbors.branch import Branch
from mdgraph.neighbors.cell_list_kernels import cell_list_kernel
from mdgraph.neighbors.launching import launching_ahead, launching_on
from mdgraph.neighbors.rows import Task
from mdgraph.neighbors.search import CellList, EveryPair

_BLOCK = 128
"""Atoms a program where each has one lane."""

_CHUNK = 512
"""Candidates of every pair looked at together."""

_LANES, _DEPTH = 32, 8
"""Bins, and atoms of each, looked at together."""

_OPTIONS: dict[str, Any] = {"enable_fp_fusion": False}
"""Products are not contracted into sums, so that numbers are those of any other device."""


class KernelBuilder:
    """Builds by kernels that return at once where no build is due.

    The cells of a task whose cells do not vary are those of its lattice, whatever is given.
    """

    bin_cost: ClassVar[int] = 3
    mechanism: ClassVar[str] = "kernels that read a flag on the device"

    def __init__(self, task: Task) -> None:
        """Allocates what the kernels hand on to one another."""
        self._task = task
        positions = task.rows.reference_positions
        atoms, device, kind = task.grouping.atoms, positions.device, positions.dtype
        whole: dict[str, Any] = {"dtype": torch.int32, "device": device}
        self._launch = launching_ahead(device, atoms)
        self._branch = Branch(device)
        self._always = torch.ones(1, **whole)
        self._due = torch.zeros(1, **whole)
        self._pbc = task.pbc.to(torch.int32)
        self._vectors = task.lattice.vectors.contiguous().clone()
        self._inverse = task.lattice.inverse.contiguous().clone()
        self._reach = task.lattice.reach.contiguous().clone()
        self._allowed_reach = task.search.allowed.to(kind).contiguous()
        limits = [task.range, task.range**2, task.cutoff]
        self._limits = torch.tensor(limits, dtype=kind, device=device)
        self._deformation = torch.zeros_like(self._inverse)
        self._allowed = torch.full_like(self._inverse[:, 0, 0], task.skin)
        self._wrapped = positions.new_zeros(3, atoms)
        # One search needs the former, the other the latter.
        self._fractional = self._placed = torch.zeros_like(self._wrapped)
        if isinstance(task.search, CellList):
            bins = len(task.search.bins)
            self._shape = task.search.bins.shape.to(torch.int32)
            self._in_bin = torch.zeros(bins, **whole)
            self._bin_start = torch.full((bins + 2,), atoms, **whole)
            self._bin_of, self._slot_of, self._members = torch.zeros(3, atoms, **whole)

    def build_(self, positions: Tensor, cell: Tensor) -> None:
        """See Builder."""
        positions, cell = positions.contiguous(), cell.contiguous()
        with launching_on(self._wrapped.device):
            self._look_at(cell)
            self._build(self._always, positions, cell)

    def join(self) -> None:
        """See Builder."""
        self._branch.join()

    def update_(self, positions: Tensor, cell: Tensor) -> None:
        """See Builder."""
        task = self._task
        if task.skin == 0.0:
            self.build_(positions, cell)
            return
        positions, cell = positions.contiguous(), cell.contiguous()
        self._due.zero_()
        with launching_on(self._wrapped.device):
            self._look_at(cell)
            lattice_kernels.due_kernel[self._blocks()](
                positions,
                task.rows.reference_positions,
                task.grouping.index,
                self._deformation,
                self._allowed,
                self._due,
                task.grouping.atoms,
                CELL_VARIES=task.cell_varies,
                BLOCK=_BLOCK,
                **_OPTIONS,
            )
            self._build(self._due, positions, cell)

    def _blocks(self) -> tuple[int]:
        return (triton.cdiv(self._task.grouping.atoms, _BLOCK),)

    def _look_at(self, cell: Tensor) -> None:
        task = self._task
        if not task.cell_varies:
            return
        systems = task.grouping.systems
        lattice_kernels.lattice_kernel[(triton.cdiv(systems, 32),)](
            cell,
            task.rows.reference_cell,
            self._pbc,
            self._limits,
            self._vectors,
            self._inverse,
            self._reach,
            self._deformation,
            self._allowed,
            systems,
            SKIN=task.skin > 0.0,
            BLOCK=32,
            num_warps=1,
            **_OPTIONS,
        )

    def _build(self, due: Tensor, positions: Tensor, cell: Tensor) -> None:
        search = self._task.search
        self._prepare(due, positions, cell)
        if isinstance(search, CellList):
            self._fill_bins(due, len(search.bins))
            self._rows_from_bins(due, search)
        elif isinstance(search, EveryPair):
            self._rows_from_every_pair(due, search)
        # Nobody needs it soon, and its loads wait for each other.
        with self._branch.fork():
            self._reverse(due)

    def _prepare(self, due: Tensor, positions: Tensor, cell: Tensor) -> None:
        task, rows = self._task, self._task.rows
        binned = isinstance(task.search, CellList)
        plan: list[Tensor | None] = [None] * 8
        if isinstance(task.search, CellList):
            bins = task.search.bins
            plan = [task.search.low, task.search.scale, self._shape, bins.first, bins.curve]
            plan += [self._in_bin, self._bin_of, self._slot_of]
        frame_kernels.prepare_kernel[self._blocks()](
            due,
            positions,
            task.grouping.index,
            self._pbc,
            self._vectors,
            self._inverse,
            rows.wrap,
            self._wrapped,
            self._fractional,
            rows.reference_positions,
            cell,
            rows.reference_cell,
            self._reach,
            self._allowed_reach,
            task.counters.reach,
            task.counters.sticky,
            *plan,
            task.grouping.atoms,
            task.grouping.systems,
            CELL_VARIES=task.cell_varies,
            BINNED=binned,
            BLOCK=_BLOCK,
            **self._launch,
            **_OPTIONS,
        )

    def _fill_bins(self, due: Tensor, bins: int) -> None:
        block = min(4096, max(128, triton.next_power_of_2(bins)))
        frame_kernels.scan_kernel[(1,)](
            due,
            self._in_bin,
            self._bin_start,
            bins,
            BLOCK=block,
            num_warps=max(1, block // 512),
            **self._launch,
        )
        frame_kernels.place_kernel[self._blocks()](
            due,
            self._bin_of,
            self._slot_of,
            self._bin_start,
            self._wrapped,
            self._members,
            self._placed,
            self._task.grouping.atoms,
            BLOCK=_BLOCK,
            **self._launch,
        )

    def _rows_from_bins(self, due: Tensor, search: CellList) -> None:
        task, rows = self._task, self._task.rows
        width = triton.next_power_of_2(rows.capacity)
        warps = min(16, max(1, width // 128))
        stencil = search.stencil.shape[1]
        cell_list_kernel[(task.grouping.atoms,)](
            due,
            self._members,
            self._placed,
            self._bin_of,
            self._bin_start,
            search.stencil,
            search.stencil_image,
            search.images.offsets,
            task.grouping.index,
            self._vectors,
            self._limits,
            rows.index,
            rows.image,
            rows.count,
            rows.order,
            task.counters.sticky,
            task.grouping.atoms,
            rows.capacity,
            len(search.bins),
            search.images.zero,
            STENCIL=stencil,
            LANES=_LANES,
            DEPTH=_DEPTH * warps,
            WIDTH=width,
            num_warps=warps,
            **self._launch,
            **_OPTIONS,
        )

    def _rows_from_every_pair(self, due: Tensor, search: EveryPair) -> None:
        task, rows = self._task, self._task.rows
        chunk = min(_CHUNK, max(32, triton.next_power_of_2(search.candidates)))
        x, y, z = search.shell
        row_kernels.every_pair_kernel[(task.grouping.atoms,)](
            due,
            self._wrapped,
            self._fractional,
            task.grouping.index,
            task.grouping.start,
            task.grouping.counts,
            self._pbc,
            self._vectors,
            self._limits,
            rows.index,
            rows.image,
            rows.count,
            task.counters.sticky,
            task.grouping.atoms,
            rows.capacity,
            search.images.strides[0],
            search.images.strides[1],
            search.images.zero,
            SHELL_X=x,
            SHELL_Y=y,
            SHELL_Z=z,
            CHUNK=chunk,
            num_warps=max(1, chunk // 128),
            **self._launch,
            **_OPTIONS,
        )

    def _reverse(self, due: Tensor) -> None:
        task, rows = self._task, self._task.rows
        row_kernels.reverse_kernel[(task.grouping.atoms,)](
            due,
            rows.order,
            rows.index,
            rows.image,
            rows.count,
            rows.reverse,
            task.counters.rebuilds,
            rows.capacity,
            task.search.images.zero,
            STEPS=rows.capacity.bit_length(),
            BLOCK=min(128, triton.next_power_of_2(rows.capacity)),
            num_warps=1,
            **self._launch,
        )
