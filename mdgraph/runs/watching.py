"""What a run says when it leaves what its potential was trained on."""

import logging
from math import isfinite

from mdgraph.elements import SYMBOLS
from mdgraph.engine import DomainWatch, Simulation
from mdgraph.engine.online.departures import KINDS, Departure
from mdgraph.errors import InputError, SimulationError
from mdgraph.runs.configuration import MDConfig, RunConfig
from mdgraph.runs.potential import Source

logger = logging.getLogger(__name__)


def watches_of(configuration: RunConfig, source: Source) -> list[DomainWatch]:
    """What is recorded for it: nothing where it is not wanted or the potential knows no ranges.

    Raises:
        InputError: the run is to stop where it leaves, and nothing tells that it does.
    """
    if not isinstance(configuration, MDConfig):
        return []
    domain = source.domain
    watches = [DomainWatch(domain)] if configuration.watch and domain is not None else []
    asked = configuration.committee or configuration.uncertainty_interval
    sigma = asked and domain is not None and domain.calibrated
    limited = configuration.force_spread_limit_eV_per_A is not None
    if configuration.on_leaving == "stop" and not (watches or sigma or limited):
        raise InputError(
            "on_leaving is stop, and nothing tells where the run leaves: watch is off or "
            f"{source.name} does not bring what it was trained on; leave on_leaving out, or give "
            "a committee and force_spread_limit_eV_per_A."
        )
    return watches


class DepartureReporter:
    """Says each way of leaving once, as soon as the host looks; may end the run."""

    def __init__(self, simulation: Simulation, interval: int, stop: bool) -> None:
        """Takes as said what a run that goes on had left when it last reported.

        Args:
            simulation: watched or not.
            interval: see Reporter; where the host looks anyway, it costs no wait.
            stop: whether leaving ends the run.
        """
        self.interval = interval
        self._stop = stop
        self._watches = [one for one in simulation.online if isinstance(one, DomainWatch)]
        last = simulation.step // interval * interval if simulation.step else -1
        self._said = {one.kind for one in self._departures() if one.step <= last}

    def report(self, simulation: Simulation) -> None:
        """See Reporter.

        Raises:
            SimulationError: the run left in a way that is new, and is to stop there.
        """
        for one in self._departures():
            if one.kind in self._said:
                continue
            self._said.add(one.kind)
            text = f"At step {one.step} the run left what the potential was trained on: "
            text += _words(simulation, one)
            if self._stop:
                raise SimulationError(
                    f"{text}. Look at it there; --resume --on-leaving warn goes on.",
                    one.step,
                    [one.atom],
                )
            logger.warning("%s.", text)

    def summarize(self) -> None:
        """Says how often the run was outside, of all looks since its start."""
        for watch in self._watches:
            result = watch.result()
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
        return [found for one in self._watches for found in one.result().departures]


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
