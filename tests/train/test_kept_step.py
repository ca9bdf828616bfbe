"""What `keep: best` compares, and what it says about an early step."""

import json
import logging
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from training_sets import clusters, crystals, prepare, settings

from mdgraph.train import loop
from mdgraph.train.config import LossConfig
from mdgraph.train.evaluation import Scores, score
from mdgraph.train.loop import Training, train


def validation(training: Training, config: LossConfig) -> Scores:
    held_out = training.parts.validation
    return score(training.potential, training.store, training._prepared.dataset, held_out, config)


def test_the_loss_of_validation_has_the_weights_of_the_end(tmp_path: Path) -> None:
    """Sums by hand; batches of two sizes, one of them filled up with copies."""
    frames = [*clusters(21), *crystals(8)]
    frames[4::5] = [replace(frame, weight=0.5) for frame in frames[4::5]]
    path = prepare(tmp_path, frames, shapes=2)
    training = Training(settings(path), resume=False, quiet=True)
    dataset, held_out = training._prepared.dataset, training.parts.validation
    assert 0.0 < (dataset.weight[held_out] == 0.5).mean() < 1.0
    config = LossConfig.model_validate(
        {"energy": {"weight": "20:400"}, "forces": {"weight": 3}, "elements": {"O": 2.0}}
    )
    scores = validation(training, config)
    scale = float(training.potential.scale)
    weight = dataset.weight[held_out]
    energy = (scores.energy[:, 1] - scores.energy[:, 0]) / scale
    force = np.linalg.norm(scores.forces[..., 1] - scores.forces[..., 0], axis=1) / scale
    # Elements are weighed when tables are made, with the configuration of the training.
    expected = 400.0 * np.mean(weight * energy**2) + 3.0 * np.mean(weight[scores.owner] * force)
    assert scores.loss == pytest.approx(expected, rel=1e-5)
    constant = LossConfig.model_validate({"energy": {"weight": 400}, "forces": {"weight": 3}})
    assert validation(training, constant).loss == scores.loss
    ended = {"energy": {"weight": "7:0"}, "forces": {"weight": "3:0"}}
    expected = 7.0 * np.mean(weight * energy**2) + 3.0 * np.mean(weight[scores.owner] * force)
    faded = validation(training, LossConfig.model_validate(ended)).loss
    assert faded == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("losses", "keep", "early"),
    [
        ((4.0, 1.25, 3.0, 2.0, 2.5), "best", True),
        ((4.0, 3.0, 2.0, 1.25, 2.5), "best", False),
        ((4.0, 1.25, 3.0, 2.0, 2.5), "last", False),
    ],
)
def test_an_early_step_that_is_kept_is_told(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    losses: tuple[float, ...],
    keep: str,
    early: bool,
) -> None:
    calls = count()

    def by_list(*arguments: Any) -> Scores:
        return replace(score(*arguments), loss=losses[next(calls)])

    monkeypatch.setattr(loop, "score", by_list)
    path = prepare(tmp_path, clusters(12), steps=20, validations=5, keep=keep)
    train(settings(path), quiet=True)
    said = (
        "keep: best kept step 8 of 20, whose validation loss was 1.25; later steps had 2 or more, "
        "the last 2.5."
    )
    files = [(tmp_path / "out" / name).read_text() for name in ("card.md", "report.html")]
    assert [said in text for text in (caplog.text, *files)] == [early] * 3
    assert ("keep: best kept" in caplog.text + "".join(files)) == early
    metrics = json.loads((tmp_path / "out" / "metrics.json").read_text())
    if keep == "last":
        assert "kept" not in metrics
    else:
        last = {"lowest_later": 2.0 if early else 2.5, "last": 2.5}
        step = {"step": 8 if early else 16, "of": 20, "validation_loss": 1.25}
        assert metrics["kept"] == step | last
    assert metrics["best_step"] == {"last": 20, "best": 8 if early else 16}[keep]


@pytest.mark.usefixtures("without_report")
@pytest.mark.parametrize(
    ("weight", "keep", "warns"), [(0.3, "best", True), (0.3, "last", False), (0.0, "best", False)]
)
def test_perturbation_without_the_last_step_warns(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, weight: float, keep: str, warns: bool
) -> None:
    loss = {"perturbation": {"weight": weight}}
    path = prepare(tmp_path, clusters(12), loss=loss, keep=keep)
    Training(settings(path), resume=False, quiet=True)
    warnings = [one.getMessage() for one in caplog.records if one.levelno == logging.WARNING]
    said = [text for text in warnings if "validation, which does not see loss.perturb" in text]
    assert len(said) == warns
