"""Averages of energies, temperature, pressure, volume and density, with block errors."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mdgraph.arguments import checked
from mdgraph.engine.calculation import Calculation
from mdgraph.engine.integrators import Integrator
from mdgraph.engine.kinetics import kinetic_energy, kinetic_tensor, temperature, volume
from mdgraph.engine.observables.base import ObservableResult, OnlineObservable, Row
from mdgraph.errors import InputError
from mdgraph.gpu import launch
from mdgraph.units import ATOMIC_MASS_UNIT, BAR

LEVELS: Final = 32
"""Blocks of 1, 2, 4, ... samples; a run that fills the longest has four thousand million."""

FEWEST: Final = 8
"""Blocks from which an error is taken; their scatter leaves it a quarter uncertain."""


@dataclass(frozen=True, eq=False)
class Blocked:
    """What blocks of doubling length tell; L levels, `...` the shape of a sample.

    Attributes:
        samples: how many there were.
        mean: (...) float64.
        variance: (...) float64, of single samples, with samples - 1.
        length: (L,) int64, samples a block, of levels with two blocks at least.
        errors: (L, ...) float64, standard error of the mean from the blocks of each level.
        spreads: (L, ...) float64, standard error of these errors.
        level: (...) int64, the level chosen, -1 where no blocks were long and many enough.
    """

    samples: int
    mean: NDArray[np.float64]
    variance: NDArray[np.float64]
    length: NDArray[np.int64]
    errors: NDArray[np.float64]
    spreads: NDArray[np.float64]
    level: NDArray[np.int64]

    @property
    def error(self) -> NDArray[np.float64]:
        """(...) float64, error of the mean: of the chosen level, else the largest of all."""
        if len(self.length) == 0:
            return np.full(self.mean.shape, np.nan)
        chosen = np.take_along_axis(self.errors, self.level.clip(min=0)[None], 0)[0]
        return np.where(self.level >= 0, chosen, self.errors.max(0))


class BlockAverages:
    """Running mean and variance of a series and of its blocks.

    Blocks of length 2^l collect the samples themselves and are whole whenever 2^l divides
    their number, so all levels advance in the same few operations and no block waits for
    another. Means and sums of squares are updated by Welford's recurrence, about the first
    sample. DOI 10.1063/1.457480.
    """

    def __init__(self, shape: tuple[int, ...], device: torch.device) -> None:
        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.float64, device=device)

        self._first = zeros(*shape)
        self._partial, self._mean, self._squares = (zeros(LEVELS, *shape) for _ in range(3))
        lengths = 2 ** torch.arange(LEVELS, device=device)
        self._lengths = lengths.reshape(-1, *[1] * len(shape))

    def tensors(self) -> dict[str, Tensor]:
        """The buffers, by name, all zero before the first sample."""
        return {
            "first": self._first,
            "partial": self._partial,
            "mean": self._mean,
            "squares": self._squares,
        }

    def add_(self, values: Tensor, samples: Tensor, due: Tensor) -> None:
        """Adds a sample; static shapes, does not sync.

        Args:
            values: (...) float64.
            samples: () int64, how many were added before.
            due: () bool, whether this one counts.
        """
        self._first.copy_(torch.where(due & (samples == 0), values, self._first))
        self._partial += torch.where(due, values - self._first, 0.0)
        number = samples + 1
        whole = due & (number % self._lengths == 0)
        blocks = self._partial / self._lengths
        change = torch.where(whole, blocks - self._mean, 0.0)
        self._mean += change / (number // self._lengths).clamp(min=1)
        self._squares += change * (blocks - self._mean)
        self._partial.masked_fill_(whole, 0.0)

    def read(self, samples: int) -> Blocked:
        """Errors from the blocks of each level, and the level to take; reads the device.

        It is the first whose length B fulfils B^3 > 2 n (e_B / e_1)^4 with n samples and
        errors e, which balances what is left of correlations against the scatter of few
        blocks, and that has `FEWEST` blocks. DOI 10.1103/PhysRevE.83.066706.
        """
        mean, squares = self._mean.cpu().numpy(), self._squares.cpu().numpy()
        length = 2 ** np.arange(LEVELS)
        count = samples // length
        used = count >= 2
        length, squares, count = length[used], squares[used], count[used]
        count = count.reshape(-1, *[1] * (squares.ndim - 1))
        errors = np.sqrt(squares / (count * (count - 1.0)))
        spreads = errors / np.sqrt(2.0 * (count - 1.0))
        level = np.full(mean.shape[1:], -1)
        if len(length):
            ratio = errors / np.where(errors[0] > 0.0, errors[0], 1.0)
            enough = length.reshape(count.shape) ** 3.0 > 2.0 * samples * ratio**4
            enough &= count >= FEWEST
            level = np.where(enough.any(0), enough.argmax(0), -1)
        variance = squares[0] / (samples - 1) if len(length) else np.full(mean.shape[1:], np.nan)
        centre = mean[0] + self._first.cpu().numpy()
        return Blocked(samples, centre, variance, length, errors, spreads, level)


_AXES: Final = {"xx": (0, 0), "yy": (1, 1), "zz": (2, 2), "yz": (1, 2), "xz": (0, 2), "xy": (0, 1)}

ENERGIES: Final = {
    "potential_energy": "eV",
    "kinetic_energy": "eV",
    "total_energy": "eV",
    "temperature": "K",
}
"""Known for every system, with their units."""

CONSERVED: Final = {"conserved_energy": "eV"}
"""Known where the dynamics keep one."""

SPATIAL: Final = {
    "volume": "A^3",
    "density": "amu/A^3",
    "pressure": "eV/A^3",
    **{f"pressure_{name}": "eV/A^3" for name in _AXES},
}
"""Known where three cell vectors span a volume."""

UNITS: Final = ENERGIES | CONSERVED | SPATIAL

_SHOWN: Final = {
    "eV/A^3": ("bar", 1.0 / BAR),
    "amu/A^3": ("g/cm^3", 1e27 * ATOMIC_MASS_UNIT),
}
"""Units of tables where they are not those inside, and one of these in them."""


@dataclass(frozen=True, eq=False, kw_only=True)
class AveragesResult(ObservableResult):
    """Means with blocked errors of Q quantities of S systems.

    Attributes:
        quantities: names, in the units of `UNITS`.
        blocked: of shape (S, Q).
    """

    kind: ClassVar[str] = "averages"
    quantities: tuple[str, ...]
    blocked: Blocked

    def rows(self, system: int | None = None) -> list[Row]:
        """See Result; a quantity of a system each, `block` 0 where the run was too short."""
        rows: list[Row] = []
        for one in range(len(self.blocked.mean)) if system is None else [system]:
            for place, name in enumerate(self.quantities):
                unit, factor = _SHOWN.get(UNITS[name], (UNITS[name], 1.0))
                mean, error = self.of(name, one)
                deviation = float(self.blocked.variance[one, place] ** 0.5)
                row: Row = {"system": one, "quantity": name, "unit": unit}
                row |= {"mean": factor * mean, "error": factor * error}
                row |= {"deviation": factor * deviation, "block": self.block(one, name)}
                rows.append(row)
        return rows

    def block(self, system: int, quantity: str) -> int:
        """Samples in a block of the error that was chosen, 0 where none was long enough."""
        level = self.blocked.level[system, self.quantities.index(quantity)]
        return int(self.blocked.length[level]) if level >= 0 else 0

    def of(self, quantity: str, system: int = 0) -> tuple[float, float]:
        """Mean of one quantity, and its standard error."""
        place = system, self.quantities.index(quantity)
        return float(self.blocked.mean[place]), float(self.blocked.error[place])


class Averages(OnlineObservable):
    """Running means, variances and blocked errors of each system.

    `pressure_xx` to `pressure_xy` are the symmetric tensor (sum m v (x) v + W) / V, and
    `pressure` is a third of its trace.
    """

    kind: ClassVar[str] = "averages"

    @checked
    def __init__(
        self, quantities: Sequence[str] | None = None, *, every: int = 1, start: int = 0
    ) -> None:
        """Checks the names.

        Args:
            quantities: names from `UNITS`; None takes all that the simulation knows.
            every: steps from one sample to the next.
            start: steps of the trajectory that are left out.

        Raises:
            InputError: an unknown name, or a number of steps that cannot be.
        """
        super().__init__(every=every, start=start)
        if quantities is not None and not len(quantities):
            raise InputError("Averages take names of quantities; give at least one.")
        quantities = None if quantities is None else tuple(quantities)
        for name in quantities or ():
            if not isinstance(name, str) or name not in UNITS:
                raise InputError(f"No average of '{name}' is known; choose {', '.join(UNITS)}.")
        self.quantities = quantities

    def allocate(self, calculation: Calculation, integrator: Integrator) -> dict[str, Tensor]:
        """See OnlineObservable."""
        self._integrator = integrator
        known = dict(ENERGIES)
        if integrator.conserved_energy() is not None:
            known |= CONSERVED
        if bool((volume(self._state) > 0.0).all()):
            known |= SPATIAL
        self.quantities = tuple(known) if self.quantities is None else self.quantities
        for name in self.quantities:
            if name not in known:
                lack = "cells with a volume" if name in SPATIAL else "dynamics that keep an energy"
                raise InputError(f"The average of {name} needs {lack}; leave it out.")
        shape = (self._state.grouping.systems, len(self.quantities))
        self._averages = BlockAverages(shape, self._state.device)
        self._by_kernels = launch.step_kernels_on(self._state.device)
        if self._by_kernels:
            from mdgraph.engine.kernels.reductions import COLUMNS

            places = [COLUMNS.index(name) for name in self.quantities]
            self._columns = torch.tensor(places, device=self._state.device)
            self._masses = self._state.grouping.sum(self._state.masses.double())
            self._arrived = torch.zeros((), dtype=torch.int32, device=self._state.device)
        return self._averages.tensors()

    def record_(self) -> None:
        """See OnlineObservable."""
        if not self._by_kernels:
            super().record_()
            return
        from mdgraph.engine.kernels.reductions import record_

        asked = "conserved_energy" in (self.quantities or ())
        record_(
            self._state,
            self.tensors(),
            self._integrator.conserved_energy() if asked else None,
            self._masses,
            self._columns,
            self._arrived,
            every=self.every,
            start=self.start,
        )

    def sample_(self, due: Tensor) -> None:
        """See OnlineObservable."""
        found = self._found()
        values = torch.stack([found[name] for name in self.quantities or ()], dim=1)
        self._averages.add_(values, self._samples, due)

    def _found(self) -> dict[str, Tensor]:
        """What was asked for, and what comes with it, (S,) float64 each."""
        state, asked = self._state, set(self.quantities or ())
        kinetic = kinetic_energy(state)
        found = {
            "potential_energy": state.energy,
            "kinetic_energy": kinetic,
            "total_energy": state.energy + kinetic,
            "temperature": temperature(kinetic, state.degrees),
        }
        if "conserved_energy" in asked:
            conserved = self._integrator.conserved_energy()
            assert conserved is not None
            found["conserved_energy"] = conserved
        if asked & set(SPATIAL):
            space = volume(state)
            found["volume"] = space
            found["density"] = state.grouping.sum(state.masses.double()) / space
            tensor = (kinetic_tensor(state) + state.virial) / space[:, None, None]
            found["pressure"] = tensor.diagonal(dim1=-2, dim2=-1).sum(-1) / 3.0
            symmetric = 0.5 * (tensor + tensor.mT)
            for name, (row, column) in _AXES.items():
                found[f"pressure_{name}"] = symmetric[:, row, column]
        return found

    def settings(self) -> dict[str, Any]:
        """See OnlineObservable."""
        return super().settings() | {"quantities": list(self.quantities or ())}

    def result(self) -> AveragesResult:
        """See OnlineObservable."""
        samples = self.samples()
        return AveragesResult(
            samples=samples,
            every=self.every,
            quantities=self.quantities or (),
            blocked=self._averages.read(samples),
        )
