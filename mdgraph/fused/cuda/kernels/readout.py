"""Kernels of the readout on single atoms: normalised invariants, energy, and their adjoint.

t = (|I|^2, |A|^2, |S|^2);  z0 = LN(t) W0 + b0;  then a perceptron, or the product of one
with the sigmoid of another. The gradient of the energy starts here, with 1 an atom.
"""

import triton
import triton.language as tl

from mdgraph.fused.cuda.kernels.activations import activation, sigmoid, slope
from mdgraph.fused.cuda.kernels.components import dots, load, store, weigh
from mdgraph.fused.cuda.kernels.normalization import row_sums
from mdgraph.fused.cuda.kernels.succession import wait_for_previous


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
    features, norm, shift, result, F: tl.constexpr, FP: tl.constexpr, EARLY: tl.constexpr = False
):
    """LN(t), one atom a program.

    Args:
        features: X (N, 9, F).
        norm, shift: (3F,), weight and bias of the normalisation.
        result: (N, 3F), written.
    """
    wait_for_previous(EARLY)
    atom = (tl.program_id(0) + tl.arange(0, 1)).to(tl.int64)[:, None]
    f = tl.arange(0, FP)[None, :]
    have = f < F
    x = load(features + atom * (9 * F) + f, F, have)
    s, v, t = dots(x, x)
    mean, inverse = _moments(s, v, t, have, F)
    out = result + atom * (3 * F) + f
    n = norm + f
    b = shift + f
    s = (s - mean) * inverse * tl.load(n, mask=have, other=0.0)
    tl.store(out, s + tl.load(b, mask=have, other=0.0), mask=have)
    v = (v - mean) * inverse * tl.load(n + F, mask=have, other=0.0)
    tl.store(out + F, v + tl.load(b + F, mask=have, other=0.0), mask=have)
    t = (t - mean) * inverse * tl.load(n + 2 * F, mask=have, other=0.0)
    tl.store(out + 2 * F, t + tl.load(b + 2 * F, mask=have, other=0.0), mask=have)


@triton.jit
def energy_kernel(
    inputs,
    last,
    ends,
    constant,
    energies,
    W: tl.constexpr,
    WP: tl.constexpr,
    ACTIVATION: tl.constexpr,
    GATED: tl.constexpr,
    EARLY: tl.constexpr = False,
):
    """Energy of an atom from the last hidden layer, and its gradient; one atom a program.

    Args:
        inputs: z (N, W), before its activation; its gradient is written over it.
        last: (2, W), weights of the value and of the gate.
        ends: (2,), their biases.
        constant: (N,) float64, added.
        energies: (N,) float64, written.
    """
    wait_for_previous(EARLY)
    atom = tl.program_id(0).to(tl.int64)
    w = tl.arange(0, WP)
    have = w < W
    z = tl.load(inputs + atom * W + w, mask=have, other=0.0)
    x = tl.where(have, activation(z, ACTIVATION), 0.0)
    row = tl.load(last + w, mask=have, other=0.0)
    value = tl.sum(x * row, 0) + tl.load(ends)
    energy = value.to(tl.float64)
    if GATED:
        other = tl.load(last + W + w, mask=have, other=0.0)
        gate = sigmoid(tl.sum(x * other, 0) + tl.load(ends + 1))
        energy *= gate
        row = gate * row + value * gate * (1.0 - gate) * other
    tl.store(energies + atom, energy + tl.load(constant + atom))
    g = row * slope(z, ACTIVATION)
    # All threads of this program must have loaded what is written over now.
    tl.debug_barrier()
    tl.store(inputs + atom * W + w, g, mask=have)


@triton.jit
def invariants_adjoint_kernel(
    gradient, features, norm, F: tl.constexpr, FP: tl.constexpr, EARLY: tl.constexpr = False
):
    """Gradient of X from that of LN(t), one atom a program.

    Args:
        gradient: (N, 3F).
        features, norm: as in `invariants_kernel`; dX is written over X.
    """
    wait_for_previous(EARLY)
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
