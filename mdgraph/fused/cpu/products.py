"""Matrix products of the rows of a block of atoms with packed weights.

A result depends neither on the rows beside it nor on the number of threads: each of its
numbers is a sum over the inputs in their order.
"""

from typing import Any, Final, NamedTuple

from mdgraph.fused.cpu.compilation import routine
from mdgraph.fused.cpu.lanes import LANES, kept_apart, load, load_one, store, zero

PANEL: Final = 2 * LANES
"""Columns of packed weights that lie together; channels are padded to whole panels."""

_ROWS: Final = 6
"""Rows whose sums are kept in registers together."""

ATOMS: Final = 2 * _ROWS
"""Atoms of a block: rows that share a pass over the weights."""


class Place(NamedTuple):
    """A place in a flat array.

    Numba compiles a function anew for a plain 0 among its arguments, but not for one in here.
    """

    array: Any
    start: int


class Rows(NamedTuple):
    """Where the rows of a block lie: one of each atom, in each of some parts.

    Attributes:
        array: flat.
        start: place of the first row.
        row: from the row of an atom to that of the next.
        parts: their number.
        part: from a part to the next.
        tile: from eight numbers of a row to the next eight.
    """

    array: Any
    start: int
    row: int
    parts: int
    part: int
    tile: int


@routine
def multiply(left, weights, inputs, result, outputs):
    """Writes result = left @ weights.

    Args:
        left: Rows with so many inputs.
        weights: Place of panels (outputs / PANEL, inputs, PANEL).
        inputs: numbers of a row that goes in, whole lanes.
        result: Rows that are written.
        outputs: numbers of a row that comes out, whole panels.
    """
    kept_apart()
    a, b = left.array, weights.array
    for panel in range(outputs // PANEL):
        for part in range(left.parts):
            for row in range(0, ATOMS, _ROWS):
                start = weights.start + panel * inputs * PANEL
                a0 = left.start + part * left.part + row * left.row
                a1, a2, a3 = a0 + left.row, a0 + 2 * left.row, a0 + 3 * left.row
                a4, a5 = a0 + 4 * left.row, a0 + 5 * left.row
                s0 = s1 = s2 = s3 = s4 = s5 = zero(b)
                t0 = t1 = t2 = t3 = t4 = t5 = zero(b)
                for tile in range(inputs // LANES):
                    for lane in range(LANES):
                        u = load(b, start)
                        v = load(b, start + LANES)
                        start += PANEL
                        k = tile * left.tile + lane
                        x = load_one(a, a0 + k)
                        s0, t0 = s0 + x * u, t0 + x * v
                        x = load_one(a, a1 + k)
                        s1, t1 = s1 + x * u, t1 + x * v
                        x = load_one(a, a2 + k)
                        s2, t2 = s2 + x * u, t2 + x * v
                        x = load_one(a, a3 + k)
                        s3, t3 = s3 + x * u, t3 + x * v
                        x = load_one(a, a4 + k)
                        s4, t4 = s4 + x * u, t4 + x * v
                        x = load_one(a, a5 + k)
                        s5, t5 = s5 + x * u, t5 + x * v
                c0 = result.start + part * result.part + row * result.row
                c0 += 2 * panel * result.tile
                _store_pair(result, c0, s0, t0)
                _store_pair(result, c0 + result.row, s1, t1)
                _store_pair(result, c0 + 2 * result.row, s2, t2)
                _store_pair(result, c0 + 3 * result.row, s3, t3)
                _store_pair(result, c0 + 4 * result.row, s4, t4)
                _store_pair(result, c0 + 5 * result.row, s5, t5)


@routine
def _store_pair(rows, place, one, other):
    store(rows.array, place, one)
    store(rows.array, place + rows.tile, other)


@routine
def features(array, start, channels, part):
    """Rows of one part of the features (ATOMS, F / LANES, 9, LANES) of a block."""
    component = LANES * part * part
    return Rows(array, start + component, 9 * channels, 2 * part + 1, LANES, 9 * LANES)


@routine
def mix(left, weights, result, channels):
    """Mixes the channels of the features of a block at a Place by a matrix for each part."""
    kept_apart()
    for part in range(3):
        multiply(
            features(left.array, left.start, channels, part),
            Place(weights, part * channels * channels),
            channels,
            features(result.array, result.start, channels, part),
            channels,
        )
