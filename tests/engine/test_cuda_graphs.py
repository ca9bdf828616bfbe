"""What only a GPU can show of graphs of several steps, of chunks that overlap, and of choices."""

import logging
import re
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from cuda_water import liquid, potential, simulation
from ensembles import assert_same
from toys import HarmonicWells, argon

from mdgraph.engine import (
    Averages,
    LangevinMiddle,
    MeanSquaredDisplacement,
    NoseHooverChains,
    Simulation,
    StochasticCellRescaling,
    VelocityVerlet,
)
from mdgraph.engine.autotune import EAGER, LENGTHS, SKINS
from mdgraph.engine.restart import load_restart_, save_restart
from mdgraph.engine.step_graphs import POWERS
from mdgraph.errors import SimulationError
from mdgraph.neighbors import NeighborList
from mdgraph.state import State

pytestmark = pytest.mark.gpu

INTEGRATORS = {
    "verlet": lambda: VelocityVerlet(0.5),
    "langevin": lambda: LangevinMiddle(0.5, 300.0, 5.0),
    "nose-hoover": lambda: NoseHooverChains(0.5, 300.0),
    "cell rescaling": lambda: StochasticCellRescaling(0.5, 300.0, 0.0),
}


@pytest.mark.parametrize("name", INTEGRATORS)
@pytest.mark.parametrize("skin", [0.0, 0.5])
def test_graphs_of_several_steps_have_the_bits_of_single_and_eager_ones(name, skin) -> None:
    ways = [("off", None), *[("on", length) for length in (1, 8, 32)]]
    runs = [
        simulation(
            liquid(),
            INTEGRATORS[name](),
            skin=skin,
            graph=graph,
            steps_per_replay=length,
            observe=[Averages(every=3)],
            chunk=64,
        )
        for graph, length in ways
    ]
    for run in runs:
        for steps in (21, 64, 90):
            run.run(steps)
    assert [run.graphed for run in runs] == [graph == "on" for graph, _ in ways]
    for run in runs[1:]:
        assert_same(runs[0], run)
    # Graphs are as long as they may be, and each is captured once.
    assert set(runs[1].step_graphs._graphs) == {1}
    assert set(runs[3].step_graphs._graphs) <= set(POWERS)
    assert max(runs[3].step_graphs._graphs) == 32


def test_momentum_is_removed_within_a_graph() -> None:
    runs = [
        simulation(liquid(), INTEGRATORS["langevin"](), graph=graph, remove_momentum=5)
        for graph in ("off", "on")
    ]
    for run in runs:
        run.run(100)
    assert_same(*runs)
    momentum = (runs[1].state.masses[:, None] * runs[1].state.velocities).sum(0)
    assert float(momentum.abs().max()) < 1e-10


def test_many_overflows_leave_the_same_bits() -> None:
    ample, tight = (
        simulation(
            liquid(8),
            LangevinMiddle(0.25, 300.0, 5.0),
            skin=0.0,
            graph="on",
            steps_per_replay=2,
            chunk=2,
            observe=[MeanSquaredDisplacement(4)],
        )
        for _ in range(2)
    )
    generator = np.random.default_rng(5)
    (rows,) = tight.calculation.lists
    for _ in range(100):
        rows._allocate(1, *rows.reference())
        rows.sticky()[0].zero_()
        tight.step_graphs.forget()
        small = rows.capacity
        # Up to three chunks, two of which run at a time.
        tight.run(int(generator.integers(1, 6)))
        assert rows.capacity > small
    ample.run(tight.step)
    assert_same(ample, tight)


class Broken(HarmonicWells):
    """Forces are no numbers at one step."""

    def __init__(self, centres: torch.Tensor, at: int) -> None:
        super().__init__(centres, 1.0)
        self.at = torch.tensor(at - 1, device=centres.device)

    def evaluate_(self, state: State, lists: Sequence[NeighborList]) -> None:
        super().evaluate_(state, lists)
        state.forces[2] = torch.where(state.step == self.at, torch.nan, state.forces[2])


@pytest.mark.parametrize("at", [2, 16, 17, 40, 64, 100])
def test_a_failure_within_a_graph_names_its_step(at: int) -> None:
    system = argon(1)
    centres = torch.tensor(system.positions, device="cuda")
    broken, whole = (
        Simulation(
            system,
            Broken(centres, when),
            VelocityVerlet(1.0),
            temperature=300.0,
            device="cuda",
            chunk=16,
            graph="on",
        )
        for when in (at, 10**6)
    )
    with pytest.raises(SimulationError, match=rf"atoms 2 are not finite at step {at};"):
        broken.run(150)
    whole.run(at - 1)
    assert broken.step == at - 1
    assert_same(broken, whole)


def test_tuning_is_logged_and_changes_no_bit(caplog, tmp_path) -> None:
    # Random weights hold no liquid together for long.
    gentle = LangevinMiddle(0.1, 300.0, 5.0)
    with caplog.at_level(logging.INFO, logger="mdgraph"):
        measured = simulation(liquid(), gentle)
        given = simulation(liquid(), gentle, skin=0.0, graph="off")
        measured.run(600)
    (skins,) = (one for one in caplog.messages if "with a skin of" in one)
    (ways,) = (one for one in caplog.messages if "steps run" in one)
    assert "kernels that read a flag on the device" in skins
    assert len(re.findall(r"[\d.]+ ms with a skin of [\d.]+ A \(list built every", skins)) == 4
    assert len(re.findall(r"[\d.]+ ms (?:eagerly|as a CUDA|in a CUDA)", ways)) == 4
    assert measured.calculation.skin in SKINS
    length = measured.step_graphs.longest if measured.graphed else EAGER
    assert length in (*LENGTHS, EAGER)
    given.run(600)
    assert_same(measured, given)
    save_restart(measured, tmp_path / "restart")
    resumed = simulation(liquid(), gentle)
    load_restart_(resumed, tmp_path / "restart")
    assert resumed.calculation.skin == measured.calculation.skin
    for run in (measured, resumed):
        run.run(50)
    assert_same(measured, resumed)


def test_an_exception_leaves_the_end_of_a_chunk() -> None:
    class Interrupting(HarmonicWells):
        armed = False

        def evaluate_(self, state: State, lists: Sequence[NeighborList]) -> None:
            super().evaluate_(state, lists)
            if Interrupting.armed and (count := next(calls)) == 37:
                raise KeyboardInterrupt(count)

    calls = iter(range(1, 1000))
    system = argon(1)
    centres = torch.tensor(system.positions, device="cuda")
    options = {"device": "cuda", "chunk": 10, "graph": "off"}
    integrator = LangevinMiddle(1.0, 300.0)
    interrupted = Simulation(system, Interrupting(centres, 1.0), integrator, **options)  # type: ignore[arg-type]
    Interrupting.armed = True
    with pytest.raises(KeyboardInterrupt):
        interrupted.run(100)
    Interrupting.armed = False
    assert interrupted.step == 30
    whole = Simulation(system, HarmonicWells(centres, 1.0), integrator, **options)  # type: ignore[arg-type]
    whole.run(30)
    assert_same(interrupted, whole)


def test_the_reference_evaluator_is_captured_for_several_steps() -> None:
    """Its temporaries lie in memory that graphs of all lengths share."""
    runs = [
        Simulation(
            liquid(16),
            potential(),
            LangevinMiddle(0.5, 300.0, 5.0),
            device="cuda",
            seed=2,
            evaluator="reference",
            skin=0.3,
            graph=graph,
            steps_per_replay=length,
            chunk=20,
        )
        for graph, length in (("off", None), ("on", 8))
    ]
    for run in runs:
        run.run(45)
    assert set(runs[1].step_graphs._graphs) == {1, 4, 8}
    assert_same(*runs)
