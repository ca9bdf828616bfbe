"""Matrix products, layer norms and perceptrons on the rows of a block of atoms.

A result depends neither on the rows beside it nor on the number of threads: each of its
numbers is a sum over the inputs in their order.
"""

import math
from typing import Any, Final, NamedTuple

from llvmlite import ir
from numba.core.typing.templates import Signature

from mdgraph.fused.cpu.math import activated
from mdgraph.fused.cpu.simd import (
    LANES,
    Lanes,
    kept_apart,
    load,
    loading,
    operation,
    routine,
    spreading,
    store,
    total,
    zero,
    zeros,
)

PANEL: Final = 2 * LANES
"""Columns of packed weights that lie together, to which channels are padded. With AVX-512 they
are one register in float32, and a product takes a third less time than with two."""


@operation
def load_panel(typing_context: Any, array: Any, index: Any) -> Any:
    """array[index : index + PANEL]."""
    return loading(array, index, PANEL)


@operation
def zero_panel(typing_context: Any, array: Any) -> Any:
    """PANEL zeros, of the type of an array."""
    return zeros(Lanes(array.dtype, PANEL), array)


@operation
def load_one_panel(typing_context: Any, array: Any, index: Any) -> Any:
    """array[index], PANEL times."""
    return spreading(array, PANEL)


@operation
def first_half(typing_context: Any, panel: Any) -> Any:
    """The first LANES of a PANEL."""
    return _half(panel, 0)


@operation
def second_half(typing_context: Any, panel: Any) -> Any:
    """The other LANES of a PANEL."""
    return _half(panel, LANES)


def _half(panel: Lanes, start: int) -> Any:
    places = ir.Constant(ir.VectorType(ir.IntType(32), LANES), list(range(start, start + LANES)))

    def generate(context: Any, builder: Any, signature: Signature, arguments: Any) -> Any:
        (vector,) = arguments
        return builder.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), places)

    return Lanes(panel.element)(panel), generate


_ROWS: Final = 6
"""Rows whose sums are kept in registers together."""

ATOMS: Final = 2 * _ROWS
"""Atoms of a block: rows that share a pass over the weights."""


class ArrayOffset(NamedTuple):
    """A position in a flat array.

    Numba compiles a function again for a literal 0 as argument, but not for a 0 in a tuple.
    """

    array: Any
    start: int


class BlockRows(NamedTuple):
    """Strides of the rows of a block: a row for each atom and part.

    Attributes:
        array: flat array.
        start: index of the first row.
        row: stride from the row of an atom to that of the next.
        parts: number of parts.
        part: stride from a part to the next.
        tile: stride from eight numbers of a row to the next eight.
    """

    array: Any
    start: int
    row: int
    parts: int
    part: int
    tile: int


@routine
def multiply(left, weights, inputs, result, outputs):
    """Writes result = left @ weights.

    Args:
        left: Rows with so many inputs.
        weights: Place of panels (outputs / PANEL, inputs, PANEL).
        inputs: numbers of a row that goes in, whole lanes.
        result: Rows that are written.
        outputs: numbers of a row that comes out, whole panels.
    """
    kept_apart()
    a, b = left.array, weights.array
    for panel in range(outputs // PANEL):
        for part in range(left.parts):
            for row in range(0, ATOMS, _ROWS):
                start = weights.start + panel * inputs * PANEL
                a0 = left.start + part * left.part + row * left.row
                a1, a2, a3 = a0 + left.row, a0 + 2 * left.row, a0 + 3 * left.row
                a4, a5 = a0 + 4 * left.row, a0 + 5 * left.row
                s0 = s1 = s2 = s3 = s4 = s5 = zero_panel(b)
                for tile in range(inputs // LANES):
                    for lane in range(LANES):
                        w = load_panel(b, start)
                        start += PANEL
                        k = tile * left.tile + lane
                        s0 += load_one_panel(a, a0 + k) * w
                        s1 += load_one_panel(a, a1 + k) * w
                        s2 += load_one_panel(a, a2 + k) * w
                        s3 += load_one_panel(a, a3 + k) * w
                        s4 += load_one_panel(a, a4 + k) * w
                        s5 += load_one_panel(a, a5 + k) * w
                c0 = result.start + part * result.part + row * result.row
                c0 += 2 * panel * result.tile
                _store_panel(result, c0, s0)
                _store_panel(result, c0 + result.row, s1)
                _store_panel(result, c0 + 2 * result.row, s2)
                _store_panel(result, c0 + 3 * result.row, s3)
                _store_panel(result, c0 + 4 * result.row, s4)
                _store_panel(result, c0 + 5 * result.row, s5)


@routine
def _store_panel(rows, place, panel):
    store(rows.array, place, first_half(panel))
    store(rows.array, place + rows.tile, second_half(panel))


@routine
def features(array, start, channels, part):
    """Rows of one part of the features (ATOMS, F / LANES, 9, LANES) of a block."""
    component = LANES * part * part
    return BlockRows(array, start + component, 9 * channels, 2 * part + 1, LANES, 9 * LANES)


@routine
def mix(left, weights, result, channels):
    """Mixes the channels of the features of a block at a Place by a matrix for each part."""
    kept_apart()
    for part in range(3):
        multiply(
            features(left.array, left.start, channels, part),
            ArrayOffset(weights, part * channels * channels),
            channels,
            features(result.array, result.start, channels, part),
            channels,
        )


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
            BlockRows(levels.array, here, row, 1, 0, LANES),
            ArrayOffset(perceptron.weights, weights),
            inputs,
            BlockRows(levels.array, here + size, row, 1, 0, LANES),
            outputs,
        )
        for local in range(0, size, row):
            activate(
                ArrayOffset(levels.array, here + size + local),
                ArrayOffset(perceptron.biases, biases),
                perceptron.activations[layer],
                ArrayOffset(slopes.array, slopes.start + layer * size + local),
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
            BlockRows(levels.array, here, row, 1, 0, LANES),
            ArrayOffset(perceptron.adjoint, weights),
            outputs,
            BlockRows(levels.array, here - size, row, 1, 0, LANES),
            inputs,
        )
