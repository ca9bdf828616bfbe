"""Biases within the step: their energies, work, hills and restarts."""

import math
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from storms import deep
from toys import LennardJones, argon

from mdgraph.biases import (
    Bias,
    CellVolume,
    Dihedral,
    Distance,
    HarmonicBias,
    LinearBias,
    Metadynamics,
    MovingBias,
    Position,
    PotentialEnergy,
    WallBias,
)
from mdgraph.biases.bias import BiasedVariables, BoundSpring
from mdgraph.biases.metadynamics import BoundMetadynamics
from mdgraph.engine import (
    FIRE,
    LangevinMiddle,
    MartynaTobiasKlein,
    Simulation,
    VelocityVerlet,
    minimize,
)
from mdgraph.engine.integrators import Integrator
from mdgraph.engine.replicas import ALONE, Ranks, ReplicaExchange, replica_simulation
from mdgraph.engine.restart import load_restart_, save_restart
from mdgraph.errors import InputError, SimulationError
from mdgraph.evaluators import Evaluator
from mdgraph.io.plumed import read_plumed
from mdgraph.neighbors import NeighborList
from mdgraph.runs.biased.files import HillsFile
from mdgraph.state import State
from mdgraph.system import System
from mdgraph.units import BOLTZMANN

KT = BOLTZMANN * 300.0


class DoubleWell(Evaluator):
    """One particle, U = h (x^2 - 1)^2 + k/2 (y^2 + z^2); an Evaluator without virial."""

    cutoffs: tuple[float, ...] = ()

    def __init__(self, barrier: float, stiffness: float = 0.2) -> None:
        self.barrier, self.stiffness = barrier, stiffness

    def evaluate_(self, state: State, lists: Sequence[NeighborList]) -> None:
        x, y, z = state.positions.unbind(-1)
        slope = 4.0 * self.barrier * x * (x**2 - 1.0)
        state.forces.copy_(-torch.stack([slope, self.stiffness * y, self.stiffness * z], -1))
        across = 0.5 * self.stiffness * (y**2 + z**2)
        state.energies.copy_(self.barrier * (x**2 - 1.0) ** 2 + across)
        state.energy.copy_(state.grouping.sum(state.energies))
        state.virial.zero_()


def particles(count: int, x: float = -1.0) -> list[System]:
    return [
        System(numbers=[18], positions=[[x + 0.01 * number, 0, 0]], masses=[1.0])
        for number in range(count)
    ]


def well(count: int, *biases: Bias, integrator: Integrator | None = None, **options) -> Simulation:
    return Simulation(
        particles(count),
        DoubleWell(2.0 * KT),
        LangevinMiddle(5.0, 300.0, 5.0) if integrator is None else integrator,
        device="cpu",
        check=False,
        variables={"x": Position(0, "x"), "y": Position(0, "y")},
        biases=biases,
        **options,
    )


def hills(run: Simulation) -> BoundMetadynamics:
    assert run.calculation.biases is not None
    (found,) = run.calculation.biases.metadynamics().values()
    return found


ON_X = {"sigma": 0.2, "height": KT, "every": 10, "minimum": -3.0, "maximum": 3.0}


def test_springs_walls_and_slopes_add_their_energies() -> None:
    run = well(
        2,
        HarmonicBias("x", centre=[-2.0, 1.0], stiffness=3.0),
        WallBias("x", "wall", lower=-0.5, stiffness=4.0),
        LinearBias(["x", "y"], slope=[0.5, 7.0], centre=[1.0, 0.0]),
    )
    plain = DoubleWell(2.0 * KT)
    x = torch.tensor([-1.0, -0.99], dtype=torch.float64)
    columns = run.observables().biases
    centre = torch.tensor([-2.0, 1.0], dtype=torch.float64)
    expected = {
        "harmonic.bias": 1.5 * (x - centre) ** 2,
        "wall.bias": 2.0 * (x + 0.5) ** 2,
        "linear.bias": 0.5 * (x - 1.0),
    }
    for name, values in expected.items():
        assert torch.allclose(columns[name], values), name
    assert torch.allclose(columns["x"], x)
    own = plain.barrier * (x**2 - 1.0) ** 2
    assert torch.allclose(run.state.energy, own + sum(expected.values()))


def test_energy_is_conserved_with_biases_that_rest() -> None:
    system = argon(2)
    run = Simulation(
        system,
        LennardJones(0.0104, 3.4, 6.0),
        VelocityVerlet(2.0),
        temperature=60.0,
        device="cpu",
        precision="double",
        check=False,
        variables={"t": Dihedral([0, 1, 2, 3]), "d": Distance([[4, 5, 6], 20]), "e": Position(3)},
        biases=[
            HarmonicBias(["t", "d"], centre=[3.0, 4.0], stiffness=[0.1, 0.2]),
            WallBias("e", upper=0.0, stiffness=0.05),
        ],
    )
    first = float(run.observables().conserved_energy)
    run.run(200)
    kinetic = float(run.observables().kinetic_energy)
    assert float(run.observables().conserved_energy) == pytest.approx(first, abs=1e-4 * kinetic)
    assert any(run.calculation.restrained()) is not False


def test_the_work_of_a_moving_spring_is_that_of_its_path() -> None:
    """A particle that cannot move takes the whole work as energy."""
    system = System(numbers=[18], positions=[[0.5, 0.0, 0.0]], masses=[1e12])
    run = Simulation(
        system,
        DoubleWell(0.0),
        VelocityVerlet(1.0),
        device="cpu",
        check=False,
        variables={"x": Position(0, "x")},
        biases=[MovingBias("x", steps=[5, 15], centres=[0.0, 2.0], stiffness=[2.0, 4.0])],
    )
    works, energies = [], []
    for _ in range(20):
        run.run(1)
        columns = run.observables().biases
        works.append(float(columns["moving.work"]))
        energies.append(float(columns["moving.bias"]))
    done = np.arange(1, 21)
    centre = np.interp(done, [5, 15], [0.0, 2.0])
    stiffness = np.interp(done, [5, 15], [2.0, 4.0])
    assert energies == pytest.approx(0.5 * stiffness * (0.5 - centre) ** 2, abs=1e-9)
    assert works == pytest.approx(np.array(energies) - 0.25, abs=1e-9)


def test_the_grid_is_the_sum_of_its_hills() -> None:
    run = well(1, Metadynamics("x", bias_factor=5.0, **ON_X), chunk=7)
    run.run(200)
    grid = hills(run)
    places = grid.grid.axis(0)[:, None]
    records = grid.records[:21, 0].numpy()[1:]
    gaussians = records[:, 1] * np.exp(-0.5 * ((places - records[:, 0]) / 0.2) ** 2)
    assert np.allclose(grid.potential()[0], gaussians.sum(1), atol=1e-14)
    assert records[0, 1] == pytest.approx(KT)
    # Each height is that of the bias before the hill.
    before = [
        (records[:n, 1] * np.exp(-0.5 * ((records[n, 0] - records[:n, 0]) / 0.2) ** 2)).sum()
        for n in range(20)
    ]
    assert records[:, 1] == pytest.approx(KT * np.exp(-np.array(before) / (4.0 * KT)), rel=1e-4)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_interpolated_slopes_are_derivatives_of_the_interpolated_energy(count: int) -> None:
    system = System(numbers=[18], positions=[[0.1, 0.2, -0.1]])
    axes = dict(zip("xyz"[:count], ([Position(0, axis) for axis in "xyz"]), strict=False))
    bias = Metadynamics(list(axes), sigma=0.4, height=1.0, every=1, minimum=-2.0, maximum=2.0)
    run = Simulation(
        system,
        DoubleWell(KT),
        LangevinMiddle(5.0, 300.0, 1.0),
        device="cpu",
        check=False,
        variables=axes,
        biases=[bias],
    )
    run.run(5)
    grid = hills(run)
    values = torch.tensor(np.random.default_rng(0).uniform(-1.8, 1.8, (40, count)))
    grid._which = torch.zeros(40, dtype=torch.int64)
    energies, slopes = grid.evaluate(values)
    for number in range(count):
        step = torch.zeros(count, dtype=torch.float64)
        step[number] = 1e-6
        change = grid.evaluate(values + step)[0] - grid.evaluate(values - step)[0]
        assert torch.allclose(change / 2e-6, slopes[:, number], atol=1e-7)
    record = grid.records[1:6, 0]
    apart = (values[:, None] - record[None, :, :-1]) / 0.4
    exact = (record[:, -1] * torch.exp(-0.5 * apart.square().sum(-1))).sum(-1)
    assert float((energies - exact).abs().max()) < 2e-4


def test_walkers_share_one_grid_and_others_own_theirs() -> None:
    shared = hills(finished(well(3, Metadynamics("x", shared=True, **ON_X)), 30))
    own = hills(finished(well(3, Metadynamics("x", **ON_X)), 30))
    assert shared.potential().shape[0] == 1
    assert own.potential().shape[0] == 3
    places = shared.grid.axis(0)[:, None]
    records = shared.records[1:4].numpy().reshape(-1, 2)
    gaussians = records[:, 1] * np.exp(-0.5 * ((places - records[:, 0]) / 0.2) ** 2)
    assert np.allclose(shared.potential()[0], gaussians.sum(1), atol=1e-14)
    assert shared.records[1:4].shape == own.records[1:4].shape
    for options in ({}, {"bias_factor": 5.0}, {"bias_factor": 5.0, "temperature": 300.0}):
        walkers = Metadynamics("x", shared=True, **options, **ON_X)
        with pytest.raises(InputError, match="from 300 to 400 K, where free energies differ"):
            well(2, walkers, integrator=LangevinMiddle(5.0, [300.0, 400.0], 5.0))
    with pytest.raises(InputError, match="free energies differ"):
        Metadynamics("x", shared=True, bias_factor=5.0, temperature=[300.0, 400.0], **ON_X)


def test_walkers_of_several_ranks_meet_after_whole_outer_steps() -> None:
    bias = Metadynamics("x", shared=True, **ON_X)
    state = well(1, bias).state
    about = BiasedVariables(state, (0,), ("A",), (0.0,), together=bias.every - 1)
    bias.bound(about)
    with pytest.raises(InputError, match=f"every {bias.every} steps, .* give a multiple"):
        bias.of_systems(range(1), 2).bound(about)


@pytest.mark.parametrize(
    "bias", [Metadynamics("x", sigma=0.2, minimum=-3.0, maximum=3.0), MovingBias("x")]
)
def test_temperatures_of_replicas_with_changing_biases_are_not_exchanged(bias: Bias) -> None:
    run = well(2, bias, integrator=LangevinMiddle(5.0, [300.0, 400.0], 5.0))
    with pytest.raises(InputError, match=f"the bias {bias.kind} changes it"):
        ReplicaExchange(run, 5)
    still = well(2, HarmonicBias("x"), integrator=LangevinMiddle(5.0, [300.0, 400.0], 5.0))
    assert ReplicaExchange(still, 5).states.tolist() == [0, 1]


def test_hills_between_outer_steps_are_written_before_they_are_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hills every 3 steps and outer steps of 4 meet every 12."""
    monkeypatch.setattr("mdgraph.biases.metadynamics.RECORDED", 1)
    run = well(
        1,
        Metadynamics("x", **(ON_X | {"every": 3})),
        inner_potential=DoubleWell(2.0 * KT),
        inner_steps=4,
    )
    applied, path = run.calculation.biases, tmp_path / "HILLS"
    assert applied is not None
    HillsFile.create("metadynamics", applied, [path])
    places = []
    with ExitStack() as stack:
        file = HillsFile("metadynamics", run, [path], stack)
        run.recorders.append(file)
        for _ in range(6):
            run.run(4)
            places.append(hills(run).records[..., 0].flatten().tolist())
    written = read_plumed(path)
    assert written.column("time") == pytest.approx(1e-3 * 5.0 * np.arange(3, 25, 3))
    # A hill of step 3 m is on the device after the outer step that it is in.
    for hill, x in enumerate(10.0 * written.column("x"), 1):
        assert np.isclose(places[-(-3 * hill // 4) - 1], x, rtol=1e-12).any()


def finished(run: Simulation, steps: int) -> Simulation:
    run.run(steps)
    return run


def every_tensor(run: Simulation) -> dict[str, torch.Tensor]:
    assert run.calculation.biases is not None
    tensors = run.state.tensors() | run.calculation.biases.tensors()
    return {name: tensor.clone() for name, tensor in tensors.items()}


def all_kinds() -> list[Bias]:
    return [
        Metadynamics("x", bias_factor=5.0, shared=True, **ON_X),
        MovingBias("y", steps=[3, 50], centres=[0.0, 0.5], stiffness=1.0),
        HarmonicBias("y", centre=0.1, stiffness=0.1),
    ]


def test_a_run_in_chunks_and_from_a_restart_file_has_the_same_bits(tmp_path: Path) -> None:
    whole = every_tensor(finished(well(2, *all_kinds()), 60))
    chunks = every_tensor(finished(well(2, *all_kinds(), chunk=7), 60))
    part = finished(well(2, *all_kinds(), chunk=4), 33)
    save_restart(part, tmp_path / "restart")
    resumed = well(2, *all_kinds())
    load_restart_(resumed, tmp_path / "restart")
    resumed.run(27)
    for name, value in every_tensor(resumed).items():
        assert torch.equal(value, whole[name]), name
        assert torch.equal(chunks[name], whole[name]), name


def test_a_restart_file_belongs_to_its_biases(tmp_path: Path) -> None:
    save_restart(well(1, HarmonicBias("x")), tmp_path / "restart")
    for others in ([], [HarmonicBias("x", stiffness=2.0)], [HarmonicBias("y")]):
        with pytest.raises(InputError, match="was written with biases"):
            load_restart_(well(1, *others), tmp_path / "restart")


class _Mirrored(Ranks):
    """A rank of two, of which the other has the same numbers."""

    def gather(self, own: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
        return torch.cat([own, own], 1)


@pytest.mark.parametrize(("depth", "ranks"), [(1, ALONE), (2, ALONE), (2, _Mirrored(0, 2))])
def test_overflows_of_a_list_leave_the_same_bits(depth: int, ranks: Ranks) -> None:
    def crystal(chunk: int) -> Simulation:
        return replica_simulation(
            [argon(1)] * ranks.count,
            LennardJones(0.0104, 3.4, 7.5),
            LangevinMiddle(4.0, 120.0),
            ranks,
            device="cpu",
            skin=0.0,
            chunk=chunk,
            variables={"d": Distance([0, 1])},
            biases=[
                Metadynamics(
                    "d", sigma=0.3, height=0.05, every=3, minimum=0.5, maximum=10.0, shared=True
                ),
                MovingBias("d", steps=[0, 60], centres=[4.0, 3.0], stiffness=0.01),
            ],
        )

    ample, tight = crystal(10), deep(crystal(4), depth)
    ample.run(60)
    (rows,) = tight.calculation.lists
    growths = 0
    while tight.step < 60:
        rows._allocate(1, *rows.reference())
        rows.sticky()[0].zero_()
        small = rows.capacity
        tight.run(min(7, 60 - tight.step))
        growths += rows.capacity > small
    assert growths > 5
    assert (hills(ample).records[1:21, -1, -1] == 0.05).all()
    for name, value in every_tensor(ample).items():
        assert torch.equal(value, every_tensor(tight)[name]), name


def test_a_variable_that_leaves_its_grid_stops_the_run_at_the_state_before() -> None:
    narrow = ON_X | {"minimum": -1.5, "maximum": -0.5}
    run = well(1, Metadynamics("x", **narrow), LinearBias("x", slope=-0.5), chunk=50)
    with pytest.raises(SimulationError, match=r"The variable x is .*outside of the grid") as error:
        run.run(2000)
    assert run.step == error.value.step - 1
    value = float(run.state.positions[0, 0])
    assert -1.5 <= value <= -0.5
    before = every_tensor(run)
    with pytest.raises(SimulationError):
        run.run(2000)
    for name, tensor in every_tensor(run).items():
        assert torch.equal(tensor, before[name]), name


def test_replicas_of_several_ranks_have_their_own_rows() -> None:
    centres = [[-1.0], [-0.5], [0.0], [0.5]]
    bias = HarmonicBias("x", centre=centres, stiffness=1.0)
    variables = {"x": Position(0, "x")}
    assert bias.of_systems(range(2, 4), 4).bound is not None

    def bound(share: range) -> torch.Tensor:
        run = Simulation(
            particles(4)[share.start : share.stop],
            DoubleWell(KT),
            LangevinMiddle(5.0, 300.0, 5.0),
            device="cpu",
            check=False,
            variables=variables,
            biases=[bias.of_systems(share, 4)],
        )
        return run.observables().biases["harmonic.bias"]

    whole = replica_simulation(
        particles(4),
        DoubleWell(KT),
        LangevinMiddle(5.0, 300.0, 5.0),
        device="cpu",
        check=False,
        variables=variables,
        biases=[bias],
    )
    energies = whole.observables().biases["harmonic.bias"]
    assert torch.allclose(torch.cat([bound(range(2)), bound(range(2, 4))]), energies)
    parts = [
        Metadynamics("x", shared=both, **ON_X).of_systems(range(2), 4) for both in (False, True)
    ]
    assert [part.walkers for part in parts] == [None, 4]


@pytest.mark.parametrize(
    ("systems", "values", "rows"),
    [
        (2, [1.0, 2.0], [[1.0, 2.0]] * 2),  # one for each variable, not for each system
        (2, [[1.0, 2.0], [3.0, 4.0]], [[1.0, 2.0], [3.0, 4.0]]),
        (3, [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]),
        (1, [[1.0, 2.0]], [[1.0, 2.0]]),
        (1, 3.0, [[3.0, 3.0]]),
    ],
)
def test_a_rank_has_the_springs_that_its_systems_have_in_one_process(
    systems: int, values: Any, rows: list[list[float]]
) -> None:
    def bound(bias: HarmonicBias, share: range) -> list[list[float]]:
        run = Simulation(
            particles(systems)[share.start : share.stop],
            DoubleWell(KT),
            LangevinMiddle(5.0, 300.0, 5.0),
            device="cpu",
            check=False,
            variables={"x": Position(0, "x"), "y": Position(0, "y")},
            biases=[bias],
        )
        assert run.calculation.biases is not None
        (spring,) = run.calculation.biases.bound
        assert isinstance(spring, BoundSpring)
        assert torch.equal(spring.centre, spring.stiffness)
        return spring.centre.tolist()

    bias = HarmonicBias(["x", "y"], centre=values, stiffness=values)
    assert bound(bias, range(systems)) == rows
    ranks = [range(number, number + 1) for number in range(systems)]
    parts = [bound(bias.of_systems(share, systems), share) for share in ranks]
    assert [row for part in parts for row in part] == rows


def test_a_number_for_each_system_is_one_of_a_single_variable_alone() -> None:
    one = HarmonicBias("x", centre=[1.0], stiffness=2.0)
    assert np.array_equal(one.of_systems(range(1), 1).numbers(one.centre, "centre"), [1.0])
    two = HarmonicBias("x", centre=[1.0, 3.0], stiffness=2.0).of_systems(range(1, 2), 2)
    assert two.numbers(two.centre, "centre") == [3.0]


def test_a_volume_is_pulled_to_its_centre() -> None:
    def cell(biases: list[Bias]) -> float:
        run = Simulation(
            argon(2),
            LennardJones(0.0104, 3.4, 6.0),
            MartynaTobiasKlein(4.0, 80.0, 0.0, tau_p=200.0),
            device="cpu",
            check=False,
            temperature=80.0,
            variables={"V": CellVolume()},
            biases=biases,
        )
        run.run(400)
        return float(run.observables().biases["V"])

    start = 11.6**3
    pulled = cell([HarmonicBias("V", centre=1.2 * start, stiffness=1e-4)])
    assert pulled == pytest.approx(1.2 * start, rel=0.05)
    assert cell([]) > 1.5 * start


def test_a_minimum_is_that_of_energy_and_bias() -> None:
    run = well(1, HarmonicBias("y", centre=0.5, stiffness=0.2), integrator=FIRE(1e-4))
    minimize(run, 500)
    assert float(run.state.positions[0, 1]) == pytest.approx(0.25, abs=1e-3)
    for changing in (Metadynamics("x", **ON_X), MovingBias("x")):
        with pytest.raises(InputError, match="no minimum to find"):
            well(1, changing, integrator=FIRE(1e-4))


WRONG = {
    "an unknown variable": ([HarmonicBias("w")], "not a variable"),
    "a name twice": ([HarmonicBias("x"), HarmonicBias("y")], "name of its own"),
    "no temperature": ([Metadynamics("x", bias_factor=5.0, **ON_X)], "no.*bath|says T"),
    "a start outside": (
        [Metadynamics("x", **(ON_X | {"minimum": 0.0}))],
        r"outside of the grid.*at the start",
    ),
    "no ends": ([Metadynamics("x", sigma=0.1, height=0.1, every=1)], "minimum below a maximum"),
    "a coarse grid": ([Metadynamics("x", points=10, **ON_X)], "further apart"),
    "a vast grid": (
        [Metadynamics(["x", "y"], points=100000, **ON_X)],
        "at most 20,000,000",
    ),
    "hills of degrees": (
        [Metadynamics("t", sigma=15.0, height=0.1, every=1)],
        "is 15 rad along t, more than half a turn; angles are in rad, or written as 15deg",
    ),
    "rows for others": ([HarmonicBias("x", centre=[0.0, 1.0, 2.0])], "give 1 finite number"),
    "walls without end": ([WallBias("t", upper=1.0)], "periodic"),
    "a slope without end": ([LinearBias("t", slope=1.0)], "periodic"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_is_refused_in_a_sentence_before_the_first_step(case: str) -> None:
    biases, words = WRONG[case]
    places = [[1.0, 0, 0], [0, 0, 0], [0, 0, 1.0], [0.5, 0.5, 1.0]]
    with pytest.raises(InputError, match=words):
        Simulation(
            System(numbers=[18] * 4, positions=np.array(places) - [2.0, 0.0, 0.0]),
            DoubleWell(KT),
            VelocityVerlet(1.0),
            device="cpu",
            check=False,
            variables={
                "x": Position(0, "x"),
                "y": Position(0, "y"),
                "t": Dihedral([0, 1, 2, 3]),
            },
            biases=biases,
        )


@pytest.mark.parametrize(
    "make",
    [
        lambda: Metadynamics("x", **(ON_X | {"sigma": 0.0})),
        lambda: Metadynamics("x", **(ON_X | {"height": -1.0})),
        lambda: Metadynamics("x", bias_factor=1.0, **ON_X),
        lambda: Metadynamics(list("abcd"), **ON_X),
        lambda: HarmonicBias([]),
        lambda: HarmonicBias("x", "two words"),
        lambda: MovingBias("x", steps=[5, 5]),
        lambda: WallBias("x"),
        lambda: WallBias("x", lower=1.0, upper=0.0),
    ],
)
def test_numbers_that_no_bias_can_have_are_refused_at_once(make) -> None:
    with pytest.raises(InputError):
        make()


def test_the_energy_is_no_variable_of_two_potentials() -> None:
    with pytest.raises(InputError, match="two potentials"):
        Simulation(
            particles(1),
            DoubleWell(KT),
            VelocityVerlet(1.0),
            device="cpu",
            check=False,
            inner_potential=DoubleWell(KT),
            inner_steps=2,
            variables={"e": PotentialEnergy()},
            biases=[],
        )


def test_biases_act_at_inner_steps() -> None:
    """With one potential as both, two time steps are ordinary ones."""

    def run(**options) -> Simulation:
        biases = [Metadynamics("x", **ON_X), MovingBias("y", steps=[0, 30])]
        made = well(1, *biases, integrator=VelocityVerlet(2.0), temperature=300.0, **options)
        return finished(made, 40)

    plain, inner = run(), run(inner_potential=DoubleWell(2.0 * KT), inner_steps=4)
    for name, value in every_tensor(inner).items():
        assert torch.allclose(value.double(), every_tensor(plain)[name].double(), atol=1e-9), name


@pytest.mark.statistical
def test_well_tempered_hills_give_the_free_energy_of_a_double_well() -> None:
    run = Simulation(
        particles(200),
        DoubleWell(5.0 * KT),
        LangevinMiddle(5.0, 300.0, 5.0),
        device="cpu",
        check=False,
        variables={"x": Position(0, "x")},
        biases=[
            Metadynamics(
                "x",
                sigma=0.1,
                height=0.01 * KT,
                every=25,
                minimum=-2.5,
                maximum=2.5,
                bias_factor=8.0,
                shared=True,
            )
        ],
    )
    run.run(25000)
    grid = hills(run)
    x = grid.grid.axis(0)
    exact = 5.0 * (x**2 - 1.0) ** 2
    low = exact < 8.0
    difference = (-grid.factor * grid.potential()[0] / KT - exact)[low]
    assert difference.std() < 0.05


@pytest.mark.statistical
def test_the_distance_of_a_free_pair_has_its_entropy() -> None:
    """F(r) = -2 kT ln r, of hills between two walls."""
    count = 200
    pairs = [
        System(numbers=[18, 18], positions=[[0, 0, 0], [0, 0, 1.5 + 0.01 * number]], masses=[2, 2])
        for number in range(count)
    ]

    class Free(Evaluator):
        cutoffs = ()

        def evaluate_(self, state: State, lists: Sequence[NeighborList]) -> None:
            for tensor in (state.forces, state.energies, state.energy, state.virial):
                tensor.zero_()

    run = Simulation(
        pairs,
        Free(),
        LangevinMiddle(4.0, 300.0, 5.0),
        device="cpu",
        check=False,
        variables={"r": Distance([0, 1])},
        biases=[
            Metadynamics(
                "r",
                sigma=0.15,
                height=0.01 * KT,
                every=25,
                minimum=0.0,
                maximum=6.0,
                bias_factor=4.0,
                shared=True,
            ),
            WallBias("r", lower=1.0, upper=4.0, stiffness=2.0),
        ],
    )
    run.run(15000)
    grid = hills(run)
    r = grid.grid.axis(0)
    inside = (r > 1.3) & (r < 3.7)
    found = -grid.factor * grid.potential()[0][inside] / KT
    difference = found + 2.0 * np.log(r[inside])
    assert difference.std() < 0.1
    assert math.isfinite(float(difference.mean()))


class TwiceTheSame(Ranks):
    """The first of two ranks, whose other one has the same replicas."""

    def gather(self, own: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
        return torch.cat([own, own], dim=1)


def test_hills_of_ranks_do_not_depend_on_reporters() -> None:
    """Whoever replaces the list of reporters keeps the hills of the walkers of other ranks."""
    grids = []
    for replaced in (False, True):
        run = replica_simulation(
            particles(4),
            DoubleWell(2.0 * KT),
            LangevinMiddle(5.0, 300.0, 5.0),
            TwiceTheSame(rank=0, count=2),
            device="cpu",
            check=False,
            variables={"x": Position(0, "x")},
            biases=[Metadynamics("x", shared=True, **ON_X)],
        )
        if replaced:
            run.reporters = []
        run.run(30)
        grids.append(hills(run).potential())
    assert grids[0].max() > 4.0 * KT  # four hills a time, two of them of the other rank
    np.testing.assert_array_equal(*grids)


def test_a_spring_that_is_far_from_its_centre_is_told() -> None:
    simulation = well(2, HarmonicBias("x", centre=[[-1.0], [4.0]], stiffness=1.0))
    (sentence,) = simulation.calculation.biases.far_springs()
    assert "holds up to 12 eV in 1 of 2 systems" in sentence
    near = well(1, HarmonicBias("x", centre=-1.0, stiffness=1.0), LinearBias("y", slope=5.0))
    assert near.calculation.biases.far_springs() == []
