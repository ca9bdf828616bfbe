"""Uncertainty of runs and frames, from a committee and from the last layer."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import numpy as np
import torch

from mdgraph.checkpoints.location import locate
from mdgraph.devices import device_named
from mdgraph.engine import Calculation, Simulation
from mdgraph.engine.batches import Batches
from mdgraph.engine.calculation import EvaluationResult, as_evaluator
from mdgraph.engine.multiple_time_steps import evaluator_of_energy
from mdgraph.engine.uncertainty import (
    ATOM_SIGMA,
    ENERGY_SIGMA,
    ENERGY_SPREAD,
    FORCE_SPREAD,
    LastLayer,
    combined,
    with_sigma,
)
from mdgraph.errors import FileError, InputError
from mdgraph.evaluators import Evaluator
from mdgraph.io.files import check_steps
from mdgraph.io.log import LogWriter
from mdgraph.precision import precision_named
from mdgraph.runs.config import Configuration, EvalConfig, MDConfig
from mdgraph.runs.config_fields import multiple_steps
from mdgraph.runs.observe import atom_name, warn_or_stop
from mdgraph.runs.potential import Source, read_potential
from mdgraph.system import System

logger = logging.getLogger(__name__)


def other_members(
    configuration: Configuration, source: Source, committee: Sequence[str]
) -> list[Source]:
    """Members of a committee whose weights differ from the potential's and from each other.

    Raises:
        FileError, CheckpointError, InputError: see `read_potential`; no member has other weights.
    """
    sources = {source.sha256: source}
    for reference in (locate(member).reference for member in committee):
        if reference != source.reference:
            change = {"potential": reference, "inner_potential": None}
            member = read_potential(configuration.model_copy(update=change))
            sources.setdefault(member.sha256, member)
    if len(sources) < 2:
        raise InputError("All members of the committee have the same weights; give others.")
    return list(sources.values())[1:]


def last_layer(source: Source, precision: str, device: str) -> LastLayer:
    """Evaluator of the last layer's sigma; raises InputError without a calibrated domain."""
    domain = source.domain
    potential = source.potential
    if not potential.has_latent or domain is None or not domain.calibrated:
        raise InputError(
            f"{source.name} does not know the uncertainty of its energies; measure it on its "
            "training set with 'mdgraph domain'."
        )
    dtype = precision_named(precision).network
    return LastLayer(potential, domain, dtype, device_named(device))


class FrameUncertainty:
    """Evaluates frames by the other members of a committee and by the last layer, as configured."""

    def __init__(self, configuration: EvalConfig, source: Source, device: torch.device) -> None:
        """Loads the other members.

        Raises:
            MDGraphError: a member cannot be read; the potential has no sigma.
        """
        precision = precision_named(configuration.precision)
        self._members: list[Batches] = []
        if configuration.committee:
            self._members = [
                Batches(
                    as_evaluator(member.potential, precision, device, configuration.evaluator),
                    device,
                    precision,
                )
                for member in other_members(configuration, source, configuration.committee)
            ]
        self._layer: LastLayer | None = None
        if configuration.sigma:
            self._layer = last_layer(source, configuration.precision, str(device))
            self._sigmas = Batches(self._layer, device, precision)

    @property
    def measured(self) -> bool:
        """Whether anything is configured."""
        return bool(self._members) or self._layer is not None

    def combine(
        self,
        systems: Sequence[System],
        names: Sequence[str],
        results: Sequence[EvaluationResult],
    ) -> tuple[Sequence[EvaluationResult], list[bool]]:
        """Means over the committee, with their spread and the sigma of the last layer.

        Returns:
            The results, and whether each frame holds atoms in surroundings unlike those of
            training, False without sigma.

        Raises:
            MDGraphError: a member refuses a frame.
        """
        if self._members:
            others = [_in_order(member, systems, names) for member in self._members]
            results = [combined(members) for members in zip(results, *others, strict=True)]
        if self._layer is None:
            return results, [False] * len(systems)
        sigmas = _in_order(self._sigmas, systems, names)
        unlike = [
            bool((sigma.energies > self._layer.limits(system.numbers)).any())
            for sigma, system in zip(sigmas, systems, strict=True)
        ]
        pairs = zip(results, sigmas, strict=True)
        return [with_sigma(result, sigma) for result, sigma in pairs], unlike


def _in_order(
    batches: Batches, systems: Sequence[System], names: Sequence[str]
) -> list[EvaluationResult]:
    results = dict(batches.evaluate(systems, names))
    return [results[number] for number in range(len(systems))]


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
    """Finds the atom with the largest uncertainty of each measure."""

    def __init__(self) -> None:
        self._worst: dict[str, tuple[float, float, str, str]] = {}

    def take(self, name: str, system: System, result: EvaluationResult) -> None:
        """Includes a frame."""
        for of_atom, of_frame in ((FORCE_SPREAD, ENERGY_SPREAD), (ATOM_SIGMA, ENERGY_SIGMA)):
            if of_atom not in result.arrays:
                continue
            atom = int(result.arrays[of_atom].argmax())
            value = float(result.arrays[of_atom][atom])
            if of_atom not in self._worst or value > self._worst[of_atom][0]:
                where = f"{system.symbols[atom]} {atom}"
                self._worst[of_atom] = (value, result.info[of_frame], where, name)

    def merge(self, other: "LeastCertain") -> None:
        """Includes the frames of another one, which come after these."""
        for measure, values in other._worst.items():
            if measure not in self._worst or values[0] > self._worst[measure][0]:
                self._worst[measure] = values

    def say(self) -> None:
        """Logs a sentence for each measure."""
        for measure, values in self._worst.items():
            logger.info("%s.", _WORDS[measure](*values))


_INTERVAL = 100
"""Default steps between rows."""

_COLUMNS = {
    ENERGY_SPREAD: ("energy_std_eV", FORCE_SPREAD, "largest_force_std_eV_per_A", "force_std_atom"),
    ENERGY_SIGMA: ("energy_sigma_eV", ATOM_SIGMA, "largest_atom_sigma_eV", "sigma_atom"),
}
"""Measure of a structure: its column, the measure of its atoms, and the columns of that one."""


class UncertaintyReporter:
    """Evaluates the current step by every member and by the last layer; appends a row.

    Attributes:
        interval: see Reporter.
        log: open within `open_log`.
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
                systems; there is no committee, and the potential has no sigma.
        """
        default = multiple_steps(_INTERVAL, configuration.steps_together)
        self.interval = configuration.uncertainty_interval or default
        self._limit = configuration.force_spread_limit_eV_per_A
        self._stop = configuration.on_extrapolation == "stop"
        self._warnings: set[str] = set()
        main = simulation.calculation

        def calculation(evaluator: Evaluator) -> Calculation:
            return Calculation(
                list(systems), evaluator, device=main.device, precision=main.precision
            )

        self._members: list[Calculation] = []
        if configuration.committee:
            # A member without a fused form runs beside a fused potential.
            choice = "reference" if configuration.evaluator == "reference" else "auto"
            others = [
                as_evaluator(member.potential, main.precision, main.device, choice)
                for member in other_members(configuration, source, configuration.committee)
            ]
            own = evaluator_of_energy(main.evaluator)
            self._members = [calculation(member) for member in (own, *others)]
        self._sigma: Calculation | None = None
        domain = source.domain
        if not self._members or (domain is not None and domain.calibrated):
            layer = last_layer(source, configuration.precision, str(main.device))
            self._sigma = calculation(layer)
            self._limits = layer.limits(main.state.numbers.cpu().numpy())
        self._measures = [ENERGY_SPREAD] * bool(self._members)
        self._measures += [ENERGY_SIGMA] * (self._sigma is not None)

    @contextmanager
    def open_log(self, path: Path, step: int) -> Iterator[None]:
        """Opens the log, after `step` if the file exists; raises FileError."""
        with (
            LogWriter.resume(path, step)
            if path.exists()
            else LogWriter.create(path, self._columns())
        ) as self.log:
            yield

    def check(self, path: Path, step: int) -> None:
        """Raises FileError if `open_log` cannot go on after a step; changes nothing."""
        if step < self.interval and not path.exists():
            return  # a run that was killed before its first row
        with LogWriter.resuming(path, step) as (_, rows):
            if list(rows) != self._columns():
                raise FileError(
                    f"{path} has other columns than this run; put back the file that belongs to it."
                )
            # The log has no row of step 0.
            check_steps(path, [0.0, *rows["step"].tolist()], step, self.interval)

    def _columns(self) -> list[str]:
        columns = ["step", "time_ps"]
        for name in self._measures:
            energy_column, _, largest, place = _COLUMNS[name]
            columns += [energy_column, largest, place]
        return columns

    def report(self, simulation: Simulation) -> None:
        """See Reporter.

        Raises:
            SimulationError: the spread of a force or the sigma of an atom exceeds its limit, and
                the run should stop.
        """
        results = self._results(simulation)
        row = {"step": simulation.step, "time_ps": 1e-3 * simulation.time}
        starts = simulation.state.grouping.start.tolist()
        for name in self._measures:
            energy_column, of_atoms, largest, place = _COLUMNS[name]
            values = [float(result.arrays[of_atoms].max()) for result in results]
            worst = values.index(max(values))
            row |= {
                energy_column: max(result.info[name] for result in results),
                largest: values[worst],
                place: starts[worst] + int(results[worst].arrays[of_atoms].argmax()),
            }
        self.log.append(row)
        self._check_spread(simulation, row)
        if self._sigma is not None:
            self._check_sigma(simulation, results)

    def _results(self, simulation: Simulation) -> list[EvaluationResult]:
        """Means, spreads and sigmas of every system."""
        count = len(simulation.state.grouping.sizes)
        by_member = [_results_at(member, simulation, count) for member in self._members]
        sigmas = [] if self._sigma is None else _results_at(self._sigma, simulation, count)
        results = [combined(members) for members in zip(*by_member, strict=True)] or sigmas
        if not sigmas:
            return results
        return [with_sigma(result, sigma) for result, sigma in zip(results, sigmas, strict=True)]

    def _check_spread(self, simulation: Simulation, row: dict[str, float]) -> None:
        spread = row.get("largest_force_std_eV_per_A", 0.0)
        if self._limit is not None and spread > self._limit:
            atom = int(row["force_std_atom"])
            text = f"the committee is {spread:.3g} eV/A apart about the force on"
            self._leave(simulation, FORCE_SPREAD, text, atom, f"where {self._limit:g} is the limit")

    def _check_sigma(self, simulation: Simulation, results: Sequence[EvaluationResult]) -> None:
        sigma = np.concatenate([result.arrays[ATOM_SIGMA] for result in results])
        atom = int((sigma - self._limits).argmax())
        if sigma[atom] > self._limits[atom]:
            end = (
                f"whose surroundings are unlike those of training: {sigma[atom]:.3g} eV, where "
                f"{self._limits[atom]:.3g} is the limit"
            )
            self._leave(simulation, ATOM_SIGMA, "the last layer is unsure of", atom, end)

    def _leave(
        self, simulation: Simulation, measure: str, subject: str, atom: int, end: str
    ) -> None:
        """Warns once for each measure; raises SimulationError if the run should stop."""
        if measure in self._warnings:
            return
        self._warnings.add(measure)
        text = f"At step {simulation.step} {subject} {atom_name(simulation, atom)}, {end}"
        warn_or_stop(text, simulation.step, atom, stop=self._stop)


def _results_at(
    calculation: Calculation, simulation: Simulation, count: int
) -> list[EvaluationResult]:
    calculation.state.cell.copy_(simulation.state.cell)
    calculation.state.place_(simulation.state.places())
    return calculation.computed(graphed=calculation.device.type == "cuda").results(count)
