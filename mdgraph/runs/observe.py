"""Observables that a run records within the step, and warnings when it leaves its domain."""

import logging
import math
import re
import time
from collections.abc import Callable, Iterator
from functools import partial
from math import isfinite
from typing import Any, Final

from mdgraph.analysis.plots import recorded_figure
from mdgraph.engine import (
    Averages,
    DomainMonitor,
    MeanSquaredDisplacement,
    RadialDistributions,
    Simulation,
    VelocityAutocorrelation,
)
from mdgraph.engine.observables import OnlineObservable
from mdgraph.engine.observables.domain import KINDS, Departure
from mdgraph.errors import InputError, SimulationError
from mdgraph.io.files import write_atomically
from mdgraph.runs.config import MDConfig, RunConfig
from mdgraph.runs.folder import Run
from mdgraph.runs.potential import Source
from mdgraph.units import SYMBOLS

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

    def __init__(self, run: Run, simulation: Simulation) -> None:
        """Finds its records in the simulation, where they come first.

        Args:
            run: whose files they are.
            simulation: made with `observables_of` its configuration.
        """
        self.interval = run.configuration.intervals.checkpoint
        asked = getattr(run.configuration, "observe", None)
        words = [word for word, _ in _asked(asked or "")]
        self._records = dict(zip(words, simulation.online, strict=False))
        self._parts = run.parts
        self._alone = not run.configuration.has_replicas
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


logger = logging.getLogger(__name__)


def domain_monitors(configuration: RunConfig, source: Source) -> list[DomainMonitor]:
    """The monitor of the potential's domain; none where it is off or the potential has no domain.

    Raises:
        InputError: the run is to stop at an extrapolation, and nothing could report one.
    """
    if not isinstance(configuration, MDConfig):
        return []
    domain = source.domain
    on = configuration.monitor_domain
    monitors = [DomainMonitor(domain)] if on and domain is not None else []
    asked = configuration.committee or configuration.uncertainty_interval
    sigma = asked and domain is not None and domain.calibrated
    limited = configuration.force_spread_limit_eV_per_A is not None
    if configuration.on_extrapolation == "stop" and not (monitors or sigma or limited):
        raise InputError(
            "on_extrapolation is stop, and nothing tells where the run leaves: monitor_domain is "
            f"off or {source.name} does not bring what it was trained on; leave on_extrapolation "
            "out, or give a committee and force_spread_limit_eV_per_A."
        )
    return monitors


class DomainReporter:
    """Warns once of each kind of extrapolation; may end the run."""

    def __init__(self, simulation: Simulation, interval: int, stop: bool) -> None:
        """A run that is resumed does not repeat warnings of steps that it reported before.

        Args:
            simulation: with a monitor or without.
            interval: see Reporter; where the host reads the device anyway, it costs no wait.
            stop: whether an extrapolation ends the run.
        """
        self.interval = interval
        self._stop = stop
        self._monitors = [one for one in simulation.online if isinstance(one, DomainMonitor)]
        last = simulation.step // interval * interval if simulation.step else -1
        self._said = {one.kind for one in self._departures() if one.step <= last}

    def report(self, simulation: Simulation) -> None:
        """See Reporter.

        Raises:
            SimulationError: a kind of extrapolation is new, and the run is to stop there.
        """
        for one in self._departures():
            if one.kind in self._said:
                continue
            self._said.add(one.kind)
            text = f"At step {one.step} the run left what the potential was trained on: "
            text += _words(simulation, one)
            if self._stop:
                raise SimulationError(
                    f"{text}. Look at it there; --resume --on-extrapolation warn goes on.",
                    one.step,
                    [one.atom],
                )
            logger.warning("%s.", text)

    def summarize(self) -> None:
        """Logs how often the run was outside its domain, of all checks since its start."""
        for monitor in self._monitors:
            result = monitor.result()
            outside = [f"{one.kind} in {one.looks}" for one in result.departures]
            text = ", ".join(outside) or "nothing outside"
            logger.log(
                logging.WARNING if outside else logging.INFO,
                "%d look%s at what the potential was trained on: %s.",
                result.samples,
                "s" * (result.samples != 1),
                text,
            )

    def _departures(self) -> list[Departure]:
        return [found for one in self._monitors for found in one.result().departures]


def _words(simulation: Simulation, one: Departure) -> str:
    unit = KINDS[one.kind]
    atoms = [one.atom, one.neighbor] if unit == "A" else [one.atom]
    where = " and ".join(atom_name(simulation, atom) for atom in atoms)
    limit = f"where {one.bound:.4g} is the limit" if isfinite(one.bound) else "as none did there"
    return f"{one.kind}, {one.value:.4g} {unit} of {where}, {limit}"


def atom_name(simulation: Simulation, atom: int) -> str:
    """Element and place of an atom in its own system; reads the device."""
    state = simulation.state
    system = int(state.grouping.index[atom])
    place = atom - int(state.grouping.start[system])
    name = f"{SYMBOLS[int(state.numbers[atom])]} {place}"
    return name if len(state.grouping.sizes) == 1 else f"{name} of replica {state.replica[system]}"
