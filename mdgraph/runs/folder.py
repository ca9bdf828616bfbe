"""The folder of a run: its paths, its lock, and run.json."""

import contextlib
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
from mdgraph.engine.replicas.ranks import ALONE, Ranks
from mdgraph.errors import FileError, InputError, name_some
from mdgraph.evaluators import AutogradEvaluator, Evaluator, MultipleTimeStepEvaluator
from mdgraph.io.files import check_folder, disk_failures, sync_file, write_atomically
from mdgraph.io.formats import FORMATS
from mdgraph.io.topology import topology_of
from mdgraph.runs.config import MDConfig, RunConfig
from mdgraph.runs.potential import Source
from mdgraph.selection import spans_text
from mdgraph.system import System
from mdgraph.units import SYMBOLS

logger = logging.getLogger(__name__)

FORMAT: Final = 1
"""Version of run.json; increases when its meaning changes."""

STAGES_FILE: Final = "protocol.json"
"""In the folder of a protocol: the configurations of its stages."""

_BEGINNING: Final = ".beginning"
"""Subfolder that holds the files of a start while they are written."""

_BEGUN: Final = ".begun"
"""Name of the subfolder once all files are written."""

_PARTS: Final = ("configuration", "structure", "potential", "chosen", "environment")
"""Keys of run.json beside `format`."""


class RunDirectory:
    """The folder of one run.

    Attributes:
        path: the folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def record(self) -> Path:
        """run.json: every option with its value, and which were given."""
        return self.path / "run.json"

    def without_run(self, what: str, advice: str) -> str:
        """What to say of a folder without `record`, in which a run was looked for."""
        stages = sorted(path.parent for path in self.path.glob("[0-9]*/run.json"))
        if stages and (self.path / STAGES_FILE).exists():
            return (
                f"{self.path} holds the stages of a protocol; continue it by the command that "
                f"began it, or give the folder of a stage, such as {stages[-1]}."
            )
        whole = self.path.parent / "run.json"
        if self.end.exists() and whole.exists():
            return (
                f"{self.path} holds one replica of a run; give {self.path.parent}, or, for a run "
                f"from this replica alone, the structure {self.end}."
            )
        return f"{self.path} holds no {what}: there is no run.json in it; {advice}."

    @property
    def start(self) -> Path:
        """The initial structure, one frame of extended XYZ."""
        return self.path / "start.extxyz"

    @property
    def topology(self) -> Path:
        """Names, residues and elements of the atoms in the trajectory, PDB for other programs."""
        return self.path / "topology.pdb"

    @property
    def all_atoms(self) -> Path:
        """The same of all atoms; only where the trajectory leaves some out."""
        return self.path / "all-atoms.pdb"

    @property
    def end(self) -> Path:
        """The last structure of a complete run, one frame of extended XYZ."""
        return self.path / "end.extxyz"

    @property
    def checkpoint(self) -> Path:
        """The restart file."""
        return self.path / "checkpoint.safetensors"

    @property
    def checkpoint_before(self) -> Path:
        """The previous restart file, which other ranks may need."""
        return self.path / "checkpoint.before.safetensors"

    def forget_checkpoint(self) -> None:
        """Replaces the restart file by the previous one; raises FileError."""
        with disk_failures(self.checkpoint, "write"):
            self.checkpoint_before.replace(self.checkpoint)

    @property
    def log(self) -> Path:
        """The log, CSV."""
        return self.path / "log.csv"

    @property
    def colvar(self) -> Path:
        """Values of collective variables and biases, in PLUMED's layout and units."""
        return self.path / "COLVAR"

    def hills(self, name: str = "") -> Path:
        """Hills of metadynamics, likewise; with a name where there is more than one."""
        return self.path / (f"HILLS.{name}" if name else "HILLS")

    @property
    def uncertainty(self) -> Path:
        """Spreads and sigmas along the run, CSV."""
        return self.path / "uncertainty.csv"

    @property
    def picture(self) -> Path:
        """The picture drawn at the end."""
        return self.path / "picture.png"

    @property
    def exchanges(self) -> Path:
        """Rungs of the replicas on the temperature ladder, CSV."""
        return self.path / "exchanges.csv"

    def replica(self, number: int) -> "RunDirectory":
        """The folder of one of several replicas."""
        return RunDirectory(self.path / f"replica-{number}")

    def of_rank(self, ranks: Ranks) -> "RunDirectory":
        """The subfolder of a rank; this folder if there is one rank."""
        return self if ranks.count == 1 else RunDirectory(self.path / f"rank-{ranks.rank}")

    def parts(self, configuration: RunConfig, numbers: Sequence[int]) -> list["RunDirectory"]:
        """Folders of systems: one for each replica, or this one without replicas.

        Args:
            configuration: of the run.
            numbers: of the systems.
        """
        if not configuration.has_replicas:
            return [self]
        return [self.replica(number) for number in numbers]

    def trajectory(self, word: str) -> Path:
        """The trajectory in a format of `mdgraph.io.formats`, such as `h5md`.

        A new one gets the first suffix of the format; runs of earlier releases have others.
        """
        paths = [self.path / f"trajectory{suffix}" for suffix in FORMATS[word].suffixes]
        return next((path for path in paths if path.exists()), paths[0])

    def write_record(self, record: dict[str, dict[str, Any]]) -> None:
        """Writes run.json atomically; raises FileError if the disk refuses."""
        text = json.dumps({"format": FORMAT, **record}, indent=2) + "\n"
        write_atomically(self.record, text)

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
                    f"{self.record} is not a record of a run of mdgraph; give the folder of one."
                )
            if record["format"] != FORMAT:
                raise FileError(
                    f"{self.record} has format {record['format']}, and this mdgraph reads "
                    f"{FORMAT}; resume with the version that wrote it."
                )
            parts = {key: dict(record[key]) for key in _PARTS}
            # Earlier releases did not write the first; runs at equilibrium do not have the other.
            parts |= {key: dict(record[key]) for key in ("given", "switching") if key in record}
            _check_structure(parts["structure"])
            str(parts["potential"]["sha256"]), parts["environment"]["gpu"]
            parts["chosen"]["captured_as_cuda_graph"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise FileError(f"{self.record} is damaged; put back the original.") from error
        return parts

    def holds_run(self) -> bool:
        """Whether a run began here; resuming finishes a start that was killed."""
        return self.record.exists() or (self.path / _BEGUN).exists()

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Locks the folder against other processes; the lock ends with the process.

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


def trajectory_file(path: Path) -> Path:
    """The trajectory of a run by its folder; a file is returned as it is.

    Raises:
        InputError: the folder holds replicas or stages.
        FileError: there is no such folder or file, or the folder holds no trajectory.
    """
    if not path.exists():
        raise FileError(f"There is no {path}; give the folder of a run, or a trajectory.")
    if not path.is_dir():
        return path

    def trajectories(folder: Path) -> list[Path]:
        paths = (RunDirectory(folder).trajectory(word) for word in FORMATS)
        return [path for path in paths if path.is_file()]

    if own := trajectories(path):
        return own[0]
    with disk_failures(path, "read"):
        parts = sorted(folder for folder in path.iterdir() if folder.is_dir())
    if runs := [folder for folder in parts if trajectories(folder)]:
        raise InputError(
            f"{path} holds several runs; give one, or some in order: {name_some(runs)}."
        )
    raise FileError(f"{path} holds no trajectory; give the folder of a run, or a trajectory.")


@dataclass(frozen=True)
class Run:
    """A run of one system or several.

    Attributes:
        configuration: of the run.
        folder: of this rank; the folder of the run if there is one rank.
        ranks: share the systems.
        frame_atoms: of each system of this rank, the atoms that frames hold; None for all atoms.
    """

    configuration: RunConfig
    folder: RunDirectory
    ranks: Ranks = ALONE
    frame_atoms: Sequence[Sequence[int]] | None = None

    @property
    def whole_folder(self) -> RunDirectory:
        """The folder of the run, above those of its ranks."""
        return self.folder if self.ranks.count == 1 else RunDirectory(self.folder.path.parent)

    @property
    def numbers(self) -> range:
        """Indices of the systems of this rank; raises InputError as Ranks.share does."""
        count = self.configuration.system_count
        return range(count) if self.ranks.count == 1 else self.ranks.share(count)

    def own(self, systems: Sequence[System]) -> list[System]:
        """The systems of this rank."""
        return [systems[number] for number in self.numbers]

    def frame_systems(self, systems: Sequence[System]) -> list[System]:
        """Systems of the atoms that frames hold, from all systems of this rank.

        Replicas of one system share one of these too. Residues are those of all atoms.
        """
        if self.frame_atoms is None:
            return list(systems)
        parts: dict[int, System] = {}
        for system, atoms in zip(systems, self.frame_atoms, strict=True):
            if id(system) not in parts:
                named = system.replace(topology=topology_of(system))
                parts[id(system)] = named.select(atoms)
        return [parts[id(system)] for system in systems]

    @property
    def parts(self) -> list[RunDirectory]:
        """Folders of the systems of this rank."""
        return self.folder.parts(self.configuration, self.numbers)

    @property
    def all_parts(self) -> list[RunDirectory]:
        """Folders of the systems of all ranks."""
        shares = self.ranks.shares(self.configuration.system_count)
        return [
            part
            for rank, numbers in enumerate(shares)
            for part in self.whole_folder.of_rank(replace(self.ranks, rank=rank)).parts(
                self.configuration, numbers
            )
        ]

    def meet(self) -> None:
        """Waits for all ranks; raises LostRankError if one has died."""
        if self.ranks.count > 1:
            self.ranks.numbers(0)

    @property
    def exchange(self) -> int | None:
        """Steps between exchanges of temperatures or umbrellas; None without them."""
        return self.configuration.exchange if isinstance(self.configuration, MDConfig) else None

    @property
    def meeting_interval(self) -> int | None:
        """Steps from one meeting of ranks to the next at most; None if they run on their own."""
        if self.ranks.count == 1 or not isinstance(self.configuration, MDConfig):
            return None
        return self.exchange or self.configuration.shared_hills_interval


def _check_structure(about: dict[str, Any]) -> None:
    """Raises KeyError, TypeError or ValueError unless a record describes the systems."""
    for system in about.get("replicas", [about]):
        str(system["formula"]), int(system["atoms"])
        if not math.isfinite(system["charge_e"]):
            raise ValueError


def refuse_used(path: Path) -> None:
    """Refuses a folder with files for a new run.

    Files of a start that was killed do not count.

    Raises:
        InputError: the folder holds a run or other files.
        FileError: the path is no folder, or nothing can be written there.
    """
    with disk_failures(path, "use"):
        entries = list(path.iterdir()) if path.exists() else []
        used = [entry for entry in entries if not _is_left_over(entry)]
    check_folder(path)
    if RunDirectory(path).holds_run():
        raise InputError(
            f"{path} holds a run already; continue it with --resume, or give another "
            "folder with --out."
        )
    if used:
        raise InputError(f"{path} holds other files; give a new or empty folder with --out.")


def _is_left_over(path: Path) -> bool:
    """Whether an entry belongs to the file system or to a start that was killed."""
    if re.fullmatch(r"rank-\d+", path.name) and path.is_dir():
        return all(map(_is_left_over, path.iterdir()))
    return path.name in ("lost+found", _BEGINNING)


@contextlib.contextmanager
def new_run(path: Path, fill: Callable[[RunDirectory], None]) -> Iterator[RunDirectory]:
    """Makes the folder of a new run and locks it until the block ends.

    The files are written into a subfolder and moved once all of them exist: a process that is
    killed leaves a run that can be resumed, or files that the next start removes.

    Args:
        path: a new or empty folder.
        fill: writes the files into the folder of its argument.

    Raises:
        InputError, FileError: see `refuse_used`; or the disk refused. Then a folder that existed
            is empty again, and new ones are removed.
    """
    folder = RunDirectory(path)
    with new_folder(path), folder.lock():
        refuse_used(path)
        _fill(folder, fill)
        yield folder


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[None]:
    """Makes a folder and its parents; if the block fails, removes the new ones that are empty.

    Raises:
        FileError: the disk refuses.
    """
    with disk_failures(path, "write"):
        target = Path(os.path.realpath(path))
        new = [folder for folder in (target, *target.parents) if not folder.exists()]
        target.mkdir(parents=True, exist_ok=True)
    try:
        yield
    except BaseException:
        for folder in new:
            with contextlib.suppress(OSError):
                folder.rmdir()
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
            # The message names the folder that the user knows.
            raise FileError(str(error).replace(str(beginning), str(folder.path))) from error
        finally:
            shutil.rmtree(beginning, ignore_errors=True)
    finish_start(folder)


def finish_start(folder: RunDirectory) -> None:
    """Moves the files of a start into the folder; does nothing if that is done.

    Raises:
        FileError: the disk refused.
    """
    staged = folder.path / _BEGUN
    if not staged.exists():
        return
    with disk_failures(folder.path, "write"):
        names = sorted(entry.name for entry in staged.iterdir())
        record = folder.record.name
        for name in [*(name for name in names if name != record), *({record} & {*names})]:
            (staged / name).rename(folder.path / name)
        staged.rmdir()
        sync_file(folder.path)


_PACKAGES: Final = ("torch", "numpy", "ase", "h5py", "safetensors")


def formula(system: System) -> str:
    """Elements and numbers of atoms, such as H128 O64."""
    counts = Counter(system.numbers.tolist())
    return " ".join(f"{SYMBOLS[number]}{counts[number]}" for number in sorted(counts))


def evaluator_name(evaluator: Evaluator) -> Literal["auto", "fused", "reference"]:
    """The word of an evaluator in the option `--evaluator`; auto for two that differ."""
    if isinstance(evaluator, MultipleTimeStepEvaluator):
        large, small = evaluator_name(evaluator.large), evaluator_name(evaluator.small)
        return large if large == small else "auto"
    return "reference" if isinstance(evaluator, AutogradEvaluator) else "fused"


def environment(device: torch.device) -> dict[str, Any]:
    """Versions and hardware on which the last bits of a run depend."""
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


def tuning_of_record(record: Mapping[str, Any] | None, device: torch.device) -> dict[str, Any]:
    """Options of Simulation that repeat the tuning of the first start of a run.

    Args:
        record: of the run, or None for a new one.
        device: where the run goes on. Only a run from a GPU to a GPU keeps its tuning.
    """
    if record is None or device.type != "cuda" or record["environment"]["gpu"] is None:
        return {}
    choices = record["chosen"]
    if not choices["captured_as_cuda_graph"]:
        return {"graph": "off"}
    # Records without the key are of versions whose graphs had one step.
    return {"graph": "on", "steps_per_replay": choices.get("steps_per_replay", 1)}


def charge_of(record: Mapping[str, Any], number: int) -> float:
    """Charge of a replica of a run, or of its one system, e."""
    about = record["structure"]
    return float(about.get("replicas", [about])[number]["charge_e"])


def description(
    simulation: Simulation,
    systems: Sequence[System],
    source: Source,
    replicas: bool,
    selections: Mapping[str, Sequence[Sequence[int]]],
) -> dict[str, Any]:
    """The parts of run.json beside the configuration.

    Args:
        simulation: at its start.
        systems: of all ranks.
        source: the potential.
        replicas: whether the systems are replicas.
        selections: atoms in each system, by the option that selects them.
    """
    calculation = simulation.calculation
    structures = [
        {
            "atoms": len(system),
            "formula": formula(system),
            "charge_e": system.charge,
            "pbc": system.pbc.tolist(),
            "cell_A": system.cell.tolist(),
            **{option: spans_text(atoms[number]) for option, atoms in selections.items()},
        }
        for number, system in enumerate(systems)
    ]
    return {
        "structure": {"replicas": structures} if replicas else structures[0],
        "potential": source.description(),
        "chosen": {
            "degrees_of_freedom": simulation.degrees_text,
            "integrator": simulation.integrator.settings(),
            "neighbor_capacities": [neighbors.capacity for neighbors in calculation.lists],
            "cutoffs_A": list(calculation.evaluator.cutoffs),
            "skin_A": calculation.skin,
            "chunk": simulation.chunk,
            "captured_as_cuda_graph": simulation.graphed,
            "steps_per_replay": simulation.step_graphs.longest if simulation.graphed else None,
        },
        "environment": environment(calculation.device),
    }
