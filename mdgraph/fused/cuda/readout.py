"""The readout on CUDA: energies of atoms, and the start of the backward pass.

z0 = LN(t) W0 + b0;  then a perceptron, or the product of one with the sigmoid of another. The
gradient of the energy starts here, with 1 an atom.
"""

import triton.language as tl

from mdgraph.fused.backend import NetworkResult
from mdgraph.fused.cuda.device import activation, sigmoid, slope
from mdgraph.fused.cuda.products import dense, dense_adjoint, standardized, standardized_adjoint
from mdgraph.fused.cuda.weights import NetworkWeights
from mdgraph.fused.cuda.workspace import LaunchPlan, padded
from mdgraph.gpu.triton_jit import kernel, pdl_wait


@kernel
def energy_kernel(
    inputs,
    last,
    ends,
    constant,
    energies,
    W: tl.constexpr,
    WP: tl.constexpr,
    ACTIVATION: tl.constexpr,
    GATED: tl.constexpr,
    USE_PDL: tl.constexpr = False,
):
    """Energy of an atom from the last hidden layer, and its gradient; one atom a program.

    Args:
        inputs: z (N, W), before its activation; its gradient is written over it.
        last: (2, W), weights of the value and of the gate.
        ends: (2,), their biases.
        constant: (N,) float64, added.
        energies: (N,) float64, written.
    """
    pdl_wait(USE_PDL)
    atom = tl.program_id(0).to(tl.int64)
    w = tl.arange(0, WP)
    have = w < W
    z = tl.load(inputs + atom * W + w, mask=have, other=0.0)
    x = tl.where(have, activation(z, ACTIVATION), 0.0)
    row = tl.load(last + w, mask=have, other=0.0)
    value = tl.sum(x * row, 0) + tl.load(ends)
    energy = value.to(tl.float64)
    if GATED:
        other = tl.load(last + W + w, mask=have, other=0.0)
        gate = sigmoid(tl.sum(x * other, 0) + tl.load(ends + 1))
        energy *= gate
        row = gate * row + value * gate * (1.0 - gate) * other
    tl.store(energies + atom, energy + tl.load(constant + atom))
    g = row * slope(z, ACTIVATION)
    # All threads of this program must have loaded what is written over now.
    tl.debug_barrier()
    tl.store(inputs + atom * W + w, g, mask=have)


def activations_of(model: NetworkWeights) -> list[str]:
    """Activations before each layer of the head."""
    config = model.config
    first = config.activation if config.readout_activation else "none"
    hidden = "silu" if config.readout.kind == "gated" else config.activation
    return [first, *[hidden] * len(model.head.hidden)]


def read_out(bound: LaunchPlan, result: NetworkResult) -> None:
    """Energies of atoms, and their gradient by the invariants of the last stage."""
    model, b, s = bound.model, bound.buffers, bound.shapes
    linear, head = model.linear, model.head
    activations = activations_of(model)
    inputs = [b.linear, *b.hidden]

    invariants, norm = b.invariants[-1], model.norm
    normalized = gradient = b.for_invariants[-1]
    standardized(bound, invariants, norm, normalized)
    dense(bound, s.readout, normalized, linear, b.linear, "none")
    for number, layer in enumerate(head.hidden):
        x, following = inputs[number], inputs[number + 1]
        dense(bound, s.readout, x, layer, following, activations[number])
    width = inputs[-1].shape[1]
    energy_kernel[(bound.atoms,)](
        inputs[-1],
        head.last,
        head.ends,
        result.constant,
        result.energies,
        width,
        padded(width),
        ACTIVATION=activations[-1],
        GATED=model.config.readout.kind == "gated",
        num_warps=1,
        **bound.launch,
    )
    for number in reversed(range(len(head.hidden))):
        x, following = inputs[number], inputs[number + 1]
        dense_adjoint(bound, s.dense, following, head.hidden[number], x, activations[number])
    dense_adjoint(bound, s.dense, b.linear, linear, gradient, "none")
    standardized_adjoint(bound, gradient, invariants, norm, gradient)
