"""Energies of many structures at once, in their order."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from mdgraph.engine.batches import Batches
from mdgraph.engine.calculation import EvaluationResult, as_evaluator
from mdgraph.precision import precision_named
from mdgraph.system import System

Evaluate = Callable[[Sequence[System], str], list[EvaluationResult]]
"""Returns the results of structures in their order; errors call the structures by the name."""


def evaluate_with(potential: Any, device: torch.device, precision: str = "mixed") -> Evaluate:
    """A function that evaluates structures in batches.

    Args:
        potential: path, shipped name, potential or evaluator.
        device: of the evaluation.
        precision: see `mdgraph.precision`.
    """
    rounding = precision_named(precision)
    batches = Batches(as_evaluator(potential, rounding, device, "auto"), device, rounding)

    def results(systems: Sequence[System], name: str) -> list[EvaluationResult]:
        by_place = dict(batches.evaluate(systems, [name] * len(systems)))
        return [by_place[place] for place in range(len(systems))]

    return results
