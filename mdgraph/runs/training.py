"""`mdgraph train`: a training from a YAML file, for one seed or several."""

import json
import logging
import os
import shlex
import shutil
import signal
import statistics
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import (
    AbstractContextManager,
    ExitStack,
    contextmanager,
    nullcontext,
    suppress,
)
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeVar

import typer
import yaml
from pydantic import BaseModel, ValidationError
from typer.core import TyperCommand

from mdgraph.errors import InputError, MDGraphError, errors_logged_alone, printable
from mdgraph.io.commented_yaml import model_of
from mdgraph.io.files import disk_failures, readable_file, remove_abandoned, write_atomically
from mdgraph.runs.commands.data import import_frames, with_import_options
from mdgraph.runs.config_fields import join_words
from mdgraph.runs.config_files import (
    Entry,
    check_keys,
    current_entries,
    mapping_entries,
    plain,
    read_entries,
)
from mdgraph.runs.options import GroupedCommand, Overwrite
from mdgraph.signals import Interrupted, import_torch, settle

if TYPE_CHECKING:
    from mdgraph.train.config import TrainConfig

logger = logging.getLogger(__name__)

SUMMARY_FILE = "summary.json"


def seeds_of(text: str) -> list[int]:
    """Seeds from text such as 1,2,3; raises InputError for anything else."""
    parts = text.split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise InputError(f"--seeds is '{text}'; give whole numbers with commas, such as 1,2,3.")
    seeds = [int(part) for part in parts]
    if len(set(seeds)) < max(2, len(seeds)):
        raise InputError(f"--seeds is '{text}'; give two different numbers or more.")
    return seeds


def train_each(
    folder: Path, seeds: Sequence[int], train_one: Callable[[Path, int], Any], *, resume: bool
) -> dict[str, Any]:
    """Trains into folders `seed-N`, in turn; writes and returns the summary.

    Args:
        folder: holds these folders.
        seeds: of the trainings.
        train_one: trains into a folder with a seed.
        resume: leave out trainings that are finished.
    """
    metrics = []
    for seed in seeds:
        own = folder / f"seed-{seed}"
        path = own / "metrics.json"
        if not (resume and path.exists() and (own / "report.html").exists()):
            train_one(own, seed)
        with disk_failures(path, "read"):
            metrics.append(json.loads(path.read_text(encoding="utf-8")))
    summary = {"seeds": list(seeds), **mean_metrics(metrics)}
    text = json.dumps(summary, indent=1) + "\n"
    write_atomically(folder / SUMMARY_FILE, text)
    return summary


def mean_metrics(metrics: Sequence[dict[str, Any]]) -> dict[str, dict[str, dict[str, float]]]:
    """Mean and standard error over trainings of each error of each part."""
    from mdgraph.train.report import COLUMNS

    means: dict[str, dict[str, dict[str, float]]] = {}
    for part in ("train", "validation", "test"):
        for column in COLUMNS:
            values = [own[part][column] for own in metrics if column in own.get(part, {})]
            if column != "frames" and len(values) == len(metrics):
                means.setdefault(part, {})[column] = {
                    "mean": round(statistics.mean(values), 4),
                    "standard_error": round(statistics.stdev(values) / len(values) ** 0.5, 4),
                }
    return means


def summary_lines(summary: dict[str, Any]) -> list[str]:
    """The summary as a table."""
    return [
        f"{part:<10}  {column:<28} {value['mean']:.4g} +- {value['standard_error']:.2g}"
        for part in ("train", "validation", "test")
        for column, value in summary.get(part, {}).items()
    ]


TRAIN_FILE = "train.yaml"
SPLIT_FILE = "split.json"
DIFFERENCE_FILE = "difference.h5"
CHECKPOINT_FILE = "checkpoint.safetensors"
"""As in `mdgraph.train`, which is slow to import."""

BEFORE_CHECKPOINT = {TRAIN_FILE, SPLIT_FILE, DIFFERENCE_FILE}
"""What the folder of a training holds before its first checkpoint."""

Settings = TypeVar("Settings", bound=BaseModel)


def read_training(path: Path, changes: dict[str, Any], *, stored: bool = False) -> "TrainConfig":
    """The options of a training in a file, with changes from the command line; see `_read`.

    Where the file gives no length, `with_recipe` fills in what it leaves out.
    """
    import_torch()
    from mdgraph.train.config import TrainConfig
    from mdgraph.train.recipes import with_recipe

    return _read(TrainConfig, path, changes, stored=stored, complete=with_recipe)


def _read(
    model: type[Settings],
    path: Path,
    changes: dict[str, Any],
    *,
    stored: bool = False,
    complete: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
) -> Settings:
    """The options in a file, with changes from the command line.

    Args:
        model: class of the options.
        path: YAML file.
        changes: values that replace those of the file.
        stored: whether a training wrote the file, so that old names of keys cause no warning.
        complete: adds to the values of a file that gives no length.

    Raises:
        FileError: the file cannot be read or is no YAML.
        InputError: an unknown or repeated key, or a value that cannot be.
    """
    entries = read_entries(path)
    _check_nested(path, entries, model, stored, _places(model))
    values = {entry.key: entry.value for entry in entries}
    if complete is not None and not {"steps", "epochs"} & values.keys():
        values = complete(values)
    values |= changes
    try:
        return model.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        message = plain(first["msg"])
        if not first["loc"]:
            raise InputError(f"{path}: {message}.") from error
        types = ("dict[", "literal[")  # alternatives of a value, which are no part of its place
        key = ".".join(str(part) for part in first["loc"] if not str(part).startswith(types))
        if first["type"] == "missing":
            raise InputError(f"{path}: {key} is missing; give it.") from error
        if first["type"] == "model_type":
            message = f"write its options beneath it or in braces, such as {key}: {{KEY: VALUE}}"
        value = printable(repr(first["input"]), 120)
        raise InputError(f"{path}: {key} is {value}; {message}.") from error


def _places(model: type[BaseModel]) -> dict[str, list[str]]:
    """Where each key may stand: beneath which ones, joined by dots, or "" for the file itself."""
    places = {name: [""] for name in model.model_fields}
    for name, field in model.model_fields.items():
        if (inner := model_of(field.annotation)) is not None:
            for key, above in _places(inner).items():
                below = [f"{name}.{place}".rstrip(".") for place in above]
                places[key] = [*places.get(key, []), *below]
    return places


def _check_nested(
    path: Path,
    entries: list[Entry],
    part: type[BaseModel],
    stored: bool,
    places: Mapping[str, Sequence[str]],
) -> None:
    """Raises InputError for an unknown key, warns of an old name unless it is `stored`."""
    renamed = getattr(part, "renamed", {})
    if stored:
        entries = [replace(entry, key=renamed.get(entry.key, entry.key)) for entry in entries]
    else:
        entries = current_entries(entries, renamed)
    elsewhere = {
        key: f"beneath {join_words(above, 'or')}" if all(above) else "to the file, beneath no key"
        for key, above in places.items()
        if key not in part.model_fields
    }
    check_keys(entries, part.model_fields, elsewhere)
    for entry in entries:
        inner = model_of(part.model_fields[entry.key].annotation)
        nodes = entry.node.value if isinstance(entry.node, yaml.SequenceNode) else [entry.node]
        for node in nodes:
            if inner is not None and isinstance(node, yaml.MappingNode):
                _check_nested(path, mapping_entries(path, node), inner, stored, places)


_OF_FRAMES: Final = {".xyz", ".extxyz", ".h5", ".hdf5", ".npz", ".db", ".traj", ".gz"}


def train(
    config: Annotated[Path, typer.Argument(metavar="CONFIG.yaml", help="The training.")],
    out: Annotated[Path | None, typer.Option(help="Folder of the potential.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:N.")] = None,
    steps: Annotated[
        int | None, typer.Option(help="Number of steps, instead of the file's.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of all random numbers.")] = None,
    seeds: Annotated[
        str | None, typer.Option(help="Train once for each of several seeds, such as 1,2,3.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue from the checkpoint, to the same weights.")
    ] = False,
) -> None:
    """Train a potential on a data set, and write it with a table of its errors.

    `mdgraph train init FRAMES...` writes CONFIG.yaml, data set and split from labelled frames. (For
    a file named init, give ./init.)
    """
    if config.suffix.lower() in _OF_FRAMES:
        raise InputError(
            f"{config} is not a YAML file of a training; 'mdgraph train init {config}' writes one "
            "for labelled frames."
        )
    changes: dict[str, Any] = {"device": device, "seed": seed, "steps": steps}
    changes = {name: value for name, value in changes.items() if value is not None}
    if out is not None:
        changes["out"] = str(out)
    if steps is not None:
        changes["epochs"] = None
    settings = read_training(config, changes, stored=resume)
    if seeds is None:
        _train(settings, resume)
        return
    if "RANK" in os.environ or seed is not None:
        raise InputError("--seeds trains one after the other, by one process and without --seed.")

    def train_one(folder: Path, number: int) -> None:
        own = read_training(config, changes | {"out": str(folder), "seed": number}, stored=True)
        _train(own, resume and folder.is_dir() and any(folder.iterdir()))

    summary = train_each(Path(settings.out), seeds_of(seeds), train_one, resume=resume)
    for line in summary_lines(summary):
        typer.echo(printable(line))


@with_import_options
def init(
    files: Annotated[list[Path], typer.Argument(metavar="FRAMES...", help="Labelled frames.")],
    kind: Annotated[
        Literal["molecule", "liquid", "crystal", "mixed"] | None,
        typer.Option(help="Recipe to use; by default chosen by the bonds in the frames."),
    ] = None,
    prior: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Potential to build on: crystals fine-tune it, others use it as a baseline.",
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option(help="File to write; data set and split go to the same folder.")
    ] = Path(TRAIN_FILE),
    validation: Annotated[
        float, typer.Option(min=0.0, help="Frames to hold out: a share below 1, or a number.")
    ] = 0.1,
    seed: Annotated[int, typer.Option(help="Seed of the choice of held-out frames.")] = 0,
    overwrite: Overwrite = False,
    **options: Any,
) -> None:
    """Look at labelled frames; write a commented train.yaml, the data set and a split.

    Prints what the frames hold, what is held out, and the commands that follow.
    """
    if out.suffix not in (".yaml", ".yml"):
        raise InputError(f"A training is written as YAML, not as '{out.name}'; end it in .yaml.")
    for path in files:
        readable_file(path, "labelled frames")
    name = files[0].name.partition(".")[0] or "frames"
    data = out.with_name(f"{name}.h5")
    if any(path.exists() and data.exists() and path.samefile(data) for path in files):
        raise InputError(
            f"{data} holds the frames, and the data set would replace it; give another folder, as "
            "in --out FOLDER/train.yaml."
        )
    from mdgraph.train.recipes import prepare_training  # which imports torch

    training = prepare_training(
        import_frames(files, **options),
        name,
        out,
        kind=kind,
        prior=prior,
        validation=validation,
        seed=seed,
        overwrite=overwrite,
    )
    outputs = training.data, training.split, training.start, training.config, training.potential
    quoted_data, split, start, config, potential = (shlex.quote(str(path)) for path in outputs)
    kelvin = training.temperatures[0] if training.temperatures else 300
    smaller = f"without a GPU write channels: 32 into {training.config}"
    for line in (
        *training.lines,
        f"written:   {', '.join(map(str, (training.config, *outputs[:3])))}",
        "",
        f"The commands that follow (train shows the time left; {smaller}):",
        "",
        f"mdgraph data check {quoted_data} --split {split}",
        f"mdgraph train {config}",
        f"mdgraph validate {potential} {quoted_data} --split {split}",
        f"mdgraph md {start} --potential {potential} --temperature-K {kelvin} --time-ps 10",
    ):
        typer.echo(printable(line))


_INIT: Final = typer.Typer(add_completion=False, rich_markup_mode=None)
_INIT.command("init", cls=GroupedCommand)(init)


class TrainCommand(TyperCommand):
    """`train` takes a file or, as its first word, the command `init`."""

    def make_context(self, info_name: str | None, args: list[str], *rest: Any, **extra: Any) -> Any:
        """The context of `init` where the first argument is that word, else that of `train`."""
        if args[:1] == ["init"]:
            command = typer.main.get_command(_INIT)
            return command.make_context(f"{info_name} init", args[1:], *rest, **extra)
        return super().make_context(info_name, args, *rest, **extra)


def _train(config: "TrainConfig", resume: bool) -> None:
    """Runs one training and prints its errors."""
    from mdgraph.runs.folder import RunDirectory  # which imports torch

    folder = Path(config.out)
    # Of several processes, as torchrun starts them, the first one writes.
    first = os.environ.get("RANK", "0") == "0"
    if resume and _is_unbegun(folder):
        resume = False
        if first:
            logger.info("The training in %s ended before its first checkpoint.", folder)
    elif resume and (folder / TRAIN_FILE).exists() and not (folder / CHECKPOINT_FILE).exists():
        raise InputError(
            f"{folder} has no {CHECKPOINT_FILE} to continue from; put it back, or remove that "
            "folder and begin again."
        )
    with ExitStack() as stack:
        stack.enter_context(_stoppable(folder))
        if not resume and first:
            stack.enter_context(_new_folder(folder, config))
        if first and folder.is_dir():
            stack.enter_context(RunDirectory(folder).lock())
            remove_abandoned(folder)
        stack.enter_context(_first_process_logs())
        logger.info("%s is read, and the training set up.", config.data)
        from mdgraph.processes import keep_workspaces_small
        from mdgraph.train.loop import WORKSPACES
        from mdgraph.train.loop import train as run
        from mdgraph.train.report import rows_of

        keep_workspaces_small(WORKSPACES)
        outcome = run(config, resume=resume)
    if not outcome.metrics:
        return  # of several processes not the first
    for head, *rest in rows_of(outcome.metrics):
        typer.echo("  ".join([f"{head:<10}", *(f"{text:>22}" for text in rest)]))
    typer.echo(printable(f"The potential is {folder}; its errors as pictures are in report.html"))


DISTIL_FILE = "distil.yaml"
"""The options, within the folder of a distillation."""


def distil(
    config: Annotated[Path, typer.Argument(metavar="CONFIG.yaml", help="The distillation.")],
    out: Annotated[Path | None, typer.Option(help="Folder of the potential.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:N.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue with the first unfinished step.")
    ] = False,
) -> None:
    """Train a small potential (the student) to reproduce a large one, or a sum of potentials.

    Frames come from dynamics and displaced atoms, labels from the teachers named in the file. Then
    the student runs dynamics, its frames are labelled, and it is trained again.
    """
    from mdgraph.distil.config import DistilConfig  # which imports torch
    from mdgraph.distil.pipeline import distil as run
    from mdgraph.runs.folder import RunDirectory

    changes: dict[str, Any] = {"device": device, "out": None if out is None else str(out)}
    changes = {name: value for name, value in changes.items() if value is not None}
    settings = _read(DistilConfig, config, changes, stored=resume)
    folder = Path(settings.out)
    written = folder / DISTIL_FILE
    if resume and written.exists():
        free = {"out": settings.out, "device": settings.device}
        if _read(DistilConfig, written, free, stored=True).model_dump() != settings.model_dump():
            raise InputError(f"{written} has other settings; change it, or give another --out.")
    elif _names_in(folder):
        go_on = "continue with --resume, or " if written.exists() else ""
        raise InputError(f"{folder} holds files already; {go_on}give another folder.")
    else:
        with disk_failures(folder, "write"):
            folder.mkdir(parents=True, exist_ok=True)
        text = yaml.safe_dump(settings.model_dump(mode="json", exclude_unset=True), sort_keys=False)
        write_atomically(written, text)
    try:
        with RunDirectory(folder).lock(), _print_how_to_resume(written):
            metrics = run(settings, _train)
    except MDGraphError:
        if not (folder / "round-1" / SPLIT_FILE).exists():  # nothing is done that could go on
            with suppress(OSError):
                written.unlink()
                shutil.rmtree(folder / "round-1", ignore_errors=True)
                folder.rmdir()
        raise
    for name, group in metrics["validation"].get("by_group", {}).items():
        force, energy = (
            group.get(key, float("nan"))
            for key in ("force_rmse_meV_per_A", "energy_rmse_meV_per_atom")
        )
        kind = name or "data"
        typer.echo(printable(f"{kind:<20} {force:>8.4g} meV/A {energy:>8.4g} meV/atom, held out"))
    typer.echo(printable(f"The potential is {folder}; its card says what it was distilled from"))


@contextmanager
def _print_how_to_resume(written: Path) -> Iterator[None]:
    """Ends the command with a sentence after a signal."""
    try:
        yield
    except (Interrupted, KeyboardInterrupt) as error:
        settle()
        number = error.signal if isinstance(error, Interrupted) else signal.SIGINT
        typer.echo(
            f"Stopped; continue with: mdgraph distil {shlex.quote(str(written))} --resume", err=True
        )
        raise typer.Exit(128 + number) from None


@contextmanager
def _stoppable(folder: Path) -> Iterator[None]:
    """Ends the command with a sentence after a signal; the checkpoint is whole."""
    try:
        yield
    except (Interrupted, KeyboardInterrupt) as error:
        settle()
        from mdgraph.train.progress import read_checkpoint

        number = error.signal if isinstance(error, Interrupted) else signal.SIGINT
        path = folder / CHECKPOINT_FILE
        text = f"Stopped by {number.name} before its first checkpoint; start it again."
        if path.exists():
            step = read_checkpoint(path).progress.step
            again = f"mdgraph train {shlex.quote(str(folder / TRAIN_FILE))} --resume"
            text = f"Stopped; the checkpoint is of step {step}, continue with: {again}"
        if os.environ.get("RANK", "0") == "0":
            typer.echo(text, err=True)
        raise typer.Exit(128 + number) from None
    except MDGraphError:
        if "RANK" in os.environ and threading.current_thread() is threading.main_thread():
            # Torchrun sends SIGTERM once a process has ended; the error is printed first.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise


def _first_process_logs() -> AbstractContextManager[None]:
    """Of several processes only the first logs, but all log errors."""
    first = os.environ.get("RANK", "0") == "0"
    return nullcontext() if first else errors_logged_alone("mdgraph")


@contextmanager
def _new_folder(folder: Path, config: "TrainConfig") -> Iterator[None]:
    """Makes the folder; removes it after an error or a signal before the first checkpoint."""
    absent = [path for path in (folder, *folder.absolute().parents) if not path.exists()]
    before = _make_folder(folder, config)
    try:
        yield
    except BaseException:
        with suppress(OSError):
            if not (folder / CHECKPOINT_FILE).exists():
                for name in BEFORE_CHECKPOINT - before:
                    (folder / name).unlink(missing_ok=True)
                for path in absent:
                    path.rmdir()
        raise


def _make_folder(folder: Path, config: "TrainConfig") -> set[str]:
    """Makes the folder and writes its train.yaml; returns names of the files that it held.

    Raises:
        InputError: it holds other files already, or a train.yaml with other settings.
    """
    with disk_failures(folder, "write"):
        if folder.is_dir():
            remove_abandoned(folder)
        there = _names_in(folder)
        if there - BEFORE_CHECKPOINT or (there and TRAIN_FILE not in there):
            go_on = "continue with --resume, or " if CHECKPOINT_FILE in there else ""
            raise InputError(f"{folder} holds files already; {go_on}give another folder.")
        folder.mkdir(parents=True, exist_ok=True)
    written = folder / TRAIN_FILE
    if TRAIN_FILE in there:
        free = {"out": config.out, "device": config.device}
        if read_training(written, free, stored=True).model_dump() != config.model_dump():
            raise InputError(f"{written} has other settings; change it, or give another --out.")
        return there
    text = yaml.safe_dump(config.model_dump(mode="json", exclude_unset=True), sort_keys=False)
    write_atomically(written, text)
    return there


def _names_in(folder: Path) -> set[str]:
    """Names of files in a folder, except those of the file system."""
    there = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    return there - {"lost+found"}


def _is_unbegun(folder: Path) -> bool:
    """Whether the folder is of a training that was killed before its first checkpoint."""
    with disk_failures(folder, "read"):
        there = {name for name in _names_in(folder) if not name.startswith(".")}
    return TRAIN_FILE in there and there <= BEFORE_CHECKPOINT
