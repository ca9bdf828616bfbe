"""Recipes of potentials: `potentials/NAME/train.yaml`, and the commands in its head.

The lines `#   mdgraph data ...` there are what a reader types, and what is run here, so they
stay true. A split of another seed has that seed in place of the one written.
"""

import contextlib
import io
import shlex
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from side_by_side import Job

from mdgraph.errors import InputError
from mdgraph.runs.data_commands import app as data_commands

POTENTIALS = Path(__file__).resolve().parent.parent / "potentials"
PROGRAM = (sys.executable, "-m", "mdgraph")


@dataclass(frozen=True)
class Recipe:
    """How a potential is made.

    Attributes:
        name: of its folder.
        settings: of train.yaml.
        convert, split, check: words of `mdgraph data`, the files as they are written there.
    """

    name: str
    settings: dict[str, Any]
    convert: list[str]
    split: list[str]
    check: list[str]


def read_recipe(name: str) -> Recipe:
    """Reads one; raises InputError where there is none, or a command is not in its head."""
    path = POTENTIALS / name / "train.yaml"
    if not path.is_file():
        known = sorted(one.parent.name for one in POTENTIALS.glob("*/train.yaml"))
        raise InputError(f"There is no recipe {name}; there are {', '.join(known)}.")
    text = path.read_text(encoding="utf-8")
    found = {words[1]: words[2:] for words in commands(text) if words[0] == "data"}
    lacking = [word for word in ("convert", "split", "check") if word not in found]
    if lacking:
        raise InputError(f"The head of {path} has no 'mdgraph data {lacking[0]}'; write it there.")
    return Recipe(name, yaml.safe_load(text), found["convert"], found["split"], found["check"])


def commands(text: str) -> list[list[str]]:
    """Words of each command of mdgraph in the comments of a file, without `mdgraph`."""
    found: list[list[str]] = []
    unfinished = ""
    for line in text.splitlines():
        comment = line.removeprefix("#").strip() if line.startswith("#   ") else ""
        if unfinished or comment.startswith("mdgraph "):
            unfinished += comment.removesuffix("\\")
            if not comment.endswith("\\"):
                found.append(shlex.split(unfinished)[1:])
                unfinished = ""
    return found


def prepare_data(recipe: Recipe, data: Path, folder: Path, split: int) -> list[str]:
    """Converts and splits what is not yet there.

    Args:
        recipe: see Recipe.
        data: where the published files lie.
        folder: of this potential's work.
        split: seed of the split.

    Returns:
        What `mdgraph data check` calls wrong, such as frames that are alike across parts.

    Raises:
        MDGraphError: a command failed, or another seed cannot give another split.
    """
    if split != 1 and "--seed" not in recipe.split:
        raise InputError(f"{recipe.name} has one split alone; leave --splits at 1.")
    folder.mkdir(parents=True, exist_ok=True)
    held = recipe.settings["data"], recipe.settings["split"]
    if not (folder / held[0]).exists():
        given = [
            str((data / word).resolve()) if (data / word).is_file() else word
            for word in recipe.convert
        ]
        _data("convert", given, folder)
    own = split_name(recipe, split)
    if not (folder / own).exists():
        words = [own if word == held[1] else word for word in recipe.split]
        if "--seed" in words:
            words[words.index("--seed") + 1] = str(split)
        _data("split", words, folder)
    said = folder / f"check-{split}.txt"
    if not said.exists():
        words = [own if word == held[1] else word for word in recipe.check]
        said.write_text(_data("check", words, folder), encoding="utf-8")
    lines = said.read_text(encoding="utf-8").splitlines()
    return [line.removeprefix("wrong: ") for line in lines if line.startswith("wrong: ")]


def split_name(recipe: Recipe, split: int) -> str:
    """File of a split in the folder of the potential's work."""
    path = Path(recipe.settings["split"])
    return f"{path.stem}-{split}{path.suffix}"


def _data(command: str, words: list[str], folder: Path) -> str:
    """What `mdgraph data` says; in this process, as a program would take longer to start."""
    said = io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(said):
        data_commands([command, *words], standalone_mode=False)
    return said.getvalue()


def merged(settings: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with changes, mapping by mapping; a change to null takes a key away."""
    result = dict(settings)
    for key, value in changes.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(result.get(key), Mapping):
            result[key] = merged(result[key], value)
        else:
            result[key] = value
    return result


@dataclass(frozen=True)
class Run:
    """One training.

    Attributes:
        recipe: of the potential.
        lever: row of the ablation.
        split, seed: of the frames, of the weights.
        work: folder of the potential's work.
    """

    recipe: Recipe
    lever: str
    split: int
    seed: int
    work: Path

    @property
    def label(self) -> str:
        """Folder of the run within `work`; no two runs share it."""
        return (
            f"{self.lever.replace(' ', '-').replace('/', '-')}/split-{self.split}-seed-{self.seed}"
        )

    @property
    def folder(self) -> Path:
        return self.work / self.label

    @property
    def done(self) -> bool:
        return (self.folder / "metrics.json").exists()

    def settings(self, changes: dict[str, Any], steps: int | None) -> dict[str, Any]:
        """Of this run, with paths relative to `work`."""
        found = merged(self.recipe.settings, changes) | {
            "split": split_name(self.recipe, self.split),
            "out": self.label,
            "name": self.recipe.name,
            "seed": self.seed,
        }
        if steps is not None:
            found["steps"] = steps
            found.pop("epochs", None)
        return found

    def job(self, settings: dict[str, Any], device: str) -> Job:
        """The training, or the rest of it."""
        words = ["--device", device]
        if (self.folder / "checkpoint.safetensors").exists():
            words = [f"{self.label}/train.yaml", "--resume", *words]
        else:
            shutil.rmtree(self.folder, ignore_errors=True)
            path = self.folder.with_suffix(".yaml")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
            words = [str(path.relative_to(self.work)), *words]
        return Job((*PROGRAM, "train", *words), self.work, self.folder.with_suffix(".log"))
