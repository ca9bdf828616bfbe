"""Launches of the Coulomb energy."""

import triton

from mdgraph.fused.cuda.bound import Bound
from mdgraph.fused.cuda.charges import predict_adjoint
from mdgraph.fused.cuda.kernels import coulomb
from mdgraph.fused.network import NetworkResult
from mdgraph.neighbors import NeighborList

WARP = 32
"""Pairs that a program takes at a time."""


def select_pairs(bound: Bound, far: NeighborList) -> None:
    """Pairs within the cutoff of the Coulomb energy."""
    b = bound.charged
    coulomb.selection_kernel[(bound.atoms,)](
        *_geometry(bound, far),
        far.count,
        far.offsets,
        bound.charged_model.field,
        b.far_slot,
        b.far_neighbor,
        b.far_value,
        b.far_found,
        far.capacity,
        WARP,
        num_warps=1,
        **bound.launch,
    )


def interact_at_distance(bound: Bound, far: NeighborList, result: NetworkResult) -> None:
    """Adds the energies of all charges, writes forces and virials, and begins their adjoint."""
    b, weights = bound.charged, bound.charged_model.coulomb
    assert weights is not None
    stages, atoms, channels = b.charges.shape
    charges = stages * channels
    coulomb.potential_kernel[(atoms,)](
        b.far_neighbor,
        b.far_value,
        b.far_found,
        b.charges,
        weights.weights,
        result.energies,
        b.by_coulomb,
        b.far_product,
        far.capacity,
        atoms,
        channels,
        charges,
        triton.next_power_of_2(charges),
        WARP,
        num_warps=4,
        **bound.launch,
    )
    with bound.model.branch.fork():
        coulomb.coulomb_forces_kernel[(atoms,)](
            *_geometry(bound, far),
            far.offsets,
            bound.charged_model.field,
            b.far_slot,
            b.far_found,
            b.far_product,
            result.forces,
            result.virials,
            far.capacity,
            atoms,
            WARP,
            num_warps=1,
            **bound.launch,
        )
    predict_adjoint(bound, bound.layers, None)
    bound.model.branch.join()


def _geometry(bound: Bound, far: NeighborList) -> tuple[object, ...]:
    """What makes vectors of the pairs of a list."""
    state = bound.state
    group = state.grouping.index
    return state.positions, state.cell, far.wrap, group, far.index, far.image
