"""Layer norms and perceptrons on rows of atoms, forward and backward."""

import math
from typing import Final

from mdgraph.fused.cpu.activations import activated
from mdgraph.fused.cpu.compilation import routine
from mdgraph.fused.cpu.lanes import LANES, kept_apart, load, store, total, zero
from mdgraph.fused.cpu.products import ATOMS, Place, Rows, multiply

_EPSILON: Final = 1e-5
"""Of torch's LayerNorm."""


@routine
def layer_norm(values, start, channels, width, norm, shift, normal, normal_start):
    """Normalises a row in place, `width` numbers of each of its parts; returns 1 / deviation.

    What lies in `normal` afterwards is the row before `norm` and `shift`.
    """
    kept_apart()
    size = len(norm)
    count = size // channels * width
    mean = 0.0
    for part in range(start, start + size, channels):
        for c in range(part, part + width):
            mean += values[c]
    mean /= count
    variance = 0.0
    for part in range(start, start + size, channels):
        for c in range(part, part + width):
            variance += (values[c] - mean) ** 2
    inverse = 1.0 / math.sqrt(variance / count + _EPSILON)
    # Norm and shift are zero in the padding.
    for c in range(0, size, LANES):
        x = (load(values, start + c) - mean) * inverse
        store(normal, normal_start + c, x)
        store(values, start + c, x * load(norm, c) + load(shift, c))
    return inverse


@routine
def layer_norm_adjoint(gradient, start, channels, width, norm, normal, normal_start, inverse):
    """Turns the gradient of a row after `layer_norm` in place into that before."""
    kept_apart()
    size = len(norm)
    count = size // channels * width
    once = along = zero(norm)
    for c in range(0, size, LANES):
        g = load(gradient, start + c) * load(norm, c)
        once += g
        along += g * load(normal, normal_start + c)
    mean, slope = total(once) / count, total(along) / count
    for c in range(0, size, LANES):
        g = load(gradient, start + c) * load(norm, c)
        g = (g - mean - load(normal, normal_start + c) * slope) * inverse
        store(gradient, start + c, g)


@routine
def activate(values, biases, number, slopes, size):
    """Adds the biases to so many values and activates them in place; writes the slopes."""
    kept_apart()
    for c in range(0, size, LANES):
        x = load(values.array, values.start + c) + load(biases.array, biases.start + c)
        value, slope = activated(x, number)
        store(values.array, values.start + c, value)
        store(slopes.array, slopes.start + c, slope)


@routine
def climb(perceptron, levels, slopes):
    """A perceptron on the rows of a block.

    Args:
        perceptron: the layers.
        levels: Place of (layers + 1, ATOMS, widest), the input first; the others are written.
        slopes: Place of (layers, ATOMS, widest), of the activations, written.
    """
    kept_apart()
    row = perceptron.widest
    size = ATOMS * row
    weights, biases = 0, 0
    for layer in range(perceptron.layers):
        inputs, outputs = perceptron.widths[layer], perceptron.widths[layer + 1]
        here = levels.start + layer * size
        multiply(
            Rows(levels.array, here, row, 1, 0, LANES),
            Place(perceptron.weights, weights),
            inputs,
            Rows(levels.array, here + size, row, 1, 0, LANES),
            outputs,
        )
        for local in range(0, size, row):
            activate(
                Place(levels.array, here + size + local),
                Place(perceptron.biases, biases),
                perceptron.activations[layer],
                Place(slopes.array, slopes.start + layer * size + local),
                outputs,
            )
        weights += inputs * outputs
        biases += outputs


@routine
def descend(perceptron, levels, slopes):
    """From the gradient of the result, in the last level, to that of the input, in level 0."""
    kept_apart()
    row = perceptron.widest
    size = ATOMS * row
    weights = len(perceptron.adjoint)
    for step in range(perceptron.layers):
        layer = perceptron.layers - 1 - step
        inputs, outputs = perceptron.widths[layer], perceptron.widths[layer + 1]
        here = levels.start + (layer + 1) * size
        weights -= inputs * outputs
        for local in range(0, size, row):
            for c in range(local, local + outputs, LANES):
                slope = load(slopes.array, slopes.start + layer * size + c)
                store(levels.array, here + c, load(levels.array, here + c) * slope)
        multiply(
            Rows(levels.array, here, row, 1, 0, LANES),
            Place(perceptron.adjoint, weights),
            outputs,
            Rows(levels.array, here - size, row, 1, 0, LANES),
            inputs,
        )
