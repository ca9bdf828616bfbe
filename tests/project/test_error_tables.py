"""Recipes can be followed, and the script of error tables tells what trainings found."""

import contextlib
import json
import math
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import ase.io
import numpy as np
import pytest
import typer.main
import yaml
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator
from prepared import run_prepared
from repository import BENCHMARKS, ROOT
from training_sets import NETWORK, assert_same, clusters

from mdgraph.cli import app
from mdgraph.distil.config import DistilConfig
from mdgraph.errors import InputError
from mdgraph.runs.training import read_training
from mdgraph.train.config import TrainConfig
from mdgraph.train.step import TrainingStep

PUBLISHED = yaml.safe_load((BENCHMARKS / "published.yaml").read_text(encoding="utf-8"))

TAUGHT = sorted((ROOT / "potentials").glob("*/teacher.yaml"))
"""Of the potentials whose teachers do not ship."""

Script = Callable[[str], ModuleType]


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_recipe_can_be_followed(script: Script, tmp_path: Path, name: str) -> None:
    """Its commands are commands, and one makes what the next takes."""
    tables = script("error_tables")
    recipe = tables.read_recipe(name, from_scratch=True)
    path = ROOT / "potentials" / name / "train.yaml"
    text = path.read_text(encoding="utf-8")
    for words in tables.commands(text):
        command: Any = typer.main.get_command(app)
        while hasattr(command, "commands"):
            command = command.commands[words.pop(0)]
        command.make_context("mdgraph", words, resilient_parsing=False).close()
    assert recipe.settings["data"] in recipe.convert
    assert recipe.split[:2] == recipe.check[:1] + [recipe.settings["split"]]
    assert recipe.check == [recipe.settings["data"], "--split", recipe.settings["split"]]
    assert f"mdgraph train potentials/{name}/train.yaml" in text
    config = read_training(path, {})
    assert config.keep == "last", "the best of validation would flatter errors on validation"
    levers = yaml.safe_load((BENCHMARKS / "levers.yaml").read_text(encoding="utf-8"))
    for lever, changes in levers.items():
        row = TrainConfig.model_validate(tables.merged(recipe.settings, changes))
        if lever == "as it is" or name == "acac-pbe":
            assert (row == config) == (lever == "as it is"), lever


@pytest.mark.parametrize("name", [path.parent.name for path in TAUGHT])
def test_teachers_and_students_are_of_the_same_frames(script: Script, name: str) -> None:
    """What trains teachers makes the folders that the student's recipe names."""
    tables = script("error_tables")
    recipe, folder = tables.read_recipe(name), ROOT / "potentials" / name
    assert recipe.teacher is not None
    text = (folder / "distil.yaml").read_text(encoding="utf-8")
    words = [f"train potentials/{name}/teacher.yaml", f"distil potentials/{name}/distil.yaml"]
    teacher = read_training(folder / "teacher.yaml", {})
    student = DistilConfig.model_validate(yaml.safe_load(text))
    for earlier, settings in reversed(list(zip(tables.EARLIER, recipe.earlier, strict=False))):
        words.append(f"distil potentials/{name}/{earlier}.yaml")
        before = DistilConfig.model_validate(settings)
        assert (before.data, before.split) == (student.data, student.split)
        assert (student.teacher, student.start_from) == ((before.out,), before.out)
        student = before
    assert all(f"#   mdgraph {word}" in text for word in words)
    assert (teacher.data, teacher.split) == (student.data, student.split)
    assert [f"{teacher.out}/seed-{seed}" for seed in recipe.teacher_seeds] == list(student.teacher)
    assert teacher.keep == "last"


def test_changes_reach_inner_settings(script: Script) -> None:
    merged = script("error_tables").merged
    settings = {"potential": {"layers": 2, "cutoff": 5.0}, "steps": 5}
    changes = {"potential": {"layers": 1}, "steps": None, "epochs": 3}
    assert merged(settings, changes) == {"potential": {"layers": 1, "cutoff": 5.0}, "epochs": 3}
    assert settings["potential"]["layers"] == 2


def test_errors_of_means_know_that_splits_are_shared(script: Script) -> None:
    mean_and_error = script("error_tables").mean_and_error
    assert mean_and_error([1.0, 2.0, 3.0], [1, 1, 1]) == pytest.approx((2.0, 1.0 / 3.0**0.5))
    # Seeds agree and splits do not: there are two values, not six.
    mean, error = mean_and_error([1.0, 1.0, 1.0, 3.0, 3.0, 3.0], [1, 1, 1, 2, 2, 2])
    assert (mean, error) == pytest.approx((2.0, 1.0))
    assert math.isnan(mean_and_error([1.0], [1])[1])


def test_jobs_run_side_by_side_until_the_deadline(script: Script, tmp_path: Path) -> None:
    queue = script("error_tables")

    def job(number: int, code: str) -> Any:
        return queue.Job((sys.executable, "-c", code), tmp_path, tmp_path / f"{number}.log")

    jobs = [
        job(0, "print('well')"),
        job(1, "raise SystemExit(3)"),
        job(2, "import time; time.sleep(60)"),
        job(3, "print('never')"),
    ]
    begin = time.monotonic()
    outcome = queue.run_side_by_side(jobs, 2, queue.share_of_cores(2), begin + 3.0)
    assert time.monotonic() - begin < 20.0
    assert outcome.failed == [(jobs[1], 3)]
    assert jobs[2] in outcome.left
    assert jobs[0] not in outcome.left
    assert jobs[0].log.read_text(encoding="utf-8") == "well\n"


def tiny_recipe(folder: Path) -> None:
    """Of clusters by effective medium theory, one of which is in both files."""
    frames = clusters(17)
    for name, chosen in (("train", frames[:14]), ("test", [*frames[14:], frames[0]])):
        atoms = []
        for frame in chosen:
            atoms.append(Atoms(frame.numbers, frame.positions))
            labels = {"energy": frame.energy, "forces": frame.forces}
            atoms[-1].calc = SinglePointCalculator(atoms[-1], **labels)
        ase.io.write(folder / f"{name}.xyz", atoms, format="extxyz")
    recipe = folder / "recipes" / "tiny"
    recipe.mkdir(parents=True)
    lines = [
        "#   mdgraph data convert train.xyz test.xyz tiny.h5 \\",
        "#     --level-of-theory EMT",
        "#   mdgraph data split tiny.h5 tiny.json --method file --test-file test.xyz \\",
        "#     --validation 4 --seed 1",
        "#   mdgraph data check tiny.h5 --split tiny.json",
    ]
    settings = {
        "data": "tiny.h5",
        "split": "tiny.json",
        "out": "potentials/tiny",
        "potential": NETWORK,
        "batch": 4,
        "steps": 1000,
        "validations": 1,
        "checkpoint_interval": 10,
        "keep": "last",
    }
    text = "\n".join(lines) + "\n" + yaml.safe_dump(settings)
    (recipe / "train.yaml").write_text(text, encoding="utf-8")


def tiny_tables(
    script: Script, monkeypatch: pytest.MonkeyPatch, folder: Path, **published: Any
) -> ModuleType:
    """error_tables.py on that recipe alone, beside what others published."""
    tiny_recipe(folder)
    tables, path = script("error_tables"), folder / "published.yaml"
    path.write_text(yaml.safe_dump(published), encoding="utf-8")
    monkeypatch.setattr(tables, "POTENTIALS", folder / "recipes")
    monkeypatch.setattr(tables, "PUBLISHED", path)
    return tables


def in_this_process(jobs: list[Any], *_: object) -> Any:
    """What a process each would do, without the time that it takes to start."""
    for job in jobs:
        with contextlib.chdir(job.folder):
            typer.main.get_command(app)(job.words[3:], standalone_mode=False)
    return import_module("error_tables").Outcome()


def forked(processes: Any, jobs: list[Any], *_: object) -> Any:
    """Processes as they would be, without a cold start."""
    for job in jobs:
        done = run_prepared(processes, job.words[1:], job.folder)
        assert done.returncode == 0, done.stderr
    return import_module("error_tables").Outcome()


def test_a_table_is_written_and_continued(
    processes: Any,
    script: Script,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    known = {"measures": ["energy_mae_meV", "force_mae_meV_per_A"], "wanted": [1.0, 2.0]}
    tables, out = tiny_tables(script, monkeypatch, tmp_path, tiny=known), tmp_path / "out"

    def run(*more: object) -> str:
        options = ["--data", tmp_path, "--out", out, "--seeds", 1, 2, "--steps", 6]
        words = ["tables", "tiny", *options, "--parallel", 2, "--device", "cpu", *more]
        monkeypatch.setattr(sys, "argv", [str(word) for word in words])
        tables.main()
        return capsys.readouterr().out

    with pytest.raises(SystemExit):
        run("--stop-after", 0)
    assert "2 trainings are not at their end" in capsys.readouterr().out
    monkeypatch.setattr(tables, "run_side_by_side", in_this_process)
    said = run()
    assert "frames of train and test is the same" in said
    assert said.splitlines()[-1].startswith("| tiny | 4, test | 2 |")
    record = json.loads((out / "tiny" / "metrics.json").read_text(encoding="utf-8"))
    (row,) = record["rows"].values()
    values = [one["test"]["force_mae_meV_per_A"] for one in record["runs"]]
    assert values[0] != values[1]
    found = row["errors"]["force_mae_meV_per_A"]
    assert found["mean"] == pytest.approx(np.mean(values), abs=1e-3)
    assert found["standard_error"] == pytest.approx(abs(np.subtract(*values)) / 2, abs=1e-3)
    assert row["steps"] == [6]
    shipped = out / "tiny" / "potential"
    assert {"model.safetensors", "card.md"} < {path.name for path in shipped.iterdir()}
    assert json.loads((shipped / "metrics.json").read_text(encoding="utf-8"))["rows"] == {
        "as it is": row
    }
    # A training that lost its end is gone on with; the one that has it is left alone.
    first, second = (out / "tiny" / run["folder"] for run in record["runs"])
    before = (second / "metrics.json").stat().st_mtime_ns
    (first / "metrics.json").unlink()
    weights = (first / "model.safetensors").read_bytes()
    (first / "model.safetensors").unlink()
    monkeypatch.setattr(tables, "run_side_by_side", partial(forked, processes))
    assert run().splitlines()[-1] == said.splitlines()[-1]
    assert (first / "model.safetensors").read_bytes() == weights
    assert (second / "metrics.json").stat().st_mtime_ns == before


def test_a_student_is_scored_by_the_labels_of_the_data(
    script: Script,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """Two teachers are trained first, then a student of them and two that go on, one by one.

    Errors leave sampled frames out.
    """
    tables = tiny_tables(script, monkeypatch, tmp_path)
    folder = tmp_path / "recipes" / "tiny"
    text = (folder / "train.yaml").read_text(encoding="utf-8")
    (folder / "train.yaml").rename(folder / "teacher.yaml")
    sampling = {"frames": 12, "trajectories": 2, "temperatures": [100], "interval": 5}
    teachers = {"teacher": ["teachers/seed-1", "teachers/seed-2"], "earlier_steps": 9}
    teachers |= {"label_copies": 2}
    student = yaml.safe_load(text) | teachers | {"sampling": sampling | {"largest_energy": 100.0}}
    head = "\n".join(line for line in text.splitlines() if line.startswith("#"))
    (folder / "first.yaml").write_text(yaml.safe_dump(student | {"name": "first"}), "utf-8")
    student |= {"teacher": "first", "start_from": "first", "rounds": 1}
    del student["potential"]
    structures = {"structures": ["train.xyz"], "earlier_steps": None}
    second = student | structures | {"name": "second"}
    (folder / "second.yaml").write_text(yaml.safe_dump(second), "utf-8")
    student |= {"teacher": "second", "start_from": "second"}
    (folder / "distil.yaml").write_text(f"{head}\n{yaml.safe_dump(student)}", encoding="utf-8")
    monkeypatch.setattr(tables, "run_side_by_side", in_this_process)
    options = ["--data", tmp_path, "--out", tmp_path / "out", "--device", "cpu", "--steps", 4]
    monkeypatch.setattr(sys, "argv", ["tables", "tiny", *map(str, options)])
    tables.main()
    assert capsys.readouterr().out.splitlines()[-1].startswith("| tiny | 4, test | 1 |")
    work = tmp_path / "out" / "tiny"
    shipped = json.loads((work / "potential" / "metrics.json").read_text(encoding="utf-8"))
    assert [one["name"] for one in shipped["distilled"]["teachers"]] == ["second"]
    path = work / "second" / "split-1" / "metrics.json"
    second = json.loads(path.read_text(encoding="utf-8"))
    assert [one["name"] for one in second["distilled"]["teachers"]] == ["first"]
    first = json.loads((work / "first" / "split-1" / "metrics.json").read_text(encoding="utf-8"))
    names = [one["name"] for one in first["distilled"]["teachers"]]
    assert names == ["split-1-seed-1", "split-1-seed-2"]
    split = json.loads((work / "tiny-1.json").read_text(encoding="utf-8"))
    assert shipped["data_sha256"] == split["sha256"]
    for part in ("train", "validation", "test"):
        assert shipped[part]["frames"] == len(split[part])
    assert shipped["all_frames"]["train"]["frames"] > shipped["train"]["frames"]
    # Done is done.
    monkeypatch.setattr(tables, "run_side_by_side", None)
    monkeypatch.setattr(tables, "train_all", lambda runs, *_: all(run.done for run in runs))
    tables.main()


def test_what_needs_a_job_that_failed_is_left(script: Script, tmp_path: Path) -> None:
    queue = script("error_tables")

    def job(number: int, code: str, *needs: Path) -> Any:
        return queue.Job((sys.executable, "-c", code), tmp_path, tmp_path / f"{number}.log", needs)

    there = tmp_path / "there"
    jobs = [
        job(0, f"assert open({str(there)!r})", there),
        job(1, f"open({str(there)!r}, 'w')"),
        job(2, "print('never')", tmp_path / "absent"),
        job(3, "raise SystemExit(2)"),
    ]
    outcome = queue.run_side_by_side(jobs, 2, queue.share_of_cores(2), time.monotonic() + 60.0)
    assert outcome.failed == [(jobs[3], 2)]
    assert outcome.left == [jobs[2]]


def test_devices_take_turns(
    script: Script, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tables = tiny_tables(script, monkeypatch, tmp_path)
    trained: list[str] = []

    def left(jobs: list[Any], *_: object) -> Any:
        trained.extend(job.words[-1] for job in jobs)
        return tables.Outcome(left=list(jobs))

    monkeypatch.setattr(tables, "run_side_by_side", left)
    monkeypatch.setattr(tables, "multi_process_service", lambda *_: contextlib.nullcontext(True))
    options = ["--data", tmp_path, "--out", tmp_path / "out", "--seeds", 1, 2, 3]
    options += ["--parallel", 3, "--device", "cuda:0", "cuda:1"]
    monkeypatch.setattr(sys, "argv", ["tables", "tiny", *map(str, options)])
    with pytest.raises(SystemExit):
        tables.main()
    assert trained == ["cuda:0", "cuda:1", "cuda:0"]


def test_a_recipe_with_one_split_refuses_three(
    script: Script, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    recipes = script("error_tables")
    recipe = recipes.read_recipe("water-pbe0")
    with pytest.raises(InputError, match="one split alone"):
        recipes.prepare_data(recipe, tmp_path, tmp_path / "out", 2)
    with pytest.raises(InputError, match="no recipe nothing; there are"):
        recipes.read_recipe("nothing")
    student = recipes.read_recipe("water-pbe0-small")
    with pytest.raises(InputError, match="water-pbe0-small is trained on no data"):
        recipes.prepare_data(student, tmp_path, tmp_path / "out", 1)


def test_a_training_of_several_sittings_is_as_one_of_one(
    script: Script, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Stopped between checkpoints, gone on with by the same command, to the same weights."""
    tables = tiny_tables(script, monkeypatch, tmp_path)
    monkeypatch.setattr(tables, "run_side_by_side", in_this_process)

    def sit(out: str) -> Path:
        options = ["--data", tmp_path, "--out", tmp_path / out, "--device", "cpu", "--steps", 30]
        monkeypatch.setattr(sys, "argv", ["tables", "tiny", *map(str, options)])
        tables.main()
        return tmp_path / out / "tiny" / "as-it-is" / "split-1-seed-1"

    whole = sit("whole")
    run, left = TrainingStep.run, [14]

    def stopped(self: TrainingStep, shape: int, controls: Any) -> None:
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        run(self, shape, controls)

    monkeypatch.setattr(TrainingStep, "run", stopped)
    assert not (sit("parts") / "metrics.json").exists()
    monkeypatch.setattr(TrainingStep, "run", run)
    parts = sit("parts")
    assert json.loads((parts / "metrics.json").read_text(encoding="utf-8"))["steps"] == 30
    assert_same(whole, parts)
