"""What a look at a simulation brings, and who looks."""

from dataclasses import dataclass

import torch
from torch import Tensor

from mdgraph.engine.integrators import Integrator
from mdgraph.engine.kinetics import kinetic_energy, pressure, temperature, volume
from mdgraph.state import State


@dataclass(frozen=True)
class Observables:
    """What one look of the host brings, one row a system.

    Attributes:
        step: steps done.
        time: fs.
        potential_energy: (S,) float64, eV.
        kinetic_energy: (S,) float64, eV.
        temperature: (S,) float64, K.
        pressure: (S,) float64, eV/A^3; NaN without a volume.
        volume: (S,) float64, A^3; 0 without three cell vectors.
        conserved_energy: (S,) float64, eV; NaN for dynamics that keep none.
    """

    step: int
    time: float
    potential_energy: Tensor
    kinetic_energy: Tensor
    temperature: Tensor
    pressure: Tensor
    volume: Tensor
    conserved_energy: Tensor


def measured(state: State, integrator: Integrator) -> Tensor:
    """(6, S) float64: rows of `Observables` at the moment, on the device; does not sync."""
    kinetic = kinetic_energy(state)
    conserved = integrator.conserved_energy()
    if conserved is None:
        conserved = torch.full_like(kinetic, torch.nan)
    values = [
        state.energy,
        kinetic,
        temperature(kinetic, state.degrees),
        pressure(state, kinetic),
        volume(state),
        conserved,
    ]
    return torch.stack(values)
