"""Kernels of the embedding's gate: z1 = LN(|X|^2) W1 + b1, X0 = act(z2) mixing(X)."""

import triton
import triton.language as tl

from mdgraph.fused.cuda.kernels.activations import activation, slope
from mdgraph.fused.cuda.kernels.components import (
    add,
    dot,
    dots,
    load,
    normalized,
    normalized_adjoint,
    store,
    weigh,
)
from mdgraph.fused.cuda.kernels.normalization import standardized, standardized_adjoint
from mdgraph.fused.cuda.kernels.succession import wait_for_previous


@triton.jit
def gate_kernel(
    features,
    norm,
    shift,
    weight,
    bias,
    squares,
    z1,
    atoms,
    F: tl.constexpr,
    FP: tl.constexpr,
    A: tl.constexpr,
    BF: tl.constexpr,
    PRECISION: tl.constexpr,
    EARLY: tl.constexpr = False,
):
    """|X|^2 and z1 = LN(|X|^2) W1 + b1.

    Args:
        features: X (N, 9, F).
        norm, shift: (F,), weight and bias of the normalisation.
        weight, bias: (F, 2F), (2F,).
        squares: (N, F), written.
        z1: (N, 2F), written.
        atoms: N.
    """
    wait_for_previous(EARLY)
    atom = (tl.program_id(0) * A + tl.arange(0, A)).to(tl.int64)
    out = tl.program_id(1) * BF + tl.arange(0, BF)
    f = tl.arange(0, FP)
    present = (atom < atoms)[:, None]
    have = f < F
    place = atom[:, None] * (9 * F) + f[None, :]
    x = load(features + place, F, present & have[None, :])
    x = dot(x, x)
    if tl.program_id(1) == 0:
        tl.store(squares + atom[:, None] * F + f[None, :], x, mask=present & have[None, :])
    x, _ = standardized(x, have[None, :], F)
    x = x * tl.load(norm + f, mask=have, other=0.0) + tl.load(shift + f, mask=have, other=0.0)
    inside = have[:, None] & (out < 2 * F)[None, :]
    w = tl.load(weight + f[:, None] * (2 * F) + out[None, :], mask=inside, other=0.0)
    z = tl.dot(x, w, input_precision=PRECISION, out_dtype=x.dtype)
    z += tl.load(bias + out, mask=out < 2 * F, other=0.0)[None, :]
    place = atom[:, None] * (2 * F) + out[None, :]
    tl.store(z1 + place, z, mask=present & (out < 2 * F)[None, :])


@triton.jit
def gated_kernel(
    ungated,
    z2,
    result,
    atoms,
    NORMALIZED: tl.constexpr,
    F: tl.constexpr,
    A: tl.constexpr,
    BF: tl.constexpr,
    ACTIVATION: tl.constexpr,
    EARLY: tl.constexpr = False,
):
    """X0 = act(z2) ungated, normalised for the first layer where there is one.

    Args:
        ungated: (N, 9, F).
        z2: (N, 3F).
        result: X0 / n, or X0, (N, 9, F), written.
        atoms: N.
    """
    wait_for_previous(EARLY)
    atom = (tl.program_id(0) * A + tl.arange(0, A)).to(tl.int64)[:, None]
    f = (tl.program_id(1) * BF + tl.arange(0, BF))[None, :]
    inside = (atom < atoms) & (f < F)
    z = z2 + atom * (3 * F) + f
    s = activation(tl.load(z, mask=inside, other=0.0), ACTIVATION)
    v = activation(tl.load(z + F, mask=inside, other=0.0), ACTIVATION)
    t = activation(tl.load(z + 2 * F, mask=inside, other=0.0), ACTIVATION)
    place = atom * (9 * F) + f
    x = weigh(load(ungated + place, F, inside), s, v, t)
    if NORMALIZED:
        x, _ = normalized(x)
    store(result + place, F, x, inside)


@triton.jit
def gated_adjoint_kernel(
    gradient,
    residual,
    ungated,
    z2,
    atoms,
    NORMALIZED: tl.constexpr,
    F: tl.constexpr,
    A: tl.constexpr,
    BF: tl.constexpr,
    ACTIVATION: tl.constexpr,
    EARLY: tl.constexpr = False,
):
    """From the gradient of X0 to those of the ungated features and of z2.

    Args:
        gradient: (N, 9, F), of X0; where normalised, of X0 / n through the first mixing.
        residual: (N, 9, F), where normalised, of X0 / n through the residual.
        ungated, z2: as in `gated_kernel`; their gradients are written over them.
        atoms: N.
    """
    wait_for_previous(EARLY)
    atom = (tl.program_id(0) * A + tl.arange(0, A)).to(tl.int64)[:, None]
    f = (tl.program_id(1) * BF + tl.arange(0, BF))[None, :]
    inside = (atom < atoms) & (f < F)
    place = atom * (9 * F) + f
    z = z2 + atom * (3 * F) + f
    zs = tl.load(z, mask=inside, other=0.0)
    zv = tl.load(z + F, mask=inside, other=0.0)
    zt = tl.load(z + 2 * F, mask=inside, other=0.0)
    s = activation(zs, ACTIVATION)
    v = activation(zv, ACTIVATION)
    t = activation(zt, ACTIVATION)
    x = load(ungated + place, F, inside)
    g = load(gradient + place, F, inside)
    if NORMALIZED:
        y, inverse = normalized(weigh(x, s, v, t))
        g = normalized_adjoint(add(g, load(residual + place, F, inside)), y, inverse)
    ds, dv, dt = dots(g, x)
    # All threads of this program must have loaded what is written over now.
    tl.debug_barrier()
    tl.store(z, ds * slope(zs, ACTIVATION), mask=inside)
    tl.store(z + F, dv * slope(zv, ACTIVATION), mask=inside)
    tl.store(z + 2 * F, dt * slope(zt, ACTIVATION), mask=inside)
    store(ungated + place, F, weigh(g, s, v, t), inside)


@triton.jit
def squares_adjoint_kernel(
    gradient, squares, norm, F: tl.constexpr, FP: tl.constexpr, EARLY: tl.constexpr = False
):
    """Gradient of |X|^2 from that of LN(|X|^2), one atom a program.

    Args:
        gradient: (N, F).
        squares, norm: as in `gate_kernel`; the gradient is written over the squares.
    """
    wait_for_previous(EARLY)
    atom = (tl.program_id(0) + tl.arange(0, 1)).to(tl.int64)[:, None]
    f = tl.arange(0, FP)[None, :]
    have = f < F
    g = tl.load(gradient + atom * F + f, mask=have, other=0.0)
    g *= tl.load(norm + f, mask=have, other=0.0)
    x, inverse = standardized(tl.load(squares + atom * F + f, mask=have, other=0.0), have, F)
    g = standardized_adjoint(g, x, inverse, have, F)
    # All threads of this program must have loaded what is written over now.
    tl.debug_barrier()
    tl.store(squares + atom * F + f, g, mask=have)
