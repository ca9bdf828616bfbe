"""The networks against the equations they stand for, written out with 3x3 matrices."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from ase_pairs import pairs_by_ase
from pydantic import ValidationError
from random_networks import (
    TENSORNET,
    TENSORNET2,
    crystal,
    energy_of,
    evaluated,
    molecule,
    network,
)
from scipy import integrate, optimize, special
from torch import Tensor
from torch.nn import functional

from mdgraph.errors import UnknownSpeciesError
from mdgraph.models import (
    RadialBasisConfig,
    TensorNetConfig,
    TensorNetPotential,
    check_species,
)
from mdgraph.models.activations import ACTIVATIONS
from mdgraph.models.electrostatics import COULOMB
from mdgraph.models.radial import cosine_cutoff, radial_basis
from mdgraph.models.tensors import (
    BASIS,
    bilinear,
    direction_coefficients,
    directions,
    normalized,
    product_coefficients,
    squared_norms,
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
    for part, norm in zip(parts, squared_norms(components), strict=True):
        torch.testing.assert_close(frobenius(part), norm)


def test_bilinear_is_the_product_of_matrices() -> None:
    left, right = random_components(1), random_components(2)
    product = bilinear(product_coefficients().flatten(1), left, right)
    torch.testing.assert_close(as_matrices(product), as_matrices(left) @ as_matrices(right))


def test_normalized_divides_by_the_squared_norm_plus_one() -> None:
    components = random_components(3)
    matrices = as_matrices(components)
    expected = matrices / (frobenius(matrices) + 1.0)[..., None, None]
    torch.testing.assert_close(as_matrices(normalized(components)), expected)


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


# Activations, bases, windows


SHIFT = math.log(2.0)
CLOSED_FORMS = {
    "silu": lambda x: x / (1.0 + np.exp(-x)),
    "ssp": lambda x: np.log1p(np.exp(x)) - SHIFT,
    "tanh": np.tanh,
    "sigmoid": special.expit,
    "mish": lambda x: x * np.tanh(np.log1p(np.exp(x))),
    "softplus": lambda x: np.log1p(np.exp(x)),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name: str) -> None:
    x = np.linspace(-8.0, 8.0, 101)
    result = ACTIVATIONS[name](torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(result, CLOSED_FORMS[name](x), rtol=1e-12, atol=1e-14)


UPPER = 4.7
DISTANCES = torch.linspace(0.05, UPPER, 200, dtype=torch.float64)


@pytest.mark.parametrize("lower", [0.0, 0.9])
def test_exponential_normal_basis(lower: float) -> None:
    number = 7
    basis = radial_basis(RadialBasisConfig(kind="expnorm", number=number), lower, UPPER)
    d = DISTANCES.numpy()[:, None]
    start = np.exp(lower - UPPER)
    means = np.linspace(start, 1.0, number)
    width = (2.0 / number * (1.0 - start)) ** -2
    inner = np.where(d < UPPER, 0.5 * (np.cos(np.pi * d / UPPER) + 1.0), 0.0)
    decay = np.exp(5.0 / (UPPER - lower) * (lower - d))
    expected = inner * np.exp(-width * (decay - means) ** 2)
    np.testing.assert_allclose(basis(DISTANCES).numpy(), expected, rtol=1e-12, atol=1e-14)


def test_gaussian_basis() -> None:
    basis = radial_basis(RadialBasisConfig(kind="gaussian", number=9), 0.5, UPPER)
    centers = np.linspace(0.5, UPPER, 9)
    width = 0.5 / (centers[1] - centers[0]) ** 2
    expected = np.exp(-width * (DISTANCES.numpy()[:, None] - centers) ** 2)
    np.testing.assert_allclose(basis(DISTANCES).numpy(), expected, rtol=1e-12, atol=1e-14)


def test_smooth_bessel_basis_is_its_recursion() -> None:
    number = 6
    basis = radial_basis(RadialBasisConfig(kind="smooth_bessel", number=number), 0.0, UPPER)
    d = DISTANCES.numpy()

    def f(n: int) -> np.ndarray:
        root = math.sqrt((n + 1) ** 2 + (n + 2) ** 2)
        norm = (-1) ** n * math.sqrt(2) * math.pi / UPPER**1.5 * (n + 1) * (n + 2) / root
        waves = special.spherical_jn(0, (n + 1) * np.pi * d / UPPER)
        return norm * (waves + special.spherical_jn(0, (n + 2) * np.pi * d / UPPER))

    scale, rows = 1.0, [f(0)]
    for n in range(1, number):
        overlap = n**2 * (n + 2) ** 2 / (4 * (n + 1) ** 4 + 1)
        following = 1.0 - overlap / scale
        rows.append((f(n) + math.sqrt(overlap / scale) * rows[-1]) / math.sqrt(following))
        scale = following
    np.testing.assert_allclose(basis(DISTANCES).numpy(), np.array(rows).T, rtol=1e-11, atol=1e-13)


def overlaps(kind: str, number: int, orders: int, rows: slice) -> np.ndarray:
    config = RadialBasisConfig(kind=kind, number=number, orders=orders)
    basis = radial_basis(config, 0.0, UPPER)

    def product(d: float) -> np.ndarray:
        values = basis(torch.tensor(d, dtype=torch.float64)).numpy()[rows]
        return np.outer(values, values) * d**2

    result, _ = integrate.quad_vec(product, 0.0, UPPER)
    return result


def test_smooth_bessel_basis_is_orthonormal_and_ends_flat() -> None:
    np.testing.assert_allclose(overlaps("smooth_bessel", 5, 1, slice(None)), np.eye(5), atol=1e-9)
    basis = radial_basis(RadialBasisConfig(kind="smooth_bessel", number=5), 0.0, UPPER)
    end = torch.tensor(UPPER, dtype=torch.float64, requires_grad=True)
    values = basis(end)
    assert values.detach().abs().max() < 1e-12
    for value in values:
        (slope,) = torch.autograd.grad(value, end, retain_graph=True)
        assert abs(float(slope)) < 1e-12


def test_spherical_bessel_basis_is_that_of_scipy() -> None:
    orders, zeros = 4, 5
    config = RadialBasisConfig(kind="spherical_bessel", number=orders * zeros, orders=orders)
    values = radial_basis(config, 0.0, UPPER)(DISTANCES).numpy()
    for order in range(orders):
        grid = np.linspace(0.5 + order, 40.0, 4000)
        height = special.spherical_jn(order, grid)
        crossing = np.flatnonzero(height[:-1] * height[1:] < 0)[:zeros]
        for number, left in enumerate(crossing):
            zero = optimize.brentq(
                lambda x, order=order: special.spherical_jn(order, x), *grid[left : left + 2]
            )
            norm = math.sqrt(2.0 / UPPER**3) / abs(special.spherical_jn(order + 1, zero))
            expected = norm * special.spherical_jn(order, zero * DISTANCES.numpy() / UPPER)
            # Zeros carry float32 rounding on purpose.
            np.testing.assert_allclose(
                values[:, order * zeros + number], expected, rtol=0, atol=1e-6
            )


@pytest.mark.parametrize("order", [0, 1, 2])
def test_spherical_bessel_functions_of_one_order_are_orthonormal(order: int) -> None:
    rows = slice(4 * order, 4 * order + 4)
    result = overlaps("spherical_bessel", 12, 3, rows)
    np.testing.assert_allclose(result, np.eye(4), atol=1e-6)


KINDS = [
    {"kind": "expnorm", "number": 6},
    {"kind": "gaussian", "number": 6},
    {"kind": "gaussian", "number": 1},
    {"kind": "smooth_bessel", "number": 3},
    {"kind": "spherical_bessel", "number": 9, "orders": 3},
    {"kind": "spherical_bessel", "number": 3, "orders": 1},
]


@pytest.mark.parametrize("settings", KINDS, ids=str)
def test_bases_count_their_functions_and_are_finite_and_twice_differentiable(
    settings: dict[str, Any],
) -> None:
    basis = radial_basis(RadialBasisConfig(**settings), 0.0, UPPER)
    d = torch.tensor([0.3, 2.0, UPPER, 2 * UPPER], dtype=torch.float64, requires_grad=True)
    values = basis(d)
    assert values.shape == (4, settings["number"])
    assert torch.isfinite(basis(torch.zeros((), dtype=torch.float64))).all()
    (slope,) = torch.autograd.grad(values.square().sum(), d, create_graph=True)
    (curvature,) = torch.autograd.grad(slope.sum(), d)
    assert torch.isfinite(values).all()
    assert torch.isfinite(slope).all()
    assert torch.isfinite(curvature).all()
    inner = torch.tensor([0.4, 1.7, 3.3], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(basis, (inner,))
    assert torch.autograd.gradgradcheck(basis, (inner,))


def test_the_window_is_one_at_zero_and_nothing_from_the_cutoff_on() -> None:
    d = torch.tensor([0.0, 2.5, np.nextafter(5.0, 0.0), 5.0, 6.0], dtype=torch.float64)
    window = cosine_cutoff(d, 0.0, 5.0)
    np.testing.assert_allclose(window, [1.0, 0.5, 0.0, 0.0, 0.0], atol=1e-15)
    assert (window[3:] == 0.0).all()
    bump = cosine_cutoff(torch.tensor([0.0, 1.0, 3.0, 5.0, 9.0]), 1.0, 5.0)
    assert bump.tolist() == [0.0, 0.0, 1.0, 0.0, 0.0]


# Repulsion


def dimer(first: int, second: int, distance: float) -> System:
    return System([first, second], [[0.0, 0.0, 0.0], [0.0, distance, 0.0]])


def repulsive_energy(kind: str, cutoff: float, distance: float) -> float:
    """The difference that the repulsion makes, of carbon and oxygen."""
    with_it = network(**TENSORNET, repulsion=({"kind": kind, "cutoff": cutoff},))
    without = network(**TENSORNET)
    system = dimer(6, 8, distance)
    return float(energy_of(with_it, system)) - float(energy_of(without, system))


COEFFICIENTS = np.array([0.1818, 0.5099, 0.2802, 0.02817])
EXPONENTS = np.array([3.2, 0.9423, 0.4029, 0.2016])


@pytest.mark.parametrize("distance", [0.7, 1.3, 2.4, 3.3])
def test_prior_repulsion_is_universal_screening_times_a_cosine(distance: float) -> None:
    cutoff = 2.9
    length = 0.8854 * 0.529177210903 / (6**0.23 + 8**0.23)
    screening = COEFFICIENTS @ np.exp(-EXPONENTS * distance / length)
    expected = 14.39964548 * 48 / distance * screening
    expected *= 0.5 * (1.0 + math.cos(math.pi * distance / cutoff)) if distance < cutoff else 0.0
    assert repulsive_energy("torchmdnet_prior", cutoff, distance) == pytest.approx(
        expected, rel=1e-6, abs=1e-12
    )


@pytest.mark.parametrize("distance", [0.7, 1.1, 2.4])
def test_network_repulsion_is_scaled_and_ends_at_the_radii(distance: float) -> None:
    settings = TENSORNET | {"repulsion": ({"kind": "torchmdnet_network", "cutoff": 3.4},)}
    (part,) = network(**settings).repulsions
    length = 0.4543 / 1.8897261258369282 / (6**0.3 + 8**0.3)
    u = distance / float(part.radii[6, 8])
    window = 1.0 - 28.0 * u**6 + 48.0 * u**7 - 21.0 * u**8 if u < 1.0 else 0.0
    screening = COEFFICIENTS @ np.exp(-EXPONENTS * distance / length)
    # Inside the network, so the scale of 1.7 applies.
    expected = 1.7 * 14.399645 * 48 / distance * screening * window
    assert repulsive_energy("torchmdnet_network", 3.4, distance) == pytest.approx(
        expected, rel=1e-9, abs=1e-12
    )


def test_network_repulsion_is_nothing_beyond_the_range_of_its_list() -> None:
    settings = TENSORNET | {"repulsion": ({"kind": "torchmdnet_network", "cutoff": 3.4},)}
    potential, without = network(**settings), network(**TENSORNET)
    potential.repulsions[0].radii.fill_(9.0)
    system = dimer(6, 8, 3.5)
    bare = evaluated(without, system).energy
    assert torch.equal(evaluated(potential, system).energy, bare)
    assert torch.equal(evaluated(potential, system, skin=1.0).energy, bare)


@pytest.mark.parametrize("distance", [0.7, 1.3, 2.4, 3.3])
def test_trained_repulsion_keeps_its_constants_positive(distance: float) -> None:
    cutoff = 2.9
    settings = TENSORNET | {"repulsion": ({"kind": "matgl", "cutoff": cutoff},)}
    potential = network(**settings)
    (part,) = potential.repulsions

    def positive(parameter: Tensor) -> np.ndarray:
        return np.log1p(np.exp(parameter.detach().numpy()))

    weights = positive(part.coefficients)
    scale = (6 ** positive(part.power) + 8 ** positive(part.power)) * positive(part.division)
    terms = np.exp(-positive(part.exponents) * scale * distance)
    u = distance / cutoff
    window = 1.0 - 10.0 * u**3 + 15.0 * u**4 - 6.0 * u**5 if u < 1.0 else 0.0
    expected = float(part.constant) * 48 / distance * (weights @ terms / weights.sum()) * window
    system = dimer(6, 8, distance)
    bare = TensorNetPotential(potential.config.model_copy(update={"repulsion": ()}))
    bare.load_state_dict(
        {key: value for key, value in potential.state_dict().items() if "repulsions" not in key}
    )
    found = float(energy_of(potential, system)) - float(energy_of(bare, system))
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_a_repulsion_that_reaches_farther_than_the_network_gets_a_list() -> None:
    potential = network(**TENSORNET, repulsion=({"kind": "torchmdnet_prior", "cutoff": 6.0},))
    assert potential.cutoffs == (3.4, 6.0)
    far = dimer(6, 8, 5.0)
    assert float(energy_of(potential, far)) != float(energy_of(network(**TENSORNET), far))


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
        ({"channels": 0}, "greater than 0"),
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
