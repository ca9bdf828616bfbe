"""Runs that begin where another ended: `mdgraph md --from`, and the stages of a protocol."""

import itertools
import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import yaml

from mdgraph.checkpoints.native import file_sha256
from mdgraph.devices import device_named
from mdgraph.ensembles import ENSEMBLES, ensemble_named
from mdgraph.errors import (
    CheckpointError,
    FileError,
    InputError,
    MDGraphError,
    errors_logged_alone,
)
from mdgraph.io.commented_yaml import comment, commented_defaults
from mdgraph.io.files import disk_failures, remove_abandoned, write_atomically
from mdgraph.io.formats import read_trajectory
from mdgraph.runs import folder as directory
from mdgraph.runs import md
from mdgraph.runs.config import MDConfig, MinimizeConfig, RunConfig
from mdgraph.runs.config_fields import DEFAULT_ENSEMBLE, nearest, replicas_text
from mdgraph.runs.config_files import (
    Entry,
    check_keys,
    current_entries,
    grouped_defaults,
    make_configuration,
    mapping_entries,
    read_entries,
)
from mdgraph.runs.folder import RunDirectory, charge_of
from mdgraph.runs.md import RunOutcome, refuse_ranks, uncertainty_of
from mdgraph.runs.potential import read_potential
from mdgraph.runs.setup import (
    make_simulation,
    make_structures,
    read_starts,
    selections_of,
    with_topology,
)
from mdgraph.system import System
from mdgraph.units import ACCELERATION

logger = logging.getLogger(__name__)

KINDS: Final[dict[str, type[RunConfig]]] = {"md": MDConfig, "minimise": MinimizeConfig}
"""Commands of stages."""

_RENAMED: Final = {old: new for kind in KINDS.values() for old, new in kind.renamed.items()}
_OWN: Final = ("name", "run")
_GIVEN: Final = ("structure", "out")
"""Fields that the protocol fills in."""


_OF_THE_START: Final = {"structure", "every_frame", "minimize", "new_velocities", "out"}
"""Options that say how and where a run began, which a run from its end does not take over."""

_LENGTHS: Final = {"steps", "time_ps"}


@dataclass(frozen=True)
class FinishedRun:
    """A run of one process that is finished, for another to begin where it ended.

    Attributes:
        folder: of the run.
        record: what its run.json holds.
        configuration: of the run, with all options resolved.
    """

    folder: RunDirectory
    record: Mapping[str, Any]
    configuration: RunConfig

    @classmethod
    def read(cls, path: Path) -> "FinishedRun":
        """Reads run.json.

        Raises:
            FileError: the folder holds no run, or run.json is damaged.
            InputError: the run is not finished, or ranks shared it.
        """
        folder = RunDirectory(path)
        if (path / "rank-0").is_dir():
            raise InputError(
                f"The run in {path} was shared by ranks; begin from the end of a replica, such as "
                f"{path}/rank-0/replica-0/end.extxyz, and give the options again."
            )
        if not folder.record.exists():
            raise FileError(folder.without_run("run", "give the folder of one"))
        record = folder.read_record()
        if not folder.end.exists():
            raise InputError(
                f"The run in {path} is not finished; continue it with --resume, or begin from "
                f"its last frame, {path}/trajectory.h5md@-1, and give the options again."
            )
        values = record["configuration"]
        kind = MDConfig if "ensemble" in values else MinimizeConfig
        return cls(folder, record, kind(**kind.current_names(values)))

    def options(self, kind: type[RunConfig], others: Mapping[str, Any]) -> dict[str, Any]:
        """Options that another run takes over: those that were given, and the next seed.

        Selections become the atoms that they selected.

        Args:
            kind: of the other run; it keeps the length only of a run of its own kind.
            others: that are given for it; an ensemble among them has options of its own.

        Raises:
            InputError: an earlier release made the run.
        """
        if "given" not in self.record:
            raise InputError(
                f"{self.folder.record} is of an earlier release, which did not record the options "
                f"that were given; begin from {self.folder.end}, and give the options again."
            )
        left_out = set(_OF_THE_START)
        if not isinstance(self.configuration, kind):
            left_out |= _LENGTHS
        # After a minimum, options of its cell are those of dynamics whose cell varies alone.
        word = "" if isinstance(self.configuration, MDConfig) else DEFAULT_ENSEMBLE
        if (ensemble := ensemble_named(str(others.get("ensemble", word)))) is not None:
            known = {name for entry in ENSEMBLES.values() for name in entry.defaults}
            left_out |= known - ensemble.defaults.keys()
        options = {
            name: value
            for name, value in self.configuration.current_names(self.record["given"]).items()
            if name in kind.model_fields and name not in left_out
        }
        for name in {"fix", "restrain", "save_select"} & options.keys():
            # A selection by places would choose other atoms at the end.
            about = self.record["structure"]
            atoms = {one.get(name) for one in about.get("replicas", [about])}
            if len(atoms) == 1 and None not in atoms:
                options[name] = atoms.pop()
        if isinstance(self.configuration, MDConfig):
            # The same random numbers would be the noise of the first run again.
            options["seed"] = self.configuration.seed + 1
        return options | {"structure": [str(part.end) for part in self._parts]}

    @property
    def _parts(self) -> list[RunDirectory]:
        return self.folder.parts(self.configuration, range(self.configuration.system_count))

    def ends(self, after: RunConfig) -> list[System]:
        """Final systems, with velocities for the ensemble of the next run.

        Velocities of some ensembles belong to the middle of a step, half a step before the
        positions; those of others belong to the positions. The trajectory continues smoothly with
        v <- v + (tau - tau') f / m. Here tau of the first run and tau' of the next one are half a
        time step for mid-step velocities, else 0. At 0.5 fs this is 0.7 % of the temperature of
        water, 3 % of that of an O-H stretch.

        Args:
            after: configuration of the next run.

        Raises:
            FileError: an end cannot be read.
        """
        lag = _lag(self.configuration) - _lag(after)
        ends, forces = [], []
        for number, part in enumerate(self._parts):
            with read_trajectory(part.end) as trajectory:
                system = trajectory.system(0).replace(charge=charge_of(self.record, number))
                forces.append(trajectory[0].forces)
            ends.append(with_topology(system, part))
        selections = selections_of(self.configuration, ends, self.record)
        fixed = selections.get("fix", [[]] * len(ends))
        for number, system in enumerate(ends):
            velocities = system.velocities
            if lag and velocities is not None and velocities.any():
                kick = lag * ACCELERATION * forces[number] / system.masses[:, None]
                kick[fixed[number]] = 0.0
                ends[number] = system.replace(velocities=np.add(velocities, kick))
        return ends


def _lag(configuration: RunConfig) -> float:
    """Time by which positions are ahead of velocities, fs."""
    if isinstance(configuration, MDConfig) and ENSEMBLES[configuration.ensemble].midstep_velocities:
        return 0.5 * configuration.timestep_fs
    return 0.0


@dataclass(frozen=True)
class Stage:
    """One run of a protocol.

    Attributes:
        name: in the log, and in the name of the folder.
        configuration: of the run; the previous stage sets the structure.
    """

    name: str
    configuration: RunConfig


def read_protocol(path: Path, structure: str | None, out: Path) -> list[Stage]:
    """Reads the stages and runs nothing.

    Keys beside `stages` are defaults for every stage that has such a field. A stage without a
    seed takes the common seed plus its number, so that stages do not share random numbers.

    Args:
        path: the YAML file.
        structure: of the first stage; None takes the start structure of its potential.
        out: folder of the stages' folders.

    Raises:
        FileError: the file cannot be read or holds no stages.
        InputError: an unknown key or an invalid value.
    """
    entries = current_entries(read_entries(path), _RENAMED)
    shared = [entry for entry in entries if entry.key != "stages"]
    fields = {name: None for kind in KINDS.values() for name in _fields(kind)}
    _check(entries, ["stages", *fields])
    stage_entry = next((entry for entry in entries if entry.key == "stages"), None)
    node = None if stage_entry is None else stage_entry.node
    if not isinstance(node, yaml.SequenceNode) or not node.value:
        raise FileError(f"{path} holds no list of stages; write 'stages:' and '- ensemble: npt'.")
    begin = None if structure is None else str(Path(structure).resolve())
    stages: list[Stage] = []
    for number, item in enumerate(node.value):
        place = f"{path}, line {item.start_mark.line + 1}"
        own = mapping_entries(path, item)
        word = next((str(entry.value) for entry in own if entry.key == "run"), "md")
        word = "minimise" if word == "minimize" else word
        if word not in KINDS:
            advice = nearest(word, KINDS)
            stop = "" if advice.endswith("?") else "."
            raise InputError(f"{place}: run is {word}; {advice}{stop}")
        kind = KINDS[word]
        own = current_entries(own, kind.renamed)
        _check(own, [*_OWN, *_fields(kind)])
        values = {entry.key: entry.value for entry in own}
        seed = next((entry.value for entry in shared if entry.key == "seed"), 0)
        defaults = [Entry("structure", begin)] if number == 0 else []
        if kind is MDConfig and "seed" not in values and isinstance(seed, int) and seed >= 0:
            defaults.append(Entry("seed", (seed + number) % 2**63))
        common = [entry for entry in shared if entry.key in kind.model_fields]
        settings = [entry for entry in own if entry.key not in _OWN]
        configuration = make_configuration(kind, common, defaults, settings, subject=f"{place}: ")
        name = str(values.get("name") or getattr(configuration, "ensemble", word))
        if not re.fullmatch(r"[\w.-]+", name):
            raise InputError(
                f"{place}: name is {name}; it should be letters, digits, dots and dashes, for it "
                "names a folder."
            )
        if stages:
            _check_replicas(place, name, stages[-1].configuration, configuration)
        folder = str(out / f"{number + 1:02d}-{name}")
        stages.append(Stage(name, configuration.model_copy(update={"out": folder})))
    return stages


def protocol_lines() -> Iterator[str]:
    """A protocol of two stages as YAML, with every key at its default."""
    yield from comment(
        "Stages that run one after the other. A stage has a name if it wants one, run: md or "
        "minimise, and any of the keys below for itself alone."
    )
    yield from ("stages:", "- run: minimise", "- run: md")
    yield from ("", *comment("The keys below are for all stages that have them."))
    names = _fields(MDConfig)
    yield from grouped_defaults(MDConfig, names)
    own = [name for name in _fields(MinimizeConfig) if name not in names]
    yield from ("", "# --- Of run: minimise alone ---", *commented_defaults(MinimizeConfig, own))


def protocol_schema() -> dict[str, Any]:
    """The JSON schema of a protocol; keys of any stage are taken in all."""
    shared: dict[str, Any] = {}
    definitions: dict[str, Any] = {}
    for kind in reversed(KINDS.values()):  # the types of md are the wider ones
        schema = kind.model_json_schema()
        properties = schema["properties"]
        definitions |= schema.get("$defs", {})
        shared |= {name: properties[name] for name in _fields(kind)}
    own = {"name": {"type": "string"}, "run": {"enum": [*KINDS, "minimize"], "default": "md"}}
    stage = {"type": "object", "properties": own | shared, "additionalProperties": False}
    stages = {"type": "array", "items": stage, "minItems": 1}
    return {
        "title": "Protocol",
        "type": "object",
        "properties": {"stages": stages} | shared,
        "$defs": definitions,
        "required": ["stages"],
        "additionalProperties": False,
    }


def _check_replicas(place: str, name: str, before: RunConfig, after: RunConfig) -> None:
    """Raises InputError if the numbers of replicas of two stages do not match."""
    old, new = before.system_count, after.system_count
    if isinstance(after, MDConfig) and not after.has_replicas:
        return  # takes the number of the previous stage
    if old > 1 and new != old:
        raise InputError(
            f"{place}: {name} has {replicas_text(new)}, and the stage before it "
            f"{old}; give both as many."
        )


def _check(entries: list[Entry], keys: list[str]) -> None:
    for entry in entries:
        if entry.key in _GIVEN:
            raise InputError(
                f"{entry.place}: {entry.key} is given on the command line, once for all stages; "
                "leave it out here."
            )
    check_keys(entries, keys)


def _fields(kind: type[RunConfig]) -> list[str]:
    return [name for name in kind.model_fields if name not in _GIVEN]


def run_protocol(stages: Sequence[Stage], out: Path) -> RunOutcome | None:
    """Runs the stages that are not finished, and resumes an interrupted one.

    Args:
        stages: in order, with their folders in `out`.
        out: a new folder, or that of a shorter or interrupted protocol.

    Returns:
        Outcome of the last stage that ran; None if all were finished.

    Raises:
        MDGraphError: see `md.start`; or the configuration of a stage with a run has changed, or
            the end that a later stage began from.
    """
    refuse_ranks("A protocol")
    record = out / directory.STAGES_FILE
    if not record.exists():
        directory.refuse_used(out)
    outcome = None
    with directory.new_folder(out), RunDirectory(out).lock():
        begun, ends = _read_record(record)
        _check_begun(stages, begun, out)
        for pair in itertools.pairwise(stages):
            _check_end(*pair, ends)
        _check_unbegun(stages)
        remove_abandoned(out)
        before: Stage | None = None
        for number, stage in enumerate(stages, 1):
            folder = _folder(stage)
            what = f"Stage {number} of {len(stages)}, {stage.name}"
            if before is not None:
                _check_end(before, stage, ends)
                ends[_folder(before).path.name] = _end(before)
            _write_record(record, stages, ends)
            if folder.end.exists():
                logger.info("%s: finished.", what)
            else:
                logger.info("%s: in %s.", what, folder.path)
                outcome = _run(stage, before)
                if outcome.signal is not None:
                    return outcome
                if outcome.largest_force is not None and not outcome.converged:
                    logger.warning("%s: no minimum after %d steps.", what, outcome.steps)
            before = stage
    return outcome


def _run(stage: Stage, before: Stage | None) -> RunOutcome:
    folder = _folder(stage)
    if folder.holds_run():
        return md.resume(folder.path)
    if before is None:
        return md.start(stage.configuration)
    ended = _folder(before)
    configuration = stage.configuration.model_copy(update={"structure": (str(ended.end),)})
    return md.start(configuration, FinishedRun.read(ended.path).ends(configuration))


def _folder(stage: Stage) -> RunDirectory:
    return RunDirectory(Path(stage.configuration.out))


def _read_record(record: Path) -> tuple[list[dict[str, Any]], dict[str, str | None]]:
    """The stages of the last time, and by folder `_end` of those whose next stage has begun."""
    if not record.exists():
        return [], {}
    with disk_failures(record, "read"):
        text = record.read_text(encoding="utf-8")
    try:
        content = json.loads(text)
        begun = [dict(stage, folder=str(stage["folder"])) for stage in content["stages"]]
        # Earlier releases did not write them.
        return begun, dict(content.get("ends", {}))
    except (ValueError, KeyError, TypeError) as error:
        raise FileError(f"{record} is damaged; put back the original.") from error


def _write_record(record: Path, stages: Sequence[Stage], ends: Mapping[str, str | None]) -> None:
    content = {"stages": [_plain(stage) for stage in stages], "ends": ends}
    write_atomically(record, json.dumps(content, indent=2) + "\n")


def _end(stage: Stage) -> str | None:
    """SHA-256 of the last structure of a stage, its first replica's; None unless it is finished."""
    path = _folder(stage).end
    return file_sha256(path) if path.exists() else None


def _check_end(before: Stage, after: Stage, ends: Mapping[str, str | None]) -> None:
    """Raises InputError if a stage that has begun did so from another end of the one before it."""
    old, new = _folder(before).path, _folder(after).path
    if RunDirectory(new).holds_run() and old.name in ends and ends[old.name] != _end(before):
        raise InputError(
            f"{new} did not begin from where {old.name} ends now, which was run on since; move "
            f"{new.name} and all later stages out of {new.parent} to run them again, or give "
            "another folder with --out."
        )


def _check_begun(stages: Sequence[Stage], begun: Sequence[dict[str, Any]], out: Path) -> None:
    """Raises InputError if the configuration of a stage with a run has changed."""
    for number, stage in enumerate(begun):
        then = {_RENAMED.get(name, name): value for name, value in stage.items()}
        if not RunDirectory(out / then["folder"]).holds_run():
            return
        now = _plain(stages[number]) if number < len(stages) else {}
        differences = [key for key in {**then, **now} if then.get(key) != now.get(key)]
        if differences:
            key = differences[0]
            raise InputError(
                f"Stage {number + 1} in {out} was begun with {key} {then.get(key)}, now "
                f"it is {now.get(key)}; put that back, or give another folder with --out."
            )


def _check_unbegun(stages: Sequence[Stage]) -> None:
    """Builds the simulation of every stage without a run, from the structure of the first stage.

    Invalid stages fail so before hours of earlier ones. Positions and velocities that earlier
    stages change are not checked.

    Raises:
        InputError, FileError, CheckpointError: see `md.start`; names the stage.
    """
    waiting = [pair for pair in enumerate(stages, 1) if not _folder(pair[1]).holds_run()]
    if len(stages) == 1 or not waiting:
        return
    first = _folder(stages[0])
    part = first if first.start.exists() else first.replica(0)
    if part.start.exists():
        with read_trajectory(part.start) as trajectory:
            starts = [with_topology(trajectory.system(0), part)] if len(trajectory) else []
    else:
        starts = read_starts(stages[0].configuration)[:1]
    for number, stage in waiting:
        try:
            with errors_logged_alone("mdgraph"):  # the stage logs all of it when it begins
                _build(stage.configuration, starts)
        except (InputError, FileError, CheckpointError) as error:
            what = f"Stage {number} of {len(stages)}, {stage.name}"
            raise type(error)(f"{what}: {error}") from error
        except MDGraphError:
            continue  # concerns the initial state, which earlier stages change


def _build(configuration: RunConfig, starts: Sequence[System]) -> None:
    """Builds the simulation of a stage and discards it; without the self-check."""
    device = device_named(configuration.device)
    source = read_potential(configuration)
    systems = make_structures(configuration, source, starts)
    variant = configuration.model_copy(update={"check": None})
    simulation = make_simulation(variant, source, systems, device)
    uncertainty_of(configuration, source, simulation, systems)


def _plain(stage: Stage) -> dict[str, Any]:
    configuration = stage.configuration.model_dump(mode="json", exclude={"out"})
    return {"folder": Path(stage.configuration.out).name, **configuration}
