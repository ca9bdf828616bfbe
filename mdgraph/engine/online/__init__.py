"""Observables that are recorded on the device, within the step or after a chunk of steps."""

from mdgraph.engine.online.averages import Averages, AveragesResult
from mdgraph.engine.online.correlations import MeanSquaredDisplacement, VelocityAutocorrelation
from mdgraph.engine.online.departures import DeparturesResult, DomainWatch
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
    "DeparturesResult",
    "DisplacementResult",
    "DistributionResult",
    "DomainWatch",
    "MeanSquaredDisplacement",
    "OnlineObservable",
    "OnlineObservables",
    "RadialDistributions",
    "Result",
    "VelocityAutocorrelation",
]
