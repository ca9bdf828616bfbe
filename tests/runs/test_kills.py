"""Processes ended at random moments of their whole life: nothing is lost, nothing stays half.

A run that goes on gives the bits of one that was never ended and leaves all that it leaves; what
cannot go on is run again. A fifth are true commands, which import everything before they begin;
the others are forked from a process that has imported it. What a signal ends is gone within ten
seconds, with one sentence, and leaves no temporary file.

MDGRAPH_KILLS is the seed of the moments. MDGRAPH_KILLS_DONE names a file that takes a line for each
moment that went well, and the moments in it are not tried again.
"""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
import pytest
from ase.calculators.singlepoint import SinglePointCalculator
from safetensors.torch import load_file
from training_sets import clusters, prepare

import mdgraph
from mdgraph.cli import main
from mdgraph.data import open_dataset
from mdgraph.io.formats import read_trajectory
from mdgraph.io.log import read_log
from mdgraph.runs.folder import RunDirectory
from mdgraph.signals import SIGNALS, unfinished_status

ROOT = Path(mdgraph.__file__).parent.parent

KILLS = {
    "md": 40,
    "npt": 25,
    "replicas": 25,
    "minimise": 20,
    "train": 30,
    "protocol": 20,
    "relax": 15,
    "eval": 15,
    "convert": 10,
}
"""How often each is killed: 200 times in all."""

SIGNALLED = {
    "md": 8,
    "cold": 12,
    "npt": 4,
    "replicas": 8,
    "minimise": 8,
    "train": 10,
    "protocol": 8,
    "relax": 8,
    "eval": 6,
    "convert": 6,
    "split": 4,
    "check": 4,
    "potential": 4,
    "export": 6,
    "domain": 4,
    "inspect": 4,
    "bench": 6,
}
"""How often each is sent one of the signals that end it: 110 times in all."""

PATIENCE = 10.0
"""s, after which a command that was sent a signal is gone."""

RUN = "--trajectory-interval 4 --log-interval 3 --checkpoint-interval 7 --device cpu"
COMMANDS = {
    "md": f"md water.extxyz {RUN} --steps 120 --observe rdf:2,averages:5 --trajectory extxyz",
    "npt": f"md water.extxyz {RUN} --steps 100 --ensemble npt --observe averages:2",
    "replicas": f"md water.extxyz {RUN} --steps 60 --replicas 3 --temperatures-K 300:400 "
    "--exchange 5 --observe rdf:4",
    "minimise": f"minimise water.extxyz {RUN} --steps 150 --force-tolerance-eV-per-A 1e-9",
    "train": "train train.yaml",
    "protocol": "protocol protocol.yaml water.extxyz",
    "relax": "relax many.extxyz --steps 20 --device cpu",
    "eval": "eval many.extxyz --device cpu",
    "convert": "data convert labelled.extxyz",
    "split": "data split labelled.h5",
    "check": "data check labelled.h5",
    "potential": "convert tiny.safetensors",
    "export": "export tiny.safetensors --torchforce --structure water.extxyz",
    "domain": "domain trained set.h5 split.json --overwrite",
    "inspect": "inspect tiny.safetensors",
    "bench": "bench tiny.safetensors water.extxyz --device cpu --seconds 0.5",
}
COMMANDS["cold"] = COMMANDS["md"]
"""With nothing compiled yet: the caches and the home of the process are empty."""

PROTOCOL = """
potential: tiny.safetensors
device: cpu
trajectory_interval: 4
log_interval: 3
checkpoint_interval: 7
stages:
  - run: minimise
    force_tolerance_eV_per_A: 1e-9
    steps: 20
  - ensemble: npt
    steps: 20
  - ensemble: nve
    steps: 20
    observe: rdf:2
"""

FILES = {"eval": "e.extxyz", "relax": "e.extxyz"}
POSITIONAL = {
    "convert": "set.h5",
    "split": "split.json",
    "potential": "copy.safetensors",
    "export": "tiny.pt",
}
FILES |= POSITIONAL
PRINTING = ("check", "domain", "inspect", "bench")
"""What leaves no file where the others do; `domain` replaces one of a potential."""


def arguments_of(kind: str, out: Path) -> list[str]:
    words = COMMANDS[kind].split()
    if kind in PRINTING:
        return words
    if kind in POSITIONAL:
        return [*words, str(out / FILES[kind])]
    if kind not in ("train", "protocol"):
        words += ["--potential", "tiny.safetensors"]
    return [*words, "--out", str(out / FILES[kind]) if kind in FILES else str(out)]


def arguments_to_go_on(kind: str, out: Path) -> list[str]:
    words = arguments_of(kind, out)
    if kind == "train":
        return [*words, "--resume"] if out.exists() and any(out.iterdir()) else words
    if kind in ("eval", "relax"):
        return [*words, "--resume"]
    if kind in ("protocol", *FILES, *PRINTING):
        return words
    return [words[0], "--resume", "--out", str(out)] if RunDirectory(out).holds_run() else words


@pytest.fixture(scope="module")
def folder(
    tmp_path_factory: pytest.TempPathFactory, tiny_potential: Path, water_file: Path
) -> Path:
    """What the commands read."""
    root = tmp_path_factory.mktemp("kills")
    shutil.copyfile(tiny_potential, root / "tiny.safetensors")
    shutil.copyfile(water_file, root / "water.extxyz")
    (root / "protocol.yaml").write_text(PROTOCOL)
    generator = np.random.default_rng(0)
    plain, labelled = [], []
    for _ in range(40):
        atoms = ase.io.read(water_file)
        atoms.positions += generator.normal(scale=0.05, size=atoms.positions.shape)
        plain.append(atoms.copy())
        atoms.calc = SinglePointCalculator(
            atoms, energy=float(generator.normal()), forces=generator.normal(size=(6, 3))
        )
        labelled.append(atoms)
    ase.io.write(root / "many.extxyz", plain)
    ase.io.write(root / "labelled.extxyz", labelled * 20)
    path = prepare(root, clusters(16), steps=30, validations=3, checkpoint_interval=7)
    path.rename(root / "train.yaml") if path.name != "train.yaml" else None
    for words in ("train train.yaml --out trained", "data convert labelled.extxyz labelled.h5"):
        command = [sys.executable, "-m", "mdgraph", *words.split()]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        subprocess.run(command, check=True, cwd=root, env=environment)
    return root


def _command(folder: Path, arguments: list[str], said: Path) -> None:
    """In a process that has imported everything."""
    os.chdir(folder)
    descriptor = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number in (1, 2):
        os.dup2(descriptor, number)
    sys.argv = ["mdgraph", *arguments]
    main()


class Command:
    """A command under way.

    Attributes:
        began: when.
        true: whether it is one, or forked.
        seconds: from a signal to its end.
    """

    seconds = 0.0

    def __init__(
        self, processes: Any, folder: Path, arguments: list[str], said: Path, caches: Path | None
    ) -> None:
        """Starts it.

        Args:
            processes: what forks.
            folder: in which it runs.
            arguments: behind its name.
            said: takes its output.
            caches: of a true command, or an empty folder for them; None: it is forked.
        """
        self.began, self.true = time.monotonic(), caches is not None
        if caches is not None:
            command = [sys.executable, "-m", "mdgraph", *arguments]
            environment = {**os.environ, "PYTHONPATH": str(ROOT)}
            if caches.exists():
                names = ("HOME", "NUMBA_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
                environment |= dict.fromkeys(names, str(caches))
            with said.open("ab") as file:
                self.process: Any = subprocess.Popen(
                    command, cwd=folder, stdout=file, stderr=file, env=environment
                )
            self.wait = self.process.wait
        else:
            self.process = processes.Process(target=_command, args=(folder, arguments, said))
            self.process.start()
            self.wait = self._join

    def _join(self) -> int:
        self.process.join()
        return int(self.process.exitcode)

    def sent_after(self, seconds: float, number: signal.Signals) -> bool:
        """Sends a signal; returns whether there was still one to take it."""
        while time.monotonic() < self.began + seconds and not self.has_ended():
            time.sleep(0.002)
        if self.has_ended():
            return False
        os.kill(self.process.pid, number)
        sent = time.monotonic()
        while not self.has_ended():
            time.sleep(0.002)
            self.seconds = time.monotonic() - sent
            if self.seconds > PATIENCE:
                self.process.kill()
                raise AssertionError(f"more than {PATIENCE} s after {number.name}")
        return True

    def has_ended(self) -> bool:
        return (self.process.poll() if self.true else self.process.exitcode) is not None


def left_by(kind: str, out: Path) -> dict[str, Any]:
    """All that must not depend on kills, by its place."""
    found: dict[str, Any] = {}
    for path in sorted(out.rglob("*")):
        name = str(path.relative_to(out))
        if path.is_dir() or path.suffix in (".png", ".html", ".md", ".yaml", ".pt"):
            found[name] = None  # these tell when they were made, for how long, or under which name
        elif path.name in ("log.csv", "uncertainty.csv") and kind != "train":
            found[name] = {
                column: values.tobytes()
                for column, values in read_log(path).items()
                if column != "ns_per_day"
            }
        elif path.name == "log.csv":
            rows = np.genfromtxt(path, delimiter=",", names=True)
            same = [one for one in rows.dtype.names if one not in ("seconds", "waiting_share")]
            found[name] = [rows[one].tobytes() for one in same]
        elif path.name == "trajectory.h5md":
            with read_trajectory(path) as trajectory:
                found[name] = [
                    (frame.step, frame.positions.tobytes(), frame.velocities.tobytes())
                    for frame in trajectory
                ]
        elif path.suffix == ".h5":
            with open_dataset(path) as dataset:
                found[name] = dataset.sha256()
        elif path.suffix == ".json" or (kind == "train" and "checkpoint" in path.name):
            found[name] = None  # folders and times differ
        elif kind == "train":  # the metadata have the folder's name
            found[name] = {one: value.numpy().tobytes() for one, value in load_file(path).items()}
        else:
            found[name] = path.read_bytes()
    return found


def check_farewell(kind: str, status: int, number: signal.Signals, said: str, out: Path) -> str:
    """Checks how a signal ended a process; returns when it came."""
    # As Python has it, before the first line of the command or at its exit.
    if status == -number or (status == 1 and number == signal.SIGINT and not said):
        assert "Traceback" not in said or (number == signal.SIGINT and "mdgraph/" not in said), said
        return "after its last line" if "finished" in said or "are in" in said else "at once"
    # A run that holds a checkpoint is unfinished after SIGUSR1.
    assert status in (128 + number, unfinished_status(number)), (status, number, said)
    assert "Traceback" not in said, said
    # A bar is left as it stood; what ends the command is said after it, once.
    sentences = [line for line in said.replace("\r", "\n").split("\n") if "Stopped" in line]
    assert len(sentences) == 1, said
    assert not [path.name for path in out.rglob(".*")], said
    if kind not in PRINTING and kind not in FILES:
        kept = out.exists() and any(out.rglob("checkpoint*"))
        assert kept == ("--resume" in sentences[0] or (kind == "protocol" and kept)), said
    return "nothing yet" if not out.exists() or not [*out.iterdir()] else "under way"


def end_at_random(
    kind: str,
    count: int,
    numbers: Sequence[signal.Signals],
    folder: Path,
    tmp_path: Path,
    processes: Any,
) -> dict[str, object]:
    """Ends a command so many times; returns what is to be recorded of it."""
    said, caches = tmp_path / "said", tmp_path / "caches"
    done = Path(os.environ.get("MDGRAPH_KILLS_DONE", tmp_path / "done"))
    own = [kind, "kill" if signal.SIGKILL in numbers else "signal"]
    lines = [json.loads(line) for line in done.read_text().splitlines()] if done.exists() else []
    before = [line for line in lines if line[:2] == own]
    forks, usual = kind != "cold", int(kind == "check")

    def command(out: Path, arguments: list[str], true: bool) -> Command:
        out.mkdir(exist_ok=True) if kind in FILES else None
        shutil.rmtree(caches, ignore_errors=True)
        caches.mkdir() if true and not forks else None
        return Command(processes, folder, arguments, said, caches if true else None)

    lives = {}
    for true in (False, True) if forks else (True,):
        whole = tmp_path / f"whole-{true}"
        life = command(whole, arguments_of(kind, whole), true)
        assert life.wait() == usual, said.read_text()
        lives[true] = time.monotonic() - life.began
    expected = left_by(kind, whole)
    generator = random.Random(f"{kind} {os.environ.get('MDGRAPH_KILLS', time.time())}")
    said.unlink()
    while len(before) < count:
        true = not forks or generator.random() < 0.2
        out = tmp_path / "out"
        arguments = arguments_of(kind, out)
        found_at = []
        for _ in range(1 + (generator.random() < 0.3)):
            # Most of a life is over before the first file: every other moment is after that.
            moment = generator.uniform(generator.choice((0.0, 0.6)), 1.05) * lives[true]
            number = generator.choice(numbers)
            said.unlink(missing_ok=True)
            under_way = command(out, arguments, true)
            was_ended = under_way.sent_after(moment, number) and under_way.wait() != usual
            if not was_ended:  # lives are shorter where the machine has less to do
                lives[true] = min(lives[true], time.monotonic() - under_way.began)
            left = {path.name for path in out.rglob("*")} if out.exists() else set()
            state = "ended before" if not was_ended else "nothing yet" if not left else "under way"
            if was_ended and number != signal.SIGKILL:
                text = said.read_text() if said.exists() else ""
                state = check_farewell(kind, under_way.wait(), number, text, out)
            kept = [f"{'command' if true else 'fork'}, {state}", round(under_way.seconds, 2)]
            found_at += [kept] * was_ended
            arguments = arguments_to_go_on(kind, out)
            goes_on = "--resume" in arguments
            finished = kind in FILES and (out / FILES[kind]).exists() and not goes_on
            if not was_ended or finished:
                break  # what has its file would refuse to replace it
        if not finished and kind not in PRINTING:
            again = forks and true and generator.random() < 0.3
            going_on = Command(processes, folder, arguments, said, caches if again else None)
            assert going_on.wait() == 0, said.read_text()
        found = left_by(kind, out)
        hidden = [path.name for path in (*out.rglob(".*"), *folder.rglob(".*"))]
        assert sorted(found) == sorted(expected), (moment, number, sorted(left), arguments)
        assert [name for name in found if found[name] != expected[name]] == []
        assert not hidden
        shutil.rmtree(out, ignore_errors=True)
        with done.open("a") as file:
            file.writelines(f"{json.dumps([*own, *state])}\n" for state in found_at)
        before += [[*own, *state] for state in found_at]
    return {
        "ended": len(before),
        "outcomes": dict(Counter(line[2] for line in before)),
        "most seconds from a signal to the end": max(line[3] for line in before),
        "seconds of a life": [round(seconds, 1) for seconds in lives.values()],
    }


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("kind", KILLS)
def test_kills_at_random_moments(
    kind: str,
    folder: Path,
    tmp_path: Path,
    processes: Any,
    record_property: Callable[[str, object], None],
) -> None:
    numbers = [signal.SIGKILL]
    for item in end_at_random(kind, KILLS[kind], numbers, folder, tmp_path, processes).items():
        record_property(*item)


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("kind", SIGNALLED)
def test_signals_at_random_moments(
    kind: str,
    folder: Path,
    tmp_path: Path,
    processes: Any,
    record_property: Callable[[str, object], None],
) -> None:
    count = SIGNALLED[kind]
    for item in end_at_random(kind, count, SIGNALS, folder, tmp_path, processes).items():
        record_property(*item)
