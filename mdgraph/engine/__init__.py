"""Dynamics: integrators, calculations and simulations."""

import warnings
from typing import Any, Final

from mdgraph.engine.calculation import Calculation
from mdgraph.engine.integrators import (
    FIRE,
    Integrator,
    LangevinMiddle,
    MartynaTobiasKlein,
    NoseHooverChains,
    StochasticCellRescaling,
    StochasticVelocityRescaling,
    VelocityVerlet,
)
from mdgraph.engine.observables import (
    Averages,
    DomainMonitor,
    ElementTemperatures,
    MeanSquaredDisplacement,
    RadialDistributions,
    VelocityAutocorrelation,
)
from mdgraph.engine.relaxation import Minimum, minimize
from mdgraph.engine.reporting import HostSnapshot, Recorder, Thermo
from mdgraph.engine.restraints import PositionRestraints
from mdgraph.engine.schedules import Ramp
from mdgraph.engine.simulation import Reporter, Simulation
from mdgraph.engine.velocities import repartitioned
from mdgraph.errors import MDGraphFutureWarning, old_name

__all__ = [
    "FIRE",
    "Averages",
    "Calculation",
    "DomainMonitor",
    "ElementTemperatures",
    "HostSnapshot",
    "Integrator",
    "LangevinMiddle",
    "MartynaTobiasKlein",
    "MeanSquaredDisplacement",
    "Minimum",
    "NoseHooverChains",
    "PositionRestraints",
    "RadialDistributions",
    "Ramp",
    "Recorder",
    "Reporter",
    "Simulation",
    "StochasticCellRescaling",
    "StochasticVelocityRescaling",
    "Thermo",
    "VelocityAutocorrelation",
    "VelocityVerlet",
    "minimize",
    "repartitioned",
]

RENAMED: Final = {"DomainWatch": "DomainMonitor", "Observables": "Thermo", "View": "HostSnapshot"}
"""Names of 0.1.0; they go with 0.3.0."""


def __getattr__(name: str) -> Any:
    if name not in RENAMED:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    new = RENAMED[name]
    warnings.warn(old_name(f"{__name__}.{name}", new), MDGraphFutureWarning, stacklevel=2)
    return globals()[new]
