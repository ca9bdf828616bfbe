"""What evaluators of DFT-D3 have in common, and BlockedD3, for devices without its kernels."""

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from mdgraph.evaluators import Evaluator
from mdgraph.models import Atoms, D3Potential, ListRoles
from mdgraph.models.d3 import (
    BOHR,
    HARTREE,
    STEEPNESS,
    THREE_BODY_EXPONENT,
    THREE_BODY_RADIUS,
    WIDTH,
    switched_with_slope,
)
from mdgraph.models.ops.messages import forces_and_virials, sequential_sum
from mdgraph.neighbors import NeighborList
from mdgraph.neighbors.pairs import PairBlock, Pairs
from mdgraph.precision import Precision, full_float32, precision_named
from mdgraph.state import State

MOST_TRIPLES: Final = 2**22
"""Entries (atom, slot, slot) that are computed at a time, in some twenty arrays of float64."""


class D3Evaluator(Evaluator):
    """What evaluators of D3(BJ) have in common: the potential, and which list each part reads.

    Attributes:
        potential: what it was made from.
        cutoffs: A, of the lists it expects.
        precision: what it was made for.
        device: where it runs.
    """

    potential: D3Potential
    precision: Precision
    device: torch.device

    def __init__(
        self,
        potential: D3Potential,
        precision: str | Precision = "mixed",
        device: torch.device | str = "cpu",
    ) -> None:
        """Allocates nothing.

        Args:
            potential: D3 of a functional.
            precision: what the class makes of it.
            device: where it runs.
        """
        self.potential = potential
        self.precision, self.device = precision_named(precision), torch.device(device)
        self._list_roles = potential.list_roles
        self.cutoffs = self._list_roles.cutoffs

    @property
    def list_roles(self) -> ListRoles:
        """See Evaluator."""
        return self._list_roles


class BlockedD3(D3Evaluator):
    """D3(BJ) in torch operations, with derivatives written by hand, in float64.

    The passes are those of `mdgraph.fused.cpu.d3`. Of a pair it keeps the vector and the
    derivative by it; automatic differentiation keeps every intermediate number. The potential is
    a copy on the device, which may be any.
    """

    def __init__(
        self,
        potential: D3Potential,
        precision: str | Precision = "mixed",
        device: torch.device | str = "cpu",
    ) -> None:
        """Copies the tables to the device; see D3Evaluator."""
        device = torch.device(device)
        super().__init__(potential.at_precision(torch.float64).to(device), precision, device)

    def evaluate_(self, state: State, lists: Sequence[NeighborList]) -> None:
        """See Evaluator; static shapes, does not sync."""
        plain = torch.autocast(state.device.type, enabled=False)
        with torch.no_grad(), plain, full_float32():
            own = self.potential
            atoms = Atoms(state.numbers, state.elements, state.kinds, state.charge, state.grouping)
            pairs = [item.pairs(state.positions, state.cell) for item in lists]
            by_role = self._list_roles.assign(pairs)
            near, far = by_role["coordination"], by_role["dispersion"]
            coordination = own.coordination(atoms, near)
            weights = own.weights(atoms.numbers, coordination)
            away = coordination[:, None] - own.numbers.index_select(0, atoms.numbers)
            changes = -2.0 * WIDTH * weights * (away - (weights * away).sum(1, keepdim=True))
            energies, by_coordination, gradients = self._energies(atoms, far, weights, changes)
            forces, virials = forces_and_virials(far, gradients)
            if "three_body" in by_role:
                around = by_role["three_body"]
                more_energies, more_by, gradient = self._triples(atoms, around, weights, changes)
                energies, by_coordination = energies + more_energies, by_coordination + more_by
                widths = [block.index.shape[1] for block in around.blocks]
                more, more_virials = forces_and_virials(around, list(gradient.split(widths, 1)))
                forces, virials = forces + more, virials + more_virials
            gradients = [self._by_vectors(atoms, block, by_coordination) for block in near.blocks]
            more, more_virials = forces_and_virials(near, gradients)
            state.forces.copy_(forces + more)
            state.energies.copy_(energies)
            state.energy.copy_(state.grouping.sum(energies))
            state.virial.copy_(state.grouping.sum(virials + more_virials))

    def _energies(
        self, atoms: Atoms, far: Pairs, weights: Tensor, changes: Tensor
    ) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Energies (N,) eV, dE/dCN (N,) eV, and derivatives (N, B, 3) by vectors of each block."""
        own, config = self.potential, self.potential.config
        table = own.c6.index_select(0, atoms.elements).index_select(1, atoms.elements)
        table = table.index_select(0, atoms.kinds)
        mine, slopes = (torch.einsum("na,neab->neb", part, table) for part in (weights, changes))
        moment = own.moments.index_select(0, atoms.numbers)
        energies, by_coordination = torch.zeros_like(moment), torch.zeros_like(moment)
        gradients = []
        for block in far.blocks:
            index, shape = block.index.flatten(), block.index.shape
            kinds = atoms.kinds.index_select(0, index).view(*shape, 1)
            weight = weights.index_select(0, index).view(*shape, -1)
            place = kinds.expand_as(weight)
            c6, change = (
                (torch.gather(part, 1, place) * weight).sum(-1) for part in (mine, slopes)
            )
            ratio = 3.0 * moment[:, None] * moment.index_select(0, index).view(shape)
            damping = config.a1 * torch.sqrt(ratio) + config.a2
            vectors = block.vectors.double()
            distance = torch.linalg.vector_norm(vectors, dim=-1)
            radius = distance / BOHR
            sixth = 1.0 / (radius**6 + damping**6)
            eighth = 1.0 / (radius**8 + damping**8)
            bare = -(config.s6 * sixth + config.s8 * ratio * eighth)
            slope = 6.0 * config.s6 * radius**5 * sixth**2
            slope = (slope + 8.0 * config.s8 * ratio * radius**7 * eighth**2) / BOHR
            value, fall = switched_with_slope(distance, config.cutoff, config.switch)
            inside = block.valid & (distance < config.cutoff)
            part = HARTREE * torch.where(inside, bare * value, 0.0)
            pull = 0.5 * HARTREE * c6 * torch.where(inside, slope * value + bare * fall, 0.0)
            energies += sequential_sum(0.5 * c6 * part)
            by_coordination += sequential_sum(change * part)
            gradients.append(_along(vectors, pull / distance, block))
        return energies, by_coordination, gradients

    def _triples(
        self, atoms: Atoms, around: Pairs, weights: Tensor, changes: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Energies and dE/dCN (N,) eV of triples, and derivatives (N, K, 3) by all vectors."""
        own = self.potential
        table = own.c6.index_select(0, atoms.elements).index_select(1, atoms.elements)
        table = table.index_select(0, atoms.kinds)
        mine, slopes = (torch.einsum("na,neab->neb", part, table) for part in (weights, changes))
        index = torch.cat([block.index for block in around.blocks], 1)
        vectors = torch.cat([block.vectors for block in around.blocks], 1)
        valid = torch.cat([block.valid for block in around.blocks], 1)
        # As many atoms at a time as keep the arrays of triples small.
        step = max(1, MOST_TRIPLES // index.shape[1] ** 2)
        parts = []
        for first in range(0, len(index), step):
            rows = slice(first, first + step)
            parts.append(
                self._at(
                    atoms, rows, index[rows], vectors[rows].double(), valid[rows], weights,
                    mine, slopes,
                )
            )  # fmt: skip
        energies, by_coordination, pull = (torch.cat(part) for part in zip(*parts, strict=True))
        return energies, by_coordination, (pull[..., None] * vectors).to(vectors.dtype)

    def _at(
        self,
        atoms: Atoms,
        rows: slice,
        index: Tensor,
        vectors: Tensor,
        valid: Tensor,
        weights: Tensor,
        mine: Tensor,
        slopes: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Of some rows: energies, dE/dCN (n,), eV, and half of (dE/dr) / r (n, K), eV/A^2."""
        own, config = self.potential, self.potential.config
        cutoff, width = config.three_body_cutoff, config.three_body_switch
        flat = index.flatten()
        kinds = atoms.kinds.index_select(0, flat).view_as(index)
        weight = weights.index_select(0, flat).view(*index.shape, -1)
        place = kinds[..., None].expand_as(weight)
        c6, change = (
            (torch.gather(part[rows], 1, place) * weight).sum(-1) for part in (mine, slopes)
        )
        square = vectors.square().sum(-1)
        inside = valid & (square < cutoff**2)
        square = torch.where(inside, square, cutoff**2)
        distance = torch.sqrt(square)
        value, fall = switched_with_slope(distance, cutoff, width)
        radii = own.separations.index_select(0, atoms.elements).index_select(1, atoms.elements)
        reach = THREE_BODY_RADIUS * BOHR * radii
        ratio = reach[atoms.kinds[rows, None], kinds] / distance
        between = (vectors[:, None] - vectors[:, :, None]).square().sum(-1)
        both = inside[:, :, None] & inside[:, None] & (between < cutoff**2)
        both = both & ~torch.eye(index.shape[1], dtype=torch.bool, device=index.device)
        three = torch.where(both, between, cutoff**2)
        third = torch.sqrt(three)
        other = torch.zeros_like(third)
        for element in range(len(atoms.elements)):
            part = mine[:, element].index_select(0, flat).view(*index.shape, -1)
            products = torch.einsum("njb,nkb->njk", part, weight)
            other = torch.where((kinds == element)[:, None], products, other)
        strength = torch.where(both, c6[:, :, None] * c6[:, None] * other, 0.0)
        c9 = config.s9 * HARTREE * BOHR**9 * torch.sqrt(strength)
        c9 = c9 * value[:, None] * switched_with_slope(third, cutoff, width)[0]
        q = ratio[:, :, None] * ratio[:, None] * reach[kinds[:, :, None], kinds[:, None]] / third
        q = q**THREE_BODY_EXPONENT
        f = 1.0 / (1.0 + 6.0 * q)
        one, two = square[:, :, None], square[:, None]
        inverse = 1.0 / (one * two * three)
        cube = inverse * torch.sqrt(inverse)
        u, v, w = one + two - three, one + three - two, two + three - one
        shape = 0.375 * inverse * cube
        skew = shape * u * v * w
        angle = skew + cube
        energy = sequential_sum((c9 * angle * f).transpose(1, 2)) * value
        rest = f * (16.0 * f * q * angle - 2.5 * skew - 1.5 * cube)
        by_one = c9 * (f * shape * (v * w + u * w - u * v) + rest / one)
        by_one = sequential_sum(by_one.transpose(1, 2)) * value
        by_one = by_one + sequential_sum((c9 * angle * f).transpose(1, 2)) * 0.5 * fall / distance
        by_coordination = 0.5 * sequential_sum(torch.where(inside, energy * change / c6, 0.0))
        return sequential_sum(energy) / 6.0, by_coordination, by_one

    def _by_vectors(self, atoms: Atoms, block: PairBlock, by_coordination: Tensor) -> Tensor:
        """Derivatives (N, B, 3) eV/A by the vectors of a block, through coordination numbers."""
        config = self.potential.config
        radii = self.potential.radii.index_select(0, atoms.numbers)
        other = radii.index_select(0, block.index.flatten()).view(block.index.shape)
        vectors = block.vectors.double()
        distance = torch.linalg.vector_norm(vectors, dim=-1)
        reach = BOHR * (radii[:, None] + other)
        count = torch.sigmoid(STEEPNESS * (reach / distance - 1.0))
        slope = -count * (1.0 - count) * STEEPNESS * reach / distance**2
        value, fall = switched_with_slope(
            distance, config.coordination_cutoff, config.coordination_switch
        )
        inside = block.valid & (distance < config.coordination_cutoff)
        slope = torch.where(inside, slope * value + count * fall, 0.0)
        return _along(vectors, by_coordination[:, None] * slope / distance, block)


def _along(vectors: Tensor, pull: Tensor, block: PairBlock) -> Tensor:
    return (pull[..., None] * vectors).to(block.vectors.dtype)
