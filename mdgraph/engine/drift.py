"""A word about precisions whose rounding feeds energy into a run that should keep it."""

import logging

from mdgraph.engine.integrators import Integrator
from mdgraph.evaluators import Evaluator
from mdgraph.precision import Precision

logger = logging.getLogger(__name__)


def warn_of_drift(evaluator: Evaluator, precision: Precision, integrator: Integrator) -> None:
    """Logs a warning where forces are rounded and no bath takes up the heat.

    Args:
        evaluator: what computes; `fast` is rounded by Triton's kernels alone.
        precision: of the evaluator.
        integrator: with its buffers; does not sync.
    """
    bath = "temperature" in integrator.given or integrator.cell_varies
    rounds = getattr(evaluator, "rounds", False)
    if rounds and not bath and integrator.conserved_energy() is not None:
        logger.warning(
            "Precision %s rounds forces, which are then not the exact derivative of an energy, "
            "so the total energy drifts at constant energy; choose mixed.",
            precision.name,
        )
