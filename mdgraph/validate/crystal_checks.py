"""Checks of crystals: lattices, random structures, elasticity, defects, surfaces, phonons.

Each element that the data hold as a crystal of its own is probed in the phases fcc, hcp, bcc, sc
and diamond. One of them is the reference phase: what ASE's reference states say that the element
is, or else the phase of lowest energy. Its energy at rest is the zero of the curves, and the
properties beyond the curves are those of the reference phase. Of compounds the crystals at hand
are relaxed, squeezed and strained.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from ase import Atoms
from numpy.typing import NDArray

from mdgraph.errors import MDGraphError
from mdgraph.evaluators import Evaluator
from mdgraph.models import Potential
from mdgraph.system import System
from mdgraph.validate.crystals import (
    DIP,
    ENERGY_FROM,
    HOLE,
    J_PER_M2,
    PUBLISHED,
    SEARCHED,
    WALL,
    CrystalProbe,
    Phase,
    Value,
    elastic_tensor,
    expected_distance,
    ideal_crystal,
    lattice_constant,
    lattice_curve,
    nearest_distance,
    phases_at_rest,
    phonon_frequencies,
    reference_phase,
    slab,
    stacking_fault,
    supercell,
    with_cell,
)
from mdgraph.validate.random_checks import random_crystal_checks
from mdgraph.validate.verdicts import Check, Curves, Verdict, worst

Array = NDArray[np.float64]


SLACK: Final = 0.05
"""Share of the highest pressure so far by which it may fall as the crystal is squeezed; changes of
phase soften a crystal, and none takes back more."""

LATTICE: Final = (0.03, 0.1)
"""Shares by which a lattice constant may differ from the measured one before it is looked at, and
before it is wrong. PBE and the motion at room temperature make up to 2 %."""

PROPERTY: Final = (0.25, 0.6)
"""The same of elastic constants, energies of defects and frequencies: functionals differ by 10 to
15 % from each other and from experiment (DOI 10.1038/sdata.2015.9)."""

FLOOR: Final = {"GPa": 10.0, "eV": 0.3, "J/m^2": 0.2, "mJ/m^2": 30.0, "THz": 0.5}
"""Differences that are never looked at; of small numbers a share says little."""


WAVE_VECTORS: Final = 4
"""Wave vectors of phonons along each reciprocal vector, all of which a supercell of so many cells
a side holds."""

IMAGINARY: Final = 0.3
"""THz, the least imaginary frequency that is no noise of float32 forces over such a step."""

FALLING_FAULT: Final = -100.0
"""mJ/m^2, some 35 meV for each atom of the fault: below it dislocations tear fcc apart. A fault
takes so few meV an atom that no other value is wrong."""

DERIVATIVE: Final = 0.02
"""Share by which forces and stresses may differ from slopes of the energy, which are exact to
0.3 % with the steps below."""

_SLOPE_STEP: Final = 0.02
"""A of the atom that moves most, and `_SLOPE_STRAIN` of the cell, on each side of a slope."""
_SLOPE_STRAIN: Final = 2e-3


_POINTS: Final[dict[str, dict[str, tuple[float, float, float]]]] = {
    "fcc": {"X": (0.5, 0.5, 0.0), "L": (0.5, 0.5, 0.5)},
    "diamond": {"X": (0.5, 0.5, 0.0), "L": (0.5, 0.5, 0.5)},
    "bcc": {"N": (0.5, 0.0, 0.0), "H": (0.5, 0.5, 0.5), "P": (0.25, 0.25, 0.25)},
    "sc": {"X": (0.5, 0.0, 0.0), "M": (0.5, 0.5, 0.0), "R": (0.5, 0.5, 0.5)},
    "hcp": {"A": (0.0, 0.0, 0.5), "M": (0.5, 0.0, 0.0), "L": (0.5, 0.0, 0.5)},
}
"""High-symmetry points in the reciprocal vectors of ASE's primitive cells."""


PropertyCheck = Callable[[str, Phase, CrystalProbe], Check]


def crystal_checks(
    potential: str | Path | Potential | Evaluator,
    elements: Sequence[str],
    *,
    device: torch.device,
    precision: str = "mixed",
    compounds: Sequence[System] = (),
    judge: str | Path | Potential | Evaluator | None = None,
) -> Iterator[Check]:
    """Yields the checks of the crystals of each element and compound; syncs.

    Args:
        potential: path, shipped name, Potential or Evaluator.
        elements: symbols, see `crystal_elements`.
        device: of the evaluation.
        precision: see `mdgraph.precision`.
        compounds: crystals of several elements, see `crystal_compounds`.
        judge: another potential of these elements, whose curves say what is a wall or a hole.
    """
    probe = CrystalProbe(potential, device, precision)
    judge_probe = None if judge is None else CrystalProbe(judge, device, precision)
    for symbol in elements:
        phases = phases_at_rest(symbol, probe)
        known = reference_phase(symbol)
        if not phases or (known is not None and known not in phases):
            yield Check(
                f"phases of {symbol}",
                Verdict.WRONG,
                f"No energy of {known or 'any phase'} is least between {SEARCHED[0]} and "
                f"{SEARCHED[1]} times the distance of atoms that is expected.",
            )
            continue
        reference = phases[known] if known else min(phases.values(), key=lambda p: p.energy)
        phases_check, relaxed = _phases_check(symbol, phases, reference, probe)
        yield phases_check
        if relaxed is not None:
            phases["relaxed"] = relaxed
        judge_phases = {} if judge_probe is None else phases_at_rest(symbol, judge_probe)
        for phase in phases.values():
            judge_curve = None
            if judge_probe is not None and {phase.name, reference.name} <= judge_phases.keys():
                zero = judge_phases[reference.name].energy
                crystal = judge_phases[phase.name].crystal
                judge_curve = lattice_curve(crystal, judge_probe)[1] - zero
            curve = lattice_curve(phase.crystal, probe)
            strict = phase is reference or phase.energy < reference.energy + DIP[0]
            yield _lattice_check(symbol, phase, reference.energy, curve, judge_curve, strict)
        judge_zero = judge_phases.get(reference.name)
        judging = None
        if judge_probe is not None and judge_zero is not None:
            judging = judge_probe, judge_zero.energy
        yield from random_crystal_checks(symbol, reference, probe, judging)
        for name, check in _PROPERTY_CHECKS.items():
            yield _guarded(name, check, symbol, reference, probe)
        if reference.name == "fcc":
            yield _guarded("stacking fault", _fault_check, symbol, reference, probe)
    for compound in compounds:
        yield from _compound_checks(compound, probe, judge_probe)


def _compound_checks(
    compound: System, probe: CrystalProbe, judge_probe: CrystalProbe | None
) -> Iterator[Check]:
    """Lattice, derivatives and elasticity of a crystal of several elements."""
    formula = Atoms(compound.numbers).get_chemical_formula(empirical=True)
    try:
        rest = probe.relax([compound], 0.01, 1000, "full")[0]
        judge_energies = None
        if judge_probe is not None:
            judge_rest = judge_probe.relax([compound], 0.01, 1000, "full")[0]
            judge_energies = lattice_curve(judge_rest.system, judge_probe)[1]
            judge_energies = judge_energies - judge_rest.result.energy / len(compound)
    except MDGraphError as error:
        text = f"The crystal does not come to rest: {error}"
        yield Check(f"lattice of {formula}", Verdict.WRONG, text)
        return
    energy = rest.result.energy / len(compound)
    phase = Phase("a crystal of the data", rest.system, energy)
    curve = lattice_curve(rest.system, probe)
    yield _lattice_check(formula, phase, energy, curve, judge_energies, True)
    yield _guarded("derivatives", _compound_derivatives_check, formula, phase, probe)
    yield _guarded("elastic constants", _compound_elastic_check, formula, phase, probe)


def _guarded(
    name: str, check: PropertyCheck, symbol: str, reference: Phase, probe: CrystalProbe
) -> Check:
    """A check that is wrong where the potential gives nothing to measure."""
    try:
        return check(symbol, reference, probe)
    except (MDGraphError, np.linalg.LinAlgError) as error:
        return Check(f"{name} of {symbol}", Verdict.WRONG, f"It could not be measured: {error}")


# phases


def _phases_check(
    symbol: str, phases: Mapping[str, Phase], reference: Phase, probe: CrystalProbe
) -> tuple[Check, Phase | None]:
    """Lattice constant of the reference phase, order of phases, and what they relax to.

    The latter is a phase of its own if it lies lower, and is no hole.
    """
    name = f"phases of {symbol}"
    numbers: dict[str, Any] = {
        f"{phase.name}_eV": round(phase.energy - reference.energy, 4) for phase in phases.values()
    }
    verdicts, sentences = [Verdict.OK], []
    other = None
    distance = nearest_distance(reference.crystal)
    constant = lattice_constant(reference.name, distance)
    numbers["lattice_constant_A"] = round(constant, 4)
    sentence = f"{reference.name} has a lattice constant of {constant:.3f} A"
    if reference_phase(symbol):
        measured = lattice_constant(reference.name, expected_distance(symbol, reference.name))
        numbers["measured_lattice_constant_A"] = measured
        sentence += f", measured {measured:.3f} A"
        verdicts.append(Verdict.by_limits(abs(constant / measured - 1.0), LATTICE))
    sentences.append(sentence)
    generator = np.random.default_rng(0)
    cells = [
        _shaken(ideal_crystal(symbol, phase.name, nearest_distance(phase.crystal), True), generator)
        for phase in phases.values()
    ]
    try:
        relaxed = probe.relax(cells, 0.02, 500, "full")
    except MDGraphError as error:
        verdicts.append(Verdict.WRONG)
        sentences.append(f"a phase does not come to rest ({error})")
    else:
        energies = [r.result.energy / len(r.system) - reference.energy for r in relaxed]
        place = int(np.argmin(energies))
        lowest = energies[place]
        start = list(phases)[place]
        numbers["relaxed_eV"], numbers["relaxed_from"] = round(lowest, 4), start
        if not np.isfinite(energies).all() or lowest < -HOLE:
            verdicts.append(Verdict.WRONG)
            sentences.append(f"{start} relaxes to {-lowest:.2f} eV an atom below it, a hole")
        elif lowest < -DIP[0]:
            verdicts.append(Verdict.LOOK)
            sentences.append(f"{start} relaxes to {-lowest:.3f} eV an atom below it")
            crystal = relaxed[place].system
            other = Phase("relaxed", crystal, lowest + reference.energy)
        else:
            sentences.append("nothing relaxes to much less")
    return Check(name, worst(verdicts), "; ".join(sentences) + ".", numbers), other


def _shaken(crystal: System, generator: np.random.Generator) -> System:
    """A crystal whose symmetry is broken, by 0.05 A and strains of 1 %."""
    strain = generator.normal(scale=0.01, size=(3, 3))
    crystal = with_cell(crystal, crystal.cell @ (np.eye(3) + 0.5 * (strain + strain.T)))
    shifts = generator.normal(scale=0.05, size=crystal.positions.shape)
    return crystal.replace(positions=crystal.positions + shifts)


def _compared(value: float, published: Value | None, unit: str) -> Verdict:
    """Judges a number by a published one, or not at all where there is none."""
    if published is None:
        return Verdict.OK
    difference = abs(value - published.value)
    if difference <= FLOOR[unit]:
        return Verdict.OK
    return Verdict.by_limits(difference / abs(published.value), PROPERTY)


def _told(value: float, published: Value | None, digits: int) -> str:
    text = f"{value:.{digits}f}"
    return text if published is None else f"{text} (published {published.value:.{digits}f})"


# lattice constants


def _lattice_check(
    symbol: str,
    phase: Phase,
    zero: float,
    curve: tuple[Array, Array, Array],
    judge_energies: Array | None,
    strict: bool,
) -> Check:
    scales, energies, pressures = curve
    energies = energies - zero
    name = f"lattice of {symbol} in {phase.name}"
    lines = {"energy": energies} | ({} if judge_energies is None else {"judge": judge_energies})
    curves = Curves(scales, lines, "lattice constant over that at rest", "energy (eV/atom)")
    verdict, sentence = judge_lattice(scales, energies, pressures, judge_energies, strict)
    counted = scales >= ENERGY_FROM
    numbers = {
        "lowest_eV": _rounded(energies.min()),
        "energy_at_0.84_eV": _rounded(energies[counted][0]),
        "energy_at_1.25_eV": _rounded(energies[-1]),
        "lowest_pressure_below_0.84_GPa": _rounded(pressures[~counted].min()),
        "pressure_at_0.84_GPa": _rounded(pressures[counted][0]),
    }
    return Check(name, verdict, sentence, numbers, curves)


def _rounded(value: float) -> float | None:
    return float(f"{value:.4g}") if math.isfinite(value) else None


def judge_lattice(
    scales: Array,
    energies: Array,
    pressures: Array,
    judge_energies: Array | None = None,
    strict: bool = True,
) -> tuple[Verdict, str]:
    """Verdict on a curve of lattice constants, and why.

    Args:
        scales: (P,) ascending, over the lattice constant at rest.
        energies: (P,) eV an atom above the reference phase at rest.
        pressures: (P,) GPa.
        judge_energies: (P,) of another potential, or None.
        strict: whether this is a phase that may occur. Of others, which no data hold, pressures
            and dips are looked at, and holes are wrong.
    """
    if not (np.isfinite(energies).all() and np.isfinite(pressures).all()):
        return Verdict.WRONG, "Energies or pressures are not finite."
    counted = scales >= ENERGY_FROM
    faults = _energy_faults(scales, energies, counted, judge_energies)
    unusual = _pressure_faults(scales[~counted], pressures[~counted])
    depth, where = _deepest_dip(scales[counted], energies[counted])
    dip = [f"on the way to {where:.2f} the energy falls by {depth:.2g} eV an atom"]
    if depth > DIP[1]:
        unusual += dip
    if strict:
        faults, unusual = faults + unusual, []
    if DIP[0] < depth <= DIP[1]:
        unusual += dip
    if faults or unusual:
        verdict = Verdict.WRONG if faults else Verdict.LOOK
        return verdict, _sentence(faults + unusual)
    return Verdict.OK, "The energy rises on both sides, and squeezed it only stiffens."


def _energy_faults(
    scales: Array, energies: Array, counted: NDArray[np.bool_], judge_energies: Array | None
) -> list[str]:
    """Holes, and walls where there is a judge, in words."""
    faults = []
    holes = energies < -HOLE
    if judge_energies is not None:
        holes &= ~(judge_energies < -HOLE)
        least, share, up_to = WALL
        above = energies - judge_energies
        walls = counted & (judge_energies < up_to)
        walls &= above > np.maximum(least, share * judge_energies)
        if walls.any():
            place = int(np.argmax(np.where(walls, above, -np.inf)))
            faults.append(
                f"at {scales[place]:.2f} it lies {above[place]:.2f} eV an atom above the judge"
            )
    if holes.any():
        place = int(np.argmin(np.where(holes, energies, np.inf)))
        faults.append(
            f"at {scales[place]:.2f} it lies {-energies[place]:.2f} eV an atom below the crystal "
            "at rest"
        )
    return faults


def _pressure_faults(scales: Array, pressures: Array) -> list[str]:
    """What is wrong with the pressures of dense lattices, in words."""
    if not len(scales):
        return []
    pulls = np.flatnonzero(pressures <= 0.0)
    if len(pulls):
        place = int(pulls[-1])
        return [f"squeezed to {scales[place]:.2f} it pulls by {-pressures[place]:.3g} GPa"]
    highest = np.maximum.accumulate(pressures[::-1])[::-1]
    softer = np.flatnonzero(pressures < (1.0 - SLACK) * highest)
    if len(softer):
        place = int(softer[-1])
        faults = (
            "squeezed to {:.2f} it holds {:.3g} GPa, less than the {:.3g} GPa of a wider lattice"
        )
        return [faults.format(scales[place], pressures[place], highest[place])]
    return []


def _deepest_dip(scales: Array, energies: Array) -> tuple[float, float]:
    """The largest fall of the energy on the way from rest to either side, and where it ends."""
    rest = int(np.abs(scales - 1.0).argmin())
    deepest, where = 0.0, 1.0
    for side in (np.arange(rest, len(scales)), np.arange(rest, -1, -1)):
        row = energies[side]
        falls = np.maximum.accumulate(row) - row
        place = int(falls.argmax())
        if falls[place] > deepest:
            deepest, where = float(falls[place]), float(scales[side][place])
    return deepest, where


def _sentence(parts: Sequence[str]) -> str:
    text = "; ".join(parts)
    return text[0].upper() + text[1:] + "."


# properties of the reference phase


def _derivatives_check(symbol: str, reference: Phase, probe: CrystalProbe) -> Check:
    return _derivatives(symbol, supercell(symbol, reference), probe)


def _compound_derivatives_check(formula: str, phase: Phase, probe: CrystalProbe) -> Check:
    return _derivatives(formula, phase.crystal, probe)


def _derivatives(name: str, crystal: System, probe: CrystalProbe) -> Check:
    """Forces and stresses of shaken cells against slopes of their energies."""
    generator = np.random.default_rng(1)
    crystal = crystal.replace(
        positions=crystal.positions + generator.normal(scale=0.1, size=crystal.positions.shape)
    )
    rest = probe.evaluate([crystal])[0]
    along = rest.forces / np.abs(rest.forces).max()
    strain = np.diag([1.0, 0.5, 0.25])
    moved = [
        crystal.replace(positions=crystal.positions + sign * _SLOPE_STEP * along)
        for sign in (1, -1)
    ]
    # A slope of stress about a wide lattice, where it is not small.
    wide = with_cell(crystal, 1.03 * crystal.cell)
    cells = [
        with_cell(wide, wide.cell @ (np.eye(3) + sign * _SLOPE_STRAIN * strain)) for sign in (1, -1)
    ]
    wide_rest, *results = probe.evaluate([wide, *moved, *cells])
    energy = np.array([result.energy for result in results])
    slopes = (energy[[0, 2]] - energy[[1, 3]]) / (2.0 * np.array([_SLOPE_STEP, _SLOPE_STRAIN]))
    exact = np.array([-(rest.forces * along).sum(), -(wide_rest.virial * strain).sum()])
    shares = np.abs(exact / slopes - 1.0)
    force, stress = (float(share) for share in shares)
    wrong = not (shares < DERIVATIVE).all()
    sentence = f"Forces differ by {force:.2%} and stresses by {stress:.2%} from slopes of energies."
    return Check(
        f"derivatives of {name}",
        Verdict.WRONG if wrong else Verdict.OK,
        sentence,
        {"force_error_share": _rounded(force), "stress_error_share": _rounded(stress)},
    )


def _elastic_check(symbol: str, reference: Phase, probe: CrystalProbe) -> Check:
    tensor = elastic_tensor(reference.crystal, probe)
    least = float(np.linalg.eigvalsh(0.5 * (tensor + tensor.T)).min())
    diagonal = np.diag(tensor)
    off = [tensor[0, 1], tensor[0, 2], tensor[1, 2]]
    if reference.name == "hcp":
        values = {"C11_GPa": diagonal[:2].mean(), "C12_GPa": tensor[0, 1]}
        values |= {"C13_GPa": np.mean(off[1:]), "C33_GPa": diagonal[2]}
        values |= {"C44_GPa": diagonal[3:5].mean()}
    else:
        values = {"C11_GPa": diagonal[:3].mean(), "C12_GPa": np.mean(off)}
        values |= {"C44_GPa": diagonal[3:].mean()}
    bulk_modulus = float(tensor[:3, :3].mean())
    published = PUBLISHED.get(symbol, {})
    verdicts = [_compared(value, published.get(name), "GPa") for name, value in values.items()]
    parts = [
        f"{name.removesuffix('_GPa')} {_told(value, published.get(name), 0)}"
        for name, value in values.items()
    ]
    sentence = f"In GPa: {', '.join(parts)}, bulk modulus {bulk_modulus:.0f}."
    if not least > 0.0:
        verdicts.append(Verdict.WRONG)
        sentence += " Some strain lowers the energy, so the crystal gives way."
    numbers = {name: _rounded(value) for name, value in values.items()}
    numbers |= {"bulk_modulus_GPa": _rounded(bulk_modulus), "least_eigenvalue_GPa": _rounded(least)}
    return _with_sources(
        f"elastic constants of {symbol}", worst(verdicts), sentence, numbers, published, values
    )


def _compound_elastic_check(formula: str, phase: Phase, probe: CrystalProbe) -> Check:
    tensor = elastic_tensor(phase.crystal, probe)
    least = float(np.linalg.eigvalsh(0.5 * (tensor + tensor.T)).min())
    bulk_modulus = float(tensor[:3, :3].mean())
    gives_way = not least > 0.0
    sentence = f"The bulk modulus is {bulk_modulus:.0f} GPa"
    sentence += "; some strain lowers the energy, so the crystal gives way." if gives_way else "."
    verdict = Verdict.WRONG if gives_way else Verdict.OK
    numbers = {"bulk_modulus_GPa": _rounded(bulk_modulus), "least_eigenvalue_GPa": _rounded(least)}
    return Check(f"elastic constants of {formula}", verdict, sentence, numbers)


def _with_sources(
    name: str,
    verdict: Verdict,
    sentence: str,
    numbers: Mapping[str, Any],
    published: Mapping[str, Value],
    keys: Sequence[str] | Mapping[str, Any],
) -> Check:
    """A check that names the papers of the numbers by which it judges."""
    known = {key: published[key] for key in keys if key in published}
    values = {f"published_{key}": value.value for key, value in known.items()}
    sources = sorted({value.source for value in known.values()})
    names = {"sources": sources} if sources else {}
    return Check(name, verdict, sentence, {**numbers, **values, **names})


def _cohesion_check(symbol: str, reference: Phase, probe: CrystalProbe) -> Check:
    """Energy of a free atom; too little lets atoms leave the crystal.

    Too much is never wrong: without spins a density functional has free atoms up to 4 eV higher.
    """
    atom = System(Atoms(symbol).numbers, np.zeros((1, 3)))
    energy = float(probe.energies([atom])[0]) - reference.energy
    published = PUBLISHED.get(symbol, {})
    known = published.get("cohesion_eV")
    verdict = _compared(energy, known, "eV")
    if known is not None and energy > known.value and verdict is Verdict.WRONG:
        verdict = Verdict.LOOK
    sentence = f"A free atom lies {_told(energy, known, 2)} eV above {reference.name}."
    if not energy > 0.0:
        verdict = Verdict.WRONG
        sentence += " The crystal would lose its atoms."
    numbers = {"cohesion_eV": _rounded(energy)}
    return _with_sources(
        f"cohesion of {symbol}", verdict, sentence, numbers, published, ["cohesion_eV"]
    )


def _vacancy_check(symbol: str, reference: Phase, probe: CrystalProbe) -> Check:
    crystal = supercell(symbol, reference)
    count = len(crystal)
    hole = crystal.replace(
        numbers=crystal.numbers[1:], positions=crystal.positions[1:], masses=crystal.masses[1:]
    )
    full = probe.evaluate([crystal])[0].energy
    relaxed = probe.relax([hole], 0.02, 300)[0]
    energy = relaxed.result.energy - (count - 1) / count * full
    published = PUBLISHED.get(symbol, {})
    verdict = _compared(energy, published.get("vacancy_eV"), "eV")
    sentence = (
        f"A vacancy among {count} atoms takes {_told(energy, published.get('vacancy_eV'), 2)} eV."
    )
    if not energy > 0.0:
        verdict = Verdict.WRONG
        sentence += " The crystal would lose its atoms."
    numbers = {"vacancy_eV": _rounded(energy), "atoms": count, "converged": relaxed.converged}
    return _with_sources(
        f"vacancy of {symbol}", verdict, sentence, numbers, published, ["vacancy_eV"]
    )


def _surfaces_check(symbol: str, reference: Phase, probe: CrystalProbe) -> Check:
    name = f"surfaces of {symbol}"
    if reference.name == "hcp":
        return Check(name, Verdict.OK, "Surfaces of hcp are not probed.")
    crystal = ideal_crystal(symbol, reference.name, nearest_distance(reference.crystal), True)
    planes = ("100", "110", "111")
    slabs = [slab(crystal, (int(p[0]), int(p[1]), int(p[2]))) for p in planes]
    relaxed = probe.relax(slabs, 0.05, 300)
    energy = probe.energies([crystal])[0]
    values = {}
    for plane, system, rest in zip(planes, slabs, relaxed, strict=True):
        area = float(np.linalg.norm(np.cross(system.cell[0], system.cell[1])))
        excess = rest.result.energy - len(system) * energy
        values[f"surface_{plane}_J_per_m2"] = excess / (2.0 * area) * J_PER_M2
    published = PUBLISHED.get(symbol, {})
    verdicts = [_compared(value, published.get(key), "J/m^2") for key, value in values.items()]
    parts = [
        f"({plane}) {_told(value, published.get(key), 2)}"
        for plane, (key, value) in zip(planes, values.items(), strict=True)
    ]
    sentence = f"In J/m^2: {', '.join(parts)}."
    if not min(values.values()) > 0.0:
        verdicts.append(Verdict.WRONG)
        sentence += " The crystal would cleave by itself."
    numbers: dict[str, Any] = {key: _rounded(value) for key, value in values.items()}
    return _with_sources(name, worst(verdicts), sentence, numbers, published, values)


def _phonons_check(symbol: str, reference: Phase, probe: CrystalProbe) -> Check:
    count = WAVE_VECTORS
    frequencies = phonon_frequencies(reference.crystal, probe, count)
    points = {
        name: [round(float(f), 2) for f in frequencies[tuple(int(count * x) for x in point)]]
        for name, point in _POINTS[reference.name].items()
        if all((count * x).is_integer() for x in point)
    }
    lowest, highest = float(frequencies.min()), float(frequencies.max())
    published = PUBLISHED.get(symbol, {})
    known = published.get("highest_THz")
    verdict = _compared(highest, known, "THz")
    sentence = f"The highest frequency is {_told(highest, known, 1)} THz"
    if not lowest > -IMAGINARY:
        verdict = worst([verdict, Verdict.LOOK])
        where = np.argwhere(frequencies == lowest)[0][:3] / count
        sentence += (
            f", and one is imaginary, {-lowest:.2f} THz, at "
            f"{', '.join(f'{x:g}' for x in where)} of the reciprocal vectors."
        )
    else:
        sentence += f", and none of {count**3} wave vectors has an imaginary one."
    numbers = {"highest_THz": _rounded(highest), "lowest_THz": _rounded(lowest), **points}
    return _with_sources(
        f"phonons of {symbol}", verdict, sentence, numbers, published, ["highest_THz"]
    )


def _fault_check(symbol: str, reference: Phase, probe: CrystalProbe) -> Check:
    shares = np.linspace(0.0, 1.0, 11)
    curve = stacking_fault(symbol, nearest_distance(reference.crystal), probe, shares.tolist())
    fault, barrier = float(curve[-1]), float(curve.max())
    published = PUBLISHED.get(symbol, {})
    known = published.get("stacking_fault_mJ_per_m2")
    verdict = Verdict.OK
    if fault < 0.0 or _compared(fault, known, "mJ/m^2") is not Verdict.OK:
        verdict = Verdict.LOOK
    if not min(curve) > FALLING_FAULT:
        verdict = Verdict.WRONG
    sentence = (
        f"The intrinsic fault takes {_told(fault, known, 0)} mJ/m^2, over a barrier of "
        f"{barrier:.0f} mJ/m^2."
    )
    numbers = {"stacking_fault_mJ_per_m2": _rounded(fault), "barrier_mJ_per_m2": _rounded(barrier)}
    curves = Curves(shares, {"energy": curve}, "share of the slip", "energy (mJ/m^2)")
    check = _with_sources(
        f"stacking fault of {symbol}",
        verdict,
        sentence,
        numbers,
        published,
        ["stacking_fault_mJ_per_m2"],
    )
    return Check(check.name, check.verdict, check.sentence, check.numbers, curves)


_PROPERTY_CHECKS: Final[dict[str, PropertyCheck]] = {
    "derivatives": _derivatives_check,
    "elastic constants": _elastic_check,
    "cohesion": _cohesion_check,
    "vacancy": _vacancy_check,
    "surfaces": _surfaces_check,
    "phonons": _phonons_check,
}
