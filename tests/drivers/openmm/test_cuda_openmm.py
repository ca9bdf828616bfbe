"""OpenMM's drivers on a GPU: captured graphs under a Context on the host."""

import io
import threading
from pathlib import Path
from typing import Any

import numpy as np
import openmm
import openmmml
import pytest
import torch
from openmm import app, unit
from openmm_water import EDGE, EV, langevin, positions, structure, topology, velocities

from mdgraph.drivers.openmm import Simulation
from mdgraph.drivers.openmmml.force import PotentialForce, model_named
from mdgraph.engine import Calculation, LangevinMiddle
from mdgraph.engine import Simulation as Engine

pytestmark = pytest.mark.gpu


def driven(potential: Path, **options: Any) -> Simulation:
    made = Simulation(topology(), potential, langevin(), device="cuda", check=False, **options)
    made.context.setPositions(positions() * unit.angstrom)
    made.context.setVelocities(velocities())
    return made


def test_graphs_and_reports_have_the_bits_of_the_engine(tiny_potential: Path) -> None:
    made = driven(tiny_potential)
    made.reporters.append(app.StateDataReporter(io.StringIO(), 70, potentialEnergy=True))
    made.step(300)
    assert made.engine.graphed
    own = Engine(
        structure(),
        tiny_potential,
        LangevinMiddle(0.5, 300.0, 2.0),
        device="cuda",
        check=False,
        seed=5,
        skin=made.engine.calculation.skin,
    )
    own.run(300)
    for name in ("positions", "velocities", "forces", "energy"):
        assert torch.equal(getattr(made.engine.state, name), getattr(own.state, name))


def test_positions_written_in_between_reach_the_graph(tiny_potential: Path) -> None:
    """Lists grow for atoms that come close, which replaces the buffers of captured steps."""
    made, eager = driven(tiny_potential), driven(tiny_potential, graph="off")
    for one in (made, eager):
        one.step(100)
        one.context.setPositions(positions(seed=3) * 0.5 * unit.angstrom)
        one.context.setVelocities(0.1 * velocities())
        one.step(1)
        one.context.setPositions(positions() * unit.angstrom)
        one.step(100)
    assert torch.equal(made.engine.state.positions, eager.engine.state.positions)


def expected(potential: Path, places: np.ndarray) -> tuple[float, np.ndarray]:
    system = structure().replace(positions=places, velocities=None)
    calculation = Calculation([system], potential, device="cpu")
    calculation.compute()
    return float(calculation.state.energy[0]) * EV, calculation.state.forces.numpy() * EV * 10.0


PLATFORMS = {
    openmm.Platform.getPlatform(index).getName()
    for index in range(openmm.Platform.getNumPlatforms())
}


@pytest.mark.parametrize("name", sorted(PLATFORMS & {"Reference", "CPU", "CUDA"}))
def test_mlpotential_on_every_platform(tiny_potential: Path, name: str) -> None:
    """The CUDA platform calls from a thread of its own."""
    ml = openmmml.MLPotential("mdgraph", modelPath=str(tiny_potential))
    system = ml.createSystem(topology(), check=False, device="cuda")
    integrator = openmm.VerletIntegrator(1e-4 * unit.femtoseconds)
    context = openmm.Context(system, integrator, openmm.Platform.getPlatformByName(name))
    for seed, scale in ((0, 1.0), (1, 1.0), (2, 0.55), (3, 1.0)):
        places = positions(seed=seed) * scale
        context.setPositions(places * unit.angstrom)
        integrator.step(2)
        state = context.getState(energy=True, forces=True)
        right = expected(tiny_potential, places)
        assert state.getPotentialEnergy()._value == pytest.approx(right[0], rel=1e-5)
        forces = state.getForces(asNumpy=True)._value
        np.testing.assert_allclose(forces, right[1], atol=2e-3 * np.abs(right[1]).max())


class Shown:
    """As much of a State as the force asks for."""

    def __init__(self, places: np.ndarray) -> None:
        self._places = places

    def getPositions(self, asNumpy: bool) -> Any:  # noqa: N802
        return 0.1 * self._places * unit.nanometer

    def getPeriodicBoxVectors(self, asNumpy: bool) -> Any:  # noqa: N802
        return 0.1 * EDGE * np.eye(3) * unit.nanometer


def test_threads_replay_and_grow(tiny_potential: Path) -> None:
    """Each with a force of its own, while lists overflow and graphs are captured again."""
    model = model_named(str(tiny_potential), "cuda", "mixed", "auto", "from checkpoint", False)
    wrong: list[float] = []

    def work(seed: int) -> None:
        force = PotentialForce(model, [8, 1, 1] * 4, True, 0.0)
        for scale in (1.0, 1.0, 0.6, 1.0, 0.5, 0.5):
            places = positions(seed=seed) * scale
            energy, _ = force(Shown(places))
            wrong.append(abs(energy - expected(tiny_potential, places)[0]) / abs(energy))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(wrong) == 18
    assert max(wrong) < 1e-5
