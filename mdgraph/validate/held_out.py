"""Errors on held-out frames, with and without those that training holds almost the same."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from mdgraph.data import LabelledFrame
from mdgraph.data.similarity import NEAR, describe_frame, response
from mdgraph.engine.batches import Evaluate, evaluate_with
from mdgraph.validate.frame_checks import system_of
from mdgraph.validate.verdicts import Check, Verdict

ALIKE_SHARE: Final = 0.1
"""Share of the frames beyond which errors are looked at: an error of zero there would lower the
mean by as much, which is the size of a step between two recipes."""

_ROWS: Final = 512
"""Training frames whose descriptors are in memory together."""


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
    alike = np.zeros(len(frames), dtype=bool)
    held_out, trained = _by_composition(frames), _by_composition(training)
    for numbers in held_out.keys() & trained.keys():
        elements = sorted(set(numbers))
        places = held_out[numbers]
        own = np.array([describe_frame(frames[place], elements) for place in places], np.float64)
        nearest = np.full(len(own), np.inf)
        for start in range(0, len(trained[numbers]), _ROWS):
            part = trained[numbers][start : start + _ROWS]
            known = np.array([describe_frame(training[k], elements) for k in part], np.float64)
            squares = (own**2).sum(1)[:, None] + (known**2).sum(1) - 2.0 * own @ known.T
            nearest = np.minimum(nearest, squares.min(1))
        reach = [near * response(frames[place], elements) for place in places]
        alike[places] = nearest <= np.square(reach)
    return alike


def _by_composition(frames: Sequence[LabelledFrame]) -> dict[tuple[int, ...], list[int]]:
    """Places of the frames of each composition, which is all numbers of atoms in order."""
    places: dict[tuple[int, ...], list[int]] = {}
    for place, frame in enumerate(frames):
        places.setdefault(tuple(np.sort(frame.numbers).tolist()), []).append(place)
    return places


def frame_errors(
    frames: Sequence[LabelledFrame], evaluate: Evaluate, masks: Sequence[NDArray[np.bool_]]
) -> list[FrameErrors]:
    """Mean absolute errors over subsets of the frames.

    Args:
        frames: M, with energies and forces.
        evaluate: see `evaluate_with`.
        masks: (M,) each, with at least one frame.
    """
    results = evaluate([system_of(frame) for frame in frames], "frame")
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
    count = int(alike.sum())
    known = [frame.energy + np.array(frame.forces, dtype=np.float64).sum() for frame in frames]
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
