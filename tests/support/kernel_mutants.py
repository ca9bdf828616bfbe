"""Kernels with one operator changed: made from their source in memory, never on disk.

A mutant is one change of one function: + for -, a factor left out, < for <=, another constant,
an index off by one, a sign. `mutated` puts it, and anew all kernels that call it, in the place
of the sound ones, for as long as its context lasts. Nothing of it is kept in a cache of Numba,
which knows no file of that name; Triton's goes by the source.
"""

import ast
import copy
import linecache
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import numpy as np

PACKAGES: Final = ("mdgraph.fused.cpu", "mdgraph.fused.cuda", "mdgraph.models.kernels")
"""Where kernels lie that call each other."""

_DECORATORS: Final = ("kernel", "routine", "jit")

_OPPOSITE: Final = {ast.Add: ast.Sub, ast.Sub: ast.Add}
_WITH_EQUAL: Final = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}


@dataclass(frozen=True)
class Mutant:
    """One change.

    Attributes:
        module: dotted name.
        function: name of the function, or of a constant of the module.
        site: number of the node in it, as `ast.walk` counts.
        kind: `sum`, `factor`, `comparison`, `constant`, `index` or `sign`.
        line: in the file.
        text: before and after.
    """

    module: str
    function: str
    site: int
    kind: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.module.removeprefix('mdgraph.')}.{self.function}:{self.line} {self.text}"


def mutants_of(module: str, functions: Sequence[str] | None = None) -> list[Mutant]:
    """All mutants of the kernels of a module, or of some of its functions."""
    found = []
    for name, node in _definitions(import_module(module)).items():
        if functions is not None and name not in functions:
            continue
        for site, part in enumerate(ast.walk(node)):
            for kind, after in _changes(part):
                before = ast.unparse(part)
                line = getattr(part, "lineno", node.lineno)
                text = f"{kind}: {before} -> {ast.unparse(after)}"
                found.append(Mutant(module, name, site, kind, line, text))
    return [one for one in found if not _is_shape(one)]


def chosen(modules: Sequence[str], number: int, seed: int = 0) -> list[Mutant]:
    """So many mutants, spread over modules, functions and kinds; repeatable."""
    rng = np.random.default_rng(seed)
    pools = {module: mutants_of(module) for module in modules}
    found: list[Mutant] = []
    while len(found) < number and any(pools.values()):
        for pool in pools.values():
            if not pool or len(found) == number:
                continue
            functions = sorted({one.function for one in pool})
            function = functions[rng.integers(len(functions))]
            kinds = sorted({one.kind for one in pool if one.function == function})
            kind = kinds[rng.integers(len(kinds))]
            choices = [one for one in pool if (one.function, one.kind) == (function, kind)]
            mutant = choices[rng.integers(len(choices))]
            pool.remove(mutant)
            found.append(mutant)
    return found


@contextmanager
def mutated(mutant: Mutant) -> Iterator[None]:
    """The mutant instead of the sound kernel, for evaluators that are made in the context."""
    modules = _loaded()
    definitions = {module.__name__: _definitions(module) for module in modules}
    affected = _affected(mutant, definitions)
    old = {
        (module, name): getattr(sys.modules[module], name)
        for module, name in [(mutant.module, mutant.function), *affected]
    }
    changed = copy.deepcopy(definitions[mutant.module][mutant.function])
    _apply(changed, mutant)
    places = [
        (module, name, key)
        for module in _package()
        for name, value in list(vars(module).items())
        for key, known in old.items()
        if value is known
    ]
    try:
        _execute(changed, mutant.module, mutant.function)
        for module, name in affected:
            if (module, name) != (mutant.module, mutant.function):
                _execute(definitions[module][name], module, name)
        made = {key: getattr(sys.modules[key[0]], key[1]) for key in old}
        for place, name, key in places:
            setattr(place, name, made[key])
        yield
    finally:
        for place, name, key in places:
            setattr(place, name, old[key])


def _package() -> list[ModuleType]:
    return [one for name, one in sys.modules.items() if name.startswith("mdgraph.") and one]


def _loaded() -> list[ModuleType]:
    """Loaded modules that hold kernels."""
    return [one for one in _package() if one.__name__.startswith(PACKAGES) and one.__file__]


def _definitions(module: ModuleType) -> dict[str, Any]:
    """Kernels, and numbers that they read, by name."""
    assert module.__file__ is not None
    found: dict[str, Any] = {}
    for node in ast.parse(Path(module.__file__).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef) and _is_kernel(node):
            found[node.name] = node
        elif isinstance(node, ast.AnnAssign | ast.Assign):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            value = vars(module).get(target.id) if isinstance(target, ast.Name) else None
            if isinstance(getattr(value, "value", value), float):
                found[target.id] = node  # type: ignore[union-attr]
    return found


def _is_kernel(node: ast.FunctionDef) -> bool:
    names = [getattr(one, "id", getattr(one, "attr", "")) for one in node.decorator_list]
    return any(name in _DECORATORS for name in names)


def _affected(mutant: Mutant, definitions: dict[str, dict[str, Any]]) -> list[tuple[str, str]]:
    """Functions that reach the mutant, itself included where it is one; no order is needed,
    as kernels look names up when they are compiled."""
    owners = {
        id(vars(sys.modules[module])[name]): (module, name)
        for module, named in definitions.items()
        for name, node in named.items()
        if isinstance(node, ast.FunctionDef)
    }
    imported = {
        module: {
            name: owners[id(value)]
            for name, value in vars(sys.modules[module]).items()
            if id(value) in owners
        }
        for module in definitions
    }
    reached = {(mutant.module, mutant.function)}
    if not isinstance(definitions[mutant.module][mutant.function], ast.FunctionDef):
        number = vars(sys.modules[mutant.module])[mutant.function]
        for module, named in imported.items():
            if vars(sys.modules[module]).get(mutant.function) is number:
                named[mutant.function] = (mutant.module, mutant.function)
    while True:
        more = {
            (module, name)
            for module, named in definitions.items()
            for name, node in named.items()
            if isinstance(node, ast.FunctionDef)
            for part in ast.walk(node)
            if isinstance(part, ast.Name)
            and imported[module].get(part.id, (module, part.id)) in reached
        } - reached
        if not more:
            break
        reached |= more
    return [
        (module, name)
        for module, name in sorted(reached)
        if isinstance(definitions[module][name], ast.FunctionDef)
    ]


def _execute(node: Any, module: str, name: str) -> None:
    """Defines it anew in its module, from a source that inspection finds."""
    text = ast.unparse(node) + "\n"
    file = f"<mutant of {module}.{name} {hash(text)}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    exec(compile(text, file, "exec"), vars(sys.modules[module]))


def _changes(node: ast.AST) -> list[tuple[str, ast.AST]]:
    """What a node may become, with the kind of each change."""
    new = copy.deepcopy(node)
    if isinstance(new, ast.BinOp) and type(new.op) in _OPPOSITE:
        new.op = _OPPOSITE[type(new.op)]()
        return [("sum", new)]
    if isinstance(new, ast.BinOp) and isinstance(new.op, ast.Mult | ast.Div):
        return [("factor", new.left)]
    if isinstance(new, ast.AugAssign) and type(new.op) in _OPPOSITE:
        new.op = _OPPOSITE[type(new.op)]()
        return [("sign", new)]
    if isinstance(new, ast.UnaryOp) and isinstance(new.op, ast.USub):
        return [("sign", new.operand)]
    if isinstance(new, ast.Compare) and len(new.ops) == 1 and type(new.ops[0]) in _WITH_EQUAL:
        new.ops = [_WITH_EQUAL[type(new.ops[0])]()]
        return [("comparison", new)]
    if isinstance(new, ast.Constant) and isinstance(new.value, float):
        new.value = 1.01 * new.value if new.value else 1e-3
        return [("constant", new)]
    if isinstance(new, ast.Subscript) and isinstance(new.ctx, ast.Load):
        place = getattr(new.slice, "value", None)
        if isinstance(place, int):
            new.slice = ast.Constant(place - 1 if place else 1)
            return [("index", new)]
    return []


def _is_shape(mutant: Mutant) -> bool:
    """Whether it changes a size that a kernel is compiled for, so that it does not compile."""
    return "constexpr" in mutant.text or ".shape" in mutant.text


def _apply(tree: Any, mutant: Mutant) -> None:
    target = list(ast.walk(tree))[mutant.site]
    ((_, new),) = [one for one in _changes(target) if one[0] == mutant.kind]
    for parent in ast.walk(tree):
        for field, value in ast.iter_fields(parent):
            if value is target:
                setattr(parent, field, new)
            elif isinstance(value, list) and target in value:
                value[value.index(target)] = new
