"""FIRE with the interface of ASE's optimizers, and many structures relaxed at once."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ase.optimize
import numpy as np
import pytest
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator
from ase.constraints import FixAtoms, FixCom, FixedLine
from ase.filters import FrechetCellFilter, StrainFilter, UnitCellFilter
from ase.io.trajectory import Trajectory
from toys import LennardJones, argon

from mdgraph.drivers.ase import FIRE, MDGraphCalculator, VelocityVerlet, relax
from mdgraph.errors import InputError
from mdgraph.evaluators import AutogradEvaluator
from mdgraph.io.structures import to_ase


class Counting(AutogradEvaluator):
    def __init__(self) -> None:
        super().__init__(LennardJones(0.0104, 3.4, 5.5))
        self.count = 0

    def evaluate_(self, state, lists) -> None:
        self.count += 1
        super().evaluate_(state, lists)


def calculator() -> MDGraphCalculator:
    return MDGraphCalculator(Counting(), device="cpu", precision="double")


def shaken(width: float = 0.15, seed: int = 1, strain: float = 0.0) -> Atoms:
    """32 atoms of argon off their places, in a cell that is that much too wide."""
    atoms = to_ase(argon(2))
    atoms.positions += np.random.default_rng(seed).normal(scale=width, size=(32, 3))
    atoms.set_cell((1.0 + strain) * atoms.cell, scale_atoms=True)
    atoms.calc = calculator()
    return atoms


def largest_force(atoms: Atoms) -> float:
    return float(np.linalg.norm(atoms.get_forces(), axis=1).max())


# One structure


def test_relaxed_positions_are_those_of_ase() -> None:
    atoms, other = shaken(), shaken()
    start = atoms.get_potential_energy()
    text = io.StringIO()
    optimizer = FIRE(atoms, logfile=text)
    assert optimizer.run(fmax=1e-4, steps=500) is True
    assert optimizer.converged()
    before = atoms.calc._evaluator.count
    assert largest_force(atoms) < 1e-4
    assert atoms.get_potential_energy() < start - 0.04
    # The first energy was asked for above; then the start of the engine, and every step.
    assert before == 2 + optimizer.nsteps
    assert atoms.calc._evaluator.count == before
    ase.optimize.FIRE(other, logfile=None).run(fmax=1e-4)
    assert atoms.get_potential_energy() == pytest.approx(other.get_potential_energy(), abs=1e-6)
    head, *lines = text.getvalue().splitlines()
    assert head.split() == ["Step", "Time", "Energy", "fmax"]
    assert [int(line.split()[1]) for line in lines] == list(range(0, optimizer.nsteps + 1, 10))
    assert float(lines[-1].split()[-1]) == pytest.approx(largest_force(atoms), abs=1e-6)


@pytest.mark.parametrize(
    ("make", "wanted"),
    [
        (FrechetCellFilter, "cubic"),
        (lambda atoms: FrechetCellFilter(atoms, hydrostatic_strain=True), "cubic"),
        (lambda atoms: UnitCellFilter(atoms, scalar_pressure=2e-3), "cubic"),
        (lambda atoms: FrechetCellFilter(atoms, mask=[1, 0, 1, 0, 0, 0]), "b stays"),
        (lambda atoms: FrechetCellFilter(atoms, mask=[0, 0, 0, 0, 0, 0]), "all stay"),
    ],
)
def test_cell_filters_of_ase_are_followed(make: Callable[[Atoms], Any], wanted: str) -> None:
    atoms, other = shaken(0.05, strain=0.03), shaken(0.05, strain=0.03)
    cell = atoms.cell.array.copy()
    optimizer = FIRE(make(atoms), logfile=None, smax=2e-6)
    assert optimizer.run(fmax=1e-4, steps=1500)
    ase.optimize.FIRE(make(other), logfile=None).run(fmax=5e-5, steps=3000)
    np.testing.assert_allclose(atoms.cell.lengths(), other.cell.lengths(), atol=5e-3)
    assert atoms.get_potential_energy() == pytest.approx(other.get_potential_energy(), abs=1e-4)
    moved = np.abs(atoms.cell.lengths() - np.diag(cell)) > 0.1
    assert (
        moved.tolist() == {"cubic": [1, 1, 1], "b stays": [1, 0, 1], "all stay": [0, 0, 0]}[wanted]
    )


@pytest.mark.parametrize("hydrostatic", [False, True])
def test_a_sheared_cell_straightens_unless_strain_is_hydrostatic(hydrostatic: bool) -> None:
    atoms = shaken(0.0)
    sheared = np.array([[11.6, 0.9, 0.0], [0.0, 11.6, 0.0], [-0.5, 0.0, 11.6]])
    atoms.set_cell(sheared, scale_atoms=True)
    before = atoms.cell.angles()
    strain = FrechetCellFilter(atoms, hydrostatic_strain=hydrostatic)
    FIRE(strain, logfile=None, smax=1e-5).run(fmax=1e-3, steps=1000)
    np.testing.assert_allclose(atoms.cell.angles(), before if hydrostatic else 90.0, atol=0.1)


def test_observers_and_trajectories_follow_the_relaxation(tmp_path: Path) -> None:
    path = tmp_path / "relax.traj"
    atoms = shaken()
    seen = []
    with FIRE(atoms, logfile=None, trajectory=path, loginterval=20) as optimizer:
        optimizer.attach(
            lambda: seen.append((optimizer.nsteps, atoms.get_potential_energy())), interval=15
        )
        optimizer.run(fmax=1e-9, steps=50)
    assert [step for step, _ in seen] == [0, 15, 30, 45]
    assert optimizer.nsteps == optimizer.get_number_of_steps() == 50
    with Trajectory(path) as frames:
        assert len(frames) == 3
        assert frames[0].get_potential_energy() == seen[0][1]
        assert frames.description["optimizer"] == "FIRE"
    assert atoms.calc._evaluator.count == 1 + 50
    optimizer = FIRE(atoms, logfile=None, trajectory=path, append_trajectory=True)
    optimizer.run(fmax=1e-9, steps=10)
    with Trajectory(path) as frames:
        assert len(frames) == 4


def test_irun_yields_convergence_at_each_check() -> None:
    optimizer = FIRE(shaken(), logfile=None, loginterval=25)
    looks = [(optimizer.nsteps, rests) for rests in optimizer.irun(fmax=1e-3)]
    assert [step for step, _ in looks] == list(range(0, looks[-1][0] + 1, 25))
    assert [rests for _, rests in looks] == [False] * (len(looks) - 1) + [True]
    assert not optimizer.run(fmax=1e-7, steps=3)
    assert optimizer.nsteps == looks[-1][0] + 3


def test_a_crystal_at_rest_takes_no_step() -> None:
    atoms = to_ase(argon(2))
    atoms.set_scaled_positions(np.round(atoms.get_scaled_positions() * 4) / 4)
    atoms.calc = calculator()
    optimizer = FIRE(atoms, logfile=None)
    assert optimizer.run(fmax=0.01)
    assert optimizer.nsteps == 0


def test_fixed_atoms_stay_and_so_does_the_centre() -> None:
    atoms = shaken()
    before = atoms.get_positions()
    atoms.set_constraint(FixAtoms(indices=[0, 3]))
    assert FIRE(atoms, logfile=None).run(fmax=1e-3, steps=500)
    np.testing.assert_array_equal(atoms.positions[[0, 3]], before[[0, 3]])
    assert np.abs(atoms.positions - before).max() > 0.1
    assert largest_force(atoms) < 1e-3
    atoms = shaken()
    atoms.set_masses(np.linspace(1.0, 50.0, 32))
    atoms.set_constraint(FixCom())
    centre = atoms.get_center_of_mass()
    FIRE(atoms, logfile=None).run(fmax=1e-3, steps=500)
    np.testing.assert_allclose(atoms.get_center_of_mass(), centre, atol=1e-12)


def test_dynamics_go_on_from_a_minimum() -> None:
    atoms = shaken()
    FIRE(atoms, logfile=None).run(fmax=1e-3, steps=500)
    before = atoms.get_potential_energy()
    VelocityVerlet(atoms, 0.4).run(5)
    assert atoms.get_potential_energy() == pytest.approx(before, abs=1e-5)


# Many


def test_many_structures_find_the_minima_that_each_finds_alone() -> None:
    structures = [shaken(0.1, seed) for seed in range(4)]
    structures[1] = structures[1][:9]
    structures[1].pbc = False
    structures[2].set_constraint(FixAtoms(indices=[5]))
    structures[3].set_constraint(FixCom())
    alone = [atoms.copy() for atoms in structures]
    centre, place = structures[3].get_center_of_mass(), structures[2].positions[5].copy()
    rests = relax(structures, calculator(), fmax=1e-4, steps=600)
    assert rests.tolist() == [True] * 4
    for one, other in zip(structures, alone, strict=True):
        assert isinstance(one.calc, SinglePointCalculator)
        assert largest_force(one) < 1e-4
        other.calc = calculator()
        FIRE(other, logfile=None).run(fmax=1e-4, steps=600)
        assert one.get_potential_energy() == pytest.approx(other.get_potential_energy(), abs=1e-6)
        fresh = one.copy()
        fresh.calc = calculator()
        np.testing.assert_allclose(one.get_forces(), fresh.get_forces(), atol=1e-10)
        np.testing.assert_allclose(one.get_stress(), fresh.get_stress(), atol=1e-12)
        assert one.get_potential_energies().sum() == pytest.approx(one.get_potential_energy())
    np.testing.assert_array_equal(structures[2].positions[5], place)
    np.testing.assert_allclose(structures[3].get_center_of_mass(), centre, atol=1e-12)


def test_many_cells_relax() -> None:
    structures = [shaken(0.05, seed, strain) for seed, strain in enumerate((0.0, 0.02, 0.04))]
    shared = calculator()
    for atoms in structures:
        atoms.calc = shared
    assert relax(structures, fmax=1e-3, steps=1500, cell_dof="isotropic", smax=2e-6).all()
    volumes = [atoms.get_volume() for atoms in structures]
    assert max(volumes) / min(volumes) < 1.0 + 1e-3
    assert all(abs(atoms.get_stress()[:3].mean()) < 2e-6 for atoms in structures)


def test_groups_and_one_batch_agree(caplog: pytest.LogCaptureFixture) -> None:
    together, apart = ([shaken(0.1, seed) for seed in range(3)] for _ in range(2))
    relax(together, calculator(), fmax=1e-3, steps=20)
    rests = relax(apart, calculator(), fmax=1e-3, steps=20, atoms_at_once=40)
    said = [record.getMessage().partition(" systems")[0] for record in caplog.records]
    assert said == ["0 of 3", "0 of 1", "0 of 1", "0 of 1"]
    assert not rests.any()
    for one, other in zip(together, apart, strict=True):
        np.testing.assert_allclose(one.positions, other.positions, atol=1e-9)


# What goes wrong


def test_a_structure_that_cannot_be_relaxed_is_named() -> None:
    good, bad = shaken(0.1, 1), shaken(0.1, 2)
    bad.positions[7] = bad.positions[4]
    with pytest.raises(InputError, match=r"structure 1: .*4 and 7"):
        relax([good, bad], calculator(), fmax=1e-3, steps=20)
    assert isinstance(good.calc, SinglePointCalculator)


def constrained() -> Atoms:
    atoms = shaken()
    atoms.set_constraint(FixedLine(0, [0, 0, 1]))
    return atoms


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (lambda: FIRE(shaken(), dt=0.2), "does not take dt"),
        (lambda: FIRE(shaken(), restart="fire.json"), "does not take restart"),
        (lambda: FIRE(shaken(), maxstep=-1.0), "largest step is -1"),
        (lambda: FIRE(shaken(), loginterval=0), "loginterval is 0"),
        (lambda: FIRE(shaken(), logfile=None).run(fmax=0.0), "tolerance of forces is 0"),
        (lambda: FIRE(to_ase(argon(1)), logfile=None).run(), "have no calculator"),
        (lambda: FIRE(constrained()), "constraints FixedLine"),
        (lambda: FIRE(StrainFilter(shaken())), "cannot relax StrainFilter"),
        (
            lambda: FIRE(FrechetCellFilter(shaken(), constant_volume=True)),
            "leave constant_volume out",
        ),
        (lambda: FIRE(FrechetCellFilter(shaken(), mask=[1, 1, 1, 1, 0, 0])), "leave the mask out"),
        (lambda: relax([shaken(), shaken()]), "several calculators"),
        (lambda: relax([]), "no structures"),
        (lambda: relax(5), "takes Atoms or a list of them"),
        (lambda: relax([None]), "Structure 0 is NoneType"),
        (lambda: relax([constrained()], calculator()), "constraints FixedLine"),
    ],
)
def test_invalid_arguments_are_refused(attempt: Callable[[], Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        attempt()
