"""Lists of neighbors whose pairs are held once."""

from dataclasses import replace

import torch

from mdgraph.neighbors import NeighborList, PairBlock, Pairs
from mdgraph.neighbors.pairs import Undirected
from mdgraph.state import State
from mdgraph.system import System


def once(pairs: Pairs, padding: int = 3) -> Pairs:
    """The list in one block, with its pairs found by looking at every slot in turn."""
    slots = pairs.index.shape[1]
    block = PairBlock(
        torch.cat(pairs.vectors, 1).detach().requires_grad_(),
        pairs.index,
        torch.arange(slots, device=pairs.index.device) < pairs.count[:, None],
    )
    reverse = pairs.reverse.tolist()
    one = [slot for slot, other in enumerate(reverse) if slot < other]
    number = torch.zeros(len(reverse), dtype=torch.int32)
    for pair, slot in enumerate(one):
        number[slot] = number[reverse[slot]] = pair
    valid = torch.tensor([True] * len(one) + [False] * padding)
    one_slot = torch.tensor(one + [0] * padding, dtype=torch.int32)
    undirected = Undirected(
        *(
            part.to(pairs.index.device)
            for part in (one_slot, pairs.reverse.cpu()[one_slot], valid, number.view(-1, slots))
        )
    )
    return replace(pairs, blocks=(block,), undirected=undirected)


def listed(systems: list[System], cutoff: float, device: str = "cpu") -> tuple[State, Pairs]:
    state = State(systems, device)
    return state, once(NeighborList(state, cutoff).pairs(state.positions, state.cell))
