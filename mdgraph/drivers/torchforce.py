"""Exports a potential as a TorchScript module for OpenMM-Torch's TorchForce.

For the releases of OpenMM that still load one (`docs/drivers.md`). The module is made for the
atoms of one structure, and computes their neighbor list in static shapes. Where the list
overflows, the energy and every force become NaN, so that the run stops. The energy is multiplied
by NaN, because replacing it by NaN would leave it without a gradient.
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
from mdgraph.engine.calculation import Calculation
from mdgraph.errors import InputError
from mdgraph.io.files import refuse_existing, write_atomically
from mdgraph.models import AbsolutePositions, Atoms, PotentialModule, check_species
from mdgraph.neighbors.pairs import PairBlock, Pairs
from mdgraph.precision import precision_named
from mdgraph.system import System, total_charge
from mdgraph.units import KILOJOULE_PER_MOLE, NANOMETRE

__all__ = ["export_torchforce"]

MARGIN: Final = 1.5
"""Slots for the neighbors of an atom, over the most that the structure needs."""

SHRINKAGE: Final = 0.8
"""The box may shrink to this part of its heights before images are missing."""


@dataclass(frozen=True)
class _OneSystem:
    """Stands for a Grouping of one system, by operations that torch can trace."""

    counts: Tensor
    atoms: int
    systems: int = 1

    def sum(self, values: Tensor) -> Tensor:
        return values.sum(0, keepdim=True)

    def spread(self, values: Tensor) -> Tensor:
        return values.expand(self.atoms, *values.shape[1:])


class EnergyModule(nn.Module):
    """Energy of the atoms of one structure, with neighbor lists of static shape.

    Attributes:
        slots: most neighbors of an atom, for each cutoff.
    """

    numbers: Tensor
    elements: Tensor
    kinds: Tensor
    counts: Tensor
    pbc: Tensor
    offsets: Tensor
    steps: Tensor

    def __init__(self, potential: PotentialModule, system: System, dtype: torch.dtype) -> None:
        """Sizes the lists by the structure; evaluates nothing.

        Args:
            potential: for the energy.
            system: the structure.
            dtype: of the network.
        """
        super().__init__()
        self.potential = potential.at_precision(dtype)
        self._periodic = bool(system.pbc.any())
        calculation = Calculation([system], potential, device="cpu", skin=0.0, precision="double")
        self.slots = []
        for pairs in calculation.lists:
            pairs.update_(calculation.state.positions, calculation.state.cell)
            self.slots.append(math.ceil(MARGIN * int(pairs.status().most_neighbors)) + 4)
        numbers = torch.tensor(system.numbers)
        elements, kinds = torch.unique(numbers, return_inverse=True)
        self.register_buffer("numbers", numbers)
        self.register_buffer("elements", elements)
        self.register_buffer("kinds", kinds)
        self.register_buffer("counts", torch.tensor([len(system)]))
        self.register_buffer("pbc", torch.tensor(system.pbc)[None])
        steps = torch.zeros(3, dtype=torch.float64)
        if self._periodic:
            cell = torch.tensor(system.cell)
            reach = max(potential.cutoffs, default=0.0) / (SHRINKAGE * _heights(cell))
            # The nearest image of a pair reaches half a box by itself.
            steps = torch.ceil(reach - 0.5).clamp(min=0.0)
        sides = [torch.arange(-int(step), int(step) + 1, dtype=torch.float64) for step in steps]
        self.register_buffer("steps", steps)
        self.register_buffer("offsets", torch.cartesian_prod(*sides).view(-1, 3))

    def forward(self, positions: Tensor, box: Tensor, charge: Tensor) -> Tensor:
        """Energy () in kJ/mol, from positions (N, 3) and box (3, 3) in nm and charge () in e."""
        places, cell = NANOMETRE * positions.double(), NANOMETRE * box.double()
        shifts, wrong = self._shifts(places.detach(), cell)
        lists = []
        for cutoff, slots in zip(self.potential.cutoffs, self.slots, strict=True):
            pairs, overflow = self._pairs(places, cell, shifts, cutoff, slots)
            lists.append(pairs)
            wrong = wrong | overflow
        charges = charge.double().view(1)
        grouping: Any = _OneSystem(self.counts, len(self.numbers))
        absolute = AbsolutePositions(
            places, cell[None], self.pbc, torch.arange(len(self.numbers), device=places.device)
        )
        atoms = Atoms(self.numbers, self.elements, self.kinds, charges, grouping, absolute)
        energy = self.potential(atoms, tuple(lists)).sum() / KILOJOULE_PER_MOLE
        # NaN must reach the force of every atom, also of one without neighbors.
        return (energy + 0.0 * places.sum()) * torch.where(wrong, math.nan, 1.0)

    def _shifts(self, places: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
        """Lattice steps (N, N or 1, I, 3) of the images of each pair; whether some are missing."""
        if not self._periodic:
            return self.offsets[None, None], torch.isnan(places).any()
        fractions = places @ torch.linalg.inv(cell)
        between = torch.round(fractions[:, None] - fractions)[:, :, None]
        reach = max(self.potential.cutoffs, default=0.0) / _heights(cell)
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
        listed = count.clamp(max=slots)
        return Pairs((block,), index, listed, own, cutoff), (count > slots).any()


def _heights(cell: Tensor) -> Tensor:
    """Distances (3,) between opposite faces of a cell (3, 3)."""
    return 1.0 / torch.linalg.vector_norm(torch.linalg.inv(cell), dim=0)


class _Wrapper(nn.Module):
    """Base of the modules that TorchForce calls, with its order of arguments."""

    box: Tensor
    charge: Tensor

    def __init__(self, energy: torch.jit.ScriptModule, box: Tensor, charge: Tensor) -> None:
        super().__init__()
        self.energy = energy
        self.register_buffer("box", box)
        self.register_buffer("charge", charge)

    def evaluate(self, positions: Tensor, box: Tensor, charge: Tensor | None) -> Tensor:
        """Energy () in kJ/mol; the charge is that of the structure unless given."""
        energy: Tensor = self.energy(positions, box, self.charge if charge is None else charge)
        return energy

    def differentiate(
        self, positions: Tensor, box: Tensor, charge: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Energy () in kJ/mol and forces (N, 3) in kJ/mol/nm."""
        places = positions.detach().requires_grad_(True)
        energy = self.evaluate(places, box, charge)
        gradient = torch.autograd.grad([energy], [places])[0]
        assert gradient is not None
        return energy.detach(), -gradient


class _Periodic(_Wrapper):
    def forward(self, positions: Tensor, box: Tensor, charge: Tensor | None = None) -> Tensor:
        return self.evaluate(positions, box, charge)


class _Isolated(_Wrapper):
    def forward(self, positions: Tensor, charge: Tensor | None = None) -> Tensor:
        return self.evaluate(positions, self.box, charge)


class _PeriodicForces(_Wrapper):
    def forward(
        self, positions: Tensor, box: Tensor, charge: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        return self.differentiate(positions, box, charge)


class _IsolatedForces(_Wrapper):
    def forward(self, positions: Tensor, charge: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return self.differentiate(positions, self.box, charge)


WRAPPERS: Final = {
    (True, False): _Periodic,
    (False, False): _Isolated,
    (True, True): _PeriodicForces,
    (False, True): _IsolatedForces,
}
"""By whether there is a box, and whether the module returns forces."""


LARGEST: Final = 5000
"""Most atoms; the time of the list grows with their square."""


@checked
def export_torchforce(
    potential: PotentialModule,
    system: System,
    path: str | Path,
    *,
    forces: bool = False,
    precision: str = "mixed",
    device: str = "cpu",
    overwrite: bool = False,
) -> None:
    """Writes a TorchScript module for the atoms of a structure, in OpenMM's units.

    The module has `forward(positions[, box][, charge])`, with positions (N, 3) and box (3, 3) in
    nm and the charge in e. It returns the energy () in kJ/mol, or with `forces` the energy and
    the forces (N, 3) in kJ/mol/nm, for `setOutputsForces(True)`. It takes a box if the structure
    is periodic, for `setUsesPeriodicBoundaryConditions(True)`. Its charge is the structure's,
    unless the force has a global parameter for it.

    Args:
        potential: the module computes its energy.
        system: the structure; periodic in all directions or in none.
        path: of the new file.
        forces: whether the module returns forces too.
        precision: `mixed`, `single` or `double`.
        device: the module will run there; `cpu` for the Reference and CPU platforms.
        overwrite: whether to replace a file at `path`.

    Raises:
        InputError: species that the potential does not know, more than 5,000 atoms, or a slab.
        FileError: the file exists, or cannot be written.
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
    target = device_named(device)
    model = EnergyModule(potential, system, precision_named(precision).network).to(target)
    example = [
        torch.tensor(system.positions / NANOMETRE, device=target),
        torch.tensor(system.cell / NANOMETRE, device=target),
        torch.tensor(total_charge(system), dtype=torch.float64, device=target),
    ]
    with warnings.catch_warnings():
        # TorchForce reads TorchScript, which torch warns about.
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(model, example, check_trace=False)
        wrapper = WRAPPERS[bool(system.pbc.any()), forces]
        module = torch.jit.script(wrapper(traced, example[1], example[2]))
        record = {"atoms": len(system), "numbers": system.numbers.tolist(), "forces": forces}
        # Into memory first: torch hides the errors of the disk.
        content = io.BytesIO()
        torch.jit.save(module, content, _extra_files={"mdgraph.json": json.dumps(record)})
    write_atomically(path, content.getvalue(), new=not overwrite)
