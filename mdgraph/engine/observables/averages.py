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
from mdgraph.units import BAR, DENSITY

LEVELS: Final = 32
"""Number of block lengths 1, 2, 4, ... samples."""

FEWEST: Final = 8
"""Smallest number of blocks for an error, which is then uncertain by a quarter."""


@dataclass(frozen=True, eq=False)
class Blocked:
    """Averages and errors from blocks of doubling length: L levels, samples of shape (...).

    Attributes:
        samples: number of samples.
        mean: (...) float64.
        variance: (...) float64, of single samples, with samples - 1.
        length: (L,) int64, samples of a block, of levels with at least two blocks.
        errors: (L, ...) float64, standard error of the mean from the blocks of each level.
        spreads: (L, ...) float64, standard error of these errors.
        level: (...) int64, level of the error; -1 if no level has long and many enough blocks.
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
        """Error (...) float64 of the mean: of `level`, or the largest error if that is -1."""
        if len(self.length) == 0:
            return np.full(self.mean.shape, np.nan)
        level_errors = np.take_along_axis(self.errors, self.level.clip(min=0)[None], 0)[0]
        return np.where(self.level >= 0, level_errors, self.errors.max(0))


def error_levels(
    samples: int, length: NDArray[np.int64], errors: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Level (...) of the error of a mean; -1 if no level has long and many enough blocks.

    It is the first with `FEWEST` blocks whose length B fulfils B^3 > 2 n (e_B / e_1)^4, with n
    samples and errors e. This balances remaining correlations against the scatter of few blocks.
    DOI 10.1103/PhysRevE.83.066706.

    Args:
        samples: n.
        length: (L,) B, samples in a block of each level.
        errors: (L, ...) e.
    """
    if not len(length):
        return np.full(errors.shape[1:], -1)
    blocks = length.reshape(-1, *[1] * (errors.ndim - 1))
    ratio = errors / np.where(errors[0] > 0.0, errors[0], 1.0)
    enough = (blocks**3.0 > 2.0 * samples * ratio**4) & (samples // blocks >= FEWEST)
    return np.where(enough.any(0), enough.argmax(0), -1)


class BlockAverages:
    """Running mean and variance of a series and of its blocks.

    A block of length 2^l sums samples directly and is complete whenever 2^l divides their number,
    so the same few operations advance all levels. Means and sums of squares follow Welford's
    recurrence, relative to the first sample. DOI 10.1063/1.457480.
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
            samples: () int64, number of earlier samples.
            due: () bool, whether this sample counts.
        """
        self._first.copy_(torch.where(due & (samples == 0), values, self._first))
        self._partial += torch.where(due, values - self._first, 0.0)
        number = samples + 1
        complete = due & (number % self._lengths == 0)
        blocks = self._partial / self._lengths
        change = torch.where(complete, blocks - self._mean, 0.0)
        self._mean += change / (number // self._lengths).clamp(min=1)
        self._squares += change * (blocks - self._mean)
        self._partial.masked_fill_(complete, 0.0)

    def read(self, samples: int) -> Blocked:
        """Errors from the blocks of each level, and the level of the error; syncs."""
        mean, squares = self._mean.cpu().numpy(), self._squares.cpu().numpy()
        length = 2 ** np.arange(LEVELS)
        count = samples // length
        used = count >= 2
        length, squares, count = length[used], squares[used], count[used]
        count = count.reshape(-1, *[1] * (squares.ndim - 1))
        errors = np.sqrt(squares / (count * (count - 1.0)))
        spreads = errors / np.sqrt(2.0 * (count - 1.0))
        level = error_levels(samples, length, errors)
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
"""Quantities of every system, with units."""

CONSERVED: Final = {"conserved_energy": "eV"}
"""Quantity of dynamics with a conserved energy."""

SPATIAL: Final = {
    "volume": "A^3",
    "density": "amu/A^3",
    "pressure": "eV/A^3",
    **{f"pressure_{name}": "eV/A^3" for name in _AXES},
}
"""Quantities of systems with a volume."""

UNITS: Final = ENERGIES | CONSERVED | SPATIAL

TABLE_UNITS: Final = {
    "eV/A^3": ("bar", 1.0 / BAR),
    "amu/A^3": ("g/cm^3", DENSITY),
}
"""Units of tables that differ from internal ones, with the factor."""


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
        """See ObservableResult; a row for each system and quantity; `block` as of `block`."""
        rows: list[Row] = []
        for index in range(len(self.blocked.mean)) if system is None else [system]:
            for place, name in enumerate(self.quantities):
                unit, factor = TABLE_UNITS.get(UNITS[name], (UNITS[name], 1.0))
                mean, error = self.of(name, index)
                deviation = float(self.blocked.variance[index, place] ** 0.5)
                row: Row = {"system": index, "quantity": name, "unit": unit}
                row |= {"mean": factor * mean, "error": factor * error}
                row |= {"deviation": factor * deviation, "block": self.block(index, name)}
                rows.append(row)
        return rows

    def block(self, system: int, quantity: str) -> int:
        """Samples in a block of the error; 0 if the run was too short."""
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
            quantities: names from `UNITS`; None takes all that the simulation has.
            every: steps from one sample to the next.
            start: steps of the trajectory that are left out.

        Raises:
            InputError: an unknown name, or an invalid number of steps.
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
        available = dict(ENERGIES)
        if integrator.conserved_energy() is not None:
            available |= CONSERVED
        if bool((volume(self._state) > 0.0).all()):
            available |= SPATIAL
        self.quantities = tuple(available) if self.quantities is None else self.quantities
        for name in self.quantities:
            if name not in available:
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

        conserved = "conserved_energy" in (self.quantities or ())
        record_(
            self._state,
            self.tensors(),
            self._integrator.conserved_energy() if conserved else None,
            self._masses,
            self._columns,
            self._arrived,
            every=self.every,
            start=self.start,
        )

    def sample_(self, due: Tensor) -> None:
        """See OnlineObservable."""
        columns = self._values()
        values = torch.stack([columns[name] for name in self.quantities or ()], dim=1)
        self._averages.add_(values, self._samples, due)

    def _values(self) -> dict[str, Tensor]:
        """The quantities, and those computed with them, (S,) float64 each."""
        state, names = self._state, set(self.quantities or ())
        kinetic = kinetic_energy(state)
        values = {
            "potential_energy": state.energy,
            "kinetic_energy": kinetic,
            "total_energy": state.energy + kinetic,
            "temperature": temperature(kinetic, state.degrees),
        }
        if "conserved_energy" in names:
            conserved = self._integrator.conserved_energy()
            assert conserved is not None
            values["conserved_energy"] = conserved
        if names & set(SPATIAL):
            volumes = volume(state)
            values["volume"] = volumes
            values["density"] = state.grouping.sum(state.masses.double()) / volumes
            tensor = (kinetic_tensor(state) + state.virial) / volumes[:, None, None]
            values["pressure"] = tensor.diagonal(dim1=-2, dim2=-1).sum(-1) / 3.0
            symmetric = 0.5 * (tensor + tensor.mT)
            for name, (row, column) in _AXES.items():
                values[f"pressure_{name}"] = symmetric[:, row, column]
        return values

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
