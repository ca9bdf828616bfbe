"""Updates: evaluations of a state with what the host gives and takes, eager or as one graph."""

from collections.abc import Callable, Sequence

from mdgraph.engine.placement import Array, Placement
from mdgraph.engine.results import Answer
from mdgraph.graphs import CapturedGraph, GraphMemory, GraphMemoryError, captured, say_eager
from mdgraph.neighbors import NeighborList
from mdgraph.state import State


class Updates:
    """Updates a state between the copies from and to the host that are wanted.

    A graph holds the update and the copies, so it is dropped when other copies are wanted.
    """

    def __init__(
        self,
        state: State,
        lists: Sequence[NeighborList],
        graphs: GraphMemory | None = None,
    ) -> None:
        """Allocates and captures nothing yet.

        Args:
            state: what is updated.
            lists: those of the update.
            graphs: captures; None captures in memory of its own.
        """
        self._state, self._lists = state, lists
        self._capture = captured if graphs is None else graphs.capture
        self._capturable = True
        self._graph: CapturedGraph | None = None
        self._placement: Placement | None = None
        self._answer: Answer | None = None
        self._brings = False

    def place(self, positions: Array, cell: Array | None = None, unit: float = 1.0) -> None:
        """Says where each update finds the atoms from now on; see Placement."""
        if self._placement is None:
            self._placement, self._graph = Placement(self._state), None
        self._placement.place(positions, cell, unit)

    def unplace(self) -> None:
        """Leaves positions and cells to the state from now on."""
        if self._placement is not None:
            self._placement = self._graph = None

    def answer(self) -> Answer:
        """Where the host finds results; kept, as pinned memory is slow to come by."""
        if self._answer is None:
            self._answer = Answer(self._state, self._lists)
        return self._answer

    def bring(self) -> Answer:
        """Has every update from now on copied there."""
        if not self._brings:
            self._brings, self._graph = True, None
        return self.answer()

    def forget(self) -> None:
        """Drops the graph, as when buffers that it holds are replaced."""
        self._graph = None

    def launch_(self, update_: Callable[[], None], graphed: bool) -> None:
        """Launches one update with its copies; does not sync on CUDA, but to capture.

        Args:
            update_: brings lists and results up to date, capturable; always the same, and not
                kept, since its owner keeps these updates.
            graphed: capture it, unless that was done or has failed before. A graph that is
                there is replayed in any case.
        """
        if graphed and self._graph is None and self._capturable:
            try:
                self._graph = self._capture(lambda: self._launch_(update_), self._state.device)
            except GraphMemoryError as error:
                say_eager(error)
            self._capturable = self._graph is not None
        if self._graph is None:
            self._launch_(update_)
        else:
            self._graph.replay()

    def _launch_(self, update_: Callable[[], None]) -> None:
        if self._placement is not None:
            self._placement.copy_()
        update_()
        if self._brings:
            self.answer().copy_()
