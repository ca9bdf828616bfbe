"""TF32 is for the products of steps: neither for errors nor for whoever trains."""

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_flags import SETTINGS, flags_set, read_flags
from training_sets import assert_same, clusters, prepare, settings

from mdgraph.train.batches import Batch
from mdgraph.train.loop import Training, train
from mdgraph.train.optimizers import StepControls

pytestmark = pytest.mark.usefixtures("without_report")


def step(training: Training) -> None:
    """The first of a training."""
    shape, rows = next(iter(training.plan.sampler.epoch(0)))
    training.store.fill_(training.plan.batches[shape], shape, rows)
    training.step.run(shape, StepControls(1e-3, 0.9, (20.0, 1.0, 0.0, 0.0), 0.0, 0))


def products() -> tuple[str, str]:
    """How they are taken at the moment on CUDA and on a CPU."""
    matmuls = torch.backends.cuda.matmul, torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    cuda, processor = (one.fp32_precision for one in matmuls)
    return cuda, processor


@pytest.fixture
def predictions(monkeypatch: pytest.MonkeyPatch) -> dict[bool, set[tuple[str, str]]]:
    """How products were taken in predictions of steps, which are differentiable, and of errors."""
    found: dict[bool, set[tuple[str, str]]] = {True: set(), False: set()}
    predict = Batch.predict

    def observed(self: Batch, potential: Any, differentiable: bool) -> Any:
        found[differentiable].add(products())
        return predict(self, potential, differentiable)

    monkeypatch.setattr(Batch, "predict", observed)
    return found


@pytest.mark.parametrize("precision", ["mixed", "tf32", "double"])
@pytest.mark.parametrize("name", ["nothing", "tf32", "ieee"])
def test_steps_round_and_errors_do_not(
    tmp_path: Path, predictions: dict[bool, set[tuple[str, str]]], name: str, precision: str
) -> None:
    """Whatever the caller chose for the process."""
    path = prepare(tmp_path, clusters(8), steps=2, precision=precision)
    with flags_set(name):
        train(settings(path), quiet=True)
    expected = "tf32" if precision == "tf32" else "ieee"
    assert predictions == {True: {(expected, "ieee")}, False: {("ieee", "ieee")}}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_step_restores_the_setting_of_the_caller(tmp_path: Path, name: str) -> None:
    """Its backward pass rounds too, the optimiser does not."""
    path = prepare(tmp_path, clusters(8), precision="tf32", optimizer="sgd")
    training, seen = Training(settings(path), resume=False, quiet=True), []
    weight = next(iter(training.step.parameters.values()))
    weight.register_hook(lambda gradient: seen.append(("backward", *products())))
    training.step.optimizer.register_step_pre_hook(
        lambda *_: seen.append(("optimizer", *products()))
    )
    with flags_set(name):
        before = read_flags()
        step(training)
        assert read_flags() == before
    assert set(seen) == {("backward", "tf32", "ieee"), ("optimizer", "ieee", "ieee")}


def test_an_error_within_a_step_restores_it_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = prepare(tmp_path, clusters(8), precision="tf32")
    training = Training(settings(path), resume=False, quiet=True)
    monkeypatch.setattr(Batch, "predict", lambda *_, **__: 1 / 0)
    before = read_flags()
    with pytest.raises(ZeroDivisionError):
        step(training)
    assert read_flags() == before


def test_without_cuda_it_trains_as_mixed(tmp_path: Path) -> None:
    path = prepare(tmp_path, clusters(16))
    for precision in ("mixed", "tf32"):
        train(settings(path, out=str(tmp_path / precision), precision=precision), quiet=True)
    assert_same(tmp_path / "mixed", tmp_path / "tf32")


@pytest.mark.gpu
@pytest.mark.parametrize("eager", [True, False])
def test_on_cuda_a_step_differs_as_digits_of_tf32_do(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, eager: bool
) -> None:
    """Captured ones keep what they were captured with, and their graphs are kept."""
    path = prepare(tmp_path, clusters(16), device="cuda", optimizer="sgd", eager=eager)
    moved = []
    for precision in ("mixed", "tf32"):
        config = settings(path, out=str(tmp_path / precision), precision=precision)
        training = Training(config, resume=False, quiet=True)
        before = training.step.weights.clone()
        with caplog.at_level(logging.WARNING):
            step(training)
        moved.append(training.step.weights - before)
    assert not [one for one in caplog.records if one.levelno >= logging.WARNING]
    difference = float((moved[1] - moved[0]).norm() / moved[0].norm())
    assert 1e-5 < difference < 3e-2
