"""Launches of the embedding and its adjoint."""

import triton

from mdgraph.fused.cuda.bound import Bound
from mdgraph.fused.cuda.edges import sum_moments
from mdgraph.fused.cuda.elementwise import elementwise, sizes
from mdgraph.fused.cuda.kernels import embedding
from mdgraph.fused.cuda.products import (
    contract,
    contract_adjoint,
    dense,
    dense_adjoint,
    mix,
    standardized_adjoint,
)
from mdgraph.neighbors import NeighborList


def embed(bound: Bound, pairs: NeighborList) -> None:
    """Features of every atom from moments."""
    weights, s, b = bound.model.embedding, bound.shapes, bound.buffers
    atoms, channels = bound.atoms, bound.channels
    sum_moments(bound, pairs)
    contract(bound)
    first, second = bound.model.gate
    grid = (triton.cdiv(atoms, s.gate.atoms), triton.cdiv(2 * channels, s.gate.strip))
    with bound.model.branch.fork():
        embedding.gate_kernel[grid](
            b.embedded,
            weights.norm.weight,
            weights.norm.bias,
            first.weight.whole,
            first.weight.rest,
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
        dense(bound, s.dense, b.gate1, second, b.gate2, bound.model.config.activation)
    mix(bound, b.embedded, bound.model.mixing.weights, b.ungated)
    bound.model.branch.join()
    embedding.gated_kernel[elementwise(bound)](
        b.ungated,
        b.gate2,
        b.inputs[0] if bound.layers else b.work,
        b.invariants[0],
        bound.charged_invariants(0),
        atoms,
        bound.layers > 0,
        b.counts(0),
        bound.predicts(0),
        **sizes(bound),
        ACTIVATION=bound.model.config.activation,
    )


def embed_adjoint(bound: Bound) -> None:
    """Gradient of the features to that of the moments."""
    weights, s, b = bound.model.embedding, bound.shapes, bound.buffers
    atoms, layers = bound.atoms, bound.layers > 0
    embedding.gated_adjoint_kernel[elementwise(bound)](
        b.changes[0] if layers else b.work,
        b.work,
        b.for_invariants[0],
        bound.for_charged_invariants,
        b.ungated,
        b.gate2,
        atoms,
        layers,
        b.counts(0),
        bound.predicts(0),
        **sizes(bound),
        ACTIVATION=bound.model.config.activation,
    )
    first, second = bound.model.gate
    with bound.model.branch.fork():
        dense_adjoint(bound, s.dense, b.gate2, second, b.gate1, bound.model.config.activation)
        dense_adjoint(bound, s.dense, b.gate1, first, b.for_norm, "none")
        standardized_adjoint(bound, b.for_norm, b.squares, weights.norm, b.squares)
    mix(bound, b.ungated, bound.model.mixing.transposed, b.last)
    bound.model.branch.join()
    contract_adjoint(bound)
