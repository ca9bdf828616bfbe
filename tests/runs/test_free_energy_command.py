"""`mdgraph free-energy`: runs and files that give profiles, what it writes, and refusals."""

import csv
import json
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from mdgraph.analysis.metadynamics import HillSum
from mdgraph.io.plumed import PlumedWriter, read_plumed
from mdgraph.runs.analyse.biased_runs import read_biased_runs
from mdgraph.units import KILOJOULE_PER_MOLE

Command = Callable[..., Any]
Array = NDArray[np.float64]

KT = 8.31446261815324e-3 * 300.0
TURN = {"min_phi": "-pi", "max_phi": "pi"}
VARIABLES = {
    "phi": {"kind": "dihedral", "groups": [0, 1, 2, 3]},
    "d": {"kind": "distance", "groups": [0, 3]},
}


METADYNAMICS = {"kind": "metadynamics", "name": "metad", "variables": ["phi"]}
SPRING = {
    "kind": "harmonic",
    "name": "spring",
    "variables": ["phi"],
    "centre": [0.0],
    "stiffness_eV": [0.05],
}


def torsion(phi: Array) -> Array:
    """kJ/mol: three wells, the one at 60 degrees the deepest."""
    return 6.0 * (1.0 + np.cos(3.0 * phi)) - 2.0 * np.cos(phi - math.pi / 3.0)


def colvar(path: Path, values: Array, *more: Array, fields: Sequence[str] = ("phi", "d")) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    constants = TURN if "phi" in fields else {}
    with PlumedWriter.create(path, ["time", *fields], constants, digits=15) as writer:
        writer.append(np.column_stack([0.1 * np.arange(len(values)), values, *more]))
    return path


def record(folder: Path, **options: Any) -> Path:
    """A run.json as far as this command reads it."""
    folder.mkdir(parents=True, exist_ok=True)
    configuration = {"ensemble": "nvt-langevin", "temperature_K": 300.0, "variables": VARIABLES}
    about = {
        "format": 1,
        "configuration": configuration | options,
        "structure": {"atoms": 4, "formula": "C4", "charge_e": 0.0},
        "potential": {"sha256": "0"},
        "chosen": {"captured_as_cuda_graph": False},
        "environment": {"gpu": None},
    }
    (folder / "run.json").write_text(json.dumps(about))
    return folder


def drawn_torsion(bias: Array, count: int, seed: int) -> tuple[Array, Array]:
    """Samples of phi with a bias on 3600 points, and of a distance that follows it, nm."""
    generator = np.random.default_rng(seed)
    places = -math.pi + 2.0 * math.pi * (np.arange(3600) + 0.5) / 3600
    chances = np.exp(-(torsion(places) + bias) / KT)
    phi = generator.choice(places, count, p=chances / chances.sum())
    distance = 0.3 - 0.05 * np.cos(phi) + 0.01 * generator.normal(size=count)
    return phi, distance


def umbrellas(folder: Path, count: int = 18, rows: int = 500, wrong: float = 1.0) -> Path:
    """A run whose replicas are windows, k 0.6 eV/rad^2."""
    centres = [[-math.pi + 2.0 * math.pi * place / count] for place in range(count)]
    spring = {
        "kind": "harmonic",
        "name": "umbrella",
        "variables": ["phi"],
        "centre": centres,
        "stiffness_eV": [0.6],
    }
    record(folder, biases=[spring], replicas=count)
    places = -math.pi + 2.0 * math.pi * (np.arange(3600) + 0.5) / 3600

    def energy(phi: Array, centre: float) -> Array:
        turned = (phi - centre + math.pi) % (2.0 * math.pi) - math.pi
        return 0.5 * 0.6 / KILOJOULE_PER_MOLE * turned**2

    for number, (centre,) in enumerate(centres):
        phi, distance = drawn_torsion(energy(places, centre), rows, number)
        path = folder / f"replica-{number}" / "COLVAR"
        columns = distance, wrong * energy(phi, centre)
        colvar(path, phi, *columns, fields=("phi", "d", "umbrella.bias"))
    return folder


def rows_of(out: Path) -> dict[str, Array]:
    with (out / "free_energy.csv").open() as file:
        rows = list(csv.DictReader(file))
    return {name: np.array([float(row[name] or "nan") for row in rows]) for name in rows[0]}


@pytest.fixture
def profile(mdgraph_command: Command, tmp_path: Path) -> Command:
    """Makes a profile, and returns its columns, its numbers and what was printed."""
    folders = iter(tmp_path / f"out-{number}" for number in range(20))

    def run(*words: object) -> tuple[dict[str, Array], dict[str, Any], Any]:
        out = next(folders)
        done = mdgraph_command("free-energy", *words, "--out", out)
        assert done.status == 0, done.err
        assert (out / "free_energy.png").read_bytes()[:4] == b"\x89PNG"
        return rows_of(out), json.loads((out / "free_energy.json").read_text()), done

    return run


@pytest.mark.usefixtures("drawn_pictures")
def test_umbrella_replicas_give_the_torsion_and_its_barriers(
    profile: Command, tmp_path: Path
) -> None:
    run = umbrellas(tmp_path / "run")
    columns, numbers, done = profile(run, "--resamples", 30)
    assert list(columns) == [
        *("phi_rad", "free_energy_kJ_per_mol", "error_kJ_per_mol"),
        *("first_half_kJ_per_mol", "second_half_kJ_per_mol"),
    ]
    truth = torsion(columns["phi_rad"])
    truth -= truth.min()
    values, errors = columns["free_energy_kJ_per_mol"], columns["error_kJ_per_mol"]
    apart = values - truth
    assert np.std(apart) < 0.15 * KT
    assert 0.5 < np.std(apart / errors) < 1.6
    assert numbers["method"] == "mbar"
    assert len(numbers["windows"]) == len(numbers["runs"]) == 18
    assert min(link["overlap"] for link in numbers["links"]) > 0.1
    assert 1.0 <= numbers["runs"][0]["statistical_inefficiency"] < 1.5
    assert len(numbers["wells"]) == len(numbers["barriers"]) == 3
    assert numbers["wells"][0]["place"]["phi"] == pytest.approx(math.pi / 3.0, abs=0.2)
    assert "Barrier at phi" in done.out
    assert "warning" not in done.err
    assert "JAX" not in done.err
    other, numbers, _ = profile(run, "--along", "d", "--resamples", 0, "--unit", "kcal/mol")
    assert list(other)[:2] == ["d_nm", "free_energy_kcal_per_mol"]
    assert np.isnan(other["error_kcal_per_mol"]).all()
    assert numbers["variables"] == [{"name": "d", "unit": "nm", "period": None}]
    assert numbers["wells"][0]["place"]["d"] == pytest.approx(0.275, abs=0.02)
    same = 4.184 * numbers["halves_rms"] / KT
    assert 0.0 < same < 0.5


def test_one_window_is_a_profile_and_one_sample_is_none(
    profile: Command, mdgraph_command: Command, tmp_path: Path
) -> None:
    run = umbrellas(tmp_path / "run", count=1, rows=2000)
    columns, numbers, _ = profile(run, "--resamples", 5, "--along", "phi")
    assert (numbers["method"], numbers["links"]) == ("mbar", [])
    values = columns["free_energy_kJ_per_mol"]
    truth = torsion(columns["phi_rad"])
    near = np.abs(np.abs(columns["phi_rad"]) - math.pi) < 0.3
    apart = (values - truth)[near]
    assert np.isfinite(apart).any()
    assert np.nanstd(apart) < 0.3 * KT
    path = run / "replica-0" / "COLVAR"
    path.unlink()
    phi = math.pi - np.linspace(0.0, 0.01, 21)
    bias = 0.3 / KILOJOULE_PER_MOLE * (phi - math.pi) ** 2
    colvar(path, phi, 0.0 * phi, bias, fields=("phi", "d", "umbrella.bias"))
    done = mdgraph_command("free-energy", run, "--out", tmp_path / "none")
    assert (done.status, "No window has two independent samples" in done.err) == (1, True), done


def test_windows_that_were_not_at_equilibrium_are_told(profile: Command, tmp_path: Path) -> None:
    run = umbrellas(tmp_path / "run", rows=200)
    for number in range(18):
        path = run / f"replica-{number}" / "COLVAR"
        table = read_plumed(path)
        phi, distance = table.column("phi").copy(), table.column("d")
        spring = 0.6 / KILOJOULE_PER_MOLE
        centre = -math.pi + 2.0 * math.pi * number / 18
        phi[:100] += math.copysign(0.2, centre)  # the spring still pulls it away from 180 degrees
        turned = (phi - centre + math.pi) % (2.0 * math.pi) - math.pi
        columns = distance, 0.5 * spring * turned**2
        path.unlink()
        colvar(path, phi, *columns, fields=("phi", "d", "umbrella.bias"))
        kelvin = 300.0 + 100.0 * (number == 4) + 5.0 * (-1.0) ** np.arange(201)
        rows = [f"{10 * row},{0.1 * row},{value}" for row, value in enumerate(kelvin)]
        log = "\n".join(["step,time_ps,temperature_K", *rows])
        (path.parent / "log.csv").write_text(log + "\n")
    _, numbers, done = profile(run, "--resamples", 30, "--discard-ps", 0)
    (warm,) = (one for one in numbers["warnings"] if "is not the 300 K of the bath in " in one)
    (halves,) = (one for one in numbers["warnings"] if "two halves" in one)
    assert warm.count("COLVAR") == 1
    assert "replica-4/COLVAR (400 K); a spring that was pulled" in warm
    assert "halves of the samples differ by up to " in halves
    assert halves.endswith("run longer, or leave out more of the start by --discard-ps.")
    assert warm in done.err


def test_a_start_that_is_not_as_the_rest_is_told(profile: Command, tmp_path: Path) -> None:
    values = np.sin(2.0 * math.pi * np.arange(200) / 8.0)  # a vibration, which hides the drift
    values += 0.1 * np.random.default_rng(0).normal(size=200)
    values[:40] += 0.9
    run = record(tmp_path / "run")
    colvar(run / "COLVAR", values, fields=("d",))
    _, numbers, _ = profile(run, "--resamples", 0)
    assert numbers["runs"][0]["equilibrated_from_ps"] == 0.0
    (sentence,) = numbers["warnings"]
    assert "COLVAR differs from the rest by more than 3 errors" in sentence
    values[:40] -= 0.9
    (run / "COLVAR").unlink()
    colvar(run / "COLVAR", values, fields=("d",))
    assert profile(run, "--resamples", 0)[1]["warnings"] == []


def test_wells_beyond_empty_bins_are_not_joined_by_samples(
    profile: Command, tmp_path: Path
) -> None:
    generator = np.random.default_rng(1)
    run = record(tmp_path / "run")
    values = np.concatenate([generator.normal(1.0, 0.05, 4000), generator.normal(2.0, 0.05, 1000)])
    colvar(run / "COLVAR", generator.permutation(values), fields=("d",))
    _, numbers, done = profile(run, "--resamples", 30)
    assert len(numbers["wells"]) == 2
    assert numbers["barriers"] == []
    assert done.out.count("Not joined by samples to well 1") == 1
    assert "so that barriers are not known: well 2" in done.out


def test_windows_of_another_program_by_a_table(profile: Command, tmp_path: Path) -> None:
    run = umbrellas(tmp_path / "run")
    (run / "run.json").unlink()
    stiffness = 0.6 / KILOJOULE_PER_MOLE
    lines = ["#! FIELDS file phi kappa_phi"] + [
        f"run/replica-{number}/COLVAR {-math.pi + 2.0 * math.pi * number / 18} {stiffness}"
        for number in range(0, 18, 3)
    ]
    table = tmp_path / "windows.txt"
    table.write_text("\n".join(lines) + "\n")
    _, numbers, done = profile("--windows", table, "--temperature-K", 300, "--resamples", 5)
    assert len(numbers["windows"]) == 6
    thin = [link for link in numbers["links"] if link["overlap"] < 0.03]
    assert len(numbers["warnings"]) == len(thin) > 0
    assert "less than 0.03; put another window at phi = " in done.err


def metadynamics(folder: Path, walkers: int = 2, seed: int = 0, *, spring: bool = False) -> Path:
    """Hills that flatten the torsion but for a factor 10, and walkers that feel all of them.

    With a spring they flatten the torsion with it.
    """
    places = -math.pi + 2.0 * math.pi * (np.arange(3600) + 0.5) / 3600
    centres = -math.pi + 2.0 * math.pi * np.arange(36) / 36
    change = (places[::25, None] - centres + math.pi) % (2.0 * math.pi) - math.pi
    kernels = np.exp(-0.5 * (change / 0.25) ** 2)
    held = 0.5 * 0.05 / KILOJOULE_PER_MOLE * places**2 if spring else np.zeros(3600)
    total = (torsion(places) + held)[::25]
    needed = total.max() - total
    heights = np.linalg.lstsq(kernels, needed, rcond=None)[0]
    folder.mkdir(parents=True, exist_ok=True)
    fields = ["time", "phi", "sigma_phi", "height", "biasf"]
    with PlumedWriter.create(folder / "HILLS", fields, TURN, digits=17) as writer:
        ones = np.ones(36)
        writer.append(
            np.column_stack([-1.0 + 0.01 * np.arange(36), centres, 0.25 * ones, heights, 10 * ones])
        )
    bias = 0.9 * np.interp(places, places[::25], kernels @ heights, period=2.0 * math.pi)
    for walker in range(walkers):
        phi, distance = drawn_torsion(bias + held, 8000, seed + walker)
        name = "COLVAR" if walkers == 1 else f"COLVAR.{walker}"
        columns = [distance, np.interp(phi, places, bias)]
        fields = ["phi", "d", "metad.bias"]
        if spring:
            columns.append(np.interp(phi, places, held))
            fields.append("spring.bias")
        colvar(folder / name, phi, *columns, fields=fields)
    return folder


def test_hills_and_reweighted_samples_of_walkers(
    profile: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = metadynamics(tmp_path / "walkers")
    computed, offsets = [], HillSum.offsets

    def recorded(*arguments: Any) -> Any:
        computed.append(arguments)
        return offsets(*arguments)

    monkeypatch.setattr(HillSum, "offsets", recorded)
    columns, numbers, done = profile(folder, "--temperature-K", 300)
    assert len(computed) == 1  # c(t) of hills that both walkers feel
    truth = torsion(columns["phi_rad"])
    truth -= truth.min()
    values, other = columns["free_energy_kJ_per_mol"], columns["reweighted_kJ_per_mol"]
    assert np.sqrt(np.mean((values - truth) ** 2)) < 0.1 * KT
    assert np.std(other - truth) < 0.15 * KT
    assert numbers["reweighted_rms"] < 0.1
    assert (numbers["method"], numbers["hills"][0]["count"]) == ("hills", 36)
    assert numbers["hills"][0]["bias_factor"] == 10.0
    assert "Round trips of phi" in done.out
    words = folder / "COLVAR.0", "--hills", folder / "HILLS", "--temperature-K", 300
    along, numbers, _ = profile(*words, "--along", "d", "--range", "0.24:0.36")
    assert numbers["method"] == "reweight"
    free, numbers, _ = profile(unbiased(tmp_path / "free"), "--along", "d", "--range", "0.24:0.36")
    assert numbers["method"] == "histogram"
    assert numbers["runs"][0]["independent_samples"] > 4000
    one, two = along["free_energy_kJ_per_mol"], free["free_energy_kJ_per_mol"]
    low = two < 3.0 * KT
    assert np.std((one - two)[low]) < 0.25 * KT


def unbiased(folder: Path, **options: Any) -> Path:
    phi, distance = drawn_torsion(np.zeros(3600), 8000, 99)
    record(folder, **options)
    colvar(folder / "COLVAR", phi, distance)
    return folder


@pytest.mark.parametrize("lost", [0, 1, 18])
def test_hills_that_are_missing_at_the_end_are_told(
    profile: Command, tmp_path: Path, lost: int
) -> None:
    """A file that was cut gave the free energy of half of the hills without a word."""
    folder = record(metadynamics(tmp_path / "run", walkers=1), biases=[METADYNAMICS])
    hills, rows = read_plumed(folder / "HILLS"), len(read_plumed(folder / "COLVAR"))
    (folder / "HILLS").unlink()
    values = hills.values.copy()
    values[:, 0] = 0.1 * rows * (1.0 + np.arange(36)) / 36.0
    with PlumedWriter.create(folder / "HILLS", hills.fields, TURN, digits=17) as writer:
        writer.append(values[: 36 - lost])
    _, numbers, _ = profile(folder)
    found = [text for text in numbers["warnings"] if "hills are missing" in text]
    assert len(found) == (lost > 1)


@pytest.mark.parametrize("bias_factor", [10.0, 1.0])
def test_hills_alone(mdgraph_command: Command, tmp_path: Path, bias_factor: float) -> None:
    """Where they keep their height, the mean of their sums over the last half of the time."""
    folder, out = metadynamics(tmp_path / "walkers", walkers=1), tmp_path / "out"
    hills = read_plumed(folder / "HILLS")
    rows = np.column_stack([hills.values[:, :-1], np.full(len(hills), bias_factor)])
    with PlumedWriter.create(tmp_path / "HILLS", hills.fields, TURN, digits=17) as writer:
        writer.append(rows)
    words = "free-energy", tmp_path / "HILLS", "--temperature-K", 300, "--bins", 36, "--out", out
    done = mdgraph_command(*words)
    assert done.status == 0
    assert "rad: " in done.out
    columns = rows_of(out)
    change = columns["phi_rad"][:, None] - hills.column("phi")
    change -= 2.0 * math.pi * np.round(change / (2.0 * math.pi))
    times, heights = hills.column("time"), hills.column("height")
    if bias_factor == 1.0:
        heights = heights * np.minimum((times[-1] - times) / (0.5 * (times[-1] - times[0])), 1.0)
    summed = -np.exp(-0.5 * (change / 0.25) ** 2) @ heights
    np.testing.assert_allclose(columns["free_energy_kJ_per_mol"], summed - summed.min(), atol=1e-4)
    assert np.isnan(columns["error_kJ_per_mol"]).all()


def test_few_effective_samples_are_said(mdgraph_command: Command, tmp_path: Path) -> None:
    places = np.linspace(0.1, 1.0, 400), np.linspace(0, 90, 400)
    colvar(tmp_path / "COLVAR", *places, fields=("d", "b.bias"))
    words = "free-energy", tmp_path / "COLVAR", "--temperature-K", 300, "--out", tmp_path / "out"
    assert "effective samples, where 30 are few; run longer" in mdgraph_command(*words).err


def test_a_bias_beside_the_hills_is_weighted_out(profile: Command, tmp_path: Path) -> None:
    run = record(tmp_path / "run", biases=[METADYNAMICS, SPRING])
    metadynamics(run, walkers=1, spring=True)
    columns, numbers, done = profile(run, "--bins", 36, "--resamples", 0)
    assert numbers["method"] == "reweight"
    assert "free energy with other biases in it (spring); samples are reweighted" in done.err
    truth = torsion(columns["phi_rad"])
    assert np.nanstd(columns["free_energy_kJ_per_mol"] - truth) < 0.15 * KT


@pytest.mark.parametrize(
    ("ladder", "kelvins"), [("300,600,900", (300, 600, 900)), ("300:1200", (300, 600, 1200))]
)
def test_replicas_of_a_ladder_have_its_temperatures(
    tmp_path: Path, ladder: str, kelvins: Sequence[float]
) -> None:
    run = umbrellas(tmp_path / "run", count=3, rows=20)
    record(run, temperatures_K=ladder, replicas=3)
    for number, kelvin in enumerate(kelvins):
        one = read_biased_runs([run / f"replica-{number}" / "COLVAR"], None)
        assert one.temperature == pytest.approx(kelvin)


def test_a_histogram_of_biased_samples_says_so(profile: Command, tmp_path: Path) -> None:
    run = umbrellas(tmp_path / "run", 3, rows=400)
    _, numbers, done = profile(run, "--method", "histogram", "--along", "phi")
    assert "A histogram leaves the biases of the runs in the samples" in done.err
    assert done.out.startswith("-kT ln p of biased samples along phi")
    assert any("leave --method out" in sentence for sentence in numbers["warnings"])
    *_, done = profile(unbiased(tmp_path / "free"), "--along", "phi")
    assert "leaves the biases" not in done.err


def test_windows_may_lie_below_a_folder_with_the_name_of_a_replica(tmp_path: Path) -> None:
    runs = read_biased_runs([umbrellas(tmp_path / "replica-1" / "run", 3, rows=20)], None).runs
    centres = [-math.pi, -math.pi / 3.0, math.pi / 3.0]
    assert [one.static[0].centre[0] for one in runs] == pytest.approx(centres)


def test_weights_that_changed_are_told(tmp_path: Path) -> None:
    run = unbiased(tmp_path / "run", timestep_fs=0.5)
    about = json.loads((run / "run.json").read_text())
    about["switching"] = {"steps": 4000, "terms": [{"term": "zbl@3", "weight": [0.0, 1.0]}]}
    (run / "run.json").write_text(json.dumps(about))
    (sentence,) = read_biased_runs([run], None).warnings
    assert "changes weights of terms (zbl@3) until 2 ps" in sentence


def test_masses_of_hydrogens_that_move_centres_are_told(tmp_path: Path) -> None:
    def warnings(name: str, **definition: Any) -> list[str]:
        variables = VARIABLES | {"d": {"kind": "distance"} | definition}
        one = unbiased(tmp_path / name / "one", variables=variables)
        two = unbiased(tmp_path / name / "two", variables=variables, hydrogen_mass_amu=3.0)
        return read_biased_runs([one, two], None).warnings

    assert warnings("atoms", atoms=[0, 3]) == []
    (sentence,) = warnings("centres", groups=["0", "index 1:3"])
    assert "are not the same, which moves the centres of mass of d; give runs" in sentence


def test_two_variables_and_a_free_pair(profile: Command, tmp_path: Path) -> None:
    folder = unbiased(tmp_path / "run")
    columns, numbers, _ = profile(folder, "--along", "phi,d", "--bins", "24,10", "--ends", "-1:1")
    assert len(columns["phi_rad"]) == len(columns["d_nm"]) == 240
    assert [one["period"] is None for one in numbers["variables"]] == [False, True]
    assert numbers["round_trips"]["phi"]["ends"] == [-1.0, 1.0]
    pair = tmp_path / "pair"
    points = np.random.default_rng(0).uniform(-1.0, 1.0, (30_000, 3))
    distances = np.linalg.norm(points, axis=1)
    distances = distances[(distances > 0.2) & (distances < 1.0)]
    record(pair)
    colvar(pair / "COLVAR", distances, fields=("d",))
    columns, _, _ = profile(pair, "--radial", "--unit", "kT", "--bins", 20, "--range", "0.3:1")
    assert np.std(columns["free_energy_kT"]) < 0.1


def short(tmp_path: Path) -> list[object]:
    return [colvar(record(tmp_path / "short") / "COLVAR", np.zeros(5), np.zeros(5)).parent]


def no_colvar(tmp_path: Path) -> list[object]:
    return [record(tmp_path / "plain")]


def other_variables(tmp_path: Path) -> list[object]:
    other = record(tmp_path / "other")
    colvar(other / "COLVAR", np.linspace(0.1, 1.0, 50), fields=("d",))
    return [unbiased(tmp_path / "run"), other]


def other_temperature(tmp_path: Path) -> list[object]:
    return [unbiased(tmp_path / "run"), unbiased(tmp_path / "other", temperature_K=310.0)]


def ramp(tmp_path: Path) -> list[object]:
    return [unbiased(tmp_path / "run", temperature_K="300:350")]


def no_bath(tmp_path: Path) -> list[object]:
    return [unbiased(tmp_path / "run", ensemble="nve")]


def exchange(tmp_path: Path) -> list[object]:
    return [unbiased(tmp_path / "run", temperatures_K="300,320", exchange=100)]


def no_temperature(tmp_path: Path) -> list[object]:
    return [colvar(tmp_path / "COLVAR", np.zeros(50), np.zeros(50))]


def apart(tmp_path: Path) -> list[object]:
    run = umbrellas(tmp_path / "run")
    return [run / "replica-4" / "COLVAR", run / "replica-9" / "COLVAR"]


def edited(tmp_path: Path) -> list[object]:
    return [umbrellas(tmp_path / "run", wrong=1.1)]


def malformed(tmp_path: Path) -> list[object]:
    run = unbiased(tmp_path / "run")
    lines = (run / "COLVAR").read_text().splitlines()
    lines[6] = "0.3 x 0.1"
    (run / "COLVAR").write_text("\n".join(lines) + "\n")
    return [run]


def other_hills(tmp_path: Path) -> list[object]:
    folder = metadynamics(tmp_path / "meta", walkers=1)
    colvar(tmp_path / "COLVAR", np.linspace(0, 1, 50), np.zeros(50), fields=("d", "metad.bias"))
    return [tmp_path / "COLVAR", "--hills", folder / "HILLS", "--temperature-K", 300]


def moving(tmp_path: Path) -> list[object]:
    return [unbiased(tmp_path / "run", biases=[{"kind": "moving", "name": "pull"}])]


def pulled(tmp_path: Path) -> list[object]:
    fields = ("phi", "pull.bias", "pull.work")
    return [colvar(tmp_path / "COLVAR", *np.ones((3, 50)), fields=fields), "--temperature-K", 300]


def other_atoms(tmp_path: Path) -> list[object]:
    variables = VARIABLES | {"d": {"kind": "distance", "groups": [1, 3]}}
    return [unbiased(tmp_path / "run"), unbiased(tmp_path / "other", variables=variables)]


def sum_with_spring(tmp_path: Path) -> list[object]:
    run = record(tmp_path / "run", biases=[METADYNAMICS, SPRING])
    return [metadynamics(run, walkers=1, spring=True), "--method", "hills"]


def hills_with_spring(tmp_path: Path) -> list[object]:
    return [sum_with_spring(tmp_path)[0] / "HILLS", "--temperature-K", 300]


def unknown_windows(tmp_path: Path) -> list[object]:
    run = umbrellas(tmp_path / "run")
    (run / "run.json").unlink()
    return [run, "--temperature-K", 300]


def twice(tmp_path: Path) -> list[object]:
    run = unbiased(tmp_path / "run")
    return [run, tmp_path / "." / "run"]


def three_variables(tmp_path: Path) -> list[object]:
    values = np.random.default_rng(0).normal(size=(50, 3))
    colvar(record(tmp_path / "run") / "COLVAR", values, fields=("a", "b", "c"))
    return [tmp_path / "run"]


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda path: [], "Give the folders of runs, a COLVAR or HILLS, or --windows FILE."),
        (lambda path: [path / "none"], "none; give the folder of a run, or its COLVAR."),
        (no_colvar, "plain has no COLVAR: the run had no variables; give runs with variables"),
        (short, "COLVAR has 5 rows, which are too few; run longer, or write more."),
        (other_variables, "other/COLVAR has the variables d, and "),
        (other_temperature, "other/COLVAR of 310 K; give runs of one temperature."),
        (ramp, "changes (300:350); give runs at a constant temperature."),
        (no_bath, "is not given, without a bath; give runs at a constant temperature."),
        (exchange, "exchanges temperatures, so that each COLVAR has several; give runs without"),
        (no_temperature, "tells its temperature; give it with --temperature-K."),
        (apart, "do not overlap, and no others connect them"),
        (edited, "line 4: umbrella.bias is "),
        (malformed, "line 7: 'x' is not a number; correct or remove the line."),
        (other_hills, "The hills are of phi, and "),
        (moving, "the bias pull moves, so that nothing is at equilibrium under it"),
        (pulled, "pull.work is of a bias that moves, so that nothing is at equilibrium"),
        (other_atoms, "d is another variable in "),
        (sum_with_spring, "in it (spring); leave --method out, and samples are reweighted."),
        (hills_with_spring, "other biases in it (spring); give the folder of the run with its"),
        (unknown_windows, "are joined by their windows; give those of other programs by --windows"),
        (twice, "run is given twice; give each run once."),
        (three_variables, "There are 3 variables (a, b, c); choose one or two with --along."),
    ],
)
def test_what_gives_no_profile_is_refused_in_one_sentence(
    mdgraph_command: Command, tmp_path: Path, make: Callable[[Path], list[object]], sentence: str
) -> None:
    out = tmp_path / "out"
    done = mdgraph_command("free-energy", *make(tmp_path), "--out", out)
    assert (done.status, done.out) == (1, "")
    assert sentence in done.err
    assert done.err.count("\n") == 1
    assert not out.exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--along phi,d,e", "--along is phi,d,e; give one variable or two."),
        ("--along psi", "COLVAR has no column psi; it has time, phi, d."),
        ("--along phi --bins 9,9", "--bins has 2 entries for 1 variables; give one for each."),
        ("--along phi --bins x", "--bins is x; it should be numbers"),
        ("--along phi --bins 1", "--bins is 1; give whole numbers from 2 to 2000"),
        ("--along phi --range 2:1", "--range is 2:1; give a lower and a higher number"),
        ("--along phi --range 8:9", "No sample of phi lies between 8 and 9; they go from "),
        ("--along phi --ends 1", "--ends is 1; give a lower and a higher number"),
        ("--along phi --method hills", "No run has HILLS; leave --method out"),
        ("--along phi --discard-ps 799.95", "rows after 799.95 ps, which are too few; discard l"),
        ("--along phi --radial", "--radial is for distances, and this variable is not above 0."),
        ("--along phi --temperature-K 310", "--temperature-K is 310, and "),
        ("--along phi --windows none.txt", "none.txt"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    mdgraph_command: Command, tmp_path: Path, words: str, sentence: str
) -> None:
    run = unbiased(tmp_path / "run")
    done = mdgraph_command("free-energy", run, *words.split(), "--out", tmp_path / "out")
    assert done.status == 1
    assert sentence in done.err
    assert done.err.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_results_are_replaced_when_asked(mdgraph_command: Command, tmp_path: Path) -> None:
    run, out = unbiased(tmp_path / "run"), tmp_path / "out"
    words = "free-energy", run, "--along", "phi", "--resamples", 0, "--out", out
    assert mdgraph_command(*words).status == 0
    assert "replace it with --overwrite" in mdgraph_command(*words).err
    assert mdgraph_command(*words, "--overwrite").status == 0
    assert sorted(path.name for path in out.iterdir()) == [
        *("free_energy.csv", "free_energy.json", "free_energy.png")
    ]


def test_without_pymbar_it_says_how_to_install_it(
    mdgraph_command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pymbar", None)
    run = umbrellas(tmp_path / "run", rows=50)
    done = mdgraph_command("free-energy", run, "--out", tmp_path / "out")
    assert "install it with: pip install 'mdgraph[free-energy]'" in done.err
