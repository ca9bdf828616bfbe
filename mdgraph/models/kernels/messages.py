"""Triton kernels of sums over neighbors: messages, pair products, forces and virials.

A CUDA device would else do them in pieces. A program of a message owns one atom and a strip of
channels and walks the atom's slots in order; forces and their adjoint are the adjoint of each
other, so there is every derivative. Results repeat bit for bit and do not depend on the capacity;
empty slots are never read. Importing this module needs Triton, which comes with torch's CUDA
builds.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from mdgraph.gpu.launch import launching_on
from mdgraph.gpu.vectors import added, difference, less_outer, load_vector, store_vector
from mdgraph.neighbors.pairs import Pairs, Undirected

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

_BLOCK = 32
"""Atoms that a program takes, or slots."""


@triton.jit
def _message_kernel(
    weights,
    row,
    features,
    index,
    count,
    result,
    slots,
    channels,
    strip: tl.constexpr,
    ROWS: tl.constexpr,
):
    atom = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * strip + tl.arange(0, strip)
    inside = channel < channels
    zero = tl.zeros([strip], dtype=result.dtype.element_ty)
    m0, m1, m2, m3, m4, m5, m6, m7, m8 = zero, zero, zero, zero, zero, zero, zero, zero, zero
    for slot in range(tl.load(count + atom)):
        edge = atom * slots + slot
        neighbor = tl.load(index + edge).to(tl.int64)
        if ROWS:
            edge = tl.load(row + edge).to(tl.int64)
        w = weights + edge * 3 * channels + channel
        y = features + neighbor * 9 * channels + channel
        scalar = tl.load(w, mask=inside)
        vector = tl.load(w + channels, mask=inside)
        tensor = tl.load(w + 2 * channels, mask=inside)
        m0 += scalar * tl.load(y, mask=inside)
        m1 += vector * tl.load(y + channels, mask=inside)
        m2 += vector * tl.load(y + 2 * channels, mask=inside)
        m3 += vector * tl.load(y + 3 * channels, mask=inside)
        m4 += tensor * tl.load(y + 4 * channels, mask=inside)
        m5 += tensor * tl.load(y + 5 * channels, mask=inside)
        m6 += tensor * tl.load(y + 6 * channels, mask=inside)
        m7 += tensor * tl.load(y + 7 * channels, mask=inside)
        m8 += tensor * tl.load(y + 8 * channels, mask=inside)
    out = result + atom * 9 * channels + channel
    tl.store(out, m0, mask=inside)
    tl.store(out + channels, m1, mask=inside)
    tl.store(out + 2 * channels, m2, mask=inside)
    tl.store(out + 3 * channels, m3, mask=inside)
    tl.store(out + 4 * channels, m4, mask=inside)
    tl.store(out + 5 * channels, m5, mask=inside)
    tl.store(out + 6 * channels, m6, mask=inside)
    tl.store(out + 7 * channels, m7, mask=inside)
    tl.store(out + 8 * channels, m8, mask=inside)


@triton.jit
def _pair_product_kernel(left, right, index, count, result, slots, channels, strip: tl.constexpr):
    atom = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * strip + tl.arange(0, strip)
    inside = channel < channels
    a = left + atom * 9 * channels + channel
    a0 = tl.load(a, mask=inside)
    a1 = tl.load(a + channels, mask=inside)
    a2 = tl.load(a + 2 * channels, mask=inside)
    a3 = tl.load(a + 3 * channels, mask=inside)
    a4 = tl.load(a + 4 * channels, mask=inside)
    a5 = tl.load(a + 5 * channels, mask=inside)
    a6 = tl.load(a + 6 * channels, mask=inside)
    a7 = tl.load(a + 7 * channels, mask=inside)
    a8 = tl.load(a + 8 * channels, mask=inside)
    used = tl.load(count + atom)
    for slot in range(used):
        edge = atom * slots + slot
        b = right + tl.load(index + edge).to(tl.int64) * 9 * channels + channel
        vector = a1 * tl.load(b + channels, mask=inside)
        vector += a2 * tl.load(b + 2 * channels, mask=inside)
        vector += a3 * tl.load(b + 3 * channels, mask=inside)
        tensor = a4 * tl.load(b + 4 * channels, mask=inside)
        tensor += a5 * tl.load(b + 5 * channels, mask=inside)
        tensor += a6 * tl.load(b + 6 * channels, mask=inside)
        tensor += a7 * tl.load(b + 7 * channels, mask=inside)
        tensor += a8 * tl.load(b + 8 * channels, mask=inside)
        out = result + edge * 3 * channels + channel
        tl.store(out, a0 * tl.load(b, mask=inside), mask=inside)
        tl.store(out + channels, vector, mask=inside)
        tl.store(out + 2 * channels, tensor, mask=inside)
    zero = tl.zeros([strip], dtype=result.dtype.element_ty)
    for slot in range(used, slots):
        out = result + (atom * slots + slot) * 3 * channels + channel
        tl.store(out, zero, mask=inside)
        tl.store(out + channels, zero, mask=inside)
        tl.store(out + 2 * channels, zero, mask=inside)


@triton.jit
def _undirected_product_kernel(
    left, right, index, one, other, valid, result, channels, strip: tl.constexpr
):
    pair = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * strip + tl.arange(0, strip)
    used = tl.load(valid + pair) != 0
    inside = (channel < channels) & used
    i = tl.load(index + tl.load(other + pair)).to(tl.int64) * 9 * channels + channel
    j = tl.load(index + tl.load(one + pair)).to(tl.int64) * 9 * channels + channel
    out = result + pair * 3 * channels + channel
    for part in tl.static_range(3):
        total = tl.zeros([strip], dtype=result.dtype.element_ty)
        for number in tl.static_range(2 * part + 1):
            component = part * part + number
            ai = tl.load(left + i + component * channels, mask=inside, other=0.0)
            aj = tl.load(left + j + component * channels, mask=inside, other=0.0)
            bi = tl.load(right + i + component * channels, mask=inside, other=0.0)
            bj = tl.load(right + j + component * channels, mask=inside, other=0.0)
            total += ai * bj + aj * bi
        tl.store(out + part * channels, total, mask=channel < channels)


def message(
    weights: Tensor, features: Tensor, index: Tensor, count: Tensor, rows: Tensor | None = None
) -> Tensor:
    """sum_k g_ik * Y_j(i,k) from Y (N, 9, F) to (N, 9, F).

    Args:
        weights: g (N, K, 3, F), or (P, 3, F) with the row of each slot.
        features: Y.
        index: (N, K), neighbors.
        count: (N,), slots in use.
        rows: (N, K), or None.
    """
    weights, features = weights.contiguous(), features.contiguous()
    result = torch.empty_like(features)
    atoms, slots = index.shape
    channels = features.shape[2]
    strip = min(128, triton.next_power_of_2(channels))
    grid = (atoms, triton.cdiv(channels, strip))
    row = index if rows is None else rows.contiguous()
    with launching_on(features.device):
        _message_kernel[grid](
            weights,
            row,
            features,
            index,
            count,
            result,
            slots,
            channels,
            strip,
            rows is not None,
            num_warps=2,
        )
    return result


def undirected_product(
    left: Tensor, right: Tensor, index: Tensor, undirected: Undirected
) -> Tensor:
    """<A_i, B_j> + <A_j, B_i> part by part from A, B (N, 9, F) to (P, 3, F); padding gives 0."""
    left, right = left.contiguous(), right.contiguous()
    channels = left.shape[2]
    pairs = len(undirected.one)
    result = left.new_empty(pairs, 3, channels)
    strip = min(128, triton.next_power_of_2(channels))
    grid = (pairs, triton.cdiv(channels, strip))
    with launching_on(left.device):
        _undirected_product_kernel[grid](
            left,
            right,
            index,
            undirected.one,
            undirected.other,
            undirected.valid,
            result,
            channels,
            strip,
            num_warps=2,
        )
    return result


def pair_product(left: Tensor, right: Tensor, index: Tensor, count: Tensor) -> Tensor:
    """<A_i, B_j(i,k)> part by part from A, B (N, 9, F) to (N, K, 3, F); empty slots give 0."""
    left, right = left.contiguous(), right.contiguous()
    atoms, _, channels = left.shape
    slots = index.shape[1]
    result = left.new_empty(atoms, slots, 3, channels)
    strip = min(128, triton.next_power_of_2(channels))
    grid = (atoms, triton.cdiv(channels, strip))
    with launching_on(left.device):
        _pair_product_kernel[grid](
            left, right, index, count, result, slots, channels, strip, num_warps=2
        )
    return result


@triton.jit
def _forces_kernel(
    gradient, vectors, reverse, count, forces, virials, atoms, slots, BLOCK: tl.constexpr
):
    atom = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = atom < atoms
    used = tl.load(count + atom, mask=inside, other=0)
    zero = tl.zeros([BLOCK], dtype=forces.dtype.element_ty)
    force = (zero, zero, zero)
    virial = (zero, zero, zero, zero, zero, zero, zero, zero, zero)
    for slot in range(tl.max(used, 0)):
        here = slot < used
        edge = atom * slots + slot
        back = tl.load(reverse + edge, mask=here, other=0).to(tl.int64)
        g = load_vector(gradient + 3 * edge, here)
        force = added(force, difference(g, load_vector(gradient + 3 * back, here)))
        virial = less_outer(virial, load_vector(vectors + 3 * edge, here), g)
    store_vector(forces + 3 * atom, force, inside)
    for element in tl.static_range(9):
        tl.store(virials + 9 * atom + element, virial[element], mask=inside)


@triton.jit
def _adjoint_kernel(
    for_forces, for_virials, vectors, index, count, result, edges, slots, BLOCK: tl.constexpr
):
    edge = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    atom = edge // slots
    inside = edge < edges
    used = inside & (edge - atom * slots < tl.load(count + atom, mask=inside, other=0))
    other = tl.load(index + edge, mask=used, other=0).to(tl.int64)
    x, y, z = load_vector(vectors + 3 * edge, used)
    for axis in tl.static_range(3):
        w = for_virials + 9 * atom + axis
        g = tl.load(for_forces + 3 * atom + axis, mask=used, other=0.0)
        g -= tl.load(for_forces + 3 * other + axis, mask=used, other=0.0)
        g -= x * tl.load(w, mask=used, other=0.0)
        g -= y * tl.load(w + 3, mask=used, other=0.0)
        g -= z * tl.load(w + 6, mask=used, other=0.0)
        tl.store(result + 3 * edge + axis, g, mask=inside)


def forces_and_virials(gradient: Tensor, vectors: Tensor, pairs: Pairs) -> tuple[Tensor, Tensor]:
    """Forces (N, 3) and virials (N, 3, 3) from gradients (N, K, 3); vectors are constants."""
    result: tuple[Tensor, Tensor] = _Forces.apply(gradient, vectors, pairs)
    return result


class _Forces(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gradient: Tensor, vectors: Tensor, pairs: Pairs) -> tuple[Tensor, Tensor]:
        ctx.frame = vectors, pairs
        gradient, vectors = gradient.contiguous(), vectors.contiguous()
        atoms, slots = pairs.index.shape
        forces, virials = gradient.new_empty(atoms, 3), gradient.new_empty(atoms, 3, 3)
        with launching_on(gradient.device):
            _forces_kernel[(triton.cdiv(atoms, _BLOCK),)](
                gradient,
                vectors,
                pairs.reverse,
                pairs.count,
                forces,
                virials,
                atoms,
                slots,
                _BLOCK,
                num_warps=1,
            )
        return forces, virials

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return _Adjoint.apply(*gradients, *ctx.frame), None, None


class _Adjoint(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, for_forces: Tensor, for_virials: Tensor, vectors: Tensor, pairs: Pairs
    ) -> Tensor:
        ctx.frame = vectors, pairs
        tensors = [tensor.contiguous() for tensor in (for_forces, for_virials, vectors)]
        result = torch.empty_like(tensors[2])
        edges = pairs.index.numel()
        with launching_on(result.device):
            _adjoint_kernel[(triton.cdiv(edges, _BLOCK),)](
                *tensors,
                pairs.index,
                pairs.count,
                result,
                edges,
                pairs.index.shape[1],
                _BLOCK,
                num_warps=1,
            )
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return *_Forces.apply(gradients[0], *ctx.frame), None, None
