"""Random structures on their way to minima of one potential, with labels of another."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk
from toys import HoledPairs

from mdgraph.distil import random_search
from mdgraph.distil.config import SamplingConfig
from mdgraph.distil.random_search import (
    CLUSTERS,
    CRYSTALS,
    MOVED,
    SCATTERED,
    TAUTOMERS,
    TORN,
    TURNED,
    Round,
    lowest_structures,
    random_structures,
    turned_molecules,
    without_contradictions,
)
from mdgraph.distil.sampling import Labelling, Sample, labelled_frame
from mdgraph.engine import Calculation
from mdgraph.engine.batches import evaluate_with
from mdgraph.evaluators import AutogradEvaluator, Evaluator
from mdgraph.io.structures import from_ase
from mdgraph.system import System

CPU = torch.device("cpu")
CRYSTAL = from_ase(bulk("Cu", "fcc", a=3.61, cubic=True))
CONFIG = SamplingConfig(random=60, random_weight=0.25)


def found_from(
    start: System, teacher: Evaluator, labels: Evaluator, config: SamplingConfig
) -> Labelling:
    lowest = lowest_structures([start], [teacher], labels, CPU)
    return random_structures(lowest, Round(teacher, [teacher], labels, config, CPU, 1))


def made(labels: HoledPairs | None = None, **changes: Any) -> Labelling:
    teacher = AutogradEvaluator(HoledPairs())
    other = teacher if labels is None else AutogradEvaluator(labels)
    return found_from(CRYSTAL, teacher, other, CONFIG.model_copy(update=changes))


@pytest.fixture(scope="module")
def plain() -> Labelling:
    """Structures with labels of the teacher itself."""
    return made()


def energy(potential: HoledPairs, system: Any) -> float:
    calculation = Calculation([system], potential, device="cpu", precision="double")
    calculation.compute()
    return float(calculation.state.energy[0])


def test_labels_are_of_the_further_potential_on_the_level_of_the_teachers() -> None:
    labelling = made(HoledPairs(atom=-3.0), random_shift=0.5)
    assert {frame.group for frame in labelling.frames} == {CRYSTALS, CLUSTERS}
    for frame in labelling.frames:
        system = System(frame.numbers, frame.positions, frame.cell, frame.pbc)
        expected = energy(HoledPairs(), system) + 0.5 * len(frame)
        assert frame.energy == pytest.approx(expected, abs=2e-3)
        assert frame.weight == 0.25
        assert len(frame) <= 8


def test_structures_go_all_the_way_to_minima_and_whole_ways_are_held_out(plain: Labelling) -> None:
    forces = [np.abs(frame.forces).max() for frame in plain.frames if len(frame) > 1]
    assert min(forces) < 0.05
    assert max(forces) > 1.0
    held_out = plain.frames[plain.training :]
    assert 0 < len(held_out) < len(plain.frames) / 3
    rest = [frame.energy / len(frame) for frame in plain.frames]
    crystal = energy(HoledPairs(), CRYSTAL) / len(CRYSTAL)
    assert min(rest) > crystal + random_search._KNOWN


def volume_ratio(labelling: Labelling) -> float:
    """Of the densest crystal, by the volume of an atom at rest."""
    crystals = [frame for frame in labelling.frames if frame.pbc.all()]
    volumes = [abs(np.linalg.det(frame.cell)) / len(frame) for frame in crystals]
    return min(volumes) * len(CRYSTAL) / CRYSTAL.volume


def test_what_is_too_dense_or_a_hole_of_the_labels_gets_no_label(
    plain: Labelling, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert volume_ratio(plain) < 1.0
    monkeypatch.setattr(random_search, "_DENSEST", 1.05)
    holed = made(HoledPairs(depth=60.0), largest_force=1e9)
    assert volume_ratio(holed) > 1.05
    lowest = min(frame.energy / len(frame) for frame in holed.frames)
    assert lowest > energy(HoledPairs(), CRYSTAL) / len(CRYSTAL) - random_search.HOLE
    assert "below the crystal at rest by the labels themselves" in caplog.text


def test_frames_on_which_the_further_potential_differs_by_far_are_left_out() -> None:
    teacher, other = (AutogradEvaluator(HoledPairs(depth=d, atom=a)) for d, a in ((0, 0), (5, -3)))
    squeezed = CRYSTAL.replace(positions=0.8 * CRYSTAL.positions, cell=0.8 * CRYSTAL.cell)
    unknown = from_ase(bulk("Ni", "fcc", a=2.7, cubic=True))
    samples = [Sample(s, "300 K", held_out=False) for s in (CRYSTAL, squeezed, unknown)]
    samples.append(Sample(CRYSTAL, "300 K", held_out=True))
    results = evaluate_with(teacher, CPU)([sample.system for sample in samples], "a frame")
    frames = [labelled_frame(s, [r]) for s, r in zip(samples, results, strict=True)]
    given = Labelling(frames, 3, unlabelled=1)
    lowest = lowest_structures([CRYSTAL], [teacher], other, CPU)
    kept = without_contradictions(given, lowest, other, CPU)
    assert kept.frames == [frames[0], frames[2], frames[3]]
    assert (kept.training, kept.unlabelled) == (2, 2)
    assert without_contradictions(given, lowest, None, CPU) is given


def test_molecules_are_torn_apart_where_nothing_is_periodic() -> None:
    molecule = from_ase(Atoms("Cu4", [[0, 0, 0], [2.5, 0, 0], [0, 2.5, 0], [0, 0, 2.5]]))
    teacher = AutogradEvaluator(HoledPairs())
    labels = AutogradEvaluator(HoledPairs(atom=-3.0))
    config = CONFIG.model_copy(update={"random": 160})
    found = found_from(molecule, teacher, labels, config)
    assert {frame.group for frame in found.frames} <= {TORN, SCATTERED, MOVED, TAUTOMERS}
    assert len({frame.group for frame in found.frames}) > 1
    rest = energy(HoledPairs(), molecule)
    for frame in found.frames:
        assert len(frame) == 4
        assert not frame.pbc.any()
        # On the level of the teachers, whose own label differs by 12 eV.
        own = energy(HoledPairs(), System(frame.numbers, frame.positions))
        assert frame.energy == pytest.approx(own, abs=2e-3)
        # The teachers say the same of all of them, so those near rest are left to them.
        assert frame.energy > rest + random_search._KNOWN_MOLECULE[0]


def test_a_molecule_that_teachers_have_wrong_is_labelled_however_low() -> None:
    molecule = from_ase(Atoms("Cu4", [[0, 0, 0], [2.5, 0, 0], [0, 2.5, 0], [0, 0, 2.5]]))
    wrong = AutogradEvaluator(HoledPairs(free=-2.5))
    labels = AutogradEvaluator(HoledPairs())
    found = found_from(molecule, wrong, labels, CONFIG)
    energies = [energy(HoledPairs(), System(f.numbers, f.positions)) for f in found.frames]
    assert min(energies) < energy(HoledPairs(), molecule) + 2.0


CHAIN = from_ase(Atoms("Cu6", [[2.14 * n, 1.51 * (n % 2), 0.0] for n in range(6)]))


def test_turned_molecules_have_the_nearest_energy_that_the_further_potential_allows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(random_search, "_STAGES", (0, 2))
    teacher, other = HoledPairs(), HoledPairs(depth=5.0, atom=-3.0)
    config = CONFIG.model_copy(
        update={"turned": 240, "turned_within": 0.2, "turned_weight": 0.5, "largest_energy": 10.0}
    )
    evaluators = AutogradEvaluator(teacher), AutogradEvaluator(other)
    found = turned_molecules(
        [CHAIN], Round(evaluators[0], evaluators[:1], evaluators[1], config, CPU, 1)
    )
    assert len(found.frames) > 120
    assert found.extreme == 240 - len(found.frames)
    assert 0 < found.held_out < len(found.frames) / 4
    moved = 0
    for frame in found.frames:
        assert frame.group == TURNED
        assert frame.weight == 0.5
        system = System(frame.numbers, frame.positions)
        # 3 eV an atom lie between the two, and nothing else where no pair is at 1.9 A.
        own, further = energy(teacher, system), energy(other, system) + 18.0
        expected = min(max(own, further - 0.2), further + 0.2)
        assert frame.energy == pytest.approx(expected, abs=0.01)
        moved += abs(own - further) > 0.21
        if abs(abs(own - further) - 0.2) > 0.01:
            source = evaluators[abs(own - further) > 0.2]
            [result] = evaluate_with(source, CPU)([system], "a frame")
            np.testing.assert_allclose(frame.forces, result.forces, atol=1e-3)
    assert 0 < moved < len(found.frames)


def test_without_two_bonds_nothing_is_turned(caplog: pytest.LogCaptureFixture) -> None:
    teacher = AutogradEvaluator(HoledPairs())
    config = CONFIG.model_copy(update={"turned": 8})
    own = Round(teacher, [teacher], teacher, config, CPU, 1)
    assert turned_molecules([CRYSTAL], own).frames == []
    assert "two bonds to turn about" in caplog.text
    assert turned_molecules([CHAIN], replace(own, config=CONFIG)).frames == []


def test_without_a_crystal_or_molecule_there_is_nothing_to_make(
    caplog: pytest.LogCaptureFixture,
) -> None:
    slab = from_ase(Atoms("Cu2", [[0, 0, 0], [0, 0, 2.2]], cell=[2.5, 2.5, 9], pbc=[1, 1, 0]))
    teacher = AutogradEvaluator(HoledPairs())
    assert found_from(slab, teacher, teacher, CONFIG).frames == []
    assert "none is random" in caplog.text
    config = CONFIG.model_copy(update={"random": 0})
    assert found_from(CRYSTAL, teacher, teacher, config).frames == []
