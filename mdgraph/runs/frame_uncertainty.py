"""How far the energies and forces of frames can be trusted, by a committee and the last layer."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from mdgraph.devices import device_named
from mdgraph.engine.batches import Batches
from mdgraph.engine.potentials import as_evaluator
from mdgraph.engine.results import Result
from mdgraph.engine.uncertainty import (
    ATOM_SIGMA,
    ENERGY_SIGMA,
    ENERGY_SPREAD,
    FORCE_SPREAD,
    LastLayer,
    combined,
    with_sigma,
)
from mdgraph.errors import InputError
from mdgraph.evaluators import Evaluator
from mdgraph.precision import precision_named
from mdgraph.runs.configuration import Configuration, EvalConfig
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

    members: Sequence[Sequence[Result]]
    sigmas: Sequence[Result] | None

    def added(self, number: int, result: Result) -> Result:
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
    if domain is None or not domain.calibrated:
        raise InputError(
            f"{source.name} does not know the uncertainty of its energies; measure it on its "
            "training set with 'mdgraph domain'."
        )
    kind = precision_named(precision).network
    return LastLayer(source.potential, domain, kind, device_named(device))


def frame_uncertainty(
    configuration: EvalConfig, source: Source, systems: Sequence[System], names: Sequence[str]
) -> FrameUncertainty:
    """Evaluates frames by all that was asked for beside the potential itself.

    Raises:
        MDGraphError: a member cannot be read or refuses a frame; the potential tells no sigma.
    """
    device = device_named(configuration.device)
    precision = precision_named(configuration.precision)

    def results(evaluator: Evaluator) -> list[Result]:
        found: dict[int, Result] = dict(
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

    def take(self, name: str, system: System, result: Result) -> None:
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
