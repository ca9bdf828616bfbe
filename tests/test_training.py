"""Training learns, resumes to the same weights, and says what is wrong."""

import json
import logging
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
import pytest
import torch
import yaml
from ase import Atoms
from ase.calculators.emt import EMT
from recording import RecordedGraph
from safetensors import safe_open
from training_sets import NETWORK, clusters, crystals, prepare

from mdgraph.checkpoints import load, save
from mdgraph.data import open_dataset
from mdgraph.drivers.ase import MDGraphCalculator
from mdgraph.engine import Calculation
from mdgraph.errors import InputError, MDGraphError
from mdgraph.models import TensorNetConfig, TensorNetPotential
from mdgraph.runs.training import read_training
from mdgraph.system import System
from mdgraph.train import output
from mdgraph.train import step as step_module
from mdgraph.train.batches import Prediction
from mdgraph.train.configuration import LossConfig, TrainConfig
from mdgraph.train.frames import FrameStore
from mdgraph.train.loop import Training, train
from mdgraph.train.losses import errors, loss
from mdgraph.train.sampling import Sampler
from mdgraph.train.schedule import controls_at
from mdgraph.train.shapes import plan_shapes

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def _pictures_in_one_test_alone(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They take longer than the trainings here."""
    if request.function is not test_a_small_set_is_learned_and_runs:
        monkeypatch.setattr(output, "write_report", lambda path, *_: path.write_text(""))


def settings(path: Path, **changes: Any) -> TrainConfig:
    return read_training(path, changes)


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def assert_same(first: Path, second: Path) -> None:
    one, other = weights_of(first), weights_of(second)
    assert one.keys() == other.keys()
    assert all(torch.equal(value, other[name]) for name, value in one.items())


# Batches


KINDS = {
    "tensornet": {},
    "charged": {
        "architecture": "tensornet2",
        "charge_channels": 2,
        "coulomb": {"cutoff": 6.0},
        "self_interaction": True,
    },
    "repelled": {"repulsion": [{"kind": "matgl", "cutoff": 4.0}], "group": "SO(3)"},
}


@pytest.mark.parametrize("kind", KINDS)
def test_padded_batches_give_what_single_frames_do(tmp_path: Path, kind: str) -> None:
    """Frames of 2 to 5 atoms, with and without cells, padded into shared shapes."""
    frames = [*clusters(6), *crystals(6)]
    config = settings(prepare(tmp_path, frames, shapes=2))
    torch.manual_seed(0)
    network = TensorNetConfig(species=(8, 29), **(NETWORK | KINDS[kind]))  # type: ignore[arg-type]
    potential = TensorNetPotential(network)
    potential.scale.fill_(3.0)
    potential.shift.fill_(0.7)
    potential.references.copy_(torch.tensor([1.0, -2.0]))
    every = np.arange(len(frames))
    with open_dataset(tmp_path / "set.h5") as dataset:
        store = FrameStore(dataset, every, every, potential, config)
        if kind != "charged":
            assert len(store.shapes) <= 2
        assert sum(len(shape.frames) for shape in store.shapes) == len(frames)
        seen = 0
        for places, batch in store.covering(every):
            found, labels = batch.predict(potential, differentiable=False)
            for row, place in enumerate(places):
                frame = frames[place]
                system = System(frame.numbers, frame.positions, frame.cell, frame.pbc)
                alone = Calculation(
                    [system], potential, device="cpu", precision="double", evaluator="reference"
                )
                alone.compute()
                state, n = alone.state, len(frame)
                assert found.energy[row].item() == pytest.approx(float(state.energy), abs=1e-9)
                torch.testing.assert_close(found.forces[row, :n], state.forces, atol=1e-9, rtol=0)
                assert (found.forces[row, n:] == 0.0).all()
                assert float(labels.energy[row]) == frame.energy
                np.testing.assert_array_equal(labels.forces[row, :n], frame.forces)
                if frame.pbc.all():
                    virial = -0.5 * (state.virial[0] + state.virial[0].T)
                    volume = abs(np.linalg.det(frame.cell))
                    torch.testing.assert_close(
                        found.stress[row], virial / volume, atol=1e-9, rtol=0
                    )
                seen += 1
        assert seen == len(frames)


def test_shapes_hold_every_frame_and_waste_little() -> None:
    generator = np.random.default_rng(0)
    atoms = generator.integers(2, 200, 500)
    slots = generator.integers(5, 60, (500, 1))
    frames = np.arange(1000, 1500)
    shapes = plan_shapes(frames, atoms, slots, 500, exact=False, counted=frames)
    few = plan_shapes(frames, atoms, slots, 4, exact=False, counted=frames, least=2)
    assert len(few) == 4
    for plan in (shapes, few):
        assert sorted(np.concatenate([shape.frames for shape in plan])) == frames.tolist()
        for shape in plan:
            held = shape.frames - 1000
            assert atoms[held].max() == shape.atoms
            assert slots[held].max() <= shape.slots[0]
    used = (atoms * slots[:, 0]).sum()
    padded = sum(len(shape.frames) * shape.atoms * shape.slots[0] for shape in shapes)
    assert padded < 1.6 * used
    exact = plan_shapes(frames, atoms, slots, 4, exact=True, counted=frames)
    assert all((atoms[shape.frames - 1000] == shape.atoms).all() for shape in exact)


def test_epochs_show_every_frame_once_and_repeat() -> None:
    sampler = Sampler((np.arange(10), np.arange(7)), (3, 2), seed=4)
    assert sampler.steps_per_epoch == 6
    for number in range(3):
        epoch = sampler.epoch(number)
        for shape, size in ((0, 9), (1, 6)):
            rows = np.concatenate([rows for which, rows in epoch if which == shape])
            assert len(rows) == len(set(rows)) == size
        again = sampler.epoch(number)
        assert all((one[1] == other[1]).all() for one, other in zip(epoch, again, strict=True))
    orders = [np.concatenate([rows for _, rows in sampler.epoch(n)]).tolist() for n in (0, 1)]
    assert orders[0] != orders[1]


# Loss and schedule


def test_penalties_by_hand() -> None:
    class Labels:
        energy = torch.tensor([1.0, 5.0], dtype=torch.float64)
        atoms = torch.tensor([2, 1])
        forces = torch.zeros(2, 2, 3, dtype=torch.float64)
        stress = torch.zeros(2, 3, 3, dtype=torch.float64)
        energy_weight = torch.tensor([1.0, 0.0], dtype=torch.float64)
        force_weight = torch.tensor([[1.0, 3.0], [1.0, 0.0]], dtype=torch.float64)
        stress_weight = torch.tensor([0.0, 1.0], dtype=torch.float64)

    forces = torch.zeros(2, 2, 3, dtype=torch.float64)
    forces[0, 0] = torch.tensor([3.0, 0.0, 4.0])
    forces[0, 1, 0] = 1.5
    forces[1, 1] = 100.0  # padding, of no weight
    stress = torch.full((2, 3, 3), 2.0, dtype=torch.float64)
    found = Prediction(torch.tensor([5.0, 9.0], dtype=torch.float64), forces, stress)
    scale, labels = torch.tensor(0.5, dtype=torch.float64), Labels()
    expected = {
        "mse": 4 * (25.0 / 3 + 3 * 2.25 / 3),
        "mae": 2 * (7.0 / 3 + 3 * 1.5 / 3),
        "norm": 2 * (5.0 + 3 * 1.5),
        "huber": (5.5 + 7.5) / 3 + 3 * 2.5 / 3,
    }
    for kind, value in expected.items():
        config = LossConfig.model_validate({"forces": {"kind": kind}})
        terms = errors(config, scale, found, labels)  # type: ignore[arg-type]
        assert float(terms.terms[1]) == pytest.approx(value)
        assert terms.counts.tolist() == [1.0, 3.0, 1.0]
        assert float(terms.terms[0]) == pytest.approx((2.0 / 0.5) ** 2)
        assert float(terms.terms[2]) == pytest.approx(16.0)
        weights = torch.tensor([1.0, 10.0, 0.0])
        assert float(loss(terms, weights, terms.counts)) == pytest.approx(16.0 + 10 / 3 * value)


def test_schedules_of_rate_average_and_weights(tmp_path: Path) -> None:
    path = prepare(tmp_path, clusters(4), warmup=0.1, loss={"energy": {"weight": "1:9"}})
    config = settings(path, learning_rate=1e-2, final_learning_rate=1e-4, average=0.99)
    rates = [controls_at(config, step, 1000, 1.0).learning_rate for step in range(1001)]
    assert rates[0] < 2e-4
    assert max(rates) == pytest.approx(1e-2, rel=1e-3)
    assert rates.index(max(rates)) == pytest.approx(100, abs=1)
    assert rates[550] == pytest.approx(0.5 * (1e-2 + 1e-4), rel=1e-2)
    assert rates[-1] == pytest.approx(1e-4)
    assert controls_at(config, 500, 1000, 0.5).learning_rate == 0.5 * rates[500]
    assert [controls_at(config, step, 1000, 1.0).weights[0] for step in (0, 500, 1000)] == [1, 5, 9]
    assert controls_at(config, 0, 1000, 1.0).decay == pytest.approx(0.1)
    assert controls_at(config, 5000, 9000, 1.0).decay == 0.99


# Learning


def test_a_small_set_is_learned_and_runs(
    tmp_path: Path, mdgraph_command: Callable[..., Any]
) -> None:
    """From a data set by the command to a calculator with the errors that the table states.

    Forces of an untrained network are off by their own size; 200 steps leave less than a quarter.
    """
    frames = clusters(60)
    path = prepare(tmp_path, frames, steps=200, validations=5, average=0.95, name="copper")
    done = mdgraph_command("train", path)
    assert done.status == 0, done.err
    folder = tmp_path / "out"
    metrics = json.loads((folder / "metrics.json").read_text())
    with open_dataset(tmp_path / "set.h5") as dataset:
        split = json.loads((folder / "split.json").read_text())
        held = [dataset.frame(index) for index in split["validation"]]
    size = np.sqrt(np.mean(np.concatenate([f.forces for f in held]) ** 2))
    rmse = metrics["validation"]["force_rmse_meV_per_A"]
    assert rmse < 0.25 * 1e3 * size
    spread = np.std([frame.energy / len(frame) for frame in held])
    assert metrics["validation"]["energy_rmse_meV_per_atom"] < 0.25 * 1e3 * spread
    assert set(metrics["validation"]["by_group"]) == {"Cu4O", "Cu5"}

    calculator = MDGraphCalculator(folder, device="cpu", precision="double")
    wrong = []
    for frame in held:
        atoms = Atoms(frame.numbers, frame.positions, calculator=calculator)
        wrong.append(atoms.get_forces() - frame.forces)
    assert 1e3 * np.sqrt(np.mean(np.concatenate(wrong) ** 2)) == pytest.approx(rmse, rel=1e-3)

    log = np.genfromtxt(folder / "log.csv", delimiter=",", names=True)
    assert log["step"].tolist() == [40, 80, 120, 160, 200]
    assert log["train_force_rmse_meV_per_A"][-1] < 0.5 * log["train_force_rmse_meV_per_A"][0]
    report = (folder / "report.html").read_text()
    assert report.count("data:image/png") == 3
    assert f"{rmse:.4g}" in report
    card = (folder / "card.md").read_text()
    assert "# copper" in card
    assert "MIT" in card
    config = load(folder).config
    assert (config.name, config.licence, len(config.training_hash)) == ("copper", "MIT", 64)


def test_stress_is_learned_from_crystals_of_two_sizes(tmp_path: Path) -> None:
    loss = {"stress": {"weight": 1000.0}, "energy": {"weight": 5.0}}
    path = prepare(tmp_path, crystals(24), steps=100, batch=6, shapes=1, loss=loss)
    metrics = train(settings(path), quiet=True).metrics
    before = train(settings(path, out=str(tmp_path / "untrained"), steps=1), quiet=True).metrics
    name = "stress_rmse_meV_per_A3"
    assert metrics["validation"][name] < 0.4 * before["validation"][name]


def test_frames_streamed_from_the_host_give_the_same_weights(tmp_path: Path) -> None:
    path = prepare(tmp_path, [*clusters(12), *crystals(8)], shapes=3)
    train(settings(path), quiet=True)
    train(settings(path, out=str(tmp_path / "streamed"), resident=False), quiet=True)
    assert_same(tmp_path / "out", tmp_path / "streamed")


def test_a_recorded_step_is_the_eager_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A stand-in for a CUDA graph: static memory, no reads; one graph for each shape."""
    path = prepare(tmp_path, [*clusters(12), *crystals(8)], shapes=3)
    train(settings(path), quiet=True)
    graphs = []

    def captured(function: Callable[[], None], device: torch.device, pool: Any) -> RecordedGraph:
        for _ in range(3):
            function()
        graphs.append(RecordedGraph(function))
        return graphs[-1]

    monkeypatch.setattr(step_module, "can_capture", lambda device: True)
    monkeypatch.setattr(step_module, "captured", captured)
    train(settings(path, out=str(tmp_path / "captured")), quiet=True)
    assert len(graphs) > 1
    assert_same(tmp_path / "out", tmp_path / "captured")

    class Twice:
        """A graph that does not do what its function does."""

        pool = None

        def __init__(self, function: Callable[[], None]) -> None:
            self.replay = lambda: [function() for _ in range(2)]

    monkeypatch.setattr(step_module, "captured", lambda function, device, pool: Twice(function))
    train(settings(path, out=str(tmp_path / "wrong")), quiet=True)
    assert "all steps of its shape run eagerly" in caplog.text
    assert_same(tmp_path / "out", tmp_path / "wrong")
    monkeypatch.setattr(step_module, "captured", lambda function, device, pool: None)
    train(settings(path, out=str(tmp_path / "fallback")), quiet=True)
    assert_same(tmp_path / "out", tmp_path / "fallback")


# Resuming


def test_a_killed_training_resumes_to_the_same_weights(tmp_path: Path) -> None:
    path = prepare(tmp_path, clusters(16), steps=90, validations=6, checkpoint_interval=20)
    train(settings(path), quiet=True)
    command = [sys.executable, "-m", "mdgraph", "train", str(path), "--out", "killed"]
    environment = os.environ | {"OMP_NUM_THREADS": str(torch.get_num_threads())}
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL)
    log = tmp_path / "killed" / "log.csv"
    while process.poll() is None and not (log.exists() and log.read_text().count("\n") >= 3):
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not (tmp_path / "killed" / "model.safetensors").exists()
    with pytest.raises(InputError, match=r"not those that .* was begun with"):
        train(settings(path, out=str(tmp_path / "killed"), seed=7), resume=True, quiet=True)
    train(settings(path, out=str(tmp_path / "killed")), resume=True, quiet=True)
    assert_same(tmp_path / "out", tmp_path / "killed")
    logs = [
        np.genfromtxt(tmp_path / name / "log.csv", delimiter=",", names=True)
        for name in ("out", "killed")
    ]
    for name in ("step", "loss", "validation_force_rmse_meV_per_A"):
        assert logs[0][name].tolist() == logs[1][name].tolist()


@pytest.mark.parametrize(("step", "back"), [(35, 30), (30, 20)])
def test_a_loss_that_is_not_finite_is_rolled_back_once(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    step: int,
    back: int,
) -> None:
    """The step before a look spoils the weights, and no loss tells of it yet."""
    path = prepare(tmp_path, clusters(16), steps=60, validations=6)
    spoiled = [step]
    run = step_module.TrainingStep.run

    def spoiling(self: Any, shape: int, controls: Any) -> None:
        run(self, shape, controls)
        spoiled[0] -= 1
        if spoiled[0] == 0:
            next(iter(self.parameters.values())).data.fill_(torch.nan)

    monkeypatch.setattr(step_module.TrainingStep, "run", spoiling)
    with caplog.at_level(logging.WARNING):
        training = Training(settings(path), resume=False, quiet=True)
        outcome = training.run()
    assert f"goes on from step {back} with half the learning rate" in caplog.text
    assert training.progress.factor == 0.5
    assert outcome.steps == 60
    assert np.isfinite(outcome.metrics["validation"]["force_rmse_meV_per_A"])

    def always(self: Any, shape: int, controls: Any) -> None:
        run(self, shape, controls)
        next(iter(self.parameters.values())).data.fill_(torch.nan)

    monkeypatch.setattr(step_module.TrainingStep, "run", always)
    with pytest.raises(MDGraphError, match="after one rollback already"):
        train(settings(path, out=str(tmp_path / "bad")), quiet=True)


def test_a_batch_that_does_not_fit_is_halved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = prepare(tmp_path, clusters(16), batch=8, steps=None, epochs=4)
    run = step_module.TrainingStep.run

    def limited(self: Any, shape: int, controls: Any) -> None:
        if len(self.batches[shape]) > 2:
            raise torch.OutOfMemoryError("no room")
        run(self, shape, controls)

    monkeypatch.setattr(step_module.TrainingStep, "run", limited)
    with caplog.at_level(logging.WARNING):
        outcome = train(settings(path), quiet=True)
    assert "halved to 2 frames" in caplog.text
    assert outcome.steps == 4 * 12 // 2


def test_early_stop_and_plateau(tmp_path: Path) -> None:
    path = prepare(tmp_path, clusters(8), steps=200, validations=50)
    options = {"schedule": "plateau", "plateau_patience": 2, "learning_rate": 1e-9}
    config = settings(path, **options, final_learning_rate=0.0, patience=6)
    training = Training(config, resume=False, quiet=True)
    monotone = training.progress.judge
    training.progress.judge = lambda score: monotone(1.0)  # type: ignore[method-assign]
    outcome = training.run()
    assert outcome.steps == 28
    assert training.progress.factor == pytest.approx(0.125)


# Several processes


def test_two_processes_are_one_with_twice_the_batch(tmp_path: Path) -> None:
    frames = [*clusters(16), *crystals(8)]
    path = prepare(tmp_path, frames, shapes=2, batch=4, steps=12, precision="double")
    train(settings(path), quiet=True)
    prepare(
        tmp_path, frames, shapes=2, batch=2, steps=12, precision="double", out=str(tmp_path / "two")
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "mdgraph", "train", str(tmp_path / "two.yaml")],
            env=os.environ | shared | {"RANK": rank, "LOCAL_RANK": rank, "OMP_NUM_THREADS": "1"},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in ("0", "1")
    ]
    try:
        for process in running:
            _, said = process.communicate(timeout=60)
            assert process.returncode == 0, said
    finally:
        for process in running:
            process.kill()
    one, two = weights_of(tmp_path / "out"), weights_of(tmp_path / "two")
    for name, value in one.items():
        torch.testing.assert_close(two[name].double(), value.double(), rtol=1e-6, atol=1e-6)


# Starts


def test_isolated_atoms_give_the_references(tmp_path: Path) -> None:
    frames = clusters(12)
    single = [
        type(frames[0])(
            np.array([number]), np.zeros((1, 3)), energy=energy, forces=np.zeros((1, 3))
        )
        for number, energy in ((8, -432.1), (29, -45000.25))
    ]
    shifted = []
    for frame in frames:
        energy = frame.energy + sum({8: -432.1, 29: -45000.25}[int(n)] for n in frame.numbers)
        shifted.append(type(frame)(**(vars(frame) | {"energy": energy})))
    path = prepare(tmp_path, [*shifted, *single], split=None, seed=3, refit=False, steps=1)
    training = Training(settings(path), resume=False, quiet=True)
    references = training.potential.references
    assert float(references[0] - references[1]) == pytest.approx(-432.1 + 45000.25, abs=1e-6)
    assert not {12, 13} & set(training.parts.every.tolist())
    config = settings(path, references={"O": -1.0}, out=str(tmp_path / "b"))
    with pytest.raises(InputError, match="Cu has no energy among references"):
        Training(config, resume=False, quiet=True)


def test_least_squares_takes_the_least_norm_of_one_composition(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = prepare(tmp_path, clusters(24)[0::2], references="least-squares", refit=False, steps=1)
    with caplog.at_level(logging.INFO):
        training = Training(settings(path), resume=False, quiet=True)
    assert "the compositions determine 1 of 2, so the solution of least norm" in caplog.text
    oxygen, copper = training.potential.references.tolist()
    assert copper == pytest.approx(4.0 * oxygen)


def test_fine_tuning_keeps_what_is_frozen(tmp_path: Path) -> None:
    path = prepare(tmp_path, clusters(16), steps=40)
    train(settings(path), quiet=True)
    start = str(tmp_path / "out")
    tuned = {"start_from": start, "out": str(tmp_path / "tuned"), "steps": 20, "potential": None}
    config = settings(prepare(tmp_path, [], **tuned, freeze=["embedding", "layers.0"], seed=1))
    train(config, quiet=True)
    before, after = weights_of(tmp_path / "out"), weights_of(tmp_path / "tuned")
    frozen = [name for name in before if ".embedding." in name or ".layers.0." in name]
    assert len(frozen) > 10
    assert all(torch.equal(before[name], after[name]) for name in frozen)
    assert not torch.equal(before["network.linear.weight"], after["network.linear.weight"])
    assert torch.equal(before["scale"], after["scale"])


# Faults


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"learning_rat": 1e-3}, r"line \d+: unknown key learning_rat; .*learning_rate"),
        ({"potential": {"chanels": 8}}, "unknown key chanels; .*channels"),
        ({"loss": {"energy": {"weigth": 1}}}, "unknown key weigth; .*weight"),
        ({"loss": {"energy": {"weight": -1}}}, r"loss\.energy\.weight"),
        ({"steps": None}, "give steps or epochs"),
        ({"epochs": 3}, "give one"),
        ({"data": None}, "data is missing"),
        ({"start_from": "water-pbe0"}, "leave potential out"),
        ({"freeze": ["embeding"]}, "no weight begins with 'embeding'"),
        ({"device": "abacus"}, "is no device"),
        ({"loss": {"elements": {"Xx": 1.0}}}, "Xx is no element"),
        ({"potential": {"architecture": "tensornet2"}}, "tensornet2 needs charge_channels"),
    ],
)
def test_wrong_configurations_end_in_one_sentence(
    tmp_path: Path, mdgraph_command: Callable[..., Any], changes: dict[str, Any], said: str
) -> None:
    prepare(tmp_path, clusters(8))
    path = prepare(tmp_path, [], **changes)
    done = mdgraph_command("train", path)
    assert done.status == 1
    assert done.err.count("\n") <= 3
    assert re.search(said, done.err)


def test_the_shipped_potential_can_be_trained_anew_with_its_settings() -> None:
    shipped = ROOT / "potentials" / "water-pbe0"
    config = settings(shipped / "retrain.yaml")
    made = yaml.safe_load((shipped / "train.yaml").read_text(encoding="utf-8"))
    network = TensorNetConfig(species=(1, 8), **config.potential.model_dump())
    asked = TensorNetConfig(**made["potential"])
    about = ("name", "level_of_theory", "licence")
    assert network.model_dump(exclude=set(about)) == asked.model_dump(exclude=set(about))
    same = ("seed", "batch", "learning_rate", "final_learning_rate", "warmup", "weight_decay")
    for name in (*same, "clip", "average", "validations"):
        assert getattr(config, name) == made[name], name
    assert config.loss.energy.weight == (made["energy_weight"],) * 2
    metrics = json.loads((shipped / "metrics.json").read_text(encoding="utf-8"))
    assert config.steps == metrics["steps"]


def test_data_that_do_not_fit_are_refused(
    tmp_path: Path, mdgraph_command: Callable[..., Any]
) -> None:
    path = prepare(tmp_path, clusters(8))
    tuned = {"start_from": "water-pbe0", "potential": None, "out": str(tmp_path / "tuned")}
    done = mdgraph_command("train", prepare(tmp_path, [], **tuned))
    assert "does not know Cu" in done.err
    assert mdgraph_command("train", path).status == 0
    assert "holds files already" in mdgraph_command("train", path).err
    ase.io.write(tmp_path / "more.xyz", _labelled_cluster(), format="extxyz")
    more = tmp_path / "more.xyz", tmp_path / "set.h5", "--append"
    assert mdgraph_command("data", "convert", *more).status == 0
    done = mdgraph_command("train", prepare(tmp_path, [], out=str(tmp_path / "late")))
    assert "changed since the split was made" in done.err
    done = mdgraph_command("train", path, "--out", tmp_path / "never", "--resume")
    assert done.status == 1


def test_a_folder_that_says_otherwise_is_refused(
    tmp_path: Path, mdgraph_command: Callable[..., Any]
) -> None:
    """What lies beside a potential is what it was made with."""
    path = prepare(tmp_path, clusters(8), steps=2)
    own = tmp_path / "out" / "train.yaml"
    own.parent.mkdir()
    own.write_text("# by hand\n" + path.read_text())
    done = mdgraph_command("train", path, "--seed", 5)
    assert (done.status, "has other settings" in done.err) == (1, True)
    assert mdgraph_command("train", own).status == 0
    assert own.read_text().startswith("# by hand")


def _labelled_cluster() -> Atoms:
    atoms = Atoms("Cu2", [[0, 0, 0], [2.3, 0, 0]], calculator=EMT())
    atoms.get_forces()
    return atoms


def test_saved_potentials_of_both_precisions_load(tmp_path: Path) -> None:
    path = prepare(tmp_path, clusters(8), steps=4, precision="double")
    train(settings(path), quiet=True)
    assert weights_of(tmp_path / "out")["network.linear.weight"].dtype == torch.float64
    save(load(tmp_path / "out"), tmp_path / "again.safetensors")


def test_a_newcomer_follows_the_document(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mdgraph_command: Callable[..., Any]
) -> None:
    """Every command and the configuration of docs/training.md, made small, one after the other."""
    text = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    commands = re.findall(r"^mdgraph (.*)$", text.split("```")[1], re.MULTILINE)
    written = yaml.safe_load(text.split("```yaml")[1].split("```")[0])
    small = {"potential": NETWORK, "epochs": 3, "validations": 2, "device": "cpu"}
    monkeypatch.chdir(tmp_path)
    Path("train.yaml").write_text(yaml.safe_dump(written | small), encoding="utf-8")
    frames = [Atoms(frame.numbers, frame.positions, calculator=EMT()) for frame in clusters(20)]
    for atoms in frames:
        atoms.get_forces()
    ase.io.write("frames.xyz", frames, format="extxyz")
    ase.io.write("start.xyz", frames[0], format="extxyz")
    names = [command.split()[0] for command in commands]
    assert names == ["data", "data", "data", "train", "md"]
    for command in commands:
        short = command.replace("--time-ps 100", "--steps 3 --evaluator reference --device cpu")
        done = mdgraph_command(*shlex.split(short))
        assert done.status == 0, done.err
    assert Path("potentials/mine/model.safetensors").exists()


def test_the_benchmark_times_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare(tmp_path, clusters(8))
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    options = ["--batch", "2", "--channels", "8", "--layers", "1", "--steps", "3"]
    command = ["training.py", str(tmp_path / "set.h5"), *options, "--device", "cpu"]
    monkeypatch.setattr(sys, "argv", command)
    import_module("training").main()
    eager, captured = map(json.loads, capsys.readouterr().out.splitlines())
    assert (eager["eager"], captured["eager"]) == (True, False)
    for found in (eager, captured):
        per_second = 2 * 1e3 / found["ms_per_step"]
        assert found["samples_per_second"] == pytest.approx(per_second, rel=1e-2)
