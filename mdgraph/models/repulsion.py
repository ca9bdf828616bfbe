"""Screened nuclear repulsion (Ziegler, Biersack, Littmark 1985), as three programs have it.

All evaluate E_ij = k Z_i Z_j / d * phi(d / a_ij) * window analytically in the type of the
pair vectors; what differs is the screening length, the constants and the window.
"""

from typing import Final, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from mdgraph.models.configuration import RepulsionConfig
from mdgraph.models.radial import cosine_cutoff
from mdgraph.neighbors.pairs import PairBlock, Pairs, sum_slots

_COEFFICIENTS: Final = (0.1818, 0.5099, 0.2802, 0.02817)
_EXPONENTS: Final = (3.2, 0.9423, 0.4029, 0.2016)


class Repulsion(Protocol):
    """What all three offer; a torch module."""

    cutoff: float

    def __call__(self, numbers: Tensor, pairs: Pairs) -> Tensor:
        """Atomic numbers (N,) to energies (N,) eV; half of every pair to each atom."""
        ...


def _summed(energy_of_block: "_BlockEnergy", numbers: Tensor, pairs: Pairs) -> Tensor:
    total = pairs.vectors[0].new_zeros(len(numbers))
    for block in pairs.blocks:
        neighbor = numbers.index_select(0, block.index.flatten()).view_as(block.index)
        energy = energy_of_block(numbers[:, None], neighbor, block)
        total = total + sum_slots(torch.where(block.valid, energy, 0.0))
    return 0.5 * total


class _BlockEnergy(Protocol):
    def __call__(self, atom: Tensor, neighbor: Tensor, block: PairBlock) -> Tensor: ...


def _screening(x: Tensor) -> Tensor:
    terms = zip(_COEFFICIENTS, _EXPONENTS, strict=True)
    return torch.stack([c * torch.exp(-b * x) for c, b in terms]).sum(0)


class TorchMDNetPrior(nn.Module):
    """TorchMD-Net's ZBL prior: cosine window, its own constants, screening lengths in float32.

    Attributes:
        constant: () eV A; it follows the data set's own electronvolt.
    """

    constant: Tensor

    def __init__(self, config: RepulsionConfig) -> None:
        super().__init__()
        self.cutoff = config.cutoff
        constant = torch.tensor(2.30707755e-28 / 1.602176634e-19 / 1e-10, dtype=torch.float64)
        self.register_buffer("constant", constant)

    def forward(self, numbers: Tensor, pairs: Pairs) -> Tensor:
        """See Repulsion."""
        return _summed(self._energy, numbers, pairs)

    def _energy(self, atom: Tensor, neighbor: Tensor, block: PairBlock) -> Tensor:
        distance = torch.linalg.vector_norm(block.vectors, dim=-1)
        powers = atom.to(torch.float32) ** 0.23 + neighbor.to(torch.float32) ** 0.23
        # In metres, so that float32 rounds the lengths as it did in training.
        length = (0.8854 * 5.29177210903e-11 / powers).to(distance.dtype)
        x = 1e-10 * distance / length
        window = cosine_cutoff(distance, 0.0, self.cutoff)
        constant = self.constant.to(distance.dtype)
        return constant * atom * neighbor / distance * _screening(x) * window


class TorchMDNetNetwork(nn.Module):
    """The repulsion inside TensorNet2: polynomial window at the sum of covalent radii.

    Attributes:
        powers: (119,), Z^0.3.
        radii: (119, 119) A, range of each pair.
    """

    powers: Tensor
    radii: Tensor

    def __init__(self, config: RepulsionConfig, rows: int = 119) -> None:
        super().__init__()
        self.cutoff = config.cutoff
        self.register_buffer("powers", torch.ones(rows, dtype=torch.float64))
        self.register_buffer("radii", torch.ones(rows, rows, dtype=torch.float64))

    def forward(self, numbers: Tensor, pairs: Pairs) -> Tensor:
        """See Repulsion."""
        return _summed(self._energy, numbers, pairs)

    def _energy(self, atom: Tensor, neighbor: Tensor, block: PairBlock) -> Tensor:
        distance = torch.linalg.vector_norm(block.vectors, dim=-1)
        last = len(self.powers) - 1
        first, second = atom.clamp(max=last), neighbor.clamp(max=last)
        length = 0.4543 / 1.8897261258369282
        x = distance * (self.powers[first] + self.powers[second]).to(distance.dtype) / length
        u = distance / self.radii[first, second].to(distance.dtype)
        inside = (u < 1.0) & (distance < self.cutoff)
        window = torch.where(inside, 1.0 - 28.0 * u**6 + 48.0 * u**7 - 21.0 * u**8, 0.0)
        # A Python number times integers would be rounded to torch's default type.
        product = 14.399645 * atom.to(distance.dtype) * neighbor
        return product / distance * _screening(x) * window


class MatGLRepulsion(nn.Module):
    """MatGL's repulsion, whose constants may have been trained.

    Attributes:
        constant: () eV A.
        power, division, coefficients, exponents: stored before the softplus that keeps
            them positive.
    """

    constant: Tensor

    def __init__(self, config: RepulsionConfig) -> None:
        super().__init__()
        self.cutoff = config.cutoff
        self.register_buffer("constant", torch.ones((), dtype=torch.float64))
        self.power = nn.Parameter(torch.ones(1))
        self.division = nn.Parameter(torch.ones(1))
        self.coefficients = nn.Parameter(torch.ones(4))
        self.exponents = nn.Parameter(torch.ones(4))

    def forward(self, numbers: Tensor, pairs: Pairs) -> Tensor:
        """See Repulsion."""
        return _summed(self._energy, numbers, pairs)

    def _energy(self, atom: Tensor, neighbor: Tensor, block: PairBlock) -> Tensor:
        distance = torch.linalg.vector_norm(block.vectors, dim=-1)
        kind = distance.dtype
        power = functional.softplus(self.power.to(kind))
        division = functional.softplus(self.division.to(kind))
        coefficients = functional.softplus(self.coefficients.to(kind))
        coefficients = coefficients / coefficients.abs().sum()
        exponents = functional.softplus(self.exponents.to(kind))
        scale = (atom.to(kind) ** power + neighbor.to(kind) ** power) * division
        terms = torch.exp(-exponents * (scale * distance)[..., None]) * coefficients
        u = distance / self.cutoff
        window = torch.where(u <= 1.0, 1.0 - 10.0 * u**3 + 15.0 * u**4 - 6.0 * u**5, 0.0)
        return self.constant.to(kind) * atom * neighbor / distance * terms.sum(-1) * window


def repulsion(config: RepulsionConfig) -> nn.Module:
    """Builds the repulsion that a configuration names."""
    match config.kind:
        case "torchmdnet_prior":
            return TorchMDNetPrior(config)
        case "torchmdnet_network":
            return TorchMDNetNetwork(config)
        case "matgl":
            return MatGLRepulsion(config)
