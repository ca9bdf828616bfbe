"""What only a GPU can show of records: captured and eager steps count the same bits."""

import pytest
import torch
from cuda_water import liquid, simulation
from ensembles import assert_same

from mdgraph.engine import (
    Averages,
    LangevinMiddle,
    MeanSquaredDisplacement,
    RadialDistributions,
    VelocityAutocorrelation,
)
from mdgraph.engine.observables import OnlineObservable
from mdgraph.engine.restart import load_restart_, save_restart

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
