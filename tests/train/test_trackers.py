"""The rows of the log reach TensorBoard and W&B, stood in for by modules that write down calls."""

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from training_sets import clusters, prepare

from mdgraph.errors import InputError
from mdgraph.runs.training import read_training
from mdgraph.train import progress
from mdgraph.train.loop import train


class Record:
    """A run of either program."""

    def __init__(self, *_: Any, **options: Any) -> None:
        self.options, self.rows, self.closed = options, {}, False
        RECORDS.append(self)

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.rows.setdefault(step, {})[name] = value

    def log(self, values: dict[str, float], step: int) -> None:
        self.rows[step] = values

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True

    finish = close


RECORDS: list[Record] = []


@pytest.mark.usefixtures("without_report")
def test_rows_go_to_both_and_a_resumed_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    board, wandb = ModuleType("torch.utils.tensorboard"), ModuleType("wandb")
    board.SummaryWriter, wandb.init = Record, Record  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", board)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.setattr(progress, "find_spec", lambda name: SimpleNamespace(name=name))
    RECORDS.clear()
    path = prepare(tmp_path, clusters(8), also_log=["tensorboard", "wandb"], steps=4)
    train(read_training(path, {}), quiet=True)
    rows = np.genfromtxt(tmp_path / "out" / "log.csv", delimiter=",", names=True)
    assert len(RECORDS) == 2
    for record in RECORDS:
        assert record.closed
        assert list(record.rows) == [2, 4]
        assert "step" not in record.rows[2]
        for name, value in record.rows[4].items():
            assert value == pytest.approx(rows[name][-1], rel=1e-5)
    train(read_training(path, {}), resume=True, quiet=True)
    assert RECORDS[2].options["purge_step"] == 5
    assert RECORDS[3].options["id"] == RECORDS[1].options["id"]


def test_a_program_that_does_not_start_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(**_: Any) -> None:
        raise RuntimeError("no key is configured")

    wandb = ModuleType("wandb")
    wandb.init = refused  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    config = read_training(prepare(tmp_path, clusters(8), also_log=["wandb"]), {})
    monkeypatch.setattr(progress, "find_spec", lambda name: SimpleNamespace(name=name))
    with pytest.raises(InputError, match=r"wandb, which does not start \(no key is configured\)"):
        train(config, quiet=True)


def test_what_is_not_installed_is_told_before_anything_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "find_spec", lambda name: None)
    config = read_training(prepare(tmp_path, clusters(8), also_log=["wandb"]), {})
    with pytest.raises(InputError, match=r"pip install 'mdgraph\[wandb\]'"):
        train(config, quiet=True)
    assert not (tmp_path / "out").exists()
