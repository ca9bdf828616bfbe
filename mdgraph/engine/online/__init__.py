"""Observables that are recorded within the step, on the device."""

from mdgraph.engine.online.averages import Averages, AveragesResult
from mdgraph.engine.online.correlations import MeanSquaredDisplacement, VelocityAutocorrelation
from mdgraph.engine.online.diffusion import (
    AutocorrelationResult,
    CorrelationResult,
    DisplacementResult,
)
from mdgraph.engine.online.distributions import DistributionResult, RadialDistributions
from mdgraph.engine.online.observable import OnlineObservable, OnlineObservables
from mdgraph.engine.online.results import Result

__all__ = [
    "AutocorrelationResult",
    "Averages",
    "AveragesResult",
    "CorrelationResult",
    "DisplacementResult",
    "DistributionResult",
    "MeanSquaredDisplacement",
    "OnlineObservable",
    "OnlineObservables",
    "RadialDistributions",
    "Result",
    "VelocityAutocorrelation",
]
