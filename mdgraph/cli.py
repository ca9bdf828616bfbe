"""The command `mdgraph`."""

import json
import logging
import shlex
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from tqdm import tqdm

from mdgraph import __version__
from mdgraph.errors import MDGraphError
from mdgraph.runs import (
    data_commands,
    domain_command,
    export_command,
    potential_commands,
    training,
)
from mdgraph.runs.configuration import (
    BenchConfig,
    EvalConfig,
    MDConfig,
    MinimizeConfig,
    RelaxConfig,
    RunConfig,
)
from mdgraph.runs.options import given_options, options_of

if TYPE_CHECKING:
    from mdgraph.runs.advance import Outcome

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

ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE.yaml", help="The options below as a YAML file."),
]


def main() -> None:
    """Runs the command line; an error raised on purpose, or a GPU lost, ends with status 1."""
    try:
        app(prog_name="mdgraph")
    except MDGraphError as error:
        typer.echo(f"mdgraph: error: {' '.join(str(error).split())}", err=True)
        sys.exit(1)
    except RuntimeError as error:
        what = str(error).partition("\n")[0].rstrip(".")
        if "CUDA error" not in what and "[CUDA]" not in what:
            raise
        typer.echo(
            f"mdgraph: error: The GPU failed ({what}). What was written before is whole; "
            "a run goes on with --resume once the GPU works.",
            err=True,
        )
        sys.exit(1)


class _Messages(logging.Handler):
    """Writes messages to stderr without breaking a progress bar."""

    def emit(self, record: logging.LogRecord) -> None:
        warning = "warning: " if record.levelno >= logging.WARNING else ""
        tqdm.write(f"mdgraph: {warning}{record.getMessage()}", file=sys.stderr)


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


Resume = Annotated[
    bool, typer.Option("--resume", help="Go on with the run in --out, to the same bits.")
]


@app.command()
@options_of(MDConfig)
def md(config: ConfigFile = None, resume: Resume = False, **options: Any) -> None:
    """Run molecular dynamics; without arguments, of water."""
    outcome = _outcome(MDConfig, config, resume, given_options(options))
    typer.echo(
        f"{outcome.time_ps:.4g} ps simulated ({outcome.steps} of {outcome.total_steps} steps), "
        f"{outcome.ns_per_day:.3g} ns/day, mean temperature {outcome.mean_temperature:.1f} K."
    )
    _say_where("md", outcome)


@app.command("minimize", hidden=True)
@app.command("minimise")
@options_of(MinimizeConfig)
def minimise(config: ConfigFile = None, resume: Resume = False, **options: Any) -> None:
    """Move atoms, and the cell if asked to, to a minimum of the energy."""
    outcome = _outcome(MinimizeConfig, config, resume, given_options(options))
    found = "A minimum" if outcome.converged else "No minimum within the tolerances"
    typer.echo(
        f"{found} is reached after {outcome.steps} steps; the largest force is "
        f"{outcome.largest_force:.3g} eV/A."
    )
    _say_where("minimise", outcome)


def _outcome(
    kind: type[RunConfig], config: Path | None, resume: bool, given: dict[str, Any]
) -> "Outcome":
    from mdgraph.runs import dynamics
    from mdgraph.runs.settings import read_configuration

    if not resume:
        return dynamics.start(read_configuration(kind, config, given))
    fixed = sorted(set(given) - dynamics.RESUME_KEYS) + ["config"] * (config is not None)
    if fixed:
        them = "them" if fixed[1:] else "it"
        raise typer.BadParameter(
            f"--resume takes {', '.join(fixed)} from run.json; leave {them} out."
        )
    return dynamics.resume(Path(read_configuration(kind, None, given).out), given, kind)


def _say_where(command: str, outcome: "Outcome") -> None:
    folder = outcome.directory.path
    if outcome.signal is None and outcome.replicas is not None:
        typer.echo(f"Trajectories and logs of {outcome.replicas} replicas are in {folder}/")
        return
    if outcome.signal is None:
        last = "picture" if command == "md" else "end.extxyz"
        typer.echo(f"Trajectory, log and {last} are in {folder}{'/' * (folder != Path())}")
        return
    if outcome.ranks > 1:
        # All are as far, and torchrun would kill what still says so once the first is gone.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    where = "" if str(folder) == MDConfig().out else f" --out {shlex.quote(str(folder))}"
    many = f"torchrun --nproc-per-node {outcome.ranks} -m " if outcome.ranks > 1 else ""
    typer.echo(
        f"Stopped by {outcome.signal.name}; go on with: {many}mdgraph {command} --resume{where}"
    )
    raise typer.Exit(128 + outcome.signal)


@app.command()
def protocol(
    file: Annotated[Path, typer.Argument(metavar="FILE.yaml", help="The stages.")],
    structure: Annotated[
        str | None,
        typer.Argument(
            metavar="STRUCTURE",
            help="Structure file; without it, the start that comes with the potential.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", help="Folder of the stages; one begun is gone on with.")
    ] = Path("mdgraph-protocol"),
) -> None:
    """Run stages one after the other; the same command goes on where it stopped."""
    from mdgraph.runs.protocol import run_protocol
    from mdgraph.runs.stages import read_protocol

    outcome = run_protocol(read_protocol(file, structure, out), out)
    if outcome is not None and outcome.signal is not None:
        typer.echo(
            f"Stopped by {outcome.signal.name} in {outcome.directory.path}; "
            "go on with the same command."
        )
        raise typer.Exit(128 + outcome.signal)
    typer.echo(f"All stages are finished, in {out}{'/' * (out != Path())}")


@app.command("eval")
@options_of(EvalConfig)
def evaluate(config: ConfigFile = None, **options: Any) -> None:
    """Write energies, forces and stress of structures."""
    from mdgraph.runs import evaluation
    from mdgraph.runs.settings import read_configuration

    configuration = read_configuration(EvalConfig, config, given_options(options))
    frames = evaluation.evaluate(configuration)
    typer.echo(f"{frames} frame{'s' * (frames != 1)} written to {configuration.out}")


@app.command()
@options_of(RelaxConfig)
def relax(config: ConfigFile = None, **options: Any) -> None:
    """Move many structures at once to minima of the energy, and write these."""
    from mdgraph.runs.relaxation import relax_frames
    from mdgraph.runs.settings import read_configuration

    configuration = read_configuration(RelaxConfig, config, given_options(options))
    found = relax_frames(configuration)
    typer.echo(f"{found.converged} of {found.frames} minima found, written to {configuration.out}")


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
