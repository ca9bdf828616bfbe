"""The first features of atoms, from species and geometry."""

import torch
from torch import Tensor, nn

from mdgraph.models.activations import activation_of
from mdgraph.models.configuration import TensorNetConfig
from mdgraph.models.contractions import mixed, squares, weighed
from mdgraph.models.dense import activated
from mdgraph.models.neighborhood import Neighborhood
from mdgraph.models.nonlinear import StandardizedRows
from mdgraph.models.tensors import TRACE
from mdgraph.neighbors.pairs import WIDTHS


class PartMixing(nn.Module):
    """Mixes channels of I, A and S by a matrix each, without bias."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(channels, channels, bias=False) for _ in WIDTHS)

    def forward(self, features: Tensor) -> Tensor:
        """(N, 9, F) to (N, 9, F)."""
        return mixed(features, [linear.get_parameter("weight") for linear in self.parts])


class Embedding(nn.Module):
    """X_i = sum_j c(d) Z_ij (w^I 1 + w^A [r]x + w^S (r r^T - 1/3)), then mixed and gated.

    w(d) = D [phi(d) ; 1] and Z_ij = a(z_i) + b(z_j) depend on the pair by distance and
    species alone, so the sum is taken over radial and angular moments of each species s,
    M_is = sum_{j of s} c(d) Y(r) [phi(d) ; 1]^T, and X_i = sum_s (a_i + b_s) D M_is:
    the same numbers, and nothing of width F on an edge. D M_is is taken once for all s, and
    once with b_s in D.
    """

    def __init__(self, config: TensorNetConfig) -> None:
        super().__init__()
        channels = config.channels
        self.activation = activation_of(config)
        self.species = nn.Embedding(len(config.species), channels)
        self.atom = nn.Linear(channels, channels)
        self.neighbor = nn.Linear(channels, channels, bias=False)
        self.distance = nn.Linear(config.radial_basis.number, 3 * channels)
        self.norm = StandardizedRows(channels)
        self.gate = nn.Sequential(
            nn.Linear(channels, 2 * channels), nn.Linear(2 * channels, 3 * channels)
        )
        self.mixing = PartMixing(channels)

    def forward(self, rows: Tensor, around: Neighborhood) -> Tensor:
        """Table rows (E,) of the elements at hand to features (N, 9, F)."""
        species = self.species.weight.index_select(0, rows)
        number = torch.arange(len(rows), device=around.kinds.device)
        # A product with ones and zeros, whose gradient is no sum in an order of its own.
        of_kind = (around.kinds[:, None] == number).to(species)
        of_atom, of_neighbor = of_kind @ self.atom(species), self.neighbor(species)
        features = self._contracted(around.moments.flatten(2), of_atom, of_neighbor)
        if around.self_radial is not None:
            weight = self.distance(around.self_radial).unflatten(-1, (3, -1))[0]
            own = of_atom + of_kind @ of_neighbor
            scalar = features[:, :1] + TRACE * (weight * own)[:, None]
            features = torch.cat([scalar, features[:, 1:]], dim=1)
        gate = self.norm(squares(features).sum(1))
        for linear in self.gate:
            gate = activated(gate, linear, self.activation)
        return weighed(self.mixing(features), gate.unflatten(-1, (3, -1)))

    def _contracted(self, moments: Tensor, of_atom: Tensor, of_neighbor: Tensor) -> Tensor:
        """M (N, 9, E (K + 1)), a (N, F) and b (E, F) to X (N, 9, F)."""
        table = torch.cat([self.distance.weight, self.distance.bias[:, None]], dim=1)
        tables = table.unflatten(0, (len(WIDTHS), -1))[:, :, None]
        elements = len(of_neighbor)
        alike = tables.expand(-1, -1, elements, -1)
        weights = torch.cat([alike, alike * of_neighbor.T[..., None]], dim=1).flatten(2)
        both = mixed(moments, weights.unbind())
        for_atom, rest = both.chunk(2, dim=2)
        return for_atom * of_atom[:, None] + rest
