"""openmm-ml's MLPotential with potentials of mdgraph."""

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import openmm
import openmmml
import pytest
import torch
from openmm import app, unit
from openmm_contexts import context_of, force_field, looked
from openmm_water import EDGE, EV, charged, positions, topology

from mdgraph.checkpoints import save
from mdgraph.drivers.openmmml.force import PotentialForce, evaluator_of, model_named
from mdgraph.engine import Calculation
from mdgraph.errors import FileError, MDGraphError
from mdgraph.system import System


def expected(potential: Any, places: np.ndarray, **options: Any) -> tuple[float, np.ndarray]:
    """Energy in kJ/mol and forces in kJ/mol/nm by the engine alone."""
    system = System(
        numbers=[8, 1, 1] * (len(places) // 3),
        positions=places,
        cell=options.get("cell", np.eye(3) * EDGE),
        pbc=[options.get("periodic", True)] * 3,
        charge=options.get("charge"),
    )
    calculation = Calculation([system], potential, device="cpu")
    calculation.compute()
    state = calculation.state
    return float(state.energy[0]) * EV, state.forces.numpy() * EV * 10.0


def made(potential: Path, top: app.Topology | None = None, **options: Any) -> openmm.System:
    ml = openmmml.MLPotential("mdgraph", modelPath=str(potential))
    return ml.createSystem(top or topology(), check=False, device="cpu", **options)


def test_the_entry_point_is_light() -> None:
    """Importing openmm-ml loads what it finds; torch is no part of it."""
    code = (
        "import sys, openmmml; assert 'torch' not in sys.modules; "
        "print(type(openmmml.MLPotential._implFactories['mdgraph']).__module__)"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "mdgraph.drivers.openmmml.plugin"


@pytest.mark.parametrize("box", [EDGE, None])
def test_energies_and_forces_are_those_of_the_engine(tiny_potential: Path, box: Any) -> None:
    """As atoms move, and in a box that shrinks until the list must grow."""
    context = context_of(made(tiny_potential, topology(box=box)))
    for seed in range(3):
        places = positions(seed=seed)
        context.setPositions(places * unit.angstrom)
        energy, forces = looked(context)
        right = expected(tiny_potential, places, periodic=box is not None)
        assert energy == pytest.approx(right[0], rel=1e-9)
        np.testing.assert_allclose(forces, right[1], atol=1e-2)
    if box is None:
        return
    cell = np.array([[4.0, 0, 0], [0.5, 4.2, 0], [-1.0, 1.5, 4.1]])
    context.setPeriodicBoxVectors(*(cell * 0.1))
    context.setPositions(positions(seed=5) * 0.6 * unit.angstrom)
    energy, forces = looked(context)
    right = expected(tiny_potential, positions(seed=5) * 0.6, cell=cell)
    assert energy == pytest.approx(right[0], rel=1e-9)
    np.testing.assert_allclose(forces, right[1], rtol=1e-5, atol=1e-2)


def test_charge_and_coulomb_cutoff_change_the_energy(tmp_path: Path) -> None:
    path = tmp_path / "charged.safetensors"
    save(charged(None), path)
    with pytest.raises(MDGraphError, match=r"coulombCutoff=1\.2\*unit\.nanometers"):
        made(path)
    found = {}
    for charge in (0.0, 1.0 * unit.elementary_charge):
        for reach in (0.5, 6.0 * unit.angstrom):
            system = made(path, charge=charge, coulombCutoff=reach)
            found[str(charge), str(reach)] = looked(context_of(system))[0]
    assert len(set(np.round(list(found.values()), 3))) == 4
    right = expected(charged(5.0), positions(), charge=1.0)[0]
    assert found["1.0 e", "0.5"] == pytest.approx(right, rel=1e-9)


def test_energy_is_conserved(tiny_potential: Path) -> None:
    context = context_of(made(tiny_potential, removeCMMotion=False))
    context.setVelocitiesToTemperature(100.0, 2)
    context.getIntegrator().setStepSize(0.1 * unit.femtoseconds)
    totals = []
    for _ in range(10):
        context.getIntegrator().step(5)
        state = context.getState(energy=True)
        totals.append((state.getKineticEnergy() + state.getPotentialEnergy())._value)
    exchanged = abs(context.getState(energy=True).getKineticEnergy()._value)
    assert np.ptp(totals) < 2e-3 * exchanged


def test_openmm_knows_the_molecules(tiny_potential: Path) -> None:
    context = context_of(made(tiny_potential))
    assert [tuple(one) for one in context.getMolecules()] == [
        (n, n + 1, n + 2) for n in range(0, 12, 3)
    ]


def test_openmms_barostat_moves_the_box(tiny_potential: Path) -> None:
    """Trial boxes that are taken back among them, what is seen belongs to the box at hand."""
    system = made(tiny_potential)
    barostat = openmm.MonteCarloBarostat(5000.0, 300.0, 2)
    barostat.setRandomNumberSeed(1)
    system.addForce(barostat)
    context = context_of(system)
    context.getIntegrator().step(20)
    state = context.getState(energy=True, positions=True)
    cell = state.getPeriodicBoxVectors(asNumpy=True)._value * 10.0
    assert abs(cell[0, 0] - EDGE) > 1e-3
    places = state.getPositions(asNumpy=True)._value * 10.0
    right = expected(tiny_potential, places, cell=cell)
    assert state.getPotentialEnergy()._value == pytest.approx(right[0], rel=1e-9)


# Mixed systems


def test_mixed_systems_obey_the_sum_rule(tiny_potential: Path) -> None:
    """At 0 the force field, at 1 the mixture, halfway the mean; forces too."""
    top, subset = topology(), [0, 1, 2]
    plain = force_field(top)
    ml = openmmml.MLPotential("mdgraph", modelPath=str(tiny_potential))
    options = {"check": False, "device": "cpu"}
    fixed = looked(context_of(ml.createMixedSystem(top, plain, subset, **options)))
    mixed = ml.createMixedSystem(top, plain, subset, interpolate=True, **options)
    context = context_of(mixed)
    found = {}
    for scale in (0.0, 0.5, 1.0):
        context.setParameter("lambda_interpolate", scale)
        found[scale] = looked(context)
    pure = looked(context_of(plain))
    alone = expected(tiny_potential, positions()[:3])
    assert abs(pure[0] - fixed[0]) > 10.0
    assert abs(alone[0]) > 10.0
    # The potential's own share is its energy of the molecule alone.
    rest = ml.createMixedSystem(top, plain, subset, **options)
    (number,) = [n for n, one in enumerate(rest.getForces()) if isinstance(one, openmm.PythonForce)]
    rest.removeForce(number)
    share = fixed[0] - looked(context_of(rest))[0]
    assert share == pytest.approx(alone[0], abs=1e-5)
    for scale, right in ((0.0, pure), (1.0, fixed)):
        assert found[scale][0] == pytest.approx(right[0], abs=1e-4)
        np.testing.assert_allclose(found[scale][1], right[1], atol=0.05)
    halfway = 0.5 * (found[0.0][0] + found[1.0][0])
    assert found[0.5][0] == pytest.approx(halfway, abs=1e-4)
    np.testing.assert_allclose(found[0.5][1], 0.5 * (found[0.0][1] + found[1.0][1]), atol=0.05)


def test_a_periodic_force_field_has_a_periodic_potential(tiny_potential: Path) -> None:
    """OpenMM moves atoms by vectors of the box, also where the topology has none."""
    ml = openmmml.MLPotential("mdgraph", modelPath=str(tiny_potential))
    mixed = ml.createMixedSystem(
        topology(box=None), force_field(topology()), [0, 1, 2], check=False, device="cpu"
    )
    (force,) = [one for one in mixed.getForces() if isinstance(one, openmm.PythonForce)]
    assert force.usesPeriodicBoundaryConditions()
    context = context_of(mixed)
    whole = looked(context)[0]
    torn = positions()
    torn[1, 0] -= EDGE
    context.setPositions(torn * unit.angstrom)
    assert looked(context)[0] == pytest.approx(whole, rel=1e-5)


def test_bonds_across_the_border_are_capped(tiny_potential: Path) -> None:
    """A hydrogen takes the place of what lies beyond; its force goes to real atoms."""
    top = app.Topology()
    residue = top.addResidue("MEO", top.addChain())
    oxygen = top.addAtom("O", app.element.oxygen, residue)
    hydrogen = top.addAtom("H", app.element.hydrogen, residue)
    carbon = top.addAtom("C", app.element.carbon, residue)
    top.addBond(oxygen, hydrogen)
    top.addBond(oxygen, carbon)
    system = openmm.System()
    for mass in (16.0, 1.0, 12.0):
        system.addParticle(mass)
    bonds = openmm.HarmonicBondForce()
    bonds.addBond(0, 1, 0.096, 4e5)
    bonds.addBond(0, 2, 0.143, 3e5)
    system.addForce(bonds)
    ml = openmmml.MLPotential("mdgraph", modelPath=str(tiny_potential))
    info = ml.createMixedSystem(
        top, system, [0, 1], returnInfo=True, check=False, device="cpu", linkAtomDistances=[]
    )
    assert info["system"].getNumParticles() == 4
    places = np.array([[0, 0, 0], [0.96, 0, 0], [-0.5, 1.3, 0.1], [0, 0, 0]])
    context = context_of(info["system"], places)
    context.computeVirtualSites()
    energy, forces = looked(context)
    np.testing.assert_allclose(forces[:3].sum(0), 0.0, atol=1e-3 * np.abs(forces).max())
    step = 1e-4
    moved = context.getState(positions=True).getPositions(asNumpy=True)._value
    values = []
    for sign in (1.0, -1.0):
        shifted = moved.copy()
        shifted[2, 0] += sign * step
        context.setPositions(shifted)
        context.computeVirtualSites()
        values.append(looked(context)[0])
    assert (values[1] - values[0]) / (2 * step) == pytest.approx(forces[2, 0], rel=1e-3)
    assert np.isfinite(energy)


@pytest.mark.parametrize("interpolate", [False, True])
def test_plain_numbers_in_angstrom_are_refused(tiny_potential: Path, interpolate: bool) -> None:
    """At the first call, of systems from XML too; not where a face of the box cuts molecules."""
    ml = openmmml.MLPotential("mdgraph", modelPath=str(tiny_potential))
    top, options = topology(), {"check": False, "device": "cpu"}
    mixed = ml.createMixedSystem(
        top, force_field(top), [6, 7, 8], interpolate=interpolate, **options
    )
    torn = positions()
    torn[[1, 4, 7, 10], 0] -= EDGE
    for system, start in (
        (made(tiny_potential), torn),
        (made(tiny_potential, topology(box=None)), positions()),
        (mixed, positions()),
    ):
        stored = openmm.XmlSerializer.deserialize(openmm.XmlSerializer.serialize(system))
        for one in (system, stored):
            context = context_of(one)
            context.setPositions(positions())
            with pytest.raises(openmm.OpenMMException, match="plain numbers as nm, so give posit"):
                looked(context)
            context.setPositions(start * unit.angstrom)
            right = looked(context)
            # A run may go where it likes.
            context.setPositions(positions())
            assert np.isfinite(looked(context)[0])
            context.setPositions(positions() * unit.angstrom)
            assert looked(context)[0] == pytest.approx(right[0], rel=1e-5)


# Storing


def test_systems_are_stored_without_weights(tiny_potential: Path, tmp_path: Path) -> None:
    system = made(tiny_potential)
    xml = openmm.XmlSerializer.serialize(system)
    assert len(xml) < 6000
    wanted = looked(context_of(system))[0]
    for other in (openmm.XmlSerializer.deserialize(xml), copy.deepcopy(system)):
        assert looked(context_of(other))[0] == wanted
    moved = tmp_path / "moved.safetensors"
    moved.write_bytes(tiny_potential.read_bytes())
    xml = openmm.XmlSerializer.serialize(made(moved))
    evaluator_of.cache_clear()
    torch.manual_seed(9)
    moved.write_bytes(moved.read_bytes()[:-4] + b"abcd")
    other = openmm.XmlSerializer.deserialize(xml)
    with pytest.raises(openmm.OpenMMException, match="is not the potential that this System"):
        looked(context_of(other))
    moved.unlink()
    with pytest.raises(openmm.OpenMMException, match="no file or folder"):
        looked(context_of(other))


def test_forces_share_an_evaluator_and_no_buffers(tiny_potential: Path) -> None:
    model = model_named(str(tiny_potential), "cpu", "mixed", "auto", "from checkpoint", False)
    forces = [PotentialForce(model, (8, 1, 1) * 4, True, 0.0) for _ in range(2)]

    class Shown:
        def __init__(self, places: np.ndarray) -> None:
            self.places = places

        def getPositions(self, asNumpy: bool) -> Any:  # noqa: N802
            return self.places * unit.nanometer

        def getPeriodicBoxVectors(self, asNumpy: bool) -> Any:  # noqa: N802
            return 0.1 * EDGE * np.eye(3) * unit.nanometer

    first, pulls = forces[0](Shown(positions() * 0.1))
    kept = pulls.copy()
    second = forces[1](Shown(positions(seed=4) * 0.1))[0]
    assert first != second
    # Contexts of one System share a force, and copy what it gave while others may call it.
    assert forces[0](Shown(positions(seed=4) * 0.1))[0] == second
    np.testing.assert_array_equal(pulls, kept)
    assert forces[0](Shown(positions() * 0.1))[0] == first
    assert forces[0].evaluator() is forces[1].evaluator()


# Bad input


def element_missing() -> app.Topology:
    top = topology(1)
    residue = top.addResidue("X", top.addChain())
    top.addAtom("EP", None, residue)
    return top


def with_carbon() -> app.Topology:
    top = topology(1)
    residue = top.addResidue("C", top.addChain())
    top.addAtom("C", app.element.carbon, residue)
    return top


@pytest.mark.parametrize(
    ("top", "options", "message"),
    [
        (with_carbon(), {}, "does not know C"),
        (element_missing(), {}, "Atoms 3 of the topology have no element"),
        (topology(), {"charge": 1}, "takes no total charge"),
        (topology(), {"precision": "half"}, "Unknown precision"),
        (topology(), {"coulombCutoff": 1.2 * unit.nanometer}, "no Coulomb energy"),
        (
            topology(),
            {"charge": 1.0 * unit.nanometer},
            "charge=1.0 nm is not a number of elementary",
        ),
        (
            topology(),
            {"coulombCutoff": "far"},
            "coulombCutoff is 'far'; it must be a finite",
        ),
        (topology(), {"chrage": 1}, "does not take chrage; did you mean charge\\?"),
        (topology(), {"linkAtomDistances": []}, "createSystem of mdgraph does not take linkAtom"),
    ],
)
def test_invalid_options_are_refused(
    tiny_potential: Path, top: app.Topology, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(MDGraphError, match=message) as caught:
        made(tiny_potential, top, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("chrage", "did you mean charge?"),
        ("interpolat", "did you mean interpolate?"),
        ("linkAtomDistance", "did you mean linkAtomDistances?"),
        ("barostat", "it takes charge, check, coulombCutoff, device"),
    ],
)
def test_misspelt_arguments_of_mixed_systems_are_refused(
    tiny_potential: Path, name: str, advice: str
) -> None:
    ml, top = openmmml.MLPotential("mdgraph", modelPath=str(tiny_potential)), topology()
    with pytest.raises(MDGraphError) as caught:
        ml.createMixedSystem(top, force_field(top), [0, 1, 2], **{name: 1})
    sentence = f"createMixedSystem of mdgraph does not take {name}; {advice}"
    assert str(caught.value).startswith(sentence)


def test_shipped_potentials_are_loaded_by_name() -> None:
    with pytest.raises(MDGraphError, match="water-pbe0"):
        openmmml.MLPotential("mdgraph")
    with pytest.raises(FileError, match=r"potentials that come with mdgraph: .*water-pbe0"):
        made(Path("water-pbe1"))
    energy, _ = looked(context_of(made(Path("water-pbe0"))))
    assert energy == pytest.approx(expected("water-pbe0", positions())[0], rel=1e-9)


def test_bad_positions_are_named(tiny_potential: Path) -> None:
    places = positions()
    places[4] = places[3]
    with pytest.raises(openmm.OpenMMException, match="Atoms 3 and 4 are at the same place"):
        looked(context_of(made(tiny_potential), places))
    places[4] = np.nan
    with pytest.raises(openmm.OpenMMException, match="not finite"):
        looked(context_of(made(tiny_potential), places))
