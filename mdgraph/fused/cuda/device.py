"""Device functions of the fused network: pair vectors, forces, tables, tensor cores, activations.

A central force adds nine tiles: the three of f, and of the symmetric r (x) f the six
xx, xy, xz, yy, yz, zz.

Float32 products are three of float16 halves, x = x' + x'' / 2^11 with 11 bits each, of which
x'' w'' is left out: they keep float32's digits but for the last two, at the speed of float16
(DOI 10.1177/10943420221090256). `fast` takes x' w' alone. The lift of 2^11 keeps all digits of
numbers from 6e-5 on, and errs by 2e-11 at most below; numbers beyond 65,504 give no finite
result, which every run looks for.
"""

import triton
import triton.language as tl

from mdgraph.gpu.triton_jit import INTERPRETED


@triton.jit
def add_central(sums, along, r):
    """Adds a force `along` r to the nine tiles."""
    fx, fy, fz = along * r[0], along * r[1], along * r[2]
    return (
        sums[0] + fx,
        sums[1] + fy,
        sums[2] + fz,
        sums[3] + fx * r[0],
        sums[4] + fx * r[1],
        sums[5] + fx * r[2],
        sums[6] + fy * r[1],
        sums[7] + fy * r[2],
        sums[8] + fz * r[2],
    )


@triton.jit
def put(pointer, value, ADDED: tl.constexpr):
    """Writes a number, or adds it to what is there."""
    if ADDED:
        value += tl.load(pointer)
    tl.store(pointer, value)


@triton.jit
def put_forces(
    forces, virials, atom, atoms, force, virial, FACTOR: tl.constexpr, ADDED: tl.constexpr
):
    """Force of an atom, and its virial times a factor.

    Args:
        forces, virials: (N, 3), (9, N), written, or added to where ADDED.
        atom: its number.
        atoms: N.
        force, virial: three and nine tiles (W,), parts of the sums.
    """
    for axis in tl.static_range(3):
        put(forces + 3 * atom + axis, tl.sum(force[axis], 0), ADDED)
    for element in tl.static_range(9):
        total = tl.sum(virial[element], 0) * FACTOR
        put(virials + element * atoms + atom, total, ADDED)


@triton.jit
def put_central(forces, virials, atom, atoms, sums, ADDED: tl.constexpr):
    """Force of an atom, and half of r (x) f of its pairs as its virial, from nine tiles."""
    fx, fy, fz, xx, xy, xz, yy, yz, zz = sums
    virial = (xx, xy, xz, xy, yy, yz, xz, yz, zz)
    put_forces(forces, virials, atom, atoms, (fx, fy, fz), virial, -0.5, ADDED)


@triton.jit
def pair_vectors(positions, cell, wrap, system, offsets, atom, other, number):
    """Vectors x_j - x_i + (n_image - n_j + n_i) h with whole numbers n, in the state type.

    So the two directions of a pair are negatives of each other to the last bit.

    Args:
        positions, cell, wrap: (N, 3), (S, 3, 3), (N, 3) in the state type.
        system: (N,) int64.
        offsets: (images, 3) int64, translation of each image.
        atom: i, int64.
        other, number: (W,) int64, j and the number of its image.

    Returns:
        x, y, z: (W,) each.
    """
    h = cell + tl.load(system + atom) * 9
    x = tl.load(positions + other * 3) - tl.load(positions + atom * 3)
    y = tl.load(positions + other * 3 + 1) - tl.load(positions + atom * 3 + 1)
    z = tl.load(positions + other * 3 + 2) - tl.load(positions + atom * 3 + 2)
    kind = x.dtype
    a = tl.load(offsets + number * 3).to(kind) - tl.load(wrap + other * 3)
    b = tl.load(offsets + number * 3 + 1).to(kind) - tl.load(wrap + other * 3 + 1)
    c = tl.load(offsets + number * 3 + 2).to(kind) - tl.load(wrap + other * 3 + 2)
    a += tl.load(wrap + atom * 3)
    b += tl.load(wrap + atom * 3 + 1)
    c += tl.load(wrap + atom * 3 + 2)
    x += a * tl.load(h) + b * tl.load(h + 3) + c * tl.load(h + 6)
    y += a * tl.load(h + 1) + b * tl.load(h + 4) + c * tl.load(h + 7)
    z += a * tl.load(h + 2) + b * tl.load(h + 5) + c * tl.load(h + 8)
    return x, y, z


@triton.jit
def listed_vectors(positions, cell, wrap, system, index, image, offsets, atom, place, valid):
    """Neighbor (int64), vector and distance (float64, 1 where invalid) at some places of a list.

    Where invalid, the neighbor is the atom itself: another one may be in a system that has no
    finite numbers any more, and zero times those is none either.
    """
    other = tl.load(index + place, mask=valid, other=0).to(tl.int64)
    other = tl.where(valid, other, atom)
    number = tl.load(image + place, mask=valid, other=0).to(tl.int64)
    x, y, z = pair_vectors(positions, cell, wrap, system, offsets, atom, other, number)
    distance = tl.sqrt((x * x + y * y + z * z).to(tl.float64))
    vector = (x.to(tl.float64), y.to(tl.float64), z.to(tl.float64))
    return other, vector, tl.where(valid, distance, 1.0)


@triton.jit
def polynomials(
    t, u, inside, STRIDE: tl.constexpr, TERMS: tl.constexpr = 4, MASKED: tl.constexpr = True
):
    """Values and slopes of cubics, or with three TERMS of parabolas.

    Args:
        t: pointers to their first coefficients, the others STRIDE further each.
        u: offsets from the centre of the interval.
        inside: which there are; zeros elsewhere.
    """
    c0 = read(t, inside, MASKED)
    c1 = read(t + STRIDE, inside, MASKED)
    c2 = read(t + 2 * STRIDE, inside, MASKED)
    if TERMS == 3:
        return c0 + u * (c1 + u * c2), c1 + (2.0 * u) * c2
    c3 = read(t + 3 * STRIDE, inside, MASKED)
    return c0 + u * (c1 + u * (c2 + u * c3)), c1 + (2.0 * u) * (c2 + (1.5 * u) * c3)


@triton.jit
def paired(other, interval, step):
    """What messages read of an edge, in 64 bits: its neighbor, its interval and its step.

    Args:
        other: int64, below 2^31.
        interval: int32, below 2^23.
        step: float32, a power of two or zero.
    """
    word = interval | step.to(tl.int32, bitcast=True)
    return (word.to(tl.int64) << 32) | other


@triton.jit
def neighbor_in(pair):
    """Neighbor, int64."""
    return pair & 0xFFFFFFFF


@triton.jit
def interval_in(pair):
    """Interval, int32."""
    return (pair >> 32).to(tl.int32) & 0x7FFFFF


@triton.jit
def step_in(pair):
    """Step of the last coefficients, float32."""
    return ((pair >> 32).to(tl.int32) & 0x7F800000).to(tl.float32, bitcast=True)


@triton.jit
def read(pointer, inside, MASKED: tl.constexpr):
    """Numbers, with zeros outside where MASKED; else all are inside."""
    if MASKED:
        return tl.load(pointer, mask=inside, other=0.0)
    return tl.load(pointer)


@triton.jit
def read_past(pointer, inside, MASKED: tl.constexpr):
    """`read`, past the first cache."""
    if MASKED:
        return tl.load(pointer, mask=inside, other=0.0, cache_modifier=".cg")
    return tl.load(pointer, cache_modifier=".cg")


@triton.jit
def packed_polynomials(t, u, step, inside, STRIDE: tl.constexpr, MASKED: tl.constexpr):
    """Values and slopes of cubics whose last two coefficients share a word; see `packed`.

    Args:
        t: pointers to their first coefficients, the others STRIDE further each.
        u: offsets from the centre of the interval.
        step: of the last coefficients.
        inside: which there are; elsewhere finite numbers.
    """
    c0 = read(t, inside, MASKED)
    c1 = read(t + STRIDE, inside, MASKED)
    c2 = read(t + 2 * STRIDE, inside, MASKED)
    # 2^23 and the eleven bits, as a float32 that is exact.
    digits = (c2.to(tl.int32, bitcast=True) & 2047) | 0x4B000000
    c3 = digits.to(tl.float32, bitcast=True) - 8389632.0
    last = u * step
    return c0 + u * (c1 + u * (c2 + last * c3)), c1 + (2.0 * u) * (c2 + (1.5 * last) * c3)


LIFT: tl.constexpr = tl.constexpr(2048.0)
"""Of the second halves, so that they lie where float16 is precise."""


@triton.jit
def product(x, weight, rest, inside, MASKED: tl.constexpr, PRODUCTS: tl.constexpr):
    """A tile of rows times a tile of weights.

    Tensor cores cut sums off towards zero instead of rounding them. They are given a few
    channels at a time, small terms first, and the caller adds up what they make of them.

    Args:
        x: (A, B), float32 with PRODUCTS.
        weight, rest: pointers (B, C) to the halves of a matrix.
        inside: (B, C), where it is read, if MASKED.
        PRODUCTS: 3 for float32's digits, 1 for those of float16, 0 for the type of x and w.
    """
    w = read(weight, inside, MASKED)
    r = w
    if PRODUCTS == 3:
        r = read(rest, inside, MASKED)
    return multiplied(x, w, r, PRODUCTS)


@triton.jit
def multiplied(x, w, r, PRODUCTS: tl.constexpr):
    """`product` with the halves of the matrix in tiles; the second counts with three PRODUCTS."""
    if PRODUCTS == 0:
        part = tl.dot(x, w, input_precision="ieee", out_dtype=x.dtype)
    elif PRODUCTS == 1:
        part = tl.dot(x.to(tl.float16), w)
    else:
        whole = x.to(tl.float16)
        remainder = ((x - whole.to(tl.float32)) * LIFT).to(tl.float16)
        part = tl.dot(remainder, w)
        part = tl.dot(whole, r, part)
        part = tl.dot(whole, w, part * (1.0 / LIFT))
    return part


@triton.jit
def halves(x, SCALE: tl.constexpr, PRODUCTS: tl.constexpr):
    """Float32 times a power of two as the sum of two in float16; twice x if products split none."""
    whole, rest = x, x
    if PRODUCTS > 0:
        x *= SCALE
        whole = x.to(tl.float16)
        rest = (x - whole.to(tl.float32)).to(tl.float16)
    return whole, rest


@triton.jit
def store_halves(whole, rest, place, x, inside, SCALE: tl.constexpr, PRODUCTS: tl.constexpr):
    """Writes `halves`, the second where three products read it."""
    first, second = halves(x, SCALE, PRODUCTS)
    tl.store(whole + place, first, mask=inside)
    if PRODUCTS == 3:
        tl.store(rest + place, second, mask=inside)


@triton.jit
def chained_product(x, y, weight, rest, PRODUCTS: tl.constexpr):
    """`product` of halves, whose parts are one sum in tensor cores, small terms first.

    Args:
        x, y: (A, B), `halves`.
        weight, rest: (B, C), of a ChainedFP16.
        PRODUCTS: see `product`.
    """
    if PRODUCTS == 0:
        part = tl.dot(x, weight, input_precision="ieee", out_dtype=x.dtype)
    elif PRODUCTS == 1:
        part = tl.dot(x, weight)
    else:
        part = tl.dot(y, weight)
        part = tl.dot(x, rest, part)
        part = tl.dot(x, weight, part)
    return part


_SIGMOID: tl.constexpr = tl.constexpr("""{
    .reg .f32 e;
    mul.f32 e, $1, 0fBFB8AA3B;
    ex2.approx.ftz.f32 e, e;
    add.f32 e, e, 0f3F800000;
    rcp.approx.ftz.f32 $0, e;
}""")


@triton.jit
def sigmoid(x):
    """1 / (1 + exp(-x)).

    On CUDA in float32 by the five instructions that it takes, 0f... being -log2(e) and 1: with
    exp(-x) and the quotient of their own Triton rescales what no sigmoid needs, to the same bits.
    """
    if INTERPRETED or x.dtype != tl.float32:
        s = 1.0 / (1.0 + tl.exp(-x))
    else:  # A return in each branch would compile the second one for float64 too.
        s = tl.inline_asm_elementwise(_SIGMOID, "=f,f", [x], tl.float32, is_pure=True, pack=1)
    return s


@triton.jit
def softplus(x):
    """ln(1 + e^x), without overflow."""
    return tl.maximum(x, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(x)))


@triton.jit
def tanh(x):
    """Tanh x, by its series near zero, where the exponentials would cancel."""
    y = x * x
    series = x * (1.0 - y * (1 / 3 - y * (2 / 15 - y * (17 / 315 - y * (62 / 2835)))))
    return tl.where(y < 0.09, series, 2.0 * sigmoid(2.0 * x) - 1.0)


@triton.jit
def _tanh_softplus(x):
    """tanh(ln(1 + e^x)); one to the last digit beyond 20."""
    e = tl.exp(tl.minimum(x, 20.0))
    return e * (e + 2.0) / (e * (e + 2.0) + 2.0)


@triton.jit
def activation(x, KIND: tl.constexpr):
    """The activation by name."""
    if KIND == "silu":
        return x * sigmoid(x)
    if KIND == "ssp":
        return softplus(x) - 0.69314718055994531
    if KIND == "ssp_float32":
        return softplus(x) - 0.69314718246459961
    if KIND == "softplus":
        return softplus(x)
    if KIND == "tanh":
        return tanh(x)
    if KIND == "sigmoid":
        return sigmoid(x)
    if KIND == "mish":
        return x * _tanh_softplus(x)
    return x


@triton.jit
def slope(x, KIND: tl.constexpr):
    """The derivative of the activation."""
    s = sigmoid(x)
    if KIND == "silu":
        return s * (1.0 + x * (1.0 - s))
    if KIND == "ssp" or KIND == "ssp_float32" or KIND == "softplus":
        return s
    if KIND == "tanh":
        s = sigmoid(2.0 * x)
        return 4.0 * s * (1.0 - s)
    if KIND == "sigmoid":
        return s * (1.0 - s)
    if KIND == "mish":
        t = _tanh_softplus(x)
        return t + x * (1.0 - t * t) * s
    return s * 0.0 + 1.0
