"""Launches of matrix products."""

from typing import Any

import torch
import triton
from torch import Tensor

from mdgraph.fused.cuda.bound import Bound
from mdgraph.fused.cuda.halves import Dense, Halves
from mdgraph.fused.cuda.kernels import dense as dense_layers
from mdgraph.fused.cuda.kernels import normalization, products
from mdgraph.fused.cuda.shapes import Blocks, padded
from mdgraph.fused.weights import Linear


def mix(bound: Bound, x: Tensor, weights: Halves, result: Tensor) -> None:
    """Mixes channels of X (N, 9, F) part by part."""
    s, channels = bound.shapes.mixing, bound.channels
    grid = (triton.cdiv(len(x), s.atoms), 9 * triton.cdiv(channels, s.strip))
    products.mixing_kernel[grid](
        x,
        weights.whole,
        weights.rest,
        weights.unit,
        result,
        len(x),
        channels,
        **_sizes(bound, s, weights),
    )


def dense(
    bound: Bound,
    s: Blocks,
    x: Tensor,
    layer: Dense,
    result: Tensor,
    activation: str,
    count: Tensor | None = None,
) -> None:
    """A linear layer after the activation of its input, for all rows or as many as counted."""
    inputs, outputs = x.shape[1], result.shape[1]
    dense_layers.dense_kernel[(triton.cdiv(len(x), s.atoms) * triton.cdiv(outputs, s.strip),)](
        len(x) if count is None else count,
        x,
        layer.weight.whole,
        layer.weight.rest,
        layer.weight.unit,
        layer.bias,
        result,
        count is not None,
        inputs,
        outputs,
        ACTIVATION=activation,
        **_sizes(bound, s, layer.weight),
    )


def dense_adjoint(
    bound: Bound,
    s: Blocks,
    gradient: Tensor,
    layer: Dense,
    x: Tensor,
    activation: str,
    count: Tensor | None = None,
) -> None:
    """Gradient of such a layer's input, before its activation; written over the input."""
    inputs, outputs = x.shape[1], gradient.shape[1]
    dense_layers.dense_adjoint_kernel[
        (triton.cdiv(len(x), s.atoms) * triton.cdiv(inputs, s.strip),)
    ](
        len(x) if count is None else count,
        gradient,
        layer.transposed.whole,
        layer.transposed.rest,
        layer.transposed.unit,
        x,
        count is not None,
        inputs,
        outputs,
        ACTIVATION=activation,
        **_sizes(bound, s, layer.transposed),
    )


def standardized(bound: Bound, x: Tensor, norm: Linear, result: Tensor) -> None:
    """Layer normalisation of rows."""
    inputs = x.shape[1]
    normalization.standardized_kernel[(len(x),)](
        x, norm.weight, norm.bias, result, inputs, padded(inputs), num_warps=1, **bound.launch
    )


def standardized_adjoint(
    bound: Bound, gradient: Tensor, x: Tensor, norm: Linear, result: Tensor, added: bool = False
) -> None:
    """Gradient of rows from that of their layer normalisation."""
    inputs = x.shape[1]
    normalization.standardized_adjoint_kernel[(len(x),)](
        gradient,
        x,
        norm.weight,
        result,
        inputs,
        padded(inputs),
        added,
        num_warps=1,
        **bound.launch,
    )


def contract(bound: Bound) -> None:
    """Moments to features."""
    s, b, channels = bound.shapes.contraction, bound.buffers, bound.channels
    products.contraction_kernel[(len(bound.tiles.elements), 9 * triton.cdiv(channels, s.strip))](
        bound.tiles.members,
        bound.tiles.elements,
        b.moments,
        bound.contraction.whole,
        bound.contraction.rest,
        bound.contraction.unit,
        bound.own,
        b.embedded,
        bound.elements * bound.model.functions,
        channels,
        **_sizes(bound, s, bound.contraction),
    )


def contract_adjoint(bound: Bound) -> None:
    """Gradient of features to that of moments."""
    s, b, channels = bound.shapes.contraction, bound.buffers, bound.channels
    wanted = bound.elements * bound.model.functions
    products.contraction_adjoint_kernel[
        (len(bound.tiles.elements), 9 * triton.cdiv(wanted, s.strip))
    ](
        bound.tiles.members,
        bound.tiles.elements,
        b.last,
        b.embedded,
        b.squares,
        bound.contraction_transposed.whole,
        bound.contraction_transposed.rest,
        bound.contraction_transposed.unit,
        b.moments,
        wanted,
        channels,
        **_sizes(bound, s, bound.contraction_transposed),
    )


def _sizes(bound: Bound, s: Blocks, weights: Halves) -> dict[str, Any]:
    """What every launch of a product takes."""
    split = weights.whole.dtype == torch.float16
    return {
        "A": s.atoms,
        "BK": s.step,
        "BF": s.strip,
        "PRODUCTS": bound.model.products if split else 0,
        "num_warps": s.warps,
        "num_stages": s.stages,
        **bound.launch,
    }
