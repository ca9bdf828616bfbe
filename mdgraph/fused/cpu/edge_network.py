"""TensorNet2's edge network on tiles of edges, forward and backward.

A tile has as many edges as a block has atoms, so it reads the weights once and fits into the
first caches. Of an edge, only the 3F numbers before the last activation are stored; the backward
pass computes the F and 2F numbers before them again. The second layer takes 2 F^2 multiply-adds,
an eighth of both passes, which is faster than writing and reading 2F numbers. Storing nothing
would repeat the 6 F^2 of the third layer too, and the gradient by Y needs the weights of reverse
edges, which belong to other rows.
"""

from typing import Any, NamedTuple

import numpy as np

from mdgraph.fused.cpu.math import (
    activated,
    add,
    cubic,
    cubic_and_slope,
    dots,
    load_components,
    scaled_by_stored,
    store_components,
)
from mdgraph.fused.cpu.products import ATOMS, ArrayOffset, BlockRows, activate, multiply
from mdgraph.fused.cpu.simd import LANES, kept_apart, load, load_one, routine, store, total, zero


class Tile(NamedTuple):
    """Some edges of a block, and the values of their layers.

    Attributes:
        atoms: (ATOMS,) int64, atom of each edge.
        edges: (ATOMS,) int64, number of the edge, -1 for that of an atom with itself.
        first, first_slopes, second, second_slopes: (ATOMS, F) and (ATOMS, 2F).
        third: (ATOMS, 3F).
        charges: (ATOMS, C).
    """

    atoms: Any
    edges: Any
    first: Any
    first_slopes: Any
    second: Any
    second_slopes: Any
    third: Any
    charges: Any


@routine
def new_tile(channels, charges, like):
    """A tile of the type of an array."""
    kind = like.dtype
    return Tile(
        np.zeros(ATOMS, np.int64),
        np.zeros(ATOMS, np.int64),
        np.zeros(ATOMS * channels, kind),
        np.zeros(ATOMS * channels, kind),
        np.zeros(2 * ATOMS * channels, kind),
        np.zeros(2 * ATOMS * channels, kind),
        np.zeros(3 * ATOMS * channels, kind),
        np.zeros(ATOMS * charges, kind),
    )


@routine
def neighbor_of(tile, row, edges):
    """The other atom, and where the edge lies among K + 1 slots a row."""
    atom, edge = tile.atoms[row], tile.edges[row]
    start = atom * (edges.slots + 1)
    if edge < 0:
        return atom, start + edges.slots
    return np.int64(edges.neighbor[edge]), start + edges.slot[edge]


@routine
def enter(tile, rows, channels, network, edges, windows, terms):
    """The first two layers: values and slopes."""
    kept_apart()
    for row in range(rows):
        atom, edge = tile.atoms[row] * channels, tile.edges[row]
        other = neighbor_of(tile, row, edges)[0] * channels
        interval, offset = np.int64(0), windows.origin
        if edge >= 0:
            interval, offset = np.int64(edges.interval[edge]), edges.offset[edge]
        table, place = 4 * interval * channels, row * channels
        for c in range(0, channels, LANES):
            x = load(terms.of_atom, atom + c) + load(terms.of_neighbor, other + c)
            x += cubic(network.table, table + c, channels, offset)
            value, slope = activated(x, network.activation)
            store(tile.first, place + c, value)
            store(tile.first_slopes, place + c, slope)
    multiply(
        BlockRows(tile.first, 0, channels, 1, 0, LANES),
        ArrayOffset(network.network.weights, 0),
        channels,
        BlockRows(tile.second, 0, 2 * channels, 1, 0, LANES),
        2 * channels,
    )
    biases = ArrayOffset(network.network.biases, 0)
    for place in range(0, 2 * rows * channels, 2 * channels):
        slopes = ArrayOffset(tile.second_slopes, place)
        activate(ArrayOffset(tile.second, place), biases, network.activation, slopes, 2 * channels)


@routine
def add_messages(tile, rows, channels, network, edges, windows, terms, kept):
    """M_i += g_ij * Y_j for the edges of a tile; keeps the third layer."""
    enter(tile, rows, channels, network, edges, windows, terms)
    multiply(
        BlockRows(tile.second, 0, 2 * channels, 1, 0, LANES),
        ArrayOffset(network.network.weights, 2 * channels * channels),
        2 * channels,
        BlockRows(tile.third, 0, 3 * channels, 1, 0, LANES),
        3 * channels,
    )
    _activate_last(tile, rows, channels, network, edges, windows, terms)
    first = 0
    for row in range(1, rows + 1):
        if row == rows or tile.atoms[row] != tile.atoms[first]:
            _add_messages(tile, first, row, channels, edges, kept)
            first = row


@routine
def _activate_last(tile, rows, channels, network, edges, windows, terms):
    """Keeps the third layer of edges, and turns it into the weights g."""
    kept_apart()
    biases = network.network.biases
    for row in range(rows):
        edge, start = tile.edges[row], 3 * row * channels
        level = neighbor_of(tile, row, edges)[1] * 3 * channels
        window = windows.value[edge] if edge >= 0 else 1.0
        for c in range(0, 3 * channels, LANES):
            x = load(tile.third, start + c) + load(biases, 2 * channels + c)
            store(terms.levels, level + c, x)
            store(tile.third, start + c, activated(x, network.activation)[0] * window)


@routine
def _add_messages(tile, first, last, channels, edges, kept):
    """Adds those of rows [first, last), edges of the same atom."""
    kept_apart()
    atom = tile.atoms[first]
    for c in range(0, channels, LANES):
        m = load_components(kept.messages, (atom * channels + c) * 9, LANES)
        for row in range(first, last):
            other = neighbor_of(tile, row, edges)[0]
            y = load_components(kept.sources, (other * channels + c) * 9, LANES)
            m = add(m, scaled_by_stored(y, tile.third, 3 * row * channels + c, channels))
        store_components(kept.messages, (atom * channels + c) * 9, LANES, m)


@routine
def messages_adjoint(tile, rows, channels, network, edges, windows, terms, kept, by_atom, charges):
    """From dM_i to derivatives by distances and to gradients of the first layer.

    Args:
        tile: edges.
        rows: their number.
        channels: F.
        network: weights.
        edges: derivatives by distances are added to `central`.
        windows: of the edges.
        terms: of the layer.
        kept: features of the layer.
        by_atom: (ATOMS, F), of the block; gradients by what atoms add are added.
        charges: gradients by the charges of neighbors are written.
    """
    size = charges.size
    enter(tile, rows, channels, network, edges, windows, terms)
    _levels_adjoint(tile, rows, channels, network, edges, windows, terms, kept)
    multiply(
        BlockRows(tile.third, 0, 3 * channels, 1, 0, LANES),
        ArrayOffset(network.network.adjoint, 2 * channels * channels),
        3 * channels,
        BlockRows(tile.second, 0, 2 * channels, 1, 0, LANES),
        2 * channels,
    )
    _times(tile.second, tile.second_slopes, 2 * rows * channels)
    multiply(
        BlockRows(tile.second, 0, 2 * channels, 1, 0, LANES),
        ArrayOffset(network.network.adjoint, 0),
        2 * channels,
        BlockRows(tile.first, 0, channels, 1, 0, LANES),
        channels,
    )
    _times(tile.first, tile.first_slopes, rows * channels)
    multiply(
        BlockRows(tile.first, 0, channels, 1, 0, LANES),
        ArrayOffset(network.of_neighbor_adjoint, 0),
        channels,
        BlockRows(tile.charges, 0, size, 1, 0, LANES),
        size,
    )
    for row in range(rows):
        place = neighbor_of(tile, row, edges)[1] * size
        for c in range(0, size, LANES):
            store(charges.by_neighbor, place + c, load(tile.charges, row * size + c))
        _first_adjoint(tile, row, channels, network, edges, by_atom)


@routine
def _times(values, factors, size):
    kept_apart()
    for c in range(0, size, LANES):
        store(values, c, load(values, c) * load(factors, c))


@routine
def _levels_adjoint(tile, rows, channels, network, edges, windows, terms, kept):
    """Gradient of the third layer, and what windows add to the derivatives by distances."""
    kept_apart()
    for row in range(rows):
        atom, edge = tile.atoms[row], tile.edges[row]
        other, level = neighbor_of(tile, row, edges)
        level *= 3 * channels
        window = windows.value[edge] if edge >= 0 else 1.0
        by_window = zero(tile.third)
        for c in range(0, channels, LANES):
            m = load_components(kept.messages, (atom * channels + c) * 9, LANES)
            y = load_components(kept.sources, (other * channels + c) * 9, LANES)
            p0, p1, p2 = dots(m, y)
            place = 3 * row * channels + c
            store(tile.third, place, p0)
            store(tile.third, place + channels, p1)
            store(tile.third, place + 2 * channels, p2)
        for c in range(0, 3 * channels, LANES):
            g, slope = activated(load(terms.levels, level + c), network.activation)
            p = load(tile.third, 3 * row * channels + c)
            by_window += g * p
            store(tile.third, 3 * row * channels + c, p * slope * window)
        if edge >= 0:
            edges.central[edge] += total(by_window) * windows.slope[edge]


@routine
def _first_adjoint(tile, row, channels, network, edges, by_atom):
    kept_apart()
    edge, local = tile.edges[row], tile.atoms[row] % ATOMS
    by_distance = zero(by_atom)
    for c in range(0, channels, LANES):
        g = load(tile.first, row * channels + c)
        store(by_atom, local * channels + c, load(by_atom, local * channels + c) + g)
        if edge >= 0:
            table = 4 * edges.interval[edge] * channels + c
            slope = cubic_and_slope(network.table, table, channels, load_one(edges.offset, edge))[1]
            by_distance += g * slope
    if edge >= 0:
        edges.central[edge] += total(by_distance)


@routine
def sources_adjoint(tile, atom, channels, network, listed, edges, windows, terms, kept):
    """dY_i += sum_j g_ji * dM_j; the tile is room for weights."""
    kept_apart()
    row, first = edges.slots + 1, atom * edges.slots
    # What comes before the first edge is that of the atom with itself.
    for edge in range(first - 1 if network.itself else first, first + edges.counts[atom]):
        other, level, window = atom, atom * row + edges.slots, 1.0
        if edge >= first:
            other, window = np.int64(edges.neighbor[edge]), np.float64(windows.value[edge])
            level = other * row + listed.reverse[atom, edges.slot[edge]]
        for c in range(0, 3 * channels, LANES):
            x = load(terms.levels, 3 * level * channels + c)
            store(tile.third, c, activated(x, network.activation)[0] * window)
        for c in range(0, channels, LANES):
            m = load_components(kept.messages, (other * channels + c) * 9, LANES)
            m = scaled_by_stored(m, tile.third, c, channels)
            place = (atom * channels + c) * 9
            y = load_components(kept.changes, place, LANES)
            store_components(kept.changes, place, LANES, add(y, m))
