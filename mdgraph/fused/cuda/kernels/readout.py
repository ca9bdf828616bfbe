"""Kernels of the readout, forward and backward: invariants, perceptrons, energy.

t = (|I|^2, |A|^2, |S|^2);  z0 = LN(t) W0 + b0;  then a perceptron, or the product of one
with the sigmoid of another. The gradient of the energy starts here, with 1 an atom.

Tensor cores cut sums off towards zero instead of rounding them. What the energy is summed
from takes its channels a few at a time, so that most of a sum is added outside of them.
"""

import triton
import triton.language as tl

from mdgraph.fused.cuda.kernels.activations import activation, sigmoid, slope
from mdgraph.fused.cuda.kernels.components import dots, load, store, weigh
from mdgraph.fused.cuda.kernels.normalization import row_sums


@triton.jit
def _moments(s, v, t, inside, F: tl.constexpr):
    """Mean and 1 / deviation (A, 1) of the three invariants (A, FP) of all channels."""
    number: tl.constexpr = 3 * F
    mean = (row_sums(s) + row_sums(v) + row_sums(t)) / number
    s = tl.where(inside, s - mean, 0.0)
    v = tl.where(inside, v - mean, 0.0)
    t = tl.where(inside, t - mean, 0.0)
    variance = (row_sums(s * s) + row_sums(v * v) + row_sums(t * t)) / number
    return mean, 1.0 / tl.sqrt(variance + 1e-5)


@triton.jit
def invariants_kernel(
    features,
    norm,
    shift,
    weight,
    bias,
    z0,
    atoms,
    F: tl.constexpr,
    FP: tl.constexpr,
    A: tl.constexpr,
    BK: tl.constexpr,
    BF: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """z0 = LN(t) W0 + b0.

    Args:
        features: X (N, 9, F).
        norm, shift: (3F,), weight and bias of the normalisation.
        weight, bias: (3F, F), (F,).
        z0: (N, F), written.
        atoms: N.
    """
    atom = (tl.program_id(0) * A + tl.arange(0, A)).to(tl.int64)
    present = (atom < atoms)[:, None]
    out = tl.program_id(1) * BF + tl.arange(0, BF)
    f = tl.arange(0, FP)
    have = (f < F)[None, :]
    row = features + atom[:, None] * (9 * F)
    whole = load(row + f[None, :], F, present & have)
    squares = dots(whole, whole)
    mean, inverse = _moments(squares[0], squares[1], squares[2], have, F)
    z = tl.zeros([A, BF], z0.dtype.element_ty)
    z += tl.load(bias + out, mask=out < F, other=0.0)[None, :]
    for first in range(0, F, BK):
        k = first + tl.arange(0, BK)
        inside = (k < F)[None, :]
        x = load(row + k[None, :], F, present & inside)
        s, v, t = dots(x, x)
        w = weight + k[:, None] * F + out[None, :]
        wanted = (k < F)[:, None] & (out < F)[None, :]
        n = norm + k[None, :]
        b = shift + k[None, :]
        s = (s - mean) * inverse * tl.load(n, inside, other=0.0) + tl.load(b, inside, other=0.0)
        w0 = tl.load(w, mask=wanted, other=0.0)
        z = tl.dot(s, w0, z, input_precision=PRECISION, out_dtype=z.dtype)
        v = (v - mean) * inverse * tl.load(n + F, inside, other=0.0)
        v += tl.load(b + F, inside, other=0.0)
        w1 = tl.load(w + F * F, mask=wanted, other=0.0)
        z = tl.dot(v, w1, z, input_precision=PRECISION, out_dtype=z.dtype)
        t = (t - mean) * inverse * tl.load(n + 2 * F, inside, other=0.0)
        t += tl.load(b + 2 * F, inside, other=0.0)
        w2 = tl.load(w + 2 * F * F, mask=wanted, other=0.0)
        z = tl.dot(t, w2, z, input_precision=PRECISION, out_dtype=z.dtype)
    tl.store(z0 + atom[:, None] * F + out[None, :], z, mask=present & (out < F)[None, :])


@triton.jit
def _times_transposed(
    rows,
    matrix,
    out,
    A: tl.constexpr,
    OUT: tl.constexpr,
    W: tl.constexpr,
    BK: tl.constexpr,
    PRECISION: tl.constexpr,
    kind: tl.constexpr,
):
    """Rows (A, W) in memory times the transpose of a matrix (OUT, W)."""
    g = tl.zeros([A, OUT], kind)
    for first in range(0, W, BK):
        k = first + tl.arange(0, BK)
        block = tl.load(matrix + out[None, :] * W + k[:, None])
        g = tl.dot(tl.load(rows + k[None, :]), block, g, input_precision=PRECISION, out_dtype=kind)
    return g


@triton.jit
def energy_kernel(
    z0,
    weights,
    biases,
    scratch,
    constant,
    energies,
    atoms,
    F: tl.constexpr,
    FP: tl.constexpr,
    LAYERS: tl.constexpr,
    W: tl.constexpr,
    A: tl.constexpr,
    BK: tl.constexpr,
    INPUT: tl.constexpr,
    ACTIVATION: tl.constexpr,
    GATED: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Energy of each atom, and its gradient by z0.

    A gate is a second perceptron beside the first, in the same matrices of blocks.

    Args:
        z0: (N, F); its gradient is written over it.
        weights: hidden layers (FP, W), (W, W), ..., then a row of the last for the value and
            one for the gate.
        biases: (LAYERS, W), then those two.
        scratch: (rows, LAYERS, W), rows rounded up to whole tiles.
        constant: (N,) float64, added.
        energies: (N,) float64, written.
        atoms: N.
        INPUT: activation of z0, or "none".
    """
    atom = (tl.program_id(0) * A + tl.arange(0, A)).to(tl.int64)
    present = (atom < atoms)[:, None]
    w = tl.arange(0, W)
    f = tl.arange(0, FP)
    inside = present & (f < F)[None, :]
    place = scratch + atom[:, None] * (LAYERS * W)
    row = z0 + atom[:, None] * F
    kind: tl.constexpr = z0.dtype.element_ty
    matrix = weights
    if LAYERS > 0:
        z = tl.zeros([A, W], kind) + tl.load(biases + w)[None, :]
        for first in range(0, FP, BK):
            k = first + tl.arange(0, BK)
            x = tl.load(row + k[None, :], mask=present & (k < F)[None, :], other=0.0)
            x = activation(x, INPUT)
            block = tl.load(matrix + k[:, None] * W + w[None, :])
            z = tl.dot(x, block, z, input_precision=PRECISION, out_dtype=kind)
        tl.store(place + w[None, :], z)
        matrix += FP * W
        for layer in tl.static_range(1, LAYERS):
            # What other threads stored is read here.
            tl.debug_barrier()
            z = tl.zeros([A, W], kind) + tl.load(biases + layer * W + w)[None, :]
            for first in range(0, W, BK):
                k = first + tl.arange(0, BK)
                x = tl.load(place + (layer - 1) * W + k[None, :])
                x = activation(x, ACTIVATION)
                block = tl.load(matrix + k[:, None] * W + w[None, :])
                z = tl.dot(x, block, z, input_precision=PRECISION, out_dtype=kind)
            tl.store(place + layer * W + w[None, :], z)
            matrix += W * W
        x = activation(z, ACTIVATION)
        value_row = tl.load(matrix + w)[None, :]
        gate_row = tl.load(matrix + W + w)[None, :]
    else:
        x = activation(tl.load(row + f[None, :], mask=inside, other=0.0), INPUT)
        value_row = tl.load(matrix + f)[None, :]
        gate_row = tl.load(matrix + FP + f)[None, :]
    value = tl.sum(x * value_row, 1) + tl.load(biases + LAYERS * W)
    energy = value.to(tl.float64)
    if GATED:
        gate = sigmoid(tl.sum(x * gate_row, 1) + tl.load(biases + LAYERS * W + 1))
        energy *= gate
        g = gate[:, None] * value_row + (value * gate * (1.0 - gate))[:, None] * gate_row
    else:
        g = tl.zeros_like(x) + value_row
    energy += tl.load(constant + atom, mask=atom < atoms, other=0.0)
    tl.store(energies + atom, energy, mask=atom < atoms)
    # What other threads stored is read below, and z0 written over.
    tl.debug_barrier()
    for number in tl.static_range(LAYERS):
        z = place + (LAYERS - 1 - number) * W
        g *= slope(tl.load(z + w[None, :]), ACTIVATION)
        tl.store(z + w[None, :], g)
        tl.debug_barrier()
        if number < LAYERS - 1:
            matrix -= W * W
            g = _times_transposed(z, matrix, w, A, W, W, BK, PRECISION, kind)
        else:
            g = _times_transposed(z, weights, f, A, FP, W, BK, PRECISION, kind)
    g *= slope(tl.load(row + f[None, :], mask=inside, other=0.0), INPUT)
    tl.debug_barrier()
    tl.store(row + f[None, :], g, mask=inside)


@triton.jit
def invariants_adjoint_kernel(
    gradient,
    features,
    norm,
    F: tl.constexpr,
    FP: tl.constexpr,
):
    """Gradient of X from that of LN(t), one atom a program.

    Args:
        gradient: (N, 3F).
        features, norm: as in `invariants_kernel`; dX is written over X.
    """
    atom = (tl.program_id(0) + tl.arange(0, 1)).to(tl.int64)[:, None]
    f = tl.arange(0, FP)[None, :]
    have = f < F
    g = gradient + atom * (3 * F) + f
    gs = tl.load(g, mask=have, other=0.0) * tl.load(norm + f, mask=have, other=0.0)
    gv = tl.load(g + F, mask=have, other=0.0) * tl.load(norm + F + f, mask=have, other=0.0)
    gt = tl.load(g + 2 * F, mask=have, other=0.0)
    gt *= tl.load(norm + 2 * F + f, mask=have, other=0.0)
    place = atom * (9 * F) + f
    x = load(features + place, F, have)
    s, v, t = dots(x, x)
    average, inverse = _moments(s, v, t, have, F)
    s = (s - average) * inverse
    v = (v - average) * inverse
    t = (t - average) * inverse
    number: tl.constexpr = 3 * F
    mean = (row_sums(gs) + row_sums(gv) + row_sums(gt)) / number
    along = (row_sums(gs * s) + row_sums(gv * v) + row_sums(gt * t)) / number
    twice = 2.0 * inverse
    s = twice * (gs - mean - s * along)
    v = twice * (gv - mean - v * along)
    t = twice * (gt - mean - t * along)
    # All threads of this program must have loaded what is written over now.
    tl.debug_barrier()
    store(features + place, F, weigh(x, s, v, t), have)
