"""Displaced frames: a potential learns to rise as springs do where atoms are moved."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from training_sets import NETWORK, clusters, prepare, settings

from mdgraph.data import open_dataset
from mdgraph.engine import Calculation
from mdgraph.models import TensorNetConfig, TensorNetPotential
from mdgraph.system import System
from mdgraph.train.batches import FrameStore
from mdgraph.train.distributed import Processes
from mdgraph.train.loop import Training
from mdgraph.train.losses import (
    corridor,
    corridor_violations,
    displacements,
    draw_numbers,
    harmonic_energy,
    violations,
)
from mdgraph.train.optimizers import StepControls, controls_at
from mdgraph.train.step import flatten_gradients

pytestmark = pytest.mark.usefixtures("without_report")


def energies(potential: TensorNetPotential, systems: list[System]) -> np.ndarray:
    calculation = Calculation(systems, potential, precision="double", device="cpu")
    calculation.compute()
    return calculation.state.energy.numpy().copy()


def test_what_is_drawn_depends_on_seed_and_step_alone() -> None:
    one = draw_numbers(3, 17, 8, 5)
    assert np.array_equal(one, draw_numbers(3, 17, 8, 5))
    assert not np.isclose(one, draw_numbers(3, 18, 8, 5)).any()
    assert not np.isclose(one, draw_numbers(4, 17, 8, 5)).any()


def test_any_atom_leads_and_none_that_pads_moves() -> None:
    """Atoms far from each other, so that none moves along."""
    atoms = torch.arange(1, 7).repeat(1000)
    positions = 20.0 * torch.arange(8.0, dtype=torch.float64)[:, None].expand(len(atoms), 8, 3)
    moved = displacements(
        torch.from_numpy(draw_numbers(0, 0, len(atoms), 8)), positions, atoms, 0.7
    )
    lengths = torch.linalg.vector_norm(moved, dim=2)
    assert ((lengths > 1e-9).sum(1) == 1).all()
    place = lengths.argmax(1)
    for count in range(1, 7):
        found = torch.bincount(place[atoms == count], minlength=8) / 1000.0
        assert (found[count:] == 0.0).all()
        assert (found[:count] - 1.0 / count).abs().max() < 4.0 * (0.25 / 1000.0) ** 0.5
    longest = lengths.amax(1)
    assert 0.69 < longest.max() <= 0.7
    assert longest.mean() == pytest.approx(0.35, abs=4.0 * 0.7 / (12.0 * len(atoms)) ** 0.5)
    mean = moved.sum(1).mean(0)
    assert mean.abs().max() < 4.0 * 0.7 / 3.0 / len(atoms) ** 0.5


def test_atoms_around_move_the_less_the_further_they_are() -> None:
    """Each its own way; those that pad lie where the leading atom does, and rest."""
    random = torch.from_numpy(draw_numbers(1, 0, 4000, 4))
    random[:, 0, 0] = 0.0
    positions = torch.tensor([[0.0, 0, 0], [1, 0, 0], [0, 2.5, 0], [0, 0, 0]]).double()
    atoms = torch.full((4000,), 3)
    moved = displacements(random, positions.expand(4000, 4, 3), atoms, 1.0)
    assert (moved[:, 3] == 0.0).all()
    width = (2.0 * random[:, 0, 2]).clamp(min=0.1)
    own = moved / random[:, 1:]
    expected = torch.exp(-0.5 * torch.tensor([1.0, 2.5]).double() ** 2 / width[:, None] ** 2)
    torch.testing.assert_close(own[:, 1:3, 0], own[:, :1, 0] * expected)
    lengths = torch.linalg.vector_norm(moved, dim=2)
    torch.testing.assert_close(lengths.amax(1), random[:, 0, 1])
    along = (moved[:, 0] * moved[:, 1]).sum(1) / (lengths[:, 0] * lengths[:, 1])
    assert abs(along.mean()) < 4.0 / (3.0 * len(along)) ** 0.5


def test_stiffness_is_told_by_short_moves() -> None:
    """Springs of two directions, a slope, and a wall that is felt further out alone."""
    stiffness = torch.tensor([3.0, 40.0, 0.0], dtype=torch.float64)

    def energy_of(moved: Tensor) -> Tensor:
        squares = moved.square()
        harmonic = (0.5 * stiffness * squares + 2.0 * moved).sum((1, 2))
        return -5.0 + harmonic - 1e3 * (squares.sum((1, 2)) - 0.01).clamp(min=0.0)

    moved = torch.tensor([[0.8, 0, 0], [0, 0.03, 0], [0.3, 0.4, 0], [0, 0, 0.9]])
    moved = moved.double()[:, None]
    found = harmonic_energy(energy_of, torch.full((4,), -5.0).double(), moved)
    assert found.tolist() == pytest.approx([0.96, 0.018, 3.335, 0.0], rel=1e-6)


def test_forces_and_a_margin_widen_the_corridor() -> None:
    forces, moved = torch.zeros(3, 2, 3), torch.zeros(3, 2, 3)
    moved[:, 1, 0] = 0.5
    forces[:, 1, 0] = torch.tensor([0.0, 2.0, -2.0])
    energy = torch.full((3,), -10.0, requires_grad=True)
    low, high = corridor(energy, forces.requires_grad_(), moved, torch.zeros(3), 4.0)
    assert low.tolist() == pytest.approx([-10.2, -11.2, -10.2])
    assert high.tolist() == pytest.approx([-9.8, -9.8, -8.8])
    for end in (low, high):
        slopes = torch.autograd.grad(end.sum(), (energy, forces), allow_unused=True)
        assert slopes[0].tolist() == [1.0] * 3
        assert slopes[1] is None


def test_energies_outside_are_pulled_to_it_and_those_inside_rest() -> None:
    displaced = torch.tensor([-3.0, 0.5, 4.0], requires_grad=True)
    low = torch.tensor([-1.0, 0.0, 1.0], requires_grad=True)
    high = torch.tensor([1.0, 1.0, 2.0], requires_grad=True)
    below, above = violations(displaced, low, high)
    assert below.tolist() == [2.0, 0.0, 0.0]
    assert above.tolist() == [0.0, 0.0, 2.0]
    found = below + above
    assert found.tolist() == [2.0, 0.0, 2.0]
    found.sum().backward()
    slopes = [one.grad.tolist() for one in (displaced, low, high) if one.grad is not None]
    assert slopes == [[-1.0, 0.0, 1.0], [1.0, 0.0, 0.0], [0.0, 0.0, -1.0]]


def test_the_corridor_ends_at_a_morse_curve_stretched_and_compressed() -> None:
    """Of depth D with stiffness k = 2 D a^2, at any distance; far out it bounds nothing above."""
    depth, decay, margin = 3.0, 1.7, 0.2
    stretch = torch.tensor([0.05, 0.3, 1.0, 4.0]).double()
    stretched, compressed = (
        depth * (1.0 - torch.exp(-decay * one)) ** 2 for one in (stretch, -stretch)
    )
    moved = torch.zeros(4, 1, 3).double()
    rise = depth * decay**2 * stretch**2
    low, high = corridor(torch.zeros(4).double(), moved, moved, rise, depth)
    torch.testing.assert_close(low, stretched - margin)
    torch.testing.assert_close(high, compressed + margin)
    far = torch.full((4,), 7.0).double().requires_grad_()
    low, high = corridor(torch.zeros(4).double(), moved, moved, 1e9 * rise, depth)
    torch.testing.assert_close(low, torch.full_like(low, depth - margin))
    off = torch.stack(violations(far, low, high)).sum(0)
    assert off.tolist() == [0.0] * 4
    off.sum().backward()
    assert far.grad is not None
    assert far.grad.tolist() == [0.0] * 4


KINDS: dict[str, dict[str, Any]] = {
    "tensornet": {},
    "charged": {"architecture": "tensornet2", "charge_channels": 2, "coulomb": {"cutoff": 12.0}},
    "repelled": {"repulsion": [{"kind": "matgl", "cutoff": 12.0}]},
}


@pytest.mark.parametrize("kind", KINDS)
def test_energies_are_those_of_frames_whose_atoms_were_moved(tmp_path: Path, kind: str) -> None:
    """Clusters within the cutoff, so that no pair comes from beyond it; some lack an atom."""
    frames = clusters(6)
    if kind != "charged":  # which are never padded
        part = {name: getattr(frames[0], name)[:4] for name in ("numbers", "positions", "forces")}
        frames.append(replace(frames[0], **part))
    config = settings(prepare(tmp_path, frames, shapes=1))
    network = NETWORK | {"cutoff": 9.0} | KINDS[kind]
    torch.manual_seed(0)
    potential = TensorNetPotential(TensorNetConfig(species=(8, 29), **network)).double()
    with open_dataset(Path(config.data)) as dataset:
        every = np.arange(len(frames))
        store = FrameStore(dataset, every, every, potential, config, quiet=True)
    own = [frames[place] for place in store.shapes[0].frames]
    systems = [System(one.numbers, one.positions, one.cell, one.pbc) for one in own]
    batch = store.batch(0, len(systems))
    store.fill_(batch, 0, np.arange(len(systems)))
    _, inputs = batch.predict(potential, differentiable=True)
    labels = inputs.labels
    random = torch.from_numpy(draw_numbers(1, 2, len(systems), labels.size))
    moved = displacements(random, labels.positions, labels.atoms, 1.0)
    found = batch.perturbed_energy(potential, inputs, moved).detach().numpy()
    near = [
        one.replace(positions=one.positions + moved[row, : len(one)].numpy())
        for row, one in enumerate(systems)
    ]
    np.testing.assert_allclose(found, energies(potential, near), rtol=1e-7)
    assert np.abs(found - energies(potential, systems)).min() > 1e-6


def test_processes_share_what_one_draws(tmp_path: Path) -> None:
    loss = {"perturbation": {"weight": 1.0}}
    path = prepare(tmp_path, clusters(16), shapes=1, loss=loss, seed=3)
    training = Training(settings(path), resume=False, quiet=True)
    parts = []
    for rank in (0, 1):
        training.step._processes = Processes(rank, 2)
        shape, rows = next(training.plan.upcoming(0))
        training.step._draw(shape, 17)
        parts.append(training.plan.batches[shape].random.clone())
    assert np.array_equal(
        torch.cat(parts), draw_numbers(3, 17, 2 * len(rows), parts[0].shape[1] - 1)
    )


def steep(training: Training) -> None:
    """Makes a network whose energies go up and down by eVs where atoms are moved."""
    training.step.weights.mul_(4.0)


def mean_outside(training: Training, seed: int, steps: int = 1) -> torch.Tensor:
    """() eV, of frames displaced as in the first steps of a training with that seed."""
    batch, found = training.plan.batches[0], []
    for number, (shape, rows) in zip(range(steps), training.plan.upcoming(0), strict=False):
        training.store.fill_(batch, shape, rows)
        before, inputs = batch.predict(training.potential, differentiable=True)
        labels = inputs.labels
        random = torch.from_numpy(draw_numbers(seed, number, len(batch), labels.size))
        moved = displacements(random.to(labels.atoms.device), labels.positions, labels.atoms, 0.8)
        energy_of = partial(batch.perturbed_energy, training.potential, inputs)
        both = corridor_violations(energy_of, before.energy, before.forces, moved, 3.0)
        found.append(torch.stack(both).sum(0))
    return torch.cat(found).mean()


def gradient_of_mean_outside(training: Training) -> torch.Tensor:
    """(W,), in the scale of the loss; leaves no graph, whose stream a capture would meet."""
    value = mean_outside(training, seed=0) / training.potential.scale
    assert value > 0.1
    gradients = torch.autograd.grad(value, training.step._values, allow_unused=True)
    found = torch.zeros_like(training.step.weights)
    flatten_gradients(training.step._values, gradients, out=found)
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_a_step_follows_its_gradient(tmp_path: Path, device: str, kind: str) -> None:
    """Two steps of gradient descent differ by the weight times the gradient of the term."""
    options = {"precision": "double", "shapes": 1, "optimizer": "sgd", "betas": [0.0, 0.999]}
    options["potential"] = NETWORK | KINDS[kind]
    path = prepare(tmp_path, clusters(16), device=device, **options)
    ends, weight = [], 7.0
    for one in (0.0, weight):
        loss = {"perturbation": {"weight": one, "max_displacement": 0.8, "well_depth": 3.0}}
        training = Training(settings(path, clip=None, loss=loss), resume=False, quiet=True)
        steep(training)
        expected = gradient_of_mean_outside(training)
        shape, rows = next(training.plan.upcoming(0))
        training.store.fill_(training.plan.batches[0], shape, rows)
        training.step.run(shape, StepControls(0.25, 0.0, (20.0, 1.0, 0.0, 0.0), one, step=0))
        ends.append(training.step.weights.clone())
    found = (ends[0] - ends[1]) / (0.25 * weight)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)


def test_a_potential_learns_to_stay_inside(tmp_path: Path) -> None:
    """In 60 steps, of which none moves an atom as those do by which it is judged.

    Forces that are fitted would smooth such a network too, so they count for
    next to nothing.
    """
    path = prepare(tmp_path, clusters(16), steps=60, shapes=1, batch=8)
    left = []
    for weight in (0.0, 10.0):
        loss: dict[str, Any] = {"perturbation": {"weight": weight, "max_displacement": 0.8}}
        loss |= {"energy": {"weight": 0.0}, "forces": {"weight": 1e-15}}
        training = Training(settings(path, loss=loss), resume=False, quiet=True)
        steep(training)
        before = mean_outside(training, seed=1, steps=20).item()
        for step, (shape, rows) in zip(range(60), training.plan.upcoming(0), strict=False):
            training.store.fill_(training.plan.batches[0], shape, rows)
            training.step.run(shape, controls_at(training.config, step, 60, 1.0))
        left.append(mean_outside(training, seed=1, steps=20).item() / before)
    assert left[0] > 0.5
    assert left[1] < 0.2
