"""Thermostats against the canonical ensemble, conserved quantities and discrete solutions."""

import functools
import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from scipy import stats
from toys import HarmonicWells, LennardJones, QuarticWells, argon, log_ratio_slope

from mdgraph.engine import (
    Integrator,
    LangevinMiddle,
    MartynaTobiasKlein,
    NoseHooverChains,
    Simulation,
    StochasticVelocityRescaling,
    VelocityVerlet,
)
from mdgraph.engine.random import THERMOSTAT, chi_squared
from mdgraph.evaluators import Evaluator
from mdgraph.neighbors import NeighborList
from mdgraph.state import State
from mdgraph.system import System
from mdgraph.units import ACCELERATION, BOLTZMANN, KINETIC_ENERGY

KELVIN = 300.0
THERMAL = BOLTZMANN * KELVIN


@pytest.mark.parametrize("degrees", [1, 2, 3, 20, 100_000])
def test_sums_of_squares_are_distributed_as_they_should(degrees: int) -> None:
    count = torch.full((50,), float(degrees))
    steps = torch.arange(400)[:, None]
    drawn = chi_squared(count.double(), torch.tensor(3), steps, torch.arange(50), THERMOSTAT)
    assert stats.kstest(drawn.flatten().numpy(), "chi2", args=(degrees,)).pvalue > 1e-4
    successive = (stats.chi2.cdf(drawn.numpy(), degrees) - 0.5) * math.sqrt(12.0)
    products = successive[1:] * successive[:-1]
    assert abs(products.mean()) * math.sqrt(products.size) < 4


def test_a_sum_of_no_squares_is_zero() -> None:
    none = torch.tensor([0.0, -1.0], dtype=torch.float64)
    steps = torch.arange(9)[:, None]
    drawn = chi_squared(none, torch.tensor(3), steps, torch.arange(2), THERMOSTAT)
    assert torch.equal(drawn, torch.zeros(9, 2, dtype=torch.float64))


@functools.cache
def mixtures(systems: int) -> tuple[System, ...]:
    """Replicas of two hydrogens and two oxygens in quartic wells, as they are at 250 K."""
    generator = np.random.default_rng(1)
    numbers = np.array([1, 8, 1, 8])
    start = [
        # A little momentum, which wells do not conserve, makes for 12 degrees of freedom.
        System(numbers=numbers, positions=0.05 * x, velocities=1e-6 * v)
        for x, v in generator.normal(size=(systems, 2, 4, 3))
    ]
    run = simulation(start, LangevinMiddle(1.0, 250.0, 20.0), 9, 600)
    parts = [
        value.numpy().reshape(-1, 4, 3) for value in (run.state.positions, run.state.velocities)
    ]
    return tuple(
        System(numbers=numbers, positions=x, velocities=v) for x, v in zip(*parts, strict=True)
    )


def simulation(
    start: Sequence[System], integrator: Integrator, seed: int, steps: int
) -> Simulation:
    wells = QuarticWells(0.02, 0.6)
    run = Simulation(start, wells, integrator, device="cpu", seed=seed, chunk=steps)
    assert set(run.degrees_of_freedom) == {12}
    run.run(steps)
    return run


def quartic(integrator: Integrator, systems: int, seed: int = 1) -> Simulation:
    """The mixtures after 700 fs, each an independent sample."""
    return simulation(mixtures(systems), integrator, seed, 700)


CANONICAL = {
    "langevin": lambda kelvin: LangevinMiddle(1.0, kelvin, 20.0),
    "velocity rescaling": lambda kelvin: StochasticVelocityRescaling(1.0, kelvin, 40.0),
    "nose-hoover": lambda kelvin: NoseHooverChains(1.0, kelvin, 30.0),
}


@pytest.mark.parametrize("name", CANONICAL)
def test_energies_have_their_canonical_distributions(name: str) -> None:
    """K of Gamma(N_f/2, kT), of each species too, and U of Gamma(3N/4, kT)."""
    run = quartic(CANONICAL[name](KELVIN), 1000)
    seen = run.observables()
    kinetic, potential = seen.kinetic_energy.numpy(), seen.potential_energy.numpy()
    for energies, shape in ((kinetic, 6.0), (potential, 3.0)):
        assert stats.kstest(energies / THERMAL, "gamma", args=(shape,)).pvalue > 1e-4
        error = THERMAL * math.sqrt(shape / len(energies))
        assert abs(energies.mean() - shape * THERMAL) < 4 * error
    # K and U of a canonical ensemble know nothing of each other.
    assert abs(np.corrcoef(kinetic, potential)[0, 1]) * math.sqrt(len(kinetic)) < 4
    atoms = 0.5 * KINETIC_ENERGY * run.state.masses * run.state.velocities.square().sum(-1)
    for species in (1, 8):
        own = atoms[run.state.numbers == species].numpy()
        assert abs(own.mean() - 1.5 * THERMAL) < 4 * THERMAL * math.sqrt(1.5 / len(own))


@pytest.mark.statistical
@pytest.mark.parametrize("name", CANONICAL)
def test_energies_at_two_temperatures_differ_by_boltzmann_factors(name: str) -> None:
    """ln p2(U) / p1(U) has the slope 1/kT1 - 1/kT2."""
    kelvins = (KELVIN, 400.0)
    energies = [
        quartic(CANONICAL[name](kelvin), 1000, seed).observables().potential_energy.numpy()
        for seed, kelvin in enumerate(kelvins, 5)
    ]
    slope, error = log_ratio_slope(*energies)
    expected = (1.0 / kelvins[0] - 1.0 / kelvins[1]) / BOLTZMANN
    assert abs(slope - expected) < 4 * error
    assert error < 0.2 * expected


@pytest.mark.parametrize(
    "make",
    [
        lambda dt: NoseHooverChains(dt, 120.0, 200.0),
        lambda dt: MartynaTobiasKlein(dt, 120.0, 1e-4, tau=200.0, tau_p=1000.0),
        lambda dt: StochasticVelocityRescaling(dt, 120.0, 500.0),
        lambda dt: LangevinMiddle(dt, 120.0, 0.1),
    ],
    ids=["nose-hoover", "martyna-tobias-klein", "velocity rescaling", "langevin"],
)
def test_conserved_energies_scatter_with_the_square_of_the_time_step(make) -> None:
    scatter = []
    for timestep, steps in ((8.0, 100), (4.0, 200)):
        run = Simulation(
            argon(2),
            LennardJones(0.0104, 3.4, 5.5),
            make(timestep),
            device="cpu",
            precision="double",
            temperature=120.0,
            chunk=4,
        )
        energies = []
        for _ in range(steps // 4):
            run.run(4)
            energies.append(float(run.observables().conserved_energy))
        scatter.append(np.std(energies) / (BOLTZMANN * 120.0 * run.degrees_of_freedom[0]))
    assert scatter[0] < 1e-3
    assert scatter[0] / scatter[1] == pytest.approx(4.0, rel=0.35)


def test_what_langevin_keeps_knows_of_momentum_that_is_removed() -> None:
    """A bath that gives to the centre of mass what is taken again would look like a drift."""
    kept = []
    for interval in (0, 1, 3):
        run = Simulation(
            argon(3),
            LennardJones(0.0104, 3.4, 5.5),
            LangevinMiddle(4.0, 120.0, 20.0),
            device="cpu",
            precision="double",
            seed=2,
            remove_momentum=interval,
        )
        before = float(run.observables().conserved_energy)
        run.run(60)
        kept.append(float(run.observables().conserved_energy) - before)
    # Of 60 steps the bath would else have given 60 x 3/2 kT (1 - a^2) = 0.14 eV.
    np.testing.assert_allclose(kept[1:], kept[0], atol=1e-9)


def oscillators(systems: int, positions: np.ndarray, velocities: np.ndarray) -> list[System]:
    parts = zip(np.split(positions, systems), np.split(velocities, systems), strict=True)
    return [System(numbers=np.full(len(x), 6), positions=x, velocities=v) for x, v in parts]


@pytest.mark.parametrize(
    ("make", "middle"),
    [
        (lambda dt: LangevinMiddle(dt, KELVIN, 5.0), True),
        (lambda dt: StochasticVelocityRescaling(dt, KELVIN, 50.0), True),
        (lambda dt: NoseHooverChains(dt, KELVIN, 50.0), False),
    ],
    ids=["langevin", "velocity rescaling", "nose-hoover"],
)
def test_oscillators_keep_the_distribution_of_their_discrete_solution(make, middle: bool) -> None:
    """At omega dt = 1, where the schemes differ by a third.

    Drift-kick-drift conserves m v^2 (1 - (omega dt)^2 / 4) + k x^2 in the middle of a drift, so
    there <x^2> is low by that factor, and <x^2> = kT/k at the end of the step. Kick-drift-kick
    conserves m v^2 + k x^2 (1 - (omega dt)^2 / 4), so with <v^2> = kT/m at the end of the
    step <x^2> is kT/k over that factor.
    """
    systems, atoms, stiffness = 1500, 5, 10.0
    mass = 12.011
    timestep = math.sqrt(mass / (stiffness * ACCELERATION))
    generator = np.random.default_rng(8)
    normal = generator.normal(size=(2, systems * atoms, 3))
    velocities = math.sqrt(THERMAL * ACCELERATION / mass) * normal[0]
    factor = 0.75 if middle else 1.0 / 0.75
    positions = math.sqrt(factor * THERMAL / stiffness) * normal[1]
    if middle:
        positions = positions + 0.5 * timestep * velocities
    wells = HarmonicWells(torch.zeros(systems * atoms, 3, dtype=torch.float64), stiffness)
    run = Simulation(
        oscillators(systems, positions, velocities),
        wells,
        make(timestep),
        device="cpu",
        chunk=50,
        maximum_temperature=1e5,
    )
    chain = run.integrator.tensors().get("chain.velocities")
    if chain is not None:
        # v_1 has the variance 1 / (N_f tau^2), the others 1 / tau^2.
        chain.copy_(torch.tensor(generator.normal(size=chain.shape)) / 50.0)
        chain[0] /= math.sqrt(3 * atoms)
    expected = THERMAL / stiffness * (1.0 if middle else factor)
    for steps in (0, 100):
        run.run(steps)
        squared = run.state.positions.square().numpy()
        error = expected * math.sqrt(2.0 / squared.size)
        assert abs(squared.mean() - expected) < 4 * error


@pytest.mark.parametrize(
    "make",
    [
        lambda dt: StochasticVelocityRescaling(dt, KELVIN, 1e15),
        lambda dt: NoseHooverChains(dt, KELVIN, 1e15),
    ],
    ids=["velocity rescaling", "nose-hoover"],
)
def test_a_thermostat_that_never_acts_leaves_the_discrete_oscillator(make) -> None:
    """x_n = x_0 cos(n theta), cos(theta) = 1 - (omega dt)^2 / 2, for every place on its path."""
    stiffness, timestep = 3.0, 4.0
    system = System(numbers=[6], positions=[[0.3, -0.1, 0.2]], velocities=[[1e-9, 0.0, 0.0]])
    wells = HarmonicWells(torch.zeros(1, 3, dtype=torch.float64), stiffness)
    run = Simulation(system, wells, make(timestep), device="cpu", chunk=1)
    omega2 = stiffness * ACCELERATION / float(system.masses[0])
    theta = math.acos(1.0 - 0.5 * omega2 * timestep**2)
    # Leapfrog takes its velocity to be that of half a step before.
    middle = isinstance(run.integrator, StochasticVelocityRescaling)
    shift = 0.5 * theta if middle else 0.0
    for step in range(1, 60):
        run.run(1)
        expected = system.positions * math.cos(step * theta + shift) / math.cos(shift)
        assert np.abs(run.state.positions.numpy() - expected).max() < 1e-6


def test_velocity_rescaling_leaves_momentum_at_rest_and_a_system_at_rest_alone() -> None:
    gas = [argon(1), argon(1).replace(velocities=np.zeros((4, 3)))]
    free = HarmonicWells(torch.zeros(8, 3, dtype=torch.float64), 0.0)
    run = Simulation(gas, free, StochasticVelocityRescaling(2.0, KELVIN), device="cpu")
    run.run(200)
    momentum = run.state.grouping.sum(run.state.masses[:, None] * run.state.velocities)
    assert float(momentum.abs().max()) < 1e-12
    assert torch.equal(run.state.velocities[4:], torch.zeros(4, 3, dtype=torch.float64))
    assert float(run.state.velocities[:4].abs().max()) > 0.0


def test_verlet_reports_the_total_energy_as_conserved() -> None:
    run = Simulation(
        argon(1), LennardJones(0.0104, 3.4, 2.8), VelocityVerlet(1.0), device="cpu", temperature=90
    )
    run.run(5)
    seen = run.observables()
    assert torch.equal(seen.conserved_energy, seen.potential_energy + seen.kinetic_energy)


class Line(Evaluator):
    """Three atoms in a line, held by springs between all pairs; an Evaluator without virial."""

    cutoffs = ()

    def evaluate_(self, state: State, lists: Sequence[NeighborList]) -> None:
        places = state.places().view(-1, 3, 3)
        forces, energy = torch.zeros_like(places), torch.zeros_like(state.energy)
        for first, second, stiffness, length in (
            (0, 1, 40, 1.16),
            (0, 2, 40, 1.16),
            (1, 2, 10, 2.5),
        ):
            vector = places[:, second] - places[:, first]
            distance = vector.norm(dim=-1, keepdim=True)
            pull = stiffness * (distance - length) * vector / distance
            forces[:, first] += pull
            forces[:, second] -= pull
            energy += 0.5 * stiffness * (distance[:, 0] - length).square()
        state.forces.copy_(forces.view(-1, 3))
        state.energy.copy_(energy)
        state.energies.zero_()
        state.virial.zero_()


@pytest.mark.statistical
@pytest.mark.parametrize("width", [0.0, 0.05])
def test_a_molecule_that_begins_on_a_line_has_the_temperature_of_its_bath(width: float) -> None:
    """Its stretch, which knows nothing of how degrees of freedom are counted."""
    system = System([6, 8, 8], np.array([[0.0, width, 0.0], [1.18, 0.0, 0.0], [-1.18, 0.0, 0.0]]))
    bath = StochasticVelocityRescaling(1.0, KELVIN, tau=30.0)
    run = Simulation([system] * 300, Line(), bath, device="cpu", precision="double", seed=5)
    run.run(600)
    kelvins = []
    for _ in range(60):
        run.run(20)
        places, velocities = (
            value.view(-1, 3, 3) for value in (run.state.positions, run.state.velocities)
        )
        axis = places[:, 1] - places[:, 2]
        axis = axis / axis.norm(dim=-1, keepdim=True)
        speed = ((velocities[:, 1] - velocities[:, 2]) * axis).sum(-1)
        squares = 0.5 * system.masses[1] * speed.square()
        kelvins.append(float(squares.mean()) * KINETIC_ENERGY / BOLTZMANN)
    assert np.mean(kelvins) == pytest.approx(KELVIN, abs=12.0)
