"""Launches on the rows of the list: edges, moments, gradients of edges, forces, totals."""

from typing import Any

import triton

from mdgraph.fused.cuda.bound import Bound
from mdgraph.fused.cuda.kernels import geometry, moments
from mdgraph.fused.network import NetworkResult
from mdgraph.neighbors import NeighborList
from mdgraph.state import State


def find_edges(bound: Bound, pairs: NeighborList) -> None:
    """Edges within the cutoff."""
    state, b = bound.state, bound.buffers
    geometry.edges_kernel[(bound.atoms,)](
        state.positions,
        state.cell,
        pairs.wrap,
        state.grouping.index,
        pairs.index,
        pairs.image,
        pairs.count,
        pairs.offsets,
        state.kinds,
        state.charge,
        bound.charge,
        bound.grid,
        b.neighbor,
        b.species,
        b.slot,
        b.interval,
        b.offset,
        b.unit,
        b.edges,
        bound.slots,
        bound.model.grid.zones,
        bound.model.config.charge_factor,
        WIDTH=32,
        num_warps=1,
        **bound.launch,
    )


def sum_moments(bound: Bound, pairs: NeighborList) -> None:
    """Species-resolved moments of every atom."""
    b = bound.buffers
    moments.moments_kernel[(bound.atoms, bound.elements)](
        pairs.order,
        b.edges,
        b.species,
        b.interval,
        b.offset,
        b.unit,
        bound.model.embedding_table,
        b.moments,
        bound.slots,
        **_moment_sizes(bound),
        WIDTH=bound.shapes.moments.step,
        num_warps=bound.shapes.moments.warps,
        **bound.launch,
    )


def _moment_sizes(bound: Bound) -> dict[str, Any]:
    return {
        "E": bound.elements,
        "K": bound.model.functions,
        "KP": triton.next_power_of_2(max(1, bound.model.functions - 1)),
    }


def forces(bound: Bound, pairs: NeighborList, result: NetworkResult) -> None:
    """Forces and virials of atoms from the adjoint moments and the central forces."""
    b = bound.buffers
    atoms = bound.atoms
    moments.edge_gradients_kernel[(atoms,)](
        pairs.order,
        b.edges,
        b.species,
        b.slot,
        b.interval,
        b.offset,
        b.unit,
        bound.model.embedding_table,
        b.moments,
        b.central,
        b.gradient,
        bound.slots,
        STRIPS=bound.strips if bound.layers else 0,
        WIDTH=bound.shapes.gradients.step,
        **_moment_sizes(bound),
        num_warps=bound.shapes.gradients.warps,
        **bound.launch,
    )
    pairs.join()
    geometry.forces_kernel[(atoms,)](
        b.gradient,
        b.neighbor,
        b.slot,
        pairs.reverse,
        b.unit,
        b.edges,
        result.forces,
        result.virials,
        bound.slots,
        atoms,
        ADDED=bound.predicts(bound.layers),
        WIDTH=32,
        num_warps=1,
        **bound.launch,
    )


def totals(state: State, result: NetworkResult) -> None:
    """Energy and virial of each system."""
    group = state.grouping
    geometry.totals_kernel[(group.systems, 10)](
        result.energies,
        result.virials,
        group.start,
        group.counts,
        state.energy,
        state.virial,
        group.atoms,
        WIDTH=1024,
    )
