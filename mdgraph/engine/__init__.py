"""Dynamics: integrators, calculations and simulations."""

from mdgraph.engine.calculation import Calculation
from mdgraph.engine.integrators import Integrator, LangevinMiddle, VelocityVerlet
from mdgraph.engine.simulation import Observables, Reporter, Simulation

__all__ = [
    "Calculation",
    "Integrator",
    "LangevinMiddle",
    "Observables",
    "Reporter",
    "Simulation",
    "VelocityVerlet",
]
