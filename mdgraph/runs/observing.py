"""What a run records of itself within the step, and the files that it goes to."""

import math
import re
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

from mdgraph.analysis.recorded import recorded_figure
from mdgraph.engine import (
    Averages,
    MeanSquaredDisplacement,
    RadialDistributions,
    Simulation,
    VelocityAutocorrelation,
)
from mdgraph.engine.online import OnlineObservable
from mdgraph.io.files import write_atomically
from mdgraph.runs.configuration import MDConfig, RunConfig
from mdgraph.runs.directory import RunDirectory
from mdgraph.runs.replicas import replicas_of

LAGS: Final = {"window": 200, "spacing": 10}
"""Samples up to the longest lag, and from one origin to the next."""

SECONDS: Final = 30.0
"""From one writing of the files to the next, at least, but for the last."""

_MADE: Final[dict[str, Callable[..., OnlineObservable]]] = {
    "averages": Averages,
    "rdf": RadialDistributions,
    "msd": partial(MeanSquaredDisplacement, **LAGS),
    "vacf": partial(VelocityAutocorrelation, **LAGS),
}


def observables_of(configuration: RunConfig) -> list[OnlineObservable]:
    """What a configuration asks to record, in its order."""
    if not isinstance(configuration, MDConfig) or configuration.observe is None:
        return []
    return [_MADE[word](every=every) for word, every in _asked(configuration.observe)]


def _asked(observe: str) -> list[tuple[str, int]]:
    """Words and their intervals, of a text that the configuration has checked and completed."""
    found = (re.fullmatch(r"(\w+):(\d+)", part) for part in observe.split(","))
    return [(one[1], int(one[2])) for one in found if one is not None]


class ObservedReporter:
    """Writes what was recorded so far, a file for each kind and system: `rdf.csv` and so on."""

    def __init__(
        self, configuration: RunConfig, parts: Sequence[RunDirectory], simulation: Simulation
    ) -> None:
        """Finds its records in the simulation, where they come first.

        Args:
            configuration: of the run.
            parts: where the files of each system lie.
            simulation: made with `observables_of` this configuration.
        """
        self.interval = configuration.intervals.checkpoint
        asked = getattr(configuration, "observe", None)
        words = [word for word, _ in _asked(asked or "")]
        self._records = dict(zip(words, simulation.online, strict=False))
        self._parts = parts
        self._alone = replicas_of(configuration) is None
        self._last = -math.inf

    def report(self, simulation: Simulation) -> None:
        """See Reporter; raises FileError where the disk refuses."""
        # Files of many replicas take seconds, and the records are in the checkpoint too.
        if time.monotonic() - self._last > SECONDS:
            self.write()
            self._last = time.monotonic()

    def write(self) -> None:
        """Writes the results so far; raises FileError where the disk refuses."""
        for word, result in self._results():
            for number, part in enumerate(self._parts):
                result.save(part.path / f"{word}.csv", system=number, overwrite=True)

    def draw(self, *, anew: bool) -> None:
        """Brings the files and, without replicas, a picture each where they are to be at the end.

        Args:
            anew: whether pictures that are there are replaced.

        Raises:
            FileError: the disk refuses.
        """
        for word, result in self._results():
            for number, part in enumerate(self._parts):
                path = part.path / f"{word}.csv"
                if anew or not path.exists():
                    result.save(path, system=number, overwrite=True)
            path = self._parts[0].path / f"{word}.png"
            if self._alone and (anew or not path.exists()):
                write_atomically(path, recorded_figure(result).savefig)

    def _results(self) -> Iterator[tuple[str, Any]]:
        """Words and what was recorded so far, if anything was."""
        for word, record in self._records.items():
            if int(record.tensors()["samples"]):
                yield word, record.result()
