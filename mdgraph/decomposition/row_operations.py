"""What each step does with the own atoms of a rank before and after an evaluation.

By torch, and on a GPU by Triton's kernels (`mdgraph.decomposition.own_kernels`), of which torch is
the reference: a few small ones, as each of torch's takes as long as a message there. Shapes are
static, and nothing syncs on CUDA.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from mdgraph.decomposition.own_rows import MarginStart, sum_of_rows
from mdgraph.fused.backend import NetworkResult
from mdgraph.gpu.launch import step_kernels_on
from mdgraph.state import State

if TYPE_CHECKING:
    from mdgraph.decomposition.own_kernels import KernelRows


class TorchRows:
    """By torch."""

    def programs(self, rows: int) -> int:
        """How many measure the margin of so many rows."""
        return 1

    def gather_(self, source: Tensor, rows: Tensor, target: Tensor) -> None:
        """Writes rows (n,) int64 of a source (N, 3) into a target (n, 3)."""
        torch.index_select(source, 0, rows, out=target)

    def put_(
        self, own: Tensor, atoms: Tensor, used: Tensor, state: State, start: MarginStart
    ) -> None:
        """Brings positions of own atoms up to date, and measures the margin that they need.

        Args:
            own: (C, 3) A.
            atoms: (C,) int64, which they are.
            used: (C,) bool, rows with an atom; the others have the atom of the first.
            state: of N atoms, whose positions are written.
            start: of the stretch.
        """
        start.measure_(own, used, state.cell)
        state.positions.index_copy_(0, atoms, torch.where(used[:, None], own, own[0]))

    def pack_(self, source: Tensor, entries: Tensor, flags: Tensor, message: Tensor) -> None:
        """Rows and flags for a message.

        Args:
            source: (C, 3).
            entries: (n,) int64, rows of it; -1 - k for flag k.
            flags: (L, 4) int32, of which the first counts.
            message: (n, 3), written.
        """
        is_row = entries >= 0
        torch.index_select(source, 0, torch.where(is_row, entries, 0), out=message)
        flag = flags[torch.where(is_row, 0, -1 - entries), 0].to(message.dtype)
        message.copy_(torch.where(is_row[:, None], message, flag[:, None]))

    def unpack_(self, message: Tensor, entries: Tensor, target: Tensor, flags: Tensor) -> None:
        """Writes rows (N, 3) that another rank packed, and sets flags that it has set."""
        is_row = entries >= 0
        target.index_copy_(0, entries[is_row], message[is_row])
        is_set = ~is_row & (message[:, 0] != 0.0)
        flags[-1 - entries[is_set], 0] = 1

    def take_(
        self,
        atoms: Tensor,
        used: Tensor,
        place: Tensor,
        result: NetworkResult,
        constant: Tensor,
        state: State,
    ) -> None:
        """Writes forces and energies of own atoms, and the sums of energy and virial over them.

        Args:
            atoms: (C,) int64.
            used: (C,) bool, rows with an atom.
            place: (N,) int32, row of each atom in the result.
            result: of R local rows.
            constant: (N,) float64, eV, energies to add.
            state: of N atoms, that is written.
        """
        rows = place.index_select(0, atoms).to(torch.int64)
        state.forces.index_copy_(0, atoms, result.forces.index_select(0, rows))
        energies = result.energies.index_select(0, rows) + constant.index_select(0, atoms)
        state.energies.index_copy_(0, atoms, energies)
        values = torch.cat([energies[:, None], result.virials.index_select(1, rows).T], 1)
        total = sum_of_rows(torch.where(used[:, None], values, 0.0))
        state.energy.copy_(total[:, 0])
        state.virial.copy_(total[:, 1:].view(1, 3, 3))


def operations(device: torch.device) -> "TorchRows | KernelRows":
    """Those of a device."""
    if step_kernels_on(device):
        from mdgraph.decomposition.own_kernels import KernelRows

        return KernelRows()
    return TorchRows()
