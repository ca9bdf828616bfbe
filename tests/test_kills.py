"""Processes killed at random moments of their whole life: nothing is lost, nothing stays half.

A run that goes on gives the bits of one that was never killed and leaves all that it leaves; what
cannot go on is run again. A fifth are true commands, which import everything before they begin;
the others are forked from a process that has imported it.
"""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
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
from mdgraph.io.log import read_log
from mdgraph.io.trajectories import read_trajectory
from mdgraph.runs.directory import RunDirectory

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
}

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

FILES = {"eval": "e.extxyz", "relax": "e.extxyz", "convert": "set.h5"}


def arguments_of(kind: str, out: Path) -> list[str]:
    words = COMMANDS[kind].split()
    if kind not in ("train", "protocol", "convert"):
        words += ["--potential", "tiny.safetensors"]
    if kind == "convert":
        return [*words, str(out / FILES[kind])]
    return [*words, "--out", str(out / FILES[kind]) if kind in FILES else str(out)]


def arguments_to_go_on(kind: str, out: Path) -> list[str]:
    words = arguments_of(kind, out)
    if kind == "train":
        return [*words, "--resume"] if out.exists() and any(out.iterdir()) else words
    if kind in ("protocol", *FILES):
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
    """A command under way."""

    def __init__(
        self, processes: Any, folder: Path, arguments: list[str], said: Path, *, true: bool
    ) -> None:
        self.began, self.true = time.monotonic(), true
        if true:
            command = [sys.executable, "-m", "mdgraph", *arguments]
            environment = {**os.environ, "PYTHONPATH": str(ROOT)}
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

    def killed_after(self, seconds: float) -> bool:
        while time.monotonic() < self.began + seconds and not self.has_ended():
            time.sleep(0.002)
        self.process.kill()
        return bool(self.wait() == -signal.SIGKILL)

    def has_ended(self) -> bool:
        return (self.process.poll() if self.true else self.process.exitcode) is not None


def left_by(kind: str, out: Path) -> dict[str, Any]:
    """All that must not depend on kills, by its place."""
    found: dict[str, Any] = {}
    for path in sorted(out.rglob("*")):
        name = str(path.relative_to(out))
        if path.is_dir() or path.suffix in (".png", ".html", ".md", ".yaml"):
            found[name] = None  # pictures and texts tell when they were made, or for how long
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
        elif path.name == "trajectory.h5":
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
    said = tmp_path / "said"

    def command(out: Path, arguments: list[str], true: bool) -> Command:
        out.mkdir(exist_ok=True) if kind in FILES else None
        return Command(processes, folder, arguments, said, true=true)

    lives = {}
    for true in (False, True):
        whole = tmp_path / f"whole-{true}"
        life = command(whole, arguments_of(kind, whole), true)
        assert life.wait() == 0, said.read_text()
        lives[true] = time.monotonic() - life.began
    expected = left_by(kind, whole)
    generator = random.Random(f"{kind} {os.environ.get('MDGRAPH_KILLS', time.time())}")
    outcomes: Counter[str] = Counter()
    kills = 0
    while kills < KILLS[kind]:
        true = generator.random() < 0.2
        out = tmp_path / "out"
        arguments = arguments_of(kind, out)
        for _ in range(1 + (generator.random() < 0.3)):
            moment = generator.uniform(0.0, 1.05 * lives[true])
            under_way = command(out, arguments, true)
            killed = under_way.killed_after(moment)
            if not killed:  # lives are shorter where the machine has less to do
                lives[true] = min(lives[true], time.monotonic() - under_way.began)
            kills += killed
            left = {path.name for path in out.rglob("*")} if out.exists() else set()
            state = "ended before" if not killed else "nothing yet" if not left else "under way"
            outcomes[f"{'command' if true else 'fork'}, {state}"] += 1
            arguments = arguments_to_go_on(kind, out)
            finished = kind in FILES and (out / FILES[kind]).exists()
            if not killed or finished:
                break  # what has its file would refuse to replace it
        if not finished:
            again = true and generator.random() < 0.3
            assert command(out, arguments, again).wait() == 0, said.read_text()
        found = left_by(kind, out)
        hidden = [path.name for path in out.rglob(".*")]
        assert sorted(found) == sorted(expected), (moment, sorted(left), arguments)
        assert [name for name in found if found[name] != expected[name]] == []
        assert not hidden
        shutil.rmtree(out)
        said.unlink(missing_ok=True)
    record_property("kills", kills)
    record_property("outcomes", dict(outcomes))
    record_property("seconds of a life", [round(seconds, 1) for seconds in lives.values()])
