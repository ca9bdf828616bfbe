"""What recorders see of a step, copied to the host while later steps run."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from mdgraph.arguments import checked
from mdgraph.engine.dynamics import StepDynamics
from mdgraph.engine.integrators import Integrator
from mdgraph.engine.kinetics import kinetic_energy, pressure, temperature, volume
from mdgraph.state import State


@dataclass(frozen=True)
class Thermo:
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
    """(6, S) float64: rows of `Thermo` at the moment, on the device; does not sync."""
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


class HostSnapshot:
    """Copies of a moment, launched with the steps that lead to it; pinned memory on CUDA.

    All of it is of the last `copy_`, and is written again by the next.

    Attributes:
        sizes: atoms of each system.
        step: steps done since the start of the trajectory.
        time: fs.
        positions: (N, 3) float64, A, where atoms are.
        velocities: (N, 3) A/fs, in the state's type, as forces and cell.
        forces: (N, 3) eV/A.
        cell: (S, 3, 3) A.
        virial: (S, 3, 3) float64, eV.
    """

    @checked
    def __init__(self, motion: StepDynamics) -> None:
        """Allocates.

        Args:
            motion: what is viewed.
        """
        self._motion = motion
        self._device = motion.state.device
        self.sizes = motion.state.grouping.sizes
        self.step, self.time = motion.step, motion.time
        self._here = [self._like(one) for one in self._there()]
        self.positions, self.velocities, self.forces, self.cell, self.virial, self._rows = (
            self._here
        )
        self._arrived = torch.cuda.Event() if self._device.type == "cuda" else None

    def copy_(self) -> None:
        """Copies the moment, once the work launched so far is done; does not sync."""
        self.step, self.time = self._motion.step, self._motion.time
        for here, there in zip(self._here, self._there(), strict=True):
            here.copy_(there, non_blocking=True)
        if self._arrived is not None:
            self._arrived.record(torch.cuda.current_stream(self._device))

    def wait(self) -> None:
        """Until the copies are there; what was launched after them goes on meanwhile."""
        if self._arrived is not None:
            self._arrived.synchronize()

    @property
    def observables(self) -> Thermo:
        """Energies, temperature, pressure and volume."""
        return Thermo(self.step, self.time, *self._rows.clone())

    def _there(self) -> list[Tensor]:
        now = self._motion.state
        rows = measured(now, self._motion.integrator)
        return [now.places(), now.velocities, now.forces, now.cell, now.virial, rows]

    def _like(self, there: Tensor) -> Tensor:
        return torch.empty_like(there, device="cpu", pin_memory=self._device.type == "cuda")


class Recorder(Protocol):
    """Shown every step that is a multiple of `interval`, after it was found to be good.

    The device takes later steps meanwhile, where a reporter has it wait, so the simulation itself
    stands at one of those, which may yet be taken back: leave it alone. `stop` ends it a chunk
    later.
    """

    interval: int

    def record(self, view: HostSnapshot) -> None:
        """Takes what it wants of the view, which is written again later."""
        ...


Show = Callable[[HostSnapshot], None]


def showing(recorders: Sequence[Recorder], step: int) -> Show | None:
    """What shows a view to the recorders whose turn a step is; None for no one."""
    due = [one for one in recorders if step % one.interval == 0]

    def show(view: HostSnapshot) -> None:
        for one in due:
            one.record(view)

    return show if due else None
