"""The readout on CUDA: energies of atoms, and the start of the backward pass.

z0 = LN(t) W0 + b0;  then a perceptron, or the product of one with the sigmoid of another. The
gradient of the energy starts here, with 1 an atom.
"""

import triton
import triton.language as tl
from torch import Tensor

from mdgraph.fused.backend import NetworkResult
from mdgraph.fused.cuda.device import activation, product, sigmoid, slope
from mdgraph.fused.cuda.few import by_matrix, sizes_of_few, whole_matrix
from mdgraph.fused.cuda.norms import row_of, row_sums
from mdgraph.fused.cuda.products import dense, dense_adjoint, sizes_of_product
from mdgraph.fused.cuda.weights import Dense, NetworkWeights
from mdgraph.fused.cuda.workspace import TILE, LaunchPlan, padded
from mdgraph.gpu.triton_jit import kernel, pdl_wait


@triton.jit
def energies_of(h, last, ends, w, W: tl.constexpr, ACTIVATION: tl.constexpr, GATED: tl.constexpr):
    """Energies (A, 1) in float64 from the last hidden layer, and their gradient by it (A, WP).

    Args:
        h: that layer before its activation (A, WP).
        last: (2, W), weights of the value and of the gate.
        ends: (2,), their biases.
        w: (WP,), its columns.
    """
    u = tl.where((w < W)[None, :], activation(h, ACTIVATION), 0.0)
    row = row_of(last, w, W)
    value = row_sums(u * row) + tl.load(ends)
    energy = value.to(tl.float64)
    if GATED:
        other = row_of(last + W, w, W)
        gate = sigmoid(row_sums(u * other) + tl.load(ends + 1))
        energy *= gate
        row = gate * row + value * gate * (1.0 - gate) * other
    return energy, row * slope(h, ACTIVATION)


@kernel
def energy_kernel(
    inputs,
    last,
    ends,
    constant,
    energies,
    atoms,
    W: tl.constexpr,
    WP: tl.constexpr,
    A: tl.constexpr,
    ACTIVATION: tl.constexpr,
    GATED: tl.constexpr,
    USE_PDL: tl.constexpr = False,
):
    """Energies of a few atoms from the last hidden layer, and their gradient.

    Args:
        inputs: z (N, W), before its activation; its gradient is written over it.
        last, ends: as in `energies_of`.
        constant: (N,) float64, added.
        energies: (N,) float64, written.
        atoms: N.
    """
    pdl_wait(USE_PDL)
    atom = (tl.program_id(0) * A + tl.arange(0, A)).to(tl.int64)[:, None]
    w = tl.arange(0, WP)
    present = atom < atoms
    here, inside = inputs + atom * W + w[None, :], present & (w < W)[None, :]
    z = tl.load(here, mask=inside, other=0.0)
    energy, g = energies_of(z, last, ends, w, W, ACTIVATION, GATED)
    energy += tl.load(constant + atom, mask=present, other=0.0)
    tl.store(energies + atom, energy, mask=present)
    # All threads of this program must have loaded what is written over now.
    tl.debug_barrier()
    tl.store(here, g, mask=inside)


@triton.jit
def _by_warps(
    rows,
    weight,
    rest,
    w,
    KIND: tl.constexpr,
    F: tl.constexpr,
    W: tl.constexpr,
    A: tl.constexpr,
    BK: tl.constexpr,
    WP: tl.constexpr,
    PARTS: tl.constexpr,
    READ: tl.constexpr,
    PRODUCTS: tl.constexpr,
):
    """Scaled act(z) W (A, WP), of which each of PARTS warps multiplies a part of the channels.

    Args:
        rows: pointers (A, 1) to z, where there is some.
        weight, rest: halves of W (F, W).
        w: columns (WP,).
        KIND: type of the sums.
    """
    share: tl.constexpr = (F + PARTS - 1) // PARTS
    own = (w < W)[None, None, :]
    sums = tl.zeros([PARTS, A, WP], KIND)
    begin = tl.arange(0, PARTS)[:, None] * share
    for first in range(0, share, BK):
        k = first + tl.arange(0, BK)[None, :]
        have = (k < share) & (begin + k < F)
        k += begin
        x = tl.load(rows[None, :, :] + k[:, None, :], mask=have[:, None, :], other=0.0)
        at, inside = k[:, :, None] * W + w[None, None, :], have[:, :, None] & own
        x = activation(x, READ)
        sums += product(x, weight + at, rest + at, inside, True, PRODUCTS)
    return tl.sum(sums, 0)


@kernel
def head_kernel(
    inputs,
    weight,
    rest,
    unit,
    bias,
    back,
    back_rest,
    back_unit,
    last,
    ends,
    constant,
    energies,
    atoms,
    F: tl.constexpr,
    FP: tl.constexpr,
    W: tl.constexpr,
    WP: tl.constexpr,
    A: tl.constexpr,
    BK: tl.constexpr,
    PARTS: tl.constexpr,
    READ: tl.constexpr,
    ACTIVATION: tl.constexpr,
    GATED: tl.constexpr,
    PRODUCTS: tl.constexpr,
    USE_PDL: tl.constexpr = False,
):
    """The last hidden layer, energies, and the way back, of a tile of atoms.

    Args:
        inputs: z (N, F), input of that layer before its activation; its gradient is written over
            it.
        weight, rest, unit: halves of the layer's W (F, W), back: of W^T.
        bias: (W,).
        last, ends, constant, energies: as in `energy_kernel`.
        atoms: N.
        READ, ACTIVATION: of the layer's input and of its result.
    """
    pdl_wait(USE_PDL)
    atom = (tl.program_id(0) * A + tl.arange(0, A)).to(tl.int64)[:, None]
    present = atom < atoms
    f, w = tl.arange(0, FP), tl.arange(0, WP)
    kind = inputs.dtype.element_ty
    h = _by_warps(
        inputs + tl.minimum(atom, atoms - 1) * F, weight, rest, w, kind,
        F, W, A, BK, WP, PARTS, READ, PRODUCTS,
    )  # fmt: skip
    h = h * unit + row_of(bias, w, W)
    energy, g = energies_of(h, last, ends, w, W, ACTIVATION, GATED)
    energy += tl.load(constant + atom, mask=present, other=0.0)
    tl.store(energies + atom, energy, mask=present)
    at, inside = w[:, None] * F + f[None, :], (w < W)[:, None] & (f < F)[None, :]
    g = product(g, back + at, back_rest + at, inside, True, PRODUCTS) * back_unit
    here, inside = inputs + atom * F + f[None, :], present & (f < F)[None, :]
    g *= slope(tl.load(here, mask=inside, other=0.0), READ)
    # All threads of this program must have loaded what is written over now.
    tl.debug_barrier()
    tl.store(here, g, mask=inside)


@kernel
def few_head_kernel(
    inputs,
    weight,
    rest,
    unit,
    bias,
    back,
    back_rest,
    back_unit,
    last,
    ends,
    constant,
    energies,
    F: tl.constexpr,
    FP: tl.constexpr,
    W: tl.constexpr,
    WP: tl.constexpr,
    READ: tl.constexpr,
    ACTIVATION: tl.constexpr,
    GATED: tl.constexpr,
    SPLIT: tl.constexpr,
    USE_PDL: tl.constexpr = False,
):
    """As `head_kernel`, without tensor cores, one atom a program."""
    pdl_wait(USE_PDL)
    atom = (tl.program_id(0) + tl.arange(0, 1)).to(tl.int64)[:, None]
    f, w = tl.arange(0, FP), tl.arange(0, WP)
    kind: tl.constexpr = inputs.dtype.element_ty
    here = inputs + tl.program_id(0) * F + f
    z = tl.load(here, mask=f < F, other=0.0)
    inside = (f < F)[:, None] & (w < W)[None, :]
    matrix = whole_matrix(weight, rest, f[:, None] * W + w[None, :], inside, kind, SPLIT)
    h = by_matrix(activation(z, READ), matrix)[None, :] * unit + row_of(bias, w, W)
    energy, g = energies_of(h, last, ends, w, W, ACTIVATION, GATED)
    tl.store(energies + atom, energy + tl.load(constant + atom))
    inside = (w < W)[:, None] & (f < F)[None, :]
    matrix = whole_matrix(back, back_rest, w[:, None] * F + f[None, :], inside, kind, SPLIT)
    g = by_matrix(tl.reshape(g, [WP]), matrix) * back_unit * slope(z, READ)
    # All threads of this program must have loaded what is written over now.
    tl.debug_barrier()
    tl.store(here, g, mask=f < F)


def activations_of(model: NetworkWeights) -> list[str]:
    """Activations before each layer of the head."""
    config = model.config
    first = config.activation if config.readout_activation else "none"
    hidden = "silu" if config.readout.kind == "gated" else config.activation
    return [first, *[hidden] * len(model.head.hidden)]


def read_out(bound: LaunchPlan, result: NetworkResult) -> None:
    """Energies of atoms, and their gradient by the layer norm of the last invariants."""
    model, b, s = bound.model, bound.buffers, bound.shapes
    linear, head = model.linear, model.head
    activations = activations_of(model)
    inputs = [b.linear, *b.hidden]
    fused = len(head.hidden) - 1 if _is_small(bound, head.hidden) else len(head.hidden)
    dense(bound, s.readout, b.invariants, linear, b.linear, "none")
    for number, layer in enumerate(head.hidden[:fused]):
        x, following = inputs[number], inputs[number + 1]
        dense(bound, s.readout, x, layer, following, activations[number])
    if fused < len(head.hidden):
        _end(bound, inputs[fused], head.hidden[fused], activations[fused:], result)
    else:
        _energies(bound, inputs[-1], activations[-1], result)
    for number in reversed(range(fused)):
        x, following = inputs[number], inputs[number + 1]
        dense_adjoint(bound, s.dense, following, head.hidden[number], x, activations[number])
    dense_adjoint(bound, s.dense, b.linear, linear, b.invariants, "none")


_WIDEST = 128
"""Most numbers of a row that `head_kernel` takes."""


def _is_small(bound: LaunchPlan, hidden: tuple[Dense, ...]) -> bool:
    """Whether the last hidden layer fits into `head_kernel`, of few atoms."""
    return bool(hidden) and bound.shapes.alternating and max(hidden[-1].weight.hi.shape) <= _WIDEST


def _end(
    bound: LaunchPlan,
    x: Tensor,
    layer: Dense,
    activations: list[str],
    result: NetworkResult,
) -> None:
    """Energies from the input of the last hidden layer, over which its gradient is written."""
    head, s = bound.model.head, bound.shapes.head
    inputs, outputs = x.shape[1], len(layer.bias)
    weights = (
        x,
        layer.weight.hi,
        layer.weight.lo,
        layer.weight.unit,
        layer.bias,
        layer.transposed.hi,
        layer.transposed.lo,
        layer.transposed.unit,
        head.last,
        head.ends,
        result.constant,
        result.energies,
    )
    sizes = inputs, padded(inputs), outputs, padded(outputs)
    kinds = {
        "READ": activations[0],
        "ACTIVATION": activations[1],
        "GATED": bound.model.config.readout.kind == "gated",
    }
    if s.atoms < TILE:
        few = sizes_of_few(bound, s, layer.weight)
        few_head_kernel[(bound.atoms,)](*weights, *sizes, **kinds, **few)
        return
    head_kernel[(triton.cdiv(bound.atoms, s.atoms),)](
        *weights,
        bound.atoms,
        *sizes,
        **kinds,
        PARTS=s.warps,
        **sizes_of_product(bound, s, layer.weight),
    )


def _energies(bound: LaunchPlan, x: Tensor, activation: str, result: NetworkResult) -> None:
    """Energies from the last hidden layer, over which its gradient is written."""
    head, width = bound.model.head, x.shape[1]
    together = 1 if bound.shapes.alternating else 8
    energy_kernel[(triton.cdiv(bound.atoms, together),)](
        x,
        head.last,
        head.ends,
        result.constant,
        result.energies,
        bound.atoms,
        width,
        padded(width),
        together,
        ACTIVATION=activation,
        GATED=bound.model.config.readout.kind == "gated",
        num_warps=1,
        **bound.launch,
    )
