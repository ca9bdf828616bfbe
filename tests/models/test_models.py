"""The network against its equations in matrices, and what a configuration accepts."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from ase_pairs import pairs_by_ase
from pydantic import ValidationError
from random_networks import TENSORNET, TENSORNET2, crystal, energy_of, evaluated, molecule, network
from torch import Tensor
from torch.nn import functional

from mdgraph.errors import UnknownSpeciesError
from mdgraph.models import TensorNetConfig, TensorNetPotential, check_species
from mdgraph.models.ops.features import normalize, squared_norms
from mdgraph.models.tensornet import ACTIVATIONS
from mdgraph.models.tensornet2 import COULOMB
from mdgraph.models.tensors import (
    BASIS,
    bilinear,
    direction_coefficients,
    directions,
    product_coefficients,
)
from mdgraph.system import System

# Components against matrices


def as_matrices(components: Tensor) -> Tensor:
    """(N, 9, F) to (N, F, 3, 3)."""
    return torch.einsum("nmf,mij->nfij", components, BASIS)


def test_the_basis_is_orthonormal_and_keeps_the_parts_apart() -> None:
    overlap = torch.einsum("mij,nij->mn", BASIS, BASIS)
    torch.testing.assert_close(overlap, torch.eye(9, dtype=torch.float64), rtol=0, atol=1e-15)
    identity, antisymmetric, symmetric = BASIS[:1], BASIS[1:4], BASIS[4:]
    assert torch.equal(antisymmetric.mT, -antisymmetric)
    assert torch.equal(symmetric.mT, symmetric)
    assert symmetric.diagonal(dim1=1, dim2=2).sum(1).abs().max() < 1e-15
    unit = torch.eye(3, dtype=torch.float64)
    assert torch.equal(identity, identity[:, :1, :1] * unit)


def random_components(seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(4, 9, 3, generator=generator, dtype=torch.float64)


def parts_of(matrices: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Trace, antisymmetric and symmetric traceless part."""
    trace = matrices.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None]
    identity = trace * torch.eye(3, dtype=matrices.dtype)
    antisymmetric = 0.5 * (matrices - matrices.mT)
    return identity, antisymmetric, 0.5 * (matrices + matrices.mT) - identity


def frobenius(matrices: Tensor) -> Tensor:
    return matrices.square().sum((-2, -1))


def test_the_parts_of_the_components_are_the_parts_of_the_matrix() -> None:
    components = random_components(0)
    parts = parts_of(as_matrices(components))
    for part, kind in zip(parts, (slice(0, 1), slice(1, 4), slice(4, 9)), strict=True):
        only = torch.zeros_like(components)
        only[:, kind] = components[:, kind]
        torch.testing.assert_close(as_matrices(only), part)
    for part, norm in zip(parts, squared_norms(components).unbind(1), strict=True):
        torch.testing.assert_close(frobenius(part), norm)


def test_bilinear_is_the_product_of_matrices() -> None:
    left, right = random_components(1), random_components(2)
    product = bilinear(product_coefficients().flatten(1), left, right)
    torch.testing.assert_close(as_matrices(product), as_matrices(left) @ as_matrices(right))


def test_normalized_divides_by_the_squared_norm_plus_one() -> None:
    components = random_components(3)
    matrices = as_matrices(components)
    expected = matrices / (frobenius(matrices) + 1.0)[..., None, None]
    torch.testing.assert_close(as_matrices(normalize(components)), expected)


def cross_matrix(vectors: Tensor) -> Tensor:
    """[r]x with [r]x v = r x v."""
    identity = torch.eye(3, dtype=vectors.dtype).expand(*vectors.shape, 3)
    return torch.linalg.cross(vectors[..., None, :], identity).mT


def test_directions_are_one_plus_cross_plus_traceless_square() -> None:
    unit = functional.normalize(torch.randn(5, 3, dtype=torch.float64), dim=-1)
    other = torch.randn(5, 3, dtype=torch.float64)
    cross = cross_matrix(unit)
    torch.testing.assert_close((cross @ other[..., None])[..., 0], torch.linalg.cross(unit, other))
    square = unit[:, :, None] * unit[:, None, :] - torch.eye(3, dtype=torch.float64) / 3
    matrices = as_matrices(directions(direction_coefficients(), unit)[..., None])[:, 0]
    torch.testing.assert_close(matrices, torch.eye(3, dtype=torch.float64) + cross + square)


# The whole network


def energy_by_matrices(potential: TensorNetPotential, system: System) -> float:
    """Every equation of TensorNet and TensorNet2 with 3x3 matrices and a list of pairs.

    Pairs come from ASE and sums over them from `index_add`; of the code under test it
    shares the weights, the radial basis and the activation.
    """
    config, net = potential.config, potential.network
    activation = ACTIVATIONS[config.activation]
    by_pair = pairs_by_ase(system, config.cutoff)
    index = np.array([key[:2] for key in by_pair], dtype=np.int64).reshape(-1, 2)
    receiver, sender = torch.from_numpy(index).T
    vector = torch.from_numpy(np.array(list(by_pair.values())).reshape(-1, 3))
    distance = vector.norm(dim=-1)
    sense = 1.0 if config.edge_direction == "to_neighbor" else -1.0
    unit = sense * vector / distance[:, None]
    atoms, channels = len(system), config.channels
    if config.self_interaction:
        itself = torch.arange(atoms)
        receiver, sender = torch.cat([receiver, itself]), torch.cat([sender, itself])
        distance = torch.cat([distance, torch.zeros(atoms, dtype=torch.float64)])
        unit = torch.cat([unit, torch.zeros(atoms, 3, dtype=torch.float64)])
    lower, upper = config.cutoff_lower, config.cutoff
    if lower > 0.0:
        phase = 2.0 * (distance - lower) / (upper - lower) + 1.0
        inside = (distance > lower) & (distance < upper)
    else:
        phase, inside = distance / upper, distance < upper
    window = 0.5 * (torch.cos(math.pi * phase) + 1.0) * inside
    radial = net.basis(distance)
    row = torch.tensor([config.species.index(number) for number in system.numbers.tolist()])
    charge = system.charge or 0.0
    factor = 1.0 + 0.1 * charge if config.charge_factor else 1.0

    def summed(messages: Tensor) -> Tensor:
        total = messages.new_zeros(atoms, *messages.shape[1:])
        return total.index_add(0, receiver, messages)

    def mixed(matrices: Tensor, mixing: Any) -> tuple[Tensor, Tensor, Tensor]:
        one, two, three = (
            torch.einsum("gf,nfij->ngij", linear.weight, part)
            for linear, part in zip(mixing.parts, parts_of(matrices), strict=True)
        )
        return one, two, three

    embedding = net.embedding
    species = embedding.species(row)
    pair = embedding.atom(species)[receiver] + embedding.neighbor(species)[sender]
    weights = embedding.distance(radial) * window[:, None] * pair.repeat(1, 3)
    first, second, third = weights.split(channels, dim=-1)
    identity = torch.eye(3, dtype=torch.float64)
    outer = unit[:, :, None] * unit[:, None, :]
    square = outer - outer.diagonal(dim1=-2, dim2=-1).mean(-1)[:, None, None] * identity
    tensor = summed(
        first[..., None, None] * identity
        + second[..., None, None] * cross_matrix(unit)[:, None]
        + third[..., None, None] * square[:, None]
    )
    gate = embedding.norm(frobenius(tensor))
    for linear in embedding.gate:
        gate = activation(linear(gate))
    gates = gate.split(channels, dim=-1)
    tensor = sum(
        scale[..., None, None] * part
        for scale, part in zip(gates, mixed(tensor, embedding.mixing), strict=True)
    )

    def charges_of(tensor: Tensor, predict: Any) -> Tensor:
        one, two, three = parts_of(tensor)
        x = torch.cat([one[..., 0, 0], frobenius(two), frobenius(three)], dim=-1)
        x = predict.norm(x)
        for linear in predict.linears[:-1]:
            x = activation(linear(x))
        q, f = predict.linears[-1](x).chunk(2, dim=-1)
        return q + f**2 / ((f**2).sum(0) + 1e-6) * (charge - q.sum(0))

    charged = config.architecture == "tensornet2"
    charges = [charges_of(tensor, net.charges[0])] if charged else []
    for number, layer in enumerate(net.layers):
        x = radial
        if charged:
            x = torch.cat([x, charges[-1][receiver], charges[-1][sender]], dim=-1)
        for linear in layer.edge_network.linears:
            x = activation(linear(x))
        weights = (x * window[:, None]).split(channels, dim=-1)
        tensor = tensor / (frobenius(tensor) + 1.0)[..., None, None]
        parts = mixed(tensor, layer.before)
        own = sum(parts)
        message = summed(
            sum(g[..., None, None] * part[sender] for g, part in zip(weights, parts, strict=True))
        )
        if config.group == "O(3)":
            product = factor * (own @ message + message @ own)
        else:
            product = 2.0 * own @ message
        product = product / (frobenius(product) + 1.0)[..., None, None]
        change = sum(mixed(product, layer.after))
        tensor = tensor + change + factor * change @ change
        if charged:
            charges.append(charges_of(tensor, net.charges[number + 1]))
    x = net.linear(net.norm(torch.cat([frobenius(part) for part in parts_of(tensor)], dim=-1)))
    if config.readout_activation:
        x = activation(x)
    if config.readout.kind == "mlp":
        for linear in potential.readout.linears[:-1]:
            x = activation(linear(x))
        energies = potential.readout.linears[-1](x)
    else:
        value = gate = x
        for linear in potential.readout.values[:-1]:
            value = functional.silu(linear(value))
        for linear in potential.readout.gates[:-1]:
            gate = functional.silu(linear(gate))
        gate = torch.sigmoid(potential.readout.gates[-1](gate))
        energies = potential.readout.values[-1](value) * gate
    energy = energies.sum()
    if potential.coulomb is not None:
        energy = energy + coulomb_by_pairs(potential, system, torch.cat(charges, dim=-1))
    references = potential.references[row].sum()
    return (potential.scale * energy + potential.shift + references).item()


def coulomb_by_pairs(potential: TensorNetPotential, system: System, charges: Tensor) -> Tensor:
    cutoff = potential.config.coulomb.cutoff
    weights = potential.coulomb.weights / potential.coulomb.weights.sum()
    energy = torch.zeros((), dtype=torch.float64)
    for (i, j, *_), vector in pairs_by_ase(system, cutoff or 1e3).items():
        distance = float(np.linalg.norm(vector))
        kernel = 1.0 / distance
        if cutoff is not None:
            field = (78.3 - 1.0) / (2.0 * 78.3 + 1.0)
            kernel += field * distance**2 / cutoff**3 - (field + 1.0) / cutoff
        if distance < 4.6:
            kernel *= 1.0 - math.exp(1.0 - 1.0 / (1.0 - (distance / 4.6) ** 2))
        energy = energy + 0.5 * COULOMB * kernel * (weights * charges[i] * charges[j]).sum()
    return energy


NETWORKS: dict[str, dict[str, Any]] = {
    "O(3)": TENSORNET,
    "SO(3)": TENSORNET | {"group": "SO(3)"},
    "SO(3), to neighbor": TENSORNET | {"group": "SO(3)", "edge_direction": "to_neighbor"},
    "no self interaction": TENSORNET | {"self_interaction": False},
    "lower cutoff": TENSORNET | {"cutoff_lower": 1.1},
    "no layers": TENSORNET | {"layers": 0},
    "charge factor": TENSORNET | {"charge_factor": True},
    "charge factor, SO(3)": TENSORNET | {"charge_factor": True, "group": "SO(3)"},
    "gated": TENSORNET | {"readout": {"kind": "gated", "hidden": (6, 5)}},
    "no readout activation": TENSORNET | {"readout_activation": False},
    "mish": TENSORNET | {"activation": "mish"},
    "gaussian": TENSORNET | {"radial_basis": {"kind": "gaussian", "number": 5}},
    "TensorNet2": TENSORNET2,
    "TensorNet2, SO(3)": TENSORNET2 | {"group": "SO(3)", "self_interaction": False},
    "TensorNet2, Coulomb": TENSORNET2 | {"coulomb": {"cutoff": 5.2}},
    "TensorNet2, lower cutoff": TENSORNET2 | {"cutoff_lower": 1.1},
}


@pytest.mark.parametrize("settings", NETWORKS.values(), ids=NETWORKS)
def test_energies_are_those_of_the_equations(settings: dict[str, Any]) -> None:
    potential = network(**settings)
    for system in crystal(charge=1.0), molecule(charge=-2.0), crystal(1, charge=None):
        expected = energy_by_matrices(potential, system)
        assert float(energy_of(potential, system)) == pytest.approx(expected, abs=1e-11)


def test_coulomb_over_all_pairs_of_a_molecule() -> None:
    potential = network(**TENSORNET2, coulomb={})
    system = molecule(9, charge=1.0)
    spread = system.replace(positions=system.positions * 1.6)
    for one in system, spread:
        expected = energy_by_matrices(potential, one)
        assert float(energy_of(potential, one)) == pytest.approx(expected, abs=1e-11)


def test_a_lone_atom_has_an_energy_of_its_own() -> None:
    """No neighbors at all: nothing is divided by zero and no force is left."""
    for settings in NETWORKS.values():
        state = evaluated(network(**settings), System([6], [[1.0, 2.0, 3.0]]))
        assert torch.isfinite(state.energy).all()
        assert (state.forces == 0.0).all()
        assert (state.virial == 0.0).all()


# What a configuration accepts


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"species": ()}, "at least one"),
        ({"species": (1, 1)}, "distinct"),
        ({"cutoff_lower": 3.4}, "below cutoff"),
        ({"cutoff": math.inf}, "finite"),
        ({"charge_channels": 3}, "tensornet2 needs"),
        ({"architecture": "tensornet2"}, "tensornet2 needs"),
        ({"coulomb": {"cutoff": 9.0}}, "charges of tensornet2"),
        ({"channels": 0}, "greater than or equal to 1"),
        ({"group": "SU(2)"}, "O\\(3\\)"),
        ({"cutof": 3.0}, "Extra inputs"),
    ],
)
def test_contradictory_configurations_are_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        TensorNetConfig.model_validate(TENSORNET | changes)


def test_unknown_species_are_named_with_their_atoms() -> None:
    check_species((1, 8), [8, 1, 1])
    check_species(None, [118])
    with pytest.raises(UnknownSpeciesError, match=r"F, Cl \(atoms 1, 3\).*H, O"):
        check_species((8, 1), [8, 17, 1, 9])
