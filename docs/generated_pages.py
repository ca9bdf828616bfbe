"""What is made of the source: options, files of options, public names, and pages of potentials.

A line `<!-- commands -->`, `<!-- configuration NAME -->` or `<!-- names PACKAGE -->` of a page
stands for the first three. Each card in `potentials/` is a page in `docs/potentials/`.
"""

import importlib
import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import typer.main
from docutils import nodes
from pydantic import BaseModel
from sphinx.addnodes import download_reference, pending_xref
from sphinx.application import Sphinx
from sphinx.pycode import ModuleAnalyzer

from mdgraph.cli import app as commands
from mdgraph.distil.config import DistilConfig
from mdgraph.io.commented_yaml import default_of, description_of, model_of
from mdgraph.runs.biased.config import BIAS_KINDS, VARIABLE_KINDS
from mdgraph.runs.config import (
    Configuration,
    EvalConfig,
    MDConfig,
    MinimizeConfig,
    RelaxConfig,
)
from mdgraph.runs.config_fields import Group, group_of
from mdgraph.train.config import TrainConfig

ROOT: Final = Path(__file__).resolve().parent.parent

CONFIGURATIONS: Final[dict[str, type[BaseModel]]] = {
    "md": MDConfig,
    "minimise": MinimizeConfig,
    "eval": EvalConfig,
    "relax": RelaxConfig,
    "train": TrainConfig,
    "distil": DistilConfig,
}

KINDS: Final[dict[str, Mapping[str, type[BaseModel]]]] = {
    "variables": VARIABLE_KINDS,
    "biases": BIAS_KINDS,
}
"""What the items of these keys of `mdgraph md` may be."""


def plain(text: str) -> str:
    """Text in which Markdown sees no marks."""
    return re.sub(r"([\\`*_{}\[\]<>#|$~])", r"\\\1", text)


# Options of the command line


def command_lines() -> Iterator[str]:
    """Every command with its arguments and options, as the help has them."""
    group = typer.main.get_command(commands)
    yield from _group_lines(group, "mdgraph")


def _group_lines(group: Any, name: str) -> Iterator[str]:
    for word, command in sorted(group.commands.items()):
        if command.hidden:
            continue
        path = f"{name} {word}"
        if hasattr(command, "commands"):
            yield from _group_lines(command, path)
            continue
        context = command.make_context(path, [], resilient_parsing=True)
        pieces = [re.sub(r"[{}]", "", piece) for piece in command.collect_usage_pieces(context)]
        usage = " ".join([path, *pieces]).replace("......", "...")
        yield from ("", f"## {path}", "", *_paragraphs(command.help or ""))
        yield from ("", "```text", usage, "```", "", "```{program} " + path, "```")
        sections = _sections(command, context)
        for title, records in sections.items():
            if len(sections) > 2:
                yield from ("", "```{rubric} " + title, "```")
            for names, text in records:
                yield from ("", "```{option} " + names.replace(" / ", ", "), plain(text), "```")


def _paragraphs(text: str) -> list[str]:
    return [plain(line.strip()) for line in inspect.cleandoc(text).splitlines()]


def _sections(command: Any, context: Any) -> dict[str, list[tuple[str, str]]]:
    """Names and help of what a command takes, by the groups of its help."""
    parameters = [item for item in command.get_params(context) if item.name != "help"]
    records = [(item, item.get_help_record(context)) for item in parameters]
    shown = [(item, record) for item, record in records if record is not None]
    groups = {getattr(item, "rich_help_panel", None) for item, _ in shown}
    common = "Common options" if groups - {None} else "Options"
    sections: dict[str, list[tuple[str, str]]] = {}
    for title in ("Arguments", common, *Group):
        own = [record for item, record in shown if _title(item, common) == title]
        if own:
            sections[title] = own
    return sections


def _title(parameter: Any, common: str) -> str:
    if parameter.param_type_name == "argument":
        return "Arguments"
    return getattr(parameter, "rich_help_panel", None) or common


# Files of options


def configuration_lines(name: str) -> Iterator[str]:
    """Every key of the file of a command, in the groups of the help."""
    if name in KINDS:
        for kind, inner in KINDS[name].items():
            summary = plain((inspect.getdoc(inner) or "").partition("\n\n")[0])
            yield from ("", f"### kind: {kind}", "", summary)
            keys = [key for key in inner.model_fields if key != "kind"]
            yield from _key_lines(inner, keys, "")
        return
    model = CONFIGURATIONS[name]
    if not issubclass(model, Configuration):
        yield from _key_lines(model, model.model_fields, "")
        return
    for group in (None, *Group):
        own = [key for key, field in model.model_fields.items() if group_of(field) == group]
        if own:
            yield from ("", f"### {group or 'Common keys'}")
            yield from _key_lines(model, own, "")


def _key_lines(model: type[BaseModel], keys: Any, prefix: str) -> Iterator[str]:
    for key in keys:
        field = model.model_fields[key]
        inner = model_of(field.annotation)
        text = description_of(model, key)
        if inner is None:
            yield from _key(f"{prefix}{key}", field, text)
            continue
        text = text or (inspect.getdoc(inner) or "").partition("\n\n")[0]
        yield from _key(f"{prefix}{key}", field, text, nested=True)
        yield from _key_lines(inner, inner.model_fields, f"{prefix}{key}.")


def _key(name: str, field: Any, text: str, *, nested: bool = False) -> Iterator[str]:
    default = default_of(field)
    if field.examples:
        shown = f" for example `{default}`"
    elif field.is_required():
        shown = " must be given"
    elif nested or default is None:
        shown = ""
    else:
        shown = f" default `{str(default).lower() if isinstance(default, bool) else default}`"
    yield from ("", f"`{name}`{shown}", f": {plain(' '.join(text.split())) or '&nbsp;'}")


# Public names


PACKAGES: Final = (
    "mdgraph.engine",
    "mdgraph.engine.integrators",
    "mdgraph.engine.observables",
    "mdgraph.biases",
    "mdgraph.checkpoints",
    "mdgraph.models",
    "mdgraph.neighbors",
    "mdgraph.data",
    "mdgraph.train",
    "mdgraph.io.formats",
    "mdgraph.drivers.ase",
    "mdgraph.drivers.openmm",
    "mdgraph.drivers.openmmml",
    "mdgraph.drivers.torchforce",
)
"""Packages with public names; each name is explained in the first that has it."""

MODULES: Final = {
    "mdgraph.system": ("System",),
    "mdgraph.state": ("State",),
    "mdgraph.ensembles": ("Ensemble", "Option", "ensemble", "register"),
    "mdgraph.evaluators": ("Evaluator",),
    "mdgraph.selection": ("select_atoms",),
    "mdgraph.io.structures": ("read_system", "read_systems", "from_ase", "to_ase"),
    "mdgraph.analysis.plots": ("run_figure", "recorded_figure"),
    "mdgraph.errors": (
        "MDGraphError",
        "InputError",
        "FileError",
        "CheckpointError",
        "UnknownSpeciesError",
        "StressUndefinedError",
        "CapacityError",
        "SelfCheckError",
        "SimulationError",
        "MDGraphFutureWarning",
    ),
}
"""Names of other modules that the pages of this site use."""


def name_lines(package: str) -> Iterator[str]:
    """The public names of a package with their docstrings, but for those explained before."""
    module = importlib.import_module(package)
    before: set[int] = set()
    for earlier in PACKAGES[: PACKAGES.index(package)] if package in PACKAGES else ():
        others = importlib.import_module(earlier)
        before |= {id(getattr(others, name)) for name in others.__all__}
    names = MODULES[package] if package in MODULES else sorted(module.__all__, key=_rank)
    yield from ("```{eval-rst}", f".. py:module:: {package}", "")
    for name in names:
        value = getattr(module, name)
        if id(value) in before:
            continue
        if inspect.isclass(value):
            yield from (f".. autoclass:: {package}.{name}", "   :members:")
            if value.__bases__ != (object,):
                yield "   :show-inheritance:"
        elif inspect.isroutine(value):
            yield f".. autofunction:: {package}.{name}"
        else:
            yield from (f".. py:data:: {package}.{name}", "")
            yield from (f"   {line}" for line in _constant_docstring(name, value))
        yield ""
    yield "```"


def _constant_docstring(name: str, value: Any) -> list[str]:
    """The docstring below a constant, in whichever module defines it; empty without one."""
    for module_name, module in sorted(sys.modules.items()):
        if module_name.startswith("mdgraph.") and vars(module).get(name) is value:
            lines = ModuleAnalyzer.for_module(module_name).find_attr_docs().get(("", name))
            if lines:
                return lines
    return []


def _rank(name: str) -> int:
    """The order of names: first what `mdgraph` itself exports, then the others as they stand."""
    main = ("Simulation", "LangevinMiddle", "VelocityVerlet", "load", "MDGraphCalculator")
    return main.index(name) if name in main else len(main)


# Docstrings are written for readers of the source, without the marks of reStructuredText.


def mark_up(app: Sphinx, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Makes literal blocks of equations, paragraphs that have an arrow, and keeps bars of |x|."""
    text = re.sub(r"^Attributes, .*:$", "Attributes:", "\n".join(lines), flags=re.MULTILINE)
    paragraphs = text.split("\n\n")
    for number, text in enumerate(paragraphs):
        if re.search(r"^\s*[^`]*<- ", text, re.MULTILINE):
            paragraphs[number] = "::\n\n" + "\n".join(f"  {line}" for line in text.splitlines())
        else:
            paragraphs[number] = re.sub(r"(?<![\w`])\|(?=\w)", r"\\|", text)
    lines[:] = "\n\n".join(paragraphs).split("\n")


_ARRAY: Final = re.compile(
    r"~?numpy\.ndarray\[tuple\[~?typing\.Any, \.\.\.\], ~?numpy\.dtype\[~?(numpy\.)?([\w.]+)\]\]"
)
_ARRAY_LIKE: Final = re.compile(
    r"~?\S*_Buffer \| ~?\S*_SupportsArray\[.*?\]\]? \| ~?\S*_NestedSequence\[.*?\]\]\]? "
    r"\| complex \| bytes \| str \| ~?\S*_NestedSequence\[complex \| bytes \| str\]"
)


def shorten(text: str | None) -> str | None:
    """A signature in which NumPy's types have the names that the source gives them."""
    if text is None:
        return None
    return _ARRAY_LIKE.sub("ArrayLike", _ARRAY.sub(r"NDArray[\2]", text))


def shorten_signature(
    app: Sphinx,
    what: str,
    name: str,
    value: Any,
    options: Any,
    signature: str | None,
    returned: str | None,
) -> tuple[str | None, str | None]:
    """Shortens the types of a signature."""
    return shorten(signature), shorten(returned)


MAKERS: Final = {
    "commands": command_lines,
    "configuration": configuration_lines,
    "names": name_lines,
}


def write_card_pages(app: Sphinx) -> None:
    """Writes the page of each shipped potential, which includes its card."""
    folder = Path(app.srcdir) / "potentials"
    cards = {card.parent.name for card in ROOT.glob("potentials/*/card.md")}
    for page in folder.glob("*.md"):
        if page.stem not in cards | {"index"}:
            page.unlink()
    for name in cards:
        text = f"```{{include}} ../../potentials/{name}/card.md\n:relative-images:\n```\n"
        page = folder / f"{name}.md"
        if not page.exists() or page.read_text(encoding="utf-8") != text:
            page.write_text(text, encoding="utf-8")


def fill_in(app: Sphinx, name: str, source: list[str]) -> None:
    """Puts generated text in the place of its marks; links to CONTRIBUTING.md stay in the site."""
    source[0] = source[0].replace("](../CONTRIBUTING.md)", "](contributing.md)")

    def made(mark: re.Match[str]) -> str:
        return "\n".join(MAKERS[mark[1]](*mark[2].split()))

    source[0] = re.sub(
        r"^<!-- (commands|configuration|names)(.*) -->$", made, source[0], flags=re.MULTILINE
    )


def link_paths(app: Sphinx, document: nodes.document) -> None:
    """Makes links of `docs/NAME.md` and of files of the repository that code marks name."""
    for literal in list(document.findall(nodes.literal)):
        path = literal.astext()
        if isinstance(literal.parent, nodes.reference | pending_xref) or not re.fullmatch(
            r"(docs|examples|benchmarks)/[\w./-]+\.\w+", path
        ):
            continue
        if path.startswith("docs/") and path.endswith(".md"):
            link = pending_xref(
                refdomain="std",
                reftype="doc",
                reftarget=f"/{path.removeprefix('docs/').removesuffix('.md')}",
                refexplicit=False,
                refwarn=True,
                refdoc=app.env.docname,
            )
            link += nodes.inline("", path)
        elif (ROOT / path).is_file():
            link = download_reference(
                reftarget=f"/../{path}", refdoc=app.env.docname, refdomain="", refexplicit=False
            )
            link += literal.deepcopy()
        else:
            continue
        literal.replace_self(link)


def setup(app: Sphinx) -> dict[str, Any]:
    """Adds the parts to Sphinx."""
    app.connect("builder-inited", write_card_pages)
    app.connect("source-read", fill_in)
    app.connect("doctree-read", link_paths)
    app.connect("autodoc-process-docstring", mark_up, priority=1)
    app.connect("autodoc-process-signature", shorten_signature)
    return {"version": "1", "parallel_read_safe": True}
