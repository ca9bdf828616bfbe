"""Follows a page of the documents: writes its files, runs its commands and Python, in order."""

import re
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

FENCED = re.compile(r"^```([^\n`]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def fenced_blocks(text: str) -> list[tuple[str, str]]:
    """Language and content of each fenced block, in order."""
    return FENCED.findall(text)


def blocks(path: Path, language: str) -> list[str]:
    """Contents of the fenced blocks of a language, "" for those without one."""
    fenced = fenced_blocks(path.read_text(encoding="utf-8"))
    return [content for kind, content in fenced if kind == language]


def commands_of(block: str) -> list[str]:
    """What the lines of a block give to mdgraph."""
    return [line.removeprefix("mdgraph ") for line in block.splitlines() if "mdgraph " in line]


def follow(
    path: Path,
    folder: Path,
    command: Callable[..., Any],
    shorter: Mapping[str, str],
    failing: str = "",
) -> None:
    """Does what a page says, in a folder in which the process already is.

    Blocks of Python share their names. A block of YAML whose first line names a file is written.
    Blocks of text are read only.

    Args:
        path: of the page.
        folder: where files are written.
        command: runs a command in this process.
        shorter: parts of the page, each of which must be there, and what a test takes instead.
        failing: beginning of the one command that may find something wrong.
    """
    text = path.read_text(encoding="utf-8")
    for part, other in shorter.items():
        assert part in text, part
        text = text.replace(part, other)
    names: dict[str, Any] = {}
    for language, content in fenced_blocks(text):
        if language == "python":
            exec(compile(content, path.name, "exec"), names)
        elif language == "yaml" and (named := re.match(r"# ([\w.-]+\.yaml)\n", content)):
            (folder / named[1]).write_text(content, encoding="utf-8")
        elif language == "bash":
            for line in content.splitlines():
                _run(line, folder, command, failing)


def _run(line: str, folder: Path, command: Callable[..., Any], failing: str) -> None:
    before, _, target = line.partition(" > ")
    program, *words = shlex.split(before)
    if program == "sed":
        _replace(words, folder)
        return
    assert program == "mdgraph", line
    done = command(*words)
    may_fail = bool(failing) and before.startswith(f"mdgraph {failing}")
    assert done.status == 0 or (may_fail and done.status == 1), f"{line}: {done.out}{done.err}"
    if target:
        (folder / target).write_text(done.out, encoding="utf-8")


def _replace(words: list[str], folder: Path) -> None:
    """What `sed -i s/OLD/NEW/ FILE` does."""
    option, change, name = words
    assert option == "-i"
    _, old, new, _ = change.split("/")
    text = (folder / name).read_text(encoding="utf-8")
    assert old in text
    (folder / name).write_text(text.replace(old, new), encoding="utf-8")
