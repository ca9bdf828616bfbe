"""CompiledNetwork: TensorNet and TensorNet2 as numba kernels on blocks of atoms."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from mdgraph.fused.backend import NetworkResult
from mdgraph.fused.cpu import packing
from mdgraph.fused.cpu.arrays import Grid, Systems
from mdgraph.fused.cpu.embedding import add_systems
from mdgraph.fused.cpu.pairwise import RepulsionArrays
from mdgraph.fused.cpu.products import ATOMS
from mdgraph.fused.cpu.schedule import EvaluationTask, features_to_fill, phases
from mdgraph.fused.cpu.simd import Work, run
from mdgraph.fused.cpu.tensornet2 import TensorNet2Task, tensornet2_phases
from mdgraph.fused.tables import PotentialTables, RadialGrid
from mdgraph.fused.weights import PackedWeights
from mdgraph.models import TensorNetConfig
from mdgraph.neighbors import NeighborRows
from mdgraph.state import State


@dataclass(frozen=True)
class _Bound:
    """Buffers for one state and one capacity of its list."""

    slots: int
    task: EvaluationTask
    charged: TensorNet2Task | None
    repulsions: tuple[RepulsionArrays, ...]


class CompiledNetwork:
    """FusedNetwork on a CPU; results have the same bits for any number of threads.

    Args:
        config: of the potential.
        weights: from `packed`, in the dtype of the network, on the CPU.
        tables: radial functions, in the same dtype.
        rows: (119,) int64, row of each atomic number in the species tables.
    """

    rounding: ClassVar[int] = ATOMS
    reads_reverse: ClassVar[bool] = True

    def __init__(
        self,
        config: TensorNetConfig,
        weights: PackedWeights,
        tables: PotentialTables,
        rows: Tensor,
    ) -> None:
        self._config = config
        self._weights = weights
        self._table = tables.embedding
        self._rows = rows
        self._grid = _grid(tables.grid)
        layers = list(zip(weights.layers, tables.layers, strict=True))
        self._layers = [packing.interaction(layer, table) for layer, table in layers]
        self._networks = tuple(
            packing.edge_network(layer.edge_network, table, config)
            for layer, table in layers
            if layer.edge_network is not None
        )
        self._predictions = tuple(
            packing.prediction(prediction, config) for prediction in weights.charges
        )
        self._readout = packing.readout(weights.readout, config)

    def evaluate_(
        self,
        state: State,
        pairs: NeighborRows,
        far: NeighborRows | None,
        close: Sequence[NeighborRows],
        result: NetworkResult,
        forces_alone: bool = False,
    ) -> None:
        """See FusedNetwork."""
        bound = self._bind(state, pairs)
        self._update_charge(bound, state)
        task = self._evaluation(bound, state, pairs, close, result)
        run(self._phases(bound, task, state, far), packing.blocks_of(len(state.numbers)))
        self._write(task, result)

    def domain_stages_(
        self,
        state: State,
        pairs: NeighborRows,
        close: Sequence[NeighborRows],
        result: NetworkResult,
        owned: int,
    ) -> Iterator[Tensor]:
        """See DividedNetwork."""
        bound = self._bind(state, pairs)
        self._update_charge(bound, state)
        task = replace(
            self._evaluation(bound, state, pairs, close, result), owned=packing.blocks_of(owned)
        )
        blocks = packing.blocks_of(len(state.numbers))
        *stages, last = phases(task)
        for stage, features in zip(stages, features_to_fill(task), strict=True):
            run([stage], blocks)
            if features is not None:
                filled = torch.from_numpy(features).unflatten(0, (-1, 9 * task.sizes.channels))
                yield filled
                yield filled
        run([last], blocks)
        self._write(task, result)

    @staticmethod
    def _write(task: EvaluationTask, result: NetworkResult) -> None:
        energies = torch.from_numpy(task.atoms.energies[: len(result.energies)])
        torch.add(energies, result.constant, out=result.energies)
        result.forces.copy_(torch.from_numpy(task.forces))

    def outgrown(self, state: State) -> Tensor | None:
        """See FusedNetwork: all its buffers have the capacities of lists."""
        return None

    def grow_(self, state: State) -> None:
        """See FusedNetwork."""

    def replace_(self, state: State) -> None:
        """See WorkspaceOwner."""
        bound: _Bound = state.workspaces[self]
        bound.task.atoms.kinds[: len(state.kinds)] = state.kinds.numpy()

    def total_(self, state: State, result: NetworkResult) -> None:
        """See FusedNetwork."""
        system = state.grouping.index.numpy()
        add_systems(system, result.energies[None].numpy(), state.energy[:, None].numpy())
        add_systems(system, result.virials.numpy(), state.virial.flatten(1).numpy())

    @staticmethod
    def _evaluation(
        bound: _Bound,
        state: State,
        pairs: NeighborRows,
        close: Sequence[NeighborRows],
        result: NetworkResult,
    ) -> EvaluationTask:
        repulsions = zip(bound.repulsions, close, strict=True)
        return replace(
            bound.task,
            listed=packing.listed(state, pairs),
            repulsions=tuple(
                (repulsion, packing.listed(state, neighbors)) for repulsion, neighbors in repulsions
            ),
            virials=result.virials.numpy(),
        )

    @staticmethod
    def _phases(
        bound: _Bound, task: EvaluationTask, state: State, far: NeighborRows | None
    ) -> list[Work]:
        if bound.charged is None:
            return phases(task)
        # Total charges may change between evaluations.
        systems = Systems(state.grouping.index.numpy(), state.charge.double().numpy())
        listed = packing.listed(state, far) if far is not None else None
        return tensornet2_phases(replace(bound.charged, task=task, systems=systems, far=listed))

    def _update_charge(self, bound: _Bound, state: State) -> None:
        if not self._config.charge_factor:
            return
        atoms = bound.task.atoms
        charge = 1.0 + 0.1 * state.grouping.spread(state.charge).numpy()
        atoms.charge[: len(charge)] = charge
        if bound.task.sizes.symmetric:
            atoms.charge_of_product[: len(charge)] = charge

    def _bind(self, state: State, pairs: NeighborRows) -> _Bound:
        bound: _Bound | None = state.workspaces.get(self)
        if bound is None or bound.slots != pairs.capacity:
            bound = None  # frees its memory first: both may not fit
            state.workspaces.pop(self, None)
            task = self._task(state, pairs)
            charged = self._charged(task, state) if self._predictions else None
            rows = self._rows.index_select(0, state.elements)
            repulsions = tuple(
                packing.repulsion(repulsion, rows) for repulsion in self._weights.repulsions
            )
            state.workspaces[self] = bound = _Bound(pairs.capacity, task, charged, repulsions)
        return bound

    def _task(self, state: State, pairs: NeighborRows) -> EvaluationTask:
        dtype, count = self._weights.embedding.own.numpy().dtype, len(state.numbers)
        functions = self._table.coefficients.shape[2]
        sizes = packing.sizes(self._config, functions, len(state.elements))
        rows = self._rows.index_select(0, state.elements)
        channels = sizes.channels
        buffers = [packing.layer(count, channels, dtype) for _ in self._layers]
        return EvaluationTask(
            owned=packing.blocks_of(count),
            grid=self._grid,
            sizes=sizes,
            embedding=packing.embedding(self._weights.embedding, self._table, rows, self._config),
            layers=tuple(zip(self._layers, buffers, strict=True)),
            readout=self._readout,
            repulsions=(),
            listed=packing.listed(state, pairs),
            edges=packing.edges(pairs, dtype),
            atoms=packing.atoms(state, channels, dtype),
            features=(
                *(layer.features for layer in buffers),
                packing.features(count, channels, dtype),
            ),
            forces=np.zeros((count, 3)),
            virials=np.zeros((9, count)),
        )

    def _charged(self, task: EvaluationTask, state: State) -> TensorNet2Task:
        config, coulomb = self._config, self._weights.coulomb
        dtype, count = task.edges.offset.dtype, len(state.numbers)
        slots, systems = task.edges.slots, state.grouping.systems
        return TensorNet2Task(
            task=task,
            window=self._table.coefficients.shape[2] - 1,
            networks=self._networks,
            predictions=self._predictions,
            windows=packing.windows(task.edges, task.grid),
            terms=tuple(
                packing.terms(count, slots, task.sizes.channels, dtype) for _ in self._networks
            ),
            charges=packing.charges(config, count, systems, slots, dtype),
            systems=Systems(state.grouping.index.numpy(), state.charge.double().numpy()),
            coulomb=packing.coulomb(coulomb, config, count) if coulomb else None,
            far=None,
        )


def _grid(grid: RadialGrid) -> Grid:
    counts = np.array(grid.counts)
    return Grid(
        grid.start,
        grid.cutoff,
        grid.zone_width,
        grid.origin,
        grid.first().numpy(),
        counts,
        grid.zone_width / counts,
    )
