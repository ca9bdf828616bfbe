"""Rungs: the ways in which a step can be taken, from plain automatic differentiation up."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import torch

from mdgraph.engine import Simulation
from mdgraph.engine.simulation import WORTHWHILE
from mdgraph.engine.stepping import LONGEST, Stepping
from mdgraph.errors import MDGraphError
from mdgraph.graphs import captured
from mdgraph.neighbors.skins import default_skin
from mdgraph.runs.timing import Repeated

NO_GRAPH: Final = "no CUDA graph could be captured; the log says why"


class MissingError(MDGraphError):
    """A rung is not there; the message says why."""


@dataclass(frozen=True)
class Rung:
    """A way to take a step.

    Attributes:
        name: what people call it; the evaluator comes before it.
        evaluator: `fused` or `reference`, or None for the one that was chosen.
        threads: of a CPU, or None for all.
        prepared: readies a simulation and returns what takes so many steps.
    """

    name: str
    evaluator: str | None
    prepared: Callable[[Simulation], Repeated]
    threads: int | None = None

    def named(self, evaluator: str) -> str:
        """The name with that of the evaluator."""
        return f"{self.evaluator or evaluator}, {self.name}"


def rungs_of(device: torch.device) -> tuple[Rung, ...]:
    """All rungs of a device, the slowest first; the last is how `mdgraph md` runs."""
    if device.type == "cuda":
        return (
            Rung("eager", "reference", _eager),
            Rung("list and forces in a graph", "reference", _forces_in_a_graph),
            Rung("eager", "fused", _eager),
            Rung("list and forces in a graph", "fused", _forces_in_a_graph),
            Rung("whole step in a graph", None, _in_graphs_of(1)),
            Rung(f"{LONGEST} steps in a graph", None, _in_graphs_of(LONGEST)),
            Rung("graph and skin as measured", None, _as_measured),
        )
    threads = torch.get_num_threads()
    several = f"{threads} threads" if threads > 1 else "1 thread"
    every = "list every step"
    skin = default_skin(device)
    more = (Rung(f"{several}, {every}", "fused", _with_skin(0.0)),) if threads > 1 else ()
    return (
        Rung(f"{several}, {every}", "reference", _with_skin(0.0)),
        Rung(f"1 thread, {every}", "fused", _with_skin(0.0), threads=1),
        *more,
        Rung(f"{several}, skin of {skin:g} A", None, _with_skin(skin)),
    )


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """Lets torch, and the kernels, use so many threads within the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _with_skin(skin: float) -> Callable[[Simulation], Repeated]:
    def prepared(simulation: Simulation) -> Repeated:
        simulation.set_skin(skin)
        return simulation.run

    return prepared


def _eager(simulation: Simulation) -> Repeated:
    simulation.stepping.graphed = False
    return _with_skin(0.0)(simulation)


def _forces_in_a_graph(simulation: Simulation) -> Repeated:
    """A graph of list, energy, forces and virial; the integrator stays outside."""
    simulation.set_skin(0.0)
    with simulation.unchanged():
        graph = captured(simulation.calculation.update_, simulation.calculation.device)
    if graph is None:
        raise MissingError(NO_GRAPH)
    return advancing(simulation, graph.replay, graphed=False)


def _in_graphs_of(length: int) -> Callable[[Simulation], Repeated]:
    def prepared(simulation: Simulation) -> Repeated:
        simulation.stepping.graphed, simulation.stepping.longest = True, length
        run = _with_skin(0.0)(simulation)
        with simulation.unchanged():
            run(1)
        if not simulation.graphed:
            raise MissingError(NO_GRAPH)
        return run

    return prepared


def _as_measured(simulation: Simulation) -> Repeated:
    simulation.choose(WORTHWHILE)
    return simulation.run


def advancing(simulation: Simulation, update: Callable[[], None], graphed: bool) -> Repeated:
    """What takes steps in which something else stands for lists and forces, unwatched."""

    def step(number: int | None) -> None:
        with torch.no_grad():
            simulation.integrator.step_(simulation.state, update)

    now = simulation
    stepping = Stepping(step, now.integrator, now.unchanged, now.calculation.device)
    stepping.graphed, stepping.longest = graphed, now.stepping.longest

    def advance(count: int) -> None:
        stepping.advance_(now.step, count)
        now.step += count

    return advance
