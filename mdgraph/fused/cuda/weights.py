"""Weights on the device, as the CUDA kernels read them: split float16, tables, transposes."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from mdgraph.fused.cuda.device import LIFT
from mdgraph.fused.tables import PotentialTables, RadialGrid, RadialTable
from mdgraph.fused.weights import (
    ChargeWeights,
    CoulombWeights,
    EdgeNetworkWeights,
    Linear,
    PackedWeights,
)
from mdgraph.gpu.launch import Branch
from mdgraph.models import TensorNetConfig
from mdgraph.models.tensornet2 import DAMPING_RADIUS, REACTION_FIELD_PERMITTIVITY


@dataclass(frozen=True)
class SplitFP16:
    """Matrices of one shape as kernels read them.

    Attributes:
        hi, lo: float16, unit (hi + lo / 2^11) is the matrix; both the matrix itself
            in float64, and where it is not split.
        unit: a power of two.
    """

    hi: Tensor
    lo: Tensor
    unit: float

    @classmethod
    def of(cls, matrix: Tensor, split: bool = True) -> "SplitFP16":
        """Splits, or keeps a matrix that is multiplied in its own type; reads the device."""
        matrix = matrix.contiguous()
        if matrix.dtype == torch.float64 or not split:
            return cls(matrix, matrix, 1.0)
        # The largest number becomes 8 to 16, far from both ends of what float16 holds.
        unit = 2.0 ** (math.frexp(float(matrix.abs().max()))[1] - 4)
        scaled = matrix / unit
        hi = scaled.half()
        return cls(hi, ((scaled - hi.float()) * LIFT.value).half(), unit)


@dataclass(frozen=True)
class Dense:
    """A linear layer, forward and backward.

    Attributes:
        weight, transposed: (inputs, outputs), (outputs, inputs).
        bias: (outputs,).
    """

    weight: SplitFP16
    transposed: SplitFP16
    bias: Tensor

    @classmethod
    def of(cls, linear: Linear, split: bool = True) -> "Dense":
        """Splits, or does not; reads the device."""
        weight = linear.weight
        return cls(SplitFP16.of(weight, split), SplitFP16.of(weight.mT, split), linear.bias)


@dataclass(frozen=True)
class Mixing:
    """What mixes the channels of each part, forward and backward.

    Attributes:
        weights, transposed: (3, F, F).
    """

    weights: SplitFP16
    transposed: SplitFP16

    @classmethod
    def of(cls, weights: Tensor) -> "Mixing":
        """Splits (3, F, F), [part, in, out]; reads the device."""
        return cls(SplitFP16.of(weights), SplitFP16.of(weights.mT))


_LARGEST = 2.0**12
"""What the values of a rounded table reach: far from where half precision ends at both sides."""


@dataclass(frozen=True)
class LayerTable:
    """f = unit (c0 + v (c1 + v (c2 + v c3))) with v = stretch u.

    Attributes:
        coefficients: (intervals, terms, M); three or four terms.
        stretch: 1/A.
        unit: of the values.
    """

    coefficients: Tensor
    stretch: float = 1.0
    unit: float = 1.0

    @property
    def terms(self) -> int:
        """Numbers an interval and function."""
        return int(self.coefficients.shape[1])


def whole(table: RadialTable, device: torch.device) -> LayerTable:
    """The table as it is."""
    return LayerTable(table.coefficients.to(device))


def rounded(table: RadialTable, device: torch.device) -> LayerTable:
    """A table of parabolas in float16, less than half as many bytes an edge.

    On an interval |v| <= a the cubic term c3 v^3 is within a^3 |c3| / 4 of 3/4 a^2 c3 v, which is
    what remains of it. Measured on random networks, values err by up to 5e-4 of the largest and
    slopes by 3e-3, where a coarse grid is enough for the cubics. Values and offsets are stretched
    so that no coefficient gets lost at the end of the range of float16.
    """
    grid = table.grid
    edges = grid.edges()
    half = 0.5 * (edges[1:] - edges[:-1])
    longest = half.max()
    c0, c1, c2, c3 = table.coefficients.double().cpu().unbind(1)
    powers = [c0, c1 * longest, c2 * longest**2, c3 * longest**3]
    within = (half / longest).square()[:, None]
    powers[1] = powers[1] + 0.75 * within * powers[3]
    unit = float(2.0 ** torch.ceil(torch.log2(c0.abs().max().clamp(min=1e-30))) / _LARGEST)
    terms = torch.stack(powers[:3], 1) / unit
    return LayerTable(terms.to(device, torch.float16), float(1.0 / longest), unit)


@dataclass(frozen=True)
class DeviceEdgeNetwork:
    """What a layer's table does not hold of its edge network.

    Attributes:
        terms: C to 2F, what the charges of an atom add to its own edges and to those of its
            neighbors.
        layers: F to 2F to 3F.
    """

    terms: Dense
    layers: tuple[Dense, Dense]

    @classmethod
    def of(cls, weights: EdgeNetworkWeights, split: bool) -> "DeviceEdgeNetwork":
        """Packs; splits the terms of charges, or does not."""
        own, other = weights.of_atom, weights.of_neighbor
        weight = torch.cat([own.weight, other], dim=1)
        terms = Linear(weight, torch.cat([own.bias, torch.zeros_like(own.bias)]))
        second, third = weights.layers
        return cls(Dense.of(terms, split), (Dense.of(second), Dense.of(third)))


@dataclass(frozen=True)
class DeviceChargePrediction:
    """From the invariants of a stage to its charges.

    Attributes:
        norm: of 3F invariants.
        layers: 3F to F to F to 2C.
    """

    norm: Linear
    layers: tuple[Dense, Dense, Dense]

    @classmethod
    def of(cls, weights: ChargeWeights, split: bool) -> "DeviceChargePrediction":
        """Packs; splits the layers, or does not."""
        first, second, third = (Dense.of(layer, split) for layer in weights.layers)
        return cls(weights.norm, (first, second, third))


class ChargedModel:
    """A network's charges on its device.

    A charge acts on all others, so what makes charges of features, and terms of charges, is
    multiplied in float32 unless all is rounded: products of halves erred by half as much again
    on an ion with a bad contact in water. These are products of atoms, few beside those of edges.

    Attributes:
        channels: C.
        own: 1 where an atom sends a message to itself, else 0.
        networks: of each layer.
        predictions: of each stage whose charges count: without a Coulomb energy not the last.
        coulomb: None without a Coulomb energy.
        field: (4,) float64, as `coulomb_kernel` reads it.
    """

    def __init__(self, config: TensorNetConfig, weights: PackedWeights, reduced: bool) -> None:
        self.channels = config.charge_channels
        self.own = int(config.self_interaction and config.cutoff_lower == 0.0)
        self.networks = [
            DeviceEdgeNetwork.of(layer.edge_network, split=reduced)
            for layer in weights.layers
            if layer.edge_network is not None
        ]
        stages = config.layers + (weights.coulomb is not None)
        self.predictions = [
            DeviceChargePrediction.of(one, split=reduced) for one in weights.charges[:stages]
        ]
        self.coulomb: CoulombWeights | None = weights.coulomb
        cutoff = weights.coulomb.cutoff if weights.coulomb is not None else float("inf")
        eps = REACTION_FIELD_PERMITTIVITY
        # Without a cutoff both are zero.
        strength = (eps - 1.0) / (2.0 * eps + 1.0) / cutoff**3
        shift = 3.0 * eps / (2.0 * eps + 1.0) / cutoff
        numbers = [DAMPING_RADIUS, cutoff, strength, shift]
        device = weights.embedding.own.device
        self.field = torch.tensor(numbers, dtype=torch.float64, device=device)


@dataclass(frozen=True)
class PackedPerceptron:
    """One perceptron, or two that share their input.

    Attributes:
        hidden: the hidden layers.
        last: (2, W), weights of the value and, or zeros, of the gate.
        ends: (2,), their biases.
    """

    hidden: tuple[Dense, ...]
    last: Tensor
    ends: Tensor


def side_by_side(parts: list[tuple[Linear, ...]]) -> PackedPerceptron:
    """Packs perceptrons of equally many layers; the last layer of each makes one number."""
    hidden: list[Linear] = []
    for number, level in enumerate(zip(*(layers[:-1] for layers in parts), strict=True)):
        weights = [layer.weight for layer in level]
        weight = torch.block_diag(*weights) if number else torch.cat(weights, dim=1)
        hidden.append(Linear(weight, torch.cat([layer.bias for layer in level])))
    rows = [layers[-1].weight.T for layers in parts]
    last = torch.block_diag(*rows) if hidden else torch.cat(rows)
    ends = torch.cat([layers[-1].bias for layers in parts])
    missing = 2 - len(parts)
    return PackedPerceptron(
        tuple(Dense.of(layer) for layer in hidden),
        torch.cat([last, last.new_zeros(missing, last.shape[1])]),
        torch.cat([ends, ends.new_zeros(missing)]),
    )


class NetworkWeights:
    """A network on its device, with the transposed matrices of the backward pass.

    Attributes:
        config: of the potential.
        embedding: its weights; what is left of those of the layers are halves and `own`.
        grid: of all tables.
        embedding_table: (intervals, 4, K + 1).
        layer_tables: of the messages' weights.
        own: (3, F) for each layer, weights of the message of an atom to itself.
        mixing, layers: what mixes channels in the embedding and in each layer.
        gate, linear, head: dense layers of the embedding's gate and of the readout.
        norm: of the readout.
        repulsions: analytic terms.
        charged: of TensorNet2, else None.
        products: of float16 halves that make one of a matrix; 0 for float64.
        rounded: whether what messages read has half the bytes of float32.
        branch: for kernels that need not wait for each other.
    """

    def __init__(
        self,
        config: TensorNetConfig,
        weights: PackedWeights,
        tables: PotentialTables,
        reduced: bool,
    ) -> None:
        embedding, readout = weights.embedding, weights.readout
        self.device = embedding.own.device
        self.kind = embedding.own.dtype
        self.config = config
        self.embedding = embedding
        self.grid: RadialGrid = tables.grid
        self.embedding_table = tables.embedding.coefficients.to(self.device)
        self.mixing = Mixing.of(embedding.mixing)
        self.layers = [(Mixing.of(one.before), Mixing.of(one.after)) for one in weights.layers]
        self.own = [one.own for one in weights.layers]
        self.norm = readout.norm
        self.repulsions = weights.repulsions
        first, second = embedding.gate
        self.gate = (Dense.of(first), Dense.of(second))
        self.linear = Dense.of(readout.linear)
        parts = [readout.values, readout.gates] if readout.gates else [readout.values]
        self.head: PackedPerceptron = side_by_side(parts)
        charged = config.architecture == "tensornet2"
        self.charged = ChargedModel(config, weights, reduced) if charged else None
        self.products = 1 if reduced else 3
        if self.kind == torch.float64:
            self.products = 0
        self.rounded = reduced and not charged
        make = rounded if self.rounded else whole
        self.layer_tables = [make(table, self.device) for table in tables.layers]
        self.branch = Branch(self.device)

    @property
    def functions(self) -> int:
        """Radial functions of the embedding, the window among them."""
        return int(self.embedding_table.shape[-1])

    @property
    def symmetric(self) -> bool:
        """Whether products are symmetrised, as O(3) asks for."""
        return self.config.group == "O(3)"
