"""The command `mdgraph export`."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from mdgraph.errors import InputError, printable
from mdgraph.io.files import refuse_existing
from mdgraph.runs.options import Overwrite


def export(
    potential: Annotated[str, typer.Argument(metavar="POTENTIAL", help="Path or shipped name.")],
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
    coulomb_cutoff: Annotated[
        float | None, typer.Option("--coulomb-cutoff-A", help="Of the reaction field.")
    ] = None,
    precision: Annotated[
        Literal["mixed", "single", "double"], typer.Option(help="Of the network.")
    ] = "mixed",
    device: Annotated[str, typer.Option(help="Where it will run; a GPU for CUDA.")] = "cpu",
    overwrite: Overwrite = False,
) -> None:
    """Writes a potential for another program."""
    # Imported here, so that the command line starts fast.
    from mdgraph.checkpoints import load
    from mdgraph.drivers.torchforce import export_torchforce
    from mdgraph.io.structures import read_system

    if not torchforce or structure is None:
        raise InputError(
            "Say what to write, and for which atoms: --torchforce --structure FILE, with the atoms "
            "in OpenMM's order."
        )
    refuse_existing(target, overwrite=overwrite, option=True)
    loaded = load(potential)
    if coulomb_cutoff is not None:
        loaded = loaded.with_coulomb_cutoff(coulomb_cutoff)
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
