"""Replicas that begin from structures of their own: what each gets, keeps and is refused."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
import pytest
from ase import Atoms, units
from shared_runs import run_shared

from mdgraph.engine import LangevinMiddle, PositionRestraints
from mdgraph.engine.replicas import replica_simulation
from mdgraph.errors import InputError
from mdgraph.io.formats import read_trajectory
from mdgraph.io.log import read_log
from mdgraph.io.structures import read_system
from mdgraph.io.trajectories import Frame
from mdgraph.runs.config import MDConfig, MinimizeConfig
from mdgraph.runs.config_files import read_configuration
from mdgraph.runs.folder import RunDirectory
from mdgraph.runs.md import resume, start
from mdgraph.runs.protocol import read_protocol, run_protocol

Make = Callable[..., MDConfig]


@pytest.fixture
def files(tmp_path: Path, water_file: Path) -> list[str]:
    """A box of two molecules, a single molecule, and that in a wider box, all in motion."""
    box: Any = ase.io.read(water_file)
    molecule = Atoms(box[:3], cell=None, pbc=False)
    wide = Atoms(box, cell=[6.0, 6.0, 6.0], pbc=True)
    generator = np.random.default_rng(4)
    paths = []
    for name, atoms in (("box", box), ("molecule", molecule), ("wide", wide)):
        atoms.set_velocities(generator.normal(scale=0.005, size=(len(atoms), 3)) / units.fs)
        paths.append(str(tmp_path / f"{name}.extxyz"))
        ase.io.write(paths[-1], atoms)
    return paths


@pytest.fixture
def configured(tmp_path: Path, tiny_potential: Path, files: list[str]) -> Make:
    def make(**changes: Any) -> MDConfig:
        options = {
            "structure": files,
            "potential": str(tiny_potential),
            "out": str(tmp_path / "run"),
            "device": "cpu",
            "evaluator": "reference",
            "steps": 20,
            "timestep_fs": 0.25,
            "trajectory_interval": 5,
            "log_interval": 5,
            "checkpoint_interval": 7,
            "check": False,
            "chunk": 3,
        }
        return MDConfig(**(options | changes))

    return make


def frames(folder: Path) -> list[Frame]:
    with read_trajectory(folder / "trajectory.h5md") as trajectory:
        return list(trajectory)


def test_each_moves_as_it_would_alone(configured: Make, files: list[str], tmp_path: Path) -> None:
    assert start(configured(ensemble="nve")).replicas == 3
    for number, file in enumerate(files):
        part = tmp_path / "run" / f"replica-{number}"
        alone = tmp_path / f"alone-{number}"
        start(configured(ensemble="nve", structure=file, out=str(alone)))
        for one, other in zip(frames(part), frames(alone), strict=True):
            np.testing.assert_allclose(one.positions, other.positions, atol=1e-6)
            np.testing.assert_allclose(one.velocities, other.velocities, atol=1e-7)
        columns = set(read_log(part / "log.csv"))
        assert columns == set(read_log(alone / "log.csv"))
        assert ("volume_A3" in columns) == (number != 1)
        assert len(read_system(part / "end.extxyz")) == len(read_system(file))


def test_resumes_to_the_same_bits(configured: Make, tmp_path: Path) -> None:
    held = {"ensemble": "nvt-bussi", "fix": "0", "restrain": "H"}
    start(configured(out=str(tmp_path / "whole"), **held))
    start(configured(steps=9, **held))
    resume(tmp_path / "run", {"steps": 20})
    for number in range(3):
        part = f"replica-{number}"
        both = [frames(tmp_path / name / part) for name in ("whole", "run")]
        for one, other in zip(*both, strict=True):
            np.testing.assert_array_equal(one.positions, other.positions)
            np.testing.assert_array_equal(one.velocities, other.velocities)


def test_atoms_of_each_are_held(configured: Make, files: list[str], tmp_path: Path) -> None:
    start(configured(fix="O", restrain="H", stiffness_eV_per_A2=1e3, steps=40))
    for number, file in enumerate(files):
        path = frames(tmp_path / "run" / f"replica-{number}")
        oxygens = read_system(file).numbers == 8
        moved = np.abs(path[-1].positions - path[0].positions)
        assert not moved[oxygens].any()
        # kT at 300 K bends such springs by 0.005 A.
        assert 0.0 < moved[~oxygens].max() < 0.05
        start_of = RunDirectory(tmp_path / "run" / f"replica-{number}").start
        np.testing.assert_array_equal(read_system(start_of).positions, path[0].positions)


def test_frames_of_one_file_and_copies_of_them(
    configured: Make, water_file: Path, tmp_path: Path
) -> None:
    box: Any = ase.io.read(water_file)
    shifted = box.copy()
    shifted.positions += [0.3, 0.0, 0.0]
    ase.io.write(tmp_path / "two.extxyz", [box, shifted])
    common = {"structure": str(tmp_path / "two.extxyz"), "steps": 5}
    outcome = start(configured(every_frame=True, out=str(tmp_path / "frames"), **common))
    assert outcome.replicas == 2
    start(configured(every_frame=True, replicas=4, out=str(tmp_path / "copies"), **common))
    begins = [frames(tmp_path / "copies" / f"replica-{number}")[0] for number in range(4)]
    np.testing.assert_allclose(begins[0].positions, box.positions)
    for one, other in ((0, 2), (1, 3)):
        np.testing.assert_array_equal(begins[one].positions, begins[other].positions)
        assert (begins[one].velocities != begins[other].velocities).all()
    np.testing.assert_allclose(begins[1].positions - begins[0].positions, [[0.3, 0, 0]] * 6)
    start(configured(out=str(tmp_path / "last"), replicas=2, **common))
    for number in range(2):
        first = frames(tmp_path / "last" / f"replica-{number}")[0]
        np.testing.assert_allclose(first.positions, shifted.positions)


def test_the_command_takes_several_files(
    mdgraph_command: Callable[..., Any], configured: Make, files: list[str], tmp_path: Path
) -> None:
    known = configured()
    common = ["--potential", known.potential, "--evaluator", "reference", "--steps", 3]
    done = mdgraph_command("md", *files, *common, "--minimize", "--out", tmp_path / "command")
    assert done.status == 0, done.err
    assert "H4 O2, charge 0 e" in done.err
    assert "H2 O1, charge 0 e" in done.err
    assert "3 systems minimised" in done.err
    assert "logs of 3 replicas are in" in done.out
    done = mdgraph_command("minimise", *files, *common, "--out", tmp_path / "minimum")
    assert done.status == 1
    assert "mdgraph relax moves many" in done.err


def test_ranks_share_them(processes: Any, configured: Make, tmp_path: Path) -> None:
    held = {"ensemble": "nvt-bussi", "fix": "0"}
    start(configured(out=str(tmp_path / "one"), **held))
    assert run_shared(processes, configured(steps=10, **held), False, dies_at=0) == [0, 0]
    assert run_shared(processes, configured(**held), True, dies_at=0) == [0, 0]
    for number, rank in ((0, 0), (1, 1), (2, 1)):
        one = frames(tmp_path / "one" / f"replica-{number}")
        shared = frames(tmp_path / "run" / f"rank-{rank}" / f"replica-{number}")
        for whole, part in zip(one, shared, strict=False):
            np.testing.assert_allclose(part.positions, whole.positions, atol=1e-6)


def test_stages_of_a_protocol_hand_over_every_replica(
    tmp_path: Path, tiny_potential: Path, water_file: Path
) -> None:
    path = tmp_path / "protocol.yaml"
    path.write_text(
        f"{{potential: {tiny_potential}, steps: 6, chunk: 2, timestep_fs: 0.25, "
        "evaluator: reference, stages: [{name: warm, replicas: 2}, {ensemble: nvt-bussi}]}"
    )
    run_protocol(read_protocol(path, str(water_file), tmp_path / "out"), tmp_path / "out")
    for number in range(2):
        first, second = (
            tmp_path / "out" / stage / f"replica-{number}" for stage in ("01-warm", "02-nvt-bussi")
        )
        end, begin = read_system(first / "end.extxyz"), frames(second)[0]
        np.testing.assert_array_equal(begin.positions, end.positions)
        assert end.velocities is not None
        np.testing.assert_allclose(begin.velocities, end.velocities, rtol=1e-13)
    path.write_text("{stages: [{replicas: 4}, {name: next, replicas: 2}]}")
    with pytest.raises(InputError, match="next has 2 replicas, and the stage before it 4"):
        read_protocol(path, None, tmp_path / "other")
    path.write_text("{stages: [{replicas: 4}, {run: minimise}]}")
    with pytest.raises(InputError, match="minimise has 1 replica, and the stage before it 4"):
        read_protocol(path, None, tmp_path / "other")


class TestRefused:
    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"replicas": 4}, "There are 4 replicas for 3 structures"),
            ({"exchange": 5, "temperatures_K": "300:400"}, "same atoms, cell and charge"),
            ({"ensemble": "npt"}, "Structure 2 of 3: npt needs a periodic cell"),
            (
                {"fix": "3-5"},
                "Structure 2 of 3: There are no atoms 3-5; atoms are counted from 0 to 2",
            ),
        ],
    )
    def test_what_cannot_be(
        self, configured: Make, tmp_path: Path, options: dict[str, Any], said: str
    ) -> None:
        with pytest.raises(InputError, match=said):
            start(configured(**options))
        assert not (tmp_path / "run").exists()

    def test_an_element_that_the_potential_does_not_know(
        self, configured: Make, files: list[str], tmp_path: Path
    ) -> None:
        ase.io.write(tmp_path / "neon.xyz", Atoms("Ne"))
        with pytest.raises(InputError, match=r"Structure 2 of 2: .*Ne"):
            start(configured(structure=[files[0], str(tmp_path / "neon.xyz")]))

    @pytest.mark.parametrize("wrong", [{"points": np.zeros((3, 3))}, {"stiffness": [1.0]}])
    def test_springs_that_do_not_fit_the_atoms(self, wrong: dict[str, Any]) -> None:
        springs = PositionRestraints(**({"atoms": [0, 1], "stiffness": 1.0} | wrong))
        with pytest.raises(InputError, match="There are 2 restrained atoms; give a point"):
            springs.within(range(1))

    def test_an_exchange_of_replicas_held_at_different_places(
        self, configured: Make, files: list[str]
    ) -> None:
        ladder = {"exchange": 5, "temperatures_K": "300:400", "restrain": "O"}
        with pytest.raises(InputError, match="held at the same places"):
            start(configured(structure=files[:1] * 2, **ladder))

    def test_options_without_their_structures(self) -> None:
        with pytest.raises(InputError, match="--every-frame needs structure files"):
            read_configuration(MDConfig, None, {"every_frame": True})
        ladder = {"structure": ["a", "b"], "temperatures_K": "300,310,320"}
        with pytest.raises(InputError, match="has 3 for 2 replicas; give one for each"):
            read_configuration(MDConfig, None, ladder)
        with pytest.raises(InputError, match="minimise moves one structure"):
            read_configuration(MinimizeConfig, None, {"structure": ["a", "b"]})

    def test_atoms_that_no_replica_has(self, tiny_potential: Path, water_file: Path) -> None:
        water, bath = read_system(water_file), LangevinMiddle(0.5, 300.0, 1.0)
        with pytest.raises(InputError, match=r"no atoms 12 to fix or restrain.* from 0 to 11"):
            replica_simulation(
                [water] * 2,
                tiny_potential,
                bath,
                device="cpu",
                fixed=[3],
                restraints=PositionRestraints([12], 1.0),
            )


def test_begin_from_named_frames_of_a_run(
    configured: Make, files: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    start(configured(structure=files[0], replicas=None, out=str(tmp_path / "before")))
    before, path = frames(tmp_path / "before"), tmp_path / "before" / "trajectory.h5md"
    caplog.set_level(logging.INFO)
    start(configured(structure=[f"{path}@1", f"{path}@-1"], replicas=None))
    for number, frame in enumerate((before[1], before[-1])):
        first = frames(tmp_path / "run" / f"replica-{number}")[0]
        np.testing.assert_array_equal(first.positions, frame.positions)
        np.testing.assert_array_equal(first.velocities, frame.velocities)
    lines = [record.getMessage() for record in caplog.records if "starts from" in record.message]
    assert lines == [
        f"The run starts from frame 1 of {path}, with its velocities.",
        f"The run starts from the last frame of {path}, with its velocities.",
    ]
    caplog.clear()
    start(configured(structure=f"{path}@0", replicas=2, out=str(tmp_path / "copies")))
    assert f"from frame 0 of {path}, with new velocities." in caplog.text
    counted = configured(structure=[f"{path}@0", f"{path}@2"], replicas=None, every_frame=True)
    counted = counted.model_copy(update={"out": str(tmp_path / "every"), "steps": 0})
    assert start(counted).replicas == 2
