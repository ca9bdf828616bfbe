"""Device functions: matrix products on tensor cores.

Float32 products are three of float16 halves, x = x' + x'' / 2^11 with 11 bits each, of which
x'' w'' is left out: they keep float32's digits but for the last two, at the speed of float16
(DOI 10.1177/10943420221090256). `fast` takes x' w' alone. The lift of 2^11 keeps all digits of
numbers from 6e-5 on, and errs by 2e-11 at most below; numbers beyond 65,504 give no finite
result, which every run looks for.
"""

import triton
import triton.language as tl

LIFT: tl.constexpr = tl.constexpr(2048.0)
"""Of the second halves, so that they lie where float16 is precise."""


@triton.jit
def product(x, weight, rest, inside, PRODUCTS: tl.constexpr):
    """A tile of rows times a tile of weights.

    Tensor cores cut sums off towards zero instead of rounding them. They are given a few
    channels at a time, small terms first, and the caller adds up what they make of them.

    Args:
        x: (A, B), float32 with PRODUCTS.
        weight, rest: pointers (B, C) to the halves of a matrix.
        inside: (B, C), where it is read.
        PRODUCTS: 3 for float32's digits, 1 for those of float16, 0 for the type of x and w.
    """
    w = tl.load(weight, mask=inside, other=0.0)
    if PRODUCTS == 0:
        part = tl.dot(x, w, input_precision="ieee", out_dtype=x.dtype)
    elif PRODUCTS == 1:
        part = tl.dot(x.to(tl.float16), w)
    else:
        whole = x.to(tl.float16)
        remainder = ((x - whole.to(tl.float32)) * LIFT).to(tl.float16)
        part = tl.dot(remainder, w)
        part = tl.dot(whole, tl.load(rest, mask=inside, other=0.0), part)
        part = tl.dot(whole, w, part * (1.0 / LIFT))
    return part
