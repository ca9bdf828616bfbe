"""Kernel of the readout: energies of atoms, and the gradient of the last features."""

import numpy as np

from mdgraph.fused.cpu.activations import sigmoid
from mdgraph.fused.cpu.compilation import kernel, routine
from mdgraph.fused.cpu.components import (
    add,
    dots,
    load_components,
    scaled_by_stored,
    store_components,
)
from mdgraph.fused.cpu.dense import climb, descend, layer_norm, layer_norm_adjoint
from mdgraph.fused.cpu.lanes import LANES, kept_apart, load, store, zero
from mdgraph.fused.cpu.products import ATOMS, Place


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
    value_levels, gate_levels = Place(values, 0), Place(gates, 0)
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
            climb(weights.gates, gate_levels, Place(gate_slopes, 0))
        climb(weights.values, value_levels, Place(value_slopes, 0))
        for local in range(ATOMS):
            energy = _finish(values, gates, top + local * widest, weights.gated)
            atoms.energies[block * ATOMS + local] = energy
        descend(weights.values, value_levels, Place(value_slopes, 0))
        if weights.gated:
            descend(weights.gates, gate_levels, Place(gate_slopes, 0))
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
