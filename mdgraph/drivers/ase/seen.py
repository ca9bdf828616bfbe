"""What atoms hold at a moment, to be compared with a later one."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from ase import Atoms
from ase.calculators.calculator import equal
from numpy.typing import NDArray

from mdgraph.drivers.ase.constraints import Held

Array = NDArray[np.float64]

INFO: Final = ("charge", "spin", "spin_multiplicity")
"""What `from_ase` reads of `atoms.info`, and ASE does not compare."""


@dataclass(frozen=True)
class Seen:
    """Copies of what moves, and whatever else buffers are made for.

    Attributes:
        positions: (N, 3) A.
        momenta: (N, 3), in ASE's unit.
        cell: (3, 3) A.
        rest: numbers, periodic directions, masses, constraints, charge and spin.
    """

    positions: Array
    momenta: Array
    cell: Array
    rest: tuple[Any, ...]

    @classmethod
    def of(cls, atoms: Atoms, held: Held) -> "Seen":
        """Copies what the atoms hold."""
        info = [repr(atoms.info.get(name)) for name in INFO]
        rest = (atoms.numbers.tobytes(), atoms.pbc.tobytes(), atoms.get_masses().tobytes(), held)
        return cls(
            atoms.get_positions(), atoms.get_momenta(), atoms.cell.array.copy(), (*rest, *info)
        )

    def moved_since(self, before: "Seen") -> list[str]:
        """Which of positions, momenta and cell are others than before."""
        return [
            name
            for name in ("positions", "momenta", "cell")
            if not np.array_equal(getattr(before, name), getattr(self, name))
        ]


def differing(before: Atoms, now: Atoms) -> list[str]:
    """Names what a calculator depends on and is another; twenty times as fast as ASE does."""
    arrays = [
        name
        for name in ("positions", "numbers", "cell", "pbc")
        if not np.array_equal(getattr(before, name), getattr(now, name))
    ]
    return arrays + [key for key in INFO if not equal(before.info.get(key), now.info.get(key))]
