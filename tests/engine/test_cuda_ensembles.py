"""What only a GPU can show of the ensembles: the captured step is the eager step."""

import pytest
import torch
from cuda_water import liquid, simulation
from ensembles import DYNAMICS, MINIMISERS, assert_same, toy

from mdgraph.engine import (
    FIRE,
    Integrator,
    MartynaTobiasKlein,
    NoseHooverChains,
    Simulation,
    StochasticCellRescaling,
    StochasticVelocityRescaling,
    minimize,
)
from mdgraph.engine.restart import load_restart_, save_restart

pytestmark = pytest.mark.gpu

NETWORK = {
    "velocity rescaling": lambda: StochasticVelocityRescaling(0.5, 300.0),
    "nose-hoover": lambda: NoseHooverChains(0.5, 300.0),
    "cell rescaling": lambda: StochasticCellRescaling(0.5, 300.0, 0.0),
    "axes": lambda: StochasticCellRescaling(0.5, 300.0, 0.0, cell_dof="axes"),
    "full cell": lambda: StochasticCellRescaling(0.5, 300.0, 0.0, cell_dof="full"),
    "martyna-tobias-klein": lambda: MartynaTobiasKlein(0.5, 300.0, 0.0, tau_p=3000.0),
    "fire": lambda: FIRE(1e-6),
    "fire, cell": lambda: FIRE(1e-6, cell_dof="isotropic"),
}


def change(run: Simulation) -> None:
    new = {"timestep": 0.4, "temperature": 330.0, "pressure": 1e-5}
    run.set(**{name: new[name] for name in run.integrator.parameters if name in new})


@pytest.mark.parametrize("name", NETWORK)
@pytest.mark.parametrize("skin", [0.0, 0.5])
def test_graph_and_eager_are_the_same_bits_and_changes_need_no_capture(name, skin) -> None:
    runs = [
        simulation(liquid(), NETWORK[name](), graph=graph, skin=skin) for graph in ("on", "off")
    ]
    captured = []
    for run in runs:
        run.run(45)
        captured.append(dict(run.step_graphs._graphs))
        change(run)
        run.run(45)
    assert [run.graphed for run in runs] == [True, False]
    assert captured[0]
    assert all(runs[0].step_graphs._graphs[length] is one for length, one in captured[0].items())
    assert_same(*runs)


@pytest.mark.parametrize("name", DYNAMICS | MINIMISERS)
def test_batches_are_captured(name) -> None:
    make = (DYNAMICS | MINIMISERS)[name]
    runs = [on_cuda(make(), graph) for graph in ("on", "off")]
    for run in runs:
        run.run(80)
    assert [run.graphed for run in runs] == [True, False]
    assert_same(*runs)


def on_cuda(integrator: Integrator, graph: str) -> Simulation:
    return toy(integrator, 40, device="cuda", graph=graph, chunk=20)


@pytest.mark.parametrize("name", ["cell rescaling", "martyna-tobias-klein"])
def test_resume_continues_with_the_same_bits(name, tmp_path) -> None:
    whole, resumed = (simulation(liquid(), NETWORK[name](), skin=0.5) for _ in range(2))
    whole.run(37)
    save_restart(whole, tmp_path / "restart.safetensors")
    whole.run(60)
    load_restart_(resumed, tmp_path / "restart.safetensors")
    resumed.run(60)
    assert_same(whole, resumed)


def test_minimisation_lowers_the_forces() -> None:
    run = simulation(liquid(), FIRE(0.02))
    before = float(run.state.forces.norm(dim=1).max())
    found = minimize(run, 600)
    assert torch.isfinite(found.energy).all()
    assert float(found.largest_force) < 0.3 * before
