"""Batches of padded frames, their shapes and order, resident or streamed."""

from pathlib import Path

import numpy as np
import pytest
import torch
from training_sets import NETWORK, assert_same, clusters, crystals, prepare, settings

from mdgraph.data import open_dataset
from mdgraph.engine import Calculation
from mdgraph.models import TensorNetConfig, TensorNetPotential
from mdgraph.system import System
from mdgraph.train.batches import FrameStore, Sampler
from mdgraph.train.loop import Training, train
from mdgraph.train.tables import plan_shapes

pytestmark = pytest.mark.usefixtures("without_report")


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
        for places, batch in store.batches_of(every):
            found, inputs = batch.predict(potential, differentiable=False)
            labels = inputs.labels
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
    one = {"counted": frames, "frames_a_step": lambda *_: 1}
    shapes = plan_shapes(frames, atoms, slots, 500, exact=False, **one)
    few = plan_shapes(frames, atoms, slots, 4, exact=False, **one, least=2)
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
    exact = plan_shapes(frames, atoms, slots, 4, exact=True, **one)
    assert all((atoms[shape.frames - 1000] == shape.atoms).all() for shape in exact)


def test_frames_that_fill_no_step_join_others_where_that_saves_time() -> None:
    """One of a kind costs a step; but what pads hundreds of large frames costs more."""
    atoms = np.array([6, 8, 12, 20, *[100] * 200, *[108] * 40, 250])
    slots = np.full((len(atoms), 1), 40)
    slots[204:244] = 56
    frames = np.arange(len(atoms))
    planned = [
        plan_shapes(
            frames, atoms, slots, 8, exact=False, counted=frames, frames_a_step=lambda *_, b=b: b
        )
        for b in (1, 4)
    ]
    sizes = [[(one.atoms, one.slots[0], len(one.frames)) for one in shapes] for shapes in planned]
    assert sizes[0] == [
        *[(n, 40, 1) for n in (6, 8, 12, 20)], (100, 40, 200), (108, 56, 40), (250, 40, 1)
    ]  # fmt: skip
    assert sizes[1] == [(20, 40, 4), (100, 40, 200), (108, 56, 40), (250, 40, 1)]


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


def test_a_repulsion_is_trained_in_the_type_of_the_network(tmp_path: Path) -> None:
    network = NETWORK | {"repulsion": [{"kind": "matgl", "cutoff": 2.0}]}
    training = Training(
        settings(prepare(tmp_path, clusters(8), steps=2, potential=network)),
        resume=False,
        quiet=True,
    )
    training.run()
    assert "repulsions.0.power" in training.step.parameters
    assert {one.dtype for one in training.step.parameters.values()} == {torch.float32}


def test_frames_streamed_from_the_host_give_the_same_weights(tmp_path: Path) -> None:
    path = prepare(tmp_path, [*clusters(12), *crystals(8)], shapes=3)
    train(settings(path), quiet=True)
    train(settings(path, out=str(tmp_path / "streamed"), resident=False), quiet=True)
    assert_same(tmp_path / "out", tmp_path / "streamed")
