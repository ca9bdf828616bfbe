"""Labels of the level that a potential was trained on, which judge before GFN2-xTB where known.

A structure of a scan that was labelled, by the method of the training frames, needs no judge with
errors of its own: the potential's energy above that of the minimum is held against the label's.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from mdgraph.data.dataset import LabelledFrame, evenly_spaced
from mdgraph.engine.batches import Evaluate
from mdgraph.errors import InputError, name_some
from mdgraph.system import System, hill_formula
from mdgraph.validate.judge import JUDGE_NAME, Judge
from mdgraph.validate.scans import HYDROGEN
from mdgraph.validate.verdicts import Check, Verdict

Array = NDArray[np.float64]

SAME: Final = 0.02
"""A that an atom of a structure is from that of its label at most, once one lies upon the other;
points of scans are farther from each other. The energy changes by 0.2 eV over such a way where
bonds are squeezed, so the potential's is taken of the labelled structure itself."""

LEVEL_ERROR: Final = 0.01
"""eV RMS by which labels may differ from those of the same frames in the data, after their mean:
two programs and their grids differ by 0.1 to 3 meV, methods by ten times that."""

REPEATED: Final = 3
REPEATED_WITHIN: Final = 1e-3
"""Frames of the data that are written beside structures to label, to see whether labels are of
their level, and A within which an atom is where it was."""

LABEL_NAME: Final = "its label"

_NOTHING: Final = 1e-6
_NEVER: Final = 1e6
"""eV, and A between atoms that are not alike."""


def distances_to(positions: Array, reference: Array, numbers: NDArray[np.int64]) -> Array:
    """A of the farthest atom of structures (M, N, 3) from a reference (N, 3) laid upon each.

    Turned and mirrored copies have the same energy, and so the distance 0, as have those in which
    hydrogens of a group changed places. Beyond `SAME` it is a lower bound.

    Args:
        positions: of the structures, A.
        reference: A.
        numbers: (N,) atomic numbers of both.
    """
    places = positions - positions.mean(axis=1, keepdims=True)
    others = reference - reference.mean(axis=0)
    # Atoms of one structure are as far from its middle, which leaves few to lay upon each other.
    farthest = np.zeros(len(places))
    for number in np.unique(numbers):
        same = numbers == number
        lengths = np.sort(np.linalg.norm(places[:, same], axis=2), axis=1)
        apart = np.abs(lengths - np.sort(np.linalg.norm(others[same], axis=1)))
        farthest = np.maximum(farthest, apart.max(axis=1))
    for place in np.flatnonzero(farthest <= SAME):
        orders = [places[place], *_reordered(places[place], others, numbers)]
        farthest[place] = min(_farthest(order, others) for order in orders)
    return farthest


def _farthest(places: Array, others: Array) -> float:
    """A between the farthest atoms of two centred structures (N, 3), one laid upon the other."""
    left, _, right = np.linalg.svd(places.T @ others)
    return float(np.linalg.norm(places @ (left @ right) - others, axis=1).max())


def _reordered(places: Array, others: Array, numbers: NDArray[np.int64]) -> Iterator[Array]:
    """Structures (N, 3) whose like atoms are in the order of another one, as heavy atoms lie.

    One is turned onto the other and one is mirrored too, which flat ones could be either way.
    """
    heavy = numbers != HYDROGEN
    if heavy.sum() < 3:
        return
    own, other = places - places[heavy].mean(axis=0), others - others[heavy].mean(axis=0)
    left, _, right = np.linalg.svd(own[heavy].T @ other[heavy])
    for _ in range(2):
        apart = np.linalg.norm((own @ (left @ right))[:, None] - other, axis=2)
        apart[numbers[:, None] != numbers] = _NEVER
        yield places[linear_sum_assignment(apart.T)[1]]
        left[:, -1] *= -1.0


def nearest_frames(
    systems: Sequence[System], frames: Sequence[LabelledFrame], within: float = SAME
) -> NDArray[np.int64]:
    """Place of the frame that each system (M,) is the structure of, or -1.

    Args:
        systems: structures.
        frames: of which they may be.
        within: A between an atom of both, `SAME` at most.
    """
    groups: dict[tuple[bytes, float], list[int]] = {}
    for place, system in enumerate(systems):
        key = system.numbers.tobytes(), float(system.charge or 0.0)
        if not system.pbc.any():
            groups.setdefault(key, []).append(place)
    best, closest = np.full(len(systems), -1), np.full(len(systems), within)
    stacks = {key: np.array([systems[place].positions for place in groups[key]]) for key in groups}
    for number, frame in enumerate(frames):
        key = frame.numbers.astype(np.int64).tobytes(), float(frame.charge)
        if key not in groups or frame.pbc.any():
            continue
        places = np.array(groups[key])
        distances = distances_to(stacks[key], frame.positions, frame.numbers)
        nearer = places[distances <= closest[places]]
        closest[nearer] = distances[distances <= closest[places]]
        best[nearer] = number
    return best


class Labels:
    """Labelled structures, and the energies of a potential there."""

    def __init__(self, frames: Sequence[LabelledFrame], evaluate: Evaluate) -> None:
        """Evaluates all frames, which have energies; syncs."""
        self._frames = frames
        own = evaluate([frame.system() for frame in frames], "labels") if frames else []
        labels = [frame.energy for frame in frames]
        self._errors = np.array([one.energy for one in own]) - np.array(labels, dtype=np.float64)

    def __len__(self) -> int:
        return len(self._frames)

    def errors(self, systems: Sequence[System]) -> Array:
        """(M,) eV, energies of the potential less labels of the same structures.

        They share a constant; NaN where a structure has no label.
        """
        places = nearest_frames(systems, self._frames)
        errors = np.full(len(places), np.nan)
        errors[places >= 0] = self._errors[places[places >= 0]]
        return errors


@dataclass(frozen=True, eq=False)
class Rest:
    """The structure that energies are counted from, eV.

    Attributes:
        energy: by the potential.
        judge: by the judge; NaN without one.
        error: of the potential against the label, up to a constant; NaN without a label.
    """

    energy: float
    judge: float
    error: float = math.nan


@dataclass(frozen=True, eq=False)
class Judged:
    """What energies of structures (M,) are held against, eV above rest.

    Attributes:
        energy: by the label where there is one, else by the judge; NaN without either.
        judge: by the judge alone.
        labelled: which have a label.
    """

    energy: Array
    judge: Array
    labelled: NDArray[np.bool_]

    @classmethod
    def of(cls, energy: Array, judge: Array, errors: Array) -> "Judged":
        """Puts labels before the judge.

        Args:
            energy: (M,) by the potential, eV above rest.
            judge: (M,) by the judge.
            errors: (M,) of the potential less its error at rest; NaN without a label.
        """
        labelled = np.isfinite(errors)
        return cls(np.where(labelled, energy - errors, judge), judge, labelled)

    @property
    def counted(self) -> NDArray[np.bool_]:
        """All that is judged but the structure that others are counted from, on most paths."""
        return np.isfinite(self.energy) & (np.abs(self.energy) > _NOTHING)

    @classmethod
    def together(cls, parts: Sequence["Judged"]) -> "Judged":
        """Of all structures of several scans."""
        rows = ([getattr(part, name) for part in parts] for name in ("energy", "judge", "labelled"))
        return cls(*map(np.concatenate, rows))

    def names(self) -> str:
        """By whom structures are judged."""
        by = {self.name(int(place)) for place in np.flatnonzero(self.counted)}
        return " or ".join(sorted(by)) or JUDGE_NAME

    def name(self, place: int) -> str:
        """By whom a structure is judged."""
        return LABEL_NAME if self.labelled[place] else JUDGE_NAME


def rest_of(system: System, energy: float, judge: Judge | None, labels: Labels) -> Rest:
    """Energies of the structure that others are counted from; `energy` is the potential's."""
    judged = float(judge([system])[0]) if judge else math.nan
    return Rest(energy, judged, float(labels.errors([system])[0]))


def labels_text(energy: Array, judged: Judged) -> str:
    """How many structures have labels, and how far the potential and the judge are from these.

    Args:
        energy: (M,) by the potential, eV above rest.
        judged: see `Judged`.
    """
    known = judged.counted & judged.labelled
    if not known.any():
        return ""
    own, other = (
        float(np.abs((values - judged.energy)[known & np.isfinite(values)]).max(initial=0.0))
        for values in (energy, judged.judge)
    )
    verb = "has a label" if known.sum() == 1 else "have labels"
    text = f" {known.sum()} of {judged.counted.sum()} structures {verb}, at most {own:.2f} eV off"
    return text + (f", {JUDGE_NAME} {other:.2f}." if np.isfinite(judged.judge).any() else ".")


def check_labels(name: str, labels: Sequence[LabelledFrame], molecules: Sequence[System]) -> None:
    """Raises InputError for labels that cannot judge any of some molecules.

    Args:
        name: of the file.
        labels: all that it holds.
        molecules: that are scanned.
    """
    lacking = [place for place, frame in enumerate(labels) if not math.isfinite(frame.energy)]
    if lacking:
        raise InputError(
            f"{name} has no energy for {len(lacking)} of {len(labels)} structures "
            f"({name_some(lacking)}); label them, or leave them out."
        )
    if not of_molecules(labels, molecules):
        others = {hill_formula(frame.numbers.tolist()) for frame in labels}
        scanned = {hill_formula(system.numbers.tolist()) for system in molecules}
        raise InputError(
            f"{name} labels {name_some(sorted(others))}, and no molecule that is scanned "
            f"({name_some(sorted(scanned))}) with its atoms in their order and its charge; give "
            "structures that --write-structures wrote."
        )


def of_molecules(
    labels: Sequence[LabelledFrame], molecules: Sequence[System]
) -> list[LabelledFrame]:
    """Labels of molecules in vacuum with the same atoms in the same order, or of two copies."""
    keys = {
        (np.tile(system.numbers, copies).tobytes(), copies * float(system.charge or 0.0))
        for system in molecules
        for copies in (1, 2)
    }
    return [
        frame
        for frame in labels
        if not frame.pbc.any()
        and (frame.numbers.astype(np.int64).tobytes(), float(frame.charge)) in keys
    ]


def labels_check(
    name: str,
    labels: Sequence[LabelledFrame],
    frames: Sequence[LabelledFrame],
    training: Sequence[LabelledFrame],
) -> tuple[Check, list[LabelledFrame]]:
    """Whether labels are of the level of the data, and those that may judge.

    Args:
        name: of their file.
        labels: of molecules that are scanned.
        frames: of the data.
        training: frames trained on, if known, which judge nothing.
    """
    # Frames are many and labels few, so that all frames are laid upon each label at once.
    near = nearest_frames([frame.system() for frame in training], labels)
    trained = np.isin(np.arange(len(labels)), near)
    kept = [frame for frame, out in zip(labels, trained, strict=True) if not out]
    known = [frame for frame in (*frames, *training) if math.isfinite(frame.energy)]
    places = nearest_frames([frame.system() for frame in known], labels, REPEATED_WITHIN)
    repeated = dict(zip(places.tolist(), known, strict=True))
    apart = np.array(
        [labels[place].energy - frame.energy for place, frame in repeated.items() if place >= 0]
    )
    error = float(apart.std()) if len(apart) > 1 else math.nan
    numbers: dict[str, Any] = {
        "structures": len(labels),
        "trained_on": int(trained.sum()),
        "frames_of_the_data": len(apart),
        "rmse_eV": round(error, 5) if math.isfinite(error) else None,
    }
    text = f"{len(labels)} structures of {name}"
    if trained.any():
        text += f", {trained.sum()} of them trained on, which judge nothing"
    if len(apart) < 2:
        text += "; fewer than two of them are frames of the data, so nothing tells their level."
        return Check("labels", Verdict.LOOK, text, numbers), kept
    text += f"; {len(apart)} are frames of the data, whose labels differ by {1e3 * error:.2g} meV"
    text += " (RMS, after their mean)"
    if error > LEVEL_ERROR:
        text += ", so that they are of another level and judge nothing."
        return Check("labels", Verdict.LOOK, text, numbers), []
    return Check("labels", Verdict.OK, f"{text}.", numbers), kept


def repeated_frames(frames: Sequence[LabelledFrame]) -> dict[str, System]:
    """A few labelled frames of molecules, whose new labels tell the level; by name."""
    known = [frame for frame in frames if math.isfinite(frame.energy) and not frame.pbc.any()]
    chosen = evenly_spaced(known, REPEATED)
    return {f"frame of the data {number + 1}": one.system() for number, one in enumerate(chosen)}
