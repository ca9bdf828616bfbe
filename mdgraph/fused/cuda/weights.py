"""Weights in the layout of the CUDA kernels: split float16, tables, transposed matrices."""

import math
from collections.abc import Sequence
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
    """Matrices as two float16 halves, for products on tensor cores.

    Attributes:
        hi, lo: float16, and the matrix is unit (hi + lo / 2^11); without a split, and in
            float64, both are the matrix itself.
        unit: a power of two.
        whole: the matrix itself, for kernels without tensor cores.
    """

    hi: Tensor
    lo: Tensor
    unit: float
    whole: Tensor

    @classmethod
    def of(cls, matrix: Tensor, split: bool = True) -> "SplitFP16":
        """Splits a matrix, or keeps it if its products run in its own dtype; syncs."""
        matrix = matrix.contiguous()
        if matrix.dtype == torch.float64 or not split:
            return cls(matrix, matrix, 1.0, matrix)
        # The largest number becomes 8 to 16, far from both ends of the range of float16.
        unit = 2.0 ** (math.frexp(float(matrix.abs().max()))[1] - 4)
        scaled = matrix / unit
        hi = scaled.half()
        return cls(hi, ((scaled - hi.float()) * LIFT.value).half(), unit, matrix)


@dataclass(frozen=True)
class Dense:
    """A linear layer with its transpose for the backward pass.

    Attributes:
        weight, transposed: (inputs, outputs) and (outputs, inputs).
        bias: (outputs,).
    """

    weight: SplitFP16
    transposed: SplitFP16
    bias: Tensor

    @classmethod
    def of(cls, linear: Linear, split: bool = True) -> "Dense":
        """From a layer, split or not; syncs."""
        weight = linear.weight
        return cls(SplitFP16.of(weight, split), SplitFP16.of(weight.mT, split), linear.bias)


@dataclass(frozen=True)
class ChainedFP16:
    """Matrices as float16 halves whose products with halves of rows are one sum.

    Attributes:
        hi, lo: float16, and the matrix is unit (hi + lo); in float64 both are the matrix itself.
        unit: a power of two.
    """

    hi: Tensor
    lo: Tensor
    unit: float

    @classmethod
    def of(cls, matrix: Tensor) -> "ChainedFP16":
        """Splits a matrix unless it is float64; syncs.

        The largest number becomes 1,024 to 2,048, so what second halves lose below float16's least
        number is 2^-35 of it.
        """
        matrix = matrix.contiguous()
        split = SplitFP16.of(matrix)
        if split.hi.dtype != torch.float16:
            return cls(split.hi, split.hi, 1.0)
        unit = split.unit / 128.0
        scaled = matrix / unit
        hi = scaled.half()
        return cls(hi, (scaled - hi.float()).half(), unit)


@dataclass(frozen=True)
class ChainedDense:
    """A linear layer on edges with its transpose.

    Attributes:
        weight, transposed: (inputs, outputs) and (outputs, inputs).
        bias: (outputs,).
    """

    weight: ChainedFP16
    transposed: ChainedFP16
    bias: Tensor

    @classmethod
    def of(cls, linear: Linear) -> "ChainedDense":
        """From a layer; syncs."""
        weight = linear.weight
        return cls(ChainedFP16.of(weight), ChainedFP16.of(weight.mT), linear.bias)


@dataclass(frozen=True)
class Mixing:
    """Matrices that mix the channels of each part, with their transposes.

    Attributes:
        weights, transposed: (3, F, F).
    """

    weights: SplitFP16
    transposed: SplitFP16

    @classmethod
    def of(cls, weights: Tensor) -> "Mixing":
        """Splits matrices (3, F, F), [part, in, out]; syncs."""
        return cls(SplitFP16.of(weights), SplitFP16.of(weights.mT))


_LARGEST = 2.0**6
"""Largest value in a float16 table, far from both ends of the range of float16."""


@dataclass(frozen=True)
class LayerTable:
    """Table of message weights, f = unit (c0 + v (c1 + v (c2 + v c3))) with v = stretch u.

    Attributes:
        coefficients: (intervals + 1, terms, M), zero in the last interval; four terms, or three
            without c3 or with c2 and c3 in one word.
        stretch: 1/A, factor of the offset u; of a packed table, factor of the steps of c3.
        unit: factor of the values.
        packed: whether it is one of `packed`.
    """

    coefficients: Tensor
    stretch: float = 1.0
    unit: float = 1.0
    packed: bool = False

    @property
    def terms(self) -> int:
        """Number of coefficients for each interval and function."""
        return int(self.coefficients.shape[1])

    @property
    def zeros(self) -> int:
        """The interval where all functions are zero."""
        return len(self.coefficients) - 1


def _ended(coefficients: Tensor) -> Tensor:
    """With an interval of zeros at the end."""
    return torch.cat([coefficients, torch.zeros_like(coefficients[:1])])


def whole(table: RadialTable, device: torch.device) -> LayerTable:
    """The table with its cubics, unchanged."""
    return LayerTable(_ended(table.coefficients.to(device)))


def rounded(table: RadialTable, device: torch.device) -> LayerTable:
    """A table of parabolas in float16, which loads less than half as many bytes for an edge.

    On an interval |v| <= a the linear term 3/4 a^2 c3 v replaces the cubic term c3 v^3, with an
    error of at most a^3 |c3| / 4. On random networks with coarse grids, the measured errors were
    up to 5e-4 of the largest value and 3e-3 of the largest slope. Values and offsets are scaled
    so that all coefficients are in the range of float16.
    """
    half = table.grid.half_widths()
    longest = half.max()
    c0, c1, c2, c3 = table.coefficients.double().cpu().unbind(1)
    powers = [c0, c1 * longest, c2 * longest**2, c3 * longest**3]
    within = (half / longest).square()[:, None]
    powers[1] = powers[1] + 0.75 * within * powers[3]
    unit = float(2.0 ** torch.ceil(torch.log2(c0.abs().max().clamp(min=1e-30))) / _LARGEST)
    terms = torch.stack(powers[:3], 1) / unit
    return LayerTable(_ended(terms.to(device, torch.float16)), float(1.0 / longest), unit)


_DIGITS = 11
_ZERO = 1 << _DIGITS - 1
"""Bits of c3 in a packed word, and what stands there for zero: a number from -1024 to 1023, plus
1024."""


def packed(
    tables: Sequence[RadialTable], device: torch.device
) -> tuple[list[LayerTable], list[float]]:
    """Float32 tables whose c2 and c3 share a word, and the step of c3 in each zone of the grid.

    The word is a float32 next to c2 whose last eleven bits are c3 in steps: c2 is taken with those
    bits, and errs by 2^-13 of itself. Steps are powers of two, for each zone and, as a factor,
    for each table, so c3 errs by at most 2^-10 of the largest one in a zone. Of the largest slope
    at a distance c2 makes 1 to 5 % and c3 0.03 to 0.2 %, in networks trained or not. What both err
    by is taken from c0 and c1 so that each value at the ends of an interval stays: tables have no
    more jumps, and the error of a slope is nil on average over the interval. In all, slopes of
    AceFF-1.1 err by 3e-6 of their RMS and those of MatPES-PBE by 4e-6; with nine bits and c0 and
    c1 as they were it was 1.4e-5 and 2.1e-5.
    """
    grid = tables[0].grid
    zone = grid.zone(grid.centres())
    terms = [table.coefficients.cpu().unbind(1) for table in tables]
    largest = [c3.double().abs().amax(1) for *_, c3 in terms]
    factors = [float(2.0 ** torch.ceil(torch.log2(one.max().clamp(min=1e-30)))) for one in largest]
    relative = torch.stack([one / factor for one, factor in zip(largest, factors, strict=True)])
    by_zone = torch.zeros(grid.zones, dtype=torch.float64)
    by_zone.scatter_reduce_(0, zone, relative.amax(0), "amax")
    steps = 2.0 ** torch.ceil(torch.log2(by_zone.clamp(min=1e-9) / (_ZERO - 1)))
    reach = grid.half_widths().square()[:, None]
    result = []
    for (c0, c1, c2, c3), factor in zip(terms, factors, strict=True):
        step = factor * steps[zone][:, None]
        number = (c3.double() / step).round()
        digits = number.to(torch.int32) + _ZERO
        word = c2.view(torch.int32)
        size, sign = word & 0x7FFFFFFF, word & -0x80000000
        size = ((size - digits + _ZERO) >> _DIGITS).clamp(min=0) << _DIGITS
        quadratic = (sign | size | digits).view(torch.float32)
        lost = torch.where(c2 == 0.0, 0.0, c2.double() - quadratic.double())  # zeros stay zero
        value = c0.double() + lost * reach
        slope = c1.double() + (c3.double() - number * step) * reach
        rows = _ended(torch.stack([value.float(), slope.float(), quadratic], 1).contiguous())
        rows[-1, 2] = torch.tensor(_ZERO, dtype=torch.int32).view(torch.float32)
        result.append(LayerTable(rows.to(device), factor, packed=True))
    return result, steps.tolist()


@dataclass(frozen=True)
class DeviceEdgeNetwork:
    """The part of a layer's edge network that is not in its table.

    Attributes:
        terms: C to 2F, terms that the charges of an atom add on its own edges and on those of
            its neighbors.
        layers: F to 2F to 3F.
    """

    terms: Dense
    layers: tuple[ChainedDense, ChainedDense]

    @classmethod
    def of(cls, weights: EdgeNetworkWeights, split: bool) -> "DeviceEdgeNetwork":
        """Packs the weights; `split` says whether the terms of charges are split. Syncs."""
        own, other = weights.of_atom, weights.of_neighbor
        weight = torch.cat([own.weight, other], dim=1)
        terms = Linear(weight, torch.cat([own.bias, torch.zeros_like(own.bias)]))
        second, third = weights.layers
        layers = (ChainedDense.of(second), ChainedDense.of(third))
        return cls(Dense.of(terms, split), layers)


@dataclass(frozen=True)
class DeviceChargePrediction:
    """Prediction of the charges of a stage from its invariants.

    Attributes:
        norm: layer norm of the 3F invariants.
        layers: 3F to F to F to 2C.
    """

    norm: Linear
    layers: tuple[Dense, Dense, Dense]

    @classmethod
    def of(cls, weights: ChargeWeights, split: bool) -> "DeviceChargePrediction":
        """Packs the weights; `split` says whether the layers are split. Syncs."""
        first, second, third = (Dense.of(layer, split) for layer in weights.layers)
        return cls(weights.norm, (first, second, third))


class TensorNet2Model:
    """Weights of TensorNet2 for charges, on the device.

    A charge acts on all others, so the products that predict charges and their terms run in
    float32, unless precision is reduced: with split float16, the error of an ion with a bad
    contact in water was half as large again. They are products over atoms, few compared with
    those over edges.

    Attributes:
        channels: C, charges of each atom.
        own: 1 if an atom sends a message to itself, else 0.
        networks: edge network of each layer.
        predictions: of each stage whose charges are used; the last one only for a Coulomb energy.
        coulomb: None without a Coulomb energy.
        field: (4,) float64, damping radius, cutoff, and strength and shift of the reaction field,
            as the kernels of `coulomb` read them.
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
            DeviceChargePrediction.of(prediction, split=reduced)
            for prediction in weights.charges[:stages]
        ]
        self.coulomb: CoulombWeights | None = weights.coulomb
        cutoff = weights.coulomb.cutoff if weights.coulomb is not None else float("inf")
        eps = REACTION_FIELD_PERMITTIVITY
        # Both are 0 for an infinite cutoff.
        strength = (eps - 1.0) / (2.0 * eps + 1.0) / cutoff**3
        shift = 3.0 * eps / (2.0 * eps + 1.0) / cutoff
        numbers = [DAMPING_RADIUS, cutoff, strength, shift]
        device = weights.embedding.own.device
        self.field = torch.tensor(numbers, dtype=torch.float64, device=device)


@dataclass(frozen=True)
class PackedPerceptron:
    """One perceptron, or two side by side that share their input.

    Attributes:
        hidden: the hidden layers.
        last: (2, W), weights of the last layer of the value and of the gate, else zeros.
        ends: (2,), their biases.
    """

    hidden: tuple[Dense, ...]
    last: Tensor
    ends: Tensor


def side_by_side(parts: list[tuple[Linear, ...]]) -> PackedPerceptron:
    """Packs perceptrons with the same number of layers, each with a single output."""
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


NARROW = 32
"""Most channels, and numbers of a hidden layer of the readout, that kernels of `layerless` take."""


class NetworkWeights:
    """Weights of a network on its device, with transposed matrices for the backward pass.

    Attributes:
        device, dtype: of the weights.
        config: of the potential.
        embedding: weights of the embedding.
        grid: intervals of all tables.
        functions: number of radial functions of the embedding, with the window.
        embedding_table: (intervals, 4, functions or more).
        layer_tables: table of the message weights of each layer.
        steps: of the last coefficients in each zone of packed tables.
        own: (3, F) for each layer, weights of the message of an atom to itself.
        mixing, layers: matrices that mix channels in the embedding, and before and after the
            product of each layer.
        gate, linear, head: dense layers of the embedding's gate and of the readout.
        norm: layer norm of the readout.
        repulsions: analytic repulsion between nuclei.
        charged: weights for charges of TensorNet2, else None.
        products: number of float16 products for a matrix product, 1 or 3; 0 for float64.
        rounded: whether tables and features that messages read have half the bytes of float32.
        branch: second stream, for kernels that are independent of each other.
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
        self.dtype = embedding.own.dtype
        self.config = config
        self.embedding = embedding
        self.grid: RadialGrid = tables.grid
        self.embedding_table = tables.embedding.coefficients.to(self.device)
        self.mixing = Mixing.of(embedding.mixing)
        self.layers = [
            (Mixing.of(layer.before), Mixing.of(layer.after)) for layer in weights.layers
        ]
        self.own = [layer.own for layer in weights.layers]
        self.norm = readout.norm
        self.repulsions = weights.repulsions
        first, second = embedding.gate
        self.gate = (Dense.of(first), Dense.of(second))
        self.linear = Dense.of(readout.linear)
        parts = [readout.values, readout.gates] if readout.gates else [readout.values]
        self.head: PackedPerceptron = side_by_side(parts)
        charged = config.predicts_charges
        self.charged = TensorNet2Model(config, weights, reduced) if charged else None
        self.products = 1 if reduced else 3
        if self.dtype == torch.float64:
            self.products = 0
        self.rounded = reduced and not charged
        self.steps = [0.0] * self.grid.zones
        if self.rounded:
            self.layer_tables = [rounded(table, self.device) for table in tables.layers]
        elif charged or self.dtype == torch.float64 or not tables.layers:
            self.layer_tables = [whole(table, self.device) for table in tables.layers]
        else:
            self.layer_tables, self.steps = packed(tables.layers, self.device)
        self.branch = Branch(self.device)
        self.functions = int(self.embedding_table.shape[-1])
        if self.layerless:
            # Rows of a power of two, which are read in pieces of 16 bytes, with functions of zero.
            more = (1 << (self.functions - 1).bit_length()) - self.functions
            self.embedding_table = torch.nn.functional.pad(self.embedding_table, (0, more))
            self.functions += more

    def contraction(self, rows: Tensor) -> Tensor:
        """(E, Q, 3, F) for some elements, with weights of zero for functions of zero.

        Args:
            rows: (E,) int64, rows of the elements in the species tables.
        """
        own = self.embedding.contraction(rows)
        parts = own.unflatten(1, (len(rows), -1))
        more = self.functions - parts.shape[2]
        return torch.nn.functional.pad(parts, (0, 0, 0, 0, 0, more)).flatten(1, 2)

    @property
    def layerless(self) -> bool:
        """Whether kernels of `layerless` compute it."""
        hidden = self.head.hidden
        return (
            self.config.layers == 0
            and self.charged is None
            and self.products > 0
            and len(hidden) == 1
            and max(self.config.channels, len(hidden[0].bias)) <= NARROW
        )

    @property
    def symmetric(self) -> bool:
        """Whether products are Y M + M Y, as the group O(3) requires."""
        return self.config.group == "O(3)"
