"""What kernels of TensorNet2 are given beside `arrays`.

T is the network's type, F the padded channels, C the padded charges of an atom, and K the slots
of a row of the network's list.
"""

from typing import NamedTuple

from mdgraph.fused.cpu.arrays import Integers, Numbers, Perceptron


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
    """Window of each edge, and the place of an atom itself in tables.

    Attributes:
        value, slope: (N K,) T, by edge.
        origin: T, offset of distance zero from the centre of the first interval.
    """

    value: Numbers
    slope: Numbers
    origin: float


class EdgeTerms(NamedTuple):
    """What is kept of an edge network. Rows have K + 1 slots, the last for the atom itself.

    Attributes:
        of_atom, of_neighbor: (N, F) T, what charges add in the first layer.
        levels: (N, K + 1, 3F) T, by slot, the third layer before its activation.
    """

    of_atom: Numbers
    of_neighbor: Numbers
    levels: Numbers


class Charges(NamedTuple):
    """Charges of all levels: after the embedding, and after each layer.

    Attributes:
        size: C.
        number: of levels.
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
    """Which atom belongs to which system.

    Attributes:
        of_atom: (N,) int64.
        charge: (S,) float64, e, in all.
    """

    of_atom: Integers
    charge: Numbers
