"""The physics of the potential that mdgraph ships."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from repository import ROOT

from mdgraph.engine import Calculation, Simulation, VelocityVerlet
from mdgraph.io.structures import read_system
from mdgraph.system import System

NAME = "water-pbe0"


def calculation(system: System, skin: float = 0.0, evaluator: str = "auto") -> Calculation:
    """Brought up to date."""
    options: dict[str, Any] = {"precision": "double", "skin": skin, "evaluator": evaluator}
    result = Calculation([system], NAME, device="cpu", **options)
    result.compute()
    return result


@pytest.fixture(scope="module")
def liquid() -> System:
    """64 molecules at 300 K."""
    return read_system(ROOT / "potentials" / NAME / "start.extxyz")


@pytest.fixture(scope="module")
def sample() -> System:
    """27 molecules at 300 K."""
    return read_system(ROOT / "data" / "water27.extxyz")


@pytest.fixture(scope="module")
def bonds(liquid: System) -> NDArray[np.int64]:
    """(64, 3) atoms of each molecule: oxygen, then its two hydrogens."""
    oxygen, hydrogen = (np.flatnonzero(liquid.numbers == number) for number in (8, 1))
    distance = np.linalg.norm(apart(liquid, oxygen[:, None], hydrogen), axis=-1)
    return np.column_stack([oxygen, hydrogen[np.argsort(distance, axis=1)[:, :2]]])


def apart(system: System, first: Any, second: Any) -> NDArray[np.float64]:
    """Vectors from the first atoms to the nearest images of the second in a cube."""
    edge = system.cell[0, 0]
    assert (system.cell == edge * np.eye(3)).all()
    vectors = system.positions[second] - system.positions[first]
    return vectors - edge * np.round(vectors / edge)


def cluster(liquid: System, bonds: NDArray[np.int64], molecules: int) -> System:
    """A molecule of the liquid with its nearest, whole and without a cell."""
    centre = bonds[0, 0]
    near = bonds[np.argsort(np.linalg.norm(apart(liquid, centre, bonds[:, 0]), axis=1))[:molecules]]
    oxygen = apart(liquid, centre, near[:, 0])
    hydrogen = oxygen[:, None] + apart(liquid, near[:, :1], near[:, 1:])
    positions = np.concatenate([oxygen[:, None], hydrogen], axis=1).reshape(-1, 3)
    return System(np.tile([8, 1, 1], molecules), positions)


# Derivatives


def slope(energy: Callable[[float], float], step: float) -> float:
    """Central difference of fourth order."""
    near, far = energy(step) - energy(-step), energy(2 * step) - energy(-2 * step)
    return (8.0 * near - far) / (12.0 * step)


def test_forces_are_differences_of_the_energy(sample: System) -> None:
    """The energies of atoms are compared before they are added up, which spares their digits."""
    here = calculation(sample, skin=0.5)
    state = here.state
    start, energies, forces = (x.clone() for x in (state.positions, state.energies, state.forces))
    typical = float(forces.square().mean().sqrt())
    rng = np.random.default_rng(5)
    assert sample.numbers[60:62].tolist() == [8, 1]
    for atom in (60, 61):
        way = torch.tensor(rng.normal(size=3))
        way /= way.norm()

        def along(step: float, atom: int = atom, way: torch.Tensor = way) -> float:
            state.positions.copy_(start)
            state.positions[atom] += step * way
            here.compute()
            return float((state.energies - energies).sum())

        # A short step: the second derivative of the window jumps where a pair crosses the cutoff.
        assert abs(slope(along, 1e-4) + float(forces[atom] @ way)) < 1e-7 * typical


def test_the_virial_is_the_difference_of_the_energy(sample: System) -> None:
    before = calculation(sample).state
    virial = before.virial[0].numpy()
    way = np.random.default_rng(6).normal(size=(3, 3))
    way = 0.5 * (way + way.T) / np.linalg.norm(way)

    def along(step: float) -> float:
        strain = np.eye(3) + step * way
        strained = sample.replace(positions=sample.positions @ strain, cell=sample.cell @ strain)
        return float((calculation(strained).state.energies - before.energies).sum())

    difference = slope(along, 1e-4) + float((virial * way).sum())
    assert abs(difference) < 1e-7 * np.abs(virial).max()


# Symmetries


def rotation(seed: int) -> NDArray[np.float64]:
    """A random rotation."""
    matrix = np.linalg.qr(np.random.default_rng(seed).normal(size=(3, 3)))[0]
    return matrix * np.sign(np.linalg.det(matrix))


@dataclass(frozen=True)
class Change:
    """Of a system, and how energy, forces and virial must answer.

    Attributes:
        of_system: what is done.
        energy: factor.
        matrix: that turns vectors v into v @ matrix.
        order: atom of the original for each atom of the result.
    """

    of_system: Callable[[System], System]
    energy: float = 1.0
    matrix: NDArray[np.float64] = field(default_factory=lambda: np.eye(3))
    order: Callable[[int], NDArray[np.int64]] = np.arange


def turned(matrix: NDArray[np.float64]) -> Change:
    return Change(
        lambda system: system.replace(
            positions=system.positions @ matrix, cell=system.cell @ matrix
        ),
        matrix=matrix,
    )


def shuffled(atoms: int) -> NDArray[np.int64]:
    return np.random.default_rng(8).permutation(atoms)


def reordered(system: System) -> System:
    order = shuffled(len(system))
    return system.replace(
        numbers=system.numbers[order],
        positions=system.positions[order],
        masses=system.masses[order],
    )


def doubled(system: System) -> System:
    return system.replace(
        numbers=np.tile(system.numbers, 2),
        positions=np.concatenate([system.positions, system.positions + system.cell[0]]),
        cell=system.cell * np.array([[2.0], [1.0], [1.0]]),
        masses=np.tile(system.masses, 2),
    )


CHANGES = {
    "rotation": turned(rotation(7)),
    "inversion": turned(-np.eye(3)),
    "translation": Change(
        lambda system: system.replace(positions=system.positions + np.array([31.0, -7.3, 0.4]))
    ),
    "permutation": Change(reordered, order=shuffled),
    "two cells": Change(doubled, energy=2.0, order=lambda atoms: np.tile(np.arange(atoms), 2)),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_results_follow_the_symmetries(sample: System, change: Change) -> None:
    before = calculation(sample.replace(velocities=None)).state
    after = calculation(change.of_system(sample.replace(velocities=None))).state
    turn = torch.tensor(change.matrix)
    order = torch.tensor(change.order(len(sample)))
    torch.testing.assert_close(
        after.energies, before.energies[order], rtol=0, atol=1e-9, msg="energies"
    )
    torch.testing.assert_close(
        after.forces, before.forces[order] @ turn, rtol=0, atol=1e-9, msg="forces"
    )
    torch.testing.assert_close(
        after.virial[0], change.energy * turn.T @ before.virial[0] @ turn, rtol=0, atol=1e-7
    )
    assert float(after.energy) == pytest.approx(change.energy * float(before.energy), abs=1e-8)


# Chemistry


def test_the_start_is_water(liquid: System, bonds: NDArray[np.int64]) -> None:
    assert sorted(bonds.ravel()) == list(range(192))
    arms = apart(liquid, bonds[:, :1], bonds[:, 1:])
    length = np.linalg.norm(arms, axis=-1)
    angle = np.degrees(np.arccos((arms[:, 0] * arms[:, 1]).sum(-1) / length.prod(-1)))
    assert length.min() > 0.85
    assert length.max() < 1.2
    assert length.mean() == pytest.approx(0.98, abs=0.02)
    assert angle.mean() == pytest.approx(105.0, abs=3.0)
    amu_in_g, a_in_cm = 1.66054e-24, 1e-8
    assert liquid.masses.sum() * amu_in_g / (liquid.volume * a_in_cm**3) == pytest.approx(
        1.0, abs=0.02
    )


def test_bonds_resist_like_those_of_liquid_water(liquid: System, bonds: NDArray[np.int64]) -> None:
    """An O-H stretch at 3,200 to 3,700 1/cm has a force constant of 36 to 48 eV/A^2."""
    for oxygen, hydrogen, _ in bonds[::16]:
        arm = apart(liquid, oxygen, hydrogen)
        way = arm / np.linalg.norm(arm)
        pull = []
        for length in (0.93, 1.03):
            positions = liquid.positions.copy()
            positions[hydrogen] = positions[oxygen] + length * way
            moved = calculation(liquid.replace(positions=positions), evaluator="fused")
            forces = moved.state.forces.numpy()
            pull.append(float(forces[hydrogen] @ way))
        assert pull[0] > 0.0 > pull[1]
        assert 36.0 < (pull[0] - pull[1]) / 0.1 < 48.0


# Dynamics


def molecules_in_motion(
    liquid: System, bonds: NDArray[np.int64], timestep: float, temperature: float = 100.0
) -> Simulation:
    """Two molecules, bound to each other, at constant energy; by the tables, as users run it."""
    return Simulation(
        cluster(liquid, bonds, 2),
        NAME,
        VelocityVerlet(timestep),
        device="cpu",
        precision="double",
        evaluator="fused",
        temperature=temperature,
        exact_temperature=True,
        seed=1,
    )


def test_energy_is_conserved_to_second_order(liquid: System, bonds: NDArray[np.int64]) -> None:
    class EveryFemtosecond:
        def __init__(self, timestep: float) -> None:
            self.interval = round(1.0 / timestep)
            self.energies: list[float] = []

        def report(self, simulation: Simulation) -> None:
            seen = simulation.observables()
            self.energies.append(float(seen.potential_energy + seen.kinetic_energy))

    spread = []
    for timestep in (0.5, 0.25):
        simulation = molecules_in_motion(liquid, bonds, timestep)
        look = EveryFemtosecond(timestep)
        simulation.reporters.append(look)
        simulation.run(round(100.0 / timestep))
        assert len(look.energies) == 100
        spread.append(np.std(look.energies))
    assert spread[0] / spread[1] == pytest.approx(4.0, abs=0.3)


def test_dynamics_can_be_reversed_in_time(liquid: System, bonds: NDArray[np.int64]) -> None:
    simulation = molecules_in_motion(liquid, bonds, 1.0, temperature=300.0)
    start = simulation.state.positions.clone()
    simulation.run(400)
    assert simulation.time == 400.0
    assert float((simulation.state.positions - start).abs().max()) > 0.5
    simulation.state.velocities.neg_()
    simulation.run(400)
    assert float((simulation.state.positions - start).abs().max()) < 1e-8
