"""Sums over neighbors: their derivatives, and that capacity and padding leave no trace."""

import numpy as np
import pytest
import torch
from ase_pairs import SEARCHES, search_forced
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from mdgraph.evaluators import AutogradEvaluator
from mdgraph.models import (
    Atoms,
    CoulombConfig,
    RadialBasisConfig,
    ReadoutConfig,
    RepulsionConfig,
    TensorNetConfig,
    TensorNetPotential,
)
from mdgraph.neighbors import NeighborList, PairBlock, Pairs
from mdgraph.neighbors.pairs import forces_and_virials, gather, message, sum_slots
from mdgraph.state import State
from mdgraph.system import System


def silicon(jitter: float = 0.1) -> System:
    cell = 5.431 / 2 * np.array([[0.0, 1.0, 1.0], [1.0, 0.0, 1.0], [1.0, 1.0, 0.0]])
    offset = np.array([0.25, 0.25, 0.25]) @ cell + jitter
    return System([14, 14], [np.zeros(3), offset], cell=cell, pbc=True)


def fluid(atoms: int, edge: float, seed: int = 0) -> System:
    """Atoms at random, none closer than 1 A to another or its images."""
    rng = np.random.default_rng(seed)
    cell = edge * np.array([[1.0, 0.0, 0.0], [0.2, 1.0, 0.0], [-0.1, 0.3, 1.0]])
    placed: list[np.ndarray] = []
    while len(placed) < atoms:
        trial = rng.random(3)
        leap = np.array([trial - other for other in placed]).reshape(-1, 3)
        if (np.linalg.norm((leap - np.rint(leap)) @ cell, axis=1) > 1.0).all():
            placed.append(trial)
    numbers = rng.choice([1, 6, 8], atoms)
    return System(numbers, np.array(placed) @ cell, cell=cell, pbc=True, charge=1.0)


def potential(**changes: object) -> TensorNetPotential:
    torch.manual_seed(3)
    settings = {
        "species": (1, 6, 8),
        "channels": 16,
        "layers": 2,
        "cutoff": 4.0,
        "radial_basis": RadialBasisConfig(number=8),
        "readout": ReadoutConfig(hidden=(8,)),
        "architecture": "tensornet2",
        "charge_channels": 4,
        "self_interaction": True,
        "coulomb": CoulombConfig(cutoff=6.0),
        "repulsion": (RepulsionConfig(kind="torchmdnet_prior", cutoff=3.0),),
    }
    return TensorNetPotential(TensorNetConfig.model_validate(settings | changes))


@pytest.fixture(scope="module")
def small() -> Pairs:
    """Two atoms with more neighbors than one block holds, and empty slots."""
    state = State([silicon()])
    neighbors = NeighborList(state, 6.0)
    pairs = neighbors.pairs(state.positions, state.cell)
    assert len(pairs.blocks) == 2
    assert not all(block.valid.all() for block in pairs.blocks)
    return pairs


def by_block(values: Tensor, pairs: Pairs) -> list[Tensor]:
    return list(values.split([block.index.shape[1] for block in pairs.blocks], dim=1))


def slots(pairs: Pairs) -> int:
    return sum(block.index.shape[1] for block in pairs.blocks)


def random_leaf(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    values = torch.randn(*shape, generator=generator, dtype=torch.float64)
    return values.requires_grad_()


def test_message_is_the_sum_over_neighbors_and_differentiable_twice(small: Pairs) -> None:
    weights = random_leaf(2, slots(small), 3, 2)
    features = random_leaf(2, 9, 2)

    def function(weights: Tensor, features: Tensor) -> Tensor:
        return message(by_block(weights, small), features, small)

    index = torch.cat([block.index for block in small.blocks], dim=1).long()
    kind = torch.tensor([0] + [1] * 3 + [2] * 5)
    expected = (weights[:, :, kind] * features[index]).sum(1)
    torch.testing.assert_close(function(weights, features), expected)
    assert gradcheck(function, (weights, features))
    assert gradgradcheck(function, (weights, features))


def test_gather_reads_the_neighbor_and_is_differentiable_twice(small: Pairs) -> None:
    values = random_leaf(2, 3)

    def function(values: Tensor) -> Tensor:
        return torch.cat(gather(values, small), dim=1).square()

    index = torch.cat([block.index for block in small.blocks], dim=1).long()
    torch.testing.assert_close(function(values), values[index].square())
    assert gradcheck(function, (values,))
    assert gradgradcheck(function, (values,))


@pytest.mark.parametrize("shape", [(3, 5), (2, 4, 3), (2, 3, 2, 2)])
def test_sum_slots_sums_and_is_differentiable_twice(shape: tuple[int, ...]) -> None:
    values = random_leaf(*shape)

    def function(values: Tensor) -> Tensor:
        return sum_slots(values.sin())

    torch.testing.assert_close(function(values), values.sin().sum(1))
    assert gradcheck(function, (values,))
    assert gradgradcheck(function, (values,))


def test_features_that_need_no_gradient_get_none(small: Pairs) -> None:
    weights = random_leaf(2, slots(small), 3, 2)
    features = torch.randn(2, 9, 2, dtype=torch.float64)
    message(by_block(weights, small), features, small).sum().backward()
    assert features.grad is None
    assert weights.grad is not None


def test_forces_and_virials_are_those_of_scattered_pairs() -> None:
    state = State([fluid(20, 6.0), silicon()])
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


def evaluated(
    state: State, evaluator: AutogradEvaluator, capacity: int | None = None, skin: float = 0.0
) -> tuple[Tensor, ...]:
    lists = [NeighborList(state, cutoff, skin, capacity) for cutoff in evaluator.cutoffs]
    assert all(one.status().complete for one in lists)
    evaluator.evaluate_(state, lists)
    return tuple(getattr(state, name).clone() for name in ("energies", "forces", "virial"))


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
@pytest.mark.parametrize("atoms", [30, 90])
def test_capacity_does_not_change_a_bit(atoms: int, kind: torch.dtype) -> None:
    """Both block widths; from just enough to several empty blocks."""
    state = State([fluid(atoms, 5.5 * (atoms / 30) ** (1 / 3))])
    evaluator = AutogradEvaluator(potential().at_precision(kind))
    longest = int(NeighborList(state, 6.0).count.max())
    reference = evaluated(state, evaluator, longest)
    for capacity in (longest + 40, 2 * longest + 100):
        for one, other in zip(
            evaluated(state, evaluator, capacity), reference, strict=True
        ):
            assert torch.equal(one, other)


def test_the_search_does_not_change_a_bit() -> None:
    state = State([fluid(90, 8.0)])
    evaluator = AutogradEvaluator(potential().at_precision(torch.float32))
    results = []
    for search in SEARCHES:
        with search_forced(search):
            results.append(evaluated(state, evaluator))
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


def test_unwrapping_and_a_skin_change_nothing_beyond_rounding() -> None:
    system = fluid(40, 6.5)
    leaps = np.random.default_rng(5).integers(-4, 4, (40, 3)) @ system.cell
    evaluator = AutogradEvaluator(potential().at_precision(torch.float64))
    energies, forces, virial = evaluated(State([system]), evaluator)
    for other, skin in (system, 1.0), (system.replace(positions=system.positions + leaps), 0.3):
        results = evaluated(State([other]), evaluator, skin=skin)
        for one, expected in zip(results, (energies, forces, virial), strict=True):
            torch.testing.assert_close(one, expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("architecture", ["tensornet", "tensornet2"])
def test_empty_slots_and_pairs_beyond_the_cutoff_give_exactly_nothing(architecture: str) -> None:
    """In the gradients, and in the energies against rows without an empty slot."""
    changes = {} if architecture == "tensornet2" else {"charge_channels": 0, "coulomb": None}
    model = potential(architecture=architecture, **changes).requires_grad_(False)
    state = State([fluid(30, 6.0)])
    atoms = Atoms(state.numbers, state.charge, state.grouping)
    lists = [NeighborList(state, cutoff, skin=0.7) for cutoff in model.cutoffs]
    pairs = tuple(one.pairs(state.positions, state.cell) for one in lists)
    energies = model(atoms, pairs)
    leaves = [vectors for one in pairs for vectors in one.vectors]
    gradients = iter(torch.autograd.grad(energies.sum(), leaves))
    ignored = 0
    for one in pairs:
        for block in one.blocks:
            gradient = next(gradients)
            beyond = ~block.valid | (block.vectors.norm(dim=-1) >= one.cutoff)
            assert (gradient[beyond] == 0.0).all()
            ignored += int((beyond & block.valid).sum())
            # Vectors of slots that do not count may be anything that is no pair.
            block.vectors.data[beyond] = torch.tensor([3.0, 4.0, 12.0], dtype=torch.float64)
    assert ignored > 50
    assert torch.equal(model(atoms, pairs), energies)


def test_rows_without_empty_slots_give_the_same_energies() -> None:
    """A perfect crystal has rows of one length: cut the padding off and compare."""
    model = potential(species=(14,), coulomb=None).requires_grad_(False)
    state = State([silicon(jitter=0.0)])
    atoms = Atoms(state.numbers, state.charge, state.grouping)
    neighbors = NeighborList(state, 4.0)
    padded = neighbors.pairs(state.positions, state.cell)
    (full,) = set(neighbors.count.tolist())
    (block,) = padded.blocks
    assert full < block.index.shape[1]
    cut = PairBlock(block.vectors[:, :full], block.index[:, :full], block.valid[:, :full])
    reverse = (neighbors.index[:, :full] * full + neighbors.reverse[:, :full]).flatten()
    bare = Pairs((cut,), reverse, padded.cutoff)
    torch.testing.assert_close(
        model(atoms, (bare,)), model(atoms, (padded,)), rtol=1e-12, atol=1e-12
    )
