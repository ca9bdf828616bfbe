"""The script about mean energies of two time steps: pairs, their errors, and what it keeps."""

import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from mdgraph.io.structures import read_system
from mdgraph.units import BOLTZMANN

pytestmark = pytest.mark.usefixtures("checked_once")


@pytest.fixture
def module() -> ModuleType:
    return import_module("energy_pairs")


def test_what_pairs_share_is_no_error(module: ModuleType) -> None:
    rng = np.random.default_rng(1)
    degrees, kelvin, shared = 30.0, 300.0, rng.normal(size=(1, 64))
    unit = 0.5 * BOLTZMANN * kelvin * degrees
    rows = {}
    for text, percent in (("1", 0.0), ("1.25x4", 0.4)):
        own = unit * (0.01 * percent + shared + 0.005 * rng.normal(size=(9, 64)))
        rows[text] = [{"atoms": 10, "degrees": degrees, "U": own.tolist()}]
    lines = module.differences(rows, 1, kelvin)
    cells = [cell.split() for cell in lines[2].split("|")[1:-1]]
    assert cells[:3] == [["1.25", "x", "4"], ["5"], ["64"]]
    for cell, samples in zip(cells[4:], (8, 4, 4), strict=True):
        error = 200.0 * 0.005 * (2.0 / samples / 64) ** 0.5
        assert float(cell[2]) == pytest.approx(error, rel=0.4)
        assert float(cell[0]) == pytest.approx(0.4, abs=2.0 * error)
        assert len(cell) == 3  # it passes
    scale = 1e3 * 0.01 * unit / 10  # meV an atom of a percent
    assert float(cells[3][0]) == pytest.approx(scale * float(cells[4][0]), abs=0.02)
    alone = float(lines[-1].split()[-2])
    assert alone == pytest.approx(200.0 * shared.std(ddof=1) * (2.0 / 64) ** 0.5, rel=0.05)


def test_pressures_of_pairs_are_told_as_volumes(module: ModuleType) -> None:
    rng = np.random.default_rng(4)
    shared = 2000.0 * rng.normal(size=(1, 64))
    rows = {
        text: [{"P": (shared + more + 300.0 * rng.normal(size=(9, 64))).tolist()}]
        for text, more in (("1", 50.0), ("1.4x3", 150.0))
    }
    lines = module.pressures_of(rows, 1, 4.5e-5)
    cells = [cell.split() for cell in lines[3].split("|")[1:-1]]
    assert cells[0] == ["1.4", "x", "3"]
    error = 2.0 * 300.0 * (2.0 / 8 / 64) ** 0.5
    assert float(cells[3][2]) == pytest.approx(error, rel=0.4)
    assert float(cells[3][0]) == pytest.approx(100.0, abs=2.0 * error)
    assert float(cells[4][0]) == pytest.approx(4.5e-3 * float(cells[3][0]), abs=0.01)
    assert float(cells[2][2]) > 5.0 * error
    assert len(cells[4]) == 3  # it passes
    rows["1"][0]["P"] = None
    assert module.pressures_of(rows, 1, 4.5e-5) == []


def test_pressures_in_two_volumes_tell_the_variance_of_the_volume(module: ModuleType) -> None:
    """Where the pressure falls by a tenth less, volumes spread by a tenth more."""
    rng = np.random.default_rng(5)
    volumes = []
    for pressure, more in ((1000.0, 0.0), (-1000.0, 200.0)):
        shared = pressure + 500.0 * rng.normal(size=(1, 64))
        rows = {
            text: [{"P": (shared + own + 300.0 * rng.normal(size=(9, 64))).tolist()}]
            for text, own in (("1", 0.0), ("1.4x3", more))
        }
        volumes.append(rows)
    cells = module.variances_of(*volumes, 1)[2].split("|")
    difference, _, error, *doubt = cells[3].split()
    assert float(error) == pytest.approx(100.0 * 2.0 * 300.0 * (4 / 8 / 64) ** 0.5 / 2e3, rel=0.4)
    assert float(difference) == pytest.approx(10.0, abs=3.0 * float(error))
    assert doubt == ["?"] or float(difference) + float(error) <= 10.0
    volumes[0]["1"] = [{"failed": "too hot"}]
    assert module.variances_of(*volumes, 1) == []


def test_rows_begin_at_one_place_and_are_joined(
    printed: Callable[..., str],
    module: ModuleType,
    tiny_potential: Path,
    water_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun = []
    plain = module.EnergyBench.simulation

    def seen(self, systems, *more):  # type: ignore[no-untyped-def]
        begun.append(systems)
        return plain(self, systems, *more)

    monkeypatch.setattr(module.EnergyBench, "simulation", seen)
    options = [
        *("energy_pairs", tiny_potential, tiny_potential, "--structure", water_file),
        *("--replicas", 3, "--steps", 4, "2x2", "2.4x2", "--ps", 2, "--first", 0),
        *("--every-fs", 100, "--equilibrate-ps", 0.008, "--device", "cpu"),
        *("--out", tmp_path / "table", "--lengths", 1.01),
    ]
    text = printed(*options)
    assert len(begun) == 4
    np.testing.assert_allclose(begun[0][0].cell, 1.01 * read_system(water_file).cell)
    np.testing.assert_allclose(begun[0][0].positions, 1.01 * read_system(water_file).positions)
    for rows in begun[2:]:
        assert begun[1][0].velocities is not None
        for first, own in zip(begun[1], rows, strict=True):
            assert np.array_equal(first.velocities, own.velocities)
    rows = json.loads((tmp_path / "table.json").read_text())["rows"]
    assert list(rows) == ["4", "2x2", "2.4x2"]
    assert all(np.shape(seeds["0"]["U"]) == (2, 3) for seeds in rows.values())
    assert all(np.shape(seeds["0"]["P"]) == (2, 3) for seeds in rows.values())
    assert "| 2.4 x 2 | 4.8 | 3 |" in text
    assert "pressure, bar" in text
    monkeypatch.setattr(module.EnergyBench, "made", None)
    assert text.endswith(printed(*options))
    file = tmp_path / "table.json"
    both = printed(*options, "--join", file, file, "--out", tmp_path / "both")
    assert "| 2.4 x 2 | 4.8 | 6 |" in both
