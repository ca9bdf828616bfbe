"""What a network sees of its pairs: the kernels and their derivatives are those of torch."""

from collections.abc import Callable

import pytest
import torch
from random_networks import atoms_of, crystal
from torch import Tensor
from undirected_pairs import listed

from mdgraph.models.ops import geometry as surroundings
from mdgraph.models.ops.geometry import Geometry
from mdgraph.models.ops.messages import forces_and_virials
from mdgraph.models.radial import ExponentialNormal
from mdgraph.models.tensors import direction_coefficients
from mdgraph.neighbors.pairs import Pairs
from mdgraph.system import System

CUTOFF = 3.0
CUDA = torch.cuda.is_available()


def with_kernels(monkeypatch: pytest.MonkeyPatch, use: bool) -> None:
    """On a GPU where there is one, else in Triton's interpreter."""
    monkeypatch.setattr(surroundings, "has_kernels", lambda x: use)


def seen(kind: torch.dtype, lower: float, sign: float) -> tuple[Pairs, Callable[[], list[Tensor]]]:
    """A list with empty slots and padding, and a function of its vectors."""
    device = "cuda" if CUDA else "cpu"
    state, pairs = listed([crystal(2), System([1], [[0.0, 0.0, 0.0]])], CUTOFF, device)
    basis = ExponentialNormal(3, lower, CUTOFF).to(device, kind)
    geometry = Geometry(basis, lower, CUTOFF, sign, direction_coefficients().to(device, kind))
    atoms = atoms_of(state)

    def values() -> list[Tensor]:
        (one,), moments = geometry.compute(pairs, atoms.kinds, len(atoms.elements))
        return [one.radial, one.window, moments]

    return pairs, values


@pytest.mark.parametrize(("lower", "sign"), [(0.0, 1.0), (0.7, -1.0)])
def test_kernels_and_two_derivatives_are_those_of_torch(
    lower: float, sign: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs, values = seen(torch.float64, lower, sign)
    results = []
    for use in (True, False):
        with_kernels(monkeypatch, use)
        found = values()
        weights = [value.detach().sin().requires_grad_() for value in found]
        energy = sum((value * one).sum() for value, one in zip(found, weights, strict=True))
        slopes = torch.autograd.grad(energy, pairs.vectors, create_graph=True)
        forces, virials = forces_and_virials(pairs, slopes)
        loss = forces.sin().square().sum() + virials.sum(0).cos().sum()
        *curved, by_vectors = torch.autograd.grad(loss, (*weights, *pairs.vectors))
        assert (slopes[0][~pairs.blocks[0].valid] == 0.0).all()
        # What a change of both slots of a pair at once means is all that is meant.
        moved, _ = forces_and_virials(pairs, [by_vectors])
        every = (*found, forces, virials.sum(0), *curved, moved)
        results.append([value.detach() for value in every])
    assert min(float(value.abs().max()) for value in results[0]) > 1e-3
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-12)


def test_differences_are_taken_before_the_cast(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs, values = seen(torch.float32, 0.0, -1.0)
    results = []
    for use in (True, False):
        with_kernels(monkeypatch, use)
        found = values()
        energy = sum(value.sin().sum() for value in found)
        forces, _ = forces_and_virials(pairs, torch.autograd.grad(energy, pairs.vectors))
        results.append([value.detach() for value in (*found, forces)])
        assert [value.dtype for value in found] == [torch.float32] * 3
    for one, other in zip(*results, strict=True):
        scale = float(other.abs().max())
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6 * scale)
    assert results[0][3].dtype == torch.float64
