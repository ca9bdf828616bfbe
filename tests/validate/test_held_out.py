"""Errors on held-out frames leave out those that training holds almost the same."""

from collections.abc import Sequence

import numpy as np
import pytest
from ase.build import molecule

from mdgraph.data import LabelledFrame
from mdgraph.engine.calculation import EvaluationResult
from mdgraph.system import System
from mdgraph.validate.held_out import frame_errors, look_alikes


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
