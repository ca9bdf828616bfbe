"""Observables that a run records within the step, and warnings when it leaves its domain."""

import logging
import math
import time
from collections.abc import Callable, Iterator
from functools import partial
from math import isfinite
from typing import Any, Final

from mdgraph.engine import (
    Averages,
    DomainMonitor,
    ElementTemperatures,
    MeanSquaredDisplacement,
    RadialDistributions,
    Simulation,
    VelocityAutocorrelation,
)
from mdgraph.engine.observables import OnlineObservable
from mdgraph.engine.observables.domain import EVERY, KINDS, Departure
from mdgraph.errors import InputError, SimulationError
from mdgraph.io.files import write_atomically
from mdgraph.runs.config import MDConfig, RunConfig
from mdgraph.runs.config_fields import multiple_steps, observed_intervals
from mdgraph.runs.folder import Run
from mdgraph.runs.potential import Source
from mdgraph.units import SYMBOLS

logger = logging.getLogger(__name__)

LAGS: Final[dict[str, Any]] = {"window": 200, "spacing": 10}
"""Longest lag and distance between time origins, in samples."""

SECONDS: Final = 30.0
"""Shortest time between two writes of the files; the last write does not wait."""

_OBSERVABLES: Final[dict[str, Callable[..., OnlineObservable]]] = {
    "averages": Averages,
    "rdf": RadialDistributions,
    "msd": partial(MeanSquaredDisplacement, **LAGS),
    "vacf": partial(VelocityAutocorrelation, **LAGS),
    "temperatures": ElementTemperatures,
}


def observables_of(configuration: RunConfig) -> list[OnlineObservable]:
    """The observables of the option `observe`, in its order."""
    return [_OBSERVABLES[word](every=every) for word, every in _intervals(configuration).items()]


def _intervals(configuration: RunConfig) -> dict[str, int]:
    """Steps between samples of each observable, by its word."""
    if not isinstance(configuration, MDConfig) or configuration.observe is None:
        return {}
    return observed_intervals(configuration.observe, configuration.steps_together)


class ObservedReporter:
    """Writes the results so far, one file for each observable and system, such as `rdf.csv`."""

    def __init__(self, run: Run, simulation: Simulation) -> None:
        """Takes the first observables of the simulation, which are those of `observables_of`.

        Args:
            run: its folders receive the files.
            simulation: made with `observables_of` its configuration.
        """
        self.interval = run.configuration.intervals.checkpoint
        words = _intervals(run.configuration)
        self._records = dict(zip(words, simulation.online, strict=False))
        self._parts = run.parts
        self._alone = not run.configuration.has_replicas
        self._last = -math.inf

    def report(self, simulation: Simulation) -> None:
        """See Reporter; raises FileError where the disk refuses."""
        # Writing the files of many replicas takes seconds, and checkpoints hold the records too.
        if time.monotonic() - self._last > SECONDS:
            self.write()
            self._last = time.monotonic()

    def write(self) -> None:
        """Writes the results so far; raises FileError where the disk refuses."""
        for word, result in self._results():
            for number, part in enumerate(self._parts):
                result.save(part.path / f"{word}.csv", system=number, overwrite=True)

    def draw(self, *, overwrite: bool) -> None:
        """Writes the files and, without replicas, a picture of each observable.

        Args:
            overwrite: also replaces files and pictures that exist.

        Raises:
            FileError: the disk refuses.
        """
        for word, result in self._results():
            for number, part in enumerate(self._parts):
                path = part.path / f"{word}.csv"
                if overwrite or not path.exists():
                    result.save(path, system=number, overwrite=True)
            path = self._parts[0].path / f"{word}.png"
            if self._alone and (overwrite or not path.exists()):
                from mdgraph.analysis.plots import recorded_figure

                write_atomically(path, recorded_figure(result).savefig)

    def _results(self) -> Iterator[tuple[str, Any]]:
        """Words and results of the observables that have samples."""
        for word, record in self._records.items():
            if int(record.tensors()["samples"]):
                yield word, record.result()


def domain_monitors(configuration: RunConfig, source: Source) -> list[DomainMonitor]:
    """The monitor of the potential's domain; empty if it is off or the potential has no domain.

    Raises:
        InputError: the run should stop at an extrapolation, and nothing could detect one.
    """
    if not isinstance(configuration, MDConfig):
        return []
    domain = source.domain
    on = configuration.monitor_domain
    every = multiple_steps(EVERY, configuration.steps_together)
    monitors = [DomainMonitor(domain, every=every)] if on and domain is not None else []
    uncertain = configuration.committee or configuration.uncertainty_interval
    sigma = uncertain and domain is not None and domain.calibrated
    limited = configuration.force_spread_limit_eV_per_A is not None
    if configuration.on_extrapolation == "stop" and not (monitors or sigma or limited):
        raise InputError(
            "on_extrapolation is stop, and nothing tells where the run leaves: monitor_domain is "
            f"off or {source.name} does not bring what it was trained on; leave on_extrapolation "
            "out, or give a committee and force_spread_limit_eV_per_A."
        )
    return monitors


class DomainReporter:
    """Warns once about each kind of extrapolation; may stop the run."""

    def __init__(self, simulation: Simulation, interval: int, stop: bool) -> None:
        """Finds the monitors; a resumed run does not repeat the warnings of earlier steps.

        Args:
            simulation: with or without a monitor.
            interval: steps between reports; costs no wait at steps where the host reads the
                device anyway.
            stop: stops the run at an extrapolation.
        """
        self.interval = interval
        self._stop = stop
        self._monitors = [
            monitor for monitor in simulation.online if isinstance(monitor, DomainMonitor)
        ]
        last = simulation.step // interval * interval if simulation.step else -1
        self._warnings = {
            departure.kind for departure in self._departures() if departure.step <= last
        }

    def report(self, simulation: Simulation) -> None:
        """See Reporter.

        Raises:
            SimulationError: a new kind of extrapolation occurred, and `stop` is set.
        """
        for departure in self._departures():
            if departure.kind in self._warnings:
                continue
            self._warnings.add(departure.kind)
            text = f"At step {departure.step} the run left what the potential was trained on: "
            text += _words(simulation, departure)
            warn_or_stop(text, departure.step, departure.atom, stop=self._stop)

    def summarize(self) -> None:
        """Logs how many checks since the start of the run were outside the domain."""
        for monitor in self._monitors:
            result = monitor.result()
            outside = [f"{departure.kind} in {departure.looks}" for departure in result.departures]
            text = ", ".join(outside) or "nothing outside"
            logger.log(
                logging.WARNING if outside else logging.INFO,
                "%d look%s at what the potential was trained on%s: %s.",
                result.samples,
                "s" * (result.samples != 1),
                ", at the start" * (result.samples == 1),
                text,
            )

    def _departures(self) -> list[Departure]:
        return [
            departure for monitor in self._monitors for departure in monitor.result().departures
        ]


def _words(simulation: Simulation, departure: Departure) -> str:
    unit = KINDS[departure.kind]
    atoms = [departure.atom, departure.neighbor] if unit == "A" else [departure.atom]
    where = " and ".join(atom_name(simulation, atom) for atom in atoms)
    limit = (
        f"where {departure.bound:.4g} is the limit"
        if isfinite(departure.bound)
        else "as none did there"
    )
    return f"{departure.kind}, {departure.value:.4g} {unit} of {where}, {limit}"


def warn_or_stop(text: str, step: int, atom: int, *, stop: bool) -> None:
    """Warns of an extrapolation; if `stop` is set, raises SimulationError instead."""
    if stop:
        text = f"{text}. Look at it there; --resume --on-extrapolation warn continues the run."
        raise SimulationError(text, step, [atom])
    logger.warning("%s.", text)


def atom_name(simulation: Simulation, atom: int) -> str:
    """Element of an atom and its index within its system; syncs the GPU."""
    state = simulation.state
    system = int(state.grouping.index[atom])
    place = atom - int(state.grouping.start[system])
    name = f"{SYMBOLS[int(state.numbers[atom])]} {place}"
    return name if len(state.grouping.sizes) == 1 else f"{name} of replica {state.replica[system]}"
