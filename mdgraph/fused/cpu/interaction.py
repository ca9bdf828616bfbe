"""Kernels of an interaction layer, forward and backward, on blocks of atoms."""

import numpy as np

from mdgraph.fused.cpu.compilation import kernel, routine
from mdgraph.fused.cpu.components import (
    add,
    combined,
    combined_adjoint,
    components,
    load_components,
    matrix,
    normalized,
    normalized_adjoint,
    product,
    scaled,
    store_components,
    transposed,
)
from mdgraph.fused.cpu.lanes import LANES, kept_apart, load_one
from mdgraph.fused.cpu.messages import messages_adjoint, write_messages
from mdgraph.fused.cpu.products import ATOMS, Place, mix


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
        mix(Place(inputs, 0), layer.before, Place(kept.sources, start), channels)


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
    start = Place(kept.changes, block * ATOMS * 9 * channels)
    mix(Place(inputs, 0), layer.after, start, channels)
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
        mix(Place(by_change, 0), layer.after_adjoint, Place(by_product, 0), channels)
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
    mix(Place(kept.changes, start), layer.before_adjoint, Place(by_inputs, 0), channels)
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
