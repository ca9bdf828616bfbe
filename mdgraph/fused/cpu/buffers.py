"""Buffers of a network for one state and one capacity of its list."""

from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from mdgraph.fused.cpu.arrays import AtomArrays, Edges, LayerFeatures, Listed, Numbers
from mdgraph.fused.cpu.products import ATOMS
from mdgraph.neighbors import NeighborList
from mdgraph.state import State


def blocks_of(atoms: int) -> int:
    """Number of blocks that so many atoms fill."""
    return -(-atoms // ATOMS)


def listed(state: State, pairs: NeighborList) -> Listed:
    """What the state and the list hold at the moment, without a copy but for float32."""
    return Listed(
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


def edges(pairs: NeighborList, kind: DTypeLike) -> Edges:
    """Room for the edges of a list."""
    atoms, slots = pairs.index.shape
    size = atoms * slots
    return Edges(
        slots=slots,
        counts=np.zeros(blocks_of(atoms) * ATOMS, np.int32),
        neighbor=np.zeros(size, np.int32),
        slot=np.zeros(size, np.int32),
        interval=np.zeros(size, np.int32),
        offset=np.zeros(size, kind),
        vector=np.zeros(4 * size),
        central=np.zeros(size, kind),
        gradient=np.zeros(3 * size),
    )


def features(atoms: int, channels: int, kind: DTypeLike) -> Numbers:
    """Room for features of all atoms."""
    return np.zeros(blocks_of(atoms) * ATOMS * 9 * channels, kind)


def layer(atoms: int, channels: int, kind: DTypeLike) -> LayerFeatures:
    """Room for an interaction layer."""
    return LayerFeatures(*(features(atoms, channels, kind) for _ in range(4)))


def atoms(state: State, channels: int, kind: DTypeLike) -> AtomArrays:
    """Room for everything else."""
    count = len(state.kinds)
    padded = blocks_of(count) * ATOMS
    kinds = np.zeros(padded, np.int64)
    kinds[:count] = state.kinds.numpy()

    def numbers(*shape: int) -> Any:
        return np.zeros(padded * int(np.prod(shape)), kind)

    return AtomArrays(
        kinds=kinds,
        charge=np.ones(padded, kind),
        charge_of_product=np.ones(padded, kind),
        raw=features(count, channels, kind),
        mixed=features(count, channels, kind),
        normal=numbers(channels),
        spread=numbers(1),
        gates=numbers(3, 3, channels),
        gate_slopes=numbers(2, 3, channels),
        adjoint=features(count, channels, kind),
        energies=np.zeros(padded),
    )
