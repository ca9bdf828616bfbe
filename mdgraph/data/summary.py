"""The numerical summary of a data set."""

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mdgraph.data.dataset import Dataset, compositions
from mdgraph.units import SYMBOLS


@dataclass(frozen=True, eq=False)
class Summary:
    """Numbers and distributions of a data set.

    Attributes:
        frames: number of frames.
        atoms: smallest, median and largest number of atoms of a frame.
        elements: number of atoms of each element.
        groups: number of frames of each group.
        periodic: number of frames with at least one periodic direction.
        labelled: number of frames with an energy, finite forces, a stress, a dipole.
        energies: (M,) eV per atom.
        forces: norms of the forces on all atoms, eV/A.
    """

    frames: int
    atoms: tuple[int, int, int]
    elements: dict[str, int]
    groups: dict[str, int]
    periodic: int
    labelled: dict[str, int]
    energies: NDArray[np.float64]
    forces: NDArray[np.float64]

    def lines(self) -> list[str]:
        """Lines of text for printing."""
        low, middle, high = self.atoms
        size = f"{low}" if low == high else f"{low} to {high}, median {middle}"
        labelled = ", ".join(f"{count} with {name}" for name, count in self.labelled.items())
        lines = [
            f"frames:    {self.frames} ({labelled}; {self.periodic} periodic)",
            f"atoms:     {size} a frame",
            "elements:  " + ", ".join(f"{name} {n}" for name, n in self.elements.items()),
            "groups:    " + _first_groups(self.groups),
        ]
        energies = self.energies[np.isfinite(self.energies)]
        if len(energies):
            lines.append(
                f"energy:    {energies.mean():.6g} eV an atom, spread {1e3 * energies.std():.4g} "
                "meV an atom"
            )
        if len(self.forces):
            rms = float(np.sqrt((self.forces**2).mean() / 3.0))
            lines.append(
                f"forces:    {rms:.4g} eV/A root mean square a component, largest "
                f"{self.forces.max():.4g} eV/A"
            )
        return lines


def _first_groups(groups: dict[str, int]) -> str:
    texts = [f"{name or 'unnamed'} {count}" for name, count in list(groups.items())[:8]]
    return ", ".join(texts) + (f" and {len(groups) - 8} more" if len(groups) > 8 else "")


def summarize(dataset: Dataset) -> Summary:
    """Counts frames, elements, groups and labels of a data set; reads all frames once."""
    elements, counts = compositions(dataset)
    sizes, with_forces = [np.zeros(0)], 0
    for start in range(0, len(dataset), 1000):
        stop = min(start + 1000, len(dataset))
        forces = np.linalg.norm(dataset.column("forces", start, stop), axis=1)
        sizes.append(forces[np.isfinite(forces)])
        owner = np.repeat(np.arange(stop - start), dataset.atoms[start:stop])
        with_forces += stop - start - len(np.unique(owner[~np.isfinite(forces)]))
    names = Counter(dataset.groups[group] for group in dataset.group)
    sorted_atoms = np.sort(dataset.atoms)
    return Summary(
        frames=len(dataset),
        atoms=(
            int(sorted_atoms[0]),
            int(sorted_atoms[len(sorted_atoms) // 2]),
            int(sorted_atoms[-1]),
        ),
        elements={
            SYMBOLS[number]: int(count)
            for number, count in zip(elements, counts.sum(0), strict=True)
        },
        groups=dict(names.most_common()),
        periodic=int(dataset.pbc.any(1).sum()),
        labelled={
            "energy": int(np.isfinite(dataset.energy).sum()),
            "forces": with_forces,
            "stress": int(np.isfinite(dataset.stress).all((1, 2)).sum()),
            "dipole": int(np.isfinite(dataset.dipole).all(1).sum()),
        },
        energies=dataset.energy / dataset.atoms,
        forces=np.concatenate(sizes),
    )
