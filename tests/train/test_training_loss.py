"""The loss, its schedules, and the optimisers that follow it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from training_sets import assert_same, clusters, prepare, settings

from mdgraph.train.batches import Prediction
from mdgraph.train.config import LossConfig, TrainConfig
from mdgraph.train.loop import train
from mdgraph.train.losses import errors, loss
from mdgraph.train.optimizers import controls_at, make_optimizer

pytestmark = pytest.mark.usefixtures("without_report")


def test_penalties_by_hand() -> None:
    class Labels:
        energy = torch.tensor([1.0, 5.0], dtype=torch.float64)
        atoms = torch.tensor([2, 1])
        forces = torch.zeros(2, 2, 3, dtype=torch.float64)
        stress = torch.zeros(2, 3, 3, dtype=torch.float64)
        energy_weight = torch.tensor([1.0, 0.0], dtype=torch.float64)
        force_weight = torch.tensor([[1.0, 3.0], [1.0, 0.0]], dtype=torch.float64)
        stress_weight = torch.tensor([0.0, 1.0], dtype=torch.float64)
        dipole = torch.zeros(2, 3, dtype=torch.float64)
        dipole_weight = torch.tensor([3.0, 0.0], dtype=torch.float64)

    forces = torch.zeros(2, 2, 3, dtype=torch.float64)
    forces[0, 0] = torch.tensor([3.0, 0.0, 4.0])
    forces[0, 1, 0] = 1.5
    forces[1, 1] = 100.0  # padding, of no weight
    stress = torch.full((2, 3, 3), 2.0, dtype=torch.float64)
    dipole = torch.tensor([[0.0, 1.5, 2.0], [7.0, 7.0, 7.0]], dtype=torch.float64)
    found = Prediction(torch.tensor([5.0, 9.0], dtype=torch.float64), forces, stress, dipole)
    scale, labels = torch.tensor(0.5, dtype=torch.float64), Labels()
    expected = {
        "mse": 4 * (25.0 / 3 + 3 * 2.25 / 3),
        "mae": 2 * (7.0 / 3 + 3 * 1.5 / 3),
        "norm": 2 * (5.0 + 3 * 1.5),
        "huber": (5.5 + 7.5) / 3 + 3 * 2.5 / 3,
    }
    for kind, value in expected.items():
        asked = {"stress": {"weight": 1.0}, "dipole": {"weight": "0:1"}}
        config = LossConfig.model_validate({"forces": {"kind": kind}, **asked})
        terms = errors(config, scale, found, labels)  # type: ignore[arg-type]
        assert float(terms.terms[1]) == pytest.approx(value)
        assert terms.counts.tolist() == [1.0, 3.0, 1.0, 1.0]
        assert float(terms.terms[3]) == pytest.approx(3 * 25.0 / 3)
        assert float(terms.terms[0]) == pytest.approx((2.0 / 0.5) ** 2)
        assert float(terms.terms[2]) == pytest.approx(16.0)
        weights = torch.tensor([1.0, 10.0, 0.0, 0.0])
        assert float(loss(terms, weights, terms.counts)) == pytest.approx(16.0 + 10 / 3 * value)
    config = LossConfig.model_validate({"energy": {"weight": 0.0}, "forces": {"kind": "huber"}})
    unasked = errors(config, scale, found, labels)  # type: ignore[arg-type]
    assert torch.equal(unasked.terms[:2], torch.stack([terms.terms[0], terms.terms[1]]))
    for values in (unasked.terms, unasked.squares, unasked.counts):
        assert values[2:].tolist() == [0.0, 0.0]


def test_schedules_of_rate_average_and_weights(tmp_path: Path) -> None:
    path = prepare(tmp_path, clusters(4), warmup=0.1, loss={"energy": {"weight": "1:9"}})
    config = settings(path, learning_rate=1e-2, final_learning_rate=1e-4, average=0.99)
    rates = [controls_at(config, step, 1000, 1.0).learning_rate for step in range(1001)]
    assert rates[0] < 2e-4
    assert max(rates) == pytest.approx(1e-2, rel=1e-3)
    assert rates.index(max(rates)) == pytest.approx(100, abs=1)
    assert rates[550] == pytest.approx(0.5 * (1e-2 + 1e-4), rel=1e-2)
    assert rates[-1] == pytest.approx(1e-4)
    assert controls_at(config, 500, 1000, 0.5).learning_rate == 0.5 * rates[500]
    assert [controls_at(config, step, 1000, 1.0).weights[0] for step in (0, 500, 1000)] == [1, 5, 9]
    assert controls_at(config, 500, 1000, 1.0).step == 500
    assert controls_at(config, 0, 1000, 1.0).decay == pytest.approx(0.1)
    assert controls_at(config, 5000, 9000, 1.0).decay == 0.99
    config = settings(path, average=0.99, average_from=0.73)
    kept, values = 0.0, np.random.default_rng(0).normal(size=70)
    for step, value in enumerate(values):
        decay = controls_at(config, step, 70, 1.0).decay
        kept = decay * kept + (1.0 - decay) * value
    assert kept == pytest.approx(values[52:].mean())
    assert controls_at(config, 51, 70, 1.0).decay == pytest.approx(52 / 61)


@pytest.mark.parametrize("name", ["adamw", "adam", "nadam", "radam", "sgd"])
def test_optimizers_step_as_torch_does_from_the_start(name: str) -> None:
    """Buffers made ahead and a rate on the device against torch's own loop, three rates long."""
    kinds = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam, "sgd": torch.optim.SGD}
    kinds |= {"nadam": torch.optim.NAdam, "radam": torch.optim.RAdam}
    options: dict[str, Any] = {"weight_decay": 0.1}
    options |= {"momentum": 0.8} if name == "sgd" else {"betas": (0.8, 0.95)}
    options |= {"decoupled_weight_decay": True} if name in ("nadam", "radam") else {}
    config = TrainConfig(
        data="-", out="-", steps=1, optimizer=name, betas=(0.8, 0.95), weight_decay=0.1
    )
    generator = torch.Generator().manual_seed(0)
    start = torch.rand(12, generator=generator, dtype=torch.float64)
    one, gradient, other = start.clone(), torch.zeros_like(start), torch.nn.Parameter(start.clone())
    rate = torch.zeros(2)
    made = make_optimizer(config, one, gradient, rate[0])
    assert torch.equal(one, start)
    expected = kinds[name]([other], lr=0.0, **options)
    for value in (0.1, 0.05, 0.2, 0.01, 0.01, 0.01, 0.1):
        rate[0] = expected.param_groups[0]["lr"] = value
        gradient.copy_(torch.rand(12, generator=generator, dtype=torch.float64) - 0.2)
        other.grad = gradient.clone()
        made.step()
        expected.step()
        torch.testing.assert_close(one, other.detach(), rtol=1e-6, atol=1e-8)
    assert float((one - start).abs().max()) > 0.05


def test_labels_of_no_weight_are_not_learned_and_not_scored(tmp_path: Path) -> None:
    """Wrong forces on two atoms of each frame, and whole wrong frames, leave no trace."""
    right, weights = clusters(16), np.array([1.0, 0.5, 1.0, 0.0, 0.0])
    errors = {"right": 0.0, "wrong": 9.0}
    metrics = []
    for name, error in errors.items():
        frames = []
        for number, one in enumerate(right):
            whole = number % 4 == 0
            changed = {
                "forces": one.forces + error * (whole | (weights == 0.0))[:, None],
                "energy": one.energy + error * whole,
                "weight": 0.0 if whole else 1.0,
                "force_weights": weights,
            }
            frames.append(replace(one, **changed))
        (tmp_path / name).mkdir()
        metrics.append(
            train(settings(prepare(tmp_path / name, frames, steps=4)), quiet=True).metrics
        )
    assert_same(tmp_path / "right" / "out", tmp_path / "wrong" / "out")
    assert metrics[0]["train"] == metrics[1]["train"]
    assert metrics[0]["validation"] == metrics[1]["validation"]
