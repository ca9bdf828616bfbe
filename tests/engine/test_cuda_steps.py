"""What only a GPU can show: the captured step is the eager step, and repeats bit for bit."""

import numpy as np
import pytest
import torch
from cuda_water import evaluator, liquid, potential, simulation

from mdgraph.engine import Calculation, LangevinMiddle, Simulation, VelocityVerlet
from mdgraph.engine.reporting import HostSnapshot
from mdgraph.engine.restart import load_restart_, save_restart
from mdgraph.models import (
    Atoms,
)
from mdgraph.models.ops.messages import forces_and_virials
from mdgraph.neighbors import NeighborList
from mdgraph.state import State

pytestmark = pytest.mark.gpu


INTEGRATORS = {
    "verlet": lambda: VelocityVerlet(0.5),
    "langevin": lambda: LangevinMiddle(0.5, 300.0, 5.0),
}


def same(first: Simulation, second: Simulation) -> bool:
    tensors = second.state.tensors()
    return all(torch.equal(value, tensors[name]) for name, value in first.state.tensors().items())


@pytest.mark.parametrize("name", INTEGRATORS)
@pytest.mark.parametrize("skin", [0.0, 0.5])
def test_graph_and_eager_trajectories_are_the_same_bits(name: str, skin: float) -> None:
    runs = [
        simulation(liquid(), INTEGRATORS[name](), graph=graph, skin=skin) for graph in ("on", "off")
    ]
    for run in runs:
        run.run(150)
    assert [run.graphed for run in runs] == [True, False]
    assert same(*runs)


@pytest.mark.parametrize("name", INTEGRATORS)
def test_a_run_repeats_bit_for_bit(name: str) -> None:
    runs = [simulation(liquid(), INTEGRATORS[name]()) for _ in range(2)]
    for run in runs:
        run.run(200)
    assert same(*runs)


@pytest.mark.parametrize("skin", [0.0, 0.5])
@pytest.mark.parametrize("step", [1, 73, 140])
def test_overflow_at_any_step_leaves_the_same_bits(step: int, skin: float) -> None:
    ample = simulation(liquid(), LangevinMiddle(0.5, 300.0, 5.0), skin=skin)
    ample.run(200)
    tight = simulation(liquid(), LangevinMiddle(0.5, 300.0, 5.0), skin=skin)
    tight.run(step)
    rows = tight.calculation.lists[0]
    rows._allocate(16, *rows.reference())
    rows.sticky()[0].zero_()
    tight.step_graphs.forget()
    tight.run(200 - step)
    assert rows.capacity > 16
    assert same(ample, tight)


@pytest.mark.parametrize("interval", [16, 50])
def test_recorders_get_the_states_of_reporters_while_later_steps_run(interval: int) -> None:
    class Recorder:
        def __init__(self) -> None:
            self.interval = interval
            self.ahead: list[int] = []
            self.seen: list[torch.Tensor] = []

        def record(self, view: HostSnapshot) -> None:
            self.ahead.append(recorded.step - view.step)
            self.seen.append(torch.cat([view.positions, view.velocities, view.forces]))

    class Reporter:
        def __init__(self) -> None:
            self.interval = interval
            self.seen: list[torch.Tensor] = []

        def report(self, run: Simulation) -> None:
            state = run.state
            self.seen.append(torch.cat([state.positions, state.velocities, state.forces]).cpu())

    recorded, reported = (simulation(liquid(), LangevinMiddle(0.5, 300.0, 5.0)) for _ in range(2))
    recorder, reporter = Recorder(), Reporter()
    recorded.recorders.append(recorder)
    reported.reporters.append(reporter)
    for run in (recorded, reported):
        rows = run.calculation.lists[0]
        rows._allocate(16, *rows.reference())
        rows.sticky()[0].zero_()
        run.run(400)
        assert rows.capacity > 16
    assert same(recorded, reported)
    assert recorder.ahead[:2] == [interval, interval]
    assert len(recorder.seen) == len(reporter.seen) == 400 // interval
    assert all(map(torch.equal, recorder.seen, reporter.seen))


def test_resume_continues_with_the_same_bits(tmp_path) -> None:  # type: ignore[no-untyped-def]
    whole = simulation(liquid(), LangevinMiddle(0.5, 300.0, 5.0), skin=0.5)
    whole.run(77)
    save_restart(whole, tmp_path / "restart.safetensors")
    whole.run(123)
    resumed = simulation(liquid(), LangevinMiddle(0.5, 300.0, 5.0), skin=0.5)
    load_restart_(resumed, tmp_path / "restart.safetensors")
    resumed.run(123)
    assert same(whole, resumed)


@pytest.mark.parametrize("architecture", ["tensornet", "tensornet2"])
@pytest.mark.parametrize("molecules", [8, 64, 1000])
def test_cuda_agrees_with_the_cpu(architecture: str, molecules: int) -> None:
    systems = [liquid(molecules), liquid(5, seed=2)] if molecules < 1000 else [liquid(molecules)]
    results = {}
    for device in ("cpu", "cuda"):
        model = evaluator(device, "double", architecture)
        calculation = Calculation(systems, model, device=device, precision="double")
        calculation.compute()
        results[device] = calculation.state
    cpu, cuda = results["cpu"], results["cuda"]
    scale = cpu.forces.square().mean().sqrt()
    assert float((cpu.forces - cuda.forces.cpu()).abs().max() / scale) < 1e-10
    assert float((cpu.energy - cuda.energy.cpu()).abs().max()) < 1e-9 * len(cpu.forces)
    assert float((cpu.virial - cuda.virial.cpu()).abs().max()) < 1e-8 * len(cpu.forces)


def test_the_list_on_cuda_is_the_list_on_the_cpu() -> None:
    for molecules in (64, 3000):
        rows = {}
        for device in ("cpu", "cuda"):
            model = evaluator(device)
            calculation = Calculation([liquid(molecules)], model, device=device, skin=0.0)
            rows[device] = calculation.lists[0]
        assert torch.equal(rows["cpu"].count, rows["cuda"].count.cpu())
        # Blocks, and so capacities, differ between the two; the rows do not.
        width = int(rows["cpu"].count.max())
        for name in ("index", "image", "reverse"):
            cpu, cuda = (getattr(rows[device], name)[:, :width].cpu() for device in rows)
            used = torch.arange(width) < rows["cpu"].count[:, None]
            assert torch.equal(cpu[used], cuda[used])


def test_a_failure_names_the_step_and_keeps_the_last_good_state() -> None:
    from mdgraph.errors import SimulationError

    run = simulation(liquid(), VelocityVerlet(0.5), maximum_temperature=600.0)
    run.run(30)
    with torch.no_grad():
        run.state.velocities[7] *= 100.0
    with pytest.raises(SimulationError) as caught:
        run.run(200)
    assert caught.value.step > 30
    assert 7 in caught.value.atoms
    assert torch.isfinite(run.state.positions).all()


def test_constant_energy_on_the_gpu() -> None:
    run = simulation(liquid(), VelocityVerlet(0.25), check=True)
    energies = []
    for _ in range(10):
        run.run(20)
        seen = run.observables()
        energies.append(float(seen.potential_energy + seen.kinetic_energy))
    kinetic = float(run.observables().kinetic_energy)
    assert np.ptp(energies) < 1e-3 * kinetic


@pytest.mark.gpu(2)
def test_every_device_captures_and_gives_the_same_bits() -> None:
    runs = [simulation(liquid(), INTEGRATORS["langevin"](), device=f"cuda:{n}") for n in (0, 1)]
    for run in runs:
        run.run(100)
    assert [run.graphed for run in runs] == [True, True]
    assert torch.equal(runs[0].state.positions.cpu(), runs[1].state.positions.cpu())


def test_gradients_of_a_force_loss_agree_with_the_cpu() -> None:
    """Training differentiates the kernels twice."""
    gradients = {}
    for device in ("cpu", "cuda"):
        model = potential().to(device)
        state = State([liquid(8), liquid(5, seed=2)], device)
        atoms = Atoms(state.numbers, state.elements, state.kinds, state.charge, state.grouping)
        pairs = NeighborList(state, model.config.cutoff).pairs(state.positions, state.cell)
        energies = model(atoms, (pairs,))
        slopes = torch.autograd.grad(energies.sum(), pairs.vectors, create_graph=True)
        forces, virials = forces_and_virials(pairs, slopes)
        loss = forces.square().sum() + virials.square().sum() + energies.square().sum()
        gradients[device] = torch.autograd.grad(loss, list(model.network.parameters()))
    for cpu, cuda in zip(gradients["cpu"], gradients["cuda"], strict=True):
        scale = float(cpu.abs().max()) + 1e-12
        assert float((cpu - cuda.cpu()).abs().max()) < 1e-9 * scale
