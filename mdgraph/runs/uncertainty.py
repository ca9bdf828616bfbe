"""Uncertainty of runs and frames, from a committee and from the last layer."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from mdgraph.devices import device_named
from mdgraph.engine import Calculation, Simulation
from mdgraph.engine.batches import Batches
from mdgraph.engine.calculation import EvaluationResult, as_evaluator
from mdgraph.engine.uncertainty import (
    ATOM_SIGMA,
    ENERGY_SIGMA,
    ENERGY_SPREAD,
    FORCE_SPREAD,
    LastLayer,
    combined,
    with_sigma,
)
from mdgraph.errors import FileError, InputError, SimulationError
from mdgraph.evaluators import Evaluator
from mdgraph.io.files import check_steps
from mdgraph.io.log import LogWriter
from mdgraph.models import TrainablePotential
from mdgraph.precision import precision_named
from mdgraph.runs.config import Configuration, EvalConfig, MDConfig
from mdgraph.runs.observe import atom_name
from mdgraph.runs.potential import Source, read_potential, reference_of
from mdgraph.system import System

logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class FrameUncertainty:
    """What the other members of a committee and the last layer found, frame by frame.

    Attributes:
        members: results of each other member of the committee.
        sigmas: of the last layer, or None.
    """

    members: Sequence[Sequence[EvaluationResult]]
    sigmas: Sequence[EvaluationResult] | None

    def added(self, number: int, result: EvaluationResult) -> EvaluationResult:
        """The mean over the committee, with all that is known beside it."""
        if self.members:
            result = combined([result, *(one[number] for one in self.members)])
        return result if self.sigmas is None else with_sigma(result, self.sigmas[number])


def other_members(
    configuration: Configuration, source: Source, committee: Sequence[str]
) -> list[Source]:
    """Members of a committee with other weights than the potential and than each other.

    Raises:
        FileError, CheckpointError, InputError: see `read_potential`; there are none.
    """
    found = {source.sha256: source}
    for reference in map(reference_of, committee):
        if reference != source.reference:
            one = read_potential(configuration.model_copy(update={"potential": reference}))
            found.setdefault(one.sha256, one)
    if len(found) < 2:
        raise InputError("All members of the committee have the same weights; give others.")
    return list(found.values())[1:]


def last_layer(source: Source, precision: str, device: str) -> LastLayer:
    """Its sigma; raises InputError where the potential knows no domain."""
    domain = source.domain
    potential = source.potential
    if not isinstance(potential, TrainablePotential) or domain is None or not domain.calibrated:
        raise InputError(
            f"{source.name} does not know the uncertainty of its energies; measure it on its "
            "training set with 'mdgraph domain'."
        )
    dtype = precision_named(precision).network
    return LastLayer(potential, domain, dtype, device_named(device))


def frame_uncertainty(
    configuration: EvalConfig, source: Source, systems: Sequence[System], names: Sequence[str]
) -> FrameUncertainty:
    """Evaluates frames by all that was asked for beside the potential itself.

    Raises:
        MDGraphError: a member cannot be read or refuses a frame; the potential tells no sigma.
    """
    device = device_named(configuration.device)
    precision = precision_named(configuration.precision)

    def results(evaluator: Evaluator) -> list[EvaluationResult]:
        found: dict[int, EvaluationResult] = dict(
            Batches(evaluator, device, precision).evaluate(systems, names)
        )
        return [found[number] for number in range(len(systems))]

    members = []
    if configuration.committee:
        members = [
            results(as_evaluator(one.potential, precision, device, configuration.evaluator))
            for one in other_members(configuration, source, configuration.committee)
        ]
    sigmas = None
    if configuration.sigma:
        layer = last_layer(source, configuration.precision, configuration.device)
        sigmas = results(layer)
        unlike = sum(
            bool((found.energies > layer.limits(system.numbers)).any())
            for found, system in zip(sigmas, systems, strict=True)
        )
        logger.info(
            "%d of %d frames hold atoms in surroundings unlike those of training.",
            unlike,
            len(systems),
        )
    return FrameUncertainty(members, sigmas)


_WORDS: Final[dict[str, Callable[[float, float, str, str], str]]] = {
    FORCE_SPREAD: lambda atom, whole, where, frame: (
        f"The committee is farthest apart about the force on {where} of {frame}, "
        f"{atom:.3g} eV/A; its energy has a spread of {whole:.3g} eV"
    ),
    ATOM_SIGMA: lambda atom, whole, where, frame: (
        f"The last layer knows {where} of {frame} least, its energy by {atom:.3g} eV; "
        f"that of the frame by {whole:.3g} eV"
    ),
}


class LeastCertain:
    """The atom that is known least, by each measure."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[float, float, str, str]] = {}

    def take(self, name: str, system: System, result: EvaluationResult) -> None:
        """Looks at a frame."""
        for of_atom, of_frame in ((FORCE_SPREAD, ENERGY_SPREAD), (ATOM_SIGMA, ENERGY_SIGMA)):
            if of_atom not in result.arrays:
                continue
            atom = int(result.arrays[of_atom].argmax())
            value = float(result.arrays[of_atom][atom])
            if of_atom not in self._found or value > self._found[of_atom][0]:
                where = f"{system.symbols[atom]} {atom}"
                self._found[of_atom] = (value, result.info[of_frame], where, name)

    def say(self) -> None:
        """One sentence for each measure."""
        for measure, found in self._found.items():
            logger.info("%s.", _WORDS[measure](*found))


_INTERVAL = 100
"""Steps, with a committee and nothing said."""

_COLUMNS = {
    ENERGY_SPREAD: ("energy_std_eV", FORCE_SPREAD, "largest_force_std_eV_per_A", "force_std_atom"),
    ENERGY_SIGMA: ("energy_sigma_eV", ATOM_SIGMA, "largest_atom_sigma_eV", "sigma_atom"),
}
"""Of each measure of a structure: its column, that of atoms, and the columns of these."""


class UncertaintyReporter:
    """Evaluates the moment by every member and by the last layer; appends a row.

    Attributes:
        interval: see Reporter.
        log: what it writes to; see `writing`.
    """

    log: LogWriter

    def __init__(
        self,
        simulation: Simulation,
        systems: Sequence[System],
        configuration: MDConfig,
        source: Source,
    ) -> None:
        """Loads the members and allocates buffers for each.

        Raises:
            FileError, CheckpointError, InputError: a member cannot be read or refuses the
                systems; neither a committee is given nor does the potential tell a sigma.
        """
        self.interval = configuration.uncertainty_interval or _INTERVAL
        self._limit = configuration.force_spread_limit_eV_per_A
        self._stop = configuration.on_extrapolation == "stop"
        self._said: set[str] = set()
        now = simulation.calculation

        def calculation(evaluator: Evaluator) -> Calculation:
            return Calculation(list(systems), evaluator, device=now.device, precision=now.precision)

        self._members: list[Calculation] = []
        if configuration.committee:
            # Where the potential runs fused, a member that cannot still may run.
            kind = "reference" if configuration.evaluator == "reference" else "auto"
            others = [
                as_evaluator(one.potential, now.precision, now.device, kind)
                for one in other_members(configuration, source, configuration.committee)
            ]
            self._members = [calculation(one) for one in (now.evaluator, *others)]
        self._sigma: Calculation | None = None
        domain = source.domain
        if not self._members or (domain is not None and domain.calibrated):
            layer = last_layer(source, configuration.precision, str(now.device))
            self._sigma = calculation(layer)
            self._limits = layer.limits(now.state.numbers.cpu().numpy())
        self._measures = [ENERGY_SPREAD] * bool(self._members)
        self._measures += [ENERGY_SIGMA] * (self._sigma is not None)

    @contextmanager
    def writing(self, path: Path, step: int) -> Iterator[None]:
        """Opens the log, to go on after a step where there is one; raises FileError."""
        with (
            LogWriter.resume(path, step)
            if path.exists()
            else LogWriter.create(path, self._columns())
        ) as self.log:
            yield

    def check(self, path: Path, step: int) -> None:
        """Raises FileError where `writing` cannot go on after a step; nothing changes."""
        if step < self.interval and not path.exists():
            return  # a run that was killed before its first row
        with LogWriter.resuming(path, step) as (_, rows):
            if list(rows) != self._columns():
                raise FileError(
                    f"{path} has other columns than this run; put back the file that belongs to it."
                )
            # The first row is of the first look.
            check_steps(path, [0.0, *rows["step"].tolist()], step, self.interval)

    def _columns(self) -> list[str]:
        columns = ["step", "time_ps"]
        for name in self._measures:
            whole, _, largest, place = _COLUMNS[name]
            columns += [whole, largest, place]
        return columns

    def report(self, simulation: Simulation) -> None:
        """See Reporter.

        Raises:
            SimulationError: the committee is too far apart about a force, or the last layer too
                unsure of an atom, and the run is to stop.
        """
        found = self._results(simulation)
        row = {"step": simulation.step, "time_ps": 1e-3 * simulation.time}
        starts = simulation.state.grouping.start.tolist()
        for name in self._measures:
            whole, of_atoms, largest, place = _COLUMNS[name]
            values = [float(one.arrays[of_atoms].max()) for one in found]
            worst = values.index(max(values))
            row |= {
                whole: max(one.info[name] for one in found),
                largest: values[worst],
                place: starts[worst] + int(found[worst].arrays[of_atoms].argmax()),
            }
        self.log.append(row)
        self._check_spread(simulation, row)
        if self._sigma is not None:
            self._check_sigma(simulation, found)

    def _results(self, simulation: Simulation) -> list[EvaluationResult]:
        """Means, spreads and sigmas of every system."""
        count = len(simulation.state.grouping.sizes)
        by_member = [_results_at(one, simulation, count) for one in self._members]
        sigmas = [] if self._sigma is None else _results_at(self._sigma, simulation, count)
        found = [combined(members) for members in zip(*by_member, strict=True)] or sigmas
        if not sigmas:
            return found
        return [with_sigma(one, sigma) for one, sigma in zip(found, sigmas, strict=True)]

    def _check_spread(self, simulation: Simulation, row: dict[str, float]) -> None:
        spread = row.get("largest_force_std_eV_per_A", 0.0)
        if self._limit is not None and spread > self._limit:
            atom = int(row["force_std_atom"])
            text = f"the committee is {spread:.3g} eV/A apart about the force on"
            self._leave(simulation, FORCE_SPREAD, text, atom, f"where {self._limit:g} is the limit")

    def _check_sigma(self, simulation: Simulation, found: Sequence[EvaluationResult]) -> None:
        sigma = np.concatenate([one.arrays[ATOM_SIGMA] for one in found])
        atom = int((sigma - self._limits).argmax())
        if sigma[atom] > self._limits[atom]:
            end = (
                f"whose surroundings are unlike those of training: {sigma[atom]:.3g} eV, where "
                f"{self._limits[atom]:.3g} is the limit"
            )
            self._leave(simulation, ATOM_SIGMA, "the last layer is unsure of", atom, end)

    def _leave(self, simulation: Simulation, kind: str, what: str, atom: int, end: str) -> None:
        """Says so once; raises SimulationError where the run is to stop."""
        if kind in self._said:
            return
        self._said.add(kind)
        text = f"At step {simulation.step} {what} {atom_name(simulation, atom)}, {end}"
        if self._stop:
            text += ". Look at it there; --resume --on-extrapolation warn goes on."
            raise SimulationError(text, simulation.step, [atom])
        logger.warning("%s.", text)


def _results_at(one: Calculation, simulation: Simulation, count: int) -> list[EvaluationResult]:
    one.state.cell.copy_(simulation.state.cell)
    one.state.place_(simulation.state.places())
    return one.computed(graphed=one.device.type == "cuda").results(count)
