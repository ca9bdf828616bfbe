"""Device function: a matrix product on tensor cores.

`tf32x3` is full float32 as three products of TF32 halves. `tf32` is one, of operands rounded
here: the cores themselves cut digits off, always towards zero, and with a trained potential
such a bias made forces five times worse.
"""

import triton
import triton.language as tl


@triton.jit
def _rounded(x):
    """Float32 numbers rounded to the 10 bits of TF32, halves away from zero."""
    bits = x.to(tl.int32, bitcast=True)
    near = ((bits + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
    # What is no number has all its bits set on a GPU, and would become zero.
    return tl.where(x == x, near, x)


@triton.jit
def accumulated(left, right, acc, PRECISION: tl.constexpr):
    """Acc + left right; PRECISION is `tf32x3`, `tf32`, or `ieee` for float64."""
    if PRECISION == "tf32":
        left = _rounded(left)
        right = _rounded(right)
    return tl.dot(left, right, acc, input_precision=PRECISION, out_dtype=acc.dtype)
