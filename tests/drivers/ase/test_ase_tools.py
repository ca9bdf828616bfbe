"""ASE's own tools on the calculator: optimizers, phonons, dynamics, bands, files, copies."""

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
import pytest
from ase import Atoms, units
from ase.build import bulk, molecule
from ase.filters import FrechetCellFilter, UnitCellFilter
from ase.io.trajectory import Trajectory
from ase.md.verlet import VelocityVerlet
from ase.mep import NEB
from ase.optimize import BFGS, FIRE
from ase.phonons import Phonons
from ase_atoms import CountedCalculation, calculator, ethanol, silicon, tensornet
from toys import LennardJones

from mdgraph.drivers.ase import MDGraphCalculator

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("optimizer", [BFGS, FIRE])
def test_optimizers_reach_a_minimum(optimizer: Any) -> None:
    atoms = molecule("H2O")
    atoms.calc = calculator()
    before = atoms.get_potential_energy()
    assert optimizer(atoms, logfile=None).run(fmax=0.01, steps=200)
    assert atoms.get_potential_energy() < before - 0.01


def lattice_vectors(edge: float, reach: int = 3) -> np.ndarray:
    """All vectors between atoms of a face-centred cubic crystal within some cells."""
    basis = 0.5 * edge * np.array([[0, 1, 1], [1, 0, 1], [1, 1, 0]])
    steps = np.stack(np.meshgrid(*[np.arange(-reach, reach + 1)] * 3), -1).reshape(-1, 3)
    return steps[np.any(steps != 0, axis=1)] @ basis


def lennard_jones(distance: np.ndarray, order: int) -> np.ndarray:
    """Derivative of this order of the pair energy whose force is shifted to zero at 6 A."""
    a, b = 4.0 * 0.0104 * 3.4**12, 4.0 * 0.0104 * 3.4**6
    slope = -12.0 * a / 6.0**13 + 6.0 * b / 6.0**7
    shift = a / 6.0**12 - b / 6.0**6
    value = (
        a / distance**12 - b / distance**6 - shift - slope * (distance - 6.0),
        -12.0 * a / distance**13 + 6.0 * b / distance**7 - slope,
        156.0 * a / distance**14 - 42.0 * b / distance**8,
    )[order]
    return np.where(distance < 6.0, value, 0.0)


def equilibrium_edge() -> float:
    """Where the lattice sum's derivative by the edge vanishes, by bisection."""
    low, high = 5.0, 6.0
    for _ in range(60):
        edge = 0.5 * (low + high)
        distance = np.linalg.norm(lattice_vectors(edge), axis=1)
        if (lennard_jones(distance, 1) * distance).sum() < 0.0:
            low = edge
        else:
            high = edge
    return edge


def sheared_argon(edge: float) -> Atoms:
    crystal = bulk("Ar", a=edge)
    crystal.set_cell(crystal.cell.array @ [[1.0, 0.03, 0.0], [0.0, 1.02, 0.0], [0.0, 0.0, 0.98]])
    crystal.calc = calculator(LennardJones(0.0104, 3.4, 6.0))
    return crystal


def test_cell_filter_finds_the_lattice_constant() -> None:
    crystal = sheared_argon(5.5)
    assert BFGS(UnitCellFilter(crystal), logfile=None).run(fmax=1e-4, steps=60)
    np.testing.assert_allclose(crystal.get_stress(), 0.0, atol=1e-5)
    assert crystal.get_volume() == pytest.approx(equilibrium_edge() ** 3 / 4.0, rel=1e-3)
    np.testing.assert_allclose(crystal.cell.angles(), 60.0, atol=0.1)


def test_frechet_filter_lowers_the_energy_of_cell_and_positions() -> None:
    # Its matrix logarithms take longer than the energies, so a few steps must do.
    crystal = sheared_argon(5.5)
    start, volume = crystal.get_potential_energy(), crystal.get_volume()
    BFGS(FrechetCellFilter(crystal), logfile=None).run(fmax=1e-4, steps=3)
    assert crystal.get_potential_energy() < start - 1e-4
    assert crystal.get_volume() < volume


def test_phonons_agree_with_the_dynamical_matrix(tmp_path: Path) -> None:
    edge = 5.3
    crystal = bulk("Ar", a=edge)
    phonons = Phonons(
        crystal,
        calculator(LennardJones(0.0104, 3.4, 6.0)),
        supercell=(2, 2, 2),
        delta=1e-3,
        name=str(tmp_path / "phonons"),
    )
    phonons.run()
    phonons.read(acoustic=True)
    zone_boundary = np.array([0.5, 0.5, 0.0])
    found = phonons.band_structure([[0.0, 0.0, 0.0], zone_boundary])
    np.testing.assert_allclose(found[0], 0.0, atol=1e-5)

    vectors = lattice_vectors(edge)
    distance = np.linalg.norm(vectors, axis=1)
    along = vectors[:, :, None] * vectors[:, None, :] / distance[:, None, None] ** 2
    bent = lennard_jones(distance, 1) / distance
    stiff = lennard_jones(distance, 2)
    constants = stiff[:, None, None] * along + bent[:, None, None] * (np.eye(3) - along)
    wave = zone_boundary @ crystal.cell.reciprocal() * 2.0 * np.pi
    matrix = ((1.0 - np.cos(vectors @ wave))[:, None, None] * constants).sum(0)
    squared = np.linalg.eigvalsh(matrix) / crystal.get_masses()[0]
    expected = np.sqrt(squared) * units._hbar * 1e10 / np.sqrt(units._e * units._amu)
    np.testing.assert_allclose(np.sort(found[1]), expected, rtol=1e-3)


def test_dynamics_conserve_energy_better_with_shorter_steps() -> None:
    errors = []
    start = ethanol()
    start.set_momenta(np.random.default_rng(1).normal(size=(len(start), 3), scale=0.3))
    for timestep, steps in ((0.5, 40), (0.25, 80)):
        atoms = start.copy()
        atoms.calc = calculator()
        totals: list[float] = []
        dynamics = VelocityVerlet(atoms, timestep=timestep * units.fs)
        dynamics.attach(lambda a=atoms, t=totals: t.append(a.get_total_energy()))
        dynamics.run(steps)
        errors.append(np.ptp(totals))
    assert errors[0] < 0.02
    assert errors[0] / errors[1] == pytest.approx(4.0, rel=0.2)


def band(atoms: Atoms) -> list[Atoms]:
    """Five images in which a hydrogen turns about."""
    images = [atoms.copy() for _ in range(5)]
    images[-1].positions[-1] += [0.3, 0.5, -0.4]
    return images


def test_bands_with_own_and_shared_calculators_and_in_threads_agree() -> None:
    potential = tensornet()
    forces = []
    for own, options in (
        (True, {}),
        (False, {"allow_shared_calculator": True}),
        (True, {"parallel": True}),
    ):
        images = band(ethanol())
        shared = calculator(potential)
        for image in images:
            image.calc = calculator(potential) if own else shared
        elastic = NEB(images, k=0.1, method="improvedtangent", **options)
        elastic.interpolate()
        forces.append(elastic.get_forces())
        single = calculator(potential).get_potential_energy(images[2])
        assert elastic.energies[2] == pytest.approx(single, abs=1e-10)
    np.testing.assert_allclose(forces[1], forces[0], atol=1e-9)
    np.testing.assert_allclose(forces[2], forces[0], atol=1e-9)
    assert np.abs(forces[0]).max() > 0.05


def test_results_go_through_trajectories_and_files(tmp_path: Path) -> None:
    atoms = silicon()
    atoms.calc = calculator()
    energy = atoms.get_potential_energy()
    with Trajectory(tmp_path / "one.traj", "w", atoms) as trajectory:
        trajectory.write()
    ase.io.write(tmp_path / "one.extxyz", atoms)
    for name in ("one.traj", "one.extxyz"):
        read = ase.io.read(tmp_path / name)
        assert read.get_potential_energy() == pytest.approx(energy, abs=1e-7)
        np.testing.assert_allclose(read.get_stress(), atoms.get_stress(), atol=1e-7)


@pytest.mark.parametrize(
    "duplicate", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))]
)
def test_copies_of_a_used_calculator_are_independent(
    duplicate: Callable[[MDGraphCalculator], MDGraphCalculator], counted: type[CountedCalculation]
) -> None:
    first, second = ethanol(), ethanol()
    first.calc = calculator()
    energy = first.get_potential_energy()
    second.calc = duplicate(first.calc)
    second.rattle(0.1, seed=2)
    second.get_potential_energy()
    assert counted.made == 2
    alone = calculator().get_potential_energy(second)
    assert second.get_potential_energy() == pytest.approx(alone, abs=1e-10)
    assert first.get_potential_energy() == energy
    first.rattle(0.05, seed=1)
    alone = calculator().get_potential_energy(first)
    assert first.get_potential_energy() == pytest.approx(alone, abs=1e-10)
