"""Free energy profiles from weighted samples: bins, errors from blocks, wells and barriers.

A profile is F(s) = -kT ln p(s), with p normalised over its bins. Errors are of this F, so that no
bin has an error of zero because it was chosen as the origin; differences of two bins have errors of
their own, from the same resamples.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mdgraph.analysis.series import fewest_independent, series_coordinates
from mdgraph.errors import InputError
from mdgraph.units import BOLTZMANN, KILOJOULE_PER_MOLE

MOLAR_BOLTZMANN: Final = BOLTZMANN / KILOJOULE_PER_MOLE
"""Boltzmann constant, kJ/mol/K."""

_BINS: Final = {1: 60, 2: 36}
"""Bins of each variable, by the number of variables."""

_BINS_OF_TURN: Final = {1: 72, 2: 36}
"""The same of periodic variables."""

_BLOCK: Final = 5.0
"""Length of a block, in times that separate independent samples."""

_FEWEST_BLOCKS: Final = 6
_MOST_BLOCKS: Final = 400
"""Of a series; longer ones have longer blocks."""

_MOST_BLOCKS_OF_ALL: Final = 6_000
"""Of all series together, each of which has sums of all bins in memory."""

_MISSING: Final = 0.1
"""Share of resamples without a sample in a bin, above which its error is not known."""

_DEPTH: Final = 1.0
"""kT, of the shallowest well."""

_SIGMAS: Final = 3.0
"""Errors by which the edge of a well lies above its bottom, and by which halves differ."""

_DIFFERENT: Final = 0.05
"""Share of the bins in which halves differ that is no chance."""


@dataclass(frozen=True, eq=False)
class ProfileGrid:
    """Bins of one variable or two.

    Attributes:
        names: of the variables.
        edges: of each variable, (bins + 1,) float64, evenly spaced.
        periods: of each variable; None for one whose ends do not join.
    """

    names: tuple[str, ...]
    edges: tuple[NDArray[np.float64], ...]
    periods: tuple[float | None, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of bins of each variable."""
        return tuple(len(edges) - 1 for edges in self.edges)

    @property
    def size(self) -> int:
        """Number of bins."""
        return math.prod(self.shape)

    @property
    def centers(self) -> tuple[NDArray[np.float64], ...]:
        """Middle of the bins of each variable."""
        return tuple(0.5 * (edges[1:] + edges[:-1]) for edges in self.edges)

    @property
    def volume(self) -> float:
        """Of a bin, in the product of the units of the variables."""
        return math.prod(float(edges[1] - edges[0]) for edges in self.edges)

    def place(self, number: int) -> tuple[float, ...]:
        """Values of the variables in the middle of a bin, by its number in C order."""
        where = np.unravel_index(number, self.shape)
        return tuple(float(centers[at]) for centers, at in zip(self.centers, where, strict=True))

    def numbers(self, values: NDArray[np.float64]) -> NDArray[np.int64]:
        """Numbers of the bins of samples, (n, d) to (n,) int64; -1 outside."""
        flat = np.zeros(len(values), dtype=np.int64)
        outside = np.zeros(len(values), dtype=bool)
        for column, edges, period in zip(values.T, self.edges, self.periods, strict=True):
            bins = len(edges) - 1
            shift = column - edges[0] if period is None else (column - edges[0]) % period
            at = np.floor(shift / (edges[-1] - edges[0]) * bins).astype(np.int64)
            at[column == edges[-1]] = bins - 1
            outside |= (at < 0) | (at >= bins)
            flat = flat * bins + np.clip(at, 0, bins - 1)
        return np.where(outside, -1, flat)

    def neighbors(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Numbers of bins that share a face, in pairs, for one variable after the other."""
        numbers = np.arange(self.size).reshape(self.shape)
        for axis, period in enumerate(self.periods):
            next_numbers = np.roll(numbers, -1, axis)
            last = numbers.shape[axis] - (period is None)
            part = tuple(
                slice(last) if other == axis else slice(None) for other in range(numbers.ndim)
            )
            yield numbers[part].ravel(), next_numbers[part].ravel()


def profile_grid(
    names: Sequence[str],
    samples: NDArray[np.float64],
    domains: Sequence[tuple[float, float] | None],
    bins: Sequence[int] | None = None,
    ranges: Sequence[tuple[float, float] | None] | None = None,
) -> ProfileGrid:
    """Bins over all samples, or over the whole domain of periodic variables.

    Args:
        names: of the variables.
        samples: (n, d) float, which are to lie within.
        domains: ends of periodic variables; None for the others.
        bins: of each variable; None chooses.
        ranges: of each variable; None for that of the samples.

    Raises:
        InputError: a variable has one value alone, or a range has no samples.
    """
    edges, periods = [], []
    for place, (name, domain) in enumerate(zip(names, domains, strict=True)):
        default = (_BINS if domain is None else _BINS_OF_TURN)[len(names)]
        count = default if bins is None else bins[place]
        given = None if ranges is None else ranges[place]
        column = samples[:, place]
        period: float | None = None
        if given is not None:
            low, high = given
            if not ((column >= low) & (column <= high)).any():
                raise InputError(
                    f"No sample of {name} lies between {low:g} and {high:g}; they go from "
                    f"{column.min():.4g} to {column.max():.4g}."
                )
            if domain is not None and math.isclose(high - low, domain[1] - domain[0], rel_tol=1e-6):
                period = high - low
        elif domain is not None:
            low, high = domain
            period = high - low
        else:
            low, high = float(column.min()), float(column.max())
        if not low < high:
            raise InputError(f"{name} is {low:g} in all samples, so it has no profile.")
        edges.append(np.linspace(low, high, count + 1))
        periods.append(period)
    return ProfileGrid(tuple(names), tuple(edges), tuple(periods))


@dataclass(frozen=True, eq=False)
class Well:
    """A minimum of a profile that is deeper than noise.

    Attributes:
        bin: number of its lowest bin.
        place: values of the variables there.
        height: kJ/mol above the deepest well.
        error: of the height, kJ/mol; nan if it is not known.
        share: of the probability, from 0 to 1.
        difference: -kT ln of its share by that of the deepest well, kJ/mol.
        difference_error: kJ/mol.
    """

    bin: int
    place: tuple[float, ...]
    height: float
    error: float
    share: float
    difference: float
    difference_error: float


@dataclass(frozen=True, eq=False)
class Barrier:
    """The lowest way between two wells.

    Attributes:
        between: places of the wells in their list, the lower one first.
        place: values of the variables at the top.
        height: kJ/mol above the deepest well.
        error: of the height, kJ/mol; nan if it is not known.
        from_wells: height above each of the two wells, kJ/mol.
    """

    between: tuple[int, int]
    place: tuple[float, ...]
    height: float
    error: float
    from_wells: tuple[float, float]


@dataclass(eq=False, kw_only=True)
class FreeEnergyProfile:
    """F(s) = -kT ln p(s) of bins.

    Attributes:
        grid: the bins.
        kt: kT, kJ/mol.
        values: (bins,) float64 in C order, kJ/mol, with p normalised; nan in bins without samples.
        resamples: (resamples, bins) float64, the same of resampled data; None without errors.
        halves: the same of the first and of the second half of the data, or none.
        scale: factor on the spread of resamples that makes it an error.
        doubt: (bins,) float64, kJ/mol, what another estimate differs by, which is part of the
            error; None without one.
    """

    grid: ProfileGrid
    kt: float
    values: NDArray[np.float64]
    resamples: NDArray[np.float64] | None = None
    halves: tuple[NDArray[np.float64], ...] = ()
    scale: float = 1.0
    doubt: NDArray[np.float64] | None = None
    _basins: NDArray[np.int64] | None = field(default=None, repr=False)
    _within_errors: bool = field(default=False, repr=False)
    _beyond: NDArray[np.bool_] | None = field(default=None, repr=False)

    @property
    def lowest(self) -> float:
        """The smallest of the values, kJ/mol."""
        return float(np.nanmin(self.values))

    def error(self) -> NDArray[np.float64]:
        """Standard error of the values, (bins,) kJ/mol; nan where it is not known."""
        spread = self._spread(self.resamples)
        return spread if self.doubt is None else np.hypot(spread, self.doubt)

    def _spread(self, resamples: NDArray[np.float64] | None) -> NDArray[np.float64]:
        if resamples is None:
            return np.full(self.values.shape, math.nan)
        known = np.isfinite(resamples)
        count = known.sum(0)
        mean = np.where(known, resamples, 0.0).sum(0) / np.maximum(count, 1)
        square = (np.where(known, resamples - mean, 0.0) ** 2).sum(0)
        spread = self.scale * np.sqrt(square / np.maximum(count - 1, 1))
        return np.where(count >= (1.0 - _MISSING) * len(resamples), spread, math.nan)

    def between_halves(self) -> float:
        """Largest difference of the halves beyond 1 kT and three of its errors, kJ/mol.

        Of the bins where both have samples and the error is known; 0 where such differences are as
        few as chance makes them.
        """
        if len(self.halves) < 2:
            return 0.0
        apart = np.abs(self.halves[0] - self.halves[1])
        error = 2.0 * self.error()  # a half has sqrt(2) times the error of the whole
        known = np.isfinite(apart) & np.isfinite(error)
        beyond = known & (apart > np.fmax(self.kt, _SIGMAS * error))
        if not beyond.any() or beyond.sum() < _DIFFERENT * known.sum():
            return 0.0
        return float(apart[beyond].max())

    @property
    def within_errors(self) -> bool:
        """Whether there are minima of more than 1 kT that are no wells because of their errors."""
        self._labels()
        return self._within_errors

    @property
    def share_apart(self) -> float:
        """Share of the probability in bins that empty ones part from the deepest well."""
        self._labels()
        assert self._beyond is not None
        return float(self._share(self.values, self._beyond))

    def wells(self) -> list[Well]:
        """Minima that are deeper than 1 kT and than three errors, the deepest one first.

        All but the deepest are bounded by bins with samples that lie so much higher.
        """
        basins = self._labels()
        bottoms = sorted(set(basins[basins >= 0].tolist()), key=lambda at: self.values[at])
        deepest = bottoms[0]
        wells = []
        inside = [basins == bottom for bottom in bottoms]
        shares = [self._share(self.values, part) for part in inside]
        for bottom, part, share in zip(bottoms, inside, shares, strict=True):
            error, difference_error = (0.0, 0.0) if bottom == deepest else (math.nan, math.nan)
            if self.resamples is not None and bottom != deepest:
                error = self._pair_error(bottom, deepest)
                with np.errstate(divide="ignore", invalid="ignore"):
                    ratios = self._share(self.resamples, part) / self._share(
                        self.resamples, inside[0]
                    )
                    change = -self.kt * np.log(ratios)
                doubt = 0.0 if self.doubt is None else self.doubt[bottom] - self.doubt[deepest]
                difference_error = math.hypot(float(self._spread(change[:, None])[0]), doubt)
            wells.append(
                Well(
                    bin=bottom,
                    place=self.grid.place(bottom),
                    height=float(self.values[bottom] - self.values[deepest]),
                    error=error,
                    share=float(share),
                    difference=-self.kt * math.log(share / shares[0]),
                    difference_error=difference_error,
                )
            )
        return wells

    def barriers(self, wells: Sequence[Well]) -> list[Barrier]:
        """The lowest ways between wells that touch; along one variable, all of them.

        Those whose tops have too few samples for an error are left out, if errors are known.
        """
        basins = self._labels()
        numbers = {well.bin: number for number, well in enumerate(wells)}
        tops: dict[tuple[int, ...], int] = {}
        for one, other in self.grid.neighbors():
            apart = (basins[one] != basins[other]) & (basins[one] >= 0) & (basins[other] >= 0)
            for pair in zip(one[apart].tolist(), other[apart].tolist(), strict=True):
                top = max(pair, key=lambda at: self.values[at])
                between = sorted(numbers[int(basins[at])] for at in pair)
                # Along one variable, two wells can touch at both sides of a turn.
                key = (*between, *(pair if len(self.grid.names) == 1 else ()))
                if key not in tops or self.values[top] < self.values[tops[key]]:
                    tops[key] = top
        barriers = []
        for key, top in sorted(tops.items(), key=lambda item: self.values[item[1]]):
            height = float(self.values[top] - self.values[wells[0].bin])
            low, high = key[:2]
            error = self._pair_error(top, wells[0].bin)
            if self.resamples is not None and not math.isfinite(error):
                continue
            barriers.append(
                Barrier(
                    between=(low, high),
                    place=self.grid.place(top),
                    height=height,
                    error=error,
                    from_wells=(height - wells[low].height, height - wells[high].height),
                )
            )
        return barriers

    def _pair_error(self, one: int, other: int) -> float:
        if self.resamples is None:
            return math.nan
        change = self.resamples[:, one] - self.resamples[:, other]
        doubt = 0.0 if self.doubt is None else self.doubt[one] - self.doubt[other]
        return math.hypot(float(self._spread(change[:, None])[0]), doubt)

    def _depth_error(self, edge: int, bottom: int) -> float:
        """Error of the height of an edge above the bottom of a well.

        That of the bottom alone where the edge has too few samples; infinite if the bottom has.
        """
        if self.resamples is None:
            return 0.0
        errors = self._pair_error(edge, bottom), float(self.error()[bottom])
        return next((error for error in errors if math.isfinite(error)), math.inf)

    def _share(self, values: NDArray[np.float64], part: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Probability within bins, of values (..., bins)."""
        with np.errstate(invalid="ignore", over="ignore"):
            chances = np.exp(-(values - np.nanmin(values)) / self.kt)
        chances = np.where(np.isfinite(chances), chances, 0.0)
        shares: NDArray[np.float64] = chances[..., part].sum(-1) / chances.sum(-1)
        return shares

    def _labels(self) -> NDArray[np.int64]:
        """The lowest bin of the well of each bin, (bins,) int64; -1 for bins without samples.

        Bins are taken from the lowest on. One between two wells is the edge of the shallower one;
        if that is not deep enough, it belongs to the other well from then on.
        """
        if self._basins is not None:
            return self._basins
        beside: list[list[int]] = [[] for _ in range(self.grid.size)]
        for one, other in self.grid.neighbors():
            for a, b in zip(one.tolist(), other.tolist(), strict=True):
                beside[a].append(b)
                beside[b].append(a)
        labels = np.full(self.grid.size, -1, dtype=np.int64)
        joined: dict[int, int] = {}  # of wells that lead to each other below the present height
        absorbed: dict[int, int] = {}

        def root_of(links: dict[int, int], bottom: int) -> int:
            while links[bottom] != bottom:
                bottom = links[bottom]
            return bottom

        values = self.values
        order = np.argsort(np.where(np.isfinite(values), values, np.inf), kind="stable")
        for at in order[: np.isfinite(values).sum()].tolist():
            lower = [near for near in beside[at] if labels[near] >= 0]
            if not lower:
                labels[at] = joined[at] = absorbed[at] = at
                continue
            labels[at] = labels[min(lower, key=lambda near: values[near])]
            deepest, *others = sorted(
                {root_of(joined, int(labels[near])) for near in lower},
                key=lambda root: values[root],
            )
            for root in others:
                depth = values[at] - values[root]
                if not self._is_deep(depth, at, root):
                    across = [near for near in lower if root_of(joined, int(labels[near])) != root]
                    beyond = min(across, key=lambda near: values[near])
                    absorbed[root] = root_of(absorbed, int(labels[beyond]))
            for root in others:
                joined[root] = deepest
        basins = np.array(
            [root_of(absorbed, label) if label >= 0 else -1 for label in labels.tolist()]
        )
        deepest = root_of(joined, int(order[0]))
        self._beyond = np.array(
            [label >= 0 and root_of(joined, label) != deepest for label in labels.tolist()]
        )
        bounded = np.ones(self.grid.size, dtype=bool)
        if self.resamples is not None:  # islands of a few samples are no wells
            bounded = np.isfinite(self.error())
        for at in np.flatnonzero(basins >= 0).tolist():
            bottom = int(basins[at])
            # An empty bin is a way out, of which nothing is known.
            if bounded[bottom] and any(basins[near] < 0 for near in beside[at]):
                bounded[bottom] = self._is_deep(float(values[at] - values[bottom]), at, bottom)
        bounded[order[0]] = True
        basins[(basins >= 0) & ~bounded[basins]] = -1
        self._basins = basins
        return self._basins

    def _is_deep(self, depth: float, edge: int, bottom: int) -> bool:
        """Whether the edge of a well is 1 kT and three errors above its bottom."""
        if depth < self.kt * _DEPTH:
            return False
        error = self._depth_error(edge, bottom)
        deep = depth >= _SIGMAS * error
        self._within_errors |= not deep and math.isfinite(error)
        return deep


def sum_by_bin(
    numbers: NDArray[np.int64], weights: NDArray[np.float64], size: int
) -> NDArray[np.float64]:
    """Sums of weights, (n,), by the numbers of their bins, (n,) from 0 on: (size,)."""
    return np.bincount(numbers, weights, size).astype(np.float64)


def profile_of_weights(
    sums: NDArray[np.float64], grid: ProfileGrid, kt: float
) -> NDArray[np.float64]:
    """F of sums of weights, (..., bins) to kJ/mol; nan in empty bins."""
    with np.errstate(divide="ignore", invalid="ignore"):
        density = sums / (sums.sum(-1, keepdims=True) * grid.volume)
        return np.where(density > 0.0, -kt * np.log(density), math.nan)


def normalise(values: NDArray[np.float64], grid: ProfileGrid, kt: float) -> NDArray[np.float64]:
    """F shifted so that its probability is normalised over the bins, (..., bins) kJ/mol."""
    lowest = np.nanmin(values, axis=-1, keepdims=True)
    chances = np.nansum(np.exp(-(values - lowest) / kt), axis=-1, keepdims=True)
    return values - lowest + kt * np.log(chances * grid.volume)


@dataclass(frozen=True, eq=False)
class WeightedSeries:
    """Samples of a run in order of time.

    Attributes:
        values: (n, d) float64, of the variables of the profile.
        log_weights: (n,) float64; zeros for runs without bias.
        indicators: (n, c) float64, series that say how independent samples are.
    """

    values: NDArray[np.float64]
    log_weights: NDArray[np.float64]
    indicators: NDArray[np.float64]


def block_length(indicators: NDArray[np.float64], count: int, most: int = _MOST_BLOCKS) -> int:
    """Samples in a block, of a series with `count` of them.

    Args:
        indicators: (n, c) float, whose slowest column rules.
        count: number of samples.
        most: blocks, unless that is fewer than the fewest.
    """
    inefficiency = len(indicators) / fewest_independent(indicators)
    length = max(math.ceil(_BLOCK * inefficiency), math.ceil(count / most))
    return max(1, min(length, count // _FEWEST_BLOCKS))


def weighted_profile(
    series: Sequence[WeightedSeries],
    grid: ProfileGrid,
    kt: float,
    resamples: int = 200,
    seed: int = 0,
) -> FreeEnergyProfile:
    """Profile of weighted samples, with errors from a bootstrap of blocks.

    Blocks are longer than five times what separates independent samples, and those of all series
    are drawn with replacement.

    Args:
        series: one or more, of equal footing.
        grid: the bins.
        kt: kJ/mol.
        resamples: number of bootstrap resamples; 0 gives no errors.
        seed: of the draws.
    """
    highest = max(float(part.log_weights.max()) for part in series)
    most = max(1, min(_MOST_BLOCKS, _MOST_BLOCKS_OF_ALL // len(series)))
    blocks: list[NDArray[np.float64]] = []
    halves = [np.zeros(grid.size), np.zeros(grid.size)]
    for part in series:
        weights = np.exp(part.log_weights - highest)
        numbers = grid.numbers(part.values)
        weights = np.where(numbers >= 0, weights, 0.0)
        numbers = np.maximum(numbers, 0)
        count = len(weights)
        for number, half in enumerate((slice(count // 2), slice(count // 2, count))):
            halves[number] += sum_by_bin(numbers[half], weights[half], grid.size)
        length = block_length(part.indicators, count, most)
        block = np.minimum(np.arange(count) // length, max(count // length, 1) - 1)
        flat = sum_by_bin(block * grid.size + numbers, weights, (int(block[-1]) + 1) * grid.size)
        blocks.append(flat.reshape(-1, grid.size))
    sums = np.concatenate(blocks)
    count = len(sums)
    draws = np.random.default_rng(seed).multinomial(count, np.full(count, 1.0 / count), resamples)
    return FreeEnergyProfile(
        grid=grid,
        kt=kt,
        values=profile_of_weights(sums.sum(0), grid, kt),
        resamples=profile_of_weights(draws @ sums, grid, kt) if resamples and count > 1 else None,
        halves=tuple(profile_of_weights(half, grid, kt) for half in halves),
        scale=math.sqrt(count / max(count - 1, 1)),
    )


def unbiased_series(
    values: NDArray[np.float64], periods: tuple[float | None, ...]
) -> WeightedSeries:
    """A series without weights, which its own variables watch."""
    return WeightedSeries(values, np.zeros(len(values)), series_coordinates(values, periods))
