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
from mdgraph.neighbors.compilation import compiling_ahead
from mdgraph.neighbors.launching import launching_ahead, launching_on
from mdgraph.neighbors.rows import Task
from mdgraph.neighbors.search_launches import BLOCK, OPTIONS, Wrapped, search_launches


class KernelBuilder:
    """Builds by kernels that return at once where no build is due.

    The cells of a task whose cells do not vary are those of its lattice, whatever is given.
    """

    bin_cost: ClassVar[int] = 3
    mechanism: ClassVar[str] = "kernels that read a flag on the device"

    def __init__(self, task: Task) -> None:
        """Allocates what the kernels hand on to one another, and compiles them."""
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
        self._wrapped = Wrapped(
            positions.new_zeros(3, atoms),
            positions.new_zeros(3, atoms),
            self._vectors,
            self._pbc,
            self._limits,
        )
        self._search = search_launches(task, self._wrapped, self._launch)
        if device.type == "cuda":
            with compiling_ahead():
                self.update_(positions, task.rows.reference_cell)

    def build_(self, positions: Tensor, cell: Tensor) -> None:
        """See Builder."""
        positions, cell = positions.contiguous(), cell.contiguous()
        with launching_on(self._due.device):
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
        with launching_on(self._due.device):
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
                BLOCK=BLOCK,
                **OPTIONS,
            )
            self._build(self._due, positions, cell)

    def _blocks(self) -> tuple[int]:
        return (triton.cdiv(self._task.grouping.atoms, BLOCK),)

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
            **OPTIONS,
        )

    def _build(self, due: Tensor, positions: Tensor, cell: Tensor) -> None:
        self._prepare(due, positions, cell)
        self._search.find(due)
        # Nobody needs it soon, and its loads wait for each other.
        with self._branch.fork():
            self._reverse(due)

    def _prepare(self, due: Tensor, positions: Tensor, cell: Tensor) -> None:
        task, rows = self._task, self._task.rows
        frame_kernels.prepare_kernel[self._blocks()](
            due,
            positions,
            task.grouping.index,
            self._pbc,
            self._vectors,
            self._inverse,
            rows.wrap,
            self._wrapped.positions,
            self._wrapped.fractional,
            rows.reference_positions,
            cell,
            rows.reference_cell,
            self._reach,
            self._allowed_reach,
            task.counters.reach,
            task.counters.sticky,
            *self._search.plan,
            task.grouping.atoms,
            task.grouping.systems,
            CELL_VARIES=task.cell_varies,
            BINNED=self._search.binned,
            BLOCK=BLOCK,
            **self._launch,
            **OPTIONS,
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
