"""Kernels of dense layers on edges: a1 to a2 to a3 of a network on edges, and back.

Float32 products run on tensor cores as three products of float16 halves, x = x' + x'' with
11 bits each, x' w' + x' w'' + x'' w', which keep float32's digits as those of TF32 do, at
twice their speed (DOI 10.1177/10943420221090256); `fast` takes the first of them. Float16 has
a narrow range, so every row is scaled by the power of two that suits its largest number.
Weights come in halves.
"""

import triton
import triton.language as tl

from mdgraph.fused.cuda.kernels.activations import activation, slope
from mdgraph.neighbors.succession import wait_for_previous


@triton.jit
def _scales(largest):
    """Powers of two that bring numbers of float32 to 2^8 or somewhat more, and their inverses.

    Float16 goes up to 2^16; what is 2^11 times smaller than the largest keeps all its digits.
    """
    exponent = (largest.to(tl.int32, bitcast=True) >> 23) & 255
    scale = tl.minimum(tl.maximum(262 - exponent, 1), 253)
    inverse = ((254 - scale) << 23).to(tl.float32, bitcast=True)
    return (scale << 23).to(tl.float32, bitcast=True), inverse


@triton.jit
def _row_scales(rows, present, margin, WIDTH: tl.constexpr, A: tl.constexpr, BK: tl.constexpr):
    """Scales (A, 1) of rows (A, 1) of WIDTH numbers, to whose size a margin is added."""
    largest = tl.zeros([A, BK], tl.float32)
    for first in range(0, WIDTH, BK):
        k = (first + tl.arange(0, BK))[None, :]
        x = tl.load(rows + k, mask=present & (k < WIDTH), other=0.0)
        largest = tl.maximum(largest, tl.abs(x))
    return _scales(tl.max(largest, 1)[:, None] + margin)


@triton.jit
def _product(x, weight, remainder, inside, PRODUCTS: tl.constexpr):
    """A tile of rows times one of weights, as so many products of halves, or as it is with none.

    Tensor cores cut sums off towards zero instead of rounding them, so they are given a few
    channels at a time to sum, small terms first.
    """
    w = tl.load(weight, mask=inside, other=0.0)
    if PRODUCTS == 1:
        part = tl.dot(x.to(tl.float16), w)
    elif PRODUCTS == 3:
        whole = x.to(tl.float16)
        rest = (x - whole.to(tl.float32)).to(tl.float16)
        part = tl.dot(rest, w)
        part = tl.dot(whole, tl.load(remainder, mask=inside, other=0.0), part)
        part = tl.dot(whole, w, part)
    else:
        part = tl.dot(x, w, input_precision="ieee", out_dtype=x.dtype)
    return part


@triton.jit
def edge_dense_kernel(
    count,
    inputs,
    weight,
    remainder,
    bias,
    result,
    unit,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    A: tl.constexpr,
    BK: tl.constexpr,
    BF: tl.constexpr,
    ACTIVATION: tl.constexpr,
    PRODUCTS: tl.constexpr,
    EARLY: tl.constexpr = False,
):
    """Result = act(inputs) W + b; tiles beyond the last edge return at once.

    Args:
        count: (1,) int32, number of edges.
        inputs: (P, INPUTS).
        weight, remainder: (INPUTS, OUTPUTS), the halves of W / unit; one of them without PRODUCTS.
        bias: (OUTPUTS,).
        result: (P, OUTPUTS), written.
        unit: a power of two.
        PRODUCTS: 3 for float32's digits, 1 for those of float16, 0 for float64.
    """
    wait_for_previous(EARLY)
    strips: tl.constexpr = (OUTPUTS + BF - 1) // BF
    tile = tl.program_id(0) // strips
    number = tl.load(count)
    if tile * A >= number:
        return
    begin = (tile * A).to(tl.int64)
    edge = tl.arange(0, A)[:, None]
    f = ((tl.program_id(0) % strips) * BF + tl.arange(0, BF))[None, :]
    present = edge < number - tile * A
    rows = inputs + begin * INPUTS + edge * INPUTS
    if PRODUCTS > 0:
        # What activations may add to the size of what they are applied to.
        margin: tl.constexpr = 1.0 if ACTIVATION == "sigmoid" or ACTIVATION == "softplus" else 0.0
        scale, inverse = _row_scales(rows, present, margin, INPUTS, A, BK)
    acc = tl.zeros([A, BF], result.dtype.element_ty)
    for first in range(0, INPUTS, BK):
        k = first + tl.arange(0, BK)
        have = present & (k < INPUTS)[None, :]
        x = activation(tl.load(rows + k[None, :], mask=have, other=0.0), ACTIVATION)
        if PRODUCTS > 0:
            x *= scale
        at = k[:, None] * OUTPUTS + f
        inside = (k < INPUTS)[:, None] & (f < OUTPUTS)
        acc += _product(x, weight + at, remainder + at, inside, PRODUCTS)
    if PRODUCTS > 0:
        acc *= inverse * unit
    acc += tl.load(bias + f, mask=f < OUTPUTS, other=0.0)
    tl.store(result + begin * OUTPUTS + (edge * OUTPUTS + f), acc, mask=present & (f < OUTPUTS))


@triton.jit
def edge_dense_adjoint_kernel(
    count,
    gradient,
    weight,
    remainder,
    inputs,
    unit,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    A: tl.constexpr,
    BK: tl.constexpr,
    BF: tl.constexpr,
    ACTIVATION: tl.constexpr,
    PRODUCTS: tl.constexpr,
    EARLY: tl.constexpr = False,
):
    """From the gradient g of `edge_dense_kernel`'s result to that of its inputs, act'(x) g W^T.

    Args:
        gradient: (P, OUTPUTS).
        weight, remainder: (OUTPUTS, INPUTS), transposed.
        inputs: (P, INPUTS); their gradient is written over them.
        others: as in `edge_dense_kernel`.
    """
    wait_for_previous(EARLY)
    strips: tl.constexpr = (INPUTS + BF - 1) // BF
    tile = tl.program_id(0) // strips
    number = tl.load(count)
    if tile * A >= number:
        return
    begin = (tile * A).to(tl.int64)
    edge = tl.arange(0, A)[:, None]
    f = ((tl.program_id(0) % strips) * BF + tl.arange(0, BF))[None, :]
    present = edge < number - tile * A
    rows = gradient + begin * OUTPUTS + edge * OUTPUTS
    if PRODUCTS > 0:
        scale, inverse = _row_scales(rows, present, 0.0, OUTPUTS, A, BK)
    acc = tl.zeros([A, BF], inputs.dtype.element_ty)
    for first in range(0, OUTPUTS, BK):
        k = first + tl.arange(0, BK)
        have = present & (k < OUTPUTS)[None, :]
        x = tl.load(rows + k[None, :], mask=have, other=0.0)
        if PRODUCTS > 0:
            x *= scale
        at = k[:, None] * INPUTS + f
        inside = (k < OUTPUTS)[:, None] & (f < INPUTS)
        acc += _product(x, weight + at, remainder + at, inside, PRODUCTS)
    if PRODUCTS > 0:
        acc *= inverse * unit
    inside = present & (f < INPUTS)
    place = inputs + begin * INPUTS + (edge * INPUTS + f)
    acc *= slope(tl.load(place, mask=inside, other=0.0), ACTIVATION)
    # All threads of this program must have loaded what is written over now.
    tl.debug_barrier()
    tl.store(place, acc, mask=inside)
