"""State: everything that changes during a simulation, in buffers allocated once."""

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from mdgraph.errors import InputError, name_some
from mdgraph.grouping import Grouping
from mdgraph.system import System, total_charge


class State:
    """Static device buffers of one or several systems with N atoms and S systems in all.

    Nothing here is ever reallocated: code writes in place, so a captured graph and its
    caller see the same memory. T stands for the state type (float64 unless `single`).

    Attributes:
        grouping: which atom belongs to which system.
        numbers: (N,) int64, atomic numbers.
        elements: (E,) int64, the distinct atomic numbers, ascending.
        kinds: (N,) int64, place of each atom's number among `elements`.
        masses: (N,) T, amu.
        inverse_masses: (N,) T, 1/amu; 0 for fixed atoms, which nothing then moves.
        fixed: (N,) bool, atoms that stay where they are.
        positions: (N, 3) T, A, never wrapped.
        velocities: (N, 3) T, A/fs.
        forces: (N, 3) T, eV/A.
        energies: (N,) float64, eV, potential energy an atom.
        energy: (S,) float64, eV, potential energy a system.
        virial: (S, 3, 3) float64, eV, minus the strain derivative of the energy.
        cell: (S, 3, 3) T, A, one lattice vector a row.
        pbc: (S, 3) bool.
        charge: (S,) T, e.
        degrees: (S,) float64, degrees of freedom; what a simulation counted.
        step: () int64, steps done since the start of the trajectory.
        seed: () int64, key of all random numbers.
        replica: (S,) int64, number of each system in the batch; its own random numbers.
        atom: (N,) int64, index of each atom within its own system, the counter of its
            random numbers whatever the batch around it.
        workspaces: what evaluators keep for this state, by evaluator; gone with either of both.
    """

    _DYNAMIC = (
        "positions",
        "velocities",
        "forces",
        "energies",
        "energy",
        "virial",
        "cell",
        "step",
    )

    def __init__(
        self,
        systems: Sequence[System],
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float64,
        seed: int = 0,
    ) -> None:
        if not systems:
            raise InputError("There is no system to compute; give at least one.")
        self.device = torch.device(device)
        self.dtype = dtype
        self.grouping = Grouping([len(system) for system in systems], self.device)
        atoms, count = self.grouping.atoms, self.grouping.systems

        def concatenated(name: str, kind: torch.dtype) -> Tensor:
            parts = [torch.tensor(getattr(system, name), dtype=kind) for system in systems]
            return torch.cat(parts).to(self.device)

        def stacked(name: str, kind: torch.dtype) -> Tensor:
            parts = [torch.tensor(getattr(system, name), dtype=kind) for system in systems]
            return torch.stack(parts).to(self.device)

        self.numbers = concatenated("numbers", torch.int64)
        self.elements, self.kinds = torch.unique(self.numbers, return_inverse=True)
        self.masses = concatenated("masses", dtype)
        self.inverse_masses = 1.0 / self.masses
        self.fixed = torch.zeros(atoms, dtype=torch.bool, device=self.device)
        self.degrees = torch.zeros(count, dtype=torch.float64, device=self.device)
        self.positions = concatenated("positions", dtype)
        self.velocities = torch.zeros(atoms, 3, dtype=dtype, device=self.device)
        start = 0
        for system in systems:
            if system.velocities is not None:
                rows = self.velocities[start : start + len(system)]
                rows.copy_(torch.tensor(system.velocities, dtype=dtype))
            start += len(system)
        self.forces = torch.zeros(atoms, 3, dtype=dtype, device=self.device)
        self.energies = torch.zeros(atoms, dtype=torch.float64, device=self.device)
        self.energy = torch.zeros(count, dtype=torch.float64, device=self.device)
        self.virial = torch.zeros(count, 3, 3, dtype=torch.float64, device=self.device)
        self.cell = stacked("cell", dtype)
        self.pbc = stacked("pbc", torch.bool)
        charges = [total_charge(system) for system in systems]
        self.charge = torch.tensor(charges, dtype=dtype, device=self.device)
        self.step = torch.zeros((), dtype=torch.int64, device=self.device)
        if not 0 <= seed < 2**63:
            raise InputError(f"The seed is {seed}; it must lie between 0 and 2^63 - 1.")
        self.seed = torch.tensor(seed, dtype=torch.int64, device=self.device)
        self.workspaces: WeakKeyDictionary[object, Any] = WeakKeyDictionary()
        self.replica = torch.arange(count, device=self.device)
        self.atom = torch.cat([torch.arange(n) for n in self.grouping.sizes]).to(self.device)

    def fix_(self, atoms: Sequence[int]) -> None:
        """Fixes atoms where they are, at rest.

        Args:
            atoms: indices among all N.

        Raises:
            InputError: an index without an atom.
        """
        count = self.grouping.atoms
        wrong = [atom for atom in atoms if not 0 <= atom < count]
        if wrong:
            raise InputError(
                f"Atoms {name_some(wrong)} are to be fixed, but there are {count} atoms; "
                f"give indices from 0 to {count - 1}."
            )
        self.fixed[list(atoms)] = True
        self.inverse_masses.masked_fill_(self.fixed, 0.0)
        self.velocities.masked_fill_(self.fixed[:, None], 0.0)

    def of_atoms(self, values: Tensor) -> Tensor:
        """Gives every atom its system's number: (S,) to a column (N, 1) T, or (1, 1)."""
        column = values.to(self.dtype)[:, None]
        if self.grouping.systems == 1:
            return column
        return column.index_select(0, self.grouping.index)

    def tensors(self) -> dict[str, Tensor]:
        """The buffers that change during a run, by name; the buffers themselves, not copies."""
        return {name: getattr(self, name) for name in self._DYNAMIC}

    def snapshot(self) -> dict[str, Tensor]:
        """Copies what changes during a run, on the device; does not sync."""
        return {name: tensor.clone() for name, tensor in self.tensors().items()}

    def restore(self, snapshot: dict[str, Tensor]) -> None:
        """Writes a snapshot back into the same buffers; does not sync."""
        for name, tensor in self.tensors().items():
            tensor.copy_(snapshot[name])
