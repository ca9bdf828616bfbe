"""Launches of the prediction of charges and its adjoint."""

from typing import Any

import triton
from torch import Tensor

from mdgraph.fused.cuda.bound import Bound
from mdgraph.fused.cuda.kernels import charges
from mdgraph.fused.cuda.products import dense, dense_adjoint, standardized, standardized_adjoint

TILE = 8192
"""Numbers that a program which sums over a system takes at a time."""


def predict(bound: Bound, stage: int) -> None:
    """Charges of a stage from its invariants."""
    model, b, state = bound.charged_model, bound.charged, bound.state
    activation = bound.model.config.activation
    norm, (first, second, third) = model.predictions[stage].norm, model.predictions[stage].layers
    z1, z2, predicted = b.hidden[stage]
    # Charges enter a sum over all pairs, so they are made as energies are.
    s = bound.shapes.readout
    standardized(bound, b.invariants[stage], norm, b.for_invariants)
    dense(bound, s, b.for_invariants, first, z1, "none")
    dense(bound, s, z1, second, z2, activation)
    dense(bound, s, z2, third, predicted, activation)
    group = state.grouping
    charges.equilibration_kernel[(group.systems,)](
        predicted,
        state.charge,
        group.start,
        group.counts,
        b.factors[stage],
        b.charges[stage],
        **_sizes(bound),
    )


def predict_adjoint(bound: Bound, stage: int, by_edges: Tensor | None) -> None:
    """Gradient of a stage's charges, of which a layer may give a part, to its invariants'."""
    model, b, s = bound.charged_model, bound.charged, bound.shapes.dense
    activation = bound.model.config.activation
    norm, (first, second, third) = model.predictions[stage].norm, model.predictions[stage].layers
    z1, z2, predicted = b.hidden[stage]
    group = bound.state.grouping
    charges.equilibration_adjoint_kernel[(group.systems,)](
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


def _sizes(bound: Bound) -> dict[str, Any]:
    channels = bound.charged_model.channels
    padded = triton.next_power_of_2(channels)
    width = min(TILE // padded, triton.next_power_of_2(bound.state.grouping.largest))
    return {
        "C": channels,
        "CP": padded,
        "WIDTH": width,
        "num_warps": max(1, min(16, width * padded // 256)),
        **bound.launch,
    }
