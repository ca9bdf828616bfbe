"""What a shell is told when somebody presses Tab."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mdgraph
from mdgraph.ensembles import ENSEMBLES
from mdgraph.shipped import EXAMPLES, shipped_potentials

POTENTIALS = list(shipped_potentials())
Command = Callable[..., Any]


@pytest.fixture
def completed(
    monkeypatch: pytest.MonkeyPatch, mdgraph_command: Command
) -> Callable[[str], list[str]]:
    """What bash offers for the last word of a line."""

    def complete(line: str) -> list[str]:
        monkeypatch.setenv("_MDGRAPH_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
        finished = mdgraph_command()
        assert (finished.status, finished.err) == (0, "")
        return [word for word in finished.out.splitlines() if word]

    return complete


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("mdgraph mi", ["minimise"]),
        ("mdgraph md --poten", ["--potential"]),
        ("mdgraph md --potential ", POTENTIALS),
        ("mdgraph md --steps 5 --potential wat", ["water-pbe0", "water-pbe0-small"]),
        ("mdgraph eval f.extxyz --potential cop", ["copper-pbe"]),
        ("mdgraph inspect ", POTENTIALS),
        ("mdgraph validate sil", ["silicon-pbe"]),
        ("mdgraph bench asp", ["aspirin-pbe"]),
        ("mdgraph md --ensemble ", list(ENSEMBLES)),
        ("mdgraph md --precision ", ["mixed", "single", "double", "fast"]),
        ("mdgraph example ", list(EXAMPLES)),
        ("mdgraph md --potential ./mine", []),
        ("mdgraph md --out ", []),
    ],
)
def test_words_are_completed(
    line: str, words: list[str], completed: Callable[[str], list[str]]
) -> None:
    assert completed(line) == words


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_a_script(
    shell: str, monkeypatch: pytest.MonkeyPatch, mdgraph_command: Command
) -> None:
    monkeypatch.setenv("_MDGRAPH_COMPLETE", f"source_{shell}")
    script = mdgraph_command().out
    assert f"complete_{shell}" in script
    assert "mdgraph" in script


def test_completion_does_not_import_torch() -> None:
    code = """
import sys
from mdgraph.cli import main
sys.argv = ["mdgraph"]
try:
    main()
finally:
    heavy = {"torch", "ase", "matplotlib", "h5py"} & set(sys.modules)
    assert not heavy, heavy
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={
            "PATH": "",
            "_MDGRAPH_COMPLETE": "complete_bash",
            "COMP_WORDS": "mdgraph md --potential ",
            "COMP_CWORD": "3",
        },
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(mdgraph.__file__).parent.parent,
    )
    assert done.stdout.split() == POTENTIALS
