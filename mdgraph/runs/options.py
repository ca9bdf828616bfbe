"""Options of the command line, made from the fields of a configuration."""

import inspect
from collections.abc import Callable
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import typer

from mdgraph.runs.configuration import Configuration


def options_of(kind: type[Configuration]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Gives a command an option for each field of a configuration, None where not given."""

    def extend(command: Callable[..., None]) -> Callable[..., None]:
        own = [
            parameter
            for parameter in inspect.signature(command).parameters.values()
            if parameter.kind is not parameter.VAR_KEYWORD
        ]
        options = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=None,
                annotation=Annotated[_option_type(field.annotation) | None, _option(name, kind)],
            )
            for name, field in kind.model_fields.items()
        ]
        # Typer reads the signature.
        command.__signature__ = inspect.Signature([*own, *options])  # type: ignore[attr-defined]
        return command

    return extend


def _option(name: str, kind: type[Configuration]) -> Any:
    field = kind.model_fields[name]
    text = field.description or ""
    if name in kind.arguments:
        return typer.Argument(help=text, metavar=name.upper(), show_default=False)
    flag = f"--{name.replace('_', '-')}"
    if field.annotation is bool:
        return typer.Option(f"{flag}/--no-{name.replace('_', '-')}", help=text)
    if field.default is not None:
        text = f"{text} (default {field.default})"
    return typer.Option(flag, help=text)


def _option_type(annotation: Any) -> Any:
    """The type of an option on the command line for that of a field."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _option_type(parts[0])
    if origin is tuple:
        return list[parts[0]]  # type: ignore[valid-type]
    if origin in (Union, UnionType):
        kinds = [_option_type(part) for part in parts if part is not NoneType]
        return kinds[0] if len(kinds) == 1 else str
    return annotation


def given_options(options: dict[str, Any]) -> dict[str, Any]:
    """The options that were given on the command line."""
    return {name: value for name, value in options.items() if value not in (None, [])}
