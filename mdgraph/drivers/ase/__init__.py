"""mdgraph under ASE: a calculator, and dynamics and relaxation with ASE's own interface."""

from typing import Final, NoReturn

from mdgraph.drivers.ase.barostats import IsotropicMTKNPT, StochasticCellRescaling
from mdgraph.drivers.ase.calculator import MDGraphCalculator
from mdgraph.drivers.ase.committee import CommitteeCalculator
from mdgraph.drivers.ase.fire import FIRE
from mdgraph.drivers.ase.potentials import FROM_CHECKPOINT
from mdgraph.drivers.ase.relax import relax
from mdgraph.drivers.ase.results import NoStressError
from mdgraph.drivers.ase.thermostats import (
    Bussi,
    Langevin,
    NoseHooverChainNVT,
    VelocityVerlet,
)
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
    "StochasticCellRescaling",
    "VelocityVerlet",
    "relax",
]

_INSTEAD: Final = {
    "Andersen": "Langevin or Bussi",
    "Inhomogeneous_NPTBerendsen": "StochasticCellRescaling(..., ways='axes')",
    "LangevinBAOAB": "Langevin, whose positions are those of BAOAB, or StochasticCellRescaling",
    "MTKNPT": "IsotropicMTKNPT, or StochasticCellRescaling(..., ways='full')",
    "MaskedMTKNPT": "StochasticCellRescaling(..., ways='axes')",
    "MelchionnaNPT": "StochasticCellRescaling(..., ways='full'), externalstress as pressure_au",
    "NPT": "StochasticCellRescaling(..., ways='full'), externalstress as pressure_au",
    "NPTBerendsen": "StochasticCellRescaling, which takes its arguments",
    "NVTBerendsen": "Bussi(..., fixcm=True)",
}


class NotOfferedError(MDGraphError, ImportError):
    """Dynamics of ASE that the engine does not have."""


def __getattr__(name: str) -> NoReturn:
    if name in _INSTEAD:
        raise NotOfferedError(f"mdgraph has no {name}; take {_INSTEAD[name]}.")
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
