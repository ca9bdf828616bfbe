"""What the OpenMM driver refuses, in one sentence."""

import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import openmm
import pytest
from openmm import app, unit
from openmm_water import (
    bare_system,
    charged,
    langevin,
    positions,
    shown,
    simulation,
    topology,
    verlet,
)

from mdgraph.drivers.openmm import Simulation
from mdgraph.engine import FIRE, VelocityVerlet
from mdgraph.errors import FileError, InputError, MDGraphError


def with_force(force: openmm.Force) -> openmm.System:
    system = bare_system()
    system.addForce(openmm.CMMotionRemover())
    system.addForce(force)
    return system


def constrained() -> openmm.System:
    system = bare_system()
    system.addConstraint(3, 4, 0.1)
    return system


def with_virtual_site() -> openmm.System:
    system = bare_system()
    system.setVirtualSite(2, openmm.TwoParticleAverageSite(0, 1, 0.5, 0.5))
    return system


def fixed_with_barostat() -> openmm.System:
    system = with_force(barostat())
    system.setParticleMass(2, 0.0)
    return system


def with_box() -> openmm.System:
    system = bare_system()
    system.setDefaultPeriodicBoxVectors([3, 0, 0], [0, 3, 0], [0, 0, 3])
    return system


def barostat() -> openmm.MonteCarloBarostat:
    return openmm.MonteCarloBarostat(1.0, 300.0)


def anisotropic() -> openmm.Force:
    return openmm.MonteCarloAnisotropicBarostat(openmm.Vec3(1, 1, 1), 300.0)


def membrane(tension: float = 0.0, xy: str = "XYIsotropic", z: str = "ZFree") -> openmm.Force:
    kind = openmm.MonteCarloMembraneBarostat
    return kind(1.0, tension, 300.0, getattr(kind, xy), getattr(kind, z))


@pytest.mark.parametrize(
    ("system", "message"),
    [
        (with_force(openmm.HarmonicBondForce()), r"would not apply HarmonicBondForce \(force 1\)"),
        (with_force(openmm.NonbondedForce()), "NonbondedForce"),
        (with_force(openmm.AndersenThermostat(300.0, 1.0)), "AndersenThermostat"),
        (with_force(anisotropic()), "MonteCarloAnisotropicBarostat"),
        (with_force(membrane(xy="XYAnisotropic")), "scales x and y of a membrane together"),
        (with_force(membrane(z="ConstantVolume")), "ZFree or ZFixed"),
        (constrained(), "1 constraints, the first between atoms 3 and 4"),
        (with_virtual_site(), "Particles 2 of the System are virtual sites"),
        (bare_system(2), "6 particles, the topology 12 atoms"),
        (fixed_with_barostat(), "Atoms 2 have mass 0"),
        (with_box(), "not that of the topology"),
    ],
)
def test_forces_and_constraints_that_the_engine_lacks_are_named(
    tiny_potential: Path, system: openmm.System, message: str
) -> None:
    with pytest.raises(InputError, match=message) as caught:
        simulation(tiny_potential, langevin(), system, start=False)
    assert "\n" not in str(caught.value)


def thermostats_for_parts() -> openmm.NoseHooverIntegrator:
    integrator = openmm.NoseHooverIntegrator(0.0005)
    integrator.addSubsystemThermostat([0, 1], [], 300, 1, 300, 1, 3, 3, 7)
    return integrator


@pytest.mark.parametrize(
    ("integrator", "system", "message"),
    [
        (openmm.BrownianIntegrator(300, 1, 0.001), None, "no BrownianIntegrator; give Verlet"),
        (openmm.CustomIntegrator(0.001), None, "no CustomIntegrator"),
        (thermostats_for_parts(), None, "one Nose-Hoover chain of 3 for all atoms"),
        (openmm.NoseHooverIntegrator(0.0005), None, "one Nose-Hoover chain of 3 for all atoms"),
        (openmm.NoseHooverIntegrator(300, 20, 0.0005, 5), None, "one Nose-Hoover chain of 3"),
        (FIRE(0.05), None, "FIRE makes no steps in time"),
        (openmm.LangevinMiddleIntegrator(300, 1, 0.5), None, "500 fs; OpenMM reads plain numbers"),
        (verlet(), with_force(barostat()), "needs a bath"),
        (VelocityVerlet(0.5), with_force(barostat()), "StochasticCellRescaling alone"),
    ],
)
def test_integrators_that_the_engine_lacks_are_refused(
    tiny_potential: Path, integrator: Any, system: Any, message: str
) -> None:
    with pytest.raises(InputError, match=message) as caught:
        simulation(tiny_potential, integrator, system, start=False)
    assert "\n" not in str(caught.value)


def test_a_time_step_that_is_set_later_is_judged_at_the_next_step(tiny_potential: Path) -> None:
    made = simulation(tiny_potential, verlet())
    made.step(1)
    made.integrator.setStepSize(0.5)
    with pytest.raises(InputError, match="500 fs; OpenMM reads plain numbers"):
        made.step(1)
    made.integrator.setStepSize(0.5 * unit.femtosecond)
    made.step(1)
    assert made.currentStep == 2


def test_a_membrane_without_tension_is_taken(tiny_potential: Path) -> None:
    made = simulation(tiny_potential, langevin(), with_force(membrane(tension=20.0)))
    with pytest.raises(InputError, match="a surface tension of 20 bar nm"):
        made.step(1)


def test_a_barostat_needs_friction(tiny_potential: Path) -> None:
    integrator = langevin()
    integrator.setFriction(0.0)
    made = simulation(tiny_potential, integrator, with_force(barostat()))
    with pytest.raises(InputError, match="a friction of 0 there is none"):
        made.step(1)
    integrator.setFriction(1.0)
    made.step(1)


def some_groups(kind: Any, *arguments: float) -> openmm.Integrator:
    integrator = kind(*arguments)
    integrator.setIntegrationForceGroups({0, 2})
    return integrator


@pytest.mark.parametrize(
    "integrator",
    [
        some_groups(openmm.VerletIntegrator, 0.0005),
        some_groups(openmm.LangevinMiddleIntegrator, 300, 1, 0.0005),
    ],
)
def test_some_force_groups_alone_are_refused(tiny_potential: Path, integrator: Any) -> None:
    with pytest.raises(InputError, match="one force; leave setIntegrationForceGroups out"):
        simulation(tiny_potential, integrator, start=False)
    integrator.setIntegrationForceGroups(set(range(32)))
    made = simulation(tiny_potential, integrator)
    made.step(1)
    for groups in (set(), {0}):
        with pytest.raises(InputError, match="leave setIntegrationForceGroups out"):
            made.integrator.setIntegrationForceGroups(groups)


def test_the_arguments_of_openmms_own_simulation_are_explained(tiny_potential: Path) -> None:
    top, platform = topology(), openmm.Platform.getPlatformByName("Reference")
    for arguments, options, message in (
        ((bare_system(), verlet()), {}, r"Simulation\(topology, potential, integrator, system\)"),
        ((bare_system(), verlet(), platform), {}, "potential comes there"),
        ((tiny_potential, verlet(), platform), {}, "no Platform of OpenMM; .* give device="),
        ((tiny_potential, verlet(), None, platform), {}, "give device="),
        ((tiny_potential, verlet()), {"platform": platform}, "give device="),
        ((tiny_potential, verlet()), {"domains": 2}, "domains by mdgraph.engine.Simulation"),
        ((tiny_potential, verlet()), {"platformProperties": {"Precision": "mixed"}}, "device="),
        ((tiny_potential, verlet(), "cuda"), {}, "is of type str, no System"),
    ):
        with pytest.raises(InputError, match=message) as caught:
            Simulation(top, *arguments, **options)
        assert "\n" not in str(caught.value)


def carbon() -> app.Topology:
    found = topology(1)
    residue = found.addResidue("C", found.addChain())
    found.addAtom("C", app.element.carbon, residue)
    return found


def without_element() -> app.Topology:
    found = topology(1)
    residue = found.addResidue("X", found.addChain())
    found.addAtom("EP", None, residue)
    return found


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topology": carbon()}, "does not know C"),
        ({"topology": without_element()}, "Atoms 3 of the topology have no element"),
        ({"topology": topology(box=None), "system": with_force(barostat())}, "no periodic box"),
        ({"charge": 1.0}, "takes no total charge"),
        ({"precision": "half"}, "Unknown precision"),
    ],
)
def test_bad_options_are_refused_before_there_are_positions(
    tiny_potential: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(MDGraphError, match=message):
        simulation(tiny_potential, langevin(), start=False, **options)


def test_coulomb_over_all_pairs_is_refused_in_a_box() -> None:
    with pytest.raises(InputError, match=r"with_coulomb_cutoff\(12\.0\)"):
        simulation(charged(None), verlet(), start=False)
    alone = simulation(charged(None), verlet(), start=False, topology=topology(1, box=None))
    alone.context.setPositions(positions(1) * unit.angstrom)
    alone.step(1)


def test_positions_without_their_unit_are_refused(tiny_potential: Path) -> None:
    made = simulation(tiny_potential, verlet())
    made.context.setPositions(positions())
    with pytest.raises(InputError, match=r"longer than 9\.\d+ A; OpenMM reads plain numbers"):
        made.step(1)
    # And it works once they are right.
    made.context.setPositions(positions() * unit.angstrom)
    made.step(1)
    made.context.setPositions(positions())
    with pytest.raises(InputError, match="plain numbers"):
        shown(made, energy=True)


def test_invalid_positions_are_refused(tiny_potential: Path) -> None:
    made = simulation(tiny_potential, verlet(), start=False)
    with pytest.raises(InputError, match="no positions yet"):
        made.step(1)
    wrong = positions()
    wrong[4] = np.nan
    made.context.setPositions(wrong * unit.angstrom)
    with pytest.raises(InputError, match="not finite"):
        made.step(1)
    wrong[4] = wrong[3]
    made.context.setPositions(wrong * unit.angstrom)
    with pytest.raises(InputError, match="same place"):
        shown(made, energy=True)
    # A box of 3.5 A puts molecules on a grid of 3.5 A on top of their images.
    small = simulation(tiny_potential, verlet(), topology=topology(box=3.5), start=False)
    grid = 3.5 * np.arange(4).repeat(3)[:, None]
    small.context.setPositions((np.tile(positions(1), (4, 1)) + grid) * unit.angstrom)
    with pytest.raises(InputError, match="same place"):
        small.step(1)


def test_a_box_without_one_in_the_topology_is_refused(tiny_potential: Path, tmp_path: Path) -> None:
    """States without a box carry that of every System, and are taken."""
    alone = topology(box=None)
    with pytest.raises(InputError, match=r"set it with topology\.setPeriodicBoxVectors"):
        simulation(tiny_potential, verlet(), with_box(), topology=alone, start=False)
    made = simulation(tiny_potential, verlet(), bare_system(), topology=alone)
    box = [[0.75, 0, 0], [0, 0.75, 0], [0, 0, 0.75]] * unit.nanometer
    with pytest.raises(InputError, match=r"set it with topology\.setPeriodicBoxVectors"):
        made.context.setPeriodicBoxVectors(*box)
    periodic = simulation(tiny_potential, verlet())
    with pytest.raises(InputError, match="the topology has none"):
        made.context.setState(shown(periodic, positions=True))
    made.context.setPeriodicBoxVectors(*shown(made).getPeriodicBoxVectors())
    made.step(2)
    made.saveState(str(tmp_path / "state.xml"))
    made.loadState(str(tmp_path / "state.xml"))
    made.step(1)
    assert made.currentStep == 3


def test_files_that_are_no_states_are_named(tiny_potential: Path, tmp_path: Path) -> None:
    made = simulation(tiny_potential, verlet())
    path = tmp_path / "state.xml"
    system = openmm.XmlSerializer.serialize(bare_system())
    for content in (b"junk", b"<a>1</a>", b"<State", b"\xff\xfe", system.encode()):
        path.write_bytes(content)
        with pytest.raises(FileError, match=r"state\.xml holds no State of OpenMM") as caught:
            made.loadState(str(path))
        assert "\n" not in str(caught.value)
    with pytest.raises(FileError, match="The file holds no State"):
        made.loadState(io.StringIO("junk"))
    made.step(1)


def test_a_simulation_cannot_be_pickled_and_says_so(tiny_potential: Path) -> None:
    made = simulation(tiny_potential, verlet())
    for store, what in ((pickle.dumps, made), (openmm.XmlSerializer.serialize, made.system)):
        with pytest.raises(openmm.OpenMMException, match="could not be pickled"):
            store(what)
    with pytest.raises(InputError, match="make another Simulation"):
        made.context.reinitialize()
    with pytest.raises(AttributeError, match="getTemperature"):
        made.integrator.getTemperature()
