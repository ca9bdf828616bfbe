"""Which labels of a frame mean something."""

import numpy as np

from mdgraph.data import LabelledFrame


def has_dipole(frame: LabelledFrame) -> bool:
    """Whether it has one that means something, wherever the origin is."""
    known = frame.dipole is not None and bool(np.isfinite(frame.dipole).all())
    return known and frame.charge == 0.0 and not frame.pbc.any()


def has_stress(frame: LabelledFrame) -> bool:
    """Whether it has one, and a volume that it belongs to."""
    known = frame.stress is not None and bool(np.isfinite(frame.stress).all())
    return known and bool(frame.pbc.any()) and np.linalg.matrix_rank(frame.cell) == 3
