"""mdgraph under ASE: a calculator, and dynamics and relaxation with ASE's own interface."""

from typing import Final, NoReturn

from mdgraph.drivers.arguments import FROM_CHECKPOINT
from mdgraph.drivers.ase.calculator import CommitteeCalculator, MDGraphCalculator, NoStressError
from mdgraph.drivers.ase.ensembles import (
    Bussi,
    IsotropicMTKNPT,
    Langevin,
    NoseHooverChainNVT,
    SemiisotropicMTKNPT,
    StochasticCellRescaling,
    VelocityVerlet,
)
from mdgraph.drivers.ase.optimize import FIRE, relax
from mdgraph.errors import MDGraphError

__all__ = [
    "FIRE",
    "FROM_CHECKPOINT",
    "Bussi",
    "CommitteeCalculator",
    "IsotropicMTKNPT",
    "Langevin",
    "MDGraphCalculator",
    "NoStressError",
    "NoseHooverChainNVT",
    "SemiisotropicMTKNPT",
    "StochasticCellRescaling",
    "VelocityVerlet",
    "relax",
]

_INSTEAD: Final = {
    "Andersen": "Langevin or Bussi",
    "Inhomogeneous_NPTBerendsen": "StochasticCellRescaling(..., cell_dof='axes')",
    "LangevinBAOAB": "Langevin, whose positions are those of BAOAB, or StochasticCellRescaling",
    "MTKNPT": "IsotropicMTKNPT, or StochasticCellRescaling(..., cell_dof='full')",
    "MaskedMTKNPT": "StochasticCellRescaling(..., cell_dof='axes')",
    "MelchionnaNPT": "StochasticCellRescaling(..., cell_dof='full'), externalstress as pressure_au",
    "NPT": "StochasticCellRescaling(..., cell_dof='full'), externalstress as pressure_au",
    "NPTBerendsen": "StochasticCellRescaling, which takes its arguments",
    "NVTBerendsen": "Bussi(..., fixcm=True)",
}


class NotOfferedError(MDGraphError, ImportError):
    """ASE has these dynamics and the engine does not."""


def __getattr__(name: str) -> NoReturn:
    if name in _INSTEAD:
        raise NotOfferedError(f"mdgraph has no {name}; take {_INSTEAD[name]}.")
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
