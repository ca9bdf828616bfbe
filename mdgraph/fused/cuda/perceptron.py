"""Perceptrons of the readout, side by side in matrices of blocks."""

from dataclasses import dataclass

import torch
from torch import Tensor

from mdgraph.fused.cuda.halves import Dense
from mdgraph.fused.weights import Linear


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
