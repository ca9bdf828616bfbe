"""Launches of the readout, forward and backward."""

from mdgraph.fused.cuda.kernels import readout
from mdgraph.fused.cuda.model import Bound
from mdgraph.fused.cuda.products import dense, dense_adjoint
from mdgraph.fused.cuda.shapes import padded
from mdgraph.fused.network import NetworkResult


def read_out(bound: Bound, result: NetworkResult) -> None:
    """Energies of atoms, and the gradient of the last features."""
    model, b, config = bound.model, bound.buffers, bound.model.config
    norm, linear, head = model.weights.readout.norm, model.weights.readout.linear, model.head
    whole = bound.shapes.padded
    gated = config.readout.kind == "gated"
    first = config.activation if config.readout_activation else "none"
    activations = [first, *["silu" if gated else config.activation] * len(head.hidden)]
    inputs = [b.linear, *b.hidden]

    readout.invariants_kernel[(bound.atoms,)](
        b.last,
        norm.weight,
        norm.bias,
        b.invariants,
        bound.channels,
        whole,
        num_warps=1,
        **bound.launch,
    )
    dense(bound, bound.shapes.readout, b.invariants, linear, b.linear, "none")
    for number, layer in enumerate(head.hidden):
        dense(
            bound,
            bound.shapes.readout,
            inputs[number],
            layer,
            inputs[number + 1],
            activations[number],
        )
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
        x, gradient = inputs[number], inputs[number + 1]
        weight, activation = head.transposed[number], activations[number]
        dense_adjoint(bound, bound.shapes.dense, gradient, weight, x, x, activation)
    dense_adjoint(
        bound, bound.shapes.dense, b.linear, model.linear, b.invariants, b.invariants, "none"
    )
    readout.invariants_adjoint_kernel[(bound.atoms,)](
        b.invariants, b.last, norm.weight, bound.channels, whole, num_warps=1, **bound.launch
    )
