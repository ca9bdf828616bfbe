"""ASE and OpenMM drive two potentials as the engine does, and show those of the large one."""

import io
from typing import Any

import numpy as np
import openmm
import pytest
from ase import Atoms, units
from openmm import app, unit
from openmmml import MLPotential
from toys import LennardJones, argon

from mdgraph import engine
from mdgraph.drivers.ase import Langevin, MDGraphCalculator, VelocityVerlet
from mdgraph.drivers.openmm import Simulation
from mdgraph.engine import Calculation
from mdgraph.errors import InputError
from mdgraph.system import System
from mdgraph.units import KILOJOULE_PER_MOLE

LARGE = LennardJones(0.0104, 3.4, 6.0)
SMALL = LennardJones(0.0100, 3.4, 5.0)
TWO: dict[str, Any] = {"inner_potential": SMALL, "inner_steps": 4}


def moving() -> System:
    system = argon(2)
    velocities = np.random.default_rng(2).normal(scale=1.5e-3, size=system.positions.shape)
    return system.replace(velocities=velocities - velocities.mean(0))


def by_engine(steps: int, integrator: Any, **options: Any) -> engine.Simulation:
    run = engine.Simulation(
        moving(), LARGE, integrator, device="cpu", precision="double", **(TWO | options)
    )
    run.run(steps)
    return run


def atoms_of(system: System) -> Atoms:
    atoms = Atoms(system.numbers, system.positions, cell=system.cell, pbc=system.pbc)
    atoms.set_masses(system.masses)
    atoms.set_velocities(system.velocities / units.fs)
    atoms.calc = MDGraphCalculator(LARGE, device="cpu", precision="double")
    return atoms


def large_forces(positions: np.ndarray) -> np.ndarray:
    at = Calculation(
        [argon(2).replace(positions=positions)], LARGE, device="cpu", precision="double"
    )
    at.compute()
    return at.state.forces.numpy()


class TestASE:
    def test_steps_are_those_of_the_engine(self) -> None:
        atoms, places, log = atoms_of(moving()), [], io.StringIO()
        with VelocityVerlet(atoms, 2.0 * units.fs, logfile=log, **TWO) as dynamics:
            dynamics.attach(lambda: places.append(atoms.get_positions()), interval=8)
            assert dynamics.run(24)
        want = by_engine(24, engine.VelocityVerlet(2.0))
        np.testing.assert_allclose(atoms.positions, want.state.places(), rtol=0, atol=1e-9)
        assert len(places) == 4
        assert len(log.getvalue().splitlines()) == 1 + 7  # every outer step
        np.testing.assert_allclose(atoms.get_forces(), large_forces(atoms.positions), atol=1e-12)
        assert atoms.get_potential_energy() == pytest.approx(float(want.state.energy[0]))

    def test_the_number_is_chosen_by_the_time_step(self) -> None:
        atoms = atoms_of(moving())
        dynamics = VelocityVerlet(atoms, 0.25 * units.fs, inner_potential=SMALL)
        assert dynamics.simulation.together == 8

    def test_changes_between_runs_are_taken(self) -> None:
        """An observer that writes what it reads changes nothing."""
        runs = []
        for again in (False, True):
            atoms = atoms_of(moving())
            dynamics = VelocityVerlet(atoms, 2.0 * units.fs, **TWO)
            dynamics.run(8)
            if again:
                atoms.set_positions(atoms.get_positions() + 0.0)
                atoms.set_momenta(atoms.get_momenta() * (1.0 + 1e-13))
            dynamics.run(16)
            runs.append(atoms.get_positions())
        np.testing.assert_allclose(runs[1], runs[0], rtol=0, atol=1e-9)

    def test_the_centre_of_mass_rests_between_outer_steps(self) -> None:
        atoms = atoms_of(moving())
        before = atoms.get_center_of_mass()
        dynamics = Langevin(
            atoms, 2.0 * units.fs, temperature_K=90.0, friction=0.01 / units.fs, seed=1, **TWO
        )
        dynamics.run(40)
        np.testing.assert_allclose(atoms.get_center_of_mass(), before, rtol=0, atol=1e-10)

    @pytest.mark.parametrize(
        ("options", "act", "sentence"),
        [
            ({}, lambda one: one.run(6), r"The run is 6 steps, .* multiple of 4"),
            ({"loginterval": 2}, lambda one: one.run(8), "loginterval is 2 steps"),
            (
                {},
                lambda one: (one.attach(lambda: None, interval=3), one.run(8)),
                "interval of an observer is 3",
            ),
            ({}, lambda one: list(one.irun(8)), "stop at each"),
            ({"inner_steps": 5}, lambda one: None, "inner_steps is 5; choose among"),
            ({"inner_potential": None}, lambda one: None, "inner_steps belongs to a small"),
            ({"inner_potential": "copper-pbe"}, lambda one: one.run(8), "does not know Ar"),
        ],
    )
    def test_what_does_not_fit_is_refused(self, options: Any, act: Any, sentence: str) -> None:
        with pytest.raises(InputError, match=sentence):
            act(VelocityVerlet(atoms_of(moving()), 2.0 * units.fs, **(TWO | options)))


def simulation(system: Any = None, **options: Any) -> Simulation:
    topology, start = app.Topology(), moving()
    chain = topology.addChain()
    for _ in start.numbers:
        topology.addAtom("AR", app.element.argon, topology.addResidue("AR", chain))
    topology.setPeriodicBoxVectors([openmm.Vec3(*row) for row in start.cell] * unit.angstrom)
    made = Simulation(
        topology,
        LARGE,
        openmm.VerletIntegrator(2.0 * unit.femtoseconds),
        system,
        device="cpu",
        precision="double",
        **(TWO | options),
    )
    made.context.setPositions(start.positions * unit.angstrom)
    assert start.velocities is not None
    made.context.setVelocities(start.velocities * 100.0)  # nm/ps
    return made


class TestOpenMM:
    def test_steps_are_those_of_the_engine(self) -> None:
        made, states = simulation(), []

        class Reporter:
            def describeNextReport(self, own: Any) -> Any:  # noqa: N802
                return 8 - own.currentStep % 8, True, False, True, True, False

            def report(self, own: Any, state: Any) -> None:
                states.append(state)

        made.reporters.append(Reporter())
        made.step(24)
        want = by_engine(24, engine.VelocityVerlet(2.0))
        state = states[-1]
        found = state.getPositions(asNumpy=True).value_in_unit(unit.angstrom)
        np.testing.assert_allclose(found, want.state.places(), rtol=0, atol=1e-6)
        forces = state.getForces(asNumpy=True)._value * 0.1 * KILOJOULE_PER_MOLE
        np.testing.assert_allclose(forces, large_forces(found), atol=1e-9)
        assert [one.getStepCount() for one in states] == [8, 16, 24]

    def test_the_number_is_chosen_by_the_time_step(self) -> None:
        assert simulation(inner_steps=None).engine.together == 2  # the fewest: 4 fs are beyond 2

    def test_a_checkpoint_has_the_same_bits(self) -> None:
        whole, parts = simulation(), simulation()
        whole.step(24)
        parts.step(8)
        content = parts.context.createCheckpoint()
        again = simulation()
        again.context.loadCheckpoint(content)
        again.step(16)
        for name in ("places", "velocities"):
            first, second = (getattr(one.engine.state, name) for one in (whole, again))
            first, second = (value() if callable(value) else value for value in (first, second))
            assert (first == second).all()

    def test_momentum_is_removed_at_outer_steps(self) -> None:
        system = openmm.System()
        for mass in moving().masses:
            system.addParticle(mass)
        system.addForce(openmm.CMMotionRemover(1))
        made = simulation(system)
        made.step(8)
        assert made.engine.remove_momentum == 4

    @pytest.mark.parametrize(
        ("options", "act", "sentence"),
        [
            ({}, lambda one: one.step(6), r"The run is 6 steps, .* multiple of 4"),
            ({"inner_steps": 5}, lambda one: None, "inner_steps is 5; choose among"),
            ({"inner_potential": None}, lambda one: None, "inner_steps belongs to a small"),
            ({"inner_potential": "copper-pbe"}, lambda one: None, "does not know Ar"),
            (
                {},
                lambda one: (one.context.setStepCount(3), one.step(4)),
                "The step count is 3 steps",
            ),
            ({}, lambda one: (one.integrator.step(2), one.context.getState(positions=True)), "2"),
        ],
    )
    def test_what_does_not_fit_is_refused(self, options: Any, act: Any, sentence: str) -> None:
        with pytest.raises(InputError, match=sentence):
            act(simulation(**options))

    def test_where_openmm_integrates_it_is_refused(self) -> None:
        topology = simulation().topology
        with pytest.raises(InputError, match="Here OpenMM integrates"):
            MLPotential("mdgraph", modelPath="copper-pbe").createSystem(
                topology, inner_potential="copper-pbe"
            )
