"""ASE's Atoms: from them to a System, and back."""

from typing import Any

import numpy as np
from ase import Atoms
from ase import units as ase_units
from ase.data import atomic_masses

from mdgraph.errors import InputError
from mdgraph.system import System


def from_ase(atoms: Atoms) -> System:
    """Converts ASE's Atoms, copying what it holds.

    The charge is `atoms.info['charge']`, None where it is absent. Constraints are not part
    of a `System`.

    Raises:
        InputError: `info` holds a charge that is no number or a spin that is no singlet, or
            the atoms make no `System`.
    """
    _check_singlet(atoms.info)
    masses: Any = atoms.arrays.get("masses")
    if masses is None and np.isin(atoms.numbers, range(len(atomic_masses))).all():
        masses = atoms.get_masses()
    system = System(
        numbers=atoms.numbers,
        positions=atoms.positions,
        cell=atoms.cell.array,
        pbc=atoms.pbc,
        masses=masses,
        charge=_number(atoms.info, "charge"),
    )
    if not atoms.has("momenta"):
        return system
    momenta = atoms.arrays["momenta"]
    if momenta.dtype.kind not in "iuf" or momenta.shape != system.positions.shape:
        raise InputError(
            f"The momenta have shape {momenta.shape} and type {momenta.dtype}; give numbers of "
            f"shape {system.positions.shape}, or none."
        )
    return system.replace(velocities=momenta / system.masses[:, None] * ase_units.fs)


def to_ase(system: System) -> Atoms:
    """Converts to ASE's Atoms; the charge, where it is known, goes to `info['charge']`."""
    atoms = Atoms(
        numbers=system.numbers,
        positions=system.positions,
        cell=system.cell,
        pbc=system.pbc,
        masses=system.masses,
    )
    if system.velocities is not None:
        atoms.set_velocities(system.velocities / ase_units.fs)
    if system.charge is not None:
        atoms.info["charge"] = system.charge
    return atoms


def _number(info: dict[str, Any], key: str) -> float | None:
    value = info.get(key)
    if value is None:
        return None
    try:
        return float(np.asarray(value).item())
    except (TypeError, ValueError):
        raise InputError(f"info['{key}'] is {value!r}, which is no number; repair it.") from None


def _check_singlet(info: dict[str, Any]) -> None:
    # Two conventions give 0 (unpaired electrons) or 1 (multiplicity) for a singlet.
    for key, singlets in (("spin", (0.0, 1.0)), ("spin_multiplicity", (1.0,))):
        spin = _number(info, key)
        if spin is not None and spin not in singlets:
            raise InputError(
                f"info['{key}'] is {spin:g}, and the potentials know singlets alone; remove it "
                "or give a closed-shell system."
            )
