"""Optimisers whose step works on static buffers: their learning rate is read on the device."""

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor
from torch.optim import Optimizer

from mdgraph.train.configuration import TrainConfig

_FUSED: Final = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam, "sgd": torch.optim.SGD}
_OTHERS: Final = {"nadam": torch.optim.NAdam, "radam": torch.optim.RAdam}
"""One kernel for all weights, and several; torch's Muon reads the rate on the host."""

_FROM_ONE: Final = "mu_product"
"""The only state that does not begin at 0."""


def make_optimizer(config: TrainConfig, values: Sequence[Tensor], rate: Tensor) -> Optimizer:
    """The optimiser of a training with all its buffers, as before its first step.

    Args:
        config: which, with its betas (the first is the momentum of sgd) and weight decay.
        values: weights; their gradients are replaced by zeros.
        rate: () of which every step takes the value of the moment.
    """
    options: dict[str, Any] = {"lr": rate, "weight_decay": config.weight_decay}
    on_cuda = values[0].is_cuda
    if config.optimizer == "sgd":
        options["momentum"] = config.betas[0]
    else:
        options |= {"betas": config.betas, "capturable": on_cuda}
    if config.optimizer in _FUSED:
        optimizer: Optimizer = _FUSED[config.optimizer](values, fused=True, **options)
    else:
        options["decoupled_weight_decay"] = True
        optimizer = _OTHERS[config.optimizer](values, **options)
    # Buffers come with the first step.
    before = [value.detach().clone() for value in values]
    for value in values:
        value.grad = torch.zeros_like(value)
    optimizer.step()
    with torch.no_grad():
        for value, kept in zip(values, before, strict=True):
            value.copy_(kept)
            for name, tensor in optimizer.state[value].items():
                tensor.fill_(1.0 if name == _FROM_ONE else 0.0)
    return optimizer
