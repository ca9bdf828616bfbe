"""Hills of mdgraph against those of OpenMM's own metadynamics, at the same configurations."""

import math

import numpy as np
import openmm
import pytest
import torch
from openmm import app, unit
from toys import HarmonicWells

from mdgraph.biases import Dihedral, Distance, Metadynamics
from mdgraph.engine import LangevinMiddle, Simulation
from mdgraph.system import System
from mdgraph.units import KILOJOULE_PER_MOLE

KELVIN, FACTOR, HEIGHT, EVERY, HILLS = 300.0, 6.0, 0.03, 10, 50
PLACES = np.array([[1.2, 0.1, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 1.5], [0.9, 0.8, 1.6]])


class Visits:
    """A reporter that keeps the positions where hills are added."""

    interval = EVERY

    def __init__(self) -> None:
        self.positions: list[np.ndarray] = []

    def report(self, simulation: Simulation) -> None:
        self.positions.append(simulation.state.places().numpy().copy())


def sampler_of(name: str, points: int) -> tuple[app.Metadynamics, app.Simulation]:
    """OpenMM's metadynamics of four atoms that stay where they are put."""
    system = openmm.System()
    topology = app.Topology()
    residue = topology.addResidue("X", topology.addChain())
    for number in range(4):
        system.addParticle(1.0)
        topology.addAtom(str(number), None, residue)
    if name == "phi":
        force = openmm.CustomTorsionForce("theta")
        force.addTorsion(0, 1, 2, 3)
        variable = app.BiasVariable(force, -math.pi, math.pi, 0.25, True, points + 1)
    else:
        force = openmm.CustomBondForce("r")
        force.addBond(0, 3)
        variable = app.BiasVariable(force, 0.02, 0.42, 0.025, False, points)
    height = HEIGHT / KILOJOULE_PER_MOLE * unit.kilojoules_per_mole
    sampler = app.Metadynamics(system, [variable], KELVIN * unit.kelvin, FACTOR, height, 1)
    simulation = app.Simulation(
        topology,
        system,
        openmm.CustomIntegrator(0.001),
        openmm.Platform.getPlatformByName("Reference"),
    )
    return sampler, simulation


@pytest.mark.parametrize(("name", "points"), [("phi", 180), ("d", 201)])
def test_hills_and_free_energy_are_those_of_openmm(name: str, points: int) -> None:
    own = {"sigma": 0.25} if name == "phi" else {"sigma": 0.25, "minimum": 0.2, "maximum": 4.2}
    run = Simulation(
        System(numbers=[18] * 4, positions=PLACES, masses=[1.0] * 4),
        HarmonicWells(torch.tensor(PLACES), 1.5),
        LangevinMiddle(2.0, KELVIN, 20.0),
        device="cpu",
        check=False,
        seed=3,
        variables={"phi": Dihedral([0, 1, 2, 3]), "d": Distance([0, 3])},
        biases=[
            Metadynamics(name, height=HEIGHT, every=EVERY, bias_factor=FACTOR, points=points, **own)
        ],
    )
    visits = Visits()
    run.reporters.append(visits)
    run.run(EVERY * HILLS)
    biases = run.calculation.biases
    hills = biases.metadynamics()["metadynamics"]
    records = hills.records[1 : HILLS + 1, 0].numpy()
    assert np.ptp(records[:, 0]) > 0.5  # it went about
    assert records[:, 1].min() < 0.8 * HEIGHT  # and hills shrank

    sampler, theirs = sampler_of(name, points)
    scale = 1.0 if name == "phi" else 0.1
    for positions, (centre, height) in zip(visits.positions, records, strict=True):
        theirs.context.setPositions(0.1 * positions)
        before = theirs.context.getState(energy=True).getPotentialEnergy()
        energy = before.value_in_unit(unit.kilojoules_per_mole) * KILOJOULE_PER_MOLE
        assert sampler.getCollectiveVariables(theirs)[0] == pytest.approx(scale * centre, abs=1e-6)
        kt = unit.MOLAR_GAS_CONSTANT_R.value_in_unit(unit.kilojoules_per_mole / unit.kelvin)
        kt *= KELVIN * KILOJOULE_PER_MOLE
        assert height == pytest.approx(HEIGHT * math.exp(-energy / (kt * (FACTOR - 1))), rel=2e-3)
        sampler.step(theirs, 1)
    profile = sampler.getFreeEnergy().value_in_unit(unit.kilojoules_per_mole) * KILOJOULE_PER_MOLE
    expected = -hills.factor * hills.potential()[0]
    assert expected.min() < -5.0 * HEIGHT
    np.testing.assert_allclose(profile[:points], expected, atol=2e-3 * abs(expected).max())
