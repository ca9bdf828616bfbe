"""Energies and forces of many structures by a potential, in mixed precision."""

from collections.abc import Callable, Sequence

import torch

from mdgraph import load
from mdgraph.engine.batches import Batches
from mdgraph.engine.potentials import as_evaluator
from mdgraph.engine.results import Result
from mdgraph.precision import precision_named
from mdgraph.system import System


def evaluation(
    potential: str, device: torch.device
) -> Callable[[Sequence[System], str], list[Result]]:
    """What gives the results of structures in their order; errors call them by a name."""
    precision = precision_named("mixed")
    evaluator = as_evaluator(load(potential), precision, device, "auto")
    batches = Batches(evaluator, device, precision)

    def results(systems: Sequence[System], name: str) -> list[Result]:
        found = dict(batches.evaluate(systems, [name] * len(systems)))
        return [found[place] for place in range(len(systems))]

    return results
