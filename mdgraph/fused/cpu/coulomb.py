"""Kernel of the Coulomb energy of `mdgraph.models.electrostatics`, in float64."""

import math

import numpy as np

from mdgraph.fused.cpu.compilation import kernel, routine
from mdgraph.fused.cpu.lanes import LANES, kept_apart, load, store, total, zero
from mdgraph.fused.cpu.rows import vector_to
from mdgraph.models.electrostatics import DAMPING_RADIUS


@routine
def _coulomb(distance, coulomb):
    """s(d) and its slope."""
    value = 1.0 / distance + coulomb.field * distance * distance - coulomb.shift
    slope = 2.0 * coulomb.field * distance - 1.0 / (distance * distance)
    ratio = distance / DAMPING_RADIUS
    if ratio >= 1.0 - 1e-6:
        return value, slope
    rest = 1.0 / (1.0 - ratio * ratio)
    exponent = 1.0 - rest
    damping = -math.expm1(exponent)
    rise = math.exp(exponent) * rest * rest * 2.0 * ratio / DAMPING_RADIUS
    return value * damping, slope * damping + value * rise


@kernel
def add_coulomb(begin, end, listed, coulomb, charges, energies):
    """Adds to energies and to gradients by charges, and writes forces, of atoms [begin, end)."""
    width = charges.number * charges.size
    weighted, field = np.empty(width), np.empty(width)
    vector, virial = np.empty(3), np.empty(9)
    for i in range(begin, end):
        for c in range(0, width, LANES):
            q = load(charges.shifted, i * width + c) * load(coulomb.weights, c)
            store(weighted, c, q)
            store(field, c, zero(field))
        coulomb.forces[i] = 0.0
        virial[:] = 0.0
        energy = 0.0
        for slot in range(listed.counts[i]):
            distance = math.sqrt(vector_to(listed, i, slot, vector))
            # A distance that is no finite number stays in, and shows.
            if coulomb.cutoff <= distance < math.inf:
                continue
            value, slope = _coulomb(distance, coulomb)
            other = np.int64(listed.neighbor[i, slot]) * width
            product = _product(charges.shifted, other, weighted, value, field, width)
            energy += 0.5 * value * product
            pull = product * slope / distance
            for row in range(3):
                coulomb.forces[i, row] += pull * vector[row]
                for column in range(3):
                    virial[3 * row + column] -= 0.5 * pull * vector[row] * vector[column]
        energies[i] += energy
        for component in range(9):
            coulomb.virials[component, i] = virial[component]
        for c in range(0, width, LANES):
            g = load(field, c) * load(coulomb.weights, c)
            store(charges.adjoint, i * width + c, load(charges.adjoint, i * width + c) + g)


@routine
def _product(charges, other, weighted, value, field, width):
    """Sum of the products of both atoms' charges; adds the neighbor's to the field."""
    kept_apart()
    product = zero(field)
    for c in range(0, width, LANES):
        q = load(charges, other + c)
        product += load(weighted, c) * q
        store(field, c, load(field, c) + q * value)
    return total(product)
