"""Options of the command line, made from the fields of a configuration."""

import inspect
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

import typer
from typer.core import TyperCommand, TyperGroup

from mdgraph.ensembles import ENSEMBLES, on_registration
from mdgraph.io.commented_yaml import is_nested
from mdgraph.runs.config import Configuration
from mdgraph.runs.config_fields import Group, group_of
from mdgraph.runs.config_files import Entry, current_entries, option_flag
from mdgraph.shipped import shipped_potentials

Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace a file that exists.")]
"""Of every command that writes a file."""


def completion(words: Callable[[], Collection[str]]) -> Callable[[str], list[str]]:
    """A shell completion: returns the words that begin with an incomplete value."""

    def complete(incomplete: str) -> list[str]:
        return [word for word in words() if word.startswith(incomplete)]

    return complete


def potential_argument(metavar: str) -> Any:
    """The argument of commands that take a potential but no configuration."""
    return typer.Argument(
        metavar=metavar,
        help="File, folder, shipped name or hf:// address.",
        autocompletion=completion(shipped_potentials),
    )


AddedTerms = Annotated[
    list[str] | None,
    typer.Option("--add", metavar="TERM", help="A term to add, such as d3bj:pbe; repeatable."),
]
Force = Annotated[
    bool, typer.Option("--force", help="Add dispersion even if the potential has it already.")
]
"""Of commands that take a potential and terms but no configuration."""

ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE.yaml", help="The options below as a YAML file."),
]

SETTINGS: Final[dict[str, Any]] = {
    "help_option_names": ["-h", "--help"],
    "token_normalize_func": lambda word: word.replace("_", "-"),
}
"""Of all commands: both spellings of help, and names of options with dashes or underscores."""


class GroupedCommands(TyperGroup):
    """Commands whose help shows them by purpose, each with a whole sentence."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Writes a section for each `rich_help_panel`, in the order of the commands."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            if command is not None and not command.hidden:
                title = getattr(command, "rich_help_panel", None) or "Commands"
                sections.setdefault(title, []).append((name, command.get_short_help_str(200)))
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


class GroupedCommand(TyperCommand):
    """A command whose help shows the common options first, then the others by their groups."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Writes arguments and options, one section for each group."""
        sections: dict[str, list[tuple[str, str]]] = {
            name: [] for name in ("Arguments", "Common options", *Group)
        }
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            group = getattr(parameter, "rich_help_panel", None) or "Common options"
            if record is not None:
                is_argument = parameter.param_type_name == "argument"
                sections["Arguments" if is_argument else group].append(record)
        for name, records in sections.items():
            if records:
                with formatter.section(name):
                    formatter.write_dl(records)


def options_of(kind: type[Configuration]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Adds an option to a command for each field of a configuration, with the default None.

    Names of earlier releases are hidden options. What holds options of its own is for files alone.
    """

    def extend(command: Callable[..., None]) -> Callable[..., None]:
        own = [
            parameter
            for parameter in inspect.signature(command).parameters.values()
            if parameter.kind is not parameter.VAR_KEYWORD
        ]

        def sign() -> None:
            # Typer reads the signature.
            signature = inspect.Signature([*own, *_options(kind)])
            command.__signature__ = signature  # type: ignore[attr-defined]

        sign()
        on_registration(sign)
        return command

    return extend


def _options(kind: type[Configuration]) -> list[inspect.Parameter]:
    plain = [name for name, field in kind.model_fields.items() if not is_nested(field.annotation)]
    fields = {name: name for name in plain} | dict(kind.renamed)
    return [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[
                _option_type(kind.model_fields[field].annotation) | None,
                _option(name, field, kind),
            ],
        )
        for name, field in fields.items()
    ]


def _option(name: str, field_name: str, kind: type[Configuration]) -> Any:
    field, hidden = kind.model_fields[field_name], name in kind.renamed
    text, group = field.description or "", group_of(field)
    complete = completion(partial(_words, field_name, field.annotation))
    if name in kind.arguments:
        return typer.Argument(
            help=text, metavar=name.upper(), show_default=False, autocompletion=complete
        )
    flag = option_flag(name)
    if field.annotation is bool:
        both = f"{flag}/--no-{flag[2:]}"
        return typer.Option(both, help=text, hidden=hidden, rich_help_panel=group)
    if field.default is not None:
        text = f"{text} (default {field.default})"
    metavar = _metavar(field.annotation)
    return typer.Option(
        flag,
        help=text,
        metavar=metavar,
        hidden=hidden,
        rich_help_panel=group,
        autocompletion=complete,
    )


def _words(field_name: str, annotation: Any) -> Collection[str]:
    """The words among which an option chooses, as far as they are known beforehand."""
    if field_name in ("potential", "inner_potential", "committee"):
        return shipped_potentials()
    if field_name == "ensemble":
        return ENSEMBLES
    inner = _inner(annotation)
    return get_args(inner) if get_origin(inner) is Literal else ()


def _option_type(annotation: Any) -> Any:
    """The type of the option of a field; most options are texts, which the configuration parses."""
    inner = _inner(annotation)
    if get_origin(inner) is tuple:
        return list[get_args(inner)[0]]  # type: ignore[misc]
    return bool if inner is bool else str


def _metavar(annotation: Any) -> str | None:
    """Text of an option's values in the help; None for any text."""
    inner = _inner(annotation)
    if get_origin(inner) is Literal:
        return f"<{'|'.join(get_args(inner))}>"
    return f"<{inner.__name__}>" if inner in (int, float) else None


def _inner(annotation: Any) -> Any:
    """A type without its checks and without None; str for several types."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _inner(parts[0])
    if origin in (Union, UnionType):
        inners = [_inner(part) for part in parts if part is not NoneType]
        return inners[0] if len(inners) == 1 else str
    return annotation


def given_options(options: dict[str, Any], kind: type[Configuration]) -> dict[str, Any]:
    """The options on the command line, by the names of their fields.

    Raises:
        InputError: an option is given by its old name and its new one.
    """
    entries = [Entry(name, value) for name, value in options.items() if value not in (None, [])]
    return {entry.key: entry.value for entry in current_entries(entries, kind.renamed)}
