"""Errors on held-out frames, with and without those that training holds almost the same."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mdgraph.data import LabelledFrame
from mdgraph.data.similarity import describe_frame, response
from mdgraph.system import System
from mdgraph.validate.probes import Evaluate


@dataclass(frozen=True)
class FrameErrors:
    """Mean absolute errors over frames.

    Attributes:
        frames: how many.
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

    Random displacements of that size make as much of a difference, by the measure of
    `mdgraph data check`.

    Args:
        frames: that are held out.
        training: frames.
        near: A an atom.
    """
    kinds = sorted({int(number) for one in (*frames, *training) for number in one.numbers})
    descriptions = [(np.sort(one.numbers), describe_frame(one, kinds)) for one in training]
    alike = []
    for frame in frames:
        numbers, own = np.sort(frame.numbers), describe_frame(frame, kinds)
        reach = near * response(frame, kinds)
        alike.append(
            any(
                np.array_equal(numbers, others) and np.linalg.norm(own - theirs) <= reach
                for others, theirs in descriptions
            )
        )
    return np.array(alike, dtype=bool)


def frame_errors(
    frames: Sequence[LabelledFrame], evaluate: Evaluate, chosen: Sequence[NDArray[np.bool_]]
) -> list[FrameErrors]:
    """Mean absolute errors over each choice of the frames.

    Args:
        frames: M, with energies and forces.
        evaluate: see `evaluate_with`.
        chosen: (M,) each, with a frame at least.
    """
    systems = [System(one.numbers, one.positions, cell=one.cell, pbc=one.pbc) for one in frames]
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
        for mask in chosen
    ]
