"""Host snapshots of a state, copied while later steps run, and the recorders that get them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

import torch
from torch import Tensor

from mdgraph.arguments import checked
from mdgraph.engine.dynamics import StepDynamics
from mdgraph.engine.kinetics import kinetic_energy, pressure, temperature, volume


@dataclass(frozen=True)
class Thermo:
    """Step, energies, temperature, pressure and volume, one row a system.

    Attributes:
        step: steps done.
        time: fs.
        potential_energy: (S,) float64, eV.
        kinetic_energy: (S,) float64, eV.
        temperature: (S,) float64, K.
        pressure: (S,) float64, eV/A^3; NaN without a volume.
        volume: (S,) float64, A^3; 0 without three cell vectors.
        conserved_energy: (S,) float64, eV; NaN for dynamics that keep none.
        term_energies: (S,) float64, eV, of each term of a sum, by name; they add up to the
            potential energy. Empty for other potentials.
        biases: (S,) float64, by name of their columns: values of collective variables in their
            units, then NAME.bias and NAME.work of biases, eV, which the potential energy has.
        switching: (S,) float64, by name of their columns: weights of terms that change, their
            dU/dw and the work, eV; see `SumEvaluator`.
    """

    step: int
    time: float
    potential_energy: Tensor
    kinetic_energy: Tensor
    temperature: Tensor
    pressure: Tensor
    volume: Tensor
    conserved_energy: Tensor
    term_energies: Mapping[str, Tensor]
    biases: Mapping[str, Tensor]
    switching: Mapping[str, Tensor]

    @classmethod
    def of(cls, dynamics: StepDynamics, step: int, time: float, rows: Tensor) -> "Thermo":
        """From the rows that `thermo_rows` gave at a step, on the host."""
        names = [*dynamics.calculation.evaluator.term_energies(dynamics.state)]
        columns = [*_bias_columns(dynamics)]
        weights = [*dynamics.calculation.evaluator.switching(dynamics.state)]
        potential, kinetic, temperatures, pressures, volumes, conserved, *others = rows
        return cls(
            step,
            time,
            potential,
            kinetic,
            temperatures,
            pressures,
            volumes,
            conserved,
            *(
                dict(zip(part, islice(rest, len(part)), strict=True))
                for rest in [iter(others)]
                for part in (names, columns, weights)
            ),
        )


def _bias_columns(dynamics: StepDynamics) -> Mapping[str, Tensor]:
    """See `AppliedBiases.columns`; empty without biases."""
    biases = dynamics.calculation.biases
    return {} if biases is None else biases.columns()


def thermo_rows(dynamics: StepDynamics) -> Tensor:
    """Rows (6 + T + B + W, S) float64 of `Thermo`: T terms, B columns of biases, W of weights.

    They are on the device; does not sync.
    """
    state, integrator = dynamics.state, dynamics.integrator
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
        *dynamics.calculation.evaluator.term_energies(state).values(),
        *_bias_columns(dynamics).values(),
        *dynamics.calculation.evaluator.switching(state).values(),
    ]
    return torch.stack(values)


class HostSnapshot:
    """Host copies of a state, launched after the steps that lead to it; pinned on CUDA.

    All arrays belong to the last `copy_`; the next one overwrites them.

    Attributes:
        sizes: atoms of each system.
        step: steps done since the start of the trajectory.
        time: fs.
        positions: (N, 3) float64, A, where atoms are.
        velocities: (N, 3) A/fs, in the state's type, as forces and cell.
        forces: (N, 3) eV/A.
        cell: (S, 3, 3) A.
        virial: (S, 3, 3) float64, eV.
        hills: (R, S, n + 1) float64, last hills of each metadynamics by its name; see
            `BoundMetadynamics`.
    """

    @checked
    def __init__(self, dynamics: StepDynamics) -> None:
        """Allocates.

        Args:
            dynamics: whose state is copied.
        """
        self._dynamics = dynamics
        self._device = dynamics.state.device
        self.sizes = dynamics.state.grouping.sizes
        self.step, self.time = dynamics.step, dynamics.time
        self._copies = [self._like(source) for source in self._sources()]
        self.positions, self.velocities, self.forces, self.cell, self.virial = self._copies[:5]
        self._rows = self._copies[5]
        self.hills = dict(zip(self._records(), self._copies[6:], strict=True))
        self._event = torch.cuda.Event() if self._device.type == "cuda" else None

    def copy_(self) -> None:
        """Copies the state that the work launched so far leaves; does not sync."""
        self.step, self.time = self._dynamics.step, self._dynamics.time
        for copy, source in zip(self._copies, self._sources(), strict=True):
            copy.copy_(source, non_blocking=True)
        if self._event is not None:
            self._event.record(torch.cuda.current_stream(self._device))

    def wait(self) -> None:
        """Blocks until the copies arrive; later GPU work continues."""
        if self._event is not None:
            self._event.synchronize()

    @property
    def observables(self) -> Thermo:
        """Energies, temperature, pressure and volume."""
        return Thermo.of(self._dynamics, self.step, self.time, self._rows.clone())

    def _sources(self) -> list[Tensor]:
        state = self._dynamics.state
        forces = self._dynamics.calculation.evaluator.forces(state)
        rows = thermo_rows(self._dynamics)
        own = [state.places(), state.velocities, forces, state.cell, state.virial, rows]
        return [*own, *self._records().values()]

    def _records(self) -> dict[str, Tensor]:
        """Records of hills on the device."""
        biases = self._dynamics.calculation.biases
        known = {} if biases is None else biases.metadynamics()
        return {name: bias.records for name, bias in known.items()}

    def _like(self, source: Tensor) -> Tensor:
        return torch.empty_like(source, device="cpu", pin_memory=self._device.type == "cuda")


class Recorder(Protocol):
    """Gets a snapshot of every step that is a multiple of `interval` and passed the health check.

    The GPU runs later steps meanwhile, which may still be undone: read the snapshot, not the
    simulation. (A `Reporter` reads the simulation itself, and makes the GPU wait.) After
    `Simulation.stop` a run ends one chunk later.
    """

    interval: int

    def record(self, snapshot: HostSnapshot) -> None:
        """Reads the snapshot, which a later step overwrites."""
        ...


Show = Callable[[HostSnapshot], None]


def delivery(recorders: Sequence[Recorder], step: int) -> Show | None:
    """A function that gives a snapshot to the recorders due at a step; None if there are none."""
    due = [recorder for recorder in recorders if step % recorder.interval == 0]

    def show(snapshot: HostSnapshot) -> None:
        for recorder in due:
            recorder.record(snapshot)

    return show if due else None
