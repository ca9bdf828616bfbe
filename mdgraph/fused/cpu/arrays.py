"""Flat arrays that the CPU kernels read and write.

T is the dtype of the network, F the number of padded channels, C that of padded charges of an
atom, and K that of slots in a row of the network's list.

The features of an atom are (F / LANES, 9, LANES), so numbers that a kernel has in registers
together are contiguous.

Arrays over atoms are padded to whole blocks of ATOMS; padding atoms have no edges, and nothing
reads their results.
"""

from typing import Any, NamedTuple

from numpy.typing import NDArray

Integers = NDArray[Any]
Numbers = NDArray[Any]


class NeighborArrays(NamedTuple):
    """The state and a neighbor list; C images, S systems, K slots.

    Attributes:
        positions, wrap: (N, 3) float64.
        cell: (S, 3, 3) float64.
        system: (N,) int64.
        neighbor, image, reverse: (N, K) int32; `index` of the list is the neighbor here.
        counts: (N,) int32.
        offsets: (C, 3) int64.
    """

    positions: Numbers
    cell: Numbers
    wrap: Numbers
    system: Integers
    neighbor: Integers
    image: Integers
    reverse: Integers
    counts: Integers
    offsets: Integers


class Grid(NamedTuple):
    """A RadialGrid.

    Attributes:
        start, cutoff, zone_width, origin: A, as there.
        first, counts: (zones,) int64, first interval and number of intervals of each zone.
        widths: (zones,) float64, A, of the intervals.
    """

    start: float
    cutoff: float
    zone_width: float
    origin: float
    first: Integers
    counts: Integers
    widths: Numbers


class Edges(NamedTuple):
    """Edges: slots closer than the cutoff, row by row without gaps.

    Attributes:
        slots: K, space of a row.
        counts: (N,) int32, edges of each row.
        neighbor, slot, interval: (N K,) int32.
        offset: (N K,) T, distance from the centre of the interval.
        vector: (N K 4,) float64, to the neighbor, then 1/d.
        central: (N K,) T, derivative of the energy by the distance in the layers.
        gradient: (N K 3,) float64, derivative by the vector, indexed by slot, not by edge.
    """

    slots: int
    counts: Integers
    neighbor: Integers
    slot: Integers
    interval: Integers
    offset: Numbers
    vector: Numbers
    central: Numbers
    gradient: Numbers


class Sizes(NamedTuple):
    """Sizes of all arrays, and options of the network.

    Attributes:
        channels: F.
        width: channels before padding.
        functions: K + 1 of the embedding, padded to whole lanes.
        padded_functions: padded to whole panels.
        elements: number of elements present.
        symmetric: whether products are Y M + M Y.
    """

    channels: int
    width: int
    functions: int
    padded_functions: int
    elements: int
    symmetric: bool


class Perceptron(NamedTuple):
    """A sequence of linear layers.

    Attributes:
        layers: number of layers.
        widest: largest width.
        widths: (layers + 1,) int64, padded to panels.
        activations: (layers,) int64, number of the activation after each layer.
        weights, adjoint, biases: panels of all matrices and of their transposes, and biases.
    """

    layers: int
    widest: int
    widths: Integers
    activations: Integers
    weights: Numbers
    adjoint: Numbers
    biases: Numbers


class EmbeddingArrays(NamedTuple):
    """Weights of the embedding; where there are three matrices, one after the other.

    Attributes:
        table: coefficients (intervals, 4, padded_functions).
        distance, distance_adjoint: (functions, F) and its transpose, for each part.
        pair: (elements, elements, F), Z of an atom and a neighbor.
        own: (elements, F), added to the scalar component.
        norm, shift: (F,) of the layer norm.
        gate: F to 2F to 3F.
        mixing, mixing_adjoint: (F, F) for each part.
    """

    table: Numbers
    distance: Numbers
    distance_adjoint: Numbers
    pair: Numbers
    own: Numbers
    norm: Numbers
    shift: Numbers
    gate: Perceptron
    mixing: Numbers
    mixing_adjoint: Numbers


class LayerArrays(NamedTuple):
    """Weights of an interaction layer; where there are three matrices, one after the other.

    Attributes:
        table: coefficients (intervals, F / LANES, 4, 3, LANES); empty for TensorNet2.
        own: (3, F).
        before, before_adjoint, after, after_adjoint: (F, F) for each part.
    """

    table: Numbers
    own: Numbers
    before: Numbers
    before_adjoint: Numbers
    after: Numbers
    after_adjoint: Numbers


class ReadoutArrays(NamedTuple):
    """Weights of the readout.

    Attributes:
        norm, shift: (3 F,) of the layer norm.
        values, gates: 3 F to a panel whose first number counts.
        gated: whether the gates count.
    """

    norm: Numbers
    shift: Numbers
    values: Perceptron
    gates: Perceptron
    gated: bool


class AtomArrays(NamedTuple):
    """Buffers of atoms between passes.

    Attributes:
        kinds: (N,) int64, index of the element.
        charge: (N,) T, factor of the squares of a layer.
        charge_of_product: (N,) T, factor of its products.
        raw, mixed: features, the embedding before its mixing and before its gate.
        normal, spread: (N, F) and (N,) T, normalised squares, and their 1 / deviation.
        gates, gate_slopes: (blocks, 3, ATOMS, 3F) and (blocks, 2, ATOMS, 3F) T, levels of the
            gate and slopes between them.
        adjoint: gradient by the current features.
        energies: (N,) float64.
    """

    kinds: Integers
    charge: Numbers
    charge_of_product: Numbers
    raw: Numbers
    mixed: Numbers
    normal: Numbers
    spread: Numbers
    gates: Numbers
    gate_slopes: Numbers
    adjoint: Numbers
    energies: Numbers


class LayerFeatures(NamedTuple):
    """Features (N, F / LANES, 9, LANES) T of one layer.

    Attributes:
        features: X, its input.
        sources: Y.
        messages: M; in the backward pass its gradient.
        changes: C; in the backward pass the gradient by Y without the part of messages.
    """

    features: Numbers
    sources: Numbers
    messages: Numbers
    changes: Numbers


class EdgeNetworkArrays(NamedTuple):
    """Weights of an edge network.

    Attributes:
        table: coefficients (intervals, 4, F), of T(d) in the first layer.
        itself: whether an atom is its own neighbor.
        activation: its number.
        of_atom, of_neighbor: (C, F), the first layer's columns for the charges.
        of_atom_adjoint, of_neighbor_adjoint: (F, C).
        bias: (F,) of the first layer.
        network: F to 2F to 3F, without the last activation.
    """

    table: Numbers
    itself: bool
    activation: int
    of_atom: Numbers
    of_neighbor: Numbers
    of_atom_adjoint: Numbers
    of_neighbor_adjoint: Numbers
    bias: Numbers
    network: Perceptron


class ChargeWeightArrays(NamedTuple):
    """Weights of a charge prediction.

    Attributes:
        norm, shift: (3 F,) of the layer norm.
        network: 3F to F to F to (2, C).
    """

    norm: Numbers
    shift: Numbers
    network: Perceptron


class Windows(NamedTuple):
    """Window of each edge, and the offset of distance 0 in tables.

    Attributes:
        value, slope: (N K,) T, by edge.
        origin: T, offset of distance zero from the centre of the first interval.
    """

    value: Numbers
    slope: Numbers
    origin: float


class EdgeTerms(NamedTuple):
    """Buffers of an edge network. Rows have K + 1 slots, the last for the atom itself.

    Attributes:
        of_atom, of_neighbor: (N, F) T, terms of the charges in the first layer.
        levels: (N, K + 1, 3F) T, by slot, the third layer before its activation.
    """

    of_atom: Numbers
    of_neighbor: Numbers
    levels: Numbers


class Charges(NamedTuple):
    """Charges of all levels: after the embedding, and after each layer.

    Attributes:
        size: C.
        number: number of levels.
        predicted: (levels, N, 2, C) T, charges before they are shifted, and f of their shares.
        shifted: (N, levels, C) float64.
        adjoint: (N, levels, C) float64, gradient by them.
        factor, inverse: (levels, S, C) float64, missing charge over, and 1 over, the sum of
            the shares f^2 of a system.
        mean: (levels, S, C) float64, mean of the gradient, weighted with the shares.
        by_neighbor: (N, K + 1, C) T, by slot, gradient by the charges of an edge's neighbor.
    """

    size: int
    number: int
    predicted: Numbers
    shifted: Numbers
    adjoint: Numbers
    factor: Numbers
    inverse: Numbers
    mean: Numbers
    by_neighbor: Numbers


class CoulombArrays(NamedTuple):
    """Coulomb energy.

    Attributes:
        weights: (levels, C) float64, eV A.
        cutoff: A; infinity for all pairs.
        field, shift: of the reaction field, 1/A^3 and 1/A; zero for all pairs.
        forces: (N, 3) float64.
        virials: (9, N) float64.
    """

    weights: Numbers
    cutoff: float
    field: float
    shift: float
    forces: Numbers
    virials: Numbers


class Systems(NamedTuple):
    """Assignment of atoms to systems.

    Attributes:
        of_atom: (N,) int64, system of each atom.
        charge: (S,) float64, e, total charge.
    """

    of_atom: Integers
    charge: Numbers
