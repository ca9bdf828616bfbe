"""From a configuration to its integrator."""

from mdgraph.engine import (
    FIRE,
    Integrator,
    LangevinMiddle,
    MartynaTobiasKlein,
    NoseHooverChains,
    Ramp,
    StochasticCellRescaling,
    StochasticVelocityRescaling,
    VelocityVerlet,
)
from mdgraph.runs.configuration import Descent, MDConfig, MinimizeConfig, RunConfig
from mdgraph.runs.ensembles import ends, ways_and_axes
from mdgraph.runs.replicas import temperatures
from mdgraph.units import BAR


def integrator_of(configuration: RunConfig) -> Integrator:
    """The integrator that a configuration names; raises InputError for numbers it refuses."""
    if isinstance(configuration, MDConfig):
        return _dynamics(configuration)
    assert isinstance(configuration, MinimizeConfig)
    return descent(configuration)


def descent(configuration: Descent) -> FIRE:
    """The minimiser that a configuration describes."""
    couple = configuration.couple
    ways, axes = (None, None) if couple is None else ways_and_axes(couple)
    return FIRE(
        configuration.force_tolerance_eV_per_A,
        largest_step=configuration.largest_step_A,
        ways=ways,
        axes=axes,
        pressure=(configuration.pressure_bar or 0.0) * BAR,
        stress_tolerance=configuration.stress_tolerance_bar * BAR,
    )


def _dynamics(configuration: MDConfig) -> Integrator:
    timestep, word = configuration.timestep_fs, configuration.ensemble
    temperature = temperatures(configuration) or _value(configuration, configuration.temperature_K)
    if word == "nve":
        return VelocityVerlet(timestep)
    if word == "nvt-langevin":
        return LangevinMiddle(timestep, temperature, _number(configuration.friction_per_ps))
    relaxation = _number(configuration.relaxation_fs)
    if word == "nvt-bussi":
        return StochasticVelocityRescaling(timestep, temperature, relaxation)
    if word == "nvt-nose-hoover":
        return NoseHooverChains(timestep, temperature, relaxation)
    assert configuration.pressure_bar is not None
    pressure = _value(configuration, configuration.pressure_bar, BAR)
    times: dict[str, float] = {
        "relaxation": relaxation,
        "cell_relaxation": _number(configuration.cell_relaxation_fs),
    }
    if word == "npt-mtk":
        return MartynaTobiasKlein(timestep, temperature, pressure, **times)
    ways, axes = ways_and_axes(str(configuration.couple))
    compressibility = _number(configuration.compressibility_per_bar) / BAR
    return StochasticCellRescaling(
        timestep,
        temperature,
        pressure,
        compressibility=compressibility,
        ways=ways,
        axes=axes,
        **times,
    )


def _number(value: float | None) -> float:
    """A parameter that the configuration has filled in."""
    assert value is not None
    return value


def _value(configuration: MDConfig, value: float | str, unit: float = 1.0) -> float | Ramp:
    start, end = ends(value)
    if start == end:
        return start * unit
    steps = configuration.ramp_steps or max(configuration.total_steps, 1)
    return Ramp(start * unit, end * unit, steps)
