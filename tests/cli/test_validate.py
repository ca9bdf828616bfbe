"""`mdgraph validate`: lines, status, a strict JSON and one self-contained page."""

import contextlib
import json
import logging
import re
import shutil
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import fcc111, molecule
from ase.calculators.singlepoint import SinglePointCalculator
from repository import ROOT

from mdgraph.engine.batches import evaluate_with
from mdgraph.io.structures import read_system
from mdgraph.runs import validation
from mdgraph.system import System
from mdgraph.validate import crystal_checks, dynamics_checks, judge, random_checks
from mdgraph.validate.verdicts import Check

Command = Callable[..., Any]

pytestmark = pytest.mark.usefixtures("one_thread", "short_dynamics")


@pytest.fixture
def short_dynamics(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fifth of a second of wall time for all runs."""
    monkeypatch.setattr(dynamics_checks, "MINUTES", (1 / 300, 1 / 300))


def written(path: Path, potential: Path | None) -> Path:
    """Frames of water with labels of a potential, or at random."""
    random = np.random.default_rng(1)
    frames = []
    for _ in range(3):
        atoms = molecule("H2O")
        atoms.positions += random.normal(scale=0.05, size=(3, 3))
        ase.io.write(path, atoms, format="extxyz")
        energy, forces = -10.0, random.normal(size=(3, 3))
        if potential is not None:
            evaluate = evaluate_with(potential, torch.device("cpu"))
            result = evaluate([read_system(path)], "water")[0]
            energy, forces = result.energy, result.forces
        atoms.calc = SinglePointCalculator(atoms, energy=energy, forces=forces)
        frames.append(atoms)
    ase.io.write(path, frames, format="extxyz")
    return path


def test_every_check_has_a_line_and_a_place_on_the_page(
    mdgraph_command: Command, tiny_potential: Path, tmp_path: Path, drawn_pictures: None
) -> None:
    """Random weights against labels at random: status 1."""
    out = tmp_path / "out"
    frames = written(tmp_path / "frames.extxyz", None)
    options = ["--quick", "--device", "cpu", "--judge", "none", "--out", out]
    done = mdgraph_command("validate", tiny_potential, frames, *options)
    assert done.status == 1
    assert logging.getLogger("mdgraph.engine").level == logging.NOTSET
    read = json.loads((out / "validation.json").read_text(), parse_constant=pytest.fail)
    assert read["verdict"] == "wrong"
    page = (out / "validation.html").read_text()
    for check in read["checks"]:
        assert f"{check['verdict']:<5}  {check['name']}: {check['sentence']}" in done.out
        assert f"<h2 id='check-{read['checks'].index(check)}'>{check['name']}" in page
    names = {check["name"]: check["verdict"] for check in read["checks"]}
    assert names["forces"] == "wrong"
    assert names["forces against energies"] == "ok"
    assert page.count("data:image/png;base64,") >= 1
    assert "http" not in page
    again = mdgraph_command("validate", tiny_potential, frames, *options)
    assert again.status == 1
    assert "exists" in again.err


def test_frames_that_the_potential_cannot_take_are_named(
    mdgraph_command: Command, tiny_potential: Path, tmp_path: Path
) -> None:
    frames = ase.io.read(written(tmp_path / "frames.extxyz", None), ":")
    frames[1].info["charge"] = 1
    ase.io.write(tmp_path / "ion.extxyz", frames, format="extxyz")
    frames[2].symbols = "SH2"
    ase.io.write(tmp_path / "sulfur.extxyz", frames, format="extxyz")
    refused = {
        "ion.extxyz": "The potential takes no total charge, and 1 of 3 frames have one (1)",
        "sulfur.extxyz": "The potential does not know S, which 1 of 3 frames hold (2); leave them",
    }
    for name, sentence in refused.items():
        out = tmp_path / "out"
        done = mdgraph_command("validate", tiny_potential, tmp_path / name, "--out", out)
        assert done.status == 1
        assert sentence in done.err.replace("\n", " ")
        assert not out.exists()


def test_a_data_set_and_its_source_give_the_same(
    mdgraph_command: Command, tiny_potential: Path, tmp_path: Path
) -> None:
    """Labels of the potential itself are without errors."""
    frames = written(tmp_path / "frames.extxyz", tiny_potential)
    assert mdgraph_command("data", "convert", frames, tmp_path / "frames.h5").status == 0
    checks = []
    for name in ("frames.extxyz", "frames.h5"):
        out = tmp_path / f"of-{name}"
        options = ["--quick", "--device", "cpu", "--judge", "none", "--out", out]
        done = mdgraph_command("validate", tiny_potential, tmp_path / name, *options)
        assert (out / "validation.json").exists(), done.err
        checks.append(json.loads((out / "validation.json").read_text())["checks"])
    # How far dynamics comes depends on the machine.
    still = [[check for check in own if " H2O at " not in check["name"]] for own in checks]
    assert len(still[0]) > 8
    assert still[0] == still[1]
    verdicts = {check["name"]: check["verdict"] for check in checks[0]}
    for name in ("energies", "forces", "size of forces", "forces by group"):
        assert verdicts[name] == "ok"


def test_a_split_leaves_the_frames_held_out(
    mdgraph_command: Command,
    tiny_potential: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of three frames one is held out; those of a test would go first. The first check is made."""
    checks = validation.all_checks
    monkeypatch.setattr(
        validation, "all_checks", lambda *_, **given: islice(checks(*_, **given), 1)
    )
    written(tmp_path / "frames.extxyz", tiny_potential)
    with contextlib.chdir(tmp_path):
        assert mdgraph_command("data", "convert", "frames.extxyz", "frames.h5").status == 0
        for parts in (["--validation", "1"], ["--validation", "1", "--test", "1"]):
            words = ["data", "split", "frames.h5", "split.json", *parts, "--overwrite"]
            assert mdgraph_command(*words).status == 0
            options = ["--quick", "--device", "cpu", "--judge", "none", "--overwrite"]
            done = mdgraph_command(
                "validate", tiny_potential, "frames.h5", "--split", "split.json", *options
            )
            record = json.loads(Path("mdgraph-validation/validation.json").read_text())
            part = "test" if "--test" in parts else "validation"
            assert record["frames"] == f"1 of frames.h5, {part} of split.json", done.err
        done = mdgraph_command("validate", tiny_potential, "--split", "split.json", *options)
        assert "give the data set" in done.err


@pytest.mark.parametrize(
    ("name", "symbols"), [("slab", ["Cu"]), ("slab in a wide cell", ["Cu"]), ("atom", [])]
)
def test_slabs_tell_crystals_and_what_is_left_out_is_told(
    mdgraph_command: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    symbols: list[str],
) -> None:
    """A slab has nothing to squeeze, and stands for the crystal of its element."""
    asked: list[list[str]] = []

    def record(potential: Any, elements: list[str], **others: Any) -> list[Check]:
        asked.append(elements)
        return []

    monkeypatch.setattr(crystal_checks, "crystal_checks", record)
    monkeypatch.setattr(dynamics_checks, "dynamics_checks", lambda *_, **__: [])
    atoms = Atoms("Cu") if name == "atom" else fcc111("Cu", (2, 2, 3), vacuum=6.0)
    if name == "slab in a wide cell":
        atoms.center(vacuum=40.0, axis=2)
        atoms.pbc = True
    atoms.info, forces = {}, np.zeros((len(atoms), 3))
    atoms.calc = SinglePointCalculator(atoms, energy=0.0, forces=forces)
    ase.io.write(tmp_path / "frames.extxyz", atoms)
    options = ["--quick", "--device", "cpu", "--out", tmp_path / "out"]
    done = mdgraph_command("validate", "copper-pbe", tmp_path / "frames.extxyz", *options)
    assert asked == [symbols], done.err
    assert ("look   beyond the frames: Nothing else was checked" in done.out) == (not symbols)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--judge", "mp2"], "judge"),
        ([], "No frames are given and none come with"),
        (["nowhere.xyz"], "nowhere.xyz"),
        (["--frame-interval-fs", "1"], "between frames of DATA"),
        (["--dynamics-ps", "0.01"], "--dynamics-ps: it should be greater than or equal to 1"),
        (["--write-structures", "wanted.db"], "written as extended XYZ, not as 'wanted.db'"),
        (["--out", "/dev/null/out"], "Cannot use /dev/null/out: a part of its path is not a"),
    ],
)
def test_wrong_input_is_one_sentence(
    arguments: list[str], sentence: str, mdgraph_command: Command, tiny_potential: Path
) -> None:
    done = mdgraph_command("validate", tiny_potential, *arguments)
    assert done.status in (1, 2)
    assert sentence in done.err
    assert "Traceback" not in done.err


@pytest.fixture
def molecules_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random_checks, "MOLECULES", (2, 2))
    monkeypatch.setattr(dynamics_checks, "dynamics_checks", lambda *_, **__: [])


def relabelled(source: Path, target: Path, potential: Path, shift: float) -> Path:
    """Structures with energies of a potential, counted from elsewhere."""
    frames = ase.io.read(source, ":")
    evaluate = evaluate_with(potential, torch.device("cpu"))
    systems = [System(atoms.numbers, atoms.positions) for atoms in frames]
    for atoms, result in zip(frames, evaluate(systems, "label"), strict=True):
        atoms.calc = SinglePointCalculator(atoms, energy=result.energy + shift)
    ase.io.write(target, frames, format="extxyz")
    return target


@pytest.mark.usefixtures("molecules_alone")
@pytest.mark.parametrize("beside", [False, True])
def test_structures_that_are_written_judge_once_they_are_labelled(
    mdgraph_command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beside: bool
) -> None:
    """The judge lacks an eV where O-H is stretched, labels are of the potential itself.

    They are given or lie beside the weights, and tell their level by frames of the data.
    """
    folder = tmp_path / "potential"
    folder.mkdir()
    shutil.copy(ROOT / "potentials" / "water-pbe0" / "model.safetensors", folder)
    evaluate = evaluate_with(folder, torch.device("cpu"))

    def judged(systems: Sequence[System]) -> np.ndarray:
        energies = np.array([result.energy for result in evaluate(systems, "judge")])
        lengths = [np.linalg.norm(one.positions[1:3] - one.positions[0], axis=1) for one in systems]
        return energies - (np.max(lengths, axis=1) > 1.2)

    monkeypatch.setattr(judge, "gfn2", lambda: judged)
    frames = written(tmp_path / "frames.extxyz", folder)
    wanted = tmp_path / "wanted.extxyz"
    options = ["--quick", "--device", "cpu", "--overwrite", "--out", tmp_path / "out"]
    done = mdgraph_command("validate", folder, frames, *options, "--write-structures", wanted)
    assert done.status == 1
    assert re.search("wrong  bonds of H2O: 2 of 2 paths: wall, 1.00 eV above GFN2-xTB", done.out)
    kinds = [atoms.info["kind"] for atoms in ase.io.read(wanted, ":")]
    assert f"{len(kinds)} structures to label written to" in done.out, done.err
    assert kinds[:4] == [*(f"frame of the data {n}" for n in (1, 2, 3)), "minimum of H2O"]
    assert kinds[4].startswith("bonds of H2O: O0-H")
    place = folder if beside else tmp_path
    labels = relabelled(wanted, place / "labels.extxyz", folder, 5.0)
    given = [] if beside else ["--labels", labels]
    again = mdgraph_command("validate", folder, frames, *options, *given)
    assert "3 are frames of the data, whose labels differ by" in again.out, again.err
    assert re.search(
        r"ok     bonds of H2O: .* structures have labels, at most 0.00 eV off, GFN2-xTB 1.00",
        again.out,
    )
    record = json.loads((tmp_path / "out" / "validation.json").read_text())
    assert record["judge of molecules"] == "labels of labels.extxyz, gfn2"


@pytest.mark.usefixtures("molecules_alone")
def test_labels_that_can_judge_nothing_are_one_sentence(
    mdgraph_command: Command, tiny_potential: Path, tmp_path: Path
) -> None:
    frames = written(tmp_path / "frames.extxyz", tiny_potential)
    atoms = molecule("H2O")
    ase.io.write(tmp_path / "bare.extxyz", atoms)
    other = molecule("H2O")[[1, 0, 2]]
    other.calc = SinglePointCalculator(other, energy=1.0)
    ase.io.write(tmp_path / "order.extxyz", other)
    ase.io.write(tmp_path / "half.extxyz", [atoms, other])
    refused = {
        "bare.extxyz": "bare.extxyz has no energies of its structures; give them in eV",
        "half.extxyz": "half.extxyz has no energy for 1 of 2 structures (0); label them",
        "order.extxyz": "order.extxyz labels H2O, and no molecule that is scanned (H2O) with its",
        "nowhere.extxyz": "nowhere.extxyz",
    }
    for name, sentence in refused.items():
        out = tmp_path / "out"
        words = ["--labels", tmp_path / name, "--device", "cpu", "--out", out]
        done = mdgraph_command("validate", tiny_potential, frames, *words)
        assert done.status == 1
        assert sentence in done.err.replace("\n", " ")
        assert "Traceback" not in done.err
        assert not out.exists()


@pytest.mark.parametrize(("rank", "status"), [("0", 1), ("1", 0)])
def test_torchrun_does_not_write_the_same_twice(
    rank: str,
    status: int,
    mdgraph_command: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nor does it compute for minutes what all ranks but one cannot write."""
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", "2")
    done = mdgraph_command("validate", "water-pbe0", "--quick", "--out", tmp_path / "out")
    assert done.status == status
    assert ("torchrun started 2; start it without torchrun" in done.err) == (rank == "0")
    assert not (tmp_path / "out").exists()
