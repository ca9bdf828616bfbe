"""FIRE: minimisation with inertia, of atoms alone or with their cell."""

from collections.abc import Sequence
from copy import copy
from typing import ClassVar, Final

import torch
from torch import Tensor

from mdgraph.arguments import checked, renamed_keywords
from mdgraph.engine.integrators.base import Evaluate, Integrator
from mdgraph.engine.kinetics import Deformation, enthalpy_work, volume
from mdgraph.engine.schedules import QUANTITIES, Value
from mdgraph.state import State

_START: Final = 0.1
_LONGEST: Final = 1.0
"""Steps h, in (A^2/eV)^(1/2)."""
_PATIENCE: Final = 5.0
_FASTER: Final = 1.1
_SLOWER: Final = 0.5
_MIXING: Final = 0.1
_FADING: Final = 0.99


class FIRE(Integrator):
    """Fast inertial relaxation engine: a minimiser whose steps are like those of dynamics.

    p = f . v
    p > 0:  v <- (1 - a) v + a |v| f / |f|;  after 5 such steps h <- min(1.1 h, 1), a <- 0.99 a
    else:   v <- 0, h <- h / 2, a <- 0.1
    v <- v + h f
    x <- x + h v, shortened to `largest_step` for the atom that moves most

    Masses are 1, and v are velocities of the minimiser: `state.velocities` stay as they are.
    Where the cell changes, the strains s of `Deformation` are further coordinates l s, with
    forces -(dU/ds + P dV/ds) / l and l = sqrt(N) (V/N)^(1/3), so that their stiffness does not
    depend on the size of the system. Each system has its own h and a. A system rests once the
    forces on its atoms, and the stresses along the strains of its cell, are below the
    tolerances.

    ==========  ==================
    x, f        `state.positions`, A; `state.forces` on atoms that are not fixed, eV/A
    v           `fire.velocities` in restart files; of the strains, `fire.rates`
    h, a        `fire.step` and `fire.mixing` of each system; 0.1 and 0.1 at first
    P           `pressure`, eV/A^3
    N, V, U     atoms, volume and energy of a system
    ==========  ==================

    DOI 10.1103/PhysRevLett.97.170201.
    """

    name: ClassVar[str] = "FIRE"

    @renamed_keywords(ways="cell_dof")
    @checked
    def __init__(
        self,
        force_tolerance: float = 0.05,
        *,
        largest_step: float = 0.2,
        cell_dof: str | None = None,
        axes: Sequence[bool] | None = None,
        pressure: Value = 0.0,
        stress_tolerance: float = 1e-4,
    ) -> None:
        """Sets the parameters.

        Args:
            force_tolerance: largest force on an atom at a minimum, eV/A.
            largest_step: longest step of an atom, A.
            cell_dof: how the cell changes: `isotropic`, `semiisotropic`,
                `semiisotropic-fixed-z`, `axes` or `full`, see Deformation; None keeps the cell.
            axes: with `axes`, which cell vectors change their length; None takes all periodic
                ones.
            pressure: on a cell that changes, eV/A^3.
            stress_tolerance: largest difference of a stress from the pressure at a minimum,
                eV/A^3.

        Raises:
            InputError: an invalid number or word.
        """
        super().__init__(**({} if cell_dof is None else {"pressure": pressure}))
        self.force_tolerance = QUANTITIES["force_tolerance"].checked(force_tolerance)
        self.stress_tolerance = QUANTITIES["stress_tolerance"].checked(stress_tolerance)
        self.largest_step = QUANTITIES["largest_step"].checked(largest_step)
        self._deformation = None if cell_dof is None else Deformation(cell_dof, axes)
        self.cell_varies = cell_dof is not None

    def allocate(self, state: State) -> None:
        """See Integrator."""
        count = 1
        if self._deformation is not None:
            self._deformation = copy(self._deformation)
            self._deformation.allocate(state)
            count = self._deformation.count
        super().allocate(state)
        self._velocities = state.zeros_like(state.positions).double()
        self._rates = torch.zeros_like(state.energy)[:, None].repeat(1, count)
        self._step = torch.full_like(state.energy, _START)
        self._mixing = torch.full_like(state.energy, _MIXING)
        self._downhill = torch.zeros_like(state.energy)

    def step_(self, state: State, evaluate: Evaluate) -> None:
        """See Integrator."""
        forces, pull, length, at_rest = self._forces(state)
        self._turn_(state, forces, pull)
        step = torch.where(at_rest, 0.0, self._step)
        self._velocities += _of_atoms(state, step) * forces
        self._rates += step[:, None] * pull
        moves, strains = _of_atoms(state, step) * self._velocities, step[:, None] * self._rates
        farthest = torch.maximum(_largest(state, moves), strains.abs().amax(-1))
        shortening = (self.largest_step / farthest).clamp(max=1.0)
        state.positions += _of_atoms(state, shortening) * moves
        if self._deformation is not None:
            self._deformation.apply_(state, strains * (shortening / length)[:, None])
        evaluate()
        state.step += 1

    def _forces(self, state: State) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Forces on atoms (N, 3) and strains (S, count), l (S,), and convergence (S,) bool."""
        loose = (state.inverse_masses > 0.0)[:, None]
        forces = torch.where(loose, state.forces, 0.0).double()
        at_rest = _largest(state, forces) < self.force_tolerance
        if self._deformation is None:
            return forces, torch.zeros_like(self._rates), torch.ones_like(self._step), at_rest
        volumes, atoms = volume(state), state.counts.double()
        work = enthalpy_work(state, self.values()["pressure"])
        pull = self._deformation.forces(state, work)
        at_rest = at_rest & ((pull / volumes[:, None]).abs() < self.stress_tolerance).all(-1)
        length = torch.sqrt(atoms) * (volumes / atoms).pow(1.0 / 3.0)
        return forces, pull / length[:, None], length, at_rest

    def _turn_(self, state: State, forces: Tensor, pull: Tensor) -> None:
        """Turns velocities towards the forces if p > 0, and stops them otherwise."""

        def product(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> Tensor:
            return state.sum((first[0] * second[0]).sum(-1)) + (first[1] * second[1]).sum(-1)

        along, motion = (forces, pull), (self._velocities, self._rates)
        speed = product(motion, motion)
        downhill = product(along, motion) > 0.0
        ratio = torch.sqrt(speed / product(along, along).clamp(min=1e-300))
        keep = torch.where(downhill, 1.0 - self._mixing, 0.0)
        turn = torch.where(downhill, self._mixing * ratio, 0.0)
        self._velocities.mul_(_of_atoms(state, keep)).add_(_of_atoms(state, turn) * forces)
        self._rates.mul_(keep[:, None]).add_(turn[:, None] * pull)
        accelerate = downhill & (self._downhill > _PATIENCE)
        uphill = ~downhill & (speed > 0.0)
        faster = torch.where(accelerate, (self._step * _FASTER).clamp(max=_LONGEST), self._step)
        self._step.copy_(torch.where(uphill, self._step * _SLOWER, faster))
        mixing = torch.where(accelerate, self._mixing * _FADING, self._mixing)
        self._mixing.copy_(torch.where(uphill, _MIXING, mixing))
        self._downhill.copy_(torch.where(downhill, self._downhill + 1.0, 0.0))

    def converged(self) -> Tensor:
        """Whether each system (S,) is at a minimum; does not sync."""
        return self._forces(self._state)[-1]

    def largest_force(self) -> Tensor:
        """Largest force (S,) on an atom that is not fixed, eV/A; does not sync."""
        return _largest(self._state, self._forces(self._state)[0])

    def tensors(self) -> dict[str, Tensor]:
        """See Integrator."""
        return super().tensors() | {
            "fire.velocities": self._velocities,
            "fire.rates": self._rates,
            "fire.step": self._step,
            "fire.mixing": self._mixing,
            "fire.downhill": self._downhill,
        }

    def settings(self) -> dict[str, float | str | list[float]]:
        """See Integrator."""
        cell = {} if self._deformation is None else self._deformation.settings()
        own = {
            "force_tolerance_eV_per_A": self.force_tolerance,
            "largest_step_A": self.largest_step,
        }
        return (
            super().settings() | cell | own | {"stress_tolerance_eV_per_A3": self.stress_tolerance}
        )


def _largest(state: State, vectors: Tensor) -> Tensor:
    """Length of the longest of the vectors (N, 3) of each system (S,)."""
    return state.largest(torch.linalg.vector_norm(vectors, dim=-1))


def _of_atoms(state: State, values: Tensor) -> Tensor:
    """(S,) to (N, 1), in float64 whatever the state's type."""
    return values.index_select(0, state.grouping.index)[:, None]
