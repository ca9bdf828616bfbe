"""MartynaTobiasKlein: deterministic dynamics at constant temperature and pressure."""

from typing import ClassVar

import torch
from torch import Tensor

from mdgraph.arguments import checked, renamed_keywords
from mdgraph.engine.integrators.base import Chains, Evaluate, Integrator
from mdgraph.engine.kinetics import Deformation, kinetic_energy, volume
from mdgraph.engine.schedules import Value
from mdgraph.state import State
from mdgraph.units import ACCELERATION, BOLTZMANN


class MartynaTobiasKlein(Integrator):
    """Constant temperature and pressure in a cell that keeps its shape; time reversible.

    x'   = v + w x
    v'   = f / m - (1 + 3/N_f) w v - v_1 v
    V'   = 3 V w
    W w' = (1 + 3/N_f) 2K + trace of the virial - 3 P V - W u_1 w

    with W = (N_f + 3) kT tau_p^2 and two chains of `Chains`: that of the atoms, with n = N_f
    and the first velocity v_1, and that of the cell, with n = 1 and the first velocity u_1. A
    step is half a step of the chains, of w and of the velocities, a step of positions and
    cell, and half a step of velocities, w and chains. K + U + P V + W w^2 / 2 + the energy of
    both chains is conserved.

    =========  ==================
    dt, T      `timestep`, fs; `temperature`, K
    x, v, f    `state.positions`, A; `state.velocities`, A/fs; `state.forces`, eV/A
    m          `state.masses`, amu
    tau        `tau` of the chain of the atoms, fs
    tau_p      `tau_p` of the cell and of its chain, fs
    P          `pressure`, eV/A^3 (`mdgraph.units.BAR`)
    w          rate of strain, `strain.rate` (S,) in restart files, 1/fs
    W          `mass`, eV fs^2
    N_f        degrees of freedom, `state.degrees`
    V          volume, A^3
    K, U       kinetic energy and `state.energy`, eV
    =========  ==================

    DOI 10.1063/1.467468; splitting, DOI 10.1088/0305-4470/39/19/S18.
    """

    name: ClassVar[str] = "Martyna-Tobias-Klein"
    cell_varies = True
    warm: ClassVar[bool] = True
    has_kernels: ClassVar[bool] = True

    @renamed_keywords(relaxation="tau", cell_relaxation="tau_p")
    @checked
    def __init__(
        self,
        timestep: float,
        temperature: Value,
        pressure: Value,
        *,
        tau: Value = 50.0,
        tau_p: Value = 500.0,
    ) -> None:
        super().__init__(
            timestep=timestep,
            temperature=temperature,
            pressure=pressure,
            tau=tau,
            tau_p=tau_p,
        )

    def allocate(self, state: State) -> None:
        """See Integrator."""
        Deformation("isotropic").allocate(state)
        super().allocate(state)
        systems = state.grouping.systems
        self._rate = torch.zeros(systems, dtype=torch.float64, device=state.device)
        # Chains of the atoms of all systems, followed by the chains of their cells.
        self._chains = Chains(2 * systems, state.device)
        self._ones = torch.ones_like(self._rate)
        if self.by_kernels:
            from mdgraph.engine.kernels.cell import BarostatKernels

            chains = self._chains
            buffers = (chains.weights, chains.positions, chains.velocities)
            self._kernels = BarostatKernels(state, self._schedules, buffers, self._rate)

    def coefficients(self, steps: Tensor, values: dict[str, Tensor]) -> dict[str, Tensor]:
        """See Integrator."""
        return {
            "timestep": values["timestep"],
            "thermal": BOLTZMANN * values["temperature"],
            "pressure": values["pressure"],
            "tau": values["tau"],
            "cell_tau": values["tau_p"],
        }

    def step_(self, state: State, evaluate: Evaluate) -> None:
        """See Integrator."""
        if self.by_kernels:
            self._kernels.half_step_(opens=True)
            evaluate()
            self._kernels.half_step_(opens=False)
            return
        now = self.now()
        degrees = state.degrees.clamp(min=1.0)
        coupling = 1.0 + 3.0 / degrees
        mass = (degrees + 3.0) * now["thermal"] * now["cell_tau"].square()
        time = now["timestep"]
        kick = 0.5 * ACCELERATION * state.of_atoms(time) * state.inverse_masses[:, None]

        scale, twice_kinetic = self._thermostat_(state, now, mass)
        self._push_(state, now, coupling * twice_kinetic, mass)
        friction = 0.25 * coupling * self._rate * time
        decay, gain = torch.exp(-2.0 * friction), torch.exp(-friction) * _sinhc(friction)
        kick_force = kick * state.of_atoms(gain) * state.forces
        state.velocities.mul_(state.of_atoms(scale * decay)).add_(kick_force)

        strain = self._rate * time
        stretch, drift = torch.exp(strain), torch.exp(0.5 * strain) * _sinhc(0.5 * strain) * time
        displacement = state.of_atoms(drift) * state.velocities
        state.positions.mul_(state.of_atoms(stretch)).add_(displacement)
        state.cell *= stretch.to(state.dtype)[:, None, None]
        evaluate()

        kick_force = kick * state.of_atoms(gain) * state.forces
        state.velocities.mul_(state.of_atoms(decay)).add_(kick_force)
        self._push_(state, now, coupling * 2.0 * kinetic_energy(state), mass)
        scale, _ = self._thermostat_(state, now, mass)
        state.velocities *= state.of_atoms(scale)
        state.step += 1

    def _thermostat_(
        self, state: State, now: dict[str, Tensor], mass: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Half a step of the chains.

        Returns the factor (S,) for the velocities, and 2K (S,) of the scaled velocities.
        """
        degrees = torch.cat([state.degrees.clamp(min=1.0), self._ones])
        twice_kinetic = 2.0 * kinetic_energy(state)
        energies = torch.cat([twice_kinetic, mass * self._rate.square()])
        thermal, tau = now["thermal"].repeat(2), torch.cat([now["tau"], now["cell_tau"]])
        half = 0.5 * now["timestep"].repeat(2)
        atoms, cell = self._chains.advance_(
            energies / (degrees * thermal), degrees, tau, half
        ).chunk(2)
        self._rate *= cell
        return atoms, twice_kinetic * atoms.square()

    def _push_(self, state: State, now: dict[str, Tensor], kinetic: Tensor, mass: Tensor) -> None:
        """Half a step of the rate of strain under (1 + 3/N_f) 2K, the virial and the pressure."""
        virial = state.virial.diagonal(dim1=-2, dim2=-1).sum(-1)
        force = kinetic + virial - 3.0 * now["pressure"] * volume(state)
        self._rate += 0.5 * now["timestep"] * force / mass

    def conserved_energy(self) -> Tensor | None:
        """See Integrator."""
        state, values = self._state, self.values()
        degrees = state.degrees.clamp(min=1.0)
        thermal = BOLTZMANN * values["temperature"]
        mass = (degrees + 3.0) * thermal * values["tau_p"].square()
        cell = 0.5 * mass * self._rate.square() + values["pressure"] * volume(state)
        freedom = torch.cat([degrees, self._ones])
        tau = torch.cat([values["tau"], values["tau_p"]])
        chains = self._chains.energy(freedom, thermal.repeat(2), tau).view(2, -1).sum(0)
        return state.energy + kinetic_energy(state) + cell + chains

    def tensors(self) -> dict[str, Tensor]:
        """See Integrator."""
        return super().tensors() | self._chains.tensors() | {"strain.rate": self._rate}


def _sinhc(x: Tensor) -> Tensor:
    """sinh(x) / x, by its series: strains of half a step are far below 1."""
    square = x.square()
    return 1.0 + square / 6.0 * (1.0 + square / 20.0 * (1.0 + square / 42.0))
