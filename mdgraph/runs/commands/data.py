"""The commands `mdgraph data ...`, and the options of all commands that import labelled frames."""

import inspect as signatures
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from mdgraph.errors import InputError, printable
from mdgraph.io.files import refuse_existing, write_atomically
from mdgraph.runs.config_fields import Group
from mdgraph.runs.options import GroupedCommand, Overwrite

if TYPE_CHECKING:
    from mdgraph.data.dataset import LabelledFrame, Provenance
    from mdgraph.data.splits import Split

PICTURES: Final = (".png", ".pdf", ".svg")

app = typer.Typer(
    help="Data sets to train on: import, look at, split and check them.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


def _label_option(text: str) -> Any:
    return typer.Option(help=text, rich_help_panel=Group.LABELS)


DataFile = Annotated[Path, typer.Argument(metavar="DATA.h5", help="Data set of mdgraph.")]
Part = Annotated[float, typer.Option(min=0.0, help="Share below 1, else number of frames.")]
Key = Annotated[str | None, _label_option("Name of this label in the file; none leaves it out.")]


def _import_options(
    energy_key: Key = None,
    forces_key: Key = None,
    stress_key: Key = None,
    dipole_key: Key = None,
    charge_key: Key = None,
    group_key: Key = None,
    weight_key: Key = None,
    energy_unit: Annotated[str, _label_option("Unit of energies in the file.")] = "eV",
    length_unit: Annotated[str, _label_option("Unit of positions in the file.")] = "A",
    force_unit: Annotated[
        str | None,
        _label_option("Unit of forces in the file, such as hartree/bohr."),
    ] = None,
    stress_unit: Annotated[
        str | None,
        _label_option("Unit of stresses in the file: GPa, kbar or eV/A^3."),
    ] = None,
    dipole_unit: Annotated[
        str | None,
        _label_option("Unit of dipoles in the file: debye, e*A or e*bohr."),
    ] = None,
    missing: Annotated[
        Literal["refuse", "drop", "keep"],
        _label_option("What to do with frames that lack a label which others have."),
    ] = "refuse",
    level_of_theory: Annotated[str, _label_option("Level of theory to record.")] = "",
    licence: Annotated[str, _label_option("Licence of the data to record.")] = "",
) -> None:
    """The options by which labelled frames are imported, as a signature."""


def with_import_options(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command the options of imports; it takes them as keyword arguments."""
    own = [
        parameter
        for parameter in signatures.signature(command).parameters.values()
        if parameter.kind is not parameter.VAR_KEYWORD
    ]
    shared = signatures.signature(_import_options).parameters.values()
    signature = signatures.Signature([*own, *shared])
    command.__signature__ = signature  # type: ignore[attr-defined]
    return command


def import_frames(
    files: Sequence[Path],
    *,
    missing: Literal["refuse", "drop", "keep"],
    level_of_theory: str,
    licence: str,
    **names: str | None,
) -> "Iterable[tuple[Iterable[LabelledFrame], Provenance]]":
    """The frames of files and where they are from, by the options of `with_import_options`.

    Raises:
        InputError: an unknown unit; as frames are read, what is wrong with them.
        FileError: a file that cannot be read, once its frames are read.
    """
    from mdgraph.data.importing import import_file
    from mdgraph.data.keys import Keys, Request, Units

    labels = ("energy", "forces", "stress", "dipole", "charge", "group", "weight")
    keys = Keys(**{label: names[f"{label}_key"] for label in labels})
    units = Units(
        names["energy_unit"] or "",
        names["length_unit"] or "",
        names["force_unit"],
        names["stress_unit"],
        names["dipole_unit"],
    )
    request = Request(keys, units, missing)
    return (
        import_file(path, request, level_of_theory=level_of_theory, licence=licence)
        for path in files
    )


@app.command(cls=GroupedCommand)
@with_import_options
def convert(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILES... DATA.h5", help="Files to import; the data set to write."),
    ],
    append: Annotated[bool, typer.Option("--append", help="Add to a data set.")] = False,
    overwrite: Overwrite = False,
    **options: Any,
) -> None:
    """Import extended XYZ, ASE databases, .npz, or HDF5 of SPICE, ANI-1x or TorchMD-Net."""
    from mdgraph.data import write_dataset

    *sources, target = files
    if not sources:
        raise InputError("One file is given; give the files to import, then the data set to write.")
    if target.suffix != ".h5":
        raise InputError(f"A data set is written as HDF5, not as '{target.name}'; end it in .h5.")
    if append and overwrite:
        raise InputError("--append keeps what --overwrite replaces; give one of them.")
    if not append:
        refuse_existing(target, overwrite=overwrite, option=True)
    parts = import_frames(sources, **options)
    frames = write_dataset(target, parts, append=append, overwrite=overwrite)
    typer.echo(printable(f"{frames} frame{'s' * (frames != 1)} written to {target}"))


@app.command()
def inspect(
    file: DataFile,
    picture: Annotated[
        Path | None, typer.Option(help="Draw distributions to a .png, .pdf or .svg.")
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """Summarise a data set: counts, elements, energies, forces, sources."""
    from mdgraph.data import open_dataset
    from mdgraph.data.dataset import summarize

    if picture is not None and picture.suffix not in PICTURES:
        raise InputError(f"Pictures are {', '.join(PICTURES)} files, not '{picture.name}'.")
    if picture is not None:
        refuse_existing(picture, overwrite=overwrite, option=True)
    with open_dataset(file) as dataset:
        summary = summarize(dataset)
        for line in summary.lines():
            typer.echo(printable(line))
        for source in dataset.sources:
            theory = source.level_of_theory or "level of theory not stated"
            licence = source.licence or "licence not stated"
            typer.echo(printable(f"source:    {source.file}, {theory}, {licence}"))
        typer.echo(f"sha256:    {dataset.sha256()}")
    if picture is not None:
        from mdgraph.analysis.plots_training import dataset_figure

        figure = dataset_figure(summary, file.name)
        kind = picture.suffix[1:]
        write_atomically(picture, lambda path: figure.savefig(path, format=kind), new=not overwrite)


_OF_ONE_METHOD: Final = {
    "blocks": "blocks",
    "shuffled": "blocks",
    "folds": "folds",
    "validation_file": "file",
    "test_file": "file",
}
"""Options of `split`, and the method that each belongs to."""


@app.command()
def split(
    context: typer.Context,
    file: DataFile,
    out: Annotated[Path, typer.Argument(metavar="SPLIT.json", help="Split to write.")],
    method: Annotated[
        Literal["random", "group", "together", "blocks", "file", "folds"],
        typer.Option(
            help="Frames at random, whole groups, whole trajectories (together), contiguous "
            "blocks, whole files, or k folds."
        ),
    ] = "random",
    validation: Annotated[
        float, typer.Option(min=0.0, help="Share below 1, else number of frames.")
    ] = 0.1,
    test: Annotated[
        float, typer.Option(min=0.0, help="Share below 1, else number of frames.")
    ] = 0.0,
    seed: Annotated[int, typer.Option(help="Seed of random choices.")] = 0,
    blocks: Annotated[int, typer.Option(min=1, help="Number of blocks, for method blocks.")] = 4,
    shuffled: Annotated[
        bool, typer.Option("--shuffled", help="For method blocks: find the order in time first.")
    ] = False,
    folds: Annotated[
        int, typer.Option(min=2, help="Number of folds, for method folds: SPLIT-1.json and so on.")
    ] = 5,
    validation_file: Annotated[
        list[str] | None, typer.Option(help="For method file: an imported file to validate on.")
    ] = None,
    test_file: Annotated[
        list[str] | None, typer.Option(help="For method file: an imported file to test on.")
    ] = None,
    overwrite: Overwrite = False,
) -> None:
    """Choose frames for training, validation and test; stored with the hash of the data."""
    from mdgraph.data import open_dataset, splits

    for option, owner in _OF_ONE_METHOD.items():
        source = context.get_parameter_source(option)
        if owner != method and source is not None and source.name == "COMMANDLINE":
            raise InputError(
                f"--{option.replace('_', '-')} belongs to the method {owner}, and the method is "
                f"{method}; leave it out, or give --method {owner}."
            )
    if method in ("blocks", "together") and test:
        raise InputError(f"The method {method} holds out validation alone; leave --test out.")
    paths = [out]
    if method == "folds":
        paths = [out.with_name(f"{out.stem}-{one}{out.suffix}") for one in range(1, folds + 1)]
    for path in paths:
        if path.exists() and file.exists() and path.samefile(file):
            raise InputError(f"{path} is the data set itself; give the split a name of its own.")
        refuse_existing(path, overwrite=overwrite, option=True)
    with open_dataset(file) as dataset:
        new_splits: list[Split]
        match method:
            case "random":
                new_splits = [splits.random_split(dataset, validation, test, seed)]
            case "group":
                new_splits = [splits.group_split(dataset, validation, test, seed)]
            case "together":
                trajectory = splits.trajectories(dataset)
                new_splits = [splits.together_split(dataset, trajectory, validation, seed)]
            case "blocks":
                new_splits = [splits.block_split(dataset, validation, blocks, shuffled)]
            case "file":
                chosen = validation_file or [], test_file or []
                new_splits = [splits.file_split(dataset, validation, test, *chosen, seed=seed)]
            case "folds":
                new_splits = splits.fold_splits(dataset, folds, test, seed)
    for path, one in zip(paths, new_splits, strict=True):
        splits.write_split(one, path, overwrite=overwrite)
        sizes = ", ".join(f"{len(frames)} {name}" for name, frames in one.parts())
        typer.echo(printable(f"{path}: {sizes} ({one.method})"))


@app.command()
def check(
    file: DataFile,
    split: Annotated[
        Path | None, typer.Option(help="Look for similar frames in different parts of this split.")
    ] = None,
    near: Annotated[
        float, typer.Option(min=0.0, help="Distance (A) below which frames count as the same.")
    ] = 0.01,
) -> None:
    """Look for duplicates and leakage, outliers, net forces, wrong units; status 1 if any."""
    from mdgraph.data import open_dataset, read_split
    from mdgraph.data.checks import check_dataset

    with open_dataset(file) as dataset:
        parts = None if split is None else read_split(split, dataset)
        findings = check_dataset(dataset, parts, near)
    for finding in findings:
        typer.echo(printable(f"{'wrong' if finding.wrong else 'note'}: {finding.text}"))
    if not findings:
        typer.echo("Nothing is wrong.")
    if any(finding.wrong for finding in findings):
        raise typer.Exit(1)
