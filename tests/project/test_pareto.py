"""Speed against error of potentials, and what the shipped pair of two time steps leaves apart."""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import ase.io
import numpy as np
import pytest
import torch
from ase.calculators.singlepoint import SinglePointCalculator
from repository import ROOT

from mdgraph.checkpoints import load, save
from mdgraph.drivers.ase import MDGraphCalculator
from mdgraph.errors import InputError


@pytest.fixture
def module(script: Callable[[str], ModuleType]) -> ModuleType:
    return script("pareto")


@pytest.mark.usefixtures("one_thread")
def test_speeds_and_errors_stand_side_by_side(
    printed: Callable[..., str],
    mdgraph_command: Callable[..., Any],
    tiny_potential: Path,
    water_file: Path,
    tmp_path: Path,
) -> None:
    """Labels of the first potential and 1 eV/A more; forces of the second are a tenth larger."""
    larger = load(tiny_potential)
    larger.scale.mul_(1.1)
    save(larger, tmp_path / "larger.safetensors")
    atoms = ase.io.read(water_file)
    atoms.calc = MDGraphCalculator(tiny_potential, device="cpu")
    forces = atoms.get_forces()
    labels = {"energy": atoms.get_potential_energy(), "forces": forces + 1.0}
    atoms.calc = SinglePointCalculator(atoms, **labels)
    frames = tmp_path / "frames.h5"
    ase.io.write(tmp_path / "frames.extxyz", atoms)
    assert mdgraph_command("data", "convert", tmp_path / "frames.extxyz", frames).status == 0
    words = [tiny_potential, tmp_path / "larger.safetensors", "--frames", frames]
    words += ["--structure", water_file, "--atoms", 24, 48, "--device", "cpu", "--seconds", 0.01]
    text = printed("pareto", *words, "--out", tmp_path / "picture")
    result = json.loads((tmp_path / "picture.json").read_text(encoding="utf-8"))
    assert [row["atoms"] for row in result["rows"]] == [24, 48, 24, 48]
    assert all(row["rate"] == 1e3 * row["atoms"] / row["step_ms"] > 0.0 for row in result["rows"])
    first, second = result["rows"][1:3]
    assert first["error"] == pytest.approx(1000.0, rel=1e-5)
    assert first["apart"] == 0.0
    expected = 1e3 * np.sqrt(np.square(forces).mean())
    assert second["apart"] == pytest.approx(0.1 * expected, rel=1e-4)
    assert len(text.splitlines()) == 2 + 4
    assert (tmp_path / "picture.png").stat().st_size > 1000


def test_copies_are_as_even_as_they_can_be(module: ModuleType) -> None:
    assert module.copies(3072, 192) == (2, 2, 4)
    assert module.copies(24000, 192) == (5, 5, 5)
    assert module.copies(192, 192) == (1, 1, 1)
    with pytest.raises(InputError, match="and 200 is no multiple; take 192"):
        module.copies(200, 192)


def test_the_shipped_pair_is_as_far_apart_as_is_told(
    module: ModuleType, datasets_folder: Path, tmp_path: Path, mdgraph_command: Callable[..., Any]
) -> None:
    data = tmp_path / "water.h5"
    source = datasets_folder / "water_pbe0" / "train.extxyz.gz"
    assert mdgraph_command("data", "convert", source, data).status == 0
    options = argparse.Namespace(precision="mixed", device=torch.device("cpu"))
    frames, _ = module.read_held_out(data, ROOT / "potentials" / "water-pbe0" / "split.json")
    large, small = (
        module.forces_of(name, frames, options) for name in ("water-pbe0", "water-pbe0-small")
    )
    apart = f"{module.rms(small - large):.1f} meV/A"
    for page in ("docs/multiple_time_steps.md", "potentials/water-pbe0-small/card.md"):
        assert apart in (ROOT / page).read_text(encoding="utf-8"), page
