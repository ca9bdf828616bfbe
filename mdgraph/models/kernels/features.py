"""Kernels of one atom and channel at a time: weights and dots of parts, normalisation.

Each is a form that is linear in all but one of its arguments, so that the derivatives of any of
them are among them. A program takes one atom and a strip of channels.
"""

import triton.language as tl

from mdgraph.models.kernels.components import (
    add,
    dot,
    dots,
    load,
    normalized,
    normalized_adjoint,
    scale,
    store,
    weigh,
)
from mdgraph.neighbors.compilation import kernel


@kernel
def weighed_kernel(
    features,
    weights,
    result,
    row,
    part,
    FACTOR: tl.constexpr,
    F: tl.constexpr,
    BF: tl.constexpr,
):
    """Y[i, c] = factor X[i, c] w[i, part(c)] from X (N, 9, F) and w (N, 3, F) of any strides."""
    atom = tl.program_id(0).to(tl.int64)
    f = tl.program_id(1) * BF + tl.arange(0, BF)
    inside = f < F
    place = atom * (9 * F) + f
    w = weights + atom * row + f
    scalar = FACTOR * tl.load(w, mask=inside, other=0.0)
    vector = FACTOR * tl.load(w + part, mask=inside, other=0.0)
    tensor = FACTOR * tl.load(w + 2 * part, mask=inside, other=0.0)
    x = load(features + place, F, inside)
    store(result + place, F, weigh(x, scalar, vector, tensor), inside)


@kernel
def dots_kernel(left, right, result, FACTOR: tl.constexpr, F: tl.constexpr, BF: tl.constexpr):
    """Factor <A, B> of each part (N, 3, F) from A and B (N, 9, F)."""
    atom = tl.program_id(0).to(tl.int64)
    f = tl.program_id(1) * BF + tl.arange(0, BF)
    inside = f < F
    place = atom * (9 * F) + f
    parts = dots(load(left + place, F, inside), load(right + place, F, inside))
    for part in tl.static_range(3):
        tl.store(result + atom * (3 * F) + part * F + f, FACTOR * parts[part], mask=inside)


@kernel
def normalized_kernel(features, result, F: tl.constexpr, BF: tl.constexpr):
    """X / (|X|^2 + 1) of X (N, 9, F)."""
    atom = tl.program_id(0).to(tl.int64)
    f = tl.program_id(1) * BF + tl.arange(0, BF)
    place = atom * (9 * F) + f
    y, _ = normalized(load(features + place, F, f < F))
    store(result + place, F, y, f < F)


@kernel
def normalized_slope_kernel(features, direction, result, F: tl.constexpr, BF: tl.constexpr):
    """The derivative of `normalized_kernel` along a direction, which is its own adjoint."""
    atom = tl.program_id(0).to(tl.int64)
    f = tl.program_id(1) * BF + tl.arange(0, BF)
    inside = f < F
    place = atom * (9 * F) + f
    y, inverse = normalized(load(features + place, F, inside))
    slope = normalized_adjoint(load(direction + place, F, inside), y, inverse)
    store(result + place, F, slope, inside)


@kernel
def normalized_curvature_kernel(
    features, one, other, for_features, for_one, F: tl.constexpr, BF: tl.constexpr
):
    """Derivatives of <h, slope of X along g> by X and by g.

    With s = 1 / (|X|^2 + 1) and y = X s, the first is
    -2 s (y <g, h> + g <h, y> + h <g, y>) + 8 y <g, y> <h, y>.

    Args:
        features, one, other: X, g, h (N, 9, F).
        for_features, for_one: (N, 9, F), written.
    """
    atom = tl.program_id(0).to(tl.int64)
    f = tl.program_id(1) * BF + tl.arange(0, BF)
    inside = f < F
    place = atom * (9 * F) + f
    y, inverse = normalized(load(features + place, F, inside))
    g = load(one + place, F, inside)
    h = load(other + place, F, inside)
    gy = dot(g, y)
    hy = dot(h, y)
    along = scale(y, 8.0 * gy * hy - 2.0 * inverse * dot(g, h))
    across = add(scale(g, -2.0 * inverse * hy), scale(h, -2.0 * inverse * gy))
    store(for_features + place, F, add(along, across), inside)
    store(for_one + place, F, normalized_adjoint(h, y, inverse), inside)
