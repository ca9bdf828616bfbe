"""Launches of dense layers on edges."""

from typing import Any

import triton
from torch import Tensor

from mdgraph.fused.cuda.charged_model import EdgeLayer
from mdgraph.fused.cuda.kernels import edge_products
from mdgraph.fused.cuda.model import Bound
from mdgraph.fused.cuda.shapes import Blocks


def edge_dense(bound: Bound, x: Tensor, layer: EdgeLayer, result: Tensor) -> None:
    """A layer after the activation of its input (P, inputs)."""
    s, inputs, outputs = bound.shapes.edges, x.shape[1], result.shape[1]
    edge_products.edge_dense_kernel[
        (triton.cdiv(len(x), s.atoms) * triton.cdiv(outputs, s.strip),)
    ](
        bound.charged.count,
        x,
        layer.weight.whole,
        layer.weight.rest,
        layer.bias,
        result,
        layer.weight.unit,
        inputs,
        outputs,
        **_sizes(bound, s),
    )


def edge_dense_adjoint(bound: Bound, gradient: Tensor, layer: EdgeLayer, x: Tensor) -> None:
    """Gradient of such a layer's input, before its activation; written over the input."""
    s, inputs, outputs = bound.shapes.edges, x.shape[1], gradient.shape[1]
    grid = (triton.cdiv(len(x), s.atoms) * triton.cdiv(inputs, s.strip),)
    edge_products.edge_dense_adjoint_kernel[grid](
        bound.charged.count,
        gradient,
        layer.transposed.whole,
        layer.transposed.rest,
        x,
        layer.transposed.unit,
        inputs,
        outputs,
        **_sizes(bound, s),
    )


def _sizes(bound: Bound, s: Blocks) -> dict[str, Any]:
    """What both launches take."""
    return {
        "A": s.atoms,
        "BK": s.step,
        "BF": s.strip,
        "ACTIVATION": bound.model.config.activation,
        "PRODUCTS": bound.model.halves,
        "num_warps": s.warps,
        "num_stages": s.stages,
        **bound.launch,
    }
