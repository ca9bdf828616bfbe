"""What one evaluation sends to the device and brings back, in buffers made once."""

import numpy as np
import torch

from mdgraph.drivers.openmm.boxes import Array
from mdgraph.drivers.openmm.units import FORCE, KILOJOULE_PER_MOLE, NANOMETRE
from mdgraph.state import State


class Transfer:
    """Positions and cell in, energy and forces out, each by one copy.

    On CUDA the buffers of the host are pinned, so that copies run on the current stream.
    """

    def __init__(self, state: State) -> None:
        """Allocates for a state of one system."""
        self._state = state
        atoms = len(state.positions)
        pinned = state.device.type == "cuda"

        def pair(*shape: int) -> tuple[torch.Tensor, torch.Tensor]:
            there = torch.zeros(*shape, dtype=torch.float64, device=state.device)
            return torch.zeros(*shape, dtype=torch.float64, pin_memory=pinned), there

        self._out, self._sent = pair(atoms + 3, 3)
        self._back, self._found = pair(3 * atoms + 1)

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

    def receive(self) -> tuple[float, Array]:
        """Energy in kJ/mol, forces (N, 3) in kJ/mol/nm; syncs once."""
        self._found[:-1].view(-1, 3).copy_(self._state.forces)
        self._found[-1:].copy_(self._state.energy)
        self._back.copy_(self._found, non_blocking=True)
        if self._found.is_cuda:
            torch.cuda.current_stream(self._found.device).synchronize()
        numbers = self._back.numpy()
        # An array of its own: OpenMM copies it when other threads may already call again.
        forces: Array = numbers[:-1].reshape(-1, 3) / FORCE
        return float(numbers[-1]) / KILOJOULE_PER_MOLE, forces
