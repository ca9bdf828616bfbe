"""Forces and virials from the gradients of pair vectors, and their adjoint, a Triton kernel each.

Each is the adjoint of the other, so there is every derivative. Slots are summed one after the
other, and results do not depend on the capacity. Importing this module needs Triton.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from mdgraph.gpu.launch import launching_on
from mdgraph.gpu.vectors import added, difference, less_outer, load_vector, store_vector
from mdgraph.neighbors.pairs import Pairs

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators


_BLOCK = 32
"""Atoms that a program takes, or slots."""


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
