"""Potentials by what a user names, and the charges that they take."""

import math
from pathlib import Path
from typing import Any

import torch

from mdgraph.checkpoints import load
from mdgraph.errors import InputError
from mdgraph.evaluators import AutogradEvaluator, Evaluator
from mdgraph.fused.choice import check_evaluator_name, chosen_evaluator
from mdgraph.models import TensorNetPotential
from mdgraph.precision import Precision


def as_evaluator(
    potential: Any, precision: Precision, device: torch.device, evaluator: str = "auto"
) -> Evaluator:
    """An evaluator from a path, a shipped name, a potential or an evaluator.

    Raises:
        InputError: see `chosen_evaluator`.
    """
    if isinstance(potential, str | Path):
        potential = load(potential)
    if isinstance(potential, TensorNetPotential):
        return chosen_evaluator(potential, precision, device, evaluator)
    check_evaluator_name(evaluator)
    if hasattr(potential, "evaluate_"):
        given: Evaluator = potential
        return given
    return AutogradEvaluator(potential)


def check_charge(evaluator: Evaluator, charge: float) -> None:
    """Raises InputError for a total charge (e) that the potential cannot take."""
    if not math.isfinite(charge):
        raise InputError(f"The total charge is {charge}; give a finite number of e.")
    if charge and not uses_charge(evaluator):
        raise InputError(
            f"The total charge is {charge:g} e, but the potential knows no charges; "
            "give charge 0 or choose a potential trained with charges."
        )


def uses_charge(evaluator: Evaluator) -> bool:
    """Whether the total charge enters the energy, or may do so where nothing says."""
    potential = getattr(evaluator, "potential", None)
    return bool(getattr(potential, "uses_charge", True))
