"""Shares: what of a step goes into the neighbor list, the model and the integrator."""

from collections.abc import Callable
from typing import Final

import torch

from mdgraph.engine import Simulation
from mdgraph.graphs import captured
from mdgraph.runs.rungs import advancing
from mdgraph.runs.timing import milliseconds, repeating

PARTS: Final = ("model", "neighbor list", "integrator")

_IN_A_GRAPH: Final = 16


def parts(simulation: Simulation, interval: float, seconds: float) -> dict[str, float]:
    """Times of each of `PARTS` in a step, ms, each by itself, as graphs where steps are; syncs.

    Looks of the host and gaps between launches belong to none of them, and what runs side by
    side within a step counts twice, so they need not add up to a step.

    Args:
        simulation: left as it is.
        interval: steps from one build of the list to the next.
        seconds: to be spent, roughly.
    """
    calculation, state, device = simulation.calculation, simulation.state, simulation.state.device
    lists = calculation.lists

    def update_lists() -> None:
        for one in lists:
            one.update_(state.positions, state.cell)

    def build_lists() -> None:
        for one in lists:
            one.rebuild_(state.positions, state.cell)

    def timed(function: Callable[[], None]) -> float:
        graph = captured(function, device, calls=_IN_A_GRAPH) if simulation.graphed else None
        once = function if graph is None else graph.replay
        with torch.no_grad():
            taken = milliseconds(repeating(once), device, seconds / 4.0)
        return taken if graph is None else taken / _IN_A_GRAPH

    with simulation.unchanged():
        model = timed(lambda: calculation.evaluator.evaluate_(state, lists))
        # Atoms that rest need no new list, so an update only looks whether they do.
        neighbors = timed(update_lists) + timed(build_lists) / interval
        moved = advancing(simulation, lambda: None, simulation.graphed)
        integrator = milliseconds(moved, device, seconds / 4.0)
    return dict(zip(PARTS, (model, neighbors, integrator), strict=True))
