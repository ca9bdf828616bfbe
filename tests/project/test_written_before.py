"""Files that mdgraph 0.1.0 wrote are read, and what it began goes on to what it would have become.

`data/written_by_0.1.0` holds two water molecules: a data set, a small potential, two runs of 20
steps, a minimisation of 10 and a training that was stopped at step 31 of 120. `expected.json`
says where that version brought them: the runs to step 40, the minimisation to step 20, the
training to its end.
"""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ase.io
import h5py
import numpy as np
import pytest
from repository import TESTS

from mdgraph import load
from mdgraph.data.dataset import Dataset
from mdgraph.engine import Calculation
from mdgraph.evaluators import AutogradEvaluator
from mdgraph.io.formats import read_trajectory
from mdgraph.io.log import read_log
from mdgraph.io.structures import from_ase

WRITTEN = TESTS / "data" / "written_by_0.1.0"
EXPECTED: dict[str, Any] = json.loads((WRITTEN / "expected.json").read_text())

Run = Callable[..., Any]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy, which is the working directory."""
    copy = tmp_path / "written"
    shutil.copytree(WRITTEN, copy)
    monkeypatch.chdir(copy)
    return copy


def energies(potential: str | Path) -> list[float]:
    """eV, of the 16 dimers in `double`."""
    frames = [from_ase(atoms) for atoms in ase.io.read(WRITTEN / "dimers.extxyz", ":")]
    evaluator = AutogradEvaluator(load(potential))
    at = Calculation(frames, evaluator, device="cpu", precision="double")
    at.compute()
    energy: list[float] = at.state.energy.tolist()
    return energy


def test_a_potential_has_the_same_energies() -> None:
    np.testing.assert_allclose(
        energies(WRITTEN / "trained"), EXPECTED["energies of trained"], rtol=0, atol=1e-9
    )


def test_a_training_goes_on_to_the_same_potential(folder: Path, mdgraph_command: Run) -> None:
    shutil.move("training", "interrupted")
    assert mdgraph_command("train", "interrupted/train.yaml", "--resume").status == 0
    np.testing.assert_allclose(
        energies("interrupted"), EXPECTED["energies of training"], rtol=0, atol=1e-5
    )


def test_what_changed_in_a_training_is_said_by_the_names_of_today(
    folder: Path, mdgraph_command: Run
) -> None:
    shutil.move("training", "interrupted")
    done = mdgraph_command("train", "interrupted/train.yaml", "--resume", "--seed", 77)
    assert done.status == 1
    assert re.search(r"seed was \d+ and is 77", done.err)
    assert "displaced" not in done.err


@pytest.mark.parametrize(
    ("name", "command", "steps"),
    [("run-h5md", "md", 40), ("run-extxyz", "md", 40), ("minimised", "minimise", 20)],
)
def test_a_run_goes_on_to_the_same_end(
    folder: Path, mdgraph_command: Run, name: str, command: str, steps: int
) -> None:
    assert mdgraph_command(command, "--resume", "--steps", steps, "--out", name).status == 0
    end = ase.io.read(folder / name / "end.extxyz")
    assert not isinstance(end, list)
    expected = EXPECTED[name]
    np.testing.assert_allclose(end.positions, expected["positions"], rtol=0, atol=1e-9)
    assert end.get_potential_energy() == pytest.approx(expected["energy"], abs=1e-9)


@pytest.mark.parametrize("name", ["run-h5md/trajectory.h5", "run-extxyz/trajectory.extxyz"])
def test_a_trajectory_and_its_log_are_read(name: str) -> None:
    with read_trajectory(WRITTEN / name) as trajectory:
        assert [frame.step for frame in trajectory] == [0, 5, 10, 15, 20]
        energy = [frame.energy for frame in trajectory]
    log = read_log((WRITTEN / name).with_name("log.csv"))
    np.testing.assert_allclose(log["potential_energy_eV"], energy, rtol=1e-9)


def test_forces_of_a_trajectory_keep_their_size(folder: Path, mdgraph_command: Run) -> None:
    path = folder / "run-h5md" / "trajectory.h5"
    with h5py.File(path) as file:
        forces = file["particles/all/force/value"][:]  # eV/A
    with read_trajectory(path) as trajectory:
        np.testing.assert_array_equal([frame.forces for frame in trajectory], forces)
    assert mdgraph_command("md", "--resume", "--steps", 25, "--out", "run-h5md").status == 0
    with read_trajectory(path) as trajectory:
        assert len(trajectory) == 6
        resumed = np.array([frame.forces for frame in trajectory])
    np.testing.assert_allclose(resumed[:5], forces, rtol=1e-15, atol=0)
    assert 0.1 < np.abs(resumed[5]).max() / np.abs(forces[4]).max() < 10
    with h5py.File(path) as file:
        element = file["particles/all/force/value"]
        assert element.attrs["unit"] == "kJ mol-1 Angstrom-1"
        np.testing.assert_allclose(element[:5], forces * 96.48533212331, rtol=1e-13)


def test_a_data_set_is_read() -> None:
    with Dataset(WRITTEN / "set.h5") as data:
        assert len(data) == 16
