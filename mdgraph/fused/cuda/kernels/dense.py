"""Kernels of dense layers on rows, such as those of atoms.

Float32 products run on tensor cores as in `products`. A program takes a tile of rows and a
strip of the result's channels; the strips of a tile follow each other, so that its rows are
read from memory once.
"""

import triton
import triton.language as tl

from mdgraph.fused.cuda.kernels.activations import activation, slope
from mdgraph.fused.cuda.kernels.tensor_cores import accumulated
from mdgraph.neighbors.succession import wait_for_previous


@triton.jit
def dense_kernel(
    inputs,
    weight,
    bias,
    result,
    atoms,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    A: tl.constexpr,
    BK: tl.constexpr,
    BF: tl.constexpr,
    ACTIVATION: tl.constexpr,
    PRECISION: tl.constexpr,
    EARLY: tl.constexpr = False,
):
    """Result = act(inputs) W + b.

    Args:
        inputs: (N, INPUTS).
        weight, bias: (INPUTS, OUTPUTS), (OUTPUTS,).
        result: (N, OUTPUTS), written.
        atoms: N.
    """
    wait_for_previous(EARLY)
    strips: tl.constexpr = (OUTPUTS + BF - 1) // BF
    tile = tl.program_id(0) // strips
    atom = (tile * A + tl.arange(0, A)).to(tl.int64)
    f = (tl.program_id(0) % strips) * BF + tl.arange(0, BF)
    present = (atom < atoms)[:, None]
    acc = tl.zeros([A, BF], result.dtype.element_ty)
    acc += tl.load(bias + f, mask=f < OUTPUTS, other=0.0)[None, :]
    for first in range(0, INPUTS, BK):
        k = first + tl.arange(0, BK)
        have = present & (k < INPUTS)[None, :]
        left = tl.load(inputs + atom[:, None] * INPUTS + k[None, :], mask=have, other=0.0)
        left = activation(left, ACTIVATION)
        inside = (k < INPUTS)[:, None] & (f < OUTPUTS)[None, :]
        right = tl.load(weight + k[:, None] * OUTPUTS + f[None, :], mask=inside, other=0.0)
        acc = accumulated(left, right, acc, PRECISION)
    place = atom[:, None] * OUTPUTS + f[None, :]
    tl.store(result + place, acc, mask=present & (f < OUTPUTS)[None, :])


@triton.jit
def dense_adjoint_kernel(
    gradient,
    weight,
    inputs,
    result,
    atoms,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    A: tl.constexpr,
    BK: tl.constexpr,
    BF: tl.constexpr,
    ACTIVATION: tl.constexpr,
    PRECISION: tl.constexpr,
    EARLY: tl.constexpr = False,
):
    """From the gradient of `dense_kernel`'s result to that of its inputs: act'(inputs) g W^T.

    Args:
        gradient: (N, OUTPUTS).
        weight: (OUTPUTS, INPUTS), transposed.
        inputs: (N, INPUTS), not read without an activation.
        result: (N, INPUTS), written; may be the inputs.
        atoms: N.
    """
    wait_for_previous(EARLY)
    strips: tl.constexpr = (INPUTS + BF - 1) // BF
    tile = tl.program_id(0) // strips
    atom = (tile * A + tl.arange(0, A)).to(tl.int64)
    f = (tl.program_id(0) % strips) * BF + tl.arange(0, BF)
    present = (atom < atoms)[:, None]
    acc = tl.zeros([A, BF], result.dtype.element_ty)
    for first in range(0, OUTPUTS, BK):
        k = first + tl.arange(0, BK)
        have = present & (k < OUTPUTS)[None, :]
        left = tl.load(gradient + atom[:, None] * OUTPUTS + k[None, :], mask=have, other=0.0)
        inside = (k < OUTPUTS)[:, None] & (f < INPUTS)[None, :]
        right = tl.load(weight + k[:, None] * INPUTS + f[None, :], mask=inside, other=0.0)
        acc = accumulated(left, right, acc, PRECISION)
    inside = present & (f < INPUTS)[None, :]
    place = atom[:, None] * INPUTS + f[None, :]
    if ACTIVATION != "none":
        acc *= slope(tl.load(inputs + place, mask=inside, other=0.0), ACTIVATION)
    # All threads of this program must have loaded what may be written over now.
    tl.debug_barrier()
    tl.store(result + place, acc, mask=inside)
