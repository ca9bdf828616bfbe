"""TensorNet2's charge prediction and equilibration on CUDA, forward and backward.

q_i = p_i + f_i^2 m / S with m = Q - sum p and S = sum f^2 + 1e-6, channel by channel. One
program sums over one system in float64, atom after atom in tiles, so sums have a fixed order.
"""

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from mdgraph.fused.cuda.products import dense, dense_adjoint
from mdgraph.fused.cuda.workspace import LaunchPlan, atoms_of_a_part, charge_parts
from mdgraph.gpu.triton_jit import kernel, pdl_wait

_EPSILON = tl.constexpr(1e-6)


@kernel
def charge_sums_kernel(
    predicted,
    start,
    count,
    sums,
    PARTS: tl.constexpr,
    C: tl.constexpr,
    CP: tl.constexpr,
    WIDTH: tl.constexpr,
    USE_PDL: tl.constexpr = False,
):
    """Sums of p and of f^2 over a part of a system.

    Args:
        predicted: p, f (N, 2C).
        start, count: (S,) int64, first atom and number of atoms of each system.
        sums: (S, PARTS, 2, C) float64, written.
    """
    pdl_wait(USE_PDL)
    atom, inside, c = _part_of(start, count, C, CP, WIDTH)
    own = predicted + atom * (2 * C) + c[None, :]
    charge = tl.load(own, mask=inside, other=0.0).to(tl.float64)
    f = tl.load(own + C, mask=inside, other=0.0).to(tl.float64)
    out = sums + (tl.program_id(0).to(tl.int64) * PARTS + tl.program_id(1)) * (2 * C) + c
    tl.store(out, tl.sum(charge, 0), mask=c < C)
    tl.store(out + C, tl.sum(f * f, 0), mask=c < C)


@kernel
def equilibration_kernel(
    predicted,
    total,
    start,
    count,
    sums,
    factors,
    charges,
    PARTS: tl.constexpr,
    C: tl.constexpr,
    CP: tl.constexpr,
    WIDTH: tl.constexpr,
    PP: tl.constexpr,
    USE_PDL: tl.constexpr = False,
):
    """Charges of a part of a system.

    Args:
        predicted, start, count: as in `charge_sums_kernel`.
        total: Q (S,), e.
        sums: as that kernel wrote them; not read where a system has one part.
        factors: m / S, 1 / S (S, 2, C) float64, written.
        charges: q (N, C), written.
    """
    pdl_wait(USE_PDL)
    system = tl.program_id(0).to(tl.int64)
    atom, inside, c = _part_of(start, count, C, CP, WIDTH)
    own = predicted + atom * (2 * C) + c[None, :]
    p = tl.load(own, mask=inside, other=0.0).to(tl.float64)
    f = tl.load(own + C, mask=inside, other=0.0).to(tl.float64)
    if PARTS == 1:
        charge, share = tl.sum(p, 0), tl.sum(f * f, 0)
    else:
        charge = _summed(sums, system, c, PARTS, 2 * C, C, PP)
        share = _summed(sums + C, system, c, PARTS, 2 * C, C, PP)
    inverse = 1.0 / (share + _EPSILON)
    factor = (tl.load(total + system).to(tl.float64) - charge) * inverse
    first = (c < C) & (tl.program_id(1) == 0)
    tl.store(factors + system * (2 * C) + c, factor, mask=first)
    tl.store(factors + system * (2 * C) + C + c, inverse, mask=first)
    tl.store(charges + atom * C + c[None, :], p + f * f * factor[None, :], mask=inside)


@kernel
def gradient_sums_kernel(
    by_coulomb,
    by_edges,
    start,
    count,
    predicted,
    sums,
    COULOMB: tl.constexpr,
    EDGES: tl.constexpr,
    PARTS: tl.constexpr,
    C: tl.constexpr,
    CP: tl.constexpr,
    WIDTH: tl.constexpr,
    USE_PDL: tl.constexpr = False,
):
    """Sum of g f^2 over a part of a system, with the gradient g of q.

    Args:
        by_coulomb, by_edges: (N, C), parts of g, read where COULOMB and where EDGES.
        sums: (S, PARTS, C) float64, written.
        others: as in `charge_sums_kernel`.
    """
    pdl_wait(USE_PDL)
    atom, inside, c = _part_of(start, count, C, CP, WIDTH)
    f = predicted + atom * (2 * C) + C + c[None, :]
    f = tl.load(f, mask=inside, other=0.0).to(tl.float64)
    g = _gradient(by_coulomb, by_edges, atom * C + c[None, :], inside, COULOMB, EDGES)
    out = sums + (tl.program_id(0).to(tl.int64) * PARTS + tl.program_id(1)) * C + c
    tl.store(out, tl.sum(g * f * f, 0), mask=c < C)


@kernel
def equilibration_adjoint_kernel(
    by_coulomb,
    by_edges,
    start,
    count,
    sums,
    factors,
    predicted,
    COULOMB: tl.constexpr,
    EDGES: tl.constexpr,
    PARTS: tl.constexpr,
    C: tl.constexpr,
    CP: tl.constexpr,
    WIDTH: tl.constexpr,
    PP: tl.constexpr,
    USE_PDL: tl.constexpr = False,
):
    """From the gradient g of q to dp = g - A and df = 2 f (g - A) m / S, A = sum g f^2 / S.

    Args:
        by_coulomb, by_edges: as in `gradient_sums_kernel`.
        sums: as that kernel wrote them; not read where a system has one part.
        predicted: p, f (N, 2C); their gradients are written over them.
        others: as in `equilibration_kernel`.
    """
    pdl_wait(USE_PDL)
    system = tl.program_id(0).to(tl.int64)
    atom, inside, c = _part_of(start, count, C, CP, WIDTH)
    factor = tl.load(factors + system * (2 * C) + c, mask=c < C, other=0.0)
    inverse = tl.load(factors + system * (2 * C) + C + c, mask=c < C, other=0.0)
    own = predicted + atom * (2 * C) + c[None, :]
    f = tl.load(own + C, mask=inside, other=0.0).to(tl.float64)
    g = _gradient(by_coulomb, by_edges, atom * C + c[None, :], inside, COULOMB, EDGES)
    if PARTS == 1:
        common = tl.sum(g * f * f, 0) * inverse
    else:
        common = _summed(sums, system, c, PARTS, C, C, PP) * inverse
    g -= common[None, :]
    # All threads of this program must have loaded what is written over now.
    tl.debug_barrier()
    tl.store(own, g, mask=inside)
    tl.store(own + C, 2.0 * f * g * factor[None, :], mask=inside)


@triton.jit
def _part_of(start, count, C: tl.constexpr, CP: tl.constexpr, WIDTH: tl.constexpr):
    """Atoms (WIDTH, 1) of a program's part of its system, which numbers (WIDTH, CP), channels."""
    system = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, CP)
    here = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)[:, None]
    inside = (here < tl.load(count + system)) & (c < C)[None, :]
    return tl.load(start + system) + here, inside, c


@triton.jit
def _summed(
    sums, system, c, PARTS: tl.constexpr, STRIDE: tl.constexpr, C: tl.constexpr, PP: tl.constexpr
):
    """Sum over the parts of a system (CP,)."""
    part = tl.arange(0, PP)[:, None]
    inside = (part < PARTS) & (c < C)[None, :]
    place = (system * PARTS + part) * STRIDE + c[None, :]
    return tl.sum(tl.load(sums + place, mask=inside, other=0.0), 0)


@triton.jit
def _gradient(
    by_coulomb,
    by_edges,
    place,
    inside,
    COULOMB: tl.constexpr,
    EDGES: tl.constexpr,
):
    """Gradient of the charges at some places, in float64."""
    g = tl.zeros(inside.shape, tl.float64)
    if COULOMB:
        g += tl.load(by_coulomb + place, mask=inside, other=0.0)
    if EDGES:
        g += tl.load(by_edges + place, mask=inside, other=0.0)
    return g


def predict(bound: LaunchPlan, stage: int) -> None:
    """Predicts the charges of a stage from the layer norm of its invariants."""
    model, b, state = bound.tensornet2_model, bound.charged, bound.state
    activation = bound.model.config.activation
    first, second, third = model.predictions[stage].layers
    z1, z2, predicted = b.hidden[stage]
    # Charges enter a sum over all pairs, so they need the precision of the readout.
    s = bound.shapes.charges
    dense(bound, s, b.invariants, first, z1, "none")
    dense(bound, s, z1, second, z2, activation)
    dense(bound, s, z2, third, predicted, activation)
    group, sizes, parts = state.grouping, _sizes(bound), charge_parts(state, model.channels)
    if parts > 1:
        charge_sums_kernel[(group.systems, parts)](
            predicted, group.start, group.counts, b.sums, **sizes
        )
    equilibration_kernel[(group.systems, parts)](
        predicted,
        state.charge,
        group.start,
        group.counts,
        b.sums,
        b.factors[stage],
        b.charges[stage],
        PP=triton.next_power_of_2(parts),
        **sizes,
    )


def predict_adjoint(bound: LaunchPlan, stage: int, by_edges: Tensor | None) -> None:
    """Gradient by that layer norm from that by the charges; `by_edges` adds a layer's part."""
    model, b, s = bound.tensornet2_model, bound.charged, bound.shapes.charges
    activation = bound.model.config.activation
    first, second, third = model.predictions[stage].layers
    z1, z2, predicted = b.hidden[stage]
    group, parts = bound.state.grouping, charge_parts(bound.state, model.channels)
    sizes = _sizes(bound) | {"COULOMB": model.coulomb is not None, "EDGES": by_edges is not None}
    gradients = b.by_coulomb[stage], b.by_edges
    if parts > 1:
        gradient_sums_kernel[(group.systems, parts)](
            *gradients, group.start, group.counts, predicted, b.sums, **sizes
        )
    equilibration_adjoint_kernel[(group.systems, parts)](
        *gradients,
        group.start,
        group.counts,
        b.sums,
        b.factors[stage],
        predicted,
        PP=triton.next_power_of_2(parts),
        **sizes,
    )
    dense_adjoint(bound, s, predicted, third, z2, activation)
    dense_adjoint(bound, s, z2, second, z1, activation)
    dense_adjoint(bound, s, z1, first, b.invariants, "none")


def _sizes(bound: LaunchPlan) -> dict[str, Any]:
    channels = bound.tensornet2_model.channels
    padded = triton.next_power_of_2(channels)
    width = atoms_of_a_part(bound.state, channels)
    return {
        "PARTS": charge_parts(bound.state, channels),
        "C": channels,
        "CP": padded,
        "WIDTH": width,
        "num_warps": max(1, min(16, width * padded // 256)),
        **bound.launch,
    }
