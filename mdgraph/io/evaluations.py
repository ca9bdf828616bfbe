"""Evaluated frames in extended XYZ, as ASE and other programs read them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from mdgraph.system import System

_PROPERTIES = "species:S:1:pos:R:3:forces:R:3:energies:R:1"


@dataclass(frozen=True, eq=False)
class Evaluation:
    """A system with what a potential says about it.

    Attributes:
        system: what was evaluated.
        energy: eV.
        energies: (N,) float64, eV, shares of the atoms.
        forces: (N, 3) float64, eV/A.
        stress: (3, 3) float64, eV/A^3, tension positive, or None where there is no volume.
        info: further numbers, by name.
        arrays: (N,) further numbers of atoms, by name.
    """

    system: System
    energy: float
    energies: NDArray[np.float64]
    forces: NDArray[np.float64]
    stress: NDArray[np.float64] | None
    info: Mapping[str, float] = field(default_factory=dict)
    arrays: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)

    def extended_xyz(self) -> bytes:
        """One frame; numbers carry all the digits of float64."""
        system = self.system
        entries = [
            f"Properties={_PROPERTIES}{''.join(f':{name}:R:1' for name in self.arrays)}",
            f"energy={self.energy!r}",
            f'pbc="{" ".join("FT"[int(periodic)] for periodic in system.pbc)}"',
        ]
        if system.cell.any():
            entries.insert(0, f'Lattice="{_numbers(system.cell)}"')
        if self.stress is not None:
            entries.append(f'stress="{_numbers(self.stress)}"')
        if system.charge is not None:
            entries.append(f"charge={system.charge!r}")
        entries += [f"{name}={value!r}" for name, value in self.info.items()]
        columns = np.column_stack(
            [system.positions, self.forces, self.energies, *self.arrays.values()]
        )
        lines = [
            f"{symbol} {_numbers(row)}" for symbol, row in zip(system.symbols, columns, strict=True)
        ]
        return "\n".join([str(len(system)), " ".join(entries), *lines, ""]).encode()


def _numbers(values: NDArray[np.float64]) -> str:
    return " ".join(repr(value) for value in values.ravel().tolist())
