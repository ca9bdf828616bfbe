"""Reading a configuration from a YAML file and options, with one sentence for what is wrong."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import yaml
from pydantic import ValidationError

from mdgraph.errors import FileError, InputError, name_some
from mdgraph.io.files import disk_failures
from mdgraph.runs.configuration import Configuration
from mdgraph.runs.ensembles import nearest

C = TypeVar("C", bound=Configuration)

_NUMBERS: Final = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_TEXT: Final = "tag:yaml.org,2002:str"


@dataclass(frozen=True)
class Entry:
    """A key of a YAML mapping, or an option of the command line.

    Attributes:
        key: what it is called.
        value: what it says.
        place: file and line, empty for an option.
        node: the value with the places of its parts, None for an option.
    """

    key: str
    value: Any
    place: str = ""
    node: yaml.Node | None = None


def read_configuration(
    kind: type[C], path: Path | None = None, options: Mapping[str, Any] | None = None
) -> C:
    """Makes a configuration.

    Args:
        kind: the class of the configuration.
        path: YAML file whose keys are the fields of `kind`, or None.
        options: values of the command line, which come before those of the file.

    Raises:
        FileError: the file cannot be read or is no YAML.
        InputError: an unknown or repeated key, or a value that cannot be; names the key and
            its line.
    """
    entries = [] if path is None else read_entries(path)
    check_keys(entries, kind.model_fields)
    given = [Entry(key, value) for key, value in (options or {}).items()]
    return configured(kind, entries, given)


def configured(kind: type[C], *layers: Sequence[Entry], subject: str = "") -> C:
    """Makes a configuration of entries whose keys it knows; later layers come before earlier.

    Args:
        kind: the class of the configuration.
        layers: entries.
        subject: what begins a sentence about no key in particular.

    Raises:
        InputError: a value that cannot be.
    """
    found: dict[str, Entry] = {}
    for layer in layers:
        for entry in layer:
            for other in kind.alternatives.get(entry.key, ()):
                if all(one.key != other for one in layer):
                    found.pop(other, None)
        found |= {entry.key: entry for entry in layer}
    try:
        return kind(**{key: entry.value for key, entry in found.items()})
    except ValidationError as error:
        raise InputError(_sentence(error, found, subject)) from error


def read_entries(path: Path) -> list[Entry]:
    """The entries of the YAML mapping that a file holds, none if it is empty."""
    with disk_failures(path, "read"):
        content = path.read_bytes()
    try:
        node = yaml.compose(content, yaml.SafeLoader)
        return [] if node is None else mapping_entries(path, node)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}, line {mark.line + 1}" if mark is not None else str(path)
        problem = getattr(error, "problem", None) or "it is not text"
        raise FileError(f"{where}: this is not YAML ({problem}); repair the line.") from error


def mapping_entries(path: Path, node: yaml.Node) -> list[Entry]:
    """The entries of a mapping within a file; raises FileError for another node."""
    if not isinstance(node, yaml.MappingNode):
        where = f"{path}, line {node.start_mark.line + 1}" if node.start_mark.line else str(path)
        raise FileError(f"{where} holds no options; write lines such as 'timestep_fs: 0.5'.")
    loader = yaml.SafeLoader(b"")
    return [
        Entry(
            str(key.value),
            loader.construct_object(_without_base_60(value), deep=True),
            f"{path}, line {key.start_mark.line + 1}",
            value,
        )
        for key, value in node.value
    ]


def check_keys(entries: Sequence[Entry], known: Collection[str]) -> None:
    """Raises InputError for a key that is unknown, naming the nearest, or given twice."""
    seen: set[str] = set()
    for entry in entries:
        if entry.key in seen:
            raise InputError(f"{entry.place}: {entry.key} is given twice; remove one of them.")
        if entry.key not in known:
            advice = nearest(entry.key, known)
            if advice.startswith("choose"):
                advice = f"choose among {name_some(list(known), len(known))}."
            raise InputError(f"{entry.place}: unknown key {entry.key}; {advice}")
        seen.add(entry.key)


def plain(message: str) -> str:
    """What pydantic says of a value, as the second half of a sentence."""
    message = message.replace("Value error, ", "", 1).replace("Input should", "it should", 1)
    return message.partition(", unable to parse")[0]


def _without_base_60(node: yaml.Node) -> yaml.Node:
    """Makes texts of numbers with colons: 300:50 is a ramp, not 18,050."""
    if isinstance(node, yaml.ScalarNode) and node.tag in _NUMBERS and ":" in node.value:
        return yaml.ScalarNode(_TEXT, node.value, node.start_mark, node.end_mark)
    if isinstance(node, yaml.SequenceNode):
        node.value = [_without_base_60(one) for one in node.value]
    if isinstance(node, yaml.MappingNode):
        node.value = [(key, _without_base_60(value)) for key, value in node.value]
    return node


def _sentence(error: ValidationError, entries: Mapping[str, Entry], subject: str) -> str:
    """The first of the errors that pydantic found."""
    first = error.errors(include_url=False)[0]
    message = plain(first["msg"])
    stop = "" if message.endswith("?") else "."
    if not first["loc"]:
        return f"{subject}{message}{stop}"
    key = str(first["loc"][0])
    if first["type"] == "missing":
        return f"{subject}{key} is missing; give it."
    place = entries[key].place if key in entries else ""
    name = f"{place}: {key}" if place else f"--{key.replace('_', '-')}"
    value = first["input"] if isinstance(first["input"], str) else repr(first["input"])
    return f"{name} is {value}; {message}{stop}"
