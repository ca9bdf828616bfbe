"""Run folders: what is in them, and that no interruption changes a bit."""

import errno
import io
import logging
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from prepared import PreparedProcess
from run_folders import content, folder_of, rows
from torch.profiler import ProfilerActivity, profile

import mdgraph
from mdgraph import memory
from mdgraph.checkpoints import load
from mdgraph.engine import Calculation
from mdgraph.errors import CapacityError, FileError, InputError
from mdgraph.io.formats import read_trajectory
from mdgraph.io.log import read_log
from mdgraph.io.structures import read_system
from mdgraph.models import TensorNetPotential
from mdgraph.runs import md, reporters, summary
from mdgraph.runs.config import MDConfig
from mdgraph.runs.folder import Run, RunDirectory
from mdgraph.runs.md import resume, start

ROOT = Path(mdgraph.__file__).parent.parent


class TestTheFolder:
    @pytest.mark.usefixtures("drawn_pictures")
    def test_holds_all_that_was_asked_for(self, configured: Callable[..., MDConfig]) -> None:
        configuration = configured(steps=20, time_ps=None)
        outcome = start(configuration)
        folder = folder_of(configuration)
        assert sorted(path.name for path in folder.path.iterdir()) == [
            "checkpoint.safetensors",
            "end.extxyz",
            "log.csv",
            "picture.png",
            "run.json",
            "start.extxyz",
            "topology.pdb",
            "trajectory.h5md",
        ]
        assert outcome.steps == outcome.total_steps == 20
        assert outcome.signal is None
        log = read_log(folder.log)
        np.testing.assert_array_equal(log["step"], [0, 3, 6, 9, 12, 15, 18])
        np.testing.assert_allclose(log["time_ps"], 5e-4 * log["step"])
        assert outcome.mean_temperature == log["temperature_K"].mean()
        assert np.isnan(log["ns_per_day"][0])
        assert (log["ns_per_day"][1:] > 0).all()
        with read_trajectory(folder.trajectory("h5md")) as trajectory:
            np.testing.assert_array_equal(trajectory.steps, [0, 4, 8, 12, 16, 20])
            last = trajectory[-1]
        assert last.time_fs == 10.0
        assert last.stress is not None
        assert folder.picture.read_bytes().startswith(b"\x89PNG")

    def test_records_everything_chosen(
        self, configured: Callable[..., MDConfig], tiny_potential: Path, water_file: Path
    ) -> None:
        configuration = configured(steps=None, time_ps=0.002, ensemble="nve")
        start(configuration)
        record = folder_of(configuration).read_record()
        kept = record["configuration"]
        assert kept["steps"] == 4
        assert kept["device"] in ("cpu", "cuda")
        assert kept["charge"] == 0.0
        assert kept["structure"] == [str(water_file)]
        assert None not in (kept["skin_A"], kept["chunk"], kept["maximum_temperature_K"])
        assert record["potential"]["reference"] == str(tiny_potential)
        sums = subprocess.run(["sha256sum", tiny_potential], capture_output=True, check=True)
        assert record["potential"]["sha256"] == sums.stdout.decode().split()[0]
        assert record["chosen"]["degrees_of_freedom"].startswith("3 x 6 - 3 (centre of mass")
        assert record["structure"]["formula"] == "H4 O2"
        assert record["environment"]["mdgraph"] == mdgraph.__version__
        assert record["environment"]["torch"]

    def test_begins_where_the_structure_is(
        self, configured: Callable[..., MDConfig], water_file: Path
    ) -> None:
        configuration = configured(steps=0)
        start(configuration)
        began = read_system(folder_of(configuration).start)
        np.testing.assert_array_equal(began.positions, read_system(water_file).positions)

    def test_velocities_of_the_structure_are_kept_unless_new_ones_are_asked_for(
        self, configured: Callable[..., MDConfig], tmp_path: Path
    ) -> None:
        first = configured(steps=4)
        start(first)
        given = str(folder_of(first).start)
        kept = configured(steps=0, structure=given, out=str(tmp_path / "kept"), seed=99)
        drawn = configured(
            steps=0,
            structure=given,
            out=str(tmp_path / "drawn"),
            seed=99,
            new_velocities=True,
            exact_temperature=True,
            temperature_K=500.0,
            ensemble="nve",
        )
        for configuration in (kept, drawn):
            start(configuration)
        before = read_system(given).velocities
        assert before is not None
        after = read_system(folder_of(kept).start).velocities
        np.testing.assert_allclose(after, before, rtol=1e-12)
        log = read_log(folder_of(drawn).log)
        np.testing.assert_allclose(log["temperature_K"][0], 500.0, rtol=1e-9)

    def test_minimising_lowers_the_energy_first(
        self, configured: Callable[..., MDConfig], tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        plain, minimised = (
            configured(steps=0, out=str(tmp_path / name), minimize=name == "minimised")
            for name in ("plain", "minimised")
        )
        with caplog.at_level(logging.INFO, "mdgraph"):
            for configuration in (plain, minimised):
                start(configuration)
        energies = [
            read_log(folder_of(configuration).log)["potential_energy_eV"][0]
            for configuration in (plain, minimised)
        ]
        assert energies[1] < energies[0]
        with read_trajectory(folder_of(minimised).start) as trajectory:
            forces = trajectory[0].forces
        assert np.linalg.norm(forces, axis=1).max() < 0.051
        assert "fell by up to" in caplog.text

    def test_the_memory_is_said(
        self,
        configured: Callable[..., MDConfig],
        caplog: pytest.LogCaptureFixture,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(summary, "run_memory", lambda *_, **__: 1200)
        monkeypatch.setattr(summary, "available_memory", lambda device: 1000)
        with caplog.at_level(logging.INFO, "mdgraph"):
            start(configured(steps=0, device="cpu"))
        (warning,) = [record for record in caplog.records if record.levelno == logging.WARNING]
        assert "MB of memory are needed" in warning.getMessage()

    def test_what_memory_cannot_hold_is_refused_before_it_is_taken(
        self, configured: Callable[..., MDConfig], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        configuration = configured(steps=0, device="cpu", replicas=30_000)
        monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)
        monkeypatch.setattr(summary, "available_memory", lambda device: 10**8)
        with pytest.raises(CapacityError, match=r"30,000 systems would take about .* GB of memory"):
            start(configuration)
        assert not Path(configuration.out).exists()

    @pytest.mark.parametrize("terminal", [True, False])
    def test_progress_is_shown_on_a_terminal_alone(
        self, configured: Callable[..., MDConfig], monkeypatch: pytest.MonkeyPatch, terminal: bool
    ) -> None:
        screen = io.StringIO()
        monkeypatch.setattr(screen, "isatty", lambda: terminal, raising=False)
        monkeypatch.setattr(sys, "stderr", screen)
        start(configured(steps=4))
        shown = screen.getvalue()
        assert ("4/4 steps" in shown) == terminal
        assert ("left" in shown and "ns/day" in shown) == terminal

    def test_that_is_used_is_refused(self, configured: Callable[..., MDConfig]) -> None:
        configuration = configured(steps=0)
        start(configuration)
        before = content(configuration)
        with pytest.raises(InputError, match=r"holds a run already; continue it with --resume"):
            start(configuration)
        assert content(configuration) == before

    def test_with_other_files_is_refused(self, configured: Callable[..., MDConfig]) -> None:
        configuration = configured()
        folder = folder_of(configuration).path
        folder.mkdir()
        (folder / "thesis.tex").write_text("years of work")
        with pytest.raises(InputError, match="holds other files; give a new or empty folder"):
            start(configuration)
        assert [path.name for path in folder.iterdir()] == ["thesis.tex"]

    @pytest.mark.usefixtures("drawn_pictures")
    def test_has_no_picture_of_a_single_row(self, configured: Callable[..., MDConfig]) -> None:
        configuration = configured(steps=1, time_ps=None)
        start(configuration)
        assert read_log(folder_of(configuration).log)["step"].tolist() == [0]
        assert not folder_of(configuration).picture.exists()

    @pytest.mark.usefixtures("drawn_pictures")
    def test_has_its_picture_where_the_cell_shrinks(
        self, configured: Callable[..., MDConfig]
    ) -> None:
        squeezed = {"pressure_bar": 1e5, "tau_p_fs": 20.0, "tau_fs": 20.0}
        configuration = configured(ensemble="npt", friction_per_ps=None, **squeezed)
        start(configuration)
        folder = folder_of(configuration)
        with read_trajectory(folder.trajectory("h5md")) as trajectory:
            assert trajectory[-1].cell[0, 0] < trajectory[0].cell[0, 0] - 0.2
        assert folder.picture.exists()
        assert folder.end.exists()

    @pytest.mark.usefixtures("drawn_pictures")
    def test_may_be_empty_and_stays_the_same_folder(
        self, configured: Callable[..., MDConfig]
    ) -> None:
        configuration = configured(steps=0)
        folder = folder_of(configuration)
        folder.path.mkdir()
        folder.path.chmod(0o2777)
        (folder.path / "lost+found").mkdir()  # as where a file system is mounted
        before = folder.path.stat()
        start(configuration)
        after = folder.path.stat()
        assert (after.st_ino, after.st_mode) == (before.st_ino, before.st_mode)
        assert folder.record.exists()
        assert not [path for path in folder.path.iterdir() if path.name.startswith(".")]

    @pytest.mark.parametrize("out", [".", "", "sub/../sub", "absent/link"])
    def test_may_be_the_one_at_hand_or_another_name_of_one(
        self,
        configured: Callable[..., MDConfig],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        out: str,
    ) -> None:
        here = tmp_path / "here"
        (here / "sub").mkdir(parents=True)
        if out == "absent/link":
            (here / "absent").mkdir()
            (here / "absent" / "link").symlink_to(tmp_path / "there")
        else:
            (here / "sub").rmdir() if out in (".", "") else None
        monkeypatch.chdir(here)
        start(configured(steps=4, out=out))
        resume(Path(out), {"steps": 8})
        assert (here / out / "end.extxyz").exists()
        assert Path.cwd() == here

    @pytest.mark.parametrize("moment", ["mkdir", "restart", "record", "meet"])
    def test_a_start_that_fails_leaves_it_as_it_was(
        self,
        configured: Callable[..., MDConfig],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        moment: str,
    ) -> None:
        def fail(*arguments: object) -> None:
            raise OSError(errno.ENOSPC, "full")

        there = configured(steps=4)
        folder_of(there).path.mkdir()
        made = configured(steps=4, out=str(tmp_path / "a" / "b"))
        with monkeypatch.context() as patched:
            match moment:
                case "mkdir":
                    patched.setattr(reporters, "write_frame", fail)
                case "restart":
                    patched.setattr(md, "save_restart", fail)
                case "record":
                    patched.setattr(RunDirectory, "write_record", fail)
                case "meet":
                    patched.setattr(Run, "meet", fail)
            for configuration in (there, made):
                with pytest.raises(FileError, match="the disk is full"):
                    start(configuration)
        assert [path.name for path in tmp_path.iterdir()] == ["run"]
        assert not [*folder_of(there).path.iterdir()]
        start(there)

    @pytest.mark.parametrize("moved", [0, 1, 3, 5])
    def test_a_start_that_was_killed_is_begun_again_or_resumed(
        self, configured: Callable[..., MDConfig], moved: int, tmp_path: Path
    ) -> None:
        """Files are moved into the folder once they are all there, the record last."""
        whole = configured(steps=8, out=str(tmp_path / "whole"))
        start(whole)
        configuration = configured(steps=8)
        folder = folder_of(configuration)
        (folder.path / ".beginning").mkdir(parents=True)
        (folder.path / ".beginning" / "start.extxyz").write_text("half")
        start(configuration)
        names = ["checkpoint.safetensors", "log.csv", "start.extxyz", "trajectory.h5md", "run.json"]
        for path in folder.path.iterdir():
            if path.name not in names:
                path.unlink()
        (folder.path / ".begun").mkdir()
        for name in names[moved:]:
            (folder.path / name).rename(folder.path / ".begun" / name)
        with pytest.raises(InputError, match="holds a run already"):
            start(configuration)
        resume(folder.path)
        assert content(configuration) == content(whole)
        assert not (folder.path / ".begun").exists()


@pytest.mark.gpu
def test_resumed_on_a_gpu_gives_the_bits_of_an_uninterrupted_run(
    configured: Callable[..., MDConfig], tmp_path: Path
) -> None:
    whole = configured(steps=450, out=str(tmp_path / "whole"), device="cuda")
    start(whole)
    assert folder_of(whole).read_record()["chosen"]["captured_as_cuda_graph"]
    parted = configured(steps=130, device="cuda")
    start(parted)
    resume(Path(parted.out), {"steps": 450})
    assert content(parted) == content(whole)


def test_memory_that_an_evaluation_takes(tiny_potential: Path, water_file: Path) -> None:
    """The profiler's count of what is alive at once lies within a factor of two."""
    wide = load(tiny_potential).config.model_copy(update={"channels": 64, "layers": 2})
    potential = TensorNetPotential(wide)
    system = read_system(water_file)
    system = system.replace(cell=system.cell / 2.0)  # many images, so that pairs dominate
    calculation = Calculation([system], potential, device="cpu", skin=0.0, evaluator="reference")
    calculation.compute()
    kinds = [ProfilerActivity.CPU]
    with profile(activities=kinds, profile_memory=True, acc_events=True) as profiler:
        calculation.compute()
    events = [event for event in profiler.profiler.kineto_results.events() if event.nbytes()]
    changes = [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
    peak = float(np.cumsum(changes).max())
    capacities = [one.capacity for one in calculation.lists]
    estimate = memory.estimated_memory(
        memory.Workload(potential, 6, capacities, calculation.precision, calculation.device)
    )
    assert peak > 1e6
    assert 0.5 < estimate / peak < 2.0


def test_memory_that_a_device_has() -> None:
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert 1 << 20 < memory.available_memory(torch.device("cpu")) <= pages


@pytest.mark.usefixtures("without_picture")
@pytest.mark.parametrize("trajectory", ["h5md", "extxyz"])
@pytest.mark.parametrize("ensemble", ["nve", "langevin"])
class TestResume:
    def test_gives_the_bits_of_an_uninterrupted_run(
        self,
        configured: Callable[..., MDConfig],
        tmp_path: Path,
        trajectory: str,
        ensemble: str,
    ) -> None:
        choice = {"trajectory": trajectory, "ensemble": ensemble}
        whole = configured(out=str(tmp_path / "whole"), **choice)
        start(whole)
        parted = configured(steps=22, **choice)
        start(parted)
        outcome = resume(Path(parted.out), {"steps": 41})
        assert (outcome.steps, outcome.total_steps) == (41, 41)
        resume(Path(parted.out), {"time_ps": 0.03})
        assert content(parted) == content(whole)


@pytest.mark.usefixtures("without_picture")
class TestKilled:
    @pytest.mark.parametrize("trajectory", ["h5md", pytest.param("extxyz", marks=pytest.mark.slow)])
    def test_at_any_moment_and_resumed_gives_the_same_bits(
        self,
        configured: Callable[..., MDConfig],
        tmp_path: Path,
        processes: Any,
        trajectory: str,
    ) -> None:
        generator = random.Random(f"{trajectory} {time.time()}")
        whole = configured(steps=100, out=str(tmp_path / "whole"), trajectory=trajectory)
        start(whole)
        parted = configured(steps=100, trajectory=trajectory)
        folder = folder_of(parted)
        process = processes.Process(target=start, args=(parted,))
        process.start()
        killed = 0
        for target in (0, 9, 20):
            wait_for_rows(folder.log, target, process)
            time.sleep(generator.uniform(0.0, 0.05))
            process.kill()
            process.join()
            killed += process.exitcode == -signal.SIGKILL
            process = processes.Process(target=resume, args=(folder.path,))
            process.start()
        process.join()
        assert process.exitcode == 0
        assert killed >= 2
        assert content(parted) == content(whole)
        assert folder.picture.exists()

    def test_while_the_folder_is_made_leaves_no_half_of_it(
        self, configured: Callable[..., MDConfig], tmp_path: Path, processes: Any
    ) -> None:
        configuration = configured(steps=4)
        out = Path(configuration.out)
        process = processes.Process(target=start, args=(configuration,))
        process.start()
        wait_for(lambda: any(tmp_path.iterdir()) or not process.is_alive())
        process.kill()
        process.join()
        if RunDirectory(out).holds_run():
            resume(out)
        else:
            start(configuration)
        assert read_log(out / "log.csv")["step"].tolist() == [0, 3]


def wait_for(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.002)


def wait_for_rows(log: Path, target: int, process: Any) -> None:
    wait_for(lambda: rows(log) > target or not process.is_alive())


@pytest.mark.usefixtures("without_picture")
@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)]
)
def test_a_signal_ends_the_chunk_and_says_how_to_go_on(
    processes: Any, configured: Callable[..., MDConfig], tmp_path: Path, number: signal.Signals
) -> None:
    parted = configured(steps=10**6, checkpoint_interval=10**6)
    options = [
        f"--{name.replace('_', '-')}={value}"
        for name, value in parted.model_dump(exclude_unset=True).items()
        if name not in ("structure", "check")
    ]
    process = PreparedProcess(
        processes,
        ["-m", "mdgraph", "md", *(parted.structure or ()), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    wait_for(lambda: rows(Path(parted.out) / "log.csv") > 5 or process.poll() is not None)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number, err
    assert f"Stopped by {number.name}" in out
    assert f"continue with: mdgraph md --resume --out {parted.out}" in out
    assert "Traceback" not in err
    done = int(read_log(Path(parted.out) / "log.csv")["step"][-1])
    total = done + 30
    resume(Path(parted.out), {"steps": total})
    whole = configured(steps=total, out=str(tmp_path / "whole"))
    start(whole)
    assert content(parted) == content(whole)
