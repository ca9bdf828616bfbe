"""Free energies of models whose exact ones are known: profiles, errors, wells, hills, windows."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from mdgraph.analysis import free_energies, metadynamics
from mdgraph.analysis.free_energies import (
    FreeEnergyProfile,
    ProfileGrid,
    WeightedSeries,
    normalise,
    profile_grid,
    profile_of_weights,
    unbiased_series,
    weighted_profile,
)
from mdgraph.analysis.metadynamics import HillSum, log_weights
from mdgraph.analysis.plots_free_energy import ProfilePicture, profile_figure
from mdgraph.analysis.series import equilibrated_start, round_trips
from mdgraph.analysis.umbrellas import StaticBias, UmbrellaWindow, join_windows
from mdgraph.errors import InputError

Array = NDArray[np.float64]

KT = 2.5
SPRING = 60.0 * KT


def double_well(x: Array) -> Array:
    """A barrier of 6 kT, and a second well that is 1.5 kT higher."""
    return KT * (6.0 * (x**2 - 1.0) ** 2 + 0.75 * x)


def low_barrier(x: Array) -> Array:
    return KT * (2.0 * (x**2 - 1.0) ** 2 + 0.4 * x)


def drawn(energy: Callable[[Array], Array], count: int, generator: np.random.Generator) -> Array:
    """Independent samples of exp(-U/kT) in one dimension, from the inverse of its integral."""
    x = np.linspace(-2.5, 2.5, 20_001)
    density = np.exp(-(energy(x) - energy(x).min()) / KT)
    total = np.concatenate([[0.0], np.cumsum(0.5 * (density[1:] + density[:-1]))])
    return np.interp(generator.random(count), total / total[-1], x)


def walk(
    energy: Callable[[Array], Array], walkers: int, rows: int, generator: np.random.Generator
) -> Array:
    """Correlated samples, (walkers, rows), of Metropolis walkers that begin in equilibrium."""
    x = drawn(energy, walkers, generator)
    found = np.empty((rows, walkers))
    for step in range(4 * rows):
        trial = x + 0.25 * generator.normal(size=walkers)
        accepted = generator.random(walkers) < np.exp((energy(x) - energy(trial)) / KT)
        x = np.where(accepted, trial, x)
        found[step // 4] = x
    return found.T


def exact(energy: Callable[[Array], Array], grid: ProfileGrid) -> Array:
    """-kT ln of the probability of each bin, by its volume."""
    (edges,) = grid.edges
    parts = edges[:-1, None] + (edges[1] - edges[0]) * (np.arange(50) + 0.5) / 50
    return profile_of_weights(np.exp(-energy(parts) / KT).sum(1), grid, KT)


def window_samples(
    count: int, seed: int, centres: Array | None = None
) -> tuple[list[UmbrellaWindow], ProfileGrid]:
    generator = np.random.default_rng(seed)
    if centres is None:
        centres = np.linspace(-1.7, 1.7, 18)
    biases = [StaticBias("harmonic", ("x",), (None,), (c,), (SPRING,)) for c in centres.tolist()]
    windows = []
    for bias in biases:
        x = drawn(lambda x, bias=bias: double_well(x) + bias.energy(x[:, None]), count, generator)
        energies = np.array([other.energy(x[:, None]) for other in biases]) / KT
        windows.append(UmbrellaWindow(f"{bias.centre[0]:g}", bias.centre, x[:, None], energies))
    grid = profile_grid(["x"], np.zeros((1, 1)), [None], [50], [(-1.5, 1.5)])
    return windows, grid


def test_windows_join_to_the_exact_profile_with_honest_errors() -> None:
    windows, grid = window_samples(4000, 0)
    truth = exact(double_well, grid)
    low = truth - truth.min() < 8.0 * KT
    joined = join_windows(windows, grid, KT, resamples=0)
    apart = normalise(joined.profile.values, grid, KT)[low] - truth[low]
    assert np.sqrt(np.mean(apart**2)) < 0.05 * KT
    assert min(shared for *_, shared in joined.links) > 0.1
    np.testing.assert_allclose(joined.overlap.sum(1), 1.0, atol=1e-6)

    pulls = []
    for seed in range(1, 9):
        windows, grid = window_samples(120, seed)
        profile = join_windows(windows, grid, KT, resamples=50, seed=seed).profile
        error = profile.error()
        pulls.append(((profile.values - truth) / error)[low])
    assert 0.75 < np.nanstd(pulls) < 1.3
    wells = profile.wells()
    (barrier,) = profile.barriers(wells)
    assert [well.place[0] for well in wells] == pytest.approx([-1.03, 0.97], abs=0.12)
    fine = np.linspace(-1.5, 1.5, 3001)
    top = double_well(fine[np.abs(fine) < 0.5]).max() - double_well(fine).min()
    assert abs(barrier.height - top) < 4.0 * barrier.error
    shares = np.exp(-truth / KT)
    middle = grid.centers[0] < barrier.place[0]
    difference = -KT * math.log(shares[~middle].sum() / shares[middle].sum())
    assert abs(wells[1].difference - difference) < 4.0 * wells[1].difference_error


def test_newtons_method_of_resamples_is_mbar() -> None:
    from mdgraph.analysis.umbrellas import _Equations

    windows, grid = window_samples(60, 3)
    joined = join_windows(windows, grid, KT, resamples=0)
    energies = np.concatenate([window.energies for window in windows], axis=1)
    state = _Equations(energies, np.full(18, 60))
    values = state.solve(np.zeros(18), np.ones(18 * 60))
    np.testing.assert_allclose(values, joined.free_energies, atol=1e-5)


def test_windows_apart_are_refused_and_thin_links_are_found() -> None:
    windows, grid = window_samples(200, 0, np.array([-1.5, -1.4, 1.4, 1.5]))
    with pytest.raises(InputError, match=r"Windows -1\.4 and 1\.4 do not overlap"):
        join_windows(windows, grid, KT)
    windows, grid = window_samples(2000, 0, np.array([-1.2, -0.9, -0.2]))
    thin = min(join_windows(windows, grid, KT, resamples=0).links, key=lambda link: link[2])
    assert thin[:2] == (1, 2)
    assert 1e-4 < thin[2] < 0.03


def test_errors_of_correlated_samples_are_honest(monkeypatch: pytest.MonkeyPatch) -> None:
    paths = walk(low_barrier, 40, 3000, np.random.default_rng(1))
    grid = ProfileGrid(("x",), (np.linspace(-2.0, 2.0, 41),), (None,))
    truth = exact(low_barrier, grid)
    low = truth - truth.min() < 4.0 * KT
    pulls, naive = [], []
    for path in paths:
        profile = weighted_profile([unbiased_series(path[:, None], (None,))], grid, KT)
        change = (profile.values - truth)[low]
        pulls.append(change / profile.error()[low])
        counts = len(path) * np.exp(-truth[low] / KT) * grid.volume
        naive.append(change / (KT / np.sqrt(counts)))
    assert 0.85 < np.nanstd(pulls) < 1.2
    assert np.nanstd(naive) > 1.5  # so that the blocks matter
    assert abs(np.nanmean(pulls)) < 0.15
    together = weighted_profile(
        [unbiased_series(path[:, None], (None,)) for path in paths], grid, KT
    )
    assert np.sqrt(np.mean((together.values - truth)[low] ** 2)) < 0.05 * KT
    assert len(together.halves) == 2
    # Of many walkers blocks are longer, so that there are fewer of them.
    monkeypatch.setattr(free_energies, "_MOST_BLOCKS_OF_ALL", 400)
    fewer = weighted_profile([unbiased_series(path[:, None], (None,)) for path in paths], grid, KT)
    assert 0.8 < np.median(fewer.error()[low] / together.error()[low]) < 1.25
    assert not np.array_equal(fewer.error()[low], together.error()[low])
    assert 10 < round_trips(paths[0], (-1.0, 1.0)) < 60


def test_a_free_pair_has_minus_2_kt_ln_r() -> None:
    generator = np.random.default_rng(5)
    points = generator.uniform(-1.0, 1.0, (400_000, 3))
    distances = np.linalg.norm(points, axis=1)
    distances = distances[(distances > 0.2) & (distances < 1.0)]
    grid = profile_grid(["r"], distances[:, None], [None], [40])
    series = [unbiased_series(distances[:, None], (None,))]
    profile = weighted_profile(series, grid, KT)
    pair = normalise(-2.0 * KT * np.log(grid.centers[0]), grid, KT)
    assert np.sqrt(np.mean((profile.values - pair) ** 2)) < 0.03 * KT


def test_a_model_of_two_variables_has_its_wells_on_a_torus() -> None:
    def surface(phi: Array, psi: Array) -> Array:
        return KT * (2.0 * np.cos(2.0 * phi) + 1.5 * np.cos(psi - 3.0) + 0.5 * np.cos(phi))

    axis = -math.pi + 2.0 * math.pi * np.arange(24) / 24
    edges = -math.pi + 2.0 * math.pi * np.arange(25) / 24 - math.pi / 24
    turn = 2.0 * math.pi
    grid = ProfileGrid(("phi", "psi"), (edges, edges), (turn, turn))
    values = surface(*np.meshgrid(axis, axis, indexing="ij")).ravel()
    profile = FreeEnergyProfile(grid=grid, kt=KT, values=normalise(values, grid, KT))
    wells = profile.wells()
    places = [tuple(round(abs(one), 1) for one in well.place) for well in wells]
    assert places == [(1.6, 0.3), (1.6, 0.3)] or len(wells) == 2
    barriers = profile.barriers(wells)
    assert len(barriers) == 1
    least = surface(np.array([0.0, math.pi]), np.array([3.0 - math.pi])).min()
    assert barriers[0].height == pytest.approx(least - values.min(), abs=0.15 * KT)
    shifted = grid.numbers(np.array([[4.0, 0.0], [4.0 - turn, turn], [-9.0, 0.0]]))
    assert shifted[0] == shifted[1]
    along = ProfileGrid(("phi",), (edges,), (turn,))
    values = KT * 2.0 * np.cos(2.0 * axis)
    one = FreeEnergyProfile(grid=along, kt=KT, values=normalise(values, along, KT))
    assert len(one.wells()) == len(one.barriers(one.wells())) == 2


def test_a_well_is_bounded_by_bins_with_samples() -> None:
    grid = ProfileGrid(("x",), (np.linspace(0.0, 12.0, 13),), (None,))
    nan = math.nan
    values = KT * np.array([3.0, 0.0, 3.0, nan, 1.0, 2.5, 4.0, nan, 5.0, 2.0, 5.0, nan])
    profile = FreeEnergyProfile(grid=grid, kt=KT, values=normalise(values, grid, KT))
    wells = profile.wells()
    assert [well.bin for well in wells] == [1, 9]  # that at 4 goes on into the empty bin
    assert profile.barriers(wells) == []
    chances = np.nan_to_num(np.exp(-values / KT))
    assert profile.share_apart == pytest.approx(chances[3:].sum() / chances.sum())


def test_minima_within_errors_and_barriers_without_are_told() -> None:
    grid = ProfileGrid(("x",), (np.linspace(0.0, 5.0, 6),), (None,))
    values = KT * np.array([4.0, 0.0, 4.0, 2.0, 4.0])
    noise = np.random.default_rng(0).normal(size=(50, 5))

    def profile(spread: float) -> FreeEnergyProfile:
        resamples = values + spread * KT * noise
        return FreeEnergyProfile(grid=grid, kt=KT, values=values, resamples=resamples)

    sharp, vague = profile(0.2), profile(1.0)
    assert (len(sharp.wells()), sharp.within_errors) == (2, False)
    assert (len(vague.wells()), vague.within_errors) == (1, True)
    assert len(sharp.barriers(sharp.wells())) == 1
    few = profile(0.2)
    assert few.resamples is not None
    few.resamples[:25, 2] = math.nan
    assert len(few.wells()) == 2
    assert few.barriers(few.wells()) == []


def test_labels_of_a_picture_do_not_overlap() -> None:
    places = np.arange(60.0)
    values = KT * (5.0 - 5.0 * np.cos(math.pi * places))  # a well at every other bin
    grid = ProfileGrid(("x",), (np.linspace(0.0, 60.0, 61),), (None,))
    profile = FreeEnergyProfile(grid=grid, kt=KT, values=values)
    wells = profile.wells()
    picture = ProfilePicture(
        profile=profile,
        other=None,
        half_names=("", ""),
        wells=wells,
        barriers=profile.barriers(wells),
        units=[""],
        factor=1.0,
        energy_unit="kJ/mol",
        title="",
        subtitle="",
        windows=False,
    )
    (axes,) = profile_figure(picture).axes
    labels = sorted(label.xy for label in axes.texts)
    assert len(wells) == 30
    assert 20 <= len(labels) <= 34
    for height in {label[1] for label in labels}:
        row = [label[0] for label in labels if label[1] == height]
        assert np.diff(row).min() >= 3.6


def test_halves_differ_beyond_their_errors() -> None:
    grid = ProfileGrid(("x",), (np.linspace(0.0, 4.0, 5),), (None,))
    values = KT * np.array([0.0, 1.0, 2.0, 3.0])
    noise = np.random.default_rng(0).normal(size=(50, 4))

    def apart(first: float, error: float) -> float:
        halves = values + first * KT * np.array([0.0, 1.0, math.nan, 2.0]), values
        return FreeEnergyProfile(
            grid=grid, kt=KT, values=values, resamples=values + error * KT * noise, halves=halves
        ).between_halves()

    assert apart(1.0, 0.1) == pytest.approx(2.0 * KT)
    assert apart(1.0, 1.0) == apart(0.4, 0.01) == 0.0
    one = FreeEnergyProfile(grid=grid, kt=KT, values=values, halves=(values, 9.0 * values))
    assert one.between_halves() == 0.0  # errors are not known


def hills_of(count: int, bias_factor: float, stretched: bool = False) -> HillSum:
    generator = np.random.default_rng(2)
    return HillSum(
        ("phi", "d"),
        ((-math.pi, math.pi), None),
        np.arange(1.0, count + 1.0),
        generator.uniform((-math.pi, 0.0), (math.pi, 2.0), (count, 2)),
        generator.uniform(0.1, 0.4, (count, 2)),
        generator.uniform(0.5, 2.0, count),
        bias_factor,
        stretched,
    )


@pytest.mark.parametrize("stretched", [False, True])
def test_the_sum_of_hills_is_the_documented_one(stretched: bool) -> None:
    hills = hills_of(30, 5.0, stretched)
    points = np.random.default_rng(4).uniform((-math.pi, 0.0), (math.pi, 2.0), (7, 2))
    expected = np.zeros(7)
    for number, (phi, d) in enumerate(points):
        for (c_phi, c_d), (s_phi, s_d), h in zip(
            hills.centers, hills.sigmas, hills.heights, strict=True
        ):
            turned = min(abs(phi - c_phi + turns * 2.0 * math.pi) for turns in (-1, 0, 1))
            half = 0.5 * (turned / s_phi) ** 2 + 0.5 * ((d - c_d) / s_d) ** 2
            height = math.exp(-half)
            if stretched:
                end = math.exp(-6.25)
                height = (height - end) / (1.0 - end) if half < 6.25 else 0.0
            expected[number] -= h * height
    np.testing.assert_allclose(hills.free_energy(points), expected, rtol=1e-12)
    np.testing.assert_allclose(hills.bias(points), -0.8 * expected, rtol=1e-12)
    ordinary = hills_of(30, 1.0, stretched)
    np.testing.assert_allclose(ordinary.bias(points), -expected, rtol=1e-12)
    assert len(hills.before(11.0).heights) == 10


@pytest.mark.parametrize("count", [1, 2, 3])
def test_hills_add_up_on_a_grid_as_anywhere(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Points of a grid out of order, of which some are absent; a few hills at a time."""
    monkeypatch.setattr(metadynamics, "_MOST_TERMS", 100)
    generator = np.random.default_rng(count)
    domains = ((-math.pi, math.pi), None, None)[:count]
    centers, sigmas = generator.uniform(-2.0, 2.0, (2, 40, count))
    sigmas = 0.1 + 0.2 * np.abs(sigmas)
    heights = generator.uniform(0.5, 2.0, 40)
    hills = HillSum(("phi", "d", "e")[:count], domains, np.arange(40.0), centers, sigmas, heights)
    axes = [np.linspace(-3.0, 3.0, 7 + axis) for axis in range(count)]
    points = np.stack([axis.ravel() for axis in np.meshgrid(*axes)], axis=1)
    points = generator.permutation(points)[: 6 * len(points) // 7]
    change = points - centers[:, None]
    change[..., 0] -= 2.0 * math.pi * np.round(change[..., 0] / (2.0 * math.pi))
    kernels = np.exp(-0.5 * ((change / sigmas[:, None]) ** 2).sum(-1))
    np.testing.assert_allclose(hills.free_energy(points), -heights @ kernels, atol=1e-13)
    kt = 2.5
    above, below = (np.exp(part * heights @ kernels / kt).sum() for part in (1.0, 0.0))
    assert hills.offsets(points, kt)[1][-1] == pytest.approx(kt * math.log(above / below))


@pytest.mark.parametrize("bias_factor", [6.0, 1.0])
def test_metadynamics_of_walkers_gives_the_exact_profile(bias_factor: float) -> None:
    """Walkers in a double well with a barrier of 6 kT, on a grid of the bias."""
    generator = np.random.default_rng(7)
    walkers, sigma, steps = 20, 0.1, 20_000
    places = np.linspace(-2.5, 2.5, 1001)
    bias = np.zeros(1001)
    x = np.full(walkers, -1.0)
    hills, rows = [], []

    def total(x: Array) -> Array:
        return double_well(x) + np.interp(x, places, bias)

    for step in range(steps):
        trial = x + 0.25 * generator.normal(size=walkers)
        x = np.where(generator.random(walkers) < np.exp((total(x) - total(trial)) / KT), trial, x)
        if step % 10 == 0:
            rows.append((float(step), x, np.interp(x, places, bias)))
        if step % 100 == 99:
            height = 0.03 * KT * np.ones(walkers)
            if bias_factor > 1.0:
                height = (
                    0.06 * KT * np.exp(-np.interp(x, places, bias) / (KT * (bias_factor - 1.0)))
                )
            for centre, own in zip(x, height, strict=True):
                bias += own * np.exp(-0.5 * ((places - centre) / sigma) ** 2)
                hills.append((step + 0.5, centre, own))
    times, centers, heights = np.array(hills).T
    scale = bias_factor / (bias_factor - 1.0) if bias_factor > 1.0 else 1.0
    known = HillSum(
        ("x",),
        (None,),
        times,
        centers[:, None],
        np.full((len(times), 1), sigma),
        scale * heights,
        bias_factor,
    )
    np.testing.assert_allclose(known.bias(places[::50, None]), bias[::50], atol=1e-9)
    grid = ProfileGrid(("x",), (np.linspace(-1.4, 1.4, 41),), (None,))
    truth = exact(double_well, grid)
    low = truth - truth.min() < 8.0 * KT
    points = grid.centers[0][:, None]
    stages = np.unique(times)
    late = known.mean_from(stages[100])
    lower = truth - truth.min() < 6.5 * KT  # walkers come late to the ends
    last, mean = (
        np.std((hills.free_energy(points) - truth)[lower]) / KT for hills in (known, late)
    )
    assert max(last, mean) < 0.15
    # Between two times of hills the sum is that after the first.
    sums = [known.before(time + 0.5).free_energy(points) for time in stages[100:-1]]
    np.testing.assert_allclose(late.free_energy(points), np.mean(sums, axis=0), rtol=1e-9)
    assert known.mean_from(stages[-1]) is known

    series = []
    for walker in range(walkers):
        kept = rows[len(rows) // 5 :]
        values = np.array([row[1][walker] for row in kept])[:, None]
        biases = np.array([row[2][walker] for row in kept])
        offsets = known.offsets(places[100:901:4, None], KT)
        weights = log_weights(offsets, biases, np.array([row[0] for row in kept]), KT)
        series.append(WeightedSeries(values, weights, values))
    profile = weighted_profile(series, grid, KT)
    assert np.sqrt(np.mean((profile.values - truth)[low] ** 2)) < 0.1 * KT
    pulls = ((profile.values - truth) / profile.error())[low]
    assert np.sqrt(np.mean(pulls**2)) < 2.0


def test_static_biases_and_where_equilibrium_begins() -> None:
    values = np.array([[3.0, 1.0], [-3.0, 1.5]])
    spring = StaticBias("harmonic", ("phi", "d"), (2.0 * math.pi, None), (3.0, 1.0), (2.0, 8.0))
    turned = 6.0 - 2.0 * math.pi
    np.testing.assert_allclose(spring.energy(values), [0.0, turned**2 + 1.0])
    upper = StaticBias("upper", ("d",), (None,), (1.2,), (2.0,))
    np.testing.assert_allclose(upper.energy(values[:, 1:]), [0.0, 0.09])
    lower = StaticBias("lower", ("d",), (None,), (1.2,), (2.0,))
    np.testing.assert_allclose(lower.energy(values[:, 1:]), [0.04, 0.0], atol=1e-12)
    slope = StaticBias("linear", ("d",), (None,), (1.0,), (4.0,))
    np.testing.assert_allclose(slope.energy(values[:, 1:]), [0.0, 2.0])
    generator = np.random.default_rng(0)
    series = generator.normal(size=2000)
    series[:500] += 10.0 * np.exp(-np.arange(500) / 100.0)
    assert 200 <= equilibrated_start(series[:, None]) <= 700
    turn = np.arange(0.0, 40.0 * math.pi, 0.1)
    assert round_trips(turn % (2.0 * math.pi), (0.5, 0.5 + math.pi), 2.0 * math.pi) in (19, 20)
