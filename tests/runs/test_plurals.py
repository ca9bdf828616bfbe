"""One of something is said in the singular."""

import logging
from types import SimpleNamespace

import pytest

from mdgraph.engine.batches import Batches
from mdgraph.engine.replicas import ExchangeRecord
from mdgraph.runs.observe import DomainReporter


@pytest.mark.parametrize(("count", "words"), [(0, "0 looks"), (1, "1 look"), (2, "2 looks")])
def test_looks(count: int, words: str, caplog: pytest.LogCaptureFixture) -> None:
    reporter = DomainReporter.__new__(DomainReporter)
    result = SimpleNamespace(samples=count, departures=[])
    reporter._monitors = [SimpleNamespace(result=lambda: result)]  # type: ignore[list-item]
    with caplog.at_level(logging.INFO, "mdgraph"):
        reporter.summarize()
    (said,) = caplog.messages
    # Of a run that is shorter than the interval, only the start was looked at.
    where = ", at the start" if count == 1 else ""
    assert said == f"{words} at what the potential was trained on{where}: nothing outside."


@pytest.mark.parametrize(
    ("structures", "batches", "words"),
    [(1, 1, "1 structure in 1 batch of 1 kind"), (4, 2, "4 structures in 2 batches of 1 kind")],
)
def test_batches(structures: int, batches: int, words: str) -> None:
    some = Batches.__new__(Batches)
    some.batches, some.graphs, some._keys = batches, None, {object()}  # type: ignore[arg-type]
    assert some.summary(structures) == words


@pytest.mark.parametrize(
    ("trips", "words"),
    [([0, 0], "0 round trips."), ([1, 0], "1 round trip."), ([1, 2], "3 round trips.")],
)
def test_round_trips(trips: list[int], words: str) -> None:
    record = ExchangeRecord(2, 10)
    record.attempted, record.accepted, record.round_trips = [2], [1], trips
    assert record.text().endswith(f"; {words}")
