"""The embedding's gate on CUDA: z1 = LN(|X|^2) W1 + b1, X0 = act(z2) mixing(X), and its adjoint."""

import triton
import triton.language as tl

from mdgraph.fused.cuda.device import activation, product, slope
from mdgraph.fused.cuda.edges import sum_moments
from mdgraph.fused.cuda.norms import (
    add_invariants_adjoint,
    invariants_of,
    standardized_adjoint,
    standardized_values,
    store_invariants,
)
from mdgraph.fused.cuda.products import contract, contract_adjoint, dense, dense_adjoint, mix
from mdgraph.fused.cuda.workspace import LaunchPlan, elementwise, sizes
from mdgraph.gpu.triton_jit import kernel, pdl_wait
from mdgraph.models.kernels.algebra import (
    add,
    dot,
    dots,
    load,
    normalized,
    normalized_adjoint,
    scale,
    store,
    weigh,
    widened,
)
from mdgraph.neighbors import NeighborRows


@kernel
def gate_kernel(
    features,
    norm,
    shift,
    weight,
    rest,
    unit,
    bias,
    squares,
    z1,
    atoms,
    F: tl.constexpr,
    FP: tl.constexpr,
    A: tl.constexpr,
    BF: tl.constexpr,
    PRODUCTS: tl.constexpr,
    USE_PDL: tl.constexpr = False,
):
    """|X|^2 and z1 = LN(|X|^2) W1 + b1.

    Args:
        features: X (N, 9, F).
        norm, shift: (F,), weight and bias of the normalisation.
        weight, rest, unit: halves of W1 (F, 2F).
        bias: b1 (2F,).
        squares: (N, F), written.
        z1: (N, 2F), written.
        atoms: N.
    """
    pdl_wait(USE_PDL)
    atom = (tl.program_id(0) * A + tl.arange(0, A)).to(tl.int64)
    out = tl.program_id(1) * BF + tl.arange(0, BF)
    f = tl.arange(0, FP)
    present = (atom < atoms)[:, None]
    have = f < F
    place = atom[:, None] * (9 * F) + f[None, :]
    x = widened(load(features + place, F, present & have[None, :]), z1.dtype.element_ty)
    x = dot(x, x)
    if tl.program_id(1) == 0:
        tl.store(squares + atom[:, None] * F + f[None, :], x, mask=present & have[None, :])
    x, _ = standardized_values(x, have[None, :], F)
    x = x * tl.load(norm + f, mask=have, other=0.0) + tl.load(shift + f, mask=have, other=0.0)
    inside = have[:, None] & (out < 2 * F)[None, :]
    place = f[:, None] * (2 * F) + out[None, :]
    z = product(x, weight + place, rest + place, inside, True, PRODUCTS) * unit
    z += tl.load(bias + out, mask=out < 2 * F, other=0.0)[None, :]
    place = atom[:, None] * (2 * F) + out[None, :]
    tl.store(z1 + place, z, mask=present & (out < 2 * F)[None, :])


@kernel
def gated_kernel(
    ungated,
    z2,
    result,
    invariants,
    charged,
    gains,
    shifts,
    charged_gains,
    charged_shifts,
    INVARIANTS: tl.constexpr,
    CHARGED: tl.constexpr,
    atoms,
    NORMALIZED: tl.constexpr,
    F: tl.constexpr,
    A: tl.constexpr,
    BF: tl.constexpr,
    ACTIVATION: tl.constexpr,
    USE_PDL: tl.constexpr = False,
):
    """X0 = act(z2) ungated: normalised where a layer follows, its invariants where they count.

    Args:
        ungated: (N, 9, F).
        z2: (N, 3F).
        result: X0 / n (N, 9, F), written where NORMALIZED.
        invariants, charged: layer norms of t and t' (N, 3F), written where INVARIANTS and where
            CHARGED; see `messages`. Programs take whole rows then.
        gains, shifts, charged_gains, charged_shifts: (3F,), weights of these norms.
        atoms: N.
    """
    pdl_wait(USE_PDL)
    atom = (tl.program_id(0) * A + tl.arange(0, A)).to(tl.int64)[:, None]
    f = (tl.program_id(1) * BF + tl.arange(0, BF))[None, :]
    inside = (atom < atoms) & (f < F)
    z = z2 + atom * (3 * F) + f
    s = activation(tl.load(z, mask=inside, other=0.0), ACTIVATION)
    v = activation(tl.load(z + F, mask=inside, other=0.0), ACTIVATION)
    t = activation(tl.load(z + 2 * F, mask=inside, other=0.0), ACTIVATION)
    place = atom * (9 * F) + f
    x = weigh(widened(load(ungated + place, F, inside), z2.dtype.element_ty), s, v, t)
    if INVARIANTS:
        store_invariants(invariants, gains, shifts, atom, f, x, inside, False, F)
    if CHARGED:
        store_invariants(charged, charged_gains, charged_shifts, atom, f, x, inside, True, F)
    if NORMALIZED:
        x, _ = normalized(x)
        store(result + place, F, x, inside)


@kernel
def gated_adjoint_kernel(
    gradient,
    residual,
    for_invariants,
    for_charged,
    gains,
    shifts,
    charged_gains,
    charged_shifts,
    INVARIANTS: tl.constexpr,
    CHARGED: tl.constexpr,
    ungated,
    for_ungated,
    z2,
    atoms,
    NORMALIZED: tl.constexpr,
    F: tl.constexpr,
    A: tl.constexpr,
    BF: tl.constexpr,
    ACTIVATION: tl.constexpr,
    USE_PDL: tl.constexpr = False,
):
    """From the gradient of X0 to those of the ungated features and of z2.

    Args:
        gradient, residual: (N, 9, F), where NORMALIZED, of X0 / n through the first mixing and
            through the residual.
        for_invariants, for_charged: (N, 3F), by the layer norms of t and t', where INVARIANTS
            and where CHARGED.
        gains, shifts, charged_gains, charged_shifts: as in `gated_kernel`.
        ungated, z2: as in `gated_kernel`; the gradient of z2 is written over it.
        for_ungated: (N, 9, F), gradient of `ungated`, written; may lie over it.
        atoms: N.
    """
    pdl_wait(USE_PDL)
    atom = (tl.program_id(0) * A + tl.arange(0, A)).to(tl.int64)[:, None]
    f = (tl.program_id(1) * BF + tl.arange(0, BF))[None, :]
    inside = (atom < atoms) & (f < F)
    place = atom * (9 * F) + f
    z = z2 + atom * (3 * F) + f
    zs = tl.load(z, mask=inside, other=0.0)
    zv = tl.load(z + F, mask=inside, other=0.0)
    zt = tl.load(z + 2 * F, mask=inside, other=0.0)
    s = activation(zs, ACTIVATION)
    v = activation(zv, ACTIVATION)
    t = activation(zt, ACTIVATION)
    kind = z2.dtype.element_ty
    x = widened(load(ungated + place, F, inside), kind)
    gated = weigh(x, s, v, t)
    g = scale(x, 0.0)
    if NORMALIZED:
        y, inverse = normalized(gated)
        g = widened(load(gradient + place, F, inside), kind)
        g = add(g, widened(load(residual + place, F, inside), kind))
        g = normalized_adjoint(g, y, inverse)
    if INVARIANTS:
        g = add_invariants_adjoint(g, for_invariants, gains, atom, f, gated, inside, False, F)
    if CHARGED:
        g = add_invariants_adjoint(g, for_charged, charged_gains, atom, f, gated, inside, True, F)
    ds, dv, dt = dots(g, x)
    # All threads of this program must have loaded what is written over now.
    tl.debug_barrier()
    tl.store(z, ds * slope(zs, ACTIVATION), mask=inside)
    tl.store(z + F, dv * slope(zv, ACTIVATION), mask=inside)
    tl.store(z + 2 * F, dt * slope(zt, ACTIVATION), mask=inside)
    store(for_ungated + place, F, weigh(g, s, v, t), inside)


def embed(bound: LaunchPlan, pairs: NeighborRows) -> None:
    """Features of every atom from moments."""
    weights, s, b = bound.model.embedding, bound.shapes, bound.buffers
    atoms, channels = bound.atoms, bound.channels
    sum_moments(bound, pairs)
    contract(bound)
    first, second = bound.model.gate
    grid = (triton.cdiv(atoms, s.gate.atoms), triton.cdiv(2 * channels, s.gate.strip))

    def gate() -> None:
        gate_kernel[grid](
            b.embedded,
            weights.norm.weight,
            weights.norm.bias,
            first.weight.hi,
            first.weight.lo,
            first.weight.unit,
            first.bias,
            b.squares,
            b.gate1,
            atoms,
            channels,
            s.padded,
            s.gate.atoms,
            s.gate.strip,
            PRODUCTS=bound.model.products,
            num_warps=s.gate.warps,
            **bound.launch,
        )

    if s.gate_first:
        gate()
    with bound.model.branch.fork():
        if not s.gate_first:
            gate()
        dense(bound, s.dense, b.gate1, second, b.gate2, bound.model.config.activation)
    mix(bound, b.embedded, bound.model.mixing.weights, b.ungated)
    bound.model.branch.join()
    gated_kernel[elementwise(bound, 0)](
        b.ungated,
        b.gate2,
        b.inputs[0] if bound.layers else b.work,
        *invariants_of(bound, 0),
        atoms,
        bound.layers > 0,
        **sizes(bound, 0),
        ACTIVATION=bound.model.config.activation,
    )


def embed_adjoint(bound: LaunchPlan) -> None:
    """Gradient of the features to that of the moments."""
    weights, s, b = bound.model.embedding, bound.shapes, bound.buffers
    atoms, layers = bound.atoms, bound.layers > 0
    gated_adjoint_kernel[elementwise(bound, 0)](
        b.changes[0] if layers else b.work,
        b.work,
        *invariants_of(bound, 0),
        b.ungated,
        b.ungated,
        b.gate2,
        atoms,
        layers,
        **sizes(bound, 0),
        ACTIVATION=bound.model.config.activation,
    )
    first, second = bound.model.gate
    activation = bound.model.config.activation
    if s.gate_first:
        dense_adjoint(bound, s.dense, b.gate2, second, b.gate1, activation)
    with bound.model.branch.fork():
        if not s.gate_first:
            dense_adjoint(bound, s.dense, b.gate2, second, b.gate1, activation)
        dense_adjoint(bound, s.dense, b.gate1, first, b.for_norm, "none")
        standardized_adjoint(bound, b.for_norm, b.squares, weights.norm, b.squares)
    mix(bound, b.ungated, bound.model.mixing.transposed, b.last)
    bound.model.branch.join()
    contract_adjoint(bound)
