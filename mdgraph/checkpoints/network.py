"""The network's tensors, which TorchMD-Net and MatGL name alike and order differently."""

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor

from mdgraph.checkpoints.tensors import Tensors
from mdgraph.models import TensorNetConfig


@dataclass(frozen=True)
class Ordering:
    """How a release orders what it puts into one tensor.

    Attributes:
        gate_by_channel: the embedding's gate comes as (F, 3), not (3, F).
        edges_by_channel: so do the weights of a message.
        neighbor_first: the embedding of a pair takes its neighbor before its atom.
    """

    gate_by_channel: bool
    edges_by_channel: bool
    neighbor_first: bool = False


def network_tensors(
    source: Tensors,
    prefix: str,
    config: TensorNetConfig,
    rows: Tensor,
    table: int,
    ordering: Ordering,
) -> dict[str, Tensor]:
    """Takes embedding, layers and the linear layer before the readout.

    Args:
        source: the checkpoint's tensors.
        prefix: what all names begin with.
        config: the potential to be filled.
        rows: (species,) int64, row of the species table for each species.
        table: length of the species table.
        ordering: how the release orders its tensors.

    Returns:
        float64 tensors under the names of a TensorNetPotential.
    """
    channels, radial = config.channels, config.radial_basis.number
    found: dict[str, Tensor] = {}

    def linear(own: str, name: str, outputs: int, inputs: int, by_channel: bool = False) -> None:
        for kind, shape in (("weight", (outputs, inputs)), ("bias", (outputs,))):
            value = source.take(f"{prefix}{name}.{kind}", *shape)
            found[f"network.{own}.{kind}"] = parts_first(value) if by_channel else value

    def norm(own: str, name: str, width: int) -> None:
        for kind in ("weight", "bias"):
            found[f"network.{own}.{kind}"] = source.take(f"{prefix}{name}.{kind}", width)

    def mixing(own: str, name: str, first: int) -> None:
        for part in range(3):
            value = source.take(f"{prefix}{name}.{first + part}.weight", channels, channels)
            found[f"network.{own}.parts.{part}.weight"] = value

    embedding = "tensor_embedding"
    species = source.take(f"{prefix}{embedding}.emb.weight", table, channels)
    found["network.embedding.species.weight"] = species[rows]
    pair = source.take(f"{prefix}{embedding}.emb2.weight", channels, 2 * channels)
    halves = pair.chunk(2, dim=1)
    atom, neighbor = halves[::-1] if ordering.neighbor_first else halves
    found["network.embedding.atom.weight"] = atom
    found["network.embedding.atom.bias"] = source.take(f"{prefix}{embedding}.emb2.bias", channels)
    found["network.embedding.neighbor.weight"] = neighbor
    if f"{prefix}{embedding}.distance_proj.weight" in source:
        linear("embedding.distance", f"{embedding}.distance_proj", 3 * channels, radial)
    else:
        for kind, shape in (("weight", (channels, radial)), ("bias", (channels,))):
            names = [f"{prefix}{embedding}.distance_proj{part}.{kind}" for part in (1, 2, 3)]
            parts = [source.take(name, *shape) for name in names]
            found[f"network.embedding.distance.{kind}"] = torch.cat(parts)
    norm("embedding.norm", f"{embedding}.init_norm", channels)
    linear("embedding.gate.0", f"{embedding}.linears_scalar.0", 2 * channels, channels)
    linear(
        "embedding.gate.1",
        f"{embedding}.linears_scalar.1",
        3 * channels,
        2 * channels,
        ordering.gate_by_channel,
    )
    mixing("embedding.mixing", f"{embedding}.linears_tensor", 0)
    for layer in range(config.layers):
        own, name = f"layers.{layer}", f"layers.{layer}"
        widths = (radial + 2 * config.charge_channels, channels, 2 * channels, 3 * channels)
        for step in range(3):
            linear(
                f"{own}.edge_network.linears.{step}",
                f"{name}.linears_scalar.{step}",
                widths[step + 1],
                widths[step],
                ordering.edges_by_channel and step == 2,
            )
        mixing(f"{own}.before", f"{name}.linears_tensor", 0)
        mixing(f"{own}.after", f"{name}.linears_tensor", 3)
    norm("norm", "out_norm", 3 * channels)
    linear("linear", "linear", channels, 3 * channels)
    return found


def perceptron_tensors(
    source: Tensors, own: str, name: str, widths: tuple[int, ...]
) -> dict[str, Tensor]:
    """Takes a perceptron whose activations count as layers, so that every other has weights.

    Args:
        source: the checkpoint's tensors.
        own: what the names of a TensorNetPotential begin with.
        name: what the checkpoint's names begin with.
        widths: from the inputs to the outputs.
    """
    found = {}
    for place, (inputs, outputs) in enumerate(itertools.pairwise(widths)):
        layer = f"{name}.{2 * place}"
        found[f"{own}.{place}.weight"] = source.take(f"{layer}.weight", outputs, inputs)
        found[f"{own}.{place}.bias"] = source.take(f"{layer}.bias", outputs)
    return found


def parts_first(value: Tensor) -> Tensor:
    """Reorders (3 F, ...) rows from (F, 3) to (3, F)."""
    return value.unflatten(0, (-1, 3)).transpose(0, 1).flatten(0, 1).contiguous()
