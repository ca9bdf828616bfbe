"""Options and keys of earlier releases: taken with one line of warning, and not in the help."""

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mdgraph.errors import InputError
from mdgraph.runs.config import MDConfig, MinimizeConfig, RelaxConfig
from mdgraph.runs.config_files import read_configuration
from mdgraph.runs.options import given_options
from mdgraph.runs.protocol import read_protocol, run_protocol

Run = Callable[..., Any]
OLD = "ensemble: npt\nrelaxation_fs: 20\ncell_relaxation_fs: 200\ncouple: full\n"


def test_keys_of_a_file_are_taken_with_a_warning_each(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(OLD)
    with caplog.at_level(logging.WARNING, "mdgraph"):
        configuration = read_configuration(MDConfig, path, {})
    fields = (configuration.tau_fs, configuration.tau_p_fs, configuration.coupling)
    assert fields == (20.0, 200.0, "full")
    assert caplog.messages == [
        f"{path}, line {line}: {old} is now {new}; the old name goes with release 0.3.0."
        for line, (old, new) in enumerate(MDConfig.renamed.items(), 2)
        if old in OLD
    ]


@pytest.mark.parametrize("kind", [MDConfig, MinimizeConfig, RelaxConfig])
def test_options_are_taken_with_a_warning(
    kind: type[Any], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "mdgraph"):
        assert given_options({"couple": "full", "steps": None}, kind) == {"coupling": "full"}
    assert caplog.messages == ["--couple is now --coupling; the old name goes with release 0.3.0."]


def test_old_options_of_the_domain_are_taken(
    tmp_path: Path, tiny_potential: Path, water_file: Path, mdgraph_command: Run
) -> None:
    common = [water_file, "--potential", tiny_potential, "--out", tmp_path / "run", "--steps", 1]
    old = ("--no-watch", "--on-leaving", "warn", "--devices", "cpu")
    done = mdgraph_command("md", *common, *old)
    assert done.status == 0, done.err
    assert done.err.count("--watch is now --monitor-domain") == 1
    assert done.err.count("--on-leaving is now --on-extrapolation") == 1
    configuration = json.loads((tmp_path / "run" / "run.json").read_text())["configuration"]
    assert configuration["monitor_domain"] is False
    assert "watch" not in configuration


def test_the_help_names_them_by_their_new_names_alone(mdgraph_command: Run) -> None:
    text = mdgraph_command("md", "--help").out
    for old, new in MDConfig.renamed.items():
        assert f"--{new.replace('_', '-')}" in text
        assert f"--{old.replace('_', '-')} " not in text


def test_both_names_of_a_field_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("couple: full\ncoupling: axes\n")
    with pytest.raises(InputError, match="line 1: couple is the old name of coupling; give coup"):
        read_configuration(MDConfig, path)
    with pytest.raises(InputError, match="--couple is the old name of --coupling; give --coupling"):
        given_options({"couple": "full", "coupling": "axes"}, MDConfig)


def test_a_wrong_value_is_refused_by_the_new_name(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("couple: sideways\n")
    with pytest.raises(InputError, match="line 1: coupling is sideways; it should be isotropic"):
        read_configuration(RelaxConfig, path, {"structures": ("a.xyz",)})


def test_an_option_comes_before_the_old_key_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(OLD)
    assert read_configuration(MDConfig, path, {"coupling": "axes"}).coupling == "axes"


def test_a_run_with_old_names_goes_on(
    tmp_path: Path, tiny_potential: Path, water_file: Path, mdgraph_command: Run
) -> None:
    common = [water_file, "--potential", tiny_potential, "--out", tmp_path / "run"]
    done = mdgraph_command("minimise", *common, "--couple", "isotropic", "--steps", 2)
    assert done.status == 0
    assert "--couple is now --coupling" in done.err
    path = tmp_path / "run" / "run.json"
    record = json.loads(path.read_text())
    record["configuration"]["couple"] = record["configuration"].pop("coupling")
    path.write_text(json.dumps(record))
    done = mdgraph_command("minimise", "--resume", "--steps", 3, "--out", tmp_path / "run")
    assert (done.status, "is now" in done.err) == (0, False)
    assert json.loads(path.read_text())["configuration"]["coupling"] == "isotropic"


def test_a_protocol_that_was_begun_with_old_names_goes_on(
    tmp_path: Path, tiny_potential: Path, water_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file, out = tmp_path / "protocol.yaml", tmp_path / "out"
    text = f"potential: {tiny_potential}\nsteps: 2\ncheck: false\nrelaxation_fs: 20\n"
    file.write_text(f"{text}stages:\n- ensemble: nvt-bussi\n- ensemble: npt\n  couple: axes\n")
    with caplog.at_level(logging.WARNING, "mdgraph"):
        stages = read_protocol(file, str(water_file), out)
    assert [text.split(" is now")[0] for text in caplog.messages] == [
        f"{file}, line 4: relaxation_fs",
        f"{file}, line 8: couple",
    ]
    assert run_protocol(stages, out) is not None
    record = json.loads((out / "protocol.json").read_text())
    for stage in record["stages"]:
        for old, new in MDConfig.renamed.items():
            stage[old] = stage.pop(new)
    (out / "protocol.json").write_text(json.dumps(record))
    assert run_protocol(stages, out) is None
