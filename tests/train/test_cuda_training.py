"""What only a GPU can show of training: captured steps train as eager ones do, in little memory."""

import gc
import itertools
import json
import logging
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from ase import Atoms
from training_sets import NETWORK, clusters, crystals, labelled, prepare, weights_of

from mdgraph.processes import keep_workspaces_small
from mdgraph.runs.training import read_training
from mdgraph.train.loop import WORKSPACES, Training
from mdgraph.train.optimizers import StepControls
from mdgraph.train.progress import CHECKPOINT, read_checkpoint
from mdgraph.train.step import TrainingStep

pytestmark = pytest.mark.gpu

# As the command does, before anything multiplies matrices in this process.
keep_workspaces_small(WORKSPACES)


def trained(path: Path, folder: Path, **changes: object) -> Training:
    training = Training(
        read_training(path, {"device": "cuda", "out": str(folder), **changes}),
        resume=False,
        quiet=True,
    )
    training.run()
    return training


@pytest.mark.parametrize(
    ("resident", "optimizer"),
    [
        (True, "adamw"),
        (False, "adamw"),
        (True, "nadam"),
        (True, "radam"),
        (True, "sgd"),
        (True, "muon"),
    ],
)
def test_captured_steps_train_as_eager_ones(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, resident: bool, optimizer: str
) -> None:
    """Captured products of matrices may be taken in other pieces, so digits are lost over steps."""
    frames = [*clusters(24), *crystals(12)]
    loss = {"stress": {"weight": 100.0}}
    options = {"shapes": 3, "loss": loss, "learning_rate": 1e-3, "optimizer": optimizer}
    path = prepare(tmp_path, frames, steps=30, **options)
    with caplog.at_level(logging.WARNING):
        graphed = trained(path, tmp_path / "graphed", resident=resident)
    # So few steps learn nothing, which is said at the end; nothing else may be.
    assert {one.name for one in caplog.records} <= {"mdgraph.train.report"}
    assert all(graph is not None for graph in graphed.step._graphs.values())
    assert len(graphed.step._graphs) == len(graphed.store.shapes)
    eager = trained(path, tmp_path / "eager", eager=True)
    for name, value in eager.step.parameters.items():
        torch.testing.assert_close(
            graphed.step.parameters[name].detach(), value.detach(), rtol=1e-3, atol=1e-5
        )


def test_dipoles_are_learned_in_captured_steps(tmp_path: Path) -> None:
    """Fixed charges of Cu4O, which the charges of a TensorNet2 take over."""
    frames = []
    for frame in clusters(48)[0::2]:
        charges = np.where(frame.numbers == 8, -0.8, 0.2)
        frames.append(replace(frame, dipole=charges @ frame.positions))
    network = NETWORK | {"architecture": "tensornet2", "charge_channels": 4}
    loss = {"dipole": {"weight": 20.0}, "energy": {"weight": 1.0}}
    path = prepare(tmp_path, frames, potential=network, loss=loss, steps=100)
    training = trained(path, tmp_path / "out")
    assert all(graph is not None for graph in training.step._graphs.values())
    found = json.loads((tmp_path / "out" / "metrics.json").read_text())
    size = 1e3 * np.sqrt(np.mean(np.array([frame.dipole for frame in frames]) ** 2))
    assert found["validation"]["dipole_rmse_me_A"] < 0.2 * size


def test_the_gpu_trains_as_the_cpu_does(tmp_path: Path) -> None:
    path = prepare(tmp_path, clusters(24), steps=60, precision="double")
    logs = []
    for device in ("cuda", "cpu"):
        trained(path, tmp_path / device, device=device)
        logs.append(np.genfromtxt(tmp_path / device / "log.csv", delimiter=",", names=True))
    for name in ("loss", "validation_force_rmse_meV_per_A"):
        np.testing.assert_allclose(logs[0][name], logs[1][name], rtol=1e-4)


def test_two_trainings_give_the_same_bits(tmp_path: Path) -> None:
    """Nothing is added in an order of its own: not over neighbors, elements or atoms."""
    path = prepare(tmp_path, [*clusters(24), *crystals(12)], shapes=2, steps=30)
    one, other = (trained(path, tmp_path / name).step.parameters for name in ("one", "other"))
    assert all(torch.equal(value, other[name]) for name, value in one.items())


def test_a_stopped_training_goes_on_from_its_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Among captured steps the signal is seen on the host, and the checkpoint is of that step."""
    path = prepare(tmp_path, clusters(16), steps=30, validations=1)
    trained(path, tmp_path / "out")
    run, steps = TrainingStep.run, itertools.count(1)

    def signalled(self: TrainingStep, shape: int, controls: StepControls) -> None:
        run(self, shape, controls)
        if next(steps) == 13:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(TrainingStep, "run", signalled)
    with pytest.raises(KeyboardInterrupt):
        trained(path, tmp_path / "stopped")
    assert read_checkpoint(tmp_path / "stopped" / CHECKPOINT).progress.step == 13
    config = read_training(path, {"device": "cuda", "out": str(tmp_path / "stopped")})
    Training(config, resume=True, quiet=True).run()
    one, other = (weights_of(tmp_path / name) for name in ("out", "stopped"))
    for name, value in one.items():
        torch.testing.assert_close(other[name], value, rtol=1e-4, atol=1e-5)


def test_a_step_takes_half_the_memory_of_torchmdnet(tmp_path: Path) -> None:
    """TorchMD-Net 3.1.0 takes 0.33 GB for 8 frames of 21 atoms, as many as aspirin has."""
    generator = np.random.default_rng(0)
    places = 1.35 * np.stack(np.meshgrid(*[np.arange(3)] * 3), -1).reshape(-1, 3)[:21]
    frames = [
        labelled(Atoms("C9H8O4", places + generator.normal(scale=0.1, size=places.shape)))
        for _ in range(24)
    ]
    network = {
        "channels": 128,
        "layers": 2,
        "cutoff": 5.0,
        "radial_basis": {"number": 32},
        "readout": {"hidden": [64]},
    }
    path = prepare(tmp_path, frames, potential=network, batch=8, steps=12)
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    trained(path, tmp_path / "out")
    assert torch.cuda.max_memory_allocated() - before < 0.5 * 0.33e9


def test_more_shapes_take_no_more_workspaces(tmp_path: Path) -> None:
    """Of cuBLAS, which has one for each thread and stream: 32 MiB on some GPUs."""
    taken = []
    for frames in (clusters(24), [*clusters(24), *crystals(24)]):
        folder = tmp_path / str(len(frames))
        folder.mkdir()
        torch._C._cuda_clearCublasWorkspaces()
        training = trained(prepare(folder, frames, shapes=3), folder / "out")
        shapes = len(training.step._graphs)
        del training
        gc.collect()
        held = torch.cuda.memory_allocated()
        torch._C._cuda_clearCublasWorkspaces()
        taken.append((shapes, held - torch.cuda.memory_allocated()))
    (one, first), (more, second) = taken
    assert one < more
    assert first == second > 0
