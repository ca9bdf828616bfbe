"""Matrix products of the rows of a block of atoms with packed weights.

A result depends neither on the rows beside it nor on the number of threads: each of its
numbers is a sum over the inputs in their order.
"""

from typing import Any, Final, NamedTuple

from mdgraph.fused.cpu.compilation import routine
from mdgraph.fused.cpu.lanes import LANES, kept_apart, store
from mdgraph.fused.cpu.panels import (
    PANEL,
    first_half,
    load_one_panel,
    load_panel,
    second_half,
    zero_panel,
)

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
                s0 = s1 = s2 = s3 = s4 = s5 = zero_panel(b)
                for tile in range(inputs // LANES):
                    for lane in range(LANES):
                        w = load_panel(b, start)
                        start += PANEL
                        k = tile * left.tile + lane
                        s0 += load_one_panel(a, a0 + k) * w
                        s1 += load_one_panel(a, a1 + k) * w
                        s2 += load_one_panel(a, a2 + k) * w
                        s3 += load_one_panel(a, a3 + k) * w
                        s4 += load_one_panel(a, a4 + k) * w
                        s5 += load_one_panel(a, a5 + k) * w
                c0 = result.start + part * result.part + row * result.row
                c0 += 2 * panel * result.tile
                _store_panel(result, c0, s0)
                _store_panel(result, c0 + result.row, s1)
                _store_panel(result, c0 + 2 * result.row, s2)
                _store_panel(result, c0 + 3 * result.row, s3)
                _store_panel(result, c0 + 4 * result.row, s4)
                _store_panel(result, c0 + 5 * result.row, s5)


@routine
def _store_panel(rows, place, panel):
    store(rows.array, place, first_half(panel))
    store(rows.array, place + rows.tile, second_half(panel))


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
