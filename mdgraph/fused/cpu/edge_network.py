"""The edge network of TensorNet2 on tiles of edges.

As many edges as a block has atoms go through its layers together, so that a tile reads the
weights once and all of it lies in the first caches. Kept of an edge are the 3F numbers
before the last activation, and the way back makes the F and 2F before them anew: the second
layer costs 2 F^2 multiply-adds, an eighth of the way there and back, and less than 2F numbers
written to memory and read again would take. Keeping nothing would cost the 6 F^2 of the third
layer too, and the gradient of Y needs the weights of reverse edges, which other rows made.
"""

from typing import Any, NamedTuple

import numpy as np

from mdgraph.fused.cpu.activations import activated
from mdgraph.fused.cpu.compilation import routine
from mdgraph.fused.cpu.components import (
    add,
    load_components,
    scaled_by_stored,
    store_components,
)
from mdgraph.fused.cpu.cubics import cubic
from mdgraph.fused.cpu.dense import activate
from mdgraph.fused.cpu.lanes import LANES, kept_apart, load, store
from mdgraph.fused.cpu.products import ATOMS, Place, Rows, multiply


class Tile(NamedTuple):
    """Some edges of a block, and their numbers between layers.

    Attributes:
        atoms: (ATOMS,) int64, whose edges they are.
        edges: (ATOMS,) int64, -1 for that of an atom with itself.
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
        Rows(tile.first, 0, channels, 1, 0, LANES),
        Place(network.network.weights, 0),
        channels,
        Rows(tile.second, 0, 2 * channels, 1, 0, LANES),
        2 * channels,
    )
    biases = Place(network.network.biases, 0)
    for place in range(0, 2 * rows * channels, 2 * channels):
        slopes = Place(tile.second_slopes, place)
        activate(Place(tile.second, place), biases, network.activation, slopes, 2 * channels)


@routine
def add_messages(tile, rows, channels, network, edges, windows, terms, kept):
    """M_i += g_ij * Y_j for the edges of a tile; keeps the third layer."""
    enter(tile, rows, channels, network, edges, windows, terms)
    multiply(
        Rows(tile.second, 0, 2 * channels, 1, 0, LANES),
        Place(network.network.weights, 2 * channels * channels),
        2 * channels,
        Rows(tile.third, 0, 3 * channels, 1, 0, LANES),
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
