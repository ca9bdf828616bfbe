"""Kernels of dense layers on rows: those of atoms, or of edges whose number is known late.

A program takes a tile of rows and a strip of the result's channels; the strips of a tile
follow each other, so that its rows are read from memory once.
"""

import triton.language as tl

from mdgraph.fused.cuda.kernels.activations import activation, slope
from mdgraph.fused.cuda.kernels.tensor_cores import product
from mdgraph.neighbors.compilation import kernel
from mdgraph.neighbors.succession import wait_for_previous


@kernel
def dense_kernel(
    rows,
    inputs,
    weight,
    rest,
    unit,
    bias,
    result,
    COUNTED: tl.constexpr,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    A: tl.constexpr,
    BK: tl.constexpr,
    BF: tl.constexpr,
    ACTIVATION: tl.constexpr,
    PRODUCTS: tl.constexpr,
    EARLY: tl.constexpr = False,
):
    """Result = act(inputs) W + b; tiles beyond the last row return at once.

    Args:
        rows: number of rows, or where it lies, (1,) int32, if COUNTED.
        inputs: (N, INPUTS).
        weight, rest, unit: halves of W (INPUTS, OUTPUTS).
        bias: (OUTPUTS,).
        result: (N, OUTPUTS), written.
        PRODUCTS: see `tensor_cores`.
    """
    wait_for_previous(EARLY)
    strips: tl.constexpr = (OUTPUTS + BF - 1) // BF
    tile = tl.program_id(0) // strips
    number = tl.load(rows) if COUNTED else rows
    if tile * A >= number:
        return
    begin = (tile * A).to(tl.int64)
    row = tl.arange(0, A)[:, None]
    f = ((tl.program_id(0) % strips) * BF + tl.arange(0, BF))[None, :]
    present = row < number - tile * A
    acc = tl.zeros([A, BF], result.dtype.element_ty)
    for first in range(0, INPUTS, BK):
        k = first + tl.arange(0, BK)
        have = present & (k < INPUTS)[None, :]
        x = tl.load(inputs + begin * INPUTS + row * INPUTS + k[None, :], mask=have, other=0.0)
        at = k[:, None] * OUTPUTS + f
        inside = (k < INPUTS)[:, None] & (f < OUTPUTS)
        acc += product(activation(x, ACTIVATION), weight + at, rest + at, inside, PRODUCTS)
    acc = acc * unit + tl.load(bias + f, mask=f < OUTPUTS, other=0.0)
    tl.store(result + begin * OUTPUTS + (row * OUTPUTS + f), acc, mask=present & (f < OUTPUTS))


@kernel
def dense_adjoint_kernel(
    rows,
    gradient,
    weight,
    rest,
    unit,
    inputs,
    COUNTED: tl.constexpr,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    A: tl.constexpr,
    BK: tl.constexpr,
    BF: tl.constexpr,
    ACTIVATION: tl.constexpr,
    PRODUCTS: tl.constexpr,
    EARLY: tl.constexpr = False,
):
    """From the gradient of `dense_kernel`'s result to that of its inputs: act'(inputs) g W^T.

    Args:
        gradient: (N, OUTPUTS).
        weight, rest, unit: halves of W^T (OUTPUTS, INPUTS).
        inputs: (N, INPUTS), written over; not read without an activation.
        others: as in `dense_kernel`.
    """
    wait_for_previous(EARLY)
    strips: tl.constexpr = (INPUTS + BF - 1) // BF
    tile = tl.program_id(0) // strips
    number = tl.load(rows) if COUNTED else rows
    if tile * A >= number:
        return
    begin = (tile * A).to(tl.int64)
    row = tl.arange(0, A)[:, None]
    f = ((tl.program_id(0) % strips) * BF + tl.arange(0, BF))[None, :]
    present = row < number - tile * A
    acc = tl.zeros([A, BF], inputs.dtype.element_ty)
    for first in range(0, OUTPUTS, BK):
        k = first + tl.arange(0, BK)
        have = present & (k < OUTPUTS)[None, :]
        g = tl.load(gradient + begin * OUTPUTS + row * OUTPUTS + k[None, :], mask=have, other=0.0)
        at = k[:, None] * INPUTS + f
        inside = (k < OUTPUTS)[:, None] & (f < INPUTS)
        acc += product(g, weight + at, rest + at, inside, PRODUCTS)
    acc *= unit
    inside = present & (f < INPUTS)
    place = begin * INPUTS + (row * INPUTS + f)
    if ACTIVATION != "none":
        acc *= slope(tl.load(inputs + place, mask=inside, other=0.0), ACTIVATION)
    # All threads of this program must have loaded what is written over now.
    tl.debug_barrier()
    tl.store(inputs + place, acc, mask=inside)
