"""Layer normalisation on CUDA, of the invariants of features and of single rows, with its adjoints.

The energy and the charges of TensorNet2 take the layer norm of invariants alone, so kernels that
make features write it, and those that go back make the invariants again.
"""

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from mdgraph.fused.cuda.workspace import LaunchPlan, padded
from mdgraph.fused.weights import Linear
from mdgraph.gpu.triton_jit import kernel, pdl_wait
from mdgraph.models.kernels.algebra import add, invariants, invariants_adjoint

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators


_EPSILON = tl.constexpr(1e-5)


@triton.jit
def row_sums(x):
    """Sums of the rows of (A, F) as (A, 1)."""
    return tl.sum(x, 1)[:, None]


@triton.jit
def standardized_values(x, inside, number: tl.constexpr):
    """(x - mean) / deviation of each row (A, F), and 1 / deviation (A, 1).

    Args:
        x: zero outside.
        inside: which of its columns count.
        number: how many do.
    """
    mean = row_sums(x) / number
    centred = tl.where(inside, x - mean, 0.0)
    variance = row_sums(centred * centred) / number
    inverse = 1.0 / tl.sqrt(variance + _EPSILON)
    return centred * inverse, inverse


@triton.jit
def standardized_values_adjoint(gradient, x, inverse, inside, number: tl.constexpr):
    """From the gradient of the standardized x (zero outside) to that of what it was made of."""
    mean = row_sums(gradient) / number
    along = row_sums(gradient * x) / number
    return tl.where(inside, inverse * (gradient - mean - x * along), 0.0)


@triton.jit
def row_of(pointer, f, F: tl.constexpr):
    """F numbers as a row."""
    return tl.load(pointer + f, mask=f < F, other=0.0)[None, :]


@triton.jit
def rows_of_parts(pointer, f, F: tl.constexpr):
    """3F numbers as three rows."""
    return row_of(pointer, f, F), row_of(pointer + F, f, F), row_of(pointer + 2 * F, f, F)


@triton.jit
def _sums(x, y):
    """Sums of x y over the 3F columns of three tiles each."""
    return row_sums(x[0] * y[0] + x[1] * y[1] + x[2] * y[2])


@triton.jit
def standardized_parts(x, within, F: tl.constexpr):
    """`standardized_values` of rows of 3F numbers."""
    mean = row_sums(x[0] + x[1] + x[2]) / (3 * F)
    i = tl.where(within, x[0] - mean, 0.0)
    j = tl.where(within, x[1] - mean, 0.0)
    k = tl.where(within, x[2] - mean, 0.0)
    inverse = 1.0 / tl.sqrt(_sums((i, j, k), (i, j, k)) / (3 * F) + _EPSILON)
    return (i * inverse, j * inverse, k * inverse), inverse


@triton.jit
def standardized_parts_adjoint(g, x, inverse, within, F: tl.constexpr):
    """`standardized_values_adjoint` of rows of 3F numbers."""
    mean = row_sums(g[0] + g[1] + g[2]) / (3 * F)
    along = _sums(g, x) / (3 * F)
    return (
        tl.where(within, inverse * (g[0] - mean - x[0] * along), 0.0),
        tl.where(within, inverse * (g[1] - mean - x[1] * along), 0.0),
        tl.where(within, inverse * (g[2] - mean - x[2] * along), 0.0),
    )


@triton.jit
def _parts_of(pointer, f, F: tl.constexpr, inside):
    """3F numbers of some rows or of one as three tiles."""
    return (
        tl.load(pointer + f, mask=inside, other=0.0),
        tl.load(pointer + F + f, mask=inside, other=0.0),
        tl.load(pointer + 2 * F + f, mask=inside, other=0.0),
    )


@triton.jit
def store_invariants(
    result, gains, shifts, atom, f, x, inside, SIGNED: tl.constexpr, F: tl.constexpr
):
    """Writes the layer norm of the invariants of features.

    Args:
        result: (N, 3F), written.
        gains, shifts: (3F,), weight and bias of the normalisation.
        atom, f: (A, 1) and (1, B), atoms and all channels.
        x: features, nine tiles (A, B).
        inside: (A, B), where they are.
    """
    within = f < F
    values, _ = standardized_parts(invariants(x, SIGNED), within, F)
    gain, shift = _parts_of(gains, f, F, within), _parts_of(shifts, f, F, within)
    for part in tl.static_range(3):
        place = result + atom * (3 * F) + part * F + f
        tl.store(place, values[part] * gain[part] + shift[part], mask=inside)


@triton.jit
def add_invariants_adjoint(
    gradient, for_result, gains, atom, f, x, inside, SIGNED: tl.constexpr, F: tl.constexpr
):
    """Adds to the gradient of x what comes through `store_invariants`, by `for_result` (N, 3F)."""
    within = f < F
    values, inverse = standardized_parts(invariants(x, SIGNED), within, F)
    g = _parts_of(for_result + atom * (3 * F), f, F, inside)
    gain = _parts_of(gains, f, F, within)
    g = (g[0] * gain[0], g[1] * gain[1], g[2] * gain[2])
    g = standardized_parts_adjoint(g, values, inverse, within, F)
    return add(gradient, invariants_adjoint(g, x, SIGNED))


@kernel
def standardized_adjoint_kernel(
    gradient,
    rows,
    norm,
    result,
    INPUTS: tl.constexpr,
    PADDED: tl.constexpr,
    USE_PDL: tl.constexpr = False,
):
    """From the gradient of the layer normalisation of rows to that of these, one row a program.

    Args:
        gradient: (N, INPUTS).
        rows: (N, INPUTS).
        norm: (INPUTS,), weight of the normalisation.
        result: (N, INPUTS), written; may be `gradient` or `rows`.
    """
    pdl_wait(USE_PDL)
    row = (tl.program_id(0) + tl.arange(0, 1)).to(tl.int64)[:, None] * INPUTS
    k = tl.arange(0, PADDED)[None, :]
    have = k < INPUTS
    g = tl.load(gradient + row + k, mask=have, other=0.0)
    g *= tl.load(norm + k, mask=have, other=0.0)
    x, inverse = standardized_values(tl.load(rows + row + k, mask=have, other=0.0), have, INPUTS)
    g = standardized_values_adjoint(g, x, inverse, have, INPUTS)
    # All threads of this program must have loaded what is written over now.
    tl.debug_barrier()
    tl.store(result + row + k, g, mask=have)


def standardized_adjoint(
    bound: LaunchPlan,
    gradient: Tensor,
    x: Tensor,
    norm: Linear,
    result: Tensor,
) -> None:
    """Gradient by rows from that by their layer normalisation."""
    inputs = x.shape[1]
    standardized_adjoint_kernel[(len(x),)](
        gradient,
        x,
        norm.weight,
        result,
        inputs,
        padded(inputs),
        num_warps=1,
        **bound.launch,
    )


def invariants_of(bound: LaunchPlan, stage: int) -> tuple[Any, ...]:
    """Arguments for the invariants of a stage that energies and charges take, and whether.

    These are their buffers and the weights of their layer norms.
    """
    norm, other, predicts = bound.model.norm, bound.model.norm, bound.predicts(stage)
    if predicts:
        other = bound.tensornet2_model.predictions[stage].norm
    buffers = bound.buffers.invariants, bound.charged_invariants
    weights = norm.weight, norm.bias, other.weight, other.bias
    return *buffers, *weights, bound.buffers.counts(stage), predicts
