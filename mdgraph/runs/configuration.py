"""What can be chosen for a run, from a YAML file, the command line, or Python.

Every field carries its unit in its name and its description below it; the command line
makes its options from here.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]

DEFAULT_STEPS = 500
"""About a minute of the shipped water on two CPU cores."""


MOST_STEPS = 10**15
"""Beyond any run; float64 still counts single steps."""


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
    precision: Literal["mixed", "single", "double"] = "mixed"
    """Types of numbers; mixed keeps positions and sums in float64."""
    evaluator: Literal["auto", "fused", "reference"] = "auto"
    """fused is fast, reference automatic differentiation; auto takes fused where it can."""


class MDConfig(Configuration):
    """Molecular dynamics of one system."""

    alternatives = {"steps": ("time_ps",), "time_ps": ("steps",)}
    arguments = ("structure",)

    structure: str | None = None
    """Structure file; without it, the start that comes with the potential."""
    ensemble: Literal["nve", "langevin"] = "langevin"
    """Constant energy, or constant temperature with Langevin noise."""
    temperature_K: NotNegative = 300.0
    """Of the bath, and of initial velocities where they are drawn."""
    friction_per_ps: Positive = 1.0
    """Of the Langevin bath."""
    timestep_fs: Positive = 0.5
    """Time step."""
    steps: Annotated[int, Field(ge=0, le=MOST_STEPS)] | None = None
    """Length of the run, 500 unless time_ps is given."""
    time_ps: NotNegative | None = None
    """Length of the run, instead of steps."""
    minimize: bool = False
    """Move to a minimum of the energy before the run."""
    new_velocities: bool = False
    """Draw velocities even where the structure carries some."""
    exact_temperature: bool = False
    """Scale velocities that are drawn to exactly temperature_K."""
    seed: Seed = 0
    """Key of all random numbers."""
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
    maximum_temperature_K: Positive | None = None
    """The run stops beyond it; without it, 10,000 K or twenty times temperature_K."""
    check: bool = True
    """Compare a fast evaluator with the reference before the first step."""

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        if self.steps is not None and self.time_ps is not None:
            raise ValueError("steps and time_ps both give the length of the run; give one")
        if self.time_ps is not None and 1e3 * self.time_ps > MOST_STEPS * self.timestep_fs:
            raise ValueError(f"time_ps is more than {MOST_STEPS:.0e} steps; give less")
        return self

    @property
    def total_steps(self) -> int:
        """Length of the run in steps."""
        if self.time_ps is not None:
            return round(1e3 * self.time_ps / self.timestep_fs)
        return DEFAULT_STEPS if self.steps is None else self.steps


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


class BenchConfig(Configuration):
    """Speed or errors of a potential on a structure."""

    arguments = ("potential", "structure")

    potential: str
    """File, folder or shipped name of the potential."""
    structure: str | None = None
    """Structure file; without it, the start that comes with the potential."""
    timestep_fs: Positive = 0.5
    """Time step of the steps that are timed, at 300 K."""
    seconds: Positive = 2.0
    """Time to spend on each number."""
