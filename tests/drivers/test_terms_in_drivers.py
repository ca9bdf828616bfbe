"""Every driver runs a potential with terms, and gives the numbers of the engine."""

from pathlib import Path

import numpy as np
import pytest
import torch
from ase import Atoms
from openmm import LangevinMiddleIntegrator, app, unit
from openmmml import MLPotential
from random_networks import TENSORNET, molecule, network

from mdgraph import load
from mdgraph.checkpoints import save
from mdgraph.drivers.ase import MDGraphCalculator
from mdgraph.drivers.openmm import Simulation
from mdgraph.drivers.torchforce import export_torchforce
from mdgraph.engine import Calculation
from mdgraph.errors import InputError
from mdgraph.models import PotentialModule, with_terms
from mdgraph.system import System
from mdgraph.units import KILOJOULE_PER_MOLE, SYMBOLS

TERMS = ["0.5*zbl@2", "bonds:0-1=2/1.1", "walls:xmin=0/1", "field:0/0.01/0", "d3bj:pbe@6"]


@pytest.fixture
def structure() -> System:
    return molecule(12)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "base.safetensors"
    base = network(**TENSORNET)
    base.config = base.config.model_copy(update={"level_of_theory": "PBE"})
    save(base, path)
    return path


@pytest.fixture
def whole(file: Path) -> PotentialModule:
    return with_terms(load(file), TERMS)


@pytest.fixture
def expected(whole: PotentialModule, structure: System) -> tuple[float, np.ndarray]:
    at = Calculation([structure], whole, device="cpu", precision="double")
    at.compute()
    return float(at.state.energy), at.state.forces.numpy()


def topology(structure: System) -> app.Topology:
    result = app.Topology()
    residue = result.addResidue("A", result.addChain())
    for number in structure.numbers:
        element = app.Element.getBySymbol(SYMBOLS[number])
        result.addAtom(SYMBOLS[number], element, residue)
    return result


def test_ase(whole: PotentialModule, structure: System, expected: tuple[float, np.ndarray]) -> None:
    atoms = Atoms(structure.numbers, structure.positions)
    atoms.calc = MDGraphCalculator(whole, device="cpu", precision="double")
    assert atoms.get_potential_energy() == pytest.approx(expected[0], abs=1e-9)
    np.testing.assert_allclose(atoms.get_forces(), expected[1], atol=1e-9)


def test_openmm(
    whole: PotentialModule, structure: System, expected: tuple[float, np.ndarray]
) -> None:
    integrator = LangevinMiddleIntegrator(
        10.0 * unit.kelvin, 1.0 / unit.picosecond, 0.1 * unit.femtoseconds
    )
    run = Simulation(topology(structure), whole, integrator, device="cpu", precision="double")
    run.context.setPositions(0.1 * structure.positions * unit.nanometer)
    energy = run.context.getState(getEnergy=True).getPotentialEnergy()
    assert energy.value_in_unit(unit.kilojoule_per_mole) * KILOJOULE_PER_MOLE == pytest.approx(
        expected[0], abs=1e-8
    )
    run.step(2)


def test_openmm_ml(file: Path, structure: System, expected: tuple[float, np.ndarray]) -> None:
    import openmm

    made = MLPotential("mdgraph", modelPath=str(file)).createSystem(
        topology(structure), device="cpu", precision="double", terms=TERMS
    )
    made = openmm.XmlSerializer.clone(made)
    context = openmm.Context(made, openmm.VerletIntegrator(0.001))
    context.setPositions(0.1 * structure.positions * unit.nanometer)
    energy = context.getState(getEnergy=True).getPotentialEnergy()
    assert energy.value_in_unit(unit.kilojoule_per_mole) * KILOJOULE_PER_MOLE == pytest.approx(
        expected[0], abs=1e-8
    )
    with pytest.raises(InputError, match="There is no term 'zbr'; did you mean zbl"):
        MLPotential("mdgraph", modelPath=str(file)).createSystem(
            topology(structure), device="cpu", terms=["zbr"]
        )


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_torchforce(
    whole: PotentialModule,
    structure: System,
    expected: tuple[float, np.ndarray],
    tmp_path: Path,
) -> None:
    path = tmp_path / "model.pt"
    export_torchforce(whole, structure, path, forces=True, precision="double")
    module = torch.jit.load(path)
    energy, forces = module(torch.tensor(0.1 * structure.positions))
    assert float(energy) * KILOJOULE_PER_MOLE == pytest.approx(expected[0], abs=1e-8)
    np.testing.assert_allclose(forces.numpy() * KILOJOULE_PER_MOLE * 0.1, expected[1], atol=1e-8)
