"""Copper clusters with oxygen on them: frames to import, write, split and check."""

from pathlib import Path
from typing import Any

import numpy as np
from ase import Atoms
from ase.calculators.emt import EMT
from ase.calculators.singlepoint import SinglePointCalculator

from mdgraph.data import LabelledFrame, Provenance, open_dataset, write_dataset

HARTREE, BOHR = 27.211386245988, 0.529177210903


def copper(frames: int = 12, seed: int = 0, size: float = 0.1) -> list[Atoms]:
    """Rattled copper clusters with oxygen on them, with energies and forces of EMT."""
    generator = np.random.default_rng(seed)
    found = []
    for number in range(frames):
        symbols = "Cu4" if number % 2 else "Cu4O"
        places = np.array([[0, 0, 0], [2.5, 0, 0], [0, 2.5, 0], [0, 0, 2.5], [1.3, 1.3, -1.3]])
        atoms = Atoms(symbols, places[: 5 - number % 2])
        atoms.positions += generator.normal(scale=size, size=atoms.positions.shape)
        atoms.calc = EMT()
        energy, forces = atoms.get_potential_energy(), atoms.get_forces()
        atoms.calc = SinglePointCalculator(atoms, energy=energy, forces=forces)
        found.append(atoms)
    return found


def labelled(atoms: Atoms, **changes: Any) -> LabelledFrame:
    values = {
        "numbers": atoms.numbers.astype(np.int64),
        "positions": atoms.positions,
        "energy": atoms.get_potential_energy(),
        "forces": atoms.get_forces(),
        "group": str(atoms.symbols),
    }
    return LabelledFrame(**(values | changes))


def written(path: Path, frames: list[LabelledFrame], file: str = "made") -> Any:
    write_dataset(path, [(frames, Provenance(file))])
    return open_dataset(path)
