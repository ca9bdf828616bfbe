"""Layer normalisation of rows, and its adjoint."""

import triton
import triton.language as tl

from mdgraph.neighbors.compilation import kernel
from mdgraph.neighbors.succession import wait_for_previous

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


@kernel
def standardized_kernel(
    rows,
    norm,
    shift,
    result,
    INPUTS: tl.constexpr,
    PADDED: tl.constexpr,
    EARLY: tl.constexpr = False,
):
    """Layer normalisation, one row a program.

    Args:
        rows: (N, INPUTS).
        norm, shift: (INPUTS,), weight and bias of the normalisation.
        result: (N, INPUTS), written.
    """
    wait_for_previous(EARLY)
    row = (tl.program_id(0) + tl.arange(0, 1)).to(tl.int64)[:, None] * INPUTS
    k = tl.arange(0, PADDED)[None, :]
    have = k < INPUTS
    x, _ = standardized_values(tl.load(rows + row + k, mask=have, other=0.0), have, INPUTS)
    x *= tl.load(norm + k, mask=have, other=0.0)
    tl.store(result + row + k, x + tl.load(shift + k, mask=have, other=0.0), mask=have)


@kernel
def standardized_adjoint_kernel(
    gradient,
    rows,
    norm,
    result,
    INPUTS: tl.constexpr,
    PADDED: tl.constexpr,
    ADDED: tl.constexpr,
    EARLY: tl.constexpr = False,
):
    """From the gradient of `standardized_kernel`'s result to that of its rows.

    Args:
        gradient: (N, INPUTS).
        rows, norm: as there.
        result: (N, INPUTS), written, or added to where ADDED; may be `gradient` or `rows`.
    """
    wait_for_previous(EARLY)
    row = (tl.program_id(0) + tl.arange(0, 1)).to(tl.int64)[:, None] * INPUTS
    k = tl.arange(0, PADDED)[None, :]
    have = k < INPUTS
    g = tl.load(gradient + row + k, mask=have, other=0.0)
    g *= tl.load(norm + k, mask=have, other=0.0)
    x, inverse = standardized_values(tl.load(rows + row + k, mask=have, other=0.0), have, INPUTS)
    g = standardized_values_adjoint(g, x, inverse, have, INPUTS)
    if ADDED:
        g += tl.load(result + row + k, mask=have, other=0.0)
    # All threads of this program must have loaded what is written over now.
    tl.debug_barrier()
    tl.store(result + row + k, g, mask=have)
