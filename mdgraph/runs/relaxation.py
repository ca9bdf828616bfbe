"""Minima of frames, from files to a file."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass

from mdgraph.engine.relaxation import relax
from mdgraph.engine.results import Result
from mdgraph.errors import name_some
from mdgraph.runs.configuration import RelaxConfig
from mdgraph.runs.evaluation import Frames, write_frames
from mdgraph.runs.integrators import descent
from mdgraph.system import System

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Arrivals:
    """How many frames there were, and how many of them reached a minimum."""

    frames: int
    converged: int


def relax_frames(configuration: RelaxConfig) -> Arrivals:
    """Moves every frame of some files to a minimum and writes them to one.

    Raises:
        MDGraphError: anything that cannot be; names the file and the frame. Nothing is
            written then.
    """
    moving: list[int] = []

    def relaxed(frames: Frames) -> Iterator[tuple[int, System, Result]]:
        found = relax(
            frames.systems,
            frames.names,
            frames.evaluator,
            descent(configuration),
            configuration.steps,
            device=frames.device,
            precision=frames.precision,
        )
        for number, one in found:
            if not one.converged:
                moving.append(number)
            yield number, one.system, one.result

    names = write_frames(configuration, "relax", relaxed)
    if moving:
        logger.warning(
            "No minimum within the tolerances after %d steps: %s.",
            configuration.steps,
            name_some([names[number] for number in sorted(moving)]),
        )
    return Arrivals(len(names), len(names) - len(moving))
