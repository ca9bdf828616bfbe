"""Device function: the polynomials of a radial table."""

import triton
import triton.language as tl


@triton.jit
def polynomials(t, u, inside, STRIDE: tl.constexpr, TERMS: tl.constexpr = 4):
    """Values and slopes of cubics, or with three TERMS of parabolas.

    Args:
        t: pointers to their first coefficients, the others STRIDE further each.
        u: offsets from the centre of the interval.
        inside: which there are; zeros elsewhere.
    """
    c0 = tl.load(t, mask=inside, other=0.0)
    c1 = tl.load(t + STRIDE, mask=inside, other=0.0)
    c2 = tl.load(t + 2 * STRIDE, mask=inside, other=0.0)
    if TERMS == 3:
        return c0 + u * (c1 + u * c2), c1 + u * (2.0 * c2)
    c3 = tl.load(t + 3 * STRIDE, mask=inside, other=0.0)
    return c0 + u * (c1 + u * (c2 + u * c3)), c1 + u * (2.0 * c2 + u * (3.0 * c3))
