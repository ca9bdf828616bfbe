"""Batches of padded frames, their shapes and order, resident or streamed."""

from pathlib import Path

import numpy as np
import pytest
import torch
from training_sets import NETWORK, assert_same, clusters, crystals, prepare, settings

from mdgraph.data import open_dataset
from mdgraph.engine import Calculation
from mdgraph.models import TensorNetConfig, TensorNetPotential
from mdgraph.neighbors import PairBlock, Pairs
from mdgraph.system import System
from mdgraph.train.frames import FrameStore
from mdgraph.train.loop import Training, train
from mdgraph.train.sampling import Sampler
from mdgraph.train.shapes import plan_shapes

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
        for places, batch in store.covering(every):
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


@pytest.mark.parametrize("kind", ["matgl", "torchmdnet_prior"])
def test_a_repulsion_is_there_before_any_training(tmp_path: Path, kind: str) -> None:
    """The universal one: copper and oxygen at 0.4 A, by the formula, behind a network's own."""
    parts = [{"kind": kind, "cutoff": 2.0}]
    path = prepare(tmp_path, clusters(8), steps=2, potential=NETWORK | {"repulsion": parts})
    training = Training(settings(path), resume=False, quiet=True)
    (found,) = training.potential.repulsions
    numbers, vectors = torch.tensor([29, 8]), torch.zeros(2, 1, 3, dtype=torch.float64)
    vectors[:, 0, 2] = torch.tensor([0.4, -0.4])
    block = PairBlock(vectors, torch.tensor([[1], [0]]), torch.ones(2, 1, dtype=torch.bool))
    reverse = torch.tensor([1, 0])
    pairs = Pairs((block,), block.index, torch.ones(2, dtype=torch.int32), reverse, 2.0)
    reduced = 0.4 / (0.46850 / (29**0.23 + 8**0.23))
    screen = sum(
        c * np.exp(-e * reduced)
        for c, e in ((0.1818, 3.2), (0.5099, 0.9423), (0.2802, 0.4029), (0.02817, 0.2016))
    )
    u = 0.2
    fall = (
        1 - 10 * u**3 + 15 * u**4 - 6 * u**5 if kind == "matgl" else 0.5 * (1 + np.cos(np.pi * u))
    )
    expected = 14.3996 * 29 * 8 / 0.4 * screen * fall
    assert float(found(numbers, pairs).sum().detach()) == pytest.approx(expected, rel=2e-4)
    training.run()
    assert {one.dtype for one in training.step.parameters.values()} == {torch.float32}


def test_frames_streamed_from_the_host_give_the_same_weights(tmp_path: Path) -> None:
    path = prepare(tmp_path, [*clusters(12), *crystals(8)], shapes=3)
    train(settings(path), quiet=True)
    train(settings(path, out=str(tmp_path / "streamed"), resident=False), quiet=True)
    assert_same(tmp_path / "out", tmp_path / "streamed")
