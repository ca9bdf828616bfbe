"""Coulomb energy of predicted charges, over all pairs or with a reaction field."""

import math
from typing import Final

import torch
from torch import Tensor, nn

from mdgraph.neighbors.pairs import Pairs
from mdgraph.neighbors.sums import gather, sum_slots

COULOMB: Final = 27.211386024367243 * 0.5291772105638411
"""e^2 / (4 pi epsilon_0) in eV A with the constants that AceFF was trained with (ASE's)."""

DAMPING_RADIUS: Final = 4.6
"""A; below it the network replaces the Coulomb interaction step by step."""

REACTION_FIELD_PERMITTIVITY: Final = 78.3


class Coulomb(nn.Module):
    """Half of every pair's E_ij to each atom.

    E_ij = k fc(d) s(d) sum_c w_c q_ic q_jc / sum_c w_c with
    fc(d) = 1 - exp(1 - 1 / (1 - (d / 4.6)^2)) below 4.6 A and 1 beyond,
    s(d) = 1/d over all pairs, or 1/d + k_rf d^2 - c_rf below the cutoff (reaction field,
    DOI 10.1063/1.469273), which is zero at the cutoff.
    """

    weights: Tensor

    def __init__(self, channels: int, cutoff: float | None) -> None:
        super().__init__()
        self.cutoff = math.inf if cutoff is None else cutoff
        self.register_buffer("weights", torch.ones(channels, dtype=torch.float64))

    def forward(self, charges: Tensor, pairs: Pairs) -> Tensor:
        """Charges (N, C) to energies (N,) in the type of the pair vectors."""
        kind = pairs.vectors[0].dtype
        weighted = charges * (self.weights / self.weights.sum())
        energy = torch.zeros(len(charges), dtype=kind, device=charges.device)
        others = gather(charges, pairs)
        for block, other in zip(pairs.blocks, others, strict=True):
            product = (weighted[:, None] * other).sum(-1).to(kind)
            distance = torch.linalg.vector_norm(block.vectors, dim=-1)
            pair = product * self._kernel(distance)
            energy = energy + sum_slots(torch.where(block.valid, pair, 0.0))
        return 0.5 * COULOMB * energy

    def _kernel(self, distance: Tensor) -> Tensor:
        squared = (distance / DAMPING_RADIUS).clamp(max=1.0 - 1e-6).square()
        damping = 1.0 - torch.exp(1.0 - 1.0 / (1.0 - squared))
        if math.isinf(self.cutoff):
            return damping / distance
        eps = REACTION_FIELD_PERMITTIVITY
        field = (eps - 1.0) / (2.0 * eps + 1.0) / self.cutoff**3
        shift = 3.0 * eps / (2.0 * eps + 1.0) / self.cutoff
        kernel = damping * (1.0 / distance + field * distance.square() - shift)
        return torch.where(distance < self.cutoff, kernel, 0.0)
