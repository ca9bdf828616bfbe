"""OpenMM's own Simulation, advanced by the engine."""

import io
import logging
import threading
from pathlib import Path
from typing import Any

import numpy as np
import openmm
import pytest
import torch
from openmm import app, unit
from openmm_water import (
    EDGE,
    EV,
    bare_system,
    charged,
    langevin,
    masses,
    positions,
    shown,
    simulation,
    structure,
    topology,
    velocities,
    verlet,
)

from mdgraph.drivers.openmm import reduced
from mdgraph.engine import LangevinMiddle, NoseHooverChains, StochasticCellRescaling, VelocityVerlet
from mdgraph.engine import Simulation as Engine
from mdgraph.engine.calculation import as_evaluator
from mdgraph.errors import FileError, InputError, SimulationError
from mdgraph.precision import precision_named
from mdgraph.system import make_whole
from mdgraph.units import BAR


def native(potential: Any, integrator: Any, seed: int = 5, **options: Any) -> Engine:
    options = {"device": "cpu", "skin": 0.3, "check": False, "seed": seed} | options
    return Engine(structure(), potential, integrator, **options)


def nose_hoover() -> openmm.NoseHooverIntegrator:
    return openmm.NoseHooverIntegrator(
        300.0 * unit.kelvin, 20.0 / unit.picosecond, 0.5 * unit.femtoseconds
    )


PAIRS = {
    "Verlet": (verlet, lambda: VelocityVerlet(0.5)),
    "Langevin": (langevin, lambda: LangevinMiddle(0.5, 300.0, 2.0)),
    "Nose-Hoover": (nose_hoover, lambda: NoseHooverChains(0.5, 300.0, 50.0)),
}


@pytest.mark.parametrize("name", PAIRS)
def test_trajectories_are_those_of_the_engine(tiny_potential: Path, name: str) -> None:
    """To the bit, however reports cut the run, and states say what the engine says."""
    make, own = PAIRS[name]
    made = simulation(tiny_potential, make())
    made.reporters.append(app.StateDataReporter(io.StringIO(), 7, potentialEnergy=True))
    made.step(25)
    expected = native(tiny_potential, own())
    expected.run(25)
    assert made.engine.degrees_of_freedom == expected.degrees_of_freedom
    for kind in ("positions", "velocities", "forces", "energy"):
        assert torch.equal(getattr(made.engine.state, kind), getattr(expected.state, kind))
    state = shown(made, positions=True, velocities=True, forces=True, energy=True)
    seen = expected.observables()
    np.testing.assert_allclose(
        state.getPositions(asNumpy=True).value_in_unit(unit.angstrom),
        expected.state.positions,
        rtol=1e-14,
    )
    np.testing.assert_allclose(
        state.getVelocities(asNumpy=True).value_in_unit(unit.angstrom / unit.femtosecond),
        expected.state.velocities,
        rtol=1e-14,
    )
    np.testing.assert_allclose(
        state.getForces(asNumpy=True)._value / (10.0 * EV), expected.state.forces, atol=1e-13
    )
    energies = [one._value / EV for one in (state.getPotentialEnergy(), state.getKineticEnergy())]
    assert energies[0] == pytest.approx(float(seen.potential_energy[0]), rel=1e-13)
    assert energies[1] == pytest.approx(float(seen.kinetic_energy[0]), rel=1e-9)
    temperature = made.integrator.computeSystemTemperature() / unit.kelvin
    assert temperature == pytest.approx(float(seen.temperature[0]))
    assert made.currentStep == state.getStepCount() == 25
    assert state.getTime() / unit.femtosecond == pytest.approx(12.5)


def test_the_context_is_updated_only_when_it_is_read(
    tiny_potential: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = simulation(tiny_potential, verlet())
    calculation = made.engine.calculation
    counted = []
    update = calculation.update_
    monkeypatch.setattr(calculation, "update_", lambda: (counted.append(1), update()))
    made.step(20)
    assert openmm.Context.getStepCount(made.context) == 0
    assert made.currentStep == 20
    for _ in range(3):
        shown(made, positions=True, velocities=True, forces=True, energy=True)
    assert openmm.Context.getStepCount(made.context) == 20
    assert len(counted) == 20
    # Fewer steps than a chunk wait for whoever looks first.
    made.integrator.step(3)
    assert len(counted) == 20
    assert made.currentStep == 23
    assert made.context.getTime() / unit.femtosecond == pytest.approx(11.5)
    assert len(counted) == 23


# States and checkpoints


def test_a_checkpoint_goes_on_with_the_same_bits(tiny_potential: Path, tmp_path: Path) -> None:
    path = str(tmp_path / "half.chk")
    first = simulation(tiny_potential, langevin())
    first.step(13)
    first.saveCheckpoint(path)
    first.step(12)
    other = simulation(tiny_potential, langevin(seed=77), start=False)
    other.loadCheckpoint(path)
    assert other.currentStep == 13
    other.step(12)
    state = first.engine.state
    for name in ("positions", "velocities", "energy", "step"):
        assert torch.equal(getattr(state, name), getattr(other.engine.state, name))
    first.loadCheckpoint(path)
    assert first.currentStep == 13
    first.step(12)
    assert torch.equal(first.engine.state.positions, other.engine.state.positions)


def test_a_run_from_a_state_repeats_up_to_rounding(tiny_potential: Path, tmp_path: Path) -> None:
    path = str(tmp_path / "state.xml")
    first = simulation(tiny_potential, langevin())
    first.step(13)
    first.saveState(path)
    first.step(12)
    other = simulation(tiny_potential, langevin(), start=False, state=path)
    assert other.currentStep == 13
    other.step(12)
    assert other.context.getTime() / unit.femtosecond == pytest.approx(12.5)
    difference = other.engine.state.positions - first.engine.state.positions
    assert float(difference.abs().max()) < 1e-9


@pytest.mark.parametrize("integrator", [langevin(), nose_hoover()])
def test_states_of_other_simulations_are_loaded(
    tiny_potential: Path, integrator: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """As after an equilibration with a force field at constant pressure."""
    system, force_field = barostat_system(), openmm.HarmonicBondForce()
    force_field.setUsesPeriodicBoundaryConditions(True)
    system.addForce(force_field)
    context = openmm.Context(system, integrator, openmm.Platform.getPlatformByName("Reference"))
    context.setPeriodicBoxVectors([0.71, 0, 0], [0, 0.71, 0], [0, 0, 0.71])
    context.setPositions(positions() * 0.1)
    context.setVelocities(velocities())
    context.setStepCount(400)
    state = context.getState(
        positions=True, velocities=True, parameters=True, integratorParameters=True
    )
    caplog.set_level(logging.INFO)
    made = simulation(tiny_potential, langevin())
    made.step(1)
    made.context.setState(state)
    assert "parameters MonteCarloPressure, MonteCarloTemperature" in caplog.text
    assert made.engine.step == 400
    assert float(made.engine.state.cell[0, 0, 0]) == pytest.approx(7.1)
    np.testing.assert_allclose(made.engine.state.positions, positions(), atol=1e-12)
    made.step(1)


def test_checkpoints_that_do_not_fit_are_refused(tiny_potential: Path) -> None:
    other = simulation(tiny_potential, verlet(), topology=topology(2), start=False)
    other.context.setPositions(positions(2) * unit.angstrom)
    made = simulation(tiny_potential, verlet())
    made.step(2)
    for content, error, message in (
        (other.context.createCheckpoint(), InputError, "holds 6 atoms, the topology 12"),
        (b"something else", FileError, "not a checkpoint of mdgraph"),
        (
            simulation(tiny_potential, langevin()).context.createCheckpoint(),
            InputError,
            "The checkpoint was written with integrator",
        ),
    ):
        with pytest.raises(error, match=message) as caught:
            made.loadCheckpoint(io.BytesIO(content))
        assert "/tmp" not in str(caught.value)
    made.step(2)
    assert made.currentStep == 4


# What is written into the Context


def test_minimisation_finds_a_minimum_and_dynamics_go_on(tiny_potential: Path) -> None:
    made = simulation(tiny_potential, langevin())
    made.step(3)
    before = shown(made, energy=True).getPotentialEnergy()
    made.minimizeEnergy(tolerance=20.0, maxIterations=300)
    state = shown(made, energy=True, forces=True, positions=True)
    assert state.getPotentialEnergy() < before
    forces = state.getForces(asNumpy=True)._value
    assert np.sqrt(np.square(forces).mean()) < 20.0
    np.testing.assert_allclose(
        made.engine.state.positions, state.getPositions(asNumpy=True)._value * 10.0, atol=1e-12
    )
    made.step(3)
    assert made.currentStep == 6
    with pytest.raises(openmm.OpenMMException, match="older than the engine"):
        openmm.LocalEnergyMinimizer.minimize(made.context)


def test_positions_velocities_and_boxes_of_the_context_reach_the_engine(
    tiny_potential: Path,
) -> None:
    made = simulation(tiny_potential, verlet())
    made.step(5)
    moved = positions(seed=8) * 0.1
    made.context.setPositions(moved)
    made.context.setVelocitiesToTemperature(400.0, 3)
    wanted = shown(made, velocities=True).getVelocities(asNumpy=True)._value
    made.context.setPeriodicBoxVectors([0.72, 0, 0], [0, 0.72, 0], [0.1, 0, 0.72])
    expected = Engine(
        structure().replace(
            positions=moved * 10.0,
            velocities=wanted * 0.01,
            cell=np.array([[7.2, 0, 0], [0, 7.2, 0], [1.0, 0, 7.2]]),
        ),
        tiny_potential,
        VelocityVerlet(0.5),
        device="cpu",
        check=False,
    )
    energy = shown(made, energy=True).getPotentialEnergy() / unit.kilojoule_per_mole
    assert energy == pytest.approx(float(expected.state.energy[0]) * EV, rel=1e-12)
    assert made.currentStep == 5
    made.step(5)
    expected.run(5)
    np.testing.assert_allclose(made.engine.state.positions, expected.state.positions, atol=1e-10)
    made.context.setTime(3.0)
    made.context.setStepCount(100)
    made.step(2)
    assert made.currentStep == 102
    assert made.context.getTime() / unit.picosecond == pytest.approx(3.001)


def test_parameters_take_effect_at_the_next_step(tiny_potential: Path) -> None:
    """Set on the integrator that was given or on the one that the Simulation shows."""
    given = langevin()
    made = simulation(tiny_potential, given)
    expected = native(tiny_potential, LangevinMiddle(0.5, 300.0, 2.0))
    for one in (made.step, expected.run):
        one(3)
    given.setTemperature(350.0 * unit.kelvin)
    made.integrator.setFriction(5.0)
    expected.set(temperature=350.0, friction=5.0)
    for one in (made.step, expected.run):
        one(3)
    made.integrator.setStepSize(0.25 * unit.femtosecond)
    expected.set(timestep=0.25)
    for one in (made.step, expected.run):
        one(3)
    assert torch.equal(made.engine.state.positions, expected.state.positions)
    assert made.integrator.getTemperature() / unit.kelvin == 350.0
    assert made.context.getTime() / unit.femtosecond == pytest.approx(3.75)


def test_a_new_box_keeps_parameters_that_changed_before(tiny_potential: Path) -> None:
    made = simulation(tiny_potential, langevin())
    made.step(2)
    made.integrator.setTemperature(350.0)
    made.context.setPeriodicBoxVectors([0.76, 0, 0], [0, 0.76, 0], [0, 0, 0.76])
    made.step(1)
    assert float(made.engine.integrator.values()["temperature"][0]) == 350.0


def test_the_step_size_is_that_of_the_engine(tiny_potential: Path) -> None:
    """Speeds in a log are reckoned by it."""
    made = simulation(tiny_potential, VelocityVerlet(0.5))
    made.engine.set(timestep=0.25)
    assert made.integrator.getStepSize() / unit.femtosecond == pytest.approx(0.25)


# Systems


def barostat_system(temperature: float = 300.0) -> openmm.System:
    system = bare_system()
    system.addForce(openmm.MonteCarloBarostat(100.0 * unit.bar, temperature * unit.kelvin))
    return system


@pytest.mark.parametrize(
    ("z", "cell_dof"), [("ZFree", "semiisotropic"), ("ZFixed", "semiisotropic-fixed-z")]
)
def test_a_membrane_scales_x_and_y_together(tiny_potential: Path, z: str, cell_dof: str) -> None:
    kind = openmm.MonteCarloMembraneBarostat
    system = bare_system()
    system.addForce(kind(100.0, 0.0, 300.0, kind.XYIsotropic, getattr(kind, z)))
    made = simulation(tiny_potential, langevin(), system)
    made.step(5)
    expected = native(
        tiny_potential,
        StochasticCellRescaling(0.5, 300.0, 100.0 * BAR, tau=250.0, cell_dof=cell_dof),
    )
    expected.run(5)
    assert torch.equal(made.engine.state.cell, expected.state.cell)
    cell = made.engine.state.cell[0]
    assert cell[0, 0] == cell[1, 1] != EDGE
    assert (cell[2, 2] == EDGE) == (z == "ZFixed")
    made.context.setParameter(kind.Pressure(), 200.0)
    expected.set(pressure=200.0 * BAR)
    made.step(5)
    expected.run(5)
    assert torch.equal(made.engine.state.cell, expected.state.cell)


def test_a_barostat_becomes_cell_rescaling(
    tiny_potential: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    made = simulation(tiny_potential, langevin(), barostat_system())
    made.step(10)
    assert "stochastic cell rescaling (isotropic) at 100 bar" in caplog.text
    integrator = StochasticCellRescaling(0.5, 300.0, 100.0 * BAR, tau=250.0)
    expected = native(tiny_potential, integrator)
    expected.run(10)
    assert torch.equal(made.engine.state.cell, expected.state.cell)
    box = shown(made).getPeriodicBoxVectors(asNumpy=True).value_in_unit(unit.angstrom)
    np.testing.assert_allclose(box, expected.state.cell[0], rtol=1e-14)
    assert abs(box[0, 0] - EDGE) > 1e-6
    made.context.setParameter(openmm.MonteCarloBarostat.Pressure(), 200.0)
    expected.set(pressure=200.0 * BAR)
    made.step(5)
    expected.run(5)
    assert torch.equal(made.engine.state.cell, expected.state.cell)
    # OpenMM would find the pressure by boxes that the engine never hears of.
    energy = shown(made, energy=True).getPotentialEnergy()
    barostat = next(one for one in made.system.getForces() if "Barostat" in one.getName())
    with pytest.raises(openmm.OpenMMException, match=r"observables\(\)\.pressure"):
        barostat.computeCurrentPressure(made.context)
    assert shown(made, energy=True).getPotentialEnergy() == energy
    made.integrator.setTemperature(310.0)
    with pytest.raises(InputError, match="at 300 K, the bath at 310 K"):
        made.step(1)


def test_masses_fixed_atoms_and_momentum_come_from_the_system(tiny_potential: Path) -> None:
    system = bare_system()
    system.setParticleMass(1, 3.0)
    system.setParticleMass(3, 0.0)
    made = simulation(tiny_potential, verlet(), system)
    made.step(4)
    assert float(made.engine.state.masses[1]) == 3.0
    assert torch.equal(made.engine.state.velocities[3], torch.zeros(3, dtype=torch.float64))
    np.testing.assert_allclose(made.engine.state.positions[3], positions()[3], atol=1e-12)
    assert made.engine.degrees_of_freedom == (33,)
    system = bare_system()
    system.addForce(openmm.CMMotionRemover(2))
    made = simulation(tiny_potential, verlet(), system)
    made.step(1)
    seen = shown(made, velocities=True).getVelocities(asNumpy=True)._value
    assert np.abs(np.array(masses()) @ seen).max() < 1e-10
    assert made.engine.degrees_of_freedom == (33,)
    assert made.engine.remove_momentum == 2
    assert len(system.getForces()) == 1


def test_two_simulations_share_an_evaluator_with_their_own_charges(tiny_potential: Path) -> None:
    """One evaluator serves two drivers at a time, and each has its own charge."""
    evaluator = as_evaluator(charged(5.0), precision_named("mixed"), torch.device("cpu"))
    both = [simulation(evaluator, verlet(), charge=charge) for charge in (None, 1.0)]
    for _ in range(3):
        for one in both:
            one.step(2)
    for one, charge in zip(both, (0.0, 1.0), strict=True):
        expected = Engine(
            structure(), charged(5.0), VelocityVerlet(0.5), device="cpu", charge=charge, check=False
        )
        expected.run(6)
        assert float(one.engine.state.energy[0]) == pytest.approx(float(expected.state.energy[0]))
    energies = [float(one.engine.state.energy[0]) for one in both]
    assert abs(energies[1] - energies[0]) > 1e-3


# Boxes


def test_any_lattice_is_reduced() -> None:
    generator = np.random.default_rng(4)
    system = openmm.System()
    for _ in range(50):
        cell = generator.normal(size=(3, 3)) * 5.0
        box, rotation = reduced(cell)
        system.setDefaultPeriodicBoxVectors(*box)  # OpenMM refuses any other form
        np.testing.assert_allclose(rotation @ rotation.T, np.eye(3), atol=1e-13)
        assert np.linalg.det(rotation) == pytest.approx(1.0)
        steps = box @ np.linalg.inv(cell @ rotation)
        np.testing.assert_allclose(steps, np.round(steps), atol=1e-8)
        assert abs(np.linalg.det(steps)) == pytest.approx(1.0)
    box = np.array([[4.0, 0, 0], [2.0, 5.0, 0], [-1.0, 2.5, 6.0]])
    same, rotation = reduced(box)
    np.testing.assert_array_equal(same, box)
    np.testing.assert_array_equal(rotation, np.eye(3))


def test_a_cell_that_leaves_the_reduced_form_is_rotated_with_its_atoms(
    tiny_potential: Path,
) -> None:
    """Shear makes vectors that OpenMM does not know; what is shown is the same, turned."""
    pull = StochasticCellRescaling(0.5, 300.0, -2e3 * BAR, tau_p=20.0, cell_dof="full")
    made = simulation(tiny_potential, pull, seed=9)
    made.step(30)
    state = shown(made, positions=True, velocities=True, forces=True, energy=True)
    own = made.engine.state
    assert float(own.cell[0].triu(1).abs().max()) > 1e-3
    turned = reduced(own.cell[0].numpy())[1]
    np.testing.assert_allclose(
        state.getPositions(asNumpy=True)._value * 10.0, own.positions.numpy() @ turned, atol=1e-12
    )
    again = simulation(tiny_potential, verlet(), start=False)
    again.context.setPeriodicBoxVectors(*state.getPeriodicBoxVectors())
    again.context.setPositions(state.getPositions())
    other = shown(again, forces=True, energy=True)
    assert other.getPotentialEnergy()._value == pytest.approx(state.getPotentialEnergy()._value)
    forces = [one.getForces(asNumpy=True)._value for one in (other, state)]
    np.testing.assert_allclose(forces[0], forces[1], atol=1e-3)
    # What is written there comes back turned as well.
    made.context.setVelocities(state.getVelocities())
    before = own.velocities.clone()
    assert torch.allclose(made.engine.state.velocities, before, atol=1e-14)


def test_torn_molecules_are_made_whole() -> None:
    generator = np.random.default_rng(2)
    cell = np.array([[6.0, 0, 0], [2.0, 7.0, 0], [1.0, -3.0, 8.0]])
    bonds = np.array([[0, 1], [1, 2], [0, 2], [4, 3]])
    start = np.array([[0, 0, 0], [1.0, 0, 0], [1.0, 1.0, 0], [5.0, 5.0, 5.0], [5, 5, 6], [9, 9, 9]])
    torn = start + generator.integers(-2, 3, size=(6, 3)) @ cell
    joined = make_whole(torn, cell, bonds)
    for first, second in bonds:
        assert np.linalg.norm(joined[first] - joined[second]) < 1.5
    steps = (joined - torn) @ np.linalg.inv(cell)
    np.testing.assert_allclose(steps, np.round(steps), atol=1e-12)
    np.testing.assert_array_equal(joined[5], torn[5])
    assert make_whole(joined, cell, bonds) is joined


# Faults


def test_a_failure_ends_at_the_last_good_state(tiny_potential: Path) -> None:
    made = simulation(tiny_potential, verlet())
    made.context.setVelocities(velocities() * 1e3)
    with pytest.raises(SimulationError, match="temperature ran beyond"):
        made.step(50)
    assert made.currentStep < 50
    assert np.isfinite(shown(made, positions=True).getPositions(asNumpy=True)._value).all()


def test_threads_wait_for_each_other(tiny_potential: Path) -> None:
    made = simulation(tiny_potential, verlet())
    workers = [threading.Thread(target=made.integrator.step, args=(15,)) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert made.currentStep == 30
    expected = native(tiny_potential, VelocityVerlet(0.5))
    expected.run(30)
    assert torch.equal(made.engine.state.positions, expected.state.positions)
