"""What scripts of ASE give to dynamics and set while these run."""

import inspect
from collections.abc import Callable
from typing import Any

import ase.optimize
import numpy as np
import pytest
import torch
from ase import Atoms, units
from ase.md.nptberendsen import NPTBerendsen
from ase_crystals import FS, STEP, crystal
from toys import HarmonicWells, argon

from mdgraph.drivers.ase import (
    FIRE,
    Bussi,
    IsotropicMTKNPT,
    Langevin,
    MDGraphCalculator,
    StochasticCellRescaling,
    VelocityVerlet,
)
from mdgraph.drivers.ase.dynamics import EngineDynamics
from mdgraph.errors import InputError
from mdgraph.io.structures import to_ase

pytestmark = pytest.mark.usefixtures("one_thread")

BAR = 1e5 * units.Pascal


def npt(atoms: Atoms, **options: Any) -> StochasticCellRescaling:
    start: dict[str, Any] = {"temperature_K": 60, "pressure_au": 0.0, "seed": 1}
    return StochasticCellRescaling(atoms, STEP, **(start | options))


def parameters(dynamics: EngineDynamics) -> dict[str, float]:
    return {name: float(one[0]) for name, one in dynamics.simulation.integrator.values().items()}


# What is given


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (
            lambda: VelocityVerlet(crystal(), STEP, logfle="-"),
            "Verlet does not take logfle; .*logfile",
        ),
        (lambda: Langevin(crystal(), STEP, temperature_K=80, frction=1), "did you mean friction"),
        (lambda: Bussi(crystal(), STEP, temperature=80, taut=1), "did you mean temperature_K"),
        (
            lambda: IsotropicMTKNPT(crystal(), STEP, 80, pressure=0, tdamp=1, pdamp=1),
            "did you mean pressure_au",
        ),
        (lambda: npt(crystal(), hydrostatic=True), "it takes .*axes, cell_dof, .*pressure_au"),
        (lambda: npt(crystal(), pressure=1.0), "pressure is given twice; give pressure_au alone"),
        (lambda: npt(crystal(), pressure_au=None), "pressure is given nowhere"),
        (lambda: FIRE(crystal(), max_step=0.1), "did you mean maxstep"),
        (lambda: FIRE(crystal(), dt=0.2, fa=0.9), "take dt other than 0.1, fa other than 0.99"),
        (lambda: VelocityVerlet(crystal(), STEP, domains=2), "domains by mdgraph.engine.Simul"),
        (lambda: MDGraphCalculator("copper-pbe", domains=2), "evaluate a system whole; divide"),
    ],
)
def test_unknown_arguments_are_refused_with_the_known_ones(
    attempt: Callable[[], Any], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        attempt()


def test_rescaling_takes_every_argument_of_berendsen() -> None:
    theirs = inspect.signature(NPTBerendsen).parameters.values()
    given = {one.name: one.default for one in theirs if one.default is not one.empty}
    given |= {"pressure_au": 2e-3, "compressibility_au": 40.0}
    dynamics = StochasticCellRescaling(crystal(), STEP, **(given | {"temperature": 70}))
    expected = {"temperature": 70.0, "pressure": 2e-3, "compressibility": 40.0, "tau": 500.0}
    found = parameters(dynamics)
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    with pytest.warns(FutureWarning, match="deprecated by ASE; give"):
        old = StochasticCellRescaling(crystal(), STEP, 70, pressure=3.0, compressibility=5e-5)
    new = npt(crystal(), temperature_K=70, pressure_au=3 * BAR, compressibility_au=5e-5 / BAR)
    assert parameters(old) == pytest.approx(parameters(new))


@pytest.mark.parametrize(
    "make", [npt, lambda atoms, **more: Bussi(atoms, STEP, 60, 80 * FS, **more)]
)
def test_fixcm_decides_whether_the_momentum_is_removed(make: Callable[..., EngineDynamics]) -> None:
    for fixcm in (True, False):
        atoms = crystal(drifting=True)
        centre = atoms.get_center_of_mass()
        make(atoms, fixcm=fixcm).run(5)
        momentum = np.abs(atoms.get_momenta().sum(axis=0)).max()
        moved = np.abs(atoms.get_center_of_mass() - centre).max()
        assert (momentum < 1e-10) == (moved < 1e-12) == fixcm


def test_the_engine_relaxes_with_the_defaults_of_ase() -> None:
    theirs = inspect.signature(ase.optimize.FIRE).parameters.values()
    given = {one.name: one.default for one in theirs if one.default is not one.empty}
    first, second = crystal(), crystal()
    assert FIRE(first, **(given | {"logfile": None})).run(fmax=1e-3, steps=400)
    FIRE(second, logfile=None).run(fmax=1e-3, steps=400)
    np.testing.assert_array_equal(first.positions, second.positions)


# What is set


def test_setters_of_berendsen_change_the_engine_without_another_capture(captures) -> None:
    atoms, wells = to_ase(argon(1)), HarmonicWells(torch.tensor(argon(1).positions), 0.05)
    atoms.calc = MDGraphCalculator(wells, device="cpu", precision="double")
    dynamics = npt(atoms)
    kept = dynamics.simulation
    kept.step_graphs.graphed = True
    dynamics.run(20)
    made = len(captures)
    dynamics.set_temperature(temperature_K=95)
    dynamics.set_pressure(pressure_au=2e-3)
    dynamics.set_compressibility(compressibility_au=40.0)
    dynamics.set_taut(200 * FS)
    dynamics.set_taup(500 * FS)
    dynamics.set_timestep(2 * FS)
    dynamics.run(20)
    assert dynamics.simulation is kept
    assert made == len(captures) > 0
    expected = {
        "timestep": 2.0,
        "temperature": 95.0,
        "tau": 200.0,
        "pressure": 2e-3,
        "tau_p": 500.0,
        "compressibility": 40.0,
    }
    assert parameters(dynamics) == pytest.approx(expected)
    assert (dynamics.get_temperature(), dynamics.get_pressure()) == (95, 2e-3)
    assert (dynamics.get_taut(), dynamics.get_taup()) == (200 * FS, 500 * FS)
    assert (dynamics.get_compressibility(), dynamics.get_timestep()) == (40.0, 2 * FS)


def test_setters_change_the_dynamics() -> None:
    atoms = crystal()
    dynamics = npt(atoms, taut=40 * FS, taup=200 * FS)
    dynamics.run(20)
    before = atoms.get_volume()
    dynamics.set_pressure(pressure_au=0.05)
    dynamics.set_temperature(300)
    dynamics.run(100)
    assert atoms.get_volume() < 0.97 * before
    assert atoms.get_temperature() > 150.0
    bath = Bussi(atoms, STEP, 60, 1e6 * FS, seed=1)
    bath.run(20)
    bath.set_taut(40 * FS)
    bath.set_temperature(temperature_K=20)
    bath.run(100)
    assert (bath.get_temperature(), bath.get_taut()) == (20, 40 * FS)
    assert atoms.get_temperature() < 60.0
