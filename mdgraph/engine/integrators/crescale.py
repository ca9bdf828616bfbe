"""StochasticCellRescaling: constant temperature and pressure by random factors."""

from collections.abc import Sequence
from copy import copy
from typing import ClassVar

import torch
from torch import Tensor

from mdgraph.arguments import checked, renamed_keywords
from mdgraph.engine.integrators.bussi import StochasticVelocityRescaling
from mdgraph.engine.kinetics import Deformation, enthalpy_work, kinetic_tensor, volume
from mdgraph.engine.random import BAROSTAT, gaussians
from mdgraph.engine.schedules import Value
from mdgraph.state import State
from mdgraph.units import BAR


class StochasticCellRescaling(StochasticVelocityRescaling):
    """Canonical dynamics of StochasticVelocityRescaling in a cell under constant pressure.

    ds_a = b G_a dt + sqrt(2 b kT) dW_a
    G_a  = sum over components of (2K + W - P V) A_a

    `isotropic`: s = ln V and b = beta / (tau_p V), which is the published
    d ln V = beta / tau_p (P_int - P) dt + sqrt(2 kT beta / (V tau_p)) dW.
    `semiisotropic`: with P_ab = (2K + W)_ab / V, the area A of the xy plane and the length L,
    d ln A = 2 beta / (3 tau_p) ((P_xx + P_yy) / 2 - P) dt + sqrt(4 kT beta / (3 V tau_p)) dW_A
    d ln L =   beta / (3 tau_p) (P_zz - P) dt              + sqrt(2 kT beta / (3 V tau_p)) dW_L
    as published, without surface tension; s_a = ln A / sqrt(2) and ln L, b = beta / (3 tau_p V).
    `semiisotropic-fixed-z` is the first of the two alone.
    `axes` and `full`: s_a are the stretches of the vectors, or the six components of a
    symmetric strain, and b = beta / (3 tau_p V), with which ln V relaxes as fast. A step
    multiplies the cell by exp(S), so the noise, whose width depends on V, needs no correction:
    the volume of an ideal gas is distributed as V^(N_f/3) exp(-PV/kT), areas and lengths as
    (A L)^(N_f/3) exp(-P A L / kT) dA dL. No step turns the cell.

    The deformation acts on cell, positions and velocities in the middle of the step, after the
    factor of StochasticVelocityRescaling. It takes the virial of the start of the step and the
    kinetic energy of the middle, so a step evaluates forces once. At the end of a step
    `state.velocities` are those of its middle. No energy is conserved.

    =========  ==================
    dt         `timestep`, fs
    kT         thermal energy at `temperature`, K
    tau        `tau` of the kinetic energy, fs
    tau_p      `tau_p` of the volume, fs
    P          `pressure`, eV/A^3 (`mdgraph.units.BAR`)
    beta       `compressibility`, A^3/eV; another value only changes the effective tau_p
    s_a, S     `strains` (S, 1, 2, 3 or 6) and their sum as a matrix, s_a A_a (see `Deformation`)
    b dt       `mobility`, 1/eV
    W_a        noise, normal numbers of (seed, step, replica)
    2K, W      kinetic tensor and virial, eV
    N_f        degrees of freedom, `state.degrees`
    V          volume, A^3
    =========  ==================

    DOI 10.1063/5.0020514, semiisotropic too; anisotropic, DOI 10.3390/app12031139.
    """

    name: ClassVar[str] = "stochastic cell rescaling"
    cell_varies = True

    @renamed_keywords(relaxation="tau", cell_relaxation="tau_p", ways="cell_dof")
    @checked
    def __init__(
        self,
        timestep: float,
        temperature: Value,
        pressure: Value,
        *,
        tau: Value = 100.0,
        tau_p: Value = 1000.0,
        compressibility: Value = 4.5e-5 / BAR,
        cell_dof: str = "isotropic",
        axes: Sequence[bool] | None = None,
    ) -> None:
        """Sets the parameters.

        Args:
            timestep: fs.
            temperature: of the bath, K.
            pressure: eV/A^3.
            tau: coupling time of the kinetic energy, fs.
            tau_p: coupling time of the volume, fs.
            compressibility: A^3/eV; that of water by default.
            cell_dof: how the cell changes: `isotropic`, `semiisotropic` (x and y by one factor,
                z by another), `semiisotropic-fixed-z`, `axes` or `full`, see Deformation.
            axes: with `axes`, which cell vectors change their length; None takes all periodic
                ones.

        Raises:
            InputError: an invalid number or word.
        """
        super().__init__(timestep, temperature, tau)
        for name, value in (
            ("pressure", pressure),
            ("tau_p", tau_p),
            ("compressibility", compressibility),
        ):
            self.parameters[name] = self._schedule(name, value)
        self._deformation = Deformation(cell_dof, axes)

    def allocate(self, state: State) -> None:
        """See Integrator."""
        self._deformation = copy(self._deformation)
        self._deformation.allocate(state)
        self._six = torch.arange(2, device=state.device)
        super().allocate(state)

    def coefficients(self, steps: Tensor, values: dict[str, Tensor]) -> dict[str, Tensor]:
        """See Integrator."""
        state = self._state
        change = self._deformation
        draws = gaussians(state.seed, steps[..., None], state.replica[:, None], self._six, BAROSTAT)
        noise = {f"noise{n}": draws.flatten(-2)[..., n] for n in range(change.count)}
        mobility = values["timestep"] * values["compressibility"] / values["tau_p"]
        own = {
            "pressure": values["pressure"],
            "mobility": mobility if change.cell_dof == "isotropic" else mobility / 3.0,
        }
        return super().coefficients(steps, values) | own | noise

    def move_by_kernels_(self, state: State) -> None:
        """See StochasticVelocityRescaling."""
        from mdgraph.engine.kernels.cell import cell_rescaling_step_

        change = self._deformation
        cell_rescaling_step_(
            state, self._schedules, self._heat, self._now, change.varies, change.cell_dof
        )

    def couple_(self, state: State, now: dict[str, Tensor]) -> None:
        """See StochasticVelocityRescaling: the bath, then the deformation."""
        super().couple_(state, now)
        change = self._deformation
        volumes = volume(state)
        work = enthalpy_work(state, now["pressure"]) + kinetic_tensor(state)
        mobility = (now["mobility"] / volumes)[:, None]
        noise = torch.stack([now[f"noise{n}"] for n in range(change.count)], dim=1)
        spread = torch.sqrt(2.0 * mobility * now["thermal"][:, None])
        strains = mobility * change.forces(state, work) + spread * noise
        change.apply_(state, strains, state.velocities)

    def conserved_energy(self) -> Tensor | None:
        """None: the work of the barostat is not summed."""
        return None

    def settings(self) -> dict[str, float | str | list[float]]:
        """See Integrator."""
        return super().settings() | self._deformation.settings()
