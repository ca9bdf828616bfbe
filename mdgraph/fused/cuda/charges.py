"""TensorNet2's charge prediction and equilibration on CUDA, forward and backward.

q_i = p_i + f_i^2 m / S with m = Q - sum p and S = sum f^2 + 1e-6, channel by channel. One
program sums over one system in float64, atom after atom in tiles, so sums have a fixed order.
"""

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from mdgraph.fused.cuda.products import dense, dense_adjoint, standardized, standardized_adjoint
from mdgraph.fused.cuda.workspace import LaunchPlan
from mdgraph.gpu.triton_jit import kernel, pdl_wait

_EPSILON = tl.constexpr(1e-6)


@kernel
def equilibration_kernel(
    predicted,
    total,
    start,
    count,
    factors,
    charges,
    C: tl.constexpr,
    CP: tl.constexpr,
    WIDTH: tl.constexpr,
    USE_PDL: tl.constexpr = False,
):
    """Charges of one system.

    Args:
        predicted: p, f (N, 2C).
        total: Q (S,), e.
        start, count: (S,) int64, first atom and number of atoms of each system.
        factors: m / S, 1 / S (S, 2, C) float64, written.
        charges: q (N, C), written.
    """
    pdl_wait(USE_PDL)
    system = tl.program_id(0).to(tl.int64)
    begin = tl.load(start + system)
    number = tl.load(count + system)
    c = tl.arange(0, CP)
    charge = tl.zeros([WIDTH, CP], tl.float64)
    share = tl.zeros([WIDTH, CP], tl.float64)
    for first in range(0, number, WIDTH):
        here = first + tl.arange(0, WIDTH)[:, None]
        inside = (here < number) & (c < C)[None, :]
        own = predicted + (begin + here) * (2 * C) + c[None, :]
        charge += tl.load(own, mask=inside, other=0.0).to(tl.float64)
        f = tl.load(own + C, mask=inside, other=0.0).to(tl.float64)
        share += f * f
    inverse = 1.0 / (tl.sum(share, 0) + _EPSILON)
    factor = (tl.load(total + system).to(tl.float64) - tl.sum(charge, 0)) * inverse
    tl.store(factors + system * (2 * C) + c, factor, mask=c < C)
    tl.store(factors + system * (2 * C) + C + c, inverse, mask=c < C)
    for first in range(0, number, WIDTH):
        here = first + tl.arange(0, WIDTH)[:, None]
        inside = (here < number) & (c < C)[None, :]
        own = predicted + (begin + here) * (2 * C) + c[None, :]
        p = tl.load(own, mask=inside, other=0.0).to(tl.float64)
        f = tl.load(own + C, mask=inside, other=0.0).to(tl.float64)
        q = p + f * f * factor[None, :]
        tl.store(charges + (begin + here) * C + c[None, :], q, mask=inside)


@kernel
def equilibration_adjoint_kernel(
    by_coulomb,
    by_edges,
    start,
    count,
    factors,
    predicted,
    COULOMB: tl.constexpr,
    EDGES: tl.constexpr,
    C: tl.constexpr,
    CP: tl.constexpr,
    WIDTH: tl.constexpr,
    USE_PDL: tl.constexpr = False,
):
    """From the gradient g of q to dp = g - A and df = 2 f (g - A) m / S, A = sum g f^2 / S.

    Args:
        by_coulomb, by_edges: (N, C), parts of g, read where COULOMB and where EDGES.
        predicted: p, f (N, 2C); their gradients are written over them.
        others: as in `equilibration_kernel`.
    """
    pdl_wait(USE_PDL)
    system = tl.program_id(0).to(tl.int64)
    begin = tl.load(start + system)
    number = tl.load(count + system)
    c = tl.arange(0, CP)
    factor = tl.load(factors + system * (2 * C) + c, mask=c < C, other=0.0)
    inverse = tl.load(factors + system * (2 * C) + C + c, mask=c < C, other=0.0)
    shared = tl.zeros([WIDTH, CP], tl.float64)
    for first in range(0, number, WIDTH):
        here = first + tl.arange(0, WIDTH)[:, None]
        inside = (here < number) & (c < C)[None, :]
        f = predicted + (begin + here) * (2 * C) + C + c[None, :]
        f = tl.load(f, mask=inside, other=0.0).to(tl.float64)
        atom = begin + here
        g = _gradient(by_coulomb, by_edges, atom * C + c[None, :], inside, COULOMB, EDGES)
        shared += g * f * f
    common = tl.sum(shared, 0) * inverse
    for first in range(0, number, WIDTH):
        here = first + tl.arange(0, WIDTH)[:, None]
        inside = (here < number) & (c < C)[None, :]
        own = predicted + (begin + here) * (2 * C) + c[None, :]
        f = tl.load(own + C, mask=inside, other=0.0).to(tl.float64)
        atom = begin + here
        g = _gradient(by_coulomb, by_edges, atom * C + c[None, :], inside, COULOMB, EDGES)
        g -= common[None, :]
        # All threads of this program must have loaded what is written over now.
        tl.debug_barrier()
        tl.store(own, g, mask=inside)
        tl.store(own + C, 2.0 * f * g * factor[None, :], mask=inside)


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


TILE = 8192
"""Numbers that a program which sums over a system takes at a time."""


def predict(bound: LaunchPlan, stage: int) -> None:
    """Predicts the charges of a stage from its invariants."""
    model, b, state = bound.tensornet2_model, bound.charged, bound.state
    activation = bound.model.config.activation
    norm, (first, second, third) = model.predictions[stage].norm, model.predictions[stage].layers
    z1, z2, predicted = b.hidden[stage]
    # Charges enter a sum over all pairs, so they need the precision of the readout.
    s = bound.shapes.readout
    standardized(bound, b.invariants[stage], norm, b.for_invariants)
    dense(bound, s, b.for_invariants, first, z1, "none")
    dense(bound, s, z1, second, z2, activation)
    dense(bound, s, z2, third, predicted, activation)
    group = state.grouping
    equilibration_kernel[(group.systems,)](
        predicted,
        state.charge,
        group.start,
        group.counts,
        b.factors[stage],
        b.charges[stage],
        **_sizes(bound),
    )


def predict_adjoint(bound: LaunchPlan, stage: int, by_edges: Tensor | None) -> None:
    """Gradient by a stage's invariants from that by its charges; `by_edges` adds a layer's part."""
    model, b, s = bound.tensornet2_model, bound.charged, bound.shapes.dense
    activation = bound.model.config.activation
    norm, (first, second, third) = model.predictions[stage].norm, model.predictions[stage].layers
    z1, z2, predicted = b.hidden[stage]
    group = bound.state.grouping
    equilibration_adjoint_kernel[(group.systems,)](
        b.by_coulomb[stage],
        b.by_edges,
        group.start,
        group.counts,
        b.factors[stage],
        predicted,
        COULOMB=model.coulomb is not None,
        EDGES=by_edges is not None,
        **_sizes(bound),
    )
    dense_adjoint(bound, s, predicted, third, z2, activation)
    dense_adjoint(bound, s, z2, second, z1, activation)
    gradient = b.for_invariants
    dense_adjoint(bound, s, z1, first, gradient, "none")
    standardized_adjoint(bound, gradient, b.invariants[stage], norm, gradient)


def _sizes(bound: LaunchPlan) -> dict[str, Any]:
    channels = bound.tensornet2_model.channels
    padded = triton.next_power_of_2(channels)
    width = min(TILE // padded, triton.next_power_of_2(bound.state.grouping.largest))
    return {
        "C": channels,
        "CP": padded,
        "WIDTH": width,
        "num_warps": max(1, min(16, width * padded // 256)),
        **bound.launch,
    }
