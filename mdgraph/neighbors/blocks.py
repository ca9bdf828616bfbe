"""Pair vectors of a list, in blocks of slots."""

import torch
from torch import Tensor

from mdgraph.neighbors.pairs import PairBlock
from mdgraph.neighbors.rows import Rows


def block_width(atoms: int, cutoff: float, device: str) -> int:
    """Slots a block: wide ones leave fewer kernels, narrow ones less padding.

    It must not depend on the capacity, which would then change the bits.
    """
    if cutoff > 8.0:
        return 128
    if atoms <= 64:
        return 32
    return 40 if device == "cuda" else 16


def pair_blocks(
    rows: Rows, width: int, wrapped: Tensor, images: Tensor, first: Tensor, far: Tensor
) -> tuple[PairBlock, ...]:
    """The blocks of all slots, their vectors as leaves that ask for gradients; does not sync.

    Args:
        rows: of the list.
        width: slots a block.
        wrapped: (N, 3) A, positions with what was taken off at the build taken off again.
        images: (S images, 3) A, translations of all systems.
        first: (N, 1), place of the first translation of each atom's system.
        far: (3,) A, vector of an empty slot.
    """
    slots = torch.arange(rows.capacity, device=wrapped.device)
    used = slots < rows.count[:, None]
    blocks = []
    for start in range(0, rows.capacity, width):
        part = slice(start, start + width)
        index = rows.index[:, part].contiguous()
        # Difference first, as in the search: both directions of a pair round alike.
        vectors = wrapped.index_select(0, index.flatten()).view(*index.shape, 3)
        vectors = vectors - wrapped[:, None]
        image = (rows.image[:, part] + first).flatten()
        vectors = vectors + images.index_select(0, image).view_as(vectors)
        valid = used[:, part].contiguous()
        vectors = torch.where(valid[..., None], vectors, far)
        blocks.append(PairBlock(vectors.detach().requires_grad_(), index, valid))
    return tuple(blocks)
