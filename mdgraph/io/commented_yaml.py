"""YAML files in which each key has the docstring of its field as a comment.

So the class of some options explains each of them once, for the command line and for files.
"""

import inspect
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Literal, get_args, get_origin

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

_WIDTH: Final = 100


def comment(text: str, depth: int = 0) -> list[str]:
    """Text as lines of a comment, indented as keys of that depth."""
    prefix = "  " * depth + "# "
    return textwrap.wrap(text, _WIDTH, initial_indent=prefix, subsequent_indent=prefix)


def commented_keys(
    model: type[BaseModel], settings: Mapping[str, Any], depth: int = 0
) -> Iterator[str]:
    """Lines of a YAML mapping, with a comment above each key.

    Args:
        model: class of the options.
        settings: values of its fields, nested as in the file, in the order of the lines; None
            gives a key without a value.
        depth: of the mapping within the file.
    """
    indent = "  " * depth
    for name, value in settings.items():
        inner = model_of(model.model_fields[name].annotation)
        text = description_of(model, name)
        if isinstance(value, Mapping) and inner is not None:
            yield from comment(text or (inspect.getdoc(inner) or "").partition("\n\n")[0], depth)
            yield f"{indent}{name}:"
            yield from commented_keys(inner, value, depth + 1)
        else:
            yield from comment(text, depth)
            inline = yaml.safe_dump(value, default_flow_style=True, width=1000)
            shown = "" if value is None else inline.strip().removesuffix("...").strip()
            yield f"{indent}{name}: {shown}".rstrip()


def commented_defaults(model: type[BaseModel], names: Iterable[str] | None = None) -> Iterator[str]:
    """Lines of a YAML mapping with the defaults of fields, each behind a #.

    A field that must be given has an example, which stands there without the #.

    Args:
        model: class of the options.
        names: of the fields, in the order of the lines; without them, all fields.
    """
    for name in model.model_fields if names is None else names:
        field = model.model_fields[name]
        lines = commented_keys(model, {name: default_of(field)})
        yield from (
            line if field.examples or line.startswith("#") else f"#{line}" for line in lines
        )


def model_of(annotation: Any) -> type[BaseModel] | None:
    """The class of nested options that an annotation names; None for plain values."""
    for part in (annotation, *get_args(annotation)):
        if isinstance(part, type) and issubclass(part, BaseModel):
            return part
    return None


def is_nested(annotation: Any) -> bool:
    """Whether values of an annotation hold options of their own, as lists of them do too."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return True
    return any(map(is_nested, get_args(annotation)))


def default_of(field: FieldInfo) -> Any:
    """The value of a field as a file has it: its example where it must be given, or its default."""
    if field.examples:
        return field.examples[0]
    value = field.get_default(call_default_factory=True)
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    return list(value) if isinstance(value, tuple) else value


def description_of(model: type[BaseModel], name: str) -> str:
    """The docstring of a field, which a subclass that changes its default need not repeat."""
    fields = (base.model_fields.get(name) for base in model.__mro__ if issubclass(base, BaseModel))
    text = next((field.description for field in fields if field and field.description), "")
    words = _words(model.model_fields[name].annotation)
    if all(word in text for word in words):
        return text
    return f"{text} One of {', '.join(words)}.".strip()


def _words(annotation: Any) -> list[str]:
    """Words that an annotation allows."""
    if get_origin(annotation) is Literal:
        return [str(word) for word in get_args(annotation)]
    return [word for part in get_args(annotation) for word in _words(part)]
