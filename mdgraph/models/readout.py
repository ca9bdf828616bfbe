"""Readouts: from the invariants of an atom to its energy."""

from itertools import pairwise

import torch
from torch import Tensor, nn

from mdgraph.models.activations import activation_of
from mdgraph.models.configuration import TensorNetConfig
from mdgraph.models.dense import activated
from mdgraph.models.nonlinear import silu


def _linears(widths: tuple[int, ...]) -> nn.ModuleList:
    return nn.ModuleList(nn.Linear(inputs, outputs) for inputs, outputs in pairwise(widths))


class PerceptronReadout(nn.Module):
    """A perceptron (TorchMD-Net's Scalar head)."""

    def __init__(self, config: TensorNetConfig) -> None:
        super().__init__()
        self.activation = activation_of(config)
        self.linears = _linears((config.channels, *config.readout.hidden, 1))

    def features(self, x: Tensor) -> Tensor:
        """(N, F) to (N, H): the energy is linear in them, by the last layer."""
        for linear in list(self.linears)[:-1]:
            x = activated(x, linear, self.activation)
        return x

    def forward(self, x: Tensor) -> Tensor:
        """(N, F) to (N,)."""
        energies: Tensor = self.linears[-1](self.features(x))
        return energies.squeeze(-1)


class GatedReadout(nn.Module):
    """A perceptron times the sigmoid of another (MatGL's weighted atoms); SiLU inside."""

    def __init__(self, config: TensorNetConfig) -> None:
        super().__init__()
        widths = (config.channels, *config.readout.hidden, 1)
        self.values = _linears(widths)
        self.gates = _linears(widths)

    def features(self, x: Tensor) -> Tensor:
        """(N, F) to (N, H + 1): the energy is linear in them, by the last layer and its bias."""
        value, gate = self._gated(x)
        return torch.cat([value * gate, gate], dim=1)

    def forward(self, x: Tensor) -> Tensor:
        """(N, F) to (N,)."""
        value, gate = self._gated(x)
        return (self.values[-1](value) * gate).squeeze(-1)

    def _gated(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """What the last layer of the values sees (N, H), and the gate (N, 1)."""
        value, gate = x, x
        for linear in list(self.values)[:-1]:
            value = activated(value, linear, silu)
        for linear in list(self.gates)[:-1]:
            gate = activated(gate, linear, silu)
        return value, self.gates[-1](gate).sigmoid()


def readout(config: TensorNetConfig) -> PerceptronReadout | GatedReadout:
    """Builds the readout that a configuration names."""
    return PerceptronReadout(config) if config.readout.kind == "mlp" else GatedReadout(config)
