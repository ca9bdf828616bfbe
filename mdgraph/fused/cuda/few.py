"""Dense layers of few atoms on CUDA, without tensor cores.

With few atoms a layer takes as long as it waits for memory, and a tile of tensor cores would be
empty but for a few rows. So a program takes one row, reads all of it at once, and multiplies by
float32's own multiply-adds, which err less too.
"""

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from mdgraph.fused.cuda.device import activation, slope
from mdgraph.fused.cuda.weights import SplitFP16
from mdgraph.fused.cuda.workspace import Blocks, LaunchPlan, padded
from mdgraph.gpu.triton_jit import kernel, pdl_wait


@triton.jit
def whole_matrix(weight, rest, place, inside, KIND: tl.constexpr, SPLIT: tl.constexpr):
    """A matrix from its halves, but for its unit; see SplitFP16."""
    w = tl.load(weight + place, mask=inside, other=0.0).to(KIND)
    if SPLIT:
        w += tl.load(rest + place, mask=inside, other=0.0).to(KIND) * (1.0 / 2048)
    return w


@triton.jit
def by_matrix(x, w):
    """Channels (K,) times a matrix (K, B)."""
    return tl.sum(x[:, None] * w, 0)


@kernel
def few_rows_kernel(
    inputs,
    weight,
    rest,
    unit,
    bias,
    result,
    BACK: tl.constexpr,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    KP: tl.constexpr,
    BF: tl.constexpr,
    ACTIVATION: tl.constexpr,
    SPLIT: tl.constexpr,
    USE_PDL: tl.constexpr = False,
):
    """As `dense_kernel`, or where BACK as `dense_adjoint_kernel`, one row and strip a program.

    Args:
        KP: INPUTS rounded up to a power of two.
        SPLIT: whether weights are halves.
        others: as in these kernels; `bias` is not read where BACK.
    """
    pdl_wait(USE_PDL)
    row = tl.program_id(0)
    f = tl.program_id(1) * BF + tl.arange(0, BF)
    k = tl.arange(0, KP)
    own = f < OUTPUTS
    kind: tl.constexpr = result.dtype.element_ty
    x = tl.load(inputs + row * INPUTS + k, mask=k < INPUTS, other=0.0)
    inside = (k < INPUTS)[:, None] & own[None, :]
    w = whole_matrix(weight, rest, k[:, None] * OUTPUTS + f[None, :], inside, kind, SPLIT)
    place = result + row * OUTPUTS + f
    if BACK:
        y = by_matrix(x, w) * unit
        if ACTIVATION != "none":
            y *= slope(tl.load(place, mask=own, other=0.0), ACTIVATION)
        # All threads of this program must have loaded what is written over now.
        tl.debug_barrier()
    else:
        y = by_matrix(activation(x, ACTIVATION), w) * unit
        y += tl.load(bias + f, mask=own, other=0.0)
    tl.store(place, y, mask=own)


def sizes_of_few(bound: LaunchPlan, s: Blocks, weights: SplitFP16) -> dict[str, Any]:
    """Arguments of every launch of a product of few atoms, but for those of strips."""
    return {
        "SPLIT": weights.hi.data_ptr() != weights.lo.data_ptr(),
        "num_warps": s.warps,
        **bound.launch,
    }


def few_rows(
    bound: LaunchPlan,
    s: Blocks,
    x: Tensor,
    weights: SplitFP16,
    bias: Tensor,
    result: Tensor,
    activation: str,
    back: bool,
) -> None:
    """A dense layer of few rows, or its adjoint."""
    inputs, outputs = x.shape[1], result.shape[1]
    few_rows_kernel[(len(x), triton.cdiv(outputs, s.strip))](
        x,
        weights.hi,
        weights.lo,
        weights.unit,
        bias,
        result,
        back,
        inputs,
        outputs,
        padded(inputs),
        BF=s.strip,
        ACTIVATION=activation,
        **sizes_of_few(bound, s, weights),
    )
