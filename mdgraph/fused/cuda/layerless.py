"""A network without layers on CUDA: what lies between moments and their gradient in one kernel.

Without messages the energy of an atom depends on its own moments alone. So a program takes an atom
or two all the way, and what is between stays in registers, which 32 channels fit into. Products are
multiply-adds: tensor cores take no less than 16 rows, and these products, which wait for each
other, would spend most of their time on the way to and from them. Networks of more channels, or
with layers, take eighteen kernels of `products`, `embedding` and `readout` for the same.

X = M W + own;  z1 = LN(|X|^2) W1 + b1;  z2 = act(z1) W2 + b2
Y = mixing(X);  t = |act(z2) Y|^2 of each part;  z0 = LN(t) W0 + b0;  h = act(z0) Wh + bh;
the energy from h, and back to the gradients by z2 and, but for |X|^2, by X, then by X and by M.

A program's time goes with the number of its instructions, as most wait for the one before, so it
reads matrices in float32: halves would have to be put together.
"""

import triton
import triton.language as tl

from mdgraph.fused.backend import NetworkResult
from mdgraph.fused.cuda.device import activation, slope
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
from mdgraph.fused.cuda.workspace import LaunchPlan, padded
from mdgraph.gpu.triton_jit import kernel, pdl_wait
from mdgraph.models.kernels.algebra import add, dot, dots, load, scale, store, weigh

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators


@triton.jit
def _block(matrix, row, column, STRIDE: tl.constexpr, R: tl.constexpr, C: tl.constexpr):
    """A block (R, C) of a matrix whose rows lie STRIDE apart."""
    inside = (row < R)[:, None] & (column < C)[None, :]
    # Pieces of 16 bytes would have to be handed around among the threads.
    at = tl.multiple_of(row[:, None] * STRIDE + column[None, :], (1, 1))
    return tl.load(matrix + at, mask=inside, other=0.0)


@triton.jit
def _by(x, block):
    """A tile (A, R) times a block (R, C)."""
    return tl.sum(x[:, :, None] * block[None, :, :], 1)


@triton.jit
def _by_parts(x, scalar, vector, tensor):
    """Nine tiles, each times the block of its part."""
    return (
        _by(x[0], scalar),
        _by(x[1], vector),
        _by(x[2], vector),
        _by(x[3], vector),
        _by(x[4], tensor),
        _by(x[5], tensor),
        _by(x[6], tensor),
        _by(x[7], tensor),
        _by(x[8], tensor),
    )


@triton.jit
def _mixed(x, matrices, f, F: tl.constexpr):
    """Nine tiles, their channels mixed by (3, F, F)."""
    scalar = _block(matrices, f, f, F, F, F)
    vector = _block(matrices + F * F, f, f, F, F, F)
    tensor = _block(matrices + 2 * F * F, f, f, F, F, F)
    return _by_parts(x, scalar, vector, tensor)


@triton.jit
def _two(x, y, matrix, f, STRIDE: tl.constexpr, F: tl.constexpr):
    """Tiles of 2F columns times a block (2F, F)."""
    result = _by(x, _block(matrix, f, f, STRIDE, F, F))
    return result + _by(y, _block(matrix + F * STRIDE, f, f, STRIDE, F, F))


@triton.jit
def _three(x, matrix, f, STRIDE: tl.constexpr, F: tl.constexpr):
    """Tiles of 3F columns times a block (3F, F)."""
    result = _two(x[0], x[1], matrix, f, STRIDE, F)
    return result + _by(x[2], _block(matrix + 2 * F * STRIDE, f, f, STRIDE, F, F))


@kernel
def layerless_kernel(
    members, elements, moments,
    contraction, own,
    gain, shift, first, first_bias, second, second_bias,
    mixing, gains, shifts, linear, linear_bias, hidden, hidden_bias,
    last, ends, constant, energies,
    hidden_back, linear_back, mixing_back, second_back, first_back, contraction_back,
    Q: tl.constexpr,
    F: tl.constexpr,
    W: tl.constexpr,
    A: tl.constexpr,
    BQ: tl.constexpr,
    FP: tl.constexpr,
    WP: tl.constexpr,
    ACTIVATION: tl.constexpr,
    READ: tl.constexpr,
    HIDDEN: tl.constexpr,
    GATED: tl.constexpr,
    USE_PDL: tl.constexpr = False,
):  # fmt: skip
    """Energies from moments, and the gradient by these.

    Args:
        members, elements: tiles (tiles, A) of one element, as in `contraction_kernel`.
        moments: M (N, 9, Q), over which its gradient is written.
        contraction, own: W (E, Q, 3, F), and (E, F), added to the scalar component.
        gain, shift: (F,), of the gate's layer norm.
        first, second: W1 (F, 2F) and W2 (2F, 3F), with their biases.
        mixing: (3, F, F).
        gains, shifts: (3F,), of the readout's layer norm.
        linear, hidden: W0 (3F, F) and Wh (F, W), with their biases.
        last, ends, constant, energies: as in `energy_kernel`.
        hidden_back to contraction_back: transposes, for the way back.
        ACTIVATION, READ, HIDDEN: activations of the gate, of z0 and of h.
    """
    pdl_wait(USE_PDL)
    atom, present, element = tile_of_element(members, elements, tl.program_id(0), A)
    f, w = tl.arange(0, FP), tl.arange(0, WP)
    within = (f < F)[None, :]

    there = contraction + element * (Q * 3 * F)
    zero = tl.zeros([A, FP], moments.dtype.element_ty)
    x = (zero, zero, zero, zero, zero, zero, zero, zero, zero)
    for start in range(0, Q, BQ):
        q = start + tl.arange(0, BQ)
        scalar = _block(there, q, f, 3 * F, Q, F)
        vector = _block(there + F, q, f, 3 * F, Q, F)
        tensor = _block(there + 2 * F, q, f, 3 * F, Q, F)
        m = load(moments + atom * (9 * Q) + q[None, :], Q, present & (q < Q)[None, :])
        x = add(x, _by_parts(m, scalar, vector, tensor))
    itself = row_of(own + element * F, f, F)
    x = (x[0] + itself, x[1], x[2], x[3], x[4], x[5], x[6], x[7], x[8])

    squares, deviation = standardized_values(dot(x, x), within, F)
    inputs = squares * row_of(gain, f, F) + row_of(shift, f, F)
    a = _by(inputs, _block(first, f, f, 2 * F, F, F)) + row_of(first_bias, f, F)
    b = _by(inputs, _block(first + F, f, f, 2 * F, F, F)) + row_of(first_bias + F, f, F)
    c, d = activation(a, ACTIVATION), activation(b, ACTIVATION)
    zs = _two(c, d, second, f, 3 * F, F) + row_of(second_bias, f, F)
    zv = _two(c, d, second + F, f, 3 * F, F) + row_of(second_bias + F, f, F)
    zt = _two(c, d, second + 2 * F, f, 3 * F, F) + row_of(second_bias + 2 * F, f, F)

    s, v, t = activation(zs, ACTIVATION), activation(zv, ACTIVATION), activation(zt, ACTIVATION)
    y = _mixed(x, mixing, f, F)
    ys, yv, yt = dots(y, y)
    invariants, inverse = standardized_parts((s * s * ys, v * v * yv, t * t * yt), within, F)
    by_gains, by_shifts = rows_of_parts(gains, f, F), rows_of_parts(shifts, f, F)
    i = invariants[0] * by_gains[0] + by_shifts[0]
    j = invariants[1] * by_gains[1] + by_shifts[1]
    k = invariants[2] * by_gains[2] + by_shifts[2]
    z = _three((i, j, k), linear, f, F, F) + row_of(linear_bias, f, F)
    h = _by(activation(z, READ), _block(hidden, f, w, W, F, W)) + row_of(hidden_bias, w, W)
    energy, g = energies_of(h, last, ends, w, W, HIDDEN, GATED)
    energy += tl.load(constant + atom, mask=present, other=0.0)
    tl.store(energies + atom, energy, mask=present)

    g = _by(g, _block(hidden_back, w, f, F, W, F)) * slope(z, READ)
    i = _by(g, _block(linear_back, f, f, 3 * F, F, F)) * by_gains[0]
    j = _by(g, _block(linear_back + F, f, f, 3 * F, F, F)) * by_gains[1]
    k = _by(g, _block(linear_back + 2 * F, f, f, 3 * F, F, F)) * by_gains[2]
    i, j, k = standardized_parts_adjoint((i, j, k), invariants, inverse, within, F)
    i, j, k = 2.0 * s * i, 2.0 * v * j, 2.0 * t * k
    dz = (
        i * ys * slope(zs, ACTIVATION),
        j * yv * slope(zv, ACTIVATION),
        k * yt * slope(zt, ACTIVATION),
    )
    y = _mixed(weigh(y, i * s, j * v, k * t), mixing_back, f, F)

    a = _three(dz, second_back, f, 2 * F, F) * slope(a, ACTIVATION)
    b = _three(dz, second_back + F, f, 2 * F, F) * slope(b, ACTIVATION)
    g = _two(a, b, first_back, f, F, F) * row_of(gain, f, F)
    g = standardized_values_adjoint(g, squares, deviation, within, F)
    y = add(y, scale(x, 2.0 * g))

    there = contraction_back + element * (Q * 3 * F)
    # All threads of this program must have loaded what is written over now.
    tl.debug_barrier()
    for start in range(0, Q, BQ):
        q = start + tl.arange(0, BQ)
        scalar = _block(there, f, q, Q, F, Q)
        vector = _block(there + F * Q, f, q, Q, F, Q)
        tensor = _block(there + 2 * F * Q, f, q, Q, F, Q)
        m = _by_parts(y, scalar, vector, tensor)
        store(moments + atom * (9 * Q) + q[None, :], Q, m, present & (q < Q)[None, :])


def compute_layerless(bound: LaunchPlan, result: NetworkResult) -> None:
    """Energies of atoms from their moments, whose gradient is written over them."""
    model, tiles, s = bound.model, bound.tiles, bound.shapes.layerless
    norm, (first, second) = model.embedding.norm, model.gate
    linear, (hidden,) = model.linear, model.head.hidden
    read, after = activations_of(model)
    functions = bound.elements * model.functions
    layerless_kernel[(len(tiles.elements),)](
        tiles.members,
        tiles.elements,
        bound.buffers.moments,
        bound.contraction.whole,
        bound.own,
        norm.weight,
        norm.bias,
        first.weight.whole,
        first.bias,
        second.weight.whole,
        second.bias,
        model.mixing.weights.whole,
        model.norm.weight,
        model.norm.bias,
        linear.weight.whole,
        linear.bias,
        hidden.weight.whole,
        hidden.bias,
        model.head.last,
        model.head.ends,
        result.constant,
        result.energies,
        hidden.transposed.whole,
        linear.transposed.whole,
        model.mixing.transposed.whole,
        second.transposed.whole,
        first.transposed.whole,
        bound.contraction_transposed.whole,
        Q=functions,
        F=bound.channels,
        W=len(hidden.bias),
        A=s.atoms,
        BQ=min(s.step, padded(functions)),
        FP=padded(bound.channels),
        WP=padded(len(hidden.bias)),
        ACTIVATION=model.config.activation,
        READ=read,
        HIDDEN=after,
        GATED=model.config.readout.kind == "gated",
        num_warps=s.warps,
        maxnreg=s.registers,
        **bound.launch,
    )
