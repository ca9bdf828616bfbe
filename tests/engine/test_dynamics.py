"""Random numbers, integrators and ensembles against what statistical mechanics says."""

import math

import numpy as np
import pytest
import torch
from toys import HarmonicWells, LennardJones, argon, blocked_error

from mdgraph.engine import LangevinMiddle, Simulation, VelocityVerlet
from mdgraph.engine.kinetics import kinetic_energy
from mdgraph.engine.random import gaussians, philox
from mdgraph.engine.restart import load_restart_, save_restart
from mdgraph.engine.velocities import draw_velocities_
from mdgraph.errors import InputError, SimulationError
from mdgraph.state import State
from mdgraph.system import System
from mdgraph.units import ACCELERATION, BOLTZMANN


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (
            (0xFFFFFFFF,) * 4,
            (0xFFFFFFFF,) * 2,
            (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
        ),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_published_vectors(counter, key, expected) -> None:
    words = philox(
        tuple(torch.tensor(word) for word in counter), tuple(torch.tensor(word) for word in key)
    )
    assert tuple(int(word) for word in words) == expected


def test_gaussians_are_normal_and_independent() -> None:
    atom = torch.arange(20_000)
    step, replica = torch.arange(5)[:, None], torch.tensor(0)
    numbers = gaussians(torch.tensor(1), step, replica, atom, 0).numpy()
    flat = numbers.reshape(-1)
    count = len(flat)
    assert abs(flat.mean()) * math.sqrt(count) < 4
    assert abs((flat**2).mean() - 1) / math.sqrt(2 / count) < 4
    assert abs((flat**4).mean() - 3) / math.sqrt(96 / count) < 4
    columns = numbers.reshape(-1, 3)
    for first, second in ((0, 1), (0, 2), (1, 2)):
        assert abs((columns[:, first] * columns[:, second]).mean()) * math.sqrt(len(columns)) < 4
    successive = (numbers[1:] * numbers[:-1]).mean()
    assert abs(successive) * math.sqrt(numbers[1:].size) < 4


def test_random_numbers_do_not_depend_on_the_batch() -> None:
    small, large = argon(1), argon(2)
    batches = [State([small, other], seed=8) for other in (large, small)]
    for state in batches:
        draw_velocities_(state, 100.0)
    first, second = (state.velocities for state in batches)
    assert torch.equal(first[: len(small)], second[: len(small)])
    # Replicas of one system differ from each other, and from those of the next seed.
    assert not torch.equal(second[: len(small)], second[len(small) :])
    following = State([small], seed=9)
    draw_velocities_(following, 100.0)
    assert not torch.equal(second[len(small) :], following.velocities)


def molecule() -> System:
    positions = np.array([[0, 0, 0], [0, 0, 1.2], [1.1, 0.3, -0.5], [-0.9, 0.6, -0.6]])
    return System(numbers=np.array([6, 8, 1, 1]), positions=positions)


def test_drawn_velocities_have_no_momentum_and_an_isolated_molecule_no_spin() -> None:
    state = State([molecule(), argon(1)])
    draw_velocities_(state, 300.0, exact=True)
    masses, velocities = state.masses[:, None], state.velocities
    for part in (slice(0, 4), slice(4, None)):
        assert float((masses * velocities)[part].sum(0).abs().max()) < 1e-12
    arms = state.positions[:4] - (masses * state.positions)[:4].sum(0) / masses[:4].sum()
    spin = torch.linalg.cross(arms, (masses * velocities)[:4]).sum(0)
    assert float(spin.abs().max()) < 1e-10
    # exact: 3N - 6 for the molecule, 3N - 3 for the crystal
    wanted = 0.5 * BOLTZMANN * 300.0 * torch.tensor([6.0, 9.0], dtype=torch.float64)
    assert torch.allclose(kinetic_energy(state), wanted, rtol=1e-12)


@pytest.mark.parametrize("precision", ["mixed", "single", "double"])
@pytest.mark.parametrize("integrator", [VelocityVerlet(0.5), LangevinMiddle(0.5, 300.0)])
def test_an_exact_temperature_is_the_one_reported(precision: str, integrator) -> None:
    for seed in range(4):
        run = Simulation(
            molecule(),
            HarmonicWells(torch.tensor(molecule().positions), 1.0),
            integrator,
            device="cpu",
            precision=precision,
            temperature=300.0,
            exact_temperature=True,
            seed=seed,
        )
        assert float(run.observables().temperature) == pytest.approx(300.0, rel=1e-5)


def test_one_integrator_serves_several_simulations() -> None:
    def make(system: System, integrator: VelocityVerlet) -> Simulation:
        lennard_jones = LennardJones(0.0104, 3.4, 5.5)
        return Simulation(system, lennard_jones, integrator, device="cpu", temperature=80.0)

    shared = VelocityVerlet(4.0)
    run = make(argon(2), shared)
    make(argon(2).replace(masses=np.full(32, 200.0)), shared)
    alone = make(argon(2), VelocityVerlet(4.0))
    for one in (run, alone):
        one.run(5)
    assert torch.equal(run.state.positions, alone.state.positions)


def test_an_interrupted_chunk_leaves_no_half_step() -> None:
    class Interrupted(HarmonicWells):
        calls = 0

        def evaluate_(self, state, lists) -> None:
            self.calls += 1
            if self.calls == 17:
                raise KeyboardInterrupt
            super().evaluate_(state, lists)

    centres = torch.tensor(argon(1).positions)

    def make(wells: HarmonicWells) -> Simulation:
        return Simulation(argon(1), wells, LangevinMiddle(2.0, 300.0, 5.0), device="cpu")

    interrupted, whole = make(Interrupted(centres, 1.0)), make(HarmonicWells(centres, 1.0))
    with pytest.raises(KeyboardInterrupt):
        interrupted.run(40)
    assert interrupted.step == 10
    interrupted.run(30)
    whole.run(40)
    assert torch.equal(interrupted.state.positions, whole.state.positions)


def test_velocities_are_drawn_where_a_system_has_none() -> None:
    moving = argon(1).replace(velocities=np.full((4, 3), 0.001))
    run = Simulation(
        [moving, argon(1)],
        LennardJones(0.0104, 3.4, 2.8),
        VelocityVerlet(1.0),
        device="cpu",
        temperature=100.0,
    )
    assert torch.equal(run.state.velocities[:4], torch.full((4, 3), 0.001, dtype=torch.float64))
    assert float(run.state.velocities[4:].abs().max()) > 0


@pytest.mark.parametrize("change", ["cell", "pbc", "charge", "masses"])
def test_a_restart_file_of_another_system_is_refused(tmp_path, change: str) -> None:
    def make(system: System) -> Simulation:
        wells = HarmonicWells(torch.tensor(system.positions), 1.0)
        return Simulation(system, wells, VelocityVerlet(1.0), device="cpu")

    system = argon(1)
    save_restart(make(system), tmp_path / "restart.safetensors")
    changes = {
        "cell": 1.1 * system.cell,
        "pbc": np.array([True, True, False]),
        "charge": 1.0,
        "masses": 2 * system.masses,
    }
    other = make(system.replace(**{change: changes[change]}))
    with pytest.raises(InputError, match=f"another system: its {change} differ"):
        load_restart_(other, tmp_path / "restart.safetensors")


@pytest.mark.parametrize(
    ("system", "integrator", "count"),
    [
        (molecule(), VelocityVerlet(0.5), 6),
        (molecule(), LangevinMiddle(0.5, 300.0), 12),
        (argon(1), VelocityVerlet(0.5), 9),
        (System(numbers=[8, 6, 8], positions=[[0, 0, -1.2], [0, 0, 0], [0, 0, 1.2]]), None, 3),
        (System(numbers=[8, 6], positions=[[0, 0, -1.2], [0, 0, 0]]), None, 1),
        (System(numbers=[8], positions=[[0.0, 0.0, 0.0]]), None, 0),
    ],
)
def test_degrees_of_freedom_are_counted(system, integrator, count) -> None:
    wells = HarmonicWells(torch.tensor(system.positions), 1.0)
    run = Simulation(
        system, wells, integrator or VelocityVerlet(0.5), device="cpu", temperature=300.0
    )
    assert run.degrees_of_freedom == (count,)
    assert run.degrees_text.endswith(f"= {count}")


def test_verlet_follows_the_discrete_solution_of_an_oscillator() -> None:
    """x_n = cos(n theta) with cos(theta) = 1 - (omega dt)^2 / 2, to rounding."""
    stiffness, mass, timestep = 4.0, 2.0, 1.5
    system = System(numbers=[1], positions=[[1.0, 0, 0]], masses=[mass], velocities=[[0.0, 0, 0]])
    wells = HarmonicWells(torch.zeros(1, 3, dtype=torch.float64), stiffness)
    run = Simulation(system, wells, VelocityVerlet(timestep), device="cpu")
    theta = math.acos(1 - stiffness / mass * ACCELERATION * timestep**2 / 2)
    for steps in range(50, 501, 50):
        run.run(50)
        assert float(run.state.positions[0, 0]) == pytest.approx(math.cos(steps * theta), abs=1e-9)


def test_verlet_is_of_second_order_and_reversible() -> None:
    deviations = []
    for timestep, steps in ((4.0, 125), (2.0, 250)):
        run = Simulation(
            argon(2),
            LennardJones(0.0104, 3.4, 5.5),
            VelocityVerlet(timestep),
            device="cpu",
            precision="double",
            temperature=120.0,
            chunk=1,
        )
        energies = []
        start = run.state.positions.clone()
        for _ in range(steps):
            run.run(1)
            seen = run.observables()
            energies.append(float(seen.potential_energy + seen.kinetic_energy))
        deviations.append(np.std(energies))
        run.state.velocities.neg_()
        run.run(steps)
        assert float((run.state.positions - start).abs().max()) < 1e-8
    assert deviations[0] / deviations[1] == pytest.approx(4.0, abs=0.3)


def test_momentum_is_conserved() -> None:
    run = Simulation(
        argon(2), LennardJones(0.0104, 3.4, 5.5), VelocityVerlet(4.0), device="cpu", temperature=120
    )
    run.run(200)
    momentum = (run.state.masses[:, None] * run.state.velocities).sum(0)
    assert float(momentum.abs().max()) < 1e-10


def test_langevin_samples_the_harmonic_oscillator() -> None:
    """<x^2> = kT/k and <v^2> = kT/m for 900 oscillators, each a sample of its own."""
    stiffness, kelvin, timestep = 2.0, 300.0, 2.0
    count = 900
    centres = np.arange(count)[:, None] * np.array([[3.0, 0, 0]])
    system = System(numbers=np.full(count, 6), positions=centres)
    wells = HarmonicWells(torch.tensor(centres), stiffness)
    integrator = LangevinMiddle(timestep, kelvin, friction=20.0)
    run = Simulation(system, wells, integrator, device="cpu", seed=3, chunk=50)
    run.run(500)
    positions, velocities = [], []
    for _ in range(140):
        run.run(25)
        moved = run.state.positions.numpy() - centres
        positions.append((moved**2).mean())
        velocities.append((run.state.velocities.numpy() ** 2).mean())
    expected = BOLTZMANN * kelvin / stiffness
    mean = np.mean(positions)
    assert abs(mean - expected) / blocked_error(np.array(positions)) < 4
    assert mean == pytest.approx(expected, rel=0.02)
    expected = BOLTZMANN * kelvin * ACCELERATION / float(system.masses[0])
    mean = np.mean(velocities)
    assert abs(mean - expected) / blocked_error(np.array(velocities)) < 4
    assert mean == pytest.approx(expected, rel=0.02)


def test_langevin_diffuses_an_ideal_gas() -> None:
    """Mean square displacement 6 D t with D = kT / (m gamma) once t >> 1/gamma."""
    count, kelvin, friction, timestep = 2000, 300.0, 50.0, 2.0
    positions = np.arange(count)[:, None] * np.array([[2.0, 0, 0]])
    system = System(numbers=np.full(count, 18), positions=positions)
    free = HarmonicWells(torch.tensor(positions), 0.0)
    integrator = LangevinMiddle(timestep, kelvin, friction)
    run = Simulation(system, free, integrator, device="cpu", seed=11)
    run.run(1000)
    time = 1000 * timestep
    rate = friction * 1e-3
    diffusion = BOLTZMANN * kelvin * ACCELERATION / (float(system.masses[0]) * rate)
    expected = 6 * diffusion * (time - (1 - math.exp(-rate * time)) / rate)
    squared = ((run.state.positions.numpy() - positions) ** 2).sum(1)
    error = squared.std() / math.sqrt(count)
    assert abs(squared.mean() - expected) / error < 4


@pytest.mark.statistical
def test_langevin_keeps_liquid_argon_at_its_temperature() -> None:
    run = Simulation(
        argon(2),
        LennardJones(0.0104, 3.4, 5.5),
        LangevinMiddle(4.0, 120.0, 5.0),
        device="cpu",
        seed=2,
        chunk=10,
    )
    run.run(300)
    kelvins = []
    for _ in range(250):
        run.run(10)
        kelvins.append(float(run.observables().temperature))
    error = blocked_error(np.array(kelvins))
    assert abs(np.mean(kelvins) - 120.0) / error < 4
    assert error < 5.0


def test_chunks_and_reports_do_not_change_a_run() -> None:
    class Look:
        interval = 7

        def __init__(self) -> None:
            self.steps: list[int] = []

        def report(self, simulation: Simulation) -> None:
            self.steps.append(simulation.step)
            simulation.observables()

    runs = []
    for chunk in (1, 13, 100):
        run = Simulation(
            argon(2),
            LennardJones(0.0104, 3.4, 5.5),
            LangevinMiddle(4.0, 120.0),
            device="cpu",
            chunk=chunk,
        )
        look = Look()
        run.reporters.append(look)
        run.run(40)
        assert look.steps == [7, 14, 21, 28, 35]
        runs.append(run.state.positions)
    assert torch.equal(runs[0], runs[1])
    assert torch.equal(runs[0], runs[2])


def test_overflow_at_any_step_leaves_the_same_bits() -> None:
    def make() -> Simulation:
        return Simulation(
            argon(2),
            LennardJones(0.0104, 3.4, 7.5),
            LangevinMiddle(4.0, 120.0),
            device="cpu",
            temperature=120.0,
            skin=0.5,
        )

    ample = make()
    ample.run(60)
    for step in (1, 17, 44):
        tight = make()
        tight.run(step)
        rows = tight.calculation.lists[0]
        rows._allocate(rows.block, *rows.reference())
        rows.sticky()[0].zero_()
        small = rows.capacity
        tight.run(60 - step)
        assert rows.capacity > small
        for name, value in ample.state.tensors().items():
            assert torch.equal(value, tight.state.tensors()[name]), name


def test_a_runaway_names_step_and_atoms_and_keeps_the_last_good_state() -> None:
    run = Simulation(
        argon(2), LennardJones(0.0104, 3.4, 5.5), VelocityVerlet(4.0), device="cpu", temperature=50
    )
    run.run(10)
    run.state.positions[5] = run.state.positions[4] + torch.tensor([0.9, 0.0, 0.0])
    with pytest.raises(SimulationError, match="temperature ran beyond") as caught:
        run.run(50)
    assert caught.value.step == run.step + 1
    assert {4, 5} & set(caught.value.atoms)
    assert torch.isfinite(run.state.positions).all()
    assert float(run.observables().temperature) < run.maximum_temperature


def test_forces_that_are_not_finite_stop_the_run() -> None:
    class Broken(HarmonicWells):
        def evaluate_(self, state, lists) -> None:
            super().evaluate_(state, lists)
            state.forces[2] = torch.where(state.step == 12, torch.nan, state.forces[2])

    system = argon(1)
    run = Simulation(
        system, Broken(torch.tensor(system.positions), 1.0), VelocityVerlet(1.0), device="cpu"
    )
    with pytest.raises(SimulationError, match="atoms 2 are not finite") as caught:
        run.run(30)
    assert (caught.value.step, caught.value.atoms, run.step) == (13, (2,), 12)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: VelocityVerlet(-1.0), "time step is -1"),
        (lambda: VelocityVerlet(math.nan), "timestep is nan"),
        (lambda: LangevinMiddle(0.5, -3.0), "temperature is -3"),
        (lambda: LangevinMiddle(0.5, 300.0, 0.0), "friction is 0"),
    ],
)
def test_impossible_settings_are_refused(make, words) -> None:
    with pytest.raises(InputError, match=words):
        make()


def test_negative_steps_are_refused() -> None:
    system = argon(1)
    run = Simulation(
        system, HarmonicWells(torch.tensor(system.positions), 1.0), VelocityVerlet(1), device="cpu"
    )
    with pytest.raises(InputError, match="is -5 steps"):
        run.run(-5)
