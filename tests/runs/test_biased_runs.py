"""Runs with collective variables and biases: their configuration, COLVAR and HILLS."""

import math
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from pydantic import ValidationError
from repository import ROOT
from safetensors.torch import load_file
from shared_runs import run_shared

from mdgraph.errors import FileError, InputError
from mdgraph.io.log import read_log
from mdgraph.io.plumed import read_plumed
from mdgraph.runs.analyse.biased_runs import read_biased_runs
from mdgraph.runs.biased.config import large_angles
from mdgraph.runs.config import MDConfig
from mdgraph.runs.config_files import read_configuration
from mdgraph.runs.folder import RunDirectory
from mdgraph.runs.md import resume, resume_or_start, start
from mdgraph.units import KILOJOULE_PER_MOLE

pytestmark = pytest.mark.usefixtures("without_picture", "one_thread")

VARIABLES: dict[str, Any] = {
    "phi": {"kind": "dihedral", "atoms": [1, 0, 3, 4]},
    "r": {"kind": "distance", "groups": ["index 0:2", "index 3:5"]},
    "V": {"kind": "volume"},
}
BIASES: list[dict[str, Any]] = [
    {
        "kind": "metadynamics",
        "name": "hills",
        "variables": ["phi", "r"],
        "sigma": ["20deg", 0.3],
        "height_eV": 0.02,
        "every": 3,
        "minimum": ["-pi", 0.5],
        "maximum": ["pi", 8.0],
        "bias_factor": 6,
    },
    {
        "kind": "moving",
        "variables": "r",
        "waypoints": [
            {"step": 0, "centre": 4.0, "stiffness_eV": 0.1},
            {"step": 20, "centre": 3.5, "stiffness_eV": 0.2},
        ],
    },
    {
        "kind": "harmonic",
        "name": "umbrella",
        "variables": "phi",
        "centre": "pi/2",
        "stiffness_eV": 0.1,
    },
]

Make = Callable[..., MDConfig]


@pytest.fixture
def make(tmp_path: Path, tiny_potential: Path, water_file: Path) -> Make:
    def make(name: str = "run", **changes: Any) -> MDConfig:
        options = {
            "structure": str(water_file),
            "potential": str(tiny_potential),
            "out": str(tmp_path / name),
            "device": "cpu",
            "check": False,
            "steps": 20,
            "timestep_fs": 1.0,
            "log_interval": 5,
            "trajectory_interval": 10,
            "checkpoint_interval": 7,
            "colvar_interval": 2,
            "chunk": 3,
            "variables": VARIABLES,
            "biases": BIASES,
        }
        return MDConfig(**(options | changes))

    return make


def texts(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): path.read_text()
        for path in sorted(folder.rglob("*"))
        if path.name.startswith(("COLVAR", "HILLS"))
    }


def test_colvar_has_variables_biases_and_work_in_units_of_plumed(make: Make) -> None:
    start(make())
    folder = RunDirectory(Path(make().out))
    table = read_plumed(folder.colvar)
    columns = ("phi", "r", "V", "hills.bias", "moving.bias", "moving.work", "umbrella.bias")
    assert table.fields == ("time", *columns)
    assert dict(table.constants) == {"min_phi": "-pi", "max_phi": "pi"}
    assert table.column("time") == pytest.approx(1e-3 * np.arange(0, 21, 2))
    assert table.column("V") == pytest.approx(0.125)
    assert 0.2 < table.column("r")[0] < 0.6
    spring = 0.5 * 0.1 * (np.abs(table.column("phi") - 0.5 * math.pi)) ** 2
    far = table.column("phi") < -0.5 * math.pi
    assert table.column("umbrella.bias")[~far] == pytest.approx(spring[~far] / KILOJOULE_PER_MOLE)
    log = read_log(folder.log)
    both = [place for place, step in enumerate(range(0, 21, 2)) if step % 5 == 0]
    rows = [place for place, step in enumerate(range(0, 21, 5)) if step % 2 == 0]
    for name in ("hills", "moving", "umbrella"):
        energies = log[f"{name}_bias_eV"][rows] / KILOJOULE_PER_MOLE
        assert table.column(f"{name}.bias")[both] == pytest.approx(energies, abs=1e-12)


def test_hills_add_up_to_the_bias(make: Make) -> None:
    start(make())
    folder = RunDirectory(Path(make().out))
    hills, colvar = read_plumed(folder.hills()), read_plumed(folder.colvar)
    names = ("phi", "r")
    assert hills.fields == ("time", *names, "sigma_phi", "sigma_r", "height", "biasf")
    assert hills.constants["multivariate"] == "false"
    assert hills.domain("phi") == (-math.pi, math.pi)
    assert hills.column("time") == pytest.approx(1e-3 * np.arange(3, 21, 3))
    assert set(hills.column("biasf")) == {6.0}
    assert hills.column("height")[0] == pytest.approx(0.02 * 6.0 / 5.0 / KILOJOULE_PER_MOLE)
    assert hills.column("sigma_r") == pytest.approx(0.03)
    for time, phi, r, bias in zip(
        *(colvar.column(name) for name in ("time", *names, "hills.bias")), strict=True
    ):
        before = hills.values[hills.column("time") < time - 1e-9]
        turns = np.remainder(phi - before[:, 1] + math.pi, 2.0 * math.pi) - math.pi
        exponents = (turns / before[:, 3]) ** 2 + ((r - before[:, 2]) / before[:, 4]) ** 2
        total = (before[:, 5] * 5.0 / 6.0 * np.exp(-0.5 * exponents)).sum()
        assert bias == pytest.approx(total, abs=2e-3)


def test_a_resumed_run_writes_the_same_files(make: Make) -> None:
    start(make("whole"))
    whole = texts(Path(make("whole").out))
    assert sorted(whole) == ["COLVAR", "HILLS"]
    start(make("part", steps=11))
    folder = Path(make("part").out)
    # What a killed run wrote after its checkpoint goes.
    with (folder / "COLVAR").open("a") as file:
        file.write(" 0.5 1 2 3 4 5 6 7\n 0.7 1")
    with (folder / "HILLS").open("a") as file:
        file.write(" 0.5 1 2 3 4 5 6\n")
    resume(folder, {"steps": 20})
    assert texts(folder) == whole


@pytest.mark.parametrize("name", ["COLVAR", "HILLS"])
def test_files_of_another_run_are_refused_and_left_alone(make: Make, name: str) -> None:
    start(make(steps=11))
    folder = Path(make().out)
    lines = (folder / name).read_text().splitlines(keepends=True)
    (folder / name).write_text("".join(lines[:-2] + lines[-1:]))
    before = texts(folder)
    with pytest.raises(FileError, match="put back the file"):
        resume(folder, {"steps": 20})
    assert texts(folder) == before
    shutil.rmtree(folder)


@pytest.mark.parametrize("name", ["COLVAR", "HILLS"])
def test_columns_of_another_run_are_refused_and_left_alone(make: Make, name: str) -> None:
    start(make(steps=4))
    folder = Path(make().out)
    text = (folder / name).read_text()
    (folder / name).write_text(text.replace(" r ", " other ", 1))
    before = texts(folder)
    with pytest.raises(FileError, match=r"has the columns time.*other.*and this run writes time"):
        resume(folder, {"steps": 20})
    assert texts(folder) == before


def test_replicas_are_windows_or_walkers(make: Make) -> None:
    windows = {"kind": "harmonic", "variables": "r", "centre": [3.0, 3.5], "stiffness_eV": 1.0}
    walkers = BIASES[0] | {"shared": True}
    start(make(replicas=2, biases=[windows, walkers]))
    folder = Path(make().out)
    assert sorted(texts(folder)) == ["HILLS", "replica-0/COLVAR", "replica-1/COLVAR"]
    hills = read_plumed(folder / "HILLS")
    assert hills.column("time") == pytest.approx(1e-3 * np.arange(3, 21, 3).repeat(2))
    for number, centre in enumerate((0.3, 0.35)):
        table = read_plumed(folder / f"replica-{number}" / "COLVAR")
        stiffness = 100.0 / KILOJOULE_PER_MOLE
        expected = 0.5 * stiffness * (table.column("r") - centre) ** 2
        assert table.column("harmonic.bias") == pytest.approx(expected)
    start(make("own", replicas=2, biases=BIASES[:1]))
    own = texts(Path(make("own").out))
    assert sorted(own)[:2] == ["replica-0/COLVAR", "replica-0/HILLS"]


def test_walkers_of_two_ranks_share_the_hills_of_one_process(
    make: Make, processes: Any, tmp_path: Path
) -> None:
    """One rank is killed after a hill, and both go on from the checkpoint before it."""
    options = {"replicas": 3, "evaluator": "reference", "biases": [BIASES[0] | {"shared": True}]}
    start(make("one", **options))
    two = make("two", **options)
    assert run_shared(processes, two, False, dies_at=9) == [0, -signal.SIGKILL]
    assert "lost another one" in (tmp_path / "said").read_text(encoding="utf-8")
    assert run_shared(processes, two, True, dies_at=0) == [0, 0]
    names = ["rank-0/HILLS", "rank-0/replica-0/COLVAR"]
    names += [f"rank-1/replica-{number}/COLVAR" for number in (1, 2)]
    assert sorted(texts(tmp_path / "two")) == names
    for name in names:
        whole, shared = (
            read_plumed(tmp_path / path) for path in (f"one/{name[7:]}", f"two/{name}")
        )
        assert whole.fields == shared.fields
        # A network rounds by the batch.
        np.testing.assert_allclose(shared.values, whole.values, rtol=1e-5, atol=1e-6)
    assert np.ptp(whole.column("hills.bias")) > 0.1
    one, *ranks = (
        load_file(tmp_path / folder / "checkpoint.safetensors")
        for folder in ("one", "two/rank-0", "two/rank-1")
    )
    for name in ("biases.hills.grid", "biases.hills.records"):
        assert torch.equal(ranks[0][name], ranks[1][name])
        np.testing.assert_allclose(ranks[0][name], one[name], rtol=1e-5, atol=1e-6)
    (hills,) = read_biased_runs([tmp_path / "two"], None).hills
    assert len(hills.centers) == 18
    record = tmp_path / "two" / "rank-1" / "run.json"
    text = record.read_text(encoding="utf-8")
    assert '"shared": true' in text
    record.write_text(text.replace('"shared": true', '"shared": false'), encoding="utf-8")
    with pytest.raises(FileError, match="has no HILLS"):  # those of rank 0 are not its own
        read_biased_runs([tmp_path / "two"], None)


@pytest.mark.gpu(2)
def test_two_gpus_share_the_hills_of_one(make: Make, processes: Any, tmp_path: Path) -> None:
    options = {"replicas": 4, "device": "cuda", "graph": "on", "skin_A": 1.0}
    options["biases"] = [BIASES[0] | {"shared": True}]
    start(make("one", **options))
    assert run_shared(processes, make("two", **options), False, dies_at=0) == [0, 0]
    one, two = (read_plumed(tmp_path / name / "HILLS") for name in ("one", "two/rank-0"))
    np.testing.assert_allclose(two.values, one.values, rtol=1e-4, atol=1e-5)
    ranks = [load_file(tmp_path / f"two/rank-{rank}/checkpoint.safetensors") for rank in (0, 1)]
    assert torch.equal(*(tensors["biases.hills.grid"] for tensors in ranks))


UMBRELLAS: dict[str, Any] = {
    "kind": "harmonic",
    "variables": "r",
    "centre": [3.6, 3.7, 3.8, 3.9],
    "stiffness_eV": [[0.1], [0.2], [0.1], [0.3]],
}


def exchanging(make: Make, name: str = "run", **changes: Any) -> MDConfig:
    biases = [UMBRELLAS, {"kind": "walls", "variables": "V", "upper": 400.0, "stiffness_eV": 0.1}]
    return make(name, replicas=4, exchange=3, biases=biases, **changes)


def test_windows_keep_their_colvar_when_replicas_exchange_them(make: Make, tmp_path: Path) -> None:
    """A row has the bias of its window, and the values of the replica that was there before."""
    start(exchanging(make, "whole"))
    folder = Path(make("whole").out)
    whole = texts(folder)
    log = read_log(folder / "exchanges.csv")
    places = np.stack([log[f"replica_{number}"] for number in range(4)], axis=1)
    assert (places[0] == np.arange(4)).all()
    assert len(np.unique(places, axis=0)) > 2
    tables = [read_plumed(folder / f"replica-{number}" / "COLVAR") for number in range(4)]
    for number, table in enumerate(tables):
        stiffness = 100.0 * UMBRELLAS["stiffness_eV"][number][0] / KILOJOULE_PER_MOLE
        expected = 0.5 * stiffness * (table.column("r") - 0.1 * UMBRELLAS["centre"][number]) ** 2
        assert table.column("harmonic.bias") == pytest.approx(expected, rel=1e-9)
    # The log is that of a replica; its bias is what the window had where it was.
    for step in (10, 20):
        before = places[log["step"] < step][-1]
        for number in range(4):
            logged = read_log(folder / f"replica-{number}" / "log.csv")
            bias = logged["harmonic_bias_eV"][logged["step"] == step]
            row = tables[int(before[number])].column("harmonic.bias")[step // 2]
            assert row * KILOJOULE_PER_MOLE == pytest.approx(bias, rel=1e-9)
    start(exchanging(make, "part", steps=11))
    resume(Path(make("part").out), {"steps": 20})
    assert texts(Path(make("part").out)) == whole
    exchanges = [Path(make(name).out) / "exchanges.csv" for name in ("whole", "part")]
    assert exchanges[0].read_text() == exchanges[1].read_text()
    runs = read_biased_runs([folder], None)
    assert runs.exchanges[0]["attempted"] == [3, 3, 3]
    assert sum(runs.exchanges[0]["accepted"]) > 2


@pytest.mark.slow
def test_two_ranks_write_the_colvar_of_one_process(
    make: Make, processes: Any, tmp_path: Path
) -> None:
    start(exchanging(make, "one", evaluator="reference"))
    both = exchanging(make, "two", evaluator="reference")
    assert run_shared(processes, both, False, dies_at=0) == [0, 0]
    for number in range(4):
        one, two = (
            read_plumed(tmp_path / name / f"replica-{number}" / "COLVAR")
            for name in ("one", f"two/rank-{number // 2}")
        )
        assert one.fields == two.fields
        # A network rounds by the batch.
        np.testing.assert_allclose(two.values, one.values, rtol=1e-5, atol=1e-6)
    (numbers,) = read_biased_runs([tmp_path / "two"], None).exchanges
    assert numbers["run"].endswith("two")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"biases": [UMBRELLAS | {"centre": 3.6, "stiffness_eV": 1}]}, "or in different umbrellas"),
        ({"biases": [UMBRELLAS | {"centre": [3.6, 3.7]}]}, "4 systems"),
        ({"biases": [UMBRELLAS, BIASES[0]]}, "metadynamics changes it"),
        ({"temperature_K": "300:400"}, "exchange of umbrellas is at one temperature"),
        ({"ensemble": "npt"}, "exchange needs an nvt ensemble"),
    ],
)
def test_umbrellas_that_cannot_be_exchanged_are_refused(
    make: Make, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValidationError, match=said):
        make(**({"replicas": 4, "exchange": 3, "biases": [UMBRELLAS]} | changes))


def test_another_temperature_does_not_end_an_exchange_of_umbrellas(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    variables = {"r": {"kind": "distance", "atoms": [0, 1]}}
    options = {"replicas": 4, "exchange": 5, "variables": variables, "biases": [UMBRELLAS]}
    file.write_text(yaml.safe_dump(options), encoding="utf-8")
    read = read_configuration(MDConfig, file, {"temperature_K": "350"})
    assert (read.temperature_K, read.exchange, read.exchanges_umbrellas) == (350.0, 5, True)


def test_run_json_holds_numbers_and_temperature(make: Make) -> None:
    start(make(temperature_K=350.0))
    record = RunDirectory(Path(make().out)).read_record()["configuration"]
    hills, moving, umbrella = record["biases"]
    assert hills["temperature_K"] == 350.0
    assert hills["sigma"] == pytest.approx([math.radians(20.0), 0.3])
    assert moving["waypoints"][1]["centre"] == [3.5]
    assert umbrella["centre"] == [pytest.approx(0.5 * math.pi)]
    assert record["variables"]["phi"]["kind"] == "dihedral"
    assert record["colvar_interval"] == 2


def test_a_reference_is_whole_and_found_from_any_folder(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same molecule, whole at the start and broken by the cell in the file."""
    folder, sides = tmp_path / "elsewhere", np.array([6.0, 7.0, 8.0])
    folder.mkdir()
    monkeypatch.chdir(folder)
    whole = np.array([[0.1, 0.2, 0.1], [0.9, 0.6, -0.1], [-0.5, -0.7, 0.2]])
    for name, places in (("start", whole), ("broken", whole % sides)):
        lines = [f"{symbol} {x} {y} {z}" for symbol, (x, y, z) in zip("OHH", places, strict=True)]
        head = 'Lattice="6 0 0 0 7 0 0 0 8" Properties=species:S:1:pos:R:3 pbc="T T T"'
        (folder / f"{name}.extxyz").write_text("\n".join(["3", head, *lines, ""]))
    variables = {"d": {"kind": "rmsd", "atoms": "all", "reference": "broken.extxyz"}}
    options = {"structure": "start.extxyz", "variables": variables, "biases": None}
    start(make(steps=4, **options))
    out = Path(make().out)
    assert read_plumed(out / "COLVAR").column("d")[0] == pytest.approx(0.0, abs=1e-6)
    monkeypatch.chdir(tmp_path)
    resume(out, {"steps": 8})
    assert len(read_plumed(out / "COLVAR")) == 5


def test_the_same_command_resumes_or_starts(make: Make) -> None:
    resume_or_start(make(steps=11))
    resume_or_start(make(steps=20))
    start(make("whole"))
    assert texts(Path(make().out)) == texts(Path(make("whole").out))


def test_variables_alone_are_only_written(make: Make) -> None:
    start(make(biases=None))
    folder = Path(make().out)
    assert read_plumed(folder / "COLVAR").fields == ("time", "phi", "r", "V")
    assert not (folder / "HILLS").exists()


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a kind": ({"variables": {"a": {"kind": "dihedrel", "atoms": [0]}}}, "did you mean dihedral"),
    "no kind": ({"variables": {"a": {"atoms": [0, 1]}}}, "needs a kind"),
    "too few atoms": ({"variables": {"a": {"kind": "angle", "atoms": [0, 1]}}}, "a: it is of 3"),
    "an atom twice": (
        {"variables": {"a": {"kind": "dihedral", "atoms": [0, 1, 2, 2]}}},
        "a: A dihedral names 2 twice; give 4 different points",
    ),
    "an unknown key": (
        {"variables": {"a": {"kind": "distance", "atoms": [0, 1], "r0": 1}}},
        "a: unknown key r0; choose",
    ),
    "a key of PLUMED": (
        {"biases": [{"kind": "metadynamics", "variables": "a", "biasfactor": 8}]},
        "0: unknown key biasfactor; did you mean bias_factor?",
    ),
    "a number": (
        {"biases": [{"kind": "linear", "variables": "a", "slope_eV": "much"}]},
        "0.slope_eV.0 is much",
    ),
    "a stiffness below zero": (
        {"biases": [{"kind": "harmonic", "variables": "a", "centre": 1, "stiffness_eV": -1}]},
        r"0\.stiffness_eV\.0 is -1; it should be",
    ),
    "no width": ({"biases": [BIASES[0] | {"sigma": 0.0}]}, "sigma of the bias hills is 0"),
    "a missing key": ({"biases": [{"kind": "harmonic", "variables": "r"}]}, "0.centre is missing"),
    "an unknown variable": (
        {"biases": [{"kind": "linear", "variables": "w", "slope_eV": 1.0}]},
        "which is not a variable",
    ),
    "a column of HILLS": (
        {
            "variables": {"height": {"kind": "distance", "atoms": [0, 1]}},
            "biases": [BIASES[0] | {"variables": "height"}],
        },
        "HILLS, which metadynamics writes, has a column height of its own",
    ),
    "no variables": ({"variables": None}, "give variables"),
}


@pytest.mark.parametrize("case", WRONG)
def test_mistakes_in_a_file_get_one_sentence(tmp_path: Path, case: str) -> None:
    changes, words = WRONG[case]
    options = {"variables": VARIABLES | {"a": {"kind": "distance", "atoms": [0, 1]}}}
    options |= {"biases": BIASES} | changes
    path = tmp_path / "md.yaml"
    path.write_text(yaml.safe_dump({name: v for name, v in options.items() if v is not None}))
    with pytest.raises(InputError, match=words) as error:
        read_configuration(MDConfig, path)
    assert "\n" not in str(error.value)


def test_what_a_structure_does_not_have_stops_before_a_folder_is_there(make: Make) -> None:
    variables = VARIABLES | {"far": {"kind": "distance", "atoms": [0, 17]}}
    with pytest.raises(InputError, match="The variable far: A group names 17"):
        start(make(variables=variables))
    outside = [BIASES[0] | {"minimum": ["-pi", 6.0]}]
    with pytest.raises(InputError, match="outside of the grid of hills"):
        start(make(biases=outside))
    with pytest.raises(InputError, match="nothing says T"):
        start(make(ensemble="nve", biases=BIASES[:1]))
    assert not Path(make().out).exists()
    with pytest.raises(ValidationError, match="exchange needs replicas with the same energy"):
        make(replicas=2, temperatures_K="300:400", exchange=10)


def test_what_is_likely_a_mistake_is_told(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    rests = {"kind": "harmonic", "variables": "phi", "centre": 60, "stiffness_eV": 0.01}
    moves = {
        "kind": "moving",
        "variables": "phi",
        "waypoints": [
            {"step": step, "centre": centre, "stiffness_eV": 0.01}
            for step, centre in ((0, "0deg"), (10, "720deg"))
        ],
    }
    for bias, words in (
        (rests, ["60 rad, which is 9.5 turns; degrees are written as 60deg"]),
        (rests | {"centre": "360deg"}, []),
        (moves, []),
    ):
        told = large_angles(make().variables, make(biases=[bias]).biases)
        assert len(told) == len(words)
        assert all(one in sentence for one, sentence in zip(words, told, strict=True))
    late = BIASES[0] | {"every": 2000}
    start(make(biases=[rests, late], steps=1, fix="all"))
    assert "degrees are written as 60deg" in caplog.text
    assert "adds a hill every 2,000 steps, and the run has 1, so it adds none" in caplog.text
    assert "All atoms are fixed, so nothing moves" in caplog.text


def test_angles_may_be_written_with_pi_or_in_degrees(make: Make) -> None:
    values = {
        "-pi": -math.pi,
        "pi/2": 0.5 * math.pi,
        "2*pi/3": 2 * math.pi / 3,
        "-60deg": -math.pi / 3,
    }
    for text, value in values.items():
        bias = BIASES[2] | {"centre": text}
        (made,) = make(biases=[bias]).biases or ()
        assert made.model_dump()["centre"] == [pytest.approx(value)]


@pytest.mark.parametrize("number", range(3))
def test_files_of_the_document_run(tmp_path: Path, number: int) -> None:
    text = (ROOT / "docs" / "biases.md").read_text(encoding="utf-8")
    written = re.findall(r"```yaml\n(.*?)```", text, flags=re.DOTALL)
    assert len(written) == 3
    options = yaml.safe_load(written[number])
    lengths = {"time_ps": None, "steps": 4, "out": str(tmp_path / "run"), "check": False}
    start(MDConfig(**(options | lengths | {"device": "cpu", "evaluator": "reference"})))
    assert len(texts(tmp_path / "run")) in (1, 2, 4)
