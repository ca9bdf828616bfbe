"""H5MD trajectories in OVITO, whose Python module need not be installed."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from ase.geometry import complete_cell
from repository import ROOT
from written_frames import frame, water, write

from mdgraph.errors import FileError
from mdgraph.io.formats import create_trajectory
from mdgraph.io.trajectories import FrameContents

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
ENTRY_POINTS = PROJECT["entry-points"]["OVITO.FileReader"]


@pytest.fixture
def reader() -> Any:
    pytest.importorskip("ovito", exc_type=ImportError)
    from mdgraph.io.ovito import H5MDFileReader

    return H5MDFileReader()


def parsed(reader: Any, path: Path, index: int | None = 0) -> Any:
    from ovito.data import DataCollection

    data = DataCollection()
    reader.parse(data, str(path), frame_info=index, is_new_file=True, url="")
    return data


def test_it_reads_every_frame(reader: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "trajectory.h5md", range(0, 500, 100))
    assert reader.detect(str(path))
    frames: list[tuple[int, int]] = []
    reader.scan(str(path), lambda frame_info=None, label=None: frames.append((frame_info, label)))
    assert frames == [(0, 0), (1, 100), (2, 200), (3, 300), (4, 400)]
    for index, step in frames:
        data, expected = parsed(reader, path, index), frame(step)
        particles = data.particles
        np.testing.assert_array_equal(particles["Position"], expected.positions)
        np.testing.assert_array_equal(particles["Velocity"], expected.velocities)
        np.testing.assert_allclose(particles["Force"], expected.forces, rtol=1e-15)
        np.testing.assert_array_equal(particles["Mass"], water().masses)
        types = particles.particle_types
        assert [types.type_by_id(number).name for number in types] == ["O", "H", "H", "O", "H", "H"]
        np.testing.assert_array_equal(data.cell[:, :3].T, expected.cell)
        np.testing.assert_array_equal(data.cell[:, 3], 0.0)
        assert data.cell.pbc == (True, True, False)
        assert data.attributes["Timestep"] == step
        assert data.attributes["Time (fs)"] == expected.time_fs
        assert data.attributes["Potential energy (eV)"] == expected.energy


def test_a_frame_with_less_is_read(reader: Any, tmp_path: Path) -> None:
    system = water(periodic=False)
    path = tmp_path / "run.h5"
    contents = FrameContents(fields=("positions",))
    with create_trajectory(path, system, contents=contents) as writer:
        writer.append(frame(0, system))
    data = parsed(reader, path, None)
    assert set(data.particles.keys()) == {"Position", "Mass", "Particle Type"}
    assert data.cell is None


def test_a_cell_of_two_vectors_has_a_third(reader: Any, tmp_path: Path) -> None:
    cell = np.diag([5.0, 6.0, 0.0])
    system = water().replace(cell=cell)
    path = tmp_path / "slab.h5md"
    with create_trajectory(path, system) as writer:
        writer.append(frame(0, system))
    np.testing.assert_allclose(parsed(reader, path).cell[:, :3].T, complete_cell(cell))


def test_other_files_are_left_to_other_readers(reader: Any, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "other.h5md", "w") as file:
        file.create_group("h5md/creator").attrs["name"] = "another"
    with h5py.File(tmp_path / "bare.h5", "w") as file:
        file["x"] = 1
    (tmp_path / "cut.h5md").write_bytes((tmp_path / "bare.h5").read_bytes()[:100])
    (tmp_path / "frames.xyz").write_text("1\n\nH 0 0 0\n")
    paths = [*tmp_path.iterdir(), tmp_path / "absent", tmp_path]
    assert len(paths) == 6
    assert not any(reader.detect(str(path)) for path in paths)


def test_a_trajectory_without_frames_says_so(reader: Any, tmp_path: Path) -> None:
    path = write(tmp_path / "trajectory.h5md", range(0))
    with pytest.raises(FileError, match="holds no frame yet"):
        parsed(reader, path)


def test_ovito_finds_the_reader(reader: Any, tmp_path: Path) -> None:
    """As it does in an installed package; torch is imported for files of mdgraph alone."""
    path = write(tmp_path / "trajectory.h5md", range(0, 300, 100))
    (tmp_path / "one.xyz").write_text("1\n\nH 0 0 0\n")
    installed = tmp_path / "site" / "mdgraph-0.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: mdgraph\nVersion: 0\n")
    lines = [f"{name} = {target}" for name, target in ENTRY_POINTS.items()]
    (installed / "entry_points.txt").write_text("\n".join(["[OVITO.FileReader]", *lines, ""]))
    code = """
import sys
from ovito.io import import_file
import_file("one.xyz").compute()
assert "torch" not in sys.modules
trajectory = import_file("trajectory.h5md")
print(trajectory.source.num_frames, trajectory.compute(2).attributes["Timestep"])
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": f"{installed.parent}{os.pathsep}{ROOT}"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "3 200\n", done.stderr
    assert path.exists()


def test_the_entry_point_names_a_class() -> None:
    for target in ENTRY_POINTS.values():
        module, _, name = target.partition(":")
        source = (ROOT / Path(*module.split("."))).with_suffix(".py").read_text(encoding="utf-8")
        assert f"class {name}(FileReaderInterface)" in source
