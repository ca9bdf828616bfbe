"""Launches of the readout, forward and backward."""

import triton

from mdgraph.fused.cuda.kernels import readout
from mdgraph.fused.cuda.model import Bound
from mdgraph.fused.cuda.products import dense_adjoint
from mdgraph.fused.cuda.workspace import TILE
from mdgraph.fused.network import NetworkResult


def read_out(bound: Bound, result: NetworkResult) -> None:
    """Energies of atoms, and the gradient of the last features."""
    weights, s, b, config = (
        bound.model.weights.readout,
        bound.shapes,
        bound.buffers,
        bound.model.config,
    )
    atoms, channels = bound.atoms, config.channels
    strip = min(32, s.padded)
    readout.invariants_kernel[(triton.cdiv(bound.atoms, TILE), triton.cdiv(channels, strip))](
        b.last,
        weights.norm.weight,
        weights.norm.bias,
        weights.linear.weight,
        weights.linear.bias,
        b.linear,
        atoms,
        channels,
        s.padded,
        TILE,
        min(32, s.padded),
        BF=strip,
        PRECISION=bound.model.precision,
    )
    gated = config.readout.kind == "gated"
    readout.energy_kernel[(triton.cdiv(bound.atoms, TILE),)](
        b.linear,
        bound.model.head.weights,
        bound.model.head.biases,
        b.scratch,
        result.constant,
        result.energies,
        atoms,
        channels,
        s.padded,
        bound.model.head.layers,
        bound.model.head.width,
        TILE,
        min(32, s.padded, bound.model.head.width),
        INPUT=config.activation if config.readout_activation else "none",
        ACTIVATION="silu" if gated else config.activation,
        GATED=gated,
        PRECISION=bound.model.precision,
        num_warps=4,
        num_stages=2,
    )
    dense_adjoint(bound, b.linear, bound.model.linear, b.invariants, b.invariants, "none")
    readout.invariants_adjoint_kernel[(atoms,)](
        b.invariants, b.last, weights.norm.weight, channels, s.padded, num_warps=1
    )
