"""The kernels of the two searches: what each hands on from one to the next, and their launches."""

from dataclasses import dataclass
from typing import Any, Final, Protocol

import torch
import triton
from torch import Tensor

from mdgraph.neighbors import frame_kernels, row_kernels
from mdgraph.neighbors.cell_list import CellList
from mdgraph.neighbors.cell_list_kernels import cell_list_kernel
from mdgraph.neighbors.every_pair import EveryPair
from mdgraph.neighbors.rows import Task

BLOCK: Final = 128
"""Atoms a program where each has one lane."""

OPTIONS: Final[dict[str, Any]] = {"enable_fp_fusion": False}
"""Products are not contracted into sums, so that numbers are those of any other device."""

_CHUNK: Final = 512
"""Candidates of every pair looked at together."""

_LANES, _DEPTH = 32, 8
"""Bins, and atoms of each, looked at together."""


@dataclass(frozen=True)
class Wrapped:
    """Atoms in their cells, as the first kernel of a build leaves them.

    Attributes:
        positions: (3, N) A.
        fractional: (3, N), in the complete cells; written for `EveryPair` alone.
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
    """What both searches offer.

    Attributes:
        binned: whether the first kernel counts the atoms of bins.
    """

    binned: bool

    @property
    def plan(self) -> list[Tensor | None]:
        """The eight buffers by which it does so, or as many times None."""
        ...

    def find(self, due: Tensor) -> None:
        """Fills the rows where `due`, (1,) int32, is not zero; does not sync."""
        ...


def search_launches(task: Task, wrapped: Wrapped, launch: dict[str, Any]) -> SearchLaunches:
    """Those of the task's plan; `launch` are options of `launching_ahead`."""
    if isinstance(task.search, CellList):
        return _CellListLaunches(task, task.search, wrapped, launch)
    assert isinstance(task.search, EveryPair)
    return _EveryPairLaunches(task, task.search, wrapped, launch)


class _EveryPairLaunches:
    binned = False

    def __init__(
        self, task: Task, search: EveryPair, wrapped: Wrapped, launch: dict[str, Any]
    ) -> None:
        self._task, self._search, self._wrapped, self._launch = task, search, wrapped, launch

    @property
    def plan(self) -> list[Tensor | None]:
        return [None] * 8

    def find(self, due: Tensor) -> None:
        task, rows, search, wrapped = self._task, self._task.rows, self._search, self._wrapped
        chunk = min(_CHUNK, max(32, triton.next_power_of_2(search.candidates)))
        x, y, z = search.shell
        row_kernels.every_pair_kernel[(task.grouping.atoms,)](
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
            num_warps=max(1, chunk // 128),
            **self._launch,
            **OPTIONS,
        )


class _CellListLaunches:
    binned = True

    def __init__(
        self, task: Task, search: CellList, wrapped: Wrapped, launch: dict[str, Any]
    ) -> None:
        self._task, self._search, self._wrapped, self._launch = task, search, wrapped, launch
        atoms, bins = task.grouping.atoms, search.bins
        whole: dict[str, Any] = {"dtype": torch.int32, "device": wrapped.positions.device}
        self._in_bin = torch.zeros(len(bins), **whole)
        self._bin_start = torch.full((len(bins) + 2,), atoms, **whole)
        self._bin_of, self._slot_of, self._members = torch.zeros(3, atoms, **whole)
        self._placed = wrapped.fractional  # which this search has no other use for
        self._shape = bins.shape.to(torch.int32)

    @property
    def plan(self) -> list[Tensor | None]:
        search, bins = self._search, self._search.bins
        planned = [search.low, search.scale, self._shape, bins.first, bins.curve]
        return [*planned, self._in_bin, self._bin_of, self._slot_of]

    def find(self, due: Tensor) -> None:
        self._fill_bins(due)
        task, rows, search = self._task, self._task.rows, self._search
        width = triton.next_power_of_2(rows.capacity)
        warps = min(16, max(1, width // 128))
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
            self._wrapped.vectors,
            self._wrapped.limits,
            rows.index,
            rows.image,
            rows.count,
            rows.order,
            task.counters.sticky,
            task.grouping.atoms,
            rows.capacity,
            len(search.bins),
            search.images.zero,
            STENCIL=search.stencil.shape[1],
            LANES=_LANES,
            DEPTH=_DEPTH * warps,
            WIDTH=width,
            num_warps=warps,
            **self._launch,
            **OPTIONS,
        )

    def _fill_bins(self, due: Tensor) -> None:
        atoms, bins = self._task.grouping.atoms, len(self._search.bins)
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
        frame_kernels.place_kernel[(triton.cdiv(atoms, BLOCK),)](
            due,
            self._bin_of,
            self._slot_of,
            self._bin_start,
            self._wrapped.positions,
            self._members,
            self._placed,
            atoms,
            BLOCK=BLOCK,
            **self._launch,
        )
