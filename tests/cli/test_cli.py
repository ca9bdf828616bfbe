"""The command line: options, files of options, and what each command prints and writes."""

import errno
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
import pytest
import typer.main
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator

import mdgraph
from mdgraph.checkpoints import load, shipped_potentials
from mdgraph.engine import Calculation
from mdgraph.errors import FileError, InputError, MDGraphError
from mdgraph.io.commented_yaml import is_nested
from mdgraph.io.files import replacing, write_atomically
from mdgraph.io.formats import read_trajectory
from mdgraph.io.structures import read_system
from mdgraph.runs import evaluation
from mdgraph.runs.commands.app import app
from mdgraph.runs.config import (
    BenchConfig,
    Configuration,
    EvalConfig,
    MDConfig,
    MinimizeConfig,
    RelaxConfig,
)
from mdgraph.runs.config_fields import ELSEWHERE
from mdgraph.runs.config_files import read_configuration
from mdgraph.runs.folder import RunDirectory
from mdgraph.runs.training import read_training

Command = Callable[..., Any]


@pytest.mark.parametrize(
    ("command", "pieces"),
    [("md", ":1024:1"), ("validate", ":1024:1"), ("train", None), ("distil", None)],
)
def test_commands_that_evaluate_keep_workspaces_small(
    mdgraph_command: Command, monkeypatch: pytest.MonkeyPatch, command: str, pieces: str | None
) -> None:
    """Those that train need larger ones, and set them where they begin."""
    name = "CUBLAS_WORKSPACE_CONFIG"
    monkeypatch.delenv(name, raising=False)
    assert mdgraph_command(command, "--help").status == 0
    assert os.environ.get(name) == pieces
    monkeypatch.setenv(name, ":16:8")
    assert mdgraph_command(command, "--help").status == 0
    assert os.environ[name] == ":16:8"


def test_help_and_version_do_not_import_torch() -> None:
    code = """
import sys
from mdgraph.cli import main
sys.argv = ["mdgraph", *sys.argv[1:]]
try:
    main()
finally:
    heavy = {"torch", "ase", "matplotlib", "h5py"} & set(sys.modules)
    assert not heavy, heavy
"""
    for option in ("--help", "--version"):
        done = subprocess.run(
            [sys.executable, "-c", code, option],
            capture_output=True,
            text=True,
            check=True,
            cwd=Path(mdgraph.__file__).parent.parent,
        )
        assert ("Usage: mdgraph" in done.stdout) == (option == "--help")
    assert done.stdout == f"mdgraph {mdgraph.__version__}\n"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("md", MDConfig),
        ("minimise", MinimizeConfig),
        ("eval", EvalConfig),
        ("relax", RelaxConfig),
        ("bench", BenchConfig),
    ],
)
def test_every_field_has_a_description_and_an_option(
    name: str, kind: type[Configuration], mdgraph_command: Command
) -> None:
    printed = mdgraph_command(name, "--help").out
    for field, about in kind.model_fields.items():
        assert about.description, field
        if field not in kind.arguments and not is_nested(about.annotation):
            option = kind.flags.get(field, field).replace("_", "-")
            assert f"--{option} " in printed


@pytest.mark.parametrize(
    "typed", ["", "md", "relax", "data", "data convert", "train", "train init", "protocol"]
)
def test_h_is_help(mdgraph_command: Command, typed: str) -> None:
    short, long = (mdgraph_command(*typed.split(), word) for word in ("-h", "--help"))
    assert short.status == 0
    assert short.out == long.out
    assert "-h, --help" in short.out


def test_help_shows_commands_by_what_they_are_for(mdgraph_command: Command) -> None:
    text = mdgraph_command("--help").out
    sections = re.findall(r"^(\w[\w ]*):\n((?:[ ].*\n)*)", text, re.MULTILINE)
    assert sections.pop(0)[0] == "Options"
    words = {name: re.findall(r"^  ([\w-]+)", body, re.MULTILINE) for name, body in sections}
    assert list(words)[:2] == ["Simulate", "Look at results"]
    assert words["Simulate"][0] == "md"
    assert words["Look at results"] == ["analyse", "free-energy", "trajectory"]
    assert "train" in words["Train potentials"]
    listed = [word for group in words.values() for word in group]
    group = typer.main.get_command(app)
    assert sorted(listed) == sorted(
        name for name, command in group.commands.items() if not command.hidden
    )
    assert "..." not in text.partition("Simulate")[2]


def test_other_programs_words_name_options_that_there_are() -> None:
    group = typer.main.get_command(app)
    commands = [group, *group.commands.values()]
    known = {
        flag.strip("-").replace("-", "_")
        for command in commands
        for parameter in command.params
        if not getattr(parameter, "hidden", False)
        for flag in parameter.opts
    }
    assert set(ELSEWHERE) <= known | set(group.commands)
    for name, words in ELSEWHERE.items():
        assert not {name.casefold(), name} & set(words.split())


def test_help_shows_common_options_first_and_all_by_group(mdgraph_command: Command) -> None:
    text = mdgraph_command("md", "--help").out
    sections = dict(re.findall(r"^(\w[\w ]*):\n((?:[ ].*\n|\n(?=[ ]))*)", text, re.MULTILINE))
    names = ["Structure", "Potential", "Ensemble and length", "Variables and biases"]
    last = ["Output", "Speed", "Safety"]
    assert list(sections) == ["Arguments", "Common options", *names, *last]
    words = {
        name: re.findall(r"^  --([\w-]+)", body, re.MULTILINE) for name, body in sections.items()
    }
    assert len(words["Common options"]) == 10
    assert {"resume", "temperature-K", "pressure-bar", "out"} <= set(words["Common options"])
    assert {"steps", "friction-per-ps", "seed"} <= set(words["Ensemble and length"])
    assert {"check", "maximum-temperature-K"} <= set(words["Safety"])
    options = {MDConfig.flags.get(name, name) for name in MDConfig.model_fields}
    fields = {name.replace("_", "-") for name in options} - {"structure", "variables", "biases"}
    assert fields == {word for body in words.values() for word in body} - {
        *("config", "from", "resume", "resume-or-start", "until-ps", "extend-ps", "devices")
    }


@pytest.mark.parametrize("key", ["time_ps", "time-ps"])
def test_dashes_and_underscores_are_alike(
    tmp_path: Path, mdgraph_command: Command, key: str
) -> None:
    done = mdgraph_command("md", f"--{key}", "x")
    assert "--time-ps is x; it should be a valid number." in done.err
    path = tmp_path / "run.yaml"
    path.write_text(f"{key}: 0.25\n")
    assert read_configuration(MDConfig, path).time_ps == 0.25
    path.write_text(f"{key}: 0.25\ntime_ps: 1\n")
    with pytest.raises(InputError, match="line 2: time_ps is given twice; remove one of them"):
        read_configuration(MDConfig, path)
    path.write_text("data: a.h5\nout: out\nsteps: 1\npotential: {radial-basis: {number: 9}}\n")
    assert read_training(path, {"learning_rate": 0.5}).potential.radial_basis.number == 9


@pytest.mark.parametrize(
    ("typed", "sentence"),
    [
        ("md --precision foo", "--precision is foo; it should be 'mixed', 'single', 'double' or "),
        ("md --graph foo", "--graph is foo; it should be 'auto', 'on' or 'off'."),
        ("md --evaluator x", "--evaluator is x; it should be 'auto', 'fused' or 'reference'."),
        ("eval --layout x", "--layout is x; it should be 'auto', 'before-3.0' or '3.0'."),
        ("minimise --trajectory pdb", "--trajectory is pdb; it should be 'h5md' or 'extxyz'."),
        ("md --ensemble x", "--ensemble is x; choose nve, "),
        ("md --steps-per-replay x", "--steps-per-replay is x; it should be a valid integer."),
        ("md --steps-per-replay 3", "--steps-per-replay is 3; choose among 1, 2, 4, 8, 16, 32."),
        ("minimise --steps-per-replay 64", "--steps-per-replay is 64; choose among 1, 2, 4, 8, "),
        ("md --graph off --steps-per-replay 8", "--steps-per-replay belongs to graphs, and graph "),
        (
            "md --hydrogen-mass-amu 0.1",
            "--hydrogen-mass-amu is 0.1; it should be greater than or equal to 1.008.",
        ),
        ("md --steps abc", "--steps is abc; it should be a valid integer."),
        ("relax f.xyz --steps 1e12", "--steps is 1e12; it should be a valid integer."),
        ("bench --atoms x", "--atoms is x; it should be a valid integer."),
        ("md --seed x", "--seed is x; it should be a valid integer."),
        ("md --seed -1", "--seed is -1; it should be greater than or equal to 0."),
        ("md --timestep-fs fast", "--timestep-fs is fast; it should be a valid number."),
        ("md --timestep-fs 500", "--timestep-fs is 500; it should be less than or equal to 20."),
        ("convert a b --layout x", "--layout: 'x' is not one of 'auto', 'before-3.0', '3.0'; see"),
        ("export a b --precision x", "--precision: 'x' is not one of 'mixed', 'single', 'double'"),
        ("data split a b --method x", "--method: 'x' is not one of 'random', 'group', "),
        ("data split a b --blocks 3", "--blocks belongs to the method blocks, and the method is"),
        (
            "data split a b --method blocks --test-file x",
            "--test-file belongs to the method file, and",
        ),
        ("data check a --near -1", "--near: it should be greater than or equal to 0"),
        ("data convert a b --missing x", "--missing: 'x' is not one of 'refuse', 'drop', 'keep'"),
        ("train x.yaml --steps x", "see mdgraph train --help."),
        ("md --nothing", "No such option: --nothing"),
        ("md --nothing", "No such option: --nothing; see mdgraph md --help."),
        ("md -n 1", "No such option: -n; see mdgraph md --help."),
        ("md --step 5", "No such option: --step; did you mean --steps?"),
        ("protocol --resume --out a", "--resume; leave it out: the same command continues where"),
        ("md --wach", "No such option: --wach; see mdgraph md --help."),
        ("md --dt 1", "No such option: --dt; did you mean --timestep-fs?"),
        ("trajectory a b --dt 1", "No such option: --dt; did you mean --stride?"),
        ("data check --dt 1", "No such option: --dt; see mdgraph data check --help."),
        ("md --nsteps=9", "No such option: --nsteps; did you mean --steps?"),
        ("md --temp 9", "No such option: --temp; did you mean --temperature-K?"),
        ("md --ff amber", "No such option: --ff; did you mean --potential?"),
        ("md --timestep 1", "No such option: --timestep; did you mean --timestep-fs?"),
        ("md --tau_t 1", "No such option: --tau-t; did you mean --tau-fs?"),
        ("md --input a.pdb", "No such option: --input; give the structure itself, without an opt"),
        ("bench --potential x", "No such option: --potential; give the potential itself, without"),
        ("relax a --fmax 0.1", "No such option: --fmax; did you mean --force-tolerance-eV-per-A?"),
        ("md --seed", "'--seed' requires an argument"),
        ("config", "mdgraph config needs a COMMAND; choose from md, minimise, eval, relax, "),
        ("inspect", "Missing argument 'PATH'; see mdgraph inspect --help."),
        ("polish", "No such command 'polish'; see mdgraph --help."),
        ("simulate", "No such command 'simulate'; did you mean mdgraph md?"),
        ("analyze", "No such command 'analyze'; did you mean mdgraph analyse?"),
        ("minimze", "No such command 'minimze'; did you mean mdgraph minimise?"),
        ("data chek", "No such command 'chek'; did you mean mdgraph data check?"),
        (
            "md --resume --seed 1",
            "--resume takes --seed from run.json; leave it out, or begin another",
        ),
    ],
)
def test_wrong_commands_and_options_end_in_one_sentence(
    mdgraph_command: Command, typed: str, sentence: str
) -> None:
    done = mdgraph_command(*typed.split())
    assert (done.status, done.out) == (1, "")
    assert done.err.startswith("mdgraph: error: ")
    assert sentence in done.err
    assert done.err.count("\n") == 1


def test_a_group_of_commands_prints_its_help(mdgraph_command: Command) -> None:
    for group in ([], ["data"]):
        done = mdgraph_command(*group)
        assert "Usage: mdgraph" in done.out + done.err


class TestConfigurationFiles:
    def read(self, folder: Path, text: str, **options: Any) -> MDConfig:
        path = folder / "run.yaml"
        path.write_text(text)
        return read_configuration(MDConfig, path, options)

    def test_are_read(self, tmp_path: Path) -> None:
        read = self.read(tmp_path, "timestep_fs: 1e-1\nensemble: nve\n# nothing\nsteps: 3\n")
        assert (read.timestep_fs, read.ensemble, read.steps) == (0.1, "nve", 3)
        assert self.read(tmp_path, "") == MDConfig()

    def test_options_come_before_them(self, tmp_path: Path) -> None:
        assert self.read(tmp_path, "seed: 3", seed=4).seed == 4
        read = self.read(tmp_path, "time_ps: 1.0", steps=7)
        assert (read.steps, read.time_ps, read.total_steps) == (7, None, 7)
        assert self.read(tmp_path, "steps: 5", time_ps=0.001).total_steps == 2

    @pytest.mark.parametrize(
        ("text", "sentence"),
        [
            ("a: 1", r"line 1: unknown key a; choose among potential, "),
            ("seed: 1\ndt: 1", "line 2: unknown key dt; did you mean timestep_fs?"),
            ("ref-t: 1", "line 1: unknown key ref-t; did you mean temperature_K?"),
            ("seed: 1\ntemprature_K: 3", "line 2: unknown key temprature_K; did you mean temperat"),
            ("temperature-k: 3", "line 1: unknown key temperature-k; did you mean temperature_K?"),
            ("seed: 1\nseed: 2", "line 2: seed is given twice"),
            ("\n\ntimestep_fs: fast", "line 3: timestep_fs is fast; it should be a valid number"),
            ("timestep_fs: -0.5", "line 1: timestep_fs is -0.5; it should be greater than 0"),
            ("temperature_K: .nan", "line 1: temperature_K is nan; it should be a finite number"),
            ("ensemble: npx", "line 1: ensemble is npx; did you mean npt?"),
            (
                "ensemble: nvt",
                "ensemble is nvt; choose nvt-langevin, nvt-bussi or nvt-nose-hoover.",
            ),
            ("steps: 1.5", "line 1: steps is 1.5; it should be a valid integer"),
            ("steps: 1\ntime_ps: 1", "steps and time_ps both give the length"),
            ("a: b: c", "line 1: this is not YAML"),
            ("seed: [1", "this is not YAML"),
            ("- seed", "run.yaml holds no options"),
            ("seed: !!python/object/apply:os.abort []", "this is not YAML"),
        ],
    )
    def test_are_refused_in_a_sentence(self, tmp_path: Path, text: str, sentence: str) -> None:
        with pytest.raises(MDGraphError) as caught:
            self.read(tmp_path, text)
        assert sentence in str(caught.value)
        assert str(caught.value).count("\n") == 0
        assert str(caught.value).endswith((".", "?"))

    def test_that_are_no_text(self, tmp_path: Path) -> None:
        (tmp_path / "run.yaml").write_bytes(b"seed: \x80\x81")
        with pytest.raises(FileError, match="not YAML"):
            read_configuration(MDConfig, tmp_path / "run.yaml")

    def test_wrong_options_are_named_as_options(self) -> None:
        with pytest.raises(InputError, match=r"^--timestep-fs is -1\.0; it should be greater"):
            read_configuration(MDConfig, None, {"timestep_fs": -1.0})

    def test_the_example_is_one(self) -> None:
        example = Path(mdgraph.__file__).parent.parent / "examples" / "water_md.yaml"
        assert read_configuration(MDConfig, example).potential == "water-pbe0"


class TestMD:
    @pytest.mark.usefixtures("drawn_pictures")
    def test_runs_and_says_where_things_are(
        self, mdgraph_command: Command, tmp_path: Path, tiny_potential: Path, water_file: Path
    ) -> None:
        (tmp_path / "run.yaml").write_text(
            f"potential: {tiny_potential}\nsteps: 50\nexact_temperature: true\nseed: 7\n"
        )
        options = ["--config", tmp_path / "run.yaml", "--out", tmp_path / "run", "--steps", 4]
        done = mdgraph_command("md", water_file, *options, "--no-exact-temperature")
        assert done.status == 0, done.err
        assert "0.002 ps simulated (4 of 4 steps)" in done.out
        assert f"are in {tmp_path / 'run'}/" in done.out
        assert "mdgraph: H4 O2, charge 0 e, with tiny" in done.err
        kept = RunDirectory(tmp_path / "run").read_record()["configuration"]
        assert (kept["steps"], kept["seed"], kept["exact_temperature"]) == (4, 7, False)
        more = mdgraph_command("md", "--resume", "--out", tmp_path / "run", "--steps", 6)
        assert (more.status, "(6 of 6 steps)" in more.out) == (0, True)
        again = mdgraph_command("md", "--resume", "--out", tmp_path / "run")
        assert (again.status, "(6 of 6 steps), mean" in again.out) == (0, True)
        assert "All 6 steps are done." in again.err
        assert f"To continue: mdgraph md --resume --out {tmp_path / 'run'} --extend-ps" in again.out

    def test_until_ps_is_of_the_whole_run_and_may_be_repeated(
        self, mdgraph_command: Command, tmp_path: Path, tiny_potential: Path, water_file: Path
    ) -> None:
        out = ["--out", tmp_path / "run"]
        file = tmp_path / "run.yaml"
        file.write_text(f"potential: {tiny_potential}\ntime_ps: 5\n")
        done = mdgraph_command("md", water_file, "--config", file, *out, "--time-ps", 0.002)
        assert (done.status, "(4 of 4 steps)" in done.out) == (0, True), done.err
        for _ in range(2):
            done = mdgraph_command("md", "--resume", *out, "--until-ps", 0.003)
            assert (done.status, "(6 of 6 steps)" in done.out) == (0, True), done.err
        assert "All 6 steps are done" in done.err
        kept = RunDirectory(tmp_path / "run").read_record()["configuration"]
        assert (kept["steps"], kept["time_ps"]) == (6, None)
        for option in ("--steps", "--time-ps"):
            done = mdgraph_command("md", "--resume", *out, "--until-ps", 1, option, 9)
            assert done.status == 1
            words = f"{option} and --until-ps both give the length of the run; give one."
            assert words in done.err
        done = mdgraph_command("md", "--resume", *out, "--until-ps", 0.002)
        assert "has done 6 steps already, which is more than 4" in done.err
        done = mdgraph_command("md", "--resume", *out, "--time-ps", 0.004)
        assert (done.status, "(8 of 8 steps)" in done.out) == (0, True), done.err
        assert done.err.count("--time-ps with --resume is now --until-ps") == 1

    def test_extend_ps_adds_to_a_finished_run(
        self, mdgraph_command: Command, tmp_path: Path, tiny_potential: Path, water_file: Path
    ) -> None:
        out, potential = ["--out", tmp_path / "run"], ["--potential", tiny_potential]
        done = mdgraph_command("md", water_file, *potential, *out, "--time-ps", 0.002)
        for total in (6, 8):
            done = mdgraph_command("md", "--resume", *out, "--extend-ps", 0.001)
            assert (done.status, f"({total} of {total} steps)" in done.out) == (0, True), done.err
        whole = tmp_path / "whole"
        mdgraph_command("md", water_file, *potential, "--out", whole, "--time-ps", 0.004)
        ends = [RunDirectory(folder).end.read_text() for folder in (whole, tmp_path / "run")]
        assert ends[0] == ends[1]
        for length, words in (
            (1e-9, "--extend-ps is 1e-09, which is 2e-06 time steps of 0.5 fs; give from 1"),
            ("inf", "--extend-ps is inf, which is inf time steps"),
            ("nan", "--extend-ps: it should be greater than or equal to 0"),
            (-1, "--extend-ps: it should be greater than or equal to 0"),
        ):
            done = mdgraph_command("md", "--resume", *out, "--extend-ps", length)
            assert (done.status != 0, words in done.err) == (True, True), done.err
        assert RunDirectory(tmp_path / "run").end.read_text() == ends[1]

    def test_extend_ps_is_refused_on_an_unfinished_run(
        self, mdgraph_command: Command, tmp_path: Path, tiny_potential: Path, water_file: Path
    ) -> None:
        out = ["--out", tmp_path / "run"]
        options = ["--potential", tiny_potential, "--steps", 20, "--chunk", 8]
        done = mdgraph_command("md", water_file, *options, *out, "--max-hours", 1e-9)
        assert (done.status, "(8 of 20 steps)" in done.out) == (75, True), done.err
        before = RunDirectory(tmp_path / "run").record.read_text()
        done = mdgraph_command("md", "--resume", *out, "--extend-ps", 0.001)
        assert done.status == 1
        words = "has 0.006 of 0.01 ps left, and --extend-ps adds to a run that is finished; "
        assert words + "continue with --resume alone." in done.err
        assert RunDirectory(tmp_path / "run").record.read_text() == before
        done = mdgraph_command("md", "--resume", *out, "--max-hours", 1)
        assert (done.status, "(20 of 20 steps)" in done.out) == (0, True), done.err

    @pytest.mark.parametrize("option", ["--until-ps", "--extend-ps"])
    @pytest.mark.parametrize("mode", [[], ["--resume-or-start"]], ids=str)
    def test_lengths_of_resumed_runs_need_resume(
        self, mdgraph_command: Command, option: str, mode: list[str]
    ) -> None:
        done = mdgraph_command("md", option, 1, *mode)
        words = f"{option} belongs to --resume; give the length of a run from its start with --time"
        assert (done.status, words in done.err) == (1, True)

    def test_starts_from_a_frame_of_another_run_with_its_velocities_and_names(
        self, mdgraph_command: Command, tmp_path: Path, tiny_potential: Path, water_file: Path
    ) -> None:
        potential, run = ["--potential", tiny_potential], tmp_path / "run"
        options = ["--steps", 6, "--trajectory-interval", 2, "--out", run]
        done = mdgraph_command("md", water_file, *potential, *options)
        assert f"To continue: mdgraph md --resume --out {run} --extend-ps 0.003\n" in done.out
        line = f"New conditions: mdgraph md --from {run} --temperature-K 350 --out {run}-2\n"
        assert line in done.out
        with read_trajectory(run / "trajectory.h5md") as trajectory:
            frames = list(trajectory)
        for frame, extra, words in (
            ("-1", [], "the last frame of"),
            ("1", ["--fix", "resname HOH and not index 0:2"], "frame 1 of"),
            ("-2", ["--new-velocities"], "frame -2 of"),
        ):
            out = tmp_path / f"from{frame}"
            structure = f"{run / 'trajectory.h5md'}@{frame}"
            command = ["md", structure, *potential, "--steps", 0, "--out", out, *extra]
            done = mdgraph_command(*command)
            assert done.status == 0, done.err
            whose = "new" if extra[:1] == ["--new-velocities"] else "its"
            assert f"The run starts from {words} {structure[: -len(frame) - 1]}, with {whose}" in (
                done.err
            )
            with read_trajectory(out / "trajectory.h5md") as trajectory:
                start = trajectory[0]
            expected = frames[int(frame)]
            np.testing.assert_array_equal(start.positions, expected.positions)
            if not extra:
                np.testing.assert_array_equal(start.velocities, expected.velocities)
            else:
                assert (start.velocities != expected.velocities).any()
        done = mdgraph_command("md", f"{run / 'trajectory.h5md'}@4", *potential)
        assert done.status == 1
        assert "holds no frame at index 4; it holds 4 frames, 0 to 3 or -4 to -1." in done.err
        done = mdgraph_command("minimise", f"{run / 'end.extxyz'}@0", *potential, "--steps", 1)
        assert "The run starts from frame 0 of" in done.err
        assert "velocities" not in done.err

    def test_resume_or_start_takes_the_same_command_again_and_no_other(
        self, mdgraph_command: Command, tmp_path: Path, tiny_potential: Path, water_file: Path
    ) -> None:
        (tmp_path / "run.yaml").write_text(f"potential: {tiny_potential}\nevaluator: auto\n")
        again = ["md", water_file, "--config", tmp_path / "run.yaml", "--out", tmp_path / "run"]
        again += ["--temperature-K", 310, "--log-interval-ps", 0.001, "--resume-or-start"]
        done = mdgraph_command(*again, "--time-ps", 0.002)
        assert (done.status, "(4 of 4 steps)" in done.out) == (0, True), done.err
        done = mdgraph_command(*again, "--steps", 6)
        assert (done.status, "(6 of 6 steps)" in done.out) == (0, True), done.err
        assert "Continuing from step 4 of 6." in done.err
        done = mdgraph_command(*again)
        assert (done.status, "All 6 steps are done" in done.err) == (0, True)
        before = {path: path.read_bytes() for path in (tmp_path / "run").iterdir()}
        for option, value, words in (
            ("--temperature-K", 320, "temperature_K 310.0, now it is 320.0"),
            ("--seed", 5, "seed 0, now it is 5"),
            ("--log-interval-ps", 0.002, "log_interval 2, now it is 4"),
        ):
            done = mdgraph_command(*again, option, value)
            assert done.status == 1
            assert f"{tmp_path / 'run'} was begun with {words}; put that back" in done.err
        done = mdgraph_command("md", "--resume", "--resume-or-start", "--out", tmp_path / "run")
        assert (done.status, "give one" in done.err) == (1, True)
        assert before == {path: path.read_bytes() for path in (tmp_path / "run").iterdir()}

    def test_resuming_takes_no_other_options(self, mdgraph_command: Command) -> None:
        done = mdgraph_command("md", "--resume", "--seed", 1, "--config", "run.yaml")
        assert done.status == 1
        assert "--resume takes --seed, --config from run.json" in done.err

    def test_without_arguments_begins_where_the_potential_says(
        self, mdgraph_command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        done = mdgraph_command("md", "--steps", 1)
        assert done.status == 0, done.err
        assert "mdgraph: H128 O64, charge 0 e, with water-pbe0 (PBE0+TS)" in done.err
        start = read_system(shipped_potentials()["water-pbe0"] / "start.extxyz")
        began = read_system(tmp_path / "mdgraph-run" / "start.extxyz")
        assert start.velocities is not None
        assert began.velocities is not None
        np.testing.assert_allclose(began.velocities, start.velocities, rtol=1e-12)


class TestEval:
    def test_of_many_frames(
        self, mdgraph_command: Command, tmp_path: Path, tiny_potential: Path, water_file: Path
    ) -> None:
        periodic = ase.io.read(water_file)
        molecule = periodic[:3]
        molecule.cell, molecule.pbc = None, False
        ase.io.write(tmp_path / "frames.extxyz", [periodic, molecule])
        options = ["--potential", tiny_potential, "--precision", "double", "--device", "cpu"]
        out = tmp_path / "results.extxyz"
        files = [tmp_path / "frames.extxyz", water_file]
        done = mdgraph_command("eval", *files, *options, "--out", out)
        assert done.status == 0, done.err
        assert done.out == f"3 frames written to {out}\n"
        results = ase.io.read(out, ":")
        assert len(results) == 3
        for result, given in zip(results, [periodic, molecule, periodic], strict=True):
            system = read_system(water_file).replace(
                numbers=given.numbers,
                positions=given.positions,
                cell=given.cell.array,
                pbc=given.pbc,
                masses=None,
            )
            calculation = Calculation(
                [system], load(tiny_potential), device="cpu", precision="double", skin=0.0
            )
            calculation.compute()
            state = calculation.state
            # Frames share batches, whose number of atoms decides how matrix products are summed.
            near = {"rtol": 1e-12, "atol": 1e-13}
            np.testing.assert_allclose(result.get_potential_energy(), float(state.energy), **near)
            np.testing.assert_allclose(result.get_forces(), state.forces, **near)
            np.testing.assert_allclose(result.get_potential_energies(), state.energies, **near)
            assert result.info["charge"] == 0.0
            if given.pbc.all():
                stress = -state.virial[0].numpy() / given.get_volume()
                np.testing.assert_allclose(result.get_stress(voigt=False), stress, atol=1e-14)
            else:
                assert "stress" not in result.calc.results

    def test_does_not_replace_a_file_unasked(
        self, mdgraph_command: Command, tmp_path: Path, tiny_potential: Path, water_file: Path
    ) -> None:
        out = tmp_path / "results.extxyz"
        out.write_text("years of work")
        arguments = ["eval", water_file, "--potential", tiny_potential, "--out", out]
        done = mdgraph_command(*arguments)
        assert done.status == 1
        assert "exists already; continue where it ends with --resume, replace it with" in done.err
        assert out.read_text() == "years of work"
        assert mdgraph_command(*arguments, "--overwrite").status == 0
        assert len(ase.io.read(out)) == 6

    @pytest.mark.parametrize("error", [KeyboardInterrupt, InputError("wrong")])
    def test_interrupted_at_the_first_frame_leaves_what_was_there(
        self,
        tmp_path: Path,
        tiny_potential: Path,
        water_file: Path,
        monkeypatch: pytest.MonkeyPatch,
        error: Any,
    ) -> None:
        out = tmp_path / "results.extxyz"
        out.write_text("years of work")

        def fail(*arguments: Any) -> Any:
            raise error

        monkeypatch.setattr(evaluation, "_result_block", fail)
        configuration = EvalConfig(
            structures=(str(water_file), str(water_file)),
            potential=str(tiny_potential),
            out=str(out),
            overwrite=True,
        )
        with pytest.raises((KeyboardInterrupt, InputError)):
            evaluation.evaluate(configuration)
        assert out.read_text() == "years of work"
        assert list(tmp_path.iterdir()) == [out]

    def test_names_the_frame_that_cannot_be(
        self, mdgraph_command: Command, tmp_path: Path, tiny_potential: Path, water_file: Path
    ) -> None:
        wrong = ase.io.read(water_file)
        wrong.symbols[2] = "F"
        ase.io.write(tmp_path / "frames.extxyz", [ase.io.read(water_file), wrong])
        out = tmp_path / "results.extxyz"
        options = ["--potential", tiny_potential, "--out", out]
        done = mdgraph_command("eval", tmp_path / "frames.extxyz", *options)
        assert done.status == 1
        assert "frames.extxyz, frame 1: The potential does not know F (atoms 2)" in done.err
        assert len(ase.io.read(out, ":")) == 1  # what came before it


class TestRelax:
    def test_of_many_frames(
        self, mdgraph_command: Command, tmp_path: Path, tiny_potential: Path, water_file: Path
    ) -> None:
        periodic = ase.io.read(water_file)
        molecules = [periodic[:3], periodic[3:]]
        for molecule in molecules:
            molecule.cell, molecule.pbc = None, False
        given = [molecules[0], periodic, molecules[1]]
        ase.io.write(tmp_path / "frames.extxyz", given)
        out = tmp_path / "relaxed.extxyz"
        options = ["--potential", tiny_potential, "--device", "cpu", "--out", out]
        done = mdgraph_command("relax", tmp_path / "frames.extxyz", *options, "--steps", 3)
        assert done.status == 0, done.err
        assert done.out == f"0 of 3 minima found, written to {out}\n"
        assert "No minimum within the tolerances after 3 steps" in done.err
        assert done.err.count("warning: ") == 1  # not one for each batch too
        lazy = ["--overwrite", "--force-tolerance-eV-per-A", 100]
        done = mdgraph_command("relax", tmp_path / "frames.extxyz", *options, *lazy)
        assert done.out == f"3 of 3 minima found, written to {out}\n"
        for result, start in zip(ase.io.read(out, ":"), given, strict=True):
            np.testing.assert_allclose(result.positions, start.positions)
            np.testing.assert_allclose(result.cell, start.cell)


class TestPotentials:
    def test_are_converted_and_inspected(
        self, mdgraph_command: Command, tmp_path: Path, tiny_potential: Path
    ) -> None:
        copy = tmp_path / "copy.safetensors"
        assert mdgraph_command("convert", tiny_potential, copy).status == 0
        assert mdgraph_command("convert", tiny_potential, copy).status == 1
        printed = mdgraph_command("inspect", copy).out
        lines = dict(line.split(":", 1) for line in printed.splitlines())
        told = {name: text.strip() for name, text in lines.items()}
        assert told["name"] == "tiny"
        assert told["species"] == "H O"
        assert told["layers"] == "1"
        assert told["uses_charge"] == "no"
        assert told["units"] == "energy in eV, length in A"
        assert told["assumed"] == "none"
        assert int(told["parameters"]) == load(tiny_potential).parameter_count

    def test_say_when_their_domain_stays_behind(
        self, mdgraph_command: Command, tmp_path: Path
    ) -> None:
        first, second = tmp_path / "first.safetensors", tmp_path / "second.safetensors"
        assert "do not monitor their domain" in mdgraph_command("convert", "water-pbe0", first).out
        assert "do not monitor their domain" not in mdgraph_command("convert", first, second).out

    def test_that_are_shipped(self, mdgraph_command: Command) -> None:
        printed = mdgraph_command("potentials").out
        assert [line.split(":")[0] for line in printed.splitlines()] == list(shipped_potentials())


class TestNoFileIsReplacedUnasked:
    @pytest.mark.parametrize(
        ("words", "name"),
        [
            ("data convert frames.extxyz set.h5", "set.h5"),
            ("data inspect good.h5 --picture set.png", "set.png"),
            ("data split good.h5 split.json", "split.json"),
            ("data split good.h5 split.json --method folds --folds 3", "split-3.json"),
            ("convert {potential} copy.safetensors", "copy.safetensors"),
            ("export {potential} out.pt --torchforce --structure {structure}", "out.pt"),
            ("eval {structure} --potential {potential} --out e.xyz", "e.xyz"),
            ("relax {structure} --potential {potential} --steps 1 --out r.xyz", "r.xyz"),
        ],
    )
    def test_by_any_command(
        self,
        mdgraph_command: Command,
        tmp_path: Path,
        tiny_potential: Path,
        water_file: Path,
        monkeypatch: pytest.MonkeyPatch,
        words: str,
        name: str,
    ) -> None:
        monkeypatch.chdir(tmp_path)
        frames = []
        for shift in np.linspace(0.0, 0.3, 9):
            atoms = ase.io.read(water_file)
            atoms.positions[0] += shift
            atoms.calc = SinglePointCalculator(atoms, energy=-shift, forces=atoms.positions)
            frames.append(atoms)
        ase.io.write("frames.extxyz", frames)
        if "good.h5" in words:
            assert mdgraph_command("data", "convert", "frames.extxyz", "good.h5").status == 0
        arguments = words.format(potential=tiny_potential, structure=water_file).split()
        Path(name).write_text("years of work")
        before = sorted(tmp_path.iterdir())
        done = mdgraph_command(*arguments)
        assert done.status == 1
        assert f"{name} exists already; " in done.err
        assert "replace it with --overwrite, or give another" in done.err
        assert Path(name).read_text() == "years of work"
        assert sorted(tmp_path.iterdir()) == before
        done = mdgraph_command(*arguments, "--overwrite")
        assert done.status == 0, done.err
        assert not Path(name).read_bytes().startswith(b"years")
        Path(name).unlink()
        assert mdgraph_command(*arguments, *(["--overwrite"] * ("folds" in words))).status == 0

    def test_nor_the_data_that_are_split(self, mdgraph_command: Command, tmp_path: Path) -> None:
        data = tmp_path / "set.h5"
        data.write_bytes(b"years of work")
        done = mdgraph_command("data", "split", data, data, "--overwrite")
        assert done.status == 1
        assert "is the data set itself" in done.err
        assert data.read_bytes() == b"years of work"


class TestWhatAKilledProcessLeft:
    def test_is_removed_by_the_next_that_writes_the_file(
        self, mdgraph_command: Command, tmp_path: Path, tiny_potential: Path, water_file: Path
    ) -> None:
        out = tmp_path / "e.extxyz"
        (tmp_path / ".e.mdgraph-01234567.extxyz").write_text("half")
        other = tmp_path / ".f.mdgraph-01234567.extxyz"
        other.write_text("of another file")
        arguments = ["eval", water_file, "--potential", tiny_potential, "--out", out]
        assert mdgraph_command(*arguments).status == 0
        assert sorted(tmp_path.iterdir()) == [other, out]

    def test_is_left_to_a_process_that_lives(self, tmp_path: Path) -> None:
        target = tmp_path / "file.txt"
        with replacing(target) as (first, finish):
            write_atomically(target, lambda path: path.write_text("second"))
            first.write_text("first")
            finish()
        assert target.read_text() == "first"
        assert [*tmp_path.iterdir()] == [target]

    def test_is_not_named_by_what_writes_it(
        self, mdgraph_command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A full disk is told of with the name of the file that is to be."""

        def full(path: Path) -> None:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))

        frames = [Atoms("H2", [[0, 0, 0], [0, 0, 0.1 * number]]) for number in (7, 8)]
        for atoms in frames:
            atoms.calc = SinglePointCalculator(atoms, energy=0.0, forces=np.zeros((2, 3)))
        ase.io.write(tmp_path / "water.xyz", frames, format="extxyz")
        monkeypatch.setattr("mdgraph.data.dataset._lay_out", full)
        out = tmp_path / "train.yaml"
        done = mdgraph_command("train", "init", tmp_path / "water.xyz", "--out", out)
        assert done.status == 1
        assert f"Cannot write {tmp_path / 'water.h5'}: the disk is full" in done.err
        assert [*tmp_path.iterdir()] == [tmp_path / "water.xyz"]


@pytest.mark.parametrize("command", ["md", "eval", "relax", "minimise", "validate"])
def test_standard_output_is_no_file_to_write(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mdgraph_command: Command
) -> None:
    """A file or folder of the name `-` was written."""
    monkeypatch.chdir(tmp_path)
    ase.io.write("water.extxyz", Atoms("OH2", [[0, 0, 0], [0.96, 0, 0], [-0.24, 0.93, 0]]))
    words = {
        "md": ["water.extxyz", "--potential", "water-pbe0", "--steps", "1"],
        "minimise": ["water.extxyz", "--potential", "water-pbe0"],
        "validate": ["water-pbe0", "water.extxyz"],
    }
    usual = ["water.extxyz", "--potential", "water-pbe0"]
    done = mdgraph_command(command, *words.get(command, usual), "--out", "-")
    assert done.status == 1
    assert "Nothing is written to standard output, which is '-'; give a name." in done.err
    assert not Path("-").exists()
