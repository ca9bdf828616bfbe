"""ASE's dynamics on a GPU: the bits of captured graphs, and changes that outdate a graph."""

import numpy as np
import pytest
import torch
from ase import Atoms, units
from toys import LennardJones, argon

from mdgraph.drivers.ase import (
    FIRE,
    Langevin,
    MDGraphCalculator,
    StochasticCellRescaling,
    VelocityVerlet,
)
from mdgraph.engine import LangevinMiddle, Simulation
from mdgraph.io.structures import from_ase, to_ase

pytestmark = pytest.mark.gpu

STEP = 4.0 * units.fs
OPTIONS = {"device": "cuda", "precision": "double"}


def crystal(cells: int = 2) -> Atoms:
    atoms = to_ase(argon(cells))
    momenta = np.random.default_rng(1).normal(scale=0.4, size=(len(atoms), 3))
    atoms.set_momenta(momenta - momenta.mean(axis=0))
    atoms.calc = MDGraphCalculator(LennardJones(0.0104, 3.4, 5.5), **OPTIONS)
    return atoms


def test_the_bits_are_those_of_a_simulation() -> None:
    atoms = crystal()
    alone = Simulation(
        from_ase(atoms), atoms.calc._evaluator, LangevinMiddle(4.0, 80.0, 1.0), seed=5, **OPTIONS
    )
    alone.run(130)
    options = {"temperature_K": 80, "friction": 1e-3 / units.fs, "fixcm": False, "seed": 5}
    dynamics = Langevin(atoms, STEP, **options)
    seen = []
    dynamics.attach(lambda: seen.append(atoms.get_potential_energy()), interval=17)
    dynamics.run(130)
    assert dynamics.simulation.graphed
    assert len(seen) == 8
    np.testing.assert_array_equal(atoms.positions, alone.state.positions.cpu().numpy())


def test_a_graph_uses_positions_that_an_observer_changed() -> None:
    paths = []
    for device in ("cuda", "cpu"):
        atoms = crystal()
        atoms.calc = MDGraphCalculator(
            LennardJones(0.0104, 3.4, 5.5), device=device, precision="double"
        )
        dynamics = VelocityVerlet(atoms, STEP)

        def change(atoms: Atoms = atoms, dynamics: VelocityVerlet = dynamics) -> None:
            atoms.set_momenta(0.9 * atoms.get_momenta())
            if dynamics.nsteps == 40:
                atoms.wrap()
            if dynamics.nsteps == 60:
                atoms.set_cell(0.99 * atoms.cell, scale_atoms=True)

        dynamics.attach(change, interval=20)
        dynamics.run(100)
        paths.append(atoms.positions)
    np.testing.assert_allclose(paths[0], paths[1], atol=1e-8)


def test_lists_that_grow_need_a_new_graph() -> None:
    atoms = crystal(3)
    atoms.set_cell(4.0 * atoms.cell, scale_atoms=True)
    dynamics = VelocityVerlet(atoms, STEP)
    dynamics.run(10)
    atoms.positions *= 0.22
    atoms.positions += 1.0
    dynamics.run(5)
    fresh = MDGraphCalculator(LennardJones(0.0104, 3.4, 5.5), **OPTIONS)
    energy = fresh.get_potential_energy(atoms.copy())
    assert atoms.get_potential_energy() == pytest.approx(energy, abs=1e-9)


def test_cells_move_and_atoms_rest() -> None:
    atoms = crystal()
    volume = atoms.get_volume()
    StochasticCellRescaling(atoms, STEP, temperature_K=80, pressure_au=0.0, seed=1).run(50)
    assert atoms.get_volume() != volume
    assert FIRE(atoms, logfile=None).run(fmax=1e-3, steps=1000)
    assert float(np.linalg.norm(atoms.get_forces(), axis=1).max()) < 1e-3


def test_an_evaluation_syncs_once() -> None:
    """What was found and what the list counted come by copies that nobody waits for one by one."""
    atoms = crystal()
    for _ in range(3):
        atoms.rattle(0.01)
        atoms.get_forces()
    atoms.rattle(0.01, seed=3)
    kinds = [torch.profiler.ProfilerActivity.CUDA]
    # Torch 2.10 and 2.11 warn of cycles, of which there are none, unless events are kept.
    with torch.profiler.profile(activities=kinds, acc_events=True) as profile:
        forces = atoms.get_forces()
    copies = [one for one in profile.events() if "DtoH" in one.name]
    assert len(copies) == 2
    assert all("Pinned" in one.name for one in copies)
    alone = crystal()
    alone.positions = atoms.positions
    alone.calc = MDGraphCalculator(LennardJones(0.0104, 3.4, 5.5), device="cpu", precision="double")
    np.testing.assert_allclose(forces, alone.get_forces(), atol=1e-12)
