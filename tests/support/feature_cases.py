"""Operations of features, each beside the same in plain torch and with inputs."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from mdgraph.models.ops.features import (
    LayerNorm,
    mix_channels,
    normalize,
    scale_parts,
    silu,
    squared_norms,
)
from mdgraph.models.tensors import BASIS, Product

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


X, Y = random(2, 9, 2, seed=0), random(2, 9, 2, seed=1)


Case = tuple[Callable[..., Tensor], Callable[..., Tensor], tuple[Tensor, ...]]


PRODUCTS = {
    f"product{number}": Product(0.7, bool(number & 1), bool(number & 2), bool(number & 4))
    for number in range(8)
}


CASES: dict[str, Case] = {
    "weighed": (scale_parts, plain_weighed, (X, random(2, 3, 2, seed=2))),
    "squares": (squared_norms, lambda x: plain_dots(x, x), (X,)),
    "mixed": (
        lambda x, *weights: mix_channels(x, weights),
        plain_mixed,
        (X, *(random(3, 2, seed=seed) for seed in (3, 4, 5))),
    ),
    "normalized": (normalize, plain_normalized, (X,)),
    "rows": (
        lambda x: LayerNorm(6).to(x)(x),
        lambda x: functional.layer_norm(x, (6,)),
        (random(5, 6, seed=11),),
    ),
    "silu": (silu, functional.silu, (3.0 * random(7, 5, seed=6),)),
} | {
    name: (product, lambda a, b, product=product: plain_product(product, a, b), (X, Y))
    for name, product in PRODUCTS.items()
}
