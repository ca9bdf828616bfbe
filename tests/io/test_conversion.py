"""Trajectories in other formats hold the frames and atoms that were chosen, for other readers."""

import dataclasses
import errno
import logging
import os
import resource
import shutil
import struct
import warnings
from pathlib import Path
from typing import Any

import ase.io
import h5py
import numpy as np
import pytest
from ase import units
from ase.build import molecule
from numpy.typing import NDArray
from openmm.app.internal.xtc_utils import read_xtc

from mdgraph.errors import FileError, InputError, MDGraphError
from mdgraph.io import conversion
from mdgraph.io.conversion import (
    JoinedTrajectory,
    convert_trajectory,
    frames_between,
    lower_triangular_cell,
    topology_beside,
)
from mdgraph.io.formats import create_trajectory, read_trajectory
from mdgraph.io.structures import read_system
from mdgraph.io.topology import write_pdb
from mdgraph.io.trajectories import Frame
from mdgraph.system import System, Topology

CELL = np.array([[9.0, 0, 0], [1.0, 9.5, 0], [0.3, 0.2, 10.0]])
FORMATS = [".h5md", ".extxyz", ".traj", ".dcd", ".xtc"]


def system(cell: NDArray[np.float64] = CELL) -> System:
    """Two molecules of water, one of them across faces of the cell."""
    positions = molecule("H2O").positions
    return System(
        numbers=np.array([8, 1, 1, 8, 1, 1]),
        positions=np.concatenate([positions, positions + [5.0, 5.0, 5.0]]),
        cell=cell,
        pbc=np.full(3, bool(cell.any())),
        masses=np.array([15.999, 2.014, 1.008, 15.999, 1.008, 1.008]),
    )


def frame(number: int, interval: int = 10, cell: NDArray[np.float64] = CELL) -> Frame:
    """The molecules at a frame, which drift through the cell."""
    random = np.random.default_rng(number)
    return Frame(
        step=number * interval,
        time_fs=number * interval * 0.5,
        positions=system().positions + number * np.array([0.7, -1.1, 0.4]),
        velocities=random.normal(scale=1e-2, size=(6, 3)),
        forces=random.normal(size=(6, 3)),
        energy=-30.0 - number,
        kinetic_energy=number / 7,
        temperature=300.0 + number,
        cell=cell * (1 + number * 1e-3),
        stress=random.normal(size=(3, 3)) if cell.any() else None,
    )


def write(path: Path, numbers: range, cell: NDArray[np.float64] = CELL, interval: int = 10) -> Path:
    path.parent.mkdir(exist_ok=True)
    with create_trajectory(path, system(cell)) as writer:
        for number in numbers:
            writer.append(frame(number, interval, cell))
    return path


def convert(path: Path, target: Path, **options: Any) -> Any:
    with JoinedTrajectory([path]) as trajectory:
        return convert_trajectory(trajectory, target, **options)


def dcd(path: Path) -> tuple[NDArray[np.float32], NDArray[np.float64], tuple[int, int, float]]:
    """Positions (frames, N, 3) in A, boxes (frames, 6), and first step, interval and time step."""
    content = path.read_bytes()
    count, first, interval = struct.unpack_from("<3i", content, 8)
    (timestep,) = struct.unpack_from("<f", content, 44)
    assert struct.unpack_from("<i", content, 48) == (1,)  # with boxes
    atoms = struct.unpack_from("<i", content, 268)[0]
    place, positions, boxes = 276, [], []
    for _ in range(count):
        boxes.append(struct.unpack_from("<6d", content, place + 4))
        place += 56
        axes = []
        for _ in range(3):
            axes.append(np.frombuffer(content, "<f4", atoms, place + 4))
            place += 8 + 4 * atoms
        positions.append(np.stack(axes, axis=1))
    assert place == len(content)
    return np.array(positions), np.array(boxes), (first, interval, timestep * 48.88821)


class TestEachFormat:
    def test_traj_holds_all_of_a_frame(self, tmp_path: Path) -> None:
        path = write(tmp_path / "run.h5md", range(5))
        convert(path, tmp_path / "run.traj")
        frames = ase.io.read(tmp_path / "run.traj", ":")
        assert len(frames) == 5
        for number, atoms in enumerate(frames):
            expected = frame(number)
            np.testing.assert_array_equal(atoms.positions, expected.positions)
            np.testing.assert_array_equal(atoms.cell.array, expected.cell)
            np.testing.assert_array_equal(atoms.get_masses(), system().masses)
            np.testing.assert_allclose(atoms.get_velocities() * units.fs, expected.velocities)
            np.testing.assert_allclose(atoms.get_forces(), expected.forces, rtol=1e-15)
            assert atoms.get_potential_energy() == expected.energy
            assert atoms.info["time_fs"] == expected.time_fs

    @pytest.mark.parametrize(("first", "second"), [(".h5md", ".extxyz"), (".extxyz", ".h5md")])
    def test_of_mdgraph_come_back(self, tmp_path: Path, first: str, second: str) -> None:
        path = write(tmp_path / f"run{first}", range(4))
        convert(path, tmp_path / f"new{second}")
        with read_trajectory(tmp_path / f"new{second}") as trajectory:
            assert trajectory.steps.tolist() == [0, 10, 20, 30]
            for number, found in enumerate(trajectory):
                for field in dataclasses.fields(Frame):
                    expected = getattr(frame(number), field.name)
                    np.testing.assert_allclose(getattr(found, field.name), expected, rtol=1e-14)

    def test_dcd_has_positions_boxes_and_times(self, tmp_path: Path) -> None:
        path = write(tmp_path / "run.h5md", range(1, 5))
        convert(path, tmp_path / "run.dcd")
        positions, boxes, (first, interval, timestep) = dcd(tmp_path / "run.dcd")
        assert (first, interval) == (10, 10)
        assert timestep == pytest.approx(0.5, rel=1e-6)
        for number in range(1, 5):
            expected = frame(number)
            np.testing.assert_allclose(positions[number - 1], expected.positions, atol=1e-5)
            lengths = np.linalg.norm(expected.cell, axis=1)
            np.testing.assert_allclose(boxes[number - 1, [0, 2, 5]], lengths, rtol=1e-6)

    def test_xtc_has_positions_boxes_and_times(self, tmp_path: Path) -> None:
        path = write(tmp_path / "run.h5md", range(1, 5))
        convert(path, tmp_path / "run.xtc")
        positions, boxes, times, steps = read_xtc(str(tmp_path / "run.xtc").encode())
        np.testing.assert_allclose(times, [0.005, 0.010, 0.015, 0.020], rtol=1e-6)  # ps
        assert steps.tolist() == [10, 20, 30, 40]
        for number in range(1, 5):
            expected = frame(number)
            at = 10 * positions[:, :, number - 1]
            np.testing.assert_allclose(at, expected.positions, atol=6e-3)
            np.testing.assert_allclose(10 * boxes[:, :, number - 1], expected.cell, atol=1e-5)

    @pytest.mark.parametrize("suffix", [".dcd", ".xtc", ".h5md"])
    def test_mdanalysis_reads_it_with_its_names(self, tmp_path: Path, suffix: str) -> None:
        mdanalysis = pytest.importorskip("MDAnalysis")
        path = write(tmp_path / "run.extxyz", range(3))
        target = tmp_path / f"oxygens{suffix}"
        convert(path, target, atoms=[0, 3])
        names = topology_beside(target)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            universe = mdanalysis.Universe(str(names), str(target))
            assert universe.atoms.names.tolist() == ["O", "O"]
            assert universe.trajectory.n_frames == 3
            for number, timestep in enumerate(universe.trajectory):
                expected = frame(number)
                places = expected.positions[[0, 3]]
                np.testing.assert_allclose(universe.atoms.positions, places, atol=6e-3)
                assert timestep.time == pytest.approx(1e-3 * expected.time_fs, abs=1e-6)
                lengths = np.linalg.norm(expected.cell, axis=1)
                np.testing.assert_allclose(timestep.dimensions[:3], lengths, rtol=1e-4)

    @pytest.mark.parametrize("suffix", FORMATS)
    def test_takes_molecules_without_a_cell(self, tmp_path: Path, suffix: str) -> None:
        path = write(tmp_path / "run.h5md", range(3), np.zeros((3, 3)))
        target = tmp_path / f"new{suffix}"
        assert convert(path, target, wrap=True, whole=True)[2] == 3
        if suffix == ".xtc":
            positions, boxes, _, _ = read_xtc(str(target).encode())
            np.testing.assert_allclose(10 * positions[:, :, 2], frame(2).positions, atol=6e-3)
            assert not boxes.any()


class TestCells:
    def test_positions_turn_with_the_cell(self, tmp_path: Path) -> None:
        rotation = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))[0]
        rotation *= np.linalg.det(rotation)
        turned = CELL @ rotation
        path = write(tmp_path / "run.h5md", range(2), turned)
        convert(path, tmp_path / "run.dcd")
        positions, boxes, _ = dcd(tmp_path / "run.dcd")
        np.testing.assert_allclose(boxes[0, [0, 2, 5]], np.linalg.norm(CELL, axis=1), rtol=1e-6)
        # Fractional coordinates are those of before.
        expected = frame(0).positions @ np.linalg.inv(turned)
        np.testing.assert_allclose(positions[0] @ np.linalg.inv(CELL), expected, atol=1e-5)

    def test_of_standard_form_stay(self) -> None:
        cell, rotation = lower_triangular_cell(CELL, "The cell", "DCD")
        np.testing.assert_array_equal(cell, CELL)
        np.testing.assert_array_equal(rotation, np.eye(3))

    def test_any_right_handed_cell_is_turned(self) -> None:
        random = np.random.default_rng(1)
        for _ in range(50):
            cell = random.normal(size=(3, 3))
            cell[2] *= np.sign(np.linalg.det(cell))
            box, rotation = lower_triangular_cell(cell, "The cell", "DCD")
            np.testing.assert_allclose(cell @ rotation, box, atol=1e-12)
            np.testing.assert_allclose(rotation @ rotation.T, np.eye(3), atol=1e-12)
            assert np.linalg.det(rotation) == pytest.approx(1.0)
            assert not np.triu(box, 1).any()
            assert (box.diagonal() > 0.0).all()

    @pytest.mark.parametrize("suffix", [".dcd", ".xtc"])
    def test_left_handed_ones_are_refused(self, tmp_path: Path, suffix: str) -> None:
        path = write(tmp_path / "run.h5md", range(2), CELL[[1, 0, 2]])
        name = suffix[1:].upper()
        sentence = f"The cell of step 0 is left-handed, and {name} holds right-handed"
        with pytest.raises(InputError, match=sentence):
            convert(path, tmp_path / f"new{suffix}")
        assert [file.name for file in tmp_path.iterdir()] == ["run.h5md"]
        convert(path, tmp_path / "new.extxyz")

    def test_positions_that_xtc_cannot_hold(self, tmp_path: Path) -> None:
        path = tmp_path / "run.h5md"
        with create_trajectory(path, system()) as writer:
            far = dataclasses.replace(frame(0), positions=frame(0).positions + 9e7)
            writer.append(far)
        with pytest.raises(MDGraphError):
            convert(path, tmp_path / "new.xtc")
        assert [file.name for file in tmp_path.iterdir()] == ["run.h5md"]


class TestAtoms:
    def test_are_made_whole_and_wrapped(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        path = write(tmp_path / "run.h5md", range(0, 40, 2))
        convert(path, tmp_path / "wrapped.h5md", wrap=True)
        with read_trajectory(tmp_path / "wrapped.h5md") as trajectory:
            frames = [*trajectory]
        broken = 0
        for found in frames:
            fractional = found.positions @ np.linalg.inv(found.cell)
            assert (fractional > -1e-9).all()
            assert (fractional < 1 + 1e-9).all()
            bonds = found.positions[[1, 2, 4, 5]] - found.positions[[0, 0, 3, 3]]
            broken += (np.linalg.norm(bonds, axis=1) > 1.1).sum()
        assert broken > 5
        with h5py.File(tmp_path / "wrapped.h5md") as file:
            assert "wrapped into" in file["particles/all/position"].attrs["wrapping"]
        with caplog.at_level(logging.INFO):
            options = {"wrap": True, "whole": True}
            convert(tmp_path / "wrapped.h5md", tmp_path / "whole.extxyz", **options)
        assert "sum of their covalent radii in frame 0: 2 molecules" in caplog.text
        with read_trajectory(tmp_path / "whole.extxyz") as trajectory:
            for found in trajectory:
                bonds = found.positions[[1, 2, 4, 5]] - found.positions[[0, 0, 3, 3]]
                np.testing.assert_allclose(np.linalg.norm(bonds, axis=1), 0.969, atol=2e-3)
                centers = found.positions.reshape(2, 3, 3).mean(axis=1)
                fractional = centers @ np.linalg.inv(found.cell)
                assert (fractional > -1e-9).all()
                assert (fractional < 1 + 1e-9).all()

    def test_are_whole_by_the_bonds_of_their_file(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        path = write(tmp_path / "trajectory.h5md", range(2))
        names = Topology(
            names=np.array(["OW", "H1", "H2"] * 2),
            residue_names=np.array(["SOL"] * 6),
            residues=np.array(["1"] * 3 + ["2"] * 3),
            chains=np.array([""] * 6),
            bonds=np.array([[0, 1], [0, 2], [3, 4], [3, 5]]),
        )
        write_pdb(tmp_path / "topology.pdb", system().replace(topology=names))
        with caplog.at_level(logging.INFO):
            convert(path, tmp_path / "new.dcd", whole=True, atoms=[3, 4])
        assert "Bonds are the CONECT records of topology.pdb: 2 molecules" in caplog.text
        topology = read_system(tmp_path / "new.dcd.pdb").topology
        assert topology is not None
        assert topology.names.tolist() == ["OW", "H1"]
        assert topology.residue_names.tolist() == ["SOL", "SOL"]
        assert topology.bonds.tolist() == [[0, 1]]

    @pytest.mark.parametrize("suffix", [".h5md", ".extxyz"])
    def test_have_no_energies_where_some_are_left_out(self, tmp_path: Path, suffix: str) -> None:
        path = write(tmp_path / "run.h5md", range(2))
        convert(path, tmp_path / f"new{suffix}", atoms=[1, 4])
        with read_trajectory(tmp_path / f"new{suffix}") as trajectory:
            assert trajectory.numbers.tolist() == [1, 1]
            assert trajectory.masses.tolist() == [2.014, 1.008]
            found = trajectory[1]
        np.testing.assert_array_equal(found.positions, frame(1).positions[[1, 4]])
        np.testing.assert_allclose(found.forces, frame(1).forces[[1, 4]], rtol=1e-15)
        assert np.isnan([found.energy, found.kinetic_energy, found.temperature]).all()
        assert found.stress is None


def test_a_file_that_is_being_written_becomes_one_for_any_program(tmp_path: Path) -> None:
    with create_trajectory(tmp_path / "run.h5md", system()) as writer:
        writer.append(frame(0))
        shutil.copy(tmp_path / "run.h5md", tmp_path / "killed.h5md")
        with pytest.raises(OSError, match="open for write"):
            h5py.File(tmp_path / "killed.h5md", "r")
        convert(tmp_path / "killed.h5md", tmp_path / "copy.h5md")
    with h5py.File(tmp_path / "copy.h5md", "r") as file:
        positions = file["particles/all/position/value"][:]
    np.testing.assert_array_equal(positions, [frame(0).positions])


class TestFrames:
    def test_are_chosen_by_first_last_and_stride(self, tmp_path: Path) -> None:
        path = write(tmp_path / "run.h5md", range(10))
        start, end, count = convert(path, tmp_path / "new.extxyz", first=2, last=-2, stride=3)
        assert (start.step, end.step, count) == (20, 80, 3)
        with read_trajectory(tmp_path / "new.extxyz") as trajectory:
            assert trajectory.steps.tolist() == [20, 50, 80]

    @pytest.mark.parametrize(
        ("options", "sentence"),
        [
            ({"first": 10}, "no frame 10: there are 10, from 0 to 9"),
            ({"last": -11}, "no frame -11"),
            ({"first": 5, "last": 4}, "Frame 5 .* comes after frame 4"),
            ({"stride": 0}, "stride is 0"),
        ],
    )
    def test_that_are_not_there(self, options: dict[str, int], sentence: str) -> None:
        arguments = {"first": 0, "last": -1, "stride": 1} | options
        with pytest.raises(InputError, match=sentence):
            frames_between(10, **arguments)

    def test_that_are_uneven_are_told(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        path = tmp_path / "run.h5md"
        with create_trajectory(path, system()) as writer:
            for number in (0, 1, 5):
                writer.append(frame(number))
        convert(path, tmp_path / "new.dcd")
        assert "not evenly spaced, and DCD holds one interval" in caplog.text
        caplog.clear()
        convert(path, tmp_path / "new.traj")
        assert "evenly" not in caplog.text

    def test_of_a_long_run_fit_into_32_bits(self, tmp_path: Path) -> None:
        path = write(tmp_path / "run.h5md", range(3), interval=3_000_000_000)
        convert(path, tmp_path / "new.xtc")
        _, _, times, steps = read_xtc(str(tmp_path / "new.xtc").encode())
        assert steps.tolist() == [0, 1, 2]
        np.testing.assert_allclose(times, [0.0, 1.5e6, 3e6], rtol=1e-6)


class TestJoined:
    def joined(self, *paths: Path) -> list[tuple[int, float, float]]:
        with JoinedTrajectory(paths) as trajectory:
            frames = [*trajectory]
            assert trajectory.steps.tolist() == [item.step for item in frames]
            assert len(trajectory) == len(frames)
        return [(item.step, item.time_fs, item.energy) for item in frames]

    def test_a_run_that_begins_where_another_ended(self, tmp_path: Path) -> None:
        first = write(tmp_path / "run.h5md", range(3))
        second = tmp_path / "next.extxyz"
        with create_trajectory(second, system()) as writer:
            for number in range(3):
                later = dataclasses.replace(frame(number + 2), step=5 * number, time_fs=number)
                writer.append(later)
        assert self.joined(first, second) == [
            (0, 0.0, -30.0),
            (10, 5.0, -31.0),
            (20, 10.0, -32.0),
            (25, 11.0, -33.0),
            (30, 12.0, -34.0),
        ]

    def test_a_run_that_begins_anew_follows(self, tmp_path: Path) -> None:
        first = write(tmp_path / "run.h5md", range(3))
        second = write(tmp_path / "other.h5md", range(2))
        steps = [step for step, _, _ in self.joined(first, second)]
        assert steps == [0, 10, 20, 30, 40]

    def test_the_end_of_a_run_may_lie_after_its_last_frame(self, tmp_path: Path) -> None:
        first = write(tmp_path / "a" / "trajectory.h5md", range(3))
        with create_trajectory(tmp_path / "a" / "end.extxyz", system()) as writer:
            writer.append(dataclasses.replace(frame(3), step=25, time_fs=12.5))
        second = write(tmp_path / "b" / "trajectory.h5md", range(2))
        assert [item[:2] for item in self.joined(first, second)][3:] == [(25, 12.5), (35, 17.5)]

    def test_parts_of_one_run_keep_their_steps(self, tmp_path: Path) -> None:
        first = write(tmp_path / "a.h5md", range(3))
        second = write(tmp_path / "b.h5md", range(2, 5))
        third = write(tmp_path / "c.h5md", range(7, 9))
        steps = [step for step, _, _ in self.joined(first, second, third)]
        assert steps == [0, 10, 20, 30, 40, 70, 80]

    def test_of_other_atoms_are_refused(self, tmp_path: Path) -> None:
        first = write(tmp_path / "a.h5md", range(2))
        other = tmp_path / "b.extxyz"
        with create_trajectory(other, System([18], [[0, 0, 0]])) as writer:
            zeros = np.zeros((1, 3))
            writer.append(Frame(0, 0.0, zeros, zeros, zeros, 0.0, 0.0, 0.0, np.zeros((3, 3))))
        with pytest.raises(InputError, match=r"b\.extxyz has other atoms"):
            JoinedTrajectory([first, other])

    def test_without_frames_are_refused(self, tmp_path: Path) -> None:
        path = write(tmp_path / "a.h5md", range(0))
        with pytest.raises(FileError, match=r"a\.h5md holds no frames"):
            JoinedTrajectory([path])


class TestFiles:
    def test_other_suffixes_and_the_source_itself_are_refused(self, tmp_path: Path) -> None:
        path = write(tmp_path / "run.h5md", range(2))
        with pytest.raises(InputError, match=r"not as 'run\.gro'"):
            convert(path, tmp_path / "run.gro")
        with pytest.raises(InputError, match="is read itself"):
            convert(path, path, overwrite=True)

    @pytest.mark.parametrize("suffix", FORMATS)
    def test_are_replaced_where_asked(self, tmp_path: Path, suffix: str) -> None:
        path = write(tmp_path / "run.extxyz", range(2))
        target = tmp_path / f"new{suffix}"
        target.write_text("years of work")
        with pytest.raises(FileError, match="exists already; replace it with --overwrite"):
            convert(path, target)
        assert target.read_text() == "years of work"
        convert(path, target, overwrite=True)
        assert not target.read_bytes().startswith(b"years")
        assert not [file for file in tmp_path.iterdir() if file.name.startswith(".")]

    def test_names_are_not_replaced_unasked(self, tmp_path: Path) -> None:
        path = write(tmp_path / "run.extxyz", range(2))
        (tmp_path / "new.xtc.pdb").write_text("years of work")
        with pytest.raises(FileError, match=r"new\.xtc\.pdb exists already"):
            convert(path, tmp_path / "new.xtc")
        assert not (tmp_path / "new.xtc").exists()

    def test_damage_leaves_no_file(self, tmp_path: Path) -> None:
        path = write(tmp_path / "run.extxyz", range(3))
        lines = path.read_bytes().split(b"\n")
        lines[8 + 4] = b"H 1 2 3 rust"
        path.write_bytes(b"\n".join(lines))
        with pytest.raises(FileError, match=r"Frame 1 of .*run\.extxyz is damaged"):
            convert(path, tmp_path / "new.dcd")
        assert [file.name for file in tmp_path.iterdir()] == ["run.extxyz"]

    def test_without_velocities_say_so_by_their_name(self, tmp_path: Path) -> None:
        path = write(tmp_path / "run.h5md", range(2))
        without = write(tmp_path / "more.h5md", range(1, 3))
        with h5py.File(without, "r+") as file:
            del file["particles/all/velocity"]
        with (
            JoinedTrajectory([path, without]) as trajectory,
            pytest.raises(InputError, match=r"A frame for \S*/new.extxyz has no velocities"),
        ):
            convert_trajectory(trajectory, tmp_path / "new.extxyz")
        convert(without, tmp_path / "new.traj")

    @pytest.mark.parametrize("suffix", ["extxyz", "h5md"])
    def test_hold_what_every_frame_lacks_neither(self, tmp_path: Path, suffix: str) -> None:
        path = write(tmp_path / "run.h5md", range(2))
        with h5py.File(path, "r+") as file:
            del file["particles/all/velocity"], file["particles/all/force"]
        convert(path, tmp_path / f"new.{suffix}")
        with read_trajectory(tmp_path / f"new.{suffix}") as trajectory:
            np.testing.assert_array_equal(trajectory[1].positions, frame(1).positions)
            assert trajectory[1].velocities is None
            assert np.isnan(trajectory[1].forces).all()


@pytest.mark.parametrize("suffix", [".h5md", ".extxyz", ".dcd", ".xtc"])
def test_a_full_disk_is_told_and_leaves_nothing(tmp_path: Path, suffix: str) -> None:
    """By the largest size of a file; at the end of a frame too, and for the names beside it."""
    source = write(tmp_path / "run.h5md", range(40))
    whole = tmp_path / f"whole{suffix}"
    convert(source, whole)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for size in (whole.stat().st_size // 2, whole.stat().st_size - 3):
        target = tmp_path / "small" / f"new{suffix}"
        target.parent.mkdir(exist_ok=True)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
        try:
            with pytest.raises(FileError, match=rf"Cannot write {target}: "):
                convert(source, target)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert not [*target.parent.iterdir()]


@pytest.mark.parametrize("suffix", [".dcd", ".xtc"])
def test_no_trajectory_is_left_without_its_names(
    tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write(tmp_path / "run.h5md", range(2))

    def full(path: Path, system: System) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(conversion, "write_pdb", full)
    with pytest.raises(FileError, match=rf"new{suffix}\.pdb: the disk is full"):
        convert(source, tmp_path / f"new{suffix}")
    assert [*tmp_path.iterdir()] == [source]
