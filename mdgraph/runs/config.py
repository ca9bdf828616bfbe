"""Configurations of runs: dynamics, minimisation, evaluation, benchmarks, committees."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator
from pydantic.fields import FieldInfo

from mdgraph.arguments import FrozenConfig
from mdgraph.ensembles import ENSEMBLES, on_registration
from mdgraph.runs.biased.config import (
    Biases,
    MetadynamicsConfig,
    Variables,
    are_windows,
    check_definitions,
)
from mdgraph.runs.config_fields import (
    DEFAULT_ENSEMBLE,
    MOST_STEPS,
    WEIGHT_RAMP,
    AtomicStep,
    Atoms,
    Charge,
    Committee,
    Count,
    Coupling,
    Cutoff,
    Devices,
    Domains,
    Ensemble,
    Files,
    Graph,
    Group,
    Hours,
    HydrogenMass,
    InnerSteps,
    Interval,
    Length,
    Limit,
    NumberOfSteps,
    Observed,
    Pressure,
    RampedTemperature,
    Saved,
    Seconds,
    Seed,
    Skin,
    StepsPerReplay,
    Stiffness,
    Temperatures,
    Terms,
    Timestep,
    Trajectory,
    Wait,
    Workers,
    check_multiple,
    join_words,
    ladder_temperatures,
    multiple_steps,
    observed_intervals,
    option_help,
    option_type,
    replicas_text,
    with_ensemble_defaults,
)

_FRAMES: Final = 200
"""Approximate number of frames of a trajectory: enough for a picture, and few GPU waits."""

_ROUND: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
"""Possible steps between frames."""

_FRAMES_PER_CHECKPOINT: Final = 10
_LEAST_CHECKPOINT: Final = 1000
"""Fewest steps between checkpoints."""


class Intervals(NamedTuple):
    """Steps between frames, between rows of the log and between checkpoints."""

    trajectory: int
    log: int
    checkpoint: int


def default_intervals(steps: int) -> Intervals:
    """The default intervals of a run of this many steps.

    A run has about 200 frames and rows of the log, every 10 to 1,000 steps (1, 2 or 5 times a
    power of ten); one of fewer than 100 steps has about 10. Checkpoints are ten times as far apart,
    and at least 1,000 steps.
    """
    target = max(steps / _FRAMES, min(steps, 100) / 10, 1)
    interval = min(_ROUND, key=lambda choice: max(choice / target, target / choice))
    return Intervals(interval, interval, max(_FRAMES_PER_CHECKPOINT * interval, _LEAST_CHECKPOINT))


class CommitteeConfig(BaseModel):
    """Several potentials instead of one."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    committee: Annotated[Committee | None, Group.POTENTIAL] = None
    """Two or more potentials, or a folder of them; mdgraph reports how far they differ."""

    @model_validator(mode="before")
    @classmethod
    def _the_first_leads(cls, values: Any) -> Any:
        committee = values.get("committee")
        if committee is None or "potential" in values:
            return values
        members = TypeAdapter(Committee).validate_python(committee)
        return {**values, "committee": members, "potential": members[0]}


DEFAULT_STEPS = 500
"""About a minute of the shipped water on two CPU cores."""


class Configuration(FrozenConfig):
    """Fields of all runs.

    The type of a field names its `Group`; a field without one is among the common options, which
    the help of a command shows first.
    """

    alternatives: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """Other fields that an option of the command line overrides, by the name of the option."""
    arguments: ClassVar[tuple[str, ...]] = ()
    """Fields that are positional arguments of the command."""
    flags: ClassVar[Mapping[str, str]] = {"terms": "add"}
    """Options whose names differ from those of their fields."""

    potential: str = "water-pbe0"
    """File, folder, shipped name or hf:// address of the potential."""
    layout: Annotated[Literal["auto", "before-3.0", "3.0"], Group.POTENTIAL] = "auto"
    """Release of TorchMD-Net or MatGL that wrote the potential: before 3.0, or 3.0 and later."""
    coulomb_cutoff_A: Annotated[Cutoff | Literal["all-pairs"] | None, Group.POTENTIAL] = None
    """Range of the potential's Coulomb energy, or all-pairs; by default that of the potential."""
    terms: Annotated[Terms | None, Group.POTENTIAL] = None
    """Terms to add to the potential, such as d3bj:pbe, lj:Ar=0.0104/3.4@10, morse, zbl@3, bonds,
    field or walls. 0.5*TERM sets a weight; 0:1*TERM switches the term on during a run of md.
    docs/terms.md lists all terms."""
    force: Annotated[bool, Group.POTENTIAL] = False
    """Add dispersion even if the potential has it already, or is of another functional."""
    charge: Annotated[Charge | None, Group.STRUCTURE] = None
    """Total charge in e; by default that of the structure, or else 0."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    precision: Annotated[Literal["mixed", "single", "double", "fast"], Group.SPEED] = "mixed"
    """mixed keeps positions and sums in float64; fast also rounds the network on CUDA."""
    evaluator: Annotated[Literal["auto", "fused", "reference"], Group.SPEED] = "auto"
    """fused: the fast kernels; reference: automatic differentiation; auto: fused if possible."""


class RunConfig(Configuration):
    """A run with a folder of its own: dynamics or a minimisation."""

    arguments = ("structure",)

    structure: Files | None = None
    """Structure file; md begins one replica from each of several. By default the structure that
    comes with the potential. The last frame of a file is used; FILE@3 takes frame 3, counted
    from 0, and FILE@-2 the second from the end."""
    steps: Annotated[NumberOfSteps | None, Group.ENSEMBLE] = None
    """Length of the run, 500 unless time_ps is given."""
    max_hours: Annotated[Hours | None, Group.ENSEMBLE] = None
    """Stop an unfinished run before so many hours have passed since the command started, with a
    checkpoint and exit status 75."""
    fix: Annotated[Atoms | None, Group.STRUCTURE] = None
    """Atoms that do not move: a selection such as 'index 0:9', 'element O and prop z < 5' or
    'around 3 (index 0)'; or indices from 0, ranges and elements, such as 0,3-8,O."""
    restrain: Annotated[Atoms | None, Group.STRUCTURE] = None
    """Atoms that springs hold near their initial positions, selected as for fix."""
    stiffness_eV_per_A2: Annotated[Stiffness | None, Group.STRUCTURE] = None
    """Force constant of the springs of restrain (default 1)."""
    out: str = "mdgraph-run"
    """Folder of the run, which must be new or empty."""
    trajectory: Annotated[Trajectory, Group.OUTPUT] = "h5md"
    """Format of the trajectory, h5md or extxyz."""
    save: Annotated[Saved | None, Group.OUTPUT] = None
    """Vectors in the frames of the trajectory: any of positions, velocities and forces; by default
    all. Positions are always included."""
    save_select: Annotated[Atoms | None, Group.OUTPUT] = None
    """Atoms in the frames of the trajectory, selected as for fix; by default all."""
    save_precision: Annotated[Literal["double", "single"], Group.OUTPUT] = "double"
    """Precision of the vectors in frames: double is float64, single float32."""
    trajectory_interval: Annotated[Count | None, Group.OUTPUT] = None
    """Steps between frames of the trajectory; by default 10 to 1000, for about 200 frames."""
    log_interval: Annotated[Count | None, Group.OUTPUT] = None
    """Steps between rows of the log; by default 10 to 1000, for about 200 rows."""
    log_units: Annotated[bool, Group.OUTPUT] = False
    """Write a second row with the unit of each column into log.csv."""
    checkpoint_interval: Annotated[Count | None, Group.OUTPUT] = None
    """Steps between checkpoints; by default 1000 to 10000, ten times the default between frames."""
    skin_A: Annotated[Skin | None, Group.SPEED] = None
    """How far beyond the cutoff neighbors are listed; by default chosen for the device."""
    domains: Annotated[Domains | None, Group.SPEED] = None
    """Divide one system: a number of domains, or a grid along the cell vectors such as
    2x1x1. Under torchrun each rank has one domain, otherwise this process has all."""
    chunk: Annotated[Count | None, Group.SPEED] = None
    """Steps between two checks of the run; by default chosen for the device."""
    graph: Annotated[Graph, Group.SPEED] = "auto"
    """Run steps as CUDA graphs: on, off, or auto (on a GPU, if they are faster)."""
    steps_per_replay: Annotated[StepsPerReplay | None, Group.SPEED] = None
    """Most steps in a CUDA graph, a power of two up to 32; by default measured."""
    check: Annotated[bool, Group.SAFETY] = True
    """Compare a fast evaluator with the reference before the first step."""

    @model_validator(mode="after")
    def _springs_have_atoms(self) -> Self:
        if self.stiffness_eV_per_A2 is not None and self.restrain is None:
            raise ValueError("stiffness_eV_per_A2 belongs to atoms; name them with restrain")
        return self

    @model_validator(mode="after")
    def _the_format_takes_parts(self) -> Self:
        if self.save is None and self.save_precision == "double":
            return self
        from mdgraph.io.formats import FORMATS  # which imports torch

        if not FORMATS[self.trajectory].takes_contents:
            option = "save_precision" if self.save is None else "save"
            raise ValueError(
                f"{option} needs a trajectory of the format h5md or extxyz; choose one"
            )
        return self

    @model_validator(mode="after")
    def _replays_are_of_graphs(self) -> Self:
        if self.graph == "off" and self.steps_per_replay is not None:
            raise ValueError("steps_per_replay belongs to graphs, and graph is off; give one")
        return self

    @property
    def has_replicas(self) -> bool:
        """Whether each system has its own folder, within that of the run."""
        return False

    @property
    def system_count(self) -> int:
        """Number of systems in the run, over all ranks."""
        return 1

    @property
    def total_steps(self) -> int:
        """Length of the run in steps."""
        return DEFAULT_STEPS if self.steps is None else self.steps

    @property
    def intervals(self) -> Intervals:
        """Steps between reports; by default from the length of the run."""
        defaults = default_intervals(self._reported_steps)
        return Intervals(
            self.trajectory_interval or defaults.trajectory,
            self.log_interval or defaults.log,
            self.checkpoint_interval or defaults.checkpoint,
        )

    @property
    def _reported_steps(self) -> int:
        return self.total_steps


class MDConfig(CommitteeConfig, RunConfig):
    """Molecular dynamics of one system or of several replicas.

    `_add_ensembles` adds a field for each option of an ensemble in the registry.
    """

    alternatives: ClassVar = {
        "steps": ("time_ps",),
        "time_ps": ("steps",),
        "temperature_K": ("temperatures_K", "exchange"),
        "temperatures_K": ("temperature_K",),
        **{f"{name}_interval": (f"{name}_interval_ps",) for name in Intervals._fields},
        **{f"{name}_interval_ps": (f"{name}_interval",) for name in Intervals._fields},
    }
    renamed: ClassVar = {
        "relaxation_fs": "tau_fs",
        "cell_relaxation_fs": "tau_p_fs",
        "couple": "coupling",
        "watch": "monitor_domain",
        "on_leaving": "on_extrapolation",
    }

    ensemble: Ensemble = DEFAULT_ENSEMBLE
    temperature_K: RampedTemperature = 300.0
    """Temperature of the bath, a number or start:end, and of initial velocities if drawn."""
    ramp_steps: Annotated[Count | None, Group.ENSEMBLE] = None
    """Length of ramps in steps; by default the whole run."""
    timestep_fs: Timestep = 0.5
    """Time step."""
    time_ps: Length | None = None
    """Length of the run, instead of steps."""
    inner_potential: Annotated[str | None, Group.ENSEMBLE] = None
    """A small potential, close to --potential, that acts at every step; --potential then acts
    every inner_steps steps (reversible RESPA). All numbers of steps must be multiples of these."""
    inner_steps: Annotated[InnerSteps | None, Group.ENSEMBLE] = None
    """Steps of the inner potential for each step of the potential: 2, 3, 4, 6, 8, 12, 16, 24 or 32;
    by default as many as make 2 fs, or 3 fs with hydrogens of 3 amu, and at least two."""
    trajectory_interval_ps: Annotated[Interval | None, Group.OUTPUT] = None
    """Time between frames of the trajectory, instead of steps."""
    log_interval_ps: Annotated[Interval | None, Group.OUTPUT] = None
    """Time between rows of the log, instead of steps."""
    checkpoint_interval_ps: Annotated[Interval | None, Group.OUTPUT] = None
    """Time between checkpoints, instead of steps."""
    remove_momentum: Annotated[NumberOfSteps, Group.ENSEMBLE] = 0
    """Steps from one removal of the total momentum to the next; 0 never removes it."""
    hydrogen_mass_amu: Annotated[HydrogenMass | None, Group.STRUCTURE] = None
    """Mass of hydrogens; the added mass is taken from the atom they are bonded to."""
    minimize: Annotated[bool, Group.STRUCTURE] = False
    """Minimise the energy before the run."""
    new_velocities: Annotated[bool, Group.STRUCTURE] = False
    """Draw velocities even if the structure has some."""
    exact_temperature: Annotated[bool, Group.STRUCTURE] = False
    """Scale drawn velocities to exactly temperature_K."""
    seed: Annotated[Seed, Group.ENSEMBLE] = 0
    """Seed of all random numbers."""
    replicas: Annotated[Count | None, Group.STRUCTURE] = None
    """Number of systems in the run; they begin from the structures in turn."""
    every_frame: Annotated[bool, Group.STRUCTURE] = False
    """Begin a replica from every frame of the structure files, not only from the last of each."""
    temperatures_K: Annotated[Temperatures | None, Group.ENSEMBLE] = None
    """Temperatures of the replicas: first:last as a geometric series, or one for each."""
    exchange: Annotated[Count | None, Group.ENSEMBLE] = None
    """Steps between exchanges of neighboring replicas. They exchange temperatures (temperatures_K)
    or, at one temperature, umbrellas: harmonic biases with a centre for each replica."""
    monitor_domain: Annotated[bool, Group.SAFETY] = True
    """Check regularly whether the run leaves the training domain of its potential."""
    on_extrapolation: Annotated[Literal["warn", "stop"], Group.SAFETY] = "warn"
    """What to do when the run leaves the training domain."""
    uncertainty_interval: Annotated[Count | None, Group.SAFETY] = None
    """Steps between rows of uncertainty.csv: the spread of a committee (default every 100 steps)
    and the sigma of the last layer."""
    force_spread_limit_eV_per_A: Annotated[Limit | None, Group.SAFETY] = None
    """Spread of the committee's forces on an atom that counts as extrapolation."""
    observe: Annotated[Observed | None, Group.OUTPUT] = None
    """Quantities to record during the run, each into a file of its name: averages, rdf, msd, vacf,
    temperatures; msd:100 takes a sample every 100 steps."""
    maximum_temperature_K: Annotated[Limit | None, Group.SAFETY] = None
    """Stop the run above this temperature; by default 10,000 K or twenty times temperature_K."""
    variables: Annotated[Variables | None, Group.BIASES] = None
    """Collective variables by name, each with its kind and atoms; see docs/biases.md. Their values
    go to COLVAR, in PLUMED's layout and units."""
    biases: Annotated[Biases | None, Group.BIASES] = None
    """A list of biases on the variables: harmonic, moving, walls, linear or metadynamics."""
    colvar_interval: Annotated[Count | None, Group.BIASES] = None
    """Steps between rows of COLVAR; by default those between rows of the log."""

    @model_validator(mode="before")
    @classmethod
    def _of_the_ensemble(cls, values: Any) -> Any:
        return with_ensemble_defaults(values)

    @model_validator(mode="before")
    @classmethod
    def _a_replica_for_each_file(cls, values: Any) -> Any:
        files = values.get("structure")
        replicas = values.get("replicas") or values.get("every_frame")
        if isinstance(files, list | tuple) and len(files) > 1 and not replicas:
            return {**values, "replicas": len(files)}
        return values

    @model_validator(mode="after")
    def _steps_are_whole_outer_steps(self) -> Self:
        """Fills in inner_steps, and the intervals of observe."""
        if self.inner_potential is None and self.inner_steps is not None:
            raise ValueError("inner_steps belongs to a small potential; name it by inner_potential")
        if self.inner_potential is not None and self.inner_steps is None:
            from mdgraph.engine.multiple_time_steps import default_steps  # which imports torch

            steps = default_steps(self.timestep_fs, self.hydrogen_mass_amu or 1.008)
            object.__setattr__(self, "inner_steps", steps)
        for name in _NUMBERS_OF_STEPS:
            check_multiple(name, getattr(self, name) or 0, self.steps_together)
        if self.observe is not None:
            intervals = observed_intervals(self.observe, self.steps_together)
            text = ",".join(f"{word}:{every}" for word, every in intervals.items())
            object.__setattr__(self, "observe", text)
        return self

    @model_validator(mode="after")
    def _biases_have_variables(self) -> Self:
        if self.variables is not None or self.biases is not None:
            check_definitions(self.variables, self.biases)
        if self.colvar_interval is not None and self.variables is None:
            raise ValueError("colvar_interval needs variables; define some, or leave it out")
        changing = [bias.kind for bias in self.biases or () if bias.kind in _CHANGING]
        if changing and self.exchange is not None:
            raise ValueError(
                f"exchange needs replicas with the same energy function, and {changing[0]} "
                "changes it; leave one of them out"
            )
        return self

    @model_validator(mode="after")
    def _the_limit_has_a_committee(self) -> Self:
        if self.force_spread_limit_eV_per_A is not None and self.committee is None:
            raise ValueError("force_spread_limit_eV_per_A needs a committee; name its members")
        return self

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        if self.steps is not None and self.time_ps is not None:
            raise ValueError("steps and time_ps both give the length of the run; give one")
        if self.time_ps is not None and 1e3 * self.time_ps > MOST_STEPS * self.timestep_fs:
            raise ValueError(f"time_ps is more than {MOST_STEPS:.0e} steps; give less")
        if self.time_ps and not self.total_steps:
            step = "a time step" if self.inner_potential is None else "an outer step"
            raise ValueError(
                f"time_ps is {self.time_ps:g}, less than half {step} of {self.outer_step_fs:g} "
                "fs, so nothing would run; give more, or 0 for the start alone"
            )
        return self

    @model_validator(mode="after")
    def _one_interval(self) -> Self:
        for name, picoseconds in self._intervals_ps.items():
            if getattr(self, name) is not None:
                raise ValueError(f"{name} and {name}_ps both give the interval; give one")
            steps = 1e3 * picoseconds / self.outer_step_fs
            if round(steps) < 1 or steps > MOST_STEPS:
                which = "time" if self.inner_potential is None else "outer"
                raise ValueError(
                    f"{name}_ps is {picoseconds:g}, which is {steps:.3g} {which} steps of "
                    f"{self.outer_step_fs:g} fs; give from 1 to {MOST_STEPS:.0e} steps"
                )
        return self

    @model_validator(mode="after")
    def _ramps_have_a_bath(self) -> Self:
        if not ENSEMBLES[self.ensemble].bath and isinstance(self.temperature_K, str):
            raise ValueError(
                f"{self.ensemble} has no bath whose temperature could change; choose an nvt one"
            )
        if self.ramp_steps is not None and not self.ramped:
            raise ValueError(
                "ramp_steps needs a ramp; give temperature_K or pressure_bar as 1:2, or a term "
                "whose weight changes, as 0:1*TERM"
            )
        return self

    @model_validator(mode="after")
    def _weights_change_alone(self) -> Self:
        others = {
            "an inner potential": self.inner_potential,
            "domains": self.domains,
            "exchange": self.exchange,
        }
        wrong = next((name for name, value in others.items() if value is not None), None)
        if self.switches and wrong is not None:
            raise ValueError(
                f"the weight of a term changes along the run, which does not go with {wrong}; "
                "leave one of them out"
            )
        return self

    @property
    def switches(self) -> bool:
        """Whether weights of terms change along the run, which is not at equilibrium then."""
        return any(WEIGHT_RAMP.fullmatch(text) for text in self.terms or ())

    @model_validator(mode="after")
    def _domains_are_of_one_system(self) -> Self:
        if self.domains is not None and (self.replicas is not None or self.every_frame):
            raise ValueError("domains divide one system; leave them out, or the replicas")
        return self

    @model_validator(mode="after")
    def _replicas_have_temperatures(self) -> Self:
        ladder = self.temperatures_K
        if self.every_frame and self.structure is None:
            raise ValueError("every_frame needs structure files; give one")
        if ladder is not None and "temperature_K" in self.model_fields_set:
            raise ValueError(
                "temperatures_K and temperature_K both give temperatures; give the first for one "
                "of each replica, or the second for one of all"
            )
        count = 0 if ladder is None else ladder.count(",") + 1
        listed = ladder is not None and ":" not in ladder
        if self.replicas is None and (ladder or self.exchange):
            word = "exchange" if ladder is None else "temperatures_K"
            advice = f"give replicas {count} too" if listed else "say how many, such as replicas 8"
            if listed and count == 1:
                advice = f"for one system give temperature_K {ladder}"
            raise ValueError(f"{word} belongs to replicas; {advice}")
        if listed and count != self.replicas:
            other = f"temperature_K {ladder} for all" if count == 1 else "a ladder such as 300:450"
            raise ValueError(
                f"temperatures_K has {count} for {replicas_text(self.system_count)}; give one for "
                f"each, or {other}"
            )
        kelvins = [] if ladder is None else [*map(float, ladder.replace(":", ",").split(","))]
        if self.exchange is not None and ladder is None:
            self._check_umbrellas()
        elif self.exchange is not None and (self.replicas == 1 or len(set(kelvins)) < len(kelvins)):
            raise ValueError(
                "exchange needs replicas at different temperatures; give temperatures_K"
            )
        ensemble = ENSEMBLES[self.ensemble]
        if self.exchange is not None and (not ensemble.bath or ensemble.cell_varies):
            raise ValueError("exchange needs an nvt ensemble; choose one")
        return self

    def _check_umbrellas(self) -> None:
        """Raises ValueError unless every replica has an umbrella of its own."""
        if not are_windows(self.biases, self.system_count):
            raise ValueError(
                "exchange needs replicas at different temperatures, or in different umbrellas; "
                "give temperatures_K, or a harmonic bias with a centre for each replica"
            )
        if isinstance(self.temperature_K, str):
            raise ValueError(
                f"exchange of umbrellas is at one temperature, and temperature_K changes "
                f"({self.temperature_K}); give a number"
            )

    @property
    def shared_hills_interval(self) -> int | None:
        """Fewest steps from one hill to the next of walkers that share them; None without."""
        return min(
            (
                bias.every
                for bias in self.biases or ()
                if isinstance(bias, MetadynamicsConfig) and bias.shared
            ),
            default=None,
        )

    @property
    def exchanges_umbrellas(self) -> bool:
        """Whether replicas exchange umbrellas, and not temperatures."""
        return self.exchange is not None and self.temperatures_K is None

    @property
    def colvar_steps(self) -> int:
        """Steps between rows of COLVAR."""
        return self.colvar_interval or self.intervals.log

    @property
    def has_replicas(self) -> bool:
        """Whether each system has its own folder, within that of the run."""
        return self.replicas is not None

    @property
    def system_count(self) -> int:
        """Number of systems in the run, over all ranks."""
        return self.replicas or 1

    @property
    def replica_temperatures(self) -> list[float]:
        """Temperature of each replica, K; of temperatures_K alone."""
        return ladder_temperatures(self.temperatures_K or "", self.system_count)

    @property
    def steps_together(self) -> int:
        """Steps from one evaluation of the potential to the next; 1 without an inner potential."""
        return 1 if self.inner_potential is None else self.inner_steps or 1

    @property
    def outer_step_fs(self) -> float:
        """Time from one evaluation of the potential to the next, fs."""
        return self.steps_together * self.timestep_fs

    def steps_of_ps(self, picoseconds: float) -> int:
        """Steps that take a time, rounded to whole outer steps."""
        return round(1e3 * picoseconds / self.outer_step_fs) * self.steps_together

    @property
    def _intervals_ps(self) -> dict[str, float]:
        """Intervals that are given in ps, by their name in steps."""
        times = {
            f"{name}_interval": getattr(self, f"{name}_interval_ps") for name in Intervals._fields
        }
        return {name: value for name, value in times.items() if value is not None}

    @property
    def intervals(self) -> Intervals:
        """Steps between reports, rounded where they are given in ps or left out."""
        steps = {
            name.removesuffix("_interval"): self.steps_of_ps(value)
            for name, value in self._intervals_ps.items()
        }
        intervals = super().intervals._replace(**steps)
        return Intervals(*(multiple_steps(steps, self.steps_together) for steps in intervals))

    @property
    def ramped(self) -> bool:
        """Whether temperature, pressure or weights of terms change."""
        numbers = [
            self.ensemble_options[option.name]
            for option in ENSEMBLES[self.ensemble].options
            if option.ramps
        ]
        changing = any(isinstance(value, str) for value in [self.temperature_K, *numbers])
        return changing or self.switches

    @classmethod
    def current_names(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        """See FrozenConfig; without options of ensembles that are not registered now.

        Those options are None, as the run has another ensemble.
        """
        current = super().current_names(values)
        if current.get("temperatures_K") is not None:
            current.pop("temperature_K", None)  # which had no effect
        return {
            name: value
            for name, value in current.items()
            if value is not None or name in cls.model_fields
        }

    @property
    def ensemble_options(self) -> dict[str, Any]:
        """Options of the ensemble, by name."""
        return {name: getattr(self, name) for name in ENSEMBLES[self.ensemble].defaults}

    @property
    def total_steps(self) -> int:
        """Length of the run in steps."""
        if self.time_ps is not None:
            return self.steps_of_ps(self.time_ps)
        return multiple_steps(super().total_steps, self.steps_together)


_CHANGING: Final = ("moving", "metadynamics")
"""Kinds of biases that change along a run."""

_NUMBERS_OF_STEPS: Final = (
    *("steps", "trajectory_interval", "log_interval", "checkpoint_interval", "chunk"),
    *("remove_momentum", "exchange", "uncertainty_interval", "colvar_interval"),
)
"""Fields that are whole outer steps where two potentials share a run."""

_COMMON_OPTIONS: Final = ("pressure_bar",)
"""Options of ensembles that stand among the common ones in the help."""

_ENSEMBLE_FIELDS: Final[list[str]] = []
"""Fields of MDConfig that are options of ensembles."""


def _add_ensembles() -> None:
    """Adds a field to MDConfig for every option of an ensemble, after its temperature."""
    fields: dict[str, FieldInfo] = MDConfig.__pydantic_fields__
    for name in _ENSEMBLE_FIELDS:
        del fields[name]
    names = {option.name: option for ensemble in ENSEMBLES.values() for option in ensemble.options}
    for name, option in names.items():
        help_text = option_help(name)
        kind = option_type(option) | None
        if name not in _COMMON_OPTIONS:
            kind = Annotated[kind, Group.ENSEMBLE]
        fields[name] = FieldInfo.from_annotated_attribute(
            kind, Field(default=None, description=help_text)
        )
    fields["ensemble"].description = f"{join_words(list(ENSEMBLES), 'or')}."
    fields["ensemble"].json_schema_extra = {"enum": list(ENSEMBLES)}
    own = [name for name in fields if name not in names]
    place = own.index("temperature_K") + 1
    for name in [*own[:place], *names, *own[place:]]:
        fields[name] = fields.pop(name)
    _ENSEMBLE_FIELDS[:] = names
    MDConfig.model_rebuild(force=True)


_add_ensembles()
on_registration(_add_ensembles)


class Descent(BaseModel):
    """Criteria of a minimum, and steps of its search."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    coupling: Coupling | None = None
    """Vary the cell too: isotropic, semiisotropic, semiisotropic-fixed-z, axes, full, or x,y,z."""
    pressure_bar: Pressure | None = None
    """Pressure on a cell that varies (default 0)."""
    force_tolerance_eV_per_A: Limit = 0.05
    """Largest force on an atom at a minimum."""
    stress_tolerance_bar: Annotated[Limit, Group.MINIMUM] = 100.0
    """Largest difference between stress and pressure at a minimum of the cell."""
    largest_step_A: Annotated[AtomicStep, Group.MINIMUM] = 0.2
    """Largest displacement of an atom in one step."""

    @model_validator(mode="after")
    def _pressure_moves_a_cell(self) -> Self:
        if self.coupling is not None:
            return self
        for name in ("pressure_bar", "stress_tolerance_bar"):
            if getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{name} needs a cell that varies; say how with coupling")
        return self


class MinimizeConfig(RunConfig, Descent):
    """A minimum of the energy, or of the enthalpy with the cell, by FIRE."""

    renamed: ClassVar = {"couple": "coupling"}

    steps: NumberOfSteps | None = None
    """Maximum number of steps (default 500)."""

    @model_validator(mode="after")
    def _one_structure(self) -> Self:
        if self.structure is not None and len(self.structure) > 1:
            raise ValueError("minimise moves one structure; mdgraph relax moves many")
        return self

    @property
    def _reported_steps(self) -> int:
        # Most steps say little of how many there will be.
        return DEFAULT_STEPS


class BenchConfig(Configuration):
    """Speed or errors of a potential on a structure."""

    arguments = ("potential", "structure")

    structure: str | None = None
    """Structure file; by default the structure that comes with a shipped potential."""
    atoms: Annotated[Count | None, Group.STRUCTURE] = None
    """Atoms of a box of water to make and time (default 192 on a CPU, 648 on CUDA)."""
    timestep_fs: Annotated[Timestep, Group.SPEED] = 0.5
    """Time step of the timed steps, at 300 K."""
    seconds: Annotated[Seconds, Group.SPEED] = 20.0
    """Time for the timed steps; compilation takes additional time."""
    picture: Annotated[str | None, Group.OUTPUT] = None
    """Bar chart to draw, a .png, .svg or .pdf file."""
    overwrite: Annotated[bool, Group.OUTPUT] = False
    """Replace the picture if it exists."""

    @model_validator(mode="after")
    def _one_structure(self) -> Self:
        if self.structure is not None and self.atoms is not None:
            raise ValueError("structure and atoms both say what is timed; give one")
        return self


class FramesConfig(Configuration):
    """A calculation on every frame of some files."""

    arguments = ("structures",)

    structures: Files
    """Structure files."""
    out: str
    """Extended XYZ file to write."""
    devices: Devices | None = None
    """Devices that share the frames: all, or several such as cuda:0,cuda:1; by default that of
    --device. Ranks of torchrun share the frames too."""
    resume: Annotated[bool, Group.OUTPUT] = False
    """Continue after the last complete frame in --out, with the same input and options; start if
    there is no such file. The result is byte for byte that of an uninterrupted command."""
    overwrite: Annotated[bool, Group.OUTPUT] = False
    """Replace the file if it exists, once the first results are ready."""
    wait_s: Annotated[Wait, Group.STRUCTURE] = 0.0
    """Seconds to wait for more frames at the end of a file that is still being written."""
    workers: Annotated[Workers | None, Group.SPEED] = None
    """Extra processes that parse and format frames if there are many; by default up to six for
    each GPU, depending on the number of cores, and none for CPUs."""
    check: Annotated[bool, Group.SAFETY] = True
    """Compare a fast evaluator with the reference on the first frame."""

    @model_validator(mode="after")
    def _one_way_to_begin(self) -> Self:
        if self.resume and self.overwrite:
            raise ValueError("resume keeps the results and overwrite replaces them; give one")
        return self

    @model_validator(mode="after")
    def _standard_input_is_read_once(self) -> Self:
        if self.structures.count("-") > 1:
            raise ValueError("- is standard input, which can be read once; give it once")
        return self


class EvalConfig(CommitteeConfig, FramesConfig):
    """Energies, forces and stress of frames; for a committee, their means."""

    structures: Annotated[Files, Field(examples=["frames.extxyz"])]
    """Structure files, all frames of which are evaluated;
    - is extended XYZ from standard input."""
    out: str = "results.extxyz"
    """Extended XYZ file to write."""
    sigma: Annotated[bool, Group.OUTPUT] = False
    """Write the last-layer uncertainty of energies; the potential must have a measured domain."""


class RelaxConfig(FramesConfig, Descent):
    """Minima of many structures."""

    renamed: ClassVar = {"couple": "coupling"}

    structures: Annotated[Files, Field(examples=["frames.extxyz"])]
    """Structure files, all frames of which are relaxed;
    - is extended XYZ from standard input."""
    out: str = "relaxed.extxyz"
    """Extended XYZ file to write."""
    steps: NumberOfSteps = DEFAULT_STEPS
    """Maximum number of steps for each structure."""
