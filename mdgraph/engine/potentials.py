"""Potentials by what a user names, and the charges that they take."""

from pathlib import Path
from typing import Any

import torch

from mdgraph.arguments import real_number
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
        InputError: see `chosen_evaluator`; an evaluator of another precision or device, or
            one beside the name of another; something else.
    """
    if isinstance(potential, str | Path):
        potential = load(potential)
    if isinstance(potential, TensorNetPotential):
        return chosen_evaluator(potential, precision, device, evaluator)
    check_evaluator_name(evaluator)
    if not hasattr(potential, "cutoffs") or not (_is_evaluator(potential) or callable(potential)):
        raise InputError(
            f"{type(potential).__name__} is no potential; give a path, the name of a shipped "
            "potential, a Potential or an Evaluator."
        )
    if not _is_evaluator(potential):
        return AutogradEvaluator(potential)
    given: Evaluator = potential
    if evaluator != "auto":
        raise InputError(
            f"{type(given).__name__} is an evaluator already and cannot become the evaluator "
            f"{evaluator}; give its potential, or leave the name out."
        )
    _check_made_for(given, precision, device)
    return given


def _is_evaluator(potential: Any) -> bool:
    return hasattr(potential, "evaluate_")


def _check_made_for(evaluator: Evaluator, precision: Precision, device: torch.device) -> None:
    """Raises InputError for another precision or device, where the evaluator tells its own."""
    name = type(evaluator).__name__
    made, place = getattr(evaluator, "precision", precision), getattr(evaluator, "device", device)
    reference = evaluator.potential if isinstance(evaluator, AutogradEvaluator) else None
    if isinstance(reference, torch.nn.Module):
        _check_weights(reference, precision)
    if made.name != precision.name:
        raise InputError(
            f"The {name} was made for precision {made.name}, but {precision.name} is asked for; "
            f"ask for {made.name}, or give its potential."
        )
    places = {place.index, device.index} - {None}
    if place.type != device.type or len(places) > 1:
        raise InputError(
            f"The {name} was made on {place}, but {device} is asked for; ask for {place}, or "
            "give its potential."
        )


def _check_weights(reference: torch.nn.Module, precision: Precision) -> None:
    for one in reference.parameters():
        if one.is_floating_point() and one.dtype.itemsize < precision.network.itemsize:
            kind = str(one.dtype).removeprefix("torch.")
            raise InputError(
                f"The evaluator's weights are {kind}, but precision {precision.name} is asked "
                "for; ask for mixed, or give its potential as loaded."
            )


def check_charge(evaluator: Evaluator, charge: float) -> None:
    """Raises InputError for a total charge (e) that the potential cannot take."""
    charge = real_number(charge, "The total charge", "e")
    if charge and not uses_charge(evaluator):
        raise InputError(
            f"The total charge is {charge:g} e, but the potential knows no charges; "
            "give charge 0 or choose a potential trained with charges."
        )


def uses_charge(evaluator: Evaluator) -> bool:
    """Whether the total charge enters the energy, or may do so where nothing says."""
    potential = getattr(evaluator, "potential", None)
    return bool(getattr(potential, "uses_charge", True))
