"""Splits hold every frame once, know their data, and keep apart what belongs together."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from copper_frames import copper, labelled, written

from mdgraph.data import LabelledFrame, Provenance, open_dataset, read_split, write_dataset
from mdgraph.data.splits import (
    block_split,
    distances,
    file_split,
    fold_splits,
    group_split,
    random_split,
    write_split,
)
from mdgraph.errors import FileError, InputError


@pytest.fixture
def dataset(tmp_path: Path) -> Any:
    frames = [labelled(one, group=f"g{i // 4}") for i, one in enumerate(copper(40))]
    with written(tmp_path / "set.h5", frames) as opened:
        yield opened


def test_splits_cover_every_frame_once_and_know_their_data(dataset: Any, tmp_path: Path) -> None:
    for split in (
        random_split(dataset, 0.2, 5, seed=1),
        group_split(dataset, 0.2, 0.2, seed=1),
        *fold_splits(dataset, 4, 0.1, seed=1),
    ):
        every = np.concatenate([split.train, split.validation, split.test])
        assert sorted(every) == list(range(40))
    grouped = group_split(dataset, 0.2, 0.2, seed=1)
    parts = [set(dataset.group[chosen]) for _, chosen in grouped.parts()]
    assert not parts[0] & parts[1]
    assert not parts[1] & parts[2]
    folds = fold_splits(dataset, 4, 0.1, seed=1)
    held = np.concatenate([fold.validation for fold in folds])
    assert len(held) == len(set(held)) == 36

    write_split(grouped, tmp_path / "split.json")
    with pytest.raises(FileError, match="it exists already"):
        write_split(grouped, tmp_path / "split.json")
    write_split(grouped, tmp_path / "split.json", overwrite=True)
    same = read_split(tmp_path / "split.json", dataset)
    np.testing.assert_array_equal(same.validation, grouped.validation)
    copy = tmp_path / "other.h5"
    with written(copy, [labelled(one) for one in copper(40, seed=2)]) as other:  # noqa: SIM117
        with pytest.raises(InputError, match="changed since the split"):
            read_split(tmp_path / "split.json", other)
    record = json.loads((tmp_path / "split.json").read_text())
    record["test"][0] = 40
    (tmp_path / "split.json").write_text(json.dumps(record))
    with pytest.raises(InputError, match="one that is not there"):
        read_split(tmp_path / "split.json", dataset)
    (tmp_path / "split.json").write_text('{"format": 1}')
    with pytest.raises(FileError, match="not a split"):
        read_split(tmp_path / "split.json", dataset)


def test_single_atoms_are_trained_on(tmp_path: Path) -> None:
    """References come of them, and elements that they alone have cannot be held out."""
    alone = LabelledFrame(
        numbers=np.array([2]), positions=np.zeros((1, 3)), energy=-1.0, group="alone"
    )
    frames = [labelled(one) for one in copper(20)] + [alone] * 20
    write_dataset(tmp_path / "set.h5", [(frames, Provenance("made"))])
    with open_dataset(tmp_path / "set.h5") as dataset:
        split = random_split(dataset, 0.5, 0.25, seed=3)
    assert (len(split.validation), len(split.test)) == (10, 5)
    assert {*range(20, 40)} < {*split.train.tolist()}


def test_unseen_elements_and_empty_parts_are_refused(tmp_path: Path) -> None:
    path, (oxide, metal, *_) = tmp_path / "set.h5", copper(4)
    parts = [
        ([labelled(metal)] * 3, Provenance("metal.xyz")),
        ([labelled(oxide)], Provenance("o.xyz")),
    ]
    write_dataset(path, parts)
    with open_dataset(path) as dataset:
        with pytest.raises(InputError, match="O is in frames of validation and in none of train"):
            file_split(dataset, 0, 0, ["o.xyz"], [], seed=0)
        assert len(random_split(dataset, 0.1, 0, seed=1).validation) == 1
        with pytest.raises(InputError, match="no frame for validation"):
            random_split(dataset, 0, 0, seed=0)
        with pytest.raises(InputError, match=r"the files are metal.xyz, o.xyz"):
            file_split(dataset, 0, 0, ["oxide.xyz"], [], seed=0)


def test_blocks_of_a_shuffled_walk_are_contiguous_in_time(tmp_path: Path) -> None:
    generator = np.random.default_rng(2)
    steps = generator.normal(scale=0.1, size=(60, 5, 3))
    walk = 2.0 * np.arange(15.0).reshape(5, 3) + np.cumsum(steps, axis=0)
    order = generator.permutation(60)
    numbers, cell = np.full(5, 29), 40.0 * np.eye(3)
    frames = [
        LabelledFrame(numbers, walk[time] % 40.0, cell, np.full(3, True), float(time))
        for time in order
    ]
    with written(tmp_path / "set.h5", frames) as dataset:
        split = block_split(dataset, 20, 2, shuffled=True)
        times = np.sort(dataset.energy[split.validation])
        assert len(times) == 20
        # Neighbors in time may change places, blocks may not.
        assert np.sum(np.diff(times) > 3) == 1
        plain = block_split(dataset, 20, 2)
        assert np.sum(np.diff(plain.validation) > 1) == 1
        assert np.sum(np.diff(np.sort(dataset.energy[plain.validation])) > 1) > 5


def test_frames_are_as_far_apart_in_any_cell_of_their_lattice() -> None:
    random = np.random.default_rng(0)
    cell = np.diag([8.0, 9.0, 10.0])
    skewed = cell + np.outer([0.0, 0.0, 1.0], 9.0 * cell[0] - 7.0 * cell[1])
    places = random.uniform(0.0, 8.0, size=(1, 5, 3)) + random.normal(scale=0.5, size=(4, 5, 3))
    wrapped = places @ np.linalg.inv(skewed) % 1.0 @ skewed
    np.testing.assert_allclose(distances(wrapped, skewed), distances(places, cell), atol=1e-9)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"validation": 1.5}, "1.5 of 40 frames; give a share below 1, or a whole number"),
        ({"validation": float("inf")}, "inf of 40 frames"),
        ({"validation": float("nan")}, "validation is nan; it must be a number"),
        ({"validation": 41}, "41 of 40 frames"),
        ({"validation": -0.1}, "-0.1 of 40 frames"),
        ({"seed": -1}, "The seed is -1"),
        ({"seed": 1.5}, "seed is 1.5"),
        ({"seed": "a"}, "seed is 'a'"),
    ],
)
def test_parts_and_seeds_that_cannot_be(
    dataset: Any, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InputError, match=re.escape(sentence)):
        random_split(dataset, **({"validation": 0.1, "test": 0, "seed": 0} | options))


def test_the_method_file_leaves_some_frames(dataset: Any) -> None:
    everything = [source.file for source in dataset.sources]
    with pytest.raises(InputError, match="All frames came from the named files"):
        file_split(dataset, 0.1, 0, [], everything, seed=0)


def test_the_method_file_needs_a_file(dataset: Any) -> None:
    with pytest.raises(InputError, match="name them with --validation-file or --test-file"):
        file_split(dataset, 0.1, 0, [], [], seed=0)
