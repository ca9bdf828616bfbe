"""Mean squared displacement and velocity autocorrelation over a window of lags."""

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mdgraph.arguments import checked, whole_numbers
from mdgraph.engine.calculation import Calculation
from mdgraph.engine.integrators import Integrator
from mdgraph.engine.observables.base import ObservableResult, OnlineObservable, Row
from mdgraph.errors import InputError
from mdgraph.state import Grouping
from mdgraph.units import SYMBOLS


@dataclass(frozen=True, eq=False, kw_only=True)
class CorrelationResult(ObservableResult):
    """A function of W lags for E elements in S systems.

    Attributes:
        column: name of the value with its unit.
        elements: symbols.
        lag: (W,) float64, fs.
        origins: (W,) int64, number of origins in each average.
        value: (S, E, W) float64; NaN for an element that a system lacks and for lags beyond the
            run.
    """

    column: ClassVar[str]
    elements: tuple[str, ...]
    lag: NDArray[np.float64]
    origins: NDArray[np.int64]
    value: NDArray[np.float64]

    def rows(self, system: int | None = None) -> list[Row]:
        """See ObservableResult; a row for each system, element and lag."""
        return [
            {
                "system": index,
                "element": element,
                "lag_fs": float(self.lag[place]),
                self.column: float(self.value[index, number, place]),
                "origins": int(self.origins[place]),
            }
            for index in (range(len(self.value)) if system is None else [system])
            for number, element in enumerate(self.elements)
            for place in np.flatnonzero(np.isfinite(self.value[index, number]))
        ]

    def running_diffusion(self) -> NDArray[np.float64]:
        """D(lag), (S, E, W) float64, A^2/fs; the same function for both kinds of results."""
        raise NotImplementedError

    def diffusion(self, begin: float, end: float) -> NDArray[np.float64]:
        """Mean of D(lag) from `begin` to `end` fs, (S, E) float64, A^2/fs.

        Raises:
            InputError: the run has no lag between them.
        """
        inside = self._lags_between(begin, end)
        mean: NDArray[np.float64] = self.running_diffusion()[..., inside].mean(-1)
        return mean

    def _lags_between(self, begin: float, end: float) -> NDArray[np.bool_]:
        """Lags from `begin` to `end` fs with an origin, (W,); raises InputError for none."""
        inside: NDArray[np.bool_] = (self.lag >= begin) & (self.lag <= end) & (self.origins > 0)
        if not inside.any():
            raise InputError(
                f"No lag between {begin:g} and {end:g} fs was reached; the window ends at "
                f"{self.lag[self.origins > 0].max():g} fs."
            )
        return inside


@dataclass(frozen=True, eq=False, kw_only=True)
class DisplacementResult(CorrelationResult):
    """Mean squared displacements, A^2; by Einstein, D = d/dt MSD / 6."""

    kind: ClassVar[str] = "mean squared displacement"
    column: ClassVar[str] = "msd_A2"

    def running_diffusion(self) -> NDArray[np.float64]:
        """See CorrelationResult; slopes by central differences."""
        slopes = np.full(self.value.shape, np.nan)
        count = int((self.origins > 0).sum())
        if count > 1:
            value, lag = self.value[..., :count], self.lag[:count]
            slopes[..., :count] = np.gradient(value, lag, axis=-1) / 6.0
        return slopes

    def fitted_diffusion(self, begin: float, end: float) -> NDArray[np.float64]:
        """A sixth of the slope of a line through MSD(lag) from `begin` to `end` fs.

        The line is that of least squares, each lag with the same weight.
        DOI 10.33011/livecoms.1.1.6324.

        Returns:
            (S, E) float64, A^2/fs; NaN with fewer than two lags.

        Raises:
            InputError: the run has no lag between them.
        """
        inside = self._lags_between(begin, end)
        lag = self.lag[inside] - self.lag[inside].mean()
        moment = (lag**2).sum() or np.nan
        slope: NDArray[np.float64] = (self.value[..., inside] * lag).sum(-1) / moment
        return slope / 6.0


@dataclass(frozen=True, eq=False, kw_only=True)
class AutocorrelationResult(CorrelationResult):
    """Velocity autocorrelations, A^2/fs^2; by Green and Kubo, D is their integral / 3."""

    kind: ClassVar[str] = "velocity autocorrelation"
    column: ClassVar[str] = "vacf_A2_per_fs2"

    def running_diffusion(self) -> NDArray[np.float64]:
        """See CorrelationResult; integrals by the trapezoidal rule."""
        steps = 0.5 * np.diff(self.lag) * (self.value[..., 1:] + self.value[..., :-1])
        start = np.zeros_like(self.value[..., :1])
        return np.concatenate([start, np.cumsum(steps, axis=-1)], axis=-1) / 3.0


class Correlation(OnlineObservable):
    """Base: compares each sample with earlier ones, its origins, in a ring of O origins.

    Every `spacing` samples the current sample replaces the oldest origin. So a sample is compared
    with one origin of each age a, at the lag a `spacing` + b, where b counts samples since the
    youngest origin. These lags differ, so a sample adds to each number once. Vectors are relative
    to the centre of mass of their system, unless the system has fixed or restrained atoms or only
    one atom. Memory is 24 O N bytes, with N the number of atoms that are compared.
    """

    even: ClassVar[bool] = True
    result_class: ClassVar[type[CorrelationResult]]

    @checked
    def __init__(
        self,
        window: int,
        *,
        spacing: int = 1,
        every: int = 1,
        start: int = 0,
        atoms: Sequence[int] | None = None,
    ) -> None:
        """Checks the numbers.

        Args:
            window: number of lags, the first one zero, in samples.
            spacing: samples from one origin to the next; divides the window.
            every: steps from one sample to the next.
            start: steps of the trajectory that are left out.
            atoms: indices, among those of all systems, of the atoms to compare; None for all.
                The centre of mass is that of all atoms.

        Raises:
            InputError: an invalid number, or no atoms.
        """
        super().__init__(every=every, start=start)
        for name, value in (("window", window), ("spacing", spacing)):
            if not isinstance(value, Real) or not 1 <= value < 2**31 or value % 1:
                raise InputError(
                    f"The {name} is {value} samples; it must be a whole number above 0."
                )
        if window % spacing:
            raise InputError(
                f"A window of {window} samples is not a multiple of a spacing of {spacing}; "
                "choose a spacing that divides it."
            )
        self.window, self.spacing = int(window), int(spacing)
        self.atoms = (
            None if atoms is None else whole_numbers(atoms, f"The atoms of the {self.kind}")
        )
        if self.atoms is not None and (not self.atoms or min(self.atoms) < 0):
            raise InputError(f"The atoms of the {self.kind} are not indices; give some, from 0 on.")

    def allocate(self, calculation: Calculation, integrator: Integrator) -> dict[str, Tensor]:
        """See OnlineObservable."""
        state = self._state
        if "timestep" not in integrator.parameters:
            raise InputError(f"A minimisation has no time, so no {self.kind}.")
        self._timestep = integrator.parameters["timestep"].start[0]
        device, grouping = state.device, state.grouping
        element = grouping.index * len(state.elements) + state.kinds
        self._order = torch.argsort(element, stable=True)
        if self.atoms is not None:
            if max(self.atoms) >= grouping.atoms:
                raise InputError(
                    f"The {self.kind} needs atom {max(self.atoms)}, but there are "
                    f"{grouping.atoms} atoms; give indices from 0 to {grouping.atoms - 1}."
                )
            compared = torch.zeros(grouping.atoms, dtype=torch.bool, device=device)
            compared[self.atoms] = True
            self._order = self._order[compared[self._order]]
        self._present, sizes = torch.unique(element[self._order], return_counts=True)
        self._groups = Grouping(sizes.tolist(), device)
        loose = grouping.sum(state.fixed.to(torch.int64)) == 0
        loose &= ~torch.tensor(calculation.restrained(), device=device) & (grouping.counts > 1)
        masses = state.masses.double()[:, None]
        total = grouping.spread(grouping.sum(masses))
        self._weights = torch.where(loose[grouping.index][:, None], masses / total, 0.0)
        origins = self.window // self.spacing
        self._ages = torch.arange(origins, device=device)
        shape = (origins, len(self._order), 3)
        self._ring = torch.zeros(shape, dtype=torch.float64, device=device)
        sums = (len(sizes), origins, self.spacing)
        self._sums = torch.zeros(sums, dtype=torch.float64, device=device)
        self._counts = torch.zeros(sums[1:], dtype=torch.int64, device=device)
        return {"ring": self._ring, "sums": self._sums, "counts": self._counts}

    def sample_(self, due: Tensor) -> None:
        """See OnlineObservable."""
        origins = len(self._ages)
        origin_count, offset = self._samples // self.spacing, self._samples % self.spacing
        vectors = self._relative(self.vectors()).index_select(0, self._order)
        slot = (origin_count % origins)[None]
        oldest = self._ring.index_select(0, slot)
        self._ring.index_copy_(0, slot, torch.where(due & (offset == 0), vectors, oldest))
        by_slot = self._groups.sum(self.compare(vectors, self._ring).T)
        by_age = by_slot.index_select(1, (origin_count - self._ages) % origins)
        valid = due & (self._ages <= origin_count)
        # Each place gets one number, so the order of additions on a GPU does not matter.
        self._sums.index_add_(2, offset[None], torch.where(valid, by_age, 0.0)[:, :, None])
        self._counts.index_add_(1, offset[None], valid.to(torch.int64)[:, None])

    def _relative(self, vectors: Tensor) -> Tensor:
        grouping = self._state.grouping
        return vectors - grouping.spread(grouping.sum(self._weights * vectors))

    def vectors(self) -> Tensor:
        """The vectors to compare, (N, 3) float64; does not sync."""
        raise NotImplementedError

    def compare(self, vectors: Tensor, origins: Tensor) -> Tensor:
        """Compares (N, 3) with (O, N, 3) to (O, N)."""
        raise NotImplementedError

    def settings(self) -> dict[str, Any]:
        """See OnlineObservable."""
        settings = super().settings() | {"window": self.window, "spacing": self.spacing}
        return settings if self.atoms is None else settings | {"atoms": self.atoms}

    def result(self) -> CorrelationResult:
        """See OnlineObservable."""
        samples, state = self.samples(), self._state
        counts = self._counts.flatten()
        means = self._sums.flatten(1) / counts / self._groups.counts[:, None]
        systems, elements = state.grouping.systems, len(state.elements)
        values = torch.full_like(means[:1], torch.nan).repeat(systems * elements, 1)
        values[self._present] = means
        lags = torch.arange(self.window, dtype=torch.float64) * (self.every * self._timestep)
        return self.result_class(
            samples=samples,
            every=self.every,
            elements=tuple(SYMBOLS[number] for number in state.elements.tolist()),
            lag=lags.numpy(),
            origins=counts.cpu().numpy(),
            value=values.view(systems, elements, -1).cpu().numpy(),
        )


class MeanSquaredDisplacement(Correlation):
    """<|x(t + lag) - x(t)|^2> of each element, A^2, from unwrapped positions."""

    kind: ClassVar[str] = DisplacementResult.kind
    result_class = DisplacementResult

    def allocate(self, calculation: Calculation, integrator: Integrator) -> dict[str, Tensor]:
        """See OnlineObservable."""
        if integrator.cell_varies:
            raise InputError(
                "A cell that varies carries its atoms along, so a mean squared displacement says "
                "nothing of diffusion; record it at constant volume."
            )
        return super().allocate(calculation, integrator)

    def vectors(self) -> Tensor:
        """See Correlation."""
        return self._state.places()

    def compare(self, vectors: Tensor, origins: Tensor) -> Tensor:
        """See Correlation."""
        return (vectors - origins).square().sum(-1)


class VelocityAutocorrelation(Correlation):
    """<v(t) . v(t + lag)> of each element, A^2/fs^2."""

    kind: ClassVar[str] = AutocorrelationResult.kind
    result_class = AutocorrelationResult

    def vectors(self) -> Tensor:
        """See Correlation."""
        return self._state.velocities.double()

    def compare(self, vectors: Tensor, origins: Tensor) -> Tensor:
        """See Correlation."""
        return (vectors * origins).sum(-1)
