"""A network without layers on CUDA: what lies between moments and their gradient in three kernels.

Without messages the energy of an atom depends on its own moments alone. So a program takes a tile
of atoms through several products, and what is between them stays in registers, which 32 channels
fit into. Networks of more channels, or with layers, take eighteen kernels of `products`,
`embedding` and `readout` for the same. One kernel would do, but Triton 3.7 compiles it for half a
minute: its passes take the third power of the number of operations.

X = M W + own;  z1 = LN(|X|^2) W1 + b1;  z2 = act(z1) W2 + b2                         (features)
Y = mixing(X);  t = |act(z2) Y|^2 of each part;  z0 = LN(t) W0 + b0;  h = act(z0) Wh + bh;
the energy from h, and back to the gradients by z2 and, but for |X|^2, by X            (readout)
back to the gradient by X and by M                                                    (moments)

Matrices come as two halves and a unit each, and once more transposed for the way `back`.
"""

from typing import Any

import triton
import triton.language as tl

from mdgraph.fused.backend import NetworkResult
from mdgraph.fused.cuda.device import activation, multiplied, slope
from mdgraph.fused.cuda.norms import (
    row_of,
    rows_of_parts,
    standardized_parts,
    standardized_parts_adjoint,
    standardized_values,
    standardized_values_adjoint,
)
from mdgraph.fused.cuda.products import tile_of_element
from mdgraph.fused.cuda.readout import activations_of, energies_of
from mdgraph.fused.cuda.weights import SplitFP16
from mdgraph.fused.cuda.workspace import LaunchPlan, padded
from mdgraph.gpu.triton_jit import kernel, pdl_wait
from mdgraph.models.kernels.algebra import add, dot, dots, load, scale, store, weigh

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators


@triton.jit
def _block(
    matrix, rest, row, column, STRIDE: tl.constexpr, R: tl.constexpr, C: tl.constexpr,
    PRODUCTS: tl.constexpr,
):  # fmt: skip
    """Both halves of a block (R, C) of a matrix whose rows lie STRIDE apart."""
    at = row[:, None] * STRIDE + column[None, :]
    inside = (row < R)[:, None] & (column < C)[None, :]
    w = tl.load(matrix + at, mask=inside, other=0.0)
    r = tl.load(rest + at, mask=inside, other=0.0) if PRODUCTS == 3 else w
    return w, r


@triton.jit
def _by(x, block, PRODUCTS: tl.constexpr):
    """A tile times a block."""
    return multiplied(x, block[0], block[1], PRODUCTS)


@triton.jit
def _by_parts(x, scalar, vector, tensor, PRODUCTS: tl.constexpr):
    """Nine tiles, each times the block of its part."""
    return (
        _by(x[0], scalar, PRODUCTS),
        _by(x[1], vector, PRODUCTS),
        _by(x[2], vector, PRODUCTS),
        _by(x[3], vector, PRODUCTS),
        _by(x[4], tensor, PRODUCTS),
        _by(x[5], tensor, PRODUCTS),
        _by(x[6], tensor, PRODUCTS),
        _by(x[7], tensor, PRODUCTS),
        _by(x[8], tensor, PRODUCTS),
    )


@triton.jit
def _mixed(x, weights, rest, f, F: tl.constexpr, PRODUCTS: tl.constexpr):
    """Nine tiles, their channels mixed by (3, F, F)."""
    scalar = _block(weights, rest, f, f, F, F, F, PRODUCTS)
    vector = _block(weights + F * F, rest + F * F, f, f, F, F, F, PRODUCTS)
    tensor = _block(weights + 2 * F * F, rest + 2 * F * F, f, f, F, F, F, PRODUCTS)
    return _by_parts(x, scalar, vector, tensor, PRODUCTS)


@triton.jit
def _two(x, y, matrix, rest, f, STRIDE: tl.constexpr, F: tl.constexpr, PRODUCTS: tl.constexpr):
    """Tiles of 2F columns times a block (2F, F)."""
    result = _by(x, _block(matrix, rest, f, f, STRIDE, F, F, PRODUCTS), PRODUCTS)
    at = F * STRIDE
    return result + _by(
        y, _block(matrix + at, rest + at, f, f, STRIDE, F, F, PRODUCTS), PRODUCTS
    )  # fmt: skip


@triton.jit
def _three(x, matrix, rest, f, STRIDE: tl.constexpr, F: tl.constexpr, PRODUCTS: tl.constexpr):
    """Tiles of 3F columns times a block (3F, F)."""
    result = _two(x[0], x[1], matrix, rest, f, STRIDE, F, PRODUCTS)
    at = 2 * F * STRIDE
    return result + _by(
        x[2], _block(matrix + at, rest + at, f, f, STRIDE, F, F, PRODUCTS), PRODUCTS
    )  # fmt: skip


@kernel
def layerless_features_kernel(
    members, elements, moments,
    contraction, contraction_rest, contraction_unit, own,
    gain, shift,
    first, first_rest, first_unit, first_bias,
    second, second_rest, second_unit, second_bias,
    features, z1, z2,
    Q: tl.constexpr,
    F: tl.constexpr,
    A: tl.constexpr,
    BQ: tl.constexpr,
    FP: tl.constexpr,
    ACTIVATION: tl.constexpr,
    PRODUCTS: tl.constexpr,
    USE_PDL: tl.constexpr = False,
):  # fmt: skip
    """Features, and what their gate is made of.

    Args:
        members, elements: tiles (tiles, A) of one element, as in `contraction_kernel`.
        moments: M (N, 9, Q).
        contraction, own: W (E, Q, 3, F), and (E, F), added to the scalar component.
        gain, shift: (F,), of the gate's layer norm.
        first, second: W1 (F, 2F) and W2 (2F, 3F), with their biases.
        features, z1, z2: X (N, 9, F), (N, 2F), (N, 3F), written.
    """
    pdl_wait(USE_PDL)
    atom, present, element = tile_of_element(members, elements, tl.program_id(0), A)
    f = tl.arange(0, FP)
    within = (f < F)[None, :]

    at = element * (Q * 3 * F)
    there, rest = contraction + at, contraction_rest + at
    zero = tl.zeros([A, FP], tl.float32)
    x = (zero, zero, zero, zero, zero, zero, zero, zero, zero)
    for start in range(0, Q, BQ):
        q = start + tl.arange(0, BQ)
        scalar = _block(there, rest, q, f, 3 * F, Q, F, PRODUCTS)
        vector = _block(there + F, rest + F, q, f, 3 * F, Q, F, PRODUCTS)
        tensor = _block(there + 2 * F, rest + 2 * F, q, f, 3 * F, Q, F, PRODUCTS)
        m = load(moments + atom * (9 * Q) + q[None, :], Q, present & (q < Q)[None, :])
        x = add(x, _by_parts(m, scalar, vector, tensor, PRODUCTS))
    x = scale(x, contraction_unit)
    itself = row_of(own + element * F, f, F)
    x = (x[0] + itself, x[1], x[2], x[3], x[4], x[5], x[6], x[7], x[8])
    store(features + atom * (9 * F) + f[None, :], F, x, present & within)

    inputs, _ = standardized_values(dot(x, x), within, F)
    inputs = inputs * row_of(gain, f, F) + row_of(shift, f, F)
    a = _by(inputs, _block(first, first_rest, f, f, 2 * F, F, F, PRODUCTS), PRODUCTS)
    b = _by(inputs, _block(first + F, first_rest + F, f, f, 2 * F, F, F, PRODUCTS), PRODUCTS)
    a = a * first_unit + row_of(first_bias, f, F)
    b = b * first_unit + row_of(first_bias + F, f, F)
    here = z1 + atom * (2 * F) + f[None, :]
    tl.store(here, a, mask=present & within)
    tl.store(here + F, b, mask=present & within)
    a, b = activation(a, ACTIVATION), activation(b, ACTIVATION)
    here = z2 + atom * (3 * F) + f[None, :]
    for part in tl.static_range(3):
        at = part * F
        z = _two(a, b, second + at, second_rest + at, f, 3 * F, F, PRODUCTS) * second_unit
        tl.store(here + at, z + row_of(second_bias + at, f, F), mask=present & within)


@kernel
def layerless_readout_kernel(
    features, z2,
    mixing, mixing_rest, mixing_unit,
    gains, shifts,
    linear, linear_rest, linear_unit, linear_bias,
    hidden, hidden_rest, hidden_unit, hidden_bias,
    last, ends, constant, energies,
    hidden_back, hidden_back_rest, hidden_back_unit,
    linear_back, linear_back_rest, linear_back_unit,
    mixing_back, mixing_back_rest, mixing_back_unit,
    gradient,
    atoms,
    F: tl.constexpr,
    W: tl.constexpr,
    A: tl.constexpr,
    FP: tl.constexpr,
    WP: tl.constexpr,
    ACTIVATION: tl.constexpr,
    READ: tl.constexpr,
    HIDDEN: tl.constexpr,
    GATED: tl.constexpr,
    PRODUCTS: tl.constexpr,
    USE_PDL: tl.constexpr = False,
):  # fmt: skip
    """Energies from features, and the way back to these.

    Args:
        features, z2: X (N, 9, F) and (N, 3F), over which its gradient is written.
        mixing: (3, F, F).
        gains, shifts: (3F,), of the readout's layer norm.
        linear, hidden: W0 (3F, F) and Wh (F, W), with their biases.
        last, ends, constant, energies: as in `energy_kernel`.
        gradient: (N, 9, F), of X but for its squared norm, written.
        atoms: N.
        ACTIVATION, READ, HIDDEN: activations of the gate, of z0 and of h.
    """
    pdl_wait(USE_PDL)
    atom = (tl.program_id(0) * A + tl.arange(0, A)).to(tl.int64)[:, None]
    present = atom < atoms
    f, w = tl.arange(0, FP), tl.arange(0, WP)
    within = (f < F)[None, :]
    inside = present & within

    x = load(features + atom * (9 * F) + f[None, :], F, inside)
    here = z2 + atom * (3 * F) + f[None, :]
    zs = tl.load(here, mask=inside, other=0.0)
    zv = tl.load(here + F, mask=inside, other=0.0)
    zt = tl.load(here + 2 * F, mask=inside, other=0.0)
    s, v, t = activation(zs, ACTIVATION), activation(zv, ACTIVATION), activation(zt, ACTIVATION)
    y = scale(_mixed(x, mixing, mixing_rest, f, F, PRODUCTS), mixing_unit)
    ys, yv, yt = dots(y, y)

    invariants, inverse = standardized_parts((s * s * ys, v * v * yv, t * t * yt), within, F)
    by_gains, by_shifts = rows_of_parts(gains, f, F), rows_of_parts(shifts, f, F)
    i = invariants[0] * by_gains[0] + by_shifts[0]
    j = invariants[1] * by_gains[1] + by_shifts[1]
    k = invariants[2] * by_gains[2] + by_shifts[2]
    z = _three((i, j, k), linear, linear_rest, f, F, F, PRODUCTS)
    z = z * linear_unit + row_of(linear_bias, f, F)
    h = _by(activation(z, READ), _block(hidden, hidden_rest, f, w, W, F, W, PRODUCTS), PRODUCTS)
    h = h * hidden_unit + row_of(hidden_bias, w, W)
    energy, g = energies_of(h, last, ends, w, W, HIDDEN, GATED)
    energy += tl.load(constant + atom, mask=present, other=0.0)
    tl.store(energies + atom, energy, mask=present)

    g = _by(g, _block(hidden_back, hidden_back_rest, w, f, F, W, F, PRODUCTS), PRODUCTS)
    g = g * hidden_back_unit * slope(z, READ)
    i = _by(g, _block(linear_back, linear_back_rest, f, f, 3 * F, F, F, PRODUCTS), PRODUCTS)
    there, rest = linear_back + F, linear_back_rest + F
    j = _by(g, _block(there, rest, f, f, 3 * F, F, F, PRODUCTS), PRODUCTS)
    k = _by(g, _block(there + F, rest + F, f, f, 3 * F, F, F, PRODUCTS), PRODUCTS)
    i *= linear_back_unit * by_gains[0]
    j *= linear_back_unit * by_gains[1]
    k *= linear_back_unit * by_gains[2]
    i, j, k = standardized_parts_adjoint((i, j, k), invariants, inverse, within, F)
    i, j, k = 2.0 * s * i, 2.0 * v * j, 2.0 * t * k
    # All threads of this program must have loaded what is written over now.
    tl.debug_barrier()
    tl.store(here, i * ys * slope(zs, ACTIVATION), mask=inside)
    tl.store(here + F, j * yv * slope(zv, ACTIVATION), mask=inside)
    tl.store(here + 2 * F, k * yt * slope(zt, ACTIVATION), mask=inside)
    y = weigh(y, i * s, j * v, k * t)
    y = scale(_mixed(y, mixing_back, mixing_back_rest, f, F, PRODUCTS), mixing_back_unit)
    store(gradient + atom * (9 * F) + f[None, :], F, y, inside)


@kernel
def layerless_moments_kernel(
    members, elements, features, gradient, z1, for_z2,
    gain,
    second_back, second_back_rest, second_back_unit,
    first_back, first_back_rest, first_back_unit,
    contraction_back, contraction_back_rest, contraction_back_unit,
    adjoint,
    Q: tl.constexpr,
    F: tl.constexpr,
    A: tl.constexpr,
    BQ: tl.constexpr,
    FP: tl.constexpr,
    ACTIVATION: tl.constexpr,
    PRODUCTS: tl.constexpr,
    USE_PDL: tl.constexpr = False,
):  # fmt: skip
    """From the gradients by features and by z2 to that by moments.

    Args:
        features, gradient, z1, for_z2: what the kernels before wrote.
        adjoint: D (N, 9, Q), written.
        others: as there.
    """
    pdl_wait(USE_PDL)
    atom, present, element = tile_of_element(members, elements, tl.program_id(0), A)
    f = tl.arange(0, FP)
    within = (f < F)[None, :]
    inside = present & within

    here = for_z2 + atom * (3 * F) + f[None, :]
    z = (
        tl.load(here, mask=inside, other=0.0),
        tl.load(here + F, mask=inside, other=0.0),
        tl.load(here + 2 * F, mask=inside, other=0.0),
    )
    here = z1 + atom * (2 * F) + f[None, :]
    a = slope(tl.load(here, mask=inside, other=0.0), ACTIVATION) * second_back_unit
    b = slope(tl.load(here + F, mask=inside, other=0.0), ACTIVATION) * second_back_unit
    a *= _three(z, second_back, second_back_rest, f, 2 * F, F, PRODUCTS)
    b *= _three(z, second_back + F, second_back_rest + F, f, 2 * F, F, PRODUCTS)
    g = _two(a, b, first_back, first_back_rest, f, F, F, PRODUCTS)
    g = g * first_back_unit * row_of(gain, f, F)
    x = load(features + atom * (9 * F) + f[None, :], F, inside)
    squares, deviation = standardized_values(dot(x, x), within, F)
    g = standardized_values_adjoint(g, squares, deviation, within, F)
    y = load(gradient + atom * (9 * F) + f[None, :], F, inside)
    y = add(y, scale(x, 2.0 * g))

    at = element * (Q * 3 * F)
    there, rest = contraction_back + at, contraction_back_rest + at
    for start in range(0, Q, BQ):
        q = start + tl.arange(0, BQ)
        scalar = _block(there, rest, f, q, Q, F, Q, PRODUCTS)
        vector = _block(there + F * Q, rest + F * Q, f, q, Q, F, Q, PRODUCTS)
        tensor = _block(there + 2 * F * Q, rest + 2 * F * Q, f, q, Q, F, Q, PRODUCTS)
        m = scale(_by_parts(y, scalar, vector, tensor, PRODUCTS), contraction_back_unit)
        store(adjoint + atom * (9 * Q) + q[None, :], Q, m, present & (q < Q)[None, :])


def _halves(*matrices: SplitFP16) -> list[Any]:
    return [part for one in matrices for part in (one.hi, one.lo, one.unit)]


def _sizes(bound: LaunchPlan, **more: Any) -> dict[str, Any]:
    """Arguments of each launch."""
    s = bound.shapes.layerless
    return {
        "F": bound.channels,
        "A": s.atoms,
        "FP": padded(bound.channels),
        "ACTIVATION": bound.model.config.activation,
        "PRODUCTS": bound.model.products,
        "num_warps": s.warps,
        "maxnreg": s.registers,
        **bound.launch,
        **more,
    }


def compute_layerless(bound: LaunchPlan, result: NetworkResult) -> None:
    """Energies of atoms from their moments, whose gradient is written over them."""
    model, b, tiles = bound.model, bound.buffers, bound.tiles
    norm, (first, second) = model.embedding.norm, model.gate
    functions = bound.elements * model.functions
    of_moments = {"Q": functions, "BQ": min(bound.shapes.layerless.step, padded(functions))}
    layerless_features_kernel[(len(tiles.elements),)](
        tiles.members,
        tiles.elements,
        b.moments,
        *_halves(bound.contraction),
        bound.own,
        norm.weight,
        norm.bias,
        *_halves(first.weight),
        first.bias,
        *_halves(second.weight),
        second.bias,
        b.embedded,
        b.gate1,
        b.gate2,
        **_sizes(bound, **of_moments),
    )
    linear, (hidden,) = model.linear, model.head.hidden
    read, after = activations_of(model)
    layerless_readout_kernel[(triton.cdiv(bound.atoms, bound.shapes.layerless.atoms),)](
        b.embedded,
        b.gate2,
        *_halves(model.mixing.weights),
        model.norm.weight,
        model.norm.bias,
        *_halves(linear.weight),
        linear.bias,
        *_halves(hidden.weight),
        hidden.bias,
        model.head.last,
        model.head.ends,
        result.constant,
        result.energies,
        *_halves(hidden.transposed, linear.transposed, model.mixing.transposed),
        b.work,
        bound.atoms,
        **_sizes(bound, W=len(hidden.bias), WP=padded(len(hidden.bias))),
        READ=read,
        HIDDEN=after,
        GATED=model.config.readout.kind == "gated",
    )
    layerless_moments_kernel[(len(tiles.elements),)](
        tiles.members,
        tiles.elements,
        b.embedded,
        b.work,
        b.gate1,
        b.gate2,
        norm.weight,
        *_halves(second.transposed, first.transposed, bound.contraction_transposed),
        b.moments,
        **_sizes(bound, **of_moments),
    )
