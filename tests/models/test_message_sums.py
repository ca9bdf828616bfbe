"""Sums over neighbors: their derivatives, and that capacity and padding leave no trace."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from ase_pairs import SEARCHES, search_forced
from random_networks import (
    TENSORNET,
    TENSORNET2,
    atoms_of,
    evaluated,
    lists_for,
    network,
    spread_atoms,
)
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from mdgraph.models.ops import messages
from mdgraph.models.ops.messages import forces_and_virials, gather, message, sum_slots
from mdgraph.neighbors import NeighborList, PairBlock, Pairs
from mdgraph.state import State
from mdgraph.system import System


def silicon(jitter: float = 0.1) -> System:
    cell = 5.431 / 2 * np.array([[0.0, 1.0, 1.0], [1.0, 0.0, 1.0], [1.0, 1.0, 0.0]])
    offset = np.array([0.25, 0.25, 0.25]) @ cell + jitter
    return System([14, 14], [np.zeros(3), offset], cell=cell, pbc=True)


def fluid(atoms: int) -> System:
    cell = (atoms * 11.0) ** (1 / 3) * np.array([[1.0, 0, 0], [0.2, 1.0, 0], [-0.1, 0.3, 1.0]])
    positions = spread_atoms(atoms, cell, True, seed=atoms)
    return System(np.resize([8, 1, 1, 6], atoms), positions, cell=cell, pbc=True, charge=1.0)


FULL = TENSORNET2 | {
    "coulomb": {"cutoff": 4.4},
    "repulsion": ({"kind": "torchmdnet_prior", "cutoff": 3.0},),
}


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture(scope="module", params=DEVICES)
def small(request: pytest.FixtureRequest) -> Pairs:
    """Two atoms with more neighbors than one block holds, and empty slots."""
    state = State([silicon()], request.param)
    neighbors = NeighborList(state, 6.0)
    pairs = neighbors.pairs(state.positions, state.cell)
    assert len(pairs.blocks) == 2
    assert not all(block.valid.all() for block in pairs.blocks)
    return pairs


def by_block(values: Tensor, pairs: Pairs) -> list[Tensor]:
    return list(values.split([block.index.shape[1] for block in pairs.blocks], dim=1))


def slots(pairs: Pairs) -> int:
    return sum(block.index.shape[1] for block in pairs.blocks)


def random_leaf(*shape: int, device: torch.device | str = "cpu") -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    values = torch.randn(*shape, generator=generator, dtype=torch.float64)
    return values.to(device).requires_grad_()


def test_message_is_the_sum_over_neighbors_and_differentiable_twice(small: Pairs) -> None:
    weights = random_leaf(2, slots(small), 3, 2, device=small.reverse.device)
    features = random_leaf(2, 9, 2, device=small.reverse.device)

    valid = torch.cat([block.valid for block in small.blocks], dim=1)[..., None, None]

    def function(weights: Tensor, features: Tensor) -> Tensor:
        return message(by_block(weights * valid, small), features, small)

    kind = torch.tensor([0] + [1] * 3 + [2] * 5)
    expected = ((weights * valid)[:, :, kind] * features[small.index.long()]).sum(1)
    torch.testing.assert_close(function(weights, features), expected)
    assert gradcheck(function, (weights, features))
    assert gradgradcheck(function, (weights, features))


def test_gather_reads_the_neighbor_and_is_differentiable_twice(small: Pairs) -> None:
    values = random_leaf(2, 3, device=small.reverse.device)

    def function(values: Tensor) -> Tensor:
        return torch.cat(gather(values, small), dim=1).square()

    torch.testing.assert_close(function(values), values[small.index.long()].square())
    assert gradcheck(function, (values,))
    assert gradgradcheck(function, (values,))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shape", [(3, 5), (2, 4, 3), (2, 3, 2, 2)])
def test_sum_slots_sums_and_is_differentiable_twice(shape: tuple[int, ...], device: str) -> None:
    values = random_leaf(*shape, device=device)

    def function(values: Tensor) -> Tensor:
        return sum_slots(values.sin())

    torch.testing.assert_close(function(values), values.sin().sum(1))
    assert gradcheck(function, (values,))
    assert gradgradcheck(function, (values,))


def test_features_that_need_no_gradient_get_none(small: Pairs) -> None:
    weights = random_leaf(2, slots(small), 3, 2, device=small.reverse.device)
    features = torch.randn_like(weights[:, :9, 0])
    message(by_block(weights, small), features, small).sum().backward()
    assert features.grad is None
    assert weights.grad is not None


def test_forces_and_virials_are_those_of_scattered_pairs() -> None:
    state = State([fluid(20), silicon()])
    neighbors = NeighborList(state, 5.0)
    pairs = neighbors.pairs(state.positions, state.cell)
    gradients = [
        torch.randn(block.vectors.shape, dtype=torch.float64) * block.valid[..., None]
        for block in pairs.blocks
    ]
    forces, virials = forces_and_virials(pairs, gradients)
    expected = torch.zeros(22, 3, dtype=torch.float64)
    virial = torch.zeros(22, 3, 3, dtype=torch.float64)
    for block, gradient in zip(pairs.blocks, gradients, strict=True):
        for atom, slot in block.valid.nonzero().tolist():
            pull = gradient[atom, slot]
            expected[atom] += pull
            expected[int(block.index[atom, slot])] -= pull
            virial[atom] -= torch.outer(block.vectors[atom, slot].detach(), pull)
    torch.testing.assert_close(forces, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(virials, virial, rtol=0, atol=1e-12)


def test_force_kernels_and_their_adjoints_agree_with_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a GPU where there is one, else in Triton's interpreter."""
    state = State([fluid(20), silicon()], "cuda" if torch.cuda.is_available() else "cpu")
    pairs = NeighborList(state, 4.0).pairs(state.positions, state.cell)
    held = [
        torch.randn_like(block.vectors).mul_(block.valid[..., None]).requires_grad_()
        for block in pairs.blocks
    ]
    found = []
    for use in (True, False):
        monkeypatch.setattr(messages, "has_kernels", lambda x, use=use: use)
        values = forces_and_virials(pairs, held)
        weights = [value.detach().cos().requires_grad_() for value in values]
        total = sum((value * one).sum() for value, one in zip(values, weights, strict=True))
        slopes = torch.autograd.grad(total, held, create_graph=True)
        slopes = tuple(
            slope * block.valid[..., None]
            for slope, block in zip(slopes, pairs.blocks, strict=True)
        )
        bent = torch.autograd.grad(sum((slope**3).sum() for slope in slopes), weights)
        found.append([value.detach() for value in (*values, *slopes, *bent)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-11)


def results(state: State) -> tuple[Tensor, ...]:
    return state.energies, state.forces, state.virial


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
@pytest.mark.parametrize("atoms", [30, 70])
def test_capacity_does_not_change_a_bit(atoms: int, kind: torch.dtype, device: str) -> None:
    """Small and larger systems use different block widths; from just enough to much too much."""
    potential, system = network(**FULL), fluid(atoms)
    longest = int(NeighborList(State([system]), 4.4).count.max())

    def with_capacity(slots: int) -> State:
        return evaluated(potential, system, kind=kind, capacity=slots, device=device)

    reference = results(with_capacity(longest))
    assert reference[1].abs().max() > 0.1
    for capacity in (longest + 40, 2 * longest + 100):
        for one, other in zip(results(with_capacity(capacity)), reference, strict=True):
            assert torch.equal(one, other)


@pytest.mark.gpu
@pytest.mark.parametrize("settings", [TENSORNET, FULL], ids=["TensorNet", "TensorNet2"])
def test_a_gpu_agrees_with_the_cpu(settings: dict[str, Any]) -> None:
    potential = network(**settings)
    systems = fluid(70), fluid(9), silicon().replace(numbers=[6, 8])
    expected = results(evaluated(potential, *systems))
    for one, other in zip(
        results(evaluated(potential, *systems, device="cuda")), expected, strict=True
    ):
        torch.testing.assert_close(one.cpu(), other, rtol=1e-10, atol=1e-10)


def test_the_search_does_not_change_a_bit() -> None:
    potential, system = network(**FULL), fluid(70)
    found = []
    for search in SEARCHES:
        with search_forced(search):
            found.append(results(evaluated(potential, system, kind=torch.float32)))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


def test_unwrapping_and_a_skin_change_nothing_beyond_rounding() -> None:
    potential, system = network(**FULL), fluid(40)
    leaps = np.random.default_rng(5).integers(-4, 4, (40, 3)) @ system.cell
    reference = results(evaluated(potential, system))
    for other, skin in (system, 1.0), (system.replace(positions=system.positions + leaps), 0.3):
        state = evaluated(potential, other, skin=skin)
        for one, expected in zip(results(state), reference, strict=True):
            torch.testing.assert_close(one, expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("settings", [TENSORNET, FULL], ids=["TensorNet", "TensorNet2"])
def test_empty_slots_and_pairs_beyond_the_cutoff_give_exactly_nothing(
    settings: dict[str, Any],
) -> None:
    """In the gradients; and their vectors may be anything that lies beyond the cutoff."""
    potential = network(**settings).requires_grad_(False)
    state = State([fluid(30)])
    lists = lists_for(state, potential, skin=0.7)
    pairs = tuple(one.pairs(state.positions, state.cell) for one in lists)
    energies = potential(atoms_of(state), pairs)
    leaves = [vectors for one in pairs for vectors in one.vectors]
    gradients = iter(torch.autograd.grad(energies.sum(), leaves))
    ignored = 0
    for one in pairs:
        for block in one.blocks:
            gradient = next(gradients)
            beyond = ~block.valid | (block.vectors.norm(dim=-1) >= one.cutoff)
            assert (gradient[beyond] == 0.0).all()
            ignored += int((beyond & block.valid).sum())
            block.vectors.data[beyond] = torch.tensor([3.0, 4.0, 12.0], dtype=torch.float64)
    assert ignored > 50
    assert torch.equal(potential(atoms_of(state), pairs), energies)


def test_rows_without_empty_slots_give_the_same_energies() -> None:
    """A perfect crystal has rows of one length: cut the padding off and compare."""
    potential = network(**TENSORNET2 | {"species": (14,), "cutoff": 4.0}).requires_grad_(False)
    state = State([silicon(jitter=0.0)])
    (neighbors,) = lists_for(state, potential)
    padded = neighbors.pairs(state.positions, state.cell)
    (full,) = set(neighbors.count.tolist())
    (block,) = padded.blocks
    assert full < block.index.shape[1]
    cut = PairBlock(block.vectors[:, :full], block.index[:, :full], block.valid[:, :full])
    reverse = (neighbors.index[:, :full] * full + neighbors.reverse[:, :full]).flatten()
    bare = replace(padded, blocks=(cut,), index=cut.index, reverse=reverse)
    atoms = atoms_of(state)
    torch.testing.assert_close(
        potential(atoms, (bare,)), potential(atoms, (padded,)), rtol=1e-12, atol=1e-12
    )
