"""In single precision a system far from the origin is computed as well as one that is near."""

from pathlib import Path

import numpy as np
import pytest
import torch
from random_networks import TENSORNET, crystal, evaluated, molecule, network

from mdgraph import Simulation
from mdgraph.engine import PositionRestraints
from mdgraph.engine.calculation import Calculation
from mdgraph.engine.integrators import VelocityVerlet
from mdgraph.engine.restart import load_restart_, save_restart
from mdgraph.models import TensorNetPotential
from mdgraph.system import System

FAR = np.array([3.7e4, -2.1e4, 1.3e4])
SYSTEMS = {
    "molecule": molecule(9),
    "crystal": crystal(6),
    "slab": crystal(6).replace(pbc=np.array([True, True, False])),
}


@pytest.fixture(scope="module")
def potential() -> TensorNetPotential:
    return network(**TENSORNET)


def far_away(system: System, turns: int = 3) -> System:
    """Each atom in a cell of its own, and all of them far away."""
    rng = np.random.default_rng(2)
    cells = rng.integers(-turns, turns + 1, (len(system), 3)) * system.pbc
    return system.replace(positions=system.positions + FAR + cells @ system.cell)


@pytest.mark.parametrize("evaluator", ["reference", "fused"])
@pytest.mark.parametrize("system", SYSTEMS.values(), ids=SYSTEMS)
def test_forces_and_virial_far_from_the_origin_are_exact(
    potential: TensorNetPotential, system: System, evaluator: str
) -> None:
    exact = evaluated(potential, system)
    options = {"precision": "single", "evaluator": evaluator, "device": "cpu"}
    # The second lies beside a system that is near, and comes by way of `place`.
    away = far_away(system)
    batch = Calculation([system, away], potential, **options)
    batch.compute()
    placed = Calculation([system], potential, **options)
    placed.place(away.positions)
    placed.compute()
    for state, number in ((batch.state, 1), (placed.state, 0)):
        forces = state.forces.view(-1, len(system), 3)[number].double()
        torch.testing.assert_close(forces, exact.forces, rtol=0, atol=2e-6)
        torch.testing.assert_close(state.virial[number], exact.virial[0], rtol=0, atol=5e-6)
        places = state.places().view(-1, len(system), 3)[number].numpy()
        np.testing.assert_allclose(places, away.positions, rtol=0, atol=1e-6)


def test_a_system_near_the_origin_is_left_there(potential: TensorNetPotential) -> None:
    state = Calculation([crystal(6)], potential, precision="single", device="cpu").state
    assert torch.equal(state.positions, torch.tensor(crystal(6).positions, dtype=torch.float32))


def simulation(system: System, potential: TensorNetPotential, precision: str) -> Simulation:
    return Simulation(
        system, potential, VelocityVerlet(0.5), device="cpu", precision=precision, check=None
    )


def test_dynamics_far_from_the_origin_follow_double_and_restart_with_the_same_bits(
    tmp_path: Path, potential: TensorNetPotential
) -> None:
    rng = np.random.default_rng(3)
    near = crystal(6).replace(velocities=rng.normal(size=(6, 3)) * 1e-3)
    away = far_away(near)
    exact, run = (simulation(away, potential, name) for name in ("double", "single"))
    exact.run(20)
    run.run(10)
    save_restart(run, tmp_path / "restart.safetensors")
    run.run(10)
    moved = (run.state.places() - exact.state.places()).abs().max()
    assert moved < 1e-6
    # Resumed from another start: the file says where the atoms are.
    again = simulation(near, potential, "single")
    load_restart_(again, tmp_path / "restart.safetensors")
    again.run(10)
    assert torch.equal(again.state.places(), run.state.places())
    assert torch.equal(again.state.velocities, run.state.velocities)


def test_lattice_vectors_follow_the_cell(potential: TensorNetPotential) -> None:
    """Atoms that lie in other cells stay where the lattice of another cell repeats them."""
    away = far_away(crystal(6))
    run = simulation(away, potential, "single")
    run.set(cell=1.02 * away.cell, move_atoms=True)
    shifts = (run.state.places().numpy() - 1.02 * away.positions) @ np.linalg.inv(1.02 * away.cell)
    # All of them moved alike, up to lattice vectors.
    apart = shifts - shifts[0]
    np.testing.assert_allclose(apart, np.round(apart), atol=1e-5)


def test_restraints_far_from_the_origin_keep_their_points(potential: TensorNetPotential) -> None:
    away = far_away(molecule(9), turns=0)
    springs = PositionRestraints([0], 5.0, [away.positions[0] + [0.1, 0.0, 0.0]])
    results = []
    for precision in ("double", "single"):
        one = Calculation([away], potential, precision=precision, device="cpu", restraints=springs)
        one.compute()
        results.append(one.state.forces.double())
    torch.testing.assert_close(*results, rtol=0, atol=3e-6)
