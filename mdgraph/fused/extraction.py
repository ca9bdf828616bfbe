"""Takes the weights of a potential apart into what kernels read."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from mdgraph.fused.weights import (
    ChargeWeights,
    CoulombWeights,
    EdgeNetworkWeights,
    EmbeddingWeights,
    InteractionWeights,
    Linear,
    PackedWeights,
    ReadoutWeights,
    RepulsionWeights,
)
from mdgraph.models import TensorNetPotential
from mdgraph.models.electrostatics import COULOMB
from mdgraph.models.embedding import PartMixing
from mdgraph.models.readout import GatedReadout, PerceptronReadout
from mdgraph.models.repulsion import Repulsion
from mdgraph.models.tensornet import Interaction
from mdgraph.models.tensornet2 import ChargedInteraction, ChargePrediction, TensorNet2


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
        own, edge_network = torch.zeros(3, config.channels), None
        if isinstance(layer, ChargedInteraction):
            edge_network = charged(layer)
        elif itself:
            own = layer.edge_network(origin)
        before, after = mixing(layer.before), mixing(layer.after)
        return InteractionWeights(before, after, cast(own), edge_network)

    def charged(layer: ChargedInteraction) -> EdgeNetworkWeights:
        first, second, third = layer.edge_network.linears
        assert isinstance(first, nn.Linear)
        charges = config.charge_channels
        own, other = first.weight[:, -2 * charges :].split(charges, dim=1)
        of_atom = Linear(cast(own.T), cast(first.bias))
        return EdgeNetworkWeights(of_atom, cast(other.T), (linear(second), linear(third)))

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
        tuple(charges(one) for one in network.charges) if isinstance(network, TensorNet2) else (),
        _coulomb(exact, device),
        tuple(
            _repulsion(exact, part, cutoff, device)
            for part, cutoff in zip(exact.repulsions, exact.repulsion_cutoffs, strict=True)
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
