"""The rounds of a distillation, each a folder whose files appear whole, so that any can be resumed.

round-1/set.h5      labelled frames of data, and frames that the teachers labelled
round-1/split.json  whose held-out trajectories are not trained on
round-1/sampled.json  how many frames of each kind, and what was left out
round-1/student/    the training
"""

import json
import logging
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from mdgraph.checkpoints import load
from mdgraph.checkpoints.loading import potential_sha256
from mdgraph.checkpoints.location import pinned
from mdgraph.checkpoints.native import DOMAIN_FILE
from mdgraph.data import (
    Dataset,
    LabelledFrame,
    Provenance,
    Split,
    open_dataset,
    read_split,
    write_dataset,
)
from mdgraph.data.splits import write_split
from mdgraph.devices import device_named
from mdgraph.distil.config import DistilConfig
from mdgraph.distil.random_search import (
    Round,
    lowest_structures,
    random_structures,
    turned_molecules,
    without_contradictions,
)
from mdgraph.distil.sampling import Labelling, labelled, sampled, with_weight
from mdgraph.distil.squeezed import squeezed
from mdgraph.errors import InputError, name_some
from mdgraph.fused.evaluator import chosen_evaluator
from mdgraph.io.files import disk_failures, write_atomically
from mdgraph.io.structures import read_systems
from mdgraph.models import PotentialModule, check_coulomb_range
from mdgraph.precision import precision_named
from mdgraph.shipped import FILE_NAME
from mdgraph.system import System
from mdgraph.train.config import TrainConfig
from mdgraph.train.setup import chosen_split
from mdgraph.units import SYMBOLS

logger = logging.getLogger(__name__)

SET, SPLIT, SAMPLED, STUDENT = "set.h5", "split.json", "sampled.json", "student"

COPIES: Final = "copies"
"""Source of the further copies of training frames in a round's set."""

_FILES: Final = (FILE_NAME, DOMAIN_FILE, "metrics.json", "report.html", "log.csv", "card.md")
"""What the last student's folder gives to that of the distillation."""

Train = Callable[[TrainConfig, bool], None]
"""Trains a student; the second argument says whether its training is resumed."""


@dataclass(frozen=True, eq=False)
class Teacher:
    """A potential that labels frames.

    Attributes:
        potential: as it was loaded.
        name: of it.
        sha256: of its file.
    """

    potential: PotentialModule
    name: str
    sha256: str

    @classmethod
    def read(cls, path: str) -> "Teacher":
        """Raises FileError or CheckpointError, see `load`."""
        path = pinned(path)
        potential = load(path)
        return cls(potential, potential.config.name or Path(path).stem, potential_sha256(path))

    @property
    def text(self) -> str:
        """Name, level of theory and checksum."""
        level = self.potential.config.level_of_theory or "level of theory not stated"
        return f"{self.name} ({level}, sha256 {self.sha256[:12]})"


def distil(config: DistilConfig, train: Train) -> dict[str, Any]:
    """Runs all rounds that are not done yet; returns the metrics of the last student.

    Args:
        config: of the distillation; `out` exists.
        train: trains a student.

    Raises:
        InputError: teachers, data or structures do not fit together.
        FileError, CheckpointError: something cannot be read or written.
    """
    out, device = Path(config.out), device_named(config.device)
    teachers = [Teacher.read(path) for path in config.teacher]
    dataset = open_dataset(config.data) if config.data else None
    structures = [system for path in config.structures for system in read_systems(Path(path))]
    starts = _starts(config, dataset, structures)
    sampling = config.sampling
    further = (sampling.random or sampling.turned) and sampling.random_teacher
    of_random = [Teacher.read(sampling.random_teacher)] if further else []
    _check_teachers([*teachers, *of_random], starts)
    _check_student(config, starts)
    precision = precision_named("mixed")
    evaluators = [chosen_evaluator(one.potential, precision, device) for one in teachers]
    random_evaluator = (
        chosen_evaluator(of_random[0].potential, precision, device) if of_random else None
    )
    driver, known = evaluators[0], teachers[0].potential
    earlier: list[tuple[LabelledFrame, bool]] = []
    for number in range(1, config.rounds + 1):
        folder = out / f"round-{number}"
        folder.mkdir(exist_ok=True)
        if not (folder / SPLIT).exists():
            logger.info(
                "Round %d of %d: dynamics of %s.",
                number,
                config.rounds,
                "the teacher" if number == 1 else "the student",
            )
            samples = sampled(starts, driver, config.sampling, device, config.seed + number)
            labelling = labelled(samples, evaluators, known, config.sampling, device)
            labels = random_evaluator or evaluators[0]
            lowest = (
                lowest_structures(starts, evaluators, labels, device)
                if config.sampling.random
                else []
            )
            labelling = without_contradictions(labelling, lowest, random_evaluator, device)
            seed = config.seed + number
            lattices = squeezed(structures or starts, evaluators, config.sampling, device, seed)
            labelling = labelling.joined(Labelling(lattices, len(lattices)))
            this_round = Round(driver, evaluators, labels, sampling, device, seed)
            labelling = labelling.joined(random_structures(lowest, this_round))
            labelling = labelling.joined(turned_molecules(starts, this_round))
            logger.info("Round %d: %s.", number, _labelling_text(labelling))
            held_out = dataset is not None or any(is_held_out for _, is_held_out in earlier)
            if not labelling.training or not (held_out or labelling.held_out):
                raise InputError(_too_few(labelling, number))
            _write_set(folder, config, dataset, earlier, labelling, [*teachers, *of_random])
        earlier = _teacher_frames(folder)
        student = folder / STUDENT
        if not (student / "report.html").exists():
            training = config.training(
                data=str(folder / SET),
                split=str(folder / SPLIT),
                out=str(student),
                name=config.name or out.resolve().name,
                baseline=(),
                # Squeezed lattices err by far more than others, and a mean would follow them.
                refit=config.refit and not config.sampling.squeezed,
            )
            if number < config.rounds and config.earlier_steps is not None:
                length = {"steps": config.earlier_steps, "epochs": None}
                training = training.model_copy(update=length)
            train(training, student.is_dir() and any(student.iterdir()))
        driver = chosen_evaluator(load(student), precision, device)
    if dataset is not None:
        dataset.close()
    return _finish(out, config, teachers, of_random)


def _starts(
    config: DistilConfig, dataset: Dataset | None, structures: Sequence[System]
) -> list[System]:
    """Structures from which dynamics start."""
    starts = [system for system in structures if len(system) > 1 or system.pbc.any()]
    if dataset is not None and config.sampling.starts == "all":
        train = chosen_split(config, dataset).train
        frames = train[dataset.atoms[train] > 1]
        chosen = np.random.default_rng(config.seed).choice(
            frames, min(len(frames), 500), replace=False
        )
        starts += [frame.system() for frame in dataset.frames(np.sort(chosen))]
    if not starts:
        raise InputError("No structure of several atoms is there to start from; give structures.")
    return starts


def _check_teachers(teachers: Sequence[Teacher], starts: Sequence[System]) -> None:
    """Raises InputError for structures that a teacher cannot take."""
    elements = {int(number) for system in starts for number in system.numbers}
    charges = sum(bool(system.charge) for system in starts)
    periodic = any(system.pbc.any() for system in starts)
    for teacher in teachers:
        missing = sorted(elements - set(teacher.potential.species))
        if missing:
            raise InputError(
                f"teacher: {teacher.name} does not know "
                f"{name_some([SYMBOLS[number] for number in missing])}, which structures or data "
                "hold; choose another teacher, or leave those structures out."
            )
        if charges and not teacher.potential.uses_charge:
            raise InputError(
                f"teacher: {teacher.name} takes no total charge, and {charges} of {len(starts)} "
                "structures have one; choose a teacher that does, or leave them out."
            )
        cutoffs, name = teacher.potential.cutoffs, f"teacher: {teacher.name}"
        check_coulomb_range(cutoffs, periodic, potential=name)


def _check_student(config: DistilConfig, starts: Sequence[System]) -> None:
    """Raises InputError for charges that students, which run dynamics too, do not know."""
    charges = sum(bool(system.charge) for system in starts)
    if not charges:
        return
    if config.start_from is not None:
        known = load(config.start_from).uses_charge
        cure = "start_from a potential that does"
    else:
        known = config.potential.of((1,)).uses_charge
        cure = "take charge_factor: true into potential"
    if not known:
        raise InputError(
            f"The student takes no total charge, and {charges} of {len(starts)} structures have "
            f"one; {cure}, or leave them out."
        )


def _too_few(labelling: Labelling, number: int) -> str:
    """Why a round has nothing to train on, or to hold out."""
    if number > 1:
        return (
            f"No frame to train on came from the student of round {number - 1}, which is too far "
            "from its teacher; start anew in another folder, with more earlier_steps or "
            "sampling.frames."
        )
    if labelling.frames:
        use = "held out" if labelling.held_out else "trained on"
        return (
            f"All {len(labelling.frames)} frames that got a label would be {use}; raise "
            "sampling.frames or sampling.interval."
        )
    return (
        "No frame got a label; lower sampling.temperatures, or raise sampling.disagreement or "
        "sampling.largest_force."
    )


def _write_set(
    folder: Path,
    config: DistilConfig,
    dataset: Dataset | None,
    earlier: Sequence[tuple[LabelledFrame, bool]],
    labelling: Labelling,
    teachers: Sequence[Teacher],
) -> None:
    """Writes the set of a round, then what was sampled, then the split, which completes it."""
    parts: list[tuple[Any, Provenance]] = []
    train: list[int] = []
    validation: list[int] = []
    test: list[int] = []
    copies = 0
    if dataset is not None:
        split = chosen_split(config, dataset)
        for number, source in enumerate(dataset.sources):
            chosen = np.flatnonzero(dataset.source == number)
            frames = dataset.frames(chosen)
            weighted = (with_weight(frame, config.label_weight) for frame in frames)
            parts.append((weighted, source))
        train += split.train.tolist()
        again = np.repeat(split.train, config.label_copies - 1).tolist()
        copies = len(again)
        if copies:
            frames = (dataset.frame(number) for number in again)
            weighted = (with_weight(frame, config.label_weight) for frame in frames)
            level = dataset.sources[0].level_of_theory
            provenance = Provenance(COPIES, importer="mdgraph distil", level_of_theory=level)
            parts.append((weighted, provenance))
            train += range(len(dataset), len(dataset) + copies)
        validation += split.validation.tolist()
        test += split.test.tolist()
    first = 0 if dataset is None else len(dataset) + copies
    fresh = [(frame, number >= labelling.training) for number, frame in enumerate(labelling.frames)]
    both = [*earlier, *fresh]
    for number, (_, held_out) in enumerate(both, first):
        (validation if held_out else train).append(number)
    names = ", ".join(teacher.text for teacher in teachers)
    configs = [teacher.potential.config for teacher in teachers]
    levels = {config.level_of_theory for config in configs}
    provenance = Provenance(
        "sampled",
        importer=f"mdgraph distil, labelled by {names}",
        level_of_theory=levels.pop() if len(levels) == 1 else "",
        licence="; ".join(sorted({config.licence for config in configs if config.licence})),
    )
    parts.append(((frame for frame, _ in both), provenance))
    write_dataset(folder / SET, parts, overwrite=True)
    kinds = Counter(frame.group for frame in labelling.frames)
    record = {
        "frames": dict(kinds),
        "held_out": labelling.held_out,
        "without_label": labelling.unlabelled,
        "extreme": labelling.extreme,
        "near_copies": labelling.copies,
    }
    text = json.dumps(record, indent=1) + "\n"
    write_atomically(folder / SAMPLED, text)
    with open_dataset(folder / SET) as whole:
        split = Split(
            train=np.array(sorted(train), dtype=np.int64),
            validation=np.array(sorted(validation), dtype=np.int64),
            test=np.array(sorted(test), dtype=np.int64),
            method="held-out frames of the data, and whole trajectories of sampled frames",
            sha256=whole.sha256(),
        )
    write_split(split, folder / SPLIT)


def _teacher_frames(folder: Path) -> list[tuple[LabelledFrame, bool]]:
    """Frames of a round that teachers labelled, and whether each is held out."""
    with open_dataset(folder / SET) as dataset:
        split = read_split(folder / SPLIT, dataset)
        sampled = dataset.source == len(dataset.sources) - 1
        held_out = np.isin(np.arange(len(dataset)), split.validation)
        numbers = np.flatnonzero(sampled)
        return [
            (frame, bool(held_out[number]))
            for number, frame in zip(numbers, dataset.frames(numbers), strict=True)
        ]


def _labelling_text(labelling: Labelling) -> str:
    kinds = Counter(frame.group for frame in labelling.frames)
    counts = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    return (
        f"{len(labelling.frames)} frames are labelled ({counts}); {labelling.copies} near-copies, "
        f"{labelling.extreme} with extreme forces or energies and {labelling.unlabelled} on which "
        "teachers disagree are left out"
    )


def _finish(
    out: Path, config: DistilConfig, teachers: Sequence[Teacher], of_random: Sequence[Teacher]
) -> dict[str, Any]:
    """Copies the last student into the folder; its card and metrics say whose student it is."""
    student = out / f"round-{config.rounds}" / STUDENT
    records = []
    with disk_failures(out, "read"):
        metrics: dict[str, Any] = json.loads((student / "metrics.json").read_text("utf-8"))
        for number in range(1, config.rounds + 1):
            path = out / f"round-{number}" / SAMPLED
            records.append(json.loads(path.read_text("utf-8")))
        card = (student / "card.md").read_text("utf-8")
    metrics["distilled"] = {
        "teachers": [_teacher_record(teacher) for teacher in teachers],
        "rounds": records,
        "label_weight": config.label_weight,
    }
    if of_random:
        metrics["distilled"]["random_teacher"] = _teacher_record(of_random[0])
    card += "\n".join(_card_lines(metrics, teachers, of_random, records)) + "\n"
    for name in _FILES[:-1]:
        source = student / name
        if source.exists() and name != "metrics.json":
            with disk_failures(out, "write"):
                write_atomically(out / name, partial(_copy, source))
    text = json.dumps(metrics, indent=1) + "\n"
    write_atomically(out / "metrics.json", text)
    write_atomically(out / "card.md", card)
    return metrics


def _teacher_record(teacher: Teacher) -> dict[str, str]:
    return {
        "name": teacher.name,
        "level_of_theory": teacher.potential.config.level_of_theory or "not stated",
        "licence": teacher.potential.config.licence or "not stated",
        "sha256": teacher.sha256,
    }


def _copy(source: Path, target: Path) -> None:
    shutil.copyfile(source, target)


def _card_lines(
    metrics: dict[str, Any],
    teachers: Sequence[Teacher],
    of_random: Sequence[Teacher],
    records: Sequence[dict[str, Any]],
) -> list[str]:
    """The chapter of the card about the distillation."""
    names = "; ".join(teacher.text for teacher in teachers)
    lines = ["", "## Distilled", "", f"- teacher: {names}"]
    lines += [f"- random structures by: {teacher.text}" for teacher in of_random]
    for number, record in enumerate(records, 1):
        counts = ", ".join(f"{count} {kind}" for kind, count in record["frames"].items())
        lines.append(
            f"- round {number}: {counts}; {record['held_out']} of them held out; left out: "
            f"{record['near_copies']} near-copies, {record['extreme']} with extreme forces or "
            f"energies, {record['without_label']} on which teachers disagree"
        )
    groups = metrics.get("validation", {}).get("by_group", {})
    if groups:
        sentence = (
            "Errors on held-out frames of each kind; those with a temperature or a move have the "
            "teacher's labels:"
        )
        head = "| kind | frames | force RMSE, meV/A | energy RMSE, meV/atom |"
        lines += ["", sentence, "", head, "| --- | --- | --- | --- |"]
        lines += [
            f"| {name or 'data'} | {group.get('frames', '')} | "
            f"{group.get('force_rmse_meV_per_A', float('nan')):.4g} | "
            f"{group.get('energy_rmse_meV_per_atom', float('nan')):.4g} |"
            for name, group in groups.items()
        ]
    return lines
