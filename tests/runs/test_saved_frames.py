"""Frames that hold some vectors of some atoms: what a run writes, resumes and hands on."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ase.io
import h5py
import numpy as np
import pytest
from run_folders import folder_of

from mdgraph.errors import FileError, InputError
from mdgraph.io.formats import (
    FORMATS,
    FrameContents,
    TrajectoryFormat,
    create_trajectory,
    read_trajectory,
)
from mdgraph.io.h5md import H5MDReader, H5MDWriter
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
    @pytest.mark.parametrize("word", ["h5md", "extxyz"])
    def test_write_what_they_are_told(
        self, configured: Make, whole: list[Frame], word: str
    ) -> None:
        configuration = configured(trajectory=word, **SMALL)
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
        path = folder_of(configuration).trajectory(word)
        if word == "h5md":
            with h5py.File(path) as file:
                assert file["particles/all/position/value"].dtype == np.float32
                assert not {"velocity", "force"} & set(file["particles/all"])
        else:
            atoms = ase.io.read(path, -1)
            assert not atoms.has("momenta")
            assert set(atoms.arrays) == {"numbers", "positions", "masses"}
        topology = read_system(folder_of(configuration).topology).topology
        assert topology is not None
        assert topology.residue_names.tolist() == ["HOH"] * 4
        assert topology.names.tolist() == ["H1", "H2"] * 2
        # Six atoms end the run, and a protocol would go on from them.
        assert len(read_system(folder_of(configuration).end)) == 6

    @pytest.mark.parametrize("word", ["h5md", "extxyz"])
    @pytest.mark.parametrize("fields", ["velocities", "forces,positions"])
    def test_write_vectors(
        self, configured: Make, whole: list[Frame], fields: str, word: str
    ) -> None:
        configuration = configured(trajectory=word, save=fields)
        start(configuration)
        for frame, other in zip(frames_of(configuration), whole, strict=True):
            np.testing.assert_array_equal(frame.positions, other.positions)
            if "forces" in fields:
                np.testing.assert_allclose(frame.forces, other.forces, rtol=4e-16)
                assert frame.velocities is None
            else:
                np.testing.assert_allclose(frame.velocities, other.velocities, rtol=1e-15)
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

    @pytest.mark.parametrize("word", ["h5md", "extxyz"])
    def test_are_resumed_to_the_same_bits(
        self, configured: Make, tmp_path: Path, word: str
    ) -> None:
        parted, once = (
            configured(steps=steps, trajectory=word, out=str(tmp_path / f"{steps}"), **SMALL)
            for steps in (7, 20)
        )
        start(once)
        start(parted)
        resume(Path(parted.out), {"steps": 20})
        for first, second in zip(frames_of(parted), frames_of(once), strict=True):
            np.testing.assert_array_equal(first.positions, second.positions)
        path = folder_of(parted).trajectory(word)
        if word == "h5md":
            with h5py.File(path, "r+") as file:
                del file["observables/potential_energy"]
        else:
            with read_trajectory(path) as trajectory, read_trajectory(path) as copy:
                system = trajectory.system(0)
                path.unlink()
                contents = FrameContents(("positions", "forces"))
                with create_trajectory(path, system, contents) as writer:
                    for frame in copy:
                        writer.append(frame)
        message = "lacks energy, so the run|holds positions, forces and the run writes positions,"
        with pytest.raises(FileError, match=message):
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
    # Another run from the end selects by these names, of all its atoms.
    end = read_system(last.end)
    assert end.topology is not None
    assert end.topology.residue_names.tolist() == ["HOH"] * 6


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
        ({"save_select": "elment O"}, "'elment', begins no term; write element"),
    ],
)
def test_errors(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence.replace("?", r"\?")):
        MDConfig(**options)


def test_formats_of_others_hold_all(
    water_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = TrajectoryFormat("other", (".other",), H5MDWriter, H5MDReader)
    monkeypatch.setitem(FORMATS, "other", other)
    with pytest.raises(InputError, match="Frames in other hold all vectors in float64; save all"):
        create_trajectory(tmp_path / "a.other", read_system(water_file), FrameContents(single=True))
    assert not (tmp_path / "a.other").exists()
    with pytest.raises(ValueError, match="save needs a trajectory of the format h5md or extxyz"):
        MDConfig(trajectory="other", save="positions")


@pytest.mark.usefixtures("without_picture")
@pytest.mark.parametrize("word", ["h5md", "extxyz"])
@pytest.mark.parametrize("suffix", ["h5md", "extxyz", "traj"])
def test_convert(
    configured: Make, mdgraph_command: Callable[..., Any], tmp_path: Path, word: str, suffix: str
) -> None:
    configuration = configured(trajectory=word, **SMALL)
    start(configuration)
    target = tmp_path / f"frames.{suffix}"
    done = mdgraph_command("trajectory", configuration.out, target)
    assert done.status == 0, done.err
    frames = frames_of(configuration)
    if suffix == "traj":
        converted = [atoms.positions for atoms in ase.io.read(target, ":")]
    else:
        with read_trajectory(target) as trajectory:
            converted = [frame.positions for frame in trajectory]
    np.testing.assert_array_equal(converted, [frame.positions for frame in frames])
