"""Launches of a layer's network on edges, its messages, and their adjoints."""

import triton
from torch import Tensor

from mdgraph.fused.cuda.bound import Bound
from mdgraph.fused.cuda.charges import predict, predict_adjoint
from mdgraph.fused.cuda.halves import Dense
from mdgraph.fused.cuda.kernels import charged_messages, edge_network, packing
from mdgraph.fused.cuda.products import dense, dense_adjoint
from mdgraph.neighbors import NeighborList

FEW = 16
"""Edges that a program of the first layer takes."""


def pack_edges(bound: Bound, pairs: NeighborList) -> None:
    """Lines up the edges of all rows."""
    b, c, own = bound.buffers, bound.charged, bound.charged_model.own
    packing.starts_kernel[(1,)](
        b.edges, c.first, bound.atoms, own, WIDTH=4096, num_warps=8, **bound.launch
    )
    packing.numbers_kernel[(bound.atoms,)](
        b.edges, b.slot, c.number, bound.slots, WIDTH=32, num_warps=1, **bound.launch
    )
    pairs.join()
    packing.packing_kernel[(bound.atoms,)](
        b.edges,
        c.first,
        b.neighbor,
        b.slot,
        c.number,
        pairs.reverse,
        b.interval,
        b.offset,
        bound.grid,
        bound.model.embedding_table,
        c.source,
        c.target,
        c.back,
        c.interval,
        c.offset,
        c.window,
        c.window_slope,
        bound.slots,
        own,
        bound.model.functions,
        WIDTH=32,
        num_warps=1,
        **bound.launch,
    )


def weigh_edges(bound: Bound, number: int) -> None:
    """Charges that a layer takes, and a3 of every edge."""
    network, b = bound.charged_model.networks[number], bound.charged
    a1, a2, a3 = b.networks[number]
    predict(bound, number)
    dense(bound, bound.shapes.dense, b.charges[number], network.terms, b.terms, "none")
    edge_network.first_layer_kernel[(triton.cdiv(len(a1), FEW),)](
        b.count,
        b.source,
        b.target,
        b.interval,
        b.offset,
        bound.model.layer_tables[number].coefficients,
        b.terms,
        a1,
        bound.channels,
        FEW,
        bound.shapes.padded,
        num_warps=4,
        **bound.launch,
    )
    second, third = network.layers
    _dense(bound, a1, second, a2)
    _dense(bound, a2, third, a3)


def send(bound: Bound, pairs: NeighborList, number: int) -> None:
    """Messages of a layer, and the products with them."""
    b, c, s = bound.buffers, bound.charged, bound.shapes.message
    grid = (triton.cdiv(bound.atoms, s.atoms), triton.cdiv(bound.channels, s.strip))
    charged_messages.charged_message_kernel[grid](
        pairs.order,
        c.first,
        c.target,
        c.window,
        c.networks[number][2],
        b.mixed[number],
        bound.charge,
        b.messages[number],
        b.last,
        bound.atoms,
        bound.channels,
        bound.model.symmetric,
        s.atoms,
        s.step,
        s.strip,
        ACTIVATION=bound.model.config.activation,
        num_warps=s.warps,
        maxnreg=s.registers,
        **bound.launch,
    )


def send_adjoint(bound: Bound, pairs: NeighborList, number: int) -> None:
    """Gradient of messages to that of the features that they were made of."""
    b, c, s = bound.buffers, bound.charged, bound.shapes.message
    grid = (triton.cdiv(bound.atoms, s.atoms), triton.cdiv(bound.channels, s.strip))
    charged_messages.charged_message_adjoint_kernel[grid](
        pairs.order,
        c.first,
        c.target,
        c.back,
        c.window,
        c.networks[number][2],
        b.messages[number],
        b.changes[number],
        b.last,
        bound.atoms,
        bound.channels,
        s.atoms,
        s.step,
        s.strip,
        ACTIVATION=bound.model.config.activation,
        num_warps=s.warps,
        maxnreg=s.registers,
        **bound.launch,
    )


def weigh_edges_adjoint(bound: Bound, pairs: NeighborList, number: int) -> None:
    """Gradient of messages to those of distances and of what the charges were predicted from."""
    network, b, c = bound.charged_model.networks[number], bound.buffers, bound.charged
    s, own = bound.shapes.adjoint, bound.charged_model.own
    a1, a2, a3 = c.networks[number]
    grid = (triton.cdiv(bound.atoms, s.atoms), bound.strips)
    charged_messages.weights_adjoint_kernel[grid](
        pairs.order,
        c.first,
        c.target,
        c.window,
        c.window_slope,
        a3,
        b.mixed[number],
        b.messages[number],
        b.central,
        bound.slots,
        bound.atoms,
        own,
        bound.strips,
        number == bound.layers - 1,
        bound.channels,
        s.atoms,
        s.step,
        s.strip,
        ACTIVATION=bound.model.config.activation,
        num_warps=s.warps,
        **bound.launch,
    )
    second, third = network.layers
    _dense_adjoint(bound, a3, third, a2)
    _dense_adjoint(bound, a2, second, a1)
    edge_network.first_layer_adjoint_kernel[grid](
        pairs.order,
        c.first,
        c.back,
        c.interval,
        c.offset,
        bound.model.layer_tables[number].coefficients,
        a1,
        c.terms,
        b.central,
        bound.slots,
        bound.atoms,
        own,
        bound.strips,
        bound.channels,
        s.atoms,
        s.step,
        s.strip,
        num_warps=s.warps,
        **bound.launch,
    )
    dense_adjoint(bound, bound.shapes.dense, c.terms, network.terms, c.by_edges, "none")
    predict_adjoint(bound, number, c.by_edges)


def _dense(bound: Bound, x: Tensor, layer: Dense, result: Tensor) -> None:
    activation = bound.model.config.activation
    dense(bound, bound.shapes.edges, x, layer, result, activation, bound.charged.count)


def _dense_adjoint(bound: Bound, gradient: Tensor, layer: Dense, x: Tensor) -> None:
    activation = bound.model.config.activation
    dense_adjoint(bound, bound.shapes.edges, gradient, layer, x, activation, bound.charged.count)
