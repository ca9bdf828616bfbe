"""Reading a configuration from a YAML file and options, with one sentence for what is wrong."""

import logging
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeVar

import yaml
from pydantic import ValidationError
from pydantic.fields import FieldInfo

from mdgraph.errors import (
    FileError,
    InputError,
    name_some,
    old_name,
    printable,
)
from mdgraph.io.commented_yaml import commented_defaults, is_nested
from mdgraph.io.files import as_text, read_file
from mdgraph.runs.config import Configuration
from mdgraph.runs.config_fields import Group, group_of, likely_names, nearest

logger = logging.getLogger(__name__)

C = TypeVar("C", bound=Configuration)

_LARGEST_FILE: Final = 1 << 22
_MOST_VALUES: Final = 50_000
_DEEPEST: Final = 32
"""Limits of a configuration file: bytes, values (repeated by aliases), and depth of nesting."""

_LONGEST_VALUE: Final = 120
"""Most characters of a value in an error."""

_TAG: Final = "tag:yaml.org,2002:"
_INTEGER: Final = re.compile(r"[-+]?(?:0|[1-9][0-9_]{0,30})\Z")
_FLOAT: Final = re.compile(
    r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+][0-9]+)?\Z"
    r"|[-+]?\.(?:inf|Inf|INF)\Z|\.(?:nan|NaN|NAN)\Z"
)


def _field(key: str) -> str:
    """The name of a field that a key stands for: dashes within a word are underscores."""
    return re.sub(r"(?<=[A-Za-z0-9])-(?=[A-Za-z])", "_", key)


class _Loader(yaml.SafeLoader):
    """Loads plain values of limited number and depth.

    Numbers with colons are texts: 300:50 is a ramp, not 18,050. Numbers with a leading zero,
    which are octal in YAML 1.1, and dates are texts too.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0
        self._values = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Composes a value and its parts; counts values and depth."""
        self._depth += 1
        self._values += 1
        if self._depth > _DEEPEST or self._values > _MOST_VALUES:
            deep = f"lists within lists, more than {_DEEPEST} deep"
            what = deep if self._depth > _DEEPEST else f"more than {_MOST_VALUES:,} values"
            raise yaml.composer.ComposerError(None, None, what, self.peek_event().start_mark)
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """The values of a mapping by their keys, with underscores for dashes."""
        values = super().construct_mapping(node, deep)
        return {
            _field(key) if isinstance(key, str) else key: value for key, value in values.items()
        }


_OTHERWISE: Final = {f"{_TAG}{word}" for word in ("int", "float", "timestamp")}
_Loader.yaml_implicit_resolvers = {
    first: [one for one in known if one[0] not in _OTHERWISE]
    for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(f"{_TAG}int", _INTEGER, list("-+0123456789"))
_Loader.add_implicit_resolver(f"{_TAG}float", _FLOAT, list("-+.0123456789"))


@dataclass(frozen=True)
class Entry:
    """A key of a YAML mapping, or an option of the command line.

    Attributes:
        key: name of the field.
        value: its value.
        place: file and line; empty for an option.
        node: the YAML node of the value; None for an option.
        word: the key as the file spells it; empty for an option.
    """

    key: str
    value: Any
    place: str = ""
    node: yaml.Node | None = None
    word: str = ""

    @property
    def name(self) -> str:
        """The key with its place, or the option, for the beginning of a sentence."""
        return f"{self.place}: {self.key}" if self.place else option_flag(self.key)


def option_flag(key: str) -> str:
    """The option of the command line for a field, such as --time-ps."""
    return f"--{Configuration.flags.get(key, key).replace('_', '-')}"


def read_configuration(
    kind: type[C],
    path: Path | None = None,
    options: Mapping[str, Any] | None = None,
    before: Mapping[str, Any] | None = None,
) -> C:
    """Makes a configuration.

    Args:
        kind: the class of the configuration.
        path: YAML file whose keys are the fields of `kind`, or None.
        options: values of the command line, which override those of the file.
        before: values that both override.

    Raises:
        FileError: the file cannot be read or is no YAML.
        InputError: an unknown or repeated key, or an invalid value; names the key and its line.
    """
    entries = [] if path is None else current_entries(read_entries(path), kind.renamed)
    check_keys(entries, kind.model_fields)
    earlier, layer = (
        [Entry(key, value) for key, value in (values or {}).items()] for values in (before, options)
    )
    return make_configuration(kind, earlier, entries, layer)


def grouped_defaults(kind: type[Configuration], names: Collection[str]) -> Iterator[str]:
    """Lines of a YAML file with the defaults of fields, in the order and groups of the help.

    Args:
        kind: the class of the configuration.
        names: of the fields.
    """
    for group in (None, *Group):
        own = [name for name in names if group_of(kind.model_fields[name]) == group]
        if own:
            yield from ("", f"# --- {group or 'Common options'} ---")
            yield from commented_defaults(kind, own)


def make_configuration(kind: type[C], *layers: Sequence[Entry], subject: str = "") -> C:
    """Makes a configuration from entries with known keys; later layers override earlier ones.

    Args:
        kind: the class of the configuration.
        layers: entries.
        subject: beginning of errors that concern no single key.

    Raises:
        InputError: an invalid value.
    """
    entries: dict[str, Entry] = {}
    for layer in layers:
        for entry in layer:
            others = kind.alternatives.get(entry.key, ())
            if others and others[0] not in entries:
                continue
            for alternative in others:
                if all(item.key != alternative for item in layer):
                    entries.pop(alternative, None)
        entries |= {entry.key: entry for entry in layer}
    try:
        return kind(**{key: entry.value for key, entry in entries.items()})
    except ValidationError as error:
        raise InputError(_sentence(error, entries, subject, kind.model_fields)) from error


def read_entries(path: Path) -> list[Entry]:
    """The entries of the YAML mapping that a file holds, none if it is empty."""
    text = as_text(path, read_file(path, "a configuration", _LARGEST_FILE))
    try:
        node = _Loader(text).get_single_node()
        if node is not None:
            _check_values(path, node, {})
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise FileError(
            f"{path}, line {line}: this is not YAML, as it holds a control character "
            f"(U+{ord(text[error.position]):04X}); repair the line."
        ) from error
    except yaml.YAMLError as error:
        raise _no_yaml(path, error) from error
    return [] if node is None else mapping_entries(path, node)


def _no_yaml(path: Path, error: yaml.YAMLError) -> FileError:
    mark = getattr(error, "problem_mark", None)
    where = f"{path}, line {mark.line + 1}" if mark is not None else str(path)
    problem = printable(getattr(error, "problem", None) or error, 2 * _LONGEST_VALUE)
    return FileError(f"{where}: this is not YAML ({problem}); repair the line.")


def _check_values(path: Path, node: yaml.Node, sizes: dict[int, int]) -> int:
    """Number of values in a node, including those that aliases repeat.

    Args:
        path: of the file.
        node: to check.
        sizes: of nodes by identity; 0 for nodes that are being counted.

    Raises:
        yaml.YAMLError: a value contains itself, or there are too many.
        InputError: a key is no word or appears twice.
    """
    if sizes.get(id(node)) == 0:
        raise yaml.constructor.ConstructorError(
            None, None, "a value is part of itself", node.start_mark
        )
    if id(node) in sizes or isinstance(node, yaml.ScalarNode):
        return sizes.get(id(node), 1)
    sizes[id(node)] = 0
    parts = node.value
    if isinstance(node, yaml.MappingNode):
        keys: set[str] = set()
        for key, _ in node.value:
            place = f"{path}, line {key.start_mark.line + 1}"
            if not isinstance(key, yaml.ScalarNode):
                raise InputError(f"{place}: a key is not a word; write lines such as 'steps: 100'.")
            if _field(key.value) in keys:
                name = printable(key.value, _LONGEST_VALUE)
                raise InputError(f"{place}: {name} is given twice; remove one of them.")
            keys.add(_field(key.value))
        parts = [value for _, value in node.value]
    size = 1 + sum(_check_values(path, part, sizes) for part in parts)
    if size > _MOST_VALUES:
        raise yaml.constructor.ConstructorError(
            None, None, f"aliases make it more than {_MOST_VALUES:,} values", node.start_mark
        )
    sizes[id(node)] = size
    return size


def mapping_entries(path: Path, node: yaml.Node) -> list[Entry]:
    """The entries of a mapping within a file; raises FileError for another node."""
    if not isinstance(node, yaml.MappingNode):
        where = f"{path}, line {node.start_mark.line + 1}" if node.start_mark.line else str(path)
        raise FileError(f"{where} holds no options; write lines such as 'timestep_fs: 0.5'.")
    return [
        Entry(
            _field(key.value),
            _value(path, value),
            f"{path}, line {key.start_mark.line + 1}",
            value,
            key.value,
        )
        for key, value in node.value
    ]


def _value(path: Path, node: yaml.Node) -> Any:
    """The value of a node; raises FileError for a value that does not fit its tag."""
    try:
        return _Loader("").construct_object(node, deep=True)
    except yaml.YAMLError as error:
        raise _no_yaml(path, error) from error
    # PyYAML trusts tags such as !!int before it parses the text.
    except (ValueError, TypeError, AttributeError, LookupError) as error:
        raise FileError(
            f"{path}, line {node.start_mark.line + 1}: this is not a value of its tag "
            f"({printable(error, _LONGEST_VALUE)}); leave the tag out."
        ) from error


def current_entries(entries: Sequence[Entry], renamed: Mapping[str, str]) -> list[Entry]:
    """Entries under current names, with one line of warning for each older name.

    Args:
        entries: of one mapping, or of the command line.
        renamed: of `Configuration`.

    Raises:
        InputError: one field is given by both of its names.
    """
    keys = {entry.key for entry in entries}
    current = []
    for entry in entries:
        key = renamed.get(entry.key, entry.key)
        if key != entry.key:
            new = key if entry.place else option_flag(key)
            if key in keys:
                raise InputError(f"{entry.name} is the old name of {new}; give {new} alone.")
            logger.warning("%s", old_name(entry.name, new))
        current.append(replace(entry, key=key))
    return current


def check_keys(
    entries: Sequence[Entry], known: Collection[str], elsewhere: Mapping[str, str] | None = None
) -> None:
    """Raises InputError for an unknown key, with the nearest known one.

    Args:
        entries: of one place in the file.
        known: keys of that place.
        elsewhere: where keys of other places belong, such as "beneath potential".
    """
    for entry in entries:
        if entry.key not in known:
            advice = nearest(entry.key, known)
            places = elsewhere or {}
            likely = likely_names(entry.key, [*places, *known])
            if entry.key in places:
                advice = f"it belongs {places[entry.key]}."
            elif len(likely) == 1 and likely[0] in places:
                advice = f"did you mean {likely[0]}, which belongs {places[likely[0]]}?"
            elif not likely_names(entry.key, known):
                advice = f"choose among {name_some(list(known), len(known))}."
            key = printable(entry.word or entry.key, _LONGEST_VALUE)
            raise InputError(f"{entry.place}: unknown key {key}; {advice}")


def plain(message: str) -> str:
    """A message of pydantic as the second half of a sentence."""
    message = message.replace("Value error, ", "", 1).replace("Input should", "it should", 1)
    if message.startswith("String should match pattern"):
        message = "it should be a word of letters, digits and underscores"
    message = message.replace("a valid tuple", "a list, such as [a, b]", 1)
    message = re.sub(
        r"^\w+ should have (.*) items? after .*", r"it should have \1 in its list", message
    )
    return message.replace("Unable", "unable", 1).partition(", unable to parse")[0]


def first_fault(error: ValidationError) -> str:
    """The first error of pydantic as part of a sentence, with the key it is of."""
    first = error.errors(include_url=False)[0]
    key = ".".join(map(str, first["loc"]))
    if first["type"] == "extra_forbidden":
        return f"there is no key {key}"
    return f"{key}: {plain(first['msg'])}" if key else plain(first["msg"])


def _as_options(message: str, entries: Collection[str], known: Collection[str]) -> str:
    """A message with keys as options of the command line.

    They are those of several words, the first word, and those of one word before a number.
    """
    first, space, rest = message.partition(" ")
    first = option_flag(first) if first in entries else first

    def spelt(match: re.Match[str]) -> str:
        return option_flag(match[0]) if "_" in match[0] or match[0] in known else match[0]

    return first + re.sub(r"(?<![-\w])(?:[a-z]+_\w+|[a-z]+(?= \d))", spelt, space + rest)


_ALTERNATIVE: Final = re.compile(r"(list|dict|tuple|set|function-[a-z]+|nullable)\[")
"""How pydantic begins the names of alternatives of a value."""


def _nested_sentence(error: Mapping[str, Any]) -> str:
    """What is wrong within a mapping or list of options."""
    # The kind, by which pydantic chose the class, follows the name or the number, and alternatives
    # of a value have names such as list[float].
    parts = [str(part) for number, part in enumerate(error["loc"][1:]) if number != 1]
    parts = [part for part in parts if not _ALTERNATIVE.match(part)]
    place, message = ".".join(parts), plain(error["msg"])
    stop = "" if message.endswith("?") else "."
    if error["type"] == "missing":
        return f"{place} is missing; give it."
    if error["type"] == "extra_forbidden":
        return f"{place} is no key; leave it out, or correct its name."
    value = error["input"]
    if isinstance(value, Mapping | list):
        return f"{place}: {message}{stop}" if place else f"{message}{stop}"
    return f"{place} is {printable(value, _LONGEST_VALUE)}; {message}{stop}"


def _sentence(
    error: ValidationError,
    entries: Mapping[str, Entry],
    subject: str,
    known: Mapping[str, FieldInfo],
) -> str:
    """A sentence for the first error of pydantic."""
    first = error.errors(include_url=False)[0]
    message = plain(first["msg"])
    stop = "" if message.endswith("?") else "."
    if not first["loc"]:
        if entries and not any(entry.place for entry in entries.values()):
            message = _as_options(message, entries, known)
        return f"{subject}{message}{stop}"
    key = str(first["loc"][0])
    name = entries[key].name if key in entries else option_flag(key)
    if len(first["loc"]) > 1 and key in known and is_nested(known[key].annotation):
        return f"{name}: {_nested_sentence(first)}"
    if first["type"] == "missing":
        return f"{subject}{key} is missing; give it."
    value = first["input"] if isinstance(first["input"], str) else repr(first["input"])
    return f"{name} is {printable(value, _LONGEST_VALUE)}; {message}{stop}"
