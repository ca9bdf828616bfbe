"""The options of `mdgraph md`, `minimise` and `protocol`, their ranks, and how they go on."""

import contextlib
import itertools
import logging
import os
import re
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mdgraph.ensembles import ENSEMBLES
from mdgraph.errors import (
    InputError,
    LostRankError,
    errors_logged_alone,
    old_name,
    printable,
)
from mdgraph.processes import end_with_launcher, launch, launched_devices
from mdgraph.runs.config import MDConfig, MinimizeConfig, RunConfig
from mdgraph.runs.config_fields import Group, replicas_text
from mdgraph.runs.config_files import option_flag
from mdgraph.runs.options import ConfigFile, given_options, options_of
from mdgraph.signals import Interrupted, import_torch, signals_ignored, unfinished_status

if TYPE_CHECKING:
    from mdgraph.runs.md import RunOutcome
    from mdgraph.runs.protocol import FinishedRun

logger = logging.getLogger(__name__)

Resume = Annotated[
    bool,
    typer.Option(
        "--resume",
        help="Continue the run in --out, bit for bit as if it had not stopped. For new conditions "
        "begin another run from its end, 'mdgraph md --from RUN --temperature-K 350 --out NEW', or "
        "from one of its frames, 'mdgraph md RUN/trajectory.h5md@-1'.",
    ),
]
From = Annotated[
    Path | None,
    typer.Option(
        "--from",
        metavar="RUN",
        help="Begin where the finished run in this folder ended, with its options; options given "
        "here override them.",
        show_default=False,
        rich_help_panel=Group.STRUCTURE,
    ),
]
UntilPs = Annotated[
    float | None,
    typer.Option(
        "--until-ps",
        min=0.0,
        help="With --resume: length of the whole run from its start, so repeating the command does "
        "nothing more.",
        show_default=False,
        rich_help_panel=Group.ENSEMBLE,
    ),
]
ExtendPs = Annotated[
    float | None,
    typer.Option(
        "--extend-ps",
        min=0.0,
        help="With --resume: length to add to a finished run.",
        show_default=False,
        rich_help_panel=Group.ENSEMBLE,
    ),
]
ResumeOrStart = Annotated[
    bool,
    typer.Option(
        "--resume-or-start",
        help="Continue the run in --out, which must have begun with the same options, or start it "
        "if there is none yet.",
        rich_help_panel=Group.OUTPUT,
    ),
]
RankDevices = Annotated[
    str | None,
    typer.Option(
        "--devices",
        help="Start a process for each of these devices, which share the replicas or the domains "
        "of the run: all (every GPU), or a list such as cuda:0,cuda:1 or cpu,cpu.",
        show_default=False,
        rich_help_panel=Group.SPEED,
    ),
]


@options_of(MDConfig)
def md(
    config: ConfigFile = None,
    from_run: From = None,
    resume: Resume = False,
    resume_or_start: ResumeOrStart = False,
    until_ps: UntilPs = None,
    extend_ps: ExtendPs = None,
    devices: RankDevices = None,
    **options: Any,
) -> None:
    """Run molecular dynamics; without arguments, of water."""
    options = _on_devices(devices, options, MDConfig, config, resume, resume_or_start, from_run)
    longer = {"until_ps": until_ps, "extend_ps": extend_ps}
    options = _with_lengths(options, longer, resume=resume)
    outcome = _outcome(MDConfig, config, resume, resume_or_start, options, extend_ps, from_run)
    text = f"{outcome.time_ps:.4g} ps simulated ({outcome.steps} of {outcome.total_steps} steps)"
    if outcome.ns_per_day:
        text += f", {outcome.ns_per_day:.3g} ns/day"
    if outcome.mean_temperature is not None:
        text += f", mean temperature {outcome.mean_temperature:.1f} K"
    with _ignore_further_signals(outcome):
        typer.echo(f"{text}.")
        _print_where("md", outcome)


@options_of(MinimizeConfig)
def minimise(
    config: ConfigFile = None,
    resume: Resume = False,
    resume_or_start: ResumeOrStart = False,
    devices: RankDevices = None,
    **options: Any,
) -> None:
    """Move atoms, and the cell if asked to, to a minimum of the energy."""
    options = _on_devices(devices, options, MinimizeConfig, config, resume, resume_or_start)
    outcome = _outcome(MinimizeConfig, config, resume, resume_or_start, options)
    subject = "A minimum" if outcome.converged else "No minimum within the tolerances"
    with _ignore_further_signals(outcome):
        typer.echo(
            f"{subject} is reached after {outcome.steps} steps; the largest force is "
            f"{outcome.largest_force:.3g} eV/A."
        )
        _print_where("minimise", outcome)


def _on_devices(
    devices: str | None,
    options: dict[str, Any],
    kind: type[RunConfig],
    config: Path | None,
    resume: bool = False,
    resume_or_start: bool = False,
    from_run: Path | None = None,
) -> dict[str, Any]:
    """Runs the command in a rank for each device and ends with them; the options of such a rank.

    All devices are one for each domain of the run, wherever their number is said.

    Raises:
        InputError: there is no such device, other ranks share the run already, or what the command
            says of the run is wrong.
    """
    if devices is None:
        return options
    from mdgraph.devices import ranks_of

    with _errors_of_first_rank():
        if options.get("device") is not None:
            raise InputError("--device and --devices both say where the run is; give one.")
        names = (launched_devices() or "").split(",")
        if names[0]:
            end_with_launcher()
            return options | {"device": names[0].partition(":")[0]}
        if os.environ.get("WORLD_SIZE", "1") != "1":
            raise InputError(
                "--devices starts a rank for each device, and torchrun started some already; "
                "leave one of them out."
            )
        names = ranks_of(devices)
        with errors_logged_alone("mdgraph.runs"):  # rank 0 reads the same again
            given = given_options(options, kind)
            if resume:  # it also judges what else is given
                given = {name: given[name] for name in ("out", "domains") if name in given}
                config = from_run = None
            configuration, _ = _initial_configuration(kind, config, given, from_run)
        if devices.strip() == "all":
            names = _one_a_domain(names, configuration, going_on=resume or resume_or_start)
    if len(names) == 1:
        return options | {"device": names[0]}
    status, ending = launch(names, sys.argv[1:])
    if ending is not None:
        from mdgraph.runs.md import holds_run

        status = unfinished_status(ending) if holds_run(Path(configuration.out)) else status
    raise typer.Exit(status)


def _one_a_domain(names: list[str], configuration: RunConfig, *, going_on: bool) -> list[str]:
    """As many devices as a run has domains, or one in its folder that goes on; else all."""
    from mdgraph.decomposition.bricks import domain_count
    from mdgraph.runs.folder import RunDirectory

    folder, domains = RunDirectory(Path(configuration.out)), configuration.domains
    if domains is None and going_on and folder.record.exists():
        domains = folder.read_record()["configuration"].get("domains")
    count = len(names) if domains is None else domain_count(domains)
    if count < len(names):
        logger.info("%d of %d devices are used, one for each domain.", count, len(names))
    if count > len(names) == 1:
        each = f"; --devices {','.join(count * ['cpu'])} gives each a process" * (names[0] == "cpu")
        logger.warning(
            "There is one device, %s, so one process has all %d domains, which is no faster than "
            "an undivided system%s.",
            *(names[0], count, each),
        )
    return names[:count]


def _with_lengths(
    options: dict[str, Any], longer: dict[str, float | None], *, resume: bool
) -> dict[str, Any]:
    """The options of md with the length that those of a resumed run give.

    Raises:
        InputError: there are several lengths, or they belong to a resumed run.
    """
    names = ("steps", "time_ps", *longer)
    lengths = [name for name in names if (options | longer).get(name) is not None]
    flags = [*map(option_flag, lengths)]
    if not resume:
        for name, flag in zip(lengths, flags, strict=True):
            if name in longer:
                raise InputError(
                    f"{flag} belongs to --resume; give the length of a run from its start with "
                    "--time-ps."
                )
        return options
    if len(lengths) > 1:
        raise InputError(f"{' and '.join(flags)} both give the length of the run; give one.")
    if "time_ps" in lengths:
        logger.warning(old_name("--time-ps with --resume", "--until-ps"))
    if "until_ps" in lengths:
        options["time_ps"] = str(longer["until_ps"])
    return options


def _outcome(
    kind: type[RunConfig],
    config: Path | None,
    resume: bool,
    resume_or_start: bool,
    options: dict[str, Any],
    extend_ps: float | None = None,
    from_run: Path | None = None,
) -> "RunOutcome":
    import_torch()
    from mdgraph.runs import md as dynamics

    with _errors_of_first_rank():
        options = given_options(options, kind)
        if resume and (resume_or_start or from_run is not None):
            other = "--resume-or-start" if resume_or_start else "--from, which begins another run,"
            raise InputError(f"--resume and {other} are given; give one.")
        if resume:
            fixed = sorted(set(options) - dynamics.RESUME_KEYS) + ["config"] * (config is not None)
            if fixed:
                raise InputError(_fixed_options_text(kind, fixed, options))
        configuration, ended = _initial_configuration(kind, config, options, from_run)
        starts = None if ended is None else ended.ends(configuration)
    if ended is not None:
        logger.info("The run begins where the one in %s ended.", from_run)
    if not resume:
        with _interruptible(kind, configuration):
            if resume_or_start:
                return dynamics.resume_or_start(configuration, starts)
            return dynamics.start(configuration, starts)
    with _interruptible(kind, configuration):
        return dynamics.resume(Path(configuration.out), options, kind, extend_ps=extend_ps)


def _initial_configuration(
    kind: type[RunConfig], config: Path | None, options: dict[str, Any], from_run: Path | None
) -> "tuple[RunConfig, FinishedRun | None]":
    """The configuration of a new run, and the run that has its initial structures, if one has."""
    from mdgraph.runs.config_files import read_configuration

    if from_run is None:
        return read_configuration(kind, config, options), None
    from mdgraph.runs.protocol import FinishedRun

    if "structure" in options:
        raise InputError("--from takes the structure from the end of the run; leave the file out.")
    ended = FinishedRun.read(from_run)
    return read_configuration(kind, config, options, ended.options(kind, options)), ended


def _fixed_options_text(kind: type[RunConfig], names: list[str], options: dict[str, Any]) -> str:
    """The sentence about options that a resumed run cannot change."""
    flags = ", ".join(
        "the structure" if name == "structure" else option_flag(name) for name in names
    )
    text = f"--resume takes {flags} from run.json; leave {'them' if names[1:] else 'it'} out"
    if kind is not MDConfig or {"structure", "config"} & {*names}:
        return f"{text}."
    changes = " ".join(_as_given(name, options[name]) for name in names)
    run = shlex.quote(str(options.get("out", MDConfig().out)))
    again = f"mdgraph md --from {run} {changes} --out NEW"
    return f"{text}, or begin another run from the end of this one: {again}."


def _as_given(name: str, value: Any) -> str:
    """An option of the command line with its value, or with each of several."""
    if isinstance(value, bool):
        return option_flag(name if value else f"no_{name}")
    values = value if isinstance(value, list | tuple) else [value]
    return " ".join(f"{option_flag(name)} {shlex.quote(str(one))}" for one in values)


@contextmanager
def _errors_of_first_rank() -> Iterator[None]:
    """Lets rank 0 alone say what is wrong with options, which are those of all ranks."""
    from mdgraph.devices import is_first_rank

    try:
        yield
    except InputError:
        if is_first_rank():
            raise
        raise SystemExit(0) from None  # torchrun stops the others once one fails


@contextmanager
def _interruptible(kind: type[RunConfig], configuration: RunConfig) -> Iterator[None]:
    """Adds how to go on: to a signal before the first step or after the last, to a lost rank."""
    folder = Path(configuration.out)
    command = "md" if kind is MDConfig else "minimise"
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    again = _again(command, folder, ranks)

    def way_on() -> str:
        from mdgraph.runs.md import checkpoint_step

        step = checkpoint_step(folder)
        return "" if step is None else f"That in {folder} is of step {step}: {again}"

    try:
        with contextlib.ExitStack() as stack:
            if ranks > 1:
                from mdgraph.decomposition.heartbeat import adding

                stack.enter_context(adding(way_on))
            yield
    except LostRankError as error:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun has noticed too
        if not (way := way_on()):
            raise
        raise LostRankError(f"{error} {way}") from error
    except Interrupted as error:
        from mdgraph.runs.md import holds_run

        if holds_run(folder):
            error.add_note(f"continue with: {again}")
            error.status = unfinished_status(error.signal)
        else:
            error.add_note("nothing was written, start it again")
        raise


def _again(command: str, folder: Path, ranks: int) -> str:
    """The command that resumes a run."""
    where = "" if str(folder) == MDConfig().out else f" --out {shlex.quote(str(folder))}"
    devices = launched_devices()
    many = f"torchrun --nproc-per-node {ranks} -m " if ranks > 1 and devices is None else ""
    return f"{many}mdgraph {command} --resume{where}" + f" --devices {devices}" * bool(devices)


@contextmanager
def _ignore_further_signals(outcome: "RunOutcome") -> Iterator[None]:
    """Of a run that a signal ended, lets the same one from elsewhere not cut off how to go on."""
    if outcome.signal is None:
        yield
        return
    try:
        with signals_ignored():
            yield
    finally:
        if outcome.ranks > 1:
            # torchrun would kill the other ranks before they print this, once the first has ended.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _print_where(command: str, outcome: "RunOutcome") -> None:
    folder = outcome.directory.path
    if outcome.signal is None:
        has_picture = outcome.directory.picture.exists()
        if outcome.replicas is not None:
            text = f"Trajectories and logs of {replicas_text(outcome.replicas)} are in {folder}/"
            text += f", their picture is {outcome.directory.picture}" * has_picture
        else:
            last = "picture" if command == "md" and has_picture else "end.extxyz"
            text = f"Trajectory, log and {last} are in {folder}{'/' * (folder != Path())}"
        typer.echo(printable(text))
        if command == "md":
            _print_next_commands(outcome)
        return
    again = _again(command, folder, outcome.ranks)
    typer.echo(f"Stopped by {_reason(outcome.signal, outcome)}; continue with: {again}")
    raise typer.Exit(unfinished_status(outcome.signal))


def _print_next_commands(outcome: "RunOutcome") -> None:
    """Prints the commands that make a run longer, and that start one from its end."""
    folder = outcome.directory
    longer = f"{outcome.time_ps or 1.0:.4g}"
    typer.echo(
        printable(f"To continue: {_again('md', folder.path, outcome.ranks)} --extend-ps {longer}")
    )
    if outcome.ranks > 1:
        return  # each may have a record of its own
    configuration = folder.read_record()["configuration"]
    if configuration["temperatures_K"] is None:
        kelvin = 300 if configuration["temperature_K"] == 350.0 else 350
        change = f"--temperature-K {kelvin}"
        if not ENSEMBLES[configuration["ensemble"]].bath:
            change = f"--ensemble nvt-langevin {change}"
        run, new = (shlex.quote(str(path)) for path in (folder.path, _free_path(folder.path)))
        typer.echo(printable(f"New conditions: mdgraph md --from {run} {change} --out {new}"))


def _free_path(folder: Path) -> Path:
    """A path beside a folder at which there is nothing."""
    name = re.sub(r"-\d\Z", "", folder.resolve().name)
    numbers = itertools.count(2)
    return next(
        path for number in numbers if not (path := folder.parent / f"{name}-{number}").exists()
    )


def _reason(number: signal.Signals, outcome: "RunOutcome") -> str:
    return "max_hours" if outcome.out_of_time else number.name


def protocol(
    file: Annotated[Path, typer.Argument(metavar="FILE.yaml", help="The stages.")],
    structure: Annotated[
        str | None,
        typer.Argument(
            metavar="STRUCTURE",
            help="Structure file; by default the structure that comes with the potential.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", help="Folder of the stages; begun stages are continued.")
    ] = Path("mdgraph-protocol"),
) -> None:
    """Run stages one after the other; repeat the command to continue where it stopped."""
    from mdgraph.runs.protocol import read_protocol, run_protocol

    try:
        outcome = run_protocol(read_protocol(file, structure, out), out)
    except Interrupted as error:
        error.add_note("continue with the same command")
        error.status = unfinished_status(error.signal)
        raise
    if outcome is not None and outcome.signal is not None:
        typer.echo(
            f"Stopped by {_reason(outcome.signal, outcome)} in {outcome.directory.path}; "
            "continue with the same command."
        )
        raise typer.Exit(unfinished_status(outcome.signal))
    typer.echo(printable(f"All stages are finished, in {out}{'/' * (out != Path())}"))
