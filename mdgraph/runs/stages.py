"""The stages of a protocol, read from one YAML file."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml

from mdgraph.errors import FileError, InputError
from mdgraph.runs.configuration import MDConfig, MinimizeConfig, RunConfig
from mdgraph.runs.ensembles import nearest
from mdgraph.runs.replicas import replicas_of
from mdgraph.runs.settings import Entry, check_keys, configured, mapping_entries, read_entries

KINDS: Final[dict[str, type[RunConfig]]] = {"md": MDConfig, "minimise": MinimizeConfig}
"""Commands that a stage may be."""

_OWN: Final = ("name", "run")
_GIVEN: Final = ("structure", "out")
"""Fields that the protocol fills in."""


@dataclass(frozen=True)
class Stage:
    """One run of a protocol.

    Attributes:
        name: in the log, and in the name of its folder.
        configuration: its own, with the structure of the stage before left open.
    """

    name: str
    configuration: RunConfig


def read_protocol(path: Path, structure: str | None, out: Path) -> list[Stage]:
    """Reads the stages; nothing is run.

    Keys beside `stages` hold for every stage that knows them and says nothing else. A stage
    without a seed takes the common one plus its number, so that no two share random numbers.

    Args:
        path: the YAML file.
        structure: where the first stage begins; None takes the start of its potential.
        out: folder of the stages' folders.

    Raises:
        FileError: the file cannot be read or holds no stages.
        InputError: an unknown key, a value that cannot be, two stages of one name.
    """
    entries = read_entries(path)
    shared = [entry for entry in entries if entry.key != "stages"]
    known = {name: None for kind in KINDS.values() for name in _fields(kind)}
    _check(entries, ["stages", *known])
    listed = next((entry for entry in entries if entry.key == "stages"), None)
    node = None if listed is None else listed.node
    if not isinstance(node, yaml.SequenceNode) or not node.value:
        raise FileError(f"{path} holds no list of stages; write 'stages:' and '- ensemble: npt'.")
    begin = None if structure is None else str(Path(structure).resolve())
    stages: list[Stage] = []
    for number, one in enumerate(node.value):
        place = f"{path}, line {one.start_mark.line + 1}"
        own = mapping_entries(path, one)
        word = next((str(entry.value) for entry in own if entry.key == "run"), "md")
        word = "minimise" if word == "minimize" else word
        if word not in KINDS:
            advice = nearest(word, KINDS)
            stop = "" if advice.endswith("?") else "."
            raise InputError(f"{place}: run is {word}; {advice}{stop}")
        kind = KINDS[word]
        _check(own, [*_OWN, *_fields(kind)])
        values = {entry.key: entry.value for entry in own}
        seed = next((entry.value for entry in shared if entry.key == "seed"), 0)
        filled = [Entry("structure", begin)] if number == 0 else []
        if kind is MDConfig and "seed" not in values and isinstance(seed, int) and seed >= 0:
            filled.append(Entry("seed", (seed + number) % 2**63))
        common = [entry for entry in shared if entry.key in kind.model_fields]
        chosen = [entry for entry in own if entry.key not in _OWN]
        configuration = configured(kind, common, filled, chosen, subject=f"{place}: ")
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


def _check_replicas(place: str, name: str, before: RunConfig, now: RunConfig) -> None:
    """Raises InputError where replicas would end without one to go on with."""
    ended, begun = replicas_of(before) or 1, replicas_of(now)
    if isinstance(now, MDConfig) and begun is None:
        return  # as many as ended
    begun = begun or 1
    if ended > 1 and begun != ended:
        raise InputError(
            f"{place}: {name} has {begun} replica{'s' * (begun > 1)}, and the stage before it "
            f"{ended}; give both as many."
        )


def _check(entries: list[Entry], known: list[str]) -> None:
    for entry in entries:
        if entry.key in _GIVEN:
            raise InputError(
                f"{entry.place}: {entry.key} is given on the command line, once for all stages; "
                "leave it out here."
            )
    check_keys(entries, known)


def _fields(kind: type[RunConfig]) -> list[str]:
    return [name for name in kind.model_fields if name not in _GIVEN]
