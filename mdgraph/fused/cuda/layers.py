"""Launches of an interaction layer and its adjoint."""

import triton

from mdgraph.fused.cuda.bound import Bound
from mdgraph.fused.cuda.edge_network import (
    send,
    send_adjoint,
    weigh_edges,
    weigh_edges_adjoint,
)
from mdgraph.fused.cuda.elementwise import elementwise, sizes
from mdgraph.fused.cuda.kernels import interaction, messages
from mdgraph.fused.cuda.products import mix
from mdgraph.fused.cuda.shapes import Blocks
from mdgraph.neighbors import NeighborList


def interact(bound: Bound, pairs: NeighborList, number: int) -> None:
    """One layer."""
    before, after = bound.model.layers[number]
    b, last = bound.buffers, bound.layers - 1
    mixed = (b.inputs[number], before.weights, b.mixed[number])
    if bound.model.charged is None:
        mix(bound, *mixed)
        _send(bound, pairs, number)
    else:
        with bound.model.branch.fork():
            weigh_edges(bound, number)
        mix(bound, *mixed)
        bound.model.branch.join()
        send(bound, pairs, number)
    mix(bound, b.last, after.weights, b.changes[number])
    interaction.update_kernel[elementwise(bound)](
        b.inputs[number],
        b.changes[number],
        bound.charge,
        b.inputs[min(number + 1, last)],
        b.invariants[number + 1],
        bound.charged_invariants(number + 1),
        bound.atoms,
        number < last,
        b.counts(number + 1),
        bound.predicts(number + 1),
        **sizes(bound),
    )


def interact_adjoint(bound: Bound, pairs: NeighborList, number: int) -> None:
    """Gradient of a layer's result to that of what it took."""
    b, last = bound.buffers, bound.layers - 1
    before, after = bound.model.layers[number]
    interaction.update_adjoint_kernel[elementwise(bound)](
        b.changes[min(number + 1, last)],
        b.work,
        b.for_invariants[number + 1],
        bound.for_charged_invariants,
        b.inputs[number],
        b.changes[number],
        bound.charge,
        bound.atoms,
        number < last,
        b.counts(number + 1),
        bound.predicts(number + 1),
        **sizes(bound),
    )
    mix(bound, b.changes[number], after.transposed, b.last)
    interaction.product_adjoint_kernel[elementwise(bound)](
        b.last,
        b.mixed[number],
        b.messages[number],
        bound.charge,
        b.changes[number],
        b.for_messages[number],
        bound.atoms,
        **sizes(bound),
        SYMMETRIC=bound.model.symmetric,
    )
    if bound.model.charged is None:
        _send_adjoint(bound, pairs, number)
        mix(bound, b.last, before.transposed, b.changes[number])
        return
    send_adjoint(bound, pairs, number)
    with bound.model.branch.fork():
        weigh_edges_adjoint(bound, pairs, number)
    mix(bound, b.last, before.transposed, b.changes[number])
    bound.model.branch.join()


def _send(bound: Bound, pairs: NeighborList, number: int) -> None:
    """Messages whose weights come from the layer's table, and the products with them."""
    s, b = bound.shapes, bound.buffers
    table = bound.model.layer_tables[number]
    messages.message_kernel[_grid(bound, s.message)](
        pairs.order,
        b.edges,
        b.neighbor,
        b.interval,
        b.offset,
        table.coefficients,
        table.stretch,
        table.unit,
        bound.model.own[number],
        b.mixed[number],
        bound.charge,
        b.messages[number],
        b.last,
        bound.slots,
        bound.atoms,
        bound.channels,
        bound.model.symmetric,
        table.terms,
        s.message.atoms,
        s.message.step,
        s.message.strip,
        s.alternating,
        num_warps=s.message.warps,
        maxnreg=s.message.registers,
        **bound.launch,
    )


def _send_adjoint(bound: Bound, pairs: NeighborList, number: int) -> None:
    """Gradient of messages to those of features and of distances."""
    s, b = bound.shapes, bound.buffers
    table = bound.model.layer_tables[number]
    messages.message_adjoint_kernel[_grid(bound, s.adjoint)](
        pairs.order,
        b.edges,
        b.neighbor,
        b.interval,
        b.offset,
        table.coefficients,
        table.stretch,
        table.unit,
        bound.model.own[number],
        b.mixed[number],
        b.for_messages[number],
        b.changes[number],
        b.last,
        b.central,
        bound.slots,
        bound.atoms,
        bound.strips,
        number == bound.layers - 1,
        bound.channels,
        table.terms,
        s.adjoint.atoms,
        s.adjoint.step,
        s.adjoint.strip,
        s.alternating,
        num_warps=s.adjoint.warps,
        maxnreg=s.adjoint.registers,
        **bound.launch,
    )


def _grid(bound: Bound, blocks: Blocks) -> tuple[int, int]:
    groups = triton.cdiv(bound.atoms, blocks.atoms)
    strips = triton.cdiv(bound.channels, blocks.strip)
    return (strips, groups) if bound.shapes.alternating else (groups, strips)
