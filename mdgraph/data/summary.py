"""What a data set holds, in numbers."""

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mdgraph.data.composition import compositions
from mdgraph.data.dataset import Dataset
from mdgraph.elements import SYMBOLS


@dataclass(frozen=True, eq=False)
class Summary:
    """Numbers and distributions of a data set.

    Attributes:
        frames: how many.
        atoms: fewest, median and most atoms of a frame.
        elements: atoms of each element.
        groups: frames of each group.
        periodic: frames with at least one periodic direction.
        labelled: frames with an energy, finite forces, a stress, a dipole.
        energies: (M,) eV an atom.
        forces: sizes of the forces on all atoms, eV/A.
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
        """For a person."""
        low, middle, high = self.atoms
        size = f"{low}" if low == high else f"{low} to {high}, median {middle}"
        labelled = ", ".join(f"{count} with {name}" for name, count in self.labelled.items())
        lines = [
            f"frames:    {self.frames} ({labelled}; {self.periodic} periodic)",
            f"atoms:     {size} a frame",
            "elements:  " + ", ".join(f"{name} {n}" for name, n in self.elements.items()),
            "groups:    " + _some(self.groups),
        ]
        known = self.energies[np.isfinite(self.energies)]
        if len(known):
            lines.append(
                f"energy:    {known.mean():.6g} eV an atom, spread {1e3 * known.std():.4g} meV "
                "an atom"
            )
        if len(self.forces):
            root = float(np.sqrt((self.forces**2).mean() / 3.0))
            lines.append(
                f"forces:    {root:.4g} eV/A root mean square a component, largest "
                f"{self.forces.max():.4g} eV/A"
            )
        return lines


def _some(groups: dict[str, int]) -> str:
    shown = [f"{name or 'unnamed'} {count}" for name, count in list(groups.items())[:8]]
    return ", ".join(shown) + (f" and {len(groups) - 8} more" if len(groups) > 8 else "")


def summarize(dataset: Dataset) -> Summary:
    """Reads all frames once."""
    elements, counts = compositions(dataset)
    sizes, whole = [np.zeros(0)], 0
    for start in range(0, len(dataset), 1000):
        stop = min(start + 1000, len(dataset))
        forces = np.linalg.norm(dataset.column("forces", start, stop), axis=1)
        sizes.append(forces[np.isfinite(forces)])
        owner = np.repeat(np.arange(stop - start), dataset.atoms[start:stop])
        whole += stop - start - len(np.unique(owner[~np.isfinite(forces)]))
    names = Counter(dataset.groups[group] for group in dataset.group)
    ordered = np.sort(dataset.atoms)
    return Summary(
        frames=len(dataset),
        atoms=(int(ordered[0]), int(ordered[len(ordered) // 2]), int(ordered[-1])),
        elements={
            SYMBOLS[number]: int(count)
            for number, count in zip(elements, counts.sum(0), strict=True)
        },
        groups=dict(names.most_common()),
        periodic=int(dataset.pbc.any(1).sum()),
        labelled={
            "energy": int(np.isfinite(dataset.energy).sum()),
            "forces": whole,
            "stress": int(np.isfinite(dataset.stress).all((1, 2)).sum()),
            "dipole": int(np.isfinite(dataset.dipole).all(1).sum()),
        },
        energies=dataset.energy / dataset.atoms,
        forces=np.concatenate(sizes),
    )
