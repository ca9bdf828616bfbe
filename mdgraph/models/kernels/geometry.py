"""Triton kernels of radial functions and moments of atoms, with their derivatives.

Nothing of a slot is written but its gradient. With TANGENT a kernel writes the derivatives of its
results along a change of the vectors instead.

Distances and directions are taken in the type of the vectors, functions of them in the network's
own. Directions are counted with SIGN.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from mdgraph.gpu.launch import launching_on
from mdgraph.gpu.triton_jit import kernel
from mdgraph.models.kernels.algebra import load, store
from mdgraph.neighbors.pairs import Pairs

_PI = tl.constexpr(3.141592653589793)
ROOT2 = tl.constexpr(1.4142135623730951)
ROOT3 = tl.constexpr(1.7320508075688772)
SIXTH = tl.constexpr(0.40824829046386302)  # 1 / sqrt 6
_HALF = tl.constexpr(0.70710678118654752)  # 1 / sqrt 2


@triton.jit
def cutoff_window(d, LOWER: tl.constexpr, UPPER: tl.constexpr):
    """c(d) and c'(d) of `cosine_cutoff`."""
    if LOWER > 0.0:
        phase = (2.0 * _PI) * ((d - LOWER) / (UPPER - LOWER) + 0.5)
        slope = tl.sin(phase) * (-_PI / (UPPER - LOWER))
        inside = (d > LOWER) & (d < UPPER)
    else:
        phase = _PI * (d / UPPER)
        slope = tl.sin(phase) * (-0.5 * _PI / UPPER)
        inside = d < UPPER
    value = 0.5 * (tl.cos(phase) + 1.0)
    return tl.where(inside, value, 0.0), tl.where(inside, slope, 0.0)


@triton.jit
def unit(vectors, slot):
    """Distance and unit vector of a slot."""
    x = tl.load(vectors + 3 * slot)
    y = tl.load(vectors + 3 * slot + 1)
    z = tl.load(vectors + 3 * slot + 2)
    d = tl.sqrt(x * x + y * y + z * z)
    return d, x / d, y / d, z / d


@triton.jit
def changed(change, slot, d, x, y, z):
    """How both change along a change of the vector."""
    a = tl.load(change + 3 * slot)
    b = tl.load(change + 3 * slot + 1)
    c = tl.load(change + 3 * slot + 2)
    along = a * x + b * y + c * z
    return along, (a - along * x) / d, (b - along * y) / d, (c - along * z) / d


@triton.jit
def radial_functions(d, means, betas, k, K: tl.constexpr, LOWER: tl.constexpr, UPPER: tl.constexpr):
    """phi_k(d) and phi_k'(d) of `ExponentialNormal`; 0 beyond the last."""
    inside = k < K
    mean = tl.load(means + k, mask=inside, other=0.0)
    beta = tl.load(betas + k, mask=inside, other=0.0)
    window, fall = cutoff_window(d, 0.0, UPPER)
    decay = tl.exp((LOWER - d) * (5.0 / (UPPER - LOWER)))
    # The difference is taken before the cast: it is small where the function is steep.
    offset = (decay - mean.to(decay.dtype)).to(mean.dtype)
    steep = (decay * (10.0 / (UPPER - LOWER))).to(mean.dtype) * beta * offset
    bell = tl.where(inside, tl.exp(-beta * (offset * offset)), 0.0)
    value = bell * window.to(mean.dtype)
    return value, bell * fall.to(mean.dtype) + value * steep


@triton.jit
def windowed(d, means, betas, k, K: tl.constexpr, LOWER: tl.constexpr, UPPER: tl.constexpr):
    """C [phi ; 1] and its derivative by the distance."""
    phi, change = radial_functions(d, means, betas, k, K, LOWER, UPPER)
    phi = tl.where(k == K, 1.0, phi)
    window, fall = cutoff_window(d, LOWER, UPPER)
    return window.to(phi.dtype) * phi, fall.to(phi.dtype) * phi + window.to(phi.dtype) * change


@triton.jit
def angular(x, y, z, SIGN: tl.constexpr):
    """Components of 1 + [r]x + (r r^T - 1/3) of a unit vector, but for the first, sqrt 3."""
    # A name would hold it in float32.
    VECTOR: tl.constexpr = ROOT2 * SIGN
    last = SIXTH * (2.0 * z * z - x * x - y * y)
    square = _HALF * (x * x - y * y)
    return (
        VECTOR * x,
        VECTOR * y,
        VECTOR * z,
        ROOT2 * x * y,
        ROOT2 * y * z,
        last,
        ROOT2 * x * z,
        square,
    )


@triton.jit
def angular_change(x, y, z, a, b, c, SIGN: tl.constexpr):
    """How they change along a change (a, b, c) of the unit vector."""
    VECTOR: tl.constexpr = ROOT2 * SIGN
    last = (2.0 * SIXTH) * (2.0 * z * c - x * a - y * b)
    square = ROOT2 * (x * a - y * b)
    xy = ROOT2 * (x * b + y * a)
    yz = ROOT2 * (y * c + z * b)
    return VECTOR * a, VECTOR * b, VECTOR * c, xy, yz, last, ROOT2 * (x * c + z * a), square


@kernel
def pairs_kernel(
    vectors,
    change,
    one,
    other,
    valid,
    means,
    betas,
    radial,
    window,
    LOWER: tl.constexpr,
    UPPER: tl.constexpr,
    TANGENT: tl.constexpr,
    K: tl.constexpr,
    BK: tl.constexpr,
):
    """Radial functions and window of a pair.

    Args:
        vectors, change: (N slots, 3) A; the latter where TANGENT.
        one, other, valid: (P,), see `Undirected`.
        means, betas: (K,), of the basis.
        radial, window: (P, K), (P,), written; 0 on padding.
    """
    pair = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, BK)
    first = tl.load(one + pair).to(tl.int64)
    d, x, y, z = unit(vectors, first)
    reached = tl.where(tl.load(valid + pair) != 0, d, 2.0 * UPPER)
    value, slope = radial_functions(reached, means, betas, k, K, LOWER, UPPER)
    c, fall = cutoff_window(reached, LOWER, UPPER)
    if TANGENT:
        last = tl.load(other + pair).to(tl.int64)
        e, u, v, w = unit(vectors, last)
        along, _, _, _ = changed(change, first, d, x, y, z)
        back, _, _, _ = changed(change, last, e, u, v, w)
        # The distance is the mean of those of both slots.
        along = 0.5 * (along + back)
        value = slope * along.to(slope.dtype)
        c = fall * along
    tl.store(radial + pair * K + k, value, mask=k < K)
    tl.store(window + pair, c.to(window.dtype.element_ty))


@kernel
def moments_kernel(
    vectors,
    change,
    index,
    count,
    kinds,
    means,
    betas,
    result,
    slots,
    SIGN: tl.constexpr,
    E: tl.constexpr,
    LOWER: tl.constexpr,
    UPPER: tl.constexpr,
    TANGENT: tl.constexpr,
    K: tl.constexpr,
    BK: tl.constexpr,
):
    """M[i, c, s, k] = sum over neighbors of element s of Y_c(r) c(d) [phi_k(d) ; 1].

    A program takes one atom and one element, and its slots one after the other.

    Args:
        vectors, change, means, betas: as above.
        index, count: (N, slots), (N,), of the list.
        kinds: (N,), element of each atom among E.
        result: (N, 9, E, K + 1), written.
    """
    atom = tl.program_id(0).to(tl.int64)
    k = tl.arange(0, BK)
    zero = tl.zeros([BK], dtype=result.dtype.element_ty)
    m0, m1, m2, m3, m4, m5, m6, m7, m8 = zero, zero, zero, zero, zero, zero, zero, zero, zero
    for place in range(tl.load(count + atom)):
        slot = atom * slots + place
        if tl.load(kinds + tl.load(index + slot).to(tl.int64)) == tl.program_id(1):
            d, x, y, z = unit(vectors, slot)
            value, slope = windowed(d, means, betas, k, K, LOWER, UPPER)
            xr, yr, zr = x.to(value.dtype), y.to(value.dtype), z.to(value.dtype)
            y1, y2, y3, y4, y5, y6, y7, y8 = angular(xr, yr, zr, SIGN)
            factor = value
            if TANGENT:
                along, a, b, c = changed(change, slot, d, x, y, z)
                factor = slope * along.to(value.dtype)
                ar, br, cr = a.to(value.dtype), b.to(value.dtype), c.to(value.dtype)
                t1, t2, t3, t4, t5, t6, t7, t8 = angular_change(xr, yr, zr, ar, br, cr, SIGN)
                m1 += t1 * value
                m2 += t2 * value
                m3 += t3 * value
                m4 += t4 * value
                m5 += t5 * value
                m6 += t6 * value
                m7 += t7 * value
                m8 += t8 * value
            m0 += ROOT3 * factor
            m1 += y1 * factor
            m2 += y2 * factor
            m3 += y3 * factor
            m4 += y4 * factor
            m5 += y5 * factor
            m6 += y6 * factor
            m7 += y7 * factor
            m8 += y8 * factor
    out = result + (atom * 9 * E + tl.program_id(1)) * (K + 1) + k
    store(out, E * (K + 1), (m0, m1, m2, m3, m4, m5, m6, m7, m8), k <= K)


@kernel
def vectors_adjoint_kernel(
    vectors,
    index,
    count,
    number,
    kinds,
    means,
    betas,
    for_radial,
    for_window,
    for_moments,
    result,
    slots,
    SIGN: tl.constexpr,
    E: tl.constexpr,
    LOWER: tl.constexpr,
    UPPER: tl.constexpr,
    K: tl.constexpr,
    BK: tl.constexpr,
):
    """From the gradients of what the two kernels above write to those of the vectors.

    A program takes one slot.

    Args:
        vectors, index, count, kinds, means, betas: as above.
        number: (N, slots), pair of each slot.
        for_radial, for_window, for_moments: (P, K), (P,), (N, 9, E, K + 1), gradients.
        result: (N slots, 3), written; 0 on empty slots.
    """
    slot = tl.program_id(0).to(tl.int64)
    atom = slot // slots
    k = tl.arange(0, BK)
    used = slot - atom * slots < tl.load(count + atom)
    d, x, y, z = unit(vectors, slot)
    g = tl.load(for_radial + tl.load(number + slot).to(tl.int64) * K + k, mask=k < K, other=0.0)
    _, steep = radial_functions(d, means, betas, k, K, LOWER, UPPER)
    _, fall = cutoff_window(d, LOWER, UPPER)
    along = tl.sum((g * steep).to(d.dtype), 0)
    along += fall * tl.load(for_window + tl.load(number + slot).to(tl.int64))
    value, slope = windowed(d, means, betas, k, K, LOWER, UPPER)
    element = tl.load(kinds + tl.load(index + slot).to(tl.int64)).to(tl.int64)
    row = for_moments + (atom * 9 * E + element) * (K + 1) + k
    g0, g1, g2, g3, g4, g5, g6, g7, g8 = load(row, E * (K + 1), (k <= K) & used)
    y1, y2, y3, y4, y5, y6, y7, y8 = angular(x.to(g.dtype), y.to(g.dtype), z.to(g.dtype), SIGN)
    total = ROOT3 * g0 + y1 * g1 + y2 * g2 + y3 * g3 + y4 * g4
    total += y5 * g5 + y6 * g6 + y7 * g7 + y8 * g8
    # The distance of a pair is the mean of those of both slots.
    along = 0.5 * along + tl.sum((slope * total).to(d.dtype), 0)
    h1 = (SIGN * ROOT2) * tl.sum((value * g1).to(d.dtype), 0)
    h2 = (SIGN * ROOT2) * tl.sum((value * g2).to(d.dtype), 0)
    h3 = (SIGN * ROOT2) * tl.sum((value * g3).to(d.dtype), 0)
    h4 = ROOT2 * tl.sum((value * g4).to(d.dtype), 0)
    h5 = ROOT2 * tl.sum((value * g5).to(d.dtype), 0)
    h6 = (2.0 * SIXTH) * tl.sum((value * g6).to(d.dtype), 0)
    h7 = ROOT2 * tl.sum((value * g7).to(d.dtype), 0)
    h8 = ROOT2 * tl.sum((value * g8).to(d.dtype), 0)
    a = h1 + y * h4 + z * h7 - x * h6 + x * h8
    b = h2 + x * h4 + z * h5 - y * h6 - y * h8
    c = h3 + y * h5 + x * h7 + 2.0 * z * h6
    along -= (a * x + b * y + c * z) / d
    out = result + 3 * slot
    tl.store(out, tl.where(used, along * x + a / d, 0.0))
    tl.store(out + 1, tl.where(used, along * y + b / d, 0.0))
    tl.store(out + 2, tl.where(used, along * z + c / d, 0.0))


@dataclass(frozen=True)
class EdgeFeatureKernels:
    """Arguments of the kernels besides pair vectors.

    Attributes:
        pairs: the neighbor list.
        kinds: (N,) int64, index of each atom's element.
        elements: number of elements.
        means, betas: (K,), of the basis, in the dtype of the network.
        lower, upper: A, cutoffs.
        sign: factor of the unit vectors, 1 or -1.
    """

    pairs: Pairs
    kinds: Tensor
    elements: int
    means: Tensor
    betas: Tensor
    lower: float
    upper: float
    sign: float

    def values(self, vectors: Tensor, change: Tensor | None = None) -> tuple[Tensor, ...]:
        """Radial functions (P, K), window (P,) and moments (N, 9, E, K + 1).

        With a change of the vectors their derivatives along it.
        """
        vectors = vectors.contiguous()
        along = vectors if change is None else change.contiguous()
        undirected, number = self.pairs.undirected, len(self.means)
        assert undirected is not None
        radial = self.means.new_empty(len(undirected.one), number)
        window = self.means.new_empty(len(undirected.one))
        moments = self.means.new_empty(len(vectors), 9, self.elements, number + 1)
        with launching_on(vectors.device):
            pairs_kernel[(len(undirected.one),)](
                vectors,
                along,
                undirected.one,
                undirected.other,
                undirected.valid,
                self.means,
                self.betas,
                radial,
                window,
                **self._options(),
                TANGENT=change is not None,
                num_warps=1,
            )
            moments_kernel[(len(vectors), self.elements)](
                vectors,
                along,
                self.pairs.index,
                self.pairs.count,
                self.kinds,
                self.means,
                self.betas,
                moments,
                vectors.shape[1],
                SIGN=self.sign,
                E=self.elements,
                **self._options(),
                TANGENT=change is not None,
                num_warps=1,
            )
        return radial, window, moments

    def adjoint(self, vectors: Tensor, gradients: tuple[Tensor, ...]) -> Tensor:
        """From the gradients of the three to those of the vectors."""
        vectors = vectors.contiguous()
        undirected = self.pairs.undirected
        assert undirected is not None
        result = torch.empty_like(vectors)
        with launching_on(vectors.device):
            vectors_adjoint_kernel[(vectors.shape[0] * vectors.shape[1],)](
                vectors,
                self.pairs.index,
                self.pairs.count,
                undirected.number,
                self.kinds,
                self.means,
                self.betas,
                *(gradient.contiguous() for gradient in gradients),
                result,
                vectors.shape[1],
                SIGN=self.sign,
                E=self.elements,
                **self._options(),
                num_warps=1,
            )
        return result

    def _options(self) -> dict[str, float]:
        number = len(self.means)
        return {
            "LOWER": self.lower,
            "UPPER": self.upper,
            "K": number,
            "BK": triton.next_power_of_2(number + 1),
        }
