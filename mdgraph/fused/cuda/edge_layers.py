"""Layers of TensorNet2's edge network on CUDA, and their adjoints.

a1 = T(d) + u_i + v_j with T from a table, a2 = act(a1) W2 + b2, a3 = act(a2) W3 + b3.

Programs take tiles of packed edges, whatever atoms they belong to. Of all this a2 and a3 are
kept, and become their gradients; act(a1) lies where a3 will, as the float16 halves that products
read, and a1 is computed again from its table where its slope counts. So an edge takes 5F numbers,
for all layers of a network together, or for each where atoms are few.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from mdgraph.fused.cuda.device import (
    activation,
    chained_product,
    halves,
    polynomials,
    slope,
    store_halves,
)
from mdgraph.fused.cuda.weights import ChainedDense, ChainedFP16
from mdgraph.fused.cuda.workspace import Blocks, LaunchPlan
from mdgraph.gpu.triton_jit import kernel, pdl_wait

UP = tl.constexpr(16.0)
"""Factor of activations in float16: second halves err by 2e-9 at most; beyond 4,094 is infinity."""
UP_GRADIENT = tl.constexpr(128.0)
"""Of gradients, in eV: 2e-10 at most, and 511."""


@triton.jit
def _ends(source, target, at, from_centre, table, terms, edge, valid, F: tl.constexpr):
    """Where numbers of a1 begin, (A, 1) each: in the table, u_i, v_j; and offsets (A, 1)."""
    own = tl.load(source + edge, mask=valid, other=0).to(tl.int64)[:, None]
    other = tl.load(target + edge, mask=valid, other=0).to(tl.int64)[:, None]
    u = tl.load(from_centre + edge, mask=valid, other=0.0)[:, None]
    t = table + tl.load(at + edge, mask=valid, other=0)[:, None] * (4 * F)
    return t, terms + own * (2 * F), terms + (other * (2 * F) + F), u


@triton.jit
def _first_layer(t, own, other, u, f, inside, F: tl.constexpr):
    """a1 (A, B) of some edges."""
    x, _ = polynomials(t + f, u, inside, F)
    x += tl.load(own + f, mask=inside, other=0.0)
    return x + tl.load(other + f, mask=inside, other=0.0)


@kernel
def first_layer_kernel(
    count,
    source,
    target,
    at,
    from_centre,
    table,
    terms,
    whole,
    rest,
    F: tl.constexpr,
    A: tl.constexpr,
    FP: tl.constexpr,
    ACTIVATION: tl.constexpr,
    PRODUCTS: tl.constexpr,
    USE_PDL: tl.constexpr = False,
):
    """act(a1) of a few edges.

    Args:
        count: (1,) int32, number of edges.
        source, target, at, from_centre: of `packing_kernel`.
        table: T (intervals, 4, F).
        terms: u, v (N, 2F).
        whole, rest: halves of act(a1) (P, F), written.
    """
    pdl_wait(USE_PDL)
    number = tl.load(count)
    if tl.program_id(0) * A >= number:
        return
    edge = tl.program_id(0) * A + tl.arange(0, A)
    valid = edge < number
    f = tl.arange(0, FP)[None, :]
    inside = valid[:, None] & (f < F)
    t, own, other, u = _ends(source, target, at, from_centre, table, terms, edge, valid, F)
    x = activation(_first_layer(t, own, other, u, f, inside, F), ACTIVATION)
    store_halves(whole, rest, edge.to(tl.int64)[:, None] * F + f, x, inside, UP, PRODUCTS)


@triton.jit
def _start(A: tl.constexpr, BF: tl.constexpr, COLUMNS: tl.constexpr):
    """First edge of a program's tile."""
    return (tl.program_id(0) // ((COLUMNS + BF - 1) // BF)) * A


@triton.jit
def _columns(BF: tl.constexpr, COLUMNS: tl.constexpr):
    """Columns (1, BF) of the result of a program."""
    return ((tl.program_id(0) % ((COLUMNS + BF - 1) // BF)) * BF + tl.arange(0, BF))[None, :]


@triton.jit
def _products(
    inputs,
    inputs_rest,
    weight,
    rest,
    row,
    present,
    f,
    SPLIT: tl.constexpr,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    A: tl.constexpr,
    BK: tl.constexpr,
    BF: tl.constexpr,
    ACTIVATION: tl.constexpr,
    SCALE: tl.constexpr,
    PRODUCTS: tl.constexpr,
):
    """Scaled act(inputs) W of a tile, for some columns.

    Args:
        inputs, inputs_rest: of the tile's first row: halves where SPLIT, else numbers twice.
        weight, rest: halves of W (INPUTS, OUTPUTS).
        row, present: rows (A, 1), and which of them there are.
        f: columns (1, BF).
    """
    acc = tl.zeros([A, BF], tl.float64 if PRODUCTS == 0 else tl.float32)
    for first in range(0, INPUTS, BK):
        k = first + tl.arange(0, BK)
        at, inside = k[:, None] * OUTPUTS + f, (k < INPUTS)[:, None] & (f < OUTPUTS)
        w = tl.load(weight + at, mask=inside, other=0.0)
        r = w
        if PRODUCTS == 3:
            r = tl.load(rest + at, mask=inside, other=0.0)
        place, have = row * INPUTS + k[None, :], present & (k < INPUTS)[None, :]
        x = tl.load(inputs + place, mask=have, other=0.0)
        y = x
        if SPLIT and PRODUCTS == 3:
            y = tl.load(inputs_rest + place, mask=have, other=0.0)
        if not SPLIT:
            x, y = halves(activation(x, ACTIVATION), SCALE, PRODUCTS)
        acc += chained_product(x, y, w, r, PRODUCTS)
    return acc


@kernel
def layer_kernel(
    count,
    inputs,
    inputs_rest,
    weight,
    rest,
    unit,
    bias,
    result,
    SPLIT: tl.constexpr,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    A: tl.constexpr,
    BK: tl.constexpr,
    BF: tl.constexpr,
    ACTIVATION: tl.constexpr,
    PRODUCTS: tl.constexpr,
    USE_PDL: tl.constexpr = False,
):
    """Result = inputs W + b of halves of activations, or act(inputs) W + b.

    Args:
        count: (1,) int32, number of edges; tiles beyond return at once.
        inputs, inputs_rest: halves (P, INPUTS) where SPLIT, else numbers twice.
        weight, rest, unit: a ChainedFP16 (INPUTS, OUTPUTS).
        bias: (OUTPUTS,).
        result: (P, OUTPUTS), written.
    """
    pdl_wait(USE_PDL)
    number = tl.load(count)
    start = _start(A, BF, OUTPUTS)
    if start >= number:
        return
    begin, row, f = start.to(tl.int64), tl.arange(0, A)[:, None], _columns(BF, OUTPUTS)
    present = row < number - start
    x, y = inputs + begin * INPUTS, inputs_rest + begin * INPUTS
    acc = _products(
        x, y, weight, rest, row, present, f,
        SPLIT, INPUTS, OUTPUTS, A, BK, BF, ACTIVATION, UP, PRODUCTS,
    )  # fmt: skip
    b = tl.load(bias + f, mask=f < OUTPUTS, other=0.0)
    out = result + begin * OUTPUTS + (row * OUTPUTS + f)
    tl.store(out, acc * unit + b, mask=present & (f < OUTPUTS))


@kernel
def last_layer_adjoint_kernel(
    count,
    gradient,
    weight,
    rest,
    unit,
    middle,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    A: tl.constexpr,
    BK: tl.constexpr,
    BF: tl.constexpr,
    ACTIVATION: tl.constexpr,
    PRODUCTS: tl.constexpr,
    USE_PDL: tl.constexpr = False,
):
    """da2 = act'(a2) da3 W3^T in the place of a2.

    Args:
        count: as in `layer_kernel`.
        gradient: da3 (P, INPUTS).
        weight, rest, unit: of W3^T (INPUTS, OUTPUTS).
        middle: a2 (P, OUTPUTS), written over.
    """
    pdl_wait(USE_PDL)
    number = tl.load(count)
    start = _start(A, BF, OUTPUTS)
    if start >= number:
        return
    begin, row, f = start.to(tl.int64), tl.arange(0, A)[:, None], _columns(BF, OUTPUTS)
    present = row < number - start
    x = gradient + begin * INPUTS
    acc = _products(
        x, x, weight, rest, row, present, f,
        False, INPUTS, OUTPUTS, A, BK, BF, "none", UP_GRADIENT, PRODUCTS,
    )  # fmt: skip
    out, inside = middle + begin * OUTPUTS + (row * OUTPUTS + f), present & (f < OUTPUTS)
    steep = slope(tl.load(out, mask=inside, other=0.0), ACTIVATION)
    # All threads of this program must have loaded what is written over now.
    tl.debug_barrier()
    tl.store(out, acc * unit * steep, mask=inside)


@kernel
def middle_layer_adjoint_kernel(
    count,
    source,
    target,
    at_interval,
    from_centre,
    table,
    terms,
    gradient,
    weight,
    rest,
    unit,
    result,
    F: tl.constexpr,
    A: tl.constexpr,
    BK: tl.constexpr,
    BF: tl.constexpr,
    ACTIVATION: tl.constexpr,
    PRODUCTS: tl.constexpr,
    USE_PDL: tl.constexpr = False,
):
    """da1 = act'(a1) da2 W2^T.

    Args:
        count, source, target, at_interval, from_centre, table, terms: as in `first_layer_kernel`.
        gradient: da2 (P, 2F).
        weight, rest, unit: of W2^T (2F, F).
        result: da1 (P, F), written.
    """
    pdl_wait(USE_PDL)
    number = tl.load(count)
    start = _start(A, BF, F)
    if start >= number:
        return
    begin, row, f = start.to(tl.int64), tl.arange(0, A)[:, None], _columns(BF, F)
    present = row < number - start
    x = gradient + begin * (2 * F)
    acc = _products(
        x, x, weight, rest, row, present, f,
        False, 2 * F, F, A, BK, BF, "none", UP_GRADIENT, PRODUCTS,
    )  # fmt: skip
    edge = start + tl.arange(0, A)
    valid = edge < number
    t, own, other, u = _ends(source, target, at_interval, from_centre, table, terms, edge, valid, F)
    inside = present & (f < F)
    a1 = _first_layer(t, own, other, u, f, inside, F)
    tl.store(result + begin * F + (row * F + f), acc * unit * slope(a1, ACTIVATION), mask=inside)


FEW = 16
"""Edges that a program of the first layer takes."""


def apply_layers(bound: LaunchPlan, number: int) -> None:
    """a3 of every edge, from the terms that charges add in a layer."""
    c, second, third = bound.charged, *bound.tensornet2_model.networks[number].layers
    coefficients, middle, activated = c.coefficients[number], c.middle[number], c.activated[number]
    first_layer_kernel[(triton.cdiv(len(coefficients), FEW),)](
        *_first(bound, number),
        *activated,
        bound.channels,
        FEW,
        bound.shapes.padded,
        ACTIVATION=bound.model.config.activation,
        PRODUCTS=bound.model.products,
        num_warps=4,
        **bound.launch,
    )
    _layer(bound, bound.shapes.edges, activated, second, middle, split=True)
    _layer(bound, bound.shapes.edges, (middle, middle), third, coefficients, split=False)


def apply_layers_adjoint(bound: LaunchPlan, number: int) -> None:
    """Gradient by a1 from that by a3, whose place it takes."""
    c, second, third = bound.charged, *bound.tensornet2_model.networks[number].layers
    s, inputs, outputs = bound.shapes.edges_adjoint, 3 * bound.channels, 2 * bound.channels
    middle = c.middle[number]
    last_layer_adjoint_kernel[_grid(len(middle), outputs, s)](
        c.count,
        c.coefficients[number],
        *_parts(third.transposed, UP_GRADIENT.value),
        middle,
        inputs,
        outputs,
        **_sizes(bound, s),
    )
    s = bound.shapes.edges_middle
    middle_layer_adjoint_kernel[_grid(len(middle), bound.channels, s)](
        *_first(bound, number),
        middle,
        *_parts(second.transposed, UP_GRADIENT.value),
        c.for_first[number],
        bound.channels,
        **_sizes(bound, s),
    )


def _layer(
    bound: LaunchPlan,
    s: Blocks,
    x: tuple[Tensor, Tensor],
    layer: ChainedDense,
    result: Tensor,
    split: bool,
) -> None:
    inputs, outputs = x[0].shape[1], result.shape[1]
    layer_kernel[_grid(len(result), outputs, s)](
        bound.charged.count,
        *x,
        *_parts(layer.weight, UP.value),
        layer.bias,
        result,
        split,
        inputs,
        outputs,
        **_sizes(bound, s),
    )


def _grid(rows: int, outputs: int, s: Blocks) -> tuple[int]:
    return (triton.cdiv(rows, s.atoms) * triton.cdiv(outputs, s.strip),)


def _first(bound: LaunchPlan, number: int) -> tuple[Tensor, ...]:
    """Arguments from which a1 is computed."""
    c = bound.charged
    table = bound.model.layer_tables[number].coefficients
    return c.count, c.source, c.target, c.interval, c.offset, table, c.terms[number]


def _parts(weights: ChainedFP16, up: float) -> tuple[Tensor, Tensor, float]:
    """Arguments of a product with rows that are scaled if they are split."""
    return weights.hi, weights.lo, weights.unit / (up if weights.hi.dtype == torch.float16 else 1.0)


def _sizes(bound: LaunchPlan, s: Blocks) -> dict[str, Any]:
    return {
        "A": s.atoms,
        "BK": s.step,
        "BF": s.strip,
        "ACTIVATION": bound.model.config.activation,
        "PRODUCTS": bound.model.products,
        "num_warps": s.warps,
        "num_stages": s.stages,
        "maxnreg": s.registers,
        **bound.launch,
    }
