"""Edges and moments, and forces, of a network without layers on CUDA, in a kernel each.

Without messages an edge has no part but in the moments of its two atoms. So the program that finds
the edges of an atom sums their moments too, and the one that takes its force reads the gradients by
moments of both ends instead of what a kernel before has made of these for each direction, which
others would find by reverse slots: two launches less, and each row of the table is read once.

The force on i along r = x_j - x_i is w_ij - w_ji, where w comes from the gradients D_i by the
moments of i and u = r/d as `edge_gradients_kernel` says. As components are even or odd in u, that
is the w of one sum: D_i + D_j for the even components, D_i - D_j for the odd ones. So both atoms of
a pair find the same force to the last bit.
"""

import triton.language as tl

from mdgraph.fused.backend import NetworkResult
from mdgraph.fused.cuda.device import interval_in, neighbor_in, polynomials, put, put_forces
from mdgraph.fused.cuda.edges import (
    ROW,
    find_edges,
    forces,
    moment_sizes,
    polynomials_adjoint,
    scaled,
    sum_moments,
)
from mdgraph.fused.cuda.workspace import LaunchPlan
from mdgraph.gpu.triton_jit import kernel, pdl_wait
from mdgraph.gpu.vectors import added, less_outer
from mdgraph.models.kernels.algebra import load
from mdgraph.neighbors import NeighborRows

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators


@kernel
def both_ends_kernel(
    order,
    groups,
    pair,
    offset,
    unit,
    kinds,
    table,
    adjoint,
    forces,
    virials,
    slots,
    atoms,
    E: tl.constexpr,
    K: tl.constexpr,
    ROW: tl.constexpr,
    APART: tl.constexpr,
    KP: tl.constexpr,
    WIDTH: tl.constexpr,
    VIRIALS: tl.constexpr,
    USE_PDL: tl.constexpr = False,
):
    """The force on an atom, and half of r (x) f of its pairs as its virial, summed in float64.

    Args:
        order, groups, pair, offset, unit, table, E, K, ROW: as in `edge_gradients_kernel`.
        kinds: (N,) int64, element of each atom among those at hand.
        adjoint: D (N, 9, E K).
        forces, virials: (N, 3), (9, N) float64, written; virials only where VIRIALS.
        slots: K of the list.
        atoms: N.
        APART: not taken; all functions are in one tile.
        WIDTH: edges taken at a time.
    """
    pdl_wait(USE_PDL)
    atom = tl.load(order + tl.program_id(0)).to(tl.int64)
    k = tl.arange(0, KP)
    inside = (k < K)[None, :]
    of_atom = tl.load(kinds + atom)
    zero = tl.zeros([WIDTH], tl.float64)
    force = (zero, zero, zero)
    virial = (zero, zero, zero, zero, zero, zero, zero, zero, zero)
    for kind in range(E):
        own = load((adjoint + atom * (9 * E * K) + kind * K + k)[None, :], E * K, inside)
        group = groups + atom * (E + 1) + kind
        end = tl.load(group + 1)
        for start in range(tl.load(group), end, WIDTH):
            here = start + tl.arange(0, WIDTH)
            edge = atom * slots + here
            valid = here < end
            both = tl.load(pair + edge, mask=valid, other=0)
            u = tl.load(offset + edge, mask=valid, other=0.0)[:, None]
            x = tl.load(unit + edge * 4, mask=valid, other=0.0)
            y = tl.load(unit + edge * 4 + 1, mask=valid, other=0.0)
            z = tl.load(unit + edge * 4 + 2, mask=valid, other=0.0)
            inverse = tl.load(unit + edge * 4 + 3, mask=valid, other=1.0)
            there = adjoint + neighbor_in(both) * (9 * E * K) + of_atom * K
            known = valid[:, None] & inside
            other = load(there[:, None] + k[None, :], E * K, known)
            at = table + interval_in(both)[:, None] * (4 * ROW) + k[None, :]
            values, slopes = polynomials(at, u, known, ROW)
            d = (
                own[0] + other[0],
                own[1] - other[1],
                own[2] - other[2],
                own[3] - other[3],
                own[4] + other[4],
                own[5] + other[5],
                own[6] + other[6],
                own[7] + other[7],
                own[8] + other[8],
            )
            # Sums before factors, which a multiply-add would give to one of both ends.
            h, gx, gy, gz = polynomials_adjoint(scaled(d), x[:, None], y[:, None], z[:, None])
            along = tl.sum(slopes * h, 1)
            gx, gy, gz = tl.sum(values * gx, 1), tl.sum(values * gy, 1), tl.sum(values * gz, 1)
            along -= (x * gx + y * gy + z * gz) * inverse
            fx, fy, fz = (
                gx * inverse + along * x,
                gy * inverse + along * y,
                gz * inverse + along * z,
            )
            w = (fx.to(tl.float64), fy.to(tl.float64), fz.to(tl.float64))
            force = added(force, w)
            if VIRIALS:
                whole = inverse.to(tl.float64)
                r = (x.to(tl.float64) / whole, y.to(tl.float64) / whole, z.to(tl.float64) / whole)
                virial = less_outer(virial, r, w)
    if VIRIALS:
        put_forces(forces, virials, atom, atoms, force, virial, FACTOR=0.5, ADDED=False)
    else:
        for axis in tl.static_range(3):
            put(forces + 3 * atom + axis, tl.sum(force[axis], 0), False)


def find_moments(bound: LaunchPlan, pairs: NeighborRows) -> None:
    """Edges within the cutoff of all rows, and moments of every atom."""
    at_once = bound.slots <= ROW and bound.rows == bound.atoms
    find_edges(bound, pairs, summed=at_once)
    if not at_once:
        sum_moments(bound, pairs)


def forces_from_moments(
    bound: LaunchPlan, pairs: NeighborRows, result: NetworkResult, virials: bool
) -> None:
    """Forces, and virials if wanted, of all rows from the gradients by moments."""
    if bound.rows > bound.atoms:  # those of other domains' atoms have no gradients here
        forces(bound, pairs, result, virials)
        return
    b = bound.buffers
    both_ends_kernel[(bound.atoms,)](
        pairs.order,
        b.groups,
        b.pair,
        b.offset,
        b.unit,
        bound.state.kinds,
        bound.model.embedding_table,
        b.moments,
        result.forces,
        result.virials,
        bound.slots,
        bound.atoms,
        **moment_sizes(bound),
        WIDTH=bound.shapes.both_ends.step,
        VIRIALS=virials,
        num_warps=bound.shapes.both_ends.warps,
        maxnreg=bound.shapes.both_ends.registers,
        **bound.launch,
    )
