"""Moments of the embedding over the edges of an atom, and the gradient of an edge by them.

M[lm, s, k] = sum over neighbors of element s of Y_lm(r) B_k(d), one row of (elements,
padded functions) for each of the nine components.
"""

import math
from typing import Final

from mdgraph.fused.cpu.compilation import routine
from mdgraph.fused.cpu.components import (
    add,
    dot,
    load_components,
    scaled,
    spread_components,
    store_components,
)
from mdgraph.fused.cpu.cubics import cubic, cubic_and_slope
from mdgraph.fused.cpu.lanes import LANES, kept_apart, load_one, total, zero
from mdgraph.models.tensors import TRACE

_ROOT_2: Final = math.sqrt(2.0)
_ROOT_HALF: Final = math.sqrt(1.0 / 2.0)
_ROOT_SIXTH: Final = math.sqrt(1.0 / 6.0)


@routine
def _write_directions(vector, place, angular):
    """Components of 1 + [r]x + (r r^T - 1/3) for the unit vector r of an edge."""
    inverse = vector[place + 3]
    x, y, z = vector[place] * inverse, vector[place + 1] * inverse, vector[place + 2] * inverse
    angular[0] = TRACE
    angular[1] = _ROOT_2 * x
    angular[2] = _ROOT_2 * y
    angular[3] = _ROOT_2 * z
    angular[4] = _ROOT_2 * x * y
    angular[5] = _ROOT_2 * y * z
    angular[6] = _ROOT_SIXTH * (2.0 * z * z - x * x - y * y)
    angular[7] = _ROOT_2 * x * z
    angular[8] = _ROOT_HALF * (x * x - y * y)


@routine
def add_moments(atom, start, sizes, weights, edges, atoms, angular, moments):
    """Adds the edges of an atom to its moments at `start`."""
    kept_apart()
    functions = sizes.padded_functions
    stride = sizes.elements * functions
    first = atom * edges.slots
    for edge in range(first, first + edges.counts[atom]):
        _write_directions(edges.vector, 4 * edge, angular)
        u = load_one(edges.offset, edge)
        coefficients = edges.interval[edge] * 4 * functions
        place = start + atoms.kinds[edges.neighbor[edge]] * functions
        y = spread_components(angular)
        for k in range(0, functions, LANES):
            b = cubic(weights.table, coefficients + k, functions, u)
            m = load_components(moments, place + k, stride)
            store_components(moments, place + k, stride, add(m, scaled(y, b)))


@routine
def write_gradients(atom, start, sizes, weights, edges, atoms, angular, adjoint):
    """Derivatives by the edges of an atom, from the gradient of its moments at `start`."""
    kept_apart()
    functions = sizes.padded_functions
    stride = sizes.elements * functions
    first = atom * edges.slots
    for edge in range(first, first + edges.counts[atom]):
        _write_directions(edges.vector, 4 * edge, angular)
        u = load_one(edges.offset, edge)
        coefficients = edges.interval[edge] * 4 * functions
        place = start + atoms.kinds[edges.neighbor[edge]] * functions
        y = spread_components(angular)
        radial = none = zero(adjoint)
        g = (none, none, none, none, none, none, none, none, none)
        for k in range(0, functions, LANES):
            value, slope = cubic_and_slope(weights.table, coefficients + k, functions, u)
            d = load_components(adjoint, place + k, stride)
            g = add(g, scaled(d, value))
            radial = radial + dot(y, d) * slope
        gradient = 3 * (first + edges.slot[edge])
        _write_gradient(
            edges.vector, 4 * edge, total(radial) + edges.central[edge], g, edges.gradient, gradient
        )


@routine
def _write_gradient(vector, place, radial, g, gradient, start):
    """By the vector: `radial` along it, and what turns it from the gradient of Y_lm."""
    inverse = vector[place + 3]
    x, y, z = vector[place] * inverse, vector[place + 1] * inverse, vector[place + 2] * inverse
    g4, g5, g7 = _ROOT_2 * total(g[4]), _ROOT_2 * total(g[5]), _ROOT_2 * total(g[7])
    g6, g8 = 2.0 * _ROOT_SIXTH * total(g[6]), _ROOT_2 * total(g[8])
    by_x = _ROOT_2 * total(g[1]) + g4 * y + g7 * z + (g8 - g6) * x
    by_y = _ROOT_2 * total(g[2]) + g4 * x + g5 * z - (g8 + g6) * y
    by_z = _ROOT_2 * total(g[3]) + g5 * y + g7 * x + 2.0 * g6 * z
    along = radial - inverse * (by_x * x + by_y * y + by_z * z)
    gradient[start] = along * x + inverse * by_x
    gradient[start + 1] = along * y + inverse * by_y
    gradient[start + 2] = along * z + inverse * by_z
