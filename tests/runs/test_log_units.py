"""Logs with a row of units: each kind of run writes it, and all that reads logs reads these."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import Finished

from mdgraph.io.log import read_log, unit_row
from mdgraph.runs.protocol import read_protocol, run_protocol

Command = Callable[..., Finished]


def units_of(log: Path) -> str:
    names, units, *_ = log.read_text(encoding="ascii").splitlines()
    assert units == unit_row(names.split(","))
    return units


@pytest.fixture
def options(tiny_potential: Path, water_file: Path) -> tuple[object, ...]:
    return (
        *(water_file, "--potential", tiny_potential, "--evaluator", "reference"),
        *("--log-interval", 2, "--trajectory-interval", 2, "--device", "cpu"),
    )


def test_a_run_goes_on_and_its_files_are_those_without(
    mdgraph_command: Command, options: tuple[object, ...], tmp_path: Path
) -> None:
    for word, flags in (("with", ["--log-units"]), ("without", [])):
        out = tmp_path / word
        done = mdgraph_command("md", *options, *flags, "--steps", 8, "--out", out)
        assert done.status == 0, done.err
        done = mdgraph_command("md", "--resume", "--extend-ps", 0.002, "--out", out)
        assert done.status == 0, done.err
        assert f"mean temperature {read_log(out / 'log.csv')['temperature_K'].mean():.1f}" in (
            done.out
        )
    logs = [tmp_path / word / "log.csv" for word in ("with", "without")]
    units_of(logs[0])
    lines = [log.read_text().splitlines() for log in logs]
    del lines[0][1]
    assert len(lines[1]) == 1 + 7
    for line, other in zip(*lines, strict=True):
        assert line.split(",")[:6] == other.split(",")[:6]  # the seventh is the speed
    # The picture of the run and its analysis read the log too.
    assert (tmp_path / "with" / "picture.png").stat().st_size > 0
    done = mdgraph_command("analyse", tmp_path / "with", "--out", tmp_path / "analysis")
    assert done.status == 0, done.err
    done = mdgraph_command("md", "--resume", "--no-log-units", "--out", tmp_path / "with")
    assert done.status == 1
    assert "--resume takes --log-units from run.json" in done.err


def test_replicas_and_minimisations_have_it(
    mdgraph_command: Command, options: tuple[object, ...], tmp_path: Path
) -> None:
    flags = (*options, "--log-units", "--steps", 4)
    done = mdgraph_command("md", *flags, "--replicas", 2, "--out", tmp_path / "md")
    assert done.status == 0, done.err
    done = mdgraph_command("minimise", *flags, "--out", tmp_path / "minimum")
    assert done.status == 0, done.err
    for folder in ("md/replica-0", "md/replica-1", "minimum"):
        assert units_of(tmp_path / folder / "log.csv").startswith("-,ps,eV,eV,eV,K,ns/day")
    again = mdgraph_command("md", "--from", tmp_path / "md", "--out", tmp_path / "next")
    assert again.status == 0, again.err
    assert units_of(tmp_path / "next" / "replica-1" / "log.csv")


def test_stages_have_it_and_other_programs_skip_it(
    tiny_potential: Path, water_file: Path, tmp_path: Path
) -> None:
    path = tmp_path / "stages.yaml"
    path.write_text(
        f"potential: {tiny_potential}\nevaluator: reference\nlog_interval: 2\nlog_units: true\n"
        "stages:\n- {run: minimise, steps: 4}\n- {ensemble: nve, steps: 4, log_units: false}\n"
        "- {ensemble: nvt-bussi, steps: 4}\n"
    )
    run_protocol(read_protocol(path, str(water_file), tmp_path / "out"), tmp_path / "out")
    logs = [path / "log.csv" for path in sorted((tmp_path / "out").glob("0*"))]
    assert [log.read_text().splitlines()[1][0] for log in logs] == ["-", "0", "-"]
    units_of(logs[2])
    # What the documents say of NumPy.
    table = np.genfromtxt(logs[2], delimiter=",", names=True)[1:]
    for name, column in read_log(logs[2]).items():
        np.testing.assert_array_equal(table[name], column)
