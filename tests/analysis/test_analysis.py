"""Radial distribution functions against crystals, the ideal gas and a sum over all images."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.text import Text

from mdgraph.analysis.molecules import BondedTerms
from mdgraph.analysis.plots import Ladder, PairDistribution, replicas_figure, run_figure
from mdgraph.analysis.plots_training import dataset_figure
from mdgraph.analysis.rdf import (
    RadialDistribution,
    most_common_heavy_element,
    radial_distribution,
    smallest_height,
)
from mdgraph.data.dataset import DatasetSummary
from mdgraph.errors import InputError

SKEWED = np.array([[6.0, 0.0, 0.0], [4.5, 5.0, 0.0], [-2.5, 3.0, 5.5]])


def histogram_over_images(positions: np.ndarray, cell: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Counts ordered pairs by adding up 7 x 7 x 7 images."""
    total = np.zeros(len(edges) - 1)
    for image in itertools.product(range(-3, 4), repeat=3):
        vectors = positions[None] - positions[:, None] + np.array(image) @ cell
        distances = np.linalg.norm(vectors, axis=-1)
        total += np.histogram(distances[distances > 1e-9], edges)[0]
    return total


@pytest.mark.parametrize("cell", [np.eye(3) * 6.0, SKEWED, SKEWED[::-1]])
def test_rdf_agrees_with_a_sum_over_images(cell: np.ndarray) -> None:
    generator = np.random.default_rng(1)
    positions = generator.uniform(-2.0, 3.0, (40, 3)) @ cell
    atoms = np.arange(40)
    found = radial_distribution([(positions, cell)], atoms, atoms, width=0.1)
    edges = np.arange(len(found.value) + 1) * 0.1
    wrapped = (positions @ np.linalg.inv(cell) % 1.0) @ cell
    shells = 4.0 / 3.0 * np.pi * np.diff(edges**3)
    density = 40 * 39 / abs(np.linalg.det(cell))
    expected = histogram_over_images(wrapped, cell, edges) / (density * shells)
    np.testing.assert_allclose(found.value, expected, rtol=1e-12)
    assert edges[-1] <= 0.5 * smallest_height(cell) < edges[-1] + 0.1
    assert found.value[5:].max() > 0.0


def test_rdf_counts_the_neighbors_of_a_crystal() -> None:
    edge = 4.0
    base = np.array([[0, 0, 0], [0, 0.5, 0.5], [0.5, 0, 0.5], [0.5, 0.5, 0]])
    grid = np.array(list(itertools.product(range(3), repeat=3)))[:, None]
    positions = ((grid + base) * edge).reshape(-1, 3)
    atoms = np.arange(len(positions))
    found = radial_distribution([(positions, np.eye(3) * 12.0)], atoms, atoms, width=0.02)
    around = found.value * 4.0 * np.pi * found.distance**2 * 0.02 * (len(atoms) - 1) / 12.0**3
    shells = [edge / np.sqrt(2.0), edge, edge * np.sqrt(1.5)]
    counts = [around[abs(found.distance - shell) < 0.1].sum() for shell in shells]
    np.testing.assert_allclose(counts, [12, 6, 24], rtol=1e-3)


def test_rdf_of_an_ideal_gas_is_one() -> None:
    generator = np.random.default_rng(2)
    frames = [(generator.uniform(0.0, 1.0, (300, 3)) @ SKEWED, SKEWED) for _ in range(20)]
    first, second = np.arange(100), np.arange(100, 300)
    found = radial_distribution(frames, first, second, width=0.25)
    pairs = 20 * 100 * 200 * 4.0 * np.pi * found.distance**2 * 0.25 / abs(np.linalg.det(SKEWED))
    assert found.frames == 20
    assert (np.abs(found.value - 1.0) < 4.0 / np.sqrt(pairs)).all()


def test_rdf_refuses_distances_beyond_the_cell_and_empty_input() -> None:
    cell, positions, atoms = np.eye(3) * 6.0, np.zeros((2, 3)), np.arange(2)
    with pytest.raises(InputError, match=r"beyond half the smallest height of the cell, 3\.00 A"):
        radial_distribution([(positions, cell)], atoms, atoms, maximum=3.2)
    with pytest.raises(InputError, match="at least one pair"):
        radial_distribution([(positions, cell)], atoms[:1], atoms[:1])
    with pytest.raises(InputError, match="at least one frame"):
        radial_distribution([], atoms, atoms)
    with pytest.raises(InputError, match="without volume"):
        radial_distribution([(positions, np.zeros((3, 3)))], atoms, atoms)


@pytest.mark.parametrize(
    ("numbers", "element"), [([8, 1, 1] * 4, 8), ([1, 1], 1), ([6, 8, 1, 1, 1, 1], 8), ([29], 29)]
)
def test_the_most_common_heavy_element_is_chosen(numbers: list[int], element: int) -> None:
    assert most_common_heavy_element(np.array(numbers)) == element


def example_log() -> dict[str, np.ndarray]:
    time = np.linspace(0.0, 0.2, 5)
    kinetic = np.array([5.0, 5.1, 4.9, 5.0, 5.2])
    return {
        "time_ps": time,
        "temperature_K": 60.0 * kinetic,
        "kinetic_energy_eV": kinetic,
        "potential_energy_eV": -29944.0 - kinetic,
        "total_energy_eV": np.full(5, -29944.0),
    }


def test_the_picture_shows_log_and_rdf(tmp_path: Path) -> None:
    log = example_log()
    distribution = RadialDistribution(np.linspace(0.1, 6.0, 60), np.ones(60), 5)
    reference = (np.linspace(0.1, 6.0, 30), np.full(30, 1.5))
    figure = run_figure(
        log,
        title="water: 0.2 ps at 300 K",
        subtitle="H4 O2",
        atoms=6,
        bath_temperature=300.0,
        pairs=PairDistribution("O-O", distribution, reference),
    )
    temperature, energies, radial = figure.axes
    assert figure.get_suptitle().strip() == "water: 0.2 ps at 300 K"
    assert "H4 O2" in [text.get_text() for text in figure.texts]
    np.testing.assert_array_equal(temperature.lines[0].get_ydata(), log["temperature_K"])
    assert set(temperature.lines[1].get_ydata()) == {300.0}
    drawn = {line.get_label(): line.get_ydata() for line in energies.lines}
    np.testing.assert_allclose(drawn["kinetic"], 1e3 * (log["kinetic_energy_eV"] - 5.0) / 6)
    np.testing.assert_array_equal(drawn["total"], 0.0)
    curves = {line.get_label(): line.get_xydata() for line in radial.lines}
    np.testing.assert_array_equal(curves["training frames"], np.column_stack(reference))
    np.testing.assert_array_equal(curves["this run, 5 frames"][:, 1], 1.0)
    assert radial.get_xlabel() == "O-O distance (Å)"
    assert radial.get_ylim()[1] > 1.5
    figure.savefig(tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_many_rows_get_a_running_mean() -> None:
    generator = np.random.default_rng(5)
    log = {name: np.linspace(column[0], column[-1], 1000) for name, column in example_log().items()}
    log["temperature_K"] += generator.normal(scale=20.0, size=1000)
    faint, mean = run_figure(log, title="long", subtitle="", atoms=6).axes[0].lines
    np.testing.assert_array_equal(faint.get_ydata(), log["temperature_K"])
    assert len(mean.get_ydata()) == 991
    np.testing.assert_allclose(mean.get_ydata()[7], log["temperature_K"][7:17].mean())
    np.testing.assert_allclose(mean.get_xdata()[7], log["time_ps"][7:17].mean())


def test_the_picture_of_a_data_set_shows_every_element() -> None:
    elements = {"H": 4000, "O": 1000}
    summary = DatasetSummary(500, (15, 15, 15), elements, {}, 0, {}, np.arange(9.0), np.arange(9.0))
    figure = dataset_figure(summary, "set.h5")
    assert figure.axes[2].get_ylim()[0] < 1.0
    assert any("500 frames, 15 atoms each" in text.get_text() for text in figure.findobj(Text))


def test_the_picture_of_a_molecule_has_no_distribution() -> None:
    figure = run_figure(example_log(), title="molecule", subtitle="H4 O2", atoms=6)
    assert len(figure.axes) == 2


@pytest.mark.parametrize(("bond", "share"), [(30.0, 0.55), (3.0, 1.7 / (1.08 * 3.0))])
def test_a_bond_does_not_flatten_the_rest_of_a_distribution(bond: float, share: float) -> None:
    """The second peak takes more than half of the height, and the first is still within it."""
    value = np.ones(60)
    value[:20] = 0.0
    value[9], value[25] = bond, 1.7
    pairs = PairDistribution("C-C", RadialDistribution(np.linspace(0.1, 6.0, 60), value, 5))
    axes = run_figure(example_log(), title="", subtitle="", atoms=6, pairs=pairs).axes[2]
    heights = axes.transAxes.inverted().transform(axes.transData.transform([(0, 1.7), (0, bond)]))
    assert heights[0, 1] == pytest.approx(share, abs=0.1)
    assert 0.9 < heights[1, 1] < 1.0
    texts = [text.get_text() for text in axes.texts]
    assert ("logarithmic above this line" in texts) == (bond == 30.0)


def test_the_picture_of_replicas_shows_each_of_them_and_its_way(tmp_path: Path) -> None:
    logs, steps = (
        [example_log() | {"temperature_K": np.full(5, kelvin)} for kelvin in (300, 350, 400)],
        4,
    )
    places = np.array([[0, 1, 2], [1, 0, 2], [1, 2, 0], [2, 1, 0]])
    ladder = Ladder(np.arange(steps) * 0.05, places, [0.25, float("nan")], ["300", "350", "400"])
    figure = replicas_figure(logs, title="", subtitle="", atoms=[6, 6, 12], ladder=ladder)
    temperature, energies, ways, rates = figure.axes
    assert [line.get_ydata()[0] for line in temperature.lines] == [300, 350, 400]
    changes = [line.get_ydata()[-1] for line in energies.lines]
    assert changes[0] == changes[1] == pytest.approx(2.0 * changes[2])
    # Which replica has the lowest temperature, which the next, which the highest.
    expected = [[0, 1, 2], [1, 0, 2], [2, 0, 1], [2, 1, 0]]
    np.testing.assert_array_equal(ways.collections[0].get_array().T, expected)
    assert [text.get_text() for text in rates.texts] == ["25 %", "no try"]
    names = [text.get_text() for text in temperature.get_legend().get_texts()]
    assert names == ["replica 0", "1", "2"]
    plain = replicas_figure(logs, title="", subtitle="", atoms=[6] * 3, bath_temperature=310.0)
    assert len(plain.axes) == 2
    assert set(plain.axes[0].lines[-1].get_ydata()) == {310.0}
    figure.savefig(tmp_path / "picture.png")


def test_the_picture_of_a_ladder_without_a_try_is_drawn(tmp_path: Path) -> None:
    ladder = Ladder(np.zeros(1), np.array([[0, 1]]), [float("nan")], ["300", "350"])
    figure = replicas_figure(
        [example_log()], title="", subtitle="", atoms=[6], first=1, ladder=ladder
    )
    np.testing.assert_array_equal(figure.axes[2].collections[0].get_array(), [[0], [1]])
    # Only the replica of this rank has a line, in the colour that it has on the ladder.
    assert figure.axes[0].lines[0].get_color() == to_hex(figure.axes[2].collections[0].cmap(1))
    figure.savefig(tmp_path / "picture.png")


def test_a_skewed_cell_reaches_as_far_as_the_compact_one_of_its_lattice() -> None:
    """Half the smallest height of the skewed cell is 1.6 A, where there are no atoms."""
    generator = np.random.default_rng(4)
    compact = np.array([[10.0, 0.0, 0.0], [2.0, 9.0, 0.0], [-1.0, 3.0, 11.0]])
    skewed = np.array([[1.0, 0.0, 0.0], [3.0, 1.0, 0.0], [-2.0, 2.0, 1.0]]) @ compact
    positions, atoms = generator.uniform(size=(40, 3)) @ skewed, np.arange(40)
    expected = radial_distribution([(positions, compact)], atoms, atoms)
    found = radial_distribution([(positions, skewed)], atoms, atoms)
    np.testing.assert_allclose(found.distance, expected.distance)
    np.testing.assert_allclose(found.value, expected.value)
    assert smallest_height(skewed) == pytest.approx(smallest_height(compact))


def test_bonds_that_turn_stay_as_long_in_any_cell_of_their_lattice() -> None:
    cell = np.array([[8.0, 0.0, 0.0], [0.0, 8.0, 0.0], [72.0, -56.0, 8.0]])
    terms = BondedTerms(
        np.array([8, 1]), np.array([[0, 1]]), np.zeros((1, 3), np.int64), np.full(3, True)
    )
    for angle in np.linspace(0.0, 6.0, 5):
        bond = np.array([np.cos(angle), 0.0, np.sin(angle)])
        places = np.array([[0.1, 0.1, 0.1], [0.1, 0.1, 0.1] + bond])
        terms.add(places if angle == 0.0 else places @ np.linalg.inv(cell) % 1.0 @ cell, cell)
    assert terms.length_result(1).mean[0] == pytest.approx(1.0, abs=1e-9)
