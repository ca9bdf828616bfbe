"""Harmonic restraints: springs that hold atoms near points."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from mdgraph.arguments import real_array, shown, whole_numbers
from mdgraph.errors import InputError, name_some
from mdgraph.neighbors.geometry import complete_cell, inverse
from mdgraph.state import State


@dataclass(frozen=True, eq=False)
class PositionRestraints:
    """Springs between atoms and points, U = sum k/2 |x - x0|^2.

    A point moves with the cell: its fractional coordinates along periodic directions stay.
    The virial is -k d (x) d with d = x - x0, whatever the origin.

    Attributes:
        atoms: indices among all systems' atoms.
        stiffness: k, eV/A^2, or one for each of them.
        points: x0, (n, 3) A; where the atoms are at the start unless given.
    """

    atoms: Sequence[int]
    stiffness: float | Sequence[float]
    points: ArrayLike | None = None

    def __post_init__(self) -> None:
        """Raises InputError for atoms that are no indices, and what else is no numbers."""
        whole_numbers(self.atoms, "The restrained atoms")
        for name, value in (("stiffness", self.stiffness), ("points", self.points)):
            if real_array(value) is None and (value is not None or name == "stiffness"):
                raise InputError(
                    f"The {name} of restraints is {shown(value)}; give numbers, of eV/A^2 or A."
                )

    def within(self, atoms: range) -> "PositionRestraints | None":
        """The springs on some of the atoms, counted from the first of these; None without any.

        Raises:
            InputError: stiffnesses or points that are not one for each restrained atom.
        """
        given = [np.asarray(one) for one in (self.stiffness, self.points) if one is not None]
        if any(one.ndim and len(one) != len(self.atoms) for one in given):
            raise InputError(
                f"There are {len(self.atoms)} restrained atoms; give a point and a stiffness for "
                "each, or one stiffness for all."
            )
        chosen = [place for place, atom in enumerate(self.atoms) if atom in atoms]
        if not chosen:
            return None
        stiffness, points = self.stiffness, self.points
        if np.ndim(stiffness):
            stiffness = np.asarray(stiffness, dtype=float)[chosen].tolist()
        if points is not None:
            points = np.asarray(points, dtype=float)[chosen]
        own = [self.atoms[place] - atoms.start for place in chosen]
        return PositionRestraints(own, stiffness, points)

    def settings(self) -> dict[str, Any]:
        """What goes into the record of a run."""
        return {
            "atoms": [int(atom) for atom in self.atoms],
            "stiffness_eV_per_A2": np.asarray(self.stiffness, dtype=float).tolist(),
            "points_A": None if self.points is None else np.asarray(self.points).tolist(),
        }


class Springs:
    """Restraints on the device, one spring an atom; most have no stiffness."""

    def __init__(self, restraints: PositionRestraints, state: State) -> None:
        """Allocates; reads the device.

        Raises:
            InputError: an atom that is not there or is named twice, a stiffness that is no
                positive number, points of another shape.
        """
        self.restraints = restraints
        atoms = [int(atom) for atom in restraints.atoms]
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
            given = np.asarray(restraints.points, dtype=float)
            if given.shape != (len(atoms), 3) or not np.isfinite(given).all():
                raise InputError(
                    f"The points of restraints have shape {given.shape}; give one finite point "
                    f"for each of the {len(atoms)} atoms."
                )
            points[atoms] = torch.tensor(given, device=state.device)
        self._stiffness = torch.zeros(count, 1, dtype=torch.float64, device=state.device)
        self._stiffness[atoms] = torch.tensor(
            np.broadcast_to(stiffness, len(atoms)).copy(), device=state.device
        )[:, None]
        self._points = points
        self._inverse = inverse(complete_cell(state.cell.double(), state.pbc))

    def restrained(self, state: State) -> list[bool]:
        """Which systems have a spring; reads the device."""
        found: list[bool] = (state.grouping.sum(self._stiffness)[:, 0] > 0.0).tolist()
        return found

    def tensors(self) -> dict[str, Tensor]:
        """Where the springs end, by name; the buffers themselves."""
        return {"points": self._points, "inverse_cell": self._inverse}

    def add_(self, state: State) -> None:
        """Adds energies, forces and virial; static shapes, does not sync."""
        now = complete_cell(state.cell.double(), state.pbc)
        moved = self._inverse @ now
        points = (self._points[:, None] @ moved[state.grouping.index])[:, 0]
        away = state.places() - points
        pull = self._stiffness * away
        energies = 0.5 * (pull * away).sum(-1)
        state.forces -= pull
        state.energies += energies
        state.energy += state.grouping.sum(energies)
        state.virial -= state.grouping.sum(pull[:, :, None] * away[:, None])
