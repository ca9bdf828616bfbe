"""What can be chosen for a run, from a YAML file, the command line, or Python.

Every field carries its unit in its name and its description below it; the command line
makes its options from here.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from mdgraph.runs.ensembles import completed
from mdgraph.runs.fields import (
    MOST_STEPS,
    Atoms,
    Count,
    Couple,
    Ensemble,
    NotNegative,
    NumberOfSteps,
    Positive,
    Ramped,
    RampedTemperature,
    Seed,
    Temperatures,
)

DEFAULT_STEPS = 500
"""About a minute of the shipped water on two CPU cores."""


class Configuration(BaseModel):
    """What all runs share."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True
    )

    alternatives: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Fields that an option on the command line overrides beside its own."""
    arguments: ClassVar[tuple[str, ...]] = ()
    """Fields that the command line takes without the name of an option."""

    potential: str = "water-pbe0"
    """File, folder or shipped name of the potential."""
    layout: Literal["auto", "before-3.0", "3.0"] = "auto"
    """Side of release 3.0 of TorchMD-Net or MatGL that wrote the potential."""
    coulomb_cutoff_A: Positive | Literal["all-pairs"] | None = None
    """Range of a potential's Coulomb energy, or all-pairs; without it, the potential's own."""
    charge: float | None = None
    """Total charge in e; without it, what the structure says, else 0."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    precision: Literal["mixed", "single", "double", "fast"] = "mixed"
    """mixed keeps positions and sums in float64; fast also rounds the network on CUDA."""
    evaluator: Literal["auto", "fused", "reference"] = "auto"
    """fused is fast, reference automatic differentiation; auto takes fused where it can."""


class RunConfig(Configuration):
    """What has a folder of its own: dynamics or a minimisation of one system."""

    arguments = ("structure",)

    structure: str | None = None
    """Structure file; without it, the start that comes with the potential."""
    steps: NumberOfSteps | None = None
    """Length of the run, 500 unless time_ps is given."""
    fix: Atoms | None = None
    """Atoms that stay where they are: indices from 0, ranges such as 3-8, elements."""
    restrain: Atoms | None = None
    """Atoms that springs hold near where they start, named as for fix."""
    stiffness_eV_per_A2: Positive | None = None
    """Of those springs (default 1)."""
    out: str = "mdgraph-run"
    """Folder of the run, which must be new or empty."""
    trajectory: Literal["h5md", "extxyz"] = "h5md"
    """Format of the trajectory."""
    trajectory_interval: Count = 10
    """Steps between frames of the trajectory."""
    log_interval: Count = 10
    """Steps between rows of the log."""
    checkpoint_interval: Count = 1000
    """Steps between checkpoints."""
    skin_A: NotNegative | None = None
    """Neighbors are listed this far beyond the cutoff; without it, chosen by device."""
    chunk: Count | None = None
    """Steps between two checks of the run; without it, chosen by device."""
    eager: bool = False
    """On a GPU, run each step without capturing it as a CUDA graph."""
    check: bool = True
    """Compare a fast evaluator with the reference before the first step."""

    @model_validator(mode="after")
    def _springs_have_atoms(self) -> Self:
        if self.stiffness_eV_per_A2 is not None and self.restrain is None:
            raise ValueError("stiffness_eV_per_A2 belongs to atoms; name them with restrain")
        return self

    @property
    def total_steps(self) -> int:
        """Length of the run in steps."""
        return DEFAULT_STEPS if self.steps is None else self.steps


class MDConfig(RunConfig):
    """Molecular dynamics of one system."""

    alternatives = {"steps": ("time_ps",), "time_ps": ("steps",)}

    ensemble: Ensemble = "nvt-langevin"
    """nve, nvt-langevin, nvt-bussi, nvt-nose-hoover, npt or npt-mtk."""
    temperature_K: RampedTemperature = 300.0
    """Of the bath, a number or start:end, and of initial velocities where they are drawn."""
    friction_per_ps: Positive | None = None
    """Of nvt-langevin (default 1)."""
    relaxation_fs: Positive | None = None
    """Of the thermostat (default 100 in nvt-bussi and npt, 50 in nvt-nose-hoover and npt-mtk)."""
    pressure_bar: Ramped | None = None
    """Of npt and npt-mtk, a number or start:end (default 1)."""
    cell_relaxation_fs: Positive | None = None
    """Of the barostat (default 1000 in npt, 500 in npt-mtk)."""
    compressibility_per_bar: Positive | None = None
    """Of npt, a guess that scales cell_relaxation_fs (default 4.5e-5, of water)."""
    couple: Couple | None = None
    """How the cell of npt varies: isotropic (the default), axes, full, or some of x,y,z."""
    ramp_steps: Count | None = None
    """Steps that ramps take; without it, the whole run."""
    timestep_fs: Positive = 0.5
    """Time step."""
    time_ps: NotNegative | None = None
    """Length of the run, instead of steps."""
    remove_momentum: NumberOfSteps = 0
    """Steps from one removal of the total momentum to the next; 0 never removes it."""
    hydrogen_mass_amu: Positive | None = None
    """Heavier hydrogens, which take mass from the atom they are bonded to."""
    minimize: bool = False
    """Move to a minimum of the energy before the run."""
    new_velocities: bool = False
    """Draw velocities even where the structure carries some."""
    exact_temperature: bool = False
    """Scale velocities that are drawn to exactly temperature_K."""
    seed: Seed = 0
    """Key of all random numbers."""
    replicas: Count | None = None
    """Copies of the system that run side by side, each with velocities of its own."""
    temperatures_K: Temperatures | None = None
    """Of the baths of the replicas: first:last in even ratios, or a list, one for each."""
    exchange: Count | None = None
    """Steps from one exchange of temperatures between neighboring replicas to the next."""
    maximum_temperature_K: Positive | None = None
    """The run stops beyond it; without it, 10,000 K or twenty times temperature_K."""

    @model_validator(mode="before")
    @classmethod
    def _of_the_ensemble(cls, values: Any) -> Any:
        return completed(values)

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        if self.steps is not None and self.time_ps is not None:
            raise ValueError("steps and time_ps both give the length of the run; give one")
        if self.time_ps is not None and 1e3 * self.time_ps > MOST_STEPS * self.timestep_fs:
            raise ValueError(f"time_ps is more than {MOST_STEPS:.0e} steps; give less")
        return self

    @model_validator(mode="after")
    def _ramps_have_a_bath(self) -> Self:
        if self.ensemble == "nve" and isinstance(self.temperature_K, str):
            raise ValueError("nve has no bath whose temperature could change; choose an nvt one")
        if self.ramp_steps is not None and not self.ramped:
            raise ValueError("ramp_steps needs a ramp; give temperature_K or pressure_bar as 1:2")
        return self

    @model_validator(mode="after")
    def _replicas_have_temperatures(self) -> Self:
        given = self.temperatures_K
        if self.replicas is None and (given or self.exchange):
            word = "exchange" if given is None else "temperatures_K"
            raise ValueError(f"{word} belongs to replicas; say how many with replicas")
        if given is not None and ":" not in given and given.count(",") + 1 != self.replicas:
            raise ValueError("temperatures_K has not one for each of the replicas")
        if given is not None and isinstance(self.temperature_K, str):
            raise ValueError("temperatures_K stands instead of a ramp of temperature_K; give one")
        if self.replicas is not None and (self.fix or self.restrain):
            raise ValueError("atoms of replicas cannot be fixed or restrained; leave them loose")
        kelvins = [] if given is None else [*map(float, given.replace(":", ",").split(","))]
        if self.exchange is not None and (
            given is None or self.replicas == 1 or len(set(kelvins)) < len(kelvins)
        ):
            raise ValueError(
                "exchange needs replicas at different temperatures; give temperatures_K"
            )
        if self.exchange is not None and (self.ensemble == "nve" or self.pressure_bar is not None):
            raise ValueError("exchange needs an nvt ensemble; choose one")
        return self

    @property
    def ramped(self) -> bool:
        """Whether temperature or pressure change."""
        return isinstance(self.temperature_K, str) or isinstance(self.pressure_bar, str)

    @property
    def total_steps(self) -> int:
        """Length of the run in steps."""
        if self.time_ps is not None:
            return round(1e3 * self.time_ps / self.timestep_fs)
        return super().total_steps


class Descent(BaseModel):
    """What a minimum is, and the way there."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    couple: Couple | None = None
    """Vary the cell too: isotropic, axes, full, or some of x,y,z, its three vectors."""
    pressure_bar: float | None = None
    """On a cell that varies (default 0)."""
    force_tolerance_eV_per_A: Positive = 0.05
    """Largest force on an atom of a minimum."""
    stress_tolerance_bar: Positive = 100.0
    """Largest difference from the pressure at a minimum of the cell."""
    largest_step_A: Positive = 0.2
    """Of an atom."""

    @model_validator(mode="after")
    def _pressure_moves_a_cell(self) -> Self:
        if self.pressure_bar is not None and self.couple is None:
            raise ValueError("pressure_bar needs a cell that varies; say how with couple")
        return self


class MinimizeConfig(RunConfig, Descent):
    """A minimum of the energy, or of the enthalpy with the cell, by FIRE."""

    steps: NumberOfSteps | None = None
    """Most steps taken (default 500)."""


class EvalConfig(Configuration):
    """Energies, forces and stress of frames as they are."""

    arguments = ("structures",)

    structures: Annotated[tuple[str, ...], Field(min_length=1)]
    """Structure files; every frame of them is evaluated."""
    out: str = "results.extxyz"
    """Extended XYZ file to write."""
    overwrite: bool = False
    """Replace the file if it exists."""
    check: bool = True
    """Compare a fast evaluator with the reference on the first frame."""

    @field_validator("structures", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value


class RelaxConfig(EvalConfig, Descent):
    """Minima of many structures."""

    structures: Annotated[tuple[str, ...], Field(min_length=1)]
    """Structure files; every frame of them is moved to a minimum."""
    out: str = "relaxed.extxyz"
    """Extended XYZ file to write."""
    steps: NumberOfSteps = DEFAULT_STEPS
    """Most steps that a structure takes."""


class BenchConfig(Configuration):
    """Speed or errors of a potential on a structure."""

    arguments = ("potential", "structure")

    structure: str | None = None
    """Structure file; without it, the start that comes with a potential that is named."""
    atoms: Count | None = None
    """Of a box of water made on the spot (default 192 on a CPU, 648 on CUDA)."""
    timestep_fs: Positive = 0.5
    """Time step of the steps that are timed, at 300 K."""
    seconds: Positive = 20.0
    """Time for the steps that are timed; compilation comes on top."""
    picture: str | None = None
    """Bar chart to draw, a .png, .svg or .pdf file."""

    @model_validator(mode="after")
    def _one_structure(self) -> Self:
        if self.structure is not None and self.atoms is not None:
            raise ValueError("structure and atoms both say what is timed; give one")
        return self
