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

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mdgraph.arguments import whole_number, whole_numbers
from mdgraph.errors import InputError, name_some
from mdgraph.host_tensors import on_host, zeros_on_host
from mdgraph.system import NEAR, System, SystemArrays, are_among, centred, concatenate_systems


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
            one.to(device) for one in self._layout(torch.tensor(self.sizes), sum(self.sizes))
        )

    def assign_(self, counts: Tensor) -> None:
        """Shares the same atoms out to as many systems of other sizes, in the same buffers.

        Capturable, does not sync; `sizes` is left to the host.

        Args:
            counts: (S,) int64, atoms of each system, on the device.
        """
        buffers = (self.counts, self.index, self.start, self.members, self.present)
        for buffer, value in zip(buffers, self._layout(counts, len(self.index)), strict=True):
            buffer.copy_(value)

    def _layout(self, counts: Tensor, atoms: int) -> tuple[Tensor, ...]:
        device = counts.device
        ends = torch.cumsum(counts, 0)
        starts = (ends - counts)[:, None]
        slots = torch.arange(self.largest, device=device)
        present = slots < counts[:, None]
        members = torch.where(present, starts + slots, starts)
        index = torch.searchsorted(ends, torch.arange(atoms, device=device), right=True)
        return counts, index, starts[:, 0], members, present

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


@dataclass(frozen=True)
class PreparedSystems:
    """Systems that fit into the buffers of a state, as these hold them.

    Attributes:
        sizes: atoms of each.
        given: on the host, by the names of buffers.
    """

    sizes: tuple[int, ...]
    given: Mapping[str, Tensor]


_ALIGNMENT: Final = 16
"""Numbers of 8 bytes: memory is read in pieces of 128."""

_ALIGNED_BYTES: Final = 8 * _ALIGNMENT

OFFSETS: Final = ("offset", "turns", "offset_cell")
"""What a state in float32 holds beside its positions."""

_NO_ROOM = "These systems do not fit into the buffers;"


class WorkspaceOwner(Protocol):
    """An evaluator that keeps something for a state."""

    def replace_(self, state: "State") -> None:
        """Derives anew, in the same buffers, what depends on the systems in a state.

        Capturable on CUDA, does not sync.
        """
        ...


class RankSums(Protocol):
    """Sums over the atoms of a system of which each process has some.

    Attributes:
        counts: (1,) int64, atoms of all processes.
    """

    counts: Tensor

    def sum(self, values: Tensor) -> Tensor:
        """(1, ...) float64, the sum over all atoms, from values (N, ...) of those here.

        Static shapes; does not sync on CUDA. All processes call it together.
        """
        ...

    def add(self, parts: Tensor) -> Tensor:
        """Parts of sums, of any shape, added up over processes in their order; see `sum`."""
        ...

    def largest(self, values: Tensor) -> Tensor:
        """(1,), the largest of all atoms, from values (N,) of those here; see `sum`."""
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
        ranks: where other processes have the other atoms of the one system; else None.
        on_host: whether what there is by atom lies in memory of the host, see `leave_device_`.
    """

    ranks: RankSums | None = None
    on_host = False

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
        given = concatenate_systems(systems, dtype)
        self._check_room(sizes, given["numbers"].numpy())
        self.grouping = Grouping(sizes, self.device, None if room is None else room.largest)
        atoms, count = self.grouping.atoms, self.grouping.systems
        elements = given["numbers"].unique() if room is None else torch.tensor(room.elements)
        self.elements = elements.sort().values.to(self.device)
        self._pbc, self._given = given["pbc"], None if room is None else _HostMirror(self.device)
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
        results, views = _side_by_side(shapes, self.device)
        self.energy, self.virial, self.energies = views[:3]
        self.results: tuple[Tensor, ...] = (results,)
        if dtype == torch.float64:
            self.forces = views[3]
        else:
            self.forces = torch.zeros(forces, dtype=dtype, device=self.device)
            self.results = (results, self.forces)
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

    def _check_room(self, sizes: Sequence[int], numbers: NDArray[np.int64]) -> None:
        room = self.room
        if room is not None and (
            max(sizes) > room.largest or not are_among(numbers, room.elements)
        ):
            raise InputError(f"{_NO_ROOM} there is none for their sizes or elements.")

    def leave_device_(self) -> None:
        """Puts what there is by atom into memory of the host, as tensors of the device.

        They take nothing of a GPU's memory, and what reads them takes longer. Buffers are replaced,
        so nothing else may have them yet. Does not sync.
        """
        atoms, found = self.grouping.atoms, self.results[0]
        moved, storage = on_host(found), found.untyped_storage().data_ptr()
        for owner in (self, self.grouping):
            for name, value in vars(owner).items():
                if not isinstance(value, Tensor):
                    continue
                if value.untyped_storage().data_ptr() == storage:
                    place = value.shape, value.stride(), value.storage_offset()
                    setattr(owner, name, moved.as_strided(*place))
                elif atoms in value.shape:
                    setattr(owner, name, on_host(value))
        self.results = (moved,) if len(self.results) == 1 else (moved, self.forces)
        self.on_host = True

    def zeros_like(self, value: Tensor) -> Tensor:
        """Zeros like a buffer of the state, in memory of the host where that is; does not sync."""
        if not self.on_host:
            return torch.zeros_like(value)
        return zeros_on_host(*value.shape, dtype=value.dtype, device=value.device)

    def prepared(self, systems: Sequence[System]) -> PreparedSystems:
        """Other systems as `take_` wants them; changes nothing, and may run while `load_` does.

        Args:
            systems: as many, with as many atoms together, within the room, and periodic along
                the same directions as those whose places they take.

        Raises:
            InputError: other systems.
        """
        arrays = SystemArrays.of(systems)
        sizes = arrays.sizes.tolist()
        fits = (len(sizes), sum(sizes)) == (self.grouping.systems, self.grouping.atoms)
        if self._given is None or not fits or not np.array_equal(arrays.pbc, self._pbc.numpy()):
            raise InputError(f"{_NO_ROOM} give as many systems and atoms with the same pbc.")
        self._check_room(sizes, arrays.numbers)
        given = concatenate_systems(arrays, self.dtype) | {"sizes": torch.tensor(arrays.sizes)}
        del given["pbc"]  # which stay as they are
        return PreparedSystems(tuple(sizes), given)

    def take_(self, prepared: PreparedSystems) -> None:
        """Writes other systems on the host, of which `load_` fills the buffers.

        Does not sync; the copies of the `load_` before must have ended.
        """
        assert self._given is not None
        self._given.write(prepared.given)
        self.grouping.sizes = prepared.sizes

    @property
    def awaits_load(self) -> bool:
        """Whether `take_` gave systems, so that each evaluation begins with `load_`."""
        return self._given is not None and len(self._given.buffers) > 0

    def load_(self) -> None:
        """Puts the systems of `take_` into the buffers, at rest where they carry no velocities.

        Capturable, does not sync. What evaluators derived from the systems follows. Lists must be
        renewed afterwards. Of no effect before the first `take_`.
        """
        if self._given is None or not self._given.buffers:
            return
        self._given.copy_()
        for name, value in self._given.buffers.items():
            if name == "sizes":
                self.grouping.assign_(value)
            else:
                getattr(self, name).copy_(value)
        torch.searchsorted(self.elements, self.numbers, out=self.kinds)
        torch.reciprocal(self.masses, out=self.inverse_masses)
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

    def sum(self, values: Tensor) -> Tensor:
        """Sums (N, ...) over the atoms of each system to (S, ...), those of other ranks included.

        Does not sync on CUDA.
        """
        return self.grouping.sum(values) if self.ranks is None else self.ranks.sum(values)

    def largest(self, values: Tensor) -> Tensor:
        """(S,), the largest of values (N,) in each system, those of other ranks included.

        Does not sync on CUDA.
        """
        if self.ranks is not None:
            return self.ranks.largest(values)
        # A system with fewer atoms than the largest repeats its first atom in `members`.
        return values[self.grouping.members].amax(1)

    @property
    def counts(self) -> Tensor:
        """(S,) int64, atoms of each system, those of other ranks included."""
        return self.grouping.counts if self.ranks is None else self.ranks.counts

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


class _HostMirror:
    """Tensors side by side on the host and on a device, so that one copy brings all of them.

    Attributes:
        buffers: on the device, by name; none before the first `write`.
    """

    def __init__(self, device: torch.device) -> None:
        """Allocates nothing yet."""
        self._device = device
        self.buffers: dict[str, Tensor] = {}

    def write(self, tensors: Mapping[str, Tensor]) -> None:
        """Writes on the host, from where all copies before must have ended.

        Args:
            tensors: by name, each time the same ones with other values.
        """
        if not self.buffers:
            self._allocate(tensors)
        for name, tensor in tensors.items():
            self._views[name].copy_(tensor)

    def copy_(self) -> None:
        """Launches the copy to the device; capturable, does not sync."""
        self._there.copy_(self._here, non_blocking=True)

    def _allocate(self, tensors: Mapping[str, Tensor]) -> None:
        sizes = [-(-one.nbytes // _ALIGNED_BYTES) * _ALIGNED_BYTES for one in tensors.values()]
        self._here = torch.zeros(
            sum(sizes), dtype=torch.uint8, pin_memory=self._device.type == "cuda"
        )
        self._there = torch.zeros_like(self._here, device=self._device)

        def views(whole: Tensor) -> dict[str, Tensor]:
            parts = zip(tensors.items(), whole.split(sizes), strict=True)
            return {
                name: part[: one.nbytes].view(one.dtype).view(one.shape)
                for (name, one), part in parts
            }

        self._views, self.buffers = views(self._here), views(self._there)


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
