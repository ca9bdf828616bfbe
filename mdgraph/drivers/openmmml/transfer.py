"""What one evaluation sends to the device, in buffers made once."""

import numpy as np
import torch

from mdgraph.drivers.openmm.boxes import Array
from mdgraph.drivers.openmm.units import NANOMETRE
from mdgraph.state import State


class Transfer:
    """Positions and cell by one copy.

    On CUDA the buffer of the host is pinned, so that the copy runs on the current stream.
    """

    def __init__(self, state: State) -> None:
        """Allocates for a state of one system."""
        self._state = state
        atoms = len(state.positions)
        on_gpu = state.device.type == "cuda"
        self._out = torch.zeros(atoms + 3, 3, dtype=torch.float64, pin_memory=on_gpu)
        self._sent = torch.zeros_like(self._out, device=state.device)

    def send(self, positions: Array, box: Array | None) -> None:
        """Writes positions (N, 3) and, where there is one, the box (3, 3), nm; does not sync."""
        atoms, numbers = len(positions), self._out.numpy()
        np.multiply(positions, NANOMETRE, out=numbers[:atoms])
        if box is not None:
            np.multiply(box, NANOMETRE, out=numbers[atoms:])
        self._sent.copy_(self._out, non_blocking=True)
        self._state.positions.copy_(self._sent[:atoms])
        if box is not None:
            self._state.cell[0].copy_(self._sent[atoms:])
