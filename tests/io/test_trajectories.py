"""Trajectories hold exactly their frames, while they are written and for other readers."""

import dataclasses
from pathlib import Path
from typing import Any

import ase.io
import h5py
import numpy as np
import pytest
from prepared import ended
from written_frames import (
    assert_atoms,
    assert_holds,
    assert_same,
    both_formats,
    frame,
    water,
    write,
)

from mdgraph.errors import FileError, InputError
from mdgraph.io.formats import TrajectoryReader, create_trajectory, read_trajectory
from mdgraph.io.structures import read_system


class TestFrames:
    @pytest.mark.parametrize("suffix", [".h5", ".h5md", ".hdf5", ".xyz", ".extxyz", ".H5"])
    def test_come_back_to_the_last_bit(self, tmp_path: Path, suffix: str) -> None:
        path = write(tmp_path / f"run{suffix}", range(0, 500, 100))
        assert_holds(path, [0, 100, 200, 300, 400])
        with read_trajectory(path) as reader:
            assert len(reader) == 5
            assert_same(reader[-1], frame(400))
            assert_same(reader[1], frame(100))
            np.testing.assert_array_equal(reader.numbers, water().numbers)
            np.testing.assert_array_equal(reader.masses, water().masses)
            np.testing.assert_array_equal(reader.pbc, water().pbc)
            for index in (5, -6):
                with pytest.raises(IndexError, match="5 frames"):
                    reader[index]

    @both_formats
    def test_of_a_molecule_have_neither_cell_nor_stress(self, tmp_path: Path, suffix: str) -> None:
        system = water(periodic=False)
        path = tmp_path / f"run{suffix}"
        with create_trajectory(path, system) as writer:
            writer.append(frame(1, system))
            with pytest.raises(InputError, match="no volume"):
                writer.append(dataclasses.replace(frame(2, system), stress=np.eye(3)))
        with read_trajectory(path) as reader:
            assert len(reader) == 1
            assert_same(reader[0], frame(1, system))

    @both_formats
    def test_may_lack_the_stress(self, tmp_path: Path, suffix: str) -> None:
        with create_trajectory(tmp_path / f"run{suffix}", water()) as writer:
            writer.append(frame(0, stress=False))
            writer.append(frame(1))
        with read_trajectory(tmp_path / f"run{suffix}") as reader:
            assert reader[0].stress is None
            assert_same(reader[1], frame(1))

    @both_formats
    def test_become_systems(self, tmp_path: Path, suffix: str) -> None:
        path = write(tmp_path / f"run{suffix}", range(3))
        system = read_system(path)
        np.testing.assert_array_equal(system.numbers, water().numbers)
        np.testing.assert_array_equal(system.masses, water().masses)
        np.testing.assert_array_equal(system.positions, frame(2).positions)
        np.testing.assert_array_equal(system.cell, frame(2).cell)
        assert system.velocities is not None
        np.testing.assert_allclose(system.velocities, frame(2).velocities, rtol=1e-14)

    @both_formats
    @pytest.mark.parametrize("step", [5, 4])
    def test_come_in_the_order_of_their_steps(self, tmp_path: Path, suffix: str, step: int) -> None:
        with create_trajectory(tmp_path / f"run{suffix}", water()) as writer:
            writer.append(frame(5))
            with pytest.raises(InputError, match="holds step 5 already"):
                writer.append(frame(step))
        assert_holds(tmp_path / f"run{suffix}", [5])

    @both_formats
    @pytest.mark.parametrize("name", ["positions", "velocities", "forces", "cell", "stress"])
    def test_of_another_shape_are_refused(self, tmp_path: Path, suffix: str, name: str) -> None:
        wrong = dataclasses.replace(frame(1), **{name: np.zeros((1, 3))})
        with create_trajectory(tmp_path / f"run{suffix}", water()) as writer:
            with pytest.raises(InputError, match=rf"{name} .* \(1, 3\)"):
                writer.append(wrong)
            writer.append(frame(2))
        assert_holds(tmp_path / f"run{suffix}", [2])


class TestWhileWritten:
    @both_formats
    def test_another_process_reads_all_frames(
        self, processes: Any, tmp_path: Path, suffix: str
    ) -> None:
        code = (
            "import sys\n"
            "from mdgraph.io.formats import read_trajectory\n"
            "with read_trajectory(sys.argv[1]) as reader:\n"
            "    print(*reader.steps, float(reader[-1].positions.sum()).hex())\n"
        )
        path = tmp_path / f"run{suffix}"
        with create_trajectory(path, water()) as writer:
            for step in range(3):
                writer.append(frame(step))
            output = ended(processes, ["-c", code, path]).stdout.split()
            writer.append(frame(3))
        assert output == ["0", "1", "2", float(frame(2).positions.sum()).hex()]

    @pytest.mark.parametrize("library", ["latest", "earliest"])
    def test_plain_h5py_reads_along(self, tmp_path: Path, library: str) -> None:
        path = tmp_path / "run.h5"
        with create_trajectory(path, water()) as writer:
            writer.append(frame(0))
            with h5py.File(path, "r", swmr=True, libver=library) as file:
                positions = file["particles/all/position/value"]
                assert len(positions) == 1
                writer.append(frame(1))
                positions.refresh()
                np.testing.assert_array_equal(positions[1], frame(1).positions)

    @both_formats
    def test_a_reader_keeps_its_frames(self, tmp_path: Path, suffix: str) -> None:
        path = tmp_path / f"run{suffix}"
        with create_trajectory(path, water()) as writer:
            assert_holds(path, [])
            writer.append(frame(0))
            with read_trajectory(path) as reader:
                writer.append(frame(1))
                assert len(reader) == 1
                assert_same(reader[0], frame(0))
            assert_holds(path, [0, 1])
            writer.sync()


class TestRefusals:
    def test_a_suffix_of_no_format(self, tmp_path: Path) -> None:
        for name in ("run.dcd", "run"):
            with pytest.raises(InputError, match=r"\.h5md.*\.extxyz"):
                create_trajectory(tmp_path / name, water())
            with pytest.raises(InputError, match="suffix"):
                read_trajectory(tmp_path / name)

    @both_formats
    def test_an_existing_file_is_not_replaced(self, tmp_path: Path, suffix: str) -> None:
        path = write(tmp_path / f"run{suffix}", range(3))
        with pytest.raises(FileError, match="it exists already"):
            create_trajectory(path, water())
        assert_holds(path, [0, 1, 2])

    @both_formats
    def test_places_where_no_file_can_be(self, tmp_path: Path, suffix: str) -> None:
        folder = tmp_path / f"folder{suffix}"
        folder.mkdir()
        (tmp_path / "file").write_bytes(b"")
        for act, place, reason in (
            (read_trajectory, folder, "it is a folder"),
            (read_trajectory, tmp_path / f"absent{suffix}", "no such file"),
            (create, tmp_path / f"absent/run{suffix}", "no such file or folder"),
            (create, tmp_path / f"file/run{suffix}", "not a folder"),
        ):
            with pytest.raises(FileError, match=reason):
                act(place)

    def test_files_of_other_programs(self, tmp_path: Path) -> None:
        foreign = tmp_path / "foreign.extxyz"
        ase.io.write(foreign, ase.Atoms("He", positions=[[0, 0, 0]]))
        with pytest.raises(FileError, match=r"Frame 0 of .*was not written by mdgraph"):
            read_trajectory(foreign)
        plain = tmp_path / "plain.h5"
        with h5py.File(plain, "w", libver="v110") as file:
            file["numbers"] = [1, 2]
        with pytest.raises(FileError, match="not a trajectory that this version"):
            read_trajectory(plain)

    def test_a_damaged_frame_is_named(self, tmp_path: Path) -> None:
        path = write(tmp_path / "run.xyz", range(3))
        lines = path.read_bytes().split(b"\n")
        lines[8 + 4] = b"H 1 2 3 rust"
        path.write_bytes(b"\n".join(lines))
        with read_trajectory(path) as reader:
            assert_same(reader[0], frame(0))
            with pytest.raises(FileError, match=r"Frame 1 of .*run\.xyz is damaged"):
                reader[1]


def create(path: Path) -> TrajectoryReader:
    create_trajectory(path, water()).close()
    return read_trajectory(path)


class TestOtherReaders:
    def test_ase_reads_extended_xyz(self, tmp_path: Path) -> None:
        path = write(tmp_path / "run.extxyz", range(3))
        atoms = ase.io.read(path, index=1)
        expected = frame(1)
        assert_atoms(atoms, expected)
        np.testing.assert_array_equal(atoms.get_forces(), expected.forces)
        assert atoms.get_potential_energy() == expected.energy
        assert expected.stress is not None
        symmetric = (expected.stress[[1, 0, 0], [2, 2, 1]], expected.stress[[2, 2, 1], [1, 0, 0]])
        np.testing.assert_array_equal(atoms.get_stress()[:3], np.diag(expected.stress))
        assert (atoms.get_stress()[3:] == symmetric).all(axis=1).any()
        assert atoms.info["step"] == 1
        assert atoms.info["time_fs"] == expected.time_fs
        assert atoms.info["temperature"] == expected.temperature

    def test_any_hdf5_program_reads_the_layout_of_h5md(self, tmp_path: Path) -> None:
        path = write(tmp_path / "run.h5", range(0, 30, 10))
        with h5py.File(path, "r") as file:
            assert file["h5md"].attrs["version"].tolist() == [1, 1]
            assert file["h5md/creator"].attrs["name"] == "mdgraph"
            assert "name" in file["h5md/author"].attrs
            particles = file["particles/all"]
            assert particles["species"][:].tolist() == [8, 1, 1, 8, 1, 1]
            assert particles["box"].attrs["dimension"] == 3
            boundary = particles["box"].attrs["boundary"].tolist()
            assert boundary == [b"periodic", b"periodic", b"none"]
            assert "unwrapped" in particles["position"].attrs["wrapping"]
            assert "image" not in particles
            for name, unit in {
                "particles/all/position": "Angstrom",
                "particles/all/velocity": "Angstrom fs-1",
                "particles/all/force": "kJ mol-1 Angstrom-1",
                "particles/all/box/edges": "Angstrom",
                "observables/potential_energy": "eV",
                "observables/kinetic_energy": "eV",
                "observables/temperature": "K",
                "observables/stress": "eV Angstrom-3",
            }.items():
                element = file[name]
                assert element["value"].attrs["unit"] == unit
                assert element["value"].shape[0] == 3
                assert element["step"][:].tolist() == [0, 10, 20]
                assert element["time"].attrs["unit"] == "fs"
                assert element["step"] == file["particles/all/position/step"]
            np.testing.assert_array_equal(particles["position/value"][2], frame(20).positions)
