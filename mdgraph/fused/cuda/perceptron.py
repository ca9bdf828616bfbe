"""Perceptrons of the readout, packed as its kernel reads them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from mdgraph.fused.cuda.shapes import padded
from mdgraph.fused.weights import Linear


@dataclass(frozen=True)
class PackedPerceptron:
    """Perceptrons side by side, padded to one width; see `readout.energy_kernel`."""

    weights: Tensor
    biases: Tensor
    layers: int
    width: int


def side_by_side(parts: list[tuple[Linear, ...]], inputs: int) -> PackedPerceptron:
    """Packs perceptrons with the same input into one, in matrices of blocks.

    Args:
        parts: layers of each, the last one to a single number.
        inputs: padded width of the input.
    """
    hidden = [layers[:-1] for layers in parts]
    widths = [sum(layer.bias.numel() for layer in level) for level in zip(*hidden, strict=True)]
    width = padded(max(widths, default=1))
    weights, biases = [], []
    for number, level in enumerate(zip(*hidden, strict=True)):
        matrix = level[0].weight.new_zeros(width if number else inputs, width)
        vector = level[0].bias.new_zeros(width)
        row = column = 0
        for layer in level:
            rows, columns = layer.weight.shape
            matrix[row : row + rows, column : column + columns] = layer.weight
            vector[column : column + columns] = layer.bias
            row, column = row + rows if number else 0, column + columns
        weights.append(matrix.flatten())
        biases.append(vector)
    last = parts[0][0].weight.new_zeros(2, width if hidden[0] else inputs)
    ends = last.new_zeros(2)
    start = 0
    for number, layers in enumerate(parts):
        stop = start + len(layers[-1].weight)
        last[number, start:stop] = layers[-1].weight[:, 0]
        ends[number] = layers[-1].bias[0]
        start = stop if hidden[0] else 0
    return PackedPerceptron(
        torch.cat([*weights, last.flatten()]), torch.cat([*biases, ends]), len(widths), width
    )
