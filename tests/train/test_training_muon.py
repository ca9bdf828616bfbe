"""Muon: matrices move along all their directions alike, and everything else as by AdamW."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from training_sets import assert_same, clusters, prepare, settings

from mdgraph.train.config import TrainConfig
from mdgraph.train.loop import Training, train
from mdgraph.train.optimizers import Muon, StepControls, make_optimizer, orthogonalize
from mdgraph.train.step import TrainingStep, flat_params

pytestmark = pytest.mark.usefixtures("without_report")

RATES = (0.1, 0.05, 0.2, 0.01, 0.1)
BETAS, DECAY = (0.8, 0.95), 0.1


def moved(gradients: list[dict[str, Tensor]], start: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights after a step for each of the gradients; `wide` and `tall` are the matrices."""
    weights, order = flat_params(start)
    gradient, rate = torch.zeros_like(weights), torch.zeros(())
    config = TrainConfig(
        data="-", out="-", steps=1, optimizer="muon", betas=BETAS, weight_decay=DECAY
    )
    matrices = [start["wide"], start["tall"]]
    made = make_optimizer(config, weights, gradient, rate, matrices)
    names = {id(value): name for name, value in start.items()}
    for value, one in zip(RATES, gradients, strict=False):
        rate.fill_(value)
        torch.cat([one[names[id(held)]].flatten() for held in order], out=gradient)
        made.step()
    return {name: value.clone() for name, value in start.items()}


def random_weights(seed: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = {"wide": (6, 20), "tall": (20, 6), "table": (3, 7), "bias": (5,)}
    return {
        name: torch.randn(shape, generator=generator, dtype=torch.float64)
        for name, shape in shapes.items()
    }


def test_what_is_no_matrix_moves_as_by_adamw() -> None:
    gradients = [random_weights(seed) for seed in range(1, 6)]
    found = moved(gradients, random_weights(0))
    for name in ("table", "bias"):
        other = torch.nn.Parameter(random_weights(0)[name])
        expected = torch.optim.AdamW([other], betas=BETAS, weight_decay=DECAY)
        for value, one in zip(RATES, gradients, strict=True):
            expected.param_groups[0]["lr"] = value
            other.grad = one[name]
            expected.step()
        torch.testing.assert_close(found[name], other.detach(), rtol=1e-6, atol=1e-8)


def test_matrices_move_along_the_polar_factor_of_their_momentum() -> None:
    """Beside the decay, whose share is known; iterations bring singular values to 0.7 to 1.2."""
    first, second = random_weights(1), random_weights(2)
    start, after = random_weights(0), moved([first, second], random_weights(0))
    before = moved([first], random_weights(0))
    mean, rate = BETAS[0], RATES[1]
    for name in ("wide", "tall"):
        held = (1 - mean) * first[name]
        held = mean * held + (1 - mean) * second[name]
        ahead = mean * held + (1 - mean) * second[name]
        move = (before[name] * (1 - rate * DECAY) - after[name]) / (rate * 0.2 * 20**0.5)
        left, values, right = torch.linalg.svd(move, full_matrices=False)
        assert float(values.min()) > 0.65
        assert float(values.max()) < 1.25
        polar = torch.linalg.svd(ahead, full_matrices=False)
        torch.testing.assert_close(left @ right, polar[0] @ polar[2], atol=1e-6, rtol=1e-5)
        assert not torch.equal(start[name], after[name])


def test_the_size_of_gradients_does_not_matter_to_matrices() -> None:
    gradients = [random_weights(seed) for seed in (1, 2)]
    larger = [{name: 1e3 * value for name, value in one.items()} for one in gradients]
    one, other = moved(gradients, random_weights(0)), moved(larger, random_weights(0))
    for name in ("wide", "tall"):
        torch.testing.assert_close(one[name], other[name], rtol=1e-6, atol=1e-8)


def test_it_remembers_gradients_for_longer_unless_told_otherwise() -> None:
    common = {"data": "-", "out": "-", "steps": 1}
    assert TrainConfig(**common).betas == (0.9, 0.999)
    assert TrainConfig(**common, optimizer="muon").betas == (0.99, 0.999)
    assert TrainConfig(**common, optimizer="muon", betas=BETAS).betas == BETAS


def test_a_matrix_without_gradient_stays() -> None:
    assert float(orthogonalize(torch.zeros(2, 4, 3)).abs().max()) == 0.0


@pytest.mark.parametrize("edges", [False, True])
def test_moves_linear_layers_but_the_last_and_where_asked_those_of_edges(
    tmp_path: Path, edges: bool
) -> None:
    path = prepare(tmp_path, clusters(8), optimizer="muon", muon_edges=edges)
    training = Training(settings(path), resume=False, quiet=True)
    parameters = training.step.parameters
    assert isinstance(training.step.optimizer, Muon)
    chosen = {place for places in training.step.optimizer.places.values() for place in places}
    moved = {name for name, one in parameters.items() if one.storage_offset() in chosen}
    left = {name for name, one in parameters.items() if one.ndim > 1} - moved
    layers = range(training.potential.config.layers)
    assert layers
    few = {"network.embedding.species.weight", "readout.linears.1.weight"}
    of_edges = {
        "network.embedding.distance.weight",
        *(
            f"network.layers.{number}.edge_network.linears.{place}.weight"
            for number in layers
            for place in range(3)
        ),
    }
    assert left == (few if edges else few | of_edges)
    assert all(parameters[name].ndim == 2 for name in moved)


def test_edges_are_of_muon_alone() -> None:
    with pytest.raises(ValueError, match="muon_edges belongs to the optimizer muon, not adam"):
        TrainConfig(data="-", out="-", steps=1, optimizer="adam", muon_edges=True)


def test_it_learns_and_resumes_to_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"steps": 60, "optimizer": "muon", "learning_rate": 2e-2, "checkpoint_interval": 20}
    path = prepare(tmp_path, clusters(24), **options)
    error = train(settings(path), quiet=True).metrics["validation"]["force_rmse_meV_per_A"]
    forces = [frame.forces for frame in clusters(24)]
    assert error < 0.5 * 1e3 * np.sqrt(np.mean(np.concatenate(forces) ** 2))

    run, steps = TrainingStep.run, itertools.count(1)

    def cut_off(self: TrainingStep, shape: int, controls: StepControls) -> None:
        if next(steps) == 33:
            raise InterruptedError
        run(self, shape, controls)

    other = settings(path, out=str(tmp_path / "other"))
    with monkeypatch.context() as patch:
        patch.setattr(TrainingStep, "run", cut_off)
        with pytest.raises(InterruptedError):
            train(other, quiet=True)
    train(other, resume=True, quiet=True)
    assert_same(tmp_path / "out", tmp_path / "other")
