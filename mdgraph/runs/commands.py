"""The command-line options of all commands but those on data, and where their output goes."""

import contextlib
import itertools
import json
import logging
import os
import re
import shlex
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer
from tqdm import tqdm
from typer.core import TyperCommand

from mdgraph import __version__
from mdgraph.ensembles import ENSEMBLES
from mdgraph.errors import (
    InputError,
    LostRankError,
    errors_logged_alone,
    old_name,
    printable,
)
from mdgraph.io.files import disk_failures, refuse_existing, write_atomically
from mdgraph.processes import (
    end_with_launcher,
    keep_workspaces_small,
    launch,
    launched_devices,
)
from mdgraph.runs import data_commands, training, validation
from mdgraph.runs.analyse.free_energy_command import free_energy
from mdgraph.runs.config import (
    BenchConfig,
    Configuration,
    EvalConfig,
    MDConfig,
    MinimizeConfig,
    RelaxConfig,
    RunConfig,
)
from mdgraph.runs.config_fields import Group, replicas_text
from mdgraph.runs.config_files import option_flag
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
from mdgraph.signals import Interrupted, import_torch, signals_ignored, unfinished_status

logger = logging.getLogger(__name__)

if TYPE_CHECKING:
    from mdgraph.runs.md import RunOutcome
    from mdgraph.runs.protocol import FinishedRun
    from mdgraph.train.config import TrainConfig

Resume = Annotated[
    bool,
    typer.Option(
        "--resume",
        help="Go on with the run in --out, to the same bits. For new conditions begin another run "
        "from its end, 'mdgraph md --from RUN --temperature-K 350 --out NEW', or from a frame of "
        "it, 'mdgraph md RUN/trajectory.h5md@-1'.",
    ),
]
From = Annotated[
    Path | None,
    typer.Option(
        "--from",
        metavar="RUN",
        help="Begin where the finished run in this folder ended, with its options; those given "
        "here replace them.",
        show_default=False,
        rich_help_panel=Group.STRUCTURE,
    ),
]
UntilPs = Annotated[
    float | None,
    typer.Option(
        "--until-ps",
        min=0.0,
        help="With --resume: length of the whole run, what is done included, so that the command "
        "can be repeated.",
        show_default=False,
        rich_help_panel=Group.ENSEMBLE,
    ),
]
ExtendPs = Annotated[
    float | None,
    typer.Option(
        "--extend-ps",
        min=0.0,
        help="With --resume: length to add to a run that is finished.",
        show_default=False,
        rich_help_panel=Group.ENSEMBLE,
    ),
]
ResumeOrStart = Annotated[
    bool,
    typer.Option(
        "--resume-or-start",
        help="Go on with the run in --out, which must have begun with the same options; start it "
        "if there is none yet.",
        rich_help_panel=Group.OUTPUT,
    ),
]
RankDevices = Annotated[
    str | None,
    typer.Option(
        "--devices",
        help="Start a process for each of these devices, which share the replicas or the domains "
        "of the run: all, which is every GPU, or several such as cuda:0,cuda:1 or cpu,cpu.",
        show_default=False,
        rich_help_panel=Group.SPEED,
    ),
]
FrameInterval = Annotated[
    float | None,
    typer.Option(
        "--frame-interval-fs",
        help="Time between frames of a .traj of ASE, which has no times.",
        show_default=False,
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
    with _uninterrupted(outcome):
        typer.echo(f"{text}.")
        _say_where("md", outcome)


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
    with _uninterrupted(outcome):
        typer.echo(
            f"{subject} is reached after {outcome.steps} steps; the largest force is "
            f"{outcome.largest_force:.3g} eV/A."
        )
        _say_where("minimise", outcome)


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

    with _said_once():
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
            configuration, _ = _beginning(kind, config, given, from_run)
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

    with _said_once():
        options = given_options(options, kind)
        if resume and (resume_or_start or from_run is not None):
            other = "--resume-or-start" if resume_or_start else "--from, which begins another run,"
            raise InputError(f"--resume and {other} are given; give one.")
        if resume:
            fixed = sorted(set(options) - dynamics.RESUME_KEYS) + ["config"] * (config is not None)
            if fixed:
                raise InputError(_changed_on_resume(kind, fixed, options))
        configuration, ended = _beginning(kind, config, options, from_run)
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


def _beginning(
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


def _changed_on_resume(kind: type[RunConfig], names: list[str], options: dict[str, Any]) -> str:
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
def _said_once() -> Iterator[None]:
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
        if not (found := way_on()):
            raise
        raise LostRankError(f"{error} {found}") from error
    except Interrupted as error:
        from mdgraph.runs.md import holds_run

        if holds_run(folder):
            error.add_note(f"go on with: {again}")
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
def _uninterrupted(outcome: "RunOutcome") -> Iterator[None]:
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


def _say_where(command: str, outcome: "RunOutcome") -> None:
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
            _say_next(outcome)
        return
    again = _again(command, folder, outcome.ranks)
    typer.echo(f"Stopped by {_reason(outcome.signal, outcome)}; go on with: {again}")
    raise typer.Exit(unfinished_status(outcome.signal))


def _say_next(outcome: "RunOutcome") -> None:
    """Prints the commands that make a run longer, and that start one from its end."""
    folder = outcome.directory
    longer = f"{outcome.time_ps or 1.0:.4g}"
    typer.echo(
        printable(f"To go on: {_again('md', folder.path, outcome.ranks)} --extend-ps {longer}")
    )
    if outcome.ranks > 1:
        return  # each may have a record of its own
    configuration = folder.read_record()["configuration"]
    if configuration["temperatures_K"] is None:
        kelvin = 300 if configuration["temperature_K"] == 350.0 else 350
        change = f"--temperature-K {kelvin}"
        if not ENSEMBLES[configuration["ensemble"]].bath:
            change = f"--ensemble nvt-langevin {change}"
        run, new = (shlex.quote(str(path)) for path in (folder.path, _unused(folder.path)))
        typer.echo(printable(f"New conditions: mdgraph md --from {run} {change} --out {new}"))


def _unused(folder: Path) -> Path:
    """A path beside a folder at which there is nothing."""
    name = re.sub(r"-\d\Z", "", folder.resolve().name)
    numbers = itertools.count(2)
    return next(
        path for number in numbers if not (path := folder.parent / f"{name}-{number}").exists()
    )


def _reason(number: signal.Signals, outcome: "RunOutcome") -> str:
    return "max_hours" if outcome.out_of_time else number.name


def trajectory(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN... OUT",
            help="Folders of runs, or trajectories as .h5md, .extxyz or .traj, which are joined; "
            "the file to write: .extxyz, .traj, .h5md, .dcd or .xtc.",
        ),
    ],
    first: Annotated[
        int, typer.Option(help="First frame, from 0 on; negative numbers count from the end.")
    ] = 0,
    last: Annotated[int, typer.Option(help="Last frame, which is written too.")] = -1,
    stride: Annotated[int, typer.Option(min=1, help="Write every so many frames.")] = 1,
    select: Annotated[
        str | None,
        typer.Option(
            help="Atoms to write, in the first frame: 'element O', 'resname LIG', 0-5.",
            show_default=False,
        ),
    ] = None,
    whole: Annotated[
        bool, typer.Option("--whole", help="Put molecules together that the cell's faces cut.")
    ] = False,
    wrap: Annotated[
        bool,
        typer.Option("--wrap", help="Put atoms into the cell; with --whole, molecules by centre."),
    ] = False,
    frame_interval: FrameInterval = None,
    overwrite: Overwrite = False,
) -> None:
    """Convert, join and cut trajectories, for ASE, MDAnalysis, VMD, GROMACS and others."""
    from mdgraph.io.conversion import JoinedTrajectory, convert_trajectory, topology_beside
    from mdgraph.io.conversion import check_target as check_writable
    from mdgraph.runs.folder import trajectory_file
    from mdgraph.selection import select_atoms

    *runs, target = files
    if not runs:
        raise InputError("One path is given; give the runs to read, then the file to write.")
    sources = [trajectory_file(run) for run in runs]
    check_writable(target, sources, overwrite=overwrite)
    with JoinedTrajectory(sources, frame_interval) as joined:
        system = joined.system(0)
        atoms = None if select is None else select_atoms(select, system)
        start, end, count = convert_trajectory(
            joined,
            target,
            first=first,
            last=last,
            stride=stride,
            atoms=atoms,
            whole=whole,
            wrap=wrap,
            overwrite=overwrite,
        )
    size, topology = len(start.positions), topology_beside(target)
    times = f"{1e-3 * start.time_fs:.6g} to {1e-3 * end.time_fs:.6g} ps"
    names = f", names of atoms to {topology}" if topology is not None else ""
    typer.echo(
        printable(
            f"{count} frame{'s' * (count != 1)} of {size} atom{'s' * (size != 1)}, {times}, "
            f"written to {target}{names}"
        )
    )


def analyse(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...",
            help="Folders of runs, or trajectories as .h5md, .extxyz or .traj, which are joined.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="New folder for report.html and tables.")] = Path(
        "mdgraph-analysis"
    ),
    only: Annotated[
        str | None,
        typer.Option(
            help="Some of energies, density, rdf, msd, vacf, spectrum, bonds, angles, rmsd, as in "
            "rdf,msd; without it, all that the frames permit.",
            show_default=False,
        ),
    ] = None,
    select: Annotated[
        str | None,
        typer.Option(
            help="Atoms to analyse, in the first frame: 'element O', 'resname LIG', 0-5.",
            show_default=False,
        ),
    ] = None,
    first: Annotated[
        int, typer.Option(help="First frame, from 0 on; negative numbers count from the end.")
    ] = 0,
    last: Annotated[int, typer.Option(help="Last frame, which is analysed too.")] = -1,
    stride: Annotated[int, typer.Option(min=1, help="Analyse every so many frames.")] = 1,
    rdf_range: Annotated[
        float | None,
        typer.Option(
            "--rdf-range-A",
            help="Longest distance of rdf; without it, half of the cell, but at most 10 A.",
            show_default=False,
        ),
    ] = None,
    rdf_bins: Annotated[
        int | None,
        typer.Option(
            "--rdf-bins",
            min=1,
            max=100_000,
            help="Number of bins of rdf; without it, bins are 0.05 A wide.",
            show_default=False,
        ),
    ] = None,
    window: Annotated[
        int | None,
        typer.Option(
            min=2,
            help="Lags of msd and vacf, in frames; without it, a tenth of the frames for msd, and "
            "2 ps for vacf and spectrum.",
            show_default=False,
        ),
    ] = None,
    spacing: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Frames from one time origin to the next, a divisor of --window.",
            show_default=False,
        ),
    ] = None,
    frame_interval: FrameInterval = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the analysis in --out.")
    ] = False,
) -> None:
    """Analyse trajectories: structure, diffusion, spectrum and averages, as a page and CSV."""
    from mdgraph.runs.analyse.report import AnalysisOptions, words_of
    from mdgraph.runs.analyse.report import analyse as write_analysis

    options = AnalysisOptions(
        only=None if only is None else words_of(only),
        select=select,
        first=first,
        last=last,
        stride=stride,
        rdf_range=rdf_range,
        rdf_bins=rdf_bins,
        window=window,
        spacing=spacing,
        frame_interval_fs=frame_interval,
    )
    typer.echo(printable(write_analysis(runs, out, options, overwrite=overwrite), 1000))


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
    from mdgraph.runs.protocol import read_protocol, run_protocol

    try:
        outcome = run_protocol(read_protocol(file, structure, out), out)
    except Interrupted as error:
        error.add_note("go on with the same command")
        error.status = unfinished_status(error.signal)
        raise
    if outcome is not None and outcome.signal is not None:
        typer.echo(
            f"Stopped by {_reason(outcome.signal, outcome)} in {outcome.directory.path}; "
            "go on with the same command."
        )
        raise typer.Exit(unfinished_status(outcome.signal))
    typer.echo(printable(f"All stages are finished, in {out}{'/' * (out != Path())}"))


Layout = Annotated[
    Literal["auto", "before-3.0", "3.0"],
    typer.Option(help="Side of release 3.0 of TorchMD-Net or MatGL that wrote the potential."),
]


def convert(
    source: Annotated[str, potential_argument("IN")],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="A new .safetensors file.")],
    layout: Layout = "auto",
    add: AddedTerms = None,
    force: Force = False,
    coulomb_cutoff: Annotated[
        float | None, typer.Option("--coulomb-cutoff-A", help="Of a reaction field.")
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """Write a potential in mdgraph's own format, with --add as a sum."""
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
    """Say what a potential is, and what was assumed."""
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
            help="Without it, all are listed.",
            show_default=False,
            autocompletion=completion(lambda: EXAMPLES),
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of the files (default: the name).", show_default=False),
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """Write structures and files of options to try mdgraph with."""
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
    potential: Annotated[Path, typer.Argument(metavar="FOLDER", help="Of the potential.")],
    data: Annotated[Path, typer.Argument(metavar="DATA.h5", help="What it was trained on.")],
    split: Annotated[Path, typer.Argument(metavar="SPLIT.json", help="Parts it was trained with.")],
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    overwrite: Overwrite = False,
) -> None:
    """Measure what a potential was trained on: for md to monitor, and for its uncertainty.

    Trainings do so at their end; this is for a potential that comes without its domain, or with
    that of other weights. Writes domain.safetensors into its folder, and into its metrics.json how
    well sigma fits.
    """
    from mdgraph.checkpoints import load, load_domain, save_domain
    from mdgraph.checkpoints.native import DOMAIN_FILE
    from mdgraph.data import open_dataset, read_split
    from mdgraph.devices import device_named
    from mdgraph.errors import CheckpointError, FileError, printable
    from mdgraph.models import SumPotential, check_species
    from mdgraph.train.baseline import open_differences, separated, write_differences
    from mdgraph.train.config import TrainConfig
    from mdgraph.train.domain import measured_domain
    from mdgraph.train.frames import FrameStore
    from mdgraph.train.report import agreement_text
    from mdgraph.train.setup import at_training_precision, chosen_parts, trainable

    if not (potential / FILE_NAME).is_file():
        raise FileError(
            f"{potential} is no folder with a {FILE_NAME}; give the folder that a training wrote."
        )
    with contextlib.suppress(CheckpointError):  # a damaged domain may be replaced
        if load_domain(potential) is not None:
            refuse_existing(potential / DOMAIN_FILE, overwrite=overwrite, option=True)
    config = TrainConfig(data=str(data), out=str(potential), steps=1, device=device)
    loaded, baseline, place = load(potential / FILE_NAME), None, device_named(device)
    if isinstance(loaded, SumPotential):
        loaded, baseline = separated(loaded, str(potential))
    model = trainable(loaded, str(potential))
    at_training_precision(model, config)
    model.to(place)
    with contextlib.ExitStack() as stack:
        labels = fitted = stack.enter_context(open_dataset(data))
        check_species(model.species, labels.numbers().tolist())
        parts = chosen_parts(labels, read_split(split, labels), False)
        if baseline is not None:
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            differences = Path(folder) / "differences.h5"
            write_differences(differences, labels, baseline, place)
            fitted = stack.enter_context(open_differences(differences, labels, baseline))
        store = FrameStore(fitted, parts.every, parts.train, model, config)
        new_domain, fits = measured_domain(model, store, fitted, parts, labels=labels)
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
        Path | None, typer.Option(metavar="FILE", help="The atoms; their order is that of OpenMM.")
    ] = None,
    forces: Annotated[
        bool, typer.Option("--forces", help="Give forces too, for setOutputsForces(True).")
    ] = False,
    charge: Annotated[float | None, typer.Option(help="Total charge, e.")] = None,
    add: AddedTerms = None,
    force: Force = False,
    coulomb_cutoff: Annotated[
        float | None, typer.Option("--coulomb-cutoff-A", help="Of the reaction field.")
    ] = None,
    precision: Annotated[
        Literal["mixed", "single", "double"], typer.Option(help="Of the network.")
    ] = "mixed",
    device: Annotated[str, typer.Option(help="Where it will run; a GPU for CUDA.")] = "cpu",
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


def _say_version(show: bool) -> None:
    if show:
        typer.echo(f"mdgraph {__version__}")
        raise typer.Exit


def _common(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_say_version, is_eager=True, help="Show the version."),
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
    frames, out = counts.frames, f"{configuration.out}{_held(counts.held)}"
    typer.echo(printable(f"{frames} frame{'s' * (frames != 1)} written to {out}"))


@options_of(RelaxConfig)
def relax(config: ConfigFile = None, **options: Any) -> None:
    """Move many structures at once to minima of the energy, and write these."""
    import_torch()
    from mdgraph.runs.config_files import read_configuration
    from mdgraph.runs.evaluation import relax_frames

    configuration = read_configuration(RelaxConfig, config, given_options(options, RelaxConfig))
    counts = relax_frames(configuration)
    minima = f"{counts.converged} of {counts.frames} minima found"
    out = f"{configuration.out}{_held(counts.held)}"
    typer.echo(printable(f"{minima}, written to {out}"))


def _held(frames: int) -> str:
    """Words about frames that a file held before."""
    return f" after the {frames} that it held" if frames else ""


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
    help="Molecular dynamics with TensorNet potentials. COMMAND -h shows what a command takes; "
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
app.add_typer(data_commands.app, name="data", rich_help_panel="Train potentials")
