"""The way back through the edge network, on tiles of edges."""

import numpy as np

from mdgraph.fused.cpu.activations import activated
from mdgraph.fused.cpu.compilation import routine
from mdgraph.fused.cpu.components import (
    add,
    dots,
    load_components,
    scaled_by_stored,
    store_components,
)
from mdgraph.fused.cpu.cubics import cubic_and_slope
from mdgraph.fused.cpu.edge_network import enter, neighbor_of
from mdgraph.fused.cpu.lanes import LANES, kept_apart, load, load_one, store, total, zero
from mdgraph.fused.cpu.products import ATOMS, Place, Rows, multiply


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
        Rows(tile.third, 0, 3 * channels, 1, 0, LANES),
        Place(network.network.adjoint, 2 * channels * channels),
        3 * channels,
        Rows(tile.second, 0, 2 * channels, 1, 0, LANES),
        2 * channels,
    )
    _times(tile.second, tile.second_slopes, 2 * rows * channels)
    multiply(
        Rows(tile.second, 0, 2 * channels, 1, 0, LANES),
        Place(network.network.adjoint, 0),
        2 * channels,
        Rows(tile.first, 0, channels, 1, 0, LANES),
        channels,
    )
    _times(tile.first, tile.first_slopes, rows * channels)
    multiply(
        Rows(tile.first, 0, channels, 1, 0, LANES),
        Place(network.of_neighbor_adjoint, 0),
        channels,
        Rows(tile.charges, 0, size, 1, 0, LANES),
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
