"""Weights of a TensorNet in the order in which kernels read them."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mdgraph.models import TensorNetPotential
from mdgraph.models.readout import GatedReadout, PerceptronReadout
from mdgraph.models.tensornet import Interaction, PartMixing
from mdgraph.models.tensors import TRACE


@dataclass(frozen=True)
class Linear:
    """x W + b.

    Attributes:
        weight: (inputs, outputs).
        bias: (outputs,).
    """

    weight: Tensor
    bias: Tensor


@dataclass(frozen=True)
class InteractionWeights:
    """One layer.

    Attributes:
        before: (3, F, F), [part, in, out], makes Y.
        after: (3, F, F), mixes the normalised product.
        own: (3, F), weights of the message of an atom to itself; zeros without one.
    """

    before: Tensor
    after: Tensor
    own: Tensor


@dataclass(frozen=True)
class EmbeddingWeights:
    """Species tables, gate and mixing.

    Attributes:
        of_atom: (species, F), a of Z_ij = a(z_i) + b(z_j).
        of_neighbor: (species, F), b.
        distance: (3, K + 1, F), maps radial moments to channels, the bias as last row.
        own: (F,), weight of the self interaction in the scalar part; zeros without one.
        norm: of the invariants that the gate sees; weight (F,), bias (F,).
        gate: F to 2F to 3F.
        mixing: (3, F, F).
    """

    of_atom: Tensor
    of_neighbor: Tensor
    distance: Tensor
    own: Tensor
    norm: Linear
    gate: tuple[Linear, Linear]
    mixing: Tensor

    def contraction(self, rows: Tensor) -> Tensor:
        """W (E, E (K + 1), 3, F) of the elements at hand: Z of the pair times `distance`.

        Args:
            rows: (E,) int64, row of each element in the species tables.
        """
        pair = self.of_atom[rows][:, None] + self.of_neighbor[rows]
        product = pair[:, :, None, None] * self.distance.transpose(0, 1)
        return product.flatten(1, 2).contiguous()

    def self_term(self, rows: Tensor) -> Tensor:
        """(E, F), what an atom of each element adds to its own scalar component."""
        return TRACE * self.own * (self.of_atom[rows] + self.of_neighbor[rows])


@dataclass(frozen=True)
class ReadoutWeights:
    """From features to energy.

    Attributes:
        norm: of the 3F invariants; weight (3F,), bias (3F,).
        linear: 3F to F.
        values: the layers of the perceptron, the last one to a single number, scaled.
        gates: of the second perceptron of a gated readout; empty without one.
    """

    norm: Linear
    linear: Linear
    values: tuple[Linear, ...]
    gates: tuple[Linear, ...]


@dataclass(frozen=True)
class PackedWeights:
    """A whole network without its radial functions, in one type on one device."""

    embedding: EmbeddingWeights
    layers: tuple[InteractionWeights, ...]
    readout: ReadoutWeights


def packed(potential: TensorNetPotential, kind: torch.dtype, device: torch.device) -> PackedWeights:
    """Packs in float64, then casts once.

    Args:
        potential: its `scale` goes into the last layer of the readout.
        kind: type of the result.
        device: where the result lies.
    """
    exact = potential.at_precision(torch.float64).cpu()
    network = exact.network
    config = exact.config

    def cast(tensor: Tensor) -> Tensor:
        return tensor.detach().to(device, kind).contiguous()

    def linear(layer: nn.Module, scale: Tensor | float = 1.0) -> Linear:
        assert isinstance(layer, nn.Linear | nn.LayerNorm)
        weight = layer.weight.T if layer.weight.dim() == 2 else layer.weight
        return Linear(cast(weight * scale), cast(layer.bias * scale))

    def mixing(parts: PartMixing) -> Tensor:
        return cast(torch.stack([part.get_parameter("weight").T for part in parts.parts]))

    itself = config.self_interaction and config.cutoff_lower == 0.0
    origin = network.basis(torch.zeros((), dtype=torch.float64))

    def interaction(layer: nn.Module) -> InteractionWeights:
        assert isinstance(layer, Interaction)
        own = torch.zeros(3, config.channels)
        if itself and config.architecture == "tensornet":
            own = layer.edge_network(origin)
        return InteractionWeights(mixing(layer.before), mixing(layer.after), cast(own))

    embedding = network.embedding
    table = torch.cat([embedding.distance.weight, embedding.distance.bias[:, None]], dim=1)
    distance = table.unflatten(0, (3, -1)).transpose(1, 2).clone()
    scalar = embedding.distance(origin)[: config.channels]
    if config.edge_direction == "from_neighbor":
        distance[1] *= -1.0
    species = embedding.species.weight
    readout = exact.readout
    return PackedWeights(
        EmbeddingWeights(
            of_atom=cast(embedding.atom(species)),
            of_neighbor=cast(embedding.neighbor(species)),
            distance=cast(distance),
            own=cast(scalar if itself else torch.zeros_like(scalar)),
            norm=linear(embedding.norm),
            gate=(linear(embedding.gate[0]), linear(embedding.gate[1])),
            mixing=mixing(embedding.mixing),
        ),
        tuple(interaction(layer) for layer in network.layers),
        ReadoutWeights(
            norm=linear(network.norm),
            linear=linear(network.linear),
            values=_perceptron(readout, exact.scale, linear),
            gates=(
                tuple(linear(layer) for layer in readout.gates)
                if isinstance(readout, GatedReadout)
                else ()
            ),
        ),
    )


def _perceptron(
    readout: nn.Module, scale: Tensor, linear: Callable[..., Linear]
) -> tuple[Linear, ...]:
    assert isinstance(readout, PerceptronReadout | GatedReadout)
    layers = readout.linears if isinstance(readout, PerceptronReadout) else readout.values
    *hidden, last = layers
    return (*(linear(layer) for layer in hidden), linear(last, scale))
