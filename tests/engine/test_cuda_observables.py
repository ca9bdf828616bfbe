"""What only a GPU can show of records: captured and eager steps count the same bits."""

import pytest
import torch
from cuda_water import liquid, simulation
from ensembles import assert_same

from mdgraph.checkpoints import shipped_potentials
from mdgraph.engine import (
    Averages,
    ElementTemperatures,
    LangevinMiddle,
    MeanSquaredDisplacement,
    RadialDistributions,
    Simulation,
    VelocityAutocorrelation,
)
from mdgraph.engine.observables import OnlineObservable
from mdgraph.engine.restart import load_restart_, save_restart
from mdgraph.io.structures import read_system

pytestmark = pytest.mark.gpu


def everything() -> list[OnlineObservable]:
    return [
        Averages(every=3),
        RadialDistributions(every=5, start=10),
        MeanSquaredDisplacement(12, spacing=3, every=2),
        VelocityAutocorrelation(12),
    ]


def test_graph_and_eager_record_the_same_bits(tmp_path) -> None:
    runs = [
        simulation(liquid(), LangevinMiddle(0.5, 300.0), graph=graph, observe=everything())
        for graph in ("on", "off", "on")
    ]
    for run in runs[:2]:
        run.run(40)
    save_restart(runs[0], tmp_path / "restart.safetensors")
    load_restart_(runs[2], tmp_path / "restart.safetensors")
    for run in runs:
        run.run(40)
        assert run.graphed == (run is not runs[1])
    assert_same(*runs[:2])
    assert_same(*runs[::2])
    assert runs[0].online[1].result().counts.sum() > 0
    assert all(torch.isfinite(value).all() for value in runs[0].online.tensors().values())


def test_temperatures_of_elements_are_the_same_in_a_graph_and_on_the_cpu() -> None:
    """One step apart from the same start, so that rounding has no time to grow.

    Random weights have no minimum, so the Laplacian of their energy nearly cancels, and its
    rounding was a hundredth of it; that of water does not.
    """
    water = read_system(shipped_potentials()["water-pbe0"] / "start.extxyz")
    runs = [
        Simulation(
            water.replace(velocities=None),
            "water-pbe0",
            LangevinMiddle(0.5, 300.0),
            check=None,
            seed=5,
            temperature=300.0,
            observe=[ElementTemperatures(every=1)],
            **({"device": "cuda"} | at),
        )
        for at in ({"graph": "on"}, {"graph": "off"}, {"device": "cpu"})
    ]
    for run in runs:
        run.run(1)
    graphed, eager, host = (run.online[0].result() for run in runs)
    assert torch.equal(torch.tensor(graphed.kinetic.mean), torch.tensor(eager.kinetic.mean))
    for name in ("kinetic", "configurational"):
        found, expected = (getattr(result, name).mean for result in (graphed, host))
        torch.testing.assert_close(torch.tensor(found), torch.tensor(expected), rtol=1e-3, atol=0.0)
