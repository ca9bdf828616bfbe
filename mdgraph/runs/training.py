"""The command `mdgraph train`: a training from a YAML file."""

import logging
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer
import yaml
from pydantic import BaseModel, ValidationError

from mdgraph.errors import InputError, MDGraphError
from mdgraph.io.files import disk_failures, write_atomically
from mdgraph.runs.seeds import seeds_of, summary_lines, train_each
from mdgraph.runs.settings import Entry, check_keys, mapping_entries, plain, read_entries

if TYPE_CHECKING:
    from mdgraph.train.configuration import TrainConfig

TRAIN_FILE = "train.yaml"


def _unbegun(folder: Path) -> str:
    """What is said of a folder that a killed process left."""
    return (
        f"The training in {folder} ended before its first checkpoint; remove that folder, and it "
        "begins again."
    )


def read_training(path: Path, changes: dict[str, Any]) -> "TrainConfig":
    """The configuration in a file, with changes from the command line.

    Raises:
        FileError: the file cannot be read or is no YAML.
        InputError: an unknown or repeated key, or a value that cannot be.
    """
    from mdgraph.train.configuration import TrainConfig

    entries = read_entries(path)
    _check_nested(path, entries, TrainConfig)
    values = {entry.key: entry.value for entry in entries} | changes
    try:
        return TrainConfig.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        message = plain(first["msg"])
        if not first["loc"]:
            raise InputError(f"{path}: {message}.") from error
        kinds = ("dict[", "literal[")  # what a value may be, which is no part of its place
        key = ".".join(str(part) for part in first["loc"] if not str(part).startswith(kinds))
        if first["type"] == "missing":
            raise InputError(f"{path}: {key} is missing; give it.") from error
        if first["type"] == "model_type":
            message = f"write its options beneath it or in braces, such as {key}: {{KEY: VALUE}}"
        raise InputError(f"{path}: {key} is {first['input']!r}; {message}.") from error


def _check_nested(path: Path, entries: list[Entry], kind: type[BaseModel]) -> None:
    check_keys(entries, kind.model_fields)
    for entry in entries:
        inner = _model_of(kind.model_fields[entry.key].annotation)
        nodes = entry.node.value if isinstance(entry.node, yaml.SequenceNode) else [entry.node]
        for node in nodes:
            if inner is not None and isinstance(node, yaml.MappingNode):
                _check_nested(path, mapping_entries(path, node), inner)


def _model_of(annotation: Any) -> type[BaseModel] | None:
    for part in (annotation, *get_args(annotation)):
        if isinstance(part, type) and issubclass(part, BaseModel):
            return part
    return None


def train(
    config: Annotated[Path, typer.Argument(metavar="CONFIG.yaml", help="The training.")],
    out: Annotated[Path | None, typer.Option(help="Folder of the potential.")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:N.")] = None,
    steps: Annotated[int | None, typer.Option(help="Length, instead of the file's.")] = None,
    seed: Annotated[int | None, typer.Option(help="Key of all random numbers.")] = None,
    seeds: Annotated[
        str | None, typer.Option(help="Several, such as 1,2,3: a training in a folder for each.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the checkpoint, to the same weights.")
    ] = False,
) -> None:
    """Train a potential on a data set; writes its folder, with an error table."""
    changes: dict[str, Any] = {"device": device, "seed": seed, "steps": steps}
    changes = {name: value for name, value in changes.items() if value is not None}
    if out is not None:
        changes["out"] = str(out)
    if steps is not None:
        changes["epochs"] = None
    chosen = read_training(config, changes)
    if seeds is None:
        _train(chosen, resume)
        return
    if "RANK" in os.environ or seed is not None:
        raise InputError("--seeds trains one after the other, by one process and without --seed.")

    def train_one(folder: Path, number: int) -> None:
        from mdgraph.train.progress import CHECKPOINT

        own = read_training(config, changes | {"out": str(folder), "seed": number})
        begun = resume and folder.is_dir() and any(folder.iterdir())
        if begun and not (folder / CHECKPOINT).exists():
            raise InputError(_unbegun(folder))
        _train(own, begun)

    summary = train_each(Path(chosen.out), seeds_of(seeds), train_one, resume=resume)
    for line in summary_lines(summary):
        typer.echo(line)


def _train(chosen: "TrainConfig", resume: bool) -> None:
    """One training; says its errors."""
    folder = Path(chosen.out)
    # Of several processes, as torchrun starts them, the first one writes.
    makes = not resume and os.environ.get("RANK", "0") == "0"
    with _made(folder, chosen) if makes else nullcontext():
        from mdgraph.train.loop import train as run
        from mdgraph.train.report import rows_of
        from mdgraph.train.workspaces import keep_workspaces_small

        keep_workspaces_small()
        with _stoppable(folder), _one_voice():
            outcome = run(chosen, resume=resume)
    if not outcome.metrics:
        return  # of several processes not the first
    for first, *rest in rows_of(outcome.metrics):
        typer.echo("  ".join([f"{first:<10}", *(f"{text:>22}" for text in rest)]))
    typer.echo(f"The potential is {folder}; its errors as pictures are in report.html")


class _Terminated(KeyboardInterrupt):
    """SIGTERM, as batch systems send it when the time is up."""


def _terminate(number: int, frame: FrameType | None) -> None:
    raise _Terminated


@contextmanager
def _stoppable(folder: Path) -> Iterator[None]:
    """Ends the command with a sentence on Ctrl-C and on SIGTERM; the checkpoint is whole."""
    from mdgraph.train.progress import CHECKPOINT, read_progress

    before = signal.getsignal(signal.SIGTERM)
    within = threading.current_thread() is threading.main_thread()
    if within:
        signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    except KeyboardInterrupt as error:
        path = folder / CHECKPOINT
        text = f"Stopped before its first checkpoint; remove {folder}, and start it again."
        if path.exists():
            step = read_progress(path).step
            again = f"mdgraph train {folder / TRAIN_FILE} --resume"
            text = f"Stopped; the checkpoint is of step {step}, go on with: {again}"
        if os.environ.get("RANK", "0") == "0":
            typer.echo(text, err=True)
        status = signal.SIGTERM if isinstance(error, _Terminated) else signal.SIGINT
        raise typer.Exit(128 + status) from None
    except MDGraphError:
        if "RANK" in os.environ:
            before = signal.SIG_IGN  # torchrun sends it once one has left; this is said first
        raise
    finally:
        if within:
            signal.signal(signal.SIGTERM, before)


@contextmanager
def _one_voice() -> Iterator[None]:
    """Of several processes only the first says what all of them know; errors are said by each."""
    log = logging.getLogger("mdgraph")
    before = log.level
    if os.environ.get("RANK", "0") != "0":
        log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


@contextmanager
def _made(folder: Path, config: "TrainConfig") -> Iterator[None]:
    """Makes the folder; what an error leaves before the first checkpoint goes again."""
    there = folder.is_dir()
    before = _make_folder(folder, config)
    try:
        yield
    except MDGraphError:
        from mdgraph.train.progress import CHECKPOINT, SPLIT

        with suppress(OSError):
            if not (folder / CHECKPOINT).exists():
                for name in {TRAIN_FILE, SPLIT} - before:
                    (folder / name).unlink(missing_ok=True)
                if not there:
                    folder.rmdir()
        raise


def _make_folder(folder: Path, config: "TrainConfig") -> set[str]:
    """Makes the folder and writes down what was chosen; returns names of what was in it.

    Raises:
        InputError: it holds something already, or says that something else was chosen.
    """
    with disk_failures(folder, "write"):
        held = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
        if held - {TRAIN_FILE}:
            from mdgraph.train.progress import SPLIT

            if held == {TRAIN_FILE, SPLIT}:
                raise InputError(_unbegun(folder))
            raise InputError(
                f"{folder} holds files already; go on with --resume, or give another folder."
            )
        folder.mkdir(parents=True, exist_ok=True)
    written = folder / TRAIN_FILE
    if TRAIN_FILE in held:
        free = {"out": config.out, "device": config.device}
        if read_training(written, free).model_dump() != config.model_dump():
            raise InputError(f"{written} has other settings; change it, or give another --out.")
        return held
    text = yaml.safe_dump(config.model_dump(mode="json", exclude_unset=True), sort_keys=False)
    write_atomically(written, lambda path: path.write_text(text, encoding="utf-8"))
    return held
