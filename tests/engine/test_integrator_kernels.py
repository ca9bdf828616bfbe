"""The kernels of the engine against the torch form of the same numbers.

Triton's interpreter runs the kernels where there is no CUDA device.
"""

from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from ensembles import bits, box
from toys import HarmonicWells

from mdgraph.engine import (
    Averages,
    Calculation,
    Integrator,
    LangevinMiddle,
    MartynaTobiasKlein,
    NoseHooverChains,
    Ramp,
    Simulation,
    StochasticCellRescaling,
    StochasticVelocityRescaling,
    VelocityVerlet,
)
from mdgraph.engine.kernels.device import gaussians as gaussians_of
from mdgraph.engine.kernels.device import words as words_of
from mdgraph.engine.kinetics import kinetic_energy, kinetic_tensor, remove_momentum_
from mdgraph.engine.random import THERMOSTAT, gaussians, philox
from mdgraph.gpu import launch
from mdgraph.neighbors import NeighborList
from mdgraph.state import State

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
LANES = 64
SIZES = (5, 260, 1)
"""Atoms of the systems of a batch; several programs share one of them."""


def cell_rescaling(cell_dof: str, axes: tuple[bool, bool, bool] | None = None) -> Integrator:
    return StochasticCellRescaling(
        5.0,
        Ramp(200.0, 300.0, 60),
        [1e-3, 2e-3, 0.0],
        tau_p=[100.0, 50.0, 200.0],
        compressibility=10.0,
        cell_dof=cell_dof,
        axes=axes,
    )


INTEGRATORS: dict[str, Callable[[], Integrator]] = {
    "verlet": lambda: VelocityVerlet(5.0),
    "langevin": lambda: LangevinMiddle(5.0, [300.0, 50.0, 0.0], [5.0, 20.0, 1.0]),
    "langevin, ramps": lambda: LangevinMiddle(
        5.0, Ramp(100.0, [300.0, 50.0, 600.0], 30, first=31), Ramp([1.0, 5.0, 9.0], 20.0, 25, 5)
    ),
    "velocity rescaling": lambda: StochasticVelocityRescaling(
        5.0, Ramp([300.0, 10.0, 0.0], 200.0, 60), [50.0, 20.0, 5.0]
    ),
    "nose-hoover": lambda: NoseHooverChains(
        5.0, Ramp([300.0, 150.0, 100.0], 200.0, 60), [50.0, 40.0, 80.0]
    ),
    "martyna-tobias-klein": lambda: MartynaTobiasKlein(
        5.0, Ramp(200.0, [300.0, 250.0, 100.0], 60), [1e-3, 2e-3, 0.0], tau_p=300.0
    ),
    "cell rescaling": lambda: cell_rescaling("isotropic"),
    "axes": lambda: cell_rescaling("axes"),
    "one axis": lambda: cell_rescaling("axes", (False, True, False)),
    "full cell": lambda: cell_rescaling("full"),
    "semiisotropic": lambda: cell_rescaling("semiisotropic"),
    "semiisotropic, fixed z": lambda: cell_rescaling("semiisotropic-fixed-z"),
    **{
        f"martyna-tobias-klein, {cell_dof}": lambda cell_dof=cell_dof: MartynaTobiasKlein(
            5.0, Ramp(200.0, 300.0, 60), [1e-3, 2e-3, 0.0], tau_p=300.0, cell_dof=cell_dof
        )
        for cell_dof in ("semiisotropic", "semiisotropic-fixed-z")
    },
}


@triton.jit
def _numbers_kernel(
    seed, step, replica, atom, words, numbers, COUNT: tl.constexpr, STREAM: tl.constexpr
):
    lane = tl.arange(0, COUNT)
    key, now = tl.load(seed), tl.load(step)
    own, index = tl.load(replica + lane), tl.load(atom + lane)
    a, b, c, d = words_of(key, now, own, index, STREAM)
    tl.store(words + lane, a.to(tl.int64))
    tl.store(words + COUNT + lane, b.to(tl.int64))
    tl.store(words + 2 * COUNT + lane, c.to(tl.int64))
    tl.store(words + 3 * COUNT + lane, d.to(tl.int64))
    x, y, z = gaussians_of(key, now, own, index, STREAM)
    tl.store(numbers + lane, x)
    tl.store(numbers + COUNT + lane, y)
    tl.store(numbers + 2 * COUNT + lane, z)


@pytest.mark.parametrize(
    ("seed", "step"), [(0, 0), (7, 12345), (2**63 - 1, 2**31), (2**40 + 3, 2**45 + 17)]
)
def test_random_numbers_are_those_of_torch(seed: int, step: int) -> None:
    generator = torch.Generator().manual_seed(1)
    replica = torch.randint(2**24, (LANES,), generator=generator)
    atom = torch.randint(2**32, (LANES,), generator=generator)
    key, now = torch.tensor(seed), torch.tensor(step)
    words = torch.zeros(4, LANES, dtype=torch.int64, device=DEVICE)
    numbers = torch.zeros(3, LANES, dtype=torch.float64, device=DEVICE)
    given = [one.to(DEVICE) for one in (key, now, replica, atom)]
    _numbers_kernel[(1,)](*given, words, numbers, COUNT=LANES, STREAM=THERMOSTAT)
    mask = 2**32 - 1
    counter = (now & mask, now >> 32, atom, (replica << 8) + THERMOSTAT)
    assert torch.equal(words.cpu(), torch.stack(philox(counter, (key & mask, key >> 32))))
    wanted = gaussians(key, now, replica, atom, THERMOSTAT).T
    # Where the cosine of an angle nearly vanishes, the angle's own rounding shows.
    assert torch.allclose(numbers.cpu(), wanted, rtol=4e-15, atol=4e-15)


def choose(by_kernels: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "step_kernels_on", lambda device: by_kernels)


class Pressed(HarmonicWells):
    """With a virial, whatever its atoms do."""

    def evaluate_(self, state: State, lists: Sequence[NeighborList]) -> None:
        super().evaluate_(state, lists)
        state.virial.add_(torch.arange(9.0, device=state.device).view(3, 3))


def simulation(
    name: str,
    by_kernels: bool,
    monkeypatch: pytest.MonkeyPatch,
    precision: str = "mixed",
) -> Simulation:
    """Neon and argon in wells, some of them fixed, as kernels or as torch moves them."""
    choose(by_kernels, monkeypatch)
    cell = np.array([[6.0, 1.0, 0.5], [-1.0, 6.5, 0.0], [0.7, 0.3, 7.0]])
    if "semiisotropic" in name:
        cell[:2, 2] = 0.0
    pbc = np.array([True, True, name != "axes"])
    boxes = [
        box((6.0, 6.5, 7.0), size, size).replace(cell=(1 + 0.1 * size % 1) * cell, pbc=pbc)
        for size in SIZES
    ]
    centres = torch.tensor(np.concatenate([one.positions for one in boxes])) + 0.1
    kind = torch.float32 if precision == "single" else torch.float64
    integrator = INTEGRATORS[name]()
    return Simulation(
        boxes,
        Pressed(centres.to(DEVICE, kind), 0.5),
        integrator,
        device=DEVICE,
        graph="off",
        seed=2**35 + 5,
        precision=precision,
        temperature=200.0,
        fixed=[] if integrator.cell_varies else [2, 100],
        chunk=50,
    )


@pytest.mark.parametrize("name", INTEGRATORS)
def test_steps_are_those_of_torch(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [simulation(name, kind, monkeypatch) for kind in (False, True)]
    start = runs[0].state.positions.clone()
    for by_kernels, run in enumerate(runs):
        choose(bool(by_kernels), monkeypatch)
        # Torch prepares steps up to the 32nd together.
        run.step = 30
        run.state.step.fill_(30)
        run.run(3)
        run.set(timestep=3.0)
        run.run(1)
    wanted, found = (bits(run) for run in runs)
    assert [run.integrator.by_kernels for run in runs] == [False, runs[1].integrator.has_kernels]
    assert wanted.keys() == found.keys()
    for key, value in wanted.items():
        assert value.dtype == found[key].dtype
        scale = float(value.abs().max())
        assert float((value - found[key]).abs().max()) <= 1e-13 * scale, key
    moved = (runs[1].state.positions - start).abs().amax(-1) > 1e-6
    assert torch.equal(moved, ~runs[1].state.fixed)


@pytest.mark.parametrize("name", INTEGRATORS)
def test_single_precision_keeps_its_type(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [simulation(name, kind, monkeypatch, "single") for kind in (False, True)]
    for by_kernels, run in enumerate(runs):
        choose(bool(by_kernels), monkeypatch)
        run.run(1)
    for key in ("positions", "velocities"):
        wanted, found = (getattr(run.state, key) for run in runs)
        assert found.dtype == torch.float32
        assert torch.allclose(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("sizes", [(1,), (3, 40, 1), (700,), (20_000,)])
def test_sums_over_systems_are_those_of_torch(sizes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to more atoms than all programs of a system take at once."""
    state = State([box((9.0, 9.0, 9.0), size, size) for size in sizes], DEVICE)
    generator = torch.Generator().manual_seed(1)
    state.velocities.copy_(torch.randn(state.velocities.shape, generator=generator) * 0.01)
    own = state.velocities.clone()
    for numbers in (kinetic_energy, kinetic_tensor):
        found = []
        for by_kernels in (False, True):
            choose(by_kernels, monkeypatch)
            found.append(numbers(state))
        scale = float(found[0].abs().max())
        torch.testing.assert_close(found[1], found[0], rtol=0.0, atol=1e-13 * scale)
    heat, other = torch.ones(2, len(own), dtype=torch.float64, device=DEVICE)
    remove_momentum_(state, torch.tensor(False, device=DEVICE), heat)
    assert torch.equal(state.velocities, own)
    assert torch.equal(heat, other)
    remove_momentum_(state, torch.tensor(True, device=DEVICE), heat)
    by_kernels = state.velocities.clone()
    state.velocities.copy_(own)
    choose(False, monkeypatch)
    remove_momentum_(state, heat=other)
    torch.testing.assert_close(by_kernels, state.velocities, rtol=0.0, atol=1e-15)
    assert float((other - 1.0).abs().max()) > 1e-4
    torch.testing.assert_close(heat, other, rtol=0.0, atol=1e-15)
    momentum = state.grouping.sum(state.masses[:, None] * by_kernels)
    assert float(momentum.abs().max()) < 1e-10


@pytest.mark.parametrize(
    ("names", "precision"),
    [(None, "mixed"), (("pressure_xz", "temperature", "conserved_energy"), "single")],
)
def test_averages_are_those_of_torch(
    names: tuple[str, ...] | None, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of states that have nothing to do with each other, in cells of any shape."""
    boxes = [box((6.0, 6.5, 7.0), size, size) for size in SIZES]
    wells = HarmonicWells(torch.zeros(1), 0.0)
    calculation = Calculation(boxes, wells, device=DEVICE, precision=precision)
    state = calculation.state
    state.degrees.copy_(torch.tensor([12.0, 777.0, 0.0]))
    both = []
    for by_kernels in (False, True):
        choose(by_kernels, monkeypatch)
        integrator = VelocityVerlet(1.0)
        integrator.allocate(state)
        both.append(Averages(names, every=2, start=4))
        both[-1].attach(calculation, integrator)
    generator = torch.Generator().manual_seed(1)
    for step in range(1, 20):
        for buffer in (state.velocities, state.energy, state.virial, state.cell):
            buffer.copy_(torch.randn(buffer.shape, generator=generator, dtype=torch.float64))
        state.step.fill_(step)
        for by_kernels, averages in enumerate(both):
            choose(bool(by_kernels), monkeypatch)
            averages.record_()
    wanted, found = (averages.tensors() for averages in both)
    assert int(found["samples"]) == int(wanted["samples"]) == 7
    for key, value in wanted.items():
        scale = value.abs().amax(0).amax(0) if value.dim() == 3 else value.abs()
        assert bool(((value - found[key]).abs() <= 1e-11 * scale).all()), key
    assert bool((wanted["squares"][0] > 0.0).any())
