"""Operations of features with derivatives of their own: they are what torch derives."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.nn import functional

from mdgraph.models.contractions import dots, mixed, weighed
from mdgraph.models.kernels import launches
from mdgraph.models.nonlinear import StandardizedRows, normalized, silu
from mdgraph.models.products import Product
from mdgraph.models.tensors import BASIS

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
PARTS = torch.tensor([0, 1, 1, 1, 2, 2, 2, 2, 2])


def random(*shape: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, dtype=torch.float64, generator=generator)


def matrices(components: Tensor) -> Tensor:
    """(N, 9, F) to (N, F, 3, 3)."""
    return torch.einsum("ncf,cij->nfij", components, BASIS.to(components.device))


def components(of: Tensor) -> Tensor:
    return torch.einsum("nfij,cij->ncf", of, BASIS.to(of.device))


def plain_product(product: Product, left: Tensor, right: Tensor) -> Tensor:
    a, b = matrices(left), matrices(right)
    a = a.mT if product.left_transposed else a
    b = b.mT if product.right_transposed else b
    return components(product.factor * (a @ b + b @ a if product.symmetric else a @ b))


def plain_mixed(features: Tensor, *weights: Tensor) -> Tensor:
    each = torch.stack(weights)[PARTS.to(features.device)]
    return torch.einsum("nce,cfe->ncf", features, each)


def plain_dots(left: Tensor, right: Tensor) -> Tensor:
    parts = functional.one_hot(PARTS, 3).to(left)
    return torch.einsum("ncf,ncf,cp->npf", left, right, parts)


def plain_weighed(features: Tensor, weights: Tensor) -> Tensor:
    return features * weights[:, PARTS.to(features.device)]


def plain_normalized(features: Tensor) -> Tensor:
    return features / (1.0 + (features**2).sum(1, keepdim=True))


def plain_rows(x: Tensor) -> Tensor:
    return functional.layer_norm(x.flatten(1), x[0].flatten().shape, eps=1e-5).view_as(x)


def slope_of_rows(*values: Tensor) -> Tensor:
    flat = [value.flatten(1) for value in values]
    return launches.standardized_slope(*flat, 1e-5).view_as(values[0])


def curvature_of_rows(*values: Tensor) -> tuple[Tensor, ...]:
    found = launches.standardized_curvature(*(value.flatten(1) for value in values), 1e-5)
    return tuple(one.view_as(values[0]) for one in found)


X, Y = random(2, 9, 2, seed=0), random(2, 9, 2, seed=1)
Case = tuple[Callable[..., Tensor], Callable[..., Tensor], tuple[Tensor, ...]]
PRODUCTS = {
    f"product{number}": Product(0.7, bool(number & 1), bool(number & 2), bool(number & 4))
    for number in range(8)
}
CASES: dict[str, Case] = {
    "weighed": (weighed, plain_weighed, (X, random(2, 3, 2, seed=2))),
    "dots": (dots, plain_dots, (X, Y)),
    "mixed": (
        lambda x, *weights: mixed(x, torch.stack(weights)),
        plain_mixed,
        (X, *(random(3, 2, seed=seed) for seed in (3, 4, 5))),
    ),
    "normalized": (normalized, plain_normalized, (X,)),
    "rows": (
        lambda x: StandardizedRows(6).to(x)(x),
        lambda x: functional.layer_norm(x, (6,)),
        (random(5, 6, seed=11),),
    ),
    "silu": (silu, functional.silu, (3.0 * random(7, 5, seed=6),)),
} | {
    name: (product, lambda a, b, product=product: plain_product(product, a, b), (X, Y))
    for name, product in PRODUCTS.items()
}


def leaves(values: tuple[Tensor, ...], device: str) -> tuple[Tensor, ...]:
    return tuple(value.to(device).requires_grad_() for value in map(torch.clone, values))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", CASES)
def test_values_and_two_derivatives_are_those_of_plain_torch(name: str, device: str) -> None:
    function, plain, values = CASES[name]
    held = leaves(values, device)
    found = []
    for one in (function, plain):
        result = one(*held)
        slopes = torch.autograd.grad(result.sin().sum(), held, create_graph=True)
        curved = torch.autograd.grad(sum((slope**3).sum() for slope in slopes), held)
        found.append((result, *slopes, *curved))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["mixed", "normalized", "silu", "rows", "product5"])
def test_derivatives_are_those_of_differences(name: str, device: str) -> None:
    function, _, values = CASES[name]
    held = leaves(values, device)
    assert gradcheck(function, held)
    assert gradgradcheck(function, held)


def test_the_same_tensor_twice_counts_twice() -> None:
    (x,) = leaves((X,), "cpu")
    for function in (PRODUCTS["product0"], dots):
        (slope,) = torch.autograd.grad(function(x, x).sum(), x)
        (one,) = torch.autograd.grad(function(x, Y).sum(), x)
        moved = X + 1e-6 * Y
        change = (function(moved, moved) - function(X, X)).sum() / 1e-6
        assert float((slope * Y).sum()) == pytest.approx(float(change), rel=1e-4)
        assert not torch.allclose(slope, one)


@pytest.mark.parametrize("channels", [1, 5, 130])
def test_kernels_do_what_torch_does(channels: int) -> None:
    """On a GPU where there is one, else in Triton's interpreter; also strips that are not full."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x, y, z = (random(2, 9, channels, seed=seed).to(device) for seed in (7, 8, 9))
    weights = random(2, 3, channels, seed=10).to(device)
    same = {"rtol": 1e-12, "atol": 1e-12}
    torch.testing.assert_close(launches.weighed(x, weights), plain_weighed(x, weights), **same)
    torch.testing.assert_close(launches.dots(x, y), plain_dots(x, y), **same)
    for product in PRODUCTS.values() if channels == 5 else [PRODUCTS["product0"]]:
        flags = (product.symmetric, product.left_transposed, product.right_transposed)
        found = launches.product(x, y, product.factor, *flags)
        torch.testing.assert_close(found, plain_product(product, x, y), **same)
    x, y = x.requires_grad_(), y.requires_grad_()
    for function, slope, curvature in (
        (plain_normalized, launches.normalized_slope, launches.normalized_curvature),
        (functional.silu, None, launches.silu_curvature),
        (plain_rows, slope_of_rows, curvature_of_rows),
    ):
        (expected,) = torch.autograd.grad(function(x), x, y, create_graph=True)
        both = torch.autograd.grad(expected, (x, y), z)
        if slope is not None:
            torch.testing.assert_close(slope(x.detach(), y.detach()), expected.detach(), **same)
        for one, other in zip(curvature(x.detach(), y.detach(), z), both, strict=True):
            torch.testing.assert_close(one, other, **same)
    torch.testing.assert_close(
        launches.normalized(x.detach()), plain_normalized(x).detach(), **same
    )


def test_a_third_derivative_is_refused_not_wrong() -> None:
    (x,) = leaves((X,), "cpu")
    (slope,) = torch.autograd.grad(normalized(x).square().sum(), x, create_graph=True)
    (curved,) = torch.autograd.grad(slope.square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        curved.sum().backward()
