"""CPU kernels of the Coulomb and repulsion energies of `mdgraph.models`, in float64."""

import math
from typing import NamedTuple

import numpy as np

from mdgraph.fused.cpu.arrays import Numbers
from mdgraph.fused.cpu.embedding import vector_to
from mdgraph.fused.cpu.math import exponential
from mdgraph.fused.cpu.simd import LANES, kept_apart, kernel, load, routine, store, total, zero
from mdgraph.models.tensornet2 import DAMPING_RADIUS


class RepulsionArrays(NamedTuple):
    """A repulsion, see RepulsionWeights.

    Attributes:
        constants: (E, E, 4) float64.
        coefficients, exponents: (LANES,) float64, c and -b, padded with zeros.
        order: of the window.
    """

    constants: Numbers
    coefficients: Numbers
    exponents: Numbers
    order: int


@routine
def _window(u, order):
    """w(u) and its slope."""
    if order == 0:
        cosine, sine = math.cos(0.5 * math.pi * u), math.sin(0.5 * math.pi * u)
        return cosine * cosine, -math.pi * sine * cosine
    first = 0.5 * (order + 1) * (order + 2)
    power, rest = u ** (order - 1), 1.0 - u
    inner = first - u * (order * (order + 2) - u * (0.5 * order * (order + 1)))
    return 1.0 - u * power * inner, -first * order * power * rest * rest


@routine
def _repulsion(distance, constants, repulsion):
    """Energy of a pair and its slope."""
    terms = load(repulsion.exponents, 0) * (constants[1] * distance)
    terms = load(repulsion.coefficients, 0) * exponential(terms)
    screening, change = total(terms), total(terms * load(repulsion.exponents, 0))
    weight, fall = _window(constants[2] * distance, repulsion.order)
    bare = constants[0] / distance
    slope = constants[1] * change * weight + screening * (constants[2] * fall - weight / distance)
    return bare * screening * weight, bare * slope


@kernel
def add_repulsion(first, last, listed, repulsion, kinds, energies, forces, virials):
    """Adds to energies (N,), forces (N, 3) and virials (9, N) of atoms [first, last)."""
    vector, force, virial = np.empty(3), np.empty(3), np.empty(9)
    for i in range(first, last):
        force[:] = 0.0
        virial[:] = 0.0
        energy = 0.0
        for slot in range(listed.counts[i]):
            distance = math.sqrt(vector_to(listed, i, slot, vector))
            constants = repulsion.constants[kinds[i], kinds[listed.neighbor[i, slot]]]
            # A distance that is no finite number stays in, and shows.
            if constants[3] <= distance < math.inf:
                continue
            value, slope = _repulsion(distance, constants, repulsion)
            energy += 0.5 * value
            pull = slope / distance
            for row in range(3):
                force[row] += pull * vector[row]
                for column in range(3):
                    virial[3 * row + column] -= 0.5 * pull * vector[row] * vector[column]
        energies[i] += energy
        for row in range(3):
            forces[i, row] += force[row]
        for component in range(9):
            virials[component, i] += virial[component]


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
