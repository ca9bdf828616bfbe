"""Errors on held-out frames, with and without those that training holds almost the same."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from mdgraph.data import LabelledFrame
from mdgraph.data.similarity import describe_frame, response
from mdgraph.system import System
from mdgraph.validate.probes import Evaluate, evaluate_with
from mdgraph.validate.verdicts import Check, Verdict

NEAR: Final = 0.01
"""A an atom within which frames are alike, as for `mdgraph data check`: a fit of the one is a fit
of the other."""

ALIKE_SHARE: Final = 0.1
"""Share of the frames beyond which errors are looked at: an error of zero there would lower the
mean by as much, which is the size of a step between two recipes."""


@dataclass(frozen=True)
class FrameErrors:
    """Mean absolute errors over frames.

    Attributes:
        frames: number of frames.
        energy: eV an atom.
        forces: eV/A, of a component.
    """

    frames: int
    energy: float
    forces: float


def look_alikes(
    frames: Sequence[LabelledFrame], training: Sequence[LabelledFrame], near: float
) -> NDArray[np.bool_]:
    """(M,) whether each frame is almost the same as a training frame of its composition.

    Frames are compared by the measure of `mdgraph data check`: they are alike if they differ by
    less than random displacements of size `near` would make them.

    Args:
        frames: held-out frames.
        training: training frames.
        near: A per atom.
    """
    elements = sorted({int(number) for frame in (*frames, *training) for number in frame.numbers})
    descriptions = [(np.sort(frame.numbers), describe_frame(frame, elements)) for frame in training]
    alike = []
    for frame in frames:
        numbers, own = np.sort(frame.numbers), describe_frame(frame, elements)
        reach = near * response(frame, elements)
        alike.append(
            any(
                np.array_equal(numbers, others) and np.linalg.norm(own - theirs) <= reach
                for others, theirs in descriptions
            )
        )
    return np.array(alike, dtype=bool)


def frame_errors(
    frames: Sequence[LabelledFrame], evaluate: Evaluate, masks: Sequence[NDArray[np.bool_]]
) -> list[FrameErrors]:
    """Mean absolute errors over subsets of the frames.

    Args:
        frames: M, with energies and forces.
        evaluate: see `evaluate_with`.
        masks: (M,) each, with at least one frame.
    """
    systems = [
        System(frame.numbers, frame.positions, cell=frame.cell, pbc=frame.pbc) for frame in frames
    ]
    results = evaluate(systems, "frame")
    pairs = list(zip(frames, results, strict=True))
    energies = np.array([abs(r.energy - frame.energy) / len(frame) for frame, r in pairs])
    forces = [np.abs(result.forces - np.array(frame.forces)).ravel() for frame, result in pairs]
    return [
        FrameErrors(
            int(mask.sum()),
            float(energies[mask].mean()),
            float(np.concatenate([forces[place] for place in np.flatnonzero(mask)]).mean()),
        )
        for mask in masks
    ]


def look_alikes_check(
    frames: Sequence[LabelledFrame],
    training: Sequence[LabelledFrame],
    potential: Any,
    device: torch.device,
) -> Check:
    """How many held-out frames training holds almost the same, and errors without them.

    Args:
        frames: held-out frames.
        training: training frames.
        potential: path, shipped name, potential or evaluator.
        device: of the evaluation.
    """
    alike = look_alikes(frames, training, NEAR)
    count, known = (
        int(alike.sum()),
        [frame.energy + np.array(frame.forces, dtype=np.float64).sum() for frame in frames],
    )
    text = f"{count} of {len(frames)} frames lie within {NEAR:g} A an atom of a training frame"
    numbers: dict[str, Any] = {"alike": count, "frames": len(frames)}
    if 0 < count < len(frames) and np.isfinite(known).all():
        masks = [np.full(len(frames), True), ~alike]
        every, rest = frame_errors(frames, evaluate_with(potential, device), masks)
        text += (
            f"; without them the MAE is {1e3 * rest.energy:.3g} meV/atom and "
            f"{1e3 * rest.forces:.3g} meV/A, with them {1e3 * every.energy:.3g} and "
            f"{1e3 * every.forces:.3g}"
        )
        numbers |= {
            "energy_mae_without_meV_per_atom": 1e3 * rest.energy,
            "force_mae_without_meV_per_A": 1e3 * rest.forces,
        }
    verdict = Verdict.LOOK if count > ALIKE_SHARE * len(frames) else Verdict.OK
    return Check("look-alikes", verdict, f"{text}.", numbers)
