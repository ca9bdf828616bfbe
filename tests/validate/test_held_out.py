"""Errors on held-out frames leave out those that training holds almost the same."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from ase.build import molecule
from toys import LennardJones

from mdgraph.data import LabelledFrame
from mdgraph.engine.calculation import EvaluationResult
from mdgraph.evaluators import AutogradEvaluator
from mdgraph.system import System
from mdgraph.validate.frame_checks import frame_errors, look_alikes, look_alikes_check
from mdgraph.validate.verdicts import Verdict


def frame(seed: int, size: float, name: str = "CH3CH2OH") -> LabelledFrame:
    atoms = molecule(name)
    atoms.rattle(size, seed=seed)
    forces = np.full((len(atoms), 3), 0.1 * seed)
    return LabelledFrame(atoms.numbers, atoms.positions, energy=float(seed), forces=forces)


def test_similar_frames_are_found_in_any_order_of_their_atoms() -> None:
    training = [frame(1, 0.1), frame(2, 0.1)]
    order = np.random.default_rng(0).permutation(9)
    same = LabelledFrame(training[1].numbers[order], training[1].positions[order] + 3.0)
    others = [frame(3, 0.1), frame(2, 0.1, "CH3OCH3")]
    assert look_alikes([same, *others], training, 0.01).tolist() == [True, False, False]


def test_errors_are_means_over_the_frames_of_each_choice() -> None:
    def nothing(systems: Sequence[System], name: str) -> list[EvaluationResult]:
        return [
            EvaluationResult(0.0, np.zeros(len(one)), np.zeros((len(one), 3)), np.zeros((3, 3)))
            for one in systems
        ]

    frames = [frame(number, 0.1) for number in (1, 2, 6)]
    choices = [np.full(3, True), np.array([True, False, True])]
    all_of_them, some = frame_errors(frames, nothing, choices)
    assert (all_of_them.frames, some.frames) == (3, 2)
    assert (all_of_them.energy, some.energy) == pytest.approx((3.0 / 9, 3.5 / 9))
    assert (all_of_them.forces, some.forces) == pytest.approx((0.3, 0.35))


@pytest.mark.parametrize(("copies", "verdict"), [(0, Verdict.OK), (1, Verdict.LOOK)])
def test_a_line_tells_errors_without_look_alikes(copies: int, verdict: Verdict) -> None:
    """Beyond a tenth of the frames it is a look; labels of an ideal gas leave their own size."""
    potential = AutogradEvaluator(LennardJones(1e-12, 1.0, 3.0))
    frames = [frame(number, 0.1) for number in (1, 2, 6)]
    training = [frame(number, 0.1) for number in (3, 4)] + frames[2:] * copies
    check = look_alikes_check(frames, training, potential, torch.device("cpu"))
    assert check.verdict is verdict
    assert f"{copies} of 3 frames lie within 0.01 A" in check.sentence
    if copies:
        assert check.numbers["energy_mae_without_meV_per_atom"] == pytest.approx(1500 / 9, rel=1e-6)
        assert check.numbers["force_mae_without_meV_per_A"] == pytest.approx(150.0, rel=1e-6)


def test_errors_are_those_of_charged_frames() -> None:
    charges: list[float | None] = []

    def nothing(systems: Sequence[System], name: str) -> list[EvaluationResult]:
        charges.extend(one.charge for one in systems)
        return [
            EvaluationResult(0.0, np.zeros(len(one)), np.zeros((len(one), 3)), np.zeros((3, 3)))
            for one in systems
        ]

    frame_errors([replace(frame(1, 0.1), charge=-1.0)], nothing, [np.array([True])])
    assert charges == [-1.0]


def test_thousands_of_training_frames_are_compared_in_parts() -> None:
    numbers = np.array([8, 1])
    training = [
        LabelledFrame(numbers, np.array([[0.0, 0.0, 0.0], [0.8 + 0.001 * number, 0.0, 0.0]]))
        for number in range(0, 2000, 2)
    ]
    far = [LabelledFrame(numbers, np.array([[0.0, 0.0, 0.0], [x, 0.0, 0.0]])) for x in (3.2, 0.7)]
    alike = look_alikes([training[3], far[0], training[900], far[1]], training, 0.01)
    assert alike.tolist() == [True, False, True, False]
