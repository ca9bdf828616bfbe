"""Variables on the device: packed tables of atoms, and the functions that evaluate them.

`evaluate` gives the values of all variables of all systems and `pull_back` the forces and virial of
a bias from its derivatives by them. Both take plain tensors and tables, and nothing of the host, so
kernels can replace them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mdgraph.biases import geometry
from mdgraph.biases.variables import (
    RMSD,
    CellVolume,
    CollectiveVariable,
    Combination,
    CoordinationNumber,
    PointVariable,
    Position,
    PotentialEnergy,
    RadiusOfGyration,
)
from mdgraph.errors import InputError, name_some, prefix_errors, printable
from mdgraph.neighbors.geometry import (
    NEIGHBORS,
    complete_cell,
    heights,
    inverse,
    minimum_images,
    rounded_images,
)
from mdgraph.state import State
from mdgraph.system import System, compaction

_VECTORS: Final = {
    "distance": ((0, 1),),
    "angle": ((1, 0), (1, 2)),
    "dihedral": ((0, 1), (1, 2), (2, 3)),
}
"""Tail and head of each vector of a variable of points."""

_ORDER: Final = (
    *(*_VECTORS, "position", "radius_of_gyration", "rmsd", "coordination"),
    *("volume", "energy"),
)
"""Kinds of basic variables in their order."""


@dataclass(frozen=True)
class PointKind:
    """Consecutive variables of one kind whose values are functions of a few vectors.

    Attributes:
        count: variables.
        vectors: of each.
        function: values and gradients of the vectors (S, count, vectors, 3); see `geometry`.
    """

    count: int
    vectors: int
    function: Callable[[Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class GroupKind:
    """A variable of whole groups.

    Attributes:
        slots: of its atoms, of one group or two.
        function: value, gradients of each group and strain derivative; see `geometry`.
        reference: (S, m, 3) A, of an rmsd, or None.
    """

    slots: tuple[slice, ...]
    function: Callable[..., tuple[Tensor, ...]]
    reference: Tensor | None = None


@dataclass(frozen=True)
class Tables:
    """What variables read, for S systems; M slots of atoms, P points, K vectors, B variables.

    Basic variables are in the order: points by kind, groups, volume, energy. A slot is a place for
    an atom in a group; smaller systems of a batch leave slots empty.

    Attributes:
        atoms: (S, M) int64, atom in each slot, counted over all systems.
        before: (M,) int64, slot of the atom before in its group; of the first its own.
        first: (M,) int64, slot of the first atom of its group.
        weights: (S, M) float64, share of the mass of its group; 0 in empty slots.
        members: (P, L) int64, slots of the group of each point, padded with its first one.
        member_weights: (S, P, L) float64, their weights; 0 on padding.
        point: (m,) int64, point of each of the first m slots, those of points.
        tails: (K,) int64, first point of each vector; P is the origin of coordinates.
        heads: (K,) int64, its second point.
        free: (K, 1) bool, vectors from the origin, which have no images; None if there are none.
        owner: (K,) int64, variable of each vector.
        incidence: (P, 2) int64, vectors at each point, padded with the first.
        signs: (P, 2, 1) float64, 1 at its head, -1 at its tail and 0 on padding.
        touched: (A,) int64, atoms that any variable reads, in ascending order.
        slots: (A, J) int64, slots s M + slot of each of them, padded with S M.
        mix: (V, B) float64, named variables as combinations of basic ones.
        period: (V,) float64, of the named variables; 0 of others.
        kinds: of the variables of points.
        groups: variables of groups.
        has_volume: whether the volume is a basic variable.
        has_energy: whether the energy is the last one.
        periodic: whether any system is periodic.
        candidates: (C, 3) images to try, or None; see `minimum_images`.
        reduction: (S, 3, 3) whole numbers, or None; see `_reduction`.
    """

    atoms: Tensor
    before: Tensor
    first: Tensor
    weights: Tensor
    members: Tensor
    member_weights: Tensor
    point: Tensor
    tails: Tensor
    heads: Tensor
    free: Tensor | None
    owner: Tensor
    incidence: Tensor
    signs: Tensor
    touched: Tensor
    slots: Tensor
    mix: Tensor
    period: Tensor
    kinds: tuple[PointKind, ...]
    groups: tuple[GroupKind, ...]
    has_volume: bool
    has_energy: bool
    periodic: bool
    candidates: Tensor | None
    reduction: Tensor | None


@dataclass(frozen=True)
class Gradients:
    """Derivatives of the basic variables.

    Attributes:
        vectors: (S, K, 3) A, of points.
        by_vectors: (S, K, 3), derivative of the variable that owns each.
        by_groups: for each variable of groups, (S, m_k, 3) of each group and (S, 3, 3) by strain.
        volume: (S,) A^3, or None.
    """

    vectors: Tensor
    by_vectors: Tensor
    by_groups: list[tuple[list[Tensor], Tensor]]
    volume: Tensor | None


def evaluate(
    tables: Tables, places: Tensor, cell: Tensor, pbc: Tensor, energy: Tensor
) -> tuple[Tensor, Gradients]:
    """Values of all variables with their derivatives; static shapes, does not sync.

    Args:
        tables: see above.
        places: (N, 3) float64, A.
        cell: (S, 3, 3) float64, A.
        pbc: (S, 3) bool.
        energy: (S,) float64, eV, before biases.

    Returns:
        (S, V) float64, in the units of the variables, and the derivatives of the basic ones.
    """
    positions = places[tables.atoms]
    nearest: Callable[[Tensor], Tensor] = _as_they_are
    if tables.periodic:
        lattice = complete_cell(cell, pbc)
        if tables.reduction is not None:
            lattice = tables.reduction @ lattice
        inverse_cell = inverse(lattice)
        rounded = partial(rounded_images, inverse_cell=inverse_cell, pbc=pbc)
        turns = geometry.together(positions, tables.before, tables.first, rounded)
        positions = positions + turns @ lattice
        nearest = partial(
            minimum_images,
            cell=lattice,
            inverse_cell=inverse_cell,
            pbc=pbc,
            candidates=tables.candidates,
        )
    vectors = _point_vectors(tables, positions, nearest)
    values, by_vectors = _of_points(tables.kinds, vectors)
    by_groups: list[tuple[list[Tensor], Tensor]] = []
    for group in tables.groups:
        parts = [positions[:, slots] for slots in group.slots]
        weights = [tables.weights[:, slots] for slots in group.slots]
        value, *gradients, strain = group.function(parts, weights, nearest)
        values.append(value[:, None])
        by_groups.append((gradients, strain))
    volume = _volumes(cell) if tables.has_volume else None
    if volume is not None:
        values.append(volume[:, None])
    if tables.has_energy:
        values.append(energy[:, None])
    named = (torch.cat(values, 1)[:, None] * tables.mix).sum(-1)
    named = named - tables.period * torch.round(named * _reciprocal(tables.period))
    return named, Gradients(vectors, by_vectors, by_groups, volume)


def _as_they_are(vectors: Tensor) -> Tensor:
    return vectors


def _reciprocal(period: Tensor) -> Tensor:
    return torch.where(period > 0.0, 1.0 / period, 0.0)


def _volumes(cell: Tensor) -> Tensor:
    first, second, third = cell.unbind(-2)
    return (torch.linalg.cross(first, second) * third).sum(-1).abs()


def _point_vectors(
    tables: Tables, positions: Tensor, nearest: Callable[[Tensor], Tensor]
) -> Tensor:
    """Vectors (S, K, 3) A between centres of mass."""
    members = positions[:, tables.members]
    points = (tables.member_weights[..., None] * members).sum(2)
    points = torch.cat([points, torch.zeros_like(positions[:, :1])], 1)
    vectors = points[:, tables.heads] - points[:, tables.tails]
    near = nearest(vectors)
    return near if tables.free is None else torch.where(tables.free, vectors, near)


def _of_points(kinds: Sequence[PointKind], vectors: Tensor) -> tuple[list[Tensor], Tensor]:
    """Values (S, n) of each kind of variables of points, and gradients (S, K, 3)."""
    values, gradients, start = [], [vectors[:, :0]], 0
    for kind in kinds:
        end = start + kind.count * kind.vectors
        own = vectors[:, start:end].unflatten(1, (kind.count, kind.vectors))
        value, gradient = kind.function(own)
        values.append(value)
        gradients.append(gradient.flatten(1, 2))
        start = end
    return values, torch.cat(gradients, 1)


def pull_back(
    tables: Tables, gradients: Gradients, slopes: Tensor, atoms: int
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Forces and strain derivative of a function of the variables; does not sync.

    Args:
        tables: see above.
        gradients: of `evaluate`.
        slopes: (S, V) float64, eV, derivatives of the function by the named variables.
        atoms: N.

    Returns:
        Its gradient by places (N, 3) eV/A and by strain (S, 3, 3) eV, both without what the
        potential energy as a variable contributes, and its derivative by that energy (S,).
    """
    basic = (slopes[..., None] * tables.mix).sum(1)
    by_vectors = basic[:, tables.owner, None] * gradients.by_vectors
    strain = geometry.strains(by_vectors, gradients.vectors)
    by_points = (tables.signs * by_vectors[:, tables.incidence]).sum(2)
    point_slots = tables.weights[:, : len(tables.point), None] * by_points[:, tables.point]
    parts = [point_slots]
    place = sum(kind.count for kind in tables.kinds)
    for by_positions, own_strain in gradients.by_groups:
        slope = basic[:, place, None, None]
        parts += [slope * gradient for gradient in by_positions]
        strain = strain + slope * own_strain
        place += 1
    if gradients.volume is not None:
        identity = torch.eye(3, dtype=strain.dtype, device=strain.device)
        strain = strain + (basic[:, place] * gradients.volume)[:, None, None] * identity
    by_slots = torch.cat(parts, 1).flatten(0, 1)
    by_slots = torch.cat([by_slots, by_slots.new_zeros(1, 3)])
    pull = by_slots.new_zeros(atoms, 3)
    pull[tables.touched] = by_slots[tables.slots].sum(1)
    return pull, strain, basic[:, -1] if tables.has_energy else None


# From definitions to tables


def _groups(
    variables: Mapping[str, CollectiveVariable], systems: Sequence[System]
) -> dict[str, list[list[list[int]]]]:
    """Atoms by variable, system and group, counted within the system; raises InputError."""
    distinct: dict[int, dict[str, list[list[int]]]] = {}
    for number, system in enumerate(systems, 1):
        if id(system) in distinct:
            continue
        where = f" in structure {number}" if len({id(one) for one in systems}) > 1 else ""
        own = distinct[id(system)] = {}
        for name, variable in variables.items():
            with prefix_errors(f"The variable {printable(name, 100)}{where}"):
                own[name] = variable.groups_in(system)
    return {name: [distinct[id(system)][name] for system in systems] for name in variables}


def _mixes(variables: Mapping[str, CollectiveVariable]) -> dict[str, dict[str, float]]:
    """Coefficients of the basic variables of each one; raises InputError."""
    mixes: dict[str, dict[str, float]] = {}

    def mix(name: str, within: tuple[str, ...]) -> dict[str, float]:
        if name in mixes:
            return mixes[name]
        variable = variables[name]
        if not isinstance(variable, Combination):
            return {name: 1.0}
        total: dict[str, float] = {}
        for other, coefficient in variable.coefficients.items():
            if other not in variables:
                raise InputError(
                    f"The combination {printable(name, 100)} names the variable "
                    f"{printable(other, 100)}, which is not there; choose among "
                    f"{name_some([*variables])}."
                )
            if other in (*within, name):
                raise InputError(
                    f"The combination {printable(name, 100)} is part of itself; leave it out."
                )
            for basic, factor in mix(other, (*within, name)).items():
                total[basic] = total.get(basic, 0.0) + coefficient * factor
        return total

    for name in variables:
        mixes[name] = mix(name, ())
    return mixes


def units_and_periods(
    variables: Mapping[str, CollectiveVariable],
) -> dict[str, tuple[str, float]]:
    """Unit and period of the values of each variable.

    Raises:
        InputError: a combination of what is not there, of several units, or of dihedrals with
            coefficients that are not whole.
    """
    descriptions = {}
    for name, mix in _mixes(variables).items():
        own = [variables[basic] for basic in mix]
        units = {variable.unit for variable in own}
        if len(units) > 1:
            raise InputError(
                f"The combination {printable(name, 100)} adds variables of several units; give "
                "variables of one."
            )
        turning = [mix[basic] for basic in mix if variables[basic].period]
        whole = all(float(coefficient).is_integer() for coefficient in turning)
        if turning and not (whole and len(turning) == len(own)):
            raise InputError(
                f"The combination {printable(name, 100)} jumps where its dihedrals do; give them "
                "whole coefficients, and no other variables beside them."
            )
        descriptions[name] = (units.pop(), own[0].period)
    return descriptions


def build_tables(
    variables: Mapping[str, CollectiveVariable],
    systems: Sequence[System],
    state: State,
    cell_varies: bool,
) -> Tables:
    """Packs variables for the systems of a state; syncs.

    Args:
        variables: by name.
        systems: initial structures, on which selections act.
        state: of these systems, with the masses.
        cell_varies: whether right angles of cells may not stay so.

    Raises:
        InputError: a variable without meaning in a system; the sentence names both.
    """
    details = units_and_periods(variables)
    groups = _groups(variables, systems)
    basic = [name for name, one in variables.items() if not isinstance(one, Combination)]

    basic.sort(key=lambda name: _ORDER.index(variables[name].kind))
    points = [name for name in basic if isinstance(variables[name], PointVariable | Position)]
    packed = _Slots(systems, state)
    for name in basic:
        for number in range(len(groups[name][0])):
            packed.add(name, [own[number] for own in groups[name]])
    kinds, vectors = _point_kinds(variables, points, packed, state)
    device, mixes = state.device, _mixes(variables)
    volume = [name for name in basic if isinstance(variables[name], CellVolume)]
    energy = [name for name in basic if isinstance(variables[name], PotentialEnergy)]
    whole = [name for name in basic if name not in {*points, *volume, *energy}]
    # Volume and energy are basic variables once, under however many names.
    columns = {name: place for place, name in enumerate([*points, *whole])}
    columns |= dict.fromkeys(volume, len(points) + len(whole))
    columns |= dict.fromkeys(energy, len(points) + len(whole) + bool(volume))
    mix = torch.zeros(len(variables), 1 + max(columns.values()), dtype=torch.float64)
    for row, name in enumerate(variables):
        for part, coefficient in mixes[name].items():
            mix[row, columns[part]] += coefficient
    periods = torch.tensor([details[name][1] for name in variables], dtype=torch.float64)
    lattice = state.cell.double().cpu()
    angles = lattice @ lattice.transpose(1, 2)
    right = bool((angles - torch.diag_embed(angles.diagonal(dim1=1, dim2=2))).abs().max() < 1e-9)
    exact = right and not cell_varies
    return Tables(
        **packed.tensors(len(vectors.points)),
        **vectors.tensors(device),
        mix=mix.to(device),
        period=periods.to(device),
        kinds=kinds,
        groups=tuple(_group_kind(name, variables[name], packed, systems, state) for name in whole),
        has_volume=bool(volume),
        has_energy=bool(energy),
        periodic=bool(state.pbc.any()),
        candidates=None if exact else NEIGHBORS.to(device),
        reduction=None if right else _reduction(state.cell, state.pbc),
    )


def _reduction(cell: Tensor, pbc: Tensor) -> Tensor | None:
    """Whole numbers (S, 3, 3) whose products with cells are compact; None where cells are. Syncs.

    In a long, skewed cell the nearest image may lie beyond `NEIGHBORS` of the rounded one. A vector
    to a nearest image is no longer than half of the root of the sum of squared lengths of the
    reduced cell, and images within 1.5 times the smallest height are among them.
    """
    completed = complete_cell(cell.double().cpu(), pbc.cpu())
    least = heights(inverse(completed)).amin(-1).tolist()
    reductions = []
    for lattice, row, height in zip(completed.numpy(), pbc.tolist(), least, strict=True):
        reduction = compaction(lattice, row)
        is_enough = 0.5 * np.linalg.norm(reduction @ lattice) < 1.5 * height
        reductions.append(np.eye(3) if is_enough else reduction)
    if (np.array(reductions) == np.eye(3)).all():
        return None
    return torch.tensor(np.array(reductions)).to(cell.device)


class _Slots:
    """Slots of the atoms of groups, in the order in which they are added."""

    def __init__(self, systems: Sequence[System], state: State) -> None:
        self._state = state
        self._starts = state.grouping.start.tolist()
        self._masses = state.masses.double().cpu()
        self.count = 0
        self.slices: list[slice] = []
        self.of: dict[str, list[int]] = {}
        self._atoms: list[Tensor] = []
        self._weights: list[Tensor] = []
        self._before: list[int] = []
        self._first: list[int] = []

    def add(self, name: str, atoms: Sequence[Sequence[int]]) -> None:
        """Adds a group of a variable, with its atoms in each system."""
        size = max(map(len, atoms))
        rows, weights = [], []
        for start, own in zip(self._starts, atoms, strict=True):
            indices = torch.tensor(own) + start
            masses = self._masses[indices]
            rows.append(torch.cat([indices, indices[-1:].expand(size - len(own))]))
            share = masses / masses.sum()
            weights.append(torch.cat([share, share.new_zeros(size - len(own))]))
        first = self.count
        self.of.setdefault(name, []).append(len(self.slices))
        self.slices.append(slice(first, first + size))
        self._atoms.append(torch.stack(rows))
        self._weights.append(torch.stack(weights))
        self._first += [first] * size
        self._before += [max(first, place - 1) for place in range(first, first + size)]
        self.count += size

    def group(self, number: int) -> tuple[Tensor, Tensor]:
        """Atoms and weights (S, m) of a group."""
        return self._atoms[number], self._weights[number]

    def tensors(self, points: int) -> dict[str, Tensor]:
        """The tables of slots, of which the first groups are points."""
        systems, state = len(self._starts), self._state
        atoms = torch.cat([torch.zeros(systems, 0, dtype=torch.int64), *self._atoms], 1)
        weights = torch.cat([torch.zeros(systems, 0, dtype=torch.float64), *self._weights], 1)
        slices = self.slices[:points]
        largest = max((one.stop - one.start for one in slices), default=1)
        members = torch.zeros(points, largest, dtype=torch.int64)
        member_weights = torch.zeros(systems, points, largest, dtype=torch.float64)
        point = torch.zeros(slices[-1].stop if slices else 0, dtype=torch.int64)
        for number, one in enumerate(slices):
            size = one.stop - one.start
            members[number] = one.start
            members[number, :size] = torch.arange(one.start, one.stop)
            member_weights[:, number, :size] = weights[:, one]
            point[one] = number
        touched, slots = _by_atom(atoms, weights)
        tables = {
            "atoms": atoms,
            "before": torch.tensor(self._before, dtype=torch.int64),
            "first": torch.tensor(self._first, dtype=torch.int64),
            "weights": weights,
            "members": members,
            "member_weights": member_weights,
            "point": point,
            "touched": touched,
            "slots": slots,
        }
        return {name: table.to(state.device) for name, table in tables.items()}


def _by_atom(atoms: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Atoms (A,) with the slots (A, J) that hold each, from atoms and weights (S, M)."""
    places: dict[int, list[int]] = {}
    for slot, (atom, weight) in enumerate(
        zip(atoms.flatten().tolist(), weights.flatten().tolist(), strict=True)
    ):
        if weight > 0.0:
            places.setdefault(atom, []).append(slot)
    most = max(map(len, places.values()), default=1)
    empty = atoms.numel()
    rows = [places[atom] + [empty] * (most - len(places[atom])) for atom in sorted(places)]
    slots = torch.tensor(rows, dtype=torch.int64).reshape(-1, most)
    return torch.tensor(sorted(places), dtype=torch.int64), slots


class _Vectors:
    """Vectors between points, in the order of the variables that own them."""

    def __init__(self) -> None:
        self.points: list[int] = []
        self.tails: list[int] = []
        self.heads: list[int] = []
        self.owner: list[int] = []

    def tensors(self, device: torch.device) -> dict[str, Any]:
        """The tables of vectors."""
        origin = len(self.points)
        tails = [origin if tail < 0 else tail for tail in self.tails]
        at: list[list[tuple[int, float]]] = [[] for _ in self.points]
        for vector, (tail, head) in enumerate(zip(self.tails, self.heads, strict=True)):
            at[head].append((vector, 1.0))
            if tail >= 0:
                at[tail].append((vector, -1.0))
        padded = [(own + [(0, 0.0), (0, 0.0)])[:2] for own in at]
        pairs = torch.tensor(padded, dtype=torch.float64).reshape(-1, 2, 2)
        free = torch.tensor(self.tails) < 0
        tables: dict[str, Tensor | None] = {
            "tails": torch.tensor(tails, dtype=torch.int64),
            "heads": torch.tensor(self.heads, dtype=torch.int64),
            "free": free[:, None] if bool(free.any()) else None,
            "owner": torch.tensor(self.owner, dtype=torch.int64),
            "incidence": pairs[..., 0].to(torch.int64),
            "signs": pairs[..., 1:],
        }
        return {name: None if table is None else table.to(device) for name, table in tables.items()}


def _point_kinds(
    variables: Mapping[str, CollectiveVariable],
    names: Sequence[str],
    packed: _Slots,
    state: State,
) -> tuple[tuple[PointKind, ...], _Vectors]:
    """The kinds of variables of points, in their order, and their vectors."""
    vectors = _Vectors()
    members: dict[str, list[str]] = {}
    for number, name in enumerate(names):
        variable, own = variables[name], packed.of[name]
        members.setdefault(variable.kind, []).append(name)
        if isinstance(variable, Position):
            ends = [(own[0], own[1]) if len(own) == 2 else (-1, own[0])]
        else:
            ends = [(own[tail], own[head]) for tail, head in _VECTORS[variable.kind]]
        vectors.points += own
        vectors.tails += [tail for tail, _ in ends]
        vectors.heads += [head for _, head in ends]
        vectors.owner += [number] * len(ends)
    functions: dict[str, Callable[[Tensor], tuple[Tensor, Tensor]]] = {
        "distance": geometry.distances,
        "angle": geometry.angles,
        "dihedral": geometry.dihedrals,
    }
    if "position" in members:
        rows = [variables[name] for name in members["position"]]
        axes = np.stack([one.direction() for one in rows if isinstance(one, Position)])
        directions = torch.tensor(axes, device=state.device)[:, None]
        functions["position"] = partial(geometry.projections, directions=directions)
    kinds = tuple(
        PointKind(len(own), len(_VECTORS.get(kind, ((0, 0),))), functions[kind])
        for kind, own in members.items()
    )
    return kinds, vectors


def _group_kind(
    name: str,
    variable: CollectiveVariable,
    packed: _Slots,
    systems: Sequence[System],
    state: State,
) -> GroupKind:
    """A variable of groups with its function of positions, weights and nearest images."""
    numbers = packed.of[name]
    slots = tuple(packed.slices[number] for number in numbers)
    if isinstance(variable, RadiusOfGyration):

        def gyration(parts: Any, weights: Any, nearest: Any) -> tuple[Tensor, ...]:
            return geometry.radius_of_gyration(parts[0], weights[0])

        return GroupKind(slots, gyration)
    if isinstance(variable, RMSD):
        shares, reference = _reference(name, variable, packed, numbers[0], systems, state)

        def deviation(parts: Any, weights: Any, nearest: Any) -> tuple[Tensor, ...]:
            return geometry.rmsd(parts[0], shares, reference)

        return GroupKind(slots, deviation, reference)
    assert isinstance(variable, CoordinationNumber)
    (first, one), (second, two) = (packed.group(number) for number in numbers)
    counts = (first[:, :, None] != second[:, None]) & (one[:, :, None] > 0.0) & (two[:, None] > 0.0)
    counts = counts.to(state.device)
    r0, exponent = variable.r0, variable.exponent

    def coordination(parts: Any, weights: Any, nearest: Any) -> tuple[Tensor, ...]:
        vectors = parts[1][:, None] - parts[0][:, :, None]
        near = nearest(vectors.flatten(1, 2)).view_as(vectors)
        return geometry.coordination_number(near, counts, r0, exponent)

    return GroupKind(slots, coordination)


def whole_group(system: System, atoms: Sequence[int] | NDArray[np.int64]) -> NDArray[np.float64]:
    """Positions (n, 3) A of atoms of a system, each at the image nearest to the one before."""
    positions: NDArray[np.float64] = np.array(system.positions[list(atoms)], dtype=np.float64)
    if not system.pbc.any():
        return positions
    cell = torch.tensor(np.array(system.cell, dtype=float))[None]
    pbc = torch.tensor(np.array(system.pbc))[None]
    lattice = complete_cell(cell, pbc)
    if (reduction := _reduction(cell, pbc)) is not None:
        lattice = reduction @ lattice
    rounded = partial(rounded_images, inverse_cell=inverse(lattice), pbc=pbc)
    before = torch.arange(len(positions)).sub(1).clamp(min=0)
    given = torch.tensor(positions)[None]
    turns = geometry.together(given, before, torch.zeros_like(before), rounded)
    whole: NDArray[np.float64] = (given + turns @ lattice)[0].numpy()
    return whole


def _reference(
    name: str,
    variable: RMSD,
    packed: _Slots,
    number: int,
    systems: Sequence[System],
    state: State,
) -> tuple[Tensor, Tensor]:
    """Equal weights (S, m) and centred reference places (S, m, 3) of an rmsd."""
    atoms, weights = packed.group(number)
    shares = (weights > 0.0).double()
    shares /= shares.sum(1, keepdim=True)
    reference = torch.zeros(*atoms.shape, 3, dtype=torch.float64)
    for place, system in enumerate(systems):
        size = int((weights[place] > 0.0).sum())
        own = (atoms[place, :size] - state.grouping.start[place].cpu()).numpy()
        positions = whole_group(system, own)
        with prefix_errors(f"The variable {printable(name, 100)}"):
            points = torch.tensor(variable.reference_in(system, positions))
        reference[place, :size] = points - points.mean(0)
    return shares.to(state.device), reference.to(state.device)
