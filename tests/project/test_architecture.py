"""The source keeps its order: imports go one way, and only the borders know other packages."""

import ast
import collections
import graphlib
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from repository import ROOT

PACKAGE = ROOT / "mdgraph"

# From the bottom. A room, which is a top-level folder or module, imports rooms of its own level
# and of those below it, and no file imports itself by way of others.
LEVELS = (
    {
        "arguments",
        "devices",
        "ensembles",
        "errors",
        "host_memory",
        "host_tensors",
        "numba_jit",
        "precision",
        "processes",
        "signals",
        "state",
        "system",
        "units",
    },
    {"io"},
    {"gpu", "neighbors", "models", "checkpoints", "data", "selection", "shipped"},
    {"evaluators", "memory"},
    {"fused"},
    {"decomposition", "biases"},
    {"engine"},
    {"drivers", "train", "analysis", "validate"},
    {"distil"},
    {"runs"},
    {"cli"},
)
LEVEL = {room: level for level, rooms in enumerate(LEVELS) for room in rooms}
LARGEST_FOLDER = 20
ENTRY_POINTS = {"__init__", "__main__", "moved"}

USERS_OF_IO = {"checkpoints", "data", "engine", "drivers", "shipped", "train", "distil", "runs"}
FOREIGN = {"ase", "openmm", "openmmml", "openmmtorch"}
USERS_OF_FOREIGN = {"drivers", "io", "data", "validate"}
SHAPELESS_NAMES = {"utils", "util", "helpers", "helper", "misc", "common"}


def sources(package: Path) -> list[Path]:
    return sorted(package.rglob("*.py"))


@cache
def nodes(path: Path) -> list[ast.AST]:
    """All of a file, which no test changes once it is read."""
    return list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


@pytest.fixture(autouse=True, scope="module")
def forgotten() -> Iterator[None]:
    """A million nodes would burden each collection of garbage of the tests that follow."""
    yield
    nodes.cache_clear()


def part_of(path: Path, package: Path) -> str:
    return path.relative_to(package).parts[0].removesuffix(".py")


def imported_modules(path: Path, package: Path) -> Iterator[str]:
    """Absolute dotted names of everything a file imports, wherever in the file."""
    own_package = (package.name, *path.relative_to(package).parent.parts)
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = own_package[: len(own_package) - node.level + 1] if node.level else ()
            module = ".".join([*base, *filter(None, [node.module])])
            yield from (f"{module}.{alias.name}" for alias in node.names)


def module_name(path: Path, package: Path) -> str:
    parts = path.relative_to(package.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(package: Path) -> dict[str, set[str]]:
    """Modules that each module imports; of what a package hands on, the module that defines it."""
    files = {module_name(path, package): path for path in sources(package)}
    handed_on = {
        name: {target.rpartition(".")[2]: target for target in imported_modules(path, package)}
        for name, path in files.items()
        if path.name == "__init__.py"
    }

    def definition(target: str) -> str | None:
        if target in files:
            return target
        module, _, name = target.rpartition(".")
        further = handed_on.get(module, {}).get(name)
        if further is not None:
            return definition(further)
        return module if module in files else None

    return {
        name: {found for target in imported_modules(path, package) if (found := definition(target))}
        for name, path in files.items()
        if path.name != "__init__.py"
    }


def violations(package: Path) -> list[str]:
    """One sentence for each import that breaks the order, and for cycles of files and rooms."""
    found = []
    siblings: dict[str, set[str]] = {}
    for path in sources(package):
        part = part_of(path, package)
        if part in ENTRY_POINTS:
            continue
        where = path.relative_to(package.parent).as_posix()
        if part not in LEVEL:
            found.append(f"{where}: '{part}' has no place in LEVELS")
            continue
        for module in imported_modules(path, package):
            top, _, rest = module.partition(".")
            if top in FOREIGN and part not in USERS_OF_FOREIGN:
                found.append(f"{where}: imports {top}")
            if top != package.name:
                continue
            target = rest.partition(".")[0]
            if target in (part, "__version__"):
                continue
            if target not in LEVEL:
                found.append(f"{where}: imports '{target}' from the package's root")
            elif LEVEL[target] > LEVEL[part]:
                found.append(f"{where}: imports {target}, which lies above it")
            elif target == "io" and part not in USERS_OF_IO:
                found.append(f"{where}: imports io")
            elif (part, target) == ("train", "engine"):
                found.append(f"{where}: training imports the engine")
            elif LEVEL[target] == LEVEL[part]:
                siblings.setdefault(part, set()).add(target)
    for arrows in (siblings, imports_of(package)):
        try:
            graphlib.TopologicalSorter(arrows).prepare()
        except graphlib.CycleError as error:
            found.append("cycle: " + " -> ".join(error.args[1]))
            break
    return found


def test_imports_go_one_way() -> None:
    assert violations(PACKAGE) == []


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"units.py": "import mdgraph.engine.simulation"}, "engine, which lies above"),
        ({"models/zbl.py": "from mdgraph import fused"}, "fused, which lies above"),
        ({"models/zbl.py": "from ..fused import tables"}, "fused, which lies above"),
        ({"train/loop.py": "def f():\n    from mdgraph.engine import run"}, "imports the engine"),
        ({"models/zbl.py": "from mdgraph.io import files"}, "imports io"),
        ({"engine/run.py": "from mdgraph import load"}, "'load' from the package's root"),
        ({"engine/run.py": "import ase.io"}, "imports ase"),
        ({"analysis/rdf.py": "from openmm import unit"}, "imports openmm"),
        ({"tools.py": ""}, "no place in LEVELS"),
        (
            {"system.py": "import mdgraph.state", "state.py": "import mdgraph.system"},
            "cycle: ",
        ),
        (
            {
                "engine/__init__.py": "from mdgraph.engine.run import Run",
                "engine/run.py": "def f():\n    from mdgraph.engine.watch import Watch",
                "engine/watch.py": "if TYPE_CHECKING:\n    from mdgraph.engine import Run",
            },
            "cycle: ",
        ),
    ],
)
def test_each_broken_rule_is_found(tmp_path: Path, files: dict[str, str], expected: str) -> None:
    package = tmp_path / "mdgraph"
    for name, text in files.items():
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    (found,) = violations(package)
    assert expected in found


def test_every_module_name_has_a_subject() -> None:
    paths = [path.relative_to(PACKAGE).with_suffix("") for path in sources(PACKAGE)]
    assert not {part.strip("_") for path in paths for part in path.parts} & SHAPELESS_NAMES


def test_a_class_name_is_used_once() -> None:
    """Drivers may name a class as their host does, so they are counted by themselves."""
    names: dict[bool, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for path in sources(PACKAGE):
        classes = [node.name for node in nodes(path) if isinstance(node, ast.ClassDef)]
        names[part_of(path, PACKAGE) == "drivers"].update(classes)
    assert [name for count in names.values() for name in count if count[name] > 1] == []


def test_no_folder_holds_more_modules_than_a_reader_can_survey() -> None:
    modules = [path for path in sources(PACKAGE) if path.name != "__init__.py"]
    sizes = collections.Counter(path.parent.relative_to(PACKAGE).as_posix() for path in modules)
    assert {folder: size for folder, size in sizes.items() if size > LARGEST_FOLDER} == {}


def test_importing_the_package_imports_neither_drivers_nor_plots() -> None:
    code = "import sys, mdgraph; print(*sorted({m.partition('.')[0] for m in sys.modules}))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=PACKAGE.parent
    )
    modules = set(loaded.stdout.split())
    assert "mdgraph" in modules
    assert not modules & {*FOREIGN, "matplotlib"}


def test_processes_that_read_frames_of_a_stream_import_no_torch() -> None:
    """Each would take seconds and a few hundred MB for it."""
    code = "import sys, mdgraph.runs.streams.workers; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_kernels_that_are_set_up_early_wait_before_they_do_anything() -> None:
    """Else they would read what the kernel before has yet to write, on CUDA and now and then."""
    found = [
        (function.name, ast.unparse(body[1] if ast.get_docstring(function) else body[0]))
        for path in sources(PACKAGE)
        for function in nodes(path)
        if isinstance(function, ast.FunctionDef)
        and (body := function.body)
        and "USE_PDL" in [argument.arg for argument in function.args.args]
        and function.name != "pdl_wait"
    ]
    assert len(found) > 40
    late = [name for name, first in found if first != "pdl_wait(USE_PDL)"]
    assert not late
