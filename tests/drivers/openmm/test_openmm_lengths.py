"""Lengths that came to the OpenMM driver in another unit, and those that only look like it."""

from pathlib import Path
from typing import Any

import ase
import numpy as np
import openmm
import pytest
import torch
from ase.build import bulk
from openmm import app, unit
from openmm_water import positions, simulation, topology, verlet

from mdgraph.errors import InputError
from mdgraph.models import RadialBasisConfig, ReadoutConfig, TensorNetConfig, TensorNetPotential


@pytest.fixture(scope="module")
def metal() -> TensorNetPotential:
    """Of argon and copper, with random weights."""
    torch.manual_seed(3)
    config = TensorNetConfig(
        species=(18, 29),
        channels=4,
        layers=1,
        cutoff=3.0,
        radial_basis=RadialBasisConfig(number=4),
        readout=ReadoutConfig(hidden=(4,)),
    )
    return TensorNetPotential(config)


def step(potential: Any, atoms: ase.Atoms, given: Any, box: Any = None) -> None:
    """One of a topology without bonds; lengths are in nm, or have a unit."""
    found = app.Topology()
    chain = found.addChain()
    for symbol in atoms.get_chemical_symbols():
        residue = found.addResidue(symbol, chain)
        found.addAtom(symbol, app.element.get_by_symbol(symbol), residue)
    if box is not None:
        found.setPeriodicBoxVectors([openmm.Vec3(*row) for row in box] * unit.nanometer)
    made = simulation(potential, verlet(), topology=found, start=False)
    made.context.setPositions(given)
    made.step(1)


def copper() -> ase.Atoms:
    crystal = bulk("Cu", cubic=True) * (3, 3, 3)
    crystal.rattle(0.05, seed=1)
    return crystal


@pytest.mark.parametrize("box", [0.1, 1.0, None])
def test_a_metal_without_its_unit_is_refused(metal: TensorNetPotential, box: float | None) -> None:
    """In a box that is right, in one that lacks its unit as well, in none."""
    crystal = copper()
    cell = None if box is None else box * np.array(crystal.cell)
    with pytest.raises(InputError, match="at a tenth of the positions only; OpenMM reads plain"):
        step(metal, crystal, crystal.positions, cell)
    if box != 1.0:
        step(metal, crystal, crystal.positions * unit.angstrom, cell)


@pytest.mark.parametrize("box", [7.5, None])
def test_water_without_bonds_and_unit_is_refused(tiny_potential: Path, box: float | None) -> None:
    made = simulation(tiny_potential, verlet(), topology=topology(box=box, bonds=False))
    made.step(1)
    made.context.setPositions(positions())
    with pytest.raises(InputError, match="at a tenth of the positions only; OpenMM reads plain"):
        made.step(1)


def test_atoms_that_left_the_box_are_accepted(metal: TensorNetPotential) -> None:
    crystal = copper()
    cell = np.array(crystal.cell)
    far = np.random.default_rng(2).integers(-6, 7, size=(len(crystal), 3)) @ cell
    step(metal, crystal, (crystal.positions + far) * unit.angstrom, 0.1 * cell)


@pytest.mark.parametrize("box", [9.0, None])
@pytest.mark.parametrize(("symbol", "kind"), [("Cu", "grid"), ("Cu", "random"), ("Ar", "grid")])
def test_a_gas_is_accepted(
    metal: TensorNetPotential, symbol: str, kind: str, box: float | None
) -> None:
    """Also where copper is as far apart as ten times the distance in its crystal."""
    generator = np.random.default_rng(5)
    grid = 2.6 * np.stack(np.meshgrid(*[np.arange(3)] * 3), -1).reshape(-1, 3)
    grid += generator.normal(scale=0.02, size=grid.shape)
    places = grid if kind == "grid" else generator.uniform(0.0, 9.0, size=grid.shape)
    gas = ase.Atoms(f"{symbol}27", positions=places)
    step(metal, gas, places, None if box is None else box * np.eye(3))


def test_an_overlap_is_reported_in_nanometres(tiny_potential: Path) -> None:
    small = simulation(tiny_potential, verlet(), topology=topology(box=0.75), start=False)
    small.context.setPositions(positions() * unit.angstrom)
    with pytest.raises(InputError, match=r"in a box of 0\.075 x 0\.075 x 0\.075 nm, closer"):
        small.step(1)
    made = simulation(tiny_potential, verlet())
    made.step(1)
    made.context.setPeriodicBoxVectors([0.075, 0, 0], [0, 0.075, 0], [0, 0, 0.075])
    with pytest.raises(InputError, match=r"12 atoms span .* nm in a box of 0\.075 x"):
        made.step(1)
    alone = simulation(tiny_potential, verlet(), topology=topology(box=None), start=False)
    alone.context.setPositions(0.1 * positions() * unit.angstrom)
    with pytest.raises(InputError, match="nm, closer to each other than in any matter"):
        alone.step(1)
