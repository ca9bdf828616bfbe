"""A potential as a TorchScript module for OpenMM-Torch's TorchForce.

For the releases of OpenMM that still load one (`docs/drivers.md`). The module holds the atoms
of one structure, their neighbor list included, in static shapes. What the list cannot hold
makes the energy and every force NaN, so that a run stops: a factor of NaN does, where choosing
NaN instead of the energy would have no gradient at all.
"""

import io
import json
import warnings
from pathlib import Path
from typing import Final

import torch

from mdgraph.arguments import checked
from mdgraph.devices import device_named
from mdgraph.drivers.openmm.units import NANOMETRE
from mdgraph.drivers.torchforce.energy import EnergyModule
from mdgraph.drivers.torchforce.wrappers import WRAPPERS
from mdgraph.errors import InputError
from mdgraph.io.files import refuse_existing, write_atomically
from mdgraph.models import TensorNetPotential, check_species
from mdgraph.precision import precision_named
from mdgraph.system import System, total_charge

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
