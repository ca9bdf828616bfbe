"""TensorNet2: TensorNet with atomic charges that enter the messages, and a Coulomb energy.

The embedding and each layer predict charges from the invariants and shift them so that they add
up to the total charge of the system. The edge network of the next layer takes them as inputs,
and at the end the Coulomb energy.
"""

import math
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor, nn

from mdgraph.models.config import TensorNetConfig
from mdgraph.models.ops.features import LayerNorm, squared_norms
from mdgraph.models.ops.geometry import EdgeFeatures
from mdgraph.models.ops.messages import gather, sum_slots
from mdgraph.models.potential import Atoms
from mdgraph.models.tensornet import Interaction, TensorNet, activation_of
from mdgraph.models.tensors import TRACE
from mdgraph.neighbors.pairs import Pairs
from mdgraph.state import Grouping


class ChargePrediction(nn.Module):
    """q_i <- q_i + f_i^2 / (sum f^2 + 1e-6) (Q - sum q), channel by channel."""

    def __init__(self, config: TensorNetConfig) -> None:
        super().__init__()
        channels, charges = config.channels, config.charge_channels
        self.activation = activation_of(config)
        self.norm = LayerNorm(3 * channels)
        self.linears = nn.ModuleList(
            [
                nn.Linear(3 * channels, channels),
                nn.Linear(channels, channels),
                nn.Linear(channels, 2 * charges),
            ]
        )

    def forward(self, features: Tensor, total: Tensor, grouping: Grouping) -> Tensor:
        """Features (N, 9, F) and total charges (S,) to charges (N, C)."""
        _, vector, tensor = squared_norms(features).unbind(1)
        x = self.norm(torch.cat([features[:, 0] / TRACE, vector, tensor], dim=-1))
        first, second, last = self.linears
        x = last(self.activation(second(self.activation(first(x)))))
        charge, share = x.chunk(2, dim=-1)
        share = share.square()
        missing = total[:, None] - grouping.sum(charge)
        factor = missing / (grouping.sum(share) + 1e-6)
        return charge + share * grouping.spread(factor)


class ChargedInteraction(Interaction):
    """An interaction whose edge network also takes the charges of both atoms.

    Its first layer is linear in [phi ; q_i ; q_j], so the terms of q_i and q_j are computed once
    for each atom.
    """

    def __init__(self, config: TensorNetConfig) -> None:
        super().__init__(config, 2 * config.charge_channels)
        widths = (config.radial_basis.number, config.charge_channels, config.charge_channels)
        self._widths = widths

    def update_with_charges(self, features: Tensor, charge: Tensor, edges: EdgeFeatures) -> Tensor:
        """(N, 9, F) and charges (N, C) to (N, 9, F)."""
        first, *rest = self.edge_network.linears
        assert isinstance(first, nn.Linear)
        activation = self.edge_network.activation
        radial, atom_weights, neighbor_weights = first.weight.split(self._widths, dim=1)
        of_atom = charge @ atom_weights.T + first.bias
        of_neighbor = charge @ neighbor_weights.T

        def weights(basis: Tensor, terms: Tensor) -> Tensor:
            x = activation(basis @ radial.T + terms)
            for linear in rest:
                x = activation(linear(x))
            return x.unflatten(-1, (3, -1))

        blocks = [
            weights(distances.radial, of_atom[:, None] + neighbor)
            * distances.window[..., None, None]
            for distances, neighbor in zip(
                edges.distances, gather(of_neighbor, edges.pairs), strict=True
            )
        ]
        self_weights = None
        if edges.self_radial is not None:
            self_weights = weights(edges.self_radial, of_atom + of_neighbor)
        return self.update(features, blocks, self_weights, edges)


class TensorNet2(TensorNet):
    """Features and charges of every atom."""

    def __init__(self, config: TensorNetConfig) -> None:
        super().__init__(config)
        self.charges = nn.ModuleList(ChargePrediction(config) for _ in range(config.layers + 1))

    def _layer(self, config: TensorNetConfig) -> Interaction:
        return ChargedInteraction(config)

    def edge_features(self, atoms: Atoms, pairs: Pairs) -> EdgeFeatures:
        """See TensorNet; uses slots, as charges make the weights of i-j and j-i differ."""
        return super().edge_features(atoms, replace(pairs, undirected=None))

    def with_charges(self, rows: Tensor, atoms: Atoms, pairs: Pairs) -> tuple[Tensor, Tensor]:
        """Invariants (N, F), and charges (N, (L + 1) C) layer by layer."""
        edges = self.edge_features(atoms, pairs)
        total = atoms.charge.to(self.linear.weight.dtype)
        first, *rest = self.charges
        features = self.embedding(rows, edges)
        charges = [first(features, total, atoms.grouping)]
        for layer, predict in zip(self.layers, rest, strict=True):
            assert isinstance(layer, ChargedInteraction)
            features = layer.update_with_charges(features, charges[-1], edges)
            charges.append(predict(features, total, atoms.grouping))
        return self.invariants(features), torch.cat(charges, dim=-1)

    def forward(self, rows: Tensor, atoms: Atoms, pairs: Pairs) -> Tensor:
        """Table rows (E,) of the elements of the batch to invariants (N, F) for the readout."""
        return self.with_charges(rows, atoms, pairs)[0]


COULOMB: Final = 27.211386024367243 * 0.5291772105638411
"""e^2 / (4 pi epsilon_0), eV A, with ASE's constants, as in the training of AceFF."""

DAMPING_RADIUS: Final = 4.6
"""Distance (A) below which the Coulomb energy is damped and the network replaces it."""

REACTION_FIELD_PERMITTIVITY: Final = 78.3


class Coulomb(nn.Module):
    """Coulomb energy; each atom gets half the energy of its pairs.

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
        """Charges (N, C) to energies (N,) in the dtype of the pair vectors."""
        dtype = pairs.vectors[0].dtype
        weighted = charges * (self.weights / self.weights.sum())
        energy = torch.zeros(len(charges), dtype=dtype, device=charges.device)
        neighbors = gather(charges, pairs)
        for block, neighbor in zip(pairs.blocks, neighbors, strict=True):
            product = (weighted[:, None] * neighbor).sum(-1).to(dtype)
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
