"""Barostats against the ensembles of gases whose volumes are known, and of argon."""

import functools
import math

import numpy as np
import pytest
import torch
from scipy import stats
from toys import HarmonicWells, LennardJones, argon, log_ratio_slope

from mdgraph.engine import (
    Calculation,
    Integrator,
    MartynaTobiasKlein,
    PositionRestraints,
    Simulation,
    StochasticCellRescaling,
)
from mdgraph.engine.kinetics import Deformation, enthalpy_work, kinetic_tensor
from mdgraph.engine.restart import load_restart_, save_restart
from mdgraph.errors import InputError
from mdgraph.state import State
from mdgraph.system import System
from mdgraph.units import BOLTZMANN

KELVIN = 300.0
THERMAL = BOLTZMANN * KELVIN
PRESSURES = (1.0e-3, 1.3e-3)
"""eV/A^3, of the two halves of each batch."""
ATOMS = 8


def rescaling(pressure, **options) -> StochasticCellRescaling:
    options = {"tau": 100.0, "tau_p": 400.0, "compressibility": 1e3} | options
    return StochasticCellRescaling(8.0, KELVIN, pressure, **options)


BAROSTATS = {
    "isotropic": rescaling,
    "axes": functools.partial(rescaling, cell_dof="axes"),
    "one axis": functools.partial(
        rescaling, cell_dof="axes", axes=(False, False, True), tau_p=200.0
    ),
    "full": functools.partial(rescaling, cell_dof="full"),
    "martyna-tobias-klein": lambda pressure: MartynaTobiasKlein(
        8.0, KELVIN, pressure, tau=100.0, tau_p=200.0
    ),
}


def gas(name: str, systems: int, steps: int, springs: int = 0) -> tuple[Simulation, np.ndarray]:
    """Replicas of eight atoms after so many steps, and P V / kT of each.

    They begin with volumes of the ensemble: along single axes an ideal gas never forgets how
    its kinetic energy lies, so only the whole ensemble stays what it is.
    """
    generator = np.random.default_rng(2)
    pressures = np.repeat(PRESSURES, systems // 2)
    shape = ATOMS - springs + (1.0 if springs else 0.0)
    volumes = generator.gamma(shape, THERMAL / pressures)
    places = generator.random((systems, ATOMS, 3))
    boxes = []
    for volume, place in zip(volumes, places, strict=True):
        edges = np.array([6.0, 6.0, volume / 36.0])
        boxes.append(
            System(
                numbers=np.full(ATOMS, 10), positions=place * edges, cell=np.diag(edges), pbc=True
            )
        )
    restraints = None
    if springs:
        held = [ATOMS * system + atom for system in range(systems) for atom in range(springs)]
        places = np.concatenate([one.positions for one in boxes])[held]
        width = math.sqrt(THERMAL / 0.3)
        points = places + width * generator.normal(size=places.shape)
        restraints = PositionRestraints(held, 0.3, points)
    run = Simulation(
        boxes,
        HarmonicWells(torch.zeros(systems * ATOMS, 3, dtype=torch.float64), 0.0),
        BAROSTATS[name](pressures.tolist()),
        device="cpu",
        seed=3,
        chunk=steps,
        restraints=restraints,
    )
    own = run.integrator.tensors()
    if "strain.rate" in own:
        # These begin at rest otherwise, all replicas in step with each other.
        degrees = torch.tensor(run.degrees_of_freedom, dtype=torch.float64)
        drawn = torch.tensor(generator.normal(size=(4, 2 * systems)))
        own["strain.rate"].copy_(drawn[3, :systems] / (200.0 * torch.sqrt(degrees + 3.0)))
        times = torch.tensor([100.0, 200.0]).repeat_interleave(systems)
        own["chain.velocities"].copy_(drawn[:3] / times)
        own["chain.velocities"][0, :systems] /= torch.sqrt(degrees)
    run.run(steps)
    return run, run.observables().volume.numpy() * pressures / THERMAL


@pytest.mark.parametrize(
    "name",
    [
        "isotropic",
        *(
            pytest.param(name, marks=pytest.mark.statistical)
            for name in ("axes", "one axis", "full")
        ),
        "martyna-tobias-klein",
    ],
)
def test_volumes_of_an_ideal_gas_are_gamma_distributed(name: str) -> None:
    """Gamma(N_f/3 + 1, kT/P), and ln p2(V) / p1(V) of slope (P1 - P2) / kT."""
    run, reduced = gas(name, 1200, 250)
    assert set(run.degrees_of_freedom) == {21}
    assert stats.kstest(reduced, "gamma", args=(8.0,)).pvalue > 1e-4
    assert abs(reduced.mean() - 8.0) < 4 * math.sqrt(8.0 / len(reduced))
    volumes = [part * THERMAL / p for part, p in zip(np.split(reduced, 2), PRESSURES, strict=True)]
    slope, error = log_ratio_slope(*volumes)
    expected = (PRESSURES[0] - PRESSURES[1]) / THERMAL
    assert abs(slope - expected) < 4 * error < 0.5 * abs(expected)
    kinetic = run.observables().kinetic_energy.numpy() / THERMAL
    assert abs(kinetic.mean() - 10.5) < 4 * math.sqrt(10.5 / len(kinetic))
    momentum = run.state.grouping.sum(run.state.masses[:, None] * run.state.velocities)
    assert float(momentum.abs().max()) < 1e-10


@pytest.mark.statistical
@pytest.mark.parametrize("name", BAROSTATS)
def test_volumes_with_atoms_on_springs_are_gamma_distributed(name: str) -> None:
    """Each spring replaces a factor V by one that is constant: Gamma(N - n + 1, kT/P)."""
    run, reduced = gas(name, 600, 250, springs=3)
    assert set(run.degrees_of_freedom) == {24}
    assert stats.kstest(reduced, "gamma", args=(6.0,)).pvalue > 1e-4
    assert abs(reduced.mean() - 6.0) < 4 * math.sqrt(6.0 / len(reduced))
    energy = run.observables().potential_energy.numpy() / THERMAL
    assert abs(energy.mean() - 4.5) < 4 * math.sqrt(4.5 / len(energy))


@pytest.mark.statistical
@pytest.mark.parametrize(
    "make",
    [
        lambda: rescaling(2e-3, tau_p=300.0, compressibility=200.0),
        lambda: MartynaTobiasKlein(4.0, KELVIN, 2e-3, tau=100.0, tau_p=300.0),
    ],
    ids=["isotropic", "martyna-tobias-klein"],
)
def test_argon_reaches_the_target_pressure(make) -> None:
    replicas = 16
    run = Simulation(
        [argon(1, seed) for seed in range(replicas)],
        LennardJones(0.0104, 3.4, 5.5),
        make(),
        device="cpu",
        seed=6,
        chunk=10,
    )
    run.set(timestep=4.0)
    run.run(150)
    pressures = []
    for _ in range(50):
        run.run(10)
        pressures.append(run.observables().pressure)
    # Replicas know nothing of each other.
    means = torch.stack(pressures).mean(0).numpy()
    error = means.std(ddof=1) / math.sqrt(replicas)
    assert abs(means.mean() - 2e-3) < 4 * error
    assert error < 0.15 * 2e-3


@pytest.mark.statistical
def test_shear_of_a_crystal_obeys_equipartition() -> None:
    """<e_xy w_xy> = -kT/2 <(F_xx + F_yy)/2>, F the deformation, e its symmetric part, w the
    force on the strain: equipartition for the ways in which `full` exceeds `axes`."""
    replicas, kelvin = 32, 30.0
    integrator = StochasticCellRescaling(
        8.0,
        kelvin,
        0.0,
        tau=100.0,
        tau_p=100.0,
        compressibility=60.0,
        cell_dof="full",
    )
    run = Simulation(
        [argon(1, seed) for seed in range(replicas)],
        LennardJones(0.0104, 3.4, 5.5),
        integrator,
        device="cpu",
        seed=1,
        chunk=5,
    )
    start = torch.linalg.inv(run.state.cell)
    none = torch.zeros(replicas, dtype=torch.float64)
    run.run(150)
    products, stretches = [], []
    for _ in range(80):
        run.run(5)
        deformation = start @ run.state.cell
        work = enthalpy_work(run.state, none) + kinetic_tensor(run.state)
        for one, two in ((0, 1), (1, 2), (0, 2)):
            shear = 0.5 * (deformation[:, one, two] + deformation[:, two, one])
            products.append(shear * work[:, one, two])
            stretches.append(0.5 * (deformation[:, one, one] + deformation[:, two, two]))
    means = torch.stack(products).mean(0).numpy() / (BOLTZMANN * kelvin)
    expected = -0.5 * float(torch.stack(stretches).mean())
    error = means.std(ddof=1) / math.sqrt(replicas)
    assert abs(means.mean() - expected) < 4 * error
    assert error < 0.05


@pytest.mark.parametrize("skin", [0.0, 0.4])
def test_a_cell_that_shrinks_through_the_cutoff_keeps_its_bits(skin: float, tmp_path) -> None:
    loose = argon(1).replace(positions=1.5 * argon(1).positions, cell=1.5 * argon(1).cell)

    def compressed(chunk: int, begin: int = 0) -> Simulation:
        run = Simulation(
            loose,
            LennardJones(0.0104, 3.4, 5.5),
            rescaling(0.03, tau_p=200.0, compressibility=30.0),
            device="cpu",
            skin=skin,
            chunk=chunk,
            temperature=100.0,
            precision="double",
        )
        run.set(timestep=2.0, temperature=100.0)
        if begin:
            load_restart_(run, tmp_path / "restart")
        run.run(100 - begin)
        save_restart(run, tmp_path / "restart")
        run.run(60)
        return run

    # The last one takes the small cell of the file with lists planned for the wide one.
    runs = [compressed(1), compressed(40), compressed(40, begin=100)]
    assert float(runs[0].state.cell[0, 0, 0]) < 5.5 < 8.0 < float(loose.cell[0, 0])
    for name, value in runs[0].state.tensors().items():
        assert torch.equal(value, runs[1].state.tensors()[name]), name
        assert torch.equal(value, runs[2].state.tensors()[name]), name
    end = loose.replace(
        positions=runs[0].state.positions.numpy(), cell=runs[0].state.cell[0].numpy()
    )
    fresh = Calculation([end], LennardJones(0.0104, 3.4, 5.5), device="cpu", precision="double")
    fresh.compute()
    assert torch.allclose(fresh.state.energy, runs[0].state.energy, rtol=1e-10)
    assert torch.allclose(fresh.state.virial, runs[0].state.virial, rtol=1e-8)


def skewed(pbc: tuple[bool, bool, bool] = (True, True, True)) -> System:
    cell = np.array([[7.0, 0.5, 0.0], [1.0, 8.0, -0.5], [0.3, 0.2, 9.0]])
    places = np.random.default_rng(0).random((ATOMS, 3))
    return System(numbers=np.full(ATOMS, 10), positions=places @ cell, cell=cell, pbc=np.array(pbc))


def moved(system: System, integrator: Integrator, steps: int = 20) -> np.ndarray:
    free = HarmonicWells(torch.zeros(ATOMS, 3, dtype=torch.float64), 0.0)
    run = Simulation(system, free, integrator, device="cpu")
    run.run(steps)
    cell = run.state.cell[0].numpy()
    assert abs(np.linalg.det(cell) / np.linalg.det(system.cell) - 1.0) > 1e-3
    return cell


def test_isotropic_pressure_keeps_the_shape() -> None:
    for name in ("isotropic", "martyna-tobias-klein"):
        ratio = moved(skewed(), BAROSTATS[name](1e-3)) / np.where(skewed().cell, skewed().cell, 1)
        used = ratio[skewed().cell != 0]
        np.testing.assert_allclose(used, used[0], rtol=1e-12)


def test_pressure_along_axes_keeps_directions_and_the_other_vectors() -> None:
    for axes, pbc in (
        ((True, False, True), (True, True, True)),
        (None, (True, True, True)),
        (None, (True, False, True)),
    ):
        system = skewed(pbc)
        cell = moved(system, BAROSTATS["axes"](1e-3, axes=axes))
        before, after = (np.linalg.norm(one, axis=1) for one in (system.cell, cell))
        varied = np.array(pbc if axes is None else axes)
        assert (np.abs(after / before - 1.0)[varied] > 1e-4).all()
        periodic = np.array(pbc)
        directions = [
            (c / np.linalg.norm(c, axis=1)[:, None])[periodic] for c in (system.cell, cell)
        ]
        np.testing.assert_allclose(*directions, atol=1e-12)
        np.testing.assert_allclose(cell[periodic & ~varied], system.cell[periodic & ~varied])


def test_no_step_turns_a_full_cell() -> None:
    deformation = np.linalg.inv(skewed().cell) @ moved(skewed(), BAROSTATS["full"](1e-2), 1)
    np.testing.assert_allclose(deformation, deformation.T, atol=1e-12)
    assert np.abs(deformation - np.diag(np.diag(deformation))).max() > 1e-3


@pytest.mark.parametrize(
    ("cell_dof", "pbc"),
    [
        ("isotropic", (True, True, True)),
        ("axes", (True, True, True)),
        ("axes", (True, False, True)),
        ("full", (True, True, True)),
    ],
)
def test_strains_work_against_their_forces_and_keep_the_measure(cell_dof: str, pbc) -> None:
    """-d(U + PV)/ds of each strain is its force, and x v of each atom stays what it was."""
    system = skewed(pbc).replace(velocities=np.random.default_rng(1).normal(size=(ATOMS, 3)))
    pressure = torch.tensor([0.03], dtype=torch.float64)
    change = Deformation(cell_dof)

    def strained(strains: list[float]) -> State:
        potential = LennardJones(0.0104, 2.2, 5.5)
        calculation = Calculation([system], potential, device="cpu", precision="double")
        state = calculation.state
        change.allocate(state)
        before = (state.positions * state.velocities).sum(1)
        change.apply_(state, torch.tensor([strains], dtype=torch.float64), state.velocities)
        after = (state.positions * state.velocities).sum(1)
        assert torch.allclose(before, after, rtol=1e-9)
        calculation.compute()
        return state

    def enthalpy(strains: list[float]) -> float:
        state = strained(strains)
        return float(state.energy + pressure * state.cell.det().abs())

    start = strained([0.0] * change.count)
    forces = change.forces(start, enthalpy_work(start, pressure))[0].tolist()
    step = 1e-5
    for place, force in enumerate(forces):
        shift = [step * (place == other) for other in range(change.count)]
        slope = (enthalpy(shift) - enthalpy([-one for one in shift])) / (2 * step)
        assert force == pytest.approx(-slope, rel=1e-5, abs=1e-6)


def make(system: System, integrator: Integrator, **options) -> Simulation:
    free = HarmonicWells(torch.zeros(len(system), 3, dtype=torch.float64), 0.0)
    return Simulation(system, free, integrator, device="cpu", **options)


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        (lambda: make(skewed(), rescaling(1e-3), fixed=[0]), "Fixed atoms would not follow"),
        (
            lambda: make(skewed(), BAROSTATS["martyna-tobias-klein"](1e-3), fixed=[0]),
            "Fixed atoms would not follow",
        ),
        # Of a slab whose bottom is fixed, the atoms are what is wrong.
        (
            lambda: make(skewed((True, True, False)), rescaling(1e-3), fixed=[0]),
            "Fixed atoms would not follow a cell that varies; restrain them instead, keep",
        ),
        (lambda: make(skewed((True, True, False)), rescaling(1e-3)), "periodic directions alone"),
        (
            lambda: make(skewed((True, True, False)), rescaling(1e-3, cell_dof="full")),
            "periodic directions alone",
        ),
        (
            lambda: make(
                skewed((True, True, False)),
                rescaling(1e-3, cell_dof="axes", axes=(True, True, True)),
            ),
            "periodic directions alone",
        ),
        (
            lambda: make(skewed((False,) * 3), rescaling(1e-3, cell_dof="axes")),
            "A system has no periodic direction, so no cell",
        ),
        (
            lambda: make(
                skewed((True, True, False)).replace(cell=np.diag([7.0, 8.0, 0.0])),
                rescaling(1e-3, cell_dof="axes"),
            ),
            "needs a volume",
        ),
        (lambda: rescaling(1e-3, cell_dof="sideways"), "cannot vary 'sideways'"),
        (lambda: rescaling(1e-3, axes=(True, True, True)), "axes .* cannot vary"),
        (lambda: rescaling(1e-3, cell_dof="axes", axes=(False, False, False)), "cannot vary"),
        (lambda: rescaling(math.inf), "pressure is inf"),
        (lambda: rescaling(1e-3, compressibility=0.0), "compressibility is 0"),
    ],
)
def test_impossible_barostats_are_refused(attempt, words) -> None:
    with pytest.raises(InputError, match=words):
        attempt()
