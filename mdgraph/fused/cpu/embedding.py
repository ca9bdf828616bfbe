"""CPU kernels of edges, moments and the embedding, forward and backward, on blocks of atoms.

M[lm, s, k] = sum over neighbors of element s of Y_lm(r) B_k(d), one row of (elements,
padded functions) for each of the nine components.
"""

import math
from typing import Final

import numpy as np

from mdgraph.fused.cpu.math import (
    add,
    cubic,
    cubic_and_slope,
    dot,
    dots,
    load_components,
    scaled,
    scaled_by_stored,
    spread_components,
    store_components,
)
from mdgraph.fused.cpu.products import (
    ATOMS,
    ArrayOffset,
    BlockRows,
    climb,
    descend,
    features,
    layer_norm,
    layer_norm_adjoint,
    mix,
    multiply,
)
from mdgraph.fused.cpu.simd import (
    LANES,
    kept_apart,
    kernel,
    load,
    load_one,
    routine,
    store,
    total,
    zero,
)
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


@routine
def vector_to(listed, i, slot, vector):
    """Writes the vector from an atom to a neighbor of its row; returns its square.

    r = x_j - x_i + (n_image - n_j + n_i) h with whole numbers n, so that the two directions
    of a pair are negatives of each other to the last bit.
    """
    j, image, h = listed.neighbor[i, slot], listed.image[i, slot], listed.system[i]
    a = listed.offsets[image, 0] - listed.wrap[j, 0] + listed.wrap[i, 0]
    b = listed.offsets[image, 1] - listed.wrap[j, 1] + listed.wrap[i, 1]
    c = listed.offsets[image, 2] - listed.wrap[j, 2] + listed.wrap[i, 2]
    square = 0.0
    for axis in range(3):
        x = listed.positions[j, axis] - listed.positions[i, axis]
        x += a * listed.cell[h, 0, axis]
        x += b * listed.cell[h, 1, axis]
        x += c * listed.cell[h, 2, axis]
        square += x * x
        vector[axis] = x
    return square


@kernel
def find_edges(first, last, listed, grid, edges):
    """Writes the edges of atoms [first, last), in the order of the list."""
    for i in range(first, last):
        start = i * edges.slots
        found = 0
        for slot in range(listed.counts[i]):
            edge = start + found
            square = vector_to(listed, i, slot, edges.vector[4 * edge : 4 * edge + 3])
            distance = math.sqrt(square)
            # A distance that is no finite number stays in, and the energy will be none either.
            if grid.cutoff <= distance < math.inf:
                continue
            edges.neighbor[edge] = listed.neighbor[i, slot]
            edges.slot[edge] = slot
            interval, offset = _located(distance, grid)
            edges.interval[edge] = interval
            edges.offset[edge] = offset
            edges.vector[4 * edge + 3] = 1.0 / distance
            edges.central[edge] = 0.0
            found += 1
        edges.counts[i] = found


@routine
def _located(distance, grid):
    """As `RadialGrid.locate`; what is no finite number gets a place on the grid too."""
    if distance < grid.start:
        return 0, distance - 0.5 * grid.start
    zone = _whole((distance - grid.start) / grid.zone_width, len(grid.counts))
    within = distance - (grid.start + zone * grid.zone_width)
    width = grid.widths[zone]
    place = _whole(within / width, grid.counts[zone])
    return grid.first[zone] + place, within - (place + 0.5) * width


@routine
def _whole(ratio, number):
    """The integer part, from 0 to number - 1; 0 for what is no number."""
    if ratio >= number:
        return number - 1
    return int(ratio) if ratio >= 1.0 else 0


@kernel
def add_up(first, last, listed, edges, forces, virials):
    """Forces (N, 3) and virials (9, N) of atoms [first, last), edge by edge.

    F_i = sum_k (w_ik - w_reverse) and W_i = -sum_k r_ik (x) w_ik.
    """
    w = edges.gradient
    for i in range(first, last):
        start = i * edges.slots
        for column in range(3):
            forces[i, column] = 0.0
            for row in range(3):
                virials[3 * row + column, i] = 0.0
        for edge in range(start, start + edges.counts[i]):
            slot = edges.slot[edge]
            own = 3 * (start + slot)
            other = 3 * (listed.neighbor[i, slot] * edges.slots + listed.reverse[i, slot])
            for column in range(3):
                forces[i, column] += w[own + column] - w[other + column]
                for row in range(3):
                    part = edges.vector[4 * edge + row] * w[own + column]
                    virials[3 * row + column, i] -= part


@kernel
def add_systems(system, values, sums):
    """Sums values (C, N) over the atoms of each system, in their order, to (S, C)."""
    for one in range(len(sums)):
        for column in range(len(values)):
            sums[one, column] = 0.0
    for i in range(len(system)):
        for column in range(len(values)):
            sums[system[i], column] += values[column, i]


@kernel
def embed(first, last, sizes, weights, edges, atoms, result):
    """Writes the first features of blocks [first, last), and what their gradient needs."""
    channels, kind = sizes.channels, result.dtype
    row, size = 9 * channels, 9 * sizes.elements * sizes.padded_functions
    widest = weights.gate.widest
    angular, part = np.empty(9, kind), np.empty(ATOMS * row, kind)
    for block in range(first, last):
        begin = block * ATOMS
        moments = np.zeros(ATOMS * size, kind)
        for local in range(ATOMS):
            add_moments(begin + local, local * size, sizes, weights, edges, atoms, angular, moments)
        for element in range(sizes.elements):
            _contract(moments, element, sizes, weights, part)
            for local in range(ATOMS):
                _add_pairs(begin + local, local, element, sizes, weights, atoms, part)
        levels = 3 * begin * widest
        for local in range(ATOMS):
            _finish_raw(begin + local, levels + local * widest, sizes, weights, atoms)
        slopes = ArrayOffset(atoms.gate_slopes, 2 * begin * widest)
        climb(weights.gate, ArrayOffset(atoms.gates, levels), slopes)
        raw, mixed = ArrayOffset(atoms.raw, begin * row), ArrayOffset(atoms.mixed, begin * row)
        mix(raw, weights.mixing, mixed, channels)
        gates = levels + 2 * ATOMS * widest
        for local in range(ATOMS):
            start, gate = (begin + local) * row, gates + local * widest
            for c in range(0, channels, LANES):
                x = load_components(atoms.mixed, start + 9 * c, LANES)
                x = scaled_by_stored(x, atoms.gates, gate + c, channels)
                store_components(result, start + 9 * c, LANES, x)


@routine
def _moments(array, element, sizes, part):
    """Rows of one part of the moments (ATOMS, 9, elements, functions) of one element."""
    functions = sizes.padded_functions
    stride = sizes.elements * functions
    place = part * part * stride + element * functions
    return BlockRows(array, place, 9 * stride, 2 * part + 1, stride, LANES)


@routine
def _contract(moments, element, sizes, weights, result):
    """Moments of one element of neighbors to channels, without Z."""
    kept_apart()
    channels, functions = sizes.channels, sizes.functions
    for part in range(3):
        multiply(
            _moments(moments, element, sizes, part),
            ArrayOffset(weights.distance, part * functions * channels),
            functions,
            features(result, 0, channels, part),
            channels,
        )


@routine
def _contract_adjoint(by_part, element, sizes, weights, result):
    kept_apart()
    channels, functions = sizes.channels, sizes.padded_functions
    for part in range(3):
        multiply(
            features(by_part, 0, channels, part),
            ArrayOffset(weights.distance_adjoint, part * functions * channels),
            channels,
            _moments(result, element, sizes, part),
            functions,
        )


@routine
def _add_pairs(atom, local, element, sizes, weights, atoms, part):
    """Adds the contraction of one element of neighbors, times Z of the pair."""
    kept_apart()
    channels = sizes.channels
    start, place = atom * 9 * channels, local * 9 * channels
    pair = (atoms.kinds[atom] * sizes.elements + element) * channels
    for c in range(0, channels, LANES):
        x = scaled(load_components(part, place + 9 * c, LANES), load(weights.pair, pair + c))
        if element > 0:
            x = add(x, load_components(atoms.raw, start + 9 * c, LANES))
        store_components(atoms.raw, start + 9 * c, LANES, x)


@routine
def _finish_raw(atom, place, sizes, weights, atoms):
    """Adds the interaction of an atom with itself, and makes the input of the gate."""
    kept_apart()
    channels = sizes.channels
    start, own = atom * 9 * channels, atoms.kinds[atom] * channels
    for c in range(0, channels, LANES):
        scalar = load(atoms.raw, start + 9 * c) + load(weights.own, own + c)
        store(atoms.raw, start + 9 * c, scalar)
        x = load_components(atoms.raw, start + 9 * c, LANES)
        store(atoms.gates, place + c, dot(x, x))
    norm, shift, normal = weights.norm, weights.shift, atoms.normal
    atoms.spread[atom] = layer_norm(
        atoms.gates, place, channels, sizes.width, norm, shift, normal, atom * channels
    )


@kernel
def embed_adjoint(first, last, sizes, weights, edges, atoms):
    """From the gradient of the first features to that of the edges, of blocks [first, last)."""
    channels, kind = sizes.channels, atoms.adjoint.dtype
    row, size = 9 * channels, 9 * sizes.elements * sizes.padded_functions
    widest = weights.gate.widest
    adjoint, angular = np.empty(ATOMS * size, kind), np.empty(9, kind)
    by_mixed, by_raw = np.empty(ATOMS * row, kind), np.empty(ATOMS * row, kind)
    for block in range(first, last):
        begin = block * ATOMS
        levels = 3 * begin * widest
        gates = levels + 2 * ATOMS * widest
        for local in range(ATOMS):
            _gate_adjoint(begin + local, local, channels, atoms, gates + local * widest, by_mixed)
        slopes = ArrayOffset(atoms.gate_slopes, 2 * begin * widest)
        descend(weights.gate, ArrayOffset(atoms.gates, levels), slopes)
        mix(ArrayOffset(by_mixed, 0), weights.mixing_adjoint, ArrayOffset(by_raw, 0), channels)
        for local in range(ATOMS):
            _raw_adjoint(
                begin + local, local, sizes, weights, atoms, levels + local * widest, by_raw
            )
        for element in range(sizes.elements):
            for local in range(ATOMS):
                _pairs_adjoint(
                    begin + local, local, element, sizes, weights, atoms, by_raw, by_mixed
                )
            _contract_adjoint(by_mixed, element, sizes, weights, adjoint)
        for local in range(ATOMS):
            write_gradients(
                begin + local, local * size, sizes, weights, edges, atoms, angular, adjoint
            )


@routine
def _gate_adjoint(atom, local, channels, atoms, gate, by_mixed):
    """Writes the gradient of the mixed features, and that of the gate in its place."""
    kept_apart()
    start, place = atom * 9 * channels, local * 9 * channels
    for c in range(0, channels, LANES):
        g = load_components(atoms.adjoint, start + 9 * c, LANES)
        by_gate = dots(g, load_components(atoms.mixed, start + 9 * c, LANES))
        g = scaled_by_stored(g, atoms.gates, gate + c, channels)
        store_components(by_mixed, place + 9 * c, LANES, g)
        store(atoms.gates, gate + c, by_gate[0])
        store(atoms.gates, gate + channels + c, by_gate[1])
        store(atoms.gates, gate + 2 * channels + c, by_gate[2])


@routine
def _raw_adjoint(atom, local, sizes, weights, atoms, square, by_raw):
    """Adds what the gradient of the squares, which the gate was given, makes of the features."""
    kept_apart()
    channels = sizes.channels
    start, place, normal = atom * 9 * channels, local * 9 * channels, atoms.normal
    layer_norm_adjoint(
        atoms.gates,
        square,
        channels,
        sizes.width,
        weights.norm,
        normal,
        atom * channels,
        atoms.spread[atom],
    )
    for c in range(0, channels, LANES):
        x = load_components(atoms.raw, start + 9 * c, LANES)
        g = load_components(by_raw, place + 9 * c, LANES)
        g = add(g, scaled(x, 2.0 * load(atoms.gates, square + c)))
        store_components(by_raw, place + 9 * c, LANES, g)


@routine
def _pairs_adjoint(atom, local, element, sizes, weights, atoms, by_raw, by_part):
    kept_apart()
    channels = sizes.channels
    place = local * 9 * channels
    pair = (atoms.kinds[atom] * sizes.elements + element) * channels
    for c in range(0, channels, LANES):
        g = load_components(by_raw, place + 9 * c, LANES)
        g = scaled(g, load(weights.pair, pair + c))
        store_components(by_part, place + 9 * c, LANES, g)
