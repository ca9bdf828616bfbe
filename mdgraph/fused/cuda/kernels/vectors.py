"""Device functions: pair vectors of a row of a list."""

import triton
import triton.language as tl


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
