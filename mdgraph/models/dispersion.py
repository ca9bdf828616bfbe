"""Dispersion between pairs of atoms."""

import torch
from torch import Tensor, nn

from mdgraph.models.config import DispersionConfig
from mdgraph.models.ops.messages import sum_slots
from mdgraph.neighbors.pairs import Pairs
from mdgraph.units import SYMBOLS

_STEEPNESS = 20.0


class Dispersion(nn.Module):
    """DFT-D2: E_ij = -c_ij / R^6 / (1 + exp(-20 (R / R_ij - 1))) / `energy`.

    Each atom of a pair gets half of it. R is the distance times `length`, c_ij the geometric mean
    of the two coefficients and R_ij the sum of the two radii. Coefficients and radii have units
    of their own, such as Hartree and Bohr.

    Attributes:
        coefficients: (119,), energy times R^6; zero for elements without one.
        radii: (119,), in the unit of R.
        length: (), units of R in 1 A.
        energy: (), units of the coefficients' energy in 1 eV.
    """

    coefficients: Tensor
    radii: Tensor
    length: Tensor
    energy: Tensor

    def __init__(self, config: DispersionConfig) -> None:
        super().__init__()
        self.cutoff = config.cutoff
        for name in ("coefficients", "radii"):
            self.register_buffer(name, torch.ones(len(SYMBOLS), dtype=torch.float64))
        for name in ("length", "energy"):
            self.register_buffer(name, torch.ones((), dtype=torch.float64))

    def forward(self, numbers: Tensor, pairs: Pairs) -> Tensor:
        """Atomic numbers (N,) to energies (N,) eV in the dtype of the pair vectors."""
        dtype = pairs.vectors[0].dtype
        total = pairs.vectors[0].new_zeros(len(numbers))
        for block in pairs.blocks:
            neighbor = numbers.index_select(0, block.index.flatten()).view_as(block.index)
            product = self.coefficients[numbers][:, None] * self.coefficients[neighbor]
            reach = (self.radii[numbers][:, None] + self.radii[neighbor]).to(dtype)
            distance = torch.linalg.vector_norm(block.vectors, dim=-1)
            scaled = distance * self.length.to(dtype)
            damping = torch.sigmoid(_STEEPNESS * (scaled / reach - 1.0))
            energy = product.sqrt().to(dtype) / scaled**6 * damping
            inside = block.valid & (distance < self.cutoff)
            total = total + sum_slots(torch.where(inside, energy, 0.0))
        return -0.5 * total / self.energy.to(dtype)
