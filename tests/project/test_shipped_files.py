"""The files beside the weights of a shipped potential, and what is told of it, are its own."""

import json
import logging
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from repository import ROOT

from mdgraph.checkpoints import load, load_domain, shipped_potentials
from mdgraph.data import open_dataset

NAMES = sorted(shipped_potentials())
DOCUMENTS = ("README.md", "docs/errors.md")

Plant = Callable[[Path], object]


@pytest.fixture
def shipping(script: Callable[[str], ModuleType]) -> ModuleType:
    return script("shipping")


@pytest.mark.parametrize("name", NAMES)
def test_the_domain_belongs_to_the_weights(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """So that runs are watched, and sigma is told."""
    with caplog.at_level(logging.WARNING):
        domain = load_domain(name)
    assert domain is not None
    assert not caplog.records
    assert torch.equal(domain.species, torch.tensor(load(name).species))


def test_documents_and_cards_match_the_metrics(shipping: ModuleType) -> None:
    assert shipping.problems() == []


def edit(path: Path, before: str, after: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert before in text, before
    path.write_text(text.replace(before, after, 1), encoding="utf-8")


def edited(name: str, before: str, after: str) -> Plant:
    return lambda root: edit(root / name, before, after)


def from_other(name: str) -> Plant:
    """The file of ethanol, whose network has the same shapes as that of aspirin."""

    def put(folder: Path) -> None:
        shutil.copy(ROOT / "potentials" / "ethanol-pbe" / name, folder / name)

    return put


def swap_a_weight(folder: Path) -> None:
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-4], content[-8] = content[-8], content[-4] ^ 1
    path.write_bytes(content)


def rename_the_set(folder: Path) -> None:
    path = folder / "metrics.json"
    metrics = json.loads(path.read_text(encoding="utf-8"))
    metrics["sets"]["test"]["file"] = "test.xyz"
    path.write_text(json.dumps(metrics), encoding="utf-8")


def changed_error(part: str, key: str) -> Plant:
    def change(folder: Path) -> None:
        path = folder / "metrics.json"
        metrics = json.loads(path.read_text(encoding="utf-8"))
        metrics[part][key] *= 1.01
        path.write_text(json.dumps(metrics), encoding="utf-8")

    return change


ALSO_BY_CONTENT: dict[str, Plant] = {
    "a weight": swap_a_weight,
    "other weights": from_other("model.safetensors"),
    "another domain": from_other("domain.safetensors"),
    "another log": from_other("log.csv"),
    "another split": from_other("split.json"),
    "another card": from_other("card.md"),
    "other metrics": from_other("metrics.json"),
    "an error on the card": edited("card.md", "| 7.42 |", "| 7.43 |"),
    "frames on the card": edited("card.md", "train.xyz | 200 |", "train.xyz | 201 |"),
    "a set on the card": edited("card.md", "| test, of train.xyz", "| test, of test.xyz"),
    "a part on the card": edited("card.md", "| test, of train.xyz", "| validation, of train.xyz"),
    "a range on the card": edited("card.md", "H-O 0.895 A", "H-O 0.896 A"),
    "a round on the card": edited("card.md", "166 1000 K", "167 1000 K"),
    "a sigma on the card": edited("card.md", "sigma of 0.112", "sigma of 0.111"),
    "weights on the card": edited("card.md", "741,121 parameters", "741,120 parameters"),
    "steps of the recipe": edited("references.yaml", "steps: 1", "steps: 2"),
    "the set of an error": rename_the_set,
    **{
        f"the {key} of metrics, {part}": changed_error(part, key)
        for part in ("train", "validation", "test")
        for key in ("force_rmse_meV_per_A", "force_mae_meV_per_A", "energy_mae_meV_per_atom")
    },
}
"""What a card, a log or a split contradicts, whatever hashes metrics.json has."""

BY_HASH: dict[str, Plant] = {
    "a licence on the card": edited("card.md", "| MIT |", "| BSD |"),
    "a date on the card": edited("card.md", "2026-11-28, seed 1", "2026-11-23, seed 1"),
    "a comment of the recipe": edited("train.yaml", "until 2026", "before 2026"),
    "a momentum": edited("distil.yaml", "[0.995,", "[0.99,"),
    "a file more": lambda folder: (folder / "picture.png").write_bytes(b"picture"),
    "a file less": lambda folder: (folder / "log.csv").unlink(),
}


@pytest.mark.parametrize("plant", ALSO_BY_CONTENT.values(), ids=ALSO_BY_CONTENT)
def test_files_of_another_potential_are_found_by_content(
    shipping: ModuleType, tmp_path: Path, plant: Plant
) -> None:
    folder = tmp_path / "potentials" / "aspirin-pbe"
    shutil.copytree(ROOT / "potentials" / "aspirin-pbe", folder)
    plant(folder)
    metrics = shipping.metrics_of(folder)
    metrics["files"] = shipping.hashes(folder)
    (folder / "metrics.json").write_text(json.dumps(metrics), encoding="utf-8")
    assert shipping.wrong_potential(folder)


@pytest.mark.parametrize("plant", BY_HASH.values(), ids=BY_HASH)
def test_any_other_change_is_found_by_its_hash(
    shipping: ModuleType, tmp_path: Path, plant: Plant
) -> None:
    folder = tmp_path / "potentials" / "aspirin-pbe"
    shutil.copytree(ROOT / "potentials" / "aspirin-pbe", folder)
    assert shipping.wrong_potential(folder) == []
    plant(folder)
    (line,) = shipping.wrong_potential(folder)[:1]
    assert "aspirin-pbe: " in line


@pytest.mark.parametrize("file", ["picture.png", "picture-330K.png", "start.extxyz"])
def test_a_picture_or_a_start_of_other_weights_is_found(
    shipping: ModuleType, tmp_path: Path, file: str
) -> None:
    folder = tmp_path / "potentials" / "water-pbe0"
    shutil.copytree(ROOT / "potentials" / "water-pbe0", folder)
    (folder / file).write_bytes((folder / "picture-300K.png").read_bytes())
    (line,) = shipping.wrong_potential(folder)
    assert line == f"water-pbe0: not the files that were measured: {file}"


def test_errors_that_validate_found_are_those_of_metrics(shipping: ModuleType) -> None:
    metrics = shipping.metrics_of(ROOT / "potentials" / "aspirin-pbe")
    assert list(shipping.wrong_validation(metrics)) == []
    metrics["test"]["energy_rmse_meV_per_atom"] -= 0.0001
    assert list(shipping.wrong_validation(metrics))


@pytest.mark.parametrize("name", ["aspirin-pbe", "copper-pbe", "ethanol-pbe", "water-pbe0"])
def test_means_over_seeds_are_those_of_each_seed(shipping: ModuleType, name: str) -> None:
    metrics = shipping.metrics_of(ROOT / "potentials" / name)
    seeds = [entry for entry in metrics["history"] if entry["table"] == "other seeds"]
    row, measure = metrics["rows"]["as it is"], metrics["measures"][1]
    assert len(seeds) == row["runs"] - 1
    assert list(shipping.wrong_seeds(metrics)) == []
    seeds[0][f"{row['part']} {measure}"] = str(1.1 * row["errors"][measure]["mean"])
    assert list(shipping.wrong_seeds(metrics))


@pytest.mark.parametrize(
    ("name", "check", "number"),
    [
        ("3bpa-wb97x", "turns of C12H12N2O", "0.05"),
        ("3bpa-wb97x", "torsions of C12H12N2O", "0.25"),
        ("3bpa-wb97x", "pairs of turns of C12H12N2O", "0.57"),
        ("acac-pbe", "dimers of C5H8O2", "0.48"),
        ("aspirin-pbe", "bonds of C9H8O4", "0.39"),
        ("aspirin-pbe", "torsions of C9H8O4", "0.17"),
        ("aspirin-pbe", "pairs of turns of C9H8O4", "0.32"),
        ("acac-pbe", "pairs of turns of C5H8O2", "0.18"),
        ("ethanol-pbe", "dimers of C2H6O", "0.57"),
        ("copper-pbe", "stacking fault of Cu", "3"),
        ("copper-pbe", "cohesion of Cu", "2.91"),
        ("silicon-pbe", "vacancy of Si", "2.83"),
        ("silicon-pbe", "surfaces of Si", "1.71"),
        ("silicon-pbe", "cohesion of Si", "3.95"),
        ("water-pbe0", "bonds of H2O", "0.51"),
        ("water-pbe0", "angles of H2O", "0.08"),
        ("water-pbe0", "modes of H2O", "0.28"),
        ("water-pbe0", "dimers of H2O", "0.78"),
        ("water-pbe0-small", "bonds of H2O", "0.50"),
        ("water-pbe0-small", "angles of H2O", "0.07"),
        ("water-pbe0-small", "modes of H2O", "0.27"),
        ("water-pbe0-small", "dimers of H2O", "0.81"),
    ],
)
def test_what_is_told_beyond_the_frames_is_what_validate_found(
    shipping: ModuleType, name: str, check: str, number: str
) -> None:
    checks = shipping.metrics_of(ROOT / "potentials" / name)["validated"]["checks"]
    (found,) = (one["sentence"] for one in checks if one["name"] == check)
    text = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    _, _, beyond = shipping.between(text, shipping.ERRORS)
    (told,) = (line for line in beyond.splitlines() if line.startswith(f"| {name} |"))
    for sentence in (found, told):
        assert re.search(rf"(?<![\d.]){re.escape(number)}(?!\.?\d)", sentence), sentence


def test_the_page_of_errors_stays_two_pages(shipping: ModuleType) -> None:
    """What is measured of a recipe or of former weights belongs into metrics.json."""
    text = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    before, _, after = shipping.between(text, shipping.ERRORS)
    words = [word for word in f"{before} {after}".split() if re.search(r"\w", word)]
    assert len(words) <= 1200
    assert max(map(len, before.splitlines() + after.splitlines())) < 500


@pytest.fixture
def documents(tmp_path: Path) -> Path:
    """The documents, and of each potential what they are written from."""
    for name in DOCUMENTS:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    for name in NAMES:
        (tmp_path / "potentials" / name).mkdir(parents=True)
        for file in ("metrics.json", "model.safetensors"):
            shutil.copy(ROOT / "potentials" / name / file, tmp_path / "potentials" / name / file)
    return tmp_path


@pytest.mark.parametrize(
    ("document", "before", "after"),
    [
        ("docs/errors.md", "4.74 ± 0.0065 meV/A", "4.7 ± 0.0065 meV/A"),
        ("docs/errors.md", "| 650, test,", "| 600, test,"),
        ("docs/errors.md", "the file published for it", "another trajectory"),
        ("docs/errors.md", "31, test, the published test", "31, validation, the published test"),
        ("docs/errors.md", "0.16 meV/A MAE", "0.16 meV/A RMSE"),
        (
            "docs/errors.md",
            "0.145 meV/atom RMSE | 14.9 meV/A RMSE | 1 of 1 split",
            "0.145 meV/atom RMSE | 14.9 meV/A RMSE | 9 of 1 split",
        ),
        ("docs/errors.md", "MTP 2.21 and 60", "MTP 2.21 and 66"),
        ("README.md", "## Documentation", "Water errs by 9.9 meV/A.\n\n## Documentation"),
        ("docs/errors.md", "1.32 ± 0.017 meV MAE", "1.22 ± 0.017 meV MAE"),
        ("docs/errors.md", "| 17,900 | 50, validation", "| 17,900 | 50, test"),
        ("potentials/acac-pbe/metrics.json", '"mean": 3.2819', '"mean": 3.1819'),
        ("potentials/silicon-pbe/metrics.json", "whole trajectories held out of", "all of"),
    ],
)
def test_a_document_that_differs_from_the_metrics_is_found(
    shipping: ModuleType, documents: Path, document: str, before: str, after: str
) -> None:
    assert list(shipping.wrong_documents(documents)) == []
    edit(documents / document, before, after)
    assert list(shipping.wrong_documents(documents))


def test_hashes_of_wrong_files_are_not_written(shipping: ModuleType, documents: Path) -> None:
    folder = documents / "potentials" / "aspirin-pbe"
    for name in NAMES:
        if name != folder.name:
            shutil.rmtree(documents / "potentials" / name)
    shutil.copytree(ROOT / "potentials" / "aspirin-pbe", folder, dirs_exist_ok=True)
    swap_a_weight(folder)
    shipping.write(documents)
    assert (
        "not the files that were measured: model.safetensors" in shipping.wrong_potential(folder)[0]
    )


@pytest.mark.parametrize("name", NAMES)
def test_data_sets_match_the_files_that_they_name(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    datasets_folder: Path,
    script: Callable[[str], ModuleType],
    mdgraph_command: Callable[..., Any],
) -> None:
    """By the place of each frame among those of the files that the recipe names."""
    recipe = script("error_tables").read_recipe(name)
    monkeypatch.chdir(tmp_path)
    for folder in datasets_folder.iterdir():
        (tmp_path / folder.name).symlink_to(folder)
    folder = ROOT / "potentials" / name
    split = json.loads((folder / "split.json").read_text(encoding="utf-8"))
    metrics = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    sources = [word for word in recipe.convert if re.search(r"xyz(\.gz)?$", word)]
    sizes = []
    for source in sources:
        done = mdgraph_command("data", "convert", source, f"{len(sizes)}.h5")
        assert done.status == 0, done.err
        with open_dataset(tmp_path / f"{len(sizes)}.h5") as dataset:
            sizes.append(len(dataset))
    ends = np.cumsum(sizes)
    for part in ("train", "validation", "test"):
        if part in metrics:
            files = {Path(sources[at]).name for at in np.searchsorted(ends, split[part], "right")}
            told = metrics["sets"][part]
            assert told["frames"] == len(split[part])
            assert files == {told["file"]} or "water" in name


def test_what_documents_say_is_wrong_is_what_cards_list() -> None:
    """Each card counts its lines, and none is wrong, as the changelog says."""
    for card in sorted((ROOT / "potentials").glob("*/card.md")):
        text = card.read_text(encoding="utf-8")
        (counts,) = re.findall(r": (\d+) ok, (\d+) look, (\d+) wrong\.", text)
        lines = re.findall(r"^\| (ok|look|wrong) \|", text, re.MULTILINE)
        found = [lines.count(verdict) for verdict in ("ok", "look", "wrong")]
        assert found == [int(count) for count in counts], card.parent.name
        assert found[2] == 0, card.parent.name
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert "finds nothing wrong in the six" in changes
