"""Dynamics with ASE's interface: what is changed between steps, and what is held."""

from typing import Any

import ase.md.nose_hoover_chain
import ase.md.verlet
import numpy as np
import pytest
import torch
from ase import Atoms
from ase.constraints import FixAtoms, FixCom
from ase_crystals import ENSEMBLES, FS, STEP, Counting, crystal, evaluations
from toys import HarmonicWells, LennardJones, argon

from mdgraph.drivers.ase import Langevin, MDGraphCalculator, NoseHooverChainNVT, VelocityVerlet
from mdgraph.io.structures import to_ase

pytestmark = pytest.mark.usefixtures("one_thread")


# What is changed from outside


def test_changes_by_an_observer_take_effect_at_the_next_step() -> None:
    def shaken(atoms: Atoms, dynamics: Any) -> None:
        def change() -> None:
            if dynamics.nsteps == 6:
                atoms.set_momenta(0.5 * atoms.get_momenta())
            elif dynamics.nsteps == 9:
                atoms.wrap()
                atoms.positions[0] += [0.1, 0.0, 0.0]
            elif dynamics.nsteps == 12:
                atoms.set_cell(0.99 * atoms.cell, scale_atoms=True)
            elif dynamics.nsteps == 15:
                atoms.set_masses(1.5 * atoms.get_masses())
            elif dynamics.nsteps == 18:
                dynamics.dt = 0.5 * STEP

        dynamics.attach(change, interval=3)
        dynamics.run(17)
        atoms.positions[5] += [0.0, 0.1, 0.0]
        dynamics.run(14)

    first, second = crystal(), crystal()
    for one in (first, second):
        one.positions += 2.0  # some atoms begin outside the cell
    shaken(first, VelocityVerlet(first, STEP))
    shaken(second, ase.md.verlet.VelocityVerlet(second, STEP))
    np.testing.assert_allclose(first.positions, second.positions, atol=1e-7)
    np.testing.assert_allclose(first.get_momenta(), second.get_momenta(), atol=1e-6)


def test_a_captured_step_uses_positions_that_an_observer_changed(captures) -> None:
    ends = []
    for graphed in (True, False):
        atoms = to_ase(argon(1))
        wells = HarmonicWells(torch.tensor(argon(1).positions), 0.05)
        atoms.calc = MDGraphCalculator(wells, device="cpu", precision="double")
        dynamics = Langevin(atoms, STEP, temperature_K=80, friction=0.01 / FS, seed=1)
        dynamics.simulation.step_graphs.graphed = graphed

        def change(atoms: Atoms = atoms, dynamics: Langevin = dynamics) -> None:
            atoms.set_momenta(-atoms.get_momenta())
            atoms.positions += 0.1
            dynamics.set_temperature(temperature_K=10.0 * dynamics.nsteps)

        dynamics.attach(change, interval=6)
        dynamics.run(20)
        ends.append(atoms.positions)
    assert captures
    np.testing.assert_array_equal(*ends)


def test_lists_grow_when_the_caller_moves_atoms_together() -> None:
    """More of them than the lists have room for, after a step was taken."""
    atoms = to_ase(argon(3))
    atoms.calc = crystal().calc
    atoms.set_cell(4.0 * atoms.cell, scale_atoms=True)
    dynamics = VelocityVerlet(atoms, STEP)
    dynamics.run(2)
    room = dynamics.simulation.calculation.lists[0].capacity
    kept = dynamics.simulation
    atoms.positions *= 0.22
    atoms.positions += 1.0
    assert dynamics.simulation is kept
    assert kept.calculation.lists[0].capacity > room
    dynamics.run(3)
    fresh = MDGraphCalculator(Counting(), device="cpu", precision="double")
    energy = fresh.get_potential_energy(atoms.copy())
    assert atoms.get_potential_energy() == pytest.approx(energy, abs=1e-10)


def test_degrees_of_freedom_are_counted_again_for_new_momenta() -> None:
    atoms = crystal()
    dynamics = NoseHooverChainNVT(atoms, STEP, 80, 100 * FS)
    dynamics.run(1)
    kept = dynamics.simulation
    assert kept.degrees_of_freedom == (93,)
    atoms.set_momenta(crystal(drifting=True).get_momenta())
    assert dynamics.simulation is kept
    assert kept.degrees_of_freedom == (96,)


def test_another_calculator_moves_the_atoms_from_then_on() -> None:
    atoms = crystal()
    dynamics = VelocityVerlet(atoms, STEP)
    dynamics.run(3)
    before = atoms.calc
    atoms.calc = MDGraphCalculator(LennardJones(0.02, 3.4, 5.5), device="cpu", precision="double")
    dynamics.run(3)
    energy = atoms.get_potential_energy()
    assert before._evaluator.count == 4
    assert energy == pytest.approx(before.get_potential_energy(atoms) * 0.02 / 0.0104, rel=1e-9)


def test_the_thermostat_goes_on_in_a_new_simulation() -> None:
    """Noise must not begin anew, nor may a chain forget."""
    atoms = crystal()
    dynamics = Langevin(atoms, STEP, temperature_K=80, friction=0.01 / FS, seed=3)
    dynamics.run(10)
    kept = dynamics.simulation
    dynamics.run(1)
    assert dynamics.simulation is kept
    atoms.set_cell(1.01 * atoms.cell, scale_atoms=True)
    dynamics.run(1)
    assert dynamics.simulation is not kept
    assert dynamics.simulation.step == int(dynamics.simulation.state.step) == 12
    assert dynamics.simulation.time == pytest.approx(48.0)
    chain = NoseHooverChainNVT(atoms, STEP, 80, 100 * FS)
    chain.run(10)
    before = chain.simulation.integrator.tensors()["chain.velocities"].clone()
    atoms.set_masses(2.0 * atoms.get_masses())
    after = chain.simulation.integrator.tensors()["chain.velocities"]
    assert torch.equal(before, after)
    assert float(before.abs().max()) > 0.0


def test_parameters_may_change_between_steps() -> None:
    atoms = crystal()
    dynamics = Langevin(atoms, STEP, temperature_K=10, friction=0.02 / FS, seed=3)
    kept = dynamics.simulation
    dynamics.run(20)
    dynamics.set_temperature(temperature_K=200)
    dynamics.set_friction(0.05 / FS)
    dynamics.set_timestep(2 * FS)
    dynamics.run(150)
    assert dynamics.simulation is kept
    assert kept.time == pytest.approx(20 * 4.0 + 150 * 2.0)
    assert atoms.get_temperature() > 100.0


def test_dynamics_take_turns_on_one_crystal() -> None:
    atoms = crystal()
    warm = Langevin(atoms, STEP, temperature_K=70, friction=0.01 / FS, seed=1)
    steady = VelocityVerlet(atoms, STEP)
    for turn in range(1, 4):
        warm.run(10)
        energy = atoms.get_total_energy()
        before = evaluations(atoms)
        steady.run(20)
        assert evaluations(atoms) - before <= 21
        assert atoms.get_total_energy() == pytest.approx(energy, abs=2e-3)
        assert (warm.simulation.step, steady.simulation.step) == (10 * turn, 20 * turn)


# What is held


def test_fixed_atoms_stay() -> None:
    atoms, other = crystal(), crystal()
    for one in (atoms, other):
        one.set_constraint([FixAtoms(indices=[0, -1]), FixAtoms(mask=[True] * 3 + [False] * 29)])
    Langevin(atoms, STEP, temperature_K=80, friction=0.01 / FS).run(10)
    still = [0, 1, 2, 31]
    np.testing.assert_array_equal(atoms.positions[still], argon(2).positions[still])
    np.testing.assert_array_equal(atoms.get_momenta()[still], 0.0)
    assert np.abs(atoms.positions - argon(2).positions)[3:31].max() > 0.05
    atoms.set_constraint()
    atoms.set_positions(argon(2).positions)
    atoms.set_momenta(crystal().get_momenta())
    for one in (atoms, other):
        one.set_constraint(FixAtoms(indices=[4, 5]))
    VelocityVerlet(atoms, STEP).run(20)
    ase.md.verlet.VelocityVerlet(other, STEP).run(20)
    np.testing.assert_allclose(atoms.positions, other.positions, atol=1e-7)


@pytest.mark.parametrize("name", ["nve", "langevin", "bussi", "rescaling"])
def test_the_centre_of_mass_stays(name: str) -> None:
    atoms = crystal(drifting=True)
    atoms.set_constraint(FixCom())
    centre = atoms.get_center_of_mass()
    ENSEMBLES[name][0](atoms).run(12)
    np.testing.assert_allclose(atoms.get_center_of_mass(), centre, atol=1e-12)
    np.testing.assert_allclose(atoms.get_momenta().sum(axis=0), 0.0, atol=1e-10)


def test_langevin_fixes_the_centre_of_mass_by_default() -> None:
    for fixcm in (True, False):
        atoms = crystal(drifting=True)
        centre = atoms.get_center_of_mass()
        options = {"temperature_K": 80, "friction": 0.01 / FS, "fixcm": fixcm}
        Langevin(atoms, STEP, **options).run(5)
        assert (np.abs(atoms.get_center_of_mass() - centre).max() < 1e-12) == fixcm
