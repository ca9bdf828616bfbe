"""What a command does when a signal comes, and where its output cannot go."""

import inspect
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prepared import ended
from pretended_gpus import pretend_gpus
from run_folders import content

import mdgraph
from mdgraph import signals
from mdgraph.errors import FileError
from mdgraph.runs import evaluation, md
from mdgraph.runs.md import resume, start
from mdgraph.runs.reporters import ProgressBar
from mdgraph.signals import SIGNALS, Interrupted, signals_caught

ROOT = Path(mdgraph.__file__).parent.parent
Command = Callable[..., Any]

TIME_IS_UP = 75
"""EX_TEMPFAIL: status of a run that a batch system, or its own limit, ended before its end."""

every_signal = pytest.mark.parametrize("number", SIGNALS, ids=lambda one: one.name)


def options_of(configuration: Any) -> list[str]:
    return [
        *(configuration.structure or ()),
        *(
            f"--{name.replace('_', '-')}={value}"
            for name, value in configuration.model_dump(exclude_unset=True).items()
            if name not in ("structure", "check")
        ),
        *(["--no-check"] if configuration.check is False else []),
    ]


def hidden(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob(".*")]


@pytest.mark.usefixtures("without_picture")
class TestMaxHours:
    def test_a_run_stops_in_time_and_goes_on_to_the_same_bits(
        self, mdgraph_command: Command, configured: Callable[..., Any], tmp_path: Path
    ) -> None:
        parted = configured(steps=20, chunk=5, max_hours=1e-7)
        done = mdgraph_command("md", *options_of(parted))
        assert done.status == TIME_IS_UP, done.err
        assert "(5 of 20 steps)" in done.out
        assert (
            f"Stopped by max_hours; continue with: mdgraph md --resume --out {parted.out}"
            in done.out
        )
        done = mdgraph_command("md", "--resume", "--out", parted.out)
        assert (done.status, "(10 of 20 steps)" in done.out) == (TIME_IS_UP, True)
        done = mdgraph_command("md", "--resume", "--max-hours", 1, "--out", parted.out)
        assert (done.status, "(20 of 20 steps)" in done.out) == (0, True)
        whole = configured(steps=20, chunk=5, out=str(tmp_path / "whole"))
        start(whole)
        assert content(parted) == content(whole)

    def test_a_run_that_ends_as_its_time_does_is_finished(
        self, mdgraph_command: Command, configured: Callable[..., Any]
    ) -> None:
        configuration = configured(steps=5, chunk=5, max_hours=1e-7)
        done = mdgraph_command("md", *options_of(configuration))
        assert (done.status, "(5 of 5 steps)" in done.out) == (0, True)
        assert (Path(configuration.out) / "end.extxyz").exists()

    def test_no_interval_begins_that_would_end_too_late(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        now, stops = [0.0], []
        monkeypatch.setattr(md.time, "monotonic", lambda: now[0])
        interruption = md.Interruption(stops.append, 1, deadline=100.0)
        for now[0] in (30.0, 60.0):
            interruption.report(None)  # type: ignore[arg-type]
        assert (stops, interruption.out_of_time) == ([], False)
        now[0] = 85.0
        interruption.report(None)  # type: ignore[arg-type]
        assert (stops, interruption.out_of_time) == ([signal.SIGUSR1], True)


@pytest.mark.usefixtures("without_picture")
class TestSignals:
    @every_signal
    def test_before_the_first_step_nothing_is_written(
        self,
        mdgraph_command: Command,
        configured: Callable[..., Any],
        monkeypatch: pytest.MonkeyPatch,
        tmp_path: Path,
        number: signal.Signals,
    ) -> None:
        monkeypatch.setattr("mdgraph.runs.md.save_restart", lambda *_: signal.raise_signal(number))
        before = [signal.getsignal(one) for one in SIGNALS]
        done = mdgraph_command("md", *options_of(configured()))
        assert done.status == 128 + number
        said = f"mdgraph: Stopped by {number.name}; nothing was written, start it again.\n"
        assert done.err.endswith(said)
        assert not [*tmp_path.iterdir()]
        assert [signal.getsignal(one) for one in SIGNALS] == before

    @every_signal
    def test_within_the_run_a_checkpoint_is_written(
        self,
        mdgraph_command: Command,
        configured: Callable[..., Any],
        monkeypatch: pytest.MonkeyPatch,
        number: signal.Signals,
    ) -> None:
        def interrupt(bar: ProgressBar, simulation: Any) -> None:
            if simulation.step == 20:
                signal.raise_signal(number)

        configuration = configured(observe="rdf:2")
        with monkeypatch.context() as interrupted:
            interrupted.setattr(ProgressBar, "report", interrupt)
            done = mdgraph_command("md", *options_of(configuration))
        assert done.status == (TIME_IS_UP if number == signal.SIGUSR1 else 128 + number)
        assert f"Stopped by {number.name}; continue with: mdgraph md --resume --out" in done.out
        assert resume(Path(configuration.out)).steps == 60
        assert (Path(configuration.out) / "rdf.png").exists()

    def test_steps_that_take_long_are_taken_back(
        self,
        mdgraph_command: Command,
        configured: Callable[..., Any],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr("mdgraph.runs.md.PATIENCE", 0.2)
        configuration = configured(chunk=10, steps=100)
        out = Path(configuration.out)
        started: list[float] = []

        def slow(*arguments: Any) -> Any:
            if (out / "run.json").exists():
                if not started:
                    started.append(time.monotonic())
                    signal.raise_signal(signal.SIGUSR1)
                time.sleep(3.0)
            return look(*arguments)

        names = inspect.unwrap(md.Simulation.run).__globals__
        look = names["delivery"]
        with monkeypatch.context() as slowed:
            slowed.setitem(names, "delivery", slow)
            done = mdgraph_command("md", *options_of(configuration))
        assert done.status == TIME_IS_UP, done.err
        assert "Stopped by SIGUSR1; continue with" in done.out
        assert time.monotonic() - started[0] < 2.5
        assert resume(out).steps == 100

    def test_before_the_first_step_of_a_resumed_run_it_is_unfinished(
        self,
        mdgraph_command: Command,
        configured: Callable[..., Any],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        configuration = configured(steps=8)
        start(configuration)
        monkeypatch.setattr(md, "load_restart_", lambda *_: signal.raise_signal(signal.SIGUSR1))
        done = mdgraph_command("md", "--resume", "--steps", 12, "--out", configuration.out)
        assert done.status == TIME_IS_UP
        assert "Stopped by SIGUSR1; continue with: mdgraph md --resume" in done.err

    def test_while_pictures_are_drawn_resuming_draws_them(
        self,
        mdgraph_command: Command,
        configured: Callable[..., Any],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        def draw(folder: Any, *arguments: Any) -> None:
            signal.raise_signal(signal.SIGHUP)

        configuration = configured(steps=8, observe="rdf:2")
        monkeypatch.setattr(md, "draw_picture", draw)
        done = mdgraph_command("md", *options_of(configuration))
        assert done.status == 128 + signal.SIGHUP
        assert "Stopped by SIGHUP; continue with: mdgraph md --resume" in done.err
        out = Path(configuration.out)
        assert not (out / "end.extxyz").exists()
        assert not hidden(out)
        drawn = []
        monkeypatch.setattr(md, "draw_picture", lambda *arguments: drawn.append(1))
        resume(out)
        assert drawn
        assert (out / "end.extxyz").exists()

    @pytest.mark.parametrize("command", ["eval", "relax"])
    def test_of_frames_nothing_half_is_left(
        self,
        mdgraph_command: Command,
        tmp_path: Path,
        tiny_potential: Path,
        water_file: Path,
        monkeypatch: pytest.MonkeyPatch,
        command: str,
    ) -> None:
        monkeypatch.setattr(
            evaluation, "_result_block", lambda *_: signal.raise_signal(signal.SIGTERM)
        )
        out = tmp_path / "e.xyz"
        arguments = [command, water_file, "--potential", tiny_potential, "--out", out]
        done = mdgraph_command(*arguments)
        assert (done.status, [*tmp_path.iterdir()]) == (143, [])
        assert "Stopped by SIGTERM; no half file is left.\n" in done.err

    def test_an_error_that_a_library_made_of_it(
        self, mdgraph_command: Command, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def convert(*arguments: object, **options: object) -> None:
            try:
                signal.raise_signal(signal.SIGTERM)
            except Interrupted:
                raise FileError("Cannot write set.h5") from None

        monkeypatch.setattr("mdgraph.checkpoints.convert", convert)
        done = mdgraph_command("convert", "a", "b.safetensors")
        assert done.status == 143
        assert done.err == "mdgraph: Stopped by SIGTERM; no half file is left.\n"

    def test_nothing_is_in_flight_on_a_gpu_when_it_ends(
        self, mdgraph_command: Command, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Also where another signal comes while it waits, and after an error of any kind."""
        waits: list[int] = []

        def synchronize(number: int) -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.2)
            waits.append(number)

        pretend_gpus(monkeypatch, 3, [1, 2], synchronize)
        monkeypatch.setattr(
            "mdgraph.checkpoints.convert", lambda *_, **__: signal.raise_signal(signal.SIGTERM)
        )
        done = mdgraph_command("convert", "a", "b.safetensors")
        assert (done.status, waits) == (143, [1, 2])
        assert done.err.count("\n") == 1

        def fail(*_: object, **__: object) -> None:
            raise MemoryError

        monkeypatch.setattr("mdgraph.checkpoints.convert", fail)
        with pytest.raises(MemoryError):
            mdgraph_command("convert", "a", "b.safetensors")
        assert waits == [1, 2, 1, 2]

    def test_what_is_ignored_stays_ignored(self, monkeypatch: pytest.MonkeyPatch) -> None:
        before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
        try:
            with signals_caught():
                signal.raise_signal(signal.SIGHUP)
                with pytest.raises(Interrupted):
                    signal.raise_signal(signal.SIGUSR2)
        finally:
            signal.signal(signal.SIGHUP, before)

    def test_what_is_swallowed_comes_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(signals, "_AGAIN", 0.1)
        with signals_caught():
            try:
                signal.raise_signal(signal.SIGTERM)
            except Interrupted:
                signal.raise_signal(signal.SIGTERM)  # a second one while all ends already
            with pytest.raises(Interrupted, match="SIGTERM"):
                time.sleep(10.0)

    def test_what_a_finalizer_loses_comes_again_without_a_traceback(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        class Finalized:
            def __del__(self) -> None:
                signal.raise_signal(signal.SIGTERM)

        class Faulty:
            def __del__(self) -> None:
                raise KeyError("own")

        monkeypatch.setattr(signals, "_AGAIN", 0.1)
        told: list[Any] = []
        monkeypatch.setattr(sys, "unraisablehook", lambda lost: told.append(lost.exc_type))
        with signals_caught():
            Faulty()
            Finalized()
            with pytest.raises(Interrupted, match="SIGTERM"):
                time.sleep(10.0)
        Faulty()
        assert told == [KeyError, KeyError]


@pytest.mark.skipif(
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN, reason="ignored in the background"
)
def test_a_deferred_signal_comes_when_all_is_over() -> None:
    reached = []

    def signalled() -> None:
        with signals.signals_deferred():
            signal.raise_signal(signal.SIGINT)
            reached.append(True)

    with signals_caught(), pytest.raises(Interrupted):
        signalled()
    assert reached


SIGNAL_AT_AN_IMPORT = """
import signal, sys
name = sys.argv.pop(1)
class Finder:
    @staticmethod
    def find_spec(found, path=None, target=None):
        if found == name:
            sys.meta_path.remove(Finder)
            signal.raise_signal(signal.SIGINT)
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Finder)
from mdgraph.__main__ import main
main()
"""


@pytest.mark.parametrize(
    ("module", "status", "said"),
    [
        ("typer", -signal.SIGINT, ""),
        ("torch.nn.modules", 130, "mdgraph: Stopped by SIGINT; no half file is left.\n"),
    ],
)
def test_ctrl_c_while_modules_are_imported_ends_without_a_dump(
    tmp_path: Path, module: str, status: int, said: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SIGNAL_AT_AN_IMPORT, module, "md", "--out", tmp_path / "run"],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert (done.returncode, done.stderr) == (status, said)
    assert not (tmp_path / "run").exists()


def assert_whole(out: Path) -> None:
    assert {"end.extxyz", "picture.png", "log.csv"} < {path.name for path in out.iterdir()}
    assert not hidden(out)


class TestStreams:
    @pytest.mark.slow
    @pytest.mark.parametrize("end", ["<&- >&- 2>&-", "2>&-", ">&-", "2>/dev/full", "2>&1 | true"])
    def test_a_run_is_whole_wherever_they_lead(
        self, configured: Callable[..., Any], end: str
    ) -> None:
        configuration = configured(steps=4)
        words = [sys.executable, "-m", "mdgraph", "md", *options_of(configuration)]
        line = " ".join(f"'{word}'" for word in words) + f" {end}"
        done = subprocess.run(
            ["bash", "-c", line], capture_output=True, text=True, check=False, cwd=ROOT
        )
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr
        assert_whole(Path(configuration.out))

    def test_a_run_is_whole_where_the_disk_of_its_output_is_full(
        self, processes: Any, configured: Callable[..., Any]
    ) -> None:
        configuration = configured(steps=4)
        words = ["-m", "mdgraph", "md", *options_of(configuration)]
        full = os.open("/dev/full", os.O_WRONLY)
        done = ended(processes, words, stdout=full, cwd=ROOT)
        os.close(full)
        assert done.returncode == 1
        assert "Traceback" not in done.stderr
        assert done.stderr.endswith("standard output: the disk is full; free some space.\n")
        assert_whole(Path(configuration.out))

    @pytest.mark.parametrize(("end", "status"), [(">/dev/full", 1), ("| head -c 1", 0)])
    def test_what_is_printed_alone(self, end: str, status: int) -> None:
        line = f"'{sys.executable}' -m mdgraph md --help {end}"
        done = subprocess.run(
            ["bash", "-c", line], capture_output=True, text=True, check=False, cwd=ROOT
        )
        assert done.returncode == status
        assert done.stderr.count("\n") == status


@pytest.mark.slow
def test_a_background_resume_ignores_ctrl_c_and_ends_on_sigterm(
    configured: Callable[..., Any],
) -> None:
    """Ctrl-C, which the script ignores there, stops nothing; SIGTERM does."""
    configuration = configured(steps=4)
    start(configuration)

    def ignore() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    arguments = ["md", "--resume", "--steps", 10**6, "--out", configuration.out]
    command = [sys.executable, "-m", "mdgraph", *map(str, arguments)]
    log = Path(configuration.out) / "log.csv"
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        preexec_fn=ignore,  # noqa: PLW1509
    ) as process:
        for number in (signal.SIGINT, signal.SIGTERM):
            rows = log.read_bytes().count(b"\n")
            while log.read_bytes().count(b"\n") < rows + 5 and process.poll() is None:
                time.sleep(0.01)
            os.kill(process.pid, number)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM, err
    assert "Stopped by SIGTERM" in out
