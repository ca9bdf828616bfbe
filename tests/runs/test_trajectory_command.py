"""`mdgraph trajectory` on runs: joined, cut, and refused in one sentence."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
import pytest

from mdgraph.io.formats import read_trajectory

Command = Callable[..., Any]


@pytest.fixture
def run(tiny_potential: Path, mdgraph_command: Command) -> Command:
    """Runs dynamics of a structure into a folder."""

    def start(structure: Path, out: Path, *options: object) -> Path:
        words = ["--potential", tiny_potential, "--trajectory-interval", 4, "--no-check"]
        done = mdgraph_command("md", structure, *words, "--out", out, *options)
        assert done.status == 0, done.err
        return out

    return start


def test_two_runs_become_one_file(
    run: Command, water_file: Path, tmp_path: Path, mdgraph_command: Command
) -> None:
    first = run(water_file, tmp_path / "first", "--steps", 8)
    second = run(first / "end.extxyz", tmp_path / "second", "--steps", 10)
    third = run(second / "end.extxyz", tmp_path / "third", "--steps", 4)
    out = tmp_path / "all.extxyz"
    done = mdgraph_command("trajectory", first, second, third, out)
    assert done.status == 0, done.err
    assert done.out == f"7 frames of 6 atoms, 0 to 0.011 ps, written to {out}\n"
    assert "second/trajectory.h5md begins with the last frame of" in done.err
    with read_trajectory(out) as trajectory:
        # The second run ended two steps after its last frame.
        assert trajectory.steps.tolist() == [0, 4, 8, 12, 16, 18, 22]
        joined = [frame.positions for frame in trajectory]
    with read_trajectory(third / "trajectory.h5md") as trajectory:
        np.testing.assert_array_equal(joined[-1], trajectory[1].positions)


def test_atoms_and_frames_are_chosen(
    run: Command, water_file: Path, tmp_path: Path, mdgraph_command: Command
) -> None:
    folder = run(water_file, tmp_path / "run", "--steps", 20, "--trajectory", "extxyz")
    out = tmp_path / "oxygens.traj"
    words = ["--select", "resname HOH and element O", "--first", 1, "--stride", 2]
    words += ["--whole", "--wrap"]
    done = mdgraph_command("trajectory", folder, out, *words)
    assert done.status == 0, done.err
    assert "3 frames of 2 atoms" in done.out
    assert "covalent radii in frame 0: 2 molecules" in done.err
    frames = ase.io.read(out, ":")
    assert [atoms.info["step"] for atoms in frames] == [4, 12, 20]
    assert {atoms.get_chemical_formula() for atoms in frames} == {"O2"}
    again = mdgraph_command("trajectory", folder, out)
    assert again.status == 1
    assert "oxygens.traj exists already; replace it with --overwrite" in again.err
    assert mdgraph_command("trajectory", folder, out, "--overwrite").status == 0
    assert len(ase.io.read(out, ":")) == 6
    names = mdgraph_command("trajectory", folder, tmp_path / "run.dcd")
    assert names.out.endswith(f"run.dcd, names of atoms to {tmp_path / 'run.dcd.pdb'}\n")
    assert ase.io.read(tmp_path / "run.dcd.pdb").get_chemical_formula() == "H4O2"


def test_wrong_arguments(
    run: Command, water_file: Path, tmp_path: Path, mdgraph_command: Command
) -> None:
    replicas = run(water_file, tmp_path / "many", "--steps", 4, "--replicas", 2)
    one, other = replicas / "replica-0", replicas / "replica-1"
    (tmp_path / "empty").mkdir()
    out = tmp_path / "out.dcd"
    for words, sentence in (
        ([out], "One path is given; give the runs to read"),
        ([replicas, out], f"holds several runs; give one, or some in order: {one}, {other}."),
        ([tmp_path / "empty", out], "empty holds no trajectory; give the folder of a run"),
        ([tmp_path / "nothing", out], "nothing; give the folder of a run, or a trajectory"),
        ([tmp_path / "nothing.h5md", out], "nothing.h5md; give the folder of a run"),
        ([one, tmp_path / "out.pdf"], "not as 'out.pdf'; end its name in one of these"),
        ([one, out, "--first", 5], "There is no frame 5: there are 2, from 0 to 1"),
        ([one, out, "--stride", 0], "--stride: it should be greater than or equal to 1"),
        ([one, out, "--select", "Xe"], "The structure has no Xe to choose"),
        ([one, out, "--select", "7"], "There are no atoms 7"),
        ([one, out, "--select", "resname LIG"], "no residue has the name LIG and the names are"),
        ([one, tmp_path / "no" / "out.dcd"], "no such file or folder"),
    ):
        done = mdgraph_command("trajectory", *words)
        assert done.status != 0
        assert sentence in done.err
        assert done.err.count("error") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "many"]


def test_a_left_handed_cell(
    run: Command, water_file: Path, tmp_path: Path, mdgraph_command: Command
) -> None:
    atoms = ase.io.read(water_file)
    atoms.set_cell(atoms.cell.array[[1, 0, 2]])
    ase.io.write(tmp_path / "left.extxyz", atoms)
    folder = run(tmp_path / "left.extxyz", tmp_path / "run", "--steps", 4)
    done = mdgraph_command("trajectory", folder, tmp_path / "out.xtc")
    assert done.status == 1
    assert "The cell of step 0 is left-handed, and XTC holds right-handed cells alone" in done.err
    assert not [path for path in tmp_path.iterdir() if "out" in path.name]
    assert mdgraph_command("trajectory", folder, tmp_path / "out.h5md").status == 0


def test_mdanalysis_opens_a_run(run: Command, water_file: Path, tmp_path: Path) -> None:
    mdanalysis = pytest.importorskip("MDAnalysis")
    folder = run(water_file, tmp_path / "run", "--steps", 12)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        universe = mdanalysis.Universe(
            str(folder / "topology.pdb"), str(folder / "trajectory.h5md")
        )
        assert universe.trajectory.n_frames == 4
        oxygens = universe.select_atoms("water and element O")
        assert oxygens.indices.tolist() == [0, 3]
        with read_trajectory(folder / "trajectory.h5md") as trajectory:
            for frame, timestep in zip(trajectory, universe.trajectory, strict=True):
                assert timestep.data["step"] == frame.step
                expected = frame.positions[[0, 3]]
                np.testing.assert_allclose(oxygens.positions, expected, rtol=1e-6)
                forces = frame.forces[[0, 3]] * 96.48533  # kJ/mol/A
                np.testing.assert_allclose(oxygens.forces, forces, rtol=1e-5, atol=1e-4)
