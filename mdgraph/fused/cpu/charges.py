"""Kernels of TensorNet2's charges: their prediction, the shift to the total charge, and back.

q_i = p_i + c_i m / S with c = f^2, the missing charge m = Q - sum p and S = sum c + 1e-6 of the
system. With g the gradient by q and A = sum g c / S, that by p is g - A, and that by c is
(g - A) m / S. Sums over a system run over its atoms in their order, in float64.
"""

import numpy as np

from mdgraph.fused.cpu.math import dots, load_components
from mdgraph.fused.cpu.products import (
    ATOMS,
    ArrayOffset,
    climb,
    descend,
    layer_norm,
    layer_norm_adjoint,
)
from mdgraph.fused.cpu.simd import LANES, kept_apart, kernel, load, routine, store
from mdgraph.models.tensors import TRACE

_LAYERS = 3


@routine
def _write_invariants(features, start, channels, invariants, place):
    """Scalar component over sqrt(3), and squared norms of the other parts."""
    kept_apart()
    for c in range(0, channels, LANES):
        x = load_components(features, start + 9 * c, LANES)
        _, vector, tensor = dots(x, x)
        store(invariants, place + c, x[0] * (1.0 / TRACE))
        store(invariants, place + channels + c, vector)
        store(invariants, place + 2 * channels + c, tensor)


@routine
def _climb(block, sizes, weights, features, levels, slopes, normal, inverse):
    """The prediction for a block, up to its last level."""
    channels, widest = sizes.channels, weights.network.widest
    norm, shift = weights.norm, weights.shift
    for local in range(ATOMS):
        place, start = local * widest, (block * ATOMS + local) * 9 * channels
        _write_invariants(features, start, channels, levels, place)
        inverse[local] = layer_norm(
            levels, place, channels, sizes.width, norm, shift, normal, place
        )
    climb(weights.network, ArrayOffset(levels, 0), ArrayOffset(slopes, 0))


@kernel
def predict_charges(first, last, sizes, weights, features, charges, level):
    """Writes charges before they are shifted, and f, of blocks [first, last)."""
    widest, width, kind = weights.network.widest, 2 * charges.size, features.dtype
    levels, slopes = np.empty(4 * ATOMS * widest, kind), np.empty(_LAYERS * ATOMS * widest, kind)
    normal, inverse = np.empty(ATOMS * widest, kind), np.empty(ATOMS, kind)
    atoms = len(charges.shifted) // (charges.number * charges.size)
    for block in range(first, last):
        _climb(block, sizes, weights, features, levels, slopes, normal, inverse)
        for local in range(ATOMS):
            place = (_LAYERS * ATOMS + local) * widest
            start = (level * atoms + block * ATOMS + local) * width
            for c in range(0, width, LANES):
                store(charges.predicted, start + c, load(levels, place + c))


@kernel
def add_charges(systems, charges, level):
    """Missing charge and shares of each system."""
    size, width = charges.size, 2 * charges.size
    atoms = len(charges.shifted) // (charges.number * size)
    begin = level * len(systems.charge) * size
    end = begin + len(systems.charge) * size
    charges.factor[begin:end] = 0.0
    charges.inverse[begin:end] = 0.0
    for atom in range(len(systems.of_atom)):
        start, place = begin + systems.of_atom[atom] * size, (level * atoms + atom) * width
        for c in range(size):
            share = np.float64(charges.predicted[place + size + c])
            charges.factor[start + c] += charges.predicted[place + c]
            charges.inverse[start + c] += share * share
    for system in range(len(systems.charge)):
        for place in range(begin + system * size, begin + (system + 1) * size):
            charges.inverse[place] = 1.0 / (charges.inverse[place] + 1e-6)
            missing = systems.charge[system] - charges.factor[place]
            charges.factor[place] = missing * charges.inverse[place]


@kernel
def shift_charges(begin, end, systems, charges, level):
    """Shifts the charges of atoms [begin, end) so that they add up to the total."""
    size = charges.size
    atoms = len(charges.shifted) // (charges.number * size)
    for atom in range(begin, end):
        place = 2 * (level * atoms + atom) * size
        system = (level * len(systems.charge) + systems.of_atom[atom]) * size
        start = (atom * charges.number + level) * size
        for c in range(size):
            share = np.float64(charges.predicted[place + size + c])
            shift = share * share * charges.factor[system + c]
            charges.shifted[start + c] = charges.predicted[place + c] + shift


@kernel
def add_charge_adjoints(systems, charges, level):
    """A of each system."""
    size = charges.size
    atoms = len(charges.shifted) // (charges.number * size)
    begin = level * len(systems.charge) * size
    end = begin + len(systems.charge) * size
    charges.mean[begin:end] = 0.0
    for atom in range(len(systems.of_atom)):
        system, place = begin + systems.of_atom[atom] * size, 2 * (level * atoms + atom) * size
        start = (atom * charges.number + level) * size
        for c in range(size):
            share = np.float64(charges.predicted[place + size + c])
            charges.mean[system + c] += charges.adjoint[start + c] * share * share
    for place in range(begin, end):
        charges.mean[place] *= charges.inverse[place]


@kernel
def charges_adjoint(first, last, sizes, weights, systems, features, charges, level, adjoint):
    """Adds to the gradient of the features what goes through charges, of blocks [first, last)."""
    channels, kind = sizes.channels, features.dtype
    widest, norm = weights.network.widest, weights.norm
    levels, slopes = np.empty(4 * ATOMS * widest, kind), np.empty(_LAYERS * ATOMS * widest, kind)
    normal, inverse = np.empty(ATOMS * widest, kind), np.empty(ATOMS, kind)
    for block in range(first, last):
        _climb(block, sizes, weights, features, levels, slopes, normal, inverse)
        for local in range(ATOMS):
            atom, place = block * ATOMS + local, (_LAYERS * ATOMS + local) * widest
            _write_gradient(atom, systems, charges, level, levels, place)
        descend(weights.network, ArrayOffset(levels, 0), ArrayOffset(slopes, 0))
        for local in range(ATOMS):
            place, start = local * widest, (block * ATOMS + local) * 9 * channels
            layer_norm_adjoint(
                levels, place, channels, sizes.width, norm, normal, place, inverse[local]
            )
            _add_adjoint(levels, place, channels, features, start, adjoint)


@routine
def _write_gradient(atom, systems, charges, level, levels, place):
    """Turns what was predicted, in the last level, into the gradient by it."""
    kept_apart()
    size = charges.size
    if atom >= len(systems.of_atom):
        levels[place : place + 2 * size] = 0.0
        return
    system = (level * len(systems.charge) + systems.of_atom[atom]) * size
    start = (atom * charges.number + level) * size
    for c in range(size):
        gradient = charges.adjoint[start + c] - charges.mean[system + c]
        share = np.float64(levels[place + size + c])
        levels[place + c] = gradient
        levels[place + size + c] = 2.0 * share * gradient * charges.factor[system + c]


@routine
def _add_adjoint(invariants, place, channels, features, start, adjoint):
    kept_apart()
    for c in range(0, channels, LANES):
        scalar = load(invariants, place + c) * (1.0 / TRACE)
        vector = 2.0 * load(invariants, place + channels + c)
        tensor = 2.0 * load(invariants, place + 2 * channels + c)
        here = start + 9 * c
        store(adjoint, here, load(adjoint, here) + scalar)
        for component in range(LANES, 9 * LANES, LANES):
            factor = vector if component < 4 * LANES else tensor
            x = load(features, here + component) * factor
            store(adjoint, here + component, load(adjoint, here + component) + x)
