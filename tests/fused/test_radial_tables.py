"""Tables of radial functions: they follow the network, and their derivative is their own."""

from typing import Any

import pytest
import torch
from random_networks import TENSORNET, TENSORNET2, network
from torch import Tensor

from mdgraph.fused.evaluator import shared_tables
from mdgraph.fused.tables import PotentialTables, RadialGrid, RadialTable, TableError, tabulated
from mdgraph.models import TensorNetPotential
from mdgraph.models.radial import cosine_cutoff
from mdgraph.models.tensornet import ACTIVATIONS

NETWORKS: dict[str, dict[str, Any]] = {
    **{name: TENSORNET | {"activation": name} for name in ACTIVATIONS},
    "lower cutoff": TENSORNET | {"cutoff_lower": 1.1},
    "small lower cutoff": TENSORNET | {"cutoff_lower": 0.02},
    "gaussian": TENSORNET | {"radial_basis": {"kind": "gaussian", "number": 6}},
    "smooth Bessel": TENSORNET | {"radial_basis": {"kind": "smooth_bessel", "number": 3}},
    "spherical Bessel": TENSORNET
    | {"radial_basis": {"kind": "spherical_bessel", "number": 6, "orders": 3}},
    "short": TENSORNET | {"cutoff": 1.2},
    "long": TENSORNET | {"cutoff": 12.0, "layers": 1},
    "TensorNet2": TENSORNET2,
    "TensorNet2, lower cutoff": TENSORNET2 | {"cutoff_lower": 1.1},
}


def exact(potential: TensorNetPotential, distance: Tensor) -> list[Tensor]:
    """What the network makes of distances (n,): (n, M) for each table."""
    config, model = potential.config, potential.network
    with torch.no_grad():
        window = cosine_cutoff(distance, config.cutoff_lower, config.cutoff)
        radial = model.basis(distance)
        ones = torch.ones(len(distance), 1, dtype=torch.float64)
        found = [torch.cat([radial, ones], dim=1) * window[:, None]]
        if config.architecture == "tensornet2":
            firsts = [layer.edge_network.linears[0] for layer in model.layers]
            return found + [radial @ first.weight[:, : radial.shape[1]].T for first in firsts]
        values = [layer.edge_network(radial).flatten(1) for layer in model.layers]
        return found + [part * window[:, None] for part in values]


def exact_slopes(potential: TensorNetPotential, distance: Tensor) -> list[Tensor]:
    """By differences of fourth order; good to 1e-9 of the largest."""
    step = 1e-3
    near, far = (
        [
            above - below
            for above, below in zip(
                exact(potential, distance + width), exact(potential, distance - width), strict=True
            )
        ]
        for width in (step, 2 * step)
    )
    return [(8.0 * one - two) / (12.0 * step) for one, two in zip(near, far, strict=True)]


def tables_of(tables: PotentialTables) -> list[RadialTable]:
    return [tables.embedding, *tables.layers]


@pytest.mark.parametrize("kind", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("settings", NETWORKS.values(), ids=NETWORKS)
def test_tables_follow_the_network(settings: dict[str, Any], kind: torch.dtype) -> None:
    potential = network(**settings)
    tables = tabulated(potential, kind)
    lower, cutoff = potential.config.cutoff_lower, potential.config.cutoff
    generator = torch.Generator().manual_seed(4)
    # The differences must not reach across the ends of the window.
    distance = 0.06 + (cutoff - 0.063) * torch.rand(4000, generator=generator, dtype=torch.float64)
    distance = distance[(distance - lower).abs() > 3e-3]
    if potential.config.architecture == "tensornet2":
        distance = distance[distance > lower]  # what a window of zero multiplies may be anything
    distance = distance.sort().values
    near = distance < min(0.8, 0.5 * cutoff)
    share = torch.ones(len(tables_of(tables)))
    share[1:] = 0.5 if potential.config.architecture == "tensornet2" else 1.0
    for table, values, slopes, part in zip(
        tables_of(tables),
        exact(potential, distance),
        exact_slopes(potential, distance),
        share.tolist(),
        strict=True,
    ):
        assert table.coefficients.dtype == kind
        assert table.coefficients.shape == (tables.grid.intervals, 4, values.shape[1])
        for found, wanted, limit in zip(
            table.evaluate(distance), (values, slopes), (1e-6, 2e-6), strict=True
        ):
            # Relative to the largest from there outwards, and never less than beyond 0.8 cutoff.
            outwards = wanted.abs().amax(1).flip(0).cummax(0).values.flip(0)
            scale = torch.maximum(outwards, outwards[distance >= 0.8 * cutoff].max())
            error = (found.double() - wanted).abs().amax(1) / scale
            # Probes of the test's own may hit an error a little larger than any found before,
            # and differences know slopes to 1e-9 of the largest of all.
            beside = 1e-9 * float(outwards[0]) / scale
            allowed = torch.where(near, 10.0, 1.0) * part * limit
            assert (error < 1.1 * allowed + beside).all()


def test_tables_are_as_exact_as_forces_need_at_each_distance() -> None:
    """A network that is steep where no neighbors are is as exact where they are."""
    potential = network(**TENSORNET | {"layers": 1})
    steep = network(**TENSORNET | {"layers": 1})
    with torch.no_grad():
        # exp(-50 (d - 0.5)^2) or so, a hundred times over.
        means = steep.network.basis.get_buffer("means")
        nearest = int(means.argmax())
        first = steep.network.layers[0].edge_network.linears[0]
        first.weight[:, nearest] *= 300.0
    distance = torch.linspace(2.5, 3.39, 500, dtype=torch.float64)
    for one in (potential, steep):
        (values,) = tabulated(one, torch.float64).layers
        (_, wanted), (_, slopes) = exact(one, distance), exact_slopes(one, distance)
        for found, right in zip(values.evaluate(distance), (wanted, slopes), strict=True):
            assert float((found - right).abs().max()) < 3e-6 * float(right.abs().max())


@pytest.mark.parametrize("name", ["silu", "lower cutoff", "spherical Bessel"])
def test_a_table_is_smooth_and_the_slope_is_its_derivative(name: str) -> None:
    tables = tabulated(network(**NETWORKS[name]), torch.float64)
    edges = tables.grid.edges()
    inner, width = edges[1:-1], edges.diff()
    for table in tables_of(tables):
        below, above = (table.evaluate(inner + side) for side in (-1e-12, 1e-12))
        for one, other in zip(below, above, strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-8 * float(one.abs().max()))
        for place in (0.1, 0.5, 0.8):
            distance, step = edges[:-1] + place * width, 1e-2 * width[:, None]
            rise = (
                table.evaluate(distance + step[:, 0])[0] - table.evaluate(distance - step[:, 0])[0]
            )
            # A cubic: the difference is off by its third coefficient times the step squared.
            slope = rise / (2 * step) - table.coefficients[:, 3] * step.square()
            torch.testing.assert_close(table.evaluate(distance)[1], slope, rtol=1e-6, atol=1e-9)


def test_tables_end_in_zero_with_zero_slope() -> None:
    potential = network(**TENSORNET)
    tables = tabulated(potential, torch.float64)
    last = torch.tensor([potential.config.cutoff - 1e-13], dtype=torch.float64)
    for table in tables_of(tables):
        largest = table.coefficients[:, 1].abs().max()
        for part in table.evaluate(last):
            assert part.abs().max() < 1e-12 * largest


def test_below_a_lower_cutoff_all_is_zero() -> None:
    tables = tabulated(network(**NETWORKS["lower cutoff"]), torch.float32)
    assert tables.grid.start == 1.1
    for table in tables_of(tables):
        for part in table.evaluate(torch.linspace(0.0, 1.0999, 50)):
            assert not part.any()


def test_a_float32_potential_gives_the_tables_of_its_own_numbers() -> None:
    single = network(**TENSORNET).at_precision(torch.float32)
    one = tabulated(single, torch.float32)
    other = tabulated(single.at_precision(torch.float64), torch.float32)
    assert one.grid == other.grid
    for first, second in zip(tables_of(one), tables_of(other), strict=True):
        assert torch.equal(first.coefficients, second.coefficients)


def test_a_network_too_steep_for_a_table_is_refused() -> None:
    potential = network(**TENSORNET | {"channels": 48, "layers": 1})
    with torch.no_grad():
        potential.network.layers[0].edge_network.linears[0].weight.mul_(1e4)
    with pytest.raises(TableError, match=r"layer 1 .* at \d\.\d\d A .* precision 'double'"):
        tabulated(potential, torch.float32)


def test_equal_networks_share_tables_until_a_weight_changes() -> None:
    settings = TENSORNET | {"layers": 1}
    one, equal = network(**settings), network(**settings)
    tables = shared_tables(one, torch.float32)
    assert shared_tables(equal, torch.float32) is tables
    assert shared_tables(one, torch.float64).embedding.coefficients.dtype == torch.float64
    assert shared_tables(network(**settings | {"cutoff": 3.3}), torch.float32).grid.cutoff == 3.3
    with torch.no_grad():
        one.network.layers[0].edge_network.linears[2].bias[0] += 0.1
    changed = shared_tables(one, torch.float32).layers[0].evaluate(torch.tensor([1.0]))[0]
    assert float((changed - tables.layers[0].evaluate(torch.tensor([1.0]))[0]).abs().max()) > 1e-3
    assert shared_tables(equal, torch.float32) is tables


# The grid

GRIDS = [
    RadialGrid(start=0.0, cutoff=5.0, counts=(7, 1, 4, 2)),
    RadialGrid(start=0.9, cutoff=5.0, counts=(3, 1, 5)),
]


@pytest.mark.parametrize("grid", GRIDS, ids=["from zero", "from a lower cutoff"])
@pytest.mark.parametrize("kind", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_the_formula_finds_the_interval(grid: RadialGrid, kind: torch.dtype) -> None:
    distance = torch.linspace(0.0, 4.9999, 5000, dtype=kind)
    interval, offset = grid.locate(distance)
    edges, rounding = grid.edges(), 4 * torch.finfo(kind).eps
    assert (interval.dtype, offset.dtype) == (torch.int64, kind)
    assert set(interval.tolist()) == set(range(grid.intervals))
    assert (distance >= edges[interval] - rounding).all()
    assert (distance <= edges[interval + 1] + rounding).all()
    torch.testing.assert_close(
        offset.double(), distance.double() - grid.centres()[interval], rtol=0, atol=rounding
    )


@pytest.mark.parametrize("grid", GRIDS, ids=["from zero", "from a lower cutoff"])
def test_no_distance_leaves_the_grid(grid: RadialGrid) -> None:
    interval, offset = grid.locate(torch.tensor([0.0, 5.0, 7.0, torch.inf]))
    last = grid.intervals - 1
    assert interval.tolist() == [0, last, last, last]
    assert float(offset[0]) == pytest.approx(grid.origin)
