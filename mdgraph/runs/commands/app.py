"""The commands of mdgraph and their groups, the options of those on potentials, and messages."""

import contextlib
import json
import logging
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer
from tqdm import tqdm
from typer.core import TyperCommand

from mdgraph import __version__
from mdgraph.errors import InputError, printable
from mdgraph.io.files import disk_failures, refuse_existing, write_atomically
from mdgraph.processes import keep_workspaces_small
from mdgraph.runs import training, validation
from mdgraph.runs.commands.data import app as data_commands
from mdgraph.runs.commands.dynamics import md, minimise, protocol
from mdgraph.runs.commands.results import analyse, free_energy, trajectory
from mdgraph.runs.config import (
    BenchConfig,
    Configuration,
    EvalConfig,
    MDConfig,
    MinimizeConfig,
    RelaxConfig,
)
from mdgraph.runs.options import (
    SETTINGS,
    AddedTerms,
    ConfigFile,
    Force,
    GroupedCommand,
    GroupedCommands,
    Overwrite,
    completion,
    given_options,
    options_of,
    potential_argument,
)
from mdgraph.shipped import EXAMPLES, FILE_NAME, write_example
from mdgraph.signals import import_torch

if TYPE_CHECKING:
    from mdgraph.train.config import TrainConfig

Layout = Annotated[
    Literal["auto", "before-3.0", "3.0"],
    typer.Option(help="Release of TorchMD-Net or MatGL that wrote it: before 3.0, or from 3.0 on."),
]


def convert(
    source: Annotated[str, potential_argument("IN")],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="A new .safetensors file.")],
    layout: Layout = "auto",
    add: AddedTerms = None,
    force: Force = False,
    coulomb_cutoff: Annotated[
        float | None, typer.Option("--coulomb-cutoff-A", help="Cutoff of a reaction field to use.")
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """Write a potential in mdgraph's own format; with --add, as a sum with other terms."""
    from mdgraph.checkpoints import convert, load_domain
    from mdgraph.checkpoints.location import pinned

    refuse_existing(target, overwrite=overwrite, option=True)
    source = pinned(source)
    convert(
        *(source, target),
        layout=layout,
        terms=add or (),
        force=force,
        coulomb_cutoff=coulomb_cutoff,
        overwrite=overwrite,
    )
    typer.echo(printable(f"{source} written to {target}"))
    if load_domain(source) is not None:
        typer.echo(
            "Runs with that file do not monitor their domain: what it was trained on is not in it."
        )


def inspect_potential(
    source: Annotated[str, potential_argument("PATH")],
    layout: Layout = "auto",
    add: AddedTerms = None,
    force: Force = False,
) -> None:
    """Describe a potential, and the settings that mdgraph assumes for it."""
    from mdgraph.checkpoints import describe, load, load_domain
    from mdgraph.checkpoints.location import pinned
    from mdgraph.models import with_terms

    source = pinned(source)
    about = describe(with_terms(load(source, layout=layout), add or (), force=force))
    domain = load_domain(source)
    about["domain"] = ["not known"] if domain is None else domain.lines()
    for name, value in about.items():
        typer.echo(f"{name + ':':<17} {printable(_words(value), 100_000)}")


def _words(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{name} in {unit}" for name, unit in value.items())
    if isinstance(value, list):
        separator = " " if all(len(item) < 3 for item in value) else "; "
        return separator.join(value) or "none"
    return "none" if value is None else str(value)


def potentials() -> None:
    """List the potentials that come with mdgraph."""
    from mdgraph.checkpoints import describe, shipped_potentials

    for name, folder in shipped_potentials().items():
        about = describe(name)
        typer.echo(
            f"{name}: {' '.join(about['species'])}, {about['level_of_theory']}, licence "
            f"{about['licence']}; {folder / 'card.md'}"
        )


def example(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="The example; without it, all are listed.",
            show_default=False,
            autocompletion=completion(lambda: EXAMPLES),
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder to write to (default: the name).", show_default=False),
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """Write an example: structures and files of options."""
    if name is None:
        width = max(map(len, EXAMPLES)) + 2
        for known, content in EXAMPLES.items():
            typer.echo(f"{known + ':':<{width}}{content.summary}")
        typer.echo("Write the files of one with: mdgraph example NAME")
        return
    folder = Path(name) if out is None else out
    files = write_example(name, folder, overwrite=overwrite)
    names = ", ".join(str(file.relative_to(folder)) for file in files)
    typer.echo(printable(f"{names} written to {folder}/. In that folder, try:"))
    for command in EXAMPLES[name].commands:
        typer.echo(f"  {command}")


def domain(
    potential: Annotated[Path, typer.Argument(metavar="FOLDER", help="Folder of the potential.")],
    data: Annotated[Path, typer.Argument(metavar="DATA.h5", help="Its training data set.")],
    split: Annotated[Path, typer.Argument(metavar="SPLIT.json", help="Its training split.")],
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    overwrite: Overwrite = False,
) -> None:
    """Measure the training domain of a potential, which md monitors, and its uncertainty.

    A training does this at its end. Use the command for a potential without a domain, or with a
    domain of other weights. It writes domain.safetensors into the folder, and adds to metrics.json
    how well sigma fits the errors.
    """
    from mdgraph.checkpoints import load, load_domain, save_domain
    from mdgraph.checkpoints.native import DOMAIN_FILE
    from mdgraph.data import open_dataset, read_split
    from mdgraph.devices import device_named
    from mdgraph.errors import CheckpointError, FileError, printable
    from mdgraph.models import SumPotential, check_species
    from mdgraph.train.baseline import open_differences, split_sum, write_differences
    from mdgraph.train.batches import FrameStore
    from mdgraph.train.config import TrainConfig
    from mdgraph.train.domain import measure_domain
    from mdgraph.train.report import agreement_text
    from mdgraph.train.setup import at_training_precision, make_parts, trainable

    if not (potential / FILE_NAME).is_file():
        raise FileError(
            f"{potential} is not a folder with a {FILE_NAME}; give the folder of a training."
        )
    with contextlib.suppress(CheckpointError):  # a damaged domain may be replaced
        if load_domain(potential) is not None:
            refuse_existing(potential / DOMAIN_FILE, overwrite=overwrite, option=True)
    config = TrainConfig(data=str(data), out=str(potential), steps=1, device=device)
    loaded, baseline, place = load(potential / FILE_NAME), None, device_named(device)
    if isinstance(loaded, SumPotential):
        loaded, baseline = split_sum(loaded, str(potential))
    model = trainable(loaded, str(potential))
    at_training_precision(model, config)
    model.to(place)
    with contextlib.ExitStack() as stack:
        labels = fitted = stack.enter_context(open_dataset(data))
        check_species(model.species, labels.numbers().tolist())
        parts = make_parts(labels, read_split(split, labels), False)
        if baseline is not None:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            differences = Path(folder) / "differences.h5"
            write_differences(differences, labels, baseline, place)
            fitted = stack.enter_context(open_differences(differences, labels, baseline))
        store = FrameStore(fitted, parts.every, parts.train, model, config)
        new_domain, fits = measure_domain(model, store, fitted, parts, labels=labels)
    save_domain(new_domain, potential, overwrite=True)
    metrics = potential / "metrics.json"
    if metrics.exists():
        with disk_failures(metrics, "read"):
            values = json.loads(metrics.read_text(encoding="utf-8"))
        text = json.dumps(values | {"uncertainty": fits}, indent=1) + "\n"
        write_atomically(metrics, text)
    for line in [*new_domain.lines(), *(agreement_text(name, fit) for name, fit in fits.items())]:
        typer.echo(printable(line))


def export(
    potential: Annotated[str, potential_argument("POTENTIAL")],
    target: Annotated[Path, typer.Argument(metavar="OUT.pt", help="File to write.")],
    torchforce: Annotated[
        bool, typer.Option("--torchforce", help="TorchScript for OpenMM-Torch's TorchForce.")
    ] = False,
    structure: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The atoms, in the order of OpenMM.")
    ] = None,
    forces: Annotated[
        bool, typer.Option("--forces", help="Return forces too, for setOutputsForces(True).")
    ] = False,
    charge: Annotated[float | None, typer.Option(help="Total charge, e.")] = None,
    add: AddedTerms = None,
    force: Force = False,
    coulomb_cutoff: Annotated[
        float | None, typer.Option("--coulomb-cutoff-A", help="Cutoff of a reaction field to use.")
    ] = None,
    precision: Annotated[
        Literal["mixed", "single", "double"], typer.Option(help="Precision of the network.")
    ] = "mixed",
    device: Annotated[str, typer.Option(help="Device it will run on: cpu, or cuda.")] = "cpu",
    overwrite: Overwrite = False,
) -> None:
    """Write a potential for another program."""
    # Imported here, so that the command line starts fast.
    from mdgraph.checkpoints import load
    from mdgraph.drivers.torchforce import export_torchforce
    from mdgraph.io.structures import read_system
    from mdgraph.models import with_terms

    if not torchforce or structure is None:
        raise InputError(
            "Say what to write, and for which atoms: --torchforce --structure FILE, with the atoms "
            "in OpenMM's order."
        )
    refuse_existing(target, overwrite=overwrite, option=True)
    loaded = load(potential)
    if coulomb_cutoff is not None:
        loaded = loaded.with_coulomb_cutoff(coulomb_cutoff)
    loaded = with_terms(loaded, add or (), force=force)
    system = read_system(structure)
    if charge is not None:
        system = system.replace(charge=charge)
    export_torchforce(
        loaded,
        system,
        target,
        forces=forces,
        precision=precision,
        device=device,
        overwrite=overwrite,
    )
    typer.echo(printable(f"{target}: {len(system)} atoms, positions in nm to kJ/mol"))


def print_configuration(
    command: Annotated[
        Literal["md", "minimise", "eval", "relax", "protocol", "train", "distil"],
        typer.Argument(metavar="COMMAND", help="The command that will read the file."),
    ],
    schema: Annotated[
        bool, typer.Option("--schema", help="Print the JSON schema instead, for an editor.")
    ] = False,
) -> None:
    """Print a YAML file for a command: every key with its default, unit and meaning."""
    typer.echo(_schema_text(command) if schema else _defaults_text(command))


_RUNS: Final[dict[str, type[Configuration]]] = {
    "md": MDConfig,
    "minimise": MinimizeConfig,
    "eval": EvalConfig,
    "relax": RelaxConfig,
}
"""Commands that take a file of options by --config."""


def _training_class(command: str) -> "type[TrainConfig]":
    from mdgraph.distil.config import DistilConfig  # which imports torch
    from mdgraph.train.config import TrainConfig

    return DistilConfig if command == "distil" else TrainConfig


def _schema_text(command: str) -> str:
    """The JSON schema of the file of a command."""
    if command == "protocol":
        from mdgraph.runs.protocol import protocol_schema

        schema = protocol_schema()
    elif command in _RUNS:
        schema = _RUNS[command].model_json_schema()
    else:
        schema = _training_class(command).model_json_schema()
    version = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return json.dumps(version | schema, indent=2)


def _defaults_text(command: str) -> str:
    """The file of a command, in which every key has its default."""
    from mdgraph.io.commented_yaml import comment, commented_defaults
    from mdgraph.runs.config_files import grouped_defaults

    config = " --config" * (command in _RUNS)
    lines = comment(
        f"For mdgraph {command}{config} FILE.yaml. A key behind # has its default: remove the # "
        "and change the value. A key without a value counts as left out."
    )
    if command == "protocol":
        from mdgraph.runs.protocol import protocol_lines

        return "\n".join([*lines, *protocol_lines()])
    if command in _RUNS:
        kind = _RUNS[command]
        return "\n".join([*lines, *grouped_defaults(kind, kind.model_fields)])
    model = _training_class(command)
    return "\n".join([*lines, *comment(model.__doc__ or ""), "", *commented_defaults(model)])


class _Messages(logging.Handler):
    """Writes messages to stderr without breaking a progress bar."""

    def emit(self, record: logging.LogRecord) -> None:
        warning = "warning: " if record.levelno >= logging.WARNING else ""
        tqdm.write(f"mdgraph: {warning}{one_line(record.getMessage())}", file=sys.stderr)


def one_line(message: str) -> str:
    """A message in one line of printable characters."""
    return printable(" ".join(message.split()))


def _print_version(show: bool) -> None:
    if show:
        typer.echo(f"mdgraph {__version__}")
        raise typer.Exit


def _common(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    logger = logging.getLogger("mdgraph")
    logger.handlers = [_Messages()]
    logger.setLevel(logging.INFO)
    if context.invoked_subcommand not in _OF_RANKS:
        _refuse_ranks(str(context.invoked_subcommand))
    if context.invoked_subcommand not in ("train", "distil"):  # which have their own
        keep_workspaces_small()


_OF_RANKS = {"md", "minimise", "minimize", "protocol", "eval", "relax", "train"}
"""Commands whose work ranks share, or that refuse them in words of their own."""


def _refuse_ranks(command: str) -> None:
    """Ends all ranks of torchrun before they write the same files; rank 0 by InputError."""
    count = os.environ.get("WORLD_SIZE", "1")
    if count == "1" or "RANK" not in os.environ:
        return
    if os.environ["RANK"] != "0":
        raise typer.Exit
    raise InputError(
        f"mdgraph {command} is of one process, and torchrun started {count}; start it without "
        "torchrun. Ranks share the work of md, minimise, eval, relax and train."
    )


@options_of(EvalConfig)
def evaluate(config: ConfigFile = None, **options: Any) -> None:
    """Write energies, forces and stress of structures."""
    import_torch()
    from mdgraph.runs import evaluation
    from mdgraph.runs.config_files import read_configuration

    configuration = read_configuration(EvalConfig, config, given_options(options, EvalConfig))
    counts = evaluation.evaluate(configuration)
    frames, out = counts.frames, f"{configuration.out}{_resumed_text(counts.previous)}"
    typer.echo(printable(f"{frames} frame{'s' * (frames != 1)} written to {out}"))


@options_of(RelaxConfig)
def relax(config: ConfigFile = None, **options: Any) -> None:
    """Relax many structures at once to minima of the energy."""
    import_torch()
    from mdgraph.runs.config_files import read_configuration
    from mdgraph.runs.evaluation import relax_frames

    configuration = read_configuration(RelaxConfig, config, given_options(options, RelaxConfig))
    counts = relax_frames(configuration)
    minima = f"{counts.converged} of {counts.frames} minima found"
    out = f"{configuration.out}{_resumed_text(counts.previous)}"
    typer.echo(printable(f"{minima}, written to {out}"))


def _resumed_text(frames: int) -> str:
    """Words about frames that a file held before."""
    return f" after the {frames} that it held" if frames else ""


@options_of(BenchConfig)
def bench(
    verify: Annotated[
        bool, typer.Option("--verify", help="Print errors of every precision instead of times.")
    ] = False,
    machine_readable: Annotated[
        bool, typer.Option("--json", help="Print JSON, with versions and hardware.")
    ] = False,
    **options: Any,
) -> None:
    """Time a potential (by default the shipped water); --verify compares it with float64."""
    import_torch()
    from mdgraph.runs.config_files import read_configuration

    configuration = read_configuration(BenchConfig, None, given_options(options, BenchConfig))
    if verify:
        from mdgraph.runs.bench import accuracy as measure
        from mdgraph.runs.bench import accuracy_table as text
    else:
        from mdgraph.runs.bench import speed as measure
        from mdgraph.runs.bench import speed_text as text
    result = measure(configuration)
    typer.echo(json.dumps(result, indent=2) if machine_readable else text(result))


app = typer.Typer(
    name="mdgraph",
    cls=GroupedCommands,
    help="Molecular dynamics with TensorNet potentials. COMMAND -h shows the options of a command; "
    "begin with mdgraph md.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings=SETTINGS,
)
app.callback()(_common)

_GROUPS: Final[dict[str, dict[str, Callable[..., None]]]] = {
    "Simulate": {
        "md": md,
        "minimise": minimise,
        "protocol": protocol,
        "example": example,
        "config": print_configuration,
    },
    "Look at results": {
        "analyse": analyse,
        "free-energy": free_energy,
        "trajectory": trajectory,
    },
    "Evaluate structures": {"eval": evaluate, "relax": relax},
    "Choose and judge potentials": {
        "potentials": potentials,
        "inspect": inspect_potential,
        "validate": validation.validate,
        "bench": bench,
        "convert": convert,
        "export": export,
    },
    "Train potentials": {
        "train": training.train,
        "distil": training.distil,
        "domain": domain,
    },
}
"""Commands by their groups in the help, in its order."""

_CLASSES: Final[dict[str, type[TyperCommand]]] = {
    **dict.fromkeys(("md", "minimise", "eval", "relax", "validate", "bench"), GroupedCommand),
    "train": training.TrainCommand,
}
"""Of commands whose help has groups of options."""

for _title, _commands in _GROUPS.items():
    for _word, _command in _commands.items():
        app.command(_word, cls=_CLASSES.get(_word), rich_help_panel=_title)(_command)
app.command("minimize", cls=GroupedCommand, hidden=True)(minimise)
app.add_typer(data_commands, name="data", rich_help_panel="Train potentials")
