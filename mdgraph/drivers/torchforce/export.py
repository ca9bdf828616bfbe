"""Exports a potential as a TorchScript module for OpenMM-Torch's TorchForce.

For the releases of OpenMM that still load one (`docs/drivers.md`). The module holds the atoms
of one structure, their neighbor list included, in static shapes. What the list cannot hold
makes the energy and every force NaN, so that a run stops: a factor of NaN does, where choosing
NaN instead of the energy would have no gradient at all.
"""

import io
import json
import math
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from mdgraph.arguments import checked
from mdgraph.devices import device_named
from mdgraph.drivers.openmm.topology import KILOJOULE_PER_MOLE, NANOMETRE
from mdgraph.engine.calculation import Calculation
from mdgraph.errors import InputError
from mdgraph.io.files import refuse_existing, write_atomically
from mdgraph.models import Atoms, TensorNetPotential, check_species
from mdgraph.neighbors.pairs import PairBlock, Pairs
from mdgraph.precision import precision_named
from mdgraph.system import System, total_charge

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


class _Wrapper(nn.Module):
    """What TorchForce calls, by its own order of arguments."""

    box: Tensor
    charge: Tensor

    def __init__(self, energy: torch.jit.ScriptModule, box: Tensor, charge: Tensor) -> None:
        super().__init__()
        self.energy = energy
        self.register_buffer("box", box)
        self.register_buffer("charge", charge)


class _Periodic(_Wrapper):
    def forward(self, positions: Tensor, box: Tensor, charge: Tensor | None = None) -> Tensor:
        charge = self.charge if charge is None else charge
        energy: Tensor = self.energy(positions, box, charge)
        return energy


class _Isolated(_Wrapper):
    def forward(self, positions: Tensor, charge: Tensor | None = None) -> Tensor:
        charge = self.charge if charge is None else charge
        energy: Tensor = self.energy(positions, self.box, charge)
        return energy


class _PeriodicForces(_Wrapper):
    def forward(
        self, positions: Tensor, box: Tensor, charge: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        charge = self.charge if charge is None else charge
        places = positions.detach().requires_grad_(True)
        energy: Tensor = self.energy(places, box, charge)
        gradient = torch.autograd.grad([energy], [places])[0]
        assert gradient is not None
        return energy.detach(), -gradient


class _IsolatedForces(_Wrapper):
    def forward(self, positions: Tensor, charge: Tensor | None = None) -> tuple[Tensor, Tensor]:
        charge = self.charge if charge is None else charge
        places = positions.detach().requires_grad_(True)
        energy: Tensor = self.energy(places, self.box, charge)
        gradient = torch.autograd.grad([energy], [places])[0]
        assert gradient is not None
        return energy.detach(), -gradient


WRAPPERS: Final = {
    (True, False): _Periodic,
    (False, False): _Isolated,
    (True, True): _PeriodicForces,
    (False, True): _IsolatedForces,
}
"""By whether there is a box, and whether forces are given."""


LARGEST: Final = 5000
"""Atoms; the list looks at every pair."""


@checked
def export_torchforce(
    potential: TensorNetPotential,
    system: System,
    path: str | Path,
    *,
    forces: bool = False,
    precision: str = "mixed",
    device: str = "cpu",
    overwrite: bool = False,
) -> None:
    """Writes the module for the atoms of a structure.

    `forward(positions[, box][, charge])` takes nm and e, gives kJ/mol, or with `forces` the
    pair of energy and forces in kJ/mol/nm, for `setOutputsForces(True)`. The box is there where the
    structure is periodic, for `setUsesPeriodicBoundaryConditions(True)`; the charge is the
    structure's unless the force has a global parameter for it.

    Args:
        potential: what to write.
        system: its atoms; periodic in all directions or in none.
        path: the file to appear.
        forces: whether the module gives forces too.
        precision: `mixed`, `single` or `double`.
        device: where the module will run; CPU for the Reference and CPU platforms.
        overwrite: whether a file that exists is replaced.

    Raises:
        InputError: atoms that the potential does not take, too many of them, or a slab.
        FileError: the file exists or the disk refused.
    """
    path = Path(path)
    refuse_existing(path, overwrite=overwrite)
    check_species(potential.species, system.numbers.tolist())
    if len(set(system.pbc.tolist())) > 1:
        raise InputError("OpenMM is periodic in all directions or in none; so must the atoms be.")
    if len(system) > LARGEST:
        raise InputError(
            f"The module looks at every pair of atoms, and {len(system)} are too many; export at "
            f"most {LARGEST}, or use mdgraph.drivers.openmm or openmm-ml."
        )
    place = device_named(device)
    model = EnergyModule(potential, system, precision_named(precision).network).to(place)
    example = [
        torch.tensor(system.positions / NANOMETRE, device=place),
        torch.tensor(system.cell / NANOMETRE, device=place),
        torch.tensor(total_charge(system), dtype=torch.float64, device=place),
    ]
    with warnings.catch_warnings():
        # TorchScript is what TorchForce reads, however old it is.
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(model, example, check_trace=False)
        kind = WRAPPERS[bool(system.pbc.any()), forces]
        module = torch.jit.script(kind(traced, example[1], example[2]))
        record = {"atoms": len(system), "numbers": system.numbers.tolist(), "forces": forces}
        # `save` hides what the disk said.
        content = io.BytesIO()
        torch.jit.save(module, content, _extra_files={"mdgraph.json": json.dumps(record)})
    write_atomically(path, lambda part: part.write_bytes(content.getvalue()), new=not overwrite)
