"""The commands of `mdgraph`, and where their messages go."""

import json
import logging
import sys
from typing import Annotated, Any

import typer
from tqdm import tqdm

from mdgraph import __version__
from mdgraph.errors import printable
from mdgraph.runs import (
    data_commands,
    domain_command,
    dynamics_commands,
    export_command,
    potential_commands,
    training,
)
from mdgraph.runs.configuration import BenchConfig, EvalConfig, RelaxConfig
from mdgraph.runs.options import ConfigFile, given_options, options_of

app = typer.Typer(
    name="mdgraph",
    help="Molecular dynamics with TensorNet potentials.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.add_typer(data_commands.app, name="data")
app.command()(training.train)
app.command()(domain_command.domain)
app.command()(export_command.export)
app.command()(dynamics_commands.md)
app.command("minimize", hidden=True)(dynamics_commands.minimise)
app.command("minimise")(dynamics_commands.minimise)
app.command()(dynamics_commands.protocol)


class _Messages(logging.Handler):
    """Writes messages to stderr without breaking a progress bar."""

    def emit(self, record: logging.LogRecord) -> None:
        warning = "warning: " if record.levelno >= logging.WARNING else ""
        tqdm.write(f"mdgraph: {warning}{one_line(record.getMessage())}", file=sys.stderr)


def one_line(message: str) -> str:
    """A message as a terminal may show it; a library's may have several lines."""
    return printable(" ".join(message.split()))


def _say_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"mdgraph {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_say_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    logger = logging.getLogger("mdgraph")
    logger.handlers = [_Messages()]
    logger.setLevel(logging.INFO)


@app.command("eval")
@options_of(EvalConfig)
def evaluate(config: ConfigFile = None, **options: Any) -> None:
    """Write energies, forces and stress of structures."""
    from mdgraph.runs import evaluation
    from mdgraph.runs.settings import read_configuration

    configuration = read_configuration(EvalConfig, config, given_options(options))
    frames = evaluation.evaluate(configuration)
    typer.echo(printable(f"{frames} frame{'s' * (frames != 1)} written to {configuration.out}"))


@app.command()
@options_of(RelaxConfig)
def relax(config: ConfigFile = None, **options: Any) -> None:
    """Move many structures at once to minima of the energy, and write these."""
    from mdgraph.runs.relaxation import relax_frames
    from mdgraph.runs.settings import read_configuration

    configuration = read_configuration(RelaxConfig, config, given_options(options))
    found = relax_frames(configuration)
    minima = f"{found.converged} of {found.frames} minima found"
    typer.echo(printable(f"{minima}, written to {configuration.out}"))


@app.command()
@options_of(BenchConfig)
def bench(
    verify: Annotated[
        bool, typer.Option("--verify", help="Errors of every precision instead of times.")
    ] = False,
    machine_readable: Annotated[
        bool, typer.Option("--json", help="Print JSON, with versions and hardware.")
    ] = False,
    **options: Any,
) -> None:
    """Time a potential, the shipped water by default, or with --verify hold it against float64."""
    from mdgraph.runs.settings import read_configuration

    configuration = read_configuration(BenchConfig, None, given_options(options))
    if verify:
        from mdgraph.runs.accuracy import accuracy as measure
        from mdgraph.runs.accuracy import accuracy_table as text
    else:
        from mdgraph.runs.benchmark import speed as measure
        from mdgraph.runs.benchmark import speed_text as text
    found = measure(configuration)
    typer.echo(json.dumps(found, indent=2) if machine_readable else text(found))


app.command()(potential_commands.convert)
app.command("inspect")(potential_commands.inspect_potential)
app.command()(potential_commands.potentials)
