"""Activations, radial bases and windows against their formulas."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import integrate, optimize, special

from mdgraph.models import RadialBasisConfig
from mdgraph.models.radial import cosine_cutoff, radial_basis
from mdgraph.models.tensornet import ACTIVATIONS, soft_exponential

SHIFT = math.log(2.0)

CLOSED_FORMS = {
    "silu": lambda x: x / (1.0 + np.exp(-x)),
    "ssp": lambda x: np.log1p(np.exp(x)) - SHIFT,
    "ssp_float32": lambda x: np.log1p(np.exp(x)) - float(np.float32(SHIFT)),
    "tanh": np.tanh,
    "sigmoid": special.expit,
    "mish": lambda x: x * np.tanh(np.log1p(np.exp(x))),
    "softplus": lambda x: np.log1p(np.exp(x)),
}


@pytest.mark.parametrize("alpha", [0.0, 0.4, -0.3])
def test_soft_exponential_matches_its_closed_form(alpha: float) -> None:
    x = torch.linspace(-8.0, 8.0, 101, dtype=torch.float64)
    exact = {
        0.0: x,
        0.4: (torch.exp(0.4 * x) - 1.0) / 0.4 + 0.4,
        -0.3: torch.log(torch.clamp(1.0 + 0.3 * (x - 0.3), min=1e-6)) / 0.3,
    }
    torch.testing.assert_close(soft_exponential(x, alpha), exact[alpha], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations_match_their_closed_forms(name: str) -> None:
    x = np.linspace(-8.0, 8.0, 101)
    result = ACTIVATIONS[name](torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(result, CLOSED_FORMS[name](x), rtol=1e-12, atol=1e-14)


UPPER = 4.7

DISTANCES = torch.linspace(0.05, UPPER, 200, dtype=torch.float64)


@pytest.mark.parametrize("lower", [0.0, 0.9])
def test_exponential_normal_basis_matches_its_closed_form(lower: float) -> None:
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


def test_gaussian_basis_matches_its_closed_form() -> None:
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
