"""Replicas: their simulation, exchanges between them, and ranks that share them."""

from mdgraph.engine.replicas.exchange import (
    ExchangeRecord,
    ReplicaExchange,
    StateExchange,
    UmbrellaExchange,
    attempted_pairs,
    exchange_states,
    swapped,
    temperature_gains,
    umbrella_gains,
)
from mdgraph.engine.replicas.ranks import (
    ALONE,
    Ranks,
    RanksReporter,
    SharedHills,
    replica_simulation,
)

__all__ = [
    "ALONE",
    "ExchangeRecord",
    "Ranks",
    "RanksReporter",
    "ReplicaExchange",
    "SharedHills",
    "StateExchange",
    "UmbrellaExchange",
    "attempted_pairs",
    "exchange_states",
    "replica_simulation",
    "swapped",
    "temperature_gains",
    "umbrella_gains",
]
