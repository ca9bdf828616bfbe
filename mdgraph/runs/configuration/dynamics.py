"""Molecular dynamics."""

from typing import Any, ClassVar, Literal, Self

from pydantic import model_validator

from mdgraph.runs.configuration.base import RunConfig
from mdgraph.runs.configuration.committee import CommitteeConfig
from mdgraph.runs.ensembles import completed
from mdgraph.runs.fields import (
    MOST_STEPS,
    Compressibility,
    Count,
    Couple,
    Ensemble,
    Friction,
    HydrogenMass,
    Length,
    Limit,
    NumberOfSteps,
    Observed,
    RampedPressure,
    RampedTemperature,
    RelaxationTime,
    Seed,
    Temperatures,
    Timestep,
)


class MDConfig(CommitteeConfig, RunConfig):
    """Molecular dynamics of one system, or of replicas side by side."""

    alternatives: ClassVar = {"steps": ("time_ps",), "time_ps": ("steps",)}

    ensemble: Ensemble = "nvt-langevin"
    """nve, nvt-langevin, nvt-bussi, nvt-nose-hoover, npt or npt-mtk."""
    temperature_K: RampedTemperature = 300.0
    """Of the bath, a number or start:end, and of initial velocities where they are drawn."""
    friction_per_ps: Friction | None = None
    """Of nvt-langevin (default 1)."""
    relaxation_fs: RelaxationTime | None = None
    """Of the thermostat (default 100 in nvt-bussi and npt, 50 in nvt-nose-hoover and npt-mtk)."""
    pressure_bar: RampedPressure | None = None
    """Of npt and npt-mtk, a number or start:end (default 1)."""
    cell_relaxation_fs: RelaxationTime | None = None
    """Of the barostat (default 1000 in npt, 500 in npt-mtk)."""
    compressibility_per_bar: Compressibility | None = None
    """Of npt, a guess that scales cell_relaxation_fs (default 4.5e-5, of water)."""
    couple: Couple | None = None
    """How the cell of npt varies: isotropic (the default), axes, full, or some of x,y,z."""
    ramp_steps: Count | None = None
    """Steps that ramps take; without it, the whole run."""
    timestep_fs: Timestep = 0.5
    """Time step."""
    time_ps: Length | None = None
    """Length of the run, instead of steps."""
    remove_momentum: NumberOfSteps = 0
    """Steps from one removal of the total momentum to the next; 0 never removes it."""
    hydrogen_mass_amu: HydrogenMass | None = None
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
    """Systems that run side by side; they begin from the structures in turn, or from copies."""
    every_frame: bool = False
    """Begin a replica from every frame of the structure files, not from the last of each."""
    temperatures_K: Temperatures | None = None
    """Of the baths of the replicas: first:last in even ratios, or a list, one for each."""
    exchange: Count | None = None
    """Steps from one exchange of temperatures between neighboring replicas to the next."""
    watch: bool = True
    """Look, now and then, whether the run leaves what its potential was trained on."""
    on_leaving: Literal["warn", "stop"] = "warn"
    """What to do where it does."""
    uncertainty_interval: Count | None = None
    """Steps between looks at the spread of the committee (default 100) and at the sigma of the
    last layer, which go to uncertainty.csv."""
    force_spread_limit_eV_per_A: Limit | None = None
    """Of the committee about the force on an atom; what lies beyond it counts as leaving."""
    observe: Observed | None = None
    """Record within the step, into files of these names: averages, rdf, msd, vacf; msd:100 takes
    a sample every 100 steps."""
    maximum_temperature_K: Limit | None = None
    """The run stops beyond it; without it, 10,000 K or twenty times temperature_K."""

    @model_validator(mode="before")
    @classmethod
    def _of_the_ensemble(cls, values: Any) -> Any:
        return completed(values)

    @model_validator(mode="before")
    @classmethod
    def _a_replica_for_each_file(cls, values: Any) -> Any:
        files, said = values.get("structure"), values.get("replicas") or values.get("every_frame")
        if isinstance(files, list | tuple) and len(files) > 1 and not said:
            return {**values, "replicas": len(files)}
        return values

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
            raise ValueError(
                f"time_ps is {self.time_ps:g}, less than half a time step of {self.timestep_fs:g} "
                "fs, so nothing would run; give more, or 0 for the start alone"
            )
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
        if self.every_frame and self.structure is None:
            raise ValueError("every_frame needs structure files; give one")
        if self.replicas is None and (given or self.exchange):
            word = "exchange" if given is None else "temperatures_K"
            raise ValueError(f"{word} belongs to replicas; say how many with replicas")
        count = 0 if given is None else given.count(",") + 1
        if given is not None and ":" not in given and count != self.replicas:
            raise ValueError(
                f"temperatures_K has {count} for {self.replicas} replicas; "
                "give one for each, or a ladder such as 300:450"
            )
        if given is not None and isinstance(self.temperature_K, str):
            raise ValueError("temperatures_K stands instead of a ramp of temperature_K; give one")
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
