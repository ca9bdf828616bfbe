"""Integrators: one module for each ensemble, on one base."""

from mdgraph.engine.integrators.base import BLOCK, Evaluate, Integrator
from mdgraph.engine.integrators.bussi import StochasticVelocityRescaling
from mdgraph.engine.integrators.crescale import StochasticCellRescaling
from mdgraph.engine.integrators.fire import FIRE
from mdgraph.engine.integrators.langevin import LangevinMiddle
from mdgraph.engine.integrators.mtk import MartynaTobiasKlein
from mdgraph.engine.integrators.nose_hoover import NoseHooverChains
from mdgraph.engine.integrators.verlet import VelocityVerlet

__all__ = [
    "BLOCK",
    "FIRE",
    "Evaluate",
    "Integrator",
    "LangevinMiddle",
    "MartynaTobiasKlein",
    "NoseHooverChains",
    "StochasticCellRescaling",
    "StochasticVelocityRescaling",
    "VelocityVerlet",
]
