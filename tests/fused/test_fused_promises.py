"""What the fused form promises: bits whatever the order, dense matter, molecules on their way."""

import numpy as np
import pytest
import torch
from random_networks import TENSORNET, crystal, evaluated, lists_for, molecule, network

from mdgraph.engine import Simulation, VelocityVerlet
from mdgraph.fused.evaluator import FusedTensorNet
from mdgraph.state import State
from mdgraph.system import System

CUDA = torch.cuda.is_available()
SETTINGS = TENSORNET | {"layers": 1}


def fused(backend: str) -> FusedTensorNet:
    place = "cuda" if backend == "triton" and CUDA else "cpu"
    return FusedTensorNet(network(**SETTINGS), "mixed", place, backend)  # type: ignore[arg-type]


@pytest.mark.parametrize("backend", ["compiled", "triton"])
def test_the_order_of_visits_does_not_move_a_bit(backend: str) -> None:
    evaluator, system = fused(backend), crystal(6 if CUDA or backend == "compiled" else 3)
    found = []
    for way in ("as it comes", "reversed", "shuffled"):
        state = State([system], evaluator.device)
        lists = lists_for(state, evaluator.potential)
        for one in lists:
            if way == "reversed":
                one.order.copy_(one.order.flip(0))
            elif way == "shuffled":
                torch.manual_seed(2)
                one.order.copy_(one.order[torch.randperm(len(system)).to(state.device)])
        evaluator.evaluate_(state, lists)
        found.append(state)
    assert float(found[0].forces.abs().max()) > 1e-3
    for other in found[1:]:
        for name in ("energies", "energy", "forces", "virial"):
            assert torch.equal(getattr(found[0], name), getattr(other, name))


@pytest.mark.parametrize(("backend", "edge"), [("compiled", 5), ("triton", 5 if CUDA else 2)])
def test_an_atom_may_have_two_hundred_neighbors(backend: str, edge: int) -> None:
    """On a grid of 0.95 A, of so many atoms along each edge of the cell."""
    evaluator = fused(backend)
    places = np.stack(np.meshgrid(*[np.arange(edge)] * 3, indexing="ij"), -1).reshape(-1, 3)
    positions = 0.95 * places + np.random.default_rng(0).normal(scale=0.05, size=(edge**3, 3))
    cell = 0.95 * edge * np.eye(3)
    system = System(np.resize([8, 1, 6], edge**3), positions, cell=cell, pbc=True)
    exact = evaluated(network(**SETTINGS), system)
    state = State([system], evaluator.device)
    lists = lists_for(state, evaluator.potential)
    evaluator.evaluate_(state, lists)
    assert 180 < float(lists[0].count.double().mean()) < 210
    scale = float(exact.forces.square().mean().sqrt())
    difference = state.forces.cpu() - exact.forces
    assert float(difference.square().mean().sqrt()) < 2e-5 * scale
    assert float(torch.linalg.vector_norm(difference, dim=1).max()) < 1e-4 * scale
    assert float((state.energies.cpu() - exact.energies).abs().max()) < 1e-5
    virial = (state.virial.cpu() - exact.virial).abs().max() / exact.virial.abs().max()
    assert float(virial) < 1e-5


@pytest.mark.parametrize("periodic", [True, False])
def test_a_molecule_that_leaves_the_box_is_the_one_that_stays(periodic: bool) -> None:
    """Ten steps through a face, and from the start in another image of the box."""
    edge, start = 9.0, np.array([5.0, 3.0, 3.0])
    still = molecule(4)
    ends = []
    for where in (0.0 * start, start, start + 3 * edge):
        system = still.replace(
            positions=still.positions + where,
            cell=edge * np.eye(3),
            pbc=periodic,
            velocities=np.tile([0.5, 0.0, 0.0], (4, 1)),
        )
        run = Simulation(
            system,
            network(**SETTINGS),
            VelocityVerlet(0.5),
            device="cpu",
            precision="double",
            evaluator="fused",
            check=False,
            maximum_temperature=1e9,
        )
        run.run(10)
        state = run.state
        ends.append((state.positions - torch.tensor(where), state.forces, state.energy))
        farthest = float(state.positions[:, 0].max())
        assert (farthest > edge) == (where[0] > 0.0)
    for moved in ends[1:]:
        for one, other in zip(ends[0], moved, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-9)
