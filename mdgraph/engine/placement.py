"""Placement: where atoms are, as the host says it again and again."""

import numpy as np
import torch
from numpy.typing import NDArray

from mdgraph.concatenation import NEAR, centred
from mdgraph.state import OFFSETS, State

Array = NDArray[np.float64]


class Placement:
    """Buffers of the host for positions and cell of a state of one system.

    On CUDA they are pinned, so that a graph may hold the copies to the device. Whoever places
    atoms again must have read the device since.
    """

    def __init__(self, state: State) -> None:
        """Allocates on the host, and reads the device."""
        self._state = state
        pinned = state.device.type == "cuda"
        self._positions = torch.zeros_like(state.positions, device="cpu", pin_memory=pinned)
        self._cell = torch.zeros_like(state.cell, device="cpu", pin_memory=pinned)
        self._cell.copy_(state.cell)
        self._exact_cell: Array = self._cell[0].double().numpy()
        if state.dtype != torch.float64:
            self._pbc = [*state.pbc.cpu().numpy()]
            self._offset: Array = np.zeros(state.positions.shape)
            self._farthest = -1.0

    def place(self, positions: Array, cell: Array | None = None, unit: float = 1.0) -> None:
        """Writes on the host; see `Calculation.place`."""
        if self._state.device.type == "cuda":
            # Says so before anything is written: the pinned memory is that of the parent.
            torch.cuda.init()
        if cell is not None:
            self._exact_cell = np.multiply(cell, unit)
            self._cell[0] = torch.from_numpy(self._exact_cell)
        if self._state.dtype == torch.float64:
            np.multiply(positions, unit, out=self._positions.numpy(), casting="same_kind")
        else:
            self._positions.copy_(self._near(np.multiply(positions, unit), cell is not None))

    def _near(self, places: Array, cell_changed: bool) -> torch.Tensor:
        """Positions (N, 3) to round, less the offset of the state, which is changed where due."""
        near = places - self._offset
        if cell_changed or np.abs(near).max() > self._farthest:
            given = centred([places], [self._exact_cell], self._pbc, self._state.dtype)
            for name in OFFSETS:
                getattr(self._state, name).copy_(given[name])
            self._offset = given["offset"].numpy()
            near = places - self._offset
            self._farthest = 2.0 * np.abs(near).max() + NEAR
        return torch.from_numpy(near)

    def copy_(self) -> None:
        """Launches the copies to the state, as a graph may; does not sync."""
        self._state.positions.copy_(self._positions, non_blocking=True)
        self._state.cell.copy_(self._cell, non_blocking=True)
