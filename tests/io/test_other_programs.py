"""H5MD trajectories in ASE, by its entry point, and in MDAnalysis."""

import subprocess
import sys
import tomllib
import warnings
from importlib.metadata import EntryPoint
from pathlib import Path

import ase.io
import numpy as np
import pytest
from ase.io.formats import define_external_io_format, ioformats
from repository import ROOT
from written_frames import assert_atoms, frame, water, write

from mdgraph.io.topology import write_pdb
from mdgraph.units import KILOJOULE_PER_MOLE

GROUP = "ase.ioformats"


@pytest.fixture
def ase_format() -> None:
    """ASE knows the formats of this checkout, also where an older one is installed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for name, value in project["entry-points"][GROUP].items():
        if name not in ioformats:
            define_external_io_format(EntryPoint(name, value, GROUP))


@pytest.mark.usefixtures("ase_format")
class TestASE:
    def test_reads_every_frame(self, tmp_path: Path) -> None:
        path = write(tmp_path / "run.h5md", range(0, 500, 100))
        frames = ase.io.read(path, ":")
        assert [atoms.info["step"] for atoms in frames] == [0, 100, 200, 300, 400]
        assert [atoms.info["step"] for atoms in ase.io.read(path, "1:4:2")] == [100, 300]
        for atoms in (frames[-1], ase.io.read(path)):
            expected = frame(400)
            assert_atoms(atoms, expected)
            np.testing.assert_allclose(atoms.get_forces(), expected.forces, rtol=1e-15)
            assert atoms.get_potential_energy() == expected.energy
            assert atoms.info["temperature"] == expected.temperature
            assert expected.stress is not None
            np.testing.assert_array_equal(atoms.get_stress()[:3], np.diag(expected.stress))

    def test_imports_no_torch_for_it(self) -> None:
        code = "import sys, ase.io, mdgraph.io.ase_format; print('torch' in sys.modules)"
        command = [sys.executable, "-c", code]
        assert subprocess.check_output(command, cwd=ROOT, text=True).strip() == "False"


@pytest.mark.parametrize("periodic", [True, False])
def test_mdanalysis_reads_it(tmp_path: Path, periodic: bool) -> None:
    mdanalysis = pytest.importorskip("MDAnalysis")
    from mdgraph.io.formats import create_trajectory

    system = water(periodic)
    path = tmp_path / "trajectory.h5md"
    with create_trajectory(path, system) as writer:
        for step in range(0, 50, 10):
            writer.append(frame(step, system))
    write_pdb(tmp_path / "topology.pdb", system)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        universe = mdanalysis.Universe(str(tmp_path / "topology.pdb"), str(path))
        assert universe.trajectory.n_frames == 5
        for step, timestep in zip(range(0, 50, 10), universe.trajectory, strict=True):
            expected = frame(step, system)
            assert expected.velocities is not None
            assert timestep.time == pytest.approx(1e-3 * expected.time_fs)  # ps
            atoms = universe.atoms
            np.testing.assert_allclose(atoms.positions, expected.positions, rtol=1e-6, atol=1e-6)
            np.testing.assert_allclose(
                atoms.velocities, 1e3 * expected.velocities, rtol=1e-6, atol=1e-9
            )  # A/ps
            np.testing.assert_allclose(
                atoms.forces, expected.forces / KILOJOULE_PER_MOLE, rtol=1e-6, atol=1e-9
            )  # kJ/mol/A
            assert timestep.data["potential_energy"] == expected.energy
            if periodic:
                lengths = np.linalg.norm(expected.cell, axis=1)
                np.testing.assert_allclose(timestep.dimensions[:3], lengths, rtol=1e-6)
            else:
                assert timestep.dimensions is None
