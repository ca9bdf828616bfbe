"""What a calculator was given as its potential."""

from pathlib import Path
from typing import Any, Final

from mdgraph.checkpoints import load
from mdgraph.errors import InputError
from mdgraph.models import TensorNetPotential

FROM_CHECKPOINT: Final = "from checkpoint"


def named_potential(potential: Any, coulomb_cutoff: float | str | None) -> tuple[str, Any]:
    """The potential or evaluator, and a name for it.

    Args:
        potential: path, name of a shipped potential, Potential or Evaluator.
        coulomb_cutoff: A, or None for all pairs; FROM_CHECKPOINT leaves it as it is.

    Raises:
        FileError: the potential cannot be read.
        CheckpointError: it is not a potential.
        InputError: a cutoff that cannot be, or for a potential that sets its own.
    """
    name, loaded = type(potential).__name__, potential
    if isinstance(potential, str | Path):
        name, loaded = str(potential), load(potential)
    if not isinstance(coulomb_cutoff, str):
        if not isinstance(loaded, TensorNetPotential):
            raise InputError(
                f"A Coulomb cutoff is given, but {type(loaded).__name__} sets its own; "
                "leave the cutoff out."
            )
        loaded = loaded.with_coulomb_cutoff(coulomb_cutoff)
    elif coulomb_cutoff != FROM_CHECKPOINT:
        raise InputError(
            f"Unknown coulomb_cutoff '{coulomb_cutoff}'; give a number of A, None for all "
            f"pairs, or '{FROM_CHECKPOINT}'."
        )
    return name, loaded
