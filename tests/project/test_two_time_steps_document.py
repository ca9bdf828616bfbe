"""The table and the document of two time steps: made, followed, and right about what is known."""

import fcntl
import json
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import ase.io
import numpy as np
import pytest
import torch
import yaml
from followed_pages import follow
from repository import ROOT

from mdgraph import load
from mdgraph.analysis.rdf import radial_distribution
from mdgraph.distil.config import DistilConfig
from mdgraph.engine import resonance
from mdgraph.io.structures import read_system, read_systems
from mdgraph.state import State

pytestmark = pytest.mark.usefixtures("checked_once")

PAGE = ROOT / "docs" / "multiple_time_steps.md"
RECIPE = ROOT / "potentials" / "water-pbe0-small" / "distil.yaml"
WATER = ROOT / "potentials" / "water-pbe0" / "start.extxyz"


@pytest.fixture
def module() -> ModuleType:
    return import_module("multiple_time_steps")


def value(mean: float, error: float) -> dict[str, float]:
    return {"value": mean, "error": error}


def row(module: ModuleType, timestep: float, **means: Any) -> dict[str, Any]:
    return {
        "timestep": timestep,
        "inner": 1,
        "hydrogen_mass_amu": None,
        "speeds": {},
        "heavy": "O",
        "means": means,
    }


def test_rows_are_made_once(
    printed: Callable[..., str],
    module: ModuleType,
    tiny_potential: Path,
    water_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = [
        *("multiple_time_steps", tiny_potential, tiny_potential),
        *("--structure", water_file, "--repeat", "1x1x1", "--out", tmp_path / "table"),
        *("--plain", 0.5, "--two-steps", "0.25x2", "--ps", 0.01, "--every-fs", 0.5),
        *("--equilibrate-ps", 0.002, "--seconds", 0.01, "--device", "cpu", "--keep-last"),
    ]
    first = printed(*options, "--minutes", 0.0)
    assert "give the same command" in first
    text = printed(*options, "--minutes", 5)
    record = json.loads((tmp_path / "table.json").read_text())
    assert list(record["rows"]) == ["0.25x1@own", "0.5x1@own", "0.25x2@own"]
    for one in record["rows"].values():
        assert one["samples"] >= 10
        assert one["speeds"]["1x1x1"]["ns_per_day"] > 0.0
        assert set(one["means"]) >= {"U", "X-H", "T kin H", "T conf H", "T kin O", "T conf O"}
        assert 0.0 < one["means"]["T kin H"]["value"] < 1e4
    start = read_system(tmp_path / "table.start.extxyz").positions
    for key in record["rows"]:
        path = tmp_path / f"table.{key.replace('@', '-')}.last.extxyz"
        assert 0.0 < np.abs(read_system(path).positions - start).max() < 3.0
        assert len(ase.io.read(path)) == len(start)
    assert (tmp_path / "table.md").read_text() in text
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    assert len({line.count("|") for line in lines}) == 1
    assert len(lines) == 2 + 3
    monkeypatch.setattr(module.Bench, "sampled", None)
    monkeypatch.setattr(module.Bench, "speed", None)
    assert printed(*options, "--minutes", 5) == (tmp_path / "table.md").read_text() + "\n"
    with pytest.raises(Exception, match="give these options again"):
        printed(*options, "--ps", 0.02)


def test_replicas_share_their_starts_and_commands_their_rows(
    printed: Callable[..., str], tiny_potential: Path, water_file: Path, tmp_path: Path
) -> None:
    options = [
        *("multiple_time_steps", tiny_potential, tiny_potential, "--replicas", 3),
        *("--structure", water_file, "--repeat", "1x1x1", "--out", tmp_path / "table"),
        *("--plain", 0.5, "--two-steps", "--ps", 0.01, "--every-fs", 0.5, "--seconds", 0),
        *("--equilibrate-ps", 0.002, "--device", "cpu"),
    ]
    with (tmp_path / "table.0.5x1@own.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert "give the same command" in printed(*options)
    record = json.loads((tmp_path / "table.json").read_text())
    assert ["means" in one for one in record["rows"].values()] == [True, False]
    printed(*options)
    rows = json.loads((tmp_path / "table.json").read_text())["rows"]
    assert rows["0.25x1@own"] == record["rows"]["0.25x1@own"]
    assert len(read_systems(tmp_path / "table.start.extxyz")) == 3
    for one in rows.values():
        assert one["speeds"] == {}
        for name, found in one["means"].items():
            assert len(found["systems"]) == 3
            np.testing.assert_allclose(np.mean(found["systems"], 0), found["value"])
            assert name == "g" or found["error"] > 0.0


def test_cells_that_follow_a_pressure_have_volumes_and_their_temperature(
    printed: Callable[..., str], tiny_potential: Path, water_file: Path, tmp_path: Path
) -> None:
    options = [
        *("multiple_time_steps", tiny_potential, tiny_potential, "--replicas", 3),
        *("--structure", water_file, "--repeat", "1x1x1", "--out", tmp_path / "table"),
        *("--plain", 0.5, "--two-steps", "0.25x2", "--ps", 0.01, "--every-fs", 0.5),
        *("--equilibrate-ps", 0.002, "--seconds", 0, "--device", "cpu", "--pressure", 1.0),
        *("--no-reference", "--keep-last"),
    ]
    text = printed(*options)
    assert "stochastic cell rescaling, 1 bar" in text
    record = json.loads((tmp_path / "table.json").read_text())
    for key, one in record["rows"].items():
        volumes = one["means"]["V"]["systems"]
        last = read_systems(tmp_path / f"table.{key.replace('@', '-')}.last.extxyz")
        ends = [abs(np.linalg.det(system.cell)) for system in last]
        np.testing.assert_allclose(volumes, ends, rtol=0.01)
        assert len(set(ends)) == 3
        assert one["means"]["var V"]["value"] > 0.0
        assert np.isfinite(one["means"]["T cell"]["value"])
    with pytest.raises(SystemExit):
        printed(*options, "--bath", "langevin")


def test_volumes_of_an_ideal_gas_have_the_temperature_of_the_bath(module: ModuleType) -> None:
    """N + 1 is the exponent of the volume that the distribution of a gas of N atoms has."""
    atoms, kelvin, pressure = 40, 300.0, 2e-4
    kT = module.BOLTZMANN * kelvin
    rng = np.random.default_rng(5)
    volumes = rng.gamma(atoms + 1.0, kT / pressure, size=(20000, 4))
    samples = SimpleNamespace(
        volume=dict(enumerate(volumes)), virial=dict(enumerate(np.zeros_like(volumes)))
    )
    found = module.volumes_of(samples, 3.0 * atoms, kelvin, pressure)
    mean = (atoms + 1.0) * kT / pressure
    assert found["V"]["value"] == pytest.approx(mean, abs=4.0 * found["V"]["error"])
    variance = (atoms + 1.0) * (kT / pressure) ** 2
    assert found["var V"]["value"] == pytest.approx(variance, abs=4.0 * found["var V"]["error"])
    assert found["T cell"]["value"] == pytest.approx(kelvin, abs=4.0 * found["T cell"]["error"])
    assert found["T cell"]["error"] < 5.0


def of_systems(module: ModuleType, systems: Any) -> dict[str, Any]:
    found: dict[str, Any] = module.statistic(np.array(systems), np.array(systems))
    return found


def test_temperatures_stand_beside_that_of_the_bath(module: ModuleType) -> None:
    reference = row(module, 0.25, U=value(1.0, 0.001), **{"T conf H": value(301.0, 1.0)})
    own = row(module, 2.0, U=value(1.0, 0.001), **{"T conf H": value(301.8, 0.3)})
    assert set(module.verdicts(own, reference)) == {"U", "T conf H"}
    checks = module.verdicts(own, reference, 300.0)
    assert set(checks) == {"U", "T conf H", "T conf H of the bath"}
    exact = checks["T conf H of the bath"]
    assert (exact.difference, exact.twice_error) == pytest.approx((0.6, 0.2))
    assert checks["T conf H"].twice_error == pytest.approx(2.0 * np.hypot(1.0, 0.3) / 3.01)
    assert [checks[name].word for name in ("T conf H", "T conf H of the bath")] == ["ok", "ok"]
    record = {"about": {"temperature_K": 300.0}, "rows": {"2x1@own": own | {"ps": 1.0}}}
    lines = module.markdown(record).splitlines()
    assert "| 1.000 ± 0.002 | 301.8 ± 0.6 K (+0.60 ± 0.20) | 1 | - | - |" in lines[-1]
    hot = row(module, 2.0, **{"T conf H": value(303.8, 0.1)})
    assert module.state_of(hot, reference) == "?"
    assert module.state_of(hot, reference, 300.0) == "no"


def test_rows_of_several_seeds_are_joined_by_start(
    printed: Callable[..., str], module: ModuleType, tmp_path: Path
) -> None:
    starts, bins = np.array([-3.0, 0.0, 3.0]), np.ones(4)
    files = []
    for seed, picoseconds, shift in ((1, 10.0, 0.0), (2, 30.0, 4.0)):
        rows = {}
        for key, timestep, more in (("0.25x1@own", 0.25, 0.0), ("2x1@own", 2.0, 1.0)):
            systems = 300.0 + starts + shift + more
            made = row(module, timestep, **{"T kin H": of_systems(module, systems)})
            made["means"]["g"] = module.distribution_of([bins * systems[:, None]])
            extra = {"ps": picoseconds, "samples": 5, "seconds": 1.0, "effective_per_ps": 2.0}
            rows[key] = made | extra
        if seed == 1:
            rows["4x1@own"] = {**row(module, 4.0), "failed": "too hot"}
            del rows["4x1@own"]["means"]
        about = {"large": "a", "small": "b", "seed": seed, "temperature_K": 300.0}
        files.append(tmp_path / f"{seed}.json")
        files[-1].write_text(json.dumps({"about": about, "rows": rows}))
    records = [json.loads(path.read_text()) for path in files]
    found = module.joined(records, {"large": "big", "small": "b"})
    assert found["about"] == {"large": "big", "small": "b", "seed": "1; 2", "temperature_K": 300.0}
    own = found["rows"]["2x1@own"]
    assert own["ps"] == 40.0
    np.testing.assert_allclose(own["means"]["T kin H"]["systems"], 304.0 + starts)
    assert own["means"]["T kin H"]["error"] == pytest.approx(3.0 / 3**0.5)
    np.testing.assert_allclose(own["means"]["g"]["value"], 304.0)
    assert found["rows"]["4x1@own"]["failed"] == "too hot"
    text = printed("multiple_time_steps", "big", "b", "--join", *files, "--out", tmp_path / "all")
    assert text == (tmp_path / "all.md").read_text() + "\n"
    assert "| own | 2 | 2 | +0.33 ± 1.62 ? (+1.33 ± 1.15 ?) |" in text


def test_the_reference_may_have_a_friction_of_its_own(
    printed: Callable[..., str],
    module: ModuleType,
    tiny_potential: Path,
    water_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    frictions: list[tuple[float, float]] = []

    class Bath(module.LangevinMiddle):  # type: ignore[misc, name-defined]
        def __init__(self, timestep: float, temperature: float, friction: float) -> None:
            frictions.append((timestep, friction))
            super().__init__(timestep, temperature, friction)

    monkeypatch.setattr(module, "LangevinMiddle", Bath)
    options = [
        *("multiple_time_steps", tiny_potential, tiny_potential, "--structure", water_file),
        *("--repeat", "1x1x1", "--plain", 0.5, "--two-steps", "--ps", 0.01, "--every-fs", 0.5),
        *("--equilibrate-ps", 0.002, "--seconds", 0, "--device", "cpu", "--bath", "langevin"),
        *("--friction", 5, "--reference-friction", 30, "--out", tmp_path / "table"),
    ]
    text = printed(*options)
    assert "langevin, 5/ps, reference 30/ps" in text
    assert frictions == [(0.5, 5.0), (0.25, 30.0), (0.5, 5.0)]  # the first of all starts
    rows = json.loads((tmp_path / "table.json").read_text())["rows"]
    assert list(rows) == ["0.25x1@own", "0.5x1@own"]
    (tmp_path / "more.start.extxyz").write_bytes((tmp_path / "table.start.extxyz").read_bytes())
    printed(*options, "--out", tmp_path / "more", "--no-reference", "--seed", 1)
    assert list(json.loads((tmp_path / "more.json").read_text())["rows"]) == ["0.5x1@own"]
    assert printed(*options, "--out", tmp_path / "none", "--ps", 0).count("| - | - |") == 1


def test_samples_are_those_of_the_structure(module: ModuleType) -> None:
    system = read_system(WATER)
    samples = module.samples_of(system, 1, 0)
    assert len(samples.bonds[0]) == 128
    assert (system.numbers[samples.bonds[1]] == 8).all()
    assert np.unique(samples.bonds[1], return_counts=True)[1].tolist() == [2] * 64
    other = system.replace(positions=0.99 * system.positions, cell=0.99 * system.cell)
    state = State([system, other])
    samples.report(SimpleNamespace(step=1, state=state))
    vectors = system.positions[samples.bonds[0]] - system.positions[samples.bonds[1]]
    vectors -= np.rint(vectors / system.cell[0, 0]) * system.cell[0, 0]
    width = np.linalg.norm(vectors, axis=1).std()
    assert samples.width[1] == pytest.approx(np.array([1.0, 0.99]) * width)
    oxygens = np.flatnonzero(system.numbers == 8)
    for one, found in zip((system, other), samples.pairs[1], strict=True):
        expected = radial_distribution(
            [(one.positions, one.cell)], oxygens, oxygens, maximum=6.0, width=module.WIDTH
        )
        np.testing.assert_allclose(found, expected.value, rtol=1e-9)
        assert expected.value.max() > 1.5


def test_a_series_has_the_error_of_its_scatter(module: ModuleType) -> None:
    values = np.random.default_rng(1).normal(5.0, 2.0, size=(4096, 1))
    mean, error, variance = module.mean_of(dict(enumerate(values)))
    assert mean == pytest.approx(values.mean())
    assert variance == pytest.approx(values.var(ddof=1))
    assert error == pytest.approx(2.0 / 64.0, rel=0.2)


@pytest.mark.parametrize(
    ("kelvin", "error", "word"),
    [(300.5, 0.2, "ok"), (302.0, 0.8, "?"), (302.8, 0.5, "?"), (310.0, 1.0, "no")],
)
def test_temperatures_pass_within_a_percent(
    module: ModuleType, kelvin: float, error: float, word: str
) -> None:
    reference = row(module, 0.25, **{"T kin H": value(300.0, 0.1)})
    verdict = module.verdicts(row(module, 0.5, **{"T kin H": value(kelvin, error)}), reference)
    assert verdict["T kin H"].word == word
    assert verdict["T kin H"].difference == pytest.approx((kelvin - 300.0) / 3.0)


def test_noise_of_distributions_is_told_from_differences(module: ModuleType) -> None:
    rng = np.random.default_rng(2)
    flat = np.ones(60)

    def noisy(shift: float, noise: float) -> dict[str, Any]:
        return {
            "value": flat + shift + noise * rng.normal(size=60),
            "variance": np.full(60, noise**2),
        }

    assert module.distribution(noisy(0.0, 0.005), noisy(0.0, 0.005)).word == "ok"
    assert module.distribution(noisy(0.1, 0.005), noisy(0.0, 0.005)).word == "no"
    assert module.distribution(noisy(0.0, 0.05), noisy(0.0, 0.05)).word == "?"


def test_the_longest_plain_step_fails_no_check(module: ModuleType) -> None:
    reference = row(module, 0.25, U=value(1.0, 1e-4))
    rows = [
        reference,
        row(module, 0.5, U=value(1.001, 1e-4)),
        row(module, 1.0, U=value(1.008, 2e-3)),  # too short to tell
        row(module, 2.0, U=value(1.1, 1e-4)),
        {**row(module, 1.5), "failed": "too hot"},
    ]
    assert module.baselines(rows, reference)[None]["timestep"] == 1.0
    states = [module.state_of(one, reference) for one in rows[1:]]
    assert states == ["ok", "?", "no", "no"]


def test_wrong_steps_end_in_one_sentence(printed: Callable[..., str], module: ModuleType) -> None:
    for text, words in (("0.5", "told as 0.5x8"), ("0.5x5", "5 inner steps")):
        with pytest.raises(Exception, match=words):
            module.steps_named(text)
    assert module.steps_named("0.5x8").outer == 4.0
    assert torch.tensor(module.counts_named("2x2x4")).prod() == 16


@pytest.mark.usefixtures("without_report")
def test_the_recipe_of_the_small_potential_runs(
    tmp_path: Path, mdgraph_command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With fewer frames and steps; it says where its files lie from the root of a clone."""
    recipe = yaml.safe_load(RECIPE.read_text(encoding="utf-8"))
    assert DistilConfig.model_validate(recipe).steps == 40000
    few = {"temperatures": [300], "trajectories": 2, "frames": 4, "interval": 2.0, "relaxed": 0.0}
    recipe["sampling"] |= few
    changes = {"rounds": 1, "steps": 2, "validations": 1, "earlier_steps": None, "device": "cpu"}
    recipe |= changes | {"out": str(tmp_path / "small")}
    path = tmp_path / "distil.yaml"
    path.write_text(yaml.safe_dump(recipe), encoding="utf-8")
    monkeypatch.chdir(ROOT)
    done = mdgraph_command("distil", path)
    assert done.status == 0, done.err
    assert load(tmp_path / "small").cutoffs[0] == 4.5


@pytest.mark.usefixtures("without_report")
def test_the_document_is_followed(
    tmp_path: Path, mdgraph_command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(resonance, "samples_of", lambda timestep: (4, 1))
    shorter = {
        "[300, 350, 450], trajectories: 4, frames: 600, interval: 50": "[300], trajectories: 2, "
        "frames: 4, interval: 2",
        "earlier_steps: 2000\nsteps: 14000": "rounds: 1\nsteps: 2\nvalidations: 1\ndevice: cpu",
        "temperatures --time-ps 10": "temperatures:12 --steps 12 --no-check --log-interval 12",
        "run(80)": "run(8)",
    }
    follow(PAGE, tmp_path, mdgraph_command, shorter)
    record = json.loads((tmp_path / "two-steps" / "run.json").read_text())
    assert record["configuration"]["inner_steps"] == 4
    assert "configurational_K" in (tmp_path / "two-steps" / "temperatures.csv").read_text()
    heavy = json.loads((tmp_path / "heavy" / "run.json").read_text())["configuration"]
    assert (heavy["timestep_fs"], heavy["inner_steps"], heavy["hydrogen_mass_amu"]) == (1.4, 3, 3.0)


@pytest.mark.parametrize(
    ("script", "count"),
    [
        ("multiple_time_steps", 8),
        ("slow_observables", 3),
        ("energy_pairs", 4),
        ("bond_stiffness", 2),
        ("hot_bonds", 1),
    ],
)
def test_the_commands_of_the_scripts_are_understood(
    monkeypatch: pytest.MonkeyPatch, script: str, count: int
) -> None:
    page = PAGE.read_text(encoding="utf-8") + RECIPE.read_text(encoding="utf-8")
    lines = [line for line in page.splitlines() if f"python benchmarks/{script}.py" in line]
    assert len(lines) == count
    for line in lines:
        words = line.split("benchmarks/")[1].split()
        monkeypatch.setattr(sys, "argv", words)
        options = import_module(script).arguments()
        assert options.large in ("water-pbe0", "water-pbe0-large", "aceff-1.1.ckpt")
        small = options.small if isinstance(options.small, str) else options.small[0]
        assert small in (
            "water-pbe0-small",
            "water-pbe0-inner",
            "peptide-inner",
            "stiffer.safetensors",
        )


def test_the_energy_that_outer_steps_conserve_is_that_of_the_document() -> None:
    """Two springs, of which one acts by impulses: x' and v' are linear in x and v."""
    mass, small, rest = 1.3, 1.0, 0.3
    rate = (small / mass) ** 0.5
    for outer in (0.2, 0.1):
        kick = np.array([[1.0, 0.0], [-0.5 * outer * rest / mass, 1.0]])
        cosine, sine = np.cos(rate * outer), np.sin(rate * outer)
        step = kick @ np.array([[cosine, sine / rate], [-rate * sine, cosine]]) @ kick
        exact = -step[1, 0] / step[0, 1]  # of x^2 over that of v^2
        potential = 0.5 * (small + rest) - outer**2 * rest / mass * (small / 12.0 + rest / 24.0)
        kinetic = 0.5 * mass + outer**2 * rest / 12.0
        change = exact - (small + rest) / mass
        assert potential / kinetic - (small + rest) / mass == pytest.approx(change, rel=0.01)
