"""Change: another seed, charge or cell for a simulation under way, checked like a new one."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from mdgraph.arguments import check_fields, real_array, shown, whole_number
from mdgraph.engine.calculation import Calculation
from mdgraph.engine.lengths import completed
from mdgraph.engine.online import MeanSquaredDisplacement, OnlineObservable
from mdgraph.errors import InputError
from mdgraph.fused.clusters import systems_of
from mdgraph.state import State
from mdgraph.system import System


@dataclass(frozen=True)
class Change:
    """What is to be another one; None leaves it.

    Attributes:
        seed: key of random numbers.
        charge: e, of all systems, or one for each.
        cell: (3, 3) A, of all systems, or (S, 3, 3), one for each.
        move_atoms: whether scaled positions along periodic directions stay, or positions.
    """

    seed: int | None = None
    charge: float | Sequence[float] | None = None
    cell: ArrayLike | None = None
    move_atoms: bool = True

    def __post_init__(self) -> None:
        """Raises InputError for a seed that is none."""
        check_fields(self)
        if self.seed is not None:
            whole_number(self.seed, "The seed")

    @classmethod
    def split(cls, values: Mapping[str, Any]) -> tuple["Change", dict[str, Any]]:
        """What is named here, and the rest."""
        own = {one.name for one in fields(cls)}
        rest = {name: value for name, value in values.items() if name not in own}
        return cls(**{name: value for name, value in values.items() if name in own}), rest

    def check_records(self, records: Iterable[OnlineObservable]) -> None:
        """Raises InputError where a cell that carries its atoms along would spoil a record."""
        moves = self.cell is not None and self.move_atoms
        for one in records:
            if moves and isinstance(one, MeanSquaredDisplacement):
                raise InputError(
                    f"A new cell would carry its atoms along, which the {one.kind} takes for "
                    "diffusion; keep all positions by move_atoms=False, or make a new simulation."
                )

    def systems(self, calculation: Calculation) -> list[System] | None:
        """Changed systems, or None where only the seed is; reads the device.

        Raises:
            InputError: numbers that cannot be, a charge the potential cannot take, a cell that
                does not fit the atoms, that spans a volume where the old one did not or the
                reverse, or that would move fixed atoms.
        """
        if self.charge is None and self.cell is None:
            return None
        systems = systems_of(calculation.state)
        if self.charge is not None:
            charges = _of_each("charge", self.charge, (), len(systems)).tolist()
            systems = [one.replace(charge=own) for one, own in zip(systems, charges, strict=True)]
        if self.cell is not None:
            if self.move_atoms and bool(calculation.state.fixed.any()):
                raise InputError(
                    "Fixed atoms would move with the cell; keep all positions by move_atoms=False."
                )
            cells = _of_each("cell", self.cell, (3, 3), len(systems))
            pairs = zip(systems, cells, strict=True)
            systems = [_in_cell(one, own, self.move_atoms) for one, own in pairs]
        calculation.check(systems)
        return systems


def write_(state: State, systems: Sequence[System]) -> None:
    """Writes charges, cells and positions into the buffers that graphs read."""
    charges = [one.charge for one in systems]
    state.charge.copy_(torch.tensor(charges, dtype=torch.float64))
    state.cell.copy_(torch.tensor(np.stack([one.cell for one in systems])))
    state.positions.copy_(torch.tensor(np.concatenate([one.positions for one in systems])))


def _of_each(
    name: str, value: ArrayLike, shape: tuple[int, ...], count: int
) -> NDArray[np.float64]:
    """(S, *shape) from one value for all systems, or one for each."""
    array = real_array(value)
    if array is None or array.shape not in (shape, (count, *shape)) or not np.isfinite(array).all():
        one = f"{shape} of them" if shape else "one"
        raise InputError(
            f"The {name} is {shown(value)}; give finite numbers, {one} for all "
            f"systems or for each of the {count}."
        )
    return np.broadcast_to(array, (count, *shape))


def _in_cell(system: System, cell: NDArray[np.float64], move_atoms: bool) -> System:
    found = system.replace(cell=cell)
    rank, before = (int(np.linalg.matrix_rank(one.cell)) for one in (found, system))
    if rank != before:
        raise InputError(
            f"The cell has {rank} independent vectors and had {before}; make a new simulation."
        )
    if not move_atoms:
        return found
    old, new = (completed(one.cell, one.pbc) for one in (system, found))
    return found.replace(positions=system.positions @ np.linalg.inv(old) @ new)
