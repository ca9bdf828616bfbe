"""The Coulomb energy on CUDA, with forces and the gradient of charges.

E_i = 1/2 sum over j of s(d) sum over c of w_c q_ic q_jc, with w in eV A. The kernel function s
is that of `mdgraph.models.tensornet2.Coulomb`: damped 1/d, over all pairs or with a reaction field.
Distances and s are computed in float64. The pairs within the cutoff are copied to the front
of rows of their own, so that the order of sums does not depend on those beyond it.
"""

import triton
import triton.language as tl

from mdgraph.fused.backend import NetworkResult
from mdgraph.fused.cuda.charges import predict_adjoint
from mdgraph.fused.cuda.device import add_central, listed_vectors, put_central
from mdgraph.fused.cuda.workspace import LaunchPlan
from mdgraph.gpu.triton_jit import kernel, pdl_wait
from mdgraph.neighbors import NeighborRows


@triton.jit
def _damped(d, field):
    """s(d), 1/A, and s'(d), 1/A^2.

    Args:
        d: (W,) float64, A.
        field: (4,) float64: damping radius, cutoff, k_rf and c_rf of the reaction field, which
            are zero for all pairs.
    """
    radius = tl.load(field)
    strength = tl.load(field + 2)
    x = tl.minimum(d / radius, 1.0 - 1e-6)
    rest = 1.0 / (1.0 - x * x)
    lost = tl.exp(-x * x * rest)
    slope = tl.where(d < radius, lost * 2.0 * x * rest * rest / radius, 0.0)
    kernel = 1.0 / d + strength * d * d - tl.load(field + 3)
    change = 2.0 * strength * d - 1.0 / (d * d)
    return (1.0 - lost) * kernel, (1.0 - lost) * change + slope * kernel


@kernel
def selection_kernel(
    positions,
    cell,
    wrap,
    system,
    index,
    image,
    count,
    offsets,
    field,
    slot,
    neighbor,
    value,
    found,
    slots,
    WIDTH: tl.constexpr,
    USE_PDL: tl.constexpr = False,
):
    """Writes the pairs of a row within the cutoff, and s(d) of each.

    Args:
        positions, cell, wrap, system, index, image, count, offsets: as in `edges_kernel`.
        field: see `_damped`.
        slot, neighbor: (N, K) int32, written.
        value: s(d) (N, K), written.
        found: (N,) int32, how many there are, written.
        slots: K.
    """
    pdl_wait(USE_PDL)
    atom = tl.program_id(0).to(tl.int64)
    cutoff = tl.load(field + 1)
    used = tl.load(count + atom)
    before = 0
    for start in range(0, used, WIDTH):
        here = start + tl.arange(0, WIDTH)
        valid = here < used
        other, _r, distance = listed_vectors(
            positions, cell, wrap, system, index, image, offsets, atom, atom * slots + here, valid
        )
        chosen = valid & (distance < cutoff)
        s, _ = _damped(distance, field)
        place = atom * slots + before + tl.cumsum(chosen.to(tl.int32), 0) - 1
        tl.store(slot + place, here, mask=chosen)
        tl.store(neighbor + place, other.to(tl.int32), mask=chosen)
        tl.store(value + place, s, mask=chosen)
        before += tl.sum(chosen.to(tl.int32), 0)
    tl.store(found + atom, before)


@kernel
def potential_kernel(
    neighbor,
    value,
    found,
    charges,
    weights,
    energies,
    for_charges,
    product,
    slots,
    atoms,
    C: tl.constexpr,
    Q: tl.constexpr,
    QP: tl.constexpr,
    WIDTH: tl.constexpr,
    USE_PDL: tl.constexpr = False,
):
    """Energy of an atom, dE/dq, and what multiplies s(d) of each pair.

    Sums over channels, and over every WIDTH-th pair, are in the type of the charges, the
    others in float64.

    Args:
        neighbor, value, found: as `selection_kernel` wrote them.
        charges: q (Q / C, N, C), e.
        weights: w (Q,) float64, eV A.
        energies: (N,) float64, eV, added to.
        for_charges: (Q / C, N, C), dE/dq, written.
        product: sum over c of w_c q_ic q_jc (N, K), eV A, written.
        slots: K.
        atoms: N.
    """
    pdl_wait(USE_PDL)
    atom = tl.program_id(0).to(tl.int64)
    number = tl.load(found + atom)
    c = tl.arange(0, QP)
    column = (c // C) * (atoms * C) + c % C
    w = tl.load(weights + c, mask=c < Q, other=0.0)
    own = tl.load(charges + atom * C + column, mask=c < Q, other=0.0)
    kind = own.dtype
    weighted = (own * w).to(kind)[None, :]
    potential = tl.zeros([WIDTH, QP], kind)
    for start in range(0, number, WIDTH):
        here = start + tl.arange(0, WIDTH)
        valid = here < number
        other = tl.load(neighbor + atom * slots + here, mask=valid, other=0)
        s = tl.load(value + atom * slots + here, mask=valid, other=0.0)
        inside = valid[:, None] & (c < Q)[None, :]
        q = charges + (other[:, None] * C + column[None, :])
        q = tl.load(q, mask=inside, other=0.0)
        potential += q * s[:, None]
        tl.store(product + atom * slots + here, tl.sum(q * weighted, 1), mask=valid)
    of_charges = tl.sum(potential.to(tl.float64), 0) * w
    tl.store(for_charges + atom * C + column, of_charges, mask=c < Q)
    energy = tl.load(energies + atom) + 0.5 * tl.sum(own * of_charges, 0)
    tl.store(energies + atom, energy)


@kernel
def coulomb_forces_kernel(
    positions,
    cell,
    wrap,
    system,
    index,
    image,
    offsets,
    field,
    slot,
    found,
    product,
    forces,
    virials,
    slots,
    atoms,
    WIDTH: tl.constexpr,
    USE_PDL: tl.constexpr = False,
):
    """Forces and virials of atoms, summed in float64; a pair's energy depends on d alone.

    Args:
        slot, found, product: as the kernels before wrote them.
        forces: (N, 3), eV/A, written.
        virials: (9, N) float64, eV, written.
        others: as in `selection_kernel`.
    """
    pdl_wait(USE_PDL)
    atom = tl.program_id(0).to(tl.int64)
    number = tl.load(found + atom)
    zero = tl.zeros([WIDTH], tl.float64)
    sums = (zero, zero, zero, zero, zero, zero, zero, zero, zero)
    for start in range(0, number, WIDTH):
        here = start + tl.arange(0, WIDTH)
        valid = here < number
        place = atom * slots + tl.load(slot + atom * slots + here, mask=valid, other=0)
        p = tl.load(product + atom * slots + here, mask=valid, other=0.0).to(tl.float64)
        _o, r, distance = listed_vectors(
            positions, cell, wrap, system, index, image, offsets, atom, place, valid
        )
        _s, slope = _damped(distance, field)
        sums = add_central(sums, p * slope / distance, r)
    put_central(forces, virials, atom, atoms, sums, ADDED=False)


SELECTION, POTENTIAL, FORCES = (64, 2), (64, 2), (32, 1)
"""Pairs that a program of each kernel takes at a time, and its warps."""


def select_pairs(bound: LaunchPlan, far: NeighborRows) -> None:
    """Selects the pairs within the cutoff of the Coulomb energy."""
    b = bound.charged
    selection_kernel[(bound.atoms,)](
        *_geometry(bound, far),
        far.count,
        far.offsets,
        bound.tensornet2_model.field,
        b.far_slot,
        b.far_neighbor,
        b.far_value,
        b.far_found,
        far.capacity,
        SELECTION[0],
        num_warps=SELECTION[1],
        **bound.launch,
    )


def interact_at_distance(bound: LaunchPlan, far: NeighborRows, result: NetworkResult) -> None:
    """Adds the Coulomb energy, writes its forces and virials, and starts the adjoint of charges."""
    b, weights = bound.charged, bound.tensornet2_model.coulomb
    assert weights is not None
    stages, atoms, channels = b.charges.shape
    charges = stages * channels
    potential_kernel[(atoms,)](
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
        POTENTIAL[0],
        num_warps=POTENTIAL[1],
        **bound.launch,
    )
    # Before those of pairs, whose many programs would leave these no room.
    predict_adjoint(bound, bound.layers, None)
    with bound.model.branch.fork():  # `edges.forces` joins it
        coulomb_forces_kernel[(atoms,)](
            *_geometry(bound, far),
            far.offsets,
            bound.tensornet2_model.field,
            b.far_slot,
            b.far_found,
            b.far_product,
            result.forces,
            result.virials,
            far.capacity,
            atoms,
            FORCES[0],
            num_warps=FORCES[1],
            **bound.launch,
        )


def _geometry(bound: LaunchPlan, far: NeighborRows) -> tuple[object, ...]:
    """Kernel arguments from which pair vectors of a list are computed."""
    state = bound.state
    group = state.grouping.index
    return state.positions, state.cell, far.wrap, group, far.index, far.image
