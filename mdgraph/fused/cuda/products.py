"""Matrix products and dense layers on CUDA, with their adjoints.

A program takes a tile of atoms or rows and a strip of the result's channels. The strips of a
tile follow each other, so its rows are read from memory once.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from mdgraph.fused.cuda.device import activation, multiplied, product, read, slope
from mdgraph.fused.cuda.few import few_rows
from mdgraph.fused.cuda.weights import Dense, SplitFP16
from mdgraph.fused.cuda.workspace import TILE, Blocks, LaunchPlan
from mdgraph.gpu.triton_jit import kernel, pdl_wait, programs_at_once


@triton.jit
def part_of(component):
    """Part (0, 1, 2) of a component (0 to 8)."""
    return (component >= 1).to(tl.int32) + (component >= 4).to(tl.int32)


@triton.jit
def tile_of_element(members, elements, tile, A: tl.constexpr):
    """Atoms (A, 1) int64 of a tile, which of them there are, and their element; see `Tiles`."""
    member = tl.load(members + tile * A + tl.arange(0, A))[:, None]
    return tl.maximum(member, 0).to(tl.int64), member >= 0, tl.load(elements + tile)


@triton.jit
def _shares(strips):
    """Tile of atoms, component and strip of a program.

    The components of a tile follow each other, as they do in memory.
    """
    share = tl.program_id(0) % (9 * strips)
    return tl.program_id(0) // (9 * strips), share // strips, share % strips


@triton.jit
def rows_by(
    rows,
    present,
    weight,
    rest,
    f,
    KIND: tl.constexpr,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    STRIDE: tl.constexpr,
    A: tl.constexpr,
    BK: tl.constexpr,
    BF: tl.constexpr,
    PAIR: tl.constexpr,
    MASKED: tl.constexpr,
    ACTIVATION: tl.constexpr,
    PRODUCTS: tl.constexpr,
):
    """Scaled act(x) W (A, BF) of a tile of rows, and with PAIR that for the following columns.

    Two strips share what is read and split of x, and are summed one after the other.

    Args:
        rows: pointers (A, 1) to x.
        present: (A, 1), which rows are read where MASKED; else all are.
        weight, rest: halves of W (INPUTS, OUTPUTS), whose rows lie STRIDE apart.
        f: columns (1, BF).
        KIND: type of the sums.
        MASKED: see Blocks.
    """
    masked: tl.constexpr = MASKED or INPUTS % BK != 0
    narrow: tl.constexpr = masked or OUTPUTS % (2 * BF if PAIR else BF) != 0
    acc = tl.zeros([A, BF], KIND)
    second = acc
    for first in range(0, INPUTS, BK):
        k = first + tl.arange(0, BK)
        x = read(rows + k[None, :], present & (k < INPUTS)[None, :], masked)
        x = activation(x, ACTIVATION)
        at, inside = k[:, None] * STRIDE + f, (k < INPUTS)[:, None] & (f < OUTPUTS)
        acc += product(x, weight + at, rest + at, inside, narrow, PRODUCTS)
        if PAIR:
            at, inside = at + BF, (k < INPUTS)[:, None] & (f + BF < OUTPUTS)
            second += product(x, weight + at, rest + at, inside, narrow, PRODUCTS)
    return acc, second


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
    PAIR: tl.constexpr,
    MASKED: tl.constexpr,
    PRODUCTS: tl.constexpr,
    USE_PDL: tl.constexpr = False,
):
    """Y[i, c] = X[i, c] W[part(c)], one component a program.

    Args:
        features: X (N, 9, F), in float16 where products take no more of it.
        weights, rest, unit: halves of W (3, F, F), [part, in, out].
        result: Y (N, 9, F), written, in a type that may be shorter.
        atoms: N.
        PAIR: whether a program takes two strips.
    """
    pdl_wait(USE_PDL)
    width: tl.constexpr = 2 * BF if PAIR else BF
    tile, component, strip = _shares((F + width - 1) // width)
    atom = (tile * A + tl.arange(0, A)).to(tl.int64)[:, None]
    f = (strip * width + tl.arange(0, BF))[None, :]
    w = part_of(component) * (F * F)
    kind = tl.float32 if PRODUCTS > 0 else features.dtype.element_ty
    sums = rows_by(
        features + tl.minimum(atom, atoms - 1) * (9 * F) + component * F, atom < atoms,
        weights + w, rest + w, f, kind, F, F, F, A, BK, BF, PAIR, MASKED, "none", PRODUCTS,
    )  # fmt: skip
    for part in tl.static_range(2 if PAIR else 1):
        own = f + part * BF
        y = result + atom * (9 * F) + component * F + own
        tl.store(y, sums[part] * unit, mask=(atom < atoms) & (own < F))


@kernel
def resident_mixing_kernel(
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
    STAGES: tl.constexpr,
    PRODUCTS: tl.constexpr,
    USE_PDL: tl.constexpr = False,
):
    """As `mixing_kernel`, by few programs which keep the matrices of a part and of a strip.

    F is a multiple of BF and BK. Programs take tiles and components in turn, part by part, and
    strips of a tile follow each other.
    """
    pdl_wait(USE_PDL)
    strips: tl.constexpr = F // BF
    tiles = (atoms + A - 1) // A
    share = tl.program_id(0) // strips
    shares = tl.num_programs(0) // strips
    begin, end = 9 * tiles * share // shares, 9 * tiles * (share + 1) // shares
    f = (tl.program_id(0) % strips * BF + tl.arange(0, BF))[None, :]
    k = tl.arange(0, BK)
    for part in range(3):
        # Components 0; 1 to 3; 4 to 8.
        first = tl.maximum(begin, part * part * tiles)
        last = tl.minimum(end, (part + 1) * (part + 1) * tiles)
        if first < last:
            w, r = (), ()
            for step in tl.static_range(F // BK):
                at = (part * F + step * BK + k)[:, None] * F + f
                w += (tl.load(weights + at),)  # type: ignore[assignment]
                r += (tl.load(rest + at),)  # type: ignore[assignment]
            for place in tl.range(first, last, num_stages=STAGES):
                atom = (place % tiles * A + tl.arange(0, A)).to(tl.int64)[:, None]
                own = place // tiles * F
                rows = features + tl.minimum(atom, atoms - 1) * (9 * F) + own
                acc = multiplied(tl.load(rows + k[None, :]), w[0], r[0], PRODUCTS)  # type: ignore[misc]
                for step in tl.static_range(1, F // BK):
                    x = tl.load(rows + step * BK + k[None, :])
                    acc += multiplied(x, w[step], r[step], PRODUCTS)
                tl.store(result + atom * (9 * F) + own + f, acc * unit, mask=atom < atoms)


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
    f = (strip * BF + tl.arange(0, BF))[None, :]
    atom, present, element = tile_of_element(members, elements, tile, A)
    w = (element * Q * 3 + part_of(component)) * F
    itself = tl.load(own + element * F + f, mask=(f < F) & (component == 0), other=0.0)
    kind = tl.float32 if PRODUCTS > 0 else moments.dtype.element_ty
    acc, _ = rows_by(
        moments + atom * (9 * Q) + component * Q, present, weights + w, rest + w, f,
        kind, Q, F, 3 * F, A, BK, BF, False, True, "none", PRODUCTS,
    )  # fmt: skip
    x = features + atom * (9 * F) + component * F + f
    tl.store(x, acc * unit + itself, mask=present & (f < F))


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
    atom, present, element = tile_of_element(members, elements, tile, A)
    place = atom * (9 * F) + component * F
    w = (element * 3 + part_of(component)) * (F * Q) + q[None, :]
    acc = tl.zeros([A, BF], adjoint.dtype.element_ty)
    for first in range(0, F, BK):
        f = first + tl.arange(0, BK)
        have = present & (f < F)[None, :]
        left = tl.load(gradient + place + f[None, :], mask=have, other=0.0).to(acc.dtype)
        x = tl.load(features + place + f[None, :], mask=have, other=0.0).to(acc.dtype)
        left += 2.0 * x * tl.load(for_squares + atom * F + f[None, :], have, other=0.0)
        inside = (f < F)[:, None] & (q < Q)[None, :]
        at = w + f[:, None] * Q
        acc += product(left, weights + at, rest + at, inside, True, PRODUCTS)
    acc *= unit
    d = adjoint + atom * (9 * Q) + component * Q + q[None, :]
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
    acc, _ = rows_by(
        inputs + begin * INPUTS + row * INPUTS, present, weight, rest, f,
        result.dtype.element_ty,
        INPUTS, OUTPUTS, OUTPUTS, A, BK, BF, False, True, ACTIVATION, PRODUCTS,
    )  # fmt: skip
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
    acc, _ = rows_by(
        gradient + begin * OUTPUTS + row * OUTPUTS, present, weight, rest, f,
        inputs.dtype.element_ty,
        OUTPUTS, INPUTS, INPUTS, A, BK, BF, False, True, "none", PRODUCTS,
    )  # fmt: skip
    acc *= unit
    inside = present & (f < INPUTS)
    place = begin * INPUTS + (row * INPUTS + f)
    if ACTIVATION != "none":
        acc *= slope(tl.load(inputs + place, mask=inside, other=0.0), ACTIVATION)
    # All threads of this program must have loaded what is written over now.
    tl.debug_barrier()
    tl.store(inputs + place, acc, mask=inside)


def mix(bound: LaunchPlan, x: Tensor, weights: SplitFP16, result: Tensor) -> None:
    """Mixes channels of X (N, 9, F) part by part."""
    s, resident, channels = bound.shapes.mixing, bound.shapes.resident, bound.channels
    about = (x, weights.hi, weights.lo, weights.unit, result, len(x), channels)
    if resident is not None:
        strips = channels // resident.strip
        # A strip of both halves of a matrix, tiles on their way and one of the result.
        tiles = (resident.stages - 1) * channels + resident.strip
        memory = 4 * (channels * resident.strip + resident.atoms * tiles)
        programs = programs_at_once(x.device, memory) // strips * strips
        if programs > 0:
            resident_mixing_kernel[(programs,)](
                *about,
                BF=resident.strip,
                STAGES=resident.stages,
                **sizes_of_product(bound, resident, weights),
            )
            return
    strips = triton.cdiv(channels, (1 + s.paired) * s.strip)
    mixing_kernel[(triton.cdiv(len(x), s.atoms) * 9 * strips,)](
        *about,
        BF=s.strip,
        PAIR=s.paired,
        MASKED=s.masked,
        **sizes_of_product(bound, s, weights),
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
    if s.atoms < TILE:
        few_rows(bound, s, x, layer.weight, layer.bias, result, activation, back=False)
        return
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
        BF=s.strip,
        **sizes_of_product(bound, s, layer.weight),
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
    if s.atoms < TILE:
        few_rows(bound, s, gradient, layer.transposed, layer.bias, x, activation, back=True)
        return
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
        BF=s.strip,
        **sizes_of_product(bound, s, layer.transposed),
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
        BF=s.strip,
        **sizes_of_product(bound, s, bound.contraction),
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
        BF=s.strip,
        **sizes_of_product(bound, s, bound.contraction_transposed),
    )


def sizes_of_product(bound: LaunchPlan, s: Blocks, weights: SplitFP16) -> dict[str, Any]:
    """Arguments of every launch of a product, but for those of strips."""
    split = weights.hi.dtype == torch.float16
    return {
        "A": s.atoms,
        "BK": s.step,
        "PRODUCTS": bound.model.products if split else 0,
        "num_warps": s.warps,
        "num_stages": s.stages,
        "maxnreg": s.registers,
        **bound.launch,
    }
