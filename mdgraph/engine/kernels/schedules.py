"""Device functions: parameters of a step from their schedules, and counters."""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import triton
import triton.language as tl


@triton.jit
def value_at(schedule, system, systems, step):
    """Value of a schedule (4, S) float64 at a step, for systems by their number."""
    start = tl.load(schedule + system)
    end = tl.load(schedule + systems + system)
    first = tl.load(schedule + 2 * systems + system)
    length = tl.load(schedule + 3 * systems + system)
    progress = (step.to(tl.float64) - first) / tl.maximum(length, 1.0)
    return start + (end - start) * tl.minimum(tl.maximum(progress, 0.0), 1.0)


@triton.jit
def store_last(pointer, value, arrived):
    """Writes a number that all programs of this kernel, a grid of one dimension, have read.

    The last of them to come here writes, when no other has still to read.

    Args:
        pointer: where.
        value: what, the same for all programs.
        arrived: () int32, 0 between kernels: programs that have come here.
    """
    tl.debug_barrier()
    if tl.atomic_add(arrived, 1) == tl.num_programs(0) - 1:
        tl.store(pointer, value)
        tl.store(arrived, 0)
