"""Every ensemble on one toy without neighbor lists: some atoms free, some on springs."""

from collections.abc import Callable

import numpy as np
import torch
from toys import HarmonicWells

from mdgraph.engine import (
    FIRE,
    Integrator,
    LangevinMiddle,
    MartynaTobiasKlein,
    NoseHooverChains,
    PositionRestraints,
    Simulation,
    StochasticCellRescaling,
    StochasticVelocityRescaling,
    VelocityVerlet,
)
from mdgraph.system import System
from mdgraph.units import BOLTZMANN

KELVIN = 300.0
THERMAL = BOLTZMANN * KELVIN
PRESSURE = 1e-3
"""eV/A^3; an ideal gas of one atom takes 26 A^3."""
STIFFNESS = 0.5


def cell_rescaling(cell_dof: str, axes: tuple[bool, bool, bool] | None = None) -> Integrator:
    return StochasticCellRescaling(
        5.0,
        KELVIN,
        PRESSURE,
        tau=50.0,
        tau_p=500.0,
        compressibility=1.0 / PRESSURE,
        cell_dof=cell_dof,
        axes=axes,
    )


DYNAMICS: dict[str, Callable[[], Integrator]] = {
    "verlet": lambda: VelocityVerlet(5.0),
    "langevin": lambda: LangevinMiddle(5.0, KELVIN, 5.0),
    "velocity rescaling": lambda: StochasticVelocityRescaling(5.0, KELVIN, 50.0),
    "nose-hoover": lambda: NoseHooverChains(5.0, KELVIN, 50.0),
    "cell rescaling": lambda: cell_rescaling("isotropic"),
    "axes": lambda: cell_rescaling("axes"),
    "one axis": lambda: cell_rescaling("axes", (False, False, True)),
    "full cell": lambda: cell_rescaling("full"),
    "semiisotropic": lambda: cell_rescaling("semiisotropic"),
    "martyna-tobias-klein": lambda: MartynaTobiasKlein(
        5.0, KELVIN, PRESSURE, tau=50.0, tau_p=200.0
    ),
    "martyna-tobias-klein, semiisotropic": lambda: MartynaTobiasKlein(
        5.0, KELVIN, PRESSURE, tau=50.0, tau_p=200.0, cell_dof="semiisotropic"
    ),
}

MINIMISERS: dict[str, Callable[[], Integrator]] = {
    "fire": lambda: FIRE(1e-6),
    "fire, cell": lambda: FIRE(1e-6, cell_dof="full", pressure=-1e-3, stress_tolerance=1e-9),
}


def box(edges: tuple[float, float, float] | np.ndarray, atoms: int, seed: int = 0) -> System:
    """Neon and argon at random places of an orthorhombic cell."""
    generator = np.random.default_rng(seed)
    return System(
        numbers=np.where(np.arange(atoms) % 2, 18, 10),
        positions=generator.random((atoms, 3)) * edges,
        cell=np.diag(edges),
        pbc=np.full(3, True),
    )


def toy(integrator: Integrator, systems: int = 2, **options: object) -> Simulation:
    """Six atoms a system, two of them on springs whose ends move with the cell."""
    boxes = [box((6.0, 6.5, 7.0), 6, seed) for seed in range(systems)]
    device = options.get("device", "cpu")
    free = HarmonicWells(torch.zeros(6 * systems, 3, dtype=torch.float64, device=device), 0.0)
    held = [6 * system + atom for system in range(systems) for atom in (0, 3)]
    points = np.concatenate([one.positions[[0, 3]] for one in boxes]) + 0.2
    options = {"seed": 4, "temperature": KELVIN, "chunk": 7, "device": "cpu"} | options
    return Simulation(
        boxes,
        free,
        integrator,
        restraints=PositionRestraints(held, STIFFNESS, points),
        **options,  # type: ignore[arg-type]
    )


def graphed(run: Simulation) -> Simulation:
    """Takes steps as replays of what the fixture `captures` records."""
    run.step_graphs.graphed = True
    return run


def bits(simulation: Simulation) -> dict[str, torch.Tensor]:
    """Everything that a step changes."""
    own = {f"own.{name}": value for name, value in simulation.integrator.tensors().items()}
    recorded = {f"online.{name}": value for name, value in simulation.online.tensors().items()}
    return simulation.state.tensors() | own | recorded


def assert_same(first: Simulation, second: Simulation) -> None:
    other = bits(second)
    for name, value in bits(first).items():
        assert torch.equal(value, other[name]), name
    assert first.time == second.time
    seen = [run.observables().conserved_energy for run in (first, second)]
    assert torch.equal(*[torch.nan_to_num(energy) for energy in seen])
