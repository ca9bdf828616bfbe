"""What only a GPU can show of replicas: graphs, eager steps and restarts give the same bits."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from cuda_water import evaluator, liquid
from ensembles import assert_same

from mdgraph.engine import (
    Integrator,
    LangevinMiddle,
    NoseHooverChains,
    PositionRestraints,
    Simulation,
    StochasticVelocityRescaling,
)
from mdgraph.engine.replicas import ReplicaExchange, replica_simulation
from mdgraph.engine.restart import load_restart_, save_restart

pytestmark = pytest.mark.gpu

BATHS: dict[str, Callable[[list[float]], Integrator]] = {
    "langevin": lambda kelvins: LangevinMiddle(0.5, kelvins, 5.0),
    "velocity rescaling": lambda kelvins: StochasticVelocityRescaling(0.5, kelvins),
    "nose-hoover": lambda kelvins: NoseHooverChains(0.5, kelvins),
}


def exchanging(name: str, graph: str) -> tuple[Simulation, ReplicaExchange]:
    # So many molecules at temperatures so close that most exchanges are accepted.
    kelvins = np.geomspace(300.0, 340.0, 16).tolist()
    cluster = liquid(8).replace(cell=np.zeros((3, 3)), pbc=np.full(3, False))
    run = replica_simulation(
        [cluster] * 16, evaluator("cuda"), BATHS[name](kelvins), device="cuda", seed=5, graph=graph
    )
    exchange = ReplicaExchange(run, 20)
    run.reporters.append(exchange)
    return run, exchange


@pytest.mark.parametrize("name", BATHS)
def test_graphs_eager_steps_and_restarts_make_the_same_exchanges(name: str, tmp_path: Path) -> None:
    runs, exchanges = zip(*[exchanging(name, graph) for graph in ("on", "off", "on")], strict=True)
    for run in runs[:2]:
        run.run(110)
    save_restart(runs[0], tmp_path / "restart.safetensors")
    load_restart_(runs[2], tmp_path / "restart.safetensors")
    captured = runs[0].step_graphs._graphs.copy()
    for run in runs:
        run.run(90)
    # A change of temperature needs no new capture.
    assert all(runs[0].step_graphs._graphs[length] is one for length, one in captured.items())
    assert sum(exchanges[0].record.accepted) > 10
    for number in (1, 2):
        assert_same(runs[0], runs[number])
    assert torch.equal(exchanges[0].states, exchanges[1].states)


def test_thermostats_have_the_temperatures_of_the_ladder() -> None:
    run, exchange = exchanging("langevin", "on")
    run.run(20)
    assert sorted(exchange.states.tolist()) == list(range(16))
    kelvins = torch.tensor(exchange.temperatures, dtype=torch.float64)[exchange.states]
    assert torch.equal(run.integrator.values()["temperature"].cpu(), kelvins)


def test_different_molecules_with_fixed_atoms_share_a_graph() -> None:
    box, cluster = liquid(27), liquid(8).replace(cell=np.zeros((3, 3)), pbc=np.full(3, False))
    systems = [cluster, box, cluster.replace(positions=1.02 * cluster.positions)]

    def made(device: str, graph: str) -> Simulation:
        return replica_simulation(
            systems,
            evaluator(device),
            LangevinMiddle(0.5, [200.0, 300.0, 400.0], 5.0),
            device=device,
            seed=3,
            graph=graph,
            fixed=[0, 24],
            restraints=PositionRestraints([3, 27], 5.0),
        )

    runs = [made("cuda", "on"), made("cuda", "off"), made("cpu", "auto")]
    start = runs[2].state.positions.clone()
    for run in runs:
        run.run(40)
    assert runs[0].graphed
    assert_same(runs[0], runs[1])
    torch.testing.assert_close(
        runs[0].state.positions.cpu(), runs[2].state.positions, atol=1e-4, rtol=0.0
    )
    moved = (runs[0].state.positions.cpu() - start).abs().amax(1)
    assert float(moved[[0, 24]].max()) == 0.0
    assert float(moved[1:24].min()) > 0.0
