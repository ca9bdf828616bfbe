"""Tables of message weights in fewer bytes, against the tables they come from."""

from pathlib import Path
from typing import Any

import pytest
import torch
from random_networks import TENSORNET, network
from torch import Tensor

from mdgraph.checkpoints import load
from mdgraph.fused.cuda.weights import LayerTable, packed, rounded, whole
from mdgraph.fused.tables import RadialGrid, RadialTable, tabulated
from mdgraph.models import TensorNetPotential

CPU = torch.device("cpu")
ONE = TENSORNET | {"layers": 1}
NETWORKS: dict[str, tuple[dict[str, Any], float]] = {
    "plain": (ONE, 1.0),
    "lower cutoff": (ONE | {"cutoff_lower": 1.1}, 1.0),
    "gaussian": (ONE | {"radial_basis": {"kind": "gaussian", "number": 6}}, 1.0),
    "short": (ONE | {"cutoff": 1.2}, 1.0),
    "long": (ONE | {"cutoff": 12.0}, 1.0),
    "steep": (ONE, 100.0),
    "as steep as a table takes": (ONE, 1000.0),
}
"""Settings, and what the first layer of the edge network is multiplied by."""


def table_of(settings: dict[str, Any], steepness: float) -> RadialTable:
    potential = network(**settings)
    with torch.no_grad():
        potential.network.layers[0].edge_network.linears[0].weight.mul_(steepness)
    return tabulated(potential, torch.float32).layers[0]


def outwards(values: Tensor) -> Tensor:
    """Largest |value| (n,) of all functions from a distance on, of values (n, M)."""
    return values.abs().amax(1).flip(0).cummax(0).values.flip(0)


@pytest.mark.parametrize("name", NETWORKS)
def test_packed_tables_follow_whole_ones(name: str) -> None:
    table = table_of(*NETWORKS[name])
    other = RadialTable(table.grid, 1e-3 * table.coefficients)
    layers, steps = packed([table, other], CPU)
    distance = distances(table)
    far = (distance >= 0.8) & (distance < 0.8 * table.grid.cutoff)
    for source, layer in zip((table, other), layers, strict=True):
        assert (layer.terms, layer.packed) == (3, True)
        assert layer.coefficients.isfinite().all()
        value, slope = read_packed(layer, steps, source, distance)
        exact = read(whole(source, CPU), source, distance)
        errors = [
            ((found - wanted).abs().amax(1) / outwards(wanted))[far].max()
            for found, wanted in zip((value, slope), exact, strict=True)
        ]
        assert float(errors[0]) < 2e-7
        assert 1e-8 < float(errors[1]) < 7e-6
        # What c2 and c3 lose is made up for by c0 and c1: the ends of each interval stay.
        half = 0.5 * table.grid.edges().diff()[:, None]
        coefficients = layer.coefficients[:-1]
        digits = (coefficients[:, 2].view(torch.int32) & 2047) - 1024
        step = layer.stretch * torch.tensor(steps)[table.grid.zone(table.grid.centres())]
        c0, c1, c2, c3 = source.coefficients.double().unbind(1)
        value = coefficients[:, 0] - c0 + half.square() * (coefficients[:, 2].double() - c2)
        slope = coefficients[:, 1] - c1 + half.square() * (digits * step[:, None] - c3)
        assert float(value.abs().max() / c0.abs().max()) < 6e-8
        assert float(slope.abs().max() / c1.abs().max()) < 6e-8


@pytest.mark.parametrize(
    "name", ["torchmdnet/aceff-1.1.ckpt", "matgl/TensorNet-MatPES-PBE-v2025.1-PES"]
)
def test_packed_tables_of_broad_potentials_keep_their_slopes(
    name: str, reference_folder: Path
) -> None:
    """Their c3 are large: 15 bits of c2 and nine of c3 left 1.4e-5 and 2.1e-5."""
    potential = load(reference_folder / name)
    assert isinstance(potential, TensorNetPotential)
    tables = tabulated(potential, torch.float32).layers
    distance = distances(tables[0])
    layers, steps = packed(tables, CPU)
    for source, layer in zip(tables, layers, strict=True):
        _, slope = read_packed(layer, steps, source, distance)
        _, wanted = read(whole(source, CPU), source, distance)
        assert float((slope - wanted).square().mean().sqrt()) < 5e-6 * float(
            wanted.square().mean().sqrt()
        )


def test_rows_of_zeros_are_zero_however_they_are_packed() -> None:
    table = table_of(ONE, 1.0)
    empty = RadialTable(table.grid, torch.zeros_like(table.coefficients))
    (some,), _ = packed([table], CPU)
    (none,), steps = packed([empty], CPU)
    for layer in (some, none):
        c0, c1, word = layer.coefficients[layer.zeros]
        assert not c0.any()
        assert not c1.any()
        assert ((word.view(torch.int32) & 2047) == 1024).all()
        assert float(word.abs().max()) < 1e-40
    assert (none.coefficients == none.coefficients[-1]).all()
    assert min(steps) > 0.0


def distances(table: RadialTable) -> Tensor:
    """Places in every interval, ends and all."""
    edges = table.grid.edges()
    place = torch.tensor([1e-9, 0.2, 0.5, 0.7, 1.0 - 1e-9], dtype=torch.float64)
    return (edges[:-1, None] + place * edges.diff()[:, None]).flatten()


def read_packed(
    layer: LayerTable, steps: list[float], table: RadialTable, distance: Tensor
) -> tuple[Tensor, Tensor]:
    """Values and slopes of a packed table as kernels read them, in float64."""
    interval, offset = table.grid.locate(distance)
    c0, c1, word = layer.coefficients[interval].unbind(1)
    digits = (word.view(torch.int32) & 2047) - 1024
    step = layer.stretch * torch.tensor(steps)[table.grid.zone(distance)]
    c2, c3, u = word.double(), digits * step[:, None], offset[:, None]
    value = c0.double() + u * (c1 + u * (c2 + u * c3))
    return value, c1.double() + u * (2.0 * c2 + 3.0 * u * c3)


def read(layer: LayerTable, table: RadialTable, distance: Tensor) -> tuple[Tensor, Tensor]:
    """Values and slopes as kernels read them, in float64."""
    interval, offset = table.grid.locate(distance)
    v = (layer.stretch * offset)[:, None]
    terms = layer.coefficients.double()[interval].unbind(1)
    value = sum(term * v**power for power, term in enumerate(terms))
    slope = sum(power * term * v ** (power - 1) for power, term in enumerate(terms) if power)
    assert isinstance(value, Tensor)
    assert isinstance(slope, Tensor)
    return layer.unit * value, layer.unit * layer.stretch * slope


@pytest.mark.parametrize("name", NETWORKS)
def test_rounded_tables_follow_whole_ones(name: str) -> None:
    table = table_of(*NETWORKS[name])
    layer = rounded(table, CPU)
    assert (layer.terms, layer.coefficients.dtype) == (3, torch.float16)
    assert layer.coefficients.isfinite().all()
    distance = distances(table)
    exact = read(whole(table, CPU), table, distance)
    for limit, found, wanted in zip((6e-4, 4e-3), read(layer, table, distance), exact, strict=True):
        error = (found - wanted).abs().amax(1) / wanted.abs().max()
        assert float(error.max()) < limit
        # As far as half precision goes, and no further.
        assert float(error.max()) > 1e-5


def test_a_parabola_leaves_a_quarter_of_a_cubic_term() -> None:
    """That of Chebyshev, |v^3 - 3/4 a^2 v| <= a^3 / 4, in intervals of either width."""
    grid = RadialGrid(start=0.0, cutoff=5.0, counts=(4, 6))
    half = 0.5 * grid.edges().diff()
    terms = [torch.ones_like(half), 0.0 * half, 0.0 * half, 0.4 / half**3]
    table = RadialTable(grid, torch.stack(terms, 1)[:, :, None])
    distance = distances(table)
    found, exact = (read(one(table, CPU), table, distance)[0] for one in (rounded, whole))
    assert 0.09 < float((found - exact).abs().max()) < 0.101


@pytest.mark.parametrize("scale", [1e-12, 1e-3, 1e6, 1e30])
def test_the_unit_of_values_does_not_matter(scale: float) -> None:
    """Half precision ends at 65504 and at 6e-8."""
    table = table_of(ONE, 1.0)
    scaled = RadialTable(table.grid, table.coefficients * scale)
    distance = distances(table)
    for found, wanted in zip(
        read(rounded(scaled, CPU), table, distance),
        read(whole(scaled, CPU), table, distance),
        strict=True,
    ):
        assert float((found - wanted).abs().max()) < 4e-3 * float(wanted.abs().max())


def test_a_table_of_zeros_stays_one() -> None:
    table = table_of(ONE, 1.0)
    empty = RadialTable(table.grid, torch.zeros_like(table.coefficients))
    assert not rounded(empty, CPU).coefficients.any()
