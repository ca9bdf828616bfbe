"""Dipoles are learned by the charges of a TensorNet2, and refused where nothing gives them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from training_sets import NETWORK, clusters, crystals, prepare

from mdgraph.data import LabelledFrame, open_dataset
from mdgraph.errors import InputError
from mdgraph.runs.training import read_training
from mdgraph.train.batches import FrameStore
from mdgraph.train.loop import Training, train

CHARGED = NETWORK | {"architecture": "tensornet2", "charge_channels": 4}
CHARGES = {8: -0.8, 29: 0.2}
LOSS = {"dipole": {"weight": 20.0}, "energy": {"weight": 1.0}}


pytestmark = pytest.mark.usefixtures("without_report")


def polar(frames: int) -> list[LabelledFrame]:
    """Cu4O whose atoms carry fixed charges, far from the origin."""
    found = []
    for frame in clusters(2 * frames)[0::2]:
        charges = np.array([CHARGES[int(number)] for number in frame.numbers])
        moved = frame.positions + np.array([5.0, -7.0, 30.0])
        found.append(replace(frame, positions=moved, dipole=charges @ moved))
    return found


def test_a_dipole_is_learned_by_the_charges(tmp_path: Path) -> None:
    frames = polar(24)
    path = prepare(tmp_path, frames, potential=CHARGED, loss=LOSS, steps=100, average=0.9)
    outcome = train(read_training(path, {}), quiet=True)
    size = 1e3 * np.sqrt(np.mean(np.array([frame.dipole for frame in frames]) ** 2))
    assert outcome.metrics["validation"]["dipole_rmse_me_A"] < 0.2 * size
    still = {"loss": {"energy": {"weight": 1.0}}, "steps": 1, "out": str(tmp_path / "still")}
    path = prepare(tmp_path, [], potential=CHARGED, **still)
    untrained = train(read_training(path, {}), quiet=True)
    assert untrained.metrics["validation"]["dipole_rmse_me_A"] > 0.5 * size


def test_dipoles_of_charged_and_periodic_frames_do_not_count(tmp_path: Path) -> None:
    """They change with the origin."""
    known, bare = polar(8), clusters(2)[:1]
    ion, crystal = replace(known[0], charge=1.0), replace(crystals(1)[0], dipole=np.ones(3))
    frames = [*known, *bare, ion, crystal]
    config = read_training(prepare(tmp_path, frames, potential=CHARGED, loss=LOSS, steps=1), {})
    training = Training(config, resume=False, quiet=True)
    every = np.arange(len(frames))
    with open_dataset(tmp_path / "set.h5") as dataset:
        store = FrameStore(dataset, every, every, training.potential, config)
        for places, batch in store.batches_of(every):
            found, inputs = batch.predict(training.potential, differentiable=False)
            labels = inputs.labels
            for row, place in enumerate(places):
                assert float(labels.dipole_weight[row]) == (place < 8)
                if place < 8:
                    np.testing.assert_array_equal(labels.dipole[row], frames[place].dipole)
                    # Charges that add up to 0 do not see where the frame lies.
                    assert float(found.dipole[row].detach().norm()) < 20.0


@pytest.mark.parametrize(
    ("frames", "changes", "said"),
    [
        (polar(8), {"potential": NETWORK}, "TensorNet has not; take architecture tensornet2"),
        (clusters(8), {"potential": CHARGED}, "has a dipole; import them with --dipole-key"),
    ],
)
def test_dipoles_that_nothing_gives_are_refused(
    tmp_path: Path, frames: list[LabelledFrame], changes: dict[str, Any], said: str
) -> None:
    config = read_training(prepare(tmp_path, frames, loss=LOSS, **changes), {})
    with pytest.raises(InputError, match=said):
        train(config, quiet=True)
