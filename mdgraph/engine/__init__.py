"""Dynamics: integrators, calculations and simulations."""

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
    DomainWatch,
    MeanSquaredDisplacement,
    RadialDistributions,
    VelocityAutocorrelation,
)
from mdgraph.engine.relaxation import Minimum, minimize
from mdgraph.engine.reporting import Observables, Recorder, View
from mdgraph.engine.restraints import PositionRestraints
from mdgraph.engine.schedules import Ramp
from mdgraph.engine.simulation import Reporter, Simulation
from mdgraph.engine.velocities import repartitioned

__all__ = [
    "FIRE",
    "Averages",
    "Calculation",
    "DomainWatch",
    "Integrator",
    "LangevinMiddle",
    "MartynaTobiasKlein",
    "MeanSquaredDisplacement",
    "Minimum",
    "NoseHooverChains",
    "Observables",
    "PositionRestraints",
    "RadialDistributions",
    "Ramp",
    "Recorder",
    "Reporter",
    "Simulation",
    "StochasticCellRescaling",
    "StochasticVelocityRescaling",
    "VelocityAutocorrelation",
    "VelocityVerlet",
    "View",
    "minimize",
    "repartitioned",
]
