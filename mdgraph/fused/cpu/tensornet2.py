"""TensorNet2 on a CPU: the phases of an evaluation, and kernels of interactions and charges.

Charges depend on all atoms of a system, so threads also synchronise before and after each sum
over systems; these sums are short and run on one thread.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from mdgraph.fused.cpu.arrays import (
    Charges,
    ChargeWeightArrays,
    CoulombArrays,
    EdgeNetworkArrays,
    EdgeTerms,
    NeighborArrays,
    Systems,
    Windows,
)
from mdgraph.fused.cpu.edge_network import add_messages, messages_adjoint, new_tile, sources_adjoint
from mdgraph.fused.cpu.interaction import inputs_adjoint, update
from mdgraph.fused.cpu.math import dots, load_components
from mdgraph.fused.cpu.pairwise import add_coulomb
from mdgraph.fused.cpu.products import (
    ATOMS,
    ArrayOffset,
    BlockRows,
    climb,
    descend,
    layer_norm,
    layer_norm_adjoint,
    multiply,
)
from mdgraph.fused.cpu.schedule import EvaluationTask
from mdgraph.fused.cpu.simd import LANES, Work, kept_apart, kernel, load, routine, store
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


@kernel
def find_windows(begin, end, sizes, function, table, edges, windows):
    """Writes window and slope of each edge of atoms [begin, end), a function of the embedding."""
    stride = sizes.padded_functions
    for i in range(begin, end):
        start = i * edges.slots
        for edge in range(start, start + edges.counts[i]):
            u, place = edges.offset[edge], edges.interval[edge] * 4 * stride + function
            c1, c2, c3 = table[place + stride], table[place + 2 * stride], table[place + 3 * stride]
            windows.value[edge] = table[place] + u * (c1 + u * (c2 + u * c3))
            windows.slope[edge] = c1 + u * (2.0 * c2 + 3.0 * u * c3)


@kernel
def make_terms(first, last, channels, network, charges, level, terms):
    """What the charges of blocks [first, last) add in the first layer, for all their edges."""
    size, kind = charges.size, terms.of_atom.dtype
    rows = np.empty(ATOMS * size, kind)
    inputs = BlockRows(rows, 0, size, 1, 0, LANES)
    for block in range(first, last):
        for local in range(ATOMS):
            start = ((block * ATOMS + local) * charges.number + level) * size
            for c in range(size):
                rows[local * size + c] = charges.shifted[start + c]
        start = block * ATOMS * channels
        of_atom = BlockRows(terms.of_atom, start, channels, 1, 0, LANES)
        of_neighbor = BlockRows(terms.of_neighbor, start, channels, 1, 0, LANES)
        multiply(inputs, ArrayOffset(network.of_atom, 0), size, of_atom, channels)
        multiply(inputs, ArrayOffset(network.of_neighbor, 0), size, of_neighbor, channels)
        for place in range(start, start + ATOMS * channels, channels):
            for c in range(0, channels, LANES):
                x = load(terms.of_atom, place + c) + load(network.bias, c)
                store(terms.of_atom, place + c, x)


@routine
def _next_edge(atom, edge, edges, itself):
    """The edge after this one: that of an atom with itself, -1, comes first; -2 is before it."""
    start = atom * edges.slots
    following = edge + 1 if edge >= 0 else start
    if edge == -2 and itself:
        following = -1
    return following if following < start + edges.counts[atom] else -2


@routine
def _fill(tile, begin, cursor, edges, itself):
    """Puts the next edges of a block into a tile; returns their number.

    Args:
        tile: edges are written.
        begin: first atom of the block.
        cursor: (2,), atom and edge that were put last; moved on.
        edges: of all atoms.
        itself: whether an atom is its own neighbor.
    """
    rows, atom, edge = 0, cursor[0], cursor[1]
    while rows < ATOMS and atom < begin + ATOMS:
        edge = _next_edge(atom, edge, edges, itself)
        if edge == -2:
            atom += 1
            continue
        tile.atoms[rows], tile.edges[rows] = atom, edge
        rows += 1
    cursor[0], cursor[1] = atom, edge
    return rows


@kernel
def interact_tensornet2(
    first, last, sizes, layer, network, edges, windows, terms, atoms, kept, following
):
    """Writes M, C and the features that follow, of blocks [first, last)."""
    channels = sizes.channels
    row = ATOMS * 9 * channels
    inputs, cursor = np.empty(row, following.dtype), np.empty(2, np.int64)
    tile = new_tile(channels, LANES, following)
    for block in range(first, last):
        kept.messages[block * row : (block + 1) * row] = 0.0
        cursor[0], cursor[1] = block * ATOMS, -2
        while True:
            rows = _fill(tile, block * ATOMS, cursor, edges, network.itself)
            if rows == 0:
                break
            add_messages(tile, rows, channels, network, edges, windows, terms, kept)
        update(block, sizes, layer, atoms, kept, inputs, following)


@kernel
def interact_tensornet2_adjoint(
    first, last, sizes, layer, network, listed, edges, windows, terms, atoms, kept, charges, level
):
    """From the gradients of Y and M to that of X, to derivatives by distances and by charges.

    Of the gradient by charges, what an atom's edges give is added for itself, and written for
    their neighbors.
    """
    channels, size = sizes.channels, charges.size
    kind = kept.features.dtype
    by_inputs, cursor = np.empty(ATOMS * 9 * channels, kind), np.empty(2, np.int64)
    by_atom, by_charge = np.empty(ATOMS * channels, kind), np.empty(ATOMS * size, kind)
    tile = new_tile(channels, size, by_inputs)
    for block in range(first, last):
        by_atom[:] = 0.0
        cursor[0], cursor[1] = block * ATOMS, -2
        while True:
            rows = _fill(tile, block * ATOMS, cursor, edges, network.itself)
            if rows == 0:
                break
            messages_adjoint(
                tile, rows, channels, network, edges, windows, terms, kept, by_atom, charges
            )
        for atom in range(block * ATOMS, (block + 1) * ATOMS):
            sources_adjoint(tile, atom, channels, network, listed, edges, windows, terms, kept)
        inputs_adjoint(block, channels, layer, atoms, kept, by_inputs)
        multiply(
            BlockRows(by_atom, 0, channels, 1, 0, LANES),
            ArrayOffset(network.of_atom_adjoint, 0),
            channels,
            BlockRows(by_charge, 0, size, 1, 0, LANES),
            size,
        )
        for local in range(ATOMS):
            start = ((block * ATOMS + local) * charges.number + level) * size
            for c in range(size):
                charges.adjoint[start + c] += by_charge[local * size + c]


@kernel
def gather_by_neighbors(begin, end, itself, listed, edges, charges, level):
    """Adds to the gradient by the charges of atoms [begin, end) what edges to them give."""
    size, row = charges.size, edges.slots + 1
    for atom in range(begin, end):
        start = (atom * charges.number + level) * size
        if itself:
            place = (atom * row + edges.slots) * size
            for c in range(size):
                charges.adjoint[start + c] += charges.by_neighbor[place + c]
        first = atom * edges.slots
        for edge in range(first, first + edges.counts[atom]):
            reverse = listed.reverse[atom, edges.slot[edge]]
            place = (edges.neighbor[edge] * row + reverse) * size
            for c in range(size):
                charges.adjoint[start + c] += charges.by_neighbor[place + c]


@dataclass(frozen=True)
class TensorNet2Task:
    """Weights and buffers that TensorNet2 has in addition to an EvaluationTask.

    Attributes:
        task: everything that TensorNet has too.
        window: index of the window among the functions of the embedding.
        far: neighbor list of the Coulomb energy; None without that energy.
    """

    task: EvaluationTask
    window: int
    networks: tuple[EdgeNetworkArrays, ...]
    predictions: tuple[ChargeWeightArrays, ...]
    windows: Windows
    terms: tuple[EdgeTerms, ...]
    charges: Charges
    systems: Systems
    coulomb: CoulombArrays | None
    far: NeighborArrays | None

    @property
    def layers(self) -> int:
        """Number of layers."""
        return len(self.networks)


def tensornet2_phases(charged: TensorNet2Task) -> list[Work]:
    """Phases of an evaluation; of other atoms, each reads only results of earlier phases."""
    return [
        partial(_begin, charged),
        *_forward(charged),
        *_backward(charged),
        partial(_end, charged),
    ]


def _forward(charged: TensorNet2Task) -> Iterator[Work]:
    for number in range(charged.layers + 1):
        if number < charged.charges.number:
            yield partial(_add, charged, number)
            yield partial(_shift, charged, number)
        if number < charged.layers:
            yield partial(_interact, charged, number)
    if charged.coulomb is not None:
        yield partial(_coulomb, charged)


def _backward(charged: TensorNet2Task) -> Iterator[Work]:
    for number in reversed(range(charged.layers + 1)):
        if number < charged.charges.number:
            yield partial(_add_adjoints, charged, number)
        yield partial(_turn_back, charged, number)
        if number > 0:
            yield partial(_interact_adjoint, charged, number - 1)
            yield partial(_gather, charged, number - 1)


def _begin(charged: TensorNet2Task, first: int, last: int) -> None:
    task, width = charged.task, charged.charges.number * charged.charges.size
    task.begin(first, last)
    begin, end = task.rows(first, last)
    table = task.embedding.table
    find_windows(begin, end, task.sizes, charged.window, table, task.edges, charged.windows)
    charged.charges.adjoint[begin * width : end * width] = 0.0
    _proceed(charged, 0, first, last)


def _proceed(charged: TensorNet2Task, number: int, first: int, last: int) -> None:
    task, charges = charged.task, charged.charges
    task.proceed(number, first, last)
    if number < charges.number:
        weights, features = charged.predictions[number], task.features[number]
        predict_charges(first, last, task.sizes, weights, features, charges, number)


def _add(charged: TensorNet2Task, number: int, first: int, last: int) -> None:
    if first == 0:
        add_charges(charged.systems, charged.charges, number)


def _shift(charged: TensorNet2Task, number: int, first: int, last: int) -> None:
    task, charges = charged.task, charged.charges
    shift_charges(*task.rows(first, last), charged.systems, charges, number)
    if number < charged.layers:
        network, terms = charged.networks[number], charged.terms[number]
        make_terms(first, last, task.sizes.channels, network, charges, number, terms)


def _interact(charged: TensorNet2Task, number: int, first: int, last: int) -> None:
    task, (layer, buffers) = charged.task, charged.task.layers[number]
    interact_tensornet2(
        first,
        last,
        task.sizes,
        layer,
        charged.networks[number],
        task.edges,
        charged.windows,
        charged.terms[number],
        task.atoms,
        buffers,
        task.features[number + 1],
    )
    _proceed(charged, number + 1, first, last)


def _coulomb(charged: TensorNet2Task, first: int, last: int) -> None:
    rows, energies = charged.task.rows(first, last), charged.task.atoms.energies
    add_coulomb(*rows, charged.far, charged.coulomb, charged.charges, energies)


def _add_adjoints(charged: TensorNet2Task, number: int, first: int, last: int) -> None:
    if first == 0:
        add_charge_adjoints(charged.systems, charged.charges, number)


def _turn_back(charged: TensorNet2Task, number: int, first: int, last: int) -> None:
    task, charges = charged.task, charged.charges
    if number < charges.number:
        charges_adjoint(
            first,
            last,
            task.sizes,
            charged.predictions[number],
            charged.systems,
            task.features[number],
            charges,
            number,
            task.atoms.adjoint,
        )
    task.turn_back(number, first, last)


def _interact_adjoint(charged: TensorNet2Task, number: int, first: int, last: int) -> None:
    task, (layer, buffers) = charged.task, charged.task.layers[number]
    interact_tensornet2_adjoint(
        first,
        last,
        task.sizes,
        layer,
        charged.networks[number],
        task.listed,
        task.edges,
        charged.windows,
        charged.terms[number],
        task.atoms,
        buffers,
        charged.charges,
        number,
    )


def _gather(charged: TensorNet2Task, number: int, first: int, last: int) -> None:
    task, itself = charged.task, charged.networks[number].itself
    rows = task.rows(first, last)
    gather_by_neighbors(*rows, itself, task.listed, task.edges, charged.charges, number)


def _end(charged: TensorNet2Task, first: int, last: int) -> None:
    charged.task.end(first, last)
    if charged.coulomb is not None:
        atoms = slice(*charged.task.rows(first, last))
        charged.task.forces[atoms] += charged.coulomb.forces[atoms]
        charged.task.virials[:, atoms] += charged.coulomb.virials[:, atoms]
