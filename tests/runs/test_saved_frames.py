"""Frames that hold some vectors of some atoms: what a run writes, resumes and hands on."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from run_folders import folder_of

from mdgraph.errors import FileError, InputError
from mdgraph.io.formats import FrameContents, create_trajectory, read_trajectory
from mdgraph.io.structures import read_system
from mdgraph.io.topology import write_pdb
from mdgraph.io.trajectories import Frame, TrajectoryReader
from mdgraph.runs.config import MDConfig
from mdgraph.runs.folder import RunDirectory
from mdgraph.runs.md import resume, start
from mdgraph.runs.protocol import read_protocol, run_protocol

Make = Callable[..., MDConfig]
SMALL = {"save": "positions", "save_precision": "single", "save_select": "element H"}
HYDROGENS = [1, 2, 4, 5]


def opened(configuration: MDConfig, part: RunDirectory | None = None) -> TrajectoryReader:
    folder = part or folder_of(configuration)
    return read_trajectory(folder.trajectory(configuration.trajectory))


def frames_of(configuration: MDConfig, part: RunDirectory | None = None) -> list[Frame]:
    with opened(configuration, part) as trajectory:
        return list(trajectory)


@pytest.fixture
def whole(configured: Make, tmp_path: Path, without_picture: None) -> list[Frame]:
    """Frames of the run that saves everything."""
    configuration = configured(out=str(tmp_path / "whole"))
    start(configuration)
    return frames_of(configuration)


@pytest.mark.usefixtures("without_picture")
class TestRuns:
    def test_write_what_they_are_told(self, configured: Make, whole: list[Frame]) -> None:
        configuration = configured(**SMALL)
        start(configuration)
        with opened(configuration) as trajectory:
            assert trajectory.numbers.tolist() == [1] * 4
            frames = list(trajectory)
        for frame, other in zip(frames, whole, strict=True):
            assert frame.positions.dtype == np.float64
            np.testing.assert_allclose(
                frame.positions, other.positions[HYDROGENS], rtol=1e-7, atol=0
            )
            assert frame.velocities is None
            assert np.isnan(frame.forces).all()
            assert frame.energy == other.energy
            np.testing.assert_array_equal(frame.cell, other.cell)
        with h5py.File(folder_of(configuration).trajectory("h5md")) as file:
            assert file["particles/all/position/value"].dtype == np.float32
            assert not {"velocity", "force"} & set(file["particles/all"])
        # Six atoms end the run, and a protocol would go on from them.
        assert len(read_system(folder_of(configuration).end)) == 6

    @pytest.mark.parametrize("fields", ["velocities", "forces,positions"])
    def test_write_vectors(self, configured: Make, whole: list[Frame], fields: str) -> None:
        configuration = configured(save=fields)
        start(configuration)
        for frame, other in zip(frames_of(configuration), whole, strict=True):
            np.testing.assert_array_equal(frame.positions, other.positions)
            if "forces" in fields:
                np.testing.assert_array_equal(frame.forces, other.forces)
                assert frame.velocities is None
            else:
                np.testing.assert_array_equal(frame.velocities, other.velocities)
                assert np.isnan(frame.forces).all()

    @pytest.mark.parametrize("word", ["h5md", "extxyz"])
    def test_select_atoms_in_any_format(
        self, configured: Make, whole: list[Frame], word: str
    ) -> None:
        configuration = configured(trajectory=word, save_select="element H")
        start(configuration)
        for frame, other in zip(frames_of(configuration), whole, strict=True):
            for name in ("positions", "velocities", "forces"):
                values = getattr(other, name)[HYDROGENS]
                np.testing.assert_allclose(getattr(frame, name), values, rtol=1e-15)

    def test_are_resumed_to_the_same_bits(self, configured: Make, tmp_path: Path) -> None:
        parted, once = (
            configured(steps=steps, out=str(tmp_path / f"{steps}"), **SMALL) for steps in (7, 20)
        )
        start(once)
        start(parted)
        resume(Path(parted.out), {"steps": 20})
        for first, second in zip(frames_of(parted), frames_of(once), strict=True):
            np.testing.assert_array_equal(first.positions, second.positions)
        path = folder_of(parted).trajectory("h5md")
        with h5py.File(path, "r+") as file:
            del file["observables/potential_energy"]
        with pytest.raises(FileError, match="lacks energy, so the run cannot go on with it"):
            resume(Path(parted.out), {"steps": 30})

    def test_of_replicas_select_in_each(self, configured: Make) -> None:
        configuration = configured(replicas=2, **SMALL)
        start(configuration)
        resume(Path(configuration.out), {"steps": 80})
        for number in range(2):
            frames = frames_of(configuration, folder_of(configuration).replica(number))
            assert {len(frame.positions) for frame in frames} == {4}


def test_picture_leaves_out_what_frames_lack(configured: Make) -> None:
    configuration = configured(save_select="index 0:2")
    start(configuration)
    assert folder_of(configuration).picture.exists()


@pytest.mark.usefixtures("without_picture")
def test_names_of_all_atoms_go_on(tiny_potential: Path, water_file: Path, tmp_path: Path) -> None:
    pdb, path, out = tmp_path / "water.pdb", tmp_path / "stages.yaml", tmp_path / "out"
    write_pdb(pdb, read_system(water_file))
    path.write_text(
        f"potential: {tiny_potential}\nevaluator: reference\nsteps: 4\nsave_select: name O\n"
        "stages: [{ensemble: nvt-langevin}, {ensemble: nve, fix: resname HOH and element H}]\n"
    )
    run_protocol(read_protocol(path, str(pdb), out), out)
    last = RunDirectory(out / "02-nve")
    assert last.read_record()["structure"]["fix"] == "1-2,4-5"
    assert read_system(last.topology).symbols == ["O", "O"]
    assert len(read_system(last.all_atoms)) == 6


@pytest.mark.usefixtures("without_picture")
def test_mdanalysis_opens_them(configured: Make) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own dependencies
        package = pytest.importorskip("MDAnalysis", reason="MDAnalysis is not installed")
        configuration = configured(**SMALL)
        start(configuration)
        folder = folder_of(configuration)
        universe = package.Universe(str(folder.topology), str(folder.trajectory("h5md")))
        frames = frames_of(configuration)
        assert len(universe.trajectory) == len(frames)
        for step, frame in zip(universe.trajectory, frames, strict=True):
            np.testing.assert_allclose(step.positions, frame.positions, rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"save": "postions"}, "did you mean positions?"),
        ({"save": ""}, "it should name some of positions, velocities, forces"),
        (
            {"save": "positions", "trajectory": "extxyz"},
            "save needs the trajectory h5md; leave it out, or choose that",
        ),
        ({"save_precision": "single", "trajectory": "extxyz"}, "save_precision needs the traj"),
        ({"save_select": "elment O"}, "'elment', begins no term; write element"),
    ],
)
def test_errors(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence.replace("?", r"\?")):
        MDConfig(**options)


def test_a_format_says_that_it_holds_all(water_file: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Frames in extxyz hold all vectors in float64; save all"):
        create_trajectory(tmp_path / "a.xyz", read_system(water_file), FrameContents(single=True))
    assert not (tmp_path / "a.xyz").exists()
