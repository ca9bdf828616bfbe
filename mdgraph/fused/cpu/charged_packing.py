"""Weights and buffers of what TensorNet2 has beside TensorNet."""

import math

import numpy as np
from numpy.typing import DTypeLike

from mdgraph.fused.cpu.activations import NUMBERS
from mdgraph.fused.cpu.arrays import Edges, Grid
from mdgraph.fused.cpu.buffers import blocks_of
from mdgraph.fused.cpu.charged_arrays import (
    Charges,
    ChargeWeightArrays,
    CoulombArrays,
    EdgeNetworkArrays,
    EdgeTerms,
    Windows,
)
from mdgraph.fused.cpu.packing import flat, padded, padded_parts, panels, perceptron, widened
from mdgraph.fused.cpu.products import ATOMS
from mdgraph.fused.tables import RadialTable
from mdgraph.fused.weights import ChargeWeights, CoulombWeights, EdgeNetworkWeights
from mdgraph.models import TensorNetConfig
from mdgraph.models.electrostatics import REACTION_FIELD_PERMITTIVITY


def edge_network(
    weights: EdgeNetworkWeights, table: RadialTable, config: TensorNetConfig
) -> EdgeNetworkArrays:
    """Of one layer."""
    channels, size = padded(config.channels), padded(config.charge_channels)
    of_atom, of_neighbor = (
        widened(widened(matrix, 0, size), 1, channels)
        for matrix in (weights.of_atom.weight, weights.of_neighbor)
    )
    return EdgeNetworkArrays(
        table=flat(widened(table.coefficients, 2, channels)),
        itself=config.self_interaction and config.cutoff_lower == 0.0,
        activation=NUMBERS[config.activation],
        of_atom=panels(of_atom),
        of_neighbor=panels(of_neighbor),
        of_atom_adjoint=panels(of_atom.T),
        of_neighbor_adjoint=panels(of_neighbor.T),
        bias=flat(widened(weights.of_atom.bias, 0, channels)),
        network=perceptron(
            weights.layers,
            [(1, channels), (2, channels), (3, channels)],
            [config.activation, None],
        ),
    )


def prediction(weights: ChargeWeights, config: TensorNetConfig) -> ChargeWeightArrays:
    """Of the charges after the embedding or a layer."""
    channels, size = padded(config.channels), padded(config.charge_channels)
    return ChargeWeightArrays(
        norm=flat(padded_parts(weights.norm.weight, 0, 3, channels)),
        shift=flat(padded_parts(weights.norm.bias, 0, 3, channels)),
        network=perceptron(
            weights.layers,
            [(3, channels), (1, channels), (1, channels), (2, size)],
            [config.activation, config.activation, None],
        ),
    )


def coulomb(weights: CoulombWeights, config: TensorNetConfig, atoms: int) -> CoulombArrays:
    """Weights, and room for forces."""
    eps, finite = REACTION_FIELD_PERMITTIVITY, math.isfinite(weights.cutoff)
    of_levels = weights.weights.unflatten(0, (-1, config.charge_channels))
    return CoulombArrays(
        weights=flat(widened(of_levels, 1, padded(config.charge_channels))),
        cutoff=weights.cutoff,
        field=(eps - 1.0) / (2.0 * eps + 1.0) / weights.cutoff**3 if finite else 0.0,
        shift=3.0 * eps / (2.0 * eps + 1.0) / weights.cutoff if finite else 0.0,
        forces=np.zeros((atoms, 3)),
        virials=np.zeros((9, atoms)),
    )


def windows(edges: Edges, grid: Grid) -> Windows:
    """Room for the window of every edge."""
    size, kind = len(edges.offset), edges.offset.dtype
    return Windows(np.zeros(size, kind), np.zeros(size, kind), grid.origin)


def terms(atoms: int, slots: int, channels: int, kind: DTypeLike) -> EdgeTerms:
    """Room for a layer; of what no edge uses, the system gives no memory."""
    rows = blocks_of(atoms) * ATOMS
    return EdgeTerms(
        np.zeros(rows * channels, kind),
        np.zeros(rows * channels, kind),
        np.zeros(rows * (slots + 1) * 3 * channels, kind),
    )


def charges(
    config: TensorNetConfig, atoms: int, systems: int, slots: int, kind: DTypeLike
) -> Charges:
    """Room for charges of all levels that count: the last only in the Coulomb energy."""
    number = config.layers + (config.coulomb is not None)
    rows, size = blocks_of(atoms) * ATOMS, padded(config.charge_channels)
    return Charges(
        size,
        number,
        np.zeros(number * rows * 2 * size, kind),
        np.zeros(rows * number * size),
        np.zeros(rows * number * size),
        np.zeros(number * systems * size),
        np.zeros(number * systems * size),
        np.zeros(number * systems * size),
        np.zeros(rows * (slots + 1) * size, kind),
    )
