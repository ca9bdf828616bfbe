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
from mdgraph.engine.minimization import Minimum, minimize
from mdgraph.engine.observables import Observables
from mdgraph.engine.online import (
    Averages,
    DomainWatch,
    MeanSquaredDisplacement,
    RadialDistributions,
    VelocityAutocorrelation,
)
from mdgraph.engine.parameters import Ramp
from mdgraph.engine.repartitioning import repartitioned
from mdgraph.engine.restraints import PositionRestraints
from mdgraph.engine.simulation import Reporter, Simulation
from mdgraph.engine.views import Recorder, View

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
