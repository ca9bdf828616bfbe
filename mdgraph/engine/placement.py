"""Placement: where atoms are, as the host says it again and again."""

import numpy as np
import torch
from numpy.typing import NDArray

from mdgraph.state import State

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

    def place(self, positions: Array, cell: Array | None = None, unit: float = 1.0) -> None:
        """Writes on the host; see `Calculation.place`."""
        if self._state.device.type == "cuda":
            # Says so before anything is written: the pinned memory is that of the parent.
            torch.cuda.init()
        np.multiply(positions, unit, out=self._positions.numpy(), casting="same_kind")
        if cell is not None:
            np.multiply(cell, unit, out=self._cell[0].numpy(), casting="same_kind")

    def copy_(self) -> None:
        """Launches the copies to the state, as a graph may; does not sync."""
        self._state.positions.copy_(self._positions, non_blocking=True)
        self._state.cell.copy_(self._cell, non_blocking=True)
