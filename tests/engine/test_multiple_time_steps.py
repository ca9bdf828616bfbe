"""Two time steps by two potentials: reversible RESPA, its order, its statistics, its limits."""

import logging
import math
from contextlib import nullcontext
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from ensembles import assert_same
from random_networks import TENSORNET, network
from toys import HarmonicWells, LennardJones, argon

from mdgraph.engine import (
    FIRE,
    Averages,
    Calculation,
    LangevinMiddle,
    MartynaTobiasKlein,
    NoseHooverChains,
    PositionRestraints,
    Simulation,
    StochasticCellRescaling,
    StochasticVelocityRescaling,
    VelocityVerlet,
)
from mdgraph.engine.multiple_time_steps import STEPS, checked_inner_steps
from mdgraph.engine.restart import load_restart_, save_restart
from mdgraph.engine.step_graphs import StepGraphs
from mdgraph.errors import InputError
from mdgraph.evaluators import AutogradEvaluator, MultipleTimeStepEvaluator
from mdgraph.fused.evaluator import FusedTensorNet
from mdgraph.neighbors import NeighborList
from mdgraph.system import System
from mdgraph.units import ACCELERATION, BAR, BOLTZMANN

BAROSTATS = [
    MartynaTobiasKlein(2.0, 90.0, 100.0 * BAR, tau_p=200.0),
    StochasticCellRescaling(2.0, 90.0, 100.0 * BAR, tau_p=200.0),
    StochasticCellRescaling(2.0, 90.0, 100.0 * BAR, tau_p=200.0, cell_dof="full"),
]
LARGE = LennardJones(0.0104, 3.4, 6.0)
SMALL = LennardJones(0.0100, 3.4, 5.0)


ENDS = argon(2).positions[[0, 7]] + 0.3


def run_of(integrator: Any, inner_steps: int = 4, **options: Any) -> Simulation:
    """Argon by both potentials; `small` replaces the small one."""
    defaults = {"device": "cpu", "precision": "double", "temperature": 90.0, "seed": 4}
    small = options.pop("small", SMALL)
    system = options.pop("system", argon(2))
    return Simulation(
        system,
        options.pop("large", LARGE),
        integrator,
        inner_potential=small,
        inner_steps=inner_steps,
        **(defaults | options),
    )


def forces(potential: Any, system: System, positions: np.ndarray) -> np.ndarray:
    at = Calculation(
        [system.replace(positions=positions)], potential, device="cpu", precision="double"
    )
    at.compute()
    return at.state.forces.numpy().copy()


@pytest.mark.parametrize("inner", [2, 3, 8])
def test_steps_are_those_of_reversible_respa(inner: int) -> None:
    """Written out by hand: kicks of the difference, velocity Verlet of the small one between."""
    run = run_of(VelocityVerlet(2.0), inner)
    system = argon(2)
    x, v = run.state.places().numpy().copy(), run.state.velocities.numpy().copy()
    per_mass = ACCELERATION / run.state.masses.numpy()[:, None]
    for _ in range(3):
        v += 0.5 * inner * 2.0 * per_mass * (forces(LARGE, system, x) - forces(SMALL, system, x))
        for _ in range(inner):
            v += 1.0 * per_mass * forces(SMALL, system, x)
            x += 2.0 * v
            v += 1.0 * per_mass * forces(SMALL, system, x)
        v += 0.5 * inner * 2.0 * per_mass * (forces(LARGE, system, x) - forces(SMALL, system, x))
    run.run(3 * inner)
    np.testing.assert_allclose(run.state.places(), x, rtol=0, atol=1e-11)
    np.testing.assert_allclose(run.state.velocities, v, rtol=0, atol=1e-13)
    assert run.time == 3 * inner * 2.0


def test_what_is_reported_belongs_to_the_large_potential() -> None:
    springs = PositionRestraints([0, 7], 0.5, ENDS)
    for integrator, restraints in product((LangevinMiddle(2.0, 90.0), *BAROSTATS), (None, springs)):
        run = run_of(integrator, restraints=restraints)
        run.run(8)
        view = run.view()
        system = argon(2).replace(
            positions=view.positions.numpy(), cell=view.cell[0].double().numpy()
        )
        ends = restraints
        if restraints is not None:
            # Ends of springs move with the cell.
            moved = ENDS @ np.linalg.inv(argon(2).cell) @ system.cell
            ends = PositionRestraints(restraints.indices, 0.5, moved)
        at = Calculation([system], LARGE, device="cpu", precision="double", restraints=ends)
        at.compute()
        np.testing.assert_allclose(view.forces, at.state.forces, atol=1e-12)
        np.testing.assert_allclose(view.virial, at.state.virial, atol=1e-10)
        kinetic = float(run.observables().kinetic_energy[0])
        pressure = (2.0 * kinetic + float(at.state.virial[0].trace())) / (3.0 * system.volume)
        assert float(view.observables.pressure[0]) == pytest.approx(pressure, abs=1e-12)
        assert float(view.observables.potential_energy[0]) == pytest.approx(
            float(at.state.energy[0]), abs=1e-10
        )


@pytest.mark.parametrize(
    "integrator",
    [
        VelocityVerlet(2.0),
        LangevinMiddle(2.0, 90.0),
        NoseHooverChains(2.0, 90.0),
        StochasticVelocityRescaling(2.0, 90.0),
        *BAROSTATS,
    ],
    ids=lambda integrator: integrator.name,
)
@pytest.mark.parametrize("inner", [3, 4])
def test_equal_potentials_give_the_steps_of_one(inner: int, integrator: Any) -> None:
    """With the same random numbers, which are drawn for 30 and for 32 steps at a time."""
    two = run_of(integrator, inner, small=LARGE)
    one = Simulation(
        argon(2), LARGE, integrator, device="cpu", precision="double", temperature=90.0, seed=4
    )
    for run in (one, two):
        run.run(36)
    np.testing.assert_allclose(two.state.places(), one.state.places(), rtol=0, atol=1e-9)
    np.testing.assert_allclose(two.state.velocities, one.state.velocities, rtol=0, atol=1e-10)
    np.testing.assert_allclose(two.state.cell, one.state.cell, rtol=0, atol=1e-10)


def test_energy_is_that_of_the_large_potential_and_errs_at_second_order() -> None:
    """Twice the outer step, four times the scatter; the inner step is too short to matter."""
    scatter = []
    for inner in (8, 16):
        run = run_of(VelocityVerlet(1.5), inner, small=LennardJones(0.008, 3.4, 5.0))
        energies = []
        for _ in range(60):
            run.run(inner)
            energies.append(float(run.observables().conserved_energy[0]))
        scatter.append(np.std(energies))
    assert 2.8 < scatter[1] / scatter[0] < 5.6


def test_motion_turns_back() -> None:
    run = run_of(VelocityVerlet(4.0), 8)
    start = run.state.places().clone()
    run.run(80)
    assert (run.state.places() - start).abs().max() > 0.1
    run.state.velocities.neg_()
    run.run(80)
    np.testing.assert_allclose(run.state.places(), start, rtol=0, atol=1e-8)


def barostat(inner: int, small: Any, timestep: float = 1.5) -> Simulation:
    return run_of(
        MartynaTobiasKlein(timestep, 90.0, 100.0 * BAR, tau=100.0, tau_p=200.0), inner, small=small
    )


def test_enthalpy_of_a_moving_cell_errs_at_second_order() -> None:
    """The small potential has another pressure, by some kbar."""
    scatter = []
    for inner in (8, 16):
        run = barostat(inner, LennardJones(0.008, 3.4, 5.0))
        energies, volumes = [], []
        for _ in range(40):
            run.run(inner)
            found = run.observables()
            energies.append(float(found.conserved_energy[0]))
            volumes.append(float(found.volume[0]))
        assert np.ptp(volumes) > 0.01 * np.mean(volumes)
        scatter.append(np.std(energies))
    assert 2.8 < scatter[1] / scatter[0] < 5.6


def test_volumes_are_those_of_the_large_potential() -> None:
    """A crystal under 1,000 bar; the small potential alone is far wider."""
    small = LennardJones(0.0085, 3.4, 5.0)
    found = []
    for large, two in ((LARGE, False), (LARGE, True), (small, False)):
        volumes = Averages(every=4)
        run = Simulation(
            argon(2),
            large,
            StochasticCellRescaling(4.0, 20.0, 1000.0 * BAR, tau_p=400.0),
            device="cpu",
            precision="double",
            seed=7,
            observe=[volumes],
            **({"inner_potential": small, "inner_steps": 4} if two else {}),
        )
        run.run(300)
        result = volumes.result()
        spread = result.blocked.variance[0, result.quantities.index("volume")] ** 0.5
        found.append((result.of("volume")[0], spread))
    plain, both, other = found
    assert both[0] == pytest.approx(plain[0], rel=1e-3)
    assert both[1] == pytest.approx(plain[1], rel=0.02)
    assert abs(other[0] - plain[0]) > 0.01 * plain[0]


def test_motion_of_a_cell_turns_back() -> None:
    run = barostat(8, SMALL, 4.0)
    start, cell = run.state.places().clone(), run.state.cell.clone()
    run.run(80)
    assert (run.state.cell - cell).abs().max() > 0.01
    run.state.velocities.neg_()
    for name, tensor in run.integrator.tensors().items():
        if name in ("strain.rate", "chain.velocities"):
            tensor.neg_()
    run.run(80)
    np.testing.assert_allclose(run.state.places(), start, rtol=0, atol=1e-7)
    np.testing.assert_allclose(run.state.cell, cell, rtol=0, atol=1e-8)


def test_sampling_is_that_of_the_large_potential() -> None:
    """Wells of stiffness k, driven by wells of 0.7 k: half a kT of energy for each direction."""
    atoms, kelvin = 300, 300.0
    system = System(np.full(atoms, 18), np.zeros((atoms, 3)) + 50.0 * np.arange(atoms)[:, None])
    centres = torch.tensor(system.positions)
    large, small = (HarmonicWells(centres, stiffness) for stiffness in (1.0, 0.7))
    run = Simulation(
        system,
        large,
        LangevinMiddle(5.0, kelvin, 10.0),
        device="cpu",
        precision="double",
        inner_potential=small,
        inner_steps=4,
    )
    run.run(800)
    energies = []
    for _ in range(300):
        run.run(8)
        energies.append(float(run.state.energy[0]) / atoms)
    wanted = 1.5 * BOLTZMANN * kelvin
    # A period takes some 400 fs and an outer step 20 fs: the bias is (w dt)^2 / 12 or less.
    assert np.mean(energies) == pytest.approx(wanted, rel=0.03)


@pytest.mark.parametrize(
    "integrator", [LangevinMiddle(2.0, 90.0), *BAROSTATS], ids=lambda integrator: integrator.name
)
def test_a_run_is_resumed_to_the_same_bits(integrator: Any, tmp_path: Path) -> None:
    whole, first, second = (run_of(integrator, observe=[Averages(every=8)]) for _ in range(3))
    whole.run(48)
    first.run(16)
    save_restart(first, tmp_path / "restart.safetensors")
    load_restart_(second, tmp_path / "restart.safetensors")
    assert torch.equal(second.view().forces, first.view().forces)
    second.run(32)
    assert_same(whole, second)
    assert torch.equal(whole.view().forces, second.view().forces)


def test_a_run_of_another_outer_step_is_not_resumed(tmp_path: Path) -> None:
    path = tmp_path / "restart.safetensors"
    first = run_of(VelocityVerlet(1.0), inner_steps=4)
    first.run(8)
    save_restart(first, path)
    with pytest.raises(InputError, match="was written with inner_steps 4, now it is 2; resume"):
        load_restart_(run_of(VelocityVerlet(1.0), inner_steps=2), path)


def test_lists_that_overflow_within_a_step_are_grown(monkeypatch: pytest.MonkeyPatch) -> None:
    """The atoms come together, so that both lists overflow on the way."""
    system = argon(2)
    squeezed = system.replace(velocities=-4e-3 * (system.positions - system.positions.mean(0)))
    options: dict[str, Any] = {"system": squeezed, "maximum_temperature": 1e7}
    ample = run_of(VelocityVerlet(1.0), chunk=4, **options)
    grown = []
    grow = NeighborList.grow
    monkeypatch.setattr(NeighborList, "grow", lambda self: (grown.append(self), grow(self))[1])
    tight = run_of(VelocityVerlet(1.0), chunk=64, **options)
    for run in (ample, tight):
        run.run(64)
    assert grown
    assert_same(ample, tight)


def test_replicas_stay_alike_those_alone() -> None:
    """Each with its own random numbers, whatever runs beside it."""
    both = run_of(LangevinMiddle(2.0, 90.0), system=[argon(1), argon(2)])
    alone = run_of(LangevinMiddle(2.0, 90.0), system=argon(1))
    for run in (both, alone):
        run.run(24)
    count = len(argon(1))
    np.testing.assert_allclose(both.state.places()[:count], alone.state.places(), rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"inner_steps": 5}, "inner_steps is 5; choose among 2, 3, 4, 6, 8"),
        ({"inner_steps": 1}, "choose among"),
        ({"small": None}, "inner_steps belongs to a small potential; name it by inner_potential"),
        ({"integrator": FIRE()}, "has no time step"),
        ({"small": "copper-pbe"}, "The inner potential: "),
        ({"chunk": 6}, "The chunk is 6 steps, .* give a multiple of 4"),
        ({"observe": [Averages(every=2)]}, "The interval of the .* multiple of 4"),
        ({"remove_momentum": 10}, "multiple of 4"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], sentence: str) -> None:
    options = {"integrator": VelocityVerlet(2.0)} | options
    with pytest.raises(InputError, match=sentence):
        run_of(options.pop("integrator"), options.pop("inner_steps", 4), **options)


@pytest.mark.parametrize(
    ("timestep", "masses", "steps"),
    [
        (0.5, [1.008, 16.0], 4),
        (1.0, [1.008, 16.0], 2),
        (0.5, [0.0, 3.024, 14.0], 6),
        (0.75, [28.0, 28.0], 2),
    ],
)
def test_without_a_number_the_outer_step_is_2_fs_or_3_with_heavy_hydrogens(
    timestep: float, masses: list[float], steps: int
) -> None:
    assert checked_inner_steps(None, SMALL, timestep, np.array(masses)) == steps
    assert checked_inner_steps(None, None, timestep, np.array(masses)) == 1
    for given in (4.0, np.int64(4)):
        assert type(checked_inner_steps(given, SMALL, timestep, np.array(masses))) is int


def test_a_run_is_of_whole_outer_steps() -> None:
    run = run_of(VelocityVerlet(2.0), 8)
    with pytest.raises(InputError, match=r"The run is 12 steps, .* give a multiple of 8"):
        run.run(12)
    assert run.step == 0

    class Every:
        interval = 20

        def report(self, simulation: Simulation) -> None:
            raise AssertionError

    run.reporters.append(Every())
    with pytest.raises(InputError, match="interval of a reporter"):
        run.run(16)


@pytest.mark.parametrize(
    ("mass", "inner", "outer", "warns"),
    [
        (1.008, 4, 2.6, False),
        (1.008, 4, 3.0, True),
        (1.008, 4, 8.0, True),
        (3.024, 4, 4.2, False),
        (3.024, 3, 4.2, False),
        (3.024, 2, 4.2, True),
        (3.024, 4, 4.5, True),
        (3.024, 4, 8.0, True),
        (12.0, 4, 9.0, False),
    ],
)
def test_resonance_is_warned_of(
    mass: float, inner: int, outer: float, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    system = System(
        np.array([18, 18]), np.array([[0.0, 0, 0], [3.8, 0, 0]]), masses=np.array([mass, 39.9])
    )
    run_of(VelocityVerlet(outer / inner), inner, system=system)
    assert ("vibrate fast enough" in caplog.text) == warns


@pytest.mark.parametrize(
    ("integrator", "steps", "warns"),
    [
        (VelocityVerlet(1.4), 3, True),
        (VelocityVerlet(1.5), 2, False),
        (LangevinMiddle(1.4, 300.0, 5.0), 3, False),
        (NoseHooverChains(1.4, 300.0), 3, True),
    ],
)
def test_long_steps_without_friction_are_warned_of(
    integrator: Any, steps: int, warns: bool, caplog: pytest.LogCaptureFixture
) -> None:
    system = System(
        np.array([18, 18]), np.array([[0.0, 0, 0], [3.8, 0, 0]]), masses=np.array([3.024, 39.9])
    )
    run_of(integrator, steps, system=system)
    assert ("without friction atoms of 3.02 amu" in caplog.text) == warns


def test_each_part_is_checked_and_the_state_stays(caplog: pytest.LogCaptureFixture) -> None:
    """A fast evaluator of each; forces before the first step are the impulses."""
    large = network(**TENSORNET)
    small = network(**TENSORNET | {"layers": 1})
    evaluators = [FusedTensorNet(potential, "mixed", "cpu") for potential in (large, small)]
    system = System(np.array([6, 8, 1]), np.array([[0.0, 0, 0], [1.3, 0, 0], [-0.6, 0.9, 0]]))
    with caplog.at_level(logging.INFO):
        run = Simulation(
            system,
            evaluators[0],
            VelocityVerlet(0.25),
            device="cpu",
            inner_potential=evaluators[1],
            inner_steps=2,
        )
    both = run.calculation.evaluator
    assert isinstance(both, MultipleTimeStepEvaluator)
    own = [
        torch.tensor(forces(AutogradEvaluator(part), system, system.positions))
        for part in (large, small)
    ]
    torch.testing.assert_close(run.state.forces, 2 * own[0] - own[1], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(both.forces(run.state), own[0], rtol=1e-4, atol=1e-4)
    assert sum("Fast evaluator against" in record.message for record in caplog.records) == 2


@pytest.mark.parametrize("together", [1, *STEPS])
@pytest.mark.parametrize("longest", [1, 8, 32])
def test_graphs_hold_whole_outer_steps(together: int, longest: int) -> None:
    """As many as fit, and none that an integrator prepares by halves; any number is reached."""
    integrator: Any = SimpleNamespace(prepare_=lambda step: None)
    graphs = StepGraphs(lambda step: None, integrator, nullcontext, torch.device("cpu"), together)
    replayed: list[int] = []

    def captured(length: int) -> Any:
        return SimpleNamespace(replay=lambda: replayed.append(length))

    graphs._captured = captured  # type: ignore[method-assign]
    graphs.graphed, graphs.longest = True, longest
    for start, count in ((0, 100), (together, 7), (45 * together, 1)):
        replayed.clear()
        step = start
        graphs.advance_(step, count * together)
        for length in replayed:
            assert length % together == 0
            assert math.log2(length // together).is_integer()
            assert length <= max(longest, together)
            assert step // integrator.block == (step + length - 1) // integrator.block
            step += length
        assert step == start + count * together
    assert 32 - together < integrator.block <= 32


@pytest.mark.gpu
@pytest.mark.parametrize("inner", [2, 3, 8])
@pytest.mark.parametrize(
    "integrator", [LangevinMiddle(2.0, 90.0), *BAROSTATS], ids=lambda integrator: integrator.name
)
def test_graphs_have_the_bits_of_eager_steps(inner: int, integrator: Any) -> None:
    runs = []
    for graph, longest in (("off", None), ("on", 1), ("on", 32)):
        runs.append(
            run_of(
                integrator,
                inner,
                device="cuda",
                precision="mixed",
                graph=graph,
                steps_per_replay=longest,
                observe=[Averages(every=inner)],
            )
        )
        runs[-1].run(10 * inner)
        runs[-1].run(22 * inner)
    for run in runs[1:]:
        assert run.graphed
        assert_same(runs[0], run)


class Counted(AutogradEvaluator):
    """Counts what it is asked for, and leaves nothing but forces where it may."""

    def __init__(self, potential: Any) -> None:
        super().__init__(potential)
        self.whole = self.forces_alone = 0

    def evaluate_(self, state: Any, lists: Any) -> None:
        self.whole += 1
        super().evaluate_(state, lists)

    def evaluate_forces_(self, state: Any, lists: Any, into: Any = None) -> None:
        super().evaluate_forces_(state, lists, into)
        self.whole -= 1
        self.forces_alone += 1
        for rest in (state.virial, state.energy, state.energies):
            rest.fill_(math.nan)


@pytest.mark.parametrize(
    "integrator", [LangevinMiddle(2.0, 90.0), *BAROSTATS], ids=lambda integrator: integrator.name
)
def test_only_barostats_need_more_than_forces_of_the_small_potential(integrator: Any) -> None:
    small = Counted(SMALL)
    runs = [run_of(integrator, small=one) for one in (small, SMALL)]
    small.whole = small.forces_alone = 0
    for run in runs:
        run.run(12)
    expected = (12, 0) if integrator.cell_varies else (0, 12)
    assert (small.whole, small.forces_alone) == expected
    assert_same(*runs)
