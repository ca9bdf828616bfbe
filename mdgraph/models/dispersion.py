"""Dispersion between pairs of atoms."""

import torch
from torch import Tensor, nn

from mdgraph.models.config import DispersionConfig
from mdgraph.models.ops.messages import sum_slots
from mdgraph.neighbors.pairs import Pairs
from mdgraph.units import SYMBOLS

_STEEPNESS = 20.0


class Dispersion(nn.Module):
    """DFT-D2: E_ij = -c_ij / R^6 / (1 + exp(-20 (R / R_ij - 1))), half of it to each atom.

    R is the distance times `length`, c_ij the geometric mean of the two coefficients and R_ij
    the sum of the two radii.

    Attributes:
        coefficients: (119,), zero where there is none, with R^6 an energy times `energy`.
        radii: (119,), in the unit of R.
        length: () one unit of R over 1 A, inverse.
        energy: () the unit of energy of the coefficients, in 1/eV.
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
        """Atomic numbers (N,) to energies (N,) eV in the type of the pair vectors."""
        kind = pairs.vectors[0].dtype
        total = pairs.vectors[0].new_zeros(len(numbers))
        for block in pairs.blocks:
            other = numbers.index_select(0, block.index.flatten()).view_as(block.index)
            both = self.coefficients[numbers][:, None] * self.coefficients[other]
            reach = (self.radii[numbers][:, None] + self.radii[other]).to(kind)
            distance = torch.linalg.vector_norm(block.vectors, dim=-1)
            scaled = distance * self.length.to(kind)
            damping = torch.sigmoid(_STEEPNESS * (scaled / reach - 1.0))
            energy = both.sqrt().to(kind) / scaled**6 * damping
            inside = block.valid & (distance < self.cutoff)
            total = total + sum_slots(torch.where(inside, energy, 0.0))
        return -0.5 * total / self.energy.to(kind)
