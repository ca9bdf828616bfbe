"""What only a GPU can show of training: captured steps train as eager ones do."""

import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from training_sets import clusters, crystals, prepare

from mdgraph.runs.training import read_training
from mdgraph.train.loop import Training

pytestmark = pytest.mark.gpu


def trained(path: Path, folder: Path, **changes: object) -> Training:
    training = Training(
        read_training(path, {"device": "cuda", "out": str(folder), **changes}),
        resume=False,
        quiet=True,
    )
    training.run()
    return training


@pytest.mark.parametrize("resident", [True, False])
def test_captured_steps_train_as_eager_ones(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, resident: bool
) -> None:
    """Sums over the atoms of an element have no fixed order, so digits are lost over steps."""
    frames = [*clusters(24), *crystals(12)]
    loss = {"stress": {"weight": 100.0}}
    path = prepare(tmp_path, frames, shapes=3, steps=30, loss=loss, learning_rate=1e-3)
    with caplog.at_level(logging.WARNING):
        graphed = trained(path, tmp_path / "graphed", resident=resident)
    assert not caplog.records
    assert all(graph is not None for graph in graphed.step._graphs.values())
    assert len(graphed.step._graphs) == len(graphed.store.shapes)
    eager = trained(path, tmp_path / "eager", eager=True)
    for name, value in eager.step.parameters.items():
        torch.testing.assert_close(
            graphed.step.parameters[name].detach(), value.detach(), rtol=1e-3, atol=1e-5
        )


def test_the_gpu_trains_as_the_cpu_does(tmp_path: Path) -> None:
    path = prepare(tmp_path, clusters(24), steps=60, precision="double")
    logs = []
    for device in ("cuda", "cpu"):
        trained(path, tmp_path / device, device=device)
        logs.append(np.genfromtxt(tmp_path / device / "log.csv", delimiter=",", names=True))
    for name in ("loss", "validation_force_rmse_meV_per_A"):
        np.testing.assert_allclose(logs[0][name], logs[1][name], rtol=1e-4)
