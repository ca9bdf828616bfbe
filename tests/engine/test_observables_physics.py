"""What steps record, against exact results: series, gases, oscillators and a liquid."""

import itertools

import numpy as np
import pytest
import torch
from toys import HarmonicWells, LennardJones, argon

from mdgraph.engine import (
    LangevinMiddle,
    MeanSquaredDisplacement,
    RadialDistributions,
    Simulation,
    VelocityAutocorrelation,
    VelocityVerlet,
)
from mdgraph.engine.observables.averages import BlockAverages, Blocked
from mdgraph.system import System
from mdgraph.units import ACCELERATION

PROCESSES = 400


def blocked(memory: float, samples: int) -> Blocked:
    """Independent series x' = memory x + sqrt(1 - memory^2) noise, far from zero."""
    generator = torch.Generator().manual_seed(11)
    noise = torch.randn(samples, PROCESSES, generator=generator, dtype=torch.float64)
    averages = BlockAverages((PROCESSES,), torch.device("cpu"))
    count, due = torch.zeros((), dtype=torch.int64), torch.tensor(True)
    value = noise[0]
    for one in noise:
        value = memory * value + (1.0 - memory**2) ** 0.5 * one
        averages.add_(value - 3e4, count, due)
        averages.add_(one * 1e9, count + 1, ~due)
        count += 1
    return averages.read(samples)


def variance_of_mean(memory: float, length: int) -> float:
    """Of so many successive values of unit variance."""
    lag = np.arange(1, length)
    return float((1.0 + 2.0 * ((1.0 - lag / length) * memory**lag).sum()) / length)


@pytest.mark.parametrize(("memory", "length"), [(0.0, 32), (0.8, 128)])
def test_blocked_errors_of_an_autoregressive_process(memory, length) -> None:
    """Each level on average, and the error that is chosen, which keeps 1 / length of memory."""
    samples = 4096
    found = blocked(memory, samples)
    whole = variance_of_mean(memory, samples)
    for level, size in enumerate(found.length.tolist()):
        count = samples // size
        expected = (variance_of_mean(memory, size) - whole) / (count - 1)
        squared = found.errors[level] ** 2
        error = squared.std() / PROCESSES**0.5
        assert abs(squared.mean() - expected) < 4 * error, size
        if count >= 64:
            spread = found.errors[level].std()
            assert found.spreads[level].mean() == pytest.approx(spread, rel=0.2 + memory / size)
    assert found.length[int(np.median(found.level))] == length
    assert (found.error**2).mean() == pytest.approx(whole, rel=0.08)
    scores = (found.mean + 3e4) / whole**0.5
    assert abs((scores**2).mean() - 1.0) < 4 * (2.0 / PROCESSES) ** 0.5
    assert 0.9 < (np.abs(found.mean + 3e4) < 2 * found.error).mean() < 0.99
    assert found.variance.mean() == pytest.approx(1.0 - whole, rel=0.01)


class Gas(HarmonicWells):
    """No forces, and yet a neighbor list."""

    cutoffs = (6.0,)


@pytest.mark.statistical
def test_an_ideal_gas_has_no_structure() -> None:
    """Beyond half of the cell too, for all pairs of elements, and in skewed cells."""
    generator = np.random.default_rng(8)
    cell = np.array([[9.0, 0.0, 0.0], [2.0, 9.0, 0.0], [-1.0, 2.0, 10.0]])
    systems = [
        System(
            numbers=np.array([10] * light + [18] * (20 - light)),
            positions=generator.random((20, 3)) @ cell,
            cell=cell,
            pbc=np.full(3, True),
        )
        for light in (8, 15)
    ]
    record = RadialDistributions(bins=30)
    run = Simulation(
        systems,
        Gas(torch.zeros(40, 3, dtype=torch.float64), 0.0),
        VelocityVerlet(1.0),
        device="cpu",
        observe=[record],
    )
    for _ in range(1500):
        drawn = torch.from_numpy(generator.random((40, 3)) @ cell)
        run.state.positions.copy_(drawn)
        run.calculation.compute()
        run.state.step += 1
        record.record_()
    found = record.result()
    # A pair is counted from both its ends.
    error = found.value / np.sqrt(0.5 * found.counts.clip(min=1))
    scores = ((found.value - 1.0) / error)[..., 2:]
    assert scores.size == 168
    assert np.abs(scores).max() < 4.5
    assert abs((scores**2).mean() - 1.0) < 4 * (2.0 / scores.size) ** 0.5
    assert abs(np.average(found.value, weights=found.counts) - 1.0) < 0.01


def test_an_atom_is_no_neighbor_of_its_own_images() -> None:
    """Three atoms whose cell is shorter than the range."""
    positions = np.array([[0.0, 0.0, 0.0], [1.7, 0.3, 0.1], [0.4, 2.2, 3.1]])
    system = System(
        numbers=np.array([10, 10, 18]),
        positions=positions,
        cell=np.eye(3) * 4.0,
        pbc=np.full(3, True),
    )
    gas = Gas(torch.zeros(3, 3, dtype=torch.float64), 0.0)
    record = RadialDistributions(bins=24)
    run = Simulation(system, gas, VelocityVerlet(1.0), device="cpu", observe=[record])
    run.run(1)
    images = 4.0 * np.array(list(itertools.product(range(-3, 4), repeat=3)))
    found, edges = record.result(), np.linspace(0.0, 6.0, 25)
    for place, pairs in enumerate([[(0, 1)], [(0, 2), (1, 2)], []]):
        counts = np.zeros(24, dtype=int)
        for one, other in pairs:
            distance = np.linalg.norm(positions[other] - positions[one] + images, axis=-1)
            counts += 2 * np.histogram(distance, edges)[0]
        np.testing.assert_array_equal(found.counts[0, place], counts)


def test_oscillators_swing_with_the_period_of_the_discrete_solution() -> None:
    """x_n = a cos(n theta) + b sin(n theta) with b = v dt / sin(theta)."""
    steps, window, period, stiffness, mass = 1600, 60, 40, 0.5, 20.0
    theta = 2.0 * np.pi / period
    timestep = np.sqrt(2.0 * (1.0 - np.cos(theta)) * mass / (stiffness * ACCELERATION))
    generator = np.random.default_rng(3)
    centres = generator.normal(scale=20.0, size=(12, 3))
    drawn, velocities = (generator.normal(scale=scale, size=(12, 3)) for scale in (0.1, 0.01))
    system = System(
        numbers=np.full(12, 10),
        masses=np.full(12, mass),
        positions=centres + drawn,
        velocities=velocities,
    )
    run = Simulation(
        system,
        HarmonicWells(torch.tensor(centres), stiffness),
        VelocityVerlet(float(timestep)),
        device="cpu",
        chunk=100,
        observe=[MeanSquaredDisplacement(window), VelocityAutocorrelation(window, spacing=4)],
    )
    run.run(steps)
    displacement, velocity = (one.result() for one in run.online)
    cosine = np.cos(theta * np.arange(window))
    relative = [part - part.mean(0) for part in (drawn, velocities)]
    amplitude = relative[0] ** 2 + (relative[1] * timestep / np.sin(theta)) ** 2
    # Phases over a window that is no whole period cancel but for 1 / (n sin(theta)).
    rest = 1.0 / (np.sin(theta) * (steps - window))
    expected = amplitude.sum(-1).mean() * (1.0 - cosine)
    np.testing.assert_allclose(displacement.value[0, 0], expected, atol=2 * rest * expected.max())
    start = velocity.value[0, 0, 0]
    assert start == pytest.approx(
        0.5 * amplitude.sum(-1).mean() * (np.sin(theta) / timestep) ** 2, rel=rest
    )
    np.testing.assert_allclose(velocity.value[0, 0] / start, cosine, atol=4 * rest)
    assert displacement.lag[period] == pytest.approx(period * timestep)


def test_a_drift_is_no_diffusion() -> None:
    """An ideal gas whose centre of mass flies; what is left is ballistic."""
    generator = np.random.default_rng(4)
    velocities = generator.normal(scale=1e-3, size=(10, 3)) + 0.01
    masses = np.where(np.arange(10) < 4, 10.0, 30.0)
    system = System(
        numbers=np.full(10, 10),
        positions=generator.normal(scale=10.0, size=(10, 3)),
        masses=masses,
        velocities=velocities,
    )
    free = HarmonicWells(torch.tensor(system.positions), 0.0)
    for fixed in ((), (0,)):
        run = Simulation(
            system,
            free,
            VelocityVerlet(2.0),
            device="cpu",
            fixed=fixed,
            observe=[MeanSquaredDisplacement(20), VelocityAutocorrelation(20)],
        )
        run.run(50)
        left = velocities.copy()
        if fixed:
            left[0] = 0.0  # and nothing is taken off: the fixed atom says what is at rest
        else:
            left -= (masses[:, None] * left).sum(0) / masses.sum()
        squared = (left**2).sum(-1).mean()
        displacement, velocity = (one.result() for one in run.online)
        np.testing.assert_allclose(
            displacement.value[0, 0], squared * displacement.lag**2, rtol=1e-8, atol=1e-12
        )
        np.testing.assert_allclose(velocity.value[0, 0], squared, rtol=1e-10)


@pytest.mark.statistical
def test_einstein_and_green_and_kubo_agree_on_liquid_argon() -> None:
    replicas, every = 8, 2
    run = Simulation(
        [argon(2, seed) for seed in range(replicas)],
        LennardJones(0.0104, 3.4, 5.0),
        LangevinMiddle(10.0, 240.0, 5.0),
        device="cpu",
        seed=6,
        chunk=50,
        skin=0.6,
    )
    run.run(150)
    run.set(temperature=120.0)
    run.run(150)
    systems = [
        argon(2).replace(positions=positions.numpy(), velocities=velocities.numpy())
        for positions, velocities in zip(
            run.state.positions.split(32), run.state.velocities.split(32), strict=True
        )
    ]
    observe = [MeanSquaredDisplacement(60, every=every), VelocityAutocorrelation(60, every=every)]
    run = Simulation(
        systems,
        LennardJones(0.0104, 3.4, 5.0),
        VelocityVerlet(10.0),
        device="cpu",
        chunk=50,
        skin=0.6,
        observe=observe,
    )
    run.run(700)
    einstein, green_kubo = (one.result().diffusion(600.0, 1100.0)[:, 0] for one in observe)
    means = [values.mean() for values in (einstein, green_kubo)]
    errors = [values.std(ddof=1) / replicas**0.5 for values in (einstein, green_kubo)]
    assert abs(means[0] - means[1]) < 2 * np.hypot(*errors)
    assert max(errors) < 0.2 * min(means)
    # At 94 K, with many atoms: 2.4e-4 (DOI 10.1103/PhysRev.136.A405).
    assert 1.2e-4 < means[0] < 5e-4
