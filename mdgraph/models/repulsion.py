"""Screened nuclear repulsion (Ziegler, Biersack, Littmark 1985), in four forms.

All compute E_ij = k Z_i Z_j / d * phi(d / a_ij) * w(d / r_ij) in the dtype of the pair vectors,
where phi is a sum of four exponentials and the window w falls from 1 to 0. They differ in the
constants of a pair of elements, and in the window. Three are those of other programs. The fourth,
`contact`, ends where atoms are as far apart as in training, so it can be added to a network that
was trained without it.
"""

import math
from typing import Final, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from mdgraph.models.config import RepulsionConfig
from mdgraph.models.ops.messages import sum_slots
from mdgraph.neighbors.pairs import PairBlock, Pairs
from mdgraph.units import COVALENT_RADII, SYMBOLS

_UNIVERSAL: Final = ((0.1818, 0.5099, 0.2802, 0.02817), (3.2, 0.9423, 0.4029, 0.2016))
_POWER: Final = 0.23
_LENGTH: Final = 0.8854 * 0.529177210903
"""a_ij (Z_i^0.23 + Z_j^0.23), A."""
_COULOMB: Final = 14.399645
"""eV A."""

CONTACT: Final = 0.7
"""Of the sum of two covalent radii, the range of `contact`. Bonds at rest have 0.77 and more.
Networks fall by up to 30 eV where a pair comes to 0.4, and there a carbon repels a hydrogen by 28
eV and another carbon by 53."""


class PairConstants(NamedTuple):
    """Constants of pairs of elements, (...) float64 each.

    Attributes:
        strength: k Z_i Z_j, eV A.
        inverse_length: 1 / a_ij, 1/A.
        reach: r_ij, A.
    """

    strength: Tensor
    inverse_length: Tensor
    reach: Tensor


def window(u: Tensor, order: int) -> Tensor:
    """w(u) for u < 1: half a cosine for order 0, else 1 plus powers of u from `order` on."""
    if order == 0:
        return 0.5 * (torch.cos(math.pi * u) + 1.0)
    first, second = (order + 1) * (order + 2) / 2, order * (order + 2)
    third = order * (order + 1) / 2
    return 1.0 - first * u**order + second * u ** (order + 1) - third * u ** (order + 2)


class Repulsion(nn.Module):
    """Base class of all forms.

    Attributes:
        cutoff: A; longer pairs have no energy, whatever the window.
        cutoff_lower: A; shorter pairs have no energy.
        order: of the window.
        scaled: whether the scale of the network multiplies the energy.
        universal: (2, 4), coefficients and exponents of the exponentials.
    """

    order: int
    scaled = False
    universal: Tensor

    def __init__(self, config: RepulsionConfig) -> None:
        super().__init__()
        self.cutoff, self.cutoff_lower = config.cutoff, config.cutoff_lower
        universal = torch.tensor(_UNIVERSAL, dtype=torch.float64)
        self.register_buffer("universal", universal, persistent=False)

    def constants(self, first: Tensor, second: Tensor) -> PairConstants:
        """Constants of pairs of atomic numbers (...) int64, which broadcast."""
        raise NotImplementedError

    def exponentials(self) -> Tensor:
        """Coefficients and exponents (2, 4) float64."""
        return self.universal

    def forward(self, numbers: Tensor, pairs: Pairs) -> Tensor:
        """Atomic numbers (N,) to energies (N,) eV; each atom gets half the energy of its pairs."""
        total = pairs.vectors[0].new_zeros(len(numbers))
        for block in pairs.blocks:
            neighbor = numbers.index_select(0, block.index.flatten()).view_as(block.index)
            energy = self._energy(numbers[:, None], neighbor, block)
            total = total + sum_slots(torch.where(block.valid, energy, 0.0))
        return 0.5 * total

    def _energy(self, atom: Tensor, neighbor: Tensor, block: PairBlock) -> Tensor:
        distance = torch.linalg.vector_norm(block.vectors, dim=-1)
        dtype = distance.dtype
        strength, inverse, reach = (
            constant.to(dtype) for constant in self.constants(atom, neighbor)
        )
        coefficients, exponents = self.exponentials().to(dtype).unbind()
        terms = torch.exp(-exponents * (inverse * distance)[..., None]) * coefficients
        inside = (distance < reach) & (distance < self.cutoff) & (distance >= self.cutoff_lower)
        weight = torch.where(inside, window(distance / reach, self.order), 0.0)
        return strength / distance * terms.sum(-1) * weight


class TorchMDNetPrior(Repulsion):
    """TorchMD-Net's ZBL prior: cosine window, other constants, screening lengths in float32.

    Attributes:
        constant: () eV A, with the electronvolt of the data set.
        powers: (119,), Z^0.23 rounded to float32. TorchMD-Net computes them by torch, whose
            vector instructions differ from scalar ones by one bit for 26 elements.
    """

    order = 0
    constant: Tensor
    powers: Tensor

    def __init__(self, config: RepulsionConfig) -> None:
        super().__init__(config)
        constant = torch.tensor(2.30707755e-28 / 1.602176634e-19 / 1e-10, dtype=torch.float64)
        self.register_buffer("constant", constant)
        powers = torch.tensor([z**_POWER for z in range(len(SYMBOLS))], dtype=torch.float32)
        self.register_buffer("powers", powers.double(), persistent=False)

    def constants(self, first: Tensor, second: Tensor) -> PairConstants:
        """See Repulsion."""
        powers = (self.powers[first] + self.powers[second]).to(torch.float32)
        # In metres, so that float32 rounds the lengths as in TorchMD-Net.
        length = (0.8854 * 5.29177210903e-11 / powers).double()
        strength = self.constant.double() * (first * second)
        return PairConstants(strength, 1e-10 / length, torch.full_like(length, self.cutoff))


class TorchMDNetNetwork(Repulsion):
    """The repulsion inside TensorNet2: polynomial window at the sum of covalent radii.

    Attributes:
        powers: (119,), Z^0.3.
        radii: (119, 119) A, range of each pair, the same in both directions.
    """

    order = 6
    scaled = True
    powers: Tensor
    radii: Tensor

    def __init__(self, config: RepulsionConfig) -> None:
        super().__init__(config)
        rows = len(SYMBOLS)
        self.register_buffer("powers", torch.ones(rows, dtype=torch.float64))
        self.register_buffer("radii", torch.ones(rows, rows, dtype=torch.float64))

    def constants(self, first: Tensor, second: Tensor) -> PairConstants:
        """See Repulsion."""
        # A Python float times an integer tensor would be rounded to torch's default dtype.
        strength = _COULOMB * (first * second).double()
        powers = (self.powers[first] + self.powers[second]).double()
        length = 0.4543 / 1.8897261258369282
        return PairConstants(strength, powers / length, self.radii[first, second].double())


class MatGLRepulsion(Repulsion):
    """MatGL's repulsion with trainable constants, which start as the universal ones.

    Attributes:
        constant: () eV A.
        power, division, coefficients, exponents: arguments of the softplus that keeps them
            positive.
    """

    order = 3
    constant: Tensor

    def __init__(self, config: RepulsionConfig) -> None:
        super().__init__(config)
        self.register_buffer("constant", torch.tensor(_COULOMB, dtype=torch.float64))
        coefficients, exponents = self.universal
        self.power = _before_softplus(torch.tensor([_POWER]))
        self.division = _before_softplus(torch.tensor([1.0 / _LENGTH]))
        self.coefficients = _before_softplus(coefficients)
        self.exponents = _before_softplus(exponents)

    def constants(self, first: Tensor, second: Tensor) -> PairConstants:
        """See Repulsion."""
        power, division = (functional.softplus(p.double()) for p in (self.power, self.division))
        inverse = (first.double() ** power + second.double() ** power) * division
        strength = self.constant.double() * (first * second)
        return PairConstants(strength, inverse, torch.full_like(inverse, self.cutoff))

    def exponentials(self) -> Tensor:
        """See Repulsion."""
        coefficients = functional.softplus(self.coefficients.double())
        exponents = functional.softplus(self.exponents.double())
        return torch.stack([coefficients / coefficients.sum(), exponents])


class ContactRepulsion(Repulsion):
    """The universal repulsion, of nuclei nearer than bonds or than any in the training frames.

    Attributes:
        reach: (119, 119) A, range of each pair, the same in both directions.
    """

    order = 6
    reach: Tensor

    def __init__(self, config: RepulsionConfig) -> None:
        super().__init__(config)
        self.register_buffer("reach", contact_reach().clamp(max=config.cutoff).float().double())

    def constants(self, first: Tensor, second: Tensor) -> PairConstants:
        """See Repulsion."""
        strength = _COULOMB * (first * second).double()
        inverse = (first.double() ** _POWER + second.double() ** _POWER) / _LENGTH
        return PairConstants(strength, inverse, self.reach[first, second].double())


def contact_reach(share: float = CONTACT) -> Tensor:
    """(119, 119) float64 A, a share of the sum of two covalent radii."""
    radii = torch.from_numpy(COVALENT_RADII)
    return share * (radii[:, None] + radii)


def _before_softplus(value: Tensor) -> nn.Parameter:
    return nn.Parameter(torch.log(torch.expm1(value.double())))


def repulsion(config: RepulsionConfig) -> Repulsion:
    """Builds the repulsion that a configuration names."""
    match config.kind:
        case "torchmdnet_prior":
            return TorchMDNetPrior(config)
        case "torchmdnet_network":
            return TorchMDNetNetwork(config)
        case "matgl":
            return MatGLRepulsion(config)
        case "contact":
            return ContactRepulsion(config)
