"""Energies by where atoms are: springs between named atoms, uniform forces, and walls.

    bonds:0-1=STIFFNESS/LENGTH,...     k/2 (r - r0)^2 between atoms by their indices from 0
    field:X/Y/Z                        a force (X, Y, Z) in eV/A on every atom
    field:X/Y/Z,O=-0.8,H=0.4           a field (X, Y, Z) in V/A and charges of elements in e
    walls:zmin=0/STIFFNESS,zmax=20/STIFFNESS    k/2 d^2 where an atom is d beyond a plane

Stiffnesses are in eV/A^2 and lengths in A. A bond has the length of its nearest image. Fields and
walls read positions as they are, not wrapped into a cell, and their virial is the derivative by a
strain about the origin. Along a periodic direction both are for a start whose atoms lie in one
cell, and a pressure along them means little.
"""

import re
from collections.abc import Sequence
from typing import Annotated, Any, Final, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from mdgraph.errors import InputError, name_some, printable
from mdgraph.models.architectures import Architecture, register
from mdgraph.models.config import Element, PotentialConfig
from mdgraph.models.potential import AbsolutePositions, Atoms, PotentialModule
from mdgraph.models.terms import EVERY_ELEMENT, assignments, element, number, without_cutoff
from mdgraph.neighbors.geometry import (
    NEIGHBORS,
    compact_cells,
    complete_cell,
    inverse,
    minimum_images,
)
from mdgraph.neighbors.pairs import Pairs
from mdgraph.units import SYMBOLS

_Stiffness = Annotated[float, Field(gt=0.0, le=1e6)]
"""eV/A^2."""
_Index = Annotated[int, Field(ge=0, lt=2**31)]
_Coordinate = Annotated[float, Field(ge=-1e6, le=1e6)]


class _NamedPart(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class HarmonicBond(_NamedPart):
    """k/2 (r - r0)^2 between two atoms."""

    first: _Index
    second: _Index
    stiffness: _Stiffness
    length: Annotated[float, Field(ge=0.0, le=1e4)]
    """r0, A."""


class Wall(_NamedPart):
    """k/2 d^2 for an atom that is d beyond a plane."""

    axis: Literal["x", "y", "z"]
    side: Literal["min", "max"]
    """min: the plane is the least coordinate, and acts below it."""
    place: _Coordinate
    """A."""
    stiffness: _Stiffness


class BondsConfig(PotentialConfig):
    """Configuration of BondsPotential."""

    architecture: Literal["bonds"] = "bonds"
    bonds: Annotated[tuple[HarmonicBond, ...], Field(min_length=1, max_length=10_000)]


class FieldConfig(PotentialConfig):
    """Configuration of FieldPotential."""

    architecture: Literal["field"] = "field"
    field: tuple[_Coordinate, _Coordinate, _Coordinate]
    """V/A; without charges the force on each atom, eV/A."""
    charges: dict[Element, float] = Field(default_factory=dict)
    """e, of elements; others have none. Empty: 1 for all."""


class WallsConfig(PotentialConfig):
    """Configuration of WallsPotential."""

    architecture: Literal["walls"] = "walls"
    walls: Annotated[tuple[Wall, ...], Field(min_length=1, max_length=6)]


class ExternalPotential(PotentialModule):
    """Base class of the three: no lists, and positions instead of pair vectors."""

    @property
    def cutoffs(self) -> tuple[float, ...]:
        """See Potential: it reads no list."""
        return ()

    @property
    def uses_positions(self) -> bool:
        """Whether it reads `Atoms.absolute`."""
        return True

    @property
    def keeps_momentum(self) -> bool:
        """See PotentialModule: it acts from outside."""
        return False

    def cast_(self, dtype: torch.dtype) -> None:
        """Constants stay float64."""

    def forward(self, atoms: Atoms, pairs: tuple[Pairs, ...]) -> Tensor:
        """See Potential."""
        if atoms.absolute is None:
            raise InputError(
                f"{type(self).__name__} needs positions, which what evaluates it does not give; "
                "leave the term out there."
            )
        return self.energies(atoms, atoms.absolute)

    def energies(self, atoms: Atoms, absolute: AbsolutePositions) -> Tensor:
        """(N,) float64, eV."""
        raise NotImplementedError


class BondsPotential(ExternalPotential):
    """Harmonic bonds between named atoms of each system; each atom has half of the energy.

    Attributes:
        first, second: (B,) int64, indices.
        stiffness: (B,) float64, eV/A^2.
        length: (B,) float64, A.
        candidates: (27, 3) float64, images to try in compact cells; see `minimum_images`.
    """

    config: BondsConfig
    first: Tensor
    second: Tensor
    stiffness: Tensor
    length: Tensor
    candidates: Tensor

    def __init__(self, config: BondsConfig) -> None:
        super().__init__(config)
        for name in ("first", "second", "stiffness", "length"):
            values = [getattr(bond, name) for bond in config.bonds]
            dtype = torch.int64 if name in ("first", "second") else torch.float64
            self.register_buffer(name, torch.tensor(values, dtype=dtype), persistent=False)
        self.register_buffer("candidates", NEIGHBORS.clone(), persistent=False)

    @property
    def keeps_momentum(self) -> bool:
        """See PotentialModule: forces of a bond are opposite."""
        return True

    def check_atoms(self, numbers: Sequence[int]) -> None:
        """See PotentialModule."""
        count = len(numbers)
        wrong = [
            f"{bond.first}-{bond.second}"
            for bond in self.config.bonds
            if max(bond.first, bond.second) >= count or bond.first == bond.second
        ]
        if wrong:
            raise InputError(
                f"The bonds {name_some(wrong)} of the term are not between two atoms of the "
                f"structure, which has {count}; give indices from 0 to {count - 1}."
            )

    def energies(self, atoms: Atoms, absolute: AbsolutePositions) -> Tensor:
        """See ExternalPotential."""
        group = atoms.grouping
        # Sums of masks instead of gathers, whose adjoint would add in any order.
        is_first = (absolute.atom[:, None] == self.first).double()
        is_second = (absolute.atom[:, None] == self.second).double()
        between = group.sum((is_second - is_first)[..., None] * absolute.positions[:, None])
        present = group.sum(is_first * 1.0) * group.sum(is_second * 1.0) > 0.0
        cell = complete_cell(absolute.cell, absolute.pbc)
        pbc, inverse_cell = absolute.pbc, inverse(cell)
        with torch.no_grad():
            compact = compact_cells(cell, pbc, self.candidates)
            near = minimum_images(between, compact, inverse(compact), pbc, self.candidates)
            turns = torch.round((near - between) @ inverse_cell) * pbc[:, None]
        between = torch.where(present[..., None], between + turns @ cell, 1.0)
        distance = torch.linalg.vector_norm(between, dim=-1)
        energy = 0.5 * self.stiffness * (distance - self.length) ** 2
        shares = group.spread(torch.where(present, 0.5 * energy, 0.0))
        return ((is_first + is_second) * shares).sum(-1)

    def details(self) -> dict[str, Any]:
        """See PotentialModule."""
        return {
            "bonds": [
                f"{bond.first}-{bond.second}: {bond.stiffness:g} eV/A^2, {bond.length:g} A"
                for bond in self.config.bonds
            ]
        }


class FieldPotential(ExternalPotential):
    """A uniform field, e_i = -q_i E x_i.

    Attributes:
        field: (3,) float64, V/A.
        charges: (119,) float64, e, of elements.
    """

    config: FieldConfig
    field: Tensor
    charges: Tensor

    def __init__(self, config: FieldConfig) -> None:
        super().__init__(config)
        field = torch.tensor(config.field, dtype=torch.float64)
        self.register_buffer("field", field, persistent=False)
        charges = torch.ones(len(SYMBOLS), dtype=torch.float64)
        if config.charges:
            charges.zero_()
            charges[list(config.charges)] = torch.tensor(
                list(config.charges.values()), dtype=torch.float64
            )
        self.register_buffer("charges", charges, persistent=False)

    def energies(self, atoms: Atoms, absolute: AbsolutePositions) -> Tensor:
        """See ExternalPotential."""
        return -self.charges[atoms.numbers] * (absolute.positions * self.field).sum(-1)

    def details(self) -> dict[str, Any]:
        """See PotentialModule."""
        components = "/".join(f"{value:g}" for value in self.config.field)
        charges = [f"{SYMBOLS[z]} {charge:g} e" for z, charge in self.config.charges.items()]
        unit = "V/A" if charges else "eV/A on every atom"
        return {"field": f"{components} {unit}", "charges": charges}


class WallsPotential(ExternalPotential):
    """Planes that push atoms back, e_i = sum k/2 d^2 over the planes that it is beyond.

    Attributes:
        normals: (3, W) float64, into the room between the walls.
        places: (W,) float64, A, along them.
        stiffness: (W,) float64, eV/A^2.
    """

    config: WallsConfig
    normals: Tensor
    places: Tensor
    stiffness: Tensor

    def __init__(self, config: WallsConfig) -> None:
        super().__init__(config)
        normals = torch.zeros(3, len(config.walls), dtype=torch.float64)
        for number_, wall in enumerate(config.walls):
            normals["xyz".index(wall.axis), number_] = 1.0 if wall.side == "min" else -1.0
        places = torch.tensor([wall.place for wall in config.walls], dtype=torch.float64)
        stiffness = torch.tensor([wall.stiffness for wall in config.walls], dtype=torch.float64)
        self.register_buffer("normals", normals, persistent=False)
        self.register_buffer("places", normals.sum(0) * places, persistent=False)
        self.register_buffer("stiffness", stiffness, persistent=False)

    def energies(self, atoms: Atoms, absolute: AbsolutePositions) -> Tensor:
        """See ExternalPotential."""
        inward = absolute.positions @ self.normals - self.places
        return (0.5 * self.stiffness * inward.clamp(max=0.0) ** 2).sum(-1)

    def details(self) -> dict[str, Any]:
        """See PotentialModule."""
        return {
            "walls": [
                f"{wall.axis} {wall.side} {wall.place:g} A: {wall.stiffness:g} eV/A^2"
                for wall in self.config.walls
            ]
        }


_PLANE: Final = re.compile(r"([xyz])(min|max)")


def _parse_bonds(arguments: str, cutoff: float | None) -> BondsConfig:
    without_cutoff("bonds", cutoff)
    bonds = []
    values = ("stiffness in eV/A^2", "length in A")
    for name, (stiffness, length) in assignments(arguments, values, "bonds:0-1=10/1.5"):
        first, dash, second = name.partition("-")
        if not (first.isdecimal() and dash and second.isdecimal()):
            raise InputError(
                f"'{printable(name, 60)}' names no bond; give the indices of two atoms, from 0, "
                "such as 0-1."
            )
        bonds.append(HarmonicBond(first=first, second=second, stiffness=stiffness, length=length))
    return BondsConfig(species=EVERY_ELEMENT, name=f"bonds:{arguments}", bonds=tuple(bonds))


def _parse_field(arguments: str, cutoff: float | None) -> FieldConfig:
    without_cutoff("field", cutoff)
    vector, comma, others = arguments.partition(",")
    components = vector.split("/")
    if len(components) != 3:
        raise InputError(
            f"A field has three components, and '{printable(vector, 60)}' has not; write a term "
            "such as field:0/0/0.01."
        )
    field = tuple(number(text, "a component", f"field:{arguments}") for text in components)
    charges = {}
    if comma:
        parts = assignments(others, ("charge in e",), "field:0/0/0.01,O=-0.8,H=0.4")
        charges = {element(name): charge for name, (charge,) in parts}
    return FieldConfig(
        species=EVERY_ELEMENT, name=f"field:{arguments}", field=field, charges=charges
    )


def _parse_walls(arguments: str, cutoff: float | None) -> WallsConfig:
    without_cutoff("walls", cutoff)
    walls = []
    values = ("place in A", "stiffness in eV/A^2")
    for name, (place, stiffness) in assignments(arguments, values, "walls:zmin=0/5,zmax=20/5"):
        plane = _PLANE.fullmatch(name)
        if plane is None:
            raise InputError(
                f"'{printable(name, 60)}' names no plane; give some of xmin, xmax, ymin, ymax, "
                "zmin and zmax."
            )
        walls.append(Wall(axis=plane[1], side=plane[2], place=place, stiffness=stiffness))
    return WallsConfig(species=EVERY_ELEMENT, name=f"walls:{arguments}", walls=tuple(walls))


for _word, _title, _config, _build, _parse in (
    ("bonds", "Harmonic bonds", BondsConfig, BondsPotential, _parse_bonds),
    ("field", "Uniform field", FieldConfig, FieldPotential, _parse_field),
    ("walls", "Walls", WallsConfig, WallsPotential, _parse_walls),
):
    register(Architecture(_word, _title, _config, _build, simple=True, parse=_parse))
