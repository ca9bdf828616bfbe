"""Optimisers whose step works on static buffers: their learning rate is read on the device."""

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor
from torch.optim import Optimizer

from mdgraph.models import TensorNetPotential
from mdgraph.models.edges import EdgeNetwork
from mdgraph.train.configuration import TrainConfig
from mdgraph.train.muon import Muon

_FUSED: Final = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam, "sgd": torch.optim.SGD}
_OTHERS: Final = {"nadam": torch.optim.NAdam, "radam": torch.optim.RAdam}
"""One kernel, and several; torch's Muon reads the rate on the host, so `muon` is our own."""

_FROM_ONE: Final = "mu_product"
"""The only state that does not begin at 0."""


def hidden_matrices(
    potential: TensorNetPotential, trained: Sequence[Tensor], edges: bool = False
) -> list[Tensor]:
    """Weights, of those trained, that lead from numbers of an atom or an edge to other ones.

    Tables of the elements and the last layer, whose rows are not directions among many, are none.
    Nor, without `edges`, are the layers of edges, which make functions of the distance: distances
    that no frame has give next to no gradient, and steps as long in all directions may let bonds
    come apart there.
    """
    linears = {one for one in potential.modules() if isinstance(one, torch.nn.Linear)}
    if not edges:
        linears.discard(potential.network.embedding.distance)
        for network in potential.modules():
            if isinstance(network, EdgeNetwork):
                linears.difference_update(network.linears)
    found = {id(one.weight) for one in linears if one.out_features > 1}
    return [one for one in trained if id(one) in found]


def make_optimizer(
    config: TrainConfig,
    weights: Tensor,
    gradient: Tensor,
    rate: Tensor,
    matrices: Sequence[Tensor] = (),
) -> Optimizer:
    """The optimiser of a training with all its buffers, as before its first step.

    Args:
        config: which, with its betas (the first is the momentum of sgd) and weight decay.
        weights: (W,), moved in place.
        gradient: (W,) zeros, of which every step takes what is there at the moment, as of
        rate: ().
        matrices: views of the weights that Muon moves as matrices.
    """
    if config.optimizer == "muon":
        weights.grad = gradient
        return Muon(weights, matrices, rate, config.betas, config.weight_decay)
    options: dict[str, Any] = {"lr": rate, "weight_decay": config.weight_decay}
    if config.optimizer == "sgd":
        options["momentum"] = config.betas[0]
    else:
        options |= {"betas": config.betas, "capturable": weights.is_cuda}
    if config.optimizer in _FUSED:
        optimizer: Optimizer = _FUSED[config.optimizer]([weights], fused=True, **options)
    else:
        options["decoupled_weight_decay"] = True
        optimizer = _OTHERS[config.optimizer]([weights], **options)
    # Buffers come with the first step.
    before = weights.clone()
    weights.grad = gradient
    optimizer.step()
    weights.copy_(before)
    for name, tensor in optimizer.state[weights].items():
        tensor.fill_(1.0 if name == _FROM_ONE else 0.0)
    return optimizer
