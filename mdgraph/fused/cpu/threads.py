"""Phases of work on blocks of atoms, shared by as many threads as torch uses."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from threading import Barrier, BrokenBarrierError
from typing import Final

import torch

Work = Callable[[int, int], None]
"""Does blocks [first, last)."""

_SHARES: Final = 4
"""Portions of a phase a thread, so that a slow one does not keep the others waiting."""


def run(phases: Sequence[Work], blocks: int) -> None:
    """Does all blocks of one phase before any of the next.

    The work must not depend on how blocks are shared out. Threads live for this call alone:
    no pool and no setting outlasts it, and nothing that a fork would break.
    """
    threads = max(1, min(torch.get_num_threads(), blocks))
    if threads == 1:
        for phase in phases:
            phase(0, blocks)
        return
    step = -(-blocks // (_SHARES * threads))
    portions = [(first, min(first + step, blocks)) for first in range(0, blocks, step)]
    # Iterators are advanced under Python's lock, so each portion is taken once.
    queues = [iter(portions) for _ in phases]
    barrier = Barrier(threads)

    def work() -> None:
        # Whoever fails breaks the barrier, and the others leave at it.
        with suppress(BrokenBarrierError), ExitStack() as failure:
            failure.callback(barrier.abort)
            for phase, queue in zip(phases, queues, strict=True):
                for portion in queue:
                    phase(*portion)
                barrier.wait()
            failure.pop_all()

    with ThreadPoolExecutor(threads - 1) as pool:
        others = [pool.submit(work) for _ in range(threads - 1)]
        work()
    for other in others:
        other.result()
