"""Launches of the readout, forward and backward."""

from mdgraph.fused.cuda.bound import Bound
from mdgraph.fused.cuda.kernels import readout
from mdgraph.fused.cuda.products import dense, dense_adjoint, standardized, standardized_adjoint
from mdgraph.fused.cuda.shapes import padded
from mdgraph.fused.network import NetworkResult


def read_out(bound: Bound, result: NetworkResult) -> None:
    """Energies of atoms, and the gradient of the last invariants."""
    model, b, s, config = bound.model, bound.buffers, bound.shapes, bound.model.config
    linear, head = model.linear, model.head
    gated = config.readout.kind == "gated"
    first = config.activation if config.readout_activation else "none"
    activations = [first, *["silu" if gated else config.activation] * len(head.hidden)]
    inputs = [b.linear, *b.hidden]

    invariants, norm = b.invariants[-1], model.norm
    normalized = gradient = b.for_invariants[-1]
    standardized(bound, invariants, norm, normalized)
    dense(bound, s.readout, normalized, linear, b.linear, "none")
    for number, layer in enumerate(head.hidden):
        x, following = inputs[number], inputs[number + 1]
        dense(bound, s.readout, x, layer, following, activations[number])
    width = inputs[-1].shape[1]
    readout.energy_kernel[(bound.atoms,)](
        inputs[-1],
        head.last,
        head.ends,
        result.constant,
        result.energies,
        width,
        padded(width),
        ACTIVATION=activations[-1],
        GATED=gated,
        num_warps=1,
        **bound.launch,
    )
    for number in reversed(range(len(head.hidden))):
        x, following = inputs[number], inputs[number + 1]
        dense_adjoint(bound, s.dense, following, head.hidden[number], x, activations[number])
    dense_adjoint(bound, s.dense, b.linear, linear, gradient, "none")
    standardized_adjoint(bound, gradient, invariants, norm, gradient)
