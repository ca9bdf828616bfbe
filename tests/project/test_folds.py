"""Folds hold whole trajectories out, each once, and rows are recipes that training takes."""

from collections.abc import Callable
from types import ModuleType

import numpy as np
import yaml
from repository import ROOT

from mdgraph.train.config import TrainConfig


def test_trajectories_are_held_out_whole_and_once(script: Callable[[str], ModuleType]) -> None:
    """But one that is longer than a fold, of which each fold holds a stretch."""
    trajectory = np.repeat(np.arange(9), [30, 20, 20, 10, 10, 5, 3, 1, 1])
    fold = script("folds").fold_of(trajectory, 4)
    for name in range(1, 9):
        assert len(set(fold[trajectory == name])) == 1
    assert (np.diff(fold[trajectory == 0]) >= 0).all()
    assert sorted(np.bincount(fold[trajectory == 0])) == [7, 7, 8, 8]
    assert np.ptp(np.bincount(fold)) <= 8


def test_rows_are_recipes(script: Callable[[str], ModuleType]) -> None:
    tables = script("error_tables")
    recipe = yaml.safe_load((ROOT / "potentials/copper-pbe/train.yaml").read_text("utf-8"))
    rows = yaml.safe_load((ROOT / "benchmarks/folds.yaml").read_text("utf-8"))
    for row, changes in rows.items():
        config = TrainConfig.model_validate(tables.merged(recipe, changes))
        assert (config.start_from is None) == row.startswith("from scratch")
        assert config.keep == "last"


def test_what_two_errors_share_is_found(script: Callable[[str], ModuleType]) -> None:
    """Labels off by 0.3 eV/A give two potentials an error of which neither is the cause."""
    generator = np.random.default_rng(1)
    labels, first, second = generator.normal(size=(3, 4000, 3)) * [[[0.3]], [[0.1]], [[0.2]]]
    own, others, common = script("folds").common_error(labels + first, labels + second)
    np.testing.assert_allclose([own, others, common], [0.316, 0.361, 0.3], rtol=0.03)
    assert script("folds").common_error(first, second)[2] < 0.03
