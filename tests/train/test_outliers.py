"""Frames whose errors stand out are named, and no others."""

from pathlib import Path

import numpy as np
import pytest
from training_sets import clusters

from mdgraph.data import Dataset, Provenance, open_dataset, write_dataset
from mdgraph.train.evaluation import Scores, outlier_sentences, outlying_frames


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


def test_what_stands_out_is_named_with_its_origin(dataset: Dataset) -> None:
    """An error of 0.05 eV/A is usual where forces are 10 eV/A, and not where they are 0.1."""
    frames = np.arange(20, 240)
    found = scores(dataset, frames)
    assert outlying_frames(found, dataset) == {"frames": 0, "worst": []}
    assert outlier_sentences("test", outlying_frames(found, dataset)) == []
    soft, odd = 10, 150
    found.forces[5 * soft : 5 * soft + 5, :, 1] += 0.05
    found.forces[-5:, :, 1] += 0.05
    found.energy[odd, 1] += 0.5
    bare = 60
    found.energy[bare, 0] = found.forces[5 * bare : 5 * bare + 5, :, 0] = np.nan
    outliers = outlying_frames(found, dataset)
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


def test_few_frames_or_equal_errors_say_nothing(dataset: Dataset) -> None:
    few = scores(dataset, np.arange(19))
    few.energy[3, 1] += 10.0
    assert outlying_frames(few, dataset)["frames"] == 0
    alike = scores(dataset, np.arange(50))
    alike.forces[..., 1] = alike.forces[..., 0] + 0.01
    alike.energy[:, 1] = alike.energy[:, 0]
    assert outlying_frames(alike, dataset)["frames"] == 0
