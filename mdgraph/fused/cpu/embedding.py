"""Kernels of the embedding, forward and backward, on blocks of atoms."""

import numpy as np

from mdgraph.fused.cpu.compilation import kernel, routine
from mdgraph.fused.cpu.components import (
    add,
    dot,
    dots,
    load_components,
    scaled,
    scaled_by_stored,
    store_components,
)
from mdgraph.fused.cpu.dense import climb, descend, layer_norm, layer_norm_adjoint
from mdgraph.fused.cpu.lanes import LANES, kept_apart, load, store
from mdgraph.fused.cpu.moments import add_moments, write_gradients
from mdgraph.fused.cpu.products import ATOMS, Place, Rows, features, mix, multiply


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
        slopes = Place(atoms.gate_slopes, 2 * begin * widest)
        climb(weights.gate, Place(atoms.gates, levels), slopes)
        raw, mixed = Place(atoms.raw, begin * row), Place(atoms.mixed, begin * row)
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
    return Rows(array, place, 9 * stride, 2 * part + 1, stride, LANES)


@routine
def _contract(moments, element, sizes, weights, result):
    """Moments of one element of neighbors to channels, without Z."""
    kept_apart()
    channels, functions = sizes.channels, sizes.functions
    for part in range(3):
        multiply(
            _moments(moments, element, sizes, part),
            Place(weights.distance, part * functions * channels),
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
            Place(weights.distance_adjoint, part * functions * channels),
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
        slopes = Place(atoms.gate_slopes, 2 * begin * widest)
        descend(weights.gate, Place(atoms.gates, levels), slopes)
        mix(Place(by_mixed, 0), weights.mixing_adjoint, Place(by_raw, 0), channels)
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
