"""`mdgraph validate`: checks of a potential, a line each, with a page of pictures and JSON."""

import json
import logging
from collections.abc import Generator, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import numpy as np
import typer

from mdgraph import __version__
from mdgraph.errors import (
    FileError,
    InputError,
    MDGraphError,
    errors_logged_alone,
    name_some,
    printable,
)
from mdgraph.io.files import check_folder, disk_failures, refuse_existing, write_atomically
from mdgraph.runs.commands.data import import_frames, with_import_options
from mdgraph.runs.options import Overwrite, potential_argument
from mdgraph.signals import import_torch
from mdgraph.units import SYMBOLS

if TYPE_CHECKING:
    from mdgraph.data import LabelledFrame
    from mdgraph.runs.potential import Source
    from mdgraph.system import System
    from mdgraph.validate.judge import Judge
    from mdgraph.validate.verdicts import Check

logger = logging.getLogger(__name__)

JSON_FILE: Final = "validation.json"
PAGE_FILE: Final = "validation.html"
LABELS_FILE: Final = "labels.extxyz"

AMBIENT: Final = 300.0
"""K, where no name tells the temperature of the data."""

SHORTEST_RUN: Final = 1.0
"""ps of a run of dynamics, of which half warms up: in less a bond that swings looks like a drift of
the energy, and no temperature is known."""

STRUCTURES: Final = (".extxyz", ".xyz")

SPARSE: Final = 100.0
"""A^3 an atom; periodic frames with more room are atoms in a box."""


@with_import_options
def validate(
    potential: Annotated[str, potential_argument("POTENTIAL")],
    data: Annotated[
        Path | None,
        typer.Argument(
            metavar="DATA",
            help="Labelled frames, preferably held out of training; by default the structure that "
            "comes with the potential.",
            show_default=False,
        ),
    ] = None,
    split: Annotated[
        Path | None,
        typer.Option(
            help="A split of DATA, which is a data set: use only its test (or else validation) "
            "frames."
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer points and frames.")] = False,
    out: Annotated[Path, typer.Option(help=f"Folder for {PAGE_FILE} and {JSON_FILE}.")] = Path(
        "mdgraph-validation"
    ),
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:N.")] = "auto",
    judge: Annotated[
        Literal["gfn2", "none"],
        typer.Option(help="Reference for energies of molecules: GFN2-xTB by tblite, or none."),
    ] = "gfn2",
    labels: Annotated[
        Path | None,
        typer.Option(
            help="Structures labelled at the potential's level of theory (eV, A), preferred to "
            f"GFN2-xTB as a reference; by default {LABELS_FILE} in the potential's folder.",
        ),
    ] = None,
    wanted: Annotated[
        Path | None,
        typer.Option(
            "--write-structures",
            help="File (.extxyz) to write structures to whose labels would settle findings "
            "reported as look or wrong.",
        ),
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(
            "--temperature-K",
            min=1.0,
            help="Temperature of the data; by default the highest in the names of groups and "
            "files, or 300.",
        ),
    ] = None,
    interval: Annotated[
        float | None,
        typer.Option(
            "--frame-interval-fs",
            help="Time between frames of DATA, if they are a trajectory of a liquid to compare "
            "with.",
        ),
    ] = None,
    picoseconds: Annotated[
        float | None,
        typer.Option(
            "--dynamics-ps",
            min=SHORTEST_RUN,
            max=1e6,
            help="Length of each run of dynamics; by default at most 10 ps, as time permits.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of displacements and velocities.")] = 0,
    overwrite: Overwrite = False,
    **options: Any,
) -> None:
    """Check a potential: errors, molecules, crystals, dynamics; status 1 if anything is wrong."""
    for name in (JSON_FILE, PAGE_FILE):
        refuse_existing(out / name, overwrite=overwrite, option=True)
    check_folder(out)
    if wanted is not None:
        if wanted.suffix not in STRUCTURES:
            raise InputError(
                f"Structures are written as extended XYZ, not as '{wanted.name}'; end it in "
                ".extxyz."
            )
        refuse_existing(wanted, overwrite=overwrite, option=True)
    # Imported here, so that the command line starts fast.
    import_torch()
    from mdgraph.devices import device_named, hardware_name
    from mdgraph.runs.config import Configuration
    from mdgraph.runs.potential import read_potential
    from mdgraph.train.recipes import temperatures_in
    from mdgraph.validate.page import page
    from mdgraph.validate.verdicts import Verdict, worst

    if interval is not None and (data is None or split is not None or not 0.0 < interval < np.inf):
        raise InputError(
            "--frame-interval-fs is a time above 0 between frames of DATA in their order; give "
            "DATA, and no --split."
        )
    if split is not None and data is None:
        raise InputError("--split chooses frames of DATA; give the data set before it.")
    source = read_potential(Configuration(potential=potential))
    part, training = "", []
    if data is None:
        frames = _start(source)
    elif split is None:
        frames = read_frames(data, options)
    else:
        frames, part = read_held_out(data, split)
        training = read_training(data, split)
    if temperature is None:
        names = [*dict.fromkeys(frame.group for frame in frames), "" if data is None else data.name]
        temperature = float(max(temperatures_in(names), default=AMBIENT))
    _check_known(source, frames)
    labelled = _labels_of(source, labels, frames)
    place = device_named(device)
    checks: list[Check] = []
    # What relaxes is in a check's sentence.
    with errors_logged_alone("mdgraph.engine"):
        for check in all_checks(
            source,
            frames,
            device=place,
            judge=judge,
            temperature=temperature,
            quick=quick,
            seed=seed,
            interval=interval,
            training=training,
            picoseconds=picoseconds,
            labels=labelled,
        ):
            checks.append(check)
            typer.echo(printable(f"{check.verdict:<5}  {check.name}: {check.sentence}"))
    verdict = worst(check.verdict for check in checks)
    about = {
        "potential": f"{source.name}, sha256 {source.sha256[:12]}",
        "level of theory": source.potential.config.level_of_theory or "not stated",
        "frames": f"{len(frames)} of {data.name}{part}" if data is not None else "its start",
        "judge of molecules": judge if labelled is None else f"labels of {labelled[0]}, {judge}",
        "temperature": f"{temperature:g} K",
        "extent": "quick" if quick else "full",
        "hardware": hardware_name(place),
        "date": str(datetime.now().astimezone().date()),
        "mdgraph": __version__,
    }
    text = json.dumps(
        {**about, "verdict": verdict.value, "checks": [check.as_json() for check in checks]},
        indent=1,
        allow_nan=False,
    )
    html = page(f"Validation of {source.name}", about, checks)
    with disk_failures(out, "make"):
        out.mkdir(parents=True, exist_ok=True)
    for name, content in ((JSON_FILE, f"{text}\n"), (PAGE_FILE, html)):
        _write(out / name, content, new=not overwrite)
    if wanted is not None:
        count = _write_structures(wanted, checks, frames, new=not overwrite)
        told = f"{count} structures to label written to {wanted}"
        typer.echo(printable(told if count else f"no line asks for labels, so no {wanted}"))
    counts = ", ".join(
        f"{sum(check.verdict is kind for check in checks)} {kind}" for kind in Verdict
    )
    typer.echo(printable(f"{counts}; {out / PAGE_FILE}"))
    if verdict is Verdict.WRONG:
        raise typer.Exit(1)


def _write_structures(
    path: Path, checks: "Sequence[Check]", frames: "Sequence[LabelledFrame]", *, new: bool
) -> int:
    """Writes what labels would decide, what is wrong first, and returns how many there are.

    Where there is any, a few frames of the data are written before it, whose new labels tell
    whether they are of the same level.
    """
    from mdgraph.io.structures import structures_text
    from mdgraph.validate.labels import repeated_frames
    from mdgraph.validate.verdicts import Verdict

    ranked = sorted(checks, key=lambda check: check.verdict is not Verdict.WRONG)
    systems = {name: one for check in ranked for name, one in check.structures.items()}
    if not systems:
        return 0
    named = repeated_frames(frames) | systems
    _write(path, structures_text(named), new=new)
    return len(named)


def _write(target: Path, text: str, *, new: bool) -> None:
    write_atomically(target, text, new=new)


def read_frames(path: Path, options: dict[str, Any]) -> "list[LabelledFrame]":
    """The frames of a data set of mdgraph, or of any file that is imported as one.

    Raises:
        FileError, InputError: see `open_dataset` and `import_frames`; there are no frames.
    """
    from mdgraph.data import open_dataset

    frames: list[LabelledFrame] | None = None
    failure: FileError | None = None
    if path.suffix == ".h5":
        try:
            with open_dataset(path) as dataset:
                frames = list(dataset.frames(np.arange(len(dataset))))
        except FileError as error:
            failure = error
    if frames is None:
        try:
            frames = [frame for part, _ in import_frames([path], **options) for frame in part]
        except MDGraphError:
            if failure is not None:
                raise failure from None
            raise
    if not frames:
        raise InputError(f"{path} holds no frames; give a file with frames.")
    return frames


def _labels_of(
    source: "Source", path: Path | None, frames: "Sequence[LabelledFrame]"
) -> "tuple[str, list[LabelledFrame]] | None":
    """Name of the file of labels, and what it holds; None if it is not given and none is known.

    Raises:
        FileError, InputError: see `import_file`; labels that are given can judge nothing here.
    """
    from mdgraph.data.importing import import_file
    from mdgraph.data.keys import Keys, Request
    from mdgraph.validate.labels import check_labels, of_molecules

    own = path is None
    if path is None:
        path = None if source.folder is None else source.folder / LABELS_FILE
        if path is None or not path.exists():
            return None
    try:
        labels = list(import_file(path, Request(Keys(forces="none"), missing="keep"))[0])
    except InputError as error:
        if "--energy-key" not in str(error):
            raise
        raise InputError(
            f"{path.name} has no energies of its structures; give them in eV, under the name "
            "energy."
        ) from None
    molecules = molecules_of(frames)
    if own and not of_molecules(labels, molecules):
        return None
    check_labels(path.name, labels, molecules)
    return path.name, of_molecules(labels, molecules)


def molecules_of(frames: "Sequence[LabelledFrame]") -> "list[System]":
    """Molecules that are scanned: frames in vacuum, else one that is cut out of a liquid."""
    from mdgraph.data.bonding import kind_of
    from mdgraph.validate.bonds import cut

    several = [frame for frame in frames if len(frame) > 1]
    molecules = [frame.system() for frame in several if not frame.pbc.any()]
    if not molecules:
        liquid = next((frame for frame in several[:1] if kind_of(frame) == "liquid"), None)
        if liquid is not None and liquid.pbc.all() and not liquid.charge:
            molecules = [cut(liquid.system(), "molecule")]
    return molecules


def read_held_out(path: Path, split: Path) -> "tuple[list[LabelledFrame], str]":
    """Frames of a data set that its split holds out, and words for which they are.

    Raises:
        FileError, InputError: see `open_dataset` and `read_split`; nothing is held out.
    """
    from mdgraph.data import open_dataset, read_split

    with open_dataset(path) as dataset:
        parts = dict(read_split(split, dataset).parts())
        name = next((name for name in ("test", "validation") if name in parts), None)
        if name is None:
            raise InputError(f"{split} holds no frames out; give a split with a test part.")
        return list(dataset.frames(parts[name])), f", {name} of {split.name}"


def read_training(path: Path, split: Path) -> "list[LabelledFrame]":
    """Frames of a data set that its split trains on; raises as `read_held_out`."""
    from mdgraph.data import open_dataset, read_split

    with open_dataset(path) as dataset:
        return list(dataset.frames(read_split(split, dataset).train))


def _check_known(source: "Source", frames: "Sequence[LabelledFrame]") -> None:
    """Raises InputError for elements, charges or periodic frames that the potential cannot take."""
    from mdgraph.models import check_coulomb_range

    potential = source.potential
    unknown = [set(frame.numbers.tolist()) - set(potential.species) for frame in frames]
    places = [place for place, numbers in enumerate(unknown) if numbers]
    if places:
        symbols = name_some([SYMBOLS[number] for number in sorted(set().union(*unknown))])
        raise InputError(
            f"The potential does not know {symbols}, which {len(places)} of {len(frames)} frames "
            f"hold ({name_some(places)}); leave them out, or choose another potential."
        )
    places = [place for place, frame in enumerate(frames) if frame.charge]
    if places and not potential.uses_charge:
        raise InputError(
            f"The potential takes no total charge, and {len(places)} of {len(frames)} frames have "
            f"one ({name_some(places)}); leave them out, or choose another potential."
        )
    check_coulomb_range(potential.cutoffs, any(frame.pbc.any() for frame in frames))


def _start(source: "Source") -> "list[LabelledFrame]":
    """The structure that comes with a potential, without labels."""
    from mdgraph.data import LabelledFrame

    try:
        start = source.start()
    except InputError as error:
        raise InputError(
            f"No frames are given and none come with {source.reference}; give labelled frames."
        ) from error
    charge = start.charge or 0.0
    return [LabelledFrame(start.numbers, start.positions, start.cell, start.pbc, charge=charge)]


def all_checks(
    source: "Source",
    frames: "Sequence[LabelledFrame]",
    *,
    device: Any,
    judge: str,
    temperature: float,
    quick: bool,
    seed: int,
    interval: float | None = None,
    training: "Sequence[LabelledFrame]" = (),
    picoseconds: float | None = None,
    labels: "tuple[str, Sequence[LabelledFrame]] | None" = None,
) -> "Iterator[Check]":
    """Yields all checks that frames allow, in the order of the page.

    Args:
        source: the potential.
        frames: one or more, with or without labels.
        device: of the evaluation.
        judge: gfn2 or none.
        temperature: of the frames, K.
        quick: fewer points and frames.
        seed: of what is random.
        interval: fs from one frame to the next, if they are a trajectory.
        training: frames that were trained on, if `frames` were held out of the same data.
        picoseconds: of each run of dynamics; None takes what `dynamics_checks` does.
        labels: name of a file of labels, and those of molecules that are scanned.
    """
    from mdgraph.data.bonding import kind_of
    from mdgraph.data.dataset import evenly_spaced
    from mdgraph.models import check_species
    from mdgraph.validate.crystal_checks import crystal_checks
    from mdgraph.validate.crystals import crystal_compounds, crystal_elements
    from mdgraph.validate.dynamics_checks import dynamics_checks
    from mdgraph.validate.frame_checks import (
        MOST_FRAMES,
        QUICK_FRAMES,
        frame_checks,
        look_alikes_check,
    )
    from mdgraph.validate.labels import labels_check
    from mdgraph.validate.molecule_checks import molecule_checks
    from mdgraph.validate.verdicts import Check, Verdict

    potential = source.potential
    check_species(potential.species, [n for frame in frames for n in frame.numbers.tolist()])
    yield from frame_checks(frames, potential, device, domain=source.domain, quick=quick, seed=seed)
    if training:
        chosen = evenly_spaced(frames, QUICK_FRAMES if quick else MOST_FRAMES)
        yield look_alikes_check(chosen, training, potential, device)
    several = [frame for frame in frames if len(frame) > 1]
    molecular = [frame for frame in several if not frame.pbc.any()]
    molecules = molecules_of(frames)
    if molecules:
        judging = yield from _judge(source, molecular, judge)
        judges: Sequence[LabelledFrame] = ()
        if labels is not None:
            check, judges = labels_check(*labels, molecular, training)
            yield check
        yield from molecule_checks(
            molecules, potential, device, judge=judging, labels=judges, quick=quick, seed=seed
        )
    # Atoms in a box are no crystals, and run nowhere.
    dense = [frame for frame in frames if _is_dense(frame)]
    others = [frame for frame in several if frame.pbc.any() and not _is_dense(frame)]
    slabs = [
        frame
        for frame in evenly_spaced(others, QUICK_FRAMES)
        if (frame.numbers == frame.numbers[0]).all() and kind_of(frame) == "crystal"
    ]
    yield from crystal_checks(
        potential,
        crystal_elements([*dense, *slabs]),
        compounds=crystal_compounds(dense),
        device=device,
    )
    starts = [*molecular, *dense, *slabs]
    if not starts and not molecules:
        text = (
            "Nothing else was checked: no frame is a molecule in vacuum, a liquid or crystal that "
            "is periodic in all directions, or a slab of one element. Add one of these."
        )
        yield Check("beyond the frames", Verdict.LOOK, text)
    if interval is None:
        starts = evenly_spaced(starts, MOST_FRAMES)
    try:
        yield from dynamics_checks(
            potential,
            starts,
            device=device,
            temperature=temperature,
            quick=quick,
            seed=seed,
            picoseconds=picoseconds,
            interval=interval,
        )
    except MDGraphError as error:
        yield Check("dynamics", Verdict.WRONG, f"It ended early: {error}")


def _is_dense(frame: "LabelledFrame") -> bool:
    """Whether a frame is periodic in all directions, and full of atoms."""
    volume = abs(float(frame.cell[0] @ np.cross(frame.cell[1], frame.cell[2])))
    return bool(frame.pbc.all()) and volume < SPARSE * len(frame)


def _judge(
    source: "Source", frames: "Sequence[LabelledFrame]", choice: str
) -> "Generator[Check, None, Judge | None]":
    """Yields a check of the judge, and returns it; None where it cannot judge."""
    from mdgraph.validate.judge import JUDGE_NAME, gfn2, judge_check
    from mdgraph.validate.verdicts import Check, Verdict

    name = f"judge {JUDGE_NAME}"
    if choice == "none":
        return None
    if any(word in level.lower() for level in _levels(source) for word in ("gfn2", "xtb")):
        text = "The potential was built on it, so it judges nothing here."
        yield Check(name, Verdict.LOOK, text)
        return None
    try:
        judge = gfn2()
    except InputError as error:
        yield Check(name, Verdict.LOOK, str(error))
        return None
    labels = np.array([frame.energy for frame in frames])
    check = judge_check([frame.system() for frame in frames], labels, judge)
    if check is not None:
        yield check
    return judge if check is None or check.verdict is Verdict.OK else None


def _levels(source: "Source") -> list[str]:
    """Levels of theory of a potential and of the terms that it is a sum of."""
    config = source.potential.config
    terms = getattr(config, "terms", ())
    return [config.level_of_theory, *(term.potential.level_of_theory for term in terms)]
