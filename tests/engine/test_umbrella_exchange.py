"""Exchange of umbrellas between replicas: distributions of windows, bits, ranks, refusals."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mdgraph.biases import Bias, HarmonicBias, Metadynamics, MovingBias, Position
from mdgraph.engine import LangevinMiddle, MartynaTobiasKlein, Ramp, Simulation, VelocityVerlet
from mdgraph.engine.integrators import Integrator
from mdgraph.engine.replicas import (
    ExchangeRecord,
    UmbrellaExchange,
    attempted_pairs,
    replica_simulation,
    swapped,
    umbrella_gains,
)
from mdgraph.engine.replicas.ranks import ALONE, Ranks
from mdgraph.engine.restart import load_restart_, save_restart
from mdgraph.errors import InputError
from mdgraph.evaluators import Evaluator
from mdgraph.io.tensor_files import read_tensors, serialize
from mdgraph.neighbors.list import NeighborList
from mdgraph.state import State
from mdgraph.system import System
from mdgraph.units import BOLTZMANN

KT = BOLTZMANN * 300.0
CENTRES = (-1.4, -0.9, -0.4, 0.0, 0.4, 0.9, 1.4)
STIFFNESS = (6.0, 8.0, 12.0, 16.0, 12.0, 8.0, 6.0)
"""kT/A^2"""

Array = np.ndarray[Any, Any]


class DoubleWell(Evaluator):
    """One particle, U = h (x^2 - 1)^2 + k/2 (y^2 + z^2); an Evaluator without virial."""

    cutoffs: tuple[float, ...] = ()

    def evaluate_(self, state: State, lists: Sequence[NeighborList]) -> None:
        x, y, z = state.positions.unbind(-1)
        slope = 12.0 * KT * x * (x**2 - 1.0)
        state.forces.copy_(-torch.stack([slope, 0.2 * y, 0.2 * z], -1))
        state.energies.copy_(3.0 * KT * (x**2 - 1.0) ** 2 + 0.1 * (y**2 + z**2))
        state.energy.copy_(state.grouping.sum(state.energies))
        state.virial.zero_()


def umbrellas(count: int = len(CENTRES)) -> HarmonicBias:
    rows = [[centre] for centre in CENTRES[:count]], [[k * KT] for k in STIFFNESS[:count]]
    return HarmonicBias("x", centre=rows[0], stiffness=rows[1])


def windows(
    *biases: Bias,
    count: int = len(CENTRES),
    integrator: Integrator | None = None,
    ranks: Ranks = ALONE,
    **options: Any,
) -> Simulation:
    systems = [
        System(numbers=[18], positions=[[CENTRES[number], 0, 0]], masses=[1.0])
        for number in range(count)
    ]
    return replica_simulation(
        systems,
        DoubleWell(),
        LangevinMiddle(5.0, 300.0, 20.0) if integrator is None else integrator,
        ranks,
        variables={"x": Position(0, "x"), "y": Position(0, "y")},
        biases=biases or (umbrellas(count),),
        **({"device": "cpu", "check": False, "seed": 4} | options),
    )


def exchanging(run: Simulation, interval: int, *more: Any) -> UmbrellaExchange:
    exchange = UmbrellaExchange(run, interval, *more)
    run.reporters.append(exchange)
    return exchange


def errors_of(samples: Array, means: Array) -> Array:
    """Differences of the means of columns from exact ones, by their errors from 20 blocks."""
    blocks = samples[: len(samples) // 20 * 20].reshape(20, -1, samples.shape[1]).mean(1)
    return (blocks.mean(0) - means) / (blocks.std(0, ddof=1) / math.sqrt(len(blocks)))


def moments(power: int) -> Array:
    """Exact moments of x in each window, by quadrature."""
    x = np.linspace(-3.0, 3.0, 4001)
    springs = 0.5 * np.array(STIFFNESS)[:, None] * (x - np.array(CENTRES)[:, None]) ** 2
    weights = np.exp(-3.0 * (x**2 - 1.0) ** 2 - springs)
    moments: Array = (weights * x**power).sum(1) / weights.sum(1)
    return moments


# Decisions


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_exchanges_leave_every_window_its_distribution(sign: float) -> None:
    """Brownian particles under springs; with the sign of the criterion turned they do not."""
    count, rounds, keeps = 6, 1000 if sign > 0 else 400, 0.3
    centres = torch.linspace(-1.0, 1.0, count, dtype=torch.float64)
    stiffness = torch.linspace(3.0, 9.0, count, dtype=torch.float64)

    def energies(window: torch.Tensor, replica: torch.Tensor) -> torch.Tensor:
        return 0.5 * stiffness[window] * (places[replica] - centres[window]) ** 2

    # Under U = x^2 / 2 + k (x - c)^2 / 2, in kT, x is normal.
    means, width = stiffness * centres / (1.0 + stiffness), (1.0 + stiffness) ** -0.5
    generator = torch.Generator().manual_seed(1)
    places, states = means.clone(), torch.arange(count)
    record = ExchangeRecord(count, 1)
    record.begin(states.tolist())
    samples = np.zeros((rounds, count))
    for step in range(rounds):
        noise = torch.randn(count, generator=generator, dtype=torch.float64)
        mean = means[states]
        places = mean + keeps * (places - mean) + (1 - keeps**2) ** 0.5 * width[states] * noise
        pairs, at = attempted_pairs(count, step), torch.argsort(states)
        low = torch.tensor(pairs)
        gains = umbrella_gains(energies, sign, low, at[low], at[low + 1])
        states = swapped(states, pairs, gains, 3, step)
        record.add(step, states.tolist())
        samples[step, states.numpy()] = places
    wrong = [
        np.abs(errors_of(samples, means.numpy())).max(),
        np.abs(errors_of((samples - means.numpy()) ** 2, width.numpy() ** 2)).max(),
    ]
    if sign > 0:
        assert max(wrong) < 4.5
        assert min(record.round_trips) > 2
        assert 0.1 < min(record.rates()) < max(record.rates()) < 0.9
    else:
        assert max(wrong) > 8.0


# Dynamics


def test_dynamics_sample_every_window_and_exchanges_move_walkers() -> None:
    run = windows()
    exchange = exchanging(run, 5)
    samples = []

    class Look:
        interval = 5

        def report(self, now: Simulation) -> None:
            samples.append(exchange.by_window(now.calculation.biases.values)[0].clone())

    run.reporters.append(Look())
    run.run(1200)
    x = torch.stack(samples).numpy()[20:]
    for power in (1, 2):
        assert np.abs(errors_of(x**power, moments(power))).max() < 4.5
    assert 0.05 < min(exchange.record.rates()) < max(exchange.record.rates()) < 0.95
    assert sum(exchange.record.round_trips) > 5
    # Replicas far from their first window got there with the particle on the other side.
    assert (exchange.states - torch.arange(len(CENTRES))).abs().max() > 2


@pytest.mark.parametrize("kernels", [False, True])
def test_a_swap_changes_springs_and_forces_alone(kernels: bool) -> None:
    run = windows()
    exchange = UmbrellaExchange(run, 3)
    moved = exchange.states < 0
    while not moved.any():
        run.run(3)
        before = run.snapshot()
        if kernels:
            pytest.importorskip("triton")
            run.calculation.biases.use_kernels()
        exchange.report(run)
        run.calculation.biases.use_tensors()
        moved = exchange.states != torch.arange(len(CENTRES))
    assert 0 < int(moved.sum()) < len(CENTRES)
    after = run.snapshot()
    for key in ("positions", "velocities", "step"):
        assert torch.equal(after["state"][key], before["state"][key])
    centre, stiffness = torch.tensor(CENTRES)[exchange.states], KT * torch.tensor(STIFFNESS)
    x = run.state.positions[:, 0]
    slope = 12.0 * KT * x * (x**2 - 1.0) + stiffness.double()[exchange.states] * (x - centre)
    assert torch.allclose(run.state.forces[:, 0], -slope, rtol=1e-6)
    springs = stiffness.double()[exchange.states] * (x - centre) ** 2 / 2
    assert torch.allclose(run.calculation.biases.energies[0], springs, rtol=1e-6)
    kept = ~moved
    assert torch.equal(after["state"]["forces"][kept], before["state"]["forces"][kept])


def test_a_restart_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    whole = windows()
    exchange = exchanging(whole, 5)
    whole.run(40)
    save_restart(whole, tmp_path / "restart.safetensors")
    whole.run(33)
    again = windows(chunk=3)
    load_restart_(again, tmp_path / "restart.safetensors")
    continued = exchanging(again, 5)
    assert not torch.equal(continued.states, torch.arange(len(CENTRES)))
    again.run(33)
    assert torch.equal(continued.states, exchange.states)
    for part in ("state", "biases"):
        for key, value in whole.snapshot()[part].items():
            assert torch.equal(again.snapshot()[part][key], value), key


@pytest.mark.gpu
def test_graphs_on_a_gpu_take_the_umbrellas_of_exchanges(tmp_path: Path) -> None:
    whole = windows(device="cuda", graph="on")
    exchange = exchanging(whole, 5)
    whole.run(40)
    save_restart(whole, tmp_path / "restart.safetensors")
    whole.run(35)
    assert not torch.equal(exchange.states, torch.arange(len(CENTRES)))
    biases = whole.calculation.biases
    apart = biases.values[0] - exchange.windows[0, exchange.states].cuda()
    springs = 0.5 * exchange.windows[1, exchange.states].cuda() * apart**2
    assert torch.allclose(biases.energies[0], springs, rtol=1e-9)
    again = windows(device="cuda", graph="off", chunk=7)
    load_restart_(again, tmp_path / "restart.safetensors")
    continued = exchanging(again, 5)
    again.run(35)
    assert torch.equal(continued.states, exchange.states)
    assert torch.equal(again.state.positions, whole.state.positions)


def test_restart_files_of_before_have_the_springs_of_the_run(tmp_path: Path) -> None:
    run = windows()
    run.run(10)
    path = tmp_path / "restart.safetensors"
    save_restart(run, path)
    tensors, metadata = read_tensors(path, "a restart file")
    names = {name for name in tensors if name.endswith((".centre", ".stiffness"))}
    assert len(names) == 2
    old = {name: tensor for name, tensor in tensors.items() if name not in names}
    path.write_bytes(serialize(old, metadata))
    again = windows()
    load_restart_(again, path)
    run.run(10)
    again.run(10)
    assert torch.equal(again.state.positions, run.state.positions)


class _OneOfTwo(Ranks):
    """A rank that meets the other one in turn, within this process."""

    def __init__(self, rank: int, board: dict[int, Any]) -> None:
        super().__init__(rank, 2, rank)
        object.__setattr__(self, "board", board)

    def gather(self, own: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
        board: Any = self.board
        board["own"][self.rank] = own
        board["barrier"].wait(60)
        whole = torch.cat([board["own"][0], board["own"][1]], 1)
        board["barrier"].wait(60)
        return whole


def test_two_ranks_are_one_process() -> None:
    import threading

    one = windows()
    exchange = exchanging(one, 5)
    one.run(40)
    assert not torch.equal(exchange.states, torch.arange(len(CENTRES)))
    board = {"own": {}, "barrier": threading.Barrier(2)}
    made: dict[int, Any] = {}

    def rank(number: int) -> None:
        ranks = _OneOfTwo(number, board)
        run = windows(ranks=ranks)
        own = exchanging(run, 5, ranks)
        run.run(40)
        made[number] = run.state.positions, own.states, own.by_window(run.calculation.biases.values)

    threads = [threading.Thread(target=rank, args=(number,)) for number in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert torch.equal(torch.cat([made[0][0], made[1][0]]), one.state.positions)
    assert torch.equal(made[0][1], exchange.states)
    both = torch.cat([made[0][2], made[1][2]], 1)
    assert torch.equal(both, one.calculation.biases.values[:, torch.argsort(exchange.states)])


# Faults


@pytest.mark.parametrize(
    ("biases", "integrator", "said"),
    [
        ([HarmonicBias("x", centre=0.5)], None, "another centre or stiffness for each"),
        ([], LangevinMiddle(5.0, [300.0, 310.0], 5.0), "have one temperature"),
        ([], LangevinMiddle(5.0, Ramp(300.0, 320.0, 10), 5.0), "cannot be ramps"),
        ([], VelocityVerlet(1.0), "has no bath"),
        ([umbrellas(2), MovingBias("y")], None, "bias moving changes it"),
        (
            [umbrellas(2), Metadynamics("y", sigma=0.2, minimum=-3.0, maximum=3.0)],
            None,
            "bias metadynamics changes it",
        ),
    ],
)
def test_what_cannot_exchange_is_refused(
    biases: list[Bias], integrator: Integrator | None, said: str
) -> None:
    run = windows(*(biases or [umbrellas(2)]), count=2, integrator=integrator)
    with pytest.raises(InputError, match=said):
        UmbrellaExchange(run, 5)


def test_no_biases_and_umbrellas_that_someone_changed_are_refused() -> None:
    run = windows()
    exchange = exchanging(run, 5)
    run.calculation.biases.springs()[0].centre += 0.1
    with pytest.raises(InputError, match="leave them to the exchange"):
        run.run(5)
    assert torch.equal(exchange.states, torch.arange(len(CENTRES)))
    systems = [System(numbers=[18], positions=[[0.0, 0, 0]]) for _ in range(2)]
    free = Simulation(systems, DoubleWell(), LangevinMiddle(5.0, 300.0, 5.0), device="cpu")
    with pytest.raises(InputError, match="needs replicas with different ones"):
        UmbrellaExchange(free, 5)
    boxed = [one.replace(cell=5.0 * np.eye(3), pbc=True) for one in systems]
    npt = Simulation(boxed, DoubleWell(), MartynaTobiasKlein(1.0, 300.0, 0.0), device="cpu")
    with pytest.raises(InputError, match="varies the cell"):
        UmbrellaExchange(npt, 5)
