"""Frames whose errors stand out are named, and no others."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from training_sets import clusters, prepare, settings

from mdgraph.data import Dataset, Provenance, open_dataset, write_dataset
from mdgraph.train.domain import mean_latents
from mdgraph.train.evaluation import Scores, find_outliers, outlier_sentences
from mdgraph.train.loop import Training


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    first, second = clusters(100), clusters(150, seed=1)
    parts = [(first, Provenance("a.xyz")), (second, Provenance("b.xyz"))]
    write_dataset(tmp_path / "set.h5", parts)
    return open_dataset(tmp_path / "set.h5")


def scores(dataset: Dataset, frames: np.ndarray) -> Scores:
    """Noise that grows with the forces, from 1 % of 0.1 eV/A to 1 % of 10 eV/A."""
    generator = np.random.default_rng(0)
    size = np.geomspace(0.1, 10.0, len(frames))
    label = generator.normal(size=(len(frames), 5, 3)) * size[:, None, None]
    wrong = generator.normal(size=label.shape) * 0.01 * size[:, None, None]
    energy = generator.normal(size=len(frames))
    off = energy + 1e-3 * size * generator.normal(size=len(frames))
    return Scores(
        frames,
        np.stack([energy, off], axis=1),
        np.stack([label, label + wrong], axis=-1).reshape(-1, 3, 2),
        np.full((len(frames), 9, 2), np.nan),
        np.full((len(frames), 3, 2), np.nan),
        np.full(5 * len(frames), 29),
        np.repeat(np.arange(len(frames)), 5),
    )


def features(frames: np.ndarray) -> np.ndarray:
    """All frames are about as like each other."""
    return np.random.default_rng(5).normal(size=(1000, 3))[frames]


def test_what_stands_out_is_named_with_its_origin(dataset: Dataset) -> None:
    """An error of 0.05 eV/A is usual where forces are 10 eV/A, and not where they are 0.1."""
    frames = np.arange(20, 240)
    found = scores(dataset, frames)
    assert find_outliers(found, dataset, features) == {"frames": 0, "worst": []}
    assert outlier_sentences("test", find_outliers(found, dataset, features)) == []
    soft, odd = 10, 150
    found.forces[5 * soft : 5 * soft + 5, :, 1] += 0.05
    found.forces[-5:, :, 1] += 0.05
    found.energy[odd, 1] += 0.5
    bare = 60
    found.energy[bare, 0] = found.forces[5 * bare : 5 * bare + 5, :, 0] = np.nan
    outliers = find_outliers(found, dataset, features)
    assert outliers["frames"] == 2
    named = {one["frame"]: one for one in outliers["worst"]}
    assert set(named) == {20 + soft, 20 + odd}
    assert named[30] | {"file": "a.xyz", "frame_of_file": 30, "error_in": "forces"} == named[30]
    assert named[170] | {"file": "b.xyz", "frame_of_file": 70, "error_in": "energy"} == named[170]
    assert named[170]["energy_error_meV_per_atom"] == pytest.approx(500.0, abs=20.0)
    assert named[30]["group"] == "Cu4O"
    said = outlier_sentences("test", outliers)
    assert len(said) == 3
    assert "2 of the frames have errors" in said[0]
    assert any("Frame 170 (number 70 taken from b.xyz, Cu4O)" in one for one in said)
    assert {one["cause"] for one in named.values()} == {"label"}
    assert all(
        one.endswith("have much smaller errors, so its label may be wrong.") for one in said[1:]
    )


def test_a_label_is_doubted_only_where_frames_alike_have_small_errors(dataset: Dataset) -> None:
    """Three liquids, cold, hot and none: the potential fails on the hot one, whose frames vary.

    One frame of each has a wrong label, or is like no other, although its composition is common.
    """
    frames = np.arange(240)
    places = features(frames)
    hot = np.arange(180, 200)
    places[hot] = 20.0 + 3.0 * places[hot]
    cold, quiet, alone = 41, 210, 90
    places[alone] = -30.0
    found = scores(dataset, frames)
    for row in (cold, alone, *hot):
        found.forces[5 * row : 5 * row + 5, :, 1] += 2.0
    found.energy[quiet, 1] += 0.5
    outliers = find_outliers(found, dataset, lambda rows: places[rows])
    causes = {one["frame"]: one["cause"] for one in outliers["worst"]}
    assert outliers["frames"] == 23
    assert {row: causes[row] for row in causes if row not in hot} == {
        cold: "label",
        alone: "unknown",
        quiet: "label",
    }
    assert {causes[row] for row in hot if row in causes} == {"potential"}
    said = {
        row: text
        for row in causes
        for text in outlier_sentences("test", outliers)
        if text.startswith(f"Frame {row} ")
    }
    assert "label" not in said[next(row for row in causes if row in hot)]
    assert "so the potential fails there." in said[next(row for row in causes if row in hot)]
    assert "may be the label or the potential" in said[alone]


def test_a_wrong_label_among_hot_frames_is_one(dataset: Dataset) -> None:
    """Frames of a hot liquid lie further apart than those of a cold one, and are alike."""
    frames = np.arange(240)
    places = features(frames)
    places[120:] = 8.0 * places[120:]
    found = scores(dataset, frames)
    found.forces[5 * 150 : 5 * 150 + 5, :, 1] += 3.0
    (outlier,) = find_outliers(found, dataset, lambda rows: places[rows])["worst"]
    assert (outlier["frame"], outlier["cause"]) == (150, "label")


def test_only_frames_of_one_composition_are_compared(dataset: Dataset) -> None:
    """Cu5 that nobody learned, among Cu4O which is as near."""
    frames = np.arange(240)
    found = scores(dataset, frames)
    found.numbers[:] = np.concatenate([frame.numbers for frame in dataset.frames(frames)])
    places = np.repeat(features(frames[::2]), 2, axis=0)
    copper = frames[~(found.numbers.reshape(-1, 5) == 8).any(1)]
    strange = copper[10:14]
    places[strange] = places[strange[0]]
    found.energy[strange, 1] += 0.5
    outliers = find_outliers(found, dataset, lambda rows: places[rows])
    assert {one["frame"]: one["cause"] for one in outliers["worst"]} == dict.fromkeys(
        strange.tolist(), "potential"
    )
    assert {one["alike_with_large_errors"] for one in outliers["worst"]} == {3}


def test_features_are_means_of_the_last_layer_by_element(tmp_path: Path) -> None:
    """A turned frame has the same ones, another one has others; frames come in any order."""
    frames = clusters(12)
    turned = np.array([[0.0, -1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    frames[7] = replace(frames[1], positions=frames[1].positions @ turned.T)
    training = Training(settings(prepare(tmp_path, frames)), resume=False, quiet=True)
    rows = np.array([7, 0, 1, 2, 3])
    found = mean_latents(training.potential, training.store, rows)
    np.testing.assert_allclose(found[0], found[2], rtol=1e-4, atol=1e-6)
    assert np.linalg.norm(found[4] - found[2]) > 100.0 * np.linalg.norm(found[0] - found[2])
    size = found.shape[1] // 2
    assert (found[[0, 2, 4], :size] == 0.0).all()  # no oxygen in Cu5
    assert (found[1, :size] != 0.0).any()
    alone = mean_latents(training.potential, training.store, rows[3:4])
    np.testing.assert_allclose(found[3], alone[0], rtol=1e-5, atol=1e-7)


def test_few_frames_or_equal_errors_say_nothing(dataset: Dataset) -> None:
    few = scores(dataset, np.arange(19))
    few.energy[3, 1] += 10.0
    assert find_outliers(few, dataset, features)["frames"] == 0
    alike = scores(dataset, np.arange(50))
    alike.forces[..., 1] = alike.forces[..., 0] + 0.01
    alike.energy[:, 1] = alike.energy[:, 0]
    assert find_outliers(alike, dataset, features)["frames"] == 0
