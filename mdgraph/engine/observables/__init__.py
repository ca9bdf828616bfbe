"""Observables that are recorded on the device, within the step or after a chunk of steps."""

from mdgraph.engine.observables.averages import Averages, AveragesResult
from mdgraph.engine.observables.base import ObservableResult, OnlineObservable, OnlineObservables
from mdgraph.engine.observables.correlations import (
    AutocorrelationResult,
    CorrelationResult,
    DisplacementResult,
    MeanSquaredDisplacement,
    VelocityAutocorrelation,
)
from mdgraph.engine.observables.domain import DeparturesResult, DomainMonitor
from mdgraph.engine.observables.rdf import DistributionResult, RadialDistributions
from mdgraph.engine.observables.temperatures import ElementTemperatures, TemperaturesResult

__all__ = [
    "AutocorrelationResult",
    "Averages",
    "AveragesResult",
    "CorrelationResult",
    "DeparturesResult",
    "DisplacementResult",
    "DistributionResult",
    "DomainMonitor",
    "ElementTemperatures",
    "MeanSquaredDisplacement",
    "ObservableResult",
    "OnlineObservable",
    "OnlineObservables",
    "RadialDistributions",
    "TemperaturesResult",
    "VelocityAutocorrelation",
]
