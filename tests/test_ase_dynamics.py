"""Dynamics with ASE's interface: the engine's bits, and ASE's steps, files and habits."""

import io
import logging
import pickle
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ase.md.nose_hoover_chain
import ase.md.verlet
import numpy as np
import pytest
import torch
from ase import Atoms, units
from ase.calculators.emt import EMT
from ase.constraints import FixAtoms, FixBondLength, FixCom, FixedPlane
from ase.filters import FrechetCellFilter
from ase.io.trajectory import Trajectory
from toys import HarmonicWells, LennardJones, argon

import mdgraph.drivers.ase as driver
from mdgraph import engine
from mdgraph.drivers.ase import (
    Bussi,
    IsotropicMTKNPT,
    Langevin,
    MDGraphCalculator,
    NoseHooverChainNVT,
    StochasticCellRescaling,
    VelocityVerlet,
)
from mdgraph.drivers.ase.dynamics import EngineDynamics
from mdgraph.engine import Simulation
from mdgraph.errors import InputError, SimulationError
from mdgraph.evaluators import AutogradEvaluator
from mdgraph.io.structures import from_ase, to_ase

FS = units.fs
STEP = 4.0 * FS


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """For systems this small, threads of torch only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Counting(AutogradEvaluator):
    """Counts its evaluations; forces are not finite from one of them on, if asked."""

    def __init__(self, broken_from: int | None = None) -> None:
        super().__init__(LennardJones(0.0104, 3.4, 5.5))
        self.count = 0
        self.broken_from = broken_from

    def evaluate_(self, state, lists) -> None:
        self.count += 1
        super().evaluate_(state, lists)
        if self.broken_from is not None and int(state.step) >= self.broken_from:
            state.forces[3] = torch.nan


def crystal(evaluator: Counting | None = None, *, drifting: bool = False, seed: int = 1) -> Atoms:
    """32 atoms of argon at about 60 K with a calculator of their own."""
    atoms = to_ase(argon(2))
    width = np.sqrt(60.0 * units.kB * atoms.get_masses()[0])
    momenta = np.random.default_rng(seed).normal(scale=width, size=(32, 3))
    atoms.set_momenta(momenta if drifting else momenta - momenta.mean(axis=0))
    atoms.calc = MDGraphCalculator(evaluator or Counting(), device="cpu", precision="double")
    return atoms


def evaluations(atoms: Atoms) -> int:
    return atoms.calc._evaluator.count


def both(atoms: Atoms) -> tuple[np.ndarray, np.ndarray]:
    return atoms.get_positions(), atoms.get_momenta()


ENSEMBLES: dict[str, tuple[Callable[[Atoms], EngineDynamics], engine.Integrator, int]] = {
    "nve": (lambda atoms: VelocityVerlet(atoms, STEP), engine.VelocityVerlet(4.0), 0),
    "langevin": (
        lambda atoms: Langevin(
            atoms, STEP, temperature_K=80, friction=0.002 / FS, fixcm=False, seed=5
        ),
        engine.LangevinMiddle(4.0, 80.0, 0.002 / FS * 1e3 * FS),
        5,
    ),
    "bussi": (
        lambda atoms: Bussi(atoms, STEP, 80, 128 * FS, seed=6),
        engine.StochasticVelocityRescaling(4.0, 80.0, 128.0),
        6,
    ),
    "nose-hoover": (
        lambda atoms: NoseHooverChainNVT(atoms, STEP, temperature_K=80, tdamp=256 * FS),
        engine.NoseHooverChains(4.0, 80.0, 256.0),
        0,
    ),
    "mtk": (
        lambda atoms: IsotropicMTKNPT(atoms, STEP, 80, 1e-3, 256 * FS, 1024 * FS),
        engine.MartynaTobiasKlein(4.0, 80.0, 1e-3, relaxation=256.0, cell_relaxation=1024.0),
        0,
    ),
    "rescaling": (
        lambda atoms: StochasticCellRescaling(
            atoms,
            STEP,
            temperature_K=80,
            pressure_au=1e-3,
            taut=128 * FS,
            taup=512 * FS,
            compressibility_au=50.0,
            ways="axes",
            seed=7,
        ),
        engine.StochasticCellRescaling(
            4.0,
            80.0,
            1e-3,
            relaxation=128.0,
            cell_relaxation=512.0,
            compressibility=50.0,
            ways="axes",
        ),
        7,
    ),
}


# Numbers


@pytest.mark.parametrize("name", ENSEMBLES)
def test_the_bits_are_those_of_a_simulation(name: str) -> None:
    """However often somebody looks, and whether by runs, observers or irun."""
    make, integrator, seed = ENSEMBLES[name]
    atoms = crystal()
    options = {"device": "cpu", "precision": "double", "seed": seed}
    alone = Simulation(from_ase(atoms), Counting(), integrator, **options)
    alone.run(31)
    dynamics = make(atoms)
    dynamics.attach(lambda: None, interval=7)
    dynamics.run(20)
    for _ in dynamics.irun(5):
        pass
    dynamics.run(6)
    state = dynamics.simulation.state
    assert torch.equal(state.positions, alone.state.positions)
    assert torch.equal(state.velocities, alone.state.velocities)
    np.testing.assert_array_equal(atoms.positions, alone.state.positions.numpy())
    np.testing.assert_array_equal(atoms.cell.array, alone.state.cell[0].numpy())
    velocities = atoms.get_velocities() * FS
    np.testing.assert_allclose(velocities, alone.state.velocities.numpy(), rtol=1e-14)
    assert evaluations(atoms) == 1 + 31


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (
            lambda atoms: VelocityVerlet(atoms, STEP),
            lambda atoms: ase.md.verlet.VelocityVerlet(atoms, STEP),
        ),
        (
            lambda atoms: NoseHooverChainNVT(atoms, STEP, 90, 200 * FS),
            lambda atoms: ase.md.nose_hoover_chain.NoseHooverChainNVT(atoms, STEP, 90, 200 * FS),
        ),
    ],
)
def test_deterministic_dynamics_are_those_of_ase(ours, theirs) -> None:
    # A centre of mass that moves counts, so both have 3N degrees of freedom.
    first, second = crystal(drifting=True), crystal(drifting=True)
    ours(first).run(50)
    theirs(second).run(50)
    moved = np.abs(first.positions - argon(2).positions).max()
    assert moved > 0.2
    np.testing.assert_allclose(first.positions, second.positions, atol=1e-7)
    np.testing.assert_allclose(first.get_momenta(), second.get_momenta(), atol=1e-6)
    assert first.get_potential_energy() == pytest.approx(second.get_potential_energy(), abs=1e-7)


def test_parameters_are_converted_from_units_of_ase() -> None:
    def given(dynamics: EngineDynamics) -> dict[str, float]:
        values = dynamics.simulation.integrator.given
        return {name: value.start[0] for name, value in values.items()}

    langevin = Langevin(crystal(), 0.5 * FS, temperature_K=300, friction=0.01 / FS, fixcm=False)
    expected = {"timestep": 0.5, "temperature": 300.0, "friction": 10.0}
    assert given(langevin) == pytest.approx(expected, rel=1e-12)
    with pytest.warns(FutureWarning, match="temperature_K"):
        old = Langevin(crystal(), 0.5 * FS, 300 * units.kB, 0.01 / FS)
    assert given(old) == pytest.approx(expected, rel=1e-12)
    bar = 1e5 * units.Pascal
    npt = StochasticCellRescaling(crystal(), 1 * FS, temperature_K=90, pressure_au=2 * bar)
    assert given(npt) == pytest.approx(
        {
            "timestep": 1.0,
            "temperature": 90.0,
            "relaxation": 100.0,
            "pressure": 2 * 6.241509e-7,
            "cell_relaxation": 1000.0,
            "compressibility": 4.5e-5 / 6.241509e-7,
        },
        rel=1e-6,
    )


@pytest.mark.parametrize(
    ("name", "missing"), [("nve", 3), ("langevin", 0), ("bussi", 3), ("mtk", 3)]
)
def test_temperatures_differ_from_those_of_ase_by_the_degrees_of_freedom(
    name: str, missing: int
) -> None:
    atoms = crystal()
    dynamics = ENSEMBLES[name][0](atoms)
    dynamics.run(5)
    engine_says = float(dynamics.simulation.observables().temperature[0])
    ratio = atoms.get_temperature() / engine_says
    assert ratio == pytest.approx(1.0 - missing / 96, rel=1e-6)
    atoms.set_constraint(FixCom())
    dynamics.run(1)
    engine_says = float(dynamics.simulation.observables().temperature[0])
    assert atoms.get_temperature() == pytest.approx(engine_says, rel=1e-6)


def test_conserved_energies_are_kept() -> None:
    for name in ("nve", "nose-hoover", "mtk", "bussi"):
        dynamics = ENSEMBLES[name][0](crystal())
        before = dynamics.get_conserved_energy()
        dynamics.run(60)
        assert dynamics.get_conserved_energy() == pytest.approx(before, abs=2e-3)
    assert np.isnan(ENSEMBLES["langevin"][0](crystal()).get_conserved_energy())


# Who looks, and what they see


def test_observers_see_what_they_see_in_ase_and_nothing_is_evaluated_for_them() -> None:
    def watched(atoms: Atoms, dynamics: Any) -> list[tuple[Any, ...]]:
        seen: list[tuple[Any, ...]] = []

        def look(word: str) -> None:
            stress = atoms.get_stress(include_ideal_gas=True)
            numbers = (atoms.get_potential_energy(), atoms.get_kinetic_energy(), *stress)
            forces = atoms.get_forces()[5]
            seen.append((word, dynamics.nsteps, dynamics.get_time(), (*numbers, *forces)))

        dynamics.attach(look, 5, "fives")
        dynamics.insert_observer(look, 0, -7, word="seventh")
        dynamics.attach(look, 4, word="fours")
        dynamics.run(11)
        dynamics.run(6)
        assert dynamics.get_number_of_steps() == 17
        return seen

    first, second = crystal(), crystal()
    ours = watched(first, VelocityVerlet(first, STEP))
    theirs = watched(second, ase.md.verlet.VelocityVerlet(second, STEP))
    assert [row[:3] for row in ours] == [row[:3] for row in theirs]
    assert [row[1] for row in ours] == [0, 0, 4, 5, 7, 8, 10, 12, 15, 16]
    np.testing.assert_allclose([r[3] for r in ours], [r[3] for r in theirs], atol=1e-8)
    assert evaluations(first) == 1 + 17


def test_logs_and_trajectories_are_those_of_ase(tmp_path: Path) -> None:
    for name, kind in (("ours", VelocityVerlet), ("theirs", ase.md.verlet.VelocityVerlet)):
        files = {"trajectory": tmp_path / f"{name}.traj", "logfile": str(tmp_path / f"{name}.log")}
        with kind(crystal(), STEP, loginterval=4, **files) as dynamics:
            dynamics.run(10)
    ours, theirs = ((tmp_path / f"{n}.log").read_text().splitlines() for n in ("ours", "theirs"))
    assert ours[0] == theirs[0]
    assert [len(line) for line in ours] == [len(line) for line in theirs]
    rows, expected = (np.genfromtxt(lines[1:]) for lines in (ours, theirs))
    np.testing.assert_allclose(rows, expected, atol=2e-4)
    with Trajectory(tmp_path / "ours.traj") as mine, Trajectory(tmp_path / "theirs.traj") as other:
        assert len(mine) == len(other) == 3
        assert other.description.items() <= mine.description.items()
        for frame, wanted in zip(mine, other, strict=True):
            np.testing.assert_allclose(frame.positions, wanted.positions, atol=1e-8)
            np.testing.assert_allclose(frame.get_momenta(), wanted.get_momenta(), atol=1e-7)
            assert frame.calc.results.keys() == wanted.calc.results.keys()
            for key, value in wanted.calc.results.items():
                np.testing.assert_allclose(frame.calc.results[key], value, atol=1e-8)


def test_trajectories_are_appended_to_or_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "run.traj"
    for append, frames in ((False, 3), (True, 6), (False, 3)):
        VelocityVerlet(crystal(), STEP, path, append_trajectory=append).run(2)
        with Trajectory(path) as trajectory:
            assert len(trajectory) == frames
    text = io.StringIO()
    VelocityVerlet(crystal(), STEP, logfile=text, loginterval=2).run(4)
    assert len(text.getvalue().splitlines()) == 4


def test_what_is_worth_measuring_is_judged_by_the_whole_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    judged: list[int] = []
    monkeypatch.setattr(Simulation, "choose", lambda _, steps: judged.append(steps))
    dynamics = VelocityVerlet(crystal(), STEP)
    dynamics.attach(lambda: None, interval=4)
    dynamics.run(10)
    assert judged[0] == 10


def test_irun_stops_at_every_step() -> None:
    atoms, other = crystal(), crystal()
    VelocityVerlet(other, STEP).run(0)
    steps = VelocityVerlet(atoms, STEP).irun(4)
    path = [(last, atoms.get_potential_energy()) for last in steps]
    assert [last for last, _ in path] == [False] * 4 + [True]
    one = VelocityVerlet(other, STEP)
    for _, energy in path[1:]:
        one.run(1)
        assert other.get_potential_energy() == energy
    assert evaluations(atoms) == 5


# What is changed from outside


def test_changes_of_an_observer_hold_from_the_next_step_on() -> None:
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


def test_a_captured_step_sees_what_an_observer_changes(captures) -> None:
    ends = []
    for graphed in (True, False):
        atoms = to_ase(argon(1))
        wells = HarmonicWells(torch.tensor(argon(1).positions), 0.05)
        atoms.calc = MDGraphCalculator(wells, device="cpu", precision="double")
        dynamics = Langevin(atoms, STEP, temperature_K=80, friction=0.01 / FS, seed=1)
        dynamics.simulation.stepping.graphed = graphed

        def change(atoms: Atoms = atoms, dynamics: Langevin = dynamics) -> None:
            atoms.set_momenta(-atoms.get_momenta())
            atoms.positions += 0.1
            dynamics.set_temperature(temperature_K=10.0 * dynamics.nsteps)

        dynamics.attach(change, interval=6)
        dynamics.run(20)
        ends.append(atoms.positions)
    assert captures
    np.testing.assert_array_equal(*ends)


def test_a_crowd_that_a_caller_makes_finds_its_neighbors() -> None:
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


def test_momenta_that_are_set_are_counted() -> None:
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


def test_a_bath_goes_on_where_a_new_simulation_has_to_be_made() -> None:
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


def test_langevin_holds_the_centre_unless_told_otherwise() -> None:
    for fixcm in (True, False):
        atoms = crystal(drifting=True)
        centre = atoms.get_center_of_mass()
        options = {"temperature_K": 80, "friction": 0.01 / FS, "fixcm": fixcm}
        Langevin(atoms, STEP, **options).run(5)
        assert (np.abs(atoms.get_center_of_mass() - centre).max() < 1e-12) == fixcm


# Processes and threads


@pytest.mark.parametrize("name", ENSEMBLES)
def test_pickled_dynamics_go_on_with_the_same_bits(name: str) -> None:
    dynamics = ENSEMBLES[name][0](crystal())
    dynamics.run(13)
    copy = pickle.loads(pickle.dumps(dynamics))
    for one in (dynamics, copy):
        one.run(12)
        assert one.nsteps == 25
    np.testing.assert_array_equal(both(dynamics.atoms), both(copy.atoms))
    assert evaluations(copy.atoms) == evaluations(dynamics.atoms) + 1


def test_pickled_dynamics_keep_their_centre_and_skin() -> None:
    atoms = crystal(drifting=True)
    dynamics = Langevin(atoms, STEP, temperature_K=80, friction=0.01 / FS, seed=4)
    dynamics.simulation.set_skin(0.7)
    dynamics.run(13)
    copy = pickle.loads(pickle.dumps(dynamics))
    for one in (dynamics, copy):
        one.run(12)
    np.testing.assert_array_equal(both(dynamics.atoms), both(copy.atoms))
    assert copy.simulation.calculation.skin == 0.7


def test_threads_run_beside_each_other() -> None:
    def run(atoms: Atoms) -> None:
        dynamics = Langevin(atoms, STEP, temperature_K=80, friction=0.01 / FS, seed=4)
        dynamics.attach(atoms.get_stress, interval=3)
        dynamics.run(30)

    shared = MDGraphCalculator(Counting(), device="cpu", precision="double")
    alone, *others = (crystal(seed=seed) for seed in (1, 1, 2, 3))
    for atoms in others:
        atoms.calc = shared
    threads = [threading.Thread(target=run, args=(atoms,)) for atoms in others]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    run(alone)
    np.testing.assert_array_equal(both(alone), both(others[0]))


def test_seeds_come_from_numpy_as_in_ase() -> None:
    def moved(**options: Any) -> np.ndarray:
        atoms = crystal()
        Bussi(atoms, STEP, 80, 100 * FS, **options).run(3)
        return atoms.positions

    np.random.seed(5)  # noqa: NPY002
    first, second = moved(), moved()
    np.random.seed(5)  # noqa: NPY002
    np.testing.assert_array_equal(moved(), first)
    assert not np.array_equal(first, second)
    np.testing.assert_array_equal(moved(seed=3), moved(seed=3))
    assert Bussi(crystal(), STEP, 80, 100 * FS, seed=3).todict()["seed"] == 3


# What goes wrong


def test_a_failure_leaves_the_last_good_state() -> None:
    atoms = crystal(Counting(broken_from=18))
    dynamics = VelocityVerlet(atoms, STEP)
    dynamics.attach(lambda: None, interval=10)
    with pytest.raises(SimulationError, match="atoms 3 are not finite at step 19"):
        dynamics.run(30)
    good = crystal()
    VelocityVerlet(good, STEP).run(18)
    assert dynamics.nsteps == 18
    np.testing.assert_array_equal(atoms.positions, good.positions)
    assert atoms.get_potential_energy() == good.get_potential_energy()


def test_an_interrupt_leaves_whole_steps() -> None:
    atoms = crystal()
    dynamics = VelocityVerlet(atoms, STEP)

    def interrupt() -> None:
        raise KeyboardInterrupt

    dynamics.attach(interrupt, interval=-6)
    with pytest.raises(KeyboardInterrupt):
        dynamics.run(20)
    assert dynamics.nsteps == 6
    dynamics.run(4)
    good = crystal()
    VelocityVerlet(good, STEP).run(10)
    np.testing.assert_array_equal(atoms.positions, good.positions)


def test_a_run_that_is_stopped_says_so() -> None:
    dynamics = VelocityVerlet(crystal(), STEP)
    assert dynamics.run(8)
    dynamics.simulation.reporters.append(Stopper())
    assert not dynamics.run(100)
    assert dynamics.nsteps == 10


class Stopper:
    interval = 10

    def report(self, simulation: Simulation) -> None:
        simulation.stop()


def test_a_time_step_without_its_unit_is_noticed(caplog: pytest.LogCaptureFixture) -> None:
    VelocityVerlet(crystal(), 0.5)
    assert "time step of 0.5 is 5.09 fs" in caplog.text
    assert "0.5 * ase.units.fs" in caplog.text


def with_constraint(constraint: Any) -> Atoms:
    atoms = crystal()
    atoms.set_constraint(constraint)
    return atoms


def with_emt() -> Atoms:
    atoms = crystal()
    atoms.calc = EMT()
    return atoms


def npt(atoms: Atoms, **options: Any) -> StochasticCellRescaling:
    return StochasticCellRescaling(atoms, STEP, temperature_K=80, pressure_au=0.0, **options)


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (lambda: VelocityVerlet(to_ase(argon(1)), STEP).run(1), "have no calculator"),
        (lambda: VelocityVerlet(with_emt(), STEP).run(1), "have EMT"),
        (lambda: VelocityVerlet(crystal(), STEP, potential="water-pbe0"), "leave one of them"),
        (lambda: VelocityVerlet(FrechetCellFilter(crystal()), STEP), "FrechetCellFilter is none"),
        (lambda: VelocityVerlet(with_constraint(FixBondLength(0, 1)), STEP), "FixBondLengths"),
        (lambda: VelocityVerlet(with_constraint(FixedPlane(0, [0, 0, 1])), STEP), "FixedPlane"),
        (
            lambda: VelocityVerlet(with_constraint([FixCom(), FixAtoms([1])]), STEP),
            "not both",
        ),
        (lambda: npt(with_constraint(FixAtoms([1]))).run(1), "Fixed atoms would not follow"),
        (lambda: npt(crystal(), ways="sideways"), "cannot vary 'sideways'"),
        (lambda: VelocityVerlet(crystal(), -1.0), "time step is -"),
        (lambda: Langevin(crystal(), STEP, temperature_K=80), "need a friction"),
        (
            lambda: Langevin(
                crystal(), STEP, temperature_K=80, friction=0.1, rng=np.random.default_rng(1)
            ),
            "cannot ask rng",
        ),
        (lambda: Bussi(crystal(), STEP, -80.0, 100 * FS), "temperature is -80"),
        (lambda: NoseHooverChainNVT(crystal(), STEP, 80, 100 * FS, tchain=5), "tchain is 5"),
        (lambda: IsotropicMTKNPT(crystal(), STEP, 80, 0, 1, 1, ploop=2), "ploop is 2"),
    ],
)
def test_what_cannot_be_is_refused(attempt: Callable[[], Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        attempt()


def test_dynamics_that_are_not_offered_name_others() -> None:
    with pytest.raises(ImportError, match="take StochasticCellRescaling"):
        from mdgraph.drivers.ase import NPTBerendsen  # noqa: F401
    assert not hasattr(driver, "Nonsense")


def test_a_potential_by_its_name_is_checked_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    atoms = Atoms("OHH", [[0, 0, 0], [0.96, 0, 0], [-0.24, 0.93, 0]])
    VelocityVerlet(atoms, 0.5 * FS, potential="water-pbe0").run(2)
    assert isinstance(atoms.calc, MDGraphCalculator)
    assert atoms.get_kinetic_energy() > 0.0
    Langevin(atoms, 0.5 * FS, temperature_K=300, friction=0.01 / FS).run(1)
    assert caplog.text.count("Fast evaluator against the reference") == 1
