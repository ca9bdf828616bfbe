"""Structures minimised many at once come to rest where each would alone."""

import logging

import numpy as np
import pytest
import torch
from toys import LennardJones, argon

from mdgraph.engine import FIRE, Simulation, minimize
from mdgraph.engine.relaxation import Relaxed, relax
from mdgraph.errors import InputError
from mdgraph.evaluators import AutogradEvaluator
from mdgraph.precision import precision_named
from mdgraph.system import System

ARGON = AutogradEvaluator(LennardJones(0.0104, 3.4, 5.5))
OPTIONS = {"device": torch.device("cpu"), "precision": precision_named("double")}


def drop(size: int) -> System:
    generator = np.random.default_rng(size)
    points = np.stack(np.meshgrid(*[np.arange(3)] * 3, indexing="ij"), -1).reshape(-1, 3)
    positions = 3.8 * points[:size] + generator.normal(scale=0.1, size=(size, 3))
    return System(np.full(size, 18), positions)


def relaxed(systems: list[System], fire: FIRE, steps: int = 600, atoms: int = 60) -> list[Relaxed]:
    names = [f"structure {place}" for place in range(len(systems))]
    found = dict(relax(systems, names, ARGON, fire, steps, atoms=atoms, **OPTIONS))
    assert sorted(found) == list(range(len(systems)))
    return [found[place] for place in range(len(systems))]


def test_each_structure_relaxes_as_it_would_alone() -> None:
    crystal = argon(2)
    shaken = crystal.positions + np.random.default_rng(3).normal(scale=0.2, size=(32, 3))
    systems = [drop(4), crystal.replace(positions=shaken), drop(9), drop(13), drop(6)]
    for found, system in zip(relaxed(systems, FIRE(1e-3)), systems, strict=True):
        assert found.converged
        assert found.largest_force < 1e-3
        run = Simulation(system, ARGON, FIRE(1e-3), **OPTIONS)
        alone = minimize(run, 600)
        np.testing.assert_allclose(found.result.energy, float(alone.energy), rtol=1e-9)
        np.testing.assert_allclose(found.system.positions, run.state.positions, atol=1e-6)
        np.testing.assert_allclose(found.result.forces, run.state.forces, atol=1e-6)
        np.testing.assert_array_equal(found.system.cell, system.cell)


def test_cells_move_with_their_atoms() -> None:
    wide = argon(2).replace(positions=1.03 * argon(2).positions, cell=1.03 * argon(2).cell)
    fire = FIRE(1e-3, cell_dof="isotropic", stress_tolerance=1e-5)
    found = relaxed([argon(2), wide], fire, atoms=200)
    volumes = [one.system.volume for one in found]
    assert all(one.converged for one in found)
    np.testing.assert_allclose(volumes[0], volumes[1], rtol=1e-3)
    assert volumes[1] < 0.99 * wide.volume


def test_structures_that_do_not_converge_are_reported() -> None:
    first, second = relaxed([drop(5), drop(7)], FIRE(1e-4), steps=10)
    assert not first.converged
    assert second.largest_force > 1e-4


def test_an_invalid_structure_is_named() -> None:
    with pytest.raises(InputError, match="structure 0: "):
        relaxed([drop(5), argon(2)], FIRE(1e-3, cell_dof="isotropic"))


@pytest.mark.gpu
def test_a_gpu_finds_the_same_minima_and_measures_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Batches are many and short: seconds of measurement for each would be most of the time."""
    systems, fire = [drop(4), drop(9), drop(13)], FIRE(1e-7)
    names, options = ["", "", ""], OPTIONS | {"device": torch.device("cuda")}
    with caplog.at_level(logging.INFO, logger="mdgraph"):
        found = dict(relax(systems, names, ARGON, fire, 700, atoms=20, **options))
    assert not [one for one in caplog.messages if one.startswith("A step takes")]
    for place, here in enumerate(relaxed(systems, fire, steps=700, atoms=20)):
        assert max(here.largest_force, found[place].largest_force) < 1e-5
        np.testing.assert_allclose(found[place].system.positions, here.system.positions, atol=1e-4)
