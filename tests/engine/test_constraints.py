"""Fixed atoms, springs, momentum and masses."""

import math

import numpy as np
import pytest
import torch
from ensembles import DYNAMICS, KELVIN, THERMAL
from toys import HarmonicWells, LennardJones, argon

from mdgraph.engine import (
    Calculation,
    LangevinMiddle,
    PositionRestraints,
    Simulation,
    StochasticVelocityRescaling,
    VelocityVerlet,
    repartitioned,
)
from mdgraph.engine.replicas import replica_simulation
from mdgraph.engine.restart import load_restart_, save_restart
from mdgraph.errors import InputError
from mdgraph.selection import select_atoms
from mdgraph.system import System

CONSTANT_VOLUME = ["verlet", "langevin", "velocity rescaling", "nose-hoover"]


def lennard_jones(integrator, system: System | None = None, **options) -> Simulation:
    options = {"device": "cpu", "temperature": 90.0} | options
    return Simulation(
        argon(2) if system is None else system,
        LennardJones(0.0104, 3.4, 5.5),
        integrator,
        **options,
    )


class TestFixedAtoms:
    @pytest.mark.parametrize("name", CONSTANT_VOLUME)
    @pytest.mark.parametrize("precision", ["mixed", "single"])
    def test_stay_while_others_move(self, name: str, precision: str) -> None:
        moving = argon(2).replace(velocities=np.full((32, 3), 0.003))
        fixed = [0, 7, 31]
        run = lennard_jones(DYNAMICS[name](), moving, fixed=fixed, precision=precision)
        start = run.state.positions.clone()
        run.run(30)
        moved = (run.state.positions - start).abs().amax(1) > 0
        assert moved.logical_not().nonzero()[:, 0].tolist() == fixed
        assert float(run.state.velocities[fixed].abs().max()) == 0.0

    def test_have_no_degrees_of_freedom(self) -> None:
        run = lennard_jones(LangevinMiddle(4.0, 90.0, 20.0), fixed=range(20), seed=2)
        assert run.degrees_of_freedom == (36,)
        assert run.degrees_text == "3 x (32 - 20 fixed) = 36"
        # The centre of mass is held by the walls, so nothing else comes off.
        assert lennard_jones(VelocityVerlet(4.0), fixed=[3]).degrees_of_freedom == (93,)

    def test_leave_the_others_at_their_temperature(self) -> None:
        replicas, atoms = 200, 6
        system = System(
            numbers=np.full(atoms, 18), positions=np.eye(6)[:, :3] * 5.0 + np.eye(6)[:, 3:]
        )
        fixed = [atoms * replica for replica in range(replicas)]
        free = HarmonicWells(torch.zeros(atoms * replicas, 3, dtype=torch.float64), 0.0)
        run = Simulation(
            [system] * replicas,
            free,
            StochasticVelocityRescaling(5.0, KELVIN, 20.0),
            device="cpu",
            temperature=100.0,
            fixed=fixed,
        )
        run.run(80)
        kelvin = run.observables().temperature
        error = KELVIN * math.sqrt(2.0 / (15 * replicas))
        assert abs(float(kelvin.mean()) - KELVIN) < 4 * error

    def test_are_those_of_the_file_that_a_run_goes_on_from(self, tmp_path) -> None:
        save_restart(lennard_jones(VelocityVerlet(1.0), fixed=[1]), tmp_path / "restart")
        with pytest.raises(InputError, match="its fixed differ"):
            load_restart_(lennard_jones(VelocityVerlet(1.0)), tmp_path / "restart")

    def test_must_exist(self) -> None:
        with pytest.raises(InputError, match="Atoms 32 are to be fixed, but there are 32"):
            lennard_jones(VelocityVerlet(1.0), fixed=[32])


class TestSelections:
    """In Python too, atoms are named by a text, in the initial structure of each system."""

    def test_fix_and_restrain_atoms_of_each_system(self) -> None:
        low, high = argon(2), argon(2)
        high = high.replace(positions=high.positions + np.array([0.0, 0.0, -3.0]))
        text = "prop z < 2"
        indices = [*select_atoms(text, low), *(32 + atom for atom in select_atoms(text, high))]
        assert len(indices) == 24
        named = lennard_jones(
            VelocityVerlet(1.0), [low, high], fixed=text, restraints=PositionRestraints(text, 1.0)
        )
        assert named.state.fixed.nonzero()[:, 0].tolist() == indices
        springs = named.calculation.springs
        assert springs is not None
        assert springs.restraints.settings()["atoms"] == indices

    def test_are_of_all_replicas(self) -> None:
        def replica(restraints: PositionRestraints, **options) -> Simulation:
            return replica_simulation(
                [argon(2)] * 3,
                LennardJones(0.0104, 3.4, 5.5),
                VelocityVerlet(1.0),
                device="cpu",
                temperature=90.0,
                restraints=restraints,
                **options,
            )

        named = replica(PositionRestraints("index 1:2", 1.0), fixed="index 0")
        indexed = replica(PositionRestraints([1, 2, 33, 34, 65, 66], 1.0), fixed=[0, 32, 64])
        for run in (named, indexed):
            run.run(5)
        assert torch.equal(named.state.positions, indexed.state.positions)

    def test_say_which_structure_has_no_such_atom(self) -> None:
        other = argon(2).replace(numbers=np.full(32, 36))
        with pytest.raises(InputError, match="Structure 2 of 2: 'element Ar' selects none of the"):
            lennard_jones(VelocityVerlet(1.0), [argon(2), other], fixed="element Ar")
        with pytest.raises(InputError, match="Word 1 of the selection, 'elements', begins no"):
            PositionRestraints("elements Ar", 1.0)


class TestRestraints:
    def sprung(self, cell: np.ndarray, strain: np.ndarray, points: np.ndarray) -> Calculation:
        """Argon deformed with its cell, on springs whose ends were put in the cell at rest."""
        system = argon(1).replace(cell=cell)
        restraints = PositionRestraints([0, 2], [1.5, 0.5], points)
        calculation = Calculation(
            [system],
            HarmonicWells(torch.zeros(4, 3, dtype=torch.float64), 0.0),
            device="cpu",
            restraints=restraints,
        )
        state, deformation = calculation.state, torch.tensor(np.eye(3) + strain)
        state.cell.copy_(state.cell @ deformation)
        state.positions.copy_(state.positions @ deformation)
        calculation.compute()
        return calculation

    @pytest.mark.parametrize("skew", [0.0, 1.0])
    def test_energy_forces_and_virial(self, skew: float) -> None:
        cell = argon(1).cell + skew * np.array([[0, 0, 0], [1.0, 0, 0], [-0.5, 0.7, 0]])
        points = argon(1).positions[[0, 2]] + [[0.3, -0.2, 0.1], [0.0, 0.4, 0.2]]
        at_rest = self.sprung(cell, np.zeros((3, 3)), points).state
        away = argon(1).positions[[0, 2]] - points
        stiffness = np.array([1.5, 0.5])
        energy = 0.5 * (stiffness * (away**2).sum(1)).sum()
        assert float(at_rest.energy[0]) == pytest.approx(energy, rel=1e-12)
        forces = np.zeros((4, 3))
        forces[[0, 2]] = -stiffness[:, None] * away
        np.testing.assert_allclose(at_rest.forces.numpy(), forces, atol=1e-13)
        step = 1e-5
        for row, column in ((0, 0), (1, 1), (2, 2), (0, 1), (1, 2), (0, 2)):
            strain = np.zeros((3, 3))
            strain[row, column] += 0.5 * step
            strain[column, row] += 0.5 * step
            above, below = (
                float(self.sprung(cell, sign * strain, points).state.energy[0]) for sign in (1, -1)
            )
            slope = (above - below) / (2 * step)
            assert float(-at_rest.virial[0, row, column]) == pytest.approx(slope, abs=1e-8)

    def test_hold_atoms_where_they_began_and_free_their_momentum(self) -> None:
        replicas = 300
        system = argon(1)
        points = torch.tensor(system.positions).repeat(replicas, 1)
        run = Simulation(
            [system] * replicas,
            HarmonicWells(points, 0.0),
            LangevinMiddle(5.0, KELVIN, 20.0),
            device="cpu",
            seed=3,
            restraints=PositionRestraints(range(4 * replicas), 0.4),
        )
        assert set(run.degrees_of_freedom) == {12}
        run.run(300)
        squared = (run.state.positions - points).square()
        error = THERMAL / 0.4 * math.sqrt(2.0 / squared.numel())
        assert abs(float(squared.mean()) - THERMAL / 0.4) < 4 * error

    def test_are_those_of_the_file_that_a_run_goes_on_from(self, tmp_path) -> None:
        def make(stiffness: float) -> Simulation:
            restraints = PositionRestraints([1], stiffness)
            return lennard_jones(VelocityVerlet(1.0), restraints=restraints)

        save_restart(make(1.0), tmp_path / "restart")
        with pytest.raises(InputError, match="was written with restraints"):
            load_restart_(make(2.0), tmp_path / "restart")

    def test_keep_their_ends_when_a_run_goes_on_from_a_later_frame(self, tmp_path) -> None:
        def make(system: System) -> Simulation:
            restraints = PositionRestraints([1, 5], 0.5)
            return lennard_jones(DYNAMICS["verlet"](), system, restraints=restraints)

        whole = make(argon(2))
        whole.run(20)
        save_restart(whole, tmp_path / "restart")
        resumed = make(argon(2).replace(positions=whole.state.positions.numpy()))
        load_restart_(resumed, tmp_path / "restart")
        for run in (whole, resumed):
            run.run(20)
        assert torch.equal(whole.state.positions, resumed.state.positions)

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (([0, 0], 1.0), "Atoms 0 are restrained twice"),
            (([32], 1.0), "Atoms 32 .* not there"),
            (([0], -1.0), "stiffness of a restraint"),
            (([0], [1.0, 2.0]), "stiffness of a restraint"),
            (([0], 1.0, np.zeros((2, 3))), "points of restraints have shape"),
        ],
    )
    def test_that_cannot_be_are_refused(self, arguments, words) -> None:
        with pytest.raises(InputError, match=words):
            lennard_jones(VelocityVerlet(1.0), restraints=PositionRestraints(*arguments))


class TestMomentum:
    def momentum(self, run: Simulation) -> float:
        masses = run.state.masses[:, None]
        return float(run.state.grouping.sum(masses * run.state.velocities).abs().max())

    def test_is_removed_when_due(self) -> None:
        run = lennard_jones(LangevinMiddle(4.0, 90.0, 20.0), remove_momentum=5, chunk=1)
        assert run.degrees_of_freedom == (93,)
        for step in range(1, 16):
            run.run(1)
            assert (self.momentum(run) < 1e-10) == (step % 5 == 0)

    def test_removed_at_every_step_leaves_the_rest_at_its_temperature(self) -> None:
        replicas = 300
        gas = argon(1).replace(velocities=np.full((4, 3), 0.01))
        run = Simulation(
            [gas] * replicas,
            HarmonicWells(torch.zeros(4 * replicas, 3, dtype=torch.float64), 0.0),
            LangevinMiddle(5.0, KELVIN, 20.0),
            device="cpu",
            remove_momentum=1,
        )
        # What the file brought along goes first.
        assert set(run.degrees_of_freedom) == {9}
        run.run(150)
        kelvin = float(run.observables().temperature.mean())
        assert abs(kelvin - KELVIN) < 4 * KELVIN * math.sqrt(2.0 / (9 * replicas))

    def test_of_a_molecule_under_langevin_keeps_its_rotation(self) -> None:
        molecule = argon(1).replace(pbc=np.full(3, False))
        run = lennard_jones(LangevinMiddle(1.0, 90.0), molecule, remove_momentum=1)
        assert run.degrees_of_freedom == (9,)

    @pytest.mark.parametrize(
        "options", [{"fixed": [0]}, {"restraints": PositionRestraints([0], 1.0)}]
    )
    def test_of_what_is_held_cannot_be_removed(self, options) -> None:
        with pytest.raises(InputError, match="cannot be removed"):
            lennard_jones(VelocityVerlet(1.0), remove_momentum=10, **options)


class TestRepartitioning:
    def methanol(self, cell: float = 0.0) -> System:
        """C, O, and hydrogens on both; one of them across the face of the cell, if any."""
        positions = np.array(
            [
                [0.0, 0.0, 0.0],
                [1.43, 0.0, 0.0],
                [1.75, 0.9, 0.0],
                [-0.36, 1.03, 0.0],
                [-0.36, -0.51, 0.89],
                [-0.36, -0.51, -0.89],
            ]
        )
        system = System(numbers=[6, 8, 1, 1, 1, 1], positions=positions)
        if cell:
            positions[3] += [cell, 0.0, -cell]
            system = system.replace(
                positions=positions, cell=np.eye(3) * cell, pbc=np.full(3, True)
            )
        return system

    @pytest.mark.parametrize("cell", [0.0, 9.0])
    def test_takes_mass_from_the_atom_that_a_hydrogen_is_bonded_to(self, cell: float) -> None:
        before, after = self.methanol(cell), repartitioned(self.methanol(cell), 3.0)
        shift = 3.0 - before.masses[2]
        expected = before.masses + shift * np.array([-3.0, -1.0, 1.0, 1.0, 1.0, 1.0])
        np.testing.assert_allclose(after.masses, expected, rtol=1e-12)
        assert np.array_equal(after.positions, before.positions)

    def test_done_twice_is_done_once(self) -> None:
        once = repartitioned(self.methanol())
        np.testing.assert_array_equal(repartitioned(once).masses, once.masses)

    @pytest.mark.parametrize(
        ("system", "mass", "words"),
        [
            (System(numbers=[1, 1], positions=[[0, 0, 0], [0, 0, 0.74]]), 3.0, "Hydrogens 0, 1"),
            (
                System(numbers=[6, 1], positions=[[0, 0, 0], [0, 0, 1.1]]),
                12.5,
                "Atoms 0 would keep",
            ),
            (System(numbers=[6, 1], positions=[[0, 0, 0], [0, 0, 1.1]]), -1.0, "mass of hydrogen"),
        ],
    )
    def test_that_cannot_be_is_refused(self, system, mass, words) -> None:
        with pytest.raises(InputError, match=words):
            repartitioned(system, mass)
