"""Energies and forces by PySCF, and splits of the data sets that they are added to."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ase import Atoms
from numpy.typing import NDArray

from mdgraph.data import Split, open_dataset
from mdgraph.data.keys import ENERGY, LENGTH
from mdgraph.data.splits import write_split


def molecule_of(atoms: Atoms, basis: str) -> Any:
    """A molecule of PySCF, without a charge, with closed shells."""
    from pyscf import gto

    places = zip(atoms.get_chemical_symbols(), atoms.positions, strict=True)
    return gto.M(atom=list(places), basis=basis, verbose=0)


def solved(field: Any, **start: Any) -> tuple[float, NDArray[np.float64]] | None:
    """Energy, eV, and forces (N, 3), eV/A; None if a field does not converge from its start."""
    energy = float(field.kernel(**start)) * ENERGY["hartree"]
    if not field.converged:
        return None
    return energy, -field.nuc_grad_method().kernel() * ENERGY["hartree"] / LENGTH["bohr"]


def write_split_with(target: Path, split: Split, count: int, trained: int, how: str) -> None:
    """Writes the split of a data set whose first frames are those of another one.

    Args:
        target: the data set; its split lies beside it, with .json.
        split: of the other one.
        count: its frames.
        trained: frames after those that are trained on; the rest are held out.
        how: the split was made.
    """
    with open_dataset(target) as whole:
        added = np.arange(count, len(whole))
        parts: Sequence[NDArray[np.int64]] = (
            np.concatenate([split.train, added[:trained]]),
            np.concatenate([split.validation, added[trained:]]),
            split.test,
        )
        write_split(Split(*parts, how, whole.sha256()), target.with_suffix(".json"))
