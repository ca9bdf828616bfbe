"""Moving a system to a minimum of its energy with ASE's optimizer."""

import logging
from typing import Final

import numpy as np
import torch
from ase.optimize import FIRE

from mdgraph.drivers.ase import MDGraphCalculator
from mdgraph.evaluators import Evaluator
from mdgraph.io.structures import to_ase
from mdgraph.models import Potential
from mdgraph.precision import Precision
from mdgraph.system import System

logger = logging.getLogger(__name__)

LARGEST_FORCE: Final = 0.05
"""eV/A at which a minimum counts as found; far below what 300 K stirs up."""

STEPS: Final = 500


def minimized(
    system: System,
    potential: Potential | Evaluator,
    device: str | torch.device = "auto",
    precision: str | Precision = "mixed",
    *,
    evaluator: str = "auto",
    check: bool = True,
    largest_force: float = LARGEST_FORCE,
    steps: int = STEPS,
) -> System:
    """A copy with its atoms moved downhill by FIRE (DOI 10.1103/PhysRevLett.97.170201).

    Args:
        system: where to begin; its velocities, cell and charge are kept.
        potential: what gives the forces.
        device: see MDGraphCalculator.
        precision: see MDGraphCalculator.
        evaluator: see MDGraphCalculator.
        check: see MDGraphCalculator.
        largest_force: eV/A, on any atom; it stops below.
        steps: it stops after as many, and says so.

    Raises:
        InputError: the potential refuses the system.
    """
    atoms = to_ase(system)
    atoms.calc = MDGraphCalculator(
        potential, device, precision, system.charge, evaluator=evaluator, check=check
    )
    before = atoms.get_potential_energy()
    with FIRE(atoms, logfile=None) as optimizer:
        found = optimizer.run(fmax=largest_force, steps=steps)
        taken = optimizer.nsteps
    left = float(np.linalg.norm(atoms.get_forces(), axis=1).max())
    logger.log(
        logging.INFO if found else logging.WARNING,
        "%s after %d steps: the energy fell by %.4g eV, and the largest force is %.3g eV/A",
        "Minimised" if found else "No minimum",
        taken,
        before - atoms.get_potential_energy(),
        left,
    )
    return system.replace(positions=atoms.positions)
