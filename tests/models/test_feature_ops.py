"""Operations of features with derivatives of their own: they are what torch derives."""

import pytest
import torch
from feature_cases import CASES, PRODUCTS, X, Y, plain_dots, plain_normalized, plain_weighed, random
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck
from torch.nn import functional

from mdgraph.models import tensornet
from mdgraph.models.kernels import features as kernels
from mdgraph.models.ops import features
from mdgraph.models.ops.features import LayerNorm, normalize, silu
from mdgraph.models.tensors import Product

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


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
    product = PRODUCTS["product0"]
    (slope,) = torch.autograd.grad(product(x, x).sum(), x)
    (one,) = torch.autograd.grad(product(x, Y).sum(), x)
    moved = X + 1e-6 * Y
    change = (product(moved, moved) - product(X, X)).sum() / 1e-6
    assert float((slope * Y).sum()) == pytest.approx(float(change), rel=1e-4)
    assert not torch.allclose(slope, one)


@pytest.mark.parametrize("channels", [1, 5, 130])
def test_kernels_agree_with_torch(channels: int) -> None:
    """On a GPU where there is one, else in Triton's interpreter; also strips that are not full."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x, y, z = (random(2, 9, channels, seed=seed).to(device) for seed in (7, 8, 9))
    weights = random(2, 3, channels, seed=10).to(device)
    same = {"rtol": 1e-12, "atol": 1e-12}
    for each in (weights, weights[:, :1].expand(-1, 3, -1)):
        expected = 2.0 * plain_weighed(x, each)
        torch.testing.assert_close(kernels.scale_parts(x, each, 2.0), expected, **same)
    torch.testing.assert_close(kernels.dot_products(x, y, 2.0), 2.0 * plain_dots(x, y), **same)
    x, y = x.requires_grad_(), y.requires_grad_()
    for function, slope, curvature in (
        (plain_normalized, kernels.normalized_slope, kernels.normalized_curvature),
        (functional.silu, None, kernels.silu_curvature),
    ):
        (expected,) = torch.autograd.grad(function(x), x, y, create_graph=True)
        both = torch.autograd.grad(expected, (x, y), z)
        if slope is not None:
            torch.testing.assert_close(slope(x.detach(), y.detach()), expected.detach(), **same)
        for one, other in zip(curvature(x.detach(), y.detach(), z), both, strict=True):
            torch.testing.assert_close(one, other, **same)
    torch.testing.assert_close(kernels.normalize(x.detach()), plain_normalized(x).detach(), **same)


def parts_of_interactions(x: Tensor, y: Tensor, factors: Tensor) -> list[Tensor]:
    return [
        features.normalized_product(x, y, Product(1.0, True), None),
        features.normalized_product(x, y, Product(1.0, True), factors),
        features.normalized_product(x, y, Product(2.0, False), None),
        features.update_features(x, y, None),
        features.update_features(x, y, factors),
    ]


@pytest.mark.parametrize("channels", [3, 130])
def test_interaction_kernels_agree_with_their_operations_in_torch(
    channels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values and two derivatives, on a GPU where there is one, else in Triton's interpreter."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    values = [random(2, 9, channels, seed=seed).to(device) for seed in (12, 13)]
    factors = random(2, 1, 1, seed=14).to(device)
    results = []
    for use in (True, False):
        monkeypatch.setattr(features, "has_kernels", lambda x, use=use: use)
        held = [value.clone().requires_grad_() for value in values]
        found = []
        for one in parts_of_interactions(*held, factors):
            slopes = torch.autograd.grad(one.sin().sum(), held, create_graph=True)
            curved = torch.autograd.grad(sum((slope**3).sum() for slope in slopes), held)
            found += [one.detach(), *(slope.detach() for slope in slopes), *curved]
        results.append(found)
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)


def test_window_kernels_agree_with_their_operations_in_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Values and two derivatives, on a GPU where there is one, else in Triton's interpreter."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    values = [random(3, 2, 6, seed=15).to(device), random(3, 2, seed=16).to(device)]
    results = []
    for use in (True, False):
        monkeypatch.setattr(tensornet, "has_kernels", lambda x, use=use: use)
        held = [value.clone().requires_grad_() for value in values]
        found = tensornet.windowed_silu(*held)
        weight = found.detach().cos().requires_grad_()
        slopes = torch.autograd.grad((found * weight).sum(), held, create_graph=True)
        loss = sum((slope**3).sum() for slope in slopes)
        curved = torch.autograd.grad(loss, (*held, weight))
        results.append([one.detach() for one in (found, *slopes, *curved)])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("shape", [(7, 5), (2, 3, 5)])
def test_dense_layers_agree_with_their_operations_in_torch(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loss of values and slopes by weights, through two layers and a slope taken twice."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x = random(*shape, seed=17).to(device).requires_grad_()
    torch.manual_seed(18)
    layers = nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 6)).to(device, torch.float64)
    parameters = list(layers.parameters())
    results = []
    for use in (True, False):
        monkeypatch.setattr(features, "has_kernels", lambda x, use=use: use)
        y = x
        for layer in layers:
            y = features.dense(y, layer, silu)
        slopes = [
            torch.autograd.grad((y**power).sum(), x, create_graph=True)[0] for power in (1, 2)
        ]
        (plain,) = torch.autograd.grad(y.sum(), parameters[:1], retain_graph=True)
        loss = y.sin().sum() + sum((slope**3).sum() for slope in slopes)
        curved = torch.autograd.grad(loss, (x, *parameters))
        results.append([one.detach() for one in (y, *slopes, plain, *curved)])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("width", [3, 8])
def test_row_kernels_agree_with_torch(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x, weight, bias = (random(*shape, seed=19) for shape in ((4, width), (width,), (width,)))
    norm = LayerNorm(width)
    norm.weight.data, norm.bias.data = weight, bias
    norm, x = norm.to(device), x.to(device).requires_grad_()
    results = []
    for use in (True, False):
        monkeypatch.setattr(features, "has_kernels", lambda x, use=use: use)
        y = norm(x)
        (slope,) = torch.autograd.grad((y**2).sum(), x, create_graph=True)
        loss = y.sin().sum() + (slope**3).sum()
        curved = torch.autograd.grad(loss, (x, norm.weight, norm.bias))
        results.append([one.detach() for one in (y, slope, *curved)])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)


def test_a_third_derivative_is_refused_not_wrong() -> None:
    (x,) = leaves((X,), "cpu")
    (slope,) = torch.autograd.grad(normalize(x).square().sum(), x, create_graph=True)
    (curved,) = torch.autograd.grad(slope.square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        curved.sum().backward()
