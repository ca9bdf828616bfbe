"""The options of the commands that look at results: `trajectory`, `analyse`, `free-energy`."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from mdgraph.errors import InputError, printable
from mdgraph.runs.options import Overwrite

FrameInterval = Annotated[
    float | None,
    typer.Option(
        "--frame-interval-fs",
        help="Time between frames of ASE's .traj files, which contain no times.",
        show_default=False,
    ),
]


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
    last: Annotated[int, typer.Option(help="Last frame to write.")] = -1,
    stride: Annotated[int, typer.Option(min=1, help="Write every STRIDE-th frame.")] = 1,
    select: Annotated[
        str | None,
        typer.Option(
            help="Atoms to write, selected in the first frame: 'element O', 'resname LIG', 0-5.",
            show_default=False,
        ),
    ] = None,
    whole: Annotated[
        bool, typer.Option("--whole", help="Join molecules that are cut by faces of the cell.")
    ] = False,
    wrap: Annotated[
        bool,
        typer.Option("--wrap", help="Move atoms into the cell; with --whole, whole molecules."),
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
            help="Any of energies, density, rdf, msd, vacf, spectrum, bonds, angles and rmsd, such "
            "as rdf,msd; by default all that the frames permit.",
            show_default=False,
        ),
    ] = None,
    select: Annotated[
        str | None,
        typer.Option(
            help="Atoms to analyse, selected in the first frame: 'element O', 'resname LIG', 0-5.",
            show_default=False,
        ),
    ] = None,
    first: Annotated[
        int, typer.Option(help="First frame, from 0 on; negative numbers count from the end.")
    ] = 0,
    last: Annotated[int, typer.Option(help="Last frame to analyse.")] = -1,
    stride: Annotated[int, typer.Option(min=1, help="Analyse every STRIDE-th frame.")] = 1,
    rdf_range: Annotated[
        float | None,
        typer.Option(
            "--rdf-range-A",
            help="Longest distance of rdf; by default half of the cell, but at most 10 A.",
            show_default=False,
        ),
    ] = None,
    rdf_bins: Annotated[
        int | None,
        typer.Option(
            "--rdf-bins",
            min=1,
            max=100_000,
            help="Number of bins of rdf; by default bins are 0.05 A wide.",
            show_default=False,
        ),
    ] = None,
    window: Annotated[
        int | None,
        typer.Option(
            min=2,
            help="Longest lag of msd and vacf, in frames; by default a tenth of the frames for "
            "msd, and 2 ps for vacf and spectrum.",
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


def _numbers(text: str, option: str) -> list[list[float]]:
    """Numbers of `-1.5:1.5,0:3`; raises InputError."""
    try:
        return [[float(word) for word in part.split(":")] for part in text.split(",")]
    except ValueError as error:
        raise InputError(
            f"{option} is {printable(text, 100)}; it should be numbers, as in -1.5:1.5."
        ) from error


def _ranges(text: str, option: str) -> tuple[tuple[float, float], ...]:
    """Pairs of ascending numbers; raises InputError."""
    ranges = _numbers(text, option)
    if any(len(one) != 2 or not one[0] < one[1] for one in ranges):
        raise InputError(
            f"{option} is {printable(text, 100)}; give a lower and a higher number, as in -1.5:1.5."
        )
    return tuple((one[0], one[1]) for one in ranges)


def _bins(text: str) -> tuple[int, ...]:
    """Numbers of bins; raises InputError."""
    bins = [one[0] for one in _numbers(text, "--bins")]
    if any(one != int(one) or not 2 <= one <= 2000 for one in bins):
        raise InputError(
            f"--bins is {printable(text, 100)}; give whole numbers from 2 to 2000, as in 72."
        )
    return tuple(int(one) for one in bins)


def free_energy(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="RUN...",
            help="Folders of runs with variables, such as umbrella windows or walkers; or COLVAR "
            "and HILLS files of PLUMED.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="New folder for table, numbers and picture.")] = Path(
        "mdgraph-free-energy"
    ),
    along: Annotated[
        str | None,
        typer.Option(
            help="One or two variables of COLVAR, such as phi or phi,psi; by default those that "
            "were biased.",
            show_default=False,
        ),
    ] = None,
    method: Annotated[
        Literal["auto", "mbar", "hills", "reweight", "histogram"],
        typer.Option(
            help="mbar combines umbrella windows, hills sums the hills of metadynamics, reweight "
            "weights samples by their bias, histogram is for runs without bias."
        ),
    ] = "auto",
    unit: Annotated[
        Literal["kJ/mol", "kcal/mol", "eV", "kT"], typer.Option(help="Unit of energies.")
    ] = "kJ/mol",
    discard: Annotated[
        float | None,
        typer.Option(
            "--discard-ps",
            min=0.0,
            help="Time to leave out at the start of each run; by default the time before "
            "equilibrium, and a tenth of metadynamics.",
            show_default=False,
        ),
    ] = None,
    bins: Annotated[
        str | None,
        typer.Option(
            help="Number of bins of each variable, such as 72 or 36,36; by default 60 for one "
            "variable (72 if it is periodic) and 36 for each of two.",
            show_default=False,
        ),
    ] = None,
    limits: Annotated[
        str | None,
        typer.Option(
            "--range",
            help="Lowest and highest value of each variable in the unit of COLVAR, such as 0.2:0.6 "
            "or -3:3,0:1; by default the range of the samples.",
            show_default=False,
        ),
    ] = None,
    ends: Annotated[
        str | None,
        typer.Option(
            help="Values of the first variable between which round trips are counted, such as "
            "0.3:1; by default the values beyond which 5 % of the samples lie, or, for an angle, a "
            "quarter and three quarters of a turn.",
            show_default=False,
        ),
    ] = None,
    radial: Annotated[
        bool,
        typer.Option("--radial", help="Add 2 kT ln r along a distance r: a free pair is flat."),
    ] = False,
    temperature: Annotated[
        float | None,
        typer.Option(
            "--temperature-K",
            min=0.1,
            help="Temperature of files of other programs; runs of mdgraph record theirs.",
            show_default=False,
        ),
    ] = None,
    hills: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="HILLS",
            help="HILLS file, if it is not beside COLVAR; repeat it for each walker.",
            show_default=False,
        ),
    ] = None,
    windows: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Umbrella windows of another program: a table with the header '#! FIELDS file phi "
            "kappa_phi' and a row for each window with its COLVAR, centre and force constant "
            "(kJ/mol per unit squared).",
            show_default=False,
        ),
    ] = None,
    resamples: Annotated[
        int, typer.Option(min=0, max=10_000, help="Samples of the bootstrap for errors.")
    ] = 100,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the bootstrap.")] = 0,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the profile in --out.")
    ] = False,
) -> None:
    """Make free energy profiles of umbrella windows, metadynamics or unbiased runs."""
    from mdgraph.runs.analyse.free_energy import free_energy as write_profile
    from mdgraph.runs.analyse.profiles import FreeEnergyOptions

    if not runs and windows is None:
        raise InputError("Give the folders of runs, a COLVAR or HILLS, or --windows FILE.")
    pairs = None if ends is None else _ranges(ends, "--ends")
    if pairs is not None and len(pairs) > 1:
        raise InputError("--ends are two values of the first variable; give one pair.")
    names = None if along is None else tuple(filter(None, map(str.strip, along.split(","))))
    options = FreeEnergyOptions(
        along=names or None,
        method=None if method == "auto" else method,
        temperature=temperature,
        hills=tuple(hills or ()),
        windows=windows,
        discard_ps=discard,
        bins=None if bins is None else _bins(bins),
        ranges=None if limits is None else _ranges(limits, "--range"),
        ends=None if pairs is None else pairs[0],
        radial=radial,
        unit=unit,
        resamples=resamples,
        seed=seed,
    )
    for line in write_profile(runs or (), out, options, overwrite=overwrite):
        typer.echo(line)
