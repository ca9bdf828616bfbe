"""Weights in the layout of the CPU kernels, and the buffers of an evaluation."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor

from mdgraph.fused.cpu.arrays import (
    AtomArrays,
    Charges,
    ChargeWeightArrays,
    CoulombArrays,
    EdgeNetworkArrays,
    Edges,
    EdgeTerms,
    EmbeddingArrays,
    Grid,
    LayerArrays,
    LayerFeatures,
    NeighborArrays,
    Numbers,
    Perceptron,
    ReadoutArrays,
    Sizes,
    Windows,
)
from mdgraph.fused.cpu.math import NUMBERS
from mdgraph.fused.cpu.pairwise import RepulsionArrays
from mdgraph.fused.cpu.products import ATOMS, PANEL
from mdgraph.fused.cpu.simd import LANES
from mdgraph.fused.tables import RadialTable
from mdgraph.fused.weights import (
    ChargeWeights,
    CoulombWeights,
    EdgeNetworkWeights,
    EmbeddingWeights,
    InteractionWeights,
    Linear,
    ReadoutWeights,
    RepulsionWeights,
)
from mdgraph.models import TensorNetConfig
from mdgraph.models.tensornet2 import REACTION_FIELD_PERMITTIVITY
from mdgraph.neighbors import NeighborRows
from mdgraph.state import State

Array = NDArray[Any]


def padded(size: int, to: int = PANEL) -> int:
    """`size` rounded up to a multiple of `to`."""
    return -(-size // to) * to


def sizes(config: TensorNetConfig, functions: int, elements: int) -> Sizes:
    """Sizes of a network for a number of elements present."""
    return Sizes(
        padded(config.channels),
        config.channels,
        padded(functions, LANES),
        padded(functions),
        elements,
        config.group == "O(3)",
    )


def embedding(
    weights: EmbeddingWeights,
    table: RadialTable,
    rows: Tensor,
    config: TensorNetConfig,
) -> EmbeddingArrays:
    """Weights of the embedding for the elements present.

    Args:
        weights: of the network.
        table: its radial functions.
        rows: (E,) int64, row of each element in the species tables.
        config: of the potential.
    """
    channels = padded(config.channels)
    pair = weights.of_atom[rows][:, None] + weights.of_neighbor[rows]
    return EmbeddingArrays(
        table=flat(widened(table.coefficients, 2, padded(table.coefficients.shape[2]))),
        distance=_panels_of_parts(weights.distance, padded(weights.distance.shape[1], LANES)),
        distance_adjoint=_panels_of_parts(weights.distance.mT, channels),
        pair=flat(widened(pair, 2, channels)),
        own=flat(widened(weights.self_term(rows), 1, channels)),
        norm=flat(widened(weights.norm.weight, 0, channels)),
        shift=flat(widened(weights.norm.bias, 0, channels)),
        gate=perceptron(
            weights.gate,
            [(1, channels), (2, channels), (3, channels)],
            [config.activation, config.activation],
        ),
        mixing=_panels_of_parts(weights.mixing, channels),
        mixing_adjoint=_panels_of_parts(weights.mixing.mT, channels),
    )


def interaction(weights: InteractionWeights, table: RadialTable) -> LayerArrays:
    """Weights of a layer; its table is empty if it has an edge network."""
    channels = padded(weights.own.shape[1])
    coefficients = table.coefficients
    if weights.edge_network is None:
        coefficients = widened(coefficients.unflatten(2, (3, -1)), 3, channels)
        coefficients = coefficients.unflatten(3, (-1, LANES)).movedim(3, 1)
    else:
        coefficients = coefficients[:0]
    return LayerArrays(
        table=flat(coefficients),
        own=flat(widened(weights.own, 1, channels)),
        before=_panels_of_parts(weights.before, channels),
        before_adjoint=_panels_of_parts(weights.before.mT, channels),
        after=_panels_of_parts(weights.after, channels),
        after_adjoint=_panels_of_parts(weights.after.mT, channels),
    )


def repulsion(weights: RepulsionWeights, rows: Tensor) -> RepulsionArrays:
    """A repulsion between the elements present, given their rows (E,) int64."""
    coefficients, exponents = widened(weights.exponentials, 1, LANES)
    constants = weights.of_elements(rows).numpy()
    return RepulsionArrays(constants, flat(coefficients), flat(-exponents), weights.order)


def readout(weights: ReadoutWeights, config: TensorNetConfig) -> ReadoutArrays:
    """Weights of the readout; both perceptrons start with the layer that they share."""
    channels = padded(config.channels)
    gated = config.readout.kind == "gated"
    inner = "silu" if gated else config.activation
    first = config.activation if config.readout_activation else None

    def of_layers(layers: tuple[Linear, ...]) -> Perceptron:
        hidden = [(1, padded(layer.weight.shape[1])) for layer in layers]
        activations = [first, *[inner] * (len(layers) - 1), None]
        return perceptron(
            (weights.linear, *layers), [(3, channels), (1, channels), *hidden], activations
        )

    return ReadoutArrays(
        norm=flat(padded_parts(weights.norm.weight, 0, 3, channels)),
        shift=flat(padded_parts(weights.norm.bias, 0, 3, channels)),
        values=of_layers(weights.values),
        gates=of_layers(weights.gates or weights.values),
        gated=gated,
    )


def perceptron(
    layers: Sequence[Linear],
    shapes: Sequence[tuple[int, int]],
    activations: Sequence[str | None],
) -> Perceptron:
    """Linear layers between rows whose shapes are (parts, padded size of a part)."""
    arrays = []
    for layer, inputs, outputs in zip(layers, shapes[:-1], shapes[1:], strict=True):
        weight = padded_parts(padded_parts(layer.weight, 0, *inputs), 1, *outputs)
        bias = flat(padded_parts(layer.bias, 0, *outputs))
        arrays.append((panels(weight), panels(weight.T), bias))
    widths = [parts * size for parts, size in shapes]
    return Perceptron(
        len(layers),
        max(widths),
        np.array(widths),
        np.array([NUMBERS[name] for name in activations]),
        *(np.concatenate(parts) for parts in zip(*arrays, strict=True)),
    )


def panels(matrix: Tensor) -> Array:
    """Matrix (inputs, outputs) as flat panels (outputs / PANEL, inputs, PANEL)."""
    columns = widened(matrix, 1, padded(matrix.shape[1]))
    return flat(columns.unflatten(1, (-1, PANEL)).transpose(0, 1))


def _panels_of_parts(matrices: Tensor, inputs: int) -> Array:
    """Panels of matrices (3, ..., outputs), one after the other, padded to `inputs` rows."""
    return np.concatenate([panels(matrix) for matrix in widened(matrices, 1, inputs)])


def padded_parts(tensor: Tensor, dimension: int, parts: int, size: int) -> Tensor:
    """Pads each part to `size`; the parts are contiguous along a dimension."""
    split = tensor.unflatten(dimension, (parts, -1))
    return widened(split, dimension + 1, size).flatten(dimension, dimension + 1)


def widened(tensor: Tensor, dimension: int, size: int) -> Tensor:
    """Pads a dimension with zeros to `size`."""
    shape = list(tensor.shape)
    shape[dimension] = size - shape[dimension]
    return torch.cat([tensor, tensor.new_zeros(shape)], dimension)


def flat(tensor: Tensor) -> Array:
    """The tensor as a flat contiguous array."""
    return tensor.contiguous().flatten().numpy()


def blocks_of(atoms: int) -> int:
    """Number of blocks for a number of atoms."""
    return -(-atoms // ATOMS)


def listed(state: State, pairs: NeighborRows) -> NeighborArrays:
    """Arrays of the current state and list; copies only what must be converted."""
    return NeighborArrays(
        state.positions.double().numpy(),
        state.cell.double().numpy(),
        pairs.wrap.double().numpy(),
        state.grouping.index.numpy(),
        pairs.index.numpy(),
        pairs.image.numpy(),
        pairs.reverse.numpy(),
        pairs.count.numpy(),
        pairs.offsets.numpy(),
    )


def edges(pairs: NeighborRows, dtype: DTypeLike) -> Edges:
    """Buffers for the edges of a list."""
    atoms, slots = pairs.index.shape
    size = atoms * slots
    return Edges(
        slots=slots,
        counts=np.zeros(blocks_of(atoms) * ATOMS, np.int32),
        neighbor=np.zeros(size, np.int32),
        slot=np.zeros(size, np.int32),
        interval=np.zeros(size, np.int32),
        offset=np.zeros(size, dtype),
        vector=np.zeros(4 * size),
        central=np.zeros(size, dtype),
        gradient=np.zeros(3 * size),
    )


def features(atoms: int, channels: int, dtype: DTypeLike) -> Numbers:
    """A buffer for the features of all atoms."""
    return np.zeros(blocks_of(atoms) * ATOMS * 9 * channels, dtype)


def layer(atoms: int, channels: int, dtype: DTypeLike) -> LayerFeatures:
    """Buffers for an interaction layer."""
    return LayerFeatures(*(features(atoms, channels, dtype) for _ in range(4)))


def atoms(state: State, channels: int, dtype: DTypeLike) -> AtomArrays:
    """Buffers for other quantities of atoms."""
    count = len(state.kinds)
    padded = blocks_of(count) * ATOMS
    kinds = np.zeros(padded, np.int64)
    kinds[:count] = state.kinds.numpy()

    def numbers(*shape: int) -> Any:
        return np.zeros(padded * int(np.prod(shape)), dtype)

    return AtomArrays(
        kinds=kinds,
        charge=np.ones(padded, dtype),
        charge_of_product=np.ones(padded, dtype),
        raw=features(count, channels, dtype),
        mixed=features(count, channels, dtype),
        normal=numbers(channels),
        spread=numbers(1),
        gates=numbers(3, 3, channels),
        gate_slopes=numbers(2, 3, channels),
        adjoint=features(count, channels, dtype),
        energies=np.zeros(padded),
    )


def edge_network(
    weights: EdgeNetworkWeights, table: RadialTable, config: TensorNetConfig
) -> EdgeNetworkArrays:
    """Weights of the edge network of a layer."""
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
    """Weights of the charge prediction after the embedding or a layer."""
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
    """Weights of the Coulomb energy, and buffers for its forces and virials."""
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
    """Buffers for the window of every edge."""
    size, dtype = len(edges.offset), edges.offset.dtype
    return Windows(np.zeros(size, dtype), np.zeros(size, dtype), grid.origin)


def terms(atoms: int, slots: int, channels: int, dtype: DTypeLike) -> EdgeTerms:
    """Buffers for the edge network of a layer; pages that no edge touches use no memory."""
    rows = blocks_of(atoms) * ATOMS
    return EdgeTerms(
        np.zeros(rows * channels, dtype),
        np.zeros(rows * channels, dtype),
        np.zeros(rows * (slots + 1) * 3 * channels, dtype),
    )


def charges(
    config: TensorNetConfig, atoms: int, systems: int, slots: int, dtype: DTypeLike
) -> Charges:
    """Buffers for charges of all levels; the last level exists only for a Coulomb energy."""
    number = config.layers + (config.coulomb is not None)
    rows, size = blocks_of(atoms) * ATOMS, padded(config.charge_channels)
    return Charges(
        size,
        number,
        np.zeros(number * rows * 2 * size, dtype),
        np.zeros(rows * number * size),
        np.zeros(rows * number * size),
        np.zeros(number * systems * size),
        np.zeros(number * systems * size),
        np.zeros(number * systems * size),
        np.zeros(rows * (slots + 1) * size, dtype),
    )
