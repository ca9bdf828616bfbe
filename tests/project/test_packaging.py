"""What is built for others to install: a wheel and a source archive."""

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from repository import ROOT

from mdgraph.shipped import EXAMPLES, shipped_potentials

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


POTENTIALS_AND_EXAMPLES = """
import sys
import mdgraph
from mdgraph.cli import main
print(mdgraph.__file__)
for words in (["potentials"], *(["example", name] for name in sys.argv[1:])):
    sys.argv = ["mdgraph", *words]
    try:
        main()
    except SystemExit as end:
        assert not end.code, words
"""


def built(tree: Path, out: Path) -> tuple[Path, Path]:
    """The wheel and the source archive of a tree, without the network."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", str(out)],
        cwd=tree,
        check=True,
        capture_output=True,
    )
    (wheel,), (archive,) = out.glob("*.whl"), out.glob("*.tar.gz")
    return wheel, archive


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    pytest.importorskip("hatchling")
    return built(ROOT, tmp_path_factory.mktemp("dist"))


def test_the_wheel_holds_all_that_is_used(distributions: tuple[Path, Path]) -> None:
    with zipfile.ZipFile(distributions[0]) as wheel:
        names = set(wheel.namelist())
        metadata = wheel.read(f"mdgraph-{PROJECT['version']}.dist-info/METADATA").decode()
        entry_points = wheel.read(f"mdgraph-{PROJECT['version']}.dist-info/entry_points.txt")
    assert "mdgraph/py.typed" in names
    sources = {path.relative_to(ROOT).as_posix() for path in (ROOT / "mdgraph").rglob("*.py")}
    assert sources <= names
    for name, folder in shipped_potentials().items():
        files = {f"mdgraph/potentials/{name}/{path.name}" for path in folder.iterdir()}
        assert files <= names
    for example in EXAMPLES.values():
        for source in example.files.values():
            place = source.replace("data/", "examples/data/", 1) if source[:4] == "data" else source
            assert f"mdgraph/{place}" in names
    tops = {name.split("/")[0] for name in names}
    assert tops == {"mdgraph", f"mdgraph-{PROJECT['version']}.dist-info"}
    for extra in PROJECT["optional-dependencies"]:
        assert f"Provides-Extra: {extra}\n" in metadata
    for group in PROJECT["entry-points"]:
        assert f"[{group}]" in entry_points.decode()


def test_the_source_archive_builds_the_same_wheel(
    distributions: tuple[Path, Path], tmp_path: Path
) -> None:
    wheel, archive = distributions
    with tarfile.open(archive) as content:
        content.extractall(tmp_path, filter="data")
    (tree,) = tmp_path.iterdir()
    assert (tree / "tests" / "project" / Path(__file__).name).is_file()
    again, _ = built(tree, tmp_path / "dist")
    with zipfile.ZipFile(wheel) as first, zipfile.ZipFile(again) as second:
        assert first.namelist() == second.namelist()
        assert all(first.read(name) == second.read(name) for name in first.namelist())


def test_the_installed_wheel_works(distributions: tuple[Path, Path], tmp_path: Path) -> None:
    site = tmp_path / "site"
    install = ("-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-compile")
    environment = {**os.environ, "PYTHONPATH": str(site), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}

    def python(*arguments: object) -> str:
        done = subprocess.run(
            [sys.executable, *map(str, arguments)],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    python(*install, "--target", site, distributions[0])
    where, *printed = python("-c", POTENTIALS_AND_EXAMPLES, *EXAMPLES).splitlines()
    assert Path(where) == site / "mdgraph" / "__init__.py"
    listed = printed[: len(shipped_potentials())]
    water = site / "mdgraph" / "potentials" / "water-pbe0"
    assert any(line.startswith("water-pbe0: H O, ") for line in listed)
    assert any(str(water / "card.md") in line for line in listed)
    wanted = {"model.safetensors", "start.extxyz", "metrics.json", "card.md", "train.yaml"}
    assert wanted | {"domain.safetensors"} <= {path.name for path in water.iterdir()}
    assert [line.partition(":")[0] for line in listed] == list(shipped_potentials())
    assert all(str(site / "mdgraph" / "potentials") in line for line in listed)
    for source in (ROOT / "examples").glob("*.py"):
        assert (tmp_path / "python" / "examples" / source.name).read_bytes() == source.read_bytes()


def test_the_readme_names_every_extra() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    named = {
        extra for group in re.findall(r"`\.\[([\w,-]+)\]`", text) for extra in group.split(",")
    }
    assert named == set(PROJECT["optional-dependencies"])
