"""Matrix products, dense layers and layer normalisation on CUDA, with their adjoints.

A program takes a tile of atoms or rows and a strip of the result's channels. The strips of a
tile follow each other, so its rows are read from memory once.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from mdgraph.fused.cuda.device import activation, product, slope
from mdgraph.fused.cuda.weights import Dense, SplitFP16
from mdgraph.fused.cuda.workspace import Blocks, LaunchPlan, padded
from mdgraph.fused.weights import Linear
from mdgraph.gpu.triton_jit import kernel, pdl_wait


@triton.jit
def part_of(component):
    """Part (0, 1, 2) of a component (0 to 8)."""
    return (component >= 1).to(tl.int32) + (component >= 4).to(tl.int32)


@triton.jit
def _shares(strips):
    """Tile of atoms, component and strip of a program.

    The components of a tile follow each other, as they do in memory.
    """
    share = tl.program_id(0) % (9 * strips)
    return tl.program_id(0) // (9 * strips), share // strips, share % strips


@kernel
def mixing_kernel(
    features,
    weights,
    rest,
    unit,
    result,
    atoms,
    F: tl.constexpr,
    A: tl.constexpr,
    BK: tl.constexpr,
    BF: tl.constexpr,
    PRODUCTS: tl.constexpr,
    USE_PDL: tl.constexpr = False,
):
    """Y[i, c] = X[i, c] W[part(c)], one component a program.

    Args:
        features: X (N, 9, F), in float16 where products take no more of it.
        weights, rest, unit: halves of W (3, F, F), [part, in, out].
        result: Y (N, 9, F), written, in a type that may be shorter.
        atoms: N.
    """
    pdl_wait(USE_PDL)
    tile, component, strip = _shares((F + BF - 1) // BF)
    atom = (tile * A + tl.arange(0, A)).to(tl.int64)
    f = strip * BF + tl.arange(0, BF)
    present = (atom < atoms)[:, None]
    x = features + atom[:, None] * (9 * F) + component * F
    w = part_of(component) * (F * F) + f[None, :]
    acc = tl.zeros([A, BF], tl.float32 if PRODUCTS > 0 else features.dtype.element_ty)
    for first in range(0, F, BK):
        k = first + tl.arange(0, BK)
        left = tl.load(x + k[None, :], mask=present & (k < F)[None, :], other=0.0)
        inside = (k < F)[:, None] & (f < F)[None, :]
        at = w + k[:, None] * F
        acc += product(left, weights + at, rest + at, inside, PRODUCTS)
    acc *= unit
    y = result + atom[:, None] * (9 * F) + component * F + f[None, :]
    tl.store(y, acc, mask=present & (f < F)[None, :])


@kernel
def contraction_kernel(
    members,
    elements,
    moments,
    weights,
    rest,
    unit,
    own,
    features,
    Q: tl.constexpr,
    F: tl.constexpr,
    A: tl.constexpr,
    BK: tl.constexpr,
    BF: tl.constexpr,
    PRODUCTS: tl.constexpr,
    USE_PDL: tl.constexpr = False,
):
    """X[i, c, f] = sum_q M[i, c, q] W[e_i, q, part(c), f] + own.

    Args:
        members: (tiles, A) int32, atoms of one element, -1 where a tile is not full.
        elements: (tiles,) int32, that element among those at hand.
        moments: M (N, 9, Q).
        weights, rest, unit: halves of W (E, Q, 3, F).
        own: (E, F), added to the scalar component.
        features: X (N, 9, F), written.
    """
    pdl_wait(USE_PDL)
    tile, component, strip = _shares((F + BF - 1) // BF)
    f = strip * BF + tl.arange(0, BF)
    member = tl.load(members + tile * A + tl.arange(0, A))
    present = (member >= 0)[:, None]
    atom = tl.maximum(member, 0).to(tl.int64)
    element = tl.load(elements + tile)
    m = moments + atom[:, None] * (9 * Q) + component * Q
    w = (element * Q * 3 + part_of(component)) * F + f[None, :]
    itself = tl.load(own + element * F + f, mask=(f < F) & (component == 0), other=0.0)
    acc = tl.zeros([A, BF], features.dtype.element_ty)
    for first in range(0, Q, BK):
        q = first + tl.arange(0, BK)
        left = tl.load(m + q[None, :], mask=present & (q < Q)[None, :], other=0.0)
        inside = (q < Q)[:, None] & (f < F)[None, :]
        at = w + q[:, None] * (3 * F)
        acc += product(left, weights + at, rest + at, inside, PRODUCTS)
    acc = acc * unit + itself[None, :]
    x = features + atom[:, None] * (9 * F) + component * F + f[None, :]
    tl.store(x, acc, mask=present & (f < F)[None, :])


@kernel
def contraction_adjoint_kernel(
    members,
    elements,
    gradient,
    features,
    for_squares,
    weights,
    rest,
    unit,
    adjoint,
    Q: tl.constexpr,
    F: tl.constexpr,
    A: tl.constexpr,
    BK: tl.constexpr,
    BF: tl.constexpr,
    PRODUCTS: tl.constexpr,
    USE_PDL: tl.constexpr = False,
):
    """D[i, c, q] = sum_f (G + 2 X d|X|^2)[i, c, f] W[e_i, q, part(c), f].

    Args:
        gradient: G (N, 9, F), of X but for its squared norm.
        features: X (N, 9, F).
        for_squares: d|X|^2 (N, F).
        weights, rest, unit: halves of W transposed (E, 3, F, Q).
        adjoint: D (N, 9, Q), written.
        others: as in `contraction_kernel`.
    """
    pdl_wait(USE_PDL)
    tile, component, strip = _shares((Q + BF - 1) // BF)
    q = strip * BF + tl.arange(0, BF)
    member = tl.load(members + tile * A + tl.arange(0, A))
    present = (member >= 0)[:, None]
    atom = tl.maximum(member, 0).to(tl.int64)
    element = tl.load(elements + tile)
    place = atom[:, None] * (9 * F) + component * F
    w = (element * 3 + part_of(component)) * (F * Q) + q[None, :]
    acc = tl.zeros([A, BF], adjoint.dtype.element_ty)
    for first in range(0, F, BK):
        f = first + tl.arange(0, BK)
        have = present & (f < F)[None, :]
        left = tl.load(gradient + place + f[None, :], mask=have, other=0.0)
        x = tl.load(features + place + f[None, :], mask=have, other=0.0)
        left += 2.0 * x * tl.load(for_squares + atom[:, None] * F + f[None, :], have, other=0.0)
        inside = (f < F)[:, None] & (q < Q)[None, :]
        at = w + f[:, None] * Q
        acc += product(left, weights + at, rest + at, inside, PRODUCTS)
    acc *= unit
    d = adjoint + atom[:, None] * (9 * Q) + component * Q + q[None, :]
    tl.store(d, acc, mask=present & (q < Q)[None, :])


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
    USE_PDL: tl.constexpr = False,
):
    """Result = act(inputs) W + b; tiles beyond the last row return at once.

    Args:
        rows: number of rows, or where it lies, (1,) int32, if COUNTED.
        inputs: (N, INPUTS).
        weight, rest, unit: halves of W (INPUTS, OUTPUTS).
        bias: (OUTPUTS,).
        result: (N, OUTPUTS), written.
        PRODUCTS: see `device.product`.
    """
    pdl_wait(USE_PDL)
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
    USE_PDL: tl.constexpr = False,
):
    """From the gradient of `dense_kernel`'s result to that of its inputs: act'(inputs) g W^T.

    Args:
        gradient: (N, OUTPUTS).
        weight, rest, unit: halves of W^T (OUTPUTS, INPUTS).
        inputs: (N, INPUTS), written over; not read without an activation.
        others: as in `dense_kernel`.
    """
    pdl_wait(USE_PDL)
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


_EPSILON = tl.constexpr(1e-5)


@triton.jit
def row_sums(x):
    """Sums of the rows of (A, F) as (A, 1)."""
    return tl.sum(x, 1)[:, None]


@triton.jit
def standardized_values(x, inside, number: tl.constexpr):
    """(x - mean) / deviation of each row (A, F), and 1 / deviation (A, 1).

    Args:
        x: zero outside.
        inside: which of its columns count.
        number: how many do.
    """
    mean = row_sums(x) / number
    centred = tl.where(inside, x - mean, 0.0)
    variance = row_sums(centred * centred) / number
    inverse = 1.0 / tl.sqrt(variance + _EPSILON)
    return centred * inverse, inverse


@triton.jit
def standardized_values_adjoint(gradient, x, inverse, inside, number: tl.constexpr):
    """From the gradient of the standardized x (zero outside) to that of what it was made of."""
    mean = row_sums(gradient) / number
    along = row_sums(gradient * x) / number
    return tl.where(inside, inverse * (gradient - mean - x * along), 0.0)


@kernel
def standardized_kernel(
    rows,
    norm,
    shift,
    result,
    INPUTS: tl.constexpr,
    PADDED: tl.constexpr,
    USE_PDL: tl.constexpr = False,
):
    """Layer normalisation, one row a program.

    Args:
        rows: (N, INPUTS).
        norm, shift: (INPUTS,), weight and bias of the normalisation.
        result: (N, INPUTS), written.
    """
    pdl_wait(USE_PDL)
    row = (tl.program_id(0) + tl.arange(0, 1)).to(tl.int64)[:, None] * INPUTS
    k = tl.arange(0, PADDED)[None, :]
    have = k < INPUTS
    x, _ = standardized_values(tl.load(rows + row + k, mask=have, other=0.0), have, INPUTS)
    x *= tl.load(norm + k, mask=have, other=0.0)
    tl.store(result + row + k, x + tl.load(shift + k, mask=have, other=0.0), mask=have)


@kernel
def standardized_adjoint_kernel(
    gradient,
    rows,
    norm,
    result,
    INPUTS: tl.constexpr,
    PADDED: tl.constexpr,
    ADDED: tl.constexpr,
    USE_PDL: tl.constexpr = False,
):
    """From the gradient of `standardized_kernel`'s result to that of its rows.

    Args:
        gradient: (N, INPUTS).
        rows, norm: as there.
        result: (N, INPUTS), written, or added to where ADDED; may be `gradient` or `rows`.
    """
    pdl_wait(USE_PDL)
    row = (tl.program_id(0) + tl.arange(0, 1)).to(tl.int64)[:, None] * INPUTS
    k = tl.arange(0, PADDED)[None, :]
    have = k < INPUTS
    g = tl.load(gradient + row + k, mask=have, other=0.0)
    g *= tl.load(norm + k, mask=have, other=0.0)
    x, inverse = standardized_values(tl.load(rows + row + k, mask=have, other=0.0), have, INPUTS)
    g = standardized_values_adjoint(g, x, inverse, have, INPUTS)
    if ADDED:
        g += tl.load(result + row + k, mask=have, other=0.0)
    # All threads of this program must have loaded what is written over now.
    tl.debug_barrier()
    tl.store(result + row + k, g, mask=have)


def mix(bound: LaunchPlan, x: Tensor, weights: SplitFP16, result: Tensor) -> None:
    """Mixes channels of X (N, 9, F) part by part."""
    s, channels = bound.shapes.mixing, bound.channels
    grid = (triton.cdiv(len(x), s.atoms) * 9 * triton.cdiv(channels, s.strip),)
    mixing_kernel[grid](
        x,
        weights.hi,
        weights.lo,
        weights.unit,
        result,
        len(x),
        channels,
        **_sizes(bound, s, weights),
    )


def dense(
    bound: LaunchPlan,
    s: Blocks,
    x: Tensor,
    layer: Dense,
    result: Tensor,
    activation: str,
    count: Tensor | None = None,
) -> None:
    """A linear layer after the activation of its input, for all rows or the first `count`."""
    inputs, outputs = x.shape[1], result.shape[1]
    dense_kernel[(triton.cdiv(len(x), s.atoms) * triton.cdiv(outputs, s.strip),)](
        len(x) if count is None else count,
        x,
        layer.weight.hi,
        layer.weight.lo,
        layer.weight.unit,
        layer.bias,
        result,
        count is not None,
        inputs,
        outputs,
        ACTIVATION=activation,
        **_sizes(bound, s, layer.weight),
    )


def dense_adjoint(
    bound: LaunchPlan,
    s: Blocks,
    gradient: Tensor,
    layer: Dense,
    x: Tensor,
    activation: str,
    count: Tensor | None = None,
) -> None:
    """Gradient by the input of `dense` before its activation; overwrites the input `x`."""
    inputs, outputs = x.shape[1], gradient.shape[1]
    dense_adjoint_kernel[(triton.cdiv(len(x), s.atoms) * triton.cdiv(inputs, s.strip),)](
        len(x) if count is None else count,
        gradient,
        layer.transposed.hi,
        layer.transposed.lo,
        layer.transposed.unit,
        x,
        count is not None,
        inputs,
        outputs,
        ACTIVATION=activation,
        **_sizes(bound, s, layer.transposed),
    )


def standardized(bound: LaunchPlan, x: Tensor, norm: Linear, result: Tensor) -> None:
    """Layer normalisation of rows."""
    inputs = x.shape[1]
    standardized_kernel[(len(x),)](
        x, norm.weight, norm.bias, result, inputs, padded(inputs), num_warps=1, **bound.launch
    )


def standardized_adjoint(
    bound: LaunchPlan,
    gradient: Tensor,
    x: Tensor,
    norm: Linear,
    result: Tensor,
    added: bool = False,
) -> None:
    """Gradient by rows from that by their layer normalisation."""
    inputs = x.shape[1]
    standardized_adjoint_kernel[(len(x),)](
        gradient,
        x,
        norm.weight,
        result,
        inputs,
        padded(inputs),
        added,
        num_warps=1,
        **bound.launch,
    )


def contract(bound: LaunchPlan) -> None:
    """Features from moments."""
    s, b, channels = bound.shapes.contraction, bound.buffers, bound.channels
    contraction_kernel[(len(bound.tiles.elements) * 9 * triton.cdiv(channels, s.strip),)](
        bound.tiles.members,
        bound.tiles.elements,
        b.moments,
        bound.contraction.hi,
        bound.contraction.lo,
        bound.contraction.unit,
        bound.own,
        b.embedded,
        bound.elements * bound.model.functions,
        channels,
        **_sizes(bound, s, bound.contraction),
    )


def contract_adjoint(bound: LaunchPlan) -> None:
    """Gradient by moments from that by features."""
    s, b, channels = bound.shapes.contraction, bound.buffers, bound.channels
    functions = bound.elements * bound.model.functions
    contraction_adjoint_kernel[(len(bound.tiles.elements) * 9 * triton.cdiv(functions, s.strip),)](
        bound.tiles.members,
        bound.tiles.elements,
        b.last,
        b.embedded,
        b.squares,
        bound.contraction_transposed.hi,
        bound.contraction_transposed.lo,
        bound.contraction_transposed.unit,
        b.moments,
        functions,
        channels,
        **_sizes(bound, s, bound.contraction_transposed),
    )


def _sizes(bound: LaunchPlan, s: Blocks, weights: SplitFP16) -> dict[str, Any]:
    """Arguments of every launch of a product."""
    split = weights.hi.dtype == torch.float16
    return {
        "A": s.atoms,
        "BK": s.step,
        "BF": s.strip,
        "PRODUCTS": bound.model.products if split else 0,
        "num_warps": s.warps,
        "num_stages": s.stages,
        **bound.launch,
    }
