"""Which evaluator runs a TensorNet: the fused one where it can, else the reference."""

import logging
from typing import Final

import torch

from mdgraph.errors import InputError
from mdgraph.evaluators import AutogradEvaluator, Evaluator
from mdgraph.fused.evaluator import FusedTensorNet, NotFusedError, obstacle
from mdgraph.fused.tables import TableError
from mdgraph.models import TensorNetConfig, TensorNetPotential
from mdgraph.precision import Precision

logger = logging.getLogger(__name__)

EVALUATORS: Final = ("auto", "fused", "reference")
"""`auto` takes the fused form where there is one and says in the log where there is none."""


def is_fused(config: TensorNetConfig, precision: Precision, name: str = "auto") -> bool:
    """Whether `chosen_evaluator` takes the fused form, if its tables can be made."""
    return _wants_fused(precision, name) and obstacle(config) is None


def _wants_fused(precision: Precision, name: str) -> bool:
    return name == "fused" or (name == "auto" and precision.name != "double")


def check_evaluator_name(name: str) -> None:
    """Raises InputError for a name that is none of EVALUATORS."""
    if not isinstance(name, str) or name not in EVALUATORS:
        raise InputError(f"Unknown evaluator '{name}'; choose one of {', '.join(EVALUATORS)}.")


def chosen_evaluator(
    potential: TensorNetPotential, precision: Precision, device: torch.device, name: str = "auto"
) -> Evaluator:
    """Builds the evaluator of a potential; takes a second or two.

    `double` evaluates the network itself, so it always gets the reference unless the fused
    form is asked for by name.

    Args:
        potential: with float64 weights, as it was loaded.
        precision: of the evaluator.
        device: where it runs.
        name: `auto`, `fused` or `reference`.

    Raises:
        InputError: unknown name, or `fused` is asked for and the potential has no such form.
    """
    check_evaluator_name(name)
    if _wants_fused(precision, name):
        try:
            return FusedTensorNet(potential, precision, device)
        except (NotFusedError, TableError) as reason:
            if name == "fused":
                raise InputError(f"{reason} Choose the evaluator auto or reference.") from reason
            logger.warning("%s The slower reference evaluator runs.", reason)
    return AutogradEvaluator(potential.at_precision(precision.network).to(device))
