"""TensorNet (DOI 10.48550/arXiv.2306.06482): Cartesian tensor features of atoms.

An atom carries F channels of a 3x3 matrix X = I + A + S, stored as components (9, F).
`Embedding` makes X from species and geometry, each `Interaction` refines it by messages
and matrix products, and the readout takes the invariants of the last X.
"""

import math
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from mdgraph.gpu.launch import has_kernels
from mdgraph.models.config import TensorNetConfig
from mdgraph.models.ops.features import (
    LayerNorm,
    dense,
    mix_channels,
    normalize,
    normalized_product,
    scale_parts,
    silu,
    squared_norms,
    update_features,
)
from mdgraph.models.ops.geometry import EdgeFeatures, Geometry
from mdgraph.models.ops.messages import message, undirected_message
from mdgraph.models.potential import Atoms
from mdgraph.models.radial import radial_basis
from mdgraph.models.tensors import TRACE, Product, direction_coefficients
from mdgraph.neighbors.pairs import WIDTHS, Pairs

Activation = Callable[[Tensor], Tensor]


def shifted_softplus(x: Tensor) -> Tensor:
    """ln(1 + e^x) - ln 2, zero at zero (DOI 10.1063/1.5019779)."""
    return functional.softplus(x) - math.log(2.0)


def shifted_softplus_float32(x: Tensor) -> Tensor:
    """`shifted_softplus` with ln 2 rounded to float32, as in TorchMD-Net for all dtypes."""
    return functional.softplus(x) - 0.6931471824645996


def soft_exponential(x: Tensor, alpha: float) -> Tensor:
    """(e^(alpha x) - 1) / alpha + alpha; for alpha below zero -ln(1 - alpha (x + alpha)) / alpha.

    DOI 10.48550/arXiv.1602.01321, with MatGL's limits: the identity if |alpha| < 1e-6, and
    arguments of the logarithm of 1e-6 at least.
    """
    if abs(alpha) < _SMALL:
        return x
    if alpha < 0.0:
        return -torch.log((1.0 - alpha * (x + alpha)).clamp_min(_SMALL)) / alpha
    return torch.expm1(alpha * x) / alpha + alpha


_SMALL: Final = 1e-6

ACTIVATIONS: Final[dict[str, Activation]] = {
    "silu": silu,
    "ssp": shifted_softplus,
    "ssp_float32": shifted_softplus_float32,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "mish": functional.mish,
    "softplus": functional.softplus,
}


def activation_of(config: TensorNetConfig) -> Activation:
    """The activation that a configuration names."""
    if config.activation == "softexp":
        return partial(soft_exponential, alpha=config.activation_parameter)
    return ACTIVATIONS[config.activation]


class PartMixing(nn.Module):
    """Mixes the channels of I, A and S, each by its own matrix without bias."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(channels, channels, bias=False) for _ in WIDTHS)

    def forward(self, features: Tensor) -> Tensor:
        """(N, 9, F) to (N, 9, F)."""
        return mix_channels(features, [linear.get_parameter("weight") for linear in self.parts])


class Embedding(nn.Module):
    """X_i = sum_j c(d) Z_ij (w^I 1 + w^A [r]x + w^S (r r^T - 1/3)), then mixed and gated.

    w(d) = D [phi(d) ; 1] and Z_ij = a(z_i) + b(z_j) depend only on distance and species. So
    the sum is rewritten with radial and angular moments of each species s,
    M_is = sum_{j of s} c(d) Y(r) [phi(d) ; 1]^T, as X_i = sum_s (a_i + b_s) D M_is, which needs
    no array of width F for an edge. One product computes D M_is summed over s, and
    b_s D M_is summed over s.
    """

    def __init__(self, config: TensorNetConfig) -> None:
        super().__init__()
        channels = config.channels
        self.activation = activation_of(config)
        self.species = nn.Embedding(len(config.species), channels)
        self.atom = nn.Linear(channels, channels)
        self.neighbor = nn.Linear(channels, channels, bias=False)
        self.distance = nn.Linear(config.radial_basis.number, 3 * channels)
        self.norm = LayerNorm(channels)
        self.gate = nn.Sequential(
            nn.Linear(channels, 2 * channels), nn.Linear(2 * channels, 3 * channels)
        )
        self.mixing = PartMixing(channels)

    def forward(self, rows: Tensor, edges: EdgeFeatures) -> Tensor:
        """Table rows (E,) of the elements of the batch to features (N, 9, F)."""
        species = self.species.weight.index_select(0, rows)
        number = torch.arange(len(rows), device=edges.kinds.device)
        # A product with ones and zeros: the gradient of indexing adds in no fixed order.
        one_hot = (edges.kinds[:, None] == number).to(species)
        of_atom, of_neighbor = one_hot @ self.atom(species), self.neighbor(species)
        features = self._contract(edges.moments.flatten(2), of_atom, of_neighbor)
        if edges.self_radial is not None:
            weight = self.distance(edges.self_radial).unflatten(-1, (3, -1))[0]
            own = of_atom + one_hot @ of_neighbor
            scalar = features[:, :1] + TRACE * (weight * own)[:, None]
            features = torch.cat([scalar, features[:, 1:]], dim=1)
        gate = self.norm(squared_norms(features).sum(1))
        for linear in self.gate:
            gate = dense(gate, linear, self.activation)
        return scale_parts(self.mixing(features), gate.unflatten(-1, (3, -1)))

    def _contract(self, moments: Tensor, of_atom: Tensor, of_neighbor: Tensor) -> Tensor:
        """M (N, 9, E (K + 1)), a (N, F) and b (E, F) to X (N, 9, F)."""
        table = torch.cat([self.distance.weight, self.distance.bias[:, None]], dim=1)
        tables = table.unflatten(0, (len(WIDTHS), -1))[:, :, None]
        elements = len(of_neighbor)
        shared = tables.expand(-1, -1, elements, -1)
        weights = torch.cat([shared, shared * of_neighbor.T[..., None]], dim=1).flatten(2)
        both = mix_channels(moments, weights.unbind())
        for_atom, rest = both.chunk(2, dim=2)
        return for_atom * of_atom[:, None] + rest


class EdgeNetwork(nn.Module):
    """Weights g_ij of a message: three layers on the radial basis, times the window."""

    def __init__(self, config: TensorNetConfig, inputs: int) -> None:
        super().__init__()
        channels = config.channels
        self.activation = activation_of(config)
        self.linears = nn.ModuleList(
            [
                nn.Linear(inputs, channels),
                nn.Linear(channels, 2 * channels),
                nn.Linear(2 * channels, 3 * channels),
            ]
        )

    def forward(self, inputs: Tensor, window: Tensor | None = None) -> Tensor:
        """Inputs (..., inputs) and window c (...), None for 1, to (..., 3, F)."""
        *linears, last = self.linears
        for linear in linears:
            inputs = dense(inputs, linear, self.activation)
        if window is None:
            x = dense(inputs, last, self.activation)
        elif self.activation is silu:
            x = windowed_silu(last(inputs), window)
        else:
            x = self.activation(last(inputs)) * window[..., None]
        return x.unflatten(-1, (3, -1))


def windowed_silu(x: Tensor, window: Tensor) -> Tensor:
    """Computes c silu(x) of x (..., C) and c (...); differentiable twice.

    On CUDA it is one kernel, its gradient another, and the derivatives of the gradient a third.
    """
    if has_kernels(x):
        result: Tensor = _Windowed.apply(x, window)
        return result
    return silu(x) * window[..., None]


class _Windowed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, window: Tensor) -> Tensor:
        from mdgraph.models.kernels import features as kernels

        ctx.save_for_backward(x, window)
        return kernels.windowed_silu(x, window)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        result: tuple[Tensor, Tensor] = _WindowedSlope.apply(*ctx.saved_tensors, gradients[0])
        return result


class _WindowedSlope(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, window: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
        from mdgraph.models.kernels import features as kernels

        ctx.save_for_backward(x, window, gradient)
        return kernels.windowed_slope(x, window, gradient)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        from mdgraph.models.kernels import features as kernels

        return kernels.windowed_curvature(*ctx.saved_tensors, *gradients)


def _linears(widths: tuple[int, ...]) -> nn.ModuleList:
    return nn.ModuleList(nn.Linear(inputs, outputs) for inputs, outputs in pairwise(widths))


class PerceptronReadout(nn.Module):
    """A perceptron (TorchMD-Net's Scalar head)."""

    def __init__(self, config: TensorNetConfig) -> None:
        super().__init__()
        self.activation = activation_of(config)
        self.linears = _linears((config.channels, *config.readout.hidden, 1))

    def features(self, x: Tensor) -> Tensor:
        """(N, F) to the inputs (N, H) of the last layer, in which the energy is linear."""
        for linear in list(self.linears)[:-1]:
            x = dense(x, linear, self.activation)
        return x

    def forward(self, x: Tensor) -> Tensor:
        """(N, F) to (N,)."""
        energies: Tensor = self.linears[-1](self.features(x))
        return energies.squeeze(-1)


class GatedReadout(nn.Module):
    """A perceptron times the sigmoid of another (MatGL's weighted atoms); SiLU inside."""

    def __init__(self, config: TensorNetConfig) -> None:
        super().__init__()
        widths = (config.channels, *config.readout.hidden, 1)
        self.values = _linears(widths)
        self.gates = _linears(widths)

    def features(self, x: Tensor) -> Tensor:
        """(N, F) to (N, H + 1), in which the energy is linear by the last layer and its bias."""
        value, gate = self._value_and_gate(x)
        return torch.cat([value * gate, gate], dim=1)

    def forward(self, x: Tensor) -> Tensor:
        """(N, F) to (N,)."""
        value, gate = self._value_and_gate(x)
        return (self.values[-1](value) * gate).squeeze(-1)

    def _value_and_gate(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs (N, H) of the last layer of the values, and the gate (N, 1)."""
        value, gate = x, x
        for linear in list(self.values)[:-1]:
            value = dense(value, linear, silu)
        for linear in list(self.gates)[:-1]:
            gate = dense(gate, linear, silu)
        return value, self.gates[-1](gate).sigmoid()


def readout(config: TensorNetConfig) -> PerceptronReadout | GatedReadout:
    """Builds the readout that a configuration names."""
    return PerceptronReadout(config) if config.readout.kind == "mlp" else GatedReadout(config)


_ROUNDED_THIRD: Final = 3.0 * 0.3333333432674408
"""The float32 number next to 1/3, divided by 1/3."""


class Interaction(nn.Module):
    """X <- X + dX + dX^2, with X normalised first and dX from products of Y and its message M.

    O(3): YM + MY; SO(3): 2 YM.
    """

    def __init__(self, config: TensorNetConfig, edge_inputs: int = 0) -> None:
        super().__init__()
        self.edge_network = EdgeNetwork(config, config.radial_basis.number + edge_inputs)
        self.before = PartMixing(config.channels)
        self.after = PartMixing(config.channels)
        self._scaled = config.group == "O(3)"
        self._product = Product(1.0, True) if config.group == "O(3)" else Product(2.0, False)

    def forward(self, features: Tensor, edges: EdgeFeatures) -> Tensor:
        """(N, 9, F) to (N, 9, F)."""
        weights = [
            self.edge_network(distances.radial, distances.window) for distances in edges.distances
        ]
        self_weights = None
        if edges.self_radial is not None:
            self_weights = self.edge_network(edges.self_radial)[None]
        return self.update(features, weights, self_weights, edges)

    def update(
        self,
        features: Tensor,
        weights: list[Tensor],
        self_weights: Tensor | None,
        edges: EdgeFeatures,
    ) -> Tensor:
        """Computes the layer from its message weights.

        Args:
            features: (N, 9, F).
            weights: (N, B, 3, F) of each block, or (P, 3, F) of undirected pairs.
            self_weights: (N, 3, F) or (1, 3, F), of the self interaction; None without one.
            edges: of the batch.

        Returns:
            (N, 9, F).
        """
        features = normalize(features)
        before = self.before(features)
        if edges.pairs.undirected is None:
            messages = message(weights, before, edges.pairs)
        else:
            messages = undirected_message(weights[0], before, edges.pairs)
        if self_weights is not None:
            messages = messages + scale_parts(before, self_weights.expand(len(before), -1, -1))
        scaled = edges.charge_factor if self._scaled else None
        product = normalized_product(before, messages, self._product, scaled)
        return update_features(features, self.after(product), edges.charge_factor)


class TensorNet(nn.Module):
    """Features of every atom from species and geometry."""

    directions: Tensor
    norm_factors: Tensor

    def __init__(self, config: TensorNetConfig) -> None:
        super().__init__()
        self.config = config
        self.basis = radial_basis(config.radial_basis, config.cutoff_lower, config.cutoff)
        self.register_buffer("directions", direction_coefficients(), persistent=False)
        self.embedding = Embedding(config)
        self.layers = nn.ModuleList(self._layer(config) for _ in range(config.layers))
        if config.rounded_third:
            factors = torch.tensor([[_ROUNDED_THIRD], [1.0], [1.0]], dtype=torch.float64)
            self.register_buffer("norm_factors", factors, persistent=False)
        self.norm = LayerNorm(3 * config.channels)
        self.linear = nn.Linear(3 * config.channels, config.channels)

    def _layer(self, config: TensorNetConfig) -> Interaction:
        return Interaction(config)

    def forward(self, rows: Tensor, atoms: Atoms, pairs: Pairs) -> Tensor:
        """Table rows (E,) of the elements of the batch to invariants (N, F) for the readout."""
        edges = self.edge_features(atoms, pairs)
        features = self.embedding(rows, edges)
        for layer in self.layers:
            features = layer(features, edges)
        return self.invariants(features)

    def invariants(self, features: Tensor) -> Tensor:
        """(N, 9, F) to (N, F)."""
        norms = squared_norms(features)
        # In float32 the factor rounds to one.
        if self.config.rounded_third and norms.dtype == torch.float64:
            norms = norms * self.norm_factors
        x = self.norm(norms.flatten(1))
        if not self.config.readout_activation:
            result: Tensor = self.linear(x)
            return result
        return dense(x, self.linear, activation_of(self.config))

    def edge_features(self, atoms: Atoms, pairs: Pairs) -> EdgeFeatures:
        """Radial functions, windows and moments."""
        config = self.config
        sign = 1.0 if config.edge_direction == "to_neighbor" else -1.0
        limits = (config.cutoff_lower, config.cutoff)
        geometry = Geometry(self.basis, *limits, sign, self.directions)
        distances, moments = geometry.compute(pairs, atoms.kinds, len(atoms.elements))
        self_radial = None
        # With a lower cutoff, the window is zero at zero distance: no self interaction.
        if config.self_interaction and config.cutoff_lower == 0.0:
            self_radial = self.basis(pairs.vectors[0].new_zeros(()))
        charge_factor = None
        if config.charge_factor:
            charge = atoms.grouping.spread(atoms.charge).to(self.directions.dtype)
            charge_factor = (1.0 + 0.1 * charge)[:, None, None]
        return EdgeFeatures(distances, moments, pairs, atoms.kinds, self_radial, charge_factor)
