"""`mdgraph example`: what it writes is whole, valid, and runs."""

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer.main
from repository import ROOT

from mdgraph import shipped
from mdgraph.cli import app
from mdgraph.errors import FileError
from mdgraph.io.structures import read_systems
from mdgraph.runs.config import MDConfig
from mdgraph.runs.config_files import read_configuration
from mdgraph.runs.protocol import read_protocol
from mdgraph.selection import select_atoms
from mdgraph.shipped import EXAMPLES, shipped_potentials, write_example

Command = Callable[..., Any]


def test_examples_are_listed_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mdgraph_command: Command
) -> None:
    monkeypatch.chdir(tmp_path)
    listed = mdgraph_command("example").out.splitlines()
    assert [line.partition(":")[0] for line in listed[:-1]] == list(EXAMPLES)
    written = mdgraph_command("example", "water")
    assert "written to water/" in written.out
    assert {path.name for path in Path("water").iterdir()} == set(EXAMPLES["water"].files)
    assert all(f"  {command}\n" in written.out for command in EXAMPLES["water"].commands)


def test_nothing_is_replaced_unless_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mdgraph_command: Command
) -> None:
    monkeypatch.chdir(tmp_path)
    mine = tmp_path / "own" / "npt.yaml"
    mine.parent.mkdir()
    mine.write_text("mine")
    refused = mdgraph_command("example", "silicon", "--out", "own")
    assert refused.status == 1
    assert "own/npt.yaml exists already; replace it with --overwrite" in refused.err
    assert [path.name for path in mine.parent.iterdir()] == ["npt.yaml"]
    assert mine.read_text() == "mine"
    assert mdgraph_command("example", "silicon", "--out", "own", "--overwrite").status == 0
    assert "silicon-pbe" in mine.read_text()


def test_what_is_no_example_is_refused(mdgraph_command: Command, tmp_path: Path) -> None:
    refused = mdgraph_command("example", "watr", "--out", tmp_path / "new")
    assert refused.status == 1
    assert refused.err.endswith("There is no example 'watr'; did you mean water?\n")
    assert not (tmp_path / "new").exists()
    (tmp_path / "file").write_text("")
    assert mdgraph_command("example", "water", "--out", tmp_path / "file").status == 1


@pytest.mark.parametrize("name", EXAMPLES)
def test_each_example_is_valid(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    files = write_example(name, tmp_path)
    structures = {path.name: read_systems(path) for path in files if path.suffix in STRUCTURES}
    unread = {path.name for path in files if path.suffix == ".yaml"}
    for command in EXAMPLES[name].commands:
        program, subcommand, *words = shlex.split(command)
        if program == "python":
            assert (tmp_path / subcommand).is_file()
            continue
        typer.main.get_command(app).commands[subcommand].make_context(subcommand, list(words))
        read = {word for word in words if word.endswith(".yaml")}
        unread -= read
        if subcommand == "md":
            (config,) = (read_configuration(MDConfig, Path(file)) for file in read)
            needed = EXAMPLES[name].summary.rpartition(" needs ")[2]
            assert config.potential in (*shipped_potentials(), needed)
            if config.fix is not None:
                (system,) = structures[words[0]]
                assert 0 < len(select_atoms(config.fix, system)) < len(system)
        if subcommand == "protocol":
            assert len(read_protocol(Path(words[0]), words[1], tmp_path / "out")) > 2
    assert not unread


STRUCTURES = {".extxyz", ".pdb"}


def test_an_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mdgraph_command: Command
) -> None:
    monkeypatch.chdir(tmp_path)
    write_example("slab", tmp_path)
    options = shlex.split(EXAMPLES["slab"].commands[0])[1:]
    short = ("--steps", 2, "--evaluator", "reference", "--device", "cpu")
    done = mdgraph_command(*options, *short)
    assert done.status == 0, done.err
    assert (tmp_path / "md" / "trajectory.h5md").exists()


def test_every_script_and_file_of_options_is_in_an_example() -> None:
    sources = {source for example in EXAMPLES.values() for source in example.files.values()}
    own = [path for path in (ROOT / "examples").rglob("*") if path.parent.name != "__pycache__"]
    assert {path.relative_to(ROOT).as_posix() for path in own if path.is_file()} <= sources


def test_an_installed_package_has_the_files_within(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site-packages" / "mdgraph"
    monkeypatch.setattr(shipped, "_PACKAGE", package)
    with pytest.raises(FileError, match=r"data/water27.extxyz is missing from this installation"):
        write_example("frames", tmp_path / "out")
    (package / "examples" / "data").mkdir(parents=True)
    (package / "examples" / "data" / "water27.extxyz").write_text("sample")
    (written,) = write_example("frames", tmp_path / "out")
    assert written.read_text() == "sample"
