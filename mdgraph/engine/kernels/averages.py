"""A kernel that records a sample of `Averages`: what a system shows, added to its blocks."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

from collections.abc import Mapping
from typing import Final

import triton
import triton.language as tl
from torch import Tensor

from mdgraph.engine.kernels.matrices import load_rows, volume
from mdgraph.engine.kernels.schedules import store_last
from mdgraph.engine.kernels.sums import kinetic_tensor_parts, total
from mdgraph.neighbors.compilation import kernel
from mdgraph.neighbors.launching import launching_on
from mdgraph.state import State
from mdgraph.units import BOLTZMANN

COLUMNS: Final = (
    "potential_energy",
    "kinetic_energy",
    "total_energy",
    "temperature",
    "conserved_energy",
    "volume",
    "density",
    "pressure",
    "pressure_xx",
    "pressure_yy",
    "pressure_zz",
    "pressure_yz",
    "pressure_xz",
    "pressure_xy",
)
"""What the kernel knows, by the numbers that it takes for names."""

_BOLTZMANN = tl.constexpr(BOLTZMANN)


@triton.jit
def _stress(parts, virial, system, row, column, PARTS: tl.constexpr):
    """A component of the kinetic tensor and the virial together, made symmetric, eV."""
    place = virial + system * 9
    both = tl.load(place + row * 3 + column) + tl.load(place + column * 3 + row)
    return total(parts, system, row * 3 + column, 9, PARTS) + 0.5 * both


@triton.jit
def _known(column, number, value, values):
    """The numbers so far, with one more where its column is asked for."""
    return tl.where(column == number, value, values)


@kernel
def _record_kernel(
    parts,
    energy,
    conserved_in,
    virial,
    cell,
    degrees,
    masses,
    columns,
    first,
    partial,
    mean,
    squares,
    samples,
    arrived,
    step,
    every,
    start,
    systems,
    quantities,
    LEVELS: tl.constexpr,
    WIDTH: tl.constexpr,
    PARTS: tl.constexpr,
):
    """One program a system; adds a sample as `BlockAverages.add_` does, in steps that are due."""
    system = tl.program_id(0)
    now = tl.load(step)
    before = tl.load(samples)
    due = (now % every == 0) & (now > start)
    if due:
        potential = tl.load(energy + system)
        freedom = tl.load(degrees + system)
        a, b, c = load_rows(cell, system)
        space = volume(a, b, c)
        inverse = 1.0 / tl.where(space > 0.0, space, 1.0)
        xx = total(parts, system, 0, 9, PARTS)
        yy = total(parts, system, 4, 9, PARTS)
        zz = total(parts, system, 8, 9, PARTS)
        kinetic = 0.5 * (xx + yy + zz)
        kelvin = 2.0 * kinetic / (tl.maximum(freedom, 1.0) * _BOLTZMANN)
        xx = _stress(parts, virial, system, 0, 0, PARTS) * inverse
        yy = _stress(parts, virial, system, 1, 1, PARTS) * inverse
        zz = _stress(parts, virial, system, 2, 2, PARTS) * inverse

        lane = tl.arange(0, WIDTH)
        valid = lane < quantities
        column = tl.load(columns + lane, mask=valid, other=-1)
        values = tl.zeros([WIDTH], tl.float64)
        values = _known(column, 0, potential, values)
        values = _known(column, 1, kinetic, values)
        values = _known(column, 2, potential + kinetic, values)
        values = _known(column, 3, tl.where(freedom > 0.0, kelvin, 0.0), values)
        values = _known(column, 4, tl.load(conserved_in + system), values)
        values = _known(column, 5, space, values)
        values = _known(column, 6, tl.load(masses + system) * inverse, values)
        values = _known(column, 7, (xx + yy + zz) / 3.0, values)
        values = _known(column, 8, xx, values)
        values = _known(column, 9, yy, values)
        values = _known(column, 10, zz, values)
        values = _known(column, 11, _stress(parts, virial, system, 1, 2, PARTS) * inverse, values)
        values = _known(column, 12, _stress(parts, virial, system, 0, 2, PARTS) * inverse, values)
        values = _known(column, 13, _stress(parts, virial, system, 0, 1, PARTS) * inverse, values)

        own = system * quantities + lane
        origin = tl.where(before == 0, values, tl.load(first + own, mask=valid, other=0.0))
        tl.store(first + own, origin, mask=valid)
        level = tl.arange(0, LEVELS).to(tl.int64)
        length = (level * 0 + 1) << level
        number = before + 1
        whole = (number % length == 0)[:, None]
        share = length.to(tl.float64)[:, None]
        place = level[:, None] * (systems * quantities) + own[None, :]
        inside = valid[None, :] & (level[:, None] >= 0)
        collected = tl.load(partial + place, mask=inside, other=0.0) + (values - origin)[None, :]
        tl.store(partial + place, tl.where(whole, 0.0, collected), mask=inside)
        middle = tl.load(mean + place, mask=inside, other=0.0)
        blocks = collected / share
        change = tl.where(whole, blocks - middle, 0.0)
        count = tl.maximum(number // length, 1).to(tl.float64)[:, None]
        middle = middle + change / count
        tl.store(mean + place, middle, mask=inside)
        scatter = tl.load(squares + place, mask=inside, other=0.0)
        tl.store(squares + place, scatter + change * (blocks - middle), mask=inside)
    store_last(samples, before + due.to(tl.int64), arrived)


def record_(
    state: State,
    buffers: Mapping[str, Tensor],
    conserved: Tensor | None,
    masses: Tensor,
    columns: Tensor,
    arrived: Tensor,
    *,
    every: int,
    start: int,
) -> None:
    """Adds the state of the moment to averages where it is due; does not sync.

    Args:
        state: what is recorded.
        buffers: those of `Averages.tensors`; changed in place.
        conserved: (S,) float64 eV, where it is asked for.
        masses: (S,) float64 amu, of the systems.
        columns: (Q,) int64, places in `COLUMNS` of what is asked for.
        arrived: () int32, see `store_last`.
        every: steps from one sample to the next.
        start: steps that are left out.
    """
    parts = kinetic_tensor_parts(state)
    levels, systems, quantities = buffers["mean"].shape
    with launching_on(state.device):
        _record_kernel[(systems,)](
            parts,
            state.energy,
            state.energy if conserved is None else conserved,
            state.virial,
            state.cell,
            state.degrees,
            masses,
            columns,
            *(buffers[name] for name in ("first", "partial", "mean", "squares", "samples")),
            arrived,
            state.step,
            every,
            start,
            systems,
            quantities,
            LEVELS=levels,
            # As many numbers as threads at least, so that no two threads keep the same one.
            WIDTH=max(4, triton.next_power_of_2(quantities)),
            PARTS=parts.shape[1],
        )
