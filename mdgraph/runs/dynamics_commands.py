"""The commands `mdgraph md`, `mdgraph minimise` and `mdgraph protocol`."""

import os
import shlex
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mdgraph.errors import InputError, printable
from mdgraph.runs.configuration import MDConfig, MinimizeConfig, RunConfig
from mdgraph.runs.options import ConfigFile, given_options, options_of
from mdgraph.signals import Interrupted

if TYPE_CHECKING:
    from mdgraph.runs.advance import Outcome

Resume = Annotated[
    bool, typer.Option("--resume", help="Go on with the run in --out, to the same bits.")
]


@options_of(MDConfig)
def md(config: ConfigFile = None, resume: Resume = False, **options: Any) -> None:
    """Run molecular dynamics; without arguments, of water."""
    outcome = _outcome(MDConfig, config, resume, given_options(options))
    speed = f"{outcome.ns_per_day:.3g} ns/day, " if outcome.ns_per_day else ""
    typer.echo(
        f"{outcome.time_ps:.4g} ps simulated ({outcome.steps} of {outcome.total_steps} steps), "
        f"{speed}mean temperature {outcome.mean_temperature:.1f} K."
    )
    _say_where("md", outcome)


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
        configuration = read_configuration(kind, config, given)
        with _interruptible(kind, configuration):
            return dynamics.start(configuration)
    fixed = sorted(set(given) - dynamics.RESUME_KEYS) + ["config"] * (config is not None)
    if fixed:
        them = "them" if fixed[1:] else "it"
        raise InputError(f"--resume takes {', '.join(fixed)} from run.json; leave {them} out.")
    configuration = read_configuration(kind, None, given)
    with _interruptible(kind, configuration):
        return dynamics.resume(Path(configuration.out), given, kind)


@contextmanager
def _interruptible(kind: type[RunConfig], configuration: RunConfig) -> Iterator[None]:
    """Says with a signal that comes before the first step, or after the last, how to go on."""
    try:
        yield
    except Interrupted as error:
        from mdgraph.runs.directory import RunDirectory

        folder = Path(configuration.out)
        command = "md" if kind is MDConfig else "minimise"
        ranks = int(os.environ.get("WORLD_SIZE", "1"))
        if RunDirectory(folder).holds_run() or (folder / "rank-0").exists():
            error.add_note(f"go on with: {_again(command, folder, ranks)}")
        else:
            error.add_note("nothing was written, start it again")
        raise


def _again(command: str, folder: Path, ranks: int) -> str:
    """What goes on with a run."""
    where = "" if str(folder) == MDConfig().out else f" --out {shlex.quote(str(folder))}"
    many = f"torchrun --nproc-per-node {ranks} -m " if ranks > 1 else ""
    return f"{many}mdgraph {command} --resume{where}"


def _say_where(command: str, outcome: "Outcome") -> None:
    folder = outcome.directory.path
    if outcome.signal is None and outcome.replicas is not None:
        typer.echo(
            printable(f"Trajectories and logs of {outcome.replicas} replicas are in {folder}/")
        )
        return
    if outcome.signal is None:
        last = "picture" if command == "md" else "end.extxyz"
        place = f"{folder}{'/' * (folder != Path())}"
        typer.echo(printable(f"Trajectory, log and {last} are in {place}"))
        return
    if outcome.ranks > 1:
        # All are as far, and torchrun would kill what still says so once the first is gone.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    again = _again(command, folder, outcome.ranks)
    typer.echo(f"Stopped by {outcome.signal.name}; go on with: {again}")
    raise typer.Exit(128 + outcome.signal)


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

    try:
        outcome = run_protocol(read_protocol(file, structure, out), out)
    except Interrupted as error:
        error.add_note("go on with the same command")
        raise
    if outcome is not None and outcome.signal is not None:
        typer.echo(
            f"Stopped by {outcome.signal.name} in {outcome.directory.path}; "
            "go on with the same command."
        )
        raise typer.Exit(128 + outcome.signal)
    typer.echo(printable(f"All stages are finished, in {out}{'/' * (out != Path())}"))
