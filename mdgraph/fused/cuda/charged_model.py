"""ChargedModel: what the kernels of charges need of a TensorNet2."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from mdgraph.fused.weights import (
    ChargeWeights,
    CoulombWeights,
    EdgeNetworkWeights,
    Linear,
    PackedWeights,
)
from mdgraph.models import TensorNetConfig
from mdgraph.models.electrostatics import DAMPING_RADIUS, REACTION_FIELD_PERMITTIVITY


@dataclass(frozen=True)
class Dense:
    """A linear layer with its transposed weight (outputs, inputs), for the backward pass."""

    linear: Linear
    transposed: Tensor

    @classmethod
    def of(cls, linear: Linear) -> "Dense":
        """Transposes."""
        return cls(linear, linear.weight.mT.contiguous())


@dataclass(frozen=True)
class Halves:
    """A matrix as `edge_products` reads it.

    Attributes:
        whole, rest: float16, which add up to the matrix over `unit`; a float64 matrix itself.
        unit: a power of two.
    """

    whole: Tensor
    rest: Tensor
    unit: float

    @classmethod
    def of(cls, weight: Tensor) -> "Halves":
        """Splits; reads the device."""
        if weight.dtype == torch.float64:
            return cls(weight, weight, 1.0)
        # The largest number becomes 8 to 16, far from both ends of what float16 holds.
        unit = 2.0 ** (math.frexp(float(weight.abs().max()))[1] - 4)
        scaled = weight / unit
        whole = scaled.half()
        return cls(whole, (scaled - whole.float()).half(), unit)


@dataclass(frozen=True)
class EdgeLayer:
    """A dense layer on edges.

    Attributes:
        weight, transposed: (inputs, outputs), (outputs, inputs).
        bias: (outputs,).
    """

    weight: Halves
    transposed: Halves
    bias: Tensor

    @classmethod
    def of(cls, linear: Linear) -> "EdgeLayer":
        """Packs."""
        transposed = linear.weight.mT.contiguous()
        return cls(Halves.of(linear.weight), Halves.of(transposed), linear.bias)


@dataclass(frozen=True)
class EdgeNetwork:
    """What a layer's table does not hold of its edge network.

    Attributes:
        terms: C to 2F, what the charges of an atom add to its own edges and to those of its
            neighbors.
        layers: F to 2F to 3F.
    """

    terms: Dense
    layers: tuple[EdgeLayer, EdgeLayer]

    @classmethod
    def of(cls, weights: EdgeNetworkWeights) -> "EdgeNetwork":
        """Packs."""
        own, other = weights.of_atom, weights.of_neighbor
        weight = torch.cat([own.weight, other], dim=1)
        terms = Linear(weight, torch.cat([own.bias, torch.zeros_like(own.bias)]))
        second, third = weights.layers
        return cls(Dense.of(terms), (EdgeLayer.of(second), EdgeLayer.of(third)))


@dataclass(frozen=True)
class Prediction:
    """From the invariants of a stage to its charges.

    Attributes:
        norm: of 3F invariants.
        layers: 3F to F to F to 2C.
    """

    norm: Linear
    layers: tuple[Dense, Dense, Dense]

    @classmethod
    def of(cls, weights: ChargeWeights) -> "Prediction":
        """Packs."""
        first, second, third = weights.layers
        return cls(weights.norm, (Dense.of(first), Dense.of(second), Dense.of(third)))


class ChargedModel:
    """A network's charges on its device.

    Attributes:
        channels: C.
        own: 1 where an atom sends a message to itself, else 0.
        networks: of each layer.
        predictions: of each stage whose charges count: without a Coulomb energy not the last.
        coulomb: None without a Coulomb energy.
        field: (4,) float64, as `coulomb_kernel` reads it.
    """

    def __init__(self, config: TensorNetConfig, weights: PackedWeights) -> None:
        self.channels = config.charge_channels
        self.own = int(config.self_interaction and config.cutoff_lower == 0.0)
        self.networks = [
            EdgeNetwork.of(layer.edge_network)
            for layer in weights.layers
            if layer.edge_network is not None
        ]
        stages = config.layers + (weights.coulomb is not None)
        self.predictions = [Prediction.of(one) for one in weights.charges[:stages]]
        self.coulomb: CoulombWeights | None = weights.coulomb
        cutoff = weights.coulomb.cutoff if weights.coulomb is not None else float("inf")
        eps = REACTION_FIELD_PERMITTIVITY
        # Without a cutoff both are zero.
        strength = (eps - 1.0) / (2.0 * eps + 1.0) / cutoff**3
        shift = 3.0 * eps / (2.0 * eps + 1.0) / cutoff
        numbers = [DAMPING_RADIUS, cutoff, strength, shift]
        device = weights.embedding.own.device
        self.field = torch.tensor(numbers, dtype=torch.float64, device=device)
