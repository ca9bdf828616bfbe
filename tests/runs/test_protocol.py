"""Protocols: stages that follow one another, and go on where they stopped."""

import itertools
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
import pytest
from run_folders import content

from mdgraph.errors import FileError, InputError, MDGraphError
from mdgraph.io.formats import read_trajectory
from mdgraph.io.log import read_log
from mdgraph.io.structures import read_system
from mdgraph.io.topology import write_pdb
from mdgraph.runs import md
from mdgraph.runs.config import MDConfig, MinimizeConfig
from mdgraph.runs.folder import RunDirectory
from mdgraph.runs.protocol import FinishedRun, read_protocol, run_protocol
from mdgraph.runs.reporters import ProgressBar
from mdgraph.units import ACCELERATION

STAGES = """
seed: 3
device: cpu
timestep_fs: 0.25
trajectory_interval: 5
log_interval: 2
checkpoint_interval: 6
chunk: 2
stages:
  - run: minimise
    force_tolerance_eV_per_A: 1e-4
    steps: 20
  - name: heat
    ensemble: nvt-bussi
    temperature_K: 50:300
    steps: 20
  - ensemble: npt
    pressure_bar: 1000
    tau_p_fs: 50
    steps: 22
  - ensemble: nve
    steps: 20
"""


@pytest.fixture
def written(tmp_path: Path, tiny_potential: Path) -> Callable[..., Path]:
    """The protocol above as a file, with some texts replaced."""

    def write(*changes: tuple[str, str]) -> Path:
        text = f"potential: {tiny_potential}{STAGES}"
        for before, after in changes:
            assert before in text
            text = text.replace(before, after)
        path = tmp_path / "protocol.yaml"
        path.write_text(text)
        return path

    return write


@pytest.fixture
def without_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(md, "draw_picture", lambda *arguments: None)


def folders(out: Path) -> list[Path]:
    return sorted(path for path in out.iterdir() if path.is_dir())


def contents(path: Path, structure: Path, out: Path) -> list[dict[str, Any]]:
    stages = read_protocol(path, str(structure), out)
    return [content(stage.configuration) for stage in stages]  # type: ignore[arg-type]


def run(path: Path, structure: Path, out: Path) -> Any:
    return run_protocol(read_protocol(path, str(structure), out), out)


@pytest.mark.usefixtures("without_picture")
class TestStages:
    def test_begin_from_a_named_frame(
        self, tiny_potential: Path, water_file: Path, tmp_path: Path
    ) -> None:
        atoms: Any = ase.io.read(water_file)
        frames = [atoms.copy() for _ in range(3)]
        frames[1].rattle(0.01, seed=1)
        ase.io.write(tmp_path / "frames.extxyz", frames)
        path = tmp_path / "short.yaml"
        path.write_text(f"potential: {tiny_potential}\nsteps: 2\nstages: [{{}}]\n")
        for frame in (1, -2):
            out = tmp_path / f"out{frame}"
            run(path, tmp_path / f"frames.extxyz@{frame}", out)
            start = read_system(out / "01-nvt-langevin" / "start.extxyz")
            np.testing.assert_allclose(start.positions, frames[1].positions, atol=1e-7)
        with pytest.raises(InputError, match="holds no frame at index 3; it holds 3 frames"):
            run(path, tmp_path / "frames.extxyz@3", tmp_path / "none")

    def test_begin_where_the_one_before_ended(
        self, written: Callable[..., Path], water_file: Path, tmp_path: Path
    ) -> None:
        out = tmp_path / "out"
        outcome = run(written(), water_file, out)
        assert outcome.directory.path == out / "04-nve"
        assert [path.name for path in folders(out)] == [
            "01-minimise",
            "02-heat",
            "03-npt",
            "04-nve",
        ]
        ends = []
        for folder in folders(out):
            with read_trajectory(folder / "trajectory.h5md") as trajectory:
                ends.append((trajectory[0], trajectory.steps[-1], trajectory[-1]))
            with read_trajectory(folder / "end.extxyz") as trajectory:
                ends[-1] = (ends[-1][0], trajectory[-1])
        for (_, before), (after, _) in itertools.pairwise(ends):
            np.testing.assert_array_equal(after.positions, before.positions)
            np.testing.assert_array_equal(after.cell, before.cell)
            if before.velocities.any():
                # Those of a bath that acts in the middle of a step are half of one old.
                masses = read_system(water_file).masses[:, None]
                kick = 0.5 * 0.25 * ACCELERATION * before.forces / masses
                lag = kick if after is ends[-1][0] else 0.0
                expected = before.velocities + lag
                np.testing.assert_allclose(after.velocities, expected, rtol=1e-10)
            else:
                assert 0.0 < after.temperature < 200.0  # drawn at 50 K for N_f = 15
        assert (ends[3][0].cell != ends[0][0].cell).any()
        assert "conserved_energy_eV" in read_log(out / "04-nve" / "log.csv")

    @pytest.mark.parametrize("order", [("nvt-langevin", "nve"), ("nve", "nvt-langevin")])
    def test_go_on_along_one_path(
        self, order: tuple[str, str], tiny_potential: Path, water_file: Path, tmp_path: Path
    ) -> None:
        """Almost without friction, Langevin dynamics take the path of those without a bath."""
        common = f"potential: {tiny_potential}\nevaluator: reference\nfix: 0\n"
        common += "timestep_fs: 1.0\nsteps: 20\ntrajectory_interval: 5\n"
        kinds = {"nve": "{ensemble: nve}", "nvt-langevin": "{friction_per_ps: 1e-18}"}

        def positions(name: str, steps: int, *stages: str) -> list[Any]:
            path = tmp_path / f"{name}.yaml"
            text = common.replace("steps: 20", f"steps: {steps}")
            path.write_text(f"{text}stages: [{', '.join(kinds[stage] for stage in stages)}]")
            run(path, water_file, tmp_path / name)
            found = []
            for folder in folders(tmp_path / name):
                with read_trajectory(folder / "trajectory.h5md") as trajectory:
                    found += [frame.positions for frame in trajectory]
            return found

        whole = positions("whole", 40, order[0])
        parts = positions("parts", 20, *order)
        del parts[5]  # the end of the first is the start of the second
        assert np.abs(whole[8] - whole[4]).max() > 0.05
        np.testing.assert_allclose(parts, whole, atol=1e-6)

    def test_select_atoms_where_they_begin(
        self, tiny_potential: Path, water_file: Path, tmp_path: Path
    ) -> None:
        """Names come with a PDB file; the kick between two stages leaves out fixed atoms."""
        pdb, path, out = tmp_path / "water.pdb", tmp_path / "stages.yaml", tmp_path / "out"
        write_pdb(pdb, read_system(water_file))
        path.write_text(
            f"potential: {tiny_potential}\nevaluator: reference\nsteps: 5\ntimestep_fs: 0.25\n"
            "fix: resname HOH and not around 1.2 (index 0)\n"
            "stages: [{ensemble: nvt-langevin}, {ensemble: nve}]\n"
        )
        run(path, pdb, out)
        for folder in folders(out):
            assert RunDirectory(folder).read_record()["structure"]["fix"] == "0,3-5"
            with read_trajectory(folder / "end.extxyz") as trajectory:
                velocities = trajectory[0].velocities
            assert velocities.any(axis=1).tolist() == [False, True, True, False, False, False]
        path.write_text(path.read_text().replace("resname HOH", "resname LIG"))
        with pytest.raises(InputError, match="fix"):
            run(path, pdb, out)
        with pytest.raises(InputError, match="no residue has the name LIG and the names are HOH"):
            run(path, pdb, tmp_path / "other")

    def test_that_are_finished_are_not_run_again(
        self, written: Callable[..., Path], water_file: Path, tmp_path: Path
    ) -> None:
        out = tmp_path / "out"
        run(written(), water_file, out)
        before = contents(written(), water_file, out)
        assert run(written(), water_file, out) is None
        assert contents(written(), water_file, out) == before
        more = written(("  - ensemble: nve\n", "  - ensemble: nve\n    name: last\n"))
        with pytest.raises(InputError, match="was begun with folder 04-nve, now it is 04-last"):
            run(more, water_file, out)
        longer = written()
        longer.write_text(longer.read_text() + "  - ensemble: nvt-nose-hoover\n    steps: 4\n")
        assert run(longer, water_file, out).steps == 4
        assert len(folders(out)) == 5

    def test_are_named_where_a_run_is_looked_for(
        self, written: Callable[..., Path], tmp_path: Path, water_file: Path
    ) -> None:
        out = tmp_path / "protocol"
        run(written(), water_file, out)
        told = rf"holds the stages of a protocol; .* such as {out}/04-nve\."
        with pytest.raises(FileError, match=told):
            md.resume(out)
        with pytest.raises(FileError, match=told):
            FinishedRun.read(out)

    def test_that_changed_since_are_refused(
        self, written: Callable[..., Path], water_file: Path, tmp_path: Path
    ) -> None:
        out = tmp_path / "out"
        run(written(), water_file, out)
        before = contents(written(), water_file, out)
        changed = written(("pressure_bar: 1000", "pressure_bar: 2000"))
        with pytest.raises(
            InputError, match=r"Stage 3 in .* was begun with pressure_bar 1000\.0, now it is 2000"
        ):
            run(changed, water_file, out)
        with pytest.raises(InputError, match=r"Stage 1 in .* was begun with structure"):
            run(written(), out / "01-minimise" / "end.extxyz", out)
        assert contents(written(), water_file, out) == before

    def test_that_are_run_on_after_the_next_has_begun_are_told(
        self, written: Callable[..., Path], water_file: Path, tmp_path: Path
    ) -> None:
        out = tmp_path / "out"
        run(written(), water_file, out)
        longer = written(("K: 50:300\n    steps: 20", "K: 50:300\n    steps: 30"))
        with pytest.raises(InputError, match=r"Stage 2 .* was begun with steps 20, now it is 30"):
            run(longer, water_file, out)
        md.resume(out / "02-heat", {"steps": 30})
        before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
        with pytest.raises(InputError, match="03-npt did not begin from where 02-heat ends"):
            run(written(), water_file, out)
        (out / "03-npt").rename(tmp_path / "03-npt")
        with pytest.raises(InputError, match="04-nve did not begin from where 03-npt ends"):
            run(written(), water_file, out)
        assert {path: path.read_bytes() for path in before if path.exists()}.items() <= (
            before.items()
        )
        (out / "04-nve").rename(tmp_path / "04-nve")
        assert run(written(), water_file, out).directory.path == out / "04-nve"
        ends = [read_system(out / name) for name in ("02-heat/end.extxyz", "03-npt/start.extxyz")]
        np.testing.assert_array_equal(ends[0].positions, ends[1].positions)
        assert run(written(), water_file, out) is None

    def test_of_a_release_that_recorded_no_ends_go_on(
        self, written: Callable[..., Path], water_file: Path, tmp_path: Path
    ) -> None:
        out = tmp_path / "out"
        run(written(), water_file, out)
        record = json.loads((out / "protocol.json").read_text())
        ends = record.pop("ends")
        assert list(ends) == ["01-minimise", "02-heat", "03-npt"]
        (out / "protocol.json").write_text(json.dumps(record))
        assert run(written(), water_file, out) is None
        assert json.loads((out / "protocol.json").read_text())["ends"] == ends

    def test_keep_charge_and_masses(
        self, written: Callable[..., Path], water_file: Path, tmp_path: Path
    ) -> None:
        path = written(
            ("  - name: heat\n", "  - name: heat\n    hydrogen_mass_amu: 3.0\n    charge: 0\n")
        )
        run(path, water_file, tmp_path / "out")
        last = read_system(tmp_path / "out" / "04-nve" / "end.extxyz")
        np.testing.assert_array_equal(last.masses[[1, 2, 4, 5]], 3.0)


@pytest.mark.usefixtures("without_picture")
class TestGoingOn:
    @pytest.mark.parametrize(
        "stage", [2, *(pytest.param(stage, marks=pytest.mark.slow) for stage in (0, 1, 3))]
    )
    def test_after_a_kill_gives_the_same_bits(
        self,
        written: Callable[..., Path],
        water_file: Path,
        tmp_path: Path,
        processes: Any,
        stage: int,
    ) -> None:
        path = written()
        run(path, water_file, tmp_path / "whole")
        parted = tmp_path / "parted"
        victim = RunDirectory(folders(tmp_path / "whole")[stage]).path.name
        process = processes.Process(target=_run_slowly, args=(path, water_file, parted, victim))
        process.start()
        process.join(60)
        assert process.exitcode == -signal.SIGKILL
        assert (parted / victim / "run.json").exists()
        assert not (parted / victim / "end.extxyz").exists()
        run(path, water_file, parted)
        assert contents(path, water_file, parted) == contents(path, water_file, tmp_path / "whole")

    def test_after_a_signal_by_the_same_command(
        self,
        written: Callable[..., Path],
        water_file: Path,
        tmp_path: Path,
        mdgraph_command: Callable[..., Any],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        path, out = written(), tmp_path / "out"
        run(path, water_file, tmp_path / "whole")

        def interrupt(bar: ProgressBar, simulation: Any) -> None:
            if simulation.integrator.cell_varies and simulation.step == 10:
                os.kill(os.getpid(), signal.SIGTERM)

        with monkeypatch.context() as patched:
            patched.setattr(ProgressBar, "report", interrupt)
            done = mdgraph_command("protocol", path, water_file, "--out", out)
        assert done.status == 128 + signal.SIGTERM
        assert f"Stopped by SIGTERM in {out}/03-npt; continue with the same command." in done.out
        done = mdgraph_command("protocol", path, water_file, "--out", out)
        assert (done.status, "All stages are finished" in done.out) == (0, True)
        assert "Stage 2 of 4, heat: finished." in done.err
        assert contents(path, water_file, out) == contents(path, water_file, tmp_path / "whole")

    def test_never_touches_other_folders(
        self, written: Callable[..., Path], water_file: Path, tmp_path: Path
    ) -> None:
        out = tmp_path / "out"
        out.mkdir()
        (out / "thesis.tex").write_text("years of work")
        with pytest.raises(InputError, match="holds other files"):
            run(written(), water_file, out)
        assert [path.name for path in out.iterdir()] == ["thesis.tex"]

    @pytest.mark.parametrize("text", ["{", '{"stages": [{}]}'])
    def test_refuses_a_damaged_record(
        self, written: Callable[..., Path], water_file: Path, tmp_path: Path, text: str
    ) -> None:
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "protocol.json").write_text(text)
        with pytest.raises(FileError, match=r"protocol\.json is damaged"):
            run(written(), water_file, tmp_path / "out")


def _run_slowly(path: Path, structure: Path, out: Path, victim: str) -> None:
    """Runs until the middle of a stage, and dies there."""

    def die(bar: ProgressBar, simulation: Any) -> None:
        if (out / victim).exists() and simulation.step >= 14:
            os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60)

    ProgressBar.report = die  # type: ignore[method-assign]
    run(path, structure, out)


class TestFiles:
    def test_share_keys_and_no_seed(self, written: Callable[..., Path], tmp_path: Path) -> None:
        first, *rest = read_protocol(written(), None, tmp_path)
        assert isinstance(first.configuration, MinimizeConfig)
        dynamic = [stage.configuration for stage in rest]
        assert all(isinstance(one, MDConfig) and one.timestep_fs == 0.25 for one in dynamic)
        assert [getattr(one, "seed", None) for one in dynamic] == [4, 5, 6]
        assert [getattr(one, "pressure_bar", None) for one in dynamic] == [None, 1000.0, None]
        assert {one.chunk for one in dynamic} == {2}

    def test_own_keys_come_first(self, written: Callable[..., Path], tmp_path: Path) -> None:
        shared = ("seed: 3", "seed: 3\ntime_ps: 1")
        path = written(shared, ("- ensemble: npt", "- seed: 9\n    ensemble: npt"))
        stages = read_protocol(path, None, tmp_path)
        assert [stage.configuration.total_steps for stage in stages] == [20, 20, 22, 20]
        assert getattr(stages[2].configuration, "seed", None) == 9

    @pytest.mark.parametrize(
        ("change", "sentence"),
        [
            (("pressure_bar", "presure_bar"), "line 18: unknown key presure_bar; did you mean pr"),
            (("seed", "sed"), "line 2: unknown key sed; did you mean seed?"),
            (("stages:", "stage:"), "line 9: unknown key stage; did you mean stages?"),
            (("run: minimise", "run: minimse"), "line 10: run is minimse; did you mean minimise?"),
            (("ensemble: npt", "ensemble: nptt"), "ensemble is nptt; did you mean npt?"),
            (("nvt-bussi", "nve"), "line 13: nve has no bath whose temperature could change"),
            (
                ("npt\n", "nvt-bussi\n"),
                "line 17: nvt-bussi has no pressure_bar, tau_p_fs; leave them out",
            ),
            (("name: heat", "name: a/b"), "name is a/b; it should be letters"),
            (("steps: 22", "steps: 22\n    out: x"), "line 21: out is given on the command line"),
            (("steps: 22", "steps: 22\n    steps: 23"), "line 21: steps is given twice"),
            (
                ("    steps: 22", "    structure: x"),
                "line 20: structure is given on the command line",
            ),
        ],
    )
    def test_are_refused_in_a_sentence(
        self,
        written: Callable[..., Path],
        tmp_path: Path,
        change: tuple[str, str],
        sentence: str,
    ) -> None:
        with pytest.raises(MDGraphError) as caught:
            read_protocol(written(change), None, tmp_path)
        assert sentence in str(caught.value)
        assert str(caught.value).endswith((".", "?"))

    @pytest.mark.parametrize("text", ["", "stages:\n", "stages: 3\n", "stages: []\n", "seed: 1\n"])
    def test_without_stages(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "protocol.yaml").write_text(text)
        with pytest.raises(FileError, match="holds no list of stages"):
            read_protocol(tmp_path / "protocol.yaml", None, tmp_path)


class TestStagesThatCannotBe:
    @pytest.mark.parametrize(
        ("change", "sentence"),
        [
            (("ensemble: nve\n", "ensemble: nve\n    fix: 99\n"), "Stage 4 of 4, nve: .*99"),
            (("ensemble: nve\n", "ensemble: nve\n    fix: Cu\n"), "Stage 4 of 4, nve: .*Cu"),
            (("  - ensemble: npt\n", "  - ensemble: npt\n    fix: 0\n"), "Stage 3 of 4, npt: "),
            (("ensemble: nve\n", "ensemble: nve\n    potential: absent\n"), "Stage 4 .*absent"),
            (("ensemble: nve\n", "ensemble: nve\n    charge: 0\n"), None),
            (("ensemble: nve\n", "ensemble: nve\n    device: cuda:77\n"), "Stage 4 of 4, nve: "),
        ],
    )
    def test_are_found_before_the_first_runs(
        self,
        written: Callable[..., Path],
        water_file: Path,
        tmp_path: Path,
        change: tuple[str, str],
        sentence: str | None,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        begun: list[object] = []
        monkeypatch.setattr("mdgraph.runs.md.directory.new_run", begun.append)
        if sentence is None:
            with pytest.raises(TypeError):  # it does begin
                run(written(change), water_file, tmp_path / "out")
            return
        with pytest.raises(MDGraphError, match=sentence):
            run(written(change), water_file, tmp_path / "out")
        assert not begun
        assert not (tmp_path / "out").exists()
