"""Labelled frames: errors of energies, forces and stress, and calibration of sigma.

Errors are also those of the frames alone that training does not hold almost the same.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from mdgraph.data import LabelledFrame
from mdgraph.data.dataset import evenly_spaced
from mdgraph.data.similarity import NEAR, describe_frame, response
from mdgraph.engine.batches import Batches, Evaluate, evaluate_with
from mdgraph.engine.calculation import EvaluationResult
from mdgraph.engine.uncertainty import LastLayer
from mdgraph.errors import InputError
from mdgraph.models import Domain, PotentialModule
from mdgraph.precision import precision_named
from mdgraph.system import System
from mdgraph.units import SYMBOLS
from mdgraph.validate.crystals import GPA
from mdgraph.validate.verdicts import Check, Curves, Verdict, worst

Array = NDArray[np.float64]

FORCE_LOOK: Final = 0.1, 0.05
FORCE_WRONG: Final = 0.25, 0.1
"""Share of the RMS of the labels, and eV/A, that the RMSE of forces exceeds both: a semi-empirical
method without any training errs by a fifth on molecules, so that a quarter is nothing fitted. Below
0.1 eV/A thermal motion at 300 K, with forces of 1 eV/A, does not notice."""

ENERGY_LOOK: Final = 5e-3
ENERGY_WRONG: Final = 1e-2
"""eV an atom, RMSE: the latter is 0.3 eV for 30 atoms, the depth of a hole, and what tells phases
of a metal apart."""

OFFSET: Final = 0.3
"""Share of the RMSE of energies that is left without their mean error, below which that mean is
told apart: other references move all energies alike, and no dynamics notices."""

SLOPE_LOOK: Final = 0.03
SLOPE_WRONG: Final = 0.08
"""By which the slope of forces over their labels differs from 1. Errors of fits lower it by the
square of their share, 0.01 where forces err by a tenth; more is a factor, such as a wrong unit."""

SLOPE_FROM: Final = 0.01
"""eV/A, RMS of labels from which they have a slope: those of a free atom, or of a crystal whose
atoms symmetry holds, are rounding."""

STRESS_LOOK: Final = 0.25, 0.5
"""Share of the RMS of the labels, and GPa, that the RMSE of stresses exceeds both: a metal of
100 GPa is half a percent off its volume then. Labels of dynamics may hold the pressure of an ideal
gas, some 0.4 GPa in water at 300 K."""

STRESS_SLOPE: Final = 0.5, 2.0
STRESS_WRONG: Final = 1.0
"""Slope of stresses over their labels beyond which these are of another unit or sign, or nothing
was learned, and GPa of the RMSE, above what small labels are off by."""

CONSISTENT: Final = 1e-3
INCONSISTENT: Final = 1e-2
"""Share by which forces may differ from differences of energies, RMS: forces that are 1 % off make
energy at constant energy drift."""

SIZES: Final = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, np.inf)
"""eV/A, bounds of the sizes of labels by which errors of forces are told."""

FEWEST: Final = 10
"""Forces or frames in a group or range that has a verdict of its own."""

Z_SPREAD: Final = (0.5, 2.0)
"""Bounds of the spread of energy errors in units of sigma, between which it is calibrated."""

MOST_FRAMES: Final = 2000
QUICK_FRAMES: Final = 200
SIGMA_FRAMES: Final = 500
QUICK_SIGMA_FRAMES: Final = 60
CONSISTENCY_FRAMES: Final = 6
"""Frames that are evaluated, evenly spaced, those whose sigma is, which takes longer, and those
whose forces are held against energies."""

DISPLACEMENT: Final = 5e-4
STRAIN: Final = 2e-4
ROUGH: Final = 0.03
"""A and 1 by which frames are changed for differences, and A before, away from minima."""
ALIKE_SHARE: Final = 0.1
"""Share of the frames beyond which errors are looked at: an error of zero there would lower the
mean by as much, which is the size of a step between two recipes."""

_ROWS: Final = 512
"""Training frames whose descriptors are in memory together."""


def frame_checks(
    frames: Sequence[LabelledFrame],
    potential: Any,
    device: torch.device,
    *,
    domain: Domain | None = None,
    quick: bool = False,
    seed: int = 0,
) -> Iterator[Check]:
    """Yields checks on labelled frames.

    Args:
        frames: one or more.
        potential: path, shipped name, potential or evaluator.
        device: of the evaluation.
        domain: of the potential, for sigma; None where it is not known.
        quick: fewer frames.
        seed: of displacements.
    """
    most = QUICK_FRAMES if quick else MOST_FRAMES
    chosen = evenly_spaced(frames, most)
    systems = [frame.system() for frame in chosen]
    results = evaluate_with(potential, device)(systems, "frame")
    energy = np.array([(frame.energy, r.energy) for frame, r in zip(chosen, results, strict=True)])
    atoms = np.array([len(frame) for frame in chosen])
    if np.isfinite(energy[:, 0]).any():
        yield _energy_check(chosen, energy / atoms[:, None])
    rows = ForceRows(chosen, results)
    if len(rows.labels):
        yield _force_check(rows)
        yield _slope_check(rows)
        yield _split_check("forces by group", rows, rows.groups)
        yield _split_check("forces by element", rows, rows.elements)
        yield _size_check(rows)
    stress = _stress_check(chosen, systems, results)
    if stress is not None:
        yield stress
    yield from consistency_checks(systems, potential, device, seed)
    if domain is not None and domain.calibrated and isinstance(potential, PotentialModule):
        most = QUICK_SIGMA_FRAMES if quick else SIGMA_FRAMES
        places = evenly_spaced(range(len(systems)), most)
        structures = [systems[place] for place in places]
        check = _sigma_check(structures, energy[places], potential, domain, device)
        if check is not None:
            yield check


class ForceRows:
    """Labels and errors of the forces on all atoms that have one.

    Attributes:
        labels: (A, 3) eV/A.
        predicted: (A, 3) eV/A.
        groups: (A,) name of each atom's frame.
        elements: (A,) symbols.
    """

    def __init__(
        self, frames: Sequence[LabelledFrame], results: Sequence[EvaluationResult]
    ) -> None:
        """Leaves out atoms whose label is missing."""
        pairs = [
            (frame, frame.forces, result)
            for frame, result in zip(frames, results, strict=True)
            if frame.forces is not None
        ]
        labels = np.concatenate([np.zeros((0, 3)), *(forces for _, forces, _ in pairs)])
        known = np.isfinite(labels).all(axis=1)
        self.labels = labels[known]
        self.predicted = np.concatenate(
            [np.zeros((0, 3)), *(result.forces for _, _, result in pairs)]
        )[known]
        names = [frame.group or "unnamed" for frame, _, _ in pairs for _ in range(len(frame))]
        self.groups = np.array(names, dtype=object)[known]
        numbers = [SYMBOLS[number] for frame, _, _ in pairs for number in frame.numbers]
        self.elements = np.array(numbers, dtype=object)[known]

    def errors(self, mask: NDArray[np.bool_]) -> dict[str, Any]:
        """RMSE, MAE and RMS of the labels of some atoms, meV/A."""
        error = 1e3 * (self.predicted - self.labels)[mask]
        return {
            "forces": int(mask.sum()),
            "rmse_meV_per_A": _rounded(np.sqrt(np.mean(error**2))),
            "mae_meV_per_A": _rounded(np.abs(error).mean()),
            "labels_rms_meV_per_A": _rounded(1e3 * np.sqrt(np.mean(self.labels[mask] ** 2))),
        }


def force_verdict(errors: dict[str, Any]) -> Verdict:
    """Of a row of `ForceRows.errors`."""
    error, size = errors["rmse_meV_per_A"], errors["labels_rms_meV_per_A"]
    if error is None:
        return Verdict.WRONG
    for verdict, (share, least) in ((Verdict.WRONG, FORCE_WRONG), (Verdict.LOOK, FORCE_LOOK)):
        if error > max(share * size, 1e3 * least):
            return verdict
    return Verdict.OK


def _energy_check(frames: Sequence[LabelledFrame], energy: Array) -> Check:
    """Of (M, 2) eV an atom, label and prediction."""
    known = np.isfinite(energy[:, 0])
    error = 1e3 * (energy[known, 1] - energy[known, 0])
    groups = np.array([frame.group or "unnamed" for frame in frames], dtype=object)[known]
    numbers = _energy_errors(error)
    numbers["by_group"] = {
        str(name): _energy_errors(error[groups == name]) for name in dict.fromkeys(groups)
    }
    name = "energies"
    if not np.isfinite(error).all():
        return Check(name, Verdict.WRONG, "Energies of frames are not finite.", numbers)
    rmse, bias = numbers["rmse_meV_per_atom"], numbers["mean_meV_per_atom"]
    text = f"RMSE {rmse:.3g} meV/atom over {len(error)} frames"
    rest = float(error.std())
    if _energy_verdict(rmse) is not Verdict.OK and rest < OFFSET * rmse:
        text += f"; all share an offset of {bias:.4g}, without which it is {rest:.3g}."
        return Check(name, worst([Verdict.LOOK, _energy_verdict(rest)]), text, numbers)
    verdicts = {
        group: _energy_verdict(errors["rmse_meV_per_atom"])
        for group, errors in numbers["by_group"].items()
        if errors["frames"] >= FEWEST
    }
    errors = {
        group: numbers["by_group"][group]["rmse_meV_per_atom"]
        for group, verdict in verdicts.items()
        if verdict is not Verdict.OK
    }
    if errors and len(numbers["by_group"]) > 1:
        group = max(errors, key=lambda name: errors[name])
        text += f", {errors[group]:.3g} in {group}"
    return Check(name, worst([_energy_verdict(rmse), *verdicts.values()]), f"{text}.", numbers)


def _energy_errors(error: Array) -> dict[str, Any]:
    """Of errors in meV an atom."""
    return {
        "frames": len(error),
        "rmse_meV_per_atom": _rounded(np.sqrt(np.mean(error**2))),
        "mae_meV_per_atom": _rounded(np.abs(error).mean()),
        "mean_meV_per_atom": _rounded(error.mean()),
    }


def _energy_verdict(rmse: float) -> Verdict:
    """Of an RMSE in meV an atom."""
    return Verdict.by_limits(rmse, (1e3 * ENERGY_LOOK, 1e3 * ENERGY_WRONG))


def _force_check(rows: ForceRows) -> Check:
    errors = rows.errors(np.full(len(rows.labels), True))
    verdict = force_verdict(errors)
    if errors["rmse_meV_per_A"] is None:
        return Check("forces", verdict, "Forces of frames are not finite.", errors)
    rmse, size = errors["rmse_meV_per_A"], errors["labels_rms_meV_per_A"]
    text = f"RMSE {rmse:.3g} meV/A, {rmse / max(size, 1e-9):.1%} of the labels' {size:.4g}."
    return Check("forces", verdict, text, errors)


def _slope_check(rows: ForceRows) -> Check:
    square = float((rows.labels**2).sum())
    slope = float((rows.labels * rows.predicted).sum()) / max(square, 1e-30)
    numbers = {"slope": _rounded(slope)}
    if not np.isfinite(slope):
        return Check("size of forces", Verdict.WRONG, "Forces are not finite.", numbers)
    if square < SLOPE_FROM**2 * rows.labels.size:
        text = f"The labels are below {1e3 * SLOPE_FROM:g} meV/A (RMS), which tells no slope."
        return Check("size of forces", Verdict.OK, text)
    apart = abs(slope - 1.0)
    verdict = Verdict.by_limits(apart, (SLOPE_LOOK, SLOPE_WRONG))
    return Check("size of forces", verdict, f"Forces are {slope:.3f} of their labels.", numbers)


def _split_check(name: str, rows: ForceRows, keys: NDArray[Any]) -> Check:
    """Errors of forces by the key of each atom."""
    table = {str(key): rows.errors(keys == key) for key in sorted(set(keys), key=str)}
    return _table_check(name, table)


def _table_check(name: str, table: dict[str, dict[str, Any]], least: float = 0.0) -> Check:
    """Errors of forces by key, as if labels had a least RMS in meV/A."""
    verdicts = {
        key: force_verdict(
            errors | {"labels_rms_meV_per_A": max(least, errors["labels_rms_meV_per_A"])}
        )
        if errors["forces"] >= FEWEST
        else Verdict.OK
        for key, errors in table.items()
    }
    verdict = worst(verdicts.values())
    rmse = {key: errors["rmse_meV_per_A"] or 0.0 for key, errors in table.items()}
    judged = [key for key in table if table[key]["forces"] >= FEWEST]
    key = max(
        (key for key in judged or table if verdicts[key] is verdict),
        key=lambda key: rmse[key] / max(table[key]["labels_rms_meV_per_A"], 1e-9),
    )
    text = f"RMSE {rmse[key]:.3g} meV/A for {key}, the worst share of its labels"
    text += f" ({table[key]['labels_rms_meV_per_A']:.4g}), of {len(table)}"
    if len(judged) < len(table):
        text += f", {len(table) - len(judged)} of fewer than {FEWEST} forces not judged"
    return Check(name, verdict, f"{text}.", {"rows": table})


def _size_check(rows: ForceRows) -> Check:
    size = np.linalg.norm(rows.labels, axis=1)
    table, middle, rmse = {}, [], []
    for low, high in pairwise(SIZES):
        mask = (size >= low) & (size < high)
        if mask.any():
            errors = rows.errors(mask)
            table[f"{low:g} to {high:g} eV/A" if high < np.inf else f"beyond {low:g} eV/A"] = errors
            middle.append(float(np.sqrt(np.mean(size[mask] ** 2))))
            rmse.append(errors["rmse_meV_per_A"] or np.nan)
    # Small forces lie in the same frames as large ones, and do not err less than these.
    whole = rows.errors(np.full(len(rows.labels), True))["labels_rms_meV_per_A"]
    check = _table_check("forces by size", table, whole)
    curves = Curves(
        np.array(middle), {"RMSE": np.array(rmse)}, "size of the label (eV/Å)", "RMSE (meV/Å)"
    )
    return Check(check.name, check.verdict, check.sentence, check.numbers, curves)


def _stress_check(
    frames: Sequence[LabelledFrame],
    systems: Sequence[System],
    results: Sequence[EvaluationResult],
) -> Check | None:
    """Errors of the stress, and its slope over the labels; None without labels."""
    pairs = [
        (frame.stress, -result.virial / system.volume)
        for frame, system, result in zip(frames, systems, results, strict=True)
        if frame.stress is not None and system.volume > 0.0 and np.isfinite(frame.stress).all()
    ]
    if not pairs:
        return None
    labels, predicted = np.swapaxes(np.array(pairs), 0, 1) / GPA
    rmse = float(np.sqrt(np.mean((predicted - labels) ** 2)))
    size = float(np.sqrt(np.mean(labels**2)))
    slope = float((labels * predicted).sum() / max((labels**2).sum(), 1e-30))
    numbers = {"rmse_meV_per_A3": _rounded(1e3 * rmse * GPA), "slope": _rounded(slope)}
    text = (
        f"RMSE {1e3 * rmse * GPA:.3g} meV/A^3 ({rmse:.3g} GPa) over {len(pairs)} frames, "
        f"{rmse / max(size, 1e-30):.1%} of the labels' {size:.3g} GPa."
    )
    share, least = STRESS_LOOK
    verdict = Verdict.LOOK if rmse > max(share * size, least) else Verdict.OK
    related = STRESS_SLOPE[0] < slope < STRESS_SLOPE[1]
    if not np.isfinite(rmse) or (rmse > STRESS_WRONG and not related):
        verdict = Verdict.WRONG
        text += f" Stresses are {slope:.3g} of their labels: look at unit and sign of these."
    return Check("stress", verdict, text, numbers)


def consistency_checks(
    systems: Sequence[System], potential: Any, device: torch.device, seed: int
) -> Iterator[Check]:
    """Yields whether forces, and stresses of crystals, are slopes of energies, in `double`.

    Args:
        systems: structures, of which some are taken.
        potential: path, shipped name, potential or evaluator.
        device: of the evaluation.
        seed: of displacements and strains.
    """
    random = np.random.default_rng(seed)
    rough = [
        system.replace(
            positions=system.positions + random.normal(scale=ROUGH, size=(len(system), 3))
        )
        for system in evenly_spaced(systems, CONSISTENCY_FRAMES)
    ]
    evaluate = evaluate_with(potential, device, "double")
    unmoved: dict[int, EvaluationResult] = {}

    def check(
        name: str,
        structures: Sequence[System],
        changed: Callable[[System, Array, float], System],
        work: Callable[[EvaluationResult, Array], float],
        changes: Sequence[Array],
        step: float,
    ) -> Check:
        both = [
            changed(system, change, sign * step)
            for system, change in zip(structures, changes, strict=True)
            for sign in (1.0, -1.0)
        ]
        try:
            energies = np.array([result.energy for result in evaluate(both, name)])
            fresh = [system for system in structures if id(system) not in unmoved]
            unmoved.update(zip(map(id, fresh), evaluate(fresh, name), strict=True))
        except InputError as error:
            return Check(name, Verdict.LOOK, f"They were not compared: {error}")
        slopes = (energies[::2] - energies[1::2]) / (2.0 * step)
        pairs = zip(structures, changes, strict=True)
        expected = np.array([work(unmoved[id(system)], change) for system, change in pairs])
        size = max(float(np.linalg.norm(slopes)), 1e-9)
        share = float(np.linalg.norm(slopes - expected)) / size
        numbers = {"share": float(f"{share:.3g}") if np.isfinite(share) else None}
        text = f"They differ from differences of energies by {share:.2g} of their size."
        verdict = Verdict.OK if share < CONSISTENT else Verdict.LOOK
        return Check(name, verdict if share < INCONSISTENT else Verdict.WRONG, text, numbers)

    yield check(
        "forces against energies",
        rough,
        lambda system, change, step: system.replace(positions=system.positions + step * change),
        lambda result, change: -float((result.forces * change).sum()),
        [random.normal(size=(len(system), 3)) for system in rough],
        DISPLACEMENT,
    )
    crystals = [system for system in rough if system.pbc.all()]
    if not crystals:
        return

    def strained(system: System, strain: Array, step: float) -> System:
        deformation = np.eye(3) + step * strain
        return system.replace(
            positions=system.positions @ deformation, cell=system.cell @ deformation
        )

    strains = [random.normal(size=(3, 3)) for _ in crystals]
    yield check(
        "stress against energies",
        crystals,
        strained,
        lambda result, strain: -float((result.virial * strain).sum()),
        [0.5 * (strain + strain.T) for strain in strains],
        STRAIN,
    )


def _sigma_check(
    systems: Sequence[System],
    energy: Array,
    potential: PotentialModule,
    domain: Domain,
    device: torch.device,
) -> Check | None:
    """Errors (M, 2) of energies in units of sigma; None where it cannot be had."""
    known = np.flatnonzero(np.isfinite(energy).all(axis=1))
    if not potential.has_latent or len(known) < FEWEST:
        return None
    precision = precision_named("mixed")
    layer = LastLayer(potential, domain, precision.network, device)
    chosen = [systems[place] for place in known.tolist()]
    batches = Batches(layer, device, precision).evaluate(chosen, ["frame"] * len(chosen))
    by_place = {place: result.energy for place, result in batches}
    sigma = np.array([by_place[place] for place in range(len(chosen))])
    z = (energy[known, 1] - energy[known, 0]) / sigma
    numbers = {
        "frames": len(z),
        "sigma_eV": _rounded(np.sqrt(np.mean(sigma**2))),
        "z_mean": _rounded(z.mean()),
        "z_rms": _rounded(np.sqrt(np.mean(z**2))),
        "within_1_sigma": _rounded(np.mean(np.abs(z) < 1.0)),
        "within_2_sigma": _rounded(np.mean(np.abs(z) < 2.0)),
    }
    spread = float(np.sqrt(np.mean(z**2)))
    text = (
        f"Errors are {spread:.2f} sigma (RMS); {np.mean(np.abs(z) < 1.0):.0%} lie within one and "
        f"{np.mean(np.abs(z) < 2.0):.0%} within two."
    )
    low, high = Z_SPREAD
    verdict = Verdict.OK if low <= spread <= high else Verdict.LOOK
    order = np.sort(np.abs(z))
    shares = (np.arange(len(z)) + 0.5) / len(z)
    normal = torch.erfinv(torch.from_numpy(shares)).numpy() * np.sqrt(2.0)
    curves = Curves(
        normal, {"errors": order, "ideal": normal}, "expected |error| / sigma", "|error| / sigma"
    )
    return Check("calibration of sigma", verdict, text, numbers, curves)


def _rounded(value: Any) -> float | None:
    return float(f"{value:.5g}") if np.isfinite(value) else None


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
    results = evaluate([frame.system() for frame in frames], "frame")
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
