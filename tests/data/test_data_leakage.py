"""Frames of one run of dynamics on both sides of a split are found, independent ones are not."""

from pathlib import Path

import numpy as np
import pytest
from ase import units
from ase.calculators.emt import EMT
from ase.calculators.singlepoint import SinglePointCalculator
from ase.md.verlet import VelocityVerlet
from copper_frames import copper, labelled, written

from mdgraph.data import LabelledFrame
from mdgraph.data.checks import check_dataset
from mdgraph.data.splits import Split, block_split, random_split


def dynamics(frames: int) -> list[LabelledFrame]:
    """Of a copper cluster at 300 K, 6 fs apart."""
    atoms = copper(1)[0]
    atoms.calc = EMT()
    widths = np.sqrt(atoms.get_masses()[:, None] * units.kB * 300)
    atoms.set_momenta(widths * np.random.default_rng(0).normal(size=(len(atoms), 3)))
    found = []
    for _ in range(frames):
        VelocityVerlet(atoms, 3.0 * units.fs).run(2)
        still = atoms.copy()
        values = {"energy": atoms.get_potential_energy(), "forces": atoms.get_forces()}
        still.calc = SinglePointCalculator(still, **values)
        found.append(labelled(still))
    return found


def leaks(tmp_path: Path, frames: list[LabelledFrame], blocks: int = 0) -> list[str]:
    (tmp_path / "set.h5").unlink(missing_ok=True)
    with written(tmp_path / "set.h5", frames) as dataset:
        split: Split = random_split(dataset, 0.1, 0.1, seed=0)
        if blocks:
            split = block_split(dataset, 0.2, blocks)
        return [one.text for one in check_dataset(dataset, split) if "places" in one.text]


def test_a_run_of_dynamics_split_at_random_leaks(tmp_path: Path) -> None:
    frames = dynamics(100)
    for found, part in zip(leaks(tmp_path, frames), ("validation", "test"), strict=True):
        assert found.startswith(f"Of 10 frames of {part}, ")
        assert "--method blocks" in found
        distances = found.split("nearest training frame is ")[1].split(":")[0]
        nearest, usual = distances.split(" A an atom, to any training frame ")
        assert float(nearest) < 0.5 * float(usual)
    assert leaks(tmp_path, frames, blocks=1) == []


@pytest.mark.parametrize("count", [20, 60, 200])
def test_independent_frames_split_at_random_do_not_leak(tmp_path: Path, count: int) -> None:
    assert leaks(tmp_path, [labelled(one) for one in copper(count)]) == []


def test_many_short_runs_in_one_file_leak(tmp_path: Path) -> None:
    """Each run is of another cluster: too short to tell alone."""
    run = dynamics(80)
    kinds = [np.array([29, 29, 29, 29, last]) for last in (6, 7, 8, 13, 14, 28, 46, 47)]
    frames = [
        LabelledFrame(**(vars(frame) | {"numbers": kinds[place // 10]}))
        for place, frame in enumerate(run)
    ]
    assert len(leaks(tmp_path, frames)) == 2
