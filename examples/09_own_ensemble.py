"""An ensemble of your own, in one file: the Andersen thermostat, from Python and as a command.

python examples/09_own_ensemble.py --steps 400
python examples/09_own_ensemble.py md --ensemble nvt-andersen --collision-rate-per-ps 5

The decorator gives the integrator a word and its options, so `mdgraph md`, protocols and
--resume know them wherever this module is imported first.
"""

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor

from mdgraph.cli import main as mdgraph
from mdgraph.engine import Integrator, Simulation
from mdgraph.engine.integrators import Evaluate
from mdgraph.engine.random import DYNAMICS, THERMOSTAT, gaussians, uniforms
from mdgraph.engine.schedules import Quantity, Value
from mdgraph.ensembles import Option, ensemble
from mdgraph.io.structures import read_system
from mdgraph.state import State
from mdgraph.units import ACCELERATION, BOLTZMANN

WATER = Path(__file__).resolve().parent.parent / "data" / "water27.extxyz"


@ensemble(
    "nvt-andersen",
    options=(
        Option(
            "collision_rate_per_ps",
            keyword="collision_rate",
            default=1.0,
            help="how often an atom collides with the bath",
            unit="1/ps",
            above=0.0,
            most=1e6,
        ),
    ),
)
class Andersen(Integrator):
    """Canonical dynamics by collisions, at which an atom draws its velocity anew.

    v(t + dt/2) = v(t) + dt/2 f(t) / m
    x(t + dt)   = x(t) + dt v(t + dt/2)
    v(t + dt)   = v(t + dt/2) + dt/2 f(t + dt) / m
    v           <- sqrt(kT / m) R   with probability 1 - exp(-nu dt), for each atom

    =========  ==================
    dt         `timestep`, fs
    T          `temperature`, K
    nu         `collision_rate`, 1/ps
    R          normal numbers of (seed, step, replica, atom)
    =========  ==================

    DOI 10.1063/1.439486.
    """

    name = "Andersen"
    conserves_momentum = False
    quantities: ClassVar[Mapping[str, Quantity]] = {
        "collision_rate": Quantity("collision rate", "collision_rate_per_ps", "1/ps")
    }

    def __init__(self, timestep: float, temperature: Value, collision_rate: Value = 1.0) -> None:
        super().__init__(timestep=timestep, temperature=temperature, collision_rate=collision_rate)

    def coefficients(self, steps: Tensor, values: dict[str, Tensor]) -> dict[str, Tensor]:
        """See Integrator."""
        timestep = values["timestep"]
        return {
            "kick": 0.5 * ACCELERATION * timestep,
            "drift": timestep,
            "collides": 1.0 - torch.exp(-1e-3 * values["collision_rate"] * timestep),
            "width": torch.sqrt(BOLTZMANN * ACCELERATION * values["temperature"]),
        }

    def step_(self, state: State, evaluate: Evaluate) -> None:
        """See Integrator."""
        kick, drift, collides, width = (state.of_atoms(row) for row in self.now().values())
        kick = kick * state.inverse_masses[:, None]
        state.velocities.addcmul_(kick, state.forces)
        state.positions.addcmul_(drift, state.velocities)
        evaluate()
        state.velocities.addcmul_(kick, state.forces)
        key = (state.seed, state.step, state.replica[state.grouping.index], state.atom)
        drawn = width * torch.sqrt(state.inverse_masses)[:, None] * gaussians(*key, THERMOSTAT)
        hit = uniforms(*key, DYNAMICS)[:, :1] < collides
        state.velocities.copy_(torch.where(hit, drawn.to(state.dtype), state.velocities))
        state.step += 1


def main() -> None:
    parser = argparse.ArgumentParser(description="27 water molecules in an Andersen bath.")
    parser.add_argument("--steps", type=int, default=400, help="of 0.5 fs")
    arguments = parser.parse_args()

    simulation = Simulation(read_system(WATER), "water-pbe0", Andersen(0.5, 300.0, 50.0), seed=1)
    simulation.run(arguments.steps)
    thermo = simulation.observables()
    print(f"{thermo.time:.1f} fs, {float(thermo.temperature[0]):.0f} K")


if __name__ == "__main__":
    if sys.argv[1:2] == ["md"]:
        mdgraph()
    main()
