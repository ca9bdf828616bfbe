"""The folder of a run: its files, run.json, and where the files of every system lie."""

import contextlib
import errno
import fcntl
import json
import logging
import math
import os
import platform
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, Literal

import torch

from mdgraph import __version__
from mdgraph.engine import Simulation
from mdgraph.engine.replicas import ALONE, Ranks
from mdgraph.errors import FileError, InputError
from mdgraph.evaluators import AutogradEvaluator, Evaluator
from mdgraph.io.files import disk_failures, sync_file, write_atomically
from mdgraph.io.formats import FORMATS
from mdgraph.runs.config import MDConfig, RunConfig
from mdgraph.runs.potential import Source
from mdgraph.system import System
from mdgraph.units import SYMBOLS

logger = logging.getLogger(__name__)

FORMAT: Final = 1
"""Of run.json; raised when its meaning changes."""

_BEGINNING: Final = ".beginning"
"""The folder within, while its files are written."""

_BEGUN: Final = ".begun"
"""Its name once they are all there."""

_PARTS: Final = ("configuration", "structure", "potential", "chosen", "environment")
"""Of run.json, beside its format."""


class RunDirectory:
    """The folder of one run.

    Attributes:
        path: the folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def record(self) -> Path:
        """run.json: everything chosen or defaulted."""
        return self.path / "run.json"

    @property
    def start(self) -> Path:
        """The structure that the run began from, one frame of extended XYZ."""
        return self.path / "start.extxyz"

    @property
    def end(self) -> Path:
        """Where a run that is complete ended, one frame of extended XYZ."""
        return self.path / "end.extxyz"

    @property
    def checkpoint(self) -> Path:
        """The restart file."""
        return self.path / "checkpoint.safetensors"

    @property
    def checkpoint_before(self) -> Path:
        """The restart file before that one, where other ranks may have got no further."""
        return self.path / "checkpoint.before.safetensors"

    @property
    def log(self) -> Path:
        """The log, CSV."""
        return self.path / "log.csv"

    @property
    def uncertainty(self) -> Path:
        """How far the run could be trusted, CSV."""
        return self.path / "uncertainty.csv"

    @property
    def picture(self) -> Path:
        """The picture drawn at the end."""
        return self.path / "picture.png"

    @property
    def exchanges(self) -> Path:
        """Where replicas stand on their ladder of temperatures, CSV."""
        return self.path / "exchanges.csv"

    def replica(self, number: int) -> "RunDirectory":
        """The folder of one of several replicas."""
        return RunDirectory(self.path / f"replica-{number}")

    def of_rank(self, ranks: Ranks) -> "RunDirectory":
        """The folder of one of several ranks within this one, or this one."""
        return self if ranks.count == 1 else RunDirectory(self.path / f"rank-{ranks.rank}")

    def parts(self, configuration: RunConfig, numbers: Sequence[int]) -> list["RunDirectory"]:
        """Where the files of systems lie: in a folder of each replica, or in this one.

        Args:
            configuration: of the run.
            numbers: of the systems.
        """
        if not configuration.has_replicas:
            return [self]
        return [self.replica(number) for number in numbers]

    def trajectory(self, word: str) -> Path:
        """The trajectory in a format of `mdgraph.io.formats`, such as `h5md`."""
        return self.path / f"trajectory{FORMATS[word].suffixes[0]}"

    def write_record(self, record: dict[str, dict[str, Any]]) -> None:
        """Writes run.json whole; raises FileError where the disk refuses."""
        text = json.dumps({"format": FORMAT, **record}, indent=2) + "\n"
        write_atomically(self.record, lambda path: path.write_text(text, encoding="utf-8"))

    def read_record(self) -> dict[str, dict[str, Any]]:
        """Reads run.json.

        Raises:
            FileError: there is none, or it is damaged or of another version.
        """
        with disk_failures(self.record, "read"):
            text = self.record.read_text(encoding="utf-8", errors="replace")
        try:
            record = dict(json.loads(text))
            if "format" not in record:
                raise FileError(
                    f"{self.record} is no record of a run of mdgraph; give the folder of one."
                )
            if record["format"] != FORMAT:
                raise FileError(
                    f"{self.record} has format {record['format']}, and this mdgraph reads "
                    f"{FORMAT}; resume with the version that wrote it."
                )
            found = {key: dict(record[key]) for key in _PARTS}
            _check_structure(found["structure"])
            str(found["potential"]["sha256"]), found["environment"]["gpu"]
            found["chosen"]["captured_as_cuda_graph"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise FileError(f"{self.record} is damaged; put back the original.") from error
        return found

    def holds_run(self) -> bool:
        """Whether a run was begun in it; one that was killed at once is finished by resuming."""
        return self.record.exists() or (self.path / _BEGUN).exists()

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps other processes from running in the folder; the lock dies with the process.

        Raises:
            InputError: another process runs in it.
        """
        with disk_failures(self.path, "open"):
            descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(descriptor)
            raise InputError(
                f"Another process is running in {self.path}; wait for it or stop it."
            ) from error
        except OSError:
            logger.debug("%s: the file system has no locks", self.path)
        try:
            yield
        finally:
            os.close(descriptor)


@dataclass(frozen=True)
class Run:
    """A run and its systems, of which one is the ordinary case.

    Attributes:
        configuration: of the run.
        folder: of this rank, which is that of the run where there is one rank.
        ranks: that share the systems.
    """

    configuration: RunConfig
    folder: RunDirectory
    ranks: Ranks = ALONE

    @property
    def whole_folder(self) -> RunDirectory:
        """The folder of the run, above those of its ranks."""
        return self.folder if self.ranks.count == 1 else RunDirectory(self.folder.path.parent)

    @property
    def numbers(self) -> range:
        """The systems of this rank, among those of all; raises InputError as Ranks.share does."""
        count = self.configuration.system_count
        return range(count) if self.ranks.count == 1 else self.ranks.share(count)

    def own(self, systems: Sequence[System]) -> list[System]:
        """Those of this rank."""
        return [systems[number] for number in self.numbers]

    @property
    def parts(self) -> list[RunDirectory]:
        """Where the files of each system of this rank lie."""
        return self.folder.parts(self.configuration, self.numbers)

    @property
    def all_parts(self) -> list[RunDirectory]:
        """Where the files of every system lie, those of other ranks too."""
        shares = self.ranks.shares(self.configuration.system_count)
        return [
            part
            for rank, numbers in enumerate(shares)
            for part in self.whole_folder.of_rank(replace(self.ranks, rank=rank)).parts(
                self.configuration, numbers
            )
        ]

    def meet(self) -> None:
        """Waits until all ranks are here; raises LostRankError where one is gone."""
        if self.ranks.count > 1:
            self.ranks.numbers(0)

    @property
    def exchange(self) -> int | None:
        """Steps between exchanges of temperatures; None without them."""
        return self.configuration.exchange if isinstance(self.configuration, MDConfig) else None

    @property
    def exchanges_over_ranks(self) -> bool:
        """Whether ranks wait for each other within the run."""
        return self.exchange is not None and self.ranks.count > 1


def _check_structure(about: dict[str, Any]) -> None:
    """Raises KeyError, TypeError or ValueError unless a record says what systems a run has."""
    for one in about.get("replicas", [about]):
        str(one["formula"]), int(one["atoms"])
        if not math.isfinite(one["charge_e"]):
            raise ValueError


def refuse_used(path: Path) -> None:
    """Keeps a new run from touching what is in a folder.

    What a start that was killed left behind does not count.

    Raises:
        InputError: the folder holds a run or other files.
        FileError: the path is no folder, or nothing can be written there.
    """
    with disk_failures(path, "use"):
        entries = list(path.iterdir()) if path.exists() else []
        used = [one for one in entries if not _is_left_over(one)]
        place = next(one for one in (path, *path.absolute().parents) if one.exists())
        if not os.access(place, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    if RunDirectory(path).holds_run():
        raise InputError(
            f"{path} holds a run already; go on with it with --resume, or give another "
            "folder with --out."
        )
    if used:
        raise InputError(f"{path} holds other files; give a new or empty folder with --out.")


def _is_left_over(path: Path) -> bool:
    """Whether an entry of a folder is nobody's: of a file system, or of a start that was killed."""
    if re.fullmatch(r"rank-\d+", path.name) and path.is_dir():
        return all(map(_is_left_over, path.iterdir()))
    return path.name in ("lost+found", _BEGINNING)


@contextlib.contextmanager
def new_run(path: Path, fill: Callable[[RunDirectory], None]) -> Iterator[RunDirectory]:
    """Makes the folder of a new run, which nobody else may run in until the block ends.

    The files are written into a folder within it, and moved once all of them are there: a kill
    at any moment leaves a run that can be resumed, or what the next start removes.

    Args:
        path: a new or empty folder; one that exists stays the same folder.
        fill: writes the files into the folder it is given.

    Raises:
        InputError, FileError: see `refuse_used`; or the disk refused. A folder that was there
            is empty again then, and others are gone.
    """
    folder = RunDirectory(path)
    with new_folder(path), folder.locked():
        refuse_used(path)
        _fill(folder, fill)
        yield folder


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[None]:
    """Makes a folder and those above it; they go again where the block fails and they are empty.

    Raises:
        FileError: the disk refuses.
    """
    with disk_failures(path, "write"):
        target = Path(os.path.realpath(path))
        new = [one for one in (target, *target.parents) if not one.exists()]
        target.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        for one in new:
            with contextlib.suppress(OSError):
                one.rmdir()
        raise


def _fill(folder: RunDirectory, fill: Callable[[RunDirectory], None]) -> None:
    """Writes the files of a run, all of them or none."""
    beginning = folder.path / _BEGINNING
    with disk_failures(folder.path, "write"):
        shutil.rmtree(beginning, ignore_errors=True)
        try:
            beginning.mkdir()
            fill(RunDirectory(beginning))
            sync_file(beginning)
            beginning.rename(folder.path / _BEGUN)
        except FileError as error:
            # Nobody knows the folder within.
            raise FileError(str(error).replace(str(beginning), str(folder.path))) from error
        finally:
            shutil.rmtree(beginning, ignore_errors=True)
    finish_start(folder)


def finish_start(folder: RunDirectory) -> None:
    """Moves what a start wrote to where it belongs; does nothing where that was done.

    Raises:
        FileError: the disk refused.
    """
    staged = folder.path / _BEGUN
    if not staged.exists():
        return
    with disk_failures(folder.path, "write"):
        names = sorted(one.name for one in staged.iterdir())
        record = folder.record.name
        for name in [*(one for one in names if one != record), *({record} & {*names})]:
            (staged / name).rename(folder.path / name)
        staged.rmdir()
        sync_file(folder.path)


_PACKAGES: Final = ("torch", "numpy", "ase", "h5py", "safetensors")


def formula(system: System) -> str:
    """Elements and how many atoms of each, such as H128 O64."""
    counts = Counter(system.numbers.tolist())
    return " ".join(f"{SYMBOLS[number]}{counts[number]}" for number in sorted(counts))


def evaluator_name(evaluator: Evaluator) -> Literal["fused", "reference"]:
    """The word by which `--evaluator` chooses it."""
    return "reference" if isinstance(evaluator, AutogradEvaluator) else "fused"


def environment(device: torch.device) -> dict[str, Any]:
    """Versions and hardware that the bits of a run depend on."""
    graphics = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    return {
        "mdgraph": __version__,
        "python": platform.python_version(),
        **{name: version(name) for name in _PACKAGES},
        "cuda": torch.version.cuda if graphics else None,
        "gpu": graphics,
        "processor": platform.machine(),
        "threads": torch.get_num_threads(),
    }


def measured_before(record: Mapping[str, Any] | None, device: torch.device) -> dict[str, Any]:
    """Options of Simulation by which a run goes on as it was measured when it began.

    Args:
        record: of that run, or None for one that begins.
        device: where it goes on; its choices are those of another one only between GPUs.
    """
    if record is None or device.type != "cuda" or record["environment"]["gpu"] is None:
        return {}
    chosen = record["chosen"]
    if not chosen["captured_as_cuda_graph"]:
        return {"graph": "off"}
    # Runs of earlier versions had graphs of one step.
    return {"graph": "on", "steps_per_replay": chosen.get("steps_per_replay", 1)}


def charge_of(record: Mapping[str, Any], number: int) -> float:
    """Charge of a replica of a run, or of its one system, e."""
    about = record["structure"]
    return float(about.get("replicas", [about])[number]["charge_e"])


def description(
    simulation: Simulation, systems: Sequence[System], source: Source, replicas: bool
) -> dict[str, Any]:
    """What a run found in its structures and potential, and what was chosen for it."""
    calculation = simulation.calculation
    found = [
        {
            "atoms": len(system),
            "formula": formula(system),
            "charge_e": system.charge,
            "pbc": system.pbc.tolist(),
            "cell_A": system.cell.tolist(),
        }
        for system in systems
    ]
    return {
        "structure": {"replicas": found} if replicas else found[0],
        "potential": source.description(),
        "chosen": {
            "degrees_of_freedom": simulation.degrees_text,
            "integrator": simulation.integrator.settings(),
            "neighbor_capacities": [one.capacity for one in calculation.lists],
            "cutoffs_A": list(calculation.evaluator.cutoffs),
            "skin_A": calculation.skin,
            "chunk": simulation.chunk,
            "captured_as_cuda_graph": simulation.graphed,
            "steps_per_replay": simulation.step_graphs.longest if simulation.graphed else None,
        },
        "environment": environment(calculation.device),
    }
