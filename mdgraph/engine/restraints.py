"""Harmonic restraints: springs between atoms and points."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from mdgraph.arguments import real_array, shown, whole_numbers
from mdgraph.errors import InputError, name_some
from mdgraph.neighbors.geometry import complete_cell, inverse
from mdgraph.selection import check_selection, select_in_all
from mdgraph.state import State
from mdgraph.system import System


@dataclass(frozen=True, eq=False)
class PositionRestraints:
    """Springs between atoms and points, U = sum k/2 |x - x0|^2.

    A point moves with the cell: its fractional coordinates along periodic directions are
    constant. The virial is -k d (x) d with d = x - x0 and does not depend on the origin.

    Attributes:
        atoms: (n,) indices, counted over the atoms of all systems, or a selection such as
            `element O`, which a simulation applies to the initial structure of each system.
        stiffness: k, eV/A^2, one number or n.
        points: x0, (n, 3) A; default: the initial positions.
    """

    atoms: Sequence[int] | str
    stiffness: float | Sequence[float]
    points: ArrayLike | None = None

    def __post_init__(self) -> None:
        """Raises InputError if atoms are neither indices nor a selection, or others no numbers."""
        if isinstance(self.atoms, str):
            check_selection(self.atoms)
        else:
            whole_numbers(self.atoms, "The restrained atoms")
        for name, value in (("stiffness", self.stiffness), ("points", self.points)):
            if real_array(value) is None and (value is not None or name == "stiffness"):
                raise InputError(
                    f"The {name} of restraints is {shown(value)}; give numbers, of eV/A^2 or A."
                )

    @property
    def indices(self) -> list[int]:
        """The atoms, if they are no selection."""
        return [int(atom) for atom in self.atoms]

    def applied_to(self, systems: Sequence[System]) -> "PositionRestraints":
        """The restraints by indices of atoms; raises InputError as `select_atoms` does."""
        if not isinstance(self.atoms, str):
            return self
        return replace(self, atoms=select_in_all(self.atoms, systems))

    def within(self, atoms: range) -> "PositionRestraints | None":
        """The restraints of a range of atoms, counted from its first one; None if there are none.

        Raises:
            InputError: the number of stiffnesses or points differs from that of restrained atoms.
        """
        indices = self.indices
        values = [np.asarray(value) for value in (self.stiffness, self.points) if value is not None]
        if any(value.ndim and len(value) != len(indices) for value in values):
            raise InputError(
                f"There are {len(indices)} restrained atoms; give a point and a stiffness for "
                "each, or one stiffness for all."
            )
        places = [place for place, atom in enumerate(indices) if atom in atoms]
        if not places:
            return None
        stiffness, points = self.stiffness, self.points
        if np.ndim(stiffness):
            stiffness = np.asarray(stiffness, dtype=float)[places].tolist()
        if points is not None:
            points = np.asarray(points, dtype=float)[places]
        own = [indices[place] - atoms.start for place in places]
        return PositionRestraints(own, stiffness, points)

    def settings(self) -> dict[str, Any]:
        """Settings for `run.json` and restart files."""
        return {
            "atoms": self.indices,
            "stiffness_eV_per_A2": np.asarray(self.stiffness, dtype=float).tolist(),
            "points_A": None if self.points is None else np.asarray(self.points).tolist(),
        }


class Springs:
    """Restraints on the device, as one spring for each atom; most have stiffness 0."""

    def __init__(self, restraints: PositionRestraints, state: State) -> None:
        """Allocates; syncs.

        Raises:
            InputError: an atom that does not exist or is named twice, a stiffness that is not
                positive and finite, or points of another shape.
        """
        self.restraints = restraints
        atoms = restraints.indices
        count = state.grouping.atoms
        times = Counter(atoms)
        wrong = [atom for atom in times if not 0 <= atom < count or times[atom] > 1]
        if wrong:
            raise InputError(
                f"Atoms {name_some(wrong)} are restrained twice or are not there; give each of "
                f"the atoms from 0 to {count - 1} once at most."
            )
        stiffness = np.asarray(restraints.stiffness, dtype=float)
        if stiffness.shape not in ((), (len(atoms),)) or not (
            np.isfinite(stiffness).all() and (stiffness > 0.0).all()
        ):
            raise InputError(
                "The stiffness of a restraint is a number of eV/A^2 above zero; give one, or one "
                "for each restrained atom."
            )
        points = state.places().clone()
        if restraints.points is not None:
            ends = np.asarray(restraints.points, dtype=float)
            if ends.shape != (len(atoms), 3) or not np.isfinite(ends).all():
                raise InputError(
                    f"The points of restraints have shape {ends.shape}; give one finite point "
                    f"for each of the {len(atoms)} atoms."
                )
            points[atoms] = torch.tensor(ends, device=state.device)
        self._stiffness = torch.zeros(count, 1, dtype=torch.float64, device=state.device)
        self._stiffness[atoms] = torch.tensor(
            np.broadcast_to(stiffness, len(atoms)).copy(), device=state.device
        )[:, None]
        self._points = points
        self._inverse = inverse(complete_cell(state.cell.double(), state.pbc))

    def restrained(self, state: State) -> list[bool]:
        """Whether each system has a spring; syncs."""
        has_spring: list[bool] = (state.grouping.sum(self._stiffness)[:, 0] > 0.0).tolist()
        return has_spring

    def tensors(self) -> dict[str, Tensor]:
        """Buffers for snapshots and restart files, by name; not copies."""
        return {"points": self._points, "inverse_cell": self._inverse}

    def add_(self, state: State) -> Tensor:
        """Adds energies, forces and virial to the state; static shapes, does not sync.

        Returns:
            (N, 3) float64, eV/A, what it took from the forces.
        """
        cell = complete_cell(state.cell.double(), state.pbc)
        deformation = self._inverse @ cell
        points = (self._points[:, None] @ deformation[state.grouping.index])[:, 0]
        displacement = state.places() - points
        pull = self._stiffness * displacement
        energies = 0.5 * (pull * displacement).sum(-1)
        state.forces -= pull
        state.energies += energies
        state.energy += state.grouping.sum(energies)
        state.virial -= state.grouping.sum(pull[:, :, None] * displacement[:, None])
        return pull
