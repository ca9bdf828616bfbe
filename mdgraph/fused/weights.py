"""Weights of a potential in the layout that the kernels of both backends start from."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from mdgraph.models import TensorNetPotential
from mdgraph.models.repulsion import Repulsion
from mdgraph.models.tensornet import GatedReadout, Interaction, PartMixing, PerceptronReadout
from mdgraph.models.tensornet2 import COULOMB, ChargedInteraction, ChargePrediction, TensorNet2
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
class EdgeNetworkWeights:
    """The part of TensorNet2's edge network that depends on charges, C for each atom.

    Its first layer on the edge from atom i to neighbor j is T(d) + of_atom(q_i) +
    q_j of_neighbor, with T from the layer's table.

    Attributes:
        of_atom: (C, F), and the bias of the first layer (F,).
        of_neighbor: (C, F).
        layers: the second and third layer, F to 2F to 3F in order (3, F).
    """

    of_atom: Linear
    of_neighbor: Tensor
    layers: tuple[Linear, Linear]


@dataclass(frozen=True)
class InteractionWeights:
    """An interaction layer.

    Attributes:
        before: (3, F, F), [part, in, out], mixes the normalised features to Y.
        after: (3, F, F), mixes the normalised product.
        own: (3, F), weights of the message of an atom to itself; zeros without self interaction,
            and for TensorNet2, where that message is an edge at distance 0 with a window of 1.
        edge_network: of TensorNet2; None if the table holds all of it.
    """

    before: Tensor
    after: Tensor
    own: Tensor
    edge_network: EdgeNetworkWeights | None


@dataclass(frozen=True)
class EmbeddingWeights:
    """Embedding: species tables, gate and mixing.

    Attributes:
        of_atom: (species, F), a of Z_ij = a(z_i) + b(z_j).
        of_neighbor: (species, F), b.
        distance: (3, K + 1, F), maps radial moments to channels, the bias as last row.
        own: (F,), weight of the self interaction in the scalar part; zeros without it.
        norm: layer norm of the inputs of the gate; weight (F,), bias (F,).
        gate: two layers, F to 2F to 3F.
        mixing: (3, F, F), [part, in, out].
    """

    of_atom: Tensor
    of_neighbor: Tensor
    distance: Tensor
    own: Tensor
    norm: Linear
    gate: tuple[Linear, Linear]
    mixing: Tensor

    def contraction(self, rows: Tensor) -> Tensor:
        """W (E, E (K + 1), 3, F) for the elements present: Z_ij times `distance`.

        Args:
            rows: (E,) int64, row of each element in the species tables.
        """
        pair = self.of_atom[rows][:, None] + self.of_neighbor[rows]
        product = pair[:, :, None, None] * self.distance.transpose(0, 1)
        return product.flatten(1, 2).contiguous()

    def self_term(self, rows: Tensor) -> Tensor:
        """(E, F), self interaction of each element, which adds to the scalar component."""
        return TRACE * self.own * (self.of_atom[rows] + self.of_neighbor[rows])


@dataclass(frozen=True)
class ReadoutWeights:
    """Readout: from features to energies.

    Attributes:
        norm: layer norm of the 3F invariants; weight (3F,), bias (3F,).
        linear: 3F to F.
        values: layers of the perceptron, the last one to a single number, scaled.
        gates: layers of the second perceptron of a gated readout; else empty.
    """

    norm: Linear
    linear: Linear
    values: tuple[Linear, ...]
    gates: tuple[Linear, ...]


@dataclass(frozen=True)
class ChargeWeights:
    """Prediction of charges from features.

    Attributes:
        norm: layer norm of 3F invariants, the scalar component over sqrt(3) and the squared
            norms of the other two parts; weight (3F,), bias (3F,).
        layers: 3F to F to F to 2C: C charges, and C numbers whose squares are the shares by
            which the missing charge is distributed.
    """

    norm: Linear
    layers: tuple[Linear, Linear, Linear]


@dataclass(frozen=True)
class CoulombWeights:
    """Coulomb energy of the charges of all stages.

    Attributes:
        weights: ((L + 1) C,) float64, eV A, weight of the products of each charge, scaled.
        cutoff: A; infinity for all pairs.
    """

    weights: Tensor
    cutoff: float


@dataclass(frozen=True)
class RepulsionWeights:
    """Screened repulsion s / d * sum of c exp(-b l d) * w(m d) of pairs closer than `reach`.

    Attributes:
        constants: (species, species, 4) float64: s, eV A, scaled if the network's scale applies;
            l and m, 1/A; reach, A.
        exponentials: (2, 4) float64: c and b.
        order: of the window w, see `mdgraph.models.repulsion.window`.
        cutoff: A, of its neighbor list.
    """

    constants: Tensor
    exponentials: Tensor
    order: int
    cutoff: float

    def of_elements(self, rows: Tensor) -> Tensor:
        """Constants (E, E, 4) of the elements present, given their rows (E,) int64."""
        return self.constants[rows][:, rows].contiguous()


@dataclass(frozen=True)
class PackedWeights:
    """All weights of a network except the tables, in one dtype on one device.

    Attributes:
        charges: of TensorNet2, after the embedding and after each layer; else empty.
        coulomb: None without a Coulomb energy.
        repulsions: analytic repulsion between nuclei.
    """

    embedding: EmbeddingWeights
    layers: tuple[InteractionWeights, ...]
    readout: ReadoutWeights
    charges: tuple[ChargeWeights, ...]
    coulomb: CoulombWeights | None
    repulsions: tuple[RepulsionWeights, ...]


def packed(
    potential: TensorNetPotential, dtype: torch.dtype, device: torch.device
) -> PackedWeights:
    """Packs the weights in float64 on the CPU, then casts once.

    Args:
        potential: its `scale` goes into the last layer of the readout.
        dtype: of the result.
        device: of the result.
    """
    exact = potential.at_precision(torch.float64).cpu()
    network = exact.network
    config = exact.config

    def cast(tensor: Tensor) -> Tensor:
        return tensor.detach().to(device, dtype).contiguous()

    def linear(layer: nn.Module, scale: Tensor | float = 1.0) -> Linear:
        assert isinstance(layer, nn.Linear | nn.LayerNorm)
        weight = layer.weight.T if layer.weight.dim() == 2 else layer.weight
        return Linear(cast(weight * scale), cast(layer.bias * scale))

    def mixing(parts: PartMixing) -> Tensor:
        return cast(torch.stack([part.get_parameter("weight").T for part in parts.parts]))

    self_interaction = config.self_interaction and config.cutoff_lower == 0.0
    origin = network.basis(torch.zeros((), dtype=torch.float64))

    def interaction(layer: nn.Module) -> InteractionWeights:
        assert isinstance(layer, Interaction)
        own, edge_network = torch.zeros(3, config.channels), None
        if isinstance(layer, ChargedInteraction):
            edge_network = charge_terms(layer)
        elif self_interaction:
            own = layer.edge_network(origin)
        before, after = mixing(layer.before), mixing(layer.after)
        return InteractionWeights(before, after, cast(own), edge_network)

    def charge_terms(layer: ChargedInteraction) -> EdgeNetworkWeights:
        first, second, third = layer.edge_network.linears
        assert isinstance(first, nn.Linear)
        charges = config.charge_channels
        atom_weights, neighbor_weights = first.weight[:, -2 * charges :].split(charges, dim=1)
        of_atom = Linear(cast(atom_weights.T), cast(first.bias))
        return EdgeNetworkWeights(
            of_atom, cast(neighbor_weights.T), (linear(second), linear(third))
        )

    def charges(prediction: nn.Module) -> ChargeWeights:
        assert isinstance(prediction, ChargePrediction)
        first, second, third = prediction.linears
        layers = (linear(first), linear(second), linear(third))
        return ChargeWeights(linear(prediction.norm), layers)

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
            own=cast(scalar if self_interaction else torch.zeros_like(scalar)),
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
        (
            tuple(charges(prediction) for prediction in network.charges)
            if isinstance(network, TensorNet2)
            else ()
        ),
        _coulomb(exact, device),
        tuple(
            _repulsion(exact, part, exact.list_roles.cutoff(role), device)
            for part, role in zip(exact.repulsions, exact.repulsion_roles, strict=True)
        ),
    )


def _coulomb(exact: TensorNetPotential, device: torch.device) -> CoulombWeights | None:
    if exact.coulomb is None:
        return None
    weights = exact.coulomb.weights
    weights = exact.scale * COULOMB * weights / weights.sum()
    return CoulombWeights(weights.to(device), exact.coulomb.cutoff)


def _repulsion(
    exact: TensorNetPotential, part: nn.Module, cutoff: float, device: torch.device
) -> RepulsionWeights:
    assert isinstance(part, Repulsion)
    species = torch.tensor(exact.species)
    strength, inverse_length, reach = part.constants(species[:, None], species)
    strength = exact.scale * strength if part.scaled else strength
    constants = [strength, inverse_length, 1.0 / reach, reach.clamp(max=part.cutoff)]
    return RepulsionWeights(
        torch.stack(constants, -1).to(device), part.exponentials().to(device), part.order, cutoff
    )


def _perceptron(
    readout: nn.Module, scale: Tensor, linear: Callable[..., Linear]
) -> tuple[Linear, ...]:
    assert isinstance(readout, PerceptronReadout | GatedReadout)
    layers = readout.linears if isinstance(readout, PerceptronReadout) else readout.values
    *hidden, last = layers
    return (*(linear(layer) for layer in hidden), linear(last, scale))
