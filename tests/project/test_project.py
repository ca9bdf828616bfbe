"""The project's own files agree with each other."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from repository import ROOT

import mdgraph
from mdgraph.errors import OLD_NAMES_UNTIL

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
DOCUMENTS = sorted(
    path
    for pattern in (
        "*.md",
        *(f"{folder}/**/*.md" for folder in ("data", "docs", "potentials")),
    )
    for path in ROOT.glob(pattern)
)
ABSOLUTE_PATH = re.compile(r"(?<![\w.~/:<-])/(?:home|root|Users|mnt|opt|srv|tmp|usr|var|work)/")


def normalized(requirement: str) -> str:
    name = re.match(r"[\w.-]+", requirement)
    assert name is not None
    return re.sub(r"[-_.]+", "-", name[0]).lower()


def test_readme_opens_with_the_two_commands_that_ci_runs() -> None:
    listed = subprocess.run(
        ["bash", str(ROOT / ".ci" / "run"), "--list"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    first_block = readme.split("```")[1].removeprefix("bash\n")
    assert listed == [
        line for line in first_block.splitlines() if line and not line.startswith("#")
    ]
    run, test = listed
    assert run.endswith(".venv/bin/mdgraph md")
    assert test.endswith(".venv/bin/python -m pytest -n auto")
    install = "python3 -m venv .venv && .venv/bin/pip install -c constraints.txt "
    assert all(command.startswith(install) for command in listed)


def test_all_files_name_the_same_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert PROJECT["version"] == mdgraph.__version__ == citation["version"]


def test_old_names_are_gone_when_they_were_announced_to_be() -> None:
    assert [int(part) for part in PROJECT["version"].split(".")] < [
        int(part) for part in OLD_NAMES_UNTIL.split(".")
    ]
    sources = (ROOT / "mdgraph").rglob("*.py")
    stating = [path.name for path in sources if "the old name goes with" in path.read_text()]
    assert stating == ["errors.py"]


def test_the_license_is_mit() -> None:
    assert PROJECT["license"] == "MIT"
    assert (ROOT / "LICENSE").read_text(encoding="utf-8").startswith("MIT License")


def test_every_dependency_has_a_tested_version() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", pin) for pin in pins)
    wanted = list(PROJECT["dependencies"])
    for extra in ("test", "ovito", "docs", "dev"):
        wanted += PROJECT["optional-dependencies"][extra]
    assert {normalized(name) for name in wanted} <= {normalized(pin) for pin in pins}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_documents_name_no_absolute_path(path: Path) -> None:
    assert ABSOLUTE_PATH.search(path.read_text(encoding="utf-8")) is None


def test_an_absolute_path_would_be_found() -> None:
    assert ABSOLUTE_PATH.search("see `/home/someone/run`")
    assert not ABSOLUTE_PATH.search("https://host.org/home/page and data/tmp/file")


PATH = re.compile(r"`((?:[\w.-]+/)+(?:[\w.-]+\.\w+)?|\w+\.py)`")
PLACES = (ROOT, ROOT / "mdgraph")
"""Where paths that documents name begin."""
SOURCES = {
    path.name for top in ("benchmarks", "mdgraph", "tests") for path in (ROOT / top).rglob("*.py")
}
ROOMS = {path.name for place in PLACES for path in place.iterdir() if path.is_dir()}
NO_SOURCE = {"data", "mdgraph-run"}
"""Rooms of files that documents name and commands write."""


def missing_paths(text: str) -> list[str]:
    """Paths within the source that a text names in code marks and that are not there."""
    named = PATH.findall(text)
    return [
        path
        for path in named
        if (path.endswith(".py") or path.partition("/")[0] in ROOMS - NO_SOURCE)
        and not any((place / path).exists() for place in PLACES)
        and path not in SOURCES
    ]


@pytest.mark.parametrize(
    "path",
    [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))],
    ids=lambda path: path.name,
)
def test_documents_name_existing_source_files(path: Path) -> None:
    assert missing_paths(path.read_text(encoding="utf-8")) == []


def test_a_source_file_that_is_not_there_would_be_found() -> None:
    there = ["engine/simulation.py", "mdgraph/cli.py", "fused/cuda/", "speed.py"]
    missing = ["mdgraph/engine/gone.py", "engine/gone/", "engine/gone.yaml", "a/b.py", "gone.py"]
    assert missing_paths(" ".join(f"`{path}`" for path in there + missing)) == missing


def test_links_of_sources_lead_where_they_say() -> None:
    """Addresses are not asked here: `sphinx -b linkcheck` does, where there is a network."""
    found = 0
    for path in DOCUMENTS:
        text = path.read_text(encoding="utf-8")
        links = re.findall(r"\[(10\.\d{4,9}/[^\]]+)\]\((https?://\S+?)\)(?=[\s.,;:)|*]|$)", text)
        assert [(words, link) for words, link in links if link != f"https://doi.org/{words}"] == []
        found += len(links)
        for address in re.findall(r"https?://doi\.org/([^)\s]*)", text):
            assert re.match(r"10\.\d{4,9}/\w", address), (path.name, address)
    assert found > 10


def rows_of(text: str, heading: str) -> list[list[str]]:
    """Cells of the rows below the first table line that begins with the heading."""
    table = text[text.index(heading) :].split("\n\n", maxsplit=1)[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[2:]]


def headlines(readme: str, benchmarks: str) -> list[tuple[float, float]]:
    """Times that the README tells, and those of the tables that it names."""
    single, peer = re.search(
        r"\*\*([\d.]+) ms\*\*.*?\stakes ([\d.]+) ms", readme, re.DOTALL
    ).groups()
    row = next(row for row in rows_of(benchmarks, "| structure | atoms") if row[1] == "3,000")
    told = [(float(single), float(row[2])), (float(peer), float(row[4]))]
    steps = {row[0]: row for row in rows_of(benchmarks, "| atoms | step, one GPU")}
    for atoms, *said in rows_of(readme, "| atoms | one H200"):
        measured = [float(steps[atoms][column]) for column in (1, 2, 4)]
        told += zip(map(float, said), measured, strict=True)
    return told


def test_the_readme_tells_the_times_of_the_benchmarks() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    benchmarks = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    told = headlines(readme, benchmarks)
    assert len(told) == 8
    for said, measured in told:
        assert said == pytest.approx(measured, rel=0.005), (said, measured)


def test_what_training_says_of_communication_is_in_its_table() -> None:
    training = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    benchmarks = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    said = re.search(r"Communication takes ([\d.]+) % of a step on\s+four H200s", training)
    rows = rows_of(benchmarks, "| | GPUs | frames a step")
    assert said[1] in {row[5].removesuffix(" %") for row in rows if row[1] == "4"}
