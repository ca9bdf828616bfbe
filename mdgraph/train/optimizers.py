"""Optimisers whose step works on static buffers: their learning rate is read on the device."""

from typing import Any, Final

import torch
from torch import Tensor
from torch.optim import Optimizer

from mdgraph.train.configuration import TrainConfig

_FUSED: Final = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam, "sgd": torch.optim.SGD}
_OTHERS: Final = {"nadam": torch.optim.NAdam, "radam": torch.optim.RAdam}
"""One kernel, and several; torch's Muon reads the rate on the host."""

_FROM_ONE: Final = "mu_product"
"""The only state that does not begin at 0."""


def make_optimizer(
    config: TrainConfig, weights: Tensor, gradient: Tensor, rate: Tensor
) -> Optimizer:
    """The optimiser of a training with all its buffers, as before its first step.

    Args:
        config: which, with its betas (the first is the momentum of sgd) and weight decay.
        weights: (W,), moved in place.
        gradient: (W,) zeros, of which every step takes what is there at the moment, as of
        rate: ().
    """
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
