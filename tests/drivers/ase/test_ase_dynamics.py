"""Dynamics with ASE's interface: the engine's bits, and ASE's steps, files and habits."""

import io
from pathlib import Path
from typing import Any

import ase.md.nose_hoover_chain
import ase.md.verlet
import numpy as np
import pytest
import torch
from ase import Atoms, units
from ase.constraints import FixCom
from ase.io.trajectory import Trajectory
from ase_crystals import ENSEMBLES, FS, STEP, Counting, crystal, evaluations
from toys import argon

from mdgraph.drivers.ase import (
    Langevin,
    NoseHooverChainNVT,
    StochasticCellRescaling,
    VelocityVerlet,
)
from mdgraph.drivers.ase.dynamics import EngineDynamics
from mdgraph.engine import Simulation
from mdgraph.io.structures import from_ase

pytestmark = pytest.mark.usefixtures("one_thread")


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
    dynamics._sync.centre = False  # alone, the engine holds none either
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
        values = dynamics.simulation.integrator.parameters
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
            "tau": 100.0,
            "pressure": 2 * 6.241509e-7,
            "tau_p": 1000.0,
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
    for name in ("nve", "langevin", "nose-hoover", "mtk", "bussi"):
        dynamics = ENSEMBLES[name][0](crystal())
        before = dynamics.get_conserved_energy()
        dynamics.run(60)
        assert dynamics.get_conserved_energy() == pytest.approx(before, abs=2e-3)
    assert np.isnan(ENSEMBLES["rescaling"][0](crystal()).get_conserved_energy())


# Who looks, and what they see


def test_observers_are_called_as_in_ase_without_evaluations() -> None:
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


def test_tuning_knows_the_length_of_the_run_and_its_observers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    judged: list[Any] = []
    choose = Simulation.choose

    def recorded(self: Simulation, steps: int, intervals: Any = ()) -> None:
        judged.append((steps, *intervals))
        choose(self, steps, intervals)

    monkeypatch.setattr(Simulation, "choose", recorded)
    dynamics = VelocityVerlet(crystal(), STEP)
    dynamics.attach(lambda: None, interval=4)
    dynamics.run(10)
    # The second is the engine's own, for the steps that it has been asked for so far.
    assert judged[:3] == [(10, 4), (4,), (6, 4)]


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
