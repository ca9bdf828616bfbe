"""The command `mdgraph`."""

import inspect
import json
import logging
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer
from tqdm import tqdm

from mdgraph import __version__
from mdgraph.errors import MDGraphError
from mdgraph.runs.configuration import BenchConfig, Configuration, EvalConfig, MDConfig

app = typer.Typer(
    name="mdgraph",
    help="Molecular dynamics with TensorNet potentials.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Layout = Annotated[
    Literal["auto", "before-3.0", "3.0"],
    typer.Option(help="Side of release 3.0 of TorchMD-Net or MatGL that wrote the potential."),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE.yaml", help="The options below as a YAML file."),
]


def main() -> None:
    """Runs the command line; an error raised on purpose is one sentence and status 1."""
    try:
        app(prog_name="mdgraph")
    except MDGraphError as error:
        typer.echo(f"mdgraph: error: {' '.join(str(error).split())}", err=True)
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


def _options_of(kind: type[Configuration]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command an option for each field of a configuration, None where not given."""

    def extend(command: Callable[..., None]) -> Callable[..., None]:
        own = [
            parameter
            for parameter in inspect.signature(command).parameters.values()
            if parameter.kind is not parameter.VAR_KEYWORD
        ]
        options = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=None,
                annotation=Annotated[_option_type(field.annotation) | None, _option(name, kind)],
            )
            for name, field in kind.model_fields.items()
        ]
        # Typer reads the signature.
        command.__signature__ = inspect.Signature([*own, *options])  # type: ignore[attr-defined]
        return command

    return extend


def _option(name: str, kind: type[Configuration]) -> Any:
    field = kind.model_fields[name]
    text = field.description or ""
    if name in kind.arguments:
        return typer.Argument(help=text, metavar=name.upper(), show_default=False)
    flag = f"--{name.replace('_', '-')}"
    if field.annotation is bool:
        return typer.Option(f"{flag}/--no-{name.replace('_', '-')}", help=text)
    if field.default is not None:
        text = f"{text} (default {field.default})"
    return typer.Option(flag, help=text)


def _option_type(annotation: Any) -> Any:
    """The type of an option on the command line for that of a field."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _option_type(parts[0])
    if origin is tuple:
        return list[parts[0]]  # type: ignore[valid-type]
    if origin in (Union, UnionType):
        kinds = [_option_type(part) for part in parts if part is not NoneType]
        return kinds[0] if len(kinds) == 1 else str
    return annotation


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value not in (None, [])}


@app.command()
@_options_of(MDConfig)
def md(
    config: ConfigFile = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the run in --out, to the same bits.")
    ] = False,
    **options: Any,
) -> None:
    """Run molecular dynamics; without arguments, of water."""
    from mdgraph.runs import dynamics
    from mdgraph.runs.settings import read_configuration

    given = _given(options)
    if not resume:
        outcome = dynamics.start(read_configuration(MDConfig, config, given))
    else:
        fixed = sorted(set(given) - dynamics.RESUME_KEYS) + ["config"] * (config is not None)
        if fixed:
            raise typer.BadParameter(
                f"--resume takes {', '.join(fixed)} from run.json; leave them out."
            )
        out = Path(read_configuration(MDConfig, None, given).out)
        outcome = dynamics.resume(out, given)
    folder = outcome.directory.path
    typer.echo(
        f"{outcome.time_ps:.4g} ps simulated ({outcome.steps} of {outcome.total_steps} steps), "
        f"{outcome.ns_per_day:.3g} ns/day, mean temperature {outcome.mean_temperature:.1f} K."
    )
    if outcome.signal is None:
        typer.echo(f"Trajectory, log and picture are in {folder}{'/' * (folder != Path())}")
        return
    where = "" if str(folder) == MDConfig().out else f" --out {shlex.quote(str(folder))}"
    typer.echo(f"Stopped by {outcome.signal.name}; go on with: mdgraph md --resume{where}")
    raise typer.Exit(128 + outcome.signal)


@app.command("eval")
@_options_of(EvalConfig)
def evaluate(config: ConfigFile = None, **options: Any) -> None:
    """Write energies, forces and stress of structures."""
    from mdgraph.runs import evaluation
    from mdgraph.runs.settings import read_configuration

    configuration = read_configuration(EvalConfig, config, _given(options))
    frames = evaluation.evaluate(configuration)
    typer.echo(f"{frames} frame{'s' * (frames != 1)} written to {configuration.out}")


@app.command()
@_options_of(BenchConfig)
def bench(
    verify: Annotated[
        bool, typer.Option("--verify", help="Errors of every precision instead of times.")
    ] = False,
    machine_readable: Annotated[
        bool, typer.Option("--json", help="Print JSON, with versions and hardware.")
    ] = False,
    **options: Any,
) -> None:
    """Time a potential on a structure, or with --verify hold it against float64."""
    from mdgraph.runs import benchmark
    from mdgraph.runs.settings import read_configuration

    configuration = read_configuration(BenchConfig, None, _given(options))
    found = benchmark.accuracy(configuration) if verify else benchmark.speed(configuration)
    if machine_readable:
        typer.echo(json.dumps(found, indent=2))
    else:
        typer.echo(benchmark.accuracy_table(found) if verify else benchmark.speed_text(found))


@app.command()
def convert(
    source: Annotated[str, typer.Argument(metavar="IN", help="File, folder or shipped name.")],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="A new .safetensors file.")],
    layout: Layout = "auto",
) -> None:
    """Write a potential in mdgraph's own format."""
    from mdgraph.checkpoints import convert

    convert(source, target, layout=layout)
    typer.echo(f"{source} written to {target}")


@app.command("inspect")
def inspect_potential(
    source: Annotated[str, typer.Argument(metavar="PATH", help="File, folder or shipped name.")],
    layout: Layout = "auto",
) -> None:
    """Say what a potential is, and what was assumed."""
    from mdgraph.checkpoints import describe

    for name, value in describe(source, layout=layout).items():
        typer.echo(f"{name + ':':<17} {_words(value)}")


def _words(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{name} in {unit}" for name, unit in value.items())
    if isinstance(value, list):
        separator = " " if all(len(one) < 3 for one in value) else "; "
        return separator.join(value) or "none"
    return "none" if value is None else str(value)


@app.command()
def potentials() -> None:
    """List the potentials that come with mdgraph."""
    from mdgraph.checkpoints import describe, shipped_potentials

    for name, folder in shipped_potentials().items():
        about = describe(name)
        typer.echo(
            f"{name}: {' '.join(about['species'])}, {about['level_of_theory']}, licence "
            f"{about['licence']}; {folder / 'card.md'}"
        )
