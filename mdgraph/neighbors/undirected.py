"""Every pair once: what depends on its distance alone is not computed for two slots, nor for none.

Sums over neighbors by weights of undirected pairs are closed under differentiation. With
L = sum over pairs ij of g_ij (A_i B_j + A_j B_i), part by part, the derivative by A is a message,
by B it is the same message, and by g it is a pair product. So derivatives of every order are made
of these two, repeat bit for bit and keep nothing of an edge but g.
"""

from typing import Any

import torch
from torch import Tensor

from mdgraph.neighbors.dispatch import asked, has_kernels
from mdgraph.neighbors.pairs import Pairs, Undirected
from mdgraph.neighbors.sum_values import message_values, product_values


def to_slots(values: Tensor, pairs: Pairs) -> Tensor:
    """Values (P, C) of the pair in each slot (N, K, C), 0 on empty ones; any derivative."""
    result: Tensor = _ToSlots.apply(values, pairs)
    return result


def to_pairs(values: Tensor, pairs: Pairs) -> Tensor:
    """Sums values (N, K, ...) over both slots of each pair, (P, ...), 0 on padding; likewise."""
    result: Tensor = _ToPairs.apply(values, pairs)
    return result


def undirected_message(weights: Tensor, features: Tensor, pairs: Pairs) -> Tensor:
    """M_i = sum over neighbors j of g_ij Y_j, part by part; any derivative.

    Args:
        weights: g, (P, 3, F).
        features: Y, (N, 9, F).
        pairs: a list that knows its pairs.

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
    """Sums over both slots of each pair; the adjoint of the above."""

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
            from mdgraph.neighbors import kernels

            number = _undirected(pairs).number
            return kernels.message(weights, features, pairs.index, pairs.count, number)
        return message_values(_in_both_slots(weights, pairs), features, pairs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (weights, features), gradient, pairs = ctx.saved_tensors, gradients[0], ctx.pairs
        found = asked(
            ctx,
            lambda: _Product.apply(gradient, features, pairs),
            lambda: _PairMessage.apply(weights, gradient, pairs),
        )
        return *found, None


class _Product(torch.autograd.Function):
    """p_ij = <A_i, B_j> + <A_j, B_i> over the components of each part."""

    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor, pairs: Pairs) -> Tensor:
        ctx.save_for_backward(left, right)
        ctx.pairs = pairs
        if has_kernels(left):
            from mdgraph.neighbors import kernels

            return kernels.undirected_product(left, right, pairs.index, _undirected(pairs))
        return _of_both_slots(product_values(left, right, pairs), pairs)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (left, right), gradient, pairs = ctx.saved_tensors, gradients[0], ctx.pairs
        found = asked(
            ctx,
            lambda: _PairMessage.apply(gradient, right, pairs),
            lambda: _PairMessage.apply(gradient, left, pairs),
        )
        return *found, None


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
