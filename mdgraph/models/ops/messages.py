"""Sums over neighbors, by slots or by undirected pairs, closed under differentiation.

Results repeat bit for bit and do not depend on the capacity of the list: edge quantities are
computed in blocks of fixed width, slots are summed one after the other, and a backward pass
gathers through `reverse` instead of adding atomically. None of this holds for a model that
`torch.jit.trace` recorded, in which torch chooses the order of the sums.

With one weight for each undirected pair, L = sum over pairs ij of g_ij (A_i B_j + A_j B_i), part
by part. Its derivatives by A and by B are messages, the one by g is a pair product, so derivatives
of every order consist of these two operations, which save nothing of an edge but g.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mdgraph.gpu.launch import has_kernels, needed_gradients, tracing
from mdgraph.neighbors.pairs import KINDS, WIDTHS, PairBlock, Pairs, Undirected


def sequential_sum(values: Tensor) -> Tensor:
    """Sums (N, B, ...) over slots in their order, to (N, ...).

    On CUDA, the order of `sum` depends on the shape, that of `segment_reduce` does not.
    """
    if values.device.type == "cpu":
        return values.sum(1)
    rows, slots = values.shape[:2]
    offsets = torch.arange(0, (rows + 1) * slots, slots, device=values.device)
    flat = values.reshape(rows * slots, -1)
    total = torch.segment_reduce(flat, "sum", offsets=offsets, axis=0, unsafe=True)
    return total.view(rows, *values.shape[2:])


def gathered(values: Tensor, block: PairBlock) -> Tensor:
    """Gathers values (N, ...) of the neighbor in each slot, (N, B, ...)."""
    rows = values.index_select(0, block.index.flatten())
    return rows.view(*block.index.shape, *values.shape[1:])


def message_values(weights: Tensor, features: Tensor, pairs: Pairs) -> Tensor:
    """M (N, 9, F) of `message` from weights (N, K, 3, F) and features (N, 9, F); no gradient."""
    if has_kernels(features):
        from mdgraph.models.kernels import messages as kernels

        return kernels.message(weights, features, pairs.index, pairs.count)
    total = torch.zeros_like(features)
    start = 0
    for number, block in enumerate(pairs.blocks):
        product = gathered(features, block)
        stop = start + block.index.shape[1]
        for part, components in enumerate(KINDS):
            product[:, :, components] *= weights[:, start:stop, part, None]
        block_sum = sequential_sum(product)
        total = block_sum if number == 0 else total + block_sum
        start = stop
    return total


def product_values(left: Tensor, right: Tensor, pairs: Pairs) -> Tensor:
    """<A_i, B_j(i,k)> part by part, (N, 9, F) twice to (N, K, 3, F); no gradient."""
    if has_kernels(left):
        from mdgraph.models.kernels import messages as kernels

        return kernels.pair_product(left, right, pairs.index, pairs.count)
    slots = sum(block.index.shape[1] for block in pairs.blocks)
    atoms, _, channels = left.shape
    result = left.new_empty(atoms, slots, len(KINDS), channels)
    start = 0
    for block in pairs.blocks:
        product = gathered(right, block)
        product *= left[:, None]
        stop = start + block.index.shape[1]
        for part, components in enumerate(KINDS):
            torch.sum(product[:, :, components], 2, out=result[:, start:stop, part])
        start = stop
    return result


def sum_slots(values: Tensor) -> Tensor:
    """Sums (N, B, ...) over slots in their order, to (N, ...); differentiable."""
    if tracing():
        return values.sum(1)
    result: Tensor = _SumSlots.apply(values)
    return result


def message(weights: Sequence[Tensor], features: Tensor, pairs: Pairs) -> Tensor:
    """M_i = sum over neighbors j of g_ij * Y_j, part by part; derivatives of any order.

    Args:
        weights: g, (N, B, 3, F) of each block.
        features: Y, (N, 9, F).
        pairs: the neighbor list.

    Returns:
        (N, 9, F).
    """
    if tracing():
        return _traceable_message(weights, features, pairs)
    result: Tensor = _SlotMessage.apply(torch.cat(tuple(weights), dim=1), features, pairs)
    return result


def gather(values: Tensor, pairs: Pairs) -> tuple[Tensor, ...]:
    """Gathers values (N, C) of the neighbor in each slot, (N, B, C) a block; differentiable."""
    if tracing():
        return tuple(gathered(values, block) for block in pairs.blocks)
    result: Tensor = _Gather.apply(values, pairs)
    return result.split([block.index.shape[1] for block in pairs.blocks], dim=1)


def _traceable_message(weights: Sequence[Tensor], features: Tensor, pairs: Pairs) -> Tensor:
    """`message` without autograd.Function, which `torch.jit.trace` cannot record."""
    total = torch.zeros_like(features)
    for weight, block in zip(weights, pairs.blocks, strict=True):
        parts = zip(
            weight.split(1, dim=2), gathered(features, block).split(WIDTHS, dim=2), strict=True
        )
        total = total + torch.cat([(factor * part).sum(1) for factor, part in parts], dim=1)
    return total


class _SumSlots(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        ctx.slots = values.shape[1]
        return sequential_sum(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        gradient = gradients[0]
        shape = (gradient.shape[0], ctx.slots, *gradient.shape[1:])
        return gradient[:, None].expand(shape)


class _SlotMessage(torch.autograd.Function):
    """M_i = sum_k g_ik * Y_j(i,k).

    Adjoints: dY_j = sum over its row of g_reverse * dM, which is a message again; and
    dg_ik = <dM_i, Y_j> part by part, a pair product, whose adjoints are messages.
    """

    @staticmethod
    def forward(ctx: Any, weights: Tensor, features: Tensor, pairs: Pairs) -> Tensor:
        ctx.save_for_backward(weights, features)
        ctx.pairs = pairs
        return message_values(weights, features, pairs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (weights, features), gradient, pairs = ctx.saved_tensors, gradients[0], ctx.pairs
        return (
            *needed_gradients(
                ctx,
                lambda: _PairProduct.apply(gradient, features, pairs),
                lambda: _SlotMessage.apply(_reverse(weights, pairs), gradient, pairs),
            ),
            None,
        )


class _PairProduct(torch.autograd.Function):
    """p_ik = <A_i, B_j(i,k)> over the components of each part."""

    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor, pairs: Pairs) -> Tensor:
        ctx.save_for_backward(left, right)
        ctx.pairs = pairs
        return product_values(left, right, pairs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (left, right), gradient, pairs = ctx.saved_tensors, gradients[0], ctx.pairs
        return (
            *needed_gradients(
                ctx,
                lambda: _SlotMessage.apply(gradient, right, pairs),
                lambda: _SlotMessage.apply(_reverse(gradient, pairs), left, pairs),
            ),
            None,
        )


class _Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, pairs: Pairs) -> Tensor:
        ctx.pairs = pairs
        return values.flatten(0, 1).index_select(0, pairs.reverse).view_as(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _reverse(gradients[0], ctx.pairs), None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, pairs: Pairs) -> Tensor:
        ctx.pairs = pairs
        return torch.cat([gathered(values, block) for block in pairs.blocks], dim=1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        pairs = ctx.pairs
        widths = [block.index.shape[1] for block in pairs.blocks]
        parts = _reverse(gradients[0], pairs).split(widths, dim=1)
        total = sum_slots(parts[0])
        for part in parts[1:]:
            total = total + sum_slots(part)
        return total, None


def _reverse(values: Tensor, pairs: Pairs) -> Tensor:
    """The value of the reverse pair in each slot of (N, K, ...); its own adjoint."""
    result: Tensor = _Reverse.apply(values, pairs)
    return result


def forces_and_virials(pairs: Pairs, gradients: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Turns derivatives with respect to pair vectors into forces and virials.

    With g_ik = dE/dr_ik and r_ik = x_j - x_i, the force is F_i = sum_k (g_ik - g_reverse)
    and the virial W = -sum_ik r_ik (x) g_ik, of which each atom gets the terms of its row. Both
    are differentiable by the gradients, for losses on forces and stress. Does not sync.

    Args:
        pairs: the neighbor list.
        gradients: g, (N, B, 3) eV/A of each block.

    Returns:
        forces (N, 3) eV/A and virials (N, 3, 3) eV, in the dtype of the pair vectors.
    """
    gradient = torch.cat(tuple(gradients), dim=1) if len(gradients) > 1 else gradients[0]
    if has_kernels(gradient):
        from mdgraph.models.kernels import messages as kernels

        blocks = [vectors.detach() for vectors in pairs.vectors]
        vectors = torch.cat(blocks, dim=1) if len(blocks) > 1 else blocks[0]
        return kernels.forces_and_virials(gradient, vectors, pairs)
    difference = gradient - _reverse(gradient, pairs)
    widths = [block.index.shape[1] for block in pairs.blocks]
    forces = gradient.new_zeros(len(gradient), 3)
    virials = gradient.new_zeros(len(gradient), 3, 3)
    parts = zip(pairs.blocks, gradients, difference.split(widths, dim=1), strict=True)
    for block, part, force in parts:
        forces = forces + sum_slots(force)
        virials = virials - sum_slots(block.vectors.detach()[..., None] * part[:, :, None])
    return forces, virials


def to_slots(values: Tensor, pairs: Pairs) -> Tensor:
    """Copies values (P, C) of pairs into their slots (N, K, C), 0 in empty ones; differentiable."""
    result: Tensor = _ToSlots.apply(values, pairs)
    return result


def to_pairs(values: Tensor, pairs: Pairs) -> Tensor:
    """Sums values (N, K, ...) over both slots of each pair, to (P, ...), 0 for padding."""
    result: Tensor = _ToPairs.apply(values, pairs)
    return result


def undirected_message(weights: Tensor, features: Tensor, pairs: Pairs) -> Tensor:
    """M_i = sum over neighbors j of g_ij Y_j, part by part; derivatives of any order.

    Args:
        weights: g, (P, 3, F).
        features: Y, (N, 9, F).
        pairs: a list that numbers its undirected pairs.

    Returns:
        (N, 9, F).
    """
    result: Tensor = _PairMessage.apply(weights, features, pairs)
    return result


class _ToSlots(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, pairs: Pairs) -> Tensor:
        ctx.pairs = pairs
        return _in_both_slots(values, pairs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _ToPairs.apply(gradients[0], ctx.pairs), None


class _ToPairs(torch.autograd.Function):
    """Sums over both slots of each pair; the adjoint of `_ToSlots`."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, pairs: Pairs) -> Tensor:
        ctx.pairs = pairs
        return _of_both_slots(values, pairs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _ToSlots.apply(gradients[0], ctx.pairs), None


class _PairMessage(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weights: Tensor, features: Tensor, pairs: Pairs) -> Tensor:
        ctx.save_for_backward(weights, features)
        ctx.pairs = pairs
        if has_kernels(features):
            from mdgraph.models.kernels import messages as kernels

            number = _undirected(pairs).number
            return kernels.message(weights, features, pairs.index, pairs.count, number)
        return message_values(_in_both_slots(weights, pairs), features, pairs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (weights, features), gradient, pairs = ctx.saved_tensors, gradients[0], ctx.pairs
        return (
            *needed_gradients(
                ctx,
                lambda: _UndirectedProduct.apply(gradient, features, pairs),
                lambda: _PairMessage.apply(weights, gradient, pairs),
            ),
            None,
        )


class _UndirectedProduct(torch.autograd.Function):
    """p_ij = <A_i, B_j> + <A_j, B_i> over the components of each part."""

    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor, pairs: Pairs) -> Tensor:
        ctx.save_for_backward(left, right)
        ctx.pairs = pairs
        if has_kernels(left):
            from mdgraph.models.kernels import messages as kernels

            return kernels.undirected_product(left, right, pairs.index, _undirected(pairs))
        return _of_both_slots(product_values(left, right, pairs), pairs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (left, right), gradient, pairs = ctx.saved_tensors, gradients[0], ctx.pairs
        return (
            *needed_gradients(
                ctx,
                lambda: _PairMessage.apply(gradient, right, pairs),
                lambda: _PairMessage.apply(gradient, left, pairs),
            ),
            None,
        )


def _undirected(pairs: Pairs) -> Undirected:
    assert pairs.undirected is not None
    return pairs.undirected


def _in_both_slots(values: Tensor, pairs: Pairs) -> Tensor:
    number = _undirected(pairs).number
    slots = values.index_select(0, number.flatten()).view(*number.shape, *values.shape[1:])
    return slots.mul_(_spread(pairs.blocks[0].valid, slots))


def _of_both_slots(values: Tensor, pairs: Pairs) -> Tensor:
    undirected, flat = _undirected(pairs), values.flatten(0, 1)
    both = flat.index_select(0, undirected.one) + flat.index_select(0, undirected.other)
    return both.mul_(_spread(undirected.valid, both))


def _spread(mask: Tensor, values: Tensor) -> Tensor:
    return mask.view(*mask.shape, *[1] * (values.dim() - mask.dim()))
