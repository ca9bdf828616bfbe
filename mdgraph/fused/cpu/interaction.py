"""CPU kernels of messages, an interaction layer and the readout, on blocks of atoms."""

import numpy as np

from mdgraph.fused.cpu.math import (
    add,
    combined,
    combined_adjoint,
    components,
    cubic,
    cubic_and_slope,
    dots,
    load_components,
    matrix,
    normalized,
    normalized_adjoint,
    product,
    scaled,
    scaled_by_part,
    scaled_by_stored,
    sigmoid,
    store_components,
    transposed,
)
from mdgraph.fused.cpu.products import (
    ATOMS,
    ArrayOffset,
    climb,
    descend,
    layer_norm,
    layer_norm_adjoint,
    mix,
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


@kernel
def read_out(first, last, sizes, weights, atoms, features):
    """Writes energies and the gradient of the features, of blocks [first, last)."""
    channels, width, kind = sizes.channels, sizes.width, features.dtype
    widest, layers = weights.values.widest, weights.values.layers
    normal, inverse = np.empty(ATOMS * widest, kind), np.empty(ATOMS, kind)
    values = np.empty((layers + 1) * ATOMS * widest, kind)
    gates = np.empty((layers + 1) * ATOMS * widest, kind)
    value_slopes = np.empty(layers * ATOMS * widest, kind)
    gate_slopes = np.empty(layers * ATOMS * widest, kind)
    value_levels, gate_levels = ArrayOffset(values, 0), ArrayOffset(gates, 0)
    norm, shift, top = weights.norm, weights.shift, layers * ATOMS * widest
    for block in range(first, last):
        start = block * ATOMS * 9 * channels
        for local in range(ATOMS):
            place = local * widest
            _write_invariants(features, start + local * 9 * channels, channels, values, place)
            inverse[local] = layer_norm(values, place, channels, width, norm, shift, normal, place)
        if weights.gated:
            for c in range(0, ATOMS * widest, LANES):
                store(gates, c, load(values, c))
            climb(weights.gates, gate_levels, ArrayOffset(gate_slopes, 0))
        climb(weights.values, value_levels, ArrayOffset(value_slopes, 0))
        for local in range(ATOMS):
            energy = _finish(values, gates, top + local * widest, weights.gated)
            atoms.energies[block * ATOMS + local] = energy
        descend(weights.values, value_levels, ArrayOffset(value_slopes, 0))
        if weights.gated:
            descend(weights.gates, gate_levels, ArrayOffset(gate_slopes, 0))
            for c in range(0, ATOMS * widest, LANES):
                store(values, c, load(values, c) + load(gates, c))
        for local in range(ATOMS):
            place = local * widest
            layer_norm_adjoint(values, place, channels, width, norm, normal, place, inverse[local])
            own = start + local * 9 * channels
            _write_adjoint(values, place, channels, features, own, atoms.adjoint)


@routine
def _write_invariants(features, start, channels, invariants, place):
    """Squared norms of the three parts."""
    kept_apart()
    for c in range(0, channels, LANES):
        x = load_components(features, start + 9 * c, LANES)
        scalar, vector, tensor = dots(x, x)
        store(invariants, place + c, scalar)
        store(invariants, place + channels + c, vector)
        store(invariants, place + 2 * channels + c, tensor)


@routine
def _write_adjoint(invariants, place, channels, features, start, adjoint):
    """Gradient of the features from that of their squared norms."""
    kept_apart()
    for c in range(0, channels, LANES):
        x = load_components(features, start + 9 * c, LANES)
        g = scaled_by_stored(add(x, x), invariants, place + c, channels)
        store_components(adjoint, start + 9 * c, LANES, g)


@routine
def _finish(values, gates, place, gated):
    """Energy of an atom; what is at `place`, a panel, becomes its gradient."""
    kept_apart()
    value, by_value = values[place], 1.0
    if gated:
        by_value = sigmoid(np.float64(gates[place]))
        _write_first(gates, place, value * by_value * (1.0 - by_value))
    _write_first(values, place, by_value)
    return value * by_value


@routine
def _write_first(array, place, number):
    """A number, and zeros in what else the panel has."""
    store(array, place, zero(array))
    store(array, place + LANES, zero(array))
    array[place] = number


@kernel
def make_sources(first, last, sizes, layer, kept):
    """Y = before(X / (|X|^2 + 1)) of blocks [first, last)."""
    channels = sizes.channels
    row = 9 * channels
    inputs = np.empty(ATOMS * row, kept.features.dtype)
    for block in range(first, last):
        start = block * ATOMS * row
        for local in range(0, ATOMS * row, row):
            for c in range(0, channels, LANES):
                x = load_components(kept.features, start + local + 9 * c, LANES)
                store_components(inputs, local + 9 * c, LANES, normalized(x))
        mix(ArrayOffset(inputs, 0), layer.before, ArrayOffset(kept.sources, start), channels)


@kernel
def interact(first, last, sizes, layer, edges, atoms, kept, following):
    """Writes M, C and the features that follow, of blocks [first, last)."""
    channels = sizes.channels
    inputs = np.empty(ATOMS * 9 * channels, following.dtype)
    for block in range(first, last):
        write_messages(block * ATOMS, edges, layer, kept.sources, kept.messages, channels)
        update(block, sizes, layer, atoms, kept, inputs, following)


@routine
def update(block, sizes, layer, atoms, kept, inputs, following):
    """Writes C and the features that follow, of a block whose messages are there.

    Args:
        block: its number.
        sizes: of the network.
        layer: LayerArrays.
        atoms: charges.
        kept: features of the layer.
        inputs: room for the features of a block.
        following: written.
    """
    channels = sizes.channels
    for local in range(ATOMS):
        _products(block * ATOMS + local, local, sizes, atoms, kept, inputs)
    start = ArrayOffset(kept.changes, block * ATOMS * 9 * channels)
    mix(ArrayOffset(inputs, 0), layer.after, start, channels)
    for atom in range(block * ATOMS, (block + 1) * ATOMS):
        _add_change(atom, channels, atoms, kept, following)


@routine
def _products(atom, local, sizes, atoms, kept, result):
    """P / (|P|^2 + 1) with P the product of Y and M."""
    kept_apart()
    channels = sizes.channels
    start, place = atom * 9 * channels, local * 9 * channels
    factor = load_one(atoms.charge_of_product, atom)
    for c in range(0, channels, LANES):
        y = load_components(kept.sources, start + 9 * c, LANES)
        m = load_components(kept.messages, start + 9 * c, LANES)
        p = scaled(combined(y, m, sizes.symmetric), factor)
        store_components(result, place + 9 * c, LANES, normalized(p))


@routine
def _add_change(atom, channels, atoms, kept, following):
    """X' = X / (|X|^2 + 1) + C + q C^2."""
    kept_apart()
    start = atom * 9 * channels
    factor = load_one(atoms.charge, atom)
    for c in range(start, start + 9 * channels, 9 * LANES):
        x = normalized(load_components(kept.features, c, LANES))
        change = load_components(kept.changes, c, LANES)
        m = matrix(change)
        square = scaled(components(product(m, m)), factor)
        store_components(following, c, LANES, add(x, add(change, square)))


@kernel
def interact_adjoint(first, last, sizes, layer, atoms, kept):
    """From the gradient of X' to those of M and, but for messages, Y, of blocks [first, last).

    They take the places of M and C.
    """
    channels = sizes.channels
    row = 9 * channels
    by_change = np.empty(ATOMS * row, kept.features.dtype)
    by_product = np.empty(ATOMS * row, kept.features.dtype)
    for block in range(first, last):
        for local in range(ATOMS):
            _change_adjoint(block * ATOMS + local, local, channels, atoms, kept, by_change)
        mix(ArrayOffset(by_change, 0), layer.after_adjoint, ArrayOffset(by_product, 0), channels)
        for local in range(ATOMS):
            _products_adjoint(block * ATOMS + local, local, sizes, atoms, kept, by_product)


@routine
def _change_adjoint(atom, local, channels, atoms, kept, result):
    kept_apart()
    start, place = atom * 9 * channels, local * 9 * channels
    factor = load_one(atoms.charge, atom)
    for c in range(0, channels, LANES):
        change = load_components(kept.changes, start + 9 * c, LANES)
        g = load_components(atoms.adjoint, start + 9 * c, LANES)
        m, by_square = transposed(matrix(change)), matrix(g)
        by_change = components(add(product(by_square, m), product(m, by_square)))
        store_components(result, place + 9 * c, LANES, add(g, scaled(by_change, factor)))


@routine
def _products_adjoint(atom, local, sizes, atoms, kept, by_product):
    kept_apart()
    channels = sizes.channels
    start, place = atom * 9 * channels, local * 9 * channels
    factor = load_one(atoms.charge_of_product, atom)
    for c in range(0, channels, LANES):
        y = load_components(kept.sources, start + 9 * c, LANES)
        m = load_components(kept.messages, start + 9 * c, LANES)
        p = scaled(combined(y, m, sizes.symmetric), factor)
        g = load_components(by_product, place + 9 * c, LANES)
        g = scaled(normalized_adjoint(p, g), factor)
        by_y, by_m = combined_adjoint(y, m, g, sizes.symmetric)
        store_components(kept.changes, start + 9 * c, LANES, by_y)
        store_components(kept.messages, start + 9 * c, LANES, by_m)


@kernel
def sources_adjoint(first, last, sizes, layer, edges, atoms, kept):
    """From the gradients of Y and M to that of X, and to derivatives by distances."""
    channels = sizes.channels
    by_inputs = np.empty(ATOMS * 9 * channels, kept.features.dtype)
    central = np.empty(ATOMS * edges.slots * LANES, kept.features.dtype)
    for block in range(first, last):
        messages_adjoint(block * ATOMS, edges, layer, kept, channels, central)
        inputs_adjoint(block, channels, layer, atoms, kept, by_inputs)


@routine
def inputs_adjoint(block, channels, layer, atoms, kept, by_inputs):
    """From the gradient of Y to that of X, of a block; `by_inputs` is room for its features."""
    row = 9 * channels
    start = block * ATOMS * row
    mix(ArrayOffset(kept.changes, start), layer.before_adjoint, ArrayOffset(by_inputs, 0), channels)
    for place in range(0, ATOMS * row, row):
        _inputs_adjoint(start + place, place, channels, atoms, kept, by_inputs)


@routine
def _inputs_adjoint(start, place, channels, atoms, kept, by_inputs):
    """X / (|X|^2 + 1) enters Y, and X' as it is."""
    kept_apart()
    for c in range(0, channels, LANES):
        x = load_components(kept.features, start + 9 * c, LANES)
        g = load_components(atoms.adjoint, start + 9 * c, LANES)
        g = add(g, load_components(by_inputs, place + 9 * c, LANES))
        store_components(atoms.adjoint, start + 9 * c, LANES, normalized_adjoint(x, g))
