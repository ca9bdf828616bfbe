"""What all runs share."""

from collections.abc import Mapping
from typing import ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, model_validator

from mdgraph.runs.configuration.intervals import Intervals, default_intervals
from mdgraph.runs.fields import (
    Atoms,
    Charge,
    Count,
    Cutoff,
    Files,
    Graph,
    NumberOfSteps,
    Skin,
    StepsPerReplay,
    Stiffness,
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
    coulomb_cutoff_A: Cutoff | Literal["all-pairs"] | None = None
    """Range of a potential's Coulomb energy, or all-pairs; without it, the potential's own."""
    charge: Charge | None = None
    """Total charge in e; without it, what the structure says, else 0."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    precision: Literal["mixed", "single", "double", "fast"] = "mixed"
    """mixed keeps positions and sums in float64; fast also rounds the network on CUDA."""
    evaluator: Literal["auto", "fused", "reference"] = "auto"
    """fused is fast, reference automatic differentiation; auto takes fused where it can."""


class RunConfig(Configuration):
    """What has a folder of its own: dynamics or a minimisation."""

    arguments = ("structure",)

    structure: Files | None = None
    """Structure file, or several for md, which begins a replica from each; without it, the
    start that comes with the potential."""
    steps: NumberOfSteps | None = None
    """Length of the run, 500 unless time_ps is given."""
    fix: Atoms | None = None
    """Atoms that stay where they are: indices from 0, ranges such as 3-8, elements."""
    restrain: Atoms | None = None
    """Atoms that springs hold near where they start, named as for fix."""
    stiffness_eV_per_A2: Stiffness | None = None
    """Of those springs (default 1)."""
    out: str = "mdgraph-run"
    """Folder of the run, which must be new or empty."""
    trajectory: Literal["h5md", "extxyz"] = "h5md"
    """Format of the trajectory."""
    trajectory_interval: Count | None = None
    """Steps between frames of the trajectory; without it, 10 to 1000, for about 200 frames."""
    log_interval: Count | None = None
    """Steps between rows of the log; without it, chosen as those between frames."""
    checkpoint_interval: Count | None = None
    """Steps between checkpoints; without it, 1000 to 10000, ten times as chosen for frames."""
    skin_A: Skin | None = None
    """Neighbors are listed this far beyond the cutoff; without it, chosen by device."""
    chunk: Count | None = None
    """Steps between two checks of the run; without it, chosen by device."""
    graph: Graph = "auto"
    """Steps as CUDA graphs: on, off, or auto, which takes them on a GPU where they are faster."""
    steps_per_replay: StepsPerReplay | None = None
    """Most steps in a CUDA graph, a power of two up to 32; without it, chosen by measurement."""
    check: bool = True
    """Compare a fast evaluator with the reference before the first step."""

    @model_validator(mode="after")
    def _springs_have_atoms(self) -> Self:
        if self.stiffness_eV_per_A2 is not None and self.restrain is None:
            raise ValueError("stiffness_eV_per_A2 belongs to atoms; name them with restrain")
        return self

    @model_validator(mode="after")
    def _replays_are_of_graphs(self) -> Self:
        if self.graph == "off" and self.steps_per_replay is not None:
            raise ValueError("steps_per_replay belongs to graphs, and graph is off; give one")
        return self

    @property
    def total_steps(self) -> int:
        """Length of the run in steps."""
        return DEFAULT_STEPS if self.steps is None else self.steps

    @property
    def intervals(self) -> Intervals:
        """Steps between reports, chosen by the length of the run where they are not given."""
        chosen = default_intervals(self._reported_steps)
        return Intervals(
            self.trajectory_interval or chosen.trajectory,
            self.log_interval or chosen.log,
            self.checkpoint_interval or chosen.checkpoint,
        )

    @property
    def _reported_steps(self) -> int:
        return self.total_steps
