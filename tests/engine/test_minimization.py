"""FIRE on the device: minima of atoms and cells, many at once."""

import logging

import numpy as np
import pytest
import torch
from toys import HarmonicWells, LennardJones, argon

from mdgraph.engine import FIRE, Calculation, Simulation, VelocityVerlet, minimize
from mdgraph.errors import InputError, SimulationError
from mdgraph.system import System

POTENTIAL = LennardJones(0.0104, 3.4, 5.5)


def simulation(systems, integrator: FIRE, **options) -> Simulation:
    options = {"device": "cpu", "precision": "double"} | options
    return Simulation(systems, POTENTIAL, integrator, **options)


def shaken(seed: int, width: float = 0.3) -> System:
    system = argon(2)
    generator = np.random.default_rng(seed)
    return system.replace(positions=system.positions + generator.normal(scale=width, size=(32, 3)))


def lattice_energy(edge: float) -> float:
    """Of perfect argon with this edge of the cubic cell, an atom."""
    base = np.array([[0, 0, 0], [0, 0.5, 0.5], [0.5, 0, 0.5], [0.5, 0.5, 0]])
    crystal = argon(1).replace(positions=base * edge, cell=np.eye(3) * edge)
    calculation = Calculation([crystal], POTENTIAL, device="cpu", precision="double")
    calculation.compute()
    return float(calculation.state.energy[0]) / 4


def test_argon_falls_back_to_its_lattice_and_keeps_its_cell() -> None:
    run = simulation([shaken(1), shaken(2, 0.1), argon(2)], FIRE(1e-5), temperature=80.0)
    velocities = run.state.velocities.clone()
    found = minimize(run, 400)
    assert found.converged.all()
    assert (found.largest_force < 1e-5).all()
    assert 10 < found.steps <= 400
    expected = 32 * lattice_energy(5.8)
    np.testing.assert_allclose(found.energy.numpy(), expected, atol=1e-6)
    np.testing.assert_array_equal(run.state.cell[0].numpy(), argon(2).cell)
    assert torch.equal(run.state.velocities, velocities)


@pytest.mark.parametrize("cell_dof", ["isotropic", "axes", "full"])
@pytest.mark.parametrize("pressure", [0.0, 2e-3])
def test_a_cell_relaxes_to_the_target_pressure(cell_dof: str, pressure: float) -> None:
    wide = argon(2).replace(positions=1.04 * argon(2).positions, cell=1.04 * argon(2).cell)
    integrator = FIRE(1e-4, cell_dof=cell_dof, pressure=pressure, stress_tolerance=1e-6)
    run = simulation([argon(2), wide], integrator)
    found = minimize(run, 800)
    assert found.converged.all()
    edges = np.linspace(5.2, 5.7, 5001)
    some = np.array([lattice_energy(edge) for edge in edges[::100]])
    curve = np.polynomial.Chebyshev.fit(edges[::100], some, 12)
    best = edges[(curve(edges) + pressure * edges**3 / 4).argmin()]
    edge = run.observables().volume.numpy() ** (1 / 3) / 2
    np.testing.assert_allclose(edge, best, atol=5e-4)
    stress = -run.state.virial / run.observables().volume[:, None, None]
    expected = -pressure * torch.eye(3, dtype=torch.float64)
    assert float((stress - expected).abs().max()) < 2e-6


def test_a_sheared_crystal_straightens_with_a_full_cell_alone() -> None:
    sheared = np.array([[11.6, 0.9, 0.0], [0.0, 11.6, 0.0], [-0.5, 0.0, 11.6]])
    system = argon(2).replace(
        cell=sheared, positions=argon(2).positions @ np.linalg.inv(argon(2).cell) @ sheared
    )
    angles = {}
    for cell_dof in ("isotropic", "full"):
        run = simulation(system, FIRE(1e-4, cell_dof=cell_dof, stress_tolerance=1e-6))
        assert minimize(run, 1000).converged.all()
        cell = run.state.cell[0].numpy()
        unit = cell / np.linalg.norm(cell, axis=1)[:, None]
        angles[cell_dof] = np.abs(unit @ unit.T - np.eye(3)).max()
    assert angles["isotropic"] > 0.07
    assert angles["full"] < 1e-3


def test_each_system_rests_where_it_would_alone() -> None:
    alone, batch = (simulation(s, FIRE(1e-3)) for s in ([shaken(4)], [shaken(4), shaken(5)]))
    for run in (alone, batch):
        minimize(run, 400)
    np.testing.assert_allclose(
        batch.state.positions[:32].numpy(), alone.state.positions.numpy(), atol=1e-8
    )
    # A system that rests keeps its bits while others move on.
    run = simulation([shaken(4), argon(2)], FIRE(1e-6))
    minimize(run, 3000)
    settled = run.state.positions.clone()
    run.run(20)
    assert torch.equal(run.state.positions, settled)


def test_fixed_atoms_are_left_out() -> None:
    run = simulation(shaken(6), FIRE(1e-3), fixed=range(16))
    start = run.state.positions.clone()
    assert minimize(run, 500).converged.all()
    assert torch.equal(run.state.positions[:16], start[:16])
    assert float(run.state.forces[:16].norm(dim=1).max()) > 1e-2
    assert float(run.state.forces[16:].norm(dim=1).max()) < 1e-3


def test_no_step_is_longer_than_the_largest_even_from_a_clash() -> None:
    pair = System(numbers=[18, 18], positions=[[0, 0, 0], [0, 0, 1.2]])
    run = simulation(pair, FIRE(1e-4, largest_step=0.05), chunk=1, maximum_temperature=1e9)
    for _ in range(30):
        before = run.state.positions.clone()
        run.run(1)
        assert float((run.state.positions - before).norm(dim=1).max()) <= 0.05 * (1 + 1e-12)
    assert minimize(run, 500).converged.all()
    apart = float((run.state.positions[1] - run.state.positions[0]).norm())
    # The slope of a pair at the cutoff is taken off everywhere.
    end = 3.4 / 5.5
    slope = 4 * 0.0104 * (-12 * end**12 + 6 * end**6) / 5.5
    distance = np.linspace(3.5, 4.2, 70_001)
    ratio = 3.4 / distance
    energy = 4 * 0.0104 * (ratio**12 - ratio**6) - slope * distance
    assert apart == pytest.approx(distance[energy.argmin()], abs=2e-3)


def test_a_minimisation_that_does_not_converge_gives_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    run = simulation(shaken(1), FIRE(1e-9))
    with caplog.at_level(logging.INFO):
        found = minimize(run, 7)
    assert (found.steps, found.converged.tolist()) == (7, [False])
    assert caplog.records[-1].levelno == logging.WARNING
    assert "0 of 1 systems minimised after 7 steps" in caplog.text


def test_forces_that_are_not_finite_stop_it() -> None:
    class Broken(HarmonicWells):
        def evaluate_(self, state, lists) -> None:
            super().evaluate_(state, lists)
            state.forces[1] = torch.where(state.step == 3, torch.nan, state.forces[1])

    wells = Broken(torch.zeros(4, 3, dtype=torch.float64), 1.0)
    run = Simulation(argon(1), wells, FIRE(1e-6), device="cpu")
    with pytest.raises(SimulationError, match="atoms 1 are not finite"):
        minimize(run, 50)


def test_a_cell_that_collapses_ends_it() -> None:
    """Under 100 TPa, which atoms that hardly repel do not withstand."""
    fire = FIRE(cell_dof="isotropic", pressure=624.0)
    run = Simulation(argon(2), LennardJones(1e-9, 3.4, 5.5), fire, device="cpu", check=None)
    with pytest.raises(
        SimulationError, match=r"collapsed to 1\.\d* A\^3 an atom at step \d+, denser"
    ):
        minimize(run, 500)


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (lambda: FIRE(0.0), "tolerance of forces is 0"),
        (lambda: FIRE(largest_step=-1.0), "largest step is -1"),
        (lambda: FIRE(cell_dof="full", stress_tolerance=0.0), "tolerance of stresses is 0"),
        (lambda: FIRE(cell_dof="upwards"), "cannot vary 'upwards'"),
        (lambda: minimize(simulation(argon(2), VelocityVerlet(1.0)), 5), "finds no minimum"),
        (lambda: simulation(argon(2), FIRE(cell_dof="full"), fixed=[0]), "Fixed atoms would not"),
    ],
)
def test_invalid_arguments_are_refused(attempt, words) -> None:
    with pytest.raises(InputError, match=words):
        attempt()
