"""Readouts: from the invariants of an atom to its energy."""

from itertools import pairwise

from torch import Tensor, nn
from torch.nn import functional

from mdgraph.models.activations import ACTIVATIONS
from mdgraph.models.configuration import TensorNetConfig


def _linears(widths: tuple[int, ...]) -> nn.ModuleList:
    return nn.ModuleList(nn.Linear(inputs, outputs) for inputs, outputs in pairwise(widths))


class PerceptronReadout(nn.Module):
    """A perceptron (TorchMD-Net's Scalar head)."""

    def __init__(self, config: TensorNetConfig) -> None:
        super().__init__()
        self.activation = ACTIVATIONS[config.activation]
        self.linears = _linears((config.channels, *config.readout.hidden, 1))

    def forward(self, x: Tensor) -> Tensor:
        """(N, F) to (N,)."""
        *hidden, last = self.linears
        for linear in hidden:
            x = self.activation(linear(x))
        return last(x).squeeze(-1)


class GatedReadout(nn.Module):
    """A perceptron times the sigmoid of another (MatGL's weighted atoms); SiLU inside."""

    def __init__(self, config: TensorNetConfig) -> None:
        super().__init__()
        widths = (config.channels, *config.readout.hidden, 1)
        self.values = _linears(widths)
        self.gates = _linears(widths)

    def forward(self, x: Tensor) -> Tensor:
        """(N, F) to (N,)."""
        value, gate = x, x
        for linear in list(self.values)[:-1]:
            value = functional.silu(linear(value))
        for linear in list(self.gates)[:-1]:
            gate = functional.silu(linear(gate))
        return (self.values[-1](value) * self.gates[-1](gate).sigmoid()).squeeze(-1)


def readout(config: TensorNetConfig) -> nn.Module:
    """Builds the readout that a configuration names."""
    return PerceptronReadout(config) if config.readout.kind == "mlp" else GatedReadout(config)
