"""Collective variables and biases in configurations, and what `mdgraph.biases` makes of them."""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from mdgraph.arguments import FrozenConfig
from mdgraph.errors import printable
from mdgraph.runs.config_fields import HIGHEST_TEMPERATURE, Atoms, Count, nearest

if TYPE_CHECKING:
    from mdgraph.biases import Bias, CollectiveVariable, HarmonicBias
    from mdgraph.system import System

_NUMBER: Final = r"\d+(?:\.\d*)?(?:[eE][-+]?\d+)?|\.\d+(?:[eE][-+]?\d+)?"
_ANGLE: Final = re.compile(
    rf"(?P<sign>[-+]?)\s*(?:(?P<degrees>{_NUMBER})\s*deg"
    rf"|(?:(?P<times>{_NUMBER})\s*\*?\s*)?pi(?:\s*/\s*(?P<by>{_NUMBER}))?)"
)


def _value(value: Any) -> Any:
    """A number, or an angle such as `-pi/2` or `120deg` in radians."""
    match = _ANGLE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        return value
    sign = -1.0 if match["sign"] == "-" else 1.0
    if match["degrees"]:
        return sign * math.radians(float(match["degrees"]))
    return sign * math.pi * float(match["times"] or 1.0) / float(match["by"] or 1.0)


def _list(value: Any) -> Any:
    """A list, from one thing or several."""
    return list(value) if isinstance(value, list | tuple) else [value]


Value = Annotated[float, BeforeValidator(_value, json_schema_input_type=float | str)]
"""In the unit of a variable: A, rad, A^3 or eV; angles also as `pi/2` or `120deg`."""
Values = Annotated[
    list[Value],
    BeforeValidator(_list, json_schema_input_type=float | str | list[float | str]),
    Field(min_length=1),
]
"""One number for all variables, or one for each."""
Energies = Annotated[
    list[Annotated[float, Field(ge=0, le=1e6)]],
    BeforeValidator(_list, json_schema_input_type=float | list[float]),
    Field(min_length=1),
]
"""eV over a power of the unit of a variable; one for all, or one for each."""
Rows = Annotated[
    list[Value] | list[list[Value]],
    BeforeValidator(_list, json_schema_input_type=float | str | list[Any]),
]
"""One number for each variable, or a list of such for each replica."""
EnergyRows = Annotated[
    list[Annotated[float, Field(ge=0, le=1e6)]] | list[list[Annotated[float, Field(ge=0, le=1e6)]]],
    BeforeValidator(_list, json_schema_input_type=float | list[Any]),
    Field(min_length=1),
]
"""eV over a power of the unit; one for each variable, or a list of such for each replica."""
Index = Annotated[int, Field(ge=0)]


_WORDS_OF_PLUMED: Final = {
    "biasfactor": "bias_factor",
    "height": "height_eV",
    "pace": "every",
    "stride": "every",
    "width": "sigma",
    "at": "centre",
    "center": "centre",
    "kappa": "stiffness_eV",
    "grid_min": "minimum",
    "grid_max": "maximum",
    "grid_bin": "points",
    "temp": "temperature_K",
}
"""Keys of biases by what PLUMED calls them."""


class _NamedKeys(FrozenConfig):
    """Base of entries whose unknown keys are answered with the likely known one."""

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, values: Any) -> Any:
        for key in values if isinstance(values, Mapping) else ():
            if key not in cls.model_fields:
                likely = _WORDS_OF_PLUMED.get(str(key).casefold())
                advice = nearest(str(key), [*cls.model_fields])
                if likely in cls.model_fields:
                    advice = f"did you mean {likely}?"
                raise ValueError(f"unknown key {printable(str(key), 100)}; {advice}")
        return values


class VariableConfig(_NamedKeys):
    """Base of variables in configurations."""

    def definition(self, systems: Sequence["System"] = ()) -> "CollectiveVariable":
        """The variable; a file of reference positions is read for the first of the systems."""
        raise NotImplementedError

    def with_full_paths(self) -> Self:
        """The variable with whole paths."""
        return self


class PointsConfig(VariableConfig):
    """Base of variables of some atoms, or of centres of mass of groups."""

    points: ClassVar[int]

    atoms: list[Index] | None = None
    """Indices of atoms from 0."""
    groups: list[Atoms] | None = None
    """Selections instead of atoms, whose centres of mass count."""

    @model_validator(mode="after")
    def _as_many_as_points(self) -> Self:
        if (self.atoms is None) == (self.groups is None):
            raise ValueError("give its atoms, or groups for centres of mass")
        given = self.atoms or self.groups or []
        if len(given) != self.points:
            raise ValueError(f"it is of {self.points} atoms or groups, not of {len(given)}")
        return self

    def definition(self, systems: Sequence["System"] = ()) -> "CollectiveVariable":
        """See VariableConfig."""
        from mdgraph.biases.variables import VARIABLES

        kind: str = self.kind  # type: ignore[attr-defined]
        variable: Any = VARIABLES[kind]
        return variable(self.atoms if self.groups is None else self.groups)


class DistanceConfig(PointsConfig):
    """The distance of two atoms or centres of mass, A."""

    points = 2
    kind: Literal["distance"] = "distance"


class AngleConfig(PointsConfig):
    """The angle at the second of three atoms or centres of mass, rad."""

    points = 3
    kind: Literal["angle"] = "angle"


class DihedralConfig(PointsConfig):
    """The torsion angle of four atoms or centres of mass, rad from -pi to pi."""

    points = 4
    kind: Literal["dihedral"] = "dihedral"


class PositionConfig(VariableConfig):
    """The coordinate of an atom or a centre of mass along an axis, A."""

    kind: Literal["position"] = "position"
    atoms: Atoms
    """The group, as for fix."""
    axis: Literal["x", "y", "z"] | Annotated[list[float], Field(min_length=3, max_length=3)] = "z"
    """x, y, z, or three numbers."""
    relative_to: Atoms | None = None
    """The group from whose centre of mass it counts; without it, from the origin."""

    def definition(self, systems: Sequence["System"] = ()) -> "CollectiveVariable":
        """See VariableConfig."""
        from mdgraph.biases import Position

        return Position(self.atoms, self.axis, self.relative_to)


class CoordinationConfig(VariableConfig):
    """The number of pairs of two groups that are near, sum 1 / (1 + (r / r0)^n)."""

    kind: Literal["coordination"] = "coordination"
    groups: Annotated[list[Atoms], Field(min_length=2, max_length=2)]
    """Two selections."""
    r0_A: Annotated[float, Field(gt=0, le=1e3)]
    """Where a pair counts one half."""
    exponent: Annotated[int, Field(ge=2, le=32)] = 6
    """n."""

    def definition(self, systems: Sequence["System"] = ()) -> "CollectiveVariable":
        """See VariableConfig."""
        from mdgraph.biases import CoordinationNumber

        return CoordinationNumber(self.groups, self.r0_A, self.exponent)


class RadiusOfGyrationConfig(VariableConfig):
    """The radius of gyration of a group about its centre of mass, A."""

    kind: Literal["radius_of_gyration"] = "radius_of_gyration"
    atoms: Atoms
    """The group, as for fix."""

    def definition(self, systems: Sequence["System"] = ()) -> "CollectiveVariable":
        """See VariableConfig."""
        from mdgraph.biases import RadiusOfGyration

        return RadiusOfGyration(self.atoms)


class RMSDConfig(VariableConfig):
    """The root mean square distance of a group to a reference, after superposition, A."""

    kind: Literal["rmsd"] = "rmsd"
    atoms: Atoms
    """The group, as for fix."""
    reference: str | None = None
    """Structure file with the same atoms as the start; without it, the start itself."""

    def with_full_paths(self) -> Self:
        """See VariableConfig."""
        whole = self.reference and str(Path(self.reference).resolve())
        return self.model_copy(update={"reference": whole})

    def definition(self, systems: Sequence["System"] = ()) -> "CollectiveVariable":
        """See VariableConfig; raises InputError or FileError where the file does not fit."""
        from mdgraph.biases import RMSD

        if self.reference is None or not systems:
            return RMSD(self.atoms)
        from mdgraph.biases.tables import whole_group
        from mdgraph.errors import InputError
        from mdgraph.io.structures import read_systems
        from mdgraph.selection import select_atoms

        other = read_systems(self.reference, -1)[0]
        if other.numbers.tolist() != systems[0].numbers.tolist():
            raise InputError(
                f"The reference {self.reference} has other atoms than the start; give the same "
                "atoms in the same order."
            )
        atoms = select_atoms(self.atoms, systems[0])
        return RMSD(atoms, whole_group(other, atoms))


class VolumeConfig(VariableConfig):
    """The volume of a cell that is periodic along three directions, A^3."""

    kind: Literal["volume"] = "volume"

    def definition(self, systems: Sequence["System"] = ()) -> "CollectiveVariable":
        """See VariableConfig."""
        from mdgraph.biases import CellVolume

        return CellVolume()


class EnergyConfig(VariableConfig):
    """The potential energy before biases, eV."""

    kind: Literal["energy"] = "energy"

    def definition(self, systems: Sequence["System"] = ()) -> "CollectiveVariable":
        """See VariableConfig."""
        from mdgraph.biases import PotentialEnergy

        return PotentialEnergy()


class CombinationConfig(VariableConfig):
    """A linear combination of other variables, in their unit."""

    kind: Literal["combination"] = "combination"
    coefficients: Annotated[dict[str, float], Field(min_length=1)]
    """Factor of each variable, by its name."""

    def definition(self, systems: Sequence["System"] = ()) -> "CollectiveVariable":
        """See VariableConfig."""
        from mdgraph.biases import Combination

        return Combination(self.coefficients)


Names = Annotated[
    list[str],
    BeforeValidator(_list, json_schema_input_type=str | list[str]),
    Field(min_length=1),
]


class BiasConfig(_NamedKeys):
    """Base of biases in configurations."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.+-]+$", max_length=60)] | None = None
    """Of its columns in COLVAR; without it, its kind."""
    variables: Names
    """Name of the variable that it acts on, or a list of such."""

    def definition(self) -> "Bias":
        """The bias; raises InputError for numbers that do not fit."""
        raise NotImplementedError


def _row(values: Sequence[Any] | None) -> Any:
    """One number for all variables, or the list of one for each."""
    return values[0] if values is not None and len(values) == 1 else values


class HarmonicConfig(BiasConfig):
    """An umbrella, U = k/2 (s - s0)^2."""

    kind: Literal["harmonic"] = "harmonic"
    centre: Rows
    """s0, a number for each variable; or such a list for each replica."""
    stiffness_eV: EnergyRows
    """k over the square of the unit of each variable, likewise."""

    def definition(self) -> "HarmonicBias":
        """See BiasConfig."""
        from mdgraph.biases import HarmonicBias

        return HarmonicBias(
            self.variables, self.name, centre=self.centre, stiffness=_row(self.stiffness_eV)
        )


class WaypointConfig(FrozenConfig):
    """Where a moving bias is at a step."""

    step: Annotated[int, Field(ge=0, le=10**15)]
    """Of the run."""
    centre: Values
    """s0."""
    stiffness_eV: Energies
    """k over the square of the unit of each variable."""


class MovingConfig(BiasConfig):
    """A harmonic bias that moves from waypoint to waypoint (steered dynamics)."""

    kind: Literal["moving"] = "moving"
    waypoints: Annotated[list[WaypointConfig], Field(min_length=2)]
    """Steps with centre and stiffness; linear in between."""

    def definition(self) -> "Bias":
        """See BiasConfig."""
        from mdgraph.biases import MovingBias

        count = len(self.variables)

        def spread(values: Sequence[float]) -> list[float]:
            return [*values] * count if len(values) == 1 else [*values]

        return MovingBias(
            self.variables,
            self.name,
            steps=[one.step for one in self.waypoints],
            centres=[spread(one.centre) for one in self.waypoints],
            stiffness=[spread(one.stiffness_eV) for one in self.waypoints],
        )


class WallBiasConfig(BiasConfig):
    """Walls, U = k/2 (s - wall)^2 beyond them."""

    kind: Literal["walls"] = "walls"
    lower: Values | None = None
    """Below which it acts."""
    upper: Values | None = None
    """Above which it acts."""
    stiffness_eV: Energies
    """k over the square of the unit of each variable."""

    def definition(self) -> "Bias":
        """See BiasConfig."""
        from mdgraph.biases import WallBias

        return WallBias(
            self.variables,
            self.name,
            lower=_row(self.lower),
            upper=_row(self.upper),
            stiffness=_row(self.stiffness_eV),
        )


class LinearConfig(BiasConfig):
    """A constant force, U = a (s - s0)."""

    kind: Literal["linear"] = "linear"
    slope_eV: Values
    """a over the unit of each variable."""
    centre: Values = Field(default=[0.0])
    """s0, where the energy is 0."""

    def definition(self) -> "Bias":
        """See BiasConfig."""
        from mdgraph.biases import LinearBias

        return LinearBias(
            self.variables, self.name, slope=_row(self.slope_eV), centre=_row(self.centre)
        )


class MetadynamicsConfig(BiasConfig):
    """Gaussian hills on a grid; well-tempered with a bias factor."""

    kind: Literal["metadynamics"] = "metadynamics"
    sigma: Values
    """Widths of the hills."""
    height_eV: Annotated[float, Field(gt=0, le=1e3)]
    """Of the first hills."""
    every: Count
    """Steps from one hill to the next."""
    minimum: Values | None = None
    """First point of the grid; periodic variables need none."""
    maximum: Values | None = None
    """Last point of the grid."""
    points: Annotated[
        list[Annotated[int, Field(ge=4, le=10**7)]] | None,
        BeforeValidator(
            lambda value: value if value is None else _list(value),
            json_schema_input_type=int | list[int] | None,
        ),
    ] = None
    """Of the grid along each variable; without it, five for each sigma."""
    bias_factor: Annotated[float, Field(gt=1, le=1e6)] | None = None
    """gamma of well-tempered metadynamics; without it, hills keep their height."""
    temperature_K: Annotated[float, Field(gt=0, le=HIGHEST_TEMPERATURE)] | None = None
    """Of kT in well-tempered metadynamics; without it, that of the bath."""
    shared: bool = False
    """All replicas are walkers on one grid."""

    def definition(self) -> "Bias":
        """See BiasConfig."""
        from mdgraph.biases import Metadynamics

        return Metadynamics(
            self.variables,
            self.name,
            sigma=_row(self.sigma),
            height=self.height_eV,
            every=self.every,
            minimum=_row(self.minimum),
            maximum=_row(self.maximum),
            points=_row(self.points),
            bias_factor=self.bias_factor,
            temperature=self.temperature_K,
            shared=self.shared,
        )


HILLS_COLUMNS: Final = ("height", "biasf")
"""Columns of HILLS after those of variables and their sigmas."""

VARIABLE_KINDS: Final[dict[str, type[VariableConfig]]] = {
    "distance": DistanceConfig,
    "angle": AngleConfig,
    "dihedral": DihedralConfig,
    "position": PositionConfig,
    "coordination": CoordinationConfig,
    "radius_of_gyration": RadiusOfGyrationConfig,
    "rmsd": RMSDConfig,
    "volume": VolumeConfig,
    "energy": EnergyConfig,
    "combination": CombinationConfig,
}
"""Variables by their kinds."""

BIAS_KINDS: Final[dict[str, type[BiasConfig]]] = {
    "harmonic": HarmonicConfig,
    "moving": MovingConfig,
    "walls": WallBiasConfig,
    "linear": LinearConfig,
    "metadynamics": MetadynamicsConfig,
}
"""Biases by their kinds."""


def _checked_kind(kinds: Mapping[str, Any]) -> BeforeValidator:
    """Refuses what has no known kind, with the nearest one."""

    def check(value: Any) -> Any:
        if isinstance(value, FrozenConfig):
            return value
        if not isinstance(value, Mapping) or "kind" not in value:
            raise ValueError(f"it needs a kind; {nearest('', kinds)}")
        if value["kind"] not in kinds:
            raise ValueError(f"its kind is {value['kind']}; {nearest(str(value['kind']), kinds)}")
        return value

    return BeforeValidator(check)


def _kind(value: Any) -> str:
    kind = value.get("kind") if isinstance(value, Mapping) else getattr(value, "kind", "")
    return str(kind)


AnyVariable = Annotated[
    Annotated[DistanceConfig, Tag("distance")]
    | Annotated[AngleConfig, Tag("angle")]
    | Annotated[DihedralConfig, Tag("dihedral")]
    | Annotated[PositionConfig, Tag("position")]
    | Annotated[CoordinationConfig, Tag("coordination")]
    | Annotated[RadiusOfGyrationConfig, Tag("radius_of_gyration")]
    | Annotated[RMSDConfig, Tag("rmsd")]
    | Annotated[VolumeConfig, Tag("volume")]
    | Annotated[EnergyConfig, Tag("energy")]
    | Annotated[CombinationConfig, Tag("combination")],
    Discriminator(_kind),
    _checked_kind(VARIABLE_KINDS),
]
AnyBias = Annotated[
    Annotated[HarmonicConfig, Tag("harmonic")]
    | Annotated[MovingConfig, Tag("moving")]
    | Annotated[WallBiasConfig, Tag("walls")]
    | Annotated[LinearConfig, Tag("linear")]
    | Annotated[MetadynamicsConfig, Tag("metadynamics")],
    Discriminator(_kind),
    _checked_kind(BIAS_KINDS),
]

VariableName = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_]*$", max_length=60)]
Variables = Annotated[dict[VariableName, AnyVariable], Field(min_length=1)]
Biases = Annotated[list[AnyBias], Field(min_length=1)]


def definitions(
    variables: Mapping[str, VariableConfig] | None,
    biases: Sequence[BiasConfig] | None,
    systems: Sequence["System"] = (),
) -> tuple[dict[str, "CollectiveVariable"], list["Bias"]]:
    """Variables and biases as a simulation takes them.

    Args:
        variables: of a configuration.
        biases: likewise.
        systems: initial structures, for which files of references are read.

    Raises:
        InputError: names or numbers that do not fit.
    """
    from mdgraph.errors import prefix_errors

    collective = {}
    for name, variable in (variables or {}).items():
        with prefix_errors(f"The variable {name}"):
            collective[name] = variable.definition(systems)
    return collective, [bias.definition() for bias in biases or ()]


def large_angles(
    variables: Mapping[str, VariableConfig] | None, biases: Sequence[BiasConfig] | None
) -> list[str]:
    """A sentence for each bias of angles whose places look like degrees without their word."""
    angles = {
        name
        for name, variable in (variables or {}).items()
        if isinstance(variable, AngleConfig | DihedralConfig)
    }
    sentences = []
    for bias in biases or ():
        places = [getattr(bias, key, None) for key in ("centre", "lower", "upper")]
        turns = 1.0
        if isinstance(bias, MovingConfig):  # which may wind up a torsion several times
            places, turns = [one.centre for one in bias.waypoints], 4.0
        rows = [row if isinstance(row, list) else [row] for place in places for row in place or ()]
        largest = max((float(value) for row in rows for value in row), key=abs, default=0.0)
        if set(bias.variables) <= angles and abs(largest) > 1.001 * turns * 2.0 * math.pi:
            sentences.append(
                f"The bias {printable(bias.name or str(getattr(bias, 'kind', '')), 100)} has a "
                f"place of {largest:g} rad, which is {abs(largest) / (2.0 * math.pi):.1f} turns; "
                f"degrees are written as {largest:g}deg."
            )
    return sentences


def late_hills(biases: Sequence[BiasConfig] | None, steps: int) -> list[str]:
    """A sentence for each metadynamics whose first hill comes after the steps of a run."""
    return [
        f"The bias {printable(bias.name or bias.kind, 100)} adds a hill every {bias.every:,} "
        f"steps, and the run has {steps:,}, so it adds none."
        for bias in biases or ()
        if isinstance(bias, MetadynamicsConfig) and 0 < steps < bias.every
    ]


def are_windows(biases: Sequence[BiasConfig] | None, replicas: int) -> bool:
    """Whether harmonic biases are another umbrella for each of several replicas.

    Raises:
        ValueError: numbers that do not fit the replicas.
    """
    from mdgraph.errors import InputError

    springs = [bias for bias in biases or () if isinstance(bias, HarmonicConfig)]
    try:
        parts = [spring.definition().windows(replicas).tolist() for spring in springs]
    except InputError as error:
        raise ValueError(str(error).removesuffix(".")) from error
    windows = {str(rows) for rows in zip(*parts, strict=True)}
    return replicas > 1 and len(windows) == replicas


def check_definitions(
    variables: Mapping[str, VariableConfig] | None, biases: Sequence[BiasConfig] | None
) -> None:
    """Raises ValueError for names, combinations or numbers that do not fit."""
    from mdgraph.biases.applied import check_variables
    from mdgraph.biases.bias import check_names
    from mdgraph.biases.tables import units_and_periods
    from mdgraph.errors import InputError

    for bias in biases or ():
        own = {*HILLS_COLUMNS, *(f"sigma_{name}" for name in bias.variables)}
        reserved = [name for name in bias.variables if name in own]
        if reserved and isinstance(bias, MetadynamicsConfig):
            raise ValueError(
                f"HILLS, which metadynamics writes, has a column {reserved[0]} of its own; give "
                "the variable of this name another one"
            )
    try:
        collective, applied = definitions(variables, biases)
        check_variables(collective)
        units_and_periods(collective)
        check_names(applied, collective)
    except InputError as error:
        raise ValueError(str(error).removesuffix(".")) from error
