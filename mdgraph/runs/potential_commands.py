"""The commands that write, describe and list potentials."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from mdgraph.errors import printable
from mdgraph.io.files import refuse_existing
from mdgraph.runs.options import Overwrite

Layout = Annotated[
    Literal["auto", "before-3.0", "3.0"],
    typer.Option(help="Side of release 3.0 of TorchMD-Net or MatGL that wrote the potential."),
]


def convert(
    source: Annotated[str, typer.Argument(metavar="IN", help="File, folder or shipped name.")],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="A new .safetensors file.")],
    layout: Layout = "auto",
    overwrite: Overwrite = False,
) -> None:
    """Write a potential in mdgraph's own format."""
    from mdgraph.checkpoints import convert, load_domain

    refuse_existing(target, overwrite=overwrite, option=True)
    convert(source, target, layout=layout, overwrite=overwrite)
    typer.echo(printable(f"{source} written to {target}"))
    if load_domain(source) is not None:
        typer.echo("Runs with that file are not watched: what it was trained on is not in it.")


def inspect_potential(
    source: Annotated[str, typer.Argument(metavar="PATH", help="File, folder or shipped name.")],
    layout: Layout = "auto",
) -> None:
    """Say what a potential is, and what was assumed."""
    from mdgraph.checkpoints import describe, load_domain

    about = describe(source, layout=layout)
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
        separator = " " if all(len(one) < 3 for one in value) else "; "
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
