"""MartynaTobiasKlein: deterministic dynamics at constant temperature and pressure."""

from copy import copy
from typing import ClassVar, Final

import torch
from torch import Tensor

from mdgraph.arguments import checked, renamed_keywords
from mdgraph.engine.integrators.base import Chains, Evaluate, Integrator
from mdgraph.engine.kinetics import Deformation, kinetic_energy, kinetic_tensor, volume
from mdgraph.engine.schedules import Value
from mdgraph.errors import InputError
from mdgraph.state import State
from mdgraph.units import ACCELERATION, BOLTZMANN

_AXES: Final = {
    "isotropic": ((1.0, 1.0, 1.0),),
    "semiisotropic": ((1.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
    "semiisotropic-fixed-z": ((1.0, 1.0, 0.0),),
}
"""Which of x, y, z share each rate of strain."""


class MartynaTobiasKlein(Integrator):
    """Constant temperature and pressure, deterministic; time reversible.

    x_a'    = v_a + w_a x_a
    v_a'    = f_a / m - (w_a + tr w / N_f) v_a - v_1 v_a
    h_a'    = w_a h_a
    W_j w_j' = sum over the axes a of j of (2K_aa + virial_aa + 2K / N_f - P V) - W_j u_1 w_j

    for a = x, y, z, with W_j = n_j (N_f + 3) kT tau_p^2 / 3, and two chains of `Chains`: that of
    the atoms, with n = N_f and the first velocity v_1, and that of the cell, with n the number
    of rates and the first velocity u_1. `isotropic`: one rate w of all three axes, n_j = 3.
    `semiisotropic`: one of x and y, n_j = 2, and one of z, n_j = 1; `semiisotropic-fixed-z`: that
    of x and y alone, and w_z = 0. So V' = V tr w, and the areas and lengths of an ideal gas are
    distributed as (A L)^(N_f/3) exp(-P A L / kT) dA dL.

    A step is half a step of the chains, of w and of the velocities, a step of positions and
    cell, and half a step of velocities, w and chains. K + U + P V + the sum of W_j w_j^2 / 2 +
    the energy of both chains is conserved.

    =========  ==================
    dt, T      `timestep`, fs; `temperature`, K
    x, v, f    `state.positions`, A; `state.velocities`, A/fs; `state.forces`, eV/A
    m          `state.masses`, amu
    h          `state.cell`, A
    tau        `tau` of the chain of the atoms, fs
    tau_p      `tau_p` of the cell and of its chain, fs
    P          `pressure`, eV/A^3 (`mdgraph.units.BAR`)
    w          rates of strain, `strain.rate` (S,), or (S, 2) if two, in restart files, 1/fs
    W_j, n_j   `mass`, eV fs^2, and number of axes of a rate
    N_f        degrees of freedom, `state.degrees`
    V          volume, A^3
    2K         kinetic tensor, eV; K its trace / 2; U `state.energy`, eV
    =========  ==================

    DOI 10.1063/1.467468, of which a semiisotropic cell is the fully flexible form with the
    strain averaged over x and y; splitting, DOI 10.1088/0305-4470/39/19/S18.
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
        cell_dof: str = "isotropic",
    ) -> None:
        """Sets the parameters.

        Args:
            timestep: fs.
            temperature: of the bath, K.
            pressure: eV/A^3.
            tau: coupling time of the chain of the atoms, fs.
            tau_p: coupling time of the cell and of its chain, fs.
            cell_dof: how the cell changes: `isotropic`, `semiisotropic` (x and y by one factor,
                z by another) or `semiisotropic-fixed-z`.

        Raises:
            InputError: an invalid number or word.
        """
        if cell_dof not in _AXES:
            *words, last = _AXES
            raise InputError(
                f"{self.name} varies a cell in other ways than '{cell_dof}'; choose "
                f"{', '.join(words)} or {last}, or stochastic cell rescaling."
            )
        self._deformation = Deformation(cell_dof)
        super().__init__(
            timestep=timestep,
            temperature=temperature,
            pressure=pressure,
            tau=tau,
            tau_p=tau_p,
        )

    def allocate(self, state: State) -> None:
        """See Integrator."""
        self._deformation = copy(self._deformation)
        self._deformation.allocate(state)
        super().allocate(state)
        systems, axes = state.grouping.systems, _AXES[self._deformation.cell_dof]
        self._axes = torch.tensor(axes, dtype=torch.float64, device=state.device)
        shape = (systems, len(axes))
        self._rates = torch.zeros(shape, dtype=torch.float64, device=state.device)
        # Chains of the atoms of all systems, followed by the chains of their cells.
        self._chains = Chains(2 * systems, state.device)
        self._cells = torch.full_like(state.energy, float(len(axes)))
        if self.by_kernels:
            from mdgraph.engine.kernels.cell import BarostatKernels

            chains = self._chains
            buffers = (chains.weights, chains.positions, chains.velocities)
            self._kernels = BarostatKernels(
                state, self._schedules, buffers, self._rates, self._deformation.cell_dof
            )

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
        masses = self._masses(now["thermal"], now["cell_tau"])
        time = now["timestep"]
        kick = 0.5 * ACCELERATION * state.of_atoms(time) * state.inverse_masses[:, None]

        scale, twice_kinetic = self._thermostat_(state, now, masses)
        square = scale.square()
        self._push_(
            state, now, square * twice_kinetic, self._along(state) * square[:, None], masses
        )
        rates = self._of_axes()
        friction = 0.25 * time[:, None] * (rates + (rates.sum(-1) / degrees)[:, None])
        decay, gain = torch.exp(-2.0 * friction), torch.exp(-friction) * _sinhc(friction)
        kick_force = kick * _of_atoms(state, gain) * state.forces
        state.velocities.mul_(_of_atoms(state, scale[:, None] * decay)).add_(kick_force)

        strain = rates * time[:, None]
        stretch = torch.exp(strain)
        drift = torch.exp(0.5 * strain) * _sinhc(0.5 * strain) * time[:, None]
        displacement = _of_atoms(state, drift) * state.velocities
        state.positions.mul_(_of_atoms(state, stretch)).add_(displacement)
        state.cell *= stretch.to(state.dtype)[:, None, :]
        evaluate()

        kick_force = kick * _of_atoms(state, gain) * state.forces
        state.velocities.mul_(_of_atoms(state, decay)).add_(kick_force)
        self._push_(state, now, 2.0 * kinetic_energy(state), self._along(state), masses)
        scale, _ = self._thermostat_(state, now, masses)
        state.velocities *= state.of_atoms(scale)
        state.step += 1

    def _masses(self, thermal: Tensor, tau: Tensor) -> Tensor:
        """W_j (S, rates), eV fs^2."""
        mass = (self._state.degrees.clamp(min=1.0) + 3.0) * thermal * tau.square()
        return mass[:, None] * (self._axes.sum(-1) / 3.0)

    def _of_axes(self) -> Tensor:
        """Rates of strain (S, 3) of x, y, z, 1/fs."""
        return (self._rates[..., None] * self._axes).sum(1)

    def _along(self, state: State) -> Tensor:
        """Sum of 2K_aa over the axes of each rate, (S, rates) eV."""
        if self._deformation.cell_dof == "isotropic":
            return 2.0 * kinetic_energy(state)[:, None]
        diagonal = kinetic_tensor(state).diagonal(dim1=-2, dim2=-1)
        return (diagonal[:, None] * self._axes).sum(-1)

    def _thermostat_(
        self, state: State, now: dict[str, Tensor], masses: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Half a step of the chains.

        Returns the factor (S,) for the velocities, and 2K (S,) of the velocities before it.
        """
        degrees = torch.cat([state.degrees.clamp(min=1.0), self._cells])
        twice_kinetic = 2.0 * kinetic_energy(state)
        energies = torch.cat([twice_kinetic, (masses * self._rates.square()).sum(-1)])
        thermal, tau = now["thermal"].repeat(2), torch.cat([now["tau"], now["cell_tau"]])
        half = 0.5 * now["timestep"].repeat(2)
        atoms, cell = self._chains.advance_(
            energies / (degrees * thermal), degrees, tau, half
        ).chunk(2)
        self._rates *= cell[:, None]
        return atoms, twice_kinetic

    def _push_(
        self, state: State, now: dict[str, Tensor], twice: Tensor, along: Tensor, masses: Tensor
    ) -> None:
        """Half a step of the rates under 2K (S,), its parts (S, rates), virial and pressure."""
        virial = state.virial.diagonal(dim1=-2, dim2=-1)
        degrees = state.degrees.clamp(min=1.0)
        each = twice / degrees - now["pressure"] * volume(state)
        force = along + (virial[:, None] * self._axes).sum(-1)
        force = force + each[:, None] * self._axes.sum(-1)
        self._rates += 0.5 * now["timestep"][:, None] * force / masses

    def conserved_energy(self) -> Tensor | None:
        """See Integrator."""
        state, values = self._state, self.values()
        degrees = state.degrees.clamp(min=1.0)
        thermal = BOLTZMANN * values["temperature"]
        moving = (self._masses(thermal, values["tau_p"]) * self._rates.square()).sum(-1)
        cell = 0.5 * moving + values["pressure"] * volume(state)
        freedom = torch.cat([degrees, self._cells])
        tau = torch.cat([values["tau"], values["tau_p"]])
        chains = self._chains.energy(freedom, thermal.repeat(2), tau).view(2, -1).sum(0)
        return state.energy + kinetic_energy(state) + cell + chains

    def tensors(self) -> dict[str, Tensor]:
        """See Integrator."""
        # A single rate is stored as (S,), as files of before have it.
        rates = {"strain.rate": self._rates.squeeze(-1)}
        return super().tensors() | self._chains.tensors() | rates

    def settings(self) -> dict[str, float | str | list[float]]:
        """See Integrator."""
        varies = self._deformation.cell_dof
        return super().settings() | ({} if varies == "isotropic" else {"cell_varies": varies})


def _of_atoms(state: State, rows: Tensor) -> Tensor:
    """Gives every atom its system's row: (S, 3) to (N, 3) T, or (1, 3)."""
    rows = rows.to(state.dtype)
    return rows if len(rows) == 1 else rows.index_select(0, state.grouping.index)


def _sinhc(x: Tensor) -> Tensor:
    """sinh(x) / x, by its series: strains of half a step are far below 1."""
    square = x.square()
    return 1.0 + square / 6.0 * (1.0 + square / 20.0 * (1.0 + square / 42.0))
