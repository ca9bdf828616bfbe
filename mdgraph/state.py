"""State: everything that changes during a simulation, in static buffers, grouped by system.

Sums run in atom order by gathers alone, so they repeat bit for bit on a GPU, where
`index_add` would not; the sum over a system and the spread to its atoms are each
other's adjoint, so every derivative stays in that pair of operations.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final, Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from mdgraph.arguments import whole_number, whole_numbers
from mdgraph.errors import InputError, name_some
from mdgraph.system import NEAR, System, centred, concatenated


class Grouping:
    """Atoms of S systems, concatenated.

    Attributes:
        sizes: number of atoms of each system, on the host.
        counts: (S,) int64, number of atoms of each system.
        index: (N,) int64, system of each atom.
        start: (S,) int64, first atom of each system.
        members: (S, n_max) int64, atoms of each system, padded with its first atom.
        present: (S, n_max) bool, False on padding.
        largest: n_max, atoms that a system has at most.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        device: torch.device | str = "cpu",
        largest: int | None = None,
    ) -> None:
        self.sizes = tuple(int(size) for size in sizes)
        self.largest = max(self.sizes) if largest is None else largest
        self.counts, self.index, self.start, self.members, self.present = (
            one.to(device) for one in self._layout()
        )

    def assign_(self, sizes: Sequence[int]) -> None:
        """Shares the same atoms out to as many systems of other sizes, in the same buffers."""
        self.sizes = tuple(int(size) for size in sizes)
        buffers = (self.counts, self.index, self.start, self.members, self.present)
        for buffer, value in zip(buffers, self._layout(), strict=True):
            buffer.copy_(value)

    def _layout(self) -> tuple[Tensor, ...]:
        counts = torch.tensor(self.sizes)
        starts = torch.cumsum(counts, 0) - counts
        slots = torch.arange(self.largest)
        present = slots < counts[:, None]
        members = torch.where(present, starts[:, None] + slots, starts[:, None])
        index = torch.repeat_interleave(torch.arange(len(self.sizes)), counts)
        return counts, index, starts, members, present

    @property
    def atoms(self) -> int:
        """Number of atoms of all systems together."""
        return sum(self.sizes)

    @property
    def systems(self) -> int:
        """Number of systems."""
        return len(self.sizes)

    def sum(self, values: Tensor) -> Tensor:
        """Sums (N, ...) over the atoms of each system to (S, ...); differentiable."""
        result: Tensor = _Sum.apply(values, self)
        return result

    def spread(self, values: Tensor) -> Tensor:
        """Gives every atom its system's row: (S, ...) to (N, ...); differentiable."""
        result: Tensor = _Spread.apply(values, self)
        return result


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, grouping: Grouping) -> Tensor:
        ctx.grouping = grouping
        if grouping.systems == 1:
            return values.sum(0, keepdim=True)
        gathered = values[grouping.members]
        present = grouping.present.reshape(grouping.present.shape + (1,) * (values.dim() - 1))
        return torch.where(present, gathered, 0).sum(1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return ctx.grouping.spread(gradients[0]), None


class _Spread(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, grouping: Grouping) -> Tensor:
        ctx.grouping = grouping
        return values.index_select(0, grouping.index)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return ctx.grouping.sum(gradients[0]), None


@dataclass(frozen=True)
class BatchCapacity:
    """What systems may need that take the places of others in a state.

    Attributes:
        largest: atoms of a system.
        elements: atomic numbers.
    """

    largest: int
    elements: tuple[int, ...]


_ALIGNMENT: Final = 16
"""Numbers of 8 bytes: memory is read in pieces of 128."""

OFFSETS: Final = ("offset", "turns", "offset_cell")
"""What a state in float32 holds beside its positions."""

_NO_ROOM = "These systems do not fit into the buffers;"


class WorkspaceOwner(Protocol):
    """An evaluator that keeps something for a state."""

    def replace_(self, state: "State") -> None:
        """Derives anew, in the same buffers, what depends on the systems in a state."""
        ...


class State:
    """Static device buffers of one or several systems with N atoms and S systems in all.

    Nothing here is ever reallocated: code writes in place, so a captured graph and its
    caller see the same memory. T stands for the state type (float64 unless `single`). With
    room for them, other systems can take the places of those that it was made for.

    Attributes:
        grouping: which atom belongs to which system.
        numbers: (N,) int64, atomic numbers.
        elements: (E,) int64, the distinct atomic numbers, or those there is room for, ascending.
        kinds: (N,) int64, place of each atom's number among `elements`.
        masses: (N,) T, amu.
        inverse_masses: (N,) T, 1/amu; 0 for fixed atoms, which nothing then moves.
        fixed: (N,) bool, atoms that stay where they are.
        positions: (N, 3) T, A, never wrapped; in float32 without the offset. `places` says where
            atoms are.
        offset: (N, 3) float64, A, what was taken off the positions of a system far from the
            origin before they were rounded; zero unless T is float32.
        turns: (N, 3) float64, whole lattice vectors in the offset.
        offset_cell: (S, 3, 3) float64, A, the cell whose vectors those were, rounded to T.
        velocities: (N, 3) T, A/fs.
        forces: (N, 3) T, eV/A.
        energies: (N,) float64, eV, potential energy an atom.
        energy: (S,) float64, eV, potential energy a system.
        virial: (S, 3, 3) float64, eV, minus the strain derivative of the energy.
        results: buffers that hold energies, forces and virial, for a reader of all of them.
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
        room: for other systems, or None.
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
        room: BatchCapacity | None = None,
    ) -> None:
        if not systems:
            raise InputError("There is no system to compute; give at least one.")
        self.device = torch.device(device)
        self.dtype = dtype
        self.room = room
        sizes = [len(system) for system in systems]
        given = concatenated(systems, dtype)
        self._check_room(sizes, given["numbers"])
        self.grouping = Grouping(sizes, self.device, None if room is None else room.largest)
        atoms, count = self.grouping.atoms, self.grouping.systems
        elements = given["numbers"].unique() if room is None else torch.tensor(room.elements)
        self.elements = elements.sort().values.to(self.device)
        given = {name: value.to(self.device) for name, value in given.items()}
        self.numbers = given["numbers"]
        self.kinds = torch.searchsorted(self.elements, self.numbers)
        self.masses = given["masses"]
        self.inverse_masses = 1.0 / self.masses
        self.fixed = given["fixed"]
        self.degrees = torch.zeros(count, dtype=torch.float64, device=self.device)
        self.positions = given["positions"]
        if dtype != torch.float64:
            self.offset, self.turns = given["offset"], given["turns"]
            self.offset_cell = given["offset_cell"]
        self.velocities = given["velocities"]
        forces, shapes = (atoms, 3), [(count,), (count, 3, 3), (atoms,)]
        if dtype == torch.float64:
            shapes.append(forces)
        found, views = _side_by_side(shapes, self.device)
        self.energy, self.virial, self.energies = views[:3]
        self.results: tuple[Tensor, ...] = (found,)
        if dtype == torch.float64:
            self.forces = views[3]
        else:
            self.forces = torch.zeros(forces, dtype=dtype, device=self.device)
            self.results = (found, self.forces)
        self.cell = given["cell"]
        self.pbc = given["pbc"]
        self.charge = given["charge"]
        self.step = torch.zeros((), dtype=torch.int64, device=self.device)
        seed = whole_number(seed, "The seed")
        self.seed = torch.tensor(seed, dtype=torch.int64, device=self.device)
        self.workspaces: WeakKeyDictionary[WorkspaceOwner, Any] = WeakKeyDictionary()
        self.replica = torch.arange(count, device=self.device)
        self.atom = given["atom"]
        self._hold_fixed()

    def _check_room(self, sizes: Sequence[int], numbers: Tensor) -> None:
        room = self.room
        if room is not None and (
            max(sizes) > room.largest or not set(numbers.tolist()) <= set(room.elements)
        ):
            raise InputError(f"{_NO_ROOM} there is none for their sizes or elements.")

    def assign_(self, systems: Sequence[System]) -> None:
        """Puts other systems into the same buffers, at rest where they carry no velocities.

        Lists must be renewed afterwards. What evaluators derived from the systems follows.
        Reads the device.

        Args:
            systems: as many, with as many atoms together, within the room, and periodic along
                the same directions as those whose places they take.

        Raises:
            InputError: other systems.
        """
        given = concatenated(systems, self.dtype)
        sizes = [len(system) for system in systems]
        if (
            self.room is None
            or (len(sizes), sum(sizes)) != (self.grouping.systems, self.grouping.atoms)
            or not torch.equal(given["pbc"], self.pbc.cpu())
        ):
            raise InputError(f"{_NO_ROOM} give as many systems and atoms with the same pbc.")
        self._check_room(sizes, given["numbers"])
        self.grouping.assign_(sizes)
        for name, value in given.items():
            getattr(self, name).copy_(value)
        self.kinds.copy_(torch.searchsorted(self.elements, self.numbers))
        self.inverse_masses.copy_(1.0 / self.masses)
        self._hold_fixed()
        self.step.zero_()
        for owner in list(self.workspaces):
            owner.replace_(self)

    def fix_(self, atoms: Sequence[int]) -> None:
        """Fixes atoms where they are, at rest, beside those that the systems fix.

        Args:
            atoms: indices among all N.

        Raises:
            InputError: an index without an atom.
        """
        count = self.grouping.atoms
        indices = whole_numbers(atoms, "The fixed atoms")
        wrong = [atom for atom in indices if not 0 <= atom < count]
        if wrong:
            raise InputError(
                f"Atoms {name_some(wrong)} are to be fixed, but there are {count} atoms; "
                f"give indices from 0 to {count - 1}."
            )
        self.fixed[indices] = True
        self._hold_fixed()

    def _hold_fixed(self) -> None:
        self.inverse_masses.masked_fill_(self.fixed, 0.0)
        self.velocities.masked_fill_(self.fixed[:, None], 0.0)

    def of_atoms(self, values: Tensor) -> Tensor:
        """Gives every atom its system's number: (S,) to a column (N, 1) T, or (1, 1)."""
        column = values.to(self.dtype)[:, None]
        if self.grouping.systems == 1:
            return column
        return column.index_select(0, self.grouping.index)

    def places(self) -> Tensor:
        """Where atoms are (N, 3) float64, A; positions themselves in float64. Does not sync."""
        return places_of(self.tensors(), self.grouping.index)

    def place_(self, places: Tensor) -> None:
        """Moves atoms to (N, 3) float64, A, in the cells of the moment; reads the device.

        In float32 they keep their offset while that serves them.
        """
        if self.dtype == torch.float64:
            self.positions.copy_(places)
            return
        given, before = places.double().to(self.device), self.places()
        near = given - (before - self.positions.double())
        if near.abs().max() <= 2.0 * self.positions.abs().max() + NEAR:
            self.positions.copy_(near)
            return
        cells, pbc = self.cell.double().cpu().numpy(), self.pbc.cpu().numpy()
        parts = [part.numpy() for part in given.cpu().split(self.grouping.sizes)]
        for name, value in centred(parts, [*cells], [*pbc], self.dtype).items():
            getattr(self, name).copy_(value)

    def tensors(self) -> dict[str, Tensor]:
        """The buffers that change during a run, by name; the buffers themselves, not copies."""
        names: tuple[str, ...] = self._DYNAMIC
        if self.dtype != torch.float64:
            names = (*names, *OFFSETS)
        return {name: getattr(self, name) for name in names}

    def snapshot(self) -> dict[str, Tensor]:
        """Copies what changes during a run, on the device; does not sync."""
        return {name: tensor.clone() for name, tensor in self.tensors().items()}

    def restore(self, snapshot: dict[str, Tensor]) -> None:
        """Writes a snapshot back into the same buffers; does not sync."""
        for name, tensor in self.tensors().items():
            tensor.copy_(snapshot[name])


def places_of(tensors: Mapping[str, Tensor], system: Tensor) -> Tensor:
    """Where atoms are (N, 3) float64, A, by what `State.tensors` gave; does not sync.

    Args:
        tensors: positions and cell and, where they are float32, their offset.
        system: (N,) int64, system of each atom.
    """
    positions = tensors["positions"]
    if "offset" not in tensors:
        return positions.double()
    moved = tensors["cell"].double() - tensors["offset_cell"]
    carried = (tensors["turns"][:, None] @ moved[system])[:, 0]
    return positions.double() + tensors["offset"] + carried


def _side_by_side(
    shapes: Sequence[tuple[int, ...]], device: torch.device
) -> tuple[Tensor, list[Tensor]]:
    """Zeros (W,) float64 and views of it, which begin where any kernel can load them fast."""
    sizes = [math.prod(shape) for shape in shapes]
    starts = [0, *accumulate(-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes)]
    whole = torch.zeros(starts[-1], dtype=torch.float64, device=device)
    places = zip(shapes, starts, sizes, strict=False)
    return whole, [whole[start : start + size].view(shape) for shape, start, size in places]


def systems_of(state: State) -> list[System]:
    """The systems of a state, on the host in float64; reads the device."""
    sizes = state.grouping.sizes
    columns = (state.numbers, state.positions.double(), state.masses.double())
    numbers, positions, masses = (column.cpu().split(sizes) for column in columns)
    cells, pbc, charges = state.cell.double().cpu(), state.pbc.cpu(), state.charge.tolist()
    return [
        System(
            numbers=numbers[index].numpy(),
            positions=positions[index].numpy(),
            cell=cells[index].numpy(),
            pbc=pbc[index].numpy(),
            masses=masses[index].numpy(),
            charge=charges[index],
        )
        for index in range(len(sizes))
    ]
