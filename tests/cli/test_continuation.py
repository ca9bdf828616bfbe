"""`mdgraph md --from`: another run from the end of one, with its options."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ase.build import bulk, fcc111
from ase.constraints import FixAtoms, FixBondLengths
from ase.io import read, write
from ase.units import fs

from mdgraph.io.formats import read_trajectory

Command = Callable[..., Any]


def configuration_in(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "run.json").read_text(encoding="utf-8"))["configuration"]


@pytest.fixture
def slab(tmp_path: Path) -> Path:
    """A copper slab whose lower half ASE's FixAtoms holds."""
    atoms = fcc111("Cu", (3, 3, 4), vacuum=8.0)
    atoms.info.clear()
    atoms.set_constraint(FixAtoms(mask=[tag > 2 for tag in atoms.get_tags()]))
    atoms.rattle(0.02, seed=1)
    write(tmp_path / "slab.traj", atoms)
    return tmp_path / "slab.traj"


COPPER = ("--potential", "copper-pbe", "--no-check", "--device", "cpu")


class TestFrom:
    def test_options_velocities_and_atoms_are_taken_over(
        self, mdgraph_command: Command, slab: Path, tmp_path: Path
    ) -> None:
        run, new = tmp_path / "run", tmp_path / "new"
        options = ["--friction-per-ps", 3, "--timestep-fs", 1, "--log-interval-ps", 0.002]
        options += ["--restrain", "prop z > 13", "--steps", 20, "--seed", 6]
        done = mdgraph_command("md", slab, *COPPER, *options, "--out", run)
        assert done.status == 0, done.err
        done = mdgraph_command("md", "--from", run, "--temperature-K", 350, "--out", new)
        assert done.status == 0, done.err
        before, after = configuration_in(run), configuration_in(new)
        taken = ["potential", "friction_per_ps", "timestep_fs", "log_interval", "steps", "check"]
        assert [after[name] for name in taken] == [before[name] for name in taken]
        assert (after["temperature_K"], after["seed"]) == (350.0, 7)
        records = [json.loads((folder / "run.json").read_text()) for folder in (run, new)]
        fixed, sprung = ({r["structure"][word] for r in records} for word in ("fix", "restrain"))
        assert (fixed, len(sprung)) == ({"0-17"}, 1)
        with (
            read_trajectory(run / "end.extxyz") as end,
            read_trajectory(new / "start.extxyz") as it,
        ):
            np.testing.assert_array_equal(it[0].positions, end[0].positions)
            # Momenta are what the files hold, with all digits.
            np.testing.assert_allclose(it[0].velocities, end[0].velocities, rtol=1e-15)

    def test_velocities_suit_the_new_ensemble(
        self, mdgraph_command: Command, slab: Path, tmp_path: Path
    ) -> None:
        run, new = tmp_path / "run", tmp_path / "new"
        mdgraph_command("md", slab, *COPPER, "--friction-per-ps", 3, "--steps", 6, "--out", run)
        change = ["--ensemble", "nve", "--steps", 0]
        done = mdgraph_command("md", "--from", run, *change, "--out", new)
        assert done.status == 0, done.err
        assert configuration_in(new)["friction_per_ps"] is None
        end, start = read(run / "end.extxyz"), read(new / "start.extxyz")
        kick = 0.5 * 0.5 * 0.0096485333 * end.get_forces(apply_constraint=False)
        kick[end.constraints[0].index] = 0.0
        changed = (start.get_velocities() - end.get_velocities()) * fs
        np.testing.assert_allclose(changed, kick / end.get_masses()[:, None], atol=1e-9)

    def test_replicas_begin_from_their_own_ends(
        self, mdgraph_command: Command, tmp_path: Path
    ) -> None:
        run, new = tmp_path / "run", tmp_path / "new"
        options = ["--potential", "ethanol-pbe", "--no-check", "--device", "cpu", "--replicas", 2]
        options += ["--temperatures-K", "300:400", "--exchange", 5, "--steps", 10]
        done = mdgraph_command("md", *options, "--out", run)
        assert "New conditions" not in done.out  # of a ladder
        assert "mean temperature" not in done.out
        done = mdgraph_command("md", "--from", run, "--out", new)
        assert done.status == 0, done.err
        assert configuration_in(new)["temperatures_K"] == "300:400"
        for number in range(2):
            ends = [run / f"replica-{number}/end.extxyz", new / f"replica-{number}/start.extxyz"]
            old, fresh = (read(path) for path in ends)
            np.testing.assert_array_equal(old.positions, fresh.positions)
        for source, target, change in (
            (run, "one", ("--temperature-K", 350)),
            (tmp_path / "one", "ladder", ("--temperatures-K", "310:330")),
        ):
            new = tmp_path / target
            done = mdgraph_command("md", "--from", source, *change, "--steps", 2, "--out", new)
            assert done.status == 0, done.err
            after = configuration_in(new)
            assert ("mean temperature" in done.out) is (target == "one")
            ladder = {"one": (350.0, None), "ladder": (300.0, "310:330")}[target]
            assert (after["temperature_K"], after["temperatures_K"]) == ladder
            assert after["exchange"] is None

    def test_dynamics_follow_a_minimisation_for_their_own_length(
        self, mdgraph_command: Command, slab: Path, tmp_path: Path
    ) -> None:
        run, new = tmp_path / "run", tmp_path / "new"
        mdgraph_command("minimise", slab, *COPPER, "--steps", 3, "--out", run)
        done = mdgraph_command("md", "--from", run, "--time-ps", 0.002, "--out", new)
        assert (done.status, "(4 of 4 steps)" in done.out) == (0, True), done.err
        assert "copper-pbe" in done.err

    def test_dynamics_follow_a_minimisation_of_the_cell(
        self, mdgraph_command: Command, tmp_path: Path
    ) -> None:
        """Its coupling is that of an ensemble that has one."""
        run, cell = tmp_path / "run", ("--coupling", "x,y", "--pressure-bar", 5)
        write(crystal := tmp_path / "crystal.extxyz", bulk("Cu", cubic=True).repeat(2))
        done = mdgraph_command("minimise", crystal, *COPPER, *cell, "--steps", 3, "--out", run)
        assert done.status == 0, done.err
        for ensemble, coupling in (((), None), (("--ensemble", "npt"), "x,y")):
            new = tmp_path / f"new{len(ensemble)}"
            done = mdgraph_command("md", "--from", run, *ensemble, "--steps", 2, "--out", new)
            assert done.status == 0, done.err
            assert configuration_in(new)["coupling"] == coupling

    def test_what_cannot_be_is_refused_and_nothing_written(
        self, mdgraph_command: Command, slab: Path, tmp_path: Path
    ) -> None:
        run, new = tmp_path / "run", tmp_path / "new"
        limits = ["--steps", 20, "--chunk", 8, "--max-hours", 1e-9]
        mdgraph_command("md", slab, *COPPER, *limits, "--out", run)
        for options, words in (
            (["--from", run], "is not finished; continue it with --resume, or begin from its"),
            (["--from", tmp_path], "holds no run: there is no run.json in it"),
            (["--from", run, slab], "--from takes the structure from the end of the run"),
            (["--from", run, "--resume"], "--resume and --from, which begins another run, are"),
        ):
            done = mdgraph_command("md", *options, "--out", new)
            assert (done.status, words in done.err) == (1, True), done.err
            assert not new.exists()
        done = mdgraph_command("md", "--resume", "--out", run, "--temperature-K", 310)
        words = f"or begin another run from the end of this one: mdgraph md --from {run} "
        assert words + "--temperature-K 310 --out NEW." in done.err
        mdgraph_command("md", "--resume", "--out", run, "--max-hours", 1)
        record = json.loads((run / "run.json").read_text())
        del record["given"]
        (run / "run.json").write_text(json.dumps(record))
        done = mdgraph_command("md", "--from", run, "--out", new)
        assert "is of an earlier release, which did not record the options" in done.err


class TestFixedAtoms:
    @pytest.mark.parametrize("name", ["slab.traj", "slab.extxyz", "POSCAR"])
    def test_those_of_a_file_stay_also_when_resumed_and_from_the_end(
        self, mdgraph_command: Command, slab: Path, tmp_path: Path, name: str
    ) -> None:
        start, run = read(slab), tmp_path / "run"
        write(tmp_path / name, start)
        held = start.constraints[0].index
        command = ["md", tmp_path / name, *COPPER, "--fix", "35", "--steps", 6, "--out", run]
        done = mdgraph_command(*command)
        assert "The structure fixes the atoms 0-17." in done.err, done.err
        assert "3 x (36 - 19 fixed)" in done.err
        mdgraph_command("md", "--resume", "--extend-ps", 0.002, "--out", run)
        end = read(run / "end.extxyz")
        fixed = [*held, 35]
        np.testing.assert_allclose(end.positions[fixed], start.positions[fixed], atol=1e-12)
        assert (np.delete(end.positions - start.positions, fixed, axis=0) != 0.0).all()
        np.testing.assert_array_equal(end.constraints[0].index, held)
        again = tmp_path / "again"
        mdgraph_command("md", run / "end.extxyz", *COPPER, "--steps", 4, "--out", again)
        positions = read(again / "end.extxyz").positions
        np.testing.assert_array_equal(positions[held], end.positions[held])
        assert positions[35].tolist() != end.positions[35].tolist()
        # Frames of the trajectory keep the forces on all atoms.
        assert not read(again / "trajectory.h5md", -1).constraints

    def test_frames_of_a_run_that_lack_them_are_told(
        self, mdgraph_command: Command, slab: Path, tmp_path: Path
    ) -> None:
        run = tmp_path / "run"
        mdgraph_command("md", slab, *COPPER, "--fix", "35", "--steps", 2, "--out", run)
        words = f"The run in {run} fixed the atoms 0-17,35, and they are free in"
        for number, (start, fix, said) in enumerate(
            (
                (run / "end.extxyz", [], True),
                (f"{run / 'trajectory.h5md'}@-1", [], True),
                (run / "end.extxyz", ["--fix", "0-17,35"], False),
                (slab, [], False),
            )
        ):
            out = tmp_path / f"new-{number}"
            done = mdgraph_command("md", start, *COPPER, *fix, "--steps", 0, "--out", out)
            assert (words in done.err) == said, done.err

    def test_a_cell_that_varies_is_refused(self, mdgraph_command: Command, tmp_path: Path) -> None:
        atoms = bulk("Cu", cubic=True) * (2, 2, 2)
        atoms.set_constraint(FixAtoms([0]))
        write(tmp_path / "POSCAR", atoms)
        options = ["--ensemble", "npt", "--steps", 5, "--out", tmp_path / "run"]
        done = mdgraph_command("md", tmp_path / "POSCAR", *COPPER, *options)
        assert "or remove FixAtoms from the structure" in done.err
        assert not (tmp_path / "run").exists()

    def test_other_constraints_are_named(
        self, mdgraph_command: Command, slab: Path, tmp_path: Path
    ) -> None:
        atoms = read(slab)
        atoms.set_constraint(FixBondLengths([[0, 1]]))
        write(tmp_path / "bond.traj", atoms)
        done = mdgraph_command("md", tmp_path / "bond.traj", *COPPER, "--steps", 0)
        assert "its constraints FixBondLengths are not used, and these atoms move" in done.err

    def test_relax_holds_them(self, mdgraph_command: Command, slab: Path, tmp_path: Path) -> None:
        out = tmp_path / "out.extxyz"
        done = mdgraph_command("relax", slab, "--potential", "copper-pbe", "--out", out)
        assert done.status == 0, done.err
        start, end = read(slab), read(out)
        held = start.constraints[0].index
        np.testing.assert_allclose(end.positions[held], start.positions[held], atol=1e-8)
        assert (abs(end.positions[18:] - start.positions[18:]) > 1e-4).any()


class TestStart:
    def test_far_too_dense_a_start_is_told_and_a_usual_one_is_not(
        self, mdgraph_command: Command, tmp_path: Path
    ) -> None:
        start = read(Path("potentials") / "water-pbe0" / "start.extxyz")
        start.set_cell(start.cell * 0.96, scale_atoms=True)
        write(tmp_path / "dense.extxyz", start)
        options = ["--ensemble", "npt", "--steps", 0, "--no-check", "--device", "cpu", "--out"]
        done = mdgraph_command("md", tmp_path / "dense.extxyz", *options, tmp_path / "dense")
        density = 1.66053907 * start.get_masses().sum() / start.get_volume()
        assert (
            f" bar at {density:.3g} g/cm3, and 1 bar are asked for, so the cell will change fast; "
            "minimise atoms and cell first (mdgraph minimise STRUCTURE --coupling isotropic, then"
        ) in done.err
        copper = bulk("Cu", cubic=True) * (2, 2, 2)
        copper.set_cell(copper.cell * 0.85, scale_atoms=True)
        write(tmp_path / "copper.extxyz", copper)
        command = ["md", tmp_path / "copper.extxyz", *COPPER, *options, tmp_path / "copper"]
        assert "--coupling isotropic --potential copper-pbe, then" in mdgraph_command(*command).err
        for name in ("water-pbe0", "copper-pbe", "silicon-pbe"):
            command = ["md", "--potential", name, *options, tmp_path / name]
            assert "will change fast" not in mdgraph_command(*command).err

    def test_in_a_minimum_says_why_it_cools(self, mdgraph_command: Command, tmp_path: Path) -> None:
        def said(*options: object) -> str:
            out = tmp_path / str(len([*tmp_path.iterdir()]))
            given = ["--no-check", "--device", "cpu", "--steps", 0, "--out", out]
            done = mdgraph_command("md", *options, *given)
            assert done.status == 0, done.err
            return str(done.err)

        silicon = ("--potential", "silicon-pbe")
        text = said(*silicon, "--temperature-K", 250, "--exact-temperature")
        assert "falls from 250 to about 125 K, until the bath has warmed it again; leave" in text
        text = said(*silicon, "--ensemble", "nve", "--exact-temperature")
        assert "falls from 300 to about 150 K, and stays there, as nve has no bath; for" in text
        assert "for 300 K begin at twice that, --temperature-K 600, or run nvt-langevin" in text
        text = said(*silicon, "--replicas", 2, "--temperatures-K", "300,400")
        assert text.count("The start of replica 0 is at a minimum") == 1
        # Others do not cool: atoms that move, in a file with velocities too, and those at rest.
        assert "minimum" not in said("--potential", "water-pbe0")
        assert "minimum" not in said(*silicon, "--temperature-K", 0, "--ensemble", "nve")
        start = read(Path("potentials") / "silicon-pbe" / "start.extxyz")
        write(tmp_path / "pressed.extxyz", start)
        assert "minimum" in said(tmp_path / "pressed.extxyz", *silicon)
        start.rattle(0.05, seed=1)
        write(tmp_path / "pressed.extxyz", start)
        assert "minimum" not in said(tmp_path / "pressed.extxyz", *silicon)

    @pytest.mark.parametrize(
        ("options", "sentence"),
        [
            (["npt"], "alone; give --coupling x,y, or choose nve or an nvt ensemble."),
            (["npt", "--coupling", "full"], "is periodic along x,y alone; give --coupling x,y, or"),
            (["npt-mtk"], "alone; give --coupling semiisotropic-fixed-z, or choose nve"),
            (["npt", "--coupling", "semiisotropic"], "give --coupling semiisotropic-fixed-z, or"),
            (["npt-mtk", "--coupling", "semiisotropic-fixed-z"], ""),
            (["npt", "--coupling", "x,y"], ""),
            (["npt", "--coupling", "axes"], ""),
            (["npt", "--fix", "0"], "Fixed atoms would not follow a cell that varies; restrain"),
            (["npt", "--coupling", "x,y", "--fix", "0"], "Fixed atoms would not follow a cell"),
        ],
    )
    def test_of_a_slab_varies_its_periodic_directions(
        self, mdgraph_command: Command, tmp_path: Path, options: list[str], sentence: str
    ) -> None:
        given = ["--steps", 0, "--no-check", "--device", "cpu", "--out", tmp_path / "run"]
        slab = Path("examples") / "slab" / "slab.extxyz"
        done = mdgraph_command("md", slab, *COPPER, "--ensemble", *options, *given)
        assert (done.status, (tmp_path / "run").exists()) == (bool(sentence), not sentence)
        assert sentence in done.err.splitlines()[-1]

    def test_lengths_in_another_unit_are_told(
        self, mdgraph_command: Command, tmp_path: Path
    ) -> None:
        start = read(Path("potentials") / "water-pbe0" / "start.extxyz")
        start.set_cell(start.cell * 10.0, scale_atoms=True)
        write(tmp_path / "long.extxyz", start)
        options = ["--steps", 0, "--no-check", "--device", "cpu", "--out", tmp_path / "run"]
        done = mdgraph_command("md", tmp_path / "long.extxyz", *options)
        assert "No atom has another one within the cutoff of" in done.err

    def test_a_run_of_few_steps_has_rows_and_a_picture(
        self, mdgraph_command: Command, tmp_path: Path
    ) -> None:
        run = tmp_path / "run"
        options = ["--potential", "ethanol-pbe", "--no-check", "--device", "cpu", "--steps", 6]
        mdgraph_command("md", *options, "--out", run)
        assert len((run / "log.csv").read_text().splitlines()) == 1 + 7
        assert (run / "picture.png").exists()
