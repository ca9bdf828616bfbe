"""CompiledNetwork: a TensorNet as compiled kernels on blocks of atoms.

Between two passes over neighbors everything is work on single atoms, so that a block of
atoms goes through several kernels while it lies in the cache; only then do threads meet.
"""

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from mdgraph.fused.cpu import buffers, packing
from mdgraph.fused.cpu.arrays import (
    AtomArrays,
    Edges,
    EmbeddingArrays,
    Grid,
    LayerFeatures,
    Listed,
    Sizes,
)
from mdgraph.fused.cpu.embedding import embed, embed_adjoint
from mdgraph.fused.cpu.interaction import interact, interact_adjoint, make_sources, sources_adjoint
from mdgraph.fused.cpu.packing import Array
from mdgraph.fused.cpu.products import ATOMS
from mdgraph.fused.cpu.readout import read_out
from mdgraph.fused.cpu.rows import add_systems, add_up, find_edges
from mdgraph.fused.cpu.threads import Work, run
from mdgraph.fused.network import NetworkResult
from mdgraph.fused.tables import PotentialTables, RadialGrid
from mdgraph.fused.weights import PackedWeights
from mdgraph.models import TensorNetConfig
from mdgraph.neighbors import NeighborList
from mdgraph.state import State


@dataclass(frozen=True)
class _Bound:
    """What belongs to one state and one capacity of its list."""

    state: State
    slots: int
    sizes: Sizes
    embedding: EmbeddingArrays
    edges: Edges
    atoms: AtomArrays
    layers: tuple[LayerFeatures, ...]
    last: Array
    forces: Array


class CompiledNetwork:
    """See FusedNetwork. Energies, forces and virials have the same bits for any thread count.

    Args:
        config: of the potential.
        weights: packed in the network's type, on the CPU.
        tables: radial functions, in the same type.
        rows: (119,) int64, row of each atomic number in the species tables.
    """

    def __init__(
        self,
        config: TensorNetConfig,
        weights: PackedWeights,
        tables: PotentialTables,
        rows: Tensor,
    ) -> None:
        self._config = config
        self._weights = weights.embedding
        self._table = tables.embedding
        self._rows = rows
        self._grid = _grid(tables.grid)
        self._layers = [
            packing.interaction(layer, table)
            for layer, table in zip(weights.layers, tables.layers, strict=True)
        ]
        self._readout = packing.readout(weights.readout, config)
        self._bound: _Bound | None = None

    def evaluate_(self, state: State, pairs: NeighborList, result: NetworkResult) -> None:
        """See FusedNetwork."""
        bound = self._bind(state, pairs)
        self._update_charge(bound)
        listed = buffers.listed(state, pairs)
        phases = self._phases(bound, listed, result.virials.numpy())
        run(phases, buffers.blocks_of(len(state.numbers)))
        atoms = len(state.numbers)
        energies = torch.from_numpy(bound.atoms.energies[:atoms])
        torch.add(energies, result.constant, out=result.energies)
        result.forces.copy_(torch.from_numpy(bound.forces))

    def total_(self, state: State, result: NetworkResult) -> None:
        """See FusedNetwork."""
        system = state.grouping.index.numpy()
        add_systems(system, result.energies[None].numpy(), state.energy[:, None].numpy())
        add_systems(system, result.virials.numpy(), state.virial.flatten(1).numpy())

    def _phases(self, bound: _Bound, listed: Listed, virials: Array) -> list[Work]:
        """Each phase reads of other atoms only what the phases before it wrote."""
        sizes, edges, atoms = bound.sizes, bound.edges, bound.atoms
        layers = list(zip(self._layers, bound.layers, strict=True))
        features = [kept.features for kept in bound.layers] + [bound.last]
        count = len(listed.positions)

        def rows(first: int, last: int) -> tuple[int, int]:
            return first * ATOMS, min(last * ATOMS, count)

        def begin(first: int, last: int) -> None:
            find_edges(*rows(first, last), listed, self._grid, edges)
            embed(first, last, sizes, bound.embedding, edges, atoms, features[0])
            proceed(0, first, last)

        def proceed(number: int, first: int, last: int) -> None:
            if number < len(layers):
                make_sources(first, last, sizes, *layers[number])
                return
            read_out(first, last, sizes, self._readout, atoms, bound.last)
            turn_back(number - 1, first, last)

        def forward(number: int, first: int, last: int) -> None:
            layer, kept = layers[number]
            interact(first, last, sizes, layer, edges, atoms, kept, features[number + 1])
            proceed(number + 1, first, last)

        def turn_back(number: int, first: int, last: int) -> None:
            if number < 0:
                embed_adjoint(first, last, sizes, bound.embedding, edges, atoms)
                return
            layer, kept = layers[number]
            interact_adjoint(first, last, sizes, layer, atoms, kept)

        def backward(number: int, first: int, last: int) -> None:
            layer, kept = layers[number]
            sources_adjoint(first, last, sizes, layer, edges, atoms, kept)
            turn_back(number - 1, first, last)

        def end(first: int, last: int) -> None:
            add_up(*rows(first, last), listed, edges, bound.forces, virials)

        numbers = range(len(layers))
        return [
            begin,
            *(partial(forward, number) for number in numbers),
            *(partial(backward, number) for number in reversed(numbers)),
            end,
        ]

    def _update_charge(self, bound: _Bound) -> None:
        if not self._config.charge_factor:
            return
        state, atoms = bound.state, bound.atoms
        charge = 1.0 + 0.1 * state.grouping.spread(state.charge).numpy()
        atoms.charge[: len(charge)] = charge
        if bound.sizes.symmetric:
            atoms.charge_of_product[: len(charge)] = charge

    def _bind(self, state: State, pairs: NeighborList) -> _Bound:
        bound = self._bound
        if bound is not None and bound.state is state and bound.slots == pairs.capacity:
            return bound
        kind, count = self._weights.own.numpy().dtype, len(state.numbers)
        functions = self._table.coefficients.shape[2]
        sizes = packing.sizes(self._config, functions, len(state.elements))
        rows = self._rows.index_select(0, state.elements)
        self._bound = _Bound(
            state,
            pairs.capacity,
            sizes,
            packing.embedding(self._weights, self._table, rows, self._config),
            buffers.edges(pairs, kind),
            buffers.atoms(state, sizes.channels, kind),
            tuple(buffers.layer(count, sizes.channels, kind) for _ in self._layers),
            buffers.features(count, sizes.channels, kind),
            np.zeros((count, 3)),
        )
        return self._bound


def _grid(grid: RadialGrid) -> Grid:
    return Grid(
        grid.split,
        grid.cutoff,
        grid.split / grid.fine,
        (grid.cutoff - grid.split) / grid.coarse,
        grid.fine,
        grid.coarse,
    )
