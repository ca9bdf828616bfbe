"""Replica exchange: ensembles, acceptance, ranks, restarts and refusals."""

import json
import math
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import special, stats
from toys import QuarticWells

from mdgraph.engine import (
    Integrator,
    LangevinMiddle,
    MartynaTobiasKlein,
    NoseHooverChains,
    Ramp,
    Simulation,
    StochasticVelocityRescaling,
    VelocityVerlet,
)
from mdgraph.engine.kinetics import kinetic_energy
from mdgraph.engine.replicas import (
    ExchangeRecord,
    ReplicaExchange,
    exchange_states,
    replica_simulation,
)
from mdgraph.engine.replicas.ranks import ALONE, Ranks
from mdgraph.engine.restart import load_restart_, save_restart
from mdgraph.errors import InputError, LostRankError
from mdgraph.io.log import LogWriter
from mdgraph.system import System
from mdgraph.units import ACCELERATION, BOLTZMANN

Bath = Callable[..., Integrator]

BATHS: dict[str, Bath] = {
    "langevin": lambda kelvin: LangevinMiddle(1.0, kelvin, 20.0),
    "velocity rescaling": lambda kelvin: StochasticVelocityRescaling(1.0, kelvin, 30.0),
    "nose-hoover": lambda kelvin: NoseHooverChains(1.0, kelvin, 30.0),
}


def ladder(replicas: int, hottest: float = 500.0) -> list[float]:
    return np.geomspace(250.0, hottest, replicas).tolist()


def molecules(replicas: int) -> list[System]:
    """Two hydrogens and two oxygens, at random places and with the velocities of a gas."""
    generator = np.random.default_rng(1)
    numbers = np.array([1, 8, 1, 8])
    width = np.sqrt(BOLTZMANN * ACCELERATION * 300.0 / np.array([1.0, 16.0, 1.0, 16.0]))[:, None]
    # Their momentum, which wells do not conserve, makes for 12 degrees of freedom.
    return [
        System(numbers=numbers, positions=0.15 * x, velocities=width * v)
        for x, v in generator.normal(size=(replicas, 2, 4, 3))
    ]


def replicas_of(bath: Bath, count: int, ranks: Ranks = ALONE, **options: Any) -> Simulation:
    wells = QuarticWells(0.02, 0.6)
    options = {"seed": 5, "device": "cpu", "chunk": 100} | options
    return replica_simulation(molecules(count), wells, bath(ladder(count)), ranks, **options)


def exchanging(simulation: Simulation, interval: int, *more: Any) -> ReplicaExchange:
    exchange = ReplicaExchange(simulation, interval, *more)
    simulation.reporters.append(exchange)
    return exchange


# Decisions


def test_exchanges_leave_every_temperature_its_ensemble() -> None:
    """Oscillators that forget slowly, so that replicas carry their energies along the ladder."""
    replicas, modes, rounds, keeps = 6, 8, 3000, 0.5
    kelvins = torch.tensor(ladder(replicas, 400.0), dtype=torch.float64)
    thermal = BOLTZMANN * kelvins.numpy()
    generator = np.random.default_rng(2)
    states = torch.arange(replicas)
    places = generator.normal(size=(replicas, modes)) * np.sqrt(thermal[:, None])
    energies = np.zeros((rounds, replicas))
    record = ExchangeRecord(replicas, 1)
    record.begin(states.tolist())
    for step in range(rounds):
        width = np.sqrt((1.0 - keeps**2) * thermal[states.numpy()])[:, None]
        places = keeps * places + width * generator.normal(size=places.shape)
        energy = 0.5 * (places**2).sum(1)
        states = exchange_states(states, torch.tensor(energy), kelvins, 3, step, step)
        record.add(step, states.tolist())
        energies[step, states.numpy()] = energy / thermal[states.numpy()]
    for place in range(replicas):
        blocks = energies[:, place].reshape(60, -1)
        for power, exact in ((1, modes / 2), (2, modes / 2 * (modes / 2 + 1))):
            means = (blocks**power).mean(1)
            assert abs(means.mean() - exact) < 4 * means.std(ddof=1) / math.sqrt(60)
    assert min(record.round_trips) > 10
    assert sum(record.attempted) == rounds * 5 / 2


@pytest.mark.parametrize("modes", [2, 12, 60])
def test_acceptance_is_that_of_harmonic_systems(modes: int) -> None:
    """Twice the chance that the colder of two has the larger energy."""
    kelvins = torch.tensor([300.0, 390.0], dtype=torch.float64)
    generator = np.random.default_rng(modes)
    rounds = 1000
    energies = generator.gamma(modes / 2, BOLTZMANN * kelvins.numpy(), size=(rounds, 2))
    states = torch.arange(2)
    accepted = sum(
        not torch.equal(states, exchange_states(states, torch.tensor(pair), kelvins, 1, step, step))
        for step, pair in enumerate(energies)
    )
    theory = 2.0 * special.betainc(modes / 2, modes / 2, 300.0 / 690.0)
    error = math.sqrt(theory * (1.0 - theory) / rounds)
    assert abs(accepted / rounds - theory) < 4 * error


def test_pairs_alternate_and_do_not_share_random_numbers() -> None:
    kelvins = torch.tensor(ladder(5), dtype=torch.float64)
    # Equal energies are always exchanged, so every pair that is tried is seen.
    even = exchange_states(torch.arange(5), torch.zeros(5), kelvins, 0, 10, 0)
    odd = exchange_states(torch.arange(5), torch.zeros(5), kelvins, 0, 10, 1)
    assert even.tolist() == [1, 0, 3, 2, 4]
    assert odd.tolist() == [0, 2, 1, 4, 3]
    # Chances of a half: of pairs, of steps and of seeds alike, which must be independent.
    count = 40
    kelvins = torch.tensor([300.0 + 5.0 * place for place in range(count)], dtype=torch.float64)
    beta = 1.0 / (BOLTZMANN * kelvins)
    energies = torch.zeros(count, dtype=torch.float64)
    for low in range(0, count, 2):
        energies[low + 1] = energies[low] + math.log(2.0) / (beta[low] - beta[low + 1])
    chosen = np.array(
        [
            (exchange_states(torch.arange(count), energies, kelvins, seed, step, 0)[::2]).tolist()
            for seed in (0, 1)
            for step in range(100)
        ]
    ).reshape(2, 100, count // 2) - np.arange(0, count, 2)
    signs = 2.0 * chosen - 1.0
    for first, second in (
        (signs[0], signs[1]),
        (signs[:, 1:], signs[:, :-1]),
        (signs[:, :, 1:], signs[:, :, :-1]),
        (signs, np.ones_like(signs)),
    ):
        assert abs((first * second).sum()) < 4 * math.sqrt(first.size)


def test_a_record_counts_attempts_and_round_trips() -> None:
    record = ExchangeRecord(3, 10)
    record.begin([0, 1, 2])
    for step, states in ((10, [0, 2, 1]), (20, [1, 2, 0]), (30, [2, 1, 0]), (40, [2, 0, 1])):
        record.add(step, states)
    assert (record.attempted, record.accepted) == ([2, 2], [2, 2])
    assert record.round_trips == [0, 0, 0]
    for step, states in ((50, [1, 0, 2]), (60, [0, 1, 2]), (70, [0, 1, 2])):
        record.add(step, states)
    assert (record.attempted, record.accepted) == ([3, 4], [3, 3])
    assert record.round_trips == [1, 0, 0]
    assert record.rates() == [1.0, 0.75]


# Dynamics


@pytest.mark.parametrize(
    "name",
    [
        "langevin",
        pytest.param("velocity rescaling", marks=pytest.mark.statistical),
        pytest.param("nose-hoover", marks=pytest.mark.statistical),
    ],
)
def test_dynamics_sample_every_temperature(name: str) -> None:
    """Energies of quartic wells, Gamma(3N/4), and kinetic energies, chi-squared."""
    count, rounds = 24, 220
    simulation = replicas_of(BATHS[name], count)
    exchange = exchanging(simulation, 15)
    seen = np.zeros((rounds, 2, count))

    class Look:
        interval = 15

        def report(self, now: Simulation) -> None:
            thermal = BOLTZMANN * torch.tensor(exchange.temperatures)[exchange.states]
            values = torch.stack([now.state.energy, kinetic_energy(now.state)]) / thermal
            seen[now.step // 15 - 1, :, exchange.states.numpy()] = values.T.numpy()

    simulation.reporters.append(Look())
    simulation.run(15 * rounds)
    settled = seen[20:].reshape(20, -1, 2, count)
    degrees = np.array(simulation.degrees_of_freedom)
    assert len(set(degrees.tolist())) == 1
    for quantity, shape in ((0, 3.0), (1, degrees[0] / 2.0)):
        for half in (slice(0, count // 2), slice(count // 2, count)):
            means = settled[:, :, quantity, half].mean((1, 2))
            error = means.std(ddof=1) / math.sqrt(len(means))
            # Few blocks tell their own error roughly, so Student's t stands for four sigma.
            assert abs(means.mean() - shape) < stats.t.ppf(1.0 - 3.2e-5, 19) * error
    assert min(exchange.record.rates()) > 0.8
    assert max(exchange.states.tolist()) == count - 1


@pytest.mark.parametrize("name", BATHS)
def test_velocities_follow_the_temperature_and_nothing_else_moves(name: str) -> None:
    simulation = replicas_of(BATHS[name], 6)
    exchange = ReplicaExchange(simulation, 4)
    simulation.run(4)
    before = simulation.snapshot()
    states = exchange.states.clone()
    exchange.report(simulation)
    assert not torch.equal(states, exchange.states)
    after = simulation.snapshot()
    kelvins = torch.tensor(exchange.temperatures, dtype=torch.float64)
    factor = torch.sqrt(kelvins[exchange.states] / kelvins[states]).repeat_interleave(4)
    expected = before["state"]["velocities"] * factor[:, None]
    assert torch.equal(after["state"]["velocities"], expected)
    for part in ("state", "integrator"):
        for key, value in before[part].items():
            if key not in ("velocities", "schedule.temperature"):
                assert torch.equal(after[part][key], value), key
    bath = simulation.integrator.values()["temperature"]
    assert torch.equal(bath, kelvins[exchange.states])


@pytest.mark.parametrize("name", BATHS)
def test_a_restart_goes_on_with_the_same_bits(name: str, tmp_path: Path) -> None:
    whole = replicas_of(BATHS[name], 5)
    columns = ["step", *(f"replica_{number}" for number in range(5))]
    with LogWriter.create(tmp_path / "whole.csv", columns) as log:
        log.append(dict.fromkeys(columns, 0) | {f"replica_{n}": n for n in range(5)})
        exchange = exchanging(whole, 10, ALONE, log)
        whole.run(60)
        save_restart(whole, tmp_path / "restart.safetensors")
        whole.run(47)
    again = replicas_of(BATHS[name], 5)
    load_restart_(again, tmp_path / "restart.safetensors")
    continued = exchanging(again, 10)
    assert not torch.equal(continued.states, torch.arange(5))
    again.run(47)
    assert torch.equal(continued.states, exchange.states)
    for key, value in whole.state.tensors().items():
        assert torch.equal(again.state.tensors()[key], value), key
    read = ExchangeRecord.read(tmp_path / "whole.csv", 10)
    assert vars(read) == vars(exchange.record)


# Ranks


def _rank(number: int, count: int, port: int, folder: str, dies: int) -> None:
    """A rank of five replicas that writes what it came to."""
    from torch import distributed

    distributed.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=number, world_size=count)
    ranks = Ranks(number, count, number)
    simulation = replicas_of(BATHS["langevin"], 5, ranks)
    exchange = exchanging(simulation, 10, ranks)
    said, out = "", Path(folder) / str(number)
    try:
        simulation.run(40 if dies == number else 100)
        if dies == number:
            return
        if number:
            exchange.stop()
        simulation.run(100)
    except LostRankError as error:
        said = str(error)
    result = {name: value.tolist() for name, value in simulation.state.tensors().items()}
    report = {"step": simulation.step, "said": said, "states": exchange.states.tolist()}
    out.write_text(json.dumps(report | {"velocities": result["velocities"]}), encoding="utf-8")


def run_ranks(processes: Any, folder: Path, dies: int = -1) -> dict[int, dict[str, Any]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    running = [
        processes.Process(target=_rank, args=(number, 2, port, str(folder), dies))
        for number in (0, 1)
    ]
    for process in running:
        process.start()
    for process in running:
        process.join(60)
        assert process.exitcode == 0
    return {int(path.name): json.loads(path.read_text()) for path in folder.iterdir()}


def test_two_ranks_are_one_process(processes: Any, tmp_path: Path) -> None:
    one = replicas_of(BATHS["langevin"], 5)
    exchange = exchanging(one, 10)
    one.run(110)
    two = run_ranks(processes, tmp_path)
    assert len(set(exchange.record.accepted)) > 1
    # One of them asked to stop after 100 steps, and both did at the exchange that followed.
    assert [two[rank]["step"] for rank in (0, 1)] == [110, 110]
    for rank in (0, 1):
        assert two[rank]["states"] == exchange.states.tolist()
    assert two[0]["velocities"] + two[1]["velocities"] == one.state.velocities.tolist()


def test_a_signal_to_one_rank_ends_all_at_the_next_exchange() -> None:
    """Or one rank would leave where the others go on."""

    class Late(Ranks):
        def gather(self, own: torch.Tensor, counts: Any) -> torch.Tensor:
            if simulation.step == 20:
                exchange.stop(15)
            return own

    simulation = replicas_of(BATHS["langevin"], 5)
    exchange = exchanging(simulation, 10, Late())
    simulation.run(100)
    assert (simulation.step, exchange.leaving) == (30, 15)


def test_a_lost_rank_ends_the_others_with_one_sentence(processes: Any, tmp_path: Path) -> None:
    left = run_ranks(processes, tmp_path, dies=1)
    assert list(left) == [0]
    assert left[0]["step"] == 50
    assert "Rank 0 of 2 lost another one" in left[0]["said"]


@pytest.mark.parametrize("rank", [None, "first"])
def test_variables_of_no_torchrun_are_refused(
    rank: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("RANK", raising=False)
    if rank is not None:
        monkeypatch.setenv("RANK", rank)
    with pytest.raises(InputError, match=f"{rank}.*start them with torchrun"):
        Ranks.join()


def test_replicas_are_shared_evenly() -> None:
    assert [len(share) for share in Ranks(0, 3).shares(8)] == [2, 3, 3]
    assert [*Ranks(2, 3).share(8)] == [5, 6, 7]
    with pytest.raises(InputError, match="2 replicas for 3 ranks"):
        Ranks(0, 3).share(2)


# Faults


@pytest.mark.parametrize(
    ("integrator", "said"),
    [
        (VelocityVerlet(1.0), "has no bath"),
        (MartynaTobiasKlein(1.0, [300.0, 310.0], 0.0), "varies the cell"),
        (LangevinMiddle(1.0, 300.0), "different temperatures"),
        (LangevinMiddle(1.0, [300.0, 0.0]), "above 0 K"),
        (LangevinMiddle(1.0, Ramp([300.0, 310.0], 320.0, 10)), "cannot be ramps"),
    ],
)
def test_ensembles_that_cannot_exchange_are_refused(integrator: Integrator, said: str) -> None:
    boxed = [one.replace(cell=5.0 * np.eye(3), pbc=True) for one in molecules(2)]
    simulation = Simulation(boxed, QuarticWells(0.02, 0.6), integrator, device="cpu")
    with pytest.raises(InputError, match=said):
        ReplicaExchange(simulation, 10)


def test_different_systems_are_refused() -> None:
    first, second = molecules(2)
    other = System(numbers=np.array([8, 8, 1, 1]), positions=second.positions)
    bath = LangevinMiddle(1.0, [300.0, 310.0])
    simulation = Simulation([first, other], QuarticWells(0.02, 0.6), bath, device="cpu")
    with pytest.raises(InputError, match="replicas of one system"):
        ReplicaExchange(simulation, 10)
    with pytest.raises(InputError, match="interval of exchanges is 0"):
        ReplicaExchange(simulation, 0)


def test_temperatures_that_someone_changed_are_noticed() -> None:
    simulation = replicas_of(BATHS["langevin"], 3)
    exchange = exchanging(simulation, 10)
    simulation.set(temperature=[251.0, 300.0, 500.0])
    with pytest.raises(InputError, match="leave them to the exchange"):
        simulation.run(10)
    assert simulation.step == 10
    assert torch.equal(exchange.states, torch.arange(3))
