"""StepGraphs: steps as CUDA graphs of several lengths, or eagerly."""

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol

import torch

from mdgraph.decomposition.exchange import ProcessExchange
from mdgraph.engine.integrators import Integrator
from mdgraph.engine.integrators.base import BLOCK
from mdgraph.gpu.graphs import CapturedGraph, GraphMemoryError, captured, say_eager

logger = logging.getLogger(__name__)


LONGEST: Final = BLOCK
"""Most steps in a graph: an integrator prepares so many together."""

POWERS: Final = tuple(1 << power for power in range(LONGEST.bit_length()))
"""Numbers of steps that a graph may hold."""


class Forgetful(Protocol):
    """Has graphs of the same buffers."""

    def forget(self) -> None:
        """Drops them."""
        ...


class StepGraphs:
    """Runs steps as CUDA graphs of 1, 2, 4 ... up to 32 steps, or eagerly.

    Steps that are taken together, as those between two evaluations of a large potential, are in one
    graph, which holds as many of 1, 2, 4 ... times them as are 32 steps at most.

    The GPU waits some microseconds between two replays, and not between the steps of one graph.
    Each length is captured when it is first needed, so any number of steps takes few replays.
    No graph crosses the end of a block of steps that the integrator prepares. All graphs
    share one pool of memory, in which nothing outlives a replay. If a graph does not fit into
    memory, shorter ones run, and at last eager steps, until the buffers are replaced.
    """

    def __init__(
        self,
        step_: Callable[[int | None], None],
        integrator: Integrator,
        unchanged: Callable[[], AbstractContextManager[None]],
        device: torch.device,
        together: int = 1,
        ranks: ProcessExchange | None = None,
    ) -> None:
        """Captures nothing yet.

        Args:
            step_: takes as many steps as `together` says. Its argument is the number of steps done
                after them, or None in a graph, which is replayed at many steps.
            integrator: prepares blocks of steps.
            unchanged: context manager that restores the state at its end.
            device: where steps run.
            together: steps, 32 at most, of which all numbers of steps are multiples.
            ranks: that take each step together, so that all replay graphs or none; None for one.
        """
        self._step_ = step_
        self._ranks = ranks
        self.beside: list[Forgetful] = []
        self._together = together
        self._integrator = integrator
        integrator.block = BLOCK // together * together
        self._unchanged = unchanged
        self._device = device
        self._graphs: dict[int, CapturedGraph] = {}
        self._graphed = False
        self._longest = LONGEST
        self._longest_that_fits = LONGEST
        self._warned = False

    @property
    def graphed(self) -> bool:
        """Whether steps are replays: switched on, and a graph fits into memory."""
        return self._graphed and self._longest_that_fits > 0

    @graphed.setter
    def graphed(self, switch: bool) -> None:
        self._graphed = switch

    @property
    def longest(self) -> int:
        """Most steps in a graph, one of `POWERS`: as set, or as many as fit into memory.

        Those that are taken together are in one graph, however many.
        """
        return min(self._longest, self._longest_that_fits)

    @longest.setter
    def longest(self, length: int) -> None:
        self._longest = length

    def advance_(self, step: int, count: int) -> None:
        """Takes steps; syncs only to capture a graph.

        Args:
            step: steps done before.
            count: steps to take.
        """
        end = step + count
        while step < end:
            self._integrator.prepare_(step)
            block = self._integrator.block
            length = self._replay_(end - step, block - step % block)
            if not length:
                self._step_(step + self._together)
            step += length or self._together

    def forget(self) -> None:
        """Drops the graphs; call it when buffers that they hold are replaced."""
        self._graphs.clear()
        self._longest_that_fits = LONGEST
        for beside in self.beside:
            beside.forget()

    @property
    def settings(self) -> tuple[bool, int, int]:
        """Whether and how long graphs are asked for, and how long they may be."""
        return self._graphed, self._longest, self._longest_that_fits

    @settings.setter
    def settings(self, values: tuple[bool, int, int]) -> None:
        self._graphed, self._longest, self._longest_that_fits = values

    def _replay_(self, *bounds: int) -> int:
        """Replays the longest graph within the bounds and returns its steps; 0 without graphs."""
        while self.graphed:
            calls = max(min(self.longest, *bounds) // self._together, 1)
            length = self._together << (calls.bit_length() - 1)
            graph = self._graphs.get(length) or self._captured(length)
            if graph is not None:
                graph.replay()
                return length
        return 0

    def _captured(self, length: int) -> CapturedGraph | None:
        calls = length // self._together
        options: dict[str, Any] = {"calls": calls} if calls > 1 else {}
        if self._graphs:
            options["pool"] = next(iter(self._graphs.values())).pool
        graph, lack = None, None
        try:
            with self._unchanged():
                graph = captured(lambda: self._step_(None), self._device, **options)
        except GraphMemoryError as error:
            lack = error
        if self._ranks is not None:
            if graph is not None:
                self._ranks.hold(graph)
            if self._ranks.any(lack is not None) and lack is None:
                lack = GraphMemoryError("another rank has no memory for it")
            if self._ranks.any(graph is None):
                graph = None
        if lack is not None:
            self._shorten(length // 2, lack)
            return None
        self.graphed = graph is not None
        if graph is not None:
            self._graphs[length] = graph
            logger.debug("Captured %d steps as a CUDA graph.", length)
        return graph

    def _shorten(self, length: int, error: GraphMemoryError) -> None:
        """Limits graphs to a number of steps; fewer than are taken together leave eager steps."""
        if length >= self._together:
            self._longest_that_fits = 1 << (length.bit_length() - 1)
            logger.info("CUDA graphs hold %d steps at most: %s", length, error)
            return
        self._longest_that_fits = 0
        self._graphs.clear()  # eager steps may need their memory
        if not self._warned:
            say_eager(error)
        self._warned = True
