"""Reading a configuration from a YAML file and options, with one sentence for what is wrong."""

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import ValidationError

from mdgraph.errors import FileError, InputError, name_some
from mdgraph.io.files import disk_failures
from mdgraph.runs.configuration import Configuration

C = TypeVar("C", bound=Configuration)


def read_configuration(
    kind: type[C], path: Path | None = None, options: Mapping[str, Any] | None = None
) -> C:
    """Makes a configuration.

    Args:
        kind: MDConfig or EvalConfig.
        path: YAML file whose keys are the fields of `kind`, or None.
        options: values of the command line, which come before those of the file.

    Raises:
        FileError: the file cannot be read or is no YAML.
        InputError: an unknown or repeated key, or a value that cannot be; names the key and
            its line.
    """
    values: dict[str, Any] = {}
    places: dict[str, str] = {}
    if path is not None:
        for key, line, value in _entries(path):
            place = f"{path}, line {line}"
            if key in values:
                raise InputError(f"{place}: {key} is given twice; remove one of them.")
            if key not in kind.model_fields:
                raise InputError(f"{place}: {_unknown_key(key, list(kind.model_fields))}")
            values[key], places[key] = value, place
    options = options or {}
    for key in options:
        for other in kind.alternatives.get(key, ()):
            values.pop(other, None)
    values |= options
    places |= dict.fromkeys(options, "")
    try:
        return kind(**values)
    except ValidationError as error:
        raise InputError(_sentence(error, places)) from error


def _entries(path: Path) -> list[tuple[str, int, Any]]:
    """Key, line and value of each entry of a YAML mapping."""
    with disk_failures(path, "read"):
        content = path.read_bytes()
    try:
        node = yaml.compose(content, yaml.SafeLoader)
        loader = yaml.SafeLoader(b"")
        if node is None:
            return []
        if not isinstance(node, yaml.MappingNode):
            raise FileError(f"{path} holds no options; write lines such as 'timestep_fs: 0.5'.")
        return [
            (str(key.value), key.start_mark.line + 1, loader.construct_object(value, deep=True))
            for key, value in node.value
        ]
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}, line {mark.line + 1}" if mark is not None else str(path)
        problem = getattr(error, "problem", None) or "it is not text"
        raise FileError(f"{where}: this is not YAML ({problem}); repair the line.") from error


def _unknown_key(key: str, known: list[str]) -> str:
    folded = {name.casefold(): name for name in known}
    near = difflib.get_close_matches(key.casefold(), folded, n=1, cutoff=0.5)
    if near:
        return f"unknown key {key}; did you mean {folded[near[0]]}?"
    return f"unknown key {key}; choose among {name_some(known, len(known))}."


def _sentence(error: ValidationError, places: Mapping[str, str]) -> str:
    """The first of the errors that pydantic found."""
    first = error.errors(include_url=False)[0]
    message = first["msg"].removeprefix("Value error, ")
    if not first["loc"]:
        return f"{message}."
    key = str(first["loc"][0])
    if first["type"] == "missing":
        return f"{key} is missing; give it."
    name = f"{places[key]}: {key}" if places.get(key) else f"--{key.replace('_', '-')}"
    value = first["input"] if isinstance(first["input"], str) else repr(first["input"])
    message = message.replace("Input should", "it should", 1)
    return f"{name} is {value}; {message}."
