"""Weights of terms that change along a run: their work, its free energy, the same bits."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mdgraph import Simulation
from mdgraph.engine import FIRE, Integrator, LangevinMiddle, VelocityVerlet
from mdgraph.engine.replicas import ReplicaExchange
from mdgraph.engine.restart import load_restart_, save_restart
from mdgraph.errors import InputError
from mdgraph.models import SumPotential, term, with_terms
from mdgraph.system import System
from mdgraph.units import ACCELERATION, BOLTZMANN

KT = BOLTZMANN * 300.0
WELL = "walls:zmin=0/0.1,zmax=0/0.1"
"""k/2 z^2 on both sides, k 0.1 eV/A^2."""
RATIO = 4.0
EXACT = math.log(math.sqrt(RATIO))
"""kT, free energy of a spring of RATIO times the stiffness."""


def oscillators(count: int, seed: int = 1) -> list[System]:
    """Of mass 1 in equilibrium, one a system."""
    generator = np.random.default_rng(seed)
    z = generator.normal(size=count) * math.sqrt(KT / 0.1)
    speed = math.sqrt(KT * ACCELERATION)
    return [
        System(
            numbers=[2],
            positions=[[0.0, 0.0, place]],
            velocities=speed * generator.normal(size=(1, 3)),
            masses=[1.0],
        )
        for place in z
    ]


def switching(steps: int, count: int = 1, integrator: Integrator | None = None, **options: Any):
    potential = SumPotential.of([(term(WELL)[0], (1.0, RATIO))], ramp_steps=steps)
    return Simulation(
        oscillators(count),
        potential,
        LangevinMiddle(2.0, 300.0, 20.0) if integrator is None else integrator,
        **({"device": "cpu", "check": False, "seed": 2} | options),
    )


def work(run: Simulation) -> np.ndarray:
    return run.observables().switching["switching_work_eV"].numpy()


@pytest.mark.parametrize("steps", [1, 150])
def test_the_exponential_average_of_the_work_is_the_free_energy(steps: int) -> None:
    """At once and slowly; the mean is larger, at once by the known amount."""
    run = switching(steps, 2000)
    run.run(steps)
    values = work(run) / KT
    weights = np.exp(-values)
    free_energy = -math.log(weights.mean())
    error = weights.std() / weights.mean() / math.sqrt(len(values))
    assert abs(free_energy - EXACT) < 4.0 * error
    assert error < 0.02
    mean, own = values.mean(), values.std() / math.sqrt(len(values))
    if steps == 1:
        assert abs(mean - 0.5 * (RATIO - 1.0)) < 4.0 * own
    else:
        assert EXACT < mean + 4.0 * own < 0.5 * (RATIO - 1.0)
    run.run(10)  # weights rest, so no more work is done
    np.testing.assert_array_equal(work(run) / KT, values)


def test_work_is_what_the_energy_gains() -> None:
    run = switching(600, 3, VelocityVerlet(0.25))
    before = run.observables()
    run.run(600)
    after = run.observables()
    gain = (after.conserved_energy - before.conserved_energy).numpy()
    assert (gain > 1e-3).all()
    np.testing.assert_allclose(work(run), gain, rtol=1e-3)
    columns = after.switching
    name = next(iter(columns)).removesuffix("_weight")
    assert list(columns) == [f"{name}_weight", f"{name}_dU_dw_eV", "switching_work_eV"]
    assert columns[f"{name}_weight"].tolist() == [RATIO] * 3
    z = run.state.places()[:, 2]
    assert torch.allclose(columns[f"{name}_dU_dw_eV"], 0.05 * z**2)
    assert torch.allclose(after.potential_energy, RATIO * 0.05 * z**2)


def every_tensor(run: Simulation) -> dict[str, torch.Tensor]:
    snapshot = run.snapshot()
    return {f"{part}.{key}": value for part in ("state", "evaluator")
            for key, value in snapshot[part].items()}  # fmt: skip


def test_a_run_in_chunks_and_from_a_restart_file_has_the_same_bits(tmp_path: Path) -> None:
    whole = switching(30, 4)
    whole.run(23)
    parts = switching(30, 4, chunk=3)
    parts.run(7)
    save_restart(parts, tmp_path / "restart.safetensors")
    again = switching(30, 4)
    load_restart_(again, tmp_path / "restart.safetensors")
    assert np.array_equal(work(again), work(parts))
    again.run(16)
    expected = every_tensor(whole)
    assert (work(whole) != 0.0).all()
    assert sum(name.startswith("evaluator") for name in expected) == 3
    for name, value in every_tensor(again).items():
        assert torch.equal(value, expected[name]), name


@pytest.mark.gpu
def test_one_graph_serves_all_weights(tmp_path: Path) -> None:
    graphed = switching(50, 4, device="cuda", graph="on")
    eager = switching(50, 4, device="cuda", graph="off")
    for run in (graphed, eager):
        run.run(70)
    assert graphed.graphed
    for name, value in every_tensor(eager).items():
        assert torch.equal(value, every_tensor(graphed)[name]), name
    assert (work(graphed) != 0.0).all()


def test_terms_as_texts_change_between_two_weights() -> None:
    base = SumPotential.of([(term(WELL)[0], 1.0)])
    ramped = with_terms(base, ["0:1*field:0/0/0.1", "0.5*zbl@2"], ramp_steps=10)
    assert ramped.weights == (1.0, 0.0, 0.5)
    assert ramped.ramps.ends == (1.0, 1.0, 0.5)
    assert ramped.changing == [1]
    assert ramped.details()["terms"][1].startswith("0 to 1 times field")
    assert with_terms(base, "1:1*zbl@2", ramp_steps=10).ramps is None
    with pytest.raises(InputError, match=r"'0:1\*zbl@2' changes along a run of dynamics"):
        with_terms(base, "0:1*zbl@2")
    with pytest.raises(InputError, match="it is 'x'"):
        with_terms(base, "0:x*zbl@2", ramp_steps=10)
    with pytest.raises(InputError, match="cannot be part of another one"):
        with_terms(ramped, "zbl@2")
    with pytest.raises(InputError, match="over how many steps"):
        SumPotential.of([(term(WELL)[0], (0.0, 1.0))])
    with pytest.raises(InputError, match="3 numbers"):
        SumPotential.of([(term(WELL)[0], (0.0, 1.0, 2.0))], ramp_steps=10)
    with pytest.raises(InputError, match="finite number"):
        SumPotential.of([(term(WELL)[0], (0.0, math.inf))], ramp_steps=10)


def test_two_time_steps_and_domains_have_weights_that_rest() -> None:
    potential = SumPotential.of([(term(WELL)[0], (1.0, 2.0))], ramp_steps=10)
    with pytest.raises(InputError, match="weights of its terms change"):
        Simulation(
            oscillators(1)[0],
            potential,
            VelocityVerlet(0.5),
            device="cpu",
            inner_potential=term(WELL)[0],
        )
    with pytest.raises(InputError, match="weights of its terms change"):
        Simulation(oscillators(1)[0], potential, VelocityVerlet(0.5), device="cpu", domains=1)
    with pytest.raises(InputError, match="no minimum to find"):
        Simulation(oscillators(1)[0], potential, FIRE(), device="cpu")


def test_replicas_that_exchange_have_weights_that_rest() -> None:
    run = switching(10, 2, LangevinMiddle(2.0, [300.0, 310.0], 20.0))
    with pytest.raises(InputError, match="give constant weights, or leave the exchange out"):
        ReplicaExchange(run, 5)
