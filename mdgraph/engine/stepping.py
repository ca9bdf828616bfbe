"""Stepping: steps taken one by one, or as replays of graphs that hold several."""

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final

import torch

from mdgraph.engine.integrators import Integrator
from mdgraph.engine.integrators.integrator import BLOCK
from mdgraph.graphs import CapturedGraph, GraphMemoryError, captured, say_eager

logger = logging.getLogger(__name__)

LONGEST: Final = BLOCK
"""Most steps in a graph: what an integrator prepares together."""

POWERS: Final = tuple(1 << power for power in range(LONGEST.bit_length()))
"""Steps that graphs may hold."""


class Stepping:
    """Advances a simulation by some steps, launching as little as it can.

    A graph of several steps follows its predecessor at once, where between two replays the
    GPU waits some microseconds. Graphs of 1, 2, 4 ... steps are captured when they are first
    needed, so that any number of steps takes few replays; none goes on over the end of a
    block that the integrator prepares. They share their memory, in which nothing outlives a
    replay. Where there is none for a graph they are shorter, and where there is none for any,
    steps run eagerly, until the buffers are replaced.
    """

    def __init__(
        self,
        step_: Callable[[int | None], None],
        integrator: Integrator,
        unchanged: Callable[[], AbstractContextManager[None]],
        device: torch.device,
    ) -> None:
        """Captures nothing yet.

        Args:
            step_: takes one step; its argument is the number of steps done after it, where
                that is known, which is not so in a graph.
            integrator: prepares blocks of steps.
            unchanged: takes back what happens within it.
            device: of all this.
        """
        self._step_ = step_
        self._integrator = integrator
        self._unchanged = unchanged
        self._device = device
        self._graphs: dict[int, CapturedGraph] = {}
        self._graphed = False
        self._longest = LONGEST
        self._fitting = LONGEST
        self._said = False

    @property
    def graphed(self) -> bool:
        """Whether steps are replays: where that was set, and there is memory for a graph."""
        return self._graphed and self._fitting > 0

    @graphed.setter
    def graphed(self, wanted: bool) -> None:
        self._graphed = wanted

    @property
    def longest(self) -> int:
        """Most steps in one graph, one of `POWERS`: what was set, or what there is memory for."""
        return min(self._longest, max(self._fitting, 1))

    @longest.setter
    def longest(self, wanted: int) -> None:
        self._longest = wanted

    def advance_(self, step: int, count: int) -> None:
        """Takes steps; does not sync, but where a graph is captured first.

        Args:
            step: how many were done before.
            count: how many to take.
        """
        end = step + count
        while step < end:
            self._integrator.prepare_(step)
            length = self._replay_(end - step, BLOCK - step % BLOCK)
            if not length:
                self._step_(step + 1)
            step += length or 1

    def forget(self) -> None:
        """Drops the graphs, as when buffers that they hold are replaced."""
        self._graphs.clear()
        self._fitting = LONGEST

    def _replay_(self, *bounds: int) -> int:
        """Replays the longest graph that fits and returns its steps; 0 where none can be made."""
        while self.graphed:
            length = 1 << (min(self.longest, *bounds).bit_length() - 1)
            graph = self._graphs.get(length) or self._captured(length)
            if graph is not None:
                graph.replay()
                return length
        return 0

    def _captured(self, length: int) -> CapturedGraph | None:
        options: dict[str, Any] = {"calls": length} if length > 1 else {}
        if self._graphs:
            options["pool"] = next(iter(self._graphs.values())).pool
        try:
            with self._unchanged():
                graph = captured(lambda: self._step_(None), self._device, **options)
        except GraphMemoryError as error:
            self._make_do_with(length // 2, error)
            return None
        self.graphed = graph is not None
        if graph is not None:
            self._graphs[length] = graph
            logger.debug("Captured %d steps as a CUDA graph.", length)
        return graph

    def _make_do_with(self, length: int, error: GraphMemoryError) -> None:
        """Takes graphs of so many steps at most, or none for 0."""
        self._fitting = length
        if length:
            logger.info("CUDA graphs hold %d steps at most: %s", length, error)
            return
        self._graphs.clear()  # eager steps may need their memory
        if not self._said:
            say_eager(error)
        self._said = True
