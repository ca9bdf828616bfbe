"""What only a GPU can show: structures in batches that are replays of a few graphs."""

import gc
import time
from typing import Any

import numpy as np
import pytest
import torch
from random_networks import TENSORNET, TENSORNET2, crystal, molecule, network

from mdgraph.engine import Calculation
from mdgraph.engine.batches import Batches
from mdgraph.engine.calculation import EvaluationResult, as_evaluator
from mdgraph.gpu.graphs import GraphMemory
from mdgraph.precision import precision_named
from mdgraph.system import System

pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda")


def structures() -> list[System]:
    found = [molecule(4 + seed % 6, seed=seed) for seed in range(40)]
    return found + [crystal(3 + seed % 5, seed=seed) for seed in range(40)]


def found_in(batches: Batches, systems: list[System]) -> list[EvaluationResult]:
    found = dict(batches.evaluate(systems, [str(place) for place in range(len(systems))]))
    return [found[place] for place in range(len(systems))]


@pytest.mark.parametrize("evaluator", ["fused", "reference"])
@pytest.mark.parametrize(
    "settings",
    [TENSORNET, TENSORNET2 | {"coulomb": {"cutoff": 4.0}}],
    ids=["tensornet", "tensornet2"],
)
def test_are_what_each_structure_is_alone(settings: dict[str, Any], evaluator: str) -> None:
    precision = precision_named("double")
    computes = as_evaluator(network(**settings), precision, CUDA, evaluator)
    systems = structures()
    batches = Batches(computes, CUDA, precision, atoms=96)
    assert batches.graphs is not None
    for _ in range(2):
        results = found_in(batches, systems)
        assert batches.graphs.creations == 2
        assert 2 <= batches.graphs.memory.captures <= 4
    for place in (0, 17, 39, 40, 55, 79):
        one = Calculation([systems[place]], computes, device=CUDA, precision=precision, skin=0.0)
        one.compute()
        scale = float(one.state.forces.abs().max())
        np.testing.assert_allclose(results[place].energy, float(one.state.energy[0]), rtol=1e-11)
        np.testing.assert_allclose(
            results[place].forces, one.state.forces.cpu(), rtol=0, atol=1e-10 * scale
        )


def test_a_device_tells_how_long_it_computed() -> None:
    """By its own clock, of the batches that a graph evaluates."""
    precision = precision_named("mixed")
    batches = Batches(
        as_evaluator(network(**TENSORNET), precision, CUDA), CUDA, precision, atoms=96
    )
    systems = structures()
    for _ in range(2):
        found_in(batches, systems)
    before, began = batches.device_seconds, time.perf_counter()
    found_in(batches, systems)
    assert 0.0 < batches.device_seconds - before < time.perf_counter() - began


def test_graphs_are_captured_into_memory_whose_graphs_are_gone() -> None:
    memory = GraphMemory()
    sums = torch.zeros(1000, device=CUDA)
    for number in range(3):
        graph = memory.capture(lambda: sums.copy_(torch.ones_like(sums) + sums), CUDA)
        assert graph is not None
        sums.zero_()
        graph.replay()
        assert float(sums.sum()) == 1000.0, number
        del graph
        gc.collect()


def test_neighbors_in_a_batch_do_not_move_a_bit() -> None:
    precision = precision_named("mixed")
    computes = as_evaluator(network(**TENSORNET), precision, CUDA)
    systems = structures()
    batches = Batches(computes, CUDA, precision, atoms=96)
    first = found_in(batches, systems)
    order = np.random.default_rng(5).permutation(len(systems))
    second = found_in(batches, [systems[place] for place in order])
    for place, result in zip(order, second, strict=True):
        assert result.energy == first[place].energy
        np.testing.assert_array_equal(result.forces, first[place].forces)
