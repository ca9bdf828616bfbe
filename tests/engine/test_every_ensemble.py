"""What holds for every ensemble alike: it captures, resumes, and can be changed while it runs."""

import numpy as np
import pytest
import torch
from ensembles import DYNAMICS, KELVIN, MINIMISERS, assert_same, bits, graphed, toy

from mdgraph.engine import LangevinMiddle, Ramp, Simulation, VelocityVerlet
from mdgraph.engine.restart import load_restart_, save_restart
from mdgraph.errors import InputError

ALL = DYNAMICS | MINIMISERS
CHANGES = {
    "timestep": 3.0,
    "temperature": np.array([200.0, 500.0]),
    "pressure": Ramp(1e-3, [2e-3, 3e-3], steps=20, first=30),
    "friction": 20.0,
    "tau": 80.0,
    "tau_p": 400.0,
    "compressibility": 700.0,
}


def change(run: Simulation) -> None:
    run.set(**{name: CHANGES[name] for name in run.integrator.parameters})


@pytest.mark.parametrize("name", ALL)
def test_a_recorded_step_repeats_the_eager_one_and_takes_changes(name, captures) -> None:
    eager, recorded = toy(ALL[name]()), graphed(toy(ALL[name]()))
    places = {key: value.data_ptr() for key, value in bits(recorded).items()}
    for run in (eager, recorded):
        run.run(37)
        before = run.state.positions.clone()
        change(run)
        run.run(40)
        assert not torch.equal(run.state.positions, before)
    assert_same(eager, recorded)
    # Chunks of 7 and their rests, and nothing again after the change.
    assert sorted(one.repeats for one in captures) == [1, 2, 4]
    assert places == {key: value.data_ptr() for key, value in bits(recorded).items()}


@pytest.mark.parametrize("name", ALL)
def test_resume_continues_with_the_same_bits(name, tmp_path) -> None:
    whole, resumed = toy(ALL[name]()), toy(ALL[name]())
    whole.run(20)
    change(whole)
    whole.run(21)
    save_restart(whole, tmp_path / "restart.safetensors")
    whole.run(40)
    load_restart_(resumed, tmp_path / "restart.safetensors")
    resumed.run(40)
    assert_same(whole, resumed)


@pytest.mark.parametrize("name", ALL)
def test_a_repeated_chunk_gives_the_same_bits(name) -> None:
    plain, repeated = toy(ALL[name]()), toy(ALL[name]())
    for run in (plain, repeated):
        run.run(11)
        change(run)
    plain.run(29)
    start = repeated.snapshot()
    repeated.run(29)
    repeated.restore(start)
    repeated.run(29)
    assert_same(plain, repeated)


@pytest.mark.parametrize("name", DYNAMICS)
def test_a_system_moves_the_same_in_any_batch(name) -> None:
    alone, batch = toy(DYNAMICS[name](), 1), toy(DYNAMICS[name](), 3)
    for run in (alone, batch):
        run.run(50)
    first = batch.state.positions[:6]
    assert torch.allclose(alone.state.positions, first, rtol=1e-10, atol=1e-10)
    assert torch.allclose(alone.state.cell[0], batch.state.cell[0], rtol=1e-10)


@pytest.mark.parametrize("precision", ["single", "mixed"])
@pytest.mark.parametrize("name", ALL)
def test_buffers_keep_their_types(name, precision) -> None:
    run = toy(ALL[name](), precision=precision)
    kind = torch.float32 if precision == "single" else torch.float64
    run.run(5)
    assert run.state.positions.dtype == run.state.velocities.dtype == run.state.cell.dtype == kind
    assert torch.isfinite(run.state.positions).all()


class TestRamps:
    def test_values_go_evenly_and_rest_before_and_after(self) -> None:
        run = toy(LangevinMiddle(1.0, Ramp([100.0, 50.0], 200.0, steps=40, first=10)))
        seen = []
        for _ in range(6):
            seen.append(run.integrator.values()["temperature"].tolist())
            run.run(10)
        assert seen == [
            [100.0, 50.0],
            [100.0, 50.0],
            [125.0, 87.5],
            [150.0, 125.0],
            [175.0, 162.5],
            [200.0, 200.0],
        ]

    def test_do_not_depend_on_chunks(self) -> None:
        runs = [
            toy(LangevinMiddle(1.0, Ramp(0.0, 500.0, steps=60)), chunk=chunk)
            for chunk in (1, 23, 100)
        ]
        for run in runs:
            run.run(70)
        assert_same(runs[0], runs[1])
        assert_same(runs[0], runs[2])

    def test_heat_an_ideal_gas_at_the_pace_of_the_ramp(self) -> None:
        """dE/dt = gamma (E_bath(t) - E) with a bath that warms evenly from 0 K."""
        friction, steps, timestep = 50.0, 400, 1.0
        run = toy(
            LangevinMiddle(timestep, Ramp(0.0, KELVIN, steps=steps), friction),
            systems=300,
            temperature=0.0,
            chunk=100,
        )
        run.run(steps)
        lag = 1.0 - torch.exp(torch.tensor(-2e-3 * friction * steps * timestep, dtype=float))
        expected = KELVIN * (1.0 - lag / (2e-3 * friction * steps * timestep))
        kelvin = run.observables().temperature
        error = kelvin.std() / len(kelvin) ** 0.5
        assert abs(kelvin.mean() - expected) < 4 * error + 0.01 * KELVIN


def test_changes_are_made_together_or_not_at_all() -> None:
    run = toy(LangevinMiddle(2.0, 300.0))
    with pytest.raises(InputError, match="friction is -1"):
        run.set(temperature=500.0, timestep=1.0, friction=-1.0)
    assert run.integrator.values()["temperature"].tolist() == [300.0, 300.0]
    assert run.timestep == 2.0


def test_time_goes_on_when_the_time_step_changes() -> None:
    run = toy(VelocityVerlet(2.0))
    run.run(10)
    run.set(timestep=0.5)
    run.run(4)
    assert run.time == 22.0


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: VelocityVerlet(Ramp(1.0, 2.0, 10)),
            "timestep is of type Ramp; it must be",
        ),
        (lambda: LangevinMiddle(1.0, Ramp(1.0, 2.0, 0)), "goes over 0 steps"),
        (lambda: LangevinMiddle(1.0, Ramp(1.0, -2.0, 5)), "temperature is -2"),
        (lambda: LangevinMiddle(1.0, "warm"), "temperature is 'warm'; it must be a number"),
        (lambda: LangevinMiddle(1.0, [[300.0]]), "or one for each system"),
        (lambda: toy(LangevinMiddle(1.0, [300.0, 200.0, 100.0])), "3 values for 2 systems"),
        (lambda: toy(VelocityVerlet(1.0)).set(temperature=300.0), "no parameter 'temperature'"),
        (lambda: toy(VelocityVerlet(1.0)).set(timestep=-1.0), "time step is -1"),
        (lambda: DYNAMICS["nose-hoover"]().__class__(1.0, 0.0), "cannot be at 0 K"),
    ],
)
def test_impossible_parameters_are_refused(make, words) -> None:
    with pytest.raises(InputError, match=words):
        make()
