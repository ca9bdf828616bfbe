"""The command `mdgraph domain`: measures what a potential was trained on, after its training."""

import contextlib
import json
from pathlib import Path
from typing import Annotated

import typer

from mdgraph.io.files import disk_failures, refuse_existing, write_atomically
from mdgraph.runs.options import Overwrite


def domain(
    potential: Annotated[Path, typer.Argument(metavar="FOLDER", help="Of the potential.")],
    data: Annotated[Path, typer.Argument(metavar="DATA.h5", help="What it was trained on.")],
    split: Annotated[Path, typer.Argument(metavar="SPLIT.json", help="Parts it was trained with.")],
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    overwrite: Overwrite = False,
) -> None:
    """Measure what a potential was trained on: for the watch of md, and for its uncertainty.

    Trainings do so at their end; this is for a potential that comes without its domain, or with
    that of other weights. Writes domain.safetensors into its folder, and into its metrics.json how
    well sigma fits.
    """
    from mdgraph.checkpoints import load, load_domain, save_domain
    from mdgraph.checkpoints.domain import DOMAIN_FILE
    from mdgraph.checkpoints.native import FILE_NAME
    from mdgraph.data import open_dataset, read_split
    from mdgraph.devices import device_named
    from mdgraph.errors import CheckpointError, FileError, printable
    from mdgraph.models import check_species
    from mdgraph.train.configuration import TrainConfig
    from mdgraph.train.domain import measured_domain
    from mdgraph.train.frames import FrameStore
    from mdgraph.train.report import agreement_text
    from mdgraph.train.start import at_training_precision, chosen_parts

    if not (potential / FILE_NAME).is_file():
        raise FileError(
            f"{potential} is no folder with a {FILE_NAME}; give the folder that a training wrote."
        )
    with contextlib.suppress(CheckpointError):  # a domain that is damaged serves nobody
        if load_domain(potential) is not None:
            refuse_existing(potential / DOMAIN_FILE, overwrite=overwrite, option=True)
    config = TrainConfig(data=str(data), out=str(potential), steps=1, device=device)
    model = load(potential / FILE_NAME)
    at_training_precision(model, config)
    model.to(device_named(device))
    with open_dataset(data) as dataset:
        check_species(model.species, dataset.numbers().tolist())
        parts = chosen_parts(dataset, read_split(split, dataset), False)
        store = FrameStore(dataset, parts.every, parts.train, model, config)
        found, fits = measured_domain(model, store, dataset, parts)
    save_domain(found, potential, overwrite=True)
    metrics = potential / "metrics.json"
    if metrics.exists():
        with disk_failures(metrics, "read"):
            values = json.loads(metrics.read_text(encoding="utf-8"))
        text = json.dumps(values | {"uncertainty": fits}, indent=1) + "\n"
        write_atomically(metrics, lambda path: path.write_text(text, encoding="utf-8"))
    for line in [*found.lines(), *(agreement_text(name, fit) for name, fit in fits.items())]:
        typer.echo(printable(line))
