"""Edges of all rows lined up one behind the other, for networks on edges.

Row i of the list takes the places from first[i] to first[i + 1]: the message of the atom to
itself where there is one, then its edges in their order. What works on edges works on tiles
of such places, whatever rows they belong to, so neither short rows nor the capacity of the
list cost anything.
"""

import triton
import triton.language as tl

from mdgraph.fused.cuda.kernels.cubics import polynomials
from mdgraph.neighbors.compilation import kernel
from mdgraph.neighbors.succession import wait_for_previous


@kernel
def starts_kernel(
    edges, first, atoms, OWN: tl.constexpr, WIDTH: tl.constexpr, EARLY: tl.constexpr = False
):
    """first[i] = sum over k < i of (edges[k] + OWN), in one program.

    Args:
        edges: (N,) int32.
        first: (N + 1,) int32, written.
        atoms: N.
        OWN: 1 where an atom sends a message to itself, else 0.
    """
    wait_for_previous(EARLY)
    before = 0
    for start in range(0, atoms, WIDTH):
        here = start + tl.arange(0, WIDTH)
        valid = here < atoms
        number = tl.load(edges + here, mask=valid, other=-OWN) + OWN
        tl.store(first + here, before + tl.cumsum(number, 0) - number, mask=valid)
        before += tl.sum(number, 0)
    tl.store(first + atoms, before)


@kernel
def numbers_kernel(edges, slot, number, slots, WIDTH: tl.constexpr, EARLY: tl.constexpr = False):
    """Number of the edge at each slot of the list that holds one.

    Args:
        edges, slot: as `edges_kernel` wrote them.
        number: (N, K) int32, written where a slot holds an edge.
        slots: K.
    """
    wait_for_previous(EARLY)
    atom = tl.program_id(0).to(tl.int64)
    found = tl.load(edges + atom)
    for start in range(0, found, WIDTH):
        here = start + tl.arange(0, WIDTH)
        valid = here < found
        where = tl.load(slot + atom * slots + here, mask=valid, other=0)
        tl.store(number + atom * slots + where, here, mask=valid)


@kernel
def packing_kernel(
    edges,
    first,
    neighbor,
    slot,
    number,
    reverse,
    interval,
    offset,
    grid,
    table,
    source,
    target,
    back,
    at,
    from_centre,
    window,
    window_slope,
    slots,
    OWN: tl.constexpr,
    K: tl.constexpr,
    WIDTH: tl.constexpr,
    EARLY: tl.constexpr = False,
):
    """Writes what a network on edges needs to know of each place.

    Args:
        edges, neighbor, slot, interval, offset: as `edges_kernel` wrote them.
        first, number: as `starts_kernel` and `numbers_kernel` wrote them.
        reverse: of the list.
        grid: float64, as `edges_kernel` reads it.
        table: (intervals, 4, K), of the embedding; its last function is the window.
        source, target: (P,) int32, an edge's atom and its neighbor, written.
        back: (P,) int32, place of the reverse edge, written; an atom's own message is its own.
        at, from_centre: (P,), interval, and distance from its centre, written.
        window, window_slope: (P,), written; 1 and 0 for the message of an atom to itself.
        slots: slots a row.
    """
    wait_for_previous(EARLY)
    atom = tl.program_id(0).to(tl.int64)
    begin = tl.load(first + atom)
    wanted = tl.load(edges + atom) + OWN
    origin = tl.load(grid + 3).to(offset.dtype.element_ty)
    for start in range(0, wanted, WIDTH):
        here = start + tl.arange(0, WIDTH)
        valid = here < wanted
        other_atom = valid & (here >= OWN)
        edge = atom * slots + here - OWN
        own = atom * slots + tl.load(slot + edge, mask=other_atom, other=0)
        other = tl.load(neighbor + edge, mask=other_atom, other=0).to(tl.int64)
        there = other * slots + tl.load(reverse + own, mask=other_atom, other=0)
        reversed_edge = tl.load(first + other, mask=other_atom, other=0) + OWN
        reversed_edge += tl.load(number + there, mask=other_atom, other=0)
        place = tl.load(interval + edge, mask=other_atom, other=0)
        u = tl.where(other_atom, tl.load(offset + edge, mask=other_atom, other=0.0), origin)
        value, slope = polynomials(table + place * (4 * K) + K - 1, u, other_atom, K)
        out = begin.to(tl.int64) + here
        tl.store(source + out, atom.to(tl.int32), mask=valid)
        tl.store(target + out, tl.where(other_atom, other, atom).to(tl.int32), mask=valid)
        tl.store(back + out, tl.where(other_atom, reversed_edge, begin), mask=valid)
        tl.store(at + out, place, mask=valid)
        tl.store(from_centre + out, u, mask=valid)
        tl.store(window + out, tl.where(other_atom, value, 1.0), mask=valid)
        tl.store(window_slope + out, slope, mask=valid)


@triton.jit
def rows_of(first, order, atoms, A: tl.constexpr):
    """Some atoms (A,), which of them there are, and their first edge and number of edges."""
    place = tl.program_id(0) * A + tl.arange(0, A)
    present = place < atoms
    atom = tl.load(order + place, mask=present, other=0).to(tl.int64)
    begin = tl.load(first + atom)
    number = tl.where(present, tl.load(first + atom + 1) - begin, 0)
    return atom, present, begin.to(tl.int64), number


@triton.jit
def ends_of(target, window, begin, number, here):
    """Neighbors and windows (A, WIDTH) of the edges `here` of some atoms, and their places."""
    valid = here < number[:, None]
    edge = begin[:, None] + here
    other = tl.load(target + edge, mask=valid, other=0).to(tl.int64)
    return other, tl.load(window + edge, mask=valid, other=0.0), edge
