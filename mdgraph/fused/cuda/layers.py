"""Launches of an interaction layer and its adjoint."""

import triton

from mdgraph.fused.cuda.elementwise import elementwise, sizes
from mdgraph.fused.cuda.kernels import interaction, messages
from mdgraph.fused.cuda.model import Bound
from mdgraph.fused.cuda.products import mix
from mdgraph.neighbors import NeighborList


def interact(bound: Bound, pairs: NeighborList, number: int) -> None:
    """One layer."""
    weights, s, b = bound.model.weights.layers[number], bound.shapes, bound.buffers
    last = bound.layers - 1
    mix(bound, b.inputs[number], weights.before, b.mixed[number])
    messages.message_kernel[(triton.cdiv(bound.atoms, s.message.atoms), bound.strips)](
        pairs.order,
        b.edges,
        b.neighbor,
        b.interval,
        b.offset,
        bound.model.layer_tables[number],
        weights.own,
        b.mixed[number],
        bound.charge,
        b.messages[number],
        b.last,
        bound.slots,
        bound.atoms,
        bound.channels,
        bound.model.symmetric,
        s.message.atoms,
        s.message.step,
        s.message.strip,
        num_warps=s.message.warps,
        maxnreg=s.message.registers,
        **bound.launch,
    )
    mix(bound, b.last, weights.after, b.changes[number])
    interaction.update_kernel[elementwise(bound)](
        b.inputs[number],
        b.changes[number],
        bound.charge,
        b.inputs[number + 1] if number < last else b.last,
        bound.atoms,
        number < last,
        **sizes(bound),
    )


def interact_adjoint(bound: Bound, pairs: NeighborList, number: int) -> None:
    """Gradient of a layer's result to that of what it took."""
    weights, s, b = bound.model.weights.layers[number], bound.shapes, bound.buffers
    last = bound.layers - 1
    before, after = bound.model.before[number], bound.model.after[number]
    interaction.update_adjoint_kernel[elementwise(bound)](
        b.changes[min(number + 1, last)],
        b.last,
        b.inputs[number],
        b.changes[number],
        bound.charge,
        bound.atoms,
        number < last,
        **sizes(bound),
    )
    mix(bound, b.changes[number], after, b.work)
    interaction.product_adjoint_kernel[elementwise(bound)](
        b.work,
        b.mixed[number],
        b.messages[number],
        bound.charge,
        b.changes[number],
        bound.atoms,
        **sizes(bound),
        SYMMETRIC=bound.model.symmetric,
    )
    messages.message_adjoint_kernel[(triton.cdiv(bound.atoms, s.adjoint.atoms), bound.strips)](
        pairs.order,
        b.edges,
        b.neighbor,
        b.interval,
        b.offset,
        bound.model.layer_tables[number],
        weights.own,
        b.mixed[number],
        b.messages[number],
        b.changes[number],
        b.work,
        b.central,
        bound.slots,
        bound.atoms,
        bound.strips,
        number == last,
        bound.channels,
        s.adjoint.atoms,
        s.adjoint.step,
        s.adjoint.strip,
        num_warps=s.adjoint.warps,
        maxnreg=s.adjoint.registers,
        **bound.launch,
    )
    mix(bound, b.work, before, b.changes[number])
