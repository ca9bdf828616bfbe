"""KernelBuilder: builds a neighbor list with a few Triton kernels.

A build by every pair takes three kernels (wrap, rows, reverse slots), one by the cell list four
(wrap, count and starts of bins, atoms into bins, rows, reverse slots), or of few atoms three. With
a varying cell one more runs before them; with a skin one more decides whether the others do
anything.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Final, Protocol

import torch
import triton
from torch import Tensor

from mdgraph.gpu.launch import PROGRAMS, Branch, launching_ahead, launching_on
from mdgraph.gpu.triton_jit import compiling_ahead
from mdgraph.neighbors import triton_kernels
from mdgraph.neighbors.search import CellList, EveryPair
from mdgraph.neighbors.torch_builder import BuildTask, ListRows
from mdgraph.neighbors.triton_kernels import cell_list_kernel

BLOCK: Final = 128
"""Atoms of a program with one lane for each."""

OWN_FLAGS: Final = 64
"""Most programs that say each by a flag of its own whether a build is due: setting one flag of all
to zero before would be a kernel more, and one program for all atoms takes longer than both. So few
atoms are put into bins by one program of the kernel before, as a kernel more takes longer each time
that no build is due."""

OPTIONS: Final[dict[str, Any]] = {"enable_fp_fusion": False}
"""No fused multiply-add, so that results are bitwise those of other devices."""

_CHUNK: Final = 512
"""Candidates of `EveryPair` that a program compares at a time."""

_WIDTH: Final = 2048
"""Bins whose starts are found at a time, and atoms that are put into them, by one program."""

_LANES, _DEPTH, _DEEP = 32, 2, 8
"""Bins, and atoms of each, that a program of the cell list compares at a time; the last for each
warp of several, whose lists are long and bins full."""


@dataclass(frozen=True)
class Wrapped:
    """Wrapped atoms and their cells, written by the first kernel of a build.

    Attributes:
        positions: (3, N) A.
        fractional: (3, N), in the completed cells; written only for `EveryPair`.
        vectors: (S, 3, 3) A, cell vectors.
        pbc: (S, 3) int32.
        limits: (3,) A, A^2, A: range of the list, its square, and the cutoff.
    """

    positions: Tensor
    fractional: Tensor
    vectors: Tensor
    pbc: Tensor
    limits: Tensor


class SearchLaunches(Protocol):
    """Kernel launches of a search.

    Attributes:
        bins: whose atoms the first kernel counts; 0 without bins.
        at_once: whether it puts atoms into bins too, as there are few.
    """

    bins: int
    at_once: bool

    @property
    def plan(self) -> list[Tensor | None]:
        """The eleven buffers for that, or eleven times None."""
        ...

    def find(self, due: Tensor) -> None:
        """Fills the rows if one of `due`, int32, is not zero; does not sync.

        Args:
            due: as many flags as a power of two.
        """
        ...

    def find_all(self, rows: ListRows) -> None:
        """Fills rows of all atoms, as they were at the last build of a limited list."""
        ...


def search_launches(task: BuildTask, wrapped: Wrapped, launch: dict[str, Any]) -> SearchLaunches:
    """Launches for the plan of the task; `launch` holds options from `launching_ahead`."""
    if isinstance(task.search, CellList):
        return _CellListLaunches(task, task.search, wrapped, launch)
    assert isinstance(task.search, EveryPair)
    return _EveryPairLaunches(task, task.search, wrapped, launch)


class _EveryPairLaunches:
    bins, at_once = 0, False

    def __init__(
        self, task: BuildTask, search: EveryPair, wrapped: Wrapped, launch: dict[str, Any]
    ) -> None:
        self._task, self._search, self._wrapped, self._launch = task, search, wrapped, launch

    @property
    def plan(self) -> list[Tensor | None]:
        return [None] * 11

    def find_all(self, rows: ListRows) -> None:
        raise AssertionError("no row is left out")

    def find(self, due: Tensor) -> None:
        task, rows, search, wrapped = self._task, self._task.rows, self._search, self._wrapped
        chunk = min(_CHUNK, max(32, triton.next_power_of_2(search.candidates)))
        x, y, z = search.shell
        triton_kernels.every_pair_kernel[(task.grouping.atoms,)](
            due,
            wrapped.positions,
            wrapped.fractional,
            task.grouping.index,
            task.grouping.start,
            task.grouping.counts,
            wrapped.pbc,
            wrapped.vectors,
            wrapped.limits,
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
            FLAGS=len(due),
            num_warps=max(1, chunk // 128),
            **self._launch,
            **OPTIONS,
        )


class _CellListLaunches:
    def __init__(
        self, task: BuildTask, search: CellList, wrapped: Wrapped, launch: dict[str, Any]
    ) -> None:
        self._task, self._search, self._wrapped, self._launch = task, search, wrapped, launch
        self._row = None if task.limit is None else task.limit.row
        atoms, bins = task.grouping.atoms, search.bins
        self.bins, self.at_once = len(bins), triton.cdiv(atoms, BLOCK) <= OWN_FLAGS
        int32: dict[str, Any] = {"dtype": torch.int32, "device": wrapped.positions.device}
        self._in_bin = torch.zeros(len(bins), **int32)
        self._bin_start = torch.full((len(bins) + 2,), atoms, **int32)
        self._bin_of, self._slot_of, self._members = torch.zeros(3, atoms, **int32)
        self._placed = wrapped.fractional  # not used otherwise by this search
        self._shape = bins.shape.to(torch.int32)
        self._always = torch.ones(1, **int32)

    @property
    def plan(self) -> list[Tensor | None]:
        search, bins = self._search, self._search.bins
        return [
            *(search.low, search.scale, self._shape, bins.first, bins.curve),
            *(self._in_bin, self._bin_start, self._bin_of, self._slot_of),
            *(self._members, self._placed),
        ]

    def find(self, due: Tensor) -> None:
        if not self.at_once:
            self._fill_bins(due)
        self._find(due, self._task.rows, self._row)

    def find_all(self, rows: ListRows) -> None:
        self._find(self._always, rows, None)

    def _find(self, due: Tensor, rows: ListRows, row: Tensor | None) -> None:
        task, search = self._task, self._search
        width = triton.next_power_of_2(rows.capacity)
        warps = min(16, max(1, width // 128))
        cell_list_kernel[(min(task.grouping.atoms, PROGRAMS),)](
            due,
            self._members,
            self._placed,
            self._bin_of,
            self._bin_start,
            search.stencil,
            search.stencil_image,
            search.images.offsets,
            task.grouping.index,
            self._wrapped.vectors,
            self._wrapped.limits,
            rows.index,
            rows.image,
            rows.count,
            rows.order,
            task.counters.sticky,
            row,
            task.grouping.atoms,
            rows.capacity,
            len(search.bins),
            search.images.zero,
            STENCIL=search.stencil.shape[1],
            LANES=_LANES,
            DEPTH=_DEPTH if warps == 1 else _DEEP * warps,
            WIDTH=width,
            LIMITED=row is not None,
            FLAGS=len(due),
            num_warps=warps,
            **self._launch,
            **OPTIONS,
        )

    def _fill_bins(self, due: Tensor) -> None:
        atoms = self._task.grouping.atoms
        triton_kernels.place_kernel[(triton.cdiv(atoms, BLOCK),)](
            due,
            self._bin_of,
            self._slot_of,
            self._bin_start,
            self._wrapped.positions,
            self._members,
            self._placed,
            atoms,
            BLOCK=BLOCK,
            FLAGS=len(due),
            **self._launch,
        )


class KernelBuilder:
    """Builds with kernels that return at once if no build is due.

    If the cells of the task do not vary, those of its lattice count, not those passed to a build.
    """

    bin_cost: ClassVar[int] = 3
    takes_limits: ClassVar[bool] = True
    mechanism: ClassVar[str] = "kernels that read a flag on the device"

    def __init__(self, task: BuildTask) -> None:
        """Allocates buffers between the kernels; on CUDA compiles the kernels."""
        self._task = task
        positions = task.rows.reference_positions
        atoms, device, dtype = task.grouping.atoms, positions.device, positions.dtype
        int32: dict[str, Any] = {"dtype": torch.int32, "device": device}
        self._launch = launching_ahead(device, atoms)
        self._branch = Branch(device)
        programs = triton.cdiv(atoms, BLOCK)
        self._own_flags = programs <= OWN_FLAGS
        flags = triton.next_power_of_2(programs) if self._own_flags else 1
        self._due = torch.zeros(flags, **int32)
        self._always = torch.ones(flags, **int32)
        self._filled, self._arrived = torch.zeros(2, 1, **int32)
        self._pbc = task.pbc.to(torch.int32)
        self._vectors = task.lattice.vectors.contiguous().clone()
        self._inverse = task.lattice.inverse.contiguous().clone()
        self._reach = task.lattice.reach.contiguous().clone()
        self._allowed_reach = task.search.allowed.to(dtype).contiguous()
        limits = [task.range, task.range**2, task.cutoff]
        self._limits = torch.tensor(limits, dtype=dtype, device=device)
        margin = 0.0 if task.limit is None else task.limit.brick.margin
        self._near = torch.tensor([task.range + margin], dtype=dtype, device=device)
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
        self._waiting: Tensor | None = None
        if device.type == "cuda":
            with compiling_ahead():
                self.update_(positions, task.rows.reference_cell)
                self.join()

    def build_(self, positions: Tensor, cell: Tensor) -> None:
        """See Builder."""
        self.join()  # a search that waits reads lattice and flag
        positions, cell = positions.contiguous(), cell.contiguous()
        with launching_on(self._due.device):
            self._update_lattice(cell)
            self._build(self._always, positions, cell)

    def build_all_(self, rows: ListRows) -> None:
        """See Builder."""
        self.join()
        with launching_on(self._due.device):
            # What the last build has left in its buffers, in the cell that it had.
            self._update_lattice(self._task.rows.reference_cell)
            self._search.find_all(rows)
            self._reverse(self._always, rows)

    def reverse_(self) -> None:
        """See Builder."""
        with launching_on(self._due.device):
            self._reverse(self._always, self._task.rows)

    def join(self) -> None:
        """See Builder."""
        due, self._waiting = self._waiting, None
        if due is not None:
            with launching_on(self._due.device):
                self._search_and_reverse(due)
        self._branch.join()

    def update_(self, positions: Tensor, cell: Tensor, due: Tensor | None = None) -> None:
        """See Builder."""
        if self._task.skin == 0.0:
            self.build_(positions, cell)
            return
        self.join()
        positions, cell = positions.contiguous(), cell.contiguous()
        if due is None:
            if not self._own_flags:
                self._due.zero_()
            self._look_(self._due, positions, cell, None, None)
            due = self._due
        with launching_on(self._due.device):
            self._build(due, positions, cell)

    def look_(
        self, due: Tensor, positions: Tensor, cell: Tensor, atoms: Tensor, used: Tensor
    ) -> None:
        """See Builder."""
        self.join()
        self._look_(due, positions.contiguous(), cell.contiguous(), atoms, used)

    def _look_(
        self,
        due: Tensor,
        positions: Tensor,
        cell: Tensor,
        atoms: Tensor | None,
        used: Tensor | None,
    ) -> None:
        task = self._task
        with launching_on(self._due.device):
            self._update_lattice(cell)
            triton_kernels.due_kernel[(triton.cdiv(len(positions), BLOCK),)](
                positions,
                task.rows.reference_positions,
                task.grouping.index,
                self._deformation,
                self._allowed,
                due,
                atoms,
                used,
                len(positions),
                CELL_VARIES=task.cell_varies,
                SOME=atoms is not None,
                OWN=self._own_flags and due is self._due,
                BLOCK=BLOCK,
                **self._launch,
                **OPTIONS,
            )

    def follow_(self, positions: Tensor, cell: Tensor, anyway: Tensor) -> None:
        """See Builder."""
        self.join()
        rows = self._task.rows
        positions, cell = positions.contiguous(), cell.contiguous()
        moved = (positions != rows.reference_positions).any()
        self._due.copy_(moved | (cell != rows.reference_cell).any() | anyway)
        with launching_on(self._due.device):
            self._update_lattice(cell)
            self._build(self._due, positions, cell)

    def _blocks(self) -> tuple[int]:
        return (triton.cdiv(self._task.grouping.atoms, BLOCK),)

    def _update_lattice(self, cell: Tensor) -> None:
        task = self._task
        if not task.cell_varies:
            return
        systems = task.grouping.systems
        triton_kernels.lattice_kernel[(triton.cdiv(systems, 32),)](
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
        if self._task.limit is None:
            self._search_and_reverse(due)
        else:
            # Other ranks wait for the reference, which is there already.
            self._waiting = due

    def _search_and_reverse(self, due: Tensor) -> None:
        self._search.find(due)
        if self._task.one_way:
            return
        # Reverse slots are needed late, and their loads are latency-bound.
        with self._branch.fork():
            self._reverse(due, self._task.rows)

    def _prepare(self, due: Tensor, positions: Tensor, cell: Tensor) -> None:
        task, rows = self._task, self._task.rows
        taken = max(self._search.bins, task.grouping.atoms if self._search.at_once else 0)
        triton_kernels.prepare_kernel[self._blocks()](
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
            task.counters.rebuilds,
            *self._search.plan,
            self._near,
            None if task.limit is None else task.limit.brick.planes,
            None if task.limit is None else task.limit.row,
            self._filled,
            self._arrived,
            *self._ends(),
            len(rows.index),
            task.grouping.atoms,
            task.grouping.systems,
            self._search.bins,
            CELL_VARIES=task.cell_varies,
            BINNED=self._search.bins > 0,
            LIMITED=task.limit is not None,
            BLOCK=BLOCK,
            PLACED=self._search.at_once,
            WIDTH=min(_WIDTH, triton.next_power_of_2(max(BLOCK, taken))),
            FLAGS=len(due),
            **self._launch,
            **OPTIONS,
        )

    def _ends(self) -> list[int]:
        """Numbers of planes for the kernel, see Brick."""
        limit = self._task.limit
        if limit is None:
            return [-1] * 6
        return [-1 if end is None else end for axis in limit.brick.ends for end in axis]

    def _reverse(self, due: Tensor, rows: ListRows) -> None:
        task = self._task
        row = task.limit.row if task.limit is not None and rows is task.rows else None
        triton_kernels.reverse_kernel[(min(task.grouping.atoms, PROGRAMS),)](
            due,
            rows.order,
            rows.index,
            rows.image,
            rows.count,
            rows.reverse,
            row,
            task.grouping.atoms,
            rows.capacity,
            task.search.images.zero,
            STEPS=rows.capacity.bit_length(),
            BLOCK=min(128, triton.next_power_of_2(rows.capacity)),
            LIMITED=row is not None,
            FLAGS=len(due),
            num_warps=1,
            **self._launch,
        )
