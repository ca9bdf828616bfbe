"""`mdgraph eval` and `mdgraph relax`: energies, forces and minima of all frames of files."""

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from mdgraph.devices import device_named
from mdgraph.engine import Calculation
from mdgraph.engine.batches import Batches
from mdgraph.engine.calculation import EvaluationResult, as_evaluator
from mdgraph.engine.relaxation import relax
from mdgraph.errors import InputError, name_some, printable
from mdgraph.evaluators import Evaluator
from mdgraph.fused.verification import say_unmeasured, self_check
from mdgraph.io.files import refuse_existing, write_atomically
from mdgraph.io.formats import FORMATS
from mdgraph.io.log import Evaluation
from mdgraph.io.structures import read_systems
from mdgraph.memory import memory_failures
from mdgraph.precision import Precision, precision_named
from mdgraph.runs.config import EvalConfig, FramesConfig, RelaxConfig
from mdgraph.runs.potential import Source, read_potential, say_neutral, with_charge
from mdgraph.runs.setup import descent, prefix_errors
from mdgraph.runs.uncertainty import LeastCertain, frame_uncertainty
from mdgraph.system import System

logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Frames:
    """Structures, and the potential that evaluates them.

    Attributes:
        names: file and frame, for errors.
        systems: with their total charges.
        source: the potential with its origin.
        evaluator: of the potential.
        device: of the evaluator.
        precision: of the evaluator.
    """

    names: list[str]
    systems: list[System]
    source: Source
    evaluator: Evaluator
    device: torch.device
    precision: Precision


def evaluate(configuration: EvalConfig) -> int:
    """Evaluates all frames of some files and writes them to one file.

    Returns:
        Number of frames.

    Raises:
        MDGraphError: a frame cannot be read, evaluated or written; the message names file and
            frame, and nothing is written.
    """
    least = LeastCertain()

    def evaluations(frames: Frames) -> Iterator[tuple[int, System, EvaluationResult]]:
        batches = Batches(frames.evaluator, frames.device, frames.precision)
        uncertainty = frame_uncertainty(configuration, frames.source, frames.systems, frames.names)
        for number, evaluation in batches.evaluate(frames.systems, frames.names):
            result = uncertainty.combine(number, evaluation)
            least.take(frames.names[number], frames.systems[number], result)
            yield number, frames.systems[number], result
        if len(frames.systems) > 1:
            logger.info("%s.", batches.summary(len(frames.systems)))

    names = write_frames(configuration, "eval", evaluations)
    least.say()
    return len(names)


def write_frames(
    configuration: FramesConfig,
    title: str,
    evaluations: Callable[[Frames], Iterable[tuple[int, System, EvaluationResult]]],
) -> list[str]:
    """Evaluates frames and writes the results in the order of the files.

    Args:
        configuration: names the files.
        title: of the progress bar.
        evaluations: yields index, structure and result of each frame, in any order.

    Returns:
        Names of the frames.

    Raises:
        MDGraphError: see `evaluate`.
    """
    out = Path(configuration.out)
    suffixes = FORMATS["extxyz"].suffixes
    if out.suffix and out.suffix.lower() not in suffixes:
        raise InputError(
            f"--out is {printable(out, 200)}, and extended XYZ is written; end the name in "
            f"{' or '.join(suffixes)}."
        )
    refuse_existing(out, overwrite=configuration.overwrite, option=True)
    device = device_named(configuration.device)
    precision = precision_named(configuration.precision)
    source = read_potential(configuration)
    read = [
        (f"{path}, frame {number}", system)
        for path in configuration.structures
        for number, system in enumerate(read_systems(path))
    ]
    say_neutral([system for _, system in read], configuration, source)
    if not configuration.check:
        say_unmeasured(precision)
    systems = []
    for name, system in read:
        with prefix_errors(name):
            systems.append(with_charge(system, configuration, source))

    def write(path: Path) -> None:
        waiting: dict[int, bytes] = {}
        with (
            path.open("wb") as file,
            tqdm(total=len(systems), desc=title, unit="frame", disable=None) as bar,
        ):
            following = 0
            for number, system, result in evaluations(frames):
                with prefix_errors(frames.names[number]):
                    waiting[number] = evaluation_of(system, result).extended_xyz()
                bar.update()
                while following in waiting:
                    file.write(waiting.pop(following))
                    following += 1

    with memory_failures(device):
        evaluator = as_evaluator(source.potential, precision, device, configuration.evaluator)
        frames = Frames([name for name, _ in read], systems, source, evaluator, device, precision)
        if configuration.check:
            with prefix_errors(frames.names[0]):
                _check(frames)
        write_atomically(out, write, new=not configuration.overwrite)
    return frames.names


def _check(frames: Frames) -> None:
    """Runs the self-check on the first frame."""
    evaluator, precision = frames.evaluator, frames.precision
    calculation = Calculation(
        frames.systems[:1], evaluator, device=frames.device, precision=precision, skin=0.0
    )
    calculation.compute()
    self_check(evaluator, calculation.state, calculation.lists, precision)


def evaluation_of(system: System, result: EvaluationResult) -> Evaluation:
    """The record that is written for a structure; raises InputError if forces are not finite."""
    bad = np.flatnonzero(~np.isfinite(result.forces).all(axis=1))
    if len(bad):
        raise InputError(
            f"The forces on atoms {name_some(bad.tolist())} are not finite; check the structure."
        )
    return Evaluation(
        system=system,
        energy=result.energy,
        energies=result.energies,
        forces=result.forces,
        stress=-result.virial / system.volume if system.volume > 0.0 else None,
        info=result.info,
        arrays=result.arrays,
    )


@dataclass(frozen=True)
class RelaxationCounts:
    """Number of frames, and how many of them reached a minimum."""

    frames: int
    converged: int


def relax_frames(configuration: RelaxConfig) -> RelaxationCounts:
    """Relaxes all frames of some files and writes them to one file.

    Raises:
        MDGraphError: a frame cannot be read, relaxed or written; the message names file and
            frame, and nothing is written.
    """
    moving: list[int] = []

    def minima(frames: Frames) -> Iterator[tuple[int, System, EvaluationResult]]:
        relaxations = relax(
            frames.systems,
            frames.names,
            frames.evaluator,
            descent(configuration),
            configuration.steps,
            device=frames.device,
            precision=frames.precision,
        )
        for number, relaxation in relaxations:
            if not relaxation.converged:
                moving.append(number)
            yield number, relaxation.system, relaxation.result

    names = write_frames(configuration, "relax", minima)
    if moving:
        logger.warning(
            "No minimum within the tolerances after %d steps: %s.",
            configuration.steps,
            name_some([names[number] for number in sorted(moving)]),
        )
    return RelaxationCounts(len(names), len(names) - len(moving))
