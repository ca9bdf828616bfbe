"""Sums over pairs that are held once: their derivatives, and that they are the sums over slots."""

from dataclasses import replace

import pytest
import torch
from random_networks import TENSORNET, TENSORNET2, atoms_of, crystal, molecule, network
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from undirected_pairs import listed

from mdgraph.models.kernels import messages
from mdgraph.models.ops.messages import (
    forces_and_virials,
    message,
    to_pairs,
    to_slots,
    undirected_message,
)
from mdgraph.neighbors import Pairs
from mdgraph.neighbors.pairs import Undirected
from mdgraph.system import System

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture(scope="module", params=DEVICES)
def small(request: pytest.FixtureRequest) -> Pairs:
    """Two atoms in a narrow cell, so with pairs of an atom and its own image, and a lone atom."""
    alone = System([1], [[0.0, 0.0, 0.0]])
    _, pairs = listed([crystal(2), alone], 4.8, request.param)
    assert pairs.undirected is not None
    first = pairs.undirected.one[pairs.undirected.valid].long()
    assert (pairs.index.flatten()[first] == first // pairs.index.shape[1]).any()
    assert pairs.count[-1] == 0
    return pairs


def inputs(pairs: Pairs, channels: int = 2) -> tuple[Tensor, Tensor]:
    assert pairs.undirected is not None
    generator = torch.Generator().manual_seed(5)
    shapes = (len(pairs.undirected.one), 3, channels), (len(pairs.index), 9, channels)
    weights, features = (
        torch.randn(shape, dtype=torch.float64, generator=generator) for shape in shapes
    )
    device = pairs.index.device
    return weights.to(device).requires_grad_(), features.to(device).requires_grad_()


def test_sums_over_pairs_are_sums_over_their_slots(small: Pairs) -> None:
    weights, features = inputs(small)
    slots = to_slots(weights, small)
    directed = message([slots], features, small)
    found = undirected_message(weights, features, small)
    torch.testing.assert_close(found, directed, atol=1e-13, rtol=0)
    assert (found[-1] == 0.0).all()
    assert (slots[~small.blocks[0].valid] == 0.0).all()
    upstream = torch.randn_like(found)
    for one, other in zip(
        torch.autograd.grad(found, (weights, features), upstream),
        torch.autograd.grad(directed, (weights, features), upstream),
        strict=True,
    ):
        torch.testing.assert_close(one, other, atol=1e-12, rtol=0)


def test_sums_over_pairs_have_every_derivative(small: Pairs) -> None:
    weights, features = inputs(small, 1)

    def function(weights: Tensor, features: Tensor) -> Tensor:
        return undirected_message(weights, features, small)

    assert gradcheck(function, (weights, features))
    assert gradgradcheck(function, (weights, features))
    assert gradgradcheck(lambda values: to_slots(values, small).square(), (weights,))
    slots = torch.randn_like(small.blocks[0].vectors).requires_grad_()
    assert gradgradcheck(lambda values: to_pairs(values, small).square(), (slots,))


def test_padding_and_empty_slots_add_nothing(small: Pairs) -> None:
    assert small.undirected is not None
    padding = ~small.undirected.valid
    weights, features = inputs(small)
    other = weights.detach().clone()
    other[padding] = 1e3
    other.requires_grad_()
    results = []
    for held in (weights, other, weights):
        summed = undirected_message(held, features, small)
        energy = (summed.square().sum() + to_slots(held, small).square().sum()).square()
        slopes = torch.autograd.grad(energy, (held, features), create_graph=True)
        curved = torch.autograd.grad(sum(slope.square().sum() for slope in slopes), (held,))
        assert (slopes[0][padding] == 0.0).all()
        assert (curved[0][padding] == 0.0).all()
        results.append((summed, *slopes, *curved))
    for result in results[1:]:
        assert all(map(torch.equal, result, results[0]))


def test_kernels_agree_with_torch() -> None:
    """On a GPU where there is one, else in Triton's interpreter."""
    _, pairs = listed([crystal(3), System([1], [[0.0, 0.0, 0.0]])], 3.4)
    weights, features = inputs(pairs, 3)
    right = torch.randn_like(features)
    energy = (undirected_message(weights, right, pairs) * features).sum()
    (product,) = torch.autograd.grad(energy, weights)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    held = pairs.undirected
    assert held is not None
    index, count, number = (one.to(device) for one in (pairs.index, pairs.count, held.number))
    there = Undirected(held.one.to(device), held.other.to(device), held.valid.to(device), number)
    weights, features, right = (one.detach().to(device) for one in (weights, features, right))
    found = messages.message(weights, features, index, count, number).cpu()
    expected = undirected_message(weights.cpu(), features.cpu(), pairs)
    torch.testing.assert_close(found, expected, atol=1e-13, rtol=0)
    found = messages.undirected_product(features, right, index, there).cpu()
    torch.testing.assert_close(found, product, atol=1e-13, rtol=0)


SINCS = TENSORNET | {"radial_basis": {"kind": "smooth_bessel", "number": 5}}


@pytest.mark.parametrize(
    "settings", [TENSORNET, TENSORNET2, SINCS], ids=["tensornet", "tensornet2", "sincs"]
)
def test_a_network_is_the_same_on_pairs_and_on_slots(settings: dict[str, object]) -> None:
    """Energies, forces, and the slopes of a loss of both by every weight."""
    potential = network(**settings)
    state, pairs = listed([crystal(4), molecule(4)], potential.cutoffs[0])
    results = []
    for undirected in (pairs.undirected, None):
        one = replace(pairs, undirected=undirected)
        energies = potential(atoms_of(state), (one,))
        gradients = torch.autograd.grad(energies.sum(), one.vectors, create_graph=True)
        forces, virials = forces_and_virials(one, gradients)
        virial = virials.sum(0)
        loss = energies.square().sum() + forces.square().sum() + virial.square().sum()
        weights = list(potential.parameters())
        slopes = torch.autograd.grad(loss, weights, allow_unused=True, materialize_grads=True)
        results.append([value.detach() for value in (energies, forces, virial, *slopes)])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9 * float(other.abs().max()))
