"""Tables in kernels."""

from mdgraph.fused.cpu.compilation import routine
from mdgraph.fused.cpu.lanes import load


@routine
def cubic(table, place, stride, u):
    """Values at an offset u of cubics whose coefficients lie `stride` apart."""
    return load(table, place) + u * (
        load(table, place + stride)
        + u * (load(table, place + 2 * stride) + u * load(table, place + 3 * stride))
    )


@routine
def cubic_and_slope(table, place, stride, u):
    """Values and derivatives."""
    c1, c2 = load(table, place + stride), load(table, place + 2 * stride)
    c3 = load(table, place + 3 * stride)
    value = load(table, place) + u * (c1 + u * (c2 + u * c3))
    return value, c1 + u * (2.0 * c2 + 3.0 * u * c3)
