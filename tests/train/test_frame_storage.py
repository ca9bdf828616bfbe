"""Frames that do not fit into memory: the same numbers, from a file that nobody sees."""

import errno
import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from training_sets import NETWORK, clusters, crystals, prepare

from mdgraph.data import open_dataset
from mdgraph.errors import FileError
from mdgraph.models import TensorNetConfig, TensorNetPotential
from mdgraph.runs.training import read_training
from mdgraph.train import batches as batches_module
from mdgraph.train.batches import FrameStore
from mdgraph.train.tables import Storage


def test_tensors_go_to_the_file_when_the_budget_is_spent(tmp_path: Path) -> None:
    size = 1 << 26
    storage = Storage(tmp_path / "not" / "yet", size)
    kept, filed = (storage.zeros((size // 8,), torch.float64) for _ in range(2))
    assert storage.filed == size
    small = [storage.copy_to_host(torch.full((7, 3), number)) for number in range(5)]
    kept[-1] = filed[-1] = 2.0
    filed[: size // 16] = 1.0
    assert [int(one.float().mean()) for one in small] == [0, 1, 2, 3, 4]
    assert float(filed.sum()) == size / 16 + 2.0
    assert float(kept.sum()) == 2.0
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(FileError, match="the disk is full"):
        Storage(tmp_path, 0).zeros((3,), torch.float64)


def test_frames_in_a_file_are_the_frames_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = prepare(tmp_path, [*clusters(6), *crystals(6)], shapes=2)
    config = read_training(path, {})
    potential = TensorNetPotential(TensorNetConfig(species=(8, 29), **NETWORK))
    every = np.arange(12)
    stores = []
    with open_dataset(tmp_path / "set.h5") as dataset, caplog.at_level(logging.INFO):
        stores.append(FrameStore(dataset, every, every, potential, config))
        assert "lies in a file" not in caplog.text
        monkeypatch.setattr(batches_module, "_SHARE", 0.0)
        stores.append(FrameStore(dataset, every, every, potential, config))
        assert caplog.text.count("lies in a file") == 1
    for one, other in zip(*(store.tables for store in stores), strict=True):
        for value, filed in zip(one.tensors(), other.tensors(), strict=True):
            assert torch.equal(value, filed)
