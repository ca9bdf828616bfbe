"""Trainings with several seeds: a folder for each, and a table of all."""

import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from training_sets import clusters, prepare

from mdgraph.checkpoints import load
from mdgraph.train import report


def test_each_seed_has_its_folder_and_all_have_a_summary(
    tmp_path: Path, mdgraph_command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mean and standard error by the standard library; the folder serves as a committee."""
    monkeypatch.setattr(report, "write_report", lambda path, *_: path.write_text(""))
    path = prepare(tmp_path, clusters(12))
    done = mdgraph_command("train", path, "--seeds", "1,5", "--steps", "6")
    assert done.status == 0, done.err
    folder = tmp_path / "out"
    metrics = [json.loads((folder / f"seed-{n}" / "metrics.json").read_text()) for n in (1, 5)]
    assert [one["seed"] for one in metrics] == [1, 5]
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["seeds"] == [1, 5]
    values = [one["validation"]["force_rmse_meV_per_A"] for one in metrics]
    assert values[0] != values[1]
    found = summary["validation"]["force_rmse_meV_per_A"]
    assert found["mean"] == pytest.approx(statistics.mean(values), abs=1e-4)
    assert found["standard_error"] == pytest.approx(
        abs(values[0] - values[1]) / 2, abs=1e-4
    )  # of two
    assert f"{found['mean']:.4g} +- {found['standard_error']:.2g}" in done.out
    assert load(folder / "seed-5").config.name == "seed-5"

    before = (folder / "seed-1" / "model.safetensors").stat().st_mtime_ns
    (folder / "seed-5" / "metrics.json").unlink()
    again = mdgraph_command("train", path, "--seeds", "1,5", "--steps", "6", "--resume")
    assert again.status == 0, again.err
    assert json.loads((folder / "summary.json").read_text()) == summary
    assert (folder / "seed-1" / "model.safetensors").stat().st_mtime_ns == before

    (folder / "seed-5" / "metrics.json").unlink()
    (folder / "seed-5" / "checkpoint.safetensors").unlink()
    lost = mdgraph_command("train", path, "--seeds", "1,5", "--steps", "6", "--resume")
    assert lost.status == 1
    assert "seed-5 has no checkpoint.safetensors to continue from; put it back" in lost.err


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--seeds", "1"], "two different numbers or more"),
        (["--seeds", "1,1"], "two different numbers or more"),
        (["--seeds", "1,x"], "whole numbers with commas"),
        (["--seeds", "1,2", "--seed", "3"], "without --seed"),
    ],
)
def test_seeds_that_cannot_be(
    tmp_path: Path, mdgraph_command: Callable[..., Any], options: list[str], text: str
) -> None:
    done = mdgraph_command("train", prepare(tmp_path, clusters(8)), *options)
    assert done.status == 1
    assert text in done.err
