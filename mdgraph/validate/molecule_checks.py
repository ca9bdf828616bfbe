"""Molecules at rest and along scans, held against a judge: minima, vibrations, holes and walls.

Each scan begins at a relaxed structure. A potential and its judge are compared by their energies
above that of the lowest relaxed structure known of the same atoms.
"""

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from mdgraph.data.dataset import LabelledFrame
from mdgraph.engine import FIRE
from mdgraph.engine.batches import Evaluate, evaluate_with
from mdgraph.engine.calculation import as_evaluator
from mdgraph.engine.relaxation import Relaxed, relax
from mdgraph.errors import MDGraphError
from mdgraph.precision import precision_named
from mdgraph.system import System, hill_formula
from mdgraph.validate.judge import JUDGE_NAME, Judge
from mdgraph.validate.labels import (
    LABEL_NAME,
    SAME,
    Judged,
    Labels,
    Rest,
    labels_text,
    of_molecules,
    rest_of,
)
from mdgraph.validate.random_checks import random_molecule_checks
from mdgraph.validate.scans import JUDGED_TO, Molecule, Scan, all_scans, mode_scans
from mdgraph.validate.verdicts import Check, Curves, Verdict, worst
from mdgraph.validate.vibrations import brought_to_rest, normal_modes, vibration_check

logger = logging.getLogger(__name__)

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

HOLE: Final = 0.3
"""eV below the lowest relaxed energy known, where the judge is not so low. A trap that deep holds
for picoseconds at 600 K, and dynamics that falls in does not come back."""

WALL: Final = 0.5
WALL_SHARE: Final = 0.5
"""A wall is above the judge by more than the larger of 0.5 eV and this share of the judge's energy;
a pass is as far below it. GFN2-xTB errs by 0.1 eV on torsions and by 10 to 20 % on bonds that are
pulled; at 600 K 0.5 eV change a rate by four orders of magnitude."""

JUDGED_BELOW: Final = 3.0
"""eV; dynamics does not come to where the judge is higher, so no wall is there. Where it is higher,
a potential should still be above half of `JUDGED_BELOW`, else it has a pass there."""

DOUBT: Final = 0.3
DOUBT_SHARE: Final = 0.3
"""As for a wall, but for a look: beyond the errors of GFN2-xTB, and within those of a bad frame."""

SHOWN_BELOW: Final = 10.0
"""eV, of pictures."""

FALL: Final = 0.1
"""eV by which the energy of a bond or angle may fall on the way from its minimum, beyond what the
judge falls; it has no second minimum there. 0.1 eV is kT at 1200 K."""

MOST_MOLECULES: Final = 3
CONFORMERS: Final = 3
"""Compositions that are scanned, and frames of each that are relaxed."""

RELAXED_FORCE: Final = 0.02
RELAXED_STEPS: Final = 300
"""eV/A, largest force that FIRE leaves, and its steps; Newton's steps do the rest."""

TORSION_FORCE: Final = 0.05
TORSION_STEPS: Final = 60
"""eV/A and steps of FIRE; torsions need not be at rest, since both energies are of the same
structures."""

NO_JUDGE: Final = "nothing judged the energies"

RELAXED: Final = "relaxed torsions"

JUDGE_FREE: Final = ("bonds", "angles", "hydrogens")
"""Families in which an energy below the minimum is wrong without a judge."""


@dataclass(frozen=True, eq=False)
class ScanResult:
    """One scan and its verdict.

    Attributes:
        scan: what was evaluated.
        energy: (P,) eV above rest, by the potential.
        judged: (P,) what that is held against.
        verdict: the conclusion.
        reason: what is wrong in words; empty where nothing is.
        size: eV, of what is wrong.
        numbers: hole, wall, pass and fall, eV.
        doubtful: places that a label would decide.
    """

    scan: Scan
    energy: Array
    judged: Judged
    verdict: Verdict
    reason: str
    size: float
    numbers: dict[str, Any] = field(default_factory=dict)
    doubtful: Sequence[int] = ()

    def curves(self) -> Curves:
        """Both energies, without those far up."""
        lines = {"potential": self.energy}
        if np.isfinite(self.judged.judge).any():
            lines[JUDGE_NAME] = self.judged.judge
        if self.judged.labelled.any():
            lines["label"] = np.where(self.judged.labelled, self.judged.energy, np.nan)
        shown = {
            name: np.where(np.abs(energy) < SHOWN_BELOW, energy, np.nan)
            for name, energy in lines.items()
        }
        return Curves(self.scan.x, shown, self.scan.x_label, "energy above rest (eV)")


class MoleculeProbe:
    """A potential at hand: energies in batches, and relaxed structures."""

    def __init__(self, potential: Any, device: torch.device) -> None:
        """Takes what `as_evaluator` takes; runs in `mixed` precision."""
        self._device = device
        self._mixed = precision_named("mixed")
        self._evaluator = as_evaluator(potential, self._mixed, device)
        self.evaluate: Evaluate = evaluate_with(self._evaluator, device)

    def relax(
        self,
        systems: Sequence[System],
        steps: int,
        tolerance: float = RELAXED_FORCE,
    ) -> list[Relaxed]:
        """Relaxed structures in the order given; raises MDGraphError where one cannot be."""
        by_place = dict(
            relax(
                systems,
                ["structure"] * len(systems),
                self._evaluator,
                FIRE(tolerance),
                steps,
                device=self._device,
                precision=self._mixed,
            )
        )
        return [by_place[place] for place in range(len(systems))]


def molecule_checks(
    frames: Sequence[System],
    potential: Any,
    device: torch.device,
    *,
    judge: Judge | None,
    labels: Sequence[LabelledFrame] = (),
    quick: bool = False,
    seed: int = 0,
) -> Iterator[Check]:
    """Yields checks of up to three molecules that frames hold, each by a first conformer.

    Args:
        frames: molecules in vacuum of two atoms or more.
        potential: path, shipped name, potential or evaluator.
        device: of the evaluation.
        judge: gives energies that are independent of the potential's training; None leaves to
            physics what it can judge.
        labels: structures with energies of the level that the potential was trained on, which judge
            before `judge` does.
        quick: fewer points, and no relaxed torsions.
        seed: of the orientations of dimers.
    """
    groups: dict[tuple[int, ...], list[System]] = {}
    for frame in frames:
        groups.setdefault(tuple(sorted(frame.numbers.tolist())), []).append(frame)
    probe = MoleculeProbe(potential, device)
    several = [group for group in groups.values() if len(group[0]) > 1]
    for group in several[:MOST_MOLECULES]:
        try:
            own = Labels(of_molecules(labels, group[:1]), probe.evaluate)
            yield from _checks_of(group, probe, judge, own, quick, seed)
        except MDGraphError as error:
            name = f"scans of {hill_formula(group[0].numbers.tolist())}"
            yield Check(name, Verdict.WRONG, f"The scans ended early: {error}")


def _checks_of(
    group: Sequence[System],
    probe: MoleculeProbe,
    judge: Judge | None,
    labels: Labels,
    quick: bool,
    seed: int,
) -> Iterator[Check]:
    title = hill_formula(group[0].numbers.tolist())
    same = [frame for frame in group if np.array_equal(frame.numbers, group[0].numbers)]
    places = sorted({0} if quick else {0, len(same) // 2, len(same) - 1})[:CONFORMERS]
    starts = [same[place] for place in places]
    try:
        minima = probe.relax(starts, RELAXED_STEPS)
        energies = [minimum.result.energy for minimum in minima]
        start = starts[int(np.argmin(energies))]
        system, force, hessian = brought_to_rest(
            minima[int(np.argmin(energies))].system, probe.evaluate
        )
    except MDGraphError as error:
        yield Check(f"minimum of {title}", Verdict.WRONG, f"It cannot be relaxed: {error}")
        return
    yield _minimum_check(title, start, system, force, probe, judge, labels)
    yield vibration_check(title, system, hessian)
    molecule = Molecule(system)
    scans = all_scans(molecule, quick, seed)
    if np.isfinite(hessian).all():
        scans += mode_scans(molecule, *normal_modes(system, hessian), quick)
    if not quick:
        scans += _relaxed_torsions(molecule, scans, probe)
    curves = _energies(scans, probe)
    energy = probe.evaluate([system], "structure")[0].energy
    alone = rest_of(system, energy, judge, labels)
    lowest = _lowest(scans, curves, energy)
    rest = alone if lowest is None else rest_of(*lowest, judge, labels)
    counted_from = {"minimum": system}
    if lowest is not None:
        counted_from["lowest relaxed torsion"] = lowest[0]
    yield from _lacking_check(title, list(counted_from), (alone, rest), labels)
    needed = {f"{name} of {title}": one for name, one in counted_from.items()}
    results = []
    for scan, values, other in zip(scans, curves, _judge_energies(scans, judge), strict=True):
        # Pairs are judged by what binds them, not by twice what the judge says of one molecule.
        zero = rest if scan.copies == 1 else alone
        above, judged = values - scan.copies * zero.energy, other - scan.copies * zero.judge
        errors = labels.errors(scan.systems) - scan.copies * zero.error
        errors[~_inside(scan)] = np.nan
        results.append(judge_scan(scan, above, Judged.of(above, judged, errors)))
    for family in dict.fromkeys(scan.family for scan in scans):
        own = [result for result in results if result.scan.family == family]
        yield family_check(f"{family} of {title}", own, needed)
    wall = (WALL, WALL_SHARE, JUDGED_BELOW)
    yield from random_molecule_checks(
        title, system, rest, needed, probe.relax, judge, labels, HOLE, wall, quick
    )


def _lowest(
    scans: Sequence[Scan], curves: Sequence[Array], energy: float
) -> tuple[System, float] | None:
    """The lowest of all relaxed torsions and its energy, if that is below the energy at rest."""
    relaxed = [
        (system, value)
        for scan, values in zip(scans, curves, strict=True)
        if scan.family == RELAXED
        for value, system in zip(values.tolist(), scan.systems, strict=True)
        if value < energy
    ]
    return min(relaxed, key=lambda one: one[1], default=None)


def _lacking_check(
    title: str, wanted: Sequence[str], rests: Sequence[Rest], labels: Labels
) -> Iterator[Check]:
    """A look where labels lack a structure that energies are counted from."""
    lacking = [
        name
        for name, rest in zip(wanted, rests, strict=False)
        if len(labels) and not math.isfinite(rest.error)
    ]
    if lacking:
        text = f"None is within {SAME:g} A of the {' or the '.join(lacking)}, from which energies "
        text += "are counted, so they judge nothing that is counted from it; write it by "
        text += "--write-structures, and label it."
        yield Check(f"labels of {title}", Verdict.LOOK, text)


def _minimum_check(
    title: str,
    start: System,
    system: System,
    force: float,
    probe: MoleculeProbe,
    judge: Judge | None,
    labels: Labels,
) -> Check:
    name = f"minimum of {title}"
    before, after = Molecule(start), Molecule(system)
    energies = [result.energy for result in probe.evaluate([start, system], name)]
    fell = energies[0] - energies[1]
    if not math.isfinite(fell):
        return Check(name, Verdict.WRONG, "The energy at rest is not finite.")
    rise = float(np.diff(judge([start, system]))[0]) if judge is not None else math.nan
    by, label = JUDGE_NAME, -fell - float(np.diff(labels.errors([start, system]))[0])
    if math.isfinite(label):
        by, rise = LABEL_NAME, label
    numbers: dict[str, Any] = {
        "fell_eV": round(fell, 4),
        "judge_rises_eV": _rounded(rise),
        "labelled": math.isfinite(label),
        "largest_force_eV_per_A": round(force, 5),
        "bonds_lost": [before.label(*bond) for bond in before.bonds if bond not in after.bonds],
        "bonds_made": [after.label(*bond) for bond in after.bonds if bond not in before.bonds],
    }
    text = f"A frame relaxes by {fell:.2f} eV"
    if rise > HOLE:
        text += f"; by {by} it rises by {rise:.2f} eV there."
        wanted = {} if math.isfinite(label) else {f"frame of {title}": start, name: system}
        return Check(name, Verdict.WRONG, text, numbers, structures=wanted)
    text += f", by {by} {-rise:.2f} eV" if math.isfinite(rise) else ""
    look = False
    if before.bonds != after.bonds:
        look, text = True, f"{text}; its bonds change"
    if force > RELAXED_FORCE:
        look, text = True, f"{text}; forces are still {force:.3g} eV/A"
    return Check(name, Verdict.LOOK if look else Verdict.OK, f"{text}.", numbers)


def _energies(scans: Sequence[Scan], probe: MoleculeProbe) -> list[Array]:
    """(P,) eV of each scan, evaluated together."""
    systems = [system for scan in scans for system in scan.systems]
    values = np.array([result.energy for result in probe.evaluate(systems, "scan")])
    return np.split(values, np.cumsum([len(scan.systems) for scan in scans])[:-1])


def _judge_energies(scans: Sequence[Scan], judge: Judge | None) -> list[Array]:
    """(P,) eV of each scan, NaN where nothing is judged."""
    rows = [np.full(len(scan.x), np.nan) for scan in scans]
    if judge is None:
        return rows
    # In one call, so that no thread waits at the end of each scan; the structure at rest, which
    # most scans pass, is judged once.
    places: dict[bytes, int] = {}
    different: list[System] = []
    numbers: list[list[int]] = []
    for scan in scans:
        own = [scan.systems[place] for place in np.flatnonzero(scan.judged)]
        keys = [system.numbers.tobytes() + system.positions.tobytes() for system in own]
        for key, system in zip(keys, own, strict=True):
            if key not in places:
                places[key] = len(different)
                different.append(system)
        numbers.append([places[key] for key in keys])
    energies = judge(different)
    for scan, row, own_places in zip(scans, rows, numbers, strict=True):
        row[scan.judged] = energies[own_places]
    return rows


def _relaxed_torsions(
    molecule: Molecule, scans: Sequence[Scan], probe: MoleculeProbe
) -> list[Scan]:
    """Torsions and turns with all atoms relaxed but the four that say the angle.

    Where a turned structure has other bonds, atoms clash, and it is left out.
    """
    torsions = [
        (
            scan,
            [
                place
                for place in np.flatnonzero(scan.judged).tolist()
                if _same_bonds(scan, place, molecule)
            ],
        )
        for scan in scans
        if scan.family in ("torsions", "turns")
    ]
    systems = [
        system.replace(fixed=np.isin(np.arange(len(system)), scan.moved))
        for scan, places in torsions
        for system in (scan.systems[place] for place in places)
    ]
    if not systems:
        return []
    relaxed = iter(probe.relax(systems, TORSION_STEPS, TORSION_FORCE))
    return [
        Scan(
            RELAXED,
            scan.name,
            scan.x[places],
            [next(relaxed).system for _ in places],
            np.full(len(places), True),
            scan.x_label,
        )
        for scan, places in torsions
    ]


def _same_bonds(scan: Scan, place: int, molecule: Molecule) -> bool:
    return Molecule(scan.systems[place]).bonds == molecule.bonds


def _inside(scan: Scan) -> Mask:
    """Points that are judged where anything judges: all, but of bonds those up to 1.6."""
    inside: Mask = scan.judged | ((scan.x <= JUDGED_TO) | (scan.family != "bonds"))
    return inside


def judge_scan(scan: Scan, energy: Array, judged: Judged) -> ScanResult:
    """The verdict of one scan.

    Args:
        scan: its structures.
        energy: (P,) eV above the lowest relaxed structure known, by the potential.
        judged: (P,) likewise by label and judge.
    """
    inside, judge = _inside(scan), judged.energy
    at = np.isfinite(judge)
    below = np.where(inside, -energy, -np.inf)
    with np.errstate(invalid="ignore"):
        judge_low = judge < -HOLE
        reach = np.minimum(judge, JUDGED_BELOW)
        above = np.where(at & (judge < JUDGED_BELOW), energy - judge, -np.inf)
        under = np.where(at, reach - energy, -np.inf)
    limit, doubt = (
        np.where(at, np.maximum(size, share * reach), np.inf)
        for size, share in ((WALL, WALL_SHARE), (DOUBT, DOUBT_SHARE))
    )
    certain = at | (scan.family in JUDGE_FREE)
    # Of one judge alone: a step from one to another would hide as large a fall of the potential.
    whole = judge if judged.labelled[scan.judged].all() else judged.judge
    fall = max(0.0, _fall(scan, np.where(inside, energy, np.nan)) - _fall(scan, whole))
    numbers = {
        "path": scan.name,
        "lowest_eV": _rounded(float(-below.max())),
        "above_judge_eV": _rounded(float(above.max())),
        "below_judge_eV": _rounded(float(under.max())),
        "fall_eV": _rounded(fall),
    }
    if judged.labelled.any():
        numbers |= _label_numbers(scan, energy, judged)
    hole = np.where(certain & ~judge_low, below, -np.inf)
    apart = np.maximum(above, under)

    def result(
        verdict: Verdict, reason: str, size: float, places: Mask | None = None
    ) -> ScanResult:
        doubtful = [] if places is None else np.flatnonzero(places & ~judged.labelled).tolist()
        return ScanResult(scan, energy, judged, verdict, reason, size, numbers, doubtful)

    if not np.isfinite(energy[inside]).all():
        return result(Verdict.WRONG, f"{scan.name} has energies that are not finite", math.inf)
    places = (hole > HOLE) | (apart > doubt)
    candidates = []
    for excess, bounds, word in (
        (hole, np.full(len(energy), HOLE), "hole of {size:.2f} eV"),
        (above, limit, "wall, {size:.2f} eV above {judge}"),
        (under, limit, "pass, {size:.2f} eV below {judge}"),
    ):
        beyond = np.where(excess > bounds, excess, -np.inf)
        place = int(beyond.argmax())
        if beyond[place] > 0.0:
            size = float(beyond[place])
            text = word.format(size=size, judge=judged.name(place))
            candidates.append((size, f"{text}, {scan.where(place)}"))
    if candidates:
        size, reason = max(candidates)
        return result(Verdict.WRONG, reason, size, places)
    if (apart > doubt).any():
        place = int(np.where(apart > doubt, apart, -np.inf).argmax())
        text = f"{apart[place]:.2f} eV from {judged.name(place)}, {scan.where(place)}"
        return result(Verdict.LOOK, text, float(apart[place]), places)
    if fall > FALL:
        text = f"{scan.name} falls by {fall:.2f} eV on its way up"
        return result(Verdict.LOOK, text, fall, scan.judged)
    unknown = np.where(at, -np.inf, below)
    if (unknown > HOLE).any() and not np.isfinite(judged.judge).any():
        place = int(unknown.argmax())
        text = f"{below[place]:.2f} eV below the minimum, {scan.where(place)}"
        return result(Verdict.LOOK, text, float(below[place]), unknown > HOLE)
    return result(Verdict.OK, "", 0.0)


def _label_numbers(scan: Scan, energy: Array, judged: Judged) -> dict[str, Any]:
    """What labels say of a scan, and how far the judge lies from them."""
    places = np.flatnonzero(judged.labelled).tolist()
    return {
        "labelled": [scan.where(place) for place in places],
        "label_eV": np.round(judged.energy[places], 4).tolist(),
        "above_label_eV": np.round((energy - judged.energy)[places], 4).tolist(),
        "judge_above_label_eV": [
            _rounded(float(value)) for value in (judged.judge - judged.energy)[places]
        ],
    }


def _fall(scan: Scan, energy: Array) -> float:
    """eV, largest fall on the way from the minimum to either end, of bonds and angles; else 0."""
    if scan.family not in ("bonds", "angles") or not np.isfinite(energy).any():
        return 0.0
    known = energy[np.isfinite(energy)]
    lowest = int(
        np.abs(scan.x[np.isfinite(energy)] - (1.0 if scan.family == "bonds" else 0.0)).argmin()
    )
    return max(
        float((np.maximum.accumulate(side) - side).max())
        for side in (known[lowest:], known[lowest::-1])
    )


def family_check(
    name: str, results: Sequence[ScanResult], needed: Mapping[str, System] | None = None
) -> Check:
    """One line for all scans of a family, with the pictures of each.

    Args:
        name: of the line.
        results: of its scans.
        needed: structures that labels must hold too, by name.
    """
    verdict = worst(result.verdict for result in results)
    order = list(Verdict)[::-1]
    ranked = sorted(results, key=lambda result: (order.index(result.verdict), -result.size))
    unlike = [result for result in ranked if result.verdict is not Verdict.OK]
    every = Judged.together([result.judged for result in results])
    judged = np.isfinite(every.judge).any() or all(
        result.judged.labelled[result.scan.judged].all() for result in results
    )
    count = f"{len(results)} path{'s' * (len(results) != 1)}"
    if unlike:
        text = f"{len(unlike)} of {count}: {unlike[0].reason}."
    elif judged:
        apart = max(
            (
                value
                for result in results
                for value in (result.numbers["above_judge_eV"], result.numbers["below_judge_eV"])
                if value is not None
            ),
            default=0.0,
        )
        text = f"{count} without hole or wall, at most {apart:.2f} eV from {every.names()}."
    else:
        verdict, text = Verdict.LOOK, f"{count} without a hole, but {NO_JUDGE}."
    text += labels_text(np.concatenate([result.energy for result in results]), every)
    panels = {
        f"{result.scan.name}: {result.verdict}": result.curves() for result in ranked[:MOST_PANELS]
    }
    structures = {
        f"{name}: {result.scan.where(place)}": result.scan.systems[place]
        for result in ranked
        for place in result.doubtful
    }
    if structures:
        structures = {**(needed or {}), **structures}
    numbers = {"paths": [r.numbers for r in ranked]}
    return Check(name, verdict, text, numbers, panels=panels, structures=structures)


MOST_PANELS: Final = 24
"""Paths of a family that are drawn, the worst first."""


def _rounded(value: float) -> float | None:
    return round(value, 4) if math.isfinite(value) else None
