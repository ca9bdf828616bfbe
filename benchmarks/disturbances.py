"""What can go wrong in a process that runs `mdgraph`, and how the command must then end."""

import os
import random
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from mdgraph.engine.calculation import Calculation
from mdgraph.engine.chunks import Chunks

ATOM = 3


def _before_chunks(act: Callable[[Any, int], object]) -> None:
    """Does something before each chunk; it is told who moves the atoms, and the last step."""
    allocate, advance = Chunks.__init__, Chunks.advance
    moving: list[Any] = []

    def allocated(chunks: Chunks, motion: Any, *others: Any) -> None:
        moving.append(motion)
        allocate(chunks, motion, *others)

    def disturbed(chunks: Chunks, end: int, *others: Any) -> None:
        act(moving[-1], end)
        advance(chunks, end, *others)

    Chunks.__init__, Chunks.advance = allocated, disturbed


def overflow(step: int, times: int) -> None:
    """Takes the slots away before two chunks of three, until lists have grown so many times.

    Of two chunks that overlap, one growth repairs both.
    """
    generator, grown = random.Random(1), 0
    grow = Calculation.grow

    def counted(calculation: Calculation) -> None:
        nonlocal grown
        grown += 1
        grow(calculation)

    def shrink(motion: Any, end: int) -> None:
        if grown < times and generator.random() < 0.67:
            if motion.calculation.device.type == "cuda":
                torch.cuda.synchronize()  # the graphs of the chunk before may still run
            motion.stepping.forget()
            for one in motion.calculation.lists:
                one._allocate(1, one.reference_positions, one.reference_cell)

    Calculation.grow = counted
    _before_chunks(shrink)


def nan(step: int, times: int) -> None:
    """Spoils a force at the end of one step, on the device."""
    update_ = Calculation.update_

    def disturbed(calculation: Calculation) -> None:
        update_(calculation)
        state = calculation.state
        state.forces[ATOM].masked_fill_(state.step == step - 1, torch.nan)

    Calculation.update_ = disturbed


def _once(step: int, act: Callable[[], object]) -> None:
    """Does something before the chunk that reaches a step."""
    left = [act]
    _before_chunks(lambda motion, end: left.pop()() if left and end >= step else None)


def sigterm(step: int, times: int) -> None:
    _once(step, lambda: os.kill(os.getpid(), signal.SIGTERM))


def kill(step: int, times: int) -> None:
    _once(step, lambda: os.kill(os.getpid(), signal.SIGKILL))


def cuda(step: int, times: int) -> None:
    _once(step, lambda: torch._assert_async(torch.zeros(1, device="cuda")))


FAULTS = {"overflow": overflow, "nan": nan, "sigterm": sigterm, "kill": kill, "cuda": cuda}


@dataclass(frozen=True)
class Expected:
    """How a command must end, and what it must say."""

    status: int
    words: str


EXPECTED = {
    "overflow": Expected(0, "A neighbor list overflowed before step"),
    "nan": Expected(1, f"The forces on atoms {ATOM} are not finite at step"),
    "sigterm": Expected(128 + signal.SIGTERM, "Stopped by SIGTERM; go on with:"),
    "kill": Expected(-signal.SIGKILL, ""),
    "cuda": Expected(1, "mdgraph: error: The GPU failed (CUDA error"),
}
