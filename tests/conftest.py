"""Fixtures and settings for all tests."""

import contextlib
import gc
import logging
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from multiprocessing import forkserver
from pathlib import Path
from types import ModuleType
from typing import Any

if workers := os.environ.get("PYTEST_XDIST_WORKER_COUNT"):
    # NumPy and SciPy read this when they are imported. Threads of tests side by side wait for each
    # other in products of 3 by 3 matrices, too.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # Together tests have one thread a core, also in processes that they start. Where another
    # process has the core that one of OpenMP's threads waits for, the others compute in vain.
    THREADS = max(1, (os.cpu_count() or 1) // int(workers))
    os.environ.setdefault("OMP_NUM_THREADS", str(THREADS))

import hypothesis
import pytest
import torch
import typer.main

# Torch reads this at its first large tensor: in pages of 4 kB, those of a system of thousands of
# atoms take longer to map than to compute with.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

if not torch.cuda.is_available():
    # Triton reads this when it is imported: its kernels then run on CPU tensors.
    os.environ.setdefault("TRITON_INTERPRET", "1")

import ase.io
from ase_atoms import CountedCalculation, ethanol
from ase_pairs import SEARCHES
from compiling import compile_once
from interpreter import hasten
from prepared import IMPORTED
from recording import RecordedGraph
from repository import ROOT, SUPPORT

from mdgraph.analysis import plots, style
from mdgraph.checkpoints import save
from mdgraph.cli import main
from mdgraph.drivers.ase import calculator
from mdgraph.engine import simulation, step_graphs
from mdgraph.ensembles import ENSEMBLES
from mdgraph.fused import evaluator as fused_evaluator
from mdgraph.fused.evaluator import FusedTensorNet
from mdgraph.models import RadialBasisConfig, ReadoutConfig, TensorNetConfig, TensorNetPotential
from mdgraph.runs import md
from mdgraph.runs.analyse import free_energy
from mdgraph.runs.config import MDConfig

if os.environ.get("TRITON_INTERPRET") == "1":
    hasten()

compile_once()

# Radial functions of a shipped potential are tabulated in half a second, by hundreds of tests.
fused_evaluator._KEPT = 64

# An eighth of the time of a short run is the disk's, and no test cuts the power.
os.fsync = lambda descriptor: None


@cache
def command_of(app: typer.Typer, ensembles: tuple[str, ...], make: Callable[..., Any]) -> Any:
    """Options of all commands, which take a tenth of a second, again only for other ensembles."""
    return make(app)


_get_command = typer.main.get_command
typer.main.get_command = lambda app: command_of(app, tuple(ENSEMBLES), _get_command)


SHARED = Path(os.environ.get("MDGRAPH_SHARED", ROOT.parent / "shared"))

if workers:
    torch.set_num_threads(THREADS)

# The same cases in every run; the suite's own time limit bounds each test.
hypothesis.settings.register_profile("repeatable", derandomize=True, deadline=None)
hypothesis.settings.load_profile("repeatable")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Tests of a file stay on one worker, where they share fixtures, until another is idle.

    What `--dist` names is taken instead.
    """
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log) if config.getoption("dist") == "load" else None


def pytest_itemcollected(item: pytest.Item) -> None:
    if item.get_closest_marker("statistical"):
        item.add_marker("slow")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Collections of garbage pass over the millions of objects that imports and cases have made.

    To look at them again and again takes a tenth of the time of the tests.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(5000, 10, 10)


def pytest_runtest_setup(item: pytest.Item) -> None:
    marker = item.get_closest_marker("gpu")
    if marker is None:
        return
    (wanted,) = marker.args or (1,)
    if torch.cuda.device_count() < wanted:
        pytest.skip("needs a CUDA device" if wanted == 1 else f"needs {wanted} CUDA devices")


def _shared(name: str) -> Path:
    """A folder of data too large to travel with the source.

    Whoever has none of it skips the tests that need it. In continuous integration a part
    that is missing fails them instead, so that no check is lost unseen.
    """
    folder = SHARED / name
    if folder.is_dir():
        return folder
    reason = f"no '{name}' folder in {SHARED}; set MDGRAPH_SHARED to where it lies"
    if os.environ.get("CI") and SHARED.is_dir():
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture
def script() -> Callable[[str], ModuleType]:
    """Imports a script of benchmarks/ or tests/support/ by its name."""
    return import_module


@pytest.fixture
def printed(
    script: Callable[[str], ModuleType],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Callable[..., str]:
    """Runs such a script in this process, and gives what it prints."""

    def run(name: str, *arguments: object) -> str:
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        capsys.readouterr()
        script(name).main()
        return capsys.readouterr().out

    return run


@pytest.fixture
def ethanol_file(tmp_path: Path) -> Path:
    """One molecule as ASE has it."""
    path = tmp_path / "ethanol.xyz"
    ase.io.write(path, ethanol())
    return path


@pytest.fixture(scope="session")
def reference_folder() -> Path:
    """Published checkpoints and the numbers they must give."""
    return _shared("reference")


@pytest.fixture(scope="session")
def datasets_folder() -> Path:
    """Public training sets."""
    return _shared("datasets")


@pytest.fixture(scope="session")
def structures_folder() -> Path:
    """Structure files as users have them."""
    return _shared("structures")


@pytest.fixture(scope="session")
def tiny_potential(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small potential for hydrogen and oxygen with random weights, as a file."""
    torch.manual_seed(3)
    config = TensorNetConfig(
        species=(1, 8),
        channels=8,
        layers=1,
        cutoff=3.0,
        radial_basis=RadialBasisConfig(number=8),
        readout=ReadoutConfig(hidden=(8,)),
        name="tiny",
    )
    path = tmp_path_factory.mktemp("potential") / "tiny.safetensors"
    potential = TensorNetPotential(config)
    potential.scale.fill_(30.0)  # forces of some eV/A
    save(potential, path)
    return path


@pytest.fixture(scope="session")
def water_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two water molecules in a periodic box."""
    path = tmp_path_factory.mktemp("structure") / "water.extxyz"
    path.write_text(
        """6
Lattice="5 0 0 0 5 0 0 0 5" Properties=species:S:1:pos:R:3 pbc="T T T"
O 1.0 1.0 1.0
H 1.96 1.0 1.0
H 0.76 1.93 1.0
O 3.5 3.4 3.6
H 3.5 4.36 3.6
H 4.4 3.1 3.7
"""
    )
    return path


@dataclass(frozen=True)
class Finished:
    """How a command ended, and what it printed."""

    status: int
    out: str
    err: str


@contextlib.contextmanager
def usual_signals() -> Iterator[None]:
    """In the background of a script SIGINT and SIGQUIT are ignored, under nohup SIGHUP.

    So they are by what is started.
    """
    usual: dict[signal.Signals, Any] = {signal.SIGINT: signal.default_int_handler}
    usual |= dict.fromkeys((signal.SIGQUIT, signal.SIGHUP), signal.SIG_DFL)
    ignored = [one for one in usual if signal.getsignal(one) == signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, usual[number])
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)


@pytest.fixture(autouse=True)
def signals_as_in_a_terminal() -> Iterator[None]:
    with usual_signals():
        yield


@pytest.fixture(autouse=True)
def no_handler_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the command line installs, some tests without `mdgraph_command`, goes with the test."""
    monkeypatch.setattr(logging.getLogger("mdgraph"), "handlers", [])


@pytest.fixture
def mdgraph_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Finished]:
    """Runs the command line in this process; what it sets in the environment goes with the test."""
    for name in {"CUBLAS_WORKSPACE_CONFIG", "CUBLASLT_WORKSPACE_SIZE"} - set(os.environ):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)

    def run(*arguments: object) -> Finished:
        monkeypatch.setattr(sys, "argv", ["mdgraph", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        return Finished(int(ended.value.code or 0), printed.out, printed.err)

    return run


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """For systems this small, threads of torch only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(params=SEARCHES)
def search(request: pytest.FixtureRequest) -> str:
    """Each of the two searches of a neighbor list."""
    return str(request.param)


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> list[RecordedGraph]:
    """Lets simulations capture on the CPU, and collects what they captured."""
    found: list[RecordedGraph] = []

    def captured(
        function: Callable[[], None], device: torch.device, calls: int = 1, pool: Any = None
    ) -> RecordedGraph:
        for _ in range(3):
            function()
        found.append(RecordedGraph(function, calls))
        return found[-1]

    monkeypatch.setattr(step_graphs, "captured", captured)
    return found


@pytest.fixture
def configured(tmp_path: Path, tiny_potential: Path, water_file: Path) -> Callable[..., MDConfig]:
    """A short run in a folder of its own, with some fields changed."""

    def make(**fields: Any) -> MDConfig:
        short: dict[str, Any] = {
            "structure": str(water_file),
            "potential": str(tiny_potential),
            "out": str(tmp_path / "run"),
            "steps": 60,
            "friction_per_ps": 20.0,
            "trajectory_interval": 4,
            "log_interval": 3,
            "checkpoint_interval": 7,
            "seed": 4,
            "check": False,  # test_verified_commands.py has those that are checked
        }
        if fields.get("ensemble") == "nve":
            del short["friction_per_ps"]
        return MDConfig(**(short | fields))

    return make


@pytest.fixture
def drawn_pictures() -> None:
    """Commands of a test with this fixture draw their pictures as those of users do."""


@pytest.fixture(autouse=True)
def pictures_are_not_drawn(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands in this process make their figures, but drawing them takes longer than a short run.

    So it is of the pictures of runs, of what they record, of free energies and of those in pages.
    """
    if "drawn_pictures" in request.fixturenames:
        return

    def undrawn(draw: Any, *arguments: Any, **options: Any) -> Any:
        figure = draw(*arguments, **options)
        monkeypatch.setattr(figure, "savefig", lambda path: path.write_bytes(b"\x89PNG"))
        return figure

    monkeypatch.setattr(style, "png", lambda figure: b"\x89PNG")
    for draw in (plots.run_figure, plots.replicas_figure, plots.recorded_figure):
        monkeypatch.setattr(plots, draw.__name__, partial(undrawn, draw))
    draw = free_energy.profile_figure
    monkeypatch.setattr(free_energy, draw.__name__, partial(undrawn, draw))


@pytest.fixture
def without_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    """Saves the time of drawing where a test does not look at it."""
    monkeypatch.setattr(md, "draw_picture", lambda *arguments: None)


@pytest.fixture
def without_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pictures of a training take longer than a small training."""
    monkeypatch.setattr("mdgraph.train.report.write_report", lambda path, *_: path.write_text(""))


_CHECKED: dict[tuple[str, str, str], Any] = {}


@pytest.fixture
def checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulations of one process check an evaluator with the same weights and precision once.

    The reference takes longer than a short run, and tests of the check itself lack this fixture.
    """
    plain = simulation.self_check

    def check(evaluator: Any, state: Any, lists: Any, precision: Any) -> Any:
        if not isinstance(evaluator, FusedTensorNet):
            return plain(evaluator, state, lists, precision)
        key = (fused_evaluator._digest(evaluator.potential), precision.name, str(state.device))
        if key not in _CHECKED:
            _CHECKED[key] = plain(evaluator, state, lists, precision)
        return _CHECKED[key]

    monkeypatch.setattr(simulation, "self_check", check)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> type[CountedCalculation]:
    """Counts the buffers that ASE's calculators make."""
    CountedCalculation.made = 0
    monkeypatch.setattr(calculator, "Calculation", CountedCalculation)
    return CountedCalculation


@pytest.fixture(scope="session")
def processes() -> Any:
    """Starts processes that have imported everything already, and no threads of this one.

    Where there is a GPU they begin from nothing: what made kernels and tables ready has asked for
    devices, after which CUDA does not start in a process that is forked.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*IMPORTED])
    paths = [str(SUPPORT), *filter(None, [os.environ.get("PYTHONPATH")])]
    with pytest.MonkeyPatch.context() as patch, usual_signals():
        patch.setenv("PYTHONPATH", os.pathsep.join(paths))
        forkserver.ensure_running()
    return multiprocessing.get_context("spawn") if torch.cuda.is_available() else context
