"""Messages whose weights a table holds, forward and backward, on blocks of atoms."""

from mdgraph.fused.cpu.compilation import routine
from mdgraph.fused.cpu.components import (
    add,
    dots,
    load_components,
    scaled_by_part,
    scaled_by_stored,
    store_components,
)
from mdgraph.fused.cpu.cubics import cubic, cubic_and_slope
from mdgraph.fused.cpu.lanes import LANES, kept_apart, load, load_one, store, total
from mdgraph.fused.cpu.products import ATOMS


@routine
def write_messages(begin, edges, layer, sources, messages, channels):
    """M_i = own * Y_i + sum_j g(d_ij) * Y_j for the atoms of a block.

    All of them for some channels, then for the next: that much of the table stays at hand.
    """
    kept_apart()
    for c in range(0, channels, LANES):
        for atom in range(begin, begin + ATOMS):
            place = (atom * channels + c) * 9
            m = load_components(sources, place, LANES)
            m = scaled_by_stored(m, layer.own, c, channels)
            first = atom * edges.slots
            for edge in range(first, first + edges.counts[atom]):
                u = load_one(edges.offset, edge)
                table = (edges.interval[edge] * channels + c) * 12
                g0 = cubic(layer.table, table, 3 * LANES, u)
                g1 = cubic(layer.table, table + LANES, 3 * LANES, u)
                g2 = cubic(layer.table, table + 2 * LANES, 3 * LANES, u)
                y = load_components(sources, (edges.neighbor[edge] * channels + c) * 9, LANES)
                m = add(m, scaled_by_part(y, g0, g1, g2))
            store_components(messages, place, LANES, m)


@routine
def messages_adjoint(begin, edges, layer, kept, channels, central):
    """dY_i += own * dM_i + sum_j g(d_ij) * dM_j, and <g'(d_ij), Y_i * dM_j> for each edge."""
    kept_apart()
    start = begin * edges.slots
    for c in range(0, channels, LANES):
        for atom in range(begin, begin + ATOMS):
            place = (atom * channels + c) * 9
            y = load_components(kept.sources, place, LANES)
            m = load_components(kept.messages, place, LANES)
            by_y = load_components(kept.changes, place, LANES)
            by_y = add(by_y, scaled_by_stored(m, layer.own, c, channels))
            first = atom * edges.slots
            for edge in range(first, first + edges.counts[atom]):
                u = load_one(edges.offset, edge)
                table = (edges.interval[edge] * channels + c) * 12
                g0, s0 = cubic_and_slope(layer.table, table, 3 * LANES, u)
                g1, s1 = cubic_and_slope(layer.table, table + LANES, 3 * LANES, u)
                g2, s2 = cubic_and_slope(layer.table, table + 2 * LANES, 3 * LANES, u)
                other = (edges.neighbor[edge] * channels + c) * 9
                m = load_components(kept.messages, other, LANES)
                by_y = add(by_y, scaled_by_part(m, g0, g1, g2))
                p0, p1, p2 = dots(y, m)
                slope = s0 * p0 + s1 * p1 + s2 * p2
                if c > 0:
                    slope = load(central, (edge - start) * LANES) + slope
                store(central, (edge - start) * LANES, slope)
            store_components(kept.changes, place, LANES, by_y)
    for atom in range(begin, begin + ATOMS):
        first = atom * edges.slots
        for edge in range(first, first + edges.counts[atom]):
            edges.central[edge] += total(load(central, (edge - start) * LANES))
