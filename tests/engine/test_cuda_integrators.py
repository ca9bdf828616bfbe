"""What only a GPU can show of the kernels that move atoms: races, graphs, and the CPU's numbers."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from ensembles import assert_same, bits, box
from toys import HarmonicWells

from mdgraph.engine import (
    Averages,
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
from mdgraph.engine.kinetics import kinetic_energy, kinetic_tensor, remove_momentum_
from mdgraph.state import State

pytestmark = pytest.mark.gpu

SIZES = (7, 1, 3000, 24)
BATH = Ramp([300.0, 150.0, 400.0, 100.0], [200.0, 500.0, 50.0, 100.0], steps=60, first=20)


def cell_rescaling(cell_dof: str) -> Integrator:
    return StochasticCellRescaling(2.0, BATH, 1e-3, compressibility=10.0, cell_dof=cell_dof)


INTEGRATORS: dict[str, Callable[[], Integrator]] = {
    "verlet": lambda: VelocityVerlet(2.0),
    "langevin": lambda: LangevinMiddle(2.0, BATH, [5.0, 20.0, 1.0, 0.5]),
    "velocity rescaling": lambda: StochasticVelocityRescaling(2.0, BATH, [50.0, 20.0, 80.0, 10.0]),
    "nose-hoover": lambda: NoseHooverChains(2.0, BATH, [50.0, 40.0, 80.0, 60.0]),
    "cell rescaling": lambda: cell_rescaling("isotropic"),
    "axes": lambda: cell_rescaling("axes"),
    "full cell": lambda: cell_rescaling("full"),
    "semiisotropic": lambda: cell_rescaling("semiisotropic"),
    "semiisotropic, fixed z": lambda: cell_rescaling("semiisotropic-fixed-z"),
    "martyna-tobias-klein": lambda: MartynaTobiasKlein(2.0, BATH, 1e-3, tau_p=3000.0),
    **{
        f"martyna-tobias-klein, {cell_dof}": lambda cell_dof=cell_dof: MartynaTobiasKlein(
            2.0, BATH, 1e-3, tau_p=3000.0, cell_dof=cell_dof
        )
        for cell_dof in ("semiisotropic", "semiisotropic-fixed-z")
    },
}


def simulation(
    integrator: Integrator, device: str, graph: str = "off", sizes=SIZES, precision: str = "mixed"
) -> Simulation:
    # A barostat that acts along z refuses gaps of more than 8 A, and one box has a single atom.
    boxes = [box((9.0, 9.0, 7.5), size, size) for size in sizes]
    kind = torch.float32 if precision == "single" else torch.float64
    centres = torch.tensor(np.concatenate([one.positions for one in boxes])) + 0.1
    return Simulation(
        boxes,
        HarmonicWells(centres.to(device, kind), 0.5),
        integrator,
        device=device,
        graph=graph,
        seed=2**40 + 1,
        precision=precision,
        temperature=250.0,
        fixed=[] if integrator.cell_varies else [3, 50],
        chunk=25,
        observe=[Averages(every=3, start=5)],
    )


@pytest.mark.parametrize("precision", ["mixed", "single"])
@pytest.mark.parametrize("name", INTEGRATORS)
def test_replays_are_the_eager_bits(name, precision) -> None:
    runs = [
        simulation(INTEGRATORS[name](), "cuda", graph, precision=precision)
        for graph in ("on", "off")
    ]
    for run in runs:
        run.run(70)
        run.set(timestep=1.5)
        run.run(35)
    assert [run.graphed for run in runs] == [True, False]
    assert runs[0].integrator.by_kernels
    assert_same(*runs)


@pytest.mark.parametrize("name", INTEGRATORS)
def test_trajectories_are_those_of_the_cpu(name) -> None:
    runs = [simulation(INTEGRATORS[name](), device) for device in ("cpu", "cuda")]
    for run in runs:
        run.run(100)
    wanted, found = (bits(run) for run in runs)
    for key, value in wanted.items():
        scale = float(value.abs().max())
        # Blocks keep squares of small differences of large numbers.
        limit = 1e-9 if key.startswith("online.") else 1e-12
        limit = max(limit, 1e-11) if runs[0].integrator.cell_varies else limit
        assert float((value - found[key].cpu()).abs().max()) <= limit * scale, key


@pytest.mark.parametrize("name", ["verlet", "langevin", "velocity rescaling", "nose-hoover"])
def test_many_programs_agree_on_the_number_of_a_step(name) -> None:
    """The counter moves once a step, and every program of a step has seen the same number."""
    runs = []
    for _ in range(2):
        integrator = INTEGRATORS[name]()
        if name != "verlet":
            integrator = type(integrator)(2.0, 300.0)
        runs.append(simulation(integrator, "cuda", "on", sizes=(100_000,)))
        runs[-1].run(500)
    assert int(runs[0].state.step) == 500
    assert_same(*runs)


@pytest.mark.parametrize("sizes", [(24,) * 128, (100_000,), (5, 70_000, 300)])
def test_sums_are_those_of_the_cpu_and_repeat(sizes) -> None:
    states = []
    for device in ("cpu", "cuda"):
        state = State([box((9.0, 9.0, 9.0), size, size) for size in sizes], device)
        generator = torch.Generator().manual_seed(1)
        state.velocities.copy_(0.01 * torch.randn(state.velocities.shape, generator=generator))
        states.append(state)
    for numbers in (kinetic_energy, kinetic_tensor):
        wanted, found = (numbers(state) for state in states)
        scale = float(wanted.abs().max())
        torch.testing.assert_close(found.cpu(), wanted, rtol=0.0, atol=1e-13 * scale)
        assert torch.equal(numbers(states[1]), found)
    for state in states:
        remove_momentum_(state, state.step % 5 == 0)
    torch.testing.assert_close(
        states[1].velocities.cpu(), states[0].velocities, rtol=0.0, atol=1e-15
    )


@pytest.mark.parametrize("name", INTEGRATORS)
def test_a_first_step_compiles_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import triton

    from mdgraph.engine.kernels import atoms as kicks
    from mdgraph.engine.kernels import atoms as motion
    from mdgraph.engine.kernels import cell as barostat
    from mdgraph.engine.kernels import cell as deformation
    from mdgraph.engine.kernels import thermostats as chains
    from mdgraph.engine.kernels import thermostats as rescaling

    modules = (barostat, chains, deformation, kicks, motion, rescaling)
    kernels = {
        name: value
        for module in modules
        for name, value in vars(module).items()
        if isinstance(value, triton.JITFunction) and name.endswith("_kernel")
    }
    for kernel in kernels.values():
        kernel.device_caches.clear()
    run = simulation(INTEGRATORS[name](), "cuda")
    before = run.state.positions.clone()
    compiled: list[str] = []
    monkeypatch.setattr(
        triton.knobs.compilation, "listener", lambda **event: compiled.append(event["src"].name)
    )
    run.run(1)
    assert not set(compiled) & set(kernels)
    assert not torch.equal(run.state.positions, before)
