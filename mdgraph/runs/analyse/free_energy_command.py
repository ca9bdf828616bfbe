"""The options of `mdgraph free-energy`."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from mdgraph.errors import InputError, printable


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
            help="One or two variables of COLVAR, as in phi or phi,psi; without it, those that "
            "were biased.",
            show_default=False,
        ),
    ] = None,
    method: Annotated[
        Literal["auto", "mbar", "hills", "reweight", "histogram"],
        typer.Option(
            help="mbar joins umbrella windows, hills adds those of metadynamics, reweight weights "
            "samples by their bias, histogram is for runs without bias."
        ),
    ] = "auto",
    unit: Annotated[
        Literal["kJ/mol", "kcal/mol", "eV", "kT"], typer.Option(help="Of energies.")
    ] = "kJ/mol",
    discard: Annotated[
        float | None,
        typer.Option(
            "--discard-ps",
            min=0.0,
            help="Leave out this much at the start of each run; without it, what comes before "
            "equilibrium, and a tenth of metadynamics.",
            show_default=False,
        ),
    ] = None,
    bins: Annotated[
        str | None,
        typer.Option(
            help="Number of bins of each variable, as in 72 or 36,36; without it, 60 of one "
            "variable (72 of a periodic one) and 36 of each of two.",
            show_default=False,
        ),
    ] = None,
    limits: Annotated[
        str | None,
        typer.Option(
            "--range",
            help="Lowest and highest value of each variable in the unit of COLVAR, as in 0.2:0.6 "
            "or -3:3,0:1; without it, that of the samples.",
            show_default=False,
        ),
    ] = None,
    ends: Annotated[
        str | None,
        typer.Option(
            help="Values of the first variable between which round trips are counted, as in 0.3:1; "
            "without it, those that 5 % of the samples lie beyond, or a quarter and three quarters "
            "of a turn.",
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
            help="Of files of other programs; runs of mdgraph tell theirs.",
            show_default=False,
        ),
    ] = None,
    hills: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="HILLS",
            help="Hills of COLVAR files that lie elsewhere; give it once for each walker.",
            show_default=False,
        ),
    ] = None,
    windows: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Umbrella windows of another program: below '#! FIELDS file phi kappa_phi', a row "
            "for each has its COLVAR, centre and force constant (kJ/mol by unit squared).",
            show_default=False,
        ),
    ] = None,
    resamples: Annotated[
        int, typer.Option(min=0, max=10_000, help="Of the bootstrap that gives errors.")
    ] = 100,
    seed: Annotated[int, typer.Option(min=0, help="Of the bootstrap.")] = 0,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the profile in --out.")
    ] = False,
) -> None:
    """Make free energy profiles of umbrella windows, metadynamics or unbiased runs."""
    from mdgraph.runs.analyse.free_energy import FreeEnergyOptions
    from mdgraph.runs.analyse.free_energy import free_energy as write_profile

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
