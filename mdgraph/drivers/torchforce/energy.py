"""EnergyModule: a potential and the neighbor list of one structure, to be traced."""

import math
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn

from mdgraph.drivers.openmm.units import KILOJOULE_PER_MOLE, NANOMETRE
from mdgraph.engine.calculation import Calculation
from mdgraph.models import Atoms, TensorNetPotential
from mdgraph.neighbors.pairs import PairBlock, Pairs
from mdgraph.system import System

MARGIN: Final = 1.5
"""Slots a row over what the structure needs."""

SHRINKAGE: Final = 0.8
"""How far the box may shrink along a direction before images are missing."""


@dataclass(frozen=True)
class _OneSystem:
    """What potentials ask of a Grouping, by operations that a trace records."""

    counts: Tensor
    atoms: int
    systems: int = 1

    def sum(self, values: Tensor) -> Tensor:
        return values.sum(0, keepdim=True)

    def spread(self, values: Tensor) -> Tensor:
        return values.expand(self.atoms, *values.shape[1:])


class EnergyModule(nn.Module):
    """Energy of the atoms of one structure, with lists of static shape.

    Attributes:
        slots: of a row, for each cutoff.
    """

    numbers: Tensor
    elements: Tensor
    kinds: Tensor
    counts: Tensor
    offsets: Tensor
    steps: Tensor

    def __init__(self, potential: TensorNetPotential, system: System, kind: torch.dtype) -> None:
        """Sizes the lists by the structure; evaluates nothing."""
        super().__init__()
        self.potential = potential.at_precision(kind)
        self._periodic = bool(system.pbc.any())
        found = Calculation([system], potential, device="cpu", skin=0.0, precision="double")
        self.slots = []
        for one in found.lists:
            one.update_(found.state.positions, found.state.cell)
            wanted = math.ceil(MARGIN * int(one.status().found)) + 4
            self.slots.append(wanted)
        numbers = torch.tensor(system.numbers)
        elements, kinds = torch.unique(numbers, return_inverse=True)
        self.register_buffer("numbers", numbers)
        self.register_buffer("elements", elements)
        self.register_buffer("kinds", kinds)
        self.register_buffer("counts", torch.tensor([len(system)]))
        steps = torch.zeros(3, dtype=torch.float64)
        if self._periodic:
            cell = torch.tensor(system.cell)
            reach = max(potential.cutoffs) / (SHRINKAGE * _heights(cell))
            # Beside the nearest image of a pair, which reaches half a box.
            steps = torch.ceil(reach - 0.5).clamp(min=0.0)
        sides = [torch.arange(-int(step), int(step) + 1, dtype=torch.float64) for step in steps]
        self.register_buffer("steps", steps)
        self.register_buffer("offsets", torch.cartesian_prod(*sides).view(-1, 3))

    def forward(self, positions: Tensor, box: Tensor, charge: Tensor) -> Tensor:
        """Positions (N, 3) and box (3, 3) in nm, charge () in e, to kJ/mol."""
        places, cell = NANOMETRE * positions.double(), NANOMETRE * box.double()
        shifts, wrong = self._shifts(places.detach(), cell)
        lists = []
        for cutoff, slots in zip(self.potential.cutoffs, self.slots, strict=True):
            pairs, overflow = self._pairs(places, cell, shifts, cutoff, slots)
            lists.append(pairs)
            wrong = wrong | overflow
        charges = charge.double().view(1)
        grouping: Any = _OneSystem(self.counts, len(self.numbers))
        atoms = Atoms(self.numbers, self.elements, self.kinds, charges, grouping)
        energy = self.potential(atoms, tuple(lists)).sum() / KILOJOULE_PER_MOLE
        # Every atom has its part in the product, also one without neighbors.
        return (energy + 0.0 * places.sum()) * torch.where(wrong, math.nan, 1.0)

    def _shifts(self, places: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        """Lattice steps (N, N or 1, I, 3) of each pair's images, and whether some are missing."""
        if not self._periodic:
            return self.offsets[None, None], torch.isnan(places).any()
        fractions = places @ torch.linalg.inv(cell)
        between = torch.round(fractions[:, None] - fractions)[:, :, None]
        reach = max(self.potential.cutoffs) / _heights(cell)
        missing = (reach > self.steps + 0.5).any()
        return between + self.offsets, missing | torch.isnan(places).any()

    def _pairs(
        self, places: Tensor, cell: Tensor, shifts: Tensor, cutoff: float, slots: int
    ) -> tuple[Pairs, Tensor]:
        atoms, images = len(self.numbers), len(self.offsets)
        with torch.no_grad():
            apart = places.detach()[None] - places.detach()[:, None]
            squared = (apart[:, :, None] + shifts @ cell).square().sum(-1)
            itself = torch.eye(atoms, dtype=torch.bool, device=cell.device)[:, :, None]
            itself = itself & (shifts == 0.0).all(-1)
            squared = torch.where(itself, math.inf, squared).flatten(1)
            inside = squared < cutoff**2
            count = inside.sum(1)
            slots = min(slots, squared.shape[1])
            nearest, slot = torch.topk(squared, slots, dim=1, largest=False)
            valid = (nearest < cutoff**2) & torch.isfinite(nearest)
            row = torch.arange(atoms, device=cell.device)[:, None]
            index = torch.where(valid, slot // images, row)
            steps = shifts.expand(atoms, atoms, images, 3).flatten(1, 2)
            chosen = steps.gather(1, slot[..., None].expand(atoms, slots, 3)) @ cell
            far = 2.0 * cutoff if math.isfinite(cutoff) else 1.0
            beyond = torch.tensor([far, 0.0, 0.0], dtype=torch.float64, device=cell.device)
        vectors = places.index_select(0, index.flatten()).view(atoms, slots, 3)
        vectors = torch.where(valid[..., None], vectors - places[:, None] + chosen, beyond)
        block = PairBlock(vectors, index, valid)
        own = torch.arange(atoms * slots, device=cell.device)
        found = count.clamp(max=slots)
        return Pairs((block,), index, found, own, cutoff), (count > slots).any()


def _heights(cell: Tensor) -> Tensor:
    """Distances (3,) between opposite faces of a cell (3, 3)."""
    return 1.0 / torch.linalg.vector_norm(torch.linalg.inv(cell), dim=0)
