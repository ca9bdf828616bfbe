"""A loss of forces and its slopes by every weight, through all kernels of a network at once."""

import sys

import pytest
import torch
from random_networks import TENSORNET, atoms_of, molecule, network
from torch import Tensor
from undirected_pairs import listed

from mdgraph.models.ops.messages import forces_and_virials

SETTINGS = TENSORNET | {"channels": 3, "radial_basis": {"number": 3}}
CASES = {
    "O(3)": SETTINGS | {"cutoff_lower": 0.3},
    "SO(3), charge": SETTINGS | {"group": "SO(3)", "charge_factor": True, "layers": 1},
}


@pytest.mark.parametrize("name", CASES)
def test_training_with_kernels_is_training_without(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU where there is one, else in Triton's interpreter."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    potential = network(**CASES[name]).to(device)
    state, pairs = listed([molecule(3, charge=1.0)], potential.cutoffs[0], device)
    assert (pairs.count > 0).all()
    weights = list(potential.parameters())
    modules = [
        module
        for module_name, module in sys.modules.items()
        if module_name.startswith("mdgraph.") and hasattr(module, "has_kernels")
    ]
    assert len(modules) > 4  # launch, three files of operations, and the network
    results: list[list[Tensor]] = []
    for use in (True, False):
        for module in modules:
            monkeypatch.setattr(module, "has_kernels", lambda x, use=use: use)
        energies = potential(atoms_of(state), (pairs,))
        gradients = torch.autograd.grad(energies.sum(), pairs.vectors, create_graph=True)
        forces, virials = forces_and_virials(pairs, gradients)
        virial = virials.sum(0)
        loss = energies.square().sum() + forces.square().sum() + virial.square().sum()
        slopes = torch.autograd.grad(loss, weights, allow_unused=True, materialize_grads=True)
        found = (energies, forces, virial, *slopes)
        results.append([value.detach() for value in found])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11 * float(other.abs().max()))
