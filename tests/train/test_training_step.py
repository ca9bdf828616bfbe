"""A step on flat buffers is torch's own on every weight; small tables lose nothing."""

import copy
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from training_sets import NETWORK, clusters, crystals, prepare, settings

from mdgraph.data import open_dataset
from mdgraph.models import TensorNetConfig, TensorNetPotential
from mdgraph.processes import keep_workspaces_small
from mdgraph.train import tables
from mdgraph.train.batches import FrameStore
from mdgraph.train.loop import WORKSPACES, Training
from mdgraph.train.losses import errors, loss
from mdgraph.train.optimizers import StepControls
from mdgraph.train.setup import at_training_precision
from mdgraph.train.step import flat_params, flatten_gradients

pytestmark = pytest.mark.usefixtures("without_report")


@pytest.mark.parametrize("precision", ["double", "mixed"])
def test_a_step_is_that_of_torch(tmp_path: Path, precision: str) -> None:
    """Clipped by one norm, moved by AdamW and averaged weight by weight; some are frozen."""
    options = {"precision": precision, "weight_decay": 0.1, "clip": 0.02}
    path = prepare(tmp_path, clusters(16), freeze=["embedding"], **options)
    training = Training(settings(path), resume=False, quiet=True)
    step, other = training.step, copy.deepcopy(training.potential)
    names = list(step.parameters)
    assert 0 < len(names) < len(list(other.parameters()))
    values = [dict(other.named_parameters())[name] for name in names]
    averages = [value.detach().clone() for value in values]
    optimizer = torch.optim.AdamW(values, weight_decay=0.1)
    batch, config = training.plan.batches[0], training.config.loss
    norms = []
    for shape, rows in list(training.plan.sampler.epoch(0))[:3]:
        assert shape == 0
        training.store.fill_(batch, shape, rows)
        step.run(shape, StepControls(0.004, 0.8, (20.0, 1.0, 0.0, 0.0), 0.0, 0))
        found, inputs = batch.predict(other, differentiable=True)
        own = errors(config, other.scale, found, inputs.labels)
        weights = torch.tensor([20.0, 1.0, 0.0, 0.0], dtype=torch.float64)
        optimizer.zero_grad()
        loss(own, weights, own.counts).backward(inputs=values)
        norms.append(float(torch.nn.utils.clip_grad_norm_(values, 0.02)))
        optimizer.param_groups[0]["lr"] = 0.004
        optimizer.step()
        for average, value in zip(averages, values, strict=True):
            average.mul_(0.8).add_(value.detach(), alpha=0.2)
    assert min(norms) > 0.02, "or nothing was clipped"
    close: dict[str, Any] = {"rtol": 1e-3, "atol": 1e-5}
    if precision == "double":
        close = {"rtol": 1e-7, "atol": 1e-8}  # the rate is a float32
    for name, value in zip(names, values, strict=True):
        torch.testing.assert_close(step.parameters[name].detach(), value.detach(), **close)
    expected = torch.zeros_like(step.average)
    flatten_gradients(
        step._values, [averages[names.index(name)] for name in _names(step)], expected
    )
    torch.testing.assert_close(step.average, expected, **close)


def _names(step: Any) -> list[str]:
    """Of the weights in the order of the buffer."""
    places = {id(value): name for name, value in step.parameters.items()}
    return [places[id(value)] for value in step._values]


def test_parameters_become_views_in_place() -> None:
    generator = torch.Generator().manual_seed(0)
    sizes = {"a": (3,), "b": (8, 16), "c": (8,), "d": (64,)}
    made = {
        name: torch.nn.Parameter(torch.rand(size, generator=generator))
        for name, size in sizes.items()
    }
    before = {name: value.detach().clone() for name, value in made.items()}
    buffer, order = flat_params(made)
    assert [value.numel() for value in order] == [128, 64, 8, 3], "so that all are aligned"
    for name, value in made.items():
        assert torch.equal(value.detach(), before[name])
    buffer.add_(1.0)
    for name, value in made.items():
        assert torch.equal(value.detach(), before[name] + 1.0)
    gradients = [None, *(before[name] for name in "dca")]
    written = torch.ones_like(buffer)
    flatten_gradients(order, gradients, out=written)
    expected = [torch.zeros(128), before["d"], before["c"], before["a"]]
    assert torch.equal(written, torch.cat(expected))


def test_tables_of_a_network_in_float32_are_half_as_large_and_as_good(tmp_path: Path) -> None:
    frames = [*clusters(8), *crystals(8)]
    config = settings(prepare(tmp_path, frames, shapes=2))
    torch.manual_seed(0)
    single = TensorNetPotential(TensorNetConfig(species=(8, 29), **NETWORK))
    single.scale.fill_(3.0)
    double = copy.deepcopy(single)
    at_training_precision(single, config)
    every = np.arange(len(frames))
    with open_dataset(tmp_path / "set.h5") as dataset:
        small, large = (FrameStore(dataset, every, every, one, config) for one in (single, double))
        assert sum(one.bytes for one in small.tables) < 0.7 * sum(one.bytes for one in large.tables)
        for (_, one), (_, other) in zip(
            small.batches_of(every), large.batches_of(every), strict=True
        ):
            found, expected = (
                batch.predict(double, differentiable=False)[0] for batch in (one, other)
            )
            torch.testing.assert_close(found.energy, expected.energy, rtol=0, atol=2e-6)
            torch.testing.assert_close(found.forces, expected.forces, rtol=0, atol=2e-6)


def test_slots_are_numbered_in_what_they_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = [*clusters(4), *crystals(4)]
    config = settings(prepare(tmp_path, frames, shapes=2))
    potential = TensorNetPotential(TensorNetConfig(species=(8, 29), **NETWORK))
    every, found = np.arange(len(frames)), []
    with open_dataset(tmp_path / "set.h5") as dataset:
        for most, kind in ((1 << 15, torch.int16), (7, torch.int32)):
            monkeypatch.setattr(tables, "_MOST", most)
            store = FrameStore(dataset, every, every, potential, config)
            (one,) = store.tables[0].index
            assert one.dtype == store.tables[0].number.dtype == kind
            batches = [batch for _, batch in store.batches_of(every)]
            found.append([one.predict(potential, differentiable=False)[0] for one in batches])
    for small, large in zip(*found, strict=True):
        assert torch.equal(small.forces, large.forces)


def test_workspaces_are_small_unless_the_user_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    monkeypatch.setenv("CUBLASLT_WORKSPACE_SIZE", "")  # so that what follows is undone
    monkeypatch.delenv("CUBLASLT_WORKSPACE_SIZE")
    keep_workspaces_small(WORKSPACES)
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"
    assert os.environ["CUBLASLT_WORKSPACE_SIZE"] == "1024"
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    keep_workspaces_small(WORKSPACES)
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:2"
