"""Dynamics with ASE's interface: threads, copies, failures and what is refused."""

import logging
import pickle
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from ase import Atoms
from ase.calculators.emt import EMT
from ase.constraints import FixAtoms, FixBondLength, FixCom, FixedPlane
from ase.filters import FrechetCellFilter
from ase_crystals import ENSEMBLES, FS, STEP, Counting, crystal, evaluations
from toys import argon

import mdgraph.drivers.ase as driver
from mdgraph.drivers.ase import (
    Bussi,
    IsotropicMTKNPT,
    Langevin,
    MDGraphCalculator,
    NoseHooverChainNVT,
    StochasticCellRescaling,
    VelocityVerlet,
)
from mdgraph.engine import Simulation
from mdgraph.errors import InputError, SimulationError
from mdgraph.io.structures import to_ase

pytestmark = pytest.mark.usefixtures("one_thread")


def both(atoms: Atoms) -> tuple[np.ndarray, np.ndarray]:
    return atoms.get_positions(), atoms.get_momenta()


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


def test_a_time_step_without_its_unit_gives_a_warning(caplog: pytest.LogCaptureFixture) -> None:
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
        (lambda: npt(crystal(), cell_dof="sideways"), "cannot vary 'sideways'"),
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
def test_invalid_arguments_are_refused(attempt: Callable[[], Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        attempt()


def test_dynamics_that_mdgraph_lacks_name_their_replacement() -> None:
    with pytest.raises(ImportError, match="take StochasticCellRescaling"):
        from mdgraph.drivers.ase import NPTBerendsen  # noqa: F401
    with pytest.raises(
        ImportError, match=r"no NPT; take .*cell_dof='full'.*externalstress as pressure"
    ):
        from mdgraph.drivers.ase import NPT  # noqa: F401
    assert not hasattr(driver, "Nonsense")


def test_a_potential_by_its_name_is_checked_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    atoms = Atoms("OHH", [[0, 0, 0], [0.96, 0, 0], [-0.24, 0.93, 0]])
    VelocityVerlet(atoms, 0.5 * FS, potential="water-pbe0").run(2)
    assert isinstance(atoms.calc, MDGraphCalculator)
    assert atoms.get_kinetic_energy() > 0.0
    Langevin(atoms, 0.5 * FS, temperature_K=300, friction=0.01 / FS).run(1)
    assert caplog.text.count("Fast evaluator against the reference") == 1


def test_steps_below_zero_are_refused() -> None:
    dynamics = VelocityVerlet(crystal(), STEP)
    with pytest.raises(InputError, match="-2 steps cannot be run"):
        dynamics.run(-2)
    assert dynamics.get_number_of_steps() == 0
