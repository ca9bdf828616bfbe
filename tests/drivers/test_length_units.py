"""Lengths in nm, or in fractions of the cell, are refused at every door before lists are made."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
import openmm
import openmmml
import pytest
from ase import Atoms
from ase.build import bulk, fcc111, graphene, molecule
from openmm import unit
from openmm_water import positions, simulation, topology, verlet
from sound_structures import crystal_cases, molecules
from toys import LennardJones

from mdgraph.drivers.ase import MDGraphCalculator, VelocityVerlet
from mdgraph.engine.checks import check_duplicates, check_lengths, seems_in_bohr
from mdgraph.errors import InputError
from mdgraph.io.structures import from_ase

pytestmark = pytest.mark.usefixtures("one_thread")

NANOMETRE = "positions and cells are in A, are these in nm"


def liquid(molecules: int = 27) -> Atoms:
    edge = 3.1 * round(molecules ** (1 / 3))
    grid = np.stack(np.meshgrid(*[np.arange(0.0, edge - 1.0, 3.1)] * 3), -1).reshape(-1, 3)
    atoms = Atoms(cell=np.eye(3) * edge, pbc=True)
    for place in grid:
        one = molecule("H2O")
        one.translate(place)
        atoms += one
    return atoms


def scaled(atoms: Atoms, factor: float, cell: bool = True) -> Atoms:
    found = atoms.copy()
    found.positions *= factor
    if cell:
        found.cell *= factor
    return found


def near_pair(count: int) -> Atoms:
    """Two atoms at 0.3 A among others."""
    line = np.arange(count) * 2.0
    line[1] = 0.3
    return Atoms(["H"] * count, np.stack([line, 0 * line, 0 * line], axis=1))


REAL = {
    "water": liquid(),
    "hydrogen at 500 GPa": bulk("H", "bcc", a=2.0 ** (1 / 3) * 1.06),
    "silicon": bulk("Si"),
    "copper": bulk("Cu", cubic=True),
    "slab": fcc111("Cu", (2, 2, 3), vacuum=5.0),
    "graphene": graphene(vacuum=0.0),
    "wire": Atoms("C", cell=[0, 0, 1.28], pbc=[False, False, True]),
    "molecule": molecule("C6H6"),
    "lone atom": Atoms("H"),
    **{f"a close pair of {count}": near_pair(count) for count in range(2, 7)},
}


@pytest.mark.parametrize("name", REAL)
def test_real_structures_pass(name: str) -> None:
    check_lengths([from_ase(REAL[name])])


@pytest.mark.parametrize("name", [name for name in REAL if name != "lone atom"])
def test_real_structures_in_nm_are_refused(name: str) -> None:
    with pytest.raises(InputError, match=NANOMETRE):
        check_lengths([from_ase(scaled(REAL[name], 0.1))])


@pytest.mark.parametrize("place", range(0, len(REAL) - 1, 3))
def test_one_in_nm_among_many_is_refused(place: int) -> None:
    """Systems of a kind are checked together, and two of each kind stand here."""
    names = [name for name in REAL if name != "lone atom"]
    systems = [from_ase(REAL[name]) for name in [*names, *names]]
    check_lengths(systems)
    systems[place] = from_ase(scaled(REAL[names[place]], 0.1))
    with pytest.raises(InputError, match=NANOMETRE):
        check_lengths(systems)


def test_atoms_at_one_place_are_those_of_their_own_system() -> None:
    """An atom lies where one of another system lies, and two of the third one coincide."""
    water = liquid(3)
    double = water.copy()
    double.positions[2] = double.positions[0]
    check_duplicates([from_ase(water), from_ase(water)])
    with pytest.raises(InputError, match="Atoms 0 and 2 are at the same place"):
        check_duplicates([from_ase(water), from_ase(water), from_ase(double)])


def test_fractions_of_the_cell_are_refused() -> None:
    atoms = liquid()
    atoms.positions = atoms.get_scaled_positions()
    with pytest.raises(InputError, match="fractions of the cell"):
        check_lengths([from_ase(atoms)])


@pytest.mark.parametrize(
    ("name", "structure", "a"),
    [("Cu", "fcc", 3.6), ("Si", "diamond", 5.43), ("NaCl", "rocksalt", 5.64), ("W", "bcc", 3.16)],
)
@pytest.mark.parametrize("distances", [True, False])
def test_fractions_of_the_cell_of_a_crystal_are_refused(
    name: str, structure: str, a: float, distances: bool
) -> None:
    crystal = bulk(name, structure, a=a, cubic=True)
    if len(crystal) < 4:
        crystal = crystal.repeat((2, 1, 1))
    sound = from_ase(crystal)
    check_lengths([sound], distances=distances)
    crystal.positions = crystal.get_scaled_positions() - 0.5
    with pytest.raises(InputError, match="fractions of the cell"):
        check_lengths([sound, from_ase(crystal)], distances=distances)


def test_small_molecules_in_a_cell_are_no_fractions() -> None:
    for name in ("H2", "HF", "H2O", "CH4", "NH3", "H2CO"):
        atoms = molecule(name, vacuum=6.0)
        atoms.pbc = True
        check_lengths([from_ase(atoms)])


def test_molecules_in_nm_far_from_each_other_are_refused() -> None:
    """Their box is not dense; their atoms are."""
    apart = liquid(64)
    apart.set_cell(apart.cell * 30.0, scale_atoms=True)
    for start in range(0, len(apart), 3):
        apart.positions[start : start + 3] = apart.positions[start] + (
            0.1 * molecule("H2O").positions
        )
    with pytest.raises(InputError, match=r"within 0\.09\d A"):
        check_lengths([from_ase(apart)])


@pytest.mark.parametrize("command", ["eval", "relax", "md", "minimise"])
@pytest.mark.parametrize("cell", [True, False], ids=["all in nm", "positions in nm"])
def test_commands_refuse_a_file_in_nm(
    mdgraph_command: Callable[..., Any],
    tiny_potential: Path,
    tmp_path: Path,
    command: str,
    cell: bool,
) -> None:
    path, out = tmp_path / "nm.extxyz", tmp_path / "out"
    ase.io.write(path, scaled(liquid(), 0.1, cell))
    chosen = ["--potential", tiny_potential, "--device", "cpu", "--out"]
    done = mdgraph_command(command, path, *chosen, out.with_suffix(".extxyz" * (command == "eval")))
    assert done.status == 1
    assert NANOMETRE in done.err.splitlines()[-1]


def calculator(atoms: Atoms) -> MDGraphCalculator:
    found = MDGraphCalculator(LennardJones(0.01, 2.0, 5.0), device="cpu")
    atoms.calc = found
    return found


def test_the_calculator_refuses_nm_at_the_first_and_later_calls() -> None:
    atoms = bulk("Ar", "fcc", 5.3, cubic=True) * (2, 2, 2)
    for bad in (scaled(atoms, 0.1, cell=False), scaled(atoms, 0.1)):
        with pytest.raises(InputError, match=NANOMETRE):
            calculator(bad).calculate(bad)
    calculator(atoms)
    energy = atoms.get_potential_energy()
    kept = atoms.positions.copy(), atoms.cell.copy()
    atoms.positions, atoms.cell = bad.positions, bad.cell
    with pytest.raises(InputError, match=NANOMETRE):
        atoms.get_potential_energy()
    atoms.positions, atoms.cell = kept
    assert atoms.get_potential_energy() == energy


def test_dynamics_of_ase_refuse_a_cell_that_an_observer_makes_small() -> None:
    atoms = bulk("Ar", "fcc", 5.3, cubic=True) * (2, 2, 2)
    calculator(atoms)
    dynamics = VelocityVerlet(atoms, timestep=0.1)
    dynamics.run(1)
    atoms.set_cell(atoms.cell * 0.1, scale_atoms=True)
    with pytest.raises(InputError, match=NANOMETRE):
        dynamics.run(1)


def test_openmm_refuses_positions_and_boxes(tiny_potential: Path) -> None:
    made = simulation(tiny_potential, verlet(), start=False)
    made.context.setPositions(0.1 * positions() * unit.angstrom)
    with pytest.raises(InputError, match="nm, closer to each other than in any matter"):
        made.step(1)
    made.context.setPositions(positions() * unit.angstrom)
    made.step(1)
    made.context.setPositions(0.1 * positions() * unit.angstrom)
    with pytest.raises(InputError, match="nm, closer to each other than in any matter"):
        made.step(1)
    small = simulation(tiny_potential, verlet(), topology=topology(box=0.75), start=False)
    small.context.setPositions(positions() * unit.angstrom)
    with pytest.raises(InputError, match="nm, closer to each other than in any matter"):
        small.step(1)


def test_openmmml_refuses_positions(tiny_potential: Path) -> None:
    potential = openmmml.MLPotential("mdgraph", modelPath=str(tiny_potential))
    system = potential.createSystem(topology(), check=False, device="cpu")
    integrator = openmm.VerletIntegrator(0.5 * unit.femtoseconds)
    platform = openmm.Platform.getPlatformByName("Reference")
    context = openmm.Context(system, integrator, platform)
    context.setPositions(0.1 * positions() * unit.angstrom)
    with pytest.raises(openmm.OpenMMException, match="nm, closer to each other than in any matter"):
        context.getState(energy=True)
    context.setPositions(positions() * unit.angstrom)
    context.getState(energy=True)


BOHR = 1.8897261246


def sound_and_bonded() -> dict[str, Atoms]:
    sound = {name: atoms for name, atoms in molecules() if len(atoms) > 2}
    return sound | {name: atoms for name, atoms in crystal_cases() if len(atoms) > 2}


def test_structures_in_bohr_are_suspected_and_sound_ones_are_not() -> None:
    """An energy of 9 atoms without a bond was computed without a word."""
    sound = sound_and_bonded()
    assert len(sound) > 50
    assert [name for name, atoms in sound.items() if seems_in_bohr(from_ase(atoms))] == []
    skewed = bulk("Cu", cubic=True) * (2, 1, 1)
    skewed.set_cell(np.array([[1, 0, 0], [7, 1, 0], [-3, 5, 1]]) @ skewed.cell.array)
    assert not seems_in_bohr(from_ase(skewed))
    for atoms in (molecule("C6H6"), molecule("CH3CH2OH"), liquid(), bulk("Si") * (2, 2, 2)):
        assert seems_in_bohr(from_ase(scaled(atoms, BOHR)))


def test_a_run_warns_of_positions_in_bohr(
    mdgraph_command: Callable[..., Any], tmp_path: Path
) -> None:
    ase.io.write(tmp_path / "bohr.xyz", scaled(molecule("CH3CH2OH"), BOHR))
    words = "--potential", "ethanol-pbe", "--steps", 1, "--evaluator", "reference"
    done = mdgraph_command("md", tmp_path / "bohr.xyz", *words, "--out", tmp_path / "run")
    assert done.status == 0
    assert "convert the positions if they are in bohr" in done.err
