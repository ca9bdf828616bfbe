"""Temperatures of elements: wells whose answer is known, the Hessian of water, nothing is moved."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from toys import HarmonicWells

from mdgraph.analysis.plots import recorded_figure
from mdgraph.engine import (
    ElementTemperatures,
    LangevinMiddle,
    PositionRestraints,
    Simulation,
    VelocityVerlet,
)
from mdgraph.engine.calculation import Calculation
from mdgraph.engine.restart import load_restart_, save_restart
from mdgraph.io.structures import read_system
from mdgraph.system import System
from mdgraph.units import BOLTZMANN, KINETIC_ENERGY

STIFFNESS = 4.0
TABLE = {"device": "cpu", "precision": "double", "check": None}


def wells(count: int, width: float = 0.1) -> tuple[System, HarmonicWells]:
    """As many hydrogens as oxygens about their wells."""
    generator = np.random.default_rng(5)
    centres = np.zeros((count, 3))
    centres[:, 0] = 20.0 * np.arange(count)
    velocities = generator.normal(scale=0.01, size=(count, 3))
    places = centres + generator.normal(scale=width, size=(count, 3))
    system = System(np.tile([1, 8], count // 2), places, velocities=velocities)
    return system, HarmonicWells(torch.tensor(centres), STIFFNESS)


def sample(system: System, potential: Any, **options: Any) -> tuple[Simulation, Any]:
    """One sample after one step."""
    record = ElementTemperatures(every=1)
    run = Simulation(system, potential, VelocityVerlet(0.01), observe=[record], **(TABLE | options))
    run.run(1)
    return run, record.result()


@pytest.mark.parametrize("fixed", [(), (0, 1, 2)])
def test_a_sample_is_that_of_its_definition(fixed: tuple[int, ...]) -> None:
    system, potential = wells(20)
    run, result = sample(system, potential, fixed=fixed)
    assert result.elements == ("H", "O")
    loose = np.setdiff1d(np.arange(20), fixed)
    away = (run.state.positions - potential.centres).numpy()
    velocities = run.state.velocities.numpy()
    for place, number in enumerate((1, 8)):
        own = loose[system.numbers[loose] == number]
        # |kx|^2 / 3k of each atom.
        expected = STIFFNESS * (away[own] ** 2).sum() / (3 * len(own) * BOLTZMANN)
        assert result.configurational.mean[0, place] == pytest.approx(expected, rel=1e-9)
        squares = (system.masses[own, None] * velocities[own] ** 2).sum()
        expected = KINETIC_ENERGY * squares / (3 * len(own) * BOLTZMANN)
        # No momentum is conserved where atoms are fixed; without, it is not at rest.
        assert result.kinetic.mean[0, place] == pytest.approx(expected, rel=1e-9)


def test_springs_count() -> None:
    system, potential = wells(20)
    points = system.positions + 0.07
    springs = PositionRestraints(list(range(20)), 3.0, points)
    run, result = sample(system, potential, restraints=springs)
    away = (run.state.positions - potential.centres).numpy()
    forces = -STIFFNESS * away - 3.0 * (run.state.positions.numpy() - points)
    for place, number in enumerate((1, 8)):
        own = system.numbers == number
        expected = (forces[own] ** 2).sum() / (3 * own.sum() * (STIFFNESS + 3.0) * BOLTZMANN)
        assert result.configurational.mean[0, place] == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize("periodic", [True, False])
def test_shares_of_a_centre_of_mass_at_rest(periodic: bool) -> None:
    """With momentum at rest, heavy atoms have fewer degrees of freedom than light ones."""
    system, _ = wells(4)
    system = system.replace(
        velocities=None, cell=np.diag([80.0, 9.0, 9.0]), pbc=np.full(3, periodic)
    )
    free = HarmonicWells(torch.tensor(system.positions), 0.0)
    record = ElementTemperatures(every=1)
    run = Simulation(
        system, free, VelocityVerlet(0.5), temperature=300.0, observe=[record], **TABLE
    )
    run.run(1)
    missing = 3 * 4 - run.degrees_of_freedom[0]
    assert missing == (3 if periodic else 6)
    masses = system.masses / system.masses.sum()
    arms = run.state.positions.numpy() - masses @ run.state.positions.numpy()
    moment = sum(
        mass * (arm @ arm * np.eye(3) - np.outer(arm, arm))
        for mass, arm in zip(masses, arms, strict=True)
    )
    turns = masses * [
        np.trace(np.linalg.solve(moment, arm @ arm * np.eye(3) - np.outer(arm, arm)))
        for arm in arms
    ]
    for place, number in enumerate((1, 8)):
        own = system.numbers == number
        squares = (system.masses[own, None] * run.state.velocities.numpy()[own] ** 2).sum()
        degrees = 3 * own.sum() - 3 * masses[own].sum() - (0 if periodic else turns[own].sum())
        expected = KINETIC_ENERGY * squares / (degrees * BOLTZMANN)
        assert record.result().kinetic.mean[0, place] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("name", ["bent", "line", "pair"])
def test_elements_of_a_molecule_that_does_not_rotate_have_one_temperature(name: str) -> None:
    """Drawn velocities are in equilibrium, so all elements have the temperature of the draw."""
    numbers, places = {
        "bent": ([8, 1, 1, 6], [[0.0, 0, 0], [0.96, 0, 0], [-0.24, 0.93, 0], [0.1, -0.6, 1.2]]),
        "line": ([6, 8, 8], [[0.0, 0.05, 0], [1.16, 0, 0], [-1.16, 0, 0]]),
        "pair": ([17, 1], [[0.0, 0, 0], [1.27, 0, 0]]),
    }[name]
    tilted = np.linalg.qr(np.random.default_rng(2).normal(size=(3, 3)))[0]
    places = np.array(places) @ tilted + 5.0
    system = System(numbers, places)
    still = HarmonicWells(torch.tensor(np.tile(places, (4000, 1))), 0.0)
    record = ElementTemperatures(every=1)
    run = Simulation(
        [system] * 4000,
        still,
        VelocityVerlet(1e-3),
        temperature=300.0,
        observe=[record],
        seed=3,
        **TABLE,
    )
    run.run(1)
    kinetic = record.result().kinetic.mean
    errors = kinetic.std(0) / len(kinetic) ** 0.5
    assert np.abs((kinetic.mean(0) - 300.0) / errors).max() < 4.0


@pytest.mark.statistical
def test_a_bath_gives_its_temperature_and_honest_errors() -> None:
    system, potential = wells(40)
    record = ElementTemperatures(every=10, start=500)
    run = Simulation(
        system,
        potential,
        LangevinMiddle(2.0, 300.0, friction=20.0),
        observe=[record],
        seed=4,
        **TABLE,
    )
    run.run(30_500)
    result = record.result()
    assert result.samples == 3000
    for blocked in (result.kinetic, result.configurational):
        assert (np.abs(blocked.mean - 300.0) < 4.0 * blocked.error).all()
        # 60 squares of a normal number vary by sqrt(2 / 60), and samples are correlated.
        alone = 300.0 * (2.0 / 60.0 / 3000.0) ** 0.5
        assert (blocked.error > 0.9 * alone).all()
        assert (blocked.error < 6.0 * alone).all()


def test_too_long_a_step_shows_in_where_atoms_are() -> None:
    """Velocity Verlet conserves m v^2 + k x^2 (1 - (w dt / 2)^2)."""
    system, potential = wells(40)
    system = system.replace(numbers=np.ones(40, dtype=int), masses=np.ones(40))
    period = 2.0 * np.pi / (STIFFNESS / KINETIC_ENERGY) ** 0.5
    record = ElementTemperatures(every=1)
    run = Simulation(system, potential, VelocityVerlet(0.19 * period), observe=[record], **TABLE)
    run.run(600)
    result = record.result()
    ratio = result.configurational.mean[0, 0] / result.kinetic.mean[0, 0]
    assert ratio == pytest.approx(1.0 / (1.0 - (np.pi * 0.19) ** 2), rel=0.005)


def second_derivatives(system: System, potential: str) -> np.ndarray:
    """Second derivative of the energy by each coordinate (N, 3), eV/A^2, one after the other."""
    calculation = Calculation(
        [system], potential, device="cpu", precision="double", evaluator="reference"
    )
    step, values = 1e-3, np.zeros(system.positions.shape)
    for place in np.ndindex(*values.shape):
        forces = []
        for sign in (-1.0, 1.0):
            positions = system.positions.copy()
            positions[place] += sign * step
            calculation.place(positions)
            forces.append(calculation.computed().forces[place])
        values[place] = (forces[0] - forces[1]) / (2.0 * step)
    return values


def test_curvature_of_water_is_that_of_its_hessian(water_file: Path) -> None:
    """Over random directions, with the error that they tell."""
    system = read_system(water_file)
    exact = second_derivatives(system, "water-pbe0")
    record = ElementTemperatures(every=1)
    run = Simulation(
        system,
        "water-pbe0",
        VelocityVerlet(1e-9),
        evaluator="reference",
        observe=[record],
        **TABLE,
    )
    run.run(24)
    result = record.result()
    forces = run.state.forces.numpy()
    for place, number in enumerate((1, 8)):
        own = system.numbers == number
        expected = (forces[own] ** 2).sum() / exact[own].sum() / BOLTZMANN
        error = result.configurational.error[0, place]
        assert error < 0.15 * expected
        assert abs(result.configurational.mean[0, place] - expected) < 3.5 * error


def test_it_moves_nothing_and_goes_on_with_the_same_bits(
    tiny_potential: Path, water_file: Path, tmp_path: Path
) -> None:
    def simulation(*records: Any, chunk: int = 10) -> Simulation:
        return Simulation(
            read_system(water_file),
            str(tiny_potential),
            LangevinMiddle(0.5, 300.0),
            evaluator="reference",
            observe=records,
            chunk=chunk,
            device="cpu",
            check=None,
        )

    plain, watched = simulation(), simulation(ElementTemperatures(every=4))
    for run in (plain, watched):
        run.run(20)
    assert watched.online[0].samples() == 5
    for name, tensor in plain.state.tensors().items():
        assert torch.equal(tensor, watched.state.tensors()[name]), name
    begun = simulation(ElementTemperatures(every=4), chunk=3)
    begun.run(10)
    save_restart(begun, tmp_path / "restart.safetensors")
    resumed = simulation(ElementTemperatures(every=4))
    load_restart_(resumed, tmp_path / "restart.safetensors")
    resumed.run(10)
    for name, tensor in watched.online.tensors().items():
        assert torch.equal(tensor, resumed.online.tensors()[name]), name


def test_of_two_potentials_the_large_one_counts() -> None:
    system, large = wells(20)
    small = HarmonicWells(large.centres, 0.5 * STIFFNESS)
    record = ElementTemperatures(every=4)
    run = Simulation(
        system,
        large,
        VelocityVerlet(0.01),
        observe=[record],
        inner_potential=small,
        inner_steps=4,
        **TABLE,
    )
    run.run(4)
    away = (run.state.positions - large.centres).numpy()[system.numbers == 1]
    expected = STIFFNESS * (away**2).sum() / (30 * BOLTZMANN)
    assert record.result().configurational.mean[0, 0] == pytest.approx(expected, rel=1e-9)


def test_tables_and_pictures(tmp_path: Path) -> None:
    system, potential = wells(20)
    record = ElementTemperatures(every=2)
    run = Simulation(
        [system, system.select(range(0, 20, 2))],
        potential=HarmonicWells(torch.cat([potential.centres, potential.centres[::2]]), STIFFNESS),
        integrator=VelocityVerlet(0.5),
        observe=[record],
        **TABLE,
    )
    run.run(20)
    rows = record.result().rows()
    # The second system has no oxygen.
    assert [(row["system"], row["element"]) for row in rows] == [(0, "H"), (0, "O"), (1, "H")]
    assert set(rows[0]) == {
        "system",
        "element",
        "kinetic_K",
        "kinetic_error_K",
        "configurational_K",
        "configurational_error_K",
    }
    assert all(np.isfinite(list(row.values())[2:]).all() for row in rows)
    axes = recorded_figure(record.result()).axes[0]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["H", "O"]
