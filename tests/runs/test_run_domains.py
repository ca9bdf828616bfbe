"""Runs of one system in domains: in one process, on ranks that torchrun starts, and resumed."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prepared import PreparedProcess, prepared_ranks
from safetensors.numpy import load_file

from mdgraph.engine.restart import restart_step
from mdgraph.errors import InputError
from mdgraph.io.formats import read_trajectory
from mdgraph.runs import md
from mdgraph.runs.commands import dynamics
from mdgraph.runs.config import MDConfig, MinimizeConfig
from mdgraph.runs.folder import RunDirectory
from mdgraph.runs.md import Interruption, resume, start
from mdgraph.signals import Interrupted, signals_caught

ROOT = Path(__file__).resolve().parents[2]
WATER = str(ROOT / "potentials" / "water-pbe0" / "start.extxyz")

Printed = tuple[int, str, str]


def last_positions(out: Path) -> Any:
    with read_trajectory(RunDirectory(out).trajectory("h5md")) as trajectory:
        return trajectory[len(trajectory) - 1].positions


def recorded(out: Path, key: str) -> Any:
    record = json.loads((out / "run.json").read_text(encoding="utf-8"))
    return record["configuration"][key]


PIPES = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
_PATHS = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(_PATHS)}


def torchrun(*words: object) -> "subprocess.Popen[str]":
    """The command on two ranks of torchrun."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    return subprocess.Popen(
        [sys.executable, *launcher, "-m", "mdgraph", *map(str, words)],
        env=os.environ | ENVIRONMENT, text=True, start_new_session=True, **PIPES,
    )  # fmt: skip


def command(processes: Any, *words: object, **options: Any) -> PreparedProcess:
    """The command in a process of its own, which may start others."""
    env = os.environ | ENVIRONMENT
    return PreparedProcess(processes, ["-m", "mdgraph", *words], env=env, **PIPES, **options)


def two_ranks(processes: Any, *words: object, **variables: str) -> list[PreparedProcess]:
    """The command on two ranks, as torchrun would start them."""
    env = os.environ | ENVIRONMENT | variables
    return prepared_ranks(processes, ["-m", "mdgraph", *words], 2, env=env, **PIPES)


def finished(process: "subprocess.Popen[str] | PreparedProcess") -> Printed:
    out, err = process.communicate(timeout=240)
    said = [line for line in err.splitlines() if line.startswith("mdgraph:")]
    sys.stderr.write(err)  # which pytest shows of a test that fails
    return process.returncode, out, "\n".join(said)


def test_a_run_goes_on_in_any_number_of_domains(tmp_path: Path) -> None:
    """Begun in two domains, it goes on in four, and undivided, as the undivided run does."""
    common = {"temperature_K": 400.0, "seed": 2, "check": False, "trajectory_interval": 10}
    start(MDConfig(structure=WATER, out=str(tmp_path / "whole"), steps=40, **common))
    out = tmp_path / "run"
    start(MDConfig(structure=WATER, out=str(out), steps=10, domains="2", **common))
    assert recorded(out, "domains") == "1x1x2"
    resume(out, {"steps": 20})
    assert recorded(out, "domains") == "1x1x2"
    resume(out, {"steps": 30, "domains": "4"})
    assert recorded(out, "domains") == "1x2x2"
    outcome = resume(out, {"steps": 40, "domains": "1"})
    assert recorded(out, "domains") == "1x1x1"
    assert outcome.steps == 40
    np.testing.assert_allclose(last_positions(out), last_positions(tmp_path / "whole"), atol=1e-6)


def test_a_minimum_is_found_in_domains(tmp_path: Path) -> None:
    outcomes = [
        start(
            MinimizeConfig(
                structure=WATER,
                out=str(tmp_path / f"run-{domains}"),
                steps=10,
                check=False,
                domains=domains,
            )
        )
        for domains in (None, "2x1x1")
    ]
    assert outcomes[0].largest_force == pytest.approx(outcomes[1].largest_force, abs=1e-6)


def test_a_command_starts_its_ranks(processes: Any, tmp_path: Path) -> None:
    """For the domains, which then go on in one process; rank 0 alone prints."""
    out = tmp_path / "run"
    (tmp_path / "typer.py").write_text("raise RuntimeError('a file of the user')")
    words = ("--out", out, "--devices", "cpu,cpu", "--no-check", "--domains", 2, "--seed", 2)
    steps = ("--steps", 10, "--trajectory-interval", 10)
    first = command(processes, "md", WATER, *words, *steps, cwd=tmp_path)
    status, printed, said = finished(first)
    assert status == 0, said
    assert printed.count("ps simulated (10 of 10 steps)") == 1
    assert f"mdgraph md --resume --out {out} --devices cpu,cpu" in printed
    resume(out, {"steps": 20, "domains": "1"})
    common = {"steps": 20, "trajectory_interval": 10, "seed": 2, "check": False}
    start(MDConfig(structure=WATER, out=str(tmp_path / "whole"), **common))
    np.testing.assert_allclose(last_positions(out), last_positions(tmp_path / "whole"), atol=1e-6)


@pytest.mark.parametrize(
    ("devices", "said", "used"),
    [
        ("all", {"domains": "2"}, 2),
        ("all", {"domains": "2x1x1"}, 2),
        ("all", {"domains": "8"}, 4),
        ("all", {}, 4),
        ("all", {"file": "domains: 2x1x1"}, 2),
        ("all", {"file": "domains: 2x1x1", "domains": "3"}, 3),
        ("all", {"run": "1x1x2"}, 2),
        ("0,1,2", {"domains": "2"}, 3),
    ],
)
def test_all_devices_are_those_that_domains_need(
    devices: str,
    said: dict[str, str],
    used: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mdgraph_command: Callable[..., Any],
) -> None:
    """Said by an option, a file, or the run that goes on; those that somebody names all start."""
    started: list[str] = []
    found = [f"cuda:{number}" for number in range(4 if devices == "all" else 3)]
    monkeypatch.setattr("mdgraph.devices.ranks_of", lambda devices: found)
    monkeypatch.setattr(dynamics, "launch", lambda names, words: (started.extend(names) or 0, None))
    words: list[object] = ["md", "--out", tmp_path / "run", "--devices", devices]
    if "file" in said:
        (tmp_path / "run.yaml").write_text(said["file"])
        words += ["--config", tmp_path / "run.yaml"]
    if "run" in said:
        out, domains = str(tmp_path / "run"), said["run"]
        start(MDConfig(structure=WATER, out=out, steps=1, check=False, domains=domains))
        words.append("--resume")
    if "domains" in said:
        words += ["--domains", said["domains"]]
    assert mdgraph_command(*words).status == 0
    assert started == found[:used]


@pytest.mark.parametrize(("device", "cure"), [("cpu", "--devices cpu,cpu gives"), ("cuda:0", "")])
def test_domains_that_share_the_only_device_are_told(
    tmp_path: Path, device: str, cure: str, caplog: pytest.LogCaptureFixture
) -> None:
    configuration = MDConfig(structure=WATER, out=str(tmp_path / "run"), domains="2")
    assert dynamics._one_a_domain([device], configuration, going_on=False) == [device]
    said = f"There is one device, {device}, so one process has all 2 domains, which is no faster"
    assert said in caplog.text
    assert cure in caplog.text
    caplog.clear()
    undivided = configuration.model_copy(update={"domains": None})
    assert dynamics._one_a_domain([device], undivided, going_on=False) == [device]
    assert not caplog.text


@pytest.mark.slow  # ranks share replicas in test_run_replicas.py, too
def test_a_command_starts_the_ranks_of_replicas(processes: Any, tmp_path: Path) -> None:
    out = tmp_path / "replicas"
    words = ("--out", out, "--devices", "cpu,cpu", "--no-check", "--replicas", 2, "--steps", 2)
    status, printed, said = finished(command(processes, "md", WATER, *words))
    assert status == 0, said
    assert f"To continue: mdgraph md --resume --out {out} --devices cpu,cpu" in printed
    assert (out / "rank-1").is_dir()


_ENDING_RANKS = """
from mdgraph import processes
rank = "import os, sys, time; time.sleep(60 * int(os.environ['RANK'])); sys.exit(3)"
processes.SAME_MODULES = ("-c", rank)
print(*processes.launch(["cpu", "cpu"], []))
"""


def test_a_rank_that_fails_ends_the_other_and_gives_its_status(processes: Any) -> None:
    begin = time.monotonic()
    code = ["-c", _ENDING_RANKS]
    process = PreparedProcess(processes, code, env=os.environ | ENVIRONMENT, **PIPES)
    status, printed, _ = finished(process)
    assert (status, printed) == (0, "3 None\n")
    assert time.monotonic() - begin < 50.0


def test_devices_that_cannot_be_started(
    processes: Any,
    tmp_path: Path,
    mdgraph_command: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One sentence each, by one rank, and nothing is written."""
    out = tmp_path / "run"
    words = ("md", WATER, "--out", out, "--devices", "cpu,cpu")
    parent = os.getpid()  # of processes that are spawned
    if processes.get_start_method() == "forkserver":
        parent = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    launcher = f"{parent} cpu,cpu"
    ranks = two_ranks(processes, *words, MDGRAPH_LAUNCHER=launcher)
    (status, _, said), (other, *silence) = map(finished, ranks)
    assert (status, other, said.count("mdgraph: error")) == (1, 0, 1)
    assert silence == ["", ""]
    assert "--devices started 2; start it without --devices" in said
    for devices, options, count, sentence in (
        ("toaster,cpu", (), "1", "Unknown device 'toaster'"),
        ("cpu,cpu", ("--device", "cpu"), "1", "--device and --devices both say where the run is"),
        ("cpu,cpu", (), "2", "torchrun started some already"),
    ):
        monkeypatch.setenv("WORLD_SIZE", count)
        done = mdgraph_command("md", WATER, "--out", out, "--devices", devices, *options)
        assert done.status == 1
        assert sentence in done.err
    assert not out.exists()


@pytest.mark.parametrize(
    "ending",
    [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGUSR1, signal.SIGKILL],
)
def test_signals_reach_the_ranks_that_a_command_starts(
    processes: Any, tmp_path: Path, ending: signal.Signals
) -> None:
    """They write a checkpoint and end, also where the command is killed."""
    out = tmp_path / "run"
    configuration = tmp_path / "run.yaml"
    configuration.write_text(f"out: {out}\ndomains: 2\ncheckpoint_interval: 5\n")
    words = ("--config", configuration, "--devices", "cpu,cpu", "--no-check", "--steps", 100_000)
    process = command(processes, "md", WATER, *words)
    end = time.monotonic() + 200.0
    while not RunDirectory(out).checkpoint.exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.2)
    listed = ["ps", "-o", "pid=", "--ppid", str(process.pid)]
    ranks = subprocess.run(listed, capture_output=True, text=True, check=True).stdout.split()
    assert len(ranks) >= 2
    process.send_signal(ending)
    status, printed, _ = finished(process)
    assert status == {signal.SIGINT: 130, signal.SIGUSR1: 75, signal.SIGKILL: -9}[ending]
    while any(Path(f"/proc/{rank}").exists() for rank in ranks):
        assert time.monotonic() < end
        time.sleep(0.1)
    assert "continue with: mdgraph md --resume" in printed
    assert "--devices cpu,cpu" in printed


def test_ranks_run_and_go_on_with_others(processes: Any, tmp_path: Path) -> None:
    """Two ranks, checked at the start; then one process. Rank 0 alone prints."""
    out = tmp_path / "run"
    words = ("--steps", 20, "--trajectory-interval", 10, "--seed", 2)
    both = two_ranks(processes, "md", WATER, "--out", out, "--domains", 2, *words)
    (status, printed, said), (other, *silence) = map(finished, both)
    assert (status, other) == (0, 0), said
    assert silence == ["", ""]
    assert printed.count("ps simulated (20 of 20 steps)") == 1
    assert said.count("H128 O64") == 1
    assert "torchrun --nproc-per-node 2 -m mdgraph md --resume" in printed
    # A frame has the bits of the state that ranks shared.
    np.testing.assert_array_equal(
        last_positions(out), load_file(out / "checkpoint.safetensors")["positions"]
    )
    resume(out, {"steps": 30, "domains": "1"})
    start(
        MDConfig(
            structure=WATER, out=str(tmp_path / "whole"), steps=30, trajectory_interval=10, seed=2
        )
    )
    np.testing.assert_allclose(last_positions(out), last_positions(tmp_path / "whole"), atol=1e-6)


def test_potentials_of_one_cutoff_have_their_planes_twice_in_a_checkpoint(
    processes: Any, tmp_path: Path
) -> None:
    """They share a neighbor list, and with it the planes between the domains of ranks."""
    out, name = tmp_path / "run", "water-pbe0-small"
    words = ("md", WATER, "--potential", name, "--inner-potential", name, "--inner-steps", 2)
    more = ("--out", out, "--domains", 2, "--steps", 4, "--trajectory-interval", 4)
    for status, _, said in map(finished, two_ranks(processes, *words, *more)):
        assert status == 0, said
    tensors = load_file(out / "checkpoint.safetensors")
    first, second = (tensors[key] for key in sorted(tensors) if key.startswith("division."))
    np.testing.assert_array_equal(first, second)
    resume(out, {"steps": 8, "domains": "1"})
    assert restart_step(out / "checkpoint.safetensors") == 8


CARDS = """
import sys
from mdgraph.decomposition import exchange
from mdgraph.errors import InputError
exchange.card_name = lambda device: {cards}[device.index]
ranks = exchange.ProcessExchange.joined()
try:
    ranks.open_("cuda")
except InputError as error:
    sys.exit(str(error))
"""


@pytest.mark.parametrize(
    ("cards", "sentence"),
    [
        (
            ["NVIDIA H100", "NVIDIA H200"],
            "different GPUs, NVIDIA H100 on rank 0 and NVIDIA H200 on",
        ),
        (["NVIDIA H100", None], "Rank 1 of 2 has no GPU of its own"),
    ],
)
def test_ranks_without_a_gpu_and_of_unlike_ones_all_end(
    processes: Any, cards: list[str | None], sentence: str
) -> None:
    code = ["-c", CARDS.format(cards=cards)]
    ranks = prepared_ranks(processes, code, 2, env=os.environ | ENVIRONMENT, **PIPES)
    (first, _, said), (other, *silence) = (
        (process.returncode, out, err)
        for process in ranks
        for out, err in [process.communicate(timeout=60)]
    )
    assert (first, other) == (1, 2)
    assert said.count(sentence) == 1
    assert silence == ["", ""]


LONG = (
    "md", WATER, "--steps", 100_000, "--log-interval", 10,
    "--checkpoint-interval", 20, "--no-check",
)  # fmt: skip


def wait_for_rows(out: Path, process: "subprocess.Popen[str] | PreparedProcess") -> None:
    """Until some are in the log."""
    deadline = time.monotonic() + 120
    log = out / "log.csv"
    while time.monotonic() < deadline and process.poll() is None:
        if log.exists() and log.read_text(encoding="utf-8").count("\n") > 3:
            break
        time.sleep(0.1)


def long_run(out: Path, domains: str = "2") -> "tuple[subprocess.Popen[str], dict[int, int]]":
    """A run of two ranks that has begun, and the process of each rank."""
    process = torchrun(*LONG, "--domains", domains, "--out", out)
    wait_for_rows(out, process)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text(encoding="utf-8")
    ranks = {}
    for child in map(int, children.split()):
        for entry in Path(f"/proc/{child}/environ").read_bytes().split(b"\0"):
            if entry.startswith(b"RANK="):
                ranks[int(entry[5:])] = child
    return process, ranks


def gone(process: int) -> bool:
    return not Path(f"/proc/{process}").exists()


def test_a_lost_rank_ends_the_run_with_the_way_on(processes: Any, tmp_path: Path) -> None:
    out = tmp_path / "run"
    first, lost = two_ranks(processes, *LONG, "--domains", 2, "--out", out)
    wait_for_rows(out, first)
    lost.kill()
    lost.communicate()
    began = time.monotonic()
    status, _, said = finished(first)
    assert time.monotonic() - began < 60
    assert status == 1
    last = said.splitlines()[-1]
    assert "Rank 0 of 2 lost another one" in last
    assert f"That in {out} is of step " in last
    assert last.endswith(f"torchrun --nproc-per-node 2 -m mdgraph md --resume --out {out}")


@pytest.mark.gpu(2)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=lambda one: one.name)
def test_a_rank_lost_between_gpus_ends_the_run_with_the_way_on(
    tmp_path: Path, number: signal.Signals
) -> None:
    """Rank 0 waits within a graph then; the run goes on undivided."""
    out = tmp_path / "run"
    process, ranks = long_run(out, domains="1x1x2")  # one GPU would be faster
    os.kill(ranks[1], number)
    began = time.monotonic()
    while not gone(ranks[0]) and time.monotonic() - began < 90:
        time.sleep(0.2)
    assert time.monotonic() - began < 60
    with contextlib.suppress(ProcessLookupError):
        os.kill(ranks[1], signal.SIGKILL)
    status, _, said = finished(process)
    assert status == 1
    assert "Rank 0 of 2 lost " in said
    step = restart_step(out / "checkpoint.safetensors")
    assert f"That in {out} is of step {step}: torchrun --nproc-per-node 2 -m mdgraph md" in said
    assert resume(out, {"steps": step + 10, "domains": "1"}).steps == step + 10


def stopped(out: Path, number: signal.Signals, printed: str) -> None:
    """Looks at what a run of ranks that a signal has ended leaves."""
    assert f"Stopped by {number.name}; continue with: torchrun" in printed
    rows = (out / "log.csv").read_text(encoding="utf-8").splitlines()
    assert restart_step(out / "checkpoint.safetensors") >= int(rows[-1].split(",")[0]) > 0


def test_a_signal_writes_a_checkpoint_and_ends_all_ranks(processes: Any, tmp_path: Path) -> None:
    """SIGINT comes to all processes, as from a terminal, and again as torchrun passes it on."""
    out = tmp_path / "run"
    both = two_ranks(processes, *LONG, "--domains", 2, "--out", out)
    wait_for_rows(out, both[0])
    for _ in range(2):
        for rank in both:
            rank.send_signal(signal.SIGINT)
        time.sleep(0.01)
    (status, printed, _), (other, *_) = map(finished, both)
    ended = {130, -signal.SIGINT}  # the second one may come when all is over but Python itself
    assert status in ended
    assert other in ended | {0}
    stopped(out, signal.SIGINT, printed)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda one: one.name)
def test_a_signal_to_torchrun_ends_all_ranks(tmp_path: Path, number: signal.Signals) -> None:
    out = tmp_path / "run"
    process, ranks = long_run(out)
    if number == signal.SIGINT:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    _, printed, _ = finished(process)
    assert all(map(gone, ranks.values()))
    stopped(out, number, printed)


@pytest.mark.slow  # that of ranks which a command starts is looked at above
def test_a_sentence_of_rank_0_ends_all_ranks(tmp_path: Path) -> None:
    out = tmp_path / "run"
    status, printed, said = finished(torchrun("md", WATER, "--out", out, "--domains", "2x2x1"))
    assert status == 1
    assert printed == ""
    expected = "There are 4 domains (2x2x1) and 2 ranks; give each rank one, by 4 ranks or by 2 dom"
    assert said.count(expected) == 1
    assert said.count("error") == 1
    assert not out.exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"domains": "64"}, "64 domains are asked for, and this system holds 2x2x2 at most"),
        ({"domains": "9x1x1"}, "are as narrow as"),
        ({"domains": "2", "evaluator": "reference"}, "Domains need the fused form"),
        ({"domains": "2", "potential": "aceff-2.0"}, "its charges depend on all atoms"),
    ],
)
def test_a_run_that_cannot_be_divided_writes_nothing(
    tmp_path: Path, reference_folder: Path, options: dict[str, Any], message: str
) -> None:
    if options.get("potential") == "aceff-2.0":
        path = str(reference_folder / "torchmdnet" / "aceff-2.0.ckpt")
        options = options | {"potential": path, "coulomb_cutoff_A": 5.0}
    with pytest.raises(InputError) as caught:
        start(MDConfig(structure=WATER, out=str(tmp_path / "run"), steps=10, **options))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("md", "--domains", "2x1"), "--domains is 2x1; give a number such as 2, or a grid such"),
        (("md", "--domains", "0"), "--domains is 0; give a number such as 2, or a grid such as"),
        (("md", "--domains", "2", "--replicas", "2"), "domains divide one system"),
        (("eval", WATER, "--domains", "2"), "No such option: --domains"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    mdgraph_command: Callable[..., Any], tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    done = mdgraph_command(*words, "--out", tmp_path / "run")
    assert done.status == 1
    assert message in done.err
    assert not (tmp_path / "run").exists()


def interrupted_steps(asked: list[signal.Signals]) -> None:
    """Steps of 20 s, within which a signal comes twice."""
    with signals_caught(), Interruption(asked.append, 1, repeated=True):
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(20.0)


def test_a_signal_that_comes_twice_at_once_stops_the_run_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A terminal and torchrun both send it; steps that take long end some seconds later."""
    monkeypatch.setattr(md, "PATIENCE", 0.5)
    asked: list[signal.Signals] = []
    began = time.monotonic()
    with pytest.raises(Interrupted):
        interrupted_steps(asked)
    assert 0.4 < time.monotonic() - began < 10.0
    assert asked[:2] == [signal.SIGTERM] * 2
