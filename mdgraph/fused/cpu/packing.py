"""Weights and tables as flat padded arrays, in the order in which kernels read them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mdgraph.fused.cpu.activations import NUMBERS
from mdgraph.fused.cpu.arrays import (
    EmbeddingArrays,
    LayerArrays,
    Perceptron,
    ReadoutArrays,
    Sizes,
)
from mdgraph.fused.cpu.lanes import LANES
from mdgraph.fused.cpu.panels import PANEL
from mdgraph.fused.cpu.repulsion import RepulsionArrays
from mdgraph.fused.tables import RadialTable
from mdgraph.fused.weights import (
    EmbeddingWeights,
    InteractionWeights,
    Linear,
    ReadoutWeights,
    RepulsionWeights,
)
from mdgraph.models import TensorNetConfig

Array = NDArray[Any]


def padded(size: int, to: int = PANEL) -> int:
    """Rounded up to whole panels, or what is said."""
    return -(-size // to) * to


def sizes(config: TensorNetConfig, functions: int, elements: int) -> Sizes:
    """Shapes and choices of a network, for so many elements at hand."""
    return Sizes(
        padded(config.channels),
        config.channels,
        padded(functions, LANES),
        padded(functions),
        elements,
        config.group == "O(3)",
    )


def embedding(
    weights: EmbeddingWeights,
    table: RadialTable,
    rows: Tensor,
    config: TensorNetConfig,
) -> EmbeddingArrays:
    """The embedding for the elements at hand.

    Args:
        weights: of the network.
        table: its radial functions.
        rows: (E,) int64, row of each element in the species tables.
        config: of the potential.
    """
    channels = padded(config.channels)
    pair = weights.of_atom[rows][:, None] + weights.of_neighbor[rows]
    return EmbeddingArrays(
        table=flat(widened(table.coefficients, 2, padded(table.coefficients.shape[2]))),
        distance=_panels_of_parts(weights.distance, padded(weights.distance.shape[1], LANES)),
        distance_adjoint=_panels_of_parts(weights.distance.mT, channels),
        pair=flat(widened(pair, 2, channels)),
        own=flat(widened(weights.self_term(rows), 1, channels)),
        norm=flat(widened(weights.norm.weight, 0, channels)),
        shift=flat(widened(weights.norm.bias, 0, channels)),
        gate=perceptron(
            weights.gate,
            [(1, channels), (2, channels), (3, channels)],
            [config.activation, config.activation],
        ),
        mixing=_panels_of_parts(weights.mixing, channels),
        mixing_adjoint=_panels_of_parts(weights.mixing.mT, channels),
    )


def interaction(weights: InteractionWeights, table: RadialTable) -> LayerArrays:
    """One layer; without a table where an edge network stands behind it."""
    channels = padded(weights.own.shape[1])
    coefficients = table.coefficients
    if weights.edge_network is None:
        coefficients = widened(coefficients.unflatten(2, (3, -1)), 3, channels)
        coefficients = coefficients.unflatten(3, (-1, LANES)).movedim(3, 1)
    else:
        coefficients = coefficients[:0]
    return LayerArrays(
        table=flat(coefficients),
        own=flat(widened(weights.own, 1, channels)),
        before=_panels_of_parts(weights.before, channels),
        before_adjoint=_panels_of_parts(weights.before.mT, channels),
        after=_panels_of_parts(weights.after, channels),
        after_adjoint=_panels_of_parts(weights.after.mT, channels),
    )


def repulsion(weights: RepulsionWeights, rows: Tensor) -> RepulsionArrays:
    """One repulsion between the elements at hand, by their rows (E,) int64."""
    coefficients, exponents = widened(weights.exponentials, 1, LANES)
    constants = weights.of_elements(rows).numpy()
    return RepulsionArrays(constants, flat(coefficients), flat(-exponents), weights.order)


def readout(weights: ReadoutWeights, config: TensorNetConfig) -> ReadoutArrays:
    """The readout; both perceptrons begin with the layer that they share."""
    channels = padded(config.channels)
    gated = config.readout.kind == "gated"
    inner = "silu" if gated else config.activation
    first = config.activation if config.readout_activation else None

    def of_layers(layers: tuple[Linear, ...]) -> Perceptron:
        hidden = [(1, padded(layer.weight.shape[1])) for layer in layers]
        activations = [first, *[inner] * (len(layers) - 1), None]
        return perceptron(
            (weights.linear, *layers), [(3, channels), (1, channels), *hidden], activations
        )

    return ReadoutArrays(
        norm=flat(padded_parts(weights.norm.weight, 0, 3, channels)),
        shift=flat(padded_parts(weights.norm.bias, 0, 3, channels)),
        values=of_layers(weights.values),
        gates=of_layers(weights.gates or weights.values),
        gated=gated,
    )


def perceptron(
    layers: Sequence[Linear],
    shapes: Sequence[tuple[int, int]],
    activations: Sequence[str | None],
) -> Perceptron:
    """Linear layers between rows of the shapes: parts, and the padded size of each."""
    arrays = []
    for layer, inputs, outputs in zip(layers, shapes[:-1], shapes[1:], strict=True):
        weight = padded_parts(padded_parts(layer.weight, 0, *inputs), 1, *outputs)
        bias = flat(padded_parts(layer.bias, 0, *outputs))
        arrays.append((panels(weight), panels(weight.T), bias))
    widths = [parts * size for parts, size in shapes]
    return Perceptron(
        len(layers),
        max(widths),
        np.array(widths),
        np.array([NUMBERS[name] for name in activations]),
        *(np.concatenate(kind) for kind in zip(*arrays, strict=True)),
    )


def panels(matrix: Tensor) -> Array:
    """Matrix [inputs, outputs] to flat panels (outputs / PANEL, inputs, PANEL)."""
    columns = widened(matrix, 1, padded(matrix.shape[1]))
    return flat(columns.unflatten(1, (-1, PANEL)).transpose(0, 1))


def _panels_of_parts(matrices: Tensor, inputs: int) -> Array:
    """Panels of (3, inputs, outputs) one after the other, with so many inputs each."""
    return np.concatenate([panels(matrix) for matrix in widened(matrices, 1, inputs)])


def padded_parts(tensor: Tensor, dimension: int, parts: int, size: int) -> Tensor:
    """Pads each of the parts that lie one after the other along a dimension."""
    split = tensor.unflatten(dimension, (parts, -1))
    return widened(split, dimension + 1, size).flatten(dimension, dimension + 1)


def widened(tensor: Tensor, dimension: int, size: int) -> Tensor:
    """With zeros at the end of a dimension, up to a size."""
    shape = list(tensor.shape)
    shape[dimension] = size - shape[dimension]
    return torch.cat([tensor, tensor.new_zeros(shape)], dimension)


def flat(tensor: Tensor) -> Array:
    """Its numbers one after the other."""
    return tensor.contiguous().flatten().numpy()
