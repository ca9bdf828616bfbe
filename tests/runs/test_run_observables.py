"""`mdgraph md --observe`: what is recorded, where it goes, and that a resumed run records alike."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Finished

from mdgraph.errors import InputError
from mdgraph.io.formats import read_trajectory
from mdgraph.io.log import read_log
from mdgraph.runs import md
from mdgraph.runs.config import MDConfig
from mdgraph.runs.config_files import read_configuration
from mdgraph.runs.md import resume, start

Make = Callable[..., MDConfig]
WORDS = ("averages", "rdf", "msd", "vacf", "temperatures")


@pytest.fixture
def configured(
    tmp_path: Path, tiny_potential: Path, water_file: Path, monkeypatch: pytest.MonkeyPatch
) -> Make:
    monkeypatch.setattr(md, "draw_picture", lambda *arguments: None)

    def make(**changes: Any) -> MDConfig:
        options = {
            "structure": str(water_file),
            "potential": str(tiny_potential),
            "out": str(tmp_path / "run"),
            "device": "cpu",
            "evaluator": "reference",
            "ensemble": "nvt-bussi",
            "observe": ["averages:5", "rdf:5", "msd:5", "vacf:5", "temperatures:5"],
            "steps": 30,
            "trajectory_interval": 5,
            "log_interval": 5,
            "checkpoint_interval": 10,
            "chunk": 5,
        }
        return MDConfig(**(options | changes))

    return make


def tables(folder: Path) -> dict[str, str]:
    return {word: (folder / f"{word}.csv").read_text() for word in WORDS}


def column(table: str, name: str, **chosen: str) -> list[float]:
    names, *rows = (line.split(",") for line in table.splitlines())
    found = [dict(zip(names, row, strict=True)) for row in rows]
    return [float(row[name]) for row in found if all(row[key] == chosen[key] for key in chosen)]


@pytest.mark.usefixtures("drawn_pictures")
def test_files_hold_what_the_trajectory_shows(configured: Make, tmp_path: Path) -> None:
    start(configured())
    found, log = tables(tmp_path / "run"), read_log(tmp_path / "run" / "log.csv")
    (mean,) = column(found["averages"], "mean", quantity="temperature")
    assert mean == pytest.approx(log["temperature_K"][1:].mean(), rel=1e-9)
    with read_trajectory(tmp_path / "run" / "trajectory.h5md") as trajectory:
        frames = [*trajectory][1:]
        masses, oxygens = trajectory.masses[:, None], trajectory.numbers == 8
    centred = [one.positions - (masses * one.positions).sum(0) / masses.sum() for one in frames]
    first = [((one - centred[0])[oxygens] ** 2).sum(-1).mean() for one in centred]
    np.testing.assert_allclose(column(found["msd"], "msd_A2", element="O"), first, atol=1e-9)
    # Six samples of four atoms with one another count each pair both ways.
    assert column(found["rdf"], "distance_A", pair="O-O")[-1] == pytest.approx(2.985)
    assert sum(column(found["rdf"], "count", pair="H-O")) > 0
    for word in WORDS:
        assert (tmp_path / "run" / f"{word}.png").stat().st_size > 5000


def test_resumed_runs_record_what_whole_ones_do(configured: Make, tmp_path: Path) -> None:
    start(configured(out=str(tmp_path / "whole")))
    start(configured(steps=12))
    part = tables(tmp_path / "run")
    resume(tmp_path / "run", {"steps": 30})
    assert tables(tmp_path / "run") == tables(tmp_path / "whole") != part


def test_every_replica_has_its_own(configured: Make, tmp_path: Path) -> None:
    start(configured(replicas=2, temperatures_K="200,400", steps=20))
    means = []
    for number in range(2):
        part = tmp_path / "run" / f"replica-{number}"
        (mean,) = column(tables(part)["averages"], "mean", quantity="temperature")
        means.append(mean)
        assert mean == pytest.approx(read_log(part / "log.csv")["temperature_K"][1:].mean())
        assert not (part / "rdf.png").exists()
    assert means[0] < means[1]


def test_one_option_names_them(
    mdgraph_command: Callable[..., Finished], configured: Make, tmp_path: Path
) -> None:
    known = configured()
    shared = ["md", *(known.structure or ()), "--potential", known.potential, "--steps", 9]
    shared += ["--evaluator", "reference", "--device", "cpu"]
    done = mdgraph_command(*shared, "--observe", "vacf,msd:40", "--out", tmp_path / "run")
    assert done.status == 0, done.err
    assert len((tmp_path / "run" / "vacf.csv").read_text().splitlines()) == 1 + 2 * 2
    assert not (tmp_path / "run" / "msd.csv").exists()  # no sample within nine steps
    done = mdgraph_command(*shared, "--observe", "msd", "--ensemble", "npt", "--out", "other")
    assert done.status == 1
    assert "record it at constant volume" in done.err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rfd", "--observe is rfd; did you mean rdf?"),
        ("msd:0", "a number of steps, as in msd:100"),
        ("msd,msd:10", "msd is named twice"),
        (",", "should name some of averages, rdf, msd, vacf"),
    ],
)
def test_what_cannot_be_is_refused(text: str, said: str) -> None:
    with pytest.raises(InputError) as refused:
        read_configuration(MDConfig, None, {"observe": text})
    assert said in str(refused.value)
