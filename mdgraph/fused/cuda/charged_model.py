"""ChargedModel: what the kernels of charges need of a TensorNet2."""

from dataclasses import dataclass

import torch

from mdgraph.fused.cuda.halves import Dense
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
class EdgeNetwork:
    """What a layer's table does not hold of its edge network.

    Attributes:
        terms: C to 2F, what the charges of an atom add to its own edges and to those of its
            neighbors.
        layers: F to 2F to 3F.
    """

    terms: Dense
    layers: tuple[Dense, Dense]

    @classmethod
    def of(cls, weights: EdgeNetworkWeights, split: bool) -> "EdgeNetwork":
        """Packs; splits the terms of charges, or does not."""
        own, other = weights.of_atom, weights.of_neighbor
        weight = torch.cat([own.weight, other], dim=1)
        terms = Linear(weight, torch.cat([own.bias, torch.zeros_like(own.bias)]))
        second, third = weights.layers
        return cls(Dense.of(terms, split), (Dense.of(second), Dense.of(third)))


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
    def of(cls, weights: ChargeWeights, split: bool) -> "Prediction":
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
            EdgeNetwork.of(layer.edge_network, split=reduced)
            for layer in weights.layers
            if layer.edge_network is not None
        ]
        stages = config.layers + (weights.coulomb is not None)
        self.predictions = [Prediction.of(one, split=reduced) for one in weights.charges[:stages]]
        self.coulomb: CoulombWeights | None = weights.coulomb
        cutoff = weights.coulomb.cutoff if weights.coulomb is not None else float("inf")
        eps = REACTION_FIELD_PERMITTIVITY
        # Without a cutoff both are zero.
        strength = (eps - 1.0) / (2.0 * eps + 1.0) / cutoff**3
        shift = 3.0 * eps / (2.0 * eps + 1.0) / cutoff
        numbers = [DAMPING_RADIUS, cutoff, strength, shift]
        device = weights.embedding.own.device
        self.field = torch.tensor(numbers, dtype=torch.float64, device=device)
