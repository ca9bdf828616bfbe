"""The kernel of an activation's second derivative; torch has the first two as one kernel each."""

import triton.language as tl

from mdgraph.neighbors.compilation import kernel


@kernel
def silu_curvature_kernel(x, one, other, for_x, for_one, numbers, BLOCK: tl.constexpr):
    """Derivatives of h g silu'(x) by x and by g.

    Args:
        x, one, other: x, g, h (numbers,).
        for_x, for_one: (numbers,), written.
        numbers: how many there are.
    """
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < numbers
    v = tl.load(x + place, mask=inside, other=0.0)
    g = tl.load(one + place, mask=inside, other=0.0)
    h = tl.load(other + place, mask=inside, other=0.0)
    sigmoid = 1.0 / (1.0 + tl.exp(-v))
    rest = 1.0 - sigmoid
    slope = sigmoid * (1.0 + v * rest)
    curvature = sigmoid * rest * (2.0 + v * (rest - sigmoid))
    tl.store(for_x + place, g * h * curvature, mask=inside)
    tl.store(for_one + place, h * slope, mask=inside)
