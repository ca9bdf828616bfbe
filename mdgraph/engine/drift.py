"""A word about precisions whose rounding feeds energy into a run that should keep it."""

import logging

from mdgraph.engine.integrators import Integrator
from mdgraph.precision import Precision

logger = logging.getLogger(__name__)


def warn_of_drift(precision: Precision, integrator: Integrator) -> None:
    """Logs a warning where forces may be rounded and no bath takes up the heat.

    Args:
        precision: of the evaluator.
        integrator: with its buffers; does not sync.
    """
    bath = "temperature" in integrator.given or integrator.cell_varies
    if precision.reduced and not bath and integrator.conserved_energy() is not None:
        logger.warning(
            "Precision %s lets kernels round forces, which are then not the exact derivative of "
            "an energy, so the total energy drifts at constant energy; choose mixed.",
            precision.name,
        )
