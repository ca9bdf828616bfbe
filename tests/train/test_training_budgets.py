"""Budgets of atoms and of edges: what a step takes of dense and of dilute frames."""

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from training_sets import crystals, prepare, settings

from mdgraph.data import LabelledFrame
from mdgraph.train.loop import Training
from mdgraph.train.step import TrainingStep

pytestmark = pytest.mark.usefixtures("without_report")

DILUTE, DENSE = 4 * 8, 4 * 24
"""Edges of a frame, padding included."""


def dilute_and_dense() -> Iterator[LabelledFrame]:
    """Four atoms of copper, alone and as a crystal."""
    for frame in crystals(32)[1::2]:
        yield replace(frame, pbc=np.zeros(3, dtype=bool), stress=None)
        yield frame


def started(path: Path, *, resume: bool = False, **changes: Any) -> Training:
    return Training(settings(path, **changes), resume=resume, quiet=True)


@pytest.mark.parametrize(
    ("budgets", "dilute", "dense"),
    [
        ({"batch_atoms": 16}, 4, 4),
        ({"batch_edges": 2 * DENSE}, 6, 2),
        ({"batch_edges": 2 * DENSE - 1}, 5, 1),
        ({"batch_atoms": 16, "batch_edges": 2 * DENSE}, 4, 2),
        ({"batch_edges": 1}, 1, 1),
    ],
)
def test_a_step_takes_what_both_budgets_allow(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    budgets: dict[str, int],
    dilute: int,
    dense: int,
) -> None:
    path = prepare(tmp_path, list(dilute_and_dense()), shapes=2, batch=None, **budgets)
    with caplog.at_level(logging.INFO):
        training = started(path)
    shapes = training.store.shapes
    assert [shape.atoms * shape.slots[0] for shape in shapes] == [DILUTE, DENSE]
    assert training.plan.sampler.sizes == (dilute, dense)
    assert f"padding: {dilute} of 4 x 8, {dense} of 4 x 24." in caplog.text
    for _, batch in training.store.batches_of(training.parts.every):
        # Scoring takes about the memory of a step.
        assert len(batch) <= 4 * (dilute if batch.table is training.store.tables[0] else dense)


def test_both_budgets_are_halved_where_dense_frames_do_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    budgets = {"batch_atoms": 24, "batch_edges": 2 * DENSE}
    path = prepare(
        tmp_path, list(dilute_and_dense()), shapes=2, batch=None, steps=None, epochs=2, **budgets
    )
    run = TrainingStep.run

    def limited(self: Any, shape: int, controls: Any) -> None:
        if shape == 1 and len(self.batches[shape]) > 1:
            raise torch.OutOfMemoryError("no room")
        run(self, shape, controls)

    monkeypatch.setattr(TrainingStep, "run", limited)
    training = started(path)
    assert training.plan.sampler.sizes == (6, 2)
    training.run()
    assert "halved to 3 frames, and so are all others" in caplog.text
    assert training.plan.sampler.sizes == (3, 1)
    # A resumed training may have other budgets, of which half is left too.
    later = started(path, resume=True, batch_atoms=16, batch_edges=4 * DENSE)
    assert later.plan.sampler.sizes == (2, 2)
