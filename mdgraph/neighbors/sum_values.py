"""Sums over neighbors as numbers, for those who differentiate them themselves."""

import torch
from torch import Tensor

from mdgraph.neighbors.dispatch import has_kernels
from mdgraph.neighbors.pairs import KINDS, PairBlock, Pairs


def sequential_sum(values: Tensor) -> Tensor:
    """Sums (N, B, ...) over slots in their order, to (N, ...).

    `sum` on CUDA picks a reduction tree by shape; `segment_reduce` walks the slots.
    """
    if values.device.type == "cpu":
        return values.sum(1)
    rows, slots = values.shape[:2]
    offsets = torch.arange(0, (rows + 1) * slots, slots, device=values.device)
    flat = values.reshape(rows * slots, -1)
    total = torch.segment_reduce(flat, "sum", offsets=offsets, axis=0, unsafe=True)
    return total.view(rows, *values.shape[2:])


def gathered(values: Tensor, block: PairBlock) -> Tensor:
    """Values (N, ...) of the neighbor in each slot, (N, B, ...)."""
    rows = values.index_select(0, block.index.flatten())
    return rows.view(*block.index.shape, *values.shape[1:])


def message_values(weights: Tensor, features: Tensor, pairs: Pairs) -> Tensor:
    """The message of weights (N, K, 3, F) and features (N, 9, F)."""
    if has_kernels(features):
        from mdgraph.neighbors import kernels

        return kernels.message(weights, features, pairs.index, pairs.count)
    total = torch.zeros_like(features)
    start = 0
    for number, block in enumerate(pairs.blocks):
        product = gathered(features, block)
        stop = start + block.index.shape[1]
        for kind, components in enumerate(KINDS):
            product[:, :, components] *= weights[:, start:stop, kind, None]
        part = sequential_sum(product)
        total = part if number == 0 else total + part
        start = stop
    return total


def product_values(left: Tensor, right: Tensor, pairs: Pairs) -> Tensor:
    """<A_i, B_j(i,k)> part by part of (N, 9, F) twice, to (N, K, 3, F)."""
    if has_kernels(left):
        from mdgraph.neighbors import kernels

        return kernels.pair_product(left, right, pairs.index, pairs.count)
    slots = sum(block.index.shape[1] for block in pairs.blocks)
    atoms, _, channels = left.shape
    result = left.new_empty(atoms, slots, len(KINDS), channels)
    start = 0
    for block in pairs.blocks:
        product = gathered(right, block)
        product *= left[:, None]
        stop = start + block.index.shape[1]
        for kind, components in enumerate(KINDS):
            torch.sum(product[:, :, components], 2, out=result[:, start:stop, kind])
        start = stop
    return result
