"""The script about diffusion and dihedrals: its numbers are those of cases that are known."""

import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from mdgraph.errors import SimulationError
from mdgraph.io.structures import read_system

pytestmark = pytest.mark.usefixtures("checked_once")


@pytest.fixture
def module() -> ModuleType:
    return import_module("slow_observables")


def test_diffusion_is_that_of_brownian_motion(module: ModuleType) -> None:
    rng = np.random.default_rng(1)
    spacing, coefficients = 0.05, np.array([0.2, 0.4])
    widths = np.sqrt(2.0 * coefficients * spacing)[:, None, None]
    places = np.cumsum(widths * rng.normal(size=(400, 2, 300, 3)), 0)
    squares = module.displacements(places, 40)
    assert squares.shape == (40, 2)
    found = module.diffusion_of(squares, spacing, (0.5, 2.0))
    np.testing.assert_allclose(found, coefficients, rtol=0.05)
    with pytest.raises(Exception, match="no two lags"):
        module.diffusion_of(squares, spacing, (3.0, 4.0))


def pooled(module: ModuleType, text: str, **values: Any) -> Any:
    return module.Pooled(module.steps_of(text), [{"ps": 10.0, "atoms": 192, **values}])


def test_diffusion_is_compared_at_one_temperature(module: ModuleType) -> None:
    rng = np.random.default_rng(2)
    rows = []
    for text, kelvin, factor in (("0.5", 300.0, 1.0), ("1.5x4", 292.0, 1.05)):
        own = kelvin + 10.0 * rng.normal(size=32)
        coefficients = factor * 0.1 * (1.0 + 0.025 * (own - 300.0)) + 0.001 * rng.normal(size=32)
        values = {"D": coefficients, "kelvin": own, "rise": np.zeros(32), "gain": np.zeros(32)}
        rows.append(pooled(module, text, **values))
    lines = module.diffusion_table(rows, 300.0)
    last = lines[3].split("|")[-2].split()
    assert float(last[0]) == pytest.approx(5.0, abs=1.0)  # D itself differs by -15 %
    assert 0.2 < float(last[2]) < 2.0
    assert float(lines[-1].split()[3]) == pytest.approx(2.5, abs=0.2)


def test_pairs_have_the_errors_of_their_differences(module: ModuleType) -> None:
    rng = np.random.default_rng(6)
    kelvin, common = 300.0 + rng.normal(size=64), 0.05 * rng.normal(size=64)
    rows = []
    for text, factor in (("1", 1.0), ("1.25x4", 1.03)):
        own = factor * 0.1 + common + 0.004 * rng.normal(size=64)
        rows.append(
            pooled(module, text, D=own, kelvin=kelvin, rise=np.zeros(64), gain=np.zeros(64))
        )
    errors = []
    for paired in (False, True):
        cell = module.diffusion_table(rows, 300.0, paired)[3].split("|")[-2].split()
        assert float(cell[0]) == pytest.approx(3.0, abs=2.0)
        errors.append(float(cell[2]))
    assert errors[0] > 8.0 * errors[1]
    assert errors[1] == pytest.approx(200.0 * 0.004 * 2.0**0.5 / 8.0 / 0.1, rel=0.3)


def test_what_temperatures_of_pairs_differ_by_is_no_difference(module: ModuleType) -> None:
    """Replicas of higher energy move faster; of a pair, the colder one does."""
    rng = np.random.default_rng(8)
    mean, common = 300.0 + 9.0 * rng.normal(size=48), 0.02 * rng.normal(size=48)
    apart = 6.0 * rng.normal(size=48) - 2.0
    rows = []
    for text, factor, side in (("1", 1.0, -0.5), ("1.4x3", 1.02, 0.5)):
        noise = 0.002 * rng.normal(size=48)
        own = factor * 0.1 + 0.0025 * (mean - 300.0) + common - 0.005 * side * apart + noise
        gain = np.full(48, 0.1 * (side + 0.5))  # eV, of 1.02 K in the mean
        values = {"D": own, "kelvin": mean + side * apart + 0.5 * gain / (573 * 8.617e-5)}
        rows.append(pooled(module, text, **values, rise=np.zeros(48), gain=gain))
    cell = module.diffusion_table(rows, 300.0, True)[3].split("|")[-2].split()
    unit = 100.0 / rows[0].values("D").mean()
    error = 2.0 * unit * 0.002 * 2.0**0.5 / 48**0.5
    assert float(cell[2]) == pytest.approx(error, rel=0.3)
    assert float(cell[0]) == pytest.approx(0.002 * unit, abs=1.5 * error)
    plain = unit * (rows[1].values("D") - rows[0].values("D")).mean()
    assert plain > 5.0 * error


@pytest.mark.parametrize("one", [True, False])
def test_rows_begin_where_one_bath_ends(
    module: ModuleType,
    tiny_potential: Path,
    water_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    one: bool,
) -> None:
    words = ["slow_observables", tiny_potential, tiny_potential, "--structure", water_file]
    words += ["--replicas", 3, "--steps", 0.5, "0.25x2", "--ps", 0.01, "--every-fs", 1]
    words += ["--equilibrate-ps", 0.002, "--lags", 0.001, 0.004, "--device", "cpu"]
    words += ["--out", tmp_path / "table", *(["--one-bath"] if one else [])]
    monkeypatch.setattr("sys.argv", [str(word) for word in words])
    begun = []
    plain = module.Bench.simulation

    def seen(self: Any, systems: Any, *more: Any) -> Any:
        begun.append(systems)
        return plain(self, systems, *more)

    monkeypatch.setattr(module.Bench, "simulation", seen)
    module.Bench(module.arguments()).run()
    assert len(begun) == (3 if one else 4)
    first, second = begun[1], begun[-1]
    same = [
        np.array_equal(mine.velocities, other.velocities)
        for mine, other in zip(first, second, strict=True)
    ]
    assert same == [one] * 3


def test_gains_are_told_a_degree_of_freedom(module: ModuleType) -> None:
    """Of seeds of two lengths, whose replicas gain half and one and a half kT/ns a degree."""
    degrees, kT = 3 * 192 - 3, 0.025852
    runs = [
        {"ps": ps, "atoms": 192, "D": [0.1, 0.11, 0.12], "kelvin": [299.0, 300.0, 301.0]}
        | {"rise": [0.0] * 3, "gain": [rate * kT * degrees * 1e-3 * ps] * 3}
        for ps, rate in ((9.0, 0.5), (18.0, 1.5))
    ]
    row = module.Pooled(module.steps_of("1.25x4"), runs)
    lines = module.diffusion_table([row, row], 300.0)
    titles, cells = ([cell.strip() for cell in lines[place].split("|")] for place in (0, 3))
    gain = cells[titles.index("kT/ns a degree")].split()
    assert float(gain[0]) == pytest.approx(1.0, abs=2e-3)
    assert float(gain[2]) == pytest.approx(2.0 * 0.5 * (6 / 5) ** 0.5 / 6**0.5, abs=2e-3)


def test_one_that_ran_away_fails_a_row_and_leaves_its_partner_out(module: ModuleType) -> None:
    rng = np.random.default_rng(7)
    rows = []
    for text, lost in (("1", ()), ("1.25x4", (3,))):
        own = (0.1 + 0.001 * rng.normal(size=32)).tolist()
        own = [None if place in lost else value for place, value in enumerate(own)]
        values = {"D": own, "kelvin": 300.0 + rng.normal(size=32)}
        rows.append(pooled(module, text, **values, rise=np.zeros(32), gain=np.zeros(32)))
    rows[0].runs[0]["D"][3] = 1e3  # the partner
    lines = module.diffusion_table(rows, 300.0, True)
    assert [line.split("|")[4].strip() for line in lines[2:4]] == ["0", "1"]
    cell = lines[3].split("|")[-2]
    assert abs(float(cell.split()[0])) < 2.0
    assert cell.endswith(" **runs away** ")


def test_pairs_lack_no_partner(module: ModuleType) -> None:
    rows = {"1": {"0": 1, "1": 2, "2": 6}, "1.25x4": {"1": 3, "0": 4}, "2": {"1": 5, "0": 7}}
    kept = module.only_pairs({"about": "a", "rows": rows})
    pairs = {"1": {"0": 1, "1": 2}, "1.25x4": {"0": 4, "1": 3}, "2": {"0": 7, "1": 5}}
    assert kept == {"about": "a", "rows": pairs}
    assert list(kept["rows"]["1.25x4"]) == list(kept["rows"]["2"]) == ["0", "1"]


def test_profiles_differ_by_what_their_shares_do(module: ModuleType) -> None:
    rng = np.random.default_rng(3)
    flat = np.full(360, 1.0 / 360.0)
    other = flat.copy()
    other[:15] *= 1.3
    counts = [rng.multinomial(20000, one / one.sum(), size=64) for one in (flat, other)]
    rows = [
        pooled(module, text, counts=own, left_out=0.1, kelvin=np.zeros(64))
        for text, own in zip(("1", "1.5x4"), counts, strict=True)
    ]
    share, error = module.profile_of(rows[0], 15)
    np.testing.assert_allclose(share, 1.0 / 24.0, rtol=0.02)
    expected = np.sqrt(1.0 / 24.0 * 23.0 / 24.0 / (64 * 20000))
    np.testing.assert_allclose(error, expected, rtol=0.4)
    lines = module.profile_table(rows, 15, 0.02)
    cells = [cell.strip() for cell in lines[3].split("|")[1:-1]]
    assert cells[:4] == ["1.5 x 4", "6", "640", "0.1"]
    assert cells[5] == "-180 to -165"
    assert float(cells[6].split()[0]) == pytest.approx(-np.log(1.3), abs=0.03)
    assert cells[6].endswith("**no**")
    assert lines[-1] == "24 bins of 15° hold 100.0 %."


def test_the_energy_of_a_spring_comes_off_the_profile(module: ModuleType) -> None:
    rng = np.random.default_rng(4)
    centre, stiffness = 100.0, 1.5
    apart = np.radians((np.arange(-179.5, 180.0) - centre + 180.0) % 360.0 - 180.0)
    held = np.exp(-0.5 * stiffness * apart**2)
    counts = rng.multinomial(200000, held / held.sum(), size=32)
    row = pooled(module, "1", counts=counts, kelvin=np.zeros(32))
    share, error = module.profile_of(row, 15, (centre, stiffness))
    assert (np.abs(share - 1.0 / 24.0) < 5.0 * error).all()
    near, far = int((centre + 180.0) // 15), int((centre + 180.0) // 15 - 12)
    assert error[far] > 5.0 * error[near]
    assert module.profile_of(row, 15)[0][far] < 1e-3


def test_angles_are_those_of_four_points(module: ModuleType) -> None:
    turn = np.radians([60.0, -150.0])
    last = np.stack([np.cos(turn), np.sin(turn), np.ones(2)], -1)
    places = np.zeros((1, 2, 4, 3))
    places[:, :, 0, 0] = 1.0
    places[:, :, 2, 2] = 1.0
    places[:, :, 3] = last
    np.testing.assert_allclose(np.abs(module.angles_of(places)), [[60.0, 150.0]])


@pytest.mark.parametrize("kind", ["diffusion", "dihedral"])
def test_rows_are_made_once_and_joined(
    printed: Callable[..., str],
    module: ModuleType,
    tiny_potential: Path,
    water_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    options = [
        *("slow_observables", tiny_potential, tiny_potential, "--structure", water_file),
        *("--replicas", 3, "--steps", 0.5, "0.25x2", "--ps", 0.02, "--every-fs", 0.5),
        *("--equilibrate-ps", 0.002, "--lags", 0.001, 0.004, "--device", "cpu"),
        *("--out", tmp_path / "table"),
    ]
    if kind == "dihedral":
        options += ["--dihedral", 1, 0, 3, 4, "--without", 2, 0, 3, 5, 170, 180, "--least", 0]
        options += ["--spring", 90, 2]
    assert "Two rows are needed" in printed(*options, "--minutes", 0)
    text = printed(*options)
    rows = json.loads((tmp_path / "table.json").read_text())["rows"]
    assert list(rows) == ["0.5", "0.25x2"]
    for seeds in rows.values():
        assert list(seeds) == ["0"]
        assert len(seeds["0"]["kelvin"]) == 3
    assert "| 0.25 x 2 | 0.5 |" in text
    monkeypatch.setattr(module.Bench, "made", None)
    assert text.endswith(printed(*options))
    file, other = tmp_path / "table.json", tmp_path / "other.json"
    record = json.loads(file.read_text())
    record["rows"] = {"0.75": record["rows"]["0.5"]}
    other.write_text(json.dumps(record))
    assert "| 0.75 | 0.75 |" in printed(*options, "--join", file, other, "--out", tmp_path / "more")
    both = printed(*options, "--join", file, file, "--out", tmp_path / "both")
    assert both == (tmp_path / "both.md").read_text() + "\n"
    with pytest.raises(Exception, match="give another --out"):
        printed(*options, "--ps", 0.03)


def test_replicas_that_run_away_are_left_out(
    printed: Callable[..., str],
    module: ModuleType,
    tiny_potential: Path,
    water_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By a change of energy of one and by an error of another; the others go on as they were."""
    options = [
        *("slow_observables", tiny_potential, "unused", "--structure", water_file),
        *("--against", tiny_potential, "--replicas", 5, "--steps", 0.5, "--ps", 0.02),
        *("--every-fs", 0.5, "--equilibrate-ps", 0.002, "--lags", 0.001, 0.004),
        *("--device", "cpu", "--out"),
    ]
    monkeypatch.setattr(module, "DEADLINE_STEPS", 8)
    whole = printed(*options, tmp_path / "whole")
    assert "| 0.5 | 0.5 | 0 | 0 |" in whole
    assert "| 0.5, other | 0.5 | 0 | 0 |" in whole
    total, run, calls = module.total_energies, module.Simulation.run, []

    def changed(simulation: Any) -> Any:
        calls.append(len(simulation.state.cell))
        return total(simulation) + 2.0 * (np.arange(calls[-1]) == 1) * (len(calls) == 3)

    def failing(self: Any, steps: int) -> Any:
        if len(calls) == 5 and len(self.state.cell) == 4:
            atoms = len(self.state.numbers) // 4
            run(self, 2)  # frames after the last good state are left out
            raise SimulationError("It ran away.", 2, [3 * atoms])
        return run(self, steps)

    monkeypatch.setattr(module, "total_energies", changed)
    monkeypatch.setattr(module.Simulation, "run", failing)
    text = printed(*options, tmp_path / "some")
    assert "| 0.5 | 0.5 | 0 | 2 |" in text
    assert "| 0.5, other | 0.5 | 0 | 0 |" in text
    some, every = (
        json.loads((tmp_path / f"{name}.json").read_text())["rows"]["0.5"]["0"]
        for name in ("some", "whole")
    )
    assert some["ps"] == every["ps"]
    for name in ("D", "kelvin"):
        assert [some[name][index] for index in (1, 4)] == [None, None]
        kept = [0, 2, 3]
        wanted = [every[name][index] for index in kept]
        np.testing.assert_allclose([some[name][index] for index in kept], wanted, rtol=1e-3)


def test_hydrogens_are_moved_along_their_hydrogen_bonds(
    printed: Callable[..., str], tiny_potential: Path, water_file: Path
) -> None:
    module = import_module("hydrogen_bonds")
    system = read_system(water_file)
    length, hydrogen, copies = module.moved(system, 1)[0]
    near = np.linalg.norm(system.positions[hydrogen] - system.positions, axis=1)
    assert (near > 0.5).sum() == 5
    places = np.array([copy.positions for copy in copies])
    still = np.delete(places, hydrogen, 1)
    assert (still == still[0]).all()
    oxygen = np.argmin(np.where(system.numbers == 8, near, np.inf))
    bonds = np.linalg.norm(places[:, hydrogen] - system.positions[oxygen], axis=1)
    np.testing.assert_allclose(bonds, module.LENGTHS)
    assert 1.0 < length < 4.0
    text = printed("hydrogen_bonds", tiny_potential, "--structures", water_file, "--device", "cpu")
    lines = text.splitlines()
    assert lines[0].startswith("2 hydrogen bonds of ")
    assert len(lines) == 4
    assert len({line.count("|") for line in lines[1:]}) == 1
    assert " of 2, at most " in lines[3]
